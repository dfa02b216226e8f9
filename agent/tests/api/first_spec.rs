//! A volume that must be new is made only where nothing has its id.

use mooring_api::v1;
use tonic::Code;

use crate::rig::{
    Agent, MIB, Node, RW, SIZE, assert_refused, delete_volume, device, put_export, put_volume, volume,
    volume_spec,
};

fn new(id: &str, counter: u64) -> v1::PutVolumeRequest {
    v1::PutVolumeRequest { new: true, ..put_volume(id, counter) }
}

fn lose_store(node: &Node) {
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();
}

fn refused(agent: &Agent, id: &str, counter: u64, word: &str) {
    let words = ["cannot be made", "choose another id", id, word];
    assert_refused(agent.put_volume(new(id, counter)), Code::AlreadyExists, "fix_spec", &words);
}

#[test]
fn new_volume_is_refused_where_lvm_has_anything_of_its_id() {
    let ids: Vec<_> = (1..=4).map(volume).collect();
    let lvs = [
        (format!("mooring-{}", ids[0]), None),
        (format!("mooring-grow-{}", ids[1]), None),
        (format!("mooring-snap-{}", ids[2]), None),
        ("data".to_owned(), Some(format!("mooring-volume-{}", ids[3]))),
    ];
    // The agent finds the LV at its start, or only when it is asked to make the volume.
    for late in [false, true] {
        let node = Node::new();
        let add = || {
            for (name, tag) in &lvs {
                let tags: Vec<_> = std::iter::once("mooring").chain(tag.as_deref()).collect();
                assert!(node.fake.lvm().add_volume("vg0", name, SIZE, &tags));
            }
        };
        if !late {
            add();
        }
        let agent = node.start();
        if late {
            add();
        }
        let before = (node.lvs(), agent.switch.changes());
        for (id, (name, _)) in ids.iter().zip(&lvs) {
            refused(&agent, id, 7, if late { name } else { "vg0" });
        }
        assert_eq!((node.lvs(), agent.switch.changes()), before, "late: {late}");
        // Control: a request that does not say `new` takes back what is there.
        agent.make(put_volume(&ids[0], 1));
        assert!(!node.fake.blocks().is_zeroed(device(&ids[0])), "its data is there");
    }
}

#[test]
fn new_volume_is_refused_where_the_store_has_its_id() {
    let (node, v, gone) = (Node::new(), volume(1), volume(2));
    let agent = node.start();
    for id in [&v, &gone] {
        agent.make(new(id, 1));
    }
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.make(delete_volume(&gone, 2));
    for counter in [1, 2, 9] {
        // The same generation with another content is no repetition.
        let spec = v1::VolumeSpec { size_bytes: SIZE + MIB * 4, ..volume_spec(SIZE) };
        let other = crate::rig::put_volume_spec(&v, counter, spec);
        let put = v1::PutVolumeRequest { new: true, ..other };
        assert_refused(agent.put_volume(put), Code::AlreadyExists, "fix_spec", &[&v, "generation 1.1"]);
    }
    refused(&agent, &gone, 9, "generation 1.2");
    // After a restart, the agent knows it from the store alone.
    agent.crash();
    let agent = node.start();
    refused(&agent, &v, 9, "generation 1.1");
    refused(&agent, &gone, 9, "generation 1.2");
    // Control: a change of an existing volume, and an older sender, do not say `new`, and are
    // accepted as usual.
    agent.make(put_volume(&v, 9));
}

#[test]
fn new_volume_is_refused_where_the_kernel_serves_its_id() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(new(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.crash();
    lose_store(&node);
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    let agent = node.start();
    refused(&agent, &v, 1, "target");
}

#[test]
fn new_volume_that_is_sent_again_is_taken_also_across_a_crash() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(new(&v, 1));
    agent.make(new(&v, 1));
    agent.crash();
    let agent = node.start();
    agent.make(new(&v, 1));
    // The store is lost after the work: nobody can tell whose LV that is.
    agent.crash();
    lose_store(&node);
    refused(&node.start(), &v, 1, "vg0");
}

#[test]
fn new_volume_is_refused_when_its_naa_is_that_of_an_orphan() {
    let (node, v) = (Node::new(), volume(1));
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), SIZE, &["mooring"]));
    let agent = node.start();
    let twin = format!("{}7", &v[..v.len() - 1]);
    assert_refused(agent.put_volume(new(&twin, 1)), Code::AlreadyExists, "fix_spec", &[&twin, &v, "NAA"]);
    agent.make(new(&volume(2), 1));
}

//! Foreign LVs that become volumes with their data, and volumes that are unmanaged, through the
//! whole agent.

use mooring_api::v1;
use tonic::Code;

use crate::revert;
use crate::rig::*;

fn lvs(agent: &Agent, group: &str) -> Vec<v1::Lv> {
    let mut client = agent.client();
    let list = v1::ListLvsRequest { group: group.to_owned() };
    agent.wait(async move { client.list_lvs(list).await }).unwrap().into_inner().lvs
}

/// A spec by which somebody's `data`, as the agent lists it, becomes the volume.
fn take(agent: &Agent, id: &str, counter: u64) -> v1::PutVolumeRequest {
    let lv = lvs(agent, "vg0").into_iter().find(|lv| lv.name == "data").unwrap();
    let takes = Some(v1::ExistingLv { name: lv.name, uuid: lv.uuid });
    put_volume_spec(id, counter, v1::VolumeSpec { takes, ..volume_spec(SIZE) })
}

pub(crate) fn release(id: &str, counter: u64) -> v1::PutVolumeRequest {
    let tombstone = v1::Tombstone { release: true, ..Default::default() };
    v1::PutVolumeRequest {
        stamp: Some(stamp(1, counter, &tombstone)),
        wish: Some(v1::put_volume_request::Wish::Tombstone(tombstone)),
        ..put_volume(id, counter)
    }
}

fn node() -> Node {
    let node = Node::new();
    assert!(node.fake.lvm().add_volume("vg0", "data", SIZE, &[]));
    node
}

#[test]
fn an_lv_is_served_with_what_it_holds_and_unmanaged_with_it() {
    let (node, v) = (node(), volume(1));
    let agent = node.start();
    agent.make(take(&agent, &v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
    assert!(!node.fake.blocks().is_zeroed(device(&v)), "it was never zeroed");
    let listed = lvs(&agent, "");
    assert_eq!(
        (listed.len(), listed[0].volume_id.as_str(), listed[0].unsafe_because.is_empty()),
        (1, &*v, false)
    );
    // The controller then sends the spec without the origin, and nothing changes.
    agent.make(put_volume(&v, 2));
    // A volume is not unmanaged while an initiator reaches it, or while its export exists.
    assert_refused(
        agent.put_volume(release(&v, 3)),
        Code::FailedPrecondition,
        "fix_spec",
        &["revoke them first"],
    );
    agent.make(delete_export(&v, 2));
    agent.make(release(&v, 3));
    let is_there = |agent: &Agent| {
        let lv = lvs(agent, "").pop().unwrap();
        (lv.name, lv.volume_id, lv.unsafe_because)
    };
    let free = (format!("mooring-{v}"), String::new(), String::new());
    assert_eq!(is_there(&agent), free);
    assert!(!node.fake.lvm().reads_zeros("vg0", &free.0) && agent.list().is_empty(), "no orphan");
    // The agent remembers the unmanage, and a late deletion destroys nothing.
    agent.crash();
    let agent = node.start();
    assert_eq!((is_there(&agent), agent.list().len()), (free.clone(), 0));
    agent.make(delete_volume(&v, 4));
    assert_eq!(is_there(&agent), free);
    // The control: the same request destroys a volume of ours.
    let w = volume(2);
    agent.make(put_volume(&w, 1));
    agent.make(delete_volume(&w, 2));
    assert!(!node.lvs().contains(&w));
}

#[test]
fn what_cannot_be_taken_is_refused_and_nothing_of_it_is_kept() {
    let (node, v) = (node(), volume(1));
    let agent = node.start();
    node.fake.set_busy(std::path::Path::new("/dev/vg0/data"), true);
    assert_refused(
        agent.put_volume(take(&agent, &v, 1)),
        Code::FailedPrecondition,
        "operator",
        &["LV vg0/data", "in use on this host"],
    );
    assert_eq!(agent.get(&v).unwrap_err().code(), Code::NotFound);
    node.fake.set_busy(std::path::Path::new("/dev/vg0/data"), false);
    let mut both = release(&v, 1);
    let tombstone = v1::Tombstone { destroy_data: true, release: true };
    both.stamp = Some(stamp(1, 1, &tombstone));
    both.wish = Some(v1::put_volume_request::Wish::Tombstone(tombstone));
    assert_refused(agent.put_volume(both), Code::InvalidArgument, "fix_spec", &["keeps its data"]);
    agent.make(take(&agent, &v, 1));
    let another = v1::VolumeSpec {
        takes: Some(v1::ExistingLv { name: "other".to_owned(), uuid: "x".to_owned() }),
        ..volume_spec(SIZE)
    };
    let refused = agent.put_volume(put_volume_spec(&v, 2, another));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["cannot change"]);
    // A volume that is being deleted cannot be unmanaged any more.
    node.fake.set_busy(device(&v), true);
    let begun = agent.begin(delete_volume(&v, 3));
    agent.assert_not_done(begun);
    assert_refused(
        agent.put_volume(release(&v, 4)),
        Code::FailedPrecondition,
        "fix_spec",
        &["being deleted"],
    );
}

#[test]
fn a_snapshot_is_unmanaged_with_its_data_and_its_volume_stays() {
    let (node, v, s) = (revert::node(), volume(1), volume(2));
    let agent = node.start();
    agent.make(put_volume_spec(&v, 1, revert::thin()));
    agent.make(revert::snapshot(&s, &v));
    let name = format!("mooring-snap-{s}");
    node.fake.lvm().clear_log();
    agent.make(release(&s, 2));
    // One command: the tag goes. The LV keeps its name, and has no device still.
    let changes: Vec<_> = node.fake.lvm().log().into_iter().filter(|line| line.contains(&name)).collect();
    let changes: Vec<_> = changes.iter().filter(|line| !line.starts_with("lvs")).collect();
    assert!(matches!(&changes[..], [one] if one.starts_with("lvchange --deltag mooring")), "{changes:?}");
    let free = |agent: &Agent| lvs(agent, "").into_iter().find(|lv| lv.name == name);
    let seen = free(&agent).unwrap();
    assert!(seen.volume_id.is_empty() && seen.unsafe_because.contains("it is read-only"), "{seen:?}");
    // The agent remembers it, and a late deletion destroys nothing: neither it nor the volume.
    agent.crash();
    let agent = node.start();
    agent.make(delete_volume(&s, 3));
    assert!(free(&agent).is_some(), "{}", node.lvs());
    eventually("the volume is whole", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    // The control: the same request destroys a snapshot of ours. And one that is being deleted is
    // not unmanaged any more.
    let t = volume(3);
    agent.make(revert::snapshot(&t, &v));
    agent.make(delete_volume(&t, 2));
    assert!(!node.lvs().contains(&t), "{}", node.lvs());
    assert_refused(
        agent.put_volume(release(&t, 3)),
        Code::FailedPrecondition,
        "fix_spec",
        &["being deleted"],
    );
}

//! Relative target port ids of exports, on a kernel with the attribute `rtpi`. An export keeps its
//! id, whichever target is enabled first after a boot. An id that an export already has is kept. No
//! id keeps an export from being served.

use mooring_host::fake::PrOut;
use mooring_host::{Tree, TreePath};
use mooring_model::VolumeId;

use crate::reservations::{register, restart};
use crate::rig::*;

fn later() -> Node {
    let node = Node::new();
    node.fake.set_port_ids(true);
    node
}

fn group(target: &str) -> TreePath {
    TreePath::new("iscsi").join(target).join("tpgt_1")
}

/// Makes and enables a target of somebody else, with `id`, or with the id that the kernel gives.
fn foreign(node: &Node, name: &str, id: Option<u16>) {
    let lio = node.fake.lio();
    let group = group(&format!("iqn.2003-01.org.linux-iscsi.node:{name}"));
    // This fails if the folder exists.
    drop(lio.mkdir(&TreePath::new("iscsi")));
    lio.mkdir(&group.parent()).unwrap();
    lio.mkdir(&group).unwrap();
    if let Some(id) = id {
        lio.write(&group.join("rtpi"), id.to_string().as_bytes()).unwrap();
    }
    lio.write(&group.join("enable"), b"1").unwrap();
}

/// Returns the id of an export.
fn id_of(node: &Node, v: &str) -> u16 {
    let text = node.fake.lio().read_text(&group(&target(v)).join("rtpi")).unwrap();
    u16::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn own(v: &str, nth: usize) -> u16 {
    mooring_targets::port_ids(v.parse().unwrap()).nth(nth).unwrap()
}

fn kept(agent: &Agent) -> Vec<(VolumeId, u16)> {
    agent.engine().store().port_ids().unwrap()
}

/// Loses the ids in the store, and nothing else.
fn forget(node: &Node) {
    let file = node.config.state_dir.join(mooring_agent::store::FILE_NAME);
    rusqlite::Connection::open(file).unwrap().execute("DELETE FROM port_ids", []).unwrap();
}

fn make(agent: &Agent, v: &str) {
    agent.make(put_volume(v, 1));
    agent.make(put_export(v, 1, &[("host1", RW)]));
}

/// Gives an export another id behind the agent's back, while no agent runs.
fn renumber(node: &Node, v: &str, id: u16) {
    let (lio, group) = (node.fake.lio(), group(&target(v)));
    for (name, value) in [("enable", "0"), ("rtpi", &id.to_string()), ("enable", "1")] {
        lio.write(&group.join(name), value.as_bytes()).unwrap();
    }
}

/// Waits until the agent has looked at the export and it is in force.
fn until_served(agent: &Agent, v: &str) {
    eventually("it is in force", || agent.get(v).unwrap().export.is_some_and(|export| export.in_force));
}

#[test]
fn ids_stay_whoever_is_enabled_first() {
    let node = later();
    let agent = node.start();
    let all: Vec<_> = (1..4).map(volume).collect();
    for v in &all {
        make(&agent, v);
    }
    let before: Vec<_> = all.iter().map(|v| id_of(&node, v)).collect();
    assert_eq!(before, all.iter().map(|v| own(v, 0)).collect::<Vec<_>>());
    assert_eq!(kept(&agent).len(), 3);
    agent.crash();
    node.fake.reboot();
    for name in ["a", "b"] {
        foreign(&node, name, None);
    }
    // Once with the ids in the store, and once without them.
    for lost in [false, true] {
        let agent = node.start();
        for v in &all {
            until_served(&agent, v);
        }
        assert_eq!(all.iter().map(|v| id_of(&node, v)).collect::<Vec<_>>(), before, "lost: {lost}");
        eventually("they are kept", || kept(&agent).len() == 3);
        agent.crash();
        forget(&node);
        node.fake.reboot();
    }
}

/// Initiators know the id with which an export is served, whoever chose that id.
#[test]
fn what_an_export_has_is_kept_and_comes_back() {
    let (node, v) = (later(), volume(1));
    let agent = node.start();
    make(&agent, &v);
    agent.crash();
    forget(&node);
    renumber(&node, &v, 3);
    let session = node.login(&v, "host1").unwrap();
    let agent = node.start();
    eventually("it is kept", || kept(&agent) == [(v.parse().unwrap(), 3)]);
    assert!(node.fake.is_live(session) && id_of(&node, &v) == 3);
    let agent = restart(&node, agent);
    until_served(&agent, &v);
    assert_eq!(id_of(&node, &v), 3);
}

/// Restored registrations find the port at which they were made, also when nothing else records
/// which port that was.
#[test]
fn a_registration_comes_back_to_the_port_that_it_was_made_at() {
    let (node, v) = (later(), volume(1));
    let agent = node.start();
    make(&agent, &v);
    agent.crash();
    renumber(&node, &v, 3);
    let agent = node.start();
    let session = node.login(&v, "host1").unwrap();
    register(&node, session, 0xa, true);
    node.fake.persistent_reserve(session, 1, PrOut::Reserve { key: 0xa, kind: 5 }).unwrap();
    crate::reservations::until(&agent, &v, "host1 5: host1=a");
    eventually("the store has it", || {
        agent
            .engine()
            .store()
            .reservations()
            .unwrap()
            .iter()
            .any(|(_, kept)| kept.iter().any(|one| one.rtpi == 3))
    });
    agent.crash();
    forget(&node);
    node.fake.reboot();
    let agent = node.start();
    until_served(&agent, &v);
    crate::reservations::until(&agent, &v, "host1 5: host1=a");
    let pr = node.tree();
    assert!(pr.contains("Relative Port Identifier Tag: 3 "), "{pr}");
    assert_eq!(id_of(&node, &v), 3);
}

/// Somebody else has the id. The export is still served, with its next candidate, and keeps that
/// one.
#[test]
fn an_id_that_somebody_else_has_keeps_no_export_away() {
    let (node, v) = (later(), volume(1));
    foreign(&node, "first", Some(own(&v, 0)));
    foreign(&node, "second", Some(own(&v, 1)));
    let agent = node.start();
    make(&agent, &v);
    assert_eq!((id_of(&node, &v), kept(&agent)), (own(&v, 2), vec![(v.parse().unwrap(), own(&v, 2))]));
    // The other targets are gone, and the export keeps the id that initiators know.
    let agent = restart(&node, agent);
    until_served(&agent, &v);
    assert_eq!(id_of(&node, &v), own(&v, 2));
    agent.crash();
    node.fake.reboot();
    foreign(&node, "third", Some(own(&v, 2)));
    let agent = node.start();
    until_served(&agent, &v);
    assert_eq!(id_of(&node, &v), own(&v, 0));
    eventually("the other is kept", || kept(&agent) == [(v.parse().unwrap(), own(&v, 0))]);
    assert!(logs().contains("the relative port id of an export has changed"), "{}", logs());
}

#[test]
fn a_volume_that_has_ended_has_none() {
    let (node, v) = (later(), volume(1));
    let agent = node.start();
    make(&agent, &v);
    agent.make(delete_export(&v, 2));
    assert_eq!(kept(&agent).len(), 1, "it is the volume's, and may be asked for again");
    agent.make(delete_volume(&v, 2));
    eventually("it is forgotten", || kept(&agent).is_empty());
}

/// On Linux 6.1 the agent asks for no id, and stores none.
#[test]
fn a_kernel_without_ids_is_not_asked() {
    let node = Node::new();
    let agent = node.start();
    agent.switch.forget_log();
    for v in (1..4).map(volume) {
        make(&agent, &v);
    }
    let asked: Vec<_> = agent.switch.log().into_iter().filter(|call| call.contains("rtpi")).collect();
    assert_eq!(asked, Vec::<String>::new());
    assert_eq!(kept(&agent), []);
}

//! Restarts of agents and controllers: attachments survive all of them.

use mooring_fleet::until;

use crate::{granted, shared};

#[test]
fn s18_an_agent_that_dies_takes_no_session_with_it() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let attached = member.attach(&volume, &node, Some("ro"));
    let session = node.login(&attached.info).unwrap();
    let before = fleet.storage("s1").tree();
    fleet.storage("s1").kill();
    assert!(session.is_live() && session.read().is_ok());
    // A detach is acknowledged only by the agent that does it; it is done once that is back.
    let detach = format!("/mooring/v1/attachments/{}?wait_ms=100", attached.id);
    assert_eq!(member.delete(&detach).status, 504);
    assert_eq!(fleet.storage("s1").tree(), before);
    fleet.storage("s1").start();
    until("the detach", || {
        let seen = member.get(&format!("/attachments/{}", attached.id));
        if seen.status == 404 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    assert!(!session.is_live() && granted(&fleet, &volume).is_empty());
}

#[test]
fn s18_a_controller_that_dies_takes_no_session_with_it() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let attached = member.attach(&volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    let before = fleet.storage("s1").tree();
    fleet.control().restart();
    fleet.until_up();
    assert!(session.write().is_ok() && member.status(&volume) == "in-use");
    assert_eq!(fleet.storage("s1").tree(), before);
    let other = member.attach(&volume, &fleet.stock("node2"), None);
    member.detach(&attached.id);
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    member.detach(&other.id);
}

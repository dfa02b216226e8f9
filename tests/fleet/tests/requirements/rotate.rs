//! Rotation of secrets under live sessions, by real agents: no session is lost, whoever is killed,
//! and the old secret ends invalid.

use std::collections::BTreeMap;

use mooring_fleet::{Fleet, until};
use mooring_host::{Tree, TreePath};
use serde_json::{Value, json};

use crate::shared;

/// The users and secrets of a target by initiator, as the kernel has them.
fn at_target(fleet: &Fleet, volume: &str) -> BTreeMap<String, (String, String)> {
    let storage = fleet.storage("s1");
    let lio = storage.machine().lio();
    let text = |path: &TreePath| {
        let bytes = lio.read(path).unwrap();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    let acls = TreePath::new(&format!("iscsi/iqn.2026-11.dev.mooring:{volume}/tpgt_1/acls"));
    let of = |initiator: &String| {
        let auth = acls.join(initiator).join("auth");
        (initiator.clone(), (text(&auth.join("userid")), text(&auth.join("password"))))
    };
    storage.grants(volume).keys().map(of).collect()
}

/// Logs in by hand. Returns `true` if that succeeds.
fn gets_in(fleet: &Fleet, volume: &str, initiator: &str, (user, secret): &(String, String)) -> bool {
    let storage = fleet.storage("s1");
    let shown = Some((user.as_str(), secret.as_str()));
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    let portal = fleet.admin().get("/mooring/v1/hosts").expect(200)["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|host| host["report"]["transports"][0]["portals"][0].as_str().map(str::to_owned))
        .unwrap();
    let made = storage.machine().login(&portal, &target, initiator, shown);
    made.map(|session| storage.machine().logout(session)).is_ok()
}

fn live(fleet: &Fleet, id: &str) -> Value {
    fleet.admin().get(&format!("/mooring/v1/attachments/{id}")).expect(200)["attachment"].take()
}

fn until_rotated(fleet: &Fleet, id: &str) -> Value {
    until("the secret is rotated", || {
        let live = live(fleet, id);
        if live["secret_rotation"].is_null() && live["host_phase"] == "ready" {
            Ok(live)
        } else {
            Err(live.to_string())
        }
    })
}

fn pair() -> (Fleet, String, [String; 2]) {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let admin = fleet.admin();
    let volume = admin.volume(Some(&fleet.shared_type()), 1);
    let ids = [("h1", "rw"), ("h2", "ro")].map(|(host, mode)| admin.attach_natively(&volume, host, mode));
    (fleet, volume, ids)
}

#[test]
fn secrets_are_rotated_and_no_session_notices() {
    let (fleet, volume, ids) = pair();
    let admin = fleet.admin();
    let (before, sessions) = (at_target(&fleet, &volume), fleet.storage("s1").sessions(&volume));
    assert_eq!((before.len(), sessions.len()), (2, 2));
    let path = format!("/mooring/v1/volumes/{volume}/rotate-secrets");
    let one = admin.post(&path, &json!({ "attachment": ids[0] })).expect(200);
    assert_eq!(one["attachments"].as_array().unwrap().len(), 1);
    assert!(one["attachments"][0]["secret_rotated_at"].is_string(), "{one}");
    let after = at_target(&fleet, &volume);
    let changed: Vec<_> = after.iter().filter(|(of, pair)| before[*of] != **pair).collect();
    assert_eq!(changed.len(), 1, "that host's alone");
    let (initiator, new) = changed[0];
    assert_eq!((&new.0, fleet.storage("s1").sessions(&volume)), (&before[initiator].0, sessions));
    assert!(!gets_in(&fleet, &volume, initiator, &before[initiator]), "the old one is worth nothing");
    assert!(gets_in(&fleet, &volume, initiator, new), "the control");
    // The volume's owner rotates both; each host logs in again with its new secret.
    admin.post(&path, &json!({})).expect(200);
    let last = at_target(&fleet, &volume);
    assert!(last.iter().all(|(of, pair)| after[of] != *pair));
    fleet.storage("s1").reboot();
    until("both are logged in again", || {
        let sessions = fleet.storage("s1").sessions(&volume);
        if sessions.len() == 2 { Ok(()) } else { Err(sessions.join(" ")) }
    });
    assert_eq!(at_target(&fleet, &volume), last, "it outlives a reboot");
    for id in &ids {
        until_rotated(&fleet, id);
    }
}

#[test]
fn whoever_is_killed_in_a_rotation_it_goes_on_and_nobody_is_cut() {
    let (fleet, volume, ids) = pair();
    let admin = fleet.admin();
    let path = format!("/mooring/v1/volumes/{volume}/rotate-secrets?wait_ms=1500");
    let before = at_target(&fleet, &volume);
    // A host must learn it first.
    fleet.host("h1").kill();
    fleet.until_missed("h1");
    admin.post(&path, &json!({})).refused(503, "h1");
    assert_eq!(at_target(&fleet, &volume), before);
    fleet.host("h1").start();
    fleet.until_up();
    // The target's agent is away while both hosts learn the new secrets; the controller and a host
    // die meanwhile.
    fleet.storage("s1").kill();
    until("the hosts know both", || {
        let waits = admin.post(&path, &json!({}));
        let all = ids.iter().all(|id| live(&fleet, id)["secret_rotation"] == "target");
        if waits.status == 504 && all { Ok(()) } else { Err(format!("{waits:?}")) }
    });
    assert_eq!(at_target(&fleet, &volume), before);
    fleet.host("h2").restart();
    fleet.control().restart();
    assert!(ids.iter().all(|id| live(&fleet, id)["secret_rotation"] == "target"));
    // Its power is cut: it returns with the old secrets or the new ones, and hosts get in with
    // either.
    fleet.storage("s1").reboot();
    fleet.until_up();
    for id in &ids {
        until_rotated(&fleet, id);
    }
    let after = at_target(&fleet, &volume);
    assert!(after.iter().all(|(of, pair)| before[of].1 != pair.1), "all are new");
    assert!(before.iter().all(|(of, pair)| !gets_in(&fleet, &volume, of, pair)));
    until("both are logged in again", || {
        let sessions = fleet.storage("s1").sessions(&volume);
        if sessions.len() == 2 { Ok(()) } else { Err(sessions.join(" ")) }
    });
}

#[test]
fn a_clients_secret_is_rotated_by_force_and_its_session_lives() {
    let (fleet, volume) = shared();
    let (admin, member, node) = (fleet.admin(), fleet.member(), fleet.stock("node1"));
    let attached = member.attach(&volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    let path = format!("/mooring/v1/volumes/{volume}/rotate-secrets");
    member.post(&path, &json!({})).refused(409, "connection_info");
    member.post(&path, &json!({ "attachment": volume })).refused(404, "of volume");
    fleet.stranger().post(&path, &json!({ "force": true })).refused(404, "Volume");
    fleet.reader().post(&path, &json!({ "force": true })).refused(403, "mooring:rotate_secrets");
    member.post(&path, &json!({ "force": true })).expect(200);
    assert!(session.is_live() && session.write().is_ok());
    assert!(node.login(&attached.info).is_err(), "the old one is worth nothing");
    let shown = admin.show_attachment(&attached.id);
    assert!(node.login(&shown["connection_info"]).is_ok(), "the new one is shown to those who may know");
}

//! Retype: when sharing may be switched, and when that does not matter.

use mooring_fleet::{Answer, Fleet};
use serde_json::json;

use crate::{granted, shared};

fn retype(fleet: &Fleet, volume: &str, to: &str) -> Answer {
    let body = json!({ "new_type": to, "migration_policy": "never" });
    fleet.member().action(&format!("/volumes/{volume}"), "os-retype", &body)
}

/// Name of its type, and the flag.
fn kind_of(fleet: &Fleet, volume: &str) -> (String, bool) {
    let shown = fleet.member().show(volume);
    (shown["volume_type"].as_str().unwrap().to_owned(), shown["multiattach"] == true)
}

#[test]
fn s45_sharing_is_not_switched_while_a_volume_is_in_use() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let plain = member.volume(None, 1);
    for (volume, now, to) in [(&volume, "shared", "__DEFAULT__"), (&plain, "__DEFAULT__", "shared")] {
        let node = fleet.stock("node1");
        let reserved = member.reserve(volume, None);
        retype(&fleet, volume, to).refused(400, "reserved");
        let info = member.connect(&reserved, &node.connector());
        retype(&fleet, volume, to).refused(400, "attaching");
        let session = node.login(&info).unwrap();
        member.complete(&reserved);
        let before = fleet.storage("s1").tree();
        retype(&fleet, volume, to).refused(400, "in-use");
        assert_eq!(fleet.storage("s1").tree(), before);
        assert!(session.write().is_ok());
        assert_eq!(kind_of(&fleet, volume), (now.to_owned(), now == "shared"));
        // The same request succeeds when nobody has it any more.
        member.detach(&reserved);
        retype(&fleet, volume, to).expect(202);
        assert_eq!(kind_of(&fleet, volume), (to.to_owned(), to == "shared"));
    }
}

#[test]
fn s46_while_it_is_available_type_and_flag_change_together() {
    let fleet = Fleet::small();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    let volume = member.volume(None, 1);
    retype(&fleet, &volume, &shared).expect(202);
    assert_eq!(kind_of(&fleet, &volume), ("shared".to_owned(), true), "with the answer, not some time later");
    let (one, two) = (fleet.stock("node1"), fleet.stock("node2"));
    let (first, second) = (member.attach(&volume, &one, None), member.attach(&volume, &two, None));
    let sessions = [one.login(&first.info).unwrap(), two.login(&second.info).unwrap()];
    assert!(sessions.iter().all(|session| session.write().is_ok()));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    for gone in [first.id, second.id] {
        member.detach(&gone);
    }
    retype(&fleet, &volume, "__DEFAULT__").expect(202);
    assert_eq!(kind_of(&fleet, &volume), ("__DEFAULT__".to_owned(), false));
    member.attach(&volume, &one, None);
    let again = json!({ "attachment": { "volume_uuid": volume, "connector": two.connector() } });
    member.post("/attachments", &again).expect(400);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
}

#[test]
fn s46_a_retype_that_cannot_be_changes_neither() {
    let fleet = Fleet::builder().storage_without_target("s1", &[("vg0", 100)]).start();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    let volume = member.volume(None, 1);
    // The volume's node cannot share, and nothing may move.
    retype(&fleet, &volume, &shared).expect(400);
    assert_eq!(
        (kind_of(&fleet, &volume), member.status(&volume)),
        (("__DEFAULT__".into(), false), "available".into())
    );
    fleet.control().restart();
    assert_eq!(kind_of(&fleet, &volume), ("__DEFAULT__".to_owned(), false));
}

#[test]
fn s46_a_retype_and_an_attach_at_once_never_contradict() {
    let fleet = Fleet::small();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    for _ in 0..4 {
        let volume = member.volume(Some(&shared), 1);
        let nodes = [fleet.stock("node1"), fleet.stock("node2")];
        let codes = std::thread::scope(|scope| {
            let attach = nodes.iter().map(|node| {
                let body = json!({ "attachment": { "volume_uuid": volume, "connector": node.connector() } });
                let member = member.clone();
                scope.spawn(move || member.post("/attachments", &body).status)
            });
            let attach: Vec<_> = attach.collect();
            let retyped = retype(&fleet, &volume, "__DEFAULT__").status;
            let codes: Vec<_> = attach.into_iter().map(|thread| thread.join().unwrap()).collect();
            (retyped, codes)
        });
        let (_, flag) = kind_of(&fleet, &volume);
        assert_eq!(flag, codes.0 == 400, "{codes:?}");
        let held = granted(&fleet, &volume).len();
        assert!(
            held == codes.1.iter().filter(|code| **code == 200).count() && (flag || held <= 1),
            "{codes:?}"
        );
    }
}

#[test]
fn s47_other_changes_are_not_stopped_by_use() {
    let (fleet, volume) = shared();
    let (admin, member, node) = (fleet.admin(), fleet.member(), fleet.stock("node1"));
    let also = admin.volume_type("also-shared", &[("multiattach", "<is> True"), ("vendor:tier", "gold")]);
    let session = node.login(&member.attach(&volume, &node, None).info).unwrap();
    let before = fleet.storage("s1").tree();
    retype(&fleet, &volume, &also).expect(202);
    assert_eq!(
        (kind_of(&fleet, &volume), member.status(&volume)),
        (("also-shared".into(), true), "in-use".into())
    );
    assert!(session.is_live() && session.write().is_ok());
    assert_eq!(fleet.storage("s1").tree(), before, "hosts notice nothing");
    // It is shared as before.
    member.attach(&volume, &fleet.stock("node2"), None);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

//! Read-write and read-only, per attachment: in the answer, at the target, on the host.

use mooring_fleet::{Fleet, Node, until};
use mooring_host::fake::IoRefusal;
use serde_json::json;

use crate::{SERVER, granted, shared};

#[test]
fn s26_one_volume_is_rw_on_one_host_and_ro_on_another() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let (writer, reader) = (fleet.stock("node1"), fleet.stock("node2"));
    let first = member.attach(&volume, &writer, Some("rw"));
    let second = member.attach(&volume, &reader, Some("ro"));
    assert_eq!((&first.info["access_mode"], &second.info["access_mode"]), (&json!("rw"), &json!("ro")));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 ro"]);
    let storage = fleet.storage("s1");
    assert_eq!(storage.write_protect(&volume, writer.initiator()), Some(false));
    assert_eq!(storage.write_protect(&volume, reader.initiator()), Some(true));
    let (writes, reads) = (writer.login(&first.info).unwrap(), reader.login(&second.info).unwrap());
    assert_eq!((writes.write(), reads.read()), (Ok(()), Ok(())));
    assert_eq!(reads.write(), Err(IoRefusal::WriteProtected));
    // A detach of the writer changes nothing for the reader.
    member.detach(&first.id);
    assert_eq!(reads.write(), Err(IoRefusal::WriteProtected));
    assert!(reads.read().is_ok() && !writes.is_live());
}

#[test]
fn s27_the_mode_is_an_argument_of_the_create() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let with = |mode: serde_json::Value| json!({ "attachment": { "volume_uuid": volume, "mode": mode } });
    for wrong in [json!("wr"), json!("RW"), json!(null), json!(1), json!("null")] {
        member.at("3.54").post("/attachments", &with(wrong)).refused(400, "mode");
    }
    member.at("3.53").post("/attachments", &with(json!("ro"))).refused(400, "mode");
    let made = member.at("3.54").post("/attachments", &with(json!("ro"))).expect(200);
    assert_eq!(made["attachment"]["attach_mode"], "ro");
    let info = member.connect(made["attachment"]["id"].as_str().unwrap(), &node.connector());
    assert_eq!(info["access_mode"], "ro");
    assert_eq!(fleet.storage("s1").write_protect(&volume, node.initiator()), Some(true));
}

#[test]
fn s30_a_mode_that_nobody_said_is_never_the_text_null() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    // With the connector in the create call, as at a live migration.
    let attached = member.attach(&volume, &node, None);
    assert_eq!(member.show_attachment(&attached.id)["attach_mode"], "rw");
    assert_eq!(attached.info["access_mode"], "rw");
    let reserved = member.reserve(&volume, None);
    assert_eq!(member.show_attachment(&reserved)["attach_mode"], "rw");
}

#[test]
fn s28_the_connectors_mode_holds_where_no_argument_does() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let body =
        json!({ "attachment": { "volume_uuid": volume, "connector": node.connector_with_mode("ro") } });
    let made = member.post("/attachments", &body).expect(200);
    let info = &made["attachment"]["connection_info"];
    assert_eq!((&made["attachment"]["attach_mode"], &info["access_mode"]), (&json!("ro"), &json!("ro")));
    assert_eq!(fleet.storage("s1").write_protect(&volume, node.initiator()), Some(true));
    assert_eq!(node.login(info).unwrap().write(), Err(IoRefusal::WriteProtected));
}

#[test]
fn s28_a_second_attachment_of_one_server_takes_the_mode_of_the_first() {
    let fleet = Fleet::small();
    let (member, volume) = (fleet.member(), fleet.member().volume(None, 1));
    let body = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": SERVER, "mode": "ro",
        "connector": fleet.stock("node1").connector() } });
    member.post("/attachments", &body).expect(200);
    let (id, there) = (member.reserve(&volume, Some(SERVER)), fleet.stock("node2"));
    let info = member.connect(&id, &there.connector());
    assert_eq!(info["access_mode"], "ro");
    assert_eq!(fleet.storage("s1").write_protect(&volume, there.initiator()), Some(true));
}

#[test]
fn s28_two_attachments_on_one_host_share_its_access_and_it_is_said() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let reads = member.attach(&volume, &node, Some("ro"));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 ro"]);
    let writes = member.attach(&volume, &node, Some("rw"));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"], "one nexus: rw if any is");
    member.detach(&writes.id);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 ro"], "narrowed when the writer goes");
    assert_eq!(member.show_attachment(&reads.id)["attach_mode"], "ro");
}

#[test]
fn s28_read_only_holds_on_a_host_with_an_agent_too() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fleet.shared_type()), 1));
    let writes = admin.attach_natively(&volume, "h1", "rw");
    let reads = admin.attach_natively(&volume, "h2", "ro");
    assert_eq!(fleet.host("h1").is_read_only(&volume), Some(false));
    assert_eq!(fleet.host("h2").is_read_only(&volume), Some(true));
    assert!(fleet.host("h1").path_of(&writes).is_some() && fleet.host("h2").path_of(&reads).is_some());
    let modes: Vec<_> = fleet.storage("s1").grants(&volume).into_values().map(|grant| grant.writes).collect();
    assert_eq!(modes.iter().filter(|writes| **writes).count(), 1, "{modes:?}");
    for host in ["h1", "h2"] {
        assert_eq!(fleet.host(host).world().violations(), Vec::<String>::new());
    }
}

#[test]
fn s29_the_mode_is_the_attachments_and_the_volumes_flag_only_a_default() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let flag = |readonly: &str| {
        let flag = json!({ "readonly": readonly });
        member.action(&format!("/volumes/{volume}"), "os-update_readonly_flag", &flag).expect(202);
        member.show(&volume)["metadata"]["readonly"].clone()
    };
    // A flag that says no counts as no.
    assert_eq!(flag("False"), "False");
    let writes = member.attach(&volume, &fleet.stock("node1"), None);
    let reads = member.attach(&volume, &fleet.stock("node2"), Some("ro"));
    let modes = [&writes, &reads].map(|one| member.show_attachment(&one.id)["attach_mode"].clone());
    assert_eq!(modes, ["rw", "ro"]);
    assert_eq!((&writes.info["access_mode"], &reads.info["access_mode"]), (&json!("rw"), &json!("ro")));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 ro"]);
    // Metadata of users is theirs: it changes no access.
    let body = json!({ "metadata": { "attached_mode": "ro", "readonly": "True" } });
    member.post(&format!("/volumes/{volume}/metadata"), &body).expect(200);
    let third = member.attach(&volume, &fleet.stock("node3"), None);
    assert_eq!(third.info["access_mode"], "rw");
    for gone in [writes, reads, third] {
        member.detach(&gone.id);
    }
    // Once set, it is the default mode, and nobody gets more.
    assert_eq!(flag("True"), "True");
    let wants = |node: &str| json!({ "attachment": { "volume_uuid": volume, "mode": "rw", "connector": fleet.stock(node).connector() } });
    member.post("/attachments", &wants("node1")).refused(400, "read only");
    let reads = member.attach(&volume, &fleet.stock("node2"), None);
    assert_eq!(reads.info["access_mode"], "ro");
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 ro"]);
    let session = fleet.stock("node2").login(&reads.info).unwrap();
    assert_eq!(session.write(), Err(IoRefusal::WriteProtected));
}

#[test]
fn a_mode_changes_where_it_is_at_the_target_and_on_the_host() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fleet.shared_type()), 1));
    let (id, other) =
        (admin.attach_natively(&volume, "h1", "rw"), admin.attach_natively(&volume, "h2", "rw"));
    let path = fleet.host("h1").path_of(&id);
    for (mode, read_only) in [("ro", true), ("rw", false), ("ro", true)] {
        let set =
            admin.put(&format!("/mooring/v1/attachments/{id}/mode"), &json!({ "mode": mode })).expect(200);
        assert_eq!((&set["attachment"]["effective_mode"], &set["barrier"]), (&json!(mode), &json!(false)));
        assert_eq!(set["attachment"]["session"], true, "nobody was logged out");
        assert_eq!(fleet.host("h1").is_read_only(&volume), Some(read_only));
        assert_eq!(fleet.host("h1").path_of(&id), path);
        assert_eq!(fleet.host("h2").is_read_only(&volume), Some(false));
        let lines = granted(&fleet, &volume);
        assert_eq!(
            lines.iter().filter(|line| line.ends_with(mode)).count(),
            if read_only { 1 } else { 2 },
            "{lines:?}"
        );
    }
    for wrong in [json!({}), json!({ "mode": "wr" }), json!({ "mode": "ro", "force": true })] {
        admin.put(&format!("/mooring/v1/attachments/{id}/mode"), &wrong).refused(400, "");
    }
    admin.delete(&format!("/mooring/v1/attachments/{other}")).expect(200);
    admin.put(&format!("/mooring/v1/attachments/{other}/mode"), &json!({ "mode": "rw" })).refused(404, "");
}

#[test]
fn a_barrier_is_answered_when_nothing_of_the_host_is_in_flight() {
    let (fleet, volume) = shared();
    let (admin, one, two) = (fleet.admin(), fleet.stock("node1"), fleet.stock("node2"));
    let (first, second) = (admin.attach(&volume, &one, None), admin.attach(&volume, &two, None));
    let (cut, stays) = (one.login(&first.info).unwrap(), two.login(&second.info).unwrap());
    let disk = Node::device("vg0", &volume);
    let machine = fleet.storage("s1").machine();
    let path = format!("/mooring/v1/attachments/{}/mode", first.id);
    let barrier = json!({ "mode": "ro", "barrier": true });
    machine.hold(&disk);
    cut.start_write().unwrap();
    // Control: the mode is in force, and the write is still to land.
    let plain = admin.put(&path, &json!({ "mode": "ro" })).expect(200);
    assert_eq!((&plain["barrier"], machine.in_flight(&disk), cut.is_live()), (&json!(false), 1, true));
    admin.put(&format!("{path}?wait_ms=1000"), &barrier).refused(504, "ask again");
    until("its session is cut", || match cut.write() {
        Err(IoRefusal::SessionGone) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!((machine.in_flight(&disk), machine.landed(&disk)), (1, 0));
    machine.release(&disk);
    let done = admin.put(&path, &barrier).expect(200);
    assert_eq!((&done["barrier"], &done["attachment"]["effective_mode"]), (&json!(true), &json!("ro")));
    assert_eq!((machine.in_flight(&disk), machine.landed(&disk)), (0, 1));
    assert!(stays.is_live() && stays.write().is_ok());
    let again = one.login(&first.info).unwrap();
    assert_eq!((again.read(), again.write()), (Ok(()), Err(IoRefusal::WriteProtected)));
    // A repetition is the same barrier, and drops no session.
    assert_eq!(admin.put(&path, &barrier).expect(200)["barrier"], true);
    assert!(again.is_live());
    admin.put(&path, &json!({ "mode": "rw", "barrier": true })).refused(400, "barrier");
    admin.put(&path, &json!({ "mode": "rw" })).expect(200);
    assert!(again.is_live() && again.write().is_ok(), "it writes again in its session");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

#[test]
fn a_host_with_an_agent_comes_back_by_itself_after_a_barrier() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fleet.shared_type()), 1));
    let (id, _) = (admin.attach_natively(&volume, "h1", "rw"), admin.attach_natively(&volume, "h2", "rw"));
    let path = fleet.host("h1").path_of(&id);
    let set =
        admin.put(&format!("/mooring/v1/attachments/{id}/mode"), &json!({ "mode": "ro", "barrier": true }));
    assert_eq!(set.expect(200)["barrier"], true);
    until("host h1 works on, read only", || {
        let live = admin.get(&format!("/mooring/v1/attachments/{id}")).expect(200);
        let live = &live["attachment"];
        let fine = live["session"] == true && live["host_phase"] == "ready" && live["effective_mode"] == "ro";
        if fine { Ok(()) } else { Err(live.to_string()) }
    });
    assert_eq!((fleet.host("h1").path_of(&id), fleet.host("h1").is_read_only(&volume)), (path, Some(true)));
    assert_eq!(fleet.host("h2").is_read_only(&volume), Some(false));
    for host in ["h1", "h2"] {
        assert_eq!(fleet.host(host).world().violations(), Vec::<String>::new());
    }
}

//! Detach and force detach: the objects that go, those that stay, and the answers.

use mooring_fleet::{Fleet, Node, until};
use serde_json::json;

use crate::{NOTHING, OTHER_SERVER, SERVER, granted, shared};

#[test]
fn s36_deleting_one_attachment_leaves_the_others_working() {
    let (fleet, volume) = shared();
    let (member, one, two) = (fleet.member(), fleet.stock("node1"), fleet.stock("node2"));
    let (first, second) = (member.attach(&volume, &one, None), member.attach(&volume, &two, None));
    let (gone, stays) = (one.login(&first.info).unwrap(), two.login(&second.info).unwrap());
    let left = member.detach(&first.id);
    assert_eq!((left.as_array().unwrap().len(), &left[0]["id"]), (1, &json!(second.id)));
    assert!(!gone.is_live() && stays.is_live() && stays.write().is_ok());
    assert!(one.login(&first.info).is_err(), "what is revoked lets nobody in");
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    assert_eq!(member.show_attachment(&second.id)["status"], "attached");
    member.detach(&second.id);
    assert!(granted(&fleet, &volume).is_empty() && !stays.is_live());
    assert!(fleet.storage("s1").has_volume("vg0", &volume), "the data stays");
}

#[test]
fn s37_a_reserved_attachment_goes_without_touching_anybody() {
    let (fleet, volume) = shared();
    let (member, one) = (fleet.member(), fleet.stock("node1"));
    let first = member.attach(&volume, &one, None);
    let session = one.login(&first.info).unwrap();
    let reserved = member.reserve(&volume, None);
    let before = fleet.storage("s1").tree();
    member.detach(&reserved);
    assert_eq!(fleet.storage("s1").tree(), before);
    assert!(session.is_live() && session.write().is_ok());
}

#[test]
fn s38_force_detach_cuts_exactly_the_one_that_was_named() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fleet.shared_type()), 1));
    let (one, two) = (admin.attach_natively(&volume, "h1", "rw"), admin.attach_natively(&volume, "h2", "rw"));
    let stock = fleet.stock("node1");
    let third = stock.login(&admin.attach(&volume, &stock, None).info).unwrap();
    // A program holds it open: an orderly detach is refused, a forced one revokes.
    fleet.host("h1").hold_open(&volume, true);
    assert_eq!(admin.delete(&format!("/mooring/v1/attachments/{one}")).status, 409);
    let receipt = admin.delete(&format!("/mooring/v1/attachments/{one}?force=true")).expect(200);
    assert_eq!(receipt["receipt"]["proof"], "proven", "{receipt}");
    assert_eq!(fleet.storage("s1").grants(&volume).len(), 2);
    assert!(third.is_live() && third.write().is_ok() && fleet.host("h2").path_of(&two).is_some());
    until("the host is told", || match fleet.host("h1").path_of(&one) {
        None => Ok(()),
        Some(path) => Err(path),
    });
    // A repetition has the same receipt.
    let again = admin.delete(&format!("/mooring/v1/attachments/{one}?force=true")).expect(200);
    assert_eq!(again["receipt"], receipt["receipt"]);
    let kept = admin.get(&format!("/mooring/v1/attachments/{one}/receipt")).expect(200);
    assert_eq!(kept["receipt"], receipt["receipt"]);
    assert_eq!(admin.status(&volume), "in-use");
}

#[test]
fn s38_a_receipt_is_unproven_until_the_kernel_has_drained() {
    let (fleet, volume) = shared();
    let (admin, node) = (fleet.admin(), fleet.stock("node1"));
    let attached = admin.attach(&volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    let disk = Node::device("vg0", &volume);
    let machine = fleet.storage("s1").machine();
    machine.hold(&disk);
    session.start_write().unwrap();
    let forced = format!("/mooring/v1/attachments/{}?force=true&wait_ms=1000", attached.id);
    let receipt = admin.delete(&forced).expect(200)["receipt"].take();
    assert_eq!(receipt["proof"], "unproven", "{receipt}");
    assert!(node.login(&attached.info).is_err(), "nobody new comes in");
    machine.release(&disk);
    until("the receipt is proven", || {
        let receipt = admin.get(&format!("/mooring/v1/attachments/{}/receipt", attached.id));
        if receipt.body["receipt"]["proof"] == "proven" { Ok(()) } else { Err(format!("{receipt:?}")) }
    });
    until("the attachment is gone", || {
        let status = admin.get(&format!("/attachments/{}", attached.id)).status;
        if status == 404 { Ok(()) } else { Err(status.to_string()) }
    });
    assert_eq!(fleet.storage("s1").grants(&volume).len(), 0);
}

#[test]
fn s39_force_detach_asks_no_status() {
    let (fleet, volume) = shared();
    let (admin, one, two) = (fleet.admin(), fleet.stock("node1"), fleet.stock("node2"));
    let (first, second) = (admin.attach(&volume, &one, None), admin.attach(&volume, &two, None));
    let (cut, stays) = (one.login(&first.info).unwrap(), two.login(&second.info).unwrap());
    let volume_path = format!("/volumes/{volume}");
    admin.action(&volume_path, "os-reset_status", &json!({ "status": "error" })).expect(202);
    assert_eq!(admin.status(&volume), "error");
    // The older call, by id, with two attachments; its connector is not needed.
    let force = json!({ "attachment_id": first.id, "connector": null });
    fleet.member().action(&volume_path, "os-force_detach", &force).refused(403, "force_detach");
    assert!(cut.is_live());
    admin.action(&volume_path, "os-force_detach", &json!({})).refused(400, "attachment_id");
    admin.action(&volume_path, "os-force_detach", &force).expect(202);
    assert!(!cut.is_live() && stays.is_live() && stays.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    assert_eq!(admin.status(&volume), "in-use", "an event of an attachment derives the status again");
    // Reserved and unfinished attachments are forced off as well.
    for connector in [None, Some(fleet.stock("node3").connector())] {
        let id = admin.reserve(&volume, None);
        if let Some(connector) = connector {
            admin.connect(&id, &connector);
        }
        admin.action(&volume_path, "os-force_detach", &json!({ "attachment_id": id })).expect(202);
        assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    }
    assert!(stays.write().is_ok());
}

#[test]
fn s40_a_delete_with_force_cuts_that_attachment() {
    let (fleet, volume) = shared();
    let (admin, member) = (fleet.admin(), fleet.member());
    let (one, two) = (fleet.stock("node1"), fleet.stock("node2"));
    let (first, second) = (member.attach(&volume, &one, None), member.attach(&volume, &two, None));
    let (cut, stays) = (one.login(&first.info).unwrap(), two.login(&second.info).unwrap());
    let path = format!("/attachments/{}", first.id);
    member.delete(&format!("{path}?force=true")).refused(403, "force_detach");
    admin.delete(&format!("{path}?force=perhaps")).expect(400);
    assert!(cut.is_live() && granted(&fleet, &volume).len() == 2);
    let left = admin.delete(&format!("{path}?force=true")).expect(200);
    assert_eq!(left["attachments"][0]["id"], json!(second.id));
    assert!(!cut.is_live() && stays.is_live() && stays.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    member.get(&path).expect(404);
    let receipt = admin.get(&format!("/mooring/v1/attachments/{}/receipt", first.id)).expect(200);
    assert_eq!(receipt["receipt"]["proof"], "proven", "{receipt}");
    // A repetition after a lost answer succeeds. Without force it is gone.
    let again = admin.delete(&format!("{path}?force=true")).expect(200);
    assert_eq!(again["attachments"], left["attachments"]);
    admin.delete(&path).expect(404);
}

#[test]
fn s41_an_attachment_that_is_not_there_is_not_found() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let gone = member.reserve(&volume, None);
    member.detach(&gone);
    for id in [gone.as_str(), NOTHING, "not-a-uuid"] {
        let path = format!("/attachments/{id}");
        member.get(&path).refused(404, "could not be found");
        member.delete(&path).refused(404, "could not be found");
        member.action(&path, "os-complete", &json!({})).refused(404, "could not be found");
        let connector = fleet.stock("node1").connector();
        member
            .put(&path, &json!({ "attachment": { "connector": connector } }))
            .refused(404, "could not be found");
    }
    let kept = member.reserve(&volume, None);
    fleet.stranger().delete(&format!("/attachments/{kept}")).refused(404, "could not be found");
    assert_eq!(member.show_attachment(&kept)["status"], "reserved");
}

#[test]
fn s42_the_status_is_derived_from_what_remains() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let attached = member.attach(&volume, &fleet.stock("node1"), None);
    let attaching = member.reserve(&volume, None);
    member.connect(&attaching, &fleet.stock("node2").connector());
    let reserved = member.reserve(&volume, None);
    assert_eq!(member.status(&volume), "in-use");
    member.detach(&attached.id);
    assert_eq!(member.status(&volume), "attaching");
    member.detach(&attaching);
    assert_eq!(member.status(&volume), "reserved");
    member.detach(&reserved);
    assert_eq!(member.status(&volume), "available");
}

#[test]
fn s31_a_volume_that_is_attached_is_not_deleted() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let attached = member.attach(&volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    assert_eq!(member.delete(&format!("/volumes/{volume}")).status, 400);
    assert!(session.write().is_ok() && fleet.storage("s1").has_volume("vg0", &volume));
    member.detach(&attached.id);
    member.delete(&format!("/volumes/{volume}")).expect(202);
    member.until_deleted(&volume);
    assert!(!fleet.storage("s1").has_volume("vg0", &volume) && !fleet.storage("s1").has_export(&volume));
}

/// The names of the targets that a kernel has.
fn targets(fleet: &Fleet) -> Vec<String> {
    let tree = fleet.storage("s1").tree();
    let names = tree.lines().filter_map(|line| line.strip_prefix("dir  iscsi/"));
    let mut names: Vec<_> = names.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
    names.retain(|name| name.starts_with("iqn."));
    names.sort();
    names.dedup();
    names
}

#[test]
fn s43_every_volume_has_a_target_of_its_own() {
    let fleet = Fleet::small();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let volumes = [member.volume(Some(&fleet.shared_type()), 1), member.volume(None, 1)];
    let attached = [0, 1].map(|n: usize| member.attach(&volumes[n], &node, None));
    let sessions = [0, 1].map(|n: usize| node.login(&attached[n].info).unwrap());
    let mut said: Vec<_> =
        attached.iter().map(|one| one.info["target_iqn"].as_str().unwrap().to_owned()).collect();
    said.sort();
    assert_eq!(targets(&fleet), said, "one for each, and no other");
    for volume in &volumes {
        let shown = member.at("3.48").get(&format!("/volumes/{volume}")).expect(200);
        assert_eq!(shown["volume"]["shared_targets"], false);
    }
    // A logout of one does not affect the other.
    member.detach(&attached[0].id);
    assert!(!sessions[0].is_live() && sessions[1].is_live() && sessions[1].write().is_ok());
    assert_eq!(granted(&fleet, &volumes[1]), ["node1 LUN 1 rw"]);
}

#[test]
fn s44_hosts_are_compared_by_their_initiator() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    // Two servers on one host, with connectors that differ otherwise.
    let first = member.reserve(&volume, Some(SERVER));
    let session = node.login(&member.connect(&first, &node.connector())).unwrap();
    member.complete(&first);
    let second = member.reserve(&volume, Some(OTHER_SERVER));
    let mut connector = node.connector();
    connector["mountpoint"] = json!("/dev/vdc");
    connector["initiator"] = json!(node.initiator().to_uppercase().replace("IQN", "iqn"));
    connector["ip"] = json!("198.51.100.7");
    let info = member.connect(&second, &connector);
    member.complete(&second);
    assert_eq!(info["target_iqn"], member.show_attachment(&first)["connection_info"]["target_iqn"]);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"], "one access for both");
    // Nova logs out only with the last one: the access stays until then.
    let nova = member.with("X-Service-Token", fleet.service().token());
    nova.detach(&first);
    assert!(session.is_live() && session.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    nova.detach(&second);
    assert!(!session.is_live() && granted(&fleet, &volume).is_empty());
    // Two initiators are two hosts, though everything else is equal.
    let mut other = fleet.stock("node2").connector();
    other["ip"] = node.connector()["ip"].clone();
    member.attach(&volume, &node, None);
    member.connect(&member.reserve(&volume, None), &other);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

/// RFC 7143, 4.2.7, has three types of names. One of them looks like a Fibre Channel port.
#[test]
fn initiators_of_every_type_of_name_attach_and_detach() {
    const NAMES: [&str; 3] =
        ["eui.02004567a425678d", "naa.52004567ba64678d", "naa.62004567ba64678d0123456789abcdef"];
    let (fleet, volume) = shared();
    let (admin, storage) = (fleet.admin(), fleet.storage("s1"));
    let nodes = [0, 1, 2].map(|n: usize| fleet.stock(&format!("node{n}")).known_as(NAMES[n]));
    let attached = [0, 1, 2].map(|n: usize| admin.attach(&volume, &nodes[n], None));
    let sessions = [0, 1, 2].map(|n: usize| nodes[n].login(&attached[n].info).unwrap());
    assert!(sessions.iter().all(|session| session.write().is_ok()));
    let mut live = storage.sessions(&volume);
    live.sort();
    assert_eq!(live, NAMES, "the kernel's ACLs have these names, and each has a session");
    // Read back from the store they are what they were.
    fleet.control().restart();
    fleet.until_up();
    for (one, name) in attached.iter().zip(NAMES) {
        let shown = admin.get(&format!("/mooring/v1/attachments/{}", one.id)).expect(200);
        let shown = &shown["attachment"];
        assert_eq!((&shown["transport"], &shown["initiator"]), (&json!("iscsi"), &json!(name)));
    }
    // Names are compared without case.
    let mut connector = nodes[1].connector();
    connector["initiator"] = json!(NAMES[1].to_uppercase());
    let body = json!({ "attachment": { "connector": connector } });
    admin.put(&format!("/attachments/{}", attached[1].id), &body).expect(200);
    for one in &attached[..2] {
        let path = format!("/mooring/v1/attachments/{}?force=true", one.id);
        assert_eq!(admin.delete(&path).expect(200)["receipt"]["proof"], "proven");
    }
    assert_eq!(storage.sessions(&volume), [NAMES[2]]);
    let fence = admin.post(&format!("/mooring/v1/hosts/{}/fence", NAMES[2]), &json!({})).expect(200);
    assert_eq!(fence["fence"]["proof"], "proven", "{fence}");
    assert!(sessions.iter().all(|session| !session.is_live()) && storage.grants(&volume).is_empty());
}

#[test]
fn a_fence_takes_a_host_from_every_kernel() {
    let fleet = Fleet::builder()
        .storage("s1", &[("vg0", 100)])
        .storage("s2", &[("vg0", 100)])
        .host("h1")
        .host("h2")
        .start();
    let (admin, kind) = (fleet.admin(), fleet.shared_type());
    let volumes: Vec<_> = (0..4).map(|_| admin.volume(Some(&kind), 1)).collect();
    let home = |volume: &String| {
        let shown = admin.get(&format!("/volumes/{volume}")).expect(200);
        let host = shown["volume"]["os-vol-host-attr:host"].as_str().unwrap().to_owned();
        host.split('@').next().unwrap().to_owned()
    };
    let nodes: Vec<_> = volumes.iter().map(home).collect();
    assert!(nodes.iter().any(|node| node == "s1") && nodes.iter().any(|node| node == "s2"), "{nodes:?}");
    let fenced: Vec<_> = volumes.iter().map(|volume| admin.attach_natively(volume, "h1", "rw")).collect();
    let stays = admin.attach_natively(&volumes[0], "h2", "rw");
    let answer = admin.post("/mooring/v1/hosts/h1/fence", &json!({})).expect(200);
    let fence = &answer["fence"];
    assert_eq!((&fence["proof"], fence["parts"].as_array().unwrap().len()), (&json!("proven"), 4), "{fence}");
    for (number, (volume, node)) in volumes.iter().zip(&nodes).enumerate() {
        let left = fleet.storage(node).grants(volume).len();
        assert_eq!(left, usize::from(number == 0), "{volume} on {node}");
    }
    assert!(fleet.host("h2").path_of(&stays).is_some());
    for id in &fenced {
        until("the host is told", || fleet.host("h1").path_of(id).map_or(Ok(()), Err));
    }
    let refused = admin
        .post("/mooring/v1/attachments", &json!({ "attachment": { "volume": volumes[1], "host": "h1" } }));
    assert!(refused.status == 400 && refused.body.to_string().contains("is fenced"), "{refused:?}");
    admin.post("/mooring/v1/hosts/h1/unfence", &json!({})).expect(200);
    admin.attach_natively(&volumes[1], "h1", "rw");
}

/// Fifteen digits are a Fibre Channel port in Linux's spelling, and here an enrolled host, too.
#[test]
fn a_host_is_fenced_by_its_name_although_a_port_may_have_it() {
    const NAME: &str = "deadbeefcafe001";
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host(NAME).start();
    let admin = fleet.admin();
    let volume = admin.volume(Some(&fleet.shared_type()), 1);
    admin.attach_natively(&volume, NAME, "rw");
    assert_eq!(fleet.storage("s1").grants(&volume).len(), 1);
    let fence = admin.post(&format!("/mooring/v1/hosts/{NAME}/fence"), &json!({})).expect(200);
    assert_eq!(fence["fence"]["proof"], "proven", "{fence}");
    assert_eq!(fence["fence"]["parts"].as_array().unwrap().len(), 1, "{fence}");
    assert!(fleet.storage("s1").grants(&volume).is_empty());
}

/// The controller's database is restored to a state without attachments: no row knows the grants of
/// the kernels.
#[test]
fn a_restored_database_fences_what_it_does_not_know() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
    let (admin, storage) = (fleet.admin(), fleet.storage("s1"));
    let volume = admin.volume(Some(&fleet.shared_type()), 1);
    fleet.control().stop();
    let (database, copy) = (fleet.database(), fleet.folder().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    let put = |from: &std::path::Path, to: &std::path::Path| {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    put(&database, &copy);
    fleet.control().start();
    fleet.until_up();
    let stays = fleet.stock("node2");
    let kept = admin.attach(&volume, &stays, None);
    let session = stays.login(&kept.info).unwrap();
    let gone = admin.attach_natively(&volume, "h1", "rw");
    assert_eq!(storage.grants(&volume).len(), 2);
    fleet.control().stop();
    for entry in std::fs::read_dir(&database).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    put(&copy, &database);
    fleet.control().start_restored();
    fleet.until_up();

    let fence = admin.post("/mooring/v1/hosts/h1/fence", &json!({})).expect(200)["fence"].take();
    assert_eq!((&fence["proof"], &fence["parts"]), (&json!("proven"), &json!([])), "{fence}");
    let export = &fence["exports"][0];
    assert_eq!((&export["node"], &export["volume_id"]), (&json!("s1"), &json!(volume)), "{fence}");
    let receipt = &export["receipt"];
    assert_eq!(
        (&receipt["proof"], &receipt["attachment_ids"]),
        (&json!("proven"), &json!([gone])),
        "{fence}"
    );
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    // No other host notices anything, and the secrets are unchanged.
    assert!(session.is_live() && session.write().is_ok());
    storage.reboot();
    until("the other host's access", || {
        stays.login(&kept.info).map(drop).map_err(|refusal| format!("{refusal:?}"))
    });
    // The agent's state suffices to rebuild a database.
    fleet.control().stop();
    fleet.control().lose_database();
    fleet.control().rebuild(&mooring_controller::rebuild::How::default()).unwrap();
    fleet.control().start();
    fleet.until_up();
    let left = admin.get("/attachments/detail").expect(200);
    assert_eq!(left["attachments"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left["attachments"][0]["id"], json!(kept.id));
}

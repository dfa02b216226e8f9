//! The controller's database is lost for good, and there is no backup: it is rebuilt from real
//! agents on fake hosts, whose kernels notice nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_connectors::fake::{Rport, Unit};
use mooring_controller::rebuild::{How, RebuildError};
use mooring_fleet::{CLUSTER, Client, Fleet, Node, until};
use serde_json::{Value, json};

const SERVER: &str = "aaaaaaaa-0000-4000-8000-000000000000";
const OTHER_CLUSTER: &str = "00000000-0000-4000-8000-0000000000ff";

/// Calls an agent directly, past every controller.
fn ask<T>(node: &Node, call: impl AsyncFnOnce(AgentClient<mooring_api::Channel>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = node.address().parse().unwrap();
        let channel = mooring_api::connect(&address, &mooring_api::TlsFiles::default()).await.unwrap();
        call(AgentClient::new(channel)).await
    })
}

fn status_of(node: &Node, volume: &str) -> v1::VolumeStatus {
    let list = v1::ListVolumesRequest { with_secrets: true, ..Default::default() };
    let all = ask(node, async |mut agent| agent.list_volumes(list).await.unwrap().into_inner().volumes);
    all.into_iter().find(|status| status.volume_id == volume).unwrap()
}

fn sender() -> v1::Sender {
    v1::Sender { cluster_id: CLUSTER.to_owned() }
}

/// Removes the fields that may differ after a rebuild: the time of a volume's last change, and the
/// time when an attachment became attached.
fn without_what_is_lost(mut list: Value, key: &str) -> Value {
    for one in list[key].as_array_mut().unwrap() {
        one.as_object_mut().unwrap().remove("updated_at");
        one.as_object_mut().unwrap().remove("attached_at");
        for attached in one["attachments"].as_array_mut().into_iter().flatten() {
            attached.as_object_mut().unwrap().remove("attached_at");
        }
    }
    list
}

/// The API's answers on all volumes and attachments, secrets included.
fn said(admin: &Client) -> [Value; 3] {
    let get = |path: &str| admin.get(path).expect(200);
    let live = get("/mooring/v1/attachments");
    let live = live["attachments"].as_array().unwrap().iter().map(|one| {
        let keys =
            ["id", "volume", "mode", "status", "host", "session", "host_phase", "device_path", "initiator"];
        keys.iter().map(|key| ((*key).to_owned(), one[*key].clone())).collect::<serde_json::Map<_, _>>()
    });
    let live: Value = live.map(Value::Object).collect();
    [
        without_what_is_lost(get("/volumes/detail?all_tenants=1&sort=id"), "volumes"),
        without_what_is_lost(get("/attachments/detail?all_tenants=1&sort=id"), "attachments"),
        live,
    ]
}

/// Waits for sessions, which appear with the storage agent's next look.
fn until_logged_in(admin: &Client, attachments: &[&str]) {
    until("the sessions to be seen", || {
        let all = admin.get("/mooring/v1/attachments").expect(200);
        let seen = |id: &&str| {
            let mut all = all["attachments"].as_array().unwrap().iter();
            all.any(|one| one["id"] == **id && one["session"] == true)
        };
        if attachments.iter().all(seen) { Ok(()) } else { Err(all.to_string()) }
    });
}

/// Waits until the controller is back, has heard from every agent, and nothing is in review.
fn back(fleet: &Fleet) {
    fleet.control().start();
    fleet.until_up();
    until("the end of the review", || {
        let hosts = fleet.admin().get("/mooring/v1/hosts").expect(200);
        if hosts.to_string().contains("in review") { Err(hosts.to_string()) } else { Ok(()) }
    });
}

/// Makes a volume with every field that users can set, of a type with demands.
fn volume_that_says_much(admin: &Client, member: &Client) -> String {
    admin.volume_type("gold", &[("site:tier", "1")]);
    let body = json!({ "volume": {
        "name": "named \u{e4}", "description": "what it is for", "size": 2, "volume_type": "gold",
        "metadata": { "a": "b \u{fc}", "c": "" } } });
    let id = member.post("/volumes", &body).expect(202)["volume"]["id"].as_str().unwrap().to_owned();
    member.until_status(&id, "available");
    let act = |action: &str, body: &Value| member.action(&format!("/volumes/{id}"), action, body);
    act("os-set_bootable", &json!({ "bootable": true })).expect(200);
    act("os-update_readonly_flag", &json!({ "readonly": true })).expect(202);
    id
}

#[test]
fn nobody_notices_that_the_database_was_lost() {
    let fleet = Fleet::builder()
        .storage("s1", &[("vg0", 100)])
        .storage("s2", &[("vg0", 50)])
        .host("h1")
        .host("h2")
        .start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let shared = member.volume(Some(&fleet.shared_type()), 1);
    let (writer, reader) = (fleet.stock("node1"), fleet.stock("node2"));
    let first = member.attach(&shared, &writer, None);
    let second = member.attach(&shared, &reader, Some("ro"));
    let sessions = [writer.login(&first.info).unwrap(), reader.login(&second.info).unwrap()];
    let natives = [admin.attach_natively(&shared, "h1", "rw"), admin.attach_natively(&shared, "h2", "ro")];
    let said_much = volume_that_says_much(&admin, &member);
    let of_server = member.reserve(&said_much, Some(SERVER));
    member.connect(&of_server, &fleet.stock("node3").connector());
    member.complete(&of_server);
    let strangers = fleet.stranger().volume(None, 1);
    // This attachment is only reserved: no agent knows of it.
    let unused = member.volume(None, 3);
    let reserved = member.reserve(&unused, None);
    let deleted = member.volume(None, 1);
    member.delete(&format!("/volumes/{deleted}")).expect(202);
    member.until_deleted(&deleted);

    member.delete(&format!("/attachments/{reserved}")).expect(200);
    until_logged_in(&admin, &[&first.id, &second.id, &natives[0], &natives[1]]);
    let before = said(&admin);
    let reserved = member.reserve(&unused, None);
    let storages = [fleet.storage("s1"), fleet.storage("s2")];
    let trees = storages.map(Node::tree);
    let paths = ["h1", "h2"].map(|host| natives.each_ref().map(|id| fleet.host(host).path_of(id)));
    fleet.control().stop();
    fleet.control().lose_database();
    let dry = fleet.control().rebuild(&How { dry_run: true, ..How::default() }).unwrap();
    assert!(!fleet.database().exists(), "a dry run writes nothing");
    let report = fleet.control().rebuild(&How::default()).unwrap();
    assert_eq!((&dry.agents, dry.epoch), (&report.agents, report.epoch));
    let text = report.to_string();
    assert!(text.contains("5 attachment(s)") && text.contains("2 connection(s)"), "{text}");
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{text}");

    back(&fleet);
    assert_eq!(said(&admin), before);
    assert_eq!(storages.map(Node::tree), trees, "byte for byte");
    assert_eq!(["h1", "h2"].map(|host| natives.each_ref().map(|id| fleet.host(host).path_of(id))), paths);
    assert!(sessions.iter().all(mooring_fleet::Session::is_live));
    assert!(sessions[0].write().is_ok() && sessions[1].read().is_ok());
    assert_eq!(member.get(&format!("/attachments/{reserved}")).status, 404);
    assert_eq!(fleet.stranger().status(&strangers), "available");
    let gold = admin.get("/types?name=gold").expect(200);
    assert!(gold.to_string().contains("\"site:tier\":\"1\""), "{gold}");

    // Everything can be used, and removed.
    let third = member.attach(&shared, &fleet.stock("node4"), None);
    let session = fleet.stock("node4").login(&third.info).unwrap();
    assert!(session.write().is_ok());
    for id in [&first.id, &second.id, &third.id, &of_server, &natives[0], &natives[1]] {
        member.detach(id);
    }
    assert!(!sessions[0].is_live() && !session.is_live());
    for volume in [&shared, &said_much, &unused] {
        member.delete(&format!("/volumes/{volume}")).expect(202);
        member.until_deleted(volume);
    }
    assert!(storages.iter().all(|node| !node.has_export(&shared) && !node.has_volume("vg0", &shared)));

    // An existing database is not overwritten.
    fleet.control().stop();
    let refused = fleet.control().rebuild(&How::default()).unwrap_err();
    assert!(matches!(refused, RebuildError::NotEmpty(_)), "{refused}");
}

#[test]
fn what_hosts_have_over_fibre_channel_comes_back_with_its_numbers() {
    const PORTS: [&str; 2] = ["20:00:52:54:00:14:00:0a", "20:00:52:54:00:14:01:0a"];
    let fleet = Fleet::builder().storage_with_ports("s1", &[("vg0", 100)], &PORTS).start();
    let admin = fleet.admin();
    let kind = admin.volume_type("fc", &[("multiattach", "<is> True"), ("storage_protocol", "FC")]);
    let (one, two) = (fleet.stock_with_ports("node1", 1), fleet.stock_with_ports("node2", 2));
    let volumes: Vec<_> = (0..2).map(|_| admin.volume(Some(&kind), 1)).collect();
    let first = admin.attach(&volumes[0], &one, None);
    let second = admin.attach(&volumes[1], &one, None);
    let third = admin.attach(&volumes[0], &two, Some("ro"));
    let logins = one.log_in_over_fc(&first.info).unwrap();
    until_logged_in(&admin, &[&first.id, &second.id]);
    let (before, tree) = (said(&admin), fleet.storage("s1").tree());
    fleet.control().stop();
    fleet.control().lose_database();
    let report = fleet.control().rebuild(&How::default()).unwrap();
    assert!(report.to_string().contains("3 attachment(s)"), "{report}");
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{report}");
    back(&fleet);
    assert_eq!(said(&admin), before);
    assert_eq!(fleet.storage("s1").tree(), tree, "byte for byte");
    assert!(logins.iter().all(|login| login.is_live() && login.write().is_ok()));
    // The LUN numbers are known: no other volume gets one of them.
    let more = admin.volume(Some(&kind), 1);
    assert_eq!(admin.attach(&more, &one, None).info["target_lun"], 3);
    let gone = admin.delete(&format!("/mooring/v1/attachments/{}?force=true", first.id)).expect(200);
    assert_eq!(gone["receipt"]["proof"], "proven", "{gone}");
    assert!(logins.iter().all(|login| login.read().is_err() && login.at(2).write().is_ok()));
    for id in [&second.id, &third.id] {
        admin.detach(id);
    }
}

#[test]
fn a_host_keeps_what_it_attached_natively_over_fibre_channel() {
    const PORT: &str = "20:00:52:54:00:14:00:0a";
    let fleet = Fleet::builder()
        .storage_with_ports("s1", &[("vg0", 100)], &[PORT])
        .host_with_port("h1", "20:00:52:54:00:14:02:01")
        .start();
    let (admin, h1) = (fleet.admin(), fleet.host("h1"));
    let volume = admin.volume(Some(&admin.volume_type("fc", &[("storage_protocol", "FC")])), 1);
    let luns = [(1, Unit::of(volume.parse().unwrap(), 1 << 30))].into();
    h1.fabric().meet(Rport { name: PORT.parse().unwrap(), state: "Online", target: 0, luns });
    let id = admin.attach_natively(&volume, "h1", "rw");
    let (before, tree, path) = (said(&admin), fleet.storage("s1").tree(), h1.path_of(&id));
    h1.fabric().take_log();
    fleet.control().stop();
    fleet.control().lose_database();
    let report = fleet.control().rebuild(&How::default()).unwrap();
    assert!(report.to_string().contains("1 connection(s)"), "{report}");
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{report}");
    back(&fleet);
    assert_eq!(said(&admin), before);
    assert_eq!((fleet.storage("s1").tree(), h1.path_of(&id)), (tree, path));
    assert_eq!(h1.fabric().take_log(), Vec::<String>::new(), "the host notices nothing");
    admin.detach(&id);
    assert_eq!((h1.fabric().disks(), h1.fabric().violations()), (Vec::new(), Vec::new()));
}

#[test]
fn snapshots_come_back_as_what_they_are() {
    let fleet = Fleet::builder().storage_with_thin("s1", &[("vg0", 100)], 50).start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let kind = admin.volume_type("thin", &[("provisioning:type", "thin")]);
    let volume = member.volume(Some(&kind), 1);
    let wish = json!({ "snapshot": { "volume_id": volume, "name": "before", "metadata": { "a": "b" } } });
    let snapshot =
        member.post("/snapshots", &wish).expect(202)["snapshot"]["id"].as_str().unwrap().to_owned();
    let path = format!("/snapshots/{snapshot}");
    until("the snapshot", || {
        let seen = member.get(&path).expect(200);
        if seen["snapshot"]["status"] == "available" { Ok(()) } else { Err(seen.to_string()) }
    });
    let copy = json!({ "volume": { "name": "copy", "snapshot_id": snapshot, "size": 2 } });
    let copy = member.post("/volumes", &copy).expect(202)["volume"]["id"].as_str().unwrap().to_owned();
    member.until_status(&copy, "available");
    let listed = || {
        let all = member.get("/snapshots/detail").expect(200);
        (without_what_is_lost(all, "snapshots"), member.show(&copy)["snapshot_id"].clone())
    };
    let before = (said(&admin), listed());
    let log = fleet.storage("s1").machine().lvm().log().len();
    fleet.control().stop();
    fleet.control().lose_database();
    let report = fleet.control().rebuild(&How::default()).unwrap();
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{report}");
    back(&fleet);
    assert_eq!((said(&admin), listed()), before);
    let changed = fleet.storage("s1").machine().lvm().log()[log..].iter().any(|line| {
        ["lvcreate", "lvremove", "lvextend", "lvchange"].iter().any(|verb| line.starts_with(verb))
    });
    assert!(!changed, "LVM has nothing to do");
    // The snapshot can be used, and deleted.
    let again = json!({ "volume": { "name": "again", "snapshot_id": snapshot } });
    let again = member.post("/volumes", &again).expect(202)["volume"]["id"].as_str().unwrap().to_owned();
    member.until_status(&again, "available");
    member.delete(&path).expect(202);
    until("its end", || match member.get(&path).status {
        404 => Ok(()),
        other => Err(other.to_string()),
    });
}

/// Makes a fleet whose database will be lost.
fn three() -> Fleet {
    Fleet::builder().storage("s1", &[("vg0", 100)]).storage("s2", &[("vg0", 50)]).host("h1").start()
}

#[test]
fn every_agent_is_needed_and_must_be_of_one_cluster() {
    let fleet = three();
    let volume = fleet.member().volume(None, 1);
    fleet.admin().attach_natively(&volume, "h1", "rw");
    let s2 = fleet.storage("s2");
    assert!(fleet.storage("s1").has_volume("vg0", &volume));
    fleet.control().stop();
    fleet.control().lose_database();
    let rebuild = |how: How| fleet.control().rebuild(&how);
    let without = |name: &str| How { without: vec![name.to_owned()], ..How::default() };

    // One agent is away.
    s2.kill();
    let refused = rebuild(How::default()).unwrap_err().to_string();
    assert!(refused.contains("agent s2 does not answer") && refused.contains("--without"), "{refused}");
    assert!(!fleet.database().exists());
    assert!(rebuild(without("s2")).is_ok());
    fleet.control().lose_database();
    let refused = rebuild(without("nobody")).unwrap_err();
    assert!(matches!(refused, RebuildError::NoSuchAgent(_)), "{refused}");

    // One agent belongs to another cluster.
    s2.lose_database();
    s2.start();
    let adopt = v1::AdoptRequest {
        sender: Some(v1::Sender { cluster_id: OTHER_CLUSTER.to_owned() }),
        agent_id: SERVER.to_owned(),
    };
    ask(s2, async |mut agent| agent.adopt(adopt).await.unwrap());
    let refused = rebuild(How::default()).unwrap_err().to_string();
    assert!(refused.contains(&format!("cluster {OTHER_CLUSTER}: s2")), "{refused}");
    assert!(refused.contains(&format!("cluster {CLUSTER}: s1, h1")), "{refused}");
    // An agent without a cluster does not matter.
    s2.lose_database();
    s2.start();
    assert!(rebuild(How::default()).is_ok());
}

#[test]
fn what_nobody_can_know_is_named_and_left_as_it_is() {
    let fleet = three();
    let member = fleet.member();
    let (good, twice, corrupt) = (member.volume(None, 1), member.volume(None, 1), member.volume(None, 1));
    let attached = member.attach(&corrupt, &fleet.stock("node1"), None);
    let session = fleet.stock("node1").login(&attached.info).unwrap();
    let native = fleet.admin().attach_natively(&good, "h1", "rw");
    let (s1, s2) = (fleet.storage("s1"), fleet.storage("s2"));
    assert!([&good, &twice, &corrupt].iter().all(|volume| s1.has_volume("vg0", volume)));
    fleet.control().stop();
    fleet.control().lose_database();

    // Two agents report the same volume; there is an orphan; and a volume whose attachments are
    // unreadable.
    let known = status_of(s1, &twice);
    let put = v1::PutVolumeRequest {
        sender: Some(sender()),
        volume_id: twice.clone(),
        stamp: known.volume_stamp,
        opaque: known.volume_opaque,
        wish: known.volume_spec.map(v1::put_volume_request::Wish::Spec),
        deadline_ms: 10_000,
        new: false,
    };
    ask(s2, async |mut agent| agent.put_volume(put).await.unwrap());
    let orphan = "00000000-0000-4000-8000-00000000abcd";
    assert!(s1.machine().lvm().add_volume("vg0", &format!("mooring-{orphan}"), 1 << 30, &["mooring"]));
    s1.restart();
    let known = status_of(s1, &corrupt);
    let mut stamp = known.export_stamp.unwrap();
    stamp.generation.as_mut().unwrap().counter += 1;
    let put = v1::PutExportRequest {
        sender: Some(sender()),
        volume_id: corrupt.clone(),
        stamp: Some(stamp),
        opaque: b"{\"attachments\":{}}".to_vec(),
        wish: known.export_spec.map(v1::put_export_request::Wish::Spec),
        deadline_ms: 10_000,
        live_sessions: v1::LiveSessions::Refuse.into(),
        reservations_copy: String::new(),
    };
    ask(s1, async |mut agent| agent.put_export(put).await.unwrap());
    let trees = [s1, s2].map(Node::tree);
    let report = fleet.control().rebuild(&How::default()).unwrap();
    let (of_s1, of_s2) = (report.agents[0].notes.join("\n"), report.agents[1].notes.join("\n"));
    for (notes, words) in [
        (&of_s1, format!("volume {twice}: s1 and s2 all keep it")),
        (&of_s2, format!("volume {twice}: s1 and s2 all keep it")),
        (&of_s1, format!("volume {orphan}: an orphan in group vg0")),
        (&of_s1, format!("volume {corrupt}: what is kept beside its export cannot be read")),
    ] {
        assert!(notes.contains(&words), "{words:?} is not in\n{report}");
    }
    back(&fleet);
    let listed = fleet.admin().get("/volumes?all_tenants=1").expect(200);
    assert_eq!(listed["volumes"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(fleet.admin().show_attachment(&native)["status"], "attached");
    assert_eq!([s1, s2].map(Node::tree), trees);
    assert!(session.is_live() && session.write().is_ok());
    // They are named as things that this database does not know.
    let hosts = fleet.admin().get("/mooring/v1/hosts").expect(200).to_string();
    assert!([&twice, &corrupt].iter().all(|volume| hosts.contains(*volume)), "{hosts}");
    fleet.member().detach(&native);
}

//! Fibre Channel: stock hosts with adapters reach volumes through the ports of storage nodes.

use std::collections::BTreeMap;

use mooring_connectors::fake::{Rport, Unit};
use mooring_fleet::{Client, Fleet, Node, Session, Stock, until};
use serde_json::{Value, json};

use crate::granted;

const ONE: &str = "20:00:52:54:00:14:00:0a";
const TWO: &str = "20:00:52:54:00:14:01:0a";

/// A storage node with two ports.
fn fleet() -> Fleet {
    Fleet::builder().storage_with_ports("s1", &[("vg0", 100)], &[ONE, TWO]).start()
}

fn fc_type(fleet: &Fleet) -> String {
    let specs = [("multiattach", "<is> True"), ("storage_protocol", "FC")];
    fleet.admin().volume_type("fc", &specs)
}

/// The kernel's grants on each path between a host's two ports and the node's.
fn paths(node: &Stock, lun: u64, mode: &str) -> Vec<String> {
    let colons =
        |digits: &str| digits.as_bytes().chunks(2).map(String::from_utf8_lossy).collect::<Vec<_>>().join(":");
    let at = |target: &str| {
        let target = target.to_owned();
        node.ports().iter().map(move |port| format!("{} LUN {lun} {mode} at {target}", colons(port)))
    };
    let mut all: Vec<_> = at(ONE).chain(at(TWO)).collect();
    all.sort();
    all
}

fn seen(fleet: &Fleet, volume: &str) -> Vec<String> {
    let mut seen = fleet.storage("s1").fc_grants(volume);
    seen.sort();
    seen
}

fn attach(client: &Client, volume: &str, connector: &Value, mode: &str) -> (String, Value) {
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": connector, "mode": mode } });
    let made = client.post("/attachments", &body).expect(200);
    let id = made["attachment"]["id"].as_str().unwrap().to_owned();
    client.complete(&id);
    (id, made["attachment"]["connection_info"].clone())
}

fn refused(client: &Client, volume: &str, connector: &Value) -> String {
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": connector } });
    let answer = client.post("/attachments", &body);
    assert_eq!(answer.status, 400, "{answer:?}");
    answer.body["badRequest"]["message"].as_str().unwrap().to_owned()
}

fn all_alive(sessions: &[Session]) -> bool {
    sessions.iter().all(|session| session.is_live() && session.read().is_ok())
}

#[test]
fn s53_one_volume_rw_and_ro_to_hosts_over_fibre_channel() {
    let fleet = fleet();
    let member = fleet.member();
    let volume = member.volume(Some(&fc_type(&fleet)), 1);
    let (one, two) = (fleet.stock_with_ports("node1", 1), fleet.stock_with_ports("node2", 2));
    let (first, info) = attach(&member, &volume, &one.connector(), "rw");
    let (second, read_only) = attach(&member, &volume, &two.connector_over_fc(), "ro");
    assert_eq!(info["driver_volume_type"], "fibre_channel");
    assert_eq!(info["target_wwn"], json!(["200052540014000a", "200052540014010a"]));
    assert_eq!((&info["access_mode"], &read_only["access_mode"]), (&json!("rw"), &json!("ro")));
    assert!(info["target_lun"].is_u64() && info["initiator_target_map"].as_object().unwrap().len() == 2);
    let mut both = [paths(&one, 1, "rw"), paths(&two, 1, "ro")].concat();
    both.sort();
    assert_eq!(seen(&fleet, &volume), both);
    let (writers, readers) = (one.log_in_over_fc(&info).unwrap(), two.log_in_over_fc(&read_only).unwrap());
    assert_eq!((writers.len(), readers.len()), (4, 4), "every path");
    for (writer, reader) in writers.iter().zip(&readers) {
        assert!(writer.write().is_ok() && reader.read().is_ok() && reader.write().is_err());
        assert_eq!(writer.serial().unwrap(), volume, "one disk, whatever the path");
        assert_eq!(reader.serial().unwrap(), volume);
    }
    // The live state, as over iSCSI.
    let live = fleet.admin().get(&format!("/mooring/v1/attachments/{second}")).expect(200);
    let live = &live["attachment"];
    assert_eq!(
        (&live["transport"], &live["effective_mode"], &live["session"]),
        (&json!("fc"), &json!("ro"), &json!(true))
    );
    // Forced off, with a receipt; the other host notices nothing.
    let path = format!("/mooring/v1/attachments/{first}?force=true");
    let receipt = fleet.admin().delete(&path).expect(200);
    assert_eq!(
        (&receipt["receipt"]["proof"], &receipt["receipt"]["revoked"]),
        (&json!("proven"), &json!("nexus"))
    );
    assert!(writers.iter().all(|session| session.write().is_err()));
    assert!(all_alive(&readers));
    assert_eq!(seen(&fleet, &volume), paths(&two, 1, "ro"));
    // A repetition has the same receipt.
    assert_eq!(fleet.admin().delete(&path).expect(200), receipt);
    member.detach(&second);
    assert!(seen(&fleet, &volume).is_empty());
    member.delete(&format!("/volumes/{volume}")).expect(202);
    member.until_deleted(&volume);
    assert!(!fleet.storage("s1").has_export(&volume));
}

#[test]
fn s53_both_transports_at_once_and_each_by_its_own() {
    let fleet = fleet();
    let member = fleet.member();
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let (one, two) = (fleet.stock_with_ports("node1", 1), fleet.stock_with_ports("node2", 2));
    // Both transports would do: iSCSI is the default. The caller may choose.
    let (first, info) = attach(&member, &volume, &one.connector(), "rw");
    assert_eq!(info["driver_volume_type"], "iscsi");
    let mut connector = two.connector();
    connector["storage_protocol"] = json!("FC");
    let (second, over_fc) = attach(&member, &volume, &connector, "rw");
    assert_eq!(over_fc["driver_volume_type"], "fibre_channel");
    let (iscsi, fc) = (one.login(&info).unwrap(), two.log_in_over_fc(&over_fc).unwrap());
    assert!(iscsi.write().is_ok() && fc.iter().all(|session| session.write().is_ok()));
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    assert_eq!(seen(&fleet, &volume), paths(&two, 1, "rw"));
    // A repeated call finds its own attachment, whichever transport it has.
    for (id, node) in [(&first, one.connector()), (&second, two.connector())] {
        let body = json!({ "attachment": { "connector": node } });
        let again = member.put(&format!("/attachments/{id}"), &body).expect(200);
        let kind = &again["attachment"]["connection_info"]["driver_volume_type"];
        assert_eq!(kind, if id == &first { "iscsi" } else { "fibre_channel" });
    }
    member.detach(&first);
    assert!(!iscsi.is_live() && all_alive(&fc));
    member.detach(&second);
    assert!(seen(&fleet, &volume).is_empty() && granted(&fleet, &volume).is_empty());
}

#[test]
fn s53_what_has_no_common_transport_is_refused() {
    let fleet = Fleet::builder()
        .storage_with_ports("s1", &[("vg0", 100)], &[ONE])
        .storage("s2", &[("vg1", 100)])
        .start();
    let member = fleet.member();
    let over_fc = member.volume(Some(&fc_type(&fleet)), 1);
    assert!(fleet.storage("s1").has_volume("vg0", &over_fc), "placed where it can be served");
    fleet.admin().volume_type("there", &[("volume_backend_name", "lvm"), ("pool_name", "vg1")]);
    let over_iscsi = member.volume(Some("there"), 1);
    let node = fleet.stock_with_ports("node1", 1);
    let plain = fleet.stock("node2");
    let text = refused(&member, &over_fc, &plain.connector());
    assert!(text.contains("no common transport") && text.contains("storage_protocol FC"), "{text}");
    let text = refused(&member, &over_iscsi, &node.connector_over_fc());
    assert!(text.contains("offers FC, storage agent of the volume serves iSCSI"), "{text}");
    let mut half = node.connector_over_fc();
    half.as_object_mut().unwrap().remove("wwnns");
    assert!(refused(&member, &over_fc, &half).contains("wwnns"));
    for volume in [&over_fc, &over_iscsi] {
        assert_eq!(member.status(volume), "available", "nothing is left of it");
    }
    // The transports that pools report.
    let pools = fleet.admin().get("/scheduler-stats/get_pools?detail=true").expect(200);
    let protocol = |host: &str| {
        let pools = pools["pools"].as_array().unwrap();
        let pool = pools.iter().find(|pool| pool["name"].as_str().unwrap().starts_with(host)).unwrap();
        pool["capabilities"]["storage_protocol"].clone()
    };
    assert_eq!((protocol("s1"), protocol("s2")), (json!(["iSCSI", "FC"]), json!("iSCSI")));
}

/// Names that begin with a zero have 15 digits in Linux, and os-brick compares texts.
#[test]
fn fc_names_that_begin_with_a_zero_are_spelled_as_linux_does() {
    const TARGET: &str = "01:00:00:00:00:00:0a:01";
    let fleet = Fleet::builder().storage_with_ports("s1", &[("vg0", 100)], &[TARGET]).start();
    let admin = fleet.admin();
    let volume = admin.volume(Some(&fc_type(&fleet)), 1);
    let node = fleet.stock("node1").with_ports_named(&["100000000000b01", "200052540014000b"]);
    let (id, info) = attach(&admin, &volume, &node.connector(), "rw");
    assert_eq!(info["target_wwn"], json!(["100000000000a01"]));
    let sessions = node.log_in_over_fc(&info).unwrap();
    assert_eq!(sessions.len(), 2, "each port of the host finds itself in the map: {info}");
    assert!(sessions.iter().all(|session| session.write().is_ok()));
    let grants = ["01:00:00:00:00:00:0b:01", "20:00:52:54:00:14:00:0b"];
    assert_eq!(seen(&fleet, &volume), grants.map(|port| format!("{port} LUN 1 rw at {TARGET}")));
    // The same ports in other spellings are the same host.
    let mut spelled = node.connector();
    spelled["wwpns"] = json!(["0x100000000000b01", "20:00:52:54:00:14:00:0B"]);
    let body = json!({ "attachment": { "connector": spelled } });
    let again = admin.put(&format!("/attachments/{id}"), &body).expect(200);
    let map = "initiator_target_map";
    assert_eq!(again["attachment"]["connection_info"][map], info[map]);
    // A name that cannot be read is named, and the host is not said to have iSCSI alone.
    let other = fleet.stock("node2").with_ports_named(&["20:00"]);
    let text = refused(&admin, &volume, &other.connector());
    assert!(text.contains("connector wwpns: \"20:00\" is not a Fibre Channel port name"), "{text}");
    // An operator copies the name from sysfs.
    let fence = admin.post("/mooring/v1/hosts/0x100000000000b01/fence", &json!({})).expect(200);
    assert_eq!(fence["fence"]["proof"], "proven", "{fence}");
    assert!(seen(&fleet, &volume).is_empty() && sessions.iter().all(|session| session.read().is_err()));
}

#[test]
fn s53_numbers_are_each_volumes_own_until_it_is_cut_off() {
    let fleet = fleet();
    let (member, kind) = (fleet.member(), fc_type(&fleet));
    let node = fleet.stock_with_ports("node1", 1);
    let volumes: Vec<_> = (0..3).map(|_| member.volume(Some(&kind), 1)).collect();
    let attached: Vec<_> =
        volumes.iter().map(|volume| attach(&member, volume, &node.connector(), "rw")).collect();
    let luns: Vec<_> = attached.iter().map(|(_, info)| info["target_lun"].as_u64().unwrap()).collect();
    assert_eq!(luns, [1, 2, 3]);
    let logins = node.log_in_over_fc(&attached[0].1).unwrap();
    let shows =
        |lun: u64, volume: &String| logins.iter().all(|login| login.at(lun).serial().as_ref() == Ok(volume));
    assert!(luns.iter().zip(&volumes).all(|(lun, volume)| shows(*lun, volume)));
    // A call hangs: the number stays taken, whatever the answer to the host.
    let device = mooring_fleet::Node::device("vg0", &volumes[0]);
    let machine = fleet.storage("s1").machine();
    machine.hold(&device);
    logins[0].start_write().unwrap();
    let path = format!("/mooring/v1/attachments/{}?force=true", attached[0].0);
    let receipt = fleet.admin().delete(&path).expect(200);
    assert_eq!(receipt["receipt"]["proof"], "unproven");
    let more = member.volume(Some(&kind), 1);
    assert_eq!(attach(&member, &more, &node.connector(), "rw").1["target_lun"], 4);
    machine.release(&device);
    until("the proof", || {
        let left = member.show(&volumes[0])["attachments"].as_array().unwrap().len();
        if left == 0 { Ok(()) } else { Err(format!("{left} attachments")) }
    });
    // Afterwards it is the last number to be reused: a host that still remembers its disk meets
    // nothing under it for long.
    let other = member.volume(Some(&kind), 1);
    assert_eq!(attach(&member, &other, &node.connector(), "rw").1["target_lun"], 5);
    // Another host has its own numbers.
    let second = fleet.stock_with_ports("node2", 2);
    assert_eq!(attach(&member, &other, &second.connector(), "rw").1["target_lun"], 1);
    assert!(shows(2, &volumes[1]) && shows(3, &volumes[2]) && shows(4, &more) && shows(5, &other));
    assert!(
        logins.iter().all(|login| login.is_live() && login.read().is_err()),
        "under number 1 there is nothing"
    );
}

#[test]
fn s53_a_fenced_host_has_nothing_at_any_port() {
    let fleet = fleet();
    let (admin, kind) = (fleet.admin(), fc_type(&fleet));
    let (one, two) = (fleet.stock_with_ports("node1", 1), fleet.stock_with_ports("node2", 2));
    let volumes: Vec<_> = (0..2).map(|_| admin.volume(Some(&kind), 1)).collect();
    for volume in &volumes {
        attach(&admin, volume, &one.connector(), "rw");
    }
    let (_, info) = attach(&admin, &volumes[0], &two.connector(), "rw");
    let stays = two.log_in_over_fc(&info).unwrap();
    // By one of its ports, which may be all that is known of a host.
    let port = &one.ports()[1];
    let fence =
        admin.post(&format!("/mooring/v1/hosts/{port}/fence"), &json!({ "reason": "dead" })).expect(200);
    assert_eq!(fence["fence"]["proof"], "proven", "{fence}");
    assert_eq!(seen(&fleet, &volumes[0]), paths(&two, 1, "rw"));
    assert!(seen(&fleet, &volumes[1]).is_empty() && all_alive(&stays));
    let body = json!({ "attachment": { "volume_uuid": volumes[1], "connector": one.connector() } });
    let again = admin.post("/attachments", &body);
    assert!(again.status == 400 && again.body.to_string().contains("fenced"), "{again:?}");
}

#[test]
fn s53_the_older_calls_and_a_restart_know_ports() {
    let fleet = fleet();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fc_type(&fleet)), 1));
    let node = fleet.stock_with_ports("node1", 1);
    let path = format!("/volumes/{volume}");
    admin.action(&path, "os-reserve", &Value::Null).expect(202);
    let connector = json!({ "connector": node.connector_over_fc() });
    let info = admin.action(&path, "os-initialize_connection", &connector).expect(200);
    let data = &info["connection_info"]["data"];
    assert_eq!(info["connection_info"]["driver_volume_type"], "fibre_channel");
    let sessions = node.log_in_over_fc(data).unwrap();
    admin.action(&path, "os-attach", &json!({ "mountpoint": "/dev/vdb", "host_name": "node1" })).expect(202);
    fleet.control().restart();
    fleet.until_up();
    let again = admin.action(&path, "os-initialize_connection", &connector).expect(200);
    assert_eq!(again, info, "the same number, the same ports");
    assert!(all_alive(&sessions));
    admin.action(&path, "os-terminate_connection", &connector).expect(202);
    assert!(seen(&fleet, &volume).is_empty() && sessions.iter().all(|session| session.read().is_err()));
    admin.action(&path, "os-detach", &json!({})).expect(202);
    admin.until_status(&volume, "available");
}

/// The only port of a host with an agent.
const HOST: [&str; 2] = ["20:00:52:54:00:14:02:01", "20:00:52:54:00:14:02:02"];

/// A host's port meets the storage node's, which shows it a volume as its first LUN.
fn meet(host: &Node, volume: &str, protected: bool) {
    let unit = Unit { protected, ..Unit::of(volume.parse().unwrap(), 1 << 30) };
    let port = ONE.parse().unwrap();
    host.fabric().meet(Rport { name: port, state: "Online", target: 0, luns: BTreeMap::new() });
    host.fabric().shows(port, 1, Some(unit));
}

fn natively(client: &Client, volume: &str, host: &str, mode: &str, transport: &str) -> mooring_fleet::Answer {
    let attachment = json!({ "volume": volume, "host": host, "mode": mode, "transport": transport });
    client.post("/mooring/v1/attachments", &json!({ "attachment": attachment }))
}

fn live(client: &Client, id: &str) -> Value {
    client.get(&format!("/mooring/v1/attachments/{id}")).expect(200)["attachment"].take()
}

fn port_grants(hosts: &[(&str, &str)]) -> Vec<String> {
    hosts.iter().map(|(port, mode)| format!("{port} LUN 1 {mode} at {ONE}")).collect()
}

#[test]
fn s53_hosts_with_agents_attach_natively_over_fibre_channel() {
    let fleet = Fleet::builder()
        .storage_with_ports("s1", &[("vg0", 100)], &[ONE])
        .host_with_port("h1", HOST[0])
        .host_with_port("h2", HOST[1])
        .host("plain")
        .start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let volume = member.volume(Some(&fc_type(&fleet)), 1);
    let (h1, h2) = (fleet.host("h1"), fleet.host("h2"));
    meet(h1, &volume, false);
    meet(h2, &volume, true);
    natively(&admin, &volume, "plain", "rw", "fc")
        .refused(400, "reports no port for Fibre Channel that is online");
    natively(&admin, &volume, "h1", "rw", "iscsi").refused(400, "no common transport");
    natively(&admin, &volume, "h1", "rw", "fcoe").refused(400, "want iscsi or fc");
    assert!(seen(&fleet, &volume).is_empty());
    // Nobody asks for Fibre Channel: the volume's type requires it.
    let first = admin.attach_natively(&volume, "h1", "rw");
    let shown = live(&admin, &first);
    assert_eq!((&shown["transport"], &shown["initiator"]), (&json!("fc"), &json!(HOST[0])));
    assert_eq!(seen(&fleet, &volume), port_grants(&[(HOST[0], "rw")]));
    assert!(h1.path_of(&first).is_some() && h1.path_of(&first) == h1.fabric().name_of(1));
    // The port stays logged in at the target, whatever else it sees.
    fleet.storage("s1").machine().plogi(&format!("fc/{ONE}"), HOST[0]).unwrap();
    let second = admin.attach_natively(&volume, "h2", "ro");
    assert_eq!(seen(&fleet, &volume), port_grants(&[(HOST[0], "rw"), (HOST[1], "ro")]));
    assert_eq!((h1.fabric().is_read_only(1), h2.fabric().is_read_only(1)), (Some(false), Some(true)));
    // One port has one disk, which no other program removes.
    let digits = HOST[0].replace(':', "");
    let same = json!({ "wwpns": [digits], "wwnns": [digits], "host": "h1" });
    assert!(refused(&member, &volume, &same).contains("both would share one disk"));
    // Under another name it would be two machines with one port.
    let stock = json!({ "wwpns": [digits], "wwnns": [digits], "host": "stock" });
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": stock } });
    member.post("/attachments", &body).refused(409, "is in use by another host");
    // It does no more work on the host than before: a restarted agent finds everything in place.
    h1.fabric().take_log();
    h1.restart();
    fleet.until_up();
    let again = admin.attach_natively(&volume, "h1", "ro");
    let drop = vec!["drop".to_owned()];
    assert_eq!(
        (h1.path_of(&again), h1.fabric().take_log()),
        (h1.path_of(&first), drop),
        "of a shared volume's pages"
    );
    // The widest mode of a host counts, until it is detached.
    admin.delete(&format!("/mooring/v1/attachments/{first}")).expect(200);
    until("the host to read only", || match h1.fabric().is_read_only(1) {
        Some(true) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(seen(&fleet, &volume), port_grants(&[(HOST[0], "ro"), (HOST[1], "ro")]));
    let receipt = admin.delete(&format!("/mooring/v1/attachments/{again}")).expect(200);
    assert_eq!(receipt["receipt"]["proof"], "proven");
    assert_eq!((h1.fabric().disks(), h1.path_of(&again)), (Vec::new(), None));
    assert_eq!(seen(&fleet, &volume), port_grants(&[(HOST[1], "ro")]));
    assert_eq!(h2.fabric().disks(), ["3:0:0:1"]);
    admin.delete(&format!("/mooring/v1/attachments/{second}")).expect(200);
    member.delete(&format!("/volumes/{volume}")).expect(202);
    member.until_deleted(&volume);
    for host in [h1, h2] {
        assert_eq!((host.fabric().disks(), host.fabric().violations()), (Vec::new(), Vec::new()));
    }
}

#[test]
fn s53_a_host_is_cut_off_natively_over_fibre_channel() {
    let fleet = Fleet::builder()
        .storage_with_ports("s1", &[("vg0", 100)], &[ONE])
        .host_with_port("h1", HOST[0])
        .start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let h1 = fleet.host("h1");
    meet(h1, &volume, false);
    // Both transports would do, and the caller chooses.
    let made = natively(&admin, &volume, "h1", "rw", "fc").expect(202);
    let id = made["attachment"]["id"].as_str().unwrap().to_owned();
    until("the attachment on its host", || match &live(&admin, &id)["status"] {
        status if status == "attached" => Ok(()),
        other => Err(other.to_string()),
    });
    natively(&admin, &volume, "h1", "rw", "iscsi").refused(400, "a host has one path to a volume");
    let second = admin.attach_natively(&volume, "h1", "rw");
    assert_eq!(live(&admin, &second)["transport"], "fc", "who does not say gets the way that is there");
    h1.fabric().hold_open(1, &[mooring_host::Holder::Process { pid: 4711, name: "qemu".to_owned() }]);
    assert_eq!(
        admin.delete(&format!("/mooring/v1/attachments/{second}")).status,
        200,
        "the other keeps the disk"
    );
    let held = admin.delete(&format!("/mooring/v1/attachments/{id}"));
    assert_eq!(held.status, 409, "{held:?}");
    assert_eq!(seen(&fleet, &volume), port_grants(&[(HOST[0], "rw")]));
    h1.fabric().revoke();
    h1.fabric().take_log();
    let receipt = admin.delete(&format!("/mooring/v1/attachments/{id}?force=true")).expect(200);
    assert_eq!(receipt["receipt"]["proof"], "proven");
    assert!(seen(&fleet, &volume).is_empty());
    until("the host to let go", || match h1.fabric().disks().len() {
        0 if h1.path_of(&id).is_none() => Ok(()),
        _ => Err(format!("{:?}", h1.fabric().disks())),
    });
    let log = h1.fabric().take_log();
    assert_eq!(log, ["scsi_device/3:0:0:1/state = offline", "scsi_device/3:0:0:1/delete = 1"]);
    assert_eq!(h1.fabric().violations(), Vec::<String>::new());
}

/// The controller's database is empty: no row knows what the ports show.
#[test]
fn a_fence_after_a_restore_takes_all_ports_of_a_host() {
    let fleet = fleet();
    let (admin, kind) = (fleet.admin(), fc_type(&fleet));
    let (one, two) = (fleet.stock_with_ports("node1", 1), fleet.stock_with_ports("node2", 2));
    let volume = admin.volume(Some(&kind), 1);
    attach(&admin, &volume, &one.connector(), "rw");
    let (_, info) = attach(&admin, &volume, &two.connector(), "rw");
    let stays = two.log_in_over_fc(&info).unwrap();
    fleet.control().stop();
    fleet.control().lose_database();
    fleet.control().start_restored();
    fleet.until_up();
    // Named by one of its ports, it loses the other one as well.
    let port = &one.ports()[1];
    let fence = admin.post(&format!("/mooring/v1/hosts/{port}/fence"), &json!({})).expect(200);
    assert_eq!(fence["fence"]["proof"], "proven", "{fence}");
    assert_eq!(fence["fence"]["exports"].as_array().unwrap().len(), 2, "{fence}");
    assert_eq!(seen(&fleet, &volume), paths(&two, 1, "rw"));
    assert!(all_alive(&stays));
}

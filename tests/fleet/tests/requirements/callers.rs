//! Permissions, end to end: the owners of ids, claims to be a service, and malformed requests. A
//! refusal changes nothing, in the kernel least of all.

use std::collections::{BTreeMap, BTreeSet};

use mooring_fleet::{Client, Fleet, PROJECT_A};
use serde_json::{Value, json};

use crate::{NOTHING, SERVER, granted};

/// Objects of project A in every place.
struct Theirs {
    fleet: Fleet,
    volume: String,
    attachment: String,
    message: String,
    private: String,
}

fn theirs() -> Theirs {
    let plan = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1");
    let fleet = plan.tuned(|options| options.scheduler.fast_fail = false).start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let attachment = member.attach(&volume, &fleet.stock("node1"), None).id;
    // A volume without a place leaves a message.
    let nowhere = member.post("/volumes", &json!({ "volume": { "size": 101 } })).expect(202);
    member.delete(&format!("/volumes/{}", nowhere["volume"]["id"].as_str().unwrap())).expect(202);
    let messages = member.get("/messages").expect(200);
    let message = messages["messages"][0]["id"].as_str().unwrap().to_owned();
    let private = json!({ "volume_type": { "name": "private", "os-volume-type-access:is_public": false } });
    let private =
        admin.post("/types", &private).expect(200)["volume_type"]["id"].as_str().unwrap().to_owned();
    Theirs { fleet, volume, attachment, message, private }
}

type Request = (&'static str, String, Value);

/// Every request that names an id, with an otherwise correct body.
fn requests(of: &Theirs) -> Vec<Request> {
    let Theirs { fleet, volume, attachment, message, private } = of;
    let connector = fleet.stock("node2").connector();
    let at = |path: &str| format!("/volumes/{volume}{path}");
    let own = |path: &str| format!("/attachments/{attachment}{path}");
    let mut all: Vec<Request> = vec![
        ("GET", at(""), Value::Null),
        ("PUT", at(""), json!({ "volume": { "name": "mine" } })),
        ("DELETE", at(""), Value::Null),
        ("DELETE", at("?force=true"), Value::Null),
        ("GET", at("/encryption"), Value::Null),
        ("GET", at("/metadata"), Value::Null),
        ("POST", at("/metadata"), json!({ "metadata": { "a": "b" } })),
        ("PUT", at("/metadata"), json!({ "metadata": {} })),
        ("GET", at("/metadata/a"), Value::Null),
        ("PUT", at("/metadata/a"), json!({ "meta": { "a": "b" } })),
        ("DELETE", at("/metadata/a"), Value::Null),
        ("GET", own(""), Value::Null),
        ("PUT", own(""), json!({ "attachment": { "connector": connector } })),
        ("DELETE", own(""), Value::Null),
        ("DELETE", own("?force=true"), Value::Null),
        ("POST", own("/action"), json!({ "os-complete": {} })),
        ("POST", "/attachments".into(), json!({ "attachment": { "volume_uuid": volume } })),
        (
            "POST",
            "/attachments".into(),
            json!({ "attachment": { "volume_uuid": volume, "connector": connector } }),
        ),
        ("POST", "/snapshots".into(), json!({ "snapshot": { "volume_id": volume } })),
        ("POST", "/volumes".into(), json!({ "volume": { "size": 1, "source_volid": volume } })),
        ("POST", "/volumes".into(), json!({ "volume": { "size": 1, "volume_type": private } })),
        ("GET", format!("/types/{private}"), Value::Null),
        ("GET", format!("/types/{private}/extra_specs"), Value::Null),
        ("GET", format!("/messages/{message}"), Value::Null),
        ("DELETE", format!("/messages/{message}"), Value::Null),
        ("GET", format!("/mooring/v1/volumes/{volume}"), Value::Null),
        ("GET", format!("/mooring/v1/volumes/{volume}/placement"), Value::Null),
        ("DELETE", format!("/mooring/v1/volumes/{volume}/extend"), Value::Null),
        ("GET", format!("/mooring/v1/attachments/{attachment}"), Value::Null),
        ("DELETE", format!("/mooring/v1/attachments/{attachment}"), Value::Null),
        ("DELETE", format!("/mooring/v1/attachments/{attachment}?force=true"), Value::Null),
        ("GET", format!("/mooring/v1/attachments/{attachment}/receipt"), Value::Null),
        (
            "POST",
            "/mooring/v1/attachments".into(),
            json!({ "attachment": { "volume": volume, "host": "h1" } }),
        ),
    ];
    for (name, body) in [
        ("os-reserve", json!({})),
        ("os-unreserve", json!({})),
        ("os-begin_detaching", json!({})),
        ("os-roll_detaching", json!({})),
        ("os-attach", json!({ "instance_uuid": SERVER, "mountpoint": "/dev/vdb" })),
        ("os-detach", json!({ "attachment_id": attachment })),
        ("os-force_detach", json!({ "attachment_id": attachment })),
        ("os-initialize_connection", json!({ "connector": connector })),
        ("os-terminate_connection", json!({ "connector": connector })),
        ("os-retype", json!({ "new_type": "__DEFAULT__" })),
        ("os-set_bootable", json!({ "bootable": true })),
        ("os-update_readonly_flag", json!({ "readonly": true })),
        ("os-reset_status", json!({ "status": "error" })),
        ("os-force_delete", json!({})),
        ("os-extend", json!({ "new_size": 2 })),
        ("os-migrate_volume", json!({ "host": "s1@lvm#vg0" })),
        ("revert", json!({ "snapshot_id": NOTHING })),
    ] {
        all.push(("POST", at("/action"), json!({ name: body })));
    }
    all
}

/// The object's state for its own project, and in the kernel.
fn seen(of: &Theirs) -> Value {
    let admin = of.fleet.admin();
    json!([
        admin.show(&of.volume),
        admin.get("/attachments/detail").expect(200),
        admin.get("/types?is_public=None").expect(200),
        of.fleet.member().get("/messages").expect(200),
        of.fleet.storage("s1").tree(),
    ])
}

#[test]
fn another_projects_things_are_not_there() {
    let of = theirs();
    let before = seen(&of);
    let stranger = of.fleet.stranger();
    // A service's token beside one's own makes nobody a member of another project.
    let with_service = stranger.with("X-Service-Token", of.fleet.service().token());
    for caller in [&stranger, &with_service] {
        for (method, path, body) in requests(&of) {
            let body = Some(&body).filter(|body| !body.is_null());
            let answer = caller.at("3.69").send(method, &path, body);
            assert_eq!(answer.status, 404, "{} {body:?}: {}", answer.asked, answer.body);
            let text = answer.body.to_string();
            assert!(!text.contains("shared") && !text.contains("node1"), "{}: {text}", answer.asked);
            // The object is not found, and not the path.
            let ids = [&of.volume, &of.attachment, &of.message, &of.private];
            assert!(ids.iter().any(|id| text.contains(*id)), "{}: {text}", answer.asked);
        }
        // A place beside a volume that the caller cannot see is a wrong request.
        let hints =
            json!({ "volume": { "size": 1 }, "OS-SCH-HNT:scheduler_hints": { "same_host": of.volume } });
        caller.post("/volumes", &hints).refused(400, "could not be found");
        // Lists are empty, whatever the filter.
        for list in [
            "/volumes/detail?all_tenants=1".to_owned(),
            format!("/volumes/detail?project_id={PROJECT_A}&all_tenants=1"),
            format!("/attachments/detail?volume_id={}&all_tenants=1", of.volume),
            "/messages?all_tenants=1".to_owned(),
            "/mooring/v1/attachments".to_owned(),
            "/mooring/v1/receipts".to_owned(),
        ] {
            let answer = caller.at("3.30").get(&list).expect(200);
            let rows = answer.as_object().unwrap().values().next().unwrap();
            assert_eq!(rows, &json!([]), "{list}");
        }
        caller.get(&format!("/os-quota-sets/{PROJECT_A}")).refused(403, "quotas:show");
        // The project's address does not help.
        let theirs = format!("//v3/{PROJECT_A}/volumes/{}", of.volume);
        caller.get(&theirs).refused(400, "Malformed request url");
    }
    assert_eq!(seen(&of), before);
    assert_eq!(granted(&of.fleet, &of.volume), ["node1 LUN 1 rw"]);
}

/// The fleet has no policy file: these are the defaults.
#[test]
fn a_reader_sees_its_project_and_changes_nothing_by_default() {
    let of = theirs();
    let (reader, member) = (of.fleet.reader(), of.fleet.member());
    // Their objects exist.
    let pair = json!({ "metadata": { "a": "b" } });
    member.post(&format!("/volumes/{}/metadata", of.volume), &pair).expect(200);
    let before = seen(&of);
    for (method, path, body) in requests(&of) {
        if method == "GET" {
            continue;
        }
        let body = Some(&body).filter(|body| !body.is_null());
        let answer = reader.at("3.69").send(method, &path, body);
        answer.refused(403, "Policy doesn't allow ");
    }
    assert_eq!(seen(&of), before);
    reader.get(&format!("/volumes/{}", of.volume)).expect(200);
    reader.get(&format!("/attachments/{}", of.attachment)).expect(200);
    // Control: a member's change of the same kind is made.
    let rename = json!({ "volume": { "name": "mine" } });
    member.put(&format!("/volumes/{}", of.volume), &rename).expect(200);
    assert_ne!(seen(&of), before);
}

fn natively(client: &Client, volume: &str, host: &str) -> mooring_fleet::Answer {
    let attachment = json!({ "volume": volume, "host": host, "mode": "rw" });
    client.post("/mooring/v1/attachments", &json!({ "attachment": attachment }))
}

#[test]
fn a_member_makes_no_enrolled_host_log_in_by_default() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").start();
    let (admin, member) = (fleet.admin(), fleet.member());
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let hosts = admin.get("/mooring/v1/hosts").expect(200);
    let h1 = hosts["hosts"].as_array().unwrap().iter().find(|host| host["name"] == "h1").unwrap();
    // With a grant in force, its export is whole.
    member.attach(&volume, &fleet.stock("node2"), None);
    fleet.host("h2").kill();
    // A host that is up, one that is down, a storage node and no host at all, by name and by id:
    // all get one answer.
    let before = fleet.storage("s1").tree();
    for host in ["h1", "h2", "s1", "nosuch", h1["agent_id"].as_str().unwrap()] {
        for client in [&member, &fleet.reader()] {
            let told = natively(client, &volume, host).expect(403);
            let text = "Policy doesn't allow mooring:attach_native to be performed.";
            assert_eq!(told, json!({ "forbidden": { "code": 403, "message": text } }), "{host}");
        }
        let stranger = natively(&fleet.stranger(), &volume, host).expect(404).to_string();
        assert!(stranger.contains(&volume) && !stranger.contains(host), "{stranger}");
    }
    // Nor does a client that says a host's name hear which one it is.
    let mut connector = fleet.stock("node1").connector();
    connector["initiator"] = h1["initiator"].clone();
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": connector } });
    let told = member.post("/attachments", &body).expect(400).to_string();
    assert!(told.contains("an enrolled host") && !told.contains("h1:"), "{told}");
    assert_eq!(fleet.storage("s1").tree(), before);
    // The control: an admin does, and so does another service for a member.
    natively(&admin, &volume, "h1").expect(202);
    fleet.host("h2").start();
    fleet.until_up();
    natively(&member.with("X-Service-Token", fleet.service().token()), &volume, "h2").expect(202);
}

#[test]
fn members_attach_natively_to_the_hosts_of_their_project() {
    let plan = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2");
    let of_project = BTreeMap::from([(PROJECT_A.to_owned(), BTreeSet::from(["h1".to_owned()]))]);
    let fleet = plan.tuned(move |options| options.native_hosts.clone_from(&of_project)).start();
    let (member, stranger) = (fleet.member(), fleet.stranger());
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let native = "Policy doesn't allow mooring:attach_native to be performed.";
    natively(&member, &volume, "h2").refused(403, native);
    natively(&fleet.reader(), &volume, "h1").refused(403, "volume:attachment_create");
    natively(&stranger, &stranger.volume(None, 1), "h1").refused(403, native);
    member.attach_natively(&volume, "h1", "rw");
}

/// A header makes nobody a service.
#[test]
fn a_service_is_known_by_its_token_only() {
    let of = theirs();
    let (fleet, path) = (&of.fleet, format!("/attachments/{}", of.attachment));
    let member = fleet.member();
    let secret = |client: &Client| -> Option<bool> {
        let answer = client.get(&path);
        (answer.status == 200)
            .then(|| answer.body["attachment"]["connection_info"].get("auth_password").is_some())
    };
    assert_eq!(secret(&member), Some(false));
    assert_eq!(secret(&member.with("X-Service-Token", fleet.service().token())), Some(true));
    // A user's own, another user's, an admin's: theirs is no service's role.
    for token in [member.token(), fleet.stranger().token(), fleet.reader().token()] {
        assert_eq!(secret(&member.with("X-Service-Token", token)), Some(false));
    }
    // An unknown token is no token, whatever the user's is; roles that a client sends are ignored.
    let cut = fleet.service().token()[1..].to_owned();
    for forged in ["x", "", cut.as_str(), "00000000-0000-4000-8000-000000000000"] {
        assert_ne!(secret(&member.with("X-Service-Token", forged)), Some(true), "{forged:?}");
    }
    let claims = member.with("X-Roles", "admin,service").with("X-Service-Roles", "service");
    let claims = claims.with("X-Identity-Status", "Confirmed").with("X-Service-Identity-Status", "Confirmed");
    assert_eq!(secret(&claims.with("X-Is-Admin-Project", "True")), Some(false));
    claims.get("/os-services").expect(403);
    // Alone it authenticates no user.
    let alone = fleet.member().nobody().with("X-Service-Token", fleet.service().token());
    alone.get(&path).expect(401);
}

#[test]
fn what_is_no_request_changes_nothing() {
    let of = theirs();
    let (member, before) = (of.fleet.member(), seen(&of));
    let json = member.with("Content-Type", "application/json");
    let deep = format!("{{\"attachment\": {}1{}}}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    let wide = format!(
        "{{\"attachment\": {{\"volume_uuid\": \"{}\"}}, \"pad\": \"{}\"}}",
        of.volume,
        "x".repeat(200_000)
    );
    let broken = [b"{\"attachment\": {\"volume_uuid\": \"\xff\xfe".to_vec(), b"\x00".to_vec(), b"{".to_vec()];
    for (body, code) in
        [(deep.into_bytes(), 400), (wide.into_bytes(), 413)].into_iter().chain(broken.map(|body| (body, 400)))
    {
        for (method, path) in [
            ("POST", "/attachments".to_owned()),
            ("PUT", format!("/attachments/{}", of.attachment)),
            ("POST", format!("/volumes/{}/action", of.volume)),
            ("POST", "/volumes".to_owned()),
        ] {
            assert_eq!(json.send_raw(method, &path, body.clone()).status, code, "{method} {path}");
            // A caller without a token gets a 401, and the body is not read.
            assert_eq!(json.nobody().send_raw(method, &path, body.clone()).status, 401, "{method} {path}");
        }
    }
    assert_eq!(seen(&of), before);
}

/// A client that sends a byte now and then, and one that does not read its answer, block nobody.
#[test]
fn slow_clients_hold_up_nobody() {
    use std::io::Write;

    let of = theirs();
    let member = of.fleet.member();
    let address = of.fleet.control().url().trim_start_matches("http://").to_owned();
    let head = format!(
        "POST /v3/attachments HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 1000\r\n\r\n{{\"attachment\"",
        member.token()
    );
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let beginning = if n % 2 == 0 { head.as_str() } else { "GET /v3/volumes HTTP/1.1\r\nHost: loc" };
        stream.write_all(beginning.as_bytes()).unwrap();
        slow.push(stream);
    }
    // Requests meanwhile are served as always.
    let other = member.attach(&of.volume, &of.fleet.stock("node2"), None);
    assert_eq!(granted(&of.fleet, &of.volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    member.detach(&other.id);
    assert_eq!(granted(&of.fleet, &of.volume), ["node1 LUN 1 rw"]);
    drop(slow);
}

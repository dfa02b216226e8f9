//! Partitions between the controller and its agents while volumes are attached: of the storage
//! agent, of a host's agent, and of both.

use std::collections::BTreeSet;

use mooring_fleet::{Answer, Client, Fleet, until};
use serde_json::{Value, json};

/// An attach that somebody asks for.
struct Ask {
    /// The host: `h1` and `h2` have agents, all others are clients of the Block Storage API.
    host: &'static str,
    path: &'static str,
    body: Value,
}

impl Ask {
    fn new(fleet: &Fleet, volume: &str, host: &'static str) -> Self {
        let (path, attachment) = if is_native(host) {
            ("/mooring/v1/attachments", json!({ "volume": volume, "host": host, "mode": "rw" }))
        } else {
            ("/attachments", json!({ "volume_uuid": volume, "connector": fleet.stock(host).connector() }))
        };
        Self { host, path, body: json!({ "attachment": attachment }) }
    }

    fn send(&self, client: &Client) -> Answer {
        client.post(self.path, &self.body)
    }
}

fn is_native(host: &str) -> bool {
    host.starts_with('h')
}

/// All attachments of a volume, with their live state.
fn live(client: &Client, volume: &str) -> Vec<Value> {
    let seen = client.get(&format!("/mooring/v1/attachments?volume={volume}")).expect(200);
    seen["attachments"].as_array().cloned().unwrap_or_default()
}

/// Waits until the host of an attach has its disk, or the attach says why it has none.
#[track_caller]
fn ends(fleet: &Fleet, ask: &Ask, answer: &Answer) {
    let admin = fleet.admin();
    let made = &answer.body["attachment"];
    let Some(id) = made["id"].as_str() else {
        let fault = answer.body.as_object().and_then(|fault| fault.values().next());
        let why = fault.and_then(|fault| fault["message"].as_str()).unwrap_or_default();
        assert!(answer.status >= 400 && !why.is_empty(), "no reason for {}: {answer:?}", ask.host);
        return;
    };
    if !is_native(ask.host) {
        let session = fleet.stock(ask.host).login(&made["connection_info"]);
        let wrote = session.map(|session| session.write());
        assert!(matches!(wrote, Ok(Ok(()))), "{} was let in and cannot write: {wrote:?}", ask.host);
        admin.complete(id);
        return;
    }
    until(&format!("the end of the attach to {}", ask.host), || {
        let seen = admin.get(&format!("/mooring/v1/attachments/{id}")).expect(200)["attachment"].take();
        let path = fleet.host(ask.host).path_of(id);
        match seen["status"].as_str() {
            Some("attached") if path.is_some() => Ok(()),
            Some("error_attaching") if path.is_none() && seen["fault"].is_string() => Ok(()),
            _ => Err(format!("path {path:?}, {seen}")),
        }
    });
}

/// Waits until the target admits exactly those whom the controller lists, and each of them is
/// attached or has failed. A client of the Block Storage API may be on its way for ever.
#[track_caller]
fn nothing_is_half_done(fleet: &Fleet, volume: &str) {
    let admin = fleet.admin();
    until("the grants are those of the attachments", || {
        let rows = live(&admin, volume);
        let ended = |row: &Value| {
            let status = row["status"].as_str();
            row["native"] == false || matches!(status, Some("attached" | "error_attaching"))
        };
        let admitted = rows.iter().filter(|row| row["status"] != "error_attaching");
        let wanted: BTreeSet<_> =
            admitted.map(|row| row["initiator"].as_str().unwrap_or_default().to_owned()).collect();
        let granted: BTreeSet<_> = fleet.storage("s1").grants(volume).into_keys().collect();
        if rows.iter().all(ended) && wanted == granted {
            Ok(())
        } else {
            Err(format!("granted are {granted:?}, attachments are {rows:?}"))
        }
    });
}

/// Attaches volumes while the wires to these agents are cut, and after that.
fn attaches_outlast(cut: &[&str]) {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2").wired().start();
    let (admin, storage, kind) = (fleet.admin(), fleet.storage("s1"), fleet.shared_type());
    let [old, new, last] = [(); 3].map(|()| admin.volume(Some(&kind), 1));
    let node = fleet.stock("node0");
    let session = node.login(&admin.attach(&old, &node, None).info).unwrap();
    let native = admin.attach_natively(&old, "h1", "rw");
    let (had, path) = (storage.sessions(&old), fleet.host("h1").path_of(&native));
    assert_eq!((had.len(), path.is_some()), (2, true), "{had:?}");
    let early = [(&old, "h2"), (&old, "node1"), (&new, "h1"), (&new, "h2"), (&new, "node2")]
        .map(|(volume, host)| Ask::new(&fleet, volume, host));
    let late = [(&last, "h1"), (&last, "node3")].map(|(volume, host)| Ask::new(&fleet, volume, host));

    fleet.cut(cut);
    let (caller, waits) = (&admin, cut.contains(&"s1"));
    let (of_early, of_late, meanwhile) = std::thread::scope(|scope| {
        let running: Vec<_> = early.iter().map(|ask| scope.spawn(move || ask.send(caller))).collect();
        for name in cut {
            fleet.until_missed(name);
        }
        let of_late: Vec<_> = late.iter().map(|ask| ask.send(caller)).collect();
        let meanwhile = (session.write(), storage.sessions(&old), storage.grants(&new).len());
        fleet.heal();
        let of_early: Vec<_> = running.into_iter().map(|one| one.join().unwrap()).collect();
        (of_early, of_late, meanwhile)
    });
    let (wrote, sessions, granted) = meanwhile;
    assert!(wrote.is_ok() && had.iter().all(|name| sessions.contains(name)), "{wrote:?} {sessions:?}");
    // The control: nothing passes a cut wire.
    assert!(!waits || granted == 0, "{granted} grants that the storage agent cannot have been told of");
    for (ask, answer) in late.iter().zip(&of_late) {
        if waits || is_native(ask.host) {
            answer.clone().refused(503, "is down");
        } else {
            answer.clone().expect(200);
        }
    }
    fleet.until_up();
    for (ask, answer) in early.iter().zip(&of_early).chain(late.iter().zip(&of_late)) {
        ends(&fleet, ask, answer);
    }
    assert!(session.is_live() && session.write().is_ok(), "a session was cut");
    assert_eq!(fleet.host("h1").path_of(&native), path, "a host's disk is another one");
    assert!(had.iter().all(|name| storage.sessions(&old).contains(name)), "a session was cut: {had:?}");
    for volume in [&old, &new, &last] {
        nothing_is_half_done(&fleet, volume);
        for row in live(&admin, volume) {
            admin.detach(row["id"].as_str().unwrap());
        }
        until("nobody has the volume", || {
            let left = (storage.grants(volume), storage.sessions(volume), live(&admin, volume));
            if left.0.is_empty() && left.1.is_empty() && left.2.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
        admin.delete(&format!("/volumes/{volume}")).expect(202);
        admin.until_deleted(volume);
    }
    assert_eq!(fleet.host("h1").path_of(&native), None);
}

#[test]
fn attaches_outlast_a_partition_of_the_storage_agent() {
    attaches_outlast(&["s1"]);
}

#[test]
fn attaches_outlast_a_partition_of_a_host() {
    attaches_outlast(&["h1"]);
}

#[test]
fn attaches_outlast_a_partition_of_storage_agent_and_host() {
    attaches_outlast(&["s1", "h1"]);
}

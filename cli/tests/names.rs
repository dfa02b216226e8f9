//! Names that would write on the terminal: every answer for people shows them cleaned, and JSON
//! has them as they are.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;

use crate::fake_controller::{Rig, State};
use mooring_api::v1;
use serde_json::{Value, json};

const ID: &str = "b0c1d2e3-0001-4002-8003-0000000000aa";
const OTHER: &str = "b0c1d2e3-0001-4002-8003-0000000000bb";
const VOLUME: &str = "b0c1d2e3-0001-4002-8003-0000000000cc";
const SNAPSHOT: &str = "5a5a5a5a-0000-4000-8000-000000000001";

/// A name with every control, every bidirectional mark and what has no width; and that name as
/// people get it.
fn hostile() -> (String, String) {
    let controls = ('\u{0}'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
    let directions = ['\u{61c}', '\u{200e}', '\u{200f}'].into_iter();
    let directions = directions.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
    let invisible = ['\u{ad}', '\u{180e}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{2028}', '\u{2029}'];
    let invisible = invisible.into_iter().chain(['\u{2060}', '\u{feff}', '\u{e0041}']);
    let all: Vec<_> = controls.chain(directions).chain(invisible).collect();
    let name: String = all.iter().collect();
    (format!("a{name}b"), format!("a{}b", "\u{fffd}".repeat(all.len())))
}

/// Expects the output that the name gives which has the replacements already. Control: the command
/// does show that name.
#[track_caller]
fn shows_it_cleaned(rig: &Rig, words: &[&str], set: impl Fn(&mut State, &str)) {
    let (name, cleaned) = hostile();
    rig.fake.change(|state| set(state, &cleaned));
    let want = rig.run(words);
    assert!(want.out.contains(&cleaned) || want.err.contains(&cleaned), "{words:?}: {want:?}");
    rig.fake.change(|state| set(state, &name));
    let ran = rig.run(words);
    assert_eq!((ran.code, ran.out, ran.err), (want.code, want.out, want.err), "{words:?}");
}

fn attachment(name: &str) -> Value {
    json!({
        "id": ID, "volume_id": VOLUME, "volume_name": name, "host": name, "mode": name, "effective_mode": name,
        "cache": name, "cache_in_force": name, "status": "attached", "native": true, "initiator": name,
        "session": true, "session_addresses": [name], "unlisted_sessions": 1, "storage_host": name,
        "sessions": [{ "id": 4, "isid": name, "addresses": [name], "state": name, "in_flight": 2, "since": name }],
        "host_phase": name, "device_path": name, "disk": name, "problems": [name], "steps_ms": {}, "fault": name,
        "created_at": "2026-11-21T10:00:00Z", "attached_at": null, "revision": 9,
    })
}

/// Gives every object in the controller this name.
fn name_all(state: &mut State, name: &str) {
    let kind = json!({ "id": "type-t", "name": name, "is_public": true, "description": name,
                       "extra_specs": { name: name } });
    let volume = json!({
        "id": VOLUME, "name": name, "description": name, "status": "available", "size": 1, "volume_type": name,
        "multiattach": true, "attachments": [], "metadata": {}, "os-vol-host-attr:host": name,
        "created_at": "2026-11-21T10:00:00.000000", "looks": 0,
    });
    let snapshot = json!({ "id": SNAPSHOT, "name": name, "description": name, "status": "available",
                           "volume_id": VOLUME, "size": 1, "created_at": "2026-11-21T10:00:00.000000" });
    state.types = BTreeMap::from([("t".to_owned(), kind)]);
    state.volumes = BTreeMap::from([(VOLUME.to_owned(), volume)]);
    state.snapshots = BTreeMap::from([(SNAPSHOT.to_owned(), snapshot)]);
    state.attachments = BTreeMap::from([(ID.to_owned(), attachment(name))]);
    state.access = [name.to_owned()].into();
    state.knobs.fault = Some(name.to_owned());
}

#[test]
fn names_of_the_controllers_objects_draw_nothing() {
    let rig = Rig::new();
    for words in [
        &["volume", "list"][..],
        &["volume", "show", VOLUME],
        &["volume", "extend", VOLUME, "--size", "2GiB"],
        &["volume", "set", VOLUME, "--bootable", "true"],
        &["volume", "cut", VOLUME],
        &["volume", "uncut", VOLUME],
        &["volume", "revert", VOLUME, "--to", SNAPSHOT],
        &["volume", "rotate-secrets", VOLUME],
        &["attachment", "list"],
        &["attachment", "show", ID],
        &["attachment", "mode", ID, "ro"],
        &["attachment", "cache", ID, "off"],
        &["session", "list"],
        &["snapshot", "list"],
        &["snapshot", "show", SNAPSHOT],
        &["type", "list"],
        &["type", "show", "type-t"],
        &["type", "access", "type-t"],
        &["type", "delete", "type-t"],
    ] {
        shows_it_cleaned(&rig, words, name_all);
    }
    // An attached volume is not deleted.
    shows_it_cleaned(&rig, &["volume", "delete", VOLUME], |state, name| {
        name_all(state, name);
        state.attachments.clear();
    });
}

#[test]
fn names_in_the_course_of_an_attach_draw_nothing() {
    let rig = Rig::new();
    let words = ["attach", VOLUME, "--host", "host1", "--id", OTHER];
    shows_it_cleaned(&rig, &words, name_all);
    // On standard error: the progress, and the end of an attach that fails.
    for stop in [0, 1] {
        shows_it_cleaned(&rig, &words, |state, name| {
            name_all(state, name);
            state.knobs.stop_after = Some(stop);
            state.knobs.problems = vec![format!("the portal of {name}")];
            state.knobs.attach_fault = Some(name.to_owned());
        });
    }
}

/// Commands whose one answer has this text in each of its fields.
fn answers(name: &str) -> Vec<(Vec<&'static str>, Value)> {
    let host = json!({
        "name": name, "address": name, "agent_id": name, "initiator": name, "zone": name, "up": false,
        "enrolment": { "roles": [name], "expires_at": name }, "disabled_reason": name, "why_down": name,
        "last_report": name, "health": { "level": "degraded", "reasons": [{ "code": name }] },
        "report": { "kernel_release": name, "fc_initiator_ports": [name],
                    "transports": [{ "protocol": name, "ready": true }],
                    "modules": [{ "name": name, "state": name, "remedy": name }] },
        "pools": [{ "name": name, "total_bytes": 2, "free_bytes": 1 }], "problems": [name],
    });
    let job = json!({ "volume_id": VOLUME, "volume_name": name, "storage_host": name, "kind": name, "done_bytes": 1,
                      "total_bytes": 2, "percent": 50.0, "resumed_bytes": 0, "limited": false, "since": name });
    let record = json!({ "attachment_id": ID, "volume_id": VOLUME, "host": name, "instance": name, "mode": name,
                         "initiator": name, "user_id": name, "request_id": name, "forced": true });
    let line = json!({ "seq": 1, "at": name, "request_id": name, "user_id": name, "project_id": name, "from": name,
                       "method": name, "operation": name, "action": name, "problem": name, "status": 409,
                       "objects": [{ "kind": name, "id": name }] });
    let fence = json!({
        "host": name, "initiators": [name], "reason": name, "user_id": name, "fenced_at": name, "proof": "unproven",
        "parts": [{ "attachment_id": ID, "volume_id": VOLUME, "state": "waiting", "receipt": null,
                    "waits_for": name, "warnings": [name] }],
        "exports": [{ "node": name, "volume_id": VOLUME, "initiator": name, "state": name, "receipt": null,
                      "waits_for": null }],
        "unknown": [{ "node": name, "why": name }], "disputed": [{ "initiator": name, "hosts": [name] }],
    });
    let loss = json!({ "name": name, "agent_id": name, "last_report": name, "volumes": 1, "snapshots": 1, "gib": 1,
                       "attachments": 1, "attached": 1, "obstacle": name,
                       "projects": [{ "project": name, "volumes": 1, "snapshots": 1, "gib": 1, "attachments": 1 }] });
    let check = json!({ "attachment_id": ID, "host": name, "disk": name, "cache_in_force": name, "unseen": [name],
                        "users": [{ "device": name, "kind": "process", "name": name, "pid": 1, "access": name }],
                        "problems": [{ "code": name, "text": name }] });
    let pool = json!({ "name": name, "capabilities": { "backend_state": name, "mooring_wipe": name } });
    vec![
        (vec!["host", "list"], json!({ "hosts": [host] })),
        (vec!["host", "show", "h1"], json!({ "host": host })),
        (vec!["host", "revoke", "h1"], json!({ "revoked": name })),
        (vec!["host", "rename", "h1", "h2"], json!({ "renamed": name, "name": name, "warnings": [name] })),
        (vec!["host", "forget", "h1"], json!({ "loss": loss })),
        (vec!["host", "forget", "h1", "--yes"], json!({ "forgotten": loss })),
        (vec!["host", "fence", "h1"], json!({ "fence": fence })),
        (vec!["host", "fences"], json!({ "fences": [fence] })),
        (vec!["pool", "list"], json!({ "pools": [pool] })),
        (vec!["job", "list"], json!({ "jobs": [job], "hosts": [{ "name": name, "problem": name }] })),
        (vec!["receipt", "list"], json!({ "receipts": [record] })),
        (vec!["receipt", "show", ID], json!({ "receipts": [record] })),
        (vec!["audit"], json!({ "audit": [line] })),
        (vec!["attachment", "check", ID], json!({ "check": check })),
    ]
}

#[test]
fn texts_in_each_field_of_an_answer_draw_nothing() {
    let rig = Rig::new();
    for (at, (words, _)) in answers("").into_iter().enumerate() {
        shows_it_cleaned(&rig, &words, |state, name| {
            let (_, body) = answers(name).swap_remove(at);
            state.knobs.raw = Some((200, body.to_string()));
        });
    }
}

/// Only the line feeds of a refusal stay: it may have several lines.
#[test]
fn a_refusal_draws_nothing() {
    let rig = Rig::new();
    let (name, cleaned) = hostile();
    let body = json!({ "conflictingRequest": { "code": 409, "message": name } });
    rig.fake.change(|state| state.knobs.raw = Some((409, body.to_string())));
    let ran = rig.run(&["host", "list"]);
    assert_eq!((ran.code, ran.err.lines().count()), (4, 3), "{ran:?}");
    assert!(ran.err.replace('\n', "\u{fffd}").contains(&cleaned), "{ran:?}");
}

#[test]
fn programs_get_names_as_they_are() {
    let rig = Rig::new();
    let (name, _) = hostile();
    rig.fake.change(|state| name_all(state, &name));
    assert_eq!(rig.json(&["volume", "list"])["volumes"][0]["name"], name);
    assert_eq!(rig.json(&["attachment", "list"])["attachments"][0]["host"], name);
    assert_eq!(rig.json(&["type", "list"])["types"][0]["description"], name);
}

/// An agent keeps names as data of the command line.
#[test]
fn names_that_an_agent_keeps_draw_nothing() {
    let (name, cleaned) = hostile();
    let host = "iqn.2004-10.com.example:host1";
    let change = ["export", "grant", ID, "--initiator", host, "--mode", "rw"];
    let ran = |name: &str, words: &[&str]| {
        let rig = crate::fake::Rig::new();
        assert_eq!(rig.run(&["volume", "create", "data", "--size", "1GiB", "--id", ID]).code, 0);
        {
            let mut state = rig.fake.state();
            state.volumes.get_mut(ID).unwrap().opaque = json!({ "name": name }).to_string().into_bytes();
            state.knobs.jobs = vec![v1::Job {
                volume_id: ID.to_owned(),
                kind: v1::JobKind::Zero.into(),
                total_bytes: 1 << 30,
                ..v1::Job::default()
            }];
            state.knobs.live = vec![host.to_owned()];
            state.knobs.unlisted_sessions = Some(1);
        }
        if words != change && words != ["volume", "delete", ID] {
            assert_eq!(rig.run(&change).code, 0);
        }
        let ran = rig.run(words);
        (ran.code, ran.out, ran.err)
    };
    for words in [
        &change[..],
        &["volume", "list"],
        &["volume", "show", ID],
        &["volume", "uncut", ID],
        &["volume", "extend", ID, "--size", "2GiB"],
        &["export", "show", ID],
        &["export", "revoke", ID, "--initiator", host, "--force"],
        &["session", "list"],
        &["job", "list"],
        &["job", "show", ID],
        &["volume", "delete", ID],
    ] {
        let (code, out, err) = ran(&cleaned, words);
        assert!(out.contains(&cleaned), "{words:?}: {code} {out} {err}");
        assert_eq!(ran(&name, words), (code, out, err), "{words:?}");
    }
}

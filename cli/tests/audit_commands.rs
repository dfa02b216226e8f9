//! `mooring audit`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use serde_json::{Value, json};

use crate::fake_controller::Rig;

const ID: &str = "b0c1d2e3-0001-4002-8003-0000000000aa";

fn line(seq: u64) -> Value {
    json!({
        "seq": seq, "at": "2026-11-18T11:06:40.000000Z", "request_id": format!("req-{seq}"), "user_id": "nova",
        "project_id": "p", "roles": ["service"], "from": "192.0.2.7", "method": "POST", "operation": "actOnVolume",
        "action": "os-extend", "objects": [{ "kind": "volume", "id": ID }], "status": 202, "problem": null,
        "new": "a field of a newer controller",
    })
}

fn answers(rig: &Rig, lines: &[Value]) {
    rig.fake.change(|state| state.knobs.raw = Some((200, json!({ "audit": lines }).to_string())));
}

#[test]
fn the_audit_log_is_shown_and_handed_on() {
    let rig = Rig::new();
    let refused = json!({
        "seq": 1, "at": "2026-11-18T11:06:39.000000Z", "request_id": "req-1", "user_id": null, "project_id": null,
        "roles": [], "from": null, "method": "DELETE", "operation": null, "action": null, "objects": [], "status": 401,
        "problem": "The token is not known.",
    });
    answers(&rig, &[line(2), refused]);
    let shown = rig.run(&["audit"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    for text in ["nova", "192.0.2.7", "actOnVolume os-extend", &format!("volume {ID}"), "202", "req-2"] {
        assert!(shown.out.contains(text), "{text}: {}", shown.out);
    }
    assert!(
        shown.out.contains("DELETE") && shown.out.contains("401 The token is not known."),
        "{}",
        shown.out
    );
    let answer = rig.json(&["audit"]);
    assert_eq!(answer["audit"][0], line(2), "as it came");
    answers(&rig, &[]);
    assert!(rig.run(&["audit"]).out.contains("no such call is recorded"));
}

#[test]
fn what_is_wanted_is_asked_for_a_page_at_a_time() {
    let rig = Rig::new();
    let page: Vec<_> = (1..=1_000).rev().map(line).collect();
    answers(&rig, &page);
    let words = ["--since", "2026-11-18T00:00:00Z", "--user", "nova", "--object", ID, "--limit", "1500"];
    let answer = rig.json(&[&["audit"][..], &words].concat());
    // The fake answers with whole pages, whatever the limit.
    assert_eq!(answer["audit"].as_array().unwrap().len(), 2_000);
    let requests = rig.fake.state().requests.clone();
    let [first, second] = requests.as_slice() else { panic!("{requests:?}") };
    let common = format!("since=2026-11-18T00%3A00%3A00.000000Z&user=nova&object={ID}");
    assert_eq!(first, &format!("GET /mooring/v1/audit?limit=1000&{common}"));
    assert_eq!(second, &format!("GET /mooring/v1/audit?limit=500&{common}&marker=1"));
    for wrong in
        [&["audit", "--since", "yesterday"][..], &["audit", "--limit", "0"], &["audit", "--user", ""]]
    {
        assert_eq!(rig.run(wrong).code, 2, "{wrong:?}");
    }
}

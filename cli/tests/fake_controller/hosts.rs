//! The hosts of the controller in memory: a storage node, and two that attach.

use serde_json::{Value, json};

use super::Knobs;

/// The list of hosts. The second host that attaches is down unless a test wants it up.
pub(crate) fn hosts(knobs: &Knobs) -> Value {
    let orphan = knobs.orphan.as_deref();
    let health = json!({ "level": "degraded", "reasons": [
        { "code": "portal_unreachable", "level": "failed", "object": "portal 10.0.0.9:3260", "text": "it waits" },
        { "code": "portal_unreachable", "level": "failed", "object": "portal 10.0.0.8:3260", "text": "it waits" },
    ] });
    let module = |name: &str, state: &str, remedy: Value| json!({ "name": name, "needed_for": "x", "state": state, "remedy": remedy });
    let report = json!({
        "kernel_release": "6.1.0-40-amd64",
        "transports": [{ "protocol": "iscsi", "ready": true }, { "protocol": "fc", "ready": false }],
        "modules": [module("dm_mod", "present", Value::Null), module("tcm_fc", "loadable", "modprobe tcm_fc".into())],
    });
    // The other hosts are of a release that does not say it.
    let said = |name: &str, said: &Value| if name == "storage" { said.clone() } else { Value::Null };
    let joined = json!({ "roles": ["storage"], "joined_at": "2026-11-21T10:00:00Z", "expires_at": "2027-02-25T10:00:00Z" });
    let host = |name: &str, up: bool, pools: Value| {
        json!({ "name": name, "health": said(name, &health), "report": said(name, &report), "address": format!("https://{name}:7710"), "agent_id": "0a0a0a0a-0001-4002-8003-00000000000a",
                "initiator": format!("iqn.2026-11.dev.mooring:host.{name}"), "enrolment": said(name, &joined), "up": up,
                "why_down": if up { Value::Null } else { "connection refused".into() },
                "last_report": "2026-11-21T10:00:00Z", "pools": pools,
                "problems": if name == "storage" { json!(["volume x is in review"].into_iter().chain(orphan).collect::<Vec<_>>()) } else { json!([]) } })
    };
    let pool = json!([{ "name": "vg0", "total_bytes": 8_u64 << 30, "free_bytes": 6_u64 << 30 }]);
    json!({ "hosts": [host("storage", true, pool), host("host1", true, json!([])), host("host2", knobs.all_up, json!([]))] })
}

/// Renames or forgets a host: the loss, and the answer.
pub(crate) fn leaving(method: &str, name: &str, word: &str, body: &Value) -> (u16, Value) {
    let fault =
        |code: u16, kind: &str, text: &str| (code, json!({ kind: { "code": code, "message": text } }));
    if name == "nosuch" {
        return fault(404, "itemNotFound", "Host nosuch could not be found.");
    }
    if word == "rename" {
        return match body["name"].as_str() {
            Some("taken") => {
                fault(409, "conflictingRequest", "taken is the name of another host: choose another")
            }
            new => {
                (200, json!({ "renamed": name, "name": new, "warnings": ["write it in the configuration"] }))
            }
        };
    }
    let obstacle = "host host1 answers: a host that answers cannot be forgotten";
    let loss = json!({
        "name": name, "agent_id": "0a0a0a0a-0001-4002-8003-00000000000a", "last_report": "2026-11-21T10:00:00Z",
        "enrolled": true, "volumes": 2, "snapshots": 1, "gib": 30, "attachments": 3, "attached": 0,
        "projects": [{ "project": "lab", "volumes": 2, "snapshots": 1, "gib": 30, "attachments": 3 }],
        "obstacle": if name == "host1" { json!(obstacle) } else { Value::Null },
    });
    match (method, name) {
        ("GET", _) => (200, json!({ "loss": loss })),
        (_, "host1") => fault(409, "conflictingRequest", obstacle),
        _ if body["confirm"] != name => fault(400, "badRequest", "confirm: repeat the name of the host"),
        _ => (200, json!({ "forgotten": loss })),
    }
}

//! The snapshots of the controller in memory.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::State;
use super::api::{Answer, fault, not_found};

/// A snapshot is complete, or gone, after one look.
pub(super) fn snapshots(
    state: &mut State,
    method: &str,
    rest: &[&str],
    (body, query): (&Value, &HashMap<String, String>),
) -> Answer {
    let known = |state: &State, id: &str| state.snapshots.get(id).cloned();
    match (method, rest) {
        ("POST", []) => {
            let body = &body["snapshot"];
            let volume = state.volumes[body["volume_id"].as_str().unwrap()].clone();
            if volume["volume_type"] == "thick" {
                return fault(
                    400,
                    "badRequest",
                    "Invalid volume: it is thick: only thin volumes have snapshots",
                );
            }
            let id = format!("5a5a5a5a-0000-4000-8000-{:012}", state.snapshots.len() + 1);
            let made = json!({ "id": id, "name": body["name"], "description": null, "status": "creating",
                               "volume_id": body["volume_id"], "size": volume["size"],
                               "created_at": "2026-11-21T10:00:00.000000" });
            state.snapshots.insert(id, made.clone());
            (202, json!({ "snapshot": made }))
        }
        ("GET", ["detail"]) => {
            let is = |one: &Value, key: &str| query.get(key).is_none_or(|value| one[key] == value.as_str());
            let fits =
                |one: &&Value| is(one, "name") && is(one, "volume_id") && !query.contains_key("marker");
            let all: Vec<_> = state.snapshots.values().filter(fits).collect();
            (200, json!({ "snapshots": all }))
        }
        ("GET", [id]) => match known(state, id) {
            None => not_found("Snapshot", id),
            Some(was) => {
                match was["status"].as_str() {
                    Some("deleting") => drop(state.snapshots.remove(*id)),
                    Some("unmanaging") if state.knobs.volume_ends.is_none() => {
                        drop(state.snapshots.remove(*id));
                    }
                    Some("unmanaging") => {
                        let ends = state.knobs.volume_ends.clone();
                        state.snapshots.get_mut(*id).unwrap()["status"] = json!(ends);
                    }
                    Some(error) if error.starts_with("error") => {}
                    _ => state.snapshots.get_mut(*id).unwrap()["status"] = "available".into(),
                }
                (200, json!({ "snapshot": was }))
            }
        },
        ("DELETE", [id]) => match state.snapshots.get_mut(*id) {
            None => not_found("Snapshot", id),
            Some(snapshot) => {
                snapshot["status"] = "deleting".into();
                (202, Value::Null)
            }
        },
        ("POST", [id, "action"]) => match state.snapshots.get_mut(*id) {
            None => not_found("Snapshot", id),
            Some(snapshot) => {
                let (name, value) = body.as_object().unwrap().iter().next().unwrap();
                snapshot["status"] = match name.as_str() {
                    "os-force_delete" => "deleting".into(),
                    "os-unmanage" => "unmanaging".into(),
                    "os-reset_status" => value["status"].clone(),
                    _ => return fault(400, "badRequest", "There is no such action"),
                };
                (202, Value::Null)
            }
        },
        _ => not_found("Resource", "snapshots"),
    }
}

//! The fake's REST interface.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State as Shared};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::hosts::{hosts, leaving};
use super::snapshots::snapshots;
use super::{FakeController, State};

const STEPS: [&str; 4] = ["granted", "logged_in", "device_ready", "done"];

/// An answer: status and body.
pub(super) type Answer = (u16, Value);

pub(crate) fn router(fake: FakeController) -> Router {
    Router::new().fallback(answer).with_state(fake)
}

pub(super) fn fault(code: u16, name: &str, message: impl Into<String>) -> Answer {
    (code, json!({ name: { "code": code, "message": message.into() } }))
}

/// Half of a volume is zeroed, and one storage node is down.
fn jobs() -> Value {
    json!({
        "jobs": [{
            "volume_id": "b0c1d2e3-0001-4002-8003-0000000000aa", "volume_name": "data", "storage_host": "storage",
            "kind": "zero", "done_bytes": 1_u64 << 30, "total_bytes": 2_u64 << 30, "percent": 50.0,
            "bytes_per_second": 100 << 20, "seconds_left": 11, "resumed_bytes": 0, "limited": true,
            "since": "2026-11-21T10:00:00Z",
        }],
        "hosts": [
            { "name": "storage", "bytes_per_second": 100 << 20, "problem": null },
            { "name": "storage2", "bytes_per_second": null, "problem": "agent storage2 is down" },
        ],
    })
}

pub(super) fn not_found(kind: &str, what: &str) -> Answer {
    fault(404, "itemNotFound", format!("{kind} {what} could not be found."))
}

async fn answer(Shared(fake): Shared<FakeController>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let query: HashMap<String, String> = axum::extract::Query::try_from_uri(&parts.uri).unwrap().0;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    fake.change(|state| {
        state.requests.push(format!("{} {}", parts.method, parts.uri));
        if !body.is_null() {
            state.bodies.push(body.clone());
        }
    });
    let token = parts.headers.get("x-auth-token").map(|token| token.to_str().unwrap().to_owned());
    if let Some(early) = early(&fake, token).await {
        return early;
    }
    let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
    let (mut status, mut body) = route(&fake, &parts.method, &path, &query, &body).await;
    if parts.method != Method::GET && fake.state().knobs.lost > 0 {
        fake.state().knobs.lost -= 1;
        (status, body) = fault(504, "gatewayTimeout", "a gateway lost the answer");
    }
    if parts.method != Method::GET && status < 300 && fake.state().knobs.leaves {
        fake.state().knobs.unavailable = u32::MAX;
    }
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

/// Faults that precede any reading of the request.
async fn early(fake: &FakeController, token: Option<String>) -> Option<Response> {
    if fake.state().knobs.silent {
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    let mut state = fake.state();
    let respond =
        |(status, body): Answer| (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    if let Some((status, text)) = &state.knobs.raw {
        let location = [(header::LOCATION, "http://127.0.0.1:1/")];
        return Some((StatusCode::from_u16(*status).unwrap(), location, text.clone()).into_response());
    }
    if state.knobs.token.is_some() && state.knobs.token != token {
        return Some(respond(fault(
            401,
            "unauthorized",
            "The request you have made requires authentication.",
        )));
    }
    if state.knobs.unavailable > 0 {
        state.knobs.unavailable -= 1;
        return Some(respond(fault(503, "serviceUnavailable", "no agent has reported yet")));
    }
    None
}

async fn route(
    fake: &FakeController,
    method: &Method,
    path: &[&str],
    query: &HashMap<String, String>,
    body: &Value,
) -> Answer {
    match (method.as_str(), path) {
        ("POST", ["mooring", "v1", "attachments"]) => post_attachment(fake, &body["attachment"]).await,
        ("GET", ["mooring", "v1", "attachments", id]) => poll(fake, id, query).await,
        ("DELETE", ["mooring", "v1", "attachments", id]) => delete_attachment(fake, id, query).await,
        (method, ["mooring", "v1", "hosts", name, word @ ("rename" | "forget")]) => {
            leaving(method, name, word, body)
        }
        (method, path) => quick(&mut fake.state(), method, path, query, body),
    }
}

/// Sets the flag of an attachment, and the flag in force.
fn set_flag(state: &mut State, id: &str, flag: &str, body: &Value) -> Answer {
    let in_force = if flag == "mode" { "effective_mode" } else { "cache_in_force" };
    let Some(live) = state.attachments.get_mut(id) else { return not_found("Attachment", id) };
    (live[flag], live[in_force]) = (body[flag].clone(), body[flag].clone());
    (200, json!({ "attachment": live, "barrier": body["barrier"] == true }))
}

/// The fields of a volume that only Mooring's own API has. A requested isolation is in force at the
/// next look.
fn volume_state(state: &mut State, method: &str, id: &str) -> Answer {
    let body = || json!({ "state": "pending", "since": "2026-11-22T10:00:00Z" });
    match method {
        "PUT" => state.knobs.volume_cut = Some(body()),
        "DELETE" => state.knobs.volume_cut = None,
        _ => {
            if let Some(cut) = state.knobs.volume_cut.as_mut() {
                cut["state"] = json!("in_force");
            }
        }
    }
    let (fault, review, cut) = (&state.knobs.fault, state.knobs.in_review, &state.knobs.volume_cut);
    (200, json!({ "volume": { "id": id, "fault": fault, "in_review": review, "cut": cut } }))
}

/// Answers without a delay.
fn quick(
    state: &mut State,
    method: &str,
    path: &[&str],
    query: &HashMap<String, String>,
    body: &Value,
) -> Answer {
    match (method, path) {
        ("GET", ["mooring", "v1", "jobs"]) => (200, jobs()),
        ("PUT", ["mooring", "v1", "hosts", "storage", "job-limit"]) => (
            200,
            json!({ "host": { "name": "storage", "bytes_per_second": body["bytes_per_second"], "problem": null } }),
        ),
        ("GET", ["mooring", "v1", "hosts"]) => (200, hosts(&state.knobs)),
        ("GET", ["mooring", "v1", "hosts", "storage"]) => {
            (200, json!({ "host": hosts(&state.knobs)["hosts"][0] }))
        }
        ("POST", ["mooring", "v1", "hosts", "storage", word]) => {
            let mut host = hosts(&state.knobs)["hosts"][0].clone();
            host["disabled"] = json!(*word == "disable");
            host["disabled_reason"] = body["reason"].clone();
            host["drained"] = json!(*word == "drain");
            (200, json!({ "host": host }))
        }
        ("POST", ["mooring", "v1", "hosts", name, word @ ("fence" | "unfence")]) => fenced(name, word, body),
        ("GET", ["mooring", "v1", "fences"]) => {
            let (_, of) = fenced("proven", "fence", &json!({}));
            (200, json!({ "fences": [of["fence"]] }))
        }
        ("GET", ["mooring", "v1", "hosts", name])
        | ("PUT", ["mooring", "v1", "hosts", name, "job-limit"]) => not_found("Host", name),
        ("GET", ["v3", "scheduler-stats", "get_pools"]) if query.get("detail").is_some() => {
            let capabilities = json!({ "backend_state": "up", "total_capacity_gb": 8.0, "free_capacity_gb": 6.0,
                                       "allocated_capacity_gb": 2.0, "total_volumes": 2, "mooring_wipe": "discard" });
            (200, json!({ "pools": [{ "name": "storage@lvm#vg0", "capabilities": capabilities }] }))
        }
        ("GET", ["mooring", "v1", "attachments"]) => {
            let of =
                |live: &&Value| query.get("volume").is_none_or(|volume| live["volume_id"] == volume.as_str());
            (200, json!({ "attachments": state.attachments.values().filter(of).collect::<Vec<_>>() }))
        }
        ("GET", ["mooring", "v1", "attachments", id, "receipt"]) => state
            .receipts
            .get(*id)
            .map_or_else(|| not_found("Receipt", id), |receipt| (200, json!({ "receipt": receipt }))),
        ("GET", ["mooring", "v1", "attachments", id, "check"]) => super::checked(state, id),
        ("PUT", ["mooring", "v1", "attachments", id, flag]) => set_flag(state, id, flag, body),
        ("GET", ["mooring", "v1", "receipts"]) => (200, json!({ "receipts": records(state, query) })),
        (
            "GET" | "PUT" | "DELETE",
            ["mooring", "v1", "volumes", id] | ["mooring", "v1", "volumes", id, "cut"],
        ) => volume_state(state, method, id),
        ("POST", ["mooring", "v1", "volumes", _, "confirm-review"]) => {
            state.knobs.in_review = false;
            (200, json!({}))
        }
        ("POST", ["mooring", "v1", "volumes", id, "rotate-secrets"]) => super::rotated(state, id, body),
        ("POST", ["mooring", "v1", "epoch"]) => (200, json!({ "epoch": 7 })),
        ("GET", ["v3", "types"]) => {
            (200, json!({ "volume_types": state.types.values().collect::<Vec<_>>() }))
        }
        ("POST", ["v3", "types"]) => post_type(state, &body["volume_type"]),
        (method, ["v3", "types", id, rest @ ..]) => one_type(state, method, id, rest, body),
        (method, ["v3", "os-quota-sets", _]) => quotas(state, method, body),
        ("POST", ["v3", "volumes", id, "action"]) => act(state, id, body),
        ("GET", ["v3", "volumes", "detail"]) => list_volumes(state, query),
        ("POST", ["v3", "volumes"]) => post_volume(state, &body["volume"]),
        ("GET", ["v3", "volumes", id]) => looked(state, id),
        ("DELETE", ["v3", "volumes", id]) => delete_volume(state, id, query),
        ("GET", ["v3", "manageable_volumes", "detail"]) => manageable(query),
        ("POST", ["mooring", "v1", "volumes"]) => import(state, &body["volume"]),
        ("DELETE", ["mooring", "v1", "volumes", id, "extend"]) => cancel_extend(state, id),
        (method, ["mooring", "v1", "volumes", id, "export"]) => export(state, method, id, &body["export"]),
        ("POST", ["v3", "manageable_volumes"]) => manage(state, &body["volume"]),
        (method, ["v3", "snapshots", rest @ ..]) => snapshots(state, method, rest, (body, query)),
        _ => fault(404, "itemNotFound", "The resource could not be found."),
    }
}

fn post_type(state: &mut State, body: &Value) -> Answer {
    let name = body["name"].as_str().unwrap().to_owned();
    if state.types.contains_key(&name) {
        return fault(409, "conflictingRequest", format!("Volume Type {name} already exists."));
    }
    let kind = json!({ "id": format!("type-{name}"), "name": name, "is_public": body["os-volume-type-access:is_public"] != false, "description": body["description"],
                       "extra_specs": body["extra_specs"], "qos_specs_id": null });
    state.types.insert(name, kind.clone());
    (200, json!({ "volume_type": kind }))
}

fn one_type(state: &mut State, method: &str, id: &str, rest: &[&str], body: &Value) -> Answer {
    let Some(kind) = state.types.values_mut().find(|kind| kind["id"] == id) else {
        return not_found("Volume type", id);
    };
    match (method, rest) {
        ("GET", []) => (200, json!({ "volume_type": kind })),
        ("PUT", []) => {
            for (key, value) in body["volume_type"].as_object().unwrap() {
                kind[key] = value.clone();
            }
            (200, json!({ "volume_type": kind }))
        }
        ("DELETE", []) => {
            state.types.retain(|_, kind| kind["id"] != id);
            (202, Value::Null)
        }
        ("POST", ["extra_specs"]) => {
            for (key, value) in body["extra_specs"].as_object().unwrap() {
                kind["extra_specs"][key] = value.clone();
            }
            (200, body.clone())
        }
        ("DELETE", ["extra_specs", key]) => match kind["extra_specs"].as_object_mut().unwrap().remove(*key) {
            Some(_) => (202, Value::Null),
            None => not_found("Extra spec", key),
        },
        ("POST", ["action"]) => {
            let (action, value) = body.as_object().unwrap().iter().next().unwrap();
            let project = value["project"].as_str().unwrap().to_owned();
            match (action.as_str(), state.access.contains(&project)) {
                ("addProjectAccess", true) => fault(409, "conflictingRequest", "already exists"),
                ("addProjectAccess", false) => {
                    state.access.insert(project);
                    (202, Value::Null)
                }
                (_, true) => {
                    state.access.remove(&project);
                    (202, Value::Null)
                }
                (_, false) => not_found("Volume type access", &project),
            }
        }
        ("GET", ["os-volume-type-access"]) => {
            let entry = |project: &String| json!({ "volume_type_id": id, "project_id": project });
            (200, json!({ "volume_type_access": state.access.iter().map(entry).collect::<Vec<_>>() }))
        }
        _ => fault(404, "itemNotFound", "The resource could not be found."),
    }
}

fn quotas(state: &mut State, method: &str, body: &Value) -> Answer {
    match method {
        "PUT" => {
            for (key, limit) in body["quota_set"].as_object().unwrap() {
                if key == "nosuch" {
                    return fault(400, "badRequest", "Bad key(s) in quota set: nosuch");
                }
                state.quotas.insert(key.clone(), limit.as_i64().unwrap());
            }
        }
        "DELETE" => state.quotas.clear(),
        _ => {}
    }
    let mut set = json!({ "id": "acme" });
    for (key, default) in [("gigabytes", 1000), ("volumes", 10)] {
        let limit = state.quotas.get(key).copied().unwrap_or(default);
        set[key] = json!({ "limit": limit, "in_use": 3, "reserved": 0, "allocated": 0 });
    }
    (200, json!({ "quota_set": set }))
}

fn act(state: &mut State, id: &str, body: &Value) -> Answer {
    let Some(volume) = state.volumes.get_mut(id) else { return not_found("Volume", id) };
    let (action, value) = body.as_object().unwrap().iter().next().unwrap();
    match action.as_str() {
        "os-retype" if volume["volume_type"] == value["new_type"] => {
            return fault(400, "badRequest", "requested type has to be different");
        }
        "os-retype" => volume["volume_type"] = value["new_type"].clone(),
        "os-reset_status" => volume["status"] = value["status"].clone(),
        "os-extend"
            if volume["status"] == "extending" || volume["size"].as_u64() >= value["new_size"].as_u64() =>
        {
            return fault(400, "badRequest", "New size for extend must be greater than current size.");
        }
        "revert" if volume["status"] == "reverting" => return fault(409, "conflictingRequest", "reverting"),
        "revert" => (volume["status"], volume["looks"]) = ("reverting".into(), 0.into()),
        "os-unmanage" => (volume["status"], volume["looks"]) = ("unmanaging".into(), 0.into()),
        "os-extend" => {
            (volume["status"], volume["looks"]) = ("extending".into(), 0.into());
            volume["wanted"] = value["new_size"].clone();
        }
        _ => {}
    }
    (202, Value::Null)
}

fn cancel_extend(state: &mut State, id: &str) -> Answer {
    let grown = state.knobs.grown_already;
    let Some(volume) = state.volumes.get_mut(id) else { return not_found("Volume", id) };
    if !matches!(volume["status"].as_str(), Some("extending" | "error_extending")) {
        return fault(409, "conflictingRequest", format!("Volume {id} does not grow, or not any more"));
    }
    (volume["status"], volume["looks"]) = ("extending".into(), 0.into());
    if !grown {
        volume["wanted"] = volume["size"].clone();
    }
    (202, json!({ "volume": volume }))
}

fn post_volume(state: &mut State, body: &Value) -> Answer {
    let kind = body["volume_type"].as_str().unwrap_or("__DEFAULT__");
    let known = state.types.get(kind).cloned();
    if known.is_none() && kind != "__DEFAULT__" {
        return not_found("Volume type", kind);
    }
    // A key stands for itself.
    let asked = body["id"].as_str().or(body["request_key"].as_str());
    let id = if state.knobs.own_ids { "made-up" } else { asked.unwrap() };
    let shared = known.is_some_and(|known| known["extra_specs"]["multiattach"] == "<is> True");
    let of = |snapshot: &Value| Some(state.snapshots.get(snapshot.as_str()?)?["size"].clone());
    let size = body.get("size").cloned().or_else(|| of(&body["snapshot_id"])).unwrap_or_else(|| json!(1));
    let volume = json!({ "id": id, "name": body["name"], "description": null, "status": "creating", "size": size,
                         "snapshot_id": body["snapshot_id"], "source_volid": body["source_volid"],
                         "volume_type": kind, "multiattach": shared, "attachments": [], "metadata": {},
                         "os-vol-host-attr:host": "storage@lvm#vg0", "created_at": "2026-11-21T10:00:00.000000", "looks": 0 });
    let volume = state.volumes.entry(id.to_owned()).or_insert(volume).clone();
    (202, json!({ "volume": volume }))
}

fn looked(state: &mut State, id: &str) -> Answer {
    look(state, id);
    let found = state.volumes.get(id);
    found.map_or_else(|| not_found("Volume", id), |volume| (200, json!({ "volume": volume })))
}

/// A volume's work progresses with each look.
fn look(state: &mut State, id: &str) {
    let (looks, ends) = (state.knobs.looks, state.knobs.volume_ends.clone());
    let Some(volume) = state.volumes.get_mut(id) else { return };
    let seen = volume["looks"].as_u64().unwrap();
    if seen < u64::from(looks) {
        volume["looks"] = (seen + 1).into();
        return;
    }
    match volume["status"].as_str().unwrap() {
        "creating" | "managing" | "reverting" => {
            volume["status"] = ends.as_deref().unwrap_or("available").into();
        }
        "extending" if ends.is_some() => volume["status"] = "error_extending".into(),
        "extending" => {
            (volume["status"], volume["size"]) = ("available".into(), volume["wanted"].clone());
        }
        "deleting" if ends.is_some() => volume["status"] = "error_deleting".into(),
        "unmanaging" if ends.is_some() => volume["status"] = "error_unmanaging".into(),
        "deleting" | "unmanaging" => drop(state.volumes.remove(id)),
        _ => {}
    }
}

/// LVs of the storage node, one to a page.
fn manageable(query: &HashMap<String, String>) -> Answer {
    if query["host"] != "storage@lvm" {
        return not_found("Service", &query["host"]);
    }
    let lv = |name: &str, gib: u64, why: Value, id: Value| {
        json!({ "reference": { "source-name": name }, "size": gib, "safe_to_manage": why.is_null(), "reason_not_safe": why,
                "cinder_id": id, "extra_info": { "provisioning": "thick", "source-id": "x" } })
    };
    let all = [
        lv("vg0/data", 2, Value::Null, Value::Null),
        lv(
            "vg0/mooring-x",
            1,
            "it is a volume already".into(),
            "5a5a5a5a-0000-4000-8000-000000000009".into(),
        ),
        lv("vg0/mounted", 1, "it is in use on this host".into(), Value::Null),
    ];
    let behind = |lv: &&Value| {
        query.get("marker").is_none_or(|marker| lv["reference"]["source-name"].as_str() > Some(marker))
    };
    (200, json!({ "manageable-volumes": all.iter().filter(behind).take(1).collect::<Vec<_>>() }))
}

fn manage(state: &mut State, body: &Value) -> Answer {
    if body["ref"]["source-name"] != "vg0/data" {
        return fault(400, "badRequest", "Manage existing volume failed: it is in use on this host");
    }
    let id = format!("6b6b6b6b-0000-4000-8000-{:012}", state.volumes.len() + 1);
    let new = json!({ "id": id, "name": body["name"], "size": 2 });
    let (code, _) = post_volume(state, &new);
    let volume = state.volumes.get_mut(&id).unwrap();
    (volume["status"], volume["metadata"]) = ("managing".into(), body["metadata"].clone());
    (code, json!({ "volume": volume }))
}

fn import(state: &mut State, body: &Value) -> Answer {
    if body["image"]["host"] != "storage" {
        return not_found("Host", body["image"]["host"].as_str().unwrap_or_default());
    }
    let (code, made) = post_volume(state, body);
    let id = made["volume"]["id"].as_str().unwrap_or_default().to_owned();
    if let Some(volume) = state.volumes.get_mut(&id) {
        volume["metadata"] = body["metadata"].clone();
    }
    (code, json!({ "volume": { "id": id, "status": "creating" } }))
}

/// The knob for volumes decides its end. It progresses with each look.
fn export(state: &mut State, method: &str, id: &str, body: &Value) -> Answer {
    let (looks, ends) = (state.knobs.looks, state.knobs.volume_ends.clone());
    let Some(volume) = state.volumes.get_mut(id) else { return not_found("Volume", id) };
    match method {
        "POST" if volume["export"]["status"] == "exporting" && volume["export"]["id"] != body["id"] => {
            return fault(
                409,
                "conflictingRequest",
                "Volume must be available to be exported, and it is uploading.",
            );
        }
        "POST" if volume["export"]["id"] != body["id"] => {
            volume["export"] = json!({ "id": body["id"], "storage_host": "storage", "image": body["image"],
                                       "status": "exporting", "why": null, "looks": 0 });
        }
        "DELETE" => {
            (volume["export"]["status"], volume["export"]["why"]) =
                ("cancelled".into(), "it was cancelled".into());
        }
        _ if volume["export"]["status"] == "exporting" => {
            let seen = volume["export"]["looks"].as_u64().unwrap();
            volume["export"]["looks"] = (seen + 1).into();
            if seen >= u64::from(looks) {
                let why = if ends.is_some() { "new is there already".into() } else { Value::Null };
                (volume["export"]["status"], volume["export"]["why"]) =
                    (ends.as_deref().unwrap_or("done").into(), why);
            }
        }
        _ => {}
    }
    if volume["export"].is_null() {
        not_found("Export", id)
    } else {
        (202, json!({ "export": volume["export"] }))
    }
}

fn list_volumes(state: &State, query: &HashMap<String, String>) -> Answer {
    let fits = |volume: &&Value| query.get("name").is_none_or(|name| volume["name"] == name.as_str());
    let after =
        |volume: &&Value| query.get("marker").is_none_or(|marker| volume["id"].as_str() > Some(marker));
    let all: Vec<_> = state.volumes.values().filter(fits).filter(after).collect();
    let page = state.knobs.page.unwrap_or(1000);
    let links =
        if all.len() > page { json!([{ "rel": "next", "href": "http://elsewhere/" }]) } else { json!([]) };
    let page: Vec<_> = all.into_iter().take(page).collect();
    (200, json!({ "volumes": page, "volumes_links": links }))
}

fn delete_volume(state: &mut State, id: &str, query: &HashMap<String, String>) -> Answer {
    let at_work = state.volumes.get(id).is_some_and(|volume| volume["status"] == "creating");
    let forced = query.get("force").is_some_and(|force| force == "true");
    let refusal = |why: &str| {
        fault(400, "badRequest", format!("Invalid volume: Volume status must be available, and it is {why}."))
    };
    if state.attachments.values().any(|live| live["volume_id"] == id) {
        return refusal("attached");
    }
    if at_work && !forced {
        return refusal("creating");
    }
    match state.volumes.get_mut(id) {
        None => not_found("Volume", id),
        Some(volume) => {
            (volume["status"], volume["looks"]) = ("deleting".into(), 0.into());
            (202, Value::Null)
        }
    }
}

async fn post_attachment(fake: &FakeController, body: &Value) -> Answer {
    let (id, made) = make_attachment(&mut fake.state(), body);
    fake.changed();
    while fake.state().knobs.hold_post {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = fake.state().attachments.get(&id).cloned();
    made.unwrap_or_else(|| (202, json!({ "attachment": answer })))
}

/// Makes an attachment. Returns its id, and an answer if it is refused.
fn make_attachment(state: &mut State, body: &Value) -> (String, Option<Answer>) {
    let text = |key: &str| body[key].as_str().unwrap().to_owned();
    let (id, volume, host) = (text("id"), text("volume"), text("host"));
    if state.attachments.contains_key(&id) {
        return (id, None);
    }
    let Some(known) = state.volumes.get(&volume).cloned() else {
        return (id, Some(not_found("Volume", &volume)));
    };
    if !["host1", "host2"].contains(&host.as_str()) {
        return (id, Some(not_found("Host", &host)));
    }
    if known["multiattach"] == false
        && state.attachments.values().any(|live| live["volume_id"] == volume.as_str())
    {
        return (
            id,
            Some(fault(400, "badRequest", "Invalid volume: the volume is in use and not multiattach.")),
        );
    }
    let live = json!({
        "id": id, "volume_id": volume, "volume_name": known["name"], "host": host, "mode": body["mode"],
        "effective_mode": null, "status": "attaching", "native": true, "initiator": format!("iqn.2026-11.dev.mooring:host.id-of-{host}"),
        "session": null, "session_addresses": [], "host_phase": null, "device_path": null, "disk": null, "problems": [],
        "steps_ms": {}, "fault": null, "created_at": "2026-11-21T10:00:00Z", "attached_at": null, "revision": 1
    });
    state.attachments.insert(id.clone(), live);
    (id, None)
}

/// Makes one step of an attach. `false`: it has stopped.
fn step(state: &mut State, id: &str) -> bool {
    let (stop, problems) = (state.knobs.stop_after.unwrap_or(STEPS.len()), state.knobs.problems.clone());
    let attach_fault = state.knobs.attach_fault.clone();
    let Some(live) = state.attachments.get_mut(id).filter(|live| live["status"] == "attaching") else {
        return false;
    };
    let done = live["steps_ms"].as_object().unwrap().len();
    let revision = live["revision"].as_u64().unwrap() + 1;
    if done >= stop {
        let news = live["problems"] != json!(problems) || attach_fault.is_some();
        live["problems"] = json!(problems);
        if let Some(text) = attach_fault {
            (live["status"], live["fault"]) = ("error_attaching".into(), text.into());
        }
        live["revision"] = (if news { revision } else { revision - 1 }).into();
        return news;
    }
    live["revision"] = revision.into();
    live["steps_ms"][STEPS[done]] = json!((done + 1) * 12);
    match STEPS[done] {
        "granted" => live["effective_mode"] = live["mode"].clone(),
        "logged_in" => {
            (live["session"], live["host_phase"]) = (true.into(), "connecting".into());
            live["session_addresses"] = json!(["10.10.0.11"]);
            live["sessions"] = json!([{
                "id": 4, "isid": "801234567890", "addresses": ["10.10.0.11"], "state": "LOGGED_IN", "in_flight": 2,
                "since": "2026-11-21T10:00:00.500000Z"
            }]);
            live["storage_host"] = "storage1".into();
            live["counters"] = json!({ "commands": 77, "read_mib": 5, "written_mib": 6 });
            live["last_activity"] = "2026-11-21T10:00:07.000000Z".into();
            live["looked_at"] = "2026-11-21T10:00:08.000000Z".into();
        }
        "device_ready" => {
            (live["host_phase"], live["disk"]) = ("ready".into(), "/dev/sda".into());
            live["device_path"] = format!("/run/mooring/attachments/{id}").into();
        }
        _ => (live["status"], live["attached_at"]) = ("attached".into(), "2026-11-21T10:00:01Z".into()),
    }
    true
}

async fn poll(fake: &FakeController, id: &str, query: &HashMap<String, String>) -> Answer {
    let number = |key: &str| query.get(key).map(|text| text.parse::<u64>().unwrap());
    let until = Instant::now() + Duration::from_millis(number("wait_ms").unwrap_or(0));
    loop {
        {
            let mut state = fake.state();
            if number("after").is_some() {
                step(&mut state, id);
            }
            let Some(live) = state.attachments.get(id) else { return not_found("Attachment", id) };
            if live["revision"].as_u64() != number("after") || Instant::now() >= until {
                return (200, json!({ "attachment": live }));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn delete_attachment(fake: &FakeController, id: &str, query: &HashMap<String, String>) -> Answer {
    let force = query.get("force").is_some_and(|force| force == "true");
    let wait = query.get("wait_ms").map_or(0, |text| text.parse().unwrap());
    {
        let mut state = fake.state();
        if !state.attachments.contains_key(id) {
            let receipt = state.receipts.get(id).map(|receipt| (200, json!({ "receipt": receipt })));
            return receipt.unwrap_or_else(|| not_found("Attachment", id));
        }
        if let Some(holders) = state.knobs.holders.clone().filter(|_| !force) {
            return fault(409, "conflictingRequest", format!("host1 holds /dev/sda open: {holders}"));
        }
        state.attachments.get_mut(id).unwrap()["status"] = "detaching".into();
        if state.knobs.pending == 0 {
            return (200, json!({ "receipt": receipt(&mut state, id, force) }));
        }
        state.knobs.pending -= 1;
    }
    tokio::time::sleep(Duration::from_millis(wait).min(Duration::from_millis(200))).await;
    fault(504, "gatewayTimeout", "host1 has not let go yet")
}

/// The records of detaches that have a receipt.
fn records(state: &State, query: &HashMap<String, String>) -> Vec<Value> {
    let of = |key: &str, value: &Value| query.get(key).is_none_or(|asked| value == asked.as_str());
    let meant =
        |receipt: &&Value| of("volume", &receipt["volume_id"]) && of("attachment", &receipt["attachment_id"]);
    let record = |receipt: &Value| {
        let gone = if receipt["ended"].is_null() { Value::Null } else { "2026-11-21T10:00:01Z".into() };
        json!({ "attachment_id": receipt["attachment_id"], "volume_id": receipt["volume_id"], "host": "host1",
                "forced": true, "user_id": "alice", "request_id": "req-1", "detached_at": gone, "receipt": receipt })
    };
    state.receipts.values().filter(meant).map(record).collect()
}

fn receipt(state: &mut State, id: &str, force: bool) -> Value {
    let first = state.knobs.unproven_first > 0;
    state.knobs.unproven_first = state.knobs.unproven_first.saturating_sub(1);
    let unproven = state.knobs.unproven.or(first.then_some(8));
    let live = state.attachments[id].clone();
    if unproven.is_none() {
        state.attachments.remove(id);
    }
    if live["effective_mode"].is_null() {
        return Value::Null;
    }
    let cut = json!([{ "initiator": live["initiator"], "isid": "80aabbccddee", "addresses": ["10.10.0.11"], "in_flight": 8 }]);
    let receipt = json!({ "attachment_id": id, "volume_id": live["volume_id"], "initiator": live["initiator"], "attachment_ids": [id],
            "generation": "1.9", "revoked": "nexus", "sessions_cut": if force { cut } else { json!([]) },
            "proof": state.knobs.proof.unwrap_or(if unproven.is_some() { "unproven" } else { "proven" }),
            "may_still_land": unproven.unwrap_or(0),
            "began": "2026-11-21T10:00:00Z",
            "ended": if unproven.is_some() { Value::Null } else { "2026-11-21T10:00:00.012345Z".into() } });
    state.receipts.insert(id.to_owned(), receipt.clone());
    receipt
}

/// A fence whose state is the host's name.
fn fenced(name: &str, word: &str, body: &Value) -> Answer {
    let id = "b0c1d2e3-0001-4002-8003-00000000000a";
    let receipt = |proof: &str, landing: Option<u32>| {
        json!({ "initiator": "iqn.2026-01.lab:h", "revoked": "nexus", "proof": proof, "may_still_land": landing,
                "sessions_cut": [], "attachment_ids": [id], "volume_id": id })
    };
    let (state, receipt, waits_for) = match name {
        // For some of these, all parts are cut, and that is not everything.
        "proven" | "silent" | "besides" | "claimed" => ("cut", receipt("proven", Some(0)), Value::Null),
        "unproven" => ("unproven", receipt("unproven", Some(3)), Value::Null),
        "uncounted" => ("unproven", receipt("unproven", None), Value::Null),
        "away" => ("waiting", Value::Null, json!("agent storage is down")),
        // Words of a later controller, which must not count for more than they are.
        "strange" => ("cut", receipt("nearly", Some(0)), Value::Null),
        _ => return not_found("Host", name),
    };
    if word == "unfence" && name != "proven" && body["anyway"] != true {
        return (
            409,
            json!({ "conflictingRequest": { "code": 409, "message": "1 of 1 attachments is not proven" } }),
        );
    }
    let mut part = json!({ "attachment_id": id, "volume_id": id, "state": state, "receipt": receipt, "waits_for": waits_for });
    // An earlier controller does not send the field.
    if name != "proven" {
        part["warnings"] = json!(["iqn.2026-01.lab:h held the volume's reservation (write exclusive)"]);
    }
    let unknown = match name {
        "silent" => json!([{ "node": "storage2", "why": "agent storage2 is down" }]),
        _ => json!([]),
    };
    let also = body["also"].as_array().map_or(0, Vec::len);
    let disputed = match name {
        "claimed" if also == 0 => json!([{ "initiator": "iqn.2026-01.lab:x", "hosts": [],
                              "attachments": [{ "attachment_id": id, "volume_id": id }] }]),
        // Known as another host's.
        "proven" => json!([{ "initiator": "iqn.2026-01.lab:b", "hosts": ["hostb"],
                             "attachments": [{ "attachment_id": id, "volume_id": id }] }]),
        _ => json!([]),
    };
    let exports = match name {
        "besides" => {
            json!([{ "node": "storage", "volume_id": id, "initiator": "iqn.2026-01.lab:h", "state": "waiting",
                              "receipt": null, "waits_for": "agent storage is working on it" }])
        }
        _ => json!([]),
    };
    let lifted = if word == "unfence" { json!("2026-11-21T10:00:00.000000Z") } else { Value::Null };
    let good = name == "proven" || name == "strange" || (name == "claimed" && also > 0);
    let proof = if good { "proven" } else { "unproven" };
    (
        200,
        json!({ "fence": {
        "id": id, "host": name, "initiators": ["iqn.2026-01.lab:h"], "reason": body["reason"], "user_id": "op",
        "fenced_at": "2026-11-21T09:00:00.000000Z", "lifted_at": lifted, "proof": proof, "parts": [part],
        "exports": exports, "unknown": unknown, "disputed": disputed,
    } }),
    )
}

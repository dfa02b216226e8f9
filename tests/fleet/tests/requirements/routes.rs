//! Every route of both APIs, each called by a member while the policies of its row are closed to
//! members. The rows stand in the API's description: a route without one, or one whose row names a
//! policy that it does not ask, fails here.

use std::collections::BTreeSet;

use mooring_fleet::{Client, Fleet, PROJECT_A, until};
use serde_json::{Value, json};

use crate::NOTHING;

/// Policies that make an object visible at all. Later checks are reached only while these are open.
const SEEING: [&str; 4] =
    ["volume:get", "volume:get_snapshot", "mooring:attachment_get", "volume_extension:type_get"];

/// One call of a route, or of an action.
struct Call {
    name: String,
    method: String,
    path: String,
    body: Option<Value>,
    /// The policies of its row; empty: it is open.
    policies: Vec<String>,
    /// `true`: callers who may not see the object get a 404.
    hidden: bool,
}

/// Objects of the routes, all in project A.
struct Objects {
    volume: String,
    snapshot: String,
    attachment: String,
    detached: String,
    kind: String,
    connector: Value,
}

impl Objects {
    fn of(fleet: &Fleet) -> Self {
        let admin = fleet.admin().at("3.66");
        admin.volume_type("thin", &[("multiattach", "<is> True"), ("provisioning:type", "thin")]);
        let volume = admin.volume(Some("thin"), 1);
        let pairs = json!({ "metadata": { "k": "v" } });
        admin.post(&format!("/volumes/{volume}/metadata"), &pairs).expect(200);
        let taken = admin.post("/snapshots", &json!({ "snapshot": { "volume_id": volume } })).expect(202);
        let snapshot = taken["snapshot"]["id"].as_str().unwrap().to_owned();
        until("the snapshot", || {
            let seen = admin.get(&format!("/snapshots/{snapshot}")).expect(200);
            if seen["snapshot"]["status"] == "available" { Ok(()) } else { Err(seen.to_string()) }
        });
        admin.post(&format!("/snapshots/{snapshot}/metadata"), &pairs).expect(200);
        let attachment = admin.attach(&volume, &fleet.stock("node1"), None).id;
        let detached = admin.attach(&volume, &fleet.stock("node2"), None).id;
        admin.detach(&detached);
        let connector = fleet.stock("node3").connector();
        let types = admin.get("/types").expect(200);
        let thin = types["volume_types"].as_array().unwrap().iter().find(|kind| kind["name"] == "thin");
        let kind = thin.unwrap()["id"].as_str().unwrap().to_owned();
        Self { volume, snapshot, attachment, detached, kind, connector }
    }

    /// A path of the description with values for its parameters.
    fn path(&self, template: &str) -> String {
        let below = template.strip_prefix("/v3/{project_id}").unwrap_or(template);
        let collection = below.trim_start_matches("/mooring/v1").split('/').nth(1).unwrap_or_default();
        let id = match collection {
            "volumes" => &self.volume,
            "snapshots" => &self.snapshot,
            "attachments" if below.ends_with("/receipt") => &self.detached,
            "attachments" => &self.attachment,
            "types" => &self.kind,
            _ => NOTHING,
        };
        let key = if collection == "types" { "multiattach" } else { "k" };
        let filled = below
            .replace("{id}", id)
            .replace("{key}", key)
            .replace("{project}", PROJECT_A)
            .replace("{class}", "default")
            .replace("{host}", "s1@lvm")
            .replace("{name}", if below.starts_with("/mooring") { "h1" } else { "s1@lvm" })
            .replace("{alias}", "os-hosts");
        let asks_host = collection.ends_with("manageable_volumes") || collection == "os-volume-manage";
        if asks_host { format!("{filled}?host=s1@lvm%23vg0") } else { filled }
    }

    /// A correct body.
    fn body(&self, operation: &str) -> Value {
        let Self { volume, connector, .. } = self;
        match operation {
            "createVolume" => json!({ "volume": { "size": 1 } }),
            "updateVolume" => json!({ "volume": { "name": "x" } }),
            "mergeMetadata" | "replaceMetadata" | "mergeSnapshotMetadata" | "replaceSnapshotMetadata" => {
                json!({ "metadata": { "a": "b" } })
            }
            "setMetadata" | "setSnapshotMetadata" => json!({ "meta": { "k": "other" } }),
            "createAttachment" => json!({ "attachment": { "volume_uuid": volume } }),
            "connectAttachment" => json!({ "attachment": { "connector": connector } }),
            "actOnAttachment" => json!({ "os-complete": null }),
            "createType" | "updateType" => json!({ "volume_type": { "name": "x" } }),
            "setExtraSpecs" => json!({ "extra_specs": { "a": "b" } }),
            "setExtraSpec" => json!({ "multiattach": "<is> True" }),
            "actOnType" => json!({ "addProjectAccess": { "project": "p" } }),
            "setProjectDefault" => json!({ "default_type": { "volume_type": "thin" } }),
            "setQuotas" => json!({ "quota_set": { "volumes": 5 } }),
            "setQuotaClass" => json!({ "quota_class_set": { "volumes": 5 } }),
            "createSnapshot" => json!({ "snapshot": { "volume_id": volume } }),
            "updateSnapshot" => json!({ "snapshot": { "name": "x" } }),
            "manageVolume" | "manageVolumeOlder" => {
                json!({ "volume": { "host": "s1@lvm#vg0", "ref": { "source-name": "vg0/x" } } })
            }
            "disableServiceFor" => {
                json!({ "host": "s1@lvm", "binary": "cinder-volume", "disabled_reason": "x" })
            }
            "enableService" | "disableService" => json!({ "host": "s1@lvm", "binary": "cinder-volume" }),
            "freezeService" | "thawService" | "failOver" | "failHostOver" => json!({ "host": "s1@lvm" }),
            "limitJobs" => json!({ "bytes_per_second": 1_000_000 }),
            "renameHost" => json!({ "name": "x" }),
            "forgetHost" => json!({ "confirm": "s1" }),
            "attach" => json!({ "attachment": { "volume": volume, "host": "h1", "mode": "rw" } }),
            "setMode" => json!({ "mode": "ro" }),
            "setCache" => json!({ "cache": "off" }),
            "importVolume" => {
                json!({ "volume": { "size": 1, "image": { "host": "s1", "name": "a.raw", "format": "raw" } } })
            }
            "exportVolume" => json!({ "export": { "image": { "name": "a.raw", "format": "raw" } } }),
            "changeReservations" => json!({ "clear": true }),
            _ => json!({}),
        }
    }

    /// The value under an action's name.
    fn action(&self, name: &str) -> Value {
        match name {
            "os-attach" => json!({ "host_name": "h", "mountpoint": "/dev/vdb" }),
            "os-detach" | "os-force_detach" => json!({ "attachment_id": self.attachment }),
            "os-initialize_connection" | "os-terminate_connection" => json!({ "connector": self.connector }),
            "os-retype" => json!({ "new_type": "__DEFAULT__" }),
            "os-extend" => json!({ "new_size": 2 }),
            "os-reset_status" => json!({ "status": "error" }),
            "os-set_bootable" => json!({ "bootable": true }),
            "os-update_snapshot_status" => json!({ "status": "creating" }),
            "os-update_readonly_flag" => json!({ "readonly": true }),
            "revert" => json!({ "snapshot_id": self.snapshot }),
            _ => json!({}),
        }
    }
}

/// The policies of a row, and whether it hides. A row with neither policies nor a reason for being
/// open is an error.
#[track_caller]
fn row(name: &str, described: &Value) -> (Vec<String>, bool) {
    let policies: Vec<_> = described["x-mooring-policies"].as_array().into_iter().flatten().collect();
    let open = described["x-mooring-open"].is_string();
    assert!(policies.is_empty() == open, "{name} has no policy row");
    let policies = policies.into_iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    (policies, described["x-mooring-hidden"] == true)
}

/// Every route of the description, and every action on volumes.
fn calls(document: &Value, of: &Objects) -> Vec<Call> {
    let mut all = Vec::new();
    for (template, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let name = described["operationId"].as_str().unwrap().to_owned();
            let (method, path) = (method.to_ascii_uppercase(), of.path(template));
            for (action, row_of) in described["x-mooring-actions"].as_object().into_iter().flatten() {
                let (policies, hidden) = row(action, row_of);
                let body = Some(json!({ action: of.action(action) }));
                let (name, method, path) = (action.clone(), method.clone(), path.clone());
                all.push(Call { name, method, path, body, policies, hidden });
            }
            let (policies, hidden) = row(&name, described);
            if described["x-mooring-actions"].is_object() || described["security"].is_array() {
                continue;
            }
            let body = described["requestBody"].is_object().then(|| of.body(&name));
            all.push(Call { name, method, path, body, policies, hidden });
        }
    }
    all
}

/// Lines of a policy file that close these policies to everybody but admins.
fn closed<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let lines: Vec<_> = names.into_iter().map(|name| format!("\"{name}\": \"role:admin\"")).collect();
    lines.join("\n")
}

fn fleet(policies: &str) -> Fleet {
    Fleet::builder().storage_with_thin("s1", &[("vg0", 100)], 60).host("h1").policies(policies).start()
}

/// Calls everything that these policies decide, as a member to whom they are closed. Returns the
/// names of the calls, all of which were refused.
fn refuses(document: &Value, closes: &BTreeSet<String>) -> BTreeSet<String> {
    let fleet = fleet(&closed(closes));
    let of = Objects::of(&fleet);
    let (admin, member): (Client, Client) = (fleet.admin().at("latest"), fleet.member().at("latest"));
    let before = (admin.show(&of.volume), fleet.storage("s1").tree());
    let mut asked = BTreeSet::new();
    for call in calls(document, &of) {
        let Some(first) = call.policies.first() else { continue };
        if !closes.contains(first) {
            continue;
        }
        let answer = member.send(&call.method, &call.path, call.body.as_ref());
        let text = answer.body.to_string();
        let told = format!("{} ({}): {} {text}", call.name, answer.asked, answer.status);
        if call.hidden {
            assert_eq!(answer.status, 404, "{told}");
            let seen = admin.send(&call.method, &call.path, call.body.as_ref());
            assert_ne!(seen.status, 404, "{}: an admin sees it: {}", call.name, seen.body);
        } else {
            let named = |policy: &String| text.contains(&format!("Policy doesn't allow {policy} to be"));
            assert!(answer.status == 403 && call.policies.iter().any(named), "{told}");
        }
        asked.insert(call.name);
    }
    assert_eq!((admin.show(&of.volume), fleet.storage("s1").tree()), before);
    asked
}

#[test]
fn every_route_is_closed_by_the_policies_of_its_row() {
    let open = fleet("");
    let document = open.admin().get("/mooring/v1/openapi.json").expect(200);
    let of = Objects::of(&open);
    let all = calls(&document, &of);
    let policies: BTreeSet<_> = all.iter().flat_map(|call| call.policies.clone()).collect();
    assert!(all.len() > 130 && policies.len() > 70, "{} calls, {} policies", all.len(), policies.len());
    let seeing: BTreeSet<_> = SEEING.map(str::to_owned).into();
    let rest: BTreeSet<_> = policies.difference(&seeing).cloned().collect();
    let mut asked = refuses(&document, &rest);
    asked.append(&mut refuses(&document, &seeing));
    let rows: BTreeSet<_> =
        all.iter().filter(|call| !call.policies.is_empty()).map(|call| call.name.clone()).collect();
    assert_eq!(asked, rows);
    // Control: open routes refuse nobody, and at the defaults a member reads what these routes hid.
    let member = open.member().at("latest");
    for call in &all {
        let reads = call.method == "GET" && (call.policies.is_empty() || call.hidden);
        if reads {
            let answer = member.send(&call.method, &call.path, call.body.as_ref());
            assert_ne!(answer.status, 403, "{}: {}", call.name, answer.body);
            assert!(!call.hidden || answer.status == 200, "{}: {}", call.name, answer.body);
        }
    }
}

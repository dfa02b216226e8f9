//! Fields of all calls that write, in one table: each is applied, refused, or left out for a reason
//! that stands here.
//!
//! The table has each field of the API's description, and no other. Each line is tried. A field
//! that is applied reaches the control plane. One that is refused is a client's error. One that is
//! left out changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use mooring_controller::domain::{AttachAction, FencePart, FenceState};
use mooring_model::{AttachmentId, VolumeId};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Api, DEAD, INSTANCE, PROJECT};
use crate::fake::JOIN_TOKEN;
use crate::openapi::{schema_named, taking};

/// The fate of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The control plane gets the field.
    Applied,
    /// The call is refused because of the field.
    Refused,
    /// The field has no effect, for this reason.
    LeftOut(&'static str),
}

use Fate::{Applied, LeftOut, Refused};

/// A field of a call, and a value that differs from the base's.
type Line = (&'static str, Fate, Value);

/// A call: its operation, a correct body, and its fields. Words that begin with `$` stand for ids
/// of the site.
struct Call {
    operation: &'static str,
    base: Value,
    lines: Vec<Line>,
}

fn call<const N: usize>(operation: &'static str, base: Value, lines: [Line; N]) -> Call {
    Call { operation, base, lines: lines.into() }
}

const OLD_NAME: &str =
    "the newer key of the same field counts where both are said, as in the Block Storage API";

/// Fields of a name and a description under their two keys.
fn labels(inside: &'static str) -> Vec<Line> {
    let names: [&'static str; 4] = match inside {
        "volume" => {
            ["volume.name", "volume.display_name", "volume.description", "volume.display_description"]
        }
        _ => {
            ["snapshot.name", "snapshot.display_name", "snapshot.description", "snapshot.display_description"]
        }
    };
    let fates = [Applied, LeftOut(OLD_NAME), Applied, LeftOut(OLD_NAME)];
    names.into_iter().zip(fates).map(|(name, fate)| (name, fate, json!("other"))).collect()
}

fn managed(operation: &'static str) -> Call {
    let base = json!({ "volume": { "ref": "vg0/lv", "host": "storage1@lvm#vg0" } });
    let lines = [
        ("volume.ref.source-name", Applied, json!("vg0/other")),
        ("volume.ref.source-id", Applied, json!("other")),
        ("volume.host", Applied, json!("storage2@lvm#vg0")),
        ("volume.cluster", Refused, json!("c")),
        ("volume.name", Applied, json!("other")),
        ("volume.description", Applied, json!("other")),
        ("volume.volume_type", Applied, json!("t")),
        ("volume.availability_zone", Applied, json!("nova")),
        ("volume.bootable", Applied, json!(true)),
        ("volume.metadata", Applied, json!({ "k": "v" })),
    ];
    call(operation, base, lines)
}

fn volumes() -> Vec<Call> {
    let mut create = call(
        "createVolume",
        json!({ "volume": { "size": 1, "name": "n", "description": "d" } }),
        [
            ("volume.id", Applied, json!(INSTANCE)),
            ("volume.request_key", Applied, json!("k")),
            ("volume.size", Applied, json!(2)),
            ("volume.volume_type", Applied, json!("t")),
            ("volume.availability_zone", Applied, json!("nova")),
            ("volume.metadata", Applied, json!({ "k": "v" })),
            ("volume.multiattach", Refused, json!(true)),
            ("volume.snapshot_id", Applied, json!("$snapshot")),
            ("volume.source_volid", Applied, json!("$volume")),
            ("volume.imageRef", Refused, json!(DEAD)),
            ("volume.image_id", Refused, json!(DEAD)),
            ("volume.backup_id", Refused, json!(DEAD)),
            ("volume.group_id", Refused, json!(DEAD)),
            ("volume.consistencygroup_id", Refused, json!(DEAD)),
        ],
    );
    create.lines.extend(labels("volume"));
    let mut update = call(
        "updateVolume",
        json!({ "volume": { "name": "n", "description": "d" } }),
        [("volume.metadata", Applied, json!({ "k": "v" }))],
    );
    update.lines.extend(labels("volume"));
    let metadata = |operation| {
        call(operation, json!({ "metadata": {} }), [("metadata", Applied, json!({ "k": "other" }))])
    };
    let meta = |operation| {
        call(operation, json!({ "meta": { "k": "v" } }), [("meta", Applied, json!({ "k": "other" }))])
    };
    vec![
        create,
        update,
        managed("manageVolume"),
        managed("manageVolumeOlder"),
        metadata("mergeMetadata"),
        metadata("replaceMetadata"),
        meta("setMetadata"),
    ]
}

fn own_volumes() -> Vec<Call> {
    let import = call(
        "importVolume",
        json!({ "volume": { "size": 1, "image": { "host": "storage1", "name": "i", "format": "raw" } } }),
        [
            ("volume.id", Applied, json!(INSTANCE)),
            ("volume.request_key", Applied, json!("k")),
            ("volume.name", Applied, json!("other")),
            ("volume.description", Applied, json!("other")),
            ("volume.size", Applied, json!(2)),
            ("volume.volume_type", Applied, json!("t")),
            ("volume.metadata", Applied, json!({ "k": "v" })),
            ("volume.image.host", Applied, json!("storage2")),
            ("volume.image.name", Applied, json!("other")),
            ("volume.image.format", Applied, json!("qcow2")),
        ],
    );
    let export = call(
        "exportVolume",
        json!({ "export": { "image": { "name": "i", "format": "raw" } } }),
        [
            ("export.id", Applied, json!(INSTANCE)),
            ("export.image.name", Applied, json!("other")),
            ("export.image.format", Applied, json!("qcow2")),
        ],
    );
    vec![
        import,
        export,
        call("cutVolume", json!({}), [("force", Applied, json!(true))]),
        call(
            "rotateSecrets",
            json!({}),
            [("attachment", Applied, json!(INSTANCE)), ("force", Applied, json!(true))],
        ),
        call(
            "changeReservations",
            json!({ "preempt": "0xab" }),
            [
                ("preempt", Applied, json!("0xcd")),
                ("abort", Applied, json!(true)),
                // Beside the base's key: a call has one of the two.
                ("clear", Refused, json!(true)),
            ],
        ),
        call("confirmReview", json!({}), []),
        call("raiseEpoch", json!({}), []),
    ]
}

fn actions() -> Vec<Call> {
    vec![
        call(
            "actOnVolume",
            json!({ "os-attach": { "mountpoint": "/dev/vdb", "host_name": "h" } }),
            [
                ("os-attach.instance_uuid", Applied, json!(INSTANCE)),
                ("os-attach.host_name", Applied, json!("other")),
                ("os-attach.mountpoint", Applied, json!("/dev/vdc")),
                ("os-attach.mode", Applied, json!("ro")),
            ],
        ),
        call(
            "actOnVolume",
            json!({ "os-detach": {} }),
            [("os-detach.attachment_id", Applied, json!(INSTANCE))],
        ),
        call(
            "actOnVolume",
            json!({ "os-force_detach": {} }),
            [
                ("os-force_detach.attachment_id", Applied, json!(INSTANCE)),
                (
                    "os-force_detach.connector",
                    LeftOut("the attachment says what its access is: a connector could name another's"),
                    json!({ "initiator": "iqn.2026-01.org.example:other" }),
                ),
            ],
        ),
        call(
            "actOnVolume",
            json!({ "os-initialize_connection": { "connector": { "host": "h" } } }),
            [("os-initialize_connection.connector", Applied, json!({ "host": "other" }))],
        ),
        call(
            "actOnVolume",
            json!({ "os-terminate_connection": {} }),
            [("os-terminate_connection.connector", Applied, json!({ "host": "other" }))],
        ),
    ]
}

fn operators_actions() -> Vec<Call> {
    vec![
        call(
            "actOnVolume",
            json!({ "os-extend": { "new_size": 2 } }),
            [("os-extend.new_size", Applied, json!(3))],
        ),
        call(
            "actOnVolume",
            json!({ "os-reset_status": { "status": "error" } }),
            [
                ("os-reset_status.status", Applied, json!("available")),
                ("os-reset_status.attach_status", Applied, json!("detached")),
                (
                    "os-reset_status.migration_status",
                    LeftOut(
                        "a volume never migrates: the words that are taken say just that, and others are refused",
                    ),
                    json!("none"),
                ),
            ],
        ),
        call(
            "actOnVolume",
            json!({ "os-retype": { "new_type": "__DEFAULT__" } }),
            [
                ("os-retype.new_type", Applied, json!("t")),
                ("os-retype.migration_policy", Applied, json!("on-demand")),
            ],
        ),
        call(
            "actOnVolume",
            json!({ "os-set_bootable": { "bootable": false } }),
            [("os-set_bootable.bootable", Applied, json!(true))],
        ),
        call(
            "actOnVolume",
            json!({ "os-update_readonly_flag": { "readonly": false } }),
            [("os-update_readonly_flag.readonly", Applied, json!(true))],
        ),
        call("actOnVolume", json!({ "revert": {} }), [("revert.snapshot_id", Applied, json!("$snapshot"))]),
        call(
            "actOnType",
            json!({ "addProjectAccess": { "project": "p" } }),
            [("addProjectAccess.project", Applied, json!("q"))],
        ),
        // The project has no access: the answer names it.
        call(
            "actOnType",
            json!({ "removeProjectAccess": { "project": "p" } }),
            [("removeProjectAccess.project", Applied, json!("granted"))],
        ),
        call("actOnAttachment", json!({ "os-complete": {} }), []),
    ]
}

/// Actions without fields: any value is left out, as clients send null, an empty object, or
/// anything else.
const WITHOUT_FIELDS: [&str; 7] = [
    "os-begin_detaching",
    "os-complete",
    "os-force_delete",
    "os-reserve",
    "os-roll_detaching",
    "os-unmanage",
    "os-unreserve",
];

fn attachments() -> Vec<Call> {
    let connector = json!({ "host": "h", "initiator": "iqn.2026-01.org.example:h" });
    vec![
        call(
            "createAttachment",
            json!({ "attachment": { "volume_uuid": "$volume" } }),
            [
                ("attachment.volume_uuid", Applied, json!("$other")),
                ("attachment.instance_uuid", Applied, json!(INSTANCE)),
                ("attachment.connector", Applied, connector.clone()),
                ("attachment.mode", Applied, json!("ro")),
            ],
        ),
        call(
            "connectAttachment",
            json!({ "attachment": { "connector": { "host": "other" } } }),
            [("attachment.connector", Applied, connector)],
        ),
        call(
            "attach",
            json!({ "attachment": { "volume": "$volume", "host": "host1" } }),
            [
                ("attachment.volume", Applied, json!("$other")),
                // The site has one host: another is not found.
                ("attachment.host", Refused, json!("nosuch")),
                ("attachment.id", Applied, json!(INSTANCE)),
                ("attachment.mode", Applied, json!("ro")),
                ("attachment.transport", Applied, json!("fc")),
                ("attachment.cache", Applied, json!("off")),
            ],
        ),
        call("setCache", json!({ "cache": "on" }), [("cache", Applied, json!("off"))]),
        call(
            "setMode",
            json!({ "mode": "ro" }),
            [("mode", Applied, json!("rw")), ("barrier", Applied, json!(true))],
        ),
    ]
}

fn snapshots() -> Vec<Call> {
    let metadata = |operation| {
        call(operation, json!({ "metadata": {} }), [("metadata", Applied, json!({ "k": "other" }))])
    };
    let mut create = call(
        "createSnapshot",
        json!({ "snapshot": { "volume_id": "$volume", "name": "n", "description": "d" } }),
        [
            ("snapshot.volume_id", Applied, json!("$other")),
            ("snapshot.metadata", Applied, json!({ "k": "v" })),
            (
                "snapshot.force",
                LeftOut("since 3.66 a volume in use is always taken; before, it is applied"),
                json!(true),
            ),
        ],
    );
    create.lines.extend(labels("snapshot"));
    let mut update = call("updateSnapshot", json!({ "snapshot": { "name": "n", "description": "d" } }), []);
    update.lines.extend(labels("snapshot"));
    vec![
        create,
        update,
        metadata("mergeSnapshotMetadata"),
        metadata("replaceSnapshotMetadata"),
        call(
            "actOnSnapshot",
            json!({ "os-reset_status": { "status": "error" } }),
            [("os-reset_status.status", Applied, json!("available"))],
        ),
        call(
            "actOnSnapshot",
            json!({ "os-update_snapshot_status": { "status": "creating" } }),
            [
                ("os-update_snapshot_status.status", Applied, json!("error")),
                (
                    "os-update_snapshot_status.progress",
                    LeftOut("the storage agent takes a snapshot in one moment, and reports when it is there"),
                    json!("50%"),
                ),
            ],
        ),
        call(
            "setSnapshotMetadata",
            json!({ "meta": { "k": "v" } }),
            [("meta", Applied, json!({ "k": "other" }))],
        ),
    ]
}

fn hosts() -> Vec<Call> {
    vec![
        call("enableHost", json!({}), []),
        call("disableHost", json!({}), [("reason", Applied, json!("other"))]),
        call("drainHost", json!({}), []),
        call("undrainHost", json!({}), []),
        call(
            "fenceHost",
            json!({}),
            [
                ("reason", Applied, json!("other")),
                ("also", Applied, json!(["iqn.2026-01.org.example:other"])),
            ],
        ),
        call(
            "makeJoinToken",
            json!({}),
            [("roles", Applied, json!(["host"])), ("zone", Applied, json!("other"))],
        ),
        call("revokeHost", json!({}), []),
        call("renameHost", json!({ "name": "new" }), [("name", Applied, json!("other"))]),
        call("forgetHost", json!({ "confirm": "host1" }), [("confirm", Refused, json!("other"))]),
        call(
            "join",
            json!({ "token": JOIN_TOKEN, "csr": "a request", "address": "https://host9:7710" }),
            [
                ("agent_id", Applied, json!("00000000-0000-4000-8000-0000000000a1")),
                ("token", Refused, json!("another token")),
                ("csr", Applied, json!("another request")),
                ("address", Applied, json!("https://host9:7711")),
            ],
        ),
        call("unfenceHost", json!({}), [("anyway", Applied, json!(true))]),
        call("limitJobs", json!({ "bytes_per_second": 1 }), [("bytes_per_second", Applied, json!(2))]),
    ]
}

fn operators() -> Vec<Call> {
    let service = json!({ "host": "storage1@lvm", "binary": "cinder-volume" });
    let named = |operation| {
        let lines = [
            ("host", Refused, json!("nosuch")),
            ("binary", Refused, json!("cinder-backup")),
            ("service", LeftOut("`binary` is the newer key of the same field, and counts"), json!("other")),
        ];
        call(operation, service.clone(), lines)
    };
    let mut reasoned =
        call("disableServiceFor", service.clone(), [("disabled_reason", Applied, json!("other"))]);
    reasoned.base["disabled_reason"] = json!("r");
    reasoned.lines.extend(named("").lines);
    let refused = |operation| Call { operation, base: service.clone(), lines: Vec::new() };
    let quota = |operation, key: &'static str| {
        call(operation, json!({ key: { "volumes": 3 } }), [(key, Applied, json!({ "volumes": 4 }))])
    };
    vec![
        named("enableService"),
        named("disableService"),
        reasoned,
        refused("freezeService"),
        refused("thawService"),
        refused("failOver"),
        refused("failHostOver"),
        quota("setQuotas", "quota_set"),
        quota("setQuotaClass", "quota_class_set"),
        call(
            "createType",
            json!({ "volume_type": { "name": "new" } }),
            [
                ("volume_type.name", Applied, json!("other")),
                ("volume_type.description", Applied, json!("other")),
                ("volume_type.os-volume-type-access:is_public", Applied, json!(false)),
                ("volume_type.extra_specs", Applied, json!({ "k": "v" })),
            ],
        ),
        call(
            "updateType",
            json!({ "volume_type": { "name": "new" } }),
            [
                ("volume_type.name", Applied, json!("other")),
                ("volume_type.description", Applied, json!("other")),
                ("volume_type.is_public", Applied, json!(false)),
            ],
        ),
        call(
            "setExtraSpecs",
            json!({ "extra_specs": { "k": "v" } }),
            [("extra_specs", Applied, json!({ "k": "other" }))],
        ),
        call("setExtraSpec", json!({ "k": "v" }), [("k", Applied, json!("other"))]),
        call(
            "setProjectDefault",
            json!({ "default_type": { "volume_type": "__DEFAULT__" } }),
            [("default_type.volume_type", Applied, json!("t"))],
        ),
    ]
}

/// Operations that refuse every action, as Mooring has none of them.
const REFUSED: [&str; 4] = ["freezeService", "thawService", "failOver", "failHostOver"];

fn table() -> Vec<Call> {
    [
        volumes(),
        own_volumes(),
        actions(),
        operators_actions(),
        attachments(),
        snapshots(),
        operators(),
        hosts(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The fields of a schema: every leaf of its properties. An object with keys of the caller's own is
/// one field.
fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let inner = std::iter::once(schema).chain(alternatives).find_map(|one| one["properties"].as_object());
    let Some(inner) = inner else {
        if !path.is_empty() {
            found.insert(path.to_owned());
        }
        return;
    };
    for (key, schema) in inner {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        leaves(schema, &path, found);
    }
}

#[test]
fn the_table_has_every_field_that_is_described_and_no_other() {
    let mut described: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, _, operation) in taking() {
        let schema = schema_named(&operation["requestBody"]["content"]);
        let of = described.entry(operation["operationId"].as_str().unwrap().to_owned()).or_default();
        leaves(schema, "", of);
    }
    let mut said: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in table() {
        let of = said.entry(call.operation.to_owned()).or_default();
        for (field, fate, _) in call.lines {
            assert!(of.insert(field.to_owned()), "{}: {field} has two lines", call.operation);
            assert!(!matches!(fate, LeftOut(why) if why.len() < 20), "{field}: say why");
        }
    }
    // The key of this operation stands in its address.
    said.insert("setExtraSpec".to_owned(), BTreeSet::new());
    for (operation, of) in &mut described {
        if REFUSED.contains(&operation.as_str()) {
            of.clear();
            said.entry(operation.clone()).or_default();
        }
        of.retain(|field| !WITHOUT_FIELDS.contains(&field.as_str()));
    }
    assert!(described.len() > 45 && described.values().map(BTreeSet::len).sum::<usize>() > 110);
    for (operation, of) in &described {
        let said = said.remove(operation).unwrap_or_default();
        let missing: Vec<_> = of.difference(&said).collect();
        let invented: Vec<_> = said.difference(of).collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "{operation}: {missing:?}; not there: {invented:?}"
        );
    }
    assert!(said.is_empty(), "no such calls: {:?}", said.keys());
}

/// A site, and the ids for which a call's words stand.
async fn site() -> (Api, BTreeMap<&'static str, String>) {
    let api = Api::new();
    let kind = json!({ "volume_type": { "name": "t" } });
    let kind = api.post("/types", kind).await.body["volume_type"]["id"].as_str().unwrap().to_owned();
    let taken = api.volume("taken").await;
    let attachment = api.reserved(&taken).await;
    let (volume, other) = (api.volume("volume").await, api.volume("other").await);
    let snapshot = json!({ "snapshot": { "volume_id": volume } });
    let snapshot = api.post("/snapshots", snapshot).await.body["snapshot"]["id"].as_str().unwrap().to_owned();
    let access = json!({ "addProjectAccess": { "project": "granted" } });
    api.post(&format!("/types/{kind}/action"), access).await;
    // The fence of a host that is not proven to be cut off.
    let state = FenceState::Waits("it is down".to_owned());
    let (one, of) = (AttachmentId::from_u128(1), VolumeId::from_u128(1));
    let part = FencePart { attachment: one, volume: of, state, warnings: Vec::new() };
    api.fake.state().fence_parts = vec![part];
    api.call("POST", "/mooring/v1/hosts/storage1/fence").json(&json!({})).send().await;
    let ids = [
        ("$volume", volume),
        ("$other", other),
        ("$attachment", attachment),
        ("$snapshot", snapshot),
        ("$type", kind),
    ];
    (api, ids.into())
}

fn with_ids(text: &str, ids: &BTreeMap<&'static str, String>) -> String {
    ids.iter().fold(text.to_owned(), |text, (word, id)| text.replace(word, id))
}

fn address(template: &str) -> String {
    let id = match template {
        of if of.contains("/attachments/") => "$attachment",
        of if of.contains("/snapshots/") => "$snapshot",
        of if of.contains("/types/") => "$type",
        _ => "$volume",
    };
    let name =
        if template.ends_with("/job-limit") || template.contains("fence") { "storage1" } else { "host1" };
    let words = [("{project_id}", PROJECT), ("{project}", "p"), ("{class}", "default"), ("{key}", "k")];
    let filled = words.into_iter().fold(template.to_owned(), |text, (word, by)| text.replace(word, by));
    filled.replace("{id}", id).replace("{name}", name)
}

/// A body with another value in one field.
fn with_field(base: &Value, field: &str, value: &Value) -> Value {
    let mut body = base.clone();
    let mut at = &mut body;
    let (path, last) = field.rsplit_once('.').map_or((None, field), |(path, last)| (Some(path), last));
    for key in path.into_iter().flat_map(|path| path.split('.')) {
        at = &mut at[key];
        if !at.is_object() {
            *at = json!({});
        }
    }
    at[last] = value.clone();
    body
}

/// The effects of a call, as text, with each random id replaced. Ids of the table stay.
fn outcome(text: &str) -> String {
    let mut seen: Vec<Uuid> = Vec::new();
    let mut shown = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let id = rest.get(..36).and_then(|text| Uuid::try_parse(text).ok());
        if let Some(id) = id.filter(|id| ![INSTANCE, DEAD].contains(&id.to_string().as_str())) {
            let index = seen.iter().position(|one| *one == id).unwrap_or_else(|| {
                seen.push(id);
                seen.len() - 1
            });
            shown.extend(["#", &index.to_string()]);
            rest = &rest[36..];
        } else {
            shown.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    shown
}

fn words_of(action: Option<&AttachAction>) -> String {
    match action {
        Some(AttachAction::Attach { instance, host, mountpoint, mode }) => {
            format!("{instance:?} {host:?} {mountpoint} {mode:?}")
        }
        Some(AttachAction::Detach { attachment, force }) => format!("{attachment:?} {force}"),
        Some(AttachAction::InitializeConnection { connector }) => format!("{connector:?}"),
        Some(AttachAction::TerminateConnection { connector }) => format!("{connector:?}"),
        Some(_) | None => String::new(),
    }
}

/// Makes one call on a new site. Returns its status, and all its effects.
async fn tried(method: &Method, template: &str, body: &Value) -> (u16, String) {
    let (api, ids) = site().await;
    let body: Value = serde_json::from_str(&with_ids(&body.to_string(), &ids)).unwrap();
    let path = with_ids(&address(template), &ids);
    let answer = api.call(method.as_str(), &path).version("latest").json(&body).send().await;
    let state = api.fake.state();
    let kept = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
        state.volumes,
        state.snapshots,
        state.types,
        state.attachments,
        state.attachments.iter().map(|one| &one.connector).collect::<Vec<_>>(),
        state.managed,
        state.access,
        state.defaults,
        state.quotas,
        state.actions,
        state.exports,
        state.hints,
        state.job_limit,
        state.said,
        state.heard,
        state.also,
        state.joins.iter().map(|one| (&one.csr, &one.address, one.agent)).collect::<Vec<_>>(),
        words_of(state.action.as_ref()),
    );
    (answer.status.as_u16(), outcome(&format!("{} {} {kept}", answer.status, answer.body)))
}

#[tokio::test]
async fn each_field_comes_to_what_its_line_says() {
    let operations = taking();
    let mut wrong = Vec::new();
    for Call { operation, base, lines } in table() {
        let (method, template, _) =
            operations.iter().find(|(_, _, of)| of["operationId"] == operation).unwrap();
        let (plain, without) = tried(method, template, &base).await;
        for (field, fate, value) in lines {
            let (status, with) = tried(method, template, &with_field(&base, field, &value)).await;
            let holds = match fate {
                Applied => status < 400 && with != without,
                Refused => plain < 400 && (400..=501).contains(&status) && status != 500,
                LeftOut(_) => plain < 400 && with == without,
            };
            if !holds {
                wrong.push(format!("{operation} {field}: {fate:?}, and {plain} became {status}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

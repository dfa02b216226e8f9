//! The description of both APIs in OpenAPI 3.1: what each route takes and answers. Like the version
//! documents, clients read it without a login. Tests hold every answer against it, and check that
//! it has exactly the router's routes.
//!
//! What must never happen here: a route that is described otherwise than it answers.

mod find;
mod gates;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

pub(super) use find::{Api, Which, find};

use super::joining::{AUTHORITY, JOIN};
use crate::list::{ATTACHMENTS, Collection, Kind, MESSAGES, SNAPSHOTS, TYPES, VOLUMES};

/// The address of the description.
pub(super) const PATH: &str = "/mooring/v1/openapi.json";

/// The schemas of requests' and of answers' bodies.
const SCHEMAS: [&str; 2] = [include_str!("openapi/requests.json"), include_str!("openapi/answers.json")];

/// One route and method.
struct Operation {
    method: &'static str,
    path: &'static str,
    /// The operation's name for programs.
    id: &'static str,
    summary: &'static str,
    /// The microversion that introduced the operation; `None` if it always existed.
    since: Option<&'static str>,
    admin: bool,
    status: u16,
    also: Option<u16>,
    /// The schema of the request's body.
    takes: Option<&'static str>,
    /// The schema of the answer's body.
    gives: Option<&'static str>,
    lists: Option<&'static Collection>,
    queries: &'static [(&'static str, &'static str)],
}

const fn op(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    let (since, takes, gives, lists) = (None, None, None, None);
    Operation {
        method,
        path,
        id,
        summary,
        since,
        admin: false,
        status: 200,
        also: None,
        takes,
        gives,
        lists,
        queries: &[],
    }
}

impl Operation {
    const fn since(self, version: &'static str) -> Self {
        Self { since: Some(version), ..self }
    }

    const fn admin(self) -> Self {
        Self { admin: true, ..self }
    }

    const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds another status that some answers have, perhaps with a body.
    const fn also(self, status: u16) -> Self {
        Self { also: Some(status), ..self }
    }

    const fn takes(self, schema: &'static str) -> Self {
        Self { takes: Some(schema), ..self }
    }

    const fn gives(self, schema: &'static str) -> Self {
        Self { gives: Some(schema), ..self }
    }

    const fn lists(self, of: &'static Collection) -> Self {
        Self { lists: Some(of), ..self }
    }

    const fn queries(self, queries: &'static [(&'static str, &'static str)]) -> Self {
        Self { queries, ..self }
    }
}

const BOOLEAN: &str = "boolean";
const NUMBER: &str = "integer";
const TEXT: &str = "string";

/// The query keys of lists of LVs.
const MANAGEABLE: [(&str, &str); 8] = [
    ("host", TEXT),
    ("cluster", TEXT),
    ("marker", TEXT),
    ("limit", NUMBER),
    ("offset", NUMBER),
    ("sort", TEXT),
    ("sort_key", TEXT),
    ("sort_dir", TEXT),
];

/// The Block Storage API, below the project.
static BLOCK_STORAGE: [Operation; 103] = [
    op("GET", "/volumes", "listVolumeNames", "Volumes, by name").lists(&VOLUMES).gives("VolumeNames"),
    op("POST", "/volumes", "createVolume", "Create a volume")
        .status(202)
        .takes("NewVolume")
        .gives("MadeVolume"),
    op("GET", "/volumes/detail", "listVolumes", "Volumes").lists(&VOLUMES).gives("Volumes"),
    op("GET", "/volumes/summary", "sumVolumes", "Volumes in numbers")
        .since("3.12")
        .lists(&VOLUMES)
        .gives("Summary"),
    op("GET", "/volumes/{id}", "showVolume", "One volume").gives("ShownVolume"),
    op("PUT", "/volumes/{id}", "updateVolume", "Rename a volume").takes("VolumeUpdate").gives("MadeVolume"),
    op("DELETE", "/volumes/{id}", "deleteVolume", "Delete a volume")
        .status(202)
        .queries(&[("cascade", BOOLEAN), ("force", BOOLEAN)]),
    op("POST", "/volumes/{id}/action", "actOnVolume", "Act on a volume")
        .status(202)
        .also(200)
        .takes("VolumeAction"),
    op("GET", "/volumes/{id}/encryption", "showEncryption", "The encryption of a volume: none")
        .gives("Encryption"),
    op("GET", "/volumes/{id}/metadata", "listMetadata", "The metadata of a volume").gives("Metadata"),
    op("POST", "/volumes/{id}/metadata", "mergeMetadata", "Set keys").takes("NewMetadata").gives("Metadata"),
    op("PUT", "/volumes/{id}/metadata", "replaceMetadata", "Set all keys")
        .takes("NewMetadata")
        .gives("Metadata"),
    op("GET", "/volumes/{id}/metadata/{key}", "showMetadata", "One key").gives("Meta"),
    op("PUT", "/volumes/{id}/metadata/{key}", "setMetadata", "Set one key").takes("NewMeta").gives("Meta"),
    op("DELETE", "/volumes/{id}/metadata/{key}", "deleteMetadata", "Delete one key"),
    op("GET", "/attachments", "listAttachmentNames", "Attachments")
        .since("3.27")
        .lists(&ATTACHMENTS)
        .gives("AttachmentSummaries"),
    op("POST", "/attachments", "createAttachment", "Reserve or attach")
        .since("3.27")
        .takes("NewAttachment")
        .gives("ShownAttachment"),
    op("GET", "/attachments/detail", "listAttachments", "Attachments in full")
        .since("3.27")
        .lists(&ATTACHMENTS)
        .gives("Attachments"),
    op("GET", "/attachments/{id}", "showAttachment", "One attachment").since("3.27").gives("ShownAttachment"),
    op("PUT", "/attachments/{id}", "connectAttachment", "Give a reserved attachment its connector")
        .since("3.27")
        .takes("AttachmentUpdate")
        .gives("ShownAttachment"),
    op("DELETE", "/attachments/{id}", "deleteAttachment", "Detach")
        .since("3.27")
        .queries(&[("force", BOOLEAN)])
        .gives("AttachmentSummaries"),
    op("POST", "/attachments/{id}/action", "actOnAttachment", "Complete an attachment")
        .since("3.27")
        .status(204)
        .takes("AttachmentAction"),
    op("GET", "/types", "listTypes", "Volume types").lists(&TYPES).gives("Types"),
    op("POST", "/types", "createType", "Make a type").admin().takes("NewType").gives("ShownType"),
    op("GET", "/types/default", "showDefaultType", "The type of volumes that name none").gives("ShownType"),
    op("GET", "/types/{id}", "showType", "One type").gives("ShownType"),
    op("PUT", "/types/{id}", "updateType", "Change a type").admin().takes("TypeUpdate").gives("ShownType"),
    op("DELETE", "/types/{id}", "deleteType", "Delete a type").admin().status(202),
    op("GET", "/types/{id}/extra_specs", "listExtraSpecs", "The extra specs of a type").gives("ExtraSpecs"),
    op("POST", "/types/{id}/extra_specs", "setExtraSpecs", "Set extra specs")
        .admin()
        .takes("NewExtraSpecs")
        .gives("ExtraSpecs"),
    op("GET", "/types/{id}/extra_specs/{key}", "showExtraSpec", "One extra spec").gives("OneText"),
    op("PUT", "/types/{id}/extra_specs/{key}", "setExtraSpec", "Set one extra spec")
        .admin()
        .takes("OneSpec")
        .gives("OneText"),
    op("DELETE", "/types/{id}/extra_specs/{key}", "deleteExtraSpec", "Delete one extra spec")
        .admin()
        .status(202),
    op("POST", "/types/{id}/action", "actOnType", "Let a project use a private type, or not")
        .admin()
        .status(202)
        .takes("TypeAction"),
    op("GET", "/types/{id}/os-volume-type-access", "listTypeAccess", "Projects that may use a private type")
        .admin()
        .gives("TypeAccess"),
    op("GET", "/default-types", "listDefaultTypes", "Default types of projects")
        .since("3.62")
        .admin()
        .gives("DefaultTypes"),
    op("GET", "/default-types/{project}", "showProjectDefault", "A project's default type")
        .since("3.62")
        .admin()
        .gives("DefaultType"),
    op("PUT", "/default-types/{project}", "setProjectDefault", "Set a project's default type")
        .since("3.62")
        .admin()
        .takes("NewDefaultType")
        .gives("DefaultType"),
    op("DELETE", "/default-types/{project}", "unsetProjectDefault", "Unset a project's default type")
        .since("3.62")
        .admin()
        .status(204),
    op("GET", "/limits", "showLimits", "The limits and usage of a project")
        .queries(&[("project_id", TEXT)])
        .gives("Limits"),
    op("GET", "/os-quota-sets/{project}", "showQuotas", "The limits of a project")
        .queries(&[("usage", BOOLEAN)])
        .gives("QuotaSet"),
    op("PUT", "/os-quota-sets/{project}", "setQuotas", "Set limits of a project")
        .admin()
        .takes("NewQuotaSet")
        .gives("QuotaSet"),
    op("DELETE", "/os-quota-sets/{project}", "deleteQuotas", "Delete the limits of a project").admin(),
    op("GET", "/os-quota-sets/{project}/defaults", "showDefaultQuotas", "The defaults").gives("QuotaSet"),
    op("GET", "/os-quota-class-sets/{class}", "showQuotaClass", "The defaults, as the class `default`")
        .admin()
        .gives("QuotaClassSet"),
    op("PUT", "/os-quota-class-sets/{class}", "setQuotaClass", "Set defaults")
        .admin()
        .takes("NewQuotaClassSet")
        .gives("QuotaClassSet"),
    op("GET", "/snapshots", "listSnapshotNames", "Snapshots").lists(&SNAPSHOTS).gives("Snapshots"),
    op("POST", "/snapshots", "createSnapshot", "Take a snapshot of a thin volume")
        .status(202)
        .takes("NewSnapshot")
        .gives("OneSnapshot"),
    op("GET", "/snapshots/detail", "listSnapshots", "Snapshots in full").lists(&SNAPSHOTS).gives("Snapshots"),
    op("GET", "/snapshots/{id}", "showSnapshot", "One snapshot").gives("OneSnapshot"),
    op("PUT", "/snapshots/{id}", "updateSnapshot", "Change name and description")
        .takes("SnapshotUpdate")
        .gives("OneSnapshot"),
    op("DELETE", "/snapshots/{id}", "deleteSnapshot", "Delete a snapshot").status(202),
    op("POST", "/snapshots/{id}/action", "actOnSnapshot", "Refused: there is no action yet")
        .status(501)
        .takes("Action"),
    op("GET", "/snapshots/{id}/metadata", "listSnapshotMetadata", "The users' own keys").gives("Metadata"),
    op("POST", "/snapshots/{id}/metadata", "mergeSnapshotMetadata", "Set some keys")
        .takes("NewMetadata")
        .gives("Metadata"),
    op("PUT", "/snapshots/{id}/metadata", "replaceSnapshotMetadata", "Set all keys")
        .takes("NewMetadata")
        .gives("Metadata"),
    op("GET", "/snapshots/{id}/metadata/{key}", "showSnapshotMetadata", "One key").gives("Meta"),
    op("PUT", "/snapshots/{id}/metadata/{key}", "setSnapshotMetadata", "Set one key")
        .takes("NewMeta")
        .gives("Meta"),
    op("DELETE", "/snapshots/{id}/metadata/{key}", "deleteSnapshotMetadata", "Delete one key"),
    op("GET", "/manageable_volumes", "listManageable", "LVs of a storage host that could become volumes")
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("POST", "/manageable_volumes", "manageVolume", "Make a volume of an LV")
        .since("3.8")
        .admin()
        .status(202)
        .takes("ManagedVolume")
        .gives("MadeVolume"),
    op("GET", "/manageable_volumes/detail", "listManageableInFull", "LVs of a storage host, in full")
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("GET", "/os-volume-manage", "listOlderManageable", "As /manageable_volumes")
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("POST", "/os-volume-manage", "manageVolumeOlder", "As /manageable_volumes")
        .admin()
        .status(202)
        .takes("ManagedVolume")
        .gives("MadeVolume"),
    op("GET", "/os-volume-manage/detail", "listOlderManageableInFull", "As /manageable_volumes/detail")
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("GET", "/messages", "listMessages", "Messages: why requests failed later")
        .since("3.3")
        .lists(&MESSAGES)
        .gives("Messages"),
    op("GET", "/messages/{id}", "showMessage", "One message").since("3.3").gives("ShownMessage"),
    op("DELETE", "/messages/{id}", "deleteMessage", "Delete a message").since("3.3").status(204),
    op("GET", "/extensions", "listExtensions", "Parts of the API").gives("Extensions"),
    op("GET", "/extensions/{alias}", "showExtension", "One part").gives("ShownExtension"),
    op("GET", "/os-availability-zone", "listZones", "Availability zones").gives("Zones"),
    op("GET", "/resource_filters", "listFilters", "The filters of lists")
        .since("3.33")
        .queries(&[("resource", TEXT)])
        .gives("ResourceFilters"),
    op("GET", "/os-hosts", "listStorageHosts", "Storage hosts").admin().gives("StorageHosts"),
    op("GET", "/os-hosts/{name}", "showStorageHost", "The usage of a storage host")
        .admin()
        .gives("StorageHost"),
    op("GET", "/scheduler-stats/get_pools", "listPools", "Pools, as last reported")
        .admin()
        .queries(&[("detail", BOOLEAN), ("volume_type", TEXT), ("name", TEXT)])
        .gives("Pools"),
    op("GET", "/capabilities/{host}", "showCapabilities", "The capabilities of a storage agent")
        .admin()
        .gives("Capabilities"),
    op("GET", "/os-services", "listServices", "Storage agents, and the scheduler")
        .admin()
        .queries(&[("host", TEXT), ("binary", TEXT)])
        .gives("Services"),
    op("PUT", "/os-services/enable", "enableService", "Let new volumes be placed there")
        .admin()
        .takes("NamedService")
        .gives("ChangedService"),
    op("PUT", "/os-services/disable", "disableService", "Keep new volumes from it")
        .admin()
        .takes("NamedService")
        .gives("ChangedService"),
    op(
        "PUT",
        "/os-services/disable-log-reason",
        "disableServiceFor",
        "Keep new volumes from it, with a reason",
    )
    .admin()
    .takes("DisabledService")
    .gives("ChangedService"),
    op("PUT", "/os-services/freeze", "freezeService", "Refused").admin().status(501).takes("NamedService"),
    op("PUT", "/os-services/thaw", "thawService", "Refused").admin().status(501).takes("NamedService"),
    op("PUT", "/os-services/failover", "failOver", "Refused")
        .since("3.26")
        .admin()
        .status(501)
        .takes("NamedService"),
    op("PUT", "/os-services/failover_host", "failHostOver", "Refused")
        .admin()
        .status(501)
        .takes("NamedService"),
    op("GET", "/backups", "listBackupNames", "Backups: none").gives("Empty"),
    op("GET", "/backups/detail", "listBackups", "Backups: none").gives("Empty"),
    op("GET", "/groups", "listGroupNames", "Groups: none").gives("Empty"),
    op("GET", "/groups/detail", "listGroups", "Groups: none").gives("Empty"),
    op("GET", "/os-volume-transfer", "listTransferNames", "Transfers: none").gives("Empty"),
    op("GET", "/os-volume-transfer/detail", "listTransfers", "Transfers: none").gives("Empty"),
    op("GET", "/qos-specs", "listQosSpecs", "QoS specs: none").gives("Empty"),
    op("GET", "/volume-transfers", "listNewTransferNames", "Transfers: none").gives("Empty"),
    op("GET", "/volume-transfers/detail", "listNewTransfers", "Transfers: none").gives("Empty"),
    op("GET", "/backups/{id}", "showBackup", "There is none").status(404),
    op("GET", "/groups/{id}", "showGroup", "There is none").status(404),
    op("GET", "/os-volume-transfer/{id}", "showTransfer", "There is none").status(404),
    op("GET", "/qos-specs/{id}", "showQosSpec", "There is none").status(404),
    op("GET", "/volume-transfers/{id}", "showNewTransfer", "There is none").status(404),
    op("DELETE", "/backups/{id}", "deleteBackup", "There is none").status(404),
    op("DELETE", "/groups/{id}", "deleteGroup", "There is none").status(404),
    op("DELETE", "/os-volume-transfer/{id}", "deleteTransfer", "There is none").status(404),
    op("DELETE", "/qos-specs/{id}", "deleteQosSpec", "There is none").status(404),
    op("DELETE", "/volume-transfers/{id}", "deleteNewTransfer", "There is none").status(404),
];

/// Mooring's own API.
static OWN: [Operation; 41] = [
    op("GET", "/hosts", "listHosts", "The enrolled agents").admin().gives("Hosts"),
    op("GET", "/hosts/{name}", "showHost", "One agent, by its name or id").admin().gives("ShownHost"),
    op("POST", "/hosts/{name}/enable", "enableHost", "Let new volumes be placed there")
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/disable", "disableHost", "Keep new volumes from it")
        .admin()
        .takes("Reason")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/drain", "drainHost", "Begin to empty a host")
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/undrain", "undrainHost", "Stop emptying a host")
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op("GET", "/volumes/{id}/placement", "showPlacement", "The reasons for a volume's place")
        .admin()
        .gives("ShownPlacement"),
    op(
        "POST",
        "/hosts/{name}/token",
        "makeJoinToken",
        "A token with which a host may join, once, within an hour",
    )
    .admin()
    .takes("NewJoinToken")
    .gives("JoinToken"),
    op("POST", "/hosts/{name}/revoke", "revokeHost", "End the enrolment of a host")
        .admin()
        .takes("Nothing")
        .gives("Revoked"),
    op("POST", "/hosts/{name}/rename", "renameHost", "Give an enrolled host another name")
        .admin()
        .takes("RenameHost")
        .gives("HostRenamed"),
    op("GET", "/hosts/{name}/forget", "showHostLoss", "The loss if a host is forgotten")
        .admin()
        .gives("ShownHostLoss"),
    op(
        "POST",
        "/hosts/{name}/forget",
        "forgetHost",
        "Give up a host that never comes back, with its volumes",
    )
    .admin()
    .takes("ForgetHost")
    .gives("HostForgotten"),
    op("GET", "/hosts/{name}/fence", "showFence", "The fence of a host, and its receipt")
        .admin()
        .gives("ShownFence"),
    op("POST", "/hosts/{name}/fence", "fenceHost", "Fence a host from every volume")
        .admin()
        .queries(&[("wait_ms", NUMBER)])
        .takes("NewFence")
        .gives("ShownFence"),
    op("POST", "/hosts/{name}/unfence", "unfenceHost", "Lift the fence of a host")
        .admin()
        .takes("Unfence")
        .gives("ShownFence"),
    op("GET", "/fences", "listFences", "Fenced hosts; `all`: lifted ones too")
        .admin()
        .queries(&[("all", BOOLEAN)])
        .gives("Fences"),
    op("GET", "/jobs", "listJobs", "Long work of the storage nodes, live").admin().gives("Jobs"),
    op(
        "PUT",
        "/hosts/{name}/job-limit",
        "limitJobs",
        "What all jobs of a storage node may write in a second",
    )
    .admin()
    .takes("JobLimit")
    .gives("ShownJobLimit"),
    op("GET", "/attachments", "listLive", "Attachments, live")
        .queries(&[("volume", TEXT)])
        .gives("LiveAttachments"),
    op("POST", "/attachments", "attach", "Attach a volume to an enrolled host")
        .status(202)
        .takes("NewNative")
        .gives("ShownLive"),
    op("GET", "/attachments/{id}", "showLive", "One attachment, live; `after` waits for a change")
        .queries(&[("after", NUMBER), ("wait_ms", NUMBER)])
        .gives("ShownLive"),
    op("DELETE", "/attachments/{id}", "detach", "Detach")
        .queries(&[("force", BOOLEAN), ("widen", TEXT), ("wait_ms", NUMBER)])
        .gives("ShownReceipt"),
    op("PUT", "/attachments/{id}/mode", "setMode", "Change an attachment's mode in place")
        .queries(&[("wait_ms", NUMBER)])
        .takes("SetMode")
        .gives("ModeSet"),
    op("PUT", "/attachments/{id}/cache", "setCache", "Change an attachment's cache in place")
        .queries(&[("wait_ms", NUMBER)])
        .takes("SetCache")
        .gives("ShownLive"),
    op(
        "GET",
        "/attachments/{id}/check",
        "checkAttachment",
        "Who uses the disk of an attachment on its host, looked at now",
    )
    .gives("Checked"),
    op("GET", "/attachments/{id}/receipt", "showReceipt", "The receipt of a detach").gives("ShownReceipt"),
    op("GET", "/receipts", "listReceipts", "The records of detaches")
        .queries(&[("volume", TEXT), ("attachment", TEXT), ("limit", NUMBER)])
        .gives("Receipts"),
    op("POST", "/volumes", "importVolume", "A volume from an image of a storage node")
        .admin()
        .status(202)
        .takes("NewImport")
        .gives("ShownState"),
    op("GET", "/volumes/{id}", "showState", "Facts that only this API has").gives("ShownState"),
    op("POST", "/volumes/{id}/export", "exportVolume", "Copy a volume to a file of its storage node")
        .admin()
        .status(202)
        .takes("NewExport")
        .gives("ShownExport"),
    op("GET", "/volumes/{id}/export", "showExport", "The last image export of a volume")
        .admin()
        .gives("ShownExport"),
    op("DELETE", "/volumes/{id}/export", "cancelExport", "Cancel an image export")
        .admin()
        .status(202)
        .gives("ShownExport"),
    op("DELETE", "/volumes/{id}/extend", "cancelExtend", "Cancel the growth of a volume")
        .status(202)
        .gives("ShownState"),
    op("GET", "/volumes/{id}/reservations", "showReservations", "Reservations of a volume (SCSI-3)")
        .admin()
        .gives("Reservations"),
    op(
        "POST",
        "/volumes/{id}/rotate-secrets",
        "rotateSecrets",
        "Give attachments new secrets, without a gap",
    )
    .queries(&[("wait_ms", NUMBER)])
    .takes("RotateSecrets")
    .gives("LiveAttachments"),
    op("PUT", "/volumes/{id}/cut", "cutVolume", "Isolate a volume from its disk")
        .admin()
        .status(202)
        .takes("CutVolume")
        .gives("ShownState"),
    op("DELETE", "/volumes/{id}/cut", "uncutVolume", "End the isolation of a volume")
        .admin()
        .status(202)
        .gives("ShownState"),
    op("POST", "/volumes/{id}/reservations", "changeReservations", "Clear or preempt them (SCSI-3)")
        .admin()
        .takes("ChangeReservations")
        .gives("ReservationsChanged"),
    op(
        "POST",
        "/volumes/{id}/confirm-review",
        "confirmReview",
        "What the database says of a volume is right",
    )
    .admin()
    .status(204)
    .takes("Any"),
    op("GET", "/audit", "listAudit", "The calls that changed something, or would have; the newest first")
        .admin()
        .queries(&[
            ("since", TEXT),
            ("until", TEXT),
            ("user", TEXT),
            ("object", TEXT),
            ("limit", NUMBER),
            ("marker", NUMBER),
        ])
        .gives("AuditLines"),
    op("POST", "/epoch", "raiseEpoch", "Start a new epoch").admin().takes("Any").gives("Epoch"),
];

/// Operations that belong to neither API alone.
static ROOT: [Operation; 5] = [
    op("GET", "/", "listVersions", "The versions").status(300).gives("Versions"),
    op("GET", "/v3/", "showVersions", "The versions").gives("Versions"),
    op("GET", PATH, "showDescription", "This document").gives("Any"),
    op(
        "GET",
        AUTHORITY,
        "showAuthority",
        "Show the certificate of the authority that signs the agents' certificates",
    )
    .gives("Authority"),
    op("POST", JOIN, "join", "Let an agent join, by its token").takes("Join").gives("Joined"),
];

fn reference(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

fn in_path(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn in_query(name: &str, kind: &str) -> Value {
    json!({ "name": name, "in": "query", "schema": { "type": kind } })
}

/// The query keys of every list, then the collection's filters.
fn list_queries(of: &Collection) -> Vec<Value> {
    let mut all: Vec<_> = [("limit", NUMBER), ("offset", NUMBER), ("marker", TEXT), ("sort", TEXT)]
        .into_iter()
        .chain([("sort_key", TEXT), ("sort_dir", TEXT), ("all_tenants", BOOLEAN), ("with_count", BOOLEAN)])
        .map(|(name, kind)| in_query(name, kind))
        .collect();
    for key in of.keys.iter().filter(|key| key.everybody) {
        let kind = if matches!(key.kind, Kind::Number) { NUMBER } else { TEXT };
        all.push(in_query(key.name, kind));
    }
    all
}

fn operation(it: &Operation, prefix: &str, login: bool) -> Value {
    let path = format!("{prefix}{}", it.path);
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<_> = names.map(in_path).collect();
    parameters.extend(it.lists.map(list_queries).unwrap_or_default());
    parameters.extend(it.queries.iter().map(|(name, kind)| in_query(name, kind)));
    let failed = it.status >= 400;
    let mut good = json!({ "description": if failed { "What is always answered" } else { "Done" } });
    if let Some(schema) = it.gives.or(failed.then_some("Fault")) {
        good["content"] = reference(schema);
    }
    let mut responses = Map::new();
    responses.insert(it.status.to_string(), good);
    if let Some(also) = it.also {
        let content = reference("Any");
        responses.insert(
            also.to_string(),
            json!({ "description": "Done, with what was asked for", "content": content }),
        );
    }
    if login {
        responses.insert("default".into(), json!({ "$ref": "#/components/responses/Fault" }));
    }
    let mut view = json!({
        "operationId": it.id,
        "summary": it.summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(schema) = it.takes {
        view["requestBody"] = json!({ "required": true, "content": reference(schema) });
    }
    if let Some(version) = it.since {
        view["x-openstack-since"] = json!(version);
    }
    if it.admin {
        view["description"] = json!("For admins, unless the site's policies say otherwise.");
    }
    if !login {
        view["security"] = json!([]);
    }
    gates::describe(it, &mut view);
    view
}

fn paths() -> Map<String, Value> {
    let tables: [(&[Operation], &str, bool); 3] =
        [(&BLOCK_STORAGE, "/v3/{project_id}", true), (&OWN, "/mooring/v1", true), (&ROOT, "", false)];
    let mut paths = Map::new();
    for (operations, prefix, login) in tables {
        for it in operations {
            let path = paths.entry(format!("{prefix}{}", it.path)).or_insert_with(|| json!({}));
            path[it.method.to_ascii_lowercase()] = operation(it, prefix, login);
        }
    }
    paths
}

fn document() -> Value {
    let read = |text| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let schemas: Map<String, Value> = SCHEMAS.into_iter().flat_map(read).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Mooring",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "The Block Storage API v3 as Mooring serves it (bodies at its newest microversion, which \
                            `OpenStack-API-Version: volume 3.N` chooses; the project may be left out of the address), and \
                            Mooring's own API. What the Block Storage API has beside these routes is answered with 501.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": { "token": { "type": "apiKey", "in": "header", "name": "X-Auth-Token" } },
            "responses": { "Fault": { "description": "Not done", "content": reference("Fault") } },
            "schemas": schemas,
        },
    })
}

/// The document.
pub(super) fn answer() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::Router;
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use tower::ServiceExt;

    use super::*;
    use crate::auth::Auth;
    use crate::http::{BODY_TIMEOUT, Options, block_storage_routes, own_routes, router};
    use crate::service::{Service, ServiceOptions};

    /// Methods that a route could have.
    const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "PATCH"];

    fn described() -> BTreeSet<(String, String)> {
        let methods = |(path, item): (&String, &Value)| {
            let methods: Vec<_> =
                item.as_object().unwrap().keys().map(|key| key.to_ascii_uppercase()).collect();
            methods.into_iter().map(|method| (path.clone(), method)).collect::<Vec<_>>()
        };
        paths().iter().flat_map(methods).collect()
    }

    /// Returns `true` if the router has the route: neither unknown nor answered with "not built".
    async fn is_there(router: &Router, method: &str, path: &str) -> bool {
        let concrete: Vec<_> = path
            .split('/')
            .map(|part| match part {
                "{project_id}" => "0123456789abcdef0123456789abcdef",
                part if part.starts_with('{') => "00000000-0000-4000-8000-00000000dead",
                part => part,
            })
            .collect();
        let request = Request::builder().method(method).uri(concrete.join("/")).header("host", "localhost");
        let request = request.header("openstack-api-version", "volume latest").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let unknown = status == StatusCode::NOT_FOUND
            && serde_json::from_slice::<Value>(&body).is_ok_and(|body| {
                body.get("title").is_some()
                    || body["itemNotFound"]["message"] == "There is nothing at this address."
            });
        !unknown && status != StatusCode::METHOD_NOT_ALLOWED && status != StatusCode::NOT_IMPLEMENTED
    }

    #[tokio::test]
    async fn every_route_is_described_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::open(ServiceOptions::new(dir.path().join("state")));
        let options = Options {
            auth: Auth::NoAuth,
            policies: std::sync::Arc::default(),
            public_url: None,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        };
        let router = router(service.unwrap(), options);
        let (storage, own) = (block_storage_routes::<Service>(), own_routes::<Service>());
        let storage = storage.paths().iter().map(|path| format!("/v3/{{project_id}}{path}"));
        let own = own.paths().iter().map(|path| format!("/mooring/v1{path}"));
        let root = ROOT.iter().map(|it| it.path.to_owned());
        let mut served = BTreeSet::new();
        for path in storage.chain(own).chain(root).filter(|path| !path.contains("{*")) {
            for method in METHODS {
                if is_there(&router, method, &path).await {
                    served.insert((path.clone(), method.to_owned()));
                }
            }
        }
        let described = described();
        let missing: Vec<_> = served.difference(&described).collect();
        let invented: Vec<_> = described.difference(&served).collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "not described: {missing:?}; not served: {invented:?}"
        );
    }

    #[test]
    fn names_and_references_are_right() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 50, "both files are read");
        let text = document.to_string();
        for (_, rest) in
            text.match_indices("#/components/schemas/").map(|(at, found)| text.split_at(at + found.len()))
        {
            let name = rest.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        let all = || BLOCK_STORAGE.iter().chain(&OWN).chain(&ROOT);
        let ids: BTreeSet<_> = all().map(|it| it.id).collect();
        assert_eq!(ids.len(), all().count(), "an operation's name is its own");
    }
}

//! Records as the Block Storage API shows them. Pure.
//!
//! What must never happen here: a key that a version does not have (clients check views against
//! strict schemas); a key for admins in another's answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use mooring_model::{AgentId, AttachmentId, Mode, Source, VolumeId};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::context::Ctx;
use super::version::Version;
use crate::domain::{
    Attached, Attachment, AttachmentStatus, Caller, Message, Snapshot, Volume, VolumeName, VolumeStatus,
    VolumeType,
};

/// Extra specs that everybody sees.
const VISIBLE_SPECS: [&str; 3] = ["RESKEY:availability_zones", "multiattach", "replication_enabled"];

/// The key that names the attachment of a connection info.
const ATTACHMENT_ID: &str = "attachment_id";

/// A list whose views are made while it is written: for a page of a thousand, memory holds one view
/// at a time beside the answer's bytes.
pub(super) struct Each<'a, T, V>(pub(super) &'a [T], pub(super) V);

impl<'a, T, V: Fn(&'a T) -> Shown, Shown: Serialize> Serialize for Each<'a, T, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

/// A key that is there with a null value.
const NOTHING: Option<()> = None;

/// A key that may be absent: outer `None` omits it, inner `None` shows null.
#[allow(clippy::option_option, reason = "not there, there without a value, there with one")]
type Known<T> = Option<Option<T>>;

/// UTC without a zone, with microseconds: clients parse exactly this form.
pub(super) fn naive(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string())
}

/// RFC 3339 in UTC, for Mooring's own API.
pub(super) fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
}

/// The answer that a type stands in: the keys differ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TypeView {
    /// Lists and one type.
    Shown,
    /// The answer to a create.
    Created,
    /// The answer to an update.
    Updated,
    /// `/types/default`.
    Default,
}

pub(super) fn volume_type(ctx: &Ctx, kind: &VolumeType, view: TypeView) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(kind.id.to_string()));
    map.insert("name".into(), json!(kind.name));
    map.insert("is_public".into(), json!(kind.is_public));
    map.insert("description".into(), json!(kind.description));
    if ctx.allows("volume_extension:access_types_extra_specs") {
        map.insert("extra_specs".into(), json!(visible_specs(ctx, kind)));
    }
    if ctx.allows("volume_extension:access_types_qos_specs_id")
        && matches!(view, TypeView::Shown | TypeView::Default)
    {
        map.insert("qos_specs_id".into(), Value::Null);
    }
    if ctx.allows("volume_extension:volume_type_access")
        && matches!(view, TypeView::Shown | TypeView::Created)
    {
        map.insert("os-volume-type-access:is_public".into(), json!(kind.is_public));
    }
    Value::Object(map)
}

/// Returns `true` if this caller may see an extra spec.
pub(super) fn spec_visible(ctx: &Ctx, key: &str) -> bool {
    VISIBLE_SPECS.contains(&key) || ctx.allows("volume_extension:types_extra_specs:read_sensitive")
}

/// The extra specs that this caller may see.
pub(super) fn visible_specs(ctx: &Ctx, kind: &VolumeType) -> Map<String, Value> {
    let seen = |key: &str| spec_visible(ctx, key);
    kind.extra_specs
        .iter()
        .filter(|(key, _)| seen(key))
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect()
}

#[derive(Serialize)]
struct Link {
    rel: &'static str,
    href: String,
}

fn links(ctx: &Ctx, id: VolumeId) -> [Link; 2] {
    [
        Link { rel: "self", href: ctx.href(&format!("/volumes/{id}")) },
        Link { rel: "bookmark", href: format!("{}/{}/volumes/{id}", ctx.base, ctx.caller.project) },
    ]
}

/// A volume's name.
#[derive(Serialize)]
pub(super) struct VolumeSummary<'a> {
    id: VolumeId,
    name: Option<&'a str>,
    links: [Link; 2],
}

pub(super) fn volume_summary<'a>(ctx: &'a Ctx, volume: &'a VolumeName) -> VolumeSummary<'a> {
    VolumeSummary { id: volume.id, name: volume.name.as_deref(), links: links(ctx, volume.id) }
}

/// The keys of a volume that a caller sees: decided once for an answer, however many volumes it
/// has.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "keys of the API")]
pub(super) struct VolumeKeys {
    /// `true` if the caller sees the keys that have no policy, which are for admins.
    admin: bool,
    /// `true` if the caller sees the hosts of attachments.
    host_names: bool,
    project: bool,
    host: bool,
    migration: bool,
}

impl VolumeKeys {
    /// The keys of creates and updates, which include no `os-*` keys.
    pub(super) fn changed(ctx: &Ctx) -> Self {
        let Caller { admin, service, .. } = ctx.caller;
        Self { admin, host_names: admin || service, project: false, host: false, migration: false }
    }

    /// The keys of shows and lists.
    pub(super) fn shown(ctx: &Ctx) -> Self {
        Self {
            project: ctx.allows("volume_extension:volume_tenant_attribute"),
            host: ctx.allows("volume_extension:volume_host_attribute"),
            migration: ctx.allows("volume_extension:volume_mig_status_attribute"),
            ..Self::changed(ctx)
        }
    }
}

/// A volume in full.
#[derive(Serialize)]
pub(super) struct VolumeView<'a> {
    id: VolumeId,
    name: Option<&'a str>,
    description: Option<&'a str>,
    status: &'static str,
    size: u32,
    availability_zone: &'a str,
    created_at: Option<String>,
    updated_at: Option<String>,
    volume_type: &'a str,
    snapshot_id: Option<VolumeId>,
    source_volid: Option<VolumeId>,
    metadata: Metadata<'a>,
    links: [Link; 2],
    user_id: &'a str,
    bootable: &'static str,
    encrypted: bool,
    replication_status: Option<()>,
    consistencygroup_id: Option<()>,
    multiattach: bool,
    attachments: Vec<AttachedView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    migration_status: Known<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_id: Known<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_id: Known<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_targets: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_uuid: Option<AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_name: Known<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_type_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumes_quota: Option<bool>,
    #[serde(rename = "os-vol-tenant-attr:tenant_id", skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(rename = "os-vol-mig-status-attr:migstat", skip_serializing_if = "Option::is_none")]
    migstat: Known<()>,
    #[serde(rename = "os-vol-mig-status-attr:name_id", skip_serializing_if = "Option::is_none")]
    name_id: Known<()>,
    #[serde(rename = "os-vol-host-attr:host", skip_serializing_if = "Option::is_none")]
    host: Known<&'a str>,
}

/// The users' own keys, and the readonly flag in Python's words, as Cinder shows it.
#[derive(Serialize)]
#[serde(untagged)]
enum Metadata<'a> {
    Own(&'a BTreeMap<String, String>),
    Flagged(BTreeMap<&'a str, &'a str>),
}

/// An entry of a volume's `attachments`. As in Cinder, its `id` is the volume's.
#[derive(Serialize)]
struct AttachedView<'a> {
    id: VolumeId,
    attachment_id: AttachmentId,
    volume_id: VolumeId,
    server_id: Option<Uuid>,
    host_name: Option<&'a str>,
    device: Option<&'a str>,
    attached_at: Option<String>,
}

pub(super) fn volume<'a>(ctx: &'a Ctx, keys: VolumeKeys, volume: &'a Volume) -> VolumeView<'a> {
    let admin = keys.admin;
    let attached =
        volume.attachments.iter().filter(|attachment| attachment.status == AttachmentStatus::Attached);
    let since = |version| ctx.version >= version;
    let nothing = |known: bool| known.then_some(NOTHING);
    VolumeView {
        id: volume.id,
        name: volume.name.as_deref(),
        description: volume.description.as_deref(),
        status: volume.status.as_str(),
        size: volume.size_gib,
        availability_zone: &volume.place.zone,
        created_at: naive(volume.created_at),
        updated_at: volume.updated_at.and_then(naive),
        volume_type: &volume.volume_type.name,
        snapshot_id: source(volume, |of| matches!(of, Source::Snapshot(_))),
        source_volid: source(volume, |of| matches!(of, Source::Volume(_))),
        metadata: metadata(volume),
        links: links(ctx, volume.id),
        user_id: &volume.user,
        bootable: if volume.bootable { "true" } else { "false" },
        encrypted: false,
        replication_status: NOTHING,
        consistencygroup_id: NOTHING,
        multiattach: volume.multiattach,
        attachments: attached.map(|attachment| attached_view(keys, volume.id, attachment)).collect(),
        migration_status: nothing(admin),
        group_id: nothing(since(Version::GROUP_ID)),
        provider_id: nothing(admin && since(Version::PROVIDER_ID)),
        // Each volume has its own target: a login or logout of one never touches another.
        shared_targets: since(Version::SHARED_TARGETS).then_some(false),
        service_uuid: since(Version::SHARED_TARGETS).then_some(volume.place.agent),
        cluster_name: nothing(admin && since(Version::CLUSTER_NAME)),
        volume_type_id: since(Version::TYPE_ID).then_some(volume.volume_type.id),
        consumes_quota: since(Version::CONSUMES_QUOTA).then_some(true),
        tenant: keys.project.then_some(volume.project.as_str()),
        migstat: nothing(keys.migration),
        name_id: nothing(keys.migration),
        host: keys.host.then_some(volume.place.host.as_deref()),
    }
}

/// The source of a volume; `None` if it is of another kind.
fn source(volume: &Volume, is: fn(&Source) -> bool) -> Option<VolumeId> {
    volume.source.filter(is).map(Source::id)
}

/// The answer that a snapshot stands in: the keys differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotView {
    /// Short lists.
    Listed,
    /// The answers to creates and changes.
    Changed,
    /// Shows, and detailed lists.
    Shown,
}

/// A snapshot.
pub(super) fn snapshot(ctx: &Ctx, snapshot: &Snapshot, of: SnapshotView) -> Value {
    let details = of != SnapshotView::Listed;
    let mut view = json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "description": snapshot.description,
        "volume_id": snapshot.volume,
        "size": snapshot.size_gib,
        "status": snapshot.status.as_str(),
        "created_at": naive(snapshot.created_at),
        "updated_at": snapshot.updated_at.and_then(naive),
        "metadata": snapshot.metadata,
    });
    let Some(keys) = view.as_object_mut() else { return view };
    let mut put = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    if of == SnapshotView::Shown && ctx.allows("volume_extension:extended_snapshot_attributes") {
        let progress = if snapshot.status == VolumeStatus::Available { "100%" } else { "0%" };
        put("os-extended-snapshot-attributes:progress", json!(progress));
        put("os-extended-snapshot-attributes:project_id", json!(snapshot.project));
    }
    if ctx.version >= Version::GROUP_SNAPSHOTS && details {
        put("group_snapshot_id", Value::Null);
    }
    if ctx.version >= Version::SNAPSHOT_USER && details {
        put("user_id", json!(snapshot.user));
    }
    if ctx.version >= Version::CONSUMES_QUOTA && details {
        put("consumes_quota", json!(true));
    }
    view
}

fn metadata(volume: &Volume) -> Metadata<'_> {
    let Some(readonly) = volume.readonly else { return Metadata::Own(&volume.metadata) };
    let mut shown: BTreeMap<_, _> =
        volume.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    shown.insert("readonly", if readonly { "True" } else { "False" });
    let attached = volume.attachments.iter().find(|one| one.status == AttachmentStatus::Attached);
    if let Some(attached) = attached {
        shown.insert("attached_mode", if attached.mode == Mode::ReadWrite { "rw" } else { "ro" });
    }
    Metadata::Flagged(shown)
}

fn attached_view(keys: VolumeKeys, volume: VolumeId, attachment: &Attached) -> AttachedView<'_> {
    AttachedView {
        id: volume,
        attachment_id: attachment.id,
        volume_id: volume,
        server_id: attachment.instance,
        host_name: attachment.attached_host.as_deref().filter(|_| keys.host_names),
        device: attachment.mountpoint.as_deref(),
        attached_at: attachment.attached_at.and_then(naive),
    }
}

/// An attachment's state.
#[derive(Serialize)]
pub(super) struct AttachmentSummary {
    id: AttachmentId,
    status: &'static str,
    instance: Option<Uuid>,
    volume_id: VolumeId,
}

pub(super) fn attachment_summary(attachment: &Attachment) -> AttachmentSummary {
    AttachmentSummary {
        id: attachment.id,
        status: attachment.status.as_str(),
        instance: attachment.instance,
        volume_id: attachment.volume,
    }
}

/// An attachment in full. Its `connection_info` is flat, and contains the CHAP secret. Only callers
/// of the attachment's project get it, which the service ensures.
#[derive(Serialize)]
pub(super) struct AttachmentView<'a> {
    #[serde(flatten)]
    summary: AttachmentSummary,
    attached_at: String,
    detached_at: &'static str,
    attach_mode: Mode,
    connection_info: Cow<'a, Map<String, Value>>,
}

pub(super) fn attachment(attachment: &Attachment) -> AttachmentView<'_> {
    let mut info = attachment.connection_info.as_ref().map_or_else(Cow::default, Cow::Borrowed);
    if !info.is_empty() && !info.contains_key(ATTACHMENT_ID) {
        info.to_mut().insert(ATTACHMENT_ID.to_owned(), json!(attachment.id));
    }
    AttachmentView {
        summary: attachment_summary(attachment),
        attached_at: attachment.attached_at.and_then(naive).unwrap_or_default(),
        detached_at: "",
        attach_mode: attachment.mode,
        connection_info: info,
    }
}

/// A message. Its links stay even if its resource is gone.
pub(super) fn message(ctx: &Ctx, message: &Message) -> Value {
    let path = format!("/messages/{}", message.id);
    json!({
        "id": message.id.to_string(),
        "event_id": message.event,
        "user_message": message.text,
        "message_level": message.level,
        "created_at": naive(message.created_at),
        "guaranteed_until": naive(message.expires_at),
        "request_id": message.request,
        "resource_type": message.resource_kind,
        "resource_uuid": message.resource_id,
        "links": [
            { "rel": "self", "href": ctx.href(&path) },
            { "rel": "bookmark", "href": format!("{}/{}{path}", ctx.base, ctx.caller.project) },
        ],
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_have_microseconds_and_no_zone() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_000_000_000_042);
        assert_eq!(naive(time).unwrap(), "2026-11-18T11:06:40.000042");
        assert_eq!(rfc3339(time).unwrap(), "2026-11-18T11:06:40.000042Z");
    }
}

//! Records as the Block Storage API shows them. Pure.
//!
//! What must never happen here: a key that a version does not have (clients check views against strict schemas); a key
//! for admins in another's answer.

use std::time::SystemTime;

use jiff::Timestamp;
use mooring_model::VolumeId;
use serde_json::{Map, Value, json};

use super::context::Ctx;
use super::version::Version;
use crate::domain::{Attachment, AttachmentStatus, Volume, VolumeType};

/// The one availability zone.
pub(super) const ZONE: &str = "nova";

/// Extra specs that everybody sees.
const VISIBLE_SPECS: [&str; 3] = ["RESKEY:availability_zones", "multiattach", "replication_enabled"];

/// UTC without a zone, with microseconds: clients parse exactly this.
pub(super) fn naive(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string())
}

/// RFC 3339 in UTC, for Mooring's own API.
pub(super) fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
}

/// Which answer a type stands in: their keys differ.
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
    map.insert("extra_specs".into(), json!(visible_specs(ctx, kind)));
    if ctx.caller.admin && matches!(view, TypeView::Shown | TypeView::Default) {
        map.insert("qos_specs_id".into(), Value::Null);
    }
    if matches!(view, TypeView::Shown | TypeView::Created) {
        map.insert("os-volume-type-access:is_public".into(), json!(kind.is_public));
    }
    Value::Object(map)
}

/// The extra specs that this caller may see.
pub(super) fn visible_specs(ctx: &Ctx, kind: &VolumeType) -> Map<String, Value> {
    let seen = |key: &str| ctx.caller.admin || VISIBLE_SPECS.contains(&key);
    kind.extra_specs
        .iter()
        .filter(|(key, _)| seen(key))
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect()
}

fn links(ctx: &Ctx, id: VolumeId) -> Value {
    json!([
        { "rel": "self", "href": ctx.href(&format!("/volumes/{id}")) },
        { "rel": "bookmark", "href": format!("{}/{}/volumes/{id}", ctx.base, ctx.caller.project) },
    ])
}

pub(super) fn volume_summary(ctx: &Ctx, volume: &Volume) -> Value {
    json!({ "id": volume.id.to_string(), "name": volume.name, "links": links(ctx, volume.id) })
}

/// A volume in full. `shown`: the answer to a show or a list, which has the `os-*` keys; those of creates and updates have
/// not.
pub(super) fn volume(ctx: &Ctx, volume: &Volume, shown: bool) -> Value {
    let admin = ctx.caller.admin;
    let attached: Vec<_> = volume
        .attachments
        .iter()
        .filter(|attachment| attachment.status == AttachmentStatus::Attached)
        .map(|attachment| attached(ctx, attachment))
        .collect();
    let mut view = json!({
        "id": volume.id.to_string(),
        "name": volume.name,
        "description": volume.description,
        "status": volume.status.as_str(),
        "size": volume.size_gib,
        "availability_zone": ZONE,
        "created_at": naive(volume.created_at),
        "updated_at": volume.updated_at.and_then(naive),
        "volume_type": volume.volume_type.name,
        "snapshot_id": null,
        "source_volid": null,
        "metadata": volume.metadata,
        "links": links(ctx, volume.id),
        "user_id": volume.user,
        "bootable": "false",
        "encrypted": false,
        "replication_status": null,
        "consistencygroup_id": null,
        "multiattach": volume.multiattach,
        "attachments": attached,
    });
    let Value::Object(map) = &mut view else { return view };
    let mut put = |known: bool, key: &str, value: Value| {
        if known {
            map.insert(key.to_owned(), value);
        }
    };
    let since = |version| ctx.version >= version;
    put(admin, "migration_status", Value::Null);
    put(since(Version::GROUP_ID), "group_id", Value::Null);
    put(admin && since(Version::PROVIDER_ID), "provider_id", Value::Null);
    // Each volume has a target of its own: a login or logout of one never touches another.
    put(since(Version::SHARED_TARGETS), "shared_targets", json!(false));
    put(since(Version::SHARED_TARGETS), "service_uuid", Value::Null);
    put(admin && since(Version::CLUSTER_NAME), "cluster_name", Value::Null);
    put(since(Version::TYPE_ID), "volume_type_id", json!(volume.volume_type.id.to_string()));
    put(since(Version::CONSUMES_QUOTA), "consumes_quota", json!(true));
    put(shown, "os-vol-tenant-attr:tenant_id", json!(volume.project));
    put(shown && admin, "os-vol-mig-status-attr:migstat", Value::Null);
    put(shown && admin, "os-vol-mig-status-attr:name_id", Value::Null);
    put(shown && admin, "os-vol-host-attr:host", json!(volume.host));
    view
}

/// An entry of a volume's `attachments`. Its `id` is the volume's, as ever.
fn attached(ctx: &Ctx, attachment: &Attachment) -> Value {
    json!({
        "id": attachment.volume.to_string(),
        "attachment_id": attachment.id.to_string(),
        "volume_id": attachment.volume.to_string(),
        "server_id": attachment.instance.map(|id| id.to_string()),
        "host_name": attachment.attached_host.as_ref().filter(|_| ctx.caller.admin),
        "device": attachment.mountpoint,
        "attached_at": attachment.attached_at.and_then(naive),
    })
}

pub(super) fn attachment_summary(attachment: &Attachment) -> Value {
    json!({
        "id": attachment.id.to_string(),
        "status": attachment.status.as_str(),
        "instance": attachment.instance.map(|id| id.to_string()),
        "volume_id": attachment.volume.to_string(),
    })
}

/// An attachment in full. Its `connection_info` is flat, and has the CHAP secret: it goes to callers of its project only,
/// which is what the service hands out.
pub(super) fn attachment(attachment: &Attachment) -> Value {
    let mut info = attachment.connection_info.clone().unwrap_or_default();
    if !info.is_empty() {
        info.entry("attachment_id").or_insert_with(|| json!(attachment.id.to_string()));
    }
    json!({
        "id": attachment.id.to_string(),
        "status": attachment.status.as_str(),
        "instance": attachment.instance.map(|id| id.to_string()),
        "volume_id": attachment.volume.to_string(),
        "attached_at": attachment.attached_at.and_then(naive).unwrap_or_default(),
        "detached_at": "",
        "attach_mode": attachment.mode.to_string(),
        "connection_info": info,
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

//! Rows as users see them.
//!
//! What must never happen here: connection info before the grant is seen, or of a nexus that a host of ours uses.

use mooring_model::{LUN_DEFAULT, Portal};
use serde_json::{Map, Value, json};

use crate::domain::{Attachment, AttachmentStatus, Volume};
use crate::flow::Inner;
use crate::service::Refusal;
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// A volume with its attachments.
pub(super) fn volume(inner: &Inner, db: &Db<'_>, row: VolumeRow) -> Result<Volume, Abort> {
    let rows = db.attachments_of(row.id)?;
    let attachments = rows
        .into_iter()
        .map(|attachment| self::attachment(db, &row, attachment))
        .collect::<Result<_, _>>()?;
    let volume_type = db.type_by_id(row.type_id)?.ok_or_else(|| {
        Refusal::Internal(format!("the type of volume {} is gone: see the controller's log", row.id))
    })?;
    let fault = row.review.clone().or(row.fault);
    Ok(Volume {
        id: row.id,
        name: row.name,
        description: row.description,
        size_gib: row.size_gib,
        volume_type,
        multiattach: row.multiattach,
        status: row.status,
        attach_status: row.attach_status,
        project: row.project,
        user: row.user,
        metadata: row.metadata,
        host: Some(format!("{}@lvm#{}", inner.agents.name_of(row.agent), row.pool)),
        created_at: row.created_at,
        updated_at: row.updated_at,
        fault,
        attachments,
    })
}

/// An attachment.
pub(super) fn attachment(db: &Db<'_>, volume: &VolumeRow, row: AttachmentRow) -> Result<Attachment, Abort> {
    let connection_info = connection_info(db, volume, &row)?;
    Ok(Attachment {
        id: row.id,
        volume: row.volume,
        instance: row.instance,
        mode: row.mode,
        status: row.status,
        connector: row.connector,
        initiator: row.initiator,
        attached_host: row.host,
        mountpoint: row.mountpoint,
        native: row.native,
        connection_info,
        created_at: row.created_at,
        attached_at: row.attached_at,
        fault: row.fault,
    })
}

/// How a client logs in, flat, with the keys that os-brick reads.
fn connection_info(
    db: &Db<'_>,
    volume: &VolumeRow,
    row: &AttachmentRow,
) -> Result<Option<Map<String, Value>>, Abort> {
    let live = matches!(row.status, AttachmentStatus::Attaching | AttachmentStatus::Attached);
    if !row.granted || !row.grant_wanted || !live || row.native.is_some() {
        return Ok(None);
    }
    let (Some(initiator), Some(target), Some(portal)) =
        (&row.initiator, &volume.target, volume.portals.first())
    else {
        return Ok(None);
    };
    let Some(nexus) = db.nexus(volume.id, initiator)? else { return Ok(None) };
    let flag = |key: &str| {
        row.connector.as_ref().and_then(|connector| connector.get(key)).and_then(Value::as_bool) == Some(true)
    };
    let mut info = json!({
        "driver_volume_type": "iscsi",
        "target_discovered": false,
        "target_iqn": target,
        "target_portal": portal.to_string(),
        "target_lun": LUN_DEFAULT.0,
        "volume_id": volume.id,
        "auth_method": "CHAP",
        "auth_username": nexus.0.initiator.user,
        "auth_password": nexus.0.initiator.secret.expose(),
        "access_mode": row.mode,
        "encrypted": false,
        "cacheable": false,
        "discard": false,
        "qos_specs": null,
        "enforce_multipath": flag("enforce_multipath"),
        "attachment_id": row.id,
    });
    // With both lists os-brick asks for no discovery, which the target would not answer without its own credentials.
    if (volume.portals.len() > 1 || flag("multipath"))
        && let Some(info) = info.as_object_mut()
    {
        let portals = volume.portals.iter().map(Portal::to_string);
        info.insert("target_portals".to_owned(), portals.collect());
        info.insert("target_iqns".to_owned(), volume.portals.iter().map(|_| target.as_str()).collect());
        info.insert("target_luns".to_owned(), volume.portals.iter().map(|_| LUN_DEFAULT.0).collect());
    }
    match info {
        Value::Object(info) => Ok(Some(info)),
        _ => Ok(None),
    }
}

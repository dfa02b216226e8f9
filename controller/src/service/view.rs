//! Views of rows, as users see them.
//!
//! What must never happen here: connection info before the grant is reported, or for a nexus that
//! an enrolled host uses; a secret for a caller who only reads, and is neither a service nor an
//! admin.

use std::collections::BTreeMap;

use mooring_model::{AgentId, LUN_DEFAULT, Lun, Portal, VolumeId};
use serde_json::{Map, Value, json};

use crate::domain::{Attached, Attachment, AttachmentStatus, Snapshot, Volume, VolumePlace, VolumeType};
use crate::flow::Facts;
use crate::initiators::{HostPorts, Initiators};
use crate::schedule::capabilities::BACKEND;
use crate::service::Refusal;
use crate::store::{Abort, AttachmentRow, Connector, Db, Nexus, VolumeRow};

/// Tells if a view has the CHAP secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrets {
    /// With secrets: for a caller who connects, or who may read them again.
    Shown,
    /// Without secrets.
    Hidden,
}

/// Prefix of the keys with credentials.
const CREDENTIALS: &str = "auth_";

/// A pool's name in the API.
pub(super) fn pool_name(facts: &Facts, agent: AgentId, pool: &str) -> String {
    format!("{}@{BACKEND}#{pool}", facts.agents.name_of(agent))
}

/// A volume with its attachments.
pub(super) fn volume(facts: &Facts, db: &Db<'_>, row: VolumeRow) -> Result<Volume, Abort> {
    let attachments = db.attached_to(&[row.id])?.remove(&row.id).unwrap_or_default();
    let volume_type = db.type_by_id(row.type_id)?.ok_or_else(|| without_type(row.id))?;
    Ok(volume_of(facts, row, volume_type, attachments))
}

pub(super) fn without_type(id: VolumeId) -> Refusal {
    Refusal::Internal(format!("the type of volume {id} is gone: see the controller's log"))
}

/// A volume, from rows that were read before.
pub(super) fn volume_of(
    facts: &Facts,
    row: VolumeRow,
    volume_type: VolumeType,
    attachments: Vec<Attached>,
) -> Volume {
    let size_gib = row.served_gib();
    let host = row.is_placed().then(|| pool_name(facts, row.agent, &row.pool));
    Volume {
        id: row.id,
        name: row.name,
        description: row.description,
        size_gib,
        volume_type,
        multiattach: row.multiattach,
        status: row.status,
        attach_status: row.attach_status,
        project: row.project,
        user: row.user,
        metadata: row.metadata,
        place: VolumePlace { agent: row.agent, host, zone: row.zone },
        created_at: row.created_at,
        updated_at: row.updated_at,
        fault: row.review.map(|review| review.why).or(row.fault),
        attachments,
        bootable: row.bootable,
        readonly: row.readonly,
        source: row.source,
    }
}

/// A snapshot.
pub(super) fn snapshot_of(row: VolumeRow, volume: VolumeId) -> Snapshot {
    Snapshot {
        id: row.id,
        volume,
        name: row.name,
        description: row.description,
        size_gib: row.size_gib,
        status: row.status,
        project: row.project,
        user: row.user,
        metadata: row.metadata,
        created_at: row.created_at,
        updated_at: row.updated_at,
        fault: row.review.map(|review| review.why).or(row.fault),
    }
}

/// An attachment, by its row alone.
pub(super) fn attachment(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    row: AttachmentRow,
    secrets: Secrets,
) -> Result<Attachment, Abort> {
    let shown = row.is_granted();
    attachment_with(facts, db, volume, row, shown, secrets)
}

fn attachment_with(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    row: AttachmentRow,
    shown: bool,
    secrets: Secrets,
) -> Result<Attachment, Abort> {
    let nexus = match row.initiator.as_ref().and_then(Initiators::iqn) {
        Some(initiator) if can_log_in(&row, shown) => db.nexus(volume.id, initiator)?,
        _ => None,
    };
    Ok(attachment_of(facts, volume, row, shown, nexus.as_ref(), secrets))
}

/// An attachment, from rows that were read before. `shown` is `true` if a report of the storage
/// agent has shown the attachment's grant.
pub(super) fn attachment_of(
    facts: &Facts,
    volume: &VolumeRow,
    row: AttachmentRow,
    shown: bool,
    nexus: Option<&Nexus>,
    secrets: Secrets,
) -> Attachment {
    let discard = facts.agents.by_id(volume.agent).is_some_and(|agent| agent.discards(&volume.pool));
    let mut connection_info = connection_info(volume, &row, shown, nexus, discard);
    if let Some(info) = connection_info.as_mut().filter(|_| secrets == Secrets::Hidden) {
        info.retain(|key, _| !key.starts_with(CREDENTIALS));
    }
    Attachment {
        id: row.id,
        volume: row.volume,
        instance: row.instance,
        mode: row.mode,
        cache: row.cache,
        status: row.status,
        connector: row.connector.as_ref().map(Connector::map),
        initiator: row.initiator,
        attached_host: row.host,
        mountpoint: row.mountpoint,
        native: row.native,
        connection_info,
        created_at: row.created_at,
        attached_at: row.attached_at,
        fault: row.fault,
    }
}

/// An attachment as it is now: counts a grant that the storage agent reports and that the row does
/// not have yet.
pub(super) fn attachment_now(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    row: AttachmentRow,
    secrets: Secrets,
) -> Result<Attachment, Abort> {
    let shown = facts.sees_grant(db, volume.agent, &row)?;
    attachment_with(facts, db, volume, row, shown, secrets)
}

/// Returns `true` if a client may log in for the attachment. A native attachment has no client.
fn can_log_in(row: &AttachmentRow, shown: bool) -> bool {
    let live = matches!(row.status, AttachmentStatus::Attaching | AttachmentStatus::Attached);
    shown && live && row.wants_grant() && row.native.is_none()
}

/// The data with which a client logs in: one flat object with the keys that os-brick reads. `None`
/// while the client cannot log in, and for a native attachment.
fn connection_info(
    volume: &VolumeRow,
    row: &AttachmentRow,
    shown: bool,
    nexus: Option<&Nexus>,
    discard: bool,
) -> Option<Map<String, Value>> {
    if !can_log_in(row, shown) {
        return None;
    }
    let flag = |key: &str| row.connector.as_ref().is_some_and(|connector| connector.says(key));
    let common = json!({
        "volume_id": volume.id,
        "access_mode": row.mode,
        "encrypted": false,
        "cacheable": false,
        "discard": discard,
        "qos_specs": null,
        "enforce_multipath": flag("enforce_multipath"),
        "attachment_id": row.id,
    });
    let own = match row.initiator.as_ref()? {
        Initiators::Iscsi(_) => over_iscsi(volume, nexus?, flag("multipath"))?,
        Initiators::Fc(ports) => over_fc(volume, ports, row.lun?)?,
    };
    let (Value::Object(mut info), Value::Object(own)) = (common, own) else { return None };
    info.extend(own);
    Some(info)
}

fn over_iscsi(volume: &VolumeRow, nexus: &Nexus, multipath: bool) -> Option<Value> {
    let (target, portal) = (volume.target.as_ref()?, volume.portals.first()?);
    let mut info = json!({
        "driver_volume_type": "iscsi",
        "target_discovered": false,
        "target_iqn": target,
        "target_portal": portal.to_string(),
        "target_lun": LUN_DEFAULT.0,
        "auth_method": "CHAP",
        "auth_username": nexus.0.initiator.user,
        "auth_password": nexus.0.initiator.secret.expose(),
    });
    // With both lists os-brick does no discovery. The target answers none without credentials of
    // its own.
    if (volume.portals.len() > 1 || multipath)
        && let Some(info) = info.as_object_mut()
    {
        let portals = volume.portals.iter().map(Portal::to_string);
        info.insert("target_portals".to_owned(), portals.collect());
        info.insert("target_iqns".to_owned(), volume.portals.iter().map(|_| target.as_str()).collect());
        info.insert("target_luns".to_owned(), volume.portals.iter().map(|_| LUN_DEFAULT.0).collect());
    }
    Some(info)
}

/// Connection info over Fibre Channel. The map names the target ports for each port of the host.
/// Without it os-brick scans behind all ports that it sees, and adds unrelated disks.
fn over_fc(volume: &VolumeRow, ports: &HostPorts, lun: Lun) -> Option<Value> {
    // os-brick compares these with what Linux prints, which has no leading zeros.
    let targets: Vec<_> = volume.fc_ports.iter().map(|port| port.to_linux()).collect();
    if targets.is_empty() {
        return None;
    }
    let map: BTreeMap<_, _> = ports.iter().map(|port| (port.to_linux(), &targets)).collect();
    Some(json!({
        "driver_volume_type": "fibre_channel",
        "target_discovered": true,
        "target_wwn": targets,
        "target_lun": lun.0,
        "initiator_target_map": map,
        "enable_wildcard_scan": false,
    }))
}

#[cfg(test)]
mod tests {
    use mooring_model::Mode;

    use super::*;
    use crate::store::Access;

    fn volume(ports: &[&str]) -> VolumeRow {
        crate::store::testing::volume(VolumeId::from_u128(1), ports)
    }

    fn row(volume: &VolumeRow) -> AttachmentRow {
        let id = mooring_model::AttachmentId::from_u128(2);
        let connector = json!({ "wwpns": ["200052540014000b"], "enforce_multipath": true });
        AttachmentRow {
            status: AttachmentStatus::Attaching,
            mode: Mode::ReadOnly,
            initiator: "20:00:52:54:00:14:00:0b,20:00:52:54:00:14:00:0c".parse().ok(),
            lun: Some(Lun(7)),
            connector: connector.as_object().map(Connector::of),
            access: Access::of(20),
            ..AttachmentRow::reserved(id, volume.id, "p", volume.created_at)
        }
    }

    #[test]
    fn a_host_is_told_where_to_look_over_fibre_channel() {
        let volume = volume(&["20:00:52:54:00:14:00:0a", "20:00:52:54:00:14:01:0a"]);
        let info = connection_info(&volume, &row(&volume), true, None, false).unwrap();
        let targets = json!(["200052540014000a", "200052540014010a"]);
        assert_eq!(info["driver_volume_type"], "fibre_channel");
        assert_eq!((&info["target_wwn"], &info["target_lun"]), (&targets, &json!(7)));
        let map = json!({ "200052540014000b": targets, "200052540014000c": targets });
        assert_eq!(info["initiator_target_map"], map);
        assert_eq!((&info["access_mode"], &info["enforce_multipath"]), (&json!("ro"), &json!(true)));
        assert!(info.keys().all(|key| !key.starts_with(CREDENTIALS)), "{info:?}");
        assert_eq!(connection_info(&volume, &row(&volume), false, None, false), None, "no report shows it");
    }

    #[test]
    fn names_of_ports_are_spelled_as_linux_prints_them() {
        let volume = volume(&["01:00:00:00:00:00:0a:01", "20:00:52:54:00:14:01:0a"]);
        let initiator = "01:00:00:00:00:00:0b:01,20:00:52:54:00:14:00:0c".parse().ok();
        let row = AttachmentRow { initiator, ..row(&volume) };
        let info = connection_info(&volume, &row, true, None, false).unwrap();
        let targets = json!(["100000000000a01", "200052540014010a"]);
        assert_eq!(info["target_wwn"], targets);
        let map = json!({ "100000000000b01": targets, "200052540014000c": targets });
        assert_eq!(info["initiator_target_map"], map);
    }

    #[test]
    fn nobody_is_sent_to_ports_that_are_not_known() {
        let volume = volume(&[]);
        assert_eq!(connection_info(&volume, &row(&volume), true, None, false), None);
    }
}

//! Secrets that are rotated, step by step as the agents say so (decision 72).
//!
//! First the host gets the new secrets beside the old ones. When its keeper of sessions has written both down, the target gets the new
//! ones. When the storage agent has shown that the kernel has them, the host forgets the old ones. Everything that a step needs stands
//! in the nexus's row: whoever was killed, the next report goes on.
//!
//! What must never happen here: a target given secrets that its host does not know yet; secrets forgotten that the target may have.

use mooring_model::{AgentId, ConnectionReport, ExportReport, VolumeId};

use crate::initiators::Initiators;
use crate::store::{Abort, AttachmentRow, Db, Kind, Nexus, Stage};

/// With how many secrets a host can log in while they are rotated.
const BOTH: u32 = 2;

/// The host's connection is known by this report to have both secrets: from now on the target is to have the new ones. Returns whether
/// that is new. `report` must be of the connection's wish as it is now.
pub(super) fn heard_by_host(
    db: &Db<'_>,
    volume: VolumeId,
    host: AgentId,
    rows: &[AttachmentRow],
    report: Option<&ConnectionReport>,
) -> Result<bool, Abort> {
    if report.and_then(|report| report.secrets) != Some(BOTH) {
        return Ok(false);
    }
    let own = rows.iter().find(|row| row.native == Some(host) && row.connect_wanted);
    let Some(initiator) = own.and_then(|row| row.initiator.as_ref()).and_then(Initiators::iqn) else {
        return Ok(false);
    };
    let rotation = db.rotation(volume, initiator)?;
    if rotation.and_then(|rotation| rotation.stage) != Some(Stage::Offered) {
        return Ok(false);
    }
    let (Some(Nexus(old)), Some(new)) = (db.nexus(volume, initiator)?, db.other_secrets(volume, initiator)?)
    else {
        return Ok(false);
    };
    db.put_secrets(volume, initiator, &new, Some((Stage::Switched, Some(&old))))?;
    tracing::info!(%volume, %initiator, "its host knows the new secret beside the old one: the target gets it");
    Ok(true)
}

/// The kernel has the export as it is wished now: secrets beside those in it are worth nothing any more. Returns whether some were
/// forgotten, and whether a target is still waited for.
pub(super) fn seen_at_target(
    db: &Db<'_>,
    volume: VolumeId,
    report: &ExportReport,
) -> Result<(bool, bool), Abort> {
    let mut waited = db.rotations_of(volume)?;
    waited.retain(|(_, stage)| matches!(stage, Stage::Switched | Stage::Settling));
    if waited.is_empty() {
        return Ok((false, false));
    }
    let wished = db.spec(volume, Kind::Export)?.map(|spec| spec.stamp.generation);
    if !report.in_force || wished.is_none_or(|wished| report.generation < wished) {
        return Ok((false, true));
    }
    for (initiator, stage) in &waited {
        db.end_rotation(volume, initiator)?;
        tracing::info!(%volume, %initiator, ?stage, "the target has the secret: the other one is worth nothing");
    }
    Ok((true, false))
}

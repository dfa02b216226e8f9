//! Rotation of CHAP secrets, step by step as the agents confirm (decision 72).
//!
//! First the host gets the new secrets beside the old ones. When its session daemon has stored
//! both, the target gets the new ones. When the storage agent has shown that the kernel has them,
//! the host drops the old ones. The nexus's row holds everything that a step needs: after a crash,
//! the next report goes on.
//!
//! What must never happen here: a target that gets secrets which its host does not know yet;
//! secrets forgotten that the target may have.

use mooring_model::{AgentId, ConnectionReport, ExportReport, VolumeId};

use crate::initiators::Initiators;
use crate::store::{Abort, AttachmentRow, Db, Kind, Nexus, Stage};

/// Number of secrets that a host knows while they are rotated.
const BOTH: u32 = 2;

/// Gives the target the new secrets once this report shows that the host's connection has both.
/// Returns `true` if that was news. `report` must belong to the connection's present spec.
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
    let own = rows.iter().find(|row| row.native == Some(host) && row.wants_path());
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

/// Ends rotations once the kernel has the present spec of the export: other secrets than those in
/// it are worth nothing then. Returns whether a rotation ended, and whether one still waits for the
/// target.
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
    let current = db.spec_stamp(volume, Kind::Export)?.map(|stamp| stamp.generation);
    if !report.in_force || current.is_none_or(|current| report.generation < current) {
        return Ok((false, true));
    }
    for (initiator, stage) in &waited {
        db.end_rotation(volume, initiator)?;
        tracing::info!(%volume, %initiator, ?stage, "the target has the new secret: the old one is no longer valid");
    }
    Ok((true, false))
}

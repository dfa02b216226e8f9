//! Attachments that failed. One that holds nothing holds up nothing: no verb on its volume waits
//! for it, and it goes with the volume. Any other is named in the refusal.
//!
//! What must never happen here: an attachment that goes while an agent may have a part of it.

use mooring_model::VolumeId;

use super::detach::asked_by;
use crate::domain::Caller;
use crate::flow::forced::ask;
use crate::store::{Abort, AttachmentRow, Db};

/// Returns the attachments that hold up a verb on a volume: all but those that failed and hold
/// nothing.
pub(super) fn holding(db: &Db<'_>, id: VolumeId) -> Result<Vec<AttachmentRow>, Abort> {
    let mut rows = db.attachments_of(id)?;
    rows.retain(|row| !row.holds_nothing());
    Ok(rows)
}

/// Ends the attachments of a volume that is to go which failed and hold nothing. Each leaves the
/// record of its detach. Returns the others: they hold the volume up.
pub(super) fn end(db: &Db<'_>, caller: &Caller, id: VolumeId) -> Result<Vec<AttachmentRow>, Abort> {
    let (failed, left): (Vec<_>, Vec<_>) =
        db.attachments_of(id)?.into_iter().partition(AttachmentRow::holds_nothing);
    for mut row in failed {
        ask(&asked_by(db, caller), &mut row, false);
        db.detach(&row, None, false)?;
    }
    Ok(left)
}

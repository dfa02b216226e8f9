//! Forced detaches: attachments that are detached without asking their hosts.
//!
//! What must never happen here: an attachment that goes while a storage agent still grants its
//! access.

use std::collections::BTreeSet;

use super::taking::UNSENT;
use super::volume_specs::{self, SpecChanges};
use crate::domain::AttachmentStatus;
use crate::store::{Abort, Asked, AttachmentRow, Db, Kind, VolumeRow};

/// Notes who asked for the detach: the first caller, and with `anew` the one who forced it.
pub(crate) fn ask(asked: &Asked, row: &mut AttachmentRow, anew: bool) {
    if anew || row.asked.is_none() {
        row.asked = Some(asked.clone());
    }
}

pub(crate) fn force_away(asked: &Asked, row: &mut AttachmentRow) {
    ask(asked, row, !row.is_forced());
    row.force();
}

/// Forces an attachment of a volume in review away. No spec is sent for such a volume: the spec
/// that its agent stores decides what goes.
pub(crate) fn force_in_review(db: &Db<'_>, asked: &Asked, row: &mut AttachmentRow) -> Result<(), Abort> {
    let ours = db.generation_of(row.volume, Kind::Export)?;
    let is_begun = row.is_forced() && row.in_spec_since > ours;
    // An attachment that had no grant when the database was backed up may have got one later.
    force_away(asked, row);
    if !is_begun {
        row.in_spec_since = UNSENT;
    }
    Ok(db.put_attachment(row)?)
}

/// Forces these attachments away, of a volume that is not in review. Returns those whose grant has
/// to be revoked; the others end at once, for no agent has any part of them.
pub(crate) fn force_or_end(
    db: &Db<'_>,
    asked: &Asked,
    rows: Vec<AttachmentRow>,
) -> Result<Vec<AttachmentRow>, Abort> {
    let mut going = Vec::with_capacity(rows.len());
    for mut row in rows {
        if row.has_grant() {
            force_away(asked, &mut row);
            going.push(row);
        } else {
            ask(asked, &mut row, true);
            db.detach(&row, None, true)?;
        }
    }
    Ok(going)
}

/// Uses up an announced detach for each of these attachments that is attached: its detach begins.
/// Returns the number of announced detaches that are left.
pub(crate) fn use_holds<'a>(
    db: &Db<'_>,
    volume: &VolumeRow,
    rows: impl IntoIterator<Item = &'a AttachmentRow>,
) -> Result<u32, Abort> {
    let mut left = volume.holds;
    for _ in rows.into_iter().filter(|row| row.status == AttachmentStatus::Attached) {
        if left == 0 {
            break;
        }
        db.use_hold(volume.id)?;
        left -= 1;
    }
    Ok(left)
}

/// Forces these attachments of a volume away.
pub(crate) fn force_rows(
    db: &Db<'_>,
    asked: &Asked,
    row: &VolumeRow,
    mut rows: Vec<AttachmentRow>,
) -> Result<SpecChanges, Abort> {
    let (volume, count) = (row.id, rows.len());
    use_holds(db, row, &rows)?;
    if row.review.is_some() {
        for attachment in &mut rows {
            force_in_review(db, asked, attachment)?;
        }
        db.attachment_event(volume)?;
        db.derive_status(volume)?;
        return Ok(SpecChanges { storage: count > 0, ..SpecChanges::default() });
    }
    if count == 0 {
        return Ok(SpecChanges::default());
    }
    let mut going = force_or_end(db, asked, rows)?;
    if going.len() < count {
        db.attachment_event(volume)?;
    }
    volume_specs::apply(db, volume, &mut going, &BTreeSet::new())
}

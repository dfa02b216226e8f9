//! Forced detaches: attachments that are detached without asking their hosts.
//!
//! What must never happen here: an attachment that goes while a storage agent still grants its
//! access.

use std::collections::BTreeSet;

use super::taking::UNSENT;
use super::wishes::{self, Rewished};
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
    let is_begun = row.is_forced() && row.wished_at > ours;
    // An attachment that had no grant when the database was backed up may have got one later.
    force_away(asked, row);
    if !is_begun {
        row.wished_at = UNSENT;
    }
    Ok(db.put_attachment(row)?)
}

/// Forces these attachments of a volume away.
pub(crate) fn force_rows(
    db: &Db<'_>,
    asked: &Asked,
    row: &VolumeRow,
    rows: Vec<AttachmentRow>,
) -> Result<Rewished, Abort> {
    let (volume, mut rewished) = (row.id, Rewished::default());
    let mut going = Vec::new();
    let mut gone = false;
    for mut attachment in rows {
        if attachment.status == AttachmentStatus::Attached {
            db.use_hold(volume)?;
        }
        if row.review.is_some() {
            force_in_review(db, asked, &mut attachment)?;
            rewished.storage = true;
            continue;
        }
        if attachment.has_grant() {
            force_away(asked, &mut attachment);
            going.push(attachment);
        } else {
            // No agent has anything of it.
            ask(asked, &mut attachment, true);
            db.detach(&attachment, None, true)?;
            gone = true;
        }
    }
    if gone {
        db.attachment_event(volume)?;
    }
    if row.review.is_some() {
        db.attachment_event(volume)?;
        db.derive_status(volume)?;
    } else if gone || !going.is_empty() {
        rewished = wishes::apply(db, volume, &mut going, &BTreeSet::new())?;
    }
    Ok(rewished)
}

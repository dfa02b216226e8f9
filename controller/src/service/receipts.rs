//! Records of detaches: the attachment that ended, the caller who asked for it, and the storage
//! agent's receipt.
//!
//! What must never happen here: a record that says more than the storage agent did; a record of
//! another project.

use mooring_model::{AttachmentId, VolumeId};

use super::detach::receipt_of;
use super::{Refusal, Service};
use crate::domain::{Caller, DetachRecord};
use crate::policy::Target;
use crate::store::{AttachmentRow, Db, DetachedFilter};

/// Most records of one answer.
pub const RECORDS_MAX: u32 = 1_000;

fn going(row: AttachmentRow) -> DetachRecord {
    let forced = row.is_forced();
    DetachRecord {
        attachment: row.id,
        volume: row.volume,
        project: row.project,
        initiator: row.initiator,
        instance: row.instance,
        host: row.host,
        mode: Some(row.mode),
        forced,
        user: row.asked.as_ref().map(|asked| asked.user.clone()),
        request: row.asked.as_ref().map(|asked| asked.request.clone()),
        asked_at: row.asked.map(|asked| asked.at),
        detached_at: None,
        receipt: None,
        unwritten: None,
    }
}

impl Service {
    /// Records of detaches, newest first, of the caller's project (for admins: of all projects).
    /// First detaching attachments with a receipt, then those that are gone. At most
    /// [`RECORDS_MAX`].
    pub async fn receipts(
        &self,
        caller: &Caller,
        volume: Option<VolumeId>,
        attachment: Option<AttachmentId>,
        limit: u32,
    ) -> Result<Vec<DetachRecord>, Refusal> {
        self.facts.policies().check("mooring:receipts", caller, &Target::own(caller))?;
        let limit = limit.min(RECORDS_MAX);
        let project = (!caller.admin).then(|| caller.project.clone());
        let filter = DetachedFilter { project, volume, attachment };
        let read = move |db: &Db<'_>| {
            let meant = |row: &AttachmentRow| {
                filter.project.as_ref().is_none_or(|project| *project == row.project)
                    && filter.volume.is_none_or(|volume| volume == row.volume)
                    && filter.attachment.is_none_or(|id| id == row.id)
            };
            let mut records = Vec::new();
            for row in db.attachments_going()?.into_iter().filter(meant) {
                if let Some(receipt) = receipt_of(db, &row)? {
                    records.push(DetachRecord { receipt: Some(receipt), ..going(row) });
                }
            }
            records.extend(db.detach_records(&filter, limit)?);
            records.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            Ok(records)
        };
        self.store.read("list receipts", read).await
    }
}

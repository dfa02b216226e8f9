//! Attachments on their way out, and their receipts.

use std::collections::BTreeSet;

use mooring_model::limit::KERNEL_ANSWER_DEADLINE;
use mooring_model::{AttachmentId, Generation, Proof, Receipt, VolumeId};
use tokio::time::Instant;

use super::attach::{find, not_found};
use super::{Refusal, Service, Wait, not_in_review, view};
use crate::domain::{Attachment, AttachmentReceipt, AttachmentStatus, Caller};
use crate::flow::wishes::{self, Rewished};
use crate::rules;
use crate::store::{Abort, AttachmentRow, Db};

/// What the first transaction of a detach left.
enum Begun {
    /// It is going.
    Going(VolumeId, Rewished),
    /// It was gone before, by force: the same answer again.
    Gone(VolumeId),
}

/// Where a detach stands.
enum Standing {
    /// Its row is there.
    Row(Box<AttachmentRow>, Option<Receipt>),
    Gone,
}

fn begin(db: &Db<'_>, caller: &Caller, id: AttachmentId, force: bool) -> Result<Begun, Abort> {
    if let (true, None, Some(gone)) = (force, db.attachment(id)?, db.detached(id)?)
        && (caller.admin || gone.project == caller.project)
    {
        return Ok(Begun::Gone(gone.volume));
    }
    let mut row = find(db, caller, id)?;
    let id = row.volume;
    if let Some(volume) = db.volume(id)? {
        not_in_review(&volume)?;
    }
    if !row.held {
        // Nothing of it is at any agent.
        db.detach(&row, None)?;
        return Ok(Begun::Going(id, wishes::apply(db, id, &mut [], &BTreeSet::new())?));
    }
    if force && !row.forced {
        if let Some(initiator) = &row.initiator {
            let existing: Vec<_> = db.attachments_of(id)?.iter().map(AttachmentRow::existing).collect();
            rules::may_force(row.id, initiator, &existing).map_err(Refusal::Conflict)?;
        }
        row.forced = true;
        if row.grant_wanted {
            row.grant_wanted = false;
            row.wished_at = Generation::ZERO;
        }
    } else if row.is_going() {
        // Asked again; or one that could not be attached, whose parts are being taken away already.
    } else if row.native.is_some() && row.connect_ever {
        // Its host lets go first; then its grant goes.
        row.connect_wanted = false;
    } else {
        row.grant_wanted = false;
        row.wished_at = Generation::ZERO;
    }
    row.status = AttachmentStatus::Detaching;
    row.fault = None;
    Ok(Begun::Going(id, wishes::apply(db, id, &mut [row], &BTreeSet::new())?))
}

fn standing(db: &Db<'_>, id: AttachmentId) -> Result<Standing, Abort> {
    let Some(row) = db.attachment(id)? else { return Ok(Standing::Gone) };
    let receipt = match &row.initiator {
        Some(initiator) if row.held && !row.grant_wanted => {
            db.receipt_since(row.volume, initiator, row.wished_at)?.map(|(_, receipt)| receipt)
        }
        _ => None,
    };
    Ok(Standing::Row(Box::new(row), receipt))
}

impl Service {
    /// Detaches. Native: its host lets go first. The answer comes with the receipt of the storage agent, else `Pending`
    /// (and the attachment stays `detaching`). With `force` the target revokes first, and the host is told afterwards; a
    /// receipt that is still unproven after 5 s is answered as such, and the attachment stays until it is proven.
    /// Returns the volume's other attachments, too. Of one that is gone: 404; with `force`, its receipt again.
    pub async fn delete_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        force: bool,
        wait: Wait,
    ) -> Result<(AttachmentReceipt, Vec<Attachment>), Refusal> {
        let deadline = Instant::now() + wait.0;
        let unproven_at = Instant::now() + KERNEL_ANSWER_DEADLINE.min(wait.0);
        let owner = caller.clone();
        let write = move |db: &Db<'_>| begin(db, &owner, id, force);
        let begun = self.inner.store.write("begin to detach", write).await?;
        let volume = match begun {
            Begun::Gone(volume) => return self.detached(caller, id, volume, None).await,
            Begun::Going(volume, rewished) => {
                self.inner.go(volume, &rewished.hosts);
                volume
            }
        };
        let mut changes = self.inner.follow(volume);
        loop {
            changes.mark_unchanged();
            let read = move |db: &Db<'_>| standing(db, id);
            let limit = match self.inner.store.read("read a detach", read).await? {
                Standing::Gone => return self.detached(caller, id, volume, None).await,
                Standing::Row(row, _) if row.status == AttachmentStatus::Attached => {
                    let why = row.fault.unwrap_or_else(|| "its host refused".to_owned());
                    return Err(Refusal::Conflict(format!("attachment {id} stays attached: {why}")));
                }
                Standing::Row(_, Some(receipt)) if force && receipt.proof != Proof::Proven => {
                    if Instant::now() >= unproven_at {
                        return self.detached(caller, id, volume, Some(receipt)).await;
                    }
                    unproven_at
                }
                Standing::Row(row, receipt) if Instant::now() >= deadline => {
                    return Err(self.not_detached_yet(&row, receipt.as_ref()).await);
                }
                Standing::Row(..) => deadline,
            };
            // At the limit it is looked at once more, and answered.
            let _ = tokio::time::timeout_at(limit, changes.changed()).await;
        }
    }

    async fn not_detached_yet(&self, row: &AttachmentRow, receipt: Option<&Receipt>) -> Refusal {
        let why = match (receipt.map(|receipt| receipt.proof), &row.fault) {
            (Some(Proof::Unproven { in_flight }), _) => {
                format!("its grant is revoked, and {in_flight} command(s) may still land")
            }
            (_, Some(fault)) => fault.clone(),
            _ => match row.native.filter(|_| row.grant_wanted).map(|host| self.inner.agents.up(host)) {
                Some(Err(why)) => why,
                _ => self.why_waits(row.volume).await,
            },
        };
        Refusal::Pending(format!("attachment {} is not detached yet: {why}; it goes on, ask again", row.id))
    }

    async fn detached(
        &self,
        caller: &Caller,
        id: AttachmentId,
        volume: VolumeId,
        unproven: Option<Receipt>,
    ) -> Result<(AttachmentReceipt, Vec<Attachment>), Refusal> {
        let caller = caller.clone();
        let read = move |db: &Db<'_>| {
            let receipt = match (unproven, db.detached(id)?.and_then(|gone| gone.receipt)) {
                (Some(receipt), _) => Some(receipt),
                (None, Some(row)) => db.receipt(row)?,
                (None, None) => None,
            };
            let others = match db.volume(volume)? {
                None => Vec::new(),
                Some(volume) => {
                    let seen =
                        |row: &AttachmentRow| row.id != id && (caller.admin || row.project == caller.project);
                    let rows = db.attachments_of(volume.id)?.into_iter().filter(seen);
                    rows.map(|row| view::attachment(db, &volume, row)).collect::<Result<_, _>>()?
                }
            };
            Ok((AttachmentReceipt { attachment: id, receipt }, others))
        };
        self.inner.store.read("read a receipt", read).await
    }

    /// The receipt of an attachment that is gone (or going). 404 when the attachment never was, or is not going; `receipt`
    /// is `None` when there had never been anything to revoke. For repeated requests: an attachment that is gone is 404 for
    /// `delete_attachment` without force.
    pub async fn receipt(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentReceipt, Refusal> {
        let caller = caller.clone();
        let read = move |db: &Db<'_>| {
            let may = |project: &str| caller.admin || project == caller.project;
            if let Some(gone) = db.detached(id)?.filter(|gone| may(&gone.project)) {
                let receipt = gone.receipt.map(|row| db.receipt(row)).transpose()?.flatten();
                return Ok(AttachmentReceipt { attachment: id, receipt });
            }
            match standing(db, id)? {
                Standing::Row(row, receipt) if receipt.is_some() && may(&row.project) => {
                    Ok(AttachmentReceipt { attachment: id, receipt })
                }
                Standing::Row(..) | Standing::Gone => Err(not_found(id).into()),
            }
        };
        self.inner.store.read("read a receipt", read).await
    }
}

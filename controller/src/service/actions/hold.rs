//! Announcements: of attachments to come (`os-reserve`), and of detaches to come
//! (`os-begin_detaching`).
//!
//! What must never happen here: an announcement that outlives its maker for ever.

use mooring_model::VolumeId;

use crate::domain::{AttachStatus, AttachmentStatus, Caller, VolumeStatus};
use crate::flow::Facts;
use crate::rules::Operation;
use crate::rules::promised::Announced;
use crate::service::attach::{existing_of, may_reserve};
use crate::service::{Refusal, Service, volumes};
use crate::store::{Abort, Db, VolumeRow};

fn find(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    policy: &'static str,
) -> Result<VolumeRow, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    facts.policies().check(policy, caller, &volumes::target(&volume))?;
    Ok(volume)
}

impl Service {
    async fn announce<T: Send + 'static>(
        &self,
        op: &'static str,
        id: VolumeId,
        work: impl Fn(&Facts, &Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let facts = self.facts.clone();
        let done = self.store.write(op, move |db| work(&facts, db)).await?;
        self.flow.touch(id);
        Ok(done)
    }

    /// Announces an attachment. It ends by itself if it does not come.
    pub(super) async fn reserve(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let caller = caller.clone();
        let work = move |facts: &Facts, db: &Db<'_>| {
            let volume = find(facts, db, &caller, id, "volume_extension:volume_actions:reserve")?;
            let existing = existing_of(&db.attachments_of(id)?, volume.reserved);
            may_reserve(facts, &caller, &volume, &existing, None)?;
            let until = Some(db.now + facts.options.reserve);
            db.set_reserved(id, volume.reserved.saturating_add(1), until)?;
            Ok(db.volume(id)?.and_then(|volume| volume.reserved_until))
        };
        let mark = self.announce("reserve a volume", id, work).await?;
        self.flow.arm_announced(id, Announced::Attachments, mark);
        Ok(())
    }

    /// Takes one reservation back. Does nothing if there is none.
    pub(super) async fn unreserve(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let caller = caller.clone();
        let work = move |facts: &Facts, db: &Db<'_>| {
            let volume = find(facts, db, &caller, id, "volume_extension:volume_actions:unreserve")?;
            if volume.reserved > 0 {
                db.set_reserved(id, volume.reserved - 1, volume.reserved_until)?;
            }
            Ok(())
        };
        self.announce("unreserve a volume", id, work).await
    }

    /// Announces a detach. The call names no attachment. With one attachment, the volume is shown
    /// as detaching, or as growing if it grows. With several, it stays in use, and no further
    /// server is attached until one detach has begun.
    pub(super) async fn begin_detaching(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let caller = caller.clone();
        let work = move |facts: &Facts, db: &Db<'_>| {
            let volume = find(facts, db, &caller, id, "volume_extension:volume_actions:begin_detaching")?;
            let held = volume.holds;
            let attached = db.attachment_statuses(id)?;
            let attached = attached.iter().filter(|status| **status == AttachmentStatus::Attached).count();
            // A volume that grows, or whose growth failed, has servers as ever.
            let serves =
                volume.status == VolumeStatus::InUse || volume.operation.is_some_and(Operation::is_served);
            let in_use = serves && volume.attach_status == AttachStatus::Attached;
            if !in_use || usize::try_from(held).is_ok_and(|held| held >= attached) {
                return Err(Refusal::Invalid(format!(
                    "Invalid volume: Unable to detach volume. Volume status must be 'in-use' and attach_status must be \
                     'attached' to detach. (status {}, {attached} attached, {held} announced)",
                    volume.status
                ))
                .into());
            }
            db.set_holds(id, held + 1, Some(db.now + facts.options.hold))?;
            Ok(db.volume(id)?.and_then(|volume| volume.holds_until))
        };
        let mark = self.announce("announce a detach", id, work).await?;
        self.flow.arm_announced(id, Announced::Detaches, mark);
        Ok(())
    }

    /// Takes one announcement of a detach back. Does nothing if there is none.
    pub(super) async fn roll_detaching(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let caller = caller.clone();
        let work = move |facts: &Facts, db: &Db<'_>| {
            let volume = find(facts, db, &caller, id, "volume_extension:volume_actions:roll_detaching")?;
            if volume.holds > 0 {
                db.set_holds(id, volume.holds - 1, volume.holds_until)?;
            }
            Ok(())
        };
        self.announce("take back an announced detach", id, work).await
    }
}

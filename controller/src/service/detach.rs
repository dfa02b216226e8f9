//! Detaches attachments.
//!
//! What must never happen here: an answer that says "detached" before the storage agent's receipt
//! is stored; access revoked that no caller named; a disk pulled from a running server by its own
//! user (CVE-2023-2088).

use std::collections::BTreeSet;

use mooring_model::limit::KERNEL_ANSWER_DEADLINE;
use mooring_model::{AgentId, AttachmentId, Initiator, Proof, Receipt, VolumeId};
use tokio::time::Instant;

use super::attach::{find, not_found, volume_of};
use super::view::{self, Secrets};
use super::{Refusal, Service, Wait, not_in_review};
use crate::domain::{
    AttachViolation, Attachment, AttachmentReceipt, AttachmentStatus, Caller, RuleViolation,
};
use crate::flow::Facts;
use crate::flow::forced::{ask, force_away, force_in_review, force_or_end, use_holds};
use crate::flow::seen::wanted_mode;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::initiators::Initiators;
use crate::permits::{self, Ended};
use crate::policy::Target;
use crate::rules::{self, Deletion};
use crate::store::{Abort, Asked, AttachmentRow, Db, Taker, VolumeRow};

/// The way in which an attachment is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The host ends its connection before the target revokes the grant.
    Asked,
    /// The target revokes the grant first, whatever the host does (force detach).
    Forced,
    /// As [`Way::Forced`], together with every other attachment of the same nexus.
    Widened,
}

impl Way {
    fn is_forced(self) -> bool {
        self != Self::Asked
    }
}

/// An attachment's end: the receipt, and the attachments that the volume still has.
pub(super) type Detached = (AttachmentReceipt, Vec<Attachment>);

/// Outcome of a detach's first transaction.
enum Begun {
    /// The attachment is detaching. The number is the volume's revision before.
    Going(VolumeId, SpecChanges, u64),
    /// The attachment is gone.
    Gone(VolumeId, SpecChanges, Box<Detached>),
    /// Nothing was written: a live session decides, and no call has looked for one yet.
    Look(Needed),
}

/// The nexus whose sessions decide about a detach.
pub(super) struct Needed {
    pub(super) agent: AgentId,
    pub(super) volume: VolumeId,
    pub(super) initiator: Initiators,
}

/// State of a detach.
enum Standing {
    /// The attachment's row is still there.
    Row(Box<AttachmentRow>, Option<Receipt>),
    Gone(Box<Detached>),
}

/// Result of a look at the sessions of a nexus. Outer `None`: no look yet. Facts `None`: the
/// storage agent could not say; `Some(true)`: a session is live.
pub(super) type Looked = Option<Option<bool>>;

pub(super) fn may_delete(facts: &Facts, caller: &Caller, project: &str, way: Way) -> Result<(), Refusal> {
    let (policies, target) = (facts.policies(), Target::of(project));
    policies.check("volume:attachment_delete", caller, &target)?;
    // The compute service detaches by force from hosts that it knows to be dead.
    if way.is_forced() && !caller.service {
        policies.check("volume_extension:volume_admin_actions:force_detach", caller, &target)?;
    }
    Ok(())
}

/// Decides if an attachment's own user may end it. `None`: yes. `Some`: the sessions of these
/// initiators decide, and must be looked at first.
pub(super) fn decided(
    facts: &Facts,
    caller: &Caller,
    row: &AttachmentRow,
    looked: Looked,
) -> Result<Option<Initiators>, Refusal> {
    if !facts.options.protect_instances || row.is_going() {
        return Ok(None);
    }
    let deletion = Deletion {
        service: caller.service,
        instance: row.instance,
        connected: row.has_grant(),
        live: looked.flatten(),
    };
    match (rules::deletion_allowed(deletion), looked, &row.initiator) {
        (Ok(()), _, _) => Ok(None),
        (Err(_), None, Some(initiator)) => Ok(Some(initiator.clone())),
        (Err(RuleViolation::Attach(AttachViolation::ServerUsesIt { instance, .. })), Some(None), _) => {
            Err(RuleViolation::Attach(AttachViolation::ServerUsesIt { instance, sessions_known: false })
                .into())
        }
        (Err(violation), _, _) => Err(violation.into()),
    }
}

/// The record of the caller who asks for the detach.
pub(super) fn asked_by(db: &Db<'_>, caller: &Caller) -> Asked {
    Asked { user: caller.user.clone(), request: caller.request.clone(), at: db.now }
}

/// The attachments that must end together with a forced one: the target revokes a nexus as a whole.
fn companions(
    row: &AttachmentRow,
    rows: Vec<AttachmentRow>,
    way: Way,
) -> Result<Vec<AttachmentRow>, Refusal> {
    let Some(initiator) = &row.initiator else { return Ok(Vec::new()) };
    if !row.has_grant() && way == Way::Forced {
        return Ok(Vec::new());
    }
    let existing: Vec<_> = rows.iter().map(AttachmentRow::existing).collect();
    let ids = rules::may_force(row.id, initiator, &existing, way == Way::Widened)?;
    Ok(rows.into_iter().filter(|other| ids.contains(&other.id)).collect())
}

fn begin(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    way: Way,
    looked: Looked,
) -> Result<Begun, Abort> {
    if way.is_forced()
        && db.attachment(id)?.is_none()
        && let Some(gone) = db.detached(id)?
        && (caller.admin || gone.project == caller.project)
    {
        may_delete(facts, caller, &gone.project, way)?;
        let answer = detached(facts, db, caller, id, gone.volume, None)?;
        return Ok(Begun::Gone(gone.volume, SpecChanges::default(), Box::new(answer)));
    }
    let row = find(db, caller, id)?;
    may_delete(facts, caller, &row.project, way)?;
    let mut volume = volume_of(db, &row)?;
    let revision = facts.revision(volume.id);
    if volume.review.is_some() && way.is_forced() {
        let spec_changes = begin_in_review(db, caller, &volume, row, way)?;
        return Ok(Begun::Going(volume.id, spec_changes, revision));
    }
    not_in_review(&volume)?;
    if way == Way::Asked
        && let Some(initiator) = decided(facts, caller, &row, looked)?
    {
        return Ok(Begun::Look(Needed { agent: volume.agent, volume: volume.id, initiator }));
    }
    let companions =
        if way.is_forced() { companions(&row, db.attachments_of(volume.id)?, way)? } else { Vec::new() };
    let asked = asked_by(db, caller);
    // Detaches that clients have announced begin here.
    volume.holds = use_holds(db, &volume, companions.iter().chain([&row]))?;
    let mut going = force_or_end(db, &asked, companions)?;
    let mut row = row;
    if row.has_grant() {
        leave(&asked, &mut row, way);
        let again = row.native.filter(|_| row.is_going());
        going.push(row);
        let before = db.attachments_of(volume.id)?;
        let mut spec_changes = volume_specs::apply_to(db, &volume, before, &mut going, &BTreeSet::new())?;
        // On a repeated call, the host looks again, too.
        spec_changes.hosts.extend(again);
        return Ok(Begun::Going(volume.id, spec_changes, revision));
    }
    let spec_changes = end_unconnected(db, &asked, &mut row, way.is_forced(), &mut going)?;
    let answer = detached(facts, db, caller, id, volume.id, None)?;
    Ok(Begun::Gone(volume.id, spec_changes, Box::new(answer)))
}

/// Ends an attachment of which no agent has any part, together with those that are `going`.
pub(super) fn end_unconnected(
    db: &Db<'_>,
    asked: &Asked,
    row: &mut AttachmentRow,
    forced: bool,
    going: &mut [AttachmentRow],
) -> Result<SpecChanges, Abort> {
    ask(asked, row, false);
    db.detach(row, None, forced)?;
    db.attachment_event(row.volume)?;
    volume_specs::apply(db, row.volume, going, &BTreeSet::new())
}

/// Begins a force detach from a volume in review. No spec is written for it: the storage agent
/// takes the grant out of what it stores.
fn begin_in_review(
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    row: AttachmentRow,
    way: Way,
) -> Result<SpecChanges, Abort> {
    let mut going = companions(&row, db.attachments_of(volume.id)?, way)?;
    if way == Way::Widened {
        for initiator in row.initiator.iter().flat_map(Initiators::each) {
            db.take_nexus(Taker::Widened(row.id), volume.agent, volume.id, &initiator)?;
        }
    }
    going.push(row);
    use_holds(db, volume, &going)?;
    for one in &mut going {
        force_in_review(db, &asked_by(db, caller), one)?;
    }
    db.attachment_event(volume.id)?;
    db.derive_status(volume.id)?;
    Ok(SpecChanges { storage: true, ..SpecChanges::default() })
}

/// Begins the detach of an attachment whose grant the agent may have.
fn leave(asked: &Asked, row: &mut AttachmentRow, way: Way) {
    if way.is_forced() {
        return force_away(asked, row);
    }
    ask(asked, row, false);
    row.leave();
    row.fault = None;
}

/// The receipt of a detaching attachment. `None` while there is none for all of its initiators.
pub(super) fn receipt_of(db: &Db<'_>, row: &AttachmentRow) -> Result<Option<Receipt>, Abort> {
    weakest(db, row, |initiator| {
        let found = db.receipt_since(row.volume, initiator, row.in_spec_since)?;
        Ok(found.map(|(_, receipt)| receipt))
    })
}

/// The weakest of a nexus's receipts: an unproven one, else the last. `None`: at least one
/// initiator to be revoked has no receipt, and no receipt is unproven.
fn weakest(
    db: &Db<'_>,
    row: &AttachmentRow,
    said: impl Fn(&Initiator) -> Result<Option<Receipt>, Abort>,
) -> Result<Option<Receipt>, Abort> {
    let Some(initiators) = row.initiator.as_ref().filter(|_| row.is_revoking()) else { return Ok(None) };
    let mut all: Vec<_> = initiators.each().collect();
    if all.len() > 1 {
        // A port that another attachment keeps is not revoked.
        let rows = db.attachments_of(row.volume)?;
        all.retain(|one| wanted_mode(&rows, one).is_none());
    }
    let mut receipts = Vec::with_capacity(all.len());
    for initiator in &all {
        receipts.push(said(initiator)?);
    }
    let unproven = |receipt: &&Receipt| receipt.proof != Proof::Proven;
    if let Some(open) = receipts.iter().flatten().find(unproven) {
        return Ok(Some(open.clone()));
    }
    let all: Option<Vec<Receipt>> = receipts.into_iter().collect();
    Ok(all.and_then(|proven| proven.into_iter().max_by_key(|receipt| receipt.ended)))
}

fn standing(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    volume: VolumeId,
) -> Result<Standing, Abort> {
    match db.attachment(id)? {
        None => Ok(Standing::Gone(Box::new(detached(facts, db, caller, id, volume, None)?))),
        Some(row) => {
            let receipt = match receipt_of(db, &row)? {
                // Only a forced detach is answered with an unproven receipt.
                None if row.is_forced() => told(facts, db, &row)?,
                kept => kept,
            };
            Ok(Standing::Row(Box::new(row), receipt))
        }
    }
}

/// A receipt that the agent reported and that the database does not have yet. The volume's job
/// stores it when its call ends. A disk that does not answer delays that call, but must not delay
/// the answer.
pub(super) fn told(facts: &Facts, db: &Db<'_>, row: &AttachmentRow) -> Result<Option<Receipt>, Abort> {
    let agent = db.volume(row.volume)?.and_then(|volume| facts.agents.by_id(volume.agent));
    let Some(agent) = agent else { return Ok(None) };
    weakest(db, row, |initiator| match agent.receipt_since(row.volume, initiator, row.in_spec_since) {
        // The database may already have the receipt of one of several ports.
        None => Ok(db.receipt_since(row.volume, initiator, row.in_spec_since)?.map(|(_, receipt)| receipt)),
        said => Ok(said),
    })
}

/// The answer to a finished detach.
fn detached(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    volume: VolumeId,
    unproven: Option<Receipt>,
) -> Result<Detached, Abort> {
    let receipt = match (unproven, db.detached(id)?.and_then(|gone| gone.receipt)) {
        (Some(receipt), _) => Some(receipt),
        (None, Some(row)) => db.receipt(row)?,
        (None, None) => None,
    };
    let mut rows = db.attachments_of(volume)?;
    rows.retain(|row| row.id != id && (caller.admin || row.project == caller.project));
    let volume = if rows.is_empty() { None } else { db.volume(volume)? };
    let others = match volume {
        None => Vec::new(),
        Some(volume) => {
            let view = |row| view::attachment(facts, db, &volume, row, Secrets::Hidden);
            rows.into_iter().map(view).collect::<Result<_, _>>()?
        }
    };
    Ok((AttachmentReceipt { attachment: id, receipt }, others))
}

impl Service {
    /// Detaches. On a native attachment, the host ends its connection first. Answers with the
    /// storage agent's receipt, else `Pending` (and the attachment stays `detaching`).
    ///
    /// With `force` the target revokes first, and the host hears of it afterwards. A receipt that
    /// is still unproven after 5 s is the answer then. The attachment stays until the receipt is
    /// proven.
    ///
    /// Returns the volume's other attachments, too. For an attachment that is gone: 404; with
    /// `force`, its receipt again.
    ///
    /// A server keeps its disk against its own user while a session of its host is live, or its
    /// sessions are unknown. Only the compute service may end such an attachment (409 for others).
    pub async fn delete_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        force: bool,
        wait: Wait,
    ) -> Result<Detached, Refusal> {
        self.detach(caller, id, if force { Way::Forced } else { Way::Asked }, wait).await
    }

    /// Detaches in the given way; see [`Service::delete_attachment`].
    pub async fn detach(
        &self,
        caller: &Caller,
        id: AttachmentId,
        way: Way,
        wait: Wait,
    ) -> Result<Detached, Refusal> {
        let deadline = Instant::now() + wait.0;
        let unproven_at = Instant::now() + KERNEL_ANSWER_DEADLINE.min(wait.0);
        let mut looked = None;
        let (volume, spec_changes, revision) = loop {
            let (facts, owner) = (self.facts.clone(), caller.clone());
            let write = move |db: &Db<'_>| begin(&facts, db, &owner, id, way, looked);
            match self.store.write("begin to detach", write).await? {
                Begun::Going(volume, spec_changes, revision) => break (volume, spec_changes, revision),
                Begun::Gone(volume, spec_changes, answer) => {
                    self.flow.touch(volume);
                    if spec_changes.storage || !spec_changes.hosts.is_empty() {
                        self.flow.wake(volume, &spec_changes.hosts);
                    }
                    return Ok(*answer);
                }
                Begun::Look(Needed { agent, volume, initiator }) => {
                    looked = Some(self.flow.is_live(agent, volume, &initiator).await);
                }
            }
        };
        let now = self.flow.touch(volume);
        let known = if now == revision + 1 { now } else { revision };
        let (mut changes, mut news) = self.flow.follow_from(volume, known);
        self.flow.wake(volume, &spec_changes.hosts);
        let mut limit = if way.is_forced() { unproven_at } else { deadline };
        let mut over = false;
        loop {
            if !news {
                // At the limit the state is read once more, and then answered.
                over = permits::until(limit, changes.changed()).await.is_err_and(Ended::is_final);
            }
            news = false;
            let (facts, owner) = (self.facts.clone(), caller.clone());
            let read = move |db: &Db<'_>| standing(&facts, db, &owner, id, volume);
            limit = match self.store.read_one("read a detach", read).await? {
                Standing::Gone(answer) => return Ok(*answer),
                Standing::Row(row, _) if row.status == AttachmentStatus::Attached => {
                    let why = row.fault.clone().unwrap_or_else(|| "its host refused".to_owned());
                    let why = self.why_for(caller, row.status, why);
                    return Err(Refusal::Conflict(format!("attachment {id} stays attached: {why}")));
                }
                Standing::Row(_, Some(receipt)) if way.is_forced() && receipt.proof != Proof::Proven => {
                    if over || Instant::now() >= unproven_at {
                        let (facts, owner) = (self.facts.clone(), caller.clone());
                        let read = move |db: &Db<'_>| {
                            detached(&facts, db, &owner, id, volume, Some(receipt.clone()))
                        };
                        return self.store.read_one("read a receipt", read).await;
                    }
                    unproven_at
                }
                Standing::Row(row, receipt) if over || Instant::now() >= deadline => {
                    return Err(self.not_detached_yet(caller, &row, receipt.as_ref()).await);
                }
                Standing::Row(..) => deadline,
            };
        }
    }

    /// Takes away an attachment that failed and whose id no client knows. The work goes on by
    /// itself.
    pub(super) async fn abandon(&self, caller: &Caller, id: AttachmentId) {
        let owner = caller.clone();
        let write = move |db: &Db<'_>| match db.attachment(id)? {
            Some(mut row) if row.status == AttachmentStatus::ErrorAttaching => {
                let (asked, volume) = (asked_by(db, &owner), row.volume);
                let spec_changes = if row.has_grant() {
                    leave(&asked, &mut row, Way::Asked);
                    volume_specs::apply(db, volume, &mut [row], &BTreeSet::new())?
                } else {
                    end_unconnected(db, &asked, &mut row, false, &mut [])?
                };
                Ok(Some((volume, spec_changes)))
            }
            _ => Ok(None),
        };
        match self.store.write("remove what could not be attached", write).await {
            Ok(Some((volume, spec_changes))) => self.flow.go(volume, &spec_changes.hosts),
            Ok(None) => {}
            Err(refusal) => {
                tracing::warn!(attachment = %id, error = %refusal, "what could not be attached cannot be removed");
            }
        }
    }

    async fn not_detached_yet(
        &self,
        caller: &Caller,
        row: &AttachmentRow,
        receipt: Option<&Receipt>,
    ) -> Refusal {
        let why = match (receipt.map(|receipt| receipt.proof), &row.fault) {
            (Some(Proof::Unproven { in_flight }), _) => {
                let commands = in_flight.map_or("commands".to_owned(), |count| format!("{count} command(s)"));
                format!("its grant is revoked, and {commands} may still land")
            }
            (_, Some(fault)) => self.why_for(caller, row.status, fault.clone()),
            // A force detach goes on while the volume is in review.
            _ if row.is_forced() => self.waits_for(caller, self.at_storage(row.volume).await),
            _ => match row.native.filter(|_| row.wants_grant()).map(|host| self.facts.agents.up(host)) {
                Some(Err(why)) => self.waits_for(caller, why),
                _ => self.waits_for(caller, self.why_waits(row.volume).await),
            },
        };
        Refusal::Pending(format!("attachment {} is not detached yet: {why}; it goes on, ask again", row.id))
    }

    /// The receipt of an attachment that is gone or detaching, for repeated requests:
    /// `delete_attachment` without force answers 404 for an attachment that is gone. `receipt` is
    /// `None` if there never was anything to revoke. 404 if the attachment never existed, or if it
    /// is there without a receipt.
    pub async fn receipt(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentReceipt, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let may =
                |project: &str| facts.policies().allows("mooring:receipts", &caller, &Target::of(project));
            if let Some(gone) = db.detached(id)?.filter(|gone| may(&gone.project)) {
                let receipt = gone.receipt.map(|row| db.receipt(row)).transpose()?.flatten();
                return Ok(AttachmentReceipt { attachment: id, receipt });
            }
            let row = db.attachment(id)?.filter(|row| may(&row.project)).ok_or_else(|| not_found(id))?;
            match receipt_of(db, &row)? {
                None => Err(not_found(id).into()),
                receipt => Ok(AttachmentReceipt { attachment: id, receipt }),
            }
        };
        self.store.read_one("read a receipt", read).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use mooring_model::{Generation, Mode, Revoked};

    use super::*;
    use crate::clock::Clock;
    use crate::store::{Access, Database, Store, testing};

    const VOLUME: VolumeId = VolumeId::from_u128(1);
    const SINCE: Generation = Generation { epoch: 1, counter: 5 };

    fn row(id: u128, ports: &str, wanted: bool) -> AttachmentRow {
        AttachmentRow {
            mode: Mode::ReadWrite,
            status: if wanted { AttachmentStatus::Attached } else { AttachmentStatus::Detaching },
            initiator: ports.parse().ok(),
            lun: Some(mooring_model::Lun(1)),
            access: Access::of(if wanted { 20 } else { 40 }),
            in_spec_since: SINCE,
            ..AttachmentRow::reserved(AttachmentId::from_u128(id), VOLUME, "p", SystemTime::UNIX_EPOCH)
        }
    }

    fn receipt(port: &str, proven_after: Option<u64>) -> Receipt {
        let proof = proven_after.map_or(Proof::Unproven { in_flight: Some(1) }, |_| Proof::Proven);
        Receipt {
            volume: VOLUME,
            initiator: port.parse().unwrap(),
            attachments: Vec::new(),
            generation: SINCE,
            revoked: Revoked::Nexus,
            sessions: Vec::new(),
            proof,
            began: SystemTime::UNIX_EPOCH,
            ended: proven_after.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
            reservation: None,
            cause: mooring_model::Cause::Revoke,
        }
    }

    /// The receipt of a host with two ports while receipts come in, with and without another
    /// attachment that keeps the first port.
    #[test]
    fn a_host_is_cut_off_when_all_of_its_ports_are() {
        const ONE: &str = "20:00:52:54:00:14:00:0b";
        const TWO: &str = "20:00:52:54:00:14:00:0c";
        let none: Option<Receipt> = None;
        let (one, late, two) = (receipt(ONE, Some(7)), receipt(ONE, None), receipt(TWO, Some(3)));
        for (kept, another, said) in [
            (vec![], false, none.clone()),
            (vec![one.clone()], false, none.clone()),
            (vec![two.clone()], false, none.clone()),
            (vec![late.clone()], false, Some(late.clone())),
            (vec![late.clone(), two.clone()], false, Some(late)),
            (vec![one.clone(), two.clone()], false, Some(one.clone())),
            // A port that another attachment keeps is not revoked, and has no receipt.
            (vec![], true, none),
            (vec![two.clone()], true, Some(two)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let store =
                Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
            let shown = format!("{kept:?} {another}");
            let found = store.prepare("try", move |db| {
                testing::insert_volume(db, VOLUME, AgentId::from_u128(9), &BTreeMap::new())?;
                let going = row(1, &format!("{ONE},{TWO}"), false);
                db.put_attachment(&going)?;
                if another {
                    db.put_attachment(&row(2, ONE, true))?;
                }
                for receipt in &kept {
                    db.keep_receipt(receipt)?;
                }
                receipt_of(db, &going)
            });
            assert_eq!(found.unwrap(), said, "{shown}");
        }
    }
}

//! A volume at its storage agent: the volume itself, then who reaches it, then what has become true of both.
//!
//! What must never happen here: a grant called seen that the kernel does not show; an attachment that goes without the
//! storage agent's word; a live session cut that nobody wanted cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_api::{Message, v1};
use mooring_model::{AgentId, Cure, ExportReport, Generation, Iqn, Phase, Proof, Receipt, VolumeId};

use super::wishes::{self, Rewished};
use super::{AGAIN, AGENT_WAIT_MS, Inner, Job, Next};
use crate::agents::calls::CallError;
use crate::agents::{Agent, wire};
use crate::domain::AttachmentStatus;
use crate::rules::{self, Operation};
use crate::service::Refusal;
use crate::store::{Abort, AttachmentRow, Db, Kind, SpecRow, VolumeRow};

/// How long a look at one volume may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What a pass works on.
struct Work {
    volume: VolumeRow,
    rows: Vec<AttachmentRow>,
    volume_spec: Option<SpecRow>,
    export_spec: Option<SpecRow>,
}

/// What has become true.
#[derive(Default)]
struct Settled {
    changed: bool,
    /// A nexus that went has no receipt here: the agent must be asked.
    look: bool,
    /// Something is on its way still.
    waits: bool,
    rewished: Rewished,
    attached: Vec<mooring_model::AttachmentId>,
}

fn read_work(db: &Db<'_>, id: VolumeId) -> Result<Option<Work>, Abort> {
    let Some(volume) = db.volume(id)? else { return Ok(None) };
    Ok(Some(Work {
        rows: db.attachments_of(id)?,
        volume_spec: db.spec(id, Kind::Volume)?,
        export_spec: db.spec(id, Kind::Export)?,
        volume,
    }))
}

fn stamp(spec: &SpecRow) -> v1::Stamp {
    mooring_api::stamp_to_wire(&spec.stamp)
}

impl Inner {
    pub(super) fn sender(&self) -> v1::Sender {
        v1::Sender { cluster_id: self.store.cluster().to_string() }
    }

    pub(super) async fn storage_pass(self: &Arc<Self>, id: VolumeId) -> Result<Next, Refusal> {
        let Some(work) = self.store.read("read a volume", move |db| read_work(db, id)).await? else {
            return Ok(Next::Idle);
        };
        if work.volume.review.is_some() {
            return Ok(Next::Idle);
        }
        // When it is up again, all of its volumes look again.
        let Ok(agent) = self.agents.up(work.volume.agent) else { return Ok(Next::Idle) };
        if matches!(work.volume.operation, Some(Operation::Deleting | Operation::ErrorDeleting)) {
            return self.delete_pass(&agent, &work).await;
        }
        if let Some(next) = self.volume_pass(&agent, &work).await? {
            return Ok(next);
        }
        self.export_pass(&agent, work).await
    }

    /// The volume itself. `None`: it is there, and the export is next.
    async fn volume_pass(self: &Arc<Self>, agent: &Arc<Agent>, work: &Work) -> Result<Option<Next>, Refusal> {
        let id = work.volume.id;
        let Some(spec) = &work.volume_spec else { return Ok(Some(Next::Idle)) };
        let mut lost = None;
        if agent.volume(id).volume_stamp.as_ref() != Some(&spec.stamp) {
            match self.put_volume(agent, id, spec).await {
                Ok(_) => {}
                Err(CallError::Lost(text)) => lost = Some(text),
                Err(CallError::Stale(text)) => return self.review(id, &text).await.map(Some),
                Err(CallError::Refused { text, .. }) => {
                    if matches!(work.volume.operation, Some(Operation::Creating | Operation::Error)) {
                        self.set_operation(id, Some(Operation::Error), Some(text)).await?;
                        return Ok(Some(Next::Idle));
                    }
                    // What it is called, for a rebuild: who reaches it does not wait for that.
                    tracing::warn!(volume = %id, error = text, "the agent does not take the volume's wish");
                }
            }
        }
        if let Some(text) = lost {
            tracing::warn!(volume = %id, error = text, "a call was lost");
            return Ok(Some(Next::After(AGAIN)));
        }
        let Some(report) = agent.volume(id).volume else { return Ok(Some(Next::After(AGAIN))) };
        match (work.volume.operation, report.phase) {
            (Some(Operation::Creating | Operation::Error), Phase::Ready) => {
                self.set_operation(id, None, None).await?;
                Ok(Some(Next::Again))
            }
            (Some(Operation::Creating), Phase::Failed)
                if report.problems.iter().any(|problem| problem.cure != Cure::Retry) =>
            {
                let text = report.problems.iter().map(|p| format!("{}: {}", p.object, p.text));
                let text = format!("{}: {}", agent.entry.name, text.collect::<Vec<_>>().join("; "));
                self.set_operation(id, Some(Operation::Error), Some(text)).await?;
                Ok(Some(Next::Idle))
            }
            // Reports come as it goes on.
            (Some(_), _) => Ok(Some(Next::Idle)),
            // What is there and has trouble is still served.
            (None, _) => Ok(None),
        }
    }

    async fn put_volume(&self, agent: &Arc<Agent>, id: VolumeId, spec: &SpecRow) -> Result<bool, CallError> {
        use v1::put_volume_request::Wish;
        let corrupt = |_| CallError::Lost("the kept wish of the volume does not decode".to_owned());
        let wish = match &spec.wish.body {
            Some(body) => Wish::Spec(v1::VolumeSpec::decode(body.as_slice()).map_err(corrupt)?),
            None => Wish::Tombstone(v1::Tombstone { destroy_data: spec.wish.hard }),
        };
        let put = v1::PutVolumeRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(stamp(spec)),
            wish: Some(wish),
            opaque: spec.wish.opaque.clone(),
            deadline_ms: AGENT_WAIT_MS,
        };
        let answer = agent.put_volume(put).await?;
        agent.state().volumes.entry(id).or_default().volume_stamp = Some(spec.stamp.clone());
        let report = answer.report.as_ref().and_then(wire::volume);
        let gone = report.as_ref().is_some_and(|report| report.phase == Phase::Gone);
        if let Some(report) = report {
            agent.saw_volume(report);
        }
        self.touch(id);
        Ok(answer.done || gone)
    }

    async fn set_operation(
        self: &Arc<Self>,
        id: VolumeId,
        operation: Option<Operation>,
        fault: Option<String>,
    ) -> Result<(), Refusal> {
        let write = move |db: &Db<'_>| {
            db.set_operation(id, operation, fault.as_deref())?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())
        };
        let rewished = self.store.write("change where a volume stands", write).await?;
        self.go(id, &rewished.hosts);
        Ok(())
    }

    /// The export first, then the volume with its data, then our row.
    async fn delete_pass(self: &Arc<Self>, agent: &Arc<Agent>, work: &Work) -> Result<Next, Refusal> {
        let id = work.volume.id;
        let seen = agent.volume(id);
        if let Some(spec) = &work.export_spec
            && seen.export_stamp.as_ref() != Some(&spec.stamp)
        {
            match self.put_export(agent, id, spec, v1::LiveSessions::Refuse).await {
                Ok((true, _)) => {}
                Ok((false, _)) => return Ok(Next::After(AGAIN)),
                Err(error) => return self.delete_failed(id, error).await,
            }
        }
        let Some(spec) = &work.volume_spec else { return Ok(Next::Idle) };
        match self.put_volume(agent, id, spec).await {
            Ok(true) => {
                let delete = move |db: &Db<'_>| Ok(db.delete_volume(id)?);
                self.store.write("take a deleted volume away", delete).await?;
                self.touch(id);
                Ok(Next::Idle)
            }
            Ok(false) => Ok(Next::After(AGAIN)),
            Err(error) => self.delete_failed(id, error).await,
        }
    }

    async fn delete_failed(self: &Arc<Self>, id: VolumeId, error: CallError) -> Result<Next, Refusal> {
        match error {
            CallError::Stale(text) => self.review(id, &text).await,
            CallError::Refused { text, cure, .. } if cure != Cure::Retry => {
                let write = move |db: &Db<'_>| {
                    Ok(db.set_operation(id, Some(Operation::ErrorDeleting), Some(&text))?)
                };
                self.store.write("say why a volume is not deleted", write).await?;
                self.touch(id);
                Ok(Next::Idle)
            }
            CallError::Lost(text) | CallError::Refused { text, .. } => {
                tracing::warn!(volume = %id, error = text, "a volume is not deleted yet");
                Ok(Next::After(AGAIN))
            }
        }
    }

    /// Sends an export's wish. Whether it is true, with the receipts of what it took away.
    async fn put_export(
        &self,
        agent: &Arc<Agent>,
        id: VolumeId,
        spec: &SpecRow,
        live: v1::LiveSessions,
    ) -> Result<(bool, Vec<Receipt>), CallError> {
        use v1::put_export_request::Wish;
        let corrupt = |_| CallError::Lost("the kept wish of the export does not decode".to_owned());
        let wish = match &spec.wish.body {
            Some(body) => Wish::Spec(v1::ExportSpec::decode(body.as_slice()).map_err(corrupt)?),
            None => Wish::Tombstone(v1::Tombstone { destroy_data: false }),
        };
        let put = v1::PutExportRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(stamp(spec)),
            wish: Some(wish),
            opaque: spec.wish.opaque.clone(),
            deadline_ms: AGENT_WAIT_MS,
            live_sessions: live.into(),
        };
        let answer = agent.put_export(put).await?;
        {
            let mut state = agent.state();
            let seen = state.volumes.entry(id).or_default();
            seen.export_stamp = Some(spec.stamp.clone());
            seen.put_at = Some(Instant::now());
        }
        if let Some(report) = answer.report.as_ref().and_then(wire::export) {
            agent.saw_export(report);
        }
        self.touch(id);
        Ok((answer.done, answer.receipts.iter().filter_map(wire::receipt).collect()))
    }

    async fn export_pass(self: &Arc<Self>, agent: &Arc<Agent>, work: Work) -> Result<Next, Refusal> {
        let id = work.volume.id;
        let Some(spec) = &work.export_spec else {
            // Of a volume that was there before its first wish of an export.
            let wish = move |db: &Db<'_>| wishes::apply(db, id, &mut [], &BTreeSet::new());
            self.store.write("wish an export", wish).await?;
            return Ok(Next::Again);
        };
        let seen = agent.volume(id);
        let moving = work.rows.iter().any(|row| {
            (row.grant_wanted && !row.granted && row.status == AttachmentStatus::Attaching)
                || (row.held && !row.grant_wanted)
        });
        let due = seen.put_at.is_none_or(|at| at.elapsed() >= AGAIN);
        let mut receipts = Vec::new();
        if seen.export_stamp.as_ref() != Some(&spec.stamp) || (moving && due) {
            let live = live_sessions(&work.rows);
            match self.put_export(agent, id, spec, live).await {
                Ok((_, taken)) => receipts = taken,
                Err(CallError::Lost(text)) => {
                    tracing::warn!(volume = %id, error = text, "a call was lost");
                    return Ok(Next::After(AGAIN));
                }
                Err(CallError::Stale(text)) => return self.review(id, &text).await,
                Err(CallError::Refused { text, cure, .. }) => {
                    return self.export_refused(&work, text, cure).await;
                }
            }
        }
        self.settle_export(agent, id, receipts).await
    }

    async fn settle_export(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        id: VolumeId,
        mut receipts: Vec<Receipt>,
    ) -> Result<Next, Refusal> {
        let mut looked = false;
        loop {
            let report = agent.volume(id).export;
            let inner = Arc::clone(self);
            let write = move |db: &Db<'_>| settle(&inner, db, id, report.as_ref(), &receipts, looked);
            let settled = self.store.write("settle an export", write).await?;
            for done in settled.attached {
                self.stop_clock(done);
            }
            if settled.changed {
                self.go(id, &settled.rewished.hosts);
            }
            if !settled.look || looked {
                return Ok(match (settled.changed, settled.waits) {
                    (true, _) => Next::Again,
                    (false, true) => Next::After(AGAIN),
                    (false, false) => Next::Idle,
                });
            }
            looked = true;
            receipts = match self.look(agent, id).await {
                Ok(receipts) => receipts,
                Err(error) => {
                    tracing::warn!(volume = %id, %error, "cannot look for a receipt");
                    return Ok(Next::After(AGAIN));
                }
            };
        }
    }

    /// Looks at a volume now. Returns its receipts.
    pub(crate) async fn look(&self, agent: &Arc<Agent>, id: VolumeId) -> Result<Vec<Receipt>, CallError> {
        let status = agent.get_volume(id.to_string(), LOOK_LIMIT).await?;
        if let Some(report) = status.export.as_ref().and_then(wire::export) {
            agent.saw_export(report);
        }
        if let Some(report) = status.volume.as_ref().and_then(wire::volume) {
            agent.saw_volume(report);
        }
        self.touch(id);
        Ok(status.receipts.iter().filter_map(wire::receipt).collect())
    }

    /// The agent took nothing of the change. Whoever caused that must not hold up the others.
    async fn export_refused(
        self: &Arc<Self>,
        work: &Work,
        text: String,
        cure: Cure,
    ) -> Result<Next, Refusal> {
        let id = work.volume.id;
        tracing::warn!(volume = %id, error = text, "the agent does not take the export's wish");
        let back =
            |row: &&AttachmentRow| row.held && !row.grant_wanted && !row.forced && row.native.is_some();
        let new = |row: &&AttachmentRow| {
            row.grant_wanted && !row.granted && row.status == AttachmentStatus::Attaching
        };
        let stays: Vec<_> = work.rows.iter().filter(back).map(|row| row.id).collect();
        let fails: Vec<_> = work.rows.iter().filter(new).map(|row| row.id).collect();
        let by_removal = cure == Cure::FixSpec && !stays.is_empty();
        let (ids, keep) = if by_removal { (stays, true) } else { (fails, false) };
        if ids.is_empty() && cure == Cure::FixSpec {
            // No attachment here explains it: there is somebody at the agent that this database does not know.
            return self.review(id, &text).await;
        }
        if ids.is_empty() {
            return Ok(Next::After(AGAIN));
        }
        let write = move |db: &Db<'_>| {
            let mut rows = Vec::new();
            for mut row in db.attachments_of(id)?.into_iter().filter(|row| ids.contains(&row.id)) {
                // It may be another matter by now: forced meanwhile, or on another way.
                let same = if keep { back(&&row) } else { new(&&row) };
                if !same {
                    continue;
                }
                row.grant_wanted = keep;
                row.fault = Some(text.clone());
                row.wished_at = Generation::ZERO;
                if !keep && row.status == AttachmentStatus::Attaching {
                    row.status = AttachmentStatus::ErrorAttaching;
                }
                rows.push(row);
            }
            let hosts: BTreeSet<AgentId> = rows.iter().filter_map(|row| row.native).collect();
            Ok((wishes::apply(db, id, &mut rows, &BTreeSet::new())?, hosts))
        };
        let (rewished, hosts) = self.store.write("take back a change", write).await?;
        self.go(id, &rewished.hosts);
        if by_removal {
            // The host has let go; its session at the target ends when the kernel notices. Its job asks again.
            for host in hosts {
                let inner = Arc::clone(self);
                self.spawn(async move {
                    tokio::time::sleep(AGAIN).await;
                    inner.kick(Job::Host(id, host));
                });
            }
        }
        Ok(Next::Again)
    }
}

/// What may be cut: whose detach is a client's (its DELETE is the end of its session, as with every target) or forced. A host
/// of ours has logged out before: a session that is there is somebody else's, and is not cut for it.
fn live_sessions(rows: &[AttachmentRow]) -> v1::LiveSessions {
    let cuts = |row: &AttachmentRow| row.held && !row.grant_wanted && (row.forced || row.native.is_none());
    if rows.iter().any(cuts) { v1::LiveSessions::Cut } else { v1::LiveSessions::Refuse }
}

fn seen_mode(report: &ExportReport, initiator: &Iqn) -> Option<mooring_model::Mode> {
    report.grants.iter().find(|grant| &grant.initiator == initiator).and_then(|grant| grant.seen)
}

/// Compares the rows with what the agent has said, and moves those that have arrived.
fn settle(
    inner: &Inner,
    db: &Db<'_>,
    id: VolumeId,
    report: Option<&ExportReport>,
    receipts: &[Receipt],
    looked: bool,
) -> Result<Settled, Abort> {
    let mut settled = Settled::default();
    for receipt in receipts {
        settled.changed |= db.keep_receipt(receipt)?;
    }
    let (Some(volume), Some(report)) = (db.volume(id)?, report) else {
        settled.waits = true;
        return Ok(settled);
    };
    let same_place = volume.target.as_ref() == Some(&report.target)
        && volume.naa.as_ref() == Some(&report.naa)
        && volume.portals == report.portals;
    if !same_place {
        db.set_target(id, &report.target, &report.naa, &report.portals)?;
        settled.changed = true;
    }
    let rows = db.attachments_of(id)?;
    let (mut changed, mut revoked) = (Vec::new(), BTreeSet::new());
    for row in &rows {
        let Some(initiator) = &row.initiator else { continue };
        let sharing =
            |other: &&AttachmentRow| other.grant_wanted && other.initiator.as_ref() == Some(initiator);
        let wanted = rules::effective_mode(rows.iter().filter(sharing).map(|other| other.mode));
        let reached = report.generation >= row.wished_at;
        if row.status == AttachmentStatus::Attaching && row.grant_wanted && !row.granted {
            if reached && wanted.is_some() && seen_mode(report, initiator) == wanted {
                changed.push(granted(inner, row));
            } else {
                settled.waits = true;
            }
        } else if row.held && !row.grant_wanted {
            match revoked_now(db, row, report, reached, wanted, looked)? {
                Revoking::Waits => settled.waits = true,
                Revoking::Look => settled.look = true,
                Revoking::Done(receipt) => {
                    settled.changed = true;
                    finish(db, row, receipt, &mut changed, &mut revoked, &mut settled)?;
                }
            }
        }
    }
    if settled.changed || !changed.is_empty() {
        settled.changed = true;
        settled.rewished = wishes::apply(db, id, &mut changed, &revoked)?;
    }
    Ok(settled)
}

/// The grant of an attachment is in the kernel.
fn granted(inner: &Inner, row: &AttachmentRow) -> AttachmentRow {
    let mut row = row.clone();
    row.granted = true;
    row.fault = None;
    row.steps.push(("granted".to_owned(), inner.elapsed_ms(row.id, row.created_at)));
    if row.native.is_some() {
        row.connect_wanted = true;
        row.connect_ever = true;
    }
    row
}

enum Revoking {
    Waits,
    Look,
    Done(Option<i64>),
}

/// Whether a grant is gone, by the word of the agent.
fn revoked_now(
    db: &Db<'_>,
    row: &AttachmentRow,
    report: &ExportReport,
    reached: bool,
    wanted: Option<mooring_model::Mode>,
    looked: bool,
) -> Result<Revoking, Abort> {
    let Some(initiator) = &row.initiator else { return Ok(Revoking::Done(None)) };
    if !reached {
        return Ok(Revoking::Waits);
    }
    if wanted.is_some() {
        // Another attachment keeps the nexus: what goes with this one is at most its mode.
        let narrowed = seen_mode(report, initiator) == wanted;
        return Ok(if narrowed { Revoking::Done(None) } else { Revoking::Waits });
    }
    match db.receipt_since(row.volume, initiator, row.wished_at)? {
        Some((id, receipt)) if receipt.proof == Proof::Proven => Ok(Revoking::Done(Some(id))),
        Some(_) => Ok(Revoking::Waits),
        None if looked && report.in_force => Ok(Revoking::Done(None)),
        None if looked => Ok(Revoking::Waits),
        None => Ok(Revoking::Look),
    }
}

/// An attachment whose grant is gone: away with it, or, when it could not be attached, kept with its reason.
fn finish(
    db: &Db<'_>,
    row: &AttachmentRow,
    receipt: Option<i64>,
    changed: &mut Vec<AttachmentRow>,
    revoked: &mut BTreeSet<AgentId>,
    settled: &mut Settled,
) -> Result<(), Abort> {
    if let Some(host) = row.native.filter(|_| row.connect_wanted || row.forced) {
        revoked.insert(host);
    }
    if row.status == AttachmentStatus::Detaching {
        db.detach(row, receipt)?;
        settled.attached.push(row.id);
        return Ok(());
    }
    let mut row = row.clone();
    row.held = false;
    row.granted = false;
    row.connect_wanted = false;
    changed.push(row);
    Ok(())
}

//! A volume at its storage agent: the volume itself, then the access to it, then the results of
//! both.
//!
//! What must never happen here: a grant that counts as seen although the kernel does not show it;
//! an attachment that goes without the storage agent's word; a live session cut that nobody wanted
//! cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_api::{Message, reports, v1};
use mooring_model::{
    AgentId, AttachmentId, Cure, ExportReport, Generation, Phase, Problem, Proof, Receipt, VolumeId,
    VolumeReport,
};
use tokio::time::Instant;

use super::once::once;
use super::seen::{fc_ports, is_same_place, is_seen, seen_mode, wanted_mode};
use super::volume_specs::{self, SpecChanges};
use super::waits::Waiting;
use super::{AGAIN, AGENT_WAIT_MS, Facts, Flow, Next, growth, rotate};
use crate::agents::calls::CallError;
use crate::agents::listener::Job;
use crate::agents::words::{self, Word};
use crate::agents::{Agent, Heard, Held};
use crate::domain::AttachmentStatus;
use crate::error::Refusal;
use crate::initiators::Initiators;
use crate::rules::Operation;
use crate::store::{Abort, AttachmentRow, Db, Kind, SpecRow, Taking, VolumeRow};

/// Limit of a look at one volume.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Progress of a volume that is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Creation {
    /// The agent cannot have the spec.
    Unsent,
    /// The spec may have reached the agent.
    Sent,
    /// The agent was seen to have the volume, or the volume is not being made any more.
    Taken,
}

impl Creation {
    /// Returns `true` if this report is the first to show that the agent has the volume's space.
    fn has_news(self, report: &VolumeReport) -> bool {
        self != Self::Taken && (report.device.is_some() || report.zeroed.is_some())
    }
}

/// Input of a pass.
pub(super) struct Work {
    pub(super) volume: VolumeRow,
    pub(super) rows: Vec<AttachmentRow>,
    pub(super) volume_spec: Option<SpecRow>,
    pub(super) export_spec: Option<SpecRow>,
    /// `true`: a nexus is to go that none of the rows may have.
    takes: bool,
    creation: Creation,
    /// `true`: secrets of a nexus are being rotated.
    rotates: bool,
    /// `true`: the volume is to go, and has snapshots, which go first.
    has_snapshots: bool,
}

/// Results of comparing rows and reports.
#[derive(Default)]
struct Settled {
    changed: bool,
    /// `true`: a nexus that went has no receipt here, so the agent must be asked.
    look: bool,
    /// `true`: something is still under way.
    waits: bool,
    spec_changes: SpecChanges,
    /// Attachments that have ended.
    ended: Vec<AttachmentId>,
    /// Receipts that their agent may not state.
    foreign: Vec<Receipt>,
}

fn read_creation(db: &Db<'_>, volume: &VolumeRow) -> Result<Creation, Abort> {
    if volume.operation != Some(Operation::Creating) {
        return Ok(Creation::Taken);
    }
    if !db.may_be_sent(volume.id)? {
        return Ok(Creation::Unsent);
    }
    Ok(if db.is_taken(volume.id)? { Creation::Taken } else { Creation::Sent })
}

/// Reads a volume's rows and specs, and the nexuses that go besides. `None`: this database does not
/// know the volume.
fn read_work(db: &Db<'_>, id: VolumeId) -> Result<(Option<Work>, Vec<Taking>), Abort> {
    let takings = db.takings_of(id)?;
    let Some(volume) = db.volume(id)? else { return Ok((None, takings)) };
    let going = volume.operation.is_some_and(Operation::is_going);
    let work = Work {
        has_snapshots: going && !db.snapshots_of(id)?.is_empty(),
        rotates: !db.rotations_of(id)?.is_empty(),
        takes: takings.iter().any(|taking| taking.agent == volume.agent),
        creation: read_creation(db, &volume)?,
        rows: db.attachments_of(id)?,
        volume_spec: db.spec(id, Kind::Volume)?,
        export_spec: db.spec(id, Kind::Export)?,
        volume,
    };
    Ok((Some(work), takings))
}

fn stamp(spec: &SpecRow) -> v1::Stamp {
    mooring_api::stamp_to_wire(&spec.stamp)
}

/// Formats an agent's problems in one line.
pub(super) fn said(agent: &Agent, problems: &[Problem]) -> String {
    let texts: Vec<_> = problems.iter().map(|p| format!("{}: {}", p.object, p.text)).collect();
    format!("{}: {}", agent.entry.name, texts.join("; "))
}

impl Flow {
    pub(crate) fn sender(&self) -> v1::Sender {
        v1::Sender { cluster_id: self.reads.cluster().to_string() }
    }

    pub(super) async fn storage_pass(self: &Arc<Self>, id: VolumeId) -> Result<Next, Refusal> {
        let read = self.reads.read_one("read a volume", move |db| read_work(db, id)).await?;
        let (work, takings) = read;
        let in_review = work.as_ref().is_some_and(|work| work.volume.review.is_some());
        let taken = if in_review || !takings.is_empty() {
            self.taking_pass(id, work.as_ref(), &takings).await?
        } else {
            Next::Idle
        };
        // For a volume in review, nothing else is changed at its agent.
        match work.filter(|_| !in_review && taken != Next::Again) {
            None => Ok(taken),
            Some(work) => Ok(taken.sooner(self.spec_pass(work).await?)),
        }
    }

    /// Brings a volume's specs into force.
    async fn spec_pass(self: &Arc<Self>, work: Work) -> Result<Next, Refusal> {
        // When the agent is up again, all of its volumes look again.
        let at = work.volume.agent;
        let Ok(agent) = self.facts.agents.held(at) else {
            // If another controller drives the agent, that one does the work.
            let up = self.facts.agents.up(at).is_ok();
            return if up { Ok(Next::Idle) } else { self.unreachable_pass(&work.volume).await };
        };
        if work.volume.operation.is_some_and(Operation::is_going) {
            return self.delete_pass(&agent, &work).await;
        }
        if matches!(work.volume.operation, Some(Operation::Reverting | Operation::Restoring)) {
            return self.revert_pass(&agent, &work).await;
        }
        if work.volume.operation == Some(Operation::Uploading) {
            return self.upload_pass(&agent, &work).await;
        }
        if let Some(next) = self.volume_pass(&agent, &work).await? {
            return Ok(next);
        }
        if work.volume.snapshot_of.is_some() {
            return self.snapshot_pass(&agent, &work).await;
        }
        let extending = work.volume.operation == Some(Operation::Extending);
        let next = self.export_pass(&agent, work).await?;
        Ok(if extending && matches!(next, Next::Idle) { Next::After(growth::LOOK_EVERY) } else { next })
    }

    /// Handles the volume itself. `None`: it is there, and the export is next.
    async fn volume_pass(self: &Arc<Self>, agent: &Held, work: &Work) -> Result<Option<Next>, Refusal> {
        let id = work.volume.id;
        let Some(spec) = &work.volume_spec else { return Ok(Some(Next::Idle)) };
        if work.volume.is_leaving() {
            return self.leave_pass(agent, &work.volume, spec).await.map(Some);
        }
        self.facts.waits.waits_no_more(Waiting::Unsent(id, work.volume.agent));
        if work.creation == Creation::Unsent && !self.mark_sent(agent, &work.volume).await? {
            return Ok(Some(Next::Again));
        }
        let mut lost = None;
        if agent.volume_stamp(id).as_ref() != Some(&spec.stamp) {
            // The export must not wait until the volume has grown.
            let extending = work.volume.operation == Some(Operation::Extending);
            // Nor until an isolated volume's disk, which may not answer, is unreachable.
            let waits_longer = extending || work.volume.isolated_since().is_some();
            let wait_ms = if waits_longer { growth::WAIT_MS } else { AGENT_WAIT_MS };
            match self.put_volume(agent, &work.volume, spec, wait_ms).await {
                Ok(_) => {}
                Err(CallError::Lost(text)) => lost = Some(text),
                Err(CallError::Stale(text)) => return self.review(agent, id, &text).await.map(Some),
                Err(CallError::Refused { text, cure, id_is_taken, .. }) => {
                    if work.volume.operation.is_some_and(Operation::is_coming) {
                        if cure == Cure::Retry {
                            return Ok(Some(Next::After(AGAIN)));
                        }
                        if id_is_taken {
                            return self.id_refused(agent, &work.volume, text).await.map(Some);
                        }
                        return self.creation_failed(agent, &work.volume, text).await.map(Some);
                    }
                    if work.volume.operation == Some(Operation::Extending) && cure != Cure::Retry {
                        return self.extension_refused(agent, work, &text).await.map(Some);
                    }
                    // The spec also names the volume for a rebuild: the export does not wait for
                    // that.
                    tracing::warn!(volume = %id, error = text, "the agent does not take the volume's spec");
                }
            }
        }
        if let Some(text) = lost {
            tracing::warn!(volume = %id, error = text, "a call was lost");
            return Ok(Some(Next::After(AGAIN)));
        }
        // A report of another pool was made before the volume came to this pool.
        let group = work.volume.pool_name().map(|pool| pool.group.to_string());
        let of_now = |seen: &str| work.volume.is_served() || group.as_deref() == Some(seen);
        let report = agent.volume(id).filter(|report| of_now(&report.group));
        let Some(report) = report else { return Ok(Some(Next::After(AGAIN))) };
        match (work.volume.operation, report.phase) {
            (Some(operation), Phase::Ready) if operation.is_coming() => {
                self.set_operation(agent, work, None, None).await?;
                Ok(Some(Next::Again))
            }
            (Some(Operation::Creating | Operation::Managing), Phase::Failed)
                if report.problems.iter().any(|problem| problem.cure != Cure::Retry) =>
            {
                let text = said(agent, &report.problems);
                self.creation_failed(agent, &work.volume, text).await.map(Some)
            }
            (Some(Operation::Creating), Phase::Creating) if work.creation.has_news(&report) => {
                let write = move |db: &Db<'_>| Ok(db.note_taken(id)?);
                agent.store.write("keep that a volume has its space", write).await?;
                Ok(Some(Next::Idle))
            }
            (Some(Operation::Extending | Operation::ErrorExtending), _) => {
                let moved = self.growth_pass(agent, work, report).await?;
                Ok(moved.then_some(Next::Again))
            }
            // Reports come as the work goes on.
            (Some(_), _) => Ok(Some(Next::Idle)),
            // A volume that is there and has problems is still served.
            (None, _) => Ok(None),
        }
    }

    /// Handles a snapshot that is there: it has no export. Its content may be lost.
    async fn snapshot_pass(self: &Arc<Self>, agent: &Held, work: &Work) -> Result<Next, Refusal> {
        let report = agent.volume(work.volume.id).filter(|report| report.phase == Phase::Failed);
        let problems = report.map(|report| report.problems).unwrap_or_default();
        if problems.iter().any(|problem| problem.cure != Cure::Retry) {
            let text = said(agent, &problems);
            self.set_operation(agent, work, Some(Operation::Error), Some(text)).await?;
        }
        Ok(Next::Idle)
    }

    /// Moves a volume on from the operation that this pass read. Leaves it if its operation has
    /// changed meanwhile (somebody deletes it).
    async fn set_operation(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        operation: Option<Operation>,
        fault: Option<String>,
    ) -> Result<(), Refusal> {
        let (id, was) = (work.volume.id, work.volume.operation);
        let write = move |db: &Db<'_>| {
            if db.volume(id)?.is_none_or(|volume| volume.operation != was) {
                return Ok(volume_specs::SpecChanges::default());
            }
            db.set_operation(id, operation, fault.as_deref())?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("change where a volume stands", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(())
    }

    /// Deletes the snapshots first, then the export, then the volume with its data, then the row.
    async fn delete_pass(self: &Arc<Self>, agent: &Held, work: &Work) -> Result<Next, Refusal> {
        let id = work.volume.id;
        if work.has_snapshots {
            // The job of the last snapshot kicks this one.
            return Ok(Next::Idle);
        }
        let stays = work.volume_spec.as_ref().is_some_and(|spec| spec.content.body.is_some());
        if stays && work.volume.taken {
            return self.follow_snapshots(agent, id).await;
        }
        if let Some(spec) = &work.export_spec
            && agent.export_stamp(id).as_ref() != Some(&spec.stamp)
        {
            match self.put_export(agent, work, spec, v1::LiveSessions::Refuse).await {
                Ok((true, _)) => {}
                Ok((false, _)) => return Ok(Next::After(AGAIN)),
                Err(error) => return self.delete_failed(agent, work, error).await,
            }
        }
        let Some(spec) = &work.volume_spec else { return Ok(Next::Idle) };
        if spec.content.body.is_some() {
            return self.confirm_pass(agent, &work.volume, spec).await;
        }
        match self.put_volume(agent, &work.volume, spec, AGENT_WAIT_MS).await {
            Ok(true) => {
                let delete = move |db: &Db<'_>| Ok(db.delete_volume(id)?);
                agent.store.write("take a deleted volume away", delete).await?;
                self.touch(id);
                self.snapshot_gone(&work.volume);
                Ok(Next::Idle)
            }
            Ok(false) => Ok(Next::After(AGAIN)),
            Err(error) => self.delete_failed(agent, work, error).await,
        }
    }

    async fn delete_failed(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        error: CallError,
    ) -> Result<Next, Refusal> {
        match error {
            CallError::Stale(text) => self.review(agent, work.volume.id, &text).await,
            CallError::Refused { text, cure, .. } if cure != Cure::Retry => {
                self.taking_away_failed(agent, work, text).await
            }
            CallError::Lost(text) | CallError::Refused { text, .. } => {
                tracing::warn!(volume = %work.volume.id, error = text, "a volume is not deleted yet");
                Ok(Next::After(AGAIN))
            }
        }
    }

    /// Sends an export's spec. Returns `true` if it is in force, and the receipts of what it
    /// revoked.
    async fn put_export(
        &self,
        agent: &Held,
        work: &Work,
        spec: &SpecRow,
        live: v1::LiveSessions,
    ) -> Result<(bool, Vec<Receipt>), CallError> {
        use v1::put_export_request::Wish;
        let id = work.volume.id;
        let corrupt = |_| CallError::Lost("the stored spec of the export does not decode".to_owned());
        let wish = match &spec.content.body {
            Some(body) => Wish::Spec(v1::ExportSpec::decode(body.as_slice()).map_err(corrupt)?),
            None => Wish::Tombstone(v1::Tombstone::default()),
        };
        let put = v1::PutExportRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(stamp(spec)),
            wish: Some(wish),
            opaque: spec.content.opaque.clone(),
            deadline_ms: AGENT_WAIT_MS,
            live_sessions: live.into(),
            reservations_copy: work.volume.reservations_copy().to_owned(),
        };
        let asking = self.ask_storage(id);
        let heard = Heard::Answered(Instant::now());
        let answer = agent.put_export(put).await?;
        asking.answered();
        let receipts: Vec<_> = answer.receipts.iter().filter_map(reports::receipt).collect();
        let all = answer.done && receipts.iter().all(|receipt| receipt.proof == Proof::Proven);
        agent.took_export(id, spec.stamp.clone(), all && !receipts.is_empty());
        // As a rule a report came, too, and the second of the two says nothing new.
        let report = reports::export_of(answer.report.as_ref(), id);
        if report.is_none_or(|report| agent.saw_export(&report, heard)) {
            self.touch(id);
        }
        Ok((answer.done, receipts))
    }

    async fn export_pass(self: &Arc<Self>, agent: &Held, work: Work) -> Result<Next, Refusal> {
        let id = work.volume.id;
        let Some(spec) = &work.export_spec else {
            // For a volume that is older than its first export spec.
            let apply = move |db: &Db<'_>| volume_specs::apply(db, id, &mut [], &BTreeSet::new());
            agent.store.write("make a spec of the export", apply).await?;
            return Ok(Next::Again);
        };
        let kept = agent.export_stamp(id);
        let moving = work.rows.iter().any(|row| row.is_coming() || row.is_revoking());
        let due = agent.put_at(id).is_none_or(|at| at.elapsed() >= AGAIN);
        let mut receipts = Vec::new();
        if kept.as_ref() != Some(&spec.stamp) || (moving && due) {
            let taken = kept.as_ref().map_or(Generation::ZERO, |stamp| stamp.generation);
            let live = if work.takes { v1::LiveSessions::Cut } else { live_sessions(&work.rows, taken) };
            match self.put_export(agent, &work, spec, live).await {
                Ok((_, taken)) => receipts = taken,
                Err(CallError::Lost(text)) => {
                    tracing::warn!(volume = %id, error = text, "a call was lost");
                    return Ok(Next::After(AGAIN));
                }
                Err(CallError::Stale(text)) => return self.review(agent, id, &text).await,
                Err(CallError::Refused { text, cure, .. }) => {
                    return self.export_refused(agent, &work, text, cure).await;
                }
            }
        }
        self.settle_export(agent, &work, receipts).await
    }

    async fn settle_export(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        mut receipts: Vec<Receipt>,
    ) -> Result<Next, Refusal> {
        let id = work.volume.id;
        let mut looked = false;
        loop {
            receipts.extend(agent.take_receipts(id));
            let said = once(std::mem::take(&mut receipts));
            let report = agent.export(id);
            self.copy_reservations(agent, work, report.as_ref()).await?;
            match arrived(&self.facts, work, report.as_ref(), &said) {
                Arrived::Nothing(next) if !looked => return Ok(next),
                Arrived::Grants(noted) if !looked => return self.note_grants(agent, id, noted).await,
                _ => {}
            }
            let facts = self.facts.clone();
            let write = move |db: &Db<'_>| settle(&facts, db, id, report.as_ref(), &said, looked);
            let settled = agent.store.write("settle an export", write).await?;
            for ended in settled.ended {
                self.facts.stop_clock(ended);
            }
            for receipt in &settled.foreign {
                agent.drops(Word::Receipt(receipt));
            }
            if settled.changed {
                for host in &settled.spec_changes.hosts {
                    self.kick(Job::Host(id, *host));
                }
                self.touch(id);
            }
            if !settled.look || looked {
                return Ok(match (settled.spec_changes.storage, settled.waits) {
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

    /// Notes that grants of clients are in the kernel. Callers that wait for them read the report
    /// themselves ([`Flow::sees_grant`]), so the note may be stored with the next change.
    async fn note_grants(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        noted: Vec<Noted>,
    ) -> Result<Next, Refusal> {
        // The closure must not hold `self`: a waiting change is dropped only with the store.
        let write = move |db: &Db<'_>| {
            let (before, mut rows) = (db.attachments_of(id)?, Vec::new());
            for row in before.iter().filter(|row| row.is_coming()) {
                if let Some(noted) = noted.iter().find(|noted| noted.is_of(row)) {
                    let mut row = row.clone();
                    row.saw_grant(noted.ms);
                    rows.push(row);
                }
            }
            let volume = if rows.is_empty() { None } else { db.volume(id)? };
            match volume {
                Some(volume) => volume_specs::apply_to(db, &volume, before, &mut rows, &BTreeSet::new()),
                None => Ok(SpecChanges::default()),
            }
        };
        let spec_changes = agent.store.write_soon("note a grant", write).await?;
        self.touch(id);
        Ok(if spec_changes.storage { Next::Again } else { Next::Idle })
    }

    /// Looks at a volume now. Returns its receipts.
    pub(crate) async fn look(&self, agent: &Arc<Agent>, id: VolumeId) -> Result<Vec<Receipt>, CallError> {
        let (status, _) = self.status_now(agent, id).await?;
        Ok(status.receipts.iter().filter_map(reports::receipt).collect())
    }

    /// Has a volume looked at after this call, by a look that other callers may share. If the agent
    /// does not answer, its last report stays.
    pub(crate) async fn look_shared(&self, agent: &Arc<Agent>, id: VolumeId) {
        let look = async {
            if let Err(error) = self.look(agent, id).await {
                tracing::debug!(volume = %id, %error, "cannot look at a volume");
            }
        };
        self.looks.share(id, look).await;
    }

    /// Looks at a volume now. Returns the agent's answer, and the report of the export in it.
    pub(crate) async fn status_now(
        &self,
        agent: &Arc<Agent>,
        id: VolumeId,
    ) -> Result<(v1::VolumeStatus, Option<ExportReport>), CallError> {
        let asked = Instant::now();
        let heard = Heard::Answered(asked);
        let status = agent.get_volume(id.to_string(), LOOK_LIMIT).await?;
        let export = reports::export_of(status.export.as_ref(), id);
        if let Some(report) = &export {
            agent.saw_export(report, heard);
        }
        if status.looked_now != Some(false) {
            agent.looked_at_export(id, asked);
        }
        if let Some(report) = reports::volume_of(status.volume.as_ref(), id) {
            agent.saw_volume(&report, heard);
        }
        self.touch(id);
        Ok((status, export))
    }
}

/// Returns whether live sessions may be cut. They may for a client's detach (its DELETE ends its
/// session, as with every target) and for a forced one. A host with an agent has logged out
/// before: a session that is there belongs to somebody else, and is not cut. Over Fibre Channel
/// such a host has removed its disk, and its port stays logged in for its other volumes. A change
/// that the agent has taken already (a receipt waits for its proof) cuts nobody any more.
fn live_sessions(rows: &[AttachmentRow], taken: Generation) -> v1::LiveSessions {
    let over_fc = |row: &AttachmentRow| row.initiator.as_ref().is_some_and(|of| of.ports().is_some());
    let cuts = |row: &AttachmentRow| {
        row.is_revoking()
            && row.in_spec_since > taken
            && (row.is_forced() || row.native.is_none() || over_fc(row))
    };
    if rows.iter().any(cuts) { v1::LiveSessions::Cut } else { v1::LiveSessions::Refuse }
}

/// A grant that a report shows.
struct Noted {
    id: AttachmentId,
    in_spec_since: Generation,
    ms: u64,
}

impl Noted {
    fn is_of(&self, row: &AttachmentRow) -> bool {
        row.id == self.id && row.in_spec_since == self.in_spec_since
    }
}

/// Result of a look at the report, before anything is written.
enum Arrived {
    /// Nothing has to be written.
    Nothing(Next),
    /// Only grants of clients have come.
    Grants(Vec<Noted>),
    /// Anything else.
    More,
}

fn arrived(facts: &Facts, work: &Work, report: Option<&ExportReport>, receipts: &[Receipt]) -> Arrived {
    let Some(report) = report else { return Arrived::Nothing(Next::After(AGAIN)) };
    if !receipts.is_empty() || !is_same_place(&work.volume, report) {
        return Arrived::More;
    }
    if work.rotates {
        return Arrived::More;
    }
    let (mut noted, mut waits) = (Vec::new(), false);
    for row in &work.rows {
        if row.is_coming() {
            if !is_seen(report, row, &work.rows) {
                waits = true;
            } else if row.native.is_some() {
                return Arrived::More;
            } else {
                let ms = facts.elapsed_ms(row.id, row.created_at);
                noted.push(Noted { id: row.id, in_spec_since: row.in_spec_since, ms });
            }
        } else if row.is_revoking() {
            if report.generation >= row.in_spec_since {
                return Arrived::More;
            }
            waits = true;
        }
    }
    match (noted.is_empty(), waits) {
        (false, false) => Arrived::Grants(noted),
        (false, true) => Arrived::More,
        (true, true) => Arrived::Nothing(Next::After(AGAIN)),
        (true, false) => Arrived::Nothing(Next::Idle),
    }
}

/// Compares the rows with the agent's report and receipts, and moves those that have arrived.
fn settle(
    facts: &Facts,
    db: &Db<'_>,
    id: VolumeId,
    report: Option<&ExportReport>,
    receipts: &[Receipt],
    looked: bool,
) -> Result<Settled, Abort> {
    let mut settled = Settled::default();
    let volume = db.volume(id)?;
    for receipt in receipts {
        let kept = match &volume {
            // The volume's own agent stated all of them, perhaps for another volume.
            Some(volume) => words::keep_receipt(db, volume.agent, receipt)?,
            None => Some(false),
        };
        let Some(new) = kept else {
            settled.foreign.push(receipt.clone());
            continue;
        };
        if let Some(words) = receipt.parting_words().filter(|_| new) {
            // The answers of the Block Storage API have no place for it.
            tracing::warn!(volume = %id, proof = ?receipt.proof, "{words}");
        }
        settled.changed |= new;
    }
    let (Some(volume), Some(report)) = (volume, report) else {
        settled.waits = true;
        return Ok(settled);
    };
    let moved = !is_same_place(&volume, report);
    if moved {
        db.set_target(id, &report.target, &report.naa, &report.portals)?;
        db.set_fc_ports(id, &fc_ports(&volume, report))?;
        settled.changed = true;
    }
    let (rotated, rotates) = rotate::seen_at_target(db, id, report)?;
    settled.changed |= rotated;
    settled.waits |= rotates;
    let mut rows = db.attachments_of(id)?;
    let (mut changed, mut revoked) = (Vec::new(), BTreeSet::new());
    for row in &rows {
        if row.is_coming() {
            if is_seen(report, row, &rows) {
                changed.push(granted(facts, row));
            } else {
                settled.waits = true;
            }
        } else if row.is_revoking() {
            match revoked_now(db, row, &rows, report, looked)? {
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
        rows.retain(|row| !settled.ended.contains(&row.id));
        if moved {
            settled.spec_changes = volume_specs::apply(db, id, &mut changed, &revoked)?;
        } else if !changed.is_empty() || !revoked.is_empty() {
            settled.spec_changes = volume_specs::apply_to(db, &volume, rows, &mut changed, &revoked)?;
        } else {
            volume_specs::left(db, &volume, &rows)?;
        }
    }
    if rotated {
        // Whatever the rows say, hosts are to forget the secrets that the target does not have any
        // more.
        settled.spec_changes.add(volume_specs::apply(db, id, &mut [], &BTreeSet::new())?);
    }
    Ok(settled)
}

/// Returns the row of an attachment whose grant is in the kernel.
fn granted(facts: &Facts, row: &AttachmentRow) -> AttachmentRow {
    let mut row = row.clone();
    row.saw_grant(facts.elapsed_ms(row.id, row.created_at));
    if row.native.is_some() {
        row.path_wanted();
    }
    row
}

enum Revoking {
    Waits,
    Look,
    Done(Option<i64>),
}

/// Checks that the grant of an attachment is gone for every one of its initiators, by the agent's
/// word.
fn revoked_now(
    db: &Db<'_>,
    row: &AttachmentRow,
    rows: &[AttachmentRow],
    report: &ExportReport,
    looked: bool,
) -> Result<Revoking, Abort> {
    // Zero: the spec may still have the grant.
    if row.in_spec_since == Generation::ZERO || report.generation < row.in_spec_since {
        return Ok(Revoking::Waits);
    }
    let mut last: Option<(i64, Receipt)> = None;
    let mut look = false;
    for initiator in row.initiator.iter().flat_map(Initiators::each) {
        let wanted = wanted_mode(rows, &initiator);
        if wanted.is_some() {
            // Another attachment keeps the nexus: this one changes at most its mode.
            if seen_mode(report, &initiator) != wanted {
                return Ok(Revoking::Waits);
            }
            continue;
        }
        match db.receipt_since(row.volume, &initiator, row.in_spec_since)? {
            Some(found) if found.1.proof == Proof::Proven => {
                last = Some(match last.take() {
                    Some(other) if other.1.ended >= found.1.ended => other,
                    _ => found,
                });
            }
            Some(_) => return Ok(Revoking::Waits),
            None if looked && report.in_force => {}
            None if looked => return Ok(Revoking::Waits),
            None => look = true,
        }
    }
    Ok(if look { Revoking::Look } else { Revoking::Done(last.map(|(id, _)| id)) })
}

/// Ends an attachment whose grant is gone: removes it, or keeps it with its reason if the attach
/// failed.
fn finish(
    db: &Db<'_>,
    row: &AttachmentRow,
    receipt: Option<i64>,
    changed: &mut Vec<AttachmentRow>,
    revoked: &mut BTreeSet<AgentId>,
    settled: &mut Settled,
) -> Result<(), Abort> {
    if let Some(host) = row.native.filter(|_| row.wants_path() || row.is_forced()) {
        revoked.insert(host);
    }
    if row.status == AttachmentStatus::Detaching {
        db.detach(row, receipt, row.is_forced())?;
        settled.ended.push(row.id);
        return Ok(());
    }
    let mut row = row.clone();
    row.gone();
    changed.push(row);
    Ok(())
}

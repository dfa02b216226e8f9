//! A connection at its host's agent: made when the grant is seen, ended before the grant goes, or
//! revoked after it went.
//!
//! What must never happen here: a host that gets a connection before its grant is seen; an
//! attachment that counts as attached without its verified device; a grant given up while the host
//! still has its device.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_api::{Message, reports, v1};
use mooring_model::{
    AgentId, AttachmentId, Cache, ConnectionPhase, ConnectionReport, Cure, Generation, VolumeId,
};
use tokio::time::Instant;

use super::volume_specs::{self, SpecChanges};
use super::waits::Waiting;
use super::{AGAIN, AGENT_WAIT_MS, ATTACH_GIVE_UP, Facts, Flow, Next, rotate};
use crate::agents::Held;
use crate::agents::calls::CallError;
use crate::domain::AttachmentStatus;
use crate::error::Refusal;
use crate::store::{Abort, AttachmentRow, Db, Kind, SpecRow};

struct Work {
    spec: SpecRow,
    rows: Vec<AttachmentRow>,
    review: bool,
}

#[derive(Default)]
struct Settled {
    changed: bool,
    waits: bool,
    attached: Vec<AttachmentId>,
    spec_changes: SpecChanges,
}

fn read_work(db: &Db<'_>, id: VolumeId, host: AgentId) -> Result<Option<Work>, Abort> {
    let Some(spec) = db.spec(id, Kind::Connection(host))? else { return Ok(None) };
    let rows = db.attachments_of(id)?.into_iter().filter(|row| row.native == Some(host)).collect();
    let review = db.volume(id)?.is_some_and(|volume| volume.review.is_some());
    Ok(Some(Work { spec, rows, review }))
}

fn enters(row: &AttachmentRow) -> bool {
    row.status == AttachmentStatus::Attaching && row.wants_path()
}

fn text_of(name: &str, report: &ConnectionReport) -> String {
    let problems = report.problems.iter().map(ToString::to_string);
    let problems = problems.collect::<Vec<_>>().join("; ");
    let why = if problems.is_empty() { "the agent gives no reason" } else { problems.as_str() };
    format!("{name}: connection {}: {why}", report.phase)
}

impl Flow {
    pub(super) async fn host_pass(self: &Arc<Self>, id: VolumeId, host: AgentId) -> Result<Next, Refusal> {
        let read = move |db: &Db<'_>| read_work(db, id, host);
        let Some(work) = self.reads.read_one("read a connection", read).await? else { return Ok(Next::Idle) };
        if work.review
            || (work.spec.content.body.is_none()
                && work.spec.settled
                && !work.rows.iter().any(AttachmentRow::host_lets_go))
        {
            return Ok(Next::Idle);
        }
        let Ok(agent) = self.facts.agents.held(host) else { return Ok(Next::Idle) };
        let seen = agent.connection(id);
        let moving =
            work.spec.content.body.is_none() || work.rows.iter().any(|row| row.host_lets_go() || enters(row));
        let due = seen.put_at.is_none_or(|at| at.elapsed() >= AGAIN);
        let mut done = false;
        if seen.stamp.as_ref() != Some(&work.spec.stamp) || (moving && due) {
            match self.put_connection(&agent, id, &work.spec).await {
                Ok(answer) => done = answer,
                Err(CallError::Lost(text)) => {
                    tracing::warn!(volume = %id, error = text, "a call was lost");
                    return Ok(Next::After(AGAIN));
                }
                Err(CallError::Stale(text)) => return self.review(&agent, id, &text).await,
                Err(CallError::Refused { text, precondition, .. }) => {
                    return self.connection_refused(&agent, id, host, text, precondition).await;
                }
            }
        }
        let at = work.spec.stamp.generation;
        let next = self.settle_connection(&agent, id, host, at, done).await?;
        if next == Next::Again {
            return Ok(next);
        }
        Ok(next.sooner(self.shut_out_pass(&agent, id, host, at).await?))
    }

    async fn put_connection(&self, agent: &Held, id: VolumeId, spec: &SpecRow) -> Result<bool, CallError> {
        use v1::put_connection_request::Wish;
        let corrupt = |_| CallError::Lost("the stored spec of the connection does not decode".to_owned());
        let wish = match &spec.content.body {
            Some(body) => Wish::Spec(v1::ConnectionSpec::decode(body.as_slice()).map_err(corrupt)?),
            None => Wish::Tombstone(v1::ConnectionTombstone { revoked: spec.content.hard }),
        };
        let put = v1::PutConnectionRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(mooring_api::stamp_to_wire(&spec.stamp)),
            wish: Some(wish),
            opaque: spec.content.opaque.clone(),
            deadline_ms: AGENT_WAIT_MS,
        };
        let answer = agent.put_connection(put).await?;
        {
            let mut state = agent.state();
            let seen = state.connections.entry(id).or_default();
            seen.stamp = Some(spec.stamp.clone());
            seen.put_at = Some(Instant::now());
        }
        if let Some(report) = reports::connection_of(answer.report.as_ref(), id) {
            agent.saw_connection(report);
        }
        self.touch(id);
        Ok(answer.done)
    }

    async fn settle_connection(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        host: AgentId,
        at: Generation,
        done: bool,
    ) -> Result<Next, Refusal> {
        let report = agent.connection(id).report.filter(|report| report.generation >= at);
        let (facts, name) = (self.facts.clone(), agent.entry.name.clone());
        let keeps_cache_flag = agent.can_turn_cache_off() == Some(true);
        let seen = Seen { at, done, report, name, keeps_cache_flag };
        let write = move |db: &Db<'_>| settle(&facts, db, id, host, &seen);
        let settled = agent.store.write("settle a connection", write).await?;
        for done in &settled.attached {
            self.facts.stop_clock(*done);
        }
        if settled.changed {
            self.go(id, &settled.spec_changes.hosts);
        }
        if !settled.attached.is_empty() {
            self.look_soon(id);
        }
        Ok(match (settled.changed, settled.waits) {
            (true, _) => Next::Again,
            (false, true) => Next::After(AGAIN),
            (false, false) => Next::Idle,
        })
    }

    /// Looks at a volume soon: the target's agent does not report each login by itself.
    pub(crate) fn look_soon(self: &Arc<Self>, id: VolumeId) {
        let flow = Arc::clone(self);
        self.tasks.spawn(async move {
            let read = move |db: &Db<'_>| Ok(db.volume(id)?);
            let Ok(Some(volume)) = flow.reads.read_one("read a volume", read).await else { return };
            let Ok(agent) = flow.facts.agents.up(volume.agent) else { return };
            flow.look_shared(&agent, id).await;
        });
    }

    /// Handles a host that refused a change of a connection. A detach that the disk's users prevent
    /// ends: the attachment stays attached. An attach that can never succeed fails.
    async fn connection_refused(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        host: AgentId,
        text: String,
        precondition: bool,
    ) -> Result<Next, Refusal> {
        tracing::warn!(volume = %id, error = text, "the host does not take the connection's spec");
        let write = move |db: &Db<'_>| {
            let mut rows = Vec::new();
            let all = db.attachments_of(id)?;
            let leaving = all.iter().any(|row| row.native == Some(host) && row.host_lets_go());
            for mut row in all.into_iter().filter(|row| row.native == Some(host)) {
                if row.host_lets_go() {
                    row.fault = Some(text.clone());
                    if precondition && row.status == AttachmentStatus::Detaching {
                        row.host_refused();
                    }
                } else if !leaving && enters(&row) {
                    fail(db, &mut row, &text)?;
                } else {
                    continue;
                }
                rows.push(row);
            }
            Ok(volume_specs::apply(db, id, &mut rows, &BTreeSet::new())?.hosts)
        };
        let hosts = agent.store.write("take back a change of a connection", write).await?;
        let changed = !hosts.is_empty();
        self.go(id, &hosts);
        Ok(if changed { Next::Again } else { Next::After(AGAIN) })
    }
}

/// Gives an attach up: its host logs out, then its grant goes, and its row has the reason.
fn fail(db: &Db<'_>, row: &mut AttachmentRow, text: &str) -> Result<(), Abort> {
    row.failed();
    row.fault = Some(text.to_owned());
    Ok(db.keep_attach_failed(row)?)
}

/// The present knowledge of a connection.
struct Seen {
    at: Generation,
    /// `true`: the agent says that the spec of this generation is in force.
    done: bool,
    report: Option<ConnectionReport>,
    name: String,
    /// `true`: the agent is of a release that stores the cache flag.
    keeps_cache_flag: bool,
}

/// Returns `true` if the agent has brought a spec into force without its cache flag. An agent of an
/// earlier release took the spec, and stored only the parts that it knew. The agent is of a newer
/// release now, and only a newer spec brings it the flag.
fn lost_cache_flag(rows: &[AttachmentRow], host: AgentId, seen: &Seen) -> bool {
    let wanted = volume_specs::cache_on(rows, host);
    let is_on =
        |report: &ConnectionReport| report.phase == ConnectionPhase::Ready && report.cache == Some(Cache::On);
    seen.keeps_cache_flag && wanted == Some(Cache::Off) && seen.report.as_ref().is_some_and(is_on)
}

fn settle(facts: &Facts, db: &Db<'_>, id: VolumeId, host: AgentId, seen: &Seen) -> Result<Settled, Abort> {
    let mut settled = Settled::default();
    let spec = db.spec(id, Kind::Connection(host))?.filter(|spec| spec.stamp.generation == seen.at);
    // The spec has changed while the call ran: the next pass knows more.
    let Some(spec) = spec else { return Ok(Settled { waits: true, ..settled }) };
    let tombstone = spec.content.body.is_none();
    let gone = seen.report.as_ref().is_some_and(|report| report.phase == ConnectionPhase::Gone);
    let gone = tombstone && (seen.done || gone);
    if gone {
        let settles = db.settle_connection(id, host, seen.at)?;
        let unwritten = seen.report.as_ref().and_then(|report| report.unwritten);
        if let Some(bytes) = unwritten.filter(|_| settles && spec.content.hard) {
            db.keep_unwritten(id, &seen.name, bytes)?;
        }
        settled.changed |= settles;
    } else if tombstone {
        settled.waits = true;
    }
    let rows = db.attachments_of(id)?;
    let switched = !tombstone && rotate::heard_by_host(db, id, host, &rows, seen.report.as_ref())?;
    settled.changed |= switched;
    if !tombstone && lost_cache_flag(&rows, host, seen) {
        tracing::info!(volume = %id, host = seen.name, "the connection has a new spec: its agent kept no cache flag");
        db.renew(id, Kind::Connection(host), seen.at)?;
        settled.changed = true;
    }
    let mut changed = Vec::new();
    for row in rows.into_iter().filter(|row| row.native == Some(host)) {
        let has_path = |report: &ConnectionReport| report.paths.iter().any(|path| path.attachment == row.id);
        if row.host_lets_go() {
            // A settled tombstone counts, too: the grant was given back because a session lingered
            // at the target.
            let without = seen.report.as_ref().is_some_and(|report| !has_path(report));
            if gone || spec.settled || (!tombstone && seen.done && without) {
                let mut row = row;
                row.host_let_go();
                changed.push(row);
            } else {
                settled.waits = true;
            }
        } else if enters(&row) {
            match seen.report.as_ref() {
                Some(report) if report.phase == ConnectionPhase::Ready && has_path(report) => {
                    settled.attached.push(row.id);
                    facts.waits.waits_no_more(Waiting::Device(row.id));
                    changed.push(attached(facts, db, row, report));
                }
                report => {
                    settled.waits = true;
                    if let Some(text) = failure(facts, &row, report, seen) {
                        facts.waits.waits_no_more(Waiting::Device(row.id));
                        let mut row = row;
                        fail(db, &mut row, &text)?;
                        changed.push(row);
                    }
                }
            }
        }
    }
    if settled.changed || !changed.is_empty() {
        settled.changed = true;
        settled.spec_changes = volume_specs::apply(db, id, &mut changed, &BTreeSet::new())?;
    }
    if switched {
        // Whatever the rows say, the credentials have changed.
        settled.spec_changes.add(volume_specs::apply(db, id, &mut [], &BTreeSet::new())?);
    }
    Ok(settled)
}

/// Returns the reason for which an attach is given up. `None`: not yet. The reason is a problem
/// that only a person can cure, or one that lasted too long, such as a portal that never answers.
fn failure(
    facts: &Facts,
    row: &AttachmentRow,
    report: Option<&ConnectionReport>,
    seen: &Seen,
) -> Option<String> {
    let report = report?;
    let text = || text_of(&seen.name, report);
    match report.phase {
        ConnectionPhase::Forbidden => return Some(text()),
        ConnectionPhase::Failed if report.problems.iter().any(|problem| problem.cure != Cure::Retry) => {
            return Some(text());
        }
        _ => {}
    }
    // Counted from the host's first report: the storage agent's time is not the host's.
    let tried = facts.waits.waited_for(Waiting::Device(row.id));
    (tried >= ATTACH_GIVE_UP).then(|| format!("given up after {} s: {}", tried.as_secs(), text()))
}

/// Returns the row of an attachment whose host has its verified device and its path.
fn attached(facts: &Facts, db: &Db<'_>, mut row: AttachmentRow, report: &ConnectionReport) -> AttachmentRow {
    let now = facts.elapsed_ms(row.id, row.created_at);
    let device_ms = report.device_took.map_or(0, |took| u64::try_from(took.as_millis()).unwrap_or(0));
    let granted = row.steps.iter().find(|(step, _)| step == "granted").map_or(0, |(_, at)| *at);
    row.steps.push(("logged_in".to_owned(), now.saturating_sub(device_ms).max(granted)));
    row.steps.push(("device_ready".to_owned(), now));
    row.steps.push(("done".to_owned(), now));
    row.attached(db.now);
    row.fault = None;
    row
}

//! A pass over one connection: look, plan, apply, look again, report. Runs on a thread that can be
//! lost.
//!
//! What must never happen here: a pass of one connection beside another pass of it; a true
//! observation forgotten because somebody does not answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use mooring_connectors::wire::SessionState;
use mooring_connectors::{Error, Made, Memory, Observer, Op, Wanted, make, report};
use mooring_model::{
    BlockedKind, Chain, ConnectionPhase, ConnectionReport, Cure, Generation, Plan, Problem, Step, VolumeId,
};

use super::cell::{Begins, Cell, End, KeptSpec, Left, SpecKind, State};
use super::{Connections, RETRY_MAX, SESSIOND_RETRY};
use crate::engine::busy::Task;
use crate::object::turn::{Next, Outcome};

impl Connections {
    /// Runs passes until none is asked for. Returns at once if another thread runs one.
    pub(super) fn run(&self, cell: &Arc<Cell>) {
        loop {
            let begun = cell.state().begin_pass();
            let Some(begun) = begun else { return };
            // Also when a pass panics, the connection must not stay "running" for ever.
            let running = Running { cell };
            self.pass(cell, begun);
            drop(running);
            self.plan_retry(cell);
        }
    }

    /// Ends the session of a host that the target has revoked, beside a pass of an earlier spec
    /// that may hang on the very disk that goes. Nothing here touches the disk. This ends the hang:
    /// the pass comes to its end, and another one follows it.
    ///
    /// This needs no list of operations from two specs, as an export does: `make` looks, plans and
    /// applies, and its look at a connection asks nothing that waits for the disk. It does not stop
    /// at a newer spec: the pass that it observes belongs to the earlier one.
    pub(super) fn end_beside(&self, cell: &Cell) {
        let hangs = {
            let state = cell.state();
            state.is_revoked() && state.turn.is_running()
        };
        if hangs {
            let wanted = Wanted::Absent { volume: cell.id, revoked: true };
            let mut memory = Memory::default();
            let made = make(&self.shared.parts, &wanted, &mut memory, &mut ());
            cell.state().note_unwritten(memory.unwritten);
            if let Err(error) = made.left {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "cannot end the session of a revoked host yet; tried again by the next pass");
            }
        }
    }

    fn plan_retry(&self, cell: &Arc<Cell>) {
        let (next, at_most) = {
            let mut state = cell.state();
            let outcome = if state.end().is_tried_again() { Outcome::Failed } else { Outcome::Done };
            (state.turn.plan(outcome), if state.end().down { SESSIOND_RETRY } else { RETRY_MAX })
        };
        if let Next::Retry { pass, failures } = next {
            self.wake_later(cell, pass, failures, at_most);
        }
    }

    fn wanted(&self, volume: VolumeId, kept_spec: &KeptSpec) -> Wanted {
        match &kept_spec.kind {
            SpecKind::Spec(spec) => Wanted::Present {
                spec: spec.clone(),
                generation: kept_spec.stamp.generation,
                recovery_timeout_s: self.shared.parts.recovery_timeout_s,
            },
            SpecKind::Tombstone { revoked } => Wanted::Absent { volume, revoked: *revoked },
        }
    }

    fn pass(&self, cell: &Arc<Cell>, begun: Begins) {
        let Begins { kept_spec, pass, mut memory } = begun;
        let wanted = self.wanted(cell.id, &kept_spec);
        let detaches = matches!(kept_spec.kind, SpecKind::Tombstone { .. });
        let _busy = detaches.then(|| self.shared.engine.busy(Task::Detach));
        let mut watch = Watch { cell, generation: kept_spec.stamp.generation };
        let made = make(&self.shared.parts, &wanted, &mut memory, &mut watch);
        let last = cell.state().last_report().cloned();
        let seen = made.view.as_ref().map(|view| view.session.clone());
        let mut end = self.end(&wanted, &kept_spec, &made, last.as_ref());
        end.pass = pass;
        if let Some(report) = &mut end.report {
            report.device_took = memory.device_took;
        }
        let changed = end.report != last;
        let mut state = cell.state();
        if let Some(seen) = seen {
            state.learn_seen(seen);
        }
        state.leave(end, memory);
        let report = if changed { self.report(cell.id, &state) } else { None };
        drop(state);
        if let Some(report) = report {
            self.publish(report);
            self.audit_soon();
        }
        cell.changed();
    }

    /// Makes the result of a pass.
    fn end(
        &self,
        wanted: &Wanted,
        kept_spec: &KeptSpec,
        made: &Made,
        last: Option<&ConnectionReport>,
    ) -> End {
        let generation = kept_spec.stamp.generation;
        let is_left = !made.left.as_ref().is_ok_and(Plan::is_quiet);
        let problems = problems(wanted.volume(), &made.left);
        let down = made.left.as_ref().err().is_some_and(Error::is_sessiond_down);
        let mut report = match &made.view {
            Some(view) => {
                let names = self.names(wanted.volume());
                let links = &*self.shared.parts.links;
                let mut report = report(wanted, generation, view, is_left, links, names);
                if report.phase == ConnectionPhase::Recovering {
                    // Nobody asks a lost disk for its identity: the disk that was verified is still
                    // there.
                    report.disk = last.and_then(|last| last.disk.clone());
                    report.mode = last.and_then(|last| last.mode);
                    report.cache = last.and_then(|last| last.cache);
                }
                report
            }
            None => self.unseen(wanted.volume(), kept_spec, last),
        };
        report.problems.extend(problems);
        let ready = matches!(report.phase, ConnectionPhase::Ready | ConnectionPhase::Gone);
        let done = ready && !is_left && made.view.is_some();
        let ended = made.view.as_ref().and_then(|view| view.session.as_ref()).is_some_and(|session| {
            matches!(session.state, SessionState::Forbidden | SessionState::Failed | SessionState::WrongDisk)
        });
        let obstacle = match &made.left {
            Ok(plan) => plan.blocked.iter().any(|blocked| blocked.kind == BlockedKind::Foreign),
            Err(error) => error.cure() != Cure::Retry,
        };
        End {
            pass: 0,
            generation: Some(generation),
            left: match (done, ended, obstacle) {
                (true, _, _) => Left::Nothing,
                (false, true, _) => Left::Ended,
                // Also if only an operator can cure it: he does not report that he has.
                (false, false, true) => Left::Later,
                (false, false, false) => Left::Soon,
            },
            down,
            report: Some(report),
        }
    }

    /// The connection as the last pass left it, with the call that is stuck now. `None` without a
    /// spec or tombstone.
    pub(super) fn report(&self, volume: VolumeId, state: &State) -> Option<ConnectionReport> {
        let kept_spec = state.kept_spec()?;
        let mut report = state.last_report().cloned().unwrap_or_else(|| self.unseen(volume, kept_spec, None));
        report.stuck = state.stuck();
        report.problems.extend(state.audit().problems_of(&report).iter().cloned());
        Some(report)
    }

    /// The report when nobody could look: the last one stands, if it is of this generation.
    fn unseen(
        &self,
        volume: VolumeId,
        kept_spec: &KeptSpec,
        last: Option<&ConnectionReport>,
    ) -> ConnectionReport {
        let (names, generation) = (self.names(volume), kept_spec.stamp.generation);
        let phase = match &kept_spec.kind {
            SpecKind::Spec(_) => ConnectionPhase::Connecting,
            SpecKind::Tombstone { .. } => ConnectionPhase::Detaching,
        };
        let blank = ConnectionReport {
            volume,
            generation,
            initiator: names.initiator,
            target: names.target,
            phase,
            mode: None,
            cache: None,
            session: None,
            disk: None,
            paths: Vec::new(),
            holders: Vec::new(),
            problems: Vec::new(),
            stuck: None,
            login_took: None,
            device_took: None,
            secrets: None,
            unwritten: None,
        };
        match last {
            None => blank,
            Some(last) if last.generation == generation => {
                ConnectionReport { problems: Vec::new(), ..last.clone() }
            }
            // The session's keeper recorded the number of secrets for an earlier spec.
            Some(last) => {
                ConnectionReport { generation, phase, secrets: None, problems: Vec::new(), ..last.clone() }
            }
        }
    }
}

fn problems(volume: VolumeId, left: &Result<Plan<Op>, Error>) -> Vec<Problem> {
    match left {
        Ok(plan) => plan.blocked.iter().map(Problem::from).collect(),
        // The next pass has begun by the time that somebody reads this.
        Err(Error::Stopped { .. }) => Vec::new(),
        Err(error) => vec![Problem {
            object: format!("the connection to volume {volume}"),
            text: Chain(error).to_string(),
            cure: error.cure(),
        }],
    }
}

/// Ends the turn of a pass, however the pass ends.
struct Running<'a> {
    cell: &'a Cell,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.cell.state().end_pass();
    }
}

/// Notes which step is at work, and stops the steps when a newer spec has come.
struct Watch<'a> {
    cell: &'a Cell,
    generation: Generation,
}

impl Observer for Watch<'_> {
    fn looking(&mut self) {
        self.cell.begin("look at the connection".to_owned());
    }

    fn before(&mut self, _index: usize, step: &Step<Op>) -> ControlFlow<()> {
        tracing::debug!(volume = %self.cell.id, step = %step.op, "step");
        self.cell.begin(step.op.to_string());
        if self.is_stale() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn after(&mut self, _index: usize, _step: &Step<Op>) {
        self.cell.end();
    }

    fn is_stale(&self) -> bool {
        self.cell.state().kept_spec().is_some_and(|kept_spec| kept_spec.stamp.generation != self.generation)
    }
}

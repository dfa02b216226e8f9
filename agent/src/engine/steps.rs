//! Watches the steps of a plan: notes which step is at work, and proves receipts.
//!
//! What must never happen here: a receipt proven before the kernel's draining call has returned.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use mooring_model::{Generation, Initiator, Step};
use mooring_targets::{Op, fc};

use super::Engine;
use super::busy::Task;
use super::cell::Cell;
use super::knowledge::Stale;
use crate::lvm::{self, VolumeOp, Work};

/// Usual length of a step's text, in bytes.
const STEP_BYTES: usize = 256;

/// Watches the steps of a plan: notes which step is at work, and proves receipts.
pub(super) struct Watch<'a> {
    pub(super) engine: &'a Engine,
    pub(super) cell: &'a Arc<Cell>,
    /// The export's generation that the plan is for.
    pub(super) generation: Generation,
}

impl Watch<'_> {
    fn begin(&self, step: String) -> ControlFlow<()> {
        tracing::debug!(volume = %self.cell.id, step, "step");
        self.cell.begin(step);
        ControlFlow::Continue(())
    }
}

impl mooring_targets::Observer for Watch<'_> {
    fn before(&mut self, _index: usize, step: &Step<Op>) -> ControlFlow<()> {
        let mut text = String::with_capacity(STEP_BYTES);
        // A write to a string does not fail.
        let _written = write!(text, "{}", step.op);
        self.begin(text)
    }

    fn after(&mut self, _index: usize, step: &Step<Op>) {
        self.cell.end();
        if let Some(initiator) = mooring_targets::drains(step) {
            let is = |drained: &Initiator| drained.iqn().is_some_and(|iqn| iqn.as_str() == initiator);
            self.engine.prove(self.cell, self.generation, is);
        }
        if let Some(wwpn) = fc::drains(step).and_then(|drained| self.cell.drained(drained)) {
            self.engine.prove(self.cell, self.generation, |drained| drained.wwpn() == Some(wwpn));
        }
    }
}

impl lvm::Observer for Watch<'_> {
    fn before(&mut self, _index: usize, step: &Step<VolumeOp>) -> ControlFlow<()> {
        {
            let mut state = self.cell.state();
            if !state.may_begin(&step.op) {
                return ControlFlow::Break(());
            }
            state.knowledge.forget(Stale::VolumeStep);
        }
        let begun = self.begin(step.op.to_string());
        let kind = self.cell.state().begin_job(&step.op, self.engine.shared.machine.clock.now());
        if kind.is_some() && self.engine.is_closing() {
            return ControlFlow::Break(());
        }
        let busy = kind.map(|kind| self.engine.busy(Task::Job(kind)));
        self.cell.state().jobs.count(busy);
        begun
    }

    fn after(&mut self, _index: usize, _step: &Step<VolumeOp>) {
        let mut state = self.cell.state();
        state.calls.end();
        state.jobs.end();
    }

    fn resume(&mut self, work: Work, uuid: &str) -> u64 {
        self.cell.state().resume_job(work, uuid)
    }

    fn piece(&mut self, work: Work, most: u64) -> u64 {
        match work {
            Work::Zero | Work::Import | Work::Export => self.engine.piece_of_job(most),
            Work::Discard => most,
        }
    }

    /// Starts the step's time anew: a step that makes progress is not stuck. Stops it for a newer
    /// change or a shutdown.
    fn done(&mut self, work: Work, uuid: &str, bytes: u64) -> ControlFlow<()> {
        let closing = self.engine.is_closing();
        if self.cell.state().job_is_at(work, uuid, bytes, closing) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn wrote(&mut self, bytes: u64) {
        self.engine.pay_for_job(bytes, || self.engine.is_closing() || self.cell.state().job_waits());
    }

    fn marks_where_it_stops(&self) -> bool {
        self.engine.is_closing()
    }
}

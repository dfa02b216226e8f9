//! Takes access away while a pass hangs in the kernel. One pass works on a volume at a time. Its
//! unlink or `rmdir` may wait for ever for a disk that does not answer, or for tcm_fc's dead host:
//! an initiator that is revoked behind it would go on writing. The calls that shut an initiator out
//! never wait (lio.md, d: its mapped LUN's link, `write_protect`), so they run beside the pass. The
//! rest, and with it the proof, stays with the next pass.
//!
//! What must never happen here: a step that gives access; a step for a spec that is not the newest;
//! a mapped LUN touched that does not lead to this volume's LUN; a receipt proven.

use std::error::Error as StdError;
use std::ops::ControlFlow;
use std::sync::Arc;

use mooring_model::{Chain, ExportSpec, Generation, Plan, Step};
use mooring_targets::{Error, Observer, Op, apply, take_away};

use crate::engine::cell::{BLOCKED_AFTER, Cell};
use crate::engine::knowledge::Stale;
use crate::engine::{Engine, lock};

/// Initiators with access before a spec that came while a pass was at work. Their loss follows from
/// the spec that is the newest when it is carried out: a later one may take more, or give back.
#[derive(Debug)]
pub(in crate::engine) struct Losers {
    /// The pass that was at work when the spec came.
    pass: u64,
    kept: ExportSpec,
}

/// Stops the steps once the pass has ended or a newer spec has come.
struct Beside<'a> {
    cell: &'a Cell,
    pass: u64,
    generation: Generation,
}

impl Observer for Beside<'_> {
    fn before(&mut self, _index: usize, _step: &Step<Op>) -> ControlFlow<()> {
        if is_stuck(self.cell, self.pass, self.generation) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    fn after(&mut self, _index: usize, step: &Step<Op>) {
        self.cell.state().knowledge.forget(Stale::BesidePass);
        let mapped = step.op.path();
        tracing::info!(volume = %self.cell.id, %mapped, "an initiator was shut out while a call of the kernel hangs");
    }
}

impl Engine {
    /// The initiators that may lose access by a new spec. `None` if no pass is at work.
    pub(in crate::engine) fn losers(cell: &Cell, kept: Option<&ExportSpec>) -> Option<Losers> {
        let pass = cell.state().turn.running()?;
        Some(Losers { pass, kept: kept?.clone() })
    }

    /// The operations that take away what the newest spec does not give, and the generation of that
    /// spec. `None` if the pass has ended.
    fn lost(&self, cell: &Cell, losers: &Losers) -> Option<(Generation, Vec<Op>)> {
        let kept_spec = cell.state().export().cloned()?;
        let generation = kept_spec.stamp.generation;
        if !is_stuck(cell, losers.pass, generation) {
            return None;
        }
        let kept = &losers.kept;
        let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let ports: Vec<_> = lock(&self.shared.export_memory.ports).served().map(|(port, _)| port).collect();
        Some((generation, take_away(&names, &ports, kept, kept_spec.spec())))
    }

    /// Shuts them out beside the pass at work, if a call of that pass still seems to hang after
    /// [`BLOCKED_AFTER`].
    pub(in crate::engine) fn shut_out_if_stuck(&self, cell: &Arc<Cell>, losers: Losers) {
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(BLOCKED_AFTER).await;
            let at = engine.clone();
            engine.shared.workers.submit(move || at.shut_out(&cell, &losers));
        });
    }

    fn shut_out(&self, cell: &Cell, losers: &Losers) {
        while let Some((generation, ops)) = self.lost(cell, losers) {
            let mut beside = Beside { cell, pass: losers.pass, generation };
            if ops.into_iter().all(|op| self.take(op, &mut beside)) {
                return;
            }
        }
    }

    /// Runs one operation. Returns `false` if the steps have to stop here. An operation that fails
    /// holds up none of the others: each is a plan of its own.
    fn take(&self, op: Op, beside: &mut Beside<'_>) -> bool {
        let mut plan = Plan::default();
        plan.step(op, "a newer spec revokes it, and a call of the kernel hangs");
        let error = match apply(&plan, &*self.shared.machine.target, beside) {
            Ok(()) => return true,
            Err(Error::Stopped { .. }) => return false,
            Err(error) => error,
        };
        // The kernel's answer alone: the step is the only one, and follows from the specs.
        let cause: &(dyn StdError + 'static) = match &error {
            Error::Step { source, .. } => source,
            other => other,
        };
        tracing::warn!(volume = %beside.cell.id, error = %Chain(cause), "cannot shut an initiator out before the kernel's call returns");
        true
    }
}

/// Says whether this pass is still at work, and this is the newest generation.
fn is_stuck(cell: &Cell, pass: u64, generation: Generation) -> bool {
    let state = cell.state();
    let current = state.export().map(|kept_spec| kept_spec.stamp.generation);
    state.turn.running() == Some(pass) && current == Some(generation)
}

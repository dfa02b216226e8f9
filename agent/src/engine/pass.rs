//! A pass over one volume: look, plan, apply, look again, report. Runs on a thread that can be lost.
//!
//! What must never happen here: an LV removed while its export is in the kernel; an export of an LV that is not zeroed; a
//! receipt proven before the kernel's draining call has returned.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use mooring_model::{
    Blocked, Chain, Cure, ExportReport, ExportSpec, Generation, Phase, Plan, Problem, Proof, Receipt, Step,
    VolumeId, VolumeReport, VolumeSpec,
};
use mooring_targets::{ExportFacts, ExportView, Live, Op, Wanted};

use super::cell::{AtWork, Cell, Outcome, Wish, WishKind};
use super::{Change, Engine};
use crate::volumes::{self, VolumeOp, VolumesView};

/// Makes ready what all exports need: the fabric's folder, and the folder where the kernel keeps reservations.
pub(super) fn prepare(engine: &Engine) -> Result<(), mooring_targets::Error> {
    let machine = &engine.shared.machine;
    mooring_targets::prepare(&*machine.target)?;
    let folder = mooring_targets::pr_folder(&*machine.target)?;
    let folder = machine.root.join(folder.strip_prefix("/").unwrap_or(&folder));
    // Without it every PERSISTENT RESERVE OUT answers "not ready" although it has taken effect (lio.md, f).
    if let Err(error) = std::fs::create_dir_all(&folder) {
        tracing::error!(%error, folder = %folder.display(), "cannot make the folder for persistent reservations");
    }
    Ok(())
}

/// Where the volume half of a pass has ended.
struct VolumeEnd {
    report: VolumeReport,
    done: bool,
    /// Something failed that may succeed later by itself.
    retry: bool,
}

/// Where the export half of a pass has ended.
struct ExportEnd {
    report: Option<ExportReport>,
    /// Nothing is left to do.
    done: bool,
    /// Nothing of the export is in the kernel.
    gone: bool,
    problems: Vec<Problem>,
}

impl Engine {
    /// Runs passes until the volume is clean. Returns at once when another thread is at it.
    pub(super) fn run(&self, cell: &Arc<Cell>) {
        loop {
            {
                let mut state = cell.state();
                if state.running || !state.dirty {
                    return;
                }
                state.running = true;
                state.dirty = false;
            }
            // Also when a pass panics, the volume must not stay "running" for ever.
            let done = Running { cell };
            let outcome = self.pass(cell);
            drop(done);
            self.finish(cell, outcome);
        }
    }

    fn finish(&self, cell: &Arc<Cell>, outcome: Outcome) {
        let (retry, failures) = {
            let mut state = cell.state();
            if outcome.volume != state.outcome.volume
                && let Some(report) = &outcome.volume
            {
                self.publish(Change::Volume(report.clone()));
            }
            if outcome.export != state.outcome.export
                && let Some(report) = &outcome.export
            {
                self.publish(Change::Export(report.clone()));
            }
            state.failures = if outcome.retry { state.failures.saturating_add(1) } else { 0 };
            let retry = outcome.retry && !state.dirty;
            state.outcome = outcome;
            (retry, state.failures)
        };
        cell.changed();
        if retry {
            self.wake_later(cell, failures);
        }
    }

    fn pass(&self, cell: &Arc<Cell>) -> Outcome {
        let (volume, export, ready) = {
            let state = cell.state();
            (state.volume.clone(), state.export.clone(), state.ready.clone())
        };
        let doomed = matches!(volume.as_ref().map(|wish| &wish.kind), Some(WishKind::Tombstone { .. }));
        // A doomed volume loses its export first; a wanted one is there before it is exported.
        let (volume_end, export_end) = if doomed {
            let export_end = self.export_pass(cell, volume.as_ref(), export.as_ref(), false);
            let volume_end = volume.as_ref().map(|wish| self.volume_pass(cell, wish, export_end.gone, None));
            (volume_end, export_end)
        } else {
            let volume_end = volume.as_ref().map(|wish| self.volume_pass(cell, wish, false, ready));
            let usable = volume_end.as_ref().is_some_and(|end| end.report.phase == Phase::Ready);
            (volume_end, self.export_pass(cell, volume.as_ref(), export.as_ref(), usable))
        };
        if !export_end.problems.is_empty() {
            // Whatever went wrong, the LV is looked at again before the next try.
            cell.state().ready = None;
        }
        let retry = export_end.problems.iter().any(|problem| problem.cure == Cure::Retry);
        Outcome {
            retry: retry || volume_end.as_ref().is_some_and(|end| end.retry),
            volume_generation: volume.as_ref().map(|wish| wish.stamp.generation),
            volume_done: volume_end.as_ref().is_some_and(|end| end.done),
            volume: volume_end.map(|end| end.report),
            export_generation: export.as_ref().map(|wish| wish.stamp.generation),
            export_done: export_end.done,
            export: export_end.report,
        }
    }

    fn volume_pass(
        &self,
        cell: &Arc<Cell>,
        wish: &Wish<VolumeSpec>,
        export_gone: bool,
        known: Option<VolumeReport>,
    ) -> VolumeEnd {
        if let Some(report) = known {
            return VolumeEnd { report, done: true, retry: false };
        }
        let wanted = wanted_volume(wish, export_gone);
        match self.make_volume(cell, &wanted) {
            Ok((view, plan)) => {
                let report = volumes::report(&wanted, &view, cell.id);
                if report.phase == Phase::Ready && plan.is_quiet() {
                    cell.state().ready = Some(report.clone());
                }
                VolumeEnd { report, done: plan.is_quiet(), retry: !plan.steps.is_empty() }
            }
            Err(error) => {
                let mut report = self.volume_report(cell);
                report.phase = match (&wish.kind, error.cure()) {
                    (WishKind::Tombstone { .. }, _) => Phase::Deleting,
                    (WishKind::Spec(_), Cure::Retry) => Phase::Creating,
                    (WishKind::Spec(_), _) => Phase::Failed,
                };
                report.problems = vec![problem(format!("volume {}", cell.id), &error, error.cure())];
                VolumeEnd { report, done: false, retry: error.cure() == Cure::Retry }
            }
        }
    }

    /// Looks, plans, applies; what is there then, and the plan that is left.
    fn make_volume(
        &self,
        cell: &Arc<Cell>,
        wanted: &volumes::Wanted,
    ) -> Result<(VolumesView, Plan<VolumeOp>), volumes::Error> {
        let machine = &self.shared.machine;
        let look = || volumes::view_one(&*machine.commands, &self.shared.config.groups, cell.id);
        let view = look()?;
        let plan = volumes::plan(wanted, &view, cell.id);
        if plan.steps.is_empty() {
            return Ok((view, plan));
        }
        let mut watch = Watch { engine: self, cell };
        volumes::apply(&plan, &*machine.commands, &*machine.blocks, &mut watch)?;
        let view = look()?;
        let left = volumes::plan(wanted, &view, cell.id);
        Ok((view, left))
    }

    /// What is wanted in the kernel; `None` when there was never a wish, or its LV is not ready.
    pub(super) fn wanted_export(
        &self,
        cell: &Cell,
        volume: Option<&Wish<VolumeSpec>>,
        export: Option<&Wish<ExportSpec>>,
        usable: bool,
    ) -> Option<Wanted> {
        let prefix = &self.shared.config.iqn_prefix;
        let doomed = matches!(volume.map(|wish| &wish.kind), Some(WishKind::Tombstone { .. }));
        let derived = || mooring_model::ExportIdentity::Derived.names(cell.id, prefix);
        match export.map(|wish| &wish.kind) {
            None if doomed => Some(Wanted::Absent { names: derived() }),
            None => None,
            Some(WishKind::Tombstone { .. }) => Some(Wanted::Absent { names: derived() }),
            Some(WishKind::Spec(spec)) if doomed => {
                Some(Wanted::Absent { names: spec.identity.names(cell.id, prefix) })
            }
            Some(WishKind::Spec(spec)) => {
                let group = volume.and_then(Wish::spec).filter(|_| usable)?.group.clone();
                let names = spec.identity.names(cell.id, prefix);
                let portals = if spec.portals.is_empty() {
                    self.shared.config.portals.clone()
                } else {
                    spec.portals.clone()
                };
                let device = volumes::device_path(group.as_str(), &names.lv);
                Some(Wanted::Present { names, device, portals, grants: spec.grants.clone() })
            }
        }
    }

    fn export_pass(
        &self,
        cell: &Arc<Cell>,
        volume: Option<&Wish<VolumeSpec>>,
        export: Option<&Wish<ExportSpec>>,
        usable: bool,
    ) -> ExportEnd {
        let object = format!("the export of volume {}", cell.id);
        let Some(wanted) = self.wanted_export(cell, volume, export, usable) else {
            let waits = is_waiting(export).then(|| Problem {
                object,
                text: "waits for the volume".to_owned(),
                cure: Cure::Retry,
            });
            let problems: Vec<_> = waits.into_iter().collect();
            return ExportEnd { report: None, done: problems.is_empty(), gone: false, problems };
        };
        let (view, problems) = match self.make_export(cell, &wanted) {
            Ok((view, plan)) => (Some(view), blocked(&plan.blocked)),
            Err((view, error)) => (view, vec![problem(object, &error, error.cure())]),
        };
        let Some(view) = view else {
            return ExportEnd { report: None, done: false, gone: false, problems };
        };
        self.prove_absent(cell, &view);
        let generation = export.map(|wish| wish.stamp.generation).unwrap_or(Generation::ZERO);
        let facts = mooring_targets::report(&wanted, &view, &BTreeMap::<String, Live>::new());
        let gone = view.target.is_none() && view.backstore.is_none();
        let done = problems.is_empty() && facts.in_force;
        let report =
            export.and_then(Wish::spec).map(|_| export_report(cell.id, generation, facts, &problems));
        ExportEnd { report, done, gone, problems }
    }

    /// Looks, plans, applies, looks again; the plan that is left.
    #[allow(clippy::type_complexity, reason = "what was seen and what went wrong travel together once")]
    fn make_export(
        &self,
        cell: &Arc<Cell>,
        wanted: &Wanted,
    ) -> Result<(ExportView, Plan<Op>), (Option<ExportView>, mooring_targets::Error)> {
        let tree = &*self.shared.machine.target;
        let names = wanted.names();
        let look = || {
            cell.state().at_work =
                Some(AtWork { step: format!("look at {}", names.iqn), began: Instant::now() });
            let view = ExportView::read(tree, names);
            cell.state().at_work = None;
            view
        };
        let view = look().map_err(|error| (None, error))?;
        let plan = mooring_targets::plan(wanted, &view);
        if plan.steps.is_empty() {
            return Ok((view, plan));
        }
        let mut watch = Watch { engine: self, cell };
        let applied = mooring_targets::apply(&plan, tree, &mut watch);
        let view = look().map_err(|error| (None, error))?;
        match applied {
            Ok(()) => {
                let left = mooring_targets::plan(wanted, &view);
                Ok((view, left))
            }
            Err(error) => Err((Some(view), error)),
        }
    }

    /// Proves receipts whose nexus is not in the kernel: a listing of `acls` waits for an `rmdir` in it, so an ACL that is
    /// not listed has drained (lio.md, d), whoever removed it.
    fn prove_absent(&self, cell: &Cell, view: &ExportView) {
        let there = |initiator: &str| view.tpg().is_some_and(|tpg| tpg.acls.contains_key(initiator));
        self.prove(cell, |open| !there(open.initiator.as_str()));
    }

    fn prove(&self, cell: &Cell, proven: impl Fn(&Receipt) -> bool) {
        let ended = self.shared.machine.clock.now();
        let (done, open): (Vec<_>, Vec<_>) = std::mem::take(&mut cell.state().open_receipts)
            .into_iter()
            .partition(|open| proven(&open.receipt));
        cell.state().open_receipts.extend(open);
        for mut open in done {
            open.receipt.proof = Proof::Proven;
            open.receipt.ended = Some(ended);
            if let Err(error) = self.shared.store.prove_receipt(open.row, &open.receipt) {
                // It stays unproven in the store, which is the safe side, and is proven at the next pass.
                tracing::error!(error = %Chain(&error), volume = %cell.id, "cannot write a receipt down");
                open.receipt.proof = Proof::Unproven { in_flight: 0 };
                open.receipt.ended = None;
                cell.state().open_receipts.push(open);
                continue;
            }
            tracing::info!(volume = %cell.id, initiator = %open.receipt.initiator, "nexus revoked, proven");
            self.publish(Change::Receipt(open.receipt));
        }
        cell.changed();
    }
}

/// The export's report: what the kernel's tree shows, and what went wrong on the way there.
pub(super) fn export_report(
    volume: VolumeId,
    generation: Generation,
    facts: ExportFacts,
    problems: &[Problem],
) -> ExportReport {
    let ExportFacts { target, naa, portals, in_force, grants, problems: mut all } = facts;
    all.extend(problems.iter().filter(|problem| !all.contains(problem)).cloned().collect::<Vec<_>>());
    ExportReport { volume, generation, target, naa, portals, in_force, grants, problems: all, stuck: None }
}

/// What is wanted of a volume, for its planner.
pub(super) fn wanted_volume(wish: &Wish<VolumeSpec>, export_gone: bool) -> volumes::Wanted {
    match &wish.kind {
        WishKind::Spec(spec) => volumes::Wanted::Volume(spec.clone()),
        WishKind::Tombstone { destroy: true } => volumes::Wanted::Doomed { export_gone },
        WishKind::Tombstone { destroy: false } => volumes::Wanted::Nothing,
    }
}

fn is_waiting(export: Option<&Wish<ExportSpec>>) -> bool {
    super::is_spec(export)
}

fn problem(object: String, error: &(dyn std::error::Error + 'static), cure: Cure) -> Problem {
    Problem { object, text: Chain(error).to_string(), cure }
}

pub(super) fn blocked(blocked: &[Blocked]) -> Vec<Problem> {
    let one = |blocked: &Blocked| Problem {
        object: blocked.object.clone(),
        text: blocked.why.clone(),
        cure: blocked.kind.cure(),
    };
    blocked.iter().map(one).collect()
}

/// Clears "running" however the pass ends.
struct Running<'a> {
    cell: &'a Cell,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.cell.state();
        state.running = false;
        state.at_work = None;
        state.zeroed = None;
    }
}

/// Watches the steps of a plan: says which one is at work, and proves receipts.
struct Watch<'a> {
    engine: &'a Engine,
    cell: &'a Arc<Cell>,
}

impl Watch<'_> {
    fn begin(&self, step: String) -> ControlFlow<()> {
        tracing::debug!(volume = %self.cell.id, step, "step");
        self.cell.state().at_work = Some(AtWork { step, began: Instant::now() });
        ControlFlow::Continue(())
    }
}

impl mooring_targets::Observer for Watch<'_> {
    fn before(&mut self, _index: usize, step: &Step<Op>) -> ControlFlow<()> {
        self.begin(step.op.to_string())
    }

    fn after(&mut self, _index: usize, step: &Step<Op>) {
        self.cell.state().at_work = None;
        if let Some(initiator) = mooring_targets::drains(step) {
            self.engine.prove(self.cell, |open| open.initiator.as_str() == initiator);
        }
    }
}

impl volumes::Observer for Watch<'_> {
    fn before(&mut self, _index: usize, step: &Step<VolumeOp>) -> ControlFlow<()> {
        self.begin(step.op.to_string())
    }

    fn after(&mut self, _index: usize, _step: &Step<VolumeOp>) {
        let mut state = self.cell.state();
        state.at_work = None;
        state.zeroed = None;
    }

    fn zeroed(&mut self, bytes: u64) {
        self.cell.state().zeroed = Some(bytes);
    }
}

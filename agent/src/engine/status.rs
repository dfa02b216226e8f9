//! What is seen now: answers to `GetVolume`, `ListVolumes` and `Plan`. Looks at the kernel each time; when the kernel does
//! not answer in time, says what was known last and which call is stuck.
//!
//! What must never happen here: a write; a secret in an answer.

use std::sync::Arc;
use std::time::Duration;

use mooring_model::{
    ExportReport, ExportSpec, Generation, Phase, Problem, Receipt, Stamp, VolumeId, VolumeReport,
};
use mooring_targets::ExportView;

use super::cell::{Cell, Wish, WishKind};
use super::{Engine, pass};
use crate::volumes;

/// How long an answer waits for the kernel.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// Receipts in an answer.
const RECEIPTS_SHOWN: usize = 20;

/// One volume and its export, with what the sender left.
#[derive(Debug, Clone)]
pub struct Status {
    /// The volume.
    pub id: VolumeId,
    /// The volume as it is.
    pub volume: VolumeReport,
    /// Its spec's fence and opaque data.
    pub volume_spec: Option<(Stamp, Vec<u8>)>,
    /// The export as it is.
    pub export: Option<ExportReport>,
    /// Its spec's fence and opaque data.
    pub export_spec: Option<(Stamp, Vec<u8>)>,
    /// What is wanted of the export. Its secrets are in it: take them out before it leaves the process.
    pub wanted: Option<ExportSpec>,
    /// Receipts, newest first.
    pub receipts: Vec<Receipt>,
}

/// A step of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// The volume.
    pub volume: VolumeId,
    /// What would be done.
    pub step: String,
    /// Why.
    pub why: String,
}

/// A dry run.
#[derive(Debug, Clone, Default)]
pub struct Planned {
    /// What would be done, in order.
    pub steps: Vec<PlannedStep>,
    /// What could not be done, and why.
    pub blocked: Vec<Problem>,
}

fn stamp_of<S>(wish: &Wish<S>) -> (Stamp, Vec<u8>) {
    (wish.stamp.clone(), wish.opaque.clone())
}

impl Engine {
    /// The volume as the last pass left it, and what goes on now.
    pub(super) fn volume_report(&self, cell: &Cell) -> VolumeReport {
        let state = cell.state();
        let (spec, doomed) = match state.volume.as_ref().map(|wish| &wish.kind) {
            Some(WishKind::Spec(spec)) => (Some(spec), false),
            Some(WishKind::Tombstone { .. }) => (None, true),
            None => (None, false),
        };
        let current =
            state.outcome.volume_generation == state.volume.as_ref().map(|wish| wish.stamp.generation);
        let mut report =
            state.outcome.volume.clone().filter(|_| current).or_else(|| state.orphan.clone()).unwrap_or(
                VolumeReport {
                    id: cell.id,
                    phase: if doomed { Phase::Deleting } else { Phase::Creating },
                    group: spec.map(|spec| spec.group.to_string()).unwrap_or_default(),
                    size: mooring_model::ByteSize(0),
                    device: None,
                    zeroed: None,
                    problems: Vec::new(),
                },
            );
        if report.phase == Phase::Gone
            && let Some(orphan) = &state.orphan
        {
            report = orphan.clone();
        }
        report.zeroed = state.zeroed.map(mooring_model::ByteSize);
        report
    }

    /// The export as the last pass left it, with the call that is stuck now.
    pub(super) fn export_report(&self, cell: &Cell) -> Option<ExportReport> {
        let state = cell.state();
        let mut report = state.outcome.export.clone();
        if let Some(report) = report.as_mut() {
            report.stuck = state.stuck();
        }
        report
    }

    /// Looks at an export now, with its sessions and counters.
    fn look(&self, cell: &Arc<Cell>) -> Option<ExportReport> {
        let (volume, export, usable) = {
            let state = cell.state();
            (state.volume.clone(), state.export.clone(), state.ready.is_some())
        };
        let wanted = self.wanted_export(cell, volume.as_ref(), export.as_ref(), usable)?;
        let tree = &*self.shared.machine.target;
        let view = ExportView::read(tree, wanted.names()).ok()?;
        let live = mooring_targets::read_sessions(tree, wanted.names(), &view).ok()?;
        let last = self.export_report(cell);
        let generation = export.as_ref().map_or(Generation::ZERO, |wish| wish.stamp.generation);
        let problems = last.map(|last| last.problems).unwrap_or_default();
        let facts = mooring_targets::report(&wanted, &view, &live);
        Some(pass::export_report(cell.id, generation, facts, &problems))
    }

    /// One volume as it is now; `None` when nothing is known of it.
    pub async fn status(&self, id: VolumeId) -> Option<Status> {
        let cell = self.known_cell(id)?;
        {
            let state = cell.state();
            if state.volume.is_none() && state.export.is_none() && state.orphan.is_none() {
                return None;
            }
        }
        let (engine, at) = (self.clone(), Arc::clone(&cell));
        let looking =
            self.blocking(move || (engine.look(&at), engine.shared.store.receipts(at.id, RECEIPTS_SHOWN)));
        let (seen, receipts) = match tokio::time::timeout(LOOK_DEADLINE, looking).await {
            Ok(Some((seen, receipts))) => (seen, receipts.unwrap_or_default()),
            Ok(None) | Err(_) => {
                (None, cell.state().open_receipts.iter().map(|open| open.receipt.clone()).collect())
            }
        };
        let export = seen.or_else(|| self.export_report(&cell));
        let volume = self.volume_report(&cell);
        let state = cell.state();
        Some(Status {
            id,
            volume,
            volume_spec: state.volume.as_ref().map(stamp_of),
            export: export.filter(|_| state.export.as_ref().and_then(Wish::spec).is_some()),
            export_spec: state.export.as_ref().map(stamp_of),
            wanted: state.export.as_ref().and_then(Wish::spec).cloned(),
            receipts,
        })
    }

    /// All volumes with a spec, and orphans, by id. Volumes that are deleted and gone are left out.
    pub async fn statuses(&self) -> Vec<Status> {
        let mut all = Vec::new();
        for cell in self.cells() {
            let Some(status) = self.status(cell.id).await else { continue };
            if status.volume.phase != Phase::Gone {
                all.push(status);
            }
        }
        all
    }

    /// What a pass would do now, for one volume or for all.
    pub async fn plan(&self, only: Option<VolumeId>) -> Planned {
        let engine = self.clone();
        self.blocking(move || engine.plan_now(only)).await.unwrap_or_default()
    }

    fn plan_now(&self, only: Option<VolumeId>) -> Planned {
        let mut planned = Planned::default();
        let machine = &self.shared.machine;
        let view = match volumes::view(&*machine.commands, &self.shared.config.groups) {
            Ok(view) => view,
            Err(error) => {
                let text = mooring_model::Chain(&error).to_string();
                planned.blocked.push(Problem { object: "LVM".to_owned(), text, cure: error.cure() });
                return planned;
            }
        };
        for cell in self.cells().into_iter().filter(|cell| only.is_none_or(|id| id == cell.id)) {
            self.plan_cell(&cell, &view, &mut planned);
        }
        planned
    }

    fn plan_cell(&self, cell: &Cell, lvs: &volumes::VolumesView, planned: &mut Planned) {
        let (volume, export) = {
            let state = cell.state();
            (state.volume.clone(), state.export.clone())
        };
        let mut add =
            |step: String, why: String| planned.steps.push(PlannedStep { volume: cell.id, step, why });
        if let Some(wanted) = self.wanted_export(cell, volume.as_ref(), export.as_ref(), true) {
            match ExportView::read(&*self.shared.machine.target, wanted.names()) {
                Ok(view) => {
                    let plan = mooring_targets::plan(&wanted, &view);
                    plan.steps.iter().for_each(|step| add(step.op.to_string(), step.why.to_string()));
                    planned.blocked.extend(pass::blocked(&plan.blocked));
                }
                Err(error) => planned.blocked.push(Problem {
                    object: format!("the export of volume {}", cell.id),
                    text: mooring_model::Chain(&error).to_string(),
                    cure: error.cure(),
                }),
            }
        }
        let Some(wish) = volume else { return };
        let wanted = pass::wanted_volume(&wish, true);
        let plan = volumes::plan(&wanted, lvs, cell.id);
        plan.steps.iter().for_each(|step| {
            planned.steps.push(PlannedStep {
                volume: cell.id,
                step: step.op.to_string(),
                why: step.why.to_string(),
            });
        });
        planned.blocked.extend(pass::blocked(&plan.blocked));
    }
}

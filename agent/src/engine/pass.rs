//! A pass over one volume: look, plan, apply, look again, report. Runs on a thread that can be
//! lost.
//!
//! What must never happen here: an LV removed while its export is in the kernel; an export of an LV
//! that is not zeroed; a receipt proven before the kernel's draining call has returned; a pass of
//! one volume beside another pass of it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mooring_host::{Noted, TreePath};
use mooring_model::{
    Chain, Cure, ExportIdentity, ExportReport, ExportSpec, FcPortReport, Generation, Initiator, LvName,
    Phase, Plan, Problem, Provisioning, VgName, VolumeId, VolumeKind, VolumeReport, VolumeSpec,
};
use mooring_targets::{Device, ExportFacts, ExportView, Op, Wanted};

use super::busy::Task;
use super::cell::{Cell, End, KeptSpec, SpecKind};
use super::export::fabrics::{View, Wanteds};
use super::knowledge::Stale;
use super::steps::Watch;
use super::{Change, Engine, is_spec};
use crate::clock;
use crate::lvm::{self, VolumeOp, VolumesView};
use crate::object::seen::{Moment, Seen};
use crate::object::turn::{Begun, Left, Next, Outcome};

/// Prepares what all exports need: LIO's iSCSI folder, and the kernel's folder for reservations.
pub(super) fn prepare(engine: &Engine) -> Result<(), mooring_targets::Error> {
    mooring_targets::prepare(&*engine.shared.machine.target)?;
    let folder = engine.shared.machine.reservations_folder()?;
    // Without the folder every PERSISTENT RESERVE OUT answers "not ready" although it has taken
    // effect (lio.md, f).
    if let Err(error) = std::fs::create_dir_all(&folder) {
        tracing::error!(%error, folder = %folder.display(), "cannot make the folder for persistent reservations");
    }
    Ok(())
}

/// The specs or tombstones of volume and export as a pass found them. The next pass takes later
/// ones.
pub(super) struct PassSpecs {
    pub(super) volume: Option<KeptSpec<VolumeSpec>>,
    pub(super) export: Option<KeptSpec<ExportSpec>>,
    ready: Option<Seen<VolumeReport>>,
    /// The moment at which the pass began.
    began: Moment,
    /// `true` if somebody asked for something new, `false` if the pass looks for changes only.
    anew: bool,
    /// The pass's number.
    pass: u64,
}

/// Returns the work that is left of a half that is not done. `again`: it may succeed later by
/// itself.
const fn again_if(again: bool) -> Left {
    if again { Left::Again } else { Left::Unfinished }
}

/// The result of the export half of a pass.
pub(super) struct ExportEnd {
    report: Option<ExportReport>,
    /// The work that is left.
    pub(super) left: Left,
    /// `true` if nothing of the export is in the kernel.
    pub(super) gone: bool,
    /// `true` if the export is not in the kernel, and its LV is not known to be ready.
    waits: bool,
    pub(super) problems: Vec<Problem>,
    /// Operations of the export half on the kernel's tree.
    operations: u64,
}

impl Engine {
    /// Runs passes until none is asked for. Returns at once if another thread runs one.
    pub(super) fn run(&self, cell: &Arc<Cell>) {
        loop {
            let specs = {
                let mut state = cell.state();
                let Some(Begun { pass, anew }) = state.begin_pass() else { return };
                let (volume, export) = state.specs();
                let ready = state.knowledge.ready_seen().cloned();
                PassSpecs { volume, export, ready, began: state.knowledge.begin_look(), anew, pass }
            };
            // Also when a pass panics, the volume must not stay "running" for ever.
            let running = Running { cell };
            self.pass(cell, &specs);
            drop(running);
            self.shared.reports.done().pass();
            let made = cell.state().take_left_look();
            self.passed(cell.id, made);
            if made {
                // The look comes behind the steps of all exports that are still to be made.
                return;
            }
            self.plan_retry(cell);
        }
    }

    fn plan_retry(&self, cell: &Arc<Cell>) {
        let next = {
            let mut state = cell.state();
            let (volume, export) = (state.volume_end(), state.export_end());
            let outcome = if volume.left != Left::Again && export.left != Left::Again {
                Outcome::Done
            } else if is_spec(state.volume()) && volume.left == Left::Unfinished {
                // Only the export waits, and no pass can help its volume: the group is not there,
                // or an operator has to act.
                Outcome::Late
            } else {
                Outcome::Failed
            };
            state.turn.plan(outcome)
        };
        match next {
            Next::Nothing => {}
            Next::Late => self.wake_when_there(),
            Next::Retry { pass, failures } => self.wake_later(cell, pass, failures),
        }
    }

    fn pass(&self, cell: &Arc<Cell>, specs: &PassSpecs) {
        // A request that finds no export ends here: its sender is told to try again.
        let asked = cell.state().take_asked();
        if is_doomed(specs.volume.as_ref()) {
            // A doomed volume loses its export first.
            let end = self.export_half(cell, specs, false);
            if cell.state().has_left_look() {
                return;
            }
            let gone = end.gone;
            self.end_export(cell, specs, end);
            self.volume_half(cell, specs, gone, false, Grow::Now);
            return;
        }
        let reverting = cell.is_reverting(specs.volume.as_ref(), specs.export.as_ref());
        if reverting && !self.revert_half(cell, specs) {
            return;
        }
        // The kernel's exports come first, and need no LVM: a revoke does not wait for a disk that
        // hangs. An export that the kernel does not serve yet waits for the volume.
        let ready = specs.ready.clone().map(Seen::into_value);
        let ready = if reverting { cell.state().knowledge.ready().cloned() } else { ready };
        let usable = self.is_usable(cell, specs, ready.as_ref());
        let mut end = self.export_half(cell, specs, usable);
        if cell.state().has_left_look() {
            // Nothing is known yet: those who wait for an answer wait for the look.
            return;
        }
        let taken = asked.map(|asked| self.take_away(cell, specs, usable, &mut end, asked));
        if !end.waits {
            let look_again = !end.problems.is_empty();
            self.end_export(cell, specs, end);
            self.revoke_reader(cell, specs);
            if let Some(taken) = taken {
                taken.tell(cell);
            }
            let failed = reverting && cell.is_reverting(specs.volume.as_ref(), specs.export.as_ref());
            // The report of a revert that failed stands.
            if !failed {
                self.volume_half(cell, specs, false, look_again, Grow::Now);
            }
            return;
        }
        self.volume_half(cell, specs, false, true, Grow::Later);
        let ready = cell.state().knowledge.ready().cloned();
        let usable = self.is_usable(cell, specs, ready.as_ref());
        let end = if usable { self.export_half(cell, specs, true) } else { end };
        self.end_export(cell, specs, end);
        let grows = usable && !cell.state().volume_end().is_done();
        if grows {
            self.volume_half(cell, specs, false, true, Grow::Now);
        }
    }

    /// Says whether the LV that is ready is the one that the export names: a recorded name may be
    /// another LV's.
    fn is_usable(&self, cell: &Arc<Cell>, specs: &PassSpecs, ready: Option<&VolumeReport>) -> bool {
        if !self.is_isolated_first(cell) {
            return false;
        }
        let Some(spec) = specs.export.as_ref().and_then(KeptSpec::spec) else { return ready.is_some() };
        let lv = spec.identity.names(cell.id, &self.shared.config.iqn_prefix).lv;
        ready.is_some_and(|ready| {
            let device = lvm::device_path(&ready.group, &lv);
            ready.device.as_deref().is_some_and(|ready| device.as_os_str() == ready)
        })
    }

    /// Notes the result of the export half, and wakes those who wait for it.
    pub(super) fn end_export(&self, cell: &Arc<Cell>, specs: &PassSpecs, end: ExportEnd) {
        let held = cell.state().held.said();
        let doomed = is_doomed(specs.volume.as_ref());
        self.note_reservations(cell, specs.export.as_ref().filter(|_| !doomed || end.gone), &end, doomed);
        if end.gone && doomed && !cell.state().revert.is_apart() {
            self.forget_port_id(cell.id);
        }
        let mut state = cell.state();
        if !end.problems.is_empty() {
            // After any problem LVM is asked again before the next try.
            state.knowledge.forget(Stale::ExportFailed);
        }
        if (end.report != state.export_end().report || held != state.held.said())
            && let Some(mut report) = end.report.clone()
        {
            state.fill_lives(&mut report);
            self.publish(Change::Export(report.into()));
        }
        state.end_export(End {
            pass: specs.pass,
            generation: specs.export.as_ref().map(|kept_spec| kept_spec.stamp.generation),
            report: end.report,
            left: end.left,
            at: Some(clock::instant()),
            operations: end.operations,
        });
        drop(state);
        cell.changed();
    }

    /// Carries out the volume's spec. A volume known to be ready is not looked at again, unless
    /// `look` says so. `true` if nothing is left that a pass could do for it now.
    pub(super) fn volume_half(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        export_gone: bool,
        look: bool,
        grow: Grow,
    ) -> bool {
        self.leave_upload(cell, specs);
        let (rest, report, began) = match (&specs.volume, &specs.ready) {
            (None, _) => (Left::Nothing, None, specs.began),
            (Some(kept_spec), Some(report)) if !look && is_whole(kept_spec, report) => {
                (Left::Nothing, Some(report.clone().into_value()), report.began())
            }
            (Some(kept_spec), _) if !look && !specs.anew && cell.state().has_ended_by(kept_spec) => {
                (Left::Nothing, cell.state().volume_end().report.clone(), specs.began)
            }
            (Some(kept_spec), _) => {
                let made = cell.state().established.is_made();
                let wanted = wanted_volume(kept_spec, specs.export.as_ref(), made, export_gone);
                let MadeVolume { view, left } = self.make_volume(cell, specs, &wanted, grow);
                // If LVM does not answer, nothing is known any more.
                let now = || cell.state().knowledge.begin_look();
                let began = view.as_ref().map_or_else(now, Seen::began);
                if let Some(view) = &view {
                    let (mut state, shown) = (cell.state(), lvm::shown(&wanted, view, cell.id));
                    state.note_altered(cell.id, view);
                    self.note_whole(cell.id, &mut state, kept_spec, shown);
                }
                let seen = view.map(|view| lvm::report(&wanted, &view, cell.id));
                cell.note_reverted(seen.as_ref());
                self.tend_isolation_soon(cell);
                let unkept = self.keep_made(cell, kept_spec, seen.as_ref());
                let (rest, report) = match (left, seen) {
                    // Nobody hears of the volume, or gets it, before the store has it.
                    _ if unkept.is_some() => (Left::Again, unkept),
                    (Ok(plan), seen) if plan.is_quiet() => (Left::Nothing, seen),
                    (Ok(plan), seen) => (again_if(!plan.steps.is_empty()), seen),
                    // The step gave way to something newer, and goes on afterwards.
                    (Err(lvm::Error::Stopped { .. }), seen) => (Left::Again, seen),
                    (Err(error), seen) => {
                        let rest = again_if(error.cure() == Cure::Retry);
                        (rest, Some(failed_volume(cell, kept_spec, seen, &error)))
                    }
                };
                (rest, report, began)
            }
        };
        // The next step of a revert is not the volume's: its export has to leave the kernel first.
        let done = rest == Left::Nothing;
        let reverting = done && cell.is_reverting(specs.volume.as_ref(), specs.export.as_ref());
        let end = VolumeEnd { left: if reverting { Left::Again } else { rest }, report, began };
        let end = self.upload_half(cell, specs, end);
        self.note_volume(cell, specs, end);
        done
    }

    /// Notes the result of the volume half, and wakes those who wait for it.
    pub(super) fn note_volume(&self, cell: &Cell, specs: &PassSpecs, end: VolumeEnd) {
        let VolumeEnd { left, report, began } = end;
        let mut state = cell.state();
        // A volume that is only too small may be exported while it is extended.
        let ready = report.as_ref().filter(|report| report.phase == Phase::Ready);
        // No look was made for a spec that came meanwhile.
        let same = state.volume().map(|kept_spec| &kept_spec.stamp)
            == specs.volume.as_ref().map(|kept_spec| &kept_spec.stamp);
        let ready = ready.filter(|_| same).cloned();
        state.knowledge.learn_if_ready(began, ready, Stale::VolumeNotReady);
        if report != state.volume_end().report
            && let Some(report) = &report
        {
            let mut report = report.clone();
            state.fill_isolation(cell.id, &mut report);
            self.publish(Change::Volume(report));
        }
        let generation = specs.volume.as_ref().map(|kept_spec| kept_spec.stamp.generation);
        state.end_volume(End {
            pass: specs.pass,
            generation,
            report,
            left,
            at: Some(clock::instant()),
            operations: 0,
        });
        drop(state);
        cell.changed();
    }

    /// Looks, plans, applies. Returns the last view, and the plan that is left. A volume to be
    /// extended is completed and reported first; then it is extended, if `grow` says now.
    fn make_volume(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        wanted: &lvm::Wanted,
        grow: Grow,
    ) -> MadeVolume {
        let machine = &self.shared.machine;
        let look = || {
            cell.begin("ask LVM".to_owned());
            let began = cell.state().knowledge.begin_look();
            let view = self.view_for_pass(cell, &wanted.beside());
            cell.end();
            view.map(|view| Seen::new(began, view))
        };
        let looked = cell.state().knowledge.take_looked();
        let mut view = match looked.map_or_else(look, Ok) {
            Ok(view) => view,
            Err(error) => return MadeVolume { view: None, left: Err(error) },
        };
        loop {
            let plan = lvm::plan(wanted, &view, cell.id);
            let report = lvm::report(wanted, &view, cell.id);
            let whole = report.phase == Phase::Ready;
            if plan.steps.is_empty() || (whole && grow == Grow::Later) {
                return MadeVolume { view: Some(view), left: Ok(plan) };
            }
            let kept = |kept_spec| self.keep_made(cell, kept_spec, Some(&report)).is_none();
            let failed = report.phase == Phase::Failed;
            if failed {
                for problem in &report.problems {
                    tracing::warn!(volume = %cell.id, object = %problem.object, "{}", problem.text);
                }
            }
            // A change by somebody else is reported also if a step mends it in a moment.
            if failed || (whole && specs.volume.as_ref().is_none_or(kept)) {
                let end = VolumeEnd { left: Left::Again, report: Some(report), began: view.began() };
                self.note_volume(cell, specs, end);
            }
            cell.state().note_home(cell.id, &view);
            let mut watch = Watch { engine: self, cell, generation: Generation::ZERO };
            let images = self.images();
            let hands = lvm::Hands { commands: &*machine.commands, blocks: &*machine.blocks, images };
            let applied = lvm::apply_with(&plan, hands, &mut watch);
            if let Err(error) = applied {
                return MadeVolume { view: Some(view), left: Err(error) };
            }
            view = match look() {
                Ok(view) => view,
                Err(error) => return MadeVolume { view: Some(view), left: Err(error) },
            };
            // This plan completed the volume; the next plan extends it.
            let left = lvm::plan(wanted, &view, cell.id);
            if whole || left.steps.is_empty() || lvm::report(wanted, &view, cell.id).phase != Phase::Ready {
                return MadeVolume { view: Some(view), left: Ok(left) };
            }
        }
    }

    /// The spec for the kernel. `None` if there is neither a spec nor a tombstone.
    pub(super) fn wanted_export(
        &self,
        cell: &Cell,
        volume: Option<&KeptSpec<VolumeSpec>>,
        export: Option<&KeptSpec<ExportSpec>>,
    ) -> Option<Wanteds> {
        let iscsi = self.wanted_over_iscsi(cell, volume, export)?;
        let wanted = self.wanted_over(cell, iscsi, export.and_then(KeptSpec::spec).map(|spec| &spec.fc));
        let state = cell.state();
        let is_out = |initiator: &Initiator| state.established.is_kept_out(initiator);
        Some(if state.established.kept_out().is_empty() { wanted } else { wanted.without(is_out) })
    }

    fn wanted_over_iscsi(
        &self,
        cell: &Cell,
        volume: Option<&KeptSpec<VolumeSpec>>,
        export: Option<&KeptSpec<ExportSpec>>,
    ) -> Option<Wanted> {
        let prefix = &self.shared.config.iqn_prefix;
        let away = is_doomed(volume) || cell.is_apart(volume, export);
        let derived = || mooring_model::ExportIdentity::Derived.names(cell.id, prefix);
        match export.map(|kept_spec| &kept_spec.kind) {
            None if away => Some(Wanted::Absent { names: derived() }),
            None => None,
            Some(SpecKind::Tombstone { .. } | SpecKind::Released) => {
                Some(Wanted::Absent { names: derived() })
            }
            Some(SpecKind::Spec(spec)) if away => {
                Some(Wanted::Absent { names: spec.identity.names(cell.id, prefix) })
            }
            Some(SpecKind::Spec(spec)) => {
                let volume = volume.and_then(KeptSpec::spec)?;
                let names = spec.identity.names(cell.id, prefix);
                let path = lvm::device_path(volume.group.as_str(), &names.lv);
                // An adopted LV lies in somebody else's pool, which may be told not to zero.
                let zeroed = volume.provisioning == Provisioning::Thin
                    && matches!(spec.identity, ExportIdentity::Derived);
                let portals = self.portals_of(spec).to_vec();
                let device = self.backing_device(&volume.group, path, zeroed);
                let reservations = cell.state().put_back(spec);
                let device = Device { reservations, ..device };
                let (grants, tuning) = (spec.grants.clone(), spec.tuning.clone());
                let port_id = self.port_id(cell, &names, &BTreeSet::new());
                let withheld = cell.state().silence.since().is_some();
                Some(Wanted::Present { names, device, portals, withheld, grants, tuning, port_id })
            }
        }
    }

    /// The device of an LV. Discards are passed through if the LV lies in our thin pool (`zeroed`:
    /// a block that comes back from it is zeroed first) or the configuration vouches for the
    /// group's disks. The device is not asked: the kernel refuses discards where it takes none.
    fn backing_device(&self, group: &VgName, path: PathBuf, zeroed: bool) -> Device {
        let discards = zeroed || self.shared.config.group(group).is_some_and(|group| group.discard);
        Device { discards, ..Device::from(path) }
    }

    /// Carries out the export's spec. `usable` says that the LV is known to be ready; without that,
    /// only an export that the kernel already serves is kept in order.
    pub(super) fn export_half(&self, cell: &Arc<Cell>, specs: &PassSpecs, usable: bool) -> ExportEnd {
        let export = specs.export.as_ref();
        let generation = export.map_or(Generation::ZERO, |kept_spec| kept_spec.stamp.generation);
        let Some(mut wanted) = self.wanted_export(cell, specs.volume.as_ref(), export) else {
            let waits = super::is_spec(export);
            let problems = Vec::from_iter(waits.then(|| waits_for_volume(cell)));
            return ExportEnd {
                report: None,
                left: if waits { Left::Again } else { Left::Nothing },
                gone: false,
                waits,
                problems,
                operations: 0,
            };
        };
        self.hear_first(cell, &mut wanted);
        let revokes = cell.has_unproven(generation);
        let busy = revokes.then(|| self.busy(Task::Revoke));
        let before = mooring_host::tree_operations();
        let Made { view, left } = self.make_export(cell, &wanted, generation, usable);
        drop(busy);
        let operations = mooring_host::tree_operations() - before;
        let (left, mut problems) = match left {
            Ok(plan) => (Some(plan), Vec::new()),
            Err(error) => {
                let object = format!("the export of volume {}", cell.id);
                (None, vec![problem(object, &error, error.cure())])
            }
        };
        problems.extend(left.iter().flat_map(|plan| &plan.blocked).map(Problem::from));
        let waits = !usable && view.as_ref().is_some_and(|seen| !is_served(&wanted.iscsi, &seen.iscsi));
        if waits {
            problems = vec![waits_for_volume(cell)];
        }
        let unfinished = left.as_ref().is_some_and(|plan| !plan.steps.is_empty());
        let rest = again_if(unfinished || problems.iter().any(|problem| problem.cure == Cure::Retry));
        let Some(view) = view else {
            let last = cell.state().last_report();
            let report = last.map(|last| ExportReport { problems: problems.clone(), ..last });
            return ExportEnd { report, left: rest, gone: false, waits, problems, operations };
        };
        // The plan in `left` was made for this view.
        let plan = left.filter(|_| !waits).unwrap_or_else(|| wanted.plan(&view));
        let (mut facts, ports) = wanted.facts(&view, &plan);
        facts.problems.extend(self.portal_problems(cell, &wanted.iscsi));
        let gone = view.iscsi.target.is_none() && view.iscsi.backstore.is_none();
        let rest = if problems.is_empty() && facts.in_force { Left::Nothing } else { rest };
        let shown = super::is_spec(export) || !gone;
        let report =
            export.filter(|_| shown).map(|_| export_report(cell.id, generation, facts, ports, &problems));
        ExportEnd { report, left: rest, gone, waits, problems, operations }
    }

    /// Looks, plans, applies, looks again. Without `usable`, applies nothing to an export that the
    /// kernel does not serve.
    pub(super) fn make_export(
        &self,
        cell: &Arc<Cell>,
        wanted: &Wanteds,
        generation: Generation,
        usable: bool,
    ) -> Made {
        if let Some(narrow) = cell.narrow(wanted).filter(|_| usable) {
            let made = self.make_narrow(cell, wanted, narrow, generation);
            self.look_soon(cell);
            return made;
        }
        let mut view = match self.look_for(cell, wanted, generation) {
            Ok(view) => view,
            Err(error) => return Made { view: None, left: Err(error) },
        };
        if !usable && !is_served(&wanted.iscsi, &view.iscsi) {
            return Made { view: Some(view), left: Ok(Plan::default()) };
        }
        // A grant that came back before its revoke was carried out: its old nexus is revoked all
        // the same.
        let without = cell.without_revoked(wanted, cell.nexuses(wanted, &view), generation);
        if let Some(without) = without {
            let made = self.apply_export(cell, &without, view, generation);
            match self.with_another_port_id(cell, &without, made, generation) {
                Made { view: Some(seen), left: Ok(_) } => view = seen,
                failed => return failed,
            }
        }
        let made = self.apply_export(cell, wanted, view, generation);
        let made = self.with_another_port_id(cell, wanted, made, generation);
        self.keep_port_id(cell, &made);
        if cell.state().has_left_look() {
            return made;
        }
        if made.left.as_ref().is_ok_and(Plan::is_quiet) {
            cell.settle_places(wanted);
            if let Some(view) = &made.view {
                self.watch_export(cell, view.began());
            }
        }
        cell.keep_known(wanted, &made);
        made
    }

    pub(super) fn apply_export(
        &self,
        cell: &Arc<Cell>,
        wanted: &Wanteds,
        view: Seen<View>,
        generation: Generation,
    ) -> Made {
        let plan = wanted.plan(&view);
        if plan.steps.is_empty() {
            return Made { view: Some(view), left: Ok(plan) };
        }
        {
            let mut state = cell.state();
            state.knowledge.forget(Stale::Step);
            if view.iscsi.backstore.is_none() {
                state.held.starts_anew();
            }
        }
        let mut watch = Watch { engine: self, cell, generation };
        let applied = mooring_targets::apply(&plan, &*self.shared.machine.target, &mut watch);
        if applied.is_ok() && self.is_bulk(cell.id) {
            cell.state().leave_look();
            return Made { view: None, left: Ok(Plan::default()) };
        }
        match (self.look_for(cell, wanted, generation), applied) {
            (Ok(view), Ok(())) => {
                let left = wanted.plan(&view);
                Made { view: Some(view), left: Ok(left) }
            }
            (Ok(view), Err(error)) => Made { view: Some(view), left: Err(error) },
            (Err(error), _) => Made { view: None, left: Err(error) },
        }
    }

    /// Looks at the export, and proves receipts whose nexus is not there. A listing of `acls` waits
    /// for an `rmdir` in it, so an ACL that is not listed has drained (lio.md, d), whoever removed
    /// it. A TPG LUN without a backstore has drained, too.
    fn look_for(
        &self,
        cell: &Cell,
        wanted: &Wanteds,
        generation: Generation,
    ) -> Result<Seen<View>, mooring_targets::Error> {
        cell.begin(format!("look at {}", wanted.names().iqn));
        let listening = self.begin_watch(cell, wanted);
        let began = cell.state().knowledge.begin_look();
        let before = |folder: &TreePath| listening.watch(folder);
        let seen = wanted.look(&Noted::new(&*self.shared.machine.target, before));
        self.end_watch(cell, listening, seen.is_ok());
        cell.end();
        let seen = Seen::new(began, seen?);
        self.learn_port_ids(wanted, &seen);
        let has_nexus = cell.nexuses(wanted, &seen);
        self.prove(cell, generation, |initiator| !has_nexus(initiator));
        drop(has_nexus);
        Ok(seen)
    }

    /// Proves the open receipts of nexuses that have `drained`, up to the generation that the pass
    /// works on. If a nexus was revoked later, this pass's plan may still make its ACL.
    pub(super) fn prove(&self, cell: &Cell, generation: Generation, drained: impl Fn(&Initiator) -> bool) {
        let ended = self.shared.machine.clock.now();
        let proven = {
            let mut guard = cell.state();
            let state = &mut *guard;
            state.established.receipts_mut().prove(generation, ended, drained, |initiator| {
                state.knowledge.nexus_ended(initiator);
            })
        };
        for open in proven {
            self.shared.store.prove_receipt(open.row, &open.receipt);
            self.shared.reports.done().proof();
            cell.state().established.receipts_mut().note_proven(open.row, &open.receipt);
            tracing::info!(volume = %cell.id, initiator = %open.receipt.initiator, "nexus revoked, proven");
            self.publish(Change::Receipt(open.receipt));
        }
    }
}

/// The time at which a volume is extended: now, or once its export is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grow {
    Now,
    Later,
}

/// The result of the volume half of a pass.
pub(super) struct VolumeEnd {
    pub(super) left: Left,
    pub(super) report: Option<VolumeReport>,
    /// The moment at which the look at LVM behind the report began.
    pub(super) began: Moment,
}

/// The result of carrying out a volume's spec.
struct MadeVolume {
    /// The last view. `None` if LVM did not answer.
    view: Option<Seen<VolumesView>>,
    /// The steps that are left, or the error.
    left: Result<Plan<VolumeOp>, lvm::Error>,
}

/// Says whether the reported volume is as large as its spec, reverted and exported to its image.
fn is_whole(kept_spec: &KeptSpec<VolumeSpec>, report: &VolumeReport) -> bool {
    // A snapshot is as large as its volume was.
    let large = |spec: &VolumeSpec| spec.kind == VolumeKind::Snapshot || report.size >= spec.size;
    let reverted = |spec: &VolumeSpec| spec.revert.is_none_or(|revert| report.reverted == Some(revert.id));
    let uploaded =
        |spec: &VolumeSpec| spec.upload.as_ref().is_none_or(|upload| report.uploaded == Some(upload.id));
    kept_spec.spec().is_none_or(|spec| large(spec) && reverted(spec) && uploaded(spec))
}

/// The result of carrying out an export's spec.
pub(super) struct Made {
    /// The last view. `None` if the kernel did not answer, or the look is postponed.
    pub(super) view: Option<Seen<View>>,
    /// The steps that are left, or the error.
    pub(super) left: Result<Plan<Op>, mooring_targets::Error>,
}

/// Says whether the kernel serves the export: then its LV was ready once, and LVM need not be
/// asked.
fn is_served(wanted: &Wanted, view: &ExportView) -> bool {
    let link = view.tpg().and_then(|tpg| tpg.lun.as_ref()?.link.as_ref());
    match wanted {
        Wanted::Absent { .. } => true,
        Wanted::Present { names, .. } => {
            link.is_some_and(|link| link.target == mooring_targets::layout::backstore(names))
        }
    }
}

/// The report of a volume whose pass failed. A whole volume that only failed to be extended is
/// still whole.
fn failed_volume(
    cell: &Cell,
    kept_spec: &KeptSpec<VolumeSpec>,
    seen: Option<VolumeReport>,
    error: &lvm::Error,
) -> VolumeReport {
    let whole = seen.filter(|seen| seen.phase == Phase::Ready);
    let mut report = whole.clone().unwrap_or_else(|| cell.volume_report());
    report.phase = match (&kept_spec.kind, error.cure()) {
        _ if whole.is_some() => Phase::Ready,
        (SpecKind::Tombstone { .. } | SpecKind::Released, _) => Phase::Deleting,
        (SpecKind::Spec(_), Cure::Retry) => Phase::Creating,
        (SpecKind::Spec(_), _) => Phase::Failed,
    };
    report.zeroed = None;
    report.problems = vec![problem(format!("volume {}", cell.id), error, error.cure())];
    report
}

fn waits_for_volume(cell: &Cell) -> Problem {
    Problem {
        object: format!("the export of volume {}", cell.id),
        text: "waits for the volume".to_owned(),
        cure: Cure::Retry,
    }
}

/// The export's report: the facts of the kernel's tree, and the problems on the way there.
pub(super) fn export_report(
    volume: VolumeId,
    generation: Generation,
    facts: ExportFacts,
    fc: Vec<FcPortReport>,
    problems: &[Problem],
) -> ExportReport {
    let ExportFacts { target, naa, portals, in_force, grants, problems: mut all } = facts;
    all.extend(problems.iter().filter(|problem| !all.contains(problem)).cloned().collect::<Vec<_>>());
    ExportReport {
        volume,
        generation,
        target,
        naa,
        portals,
        in_force,
        grants,
        fc,
        reservations: None,
        kept_reservations: None,
        problems: all,
        stuck: None,
        looked: None,
        unlisted_sessions: None,
    }
}

/// The planner's goal for a volume. `made` says that it was whole once.
pub(super) fn wanted_volume(
    kept_spec: &KeptSpec<VolumeSpec>,
    export: Option<&KeptSpec<ExportSpec>>,
    made: bool,
    export_gone: bool,
) -> lvm::Wanted {
    match &kept_spec.kind {
        SpecKind::Spec(spec) => wanted_spec(spec, export.and_then(KeptSpec::spec), made, export_gone),
        SpecKind::Tombstone { destroy: true } => lvm::Wanted::Doomed { export_gone },
        SpecKind::Tombstone { destroy: false } => lvm::Wanted::Nothing,
        SpecKind::Released => lvm::Wanted::Released { export_gone },
    }
}

/// The planner's goal for a volume with a spec.
pub(super) fn wanted_spec(
    spec: &VolumeSpec,
    export: Option<&ExportSpec>,
    made: bool,
    export_gone: bool,
) -> lvm::Wanted {
    let (name, spec) = (lv_name(spec, export), spec.clone());
    if name != spec.lv() {
        lvm::Wanted::Adopted(spec, name)
    } else if made {
        lvm::Wanted::Made { spec, export_gone }
    } else if spec.revert.is_some() {
        lvm::Wanted::Reverted { spec, export_gone }
    } else {
        lvm::Wanted::Volume(spec)
    }
}

/// The name of a volume's LV: its own, or the one recorded when the volume was adopted.
pub(super) fn lv_name(spec: &VolumeSpec, export: Option<&ExportSpec>) -> LvName {
    let recorded = match export.map(|export| &export.identity) {
        Some(ExportIdentity::Recorded { lv, .. }) => LvName::existing(lv).ok(),
        Some(ExportIdentity::Derived) | None => None,
    };
    recorded.unwrap_or_else(|| spec.lv())
}

fn is_doomed(volume: Option<&KeptSpec<VolumeSpec>>) -> bool {
    matches!(volume.map(|kept_spec| &kept_spec.kind), Some(SpecKind::Tombstone { .. } | SpecKind::Released))
}

fn problem(object: String, error: &(dyn std::error::Error + 'static), cure: Cure) -> Problem {
    Problem { object, text: Chain(error).to_string(), cure }
}

/// Ends the turn of a pass, however the pass ends.
struct Running<'a> {
    cell: &'a Cell,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.cell.state();
        state.turn.end();
        state.calls.end();
        state.jobs.end();
    }
}

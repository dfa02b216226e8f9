//! Volumes whose device does not answer: noticed within three seconds, and kept from holding up the logins to all others.
//!
//! A portal's one login thread in the kernel serves the targets of all volumes. A host that logs in again while commands of its old
//! session hang has the thread wait for those, and nobody logs in to anything there until the device answers (lio.md, u). So the
//! portals of such a volume are withheld: taken off before that host comes, put back when the device answers. Sessions that stand
//! notice neither. A withheld portal taken for a silent device by mistake costs a login some seconds.
//!
//! The rule: something has been in flight, and none of it has ended, for [`SILENT_AFTER`]; or device-mapper has held the device
//! back for as long. A device that is slow, and answers after all, is given more time from then on ([`Ear::patience`]), so that
//! its portals do not come and go. It counts as answering again when nothing is in flight, or at the second look that saw
//! something end.
//!
//! The cost: each second a read or two of sysfs for each volume that somebody is logged in to, none for any other. Nothing is
//! remembered over a restart: an agent that finds a target without its portals, and something in flight on its device, puts them
//! back when it has heard that device.
//!
//! What must never happen here: a wait for a device; a portal taken away because nothing is known; a lock held while sysfs is
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_host::{Flow, Followed};
use mooring_model::{Chain, Cure, Problem, VolumeId};
use mooring_targets::layout;
use tokio::time::Instant;

use super::cell::{BLOCKED_AFTER, Cell, State};
use super::fabrics::Wanteds;
use super::knowledge::Stale;
use super::{Engine, lock};
use crate::capabilities::timestamp;
use crate::volumes;

/// Between two looks.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// A device that has ended nothing for so long is silent: by the third look, which comes up to three seconds behind the last
/// answer. A little less than two seconds, since looks are not quite a second apart.
const SILENT_AFTER: Duration = Duration::from_millis(1800);

/// One that has answered after this long at most is slow, and not silent.
const SLOW_MAX: Duration = Duration::from_secs(6);

/// How long it is known that a device is slow, after the last time that it was.
const SLOW_FOR: Duration = Duration::from_mins(5);

/// Looks that see something end, until a silent device counts as answering.
const ANSWERS: u32 = 2;

/// One device, as far as it was heard.
#[derive(Debug, Default)]
struct Ear {
    /// State while no command ends, and since when.
    stall: Option<(Flow, Instant)>,
    silent: bool,
    /// Looks that have seen something end since it is silent.
    answers: u32,
    /// The longest time that it took to answer lately, and when that was last.
    slow: Option<(Duration, Instant)>,
}

impl Ear {
    /// The longest time that it took to answer lately.
    fn slowest(&self, now: Instant) -> Option<Duration> {
        self.slow.filter(|(_, at)| now.duration_since(*at) < SLOW_FOR).map(|(longest, _)| longest)
    }

    /// How long it may say nothing.
    fn patience(&self, now: Instant) -> Duration {
        self.slowest(now).map_or(SILENT_AFTER, |longest| longest * 3 / 2 + LOOKS_EVERY)
    }

    /// Takes note of what it does now. Since when it is silent, if it is.
    fn hear(&mut self, now: Instant, flow: Flow) -> Option<Instant> {
        match self.stall {
            Some((before, since)) if before == flow => {
                if now.duration_since(since) >= self.patience(now) {
                    (self.silent, self.answers) = (true, 0);
                }
            }
            _ => self.ended(now, flow),
        }
        self.stall.filter(|_| self.silent).map(|(_, since)| since)
    }

    /// Something has ended, or has just begun.
    fn ended(&mut self, now: Instant, flow: Flow) {
        let before = self.stall.take();
        self.stall = (flow != Flow::Idle).then_some((flow, now));
        match flow {
            Flow::Idle => self.silent = false,
            Flow::Busy { .. } => {
                self.answers += 1;
                self.silent &= self.answers < ANSWERS;
            }
            // Held back, it has answered nothing.
            Flow::Suspended => {}
        }
        if let Some((Flow::Busy { .. }, since)) = before {
            let took = now.duration_since(since);
            if (SILENT_AFTER..=SLOW_MAX).contains(&took) {
                self.slow = Some((self.slowest(now).map_or(took, |longest| longest.max(took)), now));
            }
        }
    }
}

/// A device that is listened to.
#[derive(Default)]
struct Listened {
    /// `None`: it is to be found.
    device: Option<Box<dyn Followed>>,
    ear: Ear,
}

/// All devices that are.
#[derive(Default)]
pub(super) struct Ears {
    listened: BTreeMap<VolumeId, Listened>,
    /// Those that are silent.
    silent: BTreeSet<VolumeId>,
}

/// The silence of one volume's device.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Since when its device does not answer: its portals are withheld.
    since: Option<SystemTime>,
    /// An agent before this one has left the export; nobody has heard yet whether its device answers.
    unheard: bool,
}

impl Silence {
    /// Since when the device does not answer. `None` if it does.
    pub(super) fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// Takes note that an agent before this one has left the export.
    pub(super) fn set_unheard(&mut self) {
        self.unheard = true;
    }
}

impl State {
    /// Whether its device may be asked for something by a host: somebody is logged in, or nobody knows.
    fn may_be_used(&self) -> bool {
        self.knowledge.lives().is_none_or(|lives| lives.all_sessions().next().is_some())
    }
}

impl Engine {
    /// Listens to the device of a volume, from the next second on, for as long as somebody may use it.
    pub(super) fn listen_to(&self, volume: VolumeId) {
        lock(&self.shared.ears).listened.entry(volume).or_default();
    }

    /// Listens to all devices that may be used, once.
    pub(super) fn listen(&self) {
        let mut all = std::mem::take(&mut lock(&self.shared.ears).listened);
        all.retain(|volume, listened| {
            self.known_cell(*volume).is_some_and(|cell| self.listen_once(&cell, listened))
        });
        let mut ears = lock(&self.shared.ears);
        for (volume, newer) in std::mem::take(&mut ears.listened) {
            // Of one that came meanwhile nothing was heard yet, unless it is taken for silent.
            if newer.ear.silent || !all.contains_key(&volume) {
                all.insert(volume, newer);
            }
        }
        ears.silent = all.iter().filter(|(_, one)| one.ear.silent).map(|(volume, _)| *volume).collect();
        ears.listened = all;
    }

    /// Whether it is to be listened to again.
    fn listen_once(&self, cell: &Arc<Cell>, listened: &mut Listened) -> bool {
        let now = Instant::now();
        let Some(flow) = self.flow(cell, &mut listened.device) else {
            // Without its device nothing of it can hang.
            self.note_silence(cell, None);
            return false;
        };
        let silent = listened.ear.hear(now, flow).map(|since| now.duration_since(since));
        let clock = self.shared.machine.clock.now();
        self.note_silence(cell, silent.map(|since| clock.checked_sub(since).unwrap_or(clock)));
        flow != Flow::Idle || cell.state().may_be_used()
    }

    /// What the device of a volume does. `None`: there is none, or nobody wants the volume exported.
    fn flow(&self, cell: &Cell, device: &mut Option<Box<dyn Followed>>) -> Option<Flow> {
        let path = {
            let state = cell.state();
            let spec = state.export_spec()?;
            if let Some(Ok(flow)) = device.as_ref().map(|device| device.flow()) {
                return Some(flow);
            }
            let group = &state.volume_spec()?.group;
            let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
            volumes::device_path(group.as_str(), &names.lv)
        };
        // Its device is to be found, or another one has taken its place.
        let followed = self.shared.machine.blocks.follow(&path).and_then(|followed| {
            let flow = followed.flow()?;
            *device = Some(followed);
            Ok(flow)
        });
        followed
            .inspect_err(
                |error| tracing::debug!(volume = %cell.id, %error, "its device cannot be listened to"),
            )
            .ok()
    }

    /// Takes note of whether a volume's device is silent, and has its portals withheld, or put back.
    fn note_silence(&self, cell: &Arc<Cell>, silent: Option<SystemTime>) {
        let pass = {
            let mut state = cell.state();
            if state.silence.since.is_some() == silent.is_some() {
                return;
            }
            state.silence.since = silent;
            state.turn.running()
        };
        let volume = cell.id;
        if silent.is_some() {
            tracing::error!(%volume, "its device does not answer: its portals are taken off, for the sake of other volumes' logins");
        } else {
            tracing::warn!(%volume, "its device answers again: its portals are put back");
        }
        self.wake(cell);
        if let Some(pass) = pass.filter(|_| silent.is_some()) {
            self.withhold_if_stuck(cell, pass);
        }
        self.lvm().tell();
    }

    /// Takes its portals off beside the pass that is at work, should it still be when a call of it is taken to hang: a revoke that
    /// waits for this very device, or LVM.
    fn withhold_if_stuck(&self, cell: &Arc<Cell>, pass: u64) {
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(BLOCKED_AFTER).await;
            let at = engine.clone();
            engine.shared.workers.submit(move || at.withhold_beside(&cell, pass));
        });
    }

    fn withhold_beside(&self, cell: &Arc<Cell>, pass: u64) {
        let (volume, export) = {
            let state = cell.state();
            if state.turn.running() != Some(pass) || state.silence.since.is_none() {
                return;
            }
            state.wishes()
        };
        let Some(wanted) = self.wanted_export(cell, volume.as_ref(), export.as_ref()) else { return };
        let tree = &*self.shared.machine.target;
        let taken = mooring_targets::read_portals(tree, wanted.names()).and_then(|there| {
            let plan = mooring_targets::plan_portals(&wanted.iscsi, &there);
            mooring_targets::apply(&plan, tree, &mut ())?;
            Ok(!plan.steps.is_empty())
        });
        match taken {
            Ok(false) => {}
            Ok(true) => {
                cell.state().knowledge.forget(Stale::BesidePass);
                tracing::info!(volume = %cell.id, "its portals are off, beside a pass that hangs");
            }
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "its portals stay until its pass has ended");
            }
        }
    }

    /// Of an export that was there before this agent: portals that an enabled target lacks were withheld, if its device has
    /// something in flight. Then they come back when it has been heard.
    pub(super) fn hear_first(&self, cell: &Arc<Cell>, wanted: &mut Wanteds) {
        if !std::mem::take(&mut cell.state().silence.unheard) || wanted.iscsi.doors().is_empty() {
            return;
        }
        let tree = &*self.shared.machine.target;
        let Ok(there) = mooring_targets::read_portals(tree, wanted.names()) else { return };
        if wanted.iscsi.doors().iter().any(|door| there.contains(&door.to_string())) {
            return;
        }
        let enabled = tree.read_text(&layout::tpg(wanted.names()).join("enable"));
        let flow =
            if enabled.is_ok_and(|enabled| enabled == "1") { self.flow(cell, &mut None) } else { None };
        if flow.is_none_or(|flow| flow == Flow::Idle) {
            return;
        }
        tracing::warn!(volume = %cell.id, "its portals are off and its device has something in flight: listening to that first");
        cell.state().silence.since = Some(self.shared.machine.clock.now());
        wanted.iscsi.withhold();
        let ear = Ear { silent: true, ..Ear::default() };
        let mut ears = lock(&self.shared.ears);
        ears.listened.insert(cell.id, Listened { device: None, ear });
        ears.silent.insert(cell.id);
    }

    /// What is said of a volume whose portals are withheld.
    pub(super) fn silence_problem(cell: &Cell) -> Option<Problem> {
        let since = timestamp(cell.state().silence.since?);
        let text = format!(
            "does not answer since {since}: its portals are taken off until it does, so that no login to it holds up those to other \
             volumes; sessions that stand go on. See what hangs below it: dmesg, dmsetup info, and lvs for a thin pool that is full"
        );
        Some(Problem { object: format!("the device of volume {}", cell.id), text, cure: Cure::Operator })
    }

    /// The volumes whose devices are silent.
    pub(crate) fn silent_volumes(&self) -> BTreeSet<VolumeId> {
        lock(&self.shared.ears).silent.clone()
    }
}

#[cfg(test)]
mod tests;

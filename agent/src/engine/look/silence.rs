//! Volumes whose device does not answer: the agent notices them within three seconds, and keeps
//! them from holding up the logins to all other volumes.
//!
//! One login thread of the kernel for each portal serves the targets of all volumes. If a host logs
//! in again while commands of its old session hang, the thread waits for those commands. Then
//! nobody logs in there until the device answers (lio.md, u). So the agent withholds the portals of
//! such a volume: it takes them off before that host comes, and puts them back when the device
//! answers. Open sessions notice neither. A portal that is withheld by mistake delays a login by
//! some seconds.
//!
//! The rule: a device is silent if commands are in flight and none has ended for [`SILENT_AFTER`],
//! or if device-mapper has suspended it for that long. A slow device that does answer gets more
//! time from then on ([`Ear::patience`]), so that its portals do not come and go. A silent device
//! counts as answering again when nothing is in flight, or at the second look that saw a command
//! end.
//!
//! The cost: a read or two of sysfs each second for each volume with a login, none for any other.
//! Nothing is remembered over a restart. An agent that finds a target without portals, and commands
//! in flight on its device, puts the portals back once it has listened to that device.
//!
//! What must never happen here: a wait for a device; a portal taken away because nothing is known;
//! a lock held while sysfs is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_host::{Flow, Followed};
use mooring_model::{Chain, Cure, Problem, VolumeId};
use mooring_targets::layout;
use tokio::time::Instant;

use crate::capabilities::timestamp;
use crate::clock;
use crate::engine::cell::{BLOCKED_AFTER, Cell, State};
use crate::engine::export::fabrics::Wanteds;
use crate::engine::knowledge::Stale;
use crate::engine::{Engine, lock};
use crate::lvm;

/// Time between two looks.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Time without an answer after which a device is silent: by the third look, which comes up to
/// three seconds after the last answer. A little less than two seconds, because looks are not quite
/// a second apart.
const SILENT_AFTER: Duration = Duration::from_millis(1800);

/// Longest time of an answer that makes a device slow instead of silent.
const SLOW_MAX: Duration = Duration::from_secs(6);

/// Time for which a device counts as slow after its last slow answer.
const SLOW_FOR: Duration = Duration::from_mins(5);

/// Number of looks that see a command end until a silent device counts as answering.
const ANSWERS: u32 = 2;

/// The answers of one device, as far as looks have seen them.
#[derive(Debug, Default)]
struct Ear {
    /// The state in which no command ends, and since when. `None` if nothing is in flight.
    stall: Option<(Flow, Instant)>,
    silent: bool,
    /// Number of looks that have seen a command end while the device is silent.
    answers: u32,
    /// The longest time of a recent slow answer, and when the last one was.
    slow: Option<(Duration, Instant)>,
}

impl Ear {
    /// The longest time of a recent slow answer. `None` if there is none.
    fn slowest(&self, now: Instant) -> Option<Duration> {
        self.slow.filter(|(_, at)| now.duration_since(*at) < SLOW_FOR).map(|(longest, _)| longest)
    }

    /// Time without an answer until the device counts as silent.
    fn patience(&self, now: Instant) -> Duration {
        self.slowest(now).map_or(SILENT_AFTER, |longest| longest * 3 / 2 + LOOKS_EVERY)
    }

    /// Notes the device's present state. Returns since when it is silent, `None` if it is not.
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

    /// Notes that a command has ended, or the first one has begun.
    fn ended(&mut self, now: Instant, flow: Flow) {
        let before = self.stall.take();
        self.stall = (flow != Flow::Idle).then_some((flow, now));
        match flow {
            Flow::Idle => self.silent = false,
            Flow::Busy { .. } => {
                self.answers += 1;
                self.silent &= self.answers < ANSWERS;
            }
            // A suspended device has answered nothing.
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

/// A device that the agent listens to.
#[derive(Default)]
struct Listened {
    /// `None` until the device is found.
    device: Option<Box<dyn Followed>>,
    ear: Ear,
}

/// All devices that the agent listens to.
#[derive(Default)]
pub(in crate::engine) struct Ears {
    listened: BTreeMap<VolumeId, Listened>,
}

/// The silence of one volume's device.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Time at which the device stopped answering: the portals are withheld. `None` while it
    /// answers.
    since: Option<SystemTime>,
    /// `true` if an agent before this one made the export, and nobody has listened to its device
    /// yet.
    unheard: bool,
}

impl Silence {
    /// Time at which the device stopped answering. `None` while it answers.
    pub(in crate::engine) fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// Notes that an agent before this one made the export.
    pub(in crate::engine) fn set_unheard(&mut self) {
        self.unheard = true;
    }
}

impl State {
    /// Says whether a host may use the device: a session is logged in, or the sessions are unknown.
    fn may_be_used(&self) -> bool {
        self.knowledge.lives().is_none_or(|lives| lives.all_sessions().next().is_some())
    }
}

impl Engine {
    /// Listens to the device of a volume, from the next second on, for as long as a host may use
    /// it.
    pub(in crate::engine) fn listen_to(&self, volume: VolumeId) {
        lock(&self.shared.look_memory.ears).listened.entry(volume).or_default();
    }

    /// Listens once to all devices that hosts may use.
    pub(in crate::engine) fn listen(&self) {
        let mut all = std::mem::take(&mut lock(&self.shared.look_memory.ears).listened);
        all.retain(|volume, listened| {
            self.known_cell(*volume).is_some_and(|cell| self.listen_once(&cell, listened))
        });
        let mut ears = lock(&self.shared.look_memory.ears);
        for (volume, newer) in std::mem::take(&mut ears.listened) {
            // A device that came meanwhile has no history yet, unless it is known as silent.
            if newer.ear.silent || !all.contains_key(&volume) {
                all.insert(volume, newer);
            }
        }
        ears.listened = all;
    }

    /// Listens once to a device. `true` if it is to be listened to again.
    fn listen_once(&self, cell: &Arc<Cell>, listened: &mut Listened) -> bool {
        let now = clock::instant();
        let Some(flow) = self.flow(cell, &mut listened.device) else {
            // Without a device nothing can hang.
            self.note_silence(cell, None);
            return false;
        };
        let silent = listened.ear.hear(now, flow).map(|since| now.duration_since(since));
        let clock = self.shared.machine.clock.now();
        self.note_silence(cell, silent.map(|since| clock.checked_sub(since).unwrap_or(clock)));
        flow != Flow::Idle || cell.state().may_be_used()
    }

    /// The state of a volume's device. `None` if there is no device, or no spec exports the volume.
    fn flow(&self, cell: &Cell, device: &mut Option<Box<dyn Followed>>) -> Option<Flow> {
        let path = {
            let state = cell.state();
            let spec = state.export_spec()?;
            if let Some(Ok(flow)) = device.as_ref().map(|device| device.flow()) {
                return Some(flow);
            }
            let group = &state.volume_spec()?.group;
            let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
            lvm::device_path(group.as_str(), &names.lv)
        };
        // The device is not found yet, or another one has taken its place.
        let followed = self.shared.machine.blocks.follow(&path).and_then(|followed| {
            let flow = followed.flow()?;
            *device = Some(followed);
            Ok(flow)
        });
        followed
            .inspect_err(
                |error| tracing::debug!(volume = %cell.id, %error, "cannot see whether the volume's device answers"),
            )
            .ok()
    }

    /// Notes whether a volume's device is silent, and has its portals withheld or put back.
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
            tracing::error!(%volume, "its device does not answer: its portals are taken off, so that logins to other volumes go on");
        } else {
            tracing::warn!(%volume, "its device answers again: its portals are put back");
        }
        self.wake(cell);
        if let Some(pass) = pass.filter(|_| silent.is_some()) {
            self.withhold_if_stuck(cell, pass);
        }
        self.lvm().tell();
    }

    /// Takes the portals off beside the pass at work, if a call of that pass still seems to hang
    /// after [`BLOCKED_AFTER`]: a revoke that waits for this very device, or LVM.
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
            state.specs()
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
                tracing::info!(volume = %cell.id, "its portals are taken off while its pass hangs");
            }
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "its portals cannot be taken off before its pass has ended");
            }
        }
    }

    /// Checks an export of an earlier agent once: if its enabled target lacks portals and commands
    /// are in flight on its device, that agent withheld them. Then they stay withheld until the
    /// device was listened to.
    pub(in crate::engine) fn hear_first(&self, cell: &Arc<Cell>, wanted: &mut Wanteds) {
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
        tracing::warn!(volume = %cell.id, "its device has commands in flight: its portals stay off until it answers");
        cell.state().silence.since = Some(self.shared.machine.clock.now());
        wanted.iscsi.withhold();
        let ear = Ear { silent: true, ..Ear::default() };
        lock(&self.shared.look_memory.ears).listened.insert(cell.id, Listened { device: None, ear });
    }

    /// The problem of a volume whose portals are withheld. `None` if they are not.
    pub(in crate::engine) fn silence_problem(cell: &Cell) -> Option<Problem> {
        let since = timestamp(cell.state().silence.since?);
        let text = format!(
            "does not answer since {since}: its portals are taken off until it does, so that no login to it holds up those to other \
             volumes; sessions that stand go on. See what hangs below it: dmesg, dmsetup info, and lvs for a thin pool that is full"
        );
        Some(Problem { object: format!("the device of volume {}", cell.id), text, cure: Cure::Operator })
    }

    /// The volumes whose devices are silent.
    pub(crate) fn silent_volumes(&self) -> BTreeSet<VolumeId> {
        let mut cells = self.cells();
        cells.retain(|cell| cell.state().silence.since.is_some());
        cells.iter().map(|cell| cell.id).collect()
    }
}

#[cfg(test)]
mod tests;

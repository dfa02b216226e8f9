//! The pulse: reads sessions and counters at a bounded pace. A login is an act of the initiator,
//! and the kernel does not report it, so the agent has to look. Reports show what the last look
//! saw.
//!
//! Each second the pulse looks at [`GRANTS_PER_SECOND`] grants, one volume after another. A round
//! of 1,000 volumes with two hosts each takes half a minute. A full look at an idle grant is 2
//! reads (`mooring_targets::read_live`), and 1 more for a volume with a login: the number of
//! sessions that the kernel does not list. While no connection comes or goes
//! ([`callers`](super::callers)), a volume whose commands have not moved takes 1 read, whatever the
//! number of its grants. A volume without a login takes none. Volumes that a new or ended
//! connection may concern come first, at [`SOON_PER_SECOND`] grants. A request for one volume looks
//! at that volume at once.
//!
//! What must never happen here: a look that waits where another call of its volume hangs; a report
//! for every look (without a request, only logins and logouts are reported); a session that ended
//! before a revoke's proof shown after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use mooring_host::Tree;
use mooring_model::{Counters, ExportReport, ExportSpec, FcPort, Initiator, Iqn, SessionReport, VolumeId};
use mooring_targets::fc::{FcLive, Place};
use mooring_targets::{Error, Live, count_commands, count_sessions, read_live};
use tokio::time::Instant;

use super::callers::Recent;
use crate::clock;
use crate::engine::cell::{Cell, State};
use crate::engine::counts::is_logged_in;
use crate::engine::export::fabrics::Wanteds;
use crate::engine::{Change, Engine, is_spec, lock};
use crate::object::seen::Seen;
use crate::workers::LOST_AFTER;

/// Grants that are looked at in a second. A volume with more grants is looked at as a whole.
const GRANTS_PER_SECOND: usize = 64;

/// Grants that are looked at in a second before their turn.
const SOON_PER_SECOND: usize = 256;

/// Volumes that are taken from the map at once, to find those to look at.
const ASKED_AT_ONCE: usize = 64;

/// Number of looks at a volume until a full one, even if nothing has moved: a full look sees
/// changes that quick looks miss.
const FULL_EVERY: u32 = 32;

/// Sessions and counters of a volume, as the last look read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lives {
    /// Time of that look.
    at: Option<SystemTime>,
    /// Over iSCSI, by initiator.
    pub(in crate::engine) iscsi: BTreeMap<String, Live>,
    /// Over each Fibre Channel port.
    pub(in crate::engine) fc: BTreeMap<FcPort, BTreeMap<Place, FcLive>>,
    /// Sessions that the target has beside the listed ones. `None` if they were not counted.
    unlisted: Option<u32>,
    /// The last full look: while nothing changes, the pulse's next look may be a quick one. `None`
    /// if the next one has to be full.
    full: Option<Full>,
}

/// A full look of the pulse.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// Time at which the look began.
    at: Instant,
    /// Commands that had come for the volume by then.
    commands: u64,
    /// Number of quick looks after it.
    quick: u32,
}

/// The progress of the pulse.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pulse {
    /// The last volume that was looked at in its turn.
    last: Option<VolumeId>,
    /// Time at which the looks at work began.
    at_work: Option<Instant>,
    /// Connections that have come and gone.
    pub(super) recent: Recent,
    /// Beats since the start.
    beats: u64,
}

/// Adds to `seen` when the counters moved last, as far as looks have watched them.
fn active(now: SystemTime, before: Option<Counters>, seen: Counters) -> Counters {
    let active = match before {
        Some(before) if before.commands != seen.commands => Some(now),
        Some(before) => before.active,
        None => None,
    };
    Counters { active, ..seen }
}

/// Says whether two reports are of one session, whatever it does.
fn is_same(one: &SessionReport, other: &SessionReport) -> bool {
    (one.id, &one.isid) == (other.id, &other.isid)
}

fn is_as_before(before: &[SessionReport], seen: &[SessionReport]) -> bool {
    before.len() == seen.len()
        && before.iter().zip(seen).all(|(before, seen)| {
            is_same(before, seen) && before.state == seen.state && before.addresses == seen.addresses
        })
}

impl Lives {
    /// Adds to the read values what only earlier looks can show: since when a session stands, and
    /// when the counters moved last.
    fn new(
        now: SystemTime,
        before: Option<&Self>,
        mut iscsi: BTreeMap<String, Live>,
        mut fc: BTreeMap<FcPort, BTreeMap<Place, FcLive>>,
    ) -> Self {
        for (initiator, live) in &mut iscsi {
            let known = before.and_then(|before| before.iscsi.get(initiator));
            live.counters = active(now, known.map(|known| known.counters), live.counters);
            for session in &mut live.sessions {
                let known = known.and_then(|known| known.sessions.iter().find(|it| is_same(it, session)));
                session.since = known.map_or(Some(now), |known| known.since);
            }
        }
        for (port, lives) in &mut fc {
            for (place, live) in lives {
                let known = before.and_then(|before| before.fc.get(port)?.get(place));
                live.counters = active(now, known.map(|known| known.counters), live.counters);
            }
        }
        Self { at: Some(now), iscsi, fc, unlisted: None, full: None }
    }

    /// The last full look, and the time until which nothing but the number of commands can have
    /// changed. `None` if a full look is due.
    fn quiet(&self, recent: &Recent) -> Option<(Full, SystemTime)> {
        // Commands in flight end without a new command.
        let moves = |session: &SessionReport| session.in_flight > 0 || !is_logged_in(session);
        let full = self.full.filter(|full| full.quick < FULL_EVERY && !self.all_sessions().any(moves))?;
        Some((full, recent.stands(full.at)?))
    }

    /// Commands that had come for the volume at the last look of the pulse. `None` if that is
    /// unknown.
    pub(in crate::engine) fn commands(&self) -> Option<u64> {
        self.full.map(|full| full.commands)
    }

    /// Says whether somebody has logged in or out since `before`.
    fn differs(&self, before: &Self) -> bool {
        let logins = |lives: &Self| -> Vec<_> {
            let ports = lives.fc.iter();
            let of_port = |(port, lives): (&FcPort, &BTreeMap<Place, FcLive>)| {
                let there = lives.iter().filter(|(_, live)| live.logged_in);
                there.map(|(place, _)| (*port, *place)).collect::<Vec<_>>()
            };
            ports.flat_map(of_port).collect()
        };
        let mut initiators = self.iscsi.keys().chain(before.iscsi.keys());
        initiators.any(|initiator| !is_as_before(before.sessions(initiator), self.sessions(initiator)))
            || self.unlisted.is_some_and(|unlisted| unlisted != before.unlisted.unwrap_or_default())
            || logins(self) != logins(before)
    }

    /// Number of sessions shown, without those of some initiators.
    pub(in crate::engine) fn count_without(&self, is_one: impl Fn(&Initiator) -> bool) -> usize {
        let other = |name: &str| name.parse::<Iqn>().is_ok_and(|iqn| !is_one(&iqn.into()));
        self.iscsi.iter().filter(|(name, _)| other(name)).map(|(_, live)| live.sessions.len()).sum()
    }

    pub(in crate::engine) fn all_sessions(&self) -> impl Iterator<Item = &SessionReport> {
        self.iscsi.values().flat_map(|live| &live.sessions)
    }

    pub(in crate::engine) fn sessions(&self, initiator: &str) -> &[SessionReport] {
        self.iscsi.get(initiator).map_or(&[], |live| &live.sessions)
    }

    /// Fills the sessions and counters of a report's grants in.
    pub(in crate::engine) fn fill(&self, report: &mut ExportReport) {
        (report.looked, report.unlisted_sessions) = (self.at, self.unlisted);
        for grant in &mut report.grants {
            let live = self.iscsi.get(grant.initiator.as_str()).cloned().unwrap_or_default();
            (grant.sessions, grant.counters) = (live.sessions, live.counters);
        }
        for port in &mut report.fc {
            let Some(lives) = self.fc.get(&port.port) else { continue };
            for grant in &mut port.grants {
                let is = |place: &Place| place.initiator == grant.initiator && place.lun == grant.lun;
                let Some((_, live)) = lives.iter().find(|(place, _)| is(place)) else { continue };
                (grant.logged_in, grant.counters) = (live.logged_in, live.counters);
            }
        }
    }

    /// Forgets a nexus that was taken away: its counters are not the next one's.
    pub(in crate::engine) fn forget(&mut self, initiator: &Initiator) {
        self.unlisted = None;
        match initiator {
            Initiator::Iscsi(iqn) => drop(self.iscsi.remove(iqn.as_str())),
            Initiator::Fc(wwpn) => {
                for lives in self.fc.values_mut() {
                    lives.retain(|place, _| place.initiator != *wwpn);
                }
            }
        }
    }
}

/// The spec of an export without a pass at work. A pass would leave another view than the look
/// expects.
fn spec_at_rest(state: &State) -> Option<&ExportSpec> {
    state.export_spec().filter(|_| !state.turn.is_running())
}

/// The spec of an export at rest in which no Fibre Channel port has a part.
fn over_ip_alone(state: &State) -> Option<&ExportSpec> {
    spec_at_rest(state).filter(|spec| spec.fc.grants.is_empty())
}

impl Engine {
    /// Looks at the volumes whose turn it is, on a thread that can be lost. Skipped while the last
    /// looks are at work.
    pub(in crate::engine) fn beat(&self) {
        let (began, beat) = {
            let mut pulse = lock(&self.shared.look_memory.pulse);
            if pulse.at_work.is_some_and(|began| began.elapsed() < LOST_AFTER) {
                return;
            }
            pulse.beats += 1;
            (*pulse.at_work.insert(clock::instant()), pulse.beats)
        };
        let engine = self.clone();
        self.submit(move || {
            // First: a silent device must be known before the host that hangs on it comes again.
            engine.listen();
            engine.follow_callers();
            engine.look_for_holders(beat);
            for cell in engine.turn() {
                engine.feel(&cell);
            }
            let mut pulse = lock(&engine.shared.look_memory.pulse);
            if pulse.at_work == Some(began) {
                pulse.at_work = None;
            }
        });
    }

    /// The next volumes: those that connections may concern, and those whose turn it is.
    fn turn(&self) -> Vec<Arc<Cell>> {
        let mut pulse = lock(&self.shared.look_memory.pulse);
        let Pulse { last, recent, .. } = &mut *pulse;
        let now = clock::instant();
        let mut turn = Vec::new();
        if recent.may_concern(now) {
            (turn, recent.last) = self.some(recent.last, SOON_PER_SECOND, |state| {
                let spec = spec_at_rest(state)?;
                recent.concerns(now, spec, state.knowledge.lives()).then_some(spec.grants.len())
            });
            recent.busy = !turn.is_empty();
        }
        let soon: BTreeSet<_> = turn.iter().map(|cell| cell.id).collect();
        let (usual, last_usual) = self.some(*last, GRANTS_PER_SECOND, |state| {
            spec_at_rest(state).map(|spec| spec.grants.len() + spec.fc.grants.len())
        });
        *last = last_usual;
        turn.extend(usual.into_iter().filter(|cell| !soon.contains(&cell.id)));
        turn
    }

    /// The next volumes in the order of their ids behind `last`, and round, until they have
    /// `enough` grants; and the last volume that was asked. `of` counts a volume's grants; `None`
    /// skips it.
    fn some(
        &self,
        mut last: Option<VolumeId>,
        enough: usize,
        of: impl Fn(&State) -> Option<usize>,
    ) -> (Vec<Arc<Cell>>, Option<VolumeId>) {
        let (mut some, mut grants) = (Vec::new(), 0);
        let mut left = self.count();
        while left > 0 {
            let next = self.cells_behind(last, left.min(ASKED_AT_ONCE));
            if next.is_empty() {
                break;
            }
            for cell in next {
                if grants >= enough {
                    return (some, last);
                }
                (left, last) = (left - 1, Some(cell.id));
                let of = of(&cell.state()).unwrap_or_default();
                if of > 0 {
                    grants += of;
                    some.push(cell);
                }
            }
        }
        (some, last)
    }

    /// Looks at one volume, and reports a login or logout.
    pub(in crate::engine) fn feel(&self, cell: &Arc<Cell>) {
        // As a rule nothing is read.
        if self.is_as_seen(cell, None) {
            return;
        }
        let began = clock::instant();
        {
            let mut state = cell.state();
            // If a call does not return, a second one would be lost, too, with its thread.
            if state.turn.is_running()
                || state.is_blocked()
                || state.calls.is_in_pulse()
                || !is_spec(state.export())
            {
                return;
            }
            state.calls.begin_pulse(began);
        }
        let _feeling = Feeling { cell };
        if let Err(error) = self.glance(cell, began) {
            // The next pass reports the problem.
            tracing::debug!(volume = %cell.id, %error, "cannot look at the sessions");
        }
    }

    /// Makes one look of the pulse: a quick one if that is enough.
    fn glance(&self, cell: &Cell, began: Instant) -> Result<(), Error> {
        let names = over_ip_alone(&cell.state())
            .map(|spec| spec.identity.names(cell.id, &self.shared.config.iqn_prefix));
        // Read first: a command during the full look then counts as new.
        let commands = match names {
            Some(names) => count_commands(&*self.shared.machine.target, &names)?,
            None => None,
        };
        if commands.is_some() && self.is_as_seen(cell, commands) {
            return Ok(());
        }
        let (volume, export) = cell.state().specs();
        let Some(wanted) = self.wanted_export(cell, volume.as_ref(), export.as_ref()) else { return Ok(()) };
        let full = commands.map(|commands| Full { at: began, commands, quick: 0 });
        self.look_in_full(cell, &wanted, full).map(drop)
    }

    /// Says whether everything is as the last full look saw it, now that `commands` have come, and
    /// notes that. Without a login no command can have come, and `commands` may be `None`.
    fn is_as_seen(&self, cell: &Cell, commands: Option<u64>) -> bool {
        let pulse = lock(&self.shared.look_memory.pulse);
        let mut state = cell.state();
        let fits = state.is_export_still() && over_ip_alone(&state).is_some();
        let Some(lives) = state.knowledge.lives_mut().filter(|lives| fits && lives.fc.is_empty()) else {
            return false;
        };
        let Some((full, until)) = lives.quiet(&pulse.recent) else { return false };
        let nobody = || lives.all_sessions().next().is_none();
        if !commands.map_or_else(nobody, |commands| commands == full.commands) {
            return false;
        }
        // Connections that have come since are not known yet.
        lives.at = lives.at.max(Some(until));
        lives.full = Some(Full { quick: full.quick + 1, ..full });
        true
    }

    /// Reads the sessions and counters of a volume, and reports a login or logout.
    pub(in crate::engine) fn read_lives(&self, cell: &Cell, wanted: &Wanteds) -> Result<Lives, Error> {
        self.look_in_full(cell, wanted, None)
    }

    fn look_in_full(&self, cell: &Cell, wanted: &Wanteds, full: Option<Full>) -> Result<Lives, Error> {
        let (before, began, passes, quiet) = {
            let mut state = cell.state();
            let began = state.knowledge.begin_look();
            (state.knowledge.lives().cloned(), began, state.turn.passes(), state.is_export_still())
        };
        let tree = &*self.shared.machine.target;
        let none = BTreeMap::new();
        let iscsi = read_live(tree, &wanted.iscsi, before.as_ref().map_or(&none, |before| &before.iscsi))?;
        // Not beside a pass: the kernel may still count sessions that the pass takes away.
        let unlisted = if quiet { count_unlisted(tree, wanted, &iscsi)? } else { None };
        let fc = wanted.fc_live(tree, before.as_ref().map(|before| &before.fc))?;
        let now = self.shared.machine.clock.now();
        let lives = Lives { unlisted, full, ..Lives::new(now, before.as_ref(), iscsi, fc) };
        let news = {
            let mut state = cell.state();
            // A pass beside the look may have taken away what the look saw.
            if !quiet || state.turn.passes() != passes {
                return Ok(lives);
            }
            // After the first look every device is listened to: a session whose connection has
            // ended is not listed, but a login may wait for it.
            if before.is_none() || lives.all_sessions().next().is_some() {
                self.listen_to(cell.id);
            }
            // So may the end of a nexus, and a look beside this one may have begun later.
            if !state.knowledge.learn_lives(Seen::new(began, lives.clone())) {
                return Ok(lives);
            }
            let news = lives.differs(&before.unwrap_or_default());
            news.then(|| state.export_report()).flatten()
        };
        if let Some(report) = news {
            self.publish(Change::Export(report.into()));
        }
        Ok(lives)
    }
}

/// Number of sessions that the target has and no grant shows. If no grant shows one there is none:
/// the kernel shows the newest of each initiator.
fn count_unlisted(
    tree: &dyn Tree,
    wanted: &Wanteds,
    shown: &BTreeMap<String, Live>,
) -> Result<Option<u32>, Error> {
    let shown: usize = shown.values().map(|live| live.sessions.len()).sum();
    if shown == 0 {
        return Ok(Some(0));
    }
    let all = count_sessions(tree, wanted.iscsi.names())?;
    Ok(all.map(|all| all.saturating_sub(u32::try_from(shown).unwrap_or(u32::MAX))))
}

/// Marks a look of the pulse as ended, however it ends.
struct Feeling<'a> {
    cell: &'a Cell,
}

impl Drop for Feeling<'_> {
    fn drop(&mut self) {
        self.cell.state().calls.end_pulse();
    }
}

#[cfg(test)]
mod tests;

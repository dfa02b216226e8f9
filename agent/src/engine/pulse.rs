//! The pulse: sessions and counters, read at a bounded pace. A login is the initiator's act and the kernel tells nobody, so
//! somebody has to look; what is reported otherwise is what the last look saw.
//!
//! The pace: each second so many grants as [`GRANTS_PER_SECOND`], one volume after another, whatever their number. An idle
//! grant is 2 reads (`mooring_targets::read_live`), so the pulse costs at most 256 reads a second, and a look at all of 1,000
//! volumes with two hosts each takes half a minute; up to 64 grants each is looked at every second. Whoever asks for one
//! volume has it looked at then.
//!
//! What must never happen here: a look that waits where another call of its volume hangs; a report for every look (only a
//! change of who is logged in is told unasked); a session that ended before a revoke's proof shown after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use mooring_model::{Counters, ExportReport, FcPort, Initiator, Iqn, SessionReport, VolumeId};
use mooring_targets::fc::{FcLive, Place};
use mooring_targets::{Error, Live, read_live};
use tokio::time::Instant;

use super::cell::Cell;
use super::fabrics::Wanteds;
use super::{Change, Engine, is_spec, lock};
use crate::workers::LOST_AFTER;

/// Grants that are looked at in a second. A volume with more is looked at as a whole.
const GRANTS_PER_SECOND: usize = 64;

/// What was live of a volume at the last look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lives {
    /// When that was.
    at: Option<SystemTime>,
    /// Over iSCSI, by initiator.
    pub(super) iscsi: BTreeMap<String, Live>,
    /// Over each Fibre Channel port.
    pub(super) fc: BTreeMap<FcPort, BTreeMap<Place, FcLive>>,
}

/// Where the pulse stands.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The volume that was looked at last.
    last: Option<VolumeId>,
    /// When the looks at work began.
    at_work: Option<Instant>,
}

/// When it was done last, as far as it was watched: `seen` beside what was known before.
fn active(now: SystemTime, before: Option<Counters>, seen: Counters) -> Counters {
    let active = match before {
        Some(before) if before.commands != seen.commands => Some(now),
        Some(before) => before.active,
        None => None,
    };
    Counters { active, ..seen }
}

/// The very same session, whatever it does.
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
    /// What was seen now, with what only who has looked before can say: since when, and when something was done last.
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
        Self { at: Some(now), iscsi, fc }
    }

    /// Whether somebody has logged in or out since.
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
            || logins(self) != logins(before)
    }

    /// How many sessions were shown, but of those initiators.
    pub(super) fn count_without(&self, is_one: impl Fn(&Initiator) -> bool) -> usize {
        let other = |name: &str| name.parse::<Iqn>().is_ok_and(|iqn| !is_one(&iqn.into()));
        self.iscsi.iter().filter(|(name, _)| other(name)).map(|(_, live)| live.sessions.len()).sum()
    }

    fn sessions(&self, initiator: &str) -> &[SessionReport] {
        self.iscsi.get(initiator).map_or(&[], |live| &live.sessions)
    }

    /// What is said of a report's grants.
    pub(super) fn fill(&self, report: &mut ExportReport) {
        report.looked = self.at;
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

    /// A nexus has been taken away: what it did is not said of the next one.
    pub(super) fn forget(&mut self, initiator: &Initiator) {
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

impl Engine {
    /// Looks at the volumes whose turn it is, on a thread that can be lost; not while the last looks are at work.
    pub(super) fn beat(&self) {
        let began = {
            let mut pulse = lock(&self.shared.pulse);
            if pulse.at_work.is_some_and(|began| began.elapsed() < LOST_AFTER) {
                return;
            }
            *pulse.at_work.insert(Instant::now())
        };
        let turn = self.turn();
        let engine = self.clone();
        self.submit(move || {
            for cell in turn {
                engine.feel(&cell);
            }
            let mut pulse = lock(&engine.shared.pulse);
            if pulse.at_work == Some(began) {
                pulse.at_work = None;
            }
        });
    }

    /// The next volumes, in the order of their ids, from the one that was looked at last.
    fn turn(&self) -> Vec<Arc<Cell>> {
        let mut cells = self.cells();
        let mut pulse = lock(&self.shared.pulse);
        let next = pulse.last.map_or(0, |last| cells.partition_point(|cell| cell.id <= last));
        cells.rotate_left(next);
        let (mut turn, mut grants) = (Vec::new(), 0);
        for cell in cells {
            if grants >= GRANTS_PER_SECOND {
                break;
            }
            pulse.last = Some(cell.id);
            let of = {
                let state = cell.state();
                // Whoever is at work there leaves another view than the one that would be looked at.
                let spec = state.export.as_ref().and_then(super::Wish::spec).filter(|_| !state.running);
                spec.map_or(0, |spec| spec.grants.len() + spec.fc.grants.len())
            };
            if of > 0 {
                grants += of;
                turn.push(cell);
            }
        }
        turn
    }

    /// Looks at one volume, and tells whoever watches if somebody has logged in or out.
    fn feel(&self, cell: &Arc<Cell>) {
        let began = Instant::now();
        let (volume, export) = {
            let mut state = cell.state();
            // Where a call does not return, another would be lost, too, with its thread.
            if state.running || state.is_blocked() || state.felt.is_some() || !is_spec(state.export.as_ref())
            {
                return;
            }
            state.felt = Some(began);
            (state.volume.clone(), state.export.clone())
        };
        let _feeling = Feeling { cell };
        let Some(wanted) = self.wanted_export(cell, volume.as_ref(), export.as_ref()) else { return };
        if let Err(error) = self.read_lives(cell, &wanted) {
            // The next pass says what is wrong there.
            tracing::debug!(volume = %cell.id, %error, "cannot look at the sessions");
        }
    }

    /// What is live of a volume now. Whoever watches is told if somebody has logged in or out.
    pub(super) fn read_lives(&self, cell: &Cell, wanted: &Wanteds) -> Result<Lives, Error> {
        let (before, passes, quiet) = {
            let state = cell.state();
            (state.lives.clone(), state.passes, state.is_export_still())
        };
        let tree = &*self.shared.machine.target;
        let none = BTreeMap::new();
        let iscsi = read_live(tree, &wanted.iscsi, before.as_ref().map_or(&none, |before| &before.iscsi))?;
        let fc = wanted.fc_live(tree, before.as_ref().map(|before| &before.fc))?;
        let lives = Lives::new(self.shared.machine.clock.now(), before.as_ref(), iscsi, fc);
        let news = {
            let mut state = cell.state();
            // A pass beside it may have taken away what was seen.
            if !quiet || state.passes != passes {
                return Ok(lives);
            }
            state.lives = Some(lives.clone());
            let news = lives.differs(&before.unwrap_or_default());
            news.then(|| state.export_report()).flatten()
        };
        if let Some(report) = news {
            self.publish(Change::Export(report.into()));
        }
        Ok(lives)
    }
}

/// Marks a look of the pulse, however it ends.
struct Feeling<'a> {
    cell: &'a Cell,
}

impl Drop for Feeling<'_> {
    fn drop(&mut self) {
        self.cell.state().felt = None;
    }
}

#[cfg(test)]
mod tests;

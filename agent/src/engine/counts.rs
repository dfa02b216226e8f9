//! Counts of what the engine knows, for metrics: they are read every few seconds.
//!
//! What must never happen here: a look at the kernel, a call of LVM, or a read of the store. The
//! counts come from what passes and the pulse have left in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use mooring_model::{
    ByteSize, Counters, ExportReport, Initiator, Mode, Phase, Proof, SessionReport, VolumeId,
};

use super::cell::{Cell, State};
use super::receipts::OpenReceipt;
use super::{Engine, is_spec};
use crate::standing::Standing;

/// The kernel's name for the state of a session that is logged in.
pub(super) const LOGGED_IN: &str = "LOGGED_IN";

/// Counters of what was done since the agent's start.
#[derive(Debug, Default)]
pub(super) struct Done {
    passes: AtomicU64,
    proven: AtomicU64,
}

impl Done {
    pub(super) fn pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn proof(&self) {
        self.proven.fetch_add(1, Ordering::Relaxed);
    }
}

/// All counts at one moment.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) volumes: Vec<VolumeCounts>,
    /// Passes since the agent was started.
    pub(crate) passes: u64,
    /// Receipts that were proven since the agent was started.
    pub(crate) proven: u64,
    /// Receipts whose draining call has not returned.
    pub(crate) unproven: u64,
    /// Volumes that take no new writer because of an unproven receipt.
    pub(crate) quarantined: u64,
    /// Kernel calls that have not returned for too long.
    pub(crate) stuck: u64,
    /// Exports whose folders are watched.
    pub(crate) watched: u64,
    /// Volumes whose device does not answer: the agent withholds their portals.
    pub(crate) silent: u64,
    /// Portals whose login thread does not answer.
    pub(crate) blocked_portals: u64,
    /// TCP connections to the portals. `None` if they are unknown.
    pub(crate) callers: Option<u64>,
    /// Volumes that are isolated, or are about to be: every command ends with an error.
    pub(crate) isolated: u64,
}

/// The counts of one volume.
#[derive(Debug)]
pub(crate) struct VolumeCounts {
    pub(crate) id: VolumeId,
    pub(crate) phase: Phase,
    pub(crate) size: ByteSize,
    pub(crate) export: Option<ExportCounts>,
}

/// The counts of one export.
#[derive(Debug)]
pub(crate) struct ExportCounts {
    pub(crate) in_force: bool,
    /// Time at which the sessions and counters were read. `None` if they are unknown.
    pub(crate) looked: Option<SystemTime>,
    pub(crate) nexuses: Vec<NexusCounts>,
}

/// The counts of one grant. A grant over Fibre Channel is one for all ports.
#[derive(Debug, PartialEq)]
pub(crate) struct NexusCounts {
    pub(crate) initiator: Initiator,
    /// The mode that the spec grants.
    pub(crate) mode: Mode,
    /// `true` if the kernel enforces that mode.
    pub(crate) in_force: bool,
    /// Sessions that are logged in. Over Fibre Channel: ports at which the initiator is logged in.
    pub(crate) sessions: u64,
    /// Commands without an answer yet. `None` over Fibre Channel: the kernel does not show them.
    pub(crate) in_flight: Option<u64>,
    pub(crate) counters: Counters,
}

pub(super) fn is_logged_in(session: &SessionReport) -> bool {
    session.state == LOGGED_IN
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn nexuses(report: &ExportReport) -> Vec<NexusCounts> {
    let mut all: Vec<_> = report
        .grants
        .iter()
        .map(|grant| NexusCounts {
            initiator: grant.initiator.clone().into(),
            mode: grant.wanted,
            in_force: grant.seen == Some(grant.wanted),
            sessions: count(grant.sessions.iter().filter(|session| is_logged_in(session)).count()),
            in_flight: Some(grant.sessions.iter().map(|session| u64::from(session.in_flight)).sum()),
            counters: grant.counters,
        })
        .collect();
    let mut over_fc = BTreeMap::new();
    for grant in report.fc.iter().flat_map(|port| &port.grants) {
        let of = over_fc.entry(grant.initiator).or_insert_with(|| NexusCounts {
            initiator: grant.initiator.into(),
            mode: grant.wanted,
            in_force: true,
            sessions: 0,
            in_flight: None,
            counters: Counters::default(),
        });
        of.in_force &= grant.seen == Some(grant.wanted);
        of.sessions += u64::from(grant.logged_in);
        of.counters.commands += grant.counters.commands;
        of.counters.read_mib += grant.counters.read_mib;
        of.counters.written_mib += grant.counters.written_mib;
        of.counters.active = of.counters.active.max(grant.counters.active);
    }
    all.extend(over_fc.into_values());
    all
}

impl State {
    /// The counts of a volume's export. `None` if there is no spec of one, and nothing of it is
    /// left.
    fn export_counts(&self) -> Option<ExportCounts> {
        let shown = is_spec(self.export()) || (self.export().is_some() && !self.is_export_done());
        let report = self.export_report().filter(|_| shown);
        match report {
            Some(report) => Some(ExportCounts {
                in_force: report.in_force,
                looked: report.looked,
                nexuses: nexuses(&report),
            }),
            // The first pass over the export has not ended.
            None => shown.then(|| ExportCounts { in_force: false, looked: None, nexuses: Vec::new() }),
        }
    }
}

impl Engine {
    /// A receipt because of which a volume takes no new writer: commands of the revoked nexus may
    /// still land. `None` if there is none. A drain takes a moment: it counts only after the
    /// deadline of an answer.
    pub(super) fn quarantine<'a>(&self, state: &'a State) -> Option<&'a OpenReceipt> {
        // Almost always no receipt is open.
        if state.established.receipts().open().is_empty() {
            return None;
        }
        let now = self.shared.machine.clock.instant();
        let limit = Duration::from_millis(u64::from(self.shared.config.answer_deadline_ms));
        // By the monotonic clock: a wall clock that was set back would end every quarantine. A
        // receipt from before the start has had its time.
        let overdue = |open: &&OpenReceipt| {
            open.began.is_none_or(|began| now.saturating_duration_since(began) >= limit)
        };
        let unproven = |open: &&OpenReceipt| matches!(open.receipt.proof, Proof::Unproven { .. });
        state.established.receipts().open().iter().filter(unproven).find(overdue)
    }

    fn count_cell(&self, cell: &Cell, counts: &mut Counts) {
        let state = cell.state();
        let unproven = |open: &&OpenReceipt| matches!(open.receipt.proof, Proof::Unproven { .. });
        counts.unproven += count(state.established.receipts().open().iter().filter(unproven).count());
        counts.quarantined += u64::from(self.quarantine(&state).is_some());
        counts.stuck += u64::from(state.stuck().is_some());
        counts.watched += u64::from(state.knowledge.is_unchanged());
        counts.silent += u64::from(state.silence.since().is_some());
        counts.isolated += u64::from(state.may_be_isolated());
        if state.is_unknown() {
            return;
        }
        let (volume, export) = (state.volume_report(cell.id), state.export_counts());
        if volume.phase != Phase::Gone || export.is_some() {
            counts.volumes.push(VolumeCounts { id: cell.id, phase: volume.phase, size: volume.size, export });
        }
    }

    /// Adds the numbers of exports and volumes to the status line.
    pub(crate) fn count_standing(&self, standing: &mut Standing) {
        standing.restored = self.restored();
        for cell in self.cells() {
            let state = cell.state();
            if is_spec(state.export()) {
                let made = state.export_end().report.as_ref().is_some_and(|report| report.in_force);
                standing.exports += 1;
                standing.waiting += usize::from(!(made && state.is_export_current()));
            }
            let of_volume = state.volume_end().report.as_ref().map_or(0, |report| report.problems.len());
            let of_export = state.export_end().report.as_ref().map_or(0, |report| report.problems.len());
            let of_call = usize::from(state.stuck().is_some()) + usize::from(state.store_failed().is_some());
            standing.problems += of_volume + of_export + of_call;
        }
    }

    /// Counts everything, as far as it is known by now.
    pub(crate) fn counts(&self) -> Counts {
        let done = self.shared.reports.done();
        let mut counts = Counts {
            passes: done.passes.load(Ordering::Relaxed),
            proven: done.proven.load(Ordering::Relaxed),
            callers: self.callers().map(count),
            blocked_portals: count(self.blocked_portals().len()),
            ..Counts::default()
        };
        for cell in self.cells() {
            self.count_cell(&cell, &mut counts);
        }
        counts
    }
}

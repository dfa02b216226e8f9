//! The enrolled agents: how they are reached, and what they reported last.
//!
//! Reports of an agent are kept in memory only; its identity, its capabilities and the time when it
//! was last heard are in the store, too. The controller asks for all of it again after every
//! connect. An agent that is down holds up nothing but its own volumes.
//!
//! What must never happen here: a decision; a report of one agent taken for another's; a call
//! without a deadline.

mod beyond;
pub(crate) mod calls;
pub(crate) mod dial;
pub(crate) mod exports;
pub(crate) mod heard;
pub(crate) mod lease;
pub(crate) mod listener;
mod registry;
mod roll;
mod seen;
pub(crate) mod task;
pub(crate) mod words;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use mooring_api::{Channel, v1};
use mooring_model::{
    AgentId, ConnectionPhase, ConnectionReport, ExportReport, Generation, Initiator, Iqn, Receipt, Stamp,
    VolumeId, VolumeReport, Wwpn,
};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::domain::AgentEntry;
use crate::domain::Transport;
use crate::rules::transport::Served;
use crate::schedule::capabilities;
use crate::store::AgentRow;
use crate::store::leases::Said;
use exports::Exports;
use lease::Hold;
pub(crate) use registry::{Agents, Held};
use roll::Roll;
pub(crate) use seen::{Heard, Kept, SeenVolume, fc_grants, fc_logged_in, has_session, logged_in};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last known state of one connection, by its host's agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenConnection {
    /// The stamp of the connection spec that the agent stores. `None`: it stores none, as far as is
    /// known.
    pub(crate) stamp: Option<Stamp>,
    /// The connection's last report.
    pub(crate) report: Option<ConnectionReport>,
    /// The time at which the spec was last sent.
    pub(crate) put_at: Option<Instant>,
    /// Number of newer specs that its host got because its target had shut it out, since the
    /// connection was last ready.
    pub(crate) told_anew: u32,
}

/// The present knowledge of one agent.
#[derive(Debug, Default)]
pub(crate) struct AgentState {
    /// The agent's id: from its hello, or before that from the store.
    id: Option<AgentId>,
    /// The initiator name of its host. `None`: it attaches no volumes, or its roles do not cover
    /// that.
    initiator: Option<Iqn>,
    /// `true`: the agent has reported an initiator name, whether its roles cover that or not.
    attaches: bool,
    /// Capabilities, as last reported.
    pub(crate) capabilities: Option<v1::Capabilities>,
    /// The time at which the agent was asked for the capabilities that it answered with.
    pub(crate) asked_at: Option<SystemTime>,
    /// The time at which its pools were as `capabilities` shows them.
    pub(crate) pools_seen: Option<SystemTime>,
    /// The time since which the agent, although up, does not answer when asked for its
    /// capabilities.
    pub(crate) capabilities_silent: Option<SystemTime>,
    /// The channel for calls. `None`: the agent is down, or another controller drives it.
    pub(crate) channel: Option<Channel>,
    /// The reason why it is not up.
    pub(crate) why_down: Option<String>,
    /// The time of its last report.
    pub(crate) last_report: Option<SystemTime>,
    /// `true`: the agent has listed its volumes since this controller was started, to this
    /// controller, or to the one that drives it.
    listed: bool,
    /// Last known state of each of its volumes.
    volumes: HashMap<VolumeId, Arc<Kept>>,
    /// Last known state of each of its connections.
    pub(crate) connections: HashMap<VolumeId, SeenConnection>,
    /// Objects that it has and this database does not know.
    pub(crate) orphans: BTreeMap<String, String>,
    /// Number of statements about objects that are not its own, by kind.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
}

/// Largest number of volumes that are remembered for one agent. Reports about more are not
/// remembered.
const VOLUMES_MAX: usize = 1 << 18;

/// An enrolled agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Entry, from the configuration or from its enrolment.
    pub(crate) entry: AgentEntry,
    /// Place in the registry: agents that joined later have higher ones.
    place: usize,
    roll: Arc<Mutex<Roll>>,
    state: Mutex<AgentState>,
    /// The controller that drives it.
    hold: Mutex<Hold>,
    /// The channel for questions while another controller drives it.
    borrowed: tokio::sync::Mutex<Option<calls::Borrowed>>,
    /// The task that follows it, or the last one that did.
    drive: Mutex<Option<AbortHandle>>,
}

impl Agent {
    /// Locks and returns what is known of it.
    pub(crate) fn state(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.state)
    }

    /// Returns its id. `None`: it never said hello.
    pub(crate) fn id(&self) -> Option<AgentId> {
        self.state().id
    }

    /// Returns the initiator name of its host. `None`: it attaches no volumes.
    pub(crate) fn initiator(&self) -> Option<Iqn> {
        self.state().initiator.clone()
    }

    /// Takes the identity that it reports.
    pub(crate) fn is_known_as(&self, state: &mut AgentState, id: AgentId, initiator: Option<Iqn>) {
        let mut roll = lock(&self.roll);
        // Checked under the roll's lock: a removal from the registry takes it off the roll only
        // after this.
        if !matches!(*lock(&self.hold), Hold::Gone) {
            roll.ids.changed(self.place, state.id.as_ref(), Some(&id));
            roll.initiators.changed(self.place, state.initiator.as_ref(), initiator.as_ref());
        }
        drop(roll);
        state.id = Some(id);
        state.initiator = initiator;
    }

    /// Marks the agent as removed: no controller drives it, and no look-up finds it by what it
    /// reported.
    fn is_gone(&self, why: &str) {
        *lock(&self.hold) = Hold::Gone;
        if let Some(drive) = lock(&self.drive).take() {
            drive.abort();
        }
        self.leaves_the_roll();
        self.down(why.to_owned());
    }

    fn leaves_the_roll(&self) {
        let state = self.state();
        let mut roll = lock(&self.roll);
        roll.ids.changed(self.place, state.id.as_ref(), None);
        roll.initiators.changed(self.place, state.initiator.as_ref(), None);
    }

    /// Sets the task that follows it from now on. Aborts that task if the agent has left the
    /// registry meanwhile.
    pub(crate) fn is_driven_by(&self, drive: AbortHandle) {
        let mut driven = lock(&self.drive);
        if matches!(*lock(&self.hold), Hold::Gone) {
            drive.abort();
        } else {
            *driven = Some(drive);
        }
    }

    /// Returns its host's Fibre Channel ports that were online in the last report.
    pub(crate) fn fc_initiator_ports(&self) -> Vec<Wwpn> {
        let state = self.state();
        let ports = state.capabilities.as_ref().map_or(&[][..], |seen| &seen.fc_initiator_ports);
        ports.iter().filter_map(|port| port.parse().ok()).collect()
    }

    /// Returns `Some(true)` if an attachment of this host can turn off the page cache of its disk,
    /// by the agent's last report. `None`: no report yet.
    pub(crate) fn can_turn_cache_off(&self) -> Option<bool> {
        let state = self.state();
        state.capabilities.as_ref().map(|seen| seen.cache_off == Some(true))
    }

    /// Returns the transports that it reports. `None`: it has not named one yet.
    pub(crate) fn served(&self) -> Option<Served> {
        let state = self.state();
        let transports = &state.capabilities.as_ref()?.transports;
        if transports.is_empty() {
            return None;
        }
        let of = |ready: bool| {
            let wanted = transports.iter().filter(|one| one.ready || !ready);
            wanted.filter_map(|one| Transport::from_word(&one.protocol)).collect()
        };
        Some(Served { has: of(false), ready: of(true) })
    }

    /// Returns `false` if the agent is known to have no pools. `true` as long as that is unknown.
    pub(crate) fn is_storage(&self) -> bool {
        let state = self.state();
        state.capabilities.as_ref().is_none_or(|seen| seen.pools_unknown || !seen.pools.is_empty())
    }

    /// Returns `true` if it has listed its volumes since this controller was started.
    pub(crate) fn has_listed(&self) -> bool {
        self.state().listed
    }

    /// Returns the initiators that reach each of its volumes, by its last reports. `None`: it
    /// reports to another controller, or has not reported all of its exports.
    pub(crate) fn exports(&self) -> Option<Exports> {
        if matches!(self.hold(), Hold::Theirs(_)) {
            return None;
        }
        let state = self.state();
        let mut all = Exports::new();
        for (id, kept) in &state.volumes {
            match kept.export(*id) {
                Some(report) => drop(all.insert(*id, exports::reported(&report))),
                None if kept.export_stamp.is_some() => return None,
                None => {}
            }
        }
        state.listed.then_some(all)
    }

    /// Returns `true` if a host's discards reach the storage below this pool. `false` also if the
    /// agent has not reported that.
    pub(crate) fn discards(&self, pool: &str) -> bool {
        self.reported(pool, |pool| pool.discard) == Some(true)
    }

    /// Returns the reason why a pool takes nothing new, by the last report. `None` also if the
    /// agent has not reported that.
    pub(crate) fn closed(&self, pool: &str) -> Option<String> {
        self.reported(pool, capabilities::closed)
    }

    /// Returns the reasons why a pool has failed, by the last report. Empty if it has not, or if
    /// the agent does not report that.
    pub(crate) fn pool_faults(&self, pool: &str) -> Vec<String> {
        let text = |reason: &v1::HealthReason| {
            let why = reason.problem.as_ref().map_or("", |problem| problem.text.as_str());
            format!("{} pool {pool}: {}: {why}", self.entry.name, reason.code)
        };
        let failed = |pool: &v1::Pool| {
            let reasons = &pool.health.as_ref()?.reasons;
            let failed = reasons.iter().filter(|reason| reason.level() == v1::HealthLevel::Failed);
            Some(failed.map(text).collect())
        };
        self.reported(pool, failed).unwrap_or_default()
    }

    /// Reads a fact of a pool in the last report. `None` if no report has the pool or the fact.
    fn reported<T>(&self, pool: &str, fact: impl FnOnce(&v1::Pool) -> Option<T>) -> Option<T> {
        let state = self.state();
        state.capabilities.as_ref()?.pools.iter().find(|known| known.name == pool).and_then(fact)
    }

    /// Returns the controller that drives it.
    pub(crate) fn hold(&self) -> Hold {
        lock(&self.hold).clone()
    }

    /// Sets the controller that drives it from now on. `false`: the agent has left the registry,
    /// and no controller drives it.
    pub(crate) fn set_hold(&self, hold: Hold) -> bool {
        let mut known = lock(&self.hold);
        if matches!(*known, Hold::Gone) {
            return false;
        }
        *known = hold;
        true
    }

    /// Returns its state in the form that other controllers read.
    pub(crate) fn says(&self) -> Said {
        let state = self.state();
        let up = state.channel.is_some();
        Said { up, why: state.why_down.clone().filter(|_| !up), orphans: state.orphans.clone() }
    }

    /// Takes its state from another controller. Returns `true` if that was news.
    pub(crate) fn learn(&self, said: Said) -> bool {
        let news = match self.hold() {
            Hold::Theirs(known) => known != said,
            Hold::Always | Hold::Ours(..) | Hold::Gone => true,
        };
        {
            let mut state = self.state();
            state.why_down.clone_from(&said.why);
            state.orphans.clone_from(&said.orphans);
            state.listed |= said.up;
        }
        self.set_hold(Hold::Theirs(said));
        news
    }

    /// Takes what it reported to another controller, from the row that this one has stored. Returns
    /// `true` if that was news; a new time alone is none.
    pub(crate) fn take_row(&self, row: AgentRow) -> bool {
        let mut state = self.state();
        state.last_report = row.heard_at.max(row.reported_at);
        state.pools_seen = row.reported_at;
        let known = (state.id, &state.initiator, &state.capabilities);
        let news = known != (Some(row.id), &row.initiator, &row.capabilities);
        self.is_known_as(&mut state, row.id, row.initiator);
        state.capabilities = row.capabilities;
        news
    }

    /// Returns `true` if it answers and reports: to this controller, or to the one that drives it.
    pub(crate) fn is_up(&self) -> bool {
        match self.hold() {
            Hold::Theirs(said) => said.up,
            hold => hold.is_ours() && self.state().channel.is_some(),
        }
    }

    /// Returns the reason why it is not up, with its name.
    pub(crate) fn why_down(&self) -> String {
        let why = self.state().why_down.clone();
        format!("agent {} is down: {}", self.entry.name, why.as_deref().unwrap_or("it was not reached yet"))
    }

    fn of_volume<T>(&self, id: VolumeId, get: impl FnOnce(&Kept) -> Option<T>) -> Option<T> {
        self.state().volumes.get(&id).and_then(|kept| get(kept))
    }

    /// Returns `true` if the agent has listed this volume, or was sent its spec.
    pub(crate) fn knows_volume(&self, id: VolumeId) -> bool {
        self.state().volumes.contains_key(&id)
    }

    /// Returns `true` if the agent has listed this connection, or was sent its spec.
    pub(crate) fn knows_connection(&self, id: VolumeId) -> bool {
        self.state().connections.contains_key(&id)
    }

    /// Returns `true` if one more volume that the database does not know can be remembered.
    pub(crate) fn has_room(&self) -> bool {
        self.state().volumes.len() < VOLUMES_MAX
    }

    /// Returns the stamp of a volume's spec that it stores. `None`: it stores none, as far as is
    /// known.
    pub(crate) fn volume_stamp(&self, id: VolumeId) -> Option<Stamp> {
        self.of_volume(id, |kept| kept.volume_stamp.clone())
    }

    /// Returns the stamp of an export's spec that it stores. `None`: it stores none, as far as is
    /// known.
    pub(crate) fn export_stamp(&self, id: VolumeId) -> Option<Stamp> {
        self.of_volume(id, |kept| kept.export_stamp.clone())
    }

    /// Returns the last report of a volume. `None`: none is known.
    pub(crate) fn volume(&self, id: VolumeId) -> Option<VolumeReport> {
        self.of_volume(id, |kept| kept.volume(id))
    }

    /// Returns the last report of an export. `None`: none is known.
    pub(crate) fn export(&self, id: VolumeId) -> Option<ExportReport> {
        self.of_volume(id, |kept| kept.export(id))
    }

    /// Returns the time at which an export's spec was last sent.
    pub(crate) fn put_at(&self, id: VolumeId) -> Option<Instant> {
        self.of_volume(id, Kept::put_at)
    }

    /// Notes that it stores this spec of a volume now.
    pub(crate) fn took_volume(&self, id: VolumeId, stamp: Stamp) {
        Arc::make_mut(self.state().volumes.entry(id).or_default()).volume_stamp = Some(stamp);
    }

    /// Notes that it stores this spec of an export now. `proven`: all receipts of the spec came
    /// with the answer, proven.
    pub(crate) fn took_export(&self, id: VolumeId, stamp: Stamp, proven: bool) {
        let mut state = self.state();
        Arc::make_mut(state.volumes.entry(id).or_default()).took_export(stamp, proven);
    }

    /// Replaces all that is known of a volume. `None`: nothing is known any more.
    pub(crate) fn set_volume(&self, id: VolumeId, seen: Option<SeenVolume>) {
        let mut state = self.state();
        match seen {
            Some(seen) => drop(state.volumes.insert(id, Arc::new(Kept::new(seen)))),
            None => drop(state.volumes.remove(&id)),
        }
    }

    /// Replaces all that is known of its volumes, and the objects that this database does not know.
    pub(crate) fn set_volumes(&self, seen: BTreeMap<VolumeId, Arc<Kept>>, orphans: BTreeMap<String, String>) {
        let mut state = self.state();
        state.volumes = seen.into_iter().collect();
        state.orphans = orphans;
        state.listed = true;
    }

    /// Returns the last known state of a connection; an empty one if none is known.
    pub(crate) fn connection(&self, id: VolumeId) -> SeenConnection {
        self.state().connections.get(&id).cloned().unwrap_or_default()
    }

    /// Takes a report of an export. `true` if it says anything new.
    pub(crate) fn saw_export(&self, report: &ExportReport, heard: Heard) -> bool {
        Arc::make_mut(self.state().volumes.entry(report.volume).or_default()).see_export(report, heard)
    }

    /// Returns the volumes whose last report shows an initiator that could be logged in and is not.
    pub(crate) fn quiet_volumes(&self) -> Vec<VolumeId> {
        self.state().volumes.iter().filter(|(_, kept)| kept.quiet).map(|(id, _)| *id).collect()
    }

    /// Returns the time of an export's last report. `None` if there is none, or it is outdated.
    pub(crate) fn export_at(&self, id: VolumeId) -> Option<Instant> {
        self.of_volume(id, Kept::export_at)
    }

    /// Makes what is known of an export's sessions count as outdated until the agent has looked at
    /// them.
    pub(crate) fn outdate_export(&self, id: VolumeId) {
        if let Some(seen) = self.state().volumes.get_mut(&id) {
            Arc::make_mut(seen).outdate_export();
        }
    }

    /// Notes that the agent has looked at an export's sessions, asked at this moment.
    pub(crate) fn looked_at_export(&self, id: VolumeId, asked: Instant) {
        if let Some(seen) = self.state().volumes.get_mut(&id).filter(|seen| seen.is_renewed_by(asked)) {
            Arc::make_mut(seen).renew_export();
        }
    }

    /// Takes a receipt that came by itself. Its volume's job stores it and acts on it. `false`: the
    /// same receipt came with an answer already.
    pub(crate) fn saw_receipt(&self, receipt: Receipt) -> bool {
        Arc::make_mut(self.state().volumes.entry(receipt.volume).or_default()).see_receipt(receipt)
    }

    /// Returns a receipt of an initiator's nexus that is not stored yet, and not older than the
    /// spec that revokes it.
    pub(crate) fn receipt_since(
        &self,
        id: VolumeId,
        initiator: &Initiator,
        since: Generation,
    ) -> Option<Receipt> {
        self.of_volume(id, |kept| kept.receipt_since(initiator, since).cloned())
    }

    /// Takes out the receipts of a volume that are not stored yet: the caller must store them.
    pub(crate) fn take_receipts(&self, id: VolumeId) -> Vec<Receipt> {
        let mut state = self.state();
        state.volumes.get_mut(&id).map(|kept| Arc::make_mut(kept).take_receipts()).unwrap_or_default()
    }

    /// Takes a report of a connection, unless a newer one is known.
    pub(crate) fn saw_connection(&self, report: ConnectionReport) {
        let mut state = self.state();
        let seen = state.connections.entry(report.volume).or_default();
        if seen.report.as_ref().is_none_or(|kept| kept.generation <= report.generation) {
            if report.phase == ConnectionPhase::Ready {
                seen.told_anew = 0;
            }
            seen.report = Some(words::cleaned(report));
        }
    }

    /// Notes that its host got a newer spec of a connection because its target had shut it out.
    pub(crate) fn was_told_anew(&self, id: VolumeId) {
        if let Some(seen) = self.state().connections.get_mut(&id) {
            seen.told_anew = seen.told_anew.saturating_add(1);
        }
    }

    /// Takes a report of a volume. `false`: another report came after this one was asked for, and
    /// nothing shows which of the two is later.
    pub(crate) fn saw_volume(&self, report: &VolumeReport, heard: Heard) -> bool {
        Arc::make_mut(self.state().volumes.entry(report.id).or_default()).see_volume(report, heard)
    }

    /// Marks the agent as down, and forgets everything that can be asked again.
    pub(crate) fn down(&self, why: String) {
        let mut state = self.state();
        state.channel = None;
        state.why_down = Some(why);
        state.capabilities_silent = None;
        state.volumes.clear();
        state.connections.clear();
        state.orphans.clear();
    }
}

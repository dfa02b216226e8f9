//! The enrolled agents: how they are reached, and what they said last.
//!
//! What an agent said is kept in memory only (who it is, what it can do and when it was heard apart): it is asked again after every connect.
//! An agent that is down holds up nothing but its own volumes.
//!
//! What must never happen here: a decision; a report of one agent taken for another's; a call without a deadline.

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
    AgentId, ConnectionReport, ExportReport, Generation, Initiator, Iqn, Receipt, Stamp, VolumeId,
    VolumeReport, Wwpn,
};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::domain::AgentEntry;
use crate::domain::Transport;
use crate::rules::transport::Served;
use crate::store::AgentRow;
use crate::store::leases::Said;
use exports::Exports;
use lease::Hold;
pub(crate) use registry::{Agents, Held};
use roll::Roll;
pub(crate) use seen::{Heard, Kept, SeenVolume, fc_grants, fc_logged_in, logged_in};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a host's agent said of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenConnection {
    /// What it keeps of the wish.
    pub(crate) stamp: Option<Stamp>,
    /// The connection as it is.
    pub(crate) report: Option<ConnectionReport>,
    /// When the wish was sent last.
    pub(crate) put_at: Option<Instant>,
}

/// What is known of one agent now.
#[derive(Debug, Default)]
pub(crate) struct AgentState {
    /// Its id, once it said hello; from the store before.
    id: Option<AgentId>,
    /// Under which name it logs in.
    initiator: Option<Iqn>,
    /// It said under which name it logs in, whether its roles cover that or not.
    attaches: bool,
    /// What it can do.
    pub(crate) capabilities: Option<v1::Capabilities>,
    /// When it was asked for that, and answered.
    pub(crate) asked_at: Option<SystemTime>,
    /// When its pools were seen as they are in there.
    pub(crate) pools_seen: Option<SystemTime>,
    /// Since when it does not say what it can do, although it is up.
    pub(crate) capabilities_silent: Option<SystemTime>,
    /// How it is called, while it is up.
    pub(crate) channel: Option<Channel>,
    /// Why it is not up.
    pub(crate) why_down: Option<String>,
    /// When its last report came.
    pub(crate) last_report: Option<SystemTime>,
    /// It has listed its volumes since this controller was started, to us or to the one that drives it.
    listed: bool,
    /// Its volumes.
    volumes: HashMap<VolumeId, Arc<Kept>>,
    /// Its connections.
    pub(crate) connections: HashMap<VolumeId, SeenConnection>,
    /// What it has and nobody here knows.
    pub(crate) orphans: BTreeMap<String, String>,
    /// How often it said something of an object that is not its own, by kind.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
}

/// Volumes of which an agent is heard: one that names more by itself is not remembered further.
const VOLUMES_MAX: usize = 1 << 18;

/// An enrolled agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// As the configuration or its enrolment says.
    pub(crate) entry: AgentEntry,
    /// Its number: agents that came later have greater ones.
    place: usize,
    roll: Arc<Mutex<Roll>>,
    state: Mutex<AgentState>,
    /// Who drives it.
    hold: Mutex<Hold>,
    /// How it is asked while another controller drives it.
    borrowed: tokio::sync::Mutex<Option<calls::Borrowed>>,
    /// The task that follows it, or followed it last.
    drive: Mutex<Option<AbortHandle>>,
}

impl Agent {
    /// What is known of it.
    pub(crate) fn state(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.state)
    }

    /// Its id, if it ever said hello.
    pub(crate) fn id(&self) -> Option<AgentId> {
        self.state().id
    }

    /// Under which name it logs in, if it attaches volumes.
    pub(crate) fn initiator(&self) -> Option<Iqn> {
        self.state().initiator.clone()
    }

    /// Who it says that it is.
    pub(crate) fn is_known_as(&self, state: &mut AgentState, id: AgentId, initiator: Option<Iqn>) {
        let mut roll = lock(&self.roll);
        // Looked at under the roll's lock: whoever takes it out of the registry takes it off the roll after that.
        if !matches!(*lock(&self.hold), Hold::Gone) {
            roll.ids.changed(self.place, state.id.as_ref(), Some(&id));
            roll.initiators.changed(self.place, state.initiator.as_ref(), initiator.as_ref());
        }
        drop(roll);
        state.id = Some(id);
        state.initiator = initiator;
    }

    /// Nobody drives it any more, nor finds it by what it said that it is.
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

    /// The task that follows it from now on. It ends at once where the agent has left the registry meanwhile.
    pub(crate) fn is_driven_by(&self, drive: AbortHandle) {
        let mut driven = lock(&self.drive);
        if matches!(*lock(&self.hold), Hold::Gone) {
            drive.abort();
        } else {
            *driven = Some(drive);
        }
    }

    /// The ports through which its host can attach over Fibre Channel, as it said last: those that are online.
    pub(crate) fn fc_initiator_ports(&self) -> Vec<Wwpn> {
        let state = self.state();
        let ports = state.capabilities.as_ref().map_or(&[][..], |seen| &seen.fc_initiator_ports);
        ports.iter().filter_map(|port| port.parse().ok()).collect()
    }

    /// True if an attachment of this host can have the page cache of its disk off, by the agent's last report. `None`: no report
    /// yet.
    pub(crate) fn can_turn_cache_off(&self) -> Option<bool> {
        let state = self.state();
        state.capabilities.as_ref().map(|seen| seen.cache_off == Some(true))
    }

    /// What it says of its transports; `None` while it has not named one.
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

    /// Whether it has volumes, as far as it is known.
    pub(crate) fn is_storage(&self) -> bool {
        let state = self.state();
        state.capabilities.as_ref().is_none_or(|seen| seen.pools_unknown || !seen.pools.is_empty())
    }

    /// It has listed its volumes since this controller was started.
    pub(crate) fn has_listed(&self) -> bool {
        self.state().listed
    }

    /// Who reaches each of its volumes, as it said last. `None`: it does not say it to us, or it has not said all of it.
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

    /// Whether discards of hosts reach what lies below a pool of it. Not where it has not said so.
    pub(crate) fn discards(&self, pool: &str) -> bool {
        let state = self.state();
        let pools = state.capabilities.as_ref().map_or(&[][..], |seen| &seen.pools);
        pools.iter().find(|known| known.name == pool).and_then(|pool| pool.discard) == Some(true)
    }

    /// Who drives it.
    pub(crate) fn hold(&self) -> Hold {
        lock(&self.hold).clone()
    }

    /// Who drives it from now on. `false`: it has left the registry, and nobody does.
    pub(crate) fn set_hold(&self, hold: Hold) -> bool {
        let mut known = lock(&self.hold);
        if matches!(*known, Hold::Gone) {
            return false;
        }
        *known = hold;
        true
    }

    /// How it is, for other controllers.
    pub(crate) fn says(&self) -> Said {
        let state = self.state();
        let up = state.channel.is_some();
        Said { up, why: state.why_down.clone().filter(|_| !up), orphans: state.orphans.clone() }
    }

    /// How it is, in another controller's words. Whether that is news.
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

    /// What it said to another controller, as that has kept it. Whether that is news: when it said so is not.
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

    /// It answers, and its reports come: to us, or to the controller that drives it.
    pub(crate) fn is_up(&self) -> bool {
        match self.hold() {
            Hold::Theirs(said) => said.up,
            hold => hold.is_ours() && self.state().channel.is_some(),
        }
    }

    /// Why it is not up, with its name.
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

    /// One more volume that nobody here knows can be remembered.
    pub(crate) fn has_room(&self) -> bool {
        self.state().volumes.len() < VOLUMES_MAX
    }

    /// What it keeps of a volume's wish.
    pub(crate) fn volume_stamp(&self, id: VolumeId) -> Option<Stamp> {
        self.of_volume(id, |kept| kept.volume_stamp.clone())
    }

    /// What it keeps of an export's wish.
    pub(crate) fn export_stamp(&self, id: VolumeId) -> Option<Stamp> {
        self.of_volume(id, |kept| kept.export_stamp.clone())
    }

    /// A volume as it said last that it is.
    pub(crate) fn volume(&self, id: VolumeId) -> Option<VolumeReport> {
        self.of_volume(id, |kept| kept.volume(id))
    }

    /// An export as it said last that it is.
    pub(crate) fn export(&self, id: VolumeId) -> Option<ExportReport> {
        self.of_volume(id, |kept| kept.export(id))
    }

    /// When an export's wish was sent last.
    pub(crate) fn put_at(&self, id: VolumeId) -> Option<Instant> {
        self.of_volume(id, Kept::put_at)
    }

    /// It keeps this wish of a volume now.
    pub(crate) fn took_volume(&self, id: VolumeId, stamp: Stamp) {
        Arc::make_mut(self.state().volumes.entry(id).or_default()).volume_stamp = Some(stamp);
    }

    /// It keeps this wish of an export now. `proven`: all its receipts came with the answer, proven.
    pub(crate) fn took_export(&self, id: VolumeId, stamp: Stamp, proven: bool) {
        let mut state = self.state();
        Arc::make_mut(state.volumes.entry(id).or_default()).took_export(stamp, proven);
    }

    /// What it says of a volume, in the place of all that it said before; `None`: nothing is known any more.
    pub(crate) fn set_volume(&self, id: VolumeId, seen: Option<SeenVolume>) {
        let mut state = self.state();
        match seen {
            Some(seen) => drop(state.volumes.insert(id, Arc::new(Kept::new(seen)))),
            None => drop(state.volumes.remove(&id)),
        }
    }

    /// The same of all its volumes, with what it has and nobody here knows.
    pub(crate) fn set_volumes(&self, seen: BTreeMap<VolumeId, Arc<Kept>>, orphans: BTreeMap<String, String>) {
        let mut state = self.state();
        state.volumes = seen.into_iter().collect();
        state.orphans = orphans;
        state.listed = true;
    }

    /// What it said of a connection.
    pub(crate) fn connection(&self, id: VolumeId) -> SeenConnection {
        self.state().connections.get(&id).cloned().unwrap_or_default()
    }

    /// Takes a report of an export. `true` if it says anything new.
    pub(crate) fn saw_export(&self, report: &ExportReport, heard: Heard) -> bool {
        Arc::make_mut(self.state().volumes.entry(report.volume).or_default()).see_export(report, heard)
    }

    /// Volumes of which the last report shows somebody who could be logged in and is not.
    pub(crate) fn quiet_volumes(&self) -> Vec<VolumeId> {
        self.state().volumes.iter().filter(|(_, kept)| kept.quiet).map(|(id, _)| *id).collect()
    }

    /// When an export was reported last.
    pub(crate) fn export_at(&self, id: VolumeId) -> Option<Instant> {
        self.of_volume(id, |kept| kept.export_at)
    }

    /// What was reported of an export is not taken for new any more.
    pub(crate) fn outdate_export(&self, id: VolumeId) {
        if let Some(seen) = self.state().volumes.get_mut(&id) {
            Arc::make_mut(seen).export_at = None;
        }
    }

    /// Takes a receipt that came by itself. Its volume's job keeps it, with what follows from it. `false`: that came with an
    /// answer.
    pub(crate) fn saw_receipt(&self, receipt: Receipt) -> bool {
        Arc::make_mut(self.state().volumes.entry(receipt.volume).or_default()).see_receipt(receipt)
    }

    /// A receipt of a nexus that is not kept yet, and not older than the wish to revoke it.
    pub(crate) fn receipt_since(
        &self,
        id: VolumeId,
        initiator: &Initiator,
        since: Generation,
    ) -> Option<Receipt> {
        self.of_volume(id, |kept| kept.receipt_since(initiator, since).cloned())
    }

    /// The receipts of a volume that are not kept yet; they are the caller's from now on.
    pub(crate) fn take_receipts(&self, id: VolumeId) -> Vec<Receipt> {
        let mut state = self.state();
        state.volumes.get_mut(&id).map(|kept| Arc::make_mut(kept).take_receipts()).unwrap_or_default()
    }

    /// Takes a report of a connection, likewise.
    pub(crate) fn saw_connection(&self, report: ConnectionReport) {
        let mut state = self.state();
        let seen = state.connections.entry(report.volume).or_default();
        if seen.report.as_ref().is_none_or(|kept| kept.generation <= report.generation) {
            seen.report = Some(report);
        }
    }

    /// Takes a report of a volume. `false`: another one came since it was asked for, and which is the later cannot be told.
    pub(crate) fn saw_volume(&self, report: &VolumeReport, heard: Heard) -> bool {
        Arc::make_mut(self.state().volumes.entry(report.id).or_default()).see_volume(report, heard)
    }

    /// Everything that it can be asked is unknown from now on.
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

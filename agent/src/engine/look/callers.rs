//! Hosts that have connected to the portals or left them lately. The pulse looks first at the
//! volumes that this may concern, and need not look in full at the others.
//!
//! A login begins with a connection, and no session outlives its connection for long. So sessions
//! are as the last look saw them while no connection comes or goes. Before its login, a connection
//! does not show its purpose: a new one may be of any initiator that has no session yet.
//!
//! What must never happen here: a volume taken for seen while a login or the end of a session may
//! still be under way.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use mooring_host::CallerChanges;
use mooring_model::{ExportSpec, Portal, VolumeId};
use tokio::time::Instant;

use super::pulse::Lives;
use crate::clock;
use crate::engine::cell::State;
use crate::engine::counts::is_logged_in;
use crate::engine::{Engine, lock};

/// Time within which a login may follow a new connection, or a session may end after its
/// connection. A login takes up to 15 s (`TA_LOGIN_TIMEOUT` of the kernel's target); the kernel
/// keeps a session without connections for 20 s (`DefaultTime2Retain`).
const SETTLES_WITHIN: Duration = Duration::from_secs(30);

/// The connections to the portals, as far as they are known.
#[derive(Debug, Default)]
pub(in crate::engine) struct Recent {
    /// `true` if the agent has logged that it cannot list connections.
    said: bool,
    /// Time at which the last connection came.
    come: Option<Instant>,
    /// Addresses whose connections have ended, and when.
    gone: BTreeMap<IpAddr, Instant>,
    /// Time at which a connection came or went last. `None` if nothing follows the connections:
    /// then every look is a full one.
    changed: Option<Instant>,
    /// Time at which the connections were listed last, by the wall clock.
    asked: Option<SystemTime>,
    /// Connections that stand.
    standing: usize,
    /// `true` if the last look found volumes that the connections concern.
    pub(in crate::engine) busy: bool,
    /// The last volume that was looked at because of connections.
    pub(in crate::engine) last: Option<VolumeId>,
}

impl Recent {
    /// Notes the connections that have come and gone, as listed at `asked`.
    pub(in crate::engine) fn note(
        &mut self,
        now: Instant,
        asked: SystemTime,
        changes: io::Result<CallerChanges>,
    ) {
        let changes = match changes {
            Ok(changes) => changes,
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!(%error, "cannot list TCP connections: logins are seen later");
                }
                *self = Self { said: true, last: self.last, ..Self::default() };
                return;
            }
        };
        // An observation from before this moment may be stale: changes before it are unknown.
        self.changed.get_or_insert(now);
        (self.standing, self.asked) = (changes.standing, Some(asked));
        if !changes.come.is_empty() {
            self.come = Some(now);
        }
        if !changes.come.is_empty() || !changes.gone.is_empty() {
            tracing::debug!(come = ?changes.come, gone = ?changes.gone, standing = changes.standing, "connections");
            self.changed = Some(now);
        }
        self.gone.retain(|_, at| now.duration_since(*at) < SETTLES_WITHIN);
        self.gone.extend(changes.gone.into_iter().map(|ip| (ip, now)));
    }

    /// Moves all changes so far into the distant past.
    #[cfg(test)]
    pub(in crate::engine) fn settle(&mut self) {
        let long_ago = |at: Instant| at.checked_sub(SETTLES_WITHIN).unwrap();
        self.changed = self.changed.map(long_ago);
        self.come = self.come.map(long_ago);
        self.gone.clear();
    }

    /// Number of open connections. `None` if it is unknown.
    pub(in crate::engine) fn standing(&self) -> Option<usize> {
        self.asked.map(|_| self.standing)
    }

    /// The time until which the sessions are known to be as a full look saw them that began at
    /// `look`. `None` if they may have changed.
    pub(in crate::engine) fn stands(&self, look: Instant) -> Option<SystemTime> {
        self.asked.filter(|_| self.changed.is_some_and(|changed| look >= changed + SETTLES_WITHIN))
    }

    /// Says whether a volume may have to be looked at before its turn. If not, no volume need be
    /// asked.
    pub(in crate::engine) fn may_concern(&self, now: Instant) -> bool {
        let lately = |changed| now.duration_since(changed) < SETTLES_WITHIN;
        self.changed.is_some_and(|changed| self.busy || lately(changed))
    }

    /// Says whether a volume is to be looked at before its turn.
    pub(in crate::engine) fn concerns(&self, now: Instant, spec: &ExportSpec, lives: Option<&Lives>) -> bool {
        let Some(lives) = lives else { return true };
        let is_ending = lives.all_sessions().any(|session| {
            !is_logged_in(session) || session.addresses.iter().any(|address| self.has_gone(address))
        });
        let is_expected = || {
            self.come.is_some_and(|come| now.duration_since(come) < SETTLES_WITHIN)
                && spec.grants.iter().any(|grant| lives.sessions(grant.initiator.as_str()).is_empty())
        };
        is_ending || is_expected()
    }

    fn has_gone(&self, address: &str) -> bool {
        !self.gone.is_empty()
            && address
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|ip| self.gone.contains_key(&ip.to_canonical()))
    }
}

impl Engine {
    /// Notes the connections that have come and gone since the last call.
    pub(in crate::engine) fn follow_callers(&self) {
        let Some(callers) = self.shared.machine.callers.as_deref() else { return };
        if self.shared.config.groups.is_empty() && self.count() == 0 {
            // A host that only attaches volumes has no callers.
            return;
        }
        let asked = self.shared.machine.clock.now();
        let changes = callers.changes(&|| self.ports());
        lock(&self.shared.look_memory.pulse).recent.note(clock::instant(), asked, changes);
    }

    /// TCP connections to the portals. `None` if they are unknown.
    pub(in crate::engine) fn callers(&self) -> Option<usize> {
        lock(&self.shared.look_memory.pulse).recent.standing()
    }

    /// The ports of the portals of the configuration and of all exports.
    fn ports(&self) -> BTreeSet<u16> {
        let of_config = self.shared.config.portals.iter().map(Portal::port);
        let of_exports = self.cells().into_iter().flat_map(|cell| of_export(&cell.state()));
        of_config.chain(of_exports).collect()
    }
}

fn of_export(state: &State) -> Vec<u16> {
    let portals = state.export_spec().map(|spec| &spec.portals);
    portals.into_iter().flatten().map(Portal::port).collect()
}

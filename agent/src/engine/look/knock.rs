//! Knocks at the portals of this host, to find out whether their login threads answer. The kernel
//! has one login thread for each portal, for the targets of all volumes. A thread that waits for
//! the commands of a device that hangs answers no login ([`silence`](super::silence)), and the
//! kernel does not report it. So the agent begins a login over loopback now and then, and soon
//! while there is reason to.
//!
//! What must never happen here: a portal called blocked although nobody listens there; two knocks
//! at one portal at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, SystemTime};

use mooring_model::{Cure, Portal, Problem};
use tokio::time::Instant;

use crate::capabilities::timestamp;
use crate::clock;
use crate::engine::{Engine, lock};

/// Time between two knocks at a portal while nothing is wrong.
const EVERY: Duration = Duration::from_mins(1);

/// Time between two knocks while a device or a portal does not answer.
const SOON: Duration = Duration::from_secs(3);

/// Time that a portal has to answer. A login takes milliseconds; many at once on a slow machine
/// take a second or two.
const WITHIN: Duration = Duration::from_secs(5);

/// Largest number of silent volumes that a problem names.
const NAMED: usize = 5;

/// The state of the portals' login threads, as far as it is known.
#[derive(Debug, Default)]
pub(in crate::engine) struct Knocks {
    last: Option<Instant>,
    at_work: BTreeSet<Portal>,
    /// Portals that do not answer, and since when.
    blocked: BTreeMap<Portal, SystemTime>,
}

impl Engine {
    /// Knocks at the portals whose turn it is, each on a thread of its own.
    pub(in crate::engine) fn knock_soon(&self) {
        if self.count() == 0 {
            return;
        }
        let silent = self.silent_volumes();
        let due = {
            let mut knocks = lock(&self.shared.look_memory.knocks);
            let every = if silent.is_empty() && knocks.blocked.is_empty() { EVERY } else { SOON };
            let due = knocks.last.is_none_or(|last| last.elapsed() >= every);
            if due {
                knocks.last = Some(clock::instant());
            }
            due
        };
        if !due {
            return;
        }
        // Exports may have portals of their own.
        let own = silent.iter().filter_map(|volume| self.known_cell(*volume)).flat_map(|cell| {
            let state = cell.state();
            let spec = state.export_spec();
            spec.map(|spec| spec.portals.clone()).unwrap_or_default()
        });
        let portals: BTreeSet<Portal> = self.shared.config.portals.iter().copied().chain(own).collect();
        let free: Vec<_> = {
            let mut knocks = lock(&self.shared.look_memory.knocks);
            let blocked: Vec<_> = knocks.blocked.keys().copied().collect();
            portals.into_iter().chain(blocked).filter(|portal| knocks.at_work.insert(*portal)).collect()
        };
        for portal in free {
            let engine = self.clone();
            self.submit(move || engine.knock(portal));
        }
    }

    fn knock(&self, portal: Portal) {
        let began = self.shared.machine.clock.now();
        let answer = self.shared.machine.pr.knock(portal.socket(), clock::std_instant() + WITHIN);
        let is_blocked = answer.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
        let news = {
            let mut knocks = lock(&self.shared.look_memory.knocks);
            knocks.at_work.remove(&portal);
            let was_blocked = knocks.blocked.contains_key(&portal);
            if is_blocked {
                knocks.blocked.entry(portal).or_insert(began);
            } else {
                knocks.blocked.remove(&portal);
            }
            was_blocked != is_blocked
        };
        if !news {
            return;
        }
        if is_blocked {
            tracing::error!(%portal, "nobody can log in at this portal: its login thread does not answer");
        } else {
            tracing::warn!(%portal, "the portal's login thread answers again");
        }
        self.lvm().tell();
    }

    /// The portals where nobody can log in, and the probable reason.
    pub(crate) fn blocked_portals(&self) -> Vec<(Portal, Problem)> {
        let blocked = lock(&self.shared.look_memory.knocks).blocked.clone();
        let silent = self.silent_volumes();
        let named: Vec<_> = silent.iter().take(NAMED).map(ToString::to_string).collect();
        let more = silent.len().saturating_sub(NAMED);
        let cause = match (named.as_slice(), more) {
            ([], _) => "this agent does not know which device hangs: a thread iscsi_np of the kernel waits (ps, state D), dmesg names the target"
                .to_owned(),
            (_, 0) => format!("the device of volume {} does not answer", named.join(", ")),
            (_, more) => format!("the devices of volumes {} and of {more} more do not answer", named.join(", ")),
        };
        let problem = |(portal, since): (Portal, SystemTime)| {
            let text = format!(
                "answers no login since {}, to any volume: its login thread waits for commands of a session that was logged in again; \
                 {cause}. It goes on by itself when the device answers, or when the volume is cut off (mooring volume cut); sessions \
                 that stand, and other portals, go on",
                timestamp(since)
            );
            (portal, Problem { object: format!("portal {portal}"), text, cure: Cure::Operator })
        };
        blocked.into_iter().map(problem).collect()
    }
}

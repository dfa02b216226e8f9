//! LVM's view of the groups, for requests of capabilities. LVM hangs as long as a disk below it
//! does. So one job at a time queries it, each request waits for a moment only, and its last answer
//! is kept with its age.
//!
//! What must never happen here: a request that waits as long as LVM hangs; a second call of LVM
//! beside one that hangs; an old view shown as if it were a present one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mooring_api::v1;
use mooring_model::Chain;
use tokio::sync::watch;

use super::health::{Code, Fault, On, Weight};
use super::pools::{check_groups, pools};
use crate::clock;
use crate::config::Config;
use crate::lvm::{self, VolumesView};
use crate::machine::Machine;

/// Time that a request waits for LVM. A healthy one takes some ten milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// An answer of LVM.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) pools: Vec<v1::Pool>,
    pub(super) faults: Vec<Fault>,
}

/// Knowledge of the groups at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Last answer. `None` if LVM has not answered since this agent was started.
    pub(super) said: Option<Said>,
    /// Start of the query that led to `said`.
    pub(super) seen: Option<SystemTime>,
    /// Age of `said`; zero while LVM answers.
    pub(super) age: Duration,
    /// Set while LVM does not answer.
    pub(super) silence: Option<Fault>,
}

impl Known {
    /// Returns the pools of the last answer.
    pub(crate) fn pools(&self) -> &[v1::Pool] {
        self.said.as_ref().map_or(&[], |said| &said.pools)
    }

    /// Returns `true` if no LV can be made in a group that is on this host, or if LVM cannot read
    /// one.
    pub(crate) fn has_unusable_group(&self) -> bool {
        let unusable = |fault: &Fault| fault.code == Code::GroupUnusable;
        self.said.as_ref().is_some_and(|said| said.faults.iter().any(unusable))
    }

    /// Returns the time of the last answer. `None` if there was none.
    pub(crate) fn seen(&self) -> Option<SystemTime> {
        self.seen
    }

    /// Returns `true` while LVM does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        self.silence.is_some()
    }
}

/// Start of a query: on the clock that measures, and on the one that is reported.
pub(crate) type Moment = (Instant, SystemTime);

/// Returns the present moment.
pub(crate) fn begin(machine: &Machine) -> Moment {
    (clock::std_instant(), machine.clock.now())
}

#[derive(Debug, Default)]
struct State {
    /// Number of requests so far. A query that begins now answers all of them.
    asked: u64,
    at_work: bool,
    /// Start of the running query. `None` if none is running.
    began: Option<Moment>,
    said: Option<(Said, Instant, SystemTime)>,
    /// Start of the first query that came to no end. `None` once one does.
    silent: Option<SystemTime>,
}

/// Holder of LVM's answers. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lvm {
    state: Arc<Mutex<State>>,
    /// Number of the requests that are answered.
    answered: watch::Sender<u64>,
    /// Changes when the knowledge changes.
    news: watch::Sender<u64>,
}

impl Lvm {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that changes when the knowledge changes.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Announces that another capability of this host changed.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// Requests a new query, waits for a moment, and returns what is known then. `begin` starts a
    /// job on a thread that can be lost.
    pub(crate) async fn ask(&self, begin: impl FnOnce(Look)) -> Known {
        let mut answered = self.answered.subscribe();
        let (number, first) = {
            let mut state = self.state();
            state.asked += 1;
            (state.asked, !std::mem::replace(&mut state.at_work, true))
        };
        if first {
            begin(Look { desk: self.clone() });
        }
        // The sender lives as long as `self`: the wait ends with the answer, or with the time
        // limit.
        let _ = tokio::time::timeout(ANSWER_WITHIN, answered.wait_for(|count| *count >= number)).await;
        self.known()
    }

    /// Stores a view that was taken for another purpose. Watchers learn of it, although nobody has
    /// requested it.
    pub(crate) fn note(&self, began: Moment, seen: &Result<VolumesView, lvm::Error>, machine: &Machine) {
        let said = said_by(seen.as_ref(), machine);
        if self.state().keep(began, said) {
            self.tell();
        }
    }

    /// Returns what is known, without a query.
    pub(crate) fn known(&self) -> Known {
        let state = self.state();
        let overdue = state.began.filter(|(began, _)| began.elapsed() >= ANSWER_WITHIN);
        let silent = state.silent.or(overdue.map(|(_, at)| at));
        Known {
            said: state.said.as_ref().map(|(said, ..)| said.clone()),
            seen: state.said.as_ref().map(|(.., at)| *at),
            age: state.said.as_ref().filter(|_| silent.is_some()).map_or(Duration::ZERO, |s| s.1.elapsed()),
            silence: silent.map(|since| silence(since, state.said.as_ref().map(|(.., at)| *at))),
        }
    }
}

impl State {
    /// Stores the outcome of a query; `None` if it came to no end. Returns `true` if the knowledge
    /// changed.
    fn keep(&mut self, began: Moment, said: Option<Said>) -> bool {
        if self.said.as_ref().is_some_and(|(_, newer, _)| *newer > began.0) {
            return false;
        }
        let before = (self.said.as_ref().map(|(said, ..)| said.clone()), self.silent);
        match said {
            Some(said) => {
                self.said = Some((said, began.0, began.1));
                self.silent = None;
            }
            None => self.silent = self.silent.or(Some(began.1)),
        }
        (self.said.as_ref().map(|(said, ..)| said.clone()), self.silent) != before
    }
}

/// Makes the fault of a silent LVM. Its text stays the same while the silence lasts: whoever stores
/// it would store it anew each time.
fn silence(since: SystemTime, seen: Option<SystemTime>) -> Fault {
    let pools = seen.map_or_else(
        || "nothing is known of the volume groups".to_owned(),
        |seen| format!("the pools are as they were at {}", timestamp(seen)),
    );
    let text = format!(
        "does not answer since {}, and {pools}; see whether a disk under a volume group hangs (dmsetup info, dmesg)",
        timestamp(since)
    );
    Fault::new(Code::LvmSilent, Weight::Degrades, On::Pools, "LVM", text)
}

pub(crate) fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| format!("{seconds} s after 1970"), |time| time.to_string())
}

/// A job that queries LVM until no later request is left.
pub(crate) struct Look {
    desk: Lvm,
}

impl Look {
    /// Runs queries, and returns when LVM has answered everybody.
    pub(crate) fn run(self, machine: &Machine, config: &Config) {
        loop {
            let (covers, began) = {
                let mut state = self.desk.state();
                let now = begin(machine);
                state.began = Some(now);
                (state.asked, now)
            };
            let said = said_by(lvm::view(&*machine.commands, &config.groups).as_ref(), machine);
            if self.end(covers, began, said) {
                return;
            }
        }
    }

    /// Stores the outcome of one query. Returns `true` if no request is left.
    fn end(&self, covers: u64, began: Moment, said: Option<Said>) -> bool {
        let mut state = self.desk.state();
        let new = state.keep(began, said);
        state.began = None;
        let last = state.asked == covers;
        state.at_work = !last;
        drop(state);
        self.desk.answered.send_replace(covers);
        // Watchers that have only heard of an overdue answer learn that it came.
        if new || began.0.elapsed() >= ANSWER_WITHIN {
            self.desk.news.send_modify(|count| *count += 1);
        }
        last
    }
}

impl Drop for Look {
    /// Ends the job if a query panics: the next request begins another one.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.desk.state();
            state.at_work = false;
            state.began = None;
        }
    }
}

/// Derives LVM's answer from a view. `None` if LVM came to no end.
fn said_by(seen: Result<&VolumesView, &lvm::Error>, machine: &Machine) -> Option<Said> {
    match seen {
        Ok(view) => Some(Said { pools: pools(view, machine), faults: check_groups(view) }),
        Err(error) if error.is_hung() => None,
        Err(error) => {
            let text = Chain(error).to_string();
            let fault = Fault::new(Code::LvmFailed, Weight::Fails, On::Pools, "LVM", text);
            Some(Said { pools: Vec::new(), faults: vec![fault.cured_by(error.cure())] })
        }
    }
}

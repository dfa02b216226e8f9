//! What LVM says of the groups, for whoever asks what this host can do. LVM hangs as long as a disk below it does: it is
//! asked by one job at a time, whoever asks waits for a moment only, and what it said last is kept with its age.
//!
//! What must never happen here: somebody who waits as long as LVM hangs; a second call of LVM beside one that hangs; what
//! was seen before shown as if it were so now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mooring_api::v1;
use mooring_model::Chain;
use tokio::sync::watch;

use super::health::{Code, Fault, On, Weight};
use super::pools::{check_groups, pools};
use crate::config::Config;
use crate::machine::Machine;
use crate::volumes::{self, VolumesView};

/// How long an answer waits for LVM. A healthy one takes some ten milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// What LVM said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) pools: Vec<v1::Pool>,
    pub(super) faults: Vec<Fault>,
}

/// What is known of the groups at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// `None`: LVM has not answered since this agent was started.
    pub(super) said: Option<Said>,
    /// When that look began.
    pub(super) seen: Option<SystemTime>,
    /// How old that is; zero while LVM answers.
    pub(super) age: Duration,
    /// LVM does not answer.
    pub(super) silence: Option<Fault>,
}

impl Known {
    /// The groups, as they were seen last.
    pub(crate) fn pools(&self) -> &[v1::Pool] {
        self.said.as_ref().map_or(&[], |said| &said.pools)
    }

    /// When that was; `None`: never.
    pub(crate) fn seen(&self) -> Option<SystemTime> {
        self.seen
    }

    /// LVM does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        self.silence.is_some()
    }
}

/// When a look began, to measure by and to tell.
pub(crate) type Moment = (Instant, SystemTime);

/// It begins now.
pub(crate) fn begin(machine: &Machine) -> Moment {
    (Instant::now(), machine.clock.now())
}

#[derive(Debug, Default)]
struct State {
    /// Questions so far. A look that begins now answers all of them.
    asked: u64,
    at_work: bool,
    /// When the look at work began.
    began: Option<Moment>,
    said: Option<(Said, Instant, SystemTime)>,
    /// When the first of the looks began that came to no end, until one does.
    silent: Option<SystemTime>,
}

/// The desk where LVM's answers are kept. Clones are the same desk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lvm {
    state: Arc<Mutex<State>>,
    /// How many of the questions are answered.
    answered: watch::Sender<u64>,
    /// Changes when something else is known than before.
    news: watch::Sender<u64>,
}

impl Lvm {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when something else is known than before.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Something else that this host says of itself is new.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// Asks LVM anew, waits for a moment, and says what is known then. `begin` starts a job on a thread that can be lost.
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
        // The sender is ours and lives as long as we do: what remains is the answer, or the time that has passed.
        let _ = tokio::time::timeout(ANSWER_WITHIN, answered.wait_for(|count| *count >= number)).await;
        self.known()
    }

    /// Takes what somebody saw who had to look anyway: whoever watches is told, although nobody has asked.
    pub(crate) fn note(&self, began: Moment, seen: &Result<VolumesView, volumes::Error>, machine: &Machine) {
        let said = said_by(seen.as_ref(), machine);
        if self.state().keep(began, said) {
            self.tell();
        }
    }

    /// What is known without asking.
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
    /// Keeps what came of a look; `None`: it came to no end. Whether something else is known than before.
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

/// Says nothing that changes while it lasts: whoever keeps it would keep it anew each time.
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

/// A job: it asks LVM until no question is left that came later.
pub(crate) struct Look {
    desk: Lvm,
}

impl Look {
    /// Looks; returns when LVM has answered everybody.
    pub(crate) fn run(self, machine: &Machine, config: &Config) {
        loop {
            let (covers, began) = {
                let mut state = self.desk.state();
                let now = begin(machine);
                state.began = Some(now);
                (state.asked, now)
            };
            let said = said_by(volumes::view(&*machine.commands, &config.groups).as_ref(), machine);
            if self.end(covers, began, said) {
                return;
            }
        }
    }

    /// Keeps what came of one look. Whether no question is left.
    fn end(&self, covers: u64, began: Moment, said: Option<Said>) -> bool {
        let mut state = self.desk.state();
        let new = state.keep(began, said);
        state.began = None;
        let last = state.asked == covers;
        state.at_work = !last;
        drop(state);
        self.desk.answered.send_replace(covers);
        // Whoever has only been told of an overdue answer is told that it came.
        if new || began.0.elapsed() >= ANSWER_WITHIN {
            self.desk.news.send_modify(|count| *count += 1);
        }
        last
    }
}

impl Drop for Look {
    /// Also when a look panics, the next question begins another.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.desk.state();
            state.at_work = false;
            state.began = None;
        }
    }
}

/// `None`: LVM came to no end.
fn said_by(seen: Result<&VolumesView, &volumes::Error>, machine: &Machine) -> Option<Said> {
    match seen {
        Ok(view) => Some(Said { pools: pools(view, machine), faults: check_groups(view) }),
        Err(volumes::Error::Hung { .. }) => None,
        Err(error) => {
            let text = Chain(error).to_string();
            let fault = Fault::new(Code::LvmFailed, Weight::Fails, On::Pools, "LVM", text);
            Some(Said { pools: Vec::new(), faults: vec![fault.cured_by(error.cure())] })
        }
    }
}

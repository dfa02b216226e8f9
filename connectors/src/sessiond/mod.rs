//! The session daemon: makes iSCSI sessions, keeps them, recovers them, ends them. It knows specs
//! of sessions, the kernel and a journal; no volumes, no controller, no database.
//!
//! Threads:
//! - one that reads the kernel's events and hands them out by session;
//! - one per session with all its decisions (`session`);
//! - one that accepts clients and one per client (`server`);
//! - one that looks at sysfs each second for changes without an event.
//!
//! They share a board with every session's status, and nothing else.
//!
//! The daemon is crash-only. A panic in any thread aborts the process: the others could not know
//! what the dead thread held to be true. systemd starts it again at once, and it takes over the
//! sessions that it finds ([`adopt`]). Sessions and their I/O go on meanwhile, because they live in
//! the kernel. For the same reason there is nothing to do at a stop.
//!
//! What must never happen here: a session dropped because this process ends or begins; a kernel
//! session without a journal file; a session of somebody else touched; a step without a bound; a
//! path for users that outlives the session of its disk (the agent, who makes them, may be down).

pub mod adopt;
mod attempt;
mod board;
mod check;
mod flood;
pub mod identity;
pub mod journal;
mod keep;
pub mod program;
mod retry;
mod server;
mod session;
pub mod steps;
pub mod sysfs;
mod teardown;

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use mooring_host::{
    Clock, IscsiEvent, IscsiEvents, IscsiKernel, KernelSession, LockError, LockFile, Tree, TreeError,
};
use mooring_model::{Chain, VolumeId};

use self::adopt::Action;
use self::board::{Board, Key, Numbered, Order, Vacancy};
use self::identity::Identity;
use self::journal::{Entry, Journal, JournalError};
use self::retry::RetryTimes;
use self::session::{Begin, Session, first_status, portal_of, sid_of};
use self::steps::{SteppedKernel, Steps};
use self::sysfs::{ConnectionAttr, KernelView, SessionAttr};
use crate::links::RunLinks;
use crate::wire::{SOCKET, SessionSpec, SessionState};

/// Maximum number of connections of clients at a time; one more is refused with a reason.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of sessions; each takes a thread and about 0.3 MiB of locked memory.
pub const SESSIONS_MAX: usize = 4096;
/// Bytes of every thread's stack: all of it may be locked into memory.
pub const STACK_BYTES: usize = 256 * 1024;
/// Folder of the socket, the lock and the journal, below the run folder.
pub const FOLDER: &str = "sessiond";
/// Time that the threads which only read wait at once.
const TICK: Duration = Duration::from_secs(1);
/// Seconds within which the events' thread must have come round, or the watchdog is not fed.
const BEAT_WITHIN: u64 = 10;

/// Time limits and pauses.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Limit of a TCP connection to one portal.
    pub connect_within: Duration,
    /// Limit of one answer of a target during a login.
    pub answer_within: Duration,
    /// Limit of one login after the connection was made. LIO gives up after 15 s.
    pub login_within: Duration,
    /// Limit of the kernel's removal of a session's disks. As a rule they are gone already.
    pub unbind_within: Duration,
    /// Limit of the answer to a logout.
    pub logout_within: Duration,
    /// Limit of the kernel's destruction of a session, before it is asked again.
    pub destroy_within: Duration,
    /// Time that a check of a disk's identity may take before it shows as a problem.
    pub check_within: Duration,
    /// Time for which a disk's identity may be unknown before the disk goes offline.
    pub identity_within: Duration,
    /// The longest wait that a target may order before the next login.
    pub ordered_within: Duration,
    /// Pause between two looks or checks.
    pub recheck: Duration,
    /// Time for which the state must contradict an error event before the event counts as one of an
    /// earlier connection.
    pub stale_event: Duration,
    /// Pause after the first failure of a login; each further failure doubles it.
    pub retry_first: Duration,
    /// The longest pause.
    pub retry_longest: Duration,
    /// Shortest time between two refusals after which the second one counts. The session's recovery
    /// time counts where it is longer.
    pub refused_for: Duration,
    /// Interval of the looks at sysfs.
    pub look_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect_within: Duration::from_secs(5),
            answer_within: Duration::from_secs(10),
            login_within: Duration::from_secs(30),
            unbind_within: Duration::from_secs(10),
            logout_within: Duration::from_secs(5),
            destroy_within: Duration::from_secs(10),
            check_within: Duration::from_secs(10),
            identity_within: Duration::from_mins(1),
            ordered_within: Duration::from_mins(1),
            recheck: Duration::from_secs(1),
            stale_event: Duration::from_millis(50),
            retry_first: Duration::from_millis(100),
            retry_longest: Duration::from_secs(10),
            refused_for: Duration::from_secs(3),
            look_every: TICK,
        }
    }
}

impl Timing {
    /// Returns the times of the retries of a session with this recovery time: refusals count once
    /// they have lasted as long as its I/O waits.
    fn retry(&self, recovery_timeout_s: u32) -> RetryTimes {
        let refused_for = self.refused_for.max(Duration::from_secs(recovery_timeout_s.into()));
        RetryTimes { first: self.retry_first, longest: self.retry_longest, refused_for }
    }
}

/// Machine that the daemon works on.
#[derive(Clone)]
pub struct Machine {
    /// Initiator of the kernel.
    pub kernel: Arc<dyn IscsiKernel>,
    /// Tree at `/sys`.
    pub sys: Arc<dyn Tree>,
    /// Check of a disk's identity.
    pub identity: Arc<dyn Identity>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
}

/// Number of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// All sessions.
    pub sessions: usize,
    /// Sessions that are logged in.
    pub logged_in: usize,
}

/// Settings of the daemon.
pub struct Config {
    /// Run folder, `/run/mooring`.
    pub run_dir: PathBuf,
    /// Id of this boot; kernel sessions do not outlive one.
    pub boot_id: String,
    /// Name of this host, for people who look at a target.
    pub alias: Option<String>,
    /// Time limits and pauses.
    pub timing: Timing,
    /// Listener at the fault points.
    pub steps: Steps,
    /// Called after a panic of any thread. The daemon's is [`std::process::abort`].
    pub on_panic: Arc<dyn Fn() + Send + Sync>,
    /// Called about each second while all threads come round.
    pub alive: Box<dyn Fn(Pulse) + Send>,
}

impl Config {
    /// Makes the daemon's configuration: aborts after a panic, reports its life to nobody.
    pub fn new(run_dir: impl Into<PathBuf>, boot_id: impl Into<String>) -> Self {
        Self {
            run_dir: run_dir.into(),
            boot_id: boot_id.into(),
            alias: None,
            timing: Timing::default(),
            steps: Steps::silent(),
            on_panic: Arc::new(|| std::process::abort()),
            alive: Box::new(|_| {}),
        }
    }
}

/// Reason why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon works here.
    #[error("another mooring-sessiond{} works on {}: there can be only one", with_pid(*.pid), .folder.display())]
    Another {
        /// Process id of the other.
        pid: Option<u32>,
        /// Folder of both.
        folder: PathBuf,
    },
    /// The lock cannot be taken.
    #[error("cannot see whether another mooring-sessiond works here")]
    Lock(#[source] LockError),
    /// The journal cannot be used.
    #[error("the journal cannot be used")]
    Journal(#[from] JournalError),
    /// The kernel's sessions cannot be seen.
    #[error("cannot see the kernel's iSCSI sessions")]
    Sys(#[from] TreeError),
    /// The socket cannot be made.
    #[error("cannot listen on {}", .path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

fn with_pid(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// State that all threads share.
pub(crate) struct Context {
    kernel: Arc<dyn IscsiKernel>,
    sys: Arc<dyn Tree>,
    identity: Arc<dyn Identity>,
    clock: Arc<dyn Clock>,
    journal: Journal,
    links: RunLinks,
    board: Board,
    timing: Timing,
    steps: Steps,
    boot_id: String,
    alias: Option<String>,
    started: SystemTime,
    stopping: AtomicBool,
    clients: AtomicU64,
    beat: AtomicU64,
    /// Sessions of ours that no journal file had at the start.
    orphans: Mutex<BTreeMap<VolumeId, Vec<KernelView>>>,
    on_panic: Arc<dyn Fn() + Send + Sync>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Context {
    fn sys(&self) -> &dyn Tree {
        self.sys.as_ref()
    }

    fn now(&self) -> Instant {
        self.clock.instant()
    }

    fn wall(&self) -> SystemTime {
        self.clock.now()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Starts a thread. A panic in it ends the process.
    fn spawn(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let on_panic = self.on_panic.clone();
        thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                on_panic();
            }
        })
    }

    /// Starts a thread that a stop waits for.
    fn keep(self: &Arc<Self>, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = self.spawn(name, work)?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Sets a disk running and checks its identity, on a thread that can be lost. The answer goes
    /// to the session.
    fn check_identity(
        self: &Arc<Self>,
        kernel: KernelSession,
        spec: &SessionSpec,
        check: u64,
        answer: Sender<Numbered>,
    ) {
        let (identity, lun) = (self.identity.clone(), spec.lun);
        let want = identity::Wanted { naa: spec.naa.clone(), serial: spec.unit_serial() };
        let (sys, steps) = (self.sys.clone(), self.steps.clone());
        let late = answer.clone();
        let started = self.spawn(format!("check-{}", kernel.sid), move || {
            check::set_running(sys.as_ref(), &steps, kernel, lun.0);
            // The session may have gone meanwhile.
            let _ = answer.send((0, Order::Checked(check, identity.check(kernel, lun, &want))));
        });
        if let Err(error) = started {
            let verdict = identity::Verdict::Unknown(format!("cannot start a thread: {error}"));
            let _ = late.send((0, Order::Checked(check, verdict)));
        }
    }

    fn orphans(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Vec<KernelView>>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the orphans of a volume, as they are now. The caller has to handle them. All of them
    /// stay after an error.
    fn take_orphans(&self, volume: VolumeId) -> Result<Vec<KernelView>, TreeError> {
        let found = self.orphans().remove(&volume).unwrap_or_default();
        let now = found.iter().map(|view| sysfs::view(self.sys(), view.sid)).collect::<Result<Vec<_>, _>>();
        match now {
            Ok(now) => Ok(now.into_iter().flatten().filter(|view| view.volume == Some(volume)).collect()),
            Err(error) => {
                self.keep_orphans(volume, found);
                Err(error)
            }
        }
    }

    /// Keeps orphans that were taken and are left.
    fn keep_orphans(&self, volume: VolumeId, left: impl IntoIterator<Item = KernelView>) {
        let mut left = left.into_iter().peekable();
        if left.peek().is_some() {
            self.orphans().entry(volume).or_default().extend(left);
        }
    }

    /// Enters a session and starts its thread.
    fn enter(self: &Arc<Self>, vacancy: Vacancy<'_>, entry: Entry, begin: Begin) -> io::Result<board::Sent> {
        let volume = entry.spec.volume;
        let (orders, to_self, sent) = vacancy.enter(Key::of(&entry.spec), first_status(&entry));
        let session = Session::new(self.clone(), entry, orders, to_self);
        let name = volume.to_string();
        // Linux shows 15 characters of a thread's name.
        let name = format!("vol-{}", name.get(..8).unwrap_or_default());
        match self.keep(name, move || session.run(begin)) {
            Ok(()) => Ok(sent),
            Err(error) => {
                self.board.drop_slot(volume);
                Err(error)
            }
        }
    }
}

/// A daemon at work.
pub struct Daemon {
    context: Arc<Context>,
    _lock: LockFile,
}

impl Daemon {
    /// Starts the daemon: takes the lock, takes over the sessions of journal and kernel, and
    /// listens. `events` must have been opened before this, so that nothing is lost between the
    /// look at the kernel and the first event.
    pub fn start(config: Config, machine: Machine, events: Box<dyn IscsiEvents>) -> Result<Self, StartError> {
        let folder = config.run_dir.join(FOLDER);
        let journal = Journal::open(&folder, config.steps.clone())?;
        let lock = match LockFile::acquire(folder.join("lock")) {
            Ok(lock) => lock,
            Err(LockError::Held { pid, .. }) => return Err(StartError::Another { pid, folder }),
            Err(error) => return Err(StartError::Lock(error)),
        };
        let entries = journal.load(&config.boot_id)?;
        let context = Arc::new(Context {
            kernel: Arc::new(SteppedKernel::new(machine.kernel, config.steps.clone())),
            sys: machine.sys,
            identity: machine.identity,
            started: machine.clock.now(),
            clock: machine.clock,
            journal,
            links: RunLinks::new(&config.run_dir, "/dev"),
            board: Board::default(),
            timing: config.timing,
            steps: config.steps,
            boot_id: config.boot_id,
            alias: config.alias,
            stopping: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            beat: AtomicU64::new(0),
            orphans: Mutex::default(),
            on_panic: config.on_panic,
            threads: Mutex::default(),
        });
        // From here on threads run: a later failure must not leave them to a daemon that does not
        // exist.
        let daemon = Self { context, _lock: lock };
        let started = daemon.begin(entries, events, config.alive, &config.run_dir.join(SOCKET));
        match started {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.stop();
                Err(error)
            }
        }
    }

    fn begin(
        &self,
        entries: Vec<Entry>,
        events: Box<dyn IscsiEvents>,
        alive: Box<dyn Fn(Pulse) + Send>,
        socket: &Path,
    ) -> Result<(), StartError> {
        let listener =
            server::bind(socket).map_err(|source| StartError::Socket { path: socket.to_owned(), source })?;
        let context = self.context.clone();
        self.context
            .keep("events".to_owned(), move || read_events(&context, events))
            .map_err(StartError::Thread)?;
        take_over(&self.context, entries)?;
        let context = self.context.clone();
        self.context
            .keep("safety-net".to_owned(), move || look_around(&context, alive.as_ref()))
            .map_err(StartError::Thread)?;
        let context = self.context.clone();
        self.context
            .keep("clients".to_owned(), move || server::accept(&context, &listener))
            .map_err(StartError::Thread)
    }

    /// Ends the threads of this process; sessions go on in the kernel. The real daemon is only ever
    /// killed.
    pub fn stop(self) {
        self.context.stopping.store(true, Ordering::Relaxed);
        self.context.board.tell_all(|| Order::Stop);
        loop {
            let thread = self.context.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(thread) = thread else { return };
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }

    /// Waits for ever: the daemon ends by a signal.
    pub fn run(self) -> ! {
        loop {
            thread::park();
        }
    }
}

/// Hands the kernel's events to the sessions.
fn read_events(context: &Context, mut events: Box<dyn IscsiEvents>) {
    while !context.is_stopping() {
        context.beat.fetch_add(1, Ordering::Relaxed);
        match events.next(context.timing.look_every) {
            Ok(None) => {}
            Ok(Some(IscsiEvent::Overrun)) => {
                tracing::warn!("the kernel's events came too fast: every session is looked at");
                context.board.tell_all(|| Order::Look);
            }
            Ok(Some(event)) => {
                if let Some(sid) = sid_of(&event) {
                    context.board.dispatch(sid, event);
                }
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "the kernel's events cannot be read");
                context.board.tell_all(|| Order::Look);
                thread::sleep(TICK);
            }
        }
    }
}

/// Looks at sysfs for changes without an event, and reports that all threads come round.
fn look_around(context: &Context, alive: &dyn Fn(Pulse)) {
    let (mut beat, mut still, mut in_place) = (0, 0, true);
    while !context.is_stopping() {
        thread::sleep(context.timing.look_every);
        let place = context.journal.check_place();
        if let (Err(error), true) = (&place, in_place) {
            tracing::error!(error = %Chain(error), "no session is taken any more");
        }
        in_place = place.is_ok();
        let all = context.board.list();
        let up = all.iter().filter(|session| session.state == SessionState::LoggedIn);
        let mut logged_in = 0;
        for session in up {
            logged_in += 1;
            let Some(sid) = session.sid else { continue };
            let healthy = Some((SessionAttr::LoggedIn, ConnectionAttr::Up));
            if sysfs::state(context.sys(), sid).is_ok_and(|state| state != healthy) {
                context.board.look(session.volume);
            }
        }
        let now = context.beat.load(Ordering::Relaxed);
        still = if now == beat { still + 1 } else { 0 };
        beat = now;
        if still < BEAT_WITHIN {
            alive(Pulse { sessions: all.len(), logged_in });
        }
    }
}

/// Takes over the sessions of journal and kernel.
fn take_over(context: &Arc<Context>, entries: Vec<Entry>) -> Result<(), StartError> {
    let mut views: BTreeMap<Option<VolumeId>, Vec<KernelView>> = BTreeMap::new();
    for view in sysfs::views(context.sys())? {
        views.entry(view.volume).or_default().push(view);
    }
    for mut entry in entries {
        let volume = entry.spec.volume;
        let ours = views.remove(&Some(volume)).unwrap_or_default();
        let (begin, others) = begin_with(&mut entry, ours);
        views.entry(None).or_default().extend(others);
        match (begin, context.board.vacancy(volume)) {
            (Some(begin), Some(vacancy)) => {
                context.enter(vacancy, entry, begin).map_err(StartError::Thread)?;
            }
            // The session was being ended, and has ended.
            (None, _) => context.journal.remove(volume)?,
            (_, None) => {}
        }
    }
    for view in views.into_values().flatten() {
        unwanted(context, view)?;
    }
    Ok(())
}

/// Decides how a session begins for which the kernel has these. Returns the beginning (`None`: it
/// has ended), and those kernel sessions that it does not take over.
fn begin_with(entry: &mut Entry, mut ours: Vec<KernelView>) -> (Option<Begin>, Vec<KernelView>) {
    let chosen = adopt::best(&ours).cloned();
    let mut action = adopt::decide(Some(entry.state), chosen.as_ref());
    let mut begin = None;
    if let Some(view) = chosen {
        // The kernel session was made for another target, and its place is needed.
        if matches!(action, Action::Adopt | Action::Recover)
            && view.target.as_deref() != Some(entry.spec.target.as_str())
        {
            action = Action::Remake;
        }
        entry.portal = portal_of(entry, &view);
        ours.retain(|other| other.sid != view.sid);
        let kernel = kernel_of(&view);
        begin = match action {
            Action::Adopt => Some(Begin::Adopt(kernel)),
            Action::Recover => Some(Begin::Recover(kernel)),
            Action::Remake => Some(Begin::Remake(kernel)),
            Action::End(how) => Some(Begin::End(kernel, how)),
            Action::Cut => Some(Begin::Cut(kernel)),
            _ => None,
        };
    }
    tracing::debug!(volume = %entry.spec.volume, state = ?entry.state, ?action, "session begins");
    match action {
        Action::Make => begin = Some(Begin::Make),
        Action::Keep => begin = Some(Begin::Keep),
        _ => {}
    }
    (begin, ours)
}

/// Handles a kernel session of ours without a journal file.
fn unwanted(context: &Arc<Context>, view: KernelView) -> Result<(), StartError> {
    let (sid, volume) = (view.sid, view.volume);
    match adopt::decide(None, Some(&view)) {
        Action::Destroy => {
            tracing::warn!(sid, ?volume, "a session of ours whose login was never completed is destroyed");
            let (kernel, shared) = (kernel_of(&view), context.clone());
            let reap = move || {
                if !teardown::reap(&shared, kernel) {
                    tracing::error!(
                        sid,
                        "the kernel does not destroy a session whose login was never completed"
                    );
                }
            };
            context.keep(format!("reap-{sid}"), reap).map_err(StartError::Thread)
        }
        Action::Orphan => {
            tracing::warn!(
                sid,
                host = view.host,
                ?volume,
                target = view.target,
                "orphan: a session of ours that nobody has asked for is left as it is, until its volume is attached or \
                 detached"
            );
            if let Some(volume) = volume {
                context.orphans().entry(volume).or_default().push(view);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn kernel_of(view: &KernelView) -> KernelSession {
    KernelSession { sid: view.sid, host: view.host }
}

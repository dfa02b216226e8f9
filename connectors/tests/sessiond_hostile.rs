//! Targets that say too much, order too much, or do not say who their disk is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use mooring_connectors::sessiond::Timing;
use mooring_connectors::sessiond::identity::{Identity, Verdict, Wanted};
use mooring_connectors::wire::{SessionState, SessionStatus};
use mooring_host::{Clock, KernelSession, Tree, TreePath};
use mooring_model::Lun;

use crate::sessiond_common::{INITIATOR, PATIENCE, Rig, Running, log, timing};

/// State of a gate.
#[derive(Default)]
struct Inside {
    /// Answer of every check; `None`: checks hang.
    answer: Option<Verdict>,
    /// Number of threads that are at work.
    at_work: usize,
    /// Largest number of threads that were at work at a time.
    most: usize,
    /// Number of checks that were begun.
    begun: usize,
}

/// Check of an identity that answers as told, or hangs.
#[derive(Default)]
struct Gate {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Gate {
    fn answer(&self, answer: Option<Verdict>) {
        self.inside.lock().unwrap().answer = answer;
        self.changed.notify_all();
    }

    /// Returns the largest number of threads at a time.
    fn most(&self) -> usize {
        self.inside.lock().unwrap().most
    }

    /// Waits until so many checks were begun.
    fn until_begun(&self, number: usize) {
        let inside = self.inside.lock().unwrap();
        let (_inside, waited) =
            self.changed.wait_timeout_while(inside, PATIENCE, |inside| inside.begun < number).unwrap();
        assert!(!waited.timed_out(), "check {number} was not begun");
    }
}

impl Identity for Gate {
    fn check(&self, _session: KernelSession, _lun: Lun, _want: &Wanted) -> Verdict {
        let mut inside = self.inside.lock().unwrap();
        inside.at_work += 1;
        inside.begun += 1;
        inside.most = inside.most.max(inside.at_work);
        self.changed.notify_all();
        let mut inside = self.changed.wait_while(inside, |inside| inside.answer.is_none()).unwrap();
        inside.at_work -= 1;
        inside.answer.clone().unwrap()
    }
}

/// Opens the gate at the end, so that no thread is left.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Ok(mut inside) = self.0.inside.lock() {
            inside.answer = Some(Verdict::Right);
        }
        self.0.changed.notify_all();
    }
}

/// Starts a daemon whose checks answer as the gate is told, and attaches a disk. The last part
/// keeps the daemon running; dropped, it stops the daemon and then opens the gate.
fn gated(timing: Timing) -> (Rig, Arc<Gate>, SessionStatus, (Running, Opened)) {
    let gate = Arc::new(Gate::default());
    let rig = Rig { identity: Some(gate.clone()), timing, ..Rig::new() };
    let kept = (rig.start(), Opened(gate.clone()));
    let before = rig.attach();
    rig.scan(&before);
    (rig, gate, before, kept)
}

/// Timing with which an identity is soon unknown.
fn soon_unknown() -> Timing {
    Timing {
        check_within: Duration::from_millis(20),
        identity_within: Duration::from_millis(100),
        ..timing()
    }
}

/// Waits until the session says that its disk is offline.
fn until_offline(rig: &Rig) -> SessionStatus {
    rig.until("offline", |status| {
        status.problem.as_ref().is_some_and(|problem| problem.contains("the disk is offline until"))
    })
}

/// Returns the state of the one disk.
fn disk_state(rig: &Rig) -> String {
    let disks = rig.host.disks();
    let Some(name) = disks.first() else { return String::new() };
    rig.host.read_text(&TreePath::new(&format!("block/{name}/device/state"))).unwrap_or_default()
}

/// Counts the lines of the log about this rig's session with these words.
fn said(rig: &Rig, words: &str) -> usize {
    let volume = rig.volume.to_string();
    log().lines().filter(|line| line.contains(&volume) && line.contains(words)).count()
}

/// Waits until the session has heard so many messages of its target.
fn until_said(rig: &Rig, messages: usize) {
    let until = Instant::now() + PATIENCE;
    while said(rig, "the target says") < messages {
        assert!(Instant::now() < until, "{messages} messages");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The target says 10,000 times that its LUNs have changed, and answers no INQUIRY meanwhile.
#[test]
fn a_flood_of_changes_costs_one_thread_and_one_login() {
    let (rig, gate, before, _kept) = gated(timing());
    for _ in 0..10_000 {
        rig.target.send_async(INITIATOR, 0, [0, 0, 0]);
    }
    assert!(rig.target.wait_for(|target| target.seen().len() >= 2), "it is logged in anew");
    gate.answer(Some(Verdict::Right));
    let after =
        rig.until("logged in anew", |status| status.state == SessionState::LoggedIn && status.relogins > 0);
    assert_eq!((after.sid, after.relogins), (before.sid, 1));
    // What comes after the flood is handled after it.
    assert_eq!(rig.target.send_async(INITIATOR, 4, [0, 0, 0]), 1);
    let last = rig.until("the end of the flood", |status| {
        status.state == SessionState::LoggedIn && status.relogins > 1
    });
    assert_eq!((last.sid, last.relogins), (before.sid, 2));
    assert_eq!(gate.most(), 1, "one thread at a time");
    assert_eq!(rig.target.logouts(), 0);
    let lines = said(&rig, "the target says");
    assert!((10..1000).contains(&lines), "{lines} lines");
    assert_eq!(said(&rig, "a flood of messages"), 1);
}

/// Changes during a check are seen by one more check, which begins after it.
#[test]
fn a_change_during_a_check_is_checked_once_more() {
    let (rig, gate, _, _kept) = gated(timing());
    assert_eq!(rig.target.send_async(INITIATOR, 0, [0, 0, 0]), 1);
    gate.until_begun(1);
    for _ in 0..3 {
        assert_eq!(rig.target.send_async(INITIATOR, 0, [0, 0, 0]), 1);
    }
    until_said(&rig, 4);
    gate.answer(Some(Verdict::Right));
    gate.until_begun(2);
    let status = rig.until("checked twice", |status| status.verified >= 2);
    assert_eq!((status.state, status.relogins, gate.most()), (SessionState::LoggedIn, 0, 1));
}

#[test]
fn a_disk_that_does_not_say_who_it_is_goes_offline_until_it_does() {
    for answer in [None, Some(Verdict::Unknown("INQUIRY: EIO".to_owned()))] {
        let (rig, gate, before, _kept) = gated(soon_unknown());
        assert_eq!(disk_state(&rig), "running");
        let hangs = answer.is_none();
        gate.answer(answer);
        rig.target.cut_all();
        let status = until_offline(&rig);
        assert_eq!((status.state, status.sid), (SessionState::Recovering, before.sid), "hangs: {hangs}");
        assert!(rig.host.wait_for(|_| disk_state(&rig) == "offline"), "hangs: {hangs}");
        // It is asked on, and the same disk runs again.
        gate.answer(Some(Verdict::Right));
        let after =
            rig.until("a relogin", |status| status.state == SessionState::LoggedIn && status.relogins == 1);
        assert_eq!((after.sid, after.problem), (before.sid, None), "hangs: {hangs}");
        assert_eq!((disk_state(&rig).as_str(), gate.most()), ("running", 1), "hangs: {hangs}");
    }
}

/// The thread of a check sets the disk running. One that is slow may do so after the disk was
/// switched off.
#[test]
fn an_unknown_disk_that_is_set_running_late_goes_offline_again() {
    let (rig, gate, _, _kept) = gated(soon_unknown());
    rig.target.cut_all();
    until_offline(&rig);
    let state = TreePath::new(&format!("block/{}/device/state", rig.host.disks()[0]));
    rig.host.write(&state, b"running\n").unwrap();
    assert!(rig.host.wait_for(|_| disk_state(&rig) == "offline"));
    assert_eq!(gate.most(), 1, "its thread hangs still");
}

/// The control: another disk is never set running for good.
#[test]
fn an_unknown_disk_that_turns_out_to_be_another_ends_the_session() {
    let (rig, gate, _, _kept) = gated(soon_unknown());
    gate.answer(Some(Verdict::Unknown("INQUIRY: EIO".to_owned())));
    rig.target.cut_all();
    until_offline(&rig);
    gate.answer(Some(Verdict::Wrong("another disk".to_owned())));
    rig.until_state(SessionState::WrongDisk);
    assert_eq!((rig.host.sessions(), rig.host.disks()), (vec![], vec![]));
}

/// 65,535 s are 18 hours.
#[test]
fn a_wait_that_the_target_orders_is_bounded() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    for (n, event) in [(1, 2), (2, 3)] {
        assert_eq!(rig.target.send_async(INITIATOR, event, [0, u16::MAX, 0]), 1);
        let after =
            rig.until("a relogin", |status| status.state == SessionState::LoggedIn && status.relogins == n);
        assert_eq!(after.sid, before.sid, "event {event}");
    }
}

/// The recovery time bounds an ordered wait, too: I/O would fail at its end.
#[test]
fn a_wait_that_the_target_orders_ends_with_the_recovery_time() {
    let mut rig = Rig::impatient();
    rig.timing.ordered_within = Duration::from_hours(1);
    let _daemon = rig.start();
    rig.attach();
    assert_eq!(rig.target.send_async(INITIATOR, 3, [0, u16::MAX, 0]), 1);
    rig.until("a relogin", |status| status.state == SessionState::LoggedIn && status.relogins == 1);
}

/// Pause of a session that was lost too often, in milliseconds: longer than any of these tests.
const HOUR_MS: u64 = 3_600_000;

/// Clock that goes so slowly that everything within the patience of a test is within a second.
struct Slow(Instant);

impl Clock for Slow {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn instant(&self) -> Instant {
        self.0 + self.0.elapsed() / 40
    }
}

/// Makes a rig whose daemon pauses for an hour before a login that the target causes too early.
fn pausing() -> Rig {
    let mut rig = Rig { clock: Arc::new(Slow(Instant::now())), ..Rig::new() };
    rig.timing.recheck = Duration::from_millis(HOUR_MS);
    rig
}

/// Has the target end the session after each login until the daemon pauses before the next one.
/// Returns the number of ends.
fn end_until_paused(rig: &Rig, end: impl Fn()) -> u32 {
    let until = Instant::now() + PATIENCE;
    let mut ends = 0;
    loop {
        assert!(Instant::now() < until, "no pause after {ends} ends");
        let status = rig.until("a login or a pause", |status| {
            let logged_in = status.state == SessionState::LoggedIn && status.relogins >= ends;
            logged_in || status.retry_in_ms == Some(HOUR_MS)
        });
        if status.retry_in_ms == Some(HOUR_MS) {
            return ends;
        }
        end();
        ends += 1;
    }
}

/// The first ends cost no pause: a session that is lost now and then is back at once.
#[test]
fn a_target_that_closes_after_each_login_is_paused_for() {
    let rig = pausing();
    let _daemon = rig.start();
    rig.attach();
    let ends = end_until_paused(&rig, || assert_eq!(rig.target.cut(INITIATOR), 1));
    assert!(ends > 10, "{ends} ends");
    assert_eq!(rig.target.seen().len(), usize::try_from(ends).unwrap(), "no login after the last end");
    // The end that is paused for is the first one too many for the log, too.
    assert_eq!(said(&rig, "session lost"), usize::try_from(ends - 1).unwrap());
}

/// The kernel does not tell the end of a connection behind a Logout request: the wait for the
/// answer ends.
#[test]
fn a_target_that_asks_for_logout_and_never_answers_is_paused_for() {
    let mut rig = pausing();
    rig.timing.logout_within = Duration::from_millis(10);
    let _daemon = rig.start();
    rig.attach();
    rig.target.behave(|target| target.ignore_logout = true);
    let ends = end_until_paused(&rig, || assert_eq!(rig.target.send_async(INITIATOR, 1, [0, 0, 60]), 1));
    assert!(ends > 10, "{ends} ends");
    assert_eq!(rig.target.seen().len(), usize::try_from(ends).unwrap(), "no login after the last end");
}

//! The daemon dies at every step and at any moment, and another one takes over what it left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_connectors::client::Client;
use mooring_connectors::sessiond::StartError;
use mooring_connectors::sessiond::steps::{FaultPoint, Side, Step};
use mooring_connectors::wire::{End, SessionState, SessionStatus};
use mooring_host::fake::Faulty;
use mooring_host::fake::initiator::{Acl, Credentials, FakeDisk};
use mooring_host::{Errno, IscsiKernel, IscsiOp, IscsiParam, Tree, TreePath};

use crate::sessiond_common::{BOOT, INITIATOR, PATIENCE, Rig, SECRET, USER, log};

/// Waits by polling, for conditions without a condition variable.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Operation during which the daemon dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    Attach,
    Recover,
    LogOut,
    Cut,
    Forbid,
    WrongDisk,
}

impl Deed {
    fn prepare(self, rig: &Rig) -> Option<SessionStatus> {
        if self == Self::Attach {
            return None;
        }
        let status = rig.attach();
        rig.link(&rig.scan(&status));
        Some(status)
    }

    /// Begins the operation, and does not wait for its end.
    fn begin(self, rig: &Rig) {
        let volume = rig.volume;
        let mut client = rig.client();
        match self {
            Self::Attach => {
                let spec = rig.spec();
                std::thread::spawn(move || client.ensure(&spec, PATIENCE));
            }
            Self::Recover => {
                rig.target.cut_all();
            }
            Self::LogOut | Self::Cut => {
                let how = if self == Self::Cut { End::Cut } else { End::Logout };
                std::thread::spawn(move || client.end(volume, how, PATIENCE));
            }
            Self::Forbid => {
                rig.target.revoke(INITIATOR);
            }
            Self::WrongDisk => {
                rig.target.set_disk(1, FakeDisk::new("99999999-0000-4000-8000-000000000000", 1 << 30));
                rig.target.cut_all();
            }
        }
    }

    fn is_done(self, rig: &Rig, client: &mut Client) -> bool {
        let Ok(status) = client.get(rig.volume) else { return false };
        let state = status.as_ref().map(|status| status.state);
        match self {
            Self::Attach => state == Some(SessionState::LoggedIn),
            Self::Recover => {
                status.is_some_and(|status| status.state == SessionState::LoggedIn && status.relogins == 1)
            }
            Self::LogOut | Self::Cut => status.is_none(),
            Self::Forbid => state == Some(SessionState::Forbidden),
            Self::WrongDisk => state == Some(SessionState::WrongDisk),
        }
    }

    /// Asserts the end state, whenever the daemon died. An attach or logout is requested again
    /// first, as an agent does.
    fn check(self, rig: &Rig, before: Option<&SessionStatus>, at: &str) {
        match self {
            Self::Attach => {
                let status = rig.client().ensure(&rig.spec(), PATIENCE).unwrap();
                assert_eq!(status.state, SessionState::LoggedIn, "{at}");
                one_session(rig, &status, at);
            }
            Self::Recover => {
                let status = rig.until_state(SessionState::LoggedIn);
                assert_eq!(status.sid, before.unwrap().sid, "{at}: the kernel session is the same");
                assert_eq!(rig.host.disks().len(), 1, "{at}: its disk never went");
                assert_eq!(rig.links().len(), 3, "{at}: and its paths stay");
                one_session(rig, &status, at);
            }
            Self::LogOut | Self::Cut => {
                // An end that the journal has recorded completes without a further request.
                if !rig.entry().contains("\"wanted\"") {
                    wait(at, || rig.host.sessions().is_empty() && rig.journal().is_empty());
                }
                assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None, "{at}");
                nothing(rig, at);
                assert_eq!(rig.journal(), Vec::<String>::new(), "{at}");
            }
            Self::Forbid | Self::WrongDisk => {
                let state =
                    if self == Self::Forbid { SessionState::Forbidden } else { SessionState::WrongDisk };
                rig.until_state(state);
                nothing(rig, at);
                assert_eq!(rig.journal().len(), 1, "{at}");
            }
        }
    }
}

fn one_session(rig: &Rig, status: &SessionStatus, at: &str) {
    // Destroyed sessions disappear with a delay.
    assert!(
        rig.host.wait_for(|host| host.sessions() == [status.sid.unwrap()]),
        "{at}: {:?}",
        rig.host.sessions()
    );
    assert!(rig.target.wait_for(|target| target.sessions().len() == 1), "{at}: {:?}", rig.target.sessions());
    assert_eq!(rig.journal(), [format!("{}.json", rig.volume)], "{at}");
}

fn nothing(rig: &Rig, at: &str) {
    assert!(rig.host.wait_for(|host| host.sessions().is_empty() && host.disks().is_empty()), "{at}");
    assert!(rig.target.wait_for(|target| target.sessions().is_empty()), "{at}");
    assert_eq!(rig.links(), [], "{at}: no path leads to it");
}

/// Kills the daemon at each fault point of an operation in turn, until none is left. Returns the
/// number of fault points, and their names.
fn die_everywhere(deed: Deed) -> (u64, BTreeSet<FaultPoint>) {
    let mut seen = BTreeSet::new();
    for n in 0.. {
        let rig = Rig::new();
        let daemon = rig.start();
        let before = deed.prepare(&rig);
        let mut client = rig.client();
        daemon.death.arm(n);
        deed.begin(&rig);
        wait("dead or done", || daemon.death.happened() || deed.is_done(&rig, &mut client));
        let died = daemon.death.happened();
        let passed = daemon.death.passed.lock().unwrap().clone();
        seen.extend(passed.iter().copied());
        let at = format!("{deed:?}, died at {n}: {:?}", passed.last().map(ToString::to_string));
        daemon.kill();
        let _daemon = rig.restart();
        deed.check(&rig, before.as_ref(), &at);
        if !died {
            println!("{deed:?}: {n} fault points, dead and taken over at each");
            return (n, seen);
        }
    }
    unreachable!()
}

#[test]
fn it_may_die_at_every_step_of_an_attach() {
    let (points, seen) = die_everywhere(Deed::Attach);
    assert!(points > 60, "{points}");
    for step in [
        Step::JournalWrite,
        Step::CreateSession,
        Step::CreateConnection,
        Step::BindConnection,
        Step::SetParam,
        Step::SendPdu,
        Step::StartConnection,
    ] {
        assert_eq!(seen.iter().filter(|point| point.step == step).count(), 2, "{step:?}: before and after");
    }
}

#[test]
fn it_may_die_at_every_step_of_a_recovery() {
    let (points, seen) = die_everywhere(Deed::Recover);
    assert!(points > 60, "{points}");
    assert!(seen.iter().any(|point| point.step == Step::StopConnection));
    assert!(!seen.iter().any(|point| point.step == Step::CreateSession), "the kernel session is the same");
}

#[test]
fn it_may_die_at_every_step_of_an_end() {
    let (_, logout) = die_everywhere(Deed::LogOut);
    let (_, cut) = die_everywhere(Deed::Cut);
    for step in [
        Step::JournalWrite,
        Step::StopConnection,
        Step::DestroyConnection,
        Step::DestroySession,
        Step::JournalRemove,
    ] {
        assert!(logout.iter().any(|point| point.step == step), "{step:?}");
        assert!(cut.iter().any(|point| point.step == step), "{step:?}");
    }
    assert!(logout.iter().any(|point| point.step == Step::UnbindSession));
    assert!(!cut.iter().any(|point| matches!(point.step, Step::UnbindSession | Step::SendPdu)));
}

#[test]
fn it_may_die_while_it_gives_a_disk_up() {
    let (_, seen) = die_everywhere(Deed::WrongDisk);
    assert!(seen.iter().any(|point| point.step == Step::DeviceState));
}

/// Returns the path of the one disk's state.
fn state_path(rig: &Rig) -> TreePath {
    TreePath::new(&format!("block/{}/device/state", rig.host.disks()[0]))
}

#[test]
fn a_wrong_disk_is_off_before_its_session_goes() {
    let rig = Rig::new();
    let daemon = rig.start();
    Deed::WrongDisk.prepare(&rig);
    daemon.death.arm_at(FaultPoint { side: Side::After, step: Step::DeviceState });
    Deed::WrongDisk.begin(&rig);
    wait("dead", || daemon.death.happened());
    rig.host.uncrash();
    assert_eq!(rig.host.read_text(&state_path(&rig)).unwrap(), "offline");
    assert_eq!(rig.links().len(), 3, "its paths go with the session, and that has not begun");
}

/// The agent made these paths, and is down. sessiond ends the session by itself, and removes the
/// paths.
#[test]
fn no_path_is_left_of_a_session_that_is_given_up_while_the_agent_is_down() {
    for deed in [Deed::Forbid, Deed::WrongDisk] {
        let rig = Rig::impatient();
        let other = mooring_model::VolumeId::random();
        let stays = mooring_connectors::LinkName::Volume(other);
        let links = mooring_connectors::RunLinks::new(rig.dir.path(), "/dev");
        mooring_connectors::Links::make(&links, other, stays, std::path::Path::new("/dev/sdz")).unwrap();
        let _daemon = rig.start();
        let before = deed.prepare(&rig);
        assert_eq!(rig.links().len(), 3);
        deed.begin(&rig);
        let mut client = rig.client();
        wait("given up", || deed.is_done(&rig, &mut client));
        deed.check(&rig, before.as_ref(), "given up");
        let there = mooring_connectors::Links::look(&links, stays).unwrap();
        assert_eq!(there, mooring_connectors::LinkSeen::To("/dev/sdz".into()), "another volume's");
    }
}

/// The daemon that gave the session up dies before the last path is gone.
#[test]
fn the_paths_of_a_session_that_was_given_up_go_with_the_next_start() {
    let rig = Rig::impatient();
    let daemon = rig.start();
    let status = rig.attach();
    rig.link(&rig.scan(&status));
    rig.target.revoke(INITIATOR);
    rig.until_state(SessionState::Forbidden);
    daemon.kill();
    rig.link(std::path::Path::new("/dev/sda"));
    let _daemon = rig.restart();
    wait("no path is left", || rig.links().is_empty());
}

#[test]
fn a_disk_that_was_switched_off_is_taken_over_and_runs() {
    let rig = Rig::new();
    let daemon = rig.start();
    let before = rig.attach();
    rig.scan(&before);
    daemon.kill();
    rig.host.uncrash();
    rig.host.write(&state_path(&rig), b"offline\n").unwrap();
    let _daemon = rig.start();
    let after = rig.until("checked", |status| status.verified == 1);
    assert_eq!((after.state, after.sid), (SessionState::LoggedIn, before.sid));
    assert_eq!(rig.host.read_text(&state_path(&rig)).unwrap(), "running");
}

/// The kernel says only once that the disks are gone. The successor of a daemon that died after
/// this hears nothing.
#[test]
fn a_logout_goes_on_at_once_when_the_disks_are_gone_already() {
    let mut rig = Rig::new();
    rig.timing.unbind_within = Duration::from_hours(1);
    let daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    daemon.death.arm_at(FaultPoint { side: Side::After, step: Step::UnbindSession });
    Deed::LogOut.begin(&rig);
    wait("dead", || daemon.death.happened());
    daemon.kill();
    assert!(rig.host.wait_for(|host| host.disks().is_empty()));
    let _daemon = rig.restart();
    Deed::LogOut.check(&rig, Some(&status), "after unbind_session");
    assert_eq!(rig.target.logouts(), 1, "the target was told");
}

/// The number of tries before a host is given up varies between runs. These steps occur only at the
/// end.
#[test]
fn it_may_die_while_it_gives_a_revoked_host_up() {
    for step in [Step::JournalWrite, Step::DestroyConnection, Step::DestroySession] {
        for side in [Side::Before, Side::After] {
            let rig = Rig::impatient();
            let daemon = rig.start();
            let before = Deed::Forbid.prepare(&rig);
            let point = FaultPoint { side, step };
            daemon.death.arm_at(point);
            Deed::Forbid.begin(&rig);
            wait("dead", || daemon.death.happened());
            daemon.kill();
            let _daemon = rig.restart();
            Deed::Forbid.check(&rig, before.as_ref(), &point.to_string());
        }
    }
}

#[test]
fn a_healthy_session_is_adopted_without_a_login() {
    let rig = Rig::new();
    let daemon = rig.start();
    let before = rig.attach();
    let device = rig.scan(&before);
    let on_target = rig.target.sessions();
    daemon.kill();
    rig.host.write_disk(&device, 0, b"while nobody looks").unwrap();
    let _daemon = rig.restart();
    let after = rig.until("checked", |status| status.verified == 1);
    assert_eq!((after.state, after.sid, after.host), (SessionState::LoggedIn, before.sid, before.host));
    assert_eq!((after.adopted, after.relogins, &after.isid), (true, 0, &before.isid));
    // The target also keeps its session: it sees no login, no logout, and no other connection.
    assert_eq!(rig.target.sessions(), on_target);
    assert_eq!((rig.target.seen().len(), rig.target.logouts()), (1, 0));
    let log = log();
    let line = log
        .lines()
        .find(|line| line.contains("session adopted, no login") && line.contains(&rig.volume.to_string()));
    assert!(line.unwrap().contains(&format!("sid={}", before.sid.unwrap())));
    // The daemon recovers an adopted session like one of its own.
    rig.target.cut_all();
    rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None);
    nothing(&rig, "in the end");
}

#[test]
fn an_adopted_session_whose_disk_is_another_is_ended() {
    let rig = Rig::new();
    let daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    daemon.kill();
    rig.target.set_disk(1, FakeDisk::new("99999999-0000-4000-8000-000000000000", 1 << 30));
    let _daemon = rig.restart();
    rig.until_state(SessionState::WrongDisk);
    nothing(&rig, "wrong disk");
}

#[test]
fn a_session_that_was_lost_meanwhile_is_recovered() {
    for late in [false, true] {
        let rig = Rig::new();
        let daemon = rig.start();
        let before = rig.attach();
        rig.scan(&before);
        daemon.kill();
        rig.target.cut_all();
        let sid = before.sid.unwrap();
        assert!(rig.host.wait_for(|host| host.session_state(sid).as_deref() == Some("FAILED")));
        if late {
            rig.host.expire_recovery(sid);
        }
        let _daemon = rig.restart();
        let after = rig.until_state(SessionState::LoggedIn);
        assert_eq!((after.sid, after.relogins, after.verified), (before.sid, 1, 1), "late: {late}");
        assert_eq!(rig.host.disks().len(), 1);
    }
}

#[test]
fn what_was_given_up_stays_given_up() {
    let rig = Rig::impatient();
    let daemon = rig.start();
    rig.attach();
    rig.target.revoke(INITIATOR);
    rig.until_state(SessionState::Forbidden);
    daemon.kill();
    rig.target.allow(INITIATOR, Acl { chap: Some(Credentials::new(USER, SECRET)), ..Acl::default() });
    let logins = rig.target.seen().len();
    let _daemon = rig.restart();
    let status = rig.until_state(SessionState::Forbidden);
    assert!(status.problem.unwrap().contains("portal"));
    assert_eq!(rig.client().ensure(&rig.spec(), PATIENCE).unwrap().state, SessionState::Forbidden);
    assert_eq!(rig.target.seen().len(), logins);
}

#[test]
fn nothing_of_others_is_touched() {
    let rig = Rig::new();
    // Sessions of others: of a distribution's initiator, of our agent with a lost journal, and an
    // unnamed foreign one.
    let theirs = rig
        .host
        .log_in(&rig_open(&rig), "iqn.1993-08.org.debian:01:x", "default", [0, 2, 0x3d, 0, 0, 1])
        .unwrap();
    let orphan = rig
        .host
        .log_in(
            &rig_open(&rig),
            "iqn.1993-08.org.debian:01:y",
            &format!("mooring-{}", rig.volume),
            [0x80, 0, 0, 0, 0, 2],
        )
        .unwrap();
    let unnamed = rig.host.create_session(128, 32).unwrap();
    rig.host.set_creator(unnamed.sid, 4711);
    // Sessions of ours: one from a death between making and naming, and a named one that never
    // logged in and that nobody wants.
    let half = rig.host.create_session(128, 32).unwrap();
    let named = rig.host.create_session(128, 32).unwrap();
    rig.host.create_connection(named.sid).unwrap();
    let socket = std::net::TcpStream::connect(rig.target.address()).unwrap();
    rig.host.bind_connection(named.sid, &socket).unwrap();
    rig.host
        .set_param(named.sid, IscsiParam::IfaceName, "mooring-c0000000-1111-4222-8333-444444444444")
        .unwrap();
    let _daemon = rig.start();
    assert!(
        rig.host.wait_for(|host| host.sessions() == [theirs.sid, orphan.sid, unnamed.sid]),
        "{half:?} {named:?}"
    );
    let log = log();
    let line = log.lines().find(|line| line.contains("orphan") && line.contains(&rig.volume.to_string()));
    assert!(line.unwrap().contains(&format!("sid={}", orphan.sid)));
    assert_eq!(rig.client().list().unwrap(), []);
    for sid in [theirs.sid, orphan.sid] {
        assert_eq!(rig.host.session_state(sid).as_deref(), Some("LOGGED_IN"));
    }
}

/// The journal is lost while the sessions live. A request for such a session adopts it; a request
/// for its end ends it.
#[test]
fn an_orphan_is_taken_over_or_ended_when_somebody_asks() {
    for how in [None, Some(End::Logout), Some(End::Cut)] {
        let rig = Rig::new();
        let daemon = rig.start();
        let before = rig.attach();
        let device = rig.scan(&before);
        daemon.kill();
        for file in rig.journal() {
            std::fs::remove_file(rig.folder().join(file)).unwrap();
        }
        let _daemon = rig.restart();
        assert_eq!(rig.client().list().unwrap(), []);
        rig.host.write_disk(&device, 0, b"still there").unwrap();
        match how {
            None => {
                let status = rig.client().ensure(&rig.spec(), PATIENCE).unwrap();
                assert_eq!((status.state, status.sid), (SessionState::LoggedIn, before.sid));
                assert!(status.adopted && rig.entry().contains("\"wanted\""));
                assert_eq!(rig.target.seen().len(), 1);
                one_session(&rig, &status, "adopted");
            }
            Some(how) => {
                assert_eq!(rig.client().end(rig.volume, how, PATIENCE).unwrap(), None);
                nothing(&rig, "ended");
            }
        }
    }
}

/// Logs in a session of the rig's volume that no journal has. Returns its number.
fn orphan(rig: &Rig, n: u8) -> u32 {
    let (initiator, name) = ("iqn.1993-08.org.debian:01:y", format!("mooring-{}", rig.volume));
    rig.host.log_in(&rig_open(rig), initiator, &name, [0x80, 0, 0, 0, 0, n]).unwrap().sid
}

#[test]
fn an_orphan_that_the_kernel_keeps_does_not_hide_the_next_one() {
    let rig = Rig::new();
    let orphans = [1, 2].map(|n| orphan(&rig, n));
    let _daemon = rig.start();
    rig.host.fail(IscsiOp::DestroySession, 1, Errno::EBUSY);
    let error = rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap_err().to_string();
    assert!(error.contains(&format!("session {}", orphans[0])), "{error}");
    assert_eq!(rig.host.sessions(), orphans);
    assert_eq!(rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap(), None);
    assert_eq!(rig.host.sessions(), Vec::<u32>::new(), "gone is said of all of them");
}

#[test]
fn an_orphan_that_cannot_be_looked_at_is_not_gone() {
    let mut rig = Rig::new();
    let sys = Faulty::new(rig.host.clone());
    rig.sys = Some(Arc::new(sys.clone()));
    let sid = orphan(&rig, 1);
    let _daemon = rig.start();
    let of = format!("session{sid}");
    sys.fail_when(Errno::EIO, move |_, path| path.as_str().contains(&of));
    let error = rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap_err().to_string();
    assert!(error.contains("ask again"), "{error}");
    sys.clear();
    assert_eq!(rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap(), None);
    assert_eq!(rig.host.sessions(), Vec::<u32>::new());
}

/// Returns the target, with access for the two foreign initiators.
fn rig_open(rig: &Rig) -> mooring_host::fake::initiator::FakeTarget {
    for initiator in ["iqn.1993-08.org.debian:01:x", "iqn.1993-08.org.debian:01:y"] {
        rig.target.allow(initiator, Acl::default());
    }
    rig.target.clone()
}

#[test]
fn files_that_cannot_be_taken_are_moved_aside() {
    let rig = Rig::new();
    let daemon = rig.start();
    rig.attach();
    daemon.kill();
    let good = rig.entry();
    assert!(good.contains(BOOT));
    let folder = rig.folder();
    let name = |n: u32| folder.join(format!("{n}0000000-1111-4222-8333-444444444444.json"));
    let of = |n: u32, text: &str| {
        let id = format!("{n}0000000-1111-4222-8333-444444444444");
        text.replace(&rig.volume.to_string(), &id)
    };
    for (n, text) in [
        (1, String::new()),
        (2, "not json".to_owned()),
        (3, good.clone()),
        (4, of(4, &good).replace(BOOT, "another-boot")),
        (5, of(5, &good).replace("\"version\": 1", "\"version\": 2")),
        (6, of(6, &good).get(..good.len() / 2).unwrap().to_owned()),
        (7, "\0".repeat(2 * 1024 * 1024)),
    ] {
        std::fs::write(name(n), text).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", name(8)).unwrap();
    std::fs::create_dir(name(9)).unwrap();
    std::fs::write(folder.join("half.tmp"), SECRET).unwrap();
    std::fs::write(folder.join("README"), "somebody's").unwrap();
    let _daemon = rig.restart();
    assert_eq!(rig.until_state(SessionState::LoggedIn).relogins, 0);
    assert_eq!(rig.client().list().unwrap().len(), 1);
    let files = rig.journal();
    let bad: Vec<_> = files.iter().filter(|file| file.ends_with(".json.bad")).collect();
    assert_eq!((bad.len(), files.len()), (9, 10), "{files:?}");
    assert!(!folder.join("half.tmp").exists() && folder.join("README").exists());
    let log = log();
    for n in 1..=9 {
        assert!(log.contains(&format!("{}", name(n).display())), "{n}");
    }
    assert!(!log.contains(SECRET));
}

#[test]
fn the_second_names_the_first() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let Err(error) = rig.try_start() else { panic!("two at once") };
    assert!(matches!(error, StartError::Another { pid: Some(_), .. }));
    let text = error.to_string();
    assert!(text.contains(&format!("another mooring-sessiond (pid {})", std::process::id())), "{text}");
    // The first one goes on.
    rig.attach();
}

#[test]
fn the_journal_is_for_root_alone() {
    use std::os::unix::fs::PermissionsExt;

    let rig = Rig::new();
    // Somebody left the folder open.
    std::fs::create_dir(rig.folder()).unwrap();
    std::fs::set_permissions(rig.folder(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let _daemon = rig.start();
    rig.attach();
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(rig.folder()), 0o700);
    assert_eq!(mode(rig.folder().join(format!("{}.json", rig.volume))), 0o600);
    assert_eq!(mode(rig.folder().join("sessiond.sock")), 0o600);
    assert_eq!(mode(rig.folder().join("lock")), 0o600);
}

#[test]
fn many_sessions_are_taken_over_together() {
    let rigs: Vec<_> = (0..8).map(|_| Rig::new()).collect();
    let host = &rigs[0];
    let daemon = host.start();
    for rig in &rigs {
        let mut spec = rig.spec();
        spec.volume = rig.volume;
        assert_eq!(host.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::LoggedIn);
    }
    let before = host.client().list().unwrap();
    daemon.kill();
    // Half of them lose their session meanwhile, and the kernel notices each loss.
    for rig in rigs.iter().step_by(2) {
        rig.target.cut_all();
        let sid = before.iter().find(|session| session.volume == rig.volume).unwrap().sid.unwrap();
        assert!(host.host.wait_for(|host| host.session_state(sid).as_deref() == Some("FAILED")));
    }
    let _daemon = host.restart();
    wait("all logged in", || {
        let now = host.client().list().unwrap();
        now.len() == 8 && now.iter().all(|session| session.state == SessionState::LoggedIn)
    });
    let after = host.client().list().unwrap();
    let sids = |all: &[SessionStatus]| all.iter().map(|session| session.sid).collect::<Vec<_>>();
    assert_eq!(sids(&after), sids(&before));
    for (n, rig) in rigs.iter().enumerate() {
        let logins = rig.target.seen().len();
        assert_eq!(logins, if n % 2 == 0 { 2 } else { 1 }, "{n}");
    }
}

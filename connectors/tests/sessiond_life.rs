//! Life of one session: made, recovered, refused, ended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::Duration;

use mooring_connectors::client::{ClientError, SessionEvent};
use mooring_connectors::wire::{End, ErrorKind, SessionSpec, SessionState, WireChap};
use mooring_host::fake::initiator::{Acl, Credentials, FakeDisk, TargetProof};
use mooring_host::{Errno, IscsiOp, IscsiParam, Tree, TreePath};
use mooring_model::{Cure, Generation, Naa};

use crate::sessiond_common::{INITIATOR, PATIENCE, Rig, SECRET, USER, log, next_event, refusing_portal};

fn next(generation: Generation) -> Generation {
    generation.next()
}

#[test]
fn a_session_is_made_with_chap_and_ended_with_a_logout() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let status = rig.attach();
    let sid = status.sid.unwrap();
    assert_eq!(rig.host.sessions(), [sid]);
    let sessions = rig.target.sessions();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].initiator, INITIATOR);
    assert_eq!(status.isid, sessions[0].isid.map(|byte| format!("{byte:02x}")).concat());
    assert_eq!(status.isid.get(..2), Some("80"));
    assert_eq!((status.relogins, status.adopted, status.problem), (0, false, None));
    let path = |name: &str| TreePath::new("class/iscsi_session").join(format!("session{sid}")).join(name);
    assert_eq!(rig.host.read_text(&path("ifacename")).unwrap(), format!("mooring-{}", rig.volume));
    assert_eq!(rig.host.read_text(&path("recovery_tmo")).unwrap(), "120");
    // A repeated request changes nothing.
    assert_eq!(rig.client().ensure(&rig.spec(), PATIENCE).unwrap().sid, Some(sid));
    assert_eq!(rig.target.seen().len(), 1);

    assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None);
    assert_eq!((rig.host.sessions(), rig.target.sessions().len()), (vec![], 0));
    assert_eq!(rig.target.logouts(), 1);
    assert_eq!(rig.journal(), Vec::<String>::new());
    // A second end succeeds, too.
    assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None);
    assert_eq!(rig.client().get(rig.volume).unwrap(), None);
}

#[test]
fn a_cut_says_nothing_to_the_target() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    assert_eq!(rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap(), None);
    assert_eq!((rig.host.sessions(), rig.host.disks()), (vec![], vec![]));
    assert!(rig.target.wait_for(|target| target.sessions().is_empty()));
    assert_eq!(rig.target.logouts(), 0);
}

#[test]
fn a_logout_that_is_not_answered_is_bounded_and_can_be_hurried() {
    let mut rig = Rig::new();
    rig.target.behave(|target| target.ignore_logout = true);
    rig.timing.logout_within = Duration::from_millis(20);
    let daemon = rig.start();
    rig.attach();
    assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None);
    drop(daemon);

    rig.host.uncrash();
    rig.timing.logout_within = Duration::from_hours(1);
    let _daemon = rig.start();
    rig.attach();
    let left = rig.client().end(rig.volume, End::Logout, Duration::ZERO).unwrap();
    assert_eq!(left.unwrap().volume, rig.volume);
    rig.until_state(SessionState::Ending);
    assert_eq!(rig.client().end(rig.volume, End::Cut, PATIENCE).unwrap(), None);
    assert_eq!(rig.host.sessions(), Vec::<u32>::new());
}

#[test]
fn a_wrong_secret_is_final_and_names_the_portal() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut spec = rig.spec();
    spec.chap = Some(WireChap { user: USER.into(), secret: "something-else-entirely".into(), mutual: None });
    let status = rig.client().ensure(&spec, PATIENCE).unwrap();
    assert_eq!(status.state, SessionState::Failed);
    let problem = status.problem.unwrap();
    assert!(problem.contains(&format!("portal {}", rig.portal())), "{problem}");
    assert!(problem.contains("0201") && problem.contains("CHAP"), "{problem}");
    assert_eq!(status.sid, None);
    assert_eq!((rig.host.sessions(), rig.target.seen().len()), (vec![], 1));
    // This generation does not try again; a newer one does.
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::Failed);
    assert_eq!(rig.target.seen().len(), 1);
    spec.generation = next(spec.generation);
    spec.chap = rig.spec().chap;
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::LoggedIn);
}

#[test]
fn mutual_chap_without_the_targets_proof_is_no_login() {
    let rig = Rig::new();
    rig.target.allow(
        INITIATOR,
        Acl {
            chap: Some(Credentials::new(USER, SECRET)),
            mutual: Some(Credentials::new("target", "the-targets-own-secret")),
            read_only: false,
        },
    );
    rig.target.behave(|target| target.proof = TargetProof::Missing);
    let _daemon = rig.start();
    let mut spec = rig.spec();
    let mutual = Some(("target".to_owned(), "the-targets-own-secret".to_owned()));
    spec.chap = Some(WireChap { user: USER.into(), secret: SECRET.into(), mutual });
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::Failed);
    assert_eq!(rig.host.sessions(), Vec::<u32>::new());
    rig.target.behave(|target| target.proof = TargetProof::Right);
    spec.generation = next(spec.generation);
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::LoggedIn);
}

#[test]
fn a_refusing_portal_gives_way_to_the_next() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut spec = rig.spec();
    spec.portals = vec![refusing_portal(), rig.portal()];
    let status = rig.client().ensure(&spec, PATIENCE).unwrap();
    assert_eq!((status.state, status.portal), (SessionState::LoggedIn, Some(rig.portal())));
    assert_eq!(rig.host.sessions().len(), 1);
}

#[test]
fn an_unreachable_target_is_tried_on_and_the_answer_says_so_in_time() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut spec = rig.spec();
    let dead = refusing_portal();
    spec.portals = vec![dead];
    let status = rig.client().ensure(&spec, Duration::from_millis(50)).unwrap();
    assert_eq!(status.state, SessionState::Connecting);
    let status = rig.until("a problem", |status| status.problem.is_some());
    let problem = status.problem.unwrap();
    assert!(problem.contains(&format!("portal {dead}")), "{problem}");
    assert!(problem.contains("Connection refused") && problem.contains("tried"), "{problem}");
    // Nothing is left in the kernel between two tries.
    assert_eq!(rig.host.sessions(), Vec::<u32>::new());
    // Another portal comes with a newer generation.
    spec.generation = next(spec.generation);
    spec.portals = vec![dead, rig.portal()];
    let status = rig.client().ensure(&spec, PATIENCE).unwrap();
    assert_eq!((status.state, status.generation), (SessionState::LoggedIn, spec.generation));
}

#[test]
fn a_target_that_is_not_there_yet_is_tried_on() {
    let rig = Rig::new();
    rig.target.set_enabled(false);
    let _daemon = rig.start();
    assert_eq!(
        rig.client().ensure(&rig.spec(), Duration::from_millis(20)).unwrap().state,
        SessionState::Connecting
    );
    rig.until("a problem", |status| status.problem.is_some());
    rig.target.set_enabled(true);
    let status = rig.until_state(SessionState::LoggedIn);
    assert_eq!(status.problem, None);
    assert_eq!(rig.host.sessions().len(), 1);
}

#[test]
fn a_silent_target_is_bounded() {
    let mut rig = Rig::new();
    rig.timing.answer_within = Duration::from_millis(200);
    rig.target.behave(|target| target.stall_at = Some(2));
    let _daemon = rig.start();
    let _ = rig.client().ensure(&rig.spec(), Duration::ZERO).unwrap();
    // On a busy machine an earlier answer may be late in one of the tries.
    let says_the_step = |problem: &String| problem.contains("no answer (the CHAP challenge)");
    rig.until("the step at which it is silent", |status| status.problem.as_ref().is_some_and(says_the_step));
    rig.target.behave(|target| target.stall_at = None);
    rig.until_state(SessionState::LoggedIn);
    assert_eq!(rig.host.sessions().len(), 1);
}

#[test]
fn a_lost_session_is_logged_in_again_at_once_and_its_disk_checked() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    rig.scan(&before);
    for n in 1..=3 {
        assert_eq!(rig.target.cut_all(), 1);
        let after =
            rig.until("a relogin", |status| status.relogins == n && status.state == SessionState::LoggedIn);
        assert_eq!((after.sid, &after.isid), (before.sid, &before.isid));
        assert_eq!((after.verified, after.problem), (n, None));
        assert_eq!(rig.target.sessions().len(), 1);
    }
    assert_eq!(rig.host.disks().len(), 1);
}

#[test]
fn an_event_that_was_lost_is_found_in_sysfs() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    rig.host.lose_events(true);
    rig.target.cut_all();
    assert!(rig.host.wait_for(|host| host.session_state(before.sid.unwrap()).as_deref() == Some("FAILED")));
    rig.host.lose_events(false);
    let after =
        rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    assert_eq!(after.sid, before.sid);
}

#[test]
fn a_recovery_that_comes_late_brings_the_disk_back() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    let device = rig.scan(&before);
    rig.target.stop_listening();
    rig.target.cut_all();
    rig.until("a failed relogin", |status| status.retry_in_ms.is_some());
    rig.host.expire_recovery(before.sid.unwrap());
    assert!(rig.host.read_disk(&device, 0, 512).is_err());
    rig.target.listen().unwrap();
    let after =
        rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    assert_eq!(after.sid, before.sid);
    assert!(rig.host.read_disk(&device, 0, 512).is_ok());
}

/// A storage node gives these answers while the device of the volume hangs (lio.md, u), or while it
/// restores its exports. The session waits, however often they come, and its disk waits with it.
#[test]
fn a_lost_session_whose_target_is_not_there_for_now_is_tried_on() {
    for (status, said) in [((3, 1), "status 0301"), ((2, 3), "status 0203")] {
        let rig = Rig::new();
        let _daemon = rig.start();
        let before = rig.attach();
        let device = rig.scan(&before);
        rig.target.behave(|target| target.refuse = Some(status));
        rig.target.cut_all();
        rig.until("a refused relogin", |status| {
            status.problem.as_ref().is_some_and(|problem| problem.contains(said))
                && status.retry_in_ms.is_some()
        });
        // Such refusals never make a session forbidden.
        let logins = rig.target.seen().len();
        assert!(rig.target.wait_for(|target| target.seen().len() >= logins + 4));
        rig.target.behave(|target| target.refuse = None);
        let after =
            rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
        assert_eq!((after.sid, &after.isid), (before.sid, &before.isid));
        assert!(rig.host.read_disk(&device, 0, 512).is_ok());
    }
}

#[test]
fn a_revoked_host_is_forbidden_after_its_recovery_time_and_its_disk_goes() {
    let rig = Rig::impatient();
    let _daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    rig.target.revoke(INITIATOR);
    let status = rig.until_state(SessionState::Forbidden);
    assert_eq!((status.sid, rig.host.sessions(), rig.host.disks()), (None, vec![], vec![]));
    let logins = rig.target.seen().len();
    assert!(logins >= 3, "one refusal is not enough: {logins}");
    assert!(rig.entry().contains("\"forbidden\""));
    // The session is not tried again, not even for a repeated request.
    assert_eq!(rig.client().ensure(&rig.spec(), PATIENCE).unwrap().state, SessionState::Forbidden);
    assert_eq!(rig.target.seen().len(), logins);
    // A newer generation begins anew.
    rig.target.allow(INITIATOR, Acl { chap: Some(Credentials::new(USER, SECRET)), ..Acl::default() });
    let mut spec = rig.spec();
    spec.generation = next(spec.generation);
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::LoggedIn);
    assert!(rig.entry().contains("\"wanted\""));
}

#[test]
fn another_disk_after_a_recovery_ends_the_session() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    let other = FakeDisk::new("99999999-0000-4000-8000-000000000000", 1 << 30);
    rig.target.set_disk(1, other.clone());
    rig.target.cut_all();
    let status = rig.until_state(SessionState::WrongDisk);
    let problem = status.problem.unwrap();
    assert!(problem.contains(&other.naa()) && problem.contains(&rig.disk.naa()), "{problem}");
    assert_eq!((rig.host.sessions(), rig.host.disks()), (vec![], vec![]));
    assert_eq!(rig.client().ensure(&rig.spec(), PATIENCE).unwrap().state, SessionState::WrongDisk);
    // A newer generation may name the disk that is there.
    let mut spec = rig.spec();
    spec.generation = next(spec.generation);
    spec.naa = Naa::from_hex(&other.naa()).unwrap();
    spec.serial = Some("99999999-0000-4000-8000-000000000000".to_owned());
    assert_eq!(rig.client().ensure(&spec, PATIENCE).unwrap().state, SessionState::LoggedIn);
    // A session that was given up can be ended.
    assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None);
    assert_eq!(rig.journal(), Vec::<String>::new());
}

/// A disk with the NAA of this serial, and with another serial: the serials differ only after the
/// 25th digit.
fn twin_of(serial: &str) -> FakeDisk {
    let (kept, last) = serial.split_at(serial.len() - 1);
    FakeDisk::new(format!("{kept}{}", if last == "f" { "e" } else { "f" }), 1 << 30)
}

#[test]
fn session_ends_when_its_disk_has_the_naa_of_another_serial() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    let twin = twin_of(&rig.volume.to_string());
    assert_eq!(twin.naa(), rig.disk.naa(), "one NAA");
    rig.target.set_disk(1, twin);
    rig.target.cut_all();
    let problem = rig.until_state(SessionState::WrongDisk).problem.unwrap();
    assert!(problem.contains("serial") && problem.contains(&rig.volume.to_string()), "{problem}");
    assert_eq!((rig.host.sessions(), rig.host.disks()), (vec![], vec![]));
}

#[test]
fn session_asks_for_the_serial_when_an_older_agent_names_none() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let spec = SessionSpec { serial: None, ..rig.spec() };
    assert_eq!(spec.unit_serial(), Some(rig.volume.to_string()), "its NAA tells it");
    let status = rig.client().ensure(&spec, PATIENCE).unwrap();
    rig.scan(&status);
    // The control: the original disk comes back first.
    rig.target.cut_all();
    rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    // The agent is upgraded and asks again: the session stays.
    let again = rig.client().ensure(&rig.spec(), PATIENCE).unwrap();
    assert_eq!((again.sid, again.state), (status.sid, SessionState::LoggedIn));
    rig.target.set_disk(1, twin_of(&rig.volume.to_string()));
    rig.target.cut_all();
    rig.until_state(SessionState::WrongDisk);
}

#[test]
fn what_the_target_says_by_itself_is_answered_by_a_new_login() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    // Logout request (within a minute: a busy target may answer late), drop of the connection, drop
    // of all connections, new negotiation.
    for (n, event, seconds) in [(1, 1, 60), (2, 2, 0), (3, 3, 0), (4, 4, 0)] {
        assert_eq!(rig.target.send_async(INITIATOR, event, [0, 0, seconds]), 1);
        let after =
            rig.until("a relogin", |status| status.relogins == n && status.state == SessionState::LoggedIn);
        assert_eq!(after.sid, before.sid, "event {event}");
    }
    assert_eq!(rig.target.logouts(), 1);
    // A vendor's event is logged and changes nothing. The next event is handled as usual.
    rig.target.send_async(INITIATOR, 255, [0, 0, 0]);
    rig.target.send_async(INITIATOR, 4, [0, 0, 0]);
    rig.until("a relogin", |status| status.relogins == 5 && status.state == SessionState::LoggedIn);
}

#[test]
fn what_others_do_to_the_session_is_put_right() {
    use mooring_host::IscsiKernel;

    let rig = Rig::new();
    let _daemon = rig.start();
    let first = rig.attach().sid.unwrap();
    // Somebody unbinds the session's disks: an unbound session never gets any again.
    rig.host.unbind_session(first).unwrap();
    let second = rig
        .until("a new session", |status| status.state == SessionState::LoggedIn && status.sid != Some(first))
        .sid
        .unwrap();
    assert_eq!(rig.host.sessions(), [second]);
    // Somebody destroys the session.
    rig.host.stop_connection(second, mooring_host::StopMode::Terminate).unwrap();
    rig.host.destroy_connection(second).unwrap();
    rig.host.destroy_session(second).unwrap();
    let third = rig.until("a new session", |status| {
        status.state == SessionState::LoggedIn && status.sid.is_some_and(|sid| sid > second)
    });
    assert_eq!(rig.host.sessions(), [third.sid.unwrap()]);
    // The session's SCSI host goes away: the session is not made again.
    rig.host.break_connection(third.sid.unwrap(), 1018);
    let status = rig.until_state(SessionState::Failed);
    assert!(status.problem.unwrap().contains("unloaded"));
    assert_eq!(rig.host.sessions(), Vec::<u32>::new());
}

#[test]
fn a_kernel_that_refuses_any_step_leaves_nothing_and_is_asked_again() {
    let ops = [
        IscsiOp::CreateSession,
        IscsiOp::CreateConnection,
        IscsiOp::BindConnection,
        IscsiOp::SetParam(IscsiParam::IfaceName),
        IscsiOp::SetParam(IscsiParam::MaxBurst),
        IscsiOp::SendPdu,
        IscsiOp::StartConnection,
    ];
    for op in ops {
        let rig = Rig::new();
        let _daemon = rig.start();
        rig.host.fail(op, 1, Errno::ENOMEM);
        let mut watch = rig.client().watch().unwrap();
        // A watch that begins after the login shows no failure.
        next_event(&mut watch, |event| *event == SessionEvent::Synced);
        let status = rig.client().ensure(&rig.spec(), PATIENCE).unwrap();
        assert_eq!(status.state, SessionState::LoggedIn, "{op:?}");
        let event = next_event(
            &mut watch,
            |event| matches!(event, SessionEvent::Session(status) if status.problem.is_some()),
        );
        let SessionEvent::Session(failed) = event else { panic!() };
        assert!(failed.problem.unwrap().contains("ENOMEM"), "{op:?}");
        assert_eq!(rig.host.sessions(), [status.sid.unwrap()], "{op:?}");
    }
    for op in [IscsiOp::StopConnection, IscsiOp::DestroyConnection, IscsiOp::UnbindSession] {
        let rig = Rig::new();
        let _daemon = rig.start();
        rig.attach();
        rig.host.fail(op, 1, Errno::EINVAL);
        assert_eq!(rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap(), None, "{op:?}");
        assert_eq!(rig.host.sessions(), Vec::<u32>::new(), "{op:?}");
    }
}

#[test]
fn one_volume_has_one_session() {
    let rig = Rig::new();
    let _daemon = rig.start();
    rig.attach();
    let mut spec = rig.spec();
    spec.generation = next(spec.generation);
    spec.target = "iqn.2026-11.dev.mooring:other".parse().unwrap();
    let error = rig.client().ensure(&spec, PATIENCE).unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused { kind: ErrorKind::Conflict, text } if text.contains("end it"))
    );
    assert_eq!(error.cure(), Cure::FixSpec);
    // A session that is requested while it ends begins anew.
    rig.host.pause(IscsiOp::DestroySession);
    assert!(rig.client().end(rig.volume, End::Cut, Duration::ZERO).unwrap().is_some());
    assert!(rig.host.wait_for(|host| host.is_paused(IscsiOp::DestroySession)));
    let volume = rig.volume;
    let mut again = rig.spec();
    again.generation = next(again.generation);
    let mut client = rig.client();
    let mut watch = rig.client().watch().unwrap();
    next_event(&mut watch, |event| *event == SessionEvent::Synced);
    let asked = std::thread::spawn(move || client.ensure(&again, PATIENCE));
    rig.host.resume(IscsiOp::DestroySession);
    assert_eq!(asked.join().unwrap().unwrap().state, SessionState::LoggedIn);
    next_event(&mut watch, |event| *event == SessionEvent::Gone(volume));
    assert_eq!(rig.host.sessions().len(), 1);
}

#[test]
fn new_portals_and_secrets_are_taken_over_without_a_login() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    let mut spec = rig.spec();
    spec.generation = next(spec.generation);
    spec.portals = vec![rig.portal(), refusing_portal()];
    spec.recovery_timeout_s = 30;
    spec.chap = Some(WireChap { user: USER.into(), secret: "another-secret-here".into(), mutual: None });
    let after = rig.client().ensure(&spec, PATIENCE).unwrap();
    assert_eq!(
        (after.state, after.sid, after.generation),
        (SessionState::LoggedIn, before.sid, spec.generation)
    );
    assert_eq!(rig.target.seen().len(), 1);
    let path = TreePath::new("class/iscsi_session")
        .join(format!("session{}", before.sid.unwrap()))
        .join("recovery_tmo");
    assert_eq!(rig.host.read_text(&path).unwrap(), "30");
    assert!(rig.entry().contains("another-secret-here"));
    // An older generation is late, and changes nothing.
    let late = rig.client().ensure(&rig.spec(), PATIENCE).unwrap();
    assert_eq!(late.generation, spec.generation);
    // The next login uses the new secret.
    let credentials = Credentials::new(USER, "another-secret-here");
    rig.target.allow(INITIATOR, Acl { chap: Some(credentials), ..Acl::default() });
    rig.target.cut_all();
    rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
}

#[test]
fn no_secret_leaves_the_journal() {
    let rig = Rig::new();
    let daemon = rig.start();
    let status = rig.attach();
    rig.scan(&status);
    rig.target.cut_all();
    rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    let mut wrong = rig.spec();
    wrong.generation = next(wrong.generation);
    let text = format!("{wrong:?} {:?} {:?}", rig.client().list().unwrap(), wrong.chap);
    assert!(!text.contains(SECRET));
    daemon.kill();
    let _daemon = rig.restart();
    rig.until_state(SessionState::LoggedIn);
    for file in walk(rig.dir.path()) {
        if file.extension().is_some_and(|extension| extension == "json") {
            continue;
        }
        // The socket cannot be read like a file.
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{}", file.display());
    }
    let log = log();
    assert!(log.contains(&rig.volume.to_string()), "the control: the log is kept");
    assert!(!log.contains(SECRET));
    // The secret is not in sysfs either.
    let seen = mooring_host::dump_below(&rig.host, &TreePath::root());
    assert!(!format!("{seen:?}").contains(SECRET));
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn a_redirect_is_followed_and_a_circle_of_them_is_bounded() {
    let rig = Rig::new();
    let elsewhere = Rig::new();
    let _daemon = rig.start();
    // The second target is called like the first one, as on another node of a cluster.
    let there = elsewhere.portal();
    rig.target.behave(|target| target.redirect = Some((1, rig.portal().to_string())));
    let _ = rig.client().ensure(&rig.spec(), Duration::ZERO).unwrap();
    let status = rig.until("a problem", |status| status.problem.is_some());
    let problem = status.problem.unwrap();
    assert!(problem.contains("redirects more than"), "{problem}");
    rig.target.behave(|target| target.redirect = Some((1, there.to_string())));
    // The second machine has another target, and says so.
    rig.until("not found there", |status| {
        status.problem.as_ref().is_some_and(|problem| problem.contains("0203"))
    });
    rig.target.behave(|target| target.redirect = None);
    rig.until_state(SessionState::LoggedIn);
    assert_eq!(rig.host.sessions().len(), 1);
}

//! Sessions that a target admitted once and refuses now: waited for, until their time is over or
//! somebody ends them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::Duration;

use mooring_connectors::wire::{End, SessionState, SessionStatus};
use mooring_host::fake::initiator::{Acl, Credentials};
use mooring_host::{IscsiKernel, StopMode};

use crate::sessiond_common::{INITIATOR, PATIENCE, Rig, SECRET, USER, refusing_portal};

/// Number of refusals that take longer than `refused_for` of these tests, by their pauses alone.
const MANY: usize = 16;

/// The answers of a target that does not admit the initiator: wrong credentials, and no ACL.
const REFUSALS: [((u8, u8), &str); 2] = [((2, 1), "0201"), ((2, 2), "0202")];

fn says(status: &SessionStatus, word: &str) -> bool {
    status.problem.as_ref().is_some_and(|problem| problem.contains(word))
}

fn allow(rig: &Rig) {
    rig.target.allow(INITIATOR, Acl { chap: Some(Credentials::new(USER, SECRET)), ..Acl::default() });
}

/// Waits for so many refusals that two of them, some time apart, would be the end.
fn refuse_often(rig: &Rig) {
    let logins = rig.target.seen().len();
    assert!(rig.target.wait_for(|target| target.seen().len() >= logins + MANY), "it is tried on");
}

/// Destroys a kernel session as another program would.
fn destroy(rig: &Rig, sid: u32) {
    rig.host.stop_connection(sid, StopMode::Terminate).unwrap();
    rig.host.destroy_connection(sid).unwrap();
    rig.host.destroy_session(sid).unwrap();
}

#[test]
fn a_session_whose_acl_comes_back_goes_on_with_its_disk() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let before = rig.attach();
    let device = rig.scan(&before);
    rig.target.revoke(INITIATOR);
    let status = rig.until("refused", |status| says(status, "0202") && status.retry_in_ms.is_some());
    assert_eq!((status.state, status.sid), (SessionState::Recovering, before.sid));
    refuse_often(&rig);
    assert_eq!(rig.client().get(rig.volume).unwrap().unwrap().state, SessionState::Recovering);
    allow(&rig);
    let after =
        rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    assert_eq!((after.sid, &after.isid, after.problem), (before.sid, &before.isid, None));
    assert_eq!((rig.host.disks().len(), after.verified), (1, 1), "its disk never went");
    assert!(rig.host.read_disk(&device, 0, 512).is_ok());
}

/// Somebody takes the kernel's session away while the target refuses this host: the session is made
/// anew when it is admitted again.
#[test]
fn a_session_that_is_made_anew_waits_for_its_target_too() {
    for (refusal, word) in REFUSALS {
        for destroyed in [false, true] {
            let rig = Rig::new();
            let _daemon = rig.start();
            let sid = rig.attach().sid.unwrap();
            rig.target.behave(|target| target.refuse = Some(refusal));
            if destroyed {
                destroy(&rig, sid);
            } else {
                rig.host.unbind_session(sid).unwrap();
            }
            let status = rig.until("refused", |status| {
                let again = status.state == SessionState::Connecting && status.retry_in_ms.is_some();
                again && says(status, word)
            });
            assert_eq!(status.sid, None, "{word} {destroyed}: nothing is left between two tries");
            refuse_often(&rig);
            rig.target.behave(|target| target.refuse = None);
            let after = rig.until_state(SessionState::LoggedIn);
            assert_eq!(rig.host.sessions(), [after.sid.unwrap()], "{word} {destroyed}");
        }
    }
}

/// Takes a word out of the journal's entry, as an earlier release wrote it.
fn without_admitted(rig: &Rig) {
    let file = rig.folder().join(format!("{}.json", rig.volume));
    let mut entry: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(entry.as_object_mut().unwrap().remove("admitted"), Some(true.into()));
    std::fs::write(&file, serde_json::to_vec(&entry).unwrap()).unwrap();
}

#[test]
fn a_daemon_that_starts_knows_who_was_admitted() {
    for older in [false, true] {
        let rig = Rig::new();
        let daemon = rig.start();
        let sid = rig.attach().sid.unwrap();
        daemon.kill();
        rig.host.uncrash();
        destroy(&rig, sid);
        assert!(rig.host.wait_for(|host| host.sessions().is_empty()));
        if older {
            without_admitted(&rig);
        }
        rig.target.behave(|target| target.refuse = Some((2, 2)));
        let _daemon = rig.start();
        if older {
            // The control: it takes the refusal for that of a first login.
            rig.until_state(SessionState::Failed);
            continue;
        }
        rig.until("refused", |status| says(status, "0202") && status.retry_in_ms.is_some());
        refuse_often(&rig);
        rig.target.behave(|target| target.refuse = None);
        rig.until_state(SessionState::LoggedIn);
    }
}

/// The kernel's session is enough for a journal of an earlier release.
#[test]
fn a_session_that_is_taken_over_was_admitted() {
    let rig = Rig::new();
    let daemon = rig.start();
    let before = rig.attach();
    daemon.kill();
    without_admitted(&rig);
    rig.target.revoke(INITIATOR);
    let _daemon = rig.restart();
    rig.until("refused", |status| says(status, "0202") && status.retry_in_ms.is_some());
    refuse_often(&rig);
    allow(&rig);
    let after = rig.until_state(SessionState::LoggedIn);
    assert_eq!(after.sid, before.sid);
    assert!(rig.entry().contains("\"admitted\": true"), "{}", rig.entry());
}

/// Makes a rig whose daemon pauses for longer than any test after a refusal.
fn slow() -> Rig {
    let mut rig = Rig::new();
    rig.timing.retry_first = Duration::from_hours(1);
    rig.timing.retry_longest = Duration::from_hours(1);
    rig
}

#[test]
fn an_order_to_end_ends_the_wait_of_a_refused_session() {
    for how in [End::Cut, End::Logout] {
        let rig = slow();
        let _daemon = rig.start();
        let status = rig.attach();
        rig.link(&rig.scan(&status));
        rig.target.revoke(INITIATOR);
        rig.until("refused", |status| says(status, "0202") && status.retry_in_ms.is_some());
        assert_eq!(rig.links().len(), 3, "its paths wait with it");
        assert_eq!(rig.client().end(rig.volume, how, PATIENCE).unwrap(), None);
        assert_eq!((rig.host.sessions(), rig.host.disks(), rig.links()), (vec![], vec![], vec![]));
        assert_eq!(rig.journal(), Vec::<String>::new());
    }
}

#[test]
fn a_newer_generation_is_tried_at_once_and_for_its_own_time() {
    let rig = slow();
    let _daemon = rig.start();
    let before = rig.attach();
    rig.target.revoke(INITIATOR);
    rig.until("refused", |status| says(status, "tried 1 times") && status.retry_in_ms.is_some());
    let mut spec = rig.spec();
    spec.generation = spec.generation.next();
    let logins = rig.target.seen().len();
    let _ = rig.client().ensure(&spec, Duration::ZERO).unwrap();
    assert!(rig.target.wait_for(|target| target.seen().len() > logins));
    let newer = spec.generation;
    rig.until("refused anew", |status| {
        status.generation == newer && says(status, "tried 1 times") && status.retry_in_ms.is_some()
    });
    allow(&rig);
    spec.generation = spec.generation.next();
    let after = rig.client().ensure(&spec, PATIENCE).unwrap();
    assert_eq!((after.state, after.sid), (SessionState::LoggedIn, before.sid));
}

/// The wait for an answer is long enough for a login, if the order causes one.
#[test]
fn the_same_order_again_leaves_the_pause_of_a_refused_session() {
    let rig = slow();
    let _daemon = rig.start();
    rig.attach();
    rig.target.revoke(INITIATOR);
    rig.until("refused", |status| says(status, "tried 1 times") && status.retry_in_ms.is_some());
    let logins = rig.target.seen().len();
    let mut spec = rig.spec();
    for _ in 0..2 {
        let status = rig.client().ensure(&spec, Duration::from_millis(200)).unwrap();
        assert!(says(&status, "tried 1 times") && status.retry_in_ms.is_some(), "{status:?}");
    }
    assert_eq!(rig.target.seen().len(), logins);
    // The control: another portal is tried at once, although the generation is the same.
    spec.portals.push(refusing_portal());
    let _ = rig.client().ensure(&spec, Duration::ZERO).unwrap();
    rig.until("refused anew", |status| says(status, "tried 2 times") && status.retry_in_ms.is_some());
    assert_eq!(rig.target.seen().len(), logins + 1);
}

/// A spec that comes before the access is back is no first login: its refusals are waited for.
#[test]
fn a_forbidden_session_waits_for_its_target_at_a_newer_generation() {
    let rig = Rig::impatient();
    let daemon = rig.start();
    rig.attach();
    rig.target.revoke(INITIATOR);
    rig.until_state(SessionState::Forbidden);
    // It is remembered over a restart.
    daemon.kill();
    let rig = Rig { recovery_timeout_s: 120, ..rig };
    let _daemon = rig.restart();
    let mut spec = rig.spec();
    spec.generation = spec.generation.next();
    let _ = rig.client().ensure(&spec, Duration::ZERO).unwrap();
    let newer = spec.generation;
    let status = rig.until("an answer", |status| status.generation == newer && says(status, "0202"));
    assert_eq!(status.state, SessionState::Connecting);
    refuse_often(&rig);
    allow(&rig);
    let status = rig.until_state(SessionState::LoggedIn);
    assert_eq!((status.generation, rig.host.sessions()), (newer, vec![status.sid.unwrap()]));
}

//! Rotation of secrets: a live session is not touched, and one that must log in again gets in,
//! whichever of the two secrets the target has.

use mooring_connectors::client::Client;
use mooring_connectors::wire::{SessionSpec, SessionState, SessionStatus, WireChap};
use mooring_host::fake::initiator::{Acl, Credentials};

use crate::sessiond_common::{INITIATOR, PATIENCE, Rig, SECRET, USER};

const NEW: &str = "the-secret-that-comes";
const TARGET: [&str; 2] = ["the-targets-own-secret", "the-targets-new-secret"];

fn chap(secret: &str, target: &str) -> WireChap {
    WireChap {
        user: USER.into(),
        secret: secret.into(),
        mutual: Some(("target".to_owned(), target.to_owned())),
    }
}

/// A spec with this counter and these credentials: `own` are in use, `other` are the alternative.
fn spec(rig: &Rig, counter: u64, own: WireChap, other: Option<WireChap>) -> SessionSpec {
    let mut spec = rig.spec();
    spec.generation.counter = counter;
    (spec.chap, spec.other_chap) = (Some(own), other);
    spec
}

fn give(rig: &Rig, secret: &str, mutual: &str) {
    let acl = Acl {
        chap: Some(Credentials::new(USER, secret)),
        mutual: Some(Credentials::new("target", mutual)),
        read_only: false,
    };
    rig.target.allow(INITIATOR, acl);
}

fn ensure(client: &mut Client, spec: &SessionSpec) -> SessionStatus {
    client.ensure(spec, PATIENCE).unwrap()
}

#[test]
fn while_secrets_are_rotated_either_logs_in_again() {
    let rig = Rig::impatient();
    let _daemon = rig.start();
    let mut client = rig.client();
    let (old, new) = (chap(SECRET, TARGET[0]), chap(NEW, TARGET[1]));
    give(&rig, SECRET, TARGET[0]);
    let first = ensure(&mut client, &spec(&rig, 1, old.clone(), None));
    assert_eq!((first.state, first.secrets), (SessionState::LoggedIn, 1));
    let both = ensure(&mut client, &spec(&rig, 2, old.clone(), Some(new.clone())));
    // The change causes no login.
    assert_eq!((both.state, both.secrets, both.relogins, both.sid), (first.state, 2, 0, first.sid));
    // A relogin also succeeds between the target's two steps, in either order.
    let mut relogins = 0;
    for (own, other) in [(old.clone(), new.clone()), (new.clone(), old)] {
        let generation = 3 + u64::from(relogins);
        ensure(&mut client, &spec(&rig, generation, own, Some(other)));
        for secret in [SECRET, NEW] {
            for mutual in TARGET {
                give(&rig, secret, mutual);
                rig.target.cut_all();
                relogins += 1;
                rig.until("a relogin", |status| {
                    status.relogins == relogins && status.state == SessionState::LoggedIn
                });
            }
        }
    }
    let last = ensure(&mut client, &spec(&rig, 20, new.clone(), None));
    assert_eq!((last.state, last.secrets, last.relogins, last.sid), (first.state, 1, relogins, first.sid));
    assert!(!rig.entry().contains(SECRET) && !rig.entry().contains(TARGET[0]), "the old ones are forgotten");
    // The control: a target with neither secret ends the session, and an impostor's proof gets
    // none.
    give(&rig, "neither-of-the-two", TARGET[1]);
    rig.target.cut_all();
    rig.until_state(SessionState::Forbidden);
    give(&rig, NEW, "neither-of-the-two");
    let refused = ensure(&mut client, &spec(&rig, 21, new.clone(), Some(chap(SECRET, TARGET[0]))));
    assert_eq!(refused.state, SessionState::Connecting);
    // The next login may be under way when the answer comes.
    rig.until("nothing left of a login that was refused", |status| {
        status.state == SessionState::Connecting && rig.host.sessions().is_empty()
    });
    give(&rig, NEW, TARGET[1]);
    assert_eq!(ensure(&mut client, &spec(&rig, 22, new, None)).state, SessionState::LoggedIn);
}

#[test]
fn a_first_login_and_a_killed_daemon_know_both_secrets() {
    let rig = Rig::new();
    let daemon = rig.start();
    let (old, new) = (chap(SECRET, TARGET[0]), chap(NEW, TARGET[1]));
    give(&rig, NEW, TARGET[1]);
    let status = ensure(&mut rig.client(), &spec(&rig, 1, old.clone(), Some(new)));
    assert_eq!((status.state, status.secrets), (SessionState::LoggedIn, 2));
    assert_eq!(rig.host.sessions().len(), 1, "nothing is left of the login that was refused");
    daemon.kill();
    let _daemon = rig.restart();
    let status = rig.until_state(SessionState::LoggedIn);
    assert_eq!((status.adopted, status.secrets), (true, 2));
    rig.target.cut_all();
    rig.until("a relogin", |status| status.relogins == 1 && status.state == SessionState::LoggedIn);
    // Invalid credentials are refused by their field, and the session stays unchanged.
    let mut alone = spec(&rig, 2, old.clone(), Some(chap("", TARGET[1])));
    let refused = rig.client().ensure(&alone, PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("other_chap.secret"), "{refused}");
    (alone.chap, alone.other_chap) = (None, Some(old));
    let refused = rig.client().ensure(&alone, PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("other_chap") && !refused.contains(SECRET), "{refused}");
    assert_eq!(rig.client().get(rig.volume).unwrap().unwrap().secrets, 2);
}

//! Tuning of an export's sessions: values are written before anybody could use them, change under
//! live sessions, and are read only where the spec has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use mooring_host::Tree;
use mooring_host::fake::{Counted, FakeMachine, LoginRefusal, SessionId};
use mooring_model::{Mode, TuningKey};
use mooring_targets::{Known, Wanted, apply, layout, plan, tuning as at};

const PORTALS: [&str; 1] = ["10.10.0.10:3260"];
const SECRET: &str = "secret-1234567";

fn export(hosts: &[usize], said: &[(&str, &str)]) -> Wanted {
    let chap = Some(chap("user", SECRET));
    let grants = hosts.iter().map(|host| grant(*host, 1, Mode::ReadWrite, chap.clone())).collect();
    tuned(present(&PORTALS, grants), said)
}

fn log_in(machine: &FakeMachine, number: usize) -> Result<SessionId, LoginRefusal> {
    machine.login(PORTALS[0], names().iqn.as_str(), &host(number), Some(("user", SECRET)))
}

fn seen(machine: &FakeMachine, key: TuningKey) -> String {
    machine.lio().read_text(&at::path(&names(), key)).unwrap()
}

/// Returns the value that a host's newest session has agreed on, or its command window.
fn of_session(machine: &FakeMachine, number: usize, name: &str) -> String {
    let acl = layout::acl(&names(), &host(number));
    let path = if name == "cmdsn_depth" { acl.join(name) } else { acl.join("param").join(name) };
    machine.lio().read_text(&path).unwrap()
}

#[test]
fn every_value_of_every_key_is_what_the_kernel_takes() {
    let machine = machine();
    let values: [(&str, &[&str]); 9] = [
        ("header_digest", &["none", "crc32c", "crc32c,none"]),
        ("data_digest", &["none", "crc32c", "crc32c,none"]),
        ("queue_depth", &["1", "512"]),
        ("max_burst", &["512", "16777215"]),
        ("first_burst", &["512", "262144"]),
        ("max_recv_segment", &["512", "16777215"]),
        ("immediate_data", &["yes", "no"]),
        ("initial_r2t", &["yes", "no"]),
        ("max_outstanding_r2t", &["1", "65535"]),
    ];
    assert_eq!(values.len(), TuningKey::ALL.len());
    for (name, values) in values {
        let key: TuningKey = name.parse().unwrap();
        for value in values {
            pass(&machine.lio(), &export(&[1], &[(name, value)])).unwrap();
            assert_eq!(seen(&machine, key), at::text(key, key.parse(value).unwrap()), "{name}");
        }
    }
    // The values of a new portal group are the ones that we take for the kernel's defaults.
    pass(&machine.lio(), &absent()).unwrap();
    pass(&machine.lio(), &export(&[1], &[])).unwrap();
    for key in TuningKey::ALL {
        assert_eq!(seen(&machine, key), at::text(key, key.kernel_default()));
    }
}

/// An export without tuning is planned and looked at as before, whatever values somebody else has
/// written.
#[test]
fn what_nobody_said_anything_about_is_not_looked_at() {
    let machine = machine();
    let tree = Counted::new(machine.lio());
    let wanted = export(&[1], &[]);
    pass(&tree, &wanted).unwrap();
    for key in TuningKey::ALL {
        let other = if key.is_flag() { "No" } else { "512" };
        let other =
            if matches!(key, TuningKey::HeaderDigest | TuningKey::DataDigest) { "None" } else { other };
        tree.write(&at::path(&names(), key), other.as_bytes()).unwrap();
    }
    tree.reset();
    let view = look(&tree, &wanted);
    let cost = tree.total();
    assert!(plan(&wanted, &view).is_quiet());
    // The control: each value in the spec is read, with one operation each, and corrected.
    let said = export(&[1], &[("max_burst", "8192"), ("queue_depth", "64")]);
    tree.reset();
    let view = look(&tree, &said);
    assert_eq!(tree.total(), cost + 2);
    assert_eq!(plan(&said, &view).steps.len(), 2);
}

#[test]
fn sessions_that_are_there_notice_nothing() {
    let machine = machine();
    pass(&machine.lio(), &export(&[1, 2], &[("max_burst", "1048576"), ("queue_depth", "128")])).unwrap();
    let one = log_in(&machine, 1).unwrap();
    let two = log_in(&machine, 2).unwrap();
    assert_eq!(of_session(&machine, 1, "MaxBurstLength"), "1048576");
    let later = [("max_burst", "8192"), ("queue_depth", "16"), ("initial_r2t", "no")];
    let steps = plan_now(&machine.lio(), &export(&[1, 2], &later));
    assert_eq!(steps.steps.len(), 3, "{}", text(&steps));
    apply(&steps, &machine.lio(), &mut ()).unwrap();
    assert!(plan_now(&machine.lio(), &export(&[1, 2], &later)).is_quiet());
    assert!(machine.is_live(one) && machine.is_live(two));
    assert_eq!(of_session(&machine, 1, "MaxBurstLength"), "1048576");
    // A later login, and a later ACL.
    machine.logout(two);
    log_in(&machine, 2).unwrap();
    assert_eq!(of_session(&machine, 2, "MaxBurstLength"), "8192");
    assert_eq!(
        (of_session(&machine, 2, "FirstBurstLength"), of_session(&machine, 2, "InitialR2T")),
        ("8192".into(), "0".into())
    );
    assert_eq!(of_session(&machine, 2, "cmdsn_depth"), "128", "another depth would have cut its session");
    pass(&machine.lio(), &export(&[1, 2, 3], &later)).unwrap();
    assert_eq!(of_session(&machine, 3, "cmdsn_depth"), "16");
    assert!(machine.is_live(one));
}

#[test]
fn a_digest_that_is_demanded_is_demanded_from_the_first_login_on() {
    let machine = machine();
    let wanted = export(&[1], &[("data_digest", "crc32c")]);
    // After every step of the creation, an initiator that gets in was asked for the digest.
    let steps = plan_now(&machine.lio(), &wanted);
    for step in &steps.steps {
        apply(
            &mooring_model::Plan { steps: vec![step.clone()], ..Default::default() },
            &machine.lio(),
            &mut (),
        )
        .unwrap();
        assert!(log_in(&machine, 1).is_err(), "after {}", step.op);
    }
    assert_eq!(log_in(&machine, 1), Err(LoginRefusal::NoDigest));
    pass(&machine.lio(), &export(&[1], &[("data_digest", "crc32c,none")])).unwrap();
    log_in(&machine, 1).unwrap();
}

/// A change of tuning is no change of grants.
#[test]
fn a_narrow_look_is_for_grants_only() {
    let machine = machine();
    let (wanted, other) = (export(&[1], &[("queue_depth", "8")]), export(&[1, 2], &[("queue_depth", "16")]));
    pass(&machine.lio(), &wanted).unwrap();
    let known = || Known::new(&wanted, look(&machine.lio(), &wanted)).unwrap();
    assert!(known().narrow(&other).is_none());
    let narrow = known().narrow(&export(&[1, 2], &[("queue_depth", "8")])).unwrap();
    let steps = plan(&narrow.wanted, &narrow.look(&machine.lio()).unwrap());
    apply(&steps, &machine.lio(), &mut ()).unwrap();
    assert_eq!(of_session(&machine, 2, "cmdsn_depth"), "8");
}

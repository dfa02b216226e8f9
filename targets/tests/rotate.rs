//! Rotation of secrets while a host may have to log in again: after every step of the plan the host
//! gets in with the old or the new secret, and an existing session lives on. The control: with
//! another user, the gate is closed for a moment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;

use crate::common::*;
use mooring_host::Tree;
use mooring_model::{Chap, Mode, Step};
use mooring_targets::{Op, Wanted, apply, layout};

const PORTAL: &str = "10.10.0.10:3260";

fn credentials(user: &str, age: &str, mutual: bool) -> Chap {
    let target = side("target", &format!("{age}-secret-of-the-target"));
    Chap { mutual: mutual.then_some(target), ..chap(user, &format!("{age}-secret-of-the-host")) }
}

fn spec(mode: Mode, chap: Chap) -> Wanted {
    present(&[PORTAL], vec![grant(1, 1, mode, Some(chap)), grant(2, 1, Mode::ReadOnly, None)])
}

/// Returns the credentials with which host 1 could log in, at the beginning and after each step.
fn open_to(before: &Wanted, after: &Wanted) -> Vec<BTreeSet<Option<(String, String)>>> {
    let machine = machine_beside_foreign();
    settle(&machine, before);
    let shown = before.grants()[0].chap.as_ref().unwrap().initiator.clone();
    let shown = (shown.user.as_str(), shown.secret.expose());
    let session = machine.login(PORTAL, names().iqn.as_str(), &host(1), Some(shown)).unwrap();
    let open = || {
        let ways = ways(&machine).into_iter().filter(|way| way.initiator == host(1));
        ways.map(|way| way.credentials).collect::<BTreeSet<_>>()
    };
    let mut seen = vec![open()];
    let tree = machine.lio();
    let plan = plan_now(&tree, after);
    let mut each = |_: &Step<Op>| seen.push(open());
    apply(&plan, &tree, &mut Each(&mut each)).unwrap();
    assert!(machine.is_live(session), "the session lives on:\n{}", text(&plan));
    assert!(plan_now(&tree, after).is_quiet());
    // Nothing of the old secrets is left.
    let auth = layout::acl(&names(), &host(1)).join("auth");
    for file in ["userid", "password", "userid_mutual", "password_mutual"] {
        let kept = tree.read(&auth.join(file)).unwrap();
        assert!(!String::from_utf8_lossy(&kept).contains("old-secret"), "{file}");
    }
    seen
}

#[test]
fn a_host_gets_in_after_every_step_of_a_rotation() {
    let modes = [Mode::ReadOnly, Mode::ReadWrite];
    for (from, to, mutual) in modes
        .into_iter()
        .flat_map(|from| modes.into_iter().flat_map(move |to| [true, false].map(|mutual| (from, to, mutual))))
    {
        let (old, new) = (credentials("host", "old", mutual), credentials("host", "new", mutual));
        let seen = open_to(&spec(from, old.clone()), &spec(to, new.clone()));
        let pair = |of: &Chap| Some((of.initiator.user.clone(), of.initiator.secret.expose().to_owned()));
        let (old, new) = (BTreeSet::from([pair(&old)]), BTreeSet::from([pair(&new)]));
        assert!(seen.len() > 1 && seen.iter().all(|open| *open == old || *open == new), "{seen:?}");
        assert_eq!((seen.first(), seen.last()), (Some(&old), Some(&new)));
    }
}

#[test]
fn another_user_closes_the_gate_for_a_moment() {
    let (old, new) = (credentials("host", "old", true), credentials("other", "new", true));
    let seen = open_to(&spec(Mode::ReadWrite, old), &spec(Mode::ReadWrite, new));
    // A secret of `NULL` admits nobody.
    let closed = |way: &Option<(String, String)>| way.as_ref().is_some_and(|(_, secret)| secret == "NULL");
    assert!(seen.iter().any(|open| open.iter().all(closed)), "the control: {seen:?}");
}

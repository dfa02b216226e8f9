//! The rules as exhaustive tables, and as laws.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;

use mooring_controller::domain::{
    AttachStatus, AttachViolation, AttachmentStatus, RuleViolation, VolumeStatus,
};
use mooring_controller::initiators::Initiators;
use mooring_controller::rules::{self, Existing, Operation};
use mooring_model::{AttachmentId, Mode, VolumeId};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

fn specs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn multiattach_is_exactly_one_spec() {
    for yes in ["<is> True", "<is> true", "<IS> TRUE", " <is>  True ", "<is>\tTrue"] {
        assert!(rules::is_multiattach(&specs(&[("multiattach", yes)])), "{yes:?}");
    }
    for no in
        ["", "True", "<is>", "<is> yes", "<is> 1", "<is> False", "<is>True", "<is> True False", "<in> True"]
    {
        assert!(!rules::is_multiattach(&specs(&[("multiattach", no)])), "{no:?}");
    }
    assert!(!rules::is_multiattach(&specs(&[("capabilities:multiattach", "<is> True")])));
    assert!(rules::check_specs(&specs(&[("multiattach", "<is> True"), ("cacheable", "<is> True")])).is_err());
    assert!(rules::check_specs(&specs(&[("multiattach", "<is> True"), ("cacheable", "<is> False")])).is_ok());
}

/// The words of the table, written apart from the code under test.
fn expected(statuses: &[AttachmentStatus]) -> (VolumeStatus, AttachStatus) {
    use AttachmentStatus as A;
    if statuses.contains(&A::Attached) {
        (VolumeStatus::InUse, AttachStatus::Attached)
    } else if statuses.contains(&A::Attaching) {
        (VolumeStatus::Attaching, AttachStatus::Attaching)
    } else if statuses.contains(&A::Detaching) {
        (VolumeStatus::Detaching, AttachStatus::Detaching)
    } else if statuses.contains(&A::Reserved) {
        (VolumeStatus::Reserved, AttachStatus::Reserved)
    } else {
        (VolumeStatus::Available, AttachStatus::Detached)
    }
}

#[test]
fn every_set_of_attachments_has_its_status() {
    let all = AttachmentStatus::ALL;
    // All subsets, with every operation.
    for bits in 0..1_u32 << all.len() {
        let set: Vec<_> =
            all.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, status)| *status).collect();
        let (status, attach) = expected(&set);
        assert_eq!(rules::derive(None, set.iter().copied()), (status, attach), "{set:?}");
        for operation in Operation::ALL {
            let seen = rules::derive(Some(operation), set.iter().copied());
            assert_eq!(seen, (operation.status(), attach), "{operation:?} {set:?}");
        }
    }
}

fn initiator(n: u32) -> Initiators {
    format!("iqn.2026-01.org.example:n{n}").parse().unwrap()
}

fn existing(n: u32, status: AttachmentStatus) -> Existing {
    Existing {
        id: AttachmentId::from_u128(n.into()),
        status,
        instance: Some(Uuid::from_u128(n.into())),
        mode: Mode::ReadWrite,
        initiator: Some(initiator(n)),
        host: Some(format!("node{n}")),
        wants_grant: true,
    }
}

#[test]
fn who_may_reserve() {
    let volume = VolumeId::from_u128(1);
    let ok = |multi, operation, there: &[Existing], instance| {
        rules::may_attach(volume, multi, operation, there, instance, false).is_ok()
    };
    for status in AttachmentStatus::ALL.iter().copied() {
        let there = [existing(1, status)];
        assert!(ok(true, None, &there, None), "{status}: a shared volume takes another in any state");
        let harmless = status == AttachmentStatus::ErrorAttaching;
        assert_eq!(ok(false, None, &there, None), harmless, "{status}");
        assert_eq!(ok(false, None, &there, Some(Uuid::from_u128(2))), harmless, "{status}");
        assert!(ok(false, None, &there, Some(Uuid::from_u128(1))), "{status}: the same server moves");
    }
    let two = [existing(1, AttachmentStatus::Attached), existing(2, AttachmentStatus::Attached)];
    assert!(!ok(false, None, &two, Some(Uuid::from_u128(1))));
}

#[test]
fn who_may_reserve_while_an_operation_runs() {
    let volume = VolumeId::from_u128(1);
    let verdict = |multi, operation, there: &[Existing], instance| {
        rules::may_attach(volume, multi, operation, there, instance, false)
    };
    let there = [existing(1, AttachmentStatus::Attached)];
    let (same, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
    for operation in Operation::ALL {
        // A growth changes nothing of who may attach: the volume is served all the while.
        let grows = matches!(operation, Operation::Extending | Operation::ErrorExtending);
        assert_eq!(verdict(true, Some(operation), &[], None).is_ok(), grows, "{operation:?}");
        assert_eq!(verdict(false, Some(operation), &[], None).is_ok(), grows, "{operation:?}");
        assert_eq!(verdict(true, Some(operation), &there, other).is_ok(), grows, "{operation:?}");
        assert_eq!(verdict(false, Some(operation), &there, same).is_ok(), grows, "{operation:?}: it moves");
        let refused = verdict(false, Some(operation), &there, other).unwrap_err();
        // The refusal names the status that stands in the way.
        let status = if grows { VolumeStatus::InUse } else { operation.status() };
        let wanted = AttachViolation::NotAttachable { volume, multiattach: false, status, announced: 0 };
        assert_eq!(refused, RuleViolation::Attach(wanted), "{operation:?}");
    }
}

#[test]
fn an_operation_of_a_later_release_serves_and_ends_nothing() {
    let unknown = Operation::from_stored("freezing");
    assert_eq!((unknown, unknown.status()), (Operation::Unknown, VolumeStatus::Error));
    assert!(!unknown.is_served() && !unknown.is_coming() && !unknown.is_going());
    assert!(!Operation::ALL.contains(&unknown));
    for operation in Operation::ALL {
        assert_eq!(Operation::from_stored(operation.status().as_str()), operation);
    }
    let volume = VolumeId::from_u128(1);
    assert!(rules::may_attach(volume, true, Some(unknown), &[], None, false).is_err());
}

#[test]
fn a_place_is_taken_once_and_not_while_it_is_being_taken_away() {
    let there = [existing(1, AttachmentStatus::Attached)];
    let place = |instance, n: u32, host, there: &[Existing]| {
        rules::may_connect(None, instance, &initiator(n), host, there).is_ok()
    };
    assert!(!place(Some(Uuid::from_u128(1)), 9, Some("node1"), &there));
    assert!(place(Some(Uuid::from_u128(1)), 9, Some("node2"), &there));
    assert!(place(None, 1, Some("node1"), &there), "two attachments of one host share its nexus");
    let mut going = existing(1, AttachmentStatus::Detaching);
    assert!(place(None, 1, None, std::slice::from_ref(&going)));
    going.wants_grant = false;
    assert!(!place(None, 1, None, std::slice::from_ref(&going)));
    assert!(place(None, 2, None, std::slice::from_ref(&going)));
}

#[test]
fn the_mode_is_the_nearest_that_was_said() {
    let connector = |mode: serde_json::Value| json!({ "mode": mode }).as_object().unwrap().clone();
    let mut sibling = existing(1, AttachmentStatus::Attached);
    sibling.mode = Mode::ReadOnly;
    let (me, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
    let there = [sibling];
    let ro = connector(json!("ro"));
    let rw = connector(json!("rw"));
    for (argument, given, instance, want) in [
        (Some(Mode::ReadOnly), Some(&rw), other, Mode::ReadOnly),
        (Some(Mode::ReadWrite), Some(&ro), me, Mode::ReadWrite),
        (None, Some(&ro), other, Mode::ReadOnly),
        (None, Some(&rw), me, Mode::ReadWrite),
        (None, None, me, Mode::ReadOnly),
        (None, None, other, Mode::ReadWrite),
        (None, None, None, Mode::ReadWrite),
        (None, Some(&connector(json!("null"))), other, Mode::ReadWrite),
        (None, Some(&connector(json!(null))), me, Mode::ReadOnly),
    ] {
        let mode = rules::mode(argument, given, instance, &there, false).unwrap();
        assert_eq!(mode, want, "{argument:?} {given:?} {instance:?}");
    }
    for wrong in [json!("RW"), json!(""), json!("w"), json!(1), json!(["ro"])] {
        assert!(rules::mode(None, Some(&connector(wrong.clone())), None, &[], false).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn the_effective_mode_is_never_wider_than_what_was_asked_for(ro in proptest::collection::vec(any::<bool>(), 0..8)) {
        let modes = ro.iter().map(|ro| if *ro { Mode::ReadOnly } else { Mode::ReadWrite });
        let want = if ro.is_empty() { None } else if ro.iter().all(|ro| *ro) { Some(Mode::ReadOnly) } else { Some(Mode::ReadWrite) };
        prop_assert_eq!(rules::effective_mode(modes), want);
    }

    #[test]
    fn force_never_takes_another_with_it(n in 0_usize..6, granted in proptest::collection::vec(any::<bool>(), 6)) {
        let there: Vec<_> = (0..6_u32).map(|i| {
            let mut one = existing(i, AttachmentStatus::Attached);
            one.initiator = Some(initiator(i / 2));
            one.wants_grant = granted[i as usize];
            one
        }).collect();
        let me = &there[n];
        let verdict = rules::may_force(me.id, me.initiator.as_ref().unwrap(), &there, false);
        prop_assert_eq!(verdict.ok(), (!there[n ^ 1].wants_grant).then(Vec::new));
    }
}

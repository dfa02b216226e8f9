//! Quotas: never more than the limit, by any call; and the words that clients know.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;

use mooring_controller::domain::{QuotaViolation, RuleViolation};
use mooring_controller::http::sentence;
use mooring_controller::quota::{self, Delta, Key, Limit, Limits, Usage};
use proptest::prelude::*;

fn limits(pairs: &[(&str, i64)]) -> Limits {
    let project = pairs
        .iter()
        .map(|(name, number)| (Key::from_name(name).unwrap(), Limit::from_number(*number).unwrap()))
        .collect();
    Limits { project, ..Limits::default() }
}

fn usage(pairs: &[(&str, u64)]) -> Usage {
    pairs.iter().map(|(name, used)| (Key::from_name(name).unwrap(), *used)).collect()
}

fn said(violation: QuotaViolation) -> String {
    sentence(&RuleViolation::Quota(violation))
}

fn text(used: &[(&str, u64)], set: &[(&str, i64)], delta: &Delta) -> String {
    said(quota::check(&usage(used), &limits(set), delta).unwrap_err())
}

#[test]
fn what_is_over_is_said_in_the_known_words() {
    let one = Delta::volume("gold", 1);
    assert_eq!(
        text(&[("volumes", 10)], &[], &one),
        "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'."
    );
    assert_eq!(
        text(&[("volumes", 10), ("gigabytes", 10)], &[("gigabytes", 10)], &one),
        "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 1G, quota \
         is 10G and 10G has been consumed."
    );
    assert_eq!(
        text(&[], &[("per_volume_gigabytes", 10), ("gigabytes", 0)], &Delta::volume("gold", 20)),
        "VolumeSizeExceedsLimit: Requested volume size 20G is larger than maximum allowed limit 10G."
    );
    assert!(
        text(&[("volumes_gold", 2)], &[("volumes_gold", 2)], &one).ends_with("for quota 'volumes_gold'.")
    );
    assert!(
        text(&[("gigabytes_gold", 5)], &[("gigabytes_gold", 5)], &one)
            .contains("allowed gigabytes_gold quota")
    );
    assert_eq!(
        text(&[("snapshots", 10)], &[], &Delta::snapshot("gold", 1)),
        "SnapshotLimitExceeded: Maximum number of snapshots allowed (10) exceeded"
    );
    let grown = Delta::extend("gold", 4, 9);
    assert!(text(&[("gigabytes", 996)], &[], &grown).contains("Requested 5G, quota is 1000G and 996G"));
    assert!(
        text(&[], &[("per_volume_gigabytes", 8)], &grown).contains("larger than maximum allowed limit 8G")
    );
}

#[test]
fn every_refusal_has_the_word() {
    let all: Vec<_> = Key::PLAIN.into_iter().chain(Key::of_type("t")).collect();
    let deltas = [
        Delta::volume("t", 3),
        Delta::snapshot("t", 3),
        Delta::extend("t", 1, 3),
        Delta::retype("s", "t", 3),
        Delta::retype_snapshot("s", "t", 3),
    ];
    let mut seen = 0;
    for key in &all {
        let zero = Limits { project: BTreeMap::from([(key.clone(), Limit::At(0))]), ..Limits::default() };
        for delta in &deltas {
            if let Err(over) = quota::check(&Usage::new(), &zero, delta) {
                seen += 1;
                let text = said(over);
                assert!(text.to_lowercase().contains("exceed"), "{text}");
            }
        }
    }
    // volumes 1, gigabytes 3, snapshots 1, per volume 2, and for the type: volumes 2, gigabytes 5,
    // snapshots 2.
    assert_eq!(seen, 16);
}

#[test]
fn a_limit_comes_from_the_nearest() {
    let key = Key::from_name("gigabytes_gold").unwrap();
    let mut limits = Limits::default();
    assert_eq!(limits.of(&key), Limit::Unlimited);
    assert_eq!(limits.of(&Key::Volumes), Limit::At(10));
    assert_eq!(limits.of(&Key::PerVolumeGigabytes), Limit::Unlimited);
    limits.configured.insert(key.clone(), Limit::At(1));
    assert_eq!(limits.of(&key), Limit::At(1));
    limits.class.insert(key.clone(), Limit::At(2));
    assert_eq!(limits.of(&key), Limit::At(2));
    limits.project.insert(key.clone(), Limit::Unlimited);
    assert_eq!((limits.of(&key), limits.default_of(&key)), (Limit::Unlimited, Limit::At(2)));
}

#[test]
fn keys_and_limits_are_read_strictly() {
    for key in Key::PLAIN.into_iter().chain(Key::of_type("my_type: x")) {
        assert_eq!(Key::from_name(&key.to_string()), Some(key));
    }
    for wrong in ["", "volume", "volumes_", "_", "gigabytes_", "Volumes", "groups_x", "backups_x", "id"] {
        assert_eq!(Key::from_name(wrong), None, "{wrong:?}");
    }
    for (number, ok) in
        [(-1, true), (0, true), (0x7fff_ffff, true), (-2, false), (0x8000_0000, false), (i64::MIN, false)]
    {
        let limit = Limit::from_number(number);
        assert_eq!(limit.map(Limit::number), ok.then_some(number), "{number}");
    }
}

#[test]
fn the_table_names_every_key() {
    let rows = limits(&[("volumes_a", 3)]).table(&usage(&[("volumes_a", 2), ("volumes", 4)]), &["a", "b"]);
    let shown: Vec<_> =
        rows.iter().map(|row| format!("{}={}/{}", row.key, row.in_use, row.limit.number())).collect();
    assert_eq!(
        shown.join(" "),
        "volumes=4/10 per_volume_gigabytes=0/-1 snapshots=0/10 gigabytes=0/1000 backups=0/10 backup_gigabytes=0/1000 \
         groups=0/10 volumes_a=2/3 gigabytes_a=0/-1 snapshots_a=0/-1 volumes_b=0/-1 gigabytes_b=0/-1 snapshots_b=0/-1"
    );
}

#[test]
fn a_limit_is_not_set_below_what_is_used() {
    let used = usage(&[("volumes", 5)]);
    let set = |key: &str, number| {
        quota::may_set(&Key::from_name(key).unwrap(), Limit::from_number(number).unwrap(), &used)
            .map_err(|violation| sentence(&violation))
    };
    assert_eq!(
        set("volumes", 3).unwrap_err(),
        "Quota volumes limit must be equal or greater than existing resources. Current usage is 5 and the requested limit \
         is 3."
    );
    for (key, number) in [("volumes", 5), ("volumes", -1), ("volumes_x", 0), ("per_volume_gigabytes", 0)] {
        assert_eq!(set(key, number), Ok(()), "{key} {number}");
    }
}

#[test]
fn who_is_over_may_still_give_back() {
    let over = usage(&[("volumes_old", 9), ("gigabytes_old", 90)]);
    let set = limits(&[("volumes_old", 1), ("gigabytes_old", 1)]);
    assert_eq!(quota::check(&over, &set, &Delta::retype("old", "new", 10)), Ok(()));
    assert_eq!(quota::check(&over, &set, &Delta::extend("old", 10, 10)), Ok(()));
    assert_eq!(quota::check(&over, &set, &Delta::retype("old", "old", 10)), Ok(()));
    assert!(quota::check(&over, &set, &Delta::volume("old", 1)).is_err());
    let full = usage(&[("volumes", u64::MAX), ("gigabytes", u64::MAX)]);
    assert!(quota::check(&full, &limits(&[]), &Delta::volume("t", u32::MAX)).is_err(), "nothing wraps");
}

/// Requests, which come in any order.
#[derive(Debug, Clone)]
enum Act {
    Create(usize, u32),
    Extend(usize, u32),
    Retype(usize, usize),
    Snapshot(usize),
    Delete(usize),
}

const TYPES: [&str; 2] = ["a", "b"];

fn act() -> impl Strategy<Value = Act> {
    let (kind, size, which) = (0..TYPES.len(), 1_u32..8, 0_usize..8);
    prop_oneof![
        4 => (kind.clone(), size.clone()).prop_map(|(kind, size)| Act::Create(kind, size)),
        2 => (which.clone(), size).prop_map(|(n, more)| Act::Extend(n, more)),
        2 => (which.clone(), kind).prop_map(|(n, kind)| Act::Retype(n, kind)),
        1 => which.clone().prop_map(Act::Snapshot),
        1 => which.prop_map(Act::Delete),
    ]
}

/// Type, size, and the number of the volume: a snapshot has that of its volume.
type Held = (usize, u32, usize);

/// Use, counted afresh.
fn count(volumes: &[Held], snapshots: &[Held]) -> Usage {
    let mut usage = Usage::new();
    let mut add = |key: Key, more: u64| *usage.entry(key).or_default() += more;
    for (kind, size, _) in volumes {
        let name = TYPES[*kind].to_owned();
        add(Key::Volumes, 1);
        add(Key::VolumesOf(name.clone()), 1);
        add(Key::Gigabytes, u64::from(*size));
        add(Key::GigabytesOf(name), u64::from(*size));
    }
    for (kind, size, _) in snapshots {
        let name = TYPES[*kind].to_owned();
        add(Key::Snapshots, 1);
        add(Key::SnapshotsOf(name.clone()), 1);
        add(Key::Gigabytes, u64::from(*size));
        add(Key::GigabytesOf(name), u64::from(*size));
    }
    usage
}

proptest! {
    #[test]
    fn no_sequence_of_checks_goes_over(
        acts in proptest::collection::vec(act(), 0..60),
        numbers in proptest::collection::vec(prop_oneof![Just(-1_i64), 0_i64..30], 10),
    ) {
        let keys: Vec<_> = Key::PLAIN.into_iter().chain(TYPES.iter().flat_map(|name| Key::of_type(name))).collect();
        let project = keys.iter().cloned().zip(numbers).map(|(key, n)| (key, Limit::from_number(n).unwrap())).collect();
        let limits = Limits { project, ..Limits::default() };
        let (mut volumes, mut snapshots) = (Vec::<Held>::new(), Vec::<Held>::new());
        for (number, act) in acts.into_iter().enumerate() {
            let before = count(&volumes, &snapshots);
            let mut after = (volumes.clone(), snapshots.clone());
            let at = |n: usize| (!volumes.is_empty()).then(|| n % volumes.len());
            let delta = match act {
                Act::Create(kind, size) => {
                    after.0.push((kind, size, number));
                    Delta::volume(TYPES[kind], size)
                }
                Act::Extend(n, more) => {
                    let Some(n) = at(n) else { continue };
                    after.0[n].1 += more;
                    Delta::extend(TYPES[volumes[n].0], volumes[n].1, volumes[n].1 + more)
                }
                Act::Retype(n, kind) => {
                    let Some(n) = at(n) else { continue };
                    let (old, size, volume) = volumes[n];
                    after.0[n].0 = kind;
                    let mut delta = Delta::retype(TYPES[old], TYPES[kind], size);
                    for snapshot in after.1.iter_mut().filter(|snapshot| snapshot.2 == volume) {
                        delta = delta.and(Delta::retype_snapshot(TYPES[snapshot.0], TYPES[kind], snapshot.1));
                        snapshot.0 = kind;
                    }
                    delta
                }
                Act::Snapshot(n) => {
                    let Some(n) = at(n) else { continue };
                    after.1.push(volumes[n]);
                    Delta::snapshot(TYPES[volumes[n].0], volumes[n].1)
                }
                Act::Delete(n) => {
                    let Some(n) = at(n) else { continue };
                    volumes.remove(n);
                    continue;
                }
            };
            let now = count(&after.0, &after.1);
            // A delta has exactly the change that happens.
            for key in &keys {
                let change = delta.keys().find(|(named, _)| *named == key).map_or(0, |(_, change)| change);
                let used = |usage: &Usage| i64::try_from(usage.get(key).copied().unwrap_or(0)).unwrap();
                prop_assert_eq!(used(&before) + change, used(&now), "{}", key);
            }
            let fits = keys.iter().all(|key| limits.of(key).allows(now.get(key).copied().unwrap_or(0)))
                && after.0.iter().all(|(_, size, _)| limits.of(&Key::PerVolumeGigabytes).allows((*size).into()));
            // No limit was exceeded before, so the check and the count must agree.
            prop_assert_eq!(quota::check(&before, &limits, &delta).is_ok(), fits);
            if fits {
                (volumes, snapshots) = after;
            }
        }
    }
}

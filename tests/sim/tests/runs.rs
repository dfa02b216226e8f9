//! Tests of the simulation: good runs are good and repeatable, and each planted defect is found.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use mooring_sim::{Broken, Options, Outcome};

const EVENTS: u32 = 40;
/// Number of events with a defect: enough for hosts to come and go in most runs.
const EVENTS_BROKEN: u32 = 80;

fn run(seed: u64, broken: Option<Broken>) -> Outcome {
    let events = if broken.is_some() { EVENTS_BROKEN } else { EVENTS };
    mooring_sim::run(seed, Options { events, broken }).unwrap()
}

#[test]
fn twenty_seeds_are_good_and_the_same_again() {
    for seed in 0..20 {
        let (one, other) = (run(seed, None), run(seed, None));
        assert_eq!(one.violations, Vec::<String>::new(), "seed {seed}:\n{}", one.trace.join("\n"));
        assert_eq!(one.trace, other.trace, "seed {seed}");
        assert_eq!(one.hash, other.hash, "seed {seed}");
    }
}

/// Counts the seeds that find a defect, by their first violation.
fn found(broken: Broken) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for violation in (0..20).filter_map(|seed| run(seed, Some(broken)).violations.into_iter().next()) {
        *found.entry(violation).or_default() += 1;
    }
    found
}

#[test]
fn a_network_that_says_revoked_and_asks_nobody_is_found() {
    let found = found(Broken::Answer);
    assert!(found.values().sum::<usize>() >= 10, "{found:#?}");
    assert!(
        found.keys().any(|text| text.contains("was acknowledged, and its grant is in the kernel")),
        "{found:#?}"
    );
}

#[test]
fn a_kernel_that_says_revoked_and_keeps_the_grant_is_found() {
    let found = found(Broken::Revoke);
    assert!(found.values().sum::<usize>() >= 10, "{found:#?}");
    assert!(
        found.keys().any(|text| text.contains("was acknowledged, and its grant is in the kernel")),
        "{found:#?}"
    );
}

#[test]
fn a_kernel_that_maps_everything_writable_is_found() {
    let found = found(Broken::Mode);
    assert!(found.values().sum::<usize>() >= 10, "{found:#?}");
    assert!(found.keys().any(|text| text.contains("read-only")), "{found:#?}");
}

/// Runs seeds with a defect until one finds it. Returns its first violation.
fn first_found(broken: Broken) -> String {
    let say = |seed| {
        let outcome = mooring_sim::run(seed, Options { events: 30, broken: Some(broken) }).unwrap();
        outcome.violations.into_iter().next()
    };
    (0..SEEDS_MAX).find_map(say).unwrap_or_else(|| panic!("{broken:?} is not found in {SEEDS_MAX} seeds"))
}

const SEEDS_MAX: u64 = 200;

fn assert_found(broken: Broken, words: &[&str]) {
    let said = first_found(broken);
    assert!(words.iter().any(|words| said.contains(words)), "{broken:?}: {said}");
}

#[test]
fn a_kernel_that_tells_of_no_change_by_hand_is_found() {
    // A grant that was taken away by hand stays away, too: no resync looks at a watched export.
    let words = ["a change by hand was not put right at once", "its grant is not in the kernel"];
    assert_found(Broken::Told, &words);
}

#[test]
fn a_slow_kernel_that_revokes_later_than_it_says_is_found() {
    let words = ["was acknowledged, and its grant is in the kernel", "without an attachment", "read-only"];
    assert_found(Broken::Late, &words);
}

#[test]
fn an_lvm_that_does_not_extend_is_found() {
    assert_found(Broken::Grow, &["is extending"]);
}

#[test]
fn an_lvm_that_keeps_a_cancelled_growth_is_found() {
    assert_found(Broken::Cancel, &["is extending", "the LV mooring-grow-"]);
}

#[test]
fn a_revert_to_something_else_is_found() {
    assert_found(Broken::Revert, &["does not hold what its snapshot holds"]);
}

#[test]
fn an_lv_made_anew_in_the_place_of_one_that_is_gone_is_found() {
    assert_found(Broken::Anew, &["was taken away by hand, and was made anew"]);
}

#[test]
fn an_agent_that_loses_its_exports_with_its_store_is_found() {
    assert_found(Broken::Store, &["lost its store, and a host its session"]);
}

//! The simulation judged: good runs are good, are the same again, and a defect that is put in is found.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use mooring_sim::{Broken, Options, Outcome};

const EVENTS: u32 = 40;

fn run(seed: u64, broken: Option<Broken>) -> Outcome {
    mooring_sim::run(seed, Options { events: EVENTS, broken }).unwrap()
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

/// How many of these seeds find a defect, by the first word of what they say.
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

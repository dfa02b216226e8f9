//! Protections that `harden` sets, as the kernel shows them. They last until the process ends, so
//! this test has its own process.
//!
//! What must never happen here: a protection that is neither there nor warned of.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;

use mooring_host::{HardenWarning, harden};

/// Returns a number of a file of /proc/self, such as `VmLck:     1234 kB`.
fn number(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn every_protection_is_there_or_warned_of() {
    let warnings = harden();
    let warned = |part: &str| warnings.iter().any(|HardenWarning { what, .. }| what.contains(part));
    let locked = number("status", "VmLck:") > 0;
    let spared = fs::read_to_string("/proc/self/oom_score_adj").unwrap() == "-1000\n";
    let files = number("limits", "Max open files") >= 65_536;
    // Each protection is either present or warned of.
    assert_ne!(locked, warned("mlockall"), "{warnings:?}");
    assert_ne!(spared, warned("oom_score_adj"), "{warnings:?}");
    assert_ne!(files, warned("RLIMIT_NOFILE"), "{warnings:?}");
    // A second call gives the same warnings.
    assert_eq!(harden(), warnings);
    for warning in &warnings {
        assert!(warning.to_string().starts_with("cannot "), "{warning}");
    }
}

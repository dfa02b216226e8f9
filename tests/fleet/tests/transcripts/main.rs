//! Replays the answers of a live Cinder (`../../transcripts`): every recorded request, in order,
//! against a fleet.
//!
//! Compared are the status code, the headers that clients read, the shape of errors, the set of
//! keys at every level, and every value that is not made at run time. Our differences stand in
//! [`deviations`], each with its reason. A deviation that no longer occurs fails the test: the list
//! only shrinks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod compare;
mod deviations;
mod replay;

use std::collections::BTreeSet;
use std::path::Path;

use deviations::DEVIATIONS;

#[test]
fn the_recorded_answers_are_given_but_for_what_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(files.len() >= 14, "{files:?}");
    let (mut used, mut new) = (BTreeSet::new(), Vec::new());
    for file in files {
        for difference in replay::scenario(&file) {
            match DEVIATIONS.iter().position(|known| known.covers(&difference)) {
                Some(known) => drop(used.insert(known)),
                None => new.push(difference.to_string()),
            }
        }
    }
    let listed = DEVIATIONS.iter().enumerate();
    let gone: Vec<_> =
        listed.filter(|(index, _)| !used.contains(index)).map(|(_, known)| known.to_string()).collect();
    assert!(new.is_empty(), "{} differences are not listed:\n{}", new.len(), new.join("\n"));
    assert!(gone.is_empty(), "these do not deviate any more, take them off the list:\n{}", gone.join("\n"));
}

//! Waits for events without a signal of their own: these poll often, and the limit only catches a
//! test that hangs.

use std::time::{Duration, Instant};

/// Time limit of a wait, never a measure.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `look` succeeds; at the limit it panics with the last view.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < limit, "{what} does not come: {seen}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Like [`until`], for a `look` without a text on failure.
#[track_caller]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, || look().ok_or_else(|| "nothing yet".to_owned()))
}

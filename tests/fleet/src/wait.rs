//! Waiting for what comes by itself. What is asked has no signal of its own: it is looked at often, and the limit is only for a
//! test that hangs.

use std::time::{Duration, Instant};

/// A limit for waiting, never a measure.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `look` finds it; what it saw instead is said when it never does.
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

/// The same, where there is nothing to say about what is seen until then.
#[track_caller]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, || look().ok_or_else(|| "nothing yet".to_owned()))
}

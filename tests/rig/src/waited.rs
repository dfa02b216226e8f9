//! Waits of the rig that ran out.

use std::time::Duration;

/// A wait that ran out. The machine may have been too slow, so a scenario that ends by it may be
/// run once more.
///
/// What must never happen here: a comparison of data, stamps, receipts, modes, leftovers, kernel
/// messages or exit codes that ends as this error. Such a scenario has failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("waited {:.0} s in vain for {what}", .limit.as_secs_f64())]
pub struct WaitRanOut {
    what: String,
    limit: Duration,
}

impl WaitRanOut {
    /// Makes the error of a wait for `what` that was given up after `limit`.
    pub fn new(what: impl Into<String>, limit: Duration) -> Self {
        Self { what: what.into(), limit }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_wait_is_found_below_what_was_said_of_it() {
        let error = Err::<(), _>(WaitRanOut::new("the disk", Duration::from_secs(90)));
        let error = error.context("attach").context("scenario").unwrap_err();
        assert!(error.downcast_ref::<WaitRanOut>().is_some());
        assert_eq!(format!("{error:#}"), "scenario: attach: waited 90 s in vain for the disk");
    }
}

//! Evidence: lines with numbers for each thing that was shown.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mooring_rig::WaitRanOut;

/// Prints evidence as it comes and counts it.
#[derive(Debug)]
pub struct Evidence {
    began: Instant,
    shown: usize,
}

impl Default for Evidence {
    fn default() -> Self {
        Self { began: Instant::now(), shown: 0 }
    }
}

impl Evidence {
    /// Prints a line that was shown to be true.
    pub fn shows(&mut self, text: impl Display) {
        self.shown += 1;
        println!("{:>3}  {text}", self.shown);
    }

    /// Prints a heading or remark.
    pub fn note(&self, text: impl Display) {
        println!("     {text}");
    }

    /// Number of lines that were shown.
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Fails with this text unless the condition holds.
pub fn check(condition: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if !condition {
        bail!("{}", otherwise());
    }
    Ok(())
}

/// Fails if something took longer than a bound that is to be kept, with the patience of
/// [`wait_for`]. The error is a [`WaitRanOut`]: the machine may have been too slow.
pub fn within(what: &str, took: Duration, limit: Duration) -> Result<()> {
    if is_late(took, limit) {
        let took = took.as_secs_f64();
        return Err(WaitRanOut::new(format!("{what}, which took {took:.1} s"), limit).into());
    }
    Ok(())
}

/// Returns `true` if something took longer than a bound that is to be kept, with the same patience.
pub fn is_late(took: Duration, limit: Duration) -> bool {
    took > limit * PATIENCE
}

/// Factor for time limits. A limit catches things that never happen, and is written for a machine
/// of usual speed. Some machines have a third of it, and another scenario runs beside this one.
const PATIENCE: u32 = 3;

/// Tries until it succeeds or the time is over (three times `limit`). The error is then a
/// [`WaitRanOut`] with the last attempt's text.
pub fn wait_for<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (began, limit) = (Instant::now(), limit * PATIENCE);
    let mut last = None;
    loop {
        let asked = Instant::now();
        match attempt() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
        if began.elapsed() > limit {
            let why = last.map_or_else(String::new, |error| format!(" (last error: {error:#})"));
            return Err(WaitRanOut::new(format!("{what}{why}"), limit).into());
        }
        // Under emulation an attempt costs what it asks about: spend at most half of the time on
        // attempts.
        std::thread::sleep(asked.elapsed().clamp(Duration::from_millis(100), Duration::from_secs(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_too_long_is_a_wait_that_ran_out() {
        let limit = Duration::from_secs(2);
        within("the ACL", limit * PATIENCE, limit).unwrap();
        let late = within("the ACL", Duration::from_millis(6_100), limit).unwrap_err();
        assert!(late.is::<WaitRanOut>(), "{late}");
        assert_eq!(late.to_string(), "waited 2 s in vain for the ACL, which took 6.1 s");
    }
}

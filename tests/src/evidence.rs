//! What was shown, line by line, with its numbers.

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
    /// A line that was shown to be true.
    pub fn shows(&mut self, text: impl Display) {
        self.shown += 1;
        println!("{:>3}  {text}", self.shown);
    }

    /// A heading or remark.
    pub fn note(&self, text: impl Display) {
        println!("     {text}");
    }

    /// How many lines were shown.
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// Since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// An error with this text unless the condition holds.
pub fn check(condition: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if !condition {
        bail!("{}", otherwise());
    }
    Ok(())
}

/// What a limit is multiplied by: it is for what never comes, and is written for a machine of the usual speed. Some have a third of
/// it, and another scenario runs beside this one.
const PATIENCE: u32 = 3;

/// Tries until it is true or the time is over (three times `limit`). The error is then a [`WaitRanOut`] that says what the last
/// attempt said.
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
        // Under emulation a question costs what it asks about: half of the time at most is for questions.
        std::thread::sleep(asked.elapsed().clamp(Duration::from_millis(100), Duration::from_secs(2)));
    }
}

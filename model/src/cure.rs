//! What an error asks for, and how an error is printed: its whole chain, once.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Who can cure an error. The reconcile loop and the API decide on this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cure {
    /// The same call may succeed later: retry.
    Retry,
    /// The caller asked for something that can never hold: change the request.
    FixSpec,
    /// Somebody must change the machine (load a module, free space, remove a foreign object): then it is retried by itself.
    Operator,
    /// A defect of Mooring.
    Bug,
}

/// Prints an error and its sources on one line, `outer: inner: innermost`. Our `Display`s never print their source,
/// so that each message of the chain stands there exactly once.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(inner) = source {
            write!(f, ": {inner}")?;
            source = inner.source();
        }
        Ok(())
    }
}

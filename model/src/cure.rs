//! The remedy that an error asks for, and the printing of errors: the whole chain, once.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The remedy for an error. The reconcile loop and the API decide on this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cure {
    /// Retry: the same call may succeed later.
    Retry,
    /// Change the request: it can never hold.
    FixSpec,
    /// Change the machine (load a module, free space, remove a foreign object); the retry is
    /// automatic.
    Operator,
    /// A defect of Mooring.
    Bug,
}

/// Prints an error and its sources on one line, `outer: inner: innermost`. Our `Display`s never
/// print their source, so each message appears exactly once. Other crates' errors do print it: a
/// message that only repeats an earlier one is left out.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        let mut said = last.clone();
        f.write_str(&last)?;
        let mut source = self.0.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !said.contains(&text) && !text.contains(&last) {
                write!(f, ": {text}")?;
                said.push_str(&text);
                last = text;
            }
            source = inner.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn chain(texts: &[&'static str]) -> Layer {
        let (text, rest) = texts.split_first().unwrap();
        Layer { text, source: (!rest.is_empty()).then(|| Box::new(chain(rest))) }
    }

    #[test]
    fn every_message_stands_there_once() {
        for (texts, want) in [
            (&["cannot write", "disk full"][..], "cannot write: disk full"),
            (
                &["cannot reach x", "transport: no such file", "no such file"][..],
                "cannot reach x: transport: no such file",
            ),
            (&["cannot keep y", "disk full", "code 13: disk full"][..], "cannot keep y: disk full"),
            (
                &["cannot reach z: connection refused", "error sending", "connection refused"][..],
                "cannot reach z: connection refused: error sending",
            ),
            (&["one"][..], "one"),
        ] {
            assert_eq!(Chain(&chain(texts)).to_string(), want);
        }
    }
}

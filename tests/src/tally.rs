//! Counts of the receipts of many force detaches.
//!
//! What must never happen here: a stamp after a proven receipt that is not an error; an unproven
//! receipt that is counted as a proof.

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use serde_json::{Deserializer, Value};

use crate::evidence::check;

/// One in this many receipts may be unproven: it is true, and the machine was busy. Fewer receipts
/// must all be proven.
const ONE_UNPROVEN_IN: usize = 20;

/// Receipts of trials.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    proven: usize,
    unproven: usize,
}

impl Tally {
    /// Counts one trial: the command's output, the receipt's place in it, and how many stamps
    /// landed after it. A stamp after a proven receipt is an error, and so is anything that is no
    /// receipt.
    pub fn add(&mut self, answer: &str, receipt: &str, landed: u64) -> Result<()> {
        // A command that did not succeed adds the reason after its answer.
        let said = Deserializer::from_str(answer).into_iter::<Value>().next();
        let said = said.context("no answer")?.with_context(|| format!("the answer: {answer}"))?;
        match said[receipt]["proof"].as_str() {
            Some("proven") => self.proven += 1,
            Some("unproven") => self.unproven += 1,
            _ => check(false, || format!("no receipt: {answer}"))?,
        }
        check(landed == 0 || said[receipt]["proof"] == "unproven", || {
            format!("{landed} stamps landed after a proven receipt: {answer}")
        })
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { proven: self.proven + other.proven, unproven: self.unproven + other.unproven }
    }

    /// Checks that the receipts are proofs.
    pub fn check(self) -> Result<()> {
        check(self.proven > 0 && self.unproven * ONE_UNPROVEN_IN <= self.proven, || {
            format!("too few are proven: {self}")
        })
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} proven", self.proven)?;
        if self.unproven > 0 {
            write!(f, ", {} unproven, as they say", self.unproven)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVEN: &str = r#"{"receipt":{"proof":"proven"}}"#;
    const UNPROVEN: &str = "{\"receipt\":{\"proof\":\"unproven\"}}\nmooring: it goes on\n";

    fn tally(answers: &[(&str, u64)]) -> Result<Tally> {
        let mut tally = Tally::default();
        for (answer, landed) in answers {
            tally.add(answer, "receipt", *landed)?;
        }
        Ok(tally)
    }

    #[test]
    fn a_stamp_is_an_error_after_a_proven_receipt_but_not_after_an_unproven() {
        assert!(tally(&[(PROVEN, 1)]).is_err());
        assert_eq!(tally(&[(PROVEN, 0), (UNPROVEN, 3)]).unwrap(), Tally { proven: 1, unproven: 1 });
    }

    #[test]
    fn what_is_no_receipt_is_an_error() {
        for answer in [
            "",
            "mooring: refused",
            "{}",
            r#"{"fence":{"proof":"proven"}}"#,
            r#"{"receipt":{"proof":"maybe"}}"#,
        ] {
            assert!(tally(&[(answer, 0)]).is_err(), "{answer}");
        }
    }

    #[test]
    fn few_receipts_are_all_proven_and_of_many_one_in_twenty_may_not_be() {
        assert!(Tally::default().check().is_err());
        assert!(Tally { proven: 19, unproven: 1 }.check().is_err());
        assert!(Tally { proven: 20, unproven: 1 }.check().is_ok());
        assert!(Tally { proven: 20, unproven: 2 }.check().is_err());
        assert!(Tally { proven: 1, unproven: 0 }.check().is_ok());
    }
}

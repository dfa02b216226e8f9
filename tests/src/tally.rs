//! Counts of the receipts of many force detaches.
//!
//! What must never happen here: a stamp after a proven receipt that is not an error; an unproven
//! receipt that is counted as a proof; proofs that come late as a rule.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::WaitRanOut;
use serde_json::{Deserializer, Value};

use crate::evidence::{check, is_late};

/// One in this many receipts may be unproven: it is true, and the machine was busy. Fewer receipts
/// must all be proven. A proof that is late counts as one that did not come.
const ONE_MISSED_IN: usize = 20;
/// Time within which a receipt is proven, by its own times: that of the first answer.
const PROVEN_WITHIN: Duration = Duration::from_secs(5);

/// Receipts of trials.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    proven: usize,
    /// Those of the proven that took too long.
    late: usize,
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
            Some("proven") => {
                let took = longest(&said[receipt]).with_context(|| format!("no times: {answer}"))?;
                self.proven += 1;
                self.late += usize::from(is_late(took, PROVEN_WITHIN));
            }
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
        Self {
            proven: self.proven + other.proven,
            late: self.late + other.late,
            unproven: self.unproven + other.unproven,
        }
    }

    /// Checks that the receipts are proofs, and came in time.
    pub fn check(self) -> Result<()> {
        check(self.proven > 0 && self.unproven * ONE_MISSED_IN <= self.proven, || {
            format!("too few are proven: {self}")
        })?;
        if (self.late + self.unproven) * ONE_MISSED_IN > self.proven {
            return Err(WaitRanOut::new(format!("proofs in time: {self}"), PROVEN_WITHIN).into());
        }
        Ok(())
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} proven", self.proven)?;
        if self.late > 0 {
            write!(f, " ({} of them late)", self.late)?;
        }
        if self.unproven > 0 {
            write!(f, ", {} unproven, as they say", self.unproven)?;
        }
        Ok(())
    }
}

/// Time that a receipt's revoke took, by its own times.
pub fn took(receipt: &Value) -> Option<Duration> {
    let at = |key: &str| receipt[key].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let micros = at("ended")?.as_microsecond().saturating_sub(at("began")?.as_microsecond());
    Some(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// The longest time of a receipt, or of the receipts of a fence; `None` if nothing has its times.
fn longest(answer: &Value) -> Option<Duration> {
    let of_fence = ["parts", "exports"].into_iter().filter_map(|of| answer[of].as_array()).flatten();
    let receipts = of_fence.map(|part| &part["receipt"]).chain([answer]);
    receipts.filter_map(took).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVEN: &str =
        r#"{"receipt":{"proof":"proven","began":"2026-11-21T10:00:00Z","ended":"2026-11-21T10:00:01Z"}}"#;
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
        assert_eq!(tally(&[(PROVEN, 0), (UNPROVEN, 3)]).unwrap(), Tally { proven: 1, late: 0, unproven: 1 });
    }

    #[test]
    fn what_is_no_receipt_is_an_error() {
        for answer in [
            "",
            "mooring: refused",
            "{}",
            r#"{"fence":{"proof":"proven"}}"#,
            r#"{"receipt":{"proof":"maybe"}}"#,
            // A proof without its times.
            r#"{"receipt":{"proof":"proven","began":null}}"#,
        ] {
            assert!(tally(&[(answer, 0)]).is_err(), "{answer}");
        }
    }

    #[test]
    fn few_receipts_are_all_proven_and_of_many_one_in_twenty_may_not_be() {
        assert!(Tally::default().check().is_err());
        let of = |proven, unproven| Tally { proven, late: 0, unproven };
        assert!(of(19, 1).check().is_err());
        assert!(of(20, 1).check().is_ok());
        assert!(of(20, 2).check().is_err());
        assert!(of(1, 0).check().is_ok());
    }

    #[test]
    fn late_proofs_are_few_or_the_machine_was_too_slow() {
        let ended = |second: u32| {
            let times = format!(
                r#"{{"proof":"proven","began":"2026-11-21T10:00:00Z","ended":"2026-11-21T10:00:{second}.5Z"}}"#
            );
            [
                ("receipt", format!(r#"{{"receipt":{times}}}"#)),
                ("fence", format!(r#"{{"fence":{{"proof":"proven","parts":[{{"receipt":{times}}}]}}}}"#)),
            ]
        };
        for (second, late) in [(10, 0), (16, 1)] {
            for (what, answer) in ended(second) {
                let mut tally = Tally::default();
                tally.add(&answer, what, 0).unwrap();
                assert_eq!(tally, Tally { proven: 1, late, unproven: 0 }, "{answer}");
                assert_eq!(tally.check().is_err_and(|error| error.is::<WaitRanOut>()), late == 1, "{answer}");
            }
        }
        assert!(Tally { proven: 20, late: 1, unproven: 0 }.check().is_ok());
        assert!(Tally { proven: 20, late: 2, unproven: 0 }.check().is_err());
        assert!(
            Tally { proven: 20, late: 1, unproven: 1 }.check().is_err(),
            "late and unproven count together"
        );
    }
}

//! Deviations from a spec, as agents report them.

use std::fmt::{self, Display, Formatter};

use mooring_api::v1;
use serde::Serialize;

use crate::text::one_line;

/// A deviation from the spec.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    pub object: String,
    pub text: String,
    /// `retry`, `fix_spec`, `operator`, `bug` or `unknown`.
    pub cure: &'static str,
}

impl Problem {
    pub(crate) fn of_wire(problem: &v1::Problem) -> Self {
        let cure = match problem.cure() {
            v1::Cure::Unspecified => "unknown",
            v1::Cure::Retry => "retry",
            v1::Cure::FixSpec => "fix_spec",
            v1::Cure::Operator => "operator",
            v1::Cure::Bug => "bug",
        };
        Self { object: problem.object.clone(), text: problem.text.clone(), cure }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let who = match self.cure {
            "retry" => "it is retried",
            "fix_spec" => "change the request",
            "operator" => "an operator must act",
            "bug" => "this is a defect",
            _ => return f.write_str(&one_line(&format!("{}: {}", self.object, self.text))),
        };
        f.write_str(&one_line(&format!("{}: {} ({who})", self.object, self.text)))
    }
}

pub(crate) fn write_problems(f: &mut Formatter<'_>, problems: &[Problem]) -> fmt::Result {
    problems.iter().try_for_each(|problem| write!(f, "\nproblem: {problem}"))
}

pub(crate) fn write_inline(f: &mut Formatter<'_>, problems: &[Problem]) -> fmt::Result {
    problems.iter().try_for_each(|problem| write!(f, "; problem: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line() {
        for (cure, end) in [("bug", " (this is a defect)"), ("unknown", "")] {
            let problem =
                Problem { object: "vg\u{202e}0".to_owned(), text: "a\nproblem: b".to_owned(), cure };
            assert_eq!(problem.to_string(), format!("vg\u{fffd}0: a\u{fffd}problem: b{end}"));
        }
    }
}

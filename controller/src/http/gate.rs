//! The gate of an operation or an action: which policies decide about a caller.
//!
//! What must never happen here: a gate with a policy that its route does not ask (the fleet's test
//! `every_route_is_closed_by_the_policies_of_its_row` calls each of them).

use serde_json::{Value, json};

/// The check that decides about one operation or action.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gate {
    /// These policies refuse it: 403, which names the policy.
    Policies(&'static [&'static str]),
    /// This policy hides the object: 404 for callers that may not see it.
    Hides(&'static str),
    /// No policy is asked, for this reason.
    Open(&'static str),
}

impl Gate {
    /// Writes the gate into a description.
    pub(super) fn describe(self, view: &mut Value) {
        match self {
            Self::Policies(names) => view["x-mooring-policies"] = json!(names),
            Self::Hides(name) => {
                view["x-mooring-policies"] = json!([name]);
                view["x-mooring-hidden"] = json!(true);
            }
            Self::Open(why) => view["x-mooring-open"] = json!(why),
        }
    }
}

//! A plan: what would be done, in order, and why. Plans are pure data; they are printed, tested and thrown away, never stored.

use std::borrow::Cow;

use crate::{Cure, Problem};

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<Op> {
    /// What is done.
    pub op: Op,
    /// Why, for people (`mooring plan`).
    pub why: Cow<'static, str>,
}

/// Why (part of) a spec cannot be made true by any plan of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockedKind {
    /// An object under our name was made by someone else: it is never touched.
    Foreign,
    /// An attribute that is set at birth differs, and rebuilding would cut live sessions.
    Birth,
    /// Something outside of the domain is missing (the device, an address).
    Missing,
    /// There is no room for it.
    Full,
    /// Another volume has the same identity on the wire.
    Collision,
    /// Somebody uses it.
    Held,
}

/// Something that a plan leaves undone on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// What kind of obstacle it is.
    pub kind: BlockedKind,
    /// The object, as the operator knows it.
    pub object: String,
    /// What was found, what was wanted, and what to do.
    pub why: String,
}

impl BlockedKind {
    /// Who can remove the obstacle.
    pub const fn cure(self) -> Cure {
        match self {
            Self::Foreign | Self::Birth | Self::Missing | Self::Full | Self::Held => Cure::Operator,
            Self::Collision => Cure::FixSpec,
        }
    }
}

impl From<&Blocked> for Problem {
    fn from(blocked: &Blocked) -> Self {
        Self { object: blocked.object.clone(), text: blocked.why.clone(), cure: blocked.kind.cure() }
    }
}

/// Steps in order, and what they leave undone. Every prefix of the steps is safe (ARCHITECTURE, invariant 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<Op> {
    /// What to do, first to last.
    pub steps: Vec<Step<Op>>,
    /// What cannot be done, and why.
    pub blocked: Vec<Blocked>,
}

impl<Op> Default for Plan<Op> {
    fn default() -> Self {
        Self { steps: Vec::new(), blocked: Vec::new() }
    }
}

impl<Op> Plan<Op> {
    /// Adds a step.
    pub fn step(&mut self, op: Op, why: impl Into<Cow<'static, str>>) {
        self.steps.push(Step { op, why: why.into() });
    }

    /// Adds an obstacle.
    pub fn block(&mut self, kind: BlockedKind, object: impl Into<String>, why: impl Into<String>) {
        self.blocked.push(Blocked { kind, object: object.into(), why: why.into() });
    }

    /// Nothing to do and nothing in the way: what is wanted is what is seen.
    pub fn is_quiet(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty()
    }
}

//! A plan: the steps towards a spec, in order, and their reasons. Plans are pure data; they are
//! printed, tested and thrown away, never stored.

use std::borrow::Cow;

use crate::{Cure, Problem};

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<Op> {
    /// The operation.
    pub op: Op,
    /// The reason, for people (`mooring plan`).
    pub why: Cow<'static, str>,
}

/// The reason why no plan of ours can make (part of) a spec true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockedKind {
    /// Someone else made an object under our name: it is never touched.
    Foreign,
    /// An attribute that is set at creation differs, and a rebuild would end live sessions.
    Birth,
    /// Something outside of the domain is missing, such as the device or an address.
    Missing,
    /// There is no space for the object.
    Full,
    /// Another volume has the same identity on the wire.
    Collision,
    /// The object is in use.
    Held,
}

/// Something that a plan deliberately leaves undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The kind of obstacle.
    pub kind: BlockedKind,
    /// The object, under the operator's name for it.
    pub object: String,
    /// The state found, the state required, and what to do.
    pub why: String,
}

impl BlockedKind {
    /// The remedy that removes the obstacle.
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

/// Steps in order, and obstacles that they leave. Every prefix of the steps is safe (ARCHITECTURE,
/// invariant 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<Op> {
    /// The steps, first to last.
    pub steps: Vec<Step<Op>>,
    /// The obstacles, with their reasons.
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

    /// Returns `true` if there is nothing to do and no obstacle: the view matches the spec.
    pub fn is_quiet(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty()
    }
}

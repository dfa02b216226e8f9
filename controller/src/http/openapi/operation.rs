//! One row of the description: an operation with its gate, and the words that build it.
//!
//! What must never happen here: a row without a gate. Only a gate makes an [`Operation`] of an
//! [`Ungated`], so a forgotten one does not compile.

use crate::http::gate::Gate;
use crate::list::Collection;

/// One route and method.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// The operation's name for programs.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// The microversion that introduced the operation; `None` if it always existed.
    pub(super) since: Option<&'static str>,
    /// The check that decides about a caller.
    pub(super) gate: Gate,
    pub(super) admin: bool,
    pub(super) status: u16,
    pub(super) also: Option<u16>,
    /// The schema of the request's body.
    pub(super) takes: Option<&'static str>,
    /// The schema of the answer's body.
    pub(super) gives: Option<&'static str>,
    pub(super) lists: Option<&'static Collection>,
    pub(super) queries: &'static [(&'static str, &'static str)],
}

/// A row that does not have its gate yet.
pub(super) struct Ungated {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
}

/// Begins a row. The gate comes next.
pub(super) const fn op(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Ungated {
    Ungated { method, path, id, summary }
}

impl Ungated {
    /// Sets the policies that can refuse the operation.
    pub(super) const fn policies(self, names: &'static [&'static str]) -> Operation {
        self.gate(Gate::Policies(names))
    }

    /// Sets the policy that hides the operation's object.
    pub(super) const fn hides(self, policy: &'static str) -> Operation {
        self.gate(Gate::Hides(policy))
    }

    /// Opens the operation to every caller, for this reason.
    pub(super) const fn open(self, why: &'static str) -> Operation {
        self.gate(Gate::Open(why))
    }

    const fn gate(self, gate: Gate) -> Operation {
        let Self { method, path, id, summary } = self;
        let (since, also, takes, gives, lists) = (None, None, None, None, None);
        Operation {
            method,
            path,
            id,
            summary,
            since,
            gate,
            admin: false,
            status: 200,
            also,
            takes,
            gives,
            lists,
            queries: &[],
        }
    }
}

impl Operation {
    pub(super) const fn since(self, version: &'static str) -> Self {
        Self { since: Some(version), ..self }
    }

    pub(super) const fn admin(self) -> Self {
        Self { admin: true, ..self }
    }

    pub(super) const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds another status that some answers have, perhaps with a body.
    pub(super) const fn also(self, status: u16) -> Self {
        Self { also: Some(status), ..self }
    }

    pub(super) const fn takes(self, schema: &'static str) -> Self {
        Self { takes: Some(schema), ..self }
    }

    pub(super) const fn gives(self, schema: &'static str) -> Self {
        Self { gives: Some(schema), ..self }
    }

    pub(super) const fn lists(self, of: &'static Collection) -> Self {
        Self { lists: Some(of), ..self }
    }

    pub(super) const fn queries(self, queries: &'static [(&'static str, &'static str)]) -> Self {
        Self { queries, ..self }
    }
}

pub(super) const BOOLEAN: &str = "boolean";
pub(super) const NUMBER: &str = "integer";
pub(super) const TEXT: &str = "string";

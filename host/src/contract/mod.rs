//! Contract of LIO's configfs: Linux's answer to each operation that this project relies on, or
//! must not be misled by. It consists of rows that run on the fake and on a kernel (lio.md, b, c,
//! e, m). A row that a kernel answers otherwise means that the fake, and with it every law that was
//! shown on it, is wrong.
//!
//! What must never happen: a row that passes because its preparation failed, one that leaves
//! something behind unnoticed, or one that touches an object which it did not make.

mod acl;
mod compare;
mod core;
mod fabric;
mod fc;
mod ports;
mod reservations;
mod script;

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use nix::errno::Errno;

use crate::{Tree, TreeError};

pub use self::compare::{differences, masked, standard_dump};
pub use self::script::Script;

/// Devices and files that the rows may use. Nothing on the devices is read or written, but they are
/// opened exclusively.
#[derive(Debug, Clone)]
pub struct Env {
    /// A block device without holders.
    pub device: PathBuf,
    /// Another block device without holders.
    pub device2: PathBuf,
    /// A read-only device (`lvchange -pr`). `None` skips the rows that need it.
    pub read_only_device: Option<PathBuf>,
    /// A device that takes no discards (0 in its `queue/discard_max_bytes`). `None` skips the rows
    /// that need it. The other devices take discards.
    pub no_discards_device: Option<PathBuf>,
    /// A regular file.
    pub regular_file: PathBuf,
    /// A free path in an existing folder; a fileio backstore makes a file of 1 MiB there.
    pub new_file: PathBuf,
}

/// Expectation of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The operation succeeds.
    Accepted,
    /// A read returns exactly this text.
    Reads(&'static str),
    /// The operation fails with this error.
    Refused(Errno),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("ok"),
            Self::Reads(text) => write!(f, "{text:?}"),
            Self::Refused(errno) => write!(f, "{errno:?}"),
        }
    }
}

/// Answer of the operation under test: the text of a read (empty for other operations), or an
/// errno.
pub type Answer = Result<String, Errno>;

/// Prepares, then runs the operation. `Err` is a failed preparation.
pub type Act = fn(&Script<'_>) -> Result<Answer, TreeError>;

/// Requirement of a row that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No requirement.
    Nothing,
    /// [`Env::read_only_device`]
    ReadOnly,
    /// [`Env::no_discards_device`]
    NoDiscards,
    /// A kernel whose portal groups have `rtpi`. On another one the row is skipped.
    PortIds,
}

impl Needs {
    /// Returns the missing requirement; `None` if nothing is missing.
    fn missing(self, tree: &dyn Tree, env: &Env) -> Option<&'static str> {
        match self {
            Self::ReadOnly if env.read_only_device.is_none() => Some("no read-only device was given"),
            Self::NoDiscards if env.no_discards_device.is_none() => {
                Some("no device without discards was given")
            }
            Self::PortIds if !has_port_ids(tree, env) => Some("this kernel has no rtpi"),
            Self::Nothing | Self::ReadOnly | Self::NoDiscards | Self::PortIds => None,
        }
    }
}

/// Returns `true` if a portal group has `rtpi`. Also if none can be made: the rows shall report
/// that.
fn has_port_ids(tree: &dyn Tree, env: &Env) -> bool {
    let script = Script::new(tree, env);
    let read = script.tpg().map(|tpg| script.read(&ports::port_id(&tpg)));
    script.clean_up();
    !matches!(read, Ok(Err(error)) if error.errno == Errno::ENOENT)
}

/// One row of the contract.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name of the operation.
    pub name: &'static str,
    /// Preparation and operation.
    pub act: Act,
    /// Answer of Linux 6.1 and 6.12; with [`Needs::PortIds`] of 6.12 alone.
    pub expected: Expected,
    /// Requirement beside the two devices and a kernel.
    pub needs: Needs,
}

impl Row {
    const fn new(name: &'static str, expected: Expected, act: Act) -> Self {
        Self { name, act, expected, needs: Needs::Nothing }
    }

    const fn ok(name: &'static str, act: Act) -> Self {
        Self::new(name, Expected::Accepted, act)
    }

    const fn fails(name: &'static str, errno: Errno, act: Act) -> Self {
        Self::new(name, Expected::Refused(errno), act)
    }

    const fn reads(name: &'static str, text: &'static str, act: Act) -> Self {
        Self::new(name, Expected::Reads(text), act)
    }

    const fn on_read_only_device(self) -> Self {
        Self { needs: Needs::ReadOnly, ..self }
    }

    const fn with_port_ids(self) -> Self {
        Self { needs: Needs::PortIds, ..self }
    }

    const fn on_device_without_discards(self) -> Self {
        Self { needs: Needs::NoDiscards, ..self }
    }
}

/// Returns all rows.
pub fn rows() -> Vec<Row> {
    [core::ROWS, fabric::ROWS, acl::ROWS, reservations::ROWS, ports::ROWS].concat()
}

/// Facts of lio.md, b, that a tree alone cannot show, and the tests that show them instead.
pub const ELSEWHERE: &[(&str, &str)] = &[
    (
        "lvremove, lvchange -an, lvrename of an exported LV",
        "need LVM: the agent's VM scenarios; fake: its own tests",
    ),
    ("rmdir of a portal with live sessions", "needs an initiator: VM scenarios; fake: its own tests"),
    (
        "rmdir of an ACL with a live session, I/O in flight",
        "needs an initiator: VM scenarios; fake: its own tests",
    ),
    ("port_ident and info with a live session", "needs an initiator: VM scenarios; fake: its own tests"),
];

/// Result of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the row.
    pub name: &'static str,
    /// Expected answer.
    pub expected: String,
    /// Received answer.
    pub got: String,
    /// Both agree, and nothing was left behind.
    pub ok: bool,
    /// Reason why the row did not run. Then `ok` is `false`, unless the row is about a feature that
    /// this kernel lacks.
    pub skipped: Option<String>,
}

/// Runs every row. Each removes the objects that it has made, in any case.
pub fn run(tree: &dyn Tree, env: &Env) -> Vec<Outcome> {
    rows().iter().map(|row| run_row(row, tree, env)).collect()
}

/// Returns the rows on Fibre Channel. They are separate because a kernel needs its module
/// (`tcm_fc`) for them; it needs no port.
pub fn fc_rows() -> Vec<Row> {
    fc::ROWS.to_vec()
}

/// Runs the rows on Fibre Channel as [`run`] does the others.
pub fn run_fc(tree: &dyn Tree, env: &Env) -> Vec<Outcome> {
    fc_rows().iter().map(|row| run_row(row, tree, env)).collect()
}

fn run_row(row: &Row, tree: &dyn Tree, env: &Env) -> Outcome {
    let outcome =
        |got, ok, skipped| Outcome { name: row.name, expected: row.expected.to_string(), got, ok, skipped };
    if let Some(missing) = row.needs.missing(tree, env) {
        return outcome(String::new(), row.needs == Needs::PortIds, Some(missing.to_owned()));
    }
    let script = Script::new(tree, env);
    let answer = (row.act)(&script);
    let left = script.clean_up();
    let (mut got, mut ok) = match answer {
        Ok(Ok(text)) => match row.expected {
            Expected::Accepted => ("ok".to_owned(), true),
            Expected::Reads(wanted) => (format!("{text:?}"), text == wanted),
            Expected::Refused(_) => ("ok".to_owned(), false),
        },
        Ok(Err(errno)) => (format!("{errno:?}"), row.expected == Expected::Refused(errno)),
        Err(error) => (format!("preparation failed: {error}"), false),
    };
    for error in left {
        let _ = write!(got, "; left behind: {error}");
        ok = false;
    }
    outcome(got, ok, None)
}

#[cfg(test)]
mod tests;

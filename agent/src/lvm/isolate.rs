//! Isolates a volume from its disk: replaces the kernel's table of its LV by one that answers every
//! command with an error ([decision
//! 43](../../../docs/decisions/0043-a-volume-is-cut-off-by-its-table.md)).
//!
//! LVM knows nothing of that and keeps the LV's own table: `lvchange --refresh` puts it back. The
//! state is always read from the kernel, never remembered. `dmsetup` is asked, not LVM: LVM reads
//! the disk, which may be what hangs.
//!
//! What must never happen here: an exchanged table of a device that is not an LV of ours; an LV
//! left suspended; an error table that waits in a device which is not to be isolated.

use std::fmt;
use std::time::Duration;

use mooring_host::{Command, CommandError, CommandOutput, Commands};
use mooring_model::{BlockedKind, Plan};

use super::commands::Lvm;
use super::device_path;
use super::error::Error;
use super::plan::{LvId, VolumeOp};

/// Path of `dmsetup`. Debian, Fedora and SUSE all have it there; it comes with LVM.
const PROGRAM: &str = "/sbin/dmsetup";

/// Time limit of a look. It is one ioctl, which waits for no disk.
const LOOKED_WITHIN: Duration = Duration::from_secs(10);

/// Time limit of the exchange, which waits for I/O in flight below the LV. When the program is
/// killed, the kernel abandons the exchange, and a later pass tries it again.
const EXCHANGED_WITHIN: Duration = Duration::from_secs(30);

/// State of a device's table in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenTable {
    /// There is no such device: the LV is not active.
    NoDevice,
    /// Commands reach the disk.
    Disk {
        /// `true` if an error table is loaded but not in force yet: whoever resumes the device, LVM
        /// included, puts it in force.
        waiting: bool,
    },
    /// Every command ends with an error.
    Errors,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IsolateOp {
    /// Replaces the LV's own table by errors.
    Isolate {
        /// The LV.
        lv: LvId,
    },
    /// Clears an error table that is loaded but not in force.
    Forget {
        /// The LV.
        lv: LvId,
    },
    /// Has LVM put the LV's own table back.
    PutBack {
        /// The LV.
        lv: LvId,
    },
}

impl fmt::Display for IsolateOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isolate { lv } => write!(f, "cut {lv} off from its disk"),
            Self::Forget { lv } => write!(f, "take away the table that waits in {lv}"),
            Self::PutBack { lv } => write!(f, "put the table of {lv} back"),
        }
    }
}

/// Reads the state of an LV's device: the table in force, and the one that waits.
pub fn look(commands: &dyn Commands, lv: &LvId) -> Result<SeenTable, Error> {
    let op = || format!("look at the table of {lv}");
    let node = node(lv);
    let live = run(commands, op, &["table", &node], LOOKED_WITHIN)?;
    if live.status != 0 && (live.stderr.contains("not found") || live.stderr.contains("does not exist")) {
        return Ok(SeenTable::NoDevice);
    }
    if is_errors(&said(op, &live)?) {
        return Ok(SeenTable::Errors);
    }
    let waits = run(commands, op, &["table", "--inactive", &node], LOOKED_WITHIN)?;
    Ok(SeenTable::Disk { waiting: is_errors(&said(op, &waits)?) })
}

/// Plans the steps that isolate the LV if `wanted` is `true`, and that give it its disk back if
/// not.
pub fn plan(wanted: bool, seen: SeenTable, lv: &LvId) -> Plan<IsolateOp> {
    let (mut plan, lv) = (Plan::default(), lv.clone());
    match (wanted, seen) {
        (_, SeenTable::NoDevice)
        | (true, SeenTable::Errors)
        | (false, SeenTable::Disk { waiting: false }) => {}
        (true, SeenTable::Disk { .. }) => {
            plan.step(IsolateOp::Isolate { lv }, "its spec isolates it");
        }
        (false, SeenTable::Disk { waiting: true }) => {
            plan.step(IsolateOp::Forget { lv }, "its spec does not isolate it (any more)");
        }
        (false, SeenTable::Errors) => {
            plan.step(IsolateOp::PutBack { lv }, "its spec does not isolate it (any more)");
        }
    }
    plan
}

/// Executes the steps, and stops at the first that fails.
pub fn apply(plan: &Plan<IsolateOp>, commands: &dyn Commands) -> Result<(), Error> {
    for step in &plan.steps {
        tracing::info!(op = %step.op, why = %step.why, "step");
        let op = || step.op.to_string();
        match &step.op {
            // One command loads the table and exchanges it within one call of the kernel: no crash
            // of ours leaves the device suspended. Without a flush, commands that wait in the
            // device get errors, too. udev has nothing to do for it.
            IsolateOp::Isolate { lv } => {
                let args = ["wipe_table", "--noflush", "--nolockfs", "--noudevsync", &node(lv)];
                said(op, &run(commands, op, &args, EXCHANGED_WITHIN)?).map(drop)
            }
            IsolateOp::Forget { lv } => {
                said(op, &run(commands, op, &["clear", "--noudevsync", &node(lv)], LOOKED_WITHIN)?).map(drop)
            }
            IsolateOp::PutBack { lv } => Lvm(commands).refresh(lv),
        }?;
    }
    Ok(())
}

/// Blocks all steps of an isolated LV but its activation: LVM would put the LV's own table back on
/// the way.
pub(super) fn hold(plan: &mut Plan<VolumeOp>, object: String) {
    let before = plan.steps.len();
    plan.steps.retain(|step| matches!(step.op, VolumeOp::Activate { .. }));
    if plan.steps.len() < before {
        let why = "it is cut off from its disk: its other changes wait until it is given back (mooring volume uncut)";
        plan.block(BlockedKind::Held, object, why.to_owned());
    }
}

fn node(lv: &LvId) -> String {
    device_path(lv.group.as_str(), lv.name.as_str()).display().to_string()
}

/// Returns `true` if a table consists of error targets only. `dmsetup table` writes one line for
/// each target, as `0 131072 error`.
fn is_errors(table: &str) -> bool {
    let mut targets = table.lines().filter(|line| !line.trim().is_empty()).peekable();
    targets.peek().is_some() && targets.all(|line| line.split_whitespace().nth(2) == Some("error"))
}

fn run(
    commands: &dyn Commands,
    op: impl Fn() -> String,
    args: &[&str],
    timeout: Duration,
) -> Result<CommandOutput, Error> {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    commands.run(&Command { program: PROGRAM, args, timeout }).map_err(|source| match source {
        CommandError::Start { .. } => Error::NoDmsetup { op: op(), source },
        CommandError::Timeout { .. } | CommandError::Output { .. } => Error::InFlight { op: op(), source },
    })
}

/// Returns the output of a command that succeeded.
fn said(op: impl Fn() -> String, out: &CommandOutput) -> Result<String, Error> {
    match out.status {
        0 => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        status => Err(Error::Dmsetup { op: op(), status, said: super::commands::shorten(&out.stderr) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_errors_is_told_from_others() {
        assert!(is_errors("0 131072 error \n") && is_errors("0 8 error\n8 8 error\n"));
        for other in ["", "\n", "0 131072 linear 254:32 2048\n", "0 8 error\n8 8 linear 254:32 0\n"] {
            assert!(!is_errors(other), "{other:?}");
        }
    }

    #[test]
    fn what_is_as_it_is_wanted_is_left_alone() {
        let lv = LvId {
            group: "vg0".parse().unwrap(),
            name: mooring_model::LvName::of(mooring_model::VolumeId::from_u128(1)),
        };
        let steps =
            |wanted, seen| plan(wanted, seen, &lv).steps.into_iter().map(|step| step.op).collect::<Vec<_>>();
        let disk = |waiting| SeenTable::Disk { waiting };
        for (wanted, seen, want) in [
            (true, SeenTable::NoDevice, None),
            (false, SeenTable::NoDevice, None),
            (true, SeenTable::Errors, None),
            (false, disk(false), None),
            (true, disk(false), Some(IsolateOp::Isolate { lv: lv.clone() })),
            (true, disk(true), Some(IsolateOp::Isolate { lv: lv.clone() })),
            (false, disk(true), Some(IsolateOp::Forget { lv: lv.clone() })),
            (false, SeenTable::Errors, Some(IsolateOp::PutBack { lv: lv.clone() })),
        ] {
            assert_eq!(steps(wanted, seen), Vec::from_iter(want), "{wanted} {seen:?}");
        }
    }
}

//! The machine as one agent process sees it. The process can be killed before or after any change
//! that it makes. The kernel can be made to lie, to show that the checks would see it.
//!
//! What must never happen here: anything done by a process that was killed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooring_host::fake::{FakeBlocks, FakeLio, FakeLvm, FakeMachine};
use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Entry, Followed, Mapped, Tree,
    TreeError, TreeOp, TreePath,
};

use crate::ears::Ears;
use crate::net::Wire;
use crate::pace::{Call, Pace};
use crate::{Broken, jobs, lock};

/// Delay after which a late kernel does what it said it had done.
const LATE: Duration = Duration::from_secs(30);

/// Payload with which a killed process unwinds.
pub(crate) struct Killed;

#[derive(Debug, Default)]
struct State {
    dead: bool,
    /// Number of the change around which the process is killed; 1 is the next. `None` for no kill.
    kill_in: Option<u64>,
    kill_after: bool,
    complaints: Vec<String>,
}

/// Handle to one process; clones belong to the same process.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    state: Arc<Mutex<State>>,
    machine: FakeMachine,
    lio: FakeLio,
    lvm: FakeLvm,
    blocks: FakeBlocks,
    wire: Wire,
    /// `true` while a device of the machine hangs.
    held: Arc<AtomicBool>,
    pace: Pace,
    ears: Ears,
    broken: Option<Broken>,
}

impl Switch {
    pub(crate) fn new(
        machine: &FakeMachine,
        wire: &Wire,
        held: &Arc<AtomicBool>,
        pace: &Pace,
        broken: Option<Broken>,
    ) -> Self {
        Self {
            state: Arc::default(),
            machine: machine.clone(),
            lio: machine.lio(),
            lvm: machine.lvm(),
            blocks: machine.blocks(),
            wire: wire.clone(),
            held: Arc::clone(held),
            pace: pace.clone(),
            ears: Ears::new(machine.folders(), broken == Some(Broken::Told)),
            broken,
        }
    }

    pub(crate) fn machine(&self) -> &FakeMachine {
        &self.machine
    }

    /// True if a job may not return for a while.
    pub(crate) fn may_hang(&self) -> bool {
        self.held.load(Ordering::Acquire) || self.machine.waiting() > 0
    }

    /// True if a job may not end at once.
    pub(crate) fn takes_time(&self) -> bool {
        self.may_hang() || self.pace.is_slow()
    }

    /// Returns how long a job waits before its first call; `None` if it does not wait.
    pub(crate) fn takes_first(&self) -> Option<Duration> {
        self.pace.of(Call::Kernel)
    }

    /// Returns the process's notifications of its machine.
    pub(crate) fn ears(&self) -> &Ears {
        &self.ears
    }

    pub(crate) fn is_dead(&self) -> bool {
        lock(&self.state).dead
    }

    /// Stops the process: it does nothing any more, and its connections end.
    pub(crate) fn kill(&self) {
        if !std::mem::replace(&mut lock(&self.state).dead, true) {
            self.wire.close();
        }
    }

    /// Kills the process before or after its n-th change from now.
    pub(crate) fn kill_in(&self, changes: u64, after: bool) {
        let mut state = lock(&self.state);
        state.kill_in = Some(changes);
        state.kill_after = after;
    }

    /// Records something that a simulation must not do.
    pub(crate) fn complain(&self, what: &str) {
        lock(&self.state).complaints.push(what.to_owned());
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).complaints)
    }

    fn stop_if_dead(&self) {
        if self.is_dead() {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    /// Counts a change. Returns whether it is the last one, and whether that is still made.
    fn count(&self) -> (bool, bool) {
        let mut state = lock(&self.state);
        let Some(left) = state.kill_in.as_mut() else { return (false, false) };
        *left = left.saturating_sub(1);
        (*left == 0, state.kill_after)
    }

    fn call<T>(&self, changes: bool, call: impl FnOnce() -> T) -> T {
        self.call_of(Call::Kernel, changes, call)
    }

    fn call_of<T>(&self, of: Call, changes: bool, call: impl FnOnce() -> T) -> T {
        self.stop_if_dead();
        let (last, after) = if changes { self.count() } else { (false, false) };
        if last && !after {
            self.kill();
        }
        self.stop_if_dead();
        let result = call();
        jobs::take_turn();
        if last {
            self.kill();
        }
        self.stop_if_dead();
        if let Some(time) = self.pace.of(of) {
            jobs::pass(time);
        }
        self.stop_if_dead();
        result
    }

    /// True if the kernel only says that it removes this object.
    fn lies(&self, path: &TreePath) -> bool {
        self.broken == Some(Broken::Revoke) && path.as_str().contains("/acls/")
    }

    /// True if the kernel removes this object only after it has said that it did.
    fn is_late(
        &self,
        path: &TreePath,
        call: impl FnOnce(&FakeLio, &TreePath) -> Result<(), TreeError> + Send + 'static,
    ) -> bool {
        let late =
            self.broken == Some(Broken::Late) && self.pace.is_slow() && path.as_str().contains("/acls/");
        if late {
            let (lio, path) = (self.lio.clone(), path.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                drop(call(&lio, &path));
            });
        }
        late
    }

    fn tree<T>(&self, op: TreeOp, call: impl FnOnce(&FakeLio) -> T) -> T {
        let changes = !matches!(op, TreeOp::Read | TreeOp::List | TreeOp::ReadLink);
        self.call(changes, || {
            let result = call(&self.lio);
            if changes {
                self.ears.tree_changed();
            }
            result
        })
    }
}

impl Tree for Switch {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Mkdir, |lio| lio.mkdir(path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        if self.lies(path) || self.is_late(path, FakeLio::rmdir) {
            return Ok(());
        }
        self.tree(TreeOp::Rmdir, |lio| lio.rmdir(path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Symlink, |lio| lio.symlink(target, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        if self.lies(path) || self.is_late(path, FakeLio::unlink) {
            return Ok(());
        }
        self.tree(TreeOp::Unlink, |lio| lio.unlink(path))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        if self.broken == Some(Broken::Mode) && path.name() == "write_protect" {
            return self.tree(TreeOp::Write, |lio| lio.write(path, b"0"));
        }
        self.tree(TreeOp::Write, |lio| lio.write(path, value))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.tree(TreeOp::Read, |lio| lio.read(path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.tree(TreeOp::List, |lio| lio.list(path))
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.tree(TreeOp::ReadLink, |lio| lio.read_link(path))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.tree(TreeOp::Read, |lio| lio.is_dir(path))
    }
}

impl Commands for Switch {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let verb = command.args.first().map(String::as_str).unwrap_or_default();
        let changes = !matches!(verb, "vgs" | "lvs" | "pvs");
        let of = if verb == "lvcreate" { Call::LvmAlone } else { Call::Lvm };
        self.call_of(of, changes, || self.run_lvm(command, changes))
    }

    fn run_in_a_row(&self, commands: &[Command]) -> Result<Vec<CommandOutput>, CommandError> {
        let mut outputs = Vec::new();
        for command in commands {
            let output = self.call_of(Call::LvmAlone, true, || self.run_lvm(command, true))?;
            let failed = output.status != 0;
            outputs.push(output);
            if failed {
                break;
            }
        }
        Ok(outputs)
    }
}

impl Switch {
    fn run_lvm(&self, command: &Command, changes: bool) -> Result<CommandOutput, CommandError> {
        let output = match defect(self.broken, command) {
            Defect::Nothing => self.lvm.run(command),
            Defect::OnlySaid => Ok(CommandOutput::default()),
            Defect::Other(command) => self.lvm.run(&command),
        };
        if changes {
            self.ears.disk_written();
        }
        output
    }
}

impl BlockDevices for Switch {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        self.call(false, || self.blocks.size(path))
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        self.call(false, || self.blocks.discards(path))
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        self.call(false, || self.blocks.mapped(path))
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        self.blocks.follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(true, || self.blocks.zero(path, offset, length))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(true, || self.blocks.discard(path, offset, length))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.call(true, || self.blocks.write(path, offset, bytes))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        self.call(false, || self.blocks.flush(path))
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        self.call(false, || self.blocks.read(path, offset, buffer))
    }

    fn tell_writes(&self, to: Box<dyn Fn() + Send + Sync>) -> bool {
        self.ears.hear_disks(to);
        true
    }
}

/// Effect of a defect on a command of LVM.
enum Defect {
    Nothing,
    /// LVM only says that the command is done.
    OnlySaid,
    Other(Command),
}

fn defect(broken: Option<Broken>, command: &Command) -> Defect {
    let verb = command.args.first().map(String::as_str).unwrap_or_default();
    let names = |prefix: &str| command.args.iter().any(|arg| arg.contains(prefix));
    match (broken, verb) {
        (Some(Broken::Grow), "lvextend") => Defect::OnlySaid,
        (Some(Broken::Cancel), "lvremove") if names("mooring-grow-") => Defect::OnlySaid,
        (Some(Broken::Revert), "lvcreate") if names("-back-") => {
            let of = |arg: &String| arg.rsplit_once("-back-").map(|(_, id)| id.to_owned());
            let Some(id) = command.args.iter().find_map(of) else { return Defect::Nothing };
            let is_snapshot = |arg: &str| arg.starts_with("vg0/");
            let other = |arg: &String| {
                if is_snapshot(arg) { format!("vg0/mooring-{id}") } else { arg.clone() }
            };
            Defect::Other(Command { args: command.args.iter().map(other).collect(), ..command.clone() })
        }
        _ => Defect::Nothing,
    }
}

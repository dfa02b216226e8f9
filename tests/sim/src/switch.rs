//! The machine as one agent process sees it: the process can be killed before or after any change that it makes, and the
//! kernel can be made to lie, to show that the checks would see it.
//!
//! What must never happen here: anything done by a process that was killed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mooring_host::fake::{FakeBlocks, FakeLio, FakeLvm, FakeMachine};
use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Entry, Followed, Mapped, Tree,
    TreeError, TreeOp, TreePath,
};

use crate::net::Wire;
use crate::{Broken, jobs, lock};

/// What a killed process unwinds with.
pub(crate) struct Killed;

#[derive(Debug, Default)]
struct State {
    dead: bool,
    /// The process is killed around the change with this number from now, 1 is the next.
    kill_in: Option<u64>,
    kill_after: bool,
    complaints: Vec<String>,
}

/// Clones are the same process.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    state: Arc<Mutex<State>>,
    machine: FakeMachine,
    lio: FakeLio,
    lvm: FakeLvm,
    blocks: FakeBlocks,
    wire: Wire,
    /// Whether a device of the machine hangs now.
    held: Arc<AtomicBool>,
    broken: Option<Broken>,
}

impl Switch {
    pub(crate) fn new(
        machine: &FakeMachine,
        wire: &Wire,
        held: &Arc<AtomicBool>,
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
            broken,
        }
    }

    pub(crate) fn machine(&self) -> &FakeMachine {
        &self.machine
    }

    /// A job may not come back for a while.
    pub(crate) fn may_hang(&self) -> bool {
        self.held.load(Ordering::Acquire) || self.machine.waiting() > 0
    }

    pub(crate) fn is_dead(&self) -> bool {
        lock(&self.state).dead
    }

    /// The process does nothing any more, and its connections end with it.
    pub(crate) fn kill(&self) {
        if !std::mem::replace(&mut lock(&self.state).dead, true) {
            self.wire.close();
        }
    }

    /// The process is killed around its n-th change from now.
    pub(crate) fn kill_in(&self, changes: u64, after: bool) {
        let mut state = lock(&self.state);
        state.kill_in = Some(changes);
        state.kill_after = after;
    }

    /// Something that a simulation must not do.
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

    /// Counts a change. Whether it is the last one, and whether it is still made.
    fn count(&self) -> (bool, bool) {
        let mut state = lock(&self.state);
        let Some(left) = state.kill_in.as_mut() else { return (false, false) };
        *left = left.saturating_sub(1);
        (*left == 0, state.kill_after)
    }

    fn call<T>(&self, changes: bool, call: impl FnOnce() -> T) -> T {
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
        result
    }

    /// Whether the kernel only says that it takes this away.
    fn lies(&self, path: &TreePath) -> bool {
        self.broken == Some(Broken::Revoke) && path.as_str().contains("/acls/")
    }

    fn tree<T>(&self, op: TreeOp, call: impl FnOnce(&FakeLio) -> T) -> T {
        let changes = !matches!(op, TreeOp::Read | TreeOp::List | TreeOp::ReadLink);
        self.call(changes, || call(&self.lio))
    }
}

impl Tree for Switch {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Mkdir, |lio| lio.mkdir(path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        if self.lies(path) {
            return Ok(());
        }
        self.tree(TreeOp::Rmdir, |lio| lio.rmdir(path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Symlink, |lio| lio.symlink(target, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        if self.lies(path) {
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
        self.call(!matches!(verb, "vgs" | "lvs"), || self.lvm.run(command))
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
}

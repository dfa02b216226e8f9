//! One agent process's access to its machine. It is closed for good when the process is killed:
//! from then on the process does nothing any more, and its threads stop where they are.
//!
//! What must never happen here: a call of a killed process that reaches the machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mooring_host::fake::{FakeBlocks, FakeLio, FakeLvm, FakeMachine};
use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Entry, Followed, Mapped, Tree,
    TreeError, TreePath,
};

type Told = dyn Fn() + Send + Sync;

/// A process's access to a machine. Clones belong to the same process.
#[derive(Clone)]
pub struct Door {
    lio: FakeLio,
    lvm: FakeLvm,
    blocks: FakeBlocks,
    dead: Arc<AtomicBool>,
    changed: Arc<Told>,
}

impl Door {
    /// Makes the access of a new process on this machine. `changed` is called after every change of
    /// the target's configuration.
    pub fn new(machine: &FakeMachine, changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            lio: machine.lio(),
            lvm: machine.lvm(),
            blocks: machine.blocks(),
            dead: Arc::new(AtomicBool::new(false)),
            changed: Arc::new(changed),
        }
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    fn live(&self) {
        while self.dead.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }

    /// Makes a call; returns nothing once the process is dead.
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.live();
        let result = call();
        self.live();
        result
    }

    fn change<T>(&self, call: impl FnOnce() -> T) -> T {
        self.live();
        let result = call();
        // The kernel has made the change, whether or not its caller lives.
        (self.changed)();
        self.live();
        result
    }
}

impl Tree for Door {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.change(|| self.lio.mkdir(path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.change(|| self.lio.rmdir(path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.change(|| self.lio.symlink(target, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.change(|| self.lio.unlink(path))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        self.change(|| self.lio.write(path, value))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.call(|| self.lio.read(path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.call(|| self.lio.list(path))
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.call(|| self.lio.read_link(path))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.call(|| self.lio.is_dir(path))
    }
}

impl Commands for Door {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        self.call(|| self.lvm.run(command))
    }
}

impl BlockDevices for Door {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        self.call(|| self.blocks.size(path))
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        self.call(|| self.blocks.discards(path))
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        self.call(|| self.blocks.mapped(path))
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        self.blocks.follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(|| self.blocks.zero(path, offset, length))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(|| self.blocks.discard(path, offset, length))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.call(|| self.blocks.write(path, offset, bytes))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        self.call(|| self.blocks.flush(path))
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        self.call(|| self.blocks.read(path, offset, buffer))
    }
}

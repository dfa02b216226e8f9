//! The machine as one agent process sees it: every call is logged, and the process can be killed at
//! any of them. A killed process does nothing any more, and does not even look: its threads stop
//! for good.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mooring_host::fake::{FakeBlocks, FakeImages, FakeLio, FakeLvm, FakeMachine};
use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Entry, Followed, ImageError,
    ImageFile, ImagePart, ImageServers, Mapped, PartFormat, PrCommand, PrError, PrNexus, PrSession,
    PrSessions, ServedImage, Tree, TreeError, TreeOp, TreePath,
};
use tokio::sync::watch;

/// Moment of a kill: around the n-th call that changes the machine, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    /// The call is not made.
    Before(u64),
    /// The call has returned, and nothing follows it.
    After(u64),
}

/// State of all blocks of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    Zeroed,
    Discarded,
    /// Neither: some blocks may hold somebody's data.
    Data,
}

#[derive(Default)]
struct State {
    changes: u64,
    log: Vec<String>,
    kill: Option<Kill>,
    dead: bool,
    /// Call that is to wait.
    pause: Option<String>,
    /// Call that waits now.
    paused: Option<String>,
    /// `true` if the call that waits goes on; the next one like it waits again.
    one: bool,
    /// Call at which the session with a target breaks, once, after the call was done.
    breaks: Option<String>,
    /// Removed LVs, and the state of their blocks at the removal.
    removed: Vec<(String, Blocks)>,
    /// Devices that a backstore opened; `true` if the whole device then read as zeros.
    opened: Vec<(String, bool)>,
}

/// Handle to one process; clones belong to the same process.
#[derive(Clone)]
pub(crate) struct Switch {
    state: Arc<Mutex<State>>,
    died: watch::Sender<bool>,
    lio: FakeLio,
    lvm: FakeLvm,
    blocks: FakeBlocks,
    images: FakeImages,
    machine: FakeMachine,
}

impl Switch {
    pub(crate) fn new(fake: &FakeMachine, kill: Option<Kill>) -> Self {
        let state = State { kill, ..State::default() };
        Self {
            state: Arc::new(Mutex::new(state)),
            died: watch::Sender::new(false),
            lio: fake.lio(),
            lvm: fake.lvm(),
            blocks: fake.blocks(),
            images: fake.images(),
            machine: fake.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kill(&self) {
        self.state().dead = true;
        self.died.send_replace(true);
    }

    /// Kills the process at this call, counted from now.
    pub(crate) fn kill_from_now(&self, kill: Kill) {
        let mut state = self.state();
        let from = state.changes;
        state.kill = Some(match kill {
            Kill::Before(step) => Kill::Before(from + step),
            Kill::After(step) => Kill::After(from + step),
        });
    }

    /// Breaks the session with a target at the next call that begins with `call`, after that call
    /// was done.
    pub(crate) fn break_session_at(&self, call: &str) {
        self.state().breaks = Some(call.to_owned());
    }

    fn session_call<T>(&self, what: &str, call: impl FnOnce() -> Result<T, PrError>) -> Result<T, PrError> {
        let done = self.call(true, what.to_owned(), call);
        let mut state = self.state();
        if state.breaks.as_deref().is_some_and(|breaks| what.starts_with(breaks)) {
            state.breaks = None;
            return Err(PrError::Broken("it broke there as asked".into()));
        }
        done
    }

    pub(crate) fn died(&self) -> watch::Receiver<bool> {
        self.died.subscribe()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Number of calls so far that change the machine.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Returns every call so far, as `mkdir iscsi`, `lvm vgs …`, `zero /dev/…`.
    pub(crate) fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    pub(crate) fn forget_log(&self) {
        self.state().log.clear();
    }

    pub(crate) fn removed(&self) -> Vec<(String, Blocks)> {
        self.state().removed.clone()
    }

    pub(crate) fn opened(&self) -> Vec<(String, bool)> {
        self.state().opened.clone()
    }

    /// Stops the process before this call, each time, until told otherwise.
    pub(crate) fn pause_before(&self, call: &str) {
        self.state().pause = Some(call.to_owned());
    }

    /// Lets the process go on, and removes the stop.
    pub(crate) fn go_on(&self) {
        let mut state = self.state();
        state.pause = None;
        state.paused = None;
        state.one = false;
    }

    /// Lets the call that waits go on; the next one like it waits. If none waits, the next one goes
    /// on.
    pub(crate) fn let_one_go(&self) {
        self.state().one = true;
    }

    /// Returns the call that waits.
    pub(crate) fn paused(&self) -> Option<String> {
        self.state().paused.clone()
    }

    fn wait_while_paused(&self, what: &str) {
        loop {
            {
                let mut state = self.state();
                if state.dead {
                    self.stop_for_good(state);
                }
                if state.pause.as_deref() != Some(what) {
                    return;
                }
                if std::mem::take(&mut state.one) {
                    state.paused = None;
                    return;
                }
                state.paused = Some(what.to_owned());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn stop_for_good(&self, state: MutexGuard<'_, State>) -> ! {
        drop(state);
        self.died.send_replace(true);
        loop {
            std::thread::park();
        }
    }

    fn call<T>(&self, changes: bool, what: String, call: impl FnOnce() -> T) -> T {
        self.wait_while_paused(&what);
        let number = {
            let mut state = self.state();
            if state.dead {
                self.stop_for_good(state);
            }
            state.log.push(what);
            state.changes += u64::from(changes);
            if changes && state.kill == Some(Kill::Before(state.changes)) {
                state.dead = true;
                self.stop_for_good(state);
            }
            state.changes
        };
        let result = call();
        let mut state = self.state();
        if changes && state.kill == Some(Kill::After(number)) {
            state.dead = true;
        }
        if state.dead {
            self.stop_for_good(state);
        }
        result
    }

    fn tree<T>(&self, op: TreeOp, path: &TreePath, call: impl FnOnce(&FakeLio) -> T) -> T {
        let changes = !matches!(op, TreeOp::Read | TreeOp::List | TreeOp::ReadLink);
        self.call(changes, format!("{op} {path}"), || call(&self.lio))
    }
}

impl Tree for Switch {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Mkdir, path, |lio| lio.mkdir(path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Rmdir, path, |lio| lio.rmdir(path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Symlink, link, |lio| lio.symlink(target, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree(TreeOp::Unlink, path, |lio| lio.unlink(path))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        if path.as_str().starts_with("core/") && path.name() == "enable" {
            let device = format!("/dev/vg0/mooring-{}", path.parent().name());
            let zeroed = self.blocks.is_zeroed(&device);
            self.state().opened.push((device, zeroed));
        }
        self.tree(TreeOp::Write, path, |lio| lio.write(path, value))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.tree(TreeOp::Read, path, |lio| lio.read(path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.tree(TreeOp::List, path, |lio| lio.list(path))
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.tree(TreeOp::ReadLink, path, |lio| lio.read_link(path))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.tree(TreeOp::Read, path, |lio| lio.is_dir(path))
    }
}

impl Commands for Switch {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let verb = command.args.first().map(String::as_str).unwrap_or_default();
        if verb == "pvs" {
            // LVM is asked for physical volumes beside all work, at no time that a test could rely
            // on.
            return self.lvm.run(command);
        }
        if verb == "lvremove" {
            let lv = command.args.last().cloned().unwrap_or_default();
            let device = format!("/dev/{lv}");
            let size = self.blocks.size(Path::new(&device)).ok().flatten().unwrap_or_default();
            let blocks = if self.blocks.is_zeroed(&device) {
                Blocks::Zeroed
            } else if self.blocks.discarded_ranges(&device) == [(0, size)] {
                Blocks::Discarded
            } else {
                Blocks::Data
            };
            self.state().removed.push((lv, blocks));
        }
        let changes = !matches!(verb, "vgs" | "lvs" | "pvs" | "table");
        self.call(changes, format!("lvm {}", command.args.join(" ")), || self.lvm.run(command))
    }
}

impl BlockDevices for Switch {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        self.call(false, format!("size {}", path.display()), || self.blocks.size(path))
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        self.call(false, format!("discards {}", path.display()), || self.blocks.discards(path))
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        self.call(false, format!("mapped {}", path.display()), || self.blocks.mapped(path))
    }

    // The agent looks at it each second, so it is no call that a test counts.
    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        self.blocks.follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(true, format!("zero {}", path.display()), || self.blocks.zero(path, offset, length))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.call(true, format!("discard {}", path.display()), || self.blocks.discard(path, offset, length))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.call(true, format!("write {}", path.display()), || self.blocks.write(path, offset, bytes))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        self.call(false, format!("flush {}", path.display()), || self.blocks.flush(path))
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        self.call(false, format!("read {}", path.display()), || self.blocks.read(path, offset, buffer))
    }
}

impl ImageServers for Switch {
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        self.images.missing()
    }

    fn serve_qcow2(&self, image: &ImageFile, scratch: &Path) -> Result<Box<dyn ServedImage>, ImageError> {
        self.images.serve_qcow2(image, scratch)
    }

    fn make_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Box<dyn ImagePart>, ImageError> {
        let part =
            self.call(true, "make part".to_owned(), || self.images.make_part(place, size, format, scratch))?;
        Ok(Box::new(Part { switch: self.clone(), inner: part }))
    }

    fn open_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Option<Box<dyn ImagePart>>, ImageError> {
        let open = || self.images.open_part(place, size, format, scratch);
        let part = self.call(true, "open part".to_owned(), open)?;
        let part = part.map(|inner| Part { switch: self.clone(), inner });
        Ok(part.map(|part| Box::new(part) as Box<dyn ImagePart>))
    }

    fn mark_part(&self, folder: &Path, of: &str, mark: &[u8]) -> Result<(), ImageError> {
        self.call(true, "mark part".to_owned(), || self.images.mark_part(folder, of, mark))
    }

    fn unmark_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.call(true, "unmark part".to_owned(), || self.images.unmark_part(folder, of))
    }

    fn publish_part(&self, folder: &Path, of: &str, name: &str) -> Result<(), ImageError> {
        self.call(true, format!("name {name}"), || self.images.publish_part(folder, of, name))
    }

    fn remove_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.call(true, "remove part".to_owned(), || self.images.remove_part(folder, of))
    }
}

/// A file that this process writes.
struct Part {
    switch: Switch,
    inner: Box<dyn ImagePart>,
}

impl ImagePart for Part {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let Self { switch, inner } = self;
        switch.call(true, "write part".to_owned(), || inner.write(offset, bytes))
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        let Self { switch, inner } = self;
        switch.call(true, "flush part".to_owned(), || inner.flush())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        let Self { switch, inner } = self;
        switch.call(true, "finish part".to_owned(), || inner.finish())
    }
}

impl PrSessions for Switch {
    fn knock(&self, portal: SocketAddr, until: Instant) -> io::Result<()> {
        self.machine.knock(portal, until)
    }

    fn open(&self, nexus: &PrNexus, until: Instant) -> Result<Box<dyn PrSession>, PrError> {
        let open = || self.machine.open(nexus, until);
        let inner = self.session_call(&format!("log in to {}", nexus.target), open)?;
        Ok(Box::new(SwitchedSession { inner, switch: self.clone() }))
    }
}

struct SwitchedSession {
    inner: Box<dyn PrSession>,
    switch: Switch,
}

impl PrSession for SwitchedSession {
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError> {
        let what = match command {
            PrCommand::Register { key: 0, .. } => "unregister",
            PrCommand::Register { .. } => "register",
            PrCommand::Clear { .. } => "clear",
            PrCommand::Preempt { .. } => "preempt",
        };
        self.switch.session_call(what, || self.inner.send(command))
    }

    fn close(self: Box<Self>) -> Result<(), PrError> {
        let Self { inner, switch } = *self;
        switch.session_call("log out", || inner.close())
    }
}

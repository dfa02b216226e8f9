//! The machine of the laws: it counts every call that changes something, lets one of them fail, and
//! checks on the spot the rules that no call may ever break.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{DISCARD_CHUNK, ZERO_CHUNK};
use mooring_host::fake::FakeMachine;
use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Errno, Followed, Mapped,
};
use mooring_model::LV_UNZEROED_TAG;

use super::lvs;

/// Kind of failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call fails without any effect.
    Before,
    /// The call fails after its effect: its answer is lost.
    After,
}

/// The machine under test.
pub(super) struct Machine {
    pub(super) fake: FakeMachine,
    /// Groups of the configuration.
    pub(super) groups: Vec<Group>,
    pub(super) changes: AtomicU32,
    pub(super) fault: Mutex<Option<(u32, Fault)>>,
    pub(super) broken_rules: Mutex<Vec<String>>,
}

impl Machine {
    pub(super) fn new(fake: &FakeMachine, groups: Vec<Group>) -> Self {
        Self {
            fake: fake.clone(),
            groups,
            changes: AtomicU32::new(0),
            fault: Mutex::default(),
            broken_rules: Mutex::default(),
        }
    }

    pub(super) fn fail(&self, at: u32, fault: Fault) {
        *self.fault.lock().unwrap() = Some((self.changes.load(Ordering::Relaxed) + at, fault));
    }

    fn fault_now(&self) -> Option<Fault> {
        let now = self.changes.fetch_add(1, Ordering::Relaxed);
        let mut fault = self.fault.lock().unwrap();
        fault.take_if(|(at, _)| *at == now).map(|(_, fault)| fault)
    }

    pub(super) fn rule(&self, holds: bool, text: String) {
        if !holds {
            self.broken_rules.lock().unwrap().push(text);
        }
    }
}

impl Commands for Machine {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let lvm = self.fake.lvm();
        if matches!(command.args[0].as_str(), "vgs" | "lvs" | "pvs") {
            return lvm.run(command);
        }
        let prefixes = [
            "mooring-0000",
            "mooring-grow-0000",
            "mooring-snap-0000",
            "mooring-back-0000",
            "mooring-pool",
            "site-0000",
        ];
        let ours = |lv: &str| prefixes.iter().any(|prefix| lv.starts_with(prefix));
        let path = command.args.iter().filter_map(|arg| arg.split_once('/')).find(|(_, lv)| ours(lv));
        let named = command.args.iter().any(|arg| ours(arg)) || path.is_some();
        self.rule(named, format!("a command without a name of ours: {:?}", command.args));
        let group = path.map_or_else(|| command.args.last().unwrap().as_str(), |(group, _)| group);
        self.rule(["vg0", "vg1"].contains(&group), format!("a group that is not listed: {:?}", command.args));
        self.rule(command.timeout >= Duration::from_mins(1), "a short timeout".to_owned());
        if command.args[0] == "lvremove" {
            self.removal(&command.args);
        }
        match self.fault_now() {
            Some(Fault::Before) => {
                Ok(CommandOutput { status: 5, stdout: Vec::new(), stderr: "  Cannot do it.\n".to_owned() })
            }
            Some(Fault::After) => {
                lvm.run(command)?;
                Err(CommandError::Timeout {
                    program: command.program,
                    args: command.args.join(" "),
                    timeout: command.timeout,
                })
            }
            None => lvm.run(command),
        }
    }
}

impl BlockDevices for Machine {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        self.fake.blocks().size(path)
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        self.fake.blocks().discards(path)
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        self.fake.blocks().mapped(path)
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        self.fake.blocks().follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.rule(length <= ZERO_CHUNK, "a large chunk".to_owned());
        self.wiping("zero", path, || self.fake.blocks().zero(path, offset, length))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        let asked = self.wipe_of(path) == Some(Wipe::Discard);
        self.rule(asked, format!("{} is discarded and nobody asked for that", path.display()));
        self.rule(length <= DISCARD_CHUNK, "a large chunk".to_owned());
        self.wiping("discard", path, || self.fake.blocks().discard(path, offset, length))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.rule(bytes.len() as u64 <= ZERO_CHUNK, "a large chunk".to_owned());
        self.wiping("write", path, || self.fake.blocks().write(path, offset, bytes))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        self.fake.blocks().flush(path)
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        self.fake.blocks().read(path, offset, buffer)
    }
}

impl Machine {
    /// Returns the configured wipe of the group of a volume's device; `None` if the group is not
    /// listed, or if the device is a growth, which never holds anybody's data.
    fn wipe_of(&self, path: &Path) -> Option<Wipe> {
        let group = path.strip_prefix("/dev").ok()?.parent()?.to_str()?;
        let growth = path.file_name()?.to_str()?.starts_with("mooring-grow-");
        self.groups.iter().find(|listed| listed.name.as_str() == group && !growth).map(|listed| listed.wipe)
    }

    fn wiping(
        &self,
        op: &'static str,
        path: &Path,
        wipe: impl FnOnce() -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let marked = lvs(&self.fake).iter().any(|lv| {
            Path::new(&lv["lv_path"]) == path && lv["lv_tags"].split(',').any(|tag| tag == LV_UNZEROED_TAG)
        });
        self.rule(marked, format!("{op} of {} without the tag", path.display()));
        let fault = self.fault_now();
        if fault != Some(Fault::Before) {
            wipe()?;
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(BlockError { op, path: path.to_owned(), errno: Errno::EIO }),
        }
    }

    /// Checks that a volume is removed as the configuration says: its blocks read as zeros, were
    /// discarded, or are left alone.
    fn removal(&self, args: &[String]) {
        let told = args.windows(2).any(|pair| pair[0] == "--config" && pair[1] == "devices/issue_discards=0");
        self.rule(told, format!("the host's lvm.conf decides: {args:?}"));
        let path = Path::new("/dev").join(args.last().unwrap());
        let thin = |row: &super::Row| Path::new(&row["lv_path"]) == path && !row["pool_lv"].is_empty();
        if lvs(&self.fake).iter().any(thin) {
            // The blocks return to the pool, which zeroes them for their next volume.
            return;
        }
        let blocks = self.fake.blocks();
        let size = blocks.size(&path).unwrap().unwrap_or_default();
        let mut done = blocks.zeroed_ranges(&path);
        done.extend(blocks.discarded_ranges(&path));
        let done: u64 = done.into_iter().map(|(from, to)| to - from).sum();
        let holds = match self.wipe_of(&path) {
            Some(Wipe::Zero) => size > 0 && blocks.is_zeroed(&path),
            Some(Wipe::Discard) => size > 0 && done == size,
            Some(Wipe::None) | None => true,
        };
        self.rule(holds, format!("{} goes and was not wiped", path.display()));
    }
}

/// Runs an LVM command by hand, and asserts that it succeeds.
pub(super) fn run(fake: &FakeMachine, line: &str) {
    let args = line.split_whitespace().map(str::to_owned).collect();
    let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_mins(1) };
    assert_eq!(fake.lvm().run(&command).unwrap().status, 0, "{line}");
}

//! Implements the release of disks on the machine that this process runs on.
//!
//! What must never happen here: a name `sdX` that is another disk by now taken for ours.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_host::{
    Command, Commands, DiskError, Disks, Errno, Holder, HostCommands, KernelDisks, KernelTree, Layers, Tree,
    TreePath, layers,
};

use super::{Door, OurDisk};
use crate::client::Client;
use crate::clock;
use crate::device::{self, Probe};
use crate::named::named;
use crate::wire::End;

/// Time that a session may take to log out.
const LOGOUT_WITHIN: Duration = Duration::from_secs(10);
/// Time that the kernel may take to remove a disk that nobody uses.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The machine of this process.
#[derive(Debug, Clone)]
pub struct ThisMachine {
    run_dir: PathBuf,
}

impl ThisMachine {
    /// Makes it for the attachments of the agent with this run folder (`/run/mooring`).
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self { run_dir: run_dir.into() }
    }
}

/// Turns the error of a disk that has gone into `None`.
fn unless_gone<T>(result: Result<T, DiskError>) -> Result<Option<T>, String> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if [Errno::ENOENT, Errno::ENODEV, Errno::ENXIO].contains(&error.errno) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn text(error: impl std::error::Error + 'static) -> String {
    mooring_model::Chain(&error).to_string()
}

/// Returns `true` if the device is still this disk.
fn is_same(disk: &OurDisk) -> Result<bool, String> {
    Ok(unless_gone(KernelDisks.sequence(&disk.device))? == Some(disk.sequence))
}

impl Door for ThisMachine {
    fn disks(&self) -> Result<Vec<OurDisk>, String> {
        let named =
            named(&self.run_dir).map_err(|error| format!("read {}: {error}", self.run_dir.display()))?;
        let mut found = Vec::new();
        let (sys, folder) = (KernelTree::new("/sys"), TreePath::new("block"));
        for block in sys.list(&folder).map_err(text)? {
            let sequence = sys.read_text(&folder.join(&block.name).join("diskseq")).unwrap_or_default();
            let Ok(sequence) = sequence.trim().parse() else { continue };
            if let Some(&volume) = named.get(&sequence) {
                found.push(OurDisk { volume, device: Path::new("/dev").join(&block.name), sequence });
            }
        }
        Ok(found)
    }

    fn layers(&self, disk: &OurDisk) -> Result<Layers, String> {
        if !is_same(disk)? {
            return Ok(Layers::default());
        }
        layers(&disk.device).map_err(|error| error.to_string())
    }

    fn holders(&self, disk: &OurDisk) -> Result<Vec<Holder>, String> {
        if !is_same(disk)? {
            return Ok(Vec::new());
        }
        Ok(unless_gone(KernelDisks.holders(&disk.device))?.unwrap_or_default())
    }

    fn run(&self, command: &Command) -> Result<(), String> {
        match HostCommands.run(command) {
            Ok(output) if output.status == 0 => Ok(()),
            Ok(output) => Err(output.stderr.trim().replace('\n', "; ")),
            Err(error) => Err(mooring_model::Chain(&error).to_string()),
        }
    }

    fn flush(&self, disk: &OurDisk) -> Result<(), String> {
        if !is_same(disk)? {
            return Ok(());
        }
        unless_gone(KernelDisks.flush(&disk.device)).map(drop)
    }

    fn log_out(&self, disk: &OurDisk) -> Result<(), String> {
        let software = concat!("mooring-agent ", env!("CARGO_PKG_VERSION"));
        let mut client = Client::connect(&self.run_dir, software).map_err(text)?;
        let Some(session) = client.get(disk.volume).map_err(text)? else { return Ok(()) };
        let sys = KernelTree::new("/sys");
        for unit in device::units(&sys, &session).map_err(text)? {
            device::delete(&sys, unit).map_err(text)?;
            let until = clock::instant() + GONE_WITHIN;
            while device::probe(&sys, unit).map_err(text)? != Probe::Absent {
                if clock::instant() > until {
                    return Err(format!(
                        "{} does not go, {} s after its removal",
                        disk.device.display(),
                        GONE_WITHIN.as_secs()
                    ));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        match client.end(disk.volume, End::Logout, LOGOUT_WITHIN).map_err(text)? {
            None => Ok(()),
            Some(_) => Err(format!("its session does not log out within {} s", LOGOUT_WITHIN.as_secs())),
        }
    }
}

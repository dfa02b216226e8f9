//! A disk on a host, as its users see it: a path for writing and reading stamps.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Running, Vm};

use crate::site::{BIN, sequences};

const LONG: Duration = Duration::from_hours(1);

/// A path to a disk on one VM.
#[derive(Clone)]
pub struct Disk<'a> {
    /// The VM.
    pub vm: &'a Vm,
    /// The path.
    pub path: String,
}

impl<'a> Disk<'a> {
    /// A disk by its path.
    pub fn new(vm: &'a Vm, path: impl Into<String>) -> Self {
        Self { vm, path: path.into() }
    }

    /// The kernel's name, if the path is a link.
    pub fn name(&self) -> Result<String> {
        Ok(self.vm.run(&["readlink", "-e", &self.path])?.ok()?.line().to_owned())
    }

    /// The NAA identifier, from a fresh INQUIRY (page 0x83).
    pub fn naa(&self) -> Result<String> {
        let out = self.vm.run(&["/lib/udev/scsi_id", "-g", "-u", "-d", &self.path])?.ok()?;
        // scsi_id prefixes the identifier with its type, 3 for NAA.
        Ok(out.line().strip_prefix('3').context("scsi_id names no NAA")?.to_owned())
    }

    /// Writes stamps in the background.
    pub fn write_stamps(&self, more: &[&str]) -> Result<Running> {
        let mut argv = vec![format!("{BIN}/mooring-stamp"), "write".to_owned(), self.path.clone()];
        argv.extend(more.iter().map(|&arg| arg.to_owned()));
        self.vm.command(argv).timeout(LONG).spawn()
    }

    /// Reads a stamp again and again in the background.
    pub fn watch_stamps(&self) -> Result<Running> {
        self.vm.command([&format!("{BIN}/mooring-stamp"), "watch", &self.path]).timeout(LONG).spawn()
    }

    /// Reads all stamps once.
    pub fn read_stamps(&self) -> Result<Vec<u64>> {
        let out = self.vm.run(&[&format!("{BIN}/mooring-stamp"), "read", &self.path])?.ok()?;
        sequences(&out.stdout)
    }

    /// Writes zeros over the first block past the block layer (SG_IO). Returns the target's answer.
    pub fn write_raw(&self) -> Result<String> {
        let generic = self.generic()?;
        let write = format!("sg_raw -s 512 -i /dev/zero {generic} 2a 00 00 00 00 00 00 00 01 00 2>&1");
        Ok(self.vm.sh(&write)?.stdout)
    }

    /// The generic device, for commands past the block layer.
    pub fn generic(&self) -> Result<String> {
        let name = self.name()?;
        let name = name.rsplit('/').next().unwrap_or_default();
        let out = self.vm.sh(&format!("ls /sys/block/{name}/device/scsi_generic"))?.ok()?;
        if out.line().is_empty() {
            bail!("{} has no generic device", self.path);
        }
        Ok(format!("/dev/{}", out.line()))
    }
}

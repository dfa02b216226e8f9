//! The floor: the bare system calls of exports. Every program must spend this.
//!
//! The calls are those of the agent's plan for one portal, CHAP and read-write grants, in the same
//! order.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// One system call on one object (`write`: open, write, close).
#[derive(Debug)]
pub enum Call {
    /// `mkdir`
    Mkdir(PathBuf),
    /// `rmdir`
    Rmdir(PathBuf),
    /// `symlink`: the target, then the link.
    Link(PathBuf, PathBuf),
    /// `unlink`
    Unlink(PathBuf),
    /// Open, write, close.
    Write(PathBuf, String),
}

impl Call {
    /// Makes the call.
    pub fn make(&self) -> std::io::Result<()> {
        match self {
            Self::Mkdir(path) => fs::create_dir(path),
            Self::Rmdir(path) => fs::remove_dir(path),
            Self::Link(target, link) => symlink(target, link),
            Self::Unlink(path) => fs::remove_file(path),
            Self::Write(path, value) => {
                fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
            }
        }
    }

    /// The object of the call.
    pub fn object(&self) -> &Path {
        match self {
            Self::Mkdir(path)
            | Self::Rmdir(path)
            | Self::Unlink(path)
            | Self::Write(path, _)
            | Self::Link(_, path) => path,
        }
    }
}

/// Folders of one export.
#[derive(Debug)]
pub struct Export {
    /// The backstore's folder.
    pub backstore: PathBuf,
    target: PathBuf,
    portal: PathBuf,
}

impl Export {
    /// Names the folders of the export with this number.
    pub fn new(root: &Path, number: usize, portal: &str) -> Self {
        let target = root.join(format!("iscsi/iqn.2026-11.dev.mooring.floor:{number}"));
        Self {
            backstore: root.join(format!("core/iblock_{}/floor{number}", 3000 + number % 256)),
            portal: target.join("tpgt_1/np").join(portal),
            target,
        }
    }

    fn serial(&self) -> String {
        self.backstore.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn tpg(&self, below: &str) -> PathBuf {
        self.target.join("tpgt_1").join(below)
    }

    fn acl(&self, initiator: usize, below: &str) -> PathBuf {
        self.tpg(&format!("acls/iqn.2026-01.bench.floor:host{initiator}")).join(below)
    }

    /// Calls of a volume's first grant: backstore, target, portal, ACL, enable.
    pub fn first(&self, device: &Path) -> Vec<Call> {
        use Call::{Link, Mkdir, Write};
        let write = |path: PathBuf, value: &str| Write(path, value.to_owned());
        let mut calls = vec![
            Mkdir(self.backstore.clone()),
            write(self.backstore.join("control"), &format!("udev_path={}", device.display())),
            write(self.backstore.join("wwn/vpd_unit_serial"), &self.serial()),
            write(self.backstore.join("enable"), "1"),
            write(self.backstore.join("attrib/optimal_sectors"), "2048"),
            Mkdir(self.target.clone()),
            Mkdir(self.tpg("")),
            write(self.tpg("attrib/demo_mode_discovery"), "0"),
            write(self.tpg("attrib/prod_mode_write_protect"), "1"),
            Mkdir(self.tpg("lun/lun_1")),
            Link(self.backstore.clone(), self.tpg("lun/lun_1/floor")),
            Mkdir(self.portal.clone()),
        ];
        calls.extend(self.further(0));
        calls.push(write(self.tpg("enable"), "1"));
        calls
    }

    /// Calls of one more grant: ACL, mapped LUN, mode, credentials.
    pub fn further(&self, initiator: usize) -> Vec<Call> {
        use Call::{Link, Mkdir, Write};
        vec![
            Mkdir(self.acl(initiator, "")),
            Mkdir(self.acl(initiator, "lun_1")),
            Link(self.tpg("lun/lun_1"), self.acl(initiator, "lun_1/floor")),
            Write(self.acl(initiator, "lun_1/write_protect"), "0".to_owned()),
            Write(self.acl(initiator, "auth/userid"), "user".to_owned()),
            Write(self.acl(initiator, "auth/password"), "secret-of-twelve".to_owned()),
        ]
    }

    /// Calls of a revoke.
    pub fn revoke(&self, initiator: usize) -> Vec<Call> {
        use Call::{Rmdir, Unlink};
        vec![
            Unlink(self.acl(initiator, "lun_1/floor")),
            Rmdir(self.acl(initiator, "lun_1")),
            Rmdir(self.acl(initiator, "")),
        ]
    }

    /// Calls that remove everything that [`Export::first`] has made.
    pub fn remove(&self) -> Vec<Call> {
        use Call::{Rmdir, Unlink, Write};
        let mut calls = vec![Write(self.tpg("enable"), "0".to_owned())];
        calls.extend(self.revoke(0));
        calls.extend([
            Unlink(self.tpg("lun/lun_1/floor")),
            Rmdir(self.tpg("lun/lun_1")),
            Rmdir(self.portal.clone()),
            Rmdir(self.tpg("")),
            Rmdir(self.target.clone()),
            Rmdir(self.backstore.clone()),
        ]);
        calls
    }
}

/// Duration of a run of calls, and the part spent inside them.
#[derive(Debug, Default)]
pub struct Clock {
    /// Time inside the calls.
    pub inside: Duration,
    /// Time of the whole run.
    pub whole: Duration,
}

impl Clock {
    /// Makes the calls. Returns their duration in microseconds.
    pub fn run(&mut self, calls: &[Call]) -> Result<u64> {
        let began = Instant::now();
        for call in calls {
            let entered = Instant::now();
            call.make().with_context(|| call.object().display().to_string())?;
            self.inside += entered.elapsed();
        }
        let took = began.elapsed();
        self.whole += took;
        Ok(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
    }
}

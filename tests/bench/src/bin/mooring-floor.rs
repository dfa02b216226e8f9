//! The floor: the system calls of a grant and of a revoke, bare, in a loop. What any program has to spend.
//!
//! The calls are those of the agent's plan for one portal, CHAP and a read-write grant, in the same order, listed below.
//! The loop does nothing else: it prints which part of its time was spent inside of them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use mooring_bench::Figures;
use serde::Serialize;

/// Times the bare system calls of grants and revokes
#[derive(Debug, Parser)]
struct Args {
    /// LIO's folder
    #[arg(long, default_value = "/sys/kernel/config/target")]
    root: PathBuf,
    /// Block devices that nobody uses, one for each round
    #[arg(required = true)]
    devices: Vec<PathBuf>,
    /// ADDRESS:PORT of the portal
    #[arg(long)]
    portal: String,
    /// A folder on the file system of the agent's store, for the cost of one fsync
    #[arg(long)]
    fsync_in: PathBuf,
}

/// One system call on one object (`write`: open, write, close).
enum Call {
    Mkdir(PathBuf),
    Rmdir(PathBuf),
    Link(PathBuf, PathBuf),
    Unlink(PathBuf),
    Write(PathBuf, String),
}

impl Call {
    fn make(&self) -> std::io::Result<()> {
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

    fn object(&self) -> &Path {
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
struct Export {
    backstore: PathBuf,
    target: PathBuf,
    portal: PathBuf,
}

impl Export {
    fn new(root: &Path, number: usize, portal: &str) -> Self {
        let target = root.join(format!("iscsi/iqn.2026-11.dev.mooring.floor:{number}"));
        Self {
            backstore: root.join(format!("core/iblock_{}/floor{number}", 3000 + number % 256)),
            portal: target.join("tpgt_1/np").join(portal),
            target,
        }
    }

    fn tpg(&self, below: &str) -> PathBuf {
        self.target.join("tpgt_1").join(below)
    }

    fn acl(&self, initiator: usize, below: &str) -> PathBuf {
        self.tpg(&format!("acls/iqn.2026-01.floor:host{initiator}")).join(below)
    }

    /// The first grant of a volume: backstore, target, portal, ACL, enable.
    fn first(&self, device: &Path) -> Vec<Call> {
        use Call::{Link, Mkdir, Write};
        let write = |path: PathBuf, value: &str| Write(path, value.to_owned());
        let mut calls = vec![
            Mkdir(self.backstore.clone()),
            write(self.backstore.join("control"), &format!("udev_path={}", device.display())),
            write(self.backstore.join("wwn/vpd_unit_serial"), &self.backstore.display().to_string()[40..]),
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

    /// One more grant: ACL, mapped LUN, mode, credentials.
    fn further(&self, initiator: usize) -> Vec<Call> {
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

    fn revoke(&self, initiator: usize) -> Vec<Call> {
        use Call::{Rmdir, Unlink};
        vec![
            Unlink(self.acl(initiator, "lun_1/floor")),
            Rmdir(self.acl(initiator, "lun_1")),
            Rmdir(self.acl(initiator, "")),
        ]
    }

    fn remove(&self) -> Vec<Call> {
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

/// Time of a run of calls, and the part of it that was inside of them.
#[derive(Default)]
struct Clock {
    inside: Duration,
    whole: Duration,
}

impl Clock {
    fn run(&mut self, calls: &[Call]) -> Result<u64> {
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

/// What is printed.
#[derive(Serialize)]
struct Floor {
    figures: Vec<Figures>,
    inside_percent: u64,
}

fn run(args: &Args) -> Result<Floor> {
    let mut clock = Clock::default();
    let (mut first, mut further, mut revoke, mut sync) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, device) in args.devices.iter().enumerate() {
        let export = Export::new(&args.root, number, &args.portal);
        // The HBA folder is there before a volume's first grant in most cases: 256 of them serve all volumes.
        if let Some(hba) = export.backstore.parent() {
            drop(fs::create_dir(hba));
        }
        first.push(clock.run(&export.first(device))?);
        further.push(clock.run(&export.further(1))?);
        revoke.push(clock.run(&export.revoke(1))?);
        for call in export.remove() {
            call.make().with_context(|| call.object().display().to_string())?;
        }
        if let Some(hba) = export.backstore.parent() {
            drop(fs::remove_dir(hba));
        }
        sync.push(one_fsync(&args.fsync_in)?);
    }
    let percent = clock.inside.as_micros() * 100 / clock.whole.as_micros().max(1);
    Ok(Floor {
        figures: vec![
            Figures::of("first grant", first),
            Figures::of("further grant", further),
            Figures::of("revoke", revoke),
            Figures::of("fsync", sync),
        ],
        inside_percent: u64::try_from(percent).unwrap_or(0),
    })
}

/// Appends a page to a file and syncs it, as a log does.
fn one_fsync(folder: &Path) -> Result<u64> {
    let path = folder.join("floor.fsync");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    let began = Instant::now();
    file.write_all(&[0; 4096])?;
    file.sync_data()?;
    let took = began.elapsed();
    Ok(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

fn main() -> ExitCode {
    match run(&Args::parse()).and_then(|floor| Ok(serde_json::to_string(&floor)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mooring-floor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! The calls on disks, against block devices of a running kernel: loop devices, which this test makes and takes away.
//!
//! What must never happen here: a device of the machine that is touched. Only loop devices on files of this test are.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use mooring_host::{DiskOp, Disks, Errno, Holder, KernelDisks};
use nix::libc::O_EXCL;

const BYTES: u64 = 1 << 20;

/// Loop devices are found by "the first that is free": one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// A loop device on a file or on another device.
struct Loop(PathBuf);

impl Loop {
    fn over(backing: &Path) -> Self {
        let made = Command::new("losetup").args(["--show", "--find"]).arg(backing).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().into())
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").arg("--detach").arg(&self.0).status().unwrap();
    }
}

/// A process that keeps the device open until it is dropped.
struct Keeper(Child);

impl Keeper {
    fn of(device: &Path) -> Self {
        let input = Stdio::from(File::open(device).unwrap());
        Self(Command::new("sleep").arg("600").stdin(input).spawn().unwrap())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn disk() -> (Loop, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(BYTES).unwrap();
    (Loop::over(file.path()), file)
}

#[test]
#[ignore = "needs root, loop devices and a view of all processes"]
fn size_sequence_read_only_and_flush() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (disk, file) = disk();
    let disks = KernelDisks;
    assert_eq!(disks.size(&disk.0), Ok(BYTES));
    let sequence = disks.sequence(&disk.0).unwrap();
    // A loop device keeps the flag for its next file.
    disks.set_read_only(&disk.0, false).unwrap();
    assert_eq!(disks.read_only(&disk.0), Ok(false));
    disks.set_read_only(&disk.0, true).unwrap();
    assert_eq!(disks.read_only(&disk.0), Ok(true));
    // 6.1 refuses the open for writing, 6.18 the write.
    let refused = OpenOptions::new()
        .write(true)
        .open(&disk.0)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 512]))
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    disks.set_read_only(&disk.0, false).unwrap();
    assert_eq!(disks.read_only(&disk.0), Ok(false));
    // What was written through the page cache is on the backing file after a flush.
    let mut written = OpenOptions::new().write(true).open(&disk.0).unwrap();
    std::io::Write::write_all(&mut written, &[0x5a; 4096]).unwrap();
    disks.flush(&disk.0).unwrap();
    assert_eq!(&std::fs::read(file.path()).unwrap()[..4097], [&[0x5a; 4096][..], &[0]].concat());
    // A loop device is no SCSI disk.
    let error = disks.inquiry(&disk.0, 0x83).unwrap_err();
    assert_eq!(error.op, DiskOp::Inquiry(0x83));
    assert!([Errno::ENOTTY, Errno::EINVAL].contains(&error.errno), "{error}");
    // The same name, another disk.
    drop(written);
    let name = disk.0.clone();
    drop(disk);
    let status = Command::new("losetup").arg(&name).arg(file.path()).status().unwrap();
    assert!(status.success());
    let again = Loop(name);
    assert_ne!(disks.sequence(&again.0).unwrap(), sequence);
}

#[test]
#[ignore = "needs root, loop devices and a view of all processes"]
fn whoever_holds_a_disk_is_named() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (disk, _file) = disk();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("disk");
    std::os::unix::fs::symlink(&disk.0, &link).unwrap();
    let holders = || KernelDisks.holders(&link).unwrap();
    assert_eq!(holders(), []);
    let keeper = Keeper::of(&disk.0);
    assert_eq!(holders(), [Holder::Process { pid: keeper.0.id(), name: "sleep".into() }]);
    drop(keeper);
    let on_top = Loop::over(&disk.0);
    assert_eq!(holders(), [Holder::Device(on_top.name())]);
    drop(on_top);
    // This process does not count, but an exclusive holder is noticed even if nobody can be named.
    let open = File::open(&disk.0).unwrap();
    assert_eq!(holders(), []);
    let exclusive = OpenOptions::new().read(true).custom_flags(O_EXCL).open(&disk.0).unwrap();
    assert_eq!(holders(), [Holder::Unknown]);
    drop((open, exclusive));
    assert_eq!(holders(), []);
}

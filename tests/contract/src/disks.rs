//! The calls on disks, against block devices of a running kernel: loop devices, which this makes and takes away.
//!
//! What must never happen here: a device of the machine that is touched. Only loop devices on files of this program are.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use mooring_host::{DiskOp, Disks, Errno, Holder, KernelDisks};

const BYTES: u64 = 1 << 20;

/// `O_EXCL` of `open(2)`: of a block device, nobody else may hold it.
const O_EXCL: i32 = 0o200;

/// A loop device on a file or on another device.
struct Loop(PathBuf);

impl Loop {
    fn over(backing: &Path) -> Result<Self> {
        let made = Command::new("losetup").args(["--show", "--find"]).arg(backing).output()?;
        ensure!(made.status.success(), "losetup: {made:?}");
        Ok(Self(String::from_utf8(made.stdout)?.trim().into()))
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Without it the next device has another number, and nothing else is different.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A process that keeps the device open until it is dropped.
struct Keeper(Child);

impl Keeper {
    fn of(device: &Path) -> Result<Self> {
        let input = Stdio::from(File::open(device)?);
        Ok(Self(Command::new("sleep").arg("600").stdin(input).spawn()?))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of 1 MiB in this folder, and a loop device on it.
fn disk(folder: &Path) -> Result<(Loop, PathBuf)> {
    let file = folder.join("mooring-contract-disk");
    File::create(&file)?.set_len(BYTES)?;
    Ok((Loop::over(&file)?, file))
}

/// Size, sequence, read-only and flush.
fn calls(folder: &Path) -> Result<()> {
    let (disk, file) = disk(folder)?;
    let disks = KernelDisks;
    ensure!(disks.size(&disk.0) == Ok(BYTES), "its size: {:?}", disks.size(&disk.0));
    let sequence = disks.sequence(&disk.0)?;
    // A loop device keeps the flag for its next file.
    disks.set_read_only(&disk.0, false)?;
    ensure!(disks.read_only(&disk.0) == Ok(false), "read only at first");
    disks.set_read_only(&disk.0, true)?;
    ensure!(disks.read_only(&disk.0) == Ok(true), "not read only");
    // 6.1 refuses the open for writing, 6.18 the write.
    let write = OpenOptions::new().write(true).open(&disk.0).and_then(|mut file| file.write_all(&[1; 512]));
    let refused = write.err().context("a disk that is read only was written to")?;
    ensure!(refused.kind() == ErrorKind::PermissionDenied, "refused by {refused}");
    disks.set_read_only(&disk.0, false)?;
    // What was written through the page cache is on the backing file after a flush.
    let mut written = OpenOptions::new().write(true).open(&disk.0)?;
    written.write_all(&[0x5a; 4096])?;
    disks.flush(&disk.0)?;
    let mut found = [1; 4097];
    File::open(&file)?.read_exact_at(&mut found, 0)?;
    ensure!(found[..4096] == [0x5a; 4096] && found[4096] == 0, "what was flushed is not on the file");
    // Read-ahead is kept in pages of 8 sectors.
    for (set, kept) in [(0, 0), (256, 256), (4099, 4096)] {
        disks.set_read_ahead(&disk.0, set)?;
        ensure!(disks.read_ahead(&disk.0) == Ok(kept), "read-ahead {set} is {:?}", disks.read_ahead(&disk.0));
    }
    let error = disks.inquiry(&disk.0, 0x83).err().context("a loop device is no SCSI disk")?;
    ensure!(error.op == DiskOp::Inquiry(0x83), "{error}");
    ensure!([Errno::ENOTTY, Errno::EINVAL].contains(&error.errno), "{error}");
    // The same name, another disk.
    drop(written);
    let name = disk.0.clone();
    drop(disk);
    let status = Command::new("losetup").arg(&name).arg(&file).status()?;
    ensure!(status.success(), "losetup {}: {status}", name.display());
    let again = Loop(name);
    ensure!(disks.sequence(&again.0)? != sequence, "another disk of the same name has the same sequence");
    Ok(())
}

/// Pages of the page cache stay while somebody keeps the device open, and go by BLKFLSBUF.
fn cached_pages(folder: &Path) -> Result<()> {
    let (disk, file) = disk(folder)?;
    // udev reads a device that has come.
    let settled = Command::new("udevadm").arg("settle").status()?;
    ensure!(settled.success(), "udevadm settle: {settled}");
    let keeper = File::open(&disk.0)?;
    let read = || -> Result<u8> {
        let mut found = [0; 1];
        File::open(&disk.0)?.read_exact_at(&mut found, 0)?;
        Ok(found[0])
    };
    // Past the device: what another host writes.
    let write = |byte: u8| -> Result<()> {
        let backing = OpenOptions::new().write(true).open(&file)?;
        backing.write_all_at(&[byte; 4096], 0)?;
        Ok(backing.sync_all()?)
    };
    write(1)?;
    KernelDisks.drop_pages(&disk.0)?;
    ensure!(read()? == 1, "the first read");
    write(2)?;
    ensure!(read()? == 1, "the control shows nothing: no old page is read");
    KernelDisks.drop_pages(&disk.0)?;
    ensure!(read()? == 2, "an old page is read after its drop");
    write(3)?;
    KernelDisks.flush(&disk.0)?;
    ensure!(read()? == 3, "an old page is read after a flush");
    drop(keeper);
    Ok(())
}

/// Whoever holds a disk is named.
fn holders(folder: &Path) -> Result<()> {
    let (disk, _) = disk(folder)?;
    let link = folder.join("mooring-contract-link");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&disk.0, &link)?;
    let held_by = |wanted: &[Holder]| -> Result<()> {
        // udev looks into a device that has come or was written to, and holds it for as long.
        let settled = Command::new("udevadm").arg("settle").status()?;
        ensure!(settled.success(), "udevadm settle: {settled}");
        let found = KernelDisks.holders(&link)?;
        ensure!(found == wanted, "it is held by {found:?}, and said to be by {wanted:?}");
        Ok(())
    };
    held_by(&[])?;
    let keeper = Keeper::of(&disk.0)?;
    held_by(&[Holder::Process { pid: keeper.0.id(), name: "sleep".into() }])?;
    drop(keeper);
    let on_top = Loop::over(&disk.0)?;
    held_by(&[Holder::Device(on_top.name())])?;
    drop(on_top);
    // This process does not count, but an exclusive holder is noticed even if nobody can be named.
    let open = File::open(&disk.0)?;
    held_by(&[])?;
    let exclusive = OpenOptions::new().read(true).custom_flags(O_EXCL).open(&disk.0)?;
    held_by(&[Holder::Unknown])?;
    drop((open, exclusive));
    held_by(&[])?;
    std::fs::remove_file(link)?;
    Ok(())
}

/// Prints a line for a check; whether it holds.
fn holds(name: &str, outcome: &Result<()>) -> bool {
    match outcome {
        Ok(()) => println!("ok       {name}"),
        Err(error) => println!("FAILED   {name}: {error:#}"),
    }
    outcome.is_ok()
}

/// Runs all of it; whether it holds.
pub(crate) fn run(folder: &Path) -> bool {
    let calls = holds("size, sequence, read-only, read-ahead and flush of a disk", &calls(folder));
    let pages = holds("BLKFLSBUF drops what the page cache has of a disk", &cached_pages(folder));
    holds("whoever holds a disk is named", &holders(folder)) && calls && pages
}

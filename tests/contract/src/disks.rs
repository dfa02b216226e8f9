//! Checks the calls on disks against block devices of a running kernel: loop devices, which this
//! makes and removes.
//!
//! What must never happen here: a device of the machine that is touched. Only loop devices on files
//! of this program are.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mooring_host::{DiskAccess, DiskOp, DiskUser, Disks, Errno, Holder, KernelDisks, User};

const BYTES: u64 = 1 << 20;

/// `O_EXCL` of `open(2)`: for a block device, no other process may hold it exclusively.
const O_EXCL: i32 = 0o200;

/// `O_DIRECT` of `open(2)`, on x86.
const O_DIRECT: i32 = 0o40000;

/// Bytes that are left in the page cache.
const UNWRITTEN: u64 = 768 << 10;

/// Tolerance of the kernel's number: it counts on each CPU, and adds up from time to time.
const SLACK: u64 = 192 << 10;

/// A loop device on a file or on another device.
struct Loop(PathBuf);

impl Loop {
    fn over(backing: &Path) -> Result<Self> {
        let made = Command::new("losetup").args(["--show", "--find"]).arg(backing).output()?;
        ensure!(made.status.success(), "losetup: {made:?}");
        Ok(Self(String::from_utf8(made.stdout)?.trim().into()))
    }

    /// Detaches it, and waits until it has no file any more: the kernel waits for udev, which looks
    /// at what was written to.
    fn let_go(self) -> Result<PathBuf> {
        let (device, bound) = (self.0.clone(), Path::new("/sys/block").join(self.name()).join("loop"));
        drop(self);
        for _ in 0..200 {
            if !bound.exists() {
                return Ok(device);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{} has its file 10 s after it was detached: somebody has it open", device.display())
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // If this fails, the next device has another number, and nothing else changes.
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

/// Waits until udev has looked at new devices and at those that were written to.
fn settle() -> Result<()> {
    let settled = Command::new("udevadm").arg("settle").status()?;
    ensure!(settled.success(), "udevadm settle: {settled}");
    Ok(())
}

/// Makes a file of 1 MiB in this folder, and a loop device on it.
fn disk(folder: &Path) -> Result<(Loop, PathBuf)> {
    let file = folder.join("mooring-contract-disk");
    File::create(&file)?.set_len(BYTES)?;
    Ok((Loop::over(&file)?, file))
}

/// Checks size, sequence, read-only and flush.
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
    // A flush brings writes through the page cache to the backing file.
    let mut written = OpenOptions::new().write(true).open(&disk.0)?;
    written.write_all(&[0x5a; 4096])?;
    disks.flush(&disk.0)?;
    let mut found = [1; 4097];
    File::open(&file)?.read_exact_at(&mut found, 0)?;
    ensure!(found[..4096] == [0x5a; 4096] && found[4096] == 0, "what was flushed is not on the file");
    // The kernel stores read-ahead in pages of 8 sectors.
    for (set, kept) in [(0, 0), (256, 256), (4099, 4096)] {
        disks.set_read_ahead(&disk.0, set)?;
        ensure!(disks.read_ahead(&disk.0) == Ok(kept), "read-ahead {set} is {:?}", disks.read_ahead(&disk.0));
    }
    let error = disks.inquiry(&disk.0, 0x83).err().context("a loop device is no SCSI disk")?;
    ensure!(error.op == DiskOp::Inquiry(0x83), "{error}");
    ensure!([Errno::ENOTTY, Errno::EINVAL].contains(&error.errno), "{error}");
    // The same name is now another disk.
    drop(written);
    let name = disk.let_go()?;
    let status = Command::new("losetup").arg(&name).arg(&file).status()?;
    ensure!(status.success(), "losetup {}: {status}", name.display());
    let again = Loop(name);
    ensure!(disks.sequence(&again.0)? != sequence, "another disk of the same name has the same sequence");
    Ok(())
}

/// Checks that pages of the page cache stay while the device is open, and go by BLKFLSBUF.
fn cached_pages(folder: &Path) -> Result<()> {
    let (disk, file) = disk(folder)?;
    // udev reads a new device.
    settle()?;
    let keeper = File::open(&disk.0)?;
    let read = || -> Result<u8> {
        let mut found = [0; 1];
        File::open(&disk.0)?.read_exact_at(&mut found, 0)?;
        Ok(found[0])
    };
    // Write past the device, as another host does.
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

/// Checks that a partition has its own pages, which go with those of its disk.
fn pages_of_a_partition(folder: &Path) -> Result<()> {
    let file = folder.join("mooring-contract-parts");
    let backing = OpenOptions::new().write(true).create(true).truncate(true).open(&file)?;
    backing.set_len(BYTES)?;
    // An MBR with one Linux partition: 64 sectors from the 64th on.
    let mut entry = [0; 66];
    entry[4] = 0x83;
    entry[8] = 64;
    entry[12] = 64;
    entry[64..].copy_from_slice(&[0x55, 0xaa]);
    backing.write_all_at(&entry, 446)?;
    let made = Command::new("losetup").args(["--show", "--find", "--partscan"]).arg(&file).output()?;
    ensure!(made.status.success(), "losetup: {made:?}");
    let disk = Loop(String::from_utf8(made.stdout)?.trim().into());
    settle()?;
    let part = PathBuf::from(format!("{}p1", disk.0.display()));
    let keeper = OpenOptions::new().read(true).write(true).open(&part).context("the partition")?;
    let read = || -> Result<u8> {
        let mut found = [0; 1];
        keeper.read_exact_at(&mut found, 0)?;
        Ok(found[0])
    };
    let write = |byte: u8| -> Result<()> {
        backing.write_all_at(&[byte; 4096], 64 * 512)?;
        Ok(backing.sync_all()?)
    };
    write(1)?;
    KernelDisks.drop_pages(&disk.0)?;
    ensure!(read()? == 1, "the first read");
    write(2)?;
    ensure!(read()? == 1, "the control shows nothing: no old page is read");
    KernelDisks.drop_pages(&disk.0)?;
    ensure!(read()? == 2, "an old page of the partition is read after a drop of the disk");
    keeper.write_all_at(&[3; 4096], 0)?;
    KernelDisks.flush(&disk.0)?;
    let mut found = [0; 1];
    File::open(&file)?.read_exact_at(&mut found, 64 * 512)?;
    ensure!(found[0] == 3, "what was written to the partition is not on the file after a flush of the disk");
    Ok(())
}

/// Checks that the holders of a disk are named.
fn holders(folder: &Path) -> Result<()> {
    let (disk, _) = disk(folder)?;
    let link = folder.join("mooring-contract-link");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&disk.0, &link)?;
    let held_by = |wanted: &[Holder]| -> Result<()> {
        // udev holds a new or written device while it looks into it.
        settle()?;
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

/// Keeps a mapping of the first page, and no descriptor.
const MAPPED: &str = "import ctypes, os, sys, time; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p; \
                      c.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_long] * 5; f = os.open(sys.argv[1], os.O_RDONLY); \
                      m = c.mmap(None, 4096, 1, 1, f, 0); os.close(f); print(ctypes.string_at(m, 1), flush=True); time.sleep(600)";

/// Checks that users are named with their kind of access.
fn users(folder: &Path) -> Result<()> {
    let (disk, _) = disk(folder)?;
    let device = disk.name();
    let used_by = |wanted: &[(&str, User)]| -> Result<()> {
        settle()?;
        let usage = KernelDisks.usage(std::slice::from_ref(&disk.0))?;
        ensure!(usage.unseen.is_empty(), "not everything was seen: {:?}", usage.unseen);
        let user =
            |(device, user): &(&str, User)| DiskUser { device: (*device).to_owned(), user: user.clone() };
        let wanted: BTreeSet<_> = wanted.iter().map(user).collect();
        let found = usage.disks.get(&disk.0).context("the disk has gone")?;
        ensure!(*found == wanted, "it is used by {found:?}, and said to be by {wanted:?}");
        Ok(())
    };
    let process =
        |keeper: &Keeper, name: &str, access| User::Process { pid: keeper.0.id(), name: name.into(), access };
    used_by(&[])?;
    let buffered = Keeper::of(&disk.0)?;
    let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&disk.0)?;
    let direct = Keeper(Command::new("sleep").arg("600").stdin(Stdio::from(direct)).spawn()?);
    let mut mapped =
        Command::new("python3").args(["-c", MAPPED]).arg(&disk.0).stdout(Stdio::piped()).spawn()?;
    mapped.stdout.as_mut().context("a pipe")?.read_exact(&mut [0])?;
    let mapped = Keeper(mapped);
    used_by(&[
        (&device, process(&buffered, "sleep", DiskAccess::Buffered)),
        (&device, process(&direct, "sleep", DiskAccess::Direct)),
        (&device, process(&mapped, "python3", DiskAccess::Mapped)),
    ])?;
    drop((buffered, direct, mapped));
    // The device on top has users of its own.
    let above = Loop::over(&disk.0)?;
    let keeper = Keeper::of(&above.0)?;
    let name = above.name();
    used_by(&[
        (&device, User::Device { name: name.clone(), access: DiskAccess::Buffered }),
        (&name, process(&keeper, "sleep", DiskAccess::Buffered)),
    ])?;
    drop((keeper, above));
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk.0).status()?;
    ensure!(made.success(), "mkfs.ext4: {made}");
    let point = folder.join("mooring-contract-mount");
    std::fs::create_dir_all(&point)?;
    let mounted = Command::new("mount").arg(&disk.0).arg(&point).status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    let seen = used_by(&[(&device, User::Mount { point: point.clone(), filesystem: "ext4".into() })]);
    let unmounted = Command::new("umount").arg(&point).status()?;
    ensure!(unmounted.success(), "umount: {unmounted}");
    seen
}

/// Checks that dirty pages are counted, and that nothing is opened for that.
fn unwritten(folder: &Path) -> Result<()> {
    let (disk, _) = disk(folder)?;
    let count = || KernelDisks.unwritten(&disk.0)?.context("the kernel does not say: is debugfs mounted?");
    KernelDisks.flush(&disk.0)?;
    ensure!(count()? <= SLACK, "{} bytes of a disk that was written out", count()?);
    let mut writer = OpenOptions::new().write(true).open(&disk.0)?;
    writer.write_all(&vec![7; usize::try_from(UNWRITTEN)?])?;
    let found = count()?;
    ensure!(found.abs_diff(UNWRITTEN) <= SLACK, "{found} bytes, and {UNWRITTEN} were written");
    writer.sync_all()?;
    ensure!(count()? <= SLACK, "{} bytes after fsync", count()?);
    Ok(())
}

/// Prints a line for a check. Returns `true` if it holds.
fn holds(name: &str, outcome: &Result<()>) -> bool {
    match outcome {
        Ok(()) => println!("ok       {name}"),
        Err(error) => println!("FAILED   {name}: {error:#}"),
    }
    outcome.is_ok()
}

/// Runs all checks. Returns `true` if they hold.
pub(crate) fn run(folder: &Path) -> bool {
    let calls = holds("size, sequence, read-only, read-ahead and flush of a disk", &calls(folder));
    let pages = holds("BLKFLSBUF drops what the page cache has of a disk", &cached_pages(folder));
    let parts =
        holds("and what it has of its partitions, after it is written", &pages_of_a_partition(folder));
    let users = holds("users of a disk are named, with the way in which they read and write", &users(folder));
    let unwritten = holds("what is not written to a disk is counted", &unwritten(folder));
    holds("whoever holds a disk is named", &holders(folder)) && calls && pages && parts && users && unwritten
}

//! From the initramfs to a machine that is ready for commands.
//!
//! What must never happen here: a step that waits without a limit (the rig would only see a
//! timeout); a root that is written to (it is shared by all VMs; everything written goes to a tmpfs
//! overlay).

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, chroot};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

const NONE: Option<&str> = None;
/// Said by the kernel when part of the initramfs lies in memory that the firmware keeps for itself.
const MOVED: &str = "Move RAMDISK";
const DEVICE_WAIT: Duration = Duration::from_mins(1);

/// The rig's settings on the kernel command line, as `mooring.KEY=VALUE`.
struct Settings(BTreeMap<String, String>);

impl Settings {
    fn read() -> Result<Self> {
        let line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
        let pairs = line.split_whitespace().filter_map(|word| word.strip_prefix("mooring.")?.split_once('='));
        Ok(Self(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()))
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }
}

/// Sets the machine up and reaps orphans until the command server ends.
pub(crate) fn boot() -> Result<()> {
    special("proc", "/proc", "proc")?;
    special("sysfs", "/sys", "sysfs")?;
    special("devtmpfs", "/dev", "devtmpfs")?;
    let settings = Settings::read()?;
    if !settings.get("probe").is_empty() {
        // The KVM probe only needs to know whether a kernel runs at all.
        println!("mooring-guest: alive");
        return Ok(());
    }
    check_initramfs()?;
    load_modules()?;
    let kept = kept_files()?;
    enter_root()?;
    mount_the_rest()?;
    if let Some(archive) = kept {
        put_back(&archive)?;
    }
    mount_programs(settings.get("programs"))?;
    configure(&settings)?;
    thread::scope(|scope| {
        let net = scope.spawn(|| network(&settings));
        let dev = scope.spawn(devices);
        net.join().unwrap_or_else(|_| bail!("the network thread panicked"))?;
        dev.join().unwrap_or_else(|_| bail!("the device thread panicked"))
    })?;
    // Expedited grace periods make the boot fast, and timings of configfs unreal: back to normal
    // before anything is measured.
    write("/sys/kernel/rcu_expedited", "0")?;
    if settings.get("init") == "systemd" {
        return hand_over();
    }
    println!("{}", mooring_guest::wire::READY_MARK);
    let server = Command::new("/proc/self/exe").arg("serve").spawn().context("start the command server")?;
    reap(Pid::from_raw(server.id().cast_signed()))
}

/// Ends the machine: QEMU runs with `-no-reboot`.
pub(crate) fn power_off() -> ExitCode {
    nix::unistd::sync();
    let _ = reboot(RebootMode::RB_POWER_OFF);
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    ExitCode::FAILURE
}

fn special(source: &str, target: &str, kind: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("make {target}"))?;
    mount(Some(source), target, Some(kind), MsFlags::empty(), NONE)
        .with_context(|| format!("mount {kind} on {target}"))
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {path}"))
}

/// Loads `/modules/*.ko` in the order of their names, which the rig made the order of their
/// dependencies.
fn load_modules() -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/modules").context("list /modules of the initramfs")? {
        names.push(entry?.path());
    }
    names.sort();
    names.iter().try_for_each(|path| load_module(path))
}

fn load_module(path: &Path) -> Result<()> {
    let file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        // ENODEV: an accelerated checksum refuses a CPU without its instruction; the generic one
        // exists as well.
        Ok(()) | Err(Errno::EEXIST | Errno::ENODEV) => Ok(()),
        Err(e) => Err(e).with_context(|| format!("load {}", path.display())),
    }
}

/// Ends a boot whose initramfs the firmware may have written to: a module or this program would
/// then be wrong in a few bytes.
fn check_initramfs() -> Result<()> {
    let mut log = fs::File::options()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open("/dev/kmsg")
        .context("open /dev/kmsg")?;
    // A read returns one record; the kernel's longest has 8 KiB.
    let mut record = [0; 8192];
    loop {
        let read = match log.read(&mut record) {
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The oldest records were overwritten meanwhile.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => continue,
            Err(e) => return Err(e).context("read /dev/kmsg"),
        };
        let text = String::from_utf8_lossy(record.get(..read).unwrap_or_default());
        if text.contains(MOVED) {
            bail!("the firmware keeps memory in which QEMU has put the initramfs: {}", text.trim_end());
        }
    }
}

fn wait_for(path: &str) -> Result<()> {
    let start = Instant::now();
    while !Path::new(path).exists() {
        if start.elapsed() > DEVICE_WAIT {
            bail!("{path} did not appear within {} s", DEVICE_WAIT.as_secs());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Mounts the root image (vda) below, a tmpfs above, and the kernel's modules (vdb) in their place;
/// then makes this `/`.
fn enter_root() -> Result<()> {
    let read_only = MsFlags::MS_RDONLY | MsFlags::MS_NOATIME;
    for (device, target) in [("/dev/vda", "/lower"), ("/dev/vdb", "/lower-modules")] {
        wait_for(device)?;
        fs::create_dir_all(target).with_context(|| format!("make {target}"))?;
        mount(Some(device), target, Some("ext4"), read_only, NONE)
            .with_context(|| format!("mount {device} on {target}"))?;
    }
    fs::create_dir_all("/upper").context("make /upper")?;
    mount(Some("tmpfs"), "/upper", Some("tmpfs"), MsFlags::MS_NOATIME, Some("size=75%"))
        .context("mount the overlay's tmpfs")?;
    for dir in ["/upper/files", "/upper/work", "/root-new"] {
        fs::create_dir_all(dir).with_context(|| format!("make {dir}"))?;
    }
    let layers = "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work";
    mount(Some("overlay"), "/root-new", Some("overlay"), MsFlags::MS_NOATIME, Some(layers))
        .context("mount the overlay root")?;
    let moves = [("/lower-modules", "usr/lib/modules"), ("/proc", "proc"), ("/sys", "sys"), ("/dev", "dev")];
    for (from, to) in moves {
        let to = format!("/root-new/{to}");
        fs::create_dir_all(&to).with_context(|| format!("make {to}"))?;
        mount(Some(from), to.as_str(), NONE, MsFlags::MS_MOVE, NONE)
            .with_context(|| format!("move {from} to {to}"))?;
    }
    std::env::set_current_dir("/root-new").context("enter the new root")?;
    mount(Some("."), "/", NONE, MsFlags::MS_MOVE, NONE).context("move the new root to /")?;
    chroot(".").context("chroot into the new root")?;
    std::env::set_current_dir("/").context("enter /")
}

fn mount_the_rest() -> Result<()> {
    special("tmpfs", "/run", "tmpfs")?;
    special("tmpfs", "/dev/shm", "tmpfs")?;
    special("devpts", "/dev/pts", "devpts")?;
    special("configfs", "/sys/kernel/config", "configfs")?;
    special("debugfs", "/sys/kernel/debug", "debugfs")?;
    special("tracefs", "/sys/kernel/tracing", "tracefs")?;
    for dir in ["/run/lock", "/run/lvm", "/run/udev"] {
        fs::create_dir_all(dir).with_context(|| format!("make {dir}"))?;
    }
    Ok(())
}

/// Reads the archive of the files that the VM keeps, which is lost together with the initramfs.
/// `None`: it keeps none.
fn kept_files() -> Result<Option<Vec<u8>>> {
    match fs::read(Path::new("/").join(mooring_guest::wire::KEPT)) {
        Ok(archive) => Ok(Some(archive)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context("read the archive of kept files"),
    }
}

/// Puts kept files into the root, with their owners and modes.
fn put_back(archive: &[u8]) -> Result<()> {
    const AT: &str = "/run/kept.tar";
    fs::write(AT, archive).with_context(|| format!("write {AT}"))?;
    run("/usr/bin/tar", &["-x", "-C", "/", "-f", AT])?;
    fs::remove_file(AT).with_context(|| format!("remove {AT}"))
}

/// Mounts the programs under test, if the rig provided a disk with them.
fn mount_programs(device: &str) -> Result<()> {
    if device.is_empty() {
        return Ok(());
    }
    wait_for(device)?;
    let target = mooring_guest::wire::PROGRAMS_DIR;
    fs::create_dir_all(target).with_context(|| format!("make {target}"))?;
    mount(Some(device), target, Some("ext4"), MsFlags::MS_RDONLY | MsFlags::MS_NOATIME, NONE)
        .with_context(|| format!("mount {device} on {target}"))
}

fn configure(settings: &Settings) -> Result<()> {
    let name = settings.get("name");
    nix::unistd::sethostname(name).context("set the host name")?;
    write("/etc/hostname", &format!("{name}\n"))?;
    write(
        "/etc/hosts",
        &format!("127.0.0.1 localhost {name}\n::1 localhost\n{}", hosts(settings.get("hosts"))),
    )?;
    // Debian makes this file at installation, so all clones would share one name.
    write("/etc/iscsi/initiatorname.iscsi", &format!("InitiatorName=iqn.1993-08.org.debian:01:{name}\n"))?;
    let id = settings.get("machine-id");
    if !id.is_empty() {
        write("/etc/machine-id", &format!("{id}\n"))?;
    }
    write("/proc/sys/kernel/hung_task_timeout_secs", settings.get("hung"))?;
    write("/proc/sys/kernel/hung_task_warnings", "-1")?;
    write("/proc/sys/kernel/watchdog_thresh", settings.get("watchdog"))
}

/// Converts `name=ip,name=ip` to lines of `/etc/hosts`.
fn hosts(list: &str) -> String {
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    let lines: Vec<String> = pairs.map(|(name, ip)| format!("{ip} {name}")).collect();
    lines.join("\n") + "\n"
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let out = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", crate::work::PATH)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        bail!(
            "{program} {} failed ({}): {}",
            args.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(())
}

/// Sets `mooring.net=ADDR/LEN,ADDR/LEN`: one address per interface, eth0 first.
fn network(settings: &Settings) -> Result<()> {
    let mut batch = vec!["link set lo up".to_owned()];
    for (index, address) in settings.get("net").split(',').filter(|a| !a.is_empty()).enumerate() {
        wait_for(&format!("/sys/class/net/eth{index}"))?;
        batch.push(format!("address add {address} dev eth{index}"));
        batch.push(format!("link set eth{index} up"));
    }
    write("/run/network.batch", &(batch.join("\n") + "\n"))?;
    run("/usr/sbin/ip", &["-batch", "/run/network.batch"])
}

/// Starts udev: LVM and device-mapper wait for it, and it makes `/dev/disk`. No other part of
/// systemd runs unless requested.
fn devices() -> Result<()> {
    run("/usr/lib/systemd/systemd-udevd", &["--daemon"])?;
    run("/usr/bin/udevadm", &["trigger", "--action=add", "--subsystem-match=block"])?;
    run("/usr/bin/udevadm", &["settle", "--timeout=60"])
}

/// The command server's unit, the last that systemd starts. The mark tells the rig that it may
/// call.
const SERVER_UNIT: &str = "[Unit]\nDescription=Command server of the test rig\nRequires=multi-user.target\n\
    After=multi-user.target\n[Service]\nExecStartPre=/bin/sh -c 'echo @MARK@ > /dev/console'\n\
    ExecStart=/run/mooring-guest serve\nLimitNOFILE=65536\n";

/// Replaces this process by Debian's own first process, and our udev by its own.
fn hand_over() -> Result<()> {
    run("/usr/bin/udevadm", &["control", "--exit"])?;
    // The program is lost together with the initramfs.
    fs::copy("/proc/self/exe", "/run/mooring-guest").context("copy the command server")?;
    fs::create_dir_all("/run/systemd/system").context("make the folder for units")?;
    let unit = SERVER_UNIT.replace("@MARK@", mooring_guest::wire::READY_MARK);
    write("/run/systemd/system/mooring-guest.service", &unit)?;
    let failed =
        Command::new("/usr/lib/systemd/systemd").arg("--unit=mooring-guest.service").env_clear().exec();
    Err(failed).context("start systemd")
}

/// Reaps ended processes; returns when the command server ends, which it never should.
fn reap(server: Pid) -> Result<()> {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == server => {
                bail!("the command server exited with status {code}")
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == server => {
                bail!("the command server was ended by {signal}")
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("wait for processes"),
        }
    }
}

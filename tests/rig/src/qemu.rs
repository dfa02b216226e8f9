//! QEMU's command line.
//!
//! What must never happen here: a default device, a boot menu, or a disk that the firmware sets up:
//! each costs time in every boot of every test.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::accel::Accel;
use crate::image::{Images, tool};
use crate::options::{NETWORKS, VmSpec, address};
use crate::volatile;

/// The network behind forwarded ports, its gateway and its guest: QEMU's own, equal in every VM
/// that has one.
const FORWARD_NET: &str = "10.30.0.0/24";
const FORWARD_HOST: &str = "10.30.0.2";
const FORWARD_GUEST: &str = "10.30.0.10";

/// Parameters of a boot.
pub(crate) struct Boot<'a> {
    pub(crate) spec: &'a VmSpec,
    pub(crate) index: usize,
    pub(crate) images: &'a Images,
    /// The image of programs, after the data disks.
    pub(crate) programs: Option<&'a Path>,
    pub(crate) accel: Accel,
    pub(crate) initramfs: &'a Path,
    /// The run folder; sockets, disks and logs are named relative to it, so its length does not
    /// matter.
    pub(crate) dir: &'a Path,
    /// `name=address` of all VMs.
    pub(crate) hosts: &'a str,
    /// Ports of this machine's loopback, each with the guest's port that it leads to.
    pub(crate) forwarded: &'a [(u16, u16)],
}

/// The emulated processor. It does not announce fast `rep movsb` and `rep stosb`: the kernel would
/// copy and clear memory by them, and the emulator does both a byte at a time, instead of eight
/// (copying takes a fifth, starting a program three quarters of the time; docs/rig.md). A fifth
/// level of page tables and SMAP cost time at each miss and each copy, and no test is about them.
const EMULATED: &str = "max,-erms,-fsrm,-la57,-smap";

/// The command up to `-accel`, the processor and the machine.
pub(crate) fn base(accel: Accel) -> Result<Command> {
    // setpriv ends QEMU when this process ends for any reason.
    let mut command = tool("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(crate::packages::find("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
    match accel {
        Accel::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        Accel::Tcg => command.args(["-accel", "tcg,thread=multi", "-cpu", EMULATED]),
    };
    command.args(["-machine", "q35,usb=off,sata=off,smbus=off,vmport=off", "-nodefaults", "-no-user-config"]);
    command.args(["-display", "none", "-no-reboot"]);
    // The firmware sets no disk up for a boot. For each it would take memory below its tables: with
    // four the initramfs reached into that, and on a busy machine one boot of 50 lost four bytes.
    command.args(["-boot", "strict=on"]);
    Ok(command)
}

/// Doubles commas in a file name, because QEMU separates options by commas.
pub(crate) fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Makes the command that starts this VM.
pub(crate) fn command(boot: &Boot) -> Result<Command> {
    let name = &boot.spec.name;
    let mut command = base(boot.accel)?;
    command.args([
        "-name",
        name,
        "-m",
        &boot.spec.memory_mib.to_string(),
        "-smp",
        &boot.spec.cpus.to_string(),
    ]);
    command.arg("-kernel").arg(&boot.images.vmlinux).arg("-initrd").arg(boot.initramfs);
    command.args(["-append", &kernel_line(boot)]);
    command.args([
        "-chardev",
        &format!("file,id=console,path={name}.console,append=on"),
        "-serial",
        "chardev:console",
    ]);
    command.args([
        "-chardev",
        &format!("socket,id=qmp,path={name}.qmp,server=off"),
        "-mon",
        "chardev=qmp,mode=control",
    ]);
    command.args([
        "-chardev",
        &format!("socket,id=rig,path={name}.rig,server=off"),
        "-device",
        "virtio-serial-pci",
    ]);
    command.args(["-device", &format!("virtserialport,chardev=rig,name={}", mooring_guest::wire::PORT_NAME)]);
    read_only(&mut command, "root", &boot.images.root);
    read_only(&mut command, "modules", &boot.images.modules);
    for index in 0..boot.spec.disks.len() {
        let id = format!("data{index}");
        let (file, options) = if boot.spec.volatile {
            let socket = volatile::socket(name, index);
            (format!("file.driver=nbd,file.server.type=unix,file.server.path={socket},discard=ignore"), "")
        } else {
            (format!("file={name}.{id},discard=unmap"), ",discard=on,write-zeroes=on")
        };
        command.args(["-drive", &format!("{file},if=none,id={id},format=raw,cache=writeback")]);
        command.args(["-device", &format!("virtio-blk-pci,drive={id},serial={id}{options}")]);
    }
    if let Some(image) = boot.programs {
        read_only(&mut command, "programs", image);
    }
    for net in 0..NETWORKS {
        command.args([
            "-netdev",
            &format!("stream,id=net{net},server=off,addr.type=unix,addr.path={name}.net{net}"),
        ]);
        // Large frames: under emulation a frame costs a processor far more than its bytes do. No
        // event indices: if a frame needs more buffers than the guest has given, QEMU before 9.1
        // looks again and then waits for a kick. By the earlier index the guest does not send it,
        // and the card receives nothing any more (qemu/qemu pull request 267).
        let mac = format!("52:54:00:{:02x}:00:{:02x}", 10 * (net + 1), 10 + boot.index);
        let device = format!(
            "virtio-net-pci,netdev=net{net},id=nic{net},mac={mac},romfile=,host_mtu=9000,event_idx=off"
        );
        command.args(["-device", &device]);
    }
    forward(&mut command, boot);
    let log = std::fs::File::create(boot.dir.join(format!("{name}.qemu"))).context("make QEMU's log")?;
    command.stdin(Stdio::null()).stdout(log.try_clone().context("duplicate QEMU's log")?).stderr(log);
    command.current_dir(boot.dir);
    // A process group of its own: ctrl-C in a terminal then reaches only the rig, which ends its
    // VMs in order.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command)
}

/// A disk that all VMs share.
fn read_only(command: &mut Command, id: &str, image: &Path) {
    let drive = format!("file={},if=none,id={id},format=raw,readonly=on,cache=unsafe", escape(image));
    command.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={id},serial={id}")]);
}

/// Adds the interface for forwarded ports, if there are any.
fn forward(command: &mut Command, boot: &Boot) {
    if boot.forwarded.is_empty() {
        return;
    }
    // QEMU's own small network: nothing of the guest leaves it; connections to the loopback ports
    // get in.
    let mut netdev = format!("user,id=forward,restrict=on,ipv6=off,net={FORWARD_NET},host={FORWARD_HOST}");
    for (outside, inside) in boot.forwarded {
        let _ = write!(netdev, ",hostfwd=tcp:127.0.0.1:{outside}-{FORWARD_GUEST}:{inside}");
    }
    let mac = format!("52:54:00:ff:00:{:02x}", 10 + boot.index);
    command.args(["-netdev", &netdev]);
    command.args(["-device", &format!("virtio-net-pci,netdev=forward,id=nicforward,mac={mac},romfile=")]);
}

fn kernel_line(boot: &Boot) -> String {
    let mut net: Vec<String> = (0..NETWORKS).map(|net| format!("{}/24", address(boot.index, net))).collect();
    if !boot.forwarded.is_empty() {
        net.push(format!("{FORWARD_GUEST}/24"));
    }
    // Warnings and worse go to the console. A panic ends QEMU (-no-reboot), which is how it is
    // noticed. The kernel's early check of its timer is off: it panics if a busy machine delays the
    // ticks. Programs stand at the same address each time (norandmaps): the emulator translates
    // each once, and not at every start.
    let kernel = "console=ttyS0 quiet loglevel=5 panic=-1 net.ifnames=0 mitigations=off random.trust_cpu=on norandmaps \
                  no_timer_check cryptomgr.notests 8250.nr_uarts=1 rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_timeout=60";
    // Be patient under emulation: a busy machine stops a virtual processor for seconds.
    let watchdog = if boot.accel == Accel::Tcg { 30 } else { 10 };
    let init = if boot.spec.systemd { " mooring.init=systemd" } else { "" };
    // The disks are root, modules, the data disks, programs: vda, vdb, and so on.
    let letter = char::from(b'c' + u8::try_from(boot.spec.disks.len()).unwrap_or(u8::MAX - b'c'));
    let programs = boot.programs.map_or_else(String::new, |_| format!(" mooring.programs=/dev/vd{letter}"));
    let machine_id = format!("{:032x}", 0x6d6f_6f72_696e_6700_u128 + boot.index as u128);
    format!(
        "{kernel} mooring.name={} mooring.net={} mooring.hosts={} mooring.hung=60 mooring.watchdog={watchdog} \
         mooring.machine-id={machine_id}{init}{programs}",
        boot.spec.name,
        net.join(","),
        boot.hosts,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_file_names_are_doubled() {
        assert_eq!(escape(Path::new("/a,b/c")), "/a,,b/c");
    }
}

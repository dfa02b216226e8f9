//! Fibre Channel without hardware: FCoE VN2VN over `eth1`. libfc's ports log in to each other as
//! over a fabric.
//!
//! What must never happen here: an initiator's port that comes up before the target's portal group;
//! it would take that port for no target, and not look again (docs/kernel/lio.md, h).

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::Vm;

use crate::disk::Disk;
use crate::evidence::wait_for;
use crate::site::{Site, TARGET};
use crate::slow;

/// The interface that carries the frames.
const LINK: &str = "eth1";

/// The name of a VM's port, as LIO writes it: `20:00` and the hardware address of its interface.
pub fn port_name(vm: &Vm) -> Result<String> {
    let address = vm.sh(&format!("cat /sys/class/net/{LINK}/address"))?.ok()?;
    Ok(format!("20:00:{}", address.line()))
}

/// Makes room for whole frames and loads the modules. The port does not exist yet.
pub fn prepare(vm: &Vm, modules: &str) -> Result<()> {
    vm.sh(&format!("ip link set {LINK} mtu 2500 up && modprobe -a fcoe {modules}"))?
        .ok()
        .with_context(|| format!("prepare {} for FCoE", vm.name()))?;
    Ok(())
}

/// Brings the port up. The link is down while the port is made: in libfcoe of 6.1 another port's
/// frame at that time kills the kernel's worker (`fcoe_ctlr_vn_recv`).
pub fn open_port(vm: &Vm) -> Result<()> {
    let make = format!("echo {LINK} > /sys/module/libfcoe/parameters/create_vn2vn");
    vm.sh(&format!("ip link set {LINK} down && {make} && ip link set {LINK} up"))?
        .ok()
        .with_context(|| format!("bring up the Fibre Channel port of {}", vm.name()))?;
    Ok(())
}

/// Removes the port with its disks. Commands that wait for them end with an error.
pub fn close_port(vm: &Vm) -> Result<()> {
    vm.sh(&format!("echo {LINK} > /sys/module/libfcoe/parameters/destroy"))?
        .ok()
        .with_context(|| format!("take down the Fibre Channel port of {}", vm.name()))?;
    Ok(())
}

/// Control of a force detach over Fibre Channel: the host's LUN is only unmapped, by hand, with
/// writes in flight. Returns how many stamps land after it; none is an error.
pub fn landed_after_unmapping(
    site: &Site,
    host: &Vm,
    device: &str,
    lun: u16,
    disk: &Disk<'_>,
) -> Result<u64> {
    let writer = slow::write(site, device, disk)?;
    let (port, own) = (port_name(site.storage()?)?, port_name(host)?);
    let mapped = format!("{TARGET}/fc/{port}/tpgt_1/acls/{own}/lun_{lun}");
    let unmap = format!("find {mapped} -maxdepth 1 -type l -delete");
    let landed = slow::landed_after_unmapping(site, device, &unmap)?;
    writer.kill()?;
    site.delay_writes(device, None)?;
    Ok(landed)
}

/// Delays every frame that the VM sends. A write's data leave only after the target has asked for
/// them, so they come that much later than their command.
pub fn delay(vm: &Vm, by: Duration) -> Result<()> {
    let ms = by.as_millis();
    vm.sh(&format!("modprobe sch_netem && tc qdisc replace dev {LINK} root netem delay {ms}ms limit 1000"))?
        .ok()
        .context("hold frames back")?;
    Ok(())
}

/// Scans for one LUN at every port where the VM is logged in. A host that is logged in is not told
/// of a new LUN.
pub fn scan(vm: &Vm, lun: u16) -> Result<()> {
    let script = format!(
        "for host in /sys/class/fc_host/*; do echo '- - {lun}' > /sys/class/scsi_host/${{host##*/}}/scan; done"
    );
    vm.sh(&script)?.ok().with_context(|| format!("scan for LUN {lun} on {}", vm.name()))?;
    Ok(())
}

/// The disk of a LUN that the VM sees over Fibre Channel; waits for it.
pub fn disk(vm: &Vm, lun: u16) -> Result<Disk<'_>> {
    disks(vm, &[lun])?.pop().context("a disk")
}

/// The disks of these LUNs, in their order; waits for all.
pub fn disks<'v>(vm: &'v Vm, luns: &[u16]) -> Result<Vec<Disk<'v>>> {
    devices(vm, luns, "$(NF-1)", "/dev/sd")
}

/// The generic device of a LUN that the VM sees over Fibre Channel; waits for it.
pub fn generic(vm: &Vm, lun: u16) -> Result<Disk<'_>> {
    devices(vm, &[lun], "$NF", "/dev/sg")?.pop().context("a generic device")
}

/// The entries of these LUNs in this column of lsscsi, in their order; waits until all begin with
/// these letters.
fn devices<'v>(vm: &'v Vm, luns: &[u16], column: &str, letters: &str) -> Result<Vec<Disk<'v>>> {
    let script = format!("lsscsi -tg | awk '$3 ~ /^fcoe:/ {{ sub(/.*:/, \"\", $1); print $1, {column} }}'");
    wait_for(&format!("LUNs {luns:?} on {}", vm.name()), Duration::from_mins(1), || {
        let out = vm.sh(&script)?.ok()?.stdout;
        let of = |lun: &u16| {
            let path = out.lines().find_map(|line| line.strip_prefix(&format!("{lun}] ")))?;
            path.starts_with(letters).then(|| Disk::new(vm, path.to_owned()))
        };
        Ok(luns.iter().map(of).collect())
    })
}

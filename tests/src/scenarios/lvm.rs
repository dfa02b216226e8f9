//! The messages of the real `lvm` by which the agent distinguishes errors
//! (`agent/src/lvm/commands.rs`).

use anyhow::{Context, Result};
use mooring_rig::{Kernel, Rig, RigOptions};

use crate::evidence::check;
use crate::site::Programs;

/// A command of the agent in a state that refuses it; LVM's exit status; words that its message
/// must have, with `|` between those of LVM's releases.
const ROWS: &[(&str, i32, &str)] = &[
    (
        "lvm lvcreate --yes --wipesignatures n --zero n --size 4194304b --name x --addtag mooring vg9",
        5,
        "Volume group \"vg9\" not found",
    ),
    (
        "lvm vgs --config log/report_command_log=0 --reportformat json vg9",
        5,
        "Volume group \"vg9\" not found",
    ),
    (
        "lvm lvs --config log/report_command_log=0 --reportformat json vg9",
        5,
        "Volume group \"vg9\" not found",
    ),
    (
        "lvm lvs --config log/report_command_log=0 --reportformat json small/none",
        5,
        "Failed to find logical volume \"small/none\"",
    ),
    (
        "lvm lvcreate --yes --wipesignatures n --zero n --size 99999744b --name big --addtag mooring small",
        5,
        "insufficient free space",
    ),
    (
        "lvm lvcreate --yes --wipesignatures n --zero n --size 4194304b --name there --addtag mooring small",
        5,
        "already exists in volume group \"small\"",
    ),
    ("lvm lvchange --deltag mooring-unzeroed small/none", 5, "Failed to find logical volume \"small/none\""),
    (
        "lvm lvremove --yes --force --config devices/issue_discards=0 small/none",
        5,
        "Failed to find logical volume \"small/none\"",
    ),
    ("lvm lvremove --yes --force --config devices/issue_discards=0 small/there", 5, " in use"),
    (
        "lvm lvextend --yes --alloc normal --extents +2 small/there /dev/mapper/smalldisk:0-1",
        5,
        "extents needed, but only",
    ),
    (
        "lvm lvextend --yes --alloc normal --extents +2 small/none /dev/mapper/smalldisk:2-3",
        5,
        "not found in volume group|Failed to find logical volume \"small/none\"",
    ),
    (
        "lvm lvcreate --yes --type thin-pool --zero y --config activation/error_when_full=1 --size 99999744b --name big \
         --addtag mooring small",
        5,
        "nsufficient",
    ),
    (
        "lvm lvcreate --yes --type thin-pool --zero y --config activation/error_when_full=1 --size 4194304b --name there \
         --addtag mooring small",
        5,
        "already exists in Volume group small",
    ),
    (
        "lvm lvcreate --yes --wipesignatures n --type thin --virtualsize 4194304b --thinpool none --name x --addtag mooring \
         small",
        5,
        "not found in Volume group",
    ),
    (
        "lvm lvcreate --yes --snapshot --setactivationskip y --permission r --name x --addtag mooring small/none",
        5,
        "not found in Volume group",
    ),
];

pub(super) fn run(_: &Programs) -> Result<()> {
    on(Kernel::Stable)
}

pub(super) fn next(_: &Programs) -> Result<()> {
    on(Kernel::Next)
}

fn on(kernel: Kernel) -> Result<()> {
    let rig = Rig::up(RigOptions::standard(0).named("lvm").kernel(kernel))?;
    let storage = rig.vm("storage")?;
    let disks = storage.data_disks();
    let disk = disks.first().context("a data disk")?;
    // Makes a group of a few extents, on a part of the disk that LVM does not mistake for the disk
    // itself, with one LV that is held open.
    storage
        .sh(&format!(
            "echo 0 131072 linear {disk} 4096 | dmsetup create smalldisk; udevadm settle; \
             vgcreate -q small /dev/mapper/smalldisk; lvcreate -q -L 8M -n there --addtag mooring small"
        ))?
        .ok()?;
    let holder = storage.command(["sh", "-c", "exec sleep 600 < /dev/small/there"]).spawn()?;
    for (command, status, words) in ROWS {
        let out = storage.sh(&format!("LC_ALL=C {command}"))?;
        let said = &out.stderr;
        let has_them = words.split('|').any(|words| said.contains(words));
        check(out.status.code() == Some(*status) && has_them, || {
            format!("{command}: {:?}, not {status} with {words:?}: {said}", out.status)
        })?;
        println!("   ok {status} {words}: {}", said.trim().lines().next().unwrap_or_default());
    }
    let version = storage.sh("lvm version | head -1")?.ok()?;
    println!("   {}", version.line());
    holder.kill()?;
    rig.check_consoles()
}

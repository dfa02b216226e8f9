//! The contract between our fake and the kernel: one script on both, compared row by row and tree
//! by tree.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Kernel, Rig, RigOptions};

use crate::evidence::check;
use crate::site::{BIN, Programs};

pub(super) fn stable(programs: &Programs) -> Result<()> {
    run(programs, Kernel::Stable)
}

pub(super) fn backports(programs: &Programs) -> Result<()> {
    run(programs, Kernel::Backports)
}

fn run(programs: &Programs, kernel: Kernel) -> Result<()> {
    let options = programs.show_in(RigOptions::standard(0).named("contract").kernel(kernel))?;
    let rig = Rig::up(options)?;
    rig.verdict(rows(&rig, kernel))
}

fn rows(rig: &Rig, kernel: Kernel) -> Result<()> {
    let storage = rig.vm("storage")?;
    let disks = storage.data_disks();
    let [device, ..] = disks.as_slice() else { bail!("the storage VM has no data disk") };
    storage.sh("mkdir -p /var/target/pr; truncate -s 1M /var/file")?.ok()?;
    // Rows about read-only devices need a linear mapping that refuses writes. Those about devices
    // without discards need one whose limit an administrator has set to 0.
    storage
        .sh(&format!(
            "modprobe -a dm-mod target_core_mod target_core_iblock target_core_file iscsi_target_mod; \
             echo 0 8192 linear {device} 0 | dmsetup create spare; echo 0 8192 linear {device} 8192 | dmsetup create ro --readonly; \
             echo 0 8192 linear {device} 16384 | dmsetup create main; \
             echo 0 8192 linear {device} 24576 | dmsetup create plain; udevadm settle; \
             echo 0 > /sys/block/$(basename $(readlink -f /dev/mapper/plain))/queue/discard_max_bytes"
        ))?
        .ok()?;
    let release = storage.run(&["uname", "-r"])?.ok()?.line().to_owned();
    let contract = |more: &[&str]| -> Result<String> {
        let mut argv = vec![format!("{BIN}/mooring-contract")];
        argv.extend(["--device", "/dev/mapper/main", "--device2", "/dev/mapper/spare"].map(str::to_owned));
        argv.extend(
            ["--read-only-device", "/dev/mapper/ro", "--regular-file", "/var/file"].map(str::to_owned),
        );
        argv.extend(["--no-discards-device", "/dev/mapper/plain"].map(str::to_owned));
        argv.extend(more.iter().map(|&word| word.to_owned()));
        let out = storage.command(argv).timeout(Duration::from_mins(3)).run()?;
        // Every row counts: print the failures before the error.
        out.stdout.lines().filter(|line| !line.starts_with("ok ")).for_each(|line| println!("   {line}"));
        Ok(out.ok().with_context(|| format!("the contract on kernel {release}"))?.stdout)
    };
    let rows = contract(&[])?;
    check(rows.lines().filter(|line| line.starts_with("ok ")).count() > 50, || {
        format!("few rows were run: {rows}")
    })?;
    // Rows on features that only one of the two kernels has.
    let later = rows.lines().any(|line| line.starts_with("ok ") && line.contains("rtpi that was written"));
    check(later == (kernel == Kernel::Backports), || format!("rows on rtpi on kernel {release}: {rows}"))?;
    contract(&["--compare"])?;
    storage.sh("modprobe loop")?.ok()?;
    let disks = storage.run(&[&format!("{BIN}/mooring-contract"), "--disks", "/var"])?;
    print!("{}", disks.stdout);
    disks.ok().with_context(|| format!("the calls on disks on kernel {release}"))?;
    println!("   on kernel {release}");
    Ok(())
}

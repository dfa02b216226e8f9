//! Machines under systemd with installed packages: the common beginning and end of several
//! scenarios.

use anyhow::Result;
use mooring_rig::{Rig, RigOptions, VmSpec};

/// A storage node and this many hosts, under systemd, with the memory that apt and dpkg need.
pub(super) fn machines(name: &str, hosts: usize) -> RigOptions {
    let mut options = RigOptions::standard(hosts).named(name);
    for vm in &mut options.vms {
        (vm.systemd, vm.memory_mib) = (true, vm.memory_mib.max(1024));
    }
    if let Some(storage) = options.vms.first_mut() {
        *storage = VmSpec { memory_mib: 1536, ..storage.clone() };
    }
    options
}

/// Ends a scenario: a failure prints the journals of our units, and leaves its evidence beside the
/// rig's folder.
pub(super) fn ended(rig: &Rig, played: Result<()>) -> Result<()> {
    if played.is_err() {
        for vm in rig.vms() {
            let log = vm.sh("journalctl --no-pager -o cat -n 100 -u 'mooring-*'").map(|out| out.stdout);
            let log = log.unwrap_or_else(|error| format!("{error:#}"));
            eprintln!("--- the journal of {}:\n{log}", vm.name());
        }
        let kept = rig.dir().with_file_name(format!("failed-{}", rig.name()));
        if let Err(error) = rig.save_evidence(&kept) {
            eprintln!("cannot save the evidence to {}: {error:#}", kept.display());
        }
    }
    rig.verdict(played)
}

//! Scenarios on real kernels. Each boots what it needs and leaves nothing behind.

mod adopt;
pub mod agent_killed;
mod attach_faults;
mod beside_iscsid;
mod boot;
mod contract;
mod discard;
mod extend;
mod faults;
mod fc;
mod fc_agent;
mod fc_main_job;
pub mod fc_trials;
mod images;
mod installed;
mod lvm;
mod port_ids;
mod portals;
pub mod power_cuts;
mod reservations;
mod sessiond_killed;
mod snapshots;
mod stuck;
mod volumes;

use std::time::Instant;

use anyhow::Result;
use mooring_rig::KernelNotAvailable;

use crate::demo;
use crate::site::Programs;

/// One scenario.
pub struct Scenario {
    /// Its name, for `--vm-only`.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    run: fn(&Programs) -> Result<()>,
}

/// How a scenario has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that it shows was shown.
    Passed,
    /// Something was not: why.
    Failed(String),
    /// It could not run: why.
    Skipped(String),
}

/// All scenarios, in the order in which they run.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "contract-stable",
        shows: "every errno row, and the fake's tree, on the release's kernel",
        run: contract::stable,
    },
    Scenario {
        name: "contract-backports",
        shows: "the same on the newest kernel that Debian offers for the release",
        run: contract::backports,
    },
    Scenario {
        name: "installed",
        shows: "the README's installation under systemd: the units' sandboxes, an image in them, restarts while a host writes",
        run: installed::run,
    },
    Scenario {
        name: "fc",
        shows: "Fibre Channel on tcm_fc: the contract's rows, a shut LUN, writes whose data come late, the drain of one nexus",
        run: fc::run,
    },
    Scenario {
        name: "agent-fc",
        shows: "the agent over Fibre Channel and iSCSI at once: one volume, ro enforced, a force detach with its stamps and control",
        run: fc_agent::run,
    },
    Scenario {
        name: "fc-main-job",
        shows: "the controller over Fibre Channel: two hosts by cinderclient rw and ro, iSCSI beside them, force detach with its control",
        run: fc_main_job::run,
    },
    Scenario {
        name: "trials-fc",
        shows: "the trials of a force detach and of a fence over Fibre Channel: port logged in, network cut, power cut; nothing lands after the receipt",
        run: fc_trials::in_ci,
    },
    Scenario {
        name: "lvm-words",
        shows: "the messages by which the agent tells LVM's errors apart, from the real lvm",
        run: lvm::run,
    },
    Scenario {
        name: "main-job",
        shows: "one volume, two hosts, native attach rw and ro, force detach with its control, crashes, power cut, cinderclient",
        run: |programs| demo::run(programs, None),
    },
    Scenario {
        name: "trials",
        shows: "a writing host taken off by force, alive, without network, without power, on a slow and a fast backend: nothing lands after the receipt",
        run: |programs| demo::trials::run(programs, demo::trials::Size::IN_CI),
    },
    Scenario {
        name: "attach-faults",
        shows: "native attach when something is wrong: bounded, clear, nothing lost; relogin, revoked secrets, wrong disks",
        run: attach_faults::run,
    },
    Scenario {
        name: "sessiond-killed",
        shows: "sessiond killed before and after each of its steps, in attach, takeover, recovery under I/O and detach: converges",
        run: sessiond_killed::run,
    },
    Scenario {
        name: "agent-killed",
        shows: "the storage agent killed before and after its calls, in grants, a force detach under I/O and a deletion: converges",
        run: |programs| agent_killed::run(programs, agent_killed::DEATHS_IN_CI),
    },
    Scenario {
        name: "beside-iscsid",
        shows: "a distribution's iscsid and iscsiadm beside our sessions under I/O, with the control that is stolen",
        run: beside_iscsid::run,
    },
    Scenario {
        name: "bad-input",
        shows: "wrong requests, foreign objects, full disks and missing modules on a real kernel: clear errors, nothing lost",
        run: faults::run,
    },
    Scenario {
        name: "extend",
        shows: "a volume grows while two hosts have it: the new size on both, zeros behind the old end, with the control that sees old data",
        run: extend::run,
    },
    Scenario {
        name: "discard",
        shows: "discards of a host reach the disk where the operator vouched for it, and a deletion discards; with the control that does neither",
        run: discard::run,
    },
    Scenario {
        name: "volumes",
        shows: "a zeroing seen, slowed and gone on after kill -9; an LV taken over with its data and let go; sessions as their type says",
        run: volumes::run,
    },
    Scenario {
        name: "snapshots",
        shows: "thin volumes: nothing old in them, snapshots under I/O, volumes from them, all there after a power cut",
        run: snapshots::run,
    },
    Scenario {
        name: "images",
        shows: "volumes from raw and qcow2 images, byte for byte, also past a kill -9; images that name other files are refused, with the control that leaks",
        run: images::run,
    },
    Scenario {
        name: "adopt",
        shows: "an export that rtslib made is taken over under I/O: the same session, the same disk, also after a power cut; others untouched",
        run: adopt::run,
    },
    Scenario {
        name: "boot",
        shows: "many exports after a power cut, from the agent's own store; killed in the middle; a group that is late holds up nobody",
        run: boot::run,
    },
    Scenario {
        name: "power-cuts",
        shows: "the storage node's power cut at random moments while volumes are made, granted, revoked and deleted and a host writes: what was answered holds",
        run: |programs| power_cuts::run(programs, power_cuts::CUTS_IN_CI),
    },
    Scenario {
        name: "portals",
        shows: "portals of IPv6 and IPv4 whose addresses come and go under I/O, sessions and counters as they are seen, a host without power is missing",
        run: portals::run,
    },
    Scenario {
        name: "port-ids",
        shows: "a kernel with rtpi: an export's relative port id, and what registrations say of it, outlive a power cut",
        run: port_ids::run,
    },
    Scenario {
        name: "reservations",
        shows: "SCSI-3 persistent reservations: a fenced host stays fenced over kill -9 and a power cut, with the control that writes; libiscsi's tests as at a bare target",
        run: reservations::run,
    },
    Scenario {
        name: "stuck-backend",
        shows: "a backing device that does not answer: an unproven receipt in time, other volumes go on, proven afterwards",
        run: stuck::run,
    },
];

/// Runs one scenario and prints how it went.
pub fn run(scenario: &Scenario, programs: &Programs) -> Verdict {
    println!("-- {}: {}", scenario.name, scenario.shows);
    let began = Instant::now();
    let result = (scenario.run)(programs);
    let took = began.elapsed().as_secs_f64();
    let (verdict, said) = match result {
        Ok(()) => (Verdict::Passed, "Passed"),
        Err(error) if error.downcast_ref::<KernelNotAvailable>().is_some() => {
            (Verdict::Skipped(format!("{error:#}")), "Skipped")
        }
        Err(error) => (Verdict::Failed(format!("{error:#}")), "Failed"),
    };
    match &verdict {
        Verdict::Passed => println!("-- {} {said} after {took:.1} s", scenario.name),
        Verdict::Failed(why) | Verdict::Skipped(why) => {
            println!("-- {} {said} after {took:.1} s: {why}", scenario.name);
        }
    }
    verdict
}

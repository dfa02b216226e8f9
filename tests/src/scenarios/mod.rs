//! Scenarios on real kernels. Each boots what it needs and leaves nothing behind.

mod attach_faults;
mod beside_iscsid;
mod contract;
mod faults;
mod lvm;
mod sessiond_killed;
mod stuck;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that it shows was shown.
    Passed,
    /// Something was not.
    Failed,
    /// It could not run; the reason was printed.
    Skipped,
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
    let (verdict, why) = match result {
        Ok(()) => (Verdict::Passed, String::new()),
        Err(error) if error.downcast_ref::<KernelNotAvailable>().is_some() => {
            (Verdict::Skipped, format!(": {error:#}"))
        }
        Err(error) => (Verdict::Failed, format!(": {error:#}")),
    };
    println!("-- {} {verdict:?} after {:.1} s{why}", scenario.name, began.elapsed().as_secs_f64());
    verdict
}

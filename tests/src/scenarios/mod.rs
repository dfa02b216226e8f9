//! Scenarios on real kernels. Each boots what it needs and leaves nothing behind.

mod adopt;
pub mod agent_killed;
mod attach_faults;
mod beside_iscsid;
mod boot;
mod cache;
mod cloned;
mod cluster;
mod contract;
mod discard;
mod extend;
mod faults;
mod fc;
mod fc_agent;
mod fc_main_job;
pub mod fc_trials;
mod host_off;
mod hung_device;
mod images;
mod installed;
mod libiscsi;
mod lvm;
mod lvm_by_hand;
mod many_disks;
mod packaged;
mod papers;
mod partition;
mod port_ids;
mod portals;
pub mod power_cuts;
mod readers;
mod reservations;
mod restored;
pub mod ro_fuzz;
mod sessiond_killed;
mod shutdown;
mod sick_groups;
mod snapshots;
mod stuck;
mod target_cleared;
mod thin_pool_full;
mod two_servers;
mod upgrade_skew;
mod vagrant_scripts;
mod volumes;

mod choose;
mod table;

use std::time::Instant;

use anyhow::Result;
use mooring_rig::{KernelNotAvailable, WaitRanOut, phases};

pub use choose::{Choice, by_length, choose};
pub use cluster::PACKAGES as CLUSTER_PACKAGES;
pub use table::ALL;

use crate::site::Programs;

/// The occasion on which a check runs a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// In every run.
    Core,
    /// In every third run, and after a recent change of its subject ([`choose`]).
    Rotation {
        /// Folders and files whose change makes it run, from the workspace's root, beside those
        /// that every scenario uses.
        subject: &'static [&'static str],
    },
    /// In the full check, and by its name, for what it needs.
    Full(Needs),
}

/// The reason why a scenario runs in the full check only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Packages of an earlier commit, whose first build takes minutes.
    EarlierPackages,
    /// An image of its own, with [`CLUSTER_PACKAGES`].
    ClusterSoftware,
    /// An image of its own, of the Debian release after the rig's.
    NextRelease,
    /// Nothing but minutes of time.
    Time,
}

/// One scenario.
pub struct Scenario {
    /// The scenario's name, for `--vm-only`.
    pub name: &'static str,
    /// The claim that it proves.
    pub shows: &'static str,
    /// The occasion on which it runs.
    pub tier: Tier,
    /// Usual seconds on the reference machine beside another scenario: the longest begin first.
    pub usual: u16,
    run: fn(&Programs) -> Result<()>,
}

/// The end of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All its claims were shown.
    Passed,
    /// A claim failed; the text is the reason.
    Failed(String),
    /// A wait ran out; the text says which. The machine may have been too slow.
    RanOut(String),
    /// Not run; the text is the reason.
    Skipped(String),
}

/// Runs one scenario and prints its result.
pub fn run(scenario: &Scenario, programs: &Programs) -> Verdict {
    println!("-- {}: {}", scenario.name, scenario.shows);
    let began = Instant::now();
    let result = (scenario.run)(programs);
    let took = began.elapsed();
    let verdict = result.map_or_else(|error| verdict(&error), |()| Verdict::Passed);
    let (said, why) = match &verdict {
        Verdict::Passed => ("Passed", ""),
        Verdict::Failed(why) => ("Failed", why.as_str()),
        Verdict::RanOut(why) => ("RanOut", why.as_str()),
        Verdict::Skipped(why) => ("Skipped", why.as_str()),
    };
    println!("-- {} took {:.1} s: {}", scenario.name, took.as_secs_f64(), phases::take().of(took));
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    println!("-- {} {said} after {:.1} s{why}", scenario.name, took.as_secs_f64());
    verdict
}

fn verdict(error: &anyhow::Error) -> Verdict {
    let why = format!("{error:#}");
    if error.is::<KernelNotAvailable>() {
        Verdict::Skipped(why)
    } else if error.is::<WaitRanOut>() {
        Verdict::RanOut(why)
    } else {
        Verdict::Failed(why)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::{Context, anyhow};

    use super::*;

    /// A claim may be added, or reworded in both places; a scenario that is merged takes its claims
    /// along.
    #[test]
    fn no_claim_of_a_scenario_is_gone() {
        for line in include_str!("claims.txt").lines() {
            let shown = ALL.iter().any(|one| {
                line.strip_prefix(one.name).is_some_and(|rest| rest == format!(": {}", one.shows))
            });
            assert!(shown, "no scenario shows any more: {line}");
        }
        assert_eq!(include_str!("claims.txt").lines().count(), ALL.len(), "claims.txt lists each scenario");
    }

    #[test]
    fn only_a_wait_that_ran_out_may_be_slowness() {
        let wait = || Err::<(), _>(WaitRanOut::new("the disk", Duration::from_secs(90)));
        assert!(matches!(verdict(&wait().context("attach").unwrap_err()), Verdict::RanOut(_)));
        for wrong in
            [anyhow!("3 stamps landed"), anyhow!("exit status 4 after 90 s"), anyhow!("waited 90 s in vain")]
        {
            assert!(matches!(verdict(&wrong), Verdict::Failed(_)), "{wrong}");
        }
    }
}

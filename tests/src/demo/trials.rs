//! Trials of the promise that matters most: a host that writes at full speed is taken off a volume by force, and nothing of it
//! lands after the receipt says `proven`. Its session is alive, its network is cut, or its power is; the backend is slow or
//! fast; its one attachment is detached, or the whole host is fenced.
//!
//! What must never happen here: a trial whose victim did not write; trials without the control that lets writes land.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{Cut, Networks, RigOptions, Running, Vm};
use serde_json::Value;

use super::Demo;
use crate::control::{Control, PORT};
use crate::evidence::{Evidence, check, wait_for};
use crate::site::{Programs, Site, going, number};

/// How often it is done in the tests for each state of the victim: once with each backend.
pub const TRIALS_IN_CI: u32 = 2;

/// The state folder of the host whose power is cut is on a disk: its agent must not forget who it is.
const STATE_DISK: u64 = 256 << 20;
const STATE: &str = "/var/lib/mooring";

/// How long a host may take to be in order again.
const IN_ORDER: Duration = Duration::from_secs(90);

/// What has happened to the host that is taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Alive,
    Cut,
    Off,
}

impl Victim {
    /// Lets it happen.
    pub(crate) fn befall(self, vm: &Vm) -> Result<()> {
        match self {
            Self::Alive => Ok(()),
            Self::Cut => vm.cut(Cut::Silent, Networks::Both),
            Self::Off => vm.power_cut(),
        }
    }
}

/// One kind of trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    victim: Victim,
    slow: bool,
    fence: bool,
}

impl Kind {
    /// The kind of the trial with this number, from 0: all twelve come in turn, and each victim and each backend within six.
    fn of(trial: u32) -> Self {
        let victim = match trial % 3 {
            0 => Victim::Alive,
            1 => Victim::Cut,
            _ => Victim::Off,
        };
        Self { victim, slow: (trial / 3).is_multiple_of(2), fence: (trial + trial / 6) % 2 == 1 }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let victim = match self.victim {
            Victim::Alive => "its session alive",
            Victim::Cut => "its network cut",
            Victim::Off => "its power cut",
        };
        let backend = if self.slow { "slow" } else { "fast" };
        let verb = if self.fence { "fenced" } else { "force-detached" };
        write!(f, "host1 {verb}, {victim}, {backend} backend")
    }
}

/// Does it so many times for each state of the victim, with the control at the end.
pub fn run(programs: &Programs, trials_of_each: u32) -> Result<()> {
    let mut options = RigOptions::standard(2).named("trials").forward(PORT);
    for vm in options.vms.iter_mut().filter(|vm| vm.name == "host1") {
        vm.disks.push(STATE_DISK);
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site, trials_of_each.saturating_mul(3));
    site.end(result)
}

fn scenes(site: &Site, trials: u32) -> Result<()> {
    mount_state(site.rig.vm("host1")?, "mkfs.ext4 -q $disk;")?;
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    let mut demo = Demo::new(site, control, Evidence::default())?;
    let result = demo.trials(trials);
    if result.is_err() {
        demo.print_logs();
    }
    result?;
    agent.kill()
}

fn mount_state(vm: &Vm, first: &str) -> Result<()> {
    let disk = vm.data_disks().into_iter().next().context("a disk for the host's state")?;
    vm.sh(&format!("disk={disk}; {first} mkdir -p {STATE} && mount $disk {STATE}"))?
        .ok()
        .context("mount the host's state folder")?;
    Ok(())
}

impl Demo<'_> {
    fn trials(&mut self, trials: u32) -> Result<()> {
        self.create()?;
        self.attach_both()?;
        let mut longest = 0;
        for trial in 0..trials {
            if trial > 0 {
                self.reattach_host1()?;
            }
            let kind = Kind::of(trial);
            let gap = self.trial(kind).with_context(|| format!("trial {} ({kind})", trial + 1))?;
            longest = longest.max(gap);
        }
        self.control_only_unmaps()?;
        self.evidence.shows(format!(
            "{trials} trials: every receipt proven, 0 stamps landed after it; host2's longest gap {longest} ms"
        ));
        self.remove_everything()
    }

    /// One trial of an attached host1. Afterwards it is detached, and in order; the survivor's longest gap in milliseconds.
    fn trial(&mut self, kind: Kind) -> Result<u64> {
        let reader = self.disk2.watch_stamps()?;
        let writer = if kind.slow { self.write_slowly()?.0 } else { self.write_fast()? };
        let vm = self.disk1.vm;
        kind.victim.befall(vm)?;
        let words: &[&str] = if kind.fence {
            &["--json", "host", "fence", "host1", "--reason", "trial"]
        } else {
            &["--json", "detach", &self.attachment1, "--force"]
        };
        let (answer, landed) = self.landed_after(&Control::words(words).join(" "))?;
        let answer: Value = serde_json::from_str(&answer).with_context(|| format!("the answer: {answer}"))?;
        let proof = if kind.fence { &answer["fence"]["proof"] } else { &answer["receipt"]["proof"] };
        check(proof == "proven", || format!("not proven: {answer}"))?;
        check(landed == 0, || format!("{landed} stamps landed after a proven receipt"))?;
        let gap = number(&Self::survivor(&reader, "the trial")?, "longest_gap_ms")?;
        if kind.slow {
            self.slow(false)?;
        }
        self.recover(kind, writer)?;
        self.evidence.shows(format!("{kind}: proven, 0 stamps after it, host2's longest gap {gap} ms"));
        reader.kill()?;
        drop(reader.wait()?);
        if kind.fence {
            self.control.json(&["host", "unfence", "host1"])?;
        }
        Ok(gap)
    }

    /// Host1 writes as fast as it can; returns when stamps land.
    fn write_fast(&self) -> Result<Running> {
        let writer = self.disk1.write_stamps(&[])?;
        going(&writer).context("host1's stamps")?;
        Ok(writer)
    }

    /// Host1 is as it was before its first attach, and the controller reaches it.
    fn recover(&mut self, kind: Kind, writer: Running) -> Result<()> {
        let vm = self.disk1.vm;
        match kind.victim {
            Victim::Alive => {}
            Victim::Cut => vm.heal()?,
            Victim::Off => {
                drop(writer);
                vm.boot()?;
                mount_state(vm, "")?;
                self.control.host_again("host1")?;
                return self.in_order();
            }
        }
        writer.kill()?;
        drop(writer.wait()?);
        self.in_order()
    }

    fn in_order(&self) -> Result<()> {
        let host = self.control.hosts.first().context("host1")?;
        wait_for("host1 to have no session and no path", IN_ORDER, || {
            Ok(host.nothing_left().is_ok().then_some(()))
        })?;
        wait_for("the controller to reach host1", IN_ORDER, || self.control.all_up().map(Some))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_come_in_turn_and_each_victim_and_backend_within_six() {
        let kinds: Vec<_> = (0..12).map(Kind::of).collect();
        for (at, kind) in kinds.iter().enumerate() {
            assert!(!kinds[at + 1..].contains(kind), "{kind} comes twice");
        }
        for half in kinds.chunks(6) {
            let pairs: Vec<_> = half.iter().map(|kind| (kind.victim, kind.slow)).collect();
            for (at, pair) in pairs.iter().enumerate() {
                assert!(!pairs[at + 1..].contains(pair), "{pair:?} comes twice");
            }
            assert!(half.iter().any(|kind| kind.fence) && half.iter().any(|kind| !kind.fence));
        }
    }
}

//! Trials of the most important promise: a host that writes at full speed is forced off a volume,
//! and nothing of it lands after the receipt says `proven`. Its session is alive, its network is
//! cut, or its power is; the backend is slow or fast; its one attachment is detached, or the whole
//! host is fenced.
//!
//! Trials come in rounds. In each, one thing happens to the host, and it is forced off several
//! volumes at once. Every volume has its own receipt and stamps, and is one trial.
//!
//! What must never happen here: a trial whose victim did not write; trials without the control that
//! lets writes land.

use std::fmt::{self, Display, Formatter, Write as _};
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running, Vm};
use serde_json::Value;

use super::Demo;
use crate::control::{Control, PORT, attachment_of, check_in_force};
use crate::disk::Disk;
use crate::evidence::{Evidence, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, number};
use crate::slow::{self, Pace};
use crate::tally::Tally;
use crate::trial::{STATES, Verb, Victim, is_slow};

/// Number of trials for each state of the victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rounds for each state of the victim.
    pub rounds: u32,
    /// Volumes of each round.
    pub volumes: u32,
}

impl Size {
    /// The tests' size: once with each backend.
    pub const IN_CI: Self = Self { rounds: 2, volumes: 1 };
    /// Most volumes of a round in a soak: an emulated host cannot drive more writers.
    const VOLUMES_MAX: u32 = 10;

    /// At least this many trials of each kind, in as few rounds as possible.
    pub const fn of(trials: u32) -> Self {
        let volumes = if trials < Self::VOLUMES_MAX { trials } else { Self::VOLUMES_MAX };
        let volumes = if volumes == 0 { 1 } else { volumes };
        Self { rounds: trials.div_ceil(volumes), volumes }
    }
}

/// Size of a disk for the state folder of the host that loses its power: its agent must not forget
/// who it is.
pub(crate) const STATE_DISK: u64 = 256 << 20;
const STATE: &str = "/var/lib/mooring";

/// Time limit for the attaches of a round. They run at once.
const ATTACHED_WITHIN: Duration = Duration::from_mins(6);
/// Time limit for a host to be in order again.
const IN_ORDER: Duration = Duration::from_secs(90);

/// One kind of trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    victim: Victim,
    slow: bool,
    verb: Verb,
}

impl Kind {
    /// The kind of the trial with this number, from 0: all twelve come in turn, and each victim and
    /// each backend within six.
    fn of(trial: u32) -> Self {
        Self { victim: Victim::of(trial), slow: is_slow(trial), verb: Verb::of(trial) }
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
        write!(f, "host1 {}, {victim}, {backend} backend", self.verb)
    }
}

/// A volume that both hosts have: host1 writes, host2 reads.
struct Shared<'a> {
    volume: String,
    device: String,
    attachment: String,
    disk: Disk<'a>,
}

/// Runs the trials for each state of the victim, with the control at the end.
pub fn run(programs: &Programs, size: Size) -> Result<()> {
    let mut options = RigOptions::standard(2).named("trials").forward(PORT);
    for vm in options.vms.iter_mut().filter(|vm| vm.name == "host1") {
        vm.disks.push(STATE_DISK);
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site, size);
    site.end(result)
}

fn scenes(site: &Site, size: Size) -> Result<()> {
    mount_state(site.rig.vm("host1")?, "mkfs.ext4 -q $disk;")?;
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    let mut trials = Trials { demo: Demo::new(site, control, Evidence::default())?, shared: Vec::new() };
    let result = trials.all(size);
    if result.is_err() {
        trials.demo.print_logs();
    }
    result?;
    agent.kill()
}

/// Mounts the state folder of a host, after `first` (shell, with the disk as `$disk`).
pub(crate) fn mount_state(vm: &Vm, first: &str) -> Result<()> {
    let disk = vm.data_disks().into_iter().next().context("a disk for the host's state")?;
    vm.sh(&format!("disk={disk}; {first} mkdir -p {STATE} && mount $disk {STATE}"))?
        .ok()
        .context("mount the host's state folder")?;
    Ok(())
}

struct Trials<'a> {
    demo: Demo<'a>,
    shared: Vec<Shared<'a>>,
}

impl Trials<'_> {
    fn all(&mut self, size: Size) -> Result<()> {
        self.demo.create()?;
        self.demo.attach_both()?;
        let more = self.more(size.volumes)?;
        let (mut tally, mut longest) = (Tally::default(), 0);
        for round in 0..size.rounds.saturating_mul(STATES) {
            let kind = Kind::of(round);
            let (of_round, gap) =
                self.round(round, kind).with_context(|| format!("round {} ({kind})", round + 1))?;
            (tally, longest) = (tally.and(of_round), longest.max(gap));
        }
        tally.check()?;
        let trials = size.rounds * size.volumes;
        self.demo.control_only_unmaps()?;
        self.demo.evidence.shows(format!(
            "{trials} trials of each state of the victim: {tally}, 0 stamps landed after a proof; host2's longest gap {longest} ms"
        ));
        for (volume, attachment) in more {
            self.demo.control.json(&["detach", &attachment])?;
            self.demo.control.json(&["volume", "delete", &volume, "--timeout", "120"])?;
        }
        self.demo.remove_everything()
    }

    /// Adds volumes to the demo's one until there are this many. Returns them with their
    /// attachments on host2.
    fn more(&mut self, volumes: u32) -> Result<Vec<(String, String)>> {
        let demo = &self.demo;
        self.shared.push(Shared {
            volume: demo.volume.clone(),
            device: demo.device.clone(),
            attachment: demo.attachment1.clone(),
            disk: demo.disk1.clone(),
        });
        let mut more = Vec::new();
        for number in 1..volumes {
            let volume = demo.control.volume(&format!("more-{number}"), Some("shared"))?;
            let there = demo.control.attach(&volume, "host2", "ro")?;
            let attachment = text(&there, "id")?.to_owned();
            self.shared.push(Shared {
                device: format!("/dev/{GROUP}/mooring-{volume}"),
                volume: volume.clone(),
                attachment: String::new(),
                disk: demo.disk1.clone(),
            });
            more.push((volume, attachment));
        }
        Ok(more)
    }

    /// Attaches host1 to all volumes that it does not have, at the same time.
    fn attach(&mut self) -> Result<()> {
        let mut script = "mkdir -p /run/trial;".to_owned();
        for shared in self.shared.iter().filter(|shared| shared.attachment.is_empty()) {
            let attach =
                ["--json", "attach", &shared.volume, "--host", "host1", "--mode", "rw", "--timeout", "240"];
            let attach = Control::words(&attach).join(" ");
            write!(script, "{attach} >/run/trial/{} & ", shared.volume)?;
        }
        let storage = self.demo.site.storage()?;
        storage.command(["sh", "-euc", &format!("{script} wait")]).timeout(ATTACHED_WITHIN).run()?.ok()?;
        for shared in self.shared.iter_mut().filter(|shared| shared.attachment.is_empty()) {
            let said = storage.run(&["cat", &format!("/run/trial/{}", shared.volume)])?.ok()?.stdout;
            let said: Value = serde_json::from_str(&said).with_context(|| format!("attached: {said}"))?;
            let live = &attachment_of(said);
            check_in_force(live, "rw")?;
            text(live, "id")?.clone_into(&mut shared.attachment);
            shared.disk = Disk::new(shared.disk.vm, text(live, "device_path")?);
        }
        let first = self.shared.first().context("a volume")?;
        (self.demo.attachment1, self.demo.disk1) = (first.attachment.clone(), first.disk.clone());
        Ok(())
    }

    /// Runs one round; afterwards host1 is detached and in order. Returns the receipts' counts, and
    /// the survivor's longest gap in milliseconds.
    fn round(&mut self, round: u32, kind: Kind) -> Result<(Tally, u64)> {
        self.attach()?;
        let reader = self.demo.disk2.watch_stamps()?;
        let writers = self.write(kind)?;
        kind.victim.befall(self.demo.disk1.vm)?;
        let mut tally = Tally::default();
        let held = self.shared.iter().map(|shared| (shared.attachment.as_str(), shared.device.clone()));
        let answers = kind.verb.take_off(self.demo.site, "host1", held)?;
        for (shared, (answer, landed)) in self.shared.iter().zip(answers) {
            tally.add(&answer, kind.verb.receipt(), landed).with_context(|| shared.volume.clone())?;
        }
        let gap = number(&Demo::survivor(&reader, "the trial")?, "longest_gap_ms")?;
        if kind.slow {
            let devices: Vec<_> = self.shared.iter().map(|shared| &shared.device).collect();
            self.demo.site.delay_writes_of(&devices, None)?;
        }
        self.demo.recover(kind, writers)?;
        let of = match self.shared.len() {
            1 => String::new(),
            n => format!(", {n} volumes at once"),
        };
        self.demo.evidence.shows(format!(
            "round {}: {kind}{of}: {tally}, 0 stamps after a proof, host2's longest gap {gap} ms",
            round + 1
        ));
        reader.kill()?;
        drop(reader.wait()?);
        kind.verb.undo(&self.demo.control, "host1")?;
        for shared in &mut self.shared {
            shared.attachment.clear();
        }
        Ok((tally, gap))
    }

    /// Lets host1 write to all of them; returns when its writes are in flight in a slow backend, or
    /// land in a fast one.
    fn write(&self, kind: Kind) -> Result<Vec<Running>> {
        let disks = self.shared.iter().map(|shared| (shared.device.clone(), &shared.disk));
        slow::write_all(self.demo.site, if kind.slow { Pace::Slow } else { Pace::Fast }, disks)
    }
}

impl Demo<'_> {
    /// Restores host1 to its state before its first attach, and waits until the controller reaches
    /// it.
    fn recover(&mut self, kind: Kind, writers: Vec<Running>) -> Result<()> {
        let vm = self.disk1.vm;
        match kind.victim {
            Victim::Alive => {}
            Victim::Cut => vm.heal()?,
            Victim::Off => {
                drop(writers);
                vm.boot()?;
                mount_state(vm, "")?;
                self.control.host_again("host1")?;
                return self.in_order();
            }
        }
        for writer in writers {
            writer.kill()?;
            drop(writer.wait()?);
        }
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
    fn a_soak_has_at_least_the_trials_that_were_asked_for() {
        for trials in 1..300 {
            let size = Size::of(trials);
            assert!(size.rounds * size.volumes >= trials, "{trials}: {size:?}");
            assert!((size.rounds - 1) * size.volumes < trials, "{trials}: {size:?} has a round too many");
        }
    }

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
            assert!(
                [Verb::Fence, Verb::ForceDetach]
                    .iter()
                    .all(|verb| half.iter().any(|kind| kind.verb == *verb))
            );
        }
    }
}

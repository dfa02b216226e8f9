//! Trials of force detach and of fences over Fibre Channel. A stock host that writes at full speed
//! is forced off a volume, or fenced, with its port logged in, with its network cut or with its
//! power cut. Nothing of it lands after the receipt.
//!
//! A host that vanishes while tcm_fc waits for a write's data hangs that driver for good
//! (docs/kernel/lio.md, h). So victims that are cut off have all their writes in the backend, whose
//! data have arrived: they begin them together (independent writers met that moment in one of 560
//! trials). A host that vanishes during its writing is the last act: its receipt may be unproven,
//! and must say so in time.
//!
//! What must never happen here: a trial whose victim did not write; trials without the control that
//! lets writes land; a host whose port comes up before its grant (docs/kernel/lio.md, h).

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use super::fc_main_job::{Attached, Scene, device, stock_name};
use crate::control::{Control, PORT};
use crate::demo::trials::Size;
use crate::disk::Disk;
use crate::evidence::check;
use crate::fibre;
use crate::site::{Programs, Site, going, number, progress};
use crate::slow::{self, Pace};
use crate::tally::Tally;
use crate::trial::{STATES, Verb, Victim, is_slow};

/// Rounds of the tests: one for each state of the victim and each backend, with one volume; every
/// second one is a fence.
const ROUNDS_IN_CI: u32 = 4;

/// Time after its command at which a write's data are surely in the backend. They go back and forth
/// within milliseconds, and the backend takes 1.5 s.
const DATA_COME_WITHIN: Duration = Duration::from_millis(400);

/// One kind of trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    victim: Victim,
    slow: bool,
    verb: Verb,
}

impl Kind {
    /// The kind of the round with this number, from 0: the states come in turn, a live host has
    /// each backend in turn, and each of them has both verbs.
    fn of(round: u32) -> Self {
        let victim = Victim::of(round);
        Self { victim, slow: victim != Victim::Alive || is_slow(round), verb: Verb::of(round) }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let victim = match self.victim {
            Victim::Alive => "its port logged in",
            Victim::Cut => "its network cut",
            Victim::Off => "its power cut",
        };
        write!(f, "host1 {}, {victim}, {} backend", self.verb, if self.slow { "slow" } else { "fast" })
    }
}

/// Runs the tests' trials.
pub fn in_ci(programs: &Programs) -> Result<()> {
    run(programs, ROUNDS_IN_CI, 1)
}

/// Runs this many rounds of each state of the victim.
pub fn soak(programs: &Programs, size: Size) -> Result<()> {
    run(programs, size.rounds.saturating_mul(STATES), size.volumes)
}

/// Runs this many rounds, with the control at the end.
fn run(programs: &Programs, rounds: u32, volumes: u32) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("trials-fc").forward(PORT), programs)?;
    let result = Scene::make(&site).and_then(|scene| {
        let mut trials = Trials::make(scene, rounds, volumes)?;
        let played = trials.all();
        if played.is_err() {
            eprintln!("--- controller:\n{}", trials.scene.control.controller_log());
        }
        played
    });
    site.end(result)
}

struct Trials<'a> {
    scene: Scene<'a>,
    /// Volumes of both hosts; host2 reads the first one.
    volumes: Vec<String>,
    rounds: u32,
    reader: Disk<'a>,
}

/// A volume that host1 has.
struct Held<'a> {
    volume: String,
    attached: Attached,
    disk: Disk<'a>,
}

impl<'a> Trials<'a> {
    fn make(scene: Scene<'a>, rounds: u32, volumes: u32) -> Result<Self> {
        let name = |number| format!("data-{number}");
        let volumes: Vec<_> =
            (0..volumes).map(|at| scene.control.volume(&name(at), Some("fc"))).collect::<Result<_>>()?;
        let mut luns = Vec::new();
        for volume in &volumes {
            luns.push(scene.attach(volume, scene.two, "ro")?.lun);
        }
        fibre::open_port(scene.two)?;
        let reader = fibre::disk(scene.two, *luns.first().context("a volume")?)?;
        Ok(Self { scene, volumes, rounds, reader })
    }

    fn all(&mut self) -> Result<()> {
        let (mut tally, mut longest) = (Tally::default(), 0);
        for round in 0..self.rounds {
            let kind = Kind::of(round);
            let (of_round, gap) =
                self.round(round, kind).with_context(|| format!("round {} ({kind})", round + 1))?;
            (tally, longest) = (tally.and(of_round), longest.max(gap));
        }
        tally.check()?;
        self.control()?;
        self.scene.evidence.shows(format!(
            "{} trials over Fibre Channel: {tally}, 0 stamps landed after a proof; host2's longest gap {longest} ms",
            self.rounds as usize * self.volumes.len()
        ));
        self.gone_in_the_middle()?;
        self.scene.agent.kill()
    }

    /// Host1 loses its power, most likely while the target waits for data of its writes: the answer
    /// comes in time and is true. It is the last act, because after that moment no initiator can
    /// log in any more.
    fn gone_in_the_middle(&mut self) -> Result<()> {
        let Held { volume, attached, disk } = self.attach_one()?;
        let reader = self.reader.watch_stamps()?;
        going(&disk.write_stamps(&["--threads", "8"])?).context("host1's stamps")?;
        self.scene.one.power_cut()?;
        // Exit status 5 means pending.
        let detach = format!("{} || [ $? = 5 ]", Control::force_words(&attached.id));
        let began = Instant::now();
        let (answer, landed) = slow::landed_after(self.scene.site, &device(&volume), &detach)?;
        let took = began.elapsed();
        let answer: Value = serde_json::from_str(&answer).with_context(|| format!("the answer: {answer}"))?;
        let (proof, may) = (&answer["receipt"]["proof"], &answer["receipt"]["may_still_land"]);
        // Over Fibre Channel the kernel does not count them.
        let said = if may.is_null() { "any number".to_owned() } else { may.to_string() };
        check((proof == "proven" && may == 0) || (proof == "unproven" && may.is_null()), || {
            format!("the answer: {answer}")
        })?;
        check(proof != "proven" || landed == 0, || format!("{landed} stamps landed after a proven receipt"))?;
        let seen = progress(&reader)?;
        check(number(&seen, "errors")? == 0, || format!("host2's reads: {seen}"))?;
        self.scene.evidence.shows(format!(
            "host1 gone in the middle of its writing: {proof}, {said} may still land ({landed} did), with the wait for them {:.1} s; \
             host2 reads on, longest gap {} ms",
            took.as_secs_f64(),
            number(&seen, "longest_gap_ms")?
        ));
        Ok(())
    }

    /// Grants host1 access to these volumes, brings its port up, and waits for its disks.
    fn attach(&self, volumes: &[String]) -> Result<Vec<Held<'a>>> {
        let one = self.scene.one;
        let mut attached = Vec::new();
        for volume in volumes {
            attached.push(self.scene.attach(volume, one, "rw")?);
        }
        fibre::open_port(one)?;
        let luns: Vec<_> = attached.iter().map(|attached| attached.lun).collect();
        let disks = fibre::disks(one, &luns)?;
        let held =
            |((volume, attached), disk): ((&String, _), _)| Held { volume: volume.clone(), attached, disk };
        Ok(volumes.iter().zip(attached).zip(disks).map(held).collect())
    }

    /// Attaches only the first volume.
    fn attach_one(&self) -> Result<Held<'a>> {
        self.attach(&self.volumes[..1])?.pop().context("a volume")
    }

    /// Runs one round: host1 is forced off all volumes at once. Afterwards its port is down.
    /// Returns the receipts' counts, and the survivor's longest gap in milliseconds.
    fn round(&mut self, round: u32, kind: Kind) -> Result<(Tally, u64)> {
        let (one, site) = (self.scene.one, self.scene.site);
        let held = self.attach(&self.volumes)?;
        let reader = self.reader.watch_stamps()?;
        let writers = self.write(kind, &held)?;
        kind.victim.befall(one)?;
        let (host, having) =
            (stock_name(one), held.iter().map(|of| (of.attached.id.as_str(), device(&of.volume))));
        let mut tally = Tally::default();
        for (held, (answer, landed)) in held.iter().zip(kind.verb.take_off(site, &host, having)?) {
            tally.add(&answer, kind.verb.receipt(), landed).with_context(|| held.volume.clone())?;
        }
        let seen = progress(&reader)?;
        check(number(&seen, "errors")? == 0, || format!("host2's reads: {seen}"))?;
        let gap = number(&seen, "longest_gap_ms")?;
        reader.kill()?;
        drop(reader.wait()?);
        if kind.slow {
            let devices: Vec<_> = self.volumes.iter().map(|volume| device(volume)).collect();
            site.delay_writes_of(&devices, None)?;
        }
        self.recover(kind, writers)?;
        kind.verb.undo(&self.scene.control, &host)?;
        let of = match held.len() {
            1 => String::new(),
            n => format!(", {n} volumes at once"),
        };
        self.scene.evidence.shows(format!(
            "round {}: {kind}{of}: {tally}, 0 stamps after a proof, host2's longest gap {gap} ms",
            round + 1
        ));
        Ok((tally, gap))
    }

    fn write(&self, kind: Kind, held: &[Held<'a>]) -> Result<Vec<Running>> {
        let disks = held.iter().map(|held| (device(&held.volume), &held.disk));
        let pace = match kind {
            Kind { slow: false, .. } => Pace::Fast,
            Kind { victim: Victim::Alive, .. } => Pace::Slow,
            _ => Pace::Together,
        };
        let writers = slow::write_all(self.scene.site, pace, disks)?;
        if kind.slow {
            std::thread::sleep(DATA_COME_WITHIN);
        }
        Ok(writers)
    }

    /// Restores host1 to its state before the attach.
    fn recover(&self, kind: Kind, writers: Vec<Running>) -> Result<()> {
        let one = self.scene.one;
        if kind.victim == Victim::Cut {
            one.heal()?;
            // Otherwise it would give up its commands one after the other, for half a minute.
            one.power_cut()?;
        }
        if kind.victim != Victim::Alive {
            drop(writers);
            one.boot()?;
            return fibre::prepare(one, "sd_mod sg");
        }
        for writer in &writers {
            writer.kill()?;
        }
        // A hanging write ends with its port.
        fibre::close_port(one)?;
        for writer in writers {
            drop(writer.wait()?);
        }
        Ok(())
    }

    /// Control: a mere unmapping must let writes land, or the trials prove nothing.
    fn control(&mut self) -> Result<()> {
        let Held { volume, attached, disk } = self.attach_one()?;
        let scene = &mut self.scene;
        let landed =
            fibre::landed_after_unmapping(scene.site, scene.one, &device(&volume), attached.lun, &disk)?;
        scene.evidence.shows(format!("the control: unmapping alone let {landed} stamps land"));
        scene.control.force_detach(&attached.id)?;
        fibre::close_port(scene.one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_come_in_turn_and_the_tests_have_each_state() {
        let kinds: Vec<_> = (0..ROUNDS_IN_CI).map(Kind::of).collect();
        for (at, kind) in kinds.iter().enumerate() {
            assert!(!kinds[at + 1..].contains(kind), "{kind} comes twice");
        }
        for verb in [Verb::ForceDetach, Verb::Fence] {
            assert_eq!(kinds.iter().filter(|kind| kind.verb == verb).count(), 2, "{verb} in the tests");
        }
        for victim in [Victim::Alive, Victim::Cut, Victim::Off] {
            assert!(kinds.iter().any(|kind| kind.victim == victim), "{victim:?}");
        }
        assert!(kinds.iter().all(|kind| kind.slow || kind.victim == Victim::Alive), "it would hang the port");
        for victim in [Victim::Alive, Victim::Cut, Victim::Off] {
            let rounds = (0..60).filter(|&round| Kind::of(round).victim == victim).count();
            assert_eq!(rounds, 20, "{victim:?}: a soak has as many rounds of each state");
            for verb in [Verb::ForceDetach, Verb::Fence] {
                let is = |round: &u32| Kind::of(*round).victim == victim && Kind::of(*round).verb == verb;
                assert_eq!((0..60).filter(is).count(), 10, "{victim:?} {verb}: a soak has as many of each");
                assert!((0..6).any(|round| is(&round)), "{victim:?} {verb}");
            }
        }
        for backend in [true, false] {
            let alive = |verb| Kind { victim: Victim::Alive, slow: backend, verb };
            for verb in [Verb::ForceDetach, Verb::Fence] {
                assert!((0..12).map(Kind::of).any(|kind| kind == alive(verb)), "{}", alive(verb));
            }
        }
    }
}

//! The storage node loses its power at random moments, while volumes are made, granted, revoked and
//! deleted on it and a host writes to another one. Answered commands hold, unanswered ones may or
//! may not, and the same command repeated continues from there. The disks lose unflushed writes:
//! the agent's store and LVM's metadata survive by their own syncs, and so does every write of the
//! host that was answered as durable.
//!
//! What must never happen here: a moment that follows from what was seen; a command that counts as
//! answered and was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{GROUP, Programs, Site, TARGET, going, number, progress};

/// Number of power cuts in the tests.
pub const CUTS_IN_CI: u32 = 2;
/// Number of workers that send commands at the same time.
const WORKERS: u32 = 2;
/// Time after the first command within which the power is cut: one and a half cycles of commands.
const CUT_WITHIN: Duration = Duration::from_secs(18);
/// Time limit for the agent to be in order again.
const IN_ORDER: Duration = Duration::from_mins(2);
/// Time for which the host keeps its commands: longer than all cuts.
const REPLACEMENT_SECONDS: u32 = 86_400;
/// Number of writers; each has one write in flight.
const WRITERS: u64 = 2;
const PORTAL: &str = "10.10.0.10:3260";
const KEPT: &str = "46000000-3333-4333-8444-555555555555";
const INITIATORS: [&str; 2] = ["iqn.2026-01.test.mooring:one", "iqn.2026-01.test.mooring:two"];

/// Runs with this many power cuts.
pub fn run(programs: &Programs, cuts: u32) -> Result<()> {
    let mut options = RigOptions::standard(1).named("power-cuts").volatile();
    if let Some(storage) = options.vms.first_mut() {
        storage.disks.push(1 << 30);
    }
    let site = Site::up(options, programs)?;
    let all = disk_forgets(&site).and_then(|()| Cuts::make(&site));
    let result = all.and_then(|mut all| all.acts(cuts));
    site.end(result)
}

/// Control: a disk that loses nothing would let everything else pass.
fn disk_forgets(site: &Site) -> Result<()> {
    let storage = site.storage()?;
    let disk = storage.data_disks().pop().context("a disk that nobody uses")?;
    let write = |at, flags| {
        format!(
            "head -c 4096 /dev/zero | tr '\\0' x | dd of={disk} bs=4k seek={at} oflag={flags} status=none"
        )
    };
    storage.sh(&format!("{}; {}", write(0, "direct,dsync"), write(1, "direct")))?.ok()?;
    storage.power_cut()?;
    storage.boot()?;
    let seen = storage.sh(&format!("head -c 8192 {disk} | tr -d '\\0' | wc -c"))?.ok()?.stdout;
    check(seen.trim() == "4096", || {
        format!("{} of two blocks are left, one of which was flushed", seen.trim())
    })?;
    site.after_boot()
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct There {
    volume: bool,
    /// For each initiator, `true` if it is let in.
    granted: [bool; 2],
}

/// The commands of a cycle, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Grant(usize),
    Revoke(usize),
    Delete,
}

const CYCLE: [Step; 6] =
    [Step::Create, Step::Grant(0), Step::Grant(1), Step::Revoke(0), Step::Revoke(1), Step::Delete];

impl Step {
    fn makes(self, mut there: There) -> There {
        match self {
            Self::Create => there.volume = true,
            Self::Grant(who) => there.granted[who] = true,
            Self::Revoke(who) => there.granted[who] = false,
            Self::Delete => there.volume = false,
        }
        there
    }

    fn words(self, id: &str) -> Vec<String> {
        let name = format!("cycle-{id}");
        let words: Vec<&str> = match self {
            Self::Create => vec!["volume", "create", &name, "--size", "16MiB", "--id", id],
            Self::Grant(0) => vec!["export", "grant", id, "--initiator", INITIATORS[0], "--mode", "rw"],
            Self::Grant(who) => vec!["export", "grant", id, "--initiator", INITIATORS[who], "--mode", "ro"],
            Self::Revoke(who) => vec!["export", "revoke", id, "--initiator", INITIATORS[who]],
            Self::Delete => vec!["volume", "delete", id],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

/// Sends one command after the other: a new volume in each cycle.
#[derive(Debug)]
struct Worker {
    number: u32,
    cycle: u32,
    /// Answered commands of the cycle.
    answered: usize,
    /// Answered commands of all cycles.
    answers: u32,
}

impl Worker {
    fn id(&self) -> String {
        format!("{:08}-3333-4333-8444-555555555555", 45_000_000 + self.number * 100_000 + self.cycle)
    }

    fn step(&self) -> Step {
        CYCLE[self.answered]
    }

    /// The possible states: the last command may or may not have been taken.
    fn may_be_there(&self) -> [There; 2] {
        let nothing = There { volume: false, granted: [false; 2] };
        let answered = CYCLE[..self.answered].iter().fold(nothing, |there, step| step.makes(there));
        [answered, self.step().makes(answered)]
    }

    fn give(&mut self, site: &Site) -> Result<()> {
        let words = self.step().words(&self.id());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        site.json(&words)?;
        self.answers += 1;
        self.answered += 1;
        if self.answered == CYCLE.len() {
            (self.cycle, self.answered) = (self.cycle + 1, 0);
        }
        Ok(())
    }

    /// Sends commands until the power is cut.
    fn until_cut(&mut self, site: &Site, cut: &AtomicBool) -> Result<()> {
        while !cut.load(Ordering::SeqCst) {
            match self.give(site) {
                Err(error) if !cut.load(Ordering::SeqCst) => {
                    return Err(error.context(format!("{:?} of {}", self.step(), self.id())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

struct Cuts<'a> {
    site: &'a Site,
    evidence: Evidence,
    host: Host<'a>,
    agent: Option<Running>,
    writer: Running,
    workers: Vec<Worker>,
}

impl<'a> Cuts<'a> {
    fn make(site: &'a Site) -> Result<Self> {
        let agent = Some(site.start_agent()?);
        let host = Host::start(site.rig.vm("host1")?)?;
        site.json(&["volume", "create", "kept", "--size", "16MiB", "--id", KEPT])?;
        site.json(&["export", "grant", KEPT, "--initiator", &host.iqn, "--mode", "rw"])?;
        host.login(&target(KEPT), PORTAL, None, REPLACEMENT_SECONDS)?.ok()?;
        let threads = WRITERS.to_string();
        let writer = host.disk(&target(KEPT), PORTAL)?.write_stamps(&["--threads", &threads, "--durable"])?;
        going(&writer)?;
        let workers =
            (0..WORKERS).map(|number| Worker { number, cycle: 0, answered: 0, answers: 0 }).collect();
        Ok(Self { site, evidence: Evidence::default(), host, agent, writer, workers })
    }

    fn acts(&mut self, cuts: u32) -> Result<()> {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for cut in 1..=cuts {
            let after = CUT_WITHIN.mul_f64(random.f64());
            self.cut(cut, after).with_context(|| format!("cut {cut}, after {after:.1?}, of seed {seed}"))?;
        }
        let seen = self.writes_on()?;
        let answers: u32 = self.workers.iter().map(|worker| worker.answers).sum();
        self.evidence.shows(format!(
            "{cuts} power cuts at moments of seed {seed}: all of {answers} answered commands held, those in flight were there or not; host1 \
             wrote on: {} writes, 0 errors, longest gap {} ms",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        self.ends()
    }

    /// Makes one cut, and the boot after it.
    fn cut(&mut self, number: u32, after: Duration) -> Result<()> {
        let (site, power_is_cut) = (self.site, AtomicBool::new(false));
        let cut = &power_is_cut;
        std::thread::scope(|scope| {
            let workers = self.workers.iter_mut();
            let working: Vec<_> =
                workers.map(|worker| scope.spawn(move || worker.until_cut(site, cut))).collect();
            std::thread::sleep(after);
            cut.store(true, Ordering::SeqCst);
            site.storage()?.power_cut()?;
            let ended = working.into_iter().map(|one| match one.join() {
                Ok(ended) => ended,
                Err(_) => bail!("a worker has panicked"),
            });
            ended.collect::<Result<()>>()
        })?;
        drop(self.agent.take());
        site.storage()?.boot()?;
        site.after_boot()?;
        let stamps = self.stamps_hold()?;
        let began = Instant::now();
        self.agent = Some(site.start_agent()?);
        wait_for("everything to be as its spec says", IN_ORDER, || site.nothing_planned().map(Some))?;
        let took = began.elapsed();
        for worker in &self.workers {
            let (may, there) = (worker.may_be_there(), self.there(&worker.id())?);
            check(may.contains(&there), || format!("{worker:?}: {there:?}, which is none of {may:?}"))?;
        }
        let open: Vec<_> = self.workers.iter().map(|worker| format!("{:?}", worker.step())).collect();
        self.evidence.shows(format!(
            "cut {number}, after {:.1} s, with {} not answered: in order {:.1} s after the agent's start, all that was answered holds; \
             {stamps}",
            after.as_secs_f64(),
            open.join(" and "),
            took.as_secs_f64()
        ));
        Ok(())
    }

    /// Checks that each answered write of the host is on the disk, and at most those in flight
    /// beside them. The host cannot have written since: nothing serves it.
    fn stamps_hold(&self) -> Result<String> {
        self.site.storage()?.sh(&format!("vgchange -q -ay {GROUP}"))?.ok()?;
        let stamps = self.site.stamps_on_storage(&format!("/dev/{GROUP}/mooring-{KEPT}"))?;
        let (landed, answered) = (stamps.iter().sum::<u64>(), number(&progress(&self.writer)?, "done")?);
        check((answered..=answered + WRITERS).contains(&landed), || {
            format!("host1 was answered {answered} durable writes, and {landed} are on the disk: {stamps:?}")
        })?;
        Ok(format!("{answered} durable writes of host1 were answered, {landed} are on the disk"))
    }

    /// The state of a volume: its LV, and the initiators that the kernel's tree lets in.
    fn there(&self, id: &str) -> Result<There> {
        let acls = format!("{TARGET}/iscsi/{}/tpgt_1/acls", target(id));
        let script = format!(
            "lvs --noheadings -o lv_name {GROUP} | grep -c {id} || true; ls -d {acls}/*/lun_1 2>/dev/null || true"
        );
        let seen = self.site.storage()?.sh(&script)?.ok()?.stdout;
        let granted = INITIATORS.map(|initiator| seen.contains(&format!("/{initiator}/")));
        Ok(There { volume: seen.lines().next().is_some_and(|line| line.trim() == "1"), granted })
    }

    /// Waits until the host has logged in again by itself, and writes.
    fn writes_on(&self) -> Result<Value> {
        let before = number(&progress(&self.writer)?, "done")?;
        wait_for("host1 to go on", IN_ORDER, || {
            let seen = progress(&self.writer)?;
            check(number(&seen, "errors")? == 0, || format!("host1's writes: {seen}"))?;
            Ok((number(&seen, "done")? > before + 50).then_some(seen))
        })
    }

    /// Ends the cycles by repeating the commands that were not answered.
    fn ends(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.give(self.site)?;
            while worker.answered > 0 {
                worker.give(self.site)?;
            }
        }
        self.writer.kill()?;
        self.host.logout(&target(KEPT))?;
        self.site.json(&["export", "revoke", KEPT, "--initiator", &self.host.iqn])?;
        self.site.json(&["volume", "delete", KEPT])?;
        self.site.nothing_left()?;
        self.agent.take().context("the agent")?.kill()
    }
}

fn target(id: &str) -> String {
    format!("iqn.2026-11.dev.mooring:{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_there_and_one_command_more_may_be() {
        let worker = |answered| Worker { number: 1, cycle: 3, answered, answers: 0 };
        let there = |volume, granted| There { volume, granted };
        let nothing = there(false, [false; 2]);
        assert_eq!(worker(0).may_be_there(), [nothing, there(true, [false; 2])]);
        assert_eq!(worker(2).may_be_there(), [there(true, [true, false]), there(true, [true, true])]);
        assert_eq!(worker(3).may_be_there(), [there(true, [true, true]), there(true, [false, true])]);
        assert_eq!(worker(5).may_be_there(), [there(true, [false; 2]), nothing], "a cycle ends with nothing");
        assert_eq!(worker(0).id(), "45100003-3333-4333-8444-555555555555");
    }
}

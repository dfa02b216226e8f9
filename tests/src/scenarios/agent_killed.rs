//! The storage agent dies before and after each of its calls that change the machine, on a real
//! kernel: while a volume is made, granted to two hosts, revoked from one under I/O, released by
//! the other, and deleted. Each time another agent is started, as systemd does, and the same
//! command is repeated. Everything ends as without the death.
//!
//! What must never happen here: a fault point that counts as tried and was not: the agent itself
//! says where it died.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running, Status};
use serde_json::Value;

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{BIN, Programs, Site, going, number, progress};

const PROGRAM: &str = "mooring-agent-faults";
const PORTAL: &str = "10.10.0.10:3260";
const SIGABRT: i32 = 6;
/// Most repetitions of a command: the agent may die in it once, and one answer may be "pending".
const TRIES: usize = 4;
/// Number of deaths in the tests; `cargo xtask soak` has all.
pub const DEATHS_IN_CI: usize = 3;

/// Kills the agent at this many of its fault points, spread evenly over all; at each point, if
/// there are not so many.
pub fn run(programs: &Programs, deaths: usize) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("agent-killed"), programs)?;
    let result = Killed::make(&site).and_then(|mut killed| killed.acts(deaths));
    site.end(result)
}

struct Killed<'a> {
    site: &'a Site,
    evidence: Evidence,
    one: Host<'a>,
    two: Host<'a>,
    /// The running agent.
    agent: Option<Running>,
    /// `true`: it will die.
    armed: bool,
    /// The dead agent's log up to its death.
    died: Option<String>,
    rounds: u32,
}

impl<'a> Killed<'a> {
    fn make(site: &'a Site) -> Result<Self> {
        site.uses(&[PROGRAM])?;
        let (one, two) = (Host::start(site.rig.vm("host1")?)?, Host::start(site.rig.vm("host2")?)?);
        let evidence = Evidence::default();
        // Objects that all volumes share exist from now on.
        let agent = Some(site.start_agent()?);
        Ok(Self { site, evidence, one, two, agent, armed: false, died: None, rounds: 0 })
    }

    fn acts(&mut self, deaths: usize) -> Result<()> {
        let said = self.round(0)?;
        let points: Vec<_> = said.lines().filter(|line| line.starts_with("fault point ")).collect();
        let count = points.len();
        check(count > 0, || format!("the agent passes no fault point: {said}"))?;
        let tried = deaths.min(count);
        for death in 0..tried {
            let at = 1 + death * count / tried;
            let said = self.round(at).with_context(|| format!("death at point {at} of {count}"))?;
            let last = said.lines().rev().find(|line| line.starts_with("fault point ")).unwrap_or_default();
            self.evidence.note(format!("died at {}", last.strip_prefix("fault point ").unwrap_or(last)));
        }
        self.evidence.shows(format!(
            "the agent died at {tried} of its {count} fault points in a cycle of grants, a force detach under I/O and a deletion: \
             the next one brought each to its end, host2 kept its session and saw no error, nothing is left"
        ));
        if let Some(agent) = self.agent.take() {
            agent.kill()?;
        }
        Ok(())
    }

    /// Runs the whole cycle with an agent that dies at this point (0: at none). Returns that
    /// agent's log.
    fn round(&mut self, at: usize) -> Result<String> {
        self.rounds += 1;
        self.arm(at)?;
        let id = format!("{:08}-2222-4333-8444-555555555555", 44_000_000 + self.rounds);
        let (one, two) = (self.one.iqn.clone(), self.two.iqn.clone());
        let name = format!("cycle{}", self.rounds);
        self.done(&["volume", "create", &name, "--size", "16MiB", "--id", &id])?;
        self.done(&["export", "grant", &id, "--initiator", &one, "--mode", "rw"])?;
        let target = format!("iqn.2026-11.dev.mooring:{id}");
        self.one.login(&target, PORTAL, None, 10)?.ok()?;
        self.done(&["export", "grant", &id, "--initiator", &two, "--mode", "ro"])?;
        self.two.login(&target, PORTAL, None, 10)?.ok()?;
        self.under_io(&id, &target)?;
        self.two.logout(&target)?;
        self.done(&["export", "revoke", &id, "--initiator", &two])?;
        self.done(&["volume", "delete", &id])?;
        self.see_death()?;
        self.site.nothing_left()?;
        if at == 0 {
            let agent = self.agent.take().context("the agent")?;
            let said = agent.stderr_so_far();
            agent.kill()?;
            drop(agent.wait()?);
            return Ok(said);
        }
        self.died.take().with_context(|| format!("the agent did not die at point {at}"))
    }

    /// Host1 is revoked while it writes; host2 continues to read in the same session.
    fn under_io(&mut self, id: &str, target: &str) -> Result<()> {
        let (writes, reads) = (self.one.disk(target, PORTAL)?, self.two.disk(target, PORTAL)?);
        let writer = writes.write_stamps(&["--threads", "2"])?;
        let reader = reads.watch_stamps()?;
        going(&writer)?;
        going(&reader)?;
        let before = self.two.session_at(self.site.storage()?, target)?;
        let one = self.one.iqn.clone();
        let receipt = self.done(&["export", "revoke", id, "--initiator", &one, "--force"])?;
        // Repeated after a death, the revoke may find nothing to do: then its receipt is in the
        // list.
        let shown = self.done(&["volume", "show", id])?;
        let proven = |receipt: &Value| receipt["initiator"] == one.as_str() && receipt["proven"] == true;
        let listed = shown["receipts"].as_array().is_some_and(|all| all.iter().any(proven));
        check(proven(&receipt["receipt"]) || listed, || format!("no proven receipt: {receipt} {shown}"))?;
        let seen = progress(&reader)?;
        check(number(&seen, "errors")? == 0, || format!("host2's reads: {seen}"))?;
        let after = self.two.session_at(self.site.storage()?, target)?;
        check(before == after, || format!("host2 has another session: {before} {after}"))?;
        for running in [reader, writer] {
            running.kill()?;
            drop(running.wait()?);
        }
        self.one.forget(target)
    }

    /// Replaces the running agent by one that dies at this point.
    fn arm(&mut self, at: usize) -> Result<()> {
        if let Some(agent) = self.agent.take() {
            agent.kill()?;
            drop(agent.wait()?);
        }
        let crash = format!("MOORING_AGENT_CRASH_AT={at}");
        let agent = self.site.spawn_program(&["env", &crash, &format!("{BIN}/{PROGRAM}")])?;
        wait_for("the armed agent to answer, or to die by what it finds", Duration::from_mins(1), || {
            Ok((!agent.is_running() || self.site.agent_answers()?).then_some(()))
        })?;
        (self.agent, self.armed, self.died) = (Some(agent), at > 0, None);
        self.see_death()
    }

    /// Records the agent's death, and starts another one.
    fn see_death(&mut self) -> Result<()> {
        let Some(agent) = self.agent.take_if(|agent| !agent.is_running()) else { return Ok(()) };
        let out = agent.wait()?;
        let asked = out.stderr.contains("dies there as asked") && out.status == Status::Signaled(SIGABRT);
        check(asked && self.armed, || format!("the agent has ended: {}: {}", out.status, out.stderr))?;
        (self.died, self.armed) = (Some(out.stderr), false);
        self.agent = Some(self.site.start_agent()?);
        Ok(())
    }

    /// Repeats a command until it has succeeded, also after the agent's death.
    fn done(&mut self, words: &[&str]) -> Result<Value> {
        let mut said = String::new();
        for _ in 0..TRIES {
            let out = self.site.mooring(&[&["--json", "--timeout", "60"], words].concat())?;
            if out.status.success() {
                return serde_json::from_str(&out.stdout)
                    .with_context(|| format!("`mooring {}` answered: {}", words.join(" "), out.stdout));
            }
            said = format!("{}: {} {}", out.status, out.stdout, out.stderr);
            // The agent may be about to die.
            std::thread::sleep(Duration::from_millis(300));
            self.see_death()?;
        }
        bail!("`mooring {}` does not succeed: {said}", words.join(" "))
    }
}

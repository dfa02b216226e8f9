//! Everything is killed in turn, under I/O: the hosts' processes, the storage node's, and its
//! power.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::Running;

use super::{Demo, GO_ON};
use crate::evidence::{check, wait_for};
use crate::site::{going, number, progress};

const MOMENT: Duration = Duration::from_secs(1);

impl Demo<'_> {
    /// Ends host1's writer, checks that it saw no error, and returns its counters.
    fn wrote_on(writer: Running) -> Result<(u64, u64)> {
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0 && number(&seen, "done")? > 0, || {
            format!("host1's writes: {seen}")
        })?;
        writer.kill()?;
        drop(writer.wait()?);
        Ok((number(&seen, "done")?, number(&seen, "longest_gap_ms")?))
    }

    /// The target's number of host1's session: a relogin would change it.
    fn session_at_target(&self) -> Result<String> {
        let shown = self.site.json(&["export", "show", &self.volume])?;
        let grants = shown["export"]["grants"].as_array().context("no grants")?;
        let rw = grants.iter().find(|grant| grant["seen"] == "rw").context("no rw grant")?;
        Ok(rw["sessions"][0]["id"].to_string())
    }

    pub(super) fn host_processes_killed(&mut self) -> Result<()> {
        let writer = self.disk1.write_stamps(&[])?;
        going(&writer)?;
        let target = self.target.clone();
        let before = (self.control.hosts[0].session(&target)?, self.session_at_target()?);
        let host = &mut self.control.hosts[0];
        host.kill_sessiond()?;
        host.kill_agent()?;
        sleep(MOMENT);
        host.start()?;
        let adopted = host.sessiond_log().lines().find(|line| line.contains("adopted")).map(str::to_owned);
        check(adopted.is_some(), || format!("no session was adopted: {}", host.sessiond_log()))?;
        let after = (self.control.hosts[0].session(&target)?, self.session_at_target()?);
        check(before == after, || format!("another session: {before:?} and {after:?}"))?;
        sleep(MOMENT);
        let (writes, gap) = Self::wrote_on(writer)?;
        let live = wait_for("host1's attachment to be seen ready", Duration::from_secs(30), || {
            let live = self.control.live(&self.attachment1)?;
            Ok((live["host_phase"] == "ready").then_some(live))
        })?;
        check(live["session"] == true, || format!("{live}"))?;
        self.evidence.shows(format!(
            "host1's sessiond and agent killed with -9 and started again: {writes} writes, 0 errors, longest gap {gap} ms; \
             adopted, same kernel session {} and LIO session {}",
            after.0.sid, after.1
        ));
        Ok(())
    }

    /// Storage agent and controller are killed and started again.
    pub(super) fn storage_killed(&mut self, agent: Running) -> Result<Running> {
        let (writer, reader) = (self.disk1.write_stamps(&[])?, self.disk2.watch_stamps()?);
        going(&writer)?;
        going(&reader)?;
        agent.kill()?;
        drop(agent.wait()?);
        self.control.kill_controller()?;
        sleep(MOMENT);
        let agent = self.site.start_agent()?;
        self.control.start_controller()?;
        self.site.nothing_planned_soon().context("after the agent's restart")?;
        sleep(MOMENT);
        let (writes, gap) = Self::wrote_on(writer)?;
        self.evidence.shows(format!(
            "storage agent and controller killed with -9 and started again: host1 wrote on ({writes} writes, 0 errors, longest \
             gap {gap} ms), nothing left to plan"
        ));
        self.no_gap(reader, "their crash")?;
        Ok(agent)
    }

    pub(super) fn power_cut(&mut self, agent: Running) -> Result<Running> {
        let (writer, reader) = (self.disk1.write_stamps(&[])?, self.disk2.watch_stamps()?);
        going(&writer)?;
        going(&reader)?;
        let storage = self.site.storage()?;
        let before = number(&progress(&writer)?, "done")?;
        let cut = Instant::now();
        storage.power_cut()?;
        drop(agent);
        self.control.controller_is_gone();
        storage.boot()?;
        self.site.after_boot()?;
        self.control.configure()?;
        let started = Instant::now();
        let agent = self.site.start_agent()?;
        wait_for("the exports to be back", Duration::from_secs(30), || {
            let shown = self.site.json(&["export", "show", &self.volume])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })?;
        self.proved.restored_ms = started.elapsed().as_millis();
        self.evidence.shows(format!(
            "power of the storage node cut under I/O: booted, exports back {} ms after the agent's start, {:.1} s after the cut",
            self.proved.restored_ms,
            cut.elapsed().as_secs_f64()
        ));
        let at = number(&progress(&reader)?, "done")?;
        wait_for("both hosts to go on", GO_ON, || {
            let (write, read) = (progress(&writer)?, progress(&reader)?);
            Ok((number(&write, "done")? > before + 100 && number(&read, "done")? > at + 100).then_some(()))
        })?;
        let (writes, gap) = Self::wrote_on(writer)?;
        self.evidence.shows(format!(
            "host1's sessiond logs in again by itself: {writes} writes, 0 errors, longest gap {:.1} s",
            Duration::from_millis(gap).as_secs_f64()
        ));
        self.no_gap(reader, "the power cut")?;
        self.control.start_controller()?;
        Ok(agent)
    }
}

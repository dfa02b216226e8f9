//! Harm that a read-only host can do to others with commands that carry no data, or claim to read:
//! a part of the scenario `reservations`. The control is an agent that only reports.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use mooring_rig::Running;
use serde_json::Value;

use super::reservations::{PORTAL, target};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{Site, TARGET, agent_config, goes_on, going, number, progress};

const VOLUME: &str = "66666666-2222-4333-8444-555555555555";

/// RESERVE(6) and RESERVE(10).
const RESERVES: [&str; 2] = ["16 00 00 00 00 00", "56 00 00 00 00 00 00 00 00 00"];

/// Time for which the control is watched: longer than the agent takes to see it.
const CONTROL: Duration = Duration::from_secs(6);

/// A volume with a writer and a reader.
pub(super) struct Readers<'a> {
    site: &'a Site,
    writer: &'a Host<'a>,
    reader: &'a Host<'a>,
    disks: [Disk<'a>; 2],
    stamps: Running,
}

impl<'a> Readers<'a> {
    pub(super) fn begin(site: &'a Site, writer: &'a Host<'a>, reader: &'a Host<'a>) -> Result<Self> {
        site.json(&["volume", "create", "v6666", "--size", "64MiB", "--id", VOLUME])?;
        for (host, mode) in [(writer, "rw"), (reader, "ro")] {
            site.json(&["export", "grant", VOLUME, "--initiator", &host.iqn, "--mode", mode])?;
            host.login(&target(VOLUME), PORTAL, None, 60)?.ok()?;
        }
        let disks = [writer.disk(&target(VOLUME), PORTAL)?, reader.disk(&target(VOLUME), PORTAL)?];
        let stamps = disks[0].write_stamps(&["--seconds", "900"])?;
        going(&stamps)?;
        Ok(Self { site, writer, reader, disks, stamps })
    }

    /// Sends a command past the block layer. Returns the target's answer, if it was not GOOD.
    fn raw(disk: &Disk<'_>, words: &str) -> Result<Result<(), String>> {
        let out = disk.vm.sh(&format!("sg_raw {words} 2>&1"))?;
        Ok(if out.status.success() { Ok(()) } else { Err(out.stdout) })
    }

    /// Reserves the disk: the kernel lets a reader do that as much as a writer.
    fn reserve(disk: &Disk<'_>, command: &str) -> Result<()> {
        let node = disk.generic()?;
        // The first command after a login, or after a reset, is answered with that event.
        Self::raw(disk, &format!("{node} 00 00 00 00 00 00"))?.ok();
        Self::raw(disk, &format!("{node} {command}"))?.map_err(|said| anyhow!("RESERVE is refused: {said}"))
    }

    fn holder(&self) -> Result<Value> {
        Ok(self.site.json(&["volume", "reservations", VOLUME])?["holder"].clone())
    }

    /// Receipts of nexuses that were removed for their reservations.
    fn cuts(&self) -> Result<Vec<Value>> {
        let shown = self.site.json(&["export", "show", VOLUME])?;
        let receipts = shown["receipts"].as_array().with_context(|| format!("receipts: {shown}"))?;
        Ok(receipts.iter().filter(|one| one["cause"] == "reservation").cloned().collect())
    }

    fn errors(&self) -> Result<u64> {
        number(&progress(&self.stamps)?, "errors")
    }

    fn reads_again(&self) -> Result<()> {
        let read = format!("dd if={} of=/dev/null bs=4k count=1 iflag=direct", self.disks[1].path);
        wait_for("the reader to read again", Duration::from_mins(1), || {
            Ok(self.reader.vm.sh(&read)?.status.success().then_some(()))
        })
    }

    /// Reserves with the reader, and waits until it is cut off. Returns how long that took.
    fn cut_off(&self, reserve: &str) -> Result<Duration> {
        let before = self.cuts()?.len();
        let own = self.writer.session_at(self.site.storage()?, &target(VOLUME))?;
        Self::reserve(&self.disks[1], reserve)?;
        let began = Instant::now();
        let cut = wait_for("the reader's session to be cut", Duration::from_secs(30), || {
            let cuts = self.cuts()?;
            Ok((cuts.len() > before).then(|| cuts[0].clone()))
        })?;
        let took = began.elapsed();
        wait_for("the receipt to be proven", Duration::from_secs(30), || {
            Ok((self.cuts()?[0]["proven"] == true).then_some(()))
        })?;
        check(
            cut["initiator"] == self.reader.iqn.as_str() && cut["held_reservation"] == "RESERVE(6)",
            || format!("the receipt: {cut}"),
        )?;
        goes_on(&self.stamps)?;
        check(self.writer.session_at(self.site.storage()?, &target(VOLUME))? == own, || {
            "the writer's session is another one".to_owned()
        })?;
        self.reads_again()?;
        check(self.holder()?.is_null(), || "it is reserved on".to_owned())?;
        Ok(took)
    }

    /// Other commands of a reader that change something for others: they remove nothing.
    fn siblings(&self) -> Result<()> {
        let (disk, before) = (&self.disks[1], self.errors()?);
        let path = &disk.generic()?;
        // PERSISTENT RESERVE OUT, REGISTER AND IGNORE, and SET TARGET PORT GROUPS to another state,
        // both claimed to read.
        Self::raw(disk, &format!("-r 24 {path} 5f 06 00 00 00 00 00 00 18 00"))?.ok();
        Self::raw(disk, &format!("-r 8 {path} a4 0a 00 00 00 00 00 00 00 08 00 00"))?.ok();
        let core = format!("{TARGET}/core/iblock_*/{VOLUME}");
        let seen = self
            .site
            .storage()?
            .sh(&format!(
                "cat {core}/pr/res_pr_registered_i_pts {core}/alua/default_tg_pt_gp/alua_access_state"
            ))?
            .ok()?
            .stdout;
        check(seen.contains("None") && seen.trim_end().ends_with('0'), || {
            format!("a reader changed: {seen}")
        })?;
        for reset in ["-d", "-t"] {
            disk.vm.sh(&format!("sg_reset {reset} {path} 2>&1 || true"))?.ok()?;
            goes_on(&self.stamps)?;
        }
        check(self.errors()? == before, || "a reader's reset is an error of the writer".to_owned())
    }

    /// The agent only reports it, if nothing else is to be done; then an operator clears it.
    fn control(&self) -> Result<()> {
        let since = self.cuts()?.len();
        Self::reserve(&self.disks[1], RESERVES[0])?;
        std::thread::sleep(CONTROL);
        let before = self.errors()?;
        wait_for("the reader to hold the volume", Duration::from_secs(30), || {
            let holder = self.holder()?;
            check(holder["initiator"] == self.reader.iqn.as_str() && holder["since"].is_string(), || {
                format!("the holder: {holder}")
            })
            .map(Some)
        })?;
        wait_for("the control to lock the writer out", Duration::from_secs(30), || {
            Ok((self.errors()? > before).then_some(()))
        })?;
        check(self.cuts()?.len() == since, || "cut in spite of the configuration".to_owned())?;
        let said = self.site.mooring(&["export", "show", VOLUME])?.stdout;
        check(said.contains("has reserved it for itself"), || format!("not said: {said}"))?;
        let took = self.site.json(&["volume", "reservations", VOLUME, "--clear"])?;
        check(took["before"]["holder"]["type"] == 0 && took["reservations"]["holder"].is_null(), || {
            format!("--clear: {took}")
        })?;
        goes_on(&self.stamps)?;
        // A writer's reservation concerns only an operator.
        Self::reserve(&self.disks[0], RESERVES[0])?;
        std::thread::sleep(CONTROL);
        wait_for("the writer to hold the volume", Duration::from_secs(30), || {
            Ok((self.holder()?["initiator"] == self.writer.iqn.as_str()).then_some(()))
        })?;
        self.site.json(&["volume", "reservations", VOLUME, "--clear"])?;
        check(self.holder()?.is_null(), || "a writer's reservation is not cleared".to_owned())?;
        goes_on(&self.stamps)?;
        self.reads_again()
    }

    /// A reader that has reserved the volume is detached, without knowledge of the reservation.
    fn detached(&self) -> Result<()> {
        Self::reserve(&self.disks[1], RESERVES[0])?;
        self.site.json(&["export", "revoke", VOLUME, "--initiator", &self.reader.iqn, "--force"])?;
        goes_on(&self.stamps)?;
        check(self.holder()?.is_null(), || "it is reserved by who was detached".to_owned())
    }

    /// Runs all acts. Returns the agent that runs at the end.
    pub(super) fn acts(self, agent: Running, evidence: &mut Evidence) -> Result<Running> {
        let mut took = Vec::new();
        for reserve in RESERVES {
            took.push(format!("{:.1} s", self.cut_off(reserve)?.as_secs_f64()));
        }
        evidence.shows(format!(
            "a reader reserves the volume by RESERVE(6), then RESERVE(10): its session is cut after {}, with a receipt; the writer's \
             session is the same and writes on, and the reader reads again",
            took.join(" and ")
        ));
        self.siblings()?;
        evidence.shows(
            "a reader's PERSISTENT RESERVE OUT and SET TARGET PORT GROUPS that say they read change nothing; its resets are no error \
             of the writer",
        );
        agent.kill()?;
        drop(agent.wait()?);
        let agent = self.site.start_agent_by(&agent_config("ro_reservation = \"report\"\n"))?;
        self.control()?;
        evidence.shows(
            "control: with ro_reservation = \"report\" the same keeps the writer out, who and since when is said, and `--clear` ends it, \
             a writer's, too",
        );
        self.detached()?;
        evidence.shows("a reader that has reserved it is detached: the writer writes on");
        self.stamps.kill()?;
        drop(self.stamps.wait()?);
        self.writer.logout(&target(VOLUME))?;
        agent.kill()?;
        drop(agent.wait()?);
        self.site.start_agent()
    }
}

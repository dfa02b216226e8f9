//! A partition of two minutes between the controller and its agents while volumes are attached: the
//! storage agent does not answer, the host's agent is not reached, and both. I/O has a network of
//! its own. The same with fakes, and with more attaches at once, is a test of the fleet.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{Cut, Networks, Output, RigOptions, Running};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{Programs, Site, TARGET, goes_on, going, number, progress};

/// Time for which nobody hears of the other side.
const LASTS: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_mins(1);

/// Signals. A stopped agent is as silent as one behind a network that loses everything: connections
/// stay, new ones are made, and what was sent is read when it goes on.
const STOP: u8 = 19;
const CONT: u8 = 18;

/// The agents that the controller does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Storage,
    Host,
    Both,
}

impl Side {
    fn has_storage(self) -> bool {
        self != Self::Host
    }

    fn has_host(self) -> bool {
        self != Self::Storage
    }

    /// Number of agents that are missed.
    fn missed(self) -> usize {
        if self == Self::Both { 2 } else { 1 }
    }
}

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Storage => "the storage agent",
            Self::Host => "the host's agent",
            Self::Both => "storage agent and host's agent",
        })
    }
}

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("partition").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    // The portal is on the second network, and the controller talks over the first one.
    let agent = site.start_agent_at(&["10.20.0.10:3260"])?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    let volumes = ["old", "early", "late"];
    let [old, early, late] = volumes.map(|name| control.volume(name, None));
    let (old, early, late) = (old?, early?, late?);
    let mut acts = Acts { site, control, evidence: Evidence::default(), agent, early, late };
    let result = acts.all(&old);
    if result.is_err() {
        acts.control.print_logs();
    }
    result
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    /// The storage node's agent.
    agent: Running,
    /// Volumes that are attached right after the partition begins, and once it is noticed.
    early: String,
    late: String,
}

impl Acts<'_> {
    fn all(&mut self, old: &str) -> Result<()> {
        let attached = self.control.attach(old, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&attached, "device_path")?);
        let writer = disk.write_stamps(&["--threads", "1", "--every-ms", "50"])?;
        going(&writer)?;
        let target = format!("iqn.2026-11.dev.mooring:{old}");
        let session = self.control.hosts[0].session(&target)?;
        for side in [Side::Storage, Side::Host, Side::Both] {
            self.partition(side).with_context(|| format!("a partition of {side}"))?;
            goes_on(&writer)?;
            let now = self.control.hosts[0].session(&target)?;
            check(now == session, || format!("{side}: the session was {session:?} and is {now:?}"))?;
        }
        let seen = progress(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        check(number(&seen, "errors")? == 0, || format!("writes over three partitions: {seen}"))?;
        self.evidence.shows(format!(
            "host1 wrote over all three partitions in one session: {} writes, 0 errors",
            number(&seen, "done")?
        ));
        self.control.json(&["detach", text(&attached, "id")?])?;
        for volume in [old, self.early.as_str(), self.late.as_str()] {
            self.control.json(&["volume", "delete", volume, "--timeout", "120"])?;
        }
        self.control.hosts[0].nothing_left()?;
        self.site.nothing_left()
    }

    fn cut(&self, side: Side) -> Result<()> {
        if side.has_host() {
            self.control.hosts[0].vm.cut(Cut::Silent, Networks::Only(0))?;
        }
        if side.has_storage() {
            self.agent.signal(STOP)?;
        }
        Ok(())
    }

    fn heal(&self, side: Side) -> Result<()> {
        if side.has_storage() {
            self.agent.signal(CONT)?;
        }
        self.control.hosts[0].vm.heal()
    }

    fn partition(&mut self, side: Side) -> Result<()> {
        self.cut(side)?;
        let began = Instant::now();
        let words = Control::words(&["attach", &self.early, "--host", "host1", "--timeout", "600"]);
        let early = self.site.storage()?.command(words).timeout(Duration::from_mins(12)).spawn()?;
        wait_for("the controller to miss its agents", SOON, || {
            let hosts = self.control.json(&["host", "list"])?;
            let down = hosts["hosts"].as_array().into_iter().flatten().filter(|host| host["up"] == false);
            check(down.count() == side.missed(), || format!("hosts: {hosts}")).map(Some)
        })?;
        let late = self.control.mooring(&["--timeout", "20", "attach", &self.late, "--host", "host1"])?;
        check(late.status.code() == Some(6) && late.stderr.contains("is down"), || {
            format!("an attach in a partition that is known: {late:?}")
        })?;
        std::thread::sleep(LASTS.saturating_sub(began.elapsed()));
        self.heal(side)?;
        self.control.all_up_soon()?;
        let early = early.wait()?;
        let row = self.ended(&early)?;
        let status = row.as_ref().map_or("taken back", |row| row["status"].as_str().unwrap_or_default());
        self.evidence.shows(format!(
            "{side} not reached for {} s: the attach before it was noticed is {status}, the one after it was refused: {}",
            began.elapsed().as_secs(),
            late.stderr.trim()
        ));
        if let Some(row) = &row {
            self.control.json(&["detach", text(row, "id")?])?;
        }
        check(self.of(&self.early)?.is_empty() && self.granted(&self.early)? == 0, || {
            "the volume of the early attach is held after its detach".to_owned()
        })?;
        check(self.of(&self.late)?.is_empty() && self.granted(&self.late)? == 0, || {
            "the refused attach has left something".to_owned()
        })
    }

    /// Waits until the early attach has ended, on its host as at the target: attached, or failed
    /// with a reason. Returns its row; `None` if it was taken back, and the command has said why.
    fn ended(&self, command: &Output) -> Result<Option<Value>> {
        let said = command.stderr.trim();
        let row = wait_for("the early attach to end", Duration::from_mins(2), || {
            let mut rows = self.of(&self.early)?;
            let (count, row) = (rows.len(), rows.pop());
            let is_in = row.as_ref().is_some_and(|row| row["status"] == "attached");
            let ends = row.as_ref().is_none_or(|row| {
                let ready = is_in && row["host_phase"] == "ready";
                ready || (row["status"] == "error_attaching" && row["fault"].is_string())
            });
            let granted = self.granted(&self.early)?;
            check(count <= 1 && ends && granted == usize::from(is_in), || {
                format!("{granted} initiators are admitted, and there is {row:?}; the command said: {said}")
            })?;
            Ok(Some(row))
        })?;
        check(if command.status.success() { row.is_some() } else { !said.is_empty() }, || {
            format!(
                "`{}` ended with {:?}, said {said:?}, and there is {row:?}",
                command.command, command.status
            )
        })?;
        Ok(row)
    }

    /// The attachments of a volume.
    fn of(&self, volume: &str) -> Result<Vec<Value>> {
        let all = self.control.json(&["attachment", "list"])?;
        let all = all["attachments"].as_array().cloned().with_context(|| format!("a list: {all}"))?;
        Ok(all.into_iter().filter(|one| one["volume_id"] == volume).collect())
    }

    /// Number of initiators that a volume's target admits.
    fn granted(&self, volume: &str) -> Result<usize> {
        let acls = format!("{TARGET}/iscsi/iqn.2026-11.dev.mooring:{volume}/tpgt_1/acls");
        let out = self.site.storage()?.sh(&format!("ls {acls} 2>/dev/null || true"))?.ok()?;
        Ok(out.stdout.split_whitespace().count())
    }
}

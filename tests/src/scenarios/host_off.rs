//! A host that is off while it is force-detached, and boots with its own state while no controller
//! runs: its agent asks for the disk that it had, and the storage node refuses it. The control is
//! the same boot of a host that nobody has detached.
//!
//! What must never happen here: an absence of logins from the host's own words; the target's kernel
//! counts them.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::demo::trials::{STATE_DISK, mount_state};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{Programs, Site, TARGET, goes_on, going, number, progress};

const SOON: Duration = Duration::from_mins(1);

/// Most logins that host1 may try while no controller runs: each of its programs may try again when
/// it starts, and at a resync.
const LOGINS_MAX: u64 = 10;

/// Largest share of a processor for agent and sessiond together while the host is refused. A loop
/// takes all of it.
const SHARE_MAX: f64 = 0.5;

/// Prints the processor time of agent and sessiond in hundredths of a second, and the uptime in
/// seconds, at two moments.
const LOAD: &str = "snap() { for one in $(pidof mooring-agent) $(pidof mooring-sessiond); do cat /proc/$one/stat; done | \
    awk '{ n += $14 + $15 } END { print n + 0 }'; cut -d' ' -f1 /proc/uptime; }; snap; sleep 10; snap";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(2).named("host-off").forward(PORT);
    for vm in options.vms.iter_mut().filter(|vm| vm.name == "host1") {
        vm.disks.push(STATE_DISK);
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    mount_state(site.rig.vm("host1")?, "mkfs.ext4 -q $disk;")?;
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    let mut acts = Acts { site, control, evidence: Evidence::default(), volume, target };
    let result = acts.all();
    if result.is_err() {
        acts.control.print_logs();
        eprintln!("--- host1's sessiond:\n{}", acts.control.hosts[0].sessiond_log());
    }
    result?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
    target: String,
}

impl Acts<'_> {
    fn all(&mut self) -> Result<()> {
        let first = self.control.attach(&self.volume, "host1", "rw")?;
        let first = text(&first, "id")?.to_owned();
        let second = self.control.attach(&self.volume, "host2", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host2")?, text(&second, "device_path")?);
        let second = text(&second, "id")?.to_owned();
        let writer = disk.write_stamps(&["--threads", "1", "--every-ms", "50"])?;
        going(&writer)?;
        self.comes_back()?;
        self.force_detach(&first)?;
        self.stays_out()?;
        self.is_told(&second)?;
        self.comes_in_again()?;
        self.was_untouched(writer)?;
        self.control.json(&["detach", &second])?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        self.site.nothing_left()
    }

    /// Boots host1 with the state that it had, and starts its programs.
    fn boot(&mut self) -> Result<()> {
        let vm = self.site.rig.vm("host1")?;
        vm.boot()?;
        mount_state(vm, "")?;
        self.control.host_again("host1")
    }

    /// Logins that the volume's target has refused, as its kernel counts them.
    fn refused(&self) -> Result<u64> {
        let folder = format!("{TARGET}/iscsi/{}/fabric_statistics/iscsi_login_stats", self.target);
        let script = format!("cat {folder}/authorize_fails {folder}/authenticate_fails");
        let counts = self.site.storage()?.sh(&script)?.ok()?.stdout;
        let counts: Vec<u64> = counts
            .split_whitespace()
            .map(str::parse::<u64>)
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("refused logins: {counts}"))?;
        Ok(counts.iter().sum())
    }

    /// Control: without a force detach, the host has its disk back after the same boot.
    fn comes_back(&mut self) -> Result<()> {
        self.control.hosts[0].vm.power_cut()?;
        self.control.kill_controller()?;
        self.boot()?;
        let (target, host) = (&self.target, &self.control.hosts[0]);
        wait_for("host1 to log in by itself after its boot", SOON, || {
            let session = host.session(target)?;
            check(session.state == "LOGGED_IN", || format!("host1's session: {session:?}")).map(Some)
        })?;
        self.control.start_controller()?;
        self.evidence.shows(
            "control: host1 loses its power and boots while the controller is away: it has its disk back by itself",
        );
        Ok(())
    }

    fn force_detach(&mut self, attachment: &str) -> Result<()> {
        self.control.hosts[0].vm.power_cut()?;
        let answer = self.control.force_detach(attachment)?;
        check(answer["receipt"]["proof"] == "proven", || format!("the force detach: {answer}"))?;
        self.evidence.shows("host1 is off, and is force-detached: the receipt is proven");
        Ok(())
    }

    /// Checks that host1 is refused, has no disk, tries seldom and is idle while no controller can
    /// tell it anything.
    fn stays_out(&mut self) -> Result<()> {
        self.control.kill_controller()?;
        let before = self.refused()?;
        self.boot()?;
        wait_for("the storage node to refuse host1", SOON, || Ok((self.refused()? > before).then_some(())))
            .with_context(|| format!("sessiond said: {}", self.control.hosts[0].sessiond_log()))?;
        let host = &self.control.hosts[0];
        let load = host.vm.command(["sh", "-euc", LOAD]).timeout(SOON).run()?.ok()?.stdout;
        let seen: Vec<f64> = load.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[busy_before, from, busy, to] = seen.as_slice() else { anyhow::bail!("host1's load: {load}") };
        check(busy_before > 0.0, || format!("agent and sessiond do not run on host1: {load}"))?;
        let share = (busy - busy_before) / 100.0 / (to - from);
        check(share < SHARE_MAX, || {
            format!(
                "agent and sessiond take {share:.2} of a processor while they are refused; the agent said: {}\nsessiond said: {}",
                host.agent_log(),
                host.sessiond_log()
            )
        })?;
        let tried = self.refused()? - before;
        check(tried <= LOGINS_MAX, || {
            format!("host1 has tried {tried} logins; sessiond said: {}", host.sessiond_log())
        })?;
        let has = host.sessions()?;
        let paths = host.vm.sh("find /run/mooring/attachments -type l 2>/dev/null || true")?.ok()?.stdout;
        check(has.is_empty() && paths.trim().is_empty(), || {
            format!("host1 has sessions {has:?} and paths {paths:?} of a volume that was taken from it")
        })?;
        self.evidence.shows(format!(
            "host1 boots while the controller is away: the storage node refuses its logins ({tried}), it has no session and no path, \
             and its programs take {share:.2} of a processor"
        ));
        Ok(())
    }

    /// Checks that host1 forgets its connection once the controller is back, and that host2's
    /// attachment is the only one.
    fn is_told(&mut self, other: &str) -> Result<()> {
        self.control.start_controller()?;
        let host = &self.control.hosts[0];
        wait_for("host1's connection to go", SOON, || host.nothing_left().map(Some))
            .with_context(|| format!("its agent said: {}", host.agent_log()))?;
        let left = self.control.json(&["attachment", "list"])?;
        let ids: Vec<_> =
            left["attachments"].as_array().into_iter().flatten().map(|one| &one["id"]).collect();
        check(ids == [other], || format!("attachments beside host2's: {left}"))?;
        self.evidence.shows("the controller is back: nothing of the connection is left on host1");
        Ok(())
    }

    fn comes_in_again(&mut self) -> Result<()> {
        let again = self.control.attach(&self.volume, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&again, "device_path")?);
        let stamps: u64 = disk.read_stamps()?.iter().sum();
        check(stamps > 0, || "host1 reads none of host2's stamps".to_owned())?;
        self.control.json(&["detach", text(&again, "id")?])?;
        self.evidence.shows("host1 is attached again when somebody asks for it, and reads what host2 wrote");
        Ok(())
    }

    /// Checks that host2's writes never failed, and go on.
    fn was_untouched(&mut self, writer: Running) -> Result<()> {
        goes_on(&writer)?;
        let seen = progress(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        check(number(&seen, "errors")? == 0, || format!("host2's writes: {seen}"))?;
        self.evidence.shows(format!(
            "host2 wrote all the while: {} writes, 0 errors, longest gap {} ms",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        Ok(())
    }
}

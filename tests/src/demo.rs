//! The main job on real kernels, with its evidence: one volume, two hosts, rw and ro, force detach, crash and power cut.
//!
//! The hosts run stock open-iscsi. Each claim prints a line with what was measured; a claim that does not hold ends the
//! demo with an error.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running};

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::{Credentials, Host};
use crate::site::{BIN, Programs, Site, TARGET, number, progress};

/// Writes in flight of the victim of the force detach.
const WRITERS: u64 = 8;
/// How long the slow backend takes for a write.
const SLOW_MS: u64 = 1500;
const PORTAL: &str = "10.10.0.10:3260";
const PORTAL_2: &str = "10.20.0.10:3260";

const HOST1: Credentials = Credentials { user: "host1", secret: "correct-horse-1", mutual: None };
const HOST2: Credentials =
    Credentials { user: "host2", secret: "correct-horse-2", mutual: Some(("storage", "battery-staple-2")) };

/// Numbers for the last line.
#[derive(Debug, Default)]
struct Proved {
    stamps_written: u64,
    in_flight: u64,
    landed_in_control: u64,
    longest_gap_ms: u64,
    receipt_ms: i64,
    restored_ms: u128,
}

struct Demo<'a> {
    site: &'a Site,
    evidence: Evidence,
    proved: Proved,
    host1: Host<'a>,
    host2: Host<'a>,
    volume: String,
    target: String,
    naa: String,
    device: String,
    disk1: String,
    disk2: String,
}

/// What happens at the end while everything still runs.
pub type Wait = dyn Fn(&Site) -> Result<()>;

/// Runs the demo. With `keep`, that is called when all but the last scene is done: both hosts are attached, and the agent
/// runs; nothing is removed then.
pub fn run(programs: &Programs, keep: Option<&Wait>) -> Result<()> {
    let began = Instant::now();
    let site = Site::up(RigOptions::standard(2).named("demo"), programs)?;
    let result = scenes(&site, began, keep);
    if result.is_err() {
        let folder = site.rig.dir().with_file_name("failed-demo");
        site.save_evidence(&folder);
        eprintln!("evidence saved in {}", folder.display());
    }
    result.and_then(|()| site.rig.check_consoles())
}

fn scenes(site: &Site, began: Instant, keep: Option<&Wait>) -> Result<()> {
    let evidence = Evidence::default();
    evidence.note(format!(
        "3 VMs ready in {:.1} s ({:?}, kernel {}); product installed after {:.1} s",
        site.rig.ready_in().as_secs_f64(),
        site.rig.accel(),
        site.rig.kernel(),
        began.elapsed().as_secs_f64()
    ));
    let agent = site.start_agent()?;
    let mut demo = Demo::new(site)?;
    demo.evidence = evidence;
    demo.create_and_grant()?;
    demo.attach()?;
    demo.share()?;
    demo.read_only_is_real()?;
    demo.force_detach()?;
    demo.control_only_unmaps()?;
    let agent = demo.agent_killed(agent)?;
    let agent = demo.power_cut(agent)?;
    if let Some(wait) = keep {
        demo.proved.print(&demo.evidence, began);
        return wait(site);
    }
    demo.remove_everything()?;
    agent.kill()?;
    demo.proved.print(&demo.evidence, began);
    Ok(())
}

impl Proved {
    fn print(&self, evidence: &Evidence, began: Instant) {
        let p = self;
        println!(
            "proved: 1 volume, 2 hosts: {} stamps written and read back; read-only refused twice, by the host and by the target; \
         force detach with {} writes in flight: receipt after {} ms, 0 stamps after it (control without it: {} landed), \
         other host's longest gap {} ms; agent killed: 0 I/O errors; power cut: exports back {} ms after the agent's start. \
         {} claims, {:.0} s.",
            p.stamps_written,
            p.in_flight,
            p.receipt_ms,
            p.landed_in_control,
            p.longest_gap_ms,
            p.restored_ms,
            evidence.shown(),
            began.elapsed().as_secs_f64()
        );
    }
}

impl<'a> Demo<'a> {
    fn new(site: &'a Site) -> Result<Self> {
        Ok(Self {
            site,
            evidence: Evidence::default(),
            proved: Proved::default(),
            host1: Host::start(site.rig.vm("host1")?)?,
            host2: Host::start(site.rig.vm("host2")?)?,
            volume: String::new(),
            target: String::new(),
            naa: String::new(),
            device: String::new(),
            disk1: String::new(),
            disk2: String::new(),
        })
    }

    fn grant(&self, host: &Host<'_>, mode: &str, chap: Credentials) -> Result<serde_json::Value> {
        let storage = self.site.storage()?;
        storage.write("/run/chap.secret", chap.secret.as_bytes(), 0o600)?;
        let mut args = vec!["export", "grant", &self.volume, "--initiator", &host.iqn, "--mode", mode];
        args.extend(["--chap-user", chap.user, "--chap-secret-file", "/run/chap.secret"]);
        if let Some((user, secret)) = chap.mutual {
            storage.write("/run/mutual.secret", secret.as_bytes(), 0o600)?;
            args.extend(["--mutual-user", user, "--mutual-secret-file", "/run/mutual.secret"]);
        }
        let granted = self.site.json(&args)?;
        storage.sh("rm -f /run/chap.secret /run/mutual.secret")?.ok()?;
        check(granted["done"] == true, || format!("the grant is not in force: {granted}"))?;
        Ok(granted)
    }

    fn create_and_grant(&mut self) -> Result<()> {
        let created = self.site.json(&["volume", "create", "shared", "--size", "64MiB"])?;
        check(created["done"] == true, || format!("the volume is not ready: {created}"))?;
        let text = |value: &serde_json::Value, what: &str| {
            value.as_str().map(str::to_owned).with_context(|| what.to_owned())
        };
        self.volume = text(&created["volume"]["id"], "the volume's id")?;
        self.device = text(&created["volume"]["device"], "the volume's device")?;
        let granted = self.grant(&self.host1, "rw", HOST1)?;
        self.target = text(&granted["target"], "the target's name")?;
        self.naa = text(&granted["naa"], "the NAA")?;
        self.grant(&self.host2, "ro", HOST2)?;
        self.evidence.shows(format!(
            "volume {} (64 MiB, {}) is granted rw to host1 (CHAP) and ro to host2 (mutual CHAP)",
            self.volume, self.device
        ));
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        // host1's I/O is to fail within seconds once it is fenced; host2's is to outlive the storage node's reboot.
        self.host1.login(&self.target, PORTAL, Some(HOST1), 20)?.ok().context("host1 logs in")?;
        self.host2.login(&self.target, PORTAL_2, Some(HOST2), 120)?.ok().context("host2 logs in")?;
        self.disk1 = self.host1.disk(&self.target, PORTAL)?;
        self.disk2 = self.host2.disk(&self.target, PORTAL_2)?;
        let (naa1, naa2) = (self.host1.naa(&self.disk1)?, self.host2.naa(&self.disk2)?);
        check(naa1 == self.naa && naa2 == self.naa, || {
            format!("NAA {naa1} and {naa2} are not {}", self.naa)
        })?;
        self.evidence.shows(format!(
            "both hosts see NAA {} (host1: {}, portal {PORTAL}; host2: {}, portal {PORTAL_2})",
            self.naa, self.disk1, self.disk2
        ));
        Ok(())
    }

    fn share(&mut self) -> Result<()> {
        let out = self.host1.write_stamps(&self.disk1, &["--seconds", "3"])?.wait()?.ok()?;
        let last: serde_json::Value = out.stdout.lines().last().context("no progress")?.parse()?;
        let written = number(&last, "done")?;
        check(number(&last, "errors")? == 0 && written > 0, || format!("host1's writes: {last}"))?;
        let there: u64 = self.host2.read_stamps(&self.disk2)?.iter().sum();
        check(there == written, || format!("host1 wrote {written} stamps, host2 reads {there}"))?;
        self.proved.stamps_written = written;
        self.evidence
            .shows(format!("host1 wrote {written} stamps with O_DIRECT; host2 reads back all {there}"));
        Ok(())
    }

    fn read_only_is_real(&mut self) -> Result<()> {
        let vm = self.host2.vm;
        let write = vm.run(&[
            "dd",
            "if=/dev/zero",
            &format!("of={}", self.disk2),
            "bs=4096",
            "count=1",
            "oflag=direct",
        ])?;
        check(!write.status.success(), || "host2 wrote to a read-only disk".to_owned())?;
        let why = write.stderr.lines().next().unwrap_or_default().to_owned();
        self.evidence.shows(format!("host2's write is refused by its own kernel: {why}"));
        let generic = self.host2.generic(&self.disk2)?;
        vm.write("/run/zeros", &[0; 512], 0o600)?;
        let mut argv = vec!["sg_raw", "-s", "512", "-i", "/run/zeros", &generic];
        argv.extend(["2a", "00", "00", "00", "00", "00", "00", "00", "01", "00"]);
        let raw = vm.run(&argv)?;
        let said = format!("{}{}", raw.stdout, raw.stderr);
        check(!raw.status.success() && said.contains("Data Protect"), || {
            format!("a raw WRITE(10) of host2 was answered: {said}")
        })?;
        let sum: u64 = self.host2.read_stamps(&self.disk2)?.iter().sum();
        check(sum == self.proved.stamps_written, || "a refused write has changed the disk".to_owned())?;
        self.evidence.shows(format!(
            "a raw SCSI WRITE by SG_IO on {generic}, past the block layer, is refused by the target: DATA PROTECT; no byte changed"
        ));
        Ok(())
    }

    /// Puts a delay before every write of the volume's LV, or takes it away. The LV's own table is swapped: the export goes on.
    fn slow(&self, slow: bool) -> Result<()> {
        let table = if slow {
            format!("awk '{{print $1, $2, \"delay\", $4, $5, 0, $4, $5, {SLOW_MS}}}'")
        } else {
            "awk '{print $1, $2, \"linear\", $4, $5}'".to_owned()
        };
        let script = format!(
            "modprobe dm-delay; name=$(dmsetup info -c --noheadings -o name {0}); dmsetup table $name | {table} > /run/table; \
             dmsetup reload $name /run/table; dmsetup resume $name",
            self.device
        );
        self.site.storage()?.sh(&script)?.ok().context("swap the LV's table")?;
        Ok(())
    }

    /// Host1 writes through the slow backend; returns when all its writers are in flight.
    fn write_slowly(&self) -> Result<(Running, u64)> {
        self.slow(true)?;
        let writer = self.host1.write_stamps(&self.disk1, &["--threads", &WRITERS.to_string()])?;
        let in_flight = wait_for("8 writes of host1 in flight", Duration::from_secs(30), || {
            check(writer.is_running(), || format!("the writer has ended: {}", writer.stderr_so_far()))?;
            let shown = self.site.json(&["export", "show", &self.volume])?;
            let grants = shown["export"]["grants"].as_array().context("no grants")?;
            let mine = grants
                .iter()
                .find(|grant| grant["initiator"] == self.host1.iqn.as_str())
                .context("no grant of host1")?;
            let n = mine["sessions"][0]["in_flight"].as_u64().unwrap_or(0);
            Ok((n >= WRITERS).then_some(n))
        })?;
        Ok((writer, in_flight))
    }

    /// Runs `cut` on the storage node, reads the stamps as soon as it has returned and again when everything slow must have
    /// landed, in one script. Says what `cut` printed, and how many stamps landed after it.
    fn landed_after(&self, cut: &str) -> Result<(String, u64)> {
        let read = format!("{BIN}/mooring-stamp read {}", self.device);
        let wait = SLOW_MS * 3 / 1000;
        let out = self.site.storage()?.sh(&format!("{cut}; echo; {read}; sleep {wait}; {read}"))?.ok()?;
        let mut lines: Vec<&str> = out.stdout.trim_end().lines().collect();
        let (Some(after), Some(before)) = (lines.pop(), lines.pop()) else {
            bail!("no stamps in {}", out.stdout)
        };
        let (before, after) = (crate::site::sequences(before)?, crate::site::sequences(after)?);
        let landed = after.iter().sum::<u64>().saturating_sub(before.iter().sum());
        Ok((lines.join("\n"), landed))
    }

    fn force_detach(&mut self) -> Result<()> {
        let reader = self.host2.watch_stamps(&self.disk2)?;
        let (writer, in_flight) = self.write_slowly()?;
        let revoke = format!(
            "{BIN}/mooring --json export revoke {} --initiator {} --force",
            self.volume, self.host1.iqn
        );
        let (answer, landed) = self.landed_after(&revoke)?;
        let answer: serde_json::Value =
            serde_json::from_str(&answer).with_context(|| format!("the revoke answered {answer}"))?;
        let receipt = &answer["receipt"];
        check(receipt["proven"] == true, || format!("the receipt is not proven: {answer}"))?;
        check(landed == 0, || format!("{landed} stamps landed after a proven receipt"))?;
        let took = receipt["took_us"].as_i64().context("took_us")? / 1000;
        let cut = receipt["sessions_cut"].as_array().map_or(0, Vec::len);
        self.evidence.shows(format!(
            "host1 is force-detached with {in_flight} writes in flight in a backend of {SLOW_MS} ms: receipt `proven` after \
             {took} ms ({cut} session cut), 0 stamps landed in the {} s after it",
            SLOW_MS * 3 / 1000
        ));
        (self.proved.in_flight, self.proved.receipt_ms) = (in_flight, took);
        let gap = self.no_gap(reader, "the force detach")?;
        self.proved.longest_gap_ms = gap;
        writer.kill()?;
        // A login from scratch, not open-iscsi's recovery: the old session has to go first.
        self.host1.logout(&self.target)?;
        drop(writer.wait()?);
        let login = self.host1.login(&self.target, PORTAL, Some(HOST1), 20)?;
        check(login.status.code() == Some(24), || {
            format!("host1's login was answered {:?}: {}", login.status, login.stderr)
        })?;
        self.evidence.shows("host1 cannot log in again: iscsiadm exit 24, authorization failure".to_owned());
        self.slow(false)
    }

    /// Ends a reader, demands that it saw no error, and says its longest gap.
    fn no_gap(&mut self, reader: Running, during: &str) -> Result<u64> {
        let seen = progress(&reader)?;
        reader.kill()?;
        drop(reader.wait()?);
        check(number(&seen, "errors")? == 0, || format!("host2's reads during {during}: {seen}"))?;
        let gap = number(&seen, "longest_gap_ms")?;
        self.evidence.shows(format!(
            "host2 read on during {during}: {} reads, 0 errors, longest gap {gap} ms",
            number(&seen, "done")?
        ));
        Ok(gap)
    }

    fn reattach_host1(&mut self) -> Result<()> {
        self.grant(&self.host1, "rw", HOST1)?;
        self.host1.login(&self.target, PORTAL, Some(HOST1), 20)?.ok().context("host1 logs in again")?;
        self.disk1 = self.host1.disk(&self.target, PORTAL)?;
        Ok(())
    }

    /// The control: only unmapping must let stamps land. Were none seen, the proof above would prove nothing.
    fn control_only_unmaps(&mut self) -> Result<()> {
        self.reattach_host1()?;
        self.evidence.shows("host1 is granted again and logs in".to_owned());
        let (writer, in_flight) = self.write_slowly()?;
        let acl = format!("{TARGET}/iscsi/{}/tpgt_1/acls/{}", self.target, self.host1.iqn);
        let unmap = format!(
            "for link in $(find {acl}/lun_1 -maxdepth 1 -type l); do rm $link; done; rmdir {acl}/lun_1"
        );
        let (_, landed) = self.landed_after(&unmap)?;
        check(landed > 0, || {
            "control: no stamp landed after a mere unmapping, so the proof above proves nothing".to_owned()
        })?;
        self.evidence.shows(format!(
            "control: with {in_flight} writes in flight, unmapping alone lets {landed} stamps land after it"
        ));
        self.proved.landed_in_control = landed;
        writer.kill()?;
        self.slow(false)?;
        self.site.json(&["export", "revoke", &self.volume, "--initiator", &self.host1.iqn, "--force"])?;
        self.host1.logout(&self.target)?;
        drop(writer.wait()?);
        self.reattach_host1()
    }

    fn agent_killed(&mut self, agent: Running) -> Result<Running> {
        let (writer, reader) =
            (self.host1.write_stamps(&self.disk1, &[])?, self.host2.watch_stamps(&self.disk2)?);
        std::thread::sleep(Duration::from_secs(1));
        self.site.storage()?.sh("kill -9 $(pidof mooring-agent)")?.ok()?;
        drop(agent.wait()?);
        std::thread::sleep(Duration::from_secs(1));
        let agent = self.site.start_agent()?;
        let plan = self.site.json(&["plan"])?;
        check(plan["steps"].as_array().is_some_and(Vec::is_empty), || {
            format!("after its restart the agent wants to do: {plan}")
        })?;
        std::thread::sleep(Duration::from_secs(1));
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0 && number(&seen, "done")? > 0, || {
            format!("host1's writes: {seen}")
        })?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "agent killed with -9 and started again: host1 wrote on ({} writes, 0 errors, longest gap {} ms), nothing left to plan",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        self.no_gap(reader, "the agent's crash")?;
        Ok(agent)
    }

    fn power_cut(&mut self, agent: Running) -> Result<Running> {
        let (writer, reader) =
            (self.host1.write_stamps(&self.disk1, &[])?, self.host2.watch_stamps(&self.disk2)?);
        std::thread::sleep(Duration::from_secs(1));
        let storage = self.site.storage()?;
        let before = number(&progress(&writer)?, "done")?;
        let cut = Instant::now();
        storage.power_cut()?;
        drop(agent);
        storage.boot()?;
        self.site.after_boot()?;
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
        let (at, until) = (number(&progress(&reader)?, "done")?, Duration::from_mins(1));
        wait_for("both hosts to go on", until, || {
            let (write, read) = (progress(&writer)?, progress(&reader)?);
            Ok((number(&write, "done")? > before + 100 && number(&read, "done")? > at + 100).then_some(()))
        })?;
        let write = progress(&writer)?;
        check(number(&write, "errors")? == 0, || format!("host1's writes over the power cut: {write}"))?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "host1 goes on: {} writes, 0 errors, longest gap {:.1} s",
            number(&write, "done")?,
            Duration::from_millis(number(&write, "longest_gap_ms")?).as_secs_f64()
        ));
        self.no_gap(reader, "the power cut")?;
        Ok(agent)
    }

    fn remove_everything(&mut self) -> Result<()> {
        self.host1.logout(&self.target)?;
        self.host2.logout(&self.target)?;
        for host in [&self.host1, &self.host2] {
            let revoked = self.site.json(&["export", "revoke", &self.volume, "--initiator", &host.iqn])?;
            check(revoked["receipt"]["proven"] == true, || format!("revoke: {revoked}"))?;
        }
        let deleted = self.site.json(&["volume", "delete", &self.volume])?;
        check(deleted["done"] == true, || format!("delete: {deleted}"))?;
        self.site.nothing_left()?;
        self.evidence
            .shows("everything revoked and deleted: no target, no backstore, no LV is left".to_owned());
        Ok(())
    }
}

/// Force-detaches many times with writes in flight, each time with the proof that nothing lands afterwards.
pub fn soak(programs: &Programs, trials: u32) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("soak"), programs)?;
    let agent = site.start_agent()?;
    let mut demo = Demo::new(&site)?;
    demo.create_and_grant()?;
    demo.attach()?;
    for trial in 1..=trials {
        if trial > 1 {
            demo.reattach_host1()?;
        }
        demo.force_detach().with_context(|| format!("trial {trial} of {trials}"))?;
        println!(
            "trial {trial} of {trials}: proven, nothing landed, survivor's longest gap {} ms",
            demo.proved.longest_gap_ms
        );
    }
    demo.control_only_unmaps()?;
    demo.remove_everything()?;
    agent.kill()?;
    site.rig.check_consoles()
}

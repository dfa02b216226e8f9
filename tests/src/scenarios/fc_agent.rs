//! The agent over Fibre Channel on a real kernel: one volume, one host over Fibre Channel, one over
//! both transports, ro enforced, and a force detach with writes in flight beside the control
//! without which it would prove nothing.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running, Vm};
use serde_json::Value;

use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::fibre;
use crate::initiator::Host;
use crate::site::{BIN, Programs, Site, TARGET, number, progress};
use crate::slow::{self, SLOW_MS, WRITERS};

const PORTAL: &str = "10.10.0.10:3260";
pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("agent-fc"), programs)?;
    let result = Scene::make(&site).and_then(|mut scene| scene.play());
    site.end(result)
}

struct Scene<'a> {
    site: &'a Site,
    evidence: Evidence,
    agent: Running,
    one: &'a Vm,
    two: &'a Vm,
    /// The volume's id and its device on the storage node.
    volume: String,
    device: String,
}

impl<'a> Scene<'a> {
    /// Lets the agent make the port a target before a host meets it.
    fn make(site: &'a Site) -> Result<Self> {
        let (storage, one, two) = (site.storage()?, site.rig.vm("host1")?, site.rig.vm("host2")?);
        let mut evidence = Evidence::default();
        site.uses(&["mooring-fc-grants"])?;
        fibre::prepare(storage, "tcm_fc")?;
        fibre::open_port(storage)?;
        let agent = site.start_agent_with("[fibre_channel]")?;
        let port = format!("fc/{}", fibre::port_name(storage)?);
        wait_for("the agent to report its port", Duration::from_mins(1), || {
            let shown = site.json(&["agent", "show"])?;
            let transports = shown["transports"].as_array().context("transports")?;
            let fc = transports.iter().find(|it| it["protocol"] == "fc").context("no transport fc")?;
            Ok((fc["ready"] == true && fc["portals"][0] == port.as_str()).then_some(()))
        })?;
        evidence.shows(format!("found by itself and made a target: {port}"));
        for host in [one, two] {
            fibre::prepare(host, "sd_mod sg")?;
        }
        let created = site.json(&["volume", "create", "data", "--size", "16MiB"])?;
        let text = |name: &str| created["volume"][name].as_str().map(str::to_owned).context("a text");
        let (volume, device) = (text("id")?, text("device")?);
        Ok(Self { site, evidence, agent, one, two, volume, device })
    }

    /// Grants over Fibre Channel to host1 and host2, each with its mode; `None`: no grant.
    fn grant(&self, one: Option<&str>, two: Option<&str>) -> Result<Value> {
        let mut argv = vec![format!("{BIN}/mooring-fc-grants"), self.volume.clone()];
        for (slot, (host, mode)) in [(self.one, one), (self.two, two)].into_iter().enumerate() {
            if let Some(mode) = mode {
                argv.push(format!("{},{},1,{mode}", fibre::port_name(host)?, slot + 1));
            }
        }
        let out = self.site.storage()?.command(argv).timeout(Duration::from_mins(6)).run()?.ok()?;
        let answer: Value = serde_json::from_str(&out.stdout).with_context(|| out.stdout.clone())?;
        check(answer["done"] == true, || format!("not seen in the kernel: {answer}"))?;
        Ok(answer)
    }

    fn play(&mut self) -> Result<()> {
        let iscsi = Host::start(self.two)?;
        let granted =
            self.site.json(&["export", "grant", "data", "--initiator", &iscsi.iqn, "--mode", "ro"])?;
        let target = granted["target"].as_str().context("target")?.to_owned();
        self.grant(Some("rw"), Some("ro"))?;
        // tcm_fc refuses a login that comes before its ACL, and the host does not retry by itself.
        fibre::open_port(self.one)?;
        fibre::open_port(self.two)?;
        let (writer, reader) = (fibre::disk(self.one, 1)?, fibre::disk(self.two, 1)?);
        iscsi.login(&target, PORTAL, None, 10)?.ok()?;
        let third = iscsi.disk(&target, PORTAL)?;
        self.both(&writer, &reader, &third)?;
        self.modes(&reader)?;
        let watcher = third.watch_stamps()?;
        self.control(&writer)?;
        self.force(&writer)?;
        let seen = progress(&watcher)?;
        check(number(&seen, "errors")? == 0, || format!("the reader over iSCSI saw an error: {seen}"))?;
        self.evidence.shows(format!(
            "the reader over iSCSI: {} reads, no error, longest gap {} ms",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        watcher.kill()?;
        drop(watcher.wait()?);
        self.leave(&iscsi, &target)
    }

    /// One volume over both transports, each host with its granted mode.
    fn both(&mut self, writer: &Disk<'_>, reader: &Disk<'_>, third: &Disk<'_>) -> Result<()> {
        let written = writer.write_stamps(&["--threads", "4", "--seconds", "2"])?.wait()?.ok()?;
        let stamps = writer.read_stamps()?;
        for disk in [reader, third] {
            check(disk.read_stamps()? == stamps && disk.naa()? == writer.naa()?, || {
                format!("{} on {} shows another volume: {}", disk.path, disk.vm.name(), written.stdout)
            })?;
        }
        self.evidence
            .shows("one volume: written over Fibre Channel, the same read over Fibre Channel and over iSCSI");
        let raw = reader.write_raw()?;
        check(raw.contains("Data Protect") && writer.read_stamps()? == stamps, || {
            format!("a raw WRITE of the host that may only read: {raw}")
        })?;
        self.evidence.shows("ro over Fibre Channel: the target refuses a raw SCSI WRITE (Data Protect)");
        let copies = format!("cat {TARGET}/core/*/{}/attrib/emulate_3pc", self.volume);
        let copies = self.site.storage()?.sh(&copies)?.ok()?;
        check(copies.line() == "0", || format!("the volume takes EXTENDED COPY: {}", copies.stdout))?;
        Ok(())
    }

    /// Read-write and read-only again, under a live login and while the host reads.
    fn modes(&mut self, disk: &Disk<'_>) -> Result<()> {
        let watcher = disk.watch_stamps()?;
        let mut took = Vec::new();
        for (mode, word) in [("rw", "Good"), ("ro", "Data Protect"), ("rw", "Good"), ("ro", "Data Protect")] {
            let answer = self.grant(Some("rw"), Some(mode))?;
            check(answer["receipts"].as_array().is_some_and(Vec::is_empty), || {
                format!("a change of the mode ended a nexus: {answer}")
            })?;
            let raw = disk.write_raw()?;
            check(raw.contains(word), || format!("a raw WRITE after the change to {mode}: {raw}"))?;
            took.push(format!("{mode} in {} us", number(&answer, "seen_us")?));
        }
        let seen = progress(&watcher)?;
        check(number(&seen, "errors")? == 0, || format!("host2's reads saw an error: {seen}"))?;
        drop((watcher.kill()?, watcher.wait()?));
        self.evidence.shows(format!(
            "read-write and read-only again over Fibre Channel, without a new login, as a raw WRITE shows each time: {}",
            took.join(", ")
        ));
        Ok(())
    }

    fn stop(&self, writer: &Running) -> Result<()> {
        writer.kill()?;
        self.site.delay_writes(&self.device, None)
    }

    /// Control: only unmapping by hand lets writes in flight land.
    fn control(&mut self, disk: &Disk<'_>) -> Result<()> {
        let writer = slow::write(self.site, &self.device, disk)?;
        let port = fibre::port_name(self.site.storage()?)?;
        let mapped = format!("{TARGET}/fc/{port}/tpgt_1/acls/{}/lun_1", fibre::port_name(self.one)?);
        let unmap = format!("find {mapped} -maxdepth 1 -type l -delete");
        let landed = slow::landed_after_unmapping(self.site, &self.device, &unmap)?;
        self.stop(&writer)?;
        self.evidence.shows(format!("the control: unmapping alone let {landed} stamps land"));
        self.grant(Some("rw"), Some("ro"))?;
        // A host that asked in between takes its disk for empty.
        let name = disk.path.rsplit('/').next().unwrap_or_default();
        wait_for("host1 to see its disk again", Duration::from_secs(30), || {
            let out = disk.vm.sh(&format!("cd /sys/block/{name}; echo 1 > device/rescan; cat size"))?;
            Ok((out.status.success() && out.line() != "0").then_some(()))
        })
    }

    fn force(&mut self, disk: &Disk<'_>) -> Result<()> {
        let writer = slow::write(self.site, &self.device, disk)?;
        let answer = self.grant(None, Some("ro"))?;
        let before = self.site.stamps_on_storage(&self.device)?;
        let Some(receipt) = answer["receipts"].get(0) else { bail!("no receipt: {answer}") };
        let victim = fibre::port_name(self.one)?;
        check(receipt["proven"] == true && receipt["initiator"] == victim.as_str(), || {
            format!("the receipt: {receipt}")
        })?;
        // Wait longer than any write takes: everything that could land would.
        std::thread::sleep(Duration::from_millis(3 * SLOW_MS));
        let after = self.site.stamps_on_storage(&self.device)?;
        check(before == after, || format!("stamps landed after the receipt: {before:?} {after:?}"))?;
        self.stop(&writer)?;
        self.evidence.shows(format!(
            "force detach over Fibre Channel with {WRITERS} writes in flight: proven after {} ms, no stamp after it",
            number(receipt, "took_us")? / 1000
        ));
        Ok(())
    }

    fn leave(&mut self, iscsi: &Host<'_>, target: &str) -> Result<()> {
        iscsi.logout(target)?;
        self.site.json(&["export", "revoke", "data", "--initiator", &iscsi.iqn])?;
        let answer = self.grant(None, None)?;
        check(answer["receipts"][0]["proven"] == true, || format!("the last receipt: {answer}"))?;
        self.site.json(&["volume", "delete", "data"])?;
        let left = self
            .site
            .storage()?
            .sh(&format!("ls -d {TARGET}/fc/*/tpgt_1/lun/lun_* {TARGET}/fc/*/tpgt_1/acls/* 2>/dev/null"))?;
        check(left.stdout.trim().is_empty(), || format!("left in the port: {}", left.stdout))?;
        self.site.nothing_left()?;
        self.evidence.shows("all revoked and deleted: nothing is left in the port, in the target, in LVM");
        self.agent.kill()
    }
}

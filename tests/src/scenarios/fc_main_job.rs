//! The main job over Fibre Channel on real kernels: the controller, a storage agent, and two hosts
//! as python-cinderclient attaches them. It shows rw and ro of one volume, a native iSCSI
//! attachment beside them, and a second volume on a host that is logged in. It ends with a force
//! detach under writes that its survivors do not notice.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running, Vm};
use serde_json::{Value, json};

use crate::clients::Cinder;
use crate::control::{Control, PORT, TOKEN, attachment_of};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::fibre;
use crate::native::text;
use crate::site::{GROUP, Programs, Site, TARGET, number, progress};
use crate::slow::{self, WRITERS};

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("fc-main-job").forward(PORT), programs)?;
    let result = Scene::make(&site).and_then(|mut scene| {
        let played = scene.play();
        if played.is_err() {
            eprintln!("--- controller:\n{}", scene.control.controller_log());
        }
        played
    });
    site.end(result)
}

/// A site whose storage node serves Fibre Channel, with a controller, and two stock hosts whose
/// ports are still down.
pub(super) struct Scene<'a> {
    pub(super) site: &'a Site,
    pub(super) evidence: Evidence,
    pub(super) agent: Running,
    pub(super) control: Control<'a>,
    pub(super) cinder: Cinder,
    pub(super) one: &'a Vm,
    pub(super) two: &'a Vm,
}

/// An attachment of a stock host.
pub(super) struct Attached {
    pub(super) id: String,
    pub(super) lun: u16,
}

/// The LV of a volume.
pub(super) fn device(volume: &str) -> String {
    format!("/dev/{GROUP}/mooring-{volume}")
}

/// The controller's name of a stock host.
pub(super) fn stock_name(host: &Vm) -> String {
    format!("{}-stock", host.name())
}

/// A port's name as sysfs and connectors write it.
fn digits(port: &str) -> String {
    port.replace(':', "")
}

impl<'a> Scene<'a> {
    /// Lets the agent make the port a target before a host meets it.
    pub(super) fn make(site: &'a Site) -> Result<Self> {
        let (storage, one, two) = (site.storage()?, site.rig.vm("host1")?, site.rig.vm("host2")?);
        let mut evidence = Evidence::default();
        fibre::prepare(storage, "tcm_fc")?;
        fibre::open_port(storage)?;
        let agent = site.start_agent_with("[fibre_channel]")?;
        wait_for("the agent to serve its port", Duration::from_mins(1), || {
            let shown = site.json(&["agent", "show"])?;
            let transports = shown["transports"].as_array().context("transports")?;
            Ok(transports.iter().any(|it| it["protocol"] == "fc" && it["ready"] == true).then_some(()))
        })?;
        // Each machine is an enrolled host and, under another name, a stock one, with one port for
        // both.
        let mut control = Control::prepare_with(site, "[attach]\nshared_initiators = true\n")?;
        control.start()?;
        for host in [one, two] {
            fibre::prepare(host, "sd_mod sg")?;
        }
        let words = ["type", "create", "fc", "--multiattach", "--spec", "storage_protocol=FC"];
        control.json(&words)?;
        let cinder = Cinder::new(&format!("http://{}/v3", storage.forwarded(PORT)?), TOKEN)?;
        evidence.shows("a type with storage_protocol=FC finds the node that serves Fibre Channel");
        Ok(Self { site, evidence, agent, control, cinder, one, two })
    }

    /// Attaches as Nova does, with os-brick's connector of the host, and checks the connection
    /// info.
    pub(super) fn attach(&self, volume: &str, host: &Vm, mode: &str) -> Result<Attached> {
        let port = digits(&fibre::port_name(host)?);
        let connector = json!({
            "wwpns": [port], "wwnns": [port.replacen("20", "10", 1)], "host": stock_name(host),
            "ip": "10.10.0.12", "multipath": false, "os_type": "linux", "platform": "x86_64",
        });
        let made = self.cinder.call(&["connect", volume, &connector.to_string(), mode])?;
        let info = &made["connection_info"];
        let target = digits(&fibre::port_name(self.site.storage()?)?);
        let map = json!({ port: [target] });
        check(
            info["driver_volume_type"] == "fibre_channel"
                && info["target_wwn"] == json!([target])
                && info["initiator_target_map"] == map
                && info["access_mode"] == mode,
            || format!("{} is told: {info}", host.name()),
        )?;
        let lun =
            info["target_lun"].as_u64().and_then(|lun| u16::try_from(lun).ok()).context("target_lun")?;
        Ok(Attached { id: text(&made, "id")?.to_owned(), lun })
    }

    fn play(&mut self) -> Result<()> {
        let (data, more) =
            (self.control.volume("data", Some("fc"))?, self.control.volume("more", Some("fc"))?);
        let writes = self.attach(&data, self.one, "rw")?;
        let reads = self.attach(&data, self.two, "ro")?;
        // tcm_fc refuses a login that comes before its ACL, and the host does not retry by itself.
        fibre::open_port(self.one)?;
        fibre::open_port(self.two)?;
        let (writer, reader) = (fibre::disk(self.one, writes.lun)?, fibre::disk(self.two, reads.lun)?);
        self.both(&writer, &reader)?;
        let beside = self.beside_iscsi(&data, &reader)?;
        let own = self.control.volume("own", Some("fc"))?;
        self.natively(&own)?;
        let other = self.attach(&more, self.one, "rw")?;
        check(other.lun != writes.lun, || format!("two volumes as LUN {}", other.lun))?;
        fibre::scan(self.one, other.lun)?;
        let second = fibre::disk(self.one, other.lun)?;
        check(second.naa()? != writer.naa()?, || "one disk under two numbers".to_owned())?;
        self.evidence.shows(format!(
            "a second volume on a host that is logged in: LUN {} beside LUN {}, found by a scan of that LUN",
            other.lun, writes.lun
        ));
        self.needs_a_line_feed(&second)?;
        self.force(&data, &writes.id, &writer, &reader, &second)?;
        self.control_only_unmaps(&more, other.lun, &second)?;
        self.leave(&[&reads.id, &other.id], &beside, &[data, more, own])
    }

    /// One volume, each host with its granted mode.
    fn both(&mut self, writer: &Disk<'_>, reader: &Disk<'_>) -> Result<()> {
        let written = writer.write_stamps(&["--threads", "4", "--seconds", "2"])?.wait()?.ok()?;
        let stamps = writer.read_stamps()?;
        check(reader.read_stamps()? == stamps && reader.naa()? == writer.naa()?, || {
            format!("{} on host2 shows another volume: {}", reader.path, written.stdout)
        })?;
        let raw = reader.write_raw()?;
        check(raw.contains("Data Protect") && writer.read_stamps()? == stamps, || {
            format!("a raw WRITE of the host that may only read: {raw}")
        })?;
        self.evidence.shows(
            "python-cinderclient attaches one volume to two hosts over Fibre Channel: written on host1, read on host2, whose raw \
             SCSI WRITE the target refuses (Data Protect)",
        );
        Ok(())
    }

    /// Attaches the same volume natively over iSCSI.
    fn beside_iscsi(&mut self, volume: &str, reader: &Disk<'_>) -> Result<String> {
        let words = ["attach", volume, "--host", "host2", "--mode", "ro", "--transport", "iscsi"];
        let refused = self.control.mooring(&words)?;
        let said = format!("{}{}", refused.stdout, refused.stderr);
        check(!refused.status.success() && said.contains("no common transport"), || {
            format!("a host over iSCSI and a type that wants Fibre Channel: {said}")
        })?;
        // The type only decides how new attachments come: give the volume a type that leaves it
        // open.
        self.control.json(&["type", "create", "any", "--multiattach"])?;
        self.cinder.call(&["retype", volume, "any"])?;
        let live = self.control.attach(volume, "host2", "ro")?;
        let disk = Disk::new(self.two, text(&live, "device_path")?);
        check(disk.naa()? == reader.naa()? && disk.read_stamps()? == reader.read_stamps()?, || {
            format!("another volume: {live}")
        })?;
        self.evidence.shows("refused over iSCSI while its type wants Fibre Channel; after a retype natively over iSCSI at once");
        Ok(text(&live, "id")?.to_owned())
    }

    /// Attaches natively: the controller drives the hosts, which scan one LUN and remove one disk.
    /// The other disks of both ports stay as they are.
    fn natively(&mut self, volume: &str) -> Result<()> {
        for host in ["host1", "host2"] {
            wait_for("the controller to know the host's port", Duration::from_mins(1), || {
                let shown = self.control.json(&["host", "show", host])?;
                let shown = if shown["host"].is_object() { &shown["host"] } else { &shown };
                Ok(shown["report"]["fc_initiator_ports"][0].is_string().then_some(()))
            })?;
        }
        let disks = |vm: &Vm| Ok::<_, anyhow::Error>(vm.sh("ls /sys/class/scsi_device")?.ok()?.stdout);
        let before = (disks(self.one)?, disks(self.two)?);
        let over = |host: &str, mode: &str| {
            let words = ["attach", volume, "--host", host, "--mode", mode, "--transport", "fc"];
            Ok::<_, anyhow::Error>(attachment_of(self.control.json(&words)?))
        };
        let (writes, reads) = (over("host1", "rw")?, over("host2", "ro")?);
        let writer = Disk::new(self.one, text(&writes, "device_path")?);
        let reader = Disk::new(self.two, text(&reads, "device_path")?);
        check(writes["transport"] == "fc" && writer.naa()? == reader.naa()?, || {
            format!("attached: {writes}")
        })?;
        writer.write_stamps(&["--seconds", "1"])?.wait()?.ok()?;
        let stamps = writer.read_stamps()?;
        check(reader.read_stamps()? == stamps, || "host2 shows another volume".to_owned())?;
        let raw = reader.write_raw()?;
        check(raw.contains("Data Protect") && reader.read_stamps()? == stamps, || {
            format!("a raw WRITE of the host that may only read: {raw}")
        })?;
        self.control.json(&["detach", text(&writes, "id")?])?;
        check(disks(self.one)? == before.0 && reader.read_stamps()? == stamps, || {
            "host1 is detached: its disks are not as before, or host2 does not read any more".to_owned()
        })?;
        self.evidence.shows(format!(
            "natively over Fibre Channel, rw and ro in {} and {} ms: read on host2 as written on host1, its raw WRITE refused \
             (Data Protect); host1 is detached, and has the SCSI devices that it had before",
            writes["steps_ms"]["done"], reads["steps_ms"]["done"]
        ));
        self.force_natively(volume, &over("host1", "rw")?, &reader)?;
        wait_for("host1 to have the SCSI devices that it had before", Duration::from_secs(30), || {
            Ok((disks(self.one)? == before.0).then_some(()))
        })?;
        self.control.json(&["detach", text(&reads, "id")?])?;
        check(disks(self.two)? == before.1, || "host2's disks are not as before".to_owned())
    }

    /// The removal of a disk whose target does not answer depends on this.
    fn needs_a_line_feed(&mut self, disk: &Disk<'_>) -> Result<()> {
        let name = disk.name()?;
        let name = name.rsplit('/').next().unwrap_or_default();
        let state = format!("/sys/block/{name}/device/state");
        let without = disk.vm.sh(&format!("printf offline > {state}"))?;
        check(without.ok().is_err(), || "a word without a line feed was taken".to_owned())?;
        disk.read_stamps()?;
        disk.vm.sh(&format!("echo offline > {state}"))?.ok()?;
        check(disk.read_stamps().is_err(), || "a disk that is offline was read".to_owned())?;
        disk.vm.sh(&format!("echo running > {state}"))?.ok()?;
        disk.read_stamps()?;
        self.evidence.shows("the kernel takes `offline` for a disk's state with a line feed only");
        Ok(())
    }

    /// A host with an agent is forced off with writes in flight: they fail there, and its agent
    /// removes the disk. The other host reads on.
    fn force_natively(&mut self, volume: &str, writes: &Value, reader: &Disk<'_>) -> Result<()> {
        let writer = Disk::new(self.one, text(writes, "device_path")?);
        let elsewhere = reader.watch_stamps()?;
        let victims = self.cut(volume, text(writes, "id")?, &writer)?;
        let revoked = Instant::now();
        let failed = wait_for("host1's writes to fail", Duration::from_mins(1), || {
            let seen = progress(&victims)?;
            Ok((number(&seen, "errors")? > 0).then_some(seen))
        })?;
        let after = revoked.elapsed().as_millis();
        drop((victims.kill()?, victims.wait()?));
        let seen = progress(&elsewhere)?;
        check(number(&seen, "errors")? == 0, || format!("host2 saw an error: {seen}"))?;
        drop((elsewhere.kill()?, elsewhere.wait()?));
        self.evidence.shows(format!(
            "host1 is force-detached where it is attached natively: receipt `proven`, no stamp after it, {} errors {after} ms \
             after the receipt in the place of a hang, its disk removed by its agent; host2: {} reads, no error, longest gap {} ms",
            number(&failed, "errors")?,
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        Ok(())
    }

    /// Force-detaches host1 with writes in flight: the receipt is proven, and no stamp lands after
    /// the answer. Returns its writers, which still run.
    fn cut(&self, volume: &str, id: &str, writer: &Disk<'_>) -> Result<Running> {
        let victims = slow::write(self.site, &device(volume), writer)?;
        let receipt = slow::force_detach(self.site, &device(volume), id)?;
        let victim = fibre::port_name(self.one)?;
        check(receipt["initiator"] == victim.as_str(), || format!("the receipt: {receipt}"))?;
        self.site.delay_writes(&device(volume), None)?;
        Ok(victims)
    }

    /// Forces the first volume off host1; the host's other volume and the other host notice
    /// nothing.
    fn force(
        &mut self,
        volume: &str,
        id: &str,
        writer: &Disk<'_>,
        reader: &Disk<'_>,
        second: &Disk<'_>,
    ) -> Result<()> {
        let (elsewhere, here) = (reader.watch_stamps()?, second.write_stamps(&["--threads", "2"])?);
        let victims = self.cut(volume, id, writer)?;
        victims.kill()?;
        for (what, running) in
            [("host2, reading the volume", &elsewhere), ("host1, writing its other volume", &here)]
        {
            let seen = progress(running)?;
            check(number(&seen, "errors")? == 0, || format!("{what}, saw an error: {seen}"))?;
            self.evidence.shows(format!(
                "{what}: {} done, no error, longest gap {} ms",
                number(&seen, "done")?,
                number(&seen, "longest_gap_ms")?
            ));
            running.kill()?;
        }
        drop((elsewhere.wait()?, here.wait()?));
        self.evidence.shows(format!(
            "host1 is force-detached by the controller with {WRITERS} writes in flight: receipt `proven` for its port, no stamp \
             after it"
        ));
        Ok(())
    }

    /// Control without which it would prove nothing: only unmapping by hand.
    fn control_only_unmaps(&mut self, volume: &str, lun: u16, disk: &Disk<'_>) -> Result<()> {
        let landed = fibre::landed_after_unmapping(self.site, self.one, &device(volume), lun, disk)?;
        self.evidence.shows(format!("the control: unmapping alone let {landed} stamps land"));
        Ok(())
    }

    fn leave(&mut self, over_fc: &[&String], beside: &str, volumes: &[String]) -> Result<()> {
        self.control.json(&["detach", beside])?;
        for id in over_fc {
            self.cinder.call(&["delete", id])?;
        }
        for volume in volumes {
            self.control.json(&["volume", "delete", volume, "--timeout", "120"])?;
        }
        let left = self
            .site
            .storage()?
            .sh(&format!("ls -d {TARGET}/fc/*/tpgt_1/lun/lun_* {TARGET}/fc/*/tpgt_1/acls/* 2>/dev/null"))?;
        check(left.stdout.trim().is_empty(), || format!("left in the port: {}", left.stdout))?;
        self.site.nothing_left()?;
        self.evidence.shows("all detached and deleted: nothing is left in the port, in the target, in LVM");
        self.agent.kill()
    }
}

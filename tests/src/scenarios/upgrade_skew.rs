//! An upgrade from an earlier commit's packages, machine after machine, under systemd and while a
//! host writes: a controller, a storage node and two hosts. First a new agent beside the old
//! controller, then the new controller over the old agents, then all of them new.
//!
//! What must never happen here: a step that both versions do because one of them was not running:
//! each step asks which runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{Rig, Running, Vm};
use serde_json::Value;

use super::installed::{INIT, versions};
use super::packaged;
use crate::control::{Control, attachment_of};
use crate::disk::Disk;
use crate::earlier;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::packages::VARIANTS;
use crate::site::{GROUP, Programs, TARGET, goes_on, going, number, progress};

/// Version of this tree's packages; that of the earlier ones is [`earlier::VERSION`].
const NEW: &str = "0.0.2";

/// Time limit for each script: dpkg is slow where the processor is emulated.
const LIMIT: Duration = Duration::from_mins(10);

/// The beginning of each command to the controller.
const MOORING: &str = "mooring --token-file /root/token --json";

/// Options of a writer that leaves the emulated processor to dpkg.
const PACED: [&str; 4] = ["--threads", "2", "--every-ms", "20"];

/// Size of the second storage node's disk, which is on a host.
const DISK: u64 = 6 << 30;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let old = earlier::packages()?;
    let agent = programs.path("mooring-agent")?;
    let folder = agent.parent().context("the folder of the programs")?;
    // On the same file system, because cargo-deb gets links to the programs.
    let work = tempfile::tempdir_in(folder).context("make a folder for the packages")?;
    let new = versions(folder, work.path(), &[NEW])?.pop().context("this tree's packages")?;
    let mut options = packaged::machines("upgrade-skew", 2);
    if let Some(host2) = options.vms.last_mut() {
        host2.disks = vec![DISK];
    }
    let rig = Rig::up(programs.show_in(options)?)?;
    let played = Machines::new(&rig).and_then(|mut machines| {
        for (version, debs) in [(earlier::VERSION, &old), (NEW, &new)] {
            push(&rig, version, debs)?;
        }
        machines.play()
    });
    packaged::ended(&rig, played)
}

/// Copies the packages of a version to all machines.
fn push(rig: &Rig, version: &str, debs: &[PathBuf]) -> Result<()> {
    for vm in rig.vms() {
        vm.sh(&format!("rm -f /usr/sbin/policy-rc.d; mkdir -p /root/{version}"))?.ok()?;
        for ((name, _), deb) in VARIANTS.iter().zip(debs) {
            vm.push(Path::new(deb), &format!("/root/{version}/{name}.deb"), 0o644)?;
        }
    }
    Ok(())
}

struct Machines<'a> {
    /// The storage node, which is also the controller.
    storage: &'a Vm,
    host1: &'a Vm,
    /// The host with a volume group of its own.
    host2: &'a Vm,
    evidence: Evidence,
}

fn sh(vm: &Vm, script: &str) -> Result<String> {
    let out = vm.command(["sh", "-euc", script]).timeout(LIMIT).run()?.ok();
    Ok(out.with_context(|| format!("on {}", vm.name()))?.stdout)
}

/// Installs or upgrades these packages.
fn dpkg(vm: &Vm, version: &str, names: &[&str]) -> Result<()> {
    let files: Vec<_> = names.iter().map(|name| format!("/root/{version}/{name}.deb")).collect();
    sh(vm, &format!("dpkg --force-unsafe-io -i {} 2>&1", files.join(" "))).map(drop)
}

/// Checks which version runs on a machine, by its packages, and that no process runs a replaced
/// program.
fn runs(vm: &Vm, package: &str, version: &str) -> Result<()> {
    let said = sh(
        vm,
        &format!(
            "dpkg-query -W -f '${{Version}}\n' {package}; \
             for pid in $(pgrep '^mooring-(agent|sessiond|control)'); do readlink /proc/$pid/exe; done"
        ),
    )?;
    let mut lines = said.lines();
    let right = lines.next() == Some(version) && lines.all(|program| !program.ends_with("(deleted)"));
    check(right, || format!("{} should run {package} {version}: {said}", vm.name()))
}

/// Checks that a writer has seen no error and continues.
fn fine(writer: &Running) -> Result<String> {
    goes_on(writer)?;
    let seen = progress(writer)?;
    check(number(&seen, "errors")? == 0, || format!("the writer saw an error: {seen}"))?;
    Ok(format!(
        "{} writes, no error, longest gap {} ms",
        number(&seen, "done")?,
        number(&seen, "longest_gap_ms")?
    ))
}

impl<'a> Machines<'a> {
    fn new(rig: &'a Rig) -> Result<Self> {
        let (storage, host1, host2) = (rig.vm("storage")?, rig.vm("host1")?, rig.vm("host2")?);
        Ok(Self { storage, host1, host2, evidence: Evidence::default() })
    }

    fn play(&mut self) -> Result<()> {
        self.install()?;
        let live = attachment_of(self.mooring("attach data --host host1 --timeout 240")?);
        let disk = Disk::new(self.host1, text(&live, "device_path")?);
        let writer = disk.write_stamps(&PACED)?;
        going(&writer)?;
        let secret = self.secret()?;
        let clear = self.clear(&secret)?;
        check(clear == "controller agent", || format!("the control: secrets in clear are in: {clear:?}"))?;
        self.agent_first(&writer)?;
        self.controller_first(&writer, &secret)?;
        self.agents(&writer, &secret)?;
        self.ready_soon(text(&live, "id")?)?;
        drop((writer.kill()?, writer.wait()?));
        let stamps = disk.read_stamps()?.len();
        check(stamps > 0, || "the disk has no stamps".to_owned())?;
        self.mooring("detach data --host host1 --timeout 240")?;
        self.mooring("volume delete data --timeout 240")?;
        let left = sh(
            self.storage,
            &format!("find {TARGET}/iscsi -maxdepth 1 -name 'iqn*'; lvs --noheadings -o lv_name {GROUP}"),
        )?;
        check(left.trim().is_empty(), || format!("left behind: {left}"))?;
        self.evidence
            .shows(format!("detached with {stamps} stamps on it and deleted: nothing of it is left"));
        Ok(())
    }

    /// Makes everything with the earlier commit's packages.
    fn install(&mut self) -> Result<()> {
        let old = earlier::VERSION;
        let first = self.storage.data_disks();
        let disk = first.first().context("a data disk")?;
        sh(self.storage, &format!("vgcreate -q {GROUP} {disk}"))?;
        dpkg(self.storage, old, &["mooring-controller", "mooring-agent", "mooring"])?;
        sh(self.storage, INIT)?;
        for host in [self.host1, self.host2] {
            dpkg(host, old, &["mooring-agent", "mooring"])?;
        }
        self.join(self.storage, "storage", &format!("--group {GROUP} --portal {}", self.storage.ip(0)))?;
        self.join(self.host1, "host", "")?;
        self.up_soon(2)?;
        self.mooring("type create near --multiattach --spec RESKEY:availability_zones=nova")?;
        self.mooring("type create far --multiattach --spec RESKEY:availability_zones=far")?;
        self.mooring("volume create data --size 1GiB --type near --timeout 240")?;
        self.evidence.shows(format!("a controller, a storage node and a host of {}", earlier::COMMIT));
        Ok(())
    }

    fn join(&self, vm: &Vm, role: &str, how: &str) -> Result<()> {
        let zone = if vm.name() == "host2" { "--zone far" } else { "" };
        let roles = role.replace('+', " --role ");
        let token = self.mooring(&format!("host token {} --role {roles} {zone}", vm.name()))?;
        // An earlier `join` takes a token that begins with a dash only in this way.
        let line = text(&token, "command")?.replace("--token ", "--token=");
        sh(
            vm,
            &format!(
                "modprobe -a iscsi_tcp target_core_iblock iscsi_target_mod; {line} --address {}:7710 {how}",
                vm.ip(0)
            ),
        )
        .map(drop)
    }

    /// Runs `mooring --json` on the controller's machine.
    fn mooring(&self, words: &str) -> Result<Value> {
        let out = sh(self.storage, &format!(". /root/env; {MOORING} {words}"))?;
        serde_json::from_str(&out).with_context(|| format!("`mooring {words}` answered: {out}"))
    }

    /// Detaches by force, and repeats that while it is pending. Returns the last answer.
    fn force_detach(&self, attachment: &str) -> Result<Value> {
        let words = format!("{MOORING} detach {attachment} --force --timeout 120");
        let out = sh(self.storage, &format!(". /root/env; {}", Control::repeated(&words)))?;
        serde_json::from_str(&out).with_context(|| format!("`{words}` answered: {out}"))
    }

    /// Waits until exactly this many hosts are listed and up.
    fn up_soon(&self, want: usize) -> Result<()> {
        wait_for("the controller to reach the agents", Duration::from_mins(1), || {
            let answer = self.mooring("host list")?;
            let hosts = answer["hosts"].as_array().context("hosts")?;
            let up = hosts.iter().filter(|host| host["up"] == true).count();
            Ok((up == want && hosts.len() == want).then_some(()))
        })
    }

    fn ready_soon(&self, id: &str) -> Result<()> {
        wait_for("the attachment to be shown with its session", Duration::from_secs(30), || {
            let shown = attachment_of(self.mooring(&format!("attachment show {id}"))?);
            Ok((shown["session"] == true && shown["host_phase"] == "ready").then_some(()))
        })
    }

    /// A CHAP secret of the attachment, from the kernel's target.
    fn secret(&self) -> Result<String> {
        let said = sh(self.storage, &format!("cat {TARGET}/iscsi/iqn*/tpgt_1/acls/*/auth/password"))?;
        let secret = said.lines().next().unwrap_or_default().to_owned();
        check(secret.len() >= 12, || "the target has no secret".to_owned())?;
        Ok(secret)
    }

    /// Names the daemons whose files on the storage node have this secret in clear.
    fn clear(&self, secret: &str) -> Result<String> {
        let said = sh(
            self.storage,
            &format!(
                "for place in mooring-controller mooring; do \
                 if cat /var/lib/$place/*.db* | grep -qaF -e '{secret}'; then echo $place; fi; done"
            ),
        )?;
        Ok(said
            .trim()
            .replace("mooring-controller", "controller")
            .replace("mooring", "agent")
            .replace('\n', " "))
    }

    /// Makes a volume of this type, attaches it to a host, detaches it by force, and deletes it;
    /// meanwhile another host attaches it.
    fn works(&self, kind: &str, host: &str, other: &str) -> Result<()> {
        self.mooring(&format!("volume create work --size 1GiB --type {kind} --timeout 240"))?;
        let live = attachment_of(self.mooring(&format!("attach work --host {host} --timeout 120"))?);
        self.mooring(&format!("attach work --host {other} --mode ro --timeout 120"))?;
        self.mooring(&format!("detach work --host {other} --timeout 120"))?;
        let cut = self.force_detach(text(&live, "id")?)?;
        check(cut.to_string().contains("\"proven\""), || format!("the receipt is: {cut}"))?;
        self.mooring("volume delete work --timeout 240").map(drop)
    }

    /// A new storage node and host joins the old controller.
    fn agent_first(&mut self, writer: &Running) -> Result<()> {
        let disks = self.host2.data_disks();
        let disk = disks.first().context("a data disk of host2")?;
        sh(self.host2, &format!("vgcreate -q {GROUP} {disk}"))?;
        self.join(self.host2, "storage+host", &format!("--group {GROUP} --portal {}", self.host2.ip(0)))?;
        self.up_soon(3)?;
        dpkg(self.host2, NEW, &["mooring-agent", "mooring"])?;
        runs(self.host2, "mooring-agent", NEW)?;
        runs(self.storage, "mooring-controller", earlier::VERSION)?;
        self.up_soon(3)?;
        self.works("far", "host1", "host2").context("a new storage node, the controller older")?;
        self.works("near", "host2", "host1").context("a new host, the controller older")?;
        let fine = fine(writer)?;
        self.evidence.shows(format!(
            "an agent that is newer than the controller, as storage node and as host: made, attached rw and ro, detached, cut off by \
             force, deleted; beside it {fine}"
        ));
        Ok(())
    }

    /// The controller's package alone is upgraded: it seals its database, and drives agents that
    /// are older.
    fn controller_first(&mut self, writer: &Running, secret: &str) -> Result<()> {
        dpkg(self.storage, NEW, &["mooring-controller", "mooring"])?;
        self.up_soon(3)?;
        runs(self.storage, "mooring-controller", NEW)?;
        for vm in [self.storage, self.host1] {
            runs(vm, "mooring-agent", earlier::VERSION)?;
        }
        let clear = self.clear(secret)?;
        check(clear == "agent", || format!("secrets in clear are in: {clear:?}"))?;
        self.works("near", "host1", "host2").context("older agents, the controller new")?;
        let fine = fine(writer)?;
        self.evidence.shows(format!(
            "the controller upgraded first: it has sealed its database and works with older agents; beside it {fine}"
        ));
        Ok(())
    }

    /// The agents follow, the storage node's first.
    fn agents(&mut self, writer: &Running, secret: &str) -> Result<()> {
        dpkg(self.storage, NEW, &["mooring-agent"])?;
        self.up_soon(3)?;
        goes_on(writer).context("with the storage node's agent upgraded")?;
        dpkg(self.host1, NEW, &["mooring-agent", "mooring"])?;
        self.up_soon(3)?;
        for vm in [self.storage, self.host1] {
            runs(vm, "mooring-agent", NEW)?;
        }
        let clear = self.clear(secret)?;
        check(clear.is_empty(), || format!("secrets in clear are in: {clear:?}"))?;
        self.works("near", "host1", "host2").context("all new")?;
        let fine = fine(writer)?;
        self.evidence
            .shows(format!("the agents upgraded, their stores sealed: all goes on; beside it {fine}"));
        Ok(())
    }
}

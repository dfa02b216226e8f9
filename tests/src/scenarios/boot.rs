//! Many exports after a power cut. All return from the agent's own store, also when it is killed
//! during the restore. A volume whose group is late delays no other, and comes by itself. An LVM
//! that hangs delays no volume that is remembered.
//!
//! What must never happen here: a count of exports from the agent's own words; the kernel's tree is
//! the witness.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running, VmSpec};

use crate::bench::lv_metadata;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{BIN, GROUP, Programs, Site, TARGET, agent_config, metrics_table};

/// Number of volumes at the boot, and of initiators of each.
const VOLUMES: u32 = 32;
const INITIATORS: usize = 2;
/// The group whose disk comes later.
const LATE: &str = "vg1";
const LONG: Duration = Duration::from_mins(4);

/// Kills the agent once this many targets exist. Prints the state of the kernel's grace periods
/// then, and how many portal groups answer.
const WATCH: &str = r#"
import glob, os, signal, sys, time
print("watching", flush=True)
folder = "/sys/kernel/config/target/iscsi"
def targets():
    try:
        return sum(name.startswith("iqn") for name in os.listdir(folder))
    except OSError: # the mkdir of the folder has not come back yet
        return 0
while targets() < int(sys.argv[1]):
    time.sleep(0.002)
for comm in glob.glob("/proc/[0-9]*/comm"):
    try:
        if open(comm).read().strip() == "mooring-agent":
            os.kill(int(comm.split("/")[2]), signal.SIGKILL)
    except OSError: # another process ended meanwhile
        pass
def enabled(path):
    try:
        return open(path).read().strip() == "1"
    except OSError: # the mkdir of this portal group has not come back yet
        return False
print(open("/sys/kernel/rcu_expedited").read().strip())
print(sum(map(enabled, glob.glob(folder + "/iqn.*/tpgt_1/enable"))))
"#;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(0).named("boot");
    if let Some(storage) = options.vms.first_mut() {
        let standard = VmSpec::storage();
        let disks = [standard.disks.as_slice(), &[1 << 30]].concat();
        *storage = VmSpec { disks, ..standard };
    }
    let site = Site::up(options, programs)?;
    let mut acts = Acts { site: &site, evidence: Evidence::default() };
    let result = acts.all();
    site.end(result)
}

struct Acts<'a> {
    site: &'a Site,
    evidence: Evidence,
}

impl Acts<'_> {
    fn all(&mut self) -> Result<()> {
        self.volumes()?;
        self.store()?;
        self.late_group()?;
        let late = self.first_start()?;
        self.power_cut()?;
        self.killed_in_the_middle()?;
        let agent = self.all_but_the_late_one(&late)?;
        self.the_late_one(&late)?;
        agent.kill()?;
        drop(agent.wait()?);
        self.power_cut()?;
        self.lvm_hangs()
    }

    fn storage(&self, script: &str) -> Result<String> {
        let command = self.site.storage()?.command(["sh", "-euc", script]);
        Ok(command.timeout(LONG).run()?.ok()?.stdout)
    }

    /// Restores metadata that names all LVs into the group: making them one by one takes LVM a
    /// second each here.
    fn volumes(&self) -> Result<()> {
        let backup = self.storage(&format!("vgcfgbackup -q -f /run/vg {GROUP} >/dev/null; cat /run/vg"))?;
        let metadata = lv_metadata(&backup, VOLUMES)?;
        self.site.storage()?.write("/run/vg", metadata.as_bytes(), 0o600)?;
        self.storage(&format!("vgcfgrestore -q --yes -f /run/vg {GROUP}"))?;
        self.activate()
    }

    /// Does what a distribution's units do at a boot with all groups that exist.
    fn activate(&self) -> Result<()> {
        self.storage(&format!("vgchange -q -aay {GROUP}")).map(drop)
    }

    /// Writes the agent's store as if a client had sent each spec, with the agent's own code,
    /// outside of the VM.
    fn store(&self) -> Result<()> {
        let folder = tempfile::tempdir().context("a folder for the store")?;
        let volumes = VOLUMES.to_string();
        let status = std::process::Command::new(self.site.program("mooring-store-fill")?)
            .arg("--folder")
            .arg(folder.path())
            .args(["--volumes", &volumes, "--exports", &volumes, "--hosts", &INITIATORS.to_string()])
            .status()?;
        check(status.success(), || "mooring-store-fill failed".to_owned())?;
        for file in ["mooring-agent.db", "sealing.key"] {
            let there = format!("/srv/mooring/state/{file}");
            self.site.storage()?.push(&folder.path().join(file), &there, 0o600)?;
            // The agent's own writes are durable. These were made for it, so sync them.
            self.storage(&format!("sync {there} /srv/mooring/state"))?;
        }
        Ok(())
    }

    /// Makes a group on a device that exists only once it is made by hand: after a boot its disk is
    /// late.
    fn late_group(&self) -> Result<()> {
        self.late_disk()?;
        self.storage(&format!("pvcreate -q /dev/mapper/late; vgcreate -q {LATE} /dev/mapper/late")).map(drop)
    }

    /// The device does not begin at the disk's beginning: LVM must not find its label on the disk
    /// itself.
    fn late_disk(&self) -> Result<()> {
        let disks = self.site.storage()?.data_disks();
        let disk = disks.get(2).context("the third data disk")?;
        self.storage(&format!(
            "echo \"0 $(($(blockdev --getsz {disk}) - 2048)) linear {disk} 2048\" | dmsetup create late; udevadm settle"
        ))
        .map(drop)
    }

    fn start(&self) -> Result<Running> {
        self.site.start_agent_by(&config())
    }

    /// Counts portal groups that answer logins, and ACLs with their mapped LUN.
    fn served(&self) -> Result<(u32, usize)> {
        let seen = self.storage(&format!(
            "cat {TARGET}/iscsi/iqn.*/tpgt_1/enable 2>/dev/null | grep -c 1 || true; \
             ls -d {TARGET}/iscsi/iqn.*/tpgt_1/acls/*/lun_1 2>/dev/null | wc -l"
        ))?;
        let numbers: Vec<usize> = seen.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[enabled, mapped] = numbers.as_slice() else { anyhow::bail!("what is served: {seen}") };
        Ok((u32::try_from(enabled)?, mapped))
    }

    fn until_served(&self, portal_groups: u32, mapped: usize) -> Result<()> {
        wait_for("the exports", LONG, || Ok((self.served()? == (portal_groups, mapped)).then_some(())))
            .with_context(|| format!("served are {:?}", self.served()))
    }

    /// Everything is served, and one more volume in the late group.
    fn first_start(&mut self) -> Result<String> {
        let agent = self.start()?;
        self.until_served(VOLUMES, mapped(VOLUMES))?;
        let made = self.site.json(&["volume", "create", "late", "--size", "8MiB", "--group", LATE])?;
        let volume = text(&made, "id").or_else(|_| text(&made["volume"], "id"))?.to_owned();
        let initiator = ["--initiator", "iqn.2026-01.bench.load:host0", "--mode", "rw"];
        self.site.json(&[["export", "grant", &volume].as_slice(), &initiator].concat())?;
        self.until_served(VOLUMES + 1, mapped(VOLUMES) + 1)?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(volume)
    }

    fn power_cut(&self) -> Result<()> {
        let storage = self.site.storage()?;
        storage.power_cut()?;
        storage.boot()?;
        self.site.after_boot()?;
        self.activate()?;
        check(self.served()? == (0, 0), || "a target has lived through a power cut".to_owned())
    }

    /// Kills the agent with -9 while the exports are made. Existing ones are right, and the next
    /// agent restores the kernel's grace periods, which are short for bulk work.
    fn killed_in_the_middle(&mut self) -> Result<()> {
        let storage = self.site.storage()?;
        storage.write("/etc/mooring/agent.toml", config().as_bytes(), 0o600)?;
        // Watch from inside and at real-time priority: a look from out here takes as long as ten
        // exports.
        let watch = storage.command(["chrt", "-f", "1", "python3", "-c", WATCH, &(VOLUMES / 4).to_string()]);
        let watch = watch.timeout(LONG).spawn()?;
        check(watch.wait_stdout("watching", Duration::from_mins(3)), || "nobody watches".to_owned())?;
        let agent = self.site.spawn_program(&[&format!("{BIN}/mooring-agent")])?;
        let seen =
            watch.wait()?.ok().with_context(|| format!("the agent said: {}", agent.stderr_so_far()))?.stdout;
        let said = agent.wait()?.stderr;
        let words: Vec<&str> = seen.split_whitespace().collect();
        let &[_, expedited, enabled] = words.as_slice() else { anyhow::bail!("after the kill: {seen}") };
        let enabled: u32 = enabled.parse().with_context(|| seen.clone())?;
        check(enabled < VOLUMES, || "everything was there already: nothing would be shown".to_owned())?;
        check(expedited == "1", || {
            format!("grace periods were not short in bulk work: {seen}; the agent said: {said}")
        })?;
        self.evidence.shows(format!(
            "agent killed with -9 in the middle of its first work after a power cut: {enabled} of {VOLUMES} exports answer, grace periods are short"
        ));
        Ok(())
    }

    fn all_but_the_late_one(&mut self, late: &str) -> Result<Running> {
        let began = Instant::now();
        let agent = self.start()?;
        self.until_served(VOLUMES, mapped(VOLUMES))?;
        let took = began.elapsed();
        wait_for("grace periods to be normal again", Duration::from_mins(1), || {
            Ok((self.storage("cat /sys/kernel/rcu_expedited")?.trim() == "0").then_some(()))
        })?;
        let passes = self.site.metric("mooring_agent_passes_total")?;
        self.evidence.shows(format!(
            "the next agent ends it: {VOLUMES} exports of {INITIATORS} initiators answer after {:.1} s, {passes} looks at volumes; grace periods are normal",
            took.as_secs_f64()
        ));
        let shown = self.site.json(&["volume", "show", late])?.to_string();
        check(shown.contains(LATE), || format!("nobody says what the volume waits for: {shown}"))?;
        check(self.served()? == (VOLUMES, mapped(VOLUMES)), || "the late volume is served".to_owned())?;
        Ok(agent)
    }

    /// LVM never answers. The agent's memory of its LVs and device-mapper's state of their devices
    /// suffice.
    fn lvm_hangs(&mut self) -> Result<()> {
        self.storage(
            "printf '#!/bin/sh\\nexec sleep 1000\\n' > /run/hangs; chmod 755 /run/hangs; mount --bind /run/hangs /sbin/lvm",
        )?;
        let store = "/srv/mooring/state/mooring-agent.db";
        // Reading the store moves its log into the database file.
        let known = self.storage(&in_store("SELECT count(*) FROM whole_lvs"))?;
        self.storage(&format!("cp {store} /run/kept.db; {}", in_store("DELETE FROM whole_lvs")))?;
        let agent = self.start()?;
        let said = agent.stderr_so_far();
        check(said.contains("has not ended in time"), || format!("LVM did not hang: {said}"))?;
        check(self.served()? == (0, 0), || format!("nothing is known, and served are {:?}", self.served()))?;
        agent.kill()?;
        drop(agent.wait()?);
        self.storage(&format!("rm {store}*; cp /run/kept.db {store}"))?;
        let agent = self.start()?;
        self.until_served(VOLUMES, mapped(VOLUMES))?;
        self.evidence.shows(format!(
            "after a power cut, with an LVM that hangs: {VOLUMES} exports answer from what is remembered of {} LVs; without that, none",
            known.trim()
        ));
        agent.kill()
    }

    fn the_late_one(&mut self, late: &str) -> Result<()> {
        let began = Instant::now();
        self.late_disk()?;
        self.until_served(VOLUMES + 1, mapped(VOLUMES) + 1)?;
        self.evidence.shows(format!(
            "a volume whose disk is late held up nobody; it is served {:.1} s after the disk came, by nobody's word",
            began.elapsed().as_secs_f64()
        ));
        let shown = self.site.json(&["export", "show", late])?;
        check(shown.to_string().contains(late), || shown.to_string())
    }
}

/// The agent's configuration: both groups, and its metrics.
fn config() -> String {
    format!("{}\n[[groups]]\nname = \"{LATE}\"\n", agent_config(&metrics_table()))
}

/// A command that runs this SQL on the agent's store, which no agent has open, and prints the first
/// number of its answer.
fn in_store(sql: &str) -> String {
    format!(
        "python3 -c \"import sqlite3; db = sqlite3.connect('/srv/mooring/state/mooring-agent.db'); \
         row = db.execute('{sql}').fetchone(); db.commit(); print(row[0] if row else 0); \
         db.execute('PRAGMA wal_checkpoint(TRUNCATE)')\""
    )
}

/// Number of mapped LUNs of this many volumes.
const fn mapped(volumes: u32) -> usize {
    volumes as usize * INITIATORS
}

//! LVM on a storage node beside the agent: `lvremove` by hand of an LV of ours, and a group of our
//! group's name that a guest makes inside its volume.
//!
//! What must never happen here: an agent believed about LVM; `lvs`, `vgs` and the device mapper are
//! the witnesses. No group is seen inside a volume, without the run that sees it.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{GROUP, Programs, Site, agent_config, goes_on, going, number, progress};

const PORTAL: &str = "10.10.0.10:3260";
/// Content of the guest's own LV.
const HELD: &str = "what the guest wrote";
/// An initiator that never logs in.
const NOBODY: &str = "iqn.2026-01.lab:nobody";
/// LVM's configuration on the host: without the rig's filter, which keeps LVM from disks that came
/// over iSCSI.
const GUEST_LVM: &str = "devices {\n\tuse_devicesfile = 0\n}\nglobal {\n\tevent_activation = 0\n\tuse_lvmpolld = 0\n}\n\
                         activation {\n\tmonitoring = 0\n}\nbackup {\n\tarchive = 0\n}\n";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("lvm-by-hand"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

/// Starts the agent. Deletions are not shown here: they take no time.
fn start_agent(site: &Site) -> Result<Running> {
    site.start_agent_by(&format!("{}wipe = \"none\"\n", agent_config("resync_seconds = 3")))
}

fn scenes(site: &Site) -> Result<()> {
    let agent = start_agent(site)?;
    let host = Host::start(site.rig.vm("host1")?)?;
    let served = Served::make(site, &host, "served")?;
    let writer = served.disk.write_stamps(&["--threads", "1", "--every-ms", "50"])?;
    going(&writer)?;
    let other = Volume::make(site, "other")?;
    let mut acts = Acts { site, host, evidence: Evidence::default(), served, writer, other };
    acts.refused_below_an_export()?;
    acts.removed_by_hand()?;
    let agent = acts.group_of_a_guest(agent)?;
    acts.taken_away(&agent)
}

/// A volume on the storage node.
struct Volume {
    name: &'static str,
    id: String,
    device: String,
}

impl Volume {
    fn make(site: &Site, name: &'static str) -> Result<Self> {
        let made = site.json(&["volume", "create", name, "--size", "64MiB"])?;
        let own = |key: &str| {
            let text = made["volume"][key].as_str().with_context(|| format!("no {key} in {made}"))?;
            Ok::<_, anyhow::Error>(text.to_owned())
        };
        Ok(Self { name, id: own("id")?, device: own("device")? })
    }
}

/// A volume that the host has.
struct Served<'a> {
    volume: Volume,
    target: String,
    disk: Disk<'a>,
}

impl<'a> Served<'a> {
    fn make(site: &Site, host: &Host<'a>, name: &'static str) -> Result<Self> {
        let volume = Volume::make(site, name)?;
        let granted = site.json(&["export", "grant", name, "--initiator", &host.iqn, "--mode", "rw"])?;
        let target =
            granted["target"].as_str().with_context(|| format!("no target in {granted}"))?.to_owned();
        host.login(&target, PORTAL, None, 60)?.ok()?;
        let disk = host.disk(&target, PORTAL)?;
        Ok(Self { volume, target, disk })
    }
}

struct Acts<'a> {
    site: &'a Site,
    host: Host<'a>,
    evidence: Evidence,
    /// A volume that the host writes all the time.
    served: Served<'a>,
    writer: Running,
    /// A volume that nobody has.
    other: Volume,
}

impl<'a> Acts<'a> {
    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// The sum of all bytes of a device on the storage node.
    fn sum(&self, device: &str) -> Result<String> {
        self.storage(&format!("dd if={device} bs=1M iflag=direct 2>/dev/null | md5sum"))
    }

    fn lvs(&self) -> Result<String> {
        self.storage(&format!("lvs --noheadings -o lv_name,lv_uuid,lv_tags {GROUP}"))
    }

    /// Checks that the agent has nothing to do, and that these volumes are ready.
    fn all_ready(&self, volumes: &[&str]) -> Result<()> {
        self.site.nothing_planned()?;
        for name in volumes {
            let shown = self.site.json(&["volume", "show", name])?;
            check(shown["phase"] == "ready", || format!("{name} is not ready: {shown}"))?;
        }
        Ok(())
    }

    /// Checks that the host's writes go on, and that none has failed.
    fn host_writes_on(&self, during: &str) -> Result<u64> {
        goes_on(&self.writer).with_context(|| during.to_owned())?;
        let seen = progress(&self.writer)?;
        check(number(&seen, "errors")? == 0, || format!("the host's writes, {during}: {seen}"))?;
        number(&seen, "done")
    }

    /// The kernel's target holds the LV, and LVM gives up.
    fn refused_below_an_export(&mut self) -> Result<()> {
        let before = self.lvs()?;
        let out = self
            .site
            .storage()?
            .sh(&format!("LC_ALL=C lvremove --yes --force {}", self.served.volume.device))?;
        check(out.status.code() == Some(5) && out.stderr.contains("in use"), || {
            format!("lvremove of an exported LV: {:?} {} {}", out.status, out.stdout, out.stderr)
        })?;
        let after = self.lvs()?;
        check(after == before, || format!("the group's LVs were {before}, and are {after}"))?;
        self.host_writes_on("after an lvremove that was refused")?;
        self.all_ready(&["served", "other"])?;
        self.evidence.shows(format!(
            "lvremove by hand of an exported LV is refused ({}): its host writes on without an error, and the agent has nothing to do",
            out.stderr.trim().lines().next_back().unwrap_or_default().trim()
        ));
        Ok(())
    }

    /// An LV that nobody holds is removed by the same command. The agent says so, makes nothing in
    /// its place, and deletes the volume.
    fn removed_by_hand(&mut self) -> Result<()> {
        let fill =
            format!("dd if=/dev/urandom of={} bs=1M count=64 oflag=direct 2>/dev/null", self.other.device);
        self.storage(&fill)?;
        let (held, before) = (self.sum(&self.other.device)?, self.lvs()?);
        let alone = Volume::make(self.site, "alone")?;
        self.storage(&format!("lvremove --yes --force {} >&2", alone.device))?;
        let said = wait_for("the agent to say that the LV is gone", Duration::from_mins(1), || {
            let shown = self.site.json(&["volume", "show", alone.name])?;
            check(shown["phase"] == "failed", || format!("after the lvremove: {shown}")).map(|()| Some(shown))
        })?;
        let why = said["problems"].to_string();
        let lv = format!("{GROUP}/mooring-{}", alone.id);
        for word in ["its LV is gone", "Nothing was made in its place", lv.as_str()] {
            check(why.contains(word), || format!("the reason does not say {word:?}: {why}"))?;
        }
        let after = self.lvs()?;
        check(after == before, || format!("the group's LVs were {before}, and are {after}"))?;
        let holds = self.sum(&self.other.device)?;
        check(holds == held, || format!("the other volume held {held}, and holds {holds}"))?;
        self.host_writes_on("while another volume's LV is gone")?;
        let deleted = self.site.json(&["volume", "delete", alone.name])?;
        check(deleted["done"] == true, || format!("the deletion of a volume whose LV is gone: {deleted}"))?;
        self.all_ready(&["served", "other"])?;
        self.evidence.shows(format!(
            "lvremove by hand of an LV that nobody holds: the volume is failed, other LVs and their data are what they were, and the \
             deletion is done: {why}"
        ));
        Ok(())
    }

    /// Names of all devices of the device mapper on the storage node, and of those upon this LV.
    fn mapped(&self, lv: &str) -> Result<String> {
        self.storage(&format!(
            "dmsetup ls | cut -f1 | sort; ls /sys/block/$(basename $(readlink -f {lv}))/holders"
        ))
    }

    /// Makes a group of our group's name inside of a volume, with an LV that has the name and tag
    /// of another volume of ours. Returns the host's sum of the whole disk.
    fn make_group_inside(&self, guest: &Served<'a>) -> Result<String> {
        let vm = self.host.vm;
        vm.sh("mkdir -p /run/guest-lvm")?.ok()?;
        vm.write("/run/guest-lvm/lvm.conf", GUEST_LVM.as_bytes(), 0o644)?;
        let (disk, lv) = (&guest.disk.path, format!("mooring-{}", self.other.id));
        vm.sh(&format!(
            "export LVM_SYSTEM_DIR=/run/guest-lvm; pvcreate -q -y {disk} >&2; vgcreate -q {GROUP} {disk} >&2; \
             lvcreate -q -y -n {lv} -L 16M --addtag mooring {GROUP} >&2; \
             echo '{HELD}' | dd of=/dev/{GROUP}/{lv} bs=4k conv=sync oflag=direct 2>/dev/null; \
             vgchange -q -an {GROUP} >&2"
        ))?
        .ok()
        .context("make a group on the host")?;
        self.sum_on_host(guest)
    }

    fn sum_on_host(&self, guest: &Served<'a>) -> Result<String> {
        let read = format!("dd if={} bs=1M iflag=direct 2>/dev/null | md5sum", guest.disk.path);
        Ok(self.host.vm.sh(&read)?.ok()?.stdout)
    }

    /// A guest's group inside of its volume has the name of ours. LVM on the storage node and the
    /// agent do not see it, and touch nothing of it; the control is LVM with `scan_lvs`.
    fn group_of_a_guest(&mut self, agent: Running) -> Result<Running> {
        let guest = Served::make(self.site, &self.host, "guest")?;
        let groups = "vgs --noheadings -o vg_name,vg_uuid,lv_count";
        let (seen, mapped) = (self.storage(groups)?, self.mapped(&guest.volume.device)?);
        let problems =
            |site: &Site| -> Result<Value> { Ok(site.json(&["agent", "show"])?["problems"].clone()) };
        let (lvs, told) = (self.lvs()?, problems(self.site)?);
        let held = self.make_group_inside(&guest)?;

        let out = self.site.storage()?.sh(&format!("LC_ALL=C {groups} --config devices/scan_lvs=1"))?;
        let same = out.stdout.lines().filter(|line| line.split_whitespace().next() == Some(GROUP)).count();
        check(same == 2, || {
            format!(
                "the control: LVM that looks into LVs sees {same} groups {GROUP}: {} {}",
                out.stdout, out.stderr
            )
        })?;
        // As a distribution does at a boot.
        self.storage(&format!("vgchange -q -aay {GROUP} >&2"))?;
        self.works("next")?;
        let agent = self.restarted(agent, &guest)?;
        self.works("later").context("after a restart")?;

        for (what, was, is) in [
            ("groups", &seen, self.storage(groups)?),
            ("LVs", &lvs, self.lvs()?),
            ("mapped devices", &mapped, self.mapped(&guest.volume.device)?),
            ("sum of the guest's disk", &held, self.sum_on_host(&guest)?),
        ] {
            check(*was == is, || format!("{what}: {was}, and beside a guest's group {is}"))?;
        }
        let now = problems(self.site)?;
        check(now == told, || format!("the agent's problems were {told}, and are {now}"))?;
        let written = self.host_writes_on("beside a guest's group")?;
        let read = self.guest_reads()?;
        check(read == HELD, || format!("the guest reads {read:?} from its own LV"))?;
        self.evidence.shows(format!(
            "a guest's group {GROUP} with an LV of another volume's name and tag lies inside of a volume: the agent makes, grants and \
             deletes as ever, over a restart; nothing of it is active or changed, {written} writes of the host without an error; \
             control: LVM with scan_lvs sees {same} groups of the name"
        ));
        self.leave(&guest)?;
        Ok(agent)
    }

    /// The guest activates its group again. Returns what it reads from its LV.
    fn guest_reads(&self) -> Result<String> {
        let lv = format!("/dev/{GROUP}/mooring-{}", self.other.id);
        let out = self
            .host
            .vm
            .sh(&format!(
                "export LVM_SYSTEM_DIR=/run/guest-lvm; vgchange -q -ay {GROUP} >&2; \
                 dd if={lv} bs=4k count=1 iflag=direct 2>/dev/null | head -1; vgchange -q -an {GROUP} >&2"
            ))?
            .ok()?;
        Ok(out.line().to_owned())
    }

    /// Makes, grants, revokes and deletes a volume of this name.
    fn works(&self, name: &str) -> Result<()> {
        let grant = ["export", "grant", name, "--initiator", NOBODY, "--mode", "ro"];
        self.site.json(&["volume", "create", name, "--size", "16MiB"])?;
        self.site.json(&grant)?;
        self.site.json(&["export", "revoke", name, "--initiator", NOBODY])?;
        self.site.json(&["volume", "delete", name])?;
        self.all_ready(&["served", "other", "guest"])
    }

    /// Kills the agent and starts it again: both sessions are the same ones.
    fn restarted(&self, agent: Running, guest: &Served<'a>) -> Result<Running> {
        let storage = self.site.storage()?;
        let sessions = || -> Result<[String; 2]> {
            Ok([
                self.host.session_at(storage, &self.served.target)?,
                self.host.session_at(storage, &guest.target)?,
            ])
        };
        let before = sessions()?;
        agent.kill()?;
        drop(agent.wait()?);
        let agent = start_agent(self.site)?;
        let after = sessions()?;
        check(after == before, || format!("the sessions were {before:?}, and are {after:?}"))?;
        Ok(agent)
    }

    /// Logs out from a volume and deletes it.
    fn leave(&self, served: &Served<'a>) -> Result<()> {
        self.host.logout(&served.target)?;
        self.site.json(&["export", "revoke", served.volume.name, "--initiator", &self.host.iqn])?;
        self.site.json(&["volume", "delete", served.volume.name]).map(drop)
    }

    fn taken_away(&mut self, agent: &Running) -> Result<()> {
        self.writer.kill()?;
        wait_for("the writer to end", Duration::from_secs(30), || {
            Ok((!self.writer.is_running()).then_some(()))
        })?;
        self.leave(&self.served)?;
        self.site.json(&["volume", "delete", self.other.name])?;
        self.site.nothing_left()?;
        self.evidence.shows("all volumes are deleted: nothing is left");
        agent.kill()
    }
}

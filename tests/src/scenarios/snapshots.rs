//! Snapshots of a thin volume under I/O, volumes made from them, and their content after a power
//! cut that loses unflushed writes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, agent_config, going, number, progress};

/// Old data in the group, and its size.
const DIRT: &str = "somebody's old data";
const DIRT_MIB: u64 = 64;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("snapshots").forward(PORT).volatile(), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn start_agent(site: &Site) -> Result<Running> {
    site.start_agent_by(&format!("{}thin_pool = \"3GiB\"\n", agent_config("")))
}

fn scenes(site: &Site) -> Result<()> {
    let agent = start_agent(site)?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    let shared = ["type", "create", "thin", "--multiattach", "--spec", "provisioning:type=thin"];
    control.json(&shared)?;
    let mut acts = Acts { site, control, evidence: Evidence::default() };
    let result = acts.all(agent);
    if result.is_err() {
        acts.control.print_logs();
    }
    result
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
}

impl<'a> Acts<'a> {
    fn all(&mut self, agent: Running) -> Result<()> {
        self.soil()?;
        let volume = self.control.volume("data", Some("thin"))?;
        self.nothing_old(&volume)?;
        let (id, disk) = self.attach(&volume, "host1", "rw")?;
        let copy = self.under_io(&disk)?;
        self.grown(&copy)?;
        self.control.json(&["detach", &id])?;
        let agent = self.power_cut(agent)?;
        let agent = self.reverted(agent)?;
        self.taken_away(agent)
    }

    fn attach(&self, volume: &str, host: &str, mode: &str) -> Result<(String, Disk<'a>)> {
        let live = self.control.attach(volume, host, mode)?;
        let disk = Disk::new(self.site.rig.vm(host)?, text(&live, "device_path")?);
        Ok((text(&live, "id")?.to_owned(), disk))
    }

    fn lvs(&self) -> Result<Vec<String>> {
        let names = self.storage(&format!("lvs --noheadings -o lv_name {GROUP}"))?;
        Ok(names.split_whitespace().map(str::to_owned).collect())
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// Writes old data where the pool will be; the control shows that LVM alone reveals it.
    fn soil(&mut self) -> Result<()> {
        let read = format!("dd if=/dev/{GROUP}/control bs=1M count={DIRT_MIB} iflag=direct 2>/dev/null");
        let seen = self.storage(&format!(
            "lvcreate -q -y -Wn -Zn -n dirt -L {DIRT_MIB}M {GROUP} >&2; \
             yes \"{DIRT}\" | dd of=/dev/{GROUP}/dirt bs=1M count={DIRT_MIB} iflag=fullblock oflag=direct 2>/dev/null; \
             lvremove -q -y {GROUP}/dirt >&2; \
             lvcreate -q -y -Wn -Zn -n control -L {DIRT_MIB}M {GROUP} >&2; \
             {read} | tr -d '\\000' | wc -c; lvremove -q -y {GROUP}/control >&2"
        ))?;
        let seen: u64 = seen.trim().parse().with_context(|| seen.clone())?;
        check(seen > 0, || "the control does not see the old data: nothing would be shown".to_owned())?;
        self.evidence.shows(format!("control: a plain LV shows {seen} bytes of old data"));
        Ok(())
    }

    /// Checks that a thin volume shows none of the old data, also beside a written block.
    fn nothing_old(&mut self, volume: &str) -> Result<()> {
        let device = format!("/dev/{GROUP}/mooring-{volume}");
        let seen = self.storage(&format!(
            "for at in $(seq 0 16 {DIRT_MIB}); do \
             printf x | dd of={device} bs=512 seek=$((at * 2048)) count=1 conv=sync,notrunc 2>/dev/null; done; sync; \
             dd if={device} bs=1M count={DIRT_MIB} iflag=direct 2>/dev/null | tr -d 'x\\000' | wc -c"
        ))?;
        check(seen.trim() == "0", || format!("{} bytes of old data in a thin volume", seen.trim()))?;
        self.evidence.shows("a thin volume reads as zeros around what was written to it");
        Ok(())
    }

    /// Takes a snapshot while a host writes at full speed: it has everything that had landed
    /// before, and nothing later.
    fn under_io(&mut self, disk: &Disk<'a>) -> Result<String> {
        let writer = disk.write_stamps(&[])?;
        going(&writer)?;
        let before = disk.read_stamps()?;
        let taken = self.control.json(&["snapshot", "create", "data", "one", "--timeout", "120"])?;
        let after = disk.read_stamps()?;
        check(taken["done"] == true, || taken.to_string())?;
        let snapshot = text(&taken["snapshot"], "id")?.to_owned();
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0, || format!("the writer: {seen}"))?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "snapshot under I/O: {} writes, 0 errors, longest gap {} ms",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        let devices = self.storage(&format!("ls /dev/{GROUP} /dev/mapper"))?;
        check(!devices.contains("snap"), || format!("the snapshot has a device: {devices}"))?;

        let words = ["volume", "create", "copy", "--snapshot", "one", "--size", "2GiB", "--timeout", "120"];
        let made = self.control.json(&words)?;
        check(made["volume"]["snapshot_id"] == snapshot.as_str(), || made.to_string())?;
        let copy = text(&made["volume"], "id")?.to_owned();
        let (id, other) = self.attach(&copy, "host2", "ro")?;
        let stamps = other.read_stamps()?;
        let fits = stamps.len() == before.len()
            && stamps.iter().zip(&before).all(|(has, least)| has >= least)
            && stamps.iter().zip(&after).all(|(has, most)| has <= most);
        check(fits, || format!("the copy has {stamps:?}, the disk had {before:?} and then {after:?}"))?;
        self.evidence.shows(format!(
            "the copy on the other host holds {stamps:?}: not less than before ({before:?}), not more than after ({after:?})"
        ));
        self.control.json(&["detach", &id])?;
        Ok(copy)
    }

    /// The copy grows at once: nothing must be zeroed.
    fn grown(&mut self, copy: &str) -> Result<()> {
        let grown = self.control.json(&["volume", "extend", copy, "--size", "3GiB", "--timeout", "120"])?;
        check(grown["done"] == true && grown["size_gib"] == 3, || grown.to_string())?;
        let clone = ["volume", "create", "clone", "--from", "copy", "--timeout", "120"];
        let clone = self.control.json(&clone)?;
        check(clone["volume"]["size_gib"] == 3, || clone.to_string())?;
        let thick = ["type", "create", "thick", "--spec", "provisioning:type=thick"];
        self.control.json(&thick)?;
        let thick = ["volume", "create", "solid", "--size", "1GiB", "--type", "thick", "--timeout", "240"];
        self.control.json(&thick)?;
        let refused = self.control.mooring(&["snapshot", "create", "solid", "none"])?;
        let said = refused.stderr.trim();
        check(!refused.status.success() && said.contains("provisioning:type = thin"), || said.to_owned())?;
        self.evidence.shows(format!("a thick volume beside them: {said}"));
        Ok(())
    }

    /// The storage node loses its power: snapshot and volumes return with their content.
    fn power_cut(&mut self, agent: Running) -> Result<Running> {
        let device = |name: &str| -> Result<String> {
            let shown = self.control.json(&["volume", "show", name])?;
            Ok(format!("/dev/{GROUP}/mooring-{}", text(&shown, "id")?))
        };
        let copy = device("copy")?;
        let before = self.site.stamps_on_storage(&copy)?;
        let storage = self.site.storage()?;
        // The power is cut right after the answer. The control is an LV whose only answer came from
        // LVM.
        let thin = ["volume", "create", "last", "--type", "thin", "--size", "1GiB", "--timeout", "120"];
        self.control.json(&thin)?;
        self.control.json(&["snapshot", "create", "copy", "last-one", "--timeout", "120"])?;
        self.storage(&format!("lvcreate -q -y -Wn -Zn -n unflushed -L 4M {GROUP} >&2"))?;
        let had = self.lvs()?;
        storage.power_cut()?;
        drop(agent);
        self.control.controller_is_gone();
        storage.boot()?;
        self.site.after_boot()?;
        let has = self.lvs()?;
        check(had.iter().all(|lv| has.contains(lv) != (lv == "unflushed")), || {
            format!("before the power cut {had:?}, and after it {has:?}")
        })?;
        self.evidence.shows(format!(
            "power cut right behind the answers: all {} LVs of the agent's are there; control: one that LVM alone has made is not",
            had.len() - 1
        ));
        self.control.configure()?;
        let agent = start_agent(self.site)?;
        self.control.start_controller()?;
        wait_for("the copy's device", Duration::from_mins(1), || {
            Ok(storage.sh(&format!("test -b {copy}"))?.status.success().then_some(()))
        })?;
        check(self.site.stamps_on_storage(&copy)? == before, || "the copy holds something else".to_owned())?;
        let words = ["volume", "create", "later", "--snapshot", "one", "--timeout", "120"];
        let later = self.control.json(&words)?;
        let later = format!("/dev/{GROUP}/mooring-{}", text(&later["volume"], "id")?);
        check(self.site.stamps_on_storage(&later)? == before, || {
            "the snapshot holds something else".to_owned()
        })?;
        self.evidence.shows("after a power cut of the storage node snapshot and copy hold what they held");
        Ok(agent)
    }

    /// Reverts the volume to the snapshot: it keeps its size. The agent is killed during it, at any
    /// place; the control is that the volume held something else.
    fn reverted(&mut self, agent: Running) -> Result<Running> {
        let shown = |name: &str| self.control.json(&["volume", "show", name]);
        let device = |name: &str| -> Result<String> {
            Ok(format!("/dev/{GROUP}/mooring-{}", text(&shown(name)?, "id")?))
        };
        let (data, later) = (device("data")?, device("later")?);
        let (held, wanted) = (self.site.stamps_on_storage(&data)?, self.site.stamps_on_storage(&later)?);
        check(held != wanted, || format!("the control: the volume holds {held:?}, as its snapshot does"))?;
        let size = shown("data")?["size_gib"].clone();
        // 5: accepted, and not done yet.
        let asked = self.control.mooring(&["volume", "revert", "data", "--to", "one", "--timeout", "1"])?;
        let code = asked.status.code();
        check(matches!(code, Some(0 | 5)), || format!("{code:?} {}", asked.stderr))?;
        agent.kill()?;
        drop(agent.wait()?);
        let stood = self.storage(&format!(
            "lvs --noheadings -o lv_name,lv_tags {GROUP} | grep -c mooring-back || true"
        ))?;
        let agent = start_agent(self.site)?;
        let done = wait_for("the revert", Duration::from_mins(2), || {
            let now = shown("data")?;
            Ok((now["status"] != "reverting").then_some(now))
        })?;
        check(done["status"] == "available" && done["size_gib"] == size, || done.to_string())?;
        let holds = self.site.stamps_on_storage(&data)?;
        check(holds == wanted, || format!("it holds {holds:?}, and its snapshot {wanted:?}"))?;
        let devices =
            self.storage(&format!("ls /dev/{GROUP} /dev/mapper; lvs --noheadings -o lv_name {GROUP}"))?;
        check(!devices.contains("mooring-back") && !devices.contains("mooring--back"), || devices.clone())?;
        let (id, disk) = self.attach(text(&done, "id")?, "host2", "rw")?;
        check(disk.read_stamps()? == wanted, || "a host reads something else".to_owned())?;
        self.control.json(&["detach", &id])?;
        self.evidence.shows(format!(
            "reverted to its snapshot, the agent killed meanwhile ({} copy beside the volume then): {wanted:?} instead of {held:?}, as a \
             host reads it, too",
            if stood.trim() == "0" { "no" } else { "a" }
        ));
        Ok(agent)
    }

    fn taken_away(&mut self, agent: Running) -> Result<()> {
        let refused = self.control.mooring(&["volume", "delete", "data"])?;
        if refused.status.success() || !refused.stderr.contains("have snapshots") {
            bail!("a volume with a snapshot was deleted: {:?} {}", refused.status, refused.stderr);
        }
        for name in ["one", "last-one"] {
            self.control.json(&["snapshot", "delete", name, "--timeout", "120"])?;
        }
        for name in ["data", "copy", "clone", "later", "solid", "last"] {
            self.control.json(&["volume", "delete", name, "--timeout", "300"])?;
        }
        agent.kill()?;
        drop(agent.wait()?);
        // The pool stays: it is made once.
        let left = self.storage(&format!("lvs --noheadings -o lv_name {GROUP}"))?;
        check(left.trim() == "mooring-pool", || format!("left behind: {left}"))?;
        self.evidence.shows("deleted in the order that holds; nothing is left but the pool");
        Ok(())
    }
}

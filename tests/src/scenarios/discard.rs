//! Discards. A host's discards reach the disk below if an operator vouched for it, and a deletion
//! discards instead of zeroing if the group says so. The witness is the kernel's own count of
//! discards to the disk. On a thin volume they give blocks back to the pool, by nobody's word; the
//! witness is LVM's own number for the pool.
//!
//! What must never happen here: a discard taken for a proof that blocks are zero; the next volume
//! is read, not believed.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, agent_config};

/// MiB that a host writes, half of which it discards.
const WRITTEN_MIB: u64 = 64;
/// The size of the scenario's volumes.
const VOLUME_SECTORS: u64 = (1 << 30) / 512;
const SECTORS_PER_MIB: u64 = 2048;
/// The size of the thin pool, of which a host writes a quarter.
const POOL_MIB: u64 = 256;
/// Lines of a group that has a thin pool, and no other key.
const WITH_POOL: &str = "thin_pool = \"256MiB\"\n";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("discard").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let mut acts = Acts { site, control, evidence: Evidence::default() };
    let result = acts.all(agent);
    if result.is_err() {
        eprintln!("--- controller:\n{}", acts.control.controller_log());
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
        self.control_without()?;
        let agent = self.with(agent)?;
        self.thin(agent)
    }

    /// Sectors that the group's disk was told to discard since it came up (sysfs `stat`, field 14;
    /// 512 bytes each).
    fn discarded(&self) -> Result<u64> {
        let disk = self.site.storage()?.data_disks().into_iter().next().context("the group's disk")?;
        let name = disk.rsplit('/').next().unwrap_or_default();
        let out = self.site.storage()?.sh(&format!("awk '{{print $14}}' /sys/block/{name}/stat"))?.ok()?;
        out.line().trim().parse().with_context(|| format!("sectors discarded: {:?}", out.stdout))
    }

    /// Makes a volume on host1 with a written beginning.
    fn written(&self, name: &str, of_type: &str) -> Result<(String, Disk<'a>)> {
        self.control.volume(name, Some(of_type))?;
        let live = self.control.attach(name, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
        let write = format!(
            "tr '\\000' x < /dev/zero | dd of={} bs=1M count={WRITTEN_MIB} iflag=fullblock oflag=direct 2>/dev/null",
            disk.path
        );
        disk.vm.sh(&write)?.ok()?;
        Ok((text(&live, "id")?.to_owned(), disk))
    }

    /// Counts bytes that are not zero in a range of a host's disk.
    fn bytes(disk: &Disk<'_>, from_mib: u64, mib: u64) -> Result<u64> {
        let read = format!(
            "dd if={} bs=1M skip={from_mib} count={mib} iflag=direct 2>/dev/null | tr -d '\\000' | wc -c",
            disk.path
        );
        let out = disk.vm.sh(&read)?.ok()?;
        out.line().trim().parse().with_context(|| format!("bytes: {:?}", out.stdout))
    }

    fn delete(&self, attachment: &str, volume: &str) -> Result<()> {
        self.control.json(&["detach", attachment])?;
        self.control.json(&["volume", "delete", volume, "--timeout", "300"])?;
        Ok(())
    }

    /// Control: a group without the keys. The disk is told to discard nothing.
    fn control_without(&mut self) -> Result<()> {
        let before = self.discarded()?;
        let (attachment, disk) = self.written("plain", "shared")?;
        let refused = disk.vm.sh(&format!("blkdiscard -o 0 -l 32MiB {}", disk.path))?;
        check(!refused.status.success(), || "a host may discard without its operator's word".to_owned())?;
        self.delete(&attachment, "plain")?;
        let seen = self.discarded()? - before;
        check(seen == 0, || format!("{seen} sectors were discarded"))?;
        self.evidence.shows(format!(
            "control: without the keys a host's discard is refused ({}), a deletion zeroes, the disk hears of no discard",
            refused.stderr.trim()
        ));
        Ok(())
    }

    /// The group has both keys.
    fn with(&mut self, agent: Running) -> Result<Running> {
        agent.kill()?;
        drop(agent.wait()?);
        let keys = "discard = true\nwipe = \"discard\"\n";
        let agent = self.site.start_agent_by(&format!("{}{keys}", agent_config("")))?;
        self.control.all_up_soon()?;
        let (attachment, disk) = self.written("data", "shared")?;
        let before = self.discarded()?;
        disk.vm.sh(&format!("blkdiscard -o 0 -l {}MiB {}", WRITTEN_MIB / 2, disk.path))?.ok()?;
        let told = self.discarded()? - before;
        let asked = WRITTEN_MIB / 2 * SECTORS_PER_MIB;
        check(told == asked, || format!("a discard of {asked} sectors told the disk to discard {told}"))?;
        let (gone, kept) =
            (Self::bytes(&disk, 0, WRITTEN_MIB / 2)?, Self::bytes(&disk, WRITTEN_MIB / 2, WRITTEN_MIB / 2)?);
        check(gone == 0 && kept == WRITTEN_MIB / 2 * (1 << 20), || {
            format!("the host reads {gone} bytes where it discarded, {kept} beside it")
        })?;
        self.evidence.shows(format!(
            "a host's discard of {} MiB reaches the disk as {told} sectors; what it wrote beside it is untouched",
            WRITTEN_MIB / 2
        ));
        let before = self.discarded()?;
        self.delete(&attachment, "data")?;
        let told = self.discarded()? - before;
        check(told >= VOLUME_SECTORS, || {
            format!("the deletion discarded {told} of {VOLUME_SECTORS} sectors")
        })?;
        self.evidence
            .shows(format!("wipe = \"discard\": the deletion discards {told} sectors, all of the volume"));
        self.next_one()?;
        Ok(agent)
    }

    /// Hundredths of a percent of the pool's data that are taken, as LVM says it (`12.34`).
    fn taken(&self) -> Result<u64> {
        let asked = format!("lvs --noheadings -o data_percent {GROUP}/mooring-pool");
        let out = self.site.storage()?.sh(&asked)?.ok()?;
        let digits = out.line().trim().replace('.', "");
        digits.parse().with_context(|| format!("data_percent: {:?}", out.stdout))
    }

    /// Discards a range of a host's disk and checks that it reads as zeros there.
    fn discard(disk: &Disk<'_>, from_mib: u64, mib: u64) -> Result<()> {
        disk.vm.sh(&format!("blkdiscard -o {} -l {} {}", from_mib << 20, mib << 20, disk.path))?.ok()?;
        let seen = Self::bytes(disk, from_mib, mib)?;
        check(seen == 0, || format!("{seen} bytes where the host discarded {mib} MiB"))
    }

    /// A thin volume of a group without the keys.
    fn thin(&mut self, agent: Running) -> Result<()> {
        agent.kill()?;
        drop(agent.wait()?);
        let agent = self.site.start_agent_by(&format!("{}{WITH_POOL}", agent_config("")))?;
        self.control.all_up_soon()?;
        wait_for("the controller to know the thin pool", Duration::from_mins(1), || {
            let pools = self.control.json(&["pool", "list"])?.to_string();
            check(pools.contains(":thin"), || pools.clone()).map(Some)
        })?;
        self.control.json(&["type", "create", "thin", "--spec", "provisioning:type=thin"])?;
        let half = WRITTEN_MIB / 2;
        let (attachment, disk) = self.written("sparse", "thin")?;
        let full = self.taken()?;
        Self::discard(&disk, 0, half)?;
        let fewer = 10_000 * half / POOL_MIB;
        // One percent is left to rounding.
        let left = wait_for("the pool to get blocks back", Duration::from_mins(1), || {
            let left = self.taken()?;
            check(left + fewer <= full + 100, || format!("{left} of 10,000 are taken, before {full}"))?;
            Ok(Some(left))
        })?;
        let kept = Self::bytes(&disk, half, half)?;
        check(kept == half << 20, || format!("the host reads {kept} bytes beside what it discarded"))?;
        self.evidence.shows(format!(
            "thin: a discard of {half} MiB takes the pool from {full} to {left} of 10,000; it reads as zeros"
        ));
        // The snapshot shares what is left: it keeps it when the host discards that, too.
        self.control.json(&["snapshot", "create", "sparse", "before", "--timeout", "240"])?;
        Self::discard(&disk, half, half)?;
        let words = ["volume", "create", "copy", "--snapshot", "before", "--timeout", "240"];
        self.control.json(&words)?;
        let copied = self.control.attach("copy", "host1", "ro")?;
        let copy = Disk::new(self.site.rig.vm("host1")?, text(&copied, "device_path")?);
        let (gone, kept) = (Self::bytes(&copy, 0, half)?, Self::bytes(&copy, half, half)?);
        check(gone == 0 && kept == half << 20, || {
            format!("of the snapshot {gone} bytes are read where there was none, and {kept} beside it")
        })?;
        self.evidence.shows("thin: a snapshot from before a discard keeps its data");
        self.delete(text(&copied, "id")?, "copy")?;
        self.control.json(&["snapshot", "delete", "before", "--timeout", "240"])?;
        self.delete(&attachment, "sparse")?;
        agent.kill()
    }

    /// Whatever the discard did, the next volume on these extents is zeros, on a disk that has
    /// forgotten nothing.
    fn next_one(&mut self) -> Result<()> {
        let soil = format!(
            "lvcreate -q -y -Wn -Zn -n dirt -L {WRITTEN_MIB}M {GROUP} >&2; \
             tr '\\000' x < /dev/zero | dd of=/dev/{GROUP}/dirt bs=1M count={WRITTEN_MIB} iflag=fullblock oflag=direct 2>/dev/null; \
             lvremove -q -y --config devices/issue_discards=0 {GROUP}/dirt >&2"
        );
        self.site.storage()?.sh(&soil)?.ok()?;
        self.control.volume("next", Some("shared"))?;
        let live = self.control.attach("next", "host1", "ro")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
        let seen = Self::bytes(&disk, 0, WRITTEN_MIB)?;
        check(seen == 0, || format!("the next volume shows {seen} bytes"))?;
        self.delete(text(&live, "id")?, "next")?;
        self.evidence.shows("the next volume on these extents reads as zeros: a discard counts for nothing");
        self.site.nothing_left()
    }
}

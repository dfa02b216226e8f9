//! A volume grows while two hosts have it. Both see the new size under their paths and keep
//! working, and the added space contains nothing of older data.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, number, progress};

const GIB: u64 = 1 << 30;

/// The old data, and the size of the part that is searched.
const DIRT: &str = "somebody's old data";
const DIRT_MIB: u64 = 64;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("extend").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    soil(site)?;
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let mut growth = Growth { site, control, evidence: Evidence::default(), volume };
    let result = growth.acts(agent);
    if result.is_err() {
        growth.control.print_logs();
    }
    result
}

/// Writes old data where the volume will grow: right after its first GiB.
fn soil(site: &Site) -> Result<()> {
    let script = format!(
        "lvcreate -q -y -Wn -Zn -n dirt -L {}M {GROUP}; \
         yes \"{DIRT}\" | dd of=/dev/{GROUP}/dirt bs=1M seek=1024 count={DIRT_MIB} iflag=fullblock oflag=direct; \
         sync; lvremove -q -y {GROUP}/dirt",
        1024 + DIRT_MIB
    );
    site.storage()?.sh(&script)?.ok()?;
    Ok(())
}

struct Growth<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
}

impl<'a> Growth<'a> {
    fn acts(&mut self, agent: Running) -> Result<()> {
        self.control_shows_the_dirt()?;
        let (writer_id, one) = self.attach("host1", "rw")?;
        let (reader_id, two) = self.attach("host2", "ro")?;
        let (writer, reader) = (one.write_stamps(&[])?, two.watch_stamps()?);
        self.grown(&one, &two)?;
        let agent = self.killed_meanwhile(agent, &[&one, &two])?;
        self.wrong_sizes()?;
        for (who, running) in [("the writer", writer), ("the reader", reader)] {
            let seen = progress(&running)?;
            check(number(&seen, "errors")? == 0 && number(&seen, "done")? > 0, || format!("{who}: {seen}"))?;
            running.kill()?;
            drop(running.wait()?);
            self.evidence.shows(format!(
                "{who}: {} I/Os, 0 errors, longest gap {} ms",
                number(&seen, "done")?,
                number(&seen, "longest_gap_ms")?
            ));
        }
        for id in [writer_id, reader_id] {
            self.control.json(&["detach", &id])?;
        }
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "300"])?;
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        agent.kill()?;
        drop(agent.wait()?);
        self.site.nothing_left()
    }

    fn attach(&self, host: &str, mode: &str) -> Result<(String, Disk<'a>)> {
        let live = self.control.attach(&self.volume, host, mode)?;
        let disk = Disk::new(self.site.rig.vm(host)?, text(&live, "device_path")?);
        Ok((text(&live, "id")?.to_owned(), disk))
    }

    /// Counts the non-zero bytes of a script's output.
    fn not_zero(&self, vm: &str, script: &str) -> Result<u64> {
        let out = self.site.rig.vm(vm)?.sh(&format!("{script} | tr -d '\\000' | wc -c"))?.ok()?;
        out.stdout.trim().parse().with_context(|| out.stdout.clone())
    }

    /// Control: LVM alone hands out these extents as they are.
    fn control_shows_the_dirt(&mut self) -> Result<()> {
        let script = format!("lvcreate -q -y -Wn -Zn -n control -L {DIRT_MIB}M {GROUP}");
        let storage = self.site.storage()?;
        storage.sh(&script)?.ok()?;
        let read = format!("dd if=/dev/{GROUP}/control bs=1M count={DIRT_MIB} iflag=direct 2>/dev/null");
        let seen = self.not_zero("storage", &read)?;
        storage.sh(&format!("lvremove -q -y {GROUP}/control"))?.ok()?;
        check(seen > 0, || "the control does not see the old data: nothing would be shown".to_owned())?;
        self.evidence.shows(format!("control: a plain LV behind the volume shows {seen} bytes of old data"));
        Ok(())
    }

    fn until_sizes(&self, disks: &[&Disk<'a>], gib: u64) -> Result<()> {
        for (disk, host) in disks.iter().zip(["host1", "host2"]) {
            let vm = self.site.rig.vm(host)?;
            wait_for("the new size on the host", Duration::from_mins(2), || {
                let script = format!("cat /sys/class/block/$(basename $(readlink -e {}))/size", disk.path);
                let sectors = vm.sh(&script)?.ok()?.stdout.trim().parse::<u64>().ok();
                Ok((sectors == Some(gib * GIB / 512)).then_some(()))
            })?;
        }
        Ok(())
    }

    fn grown(&mut self, one: &Disk<'a>, two: &Disk<'a>) -> Result<()> {
        let grown =
            self.control.json(&["volume", "extend", &self.volume, "--size", "2GiB", "--timeout", "300"])?;
        check(grown["done"] == true && grown["size_gib"] == 2 && grown["status"] == "in-use", || {
            format!("{grown}")
        })?;
        self.until_sizes(&[one, two], 2)?;
        self.evidence.shows("`mooring volume extend` with two hosts attached: both kernels have 2 GiB");
        let read = format!("dd if={} bs=1M skip=1024 count={DIRT_MIB} iflag=direct 2>/dev/null", two.path);
        let seen = self.not_zero("host2", &read)?;
        check(seen == 0, || format!("{seen} bytes of old data are visible on host2"))?;
        self.evidence.shows("what it has grown by reads as zeros on the other host");
        Ok(())
    }

    /// The storage agent dies while it zeroes, and its successor finishes.
    fn killed_meanwhile(&mut self, agent: Running, disks: &[&Disk<'a>]) -> Result<Running> {
        let words = ["--timeout", "1", "volume", "extend", &self.volume, "--size", "3GiB"];
        let asked = self.control.mooring(&words)?;
        check(matches!(asked.status.code(), Some(0 | 5)), || format!("extend: {}", asked.stderr))?;
        let lvs = self.site.storage()?.sh(&format!("lvs --noheadings -o lv_name {GROUP}"))?.ok()?.stdout;
        let under_way = lvs.contains("mooring-grow-");
        agent.kill()?;
        drop(agent.wait()?);
        let agent = self.site.start_agent()?;
        let words = ["volume", "extend", &self.volume, "--size", "3GiB", "--timeout", "300"];
        let grown = self.control.json(&words)?;
        check(grown["done"] == true && grown["size_gib"] == 3, || format!("{grown}"))?;
        self.until_sizes(disks, 3)?;
        let when = if under_way { "while it zeroed" } else { "(the zeroing was over already)" };
        self.evidence
            .shows(format!("storage agent killed with -9 {when}: both hosts have 3 GiB all the same"));
        Ok(agent)
    }

    fn wrong_sizes(&mut self) -> Result<()> {
        for (size, word, code) in [("1GiB", "never shrinks", 4), ("90000GiB", "no room", 4)] {
            let out = self.control.mooring(&["volume", "extend", &self.volume, "--size", size])?;
            let said = out.stderr.trim();
            check(out.status.code() == Some(code) && said.contains(word), || {
                format!("extend to {size}: {:?} {said}", out.status)
            })?;
            self.evidence.shows(format!("extend to {size}: {said}"));
        }
        Ok(())
    }
}

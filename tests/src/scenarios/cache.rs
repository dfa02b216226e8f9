//! The cache flag of attachments on a real kernel. A process keeps the disk open all the time, as
//! the user of another attachment does: at the last close the kernel would drop the page cache by
//! itself, and nothing would be shown.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{Kernel, RigOptions, Running, Vm};
use serde_json::Value;

use crate::control::{Control, PORT, attachment_of};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{Programs, Site};

use users::Users;

mod users;

const HALF_MINUTE: Duration = Duration::from_secs(30);

/// Number of writes of host1, each followed by an attach of host2.
const ROUNDS: u32 = 4;

/// Bytes that a writer leaves in the page cache.
const DIRTY_BYTES: u64 = 4 << 20;

/// Tolerance of the kernel's count of them.
const SLACK: u64 = 192 << 10;

/// Read-ahead set by an operator, in sectors; the kernel's default differs.
const OWN_READ_AHEAD: &str = "2048";

pub(super) fn run(programs: &Programs) -> Result<()> {
    on(programs, Kernel::Stable)
}

pub(super) fn backports(programs: &Programs) -> Result<()> {
    on(programs, Kernel::Backports)
}

fn on(programs: &Programs, kernel: Kernel) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("cache").kernel(kernel).forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let live = control.attach(&volume, "host1", "rw")?;
    let writer = Disk::new(site.rig.vm("host1")?, text(&live, "device_path")?);
    let mut scene = Scene {
        reader: site.rig.vm("host2")?,
        control,
        evidence: Evidence::default(),
        volume,
        writer,
        stamp: 0,
    };
    let result = scene.acts(text(&live, "id")?);
    if result.is_err() {
        scene.control.print_logs();
    }
    result?;
    site.nothing_left()?;
    agent.kill()
}

struct Scene<'a> {
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
    /// The disk on host1, which writes past its page cache.
    writer: Disk<'a>,
    /// Host2, which reads through its page cache.
    reader: &'a Vm,
    /// The last stamp written.
    stamp: u32,
}

/// An attachment on host2.
struct Attached {
    id: String,
    path: String,
}

impl Scene<'_> {
    fn acts(&mut self, writer: &str) -> Result<()> {
        self.default_of_the_type()?;
        self.rounds("on")?;
        self.rounds("off")?;
        self.live_change()?;
        self.holds()?;
        self.dirty_pages()?;
        Users { scene: self }.acts()?;
        self.lost_pages()?;
        self.control.json(&["detach", writer])?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        Ok(())
    }

    /// host1 writes the next stamp into the first block, past its page cache.
    fn write(&mut self) -> Result<String> {
        self.stamp += 1;
        let stamp = format!("{:08}", self.stamp);
        let path = &self.writer.path;
        let script =
            format!("printf {stamp} | dd of={path} bs=4096 conv=sync,notrunc oflag=direct status=none");
        self.writer.vm.sh(&script)?.ok()?;
        Ok(stamp)
    }

    /// The stamp in the first block, as host1 reads it past its page cache.
    fn on_target(&self) -> Result<String> {
        let path = &self.writer.path;
        let script = format!("dd if={path} bs=4096 count=1 iflag=direct status=none | head -c 8");
        Ok(self.writer.vm.sh(&script)?.ok()?.stdout)
    }

    fn read_buffered(&self, path: &str) -> Result<String> {
        let script = format!("dd if={path} bs=4096 count=1 status=none | head -c 8");
        Ok(self.reader.sh(&script)?.ok()?.stdout)
    }

    fn attach(&self, more: &[&str]) -> Result<(Attached, Value)> {
        let words = [&["attach", &self.volume, "--host", "host2", "--mode", "rw"], more].concat();
        let live = attachment_of(self.control.json(&words)?);
        Ok((
            Attached { id: text(&live, "id")?.to_owned(), path: text(&live, "device_path")?.to_owned() },
            live,
        ))
    }

    fn detach(&self, attached: &Attached) -> Result<()> {
        self.control.json(&["detach", &attached.id]).map(drop)
    }

    /// Starts a process on host2 that opens the disk in this way (`3<`: for reading), does one
    /// thing and keeps it open.
    fn keep_open(&self, path: &str, how: &str, then: &str) -> Result<Running> {
        let script = format!("exec {how}{path}; {then}; echo open; exec sleep 600");
        let keeper = self.reader.command(["sh", "-c", &script]).spawn()?;
        check(keeper.wait_stdout("open", Duration::from_mins(2)), || {
            "nobody keeps the disk open".to_owned()
        })?;
        Ok(keeper)
    }

    /// A forced detach loses unwritten pages, and reports how many bytes they were.
    fn lost_pages(&mut self) -> Result<()> {
        let (attached, _) = self.attach(&["--cache", "off"])?;
        let fill = format!("dd if=/dev/zero bs={DIRTY_BYTES} count=1 status=none >&4");
        let writer = self.keep_open(&attached.path, "4<>", &fill)?;
        self.control.force_detach(&attached.id)?;
        let record = wait_for("what was not written", HALF_MINUTE, || {
            let record = self.control.json(&["receipt", "show", &attached.id])?;
            Ok(record["unwritten_bytes"].is_u64().then_some(record))
        })?;
        let lost = record["unwritten_bytes"].as_u64().unwrap_or_default();
        check(lost.abs_diff(DIRTY_BYTES) <= SLACK, || {
            format!("{DIRTY_BYTES} bytes were not written, and the record says {record}")
        })?;
        Self::close(writer)?;
        self.evidence.shows(format!(
            "a forced detach with {DIRTY_BYTES} bytes in the page cache alone: its record says that {lost} were not written"
        ));
        Ok(())
    }

    fn close(keeper: Running) -> Result<()> {
        keeper.kill()?;
        keeper.wait().map(drop)
    }

    /// Sectors that host2 reads ahead of a disk.
    fn read_ahead(&self, path: &str) -> Result<String> {
        Ok(self.reader.sh(&format!("blockdev --getra {path}"))?.ok()?.stdout.trim().to_owned())
    }

    fn in_force(live: &Value) -> (Option<&str>, Option<&str>) {
        (live["cache"].as_str(), live["cache_in_force"].as_str())
    }

    fn default_of_the_type(&mut self) -> Result<()> {
        let (attached, live) = self.attach(&[])?;
        check(Self::in_force(&live) == (Some("off"), Some("off")), || format!("of a shared volume: {live}"))?;
        check(live["hints"]["cache"] == "none" && live["hints"]["io"] == "native", || live.to_string())?;
        self.detach(&attached)?;
        self.evidence.shows("an attachment of a volume that can be shared has its cache off, and says so");
        Ok(())
    }

    /// Host1 writes; host2 attaches, reads buffered and detaches; repeatedly.
    fn rounds(&mut self, cache: &str) -> Result<()> {
        self.write()?;
        let (kept, _) = self.attach(&["--cache", cache])?;
        let keeper = self.keep_open(&kept.path, "3<", ":")?;
        self.read_buffered(&kept.path)?;
        let mut stale = Vec::new();
        for _ in 0..ROUNDS {
            let stamp = self.write()?;
            let (attached, live) = self.attach(&["--cache", cache])?;
            check(Self::in_force(&live) == (Some(cache), Some(cache)), || live.to_string())?;
            let seen = self.read_buffered(&attached.path)?;
            if seen != stamp {
                stale.push(format!("{seen} and not {stamp}"));
            }
            self.detach(&attached)?;
        }
        Self::close(keeper)?;
        self.detach(&kept)?;
        let which = stale.join(", ");
        if cache == "off" {
            check(stale.is_empty(), || format!("cache off, and old blocks are read: {which}"))?;
            self.evidence.shows(format!("cache off: {ROUNDS} of {ROUNDS} attaches see the newest block"));
        } else {
            check(!stale.is_empty(), || {
                "the control shows nothing: every read saw the newest block".to_owned()
            })?;
            let count = stale.len();
            self.evidence.shows(format!(
                "control, cache on: {count} of {ROUNDS} attaches read an old block ({which})"
            ));
        }
        Ok(())
    }

    /// Turns the cache off and on while the path stands, with an operator's own read-ahead.
    fn live_change(&mut self) -> Result<()> {
        self.write()?;
        let (attached, _) = self.attach(&["--cache", "on"])?;
        let keeper = self.keep_open(&attached.path, "3<", ":")?;
        self.reader.sh(&format!("blockdev --setra {OWN_READ_AHEAD} {}", attached.path))?.ok()?;
        let old = self.read_buffered(&attached.path)?;
        let stamp = self.write()?;
        check(self.read_buffered(&attached.path)? == old, || {
            "the control shows nothing: no old block".to_owned()
        })?;
        let live = attachment_of(self.control.json(&["attachment", "cache", &attached.id, "off"])?);
        check(Self::in_force(&live) == (Some("off"), Some("off")), || live.to_string())?;
        let seen = self.read_buffered(&attached.path)?;
        check(seen == stamp, || format!("after the change {seen} is read, and not {stamp}"))?;
        check(self.read_ahead(&attached.path)? == "0", || "it reads ahead".to_owned())?;
        let live = attachment_of(self.control.json(&["attachment", "cache", &attached.id, "on"])?);
        check(Self::in_force(&live) == (Some("on"), Some("on")), || live.to_string())?;
        let back = self.read_ahead(&attached.path)?;
        check(back == OWN_READ_AHEAD, || format!("the read-ahead is {back}, and was {OWN_READ_AHEAD}"))?;
        Self::close(keeper)?;
        self.detach(&attached)?;
        self.evidence.shows(format!(
            "turned off where it is: the newest block, no read-ahead; turned on: the read-ahead is {OWN_READ_AHEAD} again, as it was"
        ));
        Ok(())
    }

    /// The flag survives a recovery of the session, an agent's restart, and a disk that returns
    /// under another name.
    fn holds(&mut self) -> Result<()> {
        let (attached, live) = self.attach(&["--cache", "off"])?;
        let relogins = |control: &Control<'_>| -> Result<i64> {
            let host = control.hosts.get(1).context("host2")?;
            Ok(host.sessiond_log().matches("logged in").count().try_into()?)
        };
        let before = relogins(&self.control)?;
        self.reader.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
        wait_for("the session to be logged in again", HALF_MINUTE, || {
            Ok((relogins(&self.control)? > before
                && self.control.live(&attached.id)?["host_phase"] == "ready")
                .then_some(()))
        })?;
        check(self.read_ahead(&attached.path)? == "0", || "it reads ahead after a recovery".to_owned())?;
        let host = self.control.hosts.get_mut(1).context("host2")?;
        host.kill_agent()?;
        host.start_agent()?;
        let disk = text(&live, "disk")?.to_owned();
        let name = disk.trim_start_matches("/dev/").to_owned();
        self.is_off_soon(&attached)?;
        // A disk that was deleted is found again by a scan, as another one.
        self.reader.sh(&format!("echo 1 > /sys/block/{name}/device/delete"))?.ok()?;
        wait_for("another disk behind the path", HALF_MINUTE, || {
            let script = format!(
                "test -b {0} && cat /sys/block/$(basename $(readlink -f {0}))/diskseq",
                attached.path
            );
            Ok(self.reader.sh(&script)?.status.success().then_some(()))
        })?;
        self.is_off_soon(&attached)?;
        self.limits_read_anew(&attached)?;
        self.detach(&attached)?;
        self.evidence
            .shows("off over a recovery, an agent's kill -9, and a disk that was deleted and came back");
        Ok(())
    }

    /// Linux 6.11 and newer reset the read-ahead together with the disk's limits.
    fn limits_read_anew(&mut self, attached: &Attached) -> Result<()> {
        let rescan =
            format!("echo 1 > /sys/block/$(basename $(readlink -f {}))/device/rescan", attached.path);
        self.reader.sh(&rescan)?.ok()?;
        let after = self.read_ahead(&attached.path)?;
        // No event announces it: the next look finds it.
        wait_for("no read-ahead", Duration::from_mins(1), || {
            Ok((self.read_ahead(&attached.path)? == "0").then_some(()))
        })?;
        self.evidence
            .shows(format!("the kernel has read the disk's limits anew (read-ahead {after} then): 0 again"));
        Ok(())
    }

    fn is_off_soon(&self, attached: &Attached) -> Result<()> {
        wait_for("the cache to be off", HALF_MINUTE, || {
            let live = self.control.live(&attached.id)?;
            let off = Self::in_force(&live) == (Some("off"), Some("off")) && live["host_phase"] == "ready";
            Ok((off && self.read_ahead(&attached.path)? == "0").then_some(()))
        })
    }

    /// Buffered writes that are only in the page cache are on the target once their attachment is
    /// gone.
    fn dirty_pages(&mut self) -> Result<()> {
        let old = self.write()?;
        // Keep the kernel from writing back by itself for an hour. (0 would not do: the kernel then
        // looks at once, and a disk without a history has no share of the dirty pages.)
        self.reader.sh("echo 360000 > /proc/sys/vm/dirty_writeback_centisecs")?.ok()?;
        let (kept, _) = self.attach(&["--cache", "off"])?;
        let (attached, _) = self.attach(&["--cache", "off"])?;
        // The writer keeps the disk open: after a writer's close, udev has the partitions read
        // again, which writes back.
        let writer = self.keep_open(&attached.path, "4<>", "printf written1 >&4")?;
        check(self.on_target()? == old, || {
            "the control shows nothing: it was written out by itself".to_owned()
        })?;
        self.detach(&attached)?;
        let seen = self.on_target()?;
        check(seen == "written1", || format!("after the detach {seen} is on the target"))?;
        Self::close(writer)?;
        self.detach(&kept)?;
        self.evidence.shows(
            "a detach writes out what the page cache alone had, while another attachment keeps the disk open",
        );
        Ok(())
    }
}

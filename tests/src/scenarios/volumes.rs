//! Work of a storage node on volumes besides serving them, on a real kernel: a zeroing that is
//! visible, limited, and continues after kill -9; an LV that becomes a volume with its content and
//! is unmanaged again; sessions negotiated as their type says.
//!
//! What must never happen here: a tuning believed because the agent says so; the initiator's sysfs
//! is the witness.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, agent_config, going, number, progress};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// MiB of old data in the group, right where the first volume will be.
const DIRT_MIB: u64 = 64;
/// Size of the volume whose zeroing is watched: its progress is marked at every GiB.
const ZEROED: u64 = 2 * GIB;
/// Bytes per second that the zeroing may write.
const LIMIT: u64 = 64 * MIB;
/// Content of an LV that already exists.
const HELD: &str = "what was there before";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("volumes").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

/// Starts the agent with more lines in its configuration. Deletions are not shown here: they take
/// no time.
fn start_agent(site: &Site, extra: &str) -> Result<Running> {
    site.start_agent_by(&format!("{}wipe = \"none\"\n", agent_config(extra)))
}

fn scenes(site: &Site) -> Result<()> {
    let agent = start_agent(site, "")?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
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

impl Acts<'_> {
    fn all(&mut self, agent: Running) -> Result<()> {
        let agent = self.zeroing(agent)?;
        self.managed()?;
        self.tuned()?;
        agent.kill()?;
        drop(agent.wait()?);
        self.site.nothing_left()
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// Counts non-zero bytes in the first MiB of a device of the storage node.
    fn not_zero(&self, device: &str, mib: u64) -> Result<u64> {
        let seen = self.storage(&format!(
            "dd if={device} bs=1M count={mib} iflag=direct 2>/dev/null | tr -d '\\000' | wc -c"
        ))?;
        seen.trim().parse().with_context(|| seen.clone())
    }

    /// The only job at work; `None`: there is none.
    fn job(&self) -> Result<Option<Value>> {
        let all = self.control.json(&["job", "list"])?;
        Ok(all["jobs"].as_array().and_then(|jobs| jobs.first()).cloned())
    }

    /// Writes old data where the first volume will be; the control shows that LVM alone reveals it.
    fn soil(&self) -> Result<()> {
        self.storage(&format!(
            "lvcreate -q -y -Wn -Zn -n dirt -L {DIRT_MIB}M {GROUP} >&2; \
             tr '\\000' x < /dev/zero | dd of=/dev/{GROUP}/dirt bs=1M count={DIRT_MIB} iflag=fullblock oflag=direct 2>/dev/null; \
             lvremove -q -y {GROUP}/dirt >&2; lvcreate -q -y -Wn -Zn -n control -L {DIRT_MIB}M {GROUP} >&2"
        ))?;
        let seen = self.not_zero(&format!("/dev/{GROUP}/control"), DIRT_MIB)?;
        self.storage(&format!("lvremove -q -y {GROUP}/control"))?;
        check(seen > 0, || "the control does not see the old data: nothing would be shown".to_owned())
    }

    /// A zeroing under a limit, killed after its first mark.
    fn zeroing(&mut self, agent: Running) -> Result<Running> {
        self.soil()?;
        let limit = LIMIT.to_string();
        let set = self.control.json(&["job", "throttle", &limit, "--host", "storage"])?;
        check(number(&set["host"], "bytes_per_second")? == LIMIT, || set.to_string())?;
        let size = ZEROED.to_string();
        let asked = self.control.mooring(&["--timeout", "1", "volume", "create", "slow", "--size", &size])?;
        check(asked.status.code() == Some(5), || {
            format!("it did not wait for the zeroing: {}", asked.stderr)
        })?;
        let seen = wait_for("the zeroing to be behind its first mark", Duration::from_mins(2), || {
            let job = self.job()?;
            Ok(job.filter(|job| job["done_bytes"].as_u64().is_some_and(|done| done > GIB + 64 * MIB)))
        })?;
        let (done, rate) = (number(&seen, "done_bytes")?, number(&seen, "bytes_per_second")?);
        check(
            seen["kind"] == "zero" && seen["limited"] == true && number(&seen, "total_bytes")? == ZEROED,
            || seen.to_string(),
        )?;
        check(done < ZEROED && rate <= LIMIT + LIMIT / 4, || {
            format!("not as slow as was asked for: {seen}")
        })?;
        self.evidence.shows(format!(
            "a new volume is zeroed at {} MiB/s (limit {}), seen at {} %",
            rate / MIB,
            LIMIT / MIB,
            seen["percent"]
        ));
        let attach = self.control.mooring(&["attach", "slow", "--host", "host1", "--mode", "rw"])?;
        check(!attach.status.success(), || "a volume was attached before it was zeroed".to_owned())?;
        agent.kill()?;
        drop(agent.wait()?);
        let tags = self.storage(&format!("lvs --noheadings -o lv_tags {GROUP}"))?;
        check(tags.contains("mooring-zeroed-1024"), || format!("no mark: {tags}"))?;
        // It must not end before it is seen to continue, however slow the questions are.
        let agent = start_agent(self.site, "job_limit = \"4MiB\"\n")?;
        let resumed = wait_for("the zeroing to go on", Duration::from_mins(2), || {
            Ok(self.job()?.and_then(|job| job["resumed_bytes"].as_u64()))
        })?;
        check(resumed == GIB, || format!("it went on at {resumed}"))?;
        self.control.json(&["job", "throttle", "none", "--host", "storage"])?;
        let ready = self.until_status("slow", "available")?;
        let device = format!("/dev/{GROUP}/mooring-{}", text(&ready, "id")?);
        let seen = self.not_zero(&device, DIRT_MIB)?;
        check(seen == 0, || format!("{seen} bytes of old data are in the volume"))?;
        self.evidence.shows("agent killed with -9: the zeroing goes on at its mark, 1 GiB; the volume reads as zeros where old data lay");
        self.control.json(&["volume", "delete", "slow", "--timeout", "300"])?;
        Ok(agent)
    }

    fn until_status(&self, name: &str, status: &str) -> Result<Value> {
        wait_for("the volume's status", Duration::from_mins(4), || {
            let shown = self.control.json(&["volume", "show", name])?;
            Ok((shown["status"] == status).then_some(shown))
        })
    }

    /// A foreign LV becomes a volume with its content, and is foreign again. Another one is not
    /// touched.
    fn managed(&mut self) -> Result<()> {
        self.storage(&format!(
            "for lv in theirs other; do lvcreate -q -y -Wn -n $lv -L 1G {GROUP} >&2; \
             echo '{HELD}' | dd of=/dev/{GROUP}/$lv bs=4k conv=sync oflag=direct 2>/dev/null; done"
        ))?;
        let row = |lv: &str| {
            format!(
                "lvs --noheadings -o lv_uuid,lv_name,lv_tags,lv_size {GROUP}/{lv}; sha256sum /dev/{GROUP}/{lv}"
            )
        };
        let other = self.storage(&row("other"))?;
        let listed = self.control.json(&["volume", "manageable", "--host", "storage"])?;
        let found =
            listed["lvs"].as_array().context("a list")?.iter().filter(|lv| lv["manageable"] == true).count();
        check(found == 2, || listed.to_string())?;
        let taken = self.control.json(&[
            "volume",
            "manage",
            &format!("{GROUP}/theirs"),
            "--host",
            "storage",
            "--timeout",
            "120",
        ])?;
        check(taken["done"] == true, || taken.to_string())?;
        let live = self.control.attach("theirs", "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
        let seen = disk
            .vm
            .sh(&format!("dd if={} bs=4k count=1 iflag=direct 2>/dev/null | head -1", disk.path))?
            .ok()?;
        check(seen.line() == HELD, || format!("the host reads {:?}", seen.stdout))?;
        disk.vm
            .sh(&format!(
                "echo changed | dd of={} bs=4k conv=sync,notrunc oflag=direct 2>/dev/null",
                disk.path
            ))?
            .ok()?;
        let early = self.control.mooring(&["volume", "unmanage", "theirs"])?;
        check(!early.status.success(), || "an attached volume was unmanaged".to_owned())?;
        self.control.json(&["detach", text(&live, "id")?])?;
        let gone = self.control.json(&["volume", "unmanage", "theirs", "--timeout", "120"])?;
        let lv = text(&gone, "lv")?;
        let left = self.storage(&format!(
            "lvs --noheadings -o lv_name,lv_tags -S 'lv_name=~^mooring' {GROUP}; head -c 7 /dev/{GROUP}/{0}; lvremove -q -y {GROUP}/{0} >&2",
            lv.rsplit('/').next().unwrap_or(lv)
        ))?;
        check(left.contains("changed") && !left.contains(" mooring\n"), || format!("what is left: {left}"))?;
        let after = self.storage(&row("other"))?;
        check(after == other, || format!("an LV that nobody named was {other}, and is {after}"))?;
        self.storage(&format!("lvremove -q -y {GROUP}/other >&2"))?;
        self.evidence.shows(format!(
            "an LV with data became a volume, was read and written by a host, and stays without our tag as {lv}; refused while attached ({}); another LV is byte for byte what it was",
            early.stderr.lines().next().unwrap_or_default()
        ));
        Ok(())
    }

    /// One number of the host's newest session or connection, from sysfs.
    fn negotiated(&self, of: &str, what: &str) -> Result<u64> {
        let vm = self.site.rig.vm("host1")?;
        let out = vm.sh(&format!("cat /sys/class/iscsi_{of}/*/{what} | tail -1"))?.ok()?;
        out.line().trim().parse().with_context(|| format!("{what}: {:?}", out.stdout))
    }

    fn all_negotiated(&self) -> Result<[u64; 6]> {
        Ok([
            self.negotiated("connection", "header_digest")?,
            self.negotiated("connection", "data_digest")?,
            self.negotiated("session", "max_burst_len")?,
            self.negotiated("session", "first_burst_len")?,
            self.negotiated("session", "initial_r2t")?,
            self.negotiated("session", "immediate_data")?,
        ])
    }

    /// The kernels agree on the type's values; the control is a type that sets none.
    fn tuned(&mut self) -> Result<()> {
        let wrong =
            self.control.mooring(&["type", "create", "wrong", "--spec", "mooring:data_digest=md5"])?;
        check(!wrong.status.success() && wrong.stderr.contains("data_digest"), || wrong.stderr.clone())?;
        let specs = [
            "mooring:header_digest=crc32c",
            "mooring:data_digest=crc32c",
            "mooring:max_burst=65536",
            "mooring:first_burst=32768",
            "mooring:initial_r2t=<is> False",
            // Set without effect: it never has any.
            "mooring:immediate_data=<is> True",
        ];
        let mut words = vec!["type", "create", "tuned"];
        for spec in specs {
            words.extend(["--spec", spec]);
        }
        self.control.json(&words)?;
        let mut seen = Vec::new();
        for (name, of_type) in [("plain", None), ("checked", Some("tuned"))] {
            self.control.volume(name, of_type)?;
            let live = self.control.attach(name, "host1", "rw")?;
            let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
            let writer = disk.write_stamps(&["--seconds", "60"])?;
            going(&writer)?;
            sleep(Duration::from_secs(1));
            let said = progress(&writer)?;
            check(number(&said, "errors")? == 0, || said.to_string())?;
            writer.kill()?;
            drop(writer.wait()?);
            seen.push(self.all_negotiated()?);
            self.control.json(&["detach", text(&live, "id")?])?;
            self.control.json(&["volume", "delete", name, "--timeout", "300"])?;
        }
        let [plain, checked] = seen.as_slice() else { anyhow::bail!("{seen:?}") };
        check(plain[..2] == [0, 0] && plain[2] > 65536 && plain[4..] == [1, 0], || {
            format!("control: a type that says nothing: {plain:?}")
        })?;
        check(*checked == [1, 1, 65536, 32768, 0, 0], || format!("the type's words, and {checked:?}"))?;
        self.evidence.shows(format!(
            "sessions are negotiated as the type says, writes go: CRC32C over headers and data, MaxBurst {}, FirstBurst {}; control without words: {plain:?}; {}",
            checked[2],
            checked[3],
            wrong.stderr.lines().next().unwrap_or_default()
        ));
        Ok(())
    }
}

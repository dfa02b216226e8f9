//! `cargo xtask bench node`: measures a storage node's work with few and with many volumes, beside
//! rtslib and `targetctl` at the same work and beside the bare system calls, in one VM and one
//! boot.
//!
//! The volumes are real LVs, made in bulk: metadata that names them is restored into the volume
//! group, and device-mapper makes their devices in one go. LVM and udev take 0.2 s for each under
//! software emulation. The agent's own code fills its store on the machine that runs the benchmark.
//!
//! What must never happen here: a ratio between figures of two runs; a bar called met that was not
//! measured.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, VmSpec};
use serde_json::Value;

use crate::bench::{figure, lv_metadata};
use crate::evidence::{check, wait_for};
use crate::site::{BIN, GROUP, Programs, Site, TARGET, agent_config, number};

/// Measurements with one number of volumes.
#[derive(Debug, Clone, Copy)]
struct Case {
    volumes: u32,
    hosts: usize,
    /// `true`: also `targetctl restore` of the same tree.
    targetctl: bool,
    /// `true`: also grants and revokes.
    grants: bool,
    /// `true`: also the idle agent.
    idle: bool,
}

impl Case {
    /// Number of measured restores; the median counts. One takes minutes with thousands of volumes.
    const fn restores(&self) -> usize {
        match self.volumes {
            0..=100 => 5,
            101..=500 => 3,
            _ => 1,
        }
    }
}

const fn case(volumes: u32, hosts: usize) -> Case {
    Case { volumes, hosts, targetctl: false, grants: false, idle: false }
}

/// The median of the samples.
fn median(mut all: Vec<u64>) -> Result<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied().context("nothing was measured")
}

const FULL: [Case; 5] = [
    Case { grants: true, ..case(1, 2) },
    Case { grants: true, targetctl: true, ..case(100, 2) },
    Case { targetctl: true, ..case(500, 2) },
    Case { grants: true, idle: true, ..case(1000, 4) },
    Case { grants: true, ..case(5000, 1) },
];

const QUICK: [Case; 2] =
    [Case { grants: true, ..case(1, 2) }, Case { grants: true, targetctl: true, idle: true, ..case(100, 2) }];

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// `true`: only 1 and 100 volumes.
    pub quick: bool,
    /// Only the cases with these numbers of volumes; empty: all.
    pub volumes: Vec<u32>,
    /// Rounds of grants in each case.
    pub rounds: u32,
    /// Processors of the VM.
    pub cpus: u8,
}

const LONG: Duration = Duration::from_mins(30);

/// Prints the number of LVs that the agent's store remembers.
const REMEMBERED: &str = "python3 -c \"import sqlite3; \
    print(sqlite3.connect('/srv/mooring/state/mooring-agent.db').execute('SELECT count(*) FROM whole_lvs').fetchone()[0])\"";

/// Time after which the agent is at rest: two resyncs and their work.
const SETTLES: Duration = Duration::from_secs(100);

/// Time for which the agent must use less than a tenth of a processor; then the work after its
/// start is done.
const CALM: Duration = Duration::from_secs(5);

/// Time limit for the looks after a start; a longer one is a defect.
const CALMS_WITHIN: Duration = Duration::from_mins(10);

/// Time for which the agent is left alone: it has ten resyncs, one of which asks LVM. A single
/// minute would include that one only by chance.
const IDLE: Duration = Duration::from_mins(5);

/// Seconds of processor time and KiB of memory of a process, as in /proc: its own, and its ended
/// children's.
struct Use {
    own_ticks: u64,
    children_ticks: u64,
    resident_kib: u64,
}

/// Milliseconds of the restores with one number of volumes.
#[derive(Default)]
struct Restored {
    ours: u64,
    /// The part that made the exports; `None` with few volumes.
    making: Option<u64>,
    /// The way in which the fastest floor was made.
    best: &'static str,
    floor: u64,
    targetctl: Option<u64>,
}

struct Bench {
    site: Site,
    rounds: u32,
    text: String,
    /// Further grants and revokes at p50, by number of volumes: ours, then the floor.
    grants: Vec<(u32, [u64; 2], [u64; 2])>,
    restored: Vec<(Case, Restored)>,
}

/// Runs the benchmark and prints its results.
pub fn run(programs: &Programs, options: &Options) -> Result<()> {
    let cases: &[Case] = if options.quick { &QUICK } else { &FULL };
    let chosen = |case: &&Case| options.volumes.is_empty() || options.volumes.contains(&case.volumes);
    let cases: Vec<_> = cases.iter().filter(chosen).copied().collect();
    check(!cases.is_empty(), || format!("no case has one of {:?} volumes", options.volumes))?;
    let bench = Bench::up(programs, options)?;
    let bench = bench.measure(&cases)?;
    println!("{}", bench.text);
    println!("{}", bench.bars()?);
    bench.site.rig.check_consoles()
}

impl Bench {
    fn up(programs: &Programs, &Options { rounds, cpus, .. }: &Options) -> Result<Self> {
        let mut options = RigOptions::standard(0).named("bench-node");
        if let Some(storage) = options.vms.first_mut() {
            let standard = VmSpec::storage();
            // 5,000 LVs of 4 MiB and their metadata; the agent's state; the devices of rtslib and
            // of the floor.
            let disks = vec![24 << 30, 4 << 30, 2 << 30];
            *storage = VmSpec { memory_mib: 4096, cpus, disks, ..standard };
        }
        let site = Site::up(options, programs)?;
        let storage = site.storage()?;
        site.uses(&["mooring-floor", "mooring-load", "mooring-restore"])?;
        storage.write("/run/rtslib.py", include_bytes!("bench_node.py"), 0o600)?;
        storage.write("/etc/mooring/agent.toml", agent_config("").as_bytes(), 0o600)?;
        let disk = storage.data_disks().first().cloned().context("the first data disk")?;
        // Make space for the metadata of thousands. udev is not needed from here on, and would look
        // at each device.
        let script = format!(
            "vgremove -q {GROUP}; pvremove -q {disk}; pvcreate -q --metadatasize 64m {disk}; vgcreate -q {GROUP} {disk}; \
             vgcfgbackup -q -f /run/vg.empty {GROUP}; udevadm settle; udevadm control --exit"
        );
        storage.command(["sh", "-euc", &script]).timeout(LONG).run()?.ok()?;
        let mut text = String::new();
        writeln!(
            text,
            "kernel {}, {:?}, {cpus} processor(s), {rounds} rounds of grants; LVs by restored metadata, devices by dmsetup, store filled \
             beforehand, no udev",
            site.rig.kernel(),
            site.rig.accel()
        )?;
        let bench = Self { site, rounds, text, grants: Vec::new(), restored: Vec::new() };
        bench.make_spare_devices()?;
        Ok(bench)
    }

    fn measure(mut self, cases: &[Case]) -> Result<Self> {
        for case in cases {
            let before = self.text.len();
            self.prepare(*case)?;
            let restored = self.restore(*case)?;
            let pid = self.start_agent(*case, restored)?;
            if case.grants {
                self.calm_down(pid)?;
                self.grants(*case)?;
            }
            if case.idle {
                self.idle(*case, pid)?;
            }
            self.stop_agent(pid)?;
            println!("{}", &self.text[before..]);
        }
        Ok(self)
    }

    fn sh(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.command(["sh", "-euc", script]).timeout(LONG).run()?.ok()?.stdout)
    }

    /// Runs a program of the benchmark and parses its JSON answer.
    fn json(&self, command: &str) -> Result<Value> {
        self.json_in("/", command)
    }

    /// Like [`Self::json`], in this working folder.
    fn json_in(&self, folder: &str, command: &str) -> Result<Value> {
        let out = self.sh(&format!("cd {folder}; {BIN}/{command}"))?;
        serde_json::from_str(out.trim()).with_context(|| format!("{command}: {out}"))
    }

    fn clear(&self) -> Result<()> {
        self.json("mooring-restore clear").map(drop)
    }

    /// Makes devices that no other program knows.
    fn make_spare_devices(&self) -> Result<()> {
        let disks = self.site.storage()?.data_disks();
        let disk = disks.get(2).context("the third data disk")?;
        let specs: Vec<_> = ["floor", "rtslib"]
            .iter()
            .zip(0..)
            .flat_map(|(name, block)| {
                (0..self.rounds).map(move |n| (name, n, (block * self.rounds + n) * 8192))
            })
            .map(|(name, n, at)| format!("{name}{n},,,rw,0 8192 linear {disk} {at}"))
            .collect();
        self.make_devices(&specs.join(";"))
    }

    fn make_devices(&self, concise: &str) -> Result<()> {
        self.site.storage()?.write("/run/devices", concise.as_bytes(), 0o600)?;
        // In parts, because dmsetup limits the size of its input.
        self.sh(
            "tr ';' '\\n' < /run/devices | split -l 200 - /run/devices. && for part in /run/devices.*; do \
             tr '\\n' ';' < $part | sed 's/;$//' | dmsetup create --concise --noudevrules --noudevsync >/dev/null; rm $part; done; \
             dmsetup mknodes",
        )
        .map(drop)
    }

    fn spare(&self, name: &str) -> String {
        let devices: Vec<_> = (0..self.rounds).map(|n| format!("/dev/mapper/{name}{n}")).collect();
        devices.join(" ")
    }

    /// Makes the LVs, their devices and the agent's store.
    fn prepare(&self, case: Case) -> Result<()> {
        let storage = self.site.storage()?;
        let volumes = case.volumes + self.rounds;
        let backup = self.sh("cat /run/vg.empty")?;
        storage.write("/run/vg", lv_metadata(&backup, volumes)?.as_bytes(), 0o600)?;
        self.sh(&format!("vgcfgrestore -q --yes -f /run/vg {GROUP}"))?;
        let facts = self.sh(&format!(
            "vgs --noheadings -o vg_uuid {GROUP}; pvs --noheadings --units s --nosuffix -o pv_name,pe_start | grep /dev"
        ))?;
        let words: Vec<_> = facts.split_whitespace().collect();
        let &[uuid, disk, start] = words.as_slice() else { anyhow::bail!("what LVM says: {facts}") };
        let had = self.sh("dmsetup ls | grep -c mooring-- || true")?;
        let specs = self.sh(&format!(
            "{BIN}/mooring-restore devices --volumes {volumes} --group {GROUP} --uuid {uuid} --disk {disk} --start {start}"
        ))?;
        let had: usize = had.trim().parse().unwrap_or_default();
        let specs: Vec<_> = specs.trim().split(';').skip(had).collect();
        if !specs.is_empty() {
            self.make_devices(&specs.join(";"))?;
        }
        let folder = tempfile::tempdir().context("a folder for the store")?;
        let status = std::process::Command::new(self.site.program("mooring-store-fill")?)
            .arg("--folder")
            .arg(folder.path())
            .args(["--volumes", &volumes.to_string(), "--exports", &case.volumes.to_string()])
            .args(["--hosts", &case.hosts.to_string()])
            .status()?;
        check(status.success(), || "mooring-store-fill failed".to_owned())?;
        self.sh("rm -f /srv/mooring/state/mooring-agent.db*")?;
        for file in ["mooring-agent.db", "sealing.key"] {
            storage.push(&folder.path().join(file), &format!("/srv/mooring/state/{file}"), 0o600)?;
        }
        Ok(())
    }

    /// Measures a floor in the tree's own folder: the kernel then walks only the shorter half of
    /// each path, as for the agent.
    fn floor(&self, case: Case, options: &str) -> Result<u64> {
        let Case { volumes, hosts, .. } = case;
        let command = format!(
            "mooring-restore --root . floor --volumes {volumes} --group {GROUP} --hosts {hosts} {options}"
        );
        number(&self.json_in(TARGET, &command)?, "ms")
    }

    /// Measures the floors and `targetctl restore`, and removes everything of them.
    fn restore(&mut self, case: Case) -> Result<Restored> {
        let Case { volumes, hosts, .. } = case;
        writeln!(self.text, "restore of {volumes} volumes x {hosts} initiators")?;
        let mut best = (u64::MAX, "");
        let normal = ["--threads 1", "--threads 16"];
        let expedited = ["--threads 1 --expedited", "--threads 4 --expedited", "--threads 16 --expedited"];
        // With grace periods of normal length, thousands take minutes and are never the best.
        let normal = if volumes <= 100 { normal.as_slice() } else { &[] };
        for options in normal.iter().chain(&expedited) {
            let ms = self.floor(case, options)?;
            best = best.min((ms, *options));
            writeln!(self.text, "  floor {options:<26} {ms:>8} ms")?;
            self.clear()?;
        }
        let mut targetctl = None;
        if case.targetctl {
            self.floor(case, "--threads 4 --expedited --udev-path")?;
            self.sh("targetctl save /run/saved.json >/dev/null 2>&1")?;
            self.clear()?;
            let ms = number(&self.json("mooring-restore run -- targetctl restore /run/saved.json")?, "ms")?;
            let made = self.sh("ls -d /sys/kernel/config/target/iscsi/iqn.*/tpgt_1/acls/iqn.* | wc -l")?;
            check(made.trim() == (usize::try_from(volumes)? * hosts).to_string(), || {
                format!("targetctl restored {} ACLs of {volumes} x {hosts}", made.trim())
            })?;
            self.clear()?;
            writeln!(self.text, "  targetctl restore                {ms:>8} ms")?;
            targetctl = Some(ms);
        }
        Ok(Restored { best: best.1, targetctl, ..Restored::default() })
    }

    /// Starts the agent on an empty tree.
    fn start(&self, case: Case) -> Result<Value> {
        self.json(&format!(
            "mooring-restore agent --program {BIN}/mooring-agent --log /run/agent.log --volumes {}",
            case.volumes
        ))
    }

    /// Starts the agent on an empty tree again and again. Returns its pid once everything is
    /// served. The first time it knows nothing of its LVs, as after an upgrade, and asks LVM first.
    /// From then on it knows at every boot what it has seen.
    fn start_agent(&mut self, case: Case, mut restored: Restored) -> Result<u64> {
        let first = self.start(case)?;
        let volumes = case.volumes + self.rounds;
        wait_for("the agent to remember its LVs", Duration::from_mins(5), || {
            Ok((self.sh(REMEMBERED)?.trim() == volumes.to_string()).then_some(()))
        })?;
        let (mut pid, mut ours, mut making) = (number(&first, "pid")?, Vec::new(), Vec::new());
        let mut floors = Vec::new();
        for _ in 0..case.restores() {
            self.stop_agent(pid)?;
            // Take turns: the speed of the machine itself changes from minute to minute.
            floors.push(self.floor(case, restored.best)?);
            self.clear()?;
            let began = self.start(case)?;
            pid = number(&began, "pid")?;
            ours.push(number(&began, "ms")?);
            let said = self.sh("grep -o 'exports were made.* ms=[0-9]*' /run/agent.log | sed 's/.*ms=//'")?;
            making.extend(said.split_whitespace().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?);
        }
        restored.ours = median(ours.clone())?;
        restored.floor = median(floors.clone())?;
        restored.making = median(making.clone()).ok();
        let (unknown, text) = (number(&first, "ms")?, &mut self.text);
        writeln!(text, "  agent that knows no LV yet       {unknown:>8} ms")?;
        writeln!(
            text,
            "  the best floor again, in turns   {:>8} ms, the median of {floors:?}",
            restored.floor
        )?;
        writeln!(
            text,
            "  agent, from its start            {:>8} ms, the median of {ours:?}; making its exports {making:?}",
            restored.ours
        )?;
        let log = self.sh("grep -E 'known by their devices|WARN|ERROR' /run/agent.log || true")?;
        for line in log.lines().take(8) {
            writeln!(self.text, "    {line}")?;
        }
        // One export is no bulk work, and after the bulk work of many the grace periods are normal
        // again.
        wait_for("grace periods to be normal again", Duration::from_mins(1), || {
            let switch = self.sh("cat /sys/kernel/rcu_expedited")?;
            Ok((switch.trim() == "0").then_some(()))
        })?;
        self.restored.push((case, restored));
        Ok(pid)
    }

    fn stop_agent(&self, pid: u64) -> Result<()> {
        self.sh(&format!("kill {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.1; done"))?;
        self.clear()
    }

    /// Waits until the agent has done the work after its start: the looks after the steps, and the
    /// first watches.
    fn calm_down(&mut self, pid: u64) -> Result<()> {
        let began = Instant::now();
        // A tenth of a processor, in ticks of 10 ms.
        let calm = u64::try_from(CALM.as_millis())? / 100;
        wait_for("the agent to be at rest", CALMS_WITHIN, || {
            let before = self.used(pid)?;
            std::thread::sleep(CALM);
            let after = self.used(pid)?;
            let ticks = after.own_ticks + after.children_ticks - before.own_ticks - before.children_ticks;
            Ok((ticks < calm).then_some(()))
        })?;
        let rested = began.elapsed().saturating_sub(CALM);
        writeln!(self.text, "  at rest                          {:>8} ms behind that", rested.as_millis())?;
        Ok(())
    }

    fn grants(&mut self, case: Case) -> Result<()> {
        let (from, to) = (case.volumes, case.volumes + self.rounds);
        wait_for("the agent to answer", Duration::from_mins(1), || {
            Ok(self.site.mooring(&["agent", "show"])?.status.success().then_some(()))
        })?;
        let ours = self.json(&format!("mooring-load --grant {from} {to}"))?;
        let bare = format!(
            "mooring-floor --root . --portal 10.10.0.10:3261 --fsync-in /srv/mooring/state {}",
            self.spare("floor")
        );
        let floor = self.json_in(TARGET, &bare)?;
        // One save takes a minute with thousands.
        let saves = if case.volumes <= 1000 { 2 } else { 0 };
        let out = self.sh(&format!("python3 /run/rtslib.py {saves} {} 2>/dev/null", self.spare("rtslib")))?;
        let rtslib: Value = serde_json::from_str(out.trim()).with_context(|| out.clone())?;
        writeln!(self.text, "grants with {} volumes present: p50 (p95), us", case.volumes)?;
        let both = |value: &Value, name: &str| -> Result<String> {
            let figure = figure(value, name)?;
            Ok(format!("{} ({})", number(figure, "p50_us")?, number(figure, "p95_us")?))
        };
        for name in ["first grant", "further grant", "revoke"] {
            writeln!(
                self.text,
                "  {name:<14} agent {:>18}   floor {:>16}   rtslib {:>18}",
                both(&ours, name)?,
                both(&floor, name)?,
                both(&rtslib, name)?
            )?;
        }
        writeln!(
            self.text,
            "  a grant made read-only, or read-write again: agent {}",
            both(&ours, "mode change")?
        )?;
        writeln!(
            self.text,
            "  of a further grant until it is durable: {}; one fsync: {}; rtslib's save, which makes its changes durable: {}",
            both(&ours, "durable")?,
            both(&floor, "fsync")?,
            if saves > 0 { both(&rtslib, "save")? } else { "not run".to_owned() }
        )?;
        let p50 = |value: &Value, name: &str| number(figure(value, name)?, "p50_us");
        let pair =
            |value: &Value| Ok::<_, anyhow::Error>([p50(value, "further grant")?, p50(value, "revoke")?]);
        let mut bare = pair(&floor)?;
        // The agent's changes are durable, so their floor includes one more sync.
        let sync = p50(&floor, "fsync")?;
        for bare in &mut bare {
            *bare = *bare * 2 + sync;
        }
        self.grants.push((case.volumes, pair(&ours)?, bare));
        Ok(())
    }

    fn used(&self, pid: u64) -> Result<Use> {
        let text = self.sh(&format!("cat /proc/{pid}/stat; grep VmRSS /proc/{pid}/status"))?;
        // After the name in brackets: state is the first word, utime the twelfth.
        let words: Vec<_> = text.rsplit_once(") ").context("a stat line")?.1.split_whitespace().collect();
        let at = |index: usize| -> Result<u64> { Ok(words.get(index).context("a field of stat")?.parse()?) };
        let resident = words.iter().position(|word| *word == "VmRSS:").context("VmRSS")?;
        Ok(Use {
            own_ticks: at(11)? + at(12)?,
            children_ticks: at(13)? + at(14)?,
            resident_kib: at(resident + 1)?,
        })
    }

    fn idle(&mut self, case: Case, pid: u64) -> Result<()> {
        // By then the work after the start is done, and exports are watched.
        std::thread::sleep(SETTLES);
        let before = self.used(pid)?;
        std::thread::sleep(IDLE);
        let after = self.used(pid)?;
        // A tick is 10 ms.
        let percent = |ticks: u64| Duration::from_millis(ticks * 10).div_duration_f64(IDLE) * 100.0;
        let own = percent(after.own_ticks - before.own_ticks);
        let lvm = percent(after.children_ticks - before.children_ticks);
        let mib = Duration::from_secs(after.resident_kib).div_duration_f64(Duration::from_secs(1024));
        let verdict = |met: bool| if met { "met" } else { "not met" };
        writeln!(
            self.text,
            "idle with {} volumes x {} for {} s: resident {mib:.1} MiB (40 MB: {}); of one processor {own:.2} % (0.5 %: {}), \
             its LVM commands {lvm:.2} %",
            case.volumes,
            case.hosts,
            IDLE.as_secs(),
            verdict(after.resident_kib <= 39_062),
            verdict(own <= 0.5)
        )?;
        Ok(())
    }

    fn bars(&self) -> Result<String> {
        let verdict = |met: bool| if met { "met" } else { "NOT met" };
        let ratio =
            |a: u64, b: u64| Duration::from_millis(a).div_duration_f64(Duration::from_millis(b.max(1)));
        let mut text = String::from("bars\n");
        for (volumes, ours, allowed) in &self.grants {
            for (name, index) in [("further grant", 0), ("revoke", 1)] {
                let met = ours[index] <= allowed[index];
                writeln!(
                    text,
                    "  {name}, {volumes} volumes: {} us, 2 x floor + one sync {} us: {}",
                    ours[index],
                    allowed[index],
                    verdict(met)
                )?;
            }
        }
        if let (Some((few, first, _)), Some((many, last, _))) = (self.grants.first(), self.grants.last())
            && few != many
        {
            writeln!(
                text,
                "  flat: a further grant with {many} volumes takes {:.2} times what it takes with {few}, a revoke {:.2} times",
                ratio(last[0], first[0]),
                ratio(last[1], first[1])
            )?;
        }
        for (case, Restored { ours, making, floor, targetctl, .. }) in &self.restored {
            let Case { volumes, hosts, .. } = case;
            let over = ratio(*ours, *floor);
            writeln!(
                text,
                "  restore of {volumes} x {hosts}: {over:.2} times the best floor (1.5): {}",
                verdict(over <= 1.5)
            )?;
            if let Some(making) = making {
                let over = ratio(*making, *floor);
                writeln!(
                    text,
                    "    without its start, which the floor has not: {over:.2} times: {}",
                    verdict(over <= 1.5)
                )?;
            }
            if let Some(targetctl) = targetctl {
                let (faster, bar) = (ratio(*targetctl, *ours), if *volumes >= 500 { 50.0 } else { 15.0 });
                writeln!(
                    text,
                    "  restore of {volumes} x {hosts}: {faster:.1} times faster than targetctl ({bar}): {}",
                    verdict(faster >= bar)
                )?;
            }
        }
        Ok(text)
    }
}

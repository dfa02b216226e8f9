//! A read-only host sends every command that it can, with any claims: no byte of the volume
//! changes. Over iSCSI the PDUs are its own; over Fibre Channel they are what Linux sends for
//! SG_IO. After each hundred commands the whole LV is compared on the storage node, and a change is
//! traced to its command.
//!
//! What must never happen here: a comparison through the storage node's page cache, which knows
//! nothing of what initiators write.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Kernel, RigOptions, Running, Vm};
use serde_json::Value;

use crate::evidence::{Evidence, check, wait_for};
use crate::fibre;
use crate::site::{BIN, GROUP, Programs, Site, TARGET, agent_config};

const PORTAL: &str = "10.10.0.10:3260";
const INITIATOR: &str = "iqn.2026-01.test.mooring:raw";
/// Size of a volume, small because each is compared a hundred times.
const SIZE: u64 = 4 << 20;
const BLOCKS: u64 = SIZE / 512;
/// Commands between two comparisons.
const BATCH: u64 = 100;
/// The copy that a volume is compared with.
const KEPT: &str = "/srv/mooring/kept";
/// File that ends the commands which run while a volume is made read-only.
const STOP: &str = "/run/ro-fuzz-stop";
/// Most batches with the ways past `write_protect` open, until one changes something.
const CONTROL_BATCHES: u64 = 20;
/// Attributes that an agent of this version sets; an earlier one left the kernel's defaults.
const SEALS: [(&str, &str); 3] =
    [("max_write_same_len", "65535"), ("emulate_caw", "1"), ("emulate_3pc", "1")];

/// Number of commands in a run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Commands over iSCSI, in all.
    pub iscsi: u64,
    /// Commands over Fibre Channel.
    pub fibre: u64,
}

impl Size {
    /// The size in CI.
    pub const IN_CI: Self = Self { iscsi: 10_000, fibre: 600 };
    /// The size in CI on the kernel that is not the release's.
    pub const BESIDE: Self = Self { iscsi: 2_000, fibre: 0 };
    /// The size of a soak.
    pub const SOAK: Self = Self { iscsi: 1_000_000, fibre: 30_000 };
}

pub(super) fn stable(programs: &Programs) -> Result<()> {
    run(programs, Kernel::Stable, Size::IN_CI)
}

pub(super) fn backports(programs: &Programs) -> Result<()> {
    run(programs, Kernel::Backports, Size::BESIDE)
}

/// Runs with many more commands.
pub fn soak(programs: &Programs) -> Result<()> {
    run(programs, Kernel::Stable, Size::SOAK)?;
    run(programs, Kernel::Backports, Size { fibre: 0, ..Size::SOAK })
}

fn run(programs: &Programs, kernel: Kernel, size: Size) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("ro-fuzz").kernel(kernel), programs)?;
    let result = Scene::play(&site, size);
    site.end(result)
}

/// A volume under test.
struct Volume {
    id: String,
    device: String,
    target: String,
    naa: String,
    thin: bool,
    text: &'static str,
}

struct Scene<'a> {
    site: &'a Site,
    host: &'a Vm,
    storage: &'a Vm,
    evidence: Evidence,
    seed: u64,
    /// Number of the next command.
    next: u64,
}

fn start_agent(site: &Site, fibre: bool, more: &str) -> Result<Running> {
    // A host that reserves would lose the session that sends the rest of its batch; the scenario
    // `reservations` shows that.
    let fibre = if fibre { "[fibre_channel]" } else { "" };
    let extra = format!("ro_reservation = \"report\"\n{fibre}");
    site.start_agent_by(&format!("{}thin_pool = \"128MiB\"\n{more}", agent_config(&extra)))
}

impl<'a> Scene<'a> {
    fn play(site: &'a Site, size: Size) -> Result<()> {
        let (host, storage) = (site.rig.vm("host1")?, site.storage()?);
        let seed = match std::env::var("MOORING_RO_FUZZ_SEED") {
            Ok(text) => text.parse().context("MOORING_RO_FUZZ_SEED is a number")?,
            Err(_) => u64::from(fastrand::u32(..)),
        };
        println!("   seed {seed}: MOORING_RO_FUZZ_SEED={seed} sends the same commands");
        site.uses(&["mooring-ro-fuzz", "mooring-fc-grants"])?;
        if size.fibre > 0 {
            fibre::prepare(storage, "tcm_fc")?;
            fibre::open_port(storage)?;
            fibre::prepare(host, "sd_mod sg")?;
        }
        let mut scene = Self { site, host, storage, evidence: Evidence::default(), seed, next: 0 };
        let share = size.iscsi / 4;
        let mut agent = start_agent(site, size.fibre > 0, "")?;
        for discards in [false, true] {
            if discards {
                agent.kill()?;
                drop(agent.wait()?);
                agent = start_agent(site, size.fibre > 0, "discard = true\n")?;
            }
            for thin in [false, true] {
                let volume = scene.volume(thin, discards)?;
                // A thin volume takes discards, whatever the key says.
                scene.honest(&volume, thin)?;
                scene.becomes_read_only(&volume)?;
                scene.holds(&volume, share)?;
                if thin && !discards {
                    agent = scene.control(&volume, agent, size)?;
                }
                if (!thin || discards) && size.fibre > 0 {
                    scene.over_fibre(&volume, size.fibre / 3)?;
                }
                scene.end(&volume)?;
            }
        }
        agent.kill()
    }

    fn volume(&mut self, thin: bool, discards: bool) -> Result<Volume> {
        let text = match (thin, discards) {
            (false, false) => "thick",
            (true, false) => "thin",
            (false, true) => "thick, discards on",
            (true, true) => "thin, discards on",
        };
        let id = format!("{:08x}-2222-4333-8444-555555555555", self.next + 0x6000_0000);
        let size = SIZE.to_string();
        let mut make = vec![format!("{BIN}/mooring-ro-fuzz"), "make".to_owned(), id.clone(), size];
        if thin {
            make.push("--thin".to_owned());
        }
        self.storage.command(make).timeout(Duration::from_mins(2)).run()?.ok().context("make a volume")?;
        let shown = self.site.json(&["volume", "show", &id])?;
        let device = shown["device"].as_str().with_context(|| shown.to_string())?.to_owned();
        let granted = self.grant(&id, "rw")?;
        let target = granted["target"].as_str().context("target")?.to_owned();
        let digits = id.replace('-', "");
        let volume = Volume { naa: format!("6001405{}", &digits[..25]), id, device, target, thin, text };
        // No two blocks are alike, so that each change is seen.
        self.storage
            .sh(&format!(
                "dd if=/dev/urandom of={KEPT} bs=1M count={} 2>/dev/null; {}",
                SIZE >> 20,
                Self::restores(&volume)
            ))?
            .ok()?;
        let unmap =
            self.storage.sh(&format!("cat {TARGET}/core/*/{}/attrib/emulate_tpu", volume.id))?.ok()?;
        check(unmap.line() == if thin || discards { "1" } else { "0" }, || {
            format!("{text}: {}", unmap.stdout)
        })?;
        Ok(volume)
    }

    fn grant(&self, volume: &str, mode: &str) -> Result<Value> {
        self.site.json(&["export", "grant", volume, "--initiator", INITIATOR, "--mode", mode])
    }

    fn restores(volume: &Volume) -> String {
        format!("dd if={KEPT} of={} bs=1M oflag=direct conv=fsync 2>/dev/null", volume.device)
    }

    fn restore(&self, volume: &Volume) -> Result<()> {
        self.storage.sh(&Self::restores(volume))?.ok()?;
        Ok(())
    }

    /// Makes the volume's present content the copy that it is compared with.
    fn keep(&self, volume: &Volume) -> Result<()> {
        self.storage
            .sh(&format!("dd if={} of={KEPT} bs=1M iflag=direct 2>/dev/null", volume.device))?
            .ok()?;
        Ok(())
    }

    /// The differences, byte by byte; an empty text if there are none.
    fn differs(&self, volume: &Volume) -> Result<String> {
        let compare = format!("dd if={} bs=1M iflag=direct 2>/dev/null | cmp - {KEPT} 2>&1", volume.device);
        let out = self.storage.sh(&compare)?;
        check(out.status.success() != out.stdout.contains("differ"), || format!("cmp: {}", out.stdout))?;
        Ok(if out.status.success() { String::new() } else { out.line().to_owned() })
    }

    /// Percentage of a thin volume that has blocks of the pool, as LVM says it; empty if the volume
    /// is thick. A discard of zeros changes this and no byte.
    fn mapped(&self, volume: &Volume) -> Result<String> {
        if !volume.thin {
            return Ok(String::new());
        }
        let asked = format!("lvs --noheadings -o data_percent {}", volume.device);
        Ok(self.storage.sh(&asked)?.ok()?.stdout.trim().to_owned())
    }

    fn words(&self, verb: &str, volume: &Volume, from: u64, count: u64) -> Vec<String> {
        let mut words = vec![format!("{BIN}/mooring-ro-fuzz"), verb.to_owned()];
        let shots = [("--seed", self.seed), ("--from", from), ("--count", count), ("--blocks", BLOCKS)];
        words.extend(shots.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
        words.extend(["--naa".to_owned(), volume.naa.clone()]);
        words
    }

    fn door(volume: &Volume) -> [String; 6] {
        ["--portal", PORTAL, "--target", &volume.target, "--initiator", INITIATOR].map(str::to_owned)
    }

    /// Sends these commands over iSCSI. Returns their results.
    fn shoot(&self, volume: &Volume, from: u64, count: u64) -> Result<Value> {
        let mut words = self.words("shoot", volume, from, count);
        words.extend(Self::door(volume));
        let out = self.host.command(words).timeout(Duration::from_mins(5)).run()?.ok()?;
        serde_json::from_str(out.line()).with_context(|| out.stdout.clone())
    }

    /// Finds the first of these commands that changes the volume, and the change; `None`: none
    /// does.
    fn searched(
        &self,
        volume: &Volume,
        from: u64,
        send: &dyn Fn(u64) -> Result<()>,
    ) -> Result<Option<String>> {
        let seen = self.differs(volume)?;
        if seen.is_empty() {
            return Ok(None);
        }
        let (mut none, mut some) = (0, BATCH);
        while none + 1 < some {
            let half = u64::midpoint(none, some);
            self.restore(volume)?;
            send(half)?;
            if self.differs(volume)?.is_empty() { none = half } else { some = half }
        }
        let named = self.host.command(self.words("list", volume, from + some - 1, 1)).run()?.ok()?;
        // The data come after the command.
        let words: Vec<&str> = named.line().split(' ').take(4).collect();
        Ok(Some(format!(
            "seed {}, command {} changes bytes: {seen}: {}",
            self.seed,
            from + some - 1,
            words.join(" ")
        )))
    }

    /// The changes that a writing host makes with each of its commands.
    fn honest(&mut self, volume: &Volume, unmap: bool) -> Result<()> {
        let mut words = vec![format!("{BIN}/mooring-ro-fuzz"), "write".to_owned()];
        words.extend(Self::door(volume));
        if unmap {
            words.push("--unmap".to_owned());
        }
        let before = self.mapped(volume)?;
        let out = self.host.command(words).timeout(Duration::from_mins(2)).run()?.ok()?;
        let names: Vec<&str> = out.stdout.lines().collect();
        let sums: Vec<String> = (1..)
            .zip(&names)
            .map(|(number, name)| {
                // UNMAP is last, and gets a whole MiB.
                let (skip, count) = if name.starts_with("UNMAP") { (2048, 2048) } else { (8 * number, 8) };
                let sum = |of: &str| {
                    format!(
                        "dd if={of} bs=512 skip={skip} count={count} iflag=direct 2>/dev/null | sha256sum"
                    )
                };
                format!("{}; {}", sum(&volume.device), sum(KEPT))
            })
            .collect();
        let sums = self.storage.sh(&sums.join("; "))?.ok()?.stdout;
        let sums: Vec<&str> = sums.lines().collect();
        check(sums.len() == 2 * names.len(), || format!("{} sums of {} kinds", sums.len(), names.len()))?;
        for (name, pair) in names.iter().zip(sums.chunks(2)) {
            check(pair[0] != pair[1], || format!("{name} of a host that may write changed nothing"))?;
        }
        let after = self.mapped(volume)?;
        check(!unmap || before != after, || {
            format!("{}: UNMAP of a host that may write left {before} % mapped", volume.text)
        })?;
        self.evidence.shows(format!(
            "{}: control: a host that may write changes bytes by {} ({before} % mapped, then {after} %)",
            volume.text,
            names.join(", ")
        ));
        Ok(())
    }

    /// The limit also holds, from that moment on, for a session that has been sending commands all
    /// the time.
    fn becomes_read_only(&mut self, volume: &Volume) -> Result<()> {
        self.host.sh(&format!("rm -f {STOP}"))?.ok()?;
        let mut words = self.words("shoot", volume, 1 << 40, 200);
        words.extend(Self::door(volume));
        words.extend(["--until".to_owned(), STOP.to_owned()]);
        let running = self.host.command(words).timeout(Duration::from_mins(5)).spawn()?;
        wait_for("the commands to change bytes", Duration::from_secs(30), || {
            check(running.is_running(), || format!("ended: {}", running.stderr_so_far()))?;
            Ok((!self.differs(volume)?.is_empty()).then_some(()))
        })?;
        self.grant(&volume.id, "ro")?;
        // By then commands that the kernel had already looked up have landed.
        std::thread::sleep(Duration::from_secs(4));
        self.keep(volume)?;
        let mapped = self.mapped(volume)?;
        std::thread::sleep(Duration::from_secs(2));
        self.host.sh(&format!("touch {STOP}"))?.ok()?;
        let said = running.wait()?.ok()?.stdout;
        let seen = self.differs(volume)?;
        check(seen.is_empty(), || format!("{}: changed after it was made read-only: {seen}", volume.text))?;
        let now = self.mapped(volume)?;
        check(now == mapped, || format!("{}: {mapped} % were mapped, now {now} %", volume.text))?;
        self.evidence.shows(format!(
            "{}: made read-only under a session that sends commands all the while; none after it changes a byte: {}",
            volume.text,
            said.lines().last().unwrap_or_default()
        ));
        Ok(())
    }

    fn holds(&mut self, volume: &Volume, count: u64) -> Result<()> {
        let mut all = std::collections::BTreeMap::<String, u64>::new();
        let mapped = self.mapped(volume)?;
        for _ in 0..count / BATCH {
            let from = self.next;
            self.next += BATCH;
            let tally = self.shoot(volume, from, BATCH)?;
            let send = |count: u64| self.shoot(volume, from, count).map(drop);
            if let Some(found) = self.searched(volume, from, &send)? {
                bail!("{}: {found}", volume.text);
            }
            for (name, value) in tally.as_object().into_iter().flatten() {
                *all.entry(name.clone()).or_default() += value.as_u64().unwrap_or_default();
            }
        }
        let now = self.mapped(volume)?;
        check(now == mapped, || format!("{}: {mapped} % were mapped, now {now} %", volume.text))?;
        check(all.get("twice").is_none_or(|twice| *twice == 0), || {
            format!("{}: the target has done commands twice: {all:?}", volume.text)
        })?;
        self.evidence.shows(format!(
            "{}: {count} commands of a host that may only read change no byte: {all:?}",
            volume.text
        ));
        Ok(())
    }

    /// Control: with the ways open again the same commands change the volume, and the first that
    /// does is named. Then the agent closes them.
    fn control(&mut self, volume: &Volume, agent: Running, size: Size) -> Result<Running> {
        agent.kill()?;
        drop(agent.wait()?);
        let attrib = format!("{TARGET}/core/*/{}/attrib", volume.id);
        for (name, value) in SEALS {
            self.storage.sh(&format!("for file in {attrib}/{name}; do echo {value} > $file; done"))?.ok()?;
        }
        let mut found = None;
        for number in 0..CONTROL_BATCHES {
            let from = number * BATCH;
            self.shoot(volume, from, BATCH)?;
            let send = |count: u64| self.shoot(volume, from, count).map(drop);
            found = self.searched(volume, from, &send)?;
            if found.is_some() {
                break;
            }
        }
        let found = found.context("with the ways open nothing changes: nothing would be shown")?;
        self.restore(volume)?;
        self.evidence.shows(format!("control: as an earlier agent left it: {found}"));
        let agent = start_agent(self.site, size.fibre > 0, "")?;
        wait_for("the agent to shut them", Duration::from_mins(1), || {
            let names = SEALS.map(|(name, _)| format!("{attrib}/{name}")).join(" ");
            let out = self.storage.sh(&format!("cat {names} | sort -u"))?.ok()?;
            Ok((out.stdout.trim() == "0").then_some(()))
        })?;
        self.evidence.shows("the next agent shuts them on the export that stands");
        Ok(agent)
    }

    /// Sends what Linux sends for SG_IO, in each direction that it knows.
    fn over_fibre(&mut self, volume: &Volume, count: u64) -> Result<()> {
        let own = fibre::port_name(self.host)?;
        let grant = vec![format!("{BIN}/mooring-fc-grants"), volume.id.clone(), format!("{own},1,1,ro")];
        self.storage.command(grant).timeout(Duration::from_mins(6)).run()?.ok()?;
        fibre::open_port(self.host)?;
        let generic = fibre::generic(self.host, 1)?.path;
        self.host.write("/run/sg.py", include_bytes!("ro_fuzz.py"), 0o644)?;
        let send = |from: u64, count: u64| -> Result<String> {
            let list = self.words("list", volume, from, count).join(" ");
            let script = format!("{list} | python3 /run/sg.py {generic}");
            let out = self.host.command(["sh", "-c", &script]).timeout(Duration::from_mins(5)).run()?.ok()?;
            Ok(out.line().to_owned())
        };
        let mut last = String::new();
        let (first, mapped) = (self.next, self.mapped(volume)?);
        for batch in 0..count.div_ceil(BATCH) {
            let from = first + batch * BATCH;
            last = send(from, BATCH)?;
            if let Some(found) = self.searched(volume, from, &|count| send(from, count).map(drop))? {
                bail!("{} over Fibre Channel: {found}", volume.text);
            }
        }
        self.next += count;
        let now = self.mapped(volume)?;
        check(now == mapped, || format!("{}: {mapped} % were mapped, now {now} %", volume.text))?;
        fibre::close_port(self.host)?;
        self.evidence.shows(format!(
            "{}: {count} commands over Fibre Channel change no byte; of the last {BATCH}: {last}",
            volume.text
        ));
        let revoke = vec![format!("{BIN}/mooring-fc-grants"), volume.id.clone()];
        self.storage.command(revoke).timeout(Duration::from_mins(6)).run()?.ok()?;
        Ok(())
    }

    fn end(&self, volume: &Volume) -> Result<()> {
        self.site.json(&["export", "revoke", &volume.id, "--initiator", INITIATOR, "--force"])?;
        self.site.json(&["volume", "delete", &volume.id])?;
        let left = self
            .storage
            .sh(&format!("ls -d {TARGET}/core/*/{} /dev/{GROUP}/*{} 2>/dev/null", volume.id, volume.id))?;
        check(left.stdout.trim().is_empty(), || format!("left behind: {}", left.stdout))
    }
}

//! `cargo xtask bench grant`: measures a grant and a revoke beside the floor of the same system
//! calls, in one VM run.
//!
//! No number here decides a verdict, with one exception: the counted calls of a grant must not
//! depend on the number of volumes (ARCHITECTURE, invariant 12).

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, VmSpec};
use serde_json::Value;

use crate::evidence::check;
use crate::site::{BIN, GROUP, Programs, Site, number};

/// Size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Number of volumes in the large case.
    pub volumes: u32,
    /// Rounds of each kind; fewer than the volumes.
    pub rounds: u32,
}

const LONG: Duration = Duration::from_mins(30);

/// The id of a volume of the benchmark; `mooring-load` derives the same one.
fn id(number: u32) -> String {
    format!("{:02x}000000-0000-0000-{:04x}-{:04x}00000000", number % 256, number >> 16, number & 0xffff)
}

/// Runs the benchmark and prints its table.
pub fn grant(programs: &Programs, size: Size) -> Result<()> {
    let Size { volumes, rounds } = size;
    check(rounds < volumes, || format!("{rounds} rounds need more than {volumes} volumes"))?;
    let mut options = RigOptions::standard(0).named("bench");
    if let Some(storage) = options.vms.first_mut() {
        let standard = VmSpec::storage();
        // A third disk for the floor's devices, unknown to the agent.
        let disks = [standard.disks.as_slice(), &[2 << 30]].concat();
        *storage = VmSpec { memory_mib: 2048, disks, ..standard };
    }
    let site = Site::up(options, programs)?;
    site.uses(&["mooring-floor", "mooring-load"])?;
    println!(
        "making {volumes} LVs and {rounds} devices for the floor, then telling the agent of them: some minutes"
    );
    let activation = make_volumes(&site, volumes)?;
    let devices = make_floor_devices(&site, rounds)?;
    let agent = site.start_agent()?;

    let load = |args: &str| -> Result<Value> {
        let command = format!("{BIN}/mooring-load {args}");
        let out = site.storage()?.command(["sh", "-c", &command]).timeout(LONG).run()?.ok()?;
        serde_json::from_str(out.stdout.trim()).with_context(|| out.stdout.clone())
    };
    let alone = load("--adopt 0 1 --grant 0 1")?;
    let adopting = Instant::now();
    load(&format!("--adopt 0 {volumes}"))?;
    println!("{volumes} volumes adopted in {:.0} s", adopting.elapsed().as_secs_f64());
    // Volume 0 was exported above. The rounds use volumes that were not exported yet; the crowd is
    // the rest.
    load(&format!("--grant {} {volumes}", rounds + 1))?;
    let crowd = load(&format!("--grant 1 {}", rounds + 1))?;
    let floor = floor(&site, &devices)?;
    let report = report(&site, size, [&alone, &crowd, &floor], activation)?;
    println!("{report}");
    agent.kill()?;
    // The first grant after a resync looks at the whole export, so the fewest operations are those
    // of a narrow look.
    let fewest = |value: &Value| {
        let seen = value["further_grant_operations"].as_array();
        seen.and_then(|all| all.iter().filter_map(Value::as_u64).min()).filter(|fewest| *fewest > 0)
    };
    check(fewest(&alone).is_some() && fewest(&alone) == fewest(&crowd), || {
        format!(
            "a grant's operations depend on the number of volumes: {alone} with 1, {crowd} with {volumes}"
        )
    })?;
    site.rig.check_consoles()
}

/// Adds this many LVs of one extent each, tagged as ours and zeroed, to the metadata of a group
/// without LVs.
pub(crate) fn lv_metadata(backup: &str, volumes: u32) -> Result<String> {
    let mut lvs = String::from("\tlogical_volumes {\n");
    for n in 0..volumes {
        write!(
            lvs,
            "mooring-{} {{ id = \"Moorin-gBen-chma-rkVo-lume-0000-{n:06}\" status = [\"READ\", \"WRITE\", \"VISIBLE\"] flags = [] \
             tags = [\"mooring\"] creation_time = 0 creation_host = \"storage\" segment_count = 1\nsegment1 {{ start_extent = 0 \
             extent_count = 1 type = \"striped\" stripe_count = 1 stripes = [ \"pv0\", {n} ] }} }}\n",
            id(n)
        )?;
    }
    lvs.push_str("\t}\n");
    // The group's block ends with the last brace but one: put the volumes after the physical
    // volumes.
    let at = backup.find("physical_volumes").context("no physical volumes in the group's metadata")?;
    Ok(format!("{}{lvs}{}", &backup[..at], &backup[at..]))
}

/// Makes all LVs at once by restoring metadata that names them, and activates them. Returns how
/// long the activation took.
fn make_volumes(site: &Site, volumes: u32) -> Result<Duration> {
    let storage = site.storage()?;
    let backup =
        storage.sh(&format!("vgcfgbackup -q -f /run/vg {GROUP} >/dev/null; cat /run/vg"))?.ok()?.stdout;
    let text = lv_metadata(&backup, volumes)?;
    storage.write("/run/vg", text.as_bytes(), 0o600)?;
    storage.command(["vgcfgrestore", "-q", "-f", "/run/vg", GROUP]).timeout(LONG).run()?.ok()?;
    let began = Instant::now();
    storage.command(["vgchange", "-q", "-ay", GROUP]).timeout(LONG).run()?.ok()?;
    Ok(began.elapsed())
}

/// Makes linear devices of 4 MiB, as LVs are, on a disk of their own.
fn make_floor_devices(site: &Site, rounds: u32) -> Result<Vec<String>> {
    let storage = site.storage()?;
    let disks = storage.data_disks();
    let disk = disks.get(2).context("the third data disk")?;
    let script = format!(
        "for n in $(seq 0 {}); do echo 0 8192 linear {disk} $((n * 8192)) | dmsetup create floor$n --noudevsync; done; \
         udevadm settle",
        rounds - 1
    );
    storage.command(["sh", "-euc", &script]).timeout(LONG).run()?.ok()?;
    Ok((0..rounds).map(|n| format!("/dev/mapper/floor{n}")).collect())
}

fn floor(site: &Site, devices: &[String]) -> Result<Value> {
    let mut argv = vec![format!("{BIN}/mooring-floor"), "--portal".to_owned(), "10.10.0.10:3261".to_owned()];
    argv.extend(["--fsync-in".to_owned(), "/srv/mooring/state".to_owned()]);
    argv.extend_from_slice(devices);
    let out = site.storage()?.command(argv).timeout(LONG).run()?.ok()?;
    serde_json::from_str(out.stdout.trim()).with_context(|| out.stdout.clone())
}

pub(crate) fn figure<'a>(value: &'a Value, name: &str) -> Result<&'a Value> {
    let figures = value["figures"].as_array().context("figures")?;
    figures.iter().find(|figure| figure["name"] == name).with_context(|| format!("no figure {name}"))
}

fn report(
    site: &Site,
    size: Size,
    [alone, crowd, floor]: [&Value; 3],
    activation: Duration,
) -> Result<String> {
    let Size { volumes, rounds } = size;
    let mut text = String::new();
    let fsync = number(figure(floor, "fsync")?, "p50_us")?;
    writeln!(
        text,
        "kernel {}, {:?}, {volumes} volumes present, {rounds} rounds; times in us",
        site.rig.kernel(),
        site.rig.accel()
    )?;
    writeln!(
        text,
        "{:<15} {:>9} {:>9} {:>11} {:>11} {:>7} {:>16}",
        "", "p50", "p95", "floor p50", "floor p95", "ratio", "2 x floor + sync"
    )?;
    for name in ["first grant", "further grant", "revoke"] {
        let (ours, bare) = (figure(crowd, name)?, figure(floor, name)?);
        let (p50, bare50) = (number(ours, "p50_us")?, number(bare, "p50_us")?);
        let (p95, bare95) = (number(ours, "p95_us")?, number(bare, "p95_us")?);
        let allowed = 2 * bare50 + fsync;
        let verdict = if p50 <= allowed { "met" } else { "not met" };
        let ratio = Duration::from_micros(p50).div_duration_f64(Duration::from_micros(bare50.max(1)));
        writeln!(
            text,
            "{name:<15} {p50:>9} {p95:>9} {bare50:>11} {bare95:>11} {ratio:>7.2} {allowed:>8} {verdict:>7}"
        )?;
    }
    let calls = |value: &Value| value["further_grant_operations"].to_string();
    writeln!(
        text,
        "of a further grant, until it is durable (store and sync): p50 {} us, p95 {} us",
        number(figure(crowd, "durable")?, "p50_us")?,
        number(figure(crowd, "durable")?, "p95_us")?
    )?;
    writeln!(
        text,
        "one fsync of the store's file system: p50 {fsync} us; floor: {} % inside of its calls",
        floor["inside_percent"]
    )?;
    writeln!(
        text,
        "file operations in the kernel's tree of a further grant: {} with 1 volume, {} with {volumes}",
        calls(alone),
        calls(crowd)
    )?;
    writeln!(
        text,
        "activating {volumes} LVs took {:.1} s (not part of the above)",
        activation.as_secs_f64()
    )?;
    Ok(text)
}

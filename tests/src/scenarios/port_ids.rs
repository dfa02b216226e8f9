//! The relative target port id of an export on a kernel whose portal groups have one of their own
//! (`rtpi`). On such a kernel an unwritten id depends on what is enabled first after a boot.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Kernel, RigOptions, Running};

use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{Programs, Site, TARGET};

const PORTAL: &str = "10.10.0.10:3260";
const DATA: &str = "55555555-2222-4333-8444-555555555555";

/// Another volume, and the ids that it would choose.
const OTHER: (&str, [u16; 2]) = ("66666666-2222-4333-8444-555555555555", [21713, 34818]);

const KEY: &str = "0x3abe0000";

/// Targets of someone else, who writes no id.
const FOREIGN: [&str; 2] = ["iqn.2026-01.test.mooring:one", "iqn.2026-01.test.mooring:two"];

pub(super) fn run(programs: &Programs) -> Result<()> {
    let options = RigOptions::standard(1).named("port-ids").kernel(Kernel::Backports);
    let site = Site::up(options, programs)?;
    let result = scene(&site);
    site.end(result)
}

fn target() -> String {
    target_of(DATA)
}

fn target_of(volume: &str) -> String {
    format!("iqn.2026-11.dev.mooring:{volume}")
}

/// The id that the storage node shows for a target.
fn id_of(site: &Site, target: &str) -> Result<u16> {
    let read = site.storage()?.sh(&format!("cat {TARGET}/iscsi/{target}/tpgt_1/rtpi"))?.ok()?.stdout;
    number(&read)
}

fn number(text: &str) -> Result<u16> {
    let digits = text.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).with_context(|| format!("an id: {text:?}"))
}

/// Enables someone else's targets in this order, and returns the ids that they get.
fn foreign(site: &Site, order: [usize; 2]) -> Result<[u16; 2]> {
    for at in order {
        let group = format!("{TARGET}/iscsi/{}/tpgt_1", FOREIGN[at]);
        site.storage()?
            .sh(&format!("modprobe iscsi_target_mod; mkdir -p {group} && echo 1 > {group}/enable"))?
            .ok()?;
    }
    Ok([id_of(site, FOREIGN[0])?, id_of(site, FOREIGN[1])?])
}

/// The number after this word in a program's output on the disk, on the host.
fn said(disk: &Disk<'_>, program: &str, word: &str) -> Result<u16> {
    let out = disk.vm.command(["sh", "-c", &format!("{program} {}", disk.path)]);
    let text = out.timeout(Duration::from_mins(2)).run()?.ok()?.stdout;
    let Some((_, rest)) = text.split_once(word) else { bail!("{program} does not say {word:?}: {text}") };
    number(rest.split_whitespace().next().unwrap_or_default())
}

/// The id in the kernel's tree, in the disk's identification, and in the full status of its
/// registrations.
fn ids(site: &Site, disk: &Disk<'_>) -> Result<[u16; 3]> {
    let page = said(disk, "sg_vpd -p di", "Relative target port:")?;
    let status = said(disk, "sg_persist -n -i -s -d", "Relative port address:")?;
    Ok([id_of(site, &target())?, page, status])
}

fn in_force(site: &Site) -> Result<()> {
    wait_for("the export to be back", Duration::from_secs(30), || {
        let shown = site.json(&["export", "show", DATA])?;
        Ok((shown["export"]["in_force"] == true).then_some(()))
    })
}

/// Waits until the agent reports that the host has registered.
fn registered(site: &Site) -> Result<()> {
    wait_for("the registration", Duration::from_secs(30), || {
        let seen = site.json(&["volume", "reservations", DATA])?;
        let one = seen["registrations"].as_array().is_some_and(|all| all.len() == 1);
        Ok((one && seen["durable"] == true).then_some(()))
    })
}

fn reboot(site: &Site, agent: Running) -> Result<()> {
    let storage = site.storage()?;
    storage.power_cut()?;
    drop(agent);
    storage.boot()?;
    site.after_boot()
}

fn scene(site: &Site) -> Result<()> {
    let mut evidence = Evidence::default();
    let first = foreign(site, [0, 1])?;
    let agent = site.start_agent()?;
    let host = Host::start(site.rig.vm("host1")?)?;
    site.json(&["volume", "create", "data", "--size", "64MiB", "--id", DATA])?;
    site.json(&["export", "grant", DATA, "--initiator", &host.iqn, "--mode", "rw"])?;
    host.login(&target(), PORTAL, None, 60)?.ok()?;
    let disk = host.disk(&target(), PORTAL)?;
    disk.vm.sh(&format!("sg_persist -n -o -I -S {KEY} -Z -d {}", disk.path))?.ok()?;
    disk.vm.sh(&format!("sg_persist -n -o -R -T 5 -K {KEY} -d {}", disk.path))?.ok()?;
    registered(site)?;
    let before = ids(site, &disk)?;
    check(before == [before[0]; 3] && before[0] > 1023, || format!("{before:?}"))?;
    evidence.shows(format!(
        "the export has the relative port id {}, as its portal group, VPD page 0x83 and READ FULL STATUS say; somebody else's two \
         targets {first:?}",
        before[0]
    ));

    reboot(site, agent)?;
    let second = foreign(site, [1, 0])?;
    check(first == [1, 2] && second == [2, 1], || format!("{first:?} {second:?}"))?;
    evidence.shows(format!(
        "control: power cut, and the targets of somebody else are enabled the other way round: now they are {second:?}"
    ));
    let agent = site.start_agent()?;
    in_force(site)?;
    registered(site)?;
    let after = ids(site, &disk)?;
    check(after == before, || format!("before {before:?}, after {after:?}"))?;
    site.nothing_planned_soon()?;
    evidence.shows("the export and its registration have the id that they had, and nothing is planned");

    taken(site, &mut evidence)?;
    host.logout(&target())?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

/// Someone else has the id that a volume would choose: its export comes up all the same.
fn taken(site: &Site, evidence: &mut Evidence) -> Result<()> {
    let (id, [first, second]) = OTHER;
    let group = format!("{TARGET}/iscsi/iqn.2026-01.test.mooring:three/tpgt_1");
    let script = format!("mkdir -p {group} && echo {first} > {group}/rtpi && echo 1 > {group}/enable");
    site.storage()?.sh(&script)?.ok()?;
    site.json(&["volume", "create", "other", "--size", "64MiB", "--id", id])?;
    site.json(&["export", "grant", id, "--initiator", "iqn.2026-01.test.mooring:nobody", "--mode", "rw"])?;
    let shown = site.json(&["export", "show", id])?["export"]["in_force"].clone();
    let got = id_of(site, &target_of(id))?;
    check((got, shown == true) == (second, true), || format!("{got}, in force: {shown}"))?;
    evidence
        .shows(format!("somebody else has {first}, a volume's first choice: its export comes up with {got}"));
    Ok(())
}

//! `fence_scsi` of Debian on two hosts: one fences the other, as Pacemaker calls it, but without a
//! cluster: each call gets its key and its device.

use std::time::Duration;

use anyhow::{Result, bail};
use mooring_rig::Running;

use super::{PATIENT, Pair};
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::{Programs, goes_on, going, number, progress};

/// Keys as the agent makes them: four digits of the cluster's name, and the node's number.
const KEYS: [&str; 2] = ["3abe0000", "3abe0001"];

/// One write at a time, ten times a second.
const PACED: [&str; 4] = ["--threads", "1", "--every-ms", "100"];

pub(in crate::scenarios) fn run(programs: &Programs) -> Result<()> {
    super::run("fence-scsi", programs, acts)
}

fn acts(pair: &mut Pair<'_>) -> Result<()> {
    let disks = pair.disks.clone();
    let [one, two] = disks.as_slice() else { bail!("two disks") };
    registered(pair, one, two)?;
    let writers = (one.write_stamps(&PACED)?, two.write_stamps(&PACED)?);
    going(&writers.0)?;
    going(&writers.1)?;
    pair.evidence.shows("both hosts are registered by fence_scsi, host1 holds the disk, and both write");
    fenced(pair, one, &writers)?;
    writers.0.kill()?;
    drop(writers.0.wait()?);
    holder_detached(pair, two, &writers.1)?;
    writers.1.kill()?;
    drop(writers.1.wait()?);
    Ok(())
}

/// Calls `fence_scsi` on a host, with APTPL. Its own patience is for a fast machine: here it has
/// more. Returns what it said.
fn call(disk: &Disk<'_>, action: &str, key: &str) -> Result<String> {
    let path = &disk.path;
    let script = format!("fence_scsi -o {action} -k {key} -d {path} -a --power-timeout=120 2>&1");
    let out = disk.vm.command(["sh", "-c", &script]).timeout(PATIENT).run()?;
    // `status` exits with 2 when a key is not registered, which is an answer.
    if action == "status" && out.status.code() == Some(2) {
        return Ok(out.stdout);
    }
    Ok(out.ok()?.stdout)
}

fn says(disk: &Disk<'_>, action: &str, key: &str, wanted: &str) -> Result<()> {
    let said = call(disk, action, key)?;
    check(said.contains(wanted), || {
        format!("fence_scsi -o {action} -k {key} on {}: {said:?}, not {wanted:?}", disk.vm.name())
    })
}

/// The storage node's report: the number of registrations, whether anybody holds the disk, and
/// whether that outlives a loss of power.
fn listed(pair: &Pair<'_>) -> Result<(usize, bool, bool)> {
    let seen = pair.site.json(&["volume", "reservations", &pair.volume])?;
    let registered = seen["registrations"].as_array().map_or(0, Vec::len);
    Ok((registered, seen["holder"].is_object(), seen["durable"] == true))
}

fn until_listed(pair: &Pair<'_>, wanted: (usize, bool, bool)) -> Result<()> {
    wait_for("the reservations", Duration::from_secs(30), || {
        let seen = listed(pair)?;
        check(seen == wanted, || {
            format!("(registrations, held, outlive power loss) are {seen:?}, not {wanted:?}")
        })
        .map(Some)
    })
}

/// The key of the holder, as a host asks for it.
fn held_by(disk: &Disk<'_>, key: &str) -> Result<()> {
    let said = disk.vm.sh(&format!("sg_persist -n -i -r -d {}", disk.path))?.ok()?.stdout;
    let all = ["Write Exclusive, registrants only", &format!("0x{key}")].map(|text| said.contains(text));
    check(all == [true, true], || format!("the reservation is not that of {key}: {said}"))
}

fn registered(pair: &Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    for (disk, key) in [one, two].into_iter().zip(KEYS) {
        says(disk, "on", key, "Success: Powered ON")?;
        says(disk, "status", key, "Status: ON")?;
    }
    held_by(one, KEYS[0])?;
    until_listed(pair, (2, true, true))
}

/// Host1 fences host2 while both write. That both have written before is the control.
fn fenced(pair: &mut Pair<'_>, one: &Disk<'_>, writers: &(Running, Running)) -> Result<()> {
    let before = number(&progress(&writers.1)?, "errors")?;
    check(before == 0, || format!("host2 has {before} errors before it is fenced"))?;
    says(one, "off", KEYS[1], "Success: Powered OFF")?;
    says(one, "status", KEYS[1], "Status: OFF")?;
    held_by(one, KEYS[0])?;
    until_listed(pair, (1, true, true))?;
    // The writer has one write at a time: after its first error no earlier one is under way.
    let first = wait_for("host2's writes to be refused", Duration::from_secs(30), || {
        let seen = progress(&writers.1)?;
        Ok((number(&seen, "errors")? > 0).then_some(seen))
    })?;
    let last = wait_for("more of host2's writes to be refused", Duration::from_secs(30), || {
        let seen = progress(&writers.1)?;
        Ok((number(&seen, "errors")? >= number(&first, "errors")? + 10).then_some(seen))
    })?;
    check(first["done"] == last["done"], || format!("the fenced host writes: {first}, then {last}"))?;
    goes_on(&writers.0)?;
    let holder = progress(&writers.0)?;
    check(number(&holder, "errors")? == 0, || format!("host1's writes fail: {holder}"))?;
    pair.evidence.shows(format!(
        "host1 fences host2 by fence_scsi under I/O of both: host2's writes are refused ({} of them, none lands), host1's go on ({} \
         without an error)",
        last["errors"], holder["done"]
    ));
    Ok(())
}

/// The guide's trap: the holder is detached, and with it goes what kept the fenced host out.
fn holder_detached(pair: &mut Pair<'_>, two: &Disk<'_>, writer: &Running) -> Result<()> {
    pair.control.json(&["detach", &pair.attachments[0]])?;
    wait_for("the holder's reservation to be released", Duration::from_secs(30), || {
        let (registered, held, _) = listed(pair)?;
        check(registered == 0 && !held, || format!("{registered} registrations, held: {held}")).map(Some)
    })?;
    goes_on(writer)?;
    pair.evidence
        .shows("the trap: the holder is detached, nobody holds the disk, and the fenced host writes again");
    says(two, "on", KEYS[1], "Success: Powered ON")?;
    held_by(two, KEYS[1])?;
    until_listed(pair, (1, true, true))?;
    goes_on(writer)?;
    pair.evidence.shows("host2 registers anew by fence_scsi and holds the disk: it writes on");
    Ok(())
}

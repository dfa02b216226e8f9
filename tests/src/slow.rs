//! A slow backend: it is how a host is caught with its writes in flight, and how what lands of them afterwards is seen.
//!
//! What must never happen here: stamps said not to have landed before the slowest write had its time.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::Running;
use serde_json::Value;

use crate::control::Control;
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::{BIN, Site, going, sequences};

/// Writes in flight.
pub const WRITERS: u64 = 8;
/// How long the backend takes for a write.
pub const SLOW_MS: u64 = 1500;
/// Within this time of an answer whatever was in flight has landed: three times what the slowest write takes.
pub const LANDS_WITHIN: Duration = Duration::from_millis((SLOW_MS * 3).next_multiple_of(1000));
/// How long it takes in the control: longer than any call that is to be shown to be no barrier, on any machine. What is in
/// flight lands when the slowness is taken away, so nobody waits so long.
const CONTROL_MS: u64 = 20_000;

/// The writers to each of so many volumes that a host writes to at once: an emulated processor drives all of them.
fn writers_each(volumes: usize) -> u64 {
    (2 * WRITERS / volumes.max(1) as u64).clamp(2, WRITERS)
}

/// A host writes through the slowed LV; returns when its own kernel has all writers in flight.
pub fn write(site: &Site, device: &str, disk: &Disk<'_>) -> Result<Running> {
    site.delay_writes(device, Some(SLOW_MS))?;
    let writer = disk.write_stamps(&["--threads", &WRITERS.to_string()])?;
    in_flight(disk, WRITERS)?;
    Ok(writer)
}

/// Returns when a host's own kernel has so many writes to its disk in flight.
fn in_flight(disk: &Disk<'_>, writers: u64) -> Result<()> {
    let name = disk.name()?;
    let name = name.rsplit('/').next().unwrap_or_default();
    let what = format!("{writers} writes of {} in flight", disk.vm.name());
    wait_for(&what, Duration::from_mins(2), || {
        let out = disk.vm.sh(&format!("cat /sys/block/{name}/inflight"))?.ok()?;
        let writes: u64 = out.line().split_whitespace().nth(1).context("inflight")?.parse()?;
        Ok((writes >= writers).then_some(()))
    })
}

/// Runs `cut` on the storage node, reads the stamps of the LV as soon as it has returned and again when everything slow must
/// have landed, in one script. Says what `cut` printed, and how many stamps landed after it.
pub fn landed_after(site: &Site, device: &str, cut: &str) -> Result<(String, u64)> {
    let read = read(device);
    let wait = LANDS_WITHIN.as_secs();
    let out = site.storage()?.sh(&format!("{cut}; echo; {read}; sleep {wait}; {read}"))?.ok()?;
    let mut lines: Vec<&str> = out.stdout.trim_end().lines().collect();
    let (Some(after), Some(before)) = (lines.pop(), lines.pop()) else {
        bail!("no stamps in {}", out.stdout)
    };
    Ok((lines.join("\n"), landed_between(before, after)?))
}

/// Force-detaches a host whose writes are in flight; the receipt, which is proven, and no stamp lands behind the answer.
pub fn force_detach(site: &Site, device: &str, attachment: &str) -> Result<Value> {
    let (answer, landed) = landed_after(site, device, &Control::force_words(attachment))?;
    let mut answer: Value =
        serde_json::from_str(&answer).with_context(|| format!("the detach answered {answer}"))?;
    check(answer["receipt"]["proof"] == "proven", || format!("the receipt is not proven: {answer}"))?;
    check(landed == 0, || format!("{landed} stamps landed after a proven receipt"))?;
    Ok(answer["receipt"].take())
}

/// A host is taken off one volume.
pub struct Cut {
    /// By these words.
    pub words: String,
    /// The volume's LV.
    pub device: String,
}

/// Runs all of them at once on the storage node, behind `first`, and for each does what [`landed_after`] does. Says of each what it
/// printed, and how many stamps landed after it.
pub fn landed_after_each(site: &Site, first: &str, cuts: &[Cut]) -> Result<Vec<(String, u64)>> {
    let folder = "/run/cuts";
    let mut script = format!("mkdir -p {folder}; {first}; ");
    for (at, Cut { words, device }) in cuts.iter().enumerate() {
        let read = read(device);
        // One that is refused says why in its answer, and is no reason not to look.
        let cut = format!(
            "{words} >{folder}/{at}.answer 2>{folder}/{at}.why || cat {folder}/{at}.why >>{folder}/{at}.answer"
        );
        write!(script, "( {cut}; {read} >{folder}/{at}.before ) & ")?;
    }
    write!(script, "wait; sleep {}; ", LANDS_WITHIN.as_secs())?;
    for (at, cut) in cuts.iter().enumerate() {
        write!(script, "{} >{folder}/{at}.after; ", read(&cut.device))?;
    }
    let storage = site.storage()?;
    storage.sh(&script)?.ok()?;
    let said = |at: usize, what: &str| -> Result<String> {
        Ok(storage.run(&["cat", &format!("{folder}/{at}.{what}")])?.ok()?.stdout)
    };
    let seen = |at| Ok((said(at, "answer")?, landed_between(&said(at, "before")?, &said(at, "after")?)?));
    (0..cuts.len()).map(seen).collect()
}

/// The control of all that [`landed_after`] proves: how many stamps land after a mere unmapping, or another call that is no
/// barrier. That none does is an error, because it would prove nothing.
///
/// The writes are held back for as long as the control takes, and let go behind it. With a delay that ends by itself they
/// would land in waves, and a call that is over right behind a wave has nothing in flight to show.
pub fn landed_after_unmapping(site: &Site, device: &str, unmap: &str) -> Result<u64> {
    site.delay_writes(device, Some(CONTROL_MS))?;
    // Writes of blocks side by side may come as one.
    let mut before = 0;
    wait_for("the writes to be in flight in the backend", Duration::from_millis(CONTROL_MS / 2), || {
        let held = site.delayed_writes(device)?;
        Ok((held > 0 && std::mem::replace(&mut before, held) == held).then_some(()))
    })?;
    site.storage()?.sh(unmap)?.ok()?;
    let stamps = || Ok::<_, anyhow::Error>(site.storage()?.sh(&read(device))?.ok()?.stdout);
    let before = stamps()?;
    site.delay_writes(device, None)?;
    let landed = landed_between(&before, &stamps()?)?;
    check(landed > 0, || format!("control: no stamp landed after `{unmap}`, so the proof proves nothing"))?;
    Ok(landed)
}

/// A host writes to all of these LVs by its disks; returns when its writes are in flight, in a slow backend, or land, in a fast one.
pub fn write_all<'d>(
    site: &Site,
    slow: bool,
    disks: impl Iterator<Item = (String, &'d Disk<'d>)>,
) -> Result<Vec<Running>> {
    let (devices, disks): (Vec<_>, Vec<_>) = disks.unzip();
    if slow {
        site.delay_writes_of(&devices, Some(SLOW_MS))?;
    }
    let each = writers_each(disks.len());
    let write = |disk: &&Disk<'_>| disk.write_stamps(&["--threads", &each.to_string()]);
    let writers = disks.iter().map(write).collect::<Result<Vec<_>>>()?;
    for (disk, writer) in disks.into_iter().zip(&writers) {
        if slow {
            in_flight(disk, each)?;
        } else {
            going(writer).with_context(|| format!("{}'s stamps", disk.vm.name()))?;
        }
    }
    Ok(writers)
}

/// The words that read an LV's stamps on the storage node.
fn read(device: &str) -> String {
    format!("{BIN}/mooring-stamp read {device}")
}

/// How many stamps landed between two reads of an LV.
fn landed_between(before: &str, after: &str) -> Result<u64> {
    let (before, after) = (sequences(before)?, sequences(after)?);
    Ok(after.iter().sum::<u64>().saturating_sub(before.iter().sum()))
}

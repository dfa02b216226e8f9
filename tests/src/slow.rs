//! A slow backend: it catches a host with its writes in flight, and shows which of them land
//! afterwards.
//!
//! What must never happen here: stamps reported as not landed before the slowest write had its
//! time.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::Running;
use serde_json::Value;

use crate::control::Control;
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::{BIN, Site, going, sequences};

/// Number of writes in flight.
pub const WRITERS: u64 = 8;
/// Time that the backend takes for a write.
pub const SLOW_MS: u64 = 1500;
/// Interval of writers that write together: a write has landed before the next one begins.
const TOGETHER_EVERY_MS: u64 = SLOW_MS * 2;
/// Time after an answer within which every write in flight has landed: three times that of the
/// slowest write.
pub const LANDS_WITHIN: Duration = Duration::from_millis((SLOW_MS * 3).next_multiple_of(1000));
/// Time limit for a removal with all its repetitions, and for the wait after it.
const LIMIT: Duration = Duration::from_mins(10);
/// The backend's delay in the control: longer than any call that is to be shown as no barrier, on
/// any machine. Writes in flight land when the delay is removed, so nothing waits so long.
const CONTROL_MS: u64 = 20_000;

/// Number of writers per volume, if a host writes to this many at once: an emulated processor
/// drives all of them.
fn writers_each(volumes: usize) -> u64 {
    (2 * WRITERS / volumes.max(1) as u64).clamp(2, WRITERS)
}

/// Lets a host write through the slowed LV; returns when its own kernel has all writers in flight.
pub fn write(site: &Site, device: &str, disk: &Disk<'_>) -> Result<Running> {
    site.delay_writes(device, Some(SLOW_MS))?;
    let writer = disk.write_stamps(&["--threads", &WRITERS.to_string()])?;
    in_flight(&[disk], WRITERS)?;
    Ok(writer)
}

/// Returns when a host's own kernel has this many writes to these disks in flight, all at one
/// moment.
fn in_flight(disks: &[&Disk<'_>], writes: u64) -> Result<()> {
    let Some(vm) = disks.first().map(|disk| disk.vm) else { return Ok(()) };
    let files = disks.iter().map(|disk| {
        let name = disk.name()?;
        Ok(format!("/sys/block/{}/inflight", name.rsplit('/').next().unwrap_or_default()))
    });
    let sum = format!(
        "cat {} | awk '{{ n += $2 }} END {{ print n }}'",
        files.collect::<Result<Vec<_>>>()?.join(" ")
    );
    wait_for(&format!("{writes} writes of {} in flight", vm.name()), Duration::from_mins(2), || {
        let seen: u64 = vm.sh(&sum)?.ok()?.line().parse().context("inflight")?;
        let reached = if writes == 0 { seen == 0 } else { seen >= writes };
        Ok(reached.then_some(()))
    })
}

/// Runs `cut` on the storage node. In the same script it reads the LV's stamps at its return, and
/// again when every slow write must have landed. Returns the output of `cut`, and how many stamps
/// landed after it.
pub fn landed_after(site: &Site, device: &str, cut: &str) -> Result<(String, u64)> {
    let read = read(device);
    let wait = LANDS_WITHIN.as_secs();
    let script = format!("{cut}; echo; {read}; sleep {wait}; {read}");
    let out = site.storage()?.command(["sh", "-euc", &script]).timeout(LIMIT).run()?.ok()?;
    let mut lines: Vec<&str> = out.stdout.trim_end().lines().collect();
    let (Some(after), Some(before)) = (lines.pop(), lines.pop()) else {
        bail!("no stamps in {}", out.stdout)
    };
    Ok((lines.join("\n"), landed_between(before, after)?))
}

/// Force-detaches a host with writes in flight. Returns the receipt, which is proven; no stamp
/// lands after the answer that says so.
pub fn force_detach(site: &Site, device: &str, attachment: &str) -> Result<Value> {
    let until_proven = Control::repeated(&Control::force_words(attachment));
    let (answer, landed) = landed_after(site, device, &until_proven)?;
    let mut answer: Value =
        serde_json::from_str(&answer).with_context(|| format!("the detach answered {answer}"))?;
    check(answer["receipt"]["proof"] == "proven", || format!("the receipt is not proven: {answer}"))?;
    check(landed == 0, || format!("{landed} stamps landed after a proven receipt"))?;
    Ok(answer["receipt"].take())
}

/// A host's removal from one volume.
pub struct Cut {
    /// The command line.
    pub words: String,
    /// The volume's LV.
    pub device: String,
}

/// Runs all of them at once on the storage node, after `first`, and does for each what
/// [`landed_after`] does. Returns for each its output, and how many stamps landed after it.
pub fn landed_after_each(site: &Site, first: &str, cuts: &[Cut]) -> Result<Vec<(String, u64)>> {
    let folder = "/run/cuts";
    let mut script = format!("mkdir -p {folder}; {first}; ");
    for (at, Cut { words, device }) in cuts.iter().enumerate() {
        let read = read(device);
        // A refused one has the reason in its answer; the stamps are read all the same.
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
    storage.command(["sh", "-euc", &script]).timeout(LIMIT).run()?.ok()?;
    let said = |at: usize, what: &str| -> Result<String> {
        Ok(storage.run(&["cat", &format!("{folder}/{at}.{what}")])?.ok()?.stdout)
    };
    let seen = |at| Ok((said(at, "answer")?, landed_between(&said(at, "before")?, &said(at, "after")?)?));
    (0..cuts.len()).map(seen).collect()
}

/// Control of everything that [`landed_after`] proves: counts the stamps that land after a mere
/// unmapping, or after another call that is no barrier. None is an error, because it would prove
/// nothing.
///
/// The writes are held back while the control runs, and released after it. With a delay that ends
/// by itself they would land in waves, and a call that ends right after a wave has nothing in
/// flight to show.
pub fn landed_after_unmapping(site: &Site, device: &str, unmap: &str) -> Result<u64> {
    site.delay_writes(device, Some(CONTROL_MS))?;
    // Writes of adjacent blocks may arrive as one.
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

/// The pace at which a host writes to many LVs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as a fast backend allows.
    Fast,
    /// As fast as a slow backend allows.
    Slow,
    /// To a slow backend: all writes at the same moment, and then none until they have landed.
    Together,
}

/// Lets a host write to all of these LVs. Returns when its writes land (fast backend) or are in
/// flight (slow backend); those that write together have just begun.
pub fn write_all<'d>(
    site: &Site,
    pace: Pace,
    disks: impl Iterator<Item = (String, &'d Disk<'d>)>,
) -> Result<Vec<Running>> {
    let (devices, disks): (Vec<_>, Vec<_>) = disks.unzip();
    if pace != Pace::Fast {
        site.delay_writes_of(&devices, Some(SLOW_MS))?;
    }
    let each = writers_each(disks.len());
    let (threads, every_ms) = (each.to_string(), TOGETHER_EVERY_MS.to_string());
    let mut more = vec!["--threads", threads.as_str()];
    if pace == Pace::Together {
        more.extend(["--every-ms", &every_ms]);
    }
    let writers = disks.iter().map(|disk| disk.write_stamps(&more)).collect::<Result<Vec<_>>>()?;
    let all = each * disks.len() as u64;
    match pace {
        Pace::Fast => {
            for (disk, writer) in disks.iter().zip(&writers) {
                going(writer).with_context(|| format!("{}'s stamps", disk.vm.name()))?;
            }
        }
        Pace::Slow => in_flight(&disks, all)?,
        Pace::Together => {
            // After a moment without any, all have just begun.
            in_flight(&disks, 0)?;
            in_flight(&disks, all)?;
        }
    }
    Ok(writers)
}

/// The command line that reads an LV's stamps on the storage node.
fn read(device: &str) -> String {
    format!("{BIN}/mooring-stamp read {device}")
}

/// Counts the stamps that landed between two reads of an LV.
fn landed_between(before: &str, after: &str) -> Result<u64> {
    let (before, after) = (sequences(before)?, sequences(after)?);
    Ok(after.iter().sum::<u64>().saturating_sub(before.iter().sum()))
}

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
/// How often those write who write together: a write has landed before the next one begins.
const TOGETHER_EVERY_MS: u64 = SLOW_MS * 2;
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
    in_flight(&[disk], WRITERS)?;
    Ok(writer)
}

/// Returns when a host's own kernel has so many writes to these disks in flight, all at one moment.
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

/// How often a force detach is asked for until its receipt is proven: on a busy machine the first answer, after 5 s, may be that it
/// is not yet (exit status 5).
const ASKED_MAX: u32 = 12;

/// Force-detaches a host whose writes are in flight; the receipt, which is proven, and no stamp lands behind the answer that says so.
pub fn force_detach(site: &Site, device: &str, attachment: &str) -> Result<Value> {
    let words = Control::force_words(attachment);
    let until_proven = format!(
        "n=0; s=5; while [ $s = 5 ] && [ $n -lt {ASKED_MAX} ]; do \
         n=$((n + 1)); s=0; {words} >/run/detached || s=$?; done; cat /run/detached; [ $s = 0 ]"
    );
    let (answer, landed) = landed_after(site, device, &until_proven)?;
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

/// How a host writes to many LVs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as a fast backend takes it.
    Fast,
    /// As fast as a slow one takes it.
    Slow,
    /// To a slow one, all writes at the same moment and then none until they have landed.
    Together,
}

/// A host writes to all of these LVs by its disks; returns when its writes land, in a fast backend, or are in flight, in a slow one:
/// if together, since a moment ago.
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
            // Behind a moment with none, they have all just begun.
            in_flight(&disks, 0)?;
            in_flight(&disks, all)?;
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

//! A slow backend: it is how a host is caught with its writes in flight, and how what lands of them afterwards is seen.
//!
//! What must never happen here: stamps said not to have landed before the slowest write had its time.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::Running;

use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::{BIN, Site, sequences};

/// Writes in flight.
pub const WRITERS: u64 = 8;
/// How long the backend takes for a write.
pub const SLOW_MS: u64 = 1500;
/// How long it takes in the control: long beside what an unmapping and a look at the stamps take on any machine.
const CONTROL_MS: u64 = 4000;

/// A host writes through the slowed LV; returns when its own kernel has all writers in flight.
pub fn write(site: &Site, device: &str, disk: &Disk<'_>) -> Result<Running> {
    site.delay_writes(device, Some(SLOW_MS))?;
    let writer = disk.write_stamps(&["--threads", &WRITERS.to_string()])?;
    let name = disk.name()?;
    let name = name.rsplit('/').next().unwrap_or_default();
    let what = format!("{WRITERS} writes of {} in flight", disk.vm.name());
    wait_for(&what, Duration::from_mins(2), || {
        let out = disk.vm.sh(&format!("cat /sys/block/{name}/inflight"))?.ok()?;
        let writes: u64 = out.line().split_whitespace().nth(1).context("inflight")?.parse()?;
        Ok((writes >= WRITERS).then_some(()))
    })?;
    Ok(writer)
}

/// Runs `cut` on the storage node, reads the stamps of the LV as soon as it has returned and again when everything slow must
/// have landed, in one script. Says what `cut` printed, and how many stamps landed after it.
pub fn landed_after(site: &Site, device: &str, cut: &str) -> Result<(String, u64)> {
    landed(site, device, cut, SLOW_MS * 3)
}

/// The control of all that [`landed_after`] proves: how many stamps land after a mere unmapping, or another call that is no
/// barrier. That none does is an error, because it would prove nothing.
///
/// The writers' stamps land in waves, all at once, 4 s from wave to wave. An unmapping right before a wave would be over
/// only after it, so it comes a second behind one: the next writes are in flight by then, and have long to go.
pub fn landed_after_unmapping(site: &Site, device: &str, unmap: &str) -> Result<u64> {
    site.delay_writes(device, Some(CONTROL_MS))?;
    let read = format!("{BIN}/mooring-stamp read {device}");
    let wave = format!(
        "old=$({read}); for i in $(seq 1000); do [ \"$({read})\" = \"$old\" ] || break; done; sleep 1"
    );
    let (_, landed) = landed(site, device, &format!("{wave}; {unmap}"), CONTROL_MS * 2)?;
    check(landed > 0, || format!("control: no stamp landed after `{unmap}`, so the proof proves nothing"))?;
    Ok(landed)
}

fn landed(site: &Site, device: &str, cut: &str, wait_ms: u64) -> Result<(String, u64)> {
    let read = format!("{BIN}/mooring-stamp read {device}");
    let wait = wait_ms.div_ceil(1000);
    let out = site.storage()?.sh(&format!("{cut}; echo; {read}; sleep {wait}; {read}"))?.ok()?;
    let mut lines: Vec<&str> = out.stdout.trim_end().lines().collect();
    let (Some(after), Some(before)) = (lines.pop(), lines.pop()) else {
        bail!("no stamps in {}", out.stdout)
    };
    let (before, after) = (sequences(before)?, sequences(after)?);
    let landed = after.iter().sum::<u64>().saturating_sub(before.iter().sum());
    Ok((lines.join("\n"), landed))
}

//! Force detach with writes in flight, and the control without which it would prove nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::Running;
use serde_json::Value;

use super::{Demo, acl_folder};
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::native::text;
use crate::site::{number, progress};
use crate::slow::{self, SLOW_MS, WRITERS};
use crate::tally::took;

impl Demo<'_> {
    /// Puts a delay before every write of the volume's LV (`true`), or removes it. The LV's own
    /// table is swapped, so the export continues.
    pub(super) fn slow(&self, slow: bool) -> Result<()> {
        self.site.delay_writes(&self.device, slow.then_some(SLOW_MS))
    }

    /// Lets host1 write through the slow backend; returns when all its writers are in flight.
    pub(super) fn write_slowly(&self) -> Result<(Running, u64)> {
        self.slow(true)?;
        let writer = self.disk1.write_stamps(&["--threads", &WRITERS.to_string()])?;
        let initiator = self.initiator1()?;
        let in_flight = wait_for("8 writes of host1 in flight", Duration::from_mins(2), || {
            check(writer.is_running(), || format!("the writer has ended: {}", writer.stderr_so_far()))?;
            let shown = self.site.json(&["export", "show", &self.volume])?;
            let grants = shown["export"]["grants"].as_array().context("no grants")?;
            let mine = grants
                .iter()
                .find(|grant| grant["initiator"] == initiator.as_str())
                .context("no grant of host1")?;
            let n = mine["sessions"][0]["in_flight"].as_u64().unwrap_or(0);
            Ok((n >= WRITERS).then_some(n))
        })?;
        Ok((writer, in_flight))
    }

    pub(super) fn initiator1(&self) -> Result<String> {
        Ok(text(&self.control.live(&self.attachment1)?, "initiator")?.to_owned())
    }

    /// Returns the output of `cut`, and how many stamps of the shared volume landed after it.
    pub(super) fn landed_after(&self, cut: &str) -> Result<(String, u64)> {
        slow::landed_after(self.site, &self.device, cut)
    }

    pub(super) fn force_detach(&mut self) -> Result<()> {
        let reader = self.disk2.watch_stamps()?;
        let (writer, in_flight) = self.write_slowly()?;
        let began = Instant::now();
        let receipt = slow::force_detach(self.site, &self.device, &self.attachment1)?;
        let cut = receipt["sessions_cut"].as_array().map_or(0, Vec::len);
        let took = took(&receipt).unwrap_or_else(|| began.elapsed()).as_millis();
        self.evidence.shows(format!(
            "host1 is force-detached with {in_flight} writes in flight in a backend of {SLOW_MS} ms: receipt `proven` after \
             {took} ms ({cut} session cut), 0 stamps landed in the {} s after it",
            SLOW_MS * 3 / 1000
        ));
        (self.proved.in_flight, self.proved.receipt_ms) = (in_flight, took);
        self.proved.longest_gap_ms = self.no_gap(reader, "the force detach")?;
        self.slow(false)?;
        self.victim_is_gone(writer)
    }

    /// Checks that host1 has no session, no disk and no path any more, that its writer fails soon,
    /// and that it cannot return by itself.
    fn victim_is_gone(&mut self, writer: Running) -> Result<()> {
        let began = Instant::now();
        let host = &self.control.hosts[0];
        wait_for("host1 to have no session and no path", Duration::from_secs(30), || {
            Ok(host.nothing_left().is_ok().then_some(()))
        })?;
        let seen = wait_for("host1's writes to fail", Duration::from_secs(30), || {
            let seen = progress(&writer)?;
            Ok((number(&seen, "errors")? > 0).then_some(seen))
        })?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "host1's session, disk and path are gone {:.1} s after the receipt; its writer got {} errors instead of a hang",
            began.elapsed().as_secs_f64(),
            number(&seen, "errors")?
        ));
        let live = self.control.mooring(&["attachment", "show", &self.attachment1])?;
        check(live.status.code() == Some(3), || format!("the attachment is still there: {}", live.stdout))
    }

    /// The progress of a reader on host2; a read error is an error here.
    pub(super) fn survivor(reader: &Running, during: &str) -> Result<Value> {
        let seen = progress(reader)?;
        check(number(&seen, "errors")? == 0, || format!("host2's reads during {during}: {seen}"))?;
        Ok(seen)
    }

    /// Ends a reader, checks that it saw no error, and returns its longest gap.
    pub(super) fn no_gap(&mut self, reader: Running, during: &str) -> Result<u64> {
        let seen = Self::survivor(&reader, during)?;
        reader.kill()?;
        drop(reader.wait()?);
        let gap = number(&seen, "longest_gap_ms")?;
        self.evidence.shows(format!(
            "host2 read on during {during}: {} reads, 0 errors, longest gap {gap} ms",
            number(&seen, "done")?
        ));
        Ok(gap)
    }

    pub(super) fn reattach_host1(&mut self) -> Result<()> {
        let (_, id, path) = self.attach("host1", "rw")?;
        (self.attachment1, self.disk1) = (id, Disk::new(self.disk1.vm, path));
        Ok(())
    }

    /// Control: after a mere unmapping, stamps must land. If none did, the proof above would prove
    /// nothing.
    pub(super) fn control_only_unmaps(&mut self) -> Result<()> {
        self.reattach_host1()?;
        self.evidence.shows("host1 is attached again");
        let (writer, in_flight) = self.write_slowly()?;
        let acl = acl_folder(&self.target, &self.initiator1()?);
        let unmap = format!(
            "for link in $(find {acl}/lun_1 -maxdepth 1 -type l); do rm $link; done; rmdir {acl}/lun_1"
        );
        let landed = slow::landed_after_unmapping(self.site, &self.device, &unmap)?;
        self.evidence.shows(format!(
            "control: with {in_flight} writes in flight, unmapping alone lets {landed} stamps land after it"
        ));
        self.proved.landed_in_control = landed;
        writer.kill()?;
        self.slow(false)?;
        self.control.force_detach(&self.attachment1)?;
        drop(writer.wait()?);
        let host = &self.control.hosts[0];
        wait_for("host1 to let go", Duration::from_secs(30), || {
            Ok(host.nothing_left().is_ok().then_some(()))
        })?;
        self.reattach_host1()
    }
}

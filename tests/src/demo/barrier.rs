//! A mode change with a barrier while writes are in flight, and beside it the plain change, after
//! which they land.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Demo, acl_folder};
use crate::control::Control;
use crate::evidence::{check, wait_for};
use crate::slow::{self, SLOW_MS};

impl Demo<'_> {
    /// Host1 becomes a reader while it writes; afterwards it writes again.
    pub(super) fn barrier(&mut self) -> Result<()> {
        let reader = self.disk2.watch_stamps()?;
        let set = |more: &[&str]| {
            let mut words = vec!["--json", "attachment", "mode", &self.attachment1];
            words.extend(more);
            Control::words(&words).join(" ")
        };
        // A host of ours answers a plain change only when its disk has nothing in flight. The
        // target's state counts.
        let protect = format!("{}/lun_1/write_protect", acl_folder(&self.target, &self.initiator1()?));
        let plain = format!(
            "{} >/run/plain.json 2>&1 & while [ \"$(cat {protect})\" != 1 ]; do :; done",
            set(&["ro"])
        );
        let barrier = set(&["ro", "--barrier", "--timeout", "240"]);
        let (writer, _) = self.write_slowly()?;
        let landed = slow::landed_after_unmapping(self.site, &self.device, &plain)?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "control: {landed} stamps of host1 land after the target has made it ro without a barrier"
        ));
        self.control.json(&["attachment", "mode", &self.attachment1, "rw"])?;

        let (writer, in_flight) = self.write_slowly()?;
        let began = Instant::now();
        let (answer, landed) = self.landed_after(&barrier)?;
        let took = began.elapsed().as_millis().saturating_sub(u128::from(SLOW_MS) * 3);
        writer.kill()?;
        drop(writer.wait()?);
        let answer: Value = serde_json::from_str(&answer).with_context(|| format!("the answer: {answer}"))?;
        check(answer["barrier"] == true && answer["attachment"]["effective_mode"] == "ro", || {
            format!("{answer}")
        })?;
        check(landed == 0, || format!("{landed} stamps landed after the barrier"))?;
        self.slow(false)?;
        wait_for("host1 to be logged in again", Duration::from_secs(30), || {
            let live = self.control.live(&self.attachment1)?;
            Ok((live["session"] == true && live["host_phase"] == "ready").then_some(()))
        })?;
        self.disk1.read_stamps().context("host1 reads after the barrier")?;
        let said = self.disk1.write_raw()?;
        check(said.contains("Data Protect"), || format!("a raw WRITE of host1 after the barrier: {said}"))?;
        let gap = self.no_gap(reader, "the barrier")?;
        self.control.json(&["attachment", "mode", &self.attachment1, "rw"])?;
        self.evidence.shows(format!(
            "`mooring attachment mode --barrier` with {in_flight} writes of host1 in flight in a backend of {SLOW_MS} ms: \
             answered within {took} ms, 0 stamps landed after it; host1 is logged in again by itself and reads, host2's \
             longest gap {gap} ms"
        ));
        Ok(())
    }
}

//! systemd and logind over D-Bus, from within the units' sandboxes: a unit that would clear the
//! target, and its remedy; an agent that is down on the controller's machine; and the lock that
//! delays a shutdown while a data job is at work.
//!
//! What must never happen here: a remedy other than the one that the problem names.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Machine, built};
use crate::evidence::{check, wait_for};

/// A unit that Debian enables with targetcli: its stop clears the kernel's target.
const RESTORER: &str = "rtslib-fb-targetctl.service";
const SOON: Duration = Duration::from_secs(30);

impl Machine<'_> {
    /// Returns `true` if `mooring host show` has these words.
    fn host_says(&self, words: &str) -> Result<bool> {
        let shown =
            self.sh(". /root/env; COLUMNS=400 mooring --token-file /root/token host show storage1")?;
        Ok(shown.contains(words))
    }

    fn says_soon(&self, words: &str, says: bool) -> Result<()> {
        let what = format!("{words:?} in `mooring host show`: {says}");
        wait_for(&what, SOON, || Ok((self.host_says(words)? == says).then_some(())))
    }

    /// Runs while a host is logged in.
    pub(super) fn units(&mut self) -> Result<()> {
        self.says_soon(RESTORER, true).context("Debian starts it at the boot")?;
        self.sh(&format!("systemctl disable {RESTORER}"))?;
        let before = self.sh(&built())?;
        let mend = format!("systemctl mask {RESTORER} && systemctl stop {RESTORER}");
        check(self.host_says(&mend)?, || format!("the problem does not say {mend:?}"))?;
        let began = Instant::now();
        self.sh(&mend)?;
        self.says_soon(RESTORER, false)?;
        let took = began.elapsed();
        let after = self.sh(&built())?;
        check(after == before, || format!("the mend has changed the target from\n{before}\nto\n{after}"))?;
        self.sh(&format!("systemctl unmask {RESTORER}; systemctl start {RESTORER}"))?;
        self.says_soon(RESTORER, true)?;
        self.sh(&mend)?;
        self.says_soon(RESTORER, false)?;
        self.sh("systemctl stop mooring-agent")?;
        self.says_soon("it is inactive: systemctl start mooring-agent.service", true)?;
        self.sh("systemctl start mooring-agent")?;
        self.up_soon()?;
        self.evidence.shows(format!(
            "{RESTORER} beside exports is a problem of the host; its mend leaves the target as it is, and the problem goes ({:.1} s); \
             an agent that is down shows what systemd knows",
            took.as_secs_f64()
        ));
        Ok(())
    }

    /// Turns the machine off while a volume is zeroed: the last scene.
    pub(super) fn turn_off(&mut self) -> Result<()> {
        let locks = "systemd-inhibit --list --no-pager --no-legend | grep '^Mooring' || true";
        check(self.sh(locks)?.trim().is_empty(), || "a lock is held while nothing is at work".to_owned())?;
        self.mooring("type create thick --spec provisioning:type=thick")?;
        self.mooring("job throttle 8MiB --host storage1")?;
        // The zeroing takes two minutes at this rate.
        let made = self.sh(". /root/env; mooring --token-file /root/token volume create slow --size 1GiB --type thick --timeout 20 2>&1 || true")?;
        let lock = wait_for("the lock", SOON, || {
            let lock = self.sh(locks)?;
            Ok((!lock.trim().is_empty()).then_some(lock))
        })
        .with_context(|| format!("the volume's creation said: {made}"))?;
        for words in ["Mooring agent", "shutdown", "data jobs write down how far they are (1 zero)", "delay"]
        {
            check(lock.contains(words), || format!("the lock does not say {words:?}: {lock}"))?;
        }
        // By then more than a piece is zeroed.
        std::thread::sleep(Duration::from_secs(3));
        let words = ["-f", "-n", "0", "-o", "short-monotonic", "-u", "mooring-agent", "-u", "systemd-logind"];
        let journal = self.vm.command(["journalctl"].into_iter().chain(words)).spawn()?;
        journal.pid()?;
        let asked = self.vm.command(["systemctl", "poweroff", "--no-block"]).spawn()?;
        asked.pid()?;
        asked.detach();
        let began = Instant::now();
        let off = self.vm.wait_off(Duration::from_mins(5))?;
        let said = journal.stdout_so_far();
        check(off, || format!("the machine did not turn itself off: {said}"))?;
        check(said.contains("logind tells of a shutdown"), || format!("the agent was not told: {said}"))?;
        let mark = self.mark()?;
        self.evidence.shows(format!(
            "turned off while a volume is zeroed ({}): off after {:.1} s, {} MiB are marked as zeroed on its LV; {}",
            lock.split_whitespace().collect::<Vec<_>>().join(" "),
            began.elapsed().as_secs_f64(),
            mark,
            said.lines().take(4).collect::<Vec<_>>().join("; ")
        ));
        Ok(())
    }

    /// Progress of the zeroing in the LV's tag, from LVM's metadata at the beginning of the group's
    /// disks. Without a shutdown's own mark there is none before the first GiB.
    fn mark(&self) -> Result<u64> {
        let mut most = None;
        for disk in 0..2 {
            let path = self.vm.data_disk_file(disk);
            let mut start = Vec::new();
            let file = std::fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
            file.take(4 << 20).read_to_end(&mut start).context("read a disk")?;
            let text = String::from_utf8_lossy(&start).into_owned();
            let marks = text.split("mooring-zeroed-").skip(1);
            let marks = marks
                .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
            most = marks.chain(most).max();
        }
        most.filter(|mark| (1..1024).contains(mark)).context("no mark of the zeroing on the group's disks")
    }
}

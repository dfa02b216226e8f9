//! Secrets of the daemons under their units: no daemon leaves a core; sealing keys are rotated, and
//! come from a credential of systemd.
//!
//! What must never happen here: the absence of a core taken for proof on a machine that keeps none.

use std::time::Duration;

use anyhow::{Context, Result};

use super::rows::Row;
use super::{DAEMONS, Machine};
use crate::evidence::{check, wait_for};

/// Has the kernel pass each core to a program, which no limit of a process and no sandbox keeps
/// from writing the core. Then a shell that anybody may dump ends by a signal: the control.
const KEEP_CORES: &str = "mkdir /root/cores; \
    printf '#!/bin/sh\\n/bin/cat > /root/cores/$1\\n' > /root/keep-core; chmod 700 /root/keep-core; \
    cat /proc/sys/kernel/core_pattern > /root/core_pattern; \
    echo '|/root/keep-core %e' > /proc/sys/kernel/core_pattern; sh -c 'kill -ABRT $$' || true";

/// Ends all daemons as a crash does. Rust answers the first SIGSEGV that another process sends by
/// itself, so this is SIGABRT.
const CRASH: &str = "systemctl kill -s ABRT";

/// Commands that make new sealing keys.
const ROTATE: &[Row] = &[
    ("mooring-agent rotate-sealing-key", 0, "comes first now"),
    ("mooring-controller rotate-sealing-key", 0, "comes first now"),
];

/// The controller's sealing keys, and the place from which systemd hands them over.
const KEYS: &str = "/var/lib/mooring-controller/sealing.key";
const SOURCE: &str = "/root/sealing.key";

/// The folder of drop-ins of the controller's unit that last until the next boot.
const DROP_INS: &str = "/run/systemd/system/mooring-controller.service.d";

impl Machine<'_> {
    /// No crash of a daemon leaves a core, whatever the machine does with cores.
    pub(super) fn cores(&mut self) -> Result<()> {
        for daemon in DAEMONS.split(' ') {
            let limit = self.sh(&format!(
                "grep '^Max core file size' /proc/$(systemctl show -p MainPID --value {daemon})/limits"
            ))?;
            let limits: Vec<_> = limit.split_whitespace().skip(4).take(2).collect();
            check(limits == ["0", "0"], || format!("{daemon}: {limit}"))?;
        }
        // The kernel gives root the files of a process that must not be dumped.
        let owners = self.sh(
            "cd /proc/$(systemctl show -p MainPID --value mooring-controller); stat -c %U status environ . | xargs",
        )?;
        check(owners == "root root mooring-controller\n", || format!("the controller's files: {owners}"))?;
        let running = format!("systemctl show -p MainPID --value {DAEMONS}");
        let before = self.sh(&running)?;
        self.sh(KEEP_CORES)?;
        let cores = || self.sh("ls /root/cores").map(|names| names.trim().to_owned());
        wait_for("the core of a shell", Duration::from_secs(30), || Ok((cores()? == "sh").then_some(())))?;
        self.sh(&format!("{CRASH} {DAEMONS}"))?;
        wait_for("systemd to have started all three again", Duration::from_mins(2), || {
            let after = self.sh(&running)?;
            let new = |(before, after): (&str, &str)| before.is_empty() || before != after && after != "0";
            let all =
                before.lines().count() == after.lines().count() && before.lines().zip(after.lines()).all(new);
            Ok((all && self.is_up()).then_some(()))
        })?;
        let crashed = self.sh(&format!(
            "for unit in {DAEMONS}; do journalctl --no-pager -o cat -u $unit | grep -c 'status=6/ABRT'; done"
        ))?;
        check(crashed.split_whitespace().all(|count| count == "1"), || format!("crashes: {crashed}"))?;
        let left = cores()?;
        check(left == "sh", || format!("cores that the kernel handed over: {left}"))?;
        self.sh("cat /root/core_pattern > /proc/sys/kernel/core_pattern")?;
        self.evidence.shows(
            "each daemon ends by SIGABRT and leaves no core, a shell leaves one (the control); systemd starts all three again",
        );
        Ok(())
    }

    /// While a host is logged in, both databases are sealed by new keys, and the controller gets
    /// them as a credential.
    pub(super) fn sealing(&mut self, id: &str) -> Result<()> {
        self.rows("", id, ROTATE)?;
        self.sh("systemctl restart mooring-agent mooring-controller")?;
        for unit in ["mooring-agent", "mooring-controller"] {
            self.logs(unit, "all lines below the first key can be removed")?;
        }
        self.logged_in(id)?;
        self.sh(&format!(
            "systemctl stop mooring-controller; mv {KEYS} {SOURCE}; systemctl start --no-block mooring-controller"
        ))?;
        self.logs("mooring-controller", "which is not in .*sealing.key")
            .context("the controller refuses a database without its keys")?;
        self.sh(&format!(
            "systemctl stop mooring-controller; mkdir -p {DROP_INS}; \
             printf '[Service]\\nLoadCredential=mooring-sealing-key:{SOURCE}\\n' > {DROP_INS}/sealing.conf; \
             systemctl daemon-reload; systemctl start mooring-controller; test ! -e {KEYS}"
        ))?;
        self.logged_in(id)?;
        // This reads the old secrets, and seals new ones.
        let rotated = self.mooring("volume rotate-secrets data --timeout 120")?;
        check(rotated["done"] == true, || format!("with the keys as a credential: {rotated}"))?;
        self.sh(&format!(
            "systemctl stop mooring-controller; rm -r {DROP_INS}; mv {SOURCE} {KEYS}; \
             systemctl daemon-reload; systemctl start mooring-controller"
        ))?;
        self.logged_in(id).context("with the keys in their file again")?;
        self.evidence.shows(
            "both databases are sealed by new keys; without its keys the controller does not start (the control), with them as a \
             credential of systemd it reads and seals secrets",
        );
        Ok(())
    }

    /// Waits for a line in a unit's journal.
    fn logs(&self, unit: &str, line: &str) -> Result<()> {
        let look = format!("journalctl --no-pager -o cat -u {unit} | grep -q '{line}'");
        wait_for(&format!("{unit} to log '{line}'"), Duration::from_secs(30), || {
            Ok(self.sh(&look).is_ok().then_some(()))
        })
    }

    /// Waits until the controller reaches the agent and shows the attachment with its session.
    fn logged_in(&self, id: &str) -> Result<()> {
        self.up_soon()?;
        self.ready_soon(id)
    }
}

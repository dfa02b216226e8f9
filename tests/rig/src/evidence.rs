//! Collects evidence when a scenario fails.
//!
//! What must never happen here: a question that hangs on the very thing that hangs. Every question
//! has a short limit, and an unanswered one is recorded as such.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::vm::Vm;

/// A file's name, and the script whose output goes there.
const QUESTIONS: &[(&str, &str)] = &[
    ("dmesg", "dmesg"),
    (
        "configfs",
        "if [ -d /sys/kernel/config/target ]; then /proc/1/exe tree /sys/kernel/config/target; else echo no target; fi",
    ),
    ("lvm", "pvs; vgs; lvs -a -o +lv_tags,devices; dmsetup table; dmsetup status; dmsetup info -c"),
    ("sessions", "iscsiadm -m session -P 3; ss -tnp"),
    ("processes", "ps -eo pid,ppid,stat,wchan:32,etimes,args"),
    (
        "stuck",
        "for p in /proc/[0-9]*; do if grep -q '^State:.D' $p/status; then cat $p/comm $p/stack; fi; done",
    ),
    ("machine", "lsblk -O -J; lsmod; ip -s address; ip route; df -h; free -m"),
];

/// Writes the consoles, and the answers of every VM that is up.
pub(crate) fn save(vms: &[Vm], dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    thread::scope(|scope| {
        let threads: Vec<_> = vms.iter().map(|vm| scope.spawn(|| one(vm, dir))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
    })
}

fn one(vm: &Vm, dir: &Path) -> Result<()> {
    let write = |what: &str, text: &str| {
        let path = dir.join(format!("{}.{what}.txt", vm.name()));
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("console", &vm.console())?;
    if !vm.is_up() {
        return Ok(());
    }
    thread::scope(|scope| {
        let ask = |script: &str| {
            let out = vm.command(["sh", "-c", script]).timeout(Duration::from_secs(20)).run();
            out.map_or_else(
                |e| format!("{e:#}\n"),
                |out| format!("{}{}({})\n", out.stdout, out.stderr, out.status),
            )
        };
        let threads: Vec<_> =
            QUESTIONS.iter().map(|(what, script)| scope.spawn(move || write(what, &ask(script)))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
    })
}

//! OCFS2 of Debian with its own cluster stack, o2cb, on two hosts: both write one file system;
//! host1 is force-detached while it writes, and host2 goes on once host1 has fenced itself.
//!
//! What must never happen here: an order that a clock decides. The kernel's log of host2 has both
//! events.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{Running, Vm};

use super::{PATIENT, Pair};
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::Programs;

const LONG: Duration = Duration::from_hours(1);

const CLUSTER: &str = "mooring";
const MOUNT: &str = "/shared";

/// Heartbeats of 2 s each, one more than a host may miss: here 30 s. The default is 31, for 60 s.
const THRESHOLD: u8 = 16;

/// Rounds of each host under one lock.
const TURNS: u64 = 20;

/// Appends standard input to the file whose name follows, and ends once it is on the disk.
const APPEND: &str = "dd oflag=append conv=notrunc,fsync status=none of=";

/// The words of host2's kernel when its lock manager gives host1's locks up.
const EVICTED: &str = "has evicted node 1";
/// The words that the scenario adds to the same log.
const WRITTEN: &str = "mooring-rig: host2 has written";

pub(in crate::scenarios) fn run(programs: &Programs) -> Result<()> {
    super::run("ocfs2", programs, acts)
}

fn acts(pair: &mut Pair<'_>) -> Result<()> {
    let disks = pair.disks.clone();
    let [one, two] = disks.as_slice() else { bail!("two disks") };
    let result = all(pair, one, two);
    result.with_context(|| {
        format!("kernel of host1:\n{}\nkernel of host2:\n{}", kernel_log(one.vm), kernel_log(two.vm))
    })
}

fn all(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    // host2's work waits for a dead host on purpose.
    two.vm.allow_console("blocked for more than");
    mounted(pair, one, two)?;
    both_write(pair, one, two)?;
    let (first, second) = (log_lines(one.vm)?, log_lines(two.vm)?);
    writes_on(&first, "lines of host1")?;
    writes_on(&second, "lines of host2")?;
    taken_away(pair, one)?;
    goes_on(pair, two, &second)?;
    two.vm.sh("touch /run/stop")?.ok()?;
    let said = second.wait()?.ok().context("host2's writer")?.stdout;
    let synced = (last_number(&first.stdout_so_far()), last_number(&said));
    drop(first);
    on_disk(pair, two, synced)
}

/// The end of a host's kernel log; of its console, if it is off.
fn kernel_log(vm: &Vm) -> String {
    let log =
        if vm.is_up() { vm.sh("dmesg").map(|out| out.stdout).unwrap_or_default() } else { String::new() };
    let log = if log.is_empty() { vm.console() } else { log };
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Runs a step that may wait for the cluster. Returns its stdout.
fn step(vm: &Vm, what: &str, script: &str) -> Result<String> {
    let out = vm.command(["sh", "-euc", script]).timeout(PATIENT).run()?;
    let out = out.ok().with_context(|| format!("{what} on {}", vm.name()))?;
    Ok(out.stdout)
}

/// A host in the cluster's configuration.
fn node(number: u8, vm: &Vm) -> String {
    let (address, name) = (vm.ip(0), vm.name());
    format!(
        "\nnode:\n\tip_port = 7777\n\tip_address = {address}\n\tnumber = {number}\n\tname = {name}\n\tcluster = {CLUSTER}\n"
    )
}

/// Starts the cluster on both hosts, makes the file system and mounts it on both.
fn mounted(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    // Of two hosts without a network between them OCFS2 keeps the one with the lower number.
    let nodes = [node(0, two.vm), node(1, one.vm)].concat();
    let conf = format!("cluster:\n\tnode_count = 2\n\theartbeat_mode = local\n\tname = {CLUSTER}\n{nodes}");
    let folder = format!("/sys/kernel/config/cluster/{CLUSTER}");
    for vm in [one.vm, two.vm] {
        vm.sh(&format!("mkdir -p /etc/ocfs2 /dlm {MOUNT}"))?.ok()?;
        vm.write("/etc/ocfs2/cluster.conf", conf.as_bytes(), 0o644)?;
        let modules = "modprobe -a ocfs2_stackglue ocfs2_stack_o2cb ocfs2_dlmfs ocfs2";
        step(vm, "load OCFS2's modules", modules)?;
        step(vm, "mount dlmfs", "mount -t ocfs2_dlmfs ocfs2_dlmfs /dlm")?;
        step(vm, "register the cluster", &format!("o2cb register-cluster {CLUSTER} 1>&2"))?;
        let threshold = format!("echo {THRESHOLD} > {folder}/heartbeat/dead_threshold");
        step(vm, "set the heartbeat's threshold", &threshold)?;
        let local =
            step(vm, "ask whether the host is a node", &format!("cat {folder}/node/{}/local", vm.name()))?;
        check(local.trim() == "1", || format!("{} is no node of the cluster: {local:?}", vm.name()))?;
    }
    let make = format!("yes | mkfs.ocfs2 -F -b 4K -C 4K -J size=8M -N 2 -L shared {} 1>&2", two.name()?);
    step(two.vm, "make the file system", &make)?;
    mount(two)?;
    mount(one)?;
    pair.evidence.shows("a volume that both hosts have read-write is mounted as OCFS2 on both");
    Ok(())
}

fn mount(disk: &Disk<'_>) -> Result<()> {
    let script = format!("mount -t ocfs2 {} {MOUNT} 1>&2", disk.name()?);
    step(disk.vm, "mount the file system", &script).map(drop)
}

/// Starts the rounds of a host, each a read and a write of one counter under one lock.
fn turns(vm: &Vm) -> Result<Running> {
    let name = vm.name();
    let script = format!(
        "i=0; while [ $i -lt {TURNS} ]; do i=$((i + 1)); ( flock -x 9; n=$(cat {MOUNT}/counter); \
         echo $((n + 1)) > {MOUNT}/counter; echo {name} $i >> {MOUNT}/turns ) 9>>{MOUNT}/lock; done"
    );
    vm.command(["sh", "-euc", &script]).timeout(PATIENT).spawn()
}

/// Counts the lines of one host in a file, which are numbered without a gap.
fn lines_of(text: &str, name: &str) -> Result<u64> {
    let mut last: u64 = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix(name)) {
        last += 1;
        check(line.trim() == last.to_string(), || format!("line {last} of {name} has the number {line:?}"))?;
    }
    Ok(last)
}

fn both_write(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    for (writer, reader) in [(one.vm, two.vm), (two.vm, one.vm)] {
        let name = writer.name();
        let pattern = format!("yes {name} | head -c 4194304");
        let file = format!("{MOUNT}/{name}.data");
        step(writer, "write a file", &format!("{pattern} > {file}; sync {file}"))?;
        let same = format!("[ \"$(md5sum < {file})\" = \"$({pattern} | md5sum)\" ]");
        step(reader, "find the other host's file as it was written", &same)?;
    }
    // OCFS2 refuses one of two hosts that create a file at once: the files are there before.
    let files = format!("echo 0 > {MOUNT}/counter; : > {MOUNT}/turns; : > {MOUNT}/lock");
    step(one.vm, "make the counter", &files)?;
    let both = [turns(one.vm)?, turns(two.vm)?];
    for running in both {
        running.wait()?.ok().context("rounds under one lock")?;
    }
    let read = format!("cat {MOUNT}/counter {MOUNT}/turns");
    let seen = (step(one.vm, "read the rounds", &read)?, step(two.vm, "read the rounds", &read)?);
    check(seen.0 == seen.1, || format!("host1 reads {:?} and host2 {:?}", seen.0, seen.1))?;
    let counter = seen.0.lines().next().unwrap_or_default();
    check(counter == (2 * TURNS).to_string(), || {
        format!("two hosts have each counted to {TURNS} under one lock, and the counter is {counter:?}")
    })?;
    for name in ["host1", "host2"] {
        let lines = lines_of(&seen.0, name)?;
        check(lines == TURNS, || format!("{lines} of {TURNS} lines of {name} are there"))?;
    }
    pair.evidence.shows(format!(
        "each host reads the other's file as it was written; {TURNS} rounds of each under one flock lose no count and no line"
    ));
    Ok(())
}

/// Starts to append numbered lines to the host's own log, until there is `/run/stop`. Prints each
/// number once its line is on the disk.
fn log_lines(vm: &Vm) -> Result<Running> {
    let name = vm.name();
    let script = format!(
        "i=0; while ! [ -e /run/stop ]; do i=$((i + 1)); echo {name} $i | {APPEND}{MOUNT}/{name}.log; echo $i; sleep 0.2; done"
    );
    vm.command(["sh", "-euc", &script]).timeout(LONG).spawn()
}

/// The last whole number that a writer has printed; 0 before the first one.
fn last_number(said: &str) -> u64 {
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.parse::<u64>().ok()).next_back().unwrap_or_default()
}

/// Waits until a writer has written three more lines than at the call.
fn writes_on(writer: &Running, what: &str) -> Result<()> {
    let before = last_number(&writer.stdout_so_far());
    wait_for(what, Duration::from_mins(1), || {
        check(writer.is_running(), || format!("the writer has ended: {}", writer.stderr_so_far()))?;
        Ok((last_number(&writer.stdout_so_far()) >= before + 3).then_some(()))
    })
}

/// Takes the disk away from host1, and waits until its kernel has ended itself.
fn taken_away(pair: &mut Pair<'_>, one: &Disk<'_>) -> Result<()> {
    // A cluster's host whose journal fails panics at once; one whose heartbeat fails is reset.
    one.vm.allow_console("Kernel panic");
    one.vm.allow_console("[ cut here ]");
    let before = one.vm.console().len();
    let answer = pair.control.force_detach(&pair.attachments[0])?;
    check(answer["receipt"]["proof"] == "proven", || format!("the force detach: {answer}"))?;
    pair.evidence.shows("host1 is force-detached while it writes: the receipt is proven");
    let began = Instant::now();
    check(one.vm.wait_off(PATIENT)?, || "host1 has lost its disk, and has not fenced itself".to_owned())?;
    let console = one.vm.console();
    let said = console.get(before..).unwrap_or_default();
    let panic = said.contains("OCFS2: (device");
    check(panic || said.contains("ocfs2 is very sorry"), || {
        format!("host1's kernel has ended, not by OCFS2: {said}")
    })?;
    let how = if panic {
        "its journal fails, and OCFS2 panics"
    } else {
        "its heartbeat fails, and OCFS2 resets it"
    };
    pair.evidence.shows(format!("host1 fences itself after {} s: {how}", began.elapsed().as_secs()));
    Ok(())
}

/// Lets host2 write where host1 had the lock. The control is the order in host2's kernel log: the
/// write ends after host1 was given up, and not before.
fn goes_on(pair: &mut Pair<'_>, two: &Disk<'_>, writer: &Running) -> Result<()> {
    let began = Instant::now();
    let script = format!("echo taken over | {APPEND}{MOUNT}/host1.log; echo {WRITTEN} > /dev/kmsg");
    step(two.vm, "append to the file that host1 had locked", &script)?;
    let took = began.elapsed().as_secs();
    let log = step(two.vm, "read the kernel's log", "dmesg")?;
    let (evicted, written) = (log.find(EVICTED), log.find(WRITTEN));
    check(evicted.is_some() && evicted < written, || {
        format!(
            "host2 writes where host1 had the lock (at {written:?}) before it gives host1 up (at {evicted:?})"
        )
    })?;
    writes_on(writer, "more lines of host2")?;
    pair.evidence.shows(format!(
        "host2's write to the file that host1 had locked waits {took} s, until the lock manager has given host1 up, and ends; its own \
         writes go on"
    ));
    Ok(())
}

/// Checks the file system, and mounts it anew to read from the disk. `synced` has the last lines
/// that host1 and host2 knew to be on the disk.
fn on_disk(pair: &mut Pair<'_>, two: &Disk<'_>, synced: (u64, u64)) -> Result<()> {
    let unmount = format!("umount {MOUNT}");
    step(two.vm, "unmount the file system", &unmount)?;
    let fsck = format!("fsck.ocfs2 -fn {} 1>&2", two.name()?);
    step(two.vm, "find the file system without an error", &fsck)?;
    mount(two)?;
    let logs = step(two.vm, "read the logs", &format!("cat {MOUNT}/host1.log {MOUNT}/host2.log"))?;
    let lines = (lines_of(&logs, "host1")?, lines_of(&logs, "host2")?);
    check(lines.0 >= synced.0 && lines.1 >= synced.1, || {
        format!("host1 and host2 had {synced:?} lines on the disk, and {lines:?} are there")
    })?;
    let taken_over = logs.lines().filter(|&line| line == "taken over").count();
    check(taken_over == 1, || format!("host2's line in host1's log is there {taken_over} times"))?;
    step(two.vm, "unmount the file system again", &unmount)?;
    pair.evidence.shows(format!(
        "fsck.ocfs2 finds no error; all lines that were on the disk are there: {} of host1, {} of host2",
        synced.0, synced.1
    ));
    Ok(())
}

//! sanlock of Debian on two hosts: host1 holds a lease and loses its power, and host2 gets the
//! lease, once host1's time is over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{Output, Running, Status, Vm};

use super::{PATIENT, Pair};
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::{Programs, going, number, progress};

const LONG: Duration = Duration::from_hours(1);

/// Offset of the lockspace, behind the stamps at the disk's beginning. It takes 1 MiB, and 8 MiB on
/// a disk with sectors of 4096 bytes.
const LOCKSPACE: u64 = 16 << 20;
/// Offset of the lease.
const RESOURCE: u64 = 24 << 20;

/// The program that holds leases: a `sleep` of this name.
const HOLDER: &str = "/usr/local/bin/lease-holder";

pub(in crate::scenarios) fn run(programs: &Programs) -> Result<()> {
    super::run("sanlock", programs, acts)
}

fn acts(pair: &mut Pair<'_>) -> Result<()> {
    let disks = pair.disks.clone();
    let [one, two] = disks.as_slice() else { bail!("two disks") };
    let daemons = [daemon(one.vm)?, daemon(two.vm)?];
    let result = leases(pair, one, two);
    result.with_context(|| {
        let ends: Vec<_> = daemons.iter().map(log_end).collect();
        format!("sanlock says on host1:\n{}\non host2:\n{}", ends[0], ends[1])
    })
}

/// Starts sanlock's daemon on a host, and waits until it answers. Without a watchdog: what a host
/// does to itself is not tried here. Without locked memory: the VMs are small.
pub(super) fn daemon(vm: &Vm) -> Result<Running> {
    let script = format!(
        "mkdir -p /run/sanlock; cp /bin/sleep {HOLDER}; \
         exec sanlock daemon -D -w 0 -l 0 -U root -G root -e {}",
        vm.name()
    );
    let daemon = vm.command(["sh", "-c", &script]).timeout(LONG).spawn()?;
    wait_for("sanlock to answer", Duration::from_secs(30), || {
        check(daemon.is_running(), || format!("sanlock has ended: {}", log_end(&daemon)))?;
        let said = vm.sh("sanlock client status 2>&1 || true")?.ok()?.stdout;
        Ok(said.lines().any(|line| line.starts_with("daemon ")).then_some(()))
    })?;
    Ok(daemon)
}

/// The end of a daemon's log.
pub(super) fn log_end(daemon: &Running) -> String {
    let all = daemon.stderr_so_far();
    let lines: Vec<&str> = all.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Runs an action of sanlock's client.
fn client(vm: &Vm, words: &str) -> Result<Output> {
    vm.command(["sh", "-c", &format!("sanlock client {words} 2>&1")]).timeout(PATIENT).run()
}

/// Returns `true` if sanlock says that this action is done.
fn is_done(out: &Output, action: &str) -> bool {
    out.stdout.contains(&format!("{action} done 0"))
}

/// Runs an action that has to succeed.
fn does(vm: &Vm, action: &str, words: &str) -> Result<()> {
    let out = client(vm, &format!("{action} {words}"))?;
    if out.status == Status::TimedOut {
        out.ok()?;
        return Ok(());
    }
    check(is_done(&out, action), || {
        format!("sanlock client {action} {words} on {}: {:?}", vm.name(), out.stdout)
    })
}

/// Starts a process that leases can be acquired for. Returns it with its id in the VM.
fn holder(vm: &Vm) -> Result<(Running, String)> {
    let words = ["sanlock", "client", "command", "-c", HOLDER, "3600"];
    let running = vm.command(words).timeout(LONG).spawn()?;
    let pid = wait_for("a process that sanlock knows", Duration::from_secs(30), || {
        check(running.is_running(), || format!("it has ended: {}", running.stderr_so_far()))?;
        let out = vm.run(&["pidof", "-s", "lease-holder"])?;
        Ok(out.status.success().then(|| out.line().to_owned()))
    })?;
    Ok((running, pid))
}

fn lease(disk: &Disk<'_>, pid: &str) -> String {
    format!("-r mooring:data:{}:{RESOURCE} -p {pid}", disk.path)
}

fn leases(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    does(one.vm, "init", &format!("-s mooring:0:{}:{LOCKSPACE}", one.path))?;
    does(one.vm, "init", &format!("-r mooring:data:{}:{RESOURCE}", one.path))?;
    for (number, disk) in [(1, one), (2, two)] {
        does(disk.vm, "add_lockspace", &format!("-s mooring:{number}:{}:{LOCKSPACE}", disk.path))?;
    }
    let (first, second) = (holder(one.vm)?, holder(two.vm)?);
    does(one.vm, "acquire", &lease(one, &first.1))?;
    let writer = one.write_stamps(&["--threads", "1", "--every-ms", "100"])?;
    going(&writer)?;
    let refused = client(two.vm, &format!("acquire {}", lease(two, &second.1)))?;
    check(refused.stdout.contains("acquire done -"), || {
        format!("host2 asks for the lease that host1 holds, and sanlock says {:?}", refused.stdout)
    })?;
    pair.evidence.shows(
        "two hosts join a lockspace on the shared volume; host1 holds a lease and writes, and host2 is \
         refused it",
    );
    let before = number(&progress(&writer)?, "done")?;
    taken_over(pair, one, two, &second.1, before)?;
    does(two.vm, "release", &lease(two, &second.1))?;
    drop((writer, first, second));
    Ok(())
}

/// Cuts host1's power. That host2 was refused the lease before is the control. The time is noted:
/// sanlock's own rules set it.
fn taken_over(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>, pid: &str, before: u64) -> Result<()> {
    one.vm.power_cut()?;
    let (began, mut refusals) = (Instant::now(), 0);
    let mut last = String::new();
    let taken = wait_for("host2 to get the lease of a host without power", Duration::from_mins(4), || {
        let out = client(two.vm, &format!("acquire {}", lease(two, pid)))?;
        if is_done(&out, "acquire") {
            return Ok(Some(()));
        }
        refusals += 1;
        last = out.stdout;
        Ok(None)
    });
    taken.with_context(|| format!("the last of {refusals} refusals: {last:?}"))?;
    let took = began.elapsed().as_secs();
    let status = client(two.vm, "status")?.stdout;
    check(status.contains("mooring:data:"), || format!("host2 has the lease, and says: {status}"))?;
    let stamps = two.read_stamps()?;
    let newest = stamps.iter().copied().max().unwrap_or_default();
    check(newest >= before, || {
        format!("host1 had written {before} times before it lost its power, and host2 reads {stamps:?}")
    })?;
    let writer = two.write_stamps(&["--threads", "1", "--every-ms", "100"])?;
    let seen = going(&writer)?;
    check(number(&seen, "errors")? == 0, || format!("host2 has the lease, and writes: {seen}"))?;
    writer.kill()?;
    drop(writer.wait()?);
    pair.evidence.shows(format!(
        "host1 loses its power: host2 gets the lease after {took} s and {refusals} refusals, reads what host1 wrote (stamp {newest}), and \
         writes"
    ));
    Ok(())
}

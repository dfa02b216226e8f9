//! Proves the rig's promises on real kernels: `cargo xtask vm check`.
//!
//! What must never happen here: a promise that is only checked where it holds. Every cut is seen to
//! cut, every limit to stop something, and a panic is provoked to see that it is found.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::options::Kernel;
use crate::{Cut, Networks, Rig, RigOptions, Status, Vm};

/// A target with two portals for host1's stock initiator, made by hand.
const TARGET: &str = "
    modprobe -a iscsi_target_mod target_core_iblock
    C=/sys/kernel/config/target D=$C/core/iblock_0/check T=$C/iscsi/iqn.2026-11.dev.mooring:check
    P=$T/tpgt_1 A=$P/acls/iqn.1993-08.org.debian:01:host1
    mkdir -p $D
    echo udev_path=/dev/check/lv > $D/control
    echo 1 > $D/enable
    mkdir -p $P/lun/lun_1 $P/np/10.10.0.10:3260 $P/np/10.20.0.10:3260
    ln -s $D $P/lun/lun_1/check
    echo 0 > $P/attrib/authentication
    mkdir -p $A/lun_1
    ln -s $P/lun/lun_1 $A/lun_1/check
    echo 1 > $P/enable";

const LOGIN: &str = "
    modprobe iscsi_tcp
    iscsid
    iscsiadm -m discovery -t st -p 10.10.0.10
    iscsiadm -m node --login
    iscsiadm -m session
    udevadm settle
    lsblk -dno NAME";

/// A check, which returns its finding in a few words.
type Check = fn(&Rig) -> Result<String>;

/// Boots a rig of its own and checks it.
pub fn run(kernel: Kernel) -> Result<()> {
    let rig = Rig::up(RigOptions::standard(2).named("check").kernel(kernel))?;
    let checks: [(&str, Check); 7] = [
        ("commands", commands),
        ("several at once", at_once),
        ("files", files),
        ("LVM, LIO and open-iscsi", storage),
        ("cuts", cuts),
        ("power cut", power),
        ("consoles", consoles),
    ];
    for (name, check) in checks {
        let start = Instant::now();
        let said = check(&rig).with_context(|| format!("the check of {name} failed"))?;
        println!("{name:<24} ok, {:.1} s: {said}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn commands(rig: &Rig) -> Result<String> {
    let vm = rig.vm("host1")?;
    let out = vm.sh("echo out; echo err >&2; exit 7")?;
    ensure!(out.status == Status::Exited(7) && out.stdout == "out\n" && out.stderr == "err\n", "{out:?}");
    ensure!(vm.sh("kill -TERM $$")?.status == Status::Signaled(15), "a signal is reported");
    ensure!(vm.run(&["no-such-program"]).is_err(), "a program that is not there is an error");
    let out = vm.command(["sh", "-c", "cat; echo $WHO"]).stdin("in ").env("WHO", "me").run()?.ok()?;
    ensure!(out.stdout == "in me\n", "{out:?}");
    let out = vm.command(["sh", "-c", "echo a; sleep 60 & wait"]).timeout(Duration::from_secs(1)).run()?;
    ensure!(out.status == Status::TimedOut && out.stdout == "a\n", "{out:?}");
    ensure!(!vm.sh("pgrep -x sleep")?.status.success(), "a timeout ends the children as well");
    let out = vm.command(["yes"]).output_limit(1000).timeout(Duration::from_secs(1)).run()?;
    ensure!(out.truncated && out.stdout.len() == 1000, "{} bytes", out.stdout.len());
    let out = vm.sh("sleep 30 & echo started")?;
    ensure!(out.elapsed < Duration::from_secs(10), "a command ends though it left something behind");
    let running =
        vm.command(["sh", "-c", "echo tick; read line; echo got $line; sleep 60"]).stdin_open().spawn()?;
    ensure!(running.wait_stdout("tick", Duration::from_secs(10)), "output is seen while it runs");
    running.write_stdin(b"it\n")?;
    ensure!(running.wait_stdout("got it", Duration::from_secs(10)), "stdin is taken while it runs");
    running.kill()?;
    ensure!(running.wait()?.status == Status::Signaled(9), "a kill is reported");
    let mut times: Vec<Duration> =
        (0..20).map(|_| vm.run(&["true"]).map(|out| out.elapsed)).collect::<Result<_>>()?;
    times.sort();
    Ok(format!("round trip {:.0?}", times.get(times.len() / 2).copied().unwrap_or_default()))
}

fn at_once(rig: &Rig) -> Result<String> {
    let start = Instant::now();
    let running: Vec<_> = rig
        .vms()
        .iter()
        .flat_map(|vm| (0..8).map(move |number| (vm, number)))
        .map(|(vm, number)| {
            vm.command(["sh", "-c", &format!("sleep 1; echo {number}")]).spawn().map(|r| (number, r))
        })
        .collect::<Result<_>>()?;
    let count = running.len();
    for (number, running) in running {
        ensure!(running.wait()?.ok()?.line() == number.to_string(), "each gets its own output");
    }
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(10), "{count} commands of 1 s took {took:.1?}");
    Ok(format!("{count} commands of 1 s in {:.1} s", took.as_secs_f64()))
}

fn files(rig: &Rig) -> Result<String> {
    let vm = rig.vm("storage")?;
    let bytes: Vec<u8> = (0..64u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let start = Instant::now();
    vm.write("/tmp/check/file", &bytes, 0o750)?;
    let there = start.elapsed();
    let start = Instant::now();
    ensure!(vm.read("/tmp/check/file")? == bytes, "the file came back changed");
    let back = start.elapsed();
    ensure!(vm.run(&["stat", "-c", "%a", "/tmp/check/file"])?.line() == "750", "the mode is set");
    vm.sh("rm -r /tmp/check")?.ok()?;
    ensure!(
        vm.read("/no/such/file").is_err() && vm.write("/proc/no/such", b"", 0).is_err(),
        "errors are reported"
    );
    Ok(format!(
        "64 MiB in at {:.0} MB/s, out at {:.0} MB/s",
        67.1 / there.as_secs_f64(),
        67.1 / back.as_secs_f64()
    ))
}

fn storage(rig: &Rig) -> Result<String> {
    let (storage, host) = (rig.vm("storage")?, rig.vm("host1")?);
    let disks = storage.data_disks().join(" ");
    let lvm = format!(
        "pvcreate -q {disks}; vgcreate -q check {disks}; lvcreate -qy -L 256M -n lv check; \
         lvcreate -qy -L 256M -T check/pool; lvs --noheadings -o lv_name check"
    );
    ensure!(storage.sh(&lvm)?.ok()?.stdout.contains("pool"), "LVM makes thick and thin");
    storage.sh(TARGET)?.ok()?;
    let out = host.sh(LOGIN)?.ok()?;
    for net in 0..2 {
        ensure!(
            out.stdout.contains(&format!("{}:3260", storage.ip(net))),
            "logged in over network {net}: {}",
            out.stdout
        );
    }
    ensure!(out.stdout.contains("sda") && out.stdout.contains("sdb"), "one disk per path: {}", out.stdout);
    let dd =
        |args: &str| host.sh(&format!("dd bs=1M count=64 {args} 2>&1 | tail -1")).and_then(crate::Output::ok);
    let write = dd("if=/dev/zero of=/dev/sda oflag=direct")?;
    let read = dd("if=/dev/sdb of=/dev/null iflag=direct")?;
    let rate = |out: &crate::Output| out.line().rsplit(", ").next().unwrap_or_default().to_owned();
    Ok(format!("two paths, direct writes {}, reads {}", rate(&write), rate(&read)))
}

fn pings(from: &Vm, to: &Vm, net: usize) -> Result<bool> {
    // After a link returns, the first answer takes as long as a new neighbour entry.
    let ip = to.ip(net).to_string();
    Ok(from.run(&["ping", "-c", "4", "-i", "0.2", "-W", "1", "-q", &ip])?.status.success())
}

fn cuts(rig: &Rig) -> Result<String> {
    let (storage, host, other) = (rig.vm("storage")?, rig.vm("host1")?, rig.vm("host2")?);
    let carrier = |net: usize| {
        let out = host.sh(&format!("sleep 0.3; cat /sys/class/net/eth{net}/carrier"))?;
        anyhow::Ok(out.line() == "1")
    };
    ensure!(pings(host, storage, 0)? && pings(host, storage, 1)?, "both networks work");
    host.cut(Cut::Silent, Networks::Only(0))?;
    ensure!(!pings(host, storage, 0)? && pings(host, storage, 1)?, "only network 0 is cut");
    ensure!(carrier(0)?, "a silent cut is not seen");
    ensure!(pings(other, storage, 0)?, "the others go on");
    host.heal()?;
    ensure!(pings(host, storage, 0)?, "healed");
    host.cut(Cut::Carrier, Networks::Both)?;
    ensure!(!carrier(0)? && !carrier(1)?, "a loss of carrier is seen");
    ensure!(!pings(host, storage, 1)?, "and it cuts");
    host.heal()?;
    ensure!(carrier(0)? && pings(host, storage, 0)? && pings(host, storage, 1)?, "healed");
    Ok(format!("silent and carrier, {} frames dropped", host.frames_dropped(0) + host.frames_dropped(1)))
}

fn power(rig: &Rig) -> Result<String> {
    let storage = rig.vm("storage")?;
    storage.sh("echo stamp | dd of=/dev/check/lv bs=512 seek=4096 count=1 conv=sync,fsync,notrunc")?.ok()?;
    storage.sh("mkdir -p /etc/check; echo stamp > /etc/check/kept; chmod 600 /etc/check/kept; ln -s kept /etc/check/link; touch /etc/gone")?.ok()?;
    storage.keep(&["/etc/check"])?;
    let running = storage.command(["sleep", "60"]).spawn()?;
    storage.power_cut()?;
    ensure!(running.wait().is_err(), "a command learns that its VM is gone");
    ensure!(storage.run(&["true"]).is_err() && !storage.is_up() && storage.power_cut().is_err(), "it is off");
    let start = Instant::now();
    storage.boot()?;
    let took = start.elapsed();
    let active = storage.sh("lvs --noheadings -o lv_active check/lv")?.ok()?;
    ensure!(active.line().is_empty(), "nothing is activated by itself: {active:?}");
    let out =
        storage.sh("vgchange -qay check; dd if=/dev/check/lv bs=512 skip=4096 count=1 status=none")?.ok()?;
    ensure!(out.stdout.contains("stamp"), "what was flushed is still there: {out:?}");
    let kept = storage.sh("cat /etc/check/link; stat -c %a /etc/check/kept; ! test -e /etc/gone")?.ok()?;
    ensure!(kept.stdout == "stamp\n600\n", "kept files are there, and no others: {kept:?}");
    Ok(format!("ready again after {:.1} s, flushed data and kept files are there", took.as_secs_f64()))
}

fn consoles(rig: &Rig) -> Result<String> {
    rig.check_consoles().context("so far, no kernel should have complained")?;
    let host = rig.vm("host2")?;
    let evidence = rig.dir().join("evidence");
    rig.save_evidence(&evidence)?;
    let count = std::fs::read_dir(&evidence).context("list the evidence")?.count();
    let crash =
        host.command(["sh", "-c", "echo c > /proc/sysrq-trigger"]).timeout(Duration::from_secs(30)).run();
    ensure!(crash.is_err() && !host.is_up(), "a panic ends the VM");
    let findings = rig.check_consoles();
    ensure!(findings.is_err_and(|e| format!("{e:#}").contains("Kernel panic")), "and it is found");
    host.allow_console("Kernel panic");
    host.allow_console("Oops");
    rig.check_consoles().context("an allowance covers it")?;
    host.boot()?;
    rig.forget_consoles();
    rig.check_consoles()?;
    Ok(format!("a panic was found, {count} files of evidence"))
}

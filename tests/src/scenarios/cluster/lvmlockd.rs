//! LVM of Debian with lvmlockd and sanlock on two hosts: a logical volume is active on one of them
//! at a time, also when that one loses its power.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{Output, Running, Vm};

use super::{PATIENT, Pair, sanlock};
use crate::disk::Disk;
use crate::evidence::{check, wait_for};
use crate::site::Programs;

const LONG: Duration = Duration::from_hours(1);

/// The group on the shared volume, and its logical volume.
const LV: &str = "cluster/data";

/// LVM's settings on a host that shares groups. The disks are those of iSCSI and what is stacked on
/// them.
const LVM_CONF: &str = r#"devices {
	use_devicesfile = 0
	global_filter = [ "a|^/dev/sd|", "a|^/dev/mapper/|", "r|.*|" ]
}
global {
	use_lvmlockd = 1
	event_activation = 0
	use_lvmpolld = 0
}
activation {
	monitoring = 0
}
backup {
	archive = 0
}
"#;

pub(in crate::scenarios) fn run(programs: &Programs) -> Result<()> {
    super::run("lvmlockd", programs, acts)
}

/// The daemons of a host.
struct Daemons {
    sanlock: Running,
    lvmlockd: Running,
}

impl Daemons {
    /// Configures LVM and starts both; `number` is the host's id in all lockspaces.
    fn start(vm: &Vm, number: usize) -> Result<Self> {
        vm.write("/etc/lvm/lvm.conf", LVM_CONF.as_bytes(), 0o644)?;
        let local = format!("local {{\n\thost_id = {number}\n}}\n");
        vm.write("/etc/lvm/lvmlocal.conf", local.as_bytes(), 0o644)?;
        let sanlock = sanlock::daemon(vm)?;
        vm.sh("modprobe dm_mod; mkdir -p /run/lvm /run/lock/lvm")?.ok()?;
        let script = "exec lvmlockd -D -g sanlock 2>&1";
        let lvmlockd = vm.command(["sh", "-c", script]).timeout(LONG).spawn()?;
        wait_for("lvmlockd to answer", Duration::from_secs(30), || {
            check(lvmlockd.is_running(), || format!("lvmlockd has ended: {}", lvmlockd.stdout_so_far()))?;
            let asked = vm.run(&["lvmlockctl", "--info"])?;
            Ok(asked.status.success().then_some(()))
        })?;
        Ok(Self { sanlock, lvmlockd })
    }

    fn log_ends(&self) -> String {
        let all = self.lvmlockd.stdout_so_far();
        let lines: Vec<&str> = all.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n");
        format!("lvmlockd:\n{end}\nsanlock:\n{}", sanlock::log_end(&self.sanlock))
    }
}

fn acts(pair: &mut Pair<'_>) -> Result<()> {
    let disks = pair.disks.clone();
    let [one, two] = disks.as_slice() else { bail!("two disks") };
    let daemons = [Daemons::start(one.vm, 1)?, Daemons::start(two.vm, 2)?];
    let result = one_at_a_time(pair, one, two).and_then(|()| without_power(pair, one, two));
    result.with_context(|| {
        let ends: Vec<_> = daemons.iter().map(Daemons::log_ends).collect();
        format!("on host1:\n{}\non host2:\n{}", ends[0], ends[1])
    })
}

/// Runs a command of LVM, which waits for locks by itself.
fn lvm(vm: &Vm, words: &str) -> Result<Output> {
    vm.command(["sh", "-c", &format!("{words} 2>&1")]).timeout(PATIENT).run()
}

/// Activates the logical volume for this host alone. Returns LVM's refusal, if another host has it.
fn activate(vm: &Vm) -> Result<Option<String>> {
    let out = lvm(vm, &format!("lvchange -aey {LV}"))?;
    if out.status.success() {
        return Ok(None);
    }
    let locked = out.stdout.contains("locked by other host");
    check(locked, || {
        format!("lvchange on {}: {}, not because another host has it: {}", vm.name(), out.status, out.stdout)
    })?;
    Ok(Some(out.stdout))
}

fn is_active(vm: &Vm) -> Result<bool> {
    Ok(vm.run(&["test", "-b", &format!("/dev/{LV}")])?.status.success())
}

fn one_at_a_time(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    // LVM finds disks below /dev alone.
    lvm(one.vm, &format!("vgcreate -y --shared cluster {}", one.name()?))?.ok()?;
    lvm(one.vm, "lvcreate -y -Wn -Zn -L 64M -n data cluster")?.ok()?;
    lvm(two.vm, "vgchange --lock-start cluster")?.ok()?;
    check(is_active(one.vm)?, || "the new logical volume is not active on host1".to_owned())?;
    let refused = activate(two.vm)?;
    check(refused.is_some() && !is_active(two.vm)?, || {
        "host2 activates the logical volume that host1 has".to_owned()
    })?;
    lvm(one.vm, &format!("lvchange -an {LV}"))?.ok()?;
    let refused = activate(two.vm)?;
    check(refused.is_none() && is_active(two.vm)?, || {
        format!("host1 has let the logical volume go, and host2 does not get it: {refused:?}")
    })?;
    let refused = activate(one.vm)?;
    check(refused.is_some() && !is_active(one.vm)?, || {
        "host1 activates the logical volume that host2 has".to_owned()
    })?;
    pair.evidence.shows(
        "a shared group on the volume: a logical volume is active on one host at a time, is refused to the other, and is the \
         other's once the first lets it go",
    );
    Ok(())
}

/// Cuts the power of host2, which has the logical volume. That host1 was refused it before is the
/// control. The time is noted: sanlock's own rules set it.
fn without_power(pair: &mut Pair<'_>, one: &Disk<'_>, two: &Disk<'_>) -> Result<()> {
    let pattern = format!("yes cluster | dd of=/dev/{LV} bs=64k count=16 iflag=fullblock oflag=direct");
    two.vm.sh(&pattern)?.ok()?;
    two.vm.power_cut()?;
    let (began, mut refusals) = (Instant::now(), 0);
    wait_for("host1 to get the logical volume of a host without power", Duration::from_mins(4), || {
        let refused = activate(one.vm)?;
        refusals += usize::from(refused.is_some());
        Ok(refused.is_none().then_some(()))
    })
    .with_context(|| format!("host1 was refused it {refusals} times"))?;
    let took = began.elapsed().as_secs();
    let same = format!(
        "[ \"$(dd if=/dev/{LV} bs=64k count=16 iflag=direct | md5sum)\" = \"$(yes cluster | head -c 1048576 | md5sum)\" ]"
    );
    one.vm.sh(&same)?.ok().context("host1 does not read what host2 wrote to the logical volume")?;
    lvm(one.vm, "lvcreate -y -Wn -Zn -L 32M -n more cluster")?.ok().context("host1 changes the group")?;
    pair.evidence.shows(format!(
        "host2 loses its power: host1 gets its logical volume after {took} s and {refusals} refusals, reads what host2 wrote, and \
         changes the group"
    ));
    Ok(())
}

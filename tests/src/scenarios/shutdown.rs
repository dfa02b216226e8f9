//! systemd turns off a host that attaches, with its units, while services write to three attached
//! disks and never fsync: one mounted by hand, two by fstab, with and without `_netdev`. After the
//! boot every byte is there. The control has no unit that releases disks, and loses bytes.
//!
//! What must never happen here: a count of bytes that a writer did not record itself, on a disk of
//! the VM's own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Vm, VmSpec};

use crate::control::{Control, PORT};
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{BIN, GROUP, Programs, Site};

const SOON: Duration = Duration::from_mins(1);
/// Time limit for a shutdown here.
const OFF_WITHIN: Duration = Duration::from_secs(75);
/// Time after which the control's shutdown counts as hanging. With the unit a shutdown takes some 4
/// s.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// Mount points of the volumes: mounted by hand, by fstab with `_netdev`, by fstab without.
const MOUNTS: [&str; 3] = ["/srv/hand", "/srv/fstab", "/srv/local"];
/// Mount option of the volumes: no commit of the journal writes back, or blocks a writer, while the
/// network is down.
const RARELY: &str = "commit=600";
/// Files that a machine with a disk has after a boot: fstab, what the packages and the enabling of
/// their units bring, the configuration.
const KEPT: [&str; 8] = [
    "/etc/fstab",
    "/etc/mooring",
    "/etc/systemd/system",
    "/etc/sysusers.d/mooring.conf",
    "/etc/tmpfiles.d/mooring.conf",
    "/etc/udev/rules.d/66-mooring-disks.rules",
    "/usr/bin/mooring-agent",
    "/usr/bin/mooring-sessiond",
];

/// Brings the network down at its stop, as ifupdown's networking.service does. The rig has brought
/// it up.
const NETWORK: &str = "[Unit]\nBefore=network.target\nWants=network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
    ExecStart=/bin/true\nExecStop=/bin/sh -c 'ip link set eth0 down; ip link set eth1 down'\n\
    [Install]\nWantedBy=multi-user.target\n";

/// Appends numbered blocks and never fsyncs them. On the stop signal it writes for two more
/// seconds, like a service that saves its state. Then it records their number on the VM's own disk.
const WRITER: &str = r#"
import os, signal, sys, time
path, witness = sys.argv[1:]
until = None
def stop(*_):
    global until
    until = time.monotonic() + 2
signal.signal(signal.SIGTERM, stop)
log, count = open(path, "wb", buffering=0), 0
while until is None or time.monotonic() < until:
    log.write(b"%063d\n" % count * 64)
    count += 1
    time.sleep(0.02)
log.close()
note = open(witness, "w")
note.write(str(count))
note.flush()
os.fsync(note.fileno())
"#;

/// Counts the correct blocks of a file, from its beginning.
const READER: &str = r#"
import sys
data, count = open(sys.argv[1], "rb").read(), 0
while data[count * 4096:(count + 1) * 4096] == b"%063d\n" % count * 64:
    count += 1
print(count)
"#;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(1).named("shutdown").forward(PORT);
    let host = options.vms.get_mut(1).context("a host")?;
    *host = VmSpec { systemd: true, memory_mib: 768, disks: vec![256 << 20], ..VmSpec::host(1) };
    let site = Site::up(options, programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    let mut acts =
        Acts { site, vm: site.rig.vm("host1")?, volumes: Vec::new(), evidence: Evidence::default() };
    acts.sh("mkfs.ext4 -q /dev/vdc")?;
    acts.install()?;
    acts.sh("systemctl start rig-network mooring-sessiond mooring-agent")?;
    control.start_controller()?;
    let result = acts.all(&control);
    if result.is_err() {
        let log = acts.sh("journalctl --no-pager -o short-monotonic -n 150 -u 'mooring-*' -u '*.mount'");
        eprintln!("--- the host's journal:\n{}", log.unwrap_or_else(|error| format!("{error:#}")));
        control.print_logs();
    }
    drop(agent);
    result
}

struct Acts<'a> {
    site: &'a Site,
    vm: &'a Vm,
    /// The volumes, in the order of [`MOUNTS`].
    volumes: Vec<String>,
    evidence: Evidence,
}

/// The name that a volume has after every boot.
fn name(volume: &str) -> String {
    format!("/dev/disk/by-id/mooring-{volume}")
}

impl Acts<'_> {
    fn sh(&self, script: &str) -> Result<String> {
        Ok(self.vm.command(["sh", "-euc", script]).timeout(Duration::from_mins(2)).run()?.ok()?.stdout)
    }

    /// Installs what the packages bring, and enables their units.
    fn install(&self) -> Result<()> {
        let at = |unit: &str| format!("/etc/systemd/system/{unit}");
        self.sh(&format!(
            "mkdir -p /var/lib/mooring {} {}; mount /dev/vdc /var/lib/mooring; \
             for one in agent sessiond; do ln -sf {BIN}/mooring-$one /usr/bin/mooring-$one; \
             mkdir -p /etc/systemd/system/mooring-$one.service.d; done",
            MOUNTS.join(" "),
            at("mooring-release.service.d")
        ))?;
        self.vm.write(
            "/etc/sysusers.d/mooring.conf",
            include_bytes!("../../../systemd/sysusers.d/mooring.conf"),
            0o644,
        )?;
        self.vm.write(
            "/etc/tmpfiles.d/mooring.conf",
            include_bytes!("../../../systemd/tmpfiles.d/mooring.conf"),
            0o644,
        )?;
        self.vm.write(
            "/etc/udev/rules.d/66-mooring-disks.rules",
            include_bytes!("../../../systemd/udev/66-mooring-disks.rules"),
            0o644,
        )?;
        let units = [
            ("rig-network.service", NETWORK),
            ("mooring-agent.service", include_str!("../../../systemd/units/mooring-agent.service")),
            ("mooring-sessiond.service", include_str!("../../../systemd/units/mooring-sessiond.service")),
            ("mooring-release.service", include_str!("../../../systemd/units/mooring-release.service")),
        ];
        for (unit, text) in units {
            self.vm.write(&at(unit), text.as_bytes(), 0o644)?;
        }
        // The tests' programs are on a file system of their own, which systemd would unmount first.
        for unit in ["mooring-agent", "mooring-sessiond", "mooring-release"] {
            let dropin = format!("[Unit]\nRequiresMountsFor={BIN}\n");
            self.vm.write(&at(&format!("{unit}.service.d/rig.conf")), dropin.as_bytes(), 0o644)?;
        }
        self.sh("systemd-sysusers; systemd-tmpfiles --create mooring.conf; udevadm control --reload; \
             systemctl enable -q rig-network mooring-sessiond mooring-agent; systemctl daemon-reload")?;
        self.prepare()
    }

    /// Brings the scripts, and keeps the kernel from writing back by itself: then only unflushed
    /// data is lost.
    fn prepare(&self) -> Result<()> {
        self.vm.write("/run/writer.py", WRITER.as_bytes(), 0o644)?;
        self.vm.write("/run/reader.py", READER.as_bytes(), 0o644)?;
        self.sh(
            "echo 60000 > /proc/sys/vm/dirty_expire_centisecs; echo 60000 > /proc/sys/vm/dirty_writeback_centisecs",
        )
        .map(drop)
    }

    fn all(&mut self, control: &Control<'_>) -> Result<()> {
        self.attach(control)?;
        self.sh(&format!(
            "for disk in {}; do mkfs.ext4 -q $disk; done; mount -o {RARELY} {} {}",
            self.volumes.iter().map(|volume| name(volume)).collect::<Vec<_>>().join(" "),
            self.volume(0)?,
            MOUNTS[0]
        ))?;
        self.fstab()?;
        self.sh(&format!(
            "systemctl daemon-reload; systemctl start srv-fstab.mount srv-local.mount; mountpoint {}",
            MOUNTS[1..].join(" && mountpoint ")
        ))?;
        self.refuses_a_stop()?;
        self.vm.keep(&KEPT)?;
        self.write()?;
        let took = self.turn_off(OFF_WITHIN)?.context("the host did not turn itself off")?;
        self.every_byte(took)?;
        self.vm.boot()?;
        self.comes_back(control)?;
        self.without()
    }

    fn volume(&self, index: usize) -> Result<String> {
        self.volumes.get(index).map(|volume| name(volume)).context("a volume")
    }

    /// Attaches a volume, detaches it, and attaches three others: one of them now has the kernel's
    /// name of the first disk.
    fn attach(&mut self, control: &Control<'_>) -> Result<()> {
        let (before, device) = self.attach_one(control, "before")?;
        control.json(&["detach", &before, "--host", "host1"])?;
        let gone = format!("! test -e {}", name(&before));
        wait_for("the name to go", SOON, || Ok(self.sh(&gone).is_ok().then_some(())))?;
        let mut devices = Vec::new();
        for volume in ["hand", "fstab", "local"] {
            let (volume, device) = self.attach_one(control, volume)?;
            self.volumes.push(volume);
            devices.push(device);
        }
        check(devices.contains(&device), || format!("{device} is nobody's: {devices:?}"))?;
        let names = self.sh("ls -d /dev/disk/by-id/mooring-*")?;
        let mut wanted: Vec<_> = self.volumes.iter().map(|volume| name(volume)).collect();
        wanted.sort();
        check(names.lines().eq(&wanted), || format!("names that udev has given: {names}"))?;
        let sessions = self.sessions()?;
        check(sessions == MOUNTS.len(), || format!("the target has {sessions} sessions"))?;
        self.evidence.shows(format!(
            "udev names each attached disk after its volume; {device} was another volume's before, whose name went with it"
        ));
        Ok(())
    }

    /// Attaches a volume. Returns its name and the kernel's name of its disk, to which that leads.
    fn attach_one(&self, control: &Control<'_>, volume: &str) -> Result<(String, String)> {
        let volume = control.volume(volume, None)?;
        let live = control.attach(&volume, "host1", "rw")?;
        let path = text(&live, "device_path")?;
        let same = format!("test \"$(readlink -f {})\" = \"$(readlink -f {path})\"", name(&volume));
        wait_for("udev's name of the disk", SOON, || Ok(self.sh(&same).is_ok().then_some(())))?;
        let device = self.sh(&format!("readlink -f {path}"))?.trim().to_owned();
        Ok((volume, device))
    }

    /// Writes fstab with a line of each kind, and the VM's own disk. A disk may take its time where
    /// the processor is emulated.
    fn fstab(&self) -> Result<()> {
        let patient = format!("nofail,x-systemd.device-timeout=300,{RARELY}");
        let lines = format!(
            "/dev/vdc /var/lib/mooring ext4 defaults 0 0\n\
             {} {} ext4 _netdev,{patient} 0 0\n{} {} ext4 {patient} 0 0\n",
            self.volume(1)?,
            MOUNTS[1],
            self.volume(2)?,
            MOUNTS[2]
        );
        self.vm.write("/etc/fstab", lines.as_bytes(), 0o644)
    }

    /// Checks that only a shutdown runs the unit's stop.
    fn refuses_a_stop(&self) -> Result<()> {
        for verb in ["stop", "restart"] {
            let out = self.vm.run(&["systemctl", verb, "mooring-release"])?;
            check(!out.status.success() && out.stderr.contains("refused"), || {
                format!("{verb}: {}", out.stderr)
            })?;
        }
        self.sh("systemctl restart mooring-sessiond mooring-agent").map(drop)?;
        self.sh(&format!("mountpoint {}", MOUNTS.join(" && mountpoint "))).map(drop)
    }

    /// Starts a writer on each mount, like services that know nothing of the disk below.
    fn write(&self) -> Result<()> {
        let named = MOUNTS.map(|point| (point, point.trim_start_matches("/srv/")));
        let earlier = named.map(|(point, name)| format!("{point}/log /var/lib/mooring/{name}")).join(" ");
        // Gone from the disks, too: the blocks of an earlier writer are the same.
        self.sh(&format!("rm -f {earlier}; sync"))?;
        for (point, name) in named {
            self.sh(&format!(
                "systemd-run -q --unit=writer-{name} python3 /run/writer.py {point}/log /var/lib/mooring/{name}"
            ))?;
        }
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    }

    /// Runs `systemctl poweroff`. Returns how long it took until the power was off. `None`: it
    /// hung, and its power was cut.
    fn turn_off(&self, within: Duration) -> Result<Option<Duration>> {
        let began = Instant::now();
        // Do not wait for its answer: its own shell may be ended before.
        let asked = self.vm.command(["systemctl", "poweroff", "--no-block"]).spawn()?;
        asked.pid()?;
        asked.detach();
        if self.vm.wait_off(within)? {
            return Ok(Some(began.elapsed()));
        }
        self.vm.power_cut()?;
        Ok(None)
    }

    /// The target's content of each volume: the state of its file system, and the number of correct
    /// blocks after a replay of its journal.
    fn on_the_target(&self) -> Result<Vec<(String, u64)>> {
        let storage = self.site.storage()?;
        storage.write("/run/reader.py", READER.as_bytes(), 0o644)?;
        let look = |volume: &String| {
            let script = format!(
                "sync; echo 3 > /proc/sys/vm/drop_caches; cd /srv/mooring; \
                 dd if=/dev/{GROUP}/mooring-{volume} of=copy bs=1M conv=sparse status=none; \
                 dumpe2fs -h copy 2>/dev/null | grep -E '^Filesystem (state|features)' | grep -oE 'clean|needs_recovery' | sort | tr '\\n' ' '; \
                 echo; e2fsck -fy copy >/dev/null 2>&1 || true; : > log; debugfs -R 'dump /log log' copy 2>/dev/null; \
                 python3 /run/reader.py log; rm -f copy log"
            );
            let out =
                storage.command(["sh", "-euc", &script]).timeout(Duration::from_mins(2)).run()?.ok()?.stdout;
            let mut lines = out.lines();
            let state = lines.next().unwrap_or_default().trim().to_owned();
            let blocks = lines.next().and_then(|line| line.parse().ok());
            Ok((state, blocks.with_context(|| format!("what the target has: {out}"))?))
        };
        self.volumes.iter().map(look).collect()
    }

    /// The numbers that the writers recorded; `None` for one that did not finish.
    fn written(&self) -> Result<Vec<Option<u64>>> {
        let disk = self.vm.data_disk_file(0);
        // After a power cut the last changes are in the journal, which debugfs does not read. Its
        // exit status says that there was something to mend.
        let replayed = std::process::Command::new("e2fsck").arg("-fy").arg(&disk).output();
        replayed.context("run e2fsck")?;
        let of = |point: &&str| {
            let name = point.trim_start_matches("/srv/");
            let out = std::process::Command::new("debugfs")
                .args(["-R", &format!("cat /{name}")])
                .arg(&disk)
                .output()
                .context("run debugfs")?;
            Ok(String::from_utf8_lossy(&out.stdout).trim().parse().ok())
        };
        MOUNTS.iter().map(of).collect()
    }

    fn every_byte(&mut self, took: Duration) -> Result<()> {
        let (written, there) = (self.written()?, self.on_the_target()?);
        for ((written, (state, there)), point) in written.iter().zip(&there).zip(MOUNTS) {
            let Some(written) = written else { bail!("the writer on {point} did not come to its end") };
            check(written == there, || {
                format!("{point}: {written} blocks written and {there} there ({state})")
            })?;
            check(state == "clean", || format!("{point} was not unmounted: {state}"))?;
        }
        let sessions = self.sessions()?;
        check(sessions == 0, || format!("{sessions} sessions are left at the target"))?;
        self.evidence.shows(format!(
            "turned off by systemd in {:.1} s: {there:?} of {written:?} blocks are there, file systems clean, sessions logged out",
            took.as_secs_f64()
        ));
        Ok(())
    }

    /// Number of sessions at the target.
    fn sessions(&self) -> Result<usize> {
        let script = "cat /sys/kernel/config/target/iscsi/iqn.*/tpgt_1/acls/*/info | grep -c 'SID:' || true";
        let out = self.site.storage()?.sh(script)?.ok()?.stdout;
        out.trim().parse().with_context(|| format!("sessions: {out}"))
    }

    /// systemd has started with fstab and the enabled units in their places, as on a machine with a
    /// disk. Without any command, attachments return, and fstab's mount with `_netdev` with them.
    /// The line without it promises nothing for a boot, and is mounted by its name.
    fn comes_back(&mut self, control: &Control<'_>) -> Result<()> {
        let began = Instant::now();
        wait_for("fstab's mount", SOON, || {
            Ok(self.sh(&format!("mountpoint {}", MOUNTS[1])).is_ok().then_some(()))
        })?;
        wait_for("the other disks", SOON, || {
            let there = format!("test -e {} && test -e {}", self.volume(0)?, self.volume(2)?);
            Ok(self.sh(&there).is_ok().then_some(()))
        })?;
        control.all_up_soon()?;
        self.prepare()?;
        let local = self.vm.run(&["mountpoint", MOUNTS[2]])?.status.success();
        let read = self.sh(&format!(
            "mkdir -p {0}; mount -o {RARELY} {1} {0}; systemctl start srv-local.mount; \
             for point in {2}; do python3 /run/reader.py $point/log; done",
            MOUNTS[0],
            self.volume(0)?,
            MOUNTS.join(" ")
        ))?;
        self.evidence.shows(format!(
            "after a boot with enabled units and fstab all attachments come back by themselves, fstab's mount by its name under /dev/disk/by-id ({:.1} s after multi-user.target; the line without _netdev was mounted by the boot: {local}); read: {}",
            began.elapsed().as_secs_f64(),
            read.split_whitespace().collect::<Vec<_>>().join(", ")
        ));
        Ok(())
    }

    /// Control: the same without the unit that releases disks.
    fn without(&mut self) -> Result<()> {
        self.sh("rm /etc/systemd/system/mooring-release.service; systemctl daemon-reload")?;
        self.vm.allow_console("blocked for more than");
        self.write()?;
        let took = self.turn_off(HANGS_AFTER)?;
        let (written, there) = (self.written()?, self.on_the_target()?);
        let hung = took.map_or_else(
            || format!("hung for {} s, until the power was cut", HANGS_AFTER.as_secs()),
            |took| format!("took {:.1} s", took.as_secs_f64()),
        );
        // What counts are bytes that a writer recorded, and that the next attach does not find. How
        // the shutdown ended does not matter, nor does a writer that was stopped on its way.
        let lost: Vec<_> = written
            .iter()
            .zip(&there)
            .map(|(written, (_, there))| written.map(|written| written.saturating_sub(*there)))
            .collect();
        check(lost.iter().flatten().any(|lost| *lost > 0), || {
            format!("without the unit nothing was lost either ({hung}): {there:?} of {written:?}")
        })?;
        self.evidence.shows(format!(
            "control: without mooring-release.service the shutdown {hung}; blocks lost by hand and by fstab: {lost:?}, {there:?}"
        ));
        Ok(())
    }
}

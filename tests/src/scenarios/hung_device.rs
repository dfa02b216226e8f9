//! A device that does not answer, on the portal that all volumes share. Its host's connection is
//! cut and the host reboots, while another host logs in to another volume, again and again. The
//! device is once a suspended LV, once a thin pool that is full. The control has no agent that
//! takes the volume's portals off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use mooring_rig::{RigOptions, Running};

use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for, within};
use crate::initiator::Host;
use crate::site::{GROUP, Programs, Site, TARGET, goes_on, going, metrics_table};

const PORTAL: &str = "10.10.0.10:3260";

/// Time for which the other host tries to log in. Under emulation a login takes a second or two,
/// and on a busy machine one may fail; behind a blocked portal none succeeds while the device
/// hangs.
const LOGIN_LIMIT: Duration = Duration::from_secs(25);

/// Time for which the device hangs: longer than two failed logins.
const HANGS_FOR: Duration = Duration::from_mins(1);

/// Time for which the thin pool stays full: after 60 s the kernel would answer with errors.
const FULL_FOR: Duration = Duration::from_secs(30);

/// Time limit for the agent to notice: three seconds, and the time of this program's questions.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// Signals.
const STOP: u8 = 19;
const CONT: u8 = 18;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("hung"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent_with(&metrics_table())?;
    let acts = Acts::prepare(site)?;
    let result = acts.all(&agent);
    if result.is_err() {
        eprintln!("--- storage agent:\n{}", agent.stderr_so_far());
        eprintln!("--- {}", site.storage()?.sh("ps ax | grep iscsi_np; dmesg | tail -20")?.stdout);
    }
    result?;
    agent.kill()
}

struct Acts<'a> {
    site: &'a Site,
    one: Host<'a>,
    two: Host<'a>,
    /// Target of the second host's volume.
    other: String,
}

impl<'a> Acts<'a> {
    fn prepare(site: &'a Site) -> Result<Self> {
        let (one, two) = (Host::start(site.rig.vm("host1")?)?, Host::start(site.rig.vm("host2")?)?);
        let other = volume(site, "other", "16MiB", &two.iqn)?;
        Ok(Self { site, one, two, other })
    }

    fn all(&self, agent: &Running) -> Result<()> {
        let mut evidence = Evidence::default();
        let hangs = volume(self.site, "hangs", "16MiB", &self.one.iqn)?;
        let device = self.device("hangs")?;
        self.one.login(&hangs, PORTAL, None, 120)?.ok()?;
        let disk = self.one.disk(&hangs, PORTAL)?;
        self.control(agent, &device, &disk, &mut evidence)?;
        self.suspended(&hangs, &device, &disk, &mut evidence)?;
        self.full_pool(&mut evidence)
    }

    fn device(&self, name: &str) -> Result<String> {
        let shown = self.site.json(&["volume", "show", name])?;
        Ok(shown["device"].as_str().with_context(|| format!("no device: {shown}"))?.to_owned())
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    fn portals(&self, target: &str) -> Result<usize> {
        Ok(self.storage(&format!("ls {TARGET}/iscsi/{target}/tpgt_1/np"))?.split_whitespace().count())
    }

    /// Ends the first host's connections, as when the host dies; its kernel logs in again at once.
    fn cut_connections(&self) -> Result<()> {
        self.one.vm.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
        Ok(())
    }

    /// Logs the second host in to the other volume. Returns the time, or the last failure.
    fn other_login(&self) -> Result<Result<Duration, String>> {
        let began = Instant::now();
        loop {
            let out = self.two.login(&self.other, PORTAL, None, 10)?;
            let took = began.elapsed();
            if out.status.success() {
                self.two.logout(&self.other)?;
                return Ok(Ok(took));
            }
            if took >= LOGIN_LIMIT {
                return Ok(Err(out.stderr));
            }
        }
    }

    /// Logs in again and again until that moment. Returns the longest time, and the number of
    /// logins.
    fn others_log_in_until(
        &self,
        until: Instant,
        mut also: impl FnMut(Duration) -> Result<()>,
    ) -> Result<(Duration, u32)> {
        let (began, mut longest, mut count) = (Instant::now(), Duration::ZERO, 0);
        while Instant::now() < until {
            let took = self.other_login()?.map_err(|said| {
                anyhow!(
                    "the other host is not let in, {:.0} s after the cut: {said}",
                    began.elapsed().as_secs_f64()
                )
            })?;
            (longest, count) = (longest.max(took), count + 1);
            also(began.elapsed())?;
        }
        Ok((longest, count))
    }

    /// Control: without a working agent the first host's next login blocks the portal for
    /// everybody.
    fn control(&self, agent: &Running, device: &str, disk: &Disk<'a>, evidence: &mut Evidence) -> Result<()> {
        self.other_login()?.map_err(|said| anyhow!("before anything hangs: {said}"))?;
        let writer = disk.write_stamps(&[])?;
        going(&writer)?;
        agent.signal(STOP)?;
        self.storage(&format!("dmsetup suspend --noflush --nolockfs {device}"))?;
        std::thread::sleep(Duration::from_secs(4));
        self.cut_connections()?;
        std::thread::sleep(Duration::from_secs(4));
        // On a slow machine the hung volume's host may not have come yet. Once it has, nobody is
        // let in: one failure alone may be the machine's.
        for _ in 0..3 {
            if self.other_login()?.is_err() {
                break;
            }
        }
        let came = self.other_login()?;
        self.storage(&format!("dmsetup resume {device}"))?;
        agent.signal(CONT)?;
        check(came.is_err(), || format!("the control: the other host was let in after {came:?}"))?;
        evidence.shows("control: without the agent, the hung volume's host logs in again, and nobody else is let in to anything");
        wait_for("the portal to answer again", Duration::from_mins(1), || Ok(self.other_login()?.ok()))?;
        goes_on(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        self.site.storage()?.forget_console();
        Ok(())
    }

    /// Waits until the agent has noticed. Returns how long that took.
    fn noticed(&self, target: &str, began: Instant) -> Result<Duration> {
        wait_for("its portals to be taken off", Duration::from_secs(30), || {
            Ok((self.portals(target)? == 0).then_some(()))
        })?;
        let took = began.elapsed();
        within("its portals to be taken off", took, NOTICED_WITHIN)?;
        Ok(took)
    }

    fn said(&self, name: &str) -> Result<()> {
        let shown = self.site.json(&["export", "show", name])?.to_string();
        check(shown.contains("does not answer since 20"), || format!("not said of the volume: {shown}"))?;
        let agent = self.site.mooring(&["agent", "show"])?.stdout;
        check(agent.contains("device_silent") && !agent.contains("portal_blocked"), || agent.clone())?;
        let counted = self.site.metric("mooring_agent_silent_volumes")?;
        check(counted == 1, || format!("{counted} volumes are silent, say its metrics"))
    }

    fn suspended(&self, target: &str, device: &str, disk: &Disk<'a>, evidence: &mut Evidence) -> Result<()> {
        let writer = disk.write_stamps(&[])?;
        going(&writer)?;
        let session = self.one.session_at(self.site.storage()?, target)?;
        let began = Instant::now();
        self.storage(&format!("dmsetup suspend --noflush --nolockfs {device}"))?;
        let noticed = self.noticed(target, began)?;
        check(self.one.session_at(self.site.storage()?, target)? == session, || {
            "its session has ended".to_owned()
        })?;
        self.said("hangs")?;
        evidence.shows(format!(
            "LV suspended: {:.1} s later its portals are off, its session stands, and it is said",
            noticed.as_secs_f64()
        ));
        self.cut_connections()?;
        let mut asks = None;
        let (longest, count) = self.others_log_in_until(began + HANGS_FOR, |since| {
            if since > Duration::from_secs(10) && asks.is_none() {
                self.one.vm.power_cut()?;
                self.one.vm.boot()?;
                // It asks for its disk as soon as it is up.
                Host::start(self.one.vm)?;
                let node = format!("iscsiadm -m node -T {target} -p {PORTAL}");
                let login = format!("{node} -o new >/dev/null; {node} --login");
                asks =
                    Some(self.one.vm.command(["sh", "-c", &login]).timeout(Duration::from_mins(5)).spawn()?);
            }
            Ok(())
        })?;
        drop(writer);
        let asks = asks.context("the host was not rebooted")?;
        evidence.shows(format!(
            "its host's connections cut, then the host rebooted: another host logs in to another volume {count} times over the same \
             portal, in {:.1} s at most",
            longest.as_secs_f64()
        ));
        let knocked = self.storage("dmesg | grep -c knock || true")?;
        check(knocked.trim() == "0", || format!("the kernel complains of knocks: {knocked}"))?;
        self.storage(&format!("dmsetup resume {device}"))?;
        wait_for("the host to be let in again", Duration::from_mins(1), || {
            let known = self.one.vm.sh("iscsiadm -m session")?.stdout.contains(target);
            Ok((known || self.one.login(target, PORTAL, None, 120)?.status.success()).then_some(()))
        })?;
        drop(asks.wait()?);
        let disk = self.one.disk(target, PORTAL)?;
        self.one.vm.sh(&format!("dd if=/dev/zero of={} bs=4k count=1 oflag=direct", disk.path))?.ok()?;
        evidence.shows("resumed: its portals are back by themselves, and its host writes");
        self.one.logout(target)?;
        self.nothing_said("hangs")
    }

    fn nothing_said(&self, name: &str) -> Result<()> {
        wait_for("nothing to be said any more", Duration::from_secs(30), || {
            let shown = self.site.json(&["export", "show", name])?.to_string();
            Ok((!shown.contains("does not answer")).then_some(()))
        })
    }

    /// Writes to a full thin pool wait for 60 s, until someone extends it. Therefore the volume's
    /// LV lies on a thin LV in a small pool: LVM watches and extends the agent's own pools.
    fn full_pool(&self, evidence: &mut Evidence) -> Result<()> {
        let target = volume(self.site, "thin", "96MiB", &self.one.iqn)?;
        let device = self.device("thin")?;
        let own = self.storage(&format!(
            "lvcreate -q -y -L 32M -T {GROUP}/small >&2; lvcreate -q -y -V 96M -T {GROUP}/small -n below >&2; dmsetup table {device}"
        ))?;
        let own = own.trim();
        let table = |table: &str| {
            format!(
                "dmsetup suspend {device}; dmsetup load {device} --table '{table}'; dmsetup resume {device}"
            )
        };
        self.storage(&table(&format!("0 {} linear /dev/{GROUP}/below 0", 96 << 11)))?;
        self.one.login(&target, PORTAL, None, 120)?.ok()?;
        let disk = self.one.disk(&target, PORTAL)?;
        let write = format!("dd if=/dev/zero of={} bs=1M count=64 oflag=direct", disk.path);
        let fills = self.one.vm.command(["sh", "-c", &write]).timeout(Duration::from_mins(5)).spawn()?;
        wait_for("the pool to be full", Duration::from_mins(2), || {
            let status = self.storage(&format!("dmsetup status {GROUP}-small-tpool"))?;
            Ok(status.contains("out_of_data_space").then_some(()))
        })?;
        let noticed = self.noticed(&target, Instant::now())?;
        self.said("thin")?;
        self.cut_connections()?;
        let (longest, count) = self.others_log_in_until(Instant::now() + FULL_FOR, |_| Ok(()))?;
        evidence.shows(format!(
            "a full thin pool: portals off {:.1} s after it was seen to be full, another host logs in {count} times, in {:.1} s at most",
            noticed.as_secs_f64(),
            longest.as_secs_f64()
        ));
        self.storage(&format!("lvextend -q -L +64M {GROUP}/small >&2"))?;
        let out = fills.wait()?;
        check(out.status.success(), || format!("the writer: {out:?}"))?;
        evidence
            .shows("made larger: the same write, whose connection was cut meanwhile, ends without an error");
        self.nothing_said("thin")?;
        self.one.logout(&target)?;
        self.storage(&table(own))?;
        self.storage(&format!("lvremove -q -y -f {GROUP}/small >&2"))?;
        Ok(())
    }
}

/// Makes a volume that is exported to this host. Returns its target.
fn volume(site: &Site, name: &str, size: &str, iqn: &str) -> Result<String> {
    site.json(&["volume", "create", name, "--size", size])?;
    let granted = site.json(&["export", "grant", name, "--initiator", iqn, "--mode", "rw"])?;
    Ok(granted["target"].as_str().context("target")?.to_owned())
}

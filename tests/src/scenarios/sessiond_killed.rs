//! mooring-sessiond dies before and after each of its steps, on a real kernel: in an attach, in a
//! takeover of existing sessions, in a recovery under I/O, in a detach. Each time another one is
//! started, as systemd does, and the work finishes by itself.
//!
//! What must never happen here: a fault point that counts as tried and was not. The daemon itself
//! says where it died, its list says which fault points exist, and one that no phase passes fails
//! the scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running, Status};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::{KernelSession, NativeHost, text};
use crate::site::{BIN, Programs, Site, goes_on, going, number, progress};

const PROGRAM: &str = "mooring-sessiond-faults";
const HALF_MINUTE: Duration = Duration::from_secs(30);
/// Time limit for commands and for a daemon that is to die: no wait takes as long.
const LONG: Duration = Duration::from_mins(10);
const SIGABRT: i32 = 6;

/// The steps of an attach.
const ATTACH: [&str; 7] = [
    "journal_write",
    "create_session",
    "create_connection",
    "bind_connection",
    "set_param",
    "send_pdu",
    "start_connection",
];
/// The steps of a recovery after the loss of the connection.
const RECOVERY: [&str; 5] =
    ["stop_connection", "bind_connection", "set_param", "send_pdu", "start_connection"];
/// The steps of a takeover of a session that is logged in.
const TAKEOVER: [&str; 1] = ["journal_write"];
/// The steps of a takeover of a session whose disk the kernel's error handling has switched off.
const SWITCHED_OFF: [&str; 1] = ["device_state"];
/// The steps of a detach. A takeover arms it, which writes the journal once before.
const DETACH: [&str; 7] = [
    "journal_write#2",
    "unbind_session",
    "send_pdu",
    "stop_connection",
    "destroy_connection",
    "destroy_session",
    "journal_remove",
];

/// The fault points before and after each of these steps.
fn points(steps: &[&str]) -> Vec<String> {
    steps.iter().flat_map(|step| ["before", "after"].map(|side| format!("{side} {step}"))).collect()
}

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("sessiond-killed").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    site.uses(&[PROGRAM])?;
    control.start()?;
    let volume = control.volume("data", None)?;
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    let evidence = Evidence::default();
    let hits = BTreeMap::new();
    let mut killed = Killed { site, control, evidence, volume, target, naa: None, hits, longest_gap_ms: 0 };
    let result = killed.acts();
    if result.is_err() {
        eprintln!("--- controller:\n{}", killed.control.controller_log());
        let host = killed.host();
        eprintln!("--- agent:\n{}\n--- sessiond:\n{}", host.agent_log(), host.sessiond_log());
    }
    result?;
    drop(agent);
    Ok(())
}

/// An attachment, and its only session.
struct Attached<'a> {
    id: String,
    disk: Disk<'a>,
    session: KernelSession,
}

struct Killed<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
    target: String,
    /// The disk's identifier at the first attach.
    naa: Option<String>,
    /// Fault points where the daemon died, with their phases.
    hits: BTreeMap<String, BTreeSet<&'static str>>,
    longest_gap_ms: u64,
}

impl<'a> Killed<'a> {
    fn acts(&mut self) -> Result<()> {
        let all = self.all_points()?;
        for (round, (attach, detach)) in points(&ATTACH).iter().zip(points(&DETACH)).enumerate() {
            let began = Instant::now();
            let attached = self.attach(attach)?;
            // Once each is enough: they end with the session that they began with.
            match round {
                0 => self.under_io(&attached)?,
                1 => self.switched_off(&attached)?,
                _ => {}
            }
            self.detach(&attached, &detach)?;
            self.evidence.note(format!("(round {} took {:.1} s)", round + 1, began.elapsed().as_secs_f64()));
        }
        self.all_were_hit(&all)?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        self.site.nothing_left()
    }

    fn host(&self) -> &NativeHost<'a> {
        &self.control.hosts[0]
    }

    /// The fault points that the daemon lists.
    fn all_points(&self) -> Result<BTreeSet<String>> {
        let printed = self.host().vm.run(&[&format!("{BIN}/{PROGRAM}"), "--print-steps"])?.ok()?.stdout;
        let names = printed.lines().map(|line| line.split_once(' ').map(|(_, name)| name.to_owned()));
        names.collect::<Option<_>>().with_context(|| printed.clone())
    }

    fn all_were_hit(&mut self, all: &BTreeSet<String>) -> Result<()> {
        let hit: BTreeSet<String> = self.hits.keys().cloned().collect();
        check(hit == *all, || {
            let missed: Vec<_> = all.difference(&hit).collect();
            format!("of the {} fault points no phase goes through {missed:?}", all.len())
        })?;
        for (point, phases) in &self.hits {
            let phases: Vec<_> = phases.iter().copied().collect();
            self.evidence.note(format!("{point}: {}", phases.join(", ")));
        }
        let deaths: usize = self.hits.values().map(BTreeSet::len).sum();
        self.evidence.shows(format!(
            "sessiond died at each of its {} fault points, {deaths} times in all; a new one brought everything to its end: one \
             session, the same disk, no I/O error (longest gap {} ms), nothing left",
            all.len(),
            self.longest_gap_ms
        ));
        Ok(())
    }

    /// Replaces the running daemon by one that dies at this point.
    fn arm(&mut self, at: &str) -> Result<Running> {
        self.control.hosts[0].kill_sessiond()?;
        let crash = format!("MOORING_SESSIOND_CRASH_AT={at}");
        let armed =
            self.host().vm.command(["env", &crash, &format!("{BIN}/{PROGRAM}")]).timeout(LONG).spawn()?;
        wait_for("the armed sessiond to start", HALF_MINUTE, || {
            // It may die while it takes over.
            Ok((!armed.is_running() || armed.stderr_so_far().contains("ready")).then_some(()))
        })?;
        Ok(armed)
    }

    /// Waits for the daemon's death, and starts another one.
    fn dies(&mut self, armed: Running, phase: &'static str, at: &str) -> Result<()> {
        let died = wait_for(&format!("sessiond to die {at} in the {phase}"), HALF_MINUTE, || {
            Ok((!armed.is_running()).then_some(()))
        });
        if let Err(error) = died {
            bail!("{error:#}; it said: {}", armed.stderr_so_far());
        }
        let out = armed.wait()?;
        let point = at.split('#').next().unwrap_or(at);
        let aborted = out.status == Status::Signaled(SIGABRT);
        check(aborted && out.stderr.contains(&format!("dies {point} as asked")), || {
            format!("armed to die {at} in the {phase}: {}: {}", out.status, out.stderr)
        })?;
        self.hits.entry(point.to_owned()).or_default().insert(phase);
        self.control.hosts[0].start_sessiond()
    }

    /// The end of a `mooring` command that ran while the daemon died.
    fn ended(&self, command: Running, what: &str) -> Result<Value> {
        let out = command.wait()?;
        check(out.status.success(), || {
            format!("{what}: {}: {}; sessiond: {}", out.status, out.stderr, self.host().sessiond_log())
        })?;
        serde_json::from_str(&out.stdout).with_context(|| format!("{what} answered: {}", out.stdout))
    }

    fn spawn(&self, args: &[&str]) -> Result<Running> {
        let all = [&["--json", "--timeout", "240"], args].concat();
        self.site.storage()?.command(Control::words(&all)).timeout(LONG).spawn()
    }

    fn attach(&mut self, at: &str) -> Result<Attached<'a>> {
        let armed = self.arm(at)?;
        let attach = self.spawn(&["attach", &self.volume, "--host", "host1"])?;
        self.dies(armed, "attach", at)?;
        let what = format!("the attach in which sessiond died {at}");
        let live = self.ended(attach, &what)?;
        let live = if live["attachment"].is_object() { &live["attachment"] } else { &live };
        let disk = Disk::new(self.site.rig.vm("host1")?, text(live, "device_path")?);
        let session = self.one_session().context(what)?;
        let attached = Attached { id: text(live, "id")?.to_owned(), disk, session };
        self.same_disk(&attached)?;
        Ok(attached)
    }

    /// Waits until host and target have exactly one session, logged in: partial ones go after a
    /// while.
    fn one_session(&self) -> Result<KernelSession> {
        wait_for("one session", HALF_MINUTE, || {
            let all = self.host().sessions()?;
            let [one] = all.as_slice() else { bail!("the host has {all:?}") };
            let right = one.target == self.target && one.state == "LOGGED_IN" && one.creator == -1;
            check(right, || format!("the host has {one:?}"))?;
            let shown = self.site.json(&["export", "show", &self.volume])?;
            let of_target = shown["export"]["grants"][0]["sessions"].as_array().map_or(0, Vec::len);
            check(of_target == 1, || format!("the target has {of_target} sessions: {shown}"))?;
            Ok(Some(one.clone()))
        })
    }

    /// Checks that the path leads to the same disk, at any moment. INQUIRY is sent past the file
    /// systems (SG_IO). The kernel does not repeat such a command after a recovery has aborted it,
    /// so a failed one is retried, and reported.
    fn same_disk(&mut self, attached: &Attached<'_>) -> Result<()> {
        let disk = &attached.disk;
        let name = disk.name()?;
        let mut failed = None;
        let naa = wait_for("the disk to say who it is", HALF_MINUTE, || {
            disk.naa().map(Some).inspect_err(|error| {
                let device = format!("/sys/block/{}/device", name.rsplit('/').next().unwrap_or_default());
                let state =
                    disk.vm.sh(&format!("cat {device}/state; dmesg | tail -n 5")).map(|out| out.stdout);
                failed.get_or_insert_with(|| format!("{error:#}; {}", state.unwrap_or_default()));
            })
        })?;
        if let Some(failed) = failed {
            self.evidence.note(format!("(an INQUIRY failed, and was sent again: {failed})"));
        }
        let first = self.naa.get_or_insert_with(|| naa.clone());
        check(*first == naa, || format!("the disk {first} has become {naa}"))
    }

    /// Checks that the kernel session and the disk are the same as before.
    fn same_session(&mut self, attached: &Attached<'_>) -> Result<()> {
        let now = self.one_session()?;
        check(now == attached.session, || format!("{:?} has become {now:?}", attached.session))?;
        self.same_disk(attached)
    }

    /// Daemons die while a writer runs: after they have lost their connection, and at their start.
    /// No write fails.
    fn under_io(&mut self, attached: &Attached<'_>) -> Result<()> {
        let writer = attached.disk.write_stamps(&["--threads", "1"])?;
        going(&writer)?;
        for at in points(&RECOVERY) {
            let armed = self.arm(&at)?;
            attached.disk.vm.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
            self.dies(armed, "recovery", &at)?;
            self.writes_go_on(attached, &writer).with_context(|| format!("a recovery, died {at}"))?;
        }
        for at in points(&TAKEOVER) {
            let armed = self.arm(&at)?;
            self.dies(armed, "takeover", &at)?;
            self.writes_go_on(attached, &writer).with_context(|| format!("a takeover, died {at}"))?;
        }
        self.longest_gap_ms = number(&progress(&writer)?, "longest_gap_ms")?;
        writer.kill()?;
        drop(writer.wait()?);
        Ok(())
    }

    fn writes_go_on(&mut self, attached: &Attached<'_>, writer: &Running) -> Result<()> {
        self.same_session(attached)?;
        goes_on(writer)?;
        let seen = progress(writer)?;
        check(number(&seen, "errors")? == 0, || format!("writes failed: {seen}"))
    }

    /// The kernel's error handling has switched the disk off; a daemon that takes it over switches
    /// it on again, and dies there.
    fn switched_off(&mut self, attached: &Attached<'_>) -> Result<()> {
        let disk = &attached.disk;
        let name = disk.name()?;
        let name = name.rsplit('/').next().unwrap_or_default();
        let state = format!("/sys/block/{name}/device/state");
        for at in points(&SWITCHED_OFF) {
            disk.vm.sh(&format!("echo offline > {state}"))?.ok()?;
            check(disk.read_stamps().is_err(), || "a disk that is switched off was read".to_owned())?;
            let armed = self.arm(&at)?;
            self.dies(armed, "takeover of a disk that is off", &at)?;
            wait_for("the disk to run", HALF_MINUTE, || {
                let out = disk.vm.run(&["cat", &state])?.ok()?;
                check(out.line() == "running", || format!("it is {}", out.line()))?;
                disk.read_stamps().map(Some)
            })?;
            self.same_session(attached)?;
        }
        Ok(())
    }

    fn detach(&mut self, attached: &Attached<'_>, at: &str) -> Result<()> {
        let armed = self.arm(at)?;
        let detach = self.spawn(&["detach", &attached.id])?;
        self.dies(armed, "detach", at)?;
        let what = format!("the detach in which sessiond died {at}");
        self.ended(detach, &what)?;
        let host = self.host();
        let gone = wait_for("nothing to be left", HALF_MINUTE, || {
            host.nothing_left()?;
            let left =
                host.vm.sh("ls -A /run/mooring/sessiond /run/mooring/volumes /run/mooring/attachments")?;
            let more = |line: &&str| !(line.is_empty() || line.ends_with(':'));
            let left: Vec<_> = left.ok()?.stdout.lines().filter(more).map(str::to_owned).collect();
            check(left == ["lock", "sessiond.sock"], || format!("the host has {left:?}"))?;
            Ok(Some(()))
        });
        gone.with_context(|| format!("{what}; sessiond: {}", host.sessiond_log()))
    }
}

//! The main job on real kernels, with its evidence: one volume, two hosts, native attach rw and ro,
//! force detach, crashes and a power cut, and a client that we did not write.
//!
//! Controller and storage agent run on `storage`, agents and sessiond on the hosts. Each claim
//! prints a line with its measurements; a claim that does not hold ends the demo with an error.

mod barrier;
mod crash;
mod force;
pub mod trials;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{Kernel, RigOptions};
use serde_json::Value;

use crate::clients::Cinder;
use crate::control::{Control, PORT, TOKEN, check_in_force};
use crate::disk::Disk;
use crate::evidence::{Evidence, check};
use crate::initiator::{Credentials, Host};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, TARGET, number};

/// Numbers for the last line.
#[derive(Debug, Default)]
struct Proved {
    stamps_written: u64,
    in_flight: u64,
    landed_in_control: u64,
    longest_gap_ms: u64,
    receipt_ms: u128,
    restored_ms: u128,
}

struct Demo<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    proved: Proved,
    /// The shared volume, its LV and its target.
    volume: String,
    device: String,
    target: String,
    /// The volume's attachments on host1 (rw) and host2 (ro).
    attachment1: String,
    attachment2: String,
    disk1: Disk<'a>,
    disk2: Disk<'a>,
}

/// Number of the demo's claims: none may be left out.
const CLAIMS: usize = 26;

/// A function that runs at the end while everything still runs.
pub type Wait = dyn Fn(&Site) -> Result<()>;

/// Runs the demo. `keep` is called before the last scene, while both hosts are attached and
/// everything runs; then nothing is removed.
pub fn run(programs: &Programs, keep: Option<&Wait>) -> Result<()> {
    on(programs, keep, Kernel::Stable)
}

/// Like [`run`], on another kernel.
pub fn on(programs: &Programs, keep: Option<&Wait>, kernel: Kernel) -> Result<()> {
    let began = Instant::now();
    let site = Site::up(RigOptions::standard(2).named("demo").kernel(kernel).forward(PORT), programs)?;
    let result = scenes(&site, kernel, began, keep);
    if result.is_err() {
        let folder = site.rig.dir().with_file_name("failed-demo");
        site.save_evidence(&folder);
        eprintln!("evidence saved in {}", folder.display());
    }
    result.and_then(|()| site.rig.check_consoles())
}

fn scenes(site: &Site, kernel: Kernel, began: Instant, keep: Option<&Wait>) -> Result<()> {
    let evidence = Evidence::default();
    let installed = began.elapsed();
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    evidence.note(format!(
        "3 VMs ready in {:.1} s ({:?}, kernel {}), product installed after {:.1} s, controller and 3 agents up after {:.1} s",
        site.rig.ready_in().as_secs_f64(),
        site.rig.accel(),
        site.rig.kernel(),
        installed.as_secs_f64(),
        began.elapsed().as_secs_f64()
    ));
    notes_kernel(site, kernel)?;
    let mut demo = Demo::new(site, control, evidence)?;
    let result = demo.acts(agent, began, keep);
    if result.is_err() {
        demo.print_logs();
    }
    result
}

/// `mooring agent show` notes what a kernel for clouds lacks. modprobe, which does not find it
/// there, finds it on other kernels.
fn notes_kernel(site: &Site, kernel: Kernel) -> Result<()> {
    let shown = site.mooring(&["agent", "show"])?.ok()?.stdout;
    let notes = shown.contains("without Fibre Channel, FCoE and DLM");
    let finds = site.storage()?.sh("modprobe -n tcm_fc || modprobe -n fcoe")?.status.success();
    check((notes, finds) == (kernel == Kernel::Cloud, kernel != Kernel::Cloud), || {
        format!("modprobe finds Fibre Channel: {finds}; `agent show` on {kernel:?}: {shown}")
    })
}

impl Proved {
    fn print(&self, evidence: &Evidence, began: Instant) {
        let p = self;
        println!(
            "proved: 1 volume, 2 hosts: {} stamps written and read back; read-only refused twice, by the host and by the target; \
         force detach with {} writes in flight: receipt after {} ms, 0 stamps after it (control without it: {} landed), \
         other host's longest gap {} ms; agents, sessiond and controller killed: 0 I/O errors; power cut: exports back {} ms \
         after the agent's start. {} claims, {:.0} s.",
            p.stamps_written,
            p.in_flight,
            p.receipt_ms,
            p.landed_in_control,
            p.longest_gap_ms,
            p.restored_ms,
            evidence.shown(),
            began.elapsed().as_secs_f64()
        );
    }
}

impl<'a> Demo<'a> {
    fn new(site: &'a Site, control: Control<'a>, evidence: Evidence) -> Result<Self> {
        let (disk1, disk2) = (Disk::new(site.rig.vm("host1")?, ""), Disk::new(site.rig.vm("host2")?, ""));
        Ok(Self {
            site,
            control,
            evidence,
            proved: Proved::default(),
            volume: String::new(),
            device: String::new(),
            target: String::new(),
            attachment1: String::new(),
            attachment2: String::new(),
            disk1,
            disk2,
        })
    }

    fn acts(&mut self, agent: mooring_rig::Running, began: Instant, keep: Option<&Wait>) -> Result<()> {
        self.create()?;
        self.attach_both()?;
        self.plain_is_not_shared()?;
        self.share()?;
        self.read_only_is_real()?;
        self.mode_changes()?;
        self.barrier()?;
        self.host_processes_killed()?;
        self.force_detach()?;
        self.control_only_unmaps()?;
        let agent = self.storage_killed(agent)?;
        let agent = self.power_cut(agent)?;
        if let Some(wait) = keep {
            self.proved.print(&self.evidence, began);
            return wait(self.site);
        }
        self.cinderclient()?;
        self.remove_everything()?;
        self.tour()?;
        agent.kill()?;
        self.proved.print(&self.evidence, began);
        check(self.evidence.shown() == CLAIMS, || format!("not all of the {CLAIMS} claims were shown"))
    }

    /// Prints the logs of all processes, after a failure.
    fn print_logs(&self) {
        eprintln!("--- controller:\n{}", tail(&self.control.controller_log()));
        for host in &self.control.hosts {
            eprintln!("--- {}'s agent:\n{}", host.vm.name(), tail(&host.agent_log()));
            eprintln!("--- {}'s sessiond:\n{}", host.vm.name(), tail(&host.sessiond_log()));
        }
    }

    fn create(&mut self) -> Result<()> {
        self.control.shared_type()?;
        self.volume = self.control.volume("data", Some("shared"))?;
        self.device = format!("/dev/{GROUP}/mooring-{}", self.volume);
        self.target = format!("iqn.2026-11.dev.mooring:{}", self.volume);
        self.evidence.shows(format!(
            "volume {} (1 GiB, {}) of a type with multiattach='<is> True' is available",
            self.volume, self.device
        ));
        Ok(())
    }

    /// Attaches the shared volume natively. Returns the answer, the attachment's id and the user's
    /// path.
    fn attach(&self, host: &str, mode: &str) -> Result<(Value, String, String)> {
        let live = self.control.attach(&self.volume, host, mode)?;
        let (id, path) = (text(&live, "id")?.to_owned(), text(&live, "device_path")?.to_owned());
        check_in_force(&live, mode).with_context(|| format!("attach to {host}"))?;
        Ok((live, id, path))
    }

    fn attach_both(&mut self) -> Result<()> {
        let mut naas = Vec::new();
        for (host, mode) in [("host1", "rw"), ("host2", "ro")] {
            let (live, id, path) = self.attach(host, mode)?;
            let disk = Disk::new(self.site.rig.vm(host)?, path);
            naas.push(disk.naa()?);
            self.evidence.shows(format!(
                "`mooring attach data --host {host} --mode {mode}`: {} ({}); steps in ms: {}",
                disk.path, live["disk"], live["steps_ms"]
            ));
            if host == "host1" {
                (self.attachment1, self.disk1) = (id, disk);
            } else {
                (self.attachment2, self.disk2) = (id, disk);
            }
        }
        check(naas[0] == naas[1] && naas[0].starts_with("6001405"), || format!("NAAs {naas:?}"))?;
        let creators: Vec<i64> = self
            .control
            .hosts
            .iter()
            .map(|host| host.session(&self.target).map(|session| session.creator))
            .collect::<Result<_>>()?;
        check(creators == [-1, -1], || format!("creators {creators:?}"))?;
        self.evidence.shows(format!(
            "both hosts see NAA {}; the sessions are kernel-owned (creator -1), no iscsid and no iscsiadm ran",
            naas[0]
        ));
        Ok(())
    }

    fn plain_is_not_shared(&mut self) -> Result<()> {
        let plain = self.control.volume("plain", None)?;
        let first = self.control.attach(&plain, "host1", "rw")?;
        let second = self.control.mooring(&["attach", "plain", "--host", "host2"])?;
        let said = second.stderr.trim().to_owned();
        check(second.status.code() == Some(4) && said.contains("400"), || {
            format!("a second attach of a plain volume: {:?} {said}", second.status)
        })?;
        self.evidence.shows(format!("a second attach of a plain volume is refused: {said}"));
        self.control.json(&["detach", text(&first, "id")?])?;
        self.control.json(&["volume", "delete", &plain])?;
        Ok(())
    }

    fn share(&mut self) -> Result<()> {
        let out = self.disk1.write_stamps(&["--seconds", "3"])?.wait()?.ok()?;
        let last: Value = out.stdout.lines().last().context("no progress")?.parse()?;
        let written = number(&last, "done")?;
        check(number(&last, "errors")? == 0 && written > 0, || format!("host1's writes: {last}"))?;
        let there: u64 = self.disk2.read_stamps()?.iter().sum();
        check(there == written, || format!("host1 wrote {written} stamps, host2 reads {there}"))?;
        self.proved.stamps_written = written;
        self.evidence
            .shows(format!("host1 wrote {written} stamps with O_DIRECT; host2 reads back all {there}"));
        Ok(())
    }

    fn read_only_is_real(&mut self) -> Result<()> {
        let (vm, path) = (self.disk2.vm, &self.disk2.path);
        let write =
            vm.run(&["dd", "if=/dev/zero", &format!("of={path}"), "bs=4096", "count=1", "oflag=direct"])?;
        check(!write.status.success(), || "host2 wrote to a read-only disk".to_owned())?;
        let why = write.stderr.lines().next().unwrap_or_default().to_owned();
        self.evidence.shows(format!("host2's write is refused by its own kernel: {why}"));
        let generic = self.disk2.generic()?;
        vm.write("/run/zeros", &[0; 512], 0o600)?;
        let mut argv = vec!["sg_raw", "-s", "512", "-i", "/run/zeros", &generic];
        argv.extend(["2a", "00", "00", "00", "00", "00", "00", "00", "01", "00"]);
        let raw = vm.run(&argv)?;
        let said = format!("{}{}", raw.stdout, raw.stderr);
        check(!raw.status.success() && said.contains("Data Protect"), || {
            format!("a raw WRITE(10) of host2 was answered: {said}")
        })?;
        let sum: u64 = self.disk2.read_stamps()?.iter().sum();
        check(sum == self.proved.stamps_written, || "a refused write has changed the disk".to_owned())?;
        self.evidence.shows(format!(
            "a raw SCSI WRITE by SG_IO on {generic}, past the block layer, is refused by the target: DATA PROTECT; no byte changed"
        ));
        Ok(())
    }

    /// Host1 changes to ro and back to rw in one session. In between, the target refuses writes
    /// that bypass the host's own kernel.
    fn mode_changes(&mut self) -> Result<()> {
        let session = |demo: &Self| demo.control.hosts[0].session(&demo.target);
        let (before, generic) = (session(self)?, self.disk1.generic()?);
        let vm = self.disk1.vm;
        // READ a block, and WRITE the same content: the data stay unchanged whether or not the
        // target accepts it.
        let raw = format!(
            "dd if={} of=/run/block bs=512 count=1 skip=2048 iflag=direct 2>/dev/null && \
             sg_raw -s 512 -i /run/block {generic} 2a 00 00 00 08 00 00 00 01 00 2>&1",
            self.disk1.path
        );
        let mut took = Vec::new();
        for (mode, refused) in [("ro", true), ("rw", false)] {
            let began = Instant::now();
            let set = self.control.json(&["attachment", "mode", &self.attachment1, mode])?;
            took.push(began.elapsed().as_millis());
            check(set["attachment"]["effective_mode"] == mode && set["barrier"] == false, || {
                format!("{set}")
            })?;
            let said = vm.sh(&raw)?;
            check(
                said.stdout.contains("Data Protect") == refused && said.status.success() != refused,
                || format!("a raw WRITE(10) of host1 in mode {mode}: {}{}", said.stdout, said.stderr),
            )?;
        }
        check(session(self)? == before, || "host1 has logged in anew".to_owned())?;
        self.evidence.shows(format!(
            "`mooring attachment mode` makes host1 ro and rw again in its session ({} and {} ms with the command line): a raw \
             WRITE is refused by the target meanwhile, and not afterwards",
            took[0], took[1]
        ));
        Ok(())
    }

    /// A client that we did not write attaches and detaches: python-cinderclient, with stock
    /// open-iscsi on host2.
    fn cinderclient(&mut self) -> Result<()> {
        let storage = self.site.storage()?;
        let url = format!("http://{}/v3", storage.forwarded(PORT)?);
        let cinder = Cinder::new(&url, TOKEN)?;
        let stock = Host::start(self.site.rig.vm("host2")?)?;
        let made = cinder.call(&["create", &self.volume, &stock.iqn, "host2-stock", "ro"])?;
        let info = &made["connection_info"];
        // Use the other portal: udev's name of a disk contains its portal, and the native session
        // is at the first.
        let portal =
            info["target_portals"][1].as_str().with_context(|| format!("a second portal in {info}"))?;
        let id = text(&made, "id")?.to_owned();
        check(info["access_mode"] == "ro" && info["auth_method"] == "CHAP", || format!("{made}"))?;
        let (user, secret) = (text(info, "auth_username")?, text(info, "auth_password")?);
        let chap = Credentials { user, secret, mutual: None };
        stock.login(text(info, "target_iqn")?, portal, Some(chap), 20)?.ok().context("iscsiadm logs in")?;
        let disk = stock.disk(&self.target, portal)?;
        let (theirs, ours): (u64, u64) =
            (disk.read_stamps()?.iter().sum(), self.disk2.read_stamps()?.iter().sum());
        check(theirs == ours && disk.name()? != self.disk2.name()?, || {
            format!("{theirs} and {ours} stamps")
        })?;
        stock.logout(&self.target)?;
        cinder.call(&["delete", &id])?;
        let gone = self.control.mooring(&["attachment", "show", &id])?;
        check(gone.status.code() == Some(3), || format!("after the delete: {gone:?}"))?;
        check(self.control.live(&self.attachment2)?["session"] == true, || "host2 was detached".to_owned())?;
        self.evidence.shows(
            "python-cinderclient attaches the volume ro for stock open-iscsi on host2 (its iscsid beside our sessiond), which \
             reads the same stamps; logout and detach leave the native attachment as it is",
        );
        Ok(())
    }

    /// Runs `mooring demo` on the host that it detaches by force; its text must match what the disk
    /// did.
    fn tour(&mut self) -> Result<()> {
        let host = &self.control.hosts[0];
        let words = ["demo", "--writer", "host1", "--reader", "host2"];
        let said = self.control.mooring_on(host, &words)?.ok()?.stdout;
        for text in [
            "This machine writes 4096 bytes to /run/mooring/attachments/",
            "This machine writes once more to the disk that it has open, which is gone: the write fails",
            "This machine reads back what it wrote",
            "It tries to write: that fails",
            "Everything that the tour made is gone again.",
        ] {
            check(said.contains(text), || format!("{text:?} is not in:\n{said}"))?;
        }
        let refusals: Vec<_> = said.lines().filter(|line| line.starts_with("This machine")).collect();
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        self.site.nothing_left()?;
        self.evidence.shows(format!("the tour `mooring demo` on host1: {}", refusals.join(" ")));
        Ok(())
    }

    fn remove_everything(&mut self) -> Result<()> {
        for id in [self.attachment1.clone(), self.attachment2.clone()] {
            self.control.json(&["detach", &id])?;
        }
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        self.site.nothing_left()?;
        let left = self.control.json(&["attachment", "list"])?;
        check(left["attachments"].as_array().is_some_and(Vec::is_empty), || format!("left: {left}"))?;
        self.evidence.shows(
            "both detached and the volume deleted: no session, no path, no target, no backstore, no LV is left",
        );
        Ok(())
    }
}

/// The end of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(40)).copied().collect::<Vec<_>>().join("\n")
}

/// Time limit for hosts to continue after the storage node was away.
const GO_ON: Duration = Duration::from_mins(1);
/// LIO's folder of this volume's target, for the control that works by hand.
fn acl_folder(target: &str, initiator: &str) -> String {
    format!("{TARGET}/iscsi/{target}/tpgt_1/acls/{initiator}")
}

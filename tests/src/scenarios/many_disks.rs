//! Many disks of one host at once: attached together, each with a pattern of its own, written in
//! parallel while one of them is taken away by force, and detached together.
//!
//! What must never happen here: a disk that shows another one's pattern; an error of a disk that
//! nobody took away, without a disk beside it whose errors are counted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running, Vm};
use serde_json::Value;

use crate::control::{Control, PORT, attachment_of};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, TARGET, agent_config, going, number, progress};

/// Number of disks.
const DISKS: usize = 20;
/// The disk that is taken away, by its number.
const VICTIM: usize = 7;
/// Each disk has one write at a time, ten times a second: the emulated target has to serve all.
const PACED: [&str; 4] = ["--threads", "1", "--every-ms", "100"];
const LONG: Duration = Duration::from_mins(6);

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(1).named("many-disks").forward(PORT);
    // Twenty command lines run on the storage node at once, beside agent and controller.
    if let Some(storage) = options.vms.first_mut() {
        storage.memory_mib = 1536;
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    // Thin volumes: twenty of 1 GiB have room, and nothing has to be zeroed.
    let agent = site.start_agent_by(&format!("{}thin_pool = \"4GiB\"\n", agent_config("")))?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.json(&["type", "create", "thin", "--spec", "provisioning:type=thin"])?;
    let mut acts = Acts { site, control, evidence: Evidence::default(), disks: Vec::new() };
    let result = acts.all(agent);
    if result.is_err() {
        acts.control.print_logs();
    }
    result
}

/// A volume on host1.
struct One {
    name: String,
    volume: String,
    attachment: String,
    path: String,
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    disks: Vec<One>,
}

impl Acts<'_> {
    fn all(&mut self, agent: Running) -> Result<()> {
        self.create()?;
        self.attach()?;
        self.patterns()?;
        self.one_is_taken_away()?;
        self.detach()?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    /// Runs these command lines of `mooring` at the same time; each has to succeed. Returns their
    /// answers in the same order.
    fn at_once(&self, commands: Vec<Vec<String>>) -> Result<Vec<Value>> {
        let storage = self.site.storage()?;
        let running = commands
            .into_iter()
            .map(|words| storage.command(words).timeout(LONG).spawn())
            .collect::<Result<Vec<_>>>()?;
        let answer = |one: Running| -> Result<Value> {
            let out = one.wait()?.ok()?;
            serde_json::from_str(&out.stdout)
                .with_context(|| format!("`{}` answered: {}", out.command, out.stdout))
        };
        running.into_iter().map(answer).collect()
    }

    fn create(&mut self) -> Result<()> {
        let names: Vec<String> = (0..DISKS).map(|number| format!("disk-{number:02}")).collect();
        let create = |name: &String| {
            let what = ["--json", "volume", "create", name.as_str(), "--size", "1GiB", "--type", "thin"];
            Control::words(&[what.as_slice(), &["--timeout", "300"]].concat())
        };
        let began = Instant::now();
        let made = self.at_once(names.iter().map(create).collect())?;
        for (name, made) in names.iter().zip(&made) {
            let id = made["volume"]["id"].as_str().or(made["id"].as_str());
            let volume = id.with_context(|| format!("no id in {made}"))?.to_owned();
            let (attachment, path) = (String::new(), String::new());
            self.disks.push(One { name: name.clone(), volume, attachment, path });
        }
        self.evidence.note(format!("{DISKS} volumes made in {:.1} s", began.elapsed().as_secs_f64()));
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        let attach = |one: &One| {
            Control::words(&[
                "--json",
                "attach",
                &one.volume,
                "--host",
                "host1",
                "--mode",
                "rw",
                "--timeout",
                "240",
            ])
        };
        let commands = self.disks.iter().map(attach).collect();
        let began = Instant::now();
        let answers = self.at_once(commands)?;
        for (one, answer) in self.disks.iter_mut().zip(answers) {
            let live = attachment_of(answer);
            check(live["host_phase"] == "ready", || {
                format!("{} is not ready on its host: {live}", one.name)
            })?;
            text(&live, "id")?.clone_into(&mut one.attachment);
            text(&live, "device_path")?.clone_into(&mut one.path);
        }
        self.sessions(DISKS)?;
        self.evidence.shows(format!(
            "{DISKS} volumes are attached to one host at once, in {:.1} s",
            began.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// Waits until host1's kernel has this many sessions, all logged in.
    fn sessions(&self, wanted: usize) -> Result<()> {
        let host = &self.control.hosts[0];
        wait_for("host1's sessions", Duration::from_secs(30), || {
            let seen = host.sessions()?;
            let all = seen.len() == wanted && seen.iter().all(|one| one.state == "LOGGED_IN");
            check(all, || format!("{} sessions, not {wanted} that are logged in: {seen:?}", seen.len()))
                .map(Some)
        })
    }

    /// Writes each disk's name over 2 MiB of it, all disks at once, and reads them on the host and
    /// below their targets.
    fn patterns(&mut self) -> Result<()> {
        let host = self.control.hosts[0].vm;
        let one = |one: &One| format!("one {} {} &", one.name, one.path);
        let calls = self.disks.iter().map(one).collect::<Vec<_>>().join(" ");
        // The first MiB is for stamps.
        let said = host
            .sh(&format!(
                "one() {{ yes $1 | dd of=$2 bs=1M count=2 seek=1 iflag=fullblock oflag=direct 2>/run/dd-$1 || cat /run/dd-$1; }}; \
                 {calls} wait"
            ))?
            .ok()?
            .stdout;
        check(said.trim().is_empty(), || format!("writes of the patterns: {said}"))?;
        self.read_on_host(None)?;
        self.read_on_storage()?;
        self.evidence.shows(format!(
            "{DISKS} disks are written at once, each with its own pattern: read past every cache, each shows its own, on the host and \
             in its LV"
        ));
        Ok(())
    }

    /// Checks that each disk shows its pattern on the host, except the disk of this number.
    fn read_on_host(&self, except: Option<usize>) -> Result<()> {
        let there = self.disks.iter().enumerate().filter(|(number, _)| Some(*number) != except);
        let paths: Vec<_> = there.map(|(_, one)| (one.name.as_str(), one.path.clone())).collect();
        shows_its_own(self.control.hosts[0].vm, &paths)
    }

    /// Checks that each LV shows the pattern of its volume.
    fn read_on_storage(&self) -> Result<()> {
        let device = |one: &One| format!("/dev/{GROUP}/mooring-{}", one.volume);
        let paths: Vec<_> = self.disks.iter().map(|one| (one.name.as_str(), device(one))).collect();
        shows_its_own(self.site.storage()?, &paths)
    }

    /// Takes one disk away by force while all are written. Its own errors are the control of those
    /// that the others do not have.
    fn one_is_taken_away(&mut self) -> Result<()> {
        let vm = self.control.hosts[0].vm;
        let write = |one: &One| Disk::new(vm, one.path.clone()).write_stamps(&PACED);
        let writers = self.disks.iter().map(write).collect::<Result<Vec<_>>>()?;
        writers.iter().try_for_each(|writer| going(writer).map(drop))?;
        let taken = self.control.force_detach(&self.disks[VICTIM].attachment)?;
        check(taken["done"] == true, || format!("the force detach of one disk: {taken}"))?;
        wait_for("the writes of the disk that was taken away to fail", Duration::from_mins(1), || {
            Ok((number(&progress(&writers[VICTIM])?, "errors")? > 0).then_some(()))
        })?;
        self.sessions(DISKS - 1)?;
        let before = done(&writers)?;
        wait_for("the writes of all other disks to go on", Duration::from_mins(1), || {
            let now = done(&writers)?;
            let stands = |number: &usize| *number != VICTIM && now[*number] <= before[*number];
            let stand: Vec<usize> = (0..DISKS).filter(stands).collect();
            check(stand.is_empty(), || format!("disks {stand:?} are not written")).map(Some)
        })?;
        let (mut written, mut gap) = (0, 0);
        for (number_of, writer) in writers.into_iter().enumerate() {
            let seen = progress(&writer)?;
            writer.kill()?;
            drop(writer.wait()?);
            if number_of != VICTIM {
                check(number(&seen, "errors")? == 0, || format!("writes of disk {number_of}: {seen}"))?;
                written += number(&seen, "done")?;
                gap = gap.max(number(&seen, "longest_gap_ms")?);
            }
        }
        self.read_on_host(Some(VICTIM))?;
        self.read_on_storage()?;
        self.evidence.shows(format!(
            "one disk is taken away by force under I/O of all: its writes fail, the other {} have {written} writes, 0 errors, a longest \
             gap of {gap} ms, and their sessions; all data is there, also of the one that was taken away",
            DISKS - 1
        ));
        Ok(())
    }

    fn detach(&mut self) -> Result<()> {
        let taken = self.disks.remove(VICTIM);
        let detach = |one: &One| Control::words(&["--json", "detach", &one.attachment, "--timeout", "240"]);
        let commands = self.disks.iter().map(detach).collect();
        let began = Instant::now();
        for (one, answer) in self.disks.iter().zip(self.at_once(commands)?) {
            check(answer["done"] == true, || format!("the detach of {}: {answer}", one.name))?;
        }
        let took = began.elapsed();
        let host = &self.control.hosts[0];
        wait_for("host1 to have nothing", Duration::from_secs(30), || host.nothing_left().map(Some))?;
        let left = self.control.json(&["attachment", "list"])?;
        check(left["attachments"].as_array().is_some_and(Vec::is_empty), || {
            format!("attachments are left: {left}")
        })?;
        let acls = format!("find {TARGET}/iscsi -mindepth 4 -maxdepth 4 -path '*/acls/*'");
        let acls = self.site.storage()?.sh(&acls)?.ok()?.stdout;
        check(acls.trim().is_empty(), || format!("grants are left: {acls}"))?;
        self.control.json(&["volume", "delete", &taken.volume, "--timeout", "120"])?;
        self.evidence.shows(format!(
            "{} disks are detached at once, in {:.1} s: no session, no path, no attachment and no grant is left; the volume that was \
             taken away is deleted",
            DISKS - 1,
            took.as_secs_f64()
        ));
        Ok(())
    }
}

/// Number of writes that each writer has done.
fn done(writers: &[Running]) -> Result<Vec<u64>> {
    writers.iter().map(|writer| number(&progress(writer)?, "done")).collect()
}

/// Checks that each of these paths shows the pattern of its name, read past every cache and all at
/// once.
fn shows_its_own(vm: &Vm, paths: &[(&str, String)]) -> Result<()> {
    let calls: Vec<_> = paths.iter().map(|(name, path)| format!("one {name} {path} &")).collect();
    let calls = calls.join(" ");
    let script = format!(
        "one() {{ has=$(dd if=$2 bs=1M count=2 skip=1 iflag=direct 2>/run/dd-$1 | md5sum); \
         own=$(yes $1 | head -c 2097152 | md5sum); \
         if [ \"$has\" = \"$own\" ]; then echo $1; else \
         echo \"$1 begins with: $(dd if=$2 bs=4k count=1 skip=256 iflag=direct 2>&1 | head -c 64 | tr -c '[:print:]' ' ')\"; fi; }}; \
         {calls} wait"
    );
    let out = vm.sh(&script)?.ok()?;
    let mut seen: Vec<&str> = out.stdout.lines().collect();
    seen.sort_unstable();
    let wanted: Vec<&str> = paths.iter().map(|(name, _)| *name).collect();
    check(seen == wanted, || format!("patterns on {}: {seen:?}, not {wanted:?}", vm.name()))
}

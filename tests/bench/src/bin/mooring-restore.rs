//! Makes many exports at once, and measures the time: by bare system calls (the floor), by the
//! agent after its start, or by any other program. Also removes everything again.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use mooring_bench::floor::{Call, Export};
use mooring_bench::spec::volume;
use mooring_model::{ExportIdentity, IqnPrefix};
use serde_json::json;

const EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// Time limit for everything.
const PATIENCE: Duration = Duration::from_mins(10);

/// Makes many exports at once
#[derive(Debug, Parser)]
struct Args {
    /// LIO's folder
    #[arg(long, default_value = "/sys/kernel/config/target")]
    root: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the input of `dmsetup create --concise` for the LVs of the benchmark's volumes, and
    /// link their names
    Devices {
        /// Number of volumes, from number 0
        #[arg(long)]
        volumes: u32,
        /// The volume group
        #[arg(long)]
        group: String,
        /// The group's uuid, as LVM prints it
        #[arg(long)]
        uuid: String,
        /// The group's disk
        #[arg(long)]
        disk: String,
        /// The first sector of its first extent
        #[arg(long)]
        start: u64,
    },
    /// Make exports by bare system calls
    Floor {
        /// Number of volumes, from number 0, whose LVs are exported
        #[arg(long)]
        volumes: u32,
        /// The volume group
        #[arg(long)]
        group: String,
        /// Number of hosts of each
        #[arg(long)]
        hosts: usize,
        /// Number of threads
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Use short grace periods
        #[arg(long)]
        expedited: bool,
        /// Also write what rtslib needs for a save
        #[arg(long)]
        udev_path: bool,
    },
    /// Start the agent, and wait until it serves its exports; it keeps running
    Agent {
        /// The program
        #[arg(long)]
        program: PathBuf,
        /// The agent's log
        #[arg(long)]
        log: PathBuf,
        /// Number of volumes whose exports are served, from number 0
        #[arg(long)]
        volumes: u32,
    },
    /// Run a program to its end
    Run {
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Remove every export
    Clear,
}

/// A device's name in device-mapper: it doubles the dashes of LVM's names.
fn mapper(group: &str, number: u32) -> String {
    format!("{group}-mooring--{}", volume(number).to_string().replace('-', "--"))
}

fn device(group: &str, number: u32) -> PathBuf {
    format!("/dev/{group}/mooring-{}", volume(number)).into()
}

fn devices(volumes: u32, group: &str, uuid: &str, disk: &str, start: u64) -> Result<()> {
    fs::create_dir_all(format!("/dev/{group}"))?;
    let uuid = uuid.replace('-', "");
    let mut specs = Vec::new();
    for number in 0..volumes {
        let (name, at) = (mapper(group, number), start + u64::from(number) * 8192);
        specs.push(format!(
            "{name},LVM-{uuid}MooringBenchmarkVolume0000{number:06},,rw,0 8192 linear {disk} {at}"
        ));
        let link = device(group, number);
        if link.symlink_metadata().is_err() {
            symlink(format!("/dev/mapper/{name}"), &link).with_context(|| link.display().to_string())?;
        }
    }
    println!("{}", specs.join(";"));
    Ok(())
}

/// Shortens grace periods while this lives.
struct Expedited(bool);

impl Expedited {
    fn new(on: bool) -> Result<Self> {
        if on {
            fs::write(EXPEDITED, "1").context(EXPEDITED)?;
        }
        Ok(Self(on))
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        if self.0
            && let Err(error) = fs::write(EXPEDITED, "0")
        {
            eprintln!("mooring-restore: {EXPEDITED}: {error}");
        }
    }
}

/// Runs all jobs, this many at the same time.
fn in_parallel<T: Send>(
    jobs: impl Iterator<Item = T>,
    threads: usize,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let queue = Mutex::new(jobs.collect::<VecDeque<_>>());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        let worker = || {
            while let Some(job) = next() {
                work(job)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        // The scope waits for the remaining threads.
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })
}

fn floor(root: &Path, what: &What) -> Result<Duration> {
    let What::Floor { volumes, group, hosts, threads, expedited, udev_path } = what else {
        bail!("not the floor")
    };
    for hba in 0..(*volumes).min(256) {
        drop(fs::create_dir(root.join(format!("core/iblock_{}", 3000 + hba))));
    }
    drop(fs::create_dir(root.join("iscsi")));
    let exports: Vec<_> = (0..*volumes)
        .map(|number| {
            let export = Export::new(root, usize::try_from(number).unwrap_or_default(), "10.10.0.10:3260");
            let device = device(group, number);
            let mut calls = export.first(&device);
            if *udev_path {
                let path = export.backstore.join("udev_path");
                calls.insert(1, Call::Write(path, device.display().to_string()));
            }
            // The portal group's `enable` stays the last call.
            let enable = calls.pop();
            calls.extend((1..*hosts).flat_map(|host| export.further(host)));
            calls.extend(enable);
            calls
        })
        .collect();
    let began = Instant::now();
    let expedited = Expedited::new(*expedited)?;
    in_parallel(exports.into_iter(), *threads, |calls| {
        for call in calls {
            call.make().with_context(|| call.object().display().to_string())?;
        }
        Ok(())
    })?;
    drop(expedited);
    Ok(began.elapsed())
}

/// Waits until the agent logs that its bulk work is done. It is left alone meanwhile, because every
/// look at the kernel's tree takes time from it. `None`: it logs nothing for few exports.
fn await_word(log: &Path, volumes: u32) -> Result<Option<Instant>> {
    const SAID_OF: u32 = 16;
    if volumes < SAID_OF {
        return Ok(None);
    }
    let until = Instant::now() + PATIENCE;
    let mut seen = 0;
    loop {
        ensure!(Instant::now() < until, "{}: no word of exports that were made", log.display());
        let length = fs::metadata(log)?.len();
        if length != seen && fs::read_to_string(log)?.contains("exports were made") {
            return Ok(Some(Instant::now()));
        }
        seen = length;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns `true` if the portal group of an export answers logins, which is the last step of each.
fn is_served(root: &Path, number: u32) -> bool {
    let names = ExportIdentity::Derived.names(volume(number), &IqnPrefix::default());
    let enable = root.join(format!("iscsi/{}/tpgt_1/enable", names.iqn));
    fs::read_to_string(&enable).is_ok_and(|text| text.trim() == "1")
}

fn await_exports(root: &Path, volumes: u32) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    for number in 0..volumes {
        while !is_served(root, number) {
            ensure!(Instant::now() < until, "volume {number} is not served");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// Starts the agent and measures until its word. Every portal group must then answer; they are
/// looked at afterwards, because a look takes the agent's processor. If it logs nothing, the time
/// is that of the last answer.
fn agent(root: &Path, program: &Path, log: &Path, volumes: u32) -> Result<(Duration, u32)> {
    let stderr = fs::File::create(log)?;
    let began = Instant::now();
    let child = Command::new(program).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn()?;
    if let Some(said) = await_word(log, volumes)? {
        for number in 0..volumes {
            ensure!(
                is_served(root, number),
                "volume {number} is not served, and the agent has said that it is"
            );
        }
        return Ok((said.duration_since(began), child.id()));
    }
    await_exports(root, volumes)?;
    Ok((began.elapsed(), child.id()))
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn unlink_all(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            fs::remove_file(entry.path()).with_context(|| entry.path().display().to_string())?;
        }
    }
    Ok(())
}

fn rmdir(path: &Path) -> Result<()> {
    fs::remove_dir(path).with_context(|| path.display().to_string())
}

fn clear_target(target: &Path) -> Result<()> {
    for tpg in folders(target).iter().filter(|path| path.to_string_lossy().contains("/tpgt_")) {
        fs::write(tpg.join("enable"), "0")?;
        for acl in folders(&tpg.join("acls")) {
            for lun in folders(&acl).iter().filter(|path| path.to_string_lossy().contains("/lun_")) {
                unlink_all(lun)?;
                rmdir(lun)?;
            }
            rmdir(&acl)?;
        }
        for lun in folders(&tpg.join("lun")) {
            unlink_all(&lun)?;
            rmdir(&lun)?;
        }
        for portal in folders(&tpg.join("np")) {
            rmdir(&portal)?;
        }
        rmdir(tpg)?;
    }
    rmdir(target)
}

fn clear(root: &Path) -> Result<()> {
    let _expedited = Expedited::new(true)?;
    let targets = folders(&root.join("iscsi"));
    let targets = targets.into_iter().filter(|path| path.to_string_lossy().contains("/iqn."));
    in_parallel(targets, 8, |target| clear_target(&target))?;
    let hbas =
        folders(&root.join("core")).into_iter().filter(|path| path.to_string_lossy().contains("/iblock_"));
    in_parallel(hbas, 8, |hba| {
        for backstore in folders(&hba) {
            rmdir(&backstore)?;
        }
        rmdir(&hba)
    })
}

fn run(args: &Args) -> Result<()> {
    let ms = |took: Duration| u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let answer = match &args.what {
        What::Devices { volumes, group, uuid, disk, start } => {
            return devices(*volumes, group, uuid, disk, *start);
        }
        floor @ What::Floor { .. } => json!({ "ms": ms(self::floor(&args.root, floor)?) }),
        What::Agent { program, log, volumes } => {
            let (took, pid) = agent(&args.root, program, log, *volumes)?;
            json!({ "ms": ms(took), "pid": pid })
        }
        What::Run { command } => {
            let (program, arguments) = command.split_first().context("a program")?;
            let began = Instant::now();
            let output = Command::new(program).args(arguments).output().with_context(|| program.clone())?;
            let took = began.elapsed();
            ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            json!({ "ms": ms(took) })
        }
        What::Clear => {
            clear(&args.root)?;
            json!({})
        }
    };
    println!("{answer}");
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-restore: {error:#}");
            ExitCode::FAILURE
        }
    }
}

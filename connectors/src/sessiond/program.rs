//! Program of the daemon: its arguments, its log and its sockets. Both binaries are this and
//! nothing else; the one with the feature `faults` can be told where to die.
//!
//! What must never happen here: a log line that a session waits for (the log may go to a disk
//! behind one of our sessions: when nobody takes lines, they are dropped and counted); a signal
//! that tears anything down.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use mooring_host::{
    IscsiOpenError, KernelDisks, KernelIscsi, KernelIscsiEvents, KernelTree, LockError, LockFile, PortId,
    SystemClock, Tree, TreePath, harden, iscsi_modules,
};
use mooring_systemd::{config, cores, notify};
use tracing_subscriber::EnvFilter;

use super::identity::FreshInquiry;
use super::journal::Journal;
use super::steps::Steps;
use super::{Config, Daemon, FOLDER, Machine, Pulse, STACK_BYTES};

/// Keeps this host's iSCSI sessions
///
/// Runs as root, normally under systemd (mooring-sessiond.service). mooring-agent tells it which
/// sessions to keep. It logs in, recovers lost sessions, and takes over existing ones when it
/// starts. Stopping or killing it drops no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-sessiond",
    version,
    after_help = "Example:\n  mooring-sessiond --run-dir /run/mooring\n\nWhat it does:  journalctl -u mooring-sessiond"
)]
struct Args {
    /// Run folder; the socket, the lock and the journal are in its folder "sessiond"
    #[arg(long, default_value = "/run/mooring")]
    run_dir: PathBuf,
    /// Log filter, such as "info" or "mooring_connectors=debug"
    #[arg(long, default_value = "info", env = "MOORING_SESSIOND_LOG")]
    log: String,
    /// Check that the daemon could start on this machine, and do nothing else
    #[arg(long)]
    check: bool,
    /// List the fault points, with their numbers for MOORING_SESSIOND_CRASH_AT
    #[cfg(feature = "faults")]
    #[arg(long)]
    print_steps: bool,
}

/// Returns the command line as clap reads it, for the man page.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the daemon by its arguments. Returns when it could not start, or only had to print
/// something.
pub fn main() -> ExitCode {
    if let Err(warning) = cores::leave_none() {
        eprintln!("mooring-sessiond: {warning}");
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-sessiond: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    #[cfg(feature = "faults")]
    if args.print_steps {
        for (index, point) in super::steps::FaultPoint::all().enumerate() {
            println!("{} {point}", index + 1);
        }
        return Ok(());
    }
    let filter =
        config::log_filter(&args.log, "mooring_connectors").map_err(anyhow::Error::msg).context("--log")?;
    if args.check {
        check(&args.run_dir)?;
        println!("ok");
        return Ok(());
    }
    // Before any thread: memory that threads map later is locked as well.
    let unprotected = harden();
    start_log(filter)?;
    for warning in unprotected {
        tracing::warn!(%warning, "not protected against a shortage of memory");
    }
    let daemon = start(args)?;
    notify::ready();
    tracing::info!(run_dir = %args.run_dir.display(), pid = std::process::id(), "ready");
    daemon.run()
}

fn start(args: &Args) -> Result<Daemon> {
    let mut config = Config::new(&args.run_dir, boot_id()?);
    config.alias = host_name();
    config.alive = Box::new(watched());
    config.steps = steps()?;
    // Before the sockets: for a second daemon the lock has the first one's pid.
    let folder = args.run_dir.join(FOLDER);
    Journal::open(&folder, Steps::silent())?;
    let early = only_one(&folder)?;
    // Subscribed before any look, so that no event falls in between.
    let events = KernelIscsiEvents::open().context("listen to the kernel's iSCSI events")?;
    let kernel = KernelIscsi::open(PortId::Kernel).map_err(named(&args.run_dir))?;
    let sys = Arc::new(KernelTree::new("/sys"));
    let machine = Machine {
        kernel: Arc::new(kernel),
        sys: sys.clone(),
        identity: Arc::new(FreshInquiry::new(sys, Arc::new(KernelDisks))),
        clock: Arc::new(SystemClock),
    };
    // The daemon takes the lock itself; the netlink port, which only one process can have, covers
    // the moment between.
    drop(early);
    Ok(Daemon::start(config, machine, Box::new(events))?)
}

fn only_one(folder: &Path) -> Result<LockFile> {
    match LockFile::acquire(folder.join("lock")) {
        Ok(lock) => Ok(lock),
        Err(LockError::Held { pid, .. }) => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            anyhow::bail!(
                "another mooring-sessiond{pid} works on {}: there can be only one",
                folder.display()
            )
        }
        Err(error) => Err(error).context("see whether another mooring-sessiond works here"),
    }
}

/// Adds a hint on the owner of the netlink port to an error.
fn named(run_dir: &Path) -> impl FnOnce(IscsiOpenError) -> anyhow::Error {
    let run_dir = run_dir.display().to_string();
    move |error| {
        let taken = error == IscsiOpenError::PortTaken;
        let error = anyhow::Error::new(error);
        if taken {
            return error.context(format!(
                "another mooring-sessiond works on this machine, on another folder than {run_dir}: there can be only one"
            ));
        }
        error.context("reach the kernel's iSCSI initiator")
    }
}

#[cfg(feature = "faults")]
fn steps() -> Result<Steps> {
    Steps::from_environment().map_err(anyhow::Error::msg)
}

#[cfg(not(feature = "faults"))]
#[allow(clippy::unnecessary_wraps, reason = "with the feature `faults` it can fail")]
fn steps() -> Result<Steps> {
    Ok(Steps::silent())
}

/// Checks everything that would keep the daemon from starting.
fn check(run_dir: &Path) -> Result<()> {
    boot_id()?;
    if let Some(module) = iscsi_modules().missing() {
        anyhow::bail!("the kernel module {module} is not loaded: modprobe {module}");
    }
    KernelIscsiEvents::open().context("listen to the kernel's iSCSI events")?;
    let folder = run_dir.join(FOLDER);
    if folder.is_dir() {
        only_one(&folder)?;
        KernelIscsi::open(PortId::Kernel).map_err(named(run_dir))?;
    }
    Ok(())
}

/// Reads the id of this boot.
fn boot_id() -> Result<String> {
    let text = KernelTree::new("/proc").read_text(&TreePath::new("sys/kernel/random/boot_id"))?;
    Ok(text.trim().to_owned())
}

/// Reads this host's name, for people who look at a target. `None` if it has none.
fn host_name() -> Option<String> {
    let name = KernelTree::new("/proc").read_text(&TreePath::new("sys/kernel/hostname")).ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Feeds systemd's watchdog and its status line.
fn watched() -> impl Fn(Pulse) {
    let told = std::sync::Mutex::new(None);
    move |pulse| {
        notify::alive();
        let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *told != Some(pulse) {
            *told = Some(pulse);
            let plural = if pulse.sessions == 1 { "" } else { "s" };
            notify::status(&format!("{} session{plural}, {} logged in", pulse.sessions, pulse.logged_in));
        }
    }
}

/// Maximum number of lines that wait for the log's thread.
const LINES_MAX: usize = 4096;

/// Hands lines to a thread that writes them, and never waits for it.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(line.to_vec()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start_log(filter: EnvFilter) -> Result<()> {
    let (queue, lines) = sync_channel(LINES_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let writer = Lines { queue, dropped: dropped.clone() };
    std::thread::Builder::new()
        .name("log".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || write_lines(&lines, &dropped))
        .context("start the log's thread")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    Ok(())
}

fn write_lines(lines: &Receiver<Vec<u8>>, dropped: &AtomicU64) {
    let mut out = io::stderr();
    while let Ok(line) = lines.recv() {
        // If nobody reads the log, the daemon goes on.
        let _ = out.write_all(&line);
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            n => {
                let _ =
                    writeln!(out, "{n} lines of the log were dropped: they came faster than they were taken");
            }
        }
    }
}

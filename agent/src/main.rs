//! `mooring-agent`: the per-host daemon.
//!
//! Stop is not detach: nothing is torn down when this process ends, however it ends.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use mooring_agent::adopt::{self, Only, What};
use mooring_agent::args::{Args, Command, JoinArgs};
use mooring_agent::config::{Config, HostRole};
use mooring_agent::engine::Engine;
use mooring_agent::join::{self, Ground};
use mooring_agent::lvm;
use mooring_agent::machine::Machine;
use mooring_agent::rpc::listen;
use mooring_agent::run::{self, HostParts};
use mooring_connectors::release::{self, RELEASE_WITHIN, ThisMachine};
use mooring_connectors::{Arrivals, Fabric, Parts, RunLinks, Sessiond, Ways};
use mooring_host::{HostCommands, KernelDisks, KernelUevents, Uevents, local_addresses};
use mooring_systemd::{cores, notify, paths, sealing};

/// Allocator, as in the controller: a change is many small pieces of memory that one thread
/// allocates and another frees.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

pub(crate) fn main() -> ExitCode {
    if let Err(warning) = cores::leave_none() {
        eprintln!("mooring-agent: {warning}");
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the kernel give memory in small pages.
///
/// Where the kernel gives huge ones unasked (Debian's does), each of the allocator's regions takes
/// 2 MiB with its first byte: on a small node half of the agent's memory, and the start has to
/// clear it.
fn want_small_pages() -> nix::Result<()> {
    nix::sys::prctl::set_thp_disable(true)
}

fn run(args: &Args) -> Result<()> {
    // Called before anything is allocated in numbers.
    let small_pages = want_small_pages();
    if let Some(Command::Join(asked)) = &args.command {
        return join_controller(asked, &args.config);
    }
    if let Some(Command::ReleaseMounts) = &args.command {
        return release_mounts(&args.config);
    }
    let config = Config::load(&args.config)?;
    if args.check {
        let groups = lvm::check_groups(&HostCommands, &config.groups);
        for warning in listen::check_tls(&config)?.iter().chain(&groups) {
            eprintln!("mooring-agent: {warning}");
        }
        config.sealing_keys().check()?;
        println!("{}: ok", args.config.display());
        return Ok(());
    }
    if let Some(Command::RotateSealingKey) = &args.command {
        println!("{}", sealing::rotate(&config.sealing_keys())?.told("mooring-agent"));
        return Ok(());
    }
    if let Some(Command::Adopt(adopt)) = &args.command {
        let machine = Machine::real(&config.configfs);
        let what = if adopt.apply { What::Apply } else { What::Plan };
        let only: Vec<_> = adopt.only.iter().cloned().map(Only).collect();
        return adopt::run(&machine, &config, what, &only, adopt.json, &mut std::io::stdout().lock());
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_new(&config.log).context("`log` in the configuration")?,
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    if let Err(error) = small_pages {
        tracing::debug!(%error, "the kernel does not take that memory is wanted in small pages");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(config))?;
    // Threads that are lost in a kernel call are not waited for.
    runtime.shutdown_background();
    Ok(())
}

fn join_controller(args: &JoinArgs, config: &Path) -> Result<()> {
    let addresses = local_addresses().context("list the addresses of this host")?;
    let terminal = std::io::stdin().is_terminal();
    let mut input = std::io::stdin().lock();
    let ground = Ground {
        commands: &HostCommands,
        addresses,
        terminal: if terminal { Some(&mut input) } else { None },
        out: &mut std::io::stdout().lock(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("start the runtime")?.block_on(join::join(args, config, ground))?;
    Ok(())
}

/// Releases every attached disk. An unreadable configuration keeps no disk mounted.
fn release_mounts(config: &Path) -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).without_time().init();
    let run_dir = Config::load(config).map_or_else(
        |error| {
            tracing::warn!(%error, "the usual run folder is taken");
            PathBuf::from(paths::RUNTIME_DIR)
        },
        |config| config.run_dir,
    );
    let door: Arc<dyn release::Door> = Arc::new(ThisMachine::new(run_dir));
    let went = release::release(&door, RELEASE_WITHIN).map_err(anyhow::Error::msg)?;
    let left: Vec<_> = release::left(&went).iter().map(|device| device.display().to_string()).collect();
    if !left.is_empty() {
        anyhow::bail!("not released: {}", left.join(", "));
    }
    tracing::info!(disks = went.len(), "nothing of an attached disk is in use");
    Ok(())
}

async fn serve(config: Config) -> Result<()> {
    let machine = Machine::real(&config.configfs);
    let host = config
        .host
        .as_ref()
        .map(|role| HostParts { parts: parts(&config, role, &machine), uevents: Box::new(uevents) });
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let ready = |engine: &Engine| {
        notify::ready();
        tracing::info!(agent = %engine.agent_id(), "ready");
        notify::on_stop(stop).context("wait for SIGTERM and SIGINT")?;
        drop(notify::spawn_watchdog());
        Ok(())
    };
    run::run(config, machine, host, ready, stopped).await?;
    tracing::info!("stopped; exports stay as they are, and so do connections");
    Ok(())
}

/// Returns what makes connections on this machine.
fn parts(config: &Config, role: &HostRole, machine: &Machine) -> Parts {
    let software = concat!("mooring-agent ", env!("CARGO_PKG_VERSION"));
    let fabric = Fabric::new(machine.sys.clone(), config.state_dir.join("fabric"));
    Parts {
        sys: machine.sys.clone(),
        disks: Arc::new(KernelDisks),
        links: Arc::new(RunLinks::new(&config.run_dir, "/dev").telling_udev("/sys")),
        sessions: Arc::new(Ways::new(Arc::new(Sessiond::new(&config.run_dir, software)), fabric)),
        arrivals: Arrivals::default(),
        dev: PathBuf::from("/dev"),
        recovery_timeout_s: role.recovery_timeout_seconds,
    }
}

/// Opens the stream of uevents. `None` if it cannot be opened: then disks are searched each second.
fn uevents() -> Option<Box<dyn Uevents>> {
    match KernelUevents::open() {
        Ok(uevents) => Some(Box::new(uevents)),
        Err(error) => {
            tracing::warn!(%error, "cannot listen to uevents: disks are found by looking");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopt_wants_a_plan_or_to_apply_and_takes_the_rest_with_either() {
        let parse = |words: &str| Args::try_parse_from(words.split(' '));
        for words in [
            "mooring-agent adopt --plan",
            "mooring-agent adopt --plan --json --only a --only b --config /x",
            "mooring-agent --config /x adopt --apply --only vg0/a --json",
        ] {
            assert!(parse(words).is_ok(), "{words}");
        }
        for words in
            ["mooring-agent adopt", "mooring-agent adopt --json", "mooring-agent adopt --plan --apply"]
        {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}

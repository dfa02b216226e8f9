//! `mooring-fleet-agent`: the real agent on a fake host, as a process of its own, for measurements
//! and for being killed.
//!
//! The kernel is in this process, so a kill is a power failure of its machine. The state folder
//! survives, and with it the logical volumes: their list is written after every command that makes
//! or removes one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use mooring_agent::config::Config;
use mooring_agent::engine::Engine;
use mooring_agent::machine::Machine;
use mooring_agent::run;
use mooring_host::fake::{FakeLvm, FakeMachine};
use mooring_host::{Command, CommandError, CommandOutput, Commands, KernelTree, SystemClock};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

/// The real agent's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const GIB: u64 = 1 << 30;

/// Runs the agent on a fake kernel with an iSCSI target and LVM
#[derive(Debug, Parser)]
#[command(
    name = "mooring-fleet-agent",
    after_help = "Example:\n  mooring-fleet-agent --listen 127.0.0.1:9000 --state-dir /tmp/a1 --name a1 --pools vg0=1000"
)]
struct Args {
    /// Address for requests: unix:PATH or an address of loopback with a port
    #[arg(long)]
    listen: String,
    /// Folder for everything that outlives the process; made if it is missing
    #[arg(long)]
    state_dir: PathBuf,
    /// The host's name, for its log
    #[arg(long)]
    name: String,
    /// The volume groups and their sizes in GiB
    #[arg(long, value_delimiter = ',', required = true, value_name = "NAME=GIB", value_parser = pool)]
    pools: Vec<(String, u64)>,
    /// Number of foreign logical volumes of 4 MiB that already exist in the first pool
    #[arg(long, default_value_t = 0)]
    volumes_present: u32,
    /// The address of the agent's portal
    #[arg(long, default_value_t = Ipv4Addr::new(10, 0, 0, 1))]
    portal: Ipv4Addr,
    /// Log filter
    #[arg(long, default_value = "warn")]
    log: String,
}

fn pool(text: &str) -> Result<(String, u64), String> {
    let (name, gib) = text.split_once('=').ok_or("want NAME=GIB")?;
    Ok((name.to_owned(), gib.parse().map_err(|_| format!("{gib:?} is no number of GiB"))?))
}

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-fleet-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_new(&args.log).context("--log")?)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // Paths in the configuration are absolute.
    let folder = std::path::absolute(&args.state_dir)?;
    let config = config(args, &folder)?;
    let machine = machine(args, &folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(config, machine, args.name.clone()))?;
    runtime.shutdown_background();
    Ok(())
}

fn config(args: &Args, folder: &Path) -> Result<Config> {
    let listen = match args.listen.strip_prefix("unix:") {
        Some(_) => args.listen.clone(),
        None => format!("http://{}", args.listen),
    };
    let groups: String =
        args.pools.iter().flat_map(|(pool, _)| ["[[groups]]\nname = \"", pool, "\"\n"]).collect();
    let text = format!(
        "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nlisten = [\"{listen}\"]\ninsecure = true\n\
         portals = [\"{1}:3260\"]\n{groups}",
        folder.display(),
        args.portal
    );
    Ok(Config::parse(&text, "the command line")?)
}

async fn serve(config: Config, machine: Machine, name: String) -> Result<()> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let ready = |engine: &Engine| {
        tracing::info!(name, agent = %engine.agent_id(), "ready");
        let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
        tokio::spawn(async move {
            terminate.recv().await;
            // If serving has failed there is no receiver, and the process ends anyway.
            let _ = stop.send(true);
        });
        Ok(())
    };
    run::run(config, machine, None, ready, stopped).await
}

fn machine(args: &Args, folder: &Path) -> Result<Machine> {
    for module in ["target_core_mod", "target_core_iblock", "iscsi_target_mod"] {
        let path = folder.join("sys/module").join(module);
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    }
    let fake = FakeMachine::new();
    fake.set_addresses([args.portal.into()]);
    for (pool, gib) in &args.pools {
        fake.add_vg(pool, gib * GIB);
    }
    let lvm = KeptLvm { lvm: fake.lvm(), file: folder.join("volumes.json") };
    let first = &args.pools.first().ok_or_else(|| anyhow!("no pool"))?.0;
    if !lvm.restore()? {
        for n in 0..args.volumes_present {
            let made = fake.lvm().add_volume(first, &format!("present-{n}"), 4 << 20, &[]);
            anyhow::ensure!(made, "{first} has no room for {} volumes", args.volumes_present);
        }
        lvm.keep()?;
    }
    let portal = args.portal;
    Ok(Machine {
        target: Arc::new(fake.lio()),
        folders: None,
        callers: None,
        sys: Arc::new(KernelTree::new(folder.join("sys"))),
        commands: Arc::new(lvm),
        blocks: Arc::new(fake.blocks()),
        images: Arc::new(fake.images()),
        pr: Arc::new(fake.clone()),
        clock: Arc::new(SystemClock),
        addresses_changed: Arc::default(),
        bus: None,
        addresses: Arc::new(move || vec![IpAddr::from(portal).into()]),
        root: folder.join("root"),
    })
}

/// LVM whose volumes survive a restart of the process.
struct KeptLvm {
    lvm: FakeLvm,
    file: PathBuf,
}

impl KeptLvm {
    /// Writes the list of logical volumes, as `lvs` prints it.
    fn keep(&self) -> Result<()> {
        let args = [
            "lvs",
            "--reportformat",
            "json",
            "--units",
            "b",
            "--nosuffix",
            "-o",
            "vg_name,lv_name,lv_size,lv_tags",
        ];
        let command = Command {
            program: "/sbin/lvm",
            args: args.map(str::to_owned).to_vec(),
            timeout: std::time::Duration::from_secs(5),
        };
        let listed = self.lvm.run(&command)?;
        let partial = self.file.with_extension("new");
        std::fs::write(&partial, &listed.stdout)
            .and_then(|()| std::fs::rename(&partial, &self.file))
            .with_context(|| format!("write {}", self.file.display()))
    }

    /// Makes the logical volumes of the list; `false`: none was ever written.
    fn restore(&self) -> Result<bool> {
        let text = match std::fs::read(&self.file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            read => read.with_context(|| format!("read {}", self.file.display()))?,
        };
        let report: Value = serde_json::from_slice(&text).context("understand the kept volumes")?;
        for volume in report["report"][0]["lv"].as_array().into_iter().flatten() {
            let fields: BTreeMap<_, _> =
                volume.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect();
            let text = |key: &str| fields.get(key).and_then(|value| value.as_str()).unwrap_or_default();
            let tags: Vec<_> = text("lv_tags").split(',').filter(|tag| !tag.is_empty()).collect();
            let bytes = text("lv_size").parse().context("understand the size of a kept volume")?;
            let made = self.lvm.add_volume(text("vg_name"), text("lv_name"), bytes, &tags);
            anyhow::ensure!(made, "the kept volume {} does not fit in its pool", text("lv_name"));
        }
        Ok(true)
    }
}

impl Commands for KeptLvm {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let output = self.lvm.run(command)?;
        let looks = matches!(command.args.first().map(String::as_str), Some("vgs" | "lvs"));
        if !looks && let Err(error) = self.keep() {
            tracing::error!("the volumes are not kept: {error:#}");
        }
        Ok(output)
    }
}

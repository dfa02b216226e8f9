//! `cargo xtask bench api`: real programs on loopback, a client that measures them, and the bars
//! beside the results (docs/benchmarks.md explains them).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use mooring_api_bench::conditions;
use mooring_api_bench::cost;
use mooring_api_bench::fill::fill;
use mooring_api_bench::plane::{self, Control, Process, Programs};
use mooring_api_bench::postgres::Server;
use mooring_api_bench::table::{Measured, verdict};
use mooring_api_bench::world::World;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Cycles per second with one client and with eight, on the embedded database.
const CYCLES_BAR: [(usize, f64); 2] = [(1, 450.0), (8, 900.0)];
/// Milliseconds for one volume, and for a page of a thousand, at the 99th percentile.
const SHOW_BAR_MS: f64 = 5.0;
const PAGE_BAR_MS: f64 = 50.0;
/// MiB of the controller's memory with the large world.
const MEMORY_BAR_MIB: u64 = 200;

/// A thousand agents are a thousand connections.
const FILES_WANTED: u64 = 65_536;

/// Measures the control plane: cycles of attachments, and reads of a large world
#[derive(Debug, Parser)]
struct Args {
    /// The folder of the programs
    #[arg(long)]
    programs: PathBuf,
    /// Folder of the databases, on the disk to be measured
    #[arg(long)]
    folder: PathBuf,
    /// Take few seconds and a small world: shows that it works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Only the parts whose names contain this: sqlite, postgresql, large
    #[arg(long, default_value = "")]
    only: String,
}

struct Plan {
    seconds: u64,
    counted: u64,
    world: World,
    shows: u32,
    pages: u32,
    settle: Duration,
}

impl Plan {
    fn of(args: &Args) -> Self {
        if args.quick {
            let world = World { volumes: 2_000, attachments: 5_000, agents: 20 };
            let settle = Duration::from_secs(3);
            return Self { seconds: 2, counted: 10, world, shows: 200, pages: 10, settle };
        }
        let world = World { volumes: 100_000, attachments: 250_000, agents: 1_000 };
        Self { seconds: 15, counted: 100, world, shows: 5_000, pages: 200, settle: Duration::from_secs(25) }
    }
}

/// Counts the syncs of processes while something runs. `None`: there is no strace.
fn count_syncs(
    pids: &[&Process],
    folder: &Path,
    run: impl FnOnce() -> Result<()>,
) -> Result<Option<Vec<u64>>> {
    let mut traces = Vec::new();
    for (number, process) in pids.iter().enumerate() {
        let out = folder.join(format!("syncs{number}"));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-c", "-e", "trace=fsync,fdatasync", "-o"]).arg(&out);
        strace.arg("-p").arg(process.pid().to_string()).stdout(Stdio::null());
        match Process::start("strace", &mut strace, &folder.join("strace.log")) {
            Ok(trace) => traces.push((trace, out)),
            Err(_) => return Ok(None),
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    run()?;
    let mut counts = Vec::new();
    for (trace, out) in traces {
        trace.end_with(nix::sys::signal::Signal::SIGINT)?;
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        let lines = text.lines().filter(|line| line.ends_with("fsync") || line.ends_with("fdatasync"));
        // % time, seconds, usecs/call, calls, [errors], syscall
        let calls = lines.filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
        counts.push(calls.sum());
    }
    Ok(Some(counts))
}

fn print_cycles(what: &str, measured: &Measured, bar: Option<f64>) {
    let rate = measured.rate();
    let bar = bar.map(|bar| format!(" (bar {bar:.0}: {})", verdict(rate >= bar))).unwrap_or_default();
    println!("{what}: {rate:.0} cycles/s{bar}");
    measured.print_figures();
    measured.print_spent();
}

async fn cycles(args: &Args, plan: &Plan, postgres: bool) -> Result<()> {
    let folder = tempfile::tempdir_in(&args.folder)?;
    let programs = Programs(args.programs.clone());
    let server = if postgres {
        // The server's user must be able to pass through the folder.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        match Server::start(folder.path())? {
            Ok(server) => Some(server),
            Err(why) => {
                println!("postgresql: not measured: {why}");
                return Ok(());
            }
        }
    } else {
        None
    };
    let name = if postgres { "postgresql" } else { "sqlite" };
    let (agent, entry) = plane::real_agent(&programs, folder.path())?;
    let database = server.as_ref().map(Server::config).transpose()?.unwrap_or_default();
    let control = Control::new(&programs, folder.path(), &database, &entry)?;
    match control.check()? {
        Err(why) if postgres && why.contains("database") => {
            println!("postgresql: not measured: this controller has no [database]");
            return Ok(());
        }
        Err(why) => bail!("the controller does not take the configuration: {why}"),
        Ok(()) => {}
    }
    let controller = control.start().await?;
    let volumes = control.volumes(8).await?;
    let mut watched = vec![&controller, &agent];
    watched.extend(server.as_ref().map(Server::process));
    for (clients, bar) in CYCLES_BAR {
        let measured = control.cycles(&watched, &volumes, clients, ("--seconds", plan.seconds))?;
        let bar = if postgres { None } else { Some(bar) };
        print_cycles(&format!("{name}, {clients} client(s), a volume each"), &measured, bar);
    }
    let measured = control.cycles(&watched, &volumes[..1], 8, ("--seconds", plan.seconds))?;
    print_cycles(&format!("{name}, 8 clients on one volume"), &measured, None);
    for (clients, _) in CYCLES_BAR {
        syncs(args, plan, &control, (&controller, &agent), server.as_ref(), (&volumes, clients))?;
    }
    if let Some(server) = &server {
        let (updates, in_place) = server.updates("attachments")?;
        println!("{name}: of {updates} updates of attachments, {in_place} changed no index (HOT)");
    }
    let (now, most) = cost::resident(controller.pid())?;
    println!("{name}: the controller's memory: {now} MiB, at most {most} MiB");
    controller.stop()?;
    agent.stop()?;
    server.map(Server::stop).transpose()?;
    Ok(())
}

/// Counts syncs per cycle, in runs of their own, because counting slows them.
#[allow(clippy::cast_precision_loss, reason = "some thousands of syncs")]
fn syncs(
    args: &Args,
    plan: &Plan,
    control: &Control,
    (controller, agent): (&Process, &Process),
    server: Option<&Server>,
    (volumes, clients): (&[String], usize),
) -> Result<()> {
    let mut cycles = 0;
    let before = server.map(Server::syncs).transpose()?;
    let run = || {
        cycles = control.cycles(&[], volumes, clients, ("--exactly", plan.counted))?.cycles;
        Ok(())
    };
    let Some(counts) = count_syncs(&[controller, agent], &args.folder, run)? else {
        println!("syncs per cycle: not counted, there is no strace");
        return Ok(());
    };
    let per = |count: u64| count as f64 / cycles.max(1) as f64;
    let [own, agents] = counts[..] else { bail!("two processes were counted, and {counts:?} came of it") };
    let database = match before.zip(server.map(Server::syncs).transpose()?) {
        Some((before, after)) => format!(", database {:.1}", per(after - before)),
        None => String::new(),
    };
    println!(
        "syncs per cycle, {clients} client(s): controller {:.1}, agent {:.1}{database} ({cycles} cycles)",
        per(own),
        per(agents)
    );
    Ok(())
}

async fn large(args: &Args, plan: &Plan) -> Result<()> {
    let folder = tempfile::tempdir_in(&args.folder)?;
    let programs = Programs(args.programs.clone());
    let (agents, entries) = plane::light_agents(&programs, folder.path(), &plan.world)?;
    // Start once without agents, to make the schema.
    let control = Control::new(&programs, folder.path(), "", "")?;
    control.start().await?.stop()?;
    let began = Instant::now();
    fill(&control.state_dir().join("mooring-controller.db"), &plan.world)?;
    let World { volumes, attachments, agents: count } = plan.world;
    println!(
        "large: {volumes} volumes, {attachments} attachments, {count} light agents, filled in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let control = Control::new(&programs, folder.path(), "", &entries)?;
    let began = Instant::now();
    let controller = control.start().await?;
    until_up(&control, count).await?;
    println!("large: all agents are up {:.1} s after the start", began.elapsed().as_secs_f64());
    std::thread::sleep(plan.settle);
    let measured = control.reads(&[&controller, &agents], &plan.world, plan.shows, plan.pages)?;
    println!("large, reads while each agent reports every 10 s, one client:");
    measured.print_figures();
    measured.print_spent();
    for (name, bar) in [
        ("GET /volumes/{id}", SHOW_BAR_MS),
        ("GET /volumes, 1000", PAGE_BAR_MS),
        ("GET /volumes/detail, 1000", PAGE_BAR_MS),
    ] {
        let p99 = measured.p99_ms(name).context("a kind of request was not measured")?;
        println!("  {name}: p99 {p99:.1} ms (bar {bar:.0} ms: {})", verdict(p99 < bar));
    }
    let (now, most) = cost::resident(controller.pid())?;
    let met = verdict(now < MEMORY_BAR_MIB);
    println!(
        "large: the controller's memory: {now} MiB (bar {MEMORY_BAR_MIB} MiB: {met}), at most {most} MiB"
    );
    controller.stop()
}

async fn until_up(control: &Control, agents: u32) -> Result<()> {
    let limit = Instant::now() + Duration::from_mins(3);
    let mut client = mooring_api_bench::client::Client::connect(control.target()).await?;
    loop {
        let seen = client.ask(hyper::Method::GET, "/os-hosts", None).await?.expect(200)?;
        let hosts = seen["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let up = hosts.iter().filter(|host| host["service-status"] == "available").count();
        if up >= agents as usize {
            return Ok(());
        }
        if Instant::now() >= limit {
            bail!("{up} of {agents} agents are up");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn run(args: Args) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, FILES_WANTED.min(most), most).context("allow many open files")?;
    std::fs::create_dir_all(&args.folder).with_context(|| format!("make {}", args.folder.display()))?;
    let plan = Plan::of(&args);
    conditions::print(&args.folder)?;
    if "sqlite".contains(&args.only) {
        cycles(&args, &plan, false).await?;
    }
    if "postgresql".contains(&args.only) {
        cycles(&args, &plan, true).await?;
    }
    if "large".contains(&args.only) {
        large(&args, &plan).await?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let args = Args::parse();
    let ready = plane::end_with_signals().and_then(|()| Ok(runtime?));
    match ready.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-api-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

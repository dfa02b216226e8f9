//! `mooring-controller`: the control plane.
//!
//! Stop is not detach: agents keep what they have, and another start goes on with everything that was going on.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use mooring_controller::auth::{Auth, Keystone, NewToken, Tokens, project_ok};
use mooring_controller::clock::Clock;
use mooring_controller::config::{Asked, Callers, Config, PATH_DEFAULT};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::metrics::Metrics;
use mooring_controller::policy::Policies;
use mooring_controller::rebuild::{self, How};
use mooring_controller::service::{Database, Dial, HOLD_DEFAULT, Service, ServiceOptions};
use mooring_systemd::{cores, notify};

/// A request is some thousands of small pieces of memory that one thread takes and another gives back: with glibc's that is a
/// sixth of the processor time, and what a burst has taken stays taken.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The control plane: volumes, types and attachments as users see them, over the Block Storage API v3
///
/// Normally under systemd (mooring-controller.service), as a user of its own. It dials the agents that its configuration
/// enrols and makes them serve, attach and detach volumes. Stopping or killing it drops no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-controller",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  mooring-controller --config /etc/mooring/controller.toml\n  mooring-controller token --name ci --project 0123456789abcdef0123456789abcdef\n  mooring-controller rebuild --from-agents --dry-run\n\nTalk to it:  mooring host list"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the same as no command)
    Run(RunArgs),
    /// Make a token: print it once, and the block for the token file
    Token(TokenArgs),
    /// After a total loss: fill an empty database with what the agents keep
    ///
    /// The database is lost, and there is no backup. The agents go on as they are; each keeps what it was told, and beside it
    /// what a controller needs. This asks every agent of the configuration and writes what they keep to an EMPTY database. No
    /// session is cut, no grant is lost, and none is made. No controller may run meanwhile. With a backup, however old, restore
    /// that and start with --restored: it knows more.
    Rebuild(RebuildArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    config: PathBuf,
    /// Read and check the configuration, the token file, the policies, certificates and keys, say what is wrong, and do
    /// nothing else
    #[arg(long)]
    check: bool,
    /// Ask nobody who they are: everybody is an admin. Refused unless every listener is loopback
    #[arg(long)]
    no_auth: bool,
    /// With --no-auth: also where listeners are not loopback. Everybody who reaches them is an admin
    #[arg(long, requires = "no_auth")]
    no_auth_on_networks: bool,
    /// The database was restored from a backup: what it wishes is held until it agrees with the agents or is confirmed
    #[arg(long)]
    restored: bool,
}

#[derive(Debug, Args)]
struct TokenArgs {
    /// Whose token it is; unique in the token file
    #[arg(long)]
    name: String,
    /// The project that it acts for: letters, digits, - and _ (usually 32 hexadecimal digits)
    #[arg(long)]
    project: String,
    /// The user that volumes are recorded under [default: the name]
    #[arg(long)]
    user: Option<String>,
    /// What it may be, by the policies; may be given several times [default: member]
    #[arg(long)]
    role: Vec<String>,
    /// The same as --role admin: may see and change everything
    #[arg(long)]
    admin: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller rebuild --from-agents --dry-run\n  mooring-controller rebuild --from-agents --without storage7\n\nRun it as the controller's user:  sudo -u mooring-controller mooring-controller rebuild --from-agents"
)]
struct RebuildArgs {
    /// From what the agents keep: the only source there is
    #[arg(long, required = true)]
    from_agents: bool,
    /// The configuration file: its agents are asked, its database is filled
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    config: PathBuf,
    /// Do not ask this agent, which is gone for good: what it keeps is left out. May be given several times
    #[arg(long, value_name = "AGENT")]
    without: Vec<String>,
    /// Say what would be done, write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Threads of the runtime at most.
const WORKERS_MAX: usize = 8;

fn main() -> ExitCode {
    if let Err(warning) = cores::leave_none() {
        eprintln!("mooring-controller: {warning}");
    }
    let cli = Cli::parse();
    let done = match cli.command {
        None => run(&cli.run),
        Some(Command::Run(args)) => run(&args),
        Some(Command::Token(args)) => token(&args),
        Some(Command::Rebuild(args)) => rebuild(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn token(args: &TokenArgs) -> Result<()> {
    if args.name.trim().is_empty() {
        bail!("--name: want a text that says whose token it is");
    }
    if !project_ok(&args.project) {
        bail!("--project: {:?} is no project: want 1 to 64 letters, digits, - and _", args.project);
    }
    let mut roles: Vec<_> = args.role.iter().map(String::as_str).collect();
    if args.admin {
        roles.push("admin");
    }
    if roles.is_empty() {
        roles.push("member");
    }
    let new =
        NewToken::make(&args.name, &args.project, args.user.as_deref(), &roles).context("make a token")?;
    println!("# The token, shown this once: give it to its user.\n# {}\n", new.token);
    println!("# For the token file:\n{}", new.block);
    Ok(())
}

fn run(args: &RunArgs) -> Result<()> {
    let asked = match (args.no_auth, args.no_auth_on_networks) {
        (false, _) => Asked::Everybody,
        (true, false) => Asked::NobodyOnLoopback,
        (true, true) => Asked::Nobody,
    };
    let config = Config::load(&args.config, asked)?;
    let auth = match &config.callers {
        Callers::Tokens(path) => Auth::Tokens(Tokens::load(path)?),
        Callers::Keystone(options) => Auth::Keystone(Keystone::open(options)?),
        Callers::Anybody => Auth::NoAuth,
        Callers::AnybodyAnywhere => Auth::NoAuthAnywhere,
    };
    let policies = Arc::new(Policies::load(config.policies.as_deref(), config.enforce_new_defaults)?);
    if args.check {
        for warning in config.check_tls()? {
            eprintln!("mooring-controller: {warning}");
        }
        println!("{}: ok", args.config.display());
        return Ok(());
    }
    let runtime = prepare(&config)?;
    runtime.block_on(serve(config, auth, policies, args.restored))?;
    runtime.shutdown_background();
    Ok(())
}

/// Half of the processors, since the other half is busy with what the threads of the database do: a task that wakes another one
/// finds it on its own thread more often, and a thread that is woken for little costs more than what it does.
fn workers() -> usize {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (all / 2).clamp(1, WORKERS_MAX)
}

/// The log, the TLS provider, and the runtime.
fn prepare(config: &Config) -> Result<tokio::runtime::Runtime> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_new(&config.log).context("`log` in the configuration")?,
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // An error here means that a provider is installed already: the same one, nobody else installs any.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()
        .context("start the runtime")
}

fn rebuild(args: &RebuildArgs) -> Result<()> {
    // It listens nowhere and asks nobody who they are: what the file says of that is not looked at.
    let config = Config::load(&args.config, Asked::Nobody)?;
    let runtime = prepare(&config)?;
    let how = How { without: args.without.clone(), dry_run: args.dry_run };
    let (options, database) = options_of(config, Arc::default(), false);
    let report = runtime.block_on(rebuild::run(options, database, &how))?;
    runtime.shutdown_background();
    match write!(std::io::stdout(), "{report}") {
        // Who reads only the beginning of it has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("print the report"),
    }
}

/// What the control plane is opened with, and on which database.
fn options_of(config: Config, policies: Arc<Policies>, restored: bool) -> (ServiceOptions, Database) {
    let database = match config.database {
        Some(postgres) => Database::Postgres(Box::new(postgres)),
        None => Database::Embedded(config.state_dir.clone()),
    };
    let options = ServiceOptions {
        state_dir: config.state_dir,
        agents: config.agents,
        cluster: config.cluster,
        iqn_prefix: config.iqn_prefix,
        restored,
        clock: Clock::system(),
        scheduler: config.scheduler,
        policies,
        secrets_on_get: config.secrets_on_get,
        quotas: config.quotas,
        dial: Dial::Network,
        protect_instances: config.protect_instances,
        native_hosts: config.native_hosts,
        hold: HOLD_DEFAULT,
        shared_initiators: config.shared_initiators,
    };
    (options, database)
}

fn warn_of_no_auth(auth: &Auth) {
    match auth {
        Auth::NoAuth => {
            tracing::warn!(
                "nobody is asked who they are: every program on this machine is an admin (--no-auth)"
            );
        }
        Auth::NoAuthAnywhere => {
            tracing::warn!(
                "nobody is asked who they are: whoever reaches this controller is an admin (--no-auth-on-networks)"
            );
        }
        Auth::Keystone(_) | Auth::Tokens(_) => {}
    }
}

async fn serve(config: Config, auth: Auth, policies: Arc<Policies>, restored: bool) -> Result<()> {
    // First of all: the embedded store's lock says that no other controller works on the state folder.
    let (listen, api_tls, public_url) =
        (config.listen.clone(), config.tls.clone(), config.public_url.clone());
    let metrics_listen = config.metrics.clone();
    let (options, database) = options_of(config, Arc::clone(&policies), restored);
    let service = tokio::task::spawn_blocking(move || Service::open_on(options, database)).await??;
    let tls = match &api_tls {
        Some(tls) => Some(
            http::tls(&tls.cert, &tls.key)
                .await
                .with_context(|| format!("use {} and {}", tls.cert.display(), tls.key.display()))?,
        ),
        None => None,
    };
    let for_metrics = mooring_systemd::metrics::bind(&metrics_listen).await?;
    let bound = http::bind(&listen)
        .await
        .map_err(|(address, error)| anyhow::Error::new(error).context(format!("listen on {address}")))?;
    service.start();
    warn_of_no_auth(&auth);
    let options = Options { auth, policies, public_url, tls: tls.is_some(), body_timeout: BODY_TIMEOUT };
    let mut router = http::router(service.clone(), options);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    if !for_metrics.is_empty() {
        let metrics = Metrics::new(service.clone());
        router = metrics.measured(router);
        tokio::spawn(metrics.serve(for_metrics, stopped.clone()));
    }
    notify::ready();
    tracing::info!("ready");
    notify::on_stop(stop).context("wait for SIGTERM and SIGINT")?;
    drop(notify::spawn_watchdog());
    let served = http::serve(router, bound, Serving { tls, ..Serving::default() }, stopped).await;
    service.stop().await;
    served.context("serve the API")?;
    tracing::info!("stopped; agents keep what they have");
    Ok(())
}

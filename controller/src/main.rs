//! `mooring-controller`: the control plane.
//!
//! Stop is not detach: agents keep what they have, and another start goes on with everything that was going on.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use mooring_controller::auth::{Auth, NewToken, Tokens, project_ok};
use mooring_controller::config::{Config, PATH_DEFAULT};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::service::{Service, ServiceOptions};
use mooring_systemd::notify;
use tokio::signal::unix::{SignalKind, signal};

/// The control plane: volumes, types and attachments as users see them, over the Block Storage API v3
///
/// Normally under systemd (mooring-controller.service), as a user of its own. It dials the agents that its configuration
/// enrols and makes them serve, attach and detach volumes. Stopping or killing it drops no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-controller",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  mooring-controller --config /etc/mooring/controller.toml\n  mooring-controller token --name ci --project 0123456789abcdef0123456789abcdef\n\nTalk to it:  mooring host list"
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
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    config: PathBuf,
    /// Read and check the configuration and the token file, say what is wrong, and do nothing else
    #[arg(long)]
    check: bool,
    /// Ask nobody who they are: everybody is an admin. Refused unless every listener is loopback
    #[arg(long)]
    no_auth: bool,
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
    /// May see and change everything
    #[arg(long)]
    admin: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => run(&cli.run),
        Some(Command::Run(args)) => run(&args),
        Some(Command::Token(args)) => token(&args),
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
    let new = NewToken::make(&args.name, &args.project, args.user.as_deref(), args.admin)
        .context("read random numbers")?;
    println!("# The token, shown this once: give it to its user.\n# {}\n", new.token);
    println!("# For the token file:\n{}", new.block);
    Ok(())
}

fn run(args: &RunArgs) -> Result<()> {
    let config = Config::load(&args.config, args.no_auth)?;
    let auth = match &config.tokens {
        Some(path) => Auth::Tokens(Tokens::load(path)?),
        None => Auth::NoAuth,
    };
    if args.check {
        println!("{}: ok", args.config.display());
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_new(&config.log).context("`log` in the configuration")?,
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // An error here means that a provider is installed already: the same one, nobody else installs any.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(config, auth, args.restored))?;
    runtime.shutdown_background();
    Ok(())
}

async fn serve(config: Config, auth: Auth, restored: bool) -> Result<()> {
    // First of all: its store's lock says that no other controller works on the state folder.
    let options = ServiceOptions {
        state_dir: config.state_dir,
        agents: config.agents,
        cluster: config.cluster,
        iqn_prefix: config.iqn_prefix,
        restored,
    };
    let service = tokio::task::spawn_blocking(move || Service::open(options)).await??;
    let tls = match &config.tls {
        Some(tls) => Some(
            http::tls(&tls.cert, &tls.key)
                .await
                .with_context(|| format!("use {} and {}", tls.cert.display(), tls.key.display()))?,
        ),
        None => None,
    };
    let bound = http::bind(&config.listen)
        .await
        .map_err(|(address, error)| anyhow::Error::new(error).context(format!("listen on {address}")))?;
    service.start();
    if matches!(auth, Auth::NoAuth) {
        tracing::warn!("nobody is asked who they are: every program on this machine is an admin (--no-auth)");
    }
    let options =
        Options { auth, public_url: config.public_url, tls: tls.is_some(), body_timeout: BODY_TIMEOUT };
    let router = http::router(service.clone(), options);
    notify::ready();
    tracing::info!("ready");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        notify::stopping();
        // Nobody listens any more when serving has failed: then the process ends anyway.
        let _ = stop.send(true);
    });
    drop(notify::spawn_watchdog());
    let served = http::serve(router, bound, Serving { tls, ..Serving::default() }, stopped).await;
    service.stop().await;
    served.context("serve the API")?;
    tracing::info!("stopped; agents keep what they have");
    Ok(())
}

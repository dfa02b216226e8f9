//! `mooring-controller`: the control plane.
//!
//! A stop is not a detach: agents keep what they have, and the next start continues all work in
//! progress.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Parser;
use mooring_bus::Bus;
use mooring_controller::args::{
    BackupArgs, Cli, Command, InitArgs, RebuildArgs, RestoreArgs, RotateArgs, RotateAuthorityArgs, RunArgs,
    ShareArgs, TokenArgs,
};
use mooring_controller::auth::{Auth, Keystone, NewToken, Tokens, project_ok};
use mooring_controller::authority::live::LiveAuthority;
use mooring_controller::backup;
use mooring_controller::clock::Clock;
use mooring_controller::config::{Asked, Callers, Config};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::init;
use mooring_controller::metrics::Metrics;
use mooring_controller::policy::Policies;
use mooring_controller::rebuild::{self, How};
use mooring_controller::renewal::{self, Renewal};
use mooring_controller::service::{
    Database, Dial, Enroller, HOLD_DEFAULT, RESERVE_DEFAULT, Service, ServiceOptions,
};
use mooring_controller::{rotate, share as sharing};
use mooring_systemd::sealing::{self, Origin};
use mooring_systemd::{cores, folder, notify};

/// The allocator. A request consists of some thousands of small pieces of memory that one thread
/// allocates and another frees. With glibc's allocator that costs a sixth of the processor time,
/// and memory used in a burst is not returned.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The most threads of the runtime.
const WORKERS_MAX: usize = 8;

fn main() -> ExitCode {
    if let Err(warning) = cores::leave_none() {
        eprintln!("mooring-controller: {warning}");
    }
    let cli = Cli::parse();
    let done = match cli.command {
        None => run(&cli.run),
        Some(Command::Run(args)) => run(&args),
        Some(Command::Init(args)) => init(&args),
        Some(Command::Share(args)) => share(&args),
        Some(Command::Token(args)) => token(&args),
        Some(Command::Rebuild(args)) => rebuild(&args),
        Some(Command::Backup(args)) => back_up(&args),
        Some(Command::Restore(args)) => restore(&args),
        Some(Command::RotateSealingKey(args)) => rotate_sealing_key(&args),
        Some(Command::RotateAuthority(args)) => rotate_authority(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn init(args: &InitArgs) -> Result<()> {
    let (now, mut out) = (SystemTime::now(), std::io::stdout().lock());
    let Some(file) = &args.join else {
        init::init(&args.folder, &args.name, now, &mut out)?;
        return Ok(());
    };
    use_tls();
    let code = match &args.code {
        Some(code) => code.clone(),
        None => ask("the code that was printed with the file: ")?,
    };
    init::second::join(&args.folder, &args.name, file, &code, now, &mut out)?;
    Ok(())
}

fn ask(question: &str) -> Result<String> {
    eprint!("{question}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("read the code")?;
    Ok(line.trim().to_owned())
}

fn share(args: &ShareArgs) -> Result<()> {
    let config = Config::load(&args.config, Asked::Everybody)?;
    use_tls();
    let database = database(&config)?;
    let mut out = std::io::stdout().lock();
    sharing::share(&args.config, &config, database, &args.file, SystemTime::now(), &mut out)?;
    Ok(())
}

/// Installs the TLS provider for connections to a database server.
fn use_tls() {
    // An error means that a provider is installed already: it can only be this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
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
        let (warnings, unusable) = config.look_at_tls();
        for warning in warnings {
            eprintln!("mooring-controller: {warning}");
        }
        if let Some(error) = unusable.into_iter().next() {
            return Err(error.into());
        }
        sealing_keys(&config)?.check()?;
        println!("{}: ok", args.config.display());
        return Ok(());
    }
    let runtime = prepare(&config)?;
    runtime.block_on(serve(config, auth, policies, args.restored))?;
    runtime.shutdown_background();
    Ok(())
}

/// The number of the runtime's threads: half of the processors, since the database's threads occupy
/// the other half. Tasks that wake each other then share a thread more often, and waking a thread
/// for little work costs more than the work.
fn workers() -> usize {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (all / 2).clamp(1, WORKERS_MAX)
}

/// Prepares the log, the TLS provider, and the runtime.
fn prepare(config: &Config) -> Result<tokio::runtime::Runtime> {
    tracing_subscriber::fmt()
        .with_env_filter(
            // The audit log is in the journal whatever the filter; `audit=off` in the file ends
            // that.
            tracing_subscriber::EnvFilter::try_new(format!("audit=info,{}", config.log))
                .context("`log` in the configuration")?,
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    use_tls();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()
        .context("start the runtime")
}

fn rebuild(args: &RebuildArgs) -> Result<()> {
    // This opens no listener and authenticates nobody: the file's settings of those do not matter.
    let config = Config::load(&args.config, Asked::Nobody)?;
    let runtime = prepare(&config)?;
    let how = How { without: args.without.clone(), dry_run: args.dry_run };
    let (options, database) = options_of(config, Arc::default(), false)?;
    let report = runtime.block_on(rebuild::run(options, database, &how))?;
    runtime.shutdown_background();
    match write!(std::io::stdout(), "{report}") {
        // A reader that closes the pipe early has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("print the report"),
    }
}

/// The authority by which agents join, from the configuration.
fn enroller(config: &Config) -> Result<Option<Enroller>> {
    let Some(files) = &config.enrolment else { return Ok(None) };
    let authority = LiveAuthority::load(&files.authority, &files.authority_key)?;
    Ok(Some(Enroller {
        authority: Arc::new(authority),
        api_cert: config.tls.as_ref().map(|tls| tls.cert.clone()),
        client_cert: files.client_cert.clone(),
        client_key: files.client_key.clone(),
        url: config.url_of_agents(),
    }))
}

/// The place of the keys that seal the database's secrets.
fn sealing_keys(config: &Config) -> Result<Origin> {
    config.sealing_keys().context(
        "the database of [database] may be shared, and every controller seals its secrets with the same keys: name their file with \
         sealing_key in the configuration (`(umask 077; openssl rand -base64 32 > FILE)` makes one: give it to the controller's user by \
         chown, and copy it to every controller), or hand them over as the systemd credential mooring-sealing-key",
    )
}

fn rotate_sealing_key(args: &RotateArgs) -> Result<()> {
    let config = Config::load(&args.config, Asked::Nobody)?;
    let keys = sealing_keys(&config)?;
    if config.database.is_some() {
        bail!(
            "the database of [database] may be shared, and a key that one controller alone has shuts out the others: put a new line \
             (`openssl rand -base64 32`) behind the others in {keys} of every controller and restart each; then move it to the top at \
             each and restart each"
        );
    }
    println!("{}", sealing::rotate(&keys)?.told("mooring-controller"));
    Ok(())
}

fn back_up(args: &BackupArgs) -> Result<()> {
    let config = Config::load(&args.config, Asked::Nobody)?;
    let keys = sealing_keys(&config)?;
    if config.database.is_some() {
        bail!(
            "the database of [database] is PostgreSQL's, which makes consistent copies while controllers work: `pg_dump --format=custom --file={} DATABASE`; copy the keys in {keys} to another place",
            args.file.display()
        );
    }
    let made =
        backup::back_up(&config.state_dir, &keys, &args.file, args.keys.as_deref(), SystemTime::now())?;
    print!("{made}");
    Ok(())
}

fn restore(args: &RestoreArgs) -> Result<()> {
    let config = Config::load(&args.config, Asked::Nobody)?;
    let keys = sealing_keys(&config)?;
    if config.database.is_some() {
        bail!(
            "the database of [database] is PostgreSQL's: stop all controllers, `createdb --encoding=UTF8 --template=template0 NAME`, `pg_restore --exit-on-error --dbname=NAME {}`, name that database in `url`, and start one controller with --restored",
            args.file.display()
        );
    }
    let done =
        backup::restore(&config.state_dir, &keys, &args.file, args.keys.as_deref(), SystemTime::now())?;
    print!("{done}");
    Ok(())
}

fn rotate_authority(args: &RotateAuthorityArgs) -> Result<()> {
    let config = Config::load(&args.config, Asked::Nobody)?;
    let database = database(&config)?;
    use_tls();
    let (now, mut out) = (SystemTime::now(), std::io::stdout().lock());
    rotate::rotate(&config, database, args.step, &args.without, now, &mut out)?;
    Ok(())
}

/// The database of the configuration, with the place of its keys.
fn database(config: &Config) -> Result<Database> {
    let keys = sealing_keys(config)?;
    Ok(match config.database.clone() {
        Some(postgres) => Database::Postgres { options: Box::new(postgres), keys },
        None => Database::Embedded { folder: config.state_dir.clone(), keys },
    })
}

/// The control plane's options, and its database.
fn options_of(config: Config, policies: Arc<Policies>, restored: bool) -> Result<(ServiceOptions, Database)> {
    let (enroller, database) = (enroller(&config)?, database(&config)?);
    let options = ServiceOptions {
        state_dir: config.state_dir,
        agents: config.agents,
        enroller,
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
        reserve: RESERVE_DEFAULT,
        shared_initiators: config.shared_initiators,
        keep_audit: config.keep_audit,
        keep_records: config.keep_records,
        expire_reserved: config.expire_reserved,
    };
    Ok((options, database))
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

/// Removes the rests of killed replacements of keys and certificates. They contain keys.
fn sweep(config: &Config) -> Result<()> {
    let keys = sealing_keys(config)?;
    let own = config.state_dir.join("mooring-controller.db");
    let enrolment = config.enrolment.iter();
    let enrolment = enrolment.flat_map(|files| [&files.authority_key, &files.client_cert, &files.client_key]);
    let tls = config.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]);
    let files = enrolment.chain(tls).map(PathBuf::as_path).chain([keys.path(), &own]);
    folder::sweep_beside(files, |path, swept| match swept {
        Ok(()) => {
            tracing::info!(file = %path.display(), "removed: it was being written when its writer was killed");
        }
        Err(error) => {
            tracing::warn!(folder = %path.display(), %error, "cannot look for unfinished files");
        }
    });
    Ok(())
}

async fn serve(config: Config, auth: Auth, policies: Arc<Policies>, restored: bool) -> Result<()> {
    // This comes first: the embedded store's lock shows that no other controller works on the state
    // folder.
    let (listen, api_tls, public_url) =
        (config.listen.clone(), config.tls.clone(), config.public_url.clone());
    let metrics_listen = config.metrics.clone();
    let certificates = config.clone();
    sweep(&config)?;
    if let Some(renewal) = Renewal::of(&config) {
        // A certificate that expired while the controller was off is never shown.
        renewal.look(SystemTime::now(), None).await;
    }
    let (options, database) = options_of(config, Arc::clone(&policies), restored)?;
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
    service.follow_units(Bus::system());
    warn_of_no_auth(&auth);
    let options = Options { auth, policies, public_url, tls: tls.is_some(), body_timeout: BODY_TIMEOUT };
    let mut router = http::router(service.clone(), options);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    if !for_metrics.is_empty() {
        let metrics = Metrics::new(service.clone());
        router = metrics.measured(router);
        tokio::spawn(metrics.serve(for_metrics, stopped.clone()));
    }
    tokio::spawn(renewal::keep(certificates, tls.clone(), stopped.clone()));
    notify::ready();
    tracing::info!("ready");
    notify::on_stop(stop).context("wait for SIGTERM and SIGINT")?;
    drop(notify::spawn_watchdog());
    let shown = service.clone();
    let telling = notify::spawn_status(notify::STATUS_EVERY, move || shown.status_line());
    let served = http::serve(router, bound, Serving { tls, ..Serving::default() }, stopped).await;
    if let Some(telling) = telling {
        telling.abort();
    }
    service.stop().await;
    served.context("serve the API")?;
    tracing::info!("stopped; agents keep what they have");
    Ok(())
}

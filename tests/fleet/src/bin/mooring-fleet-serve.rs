//! `mooring-fleet-serve`: a fleet for clients that are programs of their own.
//!
//! For programs it prints its address and credentials as one line of JSON, and serves until its
//! standard input ends, so that it ends together with its caller. With `--guide` it is for people
//! (`cargo xtask serve`): it prints how to begin, and serves until a signal ends it.
//!
//! What must never happen here: a listener beyond loopback; files that stay after the end.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use mooring_fleet::{Builder, Client, Fleet, identity};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The Fibre Channel port of the storage node `f1`.
const FC_TARGET: &str = "20:00:52:54:00:14:00:0a";

/// Serves the Block Storage API with a real controller, real agents and fake kernels, on loopback
#[derive(Debug, Parser)]
#[command(
    name = "mooring-fleet-serve",
    after_help = "Example:\n  mooring-fleet-serve --storages 2 --no-auth"
)]
struct Args {
    /// Storage nodes, each with one pool
    #[arg(long, default_value_t = 1)]
    storages: u8,
    /// GiB of each pool
    #[arg(long, default_value_t = 100)]
    gib: u64,
    /// GiB of the thin pool of one further storage node; 0: there is none
    #[arg(long, default_value_t = 0)]
    thin: u64,
    /// Hosts that attach natively
    #[arg(long, default_value_t = 0)]
    hosts: u8,
    /// Hosts that attach natively over Fibre Channel, to one further storage node; 0: there is none
    #[arg(long, default_value_t = 0)]
    fc_hosts: u8,
    /// Authenticate nobody
    #[arg(long)]
    no_auth: bool,
    /// Authenticate by an identity service of the fleet, as Keystone is one
    #[arg(long, conflicts_with = "no_auth")]
    keystone: bool,
    /// Address of the controller, on loopback [default: a free port]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    listen: Option<SocketAddr>,
    /// Make volume types, print how to begin, and serve until SIGINT or SIGTERM
    #[arg(long)]
    guide: bool,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| format!("{text:?} is no ADDRESS:PORT, such as 127.0.0.1:8776"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(format!("{} is not an address of loopback, and the fleet serves nobody else", address.ip()))
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-fleet-serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    ensure!(args.storages > 0, "--storages 0: without a pool no volume can be made");
    if let Some(address) = args.listen {
        TcpListener::bind(address).map(drop).with_context(|| format!("listen at {address}"))?;
    }
    if args.guide {
        // Caught before anything starts: a signal that comes meanwhile ends the fleet in order,
        // too.
        let end = End::new()?;
        let fleet = plan(args).start();
        types(args, &fleet);
        print(&guide(args, &fleet))?;
        end.wait();
        return Ok(());
    }
    let fleet = plan(args).start();
    print(&format!("{}\n", how(&fleet)))?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("wait for the end of the input")?;
    Ok(())
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("say how to reach the fleet")
}

fn plan(args: &Args) -> Builder {
    let mut plan = Fleet::builder();
    for n in 1..=args.storages {
        plan = plan.storage(&format!("s{n}"), &[("vg0", args.gib)]);
    }
    if args.thin > 0 {
        // The group is only as large as its pool needs, so that thick volumes go elsewhere.
        plan = plan.storage_with_thin("t1", &[("vg0", args.thin + 1)], args.thin);
    }
    for n in 1..=args.hosts {
        plan = plan.host(&format!("h{n}"));
    }
    if args.fc_hosts > 0 {
        plan = plan.storage_with_ports("f1", &[("vg0", args.gib)], &[FC_TARGET]).zoned();
    }
    for n in 1..=args.fc_hosts {
        plan = plan.host_with_port(&format!("fh{n}"), &format!("20:00:52:54:00:14:02:{n:02x}"));
    }
    if let Some(address) = args.listen {
        plan = plan.listen(address);
    }
    match (args.no_auth, args.keystone) {
        (true, _) => plan.no_auth(),
        (false, true) => plan.keystone(),
        (false, false) => plan,
    }
}

/// Address and credentials, for programs.
fn how(fleet: &Fleet) -> serde_json::Value {
    let account = |client: &Client| json!({ "project": client.project(), "token": client.token() });
    let mut how = json!({
        "url": fleet.control().url(),
        "accounts": {
            "admin": account(&fleet.admin()),
            "member": account(&fleet.member()),
            "reader": account(&fleet.reader()),
            "service": account(&fleet.service()),
            "stranger": account(&fleet.stranger()),
        },
    });
    if let Some(identity) = fleet.control().identity() {
        how["auth_url"] = json!(identity.auth_url());
    }
    how
}

/// Makes the volume types that the guide names.
fn types(args: &Args, fleet: &Fleet) {
    let (admin, shared) = (fleet.admin(), ("multiattach", "<is> True"));
    fleet.shared_type();
    if args.thin > 0 {
        admin.volume_type("thin", &[shared, ("provisioning:type", "thin")]);
    }
    if args.fc_hosts > 0 {
        admin.volume_type("fc", &[shared, ("storage_protocol", "FC")]);
    }
}

/// Names of machines, such as `h1 h2`; `none` if there are none.
fn names(prefix: &str, count: u8) -> String {
    let names: Vec<_> = (1..=count).map(|n| format!("{prefix}{n}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// The machines and the callers, and how each kind of client begins.
fn guide(args: &Args, fleet: &Fleet) -> String {
    // Writing to a String cannot fail.
    let mut text = String::new();
    let url = fleet.control().url();
    let _ = writeln!(text, "A real controller and real agents on fake hosts, at {url}");
    let _ = writeln!(text, "\nMachines");
    let _ = writeln!(text, "  storage nodes  {} with {} GiB each", names("s", args.storages), args.gib);
    if args.thin > 0 {
        let _ = writeln!(text, "                 t1 with a thin pool of {} GiB: type thin", args.thin);
    }
    if args.fc_hosts > 0 {
        let _ = writeln!(text, "                 f1 with {} GiB, also over Fibre Channel: type fc", args.gib);
    }
    let _ = writeln!(text, "  hosts          {} over iSCSI", names("h", args.hosts));
    let _ = writeln!(text, "                 {} over Fibre Channel", names("fh", args.fc_hosts));
    let _ = writeln!(text, "  files          {}", fleet.folder().display());
    text += "Disks have no data, and nothing listens on the portals in an answer.\n";
    callers(&mut text, args, fleet);
    clients(&mut text, args, fleet);
    text += "\nCtrl-C ends everything, and removes the files.\n";
    text
}

/// Writes who may call.
fn callers(text: &mut String, args: &Args, fleet: &Fleet) {
    if args.no_auth {
        *text += "\nCallers\n  nobody is authenticated: everybody is an admin\n";
        return;
    }
    *text += "\nCallers\n";
    for (name, client) in [("admin", fleet.admin()), ("member", fleet.member()), ("reader", fleet.reader())] {
        let _ = writeln!(text, "  {name:<7} project {}  token {}", client.project(), client.token());
    }
    if let Some(identity) = fleet.control().identity() {
        let project = fleet.control().project_name("admin");
        let (url, domain) = (identity.auth_url(), identity::DOMAIN);
        let _ = writeln!(text, "  by password at {url}: the name is the password,");
        let _ = writeln!(text, "  the project is {project}, each domain is {domain}");
    }
}

/// Writes the first lines for each kind of client, as the admin.
fn clients(text: &mut String, args: &Args, fleet: &Fleet) {
    let (url, admin) = (fleet.control().url(), fleet.admin());
    let (endpoint, token) = (admin.endpoint(), admin.token());
    let caller = if args.no_auth { String::new() } else { format!(" MOORING_TOKEN={token}") };
    let _ = writeln!(text, "\nmooring\n  export MOORING_CONTROLLER={url}{caller}");
    *text += "  mooring host list\n  mooring volume create data --size 1GiB --type shared\n";
    if args.hosts > 0 {
        *text += "  mooring attach data --host h1\n";
    }
    let header = if args.no_auth { String::new() } else { format!("-H 'X-Auth-Token: {token}' ") };
    let _ = writeln!(text, "\ncurl\n  curl {header}{endpoint}/volumes/detail");
    let _ = writeln!(
        text,
        "  curl {header}-H 'Content-Type: application/json' \\\n    \
         -d '{{\"volume\": {{\"name\": \"one\", \"size\": 1, \"volume_type\": \"shared\"}}}}' {endpoint}/volumes"
    );
    let _ = writeln!(text, "\nopenstack\n  export {} OS_VOLUME_API_VERSION=3.60", variables(args, fleet));
    *text += "  openstack volume type list\n  openstack volume create --size 1 --type shared two\n";
    let _ = writeln!(
        text,
        "\npython-cinderclient\n  from cinderclient import client\n  from keystoneauth1 import session, token_endpoint\n  \
         url, token = '{endpoint}', '{token}'\n  \
         auth = session.Session(auth=token_endpoint.Token(url, token))\n  \
         print(client.Client('3.60', session=auth, endpoint_override=url).volumes.list())"
    );
}

/// The variables by which `openstack` reaches the fleet.
fn variables(args: &Args, fleet: &Fleet) -> String {
    let (admin, domain) = (fleet.admin(), identity::DOMAIN);
    match fleet.control().identity() {
        Some(identity) => {
            let (url, project) = (identity.auth_url(), fleet.control().project_name("admin"));
            format!(
                "OS_AUTH_URL={url} OS_USERNAME=admin OS_PASSWORD=admin OS_PROJECT_NAME={project} \
                 OS_USER_DOMAIN_NAME={domain} OS_PROJECT_DOMAIN_NAME={domain} OS_IDENTITY_API_VERSION=3"
            )
        }
        None if args.no_auth => format!("OS_AUTH_TYPE=none OS_ENDPOINT={}", admin.endpoint()),
        None => {
            let (endpoint, token) = (admin.endpoint(), admin.token());
            format!("OS_AUTH_TYPE=admin_token OS_ENDPOINT={endpoint} OS_TOKEN={token}")
        }
    }
}

/// The end of the fleet: SIGINT or SIGTERM.
struct End {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl End {
    /// Catches the signals from now on.
    fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
        drop(inside);
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Waits for a signal, also for one that has come already.
    fn wait(self) {
        let Self { runtime, mut interrupt, mut terminate } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
    }
}

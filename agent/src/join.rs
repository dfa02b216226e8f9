//! `mooring-agent join`: makes this host an agent of a controller that is known by its pin.
//!
//! A token is used once. So everything that can be wrong on this host is found before the token is
//! sent: the flags, the configuration that will be written, the folder that will hold the key. A
//! new key stays for the next try.
//!
//! What must never happen here: the token sent to a controller that the pin does not prove; an
//! existing configuration changed; a private key that leaves this host.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use mooring_api::Address;
use mooring_host::{Command, Commands, LocalAddress};
use mooring_model::{Chain, Portal, VgName};
use mooring_systemd::certificates;
use mooring_systemd::folder::{self, Kept};
use reqwest::Url;

use crate::args::{JoinArgs, Role};
use crate::config::{Config, ConfigError, Tls};
use crate::identity::{self, IdentityError, NewKey};
use crate::links::reaches;
use crate::store::Store;

mod settings;
mod wire;

use settings::Settings;
use wire::{Controller, Joined};

/// Port of an agent's API unless `--address` names another.
pub const PORT_DEFAULT: u16 = 7710;

/// Time limit for the start of a unit, and for LVM's list of groups.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// The machine that joins, and the person at its terminal.
pub struct Ground<'a> {
    /// Runs lvm and systemctl.
    pub commands: &'a dyn Commands,
    /// Addresses of the machine.
    pub addresses: Vec<LocalAddress>,
    /// Terminal that is asked. `None` if there is none.
    pub terminal: Option<&'a mut dyn BufRead>,
    /// Receives the messages about what was done.
    pub out: &'a mut dyn Write,
}

/// A failed join. Unless the error says so, the token was not used.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The controller's address is not usable.
    #[error(
        "{url:?} is no controller's address: want https://HOST[:PORT]; over plain http the token would be readable"
    )]
    Url {
        /// The text.
        url: String,
    },
    /// The pin is malformed.
    #[error("--pin {pin:?}: want sha256: and 64 hexadecimal digits, as `mooring host token` prints it")]
    Pin {
        /// The text.
        pin: String,
    },
    /// The agent's address is not usable.
    #[error("--address {address:?}: want HOST:PORT, by which the controller reaches this host")]
    Address {
        /// The text.
        address: String,
    },
    /// The controller does not answer.
    #[error(
        "cannot reach the controller at {url}: does mooring-controller run there, and does a firewall let this host through?"
    )]
    Reach {
        /// The controller.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// A controller with another authority than the pin's answers.
    #[error(
        "the controller at {url} has another pin, {found}: it is not the one that made the token, or its authority was rotated since, or \
         somebody stands between. The token was not sent: make a new one (`mooring host token NAME`), and compare"
    )]
    WrongPin {
        /// The controller.
        url: String,
        /// Pin of the controller.
        found: String,
    },
    /// The pin is that of the authority which another one replaces.
    #[error(
        "the authority of the controller at {url} was rotated after this token was made, and its pin is {found} now. The token was not \
         sent: make a new one (`mooring host token NAME`)"
    )]
    FormerPin {
        /// The controller.
        url: String,
        /// Pin of the authority in force.
        found: String,
    },
    /// The authority is right, and the certificate of the connection is not.
    #[error(
        "the controller at {url} shows no valid certificate of its authority for this name: use a name or an address that the \
         certificate has (`mooring-controller init --name`), and look at the clocks of both machines. The token was not sent."
    )]
    Untrusted {
        /// The controller.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke before the answer arrived.
    #[error(
        "the controller's answer was lost: run the same command again; if it then says that the token was used, make a new one \
         (mooring host token)."
    )]
    Lost(#[source] reqwest::Error),
    /// The controller refuses.
    #[error("the controller refuses: {why}")]
    Refused {
        /// Message of the controller.
        why: String,
    },
    /// The controller's answer cannot be understood.
    #[error("the controller's answer cannot be used: {why}")]
    Answer {
        /// Cause.
        why: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] reqwest::Error),
    /// A choice is missing, and there is no terminal to ask.
    #[error(
        "say {flag}, once for each, or --role host if this machine holds no volumes; found here: {found}"
    )]
    Choose {
        /// The flag that makes the choice.
        flag: &'static str,
        /// The proposals.
        found: String,
    },
    /// The choice cannot be parsed.
    #[error("{text:?}: {why}")]
    Choice {
        /// The typed text.
        text: String,
        /// Cause.
        why: String,
    },
    /// The token allows none of the roles that were asked for.
    #[error(
        "the token is for the role {allowed}, and --role says {asked}. The token is used: make another one"
    )]
    Roles {
        /// Roles of the token.
        allowed: String,
        /// Roles of the command.
        asked: String,
    },
    /// The existing configuration does not fit.
    #[error("{} is there and is not changed, and {why}", .path.display())]
    Existing {
        /// Path of the configuration.
        path: PathBuf,
        /// Advice for the operator.
        why: String,
    },
    /// The configuration is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The example lacks a line that is to be filled in.
    #[error("the example configuration has no line {0:?}: this is a bug of Mooring, please report it")]
    Example(&'static str),
    /// The key or the certificate cannot be made or stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file cannot be written.
    #[error("cannot write {}: is this run as root?", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The terminal is not usable.
    #[error("cannot use the terminal")]
    Terminal(#[source] io::Error),
    /// A unit does not start. The host has joined.
    #[error("this host has joined, and {unit} does not start: {why}. See journalctl -u {unit}")]
    Unit {
        /// The unit.
        unit: &'static str,
        /// Cause.
        why: String,
    },
}

/// Decisions that are made before the controller is asked for anything.
struct Plan {
    roles: Vec<Role>,
    portals: Vec<Portal>,
    groups: Vec<VgName>,
    address: Address,
    tls: Tls,
    /// Folder that holds the agent's store, if there was one.
    state_dir: PathBuf,
    /// `true` if a configuration was there.
    existing: bool,
}

/// Joins the controller of `args`. `config` is the path of the configuration, which is written
/// unless it exists.
pub async fn join(args: &JoinArgs, config: &Path, mut ground: Ground<'_>) -> Result<(), JoinError> {
    let url = wire::url(&args.url)?;
    let pin = wire::pin(&args.pin)?;
    let plan = plan(args, &url, config, &mut ground)?;
    let key = identity::new_key(&plan.tls)?;
    let controller = Controller::prove(url, pin).await?;
    plan.trusts(config, &controller)?;
    let known = Store::id_in(&plan.state_dir);
    let joined = controller.join(&args.token, &key.csr, &plan.address.to_string(), known).await?;
    let roles = plan.write(config, &key, &controller, &joined)?;
    let words: Vec<_> = roles.iter().map(|role| role.word()).collect();
    let (name, address) = (&joined.name, &plan.address);
    say(
        ground.out,
        &format!("joined as {name} ({}); the controller reaches it at {address}", words.join(", ")),
    )?;
    let done = if plan.existing { "is not changed; new are its certificate and key" } else { "is written" };
    say(ground.out, &format!("{} {done}", config.display()))?;
    if args.no_start {
        return say(ground.out, "next: systemctl enable --now mooring-agent");
    }
    start(&roles, plan.existing, &mut ground)
}

fn say(out: &mut dyn Write, text: &str) -> Result<(), JoinError> {
    writeln!(out, "{text}").map_err(JoinError::Terminal)
}

/// Decides everything from the flags, the machine, and the person at the terminal.
fn plan(args: &JoinArgs, url: &Url, config: &Path, ground: &mut Ground<'_>) -> Result<Plan, JoinError> {
    let roles = if args.role.is_empty() { vec![Role::Storage, Role::Host] } else { args.role.clone() };
    if config.exists() {
        return existing(args, config, roles);
    }
    let address = match &args.address {
        Some(text) => address(text)?,
        None => reaching(url)?,
    };
    let folder = config.parent().unwrap_or_else(|| Path::new("/"));
    let both = folder.join("agent.pem");
    let tls = Tls { cert: both.clone(), key: both, client_ca: folder.join("agent-ca.crt") };
    let (mut portals, mut groups) = (Vec::new(), Vec::new());
    if roles.contains(&Role::Storage) {
        let here = ground.addresses.iter().filter(|address| address.up && reaches(address.ip));
        let here = here.map(|address| Portal::from_str(&bare(address.ip)).map(|p| p.to_string()));
        let here: Vec<_> = here.filter_map(Result::ok).collect();
        portals = choose("--portal IP", &args.portal, &here, ground)?;
        let known = if args.group.is_empty() { volume_groups(ground.commands) } else { Vec::new() };
        groups = choose("--group VG", &args.group, &known, ground)?;
    }
    let plan = Plan { roles, portals, groups, address, tls, state_dir: PathBuf::new(), existing: false };
    // A mistake in the new configuration is found before the token is used.
    let read = Config::parse(&plan.text(&plan.roles, None)?, &config.display().to_string())?;
    Ok(Plan { state_dir: read.state_dir, ..plan })
}

/// Makes the plan for an existing configuration.
fn existing(args: &JoinArgs, path: &Path, roles: Vec<Role>) -> Result<Plan, JoinError> {
    let config = Config::load(path)?;
    let why = |why: &str| JoinError::Existing { path: path.to_owned(), why: why.to_owned() };
    let Some(tls) = config.tls else {
        return Err(why(
            "has no [tls]: write cert, key and client_ca there, and an https address in listen, or move it away",
        ));
    };
    let listens = config.listen.iter().find(|address| matches!(address, Address::Tls(_)));
    let address = match (&args.address, listens) {
        (_, None) => return Err(why("listens on no https address: write one in listen, or move it away")),
        (Some(text), Some(_)) => address(text)?,
        (None, Some(address)) => address.clone(),
    };
    let host = |address: &Address| address.to_string().rsplit_once(':').map(|(host, _)| host.to_owned());
    if host(&address).is_some_and(|host| host.ends_with("//0.0.0.0") || host.ends_with("//[::]")) {
        return Err(why(
            "listens on every address: say with --address by which one the controller reaches this host",
        ));
    }
    let has = |role: &Role| match role {
        Role::Storage => !config.groups.is_empty(),
        Role::Host => config.host.is_some(),
    };
    let roles = roles.into_iter().filter(has).collect();
    let state_dir = config.state_dir;
    Ok(Plan { roles, portals: config.portals, groups: Vec::new(), address, tls, state_dir, existing: true })
}

impl Plan {
    fn text(&self, roles: &[Role], cluster: Option<&str>) -> Result<String, JoinError> {
        let groups = if roles.contains(&Role::Storage) { self.groups.as_slice() } else { &[] };
        Settings {
            portals: &self.portals,
            groups,
            host: roles.contains(&Role::Host),
            address: &self.address,
            tls: &self.tls,
            cluster,
        }
        .fill()
    }

    /// Refuses a configuration that trusts the callers of another authority.
    fn trusts(&self, config: &Path, controller: &Controller) -> Result<(), JoinError> {
        let file = &self.tls.client_ca;
        let Ok(trusted) = std::fs::read_to_string(file) else { return Ok(()) };
        let knows = |pin: &String| certificates::pins(&trusted).is_ok_and(|known| known.contains(pin));
        if certificates::pin(&controller.authority).is_ok_and(|pin| knows(&pin)) {
            return Ok(());
        }
        let why = format!(
            "client_ca is {}, of another authority than this controller's: name another file there, or move it away",
            file.display()
        );
        let path = if self.existing { config } else { file };
        Err(JoinError::Existing { path: path.to_owned(), why })
    }

    /// Stores what the controller gave. The configuration comes last: the unit waits for it.
    fn write(
        &self,
        config: &Path,
        key: &NewKey,
        controller: &Controller,
        joined: &Joined,
    ) -> Result<Vec<Role>, JoinError> {
        let allowed = |role: &Role| joined.roles.iter().any(|word| word == role.word());
        let roles: Vec<_> = self.roles.iter().copied().filter(allowed).collect();
        let proven = certificates::pins(&joined.authority)
            .is_ok_and(|pins| pins.first() == certificates::pin(&controller.authority).ok().as_ref());
        if !proven {
            let why = "authority: it does not begin with the one that the pin proves".to_owned();
            return Err(JoinError::Answer { why });
        }
        if roles.is_empty() {
            let asked: Vec<_> = self.roles.iter().map(|role| role.word()).collect();
            return Err(JoinError::Roles { allowed: joined.roles.join(", "), asked: asked.join(", ") });
        }
        identity::install(&self.tls, key, &joined.certificate)?;
        let put = |path: &Path, text: &str, mode| {
            folder::write_new(path, text, Kept { mode, owner: None })
                .map_err(|source| JoinError::File { path: path.to_owned(), source })
        };
        // The connection is proven, and so is this answer. It begins with the authority of the pin.
        put(&self.tls.client_ca, &joined.authority, 0o644)?;
        if !self.existing {
            let text = self.text(&roles, Some(&joined.cluster))?;
            Config::parse(&text, &config.display().to_string())?;
            put(config, &text, 0o640)?;
        }
        Ok(roles)
    }
}

/// Parses an address that the controller dials.
fn address(text: &str) -> Result<Address, JoinError> {
    let wrong = || JoinError::Address { address: text.to_owned() };
    let address: Address =
        format!("https://{}", text.strip_prefix("https://").unwrap_or(text)).parse().map_err(|_| wrong())?;
    let Address::Tls(at) = &address else { return Err(wrong()) };
    // The agent listens on this address.
    if at.to_socket_addrs().is_ok_and(|mut found| found.any(|found| !found.ip().is_unspecified())) {
        Ok(address)
    } else {
        Err(wrong())
    }
}

/// Returns the address of this host from which packets go to the controller. Sends nothing.
fn reaching(url: &Url) -> Result<Address, JoinError> {
    let wrong = || JoinError::Address { address: format!("none leads to {url}") };
    let controller = url.socket_addrs(|| None).map_err(|_| wrong())?;
    let leads = |to: &SocketAddr| {
        let from: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = controller.iter().find_map(leads).ok_or_else(wrong)?;
    address(&SocketAddr::new(ip, PORT_DEFAULT).to_string())
}

/// Writes an address as a portal has it.
fn bare(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Returns the groups that LVM can read. They are proposals, so that a failure yields none. An lvm
/// that crashes is run once more.
fn volume_groups(commands: &dyn Commands) -> Vec<String> {
    let args = ["vgs", "--noheadings", "-o", "vg_name"].map(str::to_owned).to_vec();
    let vgs = Command { program: "/usr/sbin/lvm", args, timeout: COMMAND_TIMEOUT };
    let ask = || commands.run(&vgs).ok();
    let Some(said) = ask().filter(|said| said.status < 128).or_else(ask) else { return Vec::new() };
    // A group that cannot be read fails the command; the others are listed all the same.
    String::from_utf8_lossy(&said.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Returns what was given, or what the person at the terminal chooses.
fn choose<T>(
    flag: &'static str,
    given: &[T],
    found: &[String],
    ground: &mut Ground<'_>,
) -> Result<Vec<T>, JoinError>
where
    T: FromStr<Err: std::fmt::Display> + Clone,
{
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let listed = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
    let Some(terminal) = ground.terminal.as_mut() else {
        return Err(JoinError::Choose { flag, found: listed });
    };
    write!(ground.out, "{flag}, several with commas [{listed}]: ")
        .and_then(|()| ground.out.flush())
        .map_err(JoinError::Terminal)?;
    let mut line = String::new();
    terminal.read_line(&mut line).map_err(JoinError::Terminal)?;
    let typed: Vec<_> = line.split([',', ' ', '\n', '\r']).filter(|text| !text.is_empty()).collect();
    let chosen = if typed.is_empty() { found.iter().map(String::as_str).collect() } else { typed };
    if chosen.is_empty() {
        return Err(JoinError::Choose { flag, found: listed });
    }
    let parse = |text: &str| {
        T::from_str(text).map_err(|error| JoinError::Choice { text: text.to_owned(), why: error.to_string() })
    };
    chosen.into_iter().map(parse).collect()
}

/// Starts the units. One that runs already is restarted to read its certificate.
fn start(roles: &[Role], restart: bool, ground: &mut Ground<'_>) -> Result<(), JoinError> {
    let mut units = vec!["mooring-agent.service"];
    if roles.contains(&Role::Host) {
        units.insert(0, "mooring-sessiond.service");
    }
    for unit in units {
        let mut verbs = vec![vec!["enable", "--now", unit]];
        if restart && unit == "mooring-agent.service" {
            verbs.push(vec!["restart", unit]);
        }
        for verb in verbs {
            let args = verb.iter().map(|word| (*word).to_owned()).collect();
            let command = Command { program: "/usr/bin/systemctl", args, timeout: COMMAND_TIMEOUT };
            let failed = |why: String| JoinError::Unit { unit, why };
            let done = ground.commands.run(&command).map_err(|error| failed(Chain(&error).to_string()))?;
            if done.status != 0 {
                return Err(failed(done.stderr.trim().to_owned()));
            }
        }
        say(ground.out, &format!("started {unit}"))?;
    }
    Ok(())
}

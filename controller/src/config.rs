//! The controller's configuration: one TOML file, read once at start, checked as a whole before
//! anything is touched.
//!
//! What must never happen here: a key that is ignored; a mistake reported without its line; plain
//! text or an API without authentication on a network because of a default; a value that is
//! corrected silently.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_api::{Address, TlsFiles};
use mooring_model::{ClusterId, IqnPrefix};
pub use mooring_systemd::config::ConfigError;
use mooring_systemd::config::{self, File, Hint, Mistakes};
use mooring_systemd::metrics::{self, RawMetrics};
use mooring_systemd::sealing::Origin;
use serde::Deserialize;
use toml::Spanned;

use crate::policy::ENFORCE_NEW_DEFAULTS;
use crate::quota::{Key, LIMIT_MAX, Limit};
use crate::service::{AgentEntry, PostgresOptions, Scheduler, SecretsOnGet};

mod callers;
mod enrolment;
mod kept;
mod scheduler;
mod tls;

use callers::RawKeystone;
pub use callers::{Asked, Callers};
pub use enrolment::Enrolment;
use enrolment::RawEnrolment;
use kept::{RawAttachments, RawAudit, RawRecords};
use scheduler::RawScheduler;

/// The path of the file, unless the command line names another.
pub const PATH_DEFAULT: &str = "/etc/mooring/controller.toml";

/// The documented example, as it is installed.
pub const EXAMPLE: &str = include_str!("../controller.example.toml");

const HINT: Hint = Hint { made_by: "`mooring-controller init`", example: "controller.example.toml" };

/// The default address of the API: the port of the Block Storage API.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 8776));

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder of the database.
    pub state_dir: PathBuf,
    /// The keys that seal the database's secrets; `None` for systemd's or those in `state_dir`.
    pub sealing_key: Option<PathBuf>,
    /// The API's addresses.
    pub listen: Vec<SocketAddr>,
    /// The API's certificate; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// The authentication of callers.
    pub callers: Callers,
    /// The operator's policies, over the defaults.
    pub policies: Option<PathBuf>,
    /// Drops the old policy defaults, which need no role. `false` lets every user of a project
    /// change what belongs to the project.
    pub enforce_new_defaults: bool,
    /// The callers who may read CHAP secrets after the answer that gave them.
    pub secrets_on_get: SecretsOnGet,
    /// The placement of volumes.
    pub scheduler: Scheduler,
    /// Default limits of projects.
    pub quotas: BTreeMap<Key, Limit>,
    /// `true` to keep a server's own user from taking its disk away while a session is live.
    pub protect_instances: bool,
    /// The hosts that a project's members may attach to natively, by project.
    pub native_hosts: BTreeMap<String, BTreeSet<String>>,
    /// `true` if two host names may share one initiator name.
    pub shared_initiators: bool,
    /// The part of target names before `:<volume uuid>`.
    pub iqn_prefix: IqnPrefix,
    /// The cluster's id, if it is set here.
    pub cluster: Option<ClusterId>,
    /// The enrolled agents.
    pub agents: Vec<AgentEntry>,
    /// The authority that signs the certificates of joining agents; `None` if no agent can join.
    pub enrolment: Option<Enrolment>,
    /// The database that several controllers share; `None` for the embedded one, in `state_dir`.
    pub database: Option<PostgresOptions>,
    /// The address that clients use, where a proxy hides it.
    pub public_url: Option<String>,
    /// The time for which lines of the audit log are kept; `None` for ever.
    pub keep_audit: Option<Duration>,
    /// The time for which records of what has ended are kept; `None` for ever.
    pub keep_records: Option<Duration>,
    /// The age at which a reserved attachment without a connector ends; `None` for none.
    pub expire_reserved: Option<Duration>,
    /// The addresses of the metrics; empty for none.
    pub metrics: Vec<SocketAddr>,
    /// The log's filter, in the form of `tracing-subscriber`.
    pub log: String,
}

/// PEM files of the API's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Our certificate, with its chain.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

impl Config {
    /// Reads and checks a file. `asked` says whether the command line lets anybody in.
    pub fn load(path: &Path, asked: Asked) -> Result<Self, ConfigError> {
        let text = config::read(path, HINT)?;
        Self::parse(&text, &path.display().to_string(), asked)
    }

    /// Checks a text; `name` is the file's name in errors.
    pub fn parse(text: &str, name: &str, asked: Asked) -> Result<Self, ConfigError> {
        let file = File::new(name, text);
        let mut wrong = Mistakes::default();
        let Some(raw) = file.parse::<RawConfig>(&mut wrong) else { return wrong.end(|| None) };
        let state_dir = file.path_or(raw.state_dir.as_ref(), "state_dir", "/var/lib/mooring-controller");
        let state_dir = wrong.note(state_dir);
        let sealing_key = wrong.note(file.optional_path(raw.sealing_key.as_ref(), "sealing_key"));
        let guarded = raw.insecure || raw.tls.is_some();
        let tls = wrong.note(raw.tls.as_ref().map(|raw| tls(&file, raw)).transpose());
        let listen = wrong.note(listen(&file, raw.listen.as_ref(), guarded, asked));
        let callers = wrong.note(callers::callers(&file, raw.tokens.as_ref(), raw.keystone.as_ref(), asked));
        let policies = wrong.note(file.optional_path(raw.policies.as_ref(), "policies"));
        let secrets_on_get = wrong.note(callers::secrets_on_get(&file, raw.show_secrets_on_get.as_ref()));
        let quotas = wrong.note(quotas(&file, &raw.quota));
        let iqn_prefix = wrong.note(match &raw.iqn_prefix {
            None => Ok(IqnPrefix::default()),
            Some(text) => file.value(text, "iqn_prefix"),
        });
        let cluster = wrong.note(raw.cluster.map(|text| file.value(&text, "cluster")).transpose());
        let agents = agents(&file, &raw.agents, &mut wrong);
        // An agent's malformed zone must not be reported as a zone without agents.
        let scheduler = (agents.len() == raw.agents.len())
            .then(|| wrong.note(scheduler::scheduler(&file, raw.scheduler.as_ref(), &agents)))
            .flatten();
        let backend_names = (agents.len() == raw.agents.len())
            .then(|| {
                let others_join = raw.enrolment.is_some();
                wrong.note(scheduler::backend_names(&file, &raw.backend_names, &agents, others_join))
            })
            .flatten();
        let native_hosts = (agents.len() == raw.agents.len())
            .then(|| {
                wrong.note(callers::native_hosts(&file, &raw.attach.hosts, &agents, raw.enrolment.is_some()))
            })
            .flatten();
        let enrolment =
            wrong.note(raw.enrolment.as_ref().map(|raw| enrolment::enrolment(&file, raw)).transpose());
        let database = wrong.note(raw.database.as_ref().map(|raw| database(&file, raw)).transpose());
        let public_url = wrong.note(raw.public_url.map(|text| public_url(&file, &text)).transpose());
        let metrics = raw.metrics.map_or_else(|| Ok(Vec::new()), |raw| metrics::listen(&file, &raw));
        let metrics = wrong.note(metrics);
        let ages = wrong.note(kept::ages(&file, &raw.audit, &raw.records, &raw.attachments));
        let log = wrong.note(file.log(raw.log, "mooring_controller"));
        wrong.end(|| {
            Some(Self {
                state_dir: state_dir?,
                sealing_key: sealing_key?,
                listen: listen?,
                tls: tls?,
                callers: callers?,
                policies: policies?,
                enforce_new_defaults: raw.enforce_new_defaults.unwrap_or(ENFORCE_NEW_DEFAULTS),
                secrets_on_get: secrets_on_get?,
                scheduler: Scheduler { backend_names: backend_names?, ..scheduler? },
                quotas: quotas?,
                protect_instances: raw.attach.protect_instances,
                native_hosts: native_hosts?,
                shared_initiators: raw.attach.shared_initiators,
                iqn_prefix: iqn_prefix?,
                cluster: cluster?,
                agents,
                enrolment: enrolment?,
                database: database?,
                public_url: public_url?,
                keep_audit: ages?.keep_audit,
                keep_records: ages?.keep_records,
                expire_reserved: ages?.expire_reserved,
                metrics: metrics?,
                log: log?,
            })
        })
    }
}

impl Config {
    /// The address at which agents join: the public URL, else the first address with TLS that is
    /// not loopback; `None` if there is none.
    pub fn url_of_agents(&self) -> Option<String> {
        let public = self.public_url.clone().filter(|url| url.starts_with("https://"));
        let outside = |address: &&SocketAddr| {
            let ip = address.ip();
            self.tls.is_some() && !ip.is_loopback() && !ip.is_unspecified()
        };
        public.or_else(|| self.listen.iter().find(outside).map(|address| format!("https://{address}")))
    }

    /// The place of the keys that seal the database's secrets. `None` for a shared database without
    /// a named place: keys that each controller made for itself would differ.
    pub fn sealing_keys(&self) -> Option<Origin> {
        let own = || self.database.is_none().then(|| Origin::own(&self.state_dir));
        Origin::find(self.sealing_key.as_deref()).or_else(own)
    }
}

// Values are read as text with their place and parsed below, so that every error knows its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_dir: Option<Spanned<String>>,
    sealing_key: Option<Spanned<String>>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    tls: Option<Spanned<RawTls>>,
    #[serde(default)]
    insecure: bool,
    tokens: Option<Spanned<String>>,
    keystone: Option<Spanned<RawKeystone>>,
    policies: Option<Spanned<String>>,
    enforce_new_defaults: Option<bool>,
    show_secrets_on_get: Option<Spanned<String>>,
    #[serde(default)]
    attach: RawAttach,
    #[serde(default)]
    quota: BTreeMap<String, Spanned<i64>>,
    iqn_prefix: Option<Spanned<String>>,
    cluster: Option<Spanned<String>>,
    scheduler: Option<Spanned<RawScheduler>>,
    #[serde(default)]
    backend_names: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    agents: Vec<Spanned<RawAgent>>,
    enrolment: Option<Spanned<RawEnrolment>>,
    database: Option<Spanned<RawDatabase>>,
    public_url: Option<Spanned<String>>,
    #[serde(default)]
    audit: RawAudit,
    #[serde(default)]
    records: RawRecords,
    #[serde(default)]
    attachments: RawAttachments,
    metrics: Option<Spanned<RawMetrics>>,
    log: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawAttach {
    protect_instances: bool,
    hosts: BTreeMap<String, Spanned<Vec<Spanned<String>>>>,
    shared_initiators: bool,
}

impl Default for RawAttach {
    fn default() -> Self {
        Self { protect_instances: true, hosts: BTreeMap::new(), shared_initiators: false }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDatabase {
    url: Option<Spanned<String>>,
    password_file: Option<Spanned<String>>,
    ca: Option<Spanned<String>>,
    #[serde(default)]
    insecure: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAgent {
    name: Option<Spanned<String>>,
    address: Option<Spanned<String>>,
    ca: Option<Spanned<String>>,
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    server_name: Option<Spanned<String>>,
    #[serde(default)]
    insecure: bool,
    zone: Option<Spanned<String>>,
}

fn tls(file: &File<'_>, tls: &Spanned<RawTls>) -> Result<Tls, ConfigError> {
    let raw = tls.get_ref();
    let pem = |value: &Option<Spanned<String>>, key: &str| {
        let Some(text) = value else {
            let why = format!("{key} is missing: TLS wants both cert and key, or no [tls] at all");
            return Err(file.wrong(&tls.span(), why));
        };
        file.path(text, key)
    };
    Ok(Tls { cert: pem(&raw.cert, "tls.cert")?, key: pem(&raw.key, "tls.key")? })
}

fn database(file: &File<'_>, database: &Spanned<RawDatabase>) -> Result<PostgresOptions, ConfigError> {
    let raw = database.get_ref();
    let Some(url) = &raw.url else {
        let why =
            "database.url is missing: want postgres://USER@HOST[:PORT]/DATABASE, or no [database] at all";
        return Err(file.wrong(&database.span(), why));
    };
    let password_file = file.optional_path(raw.password_file.as_ref(), "database.password_file")?;
    let ca = file.optional_path(raw.ca.as_ref(), "database.ca")?;
    // The error does not repeat the text: a password in it must not get into a log.
    PostgresOptions::new(url.get_ref(), password_file, ca, raw.insecure)
        .map_err(|why| file.wrong(&url.span(), format!("database.url: {why}")))
}

fn listen(
    file: &File<'_>,
    list: Option<&Spanned<Vec<Spanned<String>>>>,
    guarded: bool,
    asked: Asked,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(list) = list else { return Ok(vec![LISTEN_DEFAULT]) };
    if list.get_ref().is_empty() {
        return Err(file.wrong(&list.span(), "listen: no address: nobody could reach this controller"));
    }
    let mut addresses = Vec::new();
    for text in list.get_ref() {
        let span = text.span();
        let address: SocketAddr = text.get_ref().parse().map_err(|_| {
            let found = text.get_ref();
            let why = format!("listen: {found:?} is not IP:PORT: want 127.0.0.1:8776 or [::1]:8776");
            file.wrong(&span, why)
        })?;
        if addresses.contains(&address) {
            return Err(file.wrong(&span, format!("listen: {address} is listed twice")));
        }
        if !address.ip().is_loopback() && asked == Asked::NobodyOnLoopback {
            let why = format!(
                "listen: {address} is not loopback: with --no-auth everybody who reaches it could delete every \
                 volume; name loopback addresses only, or give tokens or [keystone]"
            );
            return Err(file.wrong(&span, why));
        }
        if !address.ip().is_loopback() && !guarded {
            let why = format!(
                "listen: {address} is plain text, and tokens and CHAP secrets would cross the network readable: \
                 give [tls], or say insecure = true"
            );
            return Err(file.wrong(&span, why));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Reads default limits. Limits of single types are set through the API, which knows the types.
fn quotas(
    file: &File<'_>,
    table: &BTreeMap<String, Spanned<i64>>,
) -> Result<BTreeMap<Key, Limit>, ConfigError> {
    let mut quotas = BTreeMap::new();
    for (name, number) in table {
        let Some(key) = Key::PLAIN.into_iter().find(|key| key.to_string() == *name) else {
            let known: Vec<_> = Key::PLAIN.iter().map(ToString::to_string).collect();
            let why = format!("quota.{name} is not known; known keys: {}", known.join(", "));
            return Err(file.wrong(&number.span(), why));
        };
        let limit = Limit::from_number(*number.get_ref()).ok_or_else(|| {
            let why = format!("quota.{name}: {} is not -1 (no limit) to {LIMIT_MAX}", number.get_ref());
            file.wrong(&number.span(), why)
        })?;
        quotas.insert(key, limit);
    }
    Ok(quotas)
}

fn agents(file: &File<'_>, list: &[Spanned<RawAgent>], wrong: &mut Mistakes) -> Vec<AgentEntry> {
    let mut agents: Vec<AgentEntry> = Vec::new();
    for entry in list {
        let found = wrong.note(agent(file, entry, &agents));
        agents.extend(found);
    }
    agents
}

/// Reads one agent. `before` are those read already.
fn agent(
    file: &File<'_>,
    entry: &Spanned<RawAgent>,
    before: &[AgentEntry],
) -> Result<AgentEntry, ConfigError> {
    let raw = entry.get_ref();
    let need = |value: &Option<Spanned<String>>, why: &str| match value {
        Some(text) => Ok(text.clone()),
        None => Err(file.wrong(&entry.span(), why)),
    };
    let name = need(&raw.name, "agents.name is missing: want what people call this host")?;
    let text = need(&raw.address, "agents.address is missing: want unix:/PATH or https://HOST:PORT")?;
    // The name becomes part of `host@lvm#pool`, and of command lines.
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ok = !name.get_ref().is_empty() && name.get_ref().len() <= 255;
    if !ok || !name.get_ref().bytes().all(known) {
        let why = "agents.name: want 1 to 255 letters, digits, -, _ and .";
        return Err(file.wrong(&name.span(), why));
    }
    if before.iter().any(|agent| &agent.name == name.get_ref()) {
        let why = format!("agents.name: {} is listed twice", name.get_ref());
        return Err(file.wrong(&name.span(), why));
    }
    let address: Address = file.value(&text, "agents.address")?;
    if before.iter().any(|agent| agent.address == address) {
        return Err(file.wrong(&text.span(), format!("agents.address: {address} is listed twice")));
    }
    let tls = agent_tls(file, entry, &address)?;
    if matches!(address, Address::Plain(_)) && !raw.insecure {
        let why = format!(
            "agents.address: {address} is plain text, and CHAP secrets would cross the network readable: \
             use https://… with ca, cert and key, or say insecure = true for this agent"
        );
        return Err(file.wrong(&text.span(), why));
    }
    let name = name.into_inner();
    let zone = raw.zone.as_ref().map(|zone| scheduler::zone(file, zone, "agents.zone")).transpose()?;
    Ok(AgentEntry { name, address, tls, insecure: raw.insecure, zone, enrolment: None })
}

/// Reads a name that a certificate can have.
fn server_name(file: &File<'_>, name: &Spanned<String>) -> Result<String, ConfigError> {
    let text = name.get_ref();
    match rustls::pki_types::ServerName::try_from(text.as_str()) {
        Ok(_) => Ok(text.clone()),
        Err(_) => Err(file.wrong(
            &name.span(),
            format!(
                "agents.server_name: {text:?} is no name of a certificate: want a DNS name or an IP address"
            ),
        )),
    }
}

fn agent_tls(file: &File<'_>, entry: &Spanned<RawAgent>, address: &Address) -> Result<TlsFiles, ConfigError> {
    let raw = entry.get_ref();
    let files = TlsFiles {
        ca: file.optional_path(raw.ca.as_ref(), "agents.ca")?,
        cert: file.optional_path(raw.cert.as_ref(), "agents.cert")?,
        key: file.optional_path(raw.key.as_ref(), "agents.key")?,
        server_name: raw.server_name.as_ref().map(|name| server_name(file, name)).transpose()?,
    };
    let all = files.ca.is_some() && files.cert.is_some() && files.key.is_some();
    let any = files.ca.is_some() || files.cert.is_some() || files.key.is_some();
    match address {
        Address::Tls(_) if !all => Err(file.wrong(
            &entry.span(),
            format!("agents: {address} wants all three of ca, cert and key: both sides show certificates"),
        )),
        Address::Unix(_) | Address::Plain(_) if any || files.server_name.is_some() => Err(file.wrong(
            &entry.span(),
            format!("agents: ca, cert, key and server_name are for https addresses, and {address} is none"),
        )),
        Address::Tls(_) | Address::Unix(_) | Address::Plain(_) => Ok(files),
    }
}

/// Reads the beginning of links: scheme, host, and perhaps a path.
fn public_url(file: &File<'_>, text: &Spanned<String>) -> Result<String, ConfigError> {
    let url = text.get_ref().trim_end_matches('/');
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let ok = rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with('/') && rest.bytes().all(|byte| byte.is_ascii_graphic())
    });
    if !ok || url.contains(['?', '#', '@', '"', '<', '>']) || url.ends_with("/v3") {
        let found = text.get_ref();
        let why = format!(
            "public_url: {found:?} is not the address of this API: want https://HOST[:PORT][/PATH], without /v3"
        );
        return Err(file.wrong(&text.span(), why));
    }
    Ok(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "tokens = \"/etc/mooring/tokens.toml\"\n";

    #[test]
    fn an_agents_certificate_may_have_another_name_than_its_address() {
        let of = |address: &str, more: &str| {
            let text = format!("{GOOD}[[agents]]\nname = \"a\"\naddress = \"{address}\"\n{more}\n");
            Config::parse(&text, "file", Asked::Everybody).map(|config| config.agents[0].tls.clone())
        };
        let files = "ca = \"/a\"\ncert = \"/b\"\nkey = \"/c\"\n";
        assert_eq!(of("https://a:1", files).unwrap().server_name, None);
        let named = of("https://a:1", &format!("{files}server_name = \"x.invalid\"")).unwrap();
        assert_eq!(named.server_name.as_deref(), Some("x.invalid"));
        for (address, more) in [
            ("https://a:1", format!("{files}server_name = \"no name\"")),
            ("unix:/run/a", "server_name = \"x.invalid\"".to_owned()),
        ] {
            let error = of(address, &more).unwrap_err().to_string();
            assert!(error.contains("server_name"), "{error}");
        }
    }

    #[test]
    fn hosts_that_join_may_be_named_before_they_do() {
        let of = |more: &str| {
            let text = format!("{GOOD}{more}[attach.hosts]\np = [\"host7\"]\n");
            Config::parse(&text, "file", Asked::Everybody).map(|config| config.native_hosts)
        };
        assert!(of("").unwrap_err().to_string().contains("is no host of [[agents]]"));
        assert_eq!(of("[enrolment]\n").unwrap()["p"], BTreeSet::from(["host7".to_owned()]));
    }

    #[test]
    fn pools_have_the_names_that_the_file_gives_them() {
        let of = |more: &str| {
            let text =
                format!("{GOOD}{more}[backend_names]\nhost7 = \"fast\"\n\"host7#vg0:thin\" = \"slow\"\n");
            Config::parse(&text, "file", Asked::Everybody).map(|config| config.scheduler.backend_names)
        };
        let agent = "[[agents]]\nname = \"host7\"\naddress = \"unix:/a\"\n";
        let names = [("host7", "fast"), ("host7#vg0:thin", "slow")];
        for more in [agent, "[enrolment]\n"] {
            let read = of(more).unwrap();
            assert!(read.iter().map(|(place, name)| (place.as_str(), name.as_str())).eq(names), "{read:?}");
        }
        assert!(of("").unwrap_err().to_string().contains("no such agent"));
    }

    #[test]
    fn the_audit_log_is_kept_for_a_year_or_as_long_as_the_file_says() {
        let of = |text: &str| {
            let config = Config::parse(&format!("{GOOD}{text}"), "file", Asked::Everybody);
            config.map(|config| config.keep_audit)
        };
        let days = |days: u64| Some(Duration::from_hours(days * 24));
        assert_eq!(of("").unwrap(), days(365));
        assert_eq!(of("[audit]\n").unwrap(), days(365));
        assert_eq!(of("[audit]\nkeep_days = 30\n").unwrap(), days(30));
        assert_eq!(of("[audit]\nkeep_days = 0\n").unwrap(), None);
        for wrong in ["-1", "36501", "9223372036854775807"] {
            let error = of(&format!("[audit]\nkeep_days = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("audit.keep_days") && error.contains("line 3"), "{error}");
        }
    }

    #[test]
    fn records_are_kept_for_a_year_or_as_long_as_the_file_says() {
        let of = |text: &str| {
            let config = Config::parse(&format!("{GOOD}{text}"), "file", Asked::Everybody);
            config.map(|config| config.keep_records)
        };
        let days = |days: u64| Some(Duration::from_hours(days * 24));
        assert_eq!(of("").unwrap(), days(365));
        assert_eq!(of("[records]\nkeep_days = 90\n").unwrap(), days(90));
        assert_eq!(of("[records]\nkeep_days = 0\n").unwrap(), None);
        for wrong in ["-1", "1", "89", "36501"] {
            let error = of(&format!("[records]\nkeep_days = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("records.keep_days") && error.contains("90"), "{error}");
        }
    }

    #[test]
    fn reserved_attachments_end_only_where_the_file_says_so() {
        let of = |text: &str| {
            let config = Config::parse(&format!("{GOOD}{text}"), "file", Asked::Everybody);
            config.map(|config| config.expire_reserved)
        };
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("[attachments]\nexpire_reserved_days = 0\n").unwrap(), None);
        let month = of("[attachments]\nexpire_reserved_days = 30\n").unwrap();
        assert_eq!(month, Some(Duration::from_hours(30 * 24)));
        for wrong in ["-1", "36501"] {
            let error = of(&format!("[attachments]\nexpire_reserved_days = {wrong}\n")).unwrap_err();
            assert!(error.to_string().contains("attachments.expire_reserved_days"), "{error}");
        }
        for wrong in ["expire_reserved_days = \"30\"", "expire_days = 30"] {
            assert!(of(&format!("[attachments]\n{wrong}\n")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_example_is_a_configuration_and_shows_every_key() {
        let config = Config::parse(EXAMPLE, "example", Asked::Everybody).unwrap();
        assert_eq!(config.listen, [LISTEN_DEFAULT]);
        let all = [
            "state_dir",
            "sealing_key",
            "listen",
            "insecure",
            "tokens",
            "policies",
            "enforce_new_defaults",
            "show_secrets_on_get",
            "[keystone]",
            "[attach]",
            "protect_instances",
            "[attach.hosts]",
            "iqn_prefix",
            "cluster",
            "public_url",
            "[metrics]",
            "[audit]",
            "keep_days",
            "[records]",
            "[attachments]",
            "expire_reserved_days",
            "log",
            "[tls]",
            "[database]",
            "url",
            "password_file",
            "cert",
            "key",
            "[enrolment]",
            "authority",
            "authority_key",
            "client_cert",
            "client_key",
            "[scheduler]",
            "reserved_percentage",
            "max_over_subscription_ratio",
            "free_capacity_multiplier",
            "volumes_multiplier",
            "default_zone",
            "fast_fail",
            "max_attempts",
            "[backend_names]",
            "[[agents]]",
            "zone",
            "name",
            "address",
            "ca",
        ];
        for key in all {
            assert!(
                EXAMPLE.contains(&format!("\n{key}")) || EXAMPLE.contains(&format!("\n# {key}")),
                "{key}"
            );
        }
        // The lines in comments are valid, too.
        let lines: Vec<_> = EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.starts_with('[') || rest.contains(" = ") && !rest.ends_with('.') => rest,
                _ => line,
            })
            .collect();
        // Callers are authenticated in one of two ways.
        let tokens: Vec<_> = lines.into_iter().filter(|line| !line.starts_with("tokens")).collect();
        let config = Config::parse(&tokens.join("\n"), "example", Asked::Everybody).unwrap();
        assert!(matches!(config.callers, Callers::Keystone(_)));
    }

    #[test]
    fn little_is_enough() {
        let config = Config::parse(GOOD, "x", Asked::Everybody).unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/mooring-controller"));
        assert!(Config::parse("", "x", Asked::Everybody).unwrap_err().to_string().contains("tokens"));
        assert_eq!(config.callers, Callers::Tokens("/etc/mooring/tokens.toml".into()));
        assert_eq!((config.policies, config.enforce_new_defaults), (None, true));
        let old = format!("enforce_new_defaults = false\n{GOOD}");
        assert!(!Config::parse(&old, "x", Asked::Everybody).unwrap().enforce_new_defaults);
        assert!(Config::parse(EXAMPLE, "example", Asked::Everybody).unwrap().enforce_new_defaults);
        assert_eq!(config.secrets_on_get, SecretsOnGet::Service);
        assert!(config.protect_instances);
        let open = format!("{GOOD}[attach]\nprotect_instances = false\n");
        assert!(!Config::parse(&open, "x", Asked::Everybody).unwrap().protect_instances);
        assert!(config.native_hosts.is_empty());
        let mapped = "[attach.hosts]\np = [\"a\"]\n[[agents]]\nname = \"a\"\naddress = \"unix:/a\"";
        let mapped = Config::parse(&format!("{GOOD}{mapped}"), "x", Asked::Everybody).unwrap();
        assert_eq!(mapped.native_hosts, BTreeMap::from([("p".to_owned(), BTreeSet::from(["a".to_owned()]))]));
        assert!(!config.shared_initiators);
        let shared = format!("{GOOD}[attach]\nshared_initiators = true\n");
        assert!(Config::parse(&shared, "x", Asked::Everybody).unwrap().shared_initiators);
        for text in ["", GOOD] {
            assert_eq!(Config::parse(text, "x", Asked::NobodyOnLoopback).unwrap().callers, Callers::Anybody);
            let anywhere = Config::parse(text, "x", Asked::Nobody).unwrap().callers;
            assert_eq!(anywhere, Callers::AnybodyAnywhere);
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, word) in [
            ("nosuch = 1", "nosuch"),
            ("listen = []", "nobody"),
            ("listen = [\"8776\"]", "IP:PORT"),
            ("listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", "twice"),
            ("listen = [\"0.0.0.0:8776\"]", "plain text"),
            ("state_dir = \"here\"", "absolute"),
            ("sealing_key = \"keys\"", "absolute"),
            ("cluster = \"x\"", "cluster"),
            ("iqn_prefix = \"x\"", "iqn_prefix"),
            ("public_url = \"storage\"", "public_url"),
            ("public_url = \"https://a/v3\"", "public_url"),
            ("log = \"=,=\"", "log"),
            ("policies = \"p.yaml\"", "absolute"),
            ("show_secrets_on_get = \"some\"", "service"),
            ("[keystone]\nauth_url = \"https://k\"", "either"),
            ("[attach.hosts]\np = [\"h\"]", "no host of [[agents]]"),
            ("[attach.hosts]\n\"a b\" = []", "no project"),
            ("[tls]\ncert = \"/c\"", "tls.key"),
            ("[enrolment]\nauthority = \"a.crt\"", "enrolment.authority"),
            ("[enrolment]\nauthority_key = \"a.key\"", "enrolment.authority_key"),
            ("[enrolment]\nclient_cert = \"a.key\"", "enrolment.client_cert"),
            ("[enrolment]\nclient_key = \"a.key\"", "enrolment.client_key"),
            ("[enrolment]\nkey = \"/a.key\"", "unknown key"),
            ("[scheduler]\nreserved_percentage = 101", "reserved_percentage"),
            ("[scheduler]\nreserved_percentage = -1", "reserved_percentage"),
            ("[scheduler]\nmax_over_subscription_ratio = 0.9", "max_over_subscription_ratio"),
            ("[scheduler]\nmax_over_subscription_ratio = nan", "max_over_subscription_ratio"),
            ("[scheduler]\nfree_capacity_multiplier = inf", "free_capacity_multiplier"),
            ("[scheduler]\nmax_attempts = 0", "max_attempts"),
            ("[enrolment]\n[backend_names]\n\"a#\" = \"b\"", "AGENT#POOL"),
            ("[enrolment]\n[backend_names]\n\"#vg0\" = \"b\"", "AGENT#POOL"),
            ("[enrolment]\n[backend_names]\na = \" b\"", "is no name"),
            ("[backend_names]\na = \"b\"", "no such agent"),
            (
                "[scheduler]\ndefault_zone = \"b\"\n[[agents]]\nname = \"a\"\naddress = \"unix:/a\"",
                "zones: nova",
            ),
            ("[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\nzone = \"\"", "agents.zone"),
            ("[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\nzone = \"a,b\"", "agents.zone"),
            ("[[agents]]\nname = \"a\"", "agents.address"),
            ("[[agents]]\naddress = \"unix:/a\"", "agents.name"),
            ("[[agents]]\nname = \"a b\"\naddress = \"unix:/a\"", "agents.name"),
            ("[[agents]]\nname = \"a\"\naddress = \"a:1\"", "agents.address"),
            ("[[agents]]\nname = \"a\"\naddress = \"http://a:1\"", "plain text"),
            ("[[agents]]\nname = \"a\"\naddress = \"https://a:1\"", "all three"),
            ("[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\nca = \"/c\"", "https"),
        ] {
            let error =
                Config::parse(&format!("{GOOD}{text}"), "x", Asked::Everybody).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
            assert!(error.starts_with("x line "), "{text}: {error}");
        }
        let twice = "[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\n[[agents]]\nname = \"a\"\naddress = \"unix:/b\"";
        let error = Config::parse(&format!("{GOOD}{twice}"), "x", Asked::Everybody).unwrap_err().to_string();
        assert!(error.starts_with("x line 6:") && error.contains("twice"), "{error}");
    }

    #[test]
    fn nobody_is_let_in_from_a_network_without_a_token() {
        for listen in ["0.0.0.0:8776", "[::]:8776", "10.0.0.1:8776"] {
            let text = format!("insecure = true\nlisten = [\"127.0.0.1:1\", \"{listen}\"]");
            let error = Config::parse(&text, "x", Asked::NobodyOnLoopback).unwrap_err().to_string();
            assert!(error.contains("--no-auth"), "{error}");
            // With another flag, the operator wants it.
            assert!(Config::parse(&text, "x", Asked::Nobody).is_ok());
            assert!(Config::parse(&format!("{GOOD}{text}"), "x", Asked::Everybody).is_ok());
        }
        assert!(
            Config::parse("listen = [\"127.0.0.2:1\", \"[::1]:1\"]", "x", Asked::NobodyOnLoopback).is_ok()
        );
    }
}

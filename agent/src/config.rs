//! The agent's configuration: one TOML file, read once at start, checked as a whole before anything is touched.
//!
//! What must never happen here: a key that is ignored; a mistake reported without its line; plain text on a network
//! because of a default; a value that is corrected silently.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use mooring_api::Address;
use mooring_model::limit::{KERNEL_ANSWER_DEADLINE, KERNEL_ANSWER_DEADLINE_MAX, PORTALS_PER_EXPORT_MAX};
use mooring_model::{ByteSize, ClusterId, Cure, IqnPrefix, Portal, VgName};
use serde::Deserialize;
use toml::Spanned;
use tracing_subscriber::EnvFilter;

/// Where the file is unless the command line says otherwise.
pub const PATH_DEFAULT: &str = "/etc/mooring/agent.toml";

/// The documented example, as it is installed.
pub const EXAMPLE: &str = include_str!("../agent.example.toml");

/// Longest path of a unix socket: `sockaddr_un` has 108 bytes with the terminator.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Looking again every second is cheap; less often than hourly, a host that lost something would wait too long.
const RESYNC_SECONDS: Range<u32> = 1..3601;
const RESYNC_SECONDS_DEFAULT: u32 = 30;

/// The kernel's own default. 0 would fail I/O at the first hiccup; beyond an hour nobody waits for a disk.
const RECOVERY_TIMEOUT_SECONDS: Range<u32> = 1..3601;
const RECOVERY_TIMEOUT_SECONDS_DEFAULT: u32 = 120;

/// Below this an answer would never wait for the kernel at all.
const ANSWER_DEADLINE_MS_MIN: u32 = 100;

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Holds the store. Survives a reboot.
    pub state_dir: PathBuf,
    /// Holds the socket. Gone after a reboot.
    pub run_dir: PathBuf,
    /// Where the API listens.
    pub listen: Vec<Address>,
    /// Certificates for `https` addresses.
    pub tls: Option<Tls>,
    /// Plain text on a network is allowed.
    pub insecure: bool,
    /// The one cluster whose specs are taken; without it the first that comes is pinned.
    pub cluster: Option<ClusterId>,
    /// What stands before `:<volume uuid>` in target names.
    pub iqn_prefix: IqnPrefix,
    /// Where targets listen unless a spec says otherwise.
    pub portals: Vec<Portal>,
    /// The volume groups that may be used. No other group is ever touched.
    pub groups: Vec<Group>,
    /// How often everything is looked at again.
    pub resync_seconds: u64,
    /// How long an answer waits for the kernel unless the caller says otherwise.
    pub answer_deadline_ms: u32,
    /// LIO's folder in configfs.
    pub configfs: PathBuf,
    /// This host attaches volumes.
    pub host: Option<HostRole>,
    /// What is logged, as `tracing-subscriber` filters are written.
    pub log: String,
}

/// What a host that attaches volumes is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRole {
    /// Seconds that the I/O of a disk waits for its lost session before it fails (the kernel's `recovery_tmo`).
    pub recovery_timeout_seconds: u32,
}

/// PEM files of the API's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Our certificate, with its chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that signs the certificates of those who may call.
    pub client_ca: PathBuf,
}

/// A volume group that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: VgName,
    /// Bytes that no volume of ours takes.
    pub reserve: ByteSize,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the configuration {}: put one there (agent.example.toml explains every key) or name \
         another with --config", .path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A mistake that stands on a line.
    #[error("{file} line {line}: {why}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to write.
        why: String,
    },
    /// Something that stands nowhere and should.
    #[error("{file}: {why}")]
    Missing {
        /// The file.
        file: String,
        /// What to add.
        why: String,
    },
}

impl ConfigError {
    /// Who can cure it: whoever writes the file.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Checks a text; `name` is what errors call the file.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let file = File { name, text };
        let raw: RawConfig = toml::from_str(text).map_err(|error| file.of_toml(&error))?;

        let state_dir = file.path(raw.state_dir.as_ref(), "state_dir", "/var/lib/mooring")?;
        let run_dir = file.path(raw.run_dir.as_ref(), "run_dir", "/run/mooring")?;
        let tls = raw.tls.map(|tls| file.tls(&tls)).transpose()?;
        let listen = match &raw.listen {
            None => vec![Address::Unix(run_dir.join("agent.sock"))],
            Some(list) => file.listen(list, raw.insecure, tls.is_some())?,
        };
        let cluster = raw.cluster.map(|text| file.value(&text, "cluster")).transpose()?;
        let iqn_prefix = raw
            .iqn_prefix
            .map_or_else(|| Ok(IqnPrefix::default()), |text| file.value(&text, "iqn_prefix"))?;
        let host = raw.host.map(|host| file.host(&host)).transpose()?;
        // A host that only attaches volumes has no group, and serves on no portal.
        let attaches_only = host.is_some() && raw.groups.is_empty() && raw.portals.is_none();
        let (portals, groups) = if attaches_only {
            (Vec::new(), Vec::new())
        } else {
            (file.portals(raw.portals.as_ref())?, file.groups(&raw.groups)?)
        };
        let resync_seconds = file.number(
            raw.resync_seconds.as_ref(),
            "resync_seconds",
            RESYNC_SECONDS_DEFAULT,
            &RESYNC_SECONDS,
        )?;
        let answer_deadline_ms = file.number(
            raw.answer_deadline_ms.as_ref(),
            "answer_deadline_ms",
            millis(KERNEL_ANSWER_DEADLINE),
            &(ANSWER_DEADLINE_MS_MIN..millis(KERNEL_ANSWER_DEADLINE_MAX) + 1),
        )?;
        Ok(Self {
            state_dir,
            run_dir,
            listen,
            tls,
            insecure: raw.insecure,
            cluster,
            iqn_prefix,
            portals,
            groups,
            resync_seconds: u64::from(resync_seconds),
            answer_deadline_ms,
            configfs: file.path(raw.configfs.as_ref(), "configfs", "/sys/kernel/config/target")?,
            host,
            log: file.log(raw.log)?,
        })
    }

    /// The configured group of this name.
    pub fn group(&self, name: &VgName) -> Option<&Group> {
        self.groups.iter().find(|group| &group.name == name)
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX - 1)
}

// Values are taken as text with their place, and parsed below: every error then knows its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_dir: Option<Spanned<String>>,
    run_dir: Option<Spanned<String>>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    tls: Option<Spanned<RawTls>>,
    #[serde(default)]
    insecure: bool,
    cluster: Option<Spanned<String>>,
    iqn_prefix: Option<Spanned<String>>,
    portals: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    groups: Vec<Spanned<RawGroup>>,
    resync_seconds: Option<Spanned<u32>>,
    answer_deadline_ms: Option<Spanned<u32>>,
    configfs: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    host: Option<Spanned<RawHost>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    recovery_timeout_seconds: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    client_ca: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: Option<Spanned<String>>,
    reserve: Option<Spanned<String>>,
}

/// The text that is being checked, and how its errors are said.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }

    fn wrong(&self, span: &Range<usize>, why: impl Into<String>) -> ConfigError {
        ConfigError::Line { file: self.name.to_owned(), line: self.line(span), why: why.into() }
    }

    fn missing(&self, why: impl Into<String>) -> ConfigError {
        ConfigError::Missing { file: self.name.to_owned(), why: why.into() }
    }

    fn of_toml(&self, error: &toml::de::Error) -> ConfigError {
        // serde says "unknown field `x`, expected one of `a`, `b`"; in a file they are keys.
        let why = error.message().trim().replace('\n', "; ");
        let why = match why.strip_prefix("unknown field ") {
            Some(rest) => {
                let known = rest.replacen(", expected one of ", "; known keys: ", 1);
                format!("unknown key {}", known.replacen(", expected ", "; known keys: ", 1))
            }
            None => why,
        };
        match error.span() {
            Some(span) => self.wrong(&span, why),
            None => self.missing(why),
        }
    }

    fn value<T: FromStr>(&self, text: &Spanned<String>, key: &str) -> Result<T, ConfigError>
    where
        T::Err: Display,
    {
        text.get_ref().parse().map_err(|error| self.wrong(&text.span(), format!("{key}: {error}")))
    }

    fn path(&self, text: Option<&Spanned<String>>, key: &str, default: &str) -> Result<PathBuf, ConfigError> {
        let Some(text) = text else { return Ok(PathBuf::from(default)) };
        let path = PathBuf::from(text.get_ref());
        if path.is_absolute() {
            return Ok(path);
        }
        let found = text.get_ref();
        Err(self.wrong(&text.span(), format!("{key}: {found:?} is not an absolute path: want /…")))
    }

    fn number(
        &self,
        value: Option<&Spanned<u32>>,
        key: &str,
        default: u32,
        allowed: &Range<u32>,
    ) -> Result<u32, ConfigError> {
        let Some(value) = value else { return Ok(default) };
        let number = *value.get_ref();
        if allowed.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (allowed.start, allowed.end - 1);
        Err(self.wrong(&value.span(), format!("{key}: {number} is not allowed: want {low} to {high}")))
    }

    fn tls(&self, tls: &Spanned<RawTls>) -> Result<Tls, ConfigError> {
        let raw = tls.get_ref();
        let file = |value: &Option<Spanned<String>>, key: &str| match value {
            Some(_) => self.path(value.as_ref(), key, ""),
            None => Err(self.wrong(
                &tls.span(),
                format!(
                    "{key} is missing: TLS wants all three of cert, key and client_ca, or no [tls] at all"
                ),
            )),
        };
        Ok(Tls {
            cert: file(&raw.cert, "tls.cert")?,
            key: file(&raw.key, "tls.key")?,
            client_ca: file(&raw.client_ca, "tls.client_ca")?,
        })
    }

    fn host(&self, host: &Spanned<RawHost>) -> Result<HostRole, ConfigError> {
        let recovery_timeout_seconds = self.number(
            host.get_ref().recovery_timeout_seconds.as_ref(),
            "host.recovery_timeout_seconds",
            RECOVERY_TIMEOUT_SECONDS_DEFAULT,
            &RECOVERY_TIMEOUT_SECONDS,
        )?;
        Ok(HostRole { recovery_timeout_seconds })
    }

    fn listen(
        &self,
        list: &Spanned<Vec<Spanned<String>>>,
        insecure: bool,
        has_tls: bool,
    ) -> Result<Vec<Address>, ConfigError> {
        if list.get_ref().is_empty() {
            return Err(self.wrong(&list.span(), "listen: no address: nobody could reach this agent"));
        }
        let mut addresses = Vec::new();
        for text in list.get_ref() {
            let address: Address = self.value(text, "listen")?;
            if addresses.contains(&address) {
                return Err(self.wrong(&text.span(), format!("listen: {address} stands there twice")));
            }
            match &address {
                Address::Unix(path) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
                    let why = format!("listen: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes");
                    return Err(self.wrong(&text.span(), why));
                }
                Address::Plain(_) if !insecure => {
                    let why = format!(
                        "listen: {address} is plain text, and CHAP secrets would cross the network readable: \
                         use https://… with [tls], or say insecure = true"
                    );
                    return Err(self.wrong(&text.span(), why));
                }
                Address::Tls(_) if !has_tls => {
                    let why =
                        format!("listen: {address} needs [tls] with cert, key and client_ca; there is none");
                    return Err(self.wrong(&text.span(), why));
                }
                Address::Unix(_) | Address::Plain(_) | Address::Tls(_) => addresses.push(address),
            }
        }
        Ok(addresses)
    }

    fn portals(&self, list: Option<&Spanned<Vec<Spanned<String>>>>) -> Result<Vec<Portal>, ConfigError> {
        const WANT: &str = "no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]";
        let list = list.ok_or_else(|| self.missing(WANT))?;
        if list.get_ref().is_empty() {
            return Err(self.wrong(&list.span(), format!("portals: {WANT}")));
        }
        if list.get_ref().len() > PORTALS_PER_EXPORT_MAX {
            let why = format!("portals: more than {PORTALS_PER_EXPORT_MAX}");
            return Err(self.wrong(&list.span(), why));
        }
        let portals = list
            .get_ref()
            .iter()
            .map(|text| Ok((text.span(), self.value(text, "portals")?)))
            .collect::<Result<Vec<_>, _>>()?;
        self.unique(portals, "portals")
    }

    fn groups(&self, list: &[Spanned<RawGroup>]) -> Result<Vec<Group>, ConfigError> {
        if list.is_empty() {
            return Err(self.missing(
                "no volume group: list those that the agent may use, each as [[groups]] with name = \"vg0\"",
            ));
        }
        let mut names = Vec::new();
        let mut groups = Vec::new();
        for group in list {
            let raw = group.get_ref();
            let text = raw.name.as_ref().ok_or_else(|| {
                self.wrong(&group.span(), "groups.name is missing: want the name of a volume group")
            })?;
            let name: VgName = self.value(text, "groups.name")?;
            let reserve = match &raw.reserve {
                None => ByteSize(0),
                Some(text) => self.value(text, "groups.reserve")?,
            };
            names.push((text.span(), name.clone()));
            groups.push(Group { name, reserve });
        }
        self.unique(names, "groups.name")?;
        Ok(groups)
    }

    fn unique<T: Ord + Display + Clone + Hash>(
        &self,
        items: Vec<(Range<usize>, T)>,
        key: &str,
    ) -> Result<Vec<T>, ConfigError> {
        let mut seen = BTreeSet::new();
        for (span, item) in &items {
            if !seen.insert(item.clone()) {
                return Err(self.wrong(span, format!("{key}: {item} stands there twice")));
            }
        }
        Ok(items.into_iter().map(|(_, item)| item).collect())
    }

    fn log(&self, text: Option<Spanned<String>>) -> Result<String, ConfigError> {
        let Some(text) = text else { return Ok("info".to_owned()) };
        match EnvFilter::try_new(text.get_ref()) {
            Ok(_) => Ok(text.into_inner()),
            Err(error) => {
                let why = format!(
                    "log: {:?} is not a filter ({error}): want error, warn, info, debug or trace, also per \
                     part as info,mooring_targets=debug",
                    text.get_ref()
                );
                Err(self.wrong(&text.span(), why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\n";

    #[test]
    fn the_example_parses_and_says_the_defaults() {
        let example = Config::parse(EXAMPLE, "agent.example.toml").unwrap();
        let smallest = Config::parse(SMALLEST, "agent.toml").unwrap();
        // Everything but the site's own values stands in the example as it is by default.
        let same = Config { portals: smallest.portals.clone(), groups: smallest.groups.clone(), ..example };
        assert_eq!(same, smallest);
    }

    #[test]
    fn every_key_of_the_example_is_a_key() {
        // The commented-out lines must not rot: taken in, they parse too.
        let on = |line: &'static str| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let is_name = |key: &str| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let is_key = bare.starts_with('[') || bare.split_once(" = ").is_some_and(|(key, _)| is_name(key));
            if is_key { bare } else { line }
        };
        let on = EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n");
        let config = Config::parse(&on, "agent.example.toml").unwrap();
        assert!(config.tls.is_some() && config.cluster.is_some(), "{config:?}");
        assert_eq!(config.host, Some(HostRole { recovery_timeout_seconds: 120 }), "the default stands there");
    }

    #[test]
    fn defaults() {
        let config = Config::parse(SMALLEST, "agent.toml").unwrap();
        assert_eq!(config.listen, ["unix:/run/mooring/agent.sock".parse().unwrap()]);
        assert_eq!(config.answer_deadline_ms, 5000);
        assert_eq!(config.groups, [Group { name: "vg0".parse().unwrap(), reserve: ByteSize(0) }]);
        let moved = Config::parse(&format!("run_dir = \"/tmp/a\"\n{SMALLEST}"), "agent.toml").unwrap();
        assert_eq!(moved.listen, ["unix:/tmp/a/agent.sock".parse().unwrap()]);
    }

    #[test]
    fn network_addresses() {
        let tls = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/ca\"\n";
        let config =
            Config::parse(&format!("listen = [\"https://h:1\"]\n{SMALLEST}{tls}"), "agent.toml").unwrap();
        assert_eq!(config.tls.unwrap().client_ca, Path::new("/ca"));
        let config =
            Config::parse(&format!("insecure = true\nlisten = [\"http://h:1\"]\n{SMALLEST}"), "agent.toml");
        assert!(config.unwrap().insecure);
    }

    /// Puts the line in front of the smallest configuration and returns the message.
    fn message(line: &str) -> String {
        Config::parse(&format!("# first\n{line}\n{SMALLEST}"), "agent.toml").unwrap_err().to_string()
    }

    #[test]
    fn each_mistake_has_its_line() {
        let long = format!("listen = [\"unix:/{}\"]", "x".repeat(107));
        for (line, want) in [
            ("listen = [\"unix:/a\"", "agent.toml line "),
            ("insecure = 1", "agent.toml line 2: invalid type: integer `1`, expected a boolean"),
            ("state_dir = \"var\"", "agent.toml line 2: state_dir: \"var\" is not an absolute path: want /…"),
            ("configfs = \"\"", "agent.toml line 2: configfs: \"\" is not an absolute path: want /…"),
            ("listen = []", "agent.toml line 2: listen: no address: nobody could reach this agent"),
            (
                "listen = [\"storage1\"]",
                "agent.toml line 2: listen: \"storage1\" is not an agent's address: want unix:/PATH, \
                 https://HOST:PORT or http://HOST:PORT",
            ),
            (
                "listen = [\n\"unix:/a\",\n\"unix:/a\"]",
                "agent.toml line 4: listen: unix:/a stands there twice",
            ),
            (&long, "agent.toml line 2: listen: a socket's path has at most 107 bytes"),
            (
                "listen = [\"http://h:1\"]",
                "agent.toml line 2: listen: http://h:1 is plain text, and CHAP secrets would cross the network \
                 readable: use https://… with [tls], or say insecure = true",
            ),
            (
                "listen = [\"https://h:1\"]",
                "agent.toml line 2: listen: https://h:1 needs [tls] with cert, key and client_ca; there is none",
            ),
            (
                "cluster = \"x\"",
                "agent.toml line 2: cluster: cluster id \"x\" is not a UUID (want 8-4-4-4-12 hexadecimal digits)",
            ),
            (
                "iqn_prefix = \"iqn.2026-01.lab:x\"",
                "agent.toml line 2: iqn_prefix: \"iqn.2026-01.lab:x\" is not an IQN prefix: the part after ':' is \
                 the volume's id",
            ),
            ("resync_seconds = 0", "agent.toml line 2: resync_seconds: 0 is not allowed: want 1 to 3600"),
            (
                "answer_deadline_ms = 300001",
                "agent.toml line 2: answer_deadline_ms: 300001 is not allowed: want 100 to 300000",
            ),
            ("log = \"info,a=loud\"", "agent.toml line 2: log: \"info,a=loud\" is not a filter"),
        ] {
            let message = message(line);
            assert!(message.starts_with(want), "{line}\n{message}\n{want}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_with_the_known_ones() {
        assert_eq!(
            message("prot = 1"),
            "agent.toml line 2: unknown key `prot`; known keys: `state_dir`, `run_dir`, `listen`, `tls`, \
             `insecure`, `cluster`, `iqn_prefix`, `portals`, `groups`, `resync_seconds`, `answer_deadline_ms`, \
             `configfs`, `log`, `host`"
        );
        let text = format!("{SMALLEST}resrve = \"1GiB\"\n");
        assert_eq!(
            Config::parse(&text, "agent.toml").unwrap_err().to_string(),
            "agent.toml line 4: unknown key `resrve`; known keys: `name` or `reserve`"
        );
    }

    #[test]
    fn portals_groups_and_tls() {
        let whole = |text: &str| Config::parse(text, "agent.toml").unwrap_err().to_string();
        for (text, want) in [
            ("", "agent.toml: no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]"),
            (
                "portals = []",
                "agent.toml line 1: portals: no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]",
            ),
            (
                "portals = [\"0.0.0.0\"]",
                "agent.toml line 1: portals: \"0.0.0.0\" is not an IPv4 portal: want one address of this machine, \
                 not a wildcard or group address",
            ),
            (
                "portals = [\"10.0.0.1\",\n \"10.0.0.1:3260\"]",
                "agent.toml line 2: portals: 10.0.0.1:3260 stands there twice",
            ),
            (
                "portals = [\"10.0.0.1\"]",
                "agent.toml: no volume group: list those that the agent may use, each as [[groups]] with name = \
                 \"vg0\"",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nreserve = \"1GiB\"",
                "agent.toml line 2: groups.name is missing: want the name of a volume group",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a/b\"",
                "agent.toml line 3: groups.name: \"a/b\" is not a volume group name: only letters, digits, '+', '_', \
                 '.' and '-' are allowed",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\nreserve = \"some\"",
                "agent.toml line 4: groups.reserve: \"some\" is not a size: want a whole number with B, KiB, MiB, GiB \
                 or TiB, for example 10GiB",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[[groups]]\nname = \"a\"",
                "agent.toml line 5: groups.name: a stands there twice",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[tls]\ncert = \"/c\"\nkey = \"/k\"",
                "agent.toml line 4: tls.client_ca is missing: TLS wants all three of cert, key and client_ca, or no \
                 [tls] at all",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[tls]\ncert = \"c\"",
                "agent.toml line 5: tls.cert: \"c\" is not an absolute path: want /…",
            ),
        ] {
            assert_eq!(whole(text), want, "{text}");
        }
    }

    #[test]
    fn a_host_that_attaches() {
        let parse = |text: &str| Config::parse(text, "agent.toml").map_err(|error| error.to_string());
        let only = parse("[host]").unwrap();
        assert_eq!(only.host, Some(HostRole { recovery_timeout_seconds: 120 }));
        assert!(only.groups.is_empty() && only.portals.is_empty());
        let both = parse(&format!("{SMALLEST}[host]\nrecovery_timeout_seconds = 30\n")).unwrap();
        assert_eq!((both.groups.len(), both.host.unwrap().recovery_timeout_seconds), (1, 30));
        // Half of the other role is a mistake also here.
        assert!(parse("portals = [\"10.0.0.1\"]\n[host]").unwrap_err().contains("no volume group"));
        assert!(parse("[host]\n[[groups]]\nname = \"vg0\"").unwrap_err().contains("no portal"));
        assert_eq!(
            parse("[host]\nrecovery_timeout_seconds = 0").unwrap_err(),
            "agent.toml line 2: host.recovery_timeout_seconds: 0 is not allowed: want 1 to 3600"
        );
        assert_eq!(
            parse("[host]\nsessiond = 1").unwrap_err(),
            "agent.toml line 2: unknown key `sessiond`; known keys: `recovery_timeout_seconds`"
        );
    }

    #[test]
    fn a_file_that_is_not_there() {
        let error = Config::load(Path::new("/nonexistent/agent.toml")).unwrap_err();
        assert_eq!(error.cure(), Cure::Operator);
        assert!(
            error.to_string().starts_with("cannot read the configuration /nonexistent/agent.toml: put one")
        );
    }
}

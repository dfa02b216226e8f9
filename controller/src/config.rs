//! The controller's configuration: one TOML file, read once at start, checked as a whole before anything is touched.
//!
//! What must never happen here: a key that is ignored; a mistake reported without its line; plain text or an API without
//! authentication on a network because of a default; a value that is corrected silently.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mooring_api::{Address, TlsFiles};
use mooring_model::{ClusterId, Cure, IqnPrefix};
use serde::Deserialize;
use toml::Spanned;
use tracing_subscriber::EnvFilter;

use crate::service::AgentEntry;

/// Where the file is unless the command line says otherwise.
pub const PATH_DEFAULT: &str = "/etc/mooring/controller.toml";

/// The documented example, as it is installed.
pub const EXAMPLE: &str = include_str!("../controller.example.toml");

/// Where the API listens unless the file says otherwise: the port of the Block Storage API.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 8776));

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the database.
    pub state_dir: PathBuf,
    /// Where the API listens.
    pub listen: Vec<SocketAddr>,
    /// The API's certificate; without it the API is plain HTTP.
    pub tls: Option<Tls>,
    /// The tokens of those who may call. `None` only where nobody is asked.
    pub tokens: Option<PathBuf>,
    /// What stands before `:<volume uuid>` in target names.
    pub iqn_prefix: IqnPrefix,
    /// The cluster's id, if it is not the database's own.
    pub cluster: Option<ClusterId>,
    /// The enrolled agents.
    pub agents: Vec<AgentEntry>,
    /// How clients call us, where a proxy hides it.
    pub public_url: Option<String>,
    /// What is logged, as `tracing-subscriber` filters are written.
    pub log: String,
}

/// PEM files of the API's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Our certificate, with its chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the configuration {}: put one there (controller.example.toml explains every key) or name \
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
    /// Reads and checks a file. `no_auth`: the command line says that nobody is asked who they are.
    pub fn load(path: &Path, no_auth: bool) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string(), no_auth)
    }

    /// Checks a text; `name` is what errors call the file.
    pub fn parse(text: &str, name: &str, no_auth: bool) -> Result<Self, ConfigError> {
        let file = File { name, text };
        let raw: RawConfig = toml::from_str(text).map_err(|error| file.of_toml(&error))?;
        let state_dir = file.path(raw.state_dir.as_ref(), "state_dir", "/var/lib/mooring-controller")?;
        let tls = raw.tls.as_ref().map(|tls| file.tls(tls)).transpose()?;
        let listen = file.listen(raw.listen.as_ref(), raw.insecure || tls.is_some(), no_auth)?;
        let tokens = match &raw.tokens {
            Some(_) => Some(file.path(raw.tokens.as_ref(), "tokens", "")?),
            None if no_auth => None,
            None => {
                return Err(file.missing(
                    "tokens is missing: name the file with the tokens of those who may call (`mooring-controller \
                     token` makes them), or start with --no-auth on loopback",
                ));
            }
        };
        let iqn_prefix = match &raw.iqn_prefix {
            None => IqnPrefix::default(),
            Some(text) => file.value(text, "iqn_prefix")?,
        };
        Ok(Self {
            state_dir,
            listen,
            tls,
            tokens: tokens.filter(|_| !no_auth),
            iqn_prefix,
            cluster: raw.cluster.map(|text| file.value(&text, "cluster")).transpose()?,
            agents: file.agents(&raw.agents)?,
            public_url: raw.public_url.map(|text| file.public_url(&text)).transpose()?,
            log: file.log(raw.log)?,
        })
    }
}

// Values are taken as text with their place, and parsed below: every error then knows its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_dir: Option<Spanned<String>>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    tls: Option<Spanned<RawTls>>,
    #[serde(default)]
    insecure: bool,
    tokens: Option<Spanned<String>>,
    iqn_prefix: Option<Spanned<String>>,
    cluster: Option<Spanned<String>>,
    #[serde(default)]
    agents: Vec<Spanned<RawAgent>>,
    public_url: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAgent {
    name: Option<Spanned<String>>,
    address: Option<Spanned<String>>,
    ca: Option<Spanned<String>>,
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    #[serde(default)]
    insecure: bool,
}

/// The text that is being checked, and how its errors are said.
pub(crate) struct File<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

impl File<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }

    pub(crate) fn wrong(&self, span: &Range<usize>, why: impl Into<String>) -> ConfigError {
        ConfigError::Line { file: self.name.to_owned(), line: self.line(span), why: why.into() }
    }

    pub(crate) fn missing(&self, why: impl Into<String>) -> ConfigError {
        ConfigError::Missing { file: self.name.to_owned(), why: why.into() }
    }

    pub(crate) fn of_toml(&self, error: &toml::de::Error) -> ConfigError {
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

    fn tls(&self, tls: &Spanned<RawTls>) -> Result<Tls, ConfigError> {
        let raw = tls.get_ref();
        let file = |value: &Option<Spanned<String>>, key: &str| {
            if value.is_some() {
                return self.path(value.as_ref(), key, "");
            }
            let why = format!("{key} is missing: TLS wants both cert and key, or no [tls] at all");
            Err(self.wrong(&tls.span(), why))
        };
        Ok(Tls { cert: file(&raw.cert, "tls.cert")?, key: file(&raw.key, "tls.key")? })
    }

    fn listen(
        &self,
        list: Option<&Spanned<Vec<Spanned<String>>>>,
        guarded: bool,
        no_auth: bool,
    ) -> Result<Vec<SocketAddr>, ConfigError> {
        let Some(list) = list else { return Ok(vec![LISTEN_DEFAULT]) };
        if list.get_ref().is_empty() {
            return Err(self.wrong(&list.span(), "listen: no address: nobody could reach this controller"));
        }
        let mut addresses = Vec::new();
        for text in list.get_ref() {
            let span = text.span();
            let address: SocketAddr = text.get_ref().parse().map_err(|_| {
                let found = text.get_ref();
                let why = format!("listen: {found:?} is not IP:PORT: want 127.0.0.1:8776 or [::1]:8776");
                self.wrong(&span, why)
            })?;
            if addresses.contains(&address) {
                return Err(self.wrong(&span, format!("listen: {address} stands there twice")));
            }
            if !address.ip().is_loopback() && no_auth {
                let why = format!(
                    "listen: {address} is not loopback: with --no-auth everybody who reaches it could delete every \
                     volume; name loopback addresses only, or give tokens"
                );
                return Err(self.wrong(&span, why));
            }
            if !address.ip().is_loopback() && !guarded {
                let why = format!(
                    "listen: {address} is plain text, and tokens and CHAP secrets would cross the network readable: \
                     give [tls], or say insecure = true"
                );
                return Err(self.wrong(&span, why));
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn agents(&self, list: &[Spanned<RawAgent>]) -> Result<Vec<AgentEntry>, ConfigError> {
        let mut agents: Vec<AgentEntry> = Vec::new();
        for entry in list {
            let raw = entry.get_ref();
            let need = |value: &Option<Spanned<String>>, why: &str| match value {
                Some(text) => Ok(text.clone()),
                None => Err(self.wrong(&entry.span(), why)),
            };
            let name = need(&raw.name, "agents.name is missing: want what people call this host")?;
            let text = need(&raw.address, "agents.address is missing: want unix:/PATH or https://HOST:PORT")?;
            // It becomes part of `host@lvm#pool`, and of command lines.
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let ok = !name.get_ref().is_empty() && name.get_ref().len() <= 255;
            if !ok || !name.get_ref().bytes().all(known) {
                let why = "agents.name: want 1 to 255 letters, digits, -, _ and .";
                return Err(self.wrong(&name.span(), why));
            }
            if agents.iter().any(|agent| &agent.name == name.get_ref()) {
                let why = format!("agents.name: {} stands there twice", name.get_ref());
                return Err(self.wrong(&name.span(), why));
            }
            let address: Address = self.value(&text, "agents.address")?;
            if agents.iter().any(|agent| agent.address == address) {
                return Err(self.wrong(&text.span(), format!("agents.address: {address} stands there twice")));
            }
            let tls = self.agent_tls(entry, &address)?;
            if matches!(address, Address::Plain(_)) && !raw.insecure {
                let why = format!(
                    "agents.address: {address} is plain text, and CHAP secrets would cross the network readable: \
                     use https://… with ca, cert and key, or say insecure = true for this agent"
                );
                return Err(self.wrong(&text.span(), why));
            }
            let name = name.into_inner();
            agents.push(AgentEntry { name, address, tls, insecure: raw.insecure });
        }
        Ok(agents)
    }

    fn agent_tls(&self, entry: &Spanned<RawAgent>, address: &Address) -> Result<TlsFiles, ConfigError> {
        let raw = entry.get_ref();
        let file = |value: &Option<Spanned<String>>, key: &str| match value {
            Some(_) => self.path(value.as_ref(), key, "").map(Some),
            None => Ok(None),
        };
        let files = TlsFiles {
            ca: file(&raw.ca, "agents.ca")?,
            cert: file(&raw.cert, "agents.cert")?,
            key: file(&raw.key, "agents.key")?,
        };
        let all = files.ca.is_some() && files.cert.is_some() && files.key.is_some();
        let any = files.ca.is_some() || files.cert.is_some() || files.key.is_some();
        match address {
            Address::Tls(_) if !all => Err(self.wrong(
                &entry.span(),
                format!(
                    "agents: {address} wants all three of ca, cert and key: both sides show certificates"
                ),
            )),
            Address::Unix(_) | Address::Plain(_) if any => Err(self.wrong(
                &entry.span(),
                format!("agents: ca, cert and key are for https addresses, and {address} is none"),
            )),
            Address::Tls(_) | Address::Unix(_) | Address::Plain(_) => Ok(files),
        }
    }

    /// The beginning of links: scheme, host, and perhaps a path.
    fn public_url(&self, text: &Spanned<String>) -> Result<String, ConfigError> {
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
            return Err(self.wrong(&text.span(), why));
        }
        Ok(url.to_owned())
    }

    fn log(&self, text: Option<Spanned<String>>) -> Result<String, ConfigError> {
        let Some(text) = text else { return Ok("info".to_owned()) };
        match EnvFilter::try_new(text.get_ref()) {
            Ok(_) => Ok(text.into_inner()),
            Err(error) => {
                let why = format!(
                    "log: {:?} is not a filter ({error}): want error, warn, info, debug or trace, also per part as \
                     info,mooring_controller=debug",
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

    const GOOD: &str = "tokens = \"/etc/mooring/tokens.toml\"\n";

    #[test]
    fn the_example_is_a_configuration_and_shows_every_key() {
        let config = Config::parse(EXAMPLE, "example", false).unwrap();
        assert_eq!(config.listen, [LISTEN_DEFAULT]);
        let all = [
            "state_dir",
            "listen",
            "insecure",
            "tokens",
            "iqn_prefix",
            "cluster",
            "public_url",
            "log",
            "[tls]",
            "cert",
            "key",
            "[[agents]]",
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
        // What is commented out is right, too.
        let lines: Vec<_> = EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.starts_with('[') || rest.contains(" = ") && !rest.ends_with('.') => rest,
                _ => line,
            })
            .collect();
        Config::parse(&lines.join("\n"), "example", false).unwrap();
    }

    #[test]
    fn little_is_enough() {
        let config = Config::parse(GOOD, "x", false).unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/mooring-controller"));
        assert!(Config::parse("", "x", false).unwrap_err().to_string().contains("tokens"));
        assert_eq!(Config::parse("", "x", true).unwrap().tokens, None);
        assert_eq!(Config::parse(GOOD, "x", true).unwrap().tokens, None);
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
            ("cluster = \"x\"", "cluster"),
            ("iqn_prefix = \"x\"", "iqn_prefix"),
            ("public_url = \"storage\"", "public_url"),
            ("public_url = \"https://a/v3\"", "public_url"),
            ("log = \"=,=\"", "log"),
            ("[tls]\ncert = \"/c\"", "tls.key"),
            ("[[agents]]\nname = \"a\"", "agents.address"),
            ("[[agents]]\naddress = \"unix:/a\"", "agents.name"),
            ("[[agents]]\nname = \"a b\"\naddress = \"unix:/a\"", "agents.name"),
            ("[[agents]]\nname = \"a\"\naddress = \"a:1\"", "agents.address"),
            ("[[agents]]\nname = \"a\"\naddress = \"http://a:1\"", "plain text"),
            ("[[agents]]\nname = \"a\"\naddress = \"https://a:1\"", "all three"),
            ("[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\nca = \"/c\"", "https"),
        ] {
            let error = Config::parse(&format!("{GOOD}{text}"), "x", false).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
            assert!(error.starts_with("x line "), "{text}: {error}");
        }
        let twice = "[[agents]]\nname = \"a\"\naddress = \"unix:/a\"\n[[agents]]\nname = \"a\"\naddress = \"unix:/b\"";
        let error = Config::parse(&format!("{GOOD}{twice}"), "x", false).unwrap_err().to_string();
        assert!(error.starts_with("x line 6:") && error.contains("twice"), "{error}");
    }

    #[test]
    fn nobody_is_let_in_from_a_network_without_a_token() {
        for listen in ["0.0.0.0:8776", "[::]:8776", "10.0.0.1:8776"] {
            let text = format!("insecure = true\nlisten = [\"127.0.0.1:1\", \"{listen}\"]");
            let error = Config::parse(&text, "x", true).unwrap_err().to_string();
            assert!(error.contains("--no-auth"), "{error}");
            assert!(Config::parse(&format!("{GOOD}{text}"), "x", false).is_ok());
        }
        assert!(Config::parse("listen = [\"127.0.0.2:1\", \"[::1]:1\"]", "x", true).is_ok());
    }
}

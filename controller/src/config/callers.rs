//! The part of the configuration about the authentication of callers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, File};
use crate::auth::{keystone, project_ok};
use crate::service::{AgentEntry, SecretsOnGet};

/// The default time for which Keystone's answers are remembered, and the longest, in seconds.
const REMEMBER_DEFAULT: u64 = 300;
const REMEMBER_MAX: u64 = 3_600;

/// The default time limit of one request to Keystone, and the longest, in seconds.
const TIMEOUT_DEFAULT: u64 = 10;
const TIMEOUT_MAX: u64 = 60;

/// The authentication that the command line demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Every caller is authenticated, as it must be on a network.
    Everybody,
    /// `--no-auth`: no caller is, and listeners are on loopback only.
    NobodyOnLoopback,
    /// `--no-auth` with `--no-auth-on-networks`: no caller is, and everybody who reaches us is an
    /// admin.
    Nobody,
}

/// The way in which callers are authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callers {
    /// Tokens of this file.
    Tokens(PathBuf),
    /// Tokens that Keystone knows.
    Keystone(Box<keystone::Options>),
    /// None, for every program on this machine.
    Anybody,
    /// None, for everybody who reaches us.
    AnybodyAnywhere,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKeystone {
    auth_url: Option<Spanned<String>>,
    public_url: Option<Spanned<String>>,
    username: Option<Spanned<String>>,
    password_file: Option<Spanned<String>>,
    user_domain: Option<Spanned<String>>,
    project: Option<Spanned<String>>,
    project_domain: Option<Spanned<String>>,
    ca: Option<Spanned<String>>,
    cache_seconds: Option<Spanned<u64>>,
    timeout_seconds: Option<Spanned<u64>>,
    service_token_roles: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    insecure: bool,
}

/// Reads the hosts that a project's members may attach to natively.
pub(super) fn native_hosts(
    file: &File<'_>,
    raw: &BTreeMap<String, Spanned<Vec<Spanned<String>>>>,
    agents: &[AgentEntry],
    others_join: bool,
) -> Result<BTreeMap<String, BTreeSet<String>>, ConfigError> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (project, hosts) in raw {
        if !project_ok(project) {
            let why =
                format!("attach.hosts: {project:?} is no project: want 1 to 64 letters, digits, - and _");
            return Err(file.wrong(&hosts.span(), why));
        }
        let named = all.entry(project.clone()).or_default();
        for host in hosts.get_ref() {
            let name = host.get_ref();
            // Hosts that join are not known here.
            if !others_join && agents.iter().all(|agent| &agent.name != name) {
                let why = format!("attach.hosts: {name:?} is no host of [[agents]]: want a name from there");
                return Err(file.wrong(&host.span(), why));
            }
            named.insert(name.clone());
        }
    }
    Ok(all)
}

pub(super) fn callers(
    file: &File<'_>,
    tokens: Option<&Spanned<String>>,
    keystone: Option<&Spanned<RawKeystone>>,
    asked: Asked,
) -> Result<Callers, ConfigError> {
    let found = match (tokens, keystone) {
        (Some(_), Some(keystone)) => {
            let why = "[keystone] and tokens: want either one or the other";
            return Err(file.wrong(&keystone.span(), why));
        }
        (Some(tokens), None) => Some(Callers::Tokens(file.path(tokens, "tokens")?)),
        (None, Some(raw)) => Some(Callers::Keystone(Box::new(keystone_options(file, raw)?))),
        (None, None) => None,
    };
    match asked {
        Asked::NobodyOnLoopback => Ok(Callers::Anybody),
        Asked::Nobody => Ok(Callers::AnybodyAnywhere),
        Asked::Everybody => found.ok_or_else(|| {
            file.missing(
                "tokens is missing: name the file with the tokens of those who may call (`mooring-controller \
                 token` makes them), or say in [keystone] where they come from, or start with --no-auth on \
                 loopback",
            )
        }),
    }
}

fn keystone_options(file: &File<'_>, table: &Spanned<RawKeystone>) -> Result<keystone::Options, ConfigError> {
    let raw = table.get_ref();
    let need = |value: &Option<Spanned<String>>, key: &str| match value {
        Some(text) if !text.get_ref().is_empty() => Ok(text.clone()),
        _ => Err(file.wrong(&table.span(), format!("keystone.{key} is missing"))),
    };
    let or = |value: &Option<Spanned<String>>, default: &str| {
        value.as_ref().map_or_else(|| default.to_owned(), |text| text.get_ref().clone())
    };
    let text = need(&raw.auth_url, "auth_url")?;
    let url = keystone_url(file, &text, "auth_url")?;
    let public_uri = match &raw.public_url {
        Some(text) => keystone_url(file, text, "public_url")?,
        None => url.clone(),
    };
    if url.starts_with("http://") && !raw.insecure && !is_loopback(&url) {
        let why = "keystone.auth_url: this is plain text, and our password and everybody's tokens would cross the \
                   network readable: want https://…, or say insecure = true";
        return Err(file.wrong(&text.span(), why));
    }
    let password_file = need(&raw.password_file, "password_file")?;
    let seconds = |value: &Option<Spanned<u64>>, key: &str, default: u64, least: u64, most: u64| match value {
        None => Ok(Duration::from_secs(default)),
        Some(value) if (least..=most).contains(value.get_ref()) => Ok(Duration::from_secs(*value.get_ref())),
        Some(value) => Err(file.wrong(&value.span(), format!("keystone.{key}: want {least} to {most}"))),
    };
    let service_roles = match &raw.service_token_roles {
        None => vec!["service".to_owned()],
        Some(roles) => roles.get_ref().clone(),
    };
    Ok(keystone::Options {
        url,
        public_uri,
        username: need(&raw.username, "username")?.into_inner(),
        password_file: file.path(&password_file, "keystone.password_file")?,
        user_domain: or(&raw.user_domain, "Default"),
        project: or(&raw.project, "service"),
        project_domain: or(&raw.project_domain, "Default"),
        ca: file.optional_path(raw.ca.as_ref(), "keystone.ca")?,
        remember: seconds(&raw.cache_seconds, "cache_seconds", REMEMBER_DEFAULT, 0, REMEMBER_MAX)?,
        timeout: seconds(&raw.timeout_seconds, "timeout_seconds", TIMEOUT_DEFAULT, 1, TIMEOUT_MAX)?,
        service_roles,
    })
}

/// Reads Keystone's address without `/v3`.
fn keystone_url(file: &File<'_>, text: &Spanned<String>, key: &str) -> Result<String, ConfigError> {
    let plain = |url: &Url| {
        url.has_host() && url.query().is_none() && url.fragment().is_none() && url.username().is_empty()
    };
    match text.get_ref().parse::<Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") && plain(&url) => {
            let url = url.as_str().trim_end_matches('/');
            Ok(url.strip_suffix("/v3").unwrap_or(url).to_owned())
        }
        Ok(_) | Err(_) => {
            let why =
                format!("keystone.{key}: want https://HOST[:PORT][/PATH], without a name or a password");
            Err(file.wrong(&text.span(), why))
        }
    }
}

pub(super) fn secrets_on_get(
    file: &File<'_>,
    text: Option<&Spanned<String>>,
) -> Result<SecretsOnGet, ConfigError> {
    let Some(text) = text else { return Ok(SecretsOnGet::Service) };
    match text.get_ref().as_str() {
        "service" => Ok(SecretsOnGet::Service),
        "all" => Ok(SecretsOnGet::All),
        other => {
            let why = format!("show_secrets_on_get: {other:?}: want \"service\" or \"all\"");
            Err(file.wrong(&text.span(), why))
        }
    }
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = url.parse::<Url>() else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const GOOD: &str = "[keystone]\nauth_url = \"https://id.example.org:5000/v3/\"\nusername = \"mooring\"\n\
                        password_file = \"/etc/mooring/keystone\"\n";

    fn parsed(text: &str) -> Result<keystone::Options, String> {
        match Config::parse(text, "x", Asked::Everybody).map_err(|error| error.to_string())?.callers {
            Callers::Keystone(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn little_is_enough() {
        let found = parsed(GOOD).unwrap();
        assert_eq!(
            (found.url.as_str(), found.public_uri.as_str()),
            ("https://id.example.org:5000", found.url.as_str())
        );
        assert_eq!((found.project.as_str(), found.user_domain.as_str()), ("service", "Default"));
        assert_eq!((found.remember, found.timeout), (Duration::from_mins(5), Duration::from_secs(10)));
        assert_eq!(found.service_roles, ["service"]);
        for url in ["http://127.0.0.1:5000", "http://localhost/identity", "http://[::1]:5000/v3"] {
            let found = parsed(&GOOD.replace("https://id.example.org:5000/v3/", url)).unwrap();
            assert_eq!(found.url, url.trim_end_matches("/v3"));
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, word) in [
            (GOOD.replace("username = \"mooring\"\n", ""), "keystone.username"),
            (GOOD.replace("/etc/mooring/keystone", "keystone"), "absolute"),
            (GOOD.replace("https://id", "http://id"), "plain text"),
            (GOOD.replace("https://id", "ftp://id"), "keystone.auth_url"),
            (GOOD.replace("https://id", "https://me:pw@id"), "without a name"),
            (GOOD.replace("/v3/", "/v3?x=1"), "keystone.auth_url"),
            (format!("{GOOD}cache_seconds = 3601"), "cache_seconds"),
            (format!("{GOOD}timeout_seconds = 0"), "timeout_seconds"),
            (format!("{GOOD}password = \"x\""), "unknown key"),
            (format!("tokens = \"/t\"\n{GOOD}"), "either"),
        ] {
            let error = parsed(&text).unwrap_err();
            assert!(error.contains(word) && error.starts_with("x line "), "{text}: {error}");
        }
        assert!(parsed(&format!("{}insecure = true", GOOD.replace("https://id", "http://id"))).is_ok());
    }
}

//! `mooring-controller init`: makes the files of a new controller, each once.
//!
//! Keys come before the certificates over them. The configuration comes last, since the unit waits
//! for it. A second run after a kill makes what is missing.
//!
//! What must never happen here: an existing file changed or replaced; a private key that others can
//! read; a token that is in the file and was not printed.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mooring_systemd::certificates::{self, CertificateError};
use mooring_systemd::folder::{self, Kept};
use mooring_systemd::paths::{CONFIG_DIR, CONTROLLER_USER};
use nix::unistd::{User, geteuid, gethostname};

use crate::auth::{NewToken, NewTokenError};
use crate::authority::{self, Authority, AuthorityError};
use crate::config::{Asked, Config, ConfigError};
use crate::share::ShareError;

pub mod second;
mod settings;

use settings::Settings;

/// The mode of a file that only its owner reads.
const PRIVATE: u32 = 0o600;
/// The mode of a file that its group reads as well.
const GUARDED: u32 = 0o640;
/// The mode of a file that is not secret.
const PUBLIC: u32 = 0o644;

/// A failed init. The files that it made stay, and the next run continues with them.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file or folder cannot be made or read.
    #[error("cannot {verb} {}: run this as root, or name a folder that is yours with --folder", .path.display())]
    File {
        /// The attempt, as a verb.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A certificate exists without its key.
    #[error(
        "{} is there, and its key {} is not: restore the key from a backup, or move the certificate away and run this again",
        .certificate.display(), .key.display()
    )]
    NoKey {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// No name is known by which others reach this machine.
    #[error("this machine has no address but loopback: name it with --name")]
    NoName,
    /// The path of a folder is not absolute.
    #[error("--folder {}: want an absolute path", .0.display())]
    Folder(PathBuf),
    /// The authority cannot be made, loaded or used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// An existing certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The existing configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file exists, and a controller that joins another one changes none.
    #[error("{} is there, and this machine gets its own from the first controller: move it away, and run this again", .0.display())]
    There(PathBuf),
    /// The first controller's file cannot be used.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The token cannot be made.
    #[error(transparent)]
    Token(#[from] NewTokenError),
    /// The report cannot be printed.
    #[error("cannot print what was made")]
    Print(#[source] io::Error),
    /// The example lacks a line that is to be filled in.
    #[error("the example configuration has no line {0:?}: this is a bug of Mooring, please report it")]
    Example(&'static str),
}

/// One run of init on one folder.
struct Init<'a> {
    folder: &'a Path,
    owner: Option<(u32, u32)>,
    now: SystemTime,
    out: &'a mut dyn Write,
}

/// Makes everything that is missing in `folder`. Prints what it made, and the next commands.
pub fn init(folder: &Path, names: &[String], now: SystemTime, out: &mut dyn Write) -> Result<(), InitError> {
    if !folder.is_absolute() {
        return Err(InitError::Folder(folder.to_owned()));
    }
    let names = if names.is_empty() { own_names()? } else { names.to_vec() };
    let owner = if geteuid().is_root() { controller_user() } else { None };
    let mut init = Init { folder, owner, now, out };
    init.make_folders()?;
    let authority = init.authority(&names)?;
    let server = init.certificate("controller/server", &|key| authority.sign_server(key, &names, now))?;
    let client = init.certificate("controller/client", &|key| authority.sign_client(key, now))?;
    let settings = Settings {
        names: &names,
        tokens: init.at("tokens.toml"),
        authority: (init.at("authority.crt"), init.at("authority.key")),
        server,
        client,
    };
    init.token()?;
    init.config(&settings)?;
    init.say(&format!("pin of the authority: {}", authority.pin()))?;
    init.next(&settings)
}

impl Init<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn say(&mut self, text: &str) -> Result<(), InitError> {
        writeln!(self.out, "{text}").and_then(|()| self.out.flush()).map_err(InitError::Print)
    }

    /// Makes the folder, and in it the folder of the certificates that the controller renews by
    /// itself.
    fn make_folders(&mut self) -> Result<(), InitError> {
        let failed = |path: &Path, source| InitError::File { verb: "make", path: path.to_owned(), source };
        let make = |path: &Path, mode| fs::DirBuilder::new().recursive(true).mode(mode).create(path);
        make(self.folder, 0o750).map_err(|source| failed(self.folder, source))?;
        let renewed = self.at("controller");
        if !renewed.is_dir() {
            make(&renewed, 0o700).map_err(|source| failed(&renewed, source))?;
        }
        if let Some((user, group)) = self.owner {
            chown(&renewed, Some(user), Some(group)).map_err(|source| failed(&renewed, source))?;
        }
        Ok(())
    }

    /// Writes a file if it is missing, and prints which of the two it is.
    fn put(&mut self, path: &Path, text: &str, mode: u32) -> Result<(), InitError> {
        let kept = Kept { mode, owner: self.owner };
        let made = folder::write_new(path, text, kept).map_err(|source| InitError::File {
            verb: "write",
            path: path.to_owned(),
            source,
        })?;
        let word = if made { "made" } else { "there already, not changed:" };
        self.say(&format!("{word} {}", path.display()))
    }

    /// The private key of a certificate: the existing one, or a new one.
    fn key(&mut self, key: &Path, certificate: &Path) -> Result<String, InitError> {
        if key.exists() {
            self.say(&format!("there already, not changed: {}", key.display()))?;
        } else if certificate.exists() {
            return Err(InitError::NoKey { certificate: certificate.to_owned(), key: key.to_owned() });
        } else {
            self.put(key, &authority::make_key()?, PRIVATE)?;
        }
        fs::read_to_string(key).map_err(|source| InitError::File {
            verb: "read",
            path: key.to_owned(),
            source,
        })
    }

    fn authority(&mut self, names: &[String]) -> Result<Authority, InitError> {
        let (certificate, key) = (self.at("authority.crt"), self.at("authority.key"));
        let private = self.key(&key, &certificate)?;
        if certificate.exists() {
            self.say(&format!("there already, not changed: {}", certificate.display()))?;
        } else {
            let name = names.first().map_or("", String::as_str);
            self.put(&certificate, &authority::self_sign(&private, name, self.now)?, PUBLIC)?;
        }
        Ok(Authority::load(&certificate, &key)?)
    }

    /// Makes a certificate and its key. Returns their paths.
    fn certificate(
        &mut self,
        name: &str,
        sign: &dyn Fn(&str) -> Result<authority::Issued, AuthorityError>,
    ) -> Result<(PathBuf, PathBuf), InitError> {
        let at = (self.at(&format!("{name}.crt")), self.at(&format!("{name}.key")));
        self.certificate_at(at, sign)
    }

    /// Makes a certificate and its key in these files, like [`Init::certificate`].
    fn certificate_at(
        &mut self,
        (certificate, key): (PathBuf, PathBuf),
        sign: &dyn Fn(&str) -> Result<authority::Issued, AuthorityError>,
    ) -> Result<(PathBuf, PathBuf), InitError> {
        let private = self.key(&key, &certificate)?;
        if certificate.exists() {
            for warning in certificates::check_identity(&certificate, &key, self.now)? {
                self.say(&format!("warning: {warning}"))?;
            }
            self.say(&format!("there already, not changed: {}", certificate.display()))?;
        } else {
            self.put(&certificate, &sign(&private)?.certificate, PUBLIC)?;
        }
        Ok((certificate, key))
    }

    fn token(&mut self) -> Result<(), InitError> {
        let path = self.at("tokens.toml");
        if path.exists() {
            return self.say(&format!("there already, not changed: {}", path.display()));
        }
        let new = NewToken::make("admin", "admin", None, &["admin"])?;
        // Printed before it is in force: a token that nobody has seen could not be recovered.
        self.say(&format!("the admin's token, shown this once: {}", new.token))?;
        self.put(&path, &new.block, GUARDED)
    }

    fn config(&mut self, settings: &Settings<'_>) -> Result<(), InitError> {
        let path = self.at("controller.toml");
        if path.exists() {
            self.say(&format!("there already, not changed: {}", path.display()))?;
            let config = Config::load(&path, Asked::Nobody)?;
            if config.enrolment.is_none() {
                let table = settings.enrolment();
                self.say(&format!("agents can join once {} has this table:\n\n{table}", path.display()))?;
            }
            return Ok(());
        }
        let text = settings.fill()?;
        // A mistake is never written: the controller would not start.
        Config::parse(&text, &path.display().to_string(), Asked::Everybody)?;
        self.put(&path, &text, GUARDED)
    }

    fn next(&mut self, settings: &Settings<'_>) -> Result<(), InitError> {
        self.next_of(&settings.url())
    }

    /// Prints the next commands, with the API at this address.
    fn next_of(&mut self, url: &str) -> Result<(), InitError> {
        let ca = self.at("authority.crt");
        let start = if self.folder == Path::new(CONFIG_DIR) {
            "systemctl start mooring-controller".to_owned()
        } else {
            format!("mooring-controller --config {}", self.at("controller.toml").display())
        };
        self.say(&format!(
            "\nnext:\n  {start}\n  export MOORING_CONTROLLER={} MOORING_CA={} MOORING_TOKEN=…\n  mooring host list",
            url,
            ca.display()
        ))
    }
}

fn controller_user() -> Option<(u32, u32)> {
    let user = User::from_name(CONTROLLER_USER).ok().flatten()?;
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

/// The names by which others reach this machine: its IPv4 addresses, its other addresses, its name.
///
/// libc lists the addresses: the agent's list is in `host`, to which no arrow leads from here.
fn own_names() -> Result<Vec<String>, InitError> {
    let interfaces = nix::ifaddrs::getifaddrs().map_err(|_| InitError::NoName)?;
    let mut addresses: Vec<_> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter(reaches)
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(InitError::NoName);
    }
    let mut names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let host = gethostname().ok().and_then(|name| name.into_string().ok());
    names.extend(host.filter(|name| rustls::pki_types::DnsName::try_from(name.as_str()).is_ok()));
    Ok(names)
}

/// Returns `true` if another machine can reach this address as it is written.
fn reaches(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;

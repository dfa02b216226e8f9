//! `init --join`: makes another controller on an existing controller's database, from the file of
//! that one's `share`.
//!
//! The file is good for one machine. The database stores the key that used it, and that key may use
//! it again, so that a killed join can be repeated. Everything that can be refused is refused
//! before anything but that key is written.
//!
//! What must never happen here: an existing file changed; keys of the first controller left behind
//! by a refused join.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use mooring_systemd::folder::{self, Kept};
use sha2::{Digest as _, Sha256};

use super::settings::{self, quoted};
use super::{GUARDED, Init, InitError, PRIVATE, PUBLIC, controller_user, own_names};
use crate::authority::Authority;
use crate::config::{Asked, Config};
use crate::service::Database;
use crate::share::{self, Bundle, ShareError};
use crate::store::Db;
use crate::store::beside::Beside;
use nix::unistd::geteuid;

/// The places of the first controller's files on this machine.
struct Moved<'a> {
    bundle: &'a Bundle,
    folder: &'a Path,
}

impl Moved<'_> {
    /// The place of one of the first controller's files: in this machine's folder if it was in the
    /// first one's folder, else unchanged.
    fn path(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.bundle.folder).map_or_else(|_| path.to_owned(), |rest| self.folder.join(rest))
    }

    /// The first controller's configuration, with this machine's folder.
    fn config(&self) -> String {
        let [from, to] =
            [&self.bundle.folder, &self.folder.to_owned()].map(|folder| format!("\"{}/", folder.display()));
        self.bundle.config.replace(&from, &to)
    }
}

/// Sets a key of the configuration that stands on one line before all tables. Adds it if it is
/// missing.
fn set(text: &str, key: &str, value: &str) -> String {
    let line = format!("{key} = {value}");
    let (mut seen, mut done) = (false, false);
    let mut lines: Vec<String> = Vec::new();
    for old in text.lines() {
        seen |= old.starts_with('[');
        let named = old.split_once('=').is_some_and(|(name, _)| name.trim() == key);
        if !seen && named {
            done = true;
            lines.push(line.clone());
        } else {
            lines.push(old.to_owned());
        }
    }
    if !done {
        lines.insert(0, line);
    }
    lines.join("\n") + "\n"
}

/// Makes this machine a controller of the database that the file `from` belongs to.
pub fn join(
    folder: &Path,
    names: &[String],
    from: &Path,
    code: &str,
    now: SystemTime,
    out: &mut dyn Write,
) -> Result<(), InitError> {
    if !folder.is_absolute() {
        return Err(InitError::Folder(folder.to_owned()));
    }
    let bundle = share::open(from, code, now)?;
    let names = if names.is_empty() { own_names()? } else { names.to_vec() };
    let owner = if geteuid().is_root() { controller_user() } else { None };
    let mut init = Init { folder, owner, now, out };
    let config_file = init.at("controller.toml");
    if config_file.exists() {
        return Err(InitError::There(config_file));
    }
    let moved = Moved { bundle: &bundle, folder };
    let text = for_this_machine(&moved.config(), &names)?;
    let config = Config::parse(&text, &config_file.display().to_string(), Asked::Everybody)?;
    refuse_other_files(&moved)?;
    init.make_folders()?;
    let (server, client) = own_files(&config);
    let private = init.key(&server.1, &server.0)?;
    use_share(&bundle, &text, &private, folder)?;
    for file in &bundle.files {
        let path = moved.path(&file.path);
        // Only the owner can write the file.
        init.put(&path, &file.text, file.mode & PUBLIC | PRIVATE)?;
    }
    let enrolment = config.enrolment.as_ref().ok_or(ShareError::NoAuthority)?;
    let authority = Authority::load(&enrolment.authority, &enrolment.authority_key)?;
    init.certificate_at(server, &|key| authority.sign_server(key, &names, now))?;
    init.certificate_at(client, &|key| authority.sign_client(key, now))?;
    init.put(&config_file, &text, GUARDED)?;
    init.say(&format!("pin of the authority: {}", authority.pin()))?;
    let url = config.public_url.clone().unwrap_or_default();
    init.next_of(&url)?;
    init.say(&format!("remove {} now, here and where it was made", from.display()))
}

/// The first controller's configuration, with this machine's names and addresses.
fn for_this_machine(text: &str, names: &[String]) -> Result<String, InitError> {
    let config = Config::parse(text, "the shared configuration", Asked::Everybody)?;
    let port = config.listen.first().map_or(settings::PORT, SocketAddr::port);
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let text = set(text, "public_url", &quoted(&settings::url_of(scheme, names, port)));
    // An address of the first machine does not belong to this one.
    let anywhere =
        config.listen.iter().all(|address| address.ip().is_unspecified() || address.ip().is_loopback());
    let listen = format!("[{}]", quoted(&settings::listen_at(port)));
    Ok(if anywhere { text } else { set(&text, "listen", &listen) })
}

type Pair = (PathBuf, PathBuf);

/// The controller's own certificates, with their keys.
fn own_files(config: &Config) -> (Pair, Pair) {
    let tls = config.tls.as_ref().map(|tls| (tls.cert.clone(), tls.key.clone()));
    let client = config.enrolment.as_ref().map(|own| (own.client_cert.clone(), own.client_key.clone()));
    (tls.unwrap_or_default(), client.unwrap_or_default())
}

/// Refuses existing files with other content: those of another controller.
fn refuse_other_files(moved: &Moved<'_>) -> Result<(), InitError> {
    for file in &moved.bundle.files {
        let path = moved.path(&file.path);
        if path.exists() && fs::read_to_string(&path).ok().as_ref() != Some(&file.text) {
            return Err(InitError::There(path));
        }
    }
    Ok(())
}

/// Checks that the database is the file's, and opens with its keys. Takes the file into use for
/// this machine.
fn use_share(bundle: &Bundle, text: &str, private: &str, folder: &Path) -> Result<(), InitError> {
    // A refused join must not keep keys and passwords: they lie in a folder that is deleted.
    let stage = tempfile::Builder::new().prefix(".join-").tempdir_in(folder);
    let stage =
        stage.map_err(|source| InitError::File { verb: "write to", path: folder.to_owned(), source })?;
    let moved = Moved { bundle, folder };
    let mut staged = BTreeMap::new();
    for (number, file) in bundle.files.iter().enumerate() {
        let path = stage.path().join(number.to_string());
        folder::write_new(&path, &file.text, Kept { mode: PRIVATE, owner: None })
            .map_err(|source| InitError::File { verb: "write", path: path.clone(), source })?;
        staged.insert(moved.path(&file.path), path);
    }
    let staged = staged.iter().fold(text.to_owned(), |text, (from, to)| {
        let [from, to] = [from, to].map(|path| format!("\"{}\"", path.display()));
        text.replace(&from, &to)
    });
    let config = Config::parse(&staged, "the shared configuration", Asked::Everybody)?;
    let (Some(options), Some(keys)) = (config.database.clone(), config.sealing_keys()) else {
        return Err(ShareError::Alone.into());
    };
    let cluster = bundle.cluster.parse().ok();
    let beside = Beside::open(Database::Postgres { options: Box::new(options), keys }, cluster);
    let beside = beside.map_err(ShareError::Store)?;
    let (id, key) = (bundle.id, HEXLOWER.encode(&Sha256::digest(private.as_bytes())));
    let take = move |db: &Db<'_>| Ok(db.use_share(id, &key)?);
    let used = beside.change("use a shared file", take).map_err(ShareError::Store)?;
    used.map_err(|why| ShareError::NotUsable(why).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_gets_the_names_of_the_second_machine() {
        let text = "# a comment\nlisten = [\"10.0.0.1:8776\"]\ntokens = \"/etc/mooring/tokens.toml\"\n[tls]\ncert = \"/a\"\nkey = \"/b\"\n\
                    [metrics]\nlisten = [\"127.0.0.1:9181\"]\n";
        let names = ["10.0.0.2".to_owned()];
        let own = for_this_machine(text, &names).unwrap();
        let config = Config::parse(&own, "x", Asked::Everybody).unwrap();
        assert_eq!(config.public_url.as_deref(), Some("https://10.0.0.2:8776"));
        assert!(config.listen[0].ip().is_unspecified() && config.listen[0].port() == 8776);
        assert_eq!(config.metrics, ["127.0.0.1:9181".parse().unwrap()]);
        assert!(own.contains("# a comment"));
        // Every address of the machine, whatever they are.
        let any = for_this_machine(&text.replace("10.0.0.1:8776", "0.0.0.0:9000"), &names).unwrap();
        assert!(any.contains("listen = [\"0.0.0.0:9000\"]") && any.contains("https://10.0.0.2:9000"));
    }
}

//! `mooring-controller share`: everything that a second controller needs from the first one, in one
//! sealed file that is carried by hand.
//!
//! The file holds the authority's key, the keys of the database's secrets and its password: whoever
//! opens it is this controller. So it does not travel over the network by itself. It opens by a
//! code that is printed once and stands in no file. The database limits it to one machine and one
//! hour.
//!
//! What must never happen here: a key in clear in the file; a code in a file; a second machine that
//! one file makes a controller.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::BASE32_NOPAD;
use mooring_systemd::folder::{self, Kept};
use mooring_systemd::sealing::{Place, SealError, SealingKeys};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::authority::{Authority, AuthorityError};
use crate::config::{Callers, Config};
use crate::store::beside::Beside;
use crate::store::{Database, Db, StoreError};

/// The time for which the file may be used.
pub const SHARE_LIFE: Duration = Duration::from_hours(1);

/// The first line of the file, for whoever finds it.
const HEADING: &str =
    "Mooring: what a second controller needs, sealed. mooring-controller init --join opens it by its code.\n";

/// The number of random bytes in a code.
const CODE_BYTES: usize = 20;

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

const PLACE: Place<'static> = Place { table: "share", column: "bundle", row: &[] };

/// A file that cannot be made or opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The database belongs to one controller alone.
    #[error(
        "this controller's database is SQLite, which it has to itself: several controllers share a PostgreSQL database ([database] in the \
         configuration; docs/operations.md, Several controllers)"
    )]
    Alone,
    /// The controller has no authority of its own.
    #[error(
        "the configuration has no [enrolment]: a second controller could not dial the agents that joined"
    )]
    NoAuthority,
    /// The sealing keys are not in a file.
    #[error(
        "the configuration names no file of sealing keys (sealing_key): put the keys into one, and name it"
    )]
    NoKeys,
    /// A rotation of the authority is in progress.
    #[error("the authority is being rotated: `mooring-controller rotate-authority finish` comes first")]
    Rotating,
    /// The file exists.
    #[error("{} is there already: name another file", .0.display())]
    There(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot {verb} {}: run this as root", .path.display())]
    File {
        /// The attempt, as a verb.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The file was not made by `share`.
    #[error("{} is no file of mooring-controller share", .0.display())]
    Other(PathBuf),
    /// The code belongs to another file.
    #[error("the code is not that of {}: type the one that `mooring-controller share` printed with it", .0.display())]
    Code(PathBuf),
    /// The file does not open.
    #[error("{} was changed or cut on its way: copy it again", .0.display())]
    Changed(PathBuf),
    /// Another version made the file.
    #[error(
        "the file was made by mooring-controller {made}, and this is {own}: install the same version on both machines"
    )]
    Version {
        /// The version of the file.
        made: String,
        /// The version of this program.
        own: &'static str,
    },
    /// The file has expired.
    #[error(
        "the file has expired, it is good for an hour: make a new one (`mooring-controller share`), and look at the clocks of both machines"
    )]
    Expired,
    /// The database no longer knows the file.
    #[error("the file {0}: make a new one (`mooring-controller share`)")]
    NotUsable(&'static str),
    /// The authority cannot be loaded.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The file cannot be sealed.
    #[error("cannot seal the file")]
    Seal(#[source] SealError),
    /// The database cannot be used.
    #[error("cannot use the database of the controllers")]
    Store(#[source] StoreError),
    /// The report cannot be printed.
    #[error("cannot print the code")]
    Print(#[source] io::Error),
}

/// A file of the first controller.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
    pub(crate) text: String,
}

/// The contents of a share file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bundle {
    pub(crate) version: String,
    pub(crate) id: Uuid,
    pub(crate) expires: Duration,
    pub(crate) cluster: String,
    /// The folder of the configuration: files in it go into the second controller's folder.
    pub(crate) folder: PathBuf,
    /// The configuration, unchanged.
    pub(crate) config: String,
    /// The files that it names and that both controllers have.
    pub(crate) files: Vec<Shared>,
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ShareError {
    let path = path.to_owned();
    move |source| ShareError::File { verb, path, source }
}

/// The files of a configuration that all controllers of a database share. The controller's own
/// certificates are not among them.
fn common(config: &Config) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    if let Some(enrolment) = &config.enrolment {
        paths.extend([enrolment.authority_key.clone(), enrolment.authority.clone()]);
    }
    paths.extend(config.sealing_key.clone());
    paths.extend(config.policies.clone());
    match &config.callers {
        Callers::Tokens(path) => paths.push(path.clone()),
        Callers::Keystone(options) => {
            paths.push(options.password_file.clone());
            paths.extend(options.ca.clone());
        }
        Callers::Anybody | Callers::AnybodyAnywhere => {}
    }
    if let Some(database) = &config.database {
        paths.extend(database.files().map(Path::to_owned));
    }
    let own = config.enrolment.as_ref().map(|enrolment| [&enrolment.client_cert, &enrolment.client_key]);
    for tls in config.agents.iter().map(|entry| &entry.tls) {
        let named = [&tls.ca, &tls.cert, &tls.key].into_iter().flatten();
        paths.extend(named.filter(|path| own.is_none_or(|own| !own.contains(path))).cloned());
    }
    paths.sort_unstable();
    paths.dedup();
    paths
}

fn read(path: &Path) -> Result<Shared, ShareError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    let mode = fs::metadata(path).map_err(failed("read", path))?.mode() & 0o777;
    Ok(Shared { path: path.to_owned(), mode, text })
}

/// Writes the file, and prints its code.
pub fn share(
    config_file: &Path,
    config: &Config,
    database: Database,
    to: &Path,
    now: SystemTime,
    out: &mut dyn Write,
) -> Result<(), ShareError> {
    let Some(enrolment) = &config.enrolment else { return Err(ShareError::NoAuthority) };
    if config.database.is_none() {
        return Err(ShareError::Alone);
    }
    if config.sealing_key.is_none() {
        return Err(ShareError::NoKeys);
    }
    let authority = Authority::load(&enrolment.authority, &enrolment.authority_key)?;
    if authority.pins().len() > 1 {
        return Err(ShareError::Rotating);
    }
    if to.exists() {
        return Err(ShareError::There(to.to_owned()));
    }
    let files = common(config).iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let text = fs::read_to_string(config_file).map_err(failed("read", config_file))?;
    let beside = Beside::open(database, config.cluster).map_err(ShareError::Store)?;
    let (id, expires) = (Uuid::new_v4(), now + SHARE_LIFE);
    let keep = move |db: &Db<'_>| Ok((db.put_share(id, expires)?, db.meta("cluster_id")?));
    let ((), cluster) = beside.change("keep that a file is shared", keep).map_err(ShareError::Store)?;
    let bundle = Bundle {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id,
        expires: expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        cluster: cluster.unwrap_or_default(),
        folder: config_file.parent().unwrap_or_else(|| Path::new("/")).to_owned(),
        config: text,
        files,
    };
    let code = new_code()?;
    write(&bundle, &code, to)?;
    let shown = to.display();
    writeln!(
        out,
        "{shown} holds this controller's keys, sealed. The code that opens it, shown this once, for one machine and an hour:\n\n  {code}\n\n\
         next:\n  copy {shown} to the other machine (scp), and remove it here\n  there: mooring-controller init --join FILE\n\npin of the \
         authority: {}",
        authority.pin()
    )
    .map_err(ShareError::Print)
}

fn write(bundle: &Bundle, code: &str, to: &Path) -> Result<(), ShareError> {
    let clear = zeroize(serde_json::to_vec(bundle).unwrap_or_default());
    let sealed = keys(code).seal(PLACE, &clear).map_err(ShareError::Seal)?;
    let text = format!("{HEADING}{}\n", data_encoding::BASE64.encode(&sealed));
    let kept = Kept { mode: 0o600, owner: None };
    if folder::write_new(to, &text, kept).map_err(failed("write", to))? {
        Ok(())
    } else {
        Err(ShareError::There(to.to_owned()))
    }
}

fn zeroize(bytes: Vec<u8>) -> zeroize::Zeroizing<Vec<u8>> {
    zeroize::Zeroizing::new(bytes)
}

/// The keys that are derived from a code.
fn keys(code: &str) -> SealingKeys {
    let digits: String = code.chars().filter(char::is_ascii_alphanumeric).collect();
    SealingKeys::of_code(&digits.to_ascii_uppercase())
}

/// Makes a code: 160 random bits, in groups of four letters and digits.
fn new_code() -> Result<String, ShareError> {
    let mut bytes = zeroize(vec![0; CODE_BYTES]);
    getrandom::fill(&mut bytes).map_err(|_| ShareError::Seal(SealError::Random(PLACE.to_string())))?;
    let digits = BASE32_NOPAD.encode(&bytes);
    let groups: Vec<_> =
        digits.as_bytes().chunks(4).map(|group| String::from_utf8_lossy(group).into_owned()).collect();
    Ok(groups.join("-"))
}

/// Opens a file with its code.
pub(crate) fn open(from: &Path, code: &str, now: SystemTime) -> Result<Bundle, ShareError> {
    let other = || ShareError::Other(from.to_owned());
    let size = fs::metadata(from).map_err(failed("read", from))?.len();
    if size > FILE_BYTES_MAX {
        return Err(other());
    }
    let text = fs::read(from).map_err(failed("read", from))?;
    let text = String::from_utf8(text).map_err(|_| other())?;
    let digits = text.strip_prefix(HEADING).ok_or_else(other)?.trim();
    let changed = || ShareError::Changed(from.to_owned());
    let sealed = data_encoding::BASE64.decode(digits.as_bytes()).map_err(|_| changed())?;
    let clear = keys(code).open(PLACE, &sealed).map_err(|error| match error {
        SealError::NoKey { .. } => ShareError::Code(from.to_owned()),
        _ => changed(),
    })?;
    let version: Version = serde_json::from_slice(&clear).map_err(|_| changed())?;
    if version.version != env!("CARGO_PKG_VERSION") {
        return Err(ShareError::Version { made: version.version, own: env!("CARGO_PKG_VERSION") });
    }
    let bundle: Bundle = serde_json::from_slice(&clear).map_err(|_| changed())?;
    if now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() >= bundle.expires {
        return Err(ShareError::Expired);
    }
    Ok(bundle)
}

/// The part that files of all versions have.
#[derive(Deserialize)]
struct Version {
    version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(version: &str) -> Bundle {
        Bundle {
            version: version.to_owned(),
            id: Uuid::nil(),
            expires: Duration::from_secs(1_000),
            cluster: String::new(),
            folder: "/etc/mooring".into(),
            config: "a secret configuration".to_owned(),
            files: vec![Shared {
                path: "/etc/mooring/a".into(),
                mode: 0o600,
                text: "a secret key".to_owned(),
            }],
        }
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_file_opens_by_its_code_alone_and_only_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shared");
        let (code, other) = (new_code().unwrap(), new_code().unwrap());
        write(&bundle(env!("CARGO_PKG_VERSION")), &code, &file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("secret key") && !text.contains(&code));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        for typed in [code.clone(), code.to_lowercase(), code.replace('-', " ")] {
            assert!(
                open(&file, &typed, at(999)).is_ok_and(|found| found == bundle(env!("CARGO_PKG_VERSION")))
            );
        }
        for wrong in [other.as_str(), "", &code[1..]] {
            assert!(matches!(open(&file, wrong, at(1)), Err(ShareError::Code(_))), "{wrong}");
        }
        assert!(matches!(open(&file, &code, at(1_000)), Err(ShareError::Expired)));
        assert!(
            matches!(write(&bundle("x"), &code, &file), Err(ShareError::There(_))),
            "what is there stays"
        );
        let at_end = text.len() - 8;
        for (wrong, other) in [
            (text[..at_end].to_owned(), false),
            (text.replace("==", "=").replace('A', "B"), false),
            ("some text".to_owned(), true),
            (String::new(), true),
        ] {
            fs::write(&file, &wrong).unwrap();
            let error = open(&file, &code, at(1)).err().unwrap();
            let fits = match error {
                ShareError::Other(_) => other,
                ShareError::Changed(_) | ShareError::Code(_) => !other,
                _ => false,
            };
            assert!(fits, "{wrong}: {error}");
        }
        assert!(matches!(open(&dir.path().join("none"), &code, at(1)), Err(ShareError::File { .. })));
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, code) = (dir.path().join("shared"), new_code().unwrap());
        write(&bundle("0.0.0-other"), &code, &file).unwrap();
        let error = open(&file, &code, at(1)).err().unwrap().to_string();
        assert!(error.contains("0.0.0-other") && error.contains("same version"), "{error}");
    }
}

//! Sources of sealing keys: a credential of systemd, or a file that no other user can read. One key
//! a line, base64 of 32 bytes.
//!
//! What must never happen here: a key that others can read taken for a secret; a key in an error; a
//! file of keys replaced by one that lacks a key.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use zeroize::Zeroizing;

use super::{Census, KEY_BYTES, Key, KeyId, Look, SealingKeys};
use crate::folder::{self, Anchor, Kept};

/// The name of the credential.
const CREDENTIAL: &str = "mooring-sealing-key";

/// Largest file of keys, in bytes: some hundred keys.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// First line of a file of keys.
pub(super) const HEADING: &str = "# Mooring's sealing keys, one a line: the first seals, all open. Without them the database's secrets are lost: keep a \
                       copy elsewhere.\n";

/// Keys that are not available. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read the sealing keys in {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the sealing keys to {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("others can read the sealing keys in {} (mode {mode:04o}): run chmod 600 on it", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// Another user owns the file.
    #[error(
        "the sealing keys in {} belong to user {owner}: run chown on it, they must be root's or this daemon's own", .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The owner's id.
        owner: u32,
    },
    /// A line that is not a key. The line is not shown: it may be a key with a typing error.
    #[error("{} line {line}: want a sealing key, the base64 of {KEY_BYTES} bytes, alone on its line", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The file has no key, or is too large for keys.
    #[error("{} holds {what}: want at least one sealing key, the base64 of {KEY_BYTES} bytes, one a line", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The content that was found.
        what: &'static str,
    },
    /// The kernel gives no random bytes.
    #[error("cannot make a sealing key: the kernel gives no random bytes")]
    Random,
    /// A credential is read-only here.
    #[error(
        "the sealing keys come from a credential of systemd ({}), which cannot be changed here: put a new key into its source, as \
         its first line (`openssl rand -base64 32` makes one), and keep the other lines", .0.display()
    )]
    Credential(PathBuf),
    /// Values are sealed by keys that are missing.
    #[error(
        "secrets of {store} are sealed by the key {keys} ({values} of them), which is not in {origin}, where keys are looked for: put it back \
         there from its backup. No secret was changed. Without that key they are lost; docs/operations.md (Sealed secrets) says what to do \
         then"
    )]
    Missing {
        /// The database.
        store: String,
        /// The ids of the keys.
        keys: String,
        /// Number of values.
        values: u64,
        /// The source that was searched.
        origin: String,
    },
    /// A later version has sealed values.
    #[error(
        "secrets of {store} are sealed in form {form}, which this version does not know: install the newer one again"
    )]
    Newer {
        /// The database.
        store: String,
        /// The number of the form.
        form: u8,
    },
    /// Another process is changing the file.
    #[error("another program changes the sealing keys in {}: try again", .0.display())]
    Busy(PathBuf),
}

/// The source of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file that the configuration names.
    Configured(PathBuf),
    /// The credential that systemd passes.
    Credential(PathBuf),
    /// The file in the state folder, made when it is missing.
    Own(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(path) | Self::Own(path) => write!(f, "{}", path.display()),
            Self::Credential(path) => write!(f, "the credential {}", path.display()),
        }
    }
}

impl Origin {
    /// The file's name in a state folder.
    const FILE_NAME: &str = "sealing.key";

    /// The source in this state folder.
    pub fn own(state: &Path) -> Self {
        Self::Own(state.join(Self::FILE_NAME))
    }

    /// Finds the file that the configuration names; otherwise the credential, if systemd passed one
    /// to this process. `None`: neither exists.
    pub fn find(configured: Option<&Path>) -> Option<Self> {
        Self::find_in(configured, std::env::var_os("CREDENTIALS_DIRECTORY").as_deref())
    }

    pub(super) fn find_in(configured: Option<&Path>, credentials: Option<&OsStr>) -> Option<Self> {
        let handed = || credentials.map(|folder| Path::new(folder).join(CREDENTIAL));
        let named = configured.map(|path| Self::Configured(path.to_owned()));
        named.or_else(|| handed().filter(|path| path.exists()).map(Self::Credential))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Configured(path) | Self::Credential(path) | Self::Own(path) => path,
        }
    }

    /// Reads the keys of a database whose values have these forms. If nothing is sealed yet, a
    /// missing file in the state folder is made; nothing else is changed.
    pub fn open(&self, found: &Census, store: &str) -> Result<SealingKeys, KeysError> {
        let mut by = BTreeMap::new();
        for (look, count) in found {
            match look {
                Look::Sealed(id) => drop(by.insert(*id, *count)),
                Look::Newer(form) => return Err(KeysError::Newer { store: store.to_owned(), form: *form }),
                Look::Clear => {}
            }
        }
        let missing = |by: &BTreeMap<KeyId, u64>| KeysError::Missing {
            store: store.to_owned(),
            keys: by.keys().map(KeyId::to_string).collect::<Vec<_>>().join(", "),
            values: by.values().sum(),
            origin: self.to_string(),
        };
        if let Self::Own(path) = self
            && !path.exists()
        {
            if !by.is_empty() {
                return Err(missing(&by));
            }
            make(path, None)?;
        }
        let keys = self.load()?;
        by.retain(|id, _| keys.ids().all(|there| there != *id));
        if by.is_empty() { Ok(keys) } else { Err(missing(&by)) }
    }

    /// Refuses keys with which a daemon would not start. Changes nothing: the start makes a missing
    /// file in the state folder.
    pub fn check(&self) -> Result<(), KeysError> {
        match self {
            Self::Own(path) if !path.exists() => Ok(()),
            _ => self.load().map(drop),
        }
    }

    /// Reads the keys.
    pub fn load(&self) -> Result<SealingKeys, KeysError> {
        let mut file = open(self.path())?;
        // systemd protects the credential's folder; the group bits of the file show the mask of an
        // access list.
        if !matches!(self, Self::Credential(_)) {
            guarded(self.path(), &file)?;
        }
        let text = text_of(self.path(), &mut file)?;
        parse(self.path(), &text, self.to_string())
    }
}

fn open(path: &Path) -> Result<fs::File, KeysError> {
    fs::File::open(path).map_err(|source| KeysError::Read { path: path.to_owned(), source })
}

fn guarded(path: &Path, file: &fs::File) -> Result<fs::Metadata, KeysError> {
    let found = file.metadata().map_err(|source| KeysError::Read { path: path.to_owned(), source })?;
    if found.mode() & 0o077 != 0 {
        return Err(KeysError::Exposed { path: path.to_owned(), mode: found.mode() & 0o7777 });
    }
    let own = nix::unistd::geteuid();
    // Root can read everything anyway, and may change a daemon's keys.
    if !own.is_root() && found.uid() != 0 && found.uid() != own.as_raw() {
        return Err(KeysError::Foreign { path: path.to_owned(), owner: found.uid() });
    }
    Ok(found)
}

fn text_of(path: &Path, file: &mut fs::File) -> Result<Zeroizing<String>, KeysError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(FILE_BYTES_MAX).unwrap_or(0) + 1));
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| KeysError::Read { path: path.to_owned(), source })?;
    let content = |what| KeysError::Content { path: path.to_owned(), what };
    if u64::try_from(bytes.len()).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(content("more than keys"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| content("no text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn parse(path: &Path, text: &str, origin: String) -> Result<SealingKeys, KeysError> {
    let mut keys: Vec<Key> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bytes = BASE64.decode(line.as_bytes()).map(Zeroizing::new).ok();
        let key = bytes.as_ref().and_then(|bytes| <&[u8; KEY_BYTES]>::try_from(bytes.as_slice()).ok());
        let key = Key::new(key.ok_or_else(|| KeysError::Line { path: path.to_owned(), line: index + 1 })?);
        if keys.iter().all(|other| other.id != key.id) {
            keys.push(key);
        }
    }
    let mut keys = keys.into_iter();
    let first =
        keys.next().ok_or_else(|| KeysError::Content { path: path.to_owned(), what: "no sealing key" })?;
    Ok(SealingKeys { first, older: keys.collect(), origin })
}

/// Makes a new key, as a line of a file.
fn new_line() -> Result<(KeyId, Zeroizing<String>), KeysError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(key.as_mut_slice()).map_err(|_| KeysError::Random)?;
    Ok((KeyId::of(&key), Zeroizing::new(format!("{}\n", BASE64.encode(key.as_slice())))))
}

/// Makes a file with one new key, readable by its owner alone. Returns `false`, and changes
/// nothing, if the name is taken.
pub fn make(path: &Path, owner: Option<(u32, u32)>) -> Result<bool, KeysError> {
    let (_, line) = new_line()?;
    let text = Zeroizing::new(format!("{HEADING}{}", line.as_str()));
    let kept = Kept { mode: 0o600, owner };
    folder::write_new(path, &text, kept).map_err(|source| KeysError::Write { path: path.to_owned(), source })
}

/// The new first key of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// The key's id.
    pub id: KeyId,
    /// The file.
    pub path: PathBuf,
}

impl Rotated {
    /// Describes what was done, and what the operator does next with this unit.
    pub fn told(&self, unit: &str) -> String {
        format!(
            "{}: the key {} comes first now. Keep a copy of the file, and restart: `systemctl restart {unit}`. The start seals everything \
             with that key, and its log says when the lines below it can go",
            self.path.display(),
            self.id
        )
    }
}

/// Appends another file's keys to this one, which is made for this owner if it is missing. Returns
/// the ids of the keys that were new. If there are none, nothing is changed.
pub fn add(origin: &Origin, from: &Origin, owner: Option<(u32, u32)>) -> Result<Vec<KeyId>, KeysError> {
    let keys = from.load()?;
    let text = text_of(from.path(), &mut open(from.path())?)?;
    if let Origin::Configured(path) | Origin::Own(path) = origin {
        let made = folder::write_new(path, &text, Kept { mode: 0o600, owner });
        if made.map_err(|source| KeysError::Write { path: path.clone(), source })? {
            return Ok(keys.ids().collect());
        }
    }
    let there = origin.load()?;
    let lacked: Vec<_> = keys.ids().filter(|id| there.ids().all(|other| other != *id)).collect();
    if lacked.is_empty() {
        return Ok(lacked);
    }
    change(origin, |own| {
        let end = if own.ends_with('\n') { "" } else { "\n" };
        Ok((Zeroizing::new(format!("{own}{end}{}", text.as_str())), lacked))
    })
}

/// Puts a new key first in a file: it seals from the next start on. The file is replaced as a
/// whole, and keeps its owner.
pub fn rotate(origin: &Origin) -> Result<Rotated, KeysError> {
    change(origin, |text| {
        let (id, line) = new_line()?;
        // With their ends, which may be of one byte or of two.
        let lines = text.split_inclusive('\n');
        let heading = lines.take_while(|line| line.trim().is_empty() || line.trim().starts_with('#'));
        let (heading, keys) = text.split_at(heading.map(str::len).sum());
        let text = Zeroizing::new(format!("{heading}{}{keys}", line.as_str()));
        Ok((text, Rotated { id, path: origin.path().to_owned() }))
    })
}

/// Replaces a file of keys as a whole by a changed text. The owner stays.
fn change<T>(
    origin: &Origin,
    make: impl FnOnce(&str) -> Result<(Zeroizing<String>, T), KeysError>,
) -> Result<T, KeysError> {
    let path = match origin {
        Origin::Credential(path) => return Err(KeysError::Credential(path.clone())),
        Origin::Configured(path) | Origin::Own(path) => path,
    };
    let read = |source| KeysError::Read { path: path.clone(), source };
    let anchor = Anchor::of(path).map_err(read)?;
    let mut file = open(path)?;
    // Of two concurrent changes one would lose the other's key, which a start in between may have
    // used.
    file.try_lock().map_err(|_| KeysError::Busy(path.clone()))?;
    if !anchor.holds() {
        return Err(KeysError::Busy(path.clone()));
    }
    let found = guarded(path, &file)?;
    let text = text_of(path, &mut file)?;
    parse(path, &text, origin.to_string())?;
    let (text, made) = make(&text)?;
    let kept = Kept { mode: 0o600, owner: Some((found.uid(), found.gid())) };
    folder::write_over(path, &text, kept)
        .map_err(|source| KeysError::Write { path: path.clone(), source })?;
    Ok(made)
}

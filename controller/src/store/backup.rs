//! Backup and restore of the embedded database, with the keys of its secrets.
//!
//! A backup is one file, made while the controller works, and a file of keys, which belongs
//! elsewhere. A restore puts the backup in the place of the database, and keeps the old database
//! under another name. The next start then holds the database's specs back until the agents agree
//! with it.
//!
//! What must never happen here: a backup called good whose keys are nowhere; a database lost by a
//! restore; a restored database whose old specs are sent without a review.

mod copy;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use mooring_systemd::sealing::{self, KeyId, KeysError, Origin};

use super::StoreError;

/// A backup or a restore that was refused or failed. No existing file was changed, except files of
/// keys: added keys stay.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// No database to copy.
    #[error("there is no database {}: is `state_dir` in the configuration right, and has the controller run once?", .0.display())]
    NoDatabase(PathBuf),
    /// The destination exists already.
    #[error("{} is there already: nothing was written; name a file that is not there yet", .0.display())]
    Taken(PathBuf),
    /// The path is not one that SQLite accepts.
    #[error("{}: want a folder whose name is UTF-8", .0.display())]
    Name(PathBuf),
    /// The state folder of the restore is missing.
    #[error("there is no folder {path}: make it for the controller's user with `install -d -m 0700 -o mooring-controller -g mooring-controller {path}`, then run this again; do not start the controller first: it would make a database of a new cluster", path = .0.display())]
    NoFolder(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: nothing is there that was not there before", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// SQLite cannot copy the database.
    #[error("cannot copy the database {} to {}", .from.display(), .to.display())]
    Copy {
        /// The database.
        from: PathBuf,
        /// The copy.
        to: PathBuf,
        /// The error of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// The file is no database of a controller.
    #[error("{} is no backup of a controller's database ({why}): the database that is there was not changed", .path.display())]
    NoBackup {
        /// The file.
        path: PathBuf,
        /// The kind of file found, or SQLite's message.
        why: String,
    },
    /// A database in use, or half of a copy.
    #[error(
        "{} has a log beside it ({}), so that it is a database in use, or half of one: make a backup of it with `mooring-controller backup`, \
         and restore that", .path.display(), .log.display()
    )]
    Log {
        /// The file.
        path: PathBuf,
        /// The log beside the file.
        log: PathBuf,
    },
    /// A damaged database.
    #[error("{} is damaged ({why}): take another backup; without one, `mooring-controller rebuild --from-agents` fills an empty database", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first fault found in it.
        why: String,
    },
    /// A controller of this version has not yet brought the database to its schema.
    #[error(
        "{} has schema {schema}, and this version's is {known}: start the controller once, which changes it; to keep what an older version can read, make the \
         backup with that version", .path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The schema of the file.
        schema: i64,
        /// The schema of this version.
        known: i64,
    },
    /// A newer controller made the database.
    #[error("{} has schema {schema}, and this controller knows schemas up to {known}: install the newer controller again", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The schema of the file.
        schema: i64,
        /// The newest schema that this controller knows.
        known: i64,
    },
    /// A newer controller sealed the database's secrets.
    #[error("secrets in {} are sealed in form {form}, which this version does not know: install the newer controller again", .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The form's number.
        form: u8,
    },
    /// The keys of the database's secrets are missing.
    #[error(
        "secrets in {} are sealed by the key {}, which is not in {origin}: name the copy of the keys with --keys. Nothing was changed", .path.display(), Ids(.keys)
    )]
    NoKeys {
        /// The file.
        path: PathBuf,
        /// The keys.
        keys: Vec<KeyId>,
        /// The place where keys are looked for.
        origin: String,
    },
    /// The existing database belongs to another cluster.
    #[error(
        "{} is of cluster {theirs}, and the database that is there of cluster {ours}, whose volumes it knows nothing of: if that is to go, \
         move it away first, with its -wal and -shm", .path.display()
    )]
    Cluster {
        /// The file.
        path: PathBuf,
        /// The cluster of the file.
        theirs: String,
        /// The cluster of the existing database.
        ours: String,
    },
    /// The file of keys cannot be read or written.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The database cannot be opened, or a controller works on it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Ids<'a>(&'a [KeyId]);

impl fmt::Display for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.0.iter().enumerate() {
            write!(f, "{}{id}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The contents of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The cluster's id.
    pub cluster: String,
    /// The number of volumes and snapshots.
    pub volumes: u32,
    /// The number of attachments.
    pub attachments: u32,
    /// The keys that seal the copy's secrets.
    pub keys: Vec<KeyId>,
    /// The time of the copy; `None` if another program made it.
    pub made: Option<SystemTime>,
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, volumes, attachments, .. } = self;
        write!(f, "cluster {cluster}, {volumes} volumes and snapshots, {attachments} attachments")?;
        match self.made.and_then(|made| Timestamp::try_from(made).ok()) {
            Some(made) => write!(f, ", as of {made:.0}"),
            None => write!(f, ", as of a time that it does not say"),
        }
    }
}

/// A completed backup. Displays as a text for the operator.
#[derive(Debug)]
pub struct Backup {
    /// The file.
    pub file: PathBuf,
    /// The contents of the file.
    pub contents: Contents,
    /// The place that the keys come from.
    pub origin: String,
    /// The copy of the keys.
    pub keys: Option<PathBuf>,
}

impl fmt::Display for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.file.display(), self.contents)?;
        match &self.keys {
            Some(path) => writeln!(f, "{}: the keys of its secrets; keep them apart from it", path.display()),
            None if self.contents.keys.is_empty() => Ok(()),
            None => writeln!(
                f,
                "Its secrets are sealed by {}, in {}: without a copy of that file it is worth little (--keys makes one)",
                Ids(&self.contents.keys),
                self.origin
            ),
        }
    }
}

/// Copies the database of this state folder to `to`, which must not exist. Adds the database's keys
/// to those of the file `keys_to`, and makes that file if it is missing. Only the caller can read
/// both files. A controller may work on the database: the copy shows it at one moment.
pub fn back_up(
    state: &Path,
    origin: &Origin,
    to: &Path,
    keys_to: Option<&Path>,
    now: SystemTime,
) -> Result<Backup, BackupError> {
    let add = || keys_to.map(|path| sealing::add(&Origin::Configured(path.to_owned()), origin, None));
    // Before the copy: a file that cannot take the keys is refused before anything is written.
    // After the copy again: a key added in between may have sealed something in the copy.
    add().transpose()?;
    let contents = copy::back_up(state, to, now)?;
    add().transpose()?;
    Ok(Backup {
        file: to.to_owned(),
        contents,
        origin: origin.to_string(),
        keys: keys_to.map(Path::to_owned),
    })
}

/// A completed restore. Displays as a text for the operator.
#[derive(Debug)]
pub struct Restored {
    /// The contents of the database now.
    pub contents: Contents,
    /// The former database, under its new name.
    pub aside: Option<PathBuf>,
    /// The keys that were added, and their place.
    pub keys: Option<(Vec<KeyId>, String)>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Restored: {}", self.contents)?;
        if let Some(aside) = &self.aside {
            writeln!(f, "The database that was there is kept as {}", aside.display())?;
        }
        if let Some((ids, origin)) = &self.keys {
            writeln!(f, "Added to {origin}: the key {}", Ids(ids))?;
        }
        write!(
            f,
            "Start the controller: `systemctl start mooring-controller`. It puts every volume in review until its storage agent was heard;\n\
             `mooring host list` names those that changed after the backup, and sends nothing for them until you decide. Hosts that were\n\
             revoked after the backup are enrolled again: `mooring host revoke` them once more.\n"
        )
    }
}

/// Puts a backup in the place of this state folder's database, and adds the keys of `keys_from` to
/// the existing ones. No controller may run on the database.
pub fn restore(
    state: &Path,
    origin: &Origin,
    from: &Path,
    keys_from: Option<&Path>,
    now: SystemTime,
) -> Result<Restored, BackupError> {
    let ready = copy::prepare(state, from)?;
    if let Some(ours) = ready.replaces()
        && ours != ready.contents.cluster
    {
        let theirs = ready.contents.cluster.clone();
        return Err(BackupError::Cluster { path: from.to_owned(), theirs, ours });
    }
    let mut lacked = copy::lacked(&ready.contents.keys, origin)?;
    let mut keys = None;
    if let Some(copy) = keys_from {
        let copied = Origin::Configured(copy.to_owned());
        lacked = copy::lacked(&lacked, &copied)?;
        if lacked.is_empty() {
            let added = sealing::add(origin, &copied, ready.owner)?;
            keys = (!added.is_empty()).then(|| (added, origin.to_string()));
        }
    }
    if !lacked.is_empty() {
        let origin = match keys_from {
            Some(copy) => format!("{origin} or {}", copy.display()),
            None => origin.to_string(),
        };
        return Err(BackupError::NoKeys { path: from.to_owned(), keys: lacked, origin });
    }
    let contents = ready.contents.clone();
    let aside = ready.put(now)?;
    Ok(Restored { contents, aside, keys })
}

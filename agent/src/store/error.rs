//! Errors of the store. Nothing that an error names was written.

use std::io;
use std::path::{Path, PathBuf};

use mooring_model::{AgentId, ClusterId, Cure, Generation, VolumeId};
use mooring_systemd::folder::FolderError;
use mooring_systemd::sealing::{KeysError, SealError};
use rusqlite::ErrorCode;

use super::{Kind, place};

/// A failure of the store. The transaction was rolled back: the store holds what it held before.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state folder cannot hold the store.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The database cannot be opened.
    #[error("cannot open the store {}: check its owner and permissions, and its file system", .path.display())]
    Open {
        /// Path of the database.
        path: PathBuf,
        /// Answer of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// The database is open, and its file cannot be examined.
    #[error("cannot look at the store {}: check its folder and its file system", .path.display())]
    Look {
        /// Path of the database.
        path: PathBuf,
        /// Answer of the kernel.
        #[source]
        source: io::Error,
    },
    /// The file was deleted, moved or replaced while the agent works with it.
    #[error(
        "the store {} is not there any more, or is another file: its folder was deleted or replaced while the agent runs. \
         Nothing more can be kept. If it was moved, move it back; else restart the agent: it begins with an empty store, and \
         its controller tells it everything anew", .path.display()
    )]
    Gone {
        /// Earlier path of the file.
        path: PathBuf,
    },
    /// The database is damaged.
    #[error(
        "the store {} is damaged ({why}): stop the agent, move this file and its -wal and -shm aside, and start it \
         again; volumes are found by their tags and the controller sends its specs anew", .path.display()
    )]
    Corrupt {
        /// Path of the database.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The keys that seal secrets cannot be loaded.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A secret cannot be sealed or opened.
    #[error(
        "{0}. If the store is what does not fit, move it aside, so that the controller sends its specs anew"
    )]
    Seal(SealError),
    /// This agent cannot interpret one row.
    #[error(
        "{what} is kept in a form that this agent cannot read: if a newer agent has written it, install that one \
         again; else move the store aside, so that the controller sends its specs anew"
    )]
    Row {
        /// Content of the row.
        what: String,
    },
    /// A newer agent made the database.
    #[error(
        "the store {} has schema {found}, and this agent knows schemas up to {known}: install the newer agent again",
        .path.display()
    )]
    Newer {
        /// Path of the database.
        path: PathBuf,
        /// Schema of the database.
        found: i64,
        /// Newest schema that this agent knows.
        known: i64,
    },
    /// The file system is full.
    #[error("cannot {op}: the file system of {} is full; free some space", .path.display())]
    Full {
        /// Operation that failed.
        op: String,
        /// Path of the database.
        path: PathBuf,
        /// Message of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// The file system is mounted read-only, or has become so.
    #[error(
        "the store {} cannot be written to: the file system at {} is read-only. No change is taken meanwhile, and what is exported and \
         attached goes on. If the kernel has made it so, its log says why: mend that first; then `mount -o remount,rw {}`, and the \
         same command is taken", .path.display(), .mount.display(), .mount.display()
    )]
    Frozen {
        /// Path of the database.
        path: PathBuf,
        /// Mount point of its file system.
        mount: PathBuf,
    },
    /// The file is not writable.
    #[error("cannot {op}: {} cannot be written to; see its permissions and its attributes (lsattr)", .path.display())]
    ReadOnly {
        /// Operation that failed.
        op: String,
        /// Path of the database.
        path: PathBuf,
        /// Message of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// The disk failed.
    #[error("cannot {op}: the disk under {} failed; see the kernel's log", .path.display())]
    Disk {
        /// Operation that failed.
        op: String,
        /// Path of the database.
        path: PathBuf,
        /// Message of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// Another program holds the database.
    #[error("cannot {op}: another program holds {} (a backup, or an sqlite3 shell?)", .path.display())]
    Busy {
        /// Operation that failed.
        op: String,
        /// Path of the database.
        path: PathBuf,
        /// Message of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// An agent that has specs cannot take another id: others know it by its own.
    #[error(
        "this agent keeps specs under its id {kept}: it cannot become {arrived}; the controller must know it by {kept}"
    )]
    NotFresh {
        /// Present id of the agent.
        kept: AgentId,
        /// Id that it was to take.
        arrived: AgentId,
    },
    /// Another cluster owns this agent.
    #[error("this agent belongs to cluster {kept}: cluster {arrived} cannot have it")]
    Pinned {
        /// The cluster that owns the agent.
        kept: ClusterId,
        /// The cluster that wants it.
        arrived: ClusterId,
    },
    /// The configuration names another prefix of target names.
    #[error(
        "targets of this agent are named {kept}:…, and the configuration says iqn_prefix = \"{arrived}\": names on the wire \
         never change; put the old prefix back"
    )]
    Prefix {
        /// Prefix in the store.
        kept: String,
        /// Prefix in the configuration.
        arrived: String,
    },
    /// The spec is older than the one in the store.
    #[error(
        "generation {arrived} of the {kind} of {volume} is older than {kept}, which is kept: read it again"
    )]
    Stale {
        /// Kind of the object.
        kind: Kind,
        /// The volume.
        volume: VolumeId,
        /// Generation that arrived.
        arrived: Generation,
        /// Generation in the store.
        kept: Generation,
    },
    /// The spec has the generation of the one in the store, and another content.
    #[error(
        "generation {arrived} of the {kind} of {volume} has another content than generation {kept}, which is kept: two \
         writers; read it again and send a newer generation"
    )]
    Conflict {
        /// Kind of the object.
        kind: Kind,
        /// The volume.
        volume: VolumeId,
        /// Generation that arrived.
        arrived: Generation,
        /// Generation in the store: the same.
        kept: Generation,
    },
    /// The store was used in a way that SQLite refuses: a defect of the agent.
    #[error("cannot {op} in {}: this is a defect of the agent; please report it", .path.display())]
    Defect {
        /// Operation that failed.
        op: String,
        /// Path of the database.
        path: PathBuf,
        /// Message of SQLite.
        #[source]
        source: rusqlite::Error,
    },
}

impl From<SealError> for StoreError {
    fn from(error: SealError) -> Self {
        Self::Seal(error)
    }
}

impl StoreError {
    /// Returns who can cure the failure.
    pub const fn cure(&self) -> Cure {
        match self {
            Self::Folder(_)
            | Self::Keys(_)
            | Self::Seal(_)
            | Self::Open { .. }
            | Self::Look { .. }
            | Self::Gone { .. }
            | Self::Corrupt { .. }
            | Self::Row { .. }
            | Self::Newer { .. }
            | Self::Full { .. }
            | Self::Frozen { .. }
            | Self::ReadOnly { .. }
            | Self::Disk { .. }
            | Self::NotFresh { .. }
            | Self::Pinned { .. }
            | Self::Prefix { .. } => Cure::Operator,
            Self::Busy { .. } => Cure::Retry,
            Self::Stale { .. } | Self::Conflict { .. } => Cure::FixSpec,
            Self::Defect { .. } => Cure::Bug,
        }
    }

    /// Derives the error from SQLite's answer.
    pub(super) fn of(path: &Path, op: impl Into<String>, source: rusqlite::Error) -> Self {
        let (op, path) = (op.into(), path.to_owned());
        let code = source.sqlite_error_code();
        let place = [ErrorCode::ReadOnly, ErrorCode::SystemIoFailure, ErrorCode::CannotOpen]
            .map(Some)
            .contains(&code);
        if place && let Some(mount) = place::read_only(&path) {
            return Self::Frozen { path, mount };
        }
        match code {
            Some(ErrorCode::DiskFull) => Self::Full { op, path, source },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { op, path, source },
            Some(ErrorCode::SystemIoFailure) => Self::Disk { op, path, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { op, path, source },
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Self::Open { path, source },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { path, why: source.to_string() }
            }
            _ => Self::Defect { op, path, source },
        }
    }
}

//! Why the store could not do something. Nothing that an error names was written.

use std::io;
use std::path::{Path, PathBuf};

use mooring_model::{AgentId, ClusterId, Cure, Generation, VolumeId};
use mooring_systemd::folder::FolderError;
use mooring_systemd::sealing::{KeysError, SealError};
use rusqlite::ErrorCode;

use super::{Kind, place};

/// A failure of the store. The transaction was rolled back: what was kept before is kept now.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state folder cannot hold it.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The database cannot be opened.
    #[error("cannot open the store {}: check its owner and permissions, and its file system", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The database is open, and cannot be looked at.
    #[error("cannot look at the store {}: check its folder and its file system", .path.display())]
    Look {
        /// The file.
        path: PathBuf,
        /// Why.
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
        /// Where it was.
        path: PathBuf,
    },
    /// The database is damaged.
    #[error(
        "the store {} is damaged ({why}): stop the agent, move this file and its -wal and -shm aside, and start it \
         again; volumes are found by their tags and the controller sends its specs anew", .path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The keys that seal secrets cannot be had.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A secret cannot be sealed or opened.
    #[error(
        "{0}. If the store is what does not fit, move it aside, so that the controller sends its specs anew"
    )]
    Seal(SealError),
    /// One row makes no sense to this agent.
    #[error(
        "{what} is kept in a form that this agent cannot read: if a newer agent has written it, install that one \
         again; else move the store aside, so that the controller sends its specs anew"
    )]
    Row {
        /// What the row holds.
        what: String,
    },
    /// A newer agent made the database.
    #[error(
        "the store {} has schema {found}, and this agent knows schemas up to {known}: install the newer agent again",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest that this agent knows.
        known: i64,
    },
    /// The file system is full.
    #[error("cannot {op}: the file system of {} is full; free some space", .path.display())]
    Full {
        /// What was tried.
        op: String,
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: rusqlite::Error,
    },
    /// The file system is mounted, or has become, read-only.
    #[error(
        "the store {} cannot be written to: the file system at {} is read-only. No change is taken meanwhile, and what is exported and \
         attached goes on. If the kernel has made it so, its log says why: mend that first; then `mount -o remount,rw {}`, and the \
         same command is taken", .path.display(), .mount.display(), .mount.display()
    )]
    Frozen {
        /// The database.
        path: PathBuf,
        /// Where its file system is mounted.
        mount: PathBuf,
    },
    /// The file may not be written to.
    #[error("cannot {op}: {} cannot be written to; see its permissions and its attributes (lsattr)", .path.display())]
    ReadOnly {
        /// What was tried.
        op: String,
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: rusqlite::Error,
    },
    /// The disk failed.
    #[error("cannot {op}: the disk under {} failed; see the kernel's log", .path.display())]
    Disk {
        /// What was tried.
        op: String,
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: rusqlite::Error,
    },
    /// Another program holds the database.
    #[error("cannot {op}: another program holds {} (a backup, or an sqlite3 shell?)", .path.display())]
    Busy {
        /// What was tried.
        op: String,
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: rusqlite::Error,
    },
    /// An agent with specs has a name that others know.
    #[error("this agent keeps specs under its id {kept}: it cannot become {arrived}")]
    NotFresh {
        /// Its id.
        kept: AgentId,
        /// What it was to become.
        arrived: AgentId,
    },
    /// Another cluster owns this agent.
    #[error("this agent belongs to cluster {kept}: cluster {arrived} cannot have it")]
    Pinned {
        /// The owner.
        kept: ClusterId,
        /// Who wants it.
        arrived: ClusterId,
    },
    /// The configuration names another prefix of target names.
    #[error(
        "targets of this agent are named {kept}:…, and the configuration says iqn_prefix = \"{arrived}\": names on the wire \
         never change; put the old prefix back"
    )]
    Prefix {
        /// What is kept.
        kept: String,
        /// What the configuration says.
        arrived: String,
    },
    /// An older spec than the one that is kept.
    #[error(
        "generation {arrived} of the {kind} of {volume} is older than {kept}, which is kept: read it again"
    )]
    Stale {
        /// Volume or export.
        kind: Kind,
        /// The volume.
        volume: VolumeId,
        /// What came.
        arrived: Generation,
        /// What is kept.
        kept: Generation,
    },
    /// Another content under the generation that is kept.
    #[error(
        "generation {arrived} of the {kind} of {volume} has another content than generation {kept}, which is kept: two \
         writers; read it again and send a newer generation"
    )]
    Conflict {
        /// Volume or export.
        kind: Kind,
        /// The volume.
        volume: VolumeId,
        /// What came.
        arrived: Generation,
        /// What is kept: the same.
        kept: Generation,
    },
    /// The store was used in a way that it does not know.
    #[error("cannot {op} in {}: this is a defect of the agent; please report it", .path.display())]
    Defect {
        /// What was tried.
        op: String,
        /// The database.
        path: PathBuf,
        /// SQLite's words.
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
    /// Who can cure it.
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

    /// The file system under the store is full.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Says what SQLite's answer means.
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

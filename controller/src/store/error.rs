//! Errors of the store. Nothing that an error names was written, except where the outcome is
//! unknown.

use std::path::{Path, PathBuf};

use mooring_systemd::folder::FolderError;
use mooring_systemd::sealing::KeysError;
use rusqlite::ErrorCode;

use super::sql::SqlError;

/// A failure of the store. The transaction was rolled back, and the former state stands; only
/// [`StoreError::Unknown`] leaves that open.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state folder cannot hold the database.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another controller works on the database.
    #[error("another controller uses {}: stop that one first", .path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// The database cannot be opened.
    #[error("cannot open the store {}: check its owner and permissions, and its file system", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rusqlite::Error,
    },
    /// The database is damaged.
    #[error("the store {} is damaged ({why}): stop the controller, move this file and its -wal and -shm aside, and restore the last backup, then \
         start it once with --restored; without a backup, rebuild the database from the agents", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The damage found.
        why: String,
    },
    /// A newer controller made the database.
    #[error(
        "the store {store} has schema {found}, and this controller knows schemas up to {known}: install the newer controller again"
    )]
    Newer {
        /// The file or the database.
        store: String,
        /// The store's schema.
        found: i64,
        /// The newest schema that this controller knows.
        known: i64,
    },
    /// The command's version differs from the version of the controller that made the database.
    #[error(
        "the store {store} has schema {found}, and this version works with schema {known}: install the version of its controllers, and start \
         the first of them"
    )]
    Schema {
        /// The file or the database.
        store: String,
        /// The schema of the store; 0 for none.
        found: i64,
        /// The schema of this version.
        known: i64,
    },
    /// The keys that seal secrets are not available.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The configuration names another cluster.
    #[error(
        "the store {store} belongs to cluster {kept}, not to {asked}: correct the configuration, or use that cluster's store"
    )]
    Cluster {
        /// The file or the database.
        store: String,
        /// The store's cluster.
        kept: String,
        /// The configuration's cluster.
        asked: String,
    },
    /// The database cannot be reached at the start.
    #[error("cannot reach the store {store}: check that its server runs, the address, and the password file")]
    Reach {
        /// The database.
        store: String,
        /// The reason.
        #[source]
        source: SqlError,
    },
    /// The server or the database does not meet our needs.
    #[error("the store {store} cannot be used: {why}")]
    Unfit {
        /// The database.
        store: String,
        /// The fault, and the remedy.
        why: String,
    },
    /// The connection broke during a commit, and the server did not report the outcome later.
    #[error(
        "the connection to the database broke during a commit, and it is not known whether that was kept"
    )]
    Unknown {
        /// The error of the connection.
        #[source]
        source: SqlError,
    },
    /// The file system is full.
    #[error("cannot {op}: the file system of {} is full; free some space", .path.display())]
    Full {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: SqlError,
    },
    /// The file system was mounted, or has become, read-only.
    #[error("cannot {op}: {} cannot be written to; see whether its file system is mounted read-only", .path.display())]
    ReadOnly {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: SqlError,
    },
    /// The disk failed.
    #[error("cannot {op}: the disk under {} failed; see the kernel's log", .path.display())]
    Disk {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: SqlError,
    },
    /// Another program holds the database.
    #[error("cannot {op}: another program holds {} (a backup, or an sqlite3 shell?)", .path.display())]
    Busy {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: SqlError,
    },
    /// The file was deleted, moved or replaced while the controller works with it.
    #[error(
        "cannot {op}: {} is not there any more, or is another file: its folder was deleted or replaced while the controller \
         runs. Nothing more can be kept. If it was moved, move it back; else stop the controller and restore the last backup, \
         then start it once with --restored, or rebuild the database from the agents", .path.display()
    )]
    Gone {
        /// The operation.
        op: &'static str,
        /// The path that the file had.
        path: PathBuf,
    },
    /// The database refused the statement.
    #[error("cannot {op}")]
    Sql {
        /// The operation.
        op: &'static str,
        /// The error of the database.
        #[source]
        source: SqlError,
    },
    /// One row cannot be read.
    #[error(
        "{0} is kept in a form that this controller cannot read: if a newer one has written it, install that one again"
    )]
    Row(String),
    /// The thread of a transaction ended without an answer.
    #[error("cannot {0}: the store's thread ended")]
    Thread(&'static str),
}

/// The meaning of a failure for the caller.
pub(super) enum Cause {
    /// The caller's text cannot be stored.
    Text,
    /// The database cannot be reached.
    Away,
    /// The outcome is unknown.
    Unknown,
    /// Another controller drives the agent and has to make the change.
    Fenced,
    /// Nothing can be stored until an operator mends the cause.
    Stuck,
    /// A fault that an operator has to look at.
    Fault,
}

impl From<SqlError> for StoreError {
    fn from(source: SqlError) -> Self {
        Self::sql("run a transaction", source)
    }
}

impl StoreError {
    pub(super) fn sql(op: &'static str, source: impl Into<SqlError>) -> Self {
        Self::Sql { op, source: source.into() }
    }

    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Unknown { .. } => Cause::Unknown,
            Self::Reach { .. } => Cause::Away,
            Self::Full { .. } | Self::ReadOnly { .. } | Self::Busy { .. } | Self::Gone { .. } => Cause::Stuck,
            Self::Sql { source, .. } => match source {
                SqlError::Nul => Cause::Text,
                SqlError::Unreachable(_) => Cause::Away,
                SqlError::Fenced(_) => Cause::Fenced,
                _ => Cause::Fault,
            },
            _ => Cause::Fault,
        }
    }

    /// Adds the operation to a statement's failure. With the embedded database's `file`, also says
    /// what SQLite's error means.
    pub(super) fn during(self, op: &'static str, file: Option<&Path>) -> Self {
        match (self, file) {
            (Self::Sql { source, .. }, Some(path)) => Self::of(path, op, source),
            (Self::Sql { source, .. }, None) => Self::Sql { op, source },
            (other, _) => other,
        }
    }

    /// The error that SQLite's answer means.
    pub(super) fn of(path: &Path, op: &'static str, source: impl Into<SqlError>) -> Self {
        let (source, path) = (source.into(), path.to_owned());
        if matches!(source, SqlError::Gone) {
            return Self::Gone { op, path };
        }
        match source.code() {
            Some(ErrorCode::DiskFull) => Self::Full { op, path, source },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { op, path, source },
            Some(ErrorCode::SystemIoFailure) => Self::Disk { op, path, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { op, path, source },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { path, why: source.to_string() }
            }
            _ => Self::Sql { op, source },
        }
    }
}

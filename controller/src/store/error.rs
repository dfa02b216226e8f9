//! Why the store could not do something. Nothing that an error names was written.

use std::path::PathBuf;

/// A failure of the store. The transaction was rolled back: what was kept before is kept now.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state folder cannot be made or used.
    #[error("cannot use the state folder {}: it must be a folder that the controller's user may write to", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Others could put another database in the place of ours.
    #[error("others may write to the state folder {} (mode {mode:04o}): run chmod go-w on it", .path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another controller works on it.
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
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The database is damaged.
    #[error("the store {} is damaged ({why}): stop the controller and restore the last backup, then start it as restored", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A newer controller made the database.
    #[error("the store {} has schema {found}, and this controller knows schemas up to {known}: install the newer controller again", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest that this controller knows.
        known: i64,
    },
    /// The configuration names another cluster.
    #[error("the store {} belongs to cluster {kept}, not to {asked}: correct the configuration, or use that cluster's store", .path.display())]
    Cluster {
        /// The file.
        path: PathBuf,
        /// The store's.
        kept: String,
        /// The configuration's.
        asked: String,
    },
    /// SQLite refused.
    #[error("cannot {op}")]
    Sql {
        /// What was tried.
        op: &'static str,
        /// SQLite's words.
        #[source]
        source: rusqlite::Error,
    },
    /// One row makes no sense.
    #[error(
        "{0} is kept in a form that this controller cannot read: if a newer one has written it, install that one again"
    )]
    Row(String),
    /// The thread of a transaction ended without an answer.
    #[error("cannot {0}: the store's thread ended")]
    Thread(&'static str),
}

//! The database for commands that run beside a controller. The embedded database is only read.
//!
//! What must never happen here: a schema changed by a command; a change of the embedded database,
//! which belongs to its controller alone.

use mooring_systemd::sealing::SealingKeys;
use rusqlite::Connection;

use super::postgres::Postgres;
use super::{Abort, Database, Db, Store, StoreError, sqlite};
use crate::clock::Clock;
use mooring_model::ClusterId;

/// A database that another process may work on.
pub(crate) enum Beside {
    /// The embedded database.
    Alone(Box<(Connection, SealingKeys)>),
    /// A database that several controllers share.
    Shared(Store),
}

impl Beside {
    /// Opens a database of this controller's schema, and of this cluster if one is named. Blocks.
    pub(crate) fn open(database: Database, cluster: Option<ClusterId>) -> Result<Self, StoreError> {
        match database {
            Database::Embedded { folder, keys } => {
                let connection = sqlite::beside(&folder)?;
                Ok(Self::Alone(Box::new((connection, keys.load()?))))
            }
            Database::Postgres { options, keys } => {
                Postgres::is_current(&options)?;
                let database = Database::Postgres { options, keys };
                Ok(Self::Shared(Store::open(database, cluster, Clock::system())?))
            }
        }
    }

    /// Returns `true` if other controllers may work on the database.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Reads the last commit.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self {
            Self::Alone(alone) => {
                let (connection, keys) = &**alone;
                let now = Clock::system().now();
                let looked = sqlite::look(connection, |sql| work(&Db { sql, keys, now }));
                looked.map_err(|abort| match abort {
                    Abort::Store(error) => error,
                    Abort::Refused(refusal) => StoreError::Row(refusal.to_string()),
                })
            }
            Self::Shared(store) => store.prepare(op, work),
        }
    }

    /// Changes a shared database.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self {
            Self::Alone(_) => {
                Err(StoreError::Row(format!("{op}: the embedded database is its controller's")))
            }
            Self::Shared(store) => store.prepare(op, work),
        }
    }
}

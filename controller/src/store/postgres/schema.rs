//! Schemas of the PostgreSQL database: each equal in meaning to the embedded database's schema of
//! equal content.
//!
//! What must never happen here: two controllers that change the schema at once; work on a schema
//! that a newer controller made.

use postgres::{Client, IsolationLevel};

use crate::store::error::StoreError;
use crate::store::sql::SqlError;

/// Every schema ever released, oldest first. Append only.
const SCHEMAS: [&str; 19] = [
    include_str!("../schema/pg/1.sql"),
    include_str!("../schema/pg/2.sql"),
    include_str!("../schema/pg/3.sql"),
    include_str!("../schema/pg/4.sql"),
    include_str!("../schema/pg/5.sql"),
    include_str!("../schema/pg/6.sql"),
    include_str!("../schema/pg/7.sql"),
    include_str!("../schema/pg/8.sql"),
    include_str!("../schema/pg/9.sql"),
    include_str!("../schema/pg/10.sql"),
    include_str!("../schema/pg/11.sql"),
    include_str!("../schema/pg/12.sql"),
    include_str!("../schema/pg/13.sql"),
    include_str!("../schema/pg/14.sql"),
    include_str!("../schema/pg/15.sql"),
    include_str!("../schema/pg/16.sql"),
    include_str!("../schema/pg/17.sql"),
    include_str!("../schema/pg/18.sql"),
    include_str!("../schema/pg/19.sql"),
];

/// The key of the lock under which schemas change ("mooring" in ASCII).
const LOCK: i64 = 0x006d_6f6f_7269_6e67;

/// The oldest server version with all the features in use.
const SERVER_MIN: i32 = 140_000;

/// Refuses a database with another schema than this controller's.
pub(super) fn is_current(client: &mut Client, shown: &str) -> Result<(), StoreError> {
    let failed =
        |error: postgres::Error| StoreError::sql("look at the schema of the store", SqlError::from(error));
    let there = "SELECT to_regclass('schema_version') IS NOT NULL";
    let made: bool = client.query_one(there, &[]).map_err(failed)?.get(0);
    let newest = "SELECT COALESCE(MAX(version), 0) FROM schema_version";
    let found: i64 = if made { client.query_one(newest, &[]).map_err(failed)?.get(0) } else { 0 };
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    if found == known { Ok(()) } else { Err(StoreError::Schema { store: shown.to_owned(), found, known }) }
}

/// Brings the database to this controller's schema.
pub(super) fn migrate(client: &mut Client, shown: &str) -> Result<(), StoreError> {
    let op = "bring the store to this controller's schema";
    let failed = |error: postgres::Error| StoreError::sql(op, SqlError::from(error));
    let row = client
        .query_one(
            "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
             current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'",
            &[],
        )
        .map_err(failed)?;
    let (version, encoding, safe): (i32, String, bool) = (row.get(0), row.get(1), row.get(2));
    let unfit = |why: String| StoreError::Unfit { store: shown.to_owned(), why };
    if version < SERVER_MIN {
        return Err(unfit(format!("its server is of version {version}: want 14 or newer")));
    }
    if encoding != "UTF8" {
        return Err(unfit(format!("its encoding is {encoding}: make one with encoding UTF8")));
    }
    if !safe {
        tracing::warn!(
            database = shown,
            "the server runs with fsync or full_page_writes off: a power cut would lose acknowledged changes"
        );
    }
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    let mut transaction =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().map_err(failed)?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).map_err(failed)?;
    transaction
        .batch_execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)")
        .map_err(failed)?;
    let found: Option<i64> =
        transaction.query_one("SELECT MAX(version) FROM schema_version", &[]).map_err(failed)?.get(0);
    let found = found.unwrap_or(0);
    if found > known {
        return Err(StoreError::Newer { store: shown.to_owned(), found, known });
    }
    for (version, schema) in (1_i64..).zip(SCHEMAS).filter(|(version, _)| *version > found) {
        transaction.batch_execute(schema).map_err(failed)?;
        transaction
            .execute("INSERT INTO schema_version (version) VALUES ($1)", &[&version])
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

//! Counts of all kinds of objects, for metrics.
//!
//! What must never happen here: a lock that a change waits for; a statement per object.

use std::collections::BTreeMap;

use super::sql::{Row, SqlError};
use super::{Db, reviews};

/// The words of a column, with the number of rows that have each.
pub(crate) type ByWord = BTreeMap<String, u64>;

fn by_word(row: &mut Row) -> Result<(String, u64), SqlError> {
    Ok((row.get(0)?, row.get(1)?))
}

impl Db<'_> {
    fn count_by_word(&self, sql: &str) -> Result<ByWord, SqlError> {
        Ok(self.all(sql, &[], by_word)?.into_iter().collect())
    }

    /// Volumes by their status.
    pub(crate) fn count_volumes(&self) -> Result<ByWord, SqlError> {
        self.count_by_word("SELECT status, COUNT(*) FROM volumes WHERE snapshot_of IS NULL GROUP BY status")
    }

    /// Snapshots by their status.
    pub(crate) fn count_snapshots(&self) -> Result<ByWord, SqlError> {
        let sql = "SELECT status, COUNT(*) FROM volumes WHERE snapshot_of IS NOT NULL GROUP BY status";
        self.count_by_word(sql)
    }

    /// Attachments by their status.
    pub(crate) fn count_attachments(&self) -> Result<ByWord, SqlError> {
        self.count_by_word("SELECT status, COUNT(*) FROM attachments GROUP BY status")
    }

    /// Volumes in review, by kind of review: also those with a word of a later release.
    pub(crate) fn count_reviews(&self) -> Result<ByWord, SqlError> {
        self.count_by_word(&reviews::count_sql())
    }

    /// Fences in force.
    pub(crate) fn count_fences(&self) -> Result<u64, SqlError> {
        let found = self.one("SELECT COUNT(*) FROM fences WHERE lifted_us IS NULL", &[], |row| row.get(0))?;
        Ok(found.unwrap_or_default())
    }

    /// Receipts by their proof.
    pub(crate) fn count_receipts(&self) -> Result<ByWord, SqlError> {
        let word = |proven| if proven { "proven" } else { "unproven" }.to_owned();
        let sql = "SELECT proven, COUNT(*) FROM receipts GROUP BY proven";
        let counts = self.all(sql, &[], |row| Ok((word(row.get(0)?), row.get(1)?)))?;
        Ok(counts.into_iter().collect())
    }
}

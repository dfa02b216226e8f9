//! Volumes in review: nothing is sent for them until an agent or an operator has decided.
//!
//! The kind decides how a review ends. The text is for people only; no code reads it.
//!
//! What must never happen here: a decision that follows from a text.

use mooring_model::VolumeId;

use super::Db;
use super::sql::{Row, SqlError, values};
use super::volumes::VolumeRow;
use crate::rules::Operation;

/// The kind of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReviewKind {
    /// The database was restored or rebuilt, and the volume's storage agent has not reported yet.
    Restored,
    /// An agent stores a newer spec than this database.
    Ahead,
    /// The storage agent stores a deletion of the volume that is newer than this database.
    Deleted,
    /// The database was restored, and the storage agent has nothing of the volume.
    Missing,
    /// The storage agent has lost its store, and the volume's data with it.
    Lost,
    /// An agent refused a spec as older than the one that it stores.
    Refused,
    /// A later release has worked on the database, and this one does not know what it began. Never
    /// stored.
    Unknown,
}

impl ReviewKind {
    /// All kinds that are stored.
    pub(crate) const ALL: [Self; 6] =
        [Self::Restored, Self::Ahead, Self::Deleted, Self::Missing, Self::Lost, Self::Refused];

    /// The kind's word in the database and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Ahead => "ahead",
            Self::Deleted => "deleted",
            Self::Missing => "missing",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The reason why nothing is sent for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Review {
    /// The kind, which decides how the review ends.
    pub(crate) kind: ReviewKind,
    /// A text for people: the case, and the remedy.
    pub(crate) why: String,
}

impl Review {
    /// The review of a volume whose operation, or whose state of attachment, has a word that this
    /// release does not know.
    pub(super) fn of_unknown(word: &str) -> Self {
        let why = format!(
            "a later release of the controller has begun an operation at it, {word:?}, which this one does not know: update \
             this controller; nothing is sent for the volume until then"
        );
        Self { kind: ReviewKind::Unknown, why }
    }
}

/// The words as a list of SQL. No word has a quote.
fn listed(words: impl Iterator<Item = &'static str>) -> String {
    format!("('{}')", words.collect::<Vec<_>>().join("', '"))
}

/// The condition of volumes in review: those with a review that is stored, and those at work in a
/// way of a later release. Each half has an index.
fn in_review() -> String {
    let operations = listed(Operation::ALL.into_iter().map(|operation| operation.status().as_str()));
    format!(
        "id IN (SELECT id FROM volumes WHERE review IS NOT NULL UNION \
         SELECT id FROM volumes WHERE operation IS NOT NULL AND operation NOT IN {operations})"
    )
}

/// The statement that counts volumes in review by their kind. A kind of a later release counts as
/// unknown.
pub(super) fn count_sql() -> String {
    let kinds = listed(ReviewKind::ALL.into_iter().map(ReviewKind::as_str));
    let kind = format!(
        "CASE WHEN review IS NOT NULL AND review_kind IN {kinds} THEN review_kind ELSE '{}' END",
        ReviewKind::Unknown.as_str()
    );
    format!("SELECT {kind}, COUNT(*) FROM volumes WHERE {} GROUP BY 1", in_review())
}

/// The columns `review` and `review_kind` of a row. A kind of a later release ends by an operator's
/// word alone.
pub(super) fn review(row: &mut Row, why: usize, kind: usize) -> Result<Option<Review>, SqlError> {
    let Some(why) = row.get(why)? else { return Ok(None) };
    let word: String = row.get(kind)?;
    Ok(Some(Review { kind: ReviewKind::from_word(&word).unwrap_or(ReviewKind::Unknown), why }))
}

impl Db<'_> {
    /// Volumes in review, newest first.
    pub(crate) fn volumes_in_review(&self) -> Result<Vec<VolumeRow>, SqlError> {
        self.volumes_where(&format!("WHERE {} ORDER BY created_us DESC, id DESC", in_review()), &[])
    }

    /// Puts a volume in review.
    pub(crate) fn put_in_review(&self, id: VolumeId, kind: ReviewKind, why: &str) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET review = ?2, review_kind = ?3 WHERE id = ?1";
        self.run(sql, &values![id, why, kind.as_str()]).map(drop)
    }

    /// Ends a volume's review.
    pub(crate) fn end_review(&self, id: VolumeId) -> Result<(), SqlError> {
        self.run("UPDATE volumes SET review = NULL, review_kind = NULL WHERE id = ?1", &values![id]).map(drop)
    }

    /// Puts all volumes in review. Returns their number.
    pub(crate) fn review_all(&self, kind: ReviewKind, why: &str) -> Result<u64, SqlError> {
        self.run("UPDATE volumes SET review = ?1, review_kind = ?2", &values![why, kind.as_str()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use uuid::Uuid;

    use super::*;
    use crate::clock::Clock;
    use crate::store::contract::pg;
    use crate::store::{Database, PostgresOptions, Store, sqlite};

    /// The texts of earlier releases, and the kinds that they stand for.
    const OLD: [(Option<&str>, Option<ReviewKind>); 7] = [
        (None, None),
        (
            Some(
                "the controller's database was restored or rebuilt, and this volume's storage agent was not heard yet",
            ),
            Some(ReviewKind::Restored),
        ),
        (
            Some(
                "agent a keeps generation 2.1 of the export, and this database 1.4: it was restored from an older state, and \
                 nothing is sent until an operator confirms",
            ),
            Some(ReviewKind::Ahead),
        ),
        (
            Some(
                "agent a has nothing of this volume: it was deleted after this database was backed up (restored), or its agent \
                 has lost it; confirm to make it again, empty",
            ),
            Some(ReviewKind::Missing),
        ),
        (
            Some(
                "agent a has lost its store and has no data of this volume in its pools: bring the disks of pool vg0 back and \
                 restart that agent, or confirm to make the volume again, empty",
            ),
            Some(ReviewKind::Lost),
        ),
        (
            Some(
                "agent a: older than 2.1: this database may be an older state; nothing is sent until an operator confirms",
            ),
            Some(ReviewKind::Refused),
        ),
        (Some("whatever it was"), Some(ReviewKind::Ahead)),
    ];

    /// Rows for a database of an older schema.
    fn rows() -> String {
        let volume = |(n, (why, _)): (u32, (Option<&str>, _))| {
            let why = why.map_or("NULL".to_owned(), |why| format!("'{}'", why.replace('\'', "''")));
            format!(
                "INSERT INTO volumes (id, size_gib, type_id, multiattach, status, attach_status, project, user_id, metadata, \
                 agent_id, pool, review, created_us) VALUES ('{}', 1, '00000000-0000-4000-8000-000000000001', 0, 'available', \
                 'detached', 'p', 'u', '{{}}', '00000000-0000-4000-8000-000000000002', 'vg0', {why}, 0);",
                Uuid::from_u128(n.into())
            )
        };
        let kind = "INSERT INTO volume_types (id, name, is_public, created_us) \
                    VALUES ('00000000-0000-4000-8000-000000000001', 't', 1, 0);";
        std::iter::once(kind.to_owned()).chain((0..).zip(OLD).map(volume)).collect()
    }

    fn check(database: Database) {
        let store = Store::open(database, None, Clock::system()).unwrap();
        for (n, (why, kind)) in (0_u32..).zip(OLD) {
            let id = VolumeId::from_u128(n.into());
            let row = store.prepare("test", move |db| Ok(db.volume(id)?.unwrap())).unwrap();
            let want = kind.zip(why).map(|(kind, why)| Review { kind, why: why.to_owned() });
            assert_eq!(row.review, want);
        }
    }

    #[test]
    fn reviews_of_older_databases_keep_their_kind_and_their_text() {
        let dir = tempfile::tempdir().unwrap();
        let conn = rusqlite::Connection::open(dir.path().join(sqlite::FILE_NAME)).unwrap();
        conn.execute_batch(concat!(include_str!("schema/1.sql"), include_str!("schema/2.sql"))).unwrap();
        conn.execute_batch(&rows()).unwrap();
        conn.pragma_update(None, "user_version", 2).unwrap();
        drop(conn);
        check(Database::embedded(dir.path().to_owned()));
    }

    #[test]
    fn the_same_on_postgresql() {
        let (server, name) = (pg::Server::shared(), Uuid::new_v4().simple().to_string());
        let url = server.database(&name);
        server.psql(&name, include_str!("schema/pg/1.sql"));
        server.psql(
            &name,
            "CREATE TABLE schema_version (version BIGINT PRIMARY KEY); INSERT INTO schema_version VALUES (1)",
        );
        server.psql(&name, &rows());
        let options = PostgresOptions::new(&url, None, None, false).unwrap();
        check(crate::store::testing::postgres(options));
    }
}

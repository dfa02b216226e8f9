//! The plans of the statements that every controller runs again and again, on PostgreSQL. Those of
//! SQLite are tested beside the statements.

use super::*;
use crate::rules::promised::Announced;
use crate::store::attachments::{COLUMNS, GOING, IN_MOTION};
use crate::store::volumes::announced_sql;

/// A table that is empty is scanned whatever its indexes are: so scans are priced out. An index
/// that does not serve the statement is not used all the same, which the control shows.
fn plan(store: &Store, sql: &str) -> String {
    let sql = format!("EXPLAIN {sql}");
    let explain = move |db: &Db<'_>| {
        db.run("SET LOCAL enable_seqscan = off", &[])?;
        Ok(db.all(&sql, &[], |row| row.get::<String>(0))?)
    };
    store.prepare("explain", explain).unwrap().join("\n")
}

#[test]
fn hot_statements_use_their_indexes_on_postgresql() {
    let place = postgres();
    let going = format!("SELECT {COLUMNS} FROM attachments {GOING}");
    let cases = [
        (going.as_str(), "attachments_moving"),
        (IN_MOTION, "attachments_moving"),
        (IN_MOTION, "volumes_in_operation"),
        (IN_MOTION, "takings_open"),
        (announced_sql(Announced::Attachments), "volumes_reserved"),
        (announced_sql(Announced::Detaches), "volumes_held"),
    ];
    for (sql, index) in cases {
        let plan = plan(&place.store, sql);
        assert!(plan.contains(index), "{sql} does not use {index}:\n{plan}");
    }
    let other = plan(&place.store, "SELECT id FROM attachments WHERE moving = 0");
    assert!(!other.contains("attachments_moving"), "{other}");
}

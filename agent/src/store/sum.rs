//! Checksums of rows. `PRAGMA integrity_check` finds what is wrong with SQLite's pages; it does not see a byte that has changed inside
//! of a row that can be read still: a digit in an initiator's name, `rw` in the place of `ro`, a generation. So each row has a CRC-32
//! of its table's name and its columns in `sum`, made by the statement that writes it, and all of them are looked at when the store is
//! opened. A CRC, and no hash: it is sure to find whatever has changed within 4 bytes, and costs next to nothing on the way of a grant.
//!
//! The function `row_sum` is known to the agent's connections only. What an sqlite3 shell writes into a row is refused at the next
//! start, which is the intent; what it deletes is gone.
//!
//! What must never happen here: a row that is written without its sum; a right sum for a row that was wrong before a part of it was
//! changed; a body (it holds CHAP secrets) in what is said of a row.

use std::fmt::Write;
use std::sync::LazyLock;

use crc32fast::Hasher;
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;

/// A table whose rows have sums.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What names a row to whoever reads of it.
    pub(super) key: &'static [&'static str],
    /// What is summed behind the key: every other column, in this order for ever. A schema that adds one sums all rows anew.
    pub(super) rest: &'static [&'static str],
    /// The schema since which its rows have sums, of these columns.
    pub(super) since: i64,
}

pub(super) const META: Table = Table { name: "meta", key: &["key"], rest: &["value"], since: 8 };

pub(super) const SPECS: Table = Table {
    name: "specs",
    key: &["volume_id", "kind"],
    rest: &[
        "epoch",
        "counter",
        "digest",
        "body",
        "opaque",
        "tombstone",
        "destroy",
        "revoked",
        "updated_us",
        "released",
        "made",
    ],
    since: 8,
};

pub(super) const RECEIPTS: Table = Table {
    name: "receipts",
    key: &["id", "volume_id"],
    rest: &["initiator", "epoch", "counter", "body", "proven", "began_us"],
    since: 8,
};

pub(super) const FC_PLACES: Table =
    Table { name: "fc_places", key: &["volume_id", "slot", "lun", "initiator"], rest: &[], since: 8 };

pub(super) const RESERVATIONS: Table =
    Table { name: "reservations", key: &["volume_id"], rest: &["kept"], since: 8 };

pub(super) const WHOLE_LVS: Table = Table {
    name: "whole_lvs",
    key: &["volume_id"],
    rest: &["epoch", "counter", "mapping", "size", "reverted"],
    since: 8,
};

pub(super) const PORT_IDS: Table =
    Table { name: "port_ids", key: &["volume_id"], rest: &["port_id"], since: 9 };

pub(super) const ALL: [Table; 7] = [META, SPECS, RECEIPTS, FC_PLACES, RESERVATIONS, WHOLE_LVS, PORT_IDS];

/// A statement that is put together once.
pub(super) type Sql = LazyLock<String>;

impl Table {
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.key.iter().chain(self.rest).copied()
    }

    /// Its columns as they are bound in [`Table::insert`], `?1` first.
    pub(super) fn listed(&self) -> String {
        self.columns().collect::<Vec<_>>().join(", ")
    }

    /// The statement that inserts a row with all of its columns.
    pub(super) fn insert(&self) -> String {
        let values: Vec<_> = (1..=self.columns().count()).map(|at| format!("?{at}")).collect();
        let (name, columns, values) = (self.name, self.listed(), values.join(", "));
        format!("INSERT INTO {name} ({columns}, sum) VALUES ({values}, row_sum('{name}', {values}))")
    }

    /// What follows `SET` when these columns of a row that is there become this, and the others stay. A sum that is wrong stays
    /// wrong: what is changed does not make the rest right.
    pub(super) fn set(&self, changes: &[(&str, &str)]) -> String {
        let of = |column: &str| format!("{}.{column}", self.name);
        let change = |column: &str| changes.iter().find(|(changed, _)| *changed == column);
        let now = self.sum(of);
        let then = self.sum(|column| change(column).map_or_else(|| of(column), |(_, to)| (*to).to_owned()));
        let mut set: Vec<_> = changes.iter().map(|(column, to)| format!("{column} = {to}")).collect();
        set.push(format!("sum = CASE WHEN {0}.sum IS {now} THEN {then} ELSE {0}.sum END", self.name));
        set.join(", ")
    }

    fn sum(&self, value: impl Fn(&str) -> String) -> String {
        let values: Vec<_> = self.columns().map(value).collect();
        format!("row_sum('{}', {})", self.name, values.join(", "))
    }

    /// The first row whose sum is wrong, and how many there are.
    fn damaged(&self, conn: &Connection) -> rusqlite::Result<Option<(String, usize)>> {
        let key = self.key.join(", ");
        let sum = self.sum(str::to_owned);
        let mut statement =
            conn.prepare(&format!("SELECT {key} FROM {} WHERE sum IS NOT {sum}", self.name))?;
        let mut rows = statement.query([])?;
        let mut found: Option<(String, usize)> = None;
        while let Some(row) = rows.next()? {
            if let Some((_, count)) = &mut found {
                *count += 1;
                continue;
            }
            let mut named = format!("in the table {}, the row of", self.name);
            for (at, column) in self.key.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                // What is damaged may be the key itself.
                let _ = match row.get_ref(at)? {
                    ValueRef::Integer(number) => write!(named, "{comma} {column} {number}"),
                    ValueRef::Text(text) => {
                        write!(named, "{comma} {column} {:?}", String::from_utf8_lossy(text))
                    }
                    ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => {
                        write!(named, "{comma} {column} that cannot be read")
                    }
                };
            }
            found = Some((named, 1));
        }
        Ok(found)
    }
}

/// Tells a connection how rows are summed.
pub(super) fn teach(conn: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        // In statements of ours only: a schema that somebody has changed calls nothing.
        | FunctionFlags::SQLITE_DIRECTONLY;
    conn.create_scalar_function("row_sum", -1, flags, |values| Ok(row_sum(values)))
}

/// Each value with its type and its length, so that nothing slides from one column into the next.
fn row_sum(values: &Context<'_>) -> i64 {
    let mut hasher = Hasher::new();
    for at in 0..values.len() {
        let number;
        let (kind, bytes): (u8, &[u8]) = match values.get_raw(at) {
            ValueRef::Null => (0, &[]),
            ValueRef::Integer(value) => {
                number = value.to_le_bytes();
                (1, &number)
            }
            ValueRef::Real(value) => {
                number = value.to_le_bytes();
                (2, &number)
            }
            ValueRef::Text(text) => (3, text),
            ValueRef::Blob(blob) => (4, blob),
        };
        let mut head = [kind; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        hasher.update(&head);
        hasher.update(bytes);
    }
    i64::from(hasher.finalize())
}

/// What to say of rows that are not as they were written, in a store of this schema, if there are such rows. Reads every row.
pub(super) fn damaged(conn: &Connection, schema: i64) -> rusqlite::Result<Option<String>> {
    let mut first = None;
    let mut all = 0;
    for table in ALL.into_iter().filter(|table| table.since <= schema) {
        if let Some((named, count)) = table.damaged(conn)? {
            first.get_or_insert(named);
            all += count;
        }
    }
    Ok(first.map(|named| match all {
        1 => format!("{named}, is not as it was written"),
        _ => format!("{named}, is not as it was written, and {} more rows are not", all - 1),
    }))
}

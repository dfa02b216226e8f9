//! Checksums of rows.
//!
//! `PRAGMA integrity_check` finds damage of SQLite's pages. It misses a byte that has changed
//! inside of a row that is still readable: a digit in an initiator's name, `rw` in the place of
//! `ro`, a generation. So the statement that writes a row also stores a CRC-32 of its table's name
//! and its columns in `sum`. Opening the store checks all sums. A CRC, and no hash: it is sure to
//! find any change within 4 bytes, and costs next to nothing on the path of a grant.
//!
//! Only the agent's connections have the function `row_sum`. The next start refuses a row that an
//! sqlite3 shell has written, which is the intent; a row that it deletes is gone.
//!
//! What must never happen here: a row that is written without its sum; a right sum for a row that
//! was wrong before a part of it was changed; a body (it holds CHAP secrets) in what is said of a
//! row.

use std::fmt::Write;
use std::sync::LazyLock;

use crc32fast::Hasher;
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;

/// A table whose rows have sums.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// Columns that name a row in messages.
    pub(super) key: &'static [&'static str],
    /// Columns that are summed behind the key: every other one, in this order for ever. A schema
    /// that adds one sums all rows anew.
    pub(super) rest: &'static [&'static str],
    /// First schema whose rows have sums over these columns.
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

/// A statement that is built once.
pub(super) type Sql = LazyLock<String>;

impl Table {
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.key.iter().chain(self.rest).copied()
    }

    /// Returns the columns as [`Table::insert`] binds them, `?1` first.
    pub(super) fn listed(&self) -> String {
        self.columns().collect::<Vec<_>>().join(", ")
    }

    /// Returns the statement that inserts a row with all of its columns.
    pub(super) fn insert(&self) -> String {
        let values: Vec<_> = (1..=self.columns().count()).map(|at| format!("?{at}")).collect();
        let (name, columns, values) = (self.name, self.listed(), values.join(", "));
        format!("INSERT INTO {name} ({columns}, sum) VALUES ({values}, row_sum('{name}', {values}))")
    }

    /// Returns the assignments behind `SET` for a change of these columns of an existing row. A
    /// wrong sum stays wrong: a change does not make the rest of the row right.
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

    /// Returns a description of the first row whose sum is wrong, with the number of such rows.
    /// `None` if there is none.
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
                // The damage may be in the key itself.
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

/// Registers `row_sum` with a connection.
pub(super) fn teach(conn: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        // Callable from our statements only, not from a schema that somebody has changed.
        | FunctionFlags::SQLITE_DIRECTONLY;
    conn.create_scalar_function("row_sum", -1, flags, |values| Ok(row_sum(values)))
}

/// Sums each value with its type and its length, so that nothing slides from one column into the
/// next.
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

/// Returns the message about rows that differ from what was written, in a store of this schema.
/// `None` if there are none. Reads every row.
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

//! SQL for both databases: values, rows, and the two verbs that cover every statement.
//!
//! Statements are written once. Placeholders are `?1`, `?2` …; columns hold only 64-bit integers,
//! texts and bytes, and a boolean is 0 or 1. Both databases agree on these.
//!
//! What must never happen here: a value put into a statement's text; a column read as another type.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use mooring_model::{Digest, Generation};
use mooring_systemd::sealing::SealError;

use super::time_of;

/// One value of a row or of a placeholder.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) enum Value {
    /// NULL.
    #[default]
    Null,
    /// A number, a boolean or a time.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
    /// A number that no column holds: a statement with it fails.
    TooLarge,
}

impl fmt::Debug for Value {
    // Some values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "Null",
            Self::Int(_) => "Int(..)",
            Self::Text(_) => "Text(..)",
            Self::Blob(_) => "Blob(..)",
            Self::TooLarge => "TooLarge",
        })
    }
}

/// The cause of a statement's failure. The transaction is over.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// A number is larger than a column holds.
    #[error("a number is larger than a column of the database holds")]
    TooLarge,
    /// An error of SQLite.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// An error of PostgreSQL, without its details: those may show a whole row.
    #[error("{code}: {text}")]
    Postgres {
        /// SQLSTATE, five characters.
        code: String,
        /// The server's message.
        text: String,
    },
    /// The database cannot be reached, or the connection to it broke. Nothing was changed.
    #[error("{0}")]
    Unreachable(String),
    /// A text with a NUL character, which PostgreSQL cannot keep.
    #[error("a text holds a NUL character")]
    Nul,
    /// Another controller now drives this agent. Nothing was changed.
    #[error("this controller does not hold the lease of agent {0} any more")]
    Fenced(String),
    /// A failure of the whole group of changes that shared one sync.
    #[error("{text}")]
    Group {
        /// The error code of SQLite, if there is one.
        code: Option<rusqlite::ErrorCode>,
        /// The message of SQLite.
        text: String,
    },
    /// The file of the embedded database is no longer at its path: writes to it are not kept.
    #[error("its file is not there any more")]
    Gone,
    /// A secret cannot be sealed or opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A column holds another type or value than its place promises.
    #[error("column {index} holds {what}")]
    Column {
        /// The column's index, from 0.
        index: usize,
        /// The content found instead.
        what: &'static str,
    },
}

impl From<postgres::Error> for SqlError {
    fn from(error: postgres::Error) -> Self {
        match error.as_db_error() {
            None => Self::unreachable(&error),
            Some(said) => {
                let code = said.code().code();
                // The server stops, starts, has no session free, or only follows another server.
                if code.starts_with("57P") || code.starts_with("08") || code == "53300" || code == "25006" {
                    return Self::Unreachable(format!("{code}: {}", said.message()));
                }
                let of = said.constraint().map(|name| format!(" ({name})")).unwrap_or_default();
                Self::Postgres { code: code.to_owned(), text: format!("{}{of}", said.message()) }
            }
        }
    }
}

impl SqlError {
    /// The error code of SQLite; `None` for other errors.
    pub(super) fn code(&self) -> Option<rusqlite::ErrorCode> {
        match self {
            Self::Sqlite(error) => error.sqlite_error_code(),
            Self::Group { code, .. } => *code,
            _ => None,
        }
    }

    /// A failure of the connection: the server gave no answer.
    pub(super) fn unreachable(error: &postgres::Error) -> Self {
        Self::Unreachable(mooring_model::Chain(error).to_string())
    }
}

/// A callback for each row of an answer. It may take the row itself.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(&mut Row) -> Result<(), SqlError>;

/// A transaction of either database.
pub(crate) trait Sql {
    /// Runs a statement that returns rows, and calls `work` for each row while it is read: of a
    /// page of a thousand rows, memory holds one at a time.
    fn each(&self, sql: &str, values: &[Value], work: EachRow<'_>) -> Result<(), SqlError>;

    /// Runs a statement that returns rows, and collects them all.
    fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, SqlError> {
        let mut rows = Vec::new();
        self.each(sql, values, &mut |row| {
            rows.push(std::mem::take(row));
            Ok(())
        })?;
        Ok(rows)
    }

    /// Runs a statement that changes rows. Returns their number.
    fn run(&self, sql: &str, values: &[Value]) -> Result<u64, SqlError>;
}

/// One row of an answer. Reading a column takes its value.
#[derive(Default)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    /// Becomes the next row, and reuses the memory.
    pub(super) fn refill<E>(&mut self, columns: impl Iterator<Item = Result<Value, E>>) -> Result<(), E> {
        self.0.clear();
        self.0.reserve(columns.size_hint().0);
        for column in columns {
            self.0.push(column?);
        }
        Ok(())
    }

    fn take(&mut self, index: usize) -> Value {
        self.0.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    /// Reads a column.
    pub(crate) fn get<T: FromValue>(&mut self, index: usize) -> Result<T, SqlError> {
        T::from_value(self.take(index)).ok_or(SqlError::Column { index, what: "a value of another kind" })
    }

    /// Reads a column that holds a value's text form.
    pub(crate) fn parsed<T: FromStr>(&mut self, index: usize) -> Result<T, SqlError> {
        self.parsed_opt(index)?.ok_or(SqlError::Column { index, what: "nothing" })
    }

    /// Reads a column that holds a value's text form or NULL.
    pub(crate) fn parsed_opt<T: FromStr>(&mut self, index: usize) -> Result<Option<T>, SqlError> {
        let text: Option<String> = self.get(index)?;
        let what = "a text that is not what its column holds";
        text.map(|text| text.parse().map_err(|_| SqlError::Column { index, what })).transpose()
    }

    /// Reads a column that holds one of the API's words.
    pub(crate) fn word<T>(&mut self, index: usize, from: impl Fn(&str) -> Option<T>) -> Result<T, SqlError> {
        let text: String = self.get(index)?;
        from(&text).ok_or(SqlError::Column { index, what: "an unknown word" })
    }

    /// Reads a column that holds JSON.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&mut self, index: usize) -> Result<T, SqlError> {
        self.json_opt(index)?.ok_or(SqlError::Column { index, what: "nothing" })
    }

    /// Reads a column that holds JSON or NULL.
    pub(crate) fn json_opt<T: serde::de::DeserializeOwned>(
        &mut self,
        index: usize,
    ) -> Result<Option<T>, SqlError> {
        let text: Option<String> = self.get(index)?;
        let what = "not the JSON that its column holds";
        text.map(|text| serde_json::from_str(&text).map_err(|_| SqlError::Column { index, what })).transpose()
    }

    /// Reads a column that holds microseconds since 1970.
    pub(crate) fn time(&mut self, index: usize) -> Result<SystemTime, SqlError> {
        Ok(time_of(self.get(index)?))
    }

    /// Reads a column that holds microseconds since 1970 or NULL.
    pub(crate) fn time_opt(&mut self, index: usize) -> Result<Option<SystemTime>, SqlError> {
        Ok(self.get::<Option<i64>>(index)?.map(time_of))
    }

    /// Reads two columns that hold a generation.
    pub(crate) fn generation(&mut self, epoch: usize, counter: usize) -> Result<Generation, SqlError> {
        Ok(Generation { epoch: self.get(epoch)?, counter: self.get(counter)? })
    }

    /// Reads a column that holds a digest.
    pub(crate) fn digest(&mut self, index: usize) -> Result<Digest, SqlError> {
        Digest::new(self.get::<Vec<u8>>(index)?).ok_or(SqlError::Column { index, what: "not a digest" })
    }
}

/// Types that a column can be read as.
pub(crate) trait FromValue: Sized {
    fn from_value(value: Value) -> Option<Self>;
}

impl FromValue for Value {
    fn from_value(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl FromValue for i64 {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }
}

impl FromValue for bool {
    fn from_value(value: Value) -> Option<Self> {
        i64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue for u32 {
    fn from_value(value: Value) -> Option<Self> {
        i64::from_value(value).and_then(|number| Self::try_from(number).ok())
    }
}

impl FromValue for u64 {
    fn from_value(value: Value) -> Option<Self> {
        i64::from_value(value).and_then(|number| Self::try_from(number).ok())
    }
}

impl FromValue for String {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<u64> for Value {
    /// Our own numbers (counters, sizes) never come near the end of the signed column. A number
    /// from an agent may; then the statement fails instead of storing another number.
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or(Self::TooLarge, Self::Int)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Int(truth.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Blob(bytes)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Blob(bytes.to_vec())
    }
}

impl From<SystemTime> for Value {
    fn from(time: SystemTime) -> Self {
        Self::Int(super::micros(time))
    }
}

macro_rules! by_text {
    ($($kind:ty),+ $(,)?) => {
        $(impl From<$kind> for Value {
            fn from(it: $kind) -> Self {
                Self::Text(it.to_string())
            }
        }

        impl From<&$kind> for Value {
            fn from(it: &$kind) -> Self {
                Self::Text(it.to_string())
            }
        })+
    };
}

by_text!(
    mooring_model::AgentId,
    mooring_model::AttachmentId,
    mooring_model::Initiator,
    mooring_model::Iqn,
    mooring_model::Mode,
    mooring_model::VolumeId,
    mooring_model::Wwpn,
    crate::initiators::Initiators,
    uuid::Uuid,
);

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The values of a statement's placeholders, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        [$($crate::store::sql::Value::from($value)),*]
    };
}

pub(crate) use values;

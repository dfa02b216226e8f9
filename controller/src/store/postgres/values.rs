//! Conversion of our values and statements for PostgreSQL.
//!
//! What must never happen here: a value sent as another type than its column's; a `?1` inside of a
//! quoted text changed.

use std::error::Error;

use bytes::BytesMut;
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::store::sql::Value;

type Fault = Box<dyn Error + Sync + Send>;

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Fault> {
        match (self, kind) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Int(number), &Type::INT8) => number.to_sql(kind, out),
            (Self::Int(number), &Type::INT4) => i32::try_from(*number)?.to_sql(kind, out),
            (Self::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::NAME) => text.to_sql(kind, out),
            (Self::Blob(bytes), &Type::BYTEA) => bytes.to_sql(kind, out),
            _ => Err(format!("a value of another kind than {kind}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Fault> {
        Ok(match *kind {
            Type::INT8 => Self::Int(i64::from_sql(kind, raw)?),
            Type::INT4 => Self::Int(i32::from_sql(kind, raw)?.into()),
            // SQLite's form of a boolean.
            Type::BOOL => Self::Int(bool::from_sql(kind, raw)?.into()),
            Type::BYTEA => Self::Blob(raw.to_vec()),
            _ => Self::Text(String::from_sql(kind, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Fault> {
        Ok(Self::Null)
    }

    fn accepts(kind: &Type) -> bool {
        matches!(
            *kind,
            Type::INT8 | Type::INT4 | Type::BOOL | Type::BYTEA | Type::TEXT | Type::VARCHAR | Type::NAME
        )
    }
}

/// Rewrites `?1` as `$1`, outside of quotes.
pub(super) fn placeholders(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut quote = None;
    for found in sql.chars() {
        match (quote, found) {
            (None, '?') => {
                text.push('$');
                continue;
            }
            (None, '\'' | '"') => quote = Some(found),
            (Some(open), found) if open == found => quote = None,
            _ => {}
        }
        text.push(found);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::placeholders;

    #[test]
    fn placeholders_change_and_texts_do_not() {
        for (from, to) in [
            ("SELECT ?1, ?23", "SELECT $1, $23"),
            ("a = '?1' AND b = ?2", "a = '?1' AND b = $2"),
            ("\"?\" = ?1 AND c = 'it''s ?' AND d = ?3", "\"?\" = $1 AND c = 'it''s ?' AND d = $3"),
            ("", ""),
        ] {
            assert_eq!(placeholders(from), to);
        }
    }
}

//! The audit log.
//!
//! What must never happen here: a line that is changed (a trigger refuses it); a deletion by
//! anything but age.

use std::time::SystemTime;

use super::Db;
use super::sql::{Row, SqlError, Value, values};
use crate::domain::{AuditCall, AuditEntry, AuditLine, AuditObject, AuditQuery};

/// The most lines that one transaction prunes: no change waits behind a longer one.
pub(crate) const PRUNE_ROWS_MAX: u32 = 1_000;

const COLUMNS: &str = "seq, at_us, request, user_name, project, roles, peer, method, operation, action, objects, status, \
                       problem";

fn object(line: &str) -> Option<AuditObject> {
    let (kind, id) = line.split_once(':')?;
    Some(AuditObject { kind: kind.to_owned(), id: id.to_owned() })
}

fn audit_line(row: &mut Row) -> Result<AuditLine, SqlError> {
    let roles: Option<String> = row.get(5)?;
    let peer: Option<String> = row.get(6)?;
    let objects: String = row.get(10)?;
    let call = AuditCall {
        request: row.get(2)?,
        user: row.get(3)?,
        project: row.get(4)?,
        roles: roles.iter().flat_map(|roles| roles.split_whitespace()).map(str::to_owned).collect(),
        from: peer.and_then(|peer| peer.parse().ok()),
        method: row.get(7)?,
        operation: row.get(8)?,
        action: row.get(9)?,
        objects: objects.lines().filter_map(object).collect(),
        status: u16::try_from(row.get::<u32>(11)?).unwrap_or(0),
        problem: row.get(12)?,
    };
    Ok(AuditLine { seq: row.get(0)?, entry: AuditEntry { at: row.time(1)?, call } })
}

/// Lines of a block, of which `audit_objects` keeps the objects together. It is in the schema, too.
const BLOCK_LINES: u64 = 1024;

fn block_of(seq: u64) -> u64 {
    seq / BLOCK_LINES
}

/// The statement that inserts this many objects of one line.
fn insert_objects(count: usize) -> String {
    let rows = (3..3 + count).map(|object| format!("(?1, ?2, ?{object})")).collect::<Vec<_>>().join(", ");
    format!("INSERT INTO audit_objects (block, seq, object) VALUES {rows} ON CONFLICT DO NOTHING")
}

/// The condition of lines with an object (`?#`). It looks into each block that the log has.
fn has_object() -> String {
    format!(
        "seq IN (WITH RECURSIVE blocks (block) AS (SELECT MIN(seq) / {BLOCK_LINES} FROM audit UNION ALL \
         SELECT block + 1 FROM blocks WHERE block < (SELECT MAX(seq) / {BLOCK_LINES} FROM audit)) \
         SELECT o.seq FROM blocks JOIN audit_objects o ON o.block = blocks.block AND o.object = ?#)"
    )
}

impl Db<'_> {
    /// Appends a line, unless one with its time and request id exists.
    pub(crate) fn append_audit(&self, entry: &AuditEntry) -> Result<(), SqlError> {
        let call = &entry.call;
        let lines = call.objects.iter().map(|object| format!("{}:{}", object.kind, object.id));
        let objects = lines.collect::<Vec<_>>().join("\n");
        let roles = call.user.is_some().then(|| call.roles.join(" "));
        let peer = call.from.map(|from| from.to_string());
        let sql = "INSERT INTO audit (at_us, request, user_name, project, roles, peer, method, operation, action, objects, \
                   status, problem) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
                   ON CONFLICT (at_us, request) DO NOTHING RETURNING seq";
        let values = values![
            entry.at,
            call.request.as_str(),
            call.user.as_deref(),
            call.project.as_deref(),
            roles,
            peer,
            call.method.as_str(),
            call.operation.as_deref(),
            call.action.as_deref(),
            objects,
            u32::from(call.status),
            call.problem.as_deref()
        ];
        let Some(seq) = self.one(sql, &values, |row| row.get::<u64>(0))? else { return Ok(()) };
        if !call.objects.is_empty() {
            let ids = call.objects.iter().map(|object| object.id.as_str().into());
            let values: Vec<Value> = [block_of(seq).into(), seq.into()].into_iter().chain(ids).collect();
            self.run(&insert_objects(call.objects.len()), &values)?;
        }
        Ok(())
    }

    /// Lines of the log, newest first.
    pub(crate) fn audit_lines(&self, query: &AuditQuery) -> Result<Vec<AuditLine>, SqlError> {
        let mut terms = Vec::new();
        let mut values: Vec<Value> = Vec::new();
        let mut term = |text: &str, value: Value| {
            values.push(value);
            terms.push(text.replace("?#", &format!("?{}", values.len())));
        };
        if let Some(since) = query.since {
            term("at_us >= ?#", since.into());
        }
        if let Some(until) = query.until {
            term("at_us < ?#", until.into());
        }
        if let Some(user) = &query.user {
            term("user_name = ?#", user.as_str().into());
        }
        if let Some(object) = &query.object {
            term(&has_object(), object.as_str().into());
        }
        if let Some(marker) = query.marker {
            term("seq < ?#", marker.into());
        }
        let terms = if terms.is_empty() { String::new() } else { format!("WHERE {}", terms.join(" AND ")) };
        values.push(query.limit.into());
        let sql = format!("SELECT {COLUMNS} FROM audit {terms} ORDER BY seq DESC LIMIT ?{}", values.len());
        self.all(&sql, &values, audit_line)
    }

    /// Deletes the oldest lines from before a time, at most [`PRUNE_ROWS_MAX`]. Returns their
    /// number.
    pub(crate) fn prune_audit(&self, before: SystemTime) -> Result<u64, SqlError> {
        let sql = "SELECT seq, objects FROM audit WHERE at_us < ?1 ORDER BY at_us LIMIT ?2";
        let line = |row: &mut Row| Ok((row.get::<u64>(0)?, row.get::<String>(1)?));
        let mut pruned = 0;
        for (seq, objects) in self.all(sql, &values![before, PRUNE_ROWS_MAX], line)? {
            for object in objects.lines().filter_map(object) {
                let sql = "DELETE FROM audit_objects WHERE block = ?1 AND object = ?2 AND seq = ?3";
                self.run(sql, &values![block_of(seq), object.id, seq])?;
            }
            pruned += self.run("DELETE FROM audit WHERE seq = ?1", &values![seq])?;
        }
        Ok(pruned)
    }
}

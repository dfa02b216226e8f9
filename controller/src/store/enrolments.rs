//! Agents that joined with a token, and the tokens.
//!
//! What must never happen here: a token that two keys have used; an enrolment of a name that its token was not for.

use super::Db;
use super::sql::{Row, SqlError, values};
use crate::domain::{Enrolment, JoinToken};

const COLUMNS: &str = "name, id, address, roles, state, zone, joined_us, expires_us";

fn enrolment(row: &mut Row) -> Result<Enrolment, SqlError> {
    Ok(Enrolment {
        name: row.get(0)?,
        id: row.parsed(1)?,
        address: row.get(2)?,
        roles: row.parsed(3)?,
        revoked: row.get::<String>(4)? == "revoked",
        zone: row.get(5)?,
        joined_at: row.time(6)?,
        expires_at: row.time(7)?,
    })
}

impl Db<'_> {
    /// All agents that ever joined and are not forgotten, by name.
    pub(crate) fn enrolments(&self) -> Result<Vec<Enrolment>, SqlError> {
        self.all(&format!("SELECT {COLUMNS} FROM enrolments ORDER BY name"), &[], enrolment)
    }

    /// The enrolment of this name.
    pub(crate) fn enrolment(&self, name: &str) -> Result<Option<Enrolment>, SqlError> {
        self.one(&format!("SELECT {COLUMNS} FROM enrolments WHERE name = ?1"), &values![name], enrolment)
    }

    /// Keeps an enrolment, in the place of an earlier one of its name.
    pub(crate) fn put_enrolment(&self, enrolment: &Enrolment) -> Result<(), SqlError> {
        let sql = "INSERT INTO enrolments (name, id, address, roles, state, zone, joined_us, expires_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
                   ON CONFLICT (name) DO UPDATE SET id = excluded.id, address = excluded.address, roles = excluded.roles, \
                   state = excluded.state, zone = excluded.zone, joined_us = excluded.joined_us, \
                   expires_us = excluded.expires_us";
        let values = values![
            enrolment.name.as_str(),
            enrolment.id.to_string(),
            enrolment.address.as_str(),
            enrolment.roles.to_string(),
            if enrolment.revoked { "revoked" } else { "enrolled" },
            enrolment.zone.as_deref(),
            enrolment.joined_at,
            enrolment.expires_at
        ];
        self.run(sql, &values).map(drop)
    }

    /// Ends an enrolment: the agent is never dialled again. `false`: there is none of this name.
    pub(crate) fn revoke_enrolment(&self, name: &str) -> Result<bool, SqlError> {
        let sql = "UPDATE enrolments SET state = 'revoked' WHERE name = ?1";
        Ok(self.run(sql, &values![name])? == 1)
    }

    /// Takes an enrolment away, revoked or not: its certificate is worth nothing.
    pub(crate) fn drop_enrolment(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM enrolments WHERE name = ?1", &values![name]).map(drop)
    }

    /// Keeps a token, in the place of an earlier one of its name.
    pub(crate) fn put_join_token(&self, token: &JoinToken) -> Result<(), SqlError> {
        let sql = "INSERT INTO join_tokens (hash, name, roles, zone, expires_us, used_by) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                   ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, roles = excluded.roles, \
                   zone = excluded.zone, expires_us = excluded.expires_us, used_by = excluded.used_by";
        let roles = token.roles.to_string();
        let values = values![
            token.hash.as_str(),
            token.name.as_str(),
            roles,
            token.zone.as_deref(),
            token.expires_at,
            token.used_by.as_deref()
        ];
        self.run(sql, &values).map(drop)
    }

    /// The token of this hash.
    pub(crate) fn join_token(&self, hash: &str) -> Result<Option<JoinToken>, SqlError> {
        let sql = "SELECT hash, name, roles, zone, expires_us, used_by FROM join_tokens WHERE hash = ?1";
        self.one(sql, &values![hash], |row| {
            Ok(JoinToken {
                hash: row.get(0)?,
                name: row.get(1)?,
                roles: row.parsed(2)?,
                zone: row.get(3)?,
                expires_at: row.time(4)?,
                used_by: row.get(5)?,
            })
        })
    }

    /// Takes the token of this name back, used or not.
    pub(crate) fn drop_join_token(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM join_tokens WHERE name = ?1", &values![name]).map(drop)
    }
}

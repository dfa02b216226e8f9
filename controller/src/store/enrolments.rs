//! Agents that joined with a token, and the tokens; and the facts about authorities that several
//! controllers share.
//!
//! What must never happen here: a token that two keys have used; an enrolment under a name that its
//! token was not for; a private key in clear.

use std::time::{SystemTime, UNIX_EPOCH};

use mooring_systemd::sealing::Place;
use uuid::Uuid;

use super::sql::{Row, SqlError, values};
use super::{Db, micros, time_of};
use crate::domain::{AgentEntry, ControllerTrust, Enrolment, JoinToken, NextAuthority};

/// The prefix of the keys of `meta` under which controllers list the authorities they trust.
const TRUST: &str = "trust:";

/// The keys of `meta` of the next authority: its certificate, and its private key, sealed.
const NEXT_CERTIFICATE: &str = "next_authority";
const NEXT_KEY: &str = "next_authority_key";

/// The prefix of the keys of `meta` for files that were made for other machines.
const SHARE: &str = "share:";

/// The place of the next authority's private key.
const NEXT_KEY_PLACE: Place<'static> = Place { table: "meta", column: "value", row: &[NEXT_KEY] };

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

    /// Returns `true` if the agent is still enrolled as this entry says; `false` if its name is
    /// free or belongs to another agent by now.
    pub(crate) fn stands(&self, entry: &AgentEntry) -> Result<bool, SqlError> {
        if entry.enrolment.is_none() {
            return Ok(true);
        }
        let enrolment = self.enrolment(&entry.name)?;
        Ok(enrolment.is_some_and(|enrolment| !enrolment.revoked && entry.is_of(&enrolment)))
    }

    /// Stores an enrolment; it replaces an earlier one of its name.
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

    /// Ends an enrolment: the agent is never dialled again. Returns `false` if there is none of
    /// this name.
    pub(crate) fn revoke_enrolment(&self, name: &str) -> Result<bool, SqlError> {
        let sql = "UPDATE enrolments SET state = 'revoked' WHERE name = ?1";
        Ok(self.run(sql, &values![name])? == 1)
    }

    /// Deletes an enrolment, revoked or not: its certificate is worth nothing from now on.
    pub(crate) fn drop_enrolment(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM enrolments WHERE name = ?1", &values![name]).map(drop)
    }

    /// Stores a token; it replaces an earlier one of its name.
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

    /// The token with this hash.
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

    /// Deletes the token of this name, used or not.
    pub(crate) fn drop_join_token(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM join_tokens WHERE name = ?1", &values![name]).map(drop)
    }

    /// Stores which authorities a controller trusts. Deletes what it said before its last restart,
    /// and words of which nobody can tell whose they are. For a shared database.
    pub(crate) fn put_controller_trust(&self, id: &str, trust: &ControllerTrust) -> Result<(), SqlError> {
        let stand: Vec<String> = self.all("SELECT id FROM controllers", &[], |row| row.get(0))?;
        for (other, word) in self.controller_words()? {
            let stale = word.is_none_or(|word| word.key.is_empty() || word.is_of_one(trust));
            if stale && other != id && !stand.contains(&other) {
                self.drop_meta(&format!("{TRUST}{other}"))?;
            }
        }
        let trust = ControllerTrust { said_us: micros(self.now), ..trust.clone() };
        let text = serde_json::to_string(&trust).unwrap_or_default();
        self.set_meta(&format!("{TRUST}{id}"), &text)
    }

    /// Forgets all that a controller said of the authorities that it trusts, also before its
    /// restarts. For a shared database.
    pub(crate) fn forget_controller(&self, gone: &ControllerTrust) -> Result<(), SqlError> {
        for (id, word) in self.controller_words()? {
            if word.is_some_and(|word| word.is_of_one(gone)) {
                self.drop_meta(&format!("{TRUST}{id}"))?;
            }
        }
        Ok(())
    }

    /// The last word of each controller, by its id then; `None` for a word that cannot be read.
    fn controller_words(&self) -> Result<Vec<(String, Option<ControllerTrust>)>, SqlError> {
        let sql = "SELECT substr(key, 7), value FROM meta WHERE substr(key, 1, 6) = ?1 ORDER BY key";
        self.all(sql, &values![TRUST], |row| {
            let text: String = row.get(1)?;
            Ok((row.get(0)?, serde_json::from_str(&text).ok()))
        })
    }

    /// The controllers that are off, by the id that each had last, with the authorities that it
    /// trusted then. For a shared database.
    pub(crate) fn absent_controllers(&self) -> Result<Vec<(String, ControllerTrust)>, SqlError> {
        let present = self.controller_trusts()?;
        let mut absent: Vec<(String, ControllerTrust)> = Vec::new();
        for (id, word) in self.controller_words()? {
            let Some(word) = word.filter(|word| !word.key.is_empty()) else { continue };
            let is_up = |(other, said): &(String, Option<ControllerTrust>)| {
                *other == id || said.as_ref().is_some_and(|said| said.is_of_one(&word))
            };
            if present.iter().any(is_up) {
                continue;
            }
            match absent.iter_mut().find(|(_, known)| known.is_of_one(&word)) {
                // It was restarted before its former life had ended.
                Some(known) if known.1.said_us < word.said_us => *known = (id, word),
                Some(_) => {}
                None => absent.push((id, word)),
            }
        }
        Ok(absent)
    }

    /// The live controllers, by id, with the authorities that each trusts; `None` for one that has
    /// not said so. For a shared database.
    pub(crate) fn controller_trusts(&self) -> Result<Vec<(String, Option<ControllerTrust>)>, SqlError> {
        let alive = "SELECT id FROM controllers WHERE until_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
                     ORDER BY id";
        let ids: Vec<String> = self.all(alive, &[], |row| row.get(0))?;
        let said = |id: String| {
            let text = self.meta(&format!("{TRUST}{id}"))?;
            Ok((id, text.and_then(|text| serde_json::from_str(&text).ok())))
        };
        ids.into_iter().map(said).collect()
    }

    /// The new authority of the rotation in progress.
    pub(crate) fn next_authority(&self) -> Result<Option<NextAuthority>, SqlError> {
        let (Some(certificate), Some(sealed)) = (self.meta(NEXT_CERTIFICATE)?, self.meta(NEXT_KEY)?) else {
            return Ok(None);
        };
        let key = std::mem::take(&mut *self.keys.open_text(NEXT_KEY_PLACE, &sealed)?);
        Ok(Some(NextAuthority { certificate, key }))
    }

    /// Stores the authority of a rotation, unless there is one already. Returns the stored one.
    pub(crate) fn offer_next_authority(&self, next: &NextAuthority) -> Result<NextAuthority, SqlError> {
        if let Some(kept) = self.next_authority()? {
            return Ok(kept);
        }
        self.set_meta(NEXT_CERTIFICATE, &next.certificate)?;
        self.set_meta(NEXT_KEY, &self.keys.seal_text(NEXT_KEY_PLACE, &next.key)?)?;
        Ok(next.clone())
    }

    /// Deletes the authority of a rotation: every controller has it.
    pub(crate) fn drop_next_authority(&self) -> Result<(), SqlError> {
        self.drop_meta(NEXT_KEY)?;
        self.drop_meta(NEXT_CERTIFICATE).map(drop)
    }

    /// Notes that a file with the keys of this database was made for one machine, valid until
    /// `expires`. Deletes expired notes.
    pub(crate) fn put_share(&self, id: Uuid, expires: SystemTime) -> Result<(), SqlError> {
        let all = "SELECT key, value FROM meta WHERE substr(key, 1, 6) = ?1";
        let kept =
            self.all(all, &values![SHARE], |row| Ok((row.get::<String>(0)?, row.get::<String>(1)?)))?;
        for (key, value) in kept {
            let ends = value.split(' ').next().and_then(|text| text.parse().ok()).map_or(UNIX_EPOCH, time_of);
            if ends <= self.now {
                self.drop_meta(&key)?;
            }
        }
        self.set_meta(&format!("{SHARE}{id}"), &micros(expires).to_string())
    }

    /// Uses such a file for the machine with this key; the same machine may use it again. The inner
    /// error says why it cannot be used.
    pub(crate) fn use_share(&self, id: Uuid, key: &str) -> Result<Result<(), &'static str>, SqlError> {
        let name = format!("{SHARE}{id}");
        let Some(value) = self.meta(&name)? else { return Ok(Err("is not known to this database")) };
        let (ends, used_by) = value.split_once(' ').unwrap_or((&value, ""));
        let over = ends.parse().map_or(UNIX_EPOCH, time_of) <= self.now;
        Ok(match used_by {
            "" if over => Err("has expired"),
            "" => self.set_meta(&name, &format!("{ends} {key}")).map(Ok)?,
            own if own == key => Ok(()),
            _ => Err("was used already, on another machine or with another key"),
        })
    }
}

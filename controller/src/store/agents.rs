//! What the agents said last: who they are and what they can do. After a restart the last report still decides.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::Db;
use super::sql::{Row, SqlError, values};
use mooring_api::{Message, v1};
use mooring_model::{AgentId, Initiator, Iqn, Wwpn};

/// An agent as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentRow {
    /// The configuration's name.
    pub(crate) name: String,
    /// Its id.
    pub(crate) id: AgentId,
    /// Under which name it logs in.
    pub(crate) initiator: Option<Iqn>,
    /// What it can do.
    pub(crate) capabilities: Option<v1::Capabilities>,
    /// When it was asked for that: the report holds everything from before.
    pub(crate) reported_at: Option<SystemTime>,
    /// No new volumes are placed there; an operator said so.
    pub(crate) disabled: bool,
    /// Why.
    pub(crate) disabled_reason: Option<String>,
    /// It is being emptied: no new volumes are placed there.
    pub(crate) drained: bool,
    /// When it was heard last, as far as that was kept: in memory it may be some seconds later.
    pub(crate) heard_at: Option<SystemTime>,
    /// What it says its software is.
    pub(crate) software: String,
}

impl AgentRow {
    /// Under which names its host logs in: its iSCSI name, and its Fibre Channel ports that were online last.
    pub(crate) fn initiators(&self) -> BTreeSet<Initiator> {
        let ports = self.capabilities.as_ref().map_or(&[][..], |seen| &seen.fc_initiator_ports);
        let ports = ports.iter().filter_map(|port| port.parse::<Wwpn>().ok()).map(Initiator::Fc);
        self.initiator.clone().map(Initiator::Iscsi).into_iter().chain(ports).collect()
    }
}

/// What operators say of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// New volumes may be placed there again.
    Enabled,
    /// No new volumes are placed there, and why.
    Disabled(Option<String>),
    /// Whether it is being emptied.
    Drained(bool),
}

/// When an agent was heard, for [`Db::keep_heard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Its name.
    pub(crate) name: String,
    /// When it was heard last.
    pub(crate) at: SystemTime,
    /// When it was asked for what it said last of its pools.
    pub(crate) asked_at: Option<SystemTime>,
}

const COLUMNS: &str = "name, agent_id, initiator, capabilities, report_us, disabled, disabled_reason, drained, heard_us, \
     software";

fn agent(row: &mut Row) -> Result<AgentRow, SqlError> {
    let capabilities: Option<Vec<u8>> = row.get(3)?;
    Ok(AgentRow {
        name: row.get(0)?,
        id: row.parsed(1)?,
        initiator: row.parsed_opt(2)?,
        capabilities: capabilities.and_then(|bytes| v1::Capabilities::decode(bytes.as_slice()).ok()),
        reported_at: row.time_opt(4)?,
        disabled: row.get(5)?,
        disabled_reason: row.get(6)?,
        drained: row.get(7)?,
        heard_at: row.time_opt(8)?,
        software: row.get(9)?,
    })
}

impl Db<'_> {
    /// All that ever said hello.
    pub(crate) fn agents(&self) -> Result<Vec<AgentRow>, SqlError> {
        self.all(&format!("SELECT {COLUMNS} FROM agents ORDER BY name"), &[], agent)
    }

    /// Those with this id, or with this initiator's name.
    pub(crate) fn agents_like(
        &self,
        id: AgentId,
        initiator: Option<&Iqn>,
    ) -> Result<Vec<AgentRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM agents WHERE agent_id = ?1 OR initiator = ?2 ORDER BY name");
        self.all(&sql, &values![id, initiator], agent)
    }

    /// Keeps who an agent is.
    pub(crate) fn put_agent(
        &self,
        name: &str,
        id: AgentId,
        initiator: Option<&Iqn>,
        portals: &[String],
        software: &str,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO agents (name, agent_id, initiator, portals, hello_us, heard_us, software) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6) \
                   ON CONFLICT (name) DO UPDATE SET agent_id = excluded.agent_id, initiator = excluded.initiator, \
                   portals = excluded.portals, hello_us = excluded.hello_us, heard_us = excluded.heard_us, \
                   software = excluded.software";
        self.run(sql, &values![name, id, initiator, portals.join(" "), self.now, software]).map(drop)
    }

    /// Raises the epoch above what an agent keeps of other histories of this database. Returns the new one, if it had to be
    /// raised.
    pub(crate) fn rise_above(&self, name: &str, newest: u64) -> Result<Option<u64>, SqlError> {
        let epoch = self.epoch()?;
        // What an agent that was compared keeps of this epoch is ours.
        let ours = newest == epoch && {
            let sql = "SELECT compared FROM agents WHERE name = ?1";
            self.one(sql, &values![name], |row| row.get(0))?.unwrap_or(false)
        };
        if newest < epoch || ours {
            return Ok(None);
        }
        self.raise_above(newest).map(Some)
    }

    /// An agent was compared: what it is sent from now on is of this history.
    pub(crate) fn note_compared(&self, name: &str) -> Result<(), SqlError> {
        let sql = "UPDATE agents SET compared = 1 WHERE name = ?1 AND compared = 0";
        self.run(sql, &values![name]).map(drop)
    }

    /// Whether an agent was compared since this database is what it is: what it keeps of this epoch is ours.
    pub(crate) fn is_compared(&self, id: AgentId) -> Result<bool, SqlError> {
        let sql = "SELECT compared FROM agents WHERE agent_id = ?1";
        Ok(self.one(sql, &values![id], |row| row.get(0))?.unwrap_or(false))
    }

    /// The first of these agents that was heard before this database was restored and not since: it may have what this database does
    /// not know.
    pub(crate) fn unheard_since_restore<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Result<Option<&'a str>, SqlError> {
        let sql = "SELECT name FROM agents WHERE compared = 0";
        let unheard = self.all(sql, &[], |row| row.get::<String>(0))?;
        Ok(names.find(|name| unheard.iter().any(|unheard| unheard == name)))
    }

    /// This database is another history from now on: every agent may keep more than it knows.
    pub(crate) fn forget_compared(&self) -> Result<(), SqlError> {
        self.run("UPDATE agents SET compared = 0", &[]).map(drop)
    }

    /// Forgets an agent that the configuration does not name any more.
    pub(crate) fn forget_agent(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM agents WHERE name = ?1", &values![name]).map(drop)
    }

    /// Keeps what an agent can do. `asked_at`: when it was asked for that; without, it said so by itself, and the time of
    /// the last answer stays.
    pub(crate) fn put_capabilities(
        &self,
        name: &str,
        capabilities: &v1::Capabilities,
        asked_at: Option<SystemTime>,
    ) -> Result<(), SqlError> {
        let sql = "UPDATE agents SET capabilities = ?2, report_us = COALESCE(?3, report_us, ?4), heard_us = ?4 \
                   WHERE name = ?1";
        self.run(sql, &values![name, capabilities.encode_to_vec(), asked_at, self.now]).map(drop)
    }

    /// Keeps when an agent was heard, and that its last report still holds. Nothing goes back: another controller may have
    /// heard it later.
    pub(crate) fn keep_heard(&self, heard: &Heard) -> Result<(), SqlError> {
        let sql = "UPDATE agents SET heard_us = CASE WHEN heard_us > ?2 THEN heard_us ELSE ?2 END, \
                   report_us = CASE WHEN report_us > ?3 OR ?3 IS NULL THEN report_us ELSE ?3 END WHERE name = ?1";
        self.run(sql, &values![&heard.name, heard.at, heard.asked_at]).map(drop)
    }

    /// One agent, by its name.
    pub(crate) fn agent_named(&self, name: &str) -> Result<Option<AgentRow>, SqlError> {
        self.one(&format!("SELECT {COLUMNS} FROM agents WHERE name = ?1"), &values![name], agent)
    }

    /// Keeps what an operator says of an agent.
    pub(crate) fn say_of_agent(&self, name: &str, said: &Said) -> Result<(), SqlError> {
        match said {
            Said::Enabled => {
                let sql = "UPDATE agents SET disabled = 0, disabled_reason = NULL WHERE name = ?1";
                self.run(sql, &values![name])
            }
            Said::Disabled(why) => {
                let sql = "UPDATE agents SET disabled = 1, disabled_reason = ?2 WHERE name = ?1";
                self.run(sql, &values![name, why.as_deref()])
            }
            Said::Drained(drained) => {
                self.run("UPDATE agents SET drained = ?2 WHERE name = ?1", &values![name, *drained])
            }
        }
        .map(drop)
    }
}

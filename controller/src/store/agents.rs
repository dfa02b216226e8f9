//! The agents' last reports: their identities and capabilities. After a restart the last report
//! decides until a new one arrives.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::Db;
use super::sql::{Row, SqlError, values};
use mooring_api::{Message, v1};
use mooring_model::{AgentId, Initiator, Iqn, Wwpn};

/// An agent as the database holds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentRow {
    /// The agent's name in the configuration.
    pub(crate) name: String,
    /// The agent's id.
    pub(crate) id: AgentId,
    /// The initiator name of the agent's host.
    pub(crate) initiator: Option<Iqn>,
    /// The agent's capabilities.
    pub(crate) capabilities: Option<v1::Capabilities>,
    /// The time at which the capabilities were requested: the report covers everything before it.
    pub(crate) reported_at: Option<SystemTime>,
    /// `true` if an operator keeps new volumes from this agent.
    pub(crate) disabled: bool,
    /// The operator's reason.
    pub(crate) disabled_reason: Option<String>,
    /// `true` while the agent is being emptied: no new volumes are placed there.
    pub(crate) drained: bool,
    /// The stored time of the agent's last message. The time in memory may be some seconds later.
    pub(crate) heard_at: Option<SystemTime>,
    /// The agent's software version, as it reports it.
    pub(crate) software: String,
}

impl AgentRow {
    /// The initiator names of the agent's host: its iSCSI name, and its Fibre Channel ports that
    /// were last online.
    pub(crate) fn initiators(&self) -> BTreeSet<Initiator> {
        let ports = self.capabilities.as_ref().map_or(&[][..], |seen| &seen.fc_initiator_ports);
        let ports = ports.iter().filter_map(|port| port.parse::<Wwpn>().ok()).map(Initiator::Fc);
        self.initiator.clone().map(Initiator::Iscsi).into_iter().chain(ports).collect()
    }
}

/// An operator's decision about an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// New volumes may be placed there again.
    Enabled,
    /// No new volumes are placed there, for this reason.
    Disabled(Option<String>),
    /// `true` if the agent is being emptied, `false` if no longer.
    Drained(bool),
}

/// The time of an agent's last message, for [`Db::keep_heard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The agent's name.
    pub(crate) name: String,
    /// The time of the last message.
    pub(crate) at: SystemTime,
    /// The time at which the agent's last report of its pools was requested.
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
    /// All agents that ever said hello.
    pub(crate) fn agents(&self) -> Result<Vec<AgentRow>, SqlError> {
        self.all(&format!("SELECT {COLUMNS} FROM agents ORDER BY name"), &[], agent)
    }

    /// The agents with this id or with this initiator name.
    pub(crate) fn agents_like(
        &self,
        id: AgentId,
        initiator: Option<&Iqn>,
    ) -> Result<Vec<AgentRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM agents WHERE agent_id = ?1 OR initiator = ?2 ORDER BY name");
        self.all(&sql, &values![id, initiator], agent)
    }

    /// Stores an agent's identity.
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

    /// Raises the epoch above what an agent stores from other histories of this database. Returns
    /// the new epoch, or `None` if there was nothing to raise.
    pub(crate) fn rise_above(&self, name: &str, newest: u64) -> Result<Option<u64>, SqlError> {
        let epoch = self.epoch()?;
        // Specs of this epoch at a compared agent are our own.
        let ours = newest == epoch && {
            let sql = "SELECT compared FROM agents WHERE name = ?1";
            self.one(sql, &values![name], |row| row.get(0))?.unwrap_or(false)
        };
        if newest < epoch || ours {
            return Ok(None);
        }
        self.raise_above(newest).map(Some)
    }

    /// Notes that an agent was compared: from now on it gets specs of this history.
    pub(crate) fn note_compared(&self, name: &str) -> Result<(), SqlError> {
        let sql = "UPDATE agents SET compared = 1 WHERE name = ?1 AND compared = 0";
        self.run(sql, &values![name]).map(drop)
    }

    /// Returns `true` if an agent was compared since this history of the database began: the specs
    /// of this epoch that it stores are our own.
    pub(crate) fn is_compared(&self, id: AgentId) -> Result<bool, SqlError> {
        let sql = "SELECT compared FROM agents WHERE agent_id = ?1";
        Ok(self.one(sql, &values![id], |row| row.get(0))?.unwrap_or(false))
    }

    /// The first of these agents that was heard before this database was restored, and not since.
    /// It may have what this database does not know.
    pub(crate) fn unheard_since_restore<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Result<Option<&'a str>, SqlError> {
        let sql = "SELECT name FROM agents WHERE compared = 0";
        let unheard = self.all(sql, &[], |row| row.get::<String>(0))?;
        Ok(names.find(|name| unheard.iter().any(|unheard| unheard == name)))
    }

    /// Begins another history of this database: every agent may store more than the database knows.
    pub(crate) fn forget_compared(&self) -> Result<(), SqlError> {
        self.run("UPDATE agents SET compared = 0", &[]).map(drop)
    }

    /// Forgets an agent that is no longer in the configuration.
    pub(crate) fn forget_agent(&self, name: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM agents WHERE name = ?1", &values![name]).map(drop)
    }

    /// Stores an agent's capabilities. `asked_at` is the time at which they were requested. `None`
    /// if the agent reported them by itself; then the time of the last answer stays.
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

    /// Stores when an agent was heard, and that its last report still holds. No time goes back:
    /// another controller may have heard the agent later.
    pub(crate) fn keep_heard(&self, heard: &Heard) -> Result<(), SqlError> {
        let sql = "UPDATE agents SET heard_us = CASE WHEN heard_us > ?2 THEN heard_us ELSE ?2 END, \
                   report_us = CASE WHEN report_us > ?3 OR ?3 IS NULL THEN report_us ELSE ?3 END WHERE name = ?1";
        self.run(sql, &values![&heard.name, heard.at, heard.asked_at]).map(drop)
    }

    /// One agent, by its name.
    pub(crate) fn agent_named(&self, name: &str) -> Result<Option<AgentRow>, SqlError> {
        self.one(&format!("SELECT {COLUMNS} FROM agents WHERE name = ?1"), &values![name], agent)
    }

    /// Stores an operator's decision about an agent.
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

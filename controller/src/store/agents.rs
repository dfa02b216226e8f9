//! What the agents said last: who they are and what they can do. After a restart the last report still decides.

use std::time::SystemTime;

use mooring_api::{Message, v1};
use mooring_model::{AgentId, Iqn};
use rusqlite::{Row, params};

use super::{Db, micros, parsed, parsed_opt, time_opt};

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
    /// When it said that.
    pub(crate) reported_at: Option<SystemTime>,
}

const COLUMNS: &str = "name, agent_id, initiator, capabilities, report_us";

fn agent(row: &Row<'_>) -> rusqlite::Result<AgentRow> {
    let capabilities: Option<Vec<u8>> = row.get(3)?;
    Ok(AgentRow {
        name: row.get(0)?,
        id: parsed(row, 1)?,
        initiator: parsed_opt(row, 2)?,
        capabilities: capabilities.and_then(|bytes| v1::Capabilities::decode(bytes.as_slice()).ok()),
        reported_at: time_opt(row, 4)?,
    })
}

impl Db<'_> {
    /// All that ever said hello.
    pub(crate) fn agents(&self) -> rusqlite::Result<Vec<AgentRow>> {
        let mut query = self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM agents ORDER BY name"))?;
        query.query_map([], agent)?.collect()
    }

    /// Keeps who an agent is.
    pub(crate) fn put_agent(
        &self,
        name: &str,
        id: AgentId,
        initiator: Option<&Iqn>,
        portals: &[String],
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO agents (name, agent_id, initiator, portals, hello_us) VALUES (?1, ?2, ?3, ?4, ?5) \
                   ON CONFLICT (name) DO UPDATE SET agent_id = excluded.agent_id, initiator = excluded.initiator, \
                   portals = excluded.portals, hello_us = excluded.hello_us";
        self.conn
            .prepare_cached(sql)?
            .execute(params![
                name,
                id.to_string(),
                initiator.map(Iqn::as_str),
                portals.join(" "),
                micros(self.now)
            ])
            .map(drop)
    }

    /// Forgets an agent that the configuration does not name any more.
    pub(crate) fn forget_agent(&self, name: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached("DELETE FROM agents WHERE name = ?1")?.execute([name]).map(drop)
    }

    /// Keeps what an agent can do.
    pub(crate) fn put_capabilities(
        &self,
        name: &str,
        capabilities: &v1::Capabilities,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE agents SET capabilities = ?2, report_us = ?3 WHERE name = ?1";
        self.conn
            .prepare_cached(sql)?
            .execute(params![name, capabilities.encode_to_vec(), micros(self.now)])
            .map(drop)
    }
}

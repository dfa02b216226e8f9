//! The rename of an enrolled agent in all places that hold its name.
//!
//! Records of the past keep the name that the host had then: completed detaches, lines of the audit
//! log, messages, lifted fences.
//!
//! What must never happen here: an agent that one table knows by its old name and another by its
//! new one.

use mooring_model::AgentId;

use super::sql::{SqlError, Value, values};
use super::{Abort, Db};
use crate::domain::Hints;

impl Db<'_> {
    /// Returns `true` if an attachment is on a host of this name.
    pub(crate) fn is_attached_host(&self, name: &str) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM attachments WHERE host = ?1 LIMIT 1";
        Ok(self.one(sql, &values![name], |row| row.get::<u64>(0))?.is_some())
    }

    /// A volume that is being made from an image of the storage node with this name.
    pub(crate) fn made_from_image_of(&self, name: &str) -> Result<Option<mooring_model::VolumeId>, Abort> {
        let coming = self.volumes_where("WHERE operation IN ('creating', 'managing')", &[])?;
        let is_of = |hints: &Hints| hints.image.as_ref().is_some_and(|image| image.host == name);
        Ok(coming.into_iter().find(|volume| is_of(&volume.hints)).map(|volume| volume.id))
    }

    /// Renames an agent's enrolment, with everything that goes by its name. Only a revoked
    /// enrolment may have the new name. `leased` is `true` if this database keeps leases of agents.
    pub(crate) fn rename_agent(&self, old: &str, new: &str, leased: bool) -> Result<(), SqlError> {
        let both = |sql: &str| self.run(sql, &values![old, new]).map(drop);
        let agent = self.agent_named(old)?.map(|row| row.id);
        for gone in [new, old] {
            self.drop_join_token(gone)?;
        }
        self.drop_enrolment(new)?;
        both("UPDATE enrolments SET name = ?2 WHERE name = ?1")?;
        self.forget_agent(new)?;
        both("UPDATE agents SET name = ?2 WHERE name = ?1")?;
        both("UPDATE fences SET name = ?2 WHERE name = ?1 AND lifted_us IS NULL")?;
        // Facts about an earlier host of the new name do not concern this one.
        self.run("DELETE FROM fence_nodes WHERE node = ?1", &values![new])?;
        both("UPDATE fence_nodes SET node = ?2 WHERE node = ?1")?;
        if let Some(agent) = agent {
            self.rename_on_attachments(old, new, agent)?;
        }
        if leased {
            // The driving controller goes on: no other one drives the agent under the new name.
            self.run("DELETE FROM leases WHERE agent = ?1", &values![new])?;
            both("UPDATE leases SET agent = ?2 WHERE agent = ?1")?;
        }
        Ok(())
    }

    fn rename_on_attachments(&self, old: &str, new: &str, agent: AgentId) -> Result<(), SqlError> {
        let all: [Value; 3] = values![old, new, agent];
        self.run("UPDATE attachments SET host = ?2 WHERE host = ?1 AND native = ?3", &all)?;
        // The host has yet to report what it had not written.
        let sql = "UPDATE detached SET host = ?2 WHERE host = ?1 AND forced = 1 AND unwritten_bytes IS NULL \
                   AND volume_id IN (SELECT volume_id FROM specs WHERE kind = 'connection' AND agent_id = ?3 AND settled = 0)";
        self.run(sql, &all).map(drop)
    }
}

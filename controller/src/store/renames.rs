//! The places where the name of an enrolled agent stands, and how it is changed in all of them.
//!
//! Records of what has been (detaches that are done, lines of the audit log, messages, fences that were lifted) keep the name that the
//! host had then.
//!
//! What must never happen here: an agent that one table knows by its old name and another by its new one.

use mooring_model::AgentId;

use super::sql::{SqlError, Value, values};
use super::{Abort, Db};
use crate::domain::Hints;

impl Db<'_> {
    /// An attachment says that it is on a host of this name.
    pub(crate) fn is_attached_host(&self, name: &str) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM attachments WHERE host = ?1 LIMIT 1";
        Ok(self.one(sql, &values![name], |row| row.get::<u64>(0))?.is_some())
    }

    /// A volume that is being made from an image of the storage node of this name.
    pub(crate) fn made_from_image_of(&self, name: &str) -> Result<Option<mooring_model::VolumeId>, Abort> {
        let coming = self.volumes_where("WHERE operation IN ('creating', 'managing')", &[])?;
        let is_of = |kept: &serde_json::Map<String, serde_json::Value>| {
            Hints::from_kept(kept).image.is_some_and(|image| image.host == name)
        };
        Ok(coming.into_iter().find(|volume| is_of(&volume.hints)).map(|volume| volume.id))
    }

    /// Gives the enrolment of a name another name, with everything that goes by it. Nobody has the new name, but perhaps a revoked
    /// enrolment. `leased`: this database keeps who drives which agent.
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
        // What an earlier host of the new name has said is none of this one's.
        self.run("DELETE FROM fence_nodes WHERE node = ?1", &values![new])?;
        both("UPDATE fence_nodes SET node = ?2 WHERE node = ?1")?;
        if let Some(agent) = agent {
            self.rename_on_attachments(old, new, agent)?;
        }
        if leased {
            // Whoever drives it goes on: it is driven by nobody else under the new name.
            self.run("DELETE FROM leases WHERE agent = ?1", &values![new])?;
            both("UPDATE leases SET agent = ?2 WHERE agent = ?1")?;
        }
        Ok(())
    }

    fn rename_on_attachments(&self, old: &str, new: &str, agent: AgentId) -> Result<(), SqlError> {
        let all: [Value; 3] = values![old, new, agent];
        self.run("UPDATE attachments SET host = ?2 WHERE host = ?1 AND native = ?3", &all)?;
        // The host has still to say what it had not written.
        let sql = "UPDATE detached SET host = ?2 WHERE host = ?1 AND forced = 1 AND unwritten_bytes IS NULL \
                   AND volume_id IN (SELECT volume_id FROM specs WHERE kind = 'connection' AND agent_id = ?3 AND settled = 0)";
        self.run(sql, &all).map(drop)
    }
}

//! Agents that joined with a token: the rows of the database decide who is dialled, beside those of the configuration. A row that
//! comes, changes or goes takes effect without a restart, also when another controller wrote it.
//!
//! What must never happen here: an agent dialled that is revoked; a certificate of an earlier enrolment taken for the one of now.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooring_api::TlsFiles;

use super::Inner;
use crate::agents::{Agent, task};
use crate::authority::agent_server_name;
use crate::domain::Enrolment;
use crate::service::{AgentEntry, Enroller, Refusal};
use crate::store::{AgentRow, Db};

/// Rows that say who is dialled, and what those said last.
pub(crate) struct Enrolled {
    enrolments: Vec<Enrolment>,
    rows: Vec<AgentRow>,
}

impl Enrolled {
    /// Reads them.
    pub(crate) fn read(db: &Db<'_>) -> Result<Self, crate::store::SqlError> {
        Ok(Self { enrolments: db.enrolments()?, rows: db.agents()? })
    }
}

/// The entry by which an enrolled agent is dialled. `None`: its address cannot be dialled with TLS.
fn entry(enroller: &Enroller, enrolment: &Enrolment) -> Option<AgentEntry> {
    let address =
        enrolment.address.parse().ok().filter(|address| matches!(address, mooring_api::Address::Tls(_)));
    let Some(address) = address else {
        tracing::error!(
            agent = enrolment.name,
            address = enrolment.address,
            "an enrolment has no https address: it is not dialled"
        );
        return None;
    };
    let tls = TlsFiles {
        ca: Some(enroller.authority_file.clone()),
        cert: Some(enroller.client_cert.clone()),
        key: Some(enroller.client_key.clone()),
        server_name: Some(agent_server_name(enrolment.id)),
    };
    let zone = enrolment.zone.clone();
    Some(AgentEntry {
        name: enrolment.name.clone(),
        address,
        tls,
        insecure: false,
        zone,
        enrolment: Some(enrolment.id),
    })
}

impl Inner {
    /// Follows an agent from now on, where no lease decides who does.
    pub(crate) fn drive(self: &Arc<Self>, agent: &Arc<Agent>) {
        if self.store.dialer().is_some() {
            return;
        }
        if let Some(drive) = self.spawn(task::run(Arc::clone(self), Arc::clone(agent))) {
            agent.is_driven_by(drive);
        }
    }

    /// Makes the registry what the rows of the database say. `drive`: those who come are followed at once.
    pub(crate) fn enrol(self: &Arc<Self>, enrolled: Enrolled, drive: bool) {
        let Some(enroller) = &self.options.enroller else {
            if enrolled.enrolments.iter().any(|enrolment| !enrolment.revoked) {
                tracing::warn!(
                    "agents have joined, and this configuration has no [enrolment]: they are not dialled"
                );
            }
            return;
        };
        let standing = enrolled.enrolments.iter().filter(|enrolment| !enrolment.revoked);
        let wanted: BTreeMap<String, AgentEntry> = standing
            .filter_map(|enrolment| entry(enroller, enrolment))
            .map(|entry| (entry.name.clone(), entry))
            .collect();
        let mut changed = false;
        for agent in self.agents.all().iter().filter(|agent| agent.entry.enrolment.is_some()) {
            if wanted.get(&agent.entry.name) != Some(&agent.entry) {
                tracing::info!(agent = agent.entry.name, "the enrolment of an agent has ended");
                self.agents.remove(agent, "its enrolment has ended");
                changed = true;
            }
        }
        let mut rows: BTreeMap<String, AgentRow> =
            enrolled.rows.into_iter().map(|row| (row.name.clone(), row)).collect();
        for (name, entry) in wanted {
            match self.agents.add(entry) {
                Some(agent) => {
                    if let Some(row) = rows.remove(&name) {
                        agent.take_row(row);
                    }
                    changed = true;
                    if drive {
                        self.drive(&agent);
                    }
                }
                None if self.agents.named(&name).is_some_and(|agent| agent.entry.enrolment.is_none()) => {
                    tracing::warn!(
                        agent = name,
                        "an agent is enrolled, and stands in the configuration: the configuration counts"
                    );
                }
                None => {}
            }
        }
        if changed {
            self.touch_all_here();
        }
    }

    /// Reads the rows again, and makes the registry what they say.
    pub(crate) async fn refresh_enrolments(self: &Arc<Self>) -> Result<(), Refusal> {
        let enrolled = self.store.read("read who has joined", |db| Ok(Enrolled::read(db)?)).await?;
        self.enrol(enrolled, true);
        Ok(())
    }
}

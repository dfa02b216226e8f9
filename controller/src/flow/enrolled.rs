//! Agents that joined with a token: the rows of the database decide who is dialled, beside those of the configuration. A row that
//! comes, changes or goes takes effect without a restart, also when another controller wrote it.
//!
//! What must never happen here: an agent dialled that is revoked; a certificate of an earlier enrolment taken for the one of now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_api::TlsFiles;
use mooring_model::Chain;
use tokio::time::MissedTickBehavior;

use super::Inner;
use crate::agents::{Agent, task};
use crate::authority::{CERTIFICATE_LIFE, agent_server_name};
use crate::domain::Enrolment;
use crate::service::{AgentEntry, Enroller, EntryEnrolment, Refusal};
use crate::store::{AgentRow, Db};

/// How often it is looked whose certificate is to be renewed.
const RENEWED_EVERY: Duration = Duration::from_mins(5);

/// Rows that say who is dialled, and what those said last.
pub(crate) struct Enrolled {
    enrolments: Vec<Enrolment>,
    rows: Vec<AgentRow>,
}

impl Enrolled {
    /// Reads them. What agents said is read only if an enrolment is there that comes into force by this: it is much.
    pub(crate) fn read(
        db: &Db<'_>,
        comes: impl Fn(&Enrolment) -> bool,
    ) -> Result<Self, crate::store::SqlError> {
        let enrolments = db.enrolments()?;
        let rows = if enrolments.iter().any(comes) { db.agents()? } else { Vec::new() };
        Ok(Self { enrolments, rows })
    }
}

/// The entry by which an enrolled agent is dialled. `None`: its address cannot be dialled with TLS.
fn entry(enroller: &Enroller, enrolment: &Enrolment) -> Option<AgentEntry> {
    let address =
        enrolment.address.parse().ok().filter(|address| matches!(address, mooring_api::Address::Tls(_)));
    let Some(address) = address else {
        tracing::debug!(
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
        enrolment: Some(EntryEnrolment { id: enrolment.id, roles: enrolment.roles.clone() }),
    })
}

/// True if the agent is still enrolled as this entry says. A name that another agent has by now, or nobody, is not.
pub(crate) fn stands(db: &Db<'_>, entry: &AgentEntry) -> Result<bool, crate::store::SqlError> {
    if entry.enrolment.is_none() {
        return Ok(true);
    }
    let enrolment = db.enrolment(&entry.name)?;
    Ok(enrolment.is_some_and(|enrolment| !enrolment.revoked && entry.is_of(&enrolment)))
}

/// A certificate is renewed at two thirds of its life.
fn is_due(enrolment: &Enrolment, now: SystemTime) -> bool {
    let left = enrolment.expires_at.duration_since(now).unwrap_or_default();
    !enrolment.revoked && left < CERTIFICATE_LIFE / 3
}

impl Inner {
    /// Renews the certificates of enrolled agents, for ever.
    pub(crate) async fn keep_certificates(self: Arc<Self>) {
        if self.options.enroller.is_none() {
            return;
        }
        let mut tick = tokio::time::interval(RENEWED_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(refusal) = self.renew_certificates().await {
                tracing::warn!(error = %refusal, "cannot read whose certificates are to be renewed");
            }
        }
    }

    /// Renews the certificates that are due, of the agents that are up and that this controller drives.
    pub(crate) async fn renew_certificates(&self) -> Result<(), Refusal> {
        let Some(enroller) = &self.options.enroller else { return Ok(()) };
        let enrolments = self.store.read("read who has joined", |db| Ok(db.enrolments()?)).await?;
        let now = self.options.clock.now();
        for enrolment in enrolments.into_iter().filter(|enrolment| is_due(enrolment, now)) {
            let agent = self.agents.named(&enrolment.name).filter(|agent| agent.entry.is_of(&enrolment));
            let Some(agent) = agent.filter(|agent| agent.is_up() && agent.hold().is_ours()) else { continue };
            if let Err(why) = self.renew(enroller, &agent, enrolment).await {
                tracing::warn!(
                    agent = agent.entry.name,
                    why,
                    "the certificate of an agent was not renewed; tried again"
                );
            }
        }
        Ok(())
    }

    async fn renew(&self, enroller: &Enroller, agent: &Agent, enrolment: Enrolment) -> Result<(), String> {
        let csr = agent.new_key().await.map_err(|error| error.to_string())?;
        let authority = &enroller.authority;
        let issued = authority.sign_agent(&csr, &enrolment.name, enrolment.id, self.options.clock.now());
        let issued = issued.map_err(|error| Chain(&error).to_string())?;
        let given = agent.set_certificate(issued.certificate, authority.certificate_pem().to_owned()).await;
        given.map_err(|error| error.to_string())?;
        let (name, id, ends) = (enrolment.name, enrolment.id, issued.expires_at);
        let write = move |db: &Db<'_>| {
            // Whoever has joined again meanwhile has another certificate.
            let standing = db.enrolment(&name)?.filter(|standing| standing.id == id);
            if let Some(standing) = standing {
                db.put_enrolment(&Enrolment { expires_at: ends, ..standing })?;
            }
            Ok(())
        };
        self.store
            .write("keep that a certificate was renewed", write)
            .await
            .map_err(|refusal| refusal.to_string())?;
        tracing::info!(agent = agent.entry.name, "the certificate of an agent was renewed");
        Ok(())
    }

    /// Follows an agent from now on, where no lease decides who does.
    pub(crate) fn drive(self: &Arc<Self>, agent: &Arc<Agent>) {
        if self.store.dialer().is_some() {
            return;
        }
        if let Some(drive) = self.spawn(task::run(Arc::clone(self), Arc::clone(agent))) {
            agent.is_driven_by(drive);
        }
    }

    /// Makes the registry what the rows of the database say. `starts`: nobody is followed yet, and what the configuration does not fit is
    /// told.
    pub(crate) fn enrol(self: &Arc<Self>, enrolled: Enrolled, starts: bool) {
        let Some(enroller) = &self.options.enroller else {
            if starts && enrolled.enrolments.iter().any(|enrolment| !enrolment.revoked) {
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
                    if !starts {
                        self.drive(&agent);
                    }
                }
                None if starts
                    && self.agents.named(&name).is_some_and(|agent| agent.entry.enrolment.is_none()) =>
                {
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

    /// True if the registry does not have this enrolment as it stands: by name, id and address.
    fn comes(&self, enrolment: &Enrolment) -> bool {
        let Some(enroller) = self.options.enroller.as_ref().filter(|_| !enrolment.revoked) else {
            return false;
        };
        match self.agents.named(&enrolment.name) {
            None => true,
            Some(agent) if agent.entry.enrolment.is_none() => false,
            Some(agent) => entry(enroller, enrolment).is_some_and(|entry| entry != agent.entry),
        }
    }

    /// Reads the rows again, and makes the registry what they say. One after the other: what was read before a row was written must not
    /// be applied after what it says.
    pub(crate) async fn refresh_enrolments(self: &Arc<Self>) -> Result<(), Refusal> {
        let _turn = self.enrolling.lock().await;
        let inner = Arc::clone(self);
        let read = move |db: &Db<'_>| Ok(Enrolled::read(db, |enrolment| inner.comes(enrolment))?);
        let enrolled = self.store.read("read who has joined", read).await?;
        self.enrol(enrolled, false);
        Ok(())
    }
}

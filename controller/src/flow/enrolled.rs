//! Agents that joined with a token: besides those of the configuration, the controller dials the
//! agents that have a row in the database. A row that comes, changes or goes takes effect without a
//! restart, also when another controller wrote it.
//!
//! What must never happen here: a revoked agent that is dialled; a certificate of an earlier
//! enrolment taken for the present one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_api::{TlsFiles, v1};
use mooring_model::Chain;
use tokio::time::{Instant, MissedTickBehavior};

use super::Flow;
use super::options::Enroller;
use crate::agents::{Agent, task};
use crate::authority::{Authority, CERTIFICATE_LIFE, agent_server_name};
use crate::domain::{AgentEntry, EntryEnrolment};
use crate::domain::{ControllerTrust, Enrolment};
use crate::error::Refusal;
use crate::store::{AgentRow, Db};

/// Time between two checks for certificates that are due.
const RENEWED_EVERY: Duration = Duration::from_secs(20);

/// Pause before the next attempt for an agent that did not take its certificate.
const FAILED_PAUSE: Duration = Duration::from_mins(1);

/// Time between two checks for a changed authority, or for agents that trust others.
const LOOKED_EVERY: Duration = Duration::from_secs(2);

/// Rows of the enrolled agents, and of their last reports.
pub(crate) struct Enrolled {
    enrolments: Vec<Enrolment>,
    rows: Vec<AgentRow>,
}

impl Enrolled {
    /// Reads the rows. Reads the agents' reports, which are large, only if `comes` is true for an
    /// enrolment.
    pub(crate) fn read(
        db: &Db<'_>,
        comes: impl Fn(&Enrolment) -> bool,
    ) -> Result<Self, crate::store::SqlError> {
        let enrolments = db.enrolments()?;
        let rows = if enrolments.iter().any(comes) { db.agents()? } else { Vec::new() };
        Ok(Self { enrolments, rows })
    }

    /// Reads all rows, for a start.
    pub(crate) fn all(db: &Db<'_>) -> Result<Self, crate::store::SqlError> {
        Ok(Self { enrolments: db.enrolments()?, rows: db.agents()? })
    }
}

/// Returns the entry by which an enrolled agent is dialled. `None`: its address has no TLS.
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
        ca: Some(enroller.authority.file().to_owned()),
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

/// Returns `true` if a certificate is due: it is renewed from two thirds of its life on.
fn is_due(enrolment: &Enrolment, now: SystemTime) -> bool {
    let left = enrolment.expires_at.duration_since(now).unwrap_or_default();
    !enrolment.revoked && left <= CERTIFICATE_LIFE / 3
}

/// Returns `true` if an agent reports that it trusts other authorities than this one and those
/// beside it, or that another one signed its certificate. `false` for an agent of an earlier
/// release, which does not report that.
fn is_of_another(authority: &Authority, said: Option<&v1::TlsIdentity>) -> bool {
    said.is_some_and(|said| {
        let trusts: BTreeSet<_> = said.trusts.iter().collect();
        trusts != authority.pins().iter().collect() || said.signed_by != authority.pin()
    })
}

impl Flow {
    /// Renews the certificates of enrolled agents again and again, for ever.
    pub(crate) async fn keep_certificates(self: Arc<Self>) {
        let Some(enroller) = &self.facts.options.enroller else { return };
        let mut tick = tokio::time::interval(LOOKED_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut looked, mut told) = (None, None);
        let mut failed: HashMap<String, Instant> = HashMap::new();
        loop {
            tick.tick().await;
            let authority = enroller.authority.now();
            self.tell_controllers(enroller, &authority, &mut told).await;
            failed.retain(|_, at| at.elapsed() < FAILED_PAUSE);
            let moves = self.facts.agents.all().iter().any(|agent| {
                let said = agent.state().capabilities.as_ref().and_then(|said| said.tls.clone());
                agent.entry.enrolment.is_some()
                    && agent.is_up()
                    && agent.hold().is_ours()
                    && !failed.contains_key(&agent.entry.name)
                    && is_of_another(&authority, said.as_ref())
            });
            let due = looked.is_none_or(|looked: Instant| looked.elapsed() >= RENEWED_EVERY);
            if !moves && !due {
                continue;
            }
            looked = Some(Instant::now());
            match self.renew_but(&failed).await {
                Ok(names) => failed.extend(names.into_iter().map(|name| (name, Instant::now()))),
                Err(refusal) => {
                    tracing::warn!(error = %refusal, "cannot read whose certificates are to be renewed");
                }
            }
        }
    }

    /// Stores which authorities this controller trusts and shows, for a rotation with several
    /// controllers.
    async fn tell_controllers(
        &self,
        enroller: &Enroller,
        authority: &Authority,
        told: &mut Option<(String, ControllerTrust)>,
    ) {
        let Some(id) = self.notes.id() else { return };
        let own = [Some(&enroller.client_cert), enroller.api_cert.as_ref()];
        let trust = ControllerTrust::of(authority, own.into_iter().flatten());
        let new = (id, trust);
        if told.as_ref() == Some(&new) {
            return;
        }
        let kept = new.clone();
        let write = move |db: &Db<'_>| Ok(db.put_controller_trust(&kept.0, &kept.1)?);
        match self.unleased.write("keep which authorities this controller trusts", write).await {
            Ok(()) => *told = Some(new),
            Err(refusal) => {
                tracing::warn!(error = %refusal, "cannot keep which authorities this controller trusts; tried again");
            }
        }
    }

    /// Renews the certificates that are due, or that another authority must sign. Covers the agents
    /// that are up and that this controller drives.
    pub(crate) async fn renew_certificates(&self) -> Result<(), Refusal> {
        self.renew_but(&HashMap::new()).await.map(drop)
    }

    /// Does as [`Flow::renew_certificates`] without the agents in `but`. Returns the agents that
    /// did not take their certificate.
    async fn renew_but(&self, but: &HashMap<String, Instant>) -> Result<Vec<String>, Refusal> {
        let Some(enroller) = &self.facts.options.enroller else { return Ok(Vec::new()) };
        let enrolments = self.reads.read("read who has joined", |db| Ok(db.enrolments()?)).await?;
        let now = self.facts.options.clock.now();
        let authority = enroller.authority.now();
        let mut failed = Vec::new();
        let stands = |enrolment: &Enrolment| !enrolment.revoked && !but.contains_key(&enrolment.name);
        for enrolment in enrolments.into_iter().filter(stands) {
            let agent =
                self.facts.agents.named(&enrolment.name).filter(|agent| agent.entry.is_of(&enrolment));
            let Some(agent) = agent.filter(|agent| agent.is_up() && agent.hold().is_ours()) else { continue };
            let said = agent.state().capabilities.as_ref().and_then(|said| said.tls.clone());
            if !is_due(&enrolment, now) && !is_of_another(&authority, said.as_ref()) {
                continue;
            }
            if let Err(why) = self.renew(&authority, &agent, enrolment).await {
                tracing::warn!(
                    agent = agent.entry.name,
                    why,
                    "the certificate of an agent was not renewed; tried again"
                );
                failed.push(agent.entry.name.clone());
            }
        }
        Ok(failed)
    }

    async fn renew(
        &self,
        authority: &Authority,
        agent: &Arc<Agent>,
        enrolment: Enrolment,
    ) -> Result<(), String> {
        let csr = agent.new_key().await.map_err(|error| error.to_string())?;
        let issued =
            authority.sign_agent(&csr, &enrolment.name, enrolment.id, self.facts.options.clock.now());
        let issued = issued.map_err(|error| Chain(&error).to_string())?;
        let given = agent.set_certificate(issued.certificate, authority.certificate_pem().to_owned()).await;
        given.map_err(|error| error.to_string())?;
        // The agent has stored both, and would report them when it is asked the next time.
        let mut trusts = authority.pins().to_vec();
        trusts.sort_unstable();
        {
            let mut state = agent.state();
            if let Some(said) = state.capabilities.as_mut().and_then(|said| said.tls.as_mut()) {
                *said = v1::TlsIdentity { trusts, signed_by: authority.pin().to_owned() };
            }
        }
        let (name, id, ends) = (enrolment.name, enrolment.id, issued.expires_at);
        let write = move |db: &Db<'_>| {
            // An agent that has joined again meanwhile has another certificate.
            let standing = db.enrolment(&name)?.filter(|standing| standing.id == id);
            let stands = standing.is_some();
            if let Some(standing) = standing {
                db.put_enrolment(&Enrolment { expires_at: ends, ..standing })?;
            }
            Ok(stands)
        };
        let stands = self
            .unleased
            .write("keep that a certificate was renewed", write)
            .await
            .map_err(|refusal| refusal.to_string())?;
        if stands {
            self.keep_report(agent).await;
        }
        tracing::info!(
            agent = agent.entry.name,
            authority = authority.pin(),
            "the certificate of an agent was renewed"
        );
        Ok(())
    }

    /// Stores an agent's report with its new certificate. Only the holder of the agent's lease
    /// does: after the lease another controller asks the agent itself.
    async fn keep_report(&self, agent: &Arc<Agent>) {
        let Some(held) = agent.id().and_then(|id| self.facts.agents.held(id).ok()) else { return };
        let said = Arc::clone(agent);
        let write = move |db: &Db<'_>| {
            // Read in the transaction, so that no newer report of the agent is overwritten.
            let says = said.state().capabilities.clone();
            if let Some(says) = &says {
                db.put_capabilities(&said.entry.name, says, None)?;
            }
            Ok(())
        };
        if let Err(refusal) = held.store.write("keep which certificate an agent has", write).await {
            tracing::warn!(
                agent = agent.entry.name,
                error = %refusal,
                "cannot keep which certificate an agent has; its next report is kept"
            );
        }
    }

    /// Starts the task that follows an agent, unless leases decide which controller does.
    pub(crate) fn drive(self: &Arc<Self>, agent: &Arc<Agent>) {
        if self.reads.is_shared() {
            return;
        }
        if let Some(drive) =
            self.tasks.spawn(task::run(self.context(&self.facts.agents.driven(agent)), Arc::clone(agent)))
        {
            agent.is_driven_by(drive);
        }
    }

    /// Makes the registry agree with the rows of the database. `starts`: no agent is followed yet,
    /// and contradictions with the configuration are logged.
    pub(crate) fn enrol(self: &Arc<Self>, enrolled: Enrolled, starts: bool) {
        let mut rows: BTreeMap<String, AgentRow> =
            enrolled.rows.into_iter().map(|row| (row.name.clone(), row)).collect();
        if starts {
            // An agent's last report still decides, until it reports something else.
            for agent in self.facts.agents.all().iter() {
                if let Some(row) = rows.remove(&agent.entry.name) {
                    agent.take_row(row);
                }
            }
        }
        let Some(enroller) = &self.facts.options.enroller else {
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
        for agent in self.facts.agents.all().iter().filter(|agent| agent.entry.enrolment.is_some()) {
            if wanted.get(&agent.entry.name) != Some(&agent.entry) {
                tracing::info!(agent = agent.entry.name, "the enrolment of an agent has ended");
                self.facts.agents.remove(agent, "its enrolment has ended");
                changed = true;
            }
        }
        for (name, entry) in wanted {
            match self.facts.agents.add(entry) {
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
                    && self
                        .facts
                        .agents
                        .named(&name)
                        .is_some_and(|agent| agent.entry.enrolment.is_none()) =>
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
            self.touch_all();
        }
    }

    /// Returns `true` if the registry does not have this enrolment with its present name, id and
    /// address.
    fn comes(&self, enrolment: &Enrolment) -> bool {
        let Some(enroller) = self.facts.options.enroller.as_ref().filter(|_| !enrolment.revoked) else {
            return false;
        };
        match self.facts.agents.named(&enrolment.name) {
            None => true,
            Some(agent) if agent.entry.enrolment.is_none() => false,
            Some(agent) => entry(enroller, enrolment).is_some_and(|entry| entry != agent.entry),
        }
    }

    /// Reads the rows again, and makes the registry agree with them. One call at a time: rows that
    /// were read before a change must not be applied after it.
    pub(crate) async fn refresh_enrolments(self: &Arc<Self>) -> Result<(), Refusal> {
        let _turn = self.enrolling.lock().await;
        let flow = Arc::clone(self);
        let read = move |db: &Db<'_>| Ok(Enrolled::read(db, |enrolment| flow.comes(enrolment))?);
        let enrolled = self.reads.read("read who has joined", read).await?;
        self.enrol(enrolled, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_due_from_two_thirds_of_its_life_on() {
        const SECOND: Duration = Duration::from_secs(1);
        let begins = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365);
        let (due, ends) = (begins + CERTIFICATE_LIFE * 2 / 3, begins + CERTIFICATE_LIFE);
        let enrolment = Enrolment {
            name: "host1".to_owned(),
            id: uuid::Uuid::nil(),
            address: "https://host1:7710".to_owned(),
            roles: "host".parse().unwrap(),
            revoked: false,
            zone: None,
            joined_at: begins,
            expires_at: ends,
        };
        // A clock may be before the start, and a controller off until after the end.
        for (now, want) in [
            (begins - SECOND, false),
            (begins, false),
            (due - SECOND, false),
            (due, true),
            (due + SECOND, true),
            (ends, true),
            (ends + SECOND, true),
        ] {
            assert_eq!(is_due(&enrolment, now), want, "{now:?}");
        }
        let revoked = Enrolment { revoked: true, ..enrolment };
        assert!(!is_due(&revoked, due) && !is_due(&revoked, ends), "it is never dialled");
    }
}

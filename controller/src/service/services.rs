//! Storage agents as services of the Block Storage API, and operators' settings for them: enabled
//! or not, drained or not.
//!
//! An agent with pools is `cinder-volume` on `NAME@lvm`. The controller itself is the one
//! `cinder-scheduler`, and cannot be disabled: tools look for both.
//!
//! What must never happen here: a service shown as up because it once was; an operator's setting
//! that is lost.

use super::{Refusal, Service};
use crate::agents::Agent;
use crate::domain::{Caller, Host, HostChange, ServiceState};
use crate::flow::place::{ZONE_DEFAULT, zone_of};
use crate::policy::Target;
use crate::schedule::capabilities::BACKEND;
use crate::store::{AgentRow, Db, Said};

/// Longest reason, in characters (Cinder's column).
pub const DISABLED_REASON_MAX: usize = 255;

const VOLUME: &str = "cinder-volume";
const SCHEDULER: &str = "cinder-scheduler";
/// The scheduler's host: there is one, however many controllers share the database.
const SCHEDULER_HOST: &str = "mooring-controller";

fn service(row: &AgentRow, agent: &Agent) -> ServiceState {
    ServiceState {
        binary: VOLUME,
        host: format!("{}@{BACKEND}", row.name),
        zone: zone_of(agent).to_owned(),
        up: agent.is_up(),
        disabled: row.disabled,
        disabled_reason: row.disabled_reason.clone(),
        heard_at: agent.state().last_report.max(row.heard_at),
    }
}

fn missing(binary: &str, host: &str) -> Refusal {
    let what: String = format!("{binary} on host {host}").chars().take(super::TEXT_CHARS_MAX).collect();
    Refusal::NotFound { kind: "Service", what }
}

fn said(change: &HostChange) -> Result<Said, Refusal> {
    Ok(match change {
        HostChange::Enable => Said::Enabled,
        HostChange::Disable(why) => {
            let why = why.as_deref().map(str::trim).filter(|why| !why.is_empty());
            if why.is_some_and(|why| why.chars().count() > DISABLED_REASON_MAX) {
                let text = "Disabled reason contains invalid characters or is too long";
                return Err(Refusal::Invalid(text.to_owned()));
            }
            Said::Disabled(why.map(str::to_owned))
        }
        HostChange::Drain => Said::Drained(true),
        HostChange::Undrain => Said::Drained(false),
    })
}

impl Service {
    /// All services, sorted by host.
    pub async fn services(&self, caller: &Caller) -> Result<Vec<ServiceState>, Refusal> {
        self.facts.policies().check("volume_extension:services:index", caller, &Target::default())?;
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let mut services = vec![ServiceState {
                binary: SCHEDULER,
                host: SCHEDULER_HOST.to_owned(),
                zone: ZONE_DEFAULT.to_owned(),
                up: true,
                disabled: false,
                disabled_reason: None,
                heard_at: Some(db.now),
            }];
            for row in db.agents()? {
                let serves = row.capabilities.as_ref().is_some_and(|report| !report.pools.is_empty());
                let agent = facts.agents.named(&row.name);
                services.extend(agent.filter(|_| serves).map(|agent| service(&row, &agent)));
            }
            services.sort_by(|a, b| a.host.cmp(&b.host));
            Ok(services)
        };
        self.store.read("list services", read).await
    }

    /// Changes a service.
    pub async fn change_service(
        &self,
        caller: &Caller,
        binary: &str,
        host: &str,
        change: HostChange,
    ) -> Result<(), Refusal> {
        self.facts.policies().check("volume_extension:services:update", caller, &Target::default())?;
        if binary == SCHEDULER && host == SCHEDULER_HOST {
            let text = "Invalid input received: the scheduler is the controller itself and cannot be changed; disable \
                        storage hosts instead";
            return Err(Refusal::Invalid(text.to_owned()));
        }
        let name = host.strip_suffix(BACKEND).and_then(|host| host.strip_suffix('@'));
        let enrolled = |name: &&str| self.facts.agents.named(name).is_some();
        let name = name.filter(|name| binary == VOLUME && enrolled(name));
        self.say(name.ok_or_else(|| missing(binary, host))?.to_owned(), &change).await
    }

    /// Changes an agent, by its name or id.
    pub async fn change_host(
        &self,
        caller: &Caller,
        name_or_id: &str,
        change: HostChange,
    ) -> Result<Host, Refusal> {
        self.facts.policies().check("volume_extension:services:update", caller, &Target::default())?;
        let found = self.facts.agents.by_name(name_or_id).map(|agent| agent.entry.name.clone());
        let shown = || name_or_id.chars().take(super::TEXT_CHARS_MAX).collect();
        let name = found.ok_or_else(|| Refusal::NotFound { kind: "Host", what: shown() })?;
        self.say(name.clone(), &change).await?;
        let hosts = self.hosts(caller).await?;
        let host = hosts.into_iter().find(|host| host.name == name);
        host.ok_or(Refusal::NotFound { kind: "Host", what: name })
    }

    async fn say(&self, name: String, change: &HostChange) -> Result<(), Refusal> {
        let said = said(change)?;
        let write = move |db: &Db<'_>| {
            if db.agent_named(&name)?.is_none() {
                let text = format!("agent {name} was never reached, so nothing can be said of it yet");
                return Err(Refusal::Unavailable(text).into());
            }
            Ok(db.say_of_agent(&name, &said)?)
        };
        self.store.write("change a service", write).await
    }
}

//! Forgets a host that never comes back: removes its belongings from the database. If it comes back
//! all the same, it is treated as a stranger.
//!
//! The first transaction decides: it records the agent's id as forgotten, ends its enrolment and
//! frees its name. Its belongings are removed afterwards, in parts ([`crate::flow::forgotten`]).
//! Any later start resumes that.
//!
//! What must never happen here: a host forgotten that answers; a forgotten host that is admitted as
//! the host that it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_model::AgentId;

use super::detach::asked_by;
use super::{Refusal, Service, TEXT_CHARS_MAX};
use crate::agents::task::{CALL_LIMIT, say_hello};
use crate::domain::{Caller, HostLoss, ProjectLoss};
use crate::flow::Flow;
use crate::policy::Target;
use crate::store::{Abort, Db, ForgottenRow, Store};

/// Shortest time from a host's last report until it can be forgotten. A host that only restarts is
/// back by then.
pub const FORGET_AFTER: Duration = Duration::from_mins(10);

/// This controller's knowledge of a host, besides the database.
struct Known {
    /// Time of the host's last report to this controller. `None`: there was none.
    heard_at: Option<SystemTime>,
    /// Words for how the host answers. `None`: it does not answer.
    answers: Option<String>,
}

fn not_found(name: &str) -> Refusal {
    Refusal::NotFound { kind: "Host", what: name.chars().take(TEXT_CHARS_MAX).collect() }
}

/// The volumes and attachments of each project on an agent.
fn projects(db: &Db<'_>, agent: AgentId) -> Result<Vec<ProjectLoss>, Abort> {
    let mut all: BTreeMap<String, ProjectLoss> = BTreeMap::new();
    let of = |all: &mut BTreeMap<String, ProjectLoss>, project: String, add: &dyn Fn(&mut ProjectLoss)| {
        let loss = all.entry(project.clone()).or_default();
        loss.project = project;
        add(loss);
    };
    for volume in db.volumes_on(agent)? {
        let (snapshot, gib) = (volume.snapshot_of.is_some(), u64::from(volume.size_gib));
        of(&mut all, volume.project, &|loss| {
            *(if snapshot { &mut loss.snapshots } else { &mut loss.volumes }) += 1;
            loss.gib += gib;
        });
    }
    for (project, count) in db.attached_on(agent)? {
        of(&mut all, project, &|loss| loss.attachments = count);
    }
    Ok(all.into_values().collect())
}

/// The belongings of a host, as the database has them. `None`: the host is unknown here.
fn loss(db: &Db<'_>, name: &str, known: &Known) -> Result<Option<HostLoss>, Abort> {
    let (row, enrolment) = (db.agent_named(name)?, db.enrolment(name)?);
    // Only this row knows a host that is already forgotten, in whole or in part.
    let half = db.forgotten_named(name)?.filter(|_| row.is_none() && enrolment.is_none());
    if row.is_none() && enrolment.is_none() && half.is_none() {
        return Ok(None);
    }
    let agent = row.as_ref().map(|row| row.id).or(half.map(|half| half.agent));
    let heard = row.as_ref().map(|row| row.heard_at.max(row.reported_at));
    let heard_at = heard.flatten().max(known.heard_at);
    let elsewhere = match agent {
        None => 0,
        Some(agent) => db.attachments_at(agent)?.iter().filter(|(_, storage)| *storage != agent).count(),
    };
    let is_silent = |at: SystemTime| db.now.duration_since(at).is_ok_and(|silent| silent >= FORGET_AFTER);
    let obstacle = match (&known.answers, heard_at.filter(|at| !is_silent(*at))) {
        (Some(how), _) => Some(format!("host {name} {how}: a host that answers cannot be forgotten")),
        (None, Some(at)) => Some(format!(
            "host {name} was heard {} s ago: it can be forgotten {} minutes after its last word",
            db.now.duration_since(at).unwrap_or_default().as_secs(),
            FORGET_AFTER.as_secs() / 60
        )),
        (None, None) => None,
    };
    Ok(Some(HostLoss {
        name: name.to_owned(),
        agent,
        heard_at,
        enrolled: enrolment.is_some_and(|enrolment| !enrolment.revoked),
        projects: agent.map(|agent| projects(db, agent)).transpose()?.unwrap_or_default(),
        attached: u32::try_from(elsewhere).unwrap_or(u32::MAX),
        obstacle,
    }))
}

/// Decides to forget a host. The removal of its belongings follows later, in parts.
fn decide(db: &Db<'_>, caller: &Caller, name: &str, known: &Known) -> Result<HostLoss, Abort> {
    let loss = loss(db, name, known)?.ok_or_else(|| not_found(name))?;
    if let Some(why) = loss.obstacle {
        return Err(Refusal::Conflict(why).into());
    }
    if let Some(row) = db.agent_named(name)? {
        let pools = row.capabilities.as_ref().is_some_and(|seen| !seen.pools.is_empty());
        db.forget(&ForgottenRow {
            agent: row.id,
            name: name.to_owned(),
            storage: pools || !loss.projects.is_empty(),
            open: true,
            asked: asked_by(db, caller),
        })?;
        db.forget_agent(name)?;
    }
    db.drop_enrolment(name)?;
    db.drop_join_token(name)?;
    Ok(loss)
}

impl Flow {
    /// Asks a host now, and returns this controller's knowledge of it.
    async fn know(&self, name: &str) -> Known {
        let Some(agent) = self.facts.agents.named(name) else {
            return Known { heard_at: None, answers: None };
        };
        let heard_at = agent.state().last_report;
        if agent.is_up() {
            return Known { heard_at, answers: Some("answers".to_owned()) };
        }
        // The host may answer, and be unusable for another reason.
        let greeted = async {
            let channel = self.facts.options.dial.dial(&agent.entry).await?;
            say_hello(name, channel).await
        };
        let greeted = tokio::time::timeout(CALL_LIMIT, greeted).await;
        let own = agent.id().map(|id| id.to_string());
        let machine =
            agent.state().capabilities.as_ref().map(|seen| seen.host_name.clone()).unwrap_or_default();
        let answers = match greeted {
            // An agent that has lost its store is the same agent if it is on the same machine.
            Ok(Ok(hello))
                if own.is_none_or(|own| own == hello.agent_id)
                    || (hello.fresh && (machine.is_empty() || machine == hello.host_name)) =>
            {
                let why = agent.state().why_down.clone().unwrap_or_default();
                Some(format!("answers at {}, although it is not used ({why})", agent.entry.address))
            }
            // Either nothing answers, or another agent does.
            _ => None,
        };
        Known { heard_at, answers }
    }

    async fn forget(
        self: Arc<Self>,
        store: Store,
        caller: Caller,
        name: String,
        known: Known,
    ) -> Result<HostLoss, Refusal> {
        let user = caller.user.clone();
        let write = move |db: &Db<'_>| decide(db, &caller, &name, &known);
        let loss = store.write("forget a host", write).await?;
        let total = loss.total();
        tracing::warn!(
            host = loss.name,
            user,
            volumes = total.volumes,
            snapshots = total.snapshots,
            attachments = total.attachments,
            "a host is forgotten"
        );
        self.notes.enrolled();
        self.refresh_enrolments().await?;
        self.finish_forgetting().await?;
        Ok(loss)
    }
}

impl Service {
    /// Says what would be lost with a host, and what stands in the way. Changes nothing.
    pub async fn host_loss(&self, caller: &Caller, name: &str) -> Result<HostLoss, Refusal> {
        self.facts.policies().check("mooring:host_forget", caller, &Target::default())?;
        let known = self.flow.know(name).await;
        let own = name.to_owned();
        let read = move |db: &Db<'_>| loss(db, &own, &known);
        let loss = self.store.read("read what a host has", read).await?;
        loss.ok_or_else(|| not_found(name))
    }

    /// Forgets a host that never comes back, together with:
    ///
    /// - its volumes and snapshots, and their attachments (each with a receipt that will never be
    ///   proven);
    /// - its own attachments to other storage nodes (by force);
    /// - its enrolment.
    ///
    /// From then on its agent's id is a stranger's. Refused while the host answers, and until
    /// [`FORGET_AFTER`] after its last report. `confirm`: the host's name once more. A repeated
    /// call resumes where the last one stopped. Returns the losses.
    pub async fn forget_host(&self, caller: &Caller, name: &str, confirm: &str) -> Result<HostLoss, Refusal> {
        self.facts.policies().check("mooring:host_forget", caller, &Target::default())?;
        if confirm != name {
            return Err(Refusal::Invalid(
                "confirm: repeat the name of the host; `GET` of this address shows what would be removed"
                    .to_owned(),
            ));
        }
        let known = self.flow.know(name).await;
        let (flow, own, owner) = (Arc::clone(&self.flow), name.to_owned(), caller.clone());
        let store = self.store.clone();
        self.to_its_end(async move { flow.forget(store, owner, own, known).await }).await
    }
}

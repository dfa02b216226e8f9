//! A host that never comes back: what it had is taken out of the database, and it is held as a stranger if it comes back all the same.
//!
//! The first transaction decides: the agent's id is kept as forgotten, its enrolment ends, and no name stands for it any more. What it
//! had goes after that in parts ([`crate::flow::forgotten`]), which any later start goes on with.
//!
//! What must never happen here: a host forgotten that answers; one that is taken for the host that it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_model::AgentId;

use super::detach::asked_by;
use super::{Refusal, Service, TEXT_CHARS_MAX};
use crate::agents::task::{CALL_LIMIT, say_hello};
use crate::domain::{Caller, HostLoss, ProjectLoss};
use crate::flow::Inner;
use crate::policy::Target;
use crate::store::{Abort, Db, ForgottenRow, Store};

/// A host is forgotten so long after its last word at the earliest: one that only starts again is back by then.
pub const FORGET_AFTER: Duration = Duration::from_mins(10);

/// A controller's knowledge of a host, beside the database.
struct Known {
    /// When it was heard last, by this controller.
    heard_at: Option<SystemTime>,
    /// How the host answers. `None`: it does not.
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

/// The belongings of a host, as the database has them. `None`: nobody here knows it.
fn loss(db: &Db<'_>, name: &str, known: &Known) -> Result<Option<HostLoss>, Abort> {
    let (row, enrolment) = (db.agent_named(name)?, db.enrolment(name)?);
    // One that is forgotten already, in whole or in part, is known by nothing else.
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
        (Some(how), _) => Some(format!("host {name} {how}: nothing is forgotten of a host that answers")),
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

/// The decision. What follows from it is done afterwards, part by part.
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

impl Inner {
    /// Asks a host now, and says what this controller knows of it.
    async fn know(&self, name: &str) -> Known {
        let Some(agent) = self.agents.named(name) else { return Known { heard_at: None, answers: None } };
        let heard_at = agent.state().last_report;
        if agent.is_up() {
            return Known { heard_at, answers: Some("answers".to_owned()) };
        }
        // It may answer, and not be used for another reason.
        let greeted = async {
            let channel = self.options.dial.dial(&agent.entry).await?;
            say_hello(name, channel).await
        };
        let greeted = tokio::time::timeout(CALL_LIMIT, greeted).await;
        let own = agent.id().map(|id| id.to_string());
        let machine =
            agent.state().capabilities.as_ref().map(|seen| seen.host_name.clone()).unwrap_or_default();
        let answers = match greeted {
            // One that has lost its store is the same on the same machine.
            Ok(Ok(hello))
                if own.is_none_or(|own| own == hello.agent_id)
                    || (hello.fresh && (machine.is_empty() || machine == hello.host_name)) =>
            {
                let why = agent.state().why_down.clone().unwrap_or_default();
                Some(format!("answers at {}, although it is not used ({why})", agent.entry.address))
            }
            // Nobody does, or another agent.
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
    /// Says what would go with a host, and whether anything stands in the way. Changes nothing.
    pub async fn host_loss(&self, caller: &Caller, name: &str) -> Result<HostLoss, Refusal> {
        self.inner.policies().check("mooring:host_forget", caller, &Target::default())?;
        let known = self.inner.know(name).await;
        let own = name.to_owned();
        let read = move |db: &Db<'_>| loss(db, &own, &known);
        let loss = self.store.read("read what a host has", read).await?;
        loss.ok_or_else(|| not_found(name))
    }

    /// Forgets a host that never comes back, with everything that it has: its volumes and snapshots, their attachments (each with a
    /// receipt that will never be proven), its own attachments to other storage nodes (by force), its enrolment. Its agent's id is a
    /// stranger's from then on. Refused while it answers, and until [`FORGET_AFTER`] after its last word. `confirm`: the name once
    /// more. Said again, it goes on where it stopped. Returns what went.
    pub async fn forget_host(&self, caller: &Caller, name: &str, confirm: &str) -> Result<HostLoss, Refusal> {
        self.inner.policies().check("mooring:host_forget", caller, &Target::default())?;
        if confirm != name {
            return Err(Refusal::Invalid(
                "confirm: want the name of the host once more; `GET` of this address says what would go"
                    .to_owned(),
            ));
        }
        let known = self.inner.know(name).await;
        let (inner, own, owner) = (Arc::clone(&self.inner), name.to_owned(), caller.clone());
        let store = self.store.clone();
        self.to_its_end(async move { inner.forget(store, owner, own, known).await }).await
    }
}

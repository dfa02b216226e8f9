//! What is live: rows beside the agents' last words.
//!
//! What must never happen here: a word that is not in a report; an old report shown as one of now (an agent that is down
//! has none).

use std::sync::Arc;

use mooring_model::{AttachmentId, ConnectionReport, ExportReport, Iqn, Naa, Problem, StuckStep, VolumeId};
use tokio::time::Instant;

use super::{Refusal, Service, Wait, allowed, attach, view};
use crate::agents::Agent;
use crate::domain::{AttachmentLive, AttachmentStatus, Caller, DiskIdentity, Host, HostPool};
use crate::flow::Inner;
use crate::store::{Abort, AttachmentRow, Db};

/// What the state of a session is called that is logged in.
const LOGGED_IN: &str = "LOGGED_IN";

fn words(agent: &str, problems: &[Problem], stuck: Option<&StuckStep>, out: &mut Vec<String>) {
    out.extend(problems.iter().map(|problem| format!("{agent}: {}: {}", problem.object, problem.text)));
    out.extend(stuck.map(|stuck| {
        format!("{agent}: {} has not returned for {:.1} s", stuck.step, stuck.since.as_secs_f64())
    }));
}

fn add_storage(live: &mut AttachmentLive, name: &str, report: &ExportReport, initiator: Option<&Iqn>) {
    words(name, &report.problems, report.stuck.as_ref(), &mut live.problems);
    let grant = report.grants.iter().find(|grant| Some(&grant.initiator) == initiator);
    let sessions: Vec<_> =
        grant.iter().flat_map(|grant| &grant.sessions).filter(|session| session.state == LOGGED_IN).collect();
    live.effective_mode = grant.and_then(|grant| grant.seen);
    live.session = Some(!sessions.is_empty());
    live.session_addresses = sessions.iter().flat_map(|session| session.addresses.iter().cloned()).collect();
}

fn add_host(live: &mut AttachmentLive, name: &str, report: &ConnectionReport) {
    words(name, &report.problems, report.stuck.as_ref(), &mut live.problems);
    live.host_phase = Some(report.phase.to_string());
    live.disk = report.disk.as_ref().map(|disk| disk.path.clone());
    let path = report.paths.iter().find(|path| path.attachment == live.attachment.id);
    live.device_path = path.map(|path| path.path.clone());
    if !report.holders.is_empty() && live.attachment.status == AttachmentStatus::Detaching {
        live.problems.push(format!("{name}: held open by {}", report.holders.join(", ")));
    }
}

/// One attachment with what its agents say.
fn live_of(inner: &Inner, db: &Db<'_>, row: AttachmentRow) -> Result<AttachmentLive, Abort> {
    // Before anything is read: what changes afterwards has another revision.
    let revision = inner.revision(row.volume);
    let volume = db.volume(row.volume)?;
    let volume = volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: row.volume.to_string() })?;
    let (steps_ms, native) = (row.steps.clone(), row.native);
    let initiator = row.initiator.clone();
    let mut live = AttachmentLive {
        attachment: view::attachment(db, &volume, row)?,
        volume_name: volume.name.clone(),
        effective_mode: None,
        session: None,
        session_addresses: Vec::new(),
        host_phase: None,
        device_path: None,
        disk: None,
        problems: Vec::new(),
        steps_ms,
        revision,
    };
    live.problems.extend(volume.review.as_ref().map(|why| format!("in review: {why}")));
    match inner.agents.up(volume.agent) {
        Err(why) => live.problems.push(why),
        Ok(agent) => match agent.volume(volume.id).export {
            Some(report) => add_storage(&mut live, &agent.entry.name, &report, initiator.as_ref()),
            // It answers, and it exports nothing.
            None => live.session = Some(false),
        },
    }
    if let Some(host) = native {
        match inner.agents.up(host) {
            Err(why) => live.problems.push(why),
            Ok(agent) => {
                if let Some(report) = agent.connection(volume.id).report {
                    add_host(&mut live, &agent.entry.name, &report);
                }
            }
        }
    }
    Ok(live)
}

fn host_of(agent: &Agent) -> Host {
    let state = agent.state();
    let capabilities = state.capabilities.as_ref();
    let pools = capabilities.map_or(&[][..], |seen| &seen.pools);
    let mut problems: Vec<String> = capabilities
        .map_or(&[][..], |seen| &seen.problems)
        .iter()
        .map(|problem| format!("{}: {}", problem.object, problem.text))
        .collect();
    problems.extend(state.orphans.values().cloned());
    Host {
        name: agent.entry.name.clone(),
        address: agent.entry.address.to_string(),
        agent: state.id,
        initiator: state.initiator.clone(),
        pools: pools
            .iter()
            .map(|pool| HostPool { name: pool.name.clone(), total: pool.total_bytes, free: pool.free_bytes })
            .collect(),
        up: state.channel.is_some(),
        why_down: if state.channel.is_some() {
            None
        } else {
            Some(state.why_down.clone().unwrap_or_else(|| "it was not reached yet".to_owned()))
        },
        last_report: state.last_report,
        problems,
    }
}

impl Service {
    async fn live_now(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentLive, Refusal> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let read = move |db: &Db<'_>| live_of(&inner, db, attach::find(db, &caller, id)?);
        self.inner.store.read("read what is live", read).await
    }

    /// What is live of one attachment. With `newer_than`, waits until its revision is another one, or for `wait`. Without,
    /// its storage agent is asked now.
    pub async fn live(
        &self,
        caller: &Caller,
        id: AttachmentId,
        newer_than: Option<u64>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let deadline = Instant::now() + wait.0;
        let seen = self.live_now(caller, id).await?;
        let volume = seen.attachment.volume;
        let Some(known) = newer_than else {
            self.refresh(volume).await;
            return self.live_now(caller, id).await;
        };
        let mut changes = self.inner.follow(volume);
        let changed = changes.wait_for(|revision| *revision != known);
        let _ = tokio::time::timeout_at(deadline, changed).await;
        let live = self.live_now(caller, id).await?;
        // A storage agent reports what changes by its own work; a login is the kernel's. It is asked once the host is
        // ready, so that the answer that ends an attach says what the target sees.
        if live.host_phase.as_deref() == Some("ready") && live.session != Some(true) {
            self.refresh(volume).await;
            return self.live_now(caller, id).await;
        }
        Ok(live)
    }

    /// What is live of all attachments of the caller (of all: admins). Each volume's storage agent is asked now, all at
    /// once.
    pub async fn live_all(&self, caller: &Caller) -> Result<Vec<AttachmentLive>, Refusal> {
        let project = (!caller.admin).then(|| caller.project.clone());
        let of = project.clone();
        let read = move |db: &Db<'_>| Ok(db.attachments(of.as_deref())?);
        let rows = self.inner.store.read("list attachments", read).await?;
        let mut volumes: Vec<_> = rows.iter().map(|row| row.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        let mut looks = tokio::task::JoinSet::new();
        for volume in volumes {
            let service = self.clone();
            looks.spawn(async move { service.refresh(volume).await });
        }
        looks.join_all().await;
        let inner = Arc::clone(&self.inner);
        let read = move |db: &Db<'_>| {
            let rows = db.attachments(project.as_deref())?;
            rows.into_iter().map(|row| live_of(&inner, db, row)).collect()
        };
        self.inner.store.read("read what is live", read).await
    }

    /// Asks a volume's storage agent how it is now; what it does not answer is left as it was.
    async fn refresh(&self, id: VolumeId) {
        let read = move |db: &Db<'_>| Ok(db.volume(id)?.map(|volume| volume.agent));
        let Ok(Some(agent)) = self.inner.store.read("read a volume", read).await else { return };
        if let Ok(agent) = self.inner.agents.up(agent)
            && let Err(error) = self.inner.look(&agent, id).await
        {
            tracing::debug!(volume = %id, %error, "cannot look at a volume");
        }
    }

    /// The enrolled agents. Admins only.
    pub async fn hosts(&self, caller: &Caller) -> Result<Vec<Host>, Refusal> {
        allowed(caller, "hosts:list")?;
        let mut hosts: Vec<_> = self.inner.agents.all().iter().map(|agent| host_of(agent)).collect();
        let read = |db: &Db<'_>| {
            Ok(db.volumes(None)?.into_iter().filter(|volume| volume.review.is_some()).collect())
        };
        let reviewed: Vec<crate::store::VolumeRow> =
            self.inner.store.read("list what is in review", read).await?;
        for volume in reviewed {
            let why = volume.review.unwrap_or_default();
            if let Some(host) = hosts.iter_mut().find(|host| host.agent == Some(volume.agent)) {
                host.problems.push(format!("volume {} is in review: {why}", volume.id));
            }
        }
        Ok(hosts)
    }

    /// What makes a volume's disk the right one; `None` while no agent has said it.
    pub async fn disk_identity(
        &self,
        caller: &Caller,
        id: VolumeId,
    ) -> Result<Option<DiskIdentity>, Refusal> {
        let caller = caller.clone();
        let read = move |db: &Db<'_>| {
            let volume = super::volumes::find(db, &caller, id)?;
            let identity = |naa: Naa| DiskIdentity { naa, serial: volume.id.to_string() };
            Ok(volume.naa.clone().map(identity))
        };
        self.inner.store.read("read a disk's identity", read).await
    }
}

//! Live state: rows of the database, combined with the agents' last reports.
//!
//! What must never happen here: a state that is in no report; an old report shown as a present one
//! (an agent that is down has none).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_model::{
    AgentId, AttachmentId, ConnectionReport, ExportReport, Initiator, Phase, Problem, StuckStep, VolumeId,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::view::{self, Secrets};
use super::{Refusal, Service, Wait, attach, cache, sessions, told};
use crate::agents::{Agent, AgentState, has_session};
use crate::domain::{
    AttachmentLive, AttachmentStatus, Caller, Enrolment, Host, Job, VolumeState, host_reports,
};
use crate::flow::place::zone_of;
use crate::flow::seen::seen_mode;
use crate::flow::{Facts, Flow};
use crate::initiators::Initiators;
use crate::permits::{self, Ended};
use crate::policy::Target;
use crate::store::{Abort, AgentRow, AttachmentRow, Db, Rotation, Stage, VolumeRow};

/// Age at which a storage agent's report no longer replaces a fresh look. A login happens in the
/// kernel, and is not reported at once.
const REPORT_OLD: Duration = Duration::from_secs(5);

/// Limits of the fresh looks for one list: number in all, number at a time, and the time that the
/// list waits for them.
const LOOKS_MAX: usize = 128;
const LOOKS_AT_ONCE: usize = 16;
const LOOKS_LIMIT: Duration = Duration::from_secs(3);

fn words(agent: &str, problems: &[Problem], stuck: Option<&StuckStep>, out: &mut Vec<String>) {
    out.extend(problems.iter().map(|problem| format!("{agent}: {problem}")));
    out.extend(stuck.map(|stuck| {
        format!("{agent}: {} has not returned for {:.1} s", stuck.step, stuck.since.as_secs_f64())
    }));
}

fn add_storage(
    live: &mut AttachmentLive,
    name: &str,
    report: &ExportReport,
    initiators: Option<&Initiators>,
) {
    words(name, &report.problems, report.stuck.as_ref(), &mut live.problems);
    let modes = initiators.into_iter().flat_map(Initiators::each).map(|one| seen_mode(report, &one));
    live.effective_mode = modes.max().flatten();
    sessions::add(live, name, report, initiators);
}

fn add_host(live: &mut AttachmentLive, name: &str, report: &ConnectionReport) {
    words(name, &report.problems, report.stuck.as_ref(), &mut live.problems);
    live.host_phase = Some(report.phase.to_string());
    live.cache_in_force = report.cache;
    live.disk = report.disk.as_ref().map(|disk| disk.path.clone());
    let path = report.paths.iter().find(|path| path.attachment == live.attachment.id);
    live.device_path = path.map(|path| path.path.clone());
    if !report.holders.is_empty() && live.attachment.status == AttachmentStatus::Detaching {
        live.problems.push(format!("{name}: held open by {}", report.holders.join(", ")));
    }
}

/// The reason for which the storage agent cannot serve a volume that nothing else is the matter
/// with, such as an LV that was removed by hand. `None`: this controller has no report of one.
fn unserved(facts: &Facts, row: &VolumeRow) -> Option<String> {
    if row.operation.is_some() {
        return None;
    }
    let agent = facts.agents.up(row.agent).ok()?;
    let report = agent.volume(row.id).filter(|report| report.phase == Phase::Failed)?;
    let mut said = Vec::new();
    words(&agent.entry.name, &report.problems, None, &mut said);
    (!said.is_empty()).then(|| said.join("; "))
}

/// One attachment, with the live state from its agents' reports.
pub(super) fn live_of(facts: &Facts, db: &Db<'_>, row: AttachmentRow) -> Result<AttachmentLive, Abort> {
    // Read the revision first: a later change has another revision.
    let revision = facts.revision(row.volume);
    let volume = attach::volume_of(db, &row)?;
    let (steps_ms, native) = (row.steps.clone(), row.native);
    let initiator = row.initiator.clone();
    let rotation = match initiator.as_ref().and_then(Initiators::iqn) {
        Some(initiator) => db.rotation(volume.id, initiator)?.unwrap_or_default(),
        None => Rotation::default(),
    };
    let mut live = AttachmentLive {
        attachment: view::attachment(facts, db, &volume, row, Secrets::Hidden)?,
        volume_name: volume.name.clone(),
        effective_mode: None,
        session: None,
        nexus: None,
        cache_in_force: None,
        host_phase: None,
        device_path: None,
        disk: None,
        secret_rotation: rotation.stage.map(Stage::shown),
        secret_rotated_at: rotation.ended,
        problems: Vec::new(),
        steps_ms,
        revision,
    };
    live.problems.extend(volume.review.as_ref().map(|review| format!("in review: {}", review.why)));
    match facts.agents.up(volume.agent) {
        Err(why) => live.problems.push(why),
        Ok(agent) => {
            // Writes fail in a pool that is full.
            live.problems.extend(agent.pool_faults(&volume.pool));
            match agent.export(volume.id) {
                Some(report) => add_storage(&mut live, &agent.entry.name, &report, initiator.as_ref()),
                // The agent is up, and does not export the volume.
                None if agent.hold().is_ours() || agent.knows_volume(volume.id) => {
                    live.session = Some(false);
                }
                // Another controller drives the agent, and the agent was not asked in time.
                None => {}
            }
        }
    }
    if let Some(host) = native {
        match facts.agents.up(host) {
            Err(why) => live.problems.push(why),
            Ok(agent) => {
                if let Some(report) = agent.connection(volume.id).report {
                    add_host(&mut live, &agent.entry.name, &report);
                }
                if let Err(why) = cache::may_be(&agent, live.attachment.cache) {
                    live.problems.push(format!("cache_unsupported: {}: {why}", agent.entry.name));
                }
            }
        }
    }
    Ok(live)
}

/// The problem of an agent that is up and does not report its capabilities. `None` if it does.
fn silence(state: &AgentState, now: SystemTime) -> Option<String> {
    let since = state.capabilities_silent?;
    let ago = |time: SystemTime| now.duration_since(time).unwrap_or_default().as_secs();
    let pools = state.pools_seen.map_or_else(
        || "nothing is known of its pools".to_owned(),
        |seen| format!("its pools are as they were {} s ago", ago(seen)),
    );
    Some(format!(
        "capabilities: the agent has not said what it can do for {} s, and {pools}; see whether its LVM hangs",
        ago(since)
    ))
}

/// Time before a certificate's end at which a warning begins. Renewal is due 32 days before the
/// end, so it has failed by then.
const ENDS_SOON: Duration = Duration::from_hours(30 * 24);

/// The problem of a certificate that was not renewed in time. `None` while more than 30 days are
/// left.
fn ends_soon(enrolment: &Enrolment, now: SystemTime) -> Option<String> {
    let left = enrolment.expires_at.duration_since(now).unwrap_or_default();
    (left < ENDS_SOON).then(|| {
        format!(
            "its certificate ends in {} days, and was not renewed: see the agent's log, or revoke it and let it join again",
            left.as_secs() / 86_400
        )
    })
}

/// The problem of a host that one of these fences concerns: by its name, or by an initiator. `None`
/// if none does.
fn fenced(fences: &[(String, Option<Initiator>)], row: &AgentRow) -> Option<String> {
    let own = row.initiators();
    let concerns = |(name, initiator): &&(String, Option<Initiator>)| {
        *name == row.name || initiator.as_ref().is_some_and(|initiator| own.contains(initiator))
    };
    let (name, _) = fences.iter().find(concerns)?;
    Some(format!("fenced: `mooring host unfence {name}` lifts that"))
}

fn host_of(agent: &Agent, row: Option<&AgentRow>, now: SystemTime) -> Host {
    let (up, id, initiator) = (agent.is_up(), agent.id(), agent.initiator());
    let state = agent.state();
    let capabilities = state.capabilities.as_ref();
    let pools = capabilities.map_or(&[][..], |seen| &seen.pools);
    let mut problems: Vec<String> = capabilities
        .map_or(&[][..], |seen| &seen.problems)
        .iter()
        .map(|problem| format!("{}: {}", problem.object, problem.text))
        .collect();
    problems.extend(silence(&state, now));
    problems.extend(state.orphans.values().cloned());
    Host {
        name: agent.entry.name.clone(),
        address: agent.entry.address.to_string(),
        agent: id,
        initiator,
        enrolment: None,
        pools: pools.iter().map(host_reports::host_pool).collect(),
        zone: zone_of(agent).to_owned(),
        disabled: row.is_some_and(|row| row.disabled),
        disabled_reason: row.and_then(|row| row.disabled_reason.clone()),
        drained: row.is_some_and(|row| row.drained),
        up,
        why_down: if up {
            None
        } else {
            Some(state.why_down.clone().unwrap_or_else(|| "it was not reached yet".to_owned()))
        },
        last_report: state.last_report,
        health: capabilities.and_then(|seen| host_reports::health(seen.health.as_ref())),
        report: capabilities.map(host_reports::host_report),
        problems,
    }
}

impl Flow {
    /// Asks the storage agent if a session of a nexus is logged in. `None`: the agent did not
    /// answer, could not look, or does not say if it did: what it has seen before is no answer.
    pub(super) async fn is_live(
        &self,
        agent: AgentId,
        volume: VolumeId,
        initiators: &Initiators,
    ) -> Option<bool> {
        let agent = self.facts.agents.up(agent).ok()?;
        let (status, report) = match self.status_now(&agent, volume).await {
            Ok((status, report)) if status.looked_now == Some(true) => (status, report),
            Ok(_) => return None,
            Err(error) => {
                tracing::debug!(%volume, %error, "cannot look at the sessions");
                return None;
            }
        };
        // By the answer itself: a report that came beside it may have been made without a look.
        match report {
            Some(report) => Some(initiators.each().any(|initiator| has_session(&report, &initiator))),
            None if status.export.is_none() => Some(false),
            // The answer has a report that cannot be read.
            None => None,
        }
    }
}

impl Service {
    async fn live_now(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentLive, Refusal> {
        let (facts, of) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| live_of(&facts, db, attach::look(&facts, db, &of, id)?);
        let live = self.store.read("read what is live", read).await?;
        Ok(self.shown(caller, live))
    }

    /// Live state of one attachment. With `newer_than`, waits until the revision differs from it,
    /// or for `wait`. Without, asks the storage agent now.
    pub async fn live(
        &self,
        caller: &Caller,
        id: AttachmentId,
        newer_than: Option<u64>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let deadline = Instant::now() + wait.0;
        self.ask_for(id).await;
        let seen = self.live_now(caller, id).await?;
        let volume = seen.attachment.volume;
        let Some(known) = newer_than else {
            self.refresh(volume).await;
            return self.live_now(caller, id).await;
        };
        let mut changes = self.flow.follow(volume);
        let changed = changes.wait_for(|revision| *revision != known);
        if permits::until(deadline, changed).await == Err(Ended::Full) {
            let most = permits::WAITS.of_project;
            let text =
                format!("{most} requests of this project, or too many in all, wait already: try again later");
            return Err(Refusal::Unavailable(text));
        }
        self.flow.ask(volume).await;
        let live = self.live_now(caller, id).await?;
        // A storage agent reports the changes that it makes itself; a login happens in the kernel.
        // Ask the agent once the host is ready, so that the answer that ends an attach has the
        // target's view.
        if live.host_phase.as_deref() == Some("ready") && live.session != Some(true) {
            self.refresh(volume).await;
            return self.live_now(caller, id).await;
        }
        Ok(live)
    }

    /// Live state of all attachments of the caller (for admins: of all projects), by the last
    /// reports. Only for old reports the storage agents are asked again, and only for a limited
    /// number of them.
    pub async fn live_all(&self, caller: &Caller) -> Result<Vec<AttachmentLive>, Refusal> {
        let all = self.facts.policies().allows("mooring:live_all", caller, &Target::default());
        if !all {
            self.may("mooring:attachment_get_all", caller)?;
        }
        let project = (!all).then(|| caller.project.clone());
        let of = project.clone();
        let read = move |db: &Db<'_>| Ok(db.volumes_attached(of.as_deref())?);
        let volumes = self.store.read("list attached volumes", read).await?;
        self.look_at_old(volumes).await;
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let rows = db.attachments(project.as_deref())?;
            rows.into_iter().map(|row| live_of(&facts, db, row)).collect::<Result<Vec<_>, _>>()
        };
        let all = self.store.read("read what is live", read).await?;
        Ok(all.into_iter().map(|live| self.shown(caller, live)).collect())
    }

    /// Asks for the oldest reports again: a bounded number of them, within a bounded time.
    async fn look_at_old(&self, volumes: Vec<(VolumeId, AgentId)>) {
        let mut old: Vec<_> = volumes
            .into_iter()
            .filter_map(|(volume, agent)| {
                let agent = self.facts.agents.up(agent).ok()?;
                let at = agent.export_at(volume);
                at.is_none_or(|at| at.elapsed() >= REPORT_OLD).then_some((at, volume, agent))
            })
            .collect();
        old.sort_by_key(|(at, volume, _)| (*at, *volume));
        old.truncate(LOOKS_MAX);
        let places = Arc::new(Semaphore::new(LOOKS_AT_ONCE));
        let mut looks = tokio::task::JoinSet::new();
        for (_, volume, agent) in old {
            let (flow, places) = (Arc::clone(&self.flow), Arc::clone(&places));
            looks.spawn(async move {
                let Ok(_place) = places.acquire().await else { return };
                flow.look_shared(&agent, volume).await;
            });
        }
        // Reports that have not come by then are shown as they were.
        let _ = tokio::time::timeout(LOOKS_LIMIT, looks.join_all()).await;
    }

    /// A volume, with the state that only Mooring's own API shows.
    pub async fn volume_state(&self, caller: &Caller, id: VolumeId) -> Result<VolumeState, Refusal> {
        let own = self.reads_agents(caller);
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let row = super::volumes::find(&facts, db, &caller, id)?;
            let holds = row.holds;
            let (reserved, review) = (row.reserved, row.review.as_ref().map(|review| review.why.clone()));
            // A volume without an operation has no job.
            let works = row.operation.is_some().then_some(row.agent);
            let target = super::volumes::target(&row);
            let hosts = facts.policies().allows("volume_extension:volume_host_attribute", &caller, &target);
            let cut = super::isolate::seen(&facts, &row);
            // The agent's words name groups and LVs.
            let why = if hosts { unserved(&facts, &row) } else { None };
            let mut volume = view::volume(&facts, db, row)?;
            volume.fault = volume.fault.or(why);
            Ok((VolumeState { volume, reserved, holds, review, job: None, cut }, works, hosts))
        };
        let (mut state, works, hosts) = self.store.read("read a volume", read).await?;
        if !own {
            state.volume.fault = told::of_volume(state.volume.status, state.volume.fault);
            state.review = state.review.map(|_| told::IN_REVIEW.to_owned());
        }
        if let Some(agent) = works
            && let Some((seen, host)) = self.job_of(agent, id).await
        {
            let volume_name = state.volume.name.clone();
            state.job = Some(Job { seen, volume_name, host: hosts.then_some(host) });
        }
        Ok(state)
    }

    /// Loads the volume of an attachment that another controller drives: its state is not in this
    /// controller's memory.
    async fn ask_for(&self, id: AttachmentId) {
        if self.store.dialer().is_none() {
            return;
        }
        let read = move |db: &Db<'_>| Ok(db.attachment(id)?.map(|row| row.volume));
        if let Ok(Some(volume)) = self.store.read("read an attachment", read).await {
            self.flow.ask(volume).await;
        }
    }

    /// Asks a volume's storage agent for a fresh report. If it does not answer, the old report
    /// stays.
    pub(super) async fn refresh(&self, id: VolumeId) {
        let read = move |db: &Db<'_>| Ok(db.volume(id)?.map(|volume| volume.agent));
        let Ok(Some(agent)) = self.store.read("read a volume", read).await else { return };
        let Ok(agent) = self.facts.agents.up(agent) else { return };
        self.flow.look_shared(&agent, id).await;
    }

    /// The enrolled agents.
    pub async fn hosts(&self, caller: &Caller) -> Result<Vec<Host>, Refusal> {
        self.facts.policies().check("mooring:hosts", caller, &Target::default())?;
        let read = |db: &Db<'_>| {
            let rows = db.agents()?;
            Ok((db.volumes_in_review()?, rows, db.fenced_now()?, db.enrolments()?))
        };
        let (reviewed, rows, fences, enrolments) = self.store.read("list hosts", read).await?;
        let row = |agent: &Agent| rows.iter().find(|row| row.name == agent.entry.name);
        let now = self.facts.options.clock.now();
        let mut hosts: Vec<_> =
            self.facts.agents.all().iter().map(|agent| host_of(agent, row(agent), now)).collect();
        for host in &mut hosts {
            host.enrolment = enrolments.iter().find(|one| one.name == host.name && !one.revoked).cloned();
            host.problems.extend(host.enrolment.as_ref().and_then(|enrolment| ends_soon(enrolment, now)));
            host.problems
                .extend(rows.iter().find(|row| row.name == host.name).and_then(|row| fenced(&fences, row)));
            if !host.up {
                let address = self.facts.agents.named(&host.name).map(|agent| agent.entry.address.clone());
                host.problems.extend(address.and_then(|address| self.unit_of(&address)));
            }
        }
        for (agent, missing) in self.missing_sessions().await? {
            if let Some(host) = hosts.iter_mut().find(|host| host.agent == Some(agent)) {
                host.problems.push(missing);
            }
        }
        for volume in reviewed {
            let why = volume.review.map(|review| review.why).unwrap_or_default();
            if let Some(host) = hosts.iter_mut().find(|host| host.agent == Some(volume.agent)) {
                host.problems.push(format!("volume {} is in review: {why}", volume.id));
            }
        }
        Ok(hosts)
    }
}

#[cfg(test)]
mod tests {
    use mooring_api::v1;

    use super::*;

    const PORTS: [&str; 2] = ["20:00:52:54:00:14:00:0b", "20:00:52:54:00:14:00:0c"];

    #[test]
    fn a_host_is_fenced_by_its_name_and_by_each_of_its_initiators() {
        let ports = PORTS.map(str::to_owned).to_vec();
        let row = AgentRow {
            name: "host1".to_owned(),
            id: AgentId::from_u128(1),
            initiator: Some("iqn.2026-01.lab:host1".parse().unwrap()),
            capabilities: Some(v1::Capabilities { fc_initiator_ports: ports, ..Default::default() }),
            reported_at: None,
            disabled: false,
            disabled_reason: None,
            drained: false,
            heard_at: None,
            software: String::new(),
        };
        for (name, initiator, is_fenced) in [
            ("host1", None, true),
            ("node1", Some("iqn.2026-01.lab:host1"), true),
            ("node1", Some(PORTS[0]), true),
            ("node1", Some(PORTS[1]), true),
            ("node1", None, false),
            ("node1", Some("iqn.2026-01.lab:host2"), false),
            ("node1", Some("20:00:52:54:00:14:00:0d"), false),
        ] {
            let other = ("node9".to_owned(), None);
            let fences = [other, (name.to_owned(), initiator.map(|text| text.parse().unwrap()))];
            let wanted = is_fenced.then(|| format!("fenced: `mooring host unfence {name}` lifts that"));
            assert_eq!(fenced(&fences, &row), wanted, "{name} {initiator:?}");
        }
    }

    #[test]
    fn the_silence_of_an_agent_is_measured_by_the_clock_that_is_given() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let state = |since| {
            let mut state = AgentState::default();
            (state.capabilities_silent, state.pools_seen) = (since, Some(at(40)));
            state
        };
        let said = silence(&state(Some(at(60))), at(100)).unwrap();
        assert!(said.contains("can do for 40 s, and its pools are as they were 60 s ago"), "{said}");
        // A clock that was set back.
        assert!(silence(&state(Some(at(60))), at(50)).unwrap().contains("can do for 0 s"));
        assert_eq!(silence(&state(None), at(100)), None);
    }
}

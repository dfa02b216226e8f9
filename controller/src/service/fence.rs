//! Fences: one call revokes a host's access to every volume, on all storage nodes, and keeps it
//! revoked until an operator lifts the fence.
//!
//! One transaction writes the fence and the end of the host's attachments. After it the host is
//! granted nothing more, and each of its attachments is force detached. Each attachment has a
//! receipt of its own from its storage agent; the fence's receipt is all of them together.
//!
//! This database may be older than what the agents store. So the controller compares each storage
//! node with the fence, and revokes what that node grants to the host besides
//! ([`crate::flow::fenced`]).
//!
//! What must never happen here: a grant to a fenced host; a fence shown as proven while one part is
//! not, or while one storage node has not reported its grants; a part that is forgotten because its
//! storage node does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use mooring_model::limit::KERNEL_ANSWER_DEADLINE;
use mooring_model::{AttachmentId, Initiator, Proof, Receipt, VolumeId};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::detach::{asked_by, receipt_of, told};
use super::{Refusal, Service, TEXT_CHARS_MAX, Wait, reservations};
use crate::agents::Agent;
use crate::domain::{
    Caller, DisputedInitiator, FencePart, FenceState, FencedExport, HostFence, NewFence, UnknownNode,
};
use crate::flow::Facts;
use crate::flow::forced::force_rows;
use crate::flow::volume_specs::SpecChanges;
use crate::initiators::Initiators;
use crate::permits::{self, Ended};
use crate::policy::Target;
use crate::store::{Abort, AgentRow, Asked, AttachmentRow, Db, FenceRow, Taker};

/// Longest reason, in characters.
pub const REASON_MAX: usize = 255;

/// Most fences of one list.
const FENCES_MAX: u32 = 1_000;

/// The start of a fence at one volume: the attachments that it ends, and the agents to wake.
struct Cutting {
    volume: VolumeId,
    parts: Vec<AttachmentId>,
    spec_changes: SpecChanges,
}

/// Refuses a new access that a fence in force forbids. Only a caller who sees the hosts reads the
/// fence's name and reason.
pub(super) fn forbids(
    db: &Db<'_>,
    initiator: &Initiators,
    host: Option<&str>,
    reads_hosts: bool,
) -> Result<(), Abort> {
    let Some(fence) = db.fence_of(initiator, host)? else { return Ok(()) };
    if !reads_hosts {
        return Err(
            Refusal::Conflict(format!("{initiator} is fenced: ask the operator, who sees why")).into()
        );
    }
    let FenceRow { name, reason, .. } = fence;
    let why = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let text =
        format!("{initiator} is fenced{why}: an operator lifts that with `mooring host unfence {name}`");
    Err(Refusal::Conflict(text).into())
}

/// The names under which the named host logs in. Names that only users claim for the host do not
/// count: whoever chose such a name would choose the host that is fenced.
///
/// A text that is an initiator's name may be a host's as well (`deadbeefcafe001`): it means both.
fn meant(db: &Db<'_>, name: &str) -> Result<BTreeSet<Initiator>, Abort> {
    let enrolled = db.agent_named(name)?;
    let mut initiators: BTreeSet<_> = db.initiators_of_host(name)?.into_iter().collect();
    let known = enrolled.is_some() || !db.claims_of_host(name)?.is_empty();
    initiators.extend(enrolled.iter().flat_map(AgentRow::initiators));
    initiators.extend(name.parse::<Initiator>().ok());
    if initiators.is_empty() && !known {
        let what = name.chars().take(TEXT_CHARS_MAX).collect();
        return Err(Refusal::NotFound { kind: "Host", what }.into());
    }
    Ok(initiators)
}

/// The initiators that only users claim for the host, and that the fence leaves alone.
fn disputed(db: &Db<'_>, name: &str, taken: &[Initiator]) -> Result<Vec<DisputedInitiator>, Abort> {
    let mut all: BTreeMap<Initiator, Vec<(AttachmentId, VolumeId)>> = BTreeMap::new();
    for (initiators, attachment, volume) in db.claims_of_host(name)? {
        for initiator in initiators.each().filter(|one| !taken.contains(one)) {
            all.entry(initiator).or_default().push((attachment, volume));
        }
    }
    let one = |(initiator, attachments)| {
        let hosts = db.hosts_under(&initiator)?.into_iter().collect();
        Ok(DisputedInitiator { initiator, hosts, attachments })
    };
    all.into_iter().map(one).collect()
}

/// Ends all attachments of these initiators to one volume, by force.
fn cut(
    db: &Db<'_>,
    caller: &Caller,
    fence: Uuid,
    volume: VolumeId,
    initiators: &BTreeSet<Initiator>,
) -> Result<Cutting, Abort> {
    let mut cutting = Cutting { volume, parts: Vec::new(), spec_changes: SpecChanges::default() };
    let Some(row) = db.volume(volume)? else { return Ok(cutting) };
    let is_fenced = |row: &AttachmentRow| {
        let mut names = row.initiator.iter().flat_map(Initiators::each);
        names.any(|name| initiators.contains(&name))
    };
    let rows: Vec<_> = db.attachments_of(volume)?.into_iter().filter(is_fenced).collect();
    for attachment in &rows {
        db.fence_part(fence, attachment.id, volume)?;
        cutting.parts.push(attachment.id);
    }
    cutting.spec_changes = force_rows(db, &asked_by(db, caller), &row, rows)?;
    Ok(cutting)
}

fn begin(db: &Db<'_>, caller: &Caller, name: &str, new: &NewFence) -> Result<(Uuid, Vec<Cutting>), Abort> {
    let kept = db.fence_named(name)?;
    let mut initiators = meant(db, name).or_else(|refusal| match &kept {
        // The host was known when it was fenced, and no row names it now.
        Some(_) => Ok(BTreeSet::new()),
        None => Err(refusal),
    })?;
    let id = if let Some(fence) = kept {
        initiators.extend(db.fenced_initiators(fence.id)?);
        fence.id
    } else {
        let asked = asked_by(db, caller);
        let (id, reason) = (Uuid::new_v4(), new.reason.clone());
        db.insert_fence(&FenceRow { id, name: name.to_owned(), reason, asked, lifted_at: None })?;
        id
    };
    initiators.extend(new.also.iter().cloned());
    let mut volumes = BTreeSet::new();
    for initiator in &initiators {
        db.fence_initiator(id, initiator)?;
        volumes.extend(db.volumes_of_initiator(initiator)?);
    }
    let mut begun = Vec::new();
    for volume in volumes {
        begun.push(cut(db, caller, id, volume, &initiators)?);
    }
    Ok((id, begun))
}

fn state(
    facts: &Facts,
    db: &Db<'_>,
    attachment: AttachmentId,
    volume: VolumeId,
) -> Result<FenceState, Abort> {
    let Some(row) = db.attachment(attachment)? else {
        let receipt = db.detached(attachment)?.and_then(|gone| gone.receipt);
        let receipt = receipt.map(|id| db.receipt(id)).transpose()?.flatten();
        return Ok(match receipt {
            // The volume's storage node was forgotten.
            Some(receipt) if receipt.proof != Proof::Proven => FenceState::Unproven(receipt),
            receipt => FenceState::Cut(receipt),
        });
    };
    if let Some(receipt) = receipt_of(db, &row)? {
        return Ok(match receipt.proof {
            Proof::Proven => FenceState::Cut(Some(receipt)),
            Proof::Unproven { .. } => FenceState::Unproven(receipt),
        });
    }
    // A proven receipt that is not stored yet is no answer: it soon will be, or the agent reports
    // it again.
    match told(facts, db, &row)?.filter(|receipt| receipt.proof != Proof::Proven) {
        Some(receipt) => Ok(FenceState::Unproven(receipt)),
        None => Ok(FenceState::Waits(why_waits(facts, db, &row, volume)?)),
    }
}

fn why_waits(facts: &Facts, db: &Db<'_>, row: &AttachmentRow, volume: VolumeId) -> Result<String, Abort> {
    let Some(of) = db.volume(volume)? else { return Ok("its volume is not there".to_owned()) };
    Ok(match (facts.agents.up(of.agent), &row.fault) {
        (Err(why), _) => why,
        (Ok(_), Some(fault)) => fault.clone(),
        (Ok(agent), None) => format!("agent {} is working on it", agent.entry.name),
    })
}

/// The grants that the fence revokes on storage nodes besides its parts.
fn exports(facts: &Facts, db: &Db<'_>, fence: Uuid) -> Result<Vec<FencedExport>, Abort> {
    let mut all = Vec::new();
    for taking in db.takings_for(Taker::Fence(fence))? {
        let receipt = taking.receipt.map(|id| db.receipt(id)).transpose()?.flatten();
        let state = match (taking.done, receipt, facts.agents.up(taking.agent)) {
            (true, receipt, _) => FenceState::Cut(receipt),
            (false, Some(receipt), _) => FenceState::Unproven(receipt),
            (false, None, Err(why)) => FenceState::Waits(why),
            (false, None, Ok(agent)) => {
                let at_it = || format!("agent {} is working on it", agent.entry.name);
                FenceState::Waits(taking.fault.unwrap_or_else(at_it))
            }
        };
        let (node, initiator) = (facts.agents.name_of(taking.agent), taking.initiator);
        all.push(FencedExport { node, volume: taking.volume, initiator, state });
    }
    Ok(all)
}

/// Storage nodes that have not reported their grants since the fence began. For a node that was
/// forgotten before the fence, the word of the operator who forgot it counts.
fn unknown(facts: &Facts, db: &Db<'_>, fence: Uuid, since: SystemTime) -> Result<Vec<UnknownNode>, Abort> {
    let (compared, serving) = (db.fence_nodes(fence)?, db.serving_agents()?);
    let serves = |agent: &Agent| agent.is_storage() || agent.id().is_some_and(|id| serving.contains(&id));
    let silent =
        |agent: &&Arc<Agent>| serves(agent) && !(compared.contains(&agent.entry.name) && agent.has_listed());
    let why = |agent: &Agent| {
        if agent.is_up() {
            format!("agent {} has not said yet what it grants", agent.entry.name)
        } else {
            agent.why_down()
        }
    };
    let mut unknown = Vec::new();
    for agent in facts.agents.all().iter().filter(silent) {
        // The configuration may still name a forgotten agent.
        let forgotten = agent.id().map(|id| db.forgotten(id)).transpose()?.flatten();
        if forgotten.is_none() {
            unknown.push(UnknownNode { node: agent.entry.name.clone(), why: why(agent) });
        }
    }
    for id in serving.into_iter().filter(|id| facts.agents.by_id(*id).is_none()) {
        let why = format!(
            "volumes of this database belong to agent {id}, and no agent of this configuration has that id"
        );
        unknown.push(UnknownNode { node: id.to_string(), why });
    }
    for forgotten in db.nodes_forgotten_since(since)? {
        if !compared.contains(&forgotten.name) {
            let why = format!(
                "{} was forgotten before it said what it grants: that will never be known",
                forgotten.name
            );
            unknown.push(UnknownNode { node: forgotten.name, why });
        }
    }
    Ok(unknown)
}

/// Warnings about a reservation that this attachment's host holds, by the storage agent's last
/// report.
fn holds(facts: &Facts, db: &Db<'_>, attachment: AttachmentId) -> Result<Vec<String>, Abort> {
    let Some(row) = db.attachment(attachment)? else { return Ok(Vec::new()) };
    let of = db.volume(row.volume)?;
    Ok(of.map(|of| reservations::holds(facts, &row, of.agent)).unwrap_or_default())
}

fn view(facts: &Facts, db: &Db<'_>, row: FenceRow) -> Result<HostFence, Abort> {
    let FenceRow { id, name, reason, asked, lifted_at } = row;
    let mut parts = Vec::new();
    for (attachment, volume) in db.fence_parts(id)? {
        let state = state(facts, db, attachment, volume)?;
        let warnings = match &state {
            FenceState::Cut(receipt) => receipt.iter().filter_map(Receipt::parting_words).collect(),
            FenceState::Unproven(receipt) => receipt.parting_words().into_iter().collect(),
            FenceState::Waits(_) => holds(facts, db, attachment)?,
        };
        parts.push(FencePart { attachment, volume, state, warnings });
    }
    let Asked { user, request, at } = asked;
    let initiators = db.fenced_initiators(id)?;
    let exports = exports(facts, db, id)?;
    // For a lifted fence, no node is asked.
    let (unknown, disputed) = match lifted_at {
        None => (unknown(facts, db, id, at)?, disputed(db, &name, &initiators)?),
        Some(_) => (Vec::new(), Vec::new()),
    };
    Ok(HostFence {
        id,
        name,
        initiators,
        reason,
        user,
        request,
        fenced_at: at,
        lifted_at,
        parts,
        exports,
        unknown,
        disputed,
    })
}

fn find(db: &Db<'_>, name: &str) -> Result<FenceRow, Abort> {
    let missing = || Refusal::NotFound { kind: "Fence", what: name.chars().take(TEXT_CHARS_MAX).collect() };
    Ok(db.fence_named(name)?.ok_or_else(missing)?)
}

/// The reason why a fence is not lifted.
fn not_lifted(fence: &HostFence) -> String {
    let open = fence.states().filter(|state| !matches!(state, FenceState::Cut(_))).count();
    let mut why = Vec::new();
    if open > 0 {
        why.push(format!("{open} of {} attachments are not proven to be cut off", fence.states().count()));
    }
    if !fence.unknown.is_empty() {
        let nodes: Vec<_> = fence.unknown.iter().map(|of| of.node.as_str()).collect();
        why.push(format!("it is not known what {} grants it", nodes.join(", ")));
    }
    let open: Vec<_> = fence.open_claims().map(|claim| claim.initiator.to_string()).collect();
    if !open.is_empty() {
        why.push(format!("only users say whose {} is", open.join(", ")));
    }
    format!("host {}: {}; ask again when that is known, or lift it anyway", fence.name, why.join(", and "))
}

fn checked(reason: Option<String>) -> Result<Option<String>, Refusal> {
    let reason = reason.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if reason.as_ref().is_some_and(|text| text.chars().count() > REASON_MAX) {
        return Err(Refusal::Invalid(format!("reason: longer than {REASON_MAX} characters")));
    }
    Ok(reason)
}

impl Service {
    /// Fences a host: revokes its access to every volume, on all storage nodes, by force, and
    /// refuses it every access until [`Service::unfence_host`]. `name` is an enrolled host, a host
    /// that connectors name, or an initiator's own name. Initiators that only users' connectors
    /// claim for the host are listed, and fenced only if `new` names them.
    ///
    /// Answers when every part is proven. Otherwise answers with what is known after 5 s; if a
    /// storage agent reports nothing, after `wait`. The work goes on by itself. A repeated call
    /// answers with the progress, and fences what came in between.
    pub async fn fence_host(
        &self,
        caller: &Caller,
        name: &str,
        new: NewFence,
        wait: Wait,
    ) -> Result<HostFence, Refusal> {
        self.facts.policies().check("mooring:fence", caller, &Target::default())?;
        let new = NewFence { reason: checked(new.reason)?, ..new };
        let (asked, deadline) = (Instant::now(), Instant::now() + wait.0);
        let (owner, host) = (caller.clone(), name.to_owned());
        let write = move |db: &Db<'_>| begin(db, &owner, &host, &new);
        let (id, begun) = self.store.write("fence a host", write).await?;
        tracing::info!(host = name, fence = %id, volumes = begun.len(), user = %caller.user, "a host is fenced");
        for cutting in &begun {
            self.flow.go(cutting.volume, &cutting.spec_changes.hosts);
        }
        self.compare_nodes(deadline).await;
        let unproven_at = (asked + KERNEL_ANSWER_DEADLINE).min(deadline);
        let read = move |db: &Db<'_>| Ok(db.takings_for(Taker::Fence(id))?);
        let takings = self.store.read("read what is taken away", read).await?;
        let mut volumes: BTreeMap<VolumeId, Vec<AttachmentId>> =
            takings.into_iter().map(|taking| (taking.volume, Vec::new())).collect();
        volumes.extend(begun.into_iter().map(|cutting| (cutting.volume, cutting.parts)));
        for (volume, parts) in volumes {
            self.until_cut(id, volume, parts, unproven_at, deadline).await?;
        }
        self.fence(caller, name).await
    }

    /// Asks every agent that may be a storage node for its grants, all at once. The answer names an
    /// agent that is silent until the deadline. That agent is compared when it reports.
    async fn compare_nodes(&self, deadline: Instant) {
        let mut asked = JoinSet::new();
        for agent in self.facts.agents.all().iter() {
            let (flow, agent) = (Arc::clone(&self.flow), Arc::clone(agent));
            asked.spawn(async move {
                if let Err(why) = flow.compare_fences(&agent).await {
                    tracing::warn!(agent = agent.entry.name, why, "a fence is not compared with an agent");
                }
            });
        }
        let all = async { while asked.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            // The calls go on, each within its own limit.
            asked.detach_all();
        }
    }

    /// Waits until everything that a fence revokes at one volume is proven, or the time for that is
    /// over.
    async fn until_cut(
        &self,
        fence: Uuid,
        volume: VolumeId,
        parts: Vec<AttachmentId>,
        unproven_at: Instant,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let mut changes = self.flow.follow(volume);
        let mut over = false;
        loop {
            let (facts, parts) = (self.facts.clone(), parts.clone());
            let read = move |db: &Db<'_>| {
                let states = parts.iter().map(|part| state(&facts, db, *part, volume));
                let mut states = states.collect::<Result<Vec<_>, _>>()?;
                let own = exports(&facts, db, fence)?.into_iter().filter(|export| export.volume == volume);
                states.extend(own.map(|export| export.state));
                Ok(states)
            };
            let states = self.store.read_one("read a fence", read).await?;
            let waits = states.iter().any(|state| matches!(state, FenceState::Waits(_)));
            let proven = states.iter().all(|state| matches!(state, FenceState::Cut(_)));
            let limit = if waits { deadline } else { unproven_at };
            if proven || over || Instant::now() >= limit {
                return Ok(());
            }
            over = permits::until(limit, changes.changed()).await.is_err_and(Ended::is_final);
        }
    }

    /// A fence in force, with its progress. 404 if this name has none.
    pub async fn fence(&self, caller: &Caller, name: &str) -> Result<HostFence, Refusal> {
        self.facts.policies().check("mooring:fence", caller, &Target::default())?;
        let (facts, name) = (self.facts.clone(), name.to_owned());
        let read = move |db: &Db<'_>| view(&facts, db, find(db, &name)?);
        self.store.read("read a fence", read).await
    }

    /// Fences, newest first: those in force; with `lifted`, the lifted ones, too.
    pub async fn fences(&self, caller: &Caller, lifted: bool) -> Result<Vec<HostFence>, Refusal> {
        self.facts.policies().check("mooring:fence", caller, &Target::default())?;
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            db.fences(lifted, FENCES_MAX)?.into_iter().map(|row| view(&facts, db, row)).collect()
        };
        self.store.read("list fences", read).await
    }

    /// Lifts a fence: the host may be granted access again, and its former attachments stay ended.
    /// Refused (409) while a part is not proven, unless `anyway`: old writes of the host could
    /// still land.
    pub async fn unfence_host(
        &self,
        caller: &Caller,
        name: &str,
        anyway: bool,
    ) -> Result<HostFence, Refusal> {
        self.facts.policies().check("mooring:fence", caller, &Target::default())?;
        let (facts, host) = (self.facts.clone(), name.to_owned());
        let write = move |db: &Db<'_>| {
            let row = find(db, &host)?;
            let fence = view(&facts, db, row.clone())?;
            if !fence.is_proven() && !anyway {
                return Err(Refusal::Conflict(not_lifted(&fence)).into());
            }
            db.lift_fence(row.id)?;
            Ok(HostFence { lifted_at: Some(db.now), ..fence })
        };
        let fence = self.store.write("lift a fence", write).await?;
        tracing::info!(host = name, fence = %fence.id, user = %caller.user, "a fence is lifted");
        Ok(fence)
    }
}

//! Placement of volumes: makes the pools that `schedule` chooses among, from the agents' last
//! reports and the database. Also moves a volume that its first pool could not make.
//!
//! Such a volume is first removed from its pool. Its spec becomes a tombstone in the transaction
//! that stores the reason. Only when the agent reports that the tombstone is in force does another
//! transaction choose the next pool and send the volume there. A controller that dies in between
//! reads the state from the row: a volume that is being created, and whose own pool is among those
//! that were tried, is leaving.
//!
//! What must never happen here: a volume sent to one agent while another may have it; a pool chosen
//! outside of the transaction that writes it (two volumes would get the same space); data destroyed
//! that somebody may have written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{AgentId, Cure, Stamp, VolumeId};
use serde_json::json;

use super::waits::Waiting;
use super::{AGAIN, AGENT_WAIT_MS, Facts, Flow, Next, volume_specs};
use crate::agents::calls::CallError;
use crate::agents::{Agent, Held};
use crate::domain::{Hints, HostImage};
use crate::error::Refusal;
use crate::rules::{Operation, specs};
use crate::schedule::capabilities::{self, BACKEND, Placed, Settings};
use crate::schedule::{self, Multipliers, NoPlace, Pool, PoolRef, Request};
use crate::store::{Abort, AgentRow, Db, Event, Kind, Place, SpecRow, Tried, VolumeRow};

/// Availability zone of agents that name none: Cinder's own default.
pub const ZONE_DEFAULT: &str = "nova";

/// Time for which the agent of a volume that was never sent to it may be down before another pool
/// is tried. Cinder takes a silent service for up for the same time.
pub const DOWN_MAX: Duration = Duration::from_mins(1);

/// Settings for the placement of volumes.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduler {
    /// Percentage of every pool that volumes must not take.
    pub reserved_percentage: u8,
    /// Largest multiple of a pool's space that thin volumes may be promised.
    pub max_over_subscription_ratio: f64,
    /// Weight of each weigher.
    pub multipliers: Multipliers,
    /// Zone of volumes whose request names none, and whose type is bound to none. `None`: any zone.
    pub default_zone: Option<String>,
    /// `true`: a volume that no pool can take is refused at once. `false`: it is accepted and ends
    /// in an error, as with Cinder.
    pub fast_fail: bool,
    /// Largest number of pools that are tried, with the first one.
    pub max_attempts: usize,
    /// `volume_backend_name` of agents (`agent`) and of single pools (`agent#pool`), where they
    /// have another one than the default.
    pub backend_names: BTreeMap<String, String>,
}

impl Default for Scheduler {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            reserved_percentage: settings.reserved_percentage,
            max_over_subscription_ratio: settings.max_over_subscription_ratio,
            multipliers: Multipliers::default(),
            default_zone: None,
            fast_fail: true,
            max_attempts: 3,
            backend_names: BTreeMap::new(),
        }
    }
}

/// Returns the zone of an agent.
pub(crate) fn zone_of(agent: &Agent) -> &str {
    agent.entry.zone.as_deref().unwrap_or(ZONE_DEFAULT)
}

/// Sums over a pool's volumes in the database: numbers of volumes of one size, or bytes in all.
/// Promised bytes are rounded up to whole extents, volume by volume.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    allocated: u64,
    promised: u64,
    volumes: u64,
}

/// Scope of a query for sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figures {
    /// Only the promises, which a choice needs. The cost does not depend on the number of volumes.
    Promises,
    /// Also the sums that are shown: they cover all volumes.
    All,
}

/// Returns the pools of the enrolled agents, by their last reports.
pub(crate) fn pools(facts: &Facts, db: &Db<'_>, figures: Figures) -> Result<Vec<Pool>, Abort> {
    let mut sums: BTreeMap<(AgentId, String), Vec<(u64, Sums)>> = BTreeMap::new();
    for row in db.promised()? {
        let part = Sums { promised: row.volumes, ..Sums::default() };
        sums.entry((row.agent, row.pool)).or_default().push((row.size_gib, part));
    }
    if figures == Figures::All {
        for row in db.taken()? {
            let part = Sums { allocated: row.volumes, volumes: row.volumes, ..Sums::default() };
            sums.entry((row.agent, row.pool)).or_default().push((row.size_gib, part));
        }
    }
    let mut pools = Vec::new();
    for row in db.agents()? {
        let Some(agent) = facts.agents.named(&row.name) else { continue };
        let Some(report) = &row.capabilities else { continue };
        let settings = settings(facts, &agent);
        let known = agent_of(&row, &agent, &settings, db, report);
        for reported in &report.pools {
            let parts = sums.remove(&(row.id, reported.name.clone())).unwrap_or_default();
            let sum = summed(&parts, reported.extent_bytes);
            let placed = Placed { allocated: sum.allocated, promised: sum.promised };
            let mut pool = capabilities::pool(&known, reported, placed);
            if figures == Figures::All {
                let provisioned = pool.capacity.provisioned.saturating_add(sum.promised);
                pool.capabilities
                    .insert("provisioned_capacity_gb".to_owned(), json!(schedule::gib(provisioned)));
                pool.capabilities.insert("total_volumes".to_owned(), json!(sum.volumes));
            }
            pools.push(pool);
        }
    }
    Ok(pools)
}

/// Converts an agent for `schedule`.
pub(crate) fn agent_of<'a>(
    row: &'a AgentRow,
    agent: &'a Agent,
    settings: &'a Settings,
    db: &Db<'_>,
    report: &'a mooring_api::v1::Capabilities,
) -> capabilities::Agent<'a> {
    capabilities::Agent {
        id: row.id,
        name: &row.name,
        software: &row.software,
        report,
        reported_at: row.reported_at.unwrap_or(std::time::UNIX_EPOCH),
        now: db.now,
        up: agent.is_up(),
        disabled: row.disabled.then(|| row.disabled_reason.as_deref().unwrap_or_default()),
        drained: row.drained,
        settings,
    }
}

/// Returns the configuration's settings for an agent's pools.
pub(crate) fn settings(facts: &Facts, agent: &Agent) -> Settings {
    let scheduler = &facts.options.scheduler;
    let (names, name) = (&scheduler.backend_names, agent.entry.name.as_str());
    let of_pool = |(place, named): (&String, &String)| {
        let pool = place.strip_prefix(name)?.strip_prefix('#')?;
        Some((pool.to_owned(), named.clone()))
    };
    Settings {
        backend_name: names.get(name).cloned().unwrap_or_else(|| BACKEND.to_owned()),
        pool_backend_names: names.iter().filter_map(of_pool).collect(),
        zone: zone_of(agent).to_owned(),
        reserved_percentage: scheduler.reserved_percentage,
        max_over_subscription_ratio: scheduler.max_over_subscription_ratio,
    }
}

fn summed(parts: &[(u64, Sums)], extent: u64) -> Sums {
    let extent = extent.max(1);
    parts.iter().fold(Sums::default(), |sum, (size_gib, part)| {
        let each = size_gib.saturating_mul(volume_specs::GIB).div_ceil(extent).saturating_mul(extent);
        Sums {
            allocated: sum
                .allocated
                .saturating_add(part.allocated.saturating_mul(size_gib.saturating_mul(volume_specs::GIB))),
            promised: sum.promised.saturating_add(part.promised.saturating_mul(each)),
            volumes: sum.volumes.saturating_add(part.volumes),
        }
    })
}

/// Makes the request of a volume for a pool. Hints about volumes that are gone name no agent.
pub(crate) fn request(
    facts: &Facts,
    db: &Db<'_>,
    size_gib: u32,
    specs: BTreeMap<String, String>,
    hints: &Hints,
) -> Result<Request, Abort> {
    let agents = |ids: &[VolumeId]| {
        let rows = ids.iter().map(|id| db.volume(*id)).collect::<Result<Vec<_>, _>>()?;
        let placed = rows.into_iter().flatten().filter(VolumeRow::is_placed);
        Ok::<_, Abort>(placed.map(|row| row.agent).collect::<BTreeSet<_>>())
    };
    let bound = specs::zones(&specs).is_some();
    let mut request = Request::new(u64::from(size_gib) * volume_specs::GIB, specs);
    let default = || facts.options.scheduler.default_zone.clone().filter(|_| !bound);
    request.zone = hints.zone.clone().or_else(default);
    if !hints.same_host.is_empty() {
        request.same_host = Some(agents(&hints.same_host)?);
    }
    request.different_host = agents(&hints.different_host)?;
    // A host that is not enrolled any more has no pool.
    let host = |of: &HostImage| facts.agents.by_name(&of.host).and_then(|agent| agent.id());
    request.host = hints.image.as_ref().map(|of| host(of).unwrap_or(AgentId::from_u128(0)));
    Ok(request)
}

/// Returns the best pool for a request; the inner error says why there is none.
pub(crate) fn choose(facts: &Facts, db: &Db<'_>, request: &Request) -> Result<Result<Place, NoPlace>, Abort> {
    // A type can ask for no other sums.
    let summed = request.specs.keys().any(|key| {
        let key = key.strip_prefix("capabilities:").unwrap_or(key);
        matches!(key, "allocated_capacity_gb" | "provisioned_capacity_gb" | "total_volumes")
    });
    let pools = pools(facts, db, if summed { Figures::All } else { Figures::Promises })?;
    let candidates = match schedule::choose(&pools, request, facts.options.scheduler.multipliers) {
        Ok(candidates) => candidates,
        Err(none) => return Ok(Err(none)),
    };
    let best = candidates.first().map(|candidate| Place {
        agent: candidate.pool.agent,
        pool: candidate.pool.name.clone(),
        zone: candidate.pool.zone.clone(),
        sent: candidate.pool.up,
    });
    Ok(best.ok_or(NoPlace { reported: true, rejected: Vec::new() }))
}

/// Returns the place of a volume that has none.
pub(crate) fn nowhere() -> Place {
    Place { agent: AgentId::from_u128(0), pool: String::new(), zone: ZONE_DEFAULT.to_owned(), sent: false }
}

/// Makes the request of a volume that was placed before, and failed.
fn again(facts: &Facts, db: &Db<'_>, volume: &VolumeRow) -> Result<Request, Abort> {
    let specs = db.extra_specs(volume.type_id)?;
    let mut request = request(facts, db, volume.size_gib, specs, &volume.hints)?;
    if volume.source.is_some() {
        // The volume shares blocks with its source: it can be nowhere else.
        request.pool = Some(PoolRef { agent: volume.agent, pool: volume.pool.clone() });
    }
    request.excluded = volume
        .tried
        .iter()
        .map(|tried| (PoolRef { agent: tried.agent, pool: tried.pool.clone() }, tried.why.clone()))
        .collect();
    Ok(request)
}

fn message(volume: &VolumeRow, max: usize, rest: &str) -> String {
    format!("a storage node could not make it (attempt {} of {max}): {rest}", volume.tried.len())
}

/// Consequence of a failed attempt.
enum Failed {
    /// The volume is removed there, and tried elsewhere.
    Leaves,
    /// No pool is left to try.
    Ends,
    /// The volume has changed meanwhile: nothing was done.
    Moot,
}

/// Stores why a pool could not make the volume. The volume leaves for another pool, or ends in an
/// error.
fn fail(facts: &Facts, db: &Db<'_>, seen: &VolumeRow, why: &str) -> Result<Failed, Abort> {
    let id = seen.id;
    let Some(mut volume) = db.volume(id)? else { return Ok(Failed::Moot) };
    let same = volume.agent == seen.agent && volume.pool == seen.pool && volume.operation == seen.operation;
    if !same || volume.is_leaving() || volume.review.is_some() {
        return Ok(Failed::Moot);
    }
    let max = facts.options.scheduler.max_attempts;
    if !volume.was_tried() {
        volume.tried.push(Tried { agent: volume.agent, pool: volume.pool.clone(), why: why.to_owned() });
        db.set_tried(id, &volume.tried)?;
    }
    let creating = volume.operation == Some(Operation::Creating);
    let next =
        creating && volume.tried.len() < max && choose(facts, db, &again(facts, db, &volume)?)?.is_ok();
    if next {
        let text = message(&volume, max, "another one is tried");
        db.keep_message(Event::Create, &volume.project, id, &text)?;
    } else {
        if creating {
            let text = message(&volume, max, "there is no other one");
            db.keep_message(Event::Create, &volume.project, id, &text)?;
        }
        db.set_operation(id, Some(Operation::Error), Some(why))?;
    }
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(if next { Failed::Leaves } else { Failed::Ends })
}

/// Puts a volume that its agent does not remove in error, unless the volume has changed meanwhile.
fn stay(db: &Db<'_>, seen: &VolumeRow, why: &str) -> Result<(), Abort> {
    let Some(volume) = db.volume(seen.id)? else { return Ok(()) };
    let same = volume.agent == seen.agent && volume.pool == seen.pool;
    if !same || !volume.is_leaving() || volume.review.is_some() {
        return Ok(());
    }
    db.set_operation(volume.id, Some(Operation::Error), Some(why))?;
    volume_specs::apply(db, volume.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Sends a volume that its agent has removed to the next pool. `at`: the tombstone that is in
/// force.
fn move_on(facts: &Facts, db: &Db<'_>, seen: &VolumeRow, at: &Stamp) -> Result<(), Abort> {
    let id = seen.id;
    let Some(volume) = db.volume(id)? else { return Ok(()) };
    let same = volume.agent == seen.agent && volume.pool == seen.pool;
    let stamp = db.spec_stamp(id, Kind::Volume)?;
    if !same || !volume.is_leaving() || volume.review.is_some() || stamp.as_ref() != Some(at) {
        return Ok(());
    }
    match choose(facts, db, &again(facts, db, &volume)?)? {
        Ok(place) => db.move_volume(id, &place)?,
        Err(none) => {
            tracing::info!(volume = %id, %none, "no other pool can take the volume");
            let text = message(&volume, facts.options.scheduler.max_attempts, "there is no other one");
            db.keep_message(Event::Create, &volume.project, id, &text)?;
            let why = volume.tried.last().map(|tried| tried.why.as_str());
            db.set_operation(id, Some(Operation::Error), why)?;
        }
    }
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Sends a volume to an agent that is up, if its own agent is down and was never sent it. Returns
/// when to ask again.
fn leave_unsent(facts: &Facts, db: &Db<'_>, seen: &VolumeRow) -> Result<Next, Abort> {
    let id = seen.id;
    let Some(mut volume) = db.volume(id)? else { return Ok(Next::Idle) };
    let same = volume.agent == seen.agent && volume.pool == seen.pool;
    let waits = volume.operation == Some(Operation::Creating) && volume.review.is_none();
    // A snapshot lies beside its volume.
    let stays = volume.snapshot_of.is_some();
    if !same || !waits || stays || volume.is_leaving() || db.may_be_sent(id)? {
        return Ok(Next::Idle);
    }
    let silent = facts.waits.waited_for(Waiting::Unsent(id, volume.agent));
    if let Some(left) = DOWN_MAX.checked_sub(silent).filter(|left| !left.is_zero()) {
        return Ok(Next::After(left));
    }
    let name = facts.agents.name_of(volume.agent);
    let why = format!("agent {name} was down for {} s, and was never asked", silent.as_secs());
    volume.tried.push(Tried { agent: volume.agent, pool: volume.pool.clone(), why });
    match choose(facts, db, &again(facts, db, &volume)?)? {
        Ok(place) if place.sent && volume.tried.len() < facts.options.scheduler.max_attempts => {
            db.set_tried(id, &volume.tried)?;
            db.move_volume(id, &place)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
            Ok(Next::Again)
        }
        _ => Ok(Next::After(DOWN_MAX)),
    }
}

impl Flow {
    /// Handles a pool that could not make the volume.
    pub(super) async fn creation_failed(
        self: &Arc<Self>,
        agent: &Held,
        volume: &VolumeRow,
        why: String,
    ) -> Result<Next, Refusal> {
        let id = volume.id;
        if let Some(next) = self.was_exported(agent, id).await? {
            return Ok(next);
        }
        if matches!(volume.operation, Some(Operation::Managing | Operation::ErrorManaging)) {
            return self.managing_failed(agent, volume, why).await;
        }
        tracing::warn!(volume = %id, agent = agent.entry.name, why, "a volume could not be made");
        let (facts, seen) = (self.facts.clone(), volume.clone());
        let write = move |db: &Db<'_>| fail(&facts, db, &seen, &why);
        let failed = agent.store.write("say why a volume is not made", write).await?;
        self.touch(id);
        Ok(match failed {
            Failed::Leaves | Failed::Moot => Next::Again,
            Failed::Ends => Next::Idle,
        })
    }

    /// Removes a volume where it could not be made, and sends it to the next pool after that.
    pub(super) async fn leave_pass(
        self: &Arc<Self>,
        agent: &Held,
        volume: &VolumeRow,
        tombstone: &SpecRow,
    ) -> Result<Next, Refusal> {
        let id = volume.id;
        if let Some(next) = self.was_exported(agent, id).await? {
            return Ok(next);
        }
        match self.put_volume(agent, volume, tombstone, AGENT_WAIT_MS).await {
            Ok(true) => {}
            Ok(false) => return Ok(Next::After(AGAIN)),
            Err(CallError::Stale(text)) => return self.review(agent, id, &text).await,
            Err(CallError::Refused { text, cure, .. }) if cure != Cure::Retry => {
                let seen = volume.clone();
                let write = move |db: &Db<'_>| stay(db, &seen, &text);
                agent.store.write("say why a volume is not taken away", write).await?;
                self.touch(id);
                return Ok(Next::Idle);
            }
            Err(error) => {
                tracing::warn!(volume = %id, %error, "a volume is not taken away yet");
                return Ok(Next::After(AGAIN));
            }
        }
        let (facts, seen, at) = (self.facts.clone(), volume.clone(), tombstone.stamp.clone());
        let write = move |db: &Db<'_>| move_on(&facts, db, &seen, &at);
        agent.store.write("put a volume on another pool", write).await?;
        // Another controller may drive the agent there.
        self.notes.spec_changed(id);
        self.touch(id);
        Ok(Next::Again)
    }

    /// Puts a volume in review if its agent stores an export of it while it is only being created
    /// here: this database is an older state, and there may be data. `None`: the agent stores none.
    async fn was_exported(self: &Arc<Self>, agent: &Held, id: VolumeId) -> Result<Option<Next>, Refusal> {
        if agent.export_stamp(id).is_none() {
            return Ok(None);
        }
        let why = format!("agent {} keeps an export of it, and here it is only being made", agent.entry.name);
        self.review(agent, id, &why).await.map(Some)
    }

    /// Handles a volume whose agent is down. A volume that was never sent may go elsewhere; any
    /// other waits.
    pub(super) async fn unreachable_pass(self: &Arc<Self>, volume: &VolumeRow) -> Result<Next, Refusal> {
        if volume.operation != Some(Operation::Creating) || !volume.is_placed() {
            return Ok(Next::Idle);
        }
        let (facts, seen) = (self.facts.clone(), volume.clone());
        let write = move |db: &Db<'_>| leave_unsent(&facts, db, &seen);
        let next = self.unleased.write("look for another pool", write).await?;
        if matches!(next, Next::Again) {
            self.notes.spec_changed(volume.id);
            self.touch(volume.id);
        }
        Ok(next)
    }

    /// Marks the volume as sent, before the first call that may bring it to its agent. `false`: its
    /// place has changed.
    pub(super) async fn mark_sent(&self, agent: &Held, volume: &VolumeRow) -> Result<bool, Refusal> {
        let (id, at, pool) = (volume.id, volume.agent, volume.pool.clone());
        let write = move |db: &Db<'_>| Ok(db.mark_sent(id, at, &pool)?);
        agent.store.write("send a volume", write).await
    }
}

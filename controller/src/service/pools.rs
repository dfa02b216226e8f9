//! Shows the scheduler's knowledge: pools, capabilities, zones, and how a volume came to its place.
//!
//! What must never happen here: a pool shown otherwise than the scheduler sees it; a pool's numbers
//! shown to a caller who may not list pools.

use std::collections::BTreeMap;

use mooring_model::VolumeId;
use serde_json::Value;

use super::{Refusal, Service, types, view, volumes};
use crate::domain::{Caller, Placement, PoolFilter, PoolState, VolumeType, Zone};
use crate::flow::place::{self, Figures, ZONE_DEFAULT, zone_of};
use crate::policy::Target;
use crate::rules::{is_multiattach, specs};
use crate::schedule::Pool;
use crate::schedule::capabilities::{self, BACKEND};
use crate::store::Db;

/// Policy for listing pools. A caller who passes it may also read why no pool can take a volume.
pub(super) const GET_POOLS: &str = "scheduler_extension:scheduler_stats:get_pools";

/// `true` if a pool could have volumes of a type, apart from its space.
fn suits(pool: &Pool, volume_type: &VolumeType) -> bool {
    let zones = specs::zones(&volume_type.extra_specs);
    zones.is_none_or(|zones| zones.contains(&pool.zone.as_str()))
        && (pool.multiattach || !is_multiattach(&volume_type.extra_specs))
        && specs::unsatisfied(&pool.capabilities, &volume_type.extra_specs).is_none()
}

fn passes(pool: &Pool, filter: &[(String, String)]) -> bool {
    filter.iter().all(|(key, wanted)| match key.as_str() {
        "name" => pool.full_name() == *wanted,
        key => pool.capabilities.get(key).is_some_and(|value| capabilities::equals(value, wanted)),
    })
}

impl Service {
    /// The pools as last reported, sorted by name.
    pub async fn pools(&self, caller: &Caller, filter: PoolFilter) -> Result<Vec<PoolState>, Refusal> {
        self.facts.policies().check(GET_POOLS, caller, &Target::default())?;
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let wanted = match &filter.volume_type {
                Some(name) => Some(types::find(db, &caller, name)?),
                None => None,
            };
            let mut pools = place::pools(&facts, db, Figures::All)?;
            pools.retain(|pool| {
                passes(pool, &filter.equal) && wanted.as_ref().is_none_or(|wanted| suits(pool, wanted))
            });
            pools.sort_by_cached_key(Pool::full_name);
            let state = |pool: &Pool| PoolState {
                name: pool.full_name(),
                capabilities: capabilities::shown(&pool.capabilities),
            };
            Ok(pools.iter().map(state).collect())
        };
        self.store.read("list pools", read).await
    }

    /// Capabilities of a storage agent (`host@lvm`), as it last reported them.
    pub async fn capabilities(&self, caller: &Caller, host: &str) -> Result<Value, Refusal> {
        self.facts.policies().check("volume_extension:capabilities", caller, &Target::default())?;
        let shown: String = host.chars().take(super::TEXT_CHARS_MAX).collect();
        let missing = Refusal::NotFound { kind: "Service", what: shown };
        let name = host.strip_suffix(BACKEND).and_then(|host| host.strip_suffix('@'));
        let enrolled = name.and_then(|name| self.facts.agents.named(name));
        let Some(agent) = enrolled else { return Err(missing) };
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let Some(row) = db.agent_named(&agent.entry.name)? else { return Ok(None) };
            let settings = place::settings(&facts, &agent);
            let report = row.capabilities.as_ref().filter(|report| !report.pools.is_empty());
            Ok(report
                .map(|report| capabilities::of_host(&place::agent_of(&row, &agent, &settings, db, report))))
        };
        self.store.read("read an agent's capabilities", read).await?.ok_or(missing)
    }

    /// The availability zones of the enrolled agents, by name.
    pub async fn zones(&self, _caller: &Caller) -> Result<Vec<Zone>, Refusal> {
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let rows = db.agents()?;
            let mut zones: BTreeMap<&str, bool> = BTreeMap::new();
            let all = facts.agents.all();
            for agent in all.iter() {
                let row = rows.iter().find(|row| row.name == agent.entry.name);
                let serves = row.is_some_and(|row| {
                    let has_pools = row.capabilities.as_ref().is_some_and(|report| !report.pools.is_empty());
                    has_pools && !row.disabled && !row.drained
                });
                *zones.entry(zone_of(agent)).or_default() |= serves && agent.is_up();
            }
            if zones.is_empty() {
                // Clients take a list without zones for a broken service.
                zones.insert(ZONE_DEFAULT, false);
            }
            let zone = |(name, available): (&str, bool)| Zone { name: name.to_owned(), available };
            Ok(zones.into_iter().map(zone).collect())
        };
        self.store.read("list zones", read).await
    }

    /// The record of how a volume came to its place.
    pub async fn placement(&self, caller: &Caller, id: VolumeId) -> Result<Placement, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let row = volumes::find(&facts, db, &caller, id)?;
            facts.policies().check(
                "volume_extension:volume_host_attribute",
                &caller,
                &volumes::target(&row),
            )?;
            let tried = row
                .tried
                .iter()
                .map(|tried| (view::pool_name(&facts, tried.agent, &tried.pool), tried.why.clone()));
            Ok(Placement {
                volume: id,
                tried: tried.collect(),
                pool: row.is_placed().then(|| view::pool_name(&facts, row.agent, &row.pool)),
                hints: row.hints,
                zone: row.zone,
            })
        };
        self.store.read("read a volume's place", read).await
    }
}

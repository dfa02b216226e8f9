//! `[scheduler]`, and the zones of agents.

use std::collections::BTreeMap;

use mooring_model::PoolName;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, File};
use crate::domain::is_zone;
use crate::schedule::Multipliers;
use crate::service::{AgentEntry, Scheduler, ZONE_DEFAULT};

/// The most attempts that make sense: each one waits for an agent.
const ATTEMPTS_MAX: u32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScheduler {
    reserved_percentage: Option<Spanned<i64>>,
    max_over_subscription_ratio: Option<Spanned<f64>>,
    free_capacity_multiplier: Option<Spanned<f64>>,
    volumes_multiplier: Option<Spanned<f64>>,
    default_zone: Option<Spanned<String>>,
    fast_fail: Option<bool>,
    max_attempts: Option<Spanned<i64>>,
}

/// Reads a zone's name. It has no comma: types list several zones with commas.
pub(super) fn zone(file: &File<'_>, text: &Spanned<String>, key: &str) -> Result<String, ConfigError> {
    let zone = text.get_ref();
    if !is_zone(zone) {
        let why = format!("{key}: {zone:?} is no zone: want 1 to 255 characters without commas");
        return Err(file.wrong(&text.span(), why));
    }
    Ok(zone.clone())
}

/// Reads the names by which types choose: each of an agent's pools, or of one pool (`agent#pool`).
/// `others_join`: agents of other names may join.
pub(super) fn backend_names(
    file: &File<'_>,
    raw: &BTreeMap<String, Spanned<String>>,
    agents: &[AgentEntry],
    others_join: bool,
) -> Result<BTreeMap<String, String>, ConfigError> {
    for (place, name) in raw {
        let wrong = |why: String| Err(file.wrong(&name.span(), format!("backend_names: {place:?}: {why}")));
        let (agent, pool) =
            place.split_once('#').map_or((place.as_str(), None), |(agent, pool)| (agent, Some(pool)));
        if agent.is_empty() || pool.is_some_and(|pool| pool.parse::<PoolName>().is_err()) {
            return wrong("want AGENT or AGENT#POOL, as \"node1\" or \"node1#vg0:thin\"".to_owned());
        }
        if !others_join && agents.iter().all(|known| known.name != agent) {
            return wrong("no such agent is in [[agents]]: want a name from there".to_owned());
        }
        let text = name.get_ref();
        let fits = (1..=255).contains(&text.chars().count()) && text.trim() == text;
        if !fits || text.chars().any(char::is_control) {
            return wrong(format!(
                "{text:?} is no name: want 1 to 255 characters, no space at either end, and no control character"
            ));
        }
    }
    Ok(raw.iter().map(|(place, name)| (place.clone(), name.get_ref().clone())).collect())
}

fn multiplier(
    file: &File<'_>,
    number: Option<&Spanned<f64>>,
    key: &str,
    default: f64,
) -> Result<f64, ConfigError> {
    match number {
        None => Ok(default),
        Some(number) if number.get_ref().is_finite() => Ok(*number.get_ref()),
        Some(number) => Err(file.wrong(&number.span(), format!("scheduler.{key}: want a finite number"))),
    }
}

pub(super) fn scheduler(
    file: &File<'_>,
    raw: Option<&Spanned<RawScheduler>>,
    agents: &[AgentEntry],
) -> Result<Scheduler, ConfigError> {
    let default = Scheduler::default();
    let Some(raw) = raw.map(Spanned::get_ref) else { return Ok(default) };
    let reserved_percentage = match &raw.reserved_percentage {
        None => default.reserved_percentage,
        Some(number) => u8::try_from(*number.get_ref())
            .ok()
            .filter(|percent| *percent <= 100)
            .ok_or_else(|| file.wrong(&number.span(), "scheduler.reserved_percentage: want 0 to 100"))?,
    };
    let max_over_subscription_ratio = match &raw.max_over_subscription_ratio {
        None => default.max_over_subscription_ratio,
        Some(ratio) if ratio.get_ref().is_finite() && *ratio.get_ref() >= 1.0 => *ratio.get_ref(),
        Some(ratio) => {
            let why = "scheduler.max_over_subscription_ratio: want a number that is 1.0 or more";
            return Err(file.wrong(&ratio.span(), why));
        }
    };
    let max_attempts = match &raw.max_attempts {
        None => default.max_attempts,
        Some(number) => {
            let known = u32::try_from(*number.get_ref()).ok().filter(|n| (1..=ATTEMPTS_MAX).contains(n));
            let known = known.and_then(|n| usize::try_from(n).ok());
            known.ok_or_else(|| {
                file.wrong(&number.span(), format!("scheduler.max_attempts: want 1 to {ATTEMPTS_MAX}"))
            })?
        }
    };
    let Multipliers { free_capacity, volumes } = default.multipliers;
    let free = raw.free_capacity_multiplier.as_ref();
    Ok(Scheduler {
        reserved_percentage,
        max_over_subscription_ratio,
        multipliers: Multipliers {
            free_capacity: multiplier(file, free, "free_capacity_multiplier", free_capacity)?,
            volumes: multiplier(file, raw.volumes_multiplier.as_ref(), "volumes_multiplier", volumes)?,
        },
        default_zone: raw.default_zone.as_ref().map(|zone| default_zone(file, zone, agents)).transpose()?,
        fast_fail: raw.fast_fail.unwrap_or(default.fast_fail),
        max_attempts,
        backend_names: default.backend_names,
    })
}

/// Reads the default zone. Refuses one without agents: it would refuse every volume whose creator
/// names no zone.
fn default_zone(
    file: &File<'_>,
    text: &Spanned<String>,
    agents: &[AgentEntry],
) -> Result<String, ConfigError> {
    let zone = zone(file, text, "scheduler.default_zone")?;
    let mut zones: Vec<_> =
        agents.iter().map(|agent| agent.zone.as_deref().unwrap_or(ZONE_DEFAULT)).collect();
    zones.sort_unstable();
    zones.dedup();
    if !zones.is_empty() && !zones.contains(&zone.as_str()) {
        let known = zones.join(", ");
        let why = format!("scheduler.default_zone: no agent is in {zone:?}; the agents' zones: {known}");
        return Err(file.wrong(&text.span(), why));
    }
    Ok(zone)
}

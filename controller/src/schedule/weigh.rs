//! The order among pools that can all take a volume.
//!
//! The numbers of each weigher are stretched over 0 to 1 and multiplied; the sums decide. Pools of
//! agents that are down come last, whatever their weight; equal ones are ordered by their names.
//!
//! A volume whose type says nothing about provisioning goes to a pool that has all of its space
//! now, and there to a thin one, whatever the weights: only thin volumes have snapshots.
//!
//! What must never happen here: an order that depends on the order of the reports; a pool that is
//! left out; a thin pool preferred for space that it has promised and does not have.

use super::pool::Pool;
use super::{Candidate, Request};

/// Weight of each weigher. A negative one prefers small numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// Weight of the physical space that is left: of a thin pool, what no volume has written to.
    /// Positive spreads volumes, negative stacks them.
    pub free_capacity: f64,
    /// Weight of the number of volumes. Negative spreads volumes.
    pub volumes: f64,
}

impl Default for Multipliers {
    /// Free capacity leads. The number of volumes has a tenth of its weight: with the same weight,
    /// the larger of two pools and the emptier one would be equal, whatever their sizes.
    fn default() -> Self {
        Self { free_capacity: 1.0, volumes: -0.1 }
    }
}

/// Orders the pools, best first.
pub(super) fn order<'a>(
    pools: Vec<&'a Pool>,
    request: &Request,
    multipliers: Multipliers,
) -> Vec<Candidate<'a>> {
    let free: Vec<_> = pools.iter().map(|pool| free(pool, request)).collect();
    let volumes: Vec<_> = pools.iter().map(|pool| Some(count(pool.volumes))).collect();
    let free = weighed(&free, multipliers.free_capacity);
    let volumes = weighed(&volumes, multipliers.volumes);
    let weights = free.into_iter().zip(volumes).map(|(free, volumes)| free + volumes);
    let mut candidates: Vec<_> =
        pools.into_iter().zip(weights).map(|(pool, weight)| Candidate { pool, weight }).collect();
    candidates.sort_by_cached_key(|candidate| candidate.pool.full_name());
    let rank = |one: &Candidate<'_>| (one.pool.up, preference(one.pool, request));
    candidates.sort_by(|a, b| rank(b).cmp(&rank(a)).then(b.weight.total_cmp(&a.weight)));
    candidates
}

/// Returns whether the pool has all of the volume's space now, and whether the volume would be thin
/// there. Types that say one or the other get what they say, from whichever pool has more room.
fn preference(pool: &Pool, request: &Request) -> (bool, bool) {
    if request.provisioning.is_some() {
        return (true, true);
    }
    (pool.capacity.holds_now(request.bytes), pool.capacity.would_be_thin(None))
}

/// Returns the physical space that is left. Promises count, so that volumes spread between two
/// reports.
fn free(pool: &Pool, request: &Request) -> Option<f64> {
    let capacity = &pool.capacity;
    let promised = if capacity.would_be_thin(request.provisioning) { capacity.promised } else { 0 };
    capacity.physical(request.provisioning).map(|left| count(left.saturating_sub(promised)))
}

#[allow(clippy::cast_precision_loss, reason = "only compared, after division by a range")]
fn count(number: u64) -> f64 {
    number as f64
}

/// Stretches numbers over 0 to 1 and multiplies them. An unknown number weighs as the worst known
/// one.
fn weighed(numbers: &[Option<f64>], multiplier: f64) -> Vec<f64> {
    let known = || numbers.iter().flatten().copied();
    let least = known().fold(f64::INFINITY, f64::min);
    let range = known().fold(f64::NEG_INFINITY, f64::max) - least;
    let worst = if multiplier < 0.0 { 1.0 } else { 0.0 };
    let stretched = |number: &Option<f64>| match number {
        Some(number) if range > 0.0 => (number - least) / range,
        // All are equal: none is preferred.
        Some(_) => 0.0,
        None => worst,
    };
    numbers.iter().map(|number| stretched(number) * multiplier).collect()
}

//! Choice of a volume's pool. Pure: from the pools as they were last reported.
//!
//! [`choose`] asks every [`Filter`] about every [`Pool`] and orders those that pass; the caller
//! takes the first and keeps the others in case it fails. [`fits`] asks about one pool, for a
//! retype. [`specs`](crate::rules::specs) reads extra specs, [`capabilities`] translates a report
//! to the words of the API.
//!
//! What must never happen here: I/O; a pool chosen that a filter refuses; a verdict that depends on
//! the order of the reports; a missing report taken for "no".

pub mod capabilities;
mod filters;
mod pool;
mod weigh;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mooring_model::AgentId;

pub use self::filters::Filter;
pub use self::pool::{Capacity, Pool, PoolRef, Provisioning, Space, gib};
pub use self::weigh::Multipliers;
use crate::rules::types;

/// Longest text of a refusal, in bytes: people read it, and there may be hundreds of pools.
pub const MESSAGE_BYTES_MAX: usize = 1000;

/// Longest reason for one pool, in bytes.
const REASON_BYTES_MAX: usize = 240;

/// Demands of a volume on its pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// The volume's size in bytes.
    pub bytes: u64,
    /// The extra specs of the volume's type.
    pub specs: BTreeMap<String, String>,
    /// `true`: hosts are to share the volume.
    pub multiattach: bool,
    /// Thin or thick. `None`: either.
    pub provisioning: Option<Provisioning>,
    /// The availability zone that the caller named.
    pub zone: Option<String>,
    /// The hint `same_host`: the agents of those volumes. `None`: there is no hint. Empty: none of
    /// those volumes is anywhere.
    pub same_host: Option<BTreeSet<AgentId>>,
    /// The hint `different_host`: the agents of those volumes.
    pub different_host: BTreeSet<AgentId>,
    /// Only this agent is allowed: it has the image for the volume. `None`: any agent.
    pub host: Option<AgentId>,
    /// Pools that were tried before, with the reasons why they failed.
    pub excluded: BTreeMap<PoolRef, String>,
    /// Only this pool is allowed. `None`: any pool.
    pub pool: Option<PoolRef>,
    /// The pool that has the volume already, and needs no space for it (retype).
    pub resides: Option<PoolRef>,
}

impl Request {
    /// Makes the request for a volume of this size with the type's extra specs. Leaves the rest
    /// open.
    pub fn new(bytes: u64, mut specs: BTreeMap<String, String>) -> Self {
        let multiattach = types::is_multiattach(&specs);
        // A pool that can share volumes takes others, too: a plain no demands nothing.
        specs.retain(|key, _| multiattach || key != types::MULTIATTACH);
        Self {
            bytes,
            multiattach,
            provisioning: specs.get(Provisioning::SPEC).and_then(|word| Provisioning::from_word(word)),
            specs,
            ..Self::default()
        }
    }
}

/// A pool that can take the volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Weight of the pool: the more the better, among pools that are equally up.
    pub weight: f64,
}

/// The pools that can take a volume, best first and at least one; or the reason why there is none.
pub type Verdict<'a> = Result<Vec<Candidate<'a>>, NoPlace>;

/// Orders the pools that can take the request.
pub fn choose<'a>(pools: &'a [Pool], request: &Request, multipliers: Multipliers) -> Verdict<'a> {
    let mut fitting = Vec::new();
    let mut rejected = Vec::new();
    for pool in pools {
        match fits(pool, request) {
            Ok(()) => fitting.push(pool),
            Err(why) => rejected.push(why),
        }
    }
    if fitting.is_empty() {
        rejected.sort_by(|a, b| a.pool.cmp(&b.pool));
        let reported = pools.iter().any(|pool| pool.age.is_some());
        return Err(NoPlace { reported, rejected });
    }
    Ok(weigh::order(fitting, request, multipliers))
}

/// Checks that one pool can take the request.
pub fn fits(pool: &Pool, request: &Request) -> Result<(), Rejected> {
    let refusal = Filter::ALL.into_iter().find_map(|filter| Some((filter, filter.refuses(pool, request)?)));
    match refusal {
        None => Ok(()),
        Some((filter, why)) => Err(Rejected { pool: pool.full_name(), filter, why: cut(why) }),
    }
}

fn cut(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push('…');
    }
    text
}

/// A pool that cannot take a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pool}: {filter}: {why}")]
pub struct Rejected {
    /// Name of the pool in the API.
    pub pool: String,
    /// The filter that refused it.
    pub filter: Filter,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No pool can take the volume. The text has the reason of each pool, as far as there is room, for
/// readers who may see pools (logs, admins). Others get [`NoPlace::summary`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct NoPlace {
    /// `true`: some pool has been reported, so the answer is a verdict (400). `false`: nobody knows
    /// yet (503).
    pub reported: bool,
    /// The refusals, by the pool's name.
    pub rejected: Vec<Rejected>,
}

const UNREPORTED: &str = "no storage agent has reported its pools yet: try again";

impl NoPlace {
    /// Counts the pools that each filter refused: names no pool and none of its numbers.
    pub fn summary(&self) -> String {
        if !self.reported {
            return UNREPORTED.to_owned();
        }
        let mut counts = BTreeMap::<Filter, usize>::new();
        for rejected in &self.rejected {
            *counts.entry(rejected.filter).or_default() += 1;
        }
        let counts: Vec<_> =
            counts.into_iter().map(|(filter, pools)| format!("{filter} ({pools} refused)")).collect();
        format!("No valid backend was found: {}", counts.join(", "))
    }
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.reported {
            return f.write_str(UNREPORTED);
        }
        let mut text = "No valid backend was found".to_owned();
        for (n, rejected) in self.rejected.iter().enumerate() {
            let part = format!("{} {rejected}", if n == 0 { ":" } else { ";" });
            // Room is kept for the words that tell how many are left out.
            if text.len() + part.len() > MESSAGE_BYTES_MAX - 40 {
                return write!(f, "{text}; and {} more pools", self.rejected.len() - n);
            }
            text.push_str(&part);
        }
        f.write_str(&text)
    }
}

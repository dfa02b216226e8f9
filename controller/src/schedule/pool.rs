//! A pool as it was last reported, and the arithmetic of its space.
//!
//! What must never happen here: a volume promised where its whole extents do not fit; space counted
//! twice, in the report of an agent and in the promises of the controller; arithmetic that wraps.

use std::time::Duration;

use mooring_model::AgentId;

use crate::rules::specs::Capabilities;

const GIB: f64 = 1_073_741_824.0;

/// An amount of space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Bytes.
    Bytes(u64),
    /// As much as anybody could want.
    Infinite,
    /// Not known.
    Unknown,
}

impl Space {
    /// Returns the bytes. `None`: infinite or unknown.
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Infinite | Self::Unknown => None,
        }
    }
}

/// Way in which a volume takes its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provisioning {
    /// All at once.
    Thick,
    /// As it is written.
    Thin,
}

impl Provisioning {
    /// The extra spec that demands one of them.
    pub const SPEC: &str = "provisioning:type";

    /// Reads that spec's value. `None`: either will do.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "thick" => Some(Self::Thick),
            "thin" => Some(Self::Thin),
            _ => None,
        }
    }

    /// Returns the word of the spec.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Thick => "thick",
            Self::Thin => "thin",
        }
    }
}

/// The space of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// All of the space.
    pub total: Space,
    /// The space that no volume has taken.
    pub free: Space,
    /// Bytes of the volumes that this control plane has put there.
    pub allocated: u64,
    /// Sum of the sizes of all volumes there, in bytes.
    pub provisioned: u64,
    /// Bytes of volumes that are placed there and not in the report yet.
    pub promised: u64,
    /// Bytes of one extent: volumes take whole extents. 0 counts as 1.
    pub extent: u64,
    /// Percentage of the total that volumes must not take, 0 to 100.
    pub reserved_percentage: u8,
    /// Largest multiple of the total that thin volumes may be promised.
    pub max_over_subscription_ratio: f64,
    /// `true`: thin volumes can be made.
    pub thin: bool,
    /// `true`: thick volumes can be made.
    pub thick: bool,
    /// Reason why the pool takes no new volume, snapshot or growth, however much of it is free, by
    /// its agent's report. `None`: it takes them.
    pub closed: Option<String>,
}

impl Capacity {
    /// Returns the bytes that a volume of this size takes. `None`: more than can be counted.
    pub fn whole_extents(&self, bytes: u64) -> Option<u64> {
        let extent = self.extent.max(1);
        bytes.div_ceil(extent).checked_mul(extent)
    }

    /// Returns `true` if a volume would be thin there: it is, where thin is possible and thick is
    /// not demanded.
    pub fn would_be_thin(&self, provisioning: Option<Provisioning>) -> bool {
        self.thin && provisioning != Some(Provisioning::Thick)
    }

    fn reserved(&self, total: u64) -> u64 {
        let reserved = u128::from(total) * u128::from(self.reserved_percentage.min(100)) / 100;
        u64::try_from(reserved).unwrap_or(total)
    }

    /// Returns the bytes that can still be given to volumes, as thin or thick ones. `None`:
    /// unknown, or infinite.
    pub fn available(&self, provisioning: Option<Provisioning>) -> Option<u64> {
        let (total, free) = (self.total.bytes()?, self.free.bytes()?);
        let reserved = self.reserved(total);
        let usable = total.saturating_sub(reserved);
        let taken = self.provisioned.saturating_add(self.promised);
        if !self.would_be_thin(provisioning) {
            let left = free.saturating_sub(self.promised).saturating_sub(reserved);
            return Some(left.min(usable.saturating_sub(taken)));
        }
        // Two bounds: the sum of all thin volumes' sizes, and the physical space that is left. A
        // promise takes its part of both as a thin volume: none of its blocks is written yet.
        let virtual_total = scaled(usable, self.max_over_subscription_ratio);
        let virtual_left = scaled(free.saturating_sub(reserved), self.max_over_subscription_ratio);
        Some(virtual_left.saturating_sub(self.promised).min(virtual_total.saturating_sub(taken)))
    }

    /// Returns the bytes that can be written there now. `None`: unknown, or infinite. A thin volume
    /// that is promised has written nothing yet: only what is written counts in a thin pool.
    pub fn physical(&self, provisioning: Option<Provisioning>) -> Option<u64> {
        if !self.would_be_thin(provisioning) {
            return self.available(provisioning);
        }
        let (total, free) = (self.total.bytes()?, self.free.bytes()?);
        Some(free.saturating_sub(self.reserved(total)))
    }

    /// Returns `true` if a volume of this size could be written from end to end now. A pool that
    /// cannot tell its space is believed to have enough.
    pub fn holds_now(&self, bytes: u64) -> bool {
        let Some(left) = self.physical(None) else { return true };
        self.whole_extents(bytes).is_some_and(|needed| needed <= left)
    }

    /// Returns the reason why a volume of this size has no place there. `None`: it has.
    pub fn refuses(&self, bytes: u64, provisioning: Option<Provisioning>) -> Option<String> {
        if self.closed.is_some() {
            return self.closed.clone();
        }
        // A pool that cannot tell its free space is believed to have enough.
        self.free.bytes()?;
        let Some(total) = self.total.bytes() else {
            // A share of an unknown total cannot be kept free.
            return (self.reserved_percentage > 0).then(|| {
                format!("{} % of it are reserved, and its total is not known", self.reserved_percentage)
            });
        };
        let thin = self.would_be_thin(provisioning);
        let ratio = self.max_over_subscription_ratio;
        if thin && (ratio.is_nan() || ratio < 1.0) {
            return Some(format!("its max_over_subscription_ratio is {ratio}, and must be 1 at least"));
        }
        let available = self.available(provisioning).unwrap_or(0);
        match self.whole_extents(bytes) {
            Some(needed) if needed <= available && total > 0 => None,
            _ => Some(format!(
                "{} GiB are wanted, and {} of {} GiB can be given{}{}",
                gib(bytes),
                gib(available),
                gib(total),
                if thin { " as thin volumes" } else { "" },
                match self.reserved_percentage {
                    0 => String::new(),
                    percent => format!(" with {percent} % reserved"),
                }
            )),
        }
    }
}

/// Multiplies a number of bytes by a ratio, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "rounded down and within bounds: a cast to an integer saturates"
)]
fn scaled(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 * ratio.max(0.0)).floor() as u64
}

/// Converts bytes to GiB with at most two decimals, rounded down: never more than there is.
#[allow(clippy::cast_precision_loss, reason = "two decimals are wanted")]
pub fn gib(bytes: u64) -> f64 {
    (bytes as f64 / GIB * 100.0).floor() / 100.0
}

/// A pool as it was last reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// The pool's agent.
    pub agent: AgentId,
    /// The agent's name and back end, as `host@backend`.
    pub host: String,
    /// The pool's own name.
    pub name: String,
    /// The agent's availability zone.
    pub zone: String,
    /// Age of the report. `None`: there has never been one.
    pub age: Option<Duration>,
    /// `true`: the agent answers.
    pub up: bool,
    /// Reason why the agent's service is disabled. `None`: it is enabled.
    pub disabled: Option<String>,
    /// `true`: the agent is being emptied.
    pub drained: bool,
    /// Reason why the pool has failed, by its agent's report. `None`: it has not.
    pub failed: Option<String>,
    /// `true`: it can serve a volume to many hosts.
    pub multiattach: bool,
    /// The pool's space.
    pub capacity: Capacity,
    /// Number of its volumes.
    pub volumes: u64,
    /// The capabilities that extra specs are matched against (`capabilities::of_pool`).
    pub capabilities: Capabilities,
}

impl Pool {
    /// Returns its name in the API: `host@backend#pool`. Unique, as agents' names are.
    pub fn full_name(&self) -> String {
        format!("{}#{}", self.host, self.name)
    }

    /// Returns `true` if `other` names this pool.
    pub fn is(&self, other: &PoolRef) -> bool {
        self.agent == other.agent && self.name == other.pool
    }
}

/// Reference to a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolRef {
    /// The pool's agent.
    pub agent: AgentId,
    /// The pool's own name.
    pub pool: String,
}

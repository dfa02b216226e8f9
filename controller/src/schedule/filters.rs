//! The filters: each looks at one pool and one request, and returns why the pool is refused.
//!
//! What must never happen here: a filter that looks at other pools, or at their order; a reason
//! that contains anything but names and numbers of the pool and of the request.

use super::Request;
use super::pool::{Pool, Provisioning};
use crate::rules::specs;

/// A filter. They are asked in this order, and the first that refuses gives the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filter {
    /// The pool is reported, enabled, not being emptied, and has not failed. (A pool whose agent is
    /// down is only the last choice.)
    State,
    /// The pool is the requested one.
    Requested,
    /// The pool was not tried before.
    Excluded,
    /// The pool is in the requested zone, and in one of the type's.
    AvailabilityZone,
    /// The pool has the capabilities that the type demands.
    Capabilities,
    /// The pool is, or is not, at the agents of other volumes.
    Affinity,
    /// The pool has the space.
    Capacity,
}

impl Filter {
    /// All filters, in order.
    pub const ALL: [Self; 7] = [
        Self::State,
        Self::Requested,
        Self::Excluded,
        Self::AvailabilityZone,
        Self::Capabilities,
        Self::Affinity,
        Self::Capacity,
    ];

    /// Returns its name, for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Requested => "requested pool",
            Self::Excluded => "tried before",
            Self::AvailabilityZone => "availability zone",
            Self::Capabilities => "capabilities",
            Self::Affinity => "affinity",
            Self::Capacity => "capacity",
        }
    }

    /// Returns the reason why this pool cannot take this request. `None`: this filter allows it.
    pub fn refuses(self, pool: &Pool, request: &Request) -> Option<String> {
        match self {
            Self::State => state(pool),
            Self::Requested => request
                .pool
                .as_ref()
                .filter(|wanted| !pool.is(wanted))
                .map(|wanted| format!("the pool {} is asked for", wanted.pool)),
            Self::Excluded => {
                request.excluded.iter().find(|(tried, _)| pool.is(tried)).map(|(_, why)| why.clone())
            }
            Self::AvailabilityZone => zone(pool, request),
            Self::Capabilities => capabilities(pool, request),
            Self::Affinity => affinity(pool, request),
            // A volume that is there already needs no space.
            Self::Capacity if request.resides.as_ref().is_some_and(|place| pool.is(place)) => None,
            Self::Capacity => pool.capacity.refuses(request.bytes, request.provisioning),
        }
    }
}

fn state(pool: &Pool) -> Option<String> {
    if pool.age.is_none() {
        return Some("its agent has never reported".to_owned());
    }
    if let Some(why) = &pool.disabled {
        return Some(if why.is_empty() { "disabled".to_owned() } else { format!("disabled: {why}") });
    }
    if let Some(why) = &pool.failed {
        return Some(format!("it has failed: {why}"));
    }
    pool.drained.then(|| "its agent is being emptied".to_owned())
}

fn zone(pool: &Pool, request: &Request) -> Option<String> {
    let elsewhere = |wanted: &str| Some(format!("it is in zone {}, and {wanted} is wanted", pool.zone));
    if let Some(wanted) = request.zone.as_deref().filter(|wanted| *wanted != pool.zone) {
        return elsewhere(wanted);
    }
    match specs::zones(&request.specs) {
        Some(zones) if !zones.contains(&pool.zone.as_str()) => elsewhere(&zones.join(" or ")),
        _ => None,
    }
}

fn capabilities(pool: &Pool, request: &Request) -> Option<String> {
    if request.multiattach && !pool.multiattach {
        return Some("it cannot serve a volume to many hosts (multiattach)".to_owned());
    }
    // A demand that is not met would show only when the disk is full.
    let missing = request.provisioning.filter(|provisioning| match provisioning {
        Provisioning::Thin => !pool.capacity.thin,
        Provisioning::Thick => !pool.capacity.thick,
    });
    if let Some(provisioning) = missing {
        return Some(format!("it has no {} volumes", provisioning.as_str()));
    }
    specs::unsatisfied(&pool.capabilities, &request.specs)
}

fn affinity(pool: &Pool, request: &Request) -> Option<String> {
    if request.same_host.as_ref().is_some_and(|agents| !agents.contains(&pool.agent)) {
        return Some("none of the volumes of the hint same_host is there".to_owned());
    }
    if request.host.is_some_and(|host| host != pool.agent) {
        return Some("the image is on another host".to_owned());
    }
    request
        .different_host
        .contains(&pool.agent)
        .then(|| "a volume of the hint different_host is there".to_owned())
}

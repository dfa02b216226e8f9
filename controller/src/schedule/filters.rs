//! The filters: each looks at one pool and one request, and says why not.
//!
//! What must never happen here: a filter that looks at other pools, or at the order in which they come; a reason that holds
//! anything but names and numbers of the pool and of the request.

use super::Request;
use super::pool::{Pool, Provisioning};
use crate::rules::specs;

/// A filter. They are asked in this order, and the first that refuses gives the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filter {
    /// It is reported, enabled, not being emptied, and has not failed. (An agent that is down is only the last choice.)
    State,
    /// It is the pool that was asked for.
    Requested,
    /// It was not tried before.
    Excluded,
    /// It is in the zone that was asked for, and in one of the type's.
    AvailabilityZone,
    /// Its capabilities are what the type demands.
    Capabilities,
    /// It is, or is not, where other volumes are.
    Affinity,
    /// It has the space.
    Capacity,
}

impl Filter {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::State,
        Self::Requested,
        Self::Excluded,
        Self::AvailabilityZone,
        Self::Capabilities,
        Self::Affinity,
        Self::Capacity,
    ];

    /// Its name, for people.
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

    /// Why this pool cannot take this request. `None`: as far as this filter goes, it can.
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
    // A wish that is not fulfilled would only show when the disk is full.
    let missing = request.provisioning.filter(|wish| match wish {
        Provisioning::Thin => !pool.capacity.thin,
        Provisioning::Thick => !pool.capacity.thick,
    });
    if let Some(wish) = missing {
        return Some(format!("it has no {} volumes", wish.as_str()));
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

//! Reports the facts of one volume over one port. Pure, but for the look at live logins.
//!
//! What must never happen here: `in_force` while a plan would still do something; a mode that the
//! kernel does not enforce.

use std::collections::BTreeMap;

use mooring_host::{Tree, TreePath};
use mooring_model::{Counters, Cure, FcGrant, FcGrantReport, FcPort, Mode, Naa, Plan, Problem};

use super::layout;
use super::plan::Wanted;
use super::view::{Place, View};
use crate::Error;
use crate::layout::backstore;
use crate::live::{read_counters, read_if_there};
use crate::op::Op;

/// Activity of a nexus at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FcLive {
    /// The target holds a login of the initiator.
    pub logged_in: bool,
    /// Counters of the nexus since its LUN was mapped.
    pub counters: Counters,
}

/// The part of an export's report that one port's tree decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcFacts {
    /// The port.
    pub port: FcPort,
    /// The identity that initiators see.
    pub naa: Naa,
    /// The port's portal group exists and answers logins.
    pub serves: bool,
    /// The kernel has everything in the spec, and nothing of the spec before it.
    pub in_force: bool,
    /// The grants.
    pub grants: Vec<FcGrantReport>,
    /// Differences from the spec.
    pub problems: Vec<Problem>,
}

/// Reports the facts of one volume over one port. `plan` is the one from this view to this spec.
pub fn report(wanted: &Wanted, view: &View, live: &BTreeMap<Place, FcLive>, plan: &Plan<Op>) -> FcFacts {
    let names = wanted.names();
    let ours = backstore(&names.export);
    let mut problems: Vec<_> = plan.blocked.iter().map(Problem::from).collect();
    let places = wanted.places();
    let left = view.nexuses.iter().filter(|(place, nexus)| !places.contains(place) && nexus.shows(&ours));
    for (place, _) in left {
        problems.push(Problem {
            object: place.initiator.to_string(),
            text: format!("still has LUN {} and no grant: it is being revoked", place.lun),
            cure: Cure::Retry,
        });
    }
    let serves = view.group.as_ref().is_some_and(|group| group.enabled);
    let grants = wanted.grants().iter().map(|grant| {
        let live = live.get(&Place::of(grant)).copied().unwrap_or_default();
        FcGrantReport {
            initiator: grant.initiator,
            lun: grant.lun,
            wanted: grant.mode,
            seen: seen_mode(names.port, view, &ours, grant).filter(|_| serves),
            logged_in: live.logged_in,
            counters: live.counters,
        }
    });
    FcFacts {
        port: names.port,
        naa: names.export.naa(),
        serves,
        in_force: plan.is_quiet(),
        grants: grants.collect(),
        problems,
    }
}

/// Returns the mode that the kernel enforces for a grant: its LUN is ours and open, and mapped as
/// in the spec. `None` if it enforces none.
fn seen_mode(port: FcPort, view: &View, ours: &TreePath, grant: &FcGrant) -> Option<Mode> {
    let place = Place::of(grant);
    let nexus = view.nexuses.get(&place).filter(|nexus| nexus.shows(ours) && !nexus.is_shut())?;
    let mapped = nexus.mapped.as_ref()?;
    let leads = mapped.link.as_ref()?.target == layout::lun(port, place.number()?);
    let mode = if mapped.write_protect? { Mode::ReadOnly } else { Mode::ReadWrite };
    leads.then_some(mode)
}

/// Reads the activity of an export's nexuses. `before` is the result of the last look. The module
/// `live` has the cost. The target does not notice that an initiator has lost power.
pub fn read_live(
    tree: &dyn Tree,
    wanted: &Wanted,
    before: &BTreeMap<Place, FcLive>,
) -> Result<BTreeMap<Place, FcLive>, Error> {
    let look = |source| Error::View { source };
    let mut all = BTreeMap::new();
    for place in wanted.places() {
        let mapped = layout::mapped(wanted.names().port, place.initiator, place.lun);
        let known = before.get(&place).map(|live| live.counters);
        let counters = read_counters(tree, &mapped, known).map_err(look)?;
        let login = mapped.join("statistics").join("scsi_att_intr_port").join("port_ident");
        let logged_in = read_if_there(tree, &login).map_err(look)?.is_some();
        all.insert(place, FcLive { logged_in, counters });
    }
    Ok(all)
}

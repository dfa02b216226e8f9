//! Interprets a view of a port beside a spec, before anything is planned: owners of places, places
//! that go, the rest without them, obstacles, mappings to make anew. Pure.
//!
//! What must never happen here: a place taken for ours whose TPG LUN shows another backstore, or
//! another initiator of ours is mapped to.

use std::collections::BTreeMap;

use mooring_host::TreePath;
use mooring_model::{BlockedKind, FcGrant, FcNames, FcPort, Mode};

use super::layout;
use super::plan::Wanted;
use super::view::{MappedSeen, NexusView, Place, View};
use crate::Link;
use crate::layout::backstore;

/// Returns the places that no grant has and that nobody else has taken: neither another volume, nor
/// another grant of this one whose initiator is mapped to the number.
pub(super) fn going<'a>(wanted: &Wanted, view: &'a View) -> Vec<(Place, &'a NexusView)> {
    let (names, places) = (wanted.names(), wanted.places());
    let ours = backstore(&names.export);
    let maps = |place: Place, nexus: &NexusView| {
        let link = nexus.mapped.as_ref().and_then(|mapped| mapped.link.as_ref());
        link.zip(place.number()).is_some_and(|(link, number)| link.target == layout::lun(names.port, number))
    };
    let heir = |place: Place| {
        let mut heirs = places.iter().filter(|heir| heir.number() == place.number());
        heirs.any(|heir| view.nexuses.get(heir).is_some_and(|nexus| maps(*heir, nexus)))
    };
    let free = |place: Place, nexus: &NexusView| {
        let link = nexus.lun.as_ref().and_then(|lun| lun.link.as_ref());
        link.is_none_or(|link| link.target == ours) && (maps(place, nexus) || !heir(place))
    };
    let unwanted =
        view.nexuses.iter().filter(|(place, nexus)| !places.contains(place) && free(**place, nexus));
    unwanted.map(|(place, nexus)| (*place, nexus)).collect()
}

/// Returns `true` if a place that goes has a folder of a mapped LUN which goes with it: the folder
/// leads nowhere, or to the TPG LUN that goes.
pub(super) fn leaves(port: FcPort, place: Place, nexus: &NexusView) -> bool {
    let lun = place.number().map(|number| layout::lun(port, number));
    let ours =
        |mapped: &MappedSeen| mapped.link.as_ref().is_none_or(|link| Some(&link.target) == lun.as_ref());
    nexus.mapped.as_ref().is_some_and(ours)
}

/// Returns the spec's places as they are once those that go are gone. A number may have changed
/// hands: an object that stood there under another initiator, or under the initiator's old slot, is
/// gone by then.
pub(super) fn left(wanted: &Wanted, view: &View) -> BTreeMap<Place, NexusView> {
    let going = going(wanted, view);
    let mut left = BTreeMap::new();
    for place in wanted.places() {
        let mut nexus = view.nexuses.get(&place).cloned().unwrap_or_default();
        if going.iter().any(|(other, _)| other.number() == place.number()) {
            nexus.lun = None;
        }
        let takes = |other: Place, nexus: &NexusView| {
            (other.initiator, other.lun) == (place.initiator, place.lun)
                && leaves(wanted.names().port, other, nexus)
        };
        if going.iter().any(|(other, nexus)| takes(*other, nexus)) {
            nexus.mapped = None;
        }
        left.insert(place, nexus);
    }
    left
}

/// Finds the obstacle to one nexus: the object, its kind, and the reason. `None` if nothing stands
/// in the way.
pub(super) fn obstacle(
    names: &FcNames,
    place: Place,
    left: &BTreeMap<Place, NexusView>,
) -> Option<(TreePath, BlockedKind, String)> {
    let Some(number) = place.number() else {
        let why = format!("LUN {} cannot be a grant's over Fibre Channel: want 1 to 255", place.lun);
        return Some((layout::acl(names.port, place.initiator), BlockedKind::Collision, why));
    };
    let nexus = left.get(&place)?;
    let (ours, lun) = (backstore(&names.export), layout::lun(names.port, number));
    let elsewhere = |link: Option<&Link>, ours: &TreePath| {
        link.filter(|link| link.target != *ours).map(|link| link.target.clone())
    };
    if let Some(found) = elsewhere(nexus.lun.as_ref().and_then(|lun| lun.link.as_ref()), &ours) {
        let why = format!(
            "found it linked to {found}, wanted {ours}. LUN {} of {} is another volume's, or somebody else's: it was not \
             touched; give this volume another LUN, or remove it",
            place.lun, place.initiator
        );
        return Some((lun, BlockedKind::Foreign, why));
    }
    let mapped = nexus.mapped.as_ref().and_then(|mapped| mapped.link.as_ref());
    let found = elsewhere(mapped, &lun)?;
    let why = format!(
        "found it mapped to {found}, wanted {lun}. It is not ours and was not touched: unlink it and remove the folder"
    );
    Some((layout::mapped(names.port, place.initiator, place.lun), BlockedKind::Foreign, why))
}

/// Reason to take an existing mapping down before it is made again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Remake {
    /// No reason: the mapping stays.
    No,
    /// The TPG LUN lost its backstore meanwhile: the link leads nowhere, and is not revived
    /// (lio.md, b).
    Stale,
    /// Commands were looked up before the mapping was read-only, and may not have been executed
    /// yet.
    Suspect,
}

pub(super) fn remake(grant: &FcGrant, nexus: &NexusView) -> Remake {
    let Some(mapped) = nexus.mapped.as_ref().filter(|mapped| mapped.link.is_some()) else {
        return Remake::No;
    };
    match (mapped.write_protect, grant.mode) {
        (None, _) => Remake::Stale,
        (Some(_), Mode::ReadOnly) if nexus.is_shut() && mapped.commands != Some(0) => Remake::Suspect,
        _ => Remake::No,
    }
}

//! The established facts of one volume. `made`, the receipts and who is kept out change only with
//! the store's write, and end only with the volume. The LV as it was whole and the places that may
//! show the volume follow looks of passes, and the store follows them.
//!
//! What must never happen here: a fact of the first kind that ends because of an observation; a
//! fact of the second kind in the store for longer than looks have shown it otherwise.

use std::collections::BTreeSet;

use mooring_model::{Generation, Initiator};
use mooring_targets::fc::Place;

use super::receipts::Receipts;
use crate::lvm::Whole;

/// The established facts of one volume. `Stale` ends observations only, and none of these.
#[derive(Debug, Default)]
pub(crate) struct Established {
    /// The LV was completed once (recorded in the store). Hosts may have written to it, so it is
    /// never recreated.
    made: bool,
    /// The LV as LVM showed it when it was whole, and the generation of the spec of that look.
    whole: Option<(Generation, Whole)>,
    /// LVM's identity of the LV and of its group: it stays if somebody takes the LV's tags away.
    identity: Option<String>,
    /// Fibre Channel places that may show the volume: those of every spec since the last spec that
    /// a look saw in force.
    former: BTreeSet<Place>,
    /// The places that the store has.
    kept_places: BTreeSet<Place>,
    receipts: Receipts,
    /// Initiators with a grant that are kept out: they had reserved the volume, and may only read.
    /// The store has a receipt of each.
    kept_out: BTreeSet<Initiator>,
}

impl Established {
    /// Says whether the LV was completed once.
    pub(super) fn is_made(&self) -> bool {
        self.made
    }

    /// Notes that the store has recorded whether the LV was completed.
    pub(super) fn set_made(&mut self, made: bool) {
        self.made = made;
    }

    /// Ends the facts of the LV: the volume has ended.
    pub(super) fn end_lv(&mut self) {
        (self.made, self.identity) = (false, None);
    }

    /// The LV as it was when it was whole, for the spec of this generation. `None` if no look has
    /// shown it whole for this generation.
    pub(super) fn whole(&self, generation: Generation) -> Option<&Whole> {
        self.whole.as_ref().filter(|(of, _)| *of == generation).map(|(_, whole)| whole)
    }

    /// Notes the LV as it is whole for a spec, or with `None` that it is not whole. `false` if
    /// nothing changes.
    pub(super) fn set_whole(&mut self, whole: Option<&(Generation, Whole)>) -> bool {
        if let Some((_, whole)) = whole {
            self.identity = Some(whole.mapping.clone());
        }
        if self.whole.as_ref() == whole {
            return false;
        }
        self.whole = whole.cloned();
        true
    }

    /// LVM's identity of the LV and of its group. `None` if no look has shown the LV whole.
    pub(super) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The Fibre Channel places that may show the volume.
    pub(super) fn former(&self) -> &BTreeSet<Place> {
        &self.former
    }

    /// Adds places that may show the volume.
    pub(super) fn add_former(&mut self, places: impl IntoIterator<Item = Place>) {
        self.former.extend(places);
    }

    /// Notes that only these places may show the volume.
    pub(super) fn settle_former(&mut self, places: BTreeSet<Place>) {
        self.former = places;
    }

    /// The places that the store has.
    pub(super) fn kept_places(&self) -> &BTreeSet<Place> {
        &self.kept_places
    }

    /// Notes that the store has these places now.
    pub(super) fn keep_places(&mut self, places: BTreeSet<Place>) {
        self.kept_places = places;
    }

    /// Adds a place that the store had when the agent started.
    pub(super) fn load_place(&mut self, place: Place) {
        self.former.insert(place);
        self.kept_places.insert(place);
    }

    /// The receipts that the engine needs in memory.
    pub(super) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// Mutable access to the receipts, for a change that the store has written.
    pub(super) fn receipts_mut(&mut self) -> &mut Receipts {
        &mut self.receipts
    }

    /// The initiators with a grant that are kept out.
    pub(super) fn kept_out(&self) -> &BTreeSet<Initiator> {
        &self.kept_out
    }

    /// Says whether an initiator with a grant is kept out.
    pub(super) fn is_kept_out(&self, initiator: &Initiator) -> bool {
        self.kept_out.contains(initiator)
    }

    /// Keeps an initiator out, once the store has its receipt.
    pub(super) fn keep_out(&mut self, initiator: Initiator) {
        self.kept_out.insert(initiator);
    }

    /// Keeps out only the initiators that are still `out`.
    pub(super) fn let_in_unless(&mut self, out: impl Fn(&Initiator) -> bool) {
        self.kept_out.retain(out);
    }

    /// Says whether the store has exactly the places that may show the volume.
    pub(super) fn are_places_kept(&self) -> bool {
        self.former == self.kept_places
    }
}

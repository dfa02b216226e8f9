//! The observations of one volume: what LVM and the kernel have shown of it, and can show again.
//!
//! What must never happen here: an observation used behind what makes it [`Stale`].

mod forget;

use std::collections::BTreeSet;

use mooring_model::{FcPort, Initiator, VolumeReport, Wwpn};
use mooring_targets::Known;
use mooring_targets::fc::{Drained, Place};

pub use forget::Stale;

use super::look::pulse::Lives;
use super::look::watched::Watched;
use super::volume::isolate::Table;
use super::volume::preflight::KeptLook;
use super::volume::upload::Uploading;
use crate::lvm::VolumesView;
use crate::object::seen::{Memory, Moment, Seen};

/// The observations of one volume.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    /// The moment of the last event that can falsify an observation, or in which a look began.
    now: Moment,
    /// The LV as LVM showed it active and zeroed: a grant need not ask LVM again.
    ready: Memory<VolumeReport>,
    /// LVM's view of a moment ago, from admission or a sweep: the pass behind that need not ask LVM
    /// again.
    looked: Memory<VolumesView>,
    /// LVM's view for a spec whose sender did not wait for it.
    kept_look: Memory<KeptLook>,
    /// The export as a look saw it in force: a change of grants need not look at all of it.
    known: Memory<Known>,
    /// The watch of the export's folders.
    watched: Watched,
    /// The export is as a whole look saw it, as far as its watched folders tell.
    unchanged: Memory<()>,
    /// The Fibre Channel places that the last look saw showing the volume, less the places that
    /// have drained since.
    linked: BTreeSet<(FcPort, Place)>,
    /// Sessions and counters, as the last look at them read them.
    lives: Memory<Lives>,
    /// The device-mapper table of the LV, as the last look read it.
    table: Table,
    /// The image export that was seen last. `None` if there was none.
    uploading: Option<Uploading>,
    /// An LV of ours that no spec names. `None` if there is none.
    orphan: Option<VolumeReport>,
}

impl Knowledge {
    /// Begins a look: the moment by which its observation is judged when it ends.
    pub(super) fn begin_look(&mut self) -> Moment {
        self.now.advance()
    }

    /// The LV as LVM showed it active and zeroed. `None` if it was not, or if no look has shown it.
    pub(super) fn ready(&self) -> Option<&VolumeReport> {
        self.ready.get()
    }

    /// The LV as LVM showed it active and zeroed, and when that look began. `None` if it was not,
    /// or if no look has shown it.
    pub(super) fn ready_seen(&self) -> Option<&Seen<VolumeReport>> {
        self.ready.seen()
    }

    /// Notes that a look showed the LV active and zeroed.
    pub(super) fn learn_ready(&mut self, ready: Seen<VolumeReport>) {
        self.ready.learn(ready);
    }

    /// Notes whether a look that began at this moment showed the LV active and zeroed. `None` if it
    /// did not: the observation before it is stale for this reason.
    pub(super) fn learn_if_ready(&mut self, began: Moment, ready: Option<VolumeReport>, stale: Stale) {
        match ready {
            Some(ready) => self.learn_ready(Seen::new(began, ready)),
            None if forget::is_kept(stale) => {}
            None => self.ready.unlearn(began),
        }
    }

    /// Takes LVM's view of a moment ago: it serves one pass.
    pub(super) fn take_looked(&mut self) -> Option<Seen<VolumesView>> {
        self.looked.take()
    }

    /// Keeps LVM's view for the pass that follows.
    pub(super) fn learn_looked(&mut self, view: Seen<VolumesView>) {
        self.looked.learn(view);
    }

    /// Takes a spec of the volume: observations for the spec before it are stale. Admission's own
    /// look was for this spec, and stays if nothing has happened since.
    pub(super) fn take_spec(&mut self, looked: Option<Seen<VolumesView>>) {
        let looked = looked.filter(|looked| self.looked.holds_since(looked.began()));
        self.forget(Stale::VolumeSpec);
        if let Some(looked) = looked {
            let now = self.begin_look();
            self.learn_looked(Seen::new(now, looked.into_value()));
        }
    }

    /// LVM's view for a spec whose sender did not wait for it.
    #[cfg(test)]
    pub(super) fn kept_look(&self) -> Option<&KeptLook> {
        self.kept_look.get()
    }

    /// Takes LVM's view for a spec whose sender did not wait for it.
    pub(super) fn take_kept_look(&mut self) -> Option<KeptLook> {
        self.kept_look.take().map(Seen::into_value)
    }

    /// Keeps LVM's view for a spec whose sender did not wait for it, unless a pass has begun since
    /// that look began.
    pub(super) fn learn_kept_look(&mut self, look: Seen<KeptLook>) {
        self.kept_look.learn(look);
    }

    /// Takes the export as a look saw it in force: only success puts it back.
    pub(super) fn take_known(&mut self) -> Option<Seen<Known>> {
        let known = self.known.take();
        if forget::is_kept(Stale::Narrowed)
            && let Some(known) = known.clone()
        {
            self.known.learn(known);
        }
        known
    }

    /// Notes that a look saw the export in force.
    pub(super) fn learn_known(&mut self, known: Seen<Known>) {
        self.known.learn(known);
    }

    /// Says whether the export is as a whole look saw it, as far as its watched folders tell.
    pub(super) fn is_unchanged(&self) -> bool {
        self.unchanged.get().is_some()
    }

    /// Notes that a look which began at this moment saw the export in force, with all its folders
    /// watched. `false`, and nothing changes, if something was done to the export since, or a
    /// change of it was reported.
    pub(super) fn learn_unchanged(&mut self, began: Moment) -> bool {
        self.unchanged.learn(Seen::new(began, ()))
    }

    /// The watch of the export's folders.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// The watch of the export's folders, to be changed.
    pub(super) fn watched_mut(&mut self) -> &mut Watched {
        &mut self.watched
    }

    /// The Fibre Channel places that show the volume.
    pub(super) fn linked(&self) -> &BTreeSet<(FcPort, Place)> {
        &self.linked
    }

    /// Notes the Fibre Channel places that a look saw showing the volume.
    pub(super) fn learn_linked(&mut self, linked: &BTreeSet<(FcPort, Place)>) {
        self.linked.clone_from(linked);
    }

    /// Takes away the place of a TPG LUN that has drained. Returns its initiator if no other place
    /// of that initiator is left.
    pub(super) fn drained(&mut self, drained: Drained) -> Option<Wwpn> {
        let at = self.linked.iter().find(|(port, place)| drained.is(*port, *place)).copied()?;
        self.linked.remove(&at);
        let initiator = at.1.initiator;
        let left = self.linked.iter().any(|(_, place)| place.initiator == initiator);
        (!left).then_some(initiator)
    }

    /// Sessions and counters, as the last look at them read them.
    pub(super) fn lives(&self) -> Option<&Lives> {
        self.lives.get()
    }

    /// Sessions and counters, as the last look at them read them, to be changed.
    pub(super) fn lives_mut(&mut self) -> Option<&mut Lives> {
        self.lives.get_mut()
    }

    /// Notes sessions and counters. `false`, and nothing changes, if a nexus has ended since the
    /// look at them began, or if a later look is kept.
    pub(super) fn learn_lives(&mut self, lives: Seen<Lives>) -> bool {
        self.lives.learn(lives)
    }

    /// Forgets the sessions and counters of a nexus that has ended. A look at work may have seen it
    /// before its end.
    pub(super) fn nexus_ended(&mut self, initiator: &Initiator) {
        let now = self.now.advance();
        self.lives.refuse_looks(now);
        if let Some(lives) = self.lives.get_mut() {
            lives.forget(initiator);
        }
    }

    /// Sets sessions and counters as a look would that begins and ends now. `None`: as if no look
    /// had been.
    #[cfg(test)]
    pub(super) fn set_lives(&mut self, lives: Option<Lives>) {
        self.lives = Memory::default();
        if let Some(lives) = lives {
            let now = self.begin_look();
            self.lives.learn(Seen::new(now, lives));
        }
    }

    /// The device-mapper table of the LV, as the last look read it.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Mutable access to the table of the LV, for a look at it.
    pub(super) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// The image export that was seen last. `None` if none was seen, or nothing of it is left.
    pub(super) fn uploading(&self) -> Option<&Uploading> {
        self.uploading.as_ref()
    }

    /// Notes an image export, or with `None` that nothing of it is left.
    pub(super) fn learn_uploading(&mut self, uploading: Option<Uploading>) {
        self.uploading = uploading;
    }

    /// The LV of ours that no spec names. `None` if there is none.
    pub(super) fn orphan(&self) -> Option<&VolumeReport> {
        self.orphan.as_ref()
    }

    /// Notes an LV of ours that no spec names, or with `None` that there is none. `true` if the LV
    /// is newly found.
    pub(super) fn learn_orphan(&mut self, orphan: Option<VolumeReport>) -> bool {
        let found = orphan.is_some() && self.orphan.is_none();
        self.orphan = orphan;
        found
    }
}

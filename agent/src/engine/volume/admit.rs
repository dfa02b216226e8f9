//! Admission of a volume's spec or tombstone.
//!
//! What must never happen here: a change written before every check has passed; an answer before it
//! is written.

use std::sync::Arc;

use mooring_api::v1;
use mooring_model::{Cure, ExportIdentity, ExportSpec, Fence, Naa, VolumeSpec};
use mooring_targets::ExportView;
use prost::Message;

use super::upload::begins_upload;
use crate::engine::admit::Keep;
use crate::engine::cell::{Cell, KeptSpec, SpecKind, State};
use crate::engine::{Engine, PutVolume, Refusal, VolumeRequest};
use crate::lvm::VolumesView;
use crate::object::admission::Claim;
use crate::object::seen::Seen;
use crate::store::{Kind, StoreError, StoredContent, StoredSpec};

/// Decodes a volume's spec or tombstone as the store has it.
pub(in crate::engine) fn stored_volume(stored: &StoredSpec) -> Result<KeptSpec<VolumeSpec>, StoreError> {
    let kind = match &stored.content {
        StoredContent::Tombstone { destroy } => SpecKind::Tombstone { destroy: *destroy },
        StoredContent::Released => SpecKind::Released,
        StoredContent::Spec(body) => {
            let wire = v1::VolumeSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            SpecKind::Spec(mooring_api::volume_from_wire(stored.volume, &wire).map_err(|_| stored.corrupt())?)
        }
        StoredContent::Revoked => return Err(stored.corrupt()),
    };
    Ok(KeptSpec { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

impl State {
    /// Takes a volume's spec or tombstone that the store has now. `looked` is LVM's view of the
    /// volume, `None` if admission has not asked LVM.
    fn admit_volume(&mut self, kept_spec: KeptSpec<VolumeSpec>, looked: Option<Seen<VolumesView>>) {
        self.note_isolation_spec(kept_spec.stamp.generation, kept_spec.spec());
        // As in the store: the fact `made` outlives each later spec, and ends with the volume.
        let ends = kept_spec.spec().is_none();
        self.set_volume(kept_spec);
        if ends {
            self.established.end_lv();
        }
        // At once: the job at work gives way as soon as anybody can see the spec.
        self.turn.ask_anew();
        self.knowledge.take_spec(looked);
        self.knowledge.learn_orphan(None);
    }
}

impl Engine {
    /// Takes a change of a volume. Returns the passes that had begun: a later one has seen it.
    pub(in crate::engine) fn admit_volume(
        &self,
        cell: &Arc<Cell>,
        put: PutVolume,
        claim: &Claim,
    ) -> Result<u64, Refusal> {
        self.check_sender(put.cluster)?;
        let (kept, export) = cell.state().specs();
        let object = format!("volume {}", cell.id);
        // Before all other checks: after another refusal the sender may send a tombstone.
        if put.new {
            self.check_unknown(cell, &put.stamp, (kept.as_ref(), export.as_ref()))?;
        }
        Self::check_opaque(&put.opaque)?;
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            return Ok(cell.state().turn.passes());
        }
        // Held until the store has the new spec.
        let mut held = None;
        let (mut looked, began) = (None, cell.state().knowledge.begin_look());
        let (kind, stored, naa) = match put.request {
            VolumeRequest::Spec(spec) => {
                let old = kept.as_ref().and_then(KeptSpec::spec);
                let reverts = spec.revert.is_some() && old.is_none_or(|old| begins_revert(old, &spec));
                if reverts || begins_upload(old, &spec) {
                    // An initiator with access has parts of the volume in memory. It would write
                    // them over what comes back, or into the image export.
                    self.check_not_granted(cell, export.as_ref())?;
                }
                let export = export.as_ref().and_then(KeptSpec::spec);
                cell.check_not_isolated(old, Some(&spec))?;
                self.check_source_not_isolated(&spec)?;
                held = self.hold_for_shrink(cell, old, (&spec, &put.stamp), claim)?;
                let new = put.new.then(|| self.check_no_lv(cell, (&spec, &put.stamp), claim)).transpose()?;
                looked = self.check_volume(cell, (&spec, &put.stamp), kept.as_ref(), export, (new, claim))?;
                self.forget_upload(cell, old, &spec)?;
                let body = v1::VolumeSpec::from(&spec).encode_to_vec();
                let naa = Naa::of_serial(&cell.id.to_string());
                (SpecKind::Spec(spec), StoredContent::Spec(body), Some(naa))
            }
            VolumeRequest::Tombstone { destroy } => {
                cell.check_not_isolated(kept.as_ref().and_then(KeptSpec::spec), None)?;
                self.check_not_granted(cell, export.as_ref())?;
                (SpecKind::Tombstone { destroy }, StoredContent::Tombstone { destroy }, None)
            }
            VolumeRequest::Release => {
                cell.check_not_isolated(kept.as_ref().and_then(KeptSpec::spec), None)?;
                self.check_not_granted(cell, export.as_ref())?;
                check_releasable(cell, kept.as_ref())?;
                (SpecKind::Released, StoredContent::Released, None)
            }
        };
        let keep = Keep {
            sender: put.cluster,
            kind: Kind::Volume,
            stamp: &put.stamp,
            content: &stored,
            opaque: &put.opaque,
            receipts: &[],
            naa,
        };
        self.keep(cell, &keep, claim)?;
        let mut state = cell.state();
        let looked = looked.map(|view| Seen::new(began, view));
        state.admit_volume(KeptSpec { stamp: put.stamp, kind, opaque: put.opaque }, looked);
        let passes = state.turn.passes();
        drop(state);
        drop(held);
        Ok(passes)
    }

    /// Refuses to end a volume that is granted: by the spec, or, if there is none (the store was
    /// lost), by what the kernel serves.
    fn check_not_granted(&self, cell: &Cell, export: Option<&KeptSpec<ExportSpec>>) -> Result<(), Refusal> {
        let refuse = |why| Err(Refusal::precondition(why, Cure::FixSpec));
        let Some(kept_spec) = export else {
            let names = ExportIdentity::Derived.names(cell.id, &self.shared.config.iqn_prefix);
            let target = |source| Refusal::Target { volume: cell.id, source: Box::new(source) };
            let view = ExportView::read(&*self.shared.machine.target, &names).map_err(target)?;
            let over_fc = self.fc_initiators(cell, &names).map_err(target)?.len();
            return match view.tpg().map_or(0, |tpg| tpg.acls.len()) + over_fc {
                0 => Ok(()),
                acls => refuse(format!(
                    "volume {} is exported to {acls} initiator(s) in the kernel and no spec of that is kept here: send \
                     the export's spec again, or its tombstone",
                    cell.id
                )),
            };
        };
        match kept_spec.spec().map_or(0, |spec| spec.grants.len() + spec.fc.grants.len()) {
            0 => Ok(()),
            grants => refuse(format!(
                "volume {0} is granted to {grants} initiator(s): revoke them first (see `mooring export show {0}`)",
                cell.id
            )),
        }
    }
}

/// Says whether the new spec asks for a revert that the old one did not ask for.
pub(in crate::engine) fn begins_revert(old: &VolumeSpec, spec: &VolumeSpec) -> bool {
    spec.revert.is_some() && spec.revert != old.revert
}

/// Refuses to unmanage a volume or a snapshot that is being deleted.
fn check_releasable(cell: &Cell, kept: Option<&KeptSpec<VolumeSpec>>) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::precondition(why, Cure::FixSpec));
    match kept.map(|kept| &kept.kind) {
        Some(SpecKind::Tombstone { destroy: true }) => {
            refuse(format!("volume {} is being deleted: it cannot be unmanaged any more", cell.id))
        }
        Some(SpecKind::Spec(_) | SpecKind::Tombstone { .. } | SpecKind::Released) | None => Ok(()),
    }
}

//! Admission: checks a change of a connection, and makes it durable by one write.
//!
//! What must never happen here: a change that is written before every check has passed; an answer
//! before it is written; a kept secret in an answer.

use std::sync::Arc;
use std::time::Duration;

use mooring_api::v1;
use mooring_host::Holder;
use mooring_model::{Chain, ClusterId, ConnectionSpec, Cure, Fence, VolumeId, Wwpn};
use prost::Message;

use super::cell::{Cell, KeptSpec, SpecKind};
use super::{Admitted, ConnectionRequest, Connections, PutConnection};
use crate::clock;
use crate::engine::{Engine, Refusal, lock};
use crate::object::admission::Claim;
use crate::store::{Kind, StoreError, StoredContent, StoredSpec};
use crate::workers;

/// Time that holders get to close the disk before a detach is refused. udev opens every new disk,
/// and every disk closed after a write, for a moment.
const HELD_BRIEFLY: Duration = Duration::from_millis(500);

/// Time that udev gets, or a program that it runs (multipath, blkid): a busy machine takes seconds
/// to look at a new disk.
const HELD_BY_UDEV: Duration = Duration::from_secs(10);

/// Decodes a connection's spec or tombstone as the store has it.
pub(super) fn stored(stored: &StoredSpec) -> Result<KeptSpec, StoreError> {
    let kind = match &stored.content {
        StoredContent::Tombstone { .. } => SpecKind::Tombstone { revoked: false },
        StoredContent::Revoked => SpecKind::Tombstone { revoked: true },
        StoredContent::Released => return Err(stored.corrupt()),
        StoredContent::Spec(body) => {
            let wire = v1::ConnectionSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            let spec = mooring_api::connection_from_wire(stored.volume, &wire);
            SpecKind::Spec(Box::new(spec.map_err(|_| stored.corrupt())?))
        }
    };
    Ok(KeptSpec { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

impl Connections {
    /// Takes a change.
    pub(super) fn admit(
        &self,
        cell: &Arc<Cell>,
        put: PutConnection,
        claim: &Claim,
    ) -> Result<Admitted, Refusal> {
        Engine::check_opaque(&put.opaque)?;
        self.shared.engine.check_sender(put.cluster)?;
        let kept = cell.state().kept_spec().cloned();
        let object = format!("the connection to volume {}", cell.id);
        let kept_stamp = kept.as_ref().map(|kept| &kept.stamp);
        if Engine::check_fence(&object, &put.stamp, kept_stamp)? == Fence::Same {
            return Ok(Admitted { durable: put.decoded.elapsed(), after: cell.state().turn.passes() });
        }
        let (kind, stored) = match put.request {
            ConnectionRequest::Spec(spec) => {
                self.check(&spec, kept.as_ref().and_then(KeptSpec::spec))?;
                let body = mooring_api::connection_to_wire(&spec).encode_to_vec();
                (SpecKind::Spec(spec), StoredContent::Spec(body))
            }
            ConnectionRequest::Tombstone { revoked: true } => {
                (SpecKind::Tombstone { revoked: true }, StoredContent::Revoked)
            }
            ConnectionRequest::Tombstone { revoked: false } => {
                self.check_not_held(cell.id)?;
                (SpecKind::Tombstone { revoked: false }, StoredContent::Tombstone { destroy: false })
            }
        };
        let kept_spec = KeptSpec { stamp: put.stamp, kind, opaque: put.opaque };
        self.keep(cell, put.cluster, &kept_spec, &stored, claim)?;
        let durable = put.decoded.elapsed();
        let mut state = cell.state();
        state.set_spec(kept_spec);
        Ok(Admitted { durable, after: state.turn.passes() })
    }

    /// Writes an admission to the store, once every check has passed.
    fn keep(
        &self,
        cell: &Cell,
        sender: ClusterId,
        kept_spec: &KeptSpec,
        stored: &StoredContent,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        if !claim.take() {
            return Err(Refusal::busy(cell.id, cell.state().stuck()));
        }
        // The first sender whose spec is taken pins the agent; another may have been first
        // meanwhile.
        self.shared.engine.check_sender(sender)?;
        let store = self.shared.engine.store();
        store.pin(sender).map_err(Refusal::Store)?;
        store
            .put_spec(Kind::Connection, cell.id, &kept_spec.stamp, stored, &kept_spec.opaque, &[])
            .map_err(Refusal::Store)?;
        self.claim_attachments(cell.id, kept_spec.spec());
        Ok(())
    }

    fn check(&self, spec: &ConnectionSpec, kept: Option<&ConnectionSpec>) -> Result<(), Refusal> {
        let refuse = |why| Err(Refusal::precondition(why, Cure::FixSpec));
        let own = self.initiator();
        if spec.initiator != own {
            return refuse(format!(
                "this host logs in as {own}, and the spec says {}: see Hello",
                spec.initiator
            ));
        }
        if let Some(what) = kept.and_then(|kept| changed(kept, spec)) {
            return refuse(format!(
                "the {what} of the connection to volume {} cannot change: detach it first",
                spec.volume
            ));
        }
        let claimed = lock(&self.shared.attachments);
        for attachment in &spec.attachments {
            let Some(other) = claimed.get(&attachment.id).filter(|other| **other != spec.volume) else {
                continue;
            };
            if self.has_attachment(*other, attachment.id) {
                return refuse(format!("attachment {} is one of volume {other} on this host", attachment.id));
            }
        }
        Ok(())
    }

    /// Says whether another volume's spec has this attachment, or its path is still there.
    fn has_attachment(&self, volume: VolumeId, id: mooring_model::AttachmentId) -> bool {
        let Some(cell) = self.known_cell(volume) else { return false };
        let state = cell.state();
        let named =
            state.spec().is_some_and(|spec| spec.attachments.iter().any(|attachment| attachment.id == id));
        named
            || state.last_report().is_some_and(|report| report.paths.iter().any(|path| path.attachment == id))
    }

    /// Refuses a detach while somebody holds the disk open.
    fn check_not_held(&self, volume: VolumeId) -> Result<(), Refusal> {
        let began = clock::instant();
        let holders = loop {
            let holders = mooring_connectors::holders(&self.shared.parts, volume)
                .map_err(|error| Refusal::precondition(Chain(&error).to_string(), Cure::Retry))?;
            if holders.is_empty() {
                return Ok(());
            }
            let patience = if holders.iter().any(is_udev) { HELD_BY_UDEV } else { HELD_BRIEFLY };
            if began.elapsed() >= patience {
                break holders;
            }
            workers::wait(HELD_BRIEFLY / 5);
        };
        let names: Vec<_> = holders.iter().map(mooring_connectors::holder_name).collect();
        let why =
            format!("the disk of volume {volume} is held open by {}: close it there first", names.join(", "));
        Err(Refusal::precondition(why, Cure::Operator))
    }
}

fn is_udev(holder: &Holder) -> bool {
    matches!(holder, Holder::Process { name, .. } if mooring_connectors::is_udev(name))
}

fn port_of(spec: &ConnectionSpec) -> Option<Wwpn> {
    spec.fc.as_ref().map(|route| route.port)
}

/// The first part of a connection that must never change and has: it would put another disk behind
/// the same paths. `None` if all of them are equal.
fn changed(kept: &ConnectionSpec, new: &ConnectionSpec) -> Option<&'static str> {
    [
        ("target", kept.target != new.target),
        ("portal group", kept.tpg != new.tpg),
        ("LUN", kept.lun != new.lun),
        ("transport (iSCSI, or a Fibre Channel port)", port_of(kept) != port_of(new)),
        ("NAA", kept.naa != new.naa),
        ("serial", kept.serial != new.serial),
    ]
    .into_iter()
    .find_map(|(what, differs)| differs.then_some(what))
}

//! Admission: whether a change may be taken, and the one write that makes it durable.
//!
//! What must never happen here: a change that is written before every check has passed; an answer before it is written; a
//! kept secret in an answer.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use mooring_api::v1;
use mooring_model::limit::OPAQUE_BYTES_MAX;
use mooring_model::{
    BlockedKind, ClusterId, ExportSpec, Fence, Grant, Iqn, Mode, Naa, Proof, Receipt, Revoked, SessionReport,
    Stamp, VolumeSpec,
};
use mooring_targets::ExportView;
use prost::Message;

use super::cell::{Cell, OpenReceipt, Wish, WishKind};
use super::{Change, Engine, LiveSessions, PutExport, PutVolume, Refusal, VolumeWish, lock};
use crate::store::{Kind, NewReceipt, StoreError, StoredSpec, StoredWish};
use crate::volumes;

/// What admission of an export leaves.
pub(super) struct Admitted {
    /// Until the wish was durable.
    pub(super) durable: Duration,
    /// Receipts of this generation exist.
    pub(super) receipts: bool,
}

/// A volume's wish as the store has it.
pub(super) fn stored_volume(stored: &StoredSpec) -> Result<Wish<VolumeSpec>, StoreError> {
    let kind = match &stored.wish {
        StoredWish::Tombstone { destroy } => WishKind::Tombstone { destroy: *destroy },
        StoredWish::Spec(body) => {
            let wire = v1::VolumeSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            WishKind::Spec(mooring_api::volume_from_wire(stored.volume, &wire).map_err(|_| stored.corrupt())?)
        }
    };
    Ok(Wish { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

/// An export's wish as the store has it.
pub(super) fn stored_export(stored: &StoredSpec) -> Result<Wish<ExportSpec>, StoreError> {
    let kind = match &stored.wish {
        StoredWish::Tombstone { destroy } => WishKind::Tombstone { destroy: *destroy },
        StoredWish::Spec(body) => {
            let wire = v1::ExportSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            WishKind::Spec(mooring_api::export_from_wire(stored.volume, &wire).map_err(|_| stored.corrupt())?)
        }
    };
    Ok(Wish { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

/// Fills in the secrets that the sender left out because it does not know them: an empty secret with the kept user's name
/// stands for the secret that is kept for this initiator.
fn keep_secrets(spec: &mut v1::ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
    for (index, grant) in spec.grants.iter_mut().enumerate() {
        let initiator = grant.initiator.clone();
        let Some(chap) = grant.chap.as_mut() else { continue };
        let kept = kept
            .and_then(|spec| spec.grants.iter().find(|kept| kept.initiator.as_str() == initiator))
            .and_then(|kept| kept.chap.as_ref());
        let sides = [
            ("initiator", chap.initiator.as_mut(), kept.map(|kept| &kept.initiator)),
            ("mutual", chap.mutual.as_mut(), kept.and_then(|kept| kept.mutual.as_ref())),
        ];
        for (name, side, kept) in sides {
            let Some(side) = side.filter(|side| side.secret.is_empty()) else { continue };
            let Some(kept) = kept.filter(|kept| kept.user == side.user) else {
                return Err(Refusal::field(
                    format!("grants[{index}].chap.{name}.secret"),
                    format!("is empty, and no secret is kept here for {initiator} under this user name"),
                ));
            };
            kept.secret.expose().clone_into(&mut side.secret);
        }
    }
    Ok(())
}

impl Engine {
    fn check_sender(&self, sender: ClusterId) -> Result<(), Refusal> {
        match self.shared.store.cluster().map_err(Refusal::Store)? {
            Some(pinned) if pinned != sender => Err(Refusal::OtherCluster { pinned, sender }),
            Some(_) => Ok(()),
            // The first sender takes the agent. Pinned before its first wish is written, so that a crash between the two
            // leaves an agent that this sender can go on with.
            None => self.shared.store.pin(sender).map_err(Refusal::Store),
        }
    }

    fn check_fence(object: &str, stamp: &Stamp, kept: Option<&Stamp>) -> Result<Fence, Refusal> {
        let fence = stamp.fence(kept);
        let kept = kept.map(|kept| kept.generation).unwrap_or(stamp.generation);
        match fence {
            Fence::Newer | Fence::Same => Ok(fence),
            Fence::Stale => {
                Err(Refusal::Stale { object: object.to_owned(), arrived: stamp.generation, kept })
            }
            Fence::Conflict => Err(Refusal::Conflict { object: object.to_owned(), generation: kept }),
        }
    }

    fn check_opaque(opaque: &[u8]) -> Result<(), Refusal> {
        if opaque.len() > OPAQUE_BYTES_MAX {
            return Err(Refusal::field(
                "opaque",
                format!("{} bytes are more than {OPAQUE_BYTES_MAX}", opaque.len()),
            ));
        }
        Ok(())
    }

    /// Takes a change of a volume.
    pub(super) fn admit_volume(&self, cell: &Arc<Cell>, put: PutVolume) -> Result<(), Refusal> {
        Self::check_opaque(&put.opaque)?;
        self.check_sender(put.cluster)?;
        let (kept, export) = {
            let state = cell.state();
            (state.volume.clone(), state.export.clone())
        };
        let object = format!("volume {}", cell.id);
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            return Ok(());
        }
        let (kind, stored) = match put.wish {
            VolumeWish::Spec(spec) => {
                self.check_volume(cell, &spec, kept.as_ref())?;
                let body = v1::VolumeSpec::from(&spec).encode_to_vec();
                (WishKind::Spec(spec), StoredWish::Spec(body))
            }
            VolumeWish::Tombstone { destroy } => {
                let grants = export.as_ref().and_then(Wish::spec).map_or(0, |spec| spec.grants.len());
                if grants > 0 {
                    return Err(Refusal::Precondition(format!(
                        "volume {} is granted to {grants} initiator(s): revoke them first (see `mooring export show {0}`)",
                        cell.id
                    )));
                }
                (WishKind::Tombstone { destroy }, StoredWish::Tombstone { destroy })
            }
        };
        let store = &self.shared.store;
        store
            .put_spec(Kind::Volume, cell.id, &put.stamp, &stored, &put.opaque, &[])
            .map_err(Refusal::Store)?;
        lock(&self.shared.naas).entry(Naa::of_serial(&cell.id.to_string())).or_insert(cell.id);
        let mut state = cell.state();
        state.volume = Some(Wish { stamp: put.stamp, kind, opaque: put.opaque });
        state.ready = None;
        state.orphan = None;
        Ok(())
    }

    fn check_volume(
        &self,
        cell: &Cell,
        spec: &VolumeSpec,
        kept: Option<&Wish<VolumeSpec>>,
    ) -> Result<(), Refusal> {
        let groups = &self.shared.config.groups;
        if !groups.iter().any(|group| group.name == spec.group) {
            let allowed: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
            return Err(Refusal::NotAllowed(format!(
                "volume group {} is not in this agent's configuration (groups: {})",
                spec.group,
                allowed.join(", ")
            )));
        }
        let naa = Naa::of_serial(&cell.id.to_string());
        if let Some(other) = lock(&self.shared.naas).get(&naa).copied().filter(|other| *other != cell.id) {
            return Err(Refusal::NaaCollision { volume: cell.id, naa, other });
        }
        match kept.map(|kept| &kept.kind) {
            Some(WishKind::Spec(old)) if old.group != spec.group => {
                return Err(Refusal::Precondition(format!(
                    "volume {} lies in group {}; it cannot be moved",
                    cell.id, old.group
                )));
            }
            Some(WishKind::Spec(old)) if old.size != spec.size => {
                return Err(Refusal::Precondition(format!(
                    "volume {} has {}; this agent cannot change a volume's size",
                    cell.id, old.size
                )));
            }
            Some(WishKind::Spec(_)) => return Ok(()),
            Some(WishKind::Tombstone { .. }) | None => {}
        }
        // A new volume: what cannot be made is refused now, and nothing is kept of it.
        let view =
            volumes::view_one(&*self.shared.machine.commands, groups, cell.id).map_err(Refusal::Volumes)?;
        let dying = matches!(kept.map(|kept| &kept.kind), Some(WishKind::Tombstone { destroy: true }));
        if dying && view.lv(&spec.group, cell.id).is_some() {
            return Err(Refusal::Precondition(format!(
                "volume {} is still being deleted: try again when it is gone",
                cell.id
            )));
        }
        let plan = volumes::plan(&volumes::Wanted::Volume(spec.clone()), &view, cell.id);
        match plan.blocked.first() {
            None => Ok(()),
            Some(blocked) => {
                let text = format!("{}: {}", blocked.object, blocked.why);
                Err(match blocked.kind {
                    BlockedKind::Full => Refusal::NoSpace(text),
                    BlockedKind::Foreign | BlockedKind::Collision => Refusal::Foreign(text),
                    BlockedKind::Birth | BlockedKind::Missing => Refusal::Precondition(text),
                })
            }
        }
    }

    /// Takes a change of an export.
    pub(super) fn admit_export(&self, cell: &Arc<Cell>, put: PutExport) -> Result<Admitted, Refusal> {
        Self::check_opaque(&put.opaque)?;
        self.check_sender(put.cluster)?;
        let (volume, kept) = {
            let state = cell.state();
            (state.volume.clone(), state.export.clone())
        };
        let object = format!("the export of volume {}", cell.id);
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            return Ok(Admitted { durable: put.decoded.elapsed(), receipts: true });
        }
        let kept = kept.as_ref().and_then(Wish::spec);
        let spec = match put.spec {
            None => None,
            Some(mut wire) => {
                if volume.as_ref().and_then(Wish::spec).is_none() {
                    return Err(Refusal::UnknownVolume(cell.id));
                }
                keep_secrets(&mut wire, kept)?;
                let spec = mooring_api::export_from_wire(cell.id, &wire).map_err(Refusal::Invalid)?;
                self.check_export(cell, &spec, kept)?;
                Some((spec, wire))
            }
        };
        let removed = removed_grants(kept, spec.as_ref().map(|(spec, _)| spec));
        let sessions = self.sessions_of(cell, kept, &removed)?;
        if put.live_sessions == LiveSessions::Refuse {
            refuse_live(cell, &sessions)?;
        }
        let receipts = self.begin_receipts(&put.stamp, cell, &removed, &sessions);
        let (kind, stored) = match spec {
            None => (WishKind::Tombstone { destroy: false }, StoredWish::Tombstone { destroy: false }),
            Some((spec, wire)) => (WishKind::Spec(spec), StoredWish::Spec(wire.encode_to_vec())),
        };
        let new: Vec<_> = receipts.iter().map(NewReceipt::of).collect();
        let rows = self.shared.store.put_spec(Kind::Export, cell.id, &put.stamp, &stored, &put.opaque, &new);
        let rows = rows.map_err(Refusal::Store)?;
        let durable = put.decoded.elapsed();
        let mut state = cell.state();
        if let WishKind::Spec(spec) = &kind {
            let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
            lock(&self.shared.naas).entry(names.naa()).or_insert(cell.id);
        }
        state.export = Some(Wish { stamp: put.stamp, kind, opaque: put.opaque });
        let any = !receipts.is_empty();
        for (row, receipt) in rows.into_iter().zip(receipts) {
            self.publish(Change::Receipt(receipt.clone()));
            state.open_receipts.push(OpenReceipt { row, receipt });
        }
        Ok(Admitted { durable, receipts: any })
    }

    fn check_export(&self, cell: &Cell, spec: &ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
        if let Some(kept) = kept.filter(|kept| kept.identity != spec.identity) {
            let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
            return Err(Refusal::Precondition(format!(
                "volume {} is exported as {}; an identity never changes",
                cell.id, names.iqn
            )));
        }
        let naa = spec.identity.names(cell.id, &self.shared.config.iqn_prefix).naa();
        if let Some(other) = lock(&self.shared.naas).get(&naa).copied().filter(|other| *other != cell.id) {
            return Err(Refusal::NaaCollision { volume: cell.id, naa, other });
        }
        // Only portals that are new are looked up: the answer for the others is in the reports.
        let new: Vec<_> = spec
            .portals
            .iter()
            .filter(|portal| kept.is_none_or(|kept| !kept.portals.contains(portal)))
            .collect();
        if !new.is_empty() {
            let here = (self.shared.machine.addresses)();
            if let Some(portal) = new.iter().find(|portal| !here.contains(&portal.address())) {
                let list: Vec<_> =
                    here.iter().filter(|ip| !ip.is_loopback()).map(Ipv4Addr::to_string).collect();
                return Err(Refusal::Precondition(format!(
                    "portal {portal}: this host does not have the address {} (it has {})",
                    portal.address(),
                    list.join(", ")
                )));
            }
        }
        self.check_quarantine(cell, spec, kept)
    }

    /// While a receipt of this volume stays unproven, nobody new may write: commands of the revoked nexus may still land.
    fn check_quarantine(
        &self,
        cell: &Cell,
        spec: &ExportSpec,
        kept: Option<&ExportSpec>,
    ) -> Result<(), Refusal> {
        let writes = |grant: &Grant| grant.mode == Mode::ReadWrite;
        let new_writer = spec.grants.iter().find(|grant| {
            writes(grant) && !kept.and_then(|kept| kept.grant(&grant.initiator)).is_some_and(writes)
        });
        let Some(writer) = new_writer else { return Ok(()) };
        let now = self.shared.machine.clock.now();
        let limit = Duration::from_millis(u64::from(self.shared.config.answer_deadline_ms));
        let state = cell.state();
        let overdue = state
            .open_receipts
            .iter()
            .find(|open| now.duration_since(open.receipt.began).is_ok_and(|since| since >= limit));
        match overdue {
            None => Ok(()),
            Some(open) => Err(Refusal::Precondition(format!(
                "volume {} is quarantined: commands of {} may still land since its force detach; {} gets no write access until \
                 the kernel's call returns",
                cell.id, open.receipt.initiator, writer.initiator
            ))),
        }
    }

    /// The live sessions of the grants that go. When the volume's tree is blocked by a call that does not return, nothing
    /// is read: the receipt then names no sessions.
    fn sessions_of(
        &self,
        cell: &Cell,
        kept: Option<&ExportSpec>,
        removed: &[Grant],
    ) -> Result<BTreeMap<Iqn, Vec<SessionReport>>, Refusal> {
        let Some(kept) = kept.filter(|_| !removed.is_empty() && cell.state().stuck().is_none()) else {
            return Ok(BTreeMap::new());
        };
        let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let tree = &*self.shared.machine.target;
        let target = |source| Refusal::Target { volume: cell.id, source };
        let view = ExportView::read(tree, &names).map_err(target)?;
        let live = mooring_targets::read_sessions(tree, &names, &view).map_err(target)?;
        let of = |grant: &Grant| {
            live.get(grant.initiator.as_str()).map(|live| live.sessions.clone()).unwrap_or_default()
        };
        Ok(removed.iter().map(|grant| (grant.initiator.clone(), of(grant))).collect())
    }

    fn begin_receipts(
        &self,
        stamp: &Stamp,
        cell: &Cell,
        removed: &[Grant],
        sessions: &BTreeMap<Iqn, Vec<SessionReport>>,
    ) -> Vec<Receipt> {
        let began = self.shared.machine.clock.now();
        let receipt = |grant: &Grant| {
            let sessions = sessions.get(&grant.initiator).cloned().unwrap_or_default();
            let in_flight = sessions.iter().map(|session| session.in_flight).sum();
            Receipt {
                volume: cell.id,
                initiator: grant.initiator.clone(),
                attachments: grant.attachments.clone(),
                generation: stamp.generation,
                revoked: Revoked::Nexus,
                sessions,
                proof: Proof::Unproven { in_flight },
                began,
                ended: None,
            }
        };
        removed.iter().map(receipt).collect()
    }
}

/// The grants of `kept` that `new` no longer has.
fn removed_grants(kept: Option<&ExportSpec>, new: Option<&ExportSpec>) -> Vec<Grant> {
    let stays = |grant: &&Grant| new.is_none_or(|new| new.grant(&grant.initiator).is_none());
    kept.map(|kept| kept.grants.iter().filter(stays).cloned().collect()).unwrap_or_default()
}

fn refuse_live(cell: &Cell, sessions: &BTreeMap<Iqn, Vec<SessionReport>>) -> Result<(), Refusal> {
    let Some((initiator, sessions)) = sessions.iter().find(|(_, sessions)| !sessions.is_empty()) else {
        return Ok(());
    };
    let addresses: Vec<_> = sessions.iter().flat_map(|session| session.addresses.iter().cloned()).collect();
    Err(Refusal::LiveSession {
        initiator: initiator.clone(),
        volume: cell.id,
        addresses: addresses.join(", "),
    })
}

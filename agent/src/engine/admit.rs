//! Admission: whether a change may be taken, and the one write that makes it durable.
//!
//! What must never happen here: a change that is written before every check has passed; an answer before it is written; a
//! kept secret in an answer.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_api::v1;
use mooring_model::limit::OPAQUE_BYTES_MAX;
use mooring_model::{
    AttachmentId, BlockedKind, Cause, ClusterId, Cure, ExportIdentity, ExportNames, ExportSpec, FcExportSpec,
    FcGrant, FcPort, Fence, Grant, Initiator, Iqn, Mode, Naa, Portal, Proof, Receipt, Revoked, SessionReport,
    Stamp, VolumeKind, VolumeSpec,
};
use mooring_targets::ExportView;
use mooring_targets::fc::Place;
use prost::Message;

use super::addresses::listed;
use super::cell::{Cell, State, Wish, WishKind};
use super::knowledge::Stale;
use super::receipts::OpenReceipt;
use super::upload::begins_upload;
use super::{Change, Engine, LiveSessions, PutExport, PutVolume, Refusal, VolumeWish, lock, pass};
use crate::object::seen::Seen;
use crate::store::{Kind, NewReceipt, StoreError, StoredSpec, StoredWish};
use crate::turn::Claim;
use crate::volumes::{self, VolumesView};

/// What an admission writes.
struct Keep<'a> {
    sender: ClusterId,
    kind: Kind,
    stamp: &'a Stamp,
    wish: &'a StoredWish,
    opaque: &'a [u8],
    receipts: &'a [NewReceipt],
    /// The identity on the wire that comes with it.
    naa: Option<Naa>,
}

/// What admission of an export leaves.
pub(super) struct Admitted {
    /// Until the wish was durable.
    pub(super) durable: Duration,
    /// There may be receipts of this generation.
    pub(super) receipts: bool,
    /// Passes that had begun: a later one has seen the change.
    pub(super) after: u64,
}

/// What the kernel has of the grants that go.
enum Going {
    Seen(BTreeMap<Initiator, Nexus>),
    /// A call of this volume is at work that whoever looks would wait for.
    Unknown,
}

/// One of them.
struct Nexus {
    there: bool,
    sessions: Vec<SessionReport>,
    /// Commands that were taken and not answered. `None`: any number.
    in_flight: Option<u32>,
}

/// A grant that goes.
struct Removed {
    initiator: Initiator,
    attachments: Vec<AttachmentId>,
}

/// A volume's wish as the store has it.
pub(super) fn stored_volume(stored: &StoredSpec) -> Result<Wish<VolumeSpec>, StoreError> {
    let kind = match &stored.wish {
        StoredWish::Tombstone { destroy } => WishKind::Tombstone { destroy: *destroy },
        StoredWish::Released => WishKind::Released,
        StoredWish::Spec(body) => {
            let wire = v1::VolumeSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            WishKind::Spec(mooring_api::volume_from_wire(stored.volume, &wire).map_err(|_| stored.corrupt())?)
        }
        StoredWish::Revoked => return Err(stored.corrupt()),
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
        StoredWish::Released | StoredWish::Revoked => return Err(stored.corrupt()),
    };
    Ok(Wish { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

/// Fills in the secrets that the sender left out because it does not know them: an empty secret with the kept user's name
/// stands for the secret that is kept for this initiator.
fn keep_secrets(spec: &mut v1::ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
    let is_empty = |side: &v1::ChapSide| side.secret.is_empty();
    for (index, grant) in spec.grants.iter_mut().enumerate() {
        let initiator = &grant.initiator;
        let Some(chap) = grant.chap.as_mut() else { continue };
        // As a rule the sender knows them all.
        if !chap.initiator.iter().chain(&chap.mutual).any(is_empty) {
            continue;
        }
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

impl State {
    /// Takes a volume's spec or tombstone that the store has now. `looked` is LVM's view of it, if admission has asked LVM.
    fn admit_volume(&mut self, wish: Wish<VolumeSpec>, looked: Option<Seen<VolumesView>>) {
        self.note_cut_wish(wish.stamp.generation, wish.spec());
        // As the store has it: what was made stays made whatever is wished of it next, until it ends.
        if wish.spec().is_none() {
            self.established.end_lv();
        }
        self.set_volume(wish);
        // At once: what is at work gives way to a wish as soon as anybody can see it.
        self.turn.ask_anew();
        self.knowledge.take_spec(looked);
        self.knowledge.learn_orphan(None);
    }
}

impl Engine {
    pub(super) fn check_sender(&self, sender: ClusterId) -> Result<(), Refusal> {
        match self.shared.store.cluster().map_err(Refusal::Store)? {
            Some(pinned) if pinned != sender => Err(Refusal::OtherCluster { pinned, sender }),
            Some(_) | None => Ok(()),
        }
    }

    /// The one write of an admission, when every check has passed. Returns the receipts' rows.
    fn keep(&self, cell: &Cell, kept: &Keep<'_>, claim: &Claim) -> Result<Vec<i64>, Refusal> {
        if !claim.take() {
            return Err(Refusal::busy(cell.id, cell.state().stuck()));
        }
        let store = &self.shared.store;
        // The first sender whose wish is taken takes the agent. Before the wish, so that a crash between the two leaves an
        // agent that this sender can go on with. Another sender may have been first meanwhile.
        self.check_sender(kept.sender)?;
        store.pin(kept.sender).map_err(Refusal::Store)?;
        let claimed = kept.naa.as_ref().map(|naa| self.claim_naa(cell, naa)).transpose()?.unwrap_or(false);
        let rows = store.put_spec(kept.kind, cell.id, kept.stamp, kept.wish, kept.opaque, kept.receipts);
        if let (Err(_), Some(naa), true) = (&rows, &kept.naa, claimed) {
            lock(&self.shared.naas).remove(naa);
        }
        rows.map_err(Refusal::Store)
    }

    /// Gives a volume its identity on the wire; `false` when it has it already.
    fn claim_naa(&self, cell: &Cell, naa: &Naa) -> Result<bool, Refusal> {
        match lock(&self.shared.naas).entry(naa.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(cell.id);
                Ok(true)
            }
            Entry::Occupied(entry) if *entry.get() == cell.id => Ok(false),
            Entry::Occupied(entry) => {
                Err(Refusal::NaaCollision { volume: cell.id, naa: naa.clone(), other: *entry.get() })
            }
        }
    }

    fn check_naa(&self, cell: &Cell, naa: &Naa) -> Result<(), Refusal> {
        match lock(&self.shared.naas).get(naa) {
            Some(other) if *other != cell.id => {
                Err(Refusal::NaaCollision { volume: cell.id, naa: naa.clone(), other: *other })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_fence(object: &str, stamp: &Stamp, kept: Option<&Stamp>) -> Result<Fence, Refusal> {
        let fence = stamp.fence(kept);
        let kept = kept.map_or(stamp.generation, |kept| kept.generation);
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

    /// Takes a change of a volume. Returns how many passes had begun: a later one has seen the change.
    pub(super) fn admit_volume(
        &self,
        cell: &Arc<Cell>,
        put: PutVolume,
        claim: &Claim,
    ) -> Result<u64, Refusal> {
        self.check_sender(put.cluster)?;
        let (kept, export) = cell.state().wishes();
        let object = format!("volume {}", cell.id);
        // Before all else that may be wrong with the wish: its sender may send a tombstone next.
        if put.new {
            self.check_unknown(cell, &put.stamp, (kept.as_ref(), export.as_ref()))?;
        }
        Self::check_opaque(&put.opaque)?;
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            return Ok(cell.state().turn.passes());
        }
        // Until what is wanted is what is written.
        let mut held = None;
        let (mut looked, began) = (None, cell.state().knowledge.begin_look());
        let (kind, stored, naa) = match put.wish {
            VolumeWish::Spec(spec) => {
                let old = kept.as_ref().and_then(Wish::spec);
                let reverts = spec.revert.is_some() && old.is_none_or(|old| begins_revert(old, &spec));
                if reverts || begins_upload(old, &spec) {
                    // Whoever reaches the volume has parts of it in memory, and would write them over what comes back, or
                    // into what is copied.
                    self.check_not_granted(cell, export.as_ref())?;
                }
                let export = export.as_ref().and_then(Wish::spec);
                cell.check_not_cut(old, Some(&spec))?;
                self.check_source_not_cut(&spec)?;
                held = self.hold_shorter(cell, old, (&spec, &put.stamp), claim)?;
                let new = put.new.then(|| self.check_no_lv(cell, (&spec, &put.stamp), claim)).transpose()?;
                looked = self.check_volume(cell, (&spec, &put.stamp), kept.as_ref(), export, (new, claim))?;
                self.forget_upload(cell, old, &spec)?;
                let body = v1::VolumeSpec::from(&spec).encode_to_vec();
                let naa = Naa::of_serial(&cell.id.to_string());
                (WishKind::Spec(spec), StoredWish::Spec(body), Some(naa))
            }
            VolumeWish::Tombstone { destroy } => {
                cell.check_not_cut(kept.as_ref().and_then(Wish::spec), None)?;
                self.check_not_granted(cell, export.as_ref())?;
                (WishKind::Tombstone { destroy }, StoredWish::Tombstone { destroy }, None)
            }
            VolumeWish::Release => {
                cell.check_not_cut(kept.as_ref().and_then(Wish::spec), None)?;
                self.check_not_granted(cell, export.as_ref())?;
                check_releasable(cell, kept.as_ref())?;
                (WishKind::Released, StoredWish::Released, None)
            }
        };
        let keep = Keep {
            sender: put.cluster,
            kind: Kind::Volume,
            stamp: &put.stamp,
            wish: &stored,
            opaque: &put.opaque,
            receipts: &[],
            naa,
        };
        self.keep(cell, &keep, claim)?;
        let mut state = cell.state();
        let looked = looked.map(|view| Seen::new(began, view));
        state.admit_volume(Wish { stamp: put.stamp, kind, opaque: put.opaque }, looked);
        let passes = state.turn.passes();
        drop(state);
        drop(held);
        Ok(passes)
    }

    /// A volume goes only when nobody is granted it: by the spec, or, should there be none (the store was lost), by what the
    /// kernel serves.
    fn check_not_granted(&self, cell: &Cell, export: Option<&Wish<ExportSpec>>) -> Result<(), Refusal> {
        let refuse = |why| Err(Refusal::precondition(why, Cure::FixSpec));
        let Some(wish) = export else {
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
        match wish.spec().map_or(0, |spec| spec.grants.len() + spec.fc.grants.len()) {
            0 => Ok(()),
            grants => refuse(format!(
                "volume {0} is granted to {grants} initiator(s): revoke them first (see `mooring export show {0}`)",
                cell.id
            )),
        }
    }

    /// Refuses a volume that cannot be had. Returns the view, if LVM was asked for one. `view`: LVM was asked already.
    fn check_volume(
        &self,
        cell: &Cell,
        (spec, stamp): (&VolumeSpec, &Stamp),
        kept: Option<&Wish<VolumeSpec>>,
        export: Option<&ExportSpec>,
        (view, claim): (Option<VolumesView>, &Claim),
    ) -> Result<Option<VolumesView>, Refusal> {
        let groups = &self.shared.config.groups;
        if !groups.iter().any(|group| group.name == spec.group) {
            let allowed: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
            return Err(Refusal::NotAllowed(format!(
                "volume group {} is not in this agent's configuration (groups: {})",
                spec.group,
                allowed.join(", ")
            )));
        }
        self.check_naa(cell, &Naa::of_serial(&cell.id.to_string()))?;
        match kept.map(|kept| &kept.kind) {
            Some(WishKind::Spec(old)) if old.group != spec.group => {
                let why = format!("volume {} lies in group {}; it cannot be moved", cell.id, old.group);
                return Err(Refusal::precondition(why, Cure::FixSpec));
            }
            Some(WishKind::Spec(old))
                if (old.kind, old.provisioning) != (spec.kind, spec.provisioning)
                    // Once it is made, its sender says no more what from.
                    || spec.source.is_some_and(|source| old.source != Some(source))
                    || spec.takes.is_some() && old.takes != spec.takes =>
            {
                let why = format!(
                    "volume {}: whether it is a snapshot, thin or thick, and what it was made from cannot change",
                    cell.id
                );
                return Err(Refusal::precondition(why, Cure::FixSpec));
            }
            // A smaller size was looked into before.
            Some(WishKind::Spec(old)) if old.size >= spec.size && !begins_revert(old, spec) => {
                return Ok(None);
            }
            Some(WishKind::Spec(_) | WishKind::Tombstone { .. } | WishKind::Released) | None => {}
        }
        // A new volume, or a larger one: what cannot be made is refused now, and nothing is kept of it.
        let view = view.map_or_else(|| self.view_for_wish(cell, spec, stamp, claim), Ok)?;
        let dying = matches!(kept.map(|kept| &kept.kind), Some(WishKind::Tombstone { destroy: true }));
        if dying && view.lv(&spec.group, cell.id).is_some() {
            let why = format!("volume {} is still being deleted: try again when it is gone", cell.id);
            return Err(Refusal::precondition(why, Cure::Retry));
        }
        let wanted = pass::wanted_spec(spec, export, cell.state().established.is_made(), false);
        let plan = volumes::plan(&wanted, &view, cell.id);
        match plan.blocked.first() {
            None => Ok(Some(view)),
            Some(blocked) => {
                let text = format!("{}: {}", blocked.object, blocked.why);
                Err(match blocked.kind {
                    BlockedKind::Full => Refusal::NoSpace(text),
                    BlockedKind::Foreign | BlockedKind::Collision => Refusal::Foreign(text),
                    BlockedKind::Birth | BlockedKind::Missing | BlockedKind::Held => {
                        Refusal::precondition(text, blocked.kind.cure())
                    }
                })
            }
        }
    }

    /// Takes a change of an export.
    pub(super) fn admit_export(
        &self,
        cell: &Arc<Cell>,
        put: PutExport,
        claim: &Claim,
    ) -> Result<Admitted, Refusal> {
        Self::check_opaque(&put.opaque)?;
        self.check_sender(put.cluster)?;
        let (volume, kept) = cell.state().wishes();
        let object = format!("the export of volume {}", cell.id);
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            // Whoever asks again wants to know what is so now: the pass looks at all of it.
            let mut state = cell.state();
            state.knowledge.forget(Stale::ExportAskedAgain);
            let (durable, after) = (put.decoded.elapsed(), state.turn.passes());
            return Ok(Admitted { durable, receipts: true, after });
        }
        let said_gone = kept.as_ref().is_some_and(|kept| kept.spec().is_none());
        let kept = kept.as_ref().and_then(Wish::spec);
        let (kind, stored, naa) = match put.spec {
            None => {
                self.check_removable(cell, kept)?;
                (WishKind::Tombstone { destroy: false }, StoredWish::Tombstone { destroy: false }, None)
            }
            Some(mut wire) => {
                check_exportable(cell, volume.as_ref())?;
                keep_secrets(&mut wire, kept)?;
                let spec = mooring_api::export_from_wire(cell.id, &wire).map_err(Refusal::Invalid)?;
                cell.check_may_grant(volume.as_ref(), &spec)?;
                self.check_export(cell, &spec, kept)?;
                let naa = spec.identity.names(cell.id, &self.shared.config.iqn_prefix).naa();
                (WishKind::Spec(spec), StoredWish::Spec(wire.encode_to_vec()), Some(naa))
            }
        };
        let wish = Wish { stamp: put.stamp, kind, opaque: put.opaque };
        // A tombstone takes away what has the names that follow from the id.
        let identity = kept.or(wish.spec()).map_or(&ExportIdentity::Derived, |spec| &spec.identity);
        let removed = match kept {
            Some(kept) => removed_grants(kept, wish.spec()),
            // What the tombstone before this one took away has its receipts.
            None if said_gone && wish.spec().is_none() => Vec::new(),
            None => self.unknown_grants(cell, identity, wish.spec())?,
        };
        let going = self.look_at(cell, identity, &removed)?;
        if put.live_sessions == LiveSessions::Refuse && !removed.is_empty() {
            refuse_live(cell, &going)?;
        }
        let receipts = self.begin_receipts(&wish.stamp, cell, &removed, &going);
        self.remember_places(cell, wish.spec())?;
        let keep = Keep {
            sender: put.cluster,
            kind: Kind::Export,
            stamp: &wish.stamp,
            wish: &stored,
            opaque: &wish.opaque,
            receipts: &receipts.iter().map(NewReceipt::of).collect::<Vec<_>>(),
            naa,
        };
        // Before the wish: once that is kept, the agent knows better.
        if wish.spec().is_some() {
            self.take_reservations(cell, &put.reservations_copy)?;
        }
        let rows = self.keep(cell, &keep, claim)?;
        let durable = put.decoded.elapsed();
        let losers = Self::losers(cell, kept);
        let mut state = cell.state();
        state.reserved.retain(|initiator| removed.iter().all(|gone| gone.initiator != *initiator));
        state.receipts.set_newest(wish.stamp.generation, receipts.iter().rev().cloned().collect());
        state.admit_export(wish);
        let (any, began) = (!receipts.is_empty(), Some(self.began(put.decoded.elapsed())));
        for (row, receipt) in rows.into_iter().zip(receipts) {
            self.publish(Change::Receipt(receipt.clone()));
            state.receipts.add_open(OpenReceipt { row, receipt, began });
        }
        if let Some(losers) = losers {
            self.shut_out_if_stuck(cell, losers);
        }
        Ok(Admitted { durable, receipts: any, after: state.turn.passes() })
    }

    /// When a receipt of a request that came so long ago has begun: from there the deadline of its answer counts, so what an answer has
    /// waited for in vain is in quarantine, however long it took to write this down.
    fn began(&self, ago: Duration) -> Instant {
        let now = self.shared.machine.clock.instant();
        now.checked_sub(ago).unwrap_or(now)
    }

    /// A tombstone keeps no names: it takes away what has the names that follow from the volume's id.
    fn check_removable(&self, cell: &Cell, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
        let Some(kept) = kept.filter(|kept| kept.identity != ExportIdentity::Derived) else { return Ok(()) };
        let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let why = format!(
            "volume {} is exported under recorded names, as {}: revoke its grants, and take the volume away with it",
            cell.id, names.iqn
        );
        Err(Refusal::precondition(why, Cure::FixSpec))
    }

    fn check_export(&self, cell: &Cell, spec: &ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
        if let Some(kept) = kept.filter(|kept| kept.identity != spec.identity) {
            let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
            let why = format!("volume {} is exported as {}; an identity never changes", cell.id, names.iqn);
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        check_lun_zero(cell, spec, kept)?;
        let prefix = &self.shared.config.iqn_prefix;
        if let Some(grant) = spec.grants.iter().find(|grant| prefix.is_reserver(&grant.initiator)) {
            let why = format!(
                "{} is the name of a storage agent that changes reservations: nobody is granted anything under it",
                grant.initiator
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        self.check_naa(cell, &spec.identity.names(cell.id, &self.shared.config.iqn_prefix).naa())?;
        // Only portals that are new are looked up: the answer for the others is in the reports.
        let new: Vec<_> = spec
            .portals
            .iter()
            .filter(|portal| kept.is_none_or(|kept| !kept.portals.contains(portal)))
            .collect();
        if let Some(portal) = new.iter().find(|portal| portal.address().is_loopback()) {
            let why = format!("portal {portal}: no other host reaches a loopback address");
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        if !new.is_empty() {
            let here = (self.shared.machine.addresses)();
            let is_here = |portal: &Portal| here.iter().any(|address| address.ip == portal.address());
            if let Some(portal) = new.iter().find(|portal| !is_here(portal)) {
                let why = format!(
                    "portal {portal}: this host does not have the address {} (it has {})",
                    portal.address(),
                    listed(&here)
                );
                return Err(Refusal::precondition(why, Cure::FixSpec));
            }
        }
        self.check_ports(&spec.fc, kept.map(|kept| &kept.fc))?;
        self.check_quarantine(cell, spec, kept)
    }

    /// A new grant over Fibre Channel needs a port, and a port that is newly named must be one that serves. What is kept is not
    /// judged again: a port that went must not stand in the way of a change that takes something away.
    fn check_ports(&self, fc: &FcExportSpec, kept: Option<&FcExportSpec>) -> Result<(), Refusal> {
        let has = |grant: &FcGrant| {
            kept.is_some_and(|kept| kept.grants.iter().any(|kept| Place::of(kept) == Place::of(grant)))
        };
        let named = |port: &FcPort| kept.is_some_and(|kept| kept.ports.contains(port));
        let asks = fc.grants.iter().any(|grant| !has(grant));
        let mut ports_new = fc.ports.iter().filter(|port| !named(port)).peekable();
        if fc.grants.is_empty() || (!asks && ports_new.peek().is_none()) {
            return Ok(());
        }
        let ports = lock(&self.shared.ports);
        let served: Vec<_> = ports.served().map(|(port, _)| port).collect();
        if let Some(port) = ports_new.find(|port| !served.contains(port)) {
            let list: Vec<_> = served.iter().map(ToString::to_string).collect();
            let why = format!(
                "port {port} does not serve here (those that do: {}): see [fibre_channel] in the configuration",
                if list.is_empty() { "none".to_owned() } else { list.join(", ") }
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        if asks && !served.iter().any(|port| ports.serves(fc, *port)) {
            let why = "this agent serves no Fibre Channel port for the new grant: see [fibre_channel] in its configuration";
            return Err(Refusal::precondition(why.to_owned(), Cure::Operator));
        }
        Ok(())
    }

    /// While a receipt of this volume stays unproven, nobody new may write: commands of the revoked nexus may still land.
    fn check_quarantine(
        &self,
        cell: &Cell,
        spec: &ExportSpec,
        kept: Option<&ExportSpec>,
    ) -> Result<(), Refusal> {
        // Almost always there is none, and nothing to look for.
        if cell.state().receipts.open().is_empty() {
            return Ok(());
        }
        let before: HashSet<Initiator> = kept.into_iter().flat_map(writers).collect();
        let Some(writer) = writers(spec).find(|writer| !before.contains(writer)) else { return Ok(()) };
        let state = cell.state();
        let Some(open) = self.quarantine(&state) else { return Ok(()) };
        let why = format!(
            "volume {} is quarantined: commands of {} may still land since its force detach; {} gets no write access until \
             the kernel's call returns",
            cell.id, open.receipt.initiator, writer
        );
        Err(Refusal::precondition(why, Cure::Retry))
    }

    /// What the kernel has of the grants that go. Nothing is read while a call of this volume does not return: a revoke
    /// must not wait for another one.
    fn look_at(&self, cell: &Cell, identity: &ExportIdentity, removed: &[Removed]) -> Result<Going, Refusal> {
        if removed.is_empty() {
            return Ok(Going::Seen(BTreeMap::new()));
        }
        let running = {
            let state = cell.state();
            if state.is_blocked() {
                return Ok(Going::Unknown);
            }
            state.turn.is_running()
        };
        let names = identity.names(cell.id, &self.shared.config.iqn_prefix);
        let tree = &*self.shared.machine.target;
        let target = |source| Refusal::Target { volume: cell.id, source: Box::new(source) };
        let mut nexuses = BTreeMap::new();
        for iqn in removed.iter().filter_map(|grant| grant.initiator.iqn()) {
            // Only those that go are looked at: a revoke does not cost more with more attachments.
            let live = mooring_targets::read_sessions_of(tree, &names, iqn.as_str()).map_err(target)?;
            // A pass at work may be making it, and then nobody has counted what came since.
            let there = running || live.is_some();
            let counted = live.is_some() || !running;
            let sessions = live.unwrap_or_default();
            let in_flight = counted.then(|| sessions.iter().map(|session| session.in_flight).sum());
            nexuses.insert(iqn.clone().into(), Nexus { there, sessions, in_flight });
        }
        self.count_unseen(cell, &names, &mut nexuses).map_err(target)?;
        if removed.iter().any(|grant| grant.initiator.wwpn().is_some()) {
            let linked = self.fc_initiators(cell, &names).map_err(target)?;
            for initiator in removed.iter().map(|grant| &grant.initiator).filter(|it| it.wwpn().is_some()) {
                let there = running || linked.contains(initiator);
                // A port stays logged in for its other volumes, and its commands are not counted.
                let nexus = Nexus { there, sessions: Vec::new(), in_flight: (!there).then_some(0) };
                nexuses.insert(initiator.clone(), nexus);
            }
        }
        Ok(Going::Seen(nexuses))
    }

    /// Of several sessions of one initiator the kernel shows the newest, and counts them all. What those that nobody sees may
    /// have in flight is as much as their windows hold: of a revoke it is said that at most so many commands may still land.
    /// Whose they are is not known; those of initiators that stay are as the pulse saw them last.
    fn count_unseen(
        &self,
        cell: &Cell,
        names: &ExportNames,
        going: &mut BTreeMap<Initiator, Nexus>,
    ) -> Result<(), mooring_targets::Error> {
        let tree = &*self.shared.machine.target;
        let shown: usize = going.values().map(|nexus| nexus.sessions.len()).sum();
        if shown == 0 {
            return Ok(());
        }
        let stay = cell
            .state()
            .knowledge
            .lives()
            .map(|lives| lives.count_without(|initiator| going.contains_key(initiator)));
        let total = mooring_targets::count_sessions(tree, names)?;
        let (Some(stay), Some(total)) = (stay, total) else { return Ok(()) };
        let unseen = total.saturating_sub(u32::try_from(shown + stay).unwrap_or(u32::MAX));
        if unseen == 0 {
            return Ok(());
        }
        for (initiator, nexus) in going.iter_mut().filter(|(_, nexus)| !nexus.sessions.is_empty()) {
            let Some(iqn) = initiator.iqn() else { continue };
            // Sessions that are known, with a window that is not: any number.
            let window = mooring_targets::read_window(tree, names, iqn.as_str())?;
            let more = window.map(|window| unseen.saturating_mul(window));
            nexus.in_flight = nexus.in_flight.zip(more).map(|(seen, more)| seen.saturating_add(more));
        }
        Ok(())
    }

    /// Without a kept spec (the store was lost) the kernel says who is there: whoever the new spec leaves out, and everybody for
    /// a tombstone, is revoked like any other, with its receipt, and not when it is logged in and must not be cut.
    fn unknown_grants(
        &self,
        cell: &Cell,
        identity: &ExportIdentity,
        new: Option<&ExportSpec>,
    ) -> Result<Vec<Removed>, Refusal> {
        let names = identity.names(cell.id, &self.shared.config.iqn_prefix);
        let there = mooring_targets::read_initiators(&*self.shared.machine.target, &names);
        let target = |source| Refusal::Target { volume: cell.id, source: Box::new(source) };
        let there = there.map_err(target)?;
        let over_iscsi = there.iter().filter_map(|name| name.parse::<Iqn>().ok()).map(Initiator::from);
        let over_fc = self.fc_initiators(cell, &names).map_err(target)?;
        let stay: HashSet<Initiator> =
            new.into_iter().flat_map(grants).map(|grant| grant.initiator).collect();
        let left_out = over_iscsi.chain(over_fc).filter(|initiator| !stay.contains(initiator));
        Ok(left_out.map(|initiator| Removed { initiator, attachments: Vec::new() }).collect())
    }

    fn begin_receipts(&self, stamp: &Stamp, cell: &Cell, removed: &[Removed], going: &Going) -> Vec<Receipt> {
        let began = self.shared.machine.clock.now();
        // As the last pass or report saw it: a revoke has no read of its own for that.
        let seen = cell.state().held.seen();
        let receipt = |grant: &Removed| {
            let nexus = going.nexus(&grant.initiator);
            let sessions = nexus.map(|nexus| nexus.sessions.clone()).unwrap_or_default();
            let there = nexus.is_none_or(|nexus| nexus.there);
            let in_flight = nexus.and_then(|nexus| nexus.in_flight);
            Receipt {
                volume: cell.id,
                initiator: grant.initiator.clone(),
                attachments: grant.attachments.clone(),
                generation: stamp.generation,
                revoked: if there { Revoked::Nexus } else { Revoked::Nothing },
                sessions,
                proof: Proof::Unproven { in_flight },
                began,
                ended: None,
                reservation: seen.as_ref().and_then(|seen| seen.held_by(&grant.initiator)),
                cause: Cause::Revoke,
            }
        };
        removed.iter().map(receipt).collect()
    }
}

/// Whether a revert is wanted that was not wanted before.
fn begins_revert(old: &VolumeSpec, spec: &VolumeSpec) -> bool {
    spec.revert.is_some() && spec.revert != old.revert
}

/// Only a volume is exported, and one that the agent has.
fn check_exportable(cell: &Cell, volume: Option<&Wish<VolumeSpec>>) -> Result<(), Refusal> {
    match volume.and_then(Wish::spec) {
        None => Err(Refusal::UnknownVolume(cell.id)),
        Some(of) if of.kind == VolumeKind::Snapshot => {
            let why = format!("{} is a snapshot: make a volume from it, and export that", cell.id);
            Err(Refusal::precondition(why, Cure::FixSpec))
        }
        Some(_) => Ok(()),
    }
}

/// Whoever had LUN 0 when its export was adopted keeps it; nobody gets it anew, because a host that loses it may read zeros for
/// a moment (lio.md, d). Without a kept spec (the store was lost) nobody knows who had it.
fn check_lun_zero(cell: &Cell, spec: &ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
    let Some(kept) = kept else { return Ok(()) };
    let had = |grant: &&Grant| kept.grant(&grant.initiator).is_some_and(|kept| kept.lun == grant.lun);
    let anew = spec.grants.iter().filter(|grant| grant.lun.0 == 0).find(|grant| !had(grant));
    let Some(grant) = anew else { return Ok(()) };
    let why = format!(
        "{} gets volume {} as LUN 0, which it did not have when the export was adopted: want 1 to 65535",
        grant.initiator, cell.id
    );
    Err(Refusal::precondition(why, Cure::FixSpec))
}

/// What is let go is a volume that is whole.
fn check_releasable(cell: &Cell, kept: Option<&Wish<VolumeSpec>>) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::precondition(why, Cure::FixSpec));
    match kept.map(|kept| &kept.kind) {
        Some(WishKind::Spec(spec)) if spec.kind == VolumeKind::Snapshot => {
            refuse(format!("{} is a snapshot: it is deleted, not let go", cell.id))
        }
        Some(WishKind::Tombstone { destroy: true }) => {
            refuse(format!("volume {} is being deleted: it cannot be let go any more", cell.id))
        }
        Some(WishKind::Spec(_) | WishKind::Tombstone { .. } | WishKind::Released) | None => Ok(()),
    }
}

/// The grants of a spec, over all fabrics.
fn grants(spec: &ExportSpec) -> impl Iterator<Item = Removed> {
    let iscsi = spec.grants.iter().map(|grant| (grant.initiator.clone().into(), &grant.attachments));
    let fc = spec.fc.grants.iter().map(|grant| (grant.initiator.into(), &grant.attachments));
    iscsi.chain(fc).map(|(initiator, attachments)| Removed { initiator, attachments: attachments.clone() })
}

/// The grants of `kept` that `new` no longer has.
fn removed_grants(kept: &ExportSpec, new: Option<&ExportSpec>) -> Vec<Removed> {
    let stay: HashSet<Initiator> = new.into_iter().flat_map(grants).map(|grant| grant.initiator).collect();
    grants(kept).filter(|grant| !stay.contains(&grant.initiator)).collect()
}

/// Who may write, over all fabrics.
fn writers(spec: &ExportSpec) -> impl Iterator<Item = Initiator> {
    let iscsi = spec.grants.iter().map(|grant| (grant.mode, grant.initiator.clone().into()));
    let fc = spec.fc.grants.iter().map(|grant| (grant.mode, grant.initiator.into()));
    iscsi.chain(fc).filter(|(mode, _)| *mode == Mode::ReadWrite).map(|(_, initiator)| initiator)
}

impl Going {
    fn nexus(&self, initiator: &Initiator) -> Option<&Nexus> {
        match self {
            Self::Seen(nexuses) => nexuses.get(initiator),
            Self::Unknown => None,
        }
    }
}

fn refuse_live(cell: &Cell, going: &Going) -> Result<(), Refusal> {
    // Whoever wants no session cut is not told that there is none when nobody could look.
    let Going::Seen(nexuses) = going else { return Err(Refusal::busy(cell.id, cell.state().stuck())) };
    let Some((initiator, nexus)) = nexuses.iter().find(|(_, nexus)| !nexus.sessions.is_empty()) else {
        return Ok(());
    };
    let addresses: Vec<_> =
        nexus.sessions.iter().flat_map(|session| session.addresses.iter().cloned()).collect();
    Err(Refusal::LiveSession {
        initiator: initiator.clone(),
        volume: cell.id,
        addresses: addresses.join(", "),
    })
}

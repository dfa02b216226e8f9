//! Admission of an export's spec or tombstone.
//!
//! What must never happen here: a change written before every check has passed; an answer before it
//! is written; a kept secret in an answer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_api::v1;
use mooring_model::{
    AttachmentId, Cause, Cure, ExportIdentity, ExportNames, ExportSpec, FcExportSpec, FcGrant, FcPort, Fence,
    Grant, Initiator, Iqn, Mode, Portal, Proof, Receipt, Revoked, SessionReport, Stamp, VolumeKind,
    VolumeSpec,
};
use mooring_targets::fc::Place;
use prost::Message;

use crate::engine::admit::Keep;
use crate::engine::cell::{Cell, KeptSpec, SpecKind};
use crate::engine::knowledge::Stale;
use crate::engine::receipts::OpenReceipt;
use crate::engine::{Change, Engine, LiveSessions, PutExport, Refusal, lock};
use crate::links::listed;
use crate::object::admission::Claim;
use crate::store::{Kind, NewReceipt, StoreError, StoredContent, StoredSpec};

/// The result of an export's admission.
pub(in crate::engine) struct Admitted {
    /// Time until the store had the change.
    pub(in crate::engine) durable: Duration,
    /// `true` if there may be receipts of this generation.
    pub(in crate::engine) receipts: bool,
    /// Passes that had begun: a later pass has seen the change.
    pub(in crate::engine) after: u64,
}

/// The kernel's view of the grants that go.
enum Going {
    Seen(BTreeMap<Initiator, Nexus>),
    /// A call of this volume is at work, and a look would wait for it.
    Unknown,
}

/// The kernel's view of one grant that goes.
struct Nexus {
    there: bool,
    sessions: Vec<SessionReport>,
    /// Commands that were taken and not answered. `None` if they may be any number.
    in_flight: Option<u32>,
}

/// A grant that goes.
struct Removed {
    initiator: Initiator,
    attachments: Vec<AttachmentId>,
}

/// Decodes an export's spec or tombstone as the store has it.
pub(in crate::engine) fn stored_export(stored: &StoredSpec) -> Result<KeptSpec<ExportSpec>, StoreError> {
    let kind = match &stored.content {
        StoredContent::Tombstone { destroy } => SpecKind::Tombstone { destroy: *destroy },
        StoredContent::Spec(body) => {
            let wire = v1::ExportSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
            SpecKind::Spec(mooring_api::export_from_wire(stored.volume, &wire).map_err(|_| stored.corrupt())?)
        }
        StoredContent::Released | StoredContent::Revoked => return Err(stored.corrupt()),
    };
    Ok(KeptSpec { stamp: stored.stamp.clone(), kind, opaque: stored.opaque.clone() })
}

/// Fills in the secrets that the sender left out because it does not know them. An empty secret
/// with the kept user name stands for the secret that is kept for this initiator.
fn keep_secrets(spec: &mut v1::ExportSpec, kept: Option<&ExportSpec>) -> Result<(), Refusal> {
    let is_empty = |side: &v1::ChapSide| side.secret.is_empty();
    for (index, grant) in spec.grants.iter_mut().enumerate() {
        let initiator = &grant.initiator;
        let Some(chap) = grant.chap.as_mut() else { continue };
        // As a rule the sender knows all secrets.
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

impl Engine {
    /// Takes a change of an export.
    pub(in crate::engine) fn admit_export(
        &self,
        cell: &Arc<Cell>,
        put: PutExport,
        claim: &Claim,
    ) -> Result<Admitted, Refusal> {
        Self::check_opaque(&put.opaque)?;
        self.check_sender(put.cluster)?;
        let (volume, kept) = cell.state().specs();
        let object = format!("the export of volume {}", cell.id);
        if Self::check_fence(&object, &put.stamp, kept.as_ref().map(|kept| &kept.stamp))? == Fence::Same {
            // A sender that asks again wants the present state: the pass looks at all of it.
            let mut state = cell.state();
            state.knowledge.forget(Stale::ExportAskedAgain);
            let (durable, after) = (put.decoded.elapsed(), state.turn.passes());
            return Ok(Admitted { durable, receipts: true, after });
        }
        let said_gone = kept.as_ref().is_some_and(|kept| kept.spec().is_none());
        let kept = kept.as_ref().and_then(KeptSpec::spec);
        let (kind, stored, naa) = match put.spec {
            None => {
                self.check_removable(cell, kept)?;
                (SpecKind::Tombstone { destroy: false }, StoredContent::Tombstone { destroy: false }, None)
            }
            Some(mut wire) => {
                check_exportable(cell, volume.as_ref())?;
                keep_secrets(&mut wire, kept)?;
                let spec = mooring_api::export_from_wire(cell.id, &wire).map_err(Refusal::Invalid)?;
                cell.check_may_grant(volume.as_ref(), &spec)?;
                self.check_export(cell, &spec, kept)?;
                let naa = spec.identity.names(cell.id, &self.shared.config.iqn_prefix).naa();
                (SpecKind::Spec(spec), StoredContent::Spec(wire.encode_to_vec()), Some(naa))
            }
        };
        let kept_spec = KeptSpec { stamp: put.stamp, kind, opaque: put.opaque };
        // A tombstone removes the export that has the names derived from the id.
        let identity = kept.or(kept_spec.spec()).map_or(&ExportIdentity::Derived, |spec| &spec.identity);
        let removed = match kept {
            Some(kept) => removed_grants(kept, kept_spec.spec()),
            // The tombstone before this one has the receipts of what it removed.
            None if said_gone && kept_spec.spec().is_none() => Vec::new(),
            None => self.unknown_grants(cell, identity, kept_spec.spec())?,
        };
        let going = self.look_at(cell, identity, &removed)?;
        if put.live_sessions == LiveSessions::Refuse && !removed.is_empty() {
            refuse_live(cell, &going)?;
        }
        let receipts = self.begin_receipts(&kept_spec.stamp, cell, &removed, &going);
        self.remember_places(cell, kept_spec.spec())?;
        let keep = Keep {
            sender: put.cluster,
            kind: Kind::Export,
            stamp: &kept_spec.stamp,
            content: &stored,
            opaque: &kept_spec.opaque,
            receipts: &receipts.iter().map(NewReceipt::of).collect::<Vec<_>>(),
            naa,
        };
        // Before the write: once the spec is kept, the agent knows better than the sender's copy.
        if kept_spec.spec().is_some() {
            self.take_reservations(cell, &put.reservations_copy)?;
        }
        let rows = self.keep(cell, &keep, claim)?;
        let durable = put.decoded.elapsed();
        let losers = Self::losers(cell, kept);
        let mut state = cell.state();
        state.established.let_in_unless(|initiator| removed.iter().all(|gone| gone.initiator != *initiator));
        let newest = receipts.iter().rev().cloned().collect();
        state.established.receipts_mut().set_newest(kept_spec.stamp.generation, newest);
        state.admit_export(kept_spec);
        let (any, began) = (!receipts.is_empty(), Some(self.began(put.decoded.elapsed())));
        for (row, receipt) in rows.into_iter().zip(receipts) {
            self.publish(Change::Receipt(receipt.clone()));
            state.established.receipts_mut().add_open(OpenReceipt { row, receipt, began });
        }
        if let Some(losers) = losers {
            self.shut_out_if_stuck(cell, losers);
        }
        Ok(Admitted { durable, receipts: any, after: state.turn.passes() })
    }

    /// The time at which a receipt of a request that came so long `ago` has begun. The deadline of
    /// the answer counts from there: an answer that waited in vain means quarantine, however long
    /// the write took.
    fn began(&self, ago: Duration) -> Instant {
        let now = self.shared.machine.clock.instant();
        now.checked_sub(ago).unwrap_or(now)
    }

    /// Refuses a tombstone for recorded names: it removes only what has the derived names.
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
            let why = format!(
                "volume {} is exported as {}; an identity never changes: send the spec with that one",
                cell.id, names.iqn
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        check_lun_zero(cell, spec, kept)?;
        let prefix = &self.shared.config.iqn_prefix;
        if let Some(grant) = spec.grants.iter().find(|grant| prefix.is_reserver(&grant.initiator)) {
            let why = format!(
                "{} is the initiator name of a storage agent, which changes reservations: it gets no grant",
                grant.initiator
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        self.check_naa(cell, &spec.identity.names(cell.id, &self.shared.config.iqn_prefix).naa())?;
        // Looks up new portals only: the reports have the answer for the others.
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

    /// Refuses a new grant over Fibre Channel without a port that serves, and a new port that does
    /// not serve. A kept port is not judged again: if it has gone, grants can still be revoked.
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
        let ports = lock(&self.shared.export_memory.ports);
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

    /// Refuses a new writer while a receipt of this volume stays unproven: commands of the revoked
    /// nexus may still land.
    fn check_quarantine(
        &self,
        cell: &Cell,
        spec: &ExportSpec,
        kept: Option<&ExportSpec>,
    ) -> Result<(), Refusal> {
        // Almost always no receipt is open.
        if cell.state().established.receipts().open().is_empty() {
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

    /// Looks at the grants that go. Reads nothing while a call of this volume is in the way: a
    /// forced revoke does not wait for it, and another one waits outside its turn.
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
            // Reads only the grants that go: a revoke does not cost more with more attachments.
            let live = mooring_targets::read_sessions_of(tree, &names, iqn.as_str()).map_err(target)?;
            // A pass at work may be making the grant: then nothing counts what came since.
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

    /// Counts the sessions that the kernel does not show: it shows an initiator's newest, and
    /// counts all. Each unseen session may have as many commands in flight as its window holds: a
    /// receipt names that limit. Of the initiators that stay, the pulse's last look counts.
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
            // The window is unknown: any number of commands.
            let window = mooring_targets::read_window(tree, names, iqn.as_str())?;
            let more = window.map(|window| unseen.saturating_mul(window));
            nexus.in_flight = nexus.in_flight.zip(more).map(|(seen, more)| seen.saturating_add(more));
        }
        Ok(())
    }

    /// The grants that go when no spec is kept (the store was lost), as the kernel has them: all
    /// that the new spec leaves out, and all for a tombstone. They are revoked like any other.
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
        // As the last pass or report saw the reservation: a revoke does not read it.
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

/// Refuses an export of a snapshot, and of a volume that the agent does not have.
fn check_exportable(cell: &Cell, volume: Option<&KeptSpec<VolumeSpec>>) -> Result<(), Refusal> {
    match volume.and_then(KeptSpec::spec) {
        None => Err(Refusal::UnknownVolume(cell.id)),
        Some(of) if of.kind == VolumeKind::Snapshot => {
            let why = format!("{} is a snapshot: make a volume from it, and export that", cell.id);
            Err(Refusal::precondition(why, Cure::FixSpec))
        }
        Some(_) => Ok(()),
    }
}

/// Refuses LUN 0 to every initiator that did not have it when the export was adopted: a host that
/// loses it may read zeros for a moment (lio.md, d). Refuses nothing without a kept spec (the store
/// was lost): it is unknown who had it.
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

/// The grants of a spec, over all transports.
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

/// The initiators that may write, over all transports.
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
    // Nobody could look: that is no proof that no session is live.
    let Going::Seen(nexuses) = going else {
        return Err(Refusal::busy(cell.id, cell.state().in_the_way()));
    };
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

//! Revocation of access at a storage agent whose export this database does not define: of a volume
//! in review, or of a volume that it does not know. The agent gets its own spec back without the
//! revoked grants, and nothing else changes.
//!
//! What must never happen here: access revoked that nobody named; access that counts as gone while
//! the agent still grants it; a spec of this database sent for a volume in review; a receipt of an
//! agent that does not serve the volume kept among the volume's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mooring_api::{reports, v1};
use mooring_model::{AgentId, AttachmentId, Generation, Initiator, Proof, Receipt, Stamp, VolumeId};
use serde_json::Value;
use tokio::time::Instant;

use super::review::is_ahead;
use super::storage::{LOOK_LIMIT, Work};
use super::{AGAIN, Flow, Next};
use crate::agents::calls::CallError;
use crate::agents::exports::{granted_by, shown_by};
use crate::agents::words::Word;
use crate::agents::{Heard, Held};
use crate::error::Refusal;
use crate::initiators::Initiators;
use crate::store::{Abort, AttachmentRow, Db, Kind, SpecContent, Stater, Taking};

/// Generation of an attachment that is revoked although no agent was told: no receipt is as new.
pub(crate) const UNSENT: Generation = Generation { epoch: i64::MAX.unsigned_abs(), counter: 0 };

/// Longest time, in milliseconds, for an agent's answer. Receipts are looked for afterwards.
const WAIT_MS: u32 = 2_000;

/// Access to one volume that is to go at one agent.
#[derive(Default)]
struct Going {
    /// Whole nexuses.
    nexuses: Vec<Taking>,
    /// Attachments of a volume in review that are forced away: each with its own nexus, unless
    /// another attachment shares it.
    rows: Vec<AttachmentRow>,
}

impl Going {
    fn takes(&self, initiator: &Initiator) -> bool {
        self.nexuses.iter().any(|taking| taking.initiator == *initiator)
    }
}

/// An agent's answer about a volume.
#[derive(Default)]
struct Seen {
    stamp: Option<Stamp>,
    spec: v1::ExportSpec,
    opaque: Vec<u8>,
    /// Initiators to which the agent's spec grants the volume.
    granted: BTreeSet<Initiator>,
    /// Initiators that the kernel shows.
    shown: BTreeSet<Initiator>,
    /// `true`: all of the spec is in force.
    settled: bool,
    receipts: Vec<Receipt>,
}

impl Seen {
    /// Reads the answer about this volume. Nothing is settled by another volume's report.
    fn of(id: VolumeId, status: v1::VolumeStatus) -> Self {
        let own = |report: &&v1::ExportReport| report.volume_id.parse() == Ok(id);
        let spec = status.export_spec.unwrap_or_default();
        Self {
            stamp: reports::stamp(status.export_stamp.as_ref()),
            granted: granted_by(&spec).collect(),
            shown: status.export.iter().filter(own).flat_map(shown_by).collect(),
            settled: status.export.as_ref().is_none_or(|report| own(&report) && report.in_force),
            receipts: status.receipts.iter().filter_map(reports::receipt).collect(),
            opaque: status.export_opaque,
            spec,
        }
    }
}

/// An export's spec without the grants that go.
#[derive(Default)]
struct Narrowed {
    spec: v1::ExportSpec,
    opaque: Vec<u8>,
    /// `true`: a grant goes.
    changed: bool,
    /// Ports that go because an attachment goes with another of its ports: that port first, then
    /// this one.
    along: Vec<(Initiator, Initiator)>,
    /// Attachments that share their nexus with an attachment that stays: the id of that one.
    shared: BTreeMap<AttachmentId, String>,
}

/// One grant of an export.
struct Grant<'a> {
    initiator: Option<Initiator>,
    attachments: &'a [String],
}

fn grants(spec: &v1::ExportSpec) -> Vec<Grant<'_>> {
    let grant = |initiator: &str, attachments| Grant { initiator: initiator.parse().ok(), attachments };
    let iscsi = spec.grants.iter().map(|of| grant(&of.initiator, of.attachment_ids.as_slice()));
    let fc = spec.fc.iter().flat_map(|fc| &fc.grants);
    iscsi.chain(fc.map(|of| grant(&of.initiator, of.attachment_ids.as_slice()))).collect()
}

/// Removes the grants that go from an agent's spec. If one port of an attachment goes, all of them
/// do.
fn narrow(seen: &Seen, going: &Going) -> Narrowed {
    let all = grants(&seen.spec);
    let ids: BTreeSet<_> = going.rows.iter().map(|row| row.id.to_string()).collect();
    let mut narrowed = Narrowed::default();
    let mut gone: BTreeSet<Initiator> = BTreeSet::new();
    for grant in &all {
        let Some(one) = &grant.initiator else { continue };
        let is_of = |row: &&AttachmentRow| {
            row.initiator.as_ref().is_some_and(|own| own.has(one))
                || grant.attachments.contains(&row.id.to_string())
        };
        if going.takes(one) {
            gone.insert(one.clone());
        } else if going.rows.iter().any(|row| is_of(&row)) {
            match grant.attachments.iter().find(|id| !ids.contains(*id)) {
                None => drop(gone.insert(one.clone())),
                Some(other) => {
                    let of = going.rows.iter().filter(is_of);
                    narrowed.shared.extend(of.map(|row| (row.id, other.clone())));
                }
            }
        }
    }
    for grant in all.iter().filter(|grant| grant.initiator.as_ref().is_some_and(|one| going.takes(one))) {
        let same = |other: &&Grant<'_>| grant.attachments.iter().any(|id| other.attachments.contains(id));
        let others = all.iter().filter(same).filter_map(|other| other.initiator.clone());
        let along = others.filter(|other| !going.takes(other));
        narrowed.along.extend(along.filter_map(|other| Some((grant.initiator.clone()?, other))));
    }
    let stays = |name: &str| name.parse::<Initiator>().is_ok_and(|one| !gone.contains(&one));
    let mut spec = seen.spec.clone();
    spec.grants.retain(|grant| stays(&grant.initiator));
    if let Some(fc) = &mut spec.fc {
        fc.grants.retain(|grant| stays(&grant.initiator));
    }
    let left: BTreeSet<_> = grants(&spec).iter().flat_map(|grant| grant.attachments).cloned().collect();
    narrowed.opaque = without(&seen.opaque, &left);
    (narrowed.spec, narrowed.changed) = (spec, !gone.is_empty());
    narrowed
}

/// Reduces the data that is kept beside an export to these attachments. Returns data that it cannot
/// read unchanged.
fn without(opaque: &[u8], left: &BTreeSet<String>) -> Vec<u8> {
    let Ok(mut kept) = serde_json::from_slice::<Value>(opaque) else { return opaque.to_vec() };
    if let Some(attachments) = kept.get_mut("attachments").and_then(Value::as_array_mut) {
        attachments.retain(|one| one["id"].as_str().is_some_and(|id| left.contains(id)));
    }
    kept.to_string().into_bytes()
}

/// Progress of a nexus that goes.
enum Gone {
    Waits,
    Unproven(i64, Receipt),
    Done(Option<(i64, Receipt)>),
}

/// Keeps an agent's receipts of a volume. Those of an agent that does not serve the volume say
/// only how the nexuses ended that go there. Returns `true` if any was new.
fn keep_receipts(
    db: &Db<'_>,
    agent: AgentId,
    volume: VolumeId,
    going: &Going,
    seen: &Seen,
) -> Result<bool, Abort> {
    let (mut changed, by) = (false, db.stater(agent, volume)?);
    for receipt in seen.receipts.iter().filter(|receipt| receipt.volume == volume) {
        if by == Stater::Storage || going.takes(&receipt.initiator) {
            changed |= db.keep_receipt_of(by, receipt)?;
        }
    }
    Ok(changed)
}

/// Returns the progress of a nexus at an agent. Once the agent does not grant it any more, the
/// agent's newest receipt says whether a command may still land.
fn gone(
    db: &Db<'_>,
    agent: AgentId,
    volume: VolumeId,
    seen: &Seen,
    initiator: &Initiator,
) -> Result<Gone, Abort> {
    if seen.granted.contains(initiator) {
        return Ok(Gone::Waits);
    }
    let there = seen.shown.contains(initiator) || !seen.settled;
    Ok(match db.newest_receipt(db.stater(agent, volume)?, volume, initiator)? {
        Some((id, receipt)) if receipt.proof != Proof::Proven => Gone::Unproven(id, receipt),
        _ if there => Gone::Waits,
        found => Gone::Done(found),
    })
}

/// Stores what has gone. Returns whether anything changed, and whether something is still to go.
fn settle(
    db: &Db<'_>,
    agent: AgentId,
    volume: VolumeId,
    going: &Going,
    seen: &Seen,
    shared: &BTreeMap<AttachmentId, String>,
    fault: Option<&str>,
) -> Result<(bool, bool), Abort> {
    let (mut changed, mut waits) = (keep_receipts(db, agent, volume, going, seen)?, false);
    for was in &going.nexuses {
        let (receipt, done) = match gone(db, agent, volume, seen, &was.initiator)? {
            Gone::Waits => (None, false),
            Gone::Unproven(id, _) => (Some(id), false),
            Gone::Done(found) => (found.map(|(id, _)| id), true),
        };
        let fault = fault.filter(|_| !done).map(str::to_owned);
        let now = Taking { done, receipt, fault, ..was.clone() };
        waits |= !done;
        if now != *was {
            db.keep_taking(&now)?;
            changed = true;
        }
    }
    for id in going.rows.iter().map(|row| row.id) {
        // The attachment may be gone by now, or may have changed.
        let row = db.attachment(id)?.filter(AttachmentRow::is_forced);
        let Some(row) = row else { continue };
        let why = match shared.get(&id) {
            Some(other) => Some(format!(
                "attachment {other}, which this database does not know, shares the access of its host: cut every attachment \
                 of the host to this volume, with widen=host (mooring detach {id} --force --widen), or fence the host"
            )),
            None => fault.map(str::to_owned),
        };
        let moved = settle_row(db, agent, &row, seen, why)?;
        changed |= moved.0;
        waits |= moved.1;
    }
    if changed && !going.rows.is_empty() {
        db.attachment_event(volume)?;
        db.derive_status(volume)?;
    }
    Ok((changed, waits))
}

/// Does as [`settle`], for one attachment.
fn settle_row(
    db: &Db<'_>,
    agent: AgentId,
    row: &AttachmentRow,
    seen: &Seen,
    why: Option<String>,
) -> Result<(bool, bool), Abort> {
    let own = row.initiator.iter().flat_map(Initiators::each);
    // In another history, the attachment may have had another host.
    let said = seen.receipts.iter().filter(|receipt| receipt.attachments.contains(&row.id));
    let names: BTreeSet<_> = own.chain(said.map(|receipt| receipt.initiator.clone())).collect();
    let named = row.id.to_string();
    let mut waits = grants(&seen.spec).iter().any(|grant| grant.attachments.contains(&named));
    let (mut last, mut since): (Option<(i64, Receipt)>, Option<Generation>) = (None, None);
    for one in &names {
        match gone(db, agent, row.volume, seen, one)? {
            Gone::Waits => waits = true,
            Gone::Unproven(_, receipt) => {
                waits = true;
                since = Some(since.map_or(receipt.generation, |at| at.min(receipt.generation)));
            }
            Gone::Done(found) => {
                last = last.max_by_end(found);
            }
        }
    }
    if waits {
        let in_spec_since = since.unwrap_or(row.in_spec_since);
        let now = AttachmentRow { in_spec_since, fault: why, ..row.clone() };
        let changed = now != *row;
        if changed {
            db.put_attachment(&now)?;
        }
        return Ok((changed, true));
    }
    db.detach(row, last.map(|(id, _)| id), row.is_forced())?;
    if let Some(host) = row.native.filter(|_| row.had_path()) {
        let others = db.attachments_of(row.volume)?;
        let kind = Kind::Connection(host);
        let kept = db.spec(row.volume, kind)?;
        if kept.is_some() && !others.iter().any(|other| other.native == Some(host) && other.wants_path()) {
            // The host gets the tombstone when the review has ended: it lost its access at the
            // target.
            db.put_spec(row.volume, kind, &SpecContent::tombstone(kind, true))?;
        }
    }
    Ok((true, false))
}

/// Choice of the later of two receipts.
trait Later {
    fn max_by_end(self, other: Self) -> Self;
}

impl Later for Option<(i64, Receipt)> {
    fn max_by_end(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(two)) if one.1.ended >= two.1.ended => Some(one),
            (one, None) => one,
            (_, two) => two,
        }
    }
}

impl Flow {
    /// Revokes access to a volume without a spec of this database.
    pub(super) async fn taking_pass(
        self: &Arc<Self>,
        id: VolumeId,
        work: Option<&Work>,
        takings: &[Taking],
    ) -> Result<Next, Refusal> {
        let mut at: BTreeMap<AgentId, Going> = BTreeMap::new();
        for taking in takings {
            at.entry(taking.agent).or_default().nexuses.push(taking.clone());
        }
        let in_review = work.filter(|work| work.volume.review.is_some());
        if let Some(work) = in_review {
            let going = work.rows.iter().filter(|row| row.is_forced());
            for row in going {
                at.entry(work.volume.agent).or_default().rows.push(row.clone());
            }
        }
        let mut next = Next::Idle;
        for (agent, going) in at {
            // When the agent is up again, all of its volumes look again.
            let Ok(agent) = self.facts.agents.held(agent) else { continue };
            let own = work.filter(|work| agent.id() == Some(work.volume.agent));
            next = next.sooner(self.take_at(&agent, id, own, &going).await?);
        }
        Ok(next)
    }

    async fn take_at(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        own: Option<&Work>,
        going: &Going,
    ) -> Result<Next, Refusal> {
        let mut seen = Seen::default();
        if agent.knows_volume(id) {
            match agent.get_volume(id.to_string(), LOOK_LIMIT).await {
                Ok(status) => seen = Seen::of(id, status),
                Err(error) => {
                    tracing::warn!(volume = %id, %error, "cannot look at who is to be cut off");
                    return Ok(Next::After(AGAIN));
                }
            }
        }
        seen.receipts.extend(agent.take_receipts(id));
        for receipt in seen.receipts.extract_if(.., |receipt| receipt.volume != id) {
            agent.drops(Word::Receipt(&receipt));
        }
        let mut fault = None;
        let mut shared = BTreeMap::new();
        if let Some(work) = own.filter(|work| work.volume.review.is_none()) {
            // The spec of this database defines who goes.
            let ours = work.export_spec.as_ref().map(|spec| &spec.stamp);
            if let Some(theirs) = is_ahead(ours, seen.stamp.as_ref()) {
                let name = &agent.entry.name;
                let why = format!("agent {name} keeps generation {theirs} of the export");
                self.review(agent, id, &why).await?;
                return Ok(Next::Again);
            }
        } else {
            let narrowed = narrow(&seen, going);
            if !narrowed.along.is_empty() {
                return self.take_along(agent, id, narrowed.along).await;
            }
            if let Some(kept) = seen.stamp.as_ref().filter(|_| narrowed.changed) {
                let copy = own.map(|work| work.volume.reservations_copy().to_owned());
                match self.send_narrowed(agent, id, &narrowed, kept.generation, copy).await? {
                    None => return Ok(Next::Again),
                    Some(why) => fault = Some(why),
                }
            }
            shared = narrowed.shared;
        }
        if seen.stamp.is_none() && !seen.shown.is_empty() {
            let name = &agent.entry.name;
            fault = Some(format!(
                "agent {name} keeps no spec of the export, and its kernel serves it: revoke it there (mooring --agent … \
                 export revoke {id})"
            ));
        }
        let going = Going { nexuses: going.nexuses.clone(), rows: going.rows.clone() };
        let Some(at) = agent.id() else { return Ok(Next::After(AGAIN)) };
        let write = move |db: &Db<'_>| settle(db, at, id, &going, &seen, &shared, fault.as_deref());
        let (changed, waits) = agent.store.write("settle what is taken away", write).await?;
        if changed {
            self.touch(id);
        }
        Ok(if waits { Next::After(AGAIN) } else { Next::Idle })
    }

    /// Also revokes the other ports of attachments that lose one of their ports.
    async fn take_along(
        &self,
        agent: &Held,
        volume: VolumeId,
        along: Vec<(Initiator, Initiator)>,
    ) -> Result<Next, Refusal> {
        let Some(at) = agent.id() else { return Ok(Next::After(AGAIN)) };
        let write = move |db: &Db<'_>| {
            let mut all = along.iter();
            Ok(all.try_for_each(|(of, with)| db.take_nexus_along(at, volume, of, with))?)
        };
        agent.store.write("take all ports of a host", write).await?;
        Ok(Next::Again)
    }

    /// Sends an agent its own spec without the grants that go, as a newer one. Returns why the
    /// agent did not take it; `None` if it did.
    async fn send_narrowed(
        &self,
        agent: &Held,
        id: VolumeId,
        narrowed: &Narrowed,
        kept: Generation,
        reservations_copy: Option<String>,
    ) -> Result<Option<String>, Refusal> {
        let read = move |db: &Db<'_>| Ok((db.epoch()?, db.spec(id, Kind::Export)?));
        let (epoch, ours) = self.reads.read_one("read the epoch", read).await?;
        let ours = ours.map_or(0, |spec| spec.stamp.generation.counter);
        let counter = kept.counter.max(ours);
        let generation = Generation { epoch: epoch.max(kept.epoch), counter }.next();
        let digest = mooring_api::digest(&narrowed.spec, &narrowed.opaque);
        let stamp = Stamp { generation, digest };
        let put = v1::PutExportRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(mooring_api::stamp_to_wire(&stamp)),
            wish: Some(v1::put_export_request::Wish::Spec(narrowed.spec.clone())),
            opaque: narrowed.opaque.clone(),
            deadline_ms: WAIT_MS,
            live_sessions: v1::LiveSessions::Cut.into(),
            reservations_copy: reservations_copy.unwrap_or_default(),
        };
        let heard = Heard::Answered(Instant::now());
        match agent.put_export(put).await {
            Ok(answer) => {
                agent.took_export(id, stamp, false);
                if let Some(report) = reports::export_of(answer.report.as_ref(), id) {
                    agent.saw_export(&report, heard);
                }
                tracing::warn!(volume = %id, agent = agent.entry.name, %generation, "access is taken away as its agent has it");
                Ok(None)
            }
            Err(CallError::Lost(text) | CallError::Stale(text) | CallError::Refused { text, .. }) => {
                tracing::warn!(volume = %id, error = text, "access is not taken away yet");
                Ok(Some(text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::AttachmentStatus;
    use crate::store::{Access, Database, Store, Taker, testing};

    const A: &str = "20:00:52:54:00:14:00:0a";
    const B: &str = "20:00:52:54:00:14:00:0b";
    const C: &str = "20:00:52:54:00:14:00:0c";
    const ONE: AttachmentId = AttachmentId::from_u128(1);
    const TWO: AttachmentId = AttachmentId::from_u128(2);

    #[test]
    fn nothing_is_settled_by_another_volumes_report() {
        let (id, other) = (VolumeId::from_u128(7), VolumeId::from_u128(8));
        let seen = |of: Option<VolumeId>| {
            let grants = vec![v1::GrantReport { initiator: A.to_owned(), ..Default::default() }];
            let report = |of: VolumeId| v1::ExportReport {
                volume_id: of.to_string(),
                in_force: true,
                grants: grants.clone(),
                ..Default::default()
            };
            let seen = Seen::of(id, v1::VolumeStatus { export: of.map(report), ..Default::default() });
            (seen.settled, seen.shown.len())
        };
        assert_eq!((seen(None), seen(Some(id)), seen(Some(other))), ((true, 0), (true, 1), (false, 0)));
    }

    /// An agent that grants these initiators over Fibre Channel, each for these attachments.
    fn seen(grants: &[(&str, &[AttachmentId])]) -> Seen {
        let fc = |(initiator, ids): &(&str, &[AttachmentId])| v1::FcGrant {
            initiator: (*initiator).to_owned(),
            attachment_ids: ids.iter().map(ToString::to_string).collect(),
            ..v1::FcGrant::default()
        };
        let fc = v1::FcExport { grants: grants.iter().map(fc).collect(), ..v1::FcExport::default() };
        let kept = [ONE, TWO].map(|id| json!({ "id": id.to_string(), "new": 1 }));
        Seen {
            spec: v1::ExportSpec { fc: Some(fc), ..v1::ExportSpec::default() },
            opaque: json!({ "attachments": kept, "later": true }).to_string().into_bytes(),
            ..Seen::default()
        }
    }

    fn taking(initiator: &str) -> Taking {
        Taking {
            agent: AgentId::from_u128(9),
            volume: VolumeId::from_u128(1),
            initiator: initiator.parse().unwrap(),
            done: false,
            receipt: None,
            fault: None,
        }
    }

    fn row(id: AttachmentId, ports: Option<&str>) -> AttachmentRow {
        let initiator = ports.map(|ports| ports.parse().unwrap());
        let reserved = AttachmentRow::reserved(id, VolumeId::from_u128(1), "p", SystemTime::UNIX_EPOCH);
        let (access, status) = (Access::of(50), AttachmentStatus::Detaching);
        AttachmentRow { status, initiator, access, ..reserved }
    }

    fn left(narrowed: &Narrowed) -> Vec<&str> {
        let fc = narrowed.spec.fc.as_ref().unwrap();
        fc.grants.iter().map(|grant| grant.initiator.as_str()).collect()
    }

    fn kept(narrowed: &Narrowed) -> Value {
        serde_json::from_slice(&narrowed.opaque).unwrap()
    }

    #[test]
    fn a_port_goes_with_all_ports_of_its_attachments() {
        let seen = seen(&[(A, &[ONE]), (B, &[ONE]), (C, &[TWO])]);
        let first = narrow(&seen, &Going { nexuses: vec![taking(A)], rows: Vec::new() });
        let (a, b) = (A.parse().unwrap(), B.parse().unwrap());
        assert_eq!(first.along, [(a, b)]);
        let both = narrow(&seen, &Going { nexuses: vec![taking(A), taking(B)], rows: Vec::new() });
        assert!(both.changed && both.along.is_empty());
        assert_eq!(left(&both), [C]);
        // Data that a later release keeps beside them stays.
        let left = json!({ "attachments": [{ "id": TWO.to_string(), "new": 1 }], "later": true });
        assert_eq!(kept(&both), left);
    }

    #[test]
    fn an_attachment_goes_with_its_nexus_unless_another_shares_it() {
        let ports = format!("{A},{B}");
        let alone = narrow(
            &seen(&[(A, &[ONE]), (B, &[ONE]), (C, &[TWO])]),
            &Going { nexuses: Vec::new(), rows: vec![row(ONE, Some(&ports))] },
        );
        assert!(alone.changed && alone.shared.is_empty());
        assert_eq!(left(&alone), [C]);
        let shared = seen(&[(A, &[ONE, TWO]), (B, &[ONE, TWO])]);
        let one = narrow(&shared, &Going { nexuses: Vec::new(), rows: vec![row(ONE, Some(&ports))] });
        assert!(!one.changed);
        assert_eq!(one.shared, [(ONE, TWO.to_string())].into());
        let rows = vec![row(ONE, Some(&ports)), row(TWO, Some(&ports))];
        let both = narrow(&shared, &Going { nexuses: Vec::new(), rows });
        assert!(both.changed && both.shared.is_empty() && left(&both).is_empty());
        // An attachment that had no host when the database was backed up is found by its id.
        let later = narrow(
            &seen(&[(A, &[ONE]), (C, &[TWO])]),
            &Going { nexuses: Vec::new(), rows: vec![row(ONE, None)] },
        );
        assert_eq!(left(&later), [C]);
        // The agent has nothing of an attachment that went in another history.
        let none =
            narrow(&seen(&[(C, &[TWO])]), &Going { nexuses: Vec::new(), rows: vec![row(ONE, Some(A))] });
        assert!(!none.changed && none.shared.is_empty());
    }

    fn receipt(volume: VolumeId, counter: u64, proof: Proof) -> Receipt {
        Receipt {
            volume,
            initiator: A.parse().unwrap(),
            attachments: Vec::new(),
            generation: Generation { epoch: 1, counter },
            revoked: mooring_model::Revoked::Nexus,
            sessions: Vec::new(),
            proof,
            began: SystemTime::UNIX_EPOCH,
            ended: None,
            reservation: None,
            cause: mooring_model::Cause::Revoke,
        }
    }

    /// The receipts of an agent become the volume's own only if the database has the volume there.
    /// The one who revoked the access is shown its end in any case.
    #[test]
    fn a_receipt_proves_the_end_of_access_at_its_own_agent_only() {
        const SERVES: AgentId = AgentId::from_u128(9);
        const OTHER: AgentId = AgentId::from_u128(8);
        const KNOWN: VolumeId = VolumeId::from_u128(1);
        const UNKNOWN: VolumeId = VolumeId::from_u128(2);
        const FOREIGN: VolumeId = VolumeId::from_u128(3);
        let open = Proof::Unproven { in_flight: Some(1) };
        for (agent, volume, own) in
            [(SERVES, KNOWN, true), (OTHER, UNKNOWN, false), (OTHER, KNOWN, false), (SERVES, UNKNOWN, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let store =
                Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
            let work = move |db: &Db<'_>| {
                testing::insert_volume(db, KNOWN, SERVES, &BTreeMap::new())?;
                let (initiator, taker) = (A.parse().unwrap(), Taker::Fence(uuid::Uuid::from_u128(5)));
                db.take_nexus(taker, agent, volume, &initiator)?;
                for (proof, is_done) in [(open, false), (Proof::Proven, true)] {
                    let said =
                        vec![receipt(volume, 5, proof), receipt(volume, 4, open), receipt(FOREIGN, 6, proof)];
                    let going = Going { nexuses: db.takings_of(volume)?, rows: Vec::new() };
                    let seen = Seen { settled: true, receipts: said, ..Seen::default() };
                    let (changed, waits) = settle(db, agent, volume, &going, &seen, &BTreeMap::new(), None)?;
                    assert_eq!((changed, waits), (true, !is_done), "{agent} {volume} {proof:?}");
                    let taking = db.takings_for(taker)?.pop().unwrap();
                    let shown = taking.receipt.map(|id| db.receipt(id)).transpose()?.flatten();
                    let wanted = Some(receipt(volume, 5, proof));
                    assert_eq!((taking.done, shown.as_ref()), (is_done, wanted.as_ref()));
                    let newest =
                        db.newest_receipt(Stater::Storage, volume, &initiator)?.map(|(_, kept)| kept);
                    assert_eq!(newest, wanted.filter(|_| own), "{agent} {volume}");
                    assert_eq!(db.newest_receipt(Stater::Storage, FOREIGN, &initiator)?, None);
                    // Another agent that has the volume, too, proves nothing of it.
                    let third = AgentId::from_u128(7);
                    let seen = Seen { settled: true, ..Seen::default() };
                    assert!(matches!(gone(db, third, volume, &seen, &initiator)?, Gone::Done(None)));
                }
                Ok(())
            };
            store.prepare("try", work).unwrap();
        }
    }
}

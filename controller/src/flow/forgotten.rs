//! Removal of everything that a forgotten agent had, part by part, each part in a transaction of
//! its own. After a stop, the rows that are left say what remains: the next start, the next round
//! or the next request goes on.
//!
//! What must never happen here: a receipt marked as proven that no storage node has given; a
//! volume's row removed before the receipts of its attachments are stored; any question to the
//! agent itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::{AgentId, Cause, Generation, Initiator, Proof, Receipt, Revoked, VolumeId};

use super::volume_specs::SpecChanges;
use super::{Flow, forced};
use crate::error::Refusal;
use crate::initiators::Initiators;
use crate::store::{
    Abort, AttachmentRow, Db, Event, ForgottenRow, Kind, SpecContent, Stater, Taking, VolumeRow,
};

/// Largest number of volumes in one transaction.
const VOLUMES_MAX: u32 = 32;

/// Largest number of attachments in one transaction.
const ATTACHMENTS_MAX: u32 = 32;

/// Result of one step: the changed volumes with the hosts to wake, and whether nothing is left.
#[derive(Debug, Default)]
struct Step {
    told: Vec<(VolumeId, BTreeSet<AgentId>)>,
    done: bool,
}

/// Makes a receipt for a nexus whose storage node will never give one.
fn unknown_end(db: &Db<'_>, volume: VolumeId, initiator: &Initiator, at: Generation) -> Receipt {
    Receipt {
        volume,
        initiator: initiator.clone(),
        attachments: Vec::new(),
        generation: at,
        revoked: Revoked::Nothing,
        sessions: Vec::new(),
        proof: Proof::Unproven { in_flight: None },
        began: db.now,
        ended: None,
        reservation: None,
        cause: Cause::Forgotten,
    }
}

/// Returns the receipt with which an attachment of a forgotten node ends: among those of its
/// initiators, an unproven one before a proven one. `None`: the node had nothing of the attachment.
fn last_receipt(
    db: &Db<'_>,
    row: &AttachmentRow,
    rows: &[AttachmentRow],
    at: Generation,
) -> Result<Option<i64>, Abort> {
    let (mut open, mut proven) = (None, None);
    for one in row.initiator.iter().filter(|_| row.has_grant()).flat_map(Initiators::each) {
        let said =
            if row.is_revoking() { db.receipt_since(row.volume, &one, row.in_spec_since)? } else { None };
        match said {
            Some((id, receipt)) if receipt.proof == Proof::Proven => proven = Some(id),
            Some((_, receipt)) => open = Some(db.never_prove(Stater::Storage, &receipt)?),
            None => {
                let has = |other: &&AttachmentRow| {
                    other.has_grant() && other.initiator.as_ref().is_some_and(|of| of.has(&one))
                };
                let attachments = rows.iter().filter(has).map(|other| other.id).collect();
                let receipt = Receipt { attachments, ..unknown_end(db, row.volume, &one, at) };
                open = Some(db.never_prove(Stater::Storage, &receipt)?);
            }
        }
    }
    Ok(open.or(proven))
}

/// Removes a volume or a snapshot of a forgotten node. Returns the hosts whose connection must end.
fn forget_volume(
    db: &Db<'_>,
    forgotten: &ForgottenRow,
    volume: &VolumeRow,
) -> Result<BTreeSet<AgentId>, Abort> {
    let id = volume.id;
    let export = db.spec(id, Kind::Export)?;
    let at =
        export.map_or(Generation { epoch: db.epoch()?, counter: 0 }, |spec| spec.stamp.generation).next();
    let rows = db.attachments_of(id)?;
    for row in &rows {
        let receipt = last_receipt(db, row, &rows, at)?;
        let mut row = row.clone();
        forced::ask(&forgotten.asked, &mut row, false);
        db.detach(&row, receipt, true)?;
    }
    let mut hosts = BTreeSet::new();
    for host in db.connections_of(id)?.into_iter().filter(|host| *host != forgotten.agent) {
        let kind = Kind::Connection(host);
        if db.spec(id, kind)?.is_some_and(|spec| spec.content.body.is_some() || !spec.settled) {
            db.put_spec(id, kind, &SpecContent::tombstone(kind, true))?;
            hosts.insert(host);
        }
    }
    db.drop_storage_specs(id)?;
    db.delete_volume(id)?;
    if volume.snapshot_of.is_none() {
        let why = format!("its storage node {} was forgotten: its data is gone", forgotten.name);
        db.keep_refusal(Event::Forget, &volume.project, id, &why)?;
    }
    Ok(hosts)
}

/// Forces attachments of a forgotten host away from a volume of another node: that node proves it.
fn end_at(
    db: &Db<'_>,
    forgotten: &ForgottenRow,
    volume: VolumeId,
    rows: Vec<AttachmentRow>,
) -> Result<SpecChanges, Abort> {
    let Some(row) = db.volume(volume)? else {
        rows.iter().try_for_each(|row| db.detach(row, None, row.is_forced()))?;
        return Ok(SpecChanges::default());
    };
    forced::force_rows(db, &forgotten.asked, &row, rows)
}

/// Marks every revocation that is still under way at the node, for fences and others, as never
/// proven.
fn end_takings(db: &Db<'_>, forgotten: &ForgottenRow) -> Result<(), Abort> {
    for taking in db.open_takings_at(forgotten.agent)? {
        // Its volumes are gone by now: a receipt of one of them is the volume's own still.
        let known = taking.receipt.map(|row| db.stater_of(row)).transpose()?.flatten();
        let by = known.unwrap_or(db.stater(forgotten.agent, taking.volume)?);
        let newest = db.newest_receipt(by, taking.volume, &taking.initiator)?;
        let at =
            newest.map_or(Generation { epoch: db.epoch()?, counter: 0 }, |(_, receipt)| receipt.generation);
        let open = db.unproven_of(by, taking.volume, &taking.initiator)?.pop();
        let receipt = open.unwrap_or_else(|| unknown_end(db, taking.volume, &taking.initiator, at.next()));
        let receipt = Some(db.never_prove(by, &receipt)?);
        let fault = Some(format!("its storage node {} was forgotten", forgotten.name));
        db.keep_taking(&Taking { receipt, fault, ..taking })?;
    }
    Ok(())
}

/// Does the next step of removing what a forgotten agent had.
fn step(db: &Db<'_>, forgotten: &ForgottenRow) -> Result<Step, Abort> {
    let mut step = Step::default();
    for volume in db.some_volumes_on(forgotten.agent, VOLUMES_MAX)? {
        let hosts = forget_volume(db, forgotten, &volume)?;
        step.told.push((volume.id, hosts));
    }
    if !step.told.is_empty() {
        return Ok(step);
    }
    let unforced = db.some_unforced_on(forgotten.agent, ATTACHMENTS_MAX)?;
    let volumes: BTreeSet<_> = unforced.iter().map(|row| row.volume).collect();
    for volume in volumes {
        let rows: Vec<_> = unforced.iter().filter(|row| row.volume == volume).cloned().collect();
        let spec_changes = end_at(db, forgotten, volume, rows)?;
        step.told.push((volume, spec_changes.hosts));
    }
    if step.told.is_empty() {
        end_takings(db, forgotten)?;
        db.close_forgotten(forgotten.agent)?;
        step.done = true;
    }
    Ok(step)
}

impl Flow {
    /// Goes on where another request, or another controller, has stopped. Logs a failure.
    pub(crate) async fn go_on_forgetting(self: &Arc<Self>) {
        if let Err(refusal) = self.finish_forgetting().await {
            tracing::warn!(error = %refusal, "what a forgotten agent had is not gone yet; tried again");
        }
    }

    /// Removes everything that is left of forgotten agents.
    pub(crate) async fn finish_forgetting(self: &Arc<Self>) -> Result<(), Refusal> {
        let open = self.reads.read("read who is forgotten", |db| Ok(db.forgotten_open()?)).await?;
        for forgotten in open {
            loop {
                let row = forgotten.clone();
                let write = move |db: &Db<'_>| step(db, &row);
                let step = self.unleased.write("take away what a forgotten agent had", write).await?;
                for (volume, hosts) in &step.told {
                    self.go(*volume, hosts);
                }
                if step.done {
                    tracing::warn!(
                        agent = forgotten.name,
                        id = %forgotten.agent,
                        "nothing is left of an agent that was forgotten"
                    );
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::SystemTime;

    use mooring_model::AttachmentId;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::AttachmentStatus;
    use crate::store::{Access, Asked, Database, DetachedFilter, Store, testing};

    const GONE: AgentId = AgentId::from_u128(9);
    const OTHER: AgentId = AgentId::from_u128(8);
    /// Number of volumes of the node that is forgotten.
    const VOLUMES: u128 = 40;
    const ELSEWHERE: VolumeId = VolumeId::from_u128(100);

    fn open(dir: &Path) -> Store {
        Store::open(Database::embedded(dir.to_owned()), None, Clock::system()).unwrap()
    }

    fn forgotten() -> ForgottenRow {
        let asked = Asked { user: "u".to_owned(), request: "r".to_owned(), at: SystemTime::UNIX_EPOCH };
        ForgottenRow { agent: GONE, name: "gone".to_owned(), storage: true, open: true, asked }
    }

    fn attach(db: &Db<'_>, number: u128, volume: VolumeId, native: AgentId) -> Result<(), Abort> {
        let reserved = AttachmentRow::reserved(AttachmentId::from_u128(number), volume, "p", db.now);
        let row = AttachmentRow {
            initiator: format!("iqn.2026-01.lab:host{number}").parse().ok(),
            native: Some(native),
            access: Access::of(if volume == ELSEWHERE { 0 } else { 10 }),
            status: AttachmentStatus::Attached,
            ..reserved
        };
        Ok(db.put_attachment(&row)?)
    }

    fn fill(db: &Db<'_>) -> Result<(), Abort> {
        for number in 1..=VOLUMES {
            let id = VolumeId::from_u128(number);
            testing::insert_volume(db, id, GONE, &BTreeMap::new())?;
            db.put_spec(id, Kind::Export, &SpecContent::tombstone(Kind::Export, false))?;
            db.put_spec(
                id,
                Kind::Connection(OTHER),
                &SpecContent::tombstone(Kind::Connection(OTHER), false),
            )?;
            attach(db, number, id, OTHER)?;
        }
        testing::insert_volume(db, ELSEWHERE, OTHER, &BTreeMap::new())?;
        attach(db, 100, ELSEWHERE, GONE)?;
        Ok(db.forget(&forgotten())?)
    }

    /// After a crash at any step, a later start finishes the removal, with the same result.
    #[test]
    fn it_is_gone_on_with_after_a_crash_at_any_step() {
        let mut ends = Vec::new();
        for steps in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            store.prepare("fill", fill).unwrap();
            for _ in 0..steps {
                store.prepare("step", |db| step(db, &forgotten())).unwrap();
            }
            drop(store);
            let store = open(dir.path());
            let mut rest = 0;
            while !store.prepare("step", |db| step(db, &forgotten())).unwrap().done {
                rest += 1;
                assert!(rest < 10, "it does not end");
            }
            let end = store.prepare("look", |db| {
                let left =
                    (db.volumes_on(GONE)?.len(), db.attachments(None)?.len(), db.forgotten_open()?.len());
                let records = db.detach_records(&DetachedFilter::default(), 1_000)?;
                let never = |record: &&crate::domain::DetachRecord| {
                    record.receipt.as_ref().is_some_and(|one| one.cause == Cause::Forgotten)
                };
                let told = db.connections_on(OTHER)?.len();
                let volume_specs = db.spec(VolumeId::from_u128(1), Kind::Export)?.is_some();
                let kept = db.is_known_id(VolumeId::from_u128(1))?;
                Ok((left, records.len(), records.iter().filter(never).count(), told, volume_specs, kept))
            });
            ends.push(end.unwrap());
        }
        let whole = usize::try_from(VOLUMES).unwrap();
        let end = ((0, 0, 0), whole + 1, whole, whole, false, true);
        assert!(ends.iter().all(|one| *one == end), "{ends:?}");
    }
}

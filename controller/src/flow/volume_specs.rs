//! Computes specs from rows, in the transaction that changes a row.
//!
//! What must never happen here: a grant without an attachment that wants it; a mode wider than the
//! widest mode of a nexus's attachments; a spec that differs from the last one by chance (maps are
//! ordered, and a spec contains no time).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use mooring_api::{Message, v1};
use mooring_model::{
    AgentId, AttachmentSpec, BarrierId, ByteSize, Cache, Chap, ChapSide, ConnectionSpec, ExportIdentity,
    ExportSpec, FcExportSpec, FcGrant, FcRoute, Generation, Grant, Initiator, InitiatorSlot, Iqn,
    LUN_DEFAULT, Lun, Mode, Portal, Revert, Secret, TPG_DEFAULT, Tuning, Upload, VolumeId, VolumeSpec, Wwpn,
};
use serde_json::json;

use super::first;
use crate::domain::VolumeType;
use crate::error::Refusal;
use crate::initiators::Initiators;
use crate::kept::{KeptExport, KeptVolume};
use crate::rules::{self, Operation};
use crate::store::{Abort, AttachmentRow, Db, Kind, Nexus, SpecContent, VolumeRow, micros};

/// Bytes of a CHAP secret before they become text: 192 random bits.
const SECRET_BYTES: usize = 24;
const USER_BYTES: usize = 12;

/// Bytes of a GiB.
pub(crate) const GIB: u64 = 1 << 30;

/// Changes of specs that follow from a change of rows.
#[derive(Debug, Default)]
pub(crate) struct SpecChanges {
    /// Hosts whose connection spec has changed.
    pub(crate) hosts: BTreeSet<AgentId>,
    /// `true`: the storage agent's specs have changed.
    pub(crate) storage: bool,
}

impl SpecChanges {
    /// Joins the changes of another part of the same transaction.
    pub(crate) fn add(&mut self, other: Self) {
        self.hosts.extend(other.hosts);
        self.storage |= other.storage;
    }
}

fn corrupt(what: &str, volume: VolumeId) -> Abort {
    tracing::error!(%volume, "{what}");
    Abort::Refused(Refusal::Internal(format!("{what} of volume {volume}: see the controller's log")))
}

/// Returns random text of URL-safe characters: 4 for 3 bytes.
fn random_text(bytes: usize) -> Result<String, Refusal> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut random = vec![0_u8; bytes];
    getrandom::fill(&mut random)
        .map_err(|_| Refusal::Internal("the system has no random numbers".to_owned()))?;
    let mut text = String::with_capacity(bytes.div_ceil(3) * 4);
    for chunk in random.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for shift in [18, 12, 6, 0] {
            text.push(char::from(ALPHABET[usize::try_from(bits >> shift & 63).unwrap_or(0)]));
        }
    }
    Ok(text)
}

/// Makes credentials of one side. The kernel takes a value that begins with NULL as "no
/// credential": a letter precedes everything random.
fn side(user: &str) -> Result<ChapSide, Refusal> {
    let user = format!("{user}-{}", random_text(USER_BYTES)?);
    Ok(ChapSide { user, secret: Secret::new(format!("s{}", random_text(SECRET_BYTES)?)) })
}

/// Makes new secrets for the users of `old`.
pub(crate) fn new_secrets(old: &Chap) -> Result<Chap, Refusal> {
    let anew = |of: &ChapSide| Ok::<_, Refusal>(ChapSide { user: of.user.clone(), ..side("")? });
    Ok(Chap { initiator: anew(&old.initiator)?, mutual: old.mutual.as_ref().map(anew).transpose()? })
}

/// Returns the credentials of a nexus, and makes them if there are none. `native`: the host has an
/// agent, and the target has to prove itself, too.
pub(crate) fn nexus(db: &Db<'_>, volume: VolumeId, initiator: &Iqn, native: bool) -> Result<Nexus, Abort> {
    if let Some(nexus) = db.nexus(volume, initiator)? {
        return Ok(nexus);
    }
    let mutual = if native { Some(side("target")?) } else { None };
    let nexus = Nexus(Chap { initiator: side("host")?, mutual });
    db.insert_nexus(volume, initiator, &nexus)?;
    Ok(nexus)
}

/// Returns the revert for the spec. `None`: there is none, or it was withdrawn.
fn revert(volume: &VolumeRow) -> Option<Revert> {
    let kept = volume.revert().filter(|_| volume.operation == Some(Operation::Reverting))?;
    kept.withdrawn.is_none().then_some(kept.revert)
}

/// Returns the image export for the spec. `None`: there is none, it was withdrawn, or it has ended.
fn upload(volume: &VolumeRow) -> Option<Upload> {
    let kept = volume.upload().filter(|_| volume.operation == Some(Operation::Uploading))?;
    (kept.withdrawn.is_none() && !kept.ended).then_some(kept.upload)
}

fn volume_content(
    db: &Db<'_>,
    volume: &VolumeRow,
    volume_type: Option<VolumeType>,
) -> Result<SpecContent, Abort> {
    let pool = volume.pool_name().ok_or_else(|| corrupt("the pool", volume.id))?;
    let (provisioning, size) = (pool.provisioning(), ByteSize(u64::from(volume.spec_gib()) * GIB));
    let spec = VolumeSpec {
        kind: volume.kind(),
        // A volume that was made, and is lost, is not made again from the present state of its
        // source.
        source: volume.source.filter(|_| !volume.taken),
        takes: volume.takes(),
        // Kept until all of it was seen to be there: a part of an image is worth nothing.
        image: volume.image().map(|of| of.image),
        revert: revert(volume),
        upload: upload(volume),
        cut: volume.isolated_since(),
        ..VolumeSpec::new(volume.id, pool.group, size, provisioning)
    };
    let projects = match &volume_type {
        Some(of) if !of.is_public => db.type_projects(of.id)?,
        _ => Vec::new(),
    };
    let opaque = KeptVolume::of(volume, volume_type, projects).to_bytes();
    Ok(SpecContent::spec(&v1::VolumeSpec::from(&spec), opaque))
}

/// Barriers of an export, by the initiator that they drain.
pub(crate) type Barriers = BTreeMap<Iqn, BarrierId>;

/// Returns the export that these rows want, with these credentials and slots. Fails if a nexus has
/// none.
pub(crate) fn export_spec(
    volume: VolumeId,
    rows: &[AttachmentRow],
    mut chap_of: impl FnMut(&Iqn) -> Result<Chap, Abort>,
    mut slot_of: impl FnMut(Wwpn) -> Result<InitiatorSlot, Abort>,
    barriers: &Barriers,
) -> Result<ExportSpec, Abort> {
    let mut nexuses: BTreeMap<Initiator, Vec<&AttachmentRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.wants_grant()) {
        for initiator in row.initiator.iter().flat_map(Initiators::each) {
            nexuses.entry(initiator).or_default().push(row);
        }
    }
    let (mut grants, mut fc) = (Vec::new(), FcExportSpec::default());
    for (initiator, rows) in nexuses {
        let Some(mode) = rules::effective_mode(rows.iter().map(|row| row.mode)) else { continue };
        let attachments = rows.iter().map(|row| row.id).collect();
        match initiator {
            Initiator::Iscsi(initiator) => {
                let chap = Some(chap_of(&initiator)?);
                let barrier = barriers.get(&initiator).copied().filter(|_| mode == Mode::ReadOnly);
                grants.push(Grant { initiator, lun: LUN_DEFAULT, mode, chap, attachments, barrier });
            }
            Initiator::Fc(initiator) => {
                // All grants of one FC port share a LUN.
                let lun = rows.iter().find_map(|row| row.lun).ok_or_else(|| corrupt("the LUN", volume))?;
                let slot = slot_of(initiator)?;
                fc.grants.push(FcGrant { initiator, slot, lun, mode, attachments });
            }
        }
    }
    let tuning = Tuning::default();
    Ok(ExportSpec { volume, identity: ExportIdentity::Derived, portals: Vec::new(), grants, fc, tuning })
}

/// Returns an export's last spec in the form in which it is sent.
fn sent_before(last: Option<&SpecContent>) -> v1::ExportSpec {
    let body = last.and_then(|content| content.body.as_deref());
    body.and_then(|body| v1::ExportSpec::decode(body).ok()).unwrap_or_default()
}

/// Returns the barriers of an export's spec.
fn barriers_of(spec: &v1::ExportSpec) -> Barriers {
    let of = |grant: &v1::Grant| Some((grant.initiator.parse().ok()?, grant.barrier.parse().ok()?));
    spec.grants.iter().filter_map(of).collect()
}

/// Adds a barrier for this initiator to the export's spec; the initiator may only read. A barrier
/// that the spec has already is kept: its drain covers every command before it, and nothing
/// was written after it. Returns the barrier, and whether it is new.
pub(crate) fn barrier(db: &Db<'_>, volume: VolumeId, initiator: &Iqn) -> Result<(BarrierId, bool), Abort> {
    let kept = db.spec(volume, Kind::Export)?.ok_or_else(|| corrupt("the export", volume))?;
    let mut spec = sent_before(Some(&kept.content));
    let grant = spec.grants.iter_mut().find(|grant| grant.initiator == initiator.as_str());
    let grant = grant.ok_or_else(|| corrupt("the grant", volume))?;
    if let Ok(id) = grant.barrier.parse() {
        return Ok((id, false));
    }
    let id = BarrierId::random();
    grant.barrier = id.to_string();
    Ok((id, db.put_spec(volume, Kind::Export, &SpecContent::spec(&spec, kept.content.opaque))?.1))
}

fn export_content(
    db: &Db<'_>,
    of: &VolumeRow,
    rows: &[AttachmentRow],
    tuning: Tuning,
    last: Option<&SpecContent>,
) -> Result<SpecContent, Abort> {
    let volume = of.id;
    let chap_of = |initiator: &Iqn| {
        Ok(db.nexus(volume, initiator)?.ok_or_else(|| corrupt("the credentials", volume))?.0)
    };
    let slot_of = |port| db.fc_slot(of.agent, port)?.ok_or_else(|| corrupt("the slot of a port", volume));
    // A setting that is not given any more returns to the kernel's value: left out, it would stay.
    let before = sent_before(last);
    let tuning = tuning.after(&mooring_api::tuning_from_wire(&before.tuning).unwrap_or_default());
    // A barrier stays with its grant as long as the grant is read-only.
    let spec = ExportSpec { tuning, ..export_spec(volume, rows, chap_of, slot_of, &barriers_of(&before))? };
    Ok(SpecContent::spec(&mooring_api::export_to_wire(&spec), KeptExport::of(rows).to_bytes()))
}

/// Path of a host to a volume, for its connection spec.
struct Way {
    initiator: Iqn,
    portals: Vec<Portal>,
    lun: Lun,
    chap: Option<Chap>,
    /// The other secrets, while secrets are rotated.
    other_chap: Option<Chap>,
    fc: Option<FcRoute>,
}

/// Returns the host's path. `None`: it is not known yet, and the next report tells it.
fn way(db: &Db<'_>, volume: &VolumeRow, host: AgentId, first: &AttachmentRow) -> Result<Option<Way>, Abort> {
    let ports = match first.initiator.clone() {
        None => return Ok(None),
        Some(Initiators::Iscsi(initiator)) => {
            let chap =
                db.nexus(volume.id, &initiator)?.ok_or_else(|| corrupt("the credentials", volume.id))?.0;
            let other_chap = db.other_secrets(volume.id, &initiator)?;
            let (portals, lun) = (volume.portals.clone(), LUN_DEFAULT);
            return Ok(Some(Way { initiator, portals, lun, chap: Some(chap), other_chap, fc: None }));
        }
        Some(Initiators::Fc(ports)) => ports,
    };
    // The initiator name is in the spec over Fibre Channel, too: the host's agent recognises itself
    // by it.
    let agents = db.agents_like(host, None)?;
    let initiator = agents.into_iter().find(|row| row.id == host).and_then(|row| row.initiator);
    let (Some(initiator), Some(port), Some(lun)) = (initiator, ports.iter().next(), first.lun) else {
        return Ok(None);
    };
    let targets: Vec<_> = volume.fc_ports.iter().copied().collect();
    let fc = (!targets.is_empty()).then_some(FcRoute { port, targets });
    Ok(fc.map(|fc| Way { initiator, portals: Vec::new(), lun, chap: None, other_chap: None, fc: Some(fc) }))
}

fn connection_content(
    db: &Db<'_>,
    volume: &VolumeRow,
    host: AgentId,
    rows: &[&AttachmentRow],
) -> Result<Option<SpecContent>, Abort> {
    let Some(first) = rows.first() else { return Ok(None) };
    let Some(way) = way(db, volume, host, first)? else { return Ok(None) };
    let (Some(target), Some(naa)) = (volume.target.clone(), volume.naa.clone()) else { return Ok(None) };
    let spec = ConnectionSpec {
        volume: volume.id,
        initiator: way.initiator,
        target,
        tpg: TPG_DEFAULT,
        portals: way.portals,
        lun: way.lun,
        naa,
        serial: volume.id.to_string(),
        size: ByteSize(u64::from(volume.served_gib()) * GIB),
        chap: way.chap,
        other_chap: way.other_chap,
        attachments: rows
            .iter()
            .map(|row| AttachmentSpec { id: row.id, mode: row.mode, cache: row.cache })
            .collect(),
        fc: way.fc,
    };
    let opaque = json!({ "project": volume.project, "storage": volume.agent });
    Ok(Some(SpecContent::spec(&mooring_api::connection_to_wire(&spec), opaque.to_string().into_bytes())))
}

/// Renews all specs of this volume from its rows. Hosts in `revoked` lost their access at the
/// target. Also returns the generation of the export.
fn write_specs(
    db: &Db<'_>,
    volume: &VolumeRow,
    rows: &[AttachmentRow],
    revoked: &BTreeSet<AgentId>,
) -> Result<(SpecChanges, Generation), Abort> {
    let id = volume.id;
    let mut done = SpecChanges::default();
    if volume.operation == Some(Operation::Unknown) {
        return Ok((done, Generation::ZERO));
    }
    if let Some(operation) = volume.operation.filter(|operation| operation.is_going()) {
        // A volume goes after its snapshots: one that cannot go keeps the id of its volume. No
        // tombstone may be there earlier, or a rebuilt controller would send it.
        if !db.snapshots_of(id)?.is_empty() {
            return Ok((done, Generation::ZERO));
        }
        if db.spec_stamp(id, Kind::Export)?.is_some() {
            done.storage |= db.put_spec(id, Kind::Export, &SpecContent::tombstone(Kind::Export, false))?.1;
        }
        if first::is_unconfirmed(db, volume)? {
            return Ok((done, Generation::ZERO));
        }
        let gone = SpecContent::tombstone(Kind::Volume, operation.is_destroying());
        let (generation, new) = db.put_spec(id, Kind::Volume, &gone)?;
        done.storage |= new;
        return Ok((done, generation));
    }
    if !volume.is_placed() {
        return Ok((done, Generation::ZERO));
    }
    if volume.is_leaving() {
        let (generation, new) = db.put_spec(id, Kind::Volume, &SpecContent::tombstone(Kind::Volume, true))?;
        done.storage |= new;
        return Ok((done, generation));
    }
    let volume_type = db.type_by_id(volume.type_id)?;
    let tuning = volume_type.as_ref().map(|of| rules::tuning::of(&of.extra_specs)).unwrap_or_default();
    let new = volume_content(db, volume, volume_type)?;
    let content = |last: Option<&SpecContent>| Ok::<_, Abort>(first::next_content(volume, last, new));
    done.storage |= db.put_spec_after(id, Kind::Volume, content)?.1;
    // A snapshot is never exported.
    if !volume.is_served() || volume.snapshot_of.is_some() {
        return Ok((done, Generation::ZERO));
    }
    let content = |last: Option<&SpecContent>| export_content(db, volume, rows, tuning, last);
    let (generation, new) = db.put_spec_after(id, Kind::Export, content)?;
    done.storage |= new;

    let mut hosts: BTreeMap<AgentId, Vec<&AttachmentRow>> =
        db.connections_of(id)?.into_iter().map(|host| (host, Vec::new())).collect();
    for row in rows.iter().filter(|row| row.wants_path()) {
        if let Some(host) = row.native {
            hosts.entry(host).or_default().push(row);
        }
    }
    for (host, rows) in hosts {
        let kind = Kind::Connection(host);
        let kept = db.spec(id, kind)?;
        let content = if rows.is_empty() {
            let hard = revoked.contains(&host);
            let there =
                kept.as_ref().is_some_and(|kept| kept.content.body.is_some() || (hard && !kept.content.hard));
            there.then(|| SpecContent::tombstone(kind, hard))
        } else {
            connection_content(db, volume, host, &rows)?
        };
        let Some(content) = content else { continue };
        if db.put_spec(id, kind, &content)?.1 {
            done.hosts.insert(host);
        }
    }
    Ok((done, generation))
}

/// Returns the part of an attachment that specs contain or keep beside them. `None`: it wants
/// neither a grant nor a connection.
fn in_spec(row: &AttachmentRow) -> Option<impl PartialEq + '_> {
    let part = (
        (row.wants_grant(), row.wants_path(), row.mode, row.native),
        (&row.initiator, row.lun, &row.host, row.instance, &row.project),
        (&row.mountpoint, &row.connector, row.claimed, row.cache),
    );
    (row.wants_grant() || row.wants_path()).then_some(part)
}

/// Returns the cache flag in force on a volume's disk at a host, by the volume's rows. `None`: no
/// attachment there has a path, or is to get one.
pub(crate) fn cache_on(rows: &[AttachmentRow], host: AgentId) -> Option<Cache> {
    let on_disk = rows.iter().filter(|row| row.native == Some(host) && row.wants_path());
    rules::cache::effective(on_disk.map(|row| row.cache))
}

/// Returns `true` if these changes leave every spec of their volume as it is. A row that still
/// needs the generation of its spec makes it `false`: only a renewed spec tells that.
fn specs_stay(before: &[AttachmentRow], changed: &[AttachmentRow]) -> bool {
    changed.iter().all(|row| {
        let old = before.iter().find(|old| old.id == row.id).and_then(in_spec);
        (row.in_spec_since != Generation::ZERO || row.initiator.is_none()) && old == in_spec(row)
    })
}

/// Merges the changed rows into the others, in the order in which the store lists all of them.
fn merged(before: Vec<AttachmentRow>, changed: &[AttachmentRow]) -> Vec<AttachmentRow> {
    let mut rows = before;
    rows.retain(|row| changed.iter().all(|new| new.id != row.id));
    rows.extend(changed.iter().cloned());
    rows.sort_by_key(|row| (micros(row.created_at), row.id));
    rows
}

/// Writes a volume's specs again after the volume itself has changed: they also carry what users
/// say of it, so that a controller can be rebuilt. A volume in review gets no new spec.
pub(crate) fn renew_unless_in_review(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    if volume.review.is_none() {
        apply(db, volume.id, &mut [], &BTreeSet::new())?;
    }
    Ok(())
}

/// Writes changed rows and everything that follows from them: the specs, and the volume's status. A
/// row whose `in_spec_since` is zero gets the generation of the export that these rows make. If the
/// volume itself changed, `changed` is empty.
pub(crate) fn apply(
    db: &Db<'_>,
    id: VolumeId,
    changed: &mut [AttachmentRow],
    revoked: &BTreeSet<AgentId>,
) -> Result<SpecChanges, Abort> {
    let before = db.attachments_of(id)?;
    let Some(volume) = db.volume(id)? else {
        for row in changed.iter() {
            db.put_attachment(row)?;
        }
        return Ok(SpecChanges::default());
    };
    apply_to(db, &volume, before, changed, revoked)
}

/// Does as [`apply`], for a volume that this transaction has read with all of its rows and not
/// changed.
pub(crate) fn apply_to(
    db: &Db<'_>,
    volume: &VolumeRow,
    before: Vec<AttachmentRow>,
    changed: &mut [AttachmentRow],
    revoked: &BTreeSet<AgentId>,
) -> Result<SpecChanges, Abort> {
    let stay = !changed.is_empty() && revoked.is_empty() && specs_stay(&before, changed);
    let mut volume = Cow::Borrowed(volume);
    if !changed.is_empty() && volume.said_status.is_some() {
        volume.to_mut().said_status = None;
        db.attachment_event(volume.id)?;
    }
    let in_place = |row: &AttachmentRow| before.iter().any(|old| row.is_in_place_of(old));
    let in_place: Vec<_> = changed.iter().map(in_place).collect();
    let rows = merged(before, changed);
    // Most events (reserved, seen, completed) do not concern the agents: nothing to encode and to
    // compare.
    let (done, generation) = if stay {
        (SpecChanges::default(), Generation::ZERO)
    } else {
        write_specs(db, &volume, &rows, revoked)?
    };
    for (row, in_place) in changed.iter_mut().zip(in_place) {
        if row.in_spec_since == Generation::ZERO && row.initiator.is_some() {
            row.in_spec_since = generation;
        }
        if in_place { db.put_attachment_in_place(row)? } else { db.put_attachment(row)? }
    }
    let statuses: Vec<_> = rows.iter().map(|row| row.status).collect();
    db.derive_status_of(&volume, &statuses)?;
    Ok(done)
}

/// Updates the volume's status after attachments that had no part in a spec are gone. `rows`: the
/// attachments that are left.
pub(crate) fn left(db: &Db<'_>, volume: &VolumeRow, rows: &[AttachmentRow]) -> Result<(), Abort> {
    let statuses: Vec<_> = rows.iter().map(|row| row.status).collect();
    Ok(db.derive_status_of(volume, &statuses)?)
}

#[cfg(test)]
mod tests {
    use mooring_model::{AttachmentId, Naa};
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::AttachmentStatus;
    use crate::store::{Access, Connector, Database, Store, testing};

    const VOLUME: VolumeId = VolumeId::from_u128(1);

    fn store(dir: &tempfile::TempDir) -> Store {
        Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap()
    }

    fn make_volume(db: &Db<'_>) -> Result<(), Abort> {
        testing::insert_volume(db, VOLUME, AgentId::from_u128(9), &BTreeMap::new())?;
        let target = "iqn.2026-11.dev.mooring:x".parse().unwrap();
        db.set_target(VOLUME, &target, &Naa::of_serial(&VOLUME.to_string()), &[])?;
        // The first specs, as after the volume is placed.
        apply(db, VOLUME, &mut [], &BTreeSet::new())?;
        Ok(())
    }

    /// State of an attachment: host, status and access, mode, native, instance.
    type Standing = (u8, (AttachmentStatus, u8), bool, bool, bool);

    fn standing() -> impl Strategy<Value = Standing> {
        let legal = prop::sample::select(Access::legal().collect::<Vec<_>>());
        (0..3_u8, legal, any::<bool>(), any::<bool>(), any::<bool>())
    }

    /// The last of three hosts has two Fibre Channel ports.
    fn initiators(host: u8) -> Initiators {
        let text = match host {
            2 => "20:00:52:54:00:14:00:0b,20:00:52:54:00:14:00:0c".to_owned(),
            _ => format!("iqn.2026-01.lab:host{host}"),
        };
        text.parse().unwrap()
    }

    fn put(row: &mut AttachmentRow, of: Standing) {
        let (host, (status, access), writes, native, served) = of;
        (row.status, row.access) = (status, Access::of(access));
        let wanted = row.wants_grant();
        row.mode = if writes { Mode::ReadWrite } else { Mode::ReadOnly };
        row.instance = served.then(|| row.id.to_string().parse().unwrap());
        row.mountpoint = (served && wanted).then(|| "/dev/vdb".to_owned());
        row.connector = (served && writes).then(|| Connector::of(&serde_json::Map::new()));
        row.initiator = (access != 0 || served).then(|| initiators(host));
        row.lun = row.initiator.as_ref().and_then(Initiators::ports).map(|_| mooring_model::Lun(1));
        row.host = Some(format!("host{host}"));
        row.native = (native || row.had_path()).then(|| AgentId::from_u128(host.into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// After any change of attachments, a renewal of all specs changes nothing.
        #[test]
        fn no_change_leaves_an_old_spec(
            before in prop::collection::vec(standing(), 1..5),
            changes in prop::collection::vec((any::<prop::sample::Index>(), standing(), any::<bool>()), 1..6),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let left = store(&dir).prepare("try", move |db| {
                make_volume(db)?;
                let volume = db.volume(VOLUME)?.unwrap();
                for host in 0..3 {
                    match initiators(host) {
                        Initiators::Iscsi(iqn) => drop(nexus(db, VOLUME, &iqn, true)?),
                        Initiators::Fc(ports) => drop(crate::store::numbers::take(db, &volume, &ports)?),
                    }
                }
                let mut rows = Vec::new();
                for (number, of) in (1..).zip(&before) {
                    let mut row = AttachmentRow::reserved(AttachmentId::from_u128(number), VOLUME, "p", db.now);
                    put(&mut row, *of);
                    rows.push(row);
                }
                apply(db, VOLUME, &mut rows, &BTreeSet::new())?;
                let mut left = Vec::new();
                for (which, of, anew) in &changes {
                    let mut row = which.get(&db.attachments_of(VOLUME)?).clone();
                    put(&mut row, *of);
                    if *anew {
                        row.in_spec_since = Generation::ZERO;
                    }
                    apply(db, VOLUME, &mut [row], &BTreeSet::new())?;
                    let again = apply(db, VOLUME, &mut [], &BTreeSet::new())?;
                    left.push((again.storage, again.hosts.len()));
                }
                Ok(left)
            });
            prop_assert!(left.unwrap().iter().all(|left| *left == (false, 0)));
        }
    }

    /// A grant that was seen in the kernel, or that its host is to give up, changes no spec. Each
    /// note of one would be sent to agents otherwise.
    #[test]
    fn rows_that_want_the_same_grant_and_path_have_one_spec() {
        let mut specs = BTreeMap::new();
        for legal in Access::legal() {
            let id = AttachmentId::from_u128(1);
            let mut row = AttachmentRow::reserved(id, VOLUME, "p", std::time::SystemTime::UNIX_EPOCH);
            put(&mut row, (0, legal, true, true, false));
            let wants = (row.wants_grant(), row.wants_path());
            let rows = [row];
            let side = || ChapSide { user: "u".to_owned(), secret: Secret::new("s".to_owned()) };
            let chap_of = |_: &Iqn| Ok(Chap { initiator: side(), mutual: None });
            let slot_of = |_: Wwpn| Err(corrupt("the slot of a port", VOLUME));
            let spec = export_spec(VOLUME, &rows, chap_of, slot_of, &Barriers::new()).unwrap();
            assert_eq!(spec.grants.len(), usize::from(wants.0), "{legal:?}");
            let sent = (mooring_api::export_to_wire(&spec), KeptExport::of(&rows).to_bytes());
            let first = specs.entry(wants).or_insert_with(|| sent.clone());
            assert!(*first == sent, "{legal:?}");
        }
        assert_eq!(specs.len(), 4, "each of both can be wanted alone");
    }

    #[test]
    fn an_event_that_agents_do_not_see_is_few_statements() {
        let dir = tempfile::tempdir().unwrap();
        let counts = store(&dir).prepare("count", |db| {
            make_volume(db)?;
            apply(db, VOLUME, &mut [], &BTreeSet::new())?;
            let row = |number| AttachmentRow::reserved(AttachmentId::from_u128(number), VOLUME, "p", db.now);
            let mut counts = Vec::new();
            for number in 1..=100 {
                let (done, count) =
                    testing::counted(db, |db| apply(db, VOLUME, &mut [row(number)], &BTreeSet::new()));
                done?;
                counts.push(count);
            }
            Ok(counts)
        });
        // Reads the other rows, writes the row, writes the volume; the first also writes the
        // status.
        let counts = counts.unwrap();
        assert_eq!(counts[0], 4);
        assert!(counts[1..].iter().all(|count| *count == 3), "{counts:?}");
    }

    #[test]
    fn what_agents_keep_for_a_rebuild_is_never_more_than_they_take() {
        let row = |n: u128| {
            let (id, volume) = (mooring_model::AttachmentId::from_u128(n), VolumeId::from_u128(1));
            AttachmentRow {
                instance: Some(uuid::Uuid::from_u128(n)),
                status: crate::domain::AttachmentStatus::Attached,
                host: Some("h".repeat(255)),
                access: Access::of(20),
                ..AttachmentRow::reserved(id, volume, &"p".repeat(36), std::time::SystemTime::UNIX_EPOCH)
            }
        };
        for (count, said) in [(2, 2), (400, 400), (2000, 0)] {
            let rows: Vec<_> = (0..count).map(row).collect();
            let kept = KeptExport::from_bytes(&KeptExport::of(&rows).to_bytes()).unwrap();
            assert_eq!((kept.attachments.len(), kept.truncated), (said, count > 2));
        }
    }

    #[test]
    fn secrets_are_long_printable_and_different() {
        let one = side("host").unwrap();
        let two = side("host").unwrap();
        assert_ne!(one.secret, two.secret);
        assert_ne!(one.user, two.user);
        assert_eq!(one.secret.expose().len(), 33);
        let printable =
            |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        assert!(printable(one.secret.expose()) && printable(&one.user));
    }
}

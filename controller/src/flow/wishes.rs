//! From rows to wishes: what the agents are told, computed in the transaction that changed a row.
//!
//! What must never happen here: a grant without an attachment that wants it; a mode wider than the widest of a nexus; a
//! wish that differs from the last one by chance (maps are ordered, and nothing of a moment is in it).

use std::collections::{BTreeMap, BTreeSet};

use mooring_api::v1;
use mooring_model::limit::OPAQUE_BYTES_MAX;
use mooring_model::{
    AgentId, AttachmentWish, ByteSize, Chap, ChapSide, ConnectionSpec, ExportIdentity, ExportSpec,
    Generation, Grant, Iqn, LUN_DEFAULT, Provisioning, Secret, TPG_DEFAULT, VolumeId, VolumeSpec,
};
use serde_json::json;

use crate::rules::{self, Operation};
use crate::service::Refusal;
use crate::store::{Abort, AttachmentRow, Db, Kind, Nexus, VolumeRow, Wish};

/// Bytes of a CHAP secret before they become text: 192 random bits.
const SECRET_BYTES: usize = 24;
const USER_BYTES: usize = 12;

/// Bytes of a GiB.
pub(crate) const GIB: u64 = 1 << 30;

/// What a change of rows changed of the wishes.
#[derive(Debug, Default)]
pub(crate) struct Rewished {
    /// Hosts whose connection is another one now.
    pub(crate) hosts: BTreeSet<AgentId>,
}

fn corrupt(what: &str, volume: VolumeId) -> Abort {
    tracing::error!(%volume, "{what}");
    Abort::Refused(Refusal::Internal(format!("{what} of volume {volume}: see the controller's log")))
}

/// Random text of URL-safe characters, 4 for 3 bytes.
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

/// The kernel takes what begins with NULL as "no credential": a letter stands before everything random.
fn side(user: &str) -> Result<ChapSide, Refusal> {
    let user = format!("{user}-{}", random_text(USER_BYTES)?);
    Ok(ChapSide { user, secret: Secret::new(format!("s{}", random_text(SECRET_BYTES)?)) })
}

/// Credentials for a nexus: kept, or made. Hosts of ours prove the target, too.
pub(crate) fn nexus(db: &Db<'_>, volume: VolumeId, initiator: &Iqn, native: bool) -> Result<Nexus, Abort> {
    if let Some(nexus) = db.nexus(volume, initiator)? {
        return Ok(nexus);
    }
    let mutual = if native { Some(side("target")?) } else { None };
    let nexus = Nexus(Chap { initiator: side("host")?, mutual });
    db.insert_nexus(volume, initiator, &nexus)?;
    Ok(nexus)
}

fn volume_wish(db: &Db<'_>, volume: &VolumeRow) -> Result<Wish, Abort> {
    let spec = VolumeSpec {
        id: volume.id,
        group: volume.pool.parse().map_err(|_| corrupt("the pool", volume.id))?,
        size: ByteSize(u64::from(volume.size_gib) * GIB),
        provisioning: Provisioning::Thick,
    };
    let type_name = db.type_by_id(volume.type_id)?.map(|volume_type| volume_type.name);
    let opaque = json!({
        "name": volume.name, "description": volume.description, "project": volume.project, "user": volume.user,
        "type": type_name, "type_id": volume.type_id, "size_gib": volume.size_gib,
        "multiattach": volume.multiattach, "metadata": volume.metadata,
    });
    Ok(Wish::spec(&v1::VolumeSpec::from(&spec), opaque.to_string().into_bytes()))
}

/// What a rebuild needs of the attachments that have a grant. Agents take a limited size: of very many attachments only what
/// cannot be known otherwise is written, and in the end nothing but that something is missing.
fn export_opaque(rows: &[AttachmentRow]) -> Vec<u8> {
    let granted = || rows.iter().filter(|row| row.grant_wanted);
    let all = granted().map(|row| {
        json!({
            "id": row.id, "instance": row.instance, "host": row.host, "mode": row.mode, "project": row.project,
            "native": row.native,
        })
    });
    let all = json!({ "attachments": all.collect::<Vec<_>>() }).to_string().into_bytes();
    if all.len() <= OPAQUE_BYTES_MAX {
        return all;
    }
    let few = granted().map(|row| json!({ "id": row.id, "instance": row.instance, "mode": row.mode }));
    let few = json!({ "attachments": few.collect::<Vec<_>>() }).to_string().into_bytes();
    if few.len() <= OPAQUE_BYTES_MAX {
        return few;
    }
    json!({ "attachments": [], "truncated": true }).to_string().into_bytes()
}

fn export_wish(db: &Db<'_>, volume: VolumeId, rows: &[AttachmentRow]) -> Result<Wish, Abort> {
    let mut nexuses: BTreeMap<&Iqn, Vec<&AttachmentRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.grant_wanted) {
        if let Some(initiator) = &row.initiator {
            nexuses.entry(initiator).or_default().push(row);
        }
    }
    let mut grants = Vec::new();
    for (initiator, rows) in nexuses {
        let Some(mode) = rules::effective_mode(rows.iter().map(|row| row.mode)) else { continue };
        let chap = db.nexus(volume, initiator)?.ok_or_else(|| corrupt("the credentials", volume))?.0;
        let attachments = rows.iter().map(|row| row.id).collect();
        grants.push(Grant {
            initiator: initiator.clone(),
            lun: LUN_DEFAULT,
            mode,
            chap: Some(chap),
            attachments,
        });
    }
    let spec = ExportSpec { volume, identity: ExportIdentity::Derived, portals: Vec::new(), grants };
    Ok(Wish::spec(&mooring_api::export_to_wire(&spec), export_opaque(rows)))
}

fn connection_wish(db: &Db<'_>, volume: &VolumeRow, rows: &[&AttachmentRow]) -> Result<Option<Wish>, Abort> {
    let Some(initiator) = rows.first().and_then(|row| row.initiator.clone()) else { return Ok(None) };
    let (Some(target), Some(naa)) = (volume.target.clone(), volume.naa.clone()) else { return Ok(None) };
    let chap = db.nexus(volume.id, &initiator)?.ok_or_else(|| corrupt("the credentials", volume.id))?.0;
    let spec = ConnectionSpec {
        volume: volume.id,
        initiator,
        target,
        tpg: TPG_DEFAULT,
        portals: volume.portals.clone(),
        lun: LUN_DEFAULT,
        naa,
        serial: volume.id.to_string(),
        size: ByteSize(u64::from(volume.size_gib) * GIB),
        chap: Some(chap),
        attachments: rows.iter().map(|row| AttachmentWish { id: row.id, mode: row.mode }).collect(),
    };
    let opaque = json!({ "project": volume.project, "storage": volume.agent });
    Ok(Some(Wish::spec(&mooring_api::connection_to_wire(&spec), opaque.to_string().into_bytes())))
}

/// Wishes anew what this volume's rows want. Hosts in `revoked` lost their access at the target.
fn rewish(db: &Db<'_>, id: VolumeId, revoked: &BTreeSet<AgentId>) -> Result<(Rewished, Generation), Abort> {
    let mut done = Rewished::default();
    let Some(volume) = db.volume(id)? else { return Ok((done, Generation::ZERO)) };
    if matches!(volume.operation, Some(Operation::Deleting | Operation::ErrorDeleting)) {
        if db.spec(id, Kind::Export)?.is_some() {
            db.wish(id, Kind::Export, &Wish::tombstone(Kind::Export, false))?;
        }
        let generation = db.wish(id, Kind::Volume, &Wish::tombstone(Kind::Volume, true))?;
        return Ok((done, generation));
    }
    db.wish(id, Kind::Volume, &volume_wish(db, &volume)?)?;
    if volume.operation.is_some() {
        return Ok((done, Generation::ZERO));
    }
    let rows = db.attachments_of(id)?;
    let generation = db.wish(id, Kind::Export, &export_wish(db, id, &rows)?)?;

    let mut hosts: BTreeMap<AgentId, Vec<&AttachmentRow>> =
        db.connections_of(id)?.into_iter().map(|host| (host, Vec::new())).collect();
    for row in rows.iter().filter(|row| row.connect_wanted) {
        if let Some(host) = row.native {
            hosts.entry(host).or_default().push(row);
        }
    }
    for (host, rows) in hosts {
        let kind = Kind::Connection(host);
        let kept = db.spec(id, kind)?;
        let wish = if rows.is_empty() {
            let hard = revoked.contains(&host);
            let there =
                kept.as_ref().is_some_and(|kept| kept.wish.body.is_some() || (hard && !kept.wish.hard));
            there.then(|| Wish::tombstone(kind, hard))
        } else {
            connection_wish(db, &volume, &rows)?
        };
        let Some(wish) = wish else { continue };
        let before = kept.map_or(Generation::ZERO, |kept| kept.stamp.generation);
        if db.wish(id, kind, &wish)? != before {
            done.hosts.insert(host);
        }
    }
    Ok((done, generation))
}

/// Writes changed rows and everything that follows from them: the wishes, and the volume's status. A row whose `wished_at`
/// is zero gets the generation of the export that these rows make.
pub(crate) fn apply(
    db: &Db<'_>,
    id: VolumeId,
    changed: &mut [AttachmentRow],
    revoked: &BTreeSet<AgentId>,
) -> Result<Rewished, Abort> {
    for row in changed.iter() {
        db.put_attachment(row)?;
    }
    let (done, generation) = rewish(db, id, revoked)?;
    for row in changed.iter_mut().filter(|row| row.wished_at == Generation::ZERO && row.initiator.is_some()) {
        row.wished_at = generation;
        db.put_attachment(row)?;
    }
    db.derive_status(id)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_keep_for_a_rebuild_is_never_more_than_they_take() {
        let row = |n: u128| AttachmentRow {
            id: mooring_model::AttachmentId::from_u128(n),
            volume: VolumeId::from_u128(1),
            project: "p".repeat(36),
            instance: Some(uuid::Uuid::from_u128(n)),
            mode: mooring_model::Mode::ReadWrite,
            status: crate::domain::AttachmentStatus::Attached,
            connector: None,
            initiator: None,
            host: Some("h".repeat(255)),
            mountpoint: None,
            native: None,
            grant_wanted: true,
            granted: true,
            held: true,
            connect_wanted: false,
            connect_ever: false,
            forced: false,
            wished_at: Generation::ZERO,
            steps: Vec::new(),
            created_at: std::time::SystemTime::UNIX_EPOCH,
            attached_at: None,
            fault: None,
        };
        for (count, said) in [(2, 2), (400, 400), (2000, 0)] {
            let rows: Vec<_> = (0..count).map(row).collect();
            let opaque = export_opaque(&rows);
            assert!(opaque.len() <= OPAQUE_BYTES_MAX, "{count}: {}", opaque.len());
            let value: serde_json::Value = serde_json::from_slice(&opaque).unwrap();
            assert_eq!(value["attachments"].as_array().unwrap().len(), said);
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

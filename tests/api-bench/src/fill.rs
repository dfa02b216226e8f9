//! Writes the large world straight into the embedded database: rows as the controller would have
//! written them.
//!
//! What must never happen here: a row that the controller would not have written; it would measure
//! something else.

use std::path::Path;

use anyhow::{Context, Result};
use mooring_api::{Message, v1};
use rusqlite::{Connection, Transaction, params};

use crate::world::{self, PROJECT, World};

/// Creation time of the first row, in microseconds since 1970; the others follow.
const BEGAN_US: i64 = 1_795_000_000_000_000;

fn created(number: u32) -> i64 {
    BEGAN_US + i64::from(number) * 1_000
}

fn volume(to: &Transaction<'_>, world: &World, number: u32, kind: &str) -> Result<()> {
    let id = world::volume_id(number).to_string();
    let sql = "INSERT INTO volumes (id, name, size_gib, type_id, multiattach, status, attach_status, project, user_id, \
               metadata, agent_id, pool, target, naa, portals, created_us, updated_us) \
               VALUES (?1, ?2, 10, ?3, 1, ?4, ?5, ?6, 'u', ?7, ?8, 'vg0', ?9, ?10, ?11, ?12, ?12)";
    let attached = world.attachments_of(number).next().is_some();
    let (status, attach) = if attached { ("in-use", "attached") } else { ("available", "detached") };
    let metadata = format!("{{\"k\":\"{}\"}}", number % 100);
    let agent = world::agent_id(world.agent_of(number)).to_string();
    to.prepare_cached(sql)?.execute(params![
        id,
        format!("volume-{number}"),
        kind,
        status,
        attach,
        PROJECT,
        metadata,
        agent,
        world::target(number),
        world::naa(number),
        world::PORTAL,
        created(number)
    ])?;
    let spec = world::volume_spec();
    keep_spec(to, &id, "volume", &spec, &world::volume_opaque(number))?;
    keep_spec(to, &id, "export", &world.export_spec(number), &world.export_opaque(number))
}

fn keep_spec(
    to: &Transaction<'_>,
    volume: &str,
    kind: &str,
    spec: &impl Message,
    opaque: &[u8],
) -> Result<()> {
    let v1::Generation { epoch, counter } = world::GENERATION;
    let sql = "INSERT INTO specs (volume_id, kind, agent_id, epoch, counter, digest, body, opaque, hard, settled) \
               VALUES (?1, ?2, '', ?3, ?4, ?5, ?6, ?7, 0, 0)";
    let digest = mooring_api::digest(spec, opaque);
    let (epoch, counter) = (i64::try_from(epoch)?, i64::try_from(counter)?);
    let values = params![volume, kind, epoch, counter, digest.as_bytes(), spec.encode_to_vec(), opaque];
    to.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn attachments(to: &Transaction<'_>, world: &World, volume: u32) -> Result<()> {
    let sql = "INSERT INTO attachments (id, volume_id, project, instance, mode, status, connector, initiator, host, \
               mountpoint, access, moving, wish_epoch, wish_counter, steps, created_us, attached_us) \
               VALUES (?1, ?2, ?3, ?1, 'rw', 'attached', ?4, ?5, ?6, '/dev/vdb', 20, 0, 1, 1, ?7, ?8, ?8)";
    let nexus = "INSERT INTO nexuses (volume_id, initiator, chap_user, secret) VALUES (?1, ?2, ?3, ?4)";
    let volume_id = world::volume_id(volume).to_string();
    for (number, one) in world.attachments_of(volume) {
        let connector = serde_json::json!({
            "platform": "x86_64", "os_type": "linux", "ip": "192.0.2.11", "host": one.host, "multipath": false,
            "initiator": one.initiator, "do_local_attach": false, "mountpoint": "/dev/vdb",
        });
        to.prepare_cached(sql)?.execute(params![
            one.id.to_string(),
            volume_id,
            PROJECT,
            connector.to_string(),
            one.initiator,
            one.host,
            "[[\"granted\",3],[\"done\",5]]",
            created(number)
        ])?;
        let (user, secret) = (format!("host-{number:016}"), world::secret(number));
        to.prepare_cached(nexus)?.execute(params![volume_id, one.initiator, user, secret])?;
    }
    Ok(())
}

/// Fills the database of a controller that was started once and is stopped.
pub fn fill(database: &Path, world: &World) -> Result<()> {
    let mut conn = Connection::open(database).with_context(|| format!("open {}", database.display()))?;
    let kind: String = conn.query_row("SELECT id FROM volume_types", [], |row| row.get(0))?;
    let transaction = conn.transaction()?;
    for number in 0..world.volumes {
        volume(&transaction, world, number, &kind)?;
        attachments(&transaction, world, number)?;
    }
    transaction.commit().context("fill the database")?;
    conn.close().map_err(|(_, error)| error)?;
    Ok(())
}

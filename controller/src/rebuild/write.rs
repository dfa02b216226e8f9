//! Writes everything that was read in one transaction, or nothing.
//!
//! What must never happen here: a write to a database that is not empty.

use std::sync::Arc;
use std::time::Duration;

use super::RebuildError;
use super::ask::Heard;
use super::read::{Found, FoundVolume};
use crate::flow::{review, volume_specs};
use crate::initiators::Initiators;
use crate::store::{Abort, Db, ReviewKind, Stage, Store};

/// Smallest time that the database stores: a report this much later shows everything that is taken
/// now.
const SHOWN: Duration = Duration::from_micros(1);

/// Result of the transaction: distinguishes a database that is not empty from one that fails.
enum Written {
    Epoch(u64),
    Holds(u64),
}

/// Writes what was found. Returns the epoch from now on.
pub(super) fn write(store: &Store, heard: &[Heard], found: Found) -> Result<u64, RebuildError> {
    let shared = store.dialer().is_some();
    let agents: Arc<Vec<_>> = Arc::new(
        heard
            .iter()
            .map(|agent| {
                let name = agent.entry.name.clone();
                (name, agent.id, agent.initiator.clone(), agent.hello.clone(), agent.capabilities.clone())
            })
            .collect(),
    );
    let found = Arc::new(found);
    let work = move |db: &Db<'_>| {
        let holds = db.holds()?;
        if holds > 0 {
            return Ok(Written::Holds(holds));
        }
        if shared {
            db.forget_controllers()?;
        }
        let epoch = db.raise_epoch(found.epoch)?;
        for (name, id, initiator, hello, capabilities) in agents.iter() {
            db.put_agent(name, *id, initiator.as_ref(), &hello.portals, &hello.software)?;
            if let Some(capabilities) = capabilities {
                // The agents were asked for their capabilities after their volumes: the report
                // shows all of these.
                db.put_capabilities(name, capabilities, Some(db.now + SHOWN))?;
            }
        }
        for found in &found.types {
            // The type that a new database contains has another id than in the lost one.
            if let Some(made) = db.type_by_name(&found.of.name)? {
                db.delete_type(made.id)?;
            }
            db.insert_type(&found.of)?;
            for project in &found.projects {
                db.add_type_access(found.of.id, project)?;
            }
        }
        found.volumes.iter().try_for_each(|volume| write_volume(db, volume))?;
        Ok(Written::Epoch(epoch))
    };
    match store.prepare("rebuild the database", work) {
        Ok(Written::Epoch(epoch)) => Ok(epoch),
        Ok(Written::Holds(holds)) => Err(RebuildError::NotEmpty(holds)),
        Err(error) => Err(RebuildError::Write(error)),
    }
}

fn write_volume(db: &Db<'_>, found: &FoundVolume) -> Result<(), Abort> {
    let row = &found.row;
    db.insert_found_volume(row)?;
    if let (Some(target), Some(naa)) = (&row.target, &row.naa) {
        db.set_target(row.id, target, naa, &row.portals)?;
        db.set_fc_ports(row.id, &row.fc_ports)?;
    }
    for (port, slot) in &found.slots {
        db.keep_fc_slot(row.agent, *port, *slot)?;
    }
    db.set_operation(row.id, row.operation, row.fault.as_deref())?;
    for (initiator, nexus) in &found.nexuses {
        db.insert_nexus(row.id, initiator, nexus)?;
        if let Some((_, other)) = found.rotations.iter().find(|(of, _)| of == initiator) {
            db.put_secrets(row.id, initiator, &nexus.0, Some((Stage::Settling, Some(other))))?;
        }
    }
    for attachment in &found.attachments {
        if let (Some(ports), Some(lun)) =
            (attachment.initiator.as_ref().and_then(Initiators::ports), attachment.lun)
        {
            db.take_fc_lun(row.agent, ports, lun, row.id)?;
        }
        db.put_attachment(attachment)?;
    }
    for (kind, spec) in &found.specs {
        db.keep_spec(row.id, *kind, spec)?;
    }
    // Derived from the attachments, which are there only now.
    db.derive_status(row.id)?;
    if found.is_outdated {
        volume_specs::apply(db, row.id, &mut [], &found.revoked)?;
    }
    // Its agent must be looked at first, as after a restore.
    Ok(db.put_in_review(row.id, ReviewKind::Restored, review::RESTORED)?)
}

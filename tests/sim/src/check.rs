//! What must hold after every event, judged from the controller's answers and the kernels' trees.
//!
//! The controller is read twice, and the kernels in between: a grant must have its attachment in one of both reads, because
//! an attachment is there before its grant and goes after it.
//!
//! What must never happen here: a check that takes the word of one side for both.

use mooring_controller::domain::VolumeStatus;
use mooring_controller::rules::{Operation, derive};
use mooring_controller::service::Service;
use mooring_model::{Mode, VolumeId};

use crate::lock;
use crate::node::device_of;
use crate::world::{Kernel, Snapshot, World};

/// Checks everything that can be seen now.
pub(crate) async fn check(world: &World, service: Option<&Service>) {
    for node in world.nodes.iter() {
        for complaint in lock(node).complaints() {
            lock(&world.model).violated(complaint);
        }
    }
    let Some(service) = service else { return };
    let Some(before) = world.snapshot(service).await else { return };
    let kernel = world.kernel();
    let Some(after) = world.snapshot(service).await else { return };
    let mut found = Vec::new();
    for snapshot in [&before, &after] {
        statuses(snapshot, &mut found);
        ended(world, snapshot, &mut found);
    }
    grants(world, &before, &kernel, &after, &mut found);
    granted(world, &before, &kernel, &after, &mut found);
    data(world, &before, &after, &mut found);
    let mut model = lock(&world.model);
    model.say(format!(
        "  seen: {} volumes, {} attachments, {} grants",
        after.volumes.len(),
        after.rows.len(),
        kernel.len()
    ));
    for what in found {
        model.violated(what);
    }
}

/// A volume in review, or one that the database forgot, is held as it is.
fn is_held(world: &World, volume: VolumeId, snapshots: [&Snapshot; 2]) -> bool {
    let lost = lock(&world.model).volumes.get(&volume).is_none_or(|known| known.lost || known.confirmed);
    lost || snapshots.iter().any(|snapshot| is_in_review(snapshot, volume))
}

/// Nothing is sent of this volume until an operator says what holds.
pub(crate) fn is_in_review(snapshot: &Snapshot, volume: VolumeId) -> bool {
    let fault = snapshot.volumes.get(&volume).and_then(|shown| shown.fault.as_ref());
    fault.is_some_and(|fault| fault.contains("restored") || fault.contains("older state"))
}

/// The status is the derivation; no attachment is without its volume.
fn statuses(snapshot: &Snapshot, found: &mut Vec<String>) {
    for (id, shown) in &snapshot.volumes {
        let operation = Operation::from_word(shown.status.as_str());
        let derived = derive(operation, shown.attachments.iter().copied());
        if derived != (shown.status, shown.attach_status) {
            found.push(format!("volume {id} is {} / {}, not {derived:?}", shown.status, shown.attach_status));
        }
    }
    for (id, row) in &snapshot.rows {
        if !snapshot.volumes.contains_key(&row.volume) {
            found.push(format!("attachment {id} has no volume"));
        }
    }
}

/// What was acknowledged as gone is not there again; what is there has the mode that was asked for.
fn ended(world: &World, snapshot: &Snapshot, found: &mut Vec<String>) {
    let model = lock(&world.model);
    for (id, row) in &snapshot.rows {
        let Some(known) = model.attachments.get(id) else {
            found.push(format!("nobody asked for attachment {id}"));
            continue;
        };
        if known.gone.is_some() {
            found.push(format!("{} was acknowledged as gone, and is there as {}", known.name, row.status));
        }
        if known.mode != row.mode {
            found.push(format!("{} was asked for as {}, and is {}", known.name, known.mode, row.mode));
        }
    }
}

/// No grant without an attachment, and none that is wider than all of its attachments.
fn grants(world: &World, before: &Snapshot, kernel: &Kernel, after: &Snapshot, found: &mut Vec<String>) {
    for ((volume, initiator), mode) in kernel {
        if is_held(world, *volume, [before, after]) {
            continue;
        }
        let rows = || before.rows.values().chain(after.rows.values());
        let mut of_nexus =
            rows().filter(|row| row.volume == *volume && row.initiator.as_ref() == Some(initiator));
        let name = lock(&world.model).name(*volume);
        if !before.volumes.contains_key(volume) && !after.volumes.contains_key(volume) {
            found.push(format!("{initiator} reaches {name}, which is no volume any more"));
        } else if of_nexus.clone().next().is_none() {
            found.push(format!("{initiator} reaches {name} without an attachment"));
        } else if *mode == Mode::ReadWrite && !of_nexus.any(|row| row.mode == Mode::ReadWrite) {
            found.push(format!("{initiator} may write to {name}, and its attachments are read-only"));
        }
    }
}

/// What a client was told to log in to is there, though without a portal while its device hangs, unless the machine has lost its kernel's state since.
fn granted(world: &World, before: &Snapshot, kernel: &Kernel, after: &Snapshot, found: &mut Vec<String>) {
    for (id, row) in after.rows.iter().filter(|(_, row)| row.connected) {
        let Some(initiator) = &row.initiator else { continue };
        let both = before.rows.get(id) == Some(row);
        let rebooted = world.nodes.iter().any(|node| lock(node).rebooted);
        if !both || rebooted || is_held(world, row.volume, [before, after]) {
            continue;
        }
        let is_there = kernel.contains_key(&(row.volume, initiator.clone()));
        if !is_there && !world.is_withheld(row.volume, initiator) {
            found.push(format!("attachment {id} is connected, and its grant is not in the kernel"));
        }
    }
}

/// No volume without its data.
fn data(world: &World, before: &Snapshot, after: &Snapshot, found: &mut Vec<String>) {
    for (id, shown) in &after.volumes {
        let settled = |status| {
            !matches!(
                status,
                VolumeStatus::Creating
                    | VolumeStatus::Deleting
                    | VolumeStatus::Error
                    | VolumeStatus::ErrorDeleting
            )
        };
        let both =
            before.volumes.get(id).is_some_and(|before| settled(before.status)) && settled(shown.status);
        if both && !is_held(world, *id, [before, after]) && world.node_of(*id).is_none() {
            found.push(format!(
                "volume {id} is {}, and {} is not there",
                shown.status,
                device_of(*id).display()
            ));
        }
    }
}

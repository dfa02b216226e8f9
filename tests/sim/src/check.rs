//! Checks of everything that must hold after every event, judged from the controller's answers and
//! the kernels' trees.
//!
//! The controller is read twice, and the kernels in between: a grant must have its attachment in
//! one of both reads, because an attachment is there before its grant and goes after it.
//!
//! What must never happen here: a check that takes the word of one side for both.

use std::time::Duration;

use mooring_controller::domain::VolumeStatus;
use mooring_controller::rules::{Operation, derive};
use mooring_controller::service::Service;
use mooring_model::{Mode, VolumeId};
use tokio::time::Instant;

use crate::lock;
use crate::node::device_of;
use crate::world::{Kernel, Snapshot, World};

/// Checks everything that is visible now.
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
    by_hand(world, &after, &mut found);
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

/// Time within which an agent that can see a foreign change must correct it: until the next resync,
/// and some more.
const SEEN_WITHIN: Duration = Duration::from_secs(75);

/// Checks that changes by hand are corrected as far as possible, and that no whole volume is
/// recreated or shrunk.
fn by_hand(world: &World, after: &Snapshot, found: &mut Vec<String>) {
    let sizes: Vec<_> = world.nodes.iter().map(|node| crate::hand::sizes(&lock(node).machine)).collect();
    let well: Vec<_> = world.nodes.iter().map(|node| lock(node).is_well()).collect();
    let mut model = lock(&world.model);
    for (id, known) in &mut model.volumes {
        let hand = &mut known.hand;
        let now = Instant::now();
        hand.touched = hand.touched.and_then(|(at, when)| {
            let sees = well.get(at).copied().unwrap_or(false) && !hand.is_apart();
            let put_right = sees && now.duration_since(when) > SEEN_WITHIN;
            (!put_right).then_some((at, if sees { when } else { now }))
        });
        hand.in_tree &= hand.touched.is_some();
        let name = crate::hand::names(*id).lv;
        let Some(size) = sizes.iter().find_map(|sizes| sizes.get(&name)).copied() else { continue };
        if known.lost || known.confirmed || hand.unmade || !after.volumes.contains_key(id) {
            hand.largest = 0;
            continue;
        }
        if hand.removed || hand.away {
            found.push(format!("the LV of {} was taken away by hand, and was made anew", known.name));
        }
        if size < hand.largest {
            found.push(format!("the LV of {} has become smaller: {size} of {}", known.name, hand.largest));
        }
        hand.largest = hand.largest.max(size);
    }
}

/// True if a volume is left as it is: it is in review, or the database has forgotten it.
fn is_held(world: &World, volume: VolumeId, snapshots: [&Snapshot; 2]) -> bool {
    let lost = lock(&world.model).volumes.get(&volume).is_none_or(|known| known.lost || known.confirmed);
    lost || snapshots.iter().any(|snapshot| is_in_review(snapshot, volume))
}

/// True if nothing is sent for this volume until an operator decides.
pub(crate) fn is_in_review(snapshot: &Snapshot, volume: VolumeId) -> bool {
    let fault = snapshot.volumes.get(&volume).and_then(|shown| shown.fault.as_ref());
    fault.is_some_and(|fault| {
        let older =
            fault.contains("restored") || fault.contains("older state") || fault.contains("lost its store");
        // A storage agent's report of a lost LV also speaks of older states.
        older && !fault.contains("its LV is gone")
    })
}

/// Checks that each status is the derived one, and that every attachment has its volume.
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

/// Checks that attachments acknowledged as gone stay gone, and that the others have the mode that
/// was asked for.
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

/// Checks that every grant has an attachment, and that none is wider than all of its attachments.
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
        } else if *mode == Mode::ReadWrite
            && !of_nexus.any(|row| row.mode == Mode::ReadWrite)
            && !lock(&world.model).is_changed_in_tree(*volume)
        {
            found.push(format!("{initiator} may write to {name}, and its attachments are read-only"));
        }
    }
}

/// Checks that the kernel has each grant that a client may log in to. The portal may be missing
/// while the device hangs, and everything after a loss of the kernel's state.
fn granted(world: &World, before: &Snapshot, kernel: &Kernel, after: &Snapshot, found: &mut Vec<String>) {
    for (id, row) in after.rows.iter().filter(|(_, row)| row.connected) {
        let Some(initiator) = &row.initiator else { continue };
        let both = before.rows.get(id) == Some(row);
        let rebooted = world.nodes.iter().any(|node| lock(node).rebooted);
        let touched = lock(&world.model).is_touched(row.volume);
        if !both || rebooted || touched || is_held(world, row.volume, [before, after]) {
            continue;
        }
        let is_there = kernel.contains_key(&(row.volume, initiator.clone()));
        if !is_there && !world.is_withheld(row.volume, initiator) {
            found.push(format!("attachment {id} is connected, and its grant is not in the kernel"));
        }
    }
}

/// Checks that every volume has its data.
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
        let touched = lock(&world.model).is_touched(*id);
        if both && !touched && !is_held(world, *id, [before, after]) && world.node_of(*id).is_none() {
            found.push(format!(
                "volume {id} is {}, and {} is not there",
                shown.status,
                device_of(*id).display()
            ));
        }
    }
}

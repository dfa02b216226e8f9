//! End of a run: everything heals, and within some virtual minutes every spec is reached. Then
//! everything is detached and deleted, and nothing is left.
//!
//! What must never happen here: a run that is called good because nobody could look.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use mooring_controller::domain::{AttachmentStatus, VolumeAction, VolumeStatus};
use mooring_controller::service::{Service, Wait};
use mooring_model::{LvName, Mode, VolumeId};

use crate::check::{check, is_in_review};
use crate::control::admin;
use crate::lock;
use crate::net::Weather;
use crate::run::Run;
use crate::world::{Kernel, Shown, Snapshot, World};

/// Time within which specs must be reached once everything works.
const REST_WITHIN: Duration = Duration::from_mins(5);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time after which an operator acts on an agent that its controller does not know.
const STORES_ANEW_AFTER: Duration = Duration::from_mins(2);

fn heal(run: &mut Run) -> Result<()> {
    run.world.say("everything heals");
    run.world.calls.set_storm(0);
    run.control.clock.set_wrong_by(0);
    for (at, node) in run.world.nodes.iter().enumerate() {
        run.world.bring_back(at);
        let mut node = lock(node);
        node.pace.set(None, Rng::with_seed(0));
        node.end_trouble();
        node.clock.set_wrong_by(0);
        node.wire.set(Weather::Fair);
        node.release();
        node.start()?;
    }
    run.control.start(false)
}

/// Heals, waits for rest, takes everything away, and waits again.
pub(crate) async fn settle(run: &mut Run) -> Result<()> {
    heal(run)?;
    let Some(service) = run.control.service().cloned() else { return Ok(()) };
    for last in [false, true] {
        let mut waited = Duration::ZERO;
        loop {
            for node in run.world.nodes.iter() {
                // A kill planned for some later change may happen only now.
                lock(node).start()?;
            }
            while run.clients.try_join_next().is_some() {}
            confirm(&run.world, &service).await;
            take_as_large(&run.world, &service).await;
            check(&run.world, Some(&service)).await;
            if !lock(&run.world.model).violations.is_empty() {
                return Ok(());
            }
            let Some(why) = restless(run, &service, last).await else { break };
            if waited == STORES_ANEW_AFTER {
                take_stores_anew(&run.world)?;
            }
            if waited >= REST_WITHIN {
                say_plans(&run.world).await;
                lock(&run.world.model).violated(format!("it does not come to rest: {why}"));
                return Ok(());
            }
            if last && run.clients.is_empty() {
                take_away(run, &service).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            waited += LOOK_EVERY;
        }
        lock(&run.world.model).volumes.values_mut().for_each(|known| known.confirmed = false);
        run.world.say(if last { "nothing is left" } else { "at rest" });
    }
    Ok(())
}

/// Moves the new stores of unknown agents aside, as an operator does. A call that reached an agent
/// with a new store before its controller had restored the agent's id left specs in that store. The
/// controller then takes the agent for another one.
fn take_stores_anew(world: &World) -> Result<()> {
    for node in world.nodes.iter() {
        let mut node = lock(node);
        if node.lost_store {
            node.lose_store()?;
            lock(&world.model).say("  an operator moves an agent's store aside");
            world.store_was_lost();
        }
    }
    Ok(())
}

/// Writes the agents' remaining steps into the trace.
async fn say_plans(world: &World) {
    for node in world.nodes.iter() {
        let engine = lock(node).engine();
        let Some(engine) = engine else { continue };
        let planned = engine.plan(None).await;
        let steps = planned.steps.iter().map(|step| format!("{}, because {}", step.step, step.why));
        let blocked = planned.blocked.iter().map(|problem| format!("{}: {}", problem.object, problem.text));
        for line in steps.chain(blocked) {
            world.say(format!("  to be done: {line}"));
        }
    }
}

/// Raises the size in the spec of volumes that somebody has extended by hand, as an operator does.
async fn take_as_large(world: &World, service: &Service) {
    let Some(snapshot) = world.snapshot(service).await else { return };
    let extended = |id: &&VolumeId| {
        lock(&world.model).volumes.get(*id).is_some_and(|known| known.hand.extended && !known.hand.removed)
    };
    for id in snapshot.volumes.keys().filter(extended).copied().collect::<Vec<_>>() {
        let Some(shown) = snapshot.volumes.get(&id) else { continue };
        if shown.status == VolumeStatus::ErrorExtending {
            // The growth failed while the LV was away. Once that is seen, it can be asked for
            // again.
            let used = snapshot.rows.values().any(|row| row.volume == id);
            let status = Some(if used { VolumeStatus::InUse } else { VolumeStatus::Available });
            let action = VolumeAction::ResetStatus { status, attached: None };
            drop(service.volume_action(&admin(), id, action).await);
            continue;
        }
        if !shown.is_whole() {
            continue;
        }
        let Some(gib) = world.lv_gib(id) else { continue };
        if gib > shown.size_gib && !matches!(shown.status, VolumeStatus::Available | VolumeStatus::InUse) {
            // Only a volume that is attached, or free, can be extended.
            for (attachment, _) in snapshot.rows.iter().filter(|(_, row)| row.volume == id) {
                let wait = Wait(Duration::from_secs(1));
                drop(service.delete_attachment(&admin(), *attachment, true, wait).await);
            }
            continue;
        }
        if gib > shown.size_gib {
            let action = VolumeAction::Extend { size_gib: gib, online: true };
            // If the agent is not up yet, a later round asks again.
            drop(service.volume_action(&admin(), id, action).await);
            continue;
        }
        if let Some(known) = lock(&world.model).volumes.get_mut(&id) {
            known.hand.extended = false;
        }
    }
}

/// Confirms, as an operator, that the specs of a restored database hold.
async fn confirm(world: &World, service: &Service) {
    let Some(snapshot) = world.snapshot(service).await else { return };
    for id in snapshot.volumes.keys().filter(|id| is_in_review(&snapshot, **id)) {
        log_out_unknown(world, &snapshot, *id);
        // If the agent is not up yet, a later round asks again.
        let confirmed = service.confirm_review(&admin(), *id).await.is_ok();
        let mut model = lock(&world.model);
        if let Some(known) = model.volumes.get_mut(id).filter(|_| confirmed) {
            known.confirmed = true;
            let text = format!("an operator confirms {}", known.name);
            model.say(text);
        }
    }
}

/// Logs out hosts that the database has forgotten. Nothing may end a live session of an unknown
/// host, and the review would never end.
fn log_out_unknown(world: &World, snapshot: &Snapshot, volume: VolumeId) {
    let model = lock(&world.model);
    let unknown = model
        .attachments
        .iter()
        .filter(|(id, known)| known.volume == volume && !snapshot.rows.contains_key(id));
    for (at, session) in unknown.filter_map(|(_, known)| known.session) {
        lock(&world.nodes[at]).machine.logout(session);
    }
}

/// Requests the end of everything that exists, each in its own task.
async fn take_away(run: &mut Run, service: &Service) {
    let Some(snapshot) = run.world.snapshot(service).await else { return };
    for id in snapshot.rows.keys().copied() {
        let service = service.clone();
        run.clients.spawn(async move {
            let _ = service.delete_attachment(&admin(), id, false, Wait(Duration::from_secs(10))).await;
        });
    }
    let used = |id: &VolumeId| snapshot.rows.values().any(|row| row.volume == *id);
    for id in snapshot.volumes.keys().copied().filter(|id| !used(id)) {
        let service = service.clone();
        run.clients.spawn(async move {
            let _ = service.delete_volume_with_snapshots(&admin(), id).await;
        });
    }
}

/// Returns the access that the kernels should give, according to the rows.
pub(crate) fn wanted(snapshot: &Snapshot) -> Kernel {
    let mut wanted: BTreeMap<(VolumeId, String), Mode> = BTreeMap::new();
    for row in snapshot.rows.values() {
        if let (Some(initiator), AttachmentStatus::Attaching | AttachmentStatus::Attached) =
            (&row.initiator, row.status)
        {
            let mode = wanted.entry((row.volume, initiator.clone())).or_insert(row.mode);
            *mode = (*mode).max(row.mode);
        }
    }
    wanted
}

/// Returns why a whole volume does not have its size, or which LV of its growth is left; `None` if
/// all is right.
fn sized(world: &World, id: VolumeId, shown: &Shown) -> Option<String> {
    let has = world.lv_gib(id).filter(|_| shown.is_whole())?;
    if has != shown.size_gib {
        return Some(format!("volume {id} has {} GiB, and its LV {has}", shown.size_gib));
    }
    let left = [LvName::growth_of(id), LvName::back_of(id)].into_iter().find(|lv| world.has_lv(lv));
    left.map(|lv| format!("the LV {lv} is left"))
}

/// Returns what is not at rest yet; `None` if everything is.
async fn restless(run: &Run, service: &Service, last: bool) -> Option<String> {
    if !run.clients.is_empty() {
        return Some("clients still ask".to_owned());
    }
    let Some(snapshot) = run.world.snapshot(service).await else {
        return Some("the controller does not answer".to_owned());
    };
    for (id, shown) in &snapshot.volumes {
        if is_in_review(&snapshot, *id) {
            return Some(format!("volume {id} is in review: {:?}", shown.fault));
        }
        let moves = [
            VolumeStatus::Creating,
            VolumeStatus::Deleting,
            VolumeStatus::Extending,
            VolumeStatus::Reverting,
        ];
        if moves.contains(&shown.status) {
            return Some(format!("volume {id} is {}: {:?}", shown.status, shown.fault));
        }
        let hand = lock(&run.world.model).volumes.get(id).map(|known| known.hand.clone()).unwrap_or_default();
        if shown.status != VolumeStatus::Error && !hand.removed && run.world.node_of(*id).is_none() {
            return Some(format!("volume {id} is {}, and has no LV", shown.status));
        }
        if hand.extended && shown.is_whole() {
            return Some(format!("volume {id} is larger than its spec says"));
        }
        if let Some(why) = sized(&run.world, *id, shown) {
            return Some(why);
        }
    }
    for (id, row) in &snapshot.rows {
        let moving = match row.status {
            AttachmentStatus::Detaching => true,
            AttachmentStatus::Attaching | AttachmentStatus::Attached => {
                row.initiator.is_some() && !row.connected
            }
            _ => false,
        };
        if moving {
            let shown = snapshot.volumes.get(&row.volume);
            return Some(format!(
                "attachment {id} is {}, connected: {}; its volume: {shown:?}; the kernels have {:?}",
                row.status,
                row.connected,
                run.world.kernel()
            ));
        }
    }
    let lost = |volume: &VolumeId| lock(&run.world.model).volumes.get(volume).is_none_or(|known| known.lost);
    let mut kernel = run.world.kernel();
    // Objects that a restored database does not know are left alone.
    kernel.retain(|(volume, _), _| snapshot.volumes.contains_key(volume) || !lost(volume));
    let wanted = wanted(&snapshot);
    if kernel != wanted {
        return Some(format!("the kernels have {kernel:?}, and {wanted:?} is wanted"));
    }
    let left = run.world.model.lock().ok().and_then(|model| {
        // An agent may make an LV for a new volume, and lose its store before it reports that: such
        // an LV is nobody's.
        let mut known = model.volumes.iter().filter(|(_, known)| !known.lost && !known.hand.unmade);
        known.find(|(id, _)| run.world.node_of(**id).is_some()).map(|(_, known)| known.name.clone())
    });
    match (last, snapshot.volumes.len(), left) {
        (false, ..) | (true, 0, None) => None,
        (true, volumes, left) => Some(format!("{volumes} volumes are there; an LV is left: {left:?}")),
    }
}

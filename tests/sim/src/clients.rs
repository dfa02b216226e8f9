//! Clients of the controller and their hosts. Each operation is a task, so that many run at once. A
//! request that is not done yet is repeated, as clients do.
//!
//! What must never happen here: a client that believes more than it was told.

use std::time::Duration;

use fastrand::Rng;
use mooring_controller::domain::{
    Attachment, Hints, NewAttachment, NewConnector, NewSnapshot, NewVolume, VolumeAction, VolumeStatus,
    WantedId,
};
use mooring_controller::error::RuleAnswer;
use mooring_controller::service::{Refusal, Service, Wait};
use mooring_host::fake::IoRefusal;
use mooring_model::{AttachmentId, LvName, Mode, Proof, VolumeId};
use serde_json::{Map, Value, json};

use crate::control::{SHARED, THIN, admin};
use crate::hand::GROUP;
use crate::lock;
use crate::model::initiator_of;
use crate::node::device_of;
use crate::world::World;

/// Time for which a client waits for an answer.
const PATIENCE: Wait = Wait(Duration::from_secs(12));
/// Number of times that a client asks.
const TRIES: u32 = 4;

/// Operation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    Create {
        volume: VolumeId,
        kind: Kind,
    },
    Delete {
        volume: VolumeId,
    },
    Attach {
        id: AttachmentId,
        reserve: bool,
    },
    Complete {
        id: AttachmentId,
    },
    Detach {
        id: AttachmentId,
        force: bool,
    },
    Write {
        id: AttachmentId,
    },
    /// Extends a volume by `more` GiB.
    Extend {
        volume: VolumeId,
        more: u32,
    },
    CancelExtend {
        volume: VolumeId,
    },
    /// Takes a snapshot, writes, and reverts the volume to the snapshot.
    Revert {
        volume: VolumeId,
    },
}

/// Kind of volume that a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For one host, in any pool.
    Plain,
    Shared,
    /// In a thin pool, and shared.
    Thin,
}

fn connector(node: u8) -> Map<String, Value> {
    let value = json!({
        "host": format!("node{node}"), "initiator": initiator_of(node), "ip": "192.0.2.11", "multipath": false,
        "mountpoint": "/dev/vdb",
    });
    value.as_object().cloned().unwrap_or_default()
}

/// Returns the kind of a refusal. The text may differ between runs of one seed.
fn short(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Rule(RuleAnswer::Invalid | RuleAnswer::InvalidVolume, _) | Refusal::Invalid(_) => "invalid",
        Refusal::Unauthenticated(_) => "unauthenticated",
        Refusal::Forbidden(_) => "forbidden",
        Refusal::NotFound { .. } => "not found",
        Refusal::Changed(_) => "changed",
        Refusal::Rule(RuleAnswer::Conflict, _) | Refusal::Conflict(_) | Refusal::OtherHost(_) => "conflict",
        Refusal::Pending(_) => "pending",
        Refusal::Unavailable(_) => "unavailable",
        Refusal::Internal(_) => "internal",
        Refusal::Rule(RuleAnswer::Exceeded, _) | Refusal::Exceeded(_) => "exceeded",
        Refusal::Rule(RuleAnswer::Unimplemented, _) | Refusal::Unimplemented(_) => "unimplemented",
    }
}

/// Runs one errand to its end.
pub(crate) async fn run(world: World, service: Service, errand: Errand, mut rng: Rng) {
    tokio::time::sleep(Duration::from_millis(rng.u64(0..60))).await;
    match errand {
        Errand::Create { volume, kind } => create(&world, &service, volume, kind).await,
        Errand::Delete { volume } => {
            let result = service.delete_volume(&admin(), volume).await;
            world.told(&format!("delete {}", world.name(volume)), &result);
        }
        Errand::Attach { id, reserve } => attach(&world, &service, id, reserve, &mut rng).await,
        Errand::Complete { id } => {
            let result = service.complete_attachment(&admin(), id).await;
            world.told(&format!("complete {}", world.label(id)), &result);
        }
        Errand::Detach { id, force } => detach(&world, &service, id, force, &mut rng).await,
        Errand::Write { id } => write(&world, id),
        Errand::Extend { volume, more } => extend(&world, &service, volume, more, &mut rng).await,
        Errand::CancelExtend { volume } => cancel_extend(&world, &service, volume).await,
        Errand::Revert { volume } => revert(&world, &service, volume, &mut rng).await,
    }
}

impl World {
    fn told<T>(&self, what: &str, result: &Result<T, Refusal>) {
        match result {
            Ok(_) => self.say(format!("  {what}: ok")),
            Err(refusal) => {
                self.say(format!("  {what}: {}", short(refusal)));
                if let Refusal::Internal(text) = refusal {
                    lock(&self.model).violated(format!("{what}: an internal error: {text}"));
                }
            }
        }
    }

    fn label(&self, id: AttachmentId) -> String {
        lock(&self.model).attachments.get(&id).map_or_else(|| id.to_string(), |known| known.name.clone())
    }

    fn name(&self, volume: VolumeId) -> String {
        lock(&self.model).name(volume)
    }
}

async fn create(world: &World, service: &Service, volume: VolumeId, kind: Kind) {
    let new = NewVolume {
        id: Some(WantedId::Given(volume)),
        name: Some(world.name(volume)),
        description: None,
        size_gib: Some(1),
        source: None,
        volume_type: match kind {
            Kind::Plain => None,
            Kind::Shared => Some(SHARED.to_owned()),
            Kind::Thin => Some(THIN.to_owned()),
        },
        metadata: std::collections::BTreeMap::new(),
        hints: Hints::default(),
    };
    let result = service.create_volume(&admin(), new).await;
    world.told(&format!("create {}", world.name(volume)), &result);
}

async fn cancel_extend(world: &World, service: &Service, volume: VolumeId) {
    let result = service.cancel_extend(&admin(), volume).await;
    world.told(&format!("cancel the growth of {}", world.name(volume)), &result);
    if result.is_ok() {
        lock(&world.model).count("growths cancelled");
    }
}

async fn extend(world: &World, service: &Service, volume: VolumeId, more: u32, rng: &mut Rng) {
    let Ok(shown) = service.volume(&admin(), volume).await else { return };
    let action = VolumeAction::Extend { size_gib: shown.size_gib + more, online: true };
    let result = service.volume_action(&admin(), volume, action).await;
    world.told(&format!("extend {}", world.name(volume)), &result);
    if result.is_err() {
        return;
    }
    lock(&world.model).count("growths");
    if rng.bool() {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..30))).await;
        cancel_extend(world, service, volume).await;
    }
}

/// Waits until a volume or snapshot has left its transitional status. `None` if it does not within
/// the client's patience.
async fn arrived(service: &Service, id: VolumeId, snapshot: bool) -> Option<VolumeStatus> {
    for _ in 0..60 {
        let status = if snapshot {
            service.snapshot(&admin(), id).await.ok()?.status
        } else {
            service.volume(&admin(), id).await.ok()?.status
        };
        if !matches!(status, VolumeStatus::Creating | VolumeStatus::Reverting | VolumeStatus::Restoring) {
            return Some(status);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    None
}

async fn revert(world: &World, service: &Service, volume: VolumeId, rng: &mut Rng) {
    let name = world.name(volume);
    let new = NewSnapshot { volume, name: None, description: None, metadata: [].into(), in_use: false };
    let taken = service.create_snapshot(&admin(), new).await;
    world.told(&format!("snapshot {name}"), &taken);
    let Ok(snapshot) = taken else { return };
    if arrived(service, snapshot.id, true).await != Some(VolumeStatus::Available) {
        return;
    }
    // A host writes meanwhile.
    let written = world.node_of(volume).map(|at| {
        let machine = lock(&world.nodes[at]).machine.clone();
        machine.blocks().fill(device_of(volume));
        machine
    });
    tokio::time::sleep(Duration::from_millis(rng.u64(0..2000))).await;
    let result = service.volume_action(&admin(), volume, VolumeAction::Revert(Some(snapshot.id))).await;
    world.told(&format!("revert {name}"), &result);
    if result.is_err() {
        return;
    }
    lock(&world.model).count("reverts");
    let status = arrived(service, volume, false).await;
    world.say(format!("  revert {name}: {}", if status.is_some() { "done" } else { "on its way" }));
    let Some(machine) = written.filter(|_| status == Some(VolumeStatus::Available)) else { return };
    let zeros = |lv: LvName| machine.lvm().reads_zeros(GROUP, lv.as_str());
    let (is, was) = (zeros(LvName::of(volume)), zeros(LvName::snapshot_of(snapshot.id)));
    let mut model = lock(&world.model);
    if is != was && !model.is_touched(volume) {
        model.violated(format!("{name} was reverted, and does not hold what its snapshot holds"));
    }
}

async fn attach(world: &World, service: &Service, id: AttachmentId, reserve: bool, rng: &mut Rng) {
    let Some(known) = lock(&world.model).attachments.get(&id).cloned() else { return };
    let new = |connector| NewAttachment {
        id: Some(id),
        volume: known.volume,
        instance: None,
        mode: Some(known.mode),
        connector,
    };
    if reserve {
        let reserved = service.create_attachment(&admin(), new(NewConnector::None), PATIENCE).await;
        world.told(&format!("reserve {}", known.name), &reserved);
        if reserved.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..1500))).await;
    }
    for _ in 0..TRIES {
        let connector = connector(known.node);
        let result = if reserve {
            service.update_attachment(&admin(), id, connector, PATIENCE).await
        } else {
            service.create_attachment(&admin(), new(NewConnector::Client(connector)), PATIENCE).await
        };
        world.told(&format!("connect {}", known.name), &result);
        match result {
            Ok(made) => {
                log_in(world, &made);
                tokio::time::sleep(Duration::from_millis(rng.u64(0..900))).await;
                write(world, id);
                let done = service.complete_attachment(&admin(), id).await;
                return world.told(&format!("complete {}", known.name), &done);
            }
            Err(Refusal::Pending(_)) => {}
            Err(_) => return,
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..3000))).await;
    }
}

/// Logs the host in, with the connection info that it was given.
fn log_in(world: &World, made: &Attachment) {
    let Some(info) = &made.connection_info else { return };
    let text = |key: &str| info.get(key).and_then(Value::as_str).unwrap_or_default();
    let Some(at) = world.node_of(made.volume) else { return };
    let Some(node) = lock(&world.model).attachments.get(&made.id).map(|known| known.node) else { return };
    let login = lock(&world.nodes[at]).login(
        text("target_iqn"),
        &initiator_of(node),
        text("auth_username"),
        text("auth_password"),
    );
    let mut model = lock(&world.model);
    model.say(format!("  login of node{node}: {}", if login.is_ok() { "in" } else { "refused" }));
    if let (Ok(session), Some(known)) = (login, model.attachments.get_mut(&made.id)) {
        known.session = Some((at, session));
    }
}

/// Writes as the host. If all modes that its nexus was ever given are read-only, the target must
/// refuse.
fn write(world: &World, id: AttachmentId) {
    let (known, may_write) = {
        let model = lock(&world.model);
        let Some(known) = model.attachments.get(&id).cloned() else { return };
        let same = |other: &&crate::model::KnownAttachment| {
            other.volume == known.volume && other.node == known.node && other.mode == Mode::ReadWrite
        };
        let may_write = model.attachments.values().any(|other| same(&other));
        (known, may_write)
    };
    let Some((at, session)) = known.session else { return };
    let (wrote, held) = {
        let node = lock(&world.nodes[at]);
        (node.machine.write(session, 1), node.is_held())
    };
    let mut model = lock(&world.model);
    model.say(format!("  write of node{} by {}: {wrote:?}", known.node, known.name));
    if !may_write
        && !held
        && !model.is_changed_in_tree(known.volume)
        && !matches!(wrote, Err(IoRefusal::WriteProtected | IoRefusal::SessionGone | IoRefusal::NoLun))
    {
        model.violated(format!("{} is read-only and wrote: {wrote:?}", known.name));
    }
}

async fn detach(world: &World, service: &Service, id: AttachmentId, force: bool, rng: &mut Rng) {
    let Some(known) = lock(&world.model).attachments.get(&id).cloned() else { return };
    let what = format!("{} {}", if force { "force" } else { "detach" }, known.name);
    if let Some((at, session)) = known.session.filter(|_| !force && rng.u8(0..10) < 8) {
        lock(&world.nodes[at]).machine.logout(session);
        if let Some(known) = lock(&world.model).attachments.get_mut(&id) {
            known.session = None;
        }
    }
    for _ in 0..TRIES {
        let result = service.delete_attachment(&admin(), id, force, PATIENCE).await;
        world.told(&what, &result);
        match result {
            Ok((answer, _)) => {
                let proven = answer.receipt.as_ref().is_none_or(|receipt| receipt.proof == Proof::Proven);
                if proven {
                    return world.acknowledged(id);
                }
            }
            Err(Refusal::Pending(_)) => {}
            Err(_) => return,
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..3000))).await;
    }
}

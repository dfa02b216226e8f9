//! `mooring snapshot`: create, list, show, delete, reset-status, unmanage.
//!
//! What must never happen here: a second snapshot made by a repetition; a snapshot reported before
//! its storage node has it; an ambiguous name that picks one of several.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Exit;
use crate::args::{SnapshotCreateArgs, SnapshotDeleteArgs, SnapshotResetArgs};
use crate::controller::Client;
use crate::controller::answers::{Snapshot, SnapshotCreated, SnapshotDeleted, SnapshotShown, Snapshots};
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::records::{ManySnapshots, OneSnapshot, SnapshotRecord};
use crate::controller::volume;
use crate::error::Failure;
use crate::error::Fault;
use crate::output::Reply;
use crate::volume_ref::VolumeRef;

/// Pauses between looks at a snapshot that is being taken or deleted: first and longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// `snapshot unmanage`.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotUnmanaged {
    done: bool,
    snapshot_id: String,
    status: String,
    /// The LV's name in its group from now on.
    lv: String,
}

impl Display for SnapshotUnmanaged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { done, snapshot_id, status, lv } = self;
        if *done {
            return write!(
                f,
                "snapshot {snapshot_id} is unmanaged; its data stays in the logical volume {lv}"
            );
        }
        write!(
            f,
            "snapshot {snapshot_id}: accepted, not unmanaged yet ({status}); repeat the command to wait for it"
        )
    }
}

/// Sends one action. A repetition of any of these has no further effect.
async fn act(client: &Client, what: &'static str, id: &str, name: &str, value: Value) -> Result<(), Fault> {
    client.done(Call::make(what, &["v3", "snapshots", id, "action"], wrapped(name, value))).await
}

async fn get(client: &Client, id: &str) -> Result<SnapshotRecord, Fault> {
    Ok(client.read::<OneSnapshot>(Call::get("the snapshot", &["v3", "snapshots", id])).await?.snapshot)
}

/// Gets the snapshots of a volume, of a name, or all.
async fn records(
    client: &Client,
    volume: Option<&str>,
    name: Option<&str>,
) -> Result<Vec<SnapshotRecord>, Failure> {
    let mut all: Vec<SnapshotRecord> = Vec::new();
    loop {
        let mut call = Call::get("the list of snapshots", &["v3", "snapshots", "detail"]);
        for (key, value) in [("volume_id", volume), ("name", name)] {
            if let Some(value) = value {
                call = call.query(key, &value);
            }
        }
        if let Some(last) = all.last() {
            call = call.query("marker", &last.id);
        }
        let page: ManySnapshots = client.read(call).await?;
        // An empty page with a link to the next one would loop for ever.
        let more = !page.snapshots.is_empty() && page.snapshots_links.iter().any(|link| link.rel == "next");
        all.extend(page.snapshots);
        if !more {
            return Ok(all);
        }
    }
}

/// The one snapshot that is meant.
pub(crate) async fn find(client: &Client, snapshot: &VolumeRef) -> Result<SnapshotRecord, Failure> {
    let name = match snapshot {
        VolumeRef::Id(id) => return Ok(get(client, &id.to_string()).await?),
        VolumeRef::Name(name) => name.to_string(),
    };
    let mut found = records(client, None, Some(&name)).await?;
    found.retain(|one| one.name.as_ref() == Some(&name) && one.status != "deleting");
    if found.len() > 1 {
        let ids: Vec<_> = found.iter().map(|one| one.id.as_str()).collect();
        let text = format!(
            "{} snapshots are named {name:?}; say which one by its id: {}",
            ids.len(),
            ids.join(", ")
        );
        return Err(Failure::Usage(text));
    }
    found.pop().ok_or_else(|| Failure::NotFound(format!("no snapshot is named {name:?}")))
}

/// Waits until the status is no longer `passing`, or until the deadline. `None`: the snapshot is
/// gone.
async fn settled(
    client: &Client,
    mut snapshot: SnapshotRecord,
    passing: &str,
) -> Result<Option<SnapshotRecord>, Failure> {
    let mut pause = LOOKS.0;
    while snapshot.status == passing && client.pause(pause).await {
        pause = (pause * 2).min(LOOKS.1);
        snapshot = match get(client, &snapshot.id).await {
            Ok(snapshot) => snapshot,
            Err(fault) if fault.status() == Some(404) => return Ok(None),
            Err(fault) => return Err(Failure::lost(format!("snapshot {}", snapshot.id), fault)),
        };
    }
    Ok(Some(snapshot))
}

/// Takes the snapshot, unless an earlier run of the same command did. A request whose answer is
/// lost is not repeated blindly.
async fn take(client: &Client, volume: &str, name: &str) -> Result<SnapshotRecord, Failure> {
    let mut pause = PAUSE.0;
    loop {
        let known = records(client, Some(volume), Some(name)).await?;
        let known =
            known.into_iter().find(|one| one.name.as_deref() == Some(name) && one.status != "deleting");
        if let Some(known) = known {
            return Ok(known);
        }
        let body = wrapped("snapshot", json!({ "volume_id": volume, "name": name }));
        // Since microversion 3.66 a volume in use needs no `force`.
        let call = Call::add("the new snapshot", &["v3", "snapshots"], body).at("3.66");
        match client.read::<OneSnapshot>(call).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => return Ok(sent?.snapshot),
        }
    }
}

/// `snapshot create`.
pub(crate) async fn create(
    client: &Client,
    args: &SnapshotCreateArgs,
) -> Result<Reply<SnapshotCreated>, Failure> {
    let volume = volume::find(client, &args.volume).await?;
    let snapshot = take(client, &volume.id, &args.name.to_string()).await?;
    let Some(snapshot) = settled(client, snapshot, "creating").await? else {
        return Err(Failure::Refused("the snapshot was deleted while it was being taken".to_owned()));
    };
    if snapshot.status.starts_with("error") {
        return Err(Failure::Broken(format!(
            "snapshot {} cannot be taken: its status is {}. What is there of it goes with `mooring snapshot delete {}`; \
             `mooring host list` shows whether its storage node is well",
            snapshot.id, snapshot.status, snapshot.id
        )));
    }
    let done = snapshot.status == "available";
    Ok(Reply::when(done, SnapshotCreated { done, snapshot: Snapshot::of_record(snapshot) }))
}

/// `snapshot list`.
pub(crate) async fn list(client: &Client, of: Option<&VolumeRef>) -> Result<Reply<Snapshots>, Failure> {
    let volume = match of {
        None => None,
        Some(volume) => Some(volume::find(client, volume).await?.id),
    };
    let records = records(client, volume.as_deref(), None).await?;
    let mut snapshots: Vec<_> = records.into_iter().map(Snapshot::of_record).collect();
    snapshots.sort_by(|a, b| (&a.volume_id, &a.created_at, &a.id).cmp(&(&b.volume_id, &b.created_at, &b.id)));
    Ok(Reply::ok(Snapshots { snapshots }))
}

/// `snapshot show`.
pub(crate) async fn show(client: &Client, snapshot: &VolumeRef) -> Result<Reply<SnapshotShown>, Failure> {
    let snapshot = Snapshot::of_record(find(client, snapshot).await?);
    Ok(Reply::ok(SnapshotShown { snapshot }))
}

/// `snapshot delete`. Ids are never reused: a snapshot that the controller does not know is gone.
pub(crate) async fn delete(
    client: &Client,
    args: &SnapshotDeleteArgs,
) -> Result<Reply<SnapshotDeleted>, Failure> {
    let snapshot = &args.snapshot;
    let gone =
        |id: String| Reply::ok(SnapshotDeleted { done: true, snapshot_id: id, status: "gone".to_owned() });
    let found = match (find(client, snapshot).await, snapshot) {
        (Ok(found), _) => found,
        (Err(failure), VolumeRef::Id(id)) if failure.exit() == Exit::NotFound => {
            return Ok(gone(id.to_string()));
        }
        (Err(failure), _) => return Err(failure),
    };
    let id = found.id.clone();
    if found.status != "deleting" || args.force {
        let sent = if args.force {
            act(client, "the deletion", &id, "os-force_delete", json!({})).await
        } else {
            client.done(Call::delete("the deletion", &["v3", "snapshots", &id])).await
        };
        match sent {
            Err(fault) if fault.status() == Some(404) => return Ok(gone(id)),
            sent => sent?,
        }
    }
    let deleting = SnapshotRecord { status: "deleting".to_owned(), ..found };
    match settled(client, deleting, "deleting").await? {
        None => Ok(gone(id)),
        Some(now) if now.status == "deleting" => {
            Ok(Reply::when(false, SnapshotDeleted { done: false, snapshot_id: id, status: now.status }))
        }
        Some(now) => Err(Failure::Broken(format!(
            "snapshot {id} is not deleted: its status is {}. Repeat the command once its storage node is well (`mooring host \
             list`)",
            now.status
        ))),
    }
}

/// `snapshot reset-status`.
pub(crate) async fn reset_status(
    client: &Client,
    args: &SnapshotResetArgs,
) -> Result<Reply<SnapshotShown>, Failure> {
    let id = find(client, &args.snapshot).await?.id;
    act(client, "the change", &id, "os-reset_status", json!({ "status": args.status })).await?;
    let snapshot = Snapshot::of_record(get(client, &id).await?);
    Ok(Reply::ok(SnapshotShown { snapshot }))
}

/// `snapshot unmanage`. Ids are never reused: a snapshot that the controller does not know is
/// already unmanaged.
pub(crate) async fn unmanage(
    client: &Client,
    snapshot: &VolumeRef,
) -> Result<Reply<SnapshotUnmanaged>, Failure> {
    let answer = |id: String, status: &str| {
        let (done, lv) = (status == "gone", format!("mooring-snap-{id}"));
        Reply::when(done, SnapshotUnmanaged { done, snapshot_id: id, status: status.to_owned(), lv })
    };
    let found = match (find(client, snapshot).await, snapshot) {
        (Ok(found), _) => found,
        (Err(failure), VolumeRef::Id(id)) if failure.exit() == Exit::NotFound => {
            return Ok(answer(id.to_string(), "gone"));
        }
        (Err(failure), _) => return Err(failure),
    };
    let id = found.id.clone();
    if found.status != "unmanaging" {
        match act(client, "the unmanaging", &id, "os-unmanage", json!({})).await {
            Err(fault) if fault.status() == Some(404) => return Ok(answer(id, "gone")),
            sent => sent?,
        }
    }
    let leaving = SnapshotRecord { status: "unmanaging".to_owned(), ..found };
    match settled(client, leaving, "unmanaging").await? {
        None => Ok(answer(id, "gone")),
        Some(now) if now.status == "unmanaging" => Ok(answer(id, "unmanaging")),
        Some(now) => Err(Failure::Broken(format!(
            "snapshot {id} is not unmanaged: its status is {}. Repeat the command once its storage node is well (`mooring host \
             list`), or delete the snapshot by force",
            now.status
        ))),
    }
}

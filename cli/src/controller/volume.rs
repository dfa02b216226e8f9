//! `mooring volume` against the controller: create, list, show, extend, delete.
//!
//! What must never happen here: an ambiguous name that picks one of several volumes; a create that
//! succeeds although the volume was requested with other arguments; a second volume made by a
//! repetition.

use std::time::Duration;

use mooring_model::{ByteSize, VolumeId};
use serde_json::json;

use crate::Exit;
use crate::args::{CreateArgs, DeleteArgs, ExtendArgs};
use crate::controller::Client;
use crate::controller::answers::{
    ReviewConfirmed, Volume, VolumeCreated, VolumeDeleted, VolumeExtended, VolumeShown, Volumes,
};
use crate::controller::attachment::of_volume;
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::records::{Hosts, ManyVolumes, OneState, OneVolume, StateRecord, VolumeRecord};
use crate::controller::snapshot;
use crate::error::Failure;
use crate::error::Fault;
use crate::output::{Cut, Reply};
use crate::volume_ref::{VolumeName, VolumeRef};

const GIB: u64 = 1 << 30;

/// Pauses between looks at a volume that is being made or wiped: first and longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// `volume create`.
pub(crate) async fn create(client: &Client, args: &CreateArgs) -> Result<Reply<VolumeCreated>, Failure> {
    let gib = args.size.map(whole_gib).transpose()?;
    let source = source(client, args).await?;
    let volume = make(client, args, gib, source.as_ref()).await?;
    same_words(&volume, args, gib, source.as_ref())?;
    let volume = settled(client, volume, "creating").await?;
    let Some(volume) = volume else {
        return Err(Failure::Refused("the volume was deleted while it was being made".to_owned()));
    };
    if volume.status.starts_with("error") {
        return Err(Failure::Broken(format!(
            "volume {} cannot be made: its status is {}. What is there of it goes with `mooring volume delete {}`; \
             `mooring host list` shows whether its storage node is well",
            volume.id, volume.status, volume.id
        )));
    }
    let done = volume.status != "creating";
    let name = args.name.to_string();
    Ok(Reply::when(done, VolumeCreated { done, name, volume: Volume::of_record(volume) }))
}

pub(crate) fn whole_gib(size: ByteSize) -> Result<u64, Failure> {
    if !size.0.is_multiple_of(GIB) {
        return Err(Failure::Usage(format!(
            "--size {size}: the controller's volumes are whole GiB ({} B is not); say {}GiB, for example",
            size.0,
            size.0.div_ceil(GIB)
        )));
    }
    Ok(size.0 / GIB)
}

/// The origin of a new volume: its key in a request, and its id.
type Source = (&'static str, String);

async fn source(client: &Client, args: &CreateArgs) -> Result<Option<Source>, Failure> {
    if let Some(snapshot) = &args.snapshot {
        return Ok(Some(("snapshot_id", snapshot::find(client, snapshot).await?.id)));
    }
    match &args.from {
        Some(volume) => Ok(Some(("source_volid", find(client, volume).await?.id))),
        None => Ok(None),
    }
}

/// The volume that an earlier run of the same command made; `None`: there is none.
async fn known(client: &Client, args: &CreateArgs) -> Result<Option<VolumeRecord>, Failure> {
    let same_name = named(client, &args.name).await?;
    let id = args.id.map(|id| id.to_string());
    let other = same_name.iter().find(|other| id.as_ref().map_or(same_name.len() > 1, |id| *id != other.id));
    if let Some(other) = other {
        return Err(Failure::Refused(format!(
            "a volume named {:?} exists: {}. Choose another name",
            args.name.to_string(),
            other.id
        )));
    }
    Ok(same_name.into_iter().next())
}

/// Makes the volume. A request whose answer is lost is not repeated blindly: a controller of an
/// earlier release ignores request keys, and then only the name shows whether it was done.
async fn make(
    client: &Client,
    args: &CreateArgs,
    gib: Option<u64>,
    source: Option<&Source>,
) -> Result<VolumeRecord, Failure> {
    let key = args.request_key.clone().unwrap_or_else(|| VolumeId::random().to_string());
    let mut pause = PAUSE.0;
    loop {
        if let Some(known) = known(client, args).await? {
            return Ok(known);
        }
        match send(client, args, &key, (gib, source)).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => return Ok(sent?),
        }
    }
}

async fn send(
    client: &Client,
    args: &CreateArgs,
    key: &str,
    (gib, source): (Option<u64>, Option<&Source>),
) -> Result<VolumeRecord, Fault> {
    let mut volume = json!({ "name": args.name.to_string() });
    match args.id {
        Some(id) => volume["id"] = json!(id),
        None => volume["request_key"] = json!(key),
    }
    if let Some(gib) = gib {
        volume["size"] = json!(gib);
    }
    if let Some((key, of)) = source {
        volume[*key] = json!(of);
    }
    if let Some(kind) = &args.kind {
        volume["volume_type"] = json!(kind);
    }
    let call = Call::add("the new volume", &["v3", "volumes"], wrapped("volume", volume));
    let record = client.read::<OneVolume>(call).await?.volume;
    if let Some(id) = args.id.filter(|id| id.to_string() != record.id) {
        let why = format!(
            "it takes no ids, and made volume {} instead of {id} (`mooring volume delete {}`)",
            record.id, record.id
        );
        return Err(Fault::Nonsense { call: "the new volume", why });
    }
    Ok(record)
}

fn same_words(
    volume: &VolumeRecord,
    args: &CreateArgs,
    gib: Option<u64>,
    source: Option<&Source>,
) -> Result<(), Failure> {
    // A type may be named by its id, which the volume does not show.
    let kind =
        |wanted: &String| wanted.parse::<VolumeId>().is_ok() || volume.volume_type.as_ref() == Some(wanted);
    let name = args.name.to_string();
    let of = [("snapshot_id", &volume.snapshot_id), ("source_volid", &volume.source_volid)];
    let of = of.into_iter().find_map(|(key, id)| Some((key, id.clone()?)));
    let same = gib.is_none_or(|gib| volume.size == gib) && of.as_ref() == source;
    if same && args.kind.as_ref().is_none_or(kind) && volume.name.as_ref() == Some(&name) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "volume {} ({:?}) exists with another name, size, type or source: `mooring volume show {}`. Choose another name or id",
        volume.id,
        volume.name.as_deref().unwrap_or_default(),
        volume.id
    )))
}

/// Waits until the status is no longer `passing`, or until the deadline. `None`: the volume is
/// gone.
pub(crate) async fn settled(
    client: &Client,
    mut volume: VolumeRecord,
    passing: &str,
) -> Result<Option<VolumeRecord>, Failure> {
    let mut pause = LOOKS.0;
    while volume.status == passing {
        if !client.pause(pause).await {
            break;
        }
        pause = (pause * 2).min(LOOKS.1);
        volume = match get(client, &volume.id).await {
            Ok(volume) => volume,
            Err(fault) if fault.status() == Some(404) => return Ok(None),
            Err(fault) => return Err(Failure::lost(format!("volume {}", volume.id), fault)),
        };
    }
    Ok(Some(volume))
}

pub(crate) async fn get(client: &Client, id: &str) -> Result<VolumeRecord, Fault> {
    Ok(client.read::<OneVolume>(Call::get("the volume", &["v3", "volumes", id])).await?.volume)
}

/// Gets a volume after a call that changes it.
pub(crate) async fn get_after(
    client: &Client,
    id: &str,
    sent: &Result<(), Fault>,
) -> Result<VolumeRecord, Failure> {
    get(client, id).await.map_err(|fault| match sent {
        Ok(()) => Failure::lost(format!("volume {id}"), fault),
        Err(_) => fault.into(),
    })
}

/// Gets all volumes of this name, or all.
async fn records(client: &Client, name: Option<&VolumeName>) -> Result<Vec<VolumeRecord>, Failure> {
    let mut volumes: Vec<VolumeRecord> = Vec::new();
    loop {
        let mut call = Call::get("the list of volumes", &["v3", "volumes", "detail"]);
        if let Some(name) = name {
            call = call.query("name", name);
        }
        if let Some(last) = volumes.last() {
            call = call.query("marker", &last.id);
        }
        let page: ManyVolumes = client.read(call).await?;
        // An empty page with a link to the next one would loop for ever.
        let more = !page.volumes.is_empty() && page.volumes_links.iter().any(|link| link.rel == "next");
        volumes.extend(page.volumes);
        if !more {
            return Ok(volumes);
        }
    }
}

/// The volumes of this name that are not being deleted.
pub(crate) async fn named(client: &Client, name: &VolumeName) -> Result<Vec<VolumeRecord>, Failure> {
    let text = name.to_string();
    let mut volumes = records(client, Some(name)).await?;
    volumes.retain(|volume| volume.name.as_ref() == Some(&text) && volume.status != "deleting");
    Ok(volumes)
}

/// The one volume that is meant.
pub(crate) async fn find(client: &Client, volume: &VolumeRef) -> Result<VolumeRecord, Failure> {
    let name = match volume {
        VolumeRef::Id(id) => return Ok(get(client, &id.to_string()).await?),
        VolumeRef::Name(name) => name,
    };
    let mut volumes = named(client, name).await?;
    if volumes.len() > 1 {
        let ids: Vec<_> = volumes.iter().map(|volume| volume.id.as_str()).collect();
        return Err(Failure::Usage(format!(
            "{} volumes are named {:?}; say which one by its id: {}",
            ids.len(),
            name.to_string(),
            ids.join(", ")
        )));
    }
    volumes.pop().ok_or_else(|| Failure::NotFound(format!("no volume is named {:?}", name.to_string())))
}

/// `volume list`.
pub(crate) async fn list(client: &Client) -> Result<Reply<Volumes>, Failure> {
    let mut volumes: Vec<_> = records(client, None).await?.into_iter().map(Volume::of_record).collect();
    volumes.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(Reply::ok(Volumes { volumes }))
}

/// `volume show`.
pub(crate) async fn show(client: &Client, volume: &VolumeRef) -> Result<Reply<VolumeShown>, Failure> {
    let volume = find(client, volume).await?;
    let attachments = of_volume(client, Some(&volume.id)).await?;
    let call = Call::get("the volume's state", &["mooring", "v1", "volumes", &volume.id]);
    let StateRecord { fault, in_review, cut } = client.read::<OneState>(call).await?.volume;
    Ok(Reply::ok(VolumeShown {
        volume: Volume::of_record(volume),
        fault,
        in_review,
        cut: cut.map(Cut::from),
        attachments,
    }))
}

/// `volume confirm-review`. Changes nothing unless the volume is in review.
pub(crate) async fn confirm_review(
    client: &Client,
    volume: &VolumeRef,
) -> Result<Reply<ReviewConfirmed>, Failure> {
    let id = match volume {
        // A snapshot can be in review like a volume, but no volume has its id.
        VolumeRef::Id(id) => id.to_string(),
        VolumeRef::Name(_) => find(client, volume).await?.id,
    };
    let path = ["mooring", "v1", "volumes", &id, "confirm-review"];
    client.done(Call::make("the confirmation", &path, json!({}))).await?;
    Ok(Reply::ok(ReviewConfirmed { done: true, volume_id: id }))
}

/// `volume extend`. Succeeds if the volume has the size, whoever extended it.
pub(crate) async fn extend(client: &Client, args: &ExtendArgs) -> Result<Reply<VolumeExtended>, Failure> {
    let mut volume = find(client, &args.volume).await?;
    let Some(size) = args.size else { return cancel_extend(client, volume).await };
    let gib = whole_gib(size)?;
    let id = volume.id.clone();
    let mut asked = false;
    loop {
        // A volume that is being extended has the old size until the end.
        let settled = settled(client, volume, "extending").await;
        let Some(now) = settled.map_err(|failure| if asked { failure } else { failure.unasked() })? else {
            return Err(Failure::Refused("the volume was deleted meanwhile".to_owned()));
        };
        let grows = now.status == "extending";
        if now.size == gib || grows {
            let done = !grows;
            return Ok(Reply::when(
                done,
                VolumeExtended { done, cancels: false, volume: Volume::of_record(now) },
            ));
        }
        if now.size > gib {
            return Err(Failure::Refused(format!(
                "volume {id} has {} GiB, more than {gib}: a volume never shrinks",
                now.size
            )));
        }
        if asked {
            return Err(Failure::Broken(format!(
                "volume {id} has not grown: its status is {}. `mooring volume show {id}` says why",
                now.status
            )));
        }
        let body = wrapped("os-extend", json!({ "new_size": gib }));
        // Before microversion 3.42 an attached volume could not grow.
        let call = Call::make("the new size", &["v3", "volumes", &id, "action"], body).at("3.42");
        let sent = client.done(call).await;
        volume = get_after(client, &id, &sent).await?;
        // If the answer to the first attempt was lost, the second finds the extend at work or done.
        if let Err(fault) = sent
            && volume.status != "extending"
            && volume.size != gib
        {
            return Err(fault.into());
        }
        asked = true;
    }
}

/// `volume extend --cancel`. The storage node decides whether it was in time.
async fn cancel_extend(client: &Client, before: VolumeRecord) -> Result<Reply<VolumeExtended>, Failure> {
    let grows = |of: &VolumeRecord| matches!(of.status.as_str(), "extending" | "error_extending");
    let id = before.id.clone();
    let sent = client
        .done(Call::delete("the end of the growth", &["mooring", "v1", "volumes", &id, "extend"]))
        .await;
    let now = get_after(client, &id, &sent).await?;
    if let Err(fault) = sent {
        // If the answer to the first attempt was lost, the second may find nothing that grows.
        let over = fault.status() == Some(409) && grows(&before) && !grows(&now);
        if !over {
            return Err(fault.into());
        }
    }
    let Some(now) = settled(client, now, "extending").await? else {
        return Err(Failure::Refused("the volume was deleted meanwhile".to_owned()));
    };
    if now.size > before.size {
        return Err(Failure::Refused(format!(
            "volume {id} has grown already: it has {} GiB, and a volume never shrinks",
            now.size
        )));
    }
    if now.status == "error_extending" {
        return Err(Failure::Broken(format!(
            "the growth of volume {id} is not cancelled. `mooring volume show {id}` says why"
        )));
    }
    let done = now.status != "extending";
    Ok(Reply::when(done, VolumeExtended { done, cancels: true, volume: Volume::of_record(now) }))
}

/// Refuses a volume that the controller does not know while a storage node still has an orphan of
/// it. Only users who may list hosts can learn that.
async fn refuse_orphan(client: &Client, id: &str) -> Result<(), Failure> {
    let call = Call::get("the list of hosts", &["mooring", "v1", "hosts"]);
    let Ok(Hosts { hosts }) = client.read::<Hosts>(call).await else { return Ok(()) };
    for host in &hosts {
        if let Some(orphan) = host.problems.iter().find(|problem| problem.contains(id)) {
            return Err(Failure::NotFound(format!(
                "the controller has no volume {id}, but host {} has something of it: {orphan}. To destroy it: mooring --agent {} \
                 --cluster CLUSTER volume delete {id} (`mooring --agent … agent show` tells the cluster)",
                host.name,
                host.address.as_deref().unwrap_or("ADDRESS")
            )));
        }
    }
    Ok(())
}

/// `volume delete`. Ids are never reused: a volume that the controller does not know is gone,
/// unless a storage node still has it.
pub(crate) async fn delete(client: &Client, args: &DeleteArgs) -> Result<Reply<VolumeDeleted>, Failure> {
    let volume = &args.volume;
    let gone = |id: &str, name: Option<String>| {
        Reply::ok(VolumeDeleted { done: true, volume_id: id.to_owned(), name, status: "gone".to_owned() })
    };
    let volume = match (find(client, volume).await, volume) {
        (Ok(volume), _) => volume,
        (Err(failure), VolumeRef::Id(id)) if failure.exit() == Exit::NotFound => {
            refuse_orphan(client, &id.to_string()).await?;
            return Ok(gone(&id.to_string(), None));
        }
        (Err(failure), _) => return Err(failure),
    };
    let (id, name) = (volume.id.clone(), volume.name.clone());
    if volume.status != "deleting" {
        let mut call = Call::delete("the deletion", &["v3", "volumes", &id]);
        if args.force {
            call = call.query("force", &true).at("3.23");
        }
        match client.done(call).await {
            Err(fault) if fault.status() == Some(404) => return Ok(gone(&id, name)),
            sent => sent?,
        }
    }
    let deleting = VolumeRecord { status: "deleting".to_owned(), ..volume };
    match settled(client, deleting, "deleting").await? {
        None => Ok(gone(&id, name)),
        Some(volume) if volume.status == "deleting" => {
            let status = volume.status;
            Ok(Reply::when(false, VolumeDeleted { done: false, volume_id: id, name, status }))
        }
        Some(volume) => Err(Failure::Broken(format!(
            "volume {id} is not deleted: its status is {}. Repeat the command once its storage node is well (`mooring host list`)",
            volume.status
        ))),
    }
}

//! `mooring volume`: create, list, show, extend, delete.
//!
//! What must never happen here: data deleted that somebody is still granted; one name for two
//! volumes; a create that succeeds although the volume of that id was requested with other
//! arguments.

use mooring_api::v1::{self, put_export_request, put_volume_request};
use mooring_model::{ByteSize, Provisioning, VgName, VolumeId, VolumeSpec};

use crate::args::{CreateArgs, ExtendArgs};
use crate::error::Failure;
use crate::output::{Created, Deleted, Reply, Volume, Volumes};
use crate::select::{find, name_of, named, opaque_of};
use crate::session::{Session, stamp_for, twice};
use crate::volume_ref::VolumeRef;

/// `volume create`.
pub(crate) async fn create(session: &Session, args: &CreateArgs) -> Result<Reply<Created>, Failure> {
    let sender = session.sender()?;
    let group = group(session, args.group.as_ref())?;
    let id = id_for(session, args).await?;
    let Some(size) = args.size.filter(|_| args.snapshot.is_none() && args.from.is_none()) else {
        return Err(Failure::Usage(
            "--snapshot and --from are the controller's: say --controller instead of --agent".to_owned(),
        ));
    };
    if args.request_key.is_some() {
        let text = "--request-key is the controller's: say --controller instead of --agent, or name the volume's --id";
        return Err(Failure::Usage(text.to_owned()));
    }
    let spec = VolumeSpec::new(id, group, size, Provisioning::Thick);
    let spec = v1::VolumeSpec::from(&spec);
    let opaque = opaque_of(&args.name)?;
    let digest = mooring_api::digest(&spec, &opaque);
    let response = twice(async || {
        let known = known(session, id).await?;
        let kept = known.as_ref().and_then(|status| status.volume_stamp.as_ref());
        let stamp = stamp_for(kept, digest.clone())?;
        // The same id with other arguments means another volume. An extend is not a create.
        if kept.is_some_and(|kept| kept.generation != stamp.generation) {
            return Err(other_words(args, id, known.as_ref()));
        }
        session
            .put_volume(v1::PutVolumeRequest {
                sender: Some(sender.clone()),
                volume_id: id.to_string(),
                stamp: Some(stamp),
                wish: Some(put_volume_request::Wish::Spec(spec.clone())),
                opaque: opaque.clone(),
                deadline_ms: session.deadline_ms(),
                // Creating an orphan's id takes the orphan back.
                new: false,
            })
            .await
    })
    .await?;
    let report = response.report.unwrap_or_default();
    Ok(Reply::when(response.done, Created::new(response.done, id, &args.name.to_string(), &report)))
}

/// `volume extend`. Everything else of the volume stays as it is.
pub(crate) async fn extend(session: &Session, args: &ExtendArgs) -> Result<Reply<Created>, Failure> {
    let sender = session.sender()?;
    let (response, id, name) = twice(async || {
        let (id, status) = find(session, &args.volume).await?;
        let name = name_of(&status.volume_opaque).unwrap_or_default();
        let Some(kept) = status.volume_spec else {
            return Err(Failure::Refused(format!(
                "nobody asked this agent for volume {id} (any more): there is nothing that could grow"
            )));
        };
        // Sending the current size cancels an extend, as long as the extents are not the volume's
        // own yet: the agent knows.
        let has = status.volume.map_or(0, |report| report.size_bytes);
        let has = if has == 0 { kept.size_bytes } else { has.min(kept.size_bytes) };
        let size = match args.size {
            Some(size) => size,
            None if has < kept.size_bytes => ByteSize(has),
            None => {
                let has = ByteSize(has);
                return Err(Failure::Refused(format!(
                    "volume {id} does not grow, or not any more: it has {has}"
                )));
            }
        };
        if has > size.0 {
            return Err(Failure::Refused(format!(
                "volume {id} has {}, more than {size}: a volume never shrinks",
                ByteSize(has)
            )));
        }
        let spec = v1::VolumeSpec { size_bytes: size.0, ..kept };
        let digest = mooring_api::digest(&spec, &status.volume_opaque);
        let put = v1::PutVolumeRequest {
            sender: Some(sender.clone()),
            volume_id: id.to_string(),
            stamp: Some(stamp_for(status.volume_stamp.as_ref(), digest)?),
            wish: Some(put_volume_request::Wish::Spec(spec)),
            opaque: status.volume_opaque,
            deadline_ms: session.deadline_ms(),
            new: false,
        };
        Ok((session.put_volume(put).await?, id, name))
    })
    .await?;
    let report = response.report.unwrap_or_default();
    Ok(Reply::when(response.done, Created::new(response.done, id, &name, &report)))
}

/// The group: the named one, or the agent's only one.
fn group(session: &Session, wanted: Option<&VgName>) -> Result<VgName, Failure> {
    if let Some(group) = wanted {
        return Ok(group.clone());
    }
    match &session.hello().groups[..] {
        [] => Err(Failure::Refused(
            "this agent has no volume group: list one under `groups` in its configuration".to_owned(),
        )),
        [only] => only.parse().map_err(|error: mooring_model::NameError| Failure::Answer(error.to_string())),
        several => Err(Failure::Usage(format!(
            "this agent has several volume groups; say which with --group: {}",
            several.join(", ")
        ))),
    }
}

/// The id to create: the named one, else that of the volume with this name (then this is a
/// repetition), else a new one.
async fn id_for(session: &Session, args: &CreateArgs) -> Result<VolumeId, Failure> {
    let volumes = session.list().await?;
    let same_name = named(&volumes, &args.name);
    let taken = |other: &v1::VolumeStatus| {
        Failure::Refused(format!(
            "a volume named {:?} exists: {}. Choose another name",
            args.name.to_string(),
            other.volume_id
        ))
    };
    match (args.id, &same_name[..]) {
        (None, []) => Ok(VolumeId::random()),
        (None, [one]) => one.volume_id.parse().map_err(|_| taken(one)),
        (None, [first, ..]) => Err(taken(first)),
        (Some(id), others) => others
            .iter()
            .find(|other| other.volume_id != id.to_string())
            .map_or(Ok(id), |other| Err(taken(other))),
    }
}

/// The failure that explains why a create is no repetition of the kept one.
fn other_words(args: &CreateArgs, id: VolumeId, known: Option<&v1::VolumeStatus>) -> Failure {
    let phase = known.and_then(|status| status.volume.as_ref()).map(v1::VolumeReport::phase);
    Failure::Refused(match (phase, args.id) {
        (Some(v1::Phase::Gone | v1::Phase::Deleting), _) => {
            format!("volume {id} was deleted: an id is used once, choose another")
        }
        (_, Some(_)) => format!(
            "volume {id} exists and was asked for with another name, size or group: `mooring volume show {id}`"
        ),
        (_, None) => format!(
            "a volume named {:?} exists with another size or group: {id} (`mooring volume show {id}`). Choose another name",
            args.name.to_string()
        ),
    })
}

async fn known(session: &Session, id: VolumeId) -> Result<Option<v1::VolumeStatus>, Failure> {
    match session.get(id).await {
        Ok(status) => Ok(Some(status)),
        Err(failure) if failure.is_not_found() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// `volume list`.
pub(crate) async fn list(session: &Session) -> Result<Reply<Volumes>, Failure> {
    let mut volumes: Vec<_> = session.list().await?.iter().map(Volume::of_status).collect();
    volumes.sort_by(|a, b| (&a.name, &a.state.id).cmp(&(&b.name, &b.state.id)));
    Ok(Reply::ok(Volumes { volumes }))
}

/// `volume show`.
pub(crate) async fn show(session: &Session, volume: &VolumeRef) -> Result<Reply<Volume>, Failure> {
    let (_, status) = find(session, volume).await?;
    Ok(Reply::ok(Volume::of_status(&status)))
}

/// `volume delete`: first removes the export, which must have no grants, then the data.
pub(crate) async fn delete(session: &Session, volume: &VolumeRef) -> Result<Reply<Deleted>, Failure> {
    let sender = session.sender()?;
    twice(async || {
        let (id, status) = find(session, volume).await?;
        let answer = |done, report: Option<&v1::VolumeReport>| {
            Reply::when(done, Deleted::new(done, id, name_of(&status.volume_opaque), report))
        };
        let phase = status.volume.as_ref().map_or(v1::Phase::Unspecified, v1::VolumeReport::phase);
        if phase == v1::Phase::Gone {
            return Ok(answer(true, status.volume.as_ref()));
        }
        refuse_grants(id, &status)?;
        let goes_first = status.export_spec.as_ref().is_some_and(|spec| !is_recorded(spec));
        if goes_first && !drop_export(session, &sender, id, &status).await? {
            // The data stays until the target is gone. A repetition of the command continues here.
            return Ok(answer(false, status.volume.as_ref()));
        }
        let tombstone = v1::Tombstone { destroy_data: true, ..Default::default() };
        let digest = mooring_api::digest(&tombstone, &status.volume_opaque);
        let response = session
            .put_volume(v1::PutVolumeRequest {
                sender: Some(sender.clone()),
                volume_id: id.to_string(),
                stamp: Some(stamp_for(status.volume_stamp.as_ref(), digest)?),
                wish: Some(put_volume_request::Wish::Tombstone(tombstone)),
                opaque: status.volume_opaque.clone(),
                deadline_ms: session.deadline_ms(),
                new: false,
            })
            .await?;
        Ok(answer(response.done, response.report.as_ref()))
    })
    .await
}

fn refuse_grants(id: VolumeId, status: &v1::VolumeStatus) -> Result<(), Failure> {
    let grants = status.export_spec.as_ref().map_or(&[][..], |spec| &spec.grants);
    let Some(first) = grants.first() else { return Ok(()) };
    Err(Failure::Refused(format!(
        "volume {id} is granted to {} initiator{}; revoke first: mooring export revoke {id} --initiator {}",
        grants.len(),
        if grants.len() == 1 { "" } else { "s" },
        first.initiator
    )))
}

/// Returns `true` if an adopted export has names that only its spec knows: it is deleted with its
/// volume, by those names.
fn is_recorded(spec: &v1::ExportSpec) -> bool {
    let kind = spec.identity.as_ref().and_then(|identity| identity.kind.as_ref());
    matches!(kind, Some(v1::export_identity::Kind::Recorded(_)))
}

/// Removes an export without grants. `true`: the kernel no longer has it.
async fn drop_export(
    session: &Session,
    sender: &v1::Sender,
    id: VolumeId,
    status: &v1::VolumeStatus,
) -> Result<bool, Failure> {
    let tombstone = v1::Tombstone { destroy_data: false, ..Default::default() };
    let digest = mooring_api::digest(&tombstone, &status.export_opaque);
    let response = session
        .put_export(v1::PutExportRequest {
            sender: Some(sender.clone()),
            volume_id: id.to_string(),
            stamp: Some(stamp_for(status.export_stamp.as_ref(), digest)?),
            wish: Some(put_export_request::Wish::Tombstone(tombstone)),
            opaque: status.export_opaque.clone(),
            deadline_ms: session.deadline_ms(),
            // A delete must not end the sessions of a grant that came after our look.
            live_sessions: v1::LiveSessions::Refuse.into(),
            reservations_copy: String::new(),
        })
        .await?;
    Ok(response.done)
}

//! Attachments on their way in.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mooring_model::limit::{ATTACHMENTS_PER_CONNECTION_MAX, GRANTS_PER_EXPORT_MAX};
use mooring_model::{AgentId, AttachmentId, Generation, Iqn, VolumeId};
use serde_json::{Map, Value};

use super::{Refusal, Service, Wait, not_in_review, text_limit, view, volumes};
use crate::domain::{Attachment, AttachmentStatus, Caller, NewAttachment, NewConnector};
use crate::flow::{Inner, wishes};
use crate::rules::{self, Existing};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// Longest connector, in bytes of its JSON: it is kept, and a wish carries a part.
const CONNECTOR_BYTES_MAX: usize = 16 * 1024;

/// Who connects, and how.
struct Place {
    initiator: Iqn,
    host: Option<String>,
    mountpoint: Option<String>,
    native: Option<AgentId>,
    connector: Option<Map<String, Value>>,
}

/// The attachment, if this caller may see it.
pub(super) fn find(db: &Db<'_>, caller: &Caller, id: AttachmentId) -> Result<AttachmentRow, Abort> {
    let found = db.attachment(id)?.filter(|row| caller.admin || row.project == caller.project);
    Ok(found.ok_or_else(|| not_found(id))?)
}

pub(super) fn not_found(id: AttachmentId) -> Refusal {
    Refusal::NotFound { kind: "Attachment", what: id.to_string() }
}

fn view_one(db: &Db<'_>, row: AttachmentRow) -> Result<Attachment, Abort> {
    let volume = db.volume(row.volume)?;
    let volume = volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: row.volume.to_string() })?;
    view::attachment(db, &volume, row)
}

fn client_place(inner: &Inner, connector: Map<String, Value>) -> Result<Place, Refusal> {
    if Value::Object(connector.clone()).to_string().len() > CONNECTOR_BYTES_MAX {
        let text = format!("Invalid input received: the connector has more than {CONNECTOR_BYTES_MAX} bytes");
        return Err(Refusal::Invalid(text));
    }
    let initiator = rules::initiator(&connector).map_err(Refusal::Invalid)?;
    let of_ours =
        inner.agents.all().iter().find(|agent| agent.state().initiator.as_ref() == Some(&initiator));
    if let Some(agent) = of_ours {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: {initiator} is the name of the enrolled host {}: attach it natively",
            agent.entry.name
        )));
    }
    let host = rules::text_of(&connector, "host");
    let mountpoint = rules::text_of(&connector, "mountpoint");
    text_limit("host", host.as_deref().unwrap_or_default())?;
    text_limit("mountpoint", mountpoint.as_deref().unwrap_or_default())?;
    Ok(Place { initiator, host, mountpoint, native: None, connector: Some(connector) })
}

fn native_place(inner: &Inner, name: &str) -> Result<Place, Refusal> {
    let shown = || name.chars().take(80).collect::<String>();
    let agent = inner.agents.by_name(name);
    let agent = agent.ok_or_else(|| Refusal::NotFound { kind: "Host", what: shown() })?;
    if !agent.is_up() {
        return Err(Refusal::Unavailable(agent.why_down()));
    }
    let (id, initiator) = {
        let state = agent.state();
        (state.id, state.initiator.clone())
    };
    let (Some(id), Some(initiator)) = (id, initiator) else {
        let text =
            format!("host {} does not attach volumes: its agent's configuration has no [host]", shown());
        return Err(Refusal::Invalid(text));
    };
    Ok(Place {
        initiator,
        host: Some(agent.entry.name.clone()),
        mountpoint: None,
        native: Some(id),
        connector: None,
    })
}

/// Gives an attachment its place: from now on its grant is wanted.
fn connect(
    inner: &Inner,
    db: &Db<'_>,
    volume: &VolumeRow,
    row: &mut AttachmentRow,
    place: Place,
    existing: &[Existing],
) -> Result<(), Abort> {
    rules::may_connect(Some(row.id), row.instance, &place.initiator, place.host.as_deref(), existing)
        .map_err(Refusal::Conflict)?;
    let nexuses: BTreeSet<_> = existing.iter().filter_map(|other| other.initiator.as_ref()).collect();
    let sharing = existing.iter().filter(|other| other.initiator.as_ref() == Some(&place.initiator)).count();
    if sharing >= ATTACHMENTS_PER_CONNECTION_MAX
        || (nexuses.len() >= GRANTS_PER_EXPORT_MAX && !nexuses.contains(&place.initiator))
    {
        let text = format!("Invalid volume: Volume {} has as many attachments as it can have", volume.id);
        return Err(Refusal::Invalid(text).into());
    }
    // Nothing is begun that cannot go on now.
    inner.agents.up(volume.agent).map_err(Refusal::Unavailable)?;
    wishes::nexus(db, volume.id, &place.initiator, place.native.is_some())?;
    row.status = AttachmentStatus::Attaching;
    row.initiator = Some(place.initiator);
    row.host = place.host;
    row.mountpoint = place.mountpoint;
    row.native = place.native;
    row.connector = place.connector;
    row.grant_wanted = true;
    row.granted = false;
    row.held = true;
    row.wished_at = Generation::ZERO;
    row.fault = None;
    Ok(())
}

fn new_row(
    caller: &Caller,
    new: &NewAttachment,
    id: AttachmentId,
    db: &Db<'_>,
    volume: &VolumeRow,
) -> AttachmentRow {
    AttachmentRow {
        id,
        volume: new.volume,
        // An admin's attachment of another project's volume is that project's.
        project: if caller.admin { volume.project.clone() } else { caller.project.clone() },
        instance: new.instance,
        mode: super::MODE_DEFAULT,
        status: AttachmentStatus::Reserved,
        connector: None,
        initiator: None,
        host: None,
        mountpoint: None,
        native: None,
        grant_wanted: false,
        granted: false,
        held: false,
        connect_wanted: false,
        connect_ever: false,
        forced: false,
        wished_at: Generation::ZERO,
        steps: Vec::new(),
        created_at: db.now,
        attached_at: None,
        fault: None,
    }
}

fn create(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    new: &NewAttachment,
    place: Option<Place>,
) -> Result<Attachment, Abort> {
    let id = new.id.unwrap_or_else(AttachmentId::random);
    if let Some(kept) = db.attachment(id)? {
        // A repeated request. Of another project's nothing is said.
        let same = (caller.admin || kept.project == caller.project)
            && kept.volume == new.volume
            && kept.instance == new.instance
            && kept.initiator == place.map(|place| place.initiator);
        if same {
            return view_one(db, kept);
        }
        return Err(Refusal::Conflict(format!("the id {id} is taken by another attachment")).into());
    }
    if db.detached(id)?.is_some() {
        let text = format!("the id {id} was an attachment that was detached: choose another");
        return Err(Refusal::Conflict(text).into());
    }
    let volume = volumes::find(db, caller, new.volume)?;
    not_in_review(&volume)?;
    let rows = db.attachments_of(volume.id)?;
    let existing: Vec<_> = rows.iter().map(AttachmentRow::existing).collect();
    rules::may_attach(volume.id, volume.multiattach, volume.operation, &existing, new.instance)
        .map_err(Refusal::Invalid)?;
    let connector = place.as_ref().and_then(|place| place.connector.as_ref());
    let mut row = new_row(caller, new, id, db, &volume);
    row.mode = rules::mode(new.mode, connector, new.instance, &existing).map_err(Refusal::Invalid)?;
    if let Some(place) = place {
        connect(inner, db, &volume, &mut row, place, &existing)?;
    }
    wishes::apply(db, volume.id, &mut [row], &BTreeSet::new())?;
    view_one(db, find(db, caller, id)?)
}

/// Gives a reserved attachment its place.
fn update(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    place: Place,
) -> Result<VolumeId, Abort> {
    let mut row = find(db, caller, id)?;
    let volume = volumes::find(db, caller, row.volume)?;
    if let Some(initiator) = &row.initiator {
        if row.native.is_none() && *initiator == place.initiator && row.host == place.host && !row.is_going()
        {
            return Ok(volume.id);
        }
        let text = format!("attachment {id} is connected already, to {initiator}: detach it first");
        return Err(Refusal::Conflict(text).into());
    }
    not_in_review(&volume)?;
    if volume.operation.is_some() {
        let text = format!("Invalid volume: Volume {} has status {}", volume.id, volume.status);
        return Err(Refusal::Conflict(text).into());
    }
    let rows = db.attachments_of(volume.id)?;
    let existing: Vec<_> = rows.iter().map(AttachmentRow::existing).collect();
    connect(inner, db, &volume, &mut row, place, &existing)?;
    row.attached_at = None;
    wishes::apply(db, volume.id, &mut [row], &BTreeSet::new())?;
    Ok(volume.id)
}

impl Service {
    /// The caller's attachments, oldest first, those of one volume if one is given.
    pub async fn attachments(
        &self,
        caller: &Caller,
        all_projects: bool,
        volume: Option<VolumeId>,
    ) -> Result<Vec<Attachment>, Refusal> {
        let caller = caller.clone();
        let read = move |db: &Db<'_>| {
            let project = (!(all_projects && caller.admin)).then_some(caller.project.as_str());
            let rows = match volume {
                Some(volume) => db.attachments_of(volume)?,
                None => db.attachments(project)?,
            };
            // An admin who names a volume means all of it.
            let seen = |row: &AttachmentRow| {
                (caller.admin && volume.is_some()) || project.is_none_or(|p| p == row.project)
            };
            rows.into_iter().filter(seen).map(|row| view_one(db, row)).collect()
        };
        self.inner.store.read("list attachments", read).await
    }

    /// One attachment. 404 for another project's.
    pub async fn attachment(&self, caller: &Caller, id: AttachmentId) -> Result<Attachment, Refusal> {
        let caller = caller.clone();
        let read = move |db: &Db<'_>| view_one(db, find(db, &caller, id)?);
        self.inner.store.read("read an attachment", read).await
    }

    /// Makes an attachment. Without a connector: reserved. With a client's: answers when the grant is seen in the kernel
    /// (with its connection info), or `Pending`. Native: answers at once (`attaching`); the controller drives both agents
    /// and completes it.
    pub async fn create_attachment(
        &self,
        caller: &Caller,
        mut new: NewAttachment,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let arrived = Instant::now();
        let connector = std::mem::replace(&mut new.connector, NewConnector::None);
        let place = match connector {
            NewConnector::None => None,
            NewConnector::Client(connector) => Some(client_place(&self.inner, connector)?),
            NewConnector::Native(host) => Some(native_place(&self.inner, &host)?),
        };
        let client = place.as_ref().is_some_and(|place| place.native.is_none());
        let (inner, owner) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| create(&inner, db, &owner, &new, place);
        let made = self.inner.store.write("make an attachment", write).await?;
        self.inner.start_clock(made.id, arrived);
        self.inner.go(made.volume, &BTreeSet::new());
        if !client || made.connection_info.is_some() {
            return Ok(made);
        }
        self.granted(caller, made.id, made.volume, wait.0.saturating_sub(arrived.elapsed())).await
    }

    /// Gives a reserved attachment its connector, as a client's `create_attachment`. The same connector again: the same
    /// answer.
    pub async fn update_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        connector: Map<String, Value>,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let arrived = Instant::now();
        let place = client_place(&self.inner, connector)?;
        let (inner, owner) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| update(&inner, db, &owner, id, place);
        let volume = self.inner.store.write("connect an attachment", write).await?;
        self.inner.start_clock(id, arrived);
        self.inner.go(volume, &BTreeSet::new());
        self.granted(caller, id, volume, wait.0.saturating_sub(arrived.elapsed())).await
    }

    /// Waits until an attachment's grant is seen.
    async fn granted(
        &self,
        caller: &Caller,
        id: AttachmentId,
        volume: VolumeId,
        wait: Duration,
    ) -> Result<Attachment, Refusal> {
        let deadline = tokio::time::Instant::now() + wait;
        let mut changes = self.inner.follow(volume);
        loop {
            changes.mark_unchanged();
            let seen = self.attachment(caller, id).await?;
            match seen.status {
                _ if seen.connection_info.is_some() => {
                    if seen.status == AttachmentStatus::Attached {
                        self.inner.stop_clock(id);
                    }
                    return Ok(seen);
                }
                AttachmentStatus::ErrorAttaching | AttachmentStatus::Detaching => {
                    let why = seen.fault.unwrap_or_else(|| "it is being detached".to_owned());
                    return Err(Refusal::Conflict(format!("attachment {id} is not connected: {why}")));
                }
                _ => {}
            }
            if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
                let why = self.why_waits(volume).await;
                return Err(Refusal::Pending(format!(
                    "attachment {id} is not granted yet: {why}; it goes on, ask again"
                )));
            }
        }
    }

    /// The client is connected: `attached`, whatever it was.
    pub async fn complete_attachment(&self, caller: &Caller, id: AttachmentId) -> Result<(), Refusal> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let mut row = find(db, &caller, id)?;
            match row.status {
                AttachmentStatus::Attached => return Ok(row.volume),
                AttachmentStatus::Reserved | AttachmentStatus::Attaching => {}
                AttachmentStatus::Detaching
                | AttachmentStatus::ErrorAttaching
                | AttachmentStatus::ErrorDetaching => {
                    let text = format!("attachment {id} is {}: it cannot be completed", row.status);
                    return Err(Refusal::Conflict(text).into());
                }
            }
            if row.native.is_some() {
                let text = format!("attachment {id} is native: it is completed when its host has the device");
                return Err(Refusal::Conflict(text).into());
            }
            if row.initiator.is_some() && !row.granted {
                let text = format!("attachment {id} is not granted yet: it cannot be completed");
                return Err(Refusal::Conflict(text).into());
            }
            row.status = AttachmentStatus::Attached;
            row.attached_at = Some(db.now);
            row.steps.push(("done".to_owned(), inner.elapsed_ms(id, row.created_at)));
            let volume = row.volume;
            wishes::apply(db, volume, &mut [row], &BTreeSet::new())?;
            Ok(volume)
        };
        let volume = self.inner.store.write("complete an attachment", write).await?;
        self.inner.stop_clock(id);
        self.inner.touch(volume);
        self.inner.look_soon(volume);
        Ok(())
    }
}

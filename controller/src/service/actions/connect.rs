//! The older way in: a connector is granted access first, and then it is said whose volume it is.
//!
//! What must never happen here: a second attachment for one connector; a server put on somebody else's connection.

use std::collections::BTreeSet;

use mooring_model::{AttachmentId, Generation, Mode, VolumeId};
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::{AttachmentStatus, Caller};
use crate::flow::wishes::{self, Rewished};
use crate::flow::{Follower, Inner};
use crate::permits;
use crate::rules;
use crate::service::attach::{
    self, Begun, Place, Step, as_invalid, client_place, connect, existing_of, may_reserve, new_row,
};
use crate::service::view::{self, Secrets};
use crate::service::{Refusal, Service, Wait, not_in_review, volumes};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// What `os-attach` says.
#[derive(Clone)]
pub(super) struct Said {
    pub(super) instance: Option<Uuid>,
    pub(super) host: Option<String>,
    pub(super) mountpoint: String,
    pub(super) mode: Option<Mode>,
}

/// One promise is for the attachment that is being made.
fn promised(volume: &VolumeRow) -> u32 {
    volume.reserved.saturating_sub(1)
}

fn keep_promise(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    if volume.reserved > 0 {
        db.set_reserved(volume.id, volume.reserved - 1)?;
    }
    Ok(())
}

/// Finds or makes the attachment of a connector's nexus, and grants it access.
fn open(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    place: Place,
) -> Result<Step<Begun>, Abort> {
    let revision = inner.revision(id);
    let volume = volumes::find(inner, db, caller, id)?;
    let policy = "volume_extension:volume_actions:initialize_connection";
    inner.policies().check(policy, caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    let rows = db.attachments_of(id)?;
    let own = |row: &&AttachmentRow| {
        row.initiator.as_ref().is_some_and(|own| place.offer.covers(own)) && !row.is_going()
    };
    let mut row = match rows.iter().find(own).cloned() {
        Some(row) if row.grant_wanted => {
            let attachment = view::attachment_now(inner, db, &volume, row, Secrets::Shown)?;
            return Ok(Step::Done(Begun { attachment, rewished: Rewished::default(), revision }));
        }
        // Its connection was terminated, and is made again.
        Some(row) => row,
        None => {
            let existing = existing_of(&rows, promised(&volume));
            may_reserve(inner, db, caller, &volume, &existing, None)?;
            let readonly = volume.readonly == Some(true);
            let mut row = new_row(db, &volume, None, AttachmentId::random());
            row.mode = rules::mode(None, place.connector.as_ref(), None, &existing, readonly)
                .map_err(Refusal::Invalid)?;
            row.legacy = true;
            row.status = AttachmentStatus::Attaching;
            row
        }
    };
    if let Some(initiator) = row.initiator.as_ref().filter(|_| row.held) {
        return Ok(Step::Busy(id, format!("the access of {initiator} is being taken away")));
    }
    if let Some(why) = connect(inner, db, &volume, &mut row, place, &rows).map_err(as_invalid)? {
        return Ok(Step::Busy(id, why));
    }
    if row.legacy {
        keep_promise(db, &volume)?;
    }
    let mut changed = [row];
    let rewished = wishes::apply(db, id, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    let attachment = view::attachment(inner, db, &volume, row, Secrets::Shown)?;
    Ok(Step::Done(Begun { attachment, rewished, revision }))
}

/// The connection that waits for its server, or a new attachment without one.
fn meant(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    said: &Said,
    rows: &[AttachmentRow],
) -> Result<AttachmentRow, Abort> {
    let fits = |row: &&AttachmentRow| {
        row.legacy
            && row.status == AttachmentStatus::Attaching
            && said.host.as_ref().is_none_or(|host| row.host.as_ref() == Some(host))
    };
    let waiting: Vec<_> = rows.iter().filter(fits).collect();
    match waiting[..] {
        [one] => Ok(one.clone()),
        [] => {
            let existing = existing_of(rows, promised(volume));
            may_reserve(inner, db, caller, volume, &existing, said.instance)?;
            keep_promise(db, volume)?;
            let mut row = new_row(db, volume, said.instance, AttachmentId::random());
            row.mode = Mode::ReadWrite;
            row.host.clone_from(&said.host);
            Ok(row)
        }
        _ => Err(Refusal::Invalid(format!(
                "Invalid volume: Volume {} has {} connections that wait for os-attach, and it does not say which one is \
                 meant: use the attachments API.",
                volume.id,
                waiting.len()
            ))
            .into()),
    }
}

/// What `os-attach` has written.
struct Attached {
    id: AttachmentId,
    volume: VolumeRow,
    rewished: Rewished,
    /// The access is there and is to be another one: only then the mode holds.
    changed: bool,
}

/// Says whose a volume is: of the connection that waits for it, or of none.
fn attach(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    said: &Said,
) -> Result<Option<Attached>, Abort> {
    let volume = volumes::find(inner, db, caller, id)?;
    let policy = "volume_extension:volume_actions:attach";
    inner.policies().check(policy, caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    let rows = db.attachments_of(id)?;
    let same = |row: &&AttachmentRow| match said.instance {
        Some(_) => row.instance == said.instance,
        None => row.instance.is_none() && row.host == said.host,
    };
    let known = rows.iter().find(|row| row.status == AttachmentStatus::Attached && same(row));
    if known.is_some() {
        return Ok(None);
    }
    let mut row = meant(inner, db, caller, &volume, said, &rows)?;
    // Before its mode changes: the session is there.
    if row.grant_wanted && !inner.sees_grant(db, volume.agent, &row)? {
        let text = format!("Invalid volume: the connection of volume {id} is not granted yet: ask again.");
        return Err(Refusal::Invalid(text).into());
    }
    row.granted = row.grant_wanted;
    let before = row.mode;
    if let Some(mode) = said.mode.or((!row.legacy).then_some(Mode::ReadWrite)) {
        let readonly = volume.readonly == Some(true);
        row.mode = rules::mode(Some(mode), None, None, &[], readonly).map_err(Refusal::Invalid)?;
        row.mode_asked = true;
    }
    let changed = row.mode != before && row.grant_wanted;
    if row.mode != before {
        row.wished_at = Generation::ZERO;
    }
    let twice = rows.iter().any(|other| {
        other.id != row.id
            && said.instance.is_some()
            && other.instance == said.instance
            && other.host == row.host
    });
    if twice {
        let text =
            format!("Invalid volume: Volume {id} has an attachment of this server on this host already.");
        return Err(Refusal::Invalid(text).into());
    }
    row.instance = said.instance;
    row.mountpoint = Some(said.mountpoint.clone());
    let id = row.id;
    let rewished = attach::complete(inner, db, &volume, row)?;
    Ok(Some(Attached { id, volume, rewished, changed }))
}

impl Service {
    /// Grants a connector access: finds its attachment or makes one. Returns how to log in.
    pub(super) async fn initialize_connection(
        &self,
        caller: &Caller,
        id: VolumeId,
        connector: Map<String, Value>,
        wait: Wait,
    ) -> Result<Map<String, Value>, Refusal> {
        let arrived = Instant::now();
        let place = client_place(&self.inner, connector)?;
        let (inner, owner) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| open(&inner, db, &owner, id, place.clone());
        let begun = self.begin_connect("initialize a connection", write, arrived, wait).await?;
        let own = begun.attachment.id;
        if let Some(info) = begun.attachment.connection_info {
            return Ok(info);
        }
        match self.granted(caller, begun, arrived, wait).await {
            Ok(seen) => seen
                .connection_info
                .ok_or_else(|| Refusal::Pending(format!("attachment {own} is not granted yet: ask again"))),
            Err(Refusal::Conflict(why)) => {
                self.abandon(caller, own).await;
                Err(Refusal::Invalid(format!("Invalid volume: {why}")))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Says whose a volume is now. Said again: the same. Where its mode is another than that of the connection, the target has
    /// it when this is answered.
    pub(super) async fn attach_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        said: Said,
        wait: Wait,
    ) -> Result<(), Refusal> {
        let deadline = Instant::now() + wait.0;
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| attach(&inner, db, &caller, id, &said);
        let Some(done) = self.inner.store.write("attach a volume", write).await? else { return Ok(()) };
        let changes = self.inner.follow(id);
        self.completed(done.id, id, done.volume.agent, &done.rewished);
        if done.changed { self.mode_holds(done.id, changes, deadline).await } else { Ok(()) }
    }

    /// Waits until the target enforces the mode of an attachment.
    async fn mode_holds(
        &self,
        own: AttachmentId,
        mut changes: Follower,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        loop {
            let inner = self.inner.clone();
            let read = move |db: &Db<'_>| {
                // One that is gone meanwhile has no mode any more.
                let Some(row) = db.attachment(own)? else { return Ok(None) };
                let Some(volume) = db.volume(row.volume)? else { return Ok(None) };
                let holds = !row.grant_wanted || inner.shows_grant(db, volume.agent, &row)?;
                Ok((!holds).then_some(volume.id))
            };
            let Some(volume) = self.inner.store.read("read an attachment's mode", read).await? else {
                return Ok(());
            };
            if permits::until(deadline, changes.changed()).await.is_err() {
                let why = self.why_waits(volume).await;
                return Err(Refusal::Pending(format!(
                    "the target has not taken the mode of attachment {own} yet: {why}; it goes on, ask again"
                )));
            }
        }
    }
}

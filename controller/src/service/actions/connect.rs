//! The older way to attach: `os-initialize_connection` grants a connector access first; `os-attach`
//! names the server afterwards.
//!
//! What must never happen here: a second attachment for one connector; a server put on another
//! server's connection.

use std::collections::BTreeSet;

use mooring_model::{AttachmentId, Generation, Mode, VolumeId};
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::{AttachmentStatus, Caller};
use crate::error::RuleAnswer;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::flow::{Facts, Follower};
use crate::permits;
use crate::rules;
use crate::service::again::{self, Words};
use crate::service::attach::{
    self, Begun, Place, Step, as_invalid, client_place, connect, existing_of, may_reserve, new_row, specs_of,
};
use crate::service::view::{self, Secrets};
use crate::service::{Refusal, Service, Wait, not_in_review, told, volumes};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// The words of an `os-attach` call.
#[derive(Clone)]
pub(super) struct Said {
    pub(super) instance: Option<Uuid>,
    pub(super) host: Option<String>,
    pub(super) mountpoint: String,
    pub(super) mode: Option<Mode>,
}

/// The reservations of a volume without the one that this attachment uses.
fn promised(volume: &VolumeRow) -> u32 {
    volume.reserved.saturating_sub(1)
}

fn keep_promise(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    if volume.reserved > 0 {
        db.set_reserved(volume.id, volume.reserved - 1, volume.reserved_until)?;
    }
    Ok(())
}

/// The attachment with access that a connector means.
fn opened<'a>(
    facts: &Facts,
    caller: &Caller,
    id: VolumeId,
    wanted: &[&'a AttachmentRow],
    place: &Place,
) -> Result<&'a AttachmentRow, Refusal> {
    let connector = place.kept_connector();
    let row = match wanted {
        [row] => *row,
        several => match several.iter().find(|row| row.connector == connector) {
            Some(row) => row,
            None => {
                return Err(Refusal::Invalid(format!(
                    "Invalid volume: {} attachments of volume {id} share this initiator, and none of them has this connector: \
                     use the attachments API.",
                    several.len()
                )));
            }
        },
    };
    if row.native.is_some() || !place.is_on(row.host.as_deref()) {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {id} is connected already under this initiator, by attachment {}{}.",
            row.id,
            told::on_host(facts, caller, row)
        )));
    }
    Ok(row)
}

/// Finds or makes the attachment of a connector's nexus, and grants it access.
fn open(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    place: Place,
) -> Result<Step<Begun>, Abort> {
    let revision = facts.revision(id);
    let volume = volumes::find(facts, db, caller, id)?;
    let policy = "volume_extension:volume_actions:initialize_connection";
    facts.policies().check(policy, caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    let rows = db.attachments_of(id)?;
    let own = |row: &&AttachmentRow| {
        row.initiator.as_ref().is_some_and(|own| place.offer.covers(own)) && !row.is_going()
    };
    let wanted: Vec<_> = rows.iter().filter(|row| own(row) && row.wants_grant()).collect();
    if !wanted.is_empty() {
        let row = opened(facts, caller, id, &wanted, &place)?.clone();
        return again::connector(facts, db, &volume, row, &place, revision).map_err(as_invalid);
    }
    let specs = specs_of(db, &volume)?;
    let mut row = if let Some(row) = rows.iter().find(own).cloned() {
        // Its connection was terminated, and is made again.
        row
    } else {
        let existing = existing_of(&rows, promised(&volume));
        may_reserve(facts, caller, &volume, &existing, None)?;
        let readonly = volume.readonly == Some(true);
        let mut row = new_row(db, &volume, &specs, None, AttachmentId::random());
        row.mode = rules::mode(None, place.connector.as_ref(), None, &existing, readonly)?;
        row.legacy = true;
        row.attaching();
        row
    };
    if let Some(initiator) = row.initiator.as_ref().filter(|_| row.has_grant()) {
        return Ok(Step::Busy(id, format!("the access of {initiator} is being taken away")));
    }
    let connected = connect(facts, db, &volume, &specs, &mut row, place, &rows);
    if let Some(why) = connected.map_err(|why| as_invalid(told::of_connect(facts, caller, why)))? {
        return Ok(Step::Busy(id, why));
    }
    if row.legacy {
        keep_promise(db, &volume)?;
    }
    let mut changed = [row];
    let spec_changes = volume_specs::apply(db, id, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    let attachment = view::attachment(facts, db, &volume, row, Secrets::Shown)?;
    Ok(Step::Done(Begun { attachment, spec_changes, revision, enforces: None }))
}

/// The connection that waits for its server, or a new attachment without a connection.
fn meant(
    facts: &Facts,
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
            may_reserve(facts, caller, volume, &existing, said.instance)?;
            keep_promise(db, volume)?;
            let specs = specs_of(db, volume)?;
            let mut row = new_row(db, volume, &specs, said.instance, AttachmentId::random());
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

/// The writes of an `os-attach` call.
struct Attached {
    id: AttachmentId,
    volume: VolumeRow,
    spec_changes: SpecChanges,
    /// `true` if the access exists: the call is answered when the target enforces the mode.
    enforces: bool,
}

/// Names the server of a volume: for the connection that waits for one, or without a connection.
fn attach(facts: &Facts, db: &Db<'_>, caller: &Caller, id: VolumeId, said: &Said) -> Result<Attached, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    let policy = "volume_extension:volume_actions:attach";
    facts.policies().check(policy, caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    let rows = db.attachments_of(id)?;
    let same = |row: &&AttachmentRow| match said.instance {
        Some(_) => row.instance == said.instance,
        None => row.instance.is_none() && row.host == said.host,
    };
    let known: Vec<_> =
        rows.iter().filter(|row| row.status == AttachmentStatus::Attached && same(row)).collect();
    if !known.is_empty() {
        let row = known_one(facts, caller, id, &known, said)?.clone();
        return said_again(db, volume, rows, row, said);
    }
    let mut row = meant(facts, db, caller, &volume, said, &rows)?;
    // Check the grant before the mode changes: the session exists already.
    if row.wants_grant() && !facts.sees_grant(db, volume.agent, &row)? {
        let text = format!("Invalid volume: the connection of volume {id} is not granted yet: ask again.");
        return Err(Refusal::Invalid(text).into());
    }
    row.shown_at_attach();
    let before = row.mode;
    if let Some(mode) = said.mode.or((!row.legacy).then_some(Mode::ReadWrite)) {
        let readonly = volume.readonly == Some(true);
        row.mode = rules::mode(Some(mode), None, None, &[], readonly)?;
        row.mode_asked = true;
    }
    let changed = row.mode != before && row.wants_grant();
    if row.mode != before {
        row.in_spec_since = Generation::ZERO;
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
    let spec_changes = match attach::complete(facts, db, &volume, row)? {
        // A promise may have been kept: the volume is not as it was read.
        Some(row) => volume_specs::apply(db, volume.id, &mut [row], &BTreeSet::new())?,
        None => SpecChanges::default(),
    };
    Ok(Attached { id, volume, spec_changes, enforces: changed })
}

/// The attachment that an earlier, equal `os-attach` call made.
fn known_one<'a>(
    facts: &Facts,
    caller: &Caller,
    id: VolumeId,
    known: &[&'a AttachmentRow],
    said: &Said,
) -> Result<&'a AttachmentRow, Refusal> {
    let on_host = |row: &&&AttachmentRow| said.host.is_none() || row.host == said.host;
    let found: Vec<_> = known.iter().filter(on_host).collect();
    let refuse = |what: String| Err(Refusal::Invalid(format!("Invalid volume: Volume {id} {what}")));
    match (&found[..], known) {
        ([row], _) => Ok(**row),
        ([], [other, ..]) => refuse(format!(
            "is attached to this server already, by attachment {}{}: detach that one first.",
            other.id,
            told::on_host(facts, caller, other)
        )),
        _ => refuse(format!(
            "has {} attachments of this server, and os-attach does not say which one is meant: use the attachments API.",
            found.len()
        )),
    }
}

/// Applies a repeated `os-attach` call to the attachment that it made before.
fn said_again(
    db: &Db<'_>,
    volume: VolumeRow,
    rows: Vec<AttachmentRow>,
    mut row: AttachmentRow,
    said: &Said,
) -> Result<Attached, Abort> {
    let id = row.id;
    row.mode_asked |= said.mode.is_some();
    if row.native.is_some() {
        let text = format!("Invalid volume: attachment {id} is native: its host says where the disk is.");
        return Err(Refusal::Invalid(text).into());
    }
    let words = Words { mode: said.mode, mountpoint: Some(&said.mountpoint), connector: None };
    let (row, spec_changes) = again::apply(db, &volume, rows, row, &words).map_err(as_invalid)?;
    Ok(Attached { id, volume, spec_changes, enforces: said.mode.is_some() && row.wants_grant() })
}

impl Service {
    /// Grants a connector access: finds its attachment or makes one. Returns the connection info.
    pub(super) async fn initialize_connection(
        &self,
        caller: &Caller,
        id: VolumeId,
        connector: Map<String, Value>,
        wait: Wait,
    ) -> Result<Map<String, Value>, Refusal> {
        let arrived = Instant::now();
        let place = client_place(&self.facts, caller, connector)?;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| open(&facts, db, &owner, id, place.clone());
        let begun = self.begin_connect("initialize a connection", write, arrived, wait).await?;
        let own = begun.attachment.id;
        if begun.attachment.connection_info.is_some() {
            let seen = self.connected_again(caller, begun, arrived + wait.0).await?;
            return Ok(seen.connection_info.unwrap_or_default());
        }
        match self.granted(caller, begun, arrived, wait).await {
            Ok(seen) => seen
                .connection_info
                .ok_or_else(|| Refusal::Pending(format!("attachment {own} is not granted yet: ask again"))),
            Err(refusal @ (Refusal::Conflict(_) | Refusal::Rule(RuleAnswer::Conflict, _))) => {
                self.abandon(caller, own).await;
                Err(refusal.into_invalid())
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Names the server of a volume. A repeated call gets the same answer. If the mode differs from
    /// the connection's, the call is answered once the target enforces it.
    pub(super) async fn attach_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        said: Said,
        wait: Wait,
    ) -> Result<(), Refusal> {
        let deadline = Instant::now() + wait.0;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| attach(&facts, db, &owner, id, &said);
        let done = self.store.write("attach a volume", write).await?;
        let changes = self.flow.follow(id);
        self.completed(done.id, id, done.volume.agent, &done.spec_changes);
        if done.enforces { self.mode_holds(caller, done.id, changes, deadline).await } else { Ok(()) }
    }

    /// Waits until the target enforces the mode of an attachment.
    pub(in crate::service) async fn mode_holds(
        &self,
        caller: &Caller,
        own: AttachmentId,
        mut changes: Follower,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        loop {
            let facts = self.facts.clone();
            let read = move |db: &Db<'_>| {
                // An attachment that is gone has no mode.
                let Some(row) = db.attachment(own)? else { return Ok(None) };
                let Some(volume) = db.volume(row.volume)? else { return Ok(None) };
                let holds = !row.wants_grant() || facts.shows_grant(db, volume.agent, &row)?;
                Ok((!holds).then_some(volume.id))
            };
            let Some(volume) = self.store.read("read an attachment's mode", read).await? else {
                return Ok(());
            };
            if permits::until(deadline, changes.changed()).await.is_err() {
                let why = self.waits_for(caller, self.why_waits(volume).await);
                return Err(Refusal::Pending(format!(
                    "the target has not taken the mode of attachment {own} yet: {why}; it goes on, ask again"
                )));
            }
        }
    }
}

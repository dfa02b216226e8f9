//! The older way to detach: the connection ends first, and then the attachment.
//!
//! What must never happen here: another server's attachment ended because the call named none.

use std::collections::BTreeSet;

use mooring_model::{AttachmentId, VolumeId};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::domain::{AttachmentStatus, Caller};
use crate::flow::volume_specs::{self, SpecChanges};
use crate::flow::{Facts, Follower};
use crate::permits;
use crate::rules::transport::Offer;
use crate::service::detach::{Looked, Needed, Way, decided, may_delete};
use crate::service::{Refusal, Service, Wait, failed, not_in_review, volumes};
use crate::store::{Abort, AttachmentRow, Db, DetachedFilter};

/// The attachment that a call means, also one without an id. `None`: the volume had attachments,
/// and all of them are gone. An attachment without a record is refused: its caller means another
/// volume, believes in an attach that never came, or asks after the record's age.
fn meant(db: &Db<'_>, id: VolumeId, attachment: Option<AttachmentId>) -> Result<Option<AttachmentId>, Abort> {
    if let Some(own) = attachment {
        if let Some(row) = db.attachment(own)? {
            if row.volume == id {
                return Ok(Some(own));
            }
            let text = format!("Invalid volume: attachment {own} is not one of volume {id}.");
            return Err(Refusal::Invalid(text).into());
        }
        if db.detached(own)?.is_some_and(|gone| gone.volume == id) {
            return Ok(Some(own));
        }
        let text = format!(
            "volume {id} has no attachment {own}, and no record of one: nothing is detached; list the volume's attachments"
        );
        return Err(Refusal::Conflict(text).into());
    }
    let mut rows = db.attachments_of(id)?;
    if rows.iter().any(|row| !row.holds_nothing()) {
        // No list of the volume shows one that failed and holds nothing: another one is meant.
        rows.retain(|row| !row.holds_nothing());
    }
    match rows[..] {
        [] => {
            let of_volume = DetachedFilter { volume: Some(id), ..DetachedFilter::default() };
            if db.detach_records(&of_volume, 1)?.is_empty() {
                let text = format!("volume {id} has no attachment, and no record of one: there is nothing to detach");
                return Err(Refusal::Conflict(text).into());
            }
            Ok(None)
        }
        [ref one] => Ok(Some(one.id)),
        ref several => Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {id} is attached to more than one server: {} attachments. Say which one by \
             attachment_id.",
            several.len()
        ))
        .into()),
    }
}

/// The outcome of a call that ends a connection.
enum Ended {
    /// There was no connection.
    Nothing,
    /// The access ends; the attachment stays until it is detached.
    Access(AttachmentId, SpecChanges),
    /// The connection never became an attachment, and ends as a whole.
    Whole(AttachmentId),
    /// Nothing was written: a live session decides, and must be looked at first.
    Look(Needed),
}

fn end(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    connector: Option<&Map<String, Value>>,
    looked: Looked,
) -> Result<Ended, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    let policy = "volume_extension:volume_actions:terminate_connection";
    facts.policies().check(policy, caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    let rows = failed::holding(db, id)?;
    let named = named(&rows, connector)?;
    if facts.options.protect_instances && !caller.service {
        one_is_named(id, &rows, named.as_deref())?;
    }
    let found = match named {
        Some(named) => named.first().copied(),
        None => only_one(id, &rows)?,
    };
    let Some(mut row) = found.cloned() else {
        return Ok(Ended::Nothing);
    };
    if let Some(initiator) = decided(facts, caller, &row, looked)? {
        return Ok(Ended::Look(Needed { agent: volume.agent, volume: id, initiator }));
    }
    if row.status != AttachmentStatus::Attached || row.native.is_some() {
        return Ok(Ended::Whole(row.id));
    }
    row.take_back();
    let own = row.id;
    Ok(Ended::Access(own, volume_specs::apply(db, id, &mut [row], &BTreeSet::new())?))
}

/// The connected attachments that a connector names by its initiator or its ports. `None`: it has
/// neither, or there is no connector.
fn named<'a>(
    rows: &'a [AttachmentRow],
    connector: Option<&Map<String, Value>>,
) -> Result<Option<Vec<&'a AttachmentRow>>, Refusal> {
    let has_names = |connector: &&Map<String, Value>| {
        ["initiator", "wwpns"].into_iter().any(|key| connector.contains_key(key))
    };
    let Some(connector) = connector.filter(has_names) else { return Ok(None) };
    let offer = Offer::of_connector(connector)?;
    let own =
        |row: &&AttachmentRow| row.has_grant() && row.initiator.as_ref().is_some_and(|own| offer.covers(own));
    Ok(Some(rows.iter().filter(own).collect()))
}

/// Refuses a user's call that does not say which of a volume's attachments ends: it has several,
/// and the connector names none of them or more than one. A connector of a host without a
/// connection names nothing wrong: its connection has ended.
fn one_is_named(
    id: VolumeId,
    rows: &[AttachmentRow],
    named: Option<&[&AttachmentRow]>,
) -> Result<(), Refusal> {
    let why = match named {
        None if rows.len() > 1 => format!("it has {} attachments, and this call names none", rows.len()),
        Some(several) if several.len() > 1 => {
            format!("{} of its attachments share this connector's initiator", several.len())
        }
        None | Some(_) => return Ok(()),
    };
    Err(Refusal::Conflict(format!("Detach volume {id} from its servers using the Compute API: {why}")))
}

/// The only connected attachment.
fn only_one(id: VolumeId, rows: &[AttachmentRow]) -> Result<Option<&AttachmentRow>, Refusal> {
    let connected: Vec<_> = rows.iter().filter(|row| row.has_grant()).collect();
    match connected[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(Refusal::Invalid(format!(
            "Invalid input received: volume {id} has {} connections: the connector must have the initiator or the wwpns \
             of the one that ends",
            connected.len()
        ))),
    }
}

impl Service {
    /// Detaches a volume's attachment: the one with this id, or the only one. An attachment that is
    /// gone counts as detached, one without a record is a conflict.
    pub(super) async fn detach_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        attachment: Option<AttachmentId>,
        force: bool,
        wait: Wait,
    ) -> Result<(), Refusal> {
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let volume = volumes::find(&facts, db, &owner, id)?;
            if force {
                may_delete(&facts, &owner, &volume.project, Way::Forced)?;
            } else {
                let policy = "volume_extension:volume_actions:detach";
                facts.policies().check(policy, &owner, &volumes::target(&volume))?;
            }
            meant(db, id, attachment)
        };
        let Some(own) = self.store.read("find an attachment", read).await? else {
            return self.rederive(id).await;
        };
        match self.delete_attachment(caller, own, force, wait).await {
            Ok(_) | Err(Refusal::NotFound { .. }) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    async fn rederive(&self, id: VolumeId) -> Result<(), Refusal> {
        self.store.write("derive a volume's status", move |db| Ok(db.derive_status(id)?)).await
    }

    /// Ends a connection. A connection that never became an attachment ends as a whole.
    pub(super) async fn terminate_connection(
        &self,
        caller: &Caller,
        id: VolumeId,
        connector: Option<Map<String, Value>>,
        wait: Wait,
    ) -> Result<(), Refusal> {
        let deadline = Instant::now() + wait.0;
        let mut looked = None;
        loop {
            let (facts, owner, given) = (self.facts.clone(), caller.clone(), connector.clone());
            let write = move |db: &Db<'_>| end(&facts, db, &owner, id, given.as_ref(), looked);
            match self.store.write("terminate a connection", write).await? {
                Ended::Nothing => return Ok(()),
                Ended::Look(Needed { agent, volume, initiator }) => {
                    looked = Some(self.flow.is_live(agent, volume, &initiator).await);
                }
                Ended::Whole(own) => {
                    let left = Wait(deadline.saturating_duration_since(Instant::now()));
                    return self.detach_volume(caller, id, Some(own), false, left).await;
                }
                Ended::Access(own, spec_changes) => {
                    let mut changes = self.flow.follow(id);
                    self.flow.go(id, &spec_changes.hosts);
                    return self.access_ends(caller, own, id, &mut changes, deadline).await;
                }
            }
        }
    }

    async fn access_ends(
        &self,
        caller: &Caller,
        own: AttachmentId,
        id: VolumeId,
        changes: &mut Follower,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        loop {
            let late = permits::until(deadline, changes.changed()).await.is_err();
            let read = move |db: &Db<'_>| Ok(db.attachment(own)?.is_some_and(|row| row.has_grant()));
            if !self.store.read("read a connection's end", read).await? {
                return Ok(());
            }
            if late {
                let why = self.waits_for(caller, self.why_waits(id).await);
                return Err(Refusal::Pending(format!(
                    "the connection of attachment {own} has not ended yet: {why}; it goes on, ask again"
                )));
            }
        }
    }
}

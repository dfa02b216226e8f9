//! Repeated calls for an attachment that is already connected.
//!
//! Clients repeat a call whose answer they lost, and some repeat it with another connector, mode or
//! place. A call with the same words gets the same answer. Other words are applied, or refused: a
//! caller that was told `ro` must not have a writable disk.
//!
//! What must never happen here: a success that leaves out what the call said; an attachment chosen
//! by a guess; a change of one that an enrolled host uses.

use std::collections::BTreeSet;

use mooring_model::{Generation, Mode};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::attach::{Begun, Place, Step};
use super::view::{self, Secrets};
use super::{Refusal, Service, mode, not_in_review};
use crate::domain::Transport;
use crate::domain::{Attachment, Caller};
use crate::flow::Facts;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::initiators::Initiators;
use crate::rules;
use crate::store::{Abort, AttachmentRow, Connector, Db, VolumeRow};

/// The words of a repeated call. `None`: the call leaves the word out.
#[derive(Debug, Default)]
pub(super) struct Words<'a> {
    /// Access mode of the attachment.
    pub(super) mode: Option<Mode>,
    /// Device path at which the attachment's server sees the volume.
    pub(super) mountpoint: Option<&'a str>,
    /// The whole connector.
    pub(super) connector: Option<&'a Map<String, Value>>,
}

/// Applies the words of a repeated call to an attachment. Writes nothing if nothing differs.
/// `before`: all attachments of the volume.
pub(super) fn apply(
    db: &Db<'_>,
    volume: &VolumeRow,
    before: Vec<AttachmentRow>,
    mut row: AttachmentRow,
    words: &Words<'_>,
) -> Result<(AttachmentRow, SpecChanges), Abort> {
    let kept = row.clone();
    if let Some(mode) = words.mode.filter(|mode| *mode != row.mode) {
        mode::change(db, volume, &mut row, mode, &before)?;
        if row.wants_grant() {
            row.in_spec_since = Generation::ZERO;
        }
    }
    if let Some(mountpoint) = words.mountpoint {
        row.mountpoint = Some(mountpoint.to_owned());
    }
    if let Some(connector) = words.connector {
        row.connector = Some(Connector::of(connector));
    }
    if row == kept {
        return Ok((row, SpecChanges::default()));
    }
    not_in_review(volume)?;
    let mut changed = [row];
    let spec_changes = volume_specs::apply_to(db, volume, before, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    Ok((row, spec_changes))
}

/// The mode that a connector asks for, on an attachment that has a mode. `None` if the connector
/// changes nothing. A connector cannot change a mode that the attachment's maker or an operator
/// named.
fn mode_of(row: &AttachmentRow, connector: &Map<String, Value>) -> Result<Option<Mode>, Refusal> {
    let asked = rules::of_connector(Some(connector))?;
    let Some(mode) = asked.filter(|mode| *mode != row.mode && row.mode_asked) else { return Ok(asked) };
    let kept = row.connector.as_ref().map(Connector::map);
    if rules::of_connector(kept.as_ref()) == Ok(asked) {
        // The first call said the same, and its answer named the mode in force.
        return Ok(None);
    }
    Err(Refusal::Conflict(format!(
        "attachment {id} was asked for with mode {}, and this connector says {mode}: change the mode with PUT \
         /mooring/v1/attachments/{id}/mode, or leave it out of the connector",
        row.mode,
        id = row.id
    )))
}

/// Refuses names that have no grant: an attachment keeps the names with which it was connected.
fn check_names(row: &AttachmentRow, place: &Place) -> Result<(), Refusal> {
    let Some(used) = &row.initiator else { return Ok(()) };
    let other = |what: String| {
        let text =
            format!("attachment {} is connected already, to {used}, and {what}: detach it first", row.id);
        Err(Refusal::Conflict(text))
    };
    if let Some(asked) = place.offer.asked.filter(|asked| *asked != Transport::of(used)) {
        return other(format!("the connector asks for {}", asked.spellings()[0]));
    }
    let named = place.offer.fc.clone().filter(|_| used.ports().is_some()).map(Initiators::Fc);
    // A port that the connector leaves out may be down, and keeps its grant.
    match named.iter().flat_map(Initiators::each).find(|port| !used.has(port)) {
        Some(port) => other(format!("the connector names port {port} beside it")),
        None => Ok(()),
    }
}

/// Applies a connector that is given again. The caller has checked that it belongs to the
/// attachment's host.
pub(super) fn connector(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    row: AttachmentRow,
    place: &Place,
    revision: u64,
) -> Result<Step<Begun>, Abort> {
    check_names(&row, place)?;
    let mode = place.connector.as_ref().map(|connector| mode_of(&row, connector)).transpose()?.flatten();
    let words = Words { mode, mountpoint: place.mountpoint(), connector: place.connector.as_ref() };
    let before = db.attachments_of(volume.id)?;
    let (row, spec_changes) = apply(db, volume, before, row, &words)?;
    let enforces = mode.filter(|_| row.is_granted());
    let attachment = view::attachment_now(facts, db, volume, row, Secrets::Shown)?;
    Ok(Step::Done(Begun { attachment, spec_changes, revision, enforces }))
}

impl Service {
    /// Answers for an attachment that was already granted. If the call asks for a mode, waits until
    /// the target enforces it.
    pub(super) async fn connected_again(
        &self,
        caller: &Caller,
        begun: Begun,
        deadline: Instant,
    ) -> Result<Attachment, Refusal> {
        let (id, volume) = (begun.attachment.id, begun.attachment.volume);
        let changes = self.flow.follow(volume);
        if begun.spec_changes.storage {
            self.flow.go(volume, &begun.spec_changes.hosts);
        }
        if begun.enforces.is_none() {
            return Ok(begun.attachment);
        }
        self.mode_holds(caller, id, changes, deadline).await?;
        self.attachment_with(caller, id, Secrets::Shown).await
    }
}

//! Messages: the reasons why something accepted did not come true, for the project that asked for
//! it.
//!
//! What must never happen here: another project's message found by its id; messages without an end
//! (each new one deletes those that have expired).

use std::time::Duration;

use mooring_model::{AttachmentId, VolumeId};
use uuid::Uuid;

use super::Db;
use super::sql::{Row, SqlError, values};
use crate::domain::Message;
use crate::store::AttachmentRow;

/// The lifetime of a message: Cinder's default.
const TTL: Duration = Duration::from_hours(30 * 24);

/// The longest text, in characters.
const TEXT_CHARS_MAX: usize = 1_024;

/// Stands between the two texts of a message about an agent's refusal: the one for the project, and
/// the agent's own. No text of an agent has this character.
const OWN: char = '\u{1f}';

/// Returns a kept text for a reader. `own`: the reader may read agents' own words.
pub(crate) fn read_as(kept: &str, own: bool) -> &str {
    match kept.split_once(OWN) {
        Some((_, text)) if own => text,
        Some((text, _)) => text,
        None => kept,
    }
}

pub(super) const COLUMNS: &str =
    "id, project, request, resource_kind, resource_id, event, level, text, created_us, expires_us";

pub(super) fn message(row: &mut Row) -> Result<Message, SqlError> {
    Ok(Message {
        id: row.parsed(0)?,
        project: row.get(1)?,
        request: row.get(2)?,
        resource_kind: row.get(3)?,
        resource_id: row.get(4)?,
        event: row.get(5)?,
        level: row.get(6)?,
        text: row.get(7)?,
        created_at: row.time(8)?,
        expires_at: row.time(9)?,
    })
}

/// The part of a request that did not come true. The codes are Cinder's: action, then reason (001:
/// unknown to it, 002: no host could be found).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The storage agent could not make a volume.
    Create,
    /// No pool could take a volume.
    Schedule,
    /// An attachment could not be made.
    Attach,
    /// The storage agent could not make a volume larger.
    Extend,
    /// The storage agent could not take over an LV.
    Manage,
    /// The storage agent could not unmanage a volume.
    Unmanage,
    /// The storage agent could not revert a volume to its snapshot.
    Revert,
    /// The storage agent could not copy a volume to a file.
    Upload,
    /// A host with read-only access reserved a volume, and lost its session for it.
    Reserve,
    /// The storage node of a volume was given up.
    Forget,
}

impl Event {
    fn code(self) -> &'static str {
        match self {
            // Cinder calls the action "create volume from backend storage".
            Self::Create | Self::Manage => "VOLUME_VOLUME_008_001",
            Self::Schedule => "VOLUME_VOLUME_001_002",
            Self::Attach => "VOLUME_VOLUME_002_001",
            Self::Extend => "VOLUME_VOLUME_007_001",
            Self::Unmanage => "VOLUME_VOLUME_006_001",
            // Cinder has no code of its own for these, and keeps no message.
            Self::Revert | Self::Reserve | Self::Forget => "VOLUME_VOLUME_000_001",
            // Cinder's "copy volume to image".
            Self::Upload => "VOLUME_VOLUME_005_001",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Create => "create volume",
            Self::Schedule => "schedule allocate volume",
            Self::Attach => "attach volume",
            Self::Extend => "extend volume",
            Self::Manage => "create volume from backend storage",
            Self::Unmanage => "unmanage volume",
            Self::Revert => "revert volume to snapshot",
            Self::Upload => "copy volume to image",
            Self::Reserve => "reserve volume",
            Self::Forget => "keep volume",
        }
    }
}

impl Event {
    /// The reason for the project, in the place of an agent's own text.
    fn reason(self) -> &'static str {
        match self {
            Self::Create | Self::Schedule => "no storage node could make it",
            Self::Attach => "its host or the volume's storage node refused it, or did not answer in time",
            Self::Extend => "its storage node could not make it larger",
            Self::Manage => "its storage node could not take it over",
            Self::Unmanage => "its storage node could not unmanage it",
            Self::Revert => "its storage node could not do it, and the volume holds what it held",
            Self::Upload => "its storage node could not write the image",
            Self::Reserve => "a host that may only read reserved it, and was cut off",
            Self::Forget => "its storage node was given up, and its data with it",
        }
    }
}

impl Db<'_> {
    /// Keeps a message about a volume for its project. It is logged under its own request id: no
    /// request caused the failure.
    pub(crate) fn keep_message(
        &self,
        event: Event,
        project: &str,
        volume: VolumeId,
        why: &str,
    ) -> Result<(), SqlError> {
        let text = format!("{}: {why}", event.words()).chars().take(TEXT_CHARS_MAX).collect();
        self.put_message(event, project, volume, text)
    }

    /// Keeps a message with an agent's own text, which may name hosts and paths. Only readers of
    /// agents' texts get it; the project gets the event's reason.
    pub(crate) fn keep_refusal(
        &self,
        event: Event,
        project: &str,
        volume: VolumeId,
        why: &str,
    ) -> Result<(), SqlError> {
        let (words, reason) = (event.words(), event.reason());
        let own = format!("{words}: {why}");
        let own = own.chars().filter(|c| *c != OWN).take(TEXT_CHARS_MAX).collect::<String>();
        let text = format!("{words}: {reason}: ask the operator, who sees why{OWN}{own}");
        self.put_message(event, project, volume, text)
    }

    fn put_message(
        &self,
        event: Event,
        project: &str,
        volume: VolumeId,
        text: String,
    ) -> Result<(), SqlError> {
        self.run("DELETE FROM messages WHERE expires_us <= ?1", &values![self.now])?;
        let request = format!("req-{}", Uuid::new_v4());
        tracing::info!(%request, %volume, text = read_as(&text, true), "a message is kept");
        let sql = "INSERT INTO messages (id, project, request, resource_kind, resource_id, event, level, text, created_us, \
                   expires_us) VALUES (?1, ?2, ?3, 'VOLUME', ?4, ?5, 'ERROR', ?6, ?7, ?8)";
        let expires = self.now.checked_add(TTL).unwrap_or(self.now);
        self.run(
            sql,
            &values![Uuid::new_v4(), project, request, volume, event.code(), text, self.now, expires],
        )
        .map(drop)
    }

    /// Keeps a message about an attachment that has just ended in an error.
    pub(crate) fn keep_attach_failed(&self, row: &AttachmentRow) -> Result<(), SqlError> {
        let id: AttachmentId = row.id;
        let why = format!("attachment {id}: {}", row.fault.as_deref().unwrap_or("it was given up"));
        self.keep_refusal(Event::Attach, &row.project, row.volume, &why)
    }

    /// One message of a project, or of any project for admins.
    pub(crate) fn message(&self, id: Uuid, project: Option<&str>) -> Result<Option<Message>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM messages WHERE id = ?1 AND (?2 IS NULL OR project = ?2)");
        self.one(&sql, &values![id, project], message)
    }

    /// Deletes a message.
    pub(crate) fn delete_message(&self, id: Uuid) -> Result<(), SqlError> {
        self.run("DELETE FROM messages WHERE id = ?1", &values![id]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_text_is_read_as_its_reader_may() {
        let kept = format!("attach volume: ask{OWN}attach volume: storage: /dev/x");
        assert_eq!(read_as(&kept, false), "attach volume: ask");
        assert_eq!(read_as(&kept, true), "attach volume: storage: /dev/x");
        // Texts of the controller itself are for everybody.
        for own in [false, true] {
            assert_eq!(read_as("schedule allocate volume: none", own), "schedule allocate volume: none");
        }
    }
}

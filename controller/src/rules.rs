//! The rules of volume types and attachments. Pure: rows in, a verdict out; every transaction asks here.
//!
//! What must never happen here: I/O; a verdict from a report; a mode that is wider than somebody asked for; a status that
//! is not a function of the attachments and of the operation that runs.

use std::collections::BTreeMap;

use mooring_model::{AttachmentId, Iqn, Mode, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::{AttachStatus, AttachmentStatus, VolumeStatus};

/// The extra spec that makes a type's volumes shareable.
pub const MULTIATTACH: &str = "multiattach";

/// An operation that runs on a volume, or how it ended. Kept apart from the derived status, so that neither loses the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Its agent makes it.
    Creating,
    /// Its agent wipes it.
    Deleting,
    /// It could not be made.
    Error,
    /// It could not be deleted.
    ErrorDeleting,
}

impl Operation {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Creating, Self::Deleting, Self::Error, Self::ErrorDeleting];

    /// What the volume's status is while it lasts.
    pub const fn status(self) -> VolumeStatus {
        match self {
            Self::Creating => VolumeStatus::Creating,
            Self::Deleting => VolumeStatus::Deleting,
            Self::Error => VolumeStatus::Error,
            Self::ErrorDeleting => VolumeStatus::ErrorDeleting,
        }
    }

    /// From the word of its status.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.status().as_str() == word)
    }
}

/// What the rules look at of an attachment that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// Its id.
    pub id: AttachmentId,
    /// Where it stands.
    pub status: AttachmentStatus,
    /// Its server.
    pub instance: Option<Uuid>,
    /// Its mode.
    pub mode: Mode,
    /// Its nexus, once it has one.
    pub initiator: Option<Iqn>,
    /// Its host, once it has one.
    pub host: Option<String>,
    /// The grant of its nexus is still wanted for it.
    pub granted: bool,
}

/// Whether a type's volumes may be attached more than once: exactly `<is> True` in any spelling of its letters and blanks;
/// anything else is no. The one place where this is read.
pub fn is_multiattach(specs: &BTreeMap<String, String>) -> bool {
    specs.get(MULTIATTACH).is_some_and(|spec| {
        let mut words = spec.split_whitespace();
        let is = words.next().is_some_and(|word| word.eq_ignore_ascii_case("<is>"));
        let yes = words.next().is_some_and(|word| word.eq_ignore_ascii_case("true"));
        is && yes && words.next().is_none()
    })
}

/// Whether extra specs can stand together.
pub fn check_specs(specs: &BTreeMap<String, String>) -> Result<(), String> {
    let cacheable = specs.get("cacheable").is_some_and(|spec| {
        let last = spec.split_whitespace().next_back().unwrap_or_default();
        ["true", "yes", "1", "on"].iter().any(|word| last.eq_ignore_ascii_case(word))
    });
    // Two hosts with a cache each would read what the other has overwritten.
    if cacheable && is_multiattach(specs) {
        return Err("Invalid volume type: cacheable and multiattach cannot be set together.".to_owned());
    }
    Ok(())
}

/// The status of a volume, from its attachments: attached over attaching over detaching over reserved. What is in error
/// does not count. The operation that runs, if one does, wins over the derived word.
pub fn derive(
    operation: Option<Operation>,
    attachments: impl IntoIterator<Item = AttachmentStatus>,
) -> (VolumeStatus, AttachStatus) {
    let rank = |status| match status {
        AttachmentStatus::Attached => 4,
        AttachmentStatus::Attaching => 3,
        AttachmentStatus::Detaching => 2,
        AttachmentStatus::Reserved => 1,
        AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching => 0,
    };
    let (status, attach) = match attachments.into_iter().map(rank).max().unwrap_or(0) {
        4 => (VolumeStatus::InUse, AttachStatus::Attached),
        3 => (VolumeStatus::Attaching, AttachStatus::Attaching),
        2 => (VolumeStatus::Detaching, AttachStatus::Detaching),
        1 => (VolumeStatus::Reserved, AttachStatus::Reserved),
        _ => (VolumeStatus::Available, AttachStatus::Detached),
    };
    (operation.map_or(status, Operation::status), attach)
}

/// Whether a further attachment may be reserved. The text is the one that clients know.
pub fn may_attach(
    volume: VolumeId,
    multiattach: bool,
    operation: Option<Operation>,
    existing: &[Existing],
    instance: Option<Uuid>,
) -> Result<(), String> {
    let (status, _) = derive(operation, existing.iter().map(|attachment| attachment.status));
    let allowed = if multiattach { "available or in-use or downloading" } else { "available or downloading" };
    let refused = || {
        format!(
            "Invalid volume: Volume {volume} status must be {allowed} to reserve, but the current status is {status}."
        )
    };
    if operation.is_some() {
        return Err(refused());
    }
    // What could not be attached holds nothing. What could not be detached may still reach the disk.
    let mut others =
        existing.iter().filter(|other| other.status != AttachmentStatus::ErrorAttaching).peekable();
    if multiattach || others.peek().is_none() {
        return Ok(());
    }
    // A server that moves is attached on both hosts for a while.
    if instance.is_some() && others.all(|other| other.instance == instance) {
        return Ok(());
    }
    Err(refused())
}

/// Whether an attachment may be connected from this nexus. `own` is itself, when it is there already.
pub fn may_connect(
    own: Option<AttachmentId>,
    instance: Option<Uuid>,
    initiator: &Iqn,
    host: Option<&str>,
    existing: &[Existing],
) -> Result<(), String> {
    for other in existing.iter().filter(|other| Some(other.id) != own) {
        let same_nexus = other.initiator.as_ref() == Some(initiator);
        let going =
            other.status == AttachmentStatus::Detaching || other.status == AttachmentStatus::ErrorAttaching;
        if same_nexus && going && !other.granted {
            return Err(format!(
                "the access of {initiator} is being taken away for attachment {}: try again when that is done",
                other.id
            ));
        }
        if instance.is_some() && other.instance == instance && host.is_some() && other.host.as_deref() == host
        {
            return Err(format!(
                "attachment {} already connects this server on host {}: duplicate connectors",
                other.id,
                host.unwrap_or_default()
            ));
        }
    }
    Ok(())
}

/// The mode of a new attachment: the argument, else the connector's, else that of a sibling of the same server, else rw.
pub fn mode(
    argument: Option<Mode>,
    connector: Option<&Map<String, Value>>,
    instance: Option<Uuid>,
    existing: &[Existing],
) -> Result<Mode, String> {
    if let Some(mode) = argument {
        return Ok(mode);
    }
    // Clients send a missing mode as JSON null or as its text.
    match connector.and_then(|connector| connector.get("mode")) {
        Some(Value::String(word)) if word != "null" => {
            return word.parse().map_err(|error: mooring_model::ParseModeError| {
                format!("Invalid input received: connector mode: {error}")
            });
        }
        None | Some(Value::Null | Value::String(_)) => {}
        Some(_) => return Err("Invalid input received: connector mode: want rw or ro".to_owned()),
    }
    let sibling = existing.iter().find(|other| instance.is_some() && other.instance == instance);
    Ok(sibling.map_or(Mode::ReadWrite, |sibling| sibling.mode))
}

/// What a nexus may do: rw if any of its attachments is.
pub fn effective_mode(modes: impl IntoIterator<Item = Mode>) -> Option<Mode> {
    modes.into_iter().max()
}

/// Whether one attachment can be forced away alone: the nexus goes as a whole.
pub fn may_force(id: AttachmentId, initiator: &Iqn, existing: &[Existing]) -> Result<(), String> {
    let shares =
        |other: &&Existing| other.id != id && other.initiator.as_ref() == Some(initiator) && other.granted;
    match existing.iter().find(shares) {
        None => Ok(()),
        Some(other) => Err(format!(
            "attachment {} shares the access of {initiator} to this volume: force cuts both; detach that one first",
            other.id
        )),
    }
}

/// The initiator of a client's connector.
pub fn initiator(connector: &Map<String, Value>) -> Result<Iqn, String> {
    let missing = || {
        "Invalid input received: the connector has no initiator: iSCSI needs the host's initiator name"
            .to_owned()
    };
    let text = connector.get("initiator").and_then(Value::as_str).ok_or_else(missing)?;
    // Names are compared without case, and the kernel's are lower case.
    text.to_ascii_lowercase()
        .parse()
        .map_err(|error| format!("Invalid input received: connector initiator: {error}"))
}

/// A text of a connector.
pub fn text_of(connector: &Map<String, Value>, key: &str) -> Option<String> {
    connector.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

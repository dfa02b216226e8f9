//! The rules of volume types and attachments. Pure: rows in, a verdict out; every transaction asks
//! here.
//!
//! This module decides whether an attachment may be made and connected, and which status follows.
//! The others: `mode` decides who may write, `detach` what may be detached and what goes with it,
//! `transport` the transport and `numbers` the LUN, `types` and `tuning` the values of extra specs,
//! `retype` the changes of a volume's type.
//!
//! What must never happen here: I/O; a verdict from a report; a mode wider than requested; a status
//! that is not a function of the attachments and of the running operation.

pub mod cache;
mod detach;
mod mode;
pub mod numbers;
pub(crate) mod promised;
pub mod retype;
pub mod specs;
pub mod transport;
pub mod tuning;
pub mod types;

use mooring_model::{AttachmentId, Mode, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

pub use self::detach::{Deletion, deletion_allowed, may_force};
pub use self::mode::{effective_mode, may_mix, mode, of_connector};
pub use self::types::{MULTIATTACH, check_specs, is_multiattach};
use crate::domain::{AttachStatus, AttachViolation, AttachmentStatus, RuleViolation, VolumeStatus};
use crate::initiators::Initiators;

/// An operation that runs on a volume, or how it ended. Kept apart from the derived status, so that
/// neither loses the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The agent creates the volume.
    Creating,
    /// The agent extends the volume, which is there all the while.
    Extending,
    /// The agent wipes and removes the volume.
    Deleting,
    /// The agent makes the volume from an existing logical volume.
    Managing,
    /// The agent unmanages the volume: its logical volume stays, and belongs to nobody.
    Unmanaging,
    /// The agent reverts the volume to its newest snapshot.
    Reverting,
    /// A snapshot whose volume is being reverted to it.
    Restoring,
    /// The agent copies the volume to a file.
    Uploading,
    /// The volume could not be created.
    Error,
    /// The volume could not be extended, and is as it was.
    ErrorExtending,
    /// The volume could not be deleted.
    ErrorDeleting,
    /// The logical volume could not become the volume, and is as it was.
    ErrorManaging,
    /// The agent could not unmanage the volume.
    ErrorUnmanaging,
    /// A word that this release does not know: a later one has begun the operation. Nothing is
    /// done about the volume.
    Unknown,
}

impl Operation {
    /// All operations that have a word of their own.
    pub const ALL: [Self; 13] = [
        Self::Creating,
        Self::Extending,
        Self::Deleting,
        Self::Managing,
        Self::Unmanaging,
        Self::Reverting,
        Self::Restoring,
        Self::Uploading,
        Self::Error,
        Self::ErrorExtending,
        Self::ErrorDeleting,
        Self::ErrorManaging,
        Self::ErrorUnmanaging,
    ];

    /// Returns the volume's status during the operation.
    pub const fn status(self) -> VolumeStatus {
        match self {
            Self::Creating => VolumeStatus::Creating,
            Self::Extending => VolumeStatus::Extending,
            Self::Deleting => VolumeStatus::Deleting,
            Self::Managing => VolumeStatus::Managing,
            Self::Unmanaging => VolumeStatus::Unmanaging,
            Self::Reverting => VolumeStatus::Reverting,
            Self::Restoring => VolumeStatus::Restoring,
            Self::Uploading => VolumeStatus::Uploading,
            Self::Error | Self::Unknown => VolumeStatus::Error,
            Self::ErrorExtending => VolumeStatus::ErrorExtending,
            Self::ErrorDeleting => VolumeStatus::ErrorDeleting,
            Self::ErrorManaging => VolumeStatus::ErrorManaging,
            Self::ErrorUnmanaging => VolumeStatus::ErrorUnmanaging,
        }
    }

    /// Returns `true` if the volume is there and served during the operation: access to it may
    /// change.
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Extending | Self::ErrorExtending)
    }

    /// Returns `true` if the volume is to be made, and was not there yet.
    pub const fn is_coming(self) -> bool {
        matches!(self, Self::Creating | Self::Error | Self::Managing | Self::ErrorManaging)
    }

    /// Returns `true` if the volume is to go, or could not go.
    pub const fn is_going(self) -> bool {
        self.is_destroying() || matches!(self, Self::Unmanaging | Self::ErrorUnmanaging)
    }

    /// Returns `true` if its data is to go, too.
    pub const fn is_destroying(self) -> bool {
        matches!(self, Self::Deleting | Self::ErrorDeleting)
    }

    /// Reads the word of a status. `None`: no operation has it.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.status().as_str() == word)
    }

    /// Reads a stored word. One that no operation has stands for an unknown operation.
    pub fn from_stored(word: &str) -> Self {
        Self::from_word(word).unwrap_or(Self::Unknown)
    }
}

/// Facts about an existing attachment that the rules look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// Id of the attachment.
    pub id: AttachmentId,
    /// Status of the attachment.
    pub status: AttachmentStatus,
    /// The attachment's server.
    pub instance: Option<Uuid>,
    /// Mode of the attachment.
    pub mode: Mode,
    /// The attachment's nexus, once it has one.
    pub initiator: Option<Initiators>,
    /// The attachment's host, once it has one.
    pub host: Option<String>,
    /// `true`: the attachment still wants the grant of its nexus.
    pub wants_grant: bool,
}

impl Existing {
    /// Returns `true` if it reaches the volume, or is meant to. One whose attach failed counts only
    /// while it has its grant.
    pub fn is_live(&self) -> bool {
        self.wants_grant
            || matches!(
                self.status,
                AttachmentStatus::Reserved | AttachmentStatus::Attaching | AttachmentStatus::Attached
            )
    }

    /// Returns `true` if it has a name of this host, and so shares its nexus.
    pub fn shares(&self, initiator: &Initiators) -> bool {
        self.initiator.as_ref().is_some_and(|own| own.meets(initiator))
    }

    /// Returns `true` if it is on its way out, or its attach failed.
    pub fn is_leaving(&self) -> bool {
        matches!(
            self.status,
            AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching
        )
    }
}

/// Returns the status of a volume from its attachments: attached over attaching over detaching over
/// reserved. Attachments in error do not count. A running operation wins over the derived status.
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

/// Checks that a further attachment may be reserved. A volume that grows, or whose growth failed,
/// is served with its old size meanwhile and takes attachments like any other.
///
/// `held`: `os-begin_detaching` was called on a volume with several attachments and is not undone.
/// The call names none of them, so nobody knows which one goes; a server without an attachment
/// waits until that is settled.
pub fn may_attach(
    volume: VolumeId,
    multiattach: bool,
    operation: Option<Operation>,
    existing: &[Existing],
    instance: Option<Uuid>,
    held: bool,
) -> Result<(), RuleViolation> {
    let prevents = operation.filter(|running| !running.is_served());
    let (status, _) = derive(prevents, existing.iter().map(|attachment| attachment.status));
    // Announcements are no attachments: the caller names them.
    let announced = 0;
    let refused =
        || RuleViolation::Attach(AttachViolation::NotAttachable { volume, multiattach, status, announced });
    if prevents.is_some() {
        return Err(refused());
    }
    // A failed attach holds nothing. A failed detach may still reach the disk.
    let mut others =
        existing.iter().filter(|other| other.status != AttachmentStatus::ErrorAttaching).peekable();
    if held && !others.clone().any(|other| instance.is_some() && other.instance == instance) {
        return Err(RuleViolation::Attach(AttachViolation::DetachAnnounced { volume }));
    }
    if multiattach || others.peek().is_none() {
        return Ok(());
    }
    // A server that moves is attached on both hosts for a while.
    if instance.is_some() && others.all(|other| other.instance == instance) {
        return Ok(());
    }
    Err(refused())
}

/// Returns `true` if a further attachment needs the policy `volume:multiattach_bootable_volume`:
/// the volume is shared and bootable, and has an attachment already, if only a reservation. Called
/// in the transaction that inserts the attachment: otherwise two at a time would not see each
/// other.
pub fn bootable_multiattach(multiattach: bool, bootable: bool, existing: &[Existing]) -> bool {
    multiattach && bootable && existing.iter().any(|other| other.status != AttachmentStatus::ErrorAttaching)
}

/// Checks that an attachment may be connected from this nexus. `own`: the attachment itself, if it
/// exists already.
pub fn may_connect(
    own: Option<AttachmentId>,
    instance: Option<Uuid>,
    initiator: &Initiators,
    host: Option<&str>,
    existing: &[Existing],
) -> Result<(), RuleViolation> {
    for other in existing.iter().filter(|other| Some(other.id) != own) {
        let same_nexus = other.shares(initiator);
        let going =
            other.status == AttachmentStatus::Detaching || other.status == AttachmentStatus::ErrorAttaching;
        if same_nexus && going && !other.wants_grant {
            return Err(RuleViolation::Attach(AttachViolation::AccessGoing {
                initiator: initiator.clone(),
                other: other.id,
            }));
        }
        if instance.is_some() && other.instance == instance && host.is_some() && other.host.as_deref() == host
        {
            let host = host.unwrap_or_default().to_owned();
            return Err(RuleViolation::Attach(AttachViolation::DuplicateConnector { other: other.id, host }));
        }
    }
    Ok(())
}

/// Returns a text of a connector. `None`: it is missing or empty.
pub fn text_of(connector: &Map<String, Value>, key: &str) -> Option<String> {
    connector.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

//! The rules of volume types and attachments. Pure: rows in, a verdict out; every transaction asks here.
//!
//! Here is what an attachment needs to be made and connected, and the status that follows. `mode` says who may write, `detach`
//! who may be cut off and what goes along, `transport` over what a host reaches a volume and `numbers` under which LUN, `types` and
//! `tuning` what extra specs may say, `retype` when a volume may change its type.
//!
//! What must never happen here: I/O; a verdict from a report; a mode that is wider than somebody asked for; a status that
//! is not a function of the attachments and of the operation that runs.

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
pub use self::mode::{effective_mode, is_readonly, may_mix, mode, of_connector};
pub use self::types::{MULTIATTACH, check_specs, is_multiattach};
use crate::domain::{AttachStatus, AttachViolation, AttachmentStatus, RuleViolation, VolumeStatus};
use crate::initiators::Initiators;

/// An operation that runs on a volume, or how it ended. Kept apart from the derived status, so that neither loses the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Its agent makes it.
    Creating,
    /// Its agent makes it larger. It is there all the while.
    Extending,
    /// Its agent wipes it.
    Deleting,
    /// Its agent makes it of an LV that is there.
    Managing,
    /// Its agent lets go of it: the LV stays, and is nobody's.
    Unmanaging,
    /// Its agent makes it what its newest snapshot holds.
    Reverting,
    /// A snapshot: its volume is being reverted to it.
    Restoring,
    /// Its agent copies it to a file.
    Uploading,
    /// It could not be made.
    Error,
    /// It could not be made larger. It is there as it was.
    ErrorExtending,
    /// It could not be deleted.
    ErrorDeleting,
    /// The LV could not become the volume, and is as it was.
    ErrorManaging,
    /// Its agent could not let go of it.
    ErrorUnmanaging,
}

impl Operation {
    /// Every one.
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

    /// What the volume's status is while it lasts.
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
            Self::Error => VolumeStatus::Error,
            Self::ErrorExtending => VolumeStatus::ErrorExtending,
            Self::ErrorDeleting => VolumeStatus::ErrorDeleting,
            Self::ErrorManaging => VolumeStatus::ErrorManaging,
            Self::ErrorUnmanaging => VolumeStatus::ErrorUnmanaging,
        }
    }

    /// Whether the volume is there and served while it lasts, as without any operation: who reaches it may change.
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Extending | Self::ErrorExtending)
    }

    /// Whether it is to be there, and was not there yet.
    pub const fn is_coming(self) -> bool {
        matches!(self, Self::Creating | Self::Error | Self::Managing | Self::ErrorManaging)
    }

    /// Whether it is on its way out, or stays against the wish.
    pub const fn is_going(self) -> bool {
        self.is_destroying() || matches!(self, Self::Unmanaging | Self::ErrorUnmanaging)
    }

    /// Whether its data is to go, too.
    pub const fn is_destroying(self) -> bool {
        matches!(self, Self::Deleting | Self::ErrorDeleting)
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
    pub initiator: Option<Initiators>,
    /// Its host, once it has one.
    pub host: Option<String>,
    /// The grant of its nexus is still wanted for it.
    pub granted: bool,
}

impl Existing {
    /// It reaches the volume, or is meant to. What could not be attached counts only while its grant is not gone.
    pub fn is_live(&self) -> bool {
        self.granted
            || matches!(
                self.status,
                AttachmentStatus::Reserved | AttachmentStatus::Attaching | AttachmentStatus::Attached
            )
    }

    /// It has a name of this host: the nexus of that one is its own, too.
    pub fn shares(&self, initiator: &Initiators) -> bool {
        self.initiator.as_ref().is_some_and(|own| own.meets(initiator))
    }

    /// It is on its way out, or never came in.
    pub fn is_leaving(&self) -> bool {
        matches!(
            self.status,
            AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching
        )
    }
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

/// Says whether a further attachment may be reserved.
///
/// `held`: `os-begin_detaching` was called on a volume with several attachments and is not undone. The call names none of
/// them, so nobody knows which one goes; who has none yet waits until that is settled.
pub fn may_attach(
    volume: VolumeId,
    multiattach: bool,
    operation: Option<Operation>,
    existing: &[Existing],
    instance: Option<Uuid>,
    held: bool,
) -> Result<(), RuleViolation> {
    let (status, _) = derive(operation, existing.iter().map(|attachment| attachment.status));
    let refused = || RuleViolation::Attach(AttachViolation::NotAttachable { volume, multiattach, status });
    if operation.is_some() {
        return Err(refused());
    }
    // What could not be attached holds nothing. What could not be detached may still reach the disk.
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

/// Returns `true` if a further attachment needs the policy `volume:multiattach_bootable_volume`: the volume is shared and bootable, and
/// somebody holds it already, if only a reservation. To be asked in the transaction that inserts the attachment, or of
/// two at a time neither would see the other.
pub fn bootable_multiattach(multiattach: bool, bootable: bool, existing: &[Existing]) -> bool {
    multiattach && bootable && existing.iter().any(|other| other.status != AttachmentStatus::ErrorAttaching)
}

/// Says whether an attachment may be connected from this nexus. `own` is itself, when it is there already.
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
        if same_nexus && going && !other.granted {
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

/// A text of a connector.
pub fn text_of(connector: &Map<String, Value>, key: &str) -> Option<String> {
    connector.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

//! Violations of the rules of volume types and attachments: what a request breaks, as data.
//!
//! The rules are in [`crate::rules`]. The Block Storage API's sentences are made where it answers,
//! in `http`.
//!
//! What must never happen here: a sentence; a secret.

use mooring_model::{AttachmentId, Lun, Mode, ParseTuningValueError, TuningKey, VolumeId, Wwpn};
use uuid::Uuid;

use super::{AttachmentStatus, Transport, VolumeStatus};
use crate::initiators::Initiators;

/// A rule of volume types or attachments that a request breaks, with the values that break it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleViolation {
    /// A rule of extra specs.
    Spec(SpecViolation),
    /// A rule of attachments.
    Attach(AttachViolation),
    /// A rule of connectors.
    Connector(ConnectorViolation),
    /// A rule of retypes.
    Retype(RetypeViolation),
    /// A rule of quotas.
    Quota(QuotaViolation),
}

impl RuleViolation {
    /// Adds the number of announced attachments, if the volume cannot be attached.
    #[must_use]
    pub(crate) fn with_announced(mut self, count: u32) -> Self {
        if let Self::Attach(AttachViolation::NotAttachable { announced, .. }) = &mut self {
            *announced = count;
        }
        self
    }
}

/// A kind of resource that quotas limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Volumes.
    Volumes,
    /// Snapshots.
    Snapshots,
    /// Backups.
    Backups,
    /// Volume groups.
    Groups,
    /// GiB of volumes and snapshots.
    Gigabytes,
    /// GiB of backups.
    BackupGigabytes,
}

/// A change that a quota does not allow, or a limit of a project that cannot be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaViolation {
    /// A single volume would be larger than the limit per volume.
    VolumeTooLarge {
        /// Size of the volume, in GiB.
        size_gib: u64,
        /// The limit, in GiB.
        most: u64,
    },
    /// The project would have more than its limit.
    Exceeded {
        /// The kind of resource.
        resource: Resource,
        /// The quota's name in the API.
        key: String,
        /// Amount that is asked for, in the quota's unit.
        more: u64,
        /// The limit, in the quota's unit.
        most: u64,
        /// Present usage of the project, in the quota's unit.
        used: u64,
    },
    /// The limit is below what the project uses.
    LimitBelowUsage {
        /// The quota's name in the API.
        key: String,
        /// Present usage of the project, in the quota's unit.
        used: u64,
        /// The limit that is asked for, as the API has it.
        limit: i64,
    },
}

/// The reason why no agent takes the value of an extra spec about sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TuningFault {
    /// The setting is a flag, and the value is no boolean.
    NoFlag,
    /// The value is none of those that the setting allows.
    NotAllowed(ParseTuningValueError),
}

/// Extra specs of a volume type that cannot be, or a volume that they do not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecViolation {
    /// An extra spec that the control plane reads as a boolean is none.
    NoBoolean {
        /// The extra spec.
        key: &'static str,
        /// Value of the extra spec, cut short.
        value: String,
    },
    /// An extra spec that limits sizes is no whole number.
    NoSize {
        /// The extra spec.
        key: &'static str,
        /// Value of the extra spec, cut short.
        value: String,
    },
    /// The extra spec with the cache flag is neither on nor off.
    NoCacheFlag {
        /// Value of the extra spec, cut short.
        value: String,
    },
    /// There is no extra spec of this name under Mooring's own prefix.
    Unknown {
        /// The extra spec, cut short.
        key: String,
    },
    /// No agent takes this value of an extra spec about sessions.
    BadTuning {
        /// Setting that the extra spec makes.
        key: TuningKey,
        /// Value of the extra spec, cut short.
        value: String,
        /// The reason why no agent takes the value.
        why: TuningFault,
    },
    /// Extra specs about sessions contradict each other.
    TuningContradicts {
        /// The one that is wrong.
        key: TuningKey,
        /// How it is wrong.
        why: String,
    },
    /// A type cannot be both cacheable and shared.
    CacheableAndShared,
    /// Volumes cannot be both encrypted and shared.
    EncryptedAndShared,
    /// A type cannot be both encrypted and shared.
    TypeEncryptedAndShared,
    /// A type's smallest volume is larger than its largest one.
    SizesCrossed {
        /// The smallest volume, in GiB.
        least: u32,
        /// The largest volume, in GiB.
        most: u32,
    },
    /// A volume is smaller than its type allows.
    TooSmall {
        /// Size of the volume, in GiB.
        size_gib: u32,
        /// The smallest volume of the type, in GiB.
        least: u32,
        /// The type's name.
        type_name: String,
    },
    /// A volume is larger than its type allows.
    TooLarge {
        /// Size of the volume, in GiB.
        size_gib: u32,
        /// The largest volume of the type, in GiB.
        most: u32,
        /// The type's name.
        type_name: String,
    },
}

/// An attachment that cannot be made, changed or taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachViolation {
    /// The volume's `readonly` flag is set, and somebody asks to write.
    ReadOnlyVolume,
    /// A type that wants one mode for all attachments of a host has two there.
    MixedModes {
        /// The attachment that is there.
        other: AttachmentId,
        /// The mode of that one.
        other_mode: Mode,
        /// The host.
        initiator: Initiators,
        /// The mode that is asked for.
        mode: Mode,
    },
    /// The volume's status allows no further attachment.
    NotAttachable {
        /// The volume.
        volume: VolumeId,
        /// True if the volume can be shared.
        multiattach: bool,
        /// Status of the volume.
        status: VolumeStatus,
        /// Number of attachments that `os-reserve` announced, and that have not come.
        announced: u32,
    },
    /// A detach was announced for the volume, and nobody knows of which attachment.
    DetachAnnounced {
        /// The volume.
        volume: VolumeId,
    },
    /// The host's access is being taken away for another attachment.
    AccessGoing {
        /// The host.
        initiator: Initiators,
        /// The attachment that goes.
        other: AttachmentId,
    },
    /// Another attachment connects the same server on the same host.
    DuplicateConnector {
        /// That attachment.
        other: AttachmentId,
        /// The host.
        host: String,
    },
    /// A forced detach would cut off another attachment that is in use.
    SharedAccess {
        /// The attachment that is forced.
        id: AttachmentId,
        /// The attachment in use.
        other: AttachmentId,
        /// The status of that one.
        status: AttachmentStatus,
        /// The host of both.
        initiator: Initiators,
    },
    /// A server may use the disk: only the compute service detaches it.
    ServerUsesIt {
        /// The server.
        instance: Uuid,
        /// False if the storage agent does not say whether a session is live.
        sessions_known: bool,
    },
    /// A host's port sees another volume under the LUN at which its other ports see this one.
    LunTaken {
        /// The volume.
        volume: VolumeId,
        /// LUN of the volume at the other ports.
        lun: Lun,
        /// The port.
        port: Wwpn,
        /// The volume that the port sees there.
        other: VolumeId,
    },
    /// A host's ports see one volume under different LUNs.
    LunsDiffer {
        /// The volume.
        volume: VolumeId,
    },
    /// A host has as many volumes over Fibre Channel as can be told apart.
    NoLunLeft,
}

/// A connector that names no way to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectorViolation {
    /// A connector names a mode that is none.
    Mode {
        /// How it is wrong; `None`: it is no text.
        why: Option<String>,
    },
    /// A connector names no initiator.
    NoInitiator,
    /// A connector's transport is none.
    Transport,
    /// A connector's initiator is no iSCSI name.
    Initiator {
        /// How it is wrong; `None`: it is no text.
        why: Option<String>,
    },
    /// A connector's list has too many names.
    TooManyNames {
        /// The list.
        key: &'static str,
    },
    /// A name in a connector's list is none of Fibre Channel.
    Name {
        /// The list.
        key: &'static str,
        /// How it is wrong; `None`: it is no text.
        why: Option<String>,
    },
    /// A connector has one list of Fibre Channel names without the other.
    HalfFibreChannel {
        /// The list that is there.
        has: &'static str,
        /// The list that is missing.
        lacks: &'static str,
    },
    /// The host, the caller, the type and the storage agent have no transport in common.
    NoCommonTransport {
        /// The transports of the connector.
        offered: Vec<Transport>,
        /// The storage agent's name.
        agent: Box<str>,
        /// The transports of the storage agent.
        served: Vec<Transport>,
        /// The transport that the caller asks for. `None`: any.
        asked: Option<Transport>,
        /// Transport that the volume's type wants, cut short. `None`: it wants none.
        typed: Option<Box<str>>,
        /// Why the host offers no Fibre Channel. `None`: it offers it, or nobody asked for it.
        without_fc: Option<Box<FcFault>>,
    },
}

/// The reason why a host offers no Fibre Channel for a native attachment, which uses one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FcFault {
    /// The host reports no port that is online.
    NoPort {
        /// The host's name.
        host: String,
    },
    /// The host reports several ports that are online.
    SeveralPorts {
        /// The host's name.
        host: String,
        /// The number of these ports.
        count: usize,
    },
}

/// A retype that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetypeViolation {
    /// A retype would make a volume both encrypted and shared.
    Encrypted,
    /// The volume is not where a retype can begin, or the new type is the one that it has.
    State {
        /// The attachment for which the volume does not rest. `None`: no attachment is the reason.
        in_the_way: Option<AttachmentId>,
        /// Number of announced attachments that have no row yet.
        announced: u32,
    },
    /// A retype would change whether the volume is shared while it is not available.
    Shares {
        /// The volume's status.
        status: VolumeStatus,
        /// An attachment that reaches the volume, or moves. `None`: there is none.
        in_the_way: Option<AttachmentId>,
    },
    /// A retype would change how sessions are negotiated while the volume is not available.
    Tunes {
        /// The volume's status.
        status: VolumeStatus,
        /// An attachment that reaches the volume, or moves. `None`: there is none.
        in_the_way: Option<AttachmentId>,
    },
    /// The volume's pool cannot serve the new type.
    PoolCannotServe {
        /// The new type's name.
        type_name: String,
        /// The reason.
        why: String,
        /// True if the caller lets the volume move to another pool.
        may_move: bool,
    },
}

impl From<SpecViolation> for RuleViolation {
    fn from(violation: SpecViolation) -> Self {
        Self::Spec(violation)
    }
}

impl From<AttachViolation> for RuleViolation {
    fn from(violation: AttachViolation) -> Self {
        Self::Attach(violation)
    }
}

impl From<ConnectorViolation> for RuleViolation {
    fn from(violation: ConnectorViolation) -> Self {
        Self::Connector(violation)
    }
}

impl From<RetypeViolation> for RuleViolation {
    fn from(violation: RetypeViolation) -> Self {
        Self::Retype(violation)
    }
}

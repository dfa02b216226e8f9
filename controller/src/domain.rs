//! The records of the control plane, and its callers. Plain data: the rules are in `rules`.

mod audit;
mod enrolment;
mod entry;
mod export;
mod fence;
mod forget;
mod host;
pub(crate) mod host_reports;
mod identity;
mod image;
mod isolation;
mod jobs;
mod manage;
mod place;
mod snapshot;
mod transport;
mod violation;
mod wanted_id;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use mooring_model::{
    AgentId, AttachmentId, ByteSize, Cache, Counters, DiskCheck, Initiator, Mode, Receipt, Reservations,
    SessionReport, Source, VolumeId,
};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::initiators::Initiators;

pub use audit::{AuditCall, AuditEntry, AuditLine, AuditObject, AuditQuery};
pub use enrolment::{
    ControllerTrust, Enrolment, JoinToken, NextAuthority, ParseRolesError, Role, Roles, is_zone,
};
pub use entry::{AgentEntry, EntryEnrolment};
pub use export::{ExportAsk, ExportState, VolumeExport};
pub use fence::{DisputedInitiator, FencePart, FenceState, FencedExport, HostFence, NewFence, UnknownNode};
pub use forget::{HostLoss, ProjectLoss};
pub use host::{
    Health, HealthLevel, HealthReason, Host, HostModule, HostPool, HostReport, HostTransport, ModuleState,
    PortalLink,
};
pub use identity::Identity;
pub use image::HostImage;
pub use isolation::{IsolationChange, VolumeIsolation};
pub use jobs::{HostJobs, Job, Jobs};
pub use manage::{LvReference, ManageVolume, ManageableVolume};
pub use place::VolumePlace;
pub use snapshot::{NewSnapshot, Snapshot, SnapshotAction};
pub use transport::{STORAGE_PROTOCOL, Transport};
pub use violation::{
    AttachViolation, ConnectorViolation, FcFault, QuotaViolation, Resource, RetypeViolation, RuleViolation,
    SpecViolation, TuningFault,
};
pub use wanted_id::{RequestKey, WantedId};

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The project whose objects the request concerns.
    pub project: String,
    /// The user, for the records.
    pub user: String,
    /// In lower case, sorted. [`crate::policy::Policies`] says what they allow.
    pub roles: Vec<String>,
    /// `true` if the rule `context_is_admin` holds: the caller sees all projects' objects.
    pub admin: bool,
    /// `true` with a valid service token: another service (Nova) acts for the user.
    pub service: bool,
    /// The request id `req-<uuid>`, for logs and for the answer's header.
    pub request: String,
}

/// A volume type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeType {
    /// The type's id.
    pub id: Uuid,
    /// The unique name.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// `true` if all projects see it; private types come with type access.
    pub is_public: bool,
    /// Demands and grants; `multiattach` = `<is> True` makes its volumes shareable.
    pub extra_specs: BTreeMap<String, String>,
}

/// The status of a volume, in the words of the Block Storage API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words are the API's")]
pub enum VolumeStatus {
    Creating,
    Available,
    Reserved,
    Attaching,
    InUse,
    Detaching,
    Extending,
    Deleting,
    Managing,
    Unmanaging,
    Reverting,
    Restoring,
    Uploading,
    Error,
    ErrorExtending,
    ErrorDeleting,
    ErrorManaging,
    ErrorUnmanaging,
}

/// The attach status of a volume, derived from its attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words are the API's")]
pub enum AttachStatus {
    Attached,
    Attaching,
    Detaching,
    Reserved,
    Detached,
}

/// The status of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words are the API's")]
pub enum AttachmentStatus {
    Reserved,
    Attaching,
    Attached,
    Detaching,
    ErrorAttaching,
    ErrorDetaching,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The volume's id.
    pub id: VolumeId,
    /// For people; need not be unique.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The size in GiB.
    pub size_gib: u32,
    /// The volume's type.
    pub volume_type: VolumeType,
    /// `true` if hosts may share the volume; copied from the type at creation.
    pub multiattach: bool,
    /// The status, derived on every event, in its transaction.
    pub status: VolumeStatus,
    /// The attach status, derived likewise.
    pub attach_status: AttachStatus,
    /// The project that owns the volume.
    pub project: String,
    /// The user who created the volume.
    pub user: String,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// The place of the volume.
    pub place: VolumePlace,
    /// The time of creation, in UTC.
    pub created_at: SystemTime,
    /// The time of the last change, in UTC.
    pub updated_at: Option<SystemTime>,
    /// The reason for an error status.
    pub fault: Option<String>,
    /// The volume's attachments, oldest first.
    pub attachments: Vec<Attached>,
    /// `true` if a server may boot from it.
    pub bootable: bool,
    /// The readonly flag; `None` if it was never set.
    pub readonly: Option<bool>,
    /// The source of the volume's contents.
    pub source: Option<Source>,
}

/// An attachment as its volume shows it, without connection info: a list reads no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The server, if there is one.
    pub instance: Option<Uuid>,
    /// The access mode.
    pub mode: Mode,
    /// The status.
    pub status: AttachmentStatus,
    /// The host's name.
    pub attached_host: Option<String>,
    /// The device path on the server.
    pub mountpoint: Option<String>,
    /// The time at which it became `attached`.
    pub attached_at: Option<SystemTime>,
}

/// An attachment. Its `Debug` leaves out connection info, which has the CHAP secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The attachment's volume.
    pub volume: VolumeId,
    /// The server, if there is one.
    pub instance: Option<Uuid>,
    /// The access mode.
    pub mode: Mode,
    /// The desired page cache of the disk. A client that logs in by itself may ignore it.
    pub cache: Cache,
    /// The status.
    pub status: AttachmentStatus,
    /// The client's connector, with its `initiator`, `host` and `mountpoint`; `None` while
    /// reserved.
    pub connector: Option<Map<String, Value>>,
    /// The initiators of the nexus, once there is a connector.
    pub initiator: Option<Initiators>,
    /// The host's name, from the connector or of the native host.
    pub attached_host: Option<String>,
    /// The device path on the server.
    pub mountpoint: Option<String>,
    /// The enrolled agent that attaches it; `None` for a client that logs in by itself.
    pub native: Option<AgentId>,
    /// Connection info, flat (`driver_volume_type`, `target_iqn` or `target_wwn`, `access_mode`, …,
    /// with the CHAP secret); `None` until the grant is known to be in the kernel.
    pub connection_info: Option<Map<String, Value>>,
    /// The time of creation, in UTC.
    pub created_at: SystemTime,
    /// The time at which it became `attached`.
    pub attached_at: Option<SystemTime>,
    /// The reason for an error status, or for a wait.
    pub fault: Option<String>,
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("id", &self.id)
            .field("volume", &self.volume)
            .field("instance", &self.instance)
            .field("mode", &self.mode)
            .field("status", &self.status)
            .field("initiator", &self.initiator)
            .field("attached_host", &self.attached_host)
            .field("native", &self.native)
            .field("connected", &self.connection_info.is_some())
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// The party that the rotation of an attachment's secrets waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotating {
    /// The attachment's host: it has to know the new secret beside the old one.
    Host,
    /// The attachment's target: it has to have the new secret.
    Target,
}

impl Rotating {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Target => "target",
        }
    }
}

/// The live state of an attachment, from both agents' last reports; never stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentLive {
    /// The attachment.
    pub attachment: Attachment,
    /// The volume's name.
    pub volume_name: Option<String>,
    /// The mode that the target enforces; `None` without a grant. Rw if any of its attachments is.
    pub effective_mode: Option<Mode>,
    /// `true` if the initiator is logged in; `None` without the storage agent's report.
    pub session: Option<bool>,
    /// The target's view of the nexus; `None` without a grant or the storage agent's report.
    pub nexus: Option<NexusLive>,
    /// The page cache in force at a native host; `None` if it is unknown or there is no verified
    /// disk.
    pub cache_in_force: Option<Cache>,
    /// The phase of the connection at a native host (`connecting`, `ready`, …).
    pub host_phase: Option<String>,
    /// The stable device path on a native host.
    pub device_path: Option<String>,
    /// The kernel's name of the disk on a native host.
    pub disk: Option<String>,
    /// The rotation of the secrets in progress, if there is one.
    pub secret_rotation: Option<Rotating>,
    /// The time at which the last rotation of the secrets ended.
    pub secret_rotated_at: Option<SystemTime>,
    /// Problems from both agents, as `agent: text`.
    pub problems: Vec<String>,
    /// Completed steps (`granted`, `logged_in`, `device_ready`, `done`), in ms since the request.
    pub steps_ms: Vec<(String, u64)>,
    /// A number for long polls: it changes when anything above may have changed.
    pub revision: u64,
}

/// A target's view of one nexus, which attachments of a volume on a host share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NexusLive {
    /// The storage node's name in the configuration.
    pub storage: String,
    /// Sessions with addresses, for permitted callers. None over Fibre Channel: it has logins only.
    pub sessions: Vec<SessionReport>,
    /// Counters since the grant; over Fibre Channel those of all ports together.
    pub counters: Counters,
    /// Sessions of the volume that the kernel counts but does not list; `None` if unknown.
    pub unlisted: Option<u32>,
    /// The time of the agent's look; `None` if it has not looked since its start, or is silent on
    /// it.
    pub looked: Option<SystemTime>,
    /// `true` if the initiator should be logged in and is not.
    pub missing: bool,
}

/// `POST /volumes`, checked only for form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The id, or the key that the id follows from; `None` for any id.
    pub id: Option<WantedId>,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The size in GiB; `None` for the source's size.
    pub size_gib: Option<u32>,
    /// The source of the contents; `None` for zeros.
    pub source: Option<Source>,
    /// A name or id; `None` for the source's type, or `__DEFAULT__`, made with the database.
    pub volume_type: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// Hints about the volume's place.
    pub hints: Hints,
}

/// Hints of a volume's creator about its place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// The availability zone, if it matters.
    pub zone: Option<String>,
    /// Volumes of which one has to share the host; empty if it does not matter.
    pub same_host: Vec<VolumeId>,
    /// Volumes of which none may share the host.
    pub different_host: Vec<VolumeId>,
    /// The image that the volume is copied from, whose host is required.
    pub image: Option<HostImage>,
}

/// The reasons for a volume's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The volume.
    pub volume: VolumeId,
    /// The pool, as `host@lvm#pool`; `None` if no pool could take the volume.
    pub pool: Option<String>,
    /// The volume's availability zone.
    pub zone: String,
    /// The creator's hints.
    pub hints: Hints,
    /// The pools that could not make the volume, in order, with the reasons.
    pub tried: Vec<(String, String)>,
}

/// A pool as it was last reported.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolState {
    /// `host@lvm#pool`.
    pub name: String,
    /// The capabilities, by their keys in the API.
    pub capabilities: Map<String, Value>,
}

/// A filter of pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolFilter {
    /// The type, by name or id, whose volumes the pool could have.
    pub volume_type: Option<String>,
    /// Names, or capabilities with their values.
    pub equal: Vec<(String, String)>,
}

/// An availability zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// The zone's name.
    pub name: String,
    /// `true` if new volumes may be placed there.
    pub available: bool,
}

/// A service as the Block Storage API shows it: a storage agent or the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceState {
    /// The service's name in Cinder: `cinder-volume` or `cinder-scheduler`.
    pub binary: &'static str,
    /// `host@lvm`, or the controller.
    pub host: String,
    /// The service's availability zone.
    pub zone: String,
    /// `true` if the service answers.
    pub up: bool,
    /// `true` if no new volumes may be placed there.
    pub disabled: bool,
    /// The reason for that.
    pub disabled_reason: Option<String>,
    /// The time of its last message.
    pub heard_at: Option<SystemTime>,
}

/// An operator's decision about an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostChange {
    /// New volumes may be placed there again.
    Enable,
    /// No new volumes are placed there, with an optional reason.
    Disable(Option<String>),
    /// Empty the agent: no new volumes are placed there.
    Drain,
    /// Stop emptying the agent.
    Undrain,
}

/// `POST /attachments`, checked only for form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAttachment {
    /// The client's own id, with which it can repeat the request.
    pub id: Option<AttachmentId>,
    /// The volume.
    pub volume: VolumeId,
    /// The server, if there is one.
    pub instance: Option<Uuid>,
    /// The mode; `None` takes the connector's, else that of a sibling of the same instance, else
    /// rw.
    pub mode: Option<Mode>,
    /// The connector.
    pub connector: NewConnector,
}

/// The way in which a new attachment is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewConnector {
    /// The attachment is only reserved.
    None,
    /// A client that logs in by itself.
    Client(Map<String, Value>),
    /// An enrolled host, whose agent the controller drives.
    Native {
        /// The host's name, or its agent's id.
        host: String,
        /// The transport; `None` leaves it to the volume's type and the existing attachments.
        transport: Option<Transport>,
        /// The page cache of the disk; `None` leaves it to the volume's type.
        cache: Option<Cache>,
    },
}

/// A volume in a list by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName {
    /// The volume's id.
    pub id: VolumeId,
    /// For people.
    pub name: Option<String>,
}

/// Sums over volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumesSummary {
    /// The number of volumes.
    pub count: u64,
    /// Their size in GiB.
    pub size_gib: u64,
    /// Each key of their metadata, with its values.
    pub metadata: BTreeMap<String, BTreeSet<String>>,
}

/// A change of a volume's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataChange {
    /// Sets these keys; other keys stay.
    Merge(BTreeMap<String, String>),
    /// Replaces all keys.
    Replace(BTreeMap<String, String>),
    /// Deletes this key.
    Remove(String),
}

/// The reason why something accepted did not come true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message's id.
    pub id: Uuid,
    /// The project that owns the message.
    pub project: String,
    /// The request id `req-<uuid>`, under which the log says more.
    pub request: String,
    /// The kind of object: `VOLUME`.
    pub resource_kind: String,
    /// The id of the object.
    pub resource_id: Option<String>,
    /// The event, as a code that never changes.
    pub event: String,
    /// The level: `ERROR`.
    pub level: String,
    /// For people.
    pub text: String,
    /// The time of creation, in UTC.
    pub created_at: SystemTime,
    /// The time until which the message is kept.
    pub expires_at: SystemTime,
}

/// A storage agent as `os-hosts` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageHost {
    /// `host@lvm`.
    pub name: String,
    /// The agent's availability zone.
    pub zone: String,
    /// `true` if the agent answers.
    pub up: bool,
    /// `true` if new volumes may be placed there.
    pub enabled: bool,
    /// The time of its last message.
    pub heard_at: Option<SystemTime>,
}

/// One project's usage of a storage agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUsage {
    /// The project.
    pub project: String,
    /// The number of its volumes there.
    pub volumes: u64,
    /// The size of those volumes, in GiB.
    pub size_gib: u64,
    /// The number of its snapshots there.
    pub snapshots: u64,
    /// The size of those snapshots' volumes, in GiB.
    pub snapshots_gib: u64,
}

/// A receipt with its attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentReceipt {
    /// The attachment.
    pub attachment: AttachmentId,
    /// The storage agent's receipt; `None` if nothing was ever granted. Of several Fibre Channel
    /// ports' receipts this is the one that proves least, or the last proven one.
    pub receipt: Option<Receipt>,
}

/// The record of one detach: the attachment, the request, and the storage agent's receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachRecord {
    /// The attachment.
    pub attachment: AttachmentId,
    /// The attachment's volume.
    pub volume: VolumeId,
    /// The attachment's project.
    pub project: String,
    /// The initiators of its nexus; `None` if it never had a connector.
    pub initiator: Option<Initiators>,
    /// The attachment's server.
    pub instance: Option<Uuid>,
    /// The attachment's host.
    pub host: Option<String>,
    /// The access mode; `None` in records of earlier releases, like the requester.
    pub mode: Option<Mode>,
    /// `true` if the target revoked first, regardless of the host.
    pub forced: bool,
    /// The requesting user; `None` if it ended by itself.
    pub user: Option<String>,
    /// The request's id.
    pub request: Option<String>,
    /// The time of the request.
    pub asked_at: Option<SystemTime>,
    /// The time at which it was gone; `None` while it is ending.
    pub detached_at: Option<SystemTime>,
    /// The agent's receipt; `None` without a grant, or if another attachment kept the access.
    pub receipt: Option<Receipt>,
    /// Lost bytes: the host's page cache had not written them when its grant was revoked. `None` if
    /// the host has not reported, or was not forced off.
    pub unwritten: Option<ByteSize>,
}

/// The users of an attachment's disk on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentCheck {
    /// The attachment.
    pub attachment: AttachmentId,
    /// The attachment's volume.
    pub volume: VolumeId,
    /// The host that looked.
    pub host: String,
    /// The host's findings.
    pub check: DiskCheck,
}

/// A volume with the facts that only Mooring's own API shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeState {
    /// The volume.
    pub volume: Volume,
    /// The number of attachments that `os-reserve` promised.
    pub reserved: u32,
    /// The number of announced detaches (`os-begin_detaching`) in force.
    pub holds: u32,
    /// The reason why nothing is sent for the volume; `None` unless it is in review.
    pub review: Option<String>,
    /// The volume's long work, as its storage agent now reports it.
    pub job: Option<Job>,
    /// The isolation of the volume, desired or in force.
    pub cut: Option<VolumeIsolation>,
}

/// The registrations and the reservation of a volume, as its storage agent last reported them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReservations {
    /// The volume.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: Option<String>,
    /// The storage node.
    pub storage: String,
    /// The state of the storage node's kernel.
    pub seen: Reservations,
    /// The hosts of known initiators.
    pub hosts: Vec<(Initiator, String)>,
}

/// The older calls for attachments, as actions on a volume, beside `/attachments`.
#[derive(Clone, PartialEq, Eq)]
pub enum AttachAction {
    /// Announces an attachment.
    Reserve,
    /// Takes that announcement back.
    Unreserve,
    /// Announces a detach.
    BeginDetaching,
    /// Takes that announcement back.
    RollDetaching,
    /// Records who has the volume: a server or a host.
    Attach {
        /// The server.
        instance: Option<Uuid>,
        /// The host.
        host: Option<String>,
        /// The device path on the server.
        mountpoint: String,
        /// The access mode.
        mode: Option<Mode>,
    },
    /// Detaches one attachment; without an id, the only one.
    Detach {
        /// The attachment's id.
        attachment: Option<AttachmentId>,
        /// `true` if the target revokes first.
        force: bool,
    },
    /// Grants access to a connector, and answers with connection info.
    InitializeConnection {
        /// The host's connector.
        connector: Map<String, Value>,
    },
    /// Ends the access of a connector.
    TerminateConnection {
        /// The host's connector; `None` for the only one.
        connector: Option<Map<String, Value>>,
    },
}

/// Actions on a volume other than attaching, by operators and by users for themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeAction {
    /// Sets whether servers may start from the volume.
    SetBootable(bool),
    /// Sets the mode of attachments that name none.
    SetReadonly(bool),
    /// Sets a status by an operator's word.
    ResetStatus {
        /// The volume's status.
        status: Option<VolumeStatus>,
        /// `true` if it counts as attached.
        attached: Option<bool>,
    },
    /// Deletes the volume, whatever its status.
    ForceDelete,
    /// Makes the volume larger.
    Extend {
        /// The new size in GiB.
        size_gib: u32,
        /// `true` if it may be in use.
        online: bool,
    },
    /// Reverts the volume to this snapshot; `None`, which is refused, if the request names none.
    Revert(Option<VolumeId>),
}

macro_rules! words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word of the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// Reads the word of the API.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(VolumeStatus {
    Creating => "creating",
    Available => "available",
    Reserved => "reserved",
    Attaching => "attaching",
    InUse => "in-use",
    Detaching => "detaching",
    Extending => "extending",
    Deleting => "deleting",
    Managing => "managing",
    Unmanaging => "unmanaging",
    Reverting => "reverting",
    Restoring => "restoring",
    Uploading => "uploading",
    Error => "error",
    ErrorExtending => "error_extending",
    ErrorDeleting => "error_deleting",
    ErrorManaging => "error_managing",
    ErrorUnmanaging => "error_unmanaging",
});

impl VolumeStatus {
    /// Returns `true` for the statuses of an error.
    pub fn is_error(self) -> bool {
        self.as_str().starts_with("error")
    }
}

words!(AttachStatus {
    Attached => "attached",
    Attaching => "attaching",
    Detaching => "detaching",
    Reserved => "reserved",
    Detached => "detached",
});

words!(AttachmentStatus {
    Reserved => "reserved",
    Attaching => "attaching",
    Attached => "attached",
    Detaching => "detaching",
    ErrorAttaching => "error_attaching",
    ErrorDetaching => "error_detaching",
});

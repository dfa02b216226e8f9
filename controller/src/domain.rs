//! The records of the control plane, and who is asking. Plain data: the rules are in `rules`.

mod audit;
mod cut;
mod enrolment;
mod entry;
mod export;
mod fence;
mod forget;
mod host;
pub(crate) mod host_reports;
mod identity;
mod image;
mod jobs;
mod manage;
mod snapshot;
mod transport;
mod wanted_id;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use mooring_model::{
    AgentId, AttachmentId, ByteSize, Cache, Counters, DiskCheck, Initiator, Mode, Naa, Receipt, Reservations,
    SessionReport, Source, VolumeId,
};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::initiators::Initiators;

pub use audit::{AuditCall, AuditEntry, AuditLine, AuditObject, AuditQuery};
pub use cut::{CutWish, VolumeCut};
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
pub use jobs::{HostJobs, Job, Jobs};
pub use manage::{LvReference, ManageVolume, ManageableVolume};
pub use snapshot::{NewSnapshot, Snapshot};
pub use transport::{STORAGE_PROTOCOL, Transport};
pub use wanted_id::{RequestKey, WantedId};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The project whose objects are meant.
    pub project: String,
    /// The user, for the records.
    pub user: String,
    /// In lower case, sorted. What they allow is said by [`crate::policy::Policies`].
    pub roles: Vec<String>,
    /// The rule `context_is_admin` holds: sees all projects' objects.
    pub admin: bool,
    /// A valid service token came along: another service (Nova) acts for the user.
    pub service: bool,
    /// `req-<uuid>`, for logs and for the answer's header.
    pub request: String,
}

/// A volume type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeType {
    /// Its id.
    pub id: Uuid,
    /// Unique.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// Seen by all projects. (Private types come with type access.)
    pub is_public: bool,
    /// What it demands and grants; `multiattach` = `<is> True` makes its volumes shareable.
    pub extra_specs: BTreeMap<String, String>,
}

/// Where a volume stands, in the words of the Block Storage API.
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

/// Whether a volume is attached, derived from its attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words are the API's")]
pub enum AttachStatus {
    Attached,
    Attaching,
    Detaching,
    Reserved,
    Detached,
}

/// Where an attachment stands.
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
    /// Its id.
    pub id: VolumeId,
    /// For people; need not be unique.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// GiB.
    pub size_gib: u32,
    /// Its type.
    pub volume_type: VolumeType,
    /// Copied from the type at creation; may be shared by hosts.
    pub multiattach: bool,
    /// Derived on every event, in its transaction.
    pub status: VolumeStatus,
    /// Derived likewise.
    pub attach_status: AttachStatus,
    /// Owner.
    pub project: String,
    /// Creator.
    pub user: String,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// The storage agent and pool, as `host@lvm#pool`, once it is placed.
    pub host: Option<String>,
    /// Its availability zone.
    pub zone: String,
    /// UTC.
    pub created_at: SystemTime,
    /// UTC.
    pub updated_at: Option<SystemTime>,
    /// Why its status is an error.
    pub fault: Option<String>,
    /// Those that exist, oldest first.
    pub attachments: Vec<Attached>,
    /// A server may boot from it.
    pub bootable: bool,
    /// The readonly flag; `None`: never said.
    pub readonly: Option<bool>,
    /// The storage agent that serves it.
    pub agent: AgentId,
    /// What it was made from.
    pub source: Option<Source>,
}

/// An attachment as its volume shows it. How its client connects is not in it, so that no secret is read for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its id.
    pub id: AttachmentId,
    /// The server, when there is one.
    pub instance: Option<Uuid>,
    /// What it may do.
    pub mode: Mode,
    /// Where it stands.
    pub status: AttachmentStatus,
    /// The host's name.
    pub attached_host: Option<String>,
    /// Where the server sees it.
    pub mountpoint: Option<String>,
    /// When it became `attached`.
    pub attached_at: Option<SystemTime>,
}

/// An attachment. Its `Debug` leaves out how a client connects: the CHAP secret is in that.
#[derive(Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its id.
    pub id: AttachmentId,
    /// Its volume.
    pub volume: VolumeId,
    /// The server, when there is one.
    pub instance: Option<Uuid>,
    /// What it may do.
    pub mode: Mode,
    /// The page cache of its disk as it is wanted. A client that logs in by itself is told, and does as it likes.
    pub cache: Cache,
    /// Where it stands.
    pub status: AttachmentStatus,
    /// As the client gave it; `None` while it is only reserved. Its `initiator`, `host` and `mountpoint` are read from here.
    pub connector: Option<Map<String, Value>>,
    /// The nexus, once there is a connector.
    pub initiator: Option<Initiators>,
    /// The host's name, as the connector says, or of the native host.
    pub attached_host: Option<String>,
    /// Where the server sees it.
    pub mountpoint: Option<String>,
    /// The enrolled agent that attaches it; `None` for a client that logs in by itself.
    pub native: Option<AgentId>,
    /// How a client connects, flat (`driver_volume_type`, `target_iqn` or `target_wwn`, `access_mode`, …, with the CHAP secret);
    /// `None` until the grant is seen in the kernel.
    pub connection_info: Option<Map<String, Value>>,
    /// UTC.
    pub created_at: SystemTime,
    /// When it became `attached`.
    pub attached_at: Option<SystemTime>,
    /// Why its status is an error, or what it waits for.
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

/// Party that the rotation of an attachment's secrets waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotating {
    /// The attachment's host, to know the new secret beside the old one.
    Host,
    /// The attachment's target, to have the new secret.
    Target,
}

impl Rotating {
    /// As the API says it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Target => "target",
        }
    }
}

/// What is live of an attachment, from the last reports of both agents; never stored beside the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentLive {
    /// The attachment.
    pub attachment: Attachment,
    /// The volume's name.
    pub volume_name: Option<String>,
    /// What the target enforces for its nexus; `None` while nothing is granted. Rw if any attachment of the nexus is.
    pub effective_mode: Option<Mode>,
    /// A session of its initiator is really logged in at the target. `None`: the storage agent's report is missing.
    pub session: Option<bool>,
    /// What the target sees of its nexus; `None`: its storage agent's report is missing, or grants it nothing.
    pub nexus: Option<NexusLive>,
    /// Native: the page cache of the disk as it is in force. `None`: its host has no verified disk, or does not say.
    pub cache_in_force: Option<Cache>,
    /// Native: where its host stands with it (`connecting`, `ready`, …).
    pub host_phase: Option<String>,
    /// Native: the stable path on its host.
    pub device_path: Option<String>,
    /// Native: the kernel's name of the disk there.
    pub disk: Option<String>,
    /// Rotation of the secrets in progress; `None`: none is.
    pub secret_rotation: Option<Rotating>,
    /// When its secrets were rotated last.
    pub secret_rotated_at: Option<SystemTime>,
    /// What went wrong, from both agents, as `agent: text`.
    pub problems: Vec<String>,
    /// Milliseconds since the request came, of the steps that are done: `granted`, `logged_in`, `device_ready`, `done`.
    pub steps_ms: Vec<(String, u64)>,
    /// Changes whenever anything above may have changed: for long polls.
    pub revision: u64,
}

/// What a target sees of one nexus. Attachments of one volume on one host share it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NexusLive {
    /// The storage node, as the configuration calls it.
    pub storage: String,
    /// Its sessions, with addresses: for those who may see them. Over Fibre Channel none: there a target lists logins only.
    pub sessions: Vec<SessionReport>,
    /// What it has done since it was granted. Over Fibre Channel that of all ports together.
    pub counters: Counters,
    /// Sessions of its volume that the kernel counts and does not list, whoever they are of. `None`: not known.
    pub unlisted: Option<u32>,
    /// When the storage agent looked. `None`: not since it was started, or it does not say.
    pub looked: Option<SystemTime>,
    /// It should be logged in and is not.
    pub missing: bool,
}

/// `POST /volumes`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// Its id, or the key that its id follows from. `None`: any id.
    pub id: Option<WantedId>,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// GiB. `None`: as large as what it is made from.
    pub size_gib: Option<u32>,
    /// What it is made from; `None`: it reads as zeros at first.
    pub source: Option<Source>,
    /// Name or id; `None`: that of its source, or the default type (`__DEFAULT__`, made with the database).
    pub volume_type: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// Where it is to be.
    pub hints: Hints,
}

/// What a volume's creator asks of its place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// In this availability zone.
    pub zone: Option<String>,
    /// Where one of these volumes is. Empty: it does not matter.
    pub same_host: Vec<VolumeId>,
    /// Where none of these volumes is.
    pub different_host: Vec<VolumeId>,
    /// Where this image is, which it is copied from.
    pub image: Option<HostImage>,
}

/// How a volume came to its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The volume.
    pub volume: VolumeId,
    /// Its pool, as `host@lvm#pool`; `None`: no pool could take it.
    pub pool: Option<String>,
    /// Its availability zone.
    pub zone: String,
    /// What its creator asked for.
    pub hints: Hints,
    /// The pools that could not make it, in order, and why not.
    pub tried: Vec<(String, String)>,
}

/// A pool as it was last reported.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolState {
    /// `host@lvm#pool`.
    pub name: String,
    /// Its capabilities, by their keys in the API.
    pub capabilities: Map<String, Value>,
}

/// Which pools are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolFilter {
    /// Those that could have volumes of this type, by name or id.
    pub volume_type: Option<String>,
    /// Those with this name, or with a capability of this value.
    pub equal: Vec<(String, String)>,
}

/// An availability zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// New volumes may be placed there.
    pub available: bool,
}

/// A service as the Block Storage API shows it: a storage agent, or what places volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceState {
    /// What does its work in Cinder: `cinder-volume` or `cinder-scheduler`.
    pub binary: &'static str,
    /// `host@lvm`, or the controller.
    pub host: String,
    /// Its availability zone.
    pub zone: String,
    /// It answers.
    pub up: bool,
    /// New volumes may not be placed there.
    pub disabled: bool,
    /// Why.
    pub disabled_reason: Option<String>,
    /// When it was heard last.
    pub heard_at: Option<SystemTime>,
}

/// What an operator says of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostChange {
    /// New volumes may be placed there again.
    Enable,
    /// No new volumes are placed there, and perhaps why.
    Disable(Option<String>),
    /// Its volumes are to go: no new ones are placed there.
    Drain,
    /// They may stay.
    Undrain,
}

/// `POST /attachments`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAttachment {
    /// The client's own id, to be able to repeat the request.
    pub id: Option<AttachmentId>,
    /// Which volume.
    pub volume: VolumeId,
    /// For which server.
    pub instance: Option<Uuid>,
    /// `None`: the connector's, else a sibling's of the same instance, else rw.
    pub mode: Option<Mode>,
    /// How the host reaches it.
    pub connector: NewConnector,
}

/// How an attachment is connected when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewConnector {
    /// Only reserved.
    None,
    /// A client that logs in by itself.
    Client(Map<String, Value>),
    /// An enrolled host: the controller drives its agent.
    Native {
        /// Its name, or its agent's id.
        host: String,
        /// Over what; `None`: as the volume's type and what is there decide.
        transport: Option<Transport>,
        /// The page cache of its disk; `None`: as the volume's type says.
        cache: Option<Cache>,
    },
}

/// A volume in a list that shows no more of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName {
    /// Its id.
    pub id: VolumeId,
    /// For people.
    pub name: Option<String>,
}

/// Volumes in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumesSummary {
    /// How many.
    pub count: u64,
    /// Of all together.
    pub size_gib: u64,
    /// Every key of their metadata, with its values.
    pub metadata: BTreeMap<String, BTreeSet<String>>,
}

/// A change of a volume's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataChange {
    /// These keys are set, others stay.
    Merge(BTreeMap<String, String>),
    /// These are all.
    Replace(BTreeMap<String, String>),
    /// This key goes.
    Remove(String),
}

/// Why something that was accepted did not come true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub project: String,
    /// `req-<uuid>`: under this the log says more.
    pub request: String,
    /// `VOLUME`.
    pub resource_kind: String,
    /// Of which object.
    pub resource_id: Option<String>,
    /// What happened, as a code that never changes.
    pub event: String,
    /// `ERROR`.
    pub level: String,
    /// For people.
    pub text: String,
    /// UTC.
    pub created_at: SystemTime,
    /// It is kept until then.
    pub expires_at: SystemTime,
}

/// A storage agent as `os-hosts` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageHost {
    /// `host@lvm`.
    pub name: String,
    /// Its availability zone.
    pub zone: String,
    /// It answers.
    pub up: bool,
    /// New volumes may be placed there.
    pub enabled: bool,
    /// When it was heard last.
    pub heard_at: Option<SystemTime>,
}

/// What one project has on a storage agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUsage {
    /// The project.
    pub project: String,
    /// Its volumes there.
    pub volumes: u64,
    /// Their size.
    pub size_gib: u64,
    /// Its snapshots there.
    pub snapshots: u64,
    /// The size of their volumes.
    pub snapshots_gib: u64,
}

/// A receipt with its attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentReceipt {
    /// The attachment.
    pub attachment: AttachmentId,
    /// What the storage agent says. `None`: nothing had ever been granted. Of a host that had it at several Fibre Channel ports
    /// there is one for each: this is the one that says least, and of proven ones the last.
    pub receipt: Option<Receipt>,
}

/// The record of one detach: what it was, who asked for its end, and what the storage agent says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachRecord {
    /// The attachment.
    pub attachment: AttachmentId,
    /// Its volume.
    pub volume: VolumeId,
    /// Whose it was.
    pub project: String,
    /// Its nexus; `None`: it never had a connector.
    pub initiator: Option<Initiators>,
    /// Its server.
    pub instance: Option<Uuid>,
    /// Its host.
    pub host: Option<String>,
    /// What it might do. `None` in records of earlier releases, as who asked.
    pub mode: Option<Mode>,
    /// The target revoked first, whatever the host did.
    pub forced: bool,
    /// Who asked for its end; `None`: nobody, it ended by itself.
    pub user: Option<String>,
    /// With which request.
    pub request: Option<String>,
    /// When.
    pub asked_at: Option<SystemTime>,
    /// When it was gone; `None`: it is going still.
    pub detached_at: Option<SystemTime>,
    /// What the storage agent says. `None`: nothing had ever been granted, or another attachment kept the access.
    pub receipt: Option<Receipt>,
    /// Bytes that the page cache of its host held and had not written when it was cut: they are lost. `None`: the host has not
    /// said, or was not cut.
    pub unwritten: Option<ByteSize>,
}

/// Who uses the disk of an attachment on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentCheck {
    /// The attachment.
    pub attachment: AttachmentId,
    /// Its volume.
    pub volume: VolumeId,
    /// The host that has looked.
    pub host: String,
    /// What it has found.
    pub check: DiskCheck,
}

/// A volume with what only Mooring's own API says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeState {
    /// The volume.
    pub volume: Volume,
    /// Attachments that `os-reserve` promised.
    pub reserved: u32,
    /// Detaches that `os-begin_detaching` announced, and that are in force.
    pub holds: u32,
    /// Why nothing is sent for it, if it is in review.
    pub review: Option<String>,
    /// The long work at it, as its storage agent says now.
    pub job: Option<Job>,
    /// That it is cut off from its disk, or is to be.
    pub cut: Option<VolumeCut>,
}

/// Who has registered with a volume and who has reserved it, as its storage agent said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReservations {
    /// The volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: Option<String>,
    /// The storage node.
    pub storage: String,
    /// What its kernel has.
    pub seen: Reservations,
    /// The hosts of the initiators that are known.
    pub hosts: Vec<(Initiator, String)>,
}

/// The older calls for attachments, as actions on a volume. They act on the same attachments as `/attachments`.
#[derive(Clone, PartialEq, Eq)]
pub enum AttachAction {
    /// An attachment is to come.
    Reserve,
    /// It is not to come.
    Unreserve,
    /// A detach is to come.
    BeginDetaching,
    /// It is not to come.
    RollDetaching,
    /// Who has the volume now: a server, or a host.
    Attach {
        /// The server.
        instance: Option<Uuid>,
        /// The host.
        host: Option<String>,
        /// Where it sees the volume.
        mountpoint: String,
        /// What it may do.
        mode: Option<Mode>,
    },
    /// Takes one away; without an id, the only one.
    Detach {
        /// Which one.
        attachment: Option<AttachmentId>,
        /// The target revokes first.
        force: bool,
    },
    /// Grants access to a connector, and says how it logs in.
    InitializeConnection {
        /// How the host reaches it.
        connector: Map<String, Value>,
    },
    /// Takes that access away.
    TerminateConnection {
        /// Whose. `None`: of the only one.
        connector: Option<Map<String, Value>>,
    },
}

/// What operators, and users for themselves, do to a volume beside attaching it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeAction {
    /// Whether servers may start from it.
    SetBootable(bool),
    /// The mode of attachments that name none.
    SetReadonly(bool),
    /// An operator says what it is.
    ResetStatus {
        /// Its status.
        status: Option<VolumeStatus>,
        /// Whether it is attached.
        attached: Option<bool>,
    },
    /// Deletes it whatever its status.
    ForceDelete,
    /// Makes it larger.
    Extend {
        /// GiB.
        size_gib: u32,
        /// Also while it is in use.
        online: bool,
    },
    /// Makes it what this snapshot holds.
    Revert(Option<VolumeId>),
}

/// What makes a disk the right one, for connection info.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskIdentity {
    /// Page 0x83.
    pub naa: Naa,
    /// Page 0x80.
    pub serial: String,
}

macro_rules! words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The API's word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// From the API's word.
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
    /// Something is wrong with it.
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

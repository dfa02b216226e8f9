//! The records of the control plane, and who is asking. Plain data: the rules are in `rules`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mooring_model::{AgentId, AttachmentId, Iqn, Mode, Naa, Receipt, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The project whose objects are meant.
    pub project: String,
    /// The user, for the records.
    pub user: String,
    /// May see and change everything, and types.
    pub admin: bool,
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
    Deleting,
    Error,
    ErrorDeleting,
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
    /// UTC.
    pub created_at: SystemTime,
    /// UTC.
    pub updated_at: Option<SystemTime>,
    /// Why its status is an error.
    pub fault: Option<String>,
    /// Those that exist, oldest first.
    pub attachments: Vec<Attachment>,
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
    /// Where it stands.
    pub status: AttachmentStatus,
    /// As the client gave it; `None` while it is only reserved. Its `initiator`, `host` and `mountpoint` are read from here.
    pub connector: Option<Map<String, Value>>,
    /// The nexus, once there is a connector.
    pub initiator: Option<Iqn>,
    /// The host's name, as the connector says, or of the native host.
    pub attached_host: Option<String>,
    /// Where the server sees it.
    pub mountpoint: Option<String>,
    /// The enrolled agent that attaches it; `None` for a client that logs in by itself.
    pub native: Option<AgentId>,
    /// How a client connects, flat (`driver_volume_type`, `target_iqn`, `target_portal`, `access_mode`, …, with the CHAP secret);
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
    /// The sessions' addresses, as the target sees them.
    pub session_addresses: Vec<String>,
    /// Native: where its host stands with it (`connecting`, `ready`, …).
    pub host_phase: Option<String>,
    /// Native: the stable path on its host.
    pub device_path: Option<String>,
    /// Native: the kernel's name of the disk there.
    pub disk: Option<String>,
    /// What went wrong, from both agents, as `agent: text`.
    pub problems: Vec<String>,
    /// Milliseconds since the request came, of the steps that are done: `granted`, `logged_in`, `device_ready`, `done`.
    pub steps_ms: Vec<(String, u64)>,
    /// Changes whenever anything above may have changed: for long polls.
    pub revision: u64,
}

/// An enrolled agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As the configuration calls it.
    pub name: String,
    /// How it is dialled.
    pub address: String,
    /// Its id, once it said hello.
    pub agent: Option<AgentId>,
    /// Under which name it logs in; `None` where it does not attach.
    pub initiator: Option<Iqn>,
    /// Its pools: it serves volumes.
    pub pools: Vec<HostPool>,
    /// It answers, and its reports come.
    pub up: bool,
    /// Why it is not up.
    pub why_down: Option<String>,
    /// When its last report came.
    pub last_report: Option<SystemTime>,
    /// What an operator should look at: objects that nobody here knows (orphans), objects in review, its own problems.
    pub problems: Vec<String>,
}

/// A pool of a storage agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPool {
    /// The volume group.
    pub name: String,
    /// Bytes.
    pub total: u64,
    /// Bytes.
    pub free: u64,
}

/// `POST /volumes`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The client's own id, to be able to repeat the request.
    pub id: Option<VolumeId>,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// GiB.
    pub size_gib: u32,
    /// Name or id; `None`: the default type (`__DEFAULT__`, made with the database).
    pub volume_type: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
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
    /// An enrolled host, by name or agent id: the controller drives its agent.
    Native(String),
}

/// A receipt with its attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentReceipt {
    /// The attachment.
    pub attachment: AttachmentId,
    /// What the storage agent says. `None`: nothing had ever been granted.
    pub receipt: Option<Receipt>,
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
    Deleting => "deleting",
    Error => "error",
    ErrorDeleting => "error_deleting",
});

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

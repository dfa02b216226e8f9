//! Everything that can be asked of the control plane, one method each. `http` calls these and nothing else.
//!
//! What must never happen here: see the crate's own words.

use std::collections::BTreeMap;
use std::time::Duration;

use mooring_model::{AttachmentId, Mode, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::{
    Attachment, AttachmentLive, AttachmentReceipt, Caller, Host, NewAttachment, NewVolume, Volume, VolumeType,
};

/// Why something is not done. Each kind is one status code of the API.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// 400: the request is wrong, or the object's state does not allow it (Cinder answers both with 400).
    #[error("{0}")]
    Invalid(String),
    /// 403.
    #[error("{0}")]
    Forbidden(String),
    /// 404: `Volume`, `Volume type`, `Attachment`, `Host` and what was asked for.
    #[error("{kind} {what} could not be found.")]
    NotFound {
        /// The kind of object.
        kind: &'static str,
        /// Its name or id.
        what: String,
    },
    /// 409.
    #[error("{0}")]
    Conflict(String),
    /// 504: durable, going on, not true yet at the deadline; asking again is safe and right.
    #[error("{0}")]
    Pending(String),
    /// 503: no report to decide from, or an agent that must answer is down.
    #[error("{0}")]
    Unavailable(String),
    /// 500: the store failed.
    #[error("{0}")]
    Internal(String),
}

/// The control plane. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {}

/// How long a call may wait for agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Duration);

fn not_yet<T>() -> Result<T, Refusal> {
    Err(Refusal::Internal("this build is not finished".to_owned()))
}

#[allow(clippy::unused_async, reason = "skeleton")]
impl Service {
    /// All types, by name.
    pub async fn types(&self, _caller: &Caller) -> Result<Vec<VolumeType>, Refusal> {
        not_yet()
    }

    /// One type, by name or id.
    pub async fn volume_type(&self, _caller: &Caller, _name_or_id: &str) -> Result<VolumeType, Refusal> {
        not_yet()
    }

    /// The type of those who name none.
    pub async fn default_type(&self, _caller: &Caller) -> Result<VolumeType, Refusal> {
        not_yet()
    }

    /// Makes a type. Admins only. 409 for a name that is taken.
    pub async fn create_type(
        &self,
        _caller: &Caller,
        _name: &str,
        _description: Option<&str>,
        _is_public: bool,
        _extra_specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        not_yet()
    }

    /// Changes name, description or visibility.
    pub async fn update_type(
        &self,
        _caller: &Caller,
        _id: Uuid,
        _name: Option<&str>,
        _description: Option<&str>,
        _is_public: Option<bool>,
    ) -> Result<VolumeType, Refusal> {
        not_yet()
    }

    /// Deletes a type; 400 while volumes use it, and for the default type.
    pub async fn delete_type(&self, _caller: &Caller, _id: Uuid) -> Result<(), Refusal> {
        not_yet()
    }

    /// Sets extra specs; 400 while volumes use the type, and for `multiattach` together with `cacheable`.
    pub async fn set_extra_specs(
        &self,
        _caller: &Caller,
        _id: Uuid,
        _specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        not_yet()
    }

    /// Takes one extra spec away; 404 when it is not there.
    pub async fn delete_extra_spec(&self, _caller: &Caller, _id: Uuid, _key: &str) -> Result<(), Refusal> {
        not_yet()
    }

    /// Creates a volume: `creating` at once, `available` when its agent has made it. 400 when no reporting agent can take
    /// it, 503 when none has ever reported.
    pub async fn create_volume(&self, _caller: &Caller, _new: NewVolume) -> Result<Volume, Refusal> {
        not_yet()
    }

    /// The caller's volumes (all projects': admins), newest first.
    pub async fn volumes(&self, _caller: &Caller, _all_projects: bool) -> Result<Vec<Volume>, Refusal> {
        not_yet()
    }

    /// One volume. 404 for another project's.
    pub async fn volume(&self, _caller: &Caller, _id: VolumeId) -> Result<Volume, Refusal> {
        not_yet()
    }

    /// Changes name, description, metadata.
    pub async fn update_volume(
        &self,
        _caller: &Caller,
        _id: VolumeId,
        _name: Option<Option<String>>,
        _description: Option<Option<String>>,
        _metadata: Option<BTreeMap<String, String>>,
    ) -> Result<Volume, Refusal> {
        not_yet()
    }

    /// Begins to delete a volume: `deleting` at once, gone when its agent has wiped it. 400 while it is attached.
    pub async fn delete_volume(&self, _caller: &Caller, _id: VolumeId) -> Result<(), Refusal> {
        not_yet()
    }

    /// The caller's attachments, oldest first, those of one volume if one is given.
    pub async fn attachments(
        &self,
        _caller: &Caller,
        _all_projects: bool,
        _volume: Option<VolumeId>,
    ) -> Result<Vec<Attachment>, Refusal> {
        not_yet()
    }

    /// One attachment. 404 for another project's.
    pub async fn attachment(&self, _caller: &Caller, _id: AttachmentId) -> Result<Attachment, Refusal> {
        not_yet()
    }

    /// Makes an attachment. Without a connector: reserved. With a client's: answers when the grant is seen in the kernel
    /// (with its connection info), or `Pending`. Native: answers at once (`attaching`); the controller drives both agents
    /// and completes it.
    pub async fn create_attachment(
        &self,
        _caller: &Caller,
        _new: NewAttachment,
        _wait: Wait,
    ) -> Result<Attachment, Refusal> {
        not_yet()
    }

    /// Gives a reserved attachment its connector, as a client's `create_attachment`. The same connector again: the same
    /// answer.
    pub async fn update_attachment(
        &self,
        _caller: &Caller,
        _id: AttachmentId,
        _connector: Map<String, Value>,
        _wait: Wait,
    ) -> Result<Attachment, Refusal> {
        not_yet()
    }

    /// The client is connected: `attached`, whatever it was.
    pub async fn complete_attachment(&self, _caller: &Caller, _id: AttachmentId) -> Result<(), Refusal> {
        not_yet()
    }

    /// Detaches. Native: its host lets go first. The answer comes with the receipt of the storage agent, else `Pending`
    /// (and the attachment stays `detaching`). With `force` the target revokes first, and the host is told afterwards.
    /// Returns the volume's other attachments, too.
    pub async fn delete_attachment(
        &self,
        _caller: &Caller,
        _id: AttachmentId,
        _force: bool,
        _wait: Wait,
    ) -> Result<(AttachmentReceipt, Vec<Attachment>), Refusal> {
        not_yet()
    }

    /// What is live of one attachment. With `newer_than`, waits until its revision is another one, or for `wait`.
    pub async fn live(
        &self,
        _caller: &Caller,
        _id: AttachmentId,
        _newer_than: Option<u64>,
        _wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        not_yet()
    }

    /// What is live of all attachments of the caller.
    pub async fn live_all(&self, _caller: &Caller) -> Result<Vec<AttachmentLive>, Refusal> {
        not_yet()
    }

    /// The enrolled agents. Admins only.
    pub async fn hosts(&self, _caller: &Caller) -> Result<Vec<Host>, Refusal> {
        not_yet()
    }
}

/// The mode that applies when none is given.
pub const MODE_DEFAULT: Mode = Mode::ReadWrite;

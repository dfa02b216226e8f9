//! What the HTTP front asks of the control plane: the methods of [`Service`], as a trait, so that the front is tested without
//! a store and without agents.
//!
//! What must never happen here: a decision. Each method is the service's own.

use std::collections::BTreeMap;
use std::future::Future;

use mooring_model::{AttachmentId, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::{
    Attachment, AttachmentLive, AttachmentReceipt, Caller, Host, NewAttachment, NewVolume, Volume, VolumeType,
};
use crate::service::{Refusal, Service, Wait};

/// An attachment's end: its receipt, and the attachments that the volume still has.
pub type Detached = (AttachmentReceipt, Vec<Attachment>);

macro_rules! backend {
    ($($(#[$doc:meta])* fn $name:ident(&self, caller: &Caller $(, $arg:ident: $type:ty)*) -> $answer:ty;)*) => {
        /// Everything that can be asked. See [`Service`] for what each method promises.
        pub trait Backend: Clone + Send + Sync + 'static {
            $($(#[$doc])* fn $name(&self, caller: &Caller $(, $arg: $type)*)
                -> impl Future<Output = Result<$answer, Refusal>> + Send;)*
        }

        impl Backend for Service {
            $(async fn $name(&self, caller: &Caller $(, $arg: $type)*) -> Result<$answer, Refusal> {
                Service::$name(self, caller $(, $arg)*).await
            })*
        }
    };
}

backend! {
    /// All types, by name.
    fn types(&self, caller: &Caller) -> Vec<VolumeType>;
    /// One type, by name or id.
    fn volume_type(&self, caller: &Caller, name_or_id: &str) -> VolumeType;
    /// The type of those who name none.
    fn default_type(&self, caller: &Caller) -> VolumeType;
    /// Makes a type.
    fn create_type(&self, caller: &Caller, name: &str, description: Option<&str>, is_public: bool,
        extra_specs: BTreeMap<String, String>) -> VolumeType;
    /// Changes a type.
    fn update_type(&self, caller: &Caller, id: Uuid, name: Option<&str>, description: Option<&str>,
        is_public: Option<bool>) -> VolumeType;
    /// Deletes a type.
    fn delete_type(&self, caller: &Caller, id: Uuid) -> ();
    /// Sets extra specs.
    fn set_extra_specs(&self, caller: &Caller, id: Uuid, specs: BTreeMap<String, String>) -> VolumeType;
    /// Takes one extra spec away.
    fn delete_extra_spec(&self, caller: &Caller, id: Uuid, key: &str) -> ();
    /// Creates a volume.
    fn create_volume(&self, caller: &Caller, new: NewVolume) -> Volume;
    /// Volumes, newest first.
    fn volumes(&self, caller: &Caller, all_projects: bool) -> Vec<Volume>;
    /// One volume.
    fn volume(&self, caller: &Caller, id: VolumeId) -> Volume;
    /// Changes name, description, metadata.
    fn update_volume(&self, caller: &Caller, id: VolumeId, name: Option<Option<String>>,
        description: Option<Option<String>>, metadata: Option<BTreeMap<String, String>>) -> Volume;
    /// Begins to delete a volume.
    fn delete_volume(&self, caller: &Caller, id: VolumeId) -> ();
    /// Attachments, oldest first.
    fn attachments(&self, caller: &Caller, all_projects: bool, volume: Option<VolumeId>) -> Vec<Attachment>;
    /// One attachment.
    fn attachment(&self, caller: &Caller, id: AttachmentId) -> Attachment;
    /// Makes an attachment.
    fn create_attachment(&self, caller: &Caller, new: NewAttachment, wait: Wait) -> Attachment;
    /// Gives an attachment its connector.
    fn update_attachment(&self, caller: &Caller, id: AttachmentId, connector: Map<String, Value>,
        wait: Wait) -> Attachment;
    /// The client is connected.
    fn complete_attachment(&self, caller: &Caller, id: AttachmentId) -> ();
    /// Detaches.
    fn delete_attachment(&self, caller: &Caller, id: AttachmentId, force: bool, wait: Wait) -> Detached;
    /// What is live of one attachment.
    fn live(&self, caller: &Caller, id: AttachmentId, newer_than: Option<u64>, wait: Wait) -> AttachmentLive;
    /// What is live of all attachments.
    fn live_all(&self, caller: &Caller) -> Vec<AttachmentLive>;
    /// The receipt of an attachment that is gone.
    fn receipt(&self, caller: &Caller, id: AttachmentId) -> AttachmentReceipt;
    /// Makes every later change newer than all before.
    fn raise_epoch(&self, caller: &Caller) -> u64;
    /// What the database wishes of a volume in review is right.
    fn confirm_review(&self, caller: &Caller, id: VolumeId) -> ();
    /// The enrolled agents.
    fn hosts(&self, caller: &Caller) -> Vec<Host>;
}

//! What the HTTP front asks of the control plane: the methods of [`Service`], as a trait, so that the front is tested without
//! a store and without agents.
//!
//! What must never happen here: a decision. Each method is the service's own.

use std::collections::BTreeMap;
use std::future::Future;

use mooring_model::{AttachmentId, ByteSize, Cache, ReservationsChange, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::{
    AttachAction, Attachment, AttachmentCheck, AttachmentLive, AttachmentReceipt, AuditCall, AuditLine,
    AuditQuery, Caller, CutWish, DetachRecord, ExportAsk, Host, HostChange, HostFence, HostJobs, HostLoss,
    HostUsage, Jobs, ManageVolume, ManageableVolume, Message, MetadataChange, NewAttachment, NewFence,
    NewSnapshot, NewVolume, Placement, PoolFilter, PoolState, ServiceState, Snapshot, StorageHost, Volume,
    VolumeAction, VolumeExport, VolumeName, VolumeReservations, VolumeState, VolumeType, VolumesSummary,
    Zone,
};
use crate::list::{ListQuery, Page};
use crate::quota::{Entry, Key, Limit};
use crate::rules::retype::MigrationPolicy;
use crate::service::{
    JoinRefused, JoinRequest, JoinTerms, Joined, NewJoinToken, NewMode, NewSecrets, Refusal, Service, Wait,
    Way,
};

/// An attachment's end: its receipt, and the attachments that the volume still has.
pub type Detached = (AttachmentReceipt, Vec<Attachment>);

macro_rules! backend {
    ($($(#[$doc:meta])* fn $name:ident(&self, caller: &Caller $(, $arg:ident: $type:ty)*) -> $answer:ty;)*) => {
        /// Everything that can be asked. See [`Service`] for what each method promises.
        pub trait Backend: Clone + Send + Sync + 'static {
            /// Takes the audit line of a call whose answer is known. It never waits.
            fn record(&self, call: AuditCall);
            /// The certificate of the authority by which agents join.
            fn authority(&self) -> Result<String, Refusal>;
            /// Lets an agent join.
            fn join(&self, asked: JoinRequest) -> impl Future<Output = Result<Joined, JoinRefused>> + Send;

            $($(#[$doc])* fn $name(&self, caller: &Caller $(, $arg: $type)*)
                -> impl Future<Output = Result<$answer, Refusal>> + Send;)*
        }

        impl Backend for Service {
            fn record(&self, call: AuditCall) {
                Service::record(self, call);
            }

            fn authority(&self) -> Result<String, Refusal> {
                Service::authority(self)
            }

            async fn join(&self, asked: JoinRequest) -> Result<Joined, JoinRefused> {
                Service::join(self, asked).await
            }

            $(async fn $name(&self, caller: &Caller $(, $arg: $type)*) -> Result<$answer, Refusal> {
                Service::$name(self, caller $(, $arg)*).await
            })*
        }
    };
}

backend! {
    /// Lines of the audit log.
    fn audit(&self, caller: &Caller, query: AuditQuery) -> Vec<AuditLine>;
    /// Types.
    fn types(&self, caller: &Caller, query: ListQuery) -> Page<VolumeType>;
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
    /// The projects that may use a private type.
    fn type_access(&self, caller: &Caller, id: Uuid) -> Vec<String>;
    /// Lets a project use a private type, or takes that away.
    fn set_type_access(&self, caller: &Caller, id: Uuid, project: &str, allowed: bool) -> ();
    /// All defaults of projects.
    fn default_types(&self, caller: &Caller) -> Vec<(String, Uuid)>;
    /// A project's default.
    fn project_default(&self, caller: &Caller, project: &str) -> Uuid;
    /// Sets a project's default.
    fn set_project_default(&self, caller: &Caller, project: &str, name_or_id: &str) -> Uuid;
    /// Takes a project's default away.
    fn unset_project_default(&self, caller: &Caller, project: &str) -> ();
    /// What a project may have, and has.
    fn quotas(&self, caller: &Caller, project: &str) -> Vec<Entry>;
    /// What a project may have for which nothing is set.
    fn default_quotas(&self, caller: &Caller, project: &str) -> Vec<Entry>;
    /// Sets limits of a project.
    fn set_quotas(&self, caller: &Caller, project: &str, new: BTreeMap<Key, Limit>) -> Vec<Entry>;
    /// Takes a project's own limits away.
    fn delete_quotas(&self, caller: &Caller, project: &str) -> ();
    /// The limits of the default class.
    fn class_quotas(&self, caller: &Caller) -> Vec<Entry>;
    /// Sets limits of the default class.
    fn set_class_quotas(&self, caller: &Caller, new: BTreeMap<Key, Limit>) -> Vec<Entry>;
    /// What `GET /limits` says of a project.
    fn limits(&self, caller: &Caller, project: Option<&str>) -> Vec<Entry>;
    /// Gives a volume another type.
    fn retype_volume(&self, caller: &Caller, id: VolumeId, new_type: &str, migration: MigrationPolicy) -> ();
    /// What operators do to a volume, and flags.
    fn volume_action(&self, caller: &Caller, id: VolumeId, action: VolumeAction) -> ();
    /// Takes back what a volume was to grow by.
    fn cancel_extend(&self, caller: &Caller, id: VolumeId) -> ();
    /// The export of a volume to a file.
    fn volume_export(&self, caller: &Caller, id: VolumeId, ask: ExportAsk) -> VolumeExport;
    /// Deletes a volume whatever its status.
    fn force_delete_volume(&self, caller: &Caller, id: VolumeId) -> ();
    /// Creates a volume.
    fn create_volume(&self, caller: &Caller, new: NewVolume) -> Volume;
    /// Volumes.
    fn volumes(&self, caller: &Caller, query: ListQuery) -> Page<Volume>;
    /// Volumes, by name only.
    fn volume_names(&self, caller: &Caller, query: ListQuery) -> Page<VolumeName>;
    /// Volumes in numbers.
    fn volumes_summary(&self, caller: &Caller, query: ListQuery, metadata: bool) -> VolumesSummary;
    /// One volume.
    fn volume(&self, caller: &Caller, id: VolumeId) -> Volume;
    /// Changes name, description, metadata.
    fn update_volume(&self, caller: &Caller, id: VolumeId, name: Option<Option<String>>,
        description: Option<Option<String>>, metadata: Option<BTreeMap<String, String>>) -> Volume;
    /// Begins to delete a volume.
    fn delete_volume(&self, caller: &Caller, id: VolumeId) -> ();
    /// Begins to delete a volume and its snapshots.
    fn delete_volume_with_snapshots(&self, caller: &Caller, id: VolumeId) -> ();
    /// The LVs of a storage agent.
    fn manageable_volumes(&self, caller: &Caller, host: &str) -> Vec<ManageableVolume>;
    /// Makes a volume of an LV.
    fn manage_volume(&self, caller: &Caller, new: ManageVolume) -> Volume;
    /// Lets go of a volume.
    fn unmanage_volume(&self, caller: &Caller, id: VolumeId) -> ();
    /// Takes a snapshot.
    fn create_snapshot(&self, caller: &Caller, new: NewSnapshot) -> Snapshot;
    /// Snapshots.
    fn snapshots(&self, caller: &Caller, query: ListQuery) -> Page<Snapshot>;
    /// One snapshot.
    fn snapshot(&self, caller: &Caller, id: VolumeId) -> Snapshot;
    /// Changes name and description.
    fn update_snapshot(&self, caller: &Caller, id: VolumeId, name: Option<Option<String>>,
        description: Option<Option<String>>) -> Snapshot;
    /// Changes a snapshot's metadata.
    fn change_snapshot_metadata(&self, caller: &Caller, id: VolumeId, change: MetadataChange)
        -> BTreeMap<String, String>;
    /// Begins to delete a snapshot.
    fn delete_snapshot(&self, caller: &Caller, id: VolumeId) -> ();
    /// Changes a volume's metadata.
    fn change_metadata(&self, caller: &Caller, id: VolumeId, change: MetadataChange,
        only_if: Option<BTreeMap<String, String>>) -> BTreeMap<String, String>;
    /// Attachments.
    fn attachments(&self, caller: &Caller, query: ListQuery) -> Page<Attachment>;
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
    /// Detaches, in one of its ways.
    fn detach(&self, caller: &Caller, id: AttachmentId, way: Way, wait: Wait) -> Detached;
    /// Does one of the older calls for attachments.
    fn attach_action(&self, caller: &Caller, id: VolumeId, action: AttachAction, wait: Wait)
        -> Option<Map<String, Value>>;
    /// The records of detaches.
    fn receipts(&self, caller: &Caller, volume: Option<VolumeId>, attachment: Option<AttachmentId>, limit: u32)
        -> Vec<DetachRecord>;
    /// A volume with what only Mooring's own API says of it.
    fn volume_state(&self, caller: &Caller, id: VolumeId) -> VolumeState;
    /// Who has reserved a volume.
    fn reservations(&self, caller: &Caller, id: VolumeId) -> VolumeReservations;
    /// Takes reservations of a volume away; what was there, and what is there now.
    fn change_reservations(&self, caller: &Caller, id: VolumeId, change: ReservationsChange)
        -> [VolumeReservations; 2];
    /// What is worth saying of an attachment that is about to go.
    fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Vec<String>;
    /// What is live of one attachment.
    fn live(&self, caller: &Caller, id: AttachmentId, newer_than: Option<u64>, wait: Wait) -> AttachmentLive;
    /// Changes an attachment's mode where it is.
    fn set_mode(&self, caller: &Caller, id: AttachmentId, new: NewMode, wait: Wait) -> AttachmentLive;
    /// Changes an attachment's cache flag where it is.
    fn set_cache(&self, caller: &Caller, id: AttachmentId, cache: Cache, wait: Wait) -> AttachmentLive;
    /// Gives attachments of a volume new secrets.
    fn rotate_secrets(&self, caller: &Caller, id: VolumeId, new: NewSecrets, wait: Wait) -> Vec<AttachmentLive>;
    /// Who uses the disk of an attachment on its host.
    fn check_disk(&self, caller: &Caller, id: AttachmentId) -> AttachmentCheck;
    /// What is live of all attachments.
    fn live_all(&self, caller: &Caller) -> Vec<AttachmentLive>;
    /// The receipt of an attachment that is gone.
    fn receipt(&self, caller: &Caller, id: AttachmentId) -> AttachmentReceipt;
    /// Makes every later change newer than all before.
    fn raise_epoch(&self, caller: &Caller) -> u64;
    /// A volume is cut off from its disk, or is not any more.
    fn set_cut(&self, caller: &Caller, id: VolumeId, wish: CutWish) -> ();
    /// What the database wishes of a volume in review is right.
    fn confirm_review(&self, caller: &Caller, id: VolumeId) -> ();
    /// The pools.
    fn pools(&self, caller: &Caller, filter: PoolFilter) -> Vec<PoolState>;
    /// What a storage agent can do.
    fn capabilities(&self, caller: &Caller, host: &str) -> Value;
    /// The availability zones.
    fn zones(&self, caller: &Caller) -> Vec<Zone>;
    /// The storage agents, and the scheduler.
    fn services(&self, caller: &Caller) -> Vec<ServiceState>;
    /// Changes a service.
    fn change_service(&self, caller: &Caller, binary: &str, host: &str, change: HostChange) -> ();
    /// Changes a host.
    fn change_host(&self, caller: &Caller, name_or_id: &str, change: HostChange) -> Host;
    /// Makes a token with which a host may join.
    fn make_join_token(&self, caller: &Caller, name: &str, terms: JoinTerms) -> NewJoinToken;
    /// Ends the enrolment of a host.
    fn revoke_host(&self, caller: &Caller, name: &str) -> ();
    /// Gives an enrolled host another name; what of the configuration still says the old one.
    fn rename_host(&self, caller: &Caller, old: &str, new: &str) -> Vec<String>;
    /// Says what would go with a host.
    fn host_loss(&self, caller: &Caller, name: &str) -> HostLoss;
    /// Gives up a host that never comes back.
    fn forget_host(&self, caller: &Caller, name: &str, confirm: &str) -> HostLoss;
    /// Cuts a host off from every volume.
    fn fence_host(&self, caller: &Caller, name: &str, new: NewFence, wait: Wait) -> HostFence;
    /// Lifts that.
    fn unfence_host(&self, caller: &Caller, name: &str, anyway: bool) -> HostFence;
    /// A fence in force.
    fn fence(&self, caller: &Caller, name: &str) -> HostFence;
    /// Fences.
    fn fences(&self, caller: &Caller, lifted: bool) -> Vec<HostFence>;
    /// The long work of the storage agents.
    fn jobs(&self, caller: &Caller) -> Jobs;
    /// Limits what all jobs of one may write in a second.
    fn limit_jobs(&self, caller: &Caller, host: &str, limit: Option<ByteSize>) -> HostJobs;
    /// How a volume came to its place.
    fn placement(&self, caller: &Caller, id: VolumeId) -> Placement;
    /// Messages.
    fn messages(&self, caller: &Caller, query: ListQuery) -> Page<Message>;
    /// One message.
    fn message(&self, caller: &Caller, id: Uuid) -> Message;
    /// Takes a message away.
    fn delete_message(&self, caller: &Caller, id: Uuid) -> ();
    /// The storage agents.
    fn storage_hosts(&self, caller: &Caller) -> Vec<StorageHost>;
    /// What projects have on a storage agent.
    fn storage_host(&self, caller: &Caller, name: &str) -> Vec<HostUsage>;
    /// The enrolled agents.
    fn hosts(&self, caller: &Caller) -> Vec<Host>;
}

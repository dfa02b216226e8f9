//! The HTTP front's view of the control plane: the methods of [`Service`], as a trait, so that the
//! front is tested without a store and without agents.
//!
//! What must never happen here: a decision. Each method is the service's own.

use std::collections::BTreeMap;
use std::future::Future;

use mooring_model::{AttachmentId, ByteSize, Cache, ReservationsChange, VolumeId};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::{
    AttachAction, Attachment, AttachmentCheck, AttachmentLive, AttachmentReceipt, AuditCall, AuditLine,
    AuditQuery, Caller, DetachRecord, ExportAsk, Host, HostChange, HostFence, HostJobs, HostLoss, HostUsage,
    IsolationChange, Jobs, ManageVolume, ManageableVolume, Message, MetadataChange, NewAttachment, NewFence,
    NewSnapshot, NewVolume, Placement, PoolFilter, PoolState, ServiceState, Snapshot, SnapshotAction,
    StorageHost, Volume, VolumeAction, VolumeExport, VolumeName, VolumeReservations, VolumeState, VolumeType,
    VolumesSummary, Zone,
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
        /// The control plane's methods. [`Service`] says what each of them promises.
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
    /// The type of requests that name none.
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
    /// Deletes one extra spec.
    fn delete_extra_spec(&self, caller: &Caller, id: Uuid, key: &str) -> ();
    /// The projects that may use a private type.
    fn type_access(&self, caller: &Caller, id: Uuid) -> Vec<String>;
    /// Lets a project use a private type, or no longer.
    fn set_type_access(&self, caller: &Caller, id: Uuid, project: &str, allowed: bool) -> ();
    /// The default types of all projects.
    fn default_types(&self, caller: &Caller) -> Vec<(String, Uuid)>;
    /// A project's default type.
    fn project_default(&self, caller: &Caller, project: &str) -> Uuid;
    /// Sets a project's default type.
    fn set_project_default(&self, caller: &Caller, project: &str, name_or_id: &str) -> Uuid;
    /// Removes a project's default type.
    fn unset_project_default(&self, caller: &Caller, project: &str) -> ();
    /// A project's limits and usage.
    fn quotas(&self, caller: &Caller, project: &str) -> Vec<Entry>;
    /// A project's limits if none are set for it.
    fn default_quotas(&self, caller: &Caller, project: &str) -> Vec<Entry>;
    /// Sets limits of a project.
    fn set_quotas(&self, caller: &Caller, project: &str, new: BTreeMap<Key, Limit>) -> Vec<Entry>;
    /// Deletes a project's own limits.
    fn delete_quotas(&self, caller: &Caller, project: &str) -> ();
    /// The limits of the default class.
    fn class_quotas(&self, caller: &Caller) -> Vec<Entry>;
    /// Sets limits of the default class.
    fn set_class_quotas(&self, caller: &Caller, new: BTreeMap<Key, Limit>) -> Vec<Entry>;
    /// The limits and usage that `GET /limits` shows of a project.
    fn limits(&self, caller: &Caller, project: Option<&str>) -> Vec<Entry>;
    /// Gives a volume another type.
    fn retype_volume(&self, caller: &Caller, id: VolumeId, new_type: &str, migration: MigrationPolicy) -> ();
    /// Does an operator's action on a volume, or sets a flag.
    fn volume_action(&self, caller: &Caller, id: VolumeId, action: VolumeAction) -> ();
    /// Cancels a volume's growth.
    fn cancel_extend(&self, caller: &Caller, id: VolumeId) -> ();
    /// Begins, cancels or shows the image export of a volume.
    fn volume_export(&self, caller: &Caller, id: VolumeId, ask: ExportAsk) -> VolumeExport;
    /// Deletes a volume whatever its status. `cascade`: and its snapshots.
    fn force_delete_volume(&self, caller: &Caller, id: VolumeId, cascade: bool) -> ();
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
    /// Unmanages a volume.
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
    /// Does an operator's action on a snapshot.
    fn snapshot_action(&self, caller: &Caller, id: VolumeId, action: SnapshotAction) -> ();
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
    /// Notes that the client is connected.
    fn complete_attachment(&self, caller: &Caller, id: AttachmentId) -> ();
    /// Detaches.
    fn delete_attachment(&self, caller: &Caller, id: AttachmentId, force: bool, wait: Wait) -> Detached;
    /// Detaches in one of several ways.
    fn detach(&self, caller: &Caller, id: AttachmentId, way: Way, wait: Wait) -> Detached;
    /// Does one of the older calls for attachments.
    fn attach_action(&self, caller: &Caller, id: VolumeId, action: AttachAction, wait: Wait)
        -> Option<Map<String, Value>>;
    /// The records of detaches.
    fn receipts(&self, caller: &Caller, volume: Option<VolumeId>, attachment: Option<AttachmentId>, limit: u32)
        -> Vec<DetachRecord>;
    /// A volume with the facts that only Mooring's own API shows.
    fn volume_state(&self, caller: &Caller, id: VolumeId) -> VolumeState;
    /// The persistent reservations of a volume.
    fn reservations(&self, caller: &Caller, id: VolumeId) -> VolumeReservations;
    /// Removes reservations of a volume. Returns those before and those now.
    fn change_reservations(&self, caller: &Caller, id: VolumeId, change: ReservationsChange)
        -> [VolumeReservations; 2];
    /// Warnings about an attachment that is about to end.
    fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Vec<String>;
    /// The live state of one attachment.
    fn live(&self, caller: &Caller, id: AttachmentId, newer_than: Option<u64>, wait: Wait) -> AttachmentLive;
    /// Changes an attachment's mode in place.
    fn set_mode(&self, caller: &Caller, id: AttachmentId, new: NewMode, wait: Wait) -> AttachmentLive;
    /// Changes an attachment's cache flag in place.
    fn set_cache(&self, caller: &Caller, id: AttachmentId, cache: Cache, wait: Wait) -> AttachmentLive;
    /// Gives attachments of a volume new secrets.
    fn rotate_secrets(&self, caller: &Caller, id: VolumeId, new: NewSecrets, wait: Wait) -> Vec<AttachmentLive>;
    /// The users of an attachment's disk on its host.
    fn check_disk(&self, caller: &Caller, id: AttachmentId) -> AttachmentCheck;
    /// The live state of all attachments.
    fn live_all(&self, caller: &Caller) -> Vec<AttachmentLive>;
    /// The receipt of an ended attachment.
    fn receipt(&self, caller: &Caller, id: AttachmentId) -> AttachmentReceipt;
    /// Starts a new epoch: changes from now on override anything that agents store.
    fn raise_epoch(&self, caller: &Caller) -> u64;
    /// Isolates a volume, or ends that.
    fn set_isolation(&self, caller: &Caller, id: VolumeId, change: IsolationChange) -> ();
    /// Confirms the database's spec of a volume in review.
    fn confirm_review(&self, caller: &Caller, id: VolumeId) -> ();
    /// The pools.
    fn pools(&self, caller: &Caller, filter: PoolFilter) -> Vec<PoolState>;
    /// The capabilities of a storage agent.
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
    /// Renames an enrolled host. Returns the configuration's entries that still have the old name.
    fn rename_host(&self, caller: &Caller, old: &str, new: &str) -> Vec<String>;
    /// The losses if a host were forgotten.
    fn host_loss(&self, caller: &Caller, name: &str) -> HostLoss;
    /// Gives up a host that never comes back.
    fn forget_host(&self, caller: &Caller, name: &str, confirm: &str) -> HostLoss;
    /// Fences a host: revokes its access to every volume.
    fn fence_host(&self, caller: &Caller, name: &str, new: NewFence, wait: Wait) -> HostFence;
    /// Lifts a fence.
    fn unfence_host(&self, caller: &Caller, name: &str, anyway: bool) -> HostFence;
    /// A fence in force.
    fn fence(&self, caller: &Caller, name: &str) -> HostFence;
    /// Fences.
    fn fences(&self, caller: &Caller, lifted: bool) -> Vec<HostFence>;
    /// The long work of the storage agents.
    fn jobs(&self, caller: &Caller) -> Jobs;
    /// Limits the bytes that all jobs of one storage agent may write in a second.
    fn limit_jobs(&self, caller: &Caller, host: &str, limit: Option<ByteSize>) -> HostJobs;
    /// The reasons for a volume's place.
    fn placement(&self, caller: &Caller, id: VolumeId) -> Placement;
    /// Messages.
    fn messages(&self, caller: &Caller, query: ListQuery) -> Page<Message>;
    /// One message.
    fn message(&self, caller: &Caller, id: Uuid) -> Message;
    /// Deletes a message.
    fn delete_message(&self, caller: &Caller, id: Uuid) -> ();
    /// The storage agents.
    fn storage_hosts(&self, caller: &Caller) -> Vec<StorageHost>;
    /// The projects' usage of a storage agent.
    fn storage_host(&self, caller: &Caller, name: &str) -> Vec<HostUsage>;
    /// The enrolled agents.
    fn hosts(&self, caller: &Caller) -> Vec<Host>;
}

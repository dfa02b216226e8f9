//! State of the fake, and its changes.

use mooring_controller::initiators::Initiators;
use mooring_model::{
    Cure, DiskAccess, DiskCheck, DiskUser, DiskUserKind, Initiator, JobKind, JobReport, Problem,
    Registration, ReservationHolder, ReservationType, Reservations, ReservationsChange, UploadId,
};

use mooring_controller::domain::{
    DisputedInitiator, ExportState, FencedExport, HostPool, Rotating, UnknownNode, VolumeIsolation,
    VolumePlace, WantedId,
};

use super::*;

#[derive(Default)]
pub(crate) struct State {
    /// The last order to isolate a volume, as in force.
    pub(super) cut: Option<VolumeIsolation>,
    pub(crate) types: Vec<VolumeType>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) lvs: Vec<ManageableVolume>,
    pub(crate) managed: Option<ManageVolume>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) receipts: Vec<AttachmentReceipt>,
    /// Projects that may use private types.
    pub(crate) access: BTreeSet<(Uuid, String)>,
    /// Default types of projects.
    pub(crate) defaults: BTreeMap<String, Uuid>,
    /// One project's limits.
    pub(crate) quotas: Limits,
    /// Actions on volumes, in order.
    pub(crate) actions: Vec<VolumeAction>,
    pub(crate) messages: Vec<Message>,
    /// Lines of the audit log, and the last query for them.
    pub(crate) calls: Vec<AuditCall>,
    pub(crate) audit_query: Option<AuditQuery>,
    /// Requests to join, in order.
    pub(crate) joins: Vec<JoinRequest>,
    /// The last caller.
    pub(crate) caller: Option<Caller>,
    /// Time that the last call was allowed to wait.
    pub(crate) wait: Option<Duration>,
    pub(crate) forced: Option<bool>,
    pub(crate) way: Option<Way>,
    pub(crate) action: Option<AttachAction>,
    pub(crate) records: Vec<DetachRecord>,
    pub(crate) newer_than: Option<u64>,
    /// Calls about image exports, in order.
    pub(crate) exports: Vec<ExportAsk>,
    /// The hints of the last volume.
    pub(crate) hints: Hints,
    /// The id of the last volume, or the key of its request.
    pub(crate) wanted_id: Option<WantedId>,
    /// The last filter for pools.
    pub(crate) pool_filter: PoolFilter,
    /// The limit of all jobs. `None`: no limit.
    pub(crate) job_limit: Option<ByteSize>,
    /// The last change of a service or host.
    pub(crate) said: Option<(String, HostChange)>,
    /// The parts of the next fence, and the last fence.
    pub(crate) fence_parts: Vec<FencePart>,
    pub(crate) fence_exports: Vec<FencedExport>,
    pub(crate) fence_unknown: Vec<UnknownNode>,
    pub(crate) fence_disputed: Vec<DisputedInitiator>,
    pub(crate) also: Vec<mooring_model::Initiator>,
    pub(crate) fence: Option<HostFence>,
    /// The refusal that the next call answers.
    pub(crate) refuse: Option<Refusal>,
    /// A gate at which new attachments wait until it is closed.
    pub(crate) gate: Option<Arc<tokio::sync::Semaphore>>,
    /// Words of calls that change nothing here.
    pub(crate) heard: Vec<String>,
    /// Number of attachments that came to the gate.
    pub(crate) waiting: usize,
    pub(super) clock: u64,
}

pub(super) fn whole<T>(items: Vec<T>) -> Page<T> {
    Page { items, count: None }
}

pub(super) fn attached(attachment: &Attachment) -> Attached {
    Attached {
        id: attachment.id,
        instance: attachment.instance,
        mode: attachment.mode,
        status: attachment.status,
        attached_host: attachment.attached_host.clone(),
        mountpoint: attachment.mountpoint.clone(),
        attached_at: attachment.attached_at,
    }
}

pub(super) fn usage(project: &str) -> HostUsage {
    HostUsage { project: project.to_owned(), volumes: 2, size_gib: 3, snapshots: 1, snapshots_gib: 2 }
}

/// Changes metadata, and returns the result.
pub(super) fn changed(
    metadata: &mut BTreeMap<String, String>,
    id: VolumeId,
    change: MetadataChange,
) -> Result<BTreeMap<String, String>, Refusal> {
    match change {
        MetadataChange::Merge(new) => metadata.extend(new),
        MetadataChange::Replace(new) => *metadata = new,
        MetadataChange::Remove(key) => {
            if metadata.remove(&key).is_none() {
                return not_found("Metadata", format!("{id} has no metadata with key {key}"));
            }
        }
    }
    Ok(metadata.clone())
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn session_of(initiator: Iqn) -> SessionReport {
    SessionReport {
        initiator,
        isid: "00023d000001".to_owned(),
        id: 3,
        addresses: vec!["10.0.0.2".to_owned()],
        state: "LOGGED_IN".to_owned(),
        in_flight: 0,
        since: Some(NOW),
    }
}

impl State {
    /// A job that has zeroed half of a volume.
    pub(super) fn job(&self, index: usize) -> Job {
        let volume = &self.volumes[index];
        let seen = JobReport {
            volume: volume.id,
            kind: JobKind::Zero,
            done: ByteSize(1 << 30),
            total: ByteSize(3 << 30),
            rate: Some(ByteSize(100 << 20)),
            since: NOW,
            resumed: ByteSize(1 << 20),
            limited: self.job_limit.is_some(),
        };
        Job { seen, volume_name: volume.name.clone(), host: Some("storage1".to_owned()) }
    }

    fn job_host(&self) -> HostJobs {
        HostJobs { host: "storage1".to_owned(), limit: self.job_limit, problem: None }
    }

    /// A job for each volume, and a storage node that does not answer.
    pub(super) fn jobs(&self) -> Jobs {
        let jobs = (0..self.volumes.len()).map(|index| self.job(index)).collect();
        let silent = HostJobs { host: "storage2".to_owned(), limit: None, problem: Some("down".to_owned()) };
        Jobs { jobs, hosts: vec![self.job_host(), silent] }
    }

    pub(super) fn limit_jobs(&mut self, host: &str, limit: Option<ByteSize>) -> Result<HostJobs, Refusal> {
        if host != "storage1" {
            return not_found("Host", host);
        }
        self.job_limit = limit;
        Ok(self.job_host())
    }

    /// Two registrations, of which the first holds the reservation; only its host is known.
    pub(super) fn reservations(&self, caller: &Caller, id: VolumeId) -> Result<VolumeReservations, Refusal> {
        let index = self.volume_index(caller, id)?;
        let initiator = |name: &str| name.parse::<Initiator>().unwrap();
        let (one, two) = (initiator("iqn.2026-01.lab:one"), initiator("iqn.2026-01.lab:two"));
        let isid = || Some("800123450001".to_owned());
        let registration =
            |initiator: &Initiator, key| Registration { initiator: initiator.clone(), isid: isid(), key };
        let holder = ReservationHolder {
            initiator: one.clone(),
            isid: isid(),
            kind: ReservationType::of_code(5),
            since: Some(NOW),
        };
        Ok(VolumeReservations {
            volume: self.volumes[index].id,
            name: self.volumes[index].name.clone(),
            storage: "storage1".to_owned(),
            seen: Reservations {
                generation: 3,
                registrations: vec![registration(&one, u64::MAX), registration(&two, 0xab)],
                truncated: false,
                holder: Some(holder),
                durable: true,
                lost: vec![registration(&two, 0xcd)],
            },
            hosts: vec![(one, "host1".to_owned())],
        })
    }

    /// The answer to a change of reservations, which the fake does not store.
    pub(super) fn change_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: ReservationsChange,
    ) -> Result<[VolumeReservations; 2], Refusal> {
        let before = self.reservations(caller, id)?;
        let mut now = before.clone();
        match change {
            ReservationsChange::Clear => now.seen = Reservations::default(),
            ReservationsChange::Preempt { key, abort } => {
                now.seen.registrations.retain(|one| one.key != key);
                now.seen.durable = !abort;
            }
        }
        Ok([before, now])
    }

    pub(super) fn records_of(
        &self,
        volume: Option<VolumeId>,
        attachment: Option<AttachmentId>,
        limit: u32,
    ) -> Vec<DetachRecord> {
        let meant = |record: &&DetachRecord| {
            volume.is_none_or(|volume| volume == record.volume)
                && attachment.is_none_or(|attachment| attachment == record.attachment)
        };
        self.records.iter().filter(meant).take(limit as usize).cloned().collect()
    }

    pub(super) fn now(&mut self) -> SystemTime {
        self.clock += 1;
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000 + self.clock)
    }

    pub(super) fn make_volume(&mut self, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
        match new.source {
            Some(Source::Snapshot(id)) => drop(self.snapshot(id)?),
            Some(Source::Volume(id)) => drop(self.volume_index(caller, id)?),
            None => {}
        }
        if let Some(zone) = new.hints.zone.as_ref().filter(|zone| *zone != "nova") {
            return Err(Refusal::Invalid(format!("Availability zone '{zone}' is invalid.")));
        }
        self.hints.clone_from(&new.hints);
        self.heard.push(format!("{:?} {:?}", new.id, new.size_gib));
        self.wanted_id.clone_from(&new.id);
        let wanted = new.volume_type.unwrap_or_else(|| "__DEFAULT__".to_owned());
        let found = |kind: &&VolumeType| kind.name == wanted || kind.id.to_string() == wanted;
        let Some(volume_type) = self.types.iter().find(found).cloned() else {
            return not_found("Volume type", wanted);
        };
        let created_at = self.now();
        let volume = Volume {
            id: VolumeId::random(),
            name: new.name,
            description: new.description,
            size_gib: new.size_gib.unwrap_or(1),
            multiattach: volume_type.extra_specs.contains_key("multiattach"),
            volume_type,
            status: VolumeStatus::Creating,
            attach_status: AttachStatus::Detached,
            project: caller.project.clone(),
            user: caller.user.clone(),
            metadata: new.metadata,
            place: VolumePlace {
                agent: AgentId::from_u128(0x57),
                host: Some("storage1@lvm#vg0".to_owned()),
                zone: "nova".to_owned(),
            },
            created_at,
            updated_at: None,
            fault: None,
            attachments: Vec::new(),
            bootable: false,
            readonly: None,
            source: new.source,
        };
        let mut made = volume.clone();
        made.status = VolumeStatus::Available;
        made.updated_at = Some(created_at);
        self.volumes.push(made);
        Ok(volume)
    }

    pub(super) fn make_snapshot(&mut self, caller: &Caller, new: NewSnapshot) -> Result<Snapshot, Refusal> {
        let index = self.volume_index(caller, new.volume)?;
        self.heard.push(format!("{}", new.in_use));
        let snapshot = Snapshot {
            id: VolumeId::random(),
            volume: new.volume,
            name: new.name,
            description: new.description,
            size_gib: self.volumes[index].size_gib,
            status: VolumeStatus::Creating,
            project: caller.project.clone(),
            user: caller.user.clone(),
            metadata: new.metadata,
            created_at: self.now(),
            updated_at: None,
            fault: None,
        };
        let status = VolumeStatus::Available;
        self.snapshots.push(Snapshot { status, updated_at: Some(snapshot.created_at), ..snapshot.clone() });
        Ok(snapshot)
    }

    pub(super) fn snapshot(&mut self, id: VolumeId) -> Result<&mut Snapshot, Refusal> {
        let found = self.snapshots.iter_mut().find(|snapshot| snapshot.id == id);
        found.map_or_else(|| not_found("Snapshot", id), Ok)
    }

    #[expect(clippy::option_option, reason = "not there, there without a value, there with one")]
    pub(super) fn rename_snapshot(
        &mut self,
        id: VolumeId,
        name: Option<Option<String>>,
        description: Option<Option<String>>,
    ) -> Result<Snapshot, Refusal> {
        let snapshot = self.snapshot(id)?;
        snapshot.name = name.unwrap_or_else(|| snapshot.name.clone());
        snapshot.description = description.unwrap_or_else(|| snapshot.description.clone());
        Ok(snapshot.clone())
    }

    /// Sets the status that an action says, or takes the snapshot away.
    pub(super) fn act_on_snapshot(&mut self, id: VolumeId, action: SnapshotAction) -> Result<(), Refusal> {
        let snapshot = self.snapshot(id)?;
        match action {
            SnapshotAction::ResetStatus(status) | SnapshotAction::UpdateStatus(status) => {
                snapshot.status = status;
            }
            SnapshotAction::ForceDelete | SnapshotAction::Unmanage => {
                self.snapshots.retain(|snapshot| snapshot.id != id);
            }
        }
        Ok(())
    }

    pub(super) fn delete_volume(
        &mut self,
        caller: &Caller,
        id: VolumeId,
        cascade: bool,
    ) -> Result<(), Refusal> {
        let index = self.volume_index(caller, id)?;
        self.volumes.remove(index);
        self.snapshots.retain(|snapshot| !cascade || snapshot.volume != id);
        Ok(())
    }

    pub(super) fn volume_index(&self, caller: &Caller, id: VolumeId) -> Result<usize, Refusal> {
        let own = |volume: &Volume| volume.id == id && (caller.admin || volume.project == caller.project);
        self.volumes.iter().position(own).map_or_else(|| not_found("Volume", id), Ok)
    }

    pub(super) fn act(&mut self, caller: &Caller, id: VolumeId, action: VolumeAction) -> Result<(), Refusal> {
        self.volume_index(caller, id)?;
        self.actions.push(action);
        Ok(())
    }

    /// Takes a growth back: a volume grows if it is `extending`.
    pub(super) fn cancel_extend(&mut self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let index = self.volume_index(caller, id)?;
        if self.volumes[index].status != VolumeStatus::Extending {
            return Err(Refusal::Conflict(format!("Volume {id} does not grow")));
        }
        Ok(())
    }

    pub(super) fn pools(&mut self, filter: PoolFilter) -> Result<Vec<PoolState>, Refusal> {
        if filter.volume_type.as_deref() == Some("nosuch") {
            return not_found("Volume type", "nosuch");
        }
        self.pool_filter = filter;
        let capabilities = json!({ "free_capacity_gb": 4.0 }).as_object().cloned().unwrap();
        Ok(vec![PoolState { name: "storage1@lvm#vg0".to_owned(), capabilities }])
    }

    pub(super) fn export(
        &mut self,
        caller: &Caller,
        id: VolumeId,
        ask: ExportAsk,
    ) -> Result<VolumeExport, Refusal> {
        self.volume_index(caller, id)?;
        self.exports.push(ask);
        let begun = self.exports.iter().rev().find_map(|ask| match ask {
            ExportAsk::Begin { id, image } => Some((*id, image.clone())),
            ExportAsk::Cancel | ExportAsk::Look => None,
        });
        let Some((id, image)) = begun else { return not_found("Export", id) };
        let state = match self.exports.last() {
            Some(ExportAsk::Cancel) => ExportState::Ending,
            _ => ExportState::Exporting,
        };
        let why = (state == ExportState::Ending).then(|| "it was cancelled".to_owned());
        let id = id.unwrap_or(UploadId::from_u128(9));
        Ok(VolumeExport { id, image, host: Some("storage1".to_owned()), state, why })
    }

    pub(super) fn volume_state(&self, caller: &Caller, id: VolumeId) -> Result<VolumeState, Refusal> {
        let index = self.volume_index(caller, id)?;
        let volume = self.with_attachments(&self.volumes[index]);
        let (job, cut) = (Some(self.job(index)), self.cut);
        Ok(VolumeState { volume, reserved: 1, holds: 0, review: None, job, cut })
    }

    /// Isolates every volume at once: only the last order is stored.
    pub(super) fn set_isolation(
        &mut self,
        caller: &Caller,
        id: VolumeId,
        change: IsolationChange,
    ) -> Result<(), Refusal> {
        self.volume_index(caller, id)?;
        self.cut = match change {
            IsolationChange::Isolate { force } => {
                Some(VolumeIsolation { in_force: force, since: Some(SystemTime::UNIX_EPOCH) })
            }
            IsolationChange::End => None,
        };
        Ok(())
    }

    pub(super) fn with_attachments(&self, volume: &Volume) -> Volume {
        let mut volume = volume.clone();
        let own = self.attachments.iter().filter(|attachment| attachment.volume == volume.id);
        volume.attachments = own.map(attached).collect();
        let any = |status| volume.attachments.iter().any(|attachment| attachment.status == status);
        if any(AttachmentStatus::Attached) {
            (volume.status, volume.attach_status) = (VolumeStatus::InUse, AttachStatus::Attached);
        } else if any(AttachmentStatus::Attaching) {
            (volume.status, volume.attach_status) = (VolumeStatus::Attaching, AttachStatus::Attaching);
        } else if any(AttachmentStatus::Reserved) {
            (volume.status, volume.attach_status) = (VolumeStatus::Reserved, AttachStatus::Reserved);
        }
        volume
    }

    pub(super) fn type_index(&self, id: Uuid) -> Result<usize, Refusal> {
        self.types.iter().position(|kind| kind.id == id).map_or_else(|| not_found("Volume type", id), Ok)
    }

    pub(super) fn attachment_index(&self, caller: &Caller, id: AttachmentId) -> Result<usize, Refusal> {
        let own = |attachment: &Attachment| {
            attachment.id == id && self.volume_index(caller, attachment.volume).is_ok()
        };
        self.attachments.iter().position(own).map_or_else(|| not_found("Attachment", id), Ok)
    }

    pub(super) fn change_attachment(
        &mut self,
        caller: &Caller,
        id: AttachmentId,
        wait: Wait,
        change: impl FnOnce(&mut Attachment),
    ) -> Result<AttachmentLive, Refusal> {
        self.wait = Some(wait.0);
        let index = self.attachment_index(caller, id)?;
        change(&mut self.attachments[index]);
        Ok(self.live_of(&self.attachments[index]))
    }

    /// A check by which one process and one file system use the disk; other users were not looked
    /// for.
    pub(super) fn check_disk(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentCheck, Refusal> {
        let one = &self.attachments[self.attachment_index(caller, id)?];
        let blank = DiskUser {
            device: "sda".to_owned(),
            kind: DiskUserKind::Process,
            name: "dd".to_owned(),
            pid: Some(7),
            access: Some(DiskAccess::Buffered),
            filesystem: None,
        };
        let mount = DiskUser {
            kind: DiskUserKind::Mount,
            name: "/data".to_owned(),
            pid: None,
            access: None,
            filesystem: Some("ext4".to_owned()),
            ..blank.clone()
        };
        let problem = Problem { object: "buffered_io".into(), text: "dd".into(), cure: Cure::Operator };
        let check = DiskCheck {
            disk: None,
            cache: Some(one.cache),
            users: vec![blank, mount],
            unseen: vec!["what processes have mapped".to_owned()],
            problems: vec![problem],
        };
        Ok(AttachmentCheck { attachment: id, volume: one.volume, host: "host1".to_owned(), check })
    }

    pub(super) fn live_of(&self, attachment: &Attachment) -> AttachmentLive {
        let volume = self.volumes.iter().find(|volume| volume.id == attachment.volume);
        AttachmentLive {
            attachment: attachment.clone(),
            volume_name: volume.and_then(|volume| volume.name.clone()),
            effective_mode: Some(attachment.mode),
            session: Some(true),
            nexus: Some(NexusLive {
                storage: "storage1".to_owned(),
                sessions: attachment
                    .initiator
                    .as_ref()
                    .and_then(Initiators::iqn)
                    .cloned()
                    .map(session_of)
                    .into_iter()
                    .collect(),
                counters: Counters { commands: 7, read_mib: 1, written_mib: 2, active: Some(NOW) },
                unlisted: Some(1),
                looked: Some(NOW),
                missing: false,
            }),
            cache_in_force: attachment.native.map(|_| attachment.cache),
            host_phase: attachment.native.map(|_| "ready".to_owned()),
            secret_rotation: attachment.native.map(|_| Rotating::Host),
            secret_rotated_at: attachment.attached_at,
            device_path: attachment.native.map(|_| format!("/run/mooring/attachments/{}", attachment.id)),
            disk: attachment.native.map(|_| "sda".to_owned()),
            problems: Vec::new(),
            steps_ms: vec![("granted".to_owned(), 3), ("done".to_owned(), 40)],
            revision: self.clock,
        }
    }
}

pub(super) fn connect(attachment: &mut Attachment, connector: Map<String, Value>) {
    let text = |key: &str| connector.get(key).and_then(Value::as_str).map(str::to_owned);
    attachment.attached_host = text("host");
    attachment.mountpoint = text("mountpoint");
    attachment.initiator = text("initiator").and_then(|text| text.parse().ok());
    attachment.connector = Some(connector);
    if attachment.status == AttachmentStatus::Reserved {
        attachment.status = AttachmentStatus::Attaching;
    }
    let info = json!({
        "driver_volume_type": "iscsi",
        "target_discovered": false,
        "target_iqn": format!("iqn.2026-11.dev.mooring:{}", attachment.volume),
        "target_portal": "10.0.0.1:3260",
        "target_lun": 1,
        "volume_id": attachment.volume.to_string(),
        "auth_method": "CHAP",
        "auth_username": "user",
        "auth_password": SECRET,
        "access_mode": attachment.mode.to_string(),
        "encrypted": false,
        "qos_specs": null,
        "cacheable": false,
        "enforce_multipath": false,
    });
    attachment.connection_info = info.as_object().cloned();
}

/// A fence in force.
pub(super) fn fence_of(caller: &Caller, name: &str, reason: Option<String>, state: &State) -> HostFence {
    HostFence {
        id: Uuid::from_u128(1),
        name: name.to_owned(),
        initiators: vec!["iqn.2026-11.dev.mooring:host.7".parse().unwrap()],
        reason,
        user: caller.user.clone(),
        request: caller.request.clone(),
        fenced_at: SystemTime::UNIX_EPOCH,
        lifted_at: None,
        parts: state.fence_parts.clone(),
        exports: state.fence_exports.clone(),
        unknown: state.fence_unknown.clone(),
        disputed: state.fence_disputed.clone(),
    }
}

/// The scheduler and one storage agent.
pub(super) fn services() -> Vec<ServiceState> {
    let service = |binary, host: &str| ServiceState {
        binary,
        host: host.to_owned(),
        zone: "nova".to_owned(),
        up: true,
        disabled: false,
        disabled_reason: None,
        heard_at: Some(SystemTime::UNIX_EPOCH),
    };
    vec![service("cinder-scheduler", "mooring-controller"), service("cinder-volume", "storage1@lvm")]
}

/// The placement of a volume that the second pool took.
pub(super) fn placement_of(volume: VolumeId, hints: Hints) -> Placement {
    Placement {
        volume,
        pool: Some("storage1@lvm#vg0".to_owned()),
        zone: "nova".to_owned(),
        hints,
        tried: vec![("storage2@lvm#vg0".to_owned(), "storage2: no room".to_owned())],
    }
}

/// The only host that serves volumes.
pub(super) fn storage_host() -> StorageHost {
    StorageHost {
        name: "storage1@lvm".to_owned(),
        zone: "nova".to_owned(),
        up: true,
        enabled: false,
        heard_at: Some(SystemTime::UNIX_EPOCH),
    }
}

/// The only enrolled host.
pub(super) fn host() -> Host {
    Host {
        name: "host1".to_owned(),
        address: "unix:/run/mooring/agent.sock".to_owned(),
        agent: Some(AgentId::from_u128(7)),
        initiator: "iqn.2026-11.dev.mooring:host.7".parse().ok(),
        enrolment: Some(super::enrol::enrolment("host1", "https://host1:7710")),
        pools: vec![HostPool { name: "vg0".to_owned(), total: 10, free: 4, ..HostPool::default() }],
        zone: "nova".to_owned(),
        disabled: false,
        disabled_reason: None,
        drained: false,
        up: true,
        why_down: None,
        last_report: Some(SystemTime::UNIX_EPOCH),
        health: None,
        report: Some(crate::small::host_report()),
        problems: Vec::new(),
    }
}

/// A volume of 1 GiB without a name.
pub(super) fn unnamed() -> NewVolume {
    NewVolume {
        id: None,
        name: None,
        description: None,
        size_gib: Some(1),
        source: None,
        volume_type: None,
        metadata: BTreeMap::new(),
        hints: Hints::default(),
    }
}

impl Fake {
    /// The beginning of every call: records the caller, and answers the refusal that a test has
    /// set.
    pub(super) fn ask(&self, caller: &Caller) -> Result<MutexGuard<'_, State>, Refusal> {
        let mut state = self.state();
        state.caller = Some(caller.clone());
        match state.refuse.take() {
            Some(refusal) => Err(refusal),
            None => Ok(state),
        }
    }
}

impl Fake {
    pub(crate) fn new() -> Self {
        let fake = Self(Arc::new(Mutex::new(State::default())));
        fake.state().types.push(VolumeType {
            id: Uuid::from_u128(1),
            name: "__DEFAULT__".to_owned(),
            description: None,
            is_public: true,
            extra_specs: BTreeMap::new(),
        });
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

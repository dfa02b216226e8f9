//! A control plane in memory. It stores what the HTTP layer passes to it, so that tests can read
//! that. It has only the rules on which the layer's answers depend.

mod audit;
mod enrol;
mod leaving;
mod live;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use mooring_controller::domain::{
    AttachAction, AttachStatus, Attached, Attachment, AttachmentCheck, AttachmentLive, AttachmentReceipt,
    AttachmentStatus, AuditCall, AuditLine, AuditQuery, Caller, DetachRecord, ExportAsk, FencePart, Hints,
    Host, HostChange, HostFence, HostJobs, HostUsage, IsolationChange, Job, Jobs, ManageVolume,
    ManageableVolume, Message, MetadataChange, NewAttachment, NewConnector, NewFence, NewSnapshot, NewVolume,
    NexusLive, Placement, PoolFilter, PoolState, ServiceState, Snapshot, SnapshotAction, StorageHost, Volume,
    VolumeAction, VolumeExport, VolumeName, VolumeReservations, VolumeState, VolumeStatus, VolumeType,
    VolumesSummary, Zone,
};
use mooring_controller::http::{Backend, Detached};
use mooring_controller::list::{ListQuery, Page, Test};
use mooring_controller::quota::{Entry, Key, Limit, Limits};
use mooring_controller::rules::retype::MigrationPolicy;
use mooring_controller::service::{
    JoinRefused, JoinRequest, JoinTerms, Joined, NewMode, NewSecrets, Refusal, Wait, Way,
};
use mooring_model::{
    AgentId, AttachmentId, ByteSize, Cache, Cause, Counters, Generation, HeldReservation, Iqn, Mode, Proof,
    Receipt, ReservationType, ReservationsChange, Revoked, SessionReport, Source, VolumeId,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub(crate) use enrol::TOKEN as JOIN_TOKEN;
pub(crate) use state::State;
use state::{changed, connect, host, placement_of, services, whole};

pub(crate) const SECRET: &str = "swordfish-swordfish";

type Done = Result<(), Refusal>;

#[derive(Clone)]
pub(crate) struct Fake(Arc<Mutex<State>>);

fn not_found<T>(kind: &'static str, what: impl std::fmt::Display) -> Result<T, Refusal> {
    Err(Refusal::NotFound { kind, what: what.to_string() })
}

impl Backend for Fake {
    fn record(&self, call: AuditCall) {
        self.keep_call(call);
    }

    async fn audit(&self, caller: &Caller, query: AuditQuery) -> Result<Vec<AuditLine>, Refusal> {
        self.audit_lines(caller, query)
    }

    async fn types(&self, caller: &Caller, query: ListQuery) -> Result<Page<VolumeType>, Refusal> {
        let state = self.ask(caller)?;
        let nothing = query.filters.iter().any(|filter| filter.test == Test::Nothing);
        Ok(whole(if nothing { Vec::new() } else { state.types.clone() }))
    }

    async fn volume_type(&self, caller: &Caller, name_or_id: &str) -> Result<VolumeType, Refusal> {
        let state = self.ask(caller)?;
        let found = |kind: &&VolumeType| kind.name == name_or_id || kind.id.to_string() == name_or_id;
        state.types.iter().find(found).cloned().map_or_else(|| not_found("Volume type", name_or_id), Ok)
    }

    async fn default_type(&self, caller: &Caller) -> Result<VolumeType, Refusal> {
        Ok(self.ask(caller)?.types[0].clone())
    }

    async fn create_type(
        &self,
        caller: &Caller,
        name: &str,
        description: Option<&str>,
        is_public: bool,
        extra_specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        let mut state = self.ask(caller)?;
        if !caller.admin {
            return Err(Refusal::Forbidden("Policy doesn't allow it to be performed.".to_owned()));
        }
        if state.types.iter().any(|kind| kind.name == name) {
            return Err(Refusal::Conflict(format!("Volume Type {name} already exists.")));
        }
        let kind = VolumeType {
            id: Uuid::new_v4(),
            name: name.to_owned(),
            description: description.map(str::to_owned),
            is_public,
            extra_specs,
        };
        state.types.push(kind.clone());
        Ok(kind)
    }

    async fn update_type(
        &self,
        caller: &Caller,
        id: Uuid,
        name: Option<&str>,
        description: Option<&str>,
        is_public: Option<bool>,
    ) -> Result<VolumeType, Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.type_index(id)?;
        let kind = &mut state.types[index];
        kind.name = name.map_or_else(|| kind.name.clone(), str::to_owned);
        kind.description = description.map(str::to_owned).or_else(|| kind.description.clone());
        kind.is_public = is_public.unwrap_or(kind.is_public);
        Ok(kind.clone())
    }

    async fn delete_type(&self, caller: &Caller, id: Uuid) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.type_index(id)?;
        state.types.remove(index);
        Ok(())
    }

    async fn set_extra_specs(
        &self,
        caller: &Caller,
        id: Uuid,
        specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.type_index(id)?;
        state.types[index].extra_specs.extend(specs);
        Ok(state.types[index].clone())
    }

    async fn delete_extra_spec(&self, caller: &Caller, id: Uuid, key: &str) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.type_index(id)?;
        state.types[index].extra_specs.remove(key);
        Ok(())
    }

    async fn type_access(&self, caller: &Caller, id: Uuid) -> Result<Vec<String>, Refusal> {
        let state = self.ask(caller)?;
        state.type_index(id)?;
        Ok(state.access.iter().filter(|(of, _)| *of == id).map(|(_, project)| project.clone()).collect())
    }

    async fn set_type_access(
        &self,
        caller: &Caller,
        id: Uuid,
        project: &str,
        allowed: bool,
    ) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        state.type_index(id)?;
        let entry = (id, project.to_owned());
        let changed = if allowed { state.access.insert(entry) } else { state.access.remove(&entry) };
        if changed { Ok(()) } else { not_found("Volume type access", project) }
    }

    async fn default_types(&self, caller: &Caller) -> Result<Vec<(String, Uuid)>, Refusal> {
        Ok(self.ask(caller)?.defaults.clone().into_iter().collect())
    }

    async fn project_default(&self, caller: &Caller, project: &str) -> Result<Uuid, Refusal> {
        let found = self.ask(caller)?.defaults.get(project).copied();
        found.map_or_else(|| not_found("Default type for project", project), Ok)
    }

    async fn set_project_default(
        &self,
        caller: &Caller,
        project: &str,
        name_or_id: &str,
    ) -> Result<Uuid, Refusal> {
        let mut state = self.ask(caller)?;
        let id = state.types.iter().find(|kind| kind.name == name_or_id).map(|kind| kind.id);
        let Some(id) = id else { return not_found("Volume type", name_or_id) };
        state.defaults.insert(project.to_owned(), id);
        Ok(id)
    }

    async fn unset_project_default(&self, caller: &Caller, project: &str) -> Result<(), Refusal> {
        self.ask(caller)?.defaults.remove(project);
        Ok(())
    }

    async fn quotas(&self, caller: &Caller, _: &str) -> Result<Vec<Entry>, Refusal> {
        Ok(self.ask(caller)?.quotas.table(&BTreeMap::new(), &[]))
    }

    async fn default_quotas(&self, caller: &Caller, _: &str) -> Result<Vec<Entry>, Refusal> {
        drop(self.ask(caller)?);
        Ok(Limits::default().table(&BTreeMap::new(), &[]))
    }

    async fn set_quotas(
        &self,
        caller: &Caller,
        _: &str,
        new: BTreeMap<Key, Limit>,
    ) -> Result<Vec<Entry>, Refusal> {
        let mut state = self.ask(caller)?;
        state.quotas.project.extend(new);
        Ok(state.quotas.table(&BTreeMap::new(), &[]))
    }

    async fn delete_quotas(&self, caller: &Caller, _: &str) -> Result<(), Refusal> {
        self.ask(caller)?.quotas.project.clear();
        Ok(())
    }

    async fn class_quotas(&self, caller: &Caller) -> Result<Vec<Entry>, Refusal> {
        Ok(self.ask(caller)?.quotas.table(&BTreeMap::new(), &[]))
    }

    async fn set_class_quotas(
        &self,
        caller: &Caller,
        new: BTreeMap<Key, Limit>,
    ) -> Result<Vec<Entry>, Refusal> {
        let mut state = self.ask(caller)?;
        state.quotas.class.extend(new);
        Ok(state.quotas.table(&BTreeMap::new(), &[]))
    }

    async fn limits(&self, caller: &Caller, _: Option<&str>) -> Result<Vec<Entry>, Refusal> {
        Ok(self.ask(caller)?.quotas.table(&BTreeMap::new(), &[]))
    }

    async fn retype_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        new_type: &str,
        migration: MigrationPolicy,
    ) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        state.heard.push(format!("{migration:?}"));
        let index = state.volume_index(caller, id)?;
        let kind = state.types.iter().find(|kind| kind.name == new_type).cloned();
        state.volumes[index].volume_type = kind.map_or_else(|| not_found("Volume type", new_type), Ok)?;
        Ok(())
    }

    async fn volume_action(&self, caller: &Caller, id: VolumeId, action: VolumeAction) -> Done {
        self.ask(caller)?.act(caller, id, action)
    }

    async fn force_delete_volume(&self, caller: &Caller, id: VolumeId, cascade: bool) -> Result<(), Refusal> {
        self.ask(caller)?.delete_volume(caller, id, cascade)
    }

    async fn create_volume(&self, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
        self.ask(caller)?.make_volume(caller, new)
    }

    async fn manageable_volumes(
        &self,
        caller: &Caller,
        host: &str,
    ) -> Result<Vec<ManageableVolume>, Refusal> {
        let state = self.ask(caller)?;
        if host == "storage1@lvm#vg0" { Ok(state.lvs.clone()) } else { not_found("Service", host) }
    }

    async fn manage_volume(&self, caller: &Caller, new: ManageVolume) -> Result<Volume, Refusal> {
        let named = NewVolume { name: new.name.clone(), metadata: new.metadata.clone(), ..state::unnamed() };
        self.ask(caller)?.managed = Some(new);
        self.create_volume(caller, named).await
    }

    async fn unmanage_volume(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.delete_volume(caller, id).await
    }

    async fn create_snapshot(&self, caller: &Caller, new: NewSnapshot) -> Result<Snapshot, Refusal> {
        self.ask(caller)?.make_snapshot(caller, new)
    }

    async fn snapshots(&self, caller: &Caller, _: ListQuery) -> Result<Page<Snapshot>, Refusal> {
        Ok(whole(self.ask(caller)?.snapshots.clone()))
    }

    async fn snapshot(&self, caller: &Caller, id: VolumeId) -> Result<Snapshot, Refusal> {
        self.ask(caller)?.snapshot(id).cloned()
    }

    async fn update_snapshot(
        &self,
        caller: &Caller,
        id: VolumeId,
        name: Option<Option<String>>,
        description: Option<Option<String>>,
    ) -> Result<Snapshot, Refusal> {
        self.ask(caller)?.rename_snapshot(id, name, description)
    }

    async fn change_snapshot_metadata(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: MetadataChange,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        changed(&mut self.ask(caller)?.snapshot(id)?.metadata, id, change)
    }

    async fn delete_snapshot(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.act_on_snapshot(id, SnapshotAction::ForceDelete)
    }

    async fn snapshot_action(&self, caller: &Caller, id: VolumeId, action: SnapshotAction) -> Done {
        self.ask(caller)?.act_on_snapshot(id, action)
    }

    async fn delete_volume_with_snapshots(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.delete_volume(caller, id, true)
    }

    async fn volumes(&self, caller: &Caller, query: ListQuery) -> Result<Page<Volume>, Refusal> {
        let state = self.ask(caller)?;
        let own = |volume: &&Volume| query.all_projects || volume.project == caller.project;
        let all = state.volumes.iter().rev().filter(own).map(|volume| state.with_attachments(volume));
        Ok(whole(all.collect()))
    }

    async fn volume_names(&self, caller: &Caller, query: ListQuery) -> Result<Page<VolumeName>, Refusal> {
        let all = self.volumes(caller, query).await?.items;
        Ok(whole(all.into_iter().map(|volume| VolumeName { id: volume.id, name: volume.name }).collect()))
    }

    async fn volumes_summary(
        &self,
        caller: &Caller,
        query: ListQuery,
        _: bool,
    ) -> Result<VolumesSummary, Refusal> {
        let all = self.volumes(caller, query).await?.items;
        let size_gib = all.iter().map(|volume| u64::from(volume.size_gib)).sum();
        Ok(VolumesSummary { count: all.len() as u64, size_gib, metadata: BTreeMap::new() })
    }

    async fn change_metadata(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: MetadataChange,
        only_if: Option<BTreeMap<String, String>>,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.volume_index(caller, id)?;
        let metadata = &mut state.volumes[index].metadata;
        if only_if.is_some_and(|known| known != *metadata) {
            return Err(Refusal::Changed("it has changed".to_owned()));
        }
        changed(metadata, id, change)
    }

    async fn volume(&self, caller: &Caller, id: VolumeId) -> Result<Volume, Refusal> {
        let seen = {
            let state = self.ask(caller)?;
            let index = state.volume_index(caller, id)?;
            state.with_attachments(&state.volumes[index])
        };
        // A change by another caller in between is missed: callers must order dependent changes.
        tokio::task::yield_now().await;
        Ok(seen)
    }

    async fn update_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        name: Option<Option<String>>,
        description: Option<Option<String>>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<Volume, Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.volume_index(caller, id)?;
        let volume = &mut state.volumes[index];
        volume.name = name.unwrap_or_else(|| volume.name.clone());
        volume.description = description.unwrap_or_else(|| volume.description.clone());
        volume.metadata = metadata.unwrap_or_else(|| volume.metadata.clone());
        Ok(volume.clone())
    }

    async fn delete_volume(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.delete_volume(caller, id, false)
    }

    async fn attachments(&self, caller: &Caller, query: ListQuery) -> Result<Page<Attachment>, Refusal> {
        let state = self.ask(caller)?;
        let own = |attachment: &&Attachment| {
            let found = state.volumes.iter().find(|volume| volume.id == attachment.volume);
            found.is_some_and(|volume| query.all_projects || volume.project == caller.project)
        };
        Ok(whole(state.attachments.iter().rev().filter(own).cloned().collect()))
    }

    async fn attachment(&self, caller: &Caller, id: AttachmentId) -> Result<Attachment, Refusal> {
        let state = self.ask(caller)?;
        let index = state.attachment_index(caller, id)?;
        Ok(state.attachments[index].clone())
    }

    async fn create_attachment(
        &self,
        caller: &Caller,
        new: NewAttachment,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let gate = self.state().gate.clone();
        if let Some(gate) = gate {
            self.state().waiting += 1;
            assert!(gate.acquire().await.is_err(), "a gate has no permits; it opens by being closed");
        }
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        let index = state.volume_index(caller, new.volume)?;
        let status = state.with_attachments(&state.volumes[index]).status;
        if status != VolumeStatus::Available && !state.volumes[index].multiattach {
            return Err(Refusal::Invalid(format!(
                "Invalid volume: Volume {} status must be available or downloading to reserve, but the current status \
                 is {status}.",
                new.volume
            )));
        }
        let mut attachment = Attachment {
            id: new.id.unwrap_or_else(AttachmentId::random),
            volume: new.volume,
            instance: new.instance,
            mode: new.mode.unwrap_or(Mode::ReadWrite),
            cache: Cache::On,
            status: AttachmentStatus::Reserved,
            connector: None,
            initiator: None,
            attached_host: None,
            mountpoint: None,
            native: None,
            connection_info: None,
            created_at: state.now(),
            attached_at: None,
            fault: None,
        };
        match new.connector {
            NewConnector::None => {}
            NewConnector::Client(connector) => connect(&mut attachment, connector),
            NewConnector::Native { host, transport, cache } if host == "host1" => {
                state.heard.push(format!("{transport:?}"));
                state.heard.extend(cache.map(|cache| format!("cache {cache}")));
                attachment.cache = cache.unwrap_or_default();
                attachment.attached_host = Some(host);
                attachment.native = Some(AgentId::from_u128(7));
                attachment.status = AttachmentStatus::Attaching;
            }
            NewConnector::Native { host, .. } => return not_found("Host", host),
        }
        state.attachments.push(attachment.clone());
        Ok(attachment)
    }

    async fn update_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        connector: Map<String, Value>,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        let index = state.attachment_index(caller, id)?;
        connect(&mut state.attachments[index], connector);
        Ok(state.attachments[index].clone())
    }

    async fn complete_attachment(&self, caller: &Caller, id: AttachmentId) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        let index = state.attachment_index(caller, id)?;
        let now = state.now();
        state.attachments[index].status = AttachmentStatus::Attached;
        state.attachments[index].attached_at = Some(now);
        Ok(())
    }

    async fn delete_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        force: bool,
        wait: Wait,
    ) -> Result<Detached, Refusal> {
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        state.forced = Some(force);
        let index = state.attachment_index(caller, id)?;
        let gone = state.attachments.remove(index);
        let began = state.now();
        let receipt = gone.initiator.as_ref().and_then(|of| of.iqn().cloned()).map(|initiator| Receipt {
            volume: gone.volume,
            initiator: initiator.clone().into(),
            attachments: vec![id],
            generation: Generation { epoch: 1, counter: 4 },
            revoked: Revoked::Nexus,
            sessions: vec![SessionReport {
                initiator,
                isid: "80123d000001".to_owned(),
                id: 3,
                addresses: vec!["10.0.0.2".to_owned()],
                state: "LOGGED_IN".to_owned(),
                in_flight: 2,
                since: None,
            }],
            proof: if force { Proof::Unproven { in_flight: Some(2) } } else { Proof::Proven },
            began,
            ended: (!force).then_some(began),
            reservation: Some(HeldReservation { kind: ReservationType::of_code(6) }),
            cause: Cause::Revoke,
        });
        let receipt = AttachmentReceipt { attachment: id, receipt };
        state.receipts.push(receipt.clone());
        let others = state.attachments.iter().filter(|other| other.volume == gone.volume).cloned().collect();
        Ok((receipt, others))
    }

    async fn detach(
        &self,
        caller: &Caller,
        id: AttachmentId,
        way: Way,
        wait: Wait,
    ) -> Result<Detached, Refusal> {
        self.state().way = Some(way);
        self.delete_attachment(caller, id, way != Way::Asked, wait).await
    }

    async fn attach_action(
        &self,
        caller: &Caller,
        id: VolumeId,
        action: AttachAction,
        wait: Wait,
    ) -> Result<Option<Map<String, Value>>, Refusal> {
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        state.volume_index(caller, id)?;
        let info = json!({
            "driver_volume_type": "iscsi", "target_lun": 1, "auth_password": SECRET, "enforce_multipath": false,
            "attachment_id": id,
        });
        let opened = matches!(action, AttachAction::InitializeConnection { .. });
        state.action = Some(action);
        Ok(info.as_object().cloned().filter(|_| opened))
    }

    async fn receipts(
        &self,
        caller: &Caller,
        volume: Option<VolumeId>,
        attachment: Option<AttachmentId>,
        limit: u32,
    ) -> Result<Vec<DetachRecord>, Refusal> {
        Ok(self.ask(caller)?.records_of(volume, attachment, limit))
    }

    async fn reservations(&self, caller: &Caller, id: VolumeId) -> Result<VolumeReservations, Refusal> {
        self.ask(caller)?.reservations(caller, id)
    }

    async fn change_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: ReservationsChange,
    ) -> Result<[VolumeReservations; 2], Refusal> {
        self.ask(caller)?.change_reservations(caller, id, change)
    }

    async fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Result<Vec<String>, Refusal> {
        let state = self.ask(caller)?;
        Ok(vec![format!("{id} holds it, one of {}", state.attachments.len())])
    }

    async fn volume_state(&self, caller: &Caller, id: VolumeId) -> Result<VolumeState, Refusal> {
        self.ask(caller)?.volume_state(caller, id)
    }

    async fn jobs(&self, caller: &Caller) -> Result<Jobs, Refusal> {
        Ok(self.ask(caller)?.jobs())
    }

    async fn limit_jobs(
        &self,
        caller: &Caller,
        host: &str,
        limit: Option<ByteSize>,
    ) -> Result<HostJobs, Refusal> {
        self.ask(caller)?.limit_jobs(host, limit)
    }

    async fn live(
        &self,
        caller: &Caller,
        id: AttachmentId,
        newer_than: Option<u64>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        self.ask(caller)?.live(caller, id, newer_than, wait)
    }

    async fn set_mode(
        &self,
        caller: &Caller,
        id: AttachmentId,
        new: NewMode,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let mut state = self.ask(caller)?;
        state.heard.push(format!("{new:?}"));
        state.change_attachment(caller, id, wait, |one| one.mode = new.mode)
    }

    async fn set_cache(
        &self,
        caller: &Caller,
        id: AttachmentId,
        cache: Cache,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        self.ask(caller)?.change_attachment(caller, id, wait, |one| one.cache = cache)
    }

    async fn rotate_secrets(
        &self,
        caller: &Caller,
        id: VolumeId,
        new: NewSecrets,
        wait: Wait,
    ) -> Result<Vec<AttachmentLive>, Refusal> {
        self.ask(caller)?.rotate_secrets(caller, id, new, wait)
    }

    async fn check_disk(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentCheck, Refusal> {
        self.ask(caller)?.check_disk(caller, id)
    }

    async fn live_all(&self, caller: &Caller) -> Result<Vec<AttachmentLive>, Refusal> {
        Ok(self.ask(caller)?.live_all())
    }

    async fn receipt(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentReceipt, Refusal> {
        self.ask(caller)?.receipt(id)
    }

    async fn raise_epoch(&self, caller: &Caller) -> Result<u64, Refusal> {
        self.ask(caller).map(|_| 2)
    }

    async fn cancel_extend(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.cancel_extend(caller, id)
    }

    async fn volume_export(
        &self,
        caller: &Caller,
        id: VolumeId,
        ask: ExportAsk,
    ) -> Result<VolumeExport, Refusal> {
        self.ask(caller)?.export(caller, id, ask)
    }

    async fn set_isolation(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: IsolationChange,
    ) -> Result<(), Refusal> {
        self.ask(caller)?.set_isolation(caller, id, change)
    }

    async fn confirm_review(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.volume_index(caller, id).map(|_| ())
    }

    async fn pools(&self, caller: &Caller, filter: PoolFilter) -> Result<Vec<PoolState>, Refusal> {
        self.ask(caller)?.pools(filter)
    }

    async fn capabilities(&self, caller: &Caller, host: &str) -> Result<Value, Refusal> {
        drop(self.ask(caller)?);
        live::capabilities_of(host)
    }

    async fn zones(&self, caller: &Caller) -> Result<Vec<Zone>, Refusal> {
        drop(self.ask(caller)?);
        Ok(vec![Zone { name: "nova".to_owned(), available: true }])
    }

    async fn services(&self, caller: &Caller) -> Result<Vec<ServiceState>, Refusal> {
        drop(self.ask(caller)?);
        Ok(services())
    }

    async fn change_service(
        &self,
        caller: &Caller,
        binary: &str,
        host: &str,
        change: HostChange,
    ) -> Result<(), Refusal> {
        self.service_said(caller, (binary, host), change)
    }

    async fn change_host(&self, caller: &Caller, name: &str, change: HostChange) -> Result<Host, Refusal> {
        self.host_said(self.hosts(caller).await?, name, change)
    }

    fn authority(&self) -> Result<String, Refusal> {
        Ok(enrol::AUTHORITY.to_owned())
    }

    async fn join(&self, asked: JoinRequest) -> Result<Joined, JoinRefused> {
        self.joined(asked)
    }

    async fn make_join_token(&self, caller: &Caller, name: &str, terms: JoinTerms) -> enrol::Made {
        self.new_token(caller, name, terms)
    }

    async fn revoke_host(&self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        self.revoked(caller, name)
    }

    leaving::calls!();

    async fn fence_host(
        &self,
        caller: &Caller,
        name: &str,
        new: NewFence,
        wait: Wait,
    ) -> Result<HostFence, Refusal> {
        self.fenced(caller, name, new, wait)
    }

    async fn unfence_host(&self, caller: &Caller, name: &str, anyway: bool) -> Result<HostFence, Refusal> {
        self.unfenced(self.fence(caller, name).await?, anyway)
    }

    async fn fence(&self, caller: &Caller, name: &str) -> Result<HostFence, Refusal> {
        let found = self.ask(caller)?.fence.clone().filter(|fence| fence.name == name);
        found.map_or_else(|| not_found("Fence", name), Ok)
    }

    async fn fences(&self, caller: &Caller, _: bool) -> Result<Vec<HostFence>, Refusal> {
        Ok(self.ask(caller)?.fence.iter().cloned().collect())
    }

    async fn placement(&self, caller: &Caller, id: VolumeId) -> Result<Placement, Refusal> {
        let state = self.ask(caller)?;
        state.volume_index(caller, id)?;
        Ok(placement_of(id, state.hints.clone()))
    }

    async fn messages(&self, caller: &Caller, _: ListQuery) -> Result<Page<Message>, Refusal> {
        Ok(whole(self.ask(caller)?.messages.clone()))
    }

    async fn message(&self, caller: &Caller, id: Uuid) -> Result<Message, Refusal> {
        let found = self.ask(caller)?.messages.iter().find(|message| message.id == id).cloned();
        found.map_or_else(|| not_found("Message", id), Ok)
    }

    async fn delete_message(&self, caller: &Caller, id: Uuid) -> Result<(), Refusal> {
        self.message(caller, id).await?;
        self.state().messages.retain(|message| message.id != id);
        Ok(())
    }

    async fn storage_hosts(&self, caller: &Caller) -> Result<Vec<StorageHost>, Refusal> {
        self.ask(caller).map(|_| vec![state::storage_host()])
    }

    async fn storage_host(&self, caller: &Caller, name: &str) -> Result<Vec<HostUsage>, Refusal> {
        self.usage_of(caller, name)
    }

    async fn hosts(&self, caller: &Caller) -> Result<Vec<Host>, Refusal> {
        self.ask(caller).map(|_| vec![host()])
    }
}

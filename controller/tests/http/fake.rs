//! A control plane in memory. It keeps what the front gives it, so that tests see what reached it; its rules are only as
//! many as the front's answers depend on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use mooring_controller::domain::{
    AttachStatus, Attachment, AttachmentLive, AttachmentReceipt, AttachmentStatus, Caller, Host, HostPool,
    NewAttachment, NewConnector, NewVolume, Volume, VolumeStatus, VolumeType,
};
use mooring_controller::http::{Backend, Detached};
use mooring_controller::service::{Refusal, Wait};
use mooring_model::{
    AgentId, AttachmentId, Generation, Mode, Proof, Receipt, Revoked, SessionReport, VolumeId,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub(crate) const SECRET: &str = "swordfish-swordfish";

#[derive(Default)]
pub(crate) struct State {
    pub(crate) types: Vec<VolumeType>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) receipts: Vec<AttachmentReceipt>,
    /// Who asked last.
    pub(crate) caller: Option<Caller>,
    /// How long the last call might have waited.
    pub(crate) wait: Option<Duration>,
    pub(crate) forced: Option<bool>,
    pub(crate) newer_than: Option<u64>,
    /// What the next call answers instead.
    pub(crate) refuse: Option<Refusal>,
    /// New attachments wait here until it is closed.
    pub(crate) gate: Option<Arc<tokio::sync::Semaphore>>,
    /// How many came to the gate.
    pub(crate) waiting: usize,
    clock: u64,
}

#[derive(Clone)]
pub(crate) struct Fake(Arc<Mutex<State>>);

fn not_found<T>(kind: &'static str, what: impl std::fmt::Display) -> Result<T, Refusal> {
    Err(Refusal::NotFound { kind, what: what.to_string() })
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

    fn ask(&self, caller: &Caller) -> Result<MutexGuard<'_, State>, Refusal> {
        let mut state = self.state();
        state.caller = Some(caller.clone());
        match state.refuse.take() {
            Some(refusal) => Err(refusal),
            None => Ok(state),
        }
    }
}

impl State {
    fn now(&mut self) -> SystemTime {
        self.clock += 1;
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000 + self.clock)
    }

    fn volume_index(&self, caller: &Caller, id: VolumeId) -> Result<usize, Refusal> {
        let own = |volume: &Volume| volume.id == id && (caller.admin || volume.project == caller.project);
        self.volumes.iter().position(own).map_or_else(|| not_found("Volume", id), Ok)
    }

    fn with_attachments(&self, volume: &Volume) -> Volume {
        let mut volume = volume.clone();
        volume.attachments =
            self.attachments.iter().filter(|attachment| attachment.volume == volume.id).cloned().collect();
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

    fn type_index(&self, id: Uuid) -> Result<usize, Refusal> {
        self.types.iter().position(|kind| kind.id == id).map_or_else(|| not_found("Volume type", id), Ok)
    }

    fn attachment_index(&self, caller: &Caller, id: AttachmentId) -> Result<usize, Refusal> {
        let own = |attachment: &Attachment| {
            attachment.id == id && self.volume_index(caller, attachment.volume).is_ok()
        };
        self.attachments.iter().position(own).map_or_else(|| not_found("Attachment", id), Ok)
    }

    fn live_of(&self, attachment: &Attachment) -> AttachmentLive {
        let volume = self.volumes.iter().find(|volume| volume.id == attachment.volume);
        AttachmentLive {
            attachment: attachment.clone(),
            volume_name: volume.and_then(|volume| volume.name.clone()),
            effective_mode: Some(attachment.mode),
            session: Some(true),
            session_addresses: vec!["10.0.0.2".to_owned()],
            host_phase: attachment.native.map(|_| "ready".to_owned()),
            device_path: attachment.native.map(|_| format!("/run/mooring/attachments/{}", attachment.id)),
            disk: attachment.native.map(|_| "sda".to_owned()),
            problems: Vec::new(),
            steps_ms: vec![("granted".to_owned(), 3), ("done".to_owned(), 40)],
            revision: self.clock,
        }
    }
}

fn connect(attachment: &mut Attachment, connector: Map<String, Value>) {
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

impl Backend for Fake {
    async fn types(&self, caller: &Caller) -> Result<Vec<VolumeType>, Refusal> {
        Ok(self.ask(caller)?.types.clone())
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

    async fn create_volume(&self, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
        let mut state = self.ask(caller)?;
        let wanted = new.volume_type.unwrap_or_else(|| "__DEFAULT__".to_owned());
        let found = |kind: &&VolumeType| kind.name == wanted || kind.id.to_string() == wanted;
        let Some(volume_type) = state.types.iter().find(found).cloned() else {
            return not_found("Volume type", wanted);
        };
        let created_at = state.now();
        let volume = Volume {
            id: VolumeId::random(),
            name: new.name,
            description: new.description,
            size_gib: new.size_gib,
            multiattach: volume_type.extra_specs.contains_key("multiattach"),
            volume_type,
            status: VolumeStatus::Creating,
            attach_status: AttachStatus::Detached,
            project: caller.project.clone(),
            user: caller.user.clone(),
            metadata: new.metadata,
            host: Some("storage1@lvm#vg0".to_owned()),
            created_at,
            updated_at: None,
            fault: None,
            attachments: Vec::new(),
        };
        let mut made = volume.clone();
        made.status = VolumeStatus::Available;
        made.updated_at = Some(created_at);
        state.volumes.push(made);
        Ok(volume)
    }

    async fn volumes(&self, caller: &Caller, all_projects: bool) -> Result<Vec<Volume>, Refusal> {
        let state = self.ask(caller)?;
        let own = |volume: &&Volume| all_projects || volume.project == caller.project;
        Ok(state.volumes.iter().rev().filter(own).map(|volume| state.with_attachments(volume)).collect())
    }

    async fn volume(&self, caller: &Caller, id: VolumeId) -> Result<Volume, Refusal> {
        let seen = {
            let state = self.ask(caller)?;
            let index = state.volume_index(caller, id)?;
            state.with_attachments(&state.volumes[index])
        };
        // What others do in between is not in it: a change that is based on it must be ordered by its maker.
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
        let mut state = self.ask(caller)?;
        let index = state.volume_index(caller, id)?;
        state.volumes.remove(index);
        Ok(())
    }

    async fn attachments(
        &self,
        caller: &Caller,
        all_projects: bool,
        volume: Option<VolumeId>,
    ) -> Result<Vec<Attachment>, Refusal> {
        let state = self.ask(caller)?;
        let own = |id| {
            let found = state.volumes.iter().find(|volume| volume.id == id);
            found.is_some_and(|volume| all_projects || volume.project == caller.project)
        };
        let wanted = |attachment: &&Attachment| {
            volume.is_none_or(|id| id == attachment.volume) && own(attachment.volume)
        };
        Ok(state.attachments.iter().filter(wanted).cloned().collect())
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
            NewConnector::Native(host) if host == "host1" => {
                attachment.attached_host = Some(host);
                attachment.native = Some(AgentId::from_u128(7));
                attachment.status = AttachmentStatus::Attaching;
            }
            NewConnector::Native(host) => return not_found("Host", host),
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
        let receipt = gone.initiator.clone().map(|initiator| Receipt {
            volume: gone.volume,
            initiator: initiator.clone(),
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
            }],
            proof: if force { Proof::Unproven { in_flight: 2 } } else { Proof::Proven },
            began,
            ended: (!force).then_some(began),
        });
        let receipt = AttachmentReceipt { attachment: id, receipt };
        state.receipts.push(receipt.clone());
        let others = state.attachments.iter().filter(|other| other.volume == gone.volume).cloned().collect();
        Ok((receipt, others))
    }

    async fn live(
        &self,
        caller: &Caller,
        id: AttachmentId,
        newer_than: Option<u64>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        state.newer_than = newer_than;
        let index = state.attachment_index(caller, id)?;
        Ok(state.live_of(&state.attachments[index]))
    }

    async fn live_all(&self, caller: &Caller) -> Result<Vec<AttachmentLive>, Refusal> {
        let state = self.ask(caller)?;
        Ok(state.attachments.iter().map(|attachment| state.live_of(attachment)).collect())
    }

    async fn receipt(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentReceipt, Refusal> {
        let state = self.ask(caller)?;
        let found = state.receipts.iter().find(|receipt| receipt.attachment == id).cloned();
        found.map_or_else(|| not_found("Attachment", id), Ok)
    }

    async fn raise_epoch(&self, caller: &Caller) -> Result<u64, Refusal> {
        drop(self.ask(caller)?);
        Ok(2)
    }

    async fn confirm_review(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.ask(caller)?.volume_index(caller, id).map(|_| ())
    }

    async fn hosts(&self, caller: &Caller) -> Result<Vec<Host>, Refusal> {
        drop(self.ask(caller)?);
        Ok(vec![Host {
            name: "host1".to_owned(),
            address: "unix:/run/mooring/agent.sock".to_owned(),
            agent: Some(AgentId::from_u128(7)),
            initiator: "iqn.2026-11.dev.mooring:host.7".parse().ok(),
            pools: vec![HostPool { name: "vg0".to_owned(), total: 10, free: 4 }],
            up: true,
            why_down: None,
            last_report: Some(SystemTime::UNIX_EPOCH),
            problems: Vec::new(),
        }])
    }
}

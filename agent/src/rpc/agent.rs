//! gRPC service of the storage agent: translates between wire and engine. No decision is made here.
//!
//! What must never happen here: a secret in a log, or in an answer to somebody who did not ask for
//! it; an error without who can cure it.

use std::pin::Pin;
use std::time::Duration;

use mooring_api::v1;
use mooring_api::v1::agent_server::Agent;
use mooring_model::{AgentId, ByteSize, Chain, ClusterId, Cure, ReservationsChange, SpecError, VolumeId};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use crate::capabilities;
use crate::clock;
use crate::config::LIMIT_MIN;
use crate::engine::{
    Change, Engine, LiveSessions, PutExport, PutVolume, Refusal, Status as VolumeState, VolumeRequest,
};
use crate::store::StoreError;

/// Number of reports that one watcher may lag behind.
const WATCH_QUEUED_MAX: usize = 256;

/// Time that the first report waits for the capabilities of this host.
const CAPABILITIES_WITHIN: Duration = Duration::from_secs(2);

/// The service.
pub struct Service {
    engine: Engine,
    host_name: String,
    stop: watch::Receiver<bool>,
}

impl Service {
    /// Makes the service of this engine. It ends its streams at `stop`.
    pub fn new(engine: Engine, stop: watch::Receiver<bool>) -> Self {
        let host_name = capabilities::host_name();
        Self { engine, host_name, stop }
    }

    fn deadline(&self, asked_ms: u32) -> Duration {
        super::deadline(self.engine.config(), asked_ms)
    }
}

fn cure_word(cure: Cure) -> &'static str {
    match cure {
        Cure::Retry => "retry",
        Cure::FixSpec => "fix_spec",
        Cure::Operator => "operator",
        Cure::Bug => "bug",
    }
}

pub(crate) fn status_of(code: Code, text: impl Into<String>, cure: Cure) -> Status {
    let mut status = Status::new(code, text);
    if let Ok(word) = cure_word(cure).parse() {
        status.metadata_mut().insert(mooring_api::CURE_KEY, word);
    }
    status
}

pub(crate) fn refused(refusal: &Refusal) -> Status {
    let code = match refusal {
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::UnknownVolume(_) => Code::NotFound,
        Refusal::OtherCluster { .. } | Refusal::Store(StoreError::Pinned { .. }) => Code::PermissionDenied,
        Refusal::Stale { .. }
        | Refusal::Conflict { .. }
        | Refusal::Store(StoreError::Stale { .. } | StoreError::Conflict { .. }) => Code::Aborted,
        Refusal::NotAllowed(_)
        | Refusal::Precondition { .. }
        | Refusal::LiveSession { .. }
        | Refusal::Store(StoreError::NotFresh { .. }) => Code::FailedPrecondition,
        Refusal::NaaCollision { .. } | Refusal::KnownId { .. } | Refusal::Foreign(_) => Code::AlreadyExists,
        Refusal::NoSpace(_) | Refusal::Store(StoreError::Full { .. }) => Code::ResourceExhausted,
        Refusal::Busy { .. } | Refusal::Volumes(_) | Refusal::Target { .. } | Refusal::Store(_) => {
            Code::Unavailable
        }
    };
    tracing::warn!(?code, error = %Chain(refusal), "refused");
    status_of(code, Chain(refusal).to_string(), refusal.cure())
}

/// Returns the status for an unknown volume. It answers a question and refuses nothing, so it is
/// not logged.
fn unknown(id: VolumeId) -> Status {
    let refusal = Refusal::UnknownVolume(id);
    status_of(Code::NotFound, refusal.to_string(), refusal.cure())
}

pub(crate) fn invalid(error: SpecError) -> Status {
    status_of(Code::InvalidArgument, Chain(&Refusal::Invalid(error)).to_string(), Cure::FixSpec)
}

pub(crate) fn volume_id(text: &str) -> Result<VolumeId, Status> {
    text.parse()
        .map_err(|error: mooring_model::ParseIdError| invalid(SpecError::new("volume_id", error.to_string())))
}

pub(crate) fn cluster_id(sender: Option<&v1::Sender>) -> Result<ClusterId, Status> {
    let sender = sender.ok_or_else(|| invalid(SpecError::new("sender", "is missing")))?;
    let text = &sender.cluster_id;
    text.parse().map_err(|error: mooring_model::ParseIdError| {
        invalid(SpecError::new("sender.cluster_id", error.to_string()))
    })
}

/// Choice whether secrets leave with an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrets {
    /// Secrets stay here.
    Left,
    /// The sender of the specs wants its secrets back.
    Sent,
}

impl Secrets {
    pub(crate) fn asked(with_secrets: bool) -> Self {
        if with_secrets { Self::Sent } else { Self::Left }
    }
}

/// Removes the secrets from an export's spec.
fn without_secrets(mut spec: v1::ExportSpec) -> v1::ExportSpec {
    for chap in spec.grants.iter_mut().filter_map(|grant| grant.chap.as_mut()) {
        for side in [chap.initiator.as_mut(), chap.mutual.as_mut()].into_iter().flatten() {
            side.secret.clear();
        }
    }
    spec
}

fn state_to_wire(state: &VolumeState, secrets: Secrets) -> v1::VolumeStatus {
    let (volume_stamp, volume_opaque) = state.volume_spec.clone().unzip();
    let (export_stamp, export_opaque) = state.export_spec.clone().unzip();
    let export = state.wanted.as_ref().map(mooring_api::export_to_wire);
    v1::VolumeStatus {
        volume_id: state.id.to_string(),
        volume: Some((&state.volume).into()),
        volume_stamp: volume_stamp.as_ref().map(mooring_api::stamp_to_wire),
        volume_opaque: volume_opaque.unwrap_or_default(),
        export: state.export.as_ref().map(Into::into),
        export_stamp: export_stamp.as_ref().map(mooring_api::stamp_to_wire),
        export_opaque: export_opaque.unwrap_or_default(),
        export_spec: match secrets {
            Secrets::Left => export.map(without_secrets),
            Secrets::Sent => export,
        },
        receipts: state.receipts.iter().map(Into::into).collect(),
        volume_spec: state.wanted_volume.as_ref().map(Into::into),
        looked_now: Some(state.looked_now),
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

type Reports = Pin<Box<dyn Stream<Item = Result<v1::Report, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Service {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        let asked = request.into_inner();
        let protocol = asked.protocol_max.min(mooring_api::PROTOCOL_MAX);
        if protocol < asked.protocol_min.max(mooring_api::PROTOCOL_MIN) {
            let text = format!(
                "no common protocol: this agent speaks {} to {}, the caller ({}) {} to {}; upgrade the older one",
                mooring_api::PROTOCOL_MIN,
                mooring_api::PROTOCOL_MAX,
                asked.software.chars().take(80).collect::<String>(),
                asked.protocol_min,
                asked.protocol_max
            );
            return Err(status_of(Code::FailedPrecondition, text, Cure::Operator));
        }
        let config = self.engine.config();
        let pinned = self.engine.cluster().map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::HelloResponse {
            protocol,
            software: concat!("mooring-agent ", env!("CARGO_PKG_VERSION")).to_owned(),
            agent_id: self.engine.agent_id().to_string(),
            host_name: self.host_name.clone(),
            cluster_id: pinned.map(|cluster| cluster.to_string()).unwrap_or_default(),
            portals: config.portals.iter().map(ToString::to_string).collect(),
            groups: config.groups.iter().map(|group| group.name.to_string()).collect(),
            initiator: config
                .host
                .as_ref()
                .map(|_| config.iqn_prefix.initiator(self.engine.agent_id()).to_string())
                .unwrap_or_default(),
            fresh: self.engine.store().is_fresh(),
            newest_epoch: self.engine.store().newest_epoch(),
        }))
    }

    async fn adopt(&self, request: Request<v1::AdoptRequest>) -> Result<Response<v1::AdoptResponse>, Status> {
        let adopt = request.into_inner();
        let cluster = cluster_id(adopt.sender.as_ref())?;
        let agent: AgentId = adopt.agent_id.parse().map_err(|error: mooring_model::ParseIdError| {
            invalid(SpecError::new("agent_id", error.to_string()))
        })?;
        let was = self.engine.agent_id();
        self.engine.adopt(cluster, agent).await.map_err(|refusal| refused(&refusal))?;
        if was != agent {
            tracing::warn!(%was, %agent, %cluster, "the store was empty: the controller has restored this host's agent id");
        }
        Ok(Response::new(v1::AdoptResponse {}))
    }

    async fn put_volume(
        &self,
        request: Request<v1::PutVolumeRequest>,
    ) -> Result<Response<v1::PutVolumeResponse>, Status> {
        use v1::put_volume_request::Wish;
        let put = request.into_inner();
        let volume = volume_id(&put.volume_id)?;
        let request = match &put.wish {
            None => {
                return Err(invalid(SpecError::new(
                    "wish",
                    "is missing: the request has neither a spec nor a tombstone",
                )));
            }
            Some(Wish::Spec(spec)) => {
                VolumeRequest::Spec(mooring_api::volume_from_wire(volume, spec).map_err(invalid)?)
            }
            Some(Wish::Tombstone(v1::Tombstone { destroy_data: true, release: true })) => {
                let why = "destroy_data and release exclude each other: an unmanaged volume keeps its data";
                return Err(invalid(SpecError::new("tombstone", why)));
            }
            Some(Wish::Tombstone(v1::Tombstone { release: true, .. })) => VolumeRequest::Release,
            Some(Wish::Tombstone(tombstone)) => VolumeRequest::Tombstone { destroy: tombstone.destroy_data },
        };
        let deadline = self.deadline(put.deadline_ms);
        let put = PutVolume {
            cluster: cluster_id(put.sender.as_ref())?,
            volume,
            stamp: mooring_api::stamp_from_wire(put.stamp.as_ref()).map_err(invalid)?,
            request,
            opaque: put.opaque,
            new: put.new,
        };
        let answer = self.engine.put_volume(put, deadline).await.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::PutVolumeResponse { report: Some((&answer.report).into()), done: answer.done }))
    }

    async fn put_export(
        &self,
        request: Request<v1::PutExportRequest>,
    ) -> Result<Response<v1::PutExportResponse>, Status> {
        use v1::put_export_request::Wish;
        let decoded = clock::instant();
        let put = request.into_inner();
        let live_sessions = match put.live_sessions() {
            v1::LiveSessions::Refuse => LiveSessions::Refuse,
            v1::LiveSessions::Cut | v1::LiveSessions::Unspecified => LiveSessions::End,
        };
        let spec = match put.wish {
            None => {
                return Err(invalid(SpecError::new(
                    "wish",
                    "is missing: the request has neither a spec nor a tombstone",
                )));
            }
            Some(Wish::Spec(spec)) => Some(spec),
            Some(Wish::Tombstone(_)) => None,
        };
        let deadline = self.deadline(put.deadline_ms);
        let put = PutExport {
            cluster: cluster_id(put.sender.as_ref())?,
            volume: volume_id(&put.volume_id)?,
            stamp: mooring_api::stamp_from_wire(put.stamp.as_ref()).map_err(invalid)?,
            spec,
            opaque: put.opaque,
            live_sessions,
            reservations_copy: put.reservations_copy,
            decoded,
        };
        let answer = self.engine.put_export(put, deadline).await.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::PutExportResponse {
            report: answer.report.as_ref().map(Into::into),
            done: answer.done,
            receipts: answer.receipts.iter().map(Into::into).collect(),
            timing: Some(v1::Timing {
                durable_us: micros(answer.durable),
                seen_us: answer.seen.map_or(0, micros),
                tree_operations: answer.operations,
            }),
        }))
    }

    async fn get_volume(
        &self,
        request: Request<v1::GetVolumeRequest>,
    ) -> Result<Response<v1::VolumeStatus>, Status> {
        let id = volume_id(&request.into_inner().volume_id)?;
        let state = self.engine.status(id).await.ok_or_else(|| unknown(id))?;
        Ok(Response::new(state_to_wire(&state, Secrets::Left)))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let asked = request.into_inner();
        let secrets = Secrets::asked(asked.with_secrets);
        let states = self.engine.statuses(asked.with_tombstones).await;
        let volumes = states.iter().map(|state| state_to_wire(state, secrets)).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes }))
    }

    async fn list_lvs(
        &self,
        request: Request<v1::ListLvsRequest>,
    ) -> Result<Response<v1::ListLvsResponse>, Status> {
        let only = request.into_inner().group;
        let all = self.engine.candidates().await.map_err(|refusal| refused(&refusal))?;
        let lvs = all.into_iter().filter(|lv| only.is_empty() || lv.group == only).map(|lv| v1::Lv {
            group: lv.group,
            name: lv.name,
            uuid: lv.uuid,
            size_bytes: lv.size.0,
            thin: lv.thin,
            volume_id: lv.volume.map_or_else(String::new, |id| id.to_string()),
            unsafe_because: lv.unsafe_because.unwrap_or_default(),
        });
        Ok(Response::new(v1::ListLvsResponse { lvs: lvs.collect() }))
    }

    async fn get_capabilities(
        &self,
        _: Request<v1::GetCapabilitiesRequest>,
    ) -> Result<Response<v1::Capabilities>, Status> {
        Ok(Response::new(self.engine.capabilities(&self.host_name).await))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let asked = request.into_inner().volume_id;
        let only = if asked.is_empty() { None } else { Some(volume_id(&asked)?) };
        if let Some(id) = only.filter(|id| !self.engine.knows(*id)) {
            return Err(unknown(id));
        }
        let planned = self.engine.plan(only).await;
        let step = |step: crate::engine::PlannedStep| v1::PlannedStep {
            volume_id: step.volume.to_string(),
            step: step.step,
            why: step.why,
        };
        Ok(Response::new(v1::PlanResponse {
            steps: planned.steps.into_iter().map(step).collect(),
            blocked: planned.blocked.iter().map(Into::into).collect(),
        }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let asked = request.into_inner().volume_id;
        let only = if asked.is_empty() { None } else { Some(volume_id(&asked)?) };
        let (jobs, limit) = self.engine.jobs(only);
        let limit_bytes = limit.map_or(0, |limit| limit.0);
        Ok(Response::new(v1::ListJobsResponse { jobs: jobs.iter().map(Into::into).collect(), limit_bytes }))
    }

    async fn set_job_limit(
        &self,
        request: Request<v1::SetJobLimitRequest>,
    ) -> Result<Response<v1::SetJobLimitResponse>, Status> {
        let asked = request.into_inner();
        let sender = cluster_id(asked.sender.as_ref())?;
        let limit = Some(ByteSize(asked.limit_bytes)).filter(|limit| limit.0 > 0);
        if let Some(limit) = limit.filter(|limit| *limit < LIMIT_MIN) {
            let why = format!("{limit} a second is too little: want {LIMIT_MIN} or more, or 0 for no limit");
            return Err(invalid(SpecError::new("limit_bytes", why)));
        }
        let was = self.engine.set_job_limit(sender, limit).await.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::SetJobLimitResponse { was_bytes: was.map_or(0, |was| was.0) }))
    }

    async fn change_reservations(
        &self,
        request: Request<v1::ChangeReservationsRequest>,
    ) -> Result<Response<v1::ChangeReservationsResponse>, Status> {
        use v1::change_reservations_request::Change;
        let asked = request.into_inner();
        let sender = cluster_id(asked.sender.as_ref())?;
        let volume = volume_id(&asked.volume_id)?;
        let change = match asked.change {
            None => return Err(invalid(SpecError::new("change", "is missing: want clear or preempt"))),
            Some(Change::Clear(v1::ClearReservations {})) => ReservationsChange::Clear,
            Some(Change::Preempt(v1::PreemptReservations { key, abort })) => {
                ReservationsChange::Preempt { key, abort }
            }
        };
        let deadline = self.deadline(asked.deadline_ms);
        let changed = self.engine.change_reservations(sender, volume, change, deadline).await;
        let changed = changed.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::ChangeReservationsResponse {
            before: changed.before.as_ref().map(Into::into),
            now: changed.now.as_ref().map(Into::into),
        }))
    }

    type WatchStream = Reports;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Reports>, Status> {
        // Subscribed before the state is read: no change in between is lost.
        let watcher = Watcher {
            changes: self.engine.changes(),
            lvm: self.engine.lvm().news(),
            engine: self.engine.clone(),
            host_name: self.host_name.clone(),
        };
        let (send, receive) = mpsc::channel(WATCH_QUEUED_MAX);
        let mut stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = watcher.report(&send) => {}
                // A stream without an end must not hold up the end of the agent.
                _ = stop.wait_for(|stop| *stop) => {
                    let text = "the agent stops, and its exports stay: watch again when it is back";
                    // A watcher that has not read everything before sees the connection end.
                    let _ = send.try_send(Err(status_of(Code::Unavailable, text, Cure::Retry)));
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }
}

type Sending = mpsc::Sender<Result<v1::Report, Status>>;

fn one(what: v1::report::What) -> v1::Report {
    v1::Report { what: Some(what) }
}

/// A reader of reports.
struct Watcher {
    engine: Engine,
    host_name: String,
    changes: broadcast::Receiver<Change>,
    lvm: watch::Receiver<u64>,
}

impl Watcher {
    /// Reports everything, and then changes, until nobody reads any more or the reader lags too far
    /// behind.
    async fn report(self, send: &Sending) {
        use v1::report::What;
        // Reports of revokes do not wait for an LVM that hangs.
        let told = self.first_capabilities().await;
        let mut first: Vec<What> = told.iter().cloned().map(What::Capabilities).collect();
        for state in self.engine.statuses(false).await {
            first.push(What::Volume((&state.volume).into()));
            first.extend(state.export.as_ref().map(|export| What::Export(export.into())));
            // Receipts that were proven while nobody watched are included. Oldest first, as they
            // came.
            first.extend(state.receipts.iter().rev().map(|receipt| What::Receipt(receipt.into())));
        }
        first.push(What::Synced(v1::SyncMark {}));
        for what in first {
            if send.send(Ok(one(what))).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = report_changes(self.changes, send) => {}
            () = report_capabilities(&self.engine, &self.host_name, self.lvm, told, send) => {}
        }
    }

    /// Returns the capabilities of this host. `None` if they are not known within a moment.
    async fn first_capabilities(&self) -> Option<v1::Capabilities> {
        let asked = self.engine.capabilities(&self.host_name);
        let known = tokio::time::timeout(CAPABILITIES_WITHIN, asked).await.ok()?;
        (!known.pools_unknown).then_some(known)
    }
}

/// Reports changes of volumes, exports and receipts.
async fn report_changes(mut changes: broadcast::Receiver<Change>, send: &Sending) {
    use v1::report::What;
    loop {
        let what = match changes.recv().await {
            Ok(Change::Volume(volume)) => What::Volume((&volume).into()),
            Ok(Change::Export(export)) => What::Export((&*export).into()),
            Ok(Change::Receipt(receipt)) => What::Receipt((&receipt).into()),
            Err(broadcast::error::RecvError::Closed) => return,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                let text = format!("{missed} reports were missed by this slow reader: watch again");
                return drop(send.send(Err(status_of(Code::DataLoss, text, Cure::Retry))).await);
            }
        };
        if send.send(Ok(one(what))).await.is_err() {
            return;
        }
    }
}

/// Reports the capabilities of this host when they change. Waits for ever when nobody reads:
/// `report_changes` sees that.
async fn report_capabilities(
    engine: &Engine,
    host_name: &str,
    mut lvm: watch::Receiver<u64>,
    mut told: Option<v1::Capabilities>,
    send: &Sending,
) {
    // A greater age of the last answer is no news.
    let ageless = |told: &v1::Capabilities| v1::Capabilities { pools_age_ms: 0, ..told.clone() };
    while lvm.changed().await.is_ok() {
        let new = engine.capabilities_now(host_name).await;
        if new.pools_unknown || told.as_ref().map(ageless) == Some(ageless(&new)) {
            continue;
        }
        told = Some(new.clone());
        if send.send(Ok(one(v1::report::What::Capabilities(new)))).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

//! Agents in memory behind real gRPC servers: stamps are fenced, specs are stored, reports are
//! derived from them, sessions are those of the hosts beside them. `Knobs` has the faults that a
//! test wants.

#![allow(dead_code, reason = "each test binary uses another part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod fc;
mod follow;
mod host;
mod jobs;
pub(crate) mod log;
mod lvs;
pub(crate) mod pg;
mod reservations;
mod rig;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use mooring_api::stamp_from_wire;
use mooring_api::v1::agent_server::{Agent, AgentServer};
use mooring_api::v1::host_server::HostServer;
use mooring_api::v1::{self, put_export_request, put_volume_request};
use mooring_model::{AgentId, ExportIdentity, Fence, IqnPrefix, VolumeId};
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Code, Request, Response, Status};

pub(crate) use rig::*;

#[derive(Clone, Default)]
pub(crate) struct Object<T> {
    pub(crate) stamp: Option<v1::Stamp>,
    pub(crate) spec: Option<T>,
    pub(crate) opaque: Vec<u8>,
    pub(crate) hard: bool,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a fake")]
pub(crate) struct Knobs {
    /// Every call fails, every stream ends.
    pub(crate) down: bool,
    /// The agent does not report its capabilities: an LVM that hangs, in an older agent.
    pub(crate) silent: bool,
    /// Puts are stored and not carried out.
    pub(crate) pending: bool,
    /// Puts of volumes are stored, and answered once this is closed.
    pub(crate) gate: Option<Arc<tokio::sync::Semaphore>>,
    /// Looks at volumes are made, and answered once this is closed.
    pub(crate) gate_of_looks: Option<Arc<tokio::sync::Semaphore>>,
    /// LVM takes longer than calls wait.
    pub(crate) slow_lvm: lvs::SlowLvm,
    /// New receipts are unproven.
    pub(crate) unproven: bool,
    /// Barriers are not done: an older agent, or a disk that does not answer.
    pub(crate) undrained: bool,
    /// Reservations of every export.
    pub(crate) reservations: Option<v1::Reservations>,
    /// The agent does not report when it looked at sessions: an older one.
    pub(crate) blind: bool,
    /// `false`: the looks of answers come to no end. `None`: an older agent, which does not say.
    pub(crate) looked_now: Option<bool>,
    /// An older agent, which cannot unmanage: it keeps the LV as an orphan.
    pub(crate) keeps_released: bool,
    /// New volumes fail for good.
    pub(crate) fail_volumes: bool,
    /// Volumes do not grow, perhaps with a reason.
    pub(crate) hold_growth: bool,
    /// A held growth turns out to be done when a smaller size arrives: no report has shown it yet.
    pub(crate) grown_when_smaller: bool,
    pub(crate) growth_problem: Option<v1::Problem>,
    /// Smaller sizes of volumes are refused with this. `None`: sizes below the volume's own are
    /// refused.
    pub(crate) refuse_smaller: Option<Status>,
    /// New volumes are refused with this.
    pub(crate) refuse_volume: Option<Status>,
    /// Tombstones of volumes are lost on their way.
    pub(crate) lose_deletes: bool,
    /// The tombstone of this volume is refused with this.
    pub(crate) refuse_delete: Option<(VolumeId, Status)>,
    /// Exports with more grants than before are refused with this.
    pub(crate) refuse_export: Option<Status>,
    /// Exports with fewer grants are refused with this.
    pub(crate) refuse_revoke: Option<Status>,
    /// Refuses to revoke a grant whose session the sender does not want to be cut.
    pub(crate) lingers: bool,
    /// The agent's release knows no cache flag.
    pub(crate) knows_no_cache: bool,
    /// The host does not report with how many secrets it can log in.
    pub(crate) knows_no_secrets: bool,
    /// The host's mooring-sessiond cannot store a second secret.
    pub(crate) keeps_one_secret: bool,
    /// Data of the host's page cache that is not written when it is force detached.
    pub(crate) unwritten: Option<u64>,
    /// The processes that hold the disk open.
    pub(crate) holders: Vec<String>,
    /// The phase in which connections end instead of ready.
    pub(crate) broken: Option<(v1::ConnectionPhase, v1::Problem)>,
    pub(crate) jobs: jobs::Jobs,
    pub(crate) fc: fc::Ports,
    pub(crate) reverts: lvs::Reverts,
}

pub(crate) struct State {
    pub(crate) id: AgentId,
    pub(crate) initiator: String,
    pub(crate) cluster: String,
    /// Pools of the agent. Empty: the agent does not know them.
    pub(crate) pools: Vec<v1::Pool>,
    pub(crate) problems: Vec<v1::Problem>,
    pub(crate) multiattach: bool,
    pub(crate) knobs: Knobs,
    pub(crate) volumes: BTreeMap<String, Object<v1::VolumeSpec>>,
    /// Sizes of the volumes, once they were made.
    pub(crate) sizes: BTreeMap<String, u64>,
    pub(crate) exports: BTreeMap<String, Object<v1::ExportSpec>>,
    pub(crate) connections: BTreeMap<String, Object<v1::ConnectionSpec>>,
    /// Data on disk without a stored spec.
    pub(crate) orphans: BTreeSet<String>,
    /// LVs that are no volumes.
    pub(crate) lvs: Vec<v1::Lv>,
    /// The machine's own name.
    pub(crate) machine: String,
    pub(crate) receipts: Vec<v1::Receipt>,
    /// Number of calls about one volume.
    pub(crate) looks: usize,
    /// Puts that came, as `export <volume> 1.2 cut`.
    pub(crate) calls: Vec<String>,
}

/// Sessions of all hosts, and the number of puts to all agents: shared by all agents of a test.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) sessions: Mutex<BTreeSet<(String, String)>>,
    pub(crate) puts: watch::Sender<usize>,
}

#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    world: Arc<World>,
    reports: broadcast::Sender<v1::Report>,
    events: broadcast::Sender<v1::ConnectionEvent>,
    down: watch::Sender<bool>,
}

fn fence<T>(kept: Option<&Object<T>>, stamp: Option<&v1::Stamp>) -> Result<Fence, Status> {
    let arrives = stamp_from_wire(stamp).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let kept = kept.and_then(|kept| kept.stamp.as_ref());
    let kept = kept.map(|kept| stamp_from_wire(Some(kept)).unwrap());
    match arrives.fence(kept.as_ref()) {
        Fence::Stale | Fence::Conflict => Err(cured(Code::Aborted, "stale generation", "retry")),
        fence => Ok(fence),
    }
}

fn generation(stamp: Option<&v1::Stamp>) -> Option<v1::Generation> {
    stamp.and_then(|stamp| stamp.generation)
}

fn words(stamp: Option<&v1::Stamp>) -> String {
    generation(stamp).map_or_else(|| "?".to_owned(), |at| format!("{}.{}", at.epoch, at.counter))
}

impl State {
    /// Loses the agent's store, with its id and cluster; the data of these volumes is still there.
    pub(crate) fn lose_store(&mut self, there: &[VolumeId]) {
        self.volumes.clear();
        self.exports.clear();
        self.connections.clear();
        self.receipts.clear();
        self.orphans = there.iter().map(ToString::to_string).collect();
        self.id = AgentId::random();
        self.cluster.clear();
        if !self.initiator.is_empty() {
            self.initiator = IqnPrefix::default().initiator(self.id).to_string();
        }
    }

    fn is_fresh(&self) -> bool {
        self.volumes.is_empty() && self.connections.is_empty() && self.receipts.is_empty()
    }

    fn volume_report(&self, id: &str) -> v1::VolumeReport {
        let mut report = v1::VolumeReport { volume_id: id.to_owned(), ..Default::default() };
        let spec = self.volumes.get(id).and_then(|volume| volume.spec.as_ref());
        self.report_revert(spec, &mut report);
        match spec {
            None if self.knobs.keeps_released => report.set_phase(v1::Phase::Orphan),
            None => report.set_phase(v1::Phase::Gone),
            Some(spec) => {
                report.group.clone_from(&spec.group);
                let size = self.sizes.get(id).filter(|_| self.knobs.hold_growth);
                report.size_bytes = size.copied().unwrap_or(spec.size_bytes);
                if report.size_bytes < spec.size_bytes {
                    report.problems.extend(self.knobs.growth_problem.clone());
                }
                report.set_phase(if self.knobs.fail_volumes {
                    v1::Phase::Failed
                } else if self.knobs.pending {
                    v1::Phase::Creating
                } else {
                    v1::Phase::Ready
                });
                if self.knobs.fail_volumes {
                    report.problems.push(v1::Problem {
                        object: "volume group vg0".into(),
                        text: "a disk is missing".into(),
                        cure: v1::Cure::Operator.into(),
                    });
                }
            }
        }
        report
    }

    fn export_report(&self, id: &str, world: &World) -> Option<v1::ExportReport> {
        let export = self.exports.get(id)?;
        let spec = export.spec.as_ref()?;
        let names = ExportIdentity::Derived.names(id.parse::<VolumeId>().unwrap(), &IqnPrefix::default());
        let done = !self.knobs.pending;
        let sessions = world.sessions.lock().unwrap().clone();
        let session = |initiator: &str| v1::Session {
            initiator: initiator.to_owned(),
            isid: "80aabbccdd01".to_owned(),
            id: 3,
            addresses: vec!["10.10.0.11:45678".to_owned()],
            state: "LOGGED_IN".to_owned(),
            in_flight: 0,
            since_us: 1_790_000_000_000_000,
        };
        let grant = |grant: &v1::Grant| v1::GrantReport {
            initiator: grant.initiator.clone(),
            lun: grant.lun,
            wanted: grant.mode,
            seen: if done { grant.mode } else { 0 },
            sessions: sessions
                .contains(&(id.to_owned(), grant.initiator.clone()))
                .then(|| session(&grant.initiator))
                .into_iter()
                .collect(),
            barrier: if done && !self.knobs.undrained { grant.barrier.clone() } else { String::new() },
            ..Default::default()
        };
        Some(v1::ExportReport {
            volume_id: id.to_owned(),
            generation: generation(export.stamp.as_ref()),
            target: names.iqn.to_string(),
            naa: names.naa().to_string(),
            portals: vec!["10.10.0.10:3260".to_owned()],
            in_force: done,
            grants: spec.grants.iter().map(grant).collect(),
            fc: self.knobs.fc.report(spec, done),
            reservations: self.knobs.reservations.clone(),
            // Every answer and report is a fresh look.
            looked_us: if self.knobs.blind { 0 } else { rig::now_us() },
            ..Default::default()
        })
    }

    fn status(&self, id: &str, world: &World) -> v1::VolumeStatus {
        let volume = self.volumes.get(id).cloned().unwrap_or_default();
        let export = self.exports.get(id).cloned().unwrap_or_default();
        v1::VolumeStatus {
            volume_id: id.to_owned(),
            volume: Some(self.volume_report(id)),
            volume_stamp: volume.stamp,
            volume_opaque: volume.opaque,
            export: self.export_report(id, world),
            export_stamp: export.stamp,
            export_opaque: export.opaque,
            export_spec: export.spec,
            receipts: self.receipts.iter().filter(|receipt| receipt.volume_id == id).cloned().collect(),
            volume_spec: volume.spec,
            looked_now: self.knobs.looked_now,
        }
    }

    fn connection_report(&self, id: &str) -> v1::ConnectionReport {
        let connection = &self.connections[id];
        let mut report = v1::ConnectionReport {
            volume_id: id.to_owned(),
            generation: generation(connection.stamp.as_ref()),
            initiator: self.initiator.clone(),
            target: format!("iqn.2026-11.dev.mooring:{id}"),
            ..Default::default()
        };
        let Some(spec) = &connection.spec else {
            report.set_phase(v1::ConnectionPhase::Gone);
            report.unwritten_bytes = self.knobs.unwritten.filter(|_| connection.hard);
            return report;
        };
        if let Some((phase, problem)) = &self.knobs.broken {
            report.set_phase(*phase);
            report.problems.push(problem.clone());
            return report;
        }
        if self.knobs.pending {
            report.set_phase(v1::ConnectionPhase::Connecting);
            return report;
        }
        report.set_phase(v1::ConnectionPhase::Ready);
        report.disk = Some(v1::HostDisk {
            path: "/dev/sda".to_owned(),
            sequence: 7,
            size_bytes: spec.size_bytes,
            read_only: false,
            naa: spec.naa.clone(),
        });
        report.device_us = 2_000;
        let off = spec.attachments.iter().any(|path| path.cache_off);
        report.cache_off = Some(off).filter(|_| !self.knobs.knows_no_cache);
        let secrets = if spec.other_chap.is_some() && !self.knobs.keeps_one_secret { 2 } else { 1 };
        report.secrets = spec.chap.as_ref().map(|_| secrets).filter(|_| !self.knobs.knows_no_secrets);
        report.paths = spec
            .attachments
            .iter()
            .map(|path| v1::AttachmentPath {
                attachment_id: path.attachment_id.clone(),
                path: format!("/run/mooring/attachments/{}", path.attachment_id),
            })
            .collect();
        report
    }

    fn take_away(
        &mut self,
        put: &v1::PutExportRequest,
        keep: &[v1::Grant],
        world: &World,
    ) -> Result<Vec<v1::Receipt>, Status> {
        let kept = self.exports.get(&put.volume_id).and_then(|export| export.spec.clone());
        let gone: Vec<_> = kept
            .unwrap_or_default()
            .grants
            .into_iter()
            .filter(|old| keep.iter().all(|new| new.initiator != old.initiator))
            .collect();
        let mut sessions = world.sessions.lock().unwrap();
        let live = |grant: &v1::Grant, sessions: &BTreeSet<(String, String)>| {
            sessions.contains(&(put.volume_id.clone(), grant.initiator.clone()))
        };
        if put.live_sessions() == v1::LiveSessions::Refuse && gone.iter().any(|grant| live(grant, &sessions))
        {
            return Err(cured(
                Code::FailedPrecondition,
                "it is logged in: detach it there first",
                "fix_spec",
            ));
        }
        let mut receipts = Vec::new();
        for grant in gone {
            let was = sessions.remove(&(put.volume_id.clone(), grant.initiator.clone()));
            receipts.push(v1::Receipt {
                volume_id: put.volume_id.clone(),
                initiator: grant.initiator.clone(),
                attachment_ids: grant.attachment_ids.clone(),
                generation: generation(put.stamp.as_ref()),
                nexus_removed: true,
                sessions_cut: was
                    .then(|| v1::Session { initiator: grant.initiator.clone(), ..Default::default() })
                    .into_iter()
                    .collect(),
                proven: !self.knobs.unproven,
                may_still_land: u32::from(self.knobs.unproven) * 3,
                uncounted: false,
                began_us: 1_790_000_000_000_000,
                ended_us: if self.knobs.unproven { 0 } else { 1_790_000_000_000_900 },
                held_reservation: self.knobs.held_by(&grant.initiator),
                cause: v1::Cause::Unspecified.into(),
            });
        }
        self.receipts.splice(0..0, receipts.iter().cloned());
        Ok(receipts)
    }
}

impl Fake {
    pub(crate) fn new(number: u128, world: &Arc<World>) -> Self {
        let id = AgentId::from_u128(number);
        let pool = v1::Pool {
            name: "vg0".to_owned(),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            extent_bytes: 4 << 20,
            thick: true,
            ..v1::Pool::default()
        };
        let state = State {
            id,
            initiator: IqnPrefix::default().initiator(id).to_string(),
            cluster: String::new(),
            pools: vec![pool],
            problems: Vec::new(),
            multiattach: true,
            knobs: Knobs { looked_now: Some(true), ..Knobs::default() },
            volumes: BTreeMap::new(),
            sizes: BTreeMap::new(),
            exports: BTreeMap::new(),
            connections: BTreeMap::new(),
            orphans: BTreeSet::new(),
            lvs: Vec::new(),
            machine: "fake".to_owned(),
            receipts: Vec::new(),
            looks: 0,
            calls: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            world: Arc::clone(world),
            reports: broadcast::Sender::new(1024),
            events: broadcast::Sender::new(1024),
            down: watch::Sender::new(false),
        }
    }

    /// A host that only attaches.
    pub(crate) fn host(number: u128, world: &Arc<World>) -> Self {
        let fake = Self::new(number, world);
        fake.state().pools.clear();
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.state().knobs.down = down;
        self.down.send_if_modified(|was| std::mem::replace(was, down) != down);
    }

    /// The initiators of an export's spec at the agent.
    pub(crate) fn granted(&self, volume: VolumeId) -> Vec<String> {
        let state = self.state();
        let spec = state.exports.get(&volume.to_string()).and_then(|export| export.spec.clone());
        spec.unwrap_or_default().grants.into_iter().map(|grant| grant.initiator).collect()
    }

    /// Tells the watchers the present state of an export, a volume and its receipts.
    pub(crate) fn publish(&self, id: &str) {
        use v1::report::What;
        let state = self.state();
        let mut whats = vec![What::Volume(state.volume_report(id))];
        whats.extend(state.export_report(id, &self.world).map(What::Export));
        whats.extend(state.receipts.iter().filter(|r| r.volume_id == id).cloned().map(What::Receipt));
        for what in whats {
            let _ = self.reports.send(v1::Report { what: Some(what) });
        }
    }

    pub(crate) fn publish_connection(&self, id: &str) {
        let report = self.state().connection_report(id);
        let what = Some(v1::connection_event::What::Report(report));
        let _ = self.events.send(v1::ConnectionEvent { what });
    }

    /// Makes all receipts proven from now on.
    pub(crate) fn prove(&self) {
        let mut state = self.state();
        state.knobs.unproven = false;
        let mut ids = BTreeSet::new();
        for receipt in &mut state.receipts {
            receipt.proven = true;
            receipt.may_still_land = 0;
            receipt.ended_us = 1_790_000_000_000_900;
            ids.insert(receipt.volume_id.clone());
        }
        drop(state);
        for id in ids {
            self.publish(&id);
        }
    }

    fn enter(&self) -> Result<(), Status> {
        if self.state().knobs.down { Err(Status::unavailable("this agent is down")) } else { Ok(()) }
    }

    fn count(&self, sender: Option<&v1::Sender>, words: String) -> Result<(), Status> {
        self.enter()?;
        let mut state = self.state();
        let sender = sender.map(|sender| sender.cluster_id.clone()).unwrap_or_default();
        if !state.cluster.is_empty() && state.cluster != sender {
            return Err(cured(Code::PermissionDenied, "belongs to another cluster", "operator"));
        }
        state.cluster = sender;
        state.calls.push(words);
        drop(state);
        self.world.puts.send_modify(|puts| *puts += 1);
        Ok(())
    }

    /// Listens at this path until the runtime ends.
    pub(crate) fn serve(&self, path: &PathBuf) {
        let listener = tokio::net::UnixListener::bind(path).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(AgentServer::new(self.clone()))
            .add_service(HostServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    }
}

/// Waits until a gate opens.
async fn wait_for(gate: Option<Arc<tokio::sync::Semaphore>>) {
    if let Some(gate) = gate {
        assert!(gate.acquire().await.is_err(), "a gate has no permits; it opens by being closed");
    }
}

#[tonic::async_trait]
impl Agent for Fake {
    async fn change_reservations(
        &self,
        request: Request<v1::ChangeReservationsRequest>,
    ) -> Result<Response<v1::ChangeReservationsResponse>, Status> {
        self.enter()?;
        reservations::answer(&mut self.state().knobs, &request.into_inner()).map(Response::new)
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        self.enter()?;
        self.state().knobs.jobs.answer(&request.into_inner()).map(Response::new)
    }

    async fn set_job_limit(
        &self,
        request: Request<v1::SetJobLimitRequest>,
    ) -> Result<Response<v1::SetJobLimitResponse>, Status> {
        self.enter()?;
        let mut state = self.state();
        let cluster = state.cluster.clone();
        state.knobs.jobs.limit(request.into_inner(), &cluster).map(Response::new)
    }

    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        self.enter()?;
        let state = self.state();
        Ok(Response::new(v1::HelloResponse {
            protocol: 1,
            software: "fake".to_owned(),
            agent_id: state.id.to_string(),
            host_name: state.machine.clone(),
            cluster_id: state.cluster.clone(),
            portals: vec!["10.10.0.10:3260".to_owned()],
            groups: vec!["vg0".to_owned()],
            initiator: state.initiator.clone(),
            fresh: state.is_fresh(),
            newest_epoch: state.newest_epoch(),
        }))
    }

    async fn adopt(&self, request: Request<v1::AdoptRequest>) -> Result<Response<v1::AdoptResponse>, Status> {
        self.enter()?;
        let adopt = request.into_inner();
        let mut state = self.state();
        if !state.is_fresh() {
            return Err(cured(Code::FailedPrecondition, "this agent keeps specs", "operator"));
        }
        let id: AgentId = adopt.agent_id.parse().unwrap();
        if !state.initiator.is_empty() {
            state.initiator = IqnPrefix::default().initiator(id).to_string();
        }
        (state.id, state.cluster) = (id, adopt.sender.unwrap().cluster_id);
        Ok(Response::new(v1::AdoptResponse {}))
    }

    async fn put_volume(
        &self,
        request: Request<v1::PutVolumeRequest>,
    ) -> Result<Response<v1::PutVolumeResponse>, Status> {
        let put = request.into_inner();
        let id = put.volume_id.clone();
        let (what, tombstone) = match &put.wish {
            Some(put_volume_request::Wish::Tombstone(of)) if of.release => ("release", true),
            Some(put_volume_request::Wish::Tombstone(_)) => ("delete", true),
            _ => ("volume", false),
        };
        if tombstone && self.state().knobs.lose_deletes {
            return Err(Status::unavailable("the connection broke"));
        }
        self.count(put.sender.as_ref(), format!("{what} {id} {}", words(put.stamp.as_ref())))?;
        {
            let mut state = self.state();
            if let Some(status) = state.knobs.refuse_volume.clone().filter(|_| !tombstone) {
                return Err(status);
            }
            let refused = state.knobs.refuse_delete.clone().filter(|(of, _)| of.to_string() == id);
            if let Some((_, status)) = refused.filter(|_| tombstone) {
                return Err(status);
            }
            if !state.knobs.slow_lvm.has_answered(&put) {
                return Err(cured(Code::Unavailable, "no look at it has ended in time", "retry"));
            }
            state.check_spec(&put)?;
            if fence(state.volumes.get(&id), put.stamp.as_ref())? == Fence::Newer {
                state.take_and_release(&put);
                let spec = match put.wish {
                    Some(put_volume_request::Wish::Spec(spec)) => Some(spec),
                    _ => None,
                };
                let object = Object { stamp: put.stamp, spec, opaque: put.opaque, hard: false };
                state.volumes.insert(id.clone(), object);
            }
        }
        let gate = self.state().knobs.gate.clone();
        wait_for(gate).await;
        self.publish(&id);
        let mut state = self.state();
        let report = state.volume_report(&id);
        state.sizes.insert(id.clone(), report.size_bytes);
        let done = !state.knobs.pending && !state.knobs.fail_volumes && !state.knobs.hold_growth;
        let done = done && state.is_reverted(&id);
        Ok(Response::new(v1::PutVolumeResponse { report: Some(state.volume_report(&id)), done }))
    }

    async fn put_export(
        &self,
        request: Request<v1::PutExportRequest>,
    ) -> Result<Response<v1::PutExportResponse>, Status> {
        let mut put = request.into_inner();
        let id = put.volume_id.clone();
        let cut = if put.live_sessions() == v1::LiveSessions::Refuse { "refuse" } else { "cut" };
        self.count(put.sender.as_ref(), format!("export {id} {} {cut}", words(put.stamp.as_ref())))?;
        let receipts = {
            let mut state = self.state();
            let spec = match put.wish.take() {
                Some(put_export_request::Wish::Spec(spec)) => {
                    mooring_api::export_from_wire(id.parse().unwrap(), &spec)
                        .map_err(|error| cured(Code::InvalidArgument, &error.to_string(), "fix_spec"))?;
                    Some(spec)
                }
                _ => None,
            };
            if fence(state.exports.get(&id), put.stamp.as_ref())? == Fence::Newer {
                let grants = spec.clone().unwrap_or_default().grants;
                let before =
                    state.exports.get(&id).and_then(|kept| kept.spec.clone()).unwrap_or_default().grants;
                let refusal = match grants.len().cmp(&before.len()) {
                    Ordering::Greater => state.knobs.refuse_export.clone(),
                    Ordering::Less if state.knobs.lingers && cut == "refuse" => {
                        Some(cured(Code::FailedPrecondition, "a session is live", "fix_spec"))
                    }
                    Ordering::Less => state.knobs.refuse_revoke.clone(),
                    Ordering::Equal => None,
                };
                refusal.map_or(Ok(()), Err)?;
                state.take_away(&put, &grants, &self.world)?;
                let object = Object { stamp: put.stamp.clone(), spec, opaque: put.opaque, hard: false };
                state.exports.insert(id.clone(), object);
            }
            let at = generation(put.stamp.as_ref());
            state.receipts.iter().filter(|r| r.volume_id == id && r.generation == at).cloned().collect()
        };
        self.publish(&id);
        let state = self.state();
        Ok(Response::new(v1::PutExportResponse {
            report: state.export_report(&id, &self.world),
            done: !state.knobs.pending,
            receipts,
            timing: None,
        }))
    }

    async fn get_volume(
        &self,
        request: Request<v1::GetVolumeRequest>,
    ) -> Result<Response<v1::VolumeStatus>, Status> {
        self.enter()?;
        let id = request.into_inner().volume_id;
        let (status, gate) = {
            let mut state = self.state();
            if !state.volumes.contains_key(&id) {
                return Err(cured(Code::NotFound, "no such volume", "fix_spec"));
            }
            let status = state.status(&id, &self.world);
            state.looks += 1;
            (status, state.knobs.gate_of_looks.clone())
        };
        wait_for(gate).await;
        Ok(Response::new(status))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        self.enter()?;
        let state = self.state();
        let all = request.into_inner().with_tombstones;
        let there = state.volumes.iter().filter(|(_, volume)| all || volume.spec.is_some());
        let volumes = there.map(|(id, _)| state.status(id, &self.world));
        let orphans = state.orphans.iter().filter(|id| !state.volumes.contains_key(*id));
        let volumes = volumes.chain(orphans.map(|id| State::orphan(id))).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes }))
    }

    async fn list_lvs(
        &self,
        request: Request<v1::ListLvsRequest>,
    ) -> Result<Response<v1::ListLvsResponse>, Status> {
        self.enter()?;
        Ok(Response::new(self.state().lvs_in(&request.into_inner().group)))
    }

    async fn get_capabilities(
        &self,
        _: Request<v1::GetCapabilitiesRequest>,
    ) -> Result<Response<v1::Capabilities>, Status> {
        self.enter()?;
        if self.state().knobs.silent {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.capabilities()))
    }

    async fn plan(&self, _: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        Ok(Response::new(v1::PlanResponse::default()))
    }

    type WatchStream = ReceiverStream<Result<v1::Report, Status>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        use v1::report::What;
        self.enter()?;
        let changes = self.reports.subscribe();
        let silent = self.state().knobs.silent;
        let told = (!silent).then(|| self.capabilities());
        let first = told.map(|told| v1::Report { what: Some(What::Capabilities(told)) });
        Ok(Response::new(self.follow(first.into_iter().collect(), changes)))
    }
}

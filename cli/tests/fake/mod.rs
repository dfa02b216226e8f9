//! An agent in memory, good enough for the program: stamps are fenced, specs are kept, secrets stay
//! inside, reports are derived. A test sets its faults in `Knobs`.

#![allow(dead_code, reason = "each test binary uses another part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mooring_api::v1::agent_server::{Agent, AgentServer};
use mooring_api::v1::{self, put_export_request, put_volume_request};
use mooring_api::{CURE_KEY, stamp_from_wire};
use mooring_model::{ExportIdentity, Fence, IqnPrefix, VolumeId};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// The faults and reports that a test sets.
#[derive(Default)]
pub(crate) struct Knobs {
    pub(crate) cluster: String,
    pub(crate) protocol: u32,
    pub(crate) groups: Vec<String>,
    /// This many puts are refused because another writer was faster.
    pub(crate) conflicts: u32,
    /// Puts are accepted and not reached at the deadline.
    pub(crate) pending: bool,
    /// Receipts are unproven, with this many commands in flight.
    pub(crate) unproven: Option<u32>,
    /// The held reservation in receipts.
    pub(crate) held: Option<u32>,
    /// Initiators that are logged in.
    pub(crate) live: Vec<String>,
    /// Fibre Channel ports in the report of every export.
    pub(crate) fc: Vec<v1::FcPortReport>,
    /// Sessions of every export beyond those that are shown.
    pub(crate) unlisted_sessions: Option<u32>,
    /// The next put is answered with this.
    pub(crate) fail: Option<Status>,
    /// The agent takes calls and does not answer.
    pub(crate) silent: bool,
    /// The reservations of every export.
    pub(crate) reservations: Option<v1::Reservations>,
    /// The jobs at work.
    pub(crate) jobs: Vec<v1::Job>,
    pub(crate) job_limit: u64,
    /// The size of every volume, whatever its spec says.
    pub(crate) has_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub(crate) struct Object<T> {
    pub(crate) stamp: Option<v1::Stamp>,
    pub(crate) spec: Option<T>,
    pub(crate) opaque: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) knobs: Knobs,
    pub(crate) volumes: BTreeMap<String, Object<v1::VolumeSpec>>,
    pub(crate) exports: BTreeMap<String, Object<v1::ExportSpec>>,
    pub(crate) receipts: Vec<v1::Receipt>,
    /// Senders that arrived.
    pub(crate) senders: Vec<String>,
    pub(crate) deadlines: Vec<u32>,
    pub(crate) puts: u32,
}

#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

pub(crate) fn cured(code: Code, text: &str, cure: &str) -> Status {
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(CURE_KEY, cure.parse().unwrap());
    status
}

impl State {
    fn fence<T>(kept: Option<&Object<T>>, stamp: Option<&v1::Stamp>) -> Result<Fence, Status> {
        let arrives = stamp_from_wire(stamp).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let kept = kept.and_then(|kept| kept.stamp.as_ref());
        let kept = kept.map(|kept| stamp_from_wire(Some(kept)).unwrap());
        match arrives.fence(kept.as_ref()) {
            Fence::Stale | Fence::Conflict => Err(cured(Code::Aborted, "stale generation", "retry")),
            fence => Ok(fence),
        }
    }

    fn enter(&mut self, sender: Option<&v1::Sender>, deadline: u32) -> Result<(), Status> {
        self.puts += 1;
        self.senders.push(sender.map(|s| s.cluster_id.clone()).unwrap_or_default());
        self.deadlines.push(deadline);
        if let Some(status) = self.knobs.fail.take() {
            return Err(status);
        }
        if self.knobs.conflicts > 0 {
            self.knobs.conflicts -= 1;
            return Err(cured(Code::Aborted, "another writer was faster", "retry"));
        }
        Ok(())
    }

    fn volume_report(&self, id: &str) -> v1::VolumeReport {
        let volume = &self.volumes[id];
        let mut report = v1::VolumeReport { volume_id: id.to_owned(), ..Default::default() };
        match &volume.spec {
            None => report.set_phase(v1::Phase::Gone),
            Some(spec) => {
                report.group.clone_from(&spec.group);
                report.size_bytes = self.knobs.has_bytes.unwrap_or(spec.size_bytes);
                if spec.cut_us != 0 {
                    let pending = self.knobs.pending;
                    report.set_cut(if pending { v1::CutState::Pending } else { v1::CutState::InForce });
                }
                if self.knobs.pending {
                    report.set_phase(v1::Phase::Creating);
                    report.zeroed_bytes = Some(spec.size_bytes / 4);
                } else {
                    report.set_phase(v1::Phase::Ready);
                    report.device = format!("/dev/{}/mooring-{id}", spec.group);
                }
            }
        }
        report
    }

    fn session(initiator: &str) -> v1::Session {
        v1::Session {
            initiator: initiator.to_owned(),
            isid: "00023d000001".to_owned(),
            id: 3,
            addresses: vec!["10.10.0.11:45678".to_owned()],
            state: "LOGGED_IN".to_owned(),
            in_flight: 8,
            since_us: 1_790_000_000_000_000,
        }
    }

    fn export_report(&self, id: &str) -> Option<v1::ExportReport> {
        let export = self.exports.get(id)?;
        let spec = export.spec.as_ref()?;
        let volume: VolumeId = id.parse().unwrap();
        let names = ExportIdentity::Derived.names(volume, &IqnPrefix::default());
        let done = !self.knobs.pending;
        let grant = |grant: &v1::Grant| v1::GrantReport {
            initiator: grant.initiator.clone(),
            lun: grant.lun,
            wanted: grant.mode,
            seen: if done { grant.mode } else { 0 },
            sessions: self
                .knobs
                .live
                .iter()
                .filter(|live| **live == grant.initiator)
                .map(|live| Self::session(live))
                .collect(),
            commands: 12,
            read_mib: 3,
            written_mib: 4,
            active_us: 1_790_000_001_000_000,
            barrier: grant.barrier.clone(),
        };
        let portals =
            if spec.portals.is_empty() { vec!["10.10.0.10:3260".to_owned()] } else { spec.portals.clone() };
        Some(v1::ExportReport {
            volume_id: id.to_owned(),
            generation: export.stamp.as_ref().and_then(|stamp| stamp.generation),
            target: names.iqn.to_string(),
            naa: names.naa().to_string(),
            portals,
            in_force: done,
            grants: spec.grants.iter().map(grant).collect(),
            problems: Vec::new(),
            stuck: None,
            fc: self.knobs.fc.clone(),
            looked_us: 1_790_000_002_000_000,
            unlisted_sessions: self.knobs.unlisted_sessions,
            reservations: self.knobs.reservations.clone(),
            kept_reservations: None,
        })
    }

    fn status(&self, id: &str) -> v1::VolumeStatus {
        let volume = &self.volumes[id];
        let export = self.exports.get(id).cloned().unwrap_or_default();
        let mut export_spec = export.spec.clone();
        for grant in export_spec.iter_mut().flat_map(|spec| &mut spec.grants) {
            for side in
                grant.chap.iter_mut().flat_map(|chap| chap.initiator.iter_mut().chain(&mut chap.mutual))
            {
                side.secret.clear();
            }
        }
        v1::VolumeStatus {
            volume_id: id.to_owned(),
            volume: Some(self.volume_report(id)),
            volume_stamp: volume.stamp.clone(),
            volume_opaque: volume.opaque.clone(),
            export: self.export_report(id),
            export_stamp: export.stamp,
            export_opaque: export.opaque,
            export_spec,
            receipts: self.receipts.iter().filter(|receipt| receipt.volume_id == id).cloned().collect(),
            volume_spec: volume.spec.clone(),
            looked_now: Some(true),
        }
    }

    /// Resolves "keep the secret that you have".
    fn resolve(&self, id: &str, spec: &mut v1::ExportSpec) -> Result<(), Status> {
        let kept = self.exports.get(id).and_then(|export| export.spec.clone()).unwrap_or_default();
        for grant in &mut spec.grants {
            let old = kept.grants.iter().find(|old| old.initiator == grant.initiator);
            let old = old.and_then(|old| old.chap.clone()).unwrap_or_default();
            let Some(chap) = &mut grant.chap else { continue };
            for (side, old) in [(&mut chap.initiator, &old.initiator), (&mut chap.mutual, &old.mutual)] {
                let Some(side) = side else { continue };
                if side.secret.is_empty() {
                    let old = old.as_ref().filter(|old| old.user == side.user);
                    let old = old.ok_or_else(|| Status::invalid_argument("no secret is kept"))?;
                    side.secret.clone_from(&old.secret);
                }
            }
        }
        Ok(())
    }

    /// Makes receipts of the grants that are in the kept spec and not in the new one.
    fn take_away(
        &mut self,
        request: &v1::PutExportRequest,
        keep: &[v1::Grant],
    ) -> Result<Vec<v1::Receipt>, Status> {
        let kept = self.exports.get(&request.volume_id).and_then(|export| export.spec.clone());
        let gone = kept.unwrap_or_default().grants.into_iter();
        let gone: Vec<_> = gone.filter(|old| keep.iter().all(|new| new.initiator != old.initiator)).collect();
        let live = |grant: &v1::Grant| self.knobs.live.contains(&grant.initiator);
        if request.live_sessions() == v1::LiveSessions::Refuse && gone.iter().any(live) {
            return Err(cured(
                Code::FailedPrecondition,
                "host1 is logged in from 10.10.0.11:45678: detach it there first, or revoke by force",
                "fix_spec",
            ));
        }
        let receipt = |grant: &v1::Grant| v1::Receipt {
            volume_id: request.volume_id.clone(),
            initiator: grant.initiator.clone(),
            attachment_ids: grant.attachment_ids.clone(),
            generation: request.stamp.as_ref().and_then(|stamp| stamp.generation),
            nexus_removed: true,
            sessions_cut: if live(grant) { vec![Self::session(&grant.initiator)] } else { Vec::new() },
            proven: self.knobs.unproven.is_none(),
            may_still_land: self.knobs.unproven.unwrap_or(0),
            uncounted: false,
            began_us: 1_790_000_000_000_000,
            ended_us: if self.knobs.unproven.is_none() { 1_790_000_000_012_345 } else { 0 },
            held_reservation: self.knobs.held,
            cause: v1::Cause::Unspecified.into(),
        };
        let receipts: Vec<_> = gone.iter().map(receipt).collect();
        self.receipts.splice(0..0, receipts.iter().cloned());
        Ok(receipts)
    }

    fn put_export(&mut self, mut request: v1::PutExportRequest) -> Result<v1::PutExportResponse, Status> {
        self.enter(request.sender.as_ref(), request.deadline_ms)?;
        let id = request.volume_id.clone();
        if self.volumes.get(&id).is_none_or(|volume| volume.spec.is_none()) {
            return Err(cured(Code::NotFound, &format!("no volume {id}"), "fix_spec"));
        }
        let fence = Self::fence(self.exports.get(&id), request.stamp.as_ref())?;
        let mut receipts = Vec::new();
        if fence == Fence::Newer {
            let spec = match request.wish.take() {
                Some(put_export_request::Wish::Spec(mut spec)) => {
                    self.resolve(&id, &mut spec)?;
                    mooring_api::export_from_wire(id.parse().unwrap(), &spec)
                        .map_err(|error| cured(Code::InvalidArgument, &error.to_string(), "fix_spec"))?;
                    Some(spec)
                }
                _ => None,
            };
            receipts = self.take_away(&request, spec.as_ref().map_or(&[][..], |spec| &spec.grants))?;
            self.exports.insert(id.clone(), Object { stamp: request.stamp, spec, opaque: request.opaque });
        }
        Ok(v1::PutExportResponse {
            report: self.export_report(&id),
            done: !self.knobs.pending && receipts.iter().all(|receipt| receipt.proven),
            receipts,
            timing: Some(v1::Timing {
                durable_us: 420,
                seen_us: if self.knobs.pending { 0 } else { 9_800 },
                tree_operations: 15,
            }),
        })
    }

    fn put_volume(&mut self, request: v1::PutVolumeRequest) -> Result<v1::PutVolumeResponse, Status> {
        self.enter(request.sender.as_ref(), request.deadline_ms)?;
        let id = request.volume_id;
        if Self::fence(self.volumes.get(&id), request.stamp.as_ref())? == Fence::Newer {
            let spec = match request.wish {
                Some(put_volume_request::Wish::Spec(spec)) => Some(spec),
                _ if self.export_report(&id).is_some() => {
                    return Err(cured(Code::FailedPrecondition, "the volume is exported", "fix_spec"));
                }
                _ => None,
            };
            self.volumes.insert(id.clone(), Object { stamp: request.stamp, spec, opaque: request.opaque });
        }
        Ok(v1::PutVolumeResponse { report: Some(self.volume_report(&id)), done: !self.knobs.pending })
    }
}

impl Fake {
    /// Makes an agent with one group and no faults.
    pub(crate) fn new() -> Self {
        let fake = Self::default();
        fake.state().knobs = Knobs { protocol: 1, groups: vec!["vg0".to_owned()], ..Knobs::default() };
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    async fn maybe_silent(&self) {
        let silent = self.state().knobs.silent;
        if silent {
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
    }

    fn problem() -> v1::Problem {
        v1::Problem {
            object: "vg1".to_owned(),
            text: "there is no such volume group".to_owned(),
            cure: v1::Cure::Operator.into(),
        }
    }

    fn capabilities() -> v1::Capabilities {
        v1::Capabilities {
            agent_id: "0a0a0a0a-0001-4002-8003-00000000000a".to_owned(),
            host_name: "storage".to_owned(),
            kernel_release: "6.12.1".to_owned(),
            multiattach: true,
            pools: vec![v1::Pool {
                name: "vg0".to_owned(),
                total_bytes: 8 << 30,
                free_bytes: 6 << 30,
                extent_bytes: 4 << 20,
                thick: true,
                volumes: 2,
                provisioned_bytes: 2 << 30,
                reserved_bytes: Some(1 << 30),
                snapshots: Some(false),
                online_extend: Some(true),
                discard: Some(false),
                wipe: v1::Wipe::Zero.into(),
                health: Some(v1::Health { level: v1::HealthLevel::Ok.into(), reasons: Vec::new() }),
                ..v1::Pool::default()
            }],
            transports: vec![v1::Transport {
                protocol: "iscsi".to_owned(),
                portals: vec!["10.10.0.10:3260".to_owned()],
                ready: true,
                digests: Some(v1::Digests {
                    header: "CRC32C,None".to_owned(),
                    data: "None".to_owned(),
                    target: "iqn.2026-11.dev.mooring:0b0b0b0b-0001-4002-8003-00000000000b".to_owned(),
                }),
                ..v1::Transport::default()
            }],
            health: Some(v1::Health {
                level: v1::HealthLevel::Degraded.into(),
                reasons: vec![v1::HealthReason {
                    code: "group_missing".to_owned(),
                    level: v1::HealthLevel::Degraded.into(),
                    problem: Some(Self::problem()),
                }],
            }),
            modules: vec![v1::Module {
                name: "dm_thin_pool".to_owned(),
                needed_for: "thin pools".to_owned(),
                state: v1::ModuleState::Loadable.into(),
                remedy: "modprobe dm_thin_pool".to_owned(),
            }],
            access_modes: vec![v1::Mode::ReadOnly.into(), v1::Mode::ReadWrite.into()],
            persistent_reservations: Some(true),
            persistent_reservations_kept: Some(false),
            initiators_per_volume_max: Some(512),
            problems: vec![Self::problem()],
            ..v1::Capabilities::default()
        }
    }
}

#[tonic::async_trait]
impl Agent for Fake {
    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let (asked, state) = (request.into_inner().volume_id, self.state());
        let meant = |job: &&v1::Job| asked.is_empty() || job.volume_id == asked;
        let jobs = state.knobs.jobs.iter().filter(meant).cloned().collect();
        Ok(Response::new(v1::ListJobsResponse { jobs, limit_bytes: state.knobs.job_limit }))
    }

    async fn change_reservations(
        &self,
        request: Request<v1::ChangeReservationsRequest>,
    ) -> Result<Response<v1::ChangeReservationsResponse>, Status> {
        use v1::change_reservations_request::Change;
        let (asked, mut state) = (request.into_inner(), self.state());
        state.enter(asked.sender.as_ref(), 0)?;
        let before = state.knobs.reservations.clone();
        let mut now = before.clone().unwrap_or_default();
        match asked.change.unwrap() {
            Change::Clear(_) => now = v1::Reservations::default(),
            Change::Preempt(v1::PreemptReservations { key, abort }) => {
                now.registrations.retain(|one| one.key != key);
                now.durable = !abort;
            }
        }
        state.knobs.reservations = Some(now).filter(|now| !now.registrations.is_empty());
        Ok(Response::new(v1::ChangeReservationsResponse { before, now: state.knobs.reservations.clone() }))
    }

    async fn set_job_limit(
        &self,
        request: Request<v1::SetJobLimitRequest>,
    ) -> Result<Response<v1::SetJobLimitResponse>, Status> {
        let (set, mut state) = (request.into_inner(), self.state());
        state.enter(set.sender.as_ref(), 0)?;
        let was_bytes = std::mem::replace(&mut state.knobs.job_limit, set.limit_bytes);
        Ok(Response::new(v1::SetJobLimitResponse { was_bytes }))
    }

    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        self.maybe_silent().await;
        let state = self.state();
        Ok(Response::new(v1::HelloResponse {
            protocol: state.knobs.protocol,
            software: "mooring-agent 0.1.0".to_owned(),
            agent_id: "0a0a0a0a-0001-4002-8003-00000000000a".to_owned(),
            host_name: "storage".to_owned(),
            cluster_id: state.knobs.cluster.clone(),
            portals: vec!["10.10.0.10:3260".to_owned()],
            groups: state.knobs.groups.clone(),
            initiator: String::new(),
            fresh: false,
            newest_epoch: 0,
        }))
    }

    async fn adopt(&self, _: Request<v1::AdoptRequest>) -> Result<Response<v1::AdoptResponse>, Status> {
        Err(Status::unimplemented("the command line adopts nobody"))
    }

    async fn put_volume(
        &self,
        request: Request<v1::PutVolumeRequest>,
    ) -> Result<Response<v1::PutVolumeResponse>, Status> {
        self.state().put_volume(request.into_inner()).map(Response::new)
    }

    async fn put_export(
        &self,
        request: Request<v1::PutExportRequest>,
    ) -> Result<Response<v1::PutExportResponse>, Status> {
        self.state().put_export(request.into_inner()).map(Response::new)
    }

    async fn get_volume(
        &self,
        request: Request<v1::GetVolumeRequest>,
    ) -> Result<Response<v1::VolumeStatus>, Status> {
        let id = request.into_inner().volume_id;
        let state = self.state();
        if !state.volumes.contains_key(&id) {
            return Err(cured(Code::NotFound, &format!("no volume {id}"), "fix_spec"));
        }
        Ok(Response::new(state.status(&id)))
    }

    async fn list_volumes(
        &self,
        _: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let state = self.state();
        let volumes = state.volumes.keys().map(|id| state.status(id)).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes }))
    }

    async fn list_lvs(
        &self,
        _: Request<v1::ListLvsRequest>,
    ) -> Result<Response<v1::ListLvsResponse>, Status> {
        Ok(Response::new(v1::ListLvsResponse::default()))
    }

    async fn get_capabilities(
        &self,
        _: Request<v1::GetCapabilitiesRequest>,
    ) -> Result<Response<v1::Capabilities>, Status> {
        Ok(Response::new(Self::capabilities()))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let wanted = request.into_inner().volume_id;
        let state = self.state();
        let ids = state.volumes.keys().filter(|id| wanted.is_empty() || **id == wanted);
        let steps = ids.map(|id| v1::PlannedStep {
            volume_id: id.clone(),
            step: "mkdir iscsi/target".to_owned(),
            why: "the export is wanted".to_owned(),
        });
        let blocked = vec![v1::Problem {
            object: "iqn.2026-01.lab:foreign".to_owned(),
            text: "was made by someone else".to_owned(),
            cure: v1::Cure::Operator.into(),
        }];
        Ok(Response::new(v1::PlanResponse { steps: steps.collect(), blocked }))
    }

    type WatchStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::Report, Status>>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        use v1::report::What;
        let state = self.state();
        let mut reports = vec![What::Capabilities(Self::capabilities())];
        for id in state.volumes.keys() {
            reports.push(What::Volume(state.volume_report(id)));
            reports.extend(state.export_report(id).map(What::Export));
        }
        reports.push(What::Synced(v1::SyncMark {}));
        reports.extend(state.receipts.iter().cloned().map(What::Receipt));
        let reports: Vec<_> = reports.into_iter().map(|what| Ok(v1::Report { what: Some(what) })).collect();
        Ok(Response::new(tokio_stream::iter(reports)))
    }
}

/// A fake agent that listens, and the program to call it with.
pub(crate) struct Rig {
    pub(crate) fake: Fake,
    dir: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let fake = Fake::new();
        let dir = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _guard = runtime.enter();
            tokio::net::UnixListener::bind(dir.path().join("agent.sock")).unwrap()
        };
        let server = tonic::transport::Server::builder().add_service(AgentServer::new(fake.clone()));
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Self { fake, dir, _runtime: runtime }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path("agent.sock").display())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        mooring(Some(&self.address()), words, None)
    }

    pub(crate) fn run_with_input(&self, words: &[&str], input: &str) -> Ran {
        mooring(Some(&self.address()), words, Some(input))
    }

    /// Runs with --json, expects exit code 0, returns the answer.
    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Creates a volume and returns its id.
    pub(crate) fn volume(&self, name: &str) -> String {
        let answer = self.json(&["volume", "create", name, "--size", "1GiB"]);
        answer["volume"]["id"].as_str().unwrap().to_owned()
    }
}

/// The program's exit code and output.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Expects this exit code, and these words in the error.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for words in says {
            assert!(self.err.contains(words), "{words:?} is not in {:?}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{self:?}");
    }
}

/// Runs the shipped program, without this process's environment.
pub(crate) fn mooring(agent: Option<&str>, words: &[&str], input: Option<&str>) -> Ran {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_mooring")));
    command.env_clear().args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(agent) = agent {
        command.env("MOORING_AGENT", agent);
    }
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().unwrap();
    if let Some(input) = input {
        use std::io::Write;
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    }
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    Ran {
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

//! A storage node that stays, agents on it that come and go, and the requests of a controller.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mooring_agent::config::Config;
use mooring_agent::engine::Engine;
use mooring_agent::machine::Machine;
use mooring_agent::rpc::listen;
use mooring_agent::store::Store;
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::{Channel, TlsFiles};
pub(crate) use mooring_host::fake::own_loopback;
use mooring_host::fake::{Counted, FakeMachine, LoginRefusal, Reach, SessionId};
use mooring_host::{Clock, Front, KernelTree, SystemClock, dump};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::switch::{Kill, Switch};

pub(crate) const CLUSTER: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11";
pub(crate) const PORTAL: &str = "10.0.0.1:3260";
/// Fibre Channel port of [`Node::with_fc`].
pub(crate) const FC_PORT: &str = "20:00:52:54:00:14:01:0a";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SIZE: u64 = 8 * MIB;
/// Part of every secret in these tests, and of nothing else.
pub(crate) const SECRET_WORD: &str = "Xylophon";
pub(crate) const RW: v1::Mode = v1::Mode::ReadWrite;
pub(crate) const RO: v1::Mode = v1::Mode::ReadOnly;

/// Long enough, in ms, for every answer that comes before its deadline.
const ANSWER_MS: u32 = 20_000;

/// Limit of a wait, never a measure.
const PATIENCE: Duration = Duration::from_secs(30);

/// A storage node: everything that survives a crash of its agent.
pub(crate) struct Node {
    pub(crate) fake: FakeMachine,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: Config,
    /// The node's `/sys`, which counts its operations over all agents.
    pub(crate) sys: Counted<KernelTree>,
    pub(crate) clock: WrongClock,
    /// Bus on which the agent asks systemd.
    pub(crate) bus: Option<mooring_bus::Bus>,
}

/// Clocks of the machine; the wall clock can be set back.
#[derive(Debug, Clone, Default)]
pub(crate) struct WrongClock(Arc<AtomicU64>);

impl WrongClock {
    pub(crate) fn set_back(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for WrongClock {
    fn now(&self) -> SystemTime {
        SystemClock.now() - Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn instant(&self) -> Instant {
        SystemClock.instant()
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// A node with further lines in its configuration. Without any, the agent looks at nothing
    /// again by itself.
    pub(crate) fn with(lines: &str) -> Self {
        Self::with_both(lines, "")
    }

    /// A node whose group has this `wipe` setting, on a disk that takes discards.
    pub(crate) fn with_wipe(wipe: &str) -> Self {
        Self::with_group(&format!("wipe = \"{wipe}\"\n"))
    }

    /// A node with these lines in its group's configuration, on a disk that takes discards.
    pub(crate) fn with_group(lines: &str) -> Self {
        let node = Self::with_both("", lines);
        node.fake.lvm().set_discards("vg0", true);
        node
    }

    /// A node with lines of both kinds, on a disk that takes no discards.
    pub(crate) fn with_both(lines: &str, of_group: &str) -> Self {
        capture_logs();
        let dir = scratch();
        for module in ["target_core_mod", "target_core_iblock", "iscsi_target_mod"] {
            std::fs::create_dir_all(dir.path().join("sys/module").join(module)).unwrap();
        }
        let resync = if lines.contains("resync_seconds") { "" } else { "resync_seconds = 3600\n" };
        let text = format!(
            "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nportals = [\"{PORTAL}\"]\n{resync}{lines}\n[[groups]]\nname = \"vg0\"\n{of_group}",
            dir.path().display()
        );
        let fake = FakeMachine::new();
        fake.set_root(dir.path().join("root"));
        fake.add_vg("vg0", 1024 * MIB);
        fake.set_addresses(["127.0.0.1", "10.0.0.1"].map(|ip| ip.parse().unwrap()));
        let sys = Counted::new(KernelTree::new(dir.path().join("sys")));
        Self {
            fake,
            config: Config::parse(&text, "agent.toml").unwrap(),
            dir,
            sys,
            clock: WrongClock::default(),
            bus: None,
        }
    }

    /// A node with a Fibre Channel port, found in sysfs.
    pub(crate) fn with_fc() -> Self {
        let node = Self::with("[fibre_channel]");
        node.add_fc_port(0, FC_PORT);
        node
    }

    /// Puts an adapter with a port into the machine.
    pub(crate) fn add_fc_port(&self, host: u8, port: &str) {
        let folder = self.dir.path().join(format!("sys/class/fc_host/host{host}"));
        std::fs::create_dir_all(&folder).unwrap();
        let name = format!("0x{}\n", port.replace(':', ""));
        for (file, text) in [
            ("port_name", name.as_str()),
            ("symbolic_name", "fcoe v0.1 over eth1\n"),
            ("port_state", "Online\n"),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        assert!(self.fake.add_fc_port(&format!("fc/{port}")));
    }

    /// Logs an initiator of [`over_fc`] in at the port.
    pub(crate) fn plogi(&self, number: u16) -> Result<SessionId, LoginRefusal> {
        self.fake.plogi(&format!("fc/{FC_PORT}"), &wwpn(number))
    }

    pub(crate) fn start(&self) -> Agent {
        self.start_with(None)
    }

    pub(crate) fn start_with(&self, kill: Option<Kill>) -> Agent {
        self.start_on(Switch::new(&self.fake, kill))
    }

    /// Starts an agent on the machine that this switch controls.
    pub(crate) fn start_on(&self, switch: Switch) -> Agent {
        let fake = self.fake.clone();
        let machine = Machine {
            target: Arc::new(switch.clone()),
            folders: Some(Arc::new(self.fake.folders())),
            callers: Some(Arc::new(self.fake.callers())),
            sys: Arc::new(self.sys.clone()),
            commands: Arc::new(switch.clone()),
            blocks: Arc::new(switch.clone()),
            images: Arc::new(switch.clone()),
            pr: Arc::new(switch.clone()),
            clock: Arc::new(self.clock.clone()),
            addresses_changed: Arc::default(),
            bus: self.bus.clone(),
            addresses: Arc::new(move || fake.local_addresses()),
            root: self.dir.path().join("root"),
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let store = Store::open(&self.config.state_dir).unwrap();
        let (stop, stopped) = watch::channel(false);
        let config = self.config.clone();
        let mut died = switch.died();
        let up = runtime.block_on(async move {
            let address = config.listen[0].clone();
            let bound = listen::bind(&Front::new().unwrap(), &config).unwrap();
            let engine = Engine::new(config, machine, store).unwrap();
            tokio::select! {
                () = engine.start() => {}
                // Killed before it was ready: the agent answers nobody.
                _ = died.wait_for(|died| *died) => return None,
            }
            let served = engine.clone();
            tokio::spawn(async move { listen::serve(&served, bound, stopped).await });
            let channel = mooring_api::connect(&address, &TlsFiles::default()).await.unwrap();
            Some((AgentClient::new(channel), engine))
        });
        Agent { runtime: Some(runtime), up, switch, stop }
    }

    /// Removes the LVs from the store, while no agent runs.
    pub(crate) fn forget_lvs(&self) {
        let store = Store::open(&self.config.state_dir).unwrap();
        let rows = store.whole_lvs().unwrap().into_iter().map(|(volume, ..)| (volume, None)).collect();
        store.keep_whole_lvs(rows).unwrap();
    }

    pub(crate) fn login(&self, id: &str, host: &str) -> Result<SessionId, LoginRefusal> {
        let (user, secret) = (host.to_owned(), secret_of(host));
        self.fake.login(PORTAL, &target(id), &iqn(host), Some((&user, &secret)))
    }

    /// Returns the kernel's whole target configuration as text.
    pub(crate) fn tree(&self) -> String {
        dump(&self.fake.lio())
    }

    /// Returns who may do what, as `host1 rw`; with the volume's first digits if there are several.
    pub(crate) fn reach(&self, id: &str) -> Vec<String> {
        let short = |reach: &Reach| {
            let host = reach.initiator.rsplit('.').next().unwrap_or_default().to_owned();
            let mode = match reach.mode {
                mooring_host::fake::Access::ReadOnly => "ro",
                mooring_host::fake::Access::ReadWrite => "rw",
            };
            if let Some(number) = reach.initiator.strip_prefix(WWPNS) {
                return format!("fc{} {mode}", number.trim_start_matches('0'));
            }
            let open = if reach.authenticated { "" } else { " without CHAP" };
            format!("{host} {mode}{open}")
        };
        let here = |reach: &&Reach| reach.device == device(id);
        let mut all: Vec<_> = self.fake.reachable().iter().filter(here).map(short).collect();
        all.sort();
        all
    }

    /// Runs an LVM command by hand, and asserts that it succeeds.
    pub(crate) fn lvm(&self, line: &str) {
        let args = line.split_whitespace().map(str::to_owned).collect();
        let command = mooring_host::Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
        let output = mooring_host::Commands::run(&self.fake.lvm(), &command).unwrap();
        assert_eq!(output.status, 0, "{line}: {output:?}");
    }

    /// Returns the LVs, as LVM lists them.
    pub(crate) fn lvs(&self) -> String {
        let command = mooring_host::Command {
            program: "/sbin/lvm",
            args: ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", "lv_name,lv_tags"]
                .map(str::to_owned)
                .to_vec(),
            timeout: Duration::from_secs(1),
        };
        let output = mooring_host::Commands::run(&self.fake.lvm(), &command).unwrap();
        assert_eq!(output.status, 0, "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asserts that nothing of a volume is left, neither in LVM nor in the kernel.
    pub(crate) fn assert_nothing_left(&self, id: &str) {
        assert!(!self.lvs().contains(id), "{}", self.lvs());
        assert!(!self.tree().contains(id), "{}", self.tree());
    }
}

/// Number of an initiator (also its slot), LUN, mode.
pub(crate) type FcGrant = (u16, u32, v1::Mode);

const WWPNS: &str = "20:00:52:54:00:14:00:";

pub(crate) fn wwpn(number: u16) -> String {
    format!("{WWPNS}{number:02}")
}

/// Adds grants over Fibre Channel to an export.
pub(crate) fn over_fc(spec: v1::ExportSpec, grants: &[FcGrant]) -> v1::ExportSpec {
    let grant = |(number, lun, mode): &FcGrant| v1::FcGrant {
        initiator: wwpn(*number),
        slot: u32::from(*number),
        lun: *lun,
        mode: (*mode).into(),
        attachment_ids: Vec::new(),
    };
    let fc = v1::FcExport { ports: Vec::new(), grants: grants.iter().map(grant).collect() };
    v1::ExportSpec { fc: (!grants.is_empty()).then_some(fc), ..spec }
}

/// A folder in memory if there is one: these tests do not measure how long a busy disk takes to
/// sync.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A running agent, and a client of it.
pub(crate) struct Agent {
    runtime: Option<Runtime>,
    /// `None` if the agent was killed before it was ready.
    up: Option<(AgentClient<Channel>, Engine)>,
    pub(crate) switch: Switch,
    stop: watch::Sender<bool>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.switch.kill();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Agent {
    /// Kills the process: it closes nothing, says nothing, and does nothing any more.
    pub(crate) fn crash(self) {
        drop(self);
    }

    /// Waits until the store has this number of LVs that LVM has shown whole.
    pub(crate) fn remembers(&self, count: usize) {
        eventually("LVs are remembered", || self.engine().store().whole_lvs().unwrap().len() == count);
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn client(&self) -> AgentClient<Channel> {
        self.up.as_ref().expect("the agent came up").0.clone()
    }

    pub(crate) fn engine(&self) -> Engine {
        self.up.as_ref().expect("the agent came up").1.clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let patient = async { tokio::time::timeout(PATIENCE, future).await.expect("an answer") };
        self.runtime.as_ref().expect("a runtime").block_on(patient)
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.as_ref().expect("a runtime").spawn(future)
    }

    pub(crate) fn put_volume(&self, put: v1::PutVolumeRequest) -> Result<v1::PutVolumeResponse, Status> {
        let mut client = self.client();
        self.wait(async move { client.put_volume(put).await }).map(tonic::Response::into_inner)
    }

    /// Sends a volume's spec that is not reached soon, and waits until the agent has taken it, or
    /// is killed. Its answer comes in the background: an answer at a deadline of some milliseconds
    /// would be a refusal where the machine is busy.
    pub(crate) fn begin(&self, put: v1::PutVolumeRequest) -> Begun {
        let (mut client, mut asking, mut died) = (self.client(), self.client(), self.switch.died());
        let (id, sent) = (put.volume_id.clone(), put.stamp.clone());
        let begun = self.spawn(async move { client.put_volume(put).await.map(tonic::Response::into_inner) });
        self.wait(async move {
            let taken = async {
                loop {
                    let asked = v1::GetVolumeRequest { volume_id: id.clone() };
                    let status = asking.get_volume(asked).await;
                    if status.is_ok_and(|status| status.into_inner().volume_stamp == sent) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                biased;
                _ = died.wait_for(|died| *died) => {}
                () = taken => {}
            }
        });
        begun
    }

    /// Does as [`Agent::begin`], waits until the process stands still at a call, and asserts that
    /// the spec is not reached.
    pub(crate) fn begin_to_pause(&self, what: &str, put: v1::PutVolumeRequest) {
        let begun = self.begin(put);
        eventually(what, || self.switch.paused().is_some());
        self.assert_not_done(begun);
    }

    /// Asserts that a spec is not reached yet.
    pub(crate) fn assert_not_done(&self, begun: Begun) {
        if begun.is_finished() {
            let answer = self.wait(begun).expect("the call ended").unwrap();
            assert!(!answer.done, "{answer:?}");
        }
    }

    pub(crate) fn put_export(&self, put: v1::PutExportRequest) -> Result<v1::PutExportResponse, Status> {
        let mut client = self.client();
        self.wait(async move { client.put_export(put).await }).map(tonic::Response::into_inner)
    }

    /// Puts a spec, and expects it to be reached in the answer.
    pub(crate) fn make(&self, put: impl Into<Put>) -> Vec<v1::Receipt> {
        match put.into() {
            Put::Volume(put) => {
                let answer = self.put_volume(put).unwrap();
                assert!(answer.done, "{answer:?}");
                Vec::new()
            }
            Put::Export(put) => {
                let answer = self.put_export(put).unwrap();
                assert!(answer.done, "{answer:?}");
                answer.receipts
            }
        }
    }

    /// Puts a spec, and expects that something is in the way.
    pub(crate) fn make_not_done(&self, put: v1::PutExportRequest) {
        let answer = self.put_export(put).unwrap();
        assert!(!answer.done, "{answer:?}");
    }

    pub(crate) fn get(&self, id: &str) -> Result<v1::VolumeStatus, Status> {
        let mut client = self.client();
        let request = v1::GetVolumeRequest { volume_id: id.to_owned() };
        self.wait(async move { client.get_volume(request).await }).map(tonic::Response::into_inner)
    }

    pub(crate) fn change_reservations(
        &self,
        id: &str,
        change: v1::change_reservations_request::Change,
    ) -> Result<v1::ChangeReservationsResponse, Status> {
        let asked = self.ask_reservations(id, change);
        self.wait(asked).expect("the call ended").map(tonic::Response::into_inner)
    }

    /// Requests the change in the background.
    pub(crate) fn ask_reservations(
        &self,
        id: &str,
        change: v1::change_reservations_request::Change,
    ) -> tokio::task::JoinHandle<Result<tonic::Response<v1::ChangeReservationsResponse>, Status>> {
        let mut client = self.client();
        let request = v1::ChangeReservationsRequest {
            sender: Some(sender()),
            volume_id: id.to_owned(),
            change: Some(change),
            deadline_ms: ANSWER_MS,
        };
        self.spawn(async move { client.change_reservations(request).await })
    }

    pub(crate) fn hello(&self) -> v1::HelloResponse {
        let mut client = self.client();
        let hello = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: "test".to_owned() };
        self.wait(async move { client.hello(hello).await }).unwrap().into_inner()
    }

    pub(crate) fn adopt(&self, cluster: &str, id: &str) -> Result<v1::AdoptResponse, Status> {
        let mut client = self.client();
        let sender = Some(v1::Sender { cluster_id: cluster.to_owned() });
        let adopt = v1::AdoptRequest { sender, agent_id: id.to_owned() };
        self.wait(async move { client.adopt(adopt).await }).map(tonic::Response::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<v1::VolumeStatus> {
        self.list_asking(false)
    }

    pub(crate) fn list_asking(&self, with_secrets: bool) -> Vec<v1::VolumeStatus> {
        let mut client = self.client();
        let list = v1::ListVolumesRequest { with_secrets, with_tombstones: false };
        self.wait(async move { client.list_volumes(list).await }).unwrap().into_inner().volumes
    }

    pub(crate) fn capabilities(&self) -> v1::Capabilities {
        let mut client = self.client();
        let asked = self.wait(async move { client.get_capabilities(v1::GetCapabilitiesRequest {}).await });
        asked.unwrap().into_inner()
    }

    pub(crate) fn plan(&self, id: &str) -> v1::PlanResponse {
        let mut client = self.client();
        let request = v1::PlanRequest { volume_id: id.to_owned() };
        self.wait(async move { client.plan(request).await }).unwrap().into_inner()
    }

    pub(crate) fn watch(&self) -> tonic::Streaming<v1::Report> {
        let mut client = self.client();
        self.wait(async move { client.watch(v1::WatchRequest {}).await }).unwrap().into_inner()
    }
}

/// A request for a volume whose answer comes in the background.
pub(crate) type Begun = tokio::task::JoinHandle<Result<v1::PutVolumeResponse, Status>>;

/// A request with a volume's spec or with an export's.
#[derive(Debug, Clone)]
pub(crate) enum Put {
    Volume(v1::PutVolumeRequest),
    Export(v1::PutExportRequest),
}

impl From<v1::PutVolumeRequest> for Put {
    fn from(put: v1::PutVolumeRequest) -> Self {
        Self::Volume(put)
    }
}

impl From<v1::PutExportRequest> for Put {
    fn from(put: v1::PutExportRequest) -> Self {
        Self::Export(put)
    }
}

/// Waits until the condition is true.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the id of a test volume. Ids also differ in the digits that make the NAA and the HBA.
pub(crate) fn volume(n: u8) -> String {
    format!("{n:02x}a0b1c2-d3e4-4f50-8a61-7283{n:02x}94a5b6")
}

pub(crate) fn device(id: &str) -> PathBuf {
    format!("/dev/vg0/mooring-{id}").into()
}

pub(crate) fn target(id: &str) -> String {
    format!("iqn.2026-11.dev.mooring:{id}")
}

pub(crate) fn iqn(host: &str) -> String {
    format!("iqn.2026-01.lab.{host}")
}

pub(crate) fn secret_of(host: &str) -> String {
    format!("{SECRET_WORD}-{host}-secret")
}

pub(crate) fn sender() -> v1::Sender {
    v1::Sender { cluster_id: CLUSTER.to_owned() }
}

pub(crate) fn stamp(epoch: u64, counter: u64, wish: &impl mooring_api::Message) -> v1::Stamp {
    v1::Stamp {
        generation: Some(v1::Generation { epoch, counter }),
        digest: mooring_api::digest(wish, b"opaque").as_bytes().to_vec(),
    }
}

pub(crate) fn volume_spec(size_bytes: u64) -> v1::VolumeSpec {
    let provisioning = v1::Provisioning::Thick.into();
    v1::VolumeSpec { group: "vg0".to_owned(), size_bytes, provisioning, ..Default::default() }
}

pub(crate) fn put_volume(id: &str, counter: u64) -> v1::PutVolumeRequest {
    put_volume_spec(id, counter, volume_spec(SIZE))
}

pub(crate) fn put_volume_spec(id: &str, counter: u64, spec: v1::VolumeSpec) -> v1::PutVolumeRequest {
    v1::PutVolumeRequest {
        sender: Some(sender()),
        volume_id: id.to_owned(),
        stamp: Some(stamp(1, counter, &spec)),
        wish: Some(v1::put_volume_request::Wish::Spec(spec)),
        opaque: b"opaque".to_vec(),
        deadline_ms: ANSWER_MS,
        new: false,
    }
}

pub(crate) fn delete_volume(id: &str, counter: u64) -> v1::PutVolumeRequest {
    let tombstone = v1::Tombstone { destroy_data: true, ..Default::default() };
    v1::PutVolumeRequest {
        stamp: Some(stamp(1, counter, &tombstone)),
        wish: Some(v1::put_volume_request::Wish::Tombstone(tombstone)),
        ..put_volume(id, counter)
    }
}

/// A grant with CHAP; the host's name is the user.
pub(crate) fn grant(host: &str, mode: v1::Mode) -> v1::Grant {
    v1::Grant {
        initiator: iqn(host),
        lun: 1,
        mode: mode.into(),
        chap: Some(v1::Chap {
            initiator: Some(v1::ChapSide { user: host.to_owned(), secret: secret_of(host) }),
            mutual: None,
        }),
        attachment_ids: Vec::new(),
        barrier: String::new(),
    }
}

pub(crate) fn export_spec(grants: &[(&str, v1::Mode)]) -> v1::ExportSpec {
    let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
    v1::ExportSpec {
        identity: Some(v1::ExportIdentity { kind: Some(derived) }),
        portals: Vec::new(),
        grants: grants.iter().map(|(host, mode)| grant(host, *mode)).collect(),
        fc: None,
        tuning: Vec::new(),
    }
}

pub(crate) fn put_export(id: &str, counter: u64, grants: &[(&str, v1::Mode)]) -> v1::PutExportRequest {
    put_export_spec(id, counter, export_spec(grants))
}

pub(crate) fn put_export_spec(id: &str, counter: u64, spec: v1::ExportSpec) -> v1::PutExportRequest {
    v1::PutExportRequest {
        sender: Some(sender()),
        volume_id: id.to_owned(),
        stamp: Some(stamp(1, counter, &spec)),
        wish: Some(v1::put_export_request::Wish::Spec(spec)),
        opaque: b"opaque".to_vec(),
        deadline_ms: ANSWER_MS,
        live_sessions: v1::LiveSessions::Cut.into(),
        reservations_copy: String::new(),
    }
}

/// Shortens the deadline, for an answer that comes at its deadline: long enough to be taken and
/// begun on a busy machine, short enough to wait for.
pub(crate) fn brief(put: v1::PutExportRequest) -> v1::PutExportRequest {
    v1::PutExportRequest { deadline_ms: 3000, ..put }
}

pub(crate) fn delete_export(id: &str, counter: u64) -> v1::PutExportRequest {
    let tombstone = v1::Tombstone { destroy_data: false, ..Default::default() };
    v1::PutExportRequest {
        stamp: Some(stamp(1, counter, &tombstone)),
        wish: Some(v1::put_export_request::Wish::Tombstone(tombstone)),
        ..put_export(id, counter, &[])
    }
}

/// Asserts an error as a caller gets it: the code, who can cure it, and words in the text.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    cure: &str,
    words: &[&str],
) {
    let status = answer.expect_err("a refusal");
    assert_eq!(status.code(), code, "{status:?}");
    let told = status.metadata().get(mooring_api::CURE_KEY).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(told.as_deref(), Some(cure), "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{:?} is not in {:?}", word, status.message());
    }
}

static LOGS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Capture;

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGS.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Captures the logs of every test in this binary at the most verbose level, so that each test can
/// search for forbidden content.
fn capture_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt().with_env_filter("info,mooring_agent=trace,mooring_targets=trace,mooring_host=trace,tonic=debug,h2=debug,hyper=trace").with_ansi(false).with_writer(|| Capture).init();
    });
}

/// Returns everything that this process has logged so far.
pub(crate) fn logs() -> String {
    String::from_utf8_lossy(&LOGS.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

//! A host that stays, agents on it that come and go, and the requests of a controller.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use mooring_agent::config::Config;
use mooring_agent::connection::Connections;
use mooring_agent::engine::Engine;
use mooring_agent::machine::Machine;
use mooring_agent::rpc::listen;
use mooring_agent::store::Store;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::v1::host_client::HostClient;
use mooring_api::{Channel, TlsFiles, v1};
use mooring_bus::Bus;
use mooring_connectors::Parts;
use mooring_connectors::fake::{Door, Kill, World};
use mooring_host::{Front, Holder, Uevents};
use mooring_model::{IqnPrefix, VolumeId};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::{Code, Status};

pub(crate) const CLUSTER: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11";
pub(crate) const PORTAL: &str = "10.0.0.1:3260";
pub(crate) const SIZE: u64 = 64 << 20;
/// Part of every secret in these tests, and of nothing else.
pub(crate) const SECRET_WORD: &str = "Xylophon";
pub(crate) const RW: v1::Mode = v1::Mode::ReadWrite;
pub(crate) const RO: v1::Mode = v1::Mode::ReadOnly;

/// Long enough, in ms, for every answer that comes before its deadline.
const ANSWER_MS: u32 = 20_000;

/// Limit of a wait, never a measure.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host: everything that survives a crash of its agent.
pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: Config,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with("resync_seconds = 3600\n")
    }

    /// A host with other lines in its configuration.
    pub(crate) fn with(lines: &str) -> Self {
        let (dir, config) = configured(lines);
        Self { world: World::new(&dir.path().join("run")), config, dir }
    }

    /// A host with targets of these volumes, each with its secret.
    pub(crate) fn exporting(volumes: &[u8]) -> Self {
        let site = Self::new();
        for n in volumes {
            site.world.export(volume(*n), SIZE, Some(&secret()));
        }
        site
    }

    pub(crate) fn start(&self) -> Agent {
        self.start_with(None)
    }

    pub(crate) fn start_with(&self, kill: Option<Kill>) -> Agent {
        let door = self.world.door(kill);
        start_agent(&self.config, door.parts(), door.uevents(), Some(door.clone()))
    }

    pub(crate) fn attachment_path(&self, n: u8) -> PathBuf {
        self.dir.path().join("run/attachments").join(attachment(n))
    }

    /// Returns the device to which an attachment's path leads; `None` if there is no path.
    pub(crate) fn path_of(&self, n: u8) -> Option<String> {
        let to = std::fs::read_link(self.attachment_path(n)).ok()?;
        Some(to.file_name()?.to_str()?.to_owned())
    }

    /// Asserts that the attachment has a path to this volume's disk.
    #[track_caller]
    pub(crate) fn assert_attached(&self, n: u8, to: u8) {
        let disk = self.world.disk_of(volume(to));
        assert!(disk.is_some() && self.path_of(n) == disk, "{n}: {:?}, not {disk:?}", self.path_of(n));
    }

    /// Asserts that nothing of a volume is on this host.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, n: u8) {
        let id = volume(n);
        assert_eq!((self.world.session(id), self.world.disk_of(id)), (None, None));
        assert!(self.dir.path().join("run/volumes").join(id.to_string()).symlink_metadata().is_err());
        assert!(!self.dir.path().join("run/connections").join(id.to_string()).exists());
        self.assert_lawful();
    }

    #[track_caller]
    pub(crate) fn assert_lawful(&self) {
        assert_eq!(self.world.violations(), Vec::<String>::new());
    }

    pub(crate) fn hold(&self, n: u8) {
        let holder = Holder::Process { pid: 4711, name: "qemu-system-x86".to_owned() };
        self.world.hold_open(volume(n), &[holder]);
    }
}

/// A folder, and a configuration in it.
fn configured(lines: &str) -> (tempfile::TempDir, Config) {
    capture_logs();
    // In memory if possible: these tests do not measure how long a busy disk takes to sync.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let text = format!(
        "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nconfigfs = \"{0}/configfs\"\n{lines}[host]\n",
        dir.path().display()
    );
    let config = Config::parse(&text, "agent.toml").unwrap();
    (dir, config)
}

pub(crate) fn host_config() -> (tempfile::TempDir, Config) {
    configured("resync_seconds = 3600\n")
}

/// Starts an agent on these parts.
pub(crate) fn start_agent(
    config: &Config,
    parts: Parts,
    uevents: Box<dyn Uevents>,
    door: Option<Door>,
) -> Agent {
    start_agent_on(None, config, parts, uevents, door)
}

/// Starts an agent like [`start_agent`], which asks systemd on `bus`.
pub(crate) fn start_agent_on(
    bus: Option<Bus>,
    config: &Config,
    parts: Parts,
    uevents: Box<dyn Uevents>,
    door: Option<Door>,
) -> Agent {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = Store::open(&config.state_dir).unwrap();
    let (stop, stopped) = watch::channel(false);
    let (config, machine) = (config.clone(), Machine { bus, ..Machine::real(&config.configfs) });
    let (channel, connections) = runtime.block_on(async move {
        let address = config.listen[0].clone();
        let bound = listen::bind(&Front::new().unwrap(), &config).unwrap();
        let engine = Engine::new(config, machine, store).unwrap();
        let connections = Connections::new(engine.clone(), parts).unwrap();
        engine.start().await;
        connections.start(Some(uevents));
        let served = connections.clone();
        tokio::spawn(async move { listen::serve_with(&engine, Some(&served), bound, stopped).await });
        (mooring_api::connect(&address, &TlsFiles::default()).await.unwrap(), connections)
    });
    let door = door.unwrap_or_else(|| World::new(std::path::Path::new("/nonexistent")).door(None));
    Agent { runtime: Some(runtime), channel, connections, door, stop }
}

/// A running agent, and a client of it.
pub(crate) struct Agent {
    runtime: Option<Runtime>,
    channel: Channel,
    pub(crate) connections: Connections,
    pub(crate) door: Door,
    stop: watch::Sender<bool>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.door.kill();
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

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn client(&self) -> HostClient<Channel> {
        HostClient::new(self.channel.clone())
    }

    pub(crate) fn agent_client(&self) -> AgentClient<Channel> {
        AgentClient::new(self.channel.clone())
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

    pub(crate) fn initiator(&self) -> String {
        self.connections.initiator().to_string()
    }

    pub(crate) fn try_put(&self, put: v1::PutConnectionRequest) -> Result<v1::PutConnectionResponse, Status> {
        let mut client = self.client();
        self.wait(async move { client.put_connection(put).await }).map(tonic::Response::into_inner)
    }

    /// Puts a spec, and expects it to be reached in the answer.
    #[track_caller]
    pub(crate) fn make(&self, put: v1::PutConnectionRequest) -> v1::ConnectionReport {
        let answer = self.try_put(put).unwrap();
        assert!(answer.done, "{answer:?}");
        answer.report.unwrap()
    }

    /// Puts a spec, and expects that something is in the way.
    #[track_caller]
    pub(crate) fn make_not_done(&self, put: v1::PutConnectionRequest) -> v1::ConnectionReport {
        let answer = self.try_put(put).unwrap();
        assert!(!answer.done, "{answer:?}");
        answer.report.unwrap()
    }

    /// A spec with CHAP for these attachments.
    pub(crate) fn spec(&self, n: u8, attachments: &[(u8, v1::Mode)]) -> v1::ConnectionSpec {
        let (id, prefix) = (volume(n), IqnPrefix::default());
        let side = v1::ChapSide { user: "host".to_owned(), secret: secret() };
        v1::ConnectionSpec {
            initiator: self.initiator(),
            target: prefix.target(id).to_string(),
            tpg: 1,
            portals: vec![PORTAL.to_owned()],
            lun: 1,
            naa: mooring_model::Naa::of_serial(&id.to_string()).to_string(),
            serial: id.to_string(),
            size_bytes: SIZE,
            chap: Some(v1::Chap { initiator: Some(side), mutual: None }),
            other_chap: None,
            attachments: attachments
                .iter()
                .map(|(id, mode)| v1::AttachmentWish {
                    attachment_id: attachment(*id),
                    mode: (*mode).into(),
                    cache_off: false,
                })
                .collect(),
            fc: None,
        }
    }

    pub(crate) fn put(
        &self,
        n: u8,
        counter: u64,
        attachments: &[(u8, v1::Mode)],
    ) -> v1::PutConnectionRequest {
        put_spec(n, counter, self.spec(n, attachments))
    }

    pub(crate) fn get(&self, n: u8) -> Result<v1::ConnectionStatus, Status> {
        let mut client = self.client();
        let request = v1::GetConnectionRequest { volume_id: volume(n).to_string() };
        self.wait(async move { client.get_connection(request).await }).map(tonic::Response::into_inner)
    }

    pub(crate) fn report(&self, n: u8) -> v1::ConnectionReport {
        self.get(n).unwrap().report.unwrap_or_default()
    }

    pub(crate) fn check(&self, n: u8) -> Result<v1::CheckConnectionResponse, Status> {
        let mut client = self.client();
        let request = v1::CheckConnectionRequest { volume_id: volume(n).to_string() };
        self.wait(async move { client.check_connection(request).await }).map(tonic::Response::into_inner)
    }

    pub(crate) fn metrics(&self) -> String {
        let connections = self.connections.clone();
        mooring_agent::metrics::text(connections.engine().clone(), Some(connections)).unwrap()
    }

    pub(crate) fn list(&self) -> Vec<v1::ConnectionStatus> {
        self.list_asking(false)
    }

    pub(crate) fn list_asking(&self, with_secrets: bool) -> Vec<v1::ConnectionStatus> {
        let mut client = self.client();
        let list = v1::ListConnectionsRequest { with_secrets };
        self.wait(async move { client.list_connections(list).await }).unwrap().into_inner().connections
    }

    pub(crate) fn watch(&self) -> tonic::Streaming<v1::ConnectionEvent> {
        let mut client = self.client();
        self.wait(async move { client.watch_connections(v1::WatchConnectionsRequest {}).await })
            .unwrap()
            .into_inner()
    }
}

pub(crate) fn put_spec(n: u8, counter: u64, spec: v1::ConnectionSpec) -> v1::PutConnectionRequest {
    v1::PutConnectionRequest {
        sender: Some(v1::Sender { cluster_id: CLUSTER.to_owned() }),
        volume_id: volume(n).to_string(),
        stamp: Some(stamp(1, counter, &spec)),
        wish: Some(v1::put_connection_request::Wish::Spec(spec)),
        opaque: b"opaque".to_vec(),
        deadline_ms: ANSWER_MS,
    }
}

pub(crate) fn tombstone(n: u8, counter: u64, revoked: bool) -> v1::PutConnectionRequest {
    let tombstone = v1::ConnectionTombstone { revoked };
    v1::PutConnectionRequest {
        sender: Some(v1::Sender { cluster_id: CLUSTER.to_owned() }),
        volume_id: volume(n).to_string(),
        stamp: Some(stamp(1, counter, &tombstone)),
        wish: Some(v1::put_connection_request::Wish::Tombstone(tombstone)),
        opaque: b"opaque".to_vec(),
        deadline_ms: ANSWER_MS,
    }
}

/// Shortens the deadline, for an answer that comes at its deadline: long enough to be taken and
/// begun on a busy machine, short enough to wait for.
pub(crate) fn brief(put: v1::PutConnectionRequest) -> v1::PutConnectionRequest {
    v1::PutConnectionRequest { deadline_ms: 3000, ..put }
}

pub(crate) fn stamp(epoch: u64, counter: u64, wish: &impl mooring_api::Message) -> v1::Stamp {
    v1::Stamp {
        generation: Some(v1::Generation { epoch, counter }),
        digest: mooring_api::digest(wish, b"opaque").as_bytes().to_vec(),
    }
}

/// Waits until the condition is true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn volume(n: u8) -> VolumeId {
    VolumeId::from_u128((u128::from(n) << 120) | 0xa0b1_c2d3)
}

pub(crate) fn attachment(n: u8) -> String {
    mooring_model::AttachmentId::from_u128(u128::from(n)).to_string()
}

pub(crate) fn secret() -> String {
    format!("{SECRET_WORD}-of-host")
}

pub(crate) fn problems(report: &v1::ConnectionReport) -> String {
    let text = |problem: &v1::Problem| format!("{}: {}", problem.object, problem.text);
    report.problems.iter().map(text).collect::<Vec<_>>().join("\n")
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
        let filter =
            "info,mooring_agent=trace,mooring_connectors=trace,mooring_host=trace,tonic=debug,h2=debug";
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Capture).init();
    });
}

/// Returns everything that this process has logged so far.
pub(crate) fn logs() -> String {
    String::from_utf8_lossy(&LOGS.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

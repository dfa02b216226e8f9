//! A controller with agents in memory, and the calls of the tests to it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use mooring_api::{CURE_KEY, v1};
use mooring_controller::clock::Clock;
use mooring_controller::domain::{
    Attachment, AttachmentLive, Caller, Hints, NewAttachment, NewConnector, NewSnapshot, NewVolume,
    PoolFilter, Volume, VolumeStatus,
};
use mooring_controller::policy::Policies;
use mooring_controller::rebuild::{How, RebuildError, Report};
use mooring_controller::service::{
    AgentEntry, Database, OpenError, PostgresOptions, Refusal, Service, ServiceOptions, Wait,
};
use mooring_model::{AttachmentId, Mode, Receipt, VolumeId};
use mooring_systemd::sealing::Origin;
use tonic::{Code, Status};

use super::{Fake, World, pg};

/// `true` in the test binary `postgres`, which runs the same tests on the other database.
pub(crate) const ON_POSTGRES: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"postgres");

pub(crate) const LONG: Wait = Wait(Duration::from_secs(30));
pub(crate) const SHORT: Wait = Wait(Duration::from_millis(300));

/// A storage agent, some hosts, and a controller.
pub(crate) struct Rig {
    pub(crate) world: Arc<World>,
    pub(crate) storage: Fake,
    pub(crate) hosts: Vec<Fake>,
    pub(crate) service: Service,
    pub(crate) names: Vec<String>,
    dir: tempfile::TempDir,
    /// Changes to the usual options, at every start.
    tune: Tune,
    /// Prefix of the names of this rig's databases, if they are in one server.
    prefix: String,
    /// A server of its own, instead of the shared one. `None`: the shared one.
    server: Option<&'static pg::Server>,
}

pub(crate) type Tune = Arc<dyn Fn(&mut ServiceOptions) + Send + Sync>;

pub(crate) fn member(project: &str) -> Caller {
    Caller {
        project: project.to_owned(),
        user: "u".to_owned(),
        roles: roles(&["member", "reader"]),
        admin: false,
        service: false,
        request: "req-00000000-0000-4000-8000-000000000000".to_owned(),
    }
}

pub(crate) fn admin() -> Caller {
    Caller { admin: true, roles: roles(&["admin", "member", "reader"]), ..member("p") }
}

fn roles(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl Rig {
    /// `storage` and `host1…`, all up.
    pub(crate) async fn new(hosts: usize) -> Self {
        let rig = Self::quiet(hosts);
        rig.up().await;
        rig
    }

    /// A rig with one host and a thin pool, a thin volume, and snapshots of it, the oldest first.
    pub(crate) async fn thin(snapshots: usize) -> (Self, VolumeId, Vec<VolumeId>) {
        let rig = Self::quiet(1);
        {
            let mut state = rig.storage.state();
            let pool = state.pools.first().cloned().unwrap();
            state.pools = vec![v1::Pool { name: "vg0:thin".to_owned(), thick: false, ..pool }];
        }
        rig.up().await;
        until("the pools", async || {
            let pools = rig.service.pools(&admin(), PoolFilter::default()).await.unwrap().len();
            if pools == 0 { Err("none".to_owned()) } else { Ok(()) }
        })
        .await;
        let volume = rig.volume(false).await;
        let mut taken = Vec::new();
        for _ in 0..snapshots {
            taken.push(rig.snapshot(volume).await);
        }
        (rig, volume, taken)
    }

    /// Takes a snapshot, and waits until it is there.
    pub(crate) async fn snapshot(&self, volume: VolumeId) -> VolumeId {
        let new = NewSnapshot { volume, name: None, description: None, metadata: [].into(), in_use: false };
        let id = self.service.create_snapshot(&admin(), new).await.unwrap().id;
        self.until_snapshot(id, VolumeStatus::Available).await;
        id
    }

    pub(crate) async fn until_snapshot(&self, id: VolumeId, want: VolumeStatus) {
        until("the snapshot", async || match self.service.snapshot(&admin(), id).await.unwrap().status {
            status if status == want => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
    }

    /// Waits until a volume or a snapshot is gone.
    pub(crate) async fn until_deleted(&self, id: VolumeId) {
        until("the end of the volume", async || {
            let volume = self.service.volume(&admin(), id).await;
            let snapshot = self.service.snapshot(&admin(), id).await;
            match (&volume, &snapshot) {
                (Err(Refusal::NotFound { .. }), Err(Refusal::NotFound { .. })) => Ok(()),
                _ => Err(format!("{volume:?} {snapshot:?}")),
            }
        })
        .await;
    }

    /// A rig with its databases in a server of its own, which the test may kill.
    pub(crate) async fn on(server: &'static pg::Server, hosts: usize) -> Self {
        let rig = Self::quiet_on(Some(server), hosts, Arc::new(|_| {}));
        rig.up().await;
        rig
    }

    /// A rig as [`Rig::new`] makes it, before any agent is dialled.
    pub(crate) fn quiet(hosts: usize) -> Self {
        Self::quiet_with(hosts, |_| {})
    }

    /// A rig as [`Rig::quiet`] makes it, with other options, now and at every later start.
    pub(crate) fn quiet_with(
        hosts: usize,
        change: impl Fn(&mut ServiceOptions) + Send + Sync + 'static,
    ) -> Self {
        Self::quiet_on(None, hosts, Arc::new(change))
    }

    fn quiet_on(server: Option<&'static pg::Server>, hosts: usize, tune: Tune) -> Self {
        let world = Arc::new(World::default());
        let dir = tempfile::tempdir().unwrap();
        let storage = Fake::new(0x57, &world);
        storage.state().initiator.clear();
        let hosts: Vec<_> = (1..=hosts).map(|n| Fake::host(n as u128, &world)).collect();
        let mut names = vec!["storage".to_owned()];
        storage.serve(&dir.path().join("storage.sock"));
        for (index, host) in hosts.iter().enumerate() {
            let name = format!("host{}", index + 1);
            host.serve(&dir.path().join(format!("{name}.sock")));
            names.push(name);
        }
        let prefix = uuid::Uuid::new_v4().simple().to_string();
        let mut options = options(&dir, &names, "state", false);
        tune(&mut options);
        let service = open(options, server, &prefix).unwrap();
        Self { world, storage, hosts, service, names, dir, tune, prefix, server }
    }

    pub(crate) async fn up(&self) {
        self.service.start();
        for name in &self.names {
            self.until_host(name, |host| host.up).await;
        }
    }

    pub(crate) async fn until_host(
        &self,
        name: &str,
        want: impl Fn(&mooring_controller::domain::Host) -> bool,
    ) {
        until(&format!("host {name}"), async || {
            let hosts = self.service.hosts(&admin()).await.unwrap();
            let host = hosts.into_iter().find(|host| host.name == name).unwrap();
            if want(&host) { Ok(()) } else { Err(format!("{host:?}")) }
        })
        .await;
    }

    /// A volume of a type that is shared, but not in two modes on one host.
    pub(crate) async fn strict_volume(&self) -> VolumeId {
        let specs = [("multiattach", "<is> True"), ("mooring:mixed_modes", "<is> False")];
        let specs = specs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        self.service.create_type(&admin(), "strict", None, true, specs).await.unwrap();
        let new = NewVolume { volume_type: Some("strict".to_owned()), ..new_volume() };
        let volume = self.service.create_volume(&admin(), new).await.unwrap().id;
        self.until_volume(volume, VolumeStatus::Available).await;
        volume
    }

    /// Reads the first column of a query past the service.
    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        if ON_POSTGRES {
            return self.psql(sql).lines().map(str::to_owned).collect();
        }
        let path = self.path("state").join("mooring-controller.db");
        let db = rusqlite::Connection::open(path).unwrap();
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    /// Changes the database past the service.
    pub(crate) fn write(&self, sql: &str) {
        let path = self.path("state").join("mooring-controller.db");
        rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
    }

    /// Detaches by force, and returns the receipt, which may be unproven. A slow agent is asked
    /// again.
    pub(crate) async fn force(&self, id: AttachmentId) -> Receipt {
        until("a receipt", async || {
            let answer = self.service.delete_attachment(&admin(), id, true, SHORT).await;
            answer.map(|(answer, _)| answer.receipt.unwrap()).map_err(|refusal| refusal.to_string())
        })
        .await
    }

    /// Ends the controller, and starts another on the same database, or on another folder.
    pub(crate) async fn restart(&mut self) {
        self.restart_on("state", false).await;
        for name in self.names.clone() {
            self.until_host(&name, |host| host.up).await;
        }
    }

    pub(crate) async fn restart_on(&mut self, state: &str, restored: bool) {
        self.service.stop().await;
        // The old controller closes its database with its last handle.
        let spare = options(&self.dir, &[], &format!("spare-{}", uuid::Uuid::new_v4()), false);
        self.service = Service::open(spare).unwrap();
        let mut options = options(&self.dir, &self.names, state, restored);
        (self.tune)(&mut options);
        // A transaction without a waiting caller may still hold the file.
        self.service =
            until("the database", async || match open(options.clone(), self.server, &self.prefix) {
                Ok(service) => {
                    service.start();
                    Ok(service)
                }
                Err(error) => Err(format!("{error:?}")),
            })
            .await;
    }

    /// Makes one more controller with the same agents, not started.
    pub(crate) fn another(&self) -> Service {
        let mut options = options(&self.dir, &self.names, "state", false);
        (self.tune)(&mut options);
        open(options, self.server, &self.prefix).unwrap()
    }

    /// The configuration of a controller with these agents and this database, for the program.
    pub(crate) fn configuration(&self) -> String {
        let agents = self.names.iter().map(|name| {
            let socket = self.path(&format!("{name}.sock"));
            format!("[[agents]]\nname = \"{name}\"\naddress = \"unix:{}\"\n", socket.display())
        });
        let url = self.server().database(&format!("{}-state", self.prefix));
        let keys = self.path("sealing.key");
        std::fs::write(&keys, include_str!("sealing.key")).unwrap();
        std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        format!(
            "state_dir = \"{}\"\nsealing_key = \"{}\"\nlisten = [\"127.0.0.1:0\"]\ncluster = \"{}\"\n[database]\nurl = \"{url}\"\n{}",
            self.path("program").display(),
            keys.display(),
            self.service.cluster(),
            agents.collect::<String>()
        )
    }

    fn server(&self) -> &'static pg::Server {
        self.server.unwrap_or_else(pg::Server::shared)
    }

    /// Runs SQL on this rig's database.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server().psql(&format!("{}-state", self.prefix), sql)
    }

    /// Ends the controller, loses its database, and rebuilds another one from the agents.
    pub(crate) async fn rebuild(&mut self, state: &str) -> Result<Report, RebuildError> {
        self.service.stop().await;
        let spare = options(&self.dir, &[], &format!("spare-{}", uuid::Uuid::new_v4()), false);
        self.service = Service::open(spare).unwrap();
        let mut options = options(&self.dir, &self.names, state, false);
        (self.tune)(&mut options);
        let database = database(&options, self.server, &self.prefix);
        mooring_controller::rebuild::run(options, database, &How::default()).await
    }

    /// Copies the database and its keys, as a backup does.
    pub(crate) fn backup(&self, to: &str) {
        if ON_POSTGRES {
            let name = |state: &str| format!("{}-{state}", self.prefix);
            self.server().backup_and_restore(&name("state"), &name(to));
            return;
        }
        let target = self.path(to);
        std::fs::create_dir(&target).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&target, private).unwrap();
        let from = rusqlite::Connection::open(self.path("state").join("mooring-controller.db")).unwrap();
        from.execute("VACUUM INTO ?1", [target.join("mooring-controller.db").to_str().unwrap()]).unwrap();
        std::fs::copy(self.path("state").join("sealing.key"), target.join("sealing.key")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn shared_type(&self) -> String {
        let specs = BTreeMap::from([("multiattach".to_owned(), "<is> True".to_owned())]);
        let made = self.service.create_type(&admin(), "shared", None, true, specs).await;
        match made {
            Ok(_) | Err(Refusal::Conflict(_)) => "shared".to_owned(),
            Err(refusal) => panic!("{refusal}"),
        }
    }

    pub(crate) async fn volume(&self, shared: bool) -> VolumeId {
        let volume_type = if shared { Some(self.shared_type().await) } else { None };
        let made = self.service.create_volume(&admin(), NewVolume { volume_type, ..new_volume() }).await;
        let id = made.unwrap().id;
        self.until_volume(id, VolumeStatus::Available).await;
        id
    }

    pub(crate) async fn until_volume(&self, id: VolumeId, want: VolumeStatus) -> Volume {
        until("the volume", async || {
            let volume = self.service.volume(&admin(), id).await.unwrap();
            if volume.status == want { Ok(volume) } else { Err(format!("{volume:?}")) }
        })
        .await
    }

    pub(crate) async fn attach(&self, volume: VolumeId, host: &str, mode: Mode) -> AttachmentLive {
        let made = self.service.create_attachment(&admin(), native(volume, host, mode), LONG).await.unwrap();
        self.until_attached(made.id).await
    }

    /// Attaches a volume natively on `host1`, whose connection fails: an attachment that is
    /// `error_attaching`. The host's connections fail from then on.
    pub(crate) async fn failed(&self, volume: VolumeId) -> AttachmentId {
        let problem = v1::Problem {
            object: "portal 10.10.0.10:3260".to_owned(),
            text: "the target refused the credentials (0x0201)".to_owned(),
            cure: v1::Cure::Operator.into(),
        };
        self.hosts[0].state().knobs.broken = Some((v1::ConnectionPhase::Failed, problem));
        let new = native(volume, "host1", Mode::ReadWrite);
        let id = self.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
        self.until_live(id, |live| {
            live.attachment.status == mooring_controller::domain::AttachmentStatus::ErrorAttaching
        })
        .await;
        id
    }

    /// Waits until no agent has any part of an attachment that failed.
    pub(crate) async fn until_nothing_is_held(&self, id: AttachmentId) {
        let sql = format!("SELECT (access / 10) || '' FROM attachments WHERE id = '{id}'");
        until("the end of a failed attachment's grant", async || match self.texts(&sql).as_slice() {
            [grant] if grant == "0" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub(crate) async fn until_attached(&self, id: AttachmentId) -> AttachmentLive {
        self.until_live(id, |live| {
            live.attachment.status == mooring_controller::domain::AttachmentStatus::Attached
        })
        .await
    }

    pub(crate) async fn until_live(
        &self,
        id: AttachmentId,
        want: impl Fn(&AttachmentLive) -> bool,
    ) -> AttachmentLive {
        let mut live = self.service.live(&admin(), id, None, LONG).await.unwrap();
        let limit = tokio::time::Instant::now() + LONG.0;
        while !want(&live) {
            assert!(tokio::time::Instant::now() < limit, "{live:?}");
            let wait = Wait(Duration::from_secs(5));
            live = self.service.live(&admin(), id, Some(live.revision), wait).await.unwrap();
        }
        live
    }

    /// Waits until no put has come for a moment. An agent is told some things after the call that
    /// caused them was answered.
    pub(crate) async fn until_quiet(&self) {
        until("no put for a moment", async || {
            let before = *self.world.puts.borrow();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = *self.world.puts.borrow();
            if now == before { Ok(()) } else { Err(format!("{now} puts")) }
        })
        .await;
    }

    pub(crate) async fn until_gone(&self, id: AttachmentId) {
        until("the end of the attachment", async || match self.service.attachment(&admin(), id).await {
            Err(Refusal::NotFound { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

/// Opens a controller on the database that these tests are for.
fn open(
    options: ServiceOptions,
    server: Option<&'static pg::Server>,
    prefix: &str,
) -> Result<Service, OpenError> {
    let database = database(&options, server, prefix);
    Service::open_on(options, database)
}

fn database(options: &ServiceOptions, server: Option<&'static pg::Server>, prefix: &str) -> Database {
    if !ON_POSTGRES {
        return Database::embedded(options.state_dir.clone());
    }
    let state = options.state_dir.file_name().unwrap().to_str().unwrap();
    let server = server.unwrap_or_else(pg::Server::shared);
    let url = server.database(&format!("{prefix}-{state}"));
    let options = Box::new(PostgresOptions::new(&url, None, None, false).unwrap());
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/sealing.key");
    Database::Postgres { options, keys: Origin::Credential(keys) }
}

fn options(dir: &tempfile::TempDir, names: &[String], state: &str, restored: bool) -> ServiceOptions {
    let entry = |name: &String| AgentEntry {
        name: name.clone(),
        address: format!("unix:{}", dir.path().join(format!("{name}.sock")).display()).parse().unwrap(),
        tls: mooring_api::TlsFiles::default(),
        insecure: false,
        zone: None,
        enrolment: None,
    };
    ServiceOptions {
        agents: names.iter().map(entry).collect(),
        cluster: Some(mooring_model::ClusterId::from_u128(0xc1)),
        restored,
        clock: clock(),
        policies: Arc::new(POLICIES.with(|set| set.get().cloned().unwrap_or_default())),
        ..ServiceOptions::new(dir.path().join(state))
    }
}

thread_local! {
    /// Policies other than the defaults, if a test sets them before its first controller.
    pub(crate) static POLICIES: OnceCell<Policies> = const { OnceCell::new() };

    static AHEAD: Arc<AtomicU64> = Arc::default();

    static WRONG: Arc<AtomicI64> = Arc::default();
}

/// The machine's clocks, plus the offsets that this test has set. The offsets belong to the thread:
/// one process may run several tests.
fn clock() -> Clock {
    let (ahead, wrong) = (AHEAD.with(Arc::clone), WRONG.with(Arc::clone));
    let later = move |ahead: &AtomicU64| Duration::from_secs(ahead.load(Ordering::Relaxed));
    let (wall, began) = (Arc::clone(&ahead), std::time::Instant::now());
    Clock::with_monotonic(
        move || {
            let (now, wrong) = (SystemTime::now() + later(&wall), wrong.load(Ordering::Relaxed));
            let by = Duration::from_secs(wrong.unsigned_abs());
            if wrong < 0 { now - by } else { now + by }
        },
        move || began.elapsed() + later(&ahead),
    )
}

/// Lets this much time pass, on all clocks.
pub(crate) fn put_forward(seconds: u64) {
    AHEAD.with(|ahead| ahead.fetch_add(seconds, Ordering::Relaxed));
}

/// Sets the wall clock. No time passes.
pub(crate) fn set_clock(by_seconds: i64) {
    WRONG.with(|wrong| wrong.fetch_add(by_seconds, Ordering::Relaxed));
}

pub(crate) fn new_volume() -> NewVolume {
    NewVolume {
        id: None,
        name: Some("v".to_owned()),
        description: None,
        size_gib: Some(1),
        source: None,
        volume_type: None,
        metadata: BTreeMap::new(),
        hints: Hints::default(),
    }
}

pub(crate) fn native(volume: VolumeId, host: &str, mode: Mode) -> NewAttachment {
    NewAttachment {
        id: None,
        volume,
        instance: None,
        mode: Some(mode),
        connector: NewConnector::Native { host: host.to_owned(), transport: None, cache: None },
    }
}

pub(crate) fn connector(number: u32) -> serde_json::Map<String, serde_json::Value> {
    let value = serde_json::json!({
        "host": format!("node{number}"), "initiator": format!("iqn.2026-01.org.example:node{number}"),
        "ip": "192.0.2.11", "multipath": false, "mountpoint": "/dev/vdb",
    });
    value.as_object().unwrap().clone()
}

pub(crate) fn client(volume: VolumeId, number: u32) -> NewAttachment {
    NewAttachment {
        connector: NewConnector::Client(connector(number)),
        mode: None,
        ..native(volume, "", Mode::ReadWrite)
    }
}

pub(crate) fn reserve(volume: VolumeId) -> NewAttachment {
    NewAttachment { connector: NewConnector::None, ..client(volume, 0) }
}

/// Waits for a state that comes by itself. It has no signal of its own, so it is looked at often.
/// The limit is only for a test that hangs.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
    let limit = tokio::time::Instant::now() + LONG.0;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) => assert!(tokio::time::Instant::now() < limit, "{what} does not come: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn connection_info(attachment: &Attachment) -> &serde_json::Map<String, serde_json::Value> {
    attachment.connection_info.as_ref().unwrap()
}

/// Microseconds since 1970, the agents' form of times.
pub(crate) fn now_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

impl Fake {
    /// Capabilities of the agent, as it reports them.
    pub(super) fn capabilities(&self) -> v1::Capabilities {
        let state = self.state();
        v1::Capabilities {
            agent_id: state.id.to_string(),
            host_name: state.machine.clone(),
            kernel_release: "6.12.1".to_owned(),
            multiattach: state.multiattach,
            pools: state.pools.clone(),
            // A host that only attaches has no pools, and reports that.
            pools_unknown: state.pools.is_empty() && state.initiator.is_empty(),
            problems: state.problems.clone(),
            transports: state.knobs.fc.transports(),
            cache_off: Some(true).filter(|_| !state.initiator.is_empty() && !state.knobs.knows_no_cache),
            images: (!state.pools.is_empty()).then(|| v1::Images {
                folder: "/var/lib/mooring/images".to_owned(),
                formats: vec![v1::ImageFormat::Raw.into()],
            }),
            ..Default::default()
        }
    }
}

pub(crate) fn cured(code: Code, text: &str, cure: &str) -> Status {
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(CURE_KEY, cure.parse().unwrap());
    status
}

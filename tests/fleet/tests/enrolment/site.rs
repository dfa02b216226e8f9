//! A controller with an authority of its own, and machines that join it over TLS.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mooring_agent::args::{JoinArgs, Role};
use mooring_agent::config::Config;
use mooring_agent::identity;
use mooring_agent::join::{self, Ground, JoinError};
use mooring_agent::machine::Machine;
use mooring_agent::run;
use mooring_controller::auth::Auth;
use mooring_controller::authority::live::LiveAuthority;
use mooring_controller::authority::{self, Authority};
use mooring_controller::clock::Clock;
use mooring_controller::domain::{Caller, Hints, Host, NewVolume, Volume, VolumeStatus};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::service::{
    Database, Enroller, JoinRequest, JoinTerms, NewJoinToken, PostgresOptions, Refusal, Service,
    ServiceOptions,
};
use mooring_fleet::own_loopback;
use mooring_host::fake::FakeMachine;
use mooring_host::{KernelTree, SystemClock};
use mooring_model::VolumeId;
use mooring_systemd::sealing::Origin;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn admin() -> Caller {
    Caller {
        project: "p".to_owned(),
        user: "admin".to_owned(),
        roles: ["admin", "member", "reader"].map(str::to_owned).to_vec(),
        admin: true,
        service: false,
        request: "req-test".to_owned(),
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A free port of this process's own address of loopback.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind((own_loopback(), 0)).unwrap().local_addr().unwrap()
}

#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A controller with an authority of its own, which listens with TLS.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) service: Service,
    /// Seconds by which its clock is ahead of the machine's.
    ahead: Arc<AtomicU64>,
    pub(crate) runtime: Runtime,
    _stop: watch::Sender<bool>,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(None, None)
    }

    /// Makes a site, optionally with another controller's authority, and with a server's database
    /// in place of its own.
    pub(crate) fn with(of: Option<&Self>, database: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = if let Some(other) = of {
            ["authority.crt", "authority.key"].map(|name| read(&other.dir.path().join(name))).into()
        } else {
            let key = authority::make_key().unwrap();
            (authority::self_sign(&key, "test", now).unwrap(), key)
        };
        let (authority_file, authority_key) =
            (write("authority.crt", &certificate), write("authority.key", &key));
        let signer = Authority::load(&authority_file, &authority_key).unwrap();
        let (server, client) = (authority::make_key().unwrap(), authority::make_key().unwrap());
        let cert = signer.sign_server(&server, &[own_loopback().to_string()], now).unwrap().certificate;
        let tls = (write("server.crt", &cert), write("server.key", &server));
        let shown = signer.sign_client(&client, now).unwrap().certificate;
        let address = free();
        let ahead = Arc::new(AtomicU64::new(0));
        let clock = {
            let ahead = Arc::clone(&ahead);
            Clock::new(move || SystemTime::now() + Duration::from_secs(ahead.load(Ordering::Relaxed)))
        };
        let options = ServiceOptions {
            clock,
            enroller: Some(Enroller {
                authority: Arc::new(LiveAuthority::load(&authority_file, &authority_key).unwrap()),
                api_cert: Some(tls.0.clone()),
                client_cert: write("client.crt", &shown),
                client_key: write("client.key", &client),
                url: Some(format!("https://{address}")),
            }),
            ..ServiceOptions::new(dir.path().join("state"))
        };
        let policies = Arc::clone(&options.policies);
        let service = match database {
            None => Service::open(options),
            Some(url) => {
                let shared = Box::new(PostgresOptions::new(url, None, None, false).unwrap());
                let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/../../controller/tests/support/sealing.key");
                let keys = Origin::Credential(keys.into());
                Service::open_on(options, Database::Postgres { options: shared, keys })
            }
        };
        let service = service.unwrap();
        let runtime = runtime();
        let (stop, stopped) = watch::channel(false);
        let (served, front) = (service.clone(), service.clone());
        let bound = runtime.block_on(http::bind(&[address])).map_err(|(_, error)| error).unwrap();
        let tls = runtime.block_on(http::tls(&tls.0, &tls.1)).unwrap();
        runtime.spawn(async move {
            served.start();
            let options = Options {
                auth: Auth::NoAuth,
                policies,
                public_url: None,
                tls: true,
                body_timeout: BODY_TIMEOUT,
            };
            let serving = Serving { tls: Some(tls), ..Serving::default() };
            http::serve(http::router(front, options), bound, serving, stopped).await.unwrap();
        });
        Self { dir, service, ahead, runtime, _stop: stop }
    }

    pub(crate) fn token(&self, name: &str) -> Result<NewJoinToken, Refusal> {
        self.token_for(name, "storage", None)
    }

    pub(crate) fn token_for(
        &self,
        name: &str,
        roles: &str,
        zone: Option<&str>,
    ) -> Result<NewJoinToken, Refusal> {
        let terms = JoinTerms { roles: roles.parse().unwrap(), zone: zone.map(str::to_owned) };
        self.runtime.block_on(self.service.make_join_token(&admin(), name, terms))
    }

    pub(crate) fn hosts(&self) -> Vec<Host> {
        self.runtime.block_on(self.service.hosts(&admin())).unwrap()
    }

    pub(crate) fn host(&self, name: &str) -> Option<Host> {
        self.hosts().into_iter().find(|host| host.name == name)
    }

    pub(crate) fn rename(&self, old: &str, new: &str) -> Result<Vec<String>, Refusal> {
        self.runtime.block_on(self.service.rename_host(&admin(), old, new))
    }

    pub(crate) fn revoke(&self, name: &str) -> Result<(), Refusal> {
        self.runtime.block_on(self.service.revoke_host(&admin(), name))
    }

    #[track_caller]
    pub(crate) fn until_up(&self, name: &str) -> Host {
        let end = Instant::now() + PATIENCE;
        loop {
            let host = self.host(name);
            if let Some(host) = host.clone().filter(|host| host.up) {
                return host;
            }
            let why = host.and_then(|host| host.why_down);
            assert!(Instant::now() < end, "{name} never came up: {why:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the host is down because it was dialled and refused.
    #[track_caller]
    pub(crate) fn until_refused(&self, name: &str, word: &str) {
        let refused = |host: Host| host.why_down.filter(|why| why.contains(word));
        until(&format!("{name} is refused for {word}"), || self.host(name).and_then(refused));
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Node { dir, address: free() }
    }

    /// Puts the controller's clock forward by this time.
    pub(crate) fn put_forward(&self, by: Duration) {
        self.ahead.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn volume(&self) -> Volume {
        let new = NewVolume {
            id: None,
            name: Some("data".to_owned()),
            description: None,
            size_gib: Some(1),
            source: None,
            volume_type: None,
            metadata: BTreeMap::new(),
            hints: Hints::default(),
        };
        let made = self.runtime.block_on(self.service.create_volume(&admin(), new)).unwrap();
        until("the volume", || self.look(made.id).filter(|volume| volume.status == VolumeStatus::Available))
    }

    pub(crate) fn look(&self, id: VolumeId) -> Option<Volume> {
        self.runtime.block_on(self.service.volume(&admin(), id)).ok()
    }

    /// Makes every certificate due.
    pub(crate) fn age(&self) {
        let database =
            rusqlite::Connection::open(self.dir.path().join("state/mooring-controller.db")).unwrap();
        let soon = SystemTime::now() + Duration::from_hours(24);
        let us = i64::try_from(soon.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap();
        database.execute("UPDATE enrolments SET expires_us = ?1", [us]).unwrap();
    }
}

/// A request to join by a new key, as an agent makes it.
pub(crate) fn request(node: &Node, token: &NewJoinToken) -> JoinRequest {
    let both = node.identity();
    let tls = mooring_agent::config::Tls {
        cert: both.clone(),
        key: both,
        client_ca: node.dir.join("agent-ca.crt"),
    };
    JoinRequest {
        token: token.token.clone(),
        csr: identity::new_key(&tls).unwrap().csr,
        address: format!("https://{}", node.address),
        agent: None,
    }
}

/// A machine that may join.
pub(crate) struct Node {
    pub(crate) dir: PathBuf,
    pub(crate) address: SocketAddr,
}

/// An agent at work.
pub(crate) struct Agent {
    runtime: Option<Runtime>,
    _stop: watch::Sender<bool>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }
}

impl Node {
    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("agent.toml")
    }

    pub(crate) fn identity(&self) -> PathBuf {
        self.dir.join("agent.pem")
    }

    pub(crate) fn join(&self, token: &NewJoinToken) -> Result<(), JoinError> {
        self.join_by(&token.url, &token.token, &token.pin)
    }

    pub(crate) fn join_by(&self, url: &str, token: &str, pin: &str) -> Result<(), JoinError> {
        self.join_as(Role::Storage, url, token, pin)
    }

    pub(crate) fn join_as(&self, role: Role, url: &str, token: &str, pin: &str) -> Result<(), JoinError> {
        let args = JoinArgs {
            url: url.to_owned(),
            token: token.to_owned(),
            pin: pin.to_owned(),
            address: Some(self.address.to_string()),
            role: vec![role],
            portal: vec!["127.0.0.1".parse().unwrap()],
            group: vec!["vg0".parse().unwrap()],
            no_start: true,
        };
        let fake = FakeMachine::new();
        let lvm = fake.lvm();
        let mut out = Vec::new();
        let ground = Ground { commands: &lvm, addresses: Vec::new(), terminal: None, out: &mut out };
        runtime().block_on(join::join(&args, &self.config(), ground))
    }

    /// Starts the agent by the configuration that the join has written, on a fake machine.
    pub(crate) fn start(&self) -> Agent {
        let mut config = Config::load(&self.config()).unwrap();
        let folder = |name: &str| self.dir.join(name);
        (config.state_dir, config.run_dir, config.configfs) =
            (folder("state"), folder("run"), folder("configfs"));
        config.listen.retain(|address| matches!(address, mooring_api::Address::Tls(_)));
        let fake = FakeMachine::new();
        fake.set_root(self.dir.join("root"));
        fake.add_vg("vg0", 8 << 30);
        let machine = Machine {
            target: Arc::new(fake.lio()),
            folders: None,
            callers: None,
            sys: Arc::new(KernelTree::new(self.dir.join("sys"))),
            commands: Arc::new(fake.lvm()),
            blocks: Arc::new(fake.blocks()),
            images: Arc::new(fake.images()),
            pr: Arc::new(fake.clone()),
            clock: Arc::new(SystemClock),
            addresses_changed: Arc::default(),
            bus: None,
            addresses: Arc::new(|| vec![std::net::IpAddr::from([127, 0, 0, 1]).into()]),
            root: self.dir.join("root"),
        };
        let runtime = runtime();
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(async move {
            let ended = run::run(config, machine, None, |_| Ok(()), stopped).await;
            if let Err(error) = ended {
                eprintln!("an agent has ended: {error:#}");
            }
        });
        Agent { runtime: Some(runtime), _stop: stop }
    }
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

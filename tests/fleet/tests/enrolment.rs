//! Enrolment with the real controller and real agents over TLS: a token, a join, a certificate that is renewed, a revocation, and
//! everything that must not open an agent.
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../../../controller/tests/support/pg.rs"]
mod pg;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mooring_agent::args::JoinArgs;
use mooring_agent::config::Config;
use mooring_agent::identity;
use mooring_agent::join::{self, Ground, JoinError};
use mooring_agent::machine::Machine;
use mooring_agent::run;
use mooring_controller::auth::Auth;
use mooring_controller::authority::{self, Authority};
use mooring_controller::clock::Clock;
use mooring_controller::domain::{
    AuditCall, AuditQuery, Caller, Hints, Host, NewFence, NewVolume, Volume, VolumeStatus,
};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::service::{
    Database, Enroller, FORGET_AFTER, JoinRequest, JoinTerms, NewJoinToken, PostgresOptions, Refusal,
    Service, ServiceOptions, Wait,
};
use mooring_host::fake::FakeMachine;
use mooring_host::{KernelTree, SystemClock};
use mooring_model::{Chain, VolumeId};
use mooring_systemd::sealing::Origin;
use tokio::runtime::Runtime;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_mins(1);

fn admin() -> Caller {
    Caller {
        project: "p".to_owned(),
        user: "admin".to_owned(),
        roles: ["admin", "member", "reader"].map(str::to_owned).to_vec(),
        admin: true,
        service: false,
        request: "req-test".to_owned(),
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A free port of loopback.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
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
struct Site {
    dir: tempfile::TempDir,
    service: Service,
    /// Seconds that its clock is ahead of the machine's.
    ahead: Arc<AtomicU64>,
    runtime: Runtime,
    _stop: watch::Sender<bool>,
}

impl Site {
    fn new() -> Self {
        Self::with(None, None)
    }

    /// With the authority of another controller, and with a database of a server in the place of its own.
    fn with(of: Option<&Self>, database: Option<&str>) -> Self {
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
        let cert = signer.sign_server(&server, &["127.0.0.1".to_owned()], now).unwrap().certificate;
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
                authority: Arc::new(signer),
                authority_file,
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

    fn token(&self, name: &str) -> Result<NewJoinToken, Refusal> {
        self.token_for(name, "storage", None)
    }

    fn token_for(&self, name: &str, roles: &str, zone: Option<&str>) -> Result<NewJoinToken, Refusal> {
        let terms = JoinTerms { roles: roles.parse().unwrap(), zone: zone.map(str::to_owned) };
        self.runtime.block_on(self.service.make_join_token(&admin(), name, terms))
    }

    fn hosts(&self) -> Vec<Host> {
        self.runtime.block_on(self.service.hosts(&admin())).unwrap()
    }

    fn host(&self, name: &str) -> Option<Host> {
        self.hosts().into_iter().find(|host| host.name == name)
    }

    fn rename(&self, old: &str, new: &str) -> Result<Vec<String>, Refusal> {
        self.runtime.block_on(self.service.rename_host(&admin(), old, new))
    }

    fn revoke(&self, name: &str) -> Result<(), Refusal> {
        self.runtime.block_on(self.service.revoke_host(&admin(), name))
    }

    #[track_caller]
    fn until_up(&self, name: &str) -> Host {
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

    /// Why a host is down: it was dialled, and said no.
    #[track_caller]
    fn until_refused(&self, name: &str, word: &str) {
        let refused = |host: Host| host.why_down.filter(|why| why.contains(word));
        until(&format!("{name} is refused for {word}"), || self.host(name).and_then(refused));
    }

    fn node(&self, name: &str) -> Node {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Node { dir, address: free() }
    }

    /// From now on it is later for the controller: so much time has passed.
    fn put_forward(&self, by: Duration) {
        self.ahead.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    fn volume(&self) -> Volume {
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

    fn look(&self, id: VolumeId) -> Option<Volume> {
        self.runtime.block_on(self.service.volume(&admin(), id)).ok()
    }

    /// Makes every certificate due.
    fn age(&self) {
        let database =
            rusqlite::Connection::open(self.dir.path().join("state/mooring-controller.db")).unwrap();
        let soon = SystemTime::now() + Duration::from_hours(24);
        let us = i64::try_from(soon.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap();
        database.execute("UPDATE enrolments SET expires_us = ?1", [us]).unwrap();
    }
}

/// A request to join by a new key, as an agent makes it.
fn request(node: &Node, token: &NewJoinToken) -> JoinRequest {
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
struct Node {
    dir: PathBuf,
    address: SocketAddr,
}

/// An agent at work.
struct Agent {
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
    fn config(&self) -> PathBuf {
        self.dir.join("agent.toml")
    }

    fn identity(&self) -> PathBuf {
        self.dir.join("agent.pem")
    }

    fn join(&self, token: &NewJoinToken) -> Result<(), JoinError> {
        self.join_by(&token.url, &token.token, &token.pin)
    }

    fn join_by(&self, url: &str, token: &str, pin: &str) -> Result<(), JoinError> {
        self.join_as(join::Role::Storage, url, token, pin)
    }

    fn join_as(&self, role: join::Role, url: &str, token: &str, pin: &str) -> Result<(), JoinError> {
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
    fn start(&self) -> Agent {
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

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_host_joins_is_renewed_and_revoked_without_a_restart() {
    let site = Site::new();
    let node = site.node("node1");
    let token = site.token("node1").unwrap();
    assert!(token.command().contains(&format!("--token {} --pin sha256:", token.token)));
    assert!(token.token.starts_with('j'), "a dash would make it an option");
    node.join(&token).unwrap();
    assert!(!site.host("node1").unwrap().up, "it is dialled, and not there yet");
    let agent = node.start();
    let host = site.until_up("node1");
    let joined = host.enrolment.unwrap();
    assert_eq!(
        (joined.roles.to_string().as_str(), host.address),
        ("storage", format!("https://{}", node.address))
    );

    // Two thirds of its life are over.
    let before = read(&node.identity());
    site.age();
    site.runtime.block_on(site.service.renew_certificates()).unwrap();
    let after = read(&node.identity());
    assert!(before != after, "key and certificate are new");
    let renewed = site.host("node1").unwrap().enrolment.unwrap();
    assert_eq!(renewed.id, joined.id);
    assert!(renewed.expires_at > SystemTime::now() + Duration::from_hours(80 * 24));
    assert!(site.host("node1").unwrap().up, "its connection is as it was");
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));
    let agent = node.start();
    site.until_up("node1");

    site.revoke("node1").unwrap();
    assert!(site.host("node1").is_none());
    assert!(!node.identity().exists() || read(&node.identity()).is_empty(), "the agent was told");
    drop(agent);
    // What it had opens nothing any more, although the name joins again.
    let again = site.token("node1").unwrap();
    node.join(&again).unwrap();
    let new = read(&node.identity());
    std::fs::write(node.identity(), &after).unwrap();
    let agent = node.start();
    site.until_refused("node1", "not valid for name");
    drop(agent);
    std::fs::write(node.identity(), new).unwrap();
    let _agent = node.start();
    site.until_up("node1");
}

#[test]
fn a_token_is_for_one_name_one_key_and_one_hour() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    let token = site.token("node1").unwrap();
    let refused = |result: Result<(), JoinError>| Chain(&result.unwrap_err()).to_string();
    let text = refused(one.join_by(&token.url, "another", &token.pin));
    assert!(text.contains("is not known"), "{text}");
    assert!(site.hosts().is_empty());
    // The answer to its first request is lost: the key waits, and may ask again.
    let first = site.runtime.block_on(site.service.join(request(&one, &token))).unwrap();
    one.join(&token).unwrap();
    assert_eq!(site.host("node1").unwrap().enrolment.unwrap().id, first.enrolment.id);
    assert_eq!(site.hosts().len(), 1);
    let text = refused(two.join(&token));
    assert!(text.contains("was used already"), "{text}");
    assert!(!two.config().exists(), "nothing is written");
    // The name is taken until it is revoked.
    let taken = site.token("node1").unwrap_err();
    assert!(matches!(&taken, Refusal::Conflict(text) if text.contains("host revoke node1")), "{taken}");
    // A newer token takes the place of an older one.
    let (old, new) = (site.token("node2").unwrap(), site.token("node2").unwrap());
    assert!(refused(two.join(&old)).contains("a newer one took its place"));
    let expire = "UPDATE join_tokens SET expires_us = 0 WHERE name = 'node2'";
    let database = rusqlite::Connection::open(site.dir.path().join("state/mooring-controller.db")).unwrap();
    database.execute(expire, []).unwrap();
    let text = refused(two.join(&new));
    assert!(text.contains("has expired"), "{text}");
    // A revoked name's token is gone, and so is the join that it was used for.
    site.revoke("node1").unwrap();
    assert!(refused(one.join(&token)).contains("is not known"));
    assert!(matches!(site.revoke("nobody"), Err(Refusal::NotFound { .. })));
    for name in ["", "-x", "a b", "ä", &"x".repeat(65)] {
        assert!(matches!(site.token(name), Err(Refusal::Invalid(_))), "{name:?}");
    }
}

/// An agent's certificate is no key to another agent, nor does another host's stand for it.
#[test]
fn the_certificate_of_one_host_is_worth_nothing_at_another() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    one.join(&site.token("node1").unwrap()).unwrap();
    two.join(&site.token("node2").unwrap()).unwrap();
    let own = read(&one.identity());
    std::fs::write(one.identity(), read(&two.identity())).unwrap();
    let agent = one.start();
    site.until_refused("node1", "not valid for name");
    drop(agent);
    std::fs::write(one.identity(), own).unwrap();
    let _agent = one.start();
    site.until_up("node1");
    // The other host dials it, with what it has.
    let files = mooring_api::TlsFiles {
        ca: Some(two.dir.join("agent-ca.crt")),
        cert: Some(two.identity()),
        key: Some(two.identity()),
        server_name: Some(authority::agent_server_name(site.host("node1").unwrap().enrolment.unwrap().id)),
    };
    let address = format!("https://{}", one.address).parse().unwrap();
    let asked = site.runtime.block_on(async {
        let channel = mooring_api::connect(&address, &files).await.map_err(|error| error.to_string())?;
        let mut client = mooring_api::v1::agent_client::AgentClient::new(channel);
        let hello = client.get_capabilities(mooring_api::v1::GetCapabilitiesRequest {}).await;
        hello.map(drop).map_err(|status| status.to_string())
    });
    assert!(asked.is_err(), "a host's certificate opened another host's agent");
}

/// Whatever reads the rows meanwhile: a host that was revoked is dialled no more, and one that joined is.
#[test]
fn joins_and_revocations_beside_each_other_leave_what_the_rows_say() {
    let site = Site::new();
    let node = site.node("node");
    for round in 0..8 {
        let [stays, goes] = ["stays", "goes"].map(|name| format!("{name}{round}"));
        let token = site.token(&goes).unwrap();
        site.runtime.block_on(site.service.join(request(&node, &token))).unwrap();
        let comes = request(&node, &site.token(&stays).unwrap());
        site.runtime.block_on(async {
            let (service, name) = (site.service.clone(), goes.clone());
            let revoked = tokio::spawn(async move { service.revoke_host(&admin(), &name).await });
            let service = site.service.clone();
            let joined = tokio::spawn(async move { service.join(comes).await.map(drop) });
            revoked.await.unwrap().unwrap();
            joined.await.unwrap().unwrap();
        });
        assert!(site.host(&goes).is_none(), "revoked, and still there");
        assert!(site.host(&stays).is_some(), "joined, and not there");
    }
}

/// Two controllers with one database and one authority: a join at either is known to both, and a revocation at the one that does not
/// drive the agent ends it at both, and at the agent.
#[test]
fn a_join_and_a_revocation_reach_the_other_controller() {
    let server = pg::Server::new();
    let url = server.database("enrolment");
    let one = Site::with(None, Some(&url));
    let other = Site::with(Some(&one), Some(&url));
    let both = [&one, &other];
    let node = one.node("node1");
    for (asked, told) in [(0, 1), (1, 0)] {
        let [asked, told] = [asked, told].map(|at: usize| both[at]);
        node.join(&asked.token("node1").unwrap()).unwrap();
        let agent = node.start();
        for site in both {
            site.until_up("node1");
        }
        // Whichever drives it: each of the two is asked once.
        told.revoke("node1").unwrap();
        until("the agent was told", || {
            (!node.identity().exists() || read(&node.identity()).is_empty()).then_some(())
        });
        for site in both {
            until("node1 is gone", || site.host("node1").is_none().then_some(()));
        }
        drop(agent);
    }
}

/// Whose token was refused is said to those who keep watch, and not to whoever has shown it.
#[test]
fn a_refused_join_is_in_the_audit_log_with_the_host_that_its_token_was_for() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    let token = site.token("node1").unwrap();
    one.join(&token).unwrap();
    let error = Chain(&two.join(&token).unwrap_err()).to_string();
    assert!(!error.contains("node1"), "{error}");
    two.join_by(&token.url, "another", &token.pin).unwrap_err();
    let query = AuditQuery { limit: 100, ..AuditQuery::default() };
    let lines = until("the lines", || {
        let lines = site.runtime.block_on(site.service.audit(&admin(), query.clone())).unwrap();
        let joins = lines.into_iter().map(|line| line.entry.call);
        let joins: Vec<_> = joins.filter(|call| call.operation.as_deref() == Some("join")).collect();
        (joins.len() == 3).then_some(joins)
    });
    let named = |call: &AuditCall| {
        call.objects.iter().map(|object| format!("{} {}", object.kind, object.id)).collect::<Vec<_>>()
    };
    let told: Vec<_> = lines.iter().map(|call| (call.status, named(call))).collect();
    let of_node1 = vec!["host node1".to_owned()];
    assert_eq!(told, [(401, vec![]), (401, of_node1.clone()), (200, of_node1)]);
}

/// The controller uses no more of an agent than the roles by which it joined, whatever the agent's configuration says.
#[test]
fn roles_are_those_of_the_token_and_so_is_the_zone() {
    let site = Site::new();
    let node = site.node("node1");
    for wrong in ["", "a,b", " a", "a\n"] {
        let refused = site.token_for("node1", "storage", Some(wrong)).unwrap_err();
        assert!(matches!(&refused, Refusal::Invalid(why) if why.starts_with("zone: ")), "{refused}");
    }
    let token = site.token_for("node1", "host", Some("az2")).unwrap();
    node.join_as(join::Role::Host, &token.url, &token.token, &token.pin).unwrap();
    // Whoever administers the node would have it serve volumes all the same.
    let config = read(&node.config()).replace("\n[host]\n", "\n# [host]\n");
    let config = config.replacen("# portals = ", "portals = ", 1);
    std::fs::write(node.config(), format!("{config}\n[[groups]]\nname = \"vg0\"\n")).unwrap();
    let agent = node.start();
    let host = site.until_up("node1");
    assert_eq!((host.zone.as_str(), host.pools.len()), ("az2", 0));
    let told = "role storage: its configuration has `groups`";
    until("the problem", || {
        site.host("node1").filter(|host| host.problems.iter().any(|problem| problem.starts_with(told)))
    });
    drop(agent);
    site.revoke("node1").unwrap();
    std::fs::remove_file(node.config()).unwrap();
    node.join(&site.token("node1").unwrap()).unwrap();
    let _agent = node.start();
    let host = until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    assert_eq!(host.zone, "nova");
    assert!(!host.problems.iter().any(|problem| problem.starts_with("role ")), "{:?}", host.problems);
}

/// A name is the controller's alone: the agent serves on, by the certificate that it has.
#[test]
fn a_host_is_renamed_and_serves_on() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let agent = node.start();
    until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    let volume = site.volume();
    assert_eq!(volume.host.as_deref(), Some("node1@lvm#vg0"));
    let before = (site.host("node1").unwrap().agent, site.host("node1").unwrap().enrolment.unwrap().id);
    site.runtime
        .block_on(site.service.fence_host(&admin(), "node1", NewFence::default(), Wait(PATIENCE)))
        .unwrap();
    let (config, certificate) = (read(&node.config()), read(&node.identity()));

    assert_eq!(site.rename("node1", "rack4").unwrap(), Vec::<String>::new());
    assert!(site.host("node1").is_none());
    let host = site.until_up("rack4");
    assert_eq!((host.agent, host.enrolment.unwrap().id), before);
    assert!(
        host.problems.iter().any(|problem| problem.contains("host unfence rack4")),
        "{:?}",
        host.problems
    );
    // Nothing has changed there, and nothing of its volume.
    assert!((read(&node.config()), read(&node.identity())) == (config, certificate));
    let renamed = site.look(volume.id).unwrap();
    assert_eq!((renamed.host.as_deref(), renamed.status), (Some("rack4@lvm#vg0"), VolumeStatus::Available));
    until("its pool", || site.host("rack4").filter(|host| host.pools.len() == 1));
    assert_eq!(site.volume().host.as_deref(), Some("rack4@lvm#vg0"));

    // The old name is free for another machine, and opens nothing of the first one.
    let other = site.node("other");
    other.join(&site.token("node1").unwrap()).unwrap();
    let own = read(&other.identity());
    std::fs::write(other.identity(), read(&node.identity())).unwrap();
    let stranger = other.start();
    site.until_refused("node1", "not valid for name");
    drop(stranger);
    std::fs::write(other.identity(), own).unwrap();
    let _other = other.start();
    site.until_up("node1");
    assert_ne!(site.host("node1").unwrap().agent, before.0);

    // Its certificate is renewed under the new name, and it may be called otherwise again after a restart.
    site.age();
    site.runtime.block_on(site.service.renew_certificates()).unwrap();
    drop(agent);
    until("rack4 is down", || site.host("rack4").filter(|host| !host.up));
    site.rename("rack4", "rack5").unwrap();
    let _agent = node.start();
    assert_eq!(site.until_up("rack5").agent, before.0);
}

#[test]
fn a_name_that_cannot_be_had_is_refused_with_the_reason() {
    let site = Site::new();
    let node = site.node("node");
    for name in ["one", "two"] {
        let token = site.token(name).unwrap();
        site.runtime.block_on(site.service.join(request(&node, &token))).unwrap();
    }
    let refused = |old: &str, new: &str| site.rename(old, new).unwrap_err();
    for wrong in ["", "-x", "a b", "ä", "a@lvm", "a#b", &"x".repeat(65)] {
        assert!(matches!(refused("one", wrong), Refusal::Invalid(_)), "{wrong:?}");
    }
    assert!(matches!(refused("one", "one"), Refusal::Invalid(why) if why.contains("already")));
    assert!(matches!(refused("one", "two"), Refusal::Conflict(why) if why.contains("another host")));
    assert!(matches!(refused("nosuch", "three"), Refusal::NotFound { kind: "Host", .. }));
    let member = Caller { admin: false, roles: vec!["member".to_owned()], ..admin() };
    let rename = site.service.rename_host(&member, "one", "three");
    assert!(matches!(site.runtime.block_on(rename), Err(Refusal::Forbidden(_))));
    site.revoke("two").unwrap();
    assert!(matches!(refused("two", "three"), Refusal::Conflict(why) if why.contains("was revoked")));
    // The name of one that was revoked, and has nothing, is free.
    site.rename("one", "two").unwrap();
    assert!(site.host("two").is_some() && site.host("one").is_none());
    // A token of either name is worth nothing any more.
    let token = site.token("one").unwrap();
    site.rename("two", "one").unwrap();
    let join = site.runtime.block_on(site.service.join(request(&node, &token))).unwrap_err();
    assert!(join.to_string().contains("is not known"), "{join}");
}

/// Two controllers with one database: whichever is asked, both know the new name, and the agent is up at both.
#[test]
fn a_new_name_reaches_the_other_controller() {
    let server = pg::Server::new();
    let url = server.database("rename");
    let one = Site::with(None, Some(&url));
    let other = Site::with(Some(&one), Some(&url));
    let both = [&one, &other];
    let node = one.node("node0");
    node.join(&one.token("node0").unwrap()).unwrap();
    let _agent = node.start();
    for site in both {
        site.until_up("node0");
    }
    // Whichever drives it.
    for (round, asked) in both.into_iter().enumerate() {
        let [old, new] = [round, round + 1].map(|number| format!("node{number}"));
        asked.rename(&old, &new).unwrap();
        for site in both {
            site.until_up(&new);
            until("the old name is gone", || site.host(&old).is_none().then_some(()));
        }
    }
}

/// A host that was given up comes back: nothing of it is taken in, under whatever name it joins.
#[test]
fn a_forgotten_host_comes_back_as_a_stranger() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let agent = node.start();
    until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    let volume = site.volume();
    let forget = || site.runtime.block_on(site.service.forget_host(&admin(), "node1", "node1"));
    assert!(matches!(forget(), Err(Refusal::Conflict(why)) if why.contains("answers")));
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));
    assert!(matches!(forget(), Err(Refusal::Conflict(why)) if why.contains("was heard")));
    site.put_forward(FORGET_AFTER);
    let lost = forget().unwrap();
    assert_eq!((lost.total().volumes, lost.enrolled), (1, true));
    assert!(site.look(volume.id).is_none() && site.host("node1").is_none());

    // It starts again with all that it had: nobody dials it. Its certificate is worth nothing under the same name either.
    let agent = node.start();
    let again = site.token("node1").unwrap();
    let hidden = read(&node.config());
    let store = format!("{}\"", node.dir.join("state").display());
    std::fs::write(node.config(), hidden.replace("/var/lib/mooring\"", &store)).unwrap();
    let refused = Chain(&node.join(&again).unwrap_err()).to_string();
    assert!(refused.contains("was forgotten as node1") && refused.contains("state_dir"), "{refused}");
    assert!(site.host("node1").is_none(), "it did not join");
    // One that does not say whose store it has, as an older release, is refused when it answers.
    std::fs::write(node.config(), hidden).unwrap();
    node.join_as(join::Role::Storage, &again.url, &site.token("node2").unwrap().token, &again.pin).unwrap();
    drop(agent);
    let agent = node.start();
    site.until_refused("node2", "was forgotten as node1");
    assert_eq!(site.host("node2").unwrap().pools.len(), 0);
    drop(agent);

    // With another store it is another one.
    std::fs::remove_dir_all(node.dir.join("state")).unwrap();
    let _agent = node.start();
    until("its pool", || site.host("node2").filter(|host| host.up && host.pools.len() == 1));
}

//! Runs the whole control plane, and then searches each secret of the run in clear, base64,
//! hexadecimal and URL form: in every file that is left, in the dump of a database server, in all
//! logs, in the audit log, and in answers to callers without permission.
//!
//! docs/security.md names the places where secrets stand in clear: the kernel of the storage node
//! and the sessions of the host, which are memory here, and the answers to permitted callers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use mooring_agent::config::Tls;
use mooring_agent::identity;
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_controller::authority::live::LiveAuthority;
use mooring_controller::authority::{self, Authority};
use mooring_controller::service::{Database, Enroller, PostgresOptions};
use mooring_fleet::{Client, Fleet, Node};
use mooring_systemd::sealing::Origin;
use serde_json::json;

#[path = "../../src/leaks.rs"]
mod leaks;
#[path = "../../../controller/tests/support/pg.rs"]
mod pg;

/// The database on a server of PostgreSQL.
const DATABASE: &str = "secrets";

/// The log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the log of everything in this process from the first call on.
    fn of_everybody() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let begin = || {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .with_env_filter(
                    "debug,mooring_agent=trace,mooring_controller=trace,mooring_connectors=trace",
                )
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .init();
            log
        };
        LOG.get_or_init(begin).clone()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes as a text: invalid ones become another character, and the rest stays.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// The CHAP secrets of a volume, as its agent tells the controller for a rebuild.
fn chap_secrets(node: &Node, volume: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = runtime.block_on(async {
        let address = node.address().parse().unwrap();
        let channel = mooring_api::connect(&address, &mooring_api::TlsFiles::default()).await.unwrap();
        let list = v1::ListVolumesRequest { with_secrets: true, ..Default::default() };
        AgentClient::new(channel).list_volumes(list).await.unwrap().into_inner().volumes
    });
    let status = all.into_iter().find(|status| status.volume_id == volume).unwrap();
    let grants = status.export_spec.unwrap().grants.into_iter();
    let sides = grants.filter_map(|grant| grant.chap).flat_map(|chap| [chap.initiator, chap.mutual]);
    sides.flatten().map(|side| side.secret).collect()
}

/// Makes an authority, and the controller's means to let hosts join.
fn enroller(folder: &Path) -> Enroller {
    let now = SystemTime::now();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (key, own) = (authority::make_key().unwrap(), authority::make_key().unwrap());
    let certificate = authority::self_sign(&key, "test", now).unwrap();
    let (authority_file, authority_key) =
        (write("authority.crt", &certificate), write("authority.key", &key));
    let signer = Authority::load(&authority_file, &authority_key).unwrap();
    let shown = signer.sign_client(&own, now).unwrap().certificate;
    Enroller {
        authority: Arc::new(LiveAuthority::load(&authority_file, &authority_key).unwrap()),
        api_cert: None,
        client_cert: write("client.crt", &shown),
        client_key: write("client.key", &own),
        url: Some("https://127.0.0.1:1".to_owned()),
    }
}

/// Lets hosts join, or try to: with a good token, with it once more and another key, and with an
/// invented one; one token stays unused. Returns the tokens, and the answers to the hosts.
fn joins(admin: &Client, keys: &Path) -> (Vec<String>, String) {
    let token = |name: &str| {
        let made = admin.post(&format!("/mooring/v1/hosts/{name}/token"), &json!({})).expect(200);
        made["token"].as_str().unwrap().to_owned()
    };
    let join = |token: &str, file: &str| {
        let path = keys.join(file);
        let tls = Tls { cert: path.clone(), key: path.clone(), client_ca: path };
        let csr = identity::new_key(&tls).unwrap().csr;
        let body = json!({ "token": token, "csr": csr, "address": "https://127.0.0.1:1" });
        admin.nobody().post("/mooring/v1/join", &body)
    };
    let (used, unused) = (token("joins"), token("waits"));
    let unknown = "a-join-token-that-nobody-has-made".to_owned();
    let mut told = join(&used, "first.pem").expect(200).to_string();
    told += &join(&used, "second.pem").expect(401).to_string();
    told += &join(&unknown, "third.pem").expect(401).to_string();
    (vec![used, unused, unknown], told)
}

fn found(secrets: &[String], searched: &[(String, String)]) -> Vec<String> {
    let numbers: Vec<_> = (0..secrets.len()).map(|at| format!("secret {at}")).collect();
    let named = numbers.iter().zip(secrets).map(|(name, secret)| (name.as_str(), secret.as_bytes()));
    leaks::found(named, searched)
}

/// A new database on a server of PostgreSQL.
fn on(server: &pg::Server) -> Database {
    let options = PostgresOptions::new(&server.database(DATABASE), None, None, false).unwrap();
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/../../controller/tests/support/sealing.key");
    Database::Postgres { options: Box::new(options), keys: Origin::Credential(keys.into()) }
}

/// Texts that a run leaves: each file of the fleet, and those of its database's server. Each store
/// must know the volume.
fn left(fleet: &Fleet, server: Option<&pg::Server>, volume: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    files_below(fleet.folder(), &mut files);
    let read = |file: &PathBuf| (file.display().to_string(), text_of(&std::fs::read(file).unwrap()));
    let mut left: Vec<_> = files.iter().map(read).collect();
    let mut stores = vec!["s1/state/mooring-agent.db", "h1/state/mooring-agent.db"];
    if let Some(server) = server {
        left.push(("the dump of PostgreSQL".to_owned(), server.dump(DATABASE)));
        left.push(("the log of PostgreSQL".to_owned(), server.log()));
        stores.push("the dump of PostgreSQL");
    } else {
        stores.push("mooring-controller.db");
    }
    for name in stores {
        let knows = left.iter().any(|(place, text)| place.contains(name) && text.contains(volume));
        assert!(knows, "the control: {name} knows the volume: {files:?}");
    }
    left
}

#[test]
fn no_secret_of_a_run_is_found_where_it_must_not_be() {
    no_secret_is_found(None);
}

#[test]
fn no_secret_of_a_run_is_found_in_a_dump_of_postgresql() {
    no_secret_is_found(Some(&pg::Server::new()));
}

/// Starts a fleet whose controller lets hosts join, by the keys in this folder.
fn start(keys: PathBuf, server: Option<&pg::Server>) -> Fleet {
    let plan = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").host("h2");
    let plan = plan.tuned(move |options| options.enroller = Some(enroller(&keys)));
    match server {
        Some(server) => plan.database(on(server)).start(),
        None => plan.start(),
    }
}

/// `server` has the controller's database. `None`: it is the embedded one.
fn no_secret_is_found(server: Option<&pg::Server>) {
    let log = Log::of_everybody();
    let aside = tempfile::tempdir().unwrap();
    let fleet = start(aside.path().to_owned(), server);
    let (admin, member, reader) = (fleet.admin(), fleet.member(), fleet.reader());
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let stock = fleet.stock("node1");
    let attached = member.attach(&volume, &stock, None);
    let session = stock.login(&attached.info).unwrap();
    let natives = ["h1", "h2"].map(|host| admin.attach_natively(&volume, host, "rw"));
    let mut secrets = chap_secrets(fleet.storage("s1"), &volume);
    secrets.push(attached.info["auth_password"].as_str().unwrap().to_owned());
    secrets.sort_unstable();
    secrets.dedup();
    assert_eq!(secrets.len(), 5, "a client's, and two of each host");
    secrets.extend([&admin, &member, &reader].map(|client| client.token().to_owned()));

    // New secrets; the old ones must not be left either.
    let rotate = format!("/mooring/v1/volumes/{volume}/rotate-secrets");
    let mut told = admin.post(&rotate, &json!({ "force": true })).expect(200).to_string();
    secrets.extend(chap_secrets(fleet.storage("s1"), &volume));

    let (joining, answers) = joins(&admin, aside.path());
    told += &answers;
    // A secret in a wrong place is refused, and not repeated to anybody else.
    member.post("/volumes", &json!({ "volume": { "size": &secrets[0] } })).expect(400);
    member.action(&format!("/volumes/{volume}"), &secrets[1], &json!({ "x": &secrets[2] })).expect(400);
    secrets.extend(joining);

    // Reading the audit log makes it written before the controller is killed.
    let audit = admin.get("/mooring/v1/audit").expect(200).to_string();
    assert_eq!(audit.matches("\"status\":401").count(), 2, "refused joins have lines: {audit}");

    // Kills, a detach, one by force, and the end of everything.
    fleet.storage("s1").restart();
    fleet.host("h1").restart();
    if server.is_none() {
        // A server keeps the leases of a killed controller until they end. They have no secrets.
        fleet.control().restart();
    }
    fleet.until_up();
    assert!(session.is_live());
    member.delete(&format!("/attachments/{}", attached.id));
    admin.delete(&format!("/mooring/v1/attachments/{}?force=true", natives[0]));
    for path in ["/mooring/v1/audit", "/mooring/v1/hosts", "/mooring/v1/attachments"] {
        told += &admin.get(path).expect(200).to_string();
    }
    for path in ["/volumes/detail", "/attachments/detail", &format!("/attachments/{}", natives[1])] {
        told += &reader.get(path).expect(200).to_string();
    }
    fleet.control().stop();

    let mut searched = left(&fleet, server, &volume);
    let logged = text_of(&log.0.lock().unwrap());
    assert!(logged.contains(&volume) && logged.contains("audit"), "the control: there is a log");
    assert!(told.contains(&volume));
    let own = [("its own caller".to_owned(), attached.info.to_string())];
    assert!(!found(&secrets, &own).is_empty(), "the control: who attaches is told");
    searched.extend([("the log".to_owned(), logged), ("the answers".to_owned(), told)]);
    assert_eq!(found(&secrets, &searched), Vec::<String>::new());
}

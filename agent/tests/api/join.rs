//! Joining a controller: a small HTTPS server plays the controller, and every fault on the way
//! occurs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mooring_agent::args::{JoinArgs, Role};
use mooring_agent::config::Config;
use mooring_agent::join::{self, Ground, JoinError};
use mooring_host::{Command, CommandError, CommandOutput, Commands};
use mooring_model::Chain;
use mooring_systemd::certificates;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const CLUSTER: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11";

/// Behaviour of a test's controller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Good,
    /// The certificate is for another name.
    OtherName,
    /// The certificate has expired.
    Ended,
    /// The controller refuses the token with this message.
    Refuses(&'static str),
    /// The controller dies when it has the certificate request.
    Dies,
    /// The controller does not support enrolment.
    Unconfigured,
    /// The controller signs another key than that of the request.
    OtherKey,
    /// The controller speaks TLS 1.2 and no newer version.
    Old,
    /// The controller sends another authority's certificate instead of its own.
    OtherAuthority,
    /// An intermediary has added an authority to the answer.
    Added,
    /// The token allows only this role.
    Only(&'static str),
}

struct Site {
    dir: tempfile::TempDir,
    authority: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A controller that answers until it is dropped with its test.
struct Controller {
    address: SocketAddr,
    /// Bodies of the requests that the controller received.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn new() -> Self {
        let (authority, issuer) = authority();
        Self { dir: tempfile::tempdir().unwrap(), authority, issuer }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("agent.toml")
    }

    fn pin(&self) -> String {
        certificates::pin(&self.authority).unwrap()
    }

    fn controller(&self, way: Way) -> Controller {
        let key = KeyPair::generate().unwrap();
        let name = if way == Way::OtherName { "elsewhere.invalid" } else { "127.0.0.1" };
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if way == Way::Ended {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let cert = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let old: &[_] = if way == Way::Old { &[&rustls::version::TLS12] } else { &[&rustls::version::TLS13] };
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(old)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (tls, bodies) = (Arc::new(tls), Arc::clone(&heard));
        let (authority, issuer) = (self.authority.clone(), self.issuer_again());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = rustls::ServerConnection::new(Arc::clone(&tls)).unwrap();
                answer(
                    rustls::StreamOwned::new(connection, stream.unwrap()),
                    way,
                    &authority,
                    &issuer,
                    &bodies,
                );
            }
        });
        Controller { address, heard }
    }

    fn issuer_again(&self) -> Issuer<'static, KeyPair> {
        let key = KeyPair::from_pem(&self.issuer.key().serialize_pem()).unwrap();
        Issuer::from_ca_cert_pem(&self.authority, key).unwrap()
    }

    fn args(&self, controller: &Controller) -> JoinArgs {
        JoinArgs {
            url: format!("https://{}", controller.address),
            token: "a-token".to_owned(),
            pin: self.pin(),
            address: Some("127.0.0.1:7710".to_owned()),
            role: Vec::new(),
            portal: vec!["192.0.2.1".parse().unwrap()],
            group: vec!["vg0".parse().unwrap()],
            no_start: true,
        }
    }

    fn join(&self, args: &JoinArgs) -> Result<String, JoinError> {
        self.join_with(args, &Machine::default(), None)
    }

    fn join_with(
        &self,
        args: &JoinArgs,
        machine: &Machine,
        typed: Option<&str>,
    ) -> Result<String, JoinError> {
        let mut typed = typed.map(str::as_bytes);
        let mut out = Vec::new();
        let ground = Ground {
            commands: machine,
            addresses: vec!["192.0.2.7".parse::<std::net::IpAddr>().unwrap().into()],
            terminal: typed.as_mut().map(|typed| typed as &mut dyn BufRead),
            out: &mut out,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(join::join(args, &self.config(), ground))?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

/// A machine with one volume group, which remembers the units that were started. Its lvm crashes at
/// first, and then complains of a group that it cannot read.
#[derive(Default)]
struct Machine {
    ran: Mutex<Vec<String>>,
    broken: bool,
}

impl Commands for Machine {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let asked = {
            let mut ran = self.ran.lock().unwrap();
            ran.push(command.args.join(" "));
            ran.iter().filter(|line| line.starts_with("vgs")).count()
        };
        if command.program.ends_with("lvm") {
            let (status, stdout) = if asked == 1 { (139, Vec::new()) } else { (5, b"  vg7\n".to_vec()) };
            return Ok(CommandOutput { status, stdout, ..CommandOutput::default() });
        }
        let status = i32::from(self.broken);
        Ok(CommandOutput { status, stderr: "no such unit".to_owned(), ..CommandOutput::default() })
    }
}

/// Answers one request on one of the two routes.
fn answer(
    mut stream: rustls::StreamOwned<rustls::ServerConnection, TcpStream>,
    way: Way,
    authority_pem: &str,
    issuer: &Issuer<'static, KeyPair>,
    heard: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(&mut stream);
    let (mut head, mut length) = (String::new(), 0);
    while reader.read_line(&mut head).unwrap_or(0) > 2 {
        let last = head.lines().last().unwrap().to_ascii_lowercase();
        if let Some(number) = last.strip_prefix("content-length: ") {
            length = number.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    if head.is_empty() || reader.read_exact(&mut body).is_err() {
        return;
    }
    let body = String::from_utf8(body).unwrap();
    heard.lock().unwrap().push(body.clone());
    let fault = |message: &str| serde_json::json!({"unauthorized": {"code": 401, "message": message}});
    let (status, said) = match way {
        Way::Unconfigured => ("409 Conflict", fault("run mooring-controller init")),
        Way::OtherAuthority if body.is_empty() => ("200 OK", serde_json::json!({"authority": authority().0})),
        Way::Added if body.is_empty() => {
            ("200 OK", serde_json::json!({"authority": format!("{authority_pem}{}", authority().0)}))
        }
        _ if body.is_empty() => ("200 OK", serde_json::json!({"authority": authority_pem})),
        Way::Dies => return,
        Way::Refuses(message) => ("401 Unauthorized", fault(message)),
        _ => {
            let asked: serde_json::Value = serde_json::from_str(&body).unwrap();
            let csr = CertificateSigningRequestParams::from_pem(asked["csr"].as_str().unwrap()).unwrap();
            let signed = if way == Way::OtherKey {
                CertificateParams::default().signed_by(&KeyPair::generate().unwrap(), issuer)
            } else {
                CertificateParams::default().signed_by(&csr.public_key, issuer)
            };
            let roles = if let Way::Only(role) = way { vec![role] } else { vec!["storage", "host"] };
            let said = serde_json::json!({
                "name": "node1", "roles": roles, "certificate": signed.unwrap().pem(), "authority": authority_pem,
                "cluster": CLUSTER, "expires_at": "2027-01-01T00:00:00Z",
            });
            ("200 OK", said)
        }
    };
    let text = said.to_string();
    let length = text.len();
    let _ =
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

#[test]
fn a_machine_joins_and_its_configuration_is_one_that_the_agent_takes() {
    let site = Site::new();
    let controller = site.controller(Way::Good);
    let said = site.join(&site.args(&controller)).unwrap();
    assert!(
        said.contains("joined as node1 (storage, host)") && said.contains("https://127.0.0.1:7710"),
        "{said}"
    );
    assert_eq!(site.files(), ["agent-ca.crt", "agent.pem", "agent.toml"]);
    let config = Config::load(&site.config()).unwrap();
    assert_eq!(mooring_agent::rpc::listen::check_tls(&config).unwrap(), Vec::<String>::new());
    assert_eq!(config.cluster.unwrap().to_string(), CLUSTER);
    assert_eq!(config.portals, ["192.0.2.1".parse().unwrap()]);
    assert_eq!(config.groups.len(), 1);
    assert!(config.host.is_some() && config.listen.len() == 2);
    let key = std::fs::read_to_string(site.dir.path().join("agent.pem")).unwrap();
    let bodies = controller.heard.lock().unwrap().join("");
    assert!(key.contains("PRIVATE") && !bodies.contains("PRIVATE"), "the key stays here");
    assert!(
        bodies.contains("a-token") && bodies.contains("\"address\":\"https://127.0.0.1:7710\""),
        "{bodies}"
    );
}

#[test]
fn a_join_that_cannot_succeed_sends_no_token_and_says_why() {
    let sent_nothing =
        |controller: &Controller| controller.heard.lock().unwrap().iter().all(String::is_empty);
    for (way, word) in [
        (Way::OtherName, "init --name"),
        (Way::Ended, "clocks"),
        (Way::OtherAuthority, "another pin"),
        (Way::Unconfigured, "run mooring-controller init"),
        (Way::Old, "cannot reach"),
    ] {
        let site = Site::new();
        let controller = site.controller(way);
        let error = site.join(&site.args(&controller)).unwrap_err();
        assert!(Chain(&error).to_string().contains(word), "{word}: {}", Chain(&error));
        assert!(sent_nothing(&controller), "{word}");
        assert!(!site.config().exists(), "{word}");
    }
    let site = Site::new();
    let controller = site.controller(Way::Good);
    let good = site.args(&controller);
    let other = certificates::pin(&authority().0).unwrap();
    let changed = |change: &dyn Fn(&mut JoinArgs)| {
        let mut args = site.args(&controller);
        change(&mut args);
        site.join(&args).unwrap_err().to_string()
    };
    let url = |url: &str| changed(&|args| args.url = url.to_owned());
    let (plain, text) = (good.url.replace("https", "http"), good.url.replace("https://", ""));
    for (error, word) in [
        (changed(&|args| args.pin.clone_from(&other)), "another pin"),
        (changed(&|args| args.pin = args.pin.to_uppercase()), "sha256:"),
        (changed(&|args| args.pin = "sha256:12".to_owned()), "64 hexadecimal"),
        (url(&plain), "over plain http"),
        (url(&text), "https://HOST"),
        (url("https://me@127.0.0.1"), "https://HOST"),
        (url(&format!("{}/v3", good.url)), "https://HOST"),
        (url(&format!("https://localhost:{}", controller.address.port())), "init --name"),
        (url("https://127.0.0.1:1"), "cannot reach"),
        (changed(&|args| args.address = Some("0.0.0.0:7710".to_owned())), "--address"),
        (changed(&|args| args.address = Some("127.0.0.1".to_owned())), "--address"),
        (changed(&|args| args.group = Vec::new()), "found here: vg7"),
        (changed(&|args| args.portal = Vec::new()), "found here: 192.0.2.7:3260"),
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(sent_nothing(&controller) && !site.config().exists());
    assert!(site.join(&good).is_ok(), "none of them has used the token or is in the way");
}

#[test]
fn a_controller_that_only_speaks_plain_text_is_not_reached() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let error = site.join(&site.args(&Controller { address, heard: Arc::default() })).unwrap_err();
    assert!(error.to_string().contains("cannot reach"), "{error}");
}

#[test]
fn a_refused_token_or_a_dying_controller_leaves_the_key_for_the_next_try() {
    let site = Site::new();
    let waiting = site.dir.path().join("agent.pem.new");
    let mut keys = Vec::new();
    for (way, word) in [
        (Way::Refuses("the token was used"), "refuses: the token was used"),
        (Way::Refuses("the token has expired"), "refuses: the token has expired"),
        (Way::Dies, "run the same command again"),
        (Way::OtherKey, "not that of this host's new key"),
    ] {
        let controller = site.controller(way);
        let error = site.join(&site.args(&controller)).unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert_eq!(site.files(), ["agent.pem.new"]);
        keys.push(std::fs::read_to_string(&waiting).unwrap());
    }
    site.join(&site.args(&site.controller(Way::Good))).unwrap();
    let kept = std::fs::read_to_string(site.dir.path().join("agent.pem")).unwrap();
    assert!(keys.iter().all(|key| kept.starts_with(key)), "all tries have one key");
    assert!(!waiting.exists());
}

#[test]
fn a_token_for_one_role_makes_that_role_and_no_other() {
    let site = Site::new();
    let controller = site.controller(Way::Only("host"));
    site.join(&site.args(&controller)).unwrap();
    let config = Config::load(&site.config()).unwrap();
    assert!(config.host.is_some() && config.groups.is_empty() && config.portals.is_empty());

    let site = Site::new();
    let controller = site.controller(Way::Only("storage"));
    let mut args = site.args(&controller);
    args.role = vec![Role::Host];
    (args.portal, args.group) = (Vec::new(), Vec::new());
    let error = site.join(&args).unwrap_err().to_string();
    assert!(error.contains("role storage") && !site.config().exists(), "{error}");
    args.role = vec![Role::Storage];
    assert!(site.join(&args).unwrap_err().to_string().contains("--portal"));
}

#[test]
fn the_person_at_a_terminal_chooses_or_takes_the_proposals() {
    for (typed, portals, groups) in [
        ("\n\n", vec!["192.0.2.7:3260"], vec!["vg7"]),
        ("192.0.2.8, 192.0.2.9\nvg1,vg2\n", vec!["192.0.2.8:3260", "192.0.2.9:3260"], vec!["vg1", "vg2"]),
    ] {
        let site = Site::new();
        let controller = site.controller(Way::Good);
        let mut args = site.args(&controller);
        (args.portal, args.group) = (Vec::new(), Vec::new());
        let said = site.join_with(&args, &Machine::default(), Some(typed)).unwrap();
        assert!(said.contains("[192.0.2.7:3260]") && said.contains("[vg7]"), "{said}");
        let config = Config::load(&site.config()).unwrap();
        assert_eq!(config.portals.iter().map(ToString::to_string).collect::<Vec<_>>(), portals);
        assert_eq!(config.groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), groups);
    }
    let site = Site::new();
    let controller = site.controller(Way::Good);
    let mut args = site.args(&controller);
    args.portal = Vec::new();
    let error = site.join_with(&args, &Machine::default(), Some("0.0.0.0\n")).unwrap_err();
    assert!(error.to_string().contains("0.0.0.0"), "{error}");
}

#[test]
fn a_configuration_that_is_there_stays_and_gets_a_new_certificate() {
    let site = Site::new();
    let controller = site.controller(Way::Good);
    site.join(&site.args(&controller)).unwrap();
    let read = |name: &str| std::fs::read_to_string(site.dir.path().join(name)).unwrap();
    let before = (read("agent.toml"), read("agent.pem"));
    let mut args = site.args(&controller);
    args.address = None;
    let said = site.join(&args).unwrap();
    assert!(said.contains("is not changed; new are its certificate and key"), "{said}");
    assert_eq!(read("agent.toml"), before.0);
    assert_ne!(read("agent.pem"), before.1);

    // Unusable configurations are refused before the token is sent: those that trust another
    // authority, and those without an address that the network reaches.
    let sent = controller.heard.lock().unwrap().len();
    std::fs::write(site.dir.path().join("agent-ca.crt"), authority().0).unwrap();
    let error = site.join(&args).unwrap_err().to_string();
    assert!(error.contains("another authority"), "{error}");
    let ours = read("agent.pem");
    for (text, word) in [
        ("[host]\n".to_owned(), "no [tls]"),
        (before.0.replace(", \"https://127.0.0.1:7710\"", ""), "no https"),
        (before.0.replace("https://127.0.0.1", "https://0.0.0.0"), "--address"),
        ("nosuch = 1".to_owned(), "nosuch"),
    ] {
        std::fs::write(site.config(), &text).unwrap();
        let error = site.join(&args).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
        assert_eq!((read("agent.toml"), read("agent.pem")), (text, ours.clone()));
    }
    assert!(controller.heard.lock().unwrap()[sent..].iter().all(String::is_empty));
}

#[test]
fn units_are_started_and_one_that_does_not_start_is_named() {
    let site = Site::new();
    let controller = site.controller(Way::Good);
    let mut args = site.args(&controller);
    args.no_start = false;
    let machine = Machine::default();
    site.join_with(&args, &machine, None).unwrap();
    let ran = machine.ran.lock().unwrap().join("; ");
    assert_eq!(ran, "enable --now mooring-sessiond.service; enable --now mooring-agent.service");
    // The agent of a second join reads its new certificate.
    machine.ran.lock().unwrap().clear();
    site.join_with(&args, &machine, None).unwrap();
    assert!(machine.ran.lock().unwrap().ends_with(&["restart mooring-agent.service".to_owned()]));
    let broken = Machine { broken: true, ..Machine::default() };
    let error = site.join_with(&args, &broken, None).unwrap_err().to_string();
    assert!(error.contains("has joined") && error.contains("no such unit"), "{error}");
}

#[test]
fn the_program_joins_and_checks_what_it_has_written() {
    let site = Site::new();
    let controller = site.controller(Way::Good);
    let program = || {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_mooring-agent"));
        program.arg("--config").arg(site.config());
        program
    };
    let url = format!("https://{}", controller.address);
    let words = ["join", &url, "--token", "t", "--pin", &site.pin(), "--role", "host", "--no-start"];
    let done = program().args(words).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let checked = program().arg("--check").output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let config = Config::load(&site.config()).unwrap();
    let reached = config.listen.iter().any(|address| address.to_string() == "https://127.0.0.1:7710");
    assert!(reached, "the address that leads to the controller: {:?}", config.listen);
    assert!(Path::new(&site.dir.path().join("agent.pem")).exists());
}

#[test]
fn the_authority_is_kept_as_it_was_proven_and_nothing_beside_it() {
    for way in [Way::Good, Way::Added] {
        let site = Site::new();
        let controller = site.controller(way);
        site.join(&site.args(&controller)).unwrap();
        let kept = CertificateDer::pem_file_iter(site.dir.path().join("agent-ca.crt")).unwrap();
        let kept: Vec<_> = kept.map(Result::unwrap).collect();
        assert_eq!(kept, [CertificateDer::from_pem_slice(site.authority.as_bytes()).unwrap()]);
    }
}

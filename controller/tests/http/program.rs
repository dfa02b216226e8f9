//! The program itself: it starts, prints its addresses, answers and stops; and it refuses unsafe
//! settings.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;

use mooring_controller::config::{Asked, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mooring-controller");

struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(config: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .arg("--config")
            .arg(config)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let start = seen.len();
            assert!(log.read_line(&mut seen).unwrap() > 0, "it ended: {seen}");
            if let Some((_, rest)) = seen[start..].split_once("listening address=") {
                break rest.split_whitespace().next().unwrap().parse().unwrap();
            }
        };
        Self { child, log, address }
    }

    fn get(&self, path: &str) -> String {
        exchange(TcpStream::connect(self.address).unwrap(), path)
    }

    /// Asks the program to end. Returns `true` if it ended without an error, and the rest of its
    /// log.
    fn stop(mut self) -> (bool, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let ended = self.child.wait().unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (ended.success(), rest)
    }
}

fn exchange(stream: impl Read + Write, path: &str) -> String {
    exchange_with(stream, path, "")
}

fn exchange_with(mut stream: impl Read + Write, path: &str, more: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // TLS may end with or without its closing message: the received bytes count.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn config(dir: &Path, more: &str) -> std::path::PathBuf {
    let path = dir.join("controller.toml");
    let state = dir.join("state");
    let text = format!("state_dir = \"{}\"\nlisten = [\"127.0.0.1:0\"]\n{more}", state.display());
    Config::parse(&text, "x", Asked::NobodyOnLoopback).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

#[test]
fn it_serves_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), "");
    let running = Running::start(&path, &["--no-auth"]);
    assert!(running.get("/").starts_with("HTTP/1.1 300"));
    let types = running.get("/v3/types/default");
    assert!(types.starts_with("HTTP/1.1 200") && types.contains("__DEFAULT__"), "{types}");
    assert!(running.get("/mooring/v1/hosts").ends_with("{\"hosts\":[]}"));
    let second = run(&["--config", path.to_str().unwrap(), "--no-auth"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another controller"), "{said}");
    let (ended_well, log) = running.stop();
    assert!(ended_well && log.contains("stopped"), "{log}");
    let state = std::fs::metadata(dir.path().join("state")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o700);
}

#[test]
fn metrics_have_a_listener_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    // An address of loopback at which nobody else listens: the port stays free.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = std::net::Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low);
    let free = std::net::TcpListener::bind((own, 0)).unwrap();
    let address = free.local_addr().unwrap();
    let table = |listen: &str| format!("[metrics]\nlisten = [\"{listen}\"]\n");
    let path = config(dir.path(), &table(&address.to_string()));
    let args = ["--config", path.to_str().unwrap(), "--no-auth"];
    let refused = String::from_utf8(run(&args).stderr).unwrap();
    assert!(refused.contains(&format!("{address} for metrics")), "{refused}");
    drop(free);
    let running = Running::start(&path, &["--no-auth"]);
    assert!(running.get("/mooring/v1/hosts").starts_with("HTTP/1.1 200"));
    assert!(running.get("/metrics").starts_with("HTTP/1.1 404"), "the API has none");
    let answer = exchange(TcpStream::connect(address).unwrap(), "/metrics");
    let counted =
        "mooring_controller_http_requests_total{method=\"GET\",route=\"/mooring/v1/hosts\",status=\"2xx\"} 1";
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(counted), "{answer}");
    assert!(exchange(TcpStream::connect(address).unwrap(), "/v3").starts_with("HTTP/1.1 404"));
    let (ended_well, log) = running.stop();
    assert!(ended_well, "{log}");
    let text = format!("state_dir = \"/x\"\n{}", table("10.0.0.1:9181"));
    std::fs::write(&path, text).unwrap();
    let refused = String::from_utf8(run(&[&args[..], &["--check"]].concat()).stderr).unwrap();
    assert!(refused.contains("line 3: metrics.listen: 10.0.0.1:9181 is not loopback"), "{refused}");
}

#[test]
fn it_asks_for_tokens_and_takes_those_that_it_made() {
    let dir = tempfile::tempdir().unwrap();
    let made = run(&["token", "--name", "ci", "--project", "abc", "--admin"]);
    let text = String::from_utf8(made.stdout).unwrap();
    let token = text.lines().find(|line| line.starts_with("# mooring_")).unwrap()[2..].to_owned();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(&tokens, text.replace(&token, "")).unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = config(dir.path(), &format!("tokens = \"{}\"", tokens.display()));
    let args = ["--config", path.to_str().unwrap(), "--check"];
    let refused = run(&args);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(tokens.to_str().unwrap()), "{said}");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(run(&args).status.success());

    let running = Running::start(&path, &[]);
    assert!(running.get("/v3/types").starts_with("HTTP/1.1 401"));
    let mut stream = TcpStream::connect(running.address).unwrap();
    let request = format!(
        "GET /v3/abc/types HTTP/1.0\r\nHost: x\r\nX-Auth-Token: {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    let (_, log) = running.stop();
    assert!(!log.contains(&token));
}

/// A TLS connection to the program, which shows a certificate for localhost of this authority.
fn over_tls(
    running: &Running,
    authority: CertificateDer<'static>,
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    // The program does not speak HTTP/2, so it must not agree on it.
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = "localhost".try_into().unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    rustls::StreamOwned::new(connection, TcpStream::connect(running.address).unwrap())
}

#[test]
fn tls() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let path =
        config(dir.path(), &format!("[tls]\ncert = \"{}\"\nkey = \"{}\"", cert.display(), key.display()));
    for (mode, warns) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let checked = run(&["--config", path.to_str().unwrap(), "--no-auth", "--check"]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{said}");
        assert_eq!(said.contains(&format!("chmod 0640 {}", key.display())), warns, "{said}");
    }
    let running = Running::start(&path, &["--no-auth"]);
    let stream = over_tls(&running, made.cert.der().clone());
    let answer = exchange(stream, "/");
    assert!(answer.starts_with("HTTP/1.1 300") && answer.contains("https://localhost/v3/"), "{answer}");
    // Plain text is not answered.
    assert!(!running.get("/").contains("versions"));
    std::fs::write(&key, "no key").unwrap();
    drop(running);
    for more in [&["--no-auth"][..], &["--no-auth", "--check"]] {
        let refused = run(&[&["--config", path.to_str().unwrap()], more].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("key.pem"), "{said}");
    }
}

#[test]
fn what_is_unsafe_or_wrong_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("controller.toml");
    let args = ["--config", path.to_str().unwrap(), "--no-auth"];
    for (text, word) in [
        ("listen = [\"0.0.0.0:8776\"]\ninsecure = true", "line 1: listen"),
        ("nosuch = 1", "unknown key"),
        ("listen = [\"203.0.113.1:8776\"]", "loopback"),
    ] {
        std::fs::write(&path, text).unwrap();
        let refused = run(&args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(word), "{said}");
    }
    std::fs::write(&path, "").unwrap();
    let without = run(&args[..2]);
    assert!(String::from_utf8_lossy(&without.stderr).contains("--no-auth"));
    assert!(!run(&["--config", "/nonexistent/controller.toml"]).status.success());
    for args in [
        &["token", "--name", "x", "--project", "a/b"][..],
        &["token", "--name", " ", "--project", "a"],
        &["token", "--name", "x", "--project", "a", "--role", "a b"],
        &["--no-auth-on-networks"],
    ] {
        assert!(!run(args).status.success());
    }
}

#[test]
fn a_check_warns_of_a_database_password_that_others_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "of the database").unwrap();
    std::fs::write(dir.path().join("mooring-sealing-key"), include_str!("../support/sealing.key")).unwrap();
    let url = "postgres://mooring@/mooring?host=/nonexistent";
    let database = format!("[database]\nurl = \"{url}\"\npassword_file = \"{}\"", password.display());
    let path = config(dir.path(), &database);
    let args = ["--config", path.to_str().unwrap(), "--no-auth", "--check"];
    // The second one is the control.
    for (mode, warns) in [(0o644, true), (0o640, false)] {
        std::fs::set_permissions(&password, std::fs::Permissions::from_mode(mode)).unwrap();
        let checked =
            Command::new(PROGRAM).args(args).env("CREDENTIALS_DIRECTORY", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{said}");
        assert_eq!(said.contains(&format!("chmod 0640 {}", password.display())), warns, "{said}");
    }
}

#[test]
fn a_shared_database_wants_keys_that_every_controller_has() {
    let dir = tempfile::tempdir().unwrap();
    let url = "postgres://mooring@/mooring?host=/nonexistent";
    let path = config(dir.path(), &format!("[database]\nurl = \"{url}\""));
    let args = ["--config", path.to_str().unwrap(), "--no-auth", "--check"];
    for args in [&args[..], &args[..3]] {
        let refused = run(args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("sealing_key"), "{said}");
        assert!(said.contains("openssl rand -base64 32") && said.contains("mooring-sealing-key"), "{said}");
    }
    assert!(!dir.path().join("state").exists(), "no key is made");
    // The credential that systemd hands over.
    let credential = dir.path().join("mooring-sealing-key");
    std::fs::write(&credential, include_str!("../support/sealing.key")).unwrap();
    let check =
        || Command::new(PROGRAM).args(args).env("CREDENTIALS_DIRECTORY", dir.path()).output().unwrap();
    assert!(check().status.success());
    std::fs::write(&credential, "no key").unwrap();
    let refused = check();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("mooring-sealing-key line 1"), "{said}");
}

#[test]
fn a_new_sealing_key_comes_before_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    let named = format!("sealing_key = {keys:?}\n");
    let path = config(dir.path(), &named);
    let rotate = || {
        let args = ["rotate-sealing-key", "--config", path.to_str().unwrap()];
        let done = run(&args);
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success(), said)
    };
    let (done, said) = rotate();
    assert!(!done && said.contains("cannot read the sealing keys"), "{said}");
    let old = include_str!("../support/sealing.key");
    std::fs::write(&keys, old).unwrap();
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (done, said) = rotate();
    assert!(done && said.contains("systemctl restart mooring-controller"), "{said}");
    let text = std::fs::read_to_string(&keys).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!((lines.len(), lines[1]), (2, old.lines().last().unwrap()));
    assert!(!said.contains(lines[0]), "the key is not printed");
    // A shared database's keys must be changed at all controllers, or the others are shut out.
    let url = "postgres://mooring@/mooring?host=/nonexistent";
    config(dir.path(), &format!("{named}[database]\nurl = \"{url}\""));
    let (done, said) = rotate();
    assert!(!done && said.contains("of every controller"), "{said}");
    assert_eq!(std::fs::read_to_string(&keys).unwrap(), text);
}

#[test]
fn a_backup_is_made_while_it_serves_and_put_back_while_it_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), "");
    let path = path.to_str().unwrap();
    let (file, keys) = (dir.path().join("copy.db"), dir.path().join("copy.key"));
    let chore = |chore: &str, file: &Path| {
        let args = [chore, file.to_str().unwrap(), "--keys", keys.to_str().unwrap(), "--config", path];
        let done = run(&args);
        (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    let running = Running::start(Path::new(path), &["--no-auth"]);
    let (done, said) = chore("backup", &file);
    assert!(done && said.contains("0 volumes") && said.contains("keep them apart"), "{said}");
    let (done, said) = chore("backup", &file);
    assert!(!done && said.contains("is there already"), "{said}");
    let (done, said) = chore("restore", &file);
    assert!(!done && said.contains("stop that one first"), "{said}");
    let (ended, log) = running.stop();
    assert!(ended && !log.contains("the database was restored"), "{log}");
    let (done, said) = chore("restore", &file);
    assert!(done && said.contains("is kept as") && said.contains("systemctl start"), "{said}");
    let log_of_a_start = || {
        let output = dir.path().join("log");
        let mut child = Command::new(PROGRAM)
            .args(["--config", path, "--no-auth"])
            .stderr(std::fs::File::create(&output).unwrap())
            .spawn()
            .unwrap();
        let log = || std::fs::read_to_string(&output).unwrap();
        while !log().contains(" ready") {
            assert!(child.try_wait().unwrap().is_none(), "{}", log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        log()
    };
    let (first, second) = (log_of_a_start(), log_of_a_start());
    assert!(first.contains("the database was restored: the epoch is raised"), "{first}");
    assert!(!second.contains("the database was restored"), "{second}");
    // PostgreSQL makes consistent copies itself.
    let keyed = dir.path().join("state/sealing.key");
    config(
        dir.path(),
        &format!(
            "sealing_key = {keyed:?}\n[database]\nurl = \"postgres://mooring@/mooring?host=/nonexistent\""
        ),
    );
    let (done, said) = chore("backup", &dir.path().join("other.db"));
    assert!(!done && said.contains("pg_dump"), "{said}");
    let (done, said) = chore("restore", &file);
    assert!(!done && said.contains("pg_restore") && said.contains("--restored"), "{said}");
}

#[test]
fn a_rebuild_says_what_it_is_and_what_it_needs() {
    let rebuild = |more: &[&str]| Command::new(PROGRAM).arg("rebuild").args(more).output().unwrap();
    let help = String::from_utf8(rebuild(&["--help"]).stdout).unwrap();
    for word in
        ["--from-agents", "--dry-run", "--without", "EMPTY database", "No session is cut", "--restored"]
    {
        assert!(help.contains(word), "{word:?} is not in {help}");
    }
    let said = |output: Output| {
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // The error names the option that confirms.
    assert!(said(rebuild(&[])).contains("--from-agents"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("controller.toml");
    let state = dir.path().join("state");
    let text = |agents: &str| format!("state_dir = \"{}\"\n{agents}", state.display());
    let run = |more: &[&str]| {
        let config = ["--from-agents", "--config", file.to_str().unwrap()];
        said(rebuild(&[&config[..], more].concat()))
    };
    std::fs::write(&file, text("")).unwrap();
    assert!(run(&[]).contains("names no agent"));
    let socket = dir.path().join("none.sock");
    let agent = format!("[[agents]]\nname = \"s1\"\naddress = \"unix:{}\"\n", socket.display());
    std::fs::write(&file, text(&agent)).unwrap();
    let silent = run(&["--dry-run"]);
    assert!(silent.contains("agent s1 does not answer") && silent.contains("--without"), "{silent}");
    assert!(run(&["--without", "s2"]).contains("no agent of this name"));
    assert!(run(&["--without", "s1"]).contains("no agent belongs to a cluster"));
    assert!(!state.exists(), "nothing was written");
}

#[test]
fn a_controller_serves_with_what_its_init_made() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("etc");
    let init = ["init", "--folder", folder.to_str().unwrap(), "--name", "localhost"];
    let made = run(&init);
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let token = said.lines().find_map(|line| line.strip_prefix("the admin's token, shown this once: "));
    let path = folder.join("controller.toml");
    assert!(run(&["--config", path.to_str().unwrap(), "--check"]).status.success());
    // A port and a database that no controller of this machine uses.
    let text = std::fs::read_to_string(&path).unwrap();
    let state = format!("\nstate_dir = \"{}\"", top.path().join("state").display());
    let text: String =
        text.replace(":8776\"]", ":0\"]").replace("\nstate_dir = \"/var/lib/mooring-controller\"", &state);
    std::fs::write(&path, &text).unwrap();
    let running = Running::start(&path, &[]);
    let authority = CertificateDer::from_pem_file(folder.join("authority.crt")).unwrap();
    let header = format!("X-Auth-Token: {}\r\n", token.unwrap());
    let answer = exchange_with(over_tls(&running, authority.clone()), "/mooring/v1/hosts", &header);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"hosts\":[]}"), "{answer}");
    let refused = exchange(over_tls(&running, authority), "/mooring/v1/hosts");
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    // `init` may run beside a controller, and changes nothing.
    let again = run(&init);
    assert!(again.status.success() && std::fs::read_to_string(&path).unwrap() == text);
    let said = String::from_utf8(again.stdout).unwrap();
    assert!(!said.contains("shown this once"), "{said}");
}

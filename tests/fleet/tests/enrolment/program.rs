//! The program `mooring-controller` on a machine of its own: the results and output of its
//! commands, killed and started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mooring_fleet::own_loopback;
use serde_json::{Value, json};

use crate::site::{Node, free, read, runtime, until};

fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("mooring-controller");
    assert!(program.exists(), "{} is not built: cargo build -p mooring-controller", program.display());
    program
}

/// Runs a command of the program. Returns `true` if it succeeded, and its output.
pub(crate) fn run(args: &[&str]) -> (bool, String) {
    let done = Command::new(program()).args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    (done.status.success(), said)
}

/// A controller's machine.
pub(crate) struct Machine {
    dir: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) token: String,
    running: Option<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Machine {
    /// A machine with nothing on it.
    pub(crate) fn empty(token: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, port: free().port(), token: token.to_owned(), running: None }
    }

    /// Makes a first controller, on this PostgreSQL database or on one of its own.
    pub(crate) fn first(database: Option<&str>) -> Self {
        let mut machine = Self::empty("");
        let (etc, name) = (machine.etc(), own_loopback().to_string());
        let (done, said) = run(&["init", "--folder", etc.to_str().unwrap(), "--name", &name]);
        assert!(done, "{said}");
        let token = said.lines().find_map(|line| line.strip_prefix("the admin's token, shown this once: "));
        token.unwrap().clone_into(&mut machine.token);
        let mut text = read(&machine.config());
        if let Some(url) = database {
            let keys = machine.etc().join("sealing.key");
            fs::write(&keys, include_str!("../../../../controller/tests/support/sealing.key")).unwrap();
            fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            text = format!("sealing_key = \"{}\"\n{text}\n[database]\nurl = {url:?}\n", keys.display());
        }
        fs::write(machine.config(), text).unwrap();
        machine.place();
        machine
    }

    /// Sets this machine's port and state folder, apart from another controller on the same
    /// computer.
    pub(crate) fn place(&self) {
        let set = |text: &str, key: &str, value: String| {
            let lines = text.lines().map(|line| {
                if line.starts_with(&format!("{key} = ")) {
                    format!("{key} = {value}")
                } else {
                    line.to_owned()
                }
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        let text = set(&read(&self.config()), "listen", format!("[\"{}:{}\"]", own_loopback(), self.port));
        let text = set(&text, "public_url", format!("{:?}", self.url()));
        let state = format!("\"{}\"", self.path("state").display());
        fs::write(self.config(), set(&text, "state_dir", state)).unwrap();
    }

    pub(crate) fn etc(&self) -> PathBuf {
        self.dir.path().join("etc")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.etc().join("controller.toml")
    }

    pub(crate) fn file(&self, name: &str) -> String {
        read(&self.etc().join(name))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}:{}", own_loopback(), self.port)
    }

    /// Starts it, and waits for its first answer.
    pub(crate) fn start(&mut self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path("log")).unwrap();
        let child = Command::new(program()).arg("--config").arg(self.config()).stderr(log).spawn().unwrap();
        self.running = Some(child);
        let end = Instant::now() + 2 * crate::site::PATIENCE;
        while self.ask("GET", "/mooring/v1/hosts", None).is_none() {
            assert!(Instant::now() < end, "it does not start: {}", read(&self.path("log")));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills it, as a machine that loses its power.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            // A process that has already ended is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// A call with the admin's token. `None`: no answer, or one of a server that this authority
    /// does not vouch for.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        self.ask_by(&self.file("authority.crt"), method, path, body)
    }

    /// Like [`Machine::ask`], for a caller who has these certificates of the authority.
    pub(crate) fn ask_by(
        &self,
        authority: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Option<(u16, Value)> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let trusted = reqwest::Certificate::from_pem_bundle(authority.as_bytes()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only(trusted).no_proxy().build().unwrap();
        let request = client.request(method.parse().unwrap(), format!("{}{path}", self.url()));
        let request = request.header("X-Auth-Token", &self.token).timeout(Duration::from_secs(20));
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        runtime().block_on(async {
            let answer = request.send().await.ok()?;
            let status = answer.status().as_u16();
            Some((status, answer.json().await.unwrap_or(Value::Null)))
        })
    }

    #[track_caller]
    pub(crate) fn expect(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.ask(method, path, body).expect("an answer");
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    }

    /// A host as this controller shows it.
    pub(crate) fn host(&self, name: &str) -> Option<Value> {
        let hosts = self.expect("GET", "/mooring/v1/hosts", None);
        hosts["hosts"].as_array()?.iter().find(|host| host["name"] == name).cloned()
    }

    #[track_caller]
    pub(crate) fn until_up(&self, name: &str) {
        let up = || self.host(name).filter(|host| host["up"] == true).map(drop);
        until(&format!("{name} is up at port {}", self.port), up);
    }

    /// Token, pin and address of a join.
    #[track_caller]
    pub(crate) fn token(&self, name: &str) -> (String, String, String) {
        let path = format!("/mooring/v1/hosts/{name}/token");
        let made = self.expect("POST", &path, Some(json!({ "roles": ["storage"] })));
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("url"), text("token"), text("pin"))
    }

    /// A node that has joined this controller.
    #[track_caller]
    pub(crate) fn joined(&self, name: &str) -> Node {
        let node = self.node(name);
        let (url, token, pin) = self.token(name);
        node.join_by(&url, &token, &pin).unwrap();
        node
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        Node { dir, address: free() }
    }

    /// Makes a volume, and waits for it.
    #[track_caller]
    pub(crate) fn volume(&self) {
        let made = self.expect("POST", "/v3/admin/volumes", Some(json!({ "volume": { "size": 1 } })));
        let path = format!("/v3/admin/volumes/{}", made["volume"]["id"].as_str().unwrap());
        until("the volume", || {
            let status = self.expect("GET", &path, None)["volume"]["status"].clone();
            assert_ne!(status, "error");
            (status == "available").then_some(())
        });
    }

    /// `rotate-authority` on this machine.
    pub(crate) fn rotate(&self, step: &str) -> (bool, String) {
        run(&["rotate-authority", step, "--config", self.config().to_str().unwrap()])
    }

    #[track_caller]
    pub(crate) fn rotates(&self, step: &str) -> String {
        let (done, said) = self.rotate(step);
        assert!(done, "{step}: {said}");
        said
    }

    #[track_caller]
    pub(crate) fn refuses(&self, step: &str, word: &str) {
        let (done, said) = self.rotate(step);
        assert!(!done && said.contains(word), "{step} is not refused for {word:?}: {said}");
    }

    /// Repeats a step until it waits for nobody.
    #[track_caller]
    pub(crate) fn until_rotates(&self, step: &str) -> String {
        let end = Instant::now() + 2 * crate::site::PATIENCE;
        loop {
            let (done, said) = self.rotate(step);
            if done {
                return said;
            }
            assert!(said.contains("to wait for"), "{step}: {said}");
            assert!(Instant::now() < end, "{step} waits: {said}\n{}", read(&self.path("log")));
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// The permissions of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions()) & 0o777
}

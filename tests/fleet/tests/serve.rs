//! `mooring-fleet-serve` as a program: one attach through it with each of its flags.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use mooring_fleet::{Client, until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-fleet-serve"));
    command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The program, for other programs; it ends with this value.
struct Served {
    process: Child,
    /// The end of this input ends the process.
    input: Option<ChildStdin>,
    how: Value,
    runtime: Runtime,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.input = None;
        // A process that has ended by itself is fine: its test has said what is wrong.
        let _ = self.process.wait();
    }
}

impl Served {
    fn start(flags: &[&str]) -> Self {
        let mut process = command(flags).spawn().unwrap();
        let (input, output) = (process.stdin.take(), process.stdout.take().unwrap());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut served = Self { process, input, how: Value::Null, runtime };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        served.how = serde_json::from_str(&line).unwrap();
        served
    }

    fn client(&self, name: &str) -> Client {
        let account = &self.how["accounts"][name];
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{}", self.how)).to_owned();
        let (url, project, token) =
            (text(&self.how["url"]), text(&account["project"]), text(&account["token"]));
        Client::new(self.runtime.handle(), &url, &project, &token)
    }

    /// The type whose volumes may be shared, with these extra specs.
    fn shared_type(&self, name: &str, more: &[(&str, &str)]) -> String {
        let mut specs = vec![("multiattach", "<is> True")];
        specs.extend_from_slice(more);
        self.client("admin").volume_type(name, &specs)
    }
}

/// Attaches to a host with an agent, and waits until the mode is in force at the target. Returns
/// the attachment's id.
fn attach(client: &Client, volume: &str, host: &str, mode: &str) -> String {
    let id = client.attach_natively(volume, host, mode);
    until("the mode in force", || {
        let shown = live(client, &id);
        if shown["effective_mode"] == mode { Ok(()) } else { Err(shown.to_string()) }
    });
    id
}

fn live(client: &Client, id: &str) -> Value {
    client.get(&format!("/mooring/v1/attachments/{id}")).expect(200)["attachment"].take()
}

/// Attaches for a host without an agent. Returns the connection info.
fn attach_stock(client: &Client, volume: &str, connector: &Value) -> Value {
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": connector } });
    client.post("/attachments", &body).expect(200)["attachment"]["connection_info"].take()
}

fn stock() -> Value {
    json!({ "host": "node1", "initiator": "iqn.2026-01.org.example:node1", "ip": "192.0.2.11" })
}

#[test]
fn tokens_and_hosts_are_served_by_default_and_by_flag() {
    let served = Served::start(&["--storages", "2", "--hosts", "2", "--gib", "20"]);
    let (admin, member) = (served.client("admin"), served.client("member"));
    let volume = member.volume(Some(&served.shared_type("shared", &[])), 1);
    attach(&admin, &volume, "h1", "rw");
    attach(&admin, &volume, "h2", "ro");
    assert_eq!(admin.get("/mooring/v1/hosts").expect(200)["hosts"].as_array().unwrap().len(), 4);
    assert_eq!(member.nobody().get("/volumes").status, 401);
    let body = json!({ "volume": { "size": 1 } });
    assert_eq!(served.client("reader").post("/volumes", &body).status, 403);
}

#[test]
fn nobody_is_authenticated_if_the_caller_wants_it() {
    let served = Served::start(&["--no-auth"]);
    let anybody = served.client("admin").nobody();
    let volume = anybody.volume(None, 1);
    let info = attach_stock(&anybody, &volume, &stock());
    assert_eq!((&info["driver_volume_type"], &info["auth_method"]), (&json!("iscsi"), &json!("CHAP")));
}

#[test]
fn thin_volumes_come_from_a_node_of_their_own() {
    let served = Served::start(&["--thin", "20", "--hosts", "1"]);
    let admin = served.client("admin");
    let volume = admin.volume(Some(&served.shared_type("thin", &[("provisioning:type", "thin")])), 1);
    assert!(admin.show(&volume)["os-vol-host-attr:host"].as_str().unwrap().starts_with("t1@"));
    attach(&admin, &volume, "h1", "rw");
}

#[test]
fn hosts_attach_over_fibre_channel_in_one_zone() {
    let served = Served::start(&["--fc-hosts", "2"]);
    let admin = served.client("admin");
    let volume = admin.volume(Some(&served.shared_type("fc", &[("storage_protocol", "FC")])), 1);
    let first = attach(&admin, &volume, "fh1", "rw");
    let second = attach(&admin, &volume, "fh2", "ro");
    assert!([&first, &second].iter().all(|id| live(&admin, id)["transport"] == "fc"));
    let ports = json!({ "host": "node1", "wwpns": ["2000000100000001"], "wwnns": ["1000000100000001"] });
    assert_eq!(attach_stock(&admin, &volume, &ports)["driver_volume_type"], "fibre_channel");
    let path = format!("/mooring/v1/attachments/{first}?force=true");
    assert_eq!(admin.delete(&path).expect(200)["receipt"]["proof"], "proven");
    // Detached and attached anew, a host finds the disk again.
    admin.delete(&format!("/mooring/v1/attachments/{second}")).expect(200);
    attach(&admin, &volume, "fh2", "rw");
}

/// Logs in at the identity service with a name that is also the password. Returns the code, the
/// token and what the answer says of it.
fn log_in(served: &Served, name: &str, password: &str, project: &str) -> (u16, Option<String>, Value) {
    let domain = json!({ "name": "Default" });
    let user = json!({ "name": name, "password": password, "domain": domain });
    let body = json!({ "auth": {
        "identity": { "methods": ["password"], "password": { "user": user } },
        "scope": { "project": { "name": project, "domain": domain } },
    } });
    let url = format!("{}/auth/tokens", served.how["auth_url"].as_str().unwrap());
    served.runtime.block_on(async move {
        let answer = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap();
        let token = answer.headers().get("x-subject-token").map(|token| token.to_str().unwrap().to_owned());
        let (code, bytes) = (answer.status().as_u16(), answer.bytes().await.unwrap());
        (code, token, serde_json::from_slice(&bytes).unwrap())
    })
}

#[test]
fn a_password_opens_the_catalogue_and_its_token_the_controller() {
    let served = Served::start(&["--keystone", "--hosts", "1"]);
    let admin = served.client("admin");
    let (code, token, about) = log_in(&served, "admin", "admin", "demo");
    assert_eq!((code, token.as_deref()), (201, Some(admin.token())), "{about}");
    let volumes = &about["token"]["catalog"][1];
    assert_eq!(volumes["type"], "block-storage");
    assert_eq!(volumes["endpoints"][0]["url"], admin.endpoint());
    for (name, password, project) in
        [("admin", "wrong", "demo"), ("nobody", "nobody", "demo"), ("stranger", "stranger", "demo")]
    {
        let (code, token, _) = log_in(&served, name, password, project);
        assert_eq!((code, token), (401, None), "{name} {password} {project}");
    }
    let volume = served.client("member").volume(Some(&served.shared_type("shared", &[])), 1);
    attach(&admin, &volume, "h1", "ro");
    assert_eq!(admin.nobody().get("/volumes").status, 401);
    let body = json!({ "volume": { "size": 1 } });
    assert_eq!(served.client("reader").post("/volumes", &body).status, 403);
}

#[test]
fn the_address_is_the_one_that_was_asked_for() {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap().to_string();
    let refused = failed(&["--listen", &address]);
    assert!(refused.contains(&format!("listen at {address}")), "{refused}");
    drop(probe);
    let served = Served::start(&["--listen", &address, "--no-auth"]);
    assert_eq!(served.how["url"], format!("http://{address}"));
    let admin = served.client("admin");
    attach_stock(&admin, &admin.volume(None, 1), &stock());
}

/// Runs the program, which ends with an error. Returns its words.
fn failed(flags: &[&str]) -> String {
    let Output { status, stderr, .. } = command(flags).stdin(Stdio::null()).output().unwrap();
    assert!(!status.success(), "{flags:?}");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    assert!(failed(&["--listen", "192.0.2.1:80"]).contains("is not an address of loopback"));
    assert!(failed(&["--listen", "0.0.0.0:80"]).contains("is not an address of loopback"));
    assert!(failed(&["--listen", "here"]).contains("is no ADDRESS:PORT"));
    assert!(failed(&["--no-auth", "--keystone"]).contains("cannot be used with"));
    assert!(failed(&["--storages", "0"]).contains("without a pool"));
}

/// The program, for people; killed with this value unless it has ended.
struct Guided(Child);

impl Drop for Guided {
    fn drop(&mut self) {
        // A process that has already ended is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guided {
    /// Starts it with a standard input that has ended. Returns it with its guide.
    fn start(flags: &[&str]) -> (Self, String, BufReader<ChildStdout>) {
        let mut process = command(flags).arg("--guide").stdin(Stdio::null()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let guided = Self(process);
        let mut text = String::new();
        while !text.contains("Ctrl-C") {
            assert!(output.read_line(&mut text).unwrap() > 0, "{text}");
        }
        (guided, text, output)
    }

    /// Interrupts it, as Ctrl-C does, and waits for its end.
    fn interrupt(mut self) {
        let kill = format!("kill -INT {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

/// The rest of the first line after these words.
fn after<'a>(text: &'a str, words: &str) -> &'a str {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}"));
    rest.lines().next().unwrap_or_default().trim()
}

#[test]
fn a_guide_says_how_to_begin_and_ctrl_c_ends_everything() {
    let flags = ["--hosts", "1", "--thin", "10", "--fc-hosts", "1"];
    let (guided, text, mut output) = Guided::start(&flags);
    let runtime = Runtime::new().unwrap();
    let words = after(&text, "  admin ");
    let (project, token) = (after(words, "project ").split(' ').next().unwrap(), after(words, "token "));
    let admin = Client::new(
        runtime.handle(),
        after(&text, "MOORING_CONTROLLER=").split(' ').next().unwrap(),
        project,
        token,
    );
    for (kind, host) in [("shared", "h1"), ("thin", "h1"), ("fc", "fh1")] {
        let volume = admin.volume(Some(kind), 1);
        attach(&admin, &volume, host, "rw");
    }
    let folder = after(&text, "  files ");
    assert!(Path::new(folder).is_dir(), "{text}");
    guided.interrupt();
    assert!(!Path::new(folder).exists());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn a_guide_has_the_variables_of_each_way_in() {
    for (flag, variables) in
        [("--no-auth", "OS_AUTH_TYPE=none"), ("--keystone", "OS_AUTH_URL=http://127.0.0.1:")]
    {
        let (guided, text, _) = Guided::start(&[flag]);
        assert!(text.contains(variables), "{text}");
        guided.interrupt();
    }
}

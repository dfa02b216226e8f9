//! A controller in memory, good enough for the program: volumes, types and attachments are kept, an
//! attach makes one step with each long poll. A test sets its faults in `Knobs`.

#![allow(dead_code, reason = "each test binary uses another part")]

mod api;
mod hosts;
mod snapshots;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use axum::serve::Listener;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use crate::fake::Ran;

pub(crate) use api::router;

/// The faults and answers that a test sets.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a fake")]
pub(crate) struct Knobs {
    /// This many connections are closed before anything is read.
    pub(crate) cut: u32,
    /// This many requests are answered with 503.
    pub(crate) unavailable: u32,
    /// Requests other than with this token are answered with 401.
    pub(crate) token: Option<String>,
    /// This many changes are made, and their answers are lost.
    pub(crate) lost: u32,
    /// After the first change that is accepted, every request is answered with 503.
    pub(crate) leaves: bool,
    /// Every request is answered with this.
    pub(crate) raw: Option<(u16, String)>,
    /// Requests are taken and not answered.
    pub(crate) silent: bool,
    /// A new attachment is made, and its answer is held until this is false again.
    pub(crate) hold_post: bool,
    /// An attach stops after this many steps.
    pub(crate) stop_after: Option<usize>,
    /// An attach ends with this fault when it has stopped.
    pub(crate) attach_fault: Option<String>,
    /// Problems of an attachment from both agents.
    pub(crate) problems: Vec<String>,
    /// A rotation of secrets is accepted, and its host is waited for.
    pub(crate) rotates_slowly: bool,
    /// This many detaches are answered with 504.
    pub(crate) pending: u32,
    /// Holders of the disk: a detach without force is refused.
    pub(crate) holders: Option<String>,
    /// Receipts are unproven, with this many commands in flight.
    pub(crate) unproven: Option<u32>,
    /// This many answers have an unproven receipt; later ones have a proven one.
    pub(crate) unproven_first: u32,
    /// Receipts have this word for their proof.
    pub(crate) proof: Option<&'static str>,
    /// The controller makes up ids of its own.
    pub(crate) own_ids: bool,
    /// A volume is `creating` or `deleting` for this many looks.
    pub(crate) looks: u32,
    /// Volumes end in this status.
    pub(crate) volume_ends: Option<String>,
    /// A volume has grown before its extend is cancelled.
    pub(crate) grown_already: bool,
    /// The fault of every volume.
    pub(crate) fault: Option<String>,
    /// Volumes are in review.
    pub(crate) in_review: bool,
    /// The isolation of every volume.
    pub(crate) volume_cut: Option<Value>,
    /// A problem on the storage node.
    pub(crate) orphan: Option<String>,
    /// No host is down.
    pub(crate) all_up: bool,
    /// Volumes per page of a list.
    pub(crate) page: Option<usize>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) knobs: Knobs,
    pub(crate) volumes: BTreeMap<String, Value>,
    pub(crate) snapshots: BTreeMap<String, Value>,
    pub(crate) types: BTreeMap<String, Value>,
    /// Projects that may use the private type.
    pub(crate) access: std::collections::BTreeSet<String>,
    /// Limits that were set.
    pub(crate) quotas: BTreeMap<String, i64>,
    pub(crate) attachments: BTreeMap<String, Value>,
    /// Receipts of attachments that are gone.
    pub(crate) receipts: BTreeMap<String, Value>,
    /// `METHOD path?query` of every request that came.
    pub(crate) requests: Vec<String>,
    /// Bodies that came.
    pub(crate) bodies: Vec<Value>,
}

impl State {
    pub(crate) fn count(&self, beginning: &str) -> usize {
        self.requests.iter().filter(|request| request.starts_with(beginning)).count()
    }
}

/// New secrets for the attachments of a volume.
fn rotated(state: &mut State, id: &str, body: &Value) -> (u16, Value) {
    let slowly = state.knobs.rotates_slowly;
    let of = |live: &&mut Value| {
        live["volume_id"] == id && (body["attachment"].is_null() || body["attachment"] == live["id"])
    };
    let mut all = Vec::new();
    for live in state.attachments.values_mut().filter(of) {
        live["secret_rotation"] = if slowly { serde_json::json!("host") } else { Value::Null };
        live["secret_rotated_at"] = serde_json::json!("2026-11-22T10:00:00Z");
        all.push(live.clone());
    }
    if slowly {
        return (504, serde_json::json!({ "computeFault": { "code": 504, "message": "it goes on" } }));
    }
    (200, serde_json::json!({ "attachments": all }))
}

/// The users of an attachment's disk, which a test has stored beside the attachment as `check`.
fn checked(state: &State, id: &str) -> (u16, Value) {
    let Some(live) = state.attachments.get(id) else {
        let message = format!("Attachment {id} could not be found.");
        return (404, serde_json::json!({ "itemNotFound": { "code": 404, "message": message } }));
    };
    let mut check = serde_json::json!({
        "attachment_id": id, "volume_id": live["volume_id"], "host": live["host"], "disk": "/dev/sda",
        "cache_in_force": "off", "users": [], "unseen": [], "problems": [],
    });
    for (key, value) in live["check"].as_object().into_iter().flatten() {
        check[key] = value.clone();
    }
    (200, serde_json::json!({ "check": check }))
}

#[derive(Clone, Default)]
pub(crate) struct FakeController(Arc<(Mutex<State>, Condvar)>);

impl FakeController {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    /// Wakes everybody who waits for news.
    fn changed(&self) {
        self.0.1.notify_all();
    }

    /// Changes the state, and wakes those who wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed();
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub(crate) fn await_that(&self, is: impl Fn(&State) -> bool) {
        let (state, waited) =
            self.0.1.wait_timeout_while(self.state(), Duration::from_secs(30), |state| !is(state)).unwrap();
        assert!(!waited.timed_out(), "it never came: {:?}", state.requests);
    }
}

/// Closes connections if a test requests that.
struct Cutting(TcpListener, FakeController);

impl Listener for Cutting {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let (stream, from) = Listener::accept(&mut self.0).await;
            let mut state = self.1.state();
            if state.knobs.cut == 0 {
                return (stream, from);
            }
            state.knobs.cut -= 1;
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A fake controller that listens, and the program to call it with.
pub(crate) struct Rig {
    pub(crate) fake: FakeController,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let fake = FakeController::default();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (cutting, app) = (Cutting(listener, fake.clone()), router(fake.clone()));
        runtime.spawn(async move { axum::serve(cutting, app).await });
        Self { fake, dir: tempfile::tempdir().unwrap(), address, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        end(start(&[("MOORING_CONTROLLER", &self.url())], words))
    }

    pub(crate) fn run_with(&self, env: &[(&str, &str)], words: &[&str]) -> Ran {
        let url = self.url();
        end(start(&[env, &[("MOORING_CONTROLLER", url.as_str())]].concat(), words))
    }

    pub(crate) fn start(&self, words: &[&str]) -> Child {
        start(&[("MOORING_CONTROLLER", &self.url())], words)
    }

    /// Runs with --json, expects exit code 0, returns the answer.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Runs with --json, expects this exit code, returns the error.
    #[track_caller]
    pub(crate) fn error(&self, code: i32, words: &[&str]) -> Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{words:?}: {}", ran.err);
        let error: Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!(error["exit_code"], code);
        error
    }

    /// Creates a volume that several hosts may have, and returns its id.
    pub(crate) fn volume(&self, name: &str) -> String {
        self.json(&["type", "create", "shared", "--multiattach"]);
        let made = self.json(&["volume", "create", name, "--size", "1GiB", "--type", "shared"]);
        made["volume"]["id"].as_str().unwrap().to_owned()
    }

    /// Attaches, and returns the attachment's id.
    pub(crate) fn attach(&self, volume: &str, host: &str) -> String {
        self.json(&["attach", volume, "--host", host])["attachment"]["id"].as_str().unwrap().to_owned()
    }
}

/// Starts the shipped program with only this environment.
pub(crate) fn start(env: &[(&str, &str)], words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring"));
    command.env_clear().envs(env.iter().copied()).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for its end. Returns its exit code and output.
pub(crate) fn end(child: Child) -> Ran {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    Ran {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

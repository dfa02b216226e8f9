//! For tests: a private bus (`dbus-daemon`, of the Debian package of that name) with a systemd and
//! a logind that answer as the test says.
//!
//! What must never happen here: a look that loads a unit unnoticed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "it is a test's"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio_stream::StreamExt;
use zbus::message::Type;
use zbus::{Connection, Fd, Message, MessageStream, ObjectPath, OwnedObjectPath, OwnedVariant, Variant};

use crate::Bus;

const ROOT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// Time limit for everything here.
pub const SOON: Duration = Duration::from_secs(20);

/// A `dbus-daemon`, while it runs.
pub struct Daemon {
    folder: TempDir,
    child: Option<Child>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Daemon {
    /// Reserves an address for a bus that does not run yet.
    pub fn absent() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), child: None }
    }

    /// Starts a bus at a new address.
    pub fn started() -> Self {
        let mut daemon = Self::absent();
        daemon.start();
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("bus")
    }

    /// The bus's address, also while it does not run.
    pub fn bus(&self) -> Bus {
        Bus::at(format!("unix:path={}", self.socket().display()))
    }

    /// Starts it; returns when it listens.
    pub fn start(&mut self) {
        let config = self.folder.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>custom</type><listen>unix:path={}</listen><policy context=\"default\">\
             <allow own=\"*\"/><allow send_destination=\"*\" eavesdrop=\"false\"/><allow receive_sender=\"*\"/></policy></busconfig>",
            self.socket().display()
        );
        std::fs::write(&config, text).unwrap();
        let _ = std::fs::remove_file(self.socket());
        let mut child = Command::new("dbus-daemon")
            .args(["--nofork", "--nopidfile", "--print-address"])
            .arg(format!("--config-file={}", config.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon, of the Debian package dbus-daemon");
        let mut line = String::new();
        // It prints its address once it listens.
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("unix:"), "dbus-daemon says {line:?}");
        self.child = Some(child);
    }

    /// Kills it.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops answering, like a process that hangs, until [`Daemon::go_on`].
    pub fn hang(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// Answers again.
    pub fn go_on(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    async fn connect(&self) -> Connection {
        let address = format!("unix:path={}", self.socket().display());
        zbus::connection::Builder::address(address.as_str()).build().await.unwrap()
    }
}

/// A unit of the fake systemd.
#[derive(Debug, Clone)]
pub struct FakeUnit {
    /// Name of the unit; for an alias, the name of the unit that it stands for.
    pub id: &'static str,
    /// `ActiveState`.
    pub active: &'static str,
    /// `UnitFileState`.
    pub file: &'static str,
    /// `true`: systemd has it in memory.
    pub loaded: bool,
    /// `NeedDaemonReload`.
    pub outdated: bool,
}

impl FakeUnit {
    /// Makes an enabled unit that is in memory, in this state.
    pub fn new(id: &'static str, active: &'static str) -> Self {
        Self { id, active, file: "enabled", loaded: true, outdated: false }
    }
}

/// State of the fake systemd and logind.
#[derive(Default)]
pub struct State {
    /// Units by the name under which a caller asks for them.
    pub units: BTreeMap<&'static str, FakeUnit>,
    /// The methods that were called, in order.
    pub calls: Vec<String>,
    /// Reading ends of the locks that were handed out, with holder and reason.
    locks: Vec<(std::os::fd::OwnedFd, String)>,
    /// D-Bus name of the error that refuses a lock; `None`: locks are granted.
    pub refuses: Option<&'static str>,
    /// `true`: calls are counted and not answered.
    pub silent: bool,
}

/// A fake systemd and logind on a bus.
pub struct Fake {
    connection: Connection,
    state: Arc<Mutex<State>>,
    served: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.served.abort();
    }
}

fn path_of(id: &str) -> String {
    let escaped: String = id
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("_{b:02x}") })
        .collect();
    format!("{ROOT}/unit/{escaped}")
}

impl Fake {
    /// Begins to answer. Returns once the names are on the bus.
    pub async fn serve(daemon: &Daemon, units: &[(&'static str, FakeUnit)]) -> Self {
        let connection = daemon.connect().await;
        let state = State { units: units.iter().cloned().collect(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let mut messages = MessageStream::from(&connection);
        for name in ["org.freedesktop.systemd1", "org.freedesktop.login1"] {
            connection.request_name(name).await.unwrap();
        }
        let (answers, shared) = (connection.clone(), Arc::clone(&state));
        let served = tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if message.message_type() == Type::MethodCall {
                    answer(&answers, &shared, &message).await;
                }
            }
        });
        Self { connection, state, served }
    }

    /// Gives access to the state. A change through it sends no signal.
    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes a unit and sends systemd's signal for it.
    pub async fn change(&self, name: &'static str, change: impl FnOnce(&mut FakeUnit)) {
        let id = {
            let mut state = self.state();
            let unit = state.units.get_mut(name).unwrap();
            change(unit);
            unit.id
        };
        let changed: HashMap<&str, Variant<'_>> = HashMap::new();
        let body = ("org.freedesktop.systemd1.Unit", changed, Vec::<&str>::new());
        self.emit(&path_of(id), "org.freedesktop.DBus.Properties", "PropertiesChanged", &body).await;
    }

    /// Loads a unit and sends systemd's signal for it.
    pub async fn load(&self, name: &'static str, unit: FakeUnit) {
        let id = unit.id;
        self.state().units.insert(name, unit);
        let path = path_of(id);
        let body = (id, ObjectPath::try_from(path.as_str()).unwrap());
        self.emit(ROOT, MANAGER, "UnitNew", &body).await;
    }

    /// Sends logind's signal that a shutdown begins (`true`) or was called off (`false`).
    pub async fn shutdown(&self, begins: bool) {
        let (path, interface) = ("/org/freedesktop/login1", "org.freedesktop.login1.Manager");
        self.emit(path, interface, "PrepareForShutdown", &begins).await;
    }

    async fn emit<B>(&self, path: &str, interface: &str, member: &str, body: &B)
    where
        B: zbus::export::serde::Serialize + zbus::DynamicType,
    {
        self.connection.emit_signal(None::<&str>, path, interface, member, body).await.unwrap();
    }

    /// Holders of the current locks, with their reasons.
    pub fn locks(&self) -> Vec<String> {
        let mut state = self.state();
        state.locks.retain(|(end, _)| {
            let mut file = std::fs::File::from(end.try_clone().unwrap());
            // An end of file here means that the holder closed its end.
            !matches!(file.read(&mut [0]), Ok(0))
        });
        state.locks.iter().map(|(_, who)| who.clone()).collect()
    }
}

async fn answer(connection: &Connection, state: &Mutex<State>, message: &Message) {
    let header = message.header();
    let member = header.member().unwrap().to_string();
    let path = header.path().unwrap().to_string();
    let body = message.body();
    let silent = {
        let mut state = state.lock().unwrap();
        state.calls.push(member.clone());
        state.silent
    };
    if silent {
        return;
    }
    let refused = |name: &'static str| async move {
        connection.reply_error(&message.header(), name, &"no").await.unwrap();
    };
    match member.as_str() {
        "Subscribe" => refused("org.freedesktop.systemd1.AlreadySubscribed").await,
        "GetUnit" => {
            let unit = state.lock().unwrap().units.get(body.deserialize::<&str>().unwrap()).cloned();
            match unit.filter(|unit| unit.loaded) {
                None => refused("org.freedesktop.systemd1.NoSuchUnit").await,
                Some(unit) => {
                    let path = OwnedObjectPath::try_from(path_of(unit.id)).unwrap();
                    connection.reply(&header, &path).await.unwrap();
                }
            }
        }
        "GetUnitFileState" => {
            let unit = state.lock().unwrap().units.get(body.deserialize::<&str>().unwrap()).cloned();
            match unit {
                None => refused("org.freedesktop.DBus.Error.FileNotFound").await,
                Some(unit) => connection.reply(&header, &unit.file).await.unwrap(),
            }
        }
        "GetAll" => {
            let unit =
                state.lock().unwrap().units.values().find(|unit| path_of(unit.id) == path).cloned().unwrap();
            // Asking for a unit's object would load the unit.
            assert!(unit.loaded, "{path} was loaded by a look");
            let text = |text: &str| OwnedVariant::try_from(Variant::from(text)).unwrap();
            let all = HashMap::from([
                ("Id", text(unit.id)),
                ("LoadState", text("loaded")),
                ("ActiveState", text(unit.active)),
                ("UnitFileState", text(unit.file)),
                ("NeedDaemonReload", OwnedVariant::from(unit.outdated)),
            ]);
            connection.reply(&header, &all).await.unwrap();
        }
        "Get" => {
            let result = OwnedVariant::try_from(Variant::from("exit-code")).unwrap();
            connection.reply(&header, &result).await.unwrap();
        }
        "Inhibit" => {
            let refuses = state.lock().unwrap().refuses;
            if let Some(name) = refuses {
                return refused(name).await;
            }
            let (what, who, why, mode) = body.deserialize::<(&str, &str, &str, &str)>().unwrap();
            let (read, write) = nix::unistd::pipe().unwrap();
            nix::fcntl::fcntl(&read, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            state.lock().unwrap().locks.push((read, format!("{what} {mode} {who}: {why}")));
            connection.reply(&header, &Fd::from(write.as_fd())).await.unwrap();
        }
        other => panic!("{other} was called"),
    }
}

/// Waits until the condition holds.
pub async fn wait_for(what: &str, is: impl Fn() -> bool) {
    let begun = tokio::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < SOON, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

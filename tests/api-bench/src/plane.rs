//! A control plane of real programs on loopback: the controller with its configuration, agents
//! beside it, and the client.
//!
//! What must never happen here: a process that outlives its benchmark; a setting that an operator
//! would not have.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper::Method;
use serde_json::json;
use tokio::signal::unix::SignalKind;

use crate::client::{Client, Target};
use crate::cost::Watched;
use crate::table::Measured;
use crate::world::{self, World};

/// Time limit for a process to become usable, or to end.
const PATIENCE: Duration = Duration::from_mins(1);

/// The folder of the programs.
#[derive(Debug, Clone)]
pub struct Programs(pub PathBuf);

impl Programs {
    /// A command of this program.
    pub fn command(&self, name: &str) -> Command {
        Command::new(self.0.join(name))
    }
}

/// The processes that are running.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this program with all its processes when it is interrupted. It mostly waits for one of
/// them, and drops nothing then.
pub fn end_with_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            let wanted = [SignalKind::interrupt(), SignalKind::terminate()].map(tokio::signal::unix::signal);
            let [Ok(mut interrupt), Ok(mut terminate)] = wanted else { return };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            for pid in running().drain(..).filter_map(|pid| i32::try_from(pid).ok()) {
                // A process that has already ended is fine.
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            eprintln!("mooring-api-bench: interrupted; its processes are ended");
            std::process::exit(130);
        });
    })?;
    Ok(())
}

/// A process of ours, ended when this is dropped.
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts a process; its output goes to a file.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stderr(log).spawn();
        let child = child.with_context(|| format!("start {name}"))?;
        running().push(child.id());
        Ok(Self { name: name.to_owned(), child })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process in the client's form.
    pub fn watched(&self) -> Watched {
        Watched { name: self.name.clone(), pid: self.pid() }
    }

    fn signal(&self, signal: nix::sys::signal::Signal) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid())?);
        nix::sys::signal::kill(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Ends the process as an operator does, and waits for that.
    pub fn stop(self) -> Result<()> {
        self.end_with(nix::sys::signal::Signal::SIGTERM)
    }

    /// Ends the process with a signal that it handles, and waits for that.
    pub fn end_with(mut self, signal: nix::sys::signal::Signal) -> Result<()> {
        self.signal(signal)?;
        let limit = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= limit {
                bail!("{} does not end", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has already ended is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
        running().retain(|pid| *pid != self.child.id());
    }
}

/// Finds an unused port.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a real agent on a fake host.
pub fn real_agent(programs: &Programs, folder: &Path) -> Result<(Process, String)> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let state = folder.join("agent");
    fs::create_dir_all(&state)?;
    let mut command = programs.command("mooring-fleet-agent");
    command
        .args(["--listen", &address, "--name", "storage", "--pools", "vg0=1000", "--state-dir"])
        .arg(&state);
    let process = Process::start("agent", &mut command, &folder.join("agent.log"))?;
    let entry = format!("[[agents]]\nname = \"storage\"\naddress = \"http://{address}\"\ninsecure = true\n");
    Ok((process, entry))
}

/// Starts the light agents of the large world.
pub fn light_agents(programs: &Programs, folder: &Path, world: &World) -> Result<(Process, String)> {
    // A socket's path must be short.
    let sockets = folder.join("s");
    fs::create_dir_all(&sockets)?;
    let mut command = programs.command("mooring-api-agents");
    command.arg("--folder").arg(&sockets).args(world_args(world)).stdout(Stdio::piped());
    let mut process = Process::start("agents", &mut command, &folder.join("agents.log"))?;
    let mut said = String::new();
    if let Some(out) = process.child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said.trim() != "ready" {
        bail!("the light agents do not start: see {}", folder.join("agents.log").display());
    }
    let mut entries = String::new();
    for number in 0..world.agents {
        let socket = sockets.join(world::socket(number));
        writeln!(
            entries,
            "[[agents]]\nname = \"{}\"\naddress = \"unix:{}\"",
            world::agent_name(number),
            socket.display()
        )?;
    }
    Ok((process, entries))
}

fn world_args(world: &World) -> [String; 6] {
    let World { volumes, attachments, agents } = world;
    [("volumes", volumes), ("attachments", attachments), ("agents", agents)]
        .map(|(key, value)| [format!("--{key}"), value.to_string()])
        .concat()
        .try_into()
        .unwrap_or_default()
}

/// A controller with its folder and its configuration; it may run or not.
pub struct Control {
    programs: Programs,
    folder: PathBuf,
    target: Target,
}

impl Control {
    /// Writes an operator's configuration with tokens; `database` and `agents` are parts of it.
    pub fn new(programs: &Programs, folder: &Path, database: &str, agents: &str) -> Result<Self> {
        let mut tokens = String::new();
        let mut made = Vec::new();
        for role in ["admin", "service"] {
            let out = programs
                .command("mooring-controller")
                .args(["token", "--name", role, "--role", role, "--project", world::PROJECT])
                .output()?;
            let text = String::from_utf8(out.stdout)?;
            let token = text.lines().nth(1).and_then(|line| line.strip_prefix("# "));
            made.push(token.context("make a token")?.to_owned());
            tokens += &text;
        }
        let token_file = folder.join("tokens.toml");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&token_file)?
            .write_all(tokens.as_bytes())?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let config = format!(
            "state_dir = \"{0}/controller\"\ntokens = \"{0}/tokens.toml\"\nlisten = [\"{address}\"]\n{database}\n{agents}",
            folder.display()
        );
        fs::write(folder.join("controller.toml"), config)?;
        let [token, service_token] = made.try_into().unwrap_or_default();
        let target = Target { address, project: world::PROJECT.to_owned(), token, service_token };
        Ok(Self { programs: programs.clone(), folder: folder.to_owned(), target })
    }

    fn command(&self) -> Command {
        let mut command = self.programs.command("mooring-controller");
        // The value of its unit.
        command.env("MALLOC_CONF", "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0");
        command.arg("--config").arg(self.folder.join("controller.toml"));
        command
    }

    /// Lets the program check the configuration; the inner error is its message.
    pub fn check(&self) -> Result<Result<(), String>> {
        let out = self.command().arg("--check").output()?;
        Ok(if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) })
    }

    /// The folder of the embedded database.
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join("controller")
    }

    /// The address and the credentials.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Starts the controller, and waits until it answers.
    pub async fn start(&self) -> Result<Process> {
        let log = self.folder.join("controller.log");
        let mut process = Process::start("controller", &mut self.command(), &log)?;
        let limit = Instant::now() + PATIENCE;
        loop {
            if let Ok(mut client) = Client::connect(&self.target).await {
                client.ask(Method::GET, "/types", None).await?.expect(200)?;
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("the controller ended with {status}: see {}", log.display());
            }
            if Instant::now() >= limit {
                bail!("the controller does not answer: see {}", log.display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for the agents, and makes volumes that many hosts may attach.
    pub async fn volumes(&self, count: usize) -> Result<Vec<String>> {
        let mut client = Client::connect(&self.target).await?;
        let shared =
            json!({ "volume_type": { "name": "shared", "extra_specs": { "multiattach": "<is> True" } } });
        client.ask(Method::POST, "/types", Some(&shared)).await?.expect(200)?;
        let body = json!({ "volume": { "name": "v", "size": 1, "volume_type": "shared" } });
        let limit = Instant::now() + PATIENCE;
        let mut ids = Vec::new();
        while ids.len() < count {
            let answer = client.ask(Method::POST, "/volumes", Some(&body)).await?;
            if answer.status != 202 {
                if Instant::now() >= limit {
                    answer.expect(202)?;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            let made = answer.expect(202)?;
            ids.push(made["volume"]["id"].as_str().context("a volume without an id")?.to_owned());
        }
        for id in &ids {
            loop {
                let seen = client.ask(Method::GET, &format!("/volumes/{id}"), None).await?.expect(200)?;
                if seen["volume"]["status"] == "available" {
                    break;
                }
                if Instant::now() >= limit {
                    bail!("volume {id} is not made: {seen}");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(ids)
    }

    /// Runs the client.
    pub fn load(&self, watched: &[&Process], args: &[String]) -> Result<Measured> {
        let Target { address, project, token, service_token } = &self.target;
        let mut command = self.programs.command("mooring-api-load");
        command.args(["--address", address, "--project", project]);
        command.args(["--token", token, "--service-token", service_token]);
        for process in watched {
            let Watched { name, pid } = process.watched();
            command.arg("--watch").arg(format!("{name}={pid}"));
        }
        let log = File::create(self.folder.join("load.log"))?;
        let out = command.args(args).stderr(log).output().context("run mooring-api-load")?;
        if !out.status.success() {
            bail!("the client failed: {}", fs::read_to_string(self.folder.join("load.log"))?);
        }
        Ok(serde_json::from_slice(&out.stdout)?)
    }

    /// Runs cycles of the client; `span` is an option of it and the option's value.
    pub fn cycles(
        &self,
        watched: &[&Process],
        volumes: &[String],
        clients: usize,
        span: (&str, u64),
    ) -> Result<Measured> {
        let mut args = vec!["cycles".to_owned()];
        args.extend(volumes.iter().flat_map(|volume| ["--volume".to_owned(), volume.clone()]));
        args.extend(["--clients", &clients.to_string(), span.0, &span.1.to_string()].map(str::to_owned));
        self.load(watched, &args)
    }

    /// Runs reads of the client.
    pub fn reads(&self, watched: &[&Process], world: &World, shows: u32, pages: u32) -> Result<Measured> {
        let mut args = vec!["reads".to_owned()];
        args.extend(world_args(world));
        args.extend(["--shows", &shows.to_string(), "--pages", &pages.to_string()].map(str::to_owned));
        self.load(watched, &args)
    }
}

//! A private PostgreSQL server at full durability, in a folder of its own; Debian's package brings
//! the programs.
//!
//! What must never happen here: a setting that lets a commit be lost; a server that outlives its
//! benchmark.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::plane::Process;

/// Debian's defaults, stated: every commit waits for the disk. No autovacuum during a run.
const SETTINGS: [&str; 7] = [
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "autovacuum=off",
    "shared_buffers=128MB",
    "listen_addresses=",
    "log_min_messages=warning",
];

/// Key that seals the secrets of a database which ends with the benchmark.
const SEALING_KEY: &str = "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=\n";

const PATIENCE: Duration = Duration::from_secs(30);

/// A server, ended when this is dropped.
pub struct Server {
    process: Process,
    programs: PathBuf,
    folder: PathBuf,
}

/// Folder of the programs in Debian's package; `None`: it is not installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut found: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    found.retain(|path| path.join("postgres").exists());
    found.sort();
    found.pop()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Makes a command of a program. PostgreSQL refuses to run as root: then it runs as its package's
/// user.
fn command(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}

fn checked(command: &mut Command) -> Result<Output> {
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(out)
}

impl Server {
    /// Starts a server. The inner `Err` is the reason why there is none to start.
    pub fn start(folder: &Path) -> Result<Result<Self, &'static str>> {
        let Some(programs) = programs() else {
            return Ok(Err(
                "PostgreSQL is not installed: apt-get install --no-install-recommends postgresql",
            ));
        };
        let folder = folder.join("pg");
        fs::create_dir_all(&folder)?;
        if is_root() {
            checked(Command::new("chown").arg("postgres:postgres").arg(&folder))?;
        }
        let data = folder.join("data");
        let options = ["-A", "trust", "-U", "mooring", "-E", "UTF8", "--locale=C", "-D"];
        checked(command(&programs.join("initdb")).args(options).arg(&data))?;
        let mut server = command(&programs.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(&folder).stdout(Stdio::null());
        for setting in SETTINGS {
            server.args(["-c", setting]);
        }
        let process = Process::start("postgresql", &mut server, &folder.with_extension("log"))?;
        let server = Self { process, programs, folder };
        let limit = Instant::now() + PATIENCE;
        while server.psql("postgres", "SELECT 1").is_err() {
            if Instant::now() >= limit {
                bail!("PostgreSQL does not start: see {}", server.folder.with_extension("log").display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        server.psql("postgres", "CREATE DATABASE mooring")?;
        Ok(Ok(server))
    }

    /// Runs a query.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.arg("-h").arg(&self.folder).args(["-U", "mooring", "-d", database, "-X", "-At"]);
        let out = checked(psql.args(["-v", "ON_ERROR_STOP=1", "-c", sql]))?;
        Ok(String::from_utf8(out.stdout)?.trim().to_owned())
    }

    /// The controller's configuration for it: keys at the top, then the table.
    pub fn config(&self) -> Result<String> {
        let keys = self.folder.with_extension("sealing.key");
        fs::write(&keys, SEALING_KEY)?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "sealing_key = \"{}\"\n[database]\nurl = \"postgres://mooring@/mooring?host={}\"\n",
            keys.display(),
            self.folder.display()
        ))
    }

    /// Number of syncs of the server's log.
    pub fn syncs(&self) -> Result<u64> {
        // A process's counts are published when it rests.
        std::thread::sleep(Duration::from_secs(2));
        Ok(self.psql("postgres", "SELECT wal_sync FROM pg_stat_wal")?.parse()?)
    }

    /// Number of updates of a table's rows, and how many of them changed no index (HOT).
    pub fn updates(&self, table: &str) -> Result<(u64, u64)> {
        std::thread::sleep(Duration::from_secs(2));
        let sql =
            format!("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{table}'");
        let counts = self.psql("mooring", &sql)?;
        let (updates, in_place) = counts.split_once('|').context("PostgreSQL has no such table")?;
        Ok((updates.parse()?, in_place.parse()?))
    }

    /// The server's first process; its children are counted with it.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Ends the server as an operator does who does not wait for clients.
    pub fn stop(self) -> Result<()> {
        self.process.end_with(nix::sys::signal::Signal::SIGINT)
    }
}

//! A private PostgreSQL server on a socket in a folder of its own. It ends with the process that
//! started it, also when that is killed: a shell waits for the end of a pipe.

#![allow(dead_code, reason = "each test binary uses another part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Settings of the server. Commits are not synced: a kill takes nothing from the kernel's cache,
/// and no test cuts the power.
const SETTINGS: &str = "fsync=off full_page_writes=off autovacuum=off shared_buffers=24MB max_connections=90 \
                        listen_addresses='' log_min_messages=warning logging_collector=off";

const LIMIT: Duration = Duration::from_mins(1);

/// The folder in which Debian's package puts the programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").map(|found| found.flatten().collect::<Vec<_>>());
    let mut found: Vec<_> =
        versions.unwrap_or_default().into_iter().map(|entry| entry.path().join("bin")).collect();
    found.retain(|path| path.join("postgres").exists());
    found.sort();
    found.pop().expect("PostgreSQL is not installed: apt-get install --no-install-recommends postgresql-15")
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0
}

/// A command of PostgreSQL. PostgreSQL does not run as root: then the command runs as the user of
/// its package.
fn command(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command
}

fn checked(command: &mut Command) -> Output {
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    out
}

fn own(path: &Path) {
    if is_root() {
        checked(Command::new("chown").arg("-R").arg("postgres:postgres").arg(path));
    }
}

/// A data folder as `initdb` makes it, made once for all tests of this build.
fn template() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let target = exe.parent().unwrap().parent().unwrap();
    let path = target.join("postgresql-template");
    let lock = fs::File::create(target.join("postgresql-template.lock")).unwrap();
    lock.lock().unwrap();
    if !path.join("PG_VERSION").exists() {
        let dir = tempfile::tempdir().unwrap();
        own(dir.path());
        let made = dir.path().join("data");
        let args = ["-N", "-A", "trust", "-U", "mooring", "-E", "UTF8", "--locale=C", "--wal-segsize=1"];
        checked(command(&programs().join("initdb")).args(args).arg("-D").arg(&made).current_dir("/"));
        let _ = fs::remove_dir_all(&path);
        checked(Command::new("cp").arg("-a").arg(&made).arg(&path));
    }
    path
}

pub(crate) struct Server {
    dir: tempfile::TempDir,
    shell: Mutex<Option<Child>>,
}

impl Server {
    /// Starts a new server.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        checked(
            Command::new("cp").args(["-a", "--reflink=auto"]).arg(template()).arg(dir.path().join("data")),
        );
        own(dir.path());
        let server = Self { dir, shell: Mutex::new(None) };
        server.start();
        server
    }

    /// The server for all tests of this process. It is never dropped, and ends with the process; a
    /// shell removes its folder.
    pub(crate) fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(Self::new)
    }

    fn socket(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn start(&self) {
        let set: String = SETTINGS.split(' ').flat_map(|setting| [" -c ", setting]).collect();
        let (dir, bin) = (self.socket(), programs());
        let script = format!(
            "{}/postgres -D {dir}/data -k {dir} {set} >>{dir}/log 2>&1 & own=$!; read -r end; kill -QUIT $own; wait $own; \
             [ \"$end\" = keep ] || rm -rf {dir}/data {dir}/log",
            bin.display()
        );
        let limit = Instant::now() + LIMIT;
        loop {
            let shell = command(Path::new("/bin/sh"))
                .args(["-c", &script])
                .stdin(Stdio::piped())
                // The server outlives the test by a moment; a reader of the test's output must not
                // wait for that.
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                .spawn()
                .unwrap();
            *self.shell.lock().unwrap() = Some(shell);
            if self.ready(limit) {
                return;
            }
            // After a kill, the old server's processes end by themselves, and block a start until
            // then.
            assert!(Instant::now() < limit, "{}", fs::read_to_string(self.dir.path().join("log")).unwrap());
            self.end_shell();
        }
    }

    fn ready(&self, limit: Instant) -> bool {
        let tried = Instant::now() + Duration::from_secs(5);
        while Instant::now() < limit.min(tried) {
            let args = ["-q", "-h", self.socket(), "-U", "mooring", "-d", "postgres"];
            if Command::new(programs().join("pg_isready")).args(args).status().unwrap().success() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn end_shell(&self) {
        if let Some(mut shell) = self.shell.lock().unwrap().take() {
            std::io::Write::write_all(&mut shell.stdin.take().unwrap(), b"keep\n").unwrap();
            shell.wait().unwrap();
        }
    }

    /// Stops the server as an operator does: running transactions are aborted.
    pub(crate) fn stop(&self) {
        checked(
            command(&programs().join("pg_ctl"))
                .args(["stop", "-m", "fast", "-w", "-D"])
                .arg(self.dir.path().join("data"))
                .current_dir("/"),
        );
        self.end_shell();
    }

    /// Kills the server.
    pub(crate) fn kill(&self) {
        let file = fs::read_to_string(self.dir.path().join("data/postmaster.pid")).unwrap();
        checked(Command::new("kill").args(["-KILL", file.lines().next().unwrap()]));
        self.end_shell();
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = Command::new(programs().join(program));
        command.args(["-h", self.socket(), "-U", "mooring"]);
        command
    }

    pub(crate) fn psql(&self, database: &str, sql: &str) -> String {
        let out = checked(self.tool("psql").args([
            "-d",
            database,
            "-X",
            "-At",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            sql,
        ]));
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    }

    /// Makes a database if it is missing. Returns its address.
    pub(crate) fn database(&self, name: &str) -> String {
        let there = self.psql("postgres", &format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"));
        if there.is_empty() {
            self.psql("postgres", &format!("CREATE DATABASE \"{name}\""));
        }
        format!("postgres://mooring@/{name}?host={}", self.socket())
    }

    /// A database as text, as an operator's `pg_dump` writes it.
    pub(crate) fn dump(&self, database: &str) -> String {
        let out = checked(self.tool("pg_dump").arg(database));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Copies a database, as an operator's backup and restore do.
    pub(crate) fn backup_and_restore(&self, from: &str, to: &str) {
        self.database(to);
        let file = self.dir.path().join(format!("{to}.dump"));
        let mut dump = self.tool("pg_dump");
        checked(dump.args(["--format=custom", "--file"]).arg(&file).arg(from));
        checked(self.tool("pg_restore").args(["--exit-on-error", "--dbname", to]).arg(&file));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_shell();
    }
}

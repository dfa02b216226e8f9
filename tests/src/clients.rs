//! Clients that we did not write: python-cinderclient, openstacksdk and python-openstackclient,
//! from PyPI, in an environment of their own in the user's cache.
//!
//! What must never happen here: a version that depends on the day (all are pinned); a client
//! installed into the system; a script that ends without a word about its tests and counts as
//! passed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use mooring_rig::options::workspace_root;
use mooring_rig::{image, packages};
use serde_json::Value;

const REQUIREMENTS: &str = include_str!("../clients/requirements.txt");
const SCRIPT: &str = "tests/clients/cinder_attach.py";

/// Scripts of tests; each reports the result of each test.
const SCRIPTS: [&str; 4] = ["cinder.py", "nova.py", "sdk.py", "osc.py"];

/// The environment's folder; another list of clients has another one.
fn folder() -> PathBuf {
    image::cache_dir(&workspace_root()).join(format!("clients-{}", image::key_of(&[REQUIREMENTS])))
}

/// The environment's Python; `None` until the environment is complete.
fn made() -> Option<PathBuf> {
    let (python, done) = (folder().join("bin/python"), folder().join("requirements.txt"));
    let whole = std::fs::read_to_string(done).is_ok_and(|text| text == REQUIREMENTS) && python.exists();
    whole.then_some(python)
}

/// Returns `true` if the environment exists.
pub fn is_warm() -> bool {
    made().is_some()
}

/// The environment's Python; makes the environment if it is missing.
fn python() -> Result<PathBuf> {
    if let Some(python) = made() {
        return Ok(python);
    }
    ensure_venv()?;
    let folder = folder();
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let lock =
        std::fs::File::create(folder.with_extension("lock")).context("open the lock of the clients")?;
    lock.lock().context("wait for the lock of the clients")?;
    // Another process may have made it meanwhile.
    if let Some(python) = made() {
        return Ok(python);
    }
    // The remains of a broken run are not trusted.
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).context("make a Python environment")?;
    let list = workspace_root().join("tests/clients/requirements.txt");
    let python = folder.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]).arg(list);
    run(&mut pip).context("install the clients of the Block Storage API from PyPI")?;
    let done = folder.join("requirements.txt");
    std::fs::write(&done, REQUIREMENTS).with_context(|| format!("write {}", done.display()))?;
    Ok(python)
}

/// Checks that Python has `venv`; for root, Debian's package is installed.
pub fn ensure_venv() -> Result<()> {
    packages::install("Python's venv", || {
        let probe = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
        let works = probe.is_ok_and(|output| output.status.success());
        if works { Vec::new() } else { vec!["python3-venv"] }
    })
}

fn run(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("start {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A python-cinderclient for one controller.
pub struct Cinder {
    python: PathBuf,
    url: String,
    token: String,
}

impl Cinder {
    /// Makes a client of the controller at this URL.
    pub fn new(url: &str, token: &str) -> Result<Self> {
        Ok(Self { python: python()?, url: url.to_owned(), token: token.to_owned() })
    }

    /// Makes one call in the script's own words, and returns its answer.
    pub fn call(&self, words: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.python);
        command.arg(workspace_root().join(SCRIPT)).arg(&self.url).arg(&self.token).args(words);
        let out = run(&mut command).context("python-cinderclient")?;
        serde_json::from_str(out.trim()).with_context(|| format!("python-cinderclient printed {out}"))
    }
}

/// Results of the scripts' tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed, as the script named them.
    pub failures: Vec<String>,
    /// Tests that need something that does not exist yet.
    pub skipped: usize,
}

impl Tally {
    /// Counts one line of a script.
    fn take(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("ok", _)) => self.passed += 1,
            Some(("FAILED", what)) => self.failures.push(what.to_owned()),
            Some(("skipped", _)) => self.skipped += 1,
            _ => {}
        }
    }
}

/// A control plane with fake hosts, while this lives.
struct Fleet {
    process: Child,
    // Standard input of the process; closing it ends the process.
    input: Option<ChildStdin>,
    /// Address and credentials.
    how: Value,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.input = None;
        // A process that has already ended has printed the reason.
        let _ = self.process.wait();
    }
}

impl Fleet {
    fn start(program: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("the fleet's output")?;
        let mut fleet = Self { process, input, how: Value::Null };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("read how the fleet is reached")?;
        fleet.how = serde_json::from_str(&line).context("the fleet did not start")?;
        Ok(fleet)
    }
}

/// Runs the scripts of all clients against `mooring-fleet-serve`, and passes their output on.
pub fn run_all(serve: &Path) -> Result<Tally> {
    let python = python()?;
    let (tokens, noauth) = (Fleet::start(serve, &["--thin", "2"])?, Fleet::start(serve, &["--no-auth"])?);
    let fleets = serde_json::json!({ "tokens": tokens.how, "noauth": noauth.how }).to_string();
    let mut all = Tally::default();
    for script in SCRIPTS {
        let mut command = Command::new(&python);
        command.arg(workspace_root().join("tests/clients").join(script)).env("MOORING_FLEETS", &fleets);
        // Keep Python from leaving compiled modules beside the script.
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {script}"))?;
        let mut own = Tally::default();
        let output = process.stdout.take().context("a script's output")?;
        for line in BufReader::new(output).lines() {
            let line = line.with_context(|| format!("read what {script} says"))?;
            println!("{line}");
            own.take(&line);
        }
        let status = process.wait().with_context(|| format!("wait for {script}"))?;
        ensure!(
            own.passed > 0 && (status.success() || !own.failures.is_empty()),
            "{script} ended with {status}: see above"
        );
        all.passed += own.passed;
        all.failures.extend(own.failures);
        all.skipped += own.skipped;
    }
    Ok(all)
}

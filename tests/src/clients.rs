//! Clients that we did not write: python-cinderclient, from PyPI, in an environment of its own below `target/`.
//!
//! What must never happen here: a version that depends on the day (all are pinned); anything installed outside of `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use mooring_rig::options::workspace_root;
use serde_json::Value;

const REQUIREMENTS: &str = include_str!("../clients/requirements.txt");
const SCRIPT: &str = "tests/clients/cinder_attach.py";

/// The environment's Python, made first if it is not there. As root, Debian's `python3-venv` is installed where it is missing.
fn python() -> Result<PathBuf> {
    let folder = workspace_root().join("target/clients");
    let (python, done) = (folder.join("bin/python"), folder.join("requirements.txt"));
    if std::fs::read_to_string(&done).is_ok_and(|text| text == REQUIREMENTS) && python.exists() {
        return Ok(python);
    }
    ensure_venv()?;
    // What a broken run has left is not trusted.
    let _ = std::fs::remove_dir_all(&folder);
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).context("make a Python environment")?;
    let list = workspace_root().join("tests/clients/requirements.txt");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]).arg(list);
    run(&mut pip).context("install the clients of the Block Storage API from PyPI")?;
    std::fs::write(&done, REQUIREMENTS).with_context(|| format!("write {}", done.display()))?;
    Ok(python)
}

fn ensure_venv() -> Result<()> {
    let works = || {
        let probe = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
        probe.is_ok_and(|output| output.status.success())
    };
    if works() {
        return Ok(());
    }
    let hint = "run: sudo apt-get install -y --no-install-recommends python3-venv";
    if !nix::unistd::geteuid().is_root() || !Path::new("/usr/bin/apt-get").exists() {
        bail!("the tests need Python's venv: {hint}");
    }
    eprintln!("installing python3-venv");
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends", "python3-venv"]);
    if run(install.env("DEBIAN_FRONTEND", "noninteractive")).is_err() {
        // The lists of a fresh machine may be missing or old.
        run(Command::new("apt-get").arg("update")).context("update the package lists")?;
        run(install.env("DEBIAN_FRONTEND", "noninteractive")).context("install python3-venv")?;
    }
    if works() { Ok(()) } else { bail!("python3-venv is installed and Python's venv does not work; {hint}") }
}

fn run(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("start {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// python-cinderclient against one controller.
pub struct Cinder {
    python: PathBuf,
    url: String,
    token: String,
}

impl Cinder {
    /// A client of the controller at this URL.
    pub fn new(url: &str, token: &str) -> Result<Self> {
        Ok(Self { python: python()?, url: url.to_owned(), token: token.to_owned() })
    }

    /// One call (see the script's own words), and its answer.
    pub fn call(&self, words: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.python);
        command.arg(workspace_root().join(SCRIPT)).arg(&self.url).arg(&self.token).args(words);
        let out = run(&mut command).context("python-cinderclient")?;
        serde_json::from_str(out.trim()).with_context(|| format!("python-cinderclient printed {out}"))
    }
}

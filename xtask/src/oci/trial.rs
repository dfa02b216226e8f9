//! Tests the image with runc: with a read-only root, a network of its own, and two volumes.
//!
//! What must never happen here: a container that is left behind.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{USER, VOLUMES, ensure, tag};
use crate::package::said;

/// The controller's address inside the container.
const CONTROLLER: &str = "https://127.0.0.1:8776";

/// Time limit for a start and for a stop.
const LIMIT: Duration = Duration::from_mins(1);

/// Runs the image in this archive, and calls it with `mooring`.
pub(crate) fn test(archive: &Path, mooring: &Path, work: &Path) -> Result<()> {
    ensure(&["umoci", "runc"])?;
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("container-").tempdir_in(work);
    let folder = folder.with_context(|| format!("make a folder in {}", work.display()))?;
    let trial = Trial::new(archive, mooring, folder.path())?;
    trial.labels()?;
    trial.unconfigured()?;
    trial.works()?;
    trial.read_only()?;
    println!(
        "ok: the image is configured by init, serves over TLS, stops at once and keeps its data ({:.1} s)",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

struct Trial<'a> {
    mooring: &'a Path,
    bundle: PathBuf,
    /// Folders that serve as the volumes, in the order of [`VOLUMES`].
    volumes: [PathBuf; 2],
    image: String,
    name: String,
}

/// A container that serves; dropping this ends it.
struct Serving<'a> {
    trial: &'a Trial<'a>,
    runc: Child,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        // A container that has ended cannot be killed.
        let _ = runc(&["delete", "--force", &self.trial.name]).output();
        let _ = self.runc.wait();
    }
}

fn runc(words: &[&str]) -> Command {
    let mut runc = Command::new("runc");
    runc.args(words).stdin(Stdio::null());
    runc
}

impl<'a> Trial<'a> {
    fn new(archive: &Path, mooring: &'a Path, folder: &Path) -> Result<Self> {
        let layout = folder.join("layout");
        fs::create_dir(&layout).with_context(|| format!("make {}", layout.display()))?;
        said(Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(archive))?;
        let index = read_json(&layout.join("index.json"))?;
        let tag = &index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"];
        let image = format!("{}:{}", layout.display(), tag.as_str().context("the image has no tag")?);
        let bundle = folder.join("bundle");
        said(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle))?;
        let volumes = [folder.join("configuration"), folder.join("data")];
        for volume in &volumes {
            fs::create_dir(volume).with_context(|| format!("make {}", volume.display()))?;
            chown(volume, Some(USER), Some(USER))
                .with_context(|| format!("give {} away", volume.display()))?;
        }
        let name = format!("mooring-image-{}", std::process::id());
        Ok(Self { mooring, bundle, volumes, image, name })
    }

    /// Checks that the image has its labels, user and stop signal.
    fn labels(&self) -> Result<()> {
        let config = read_json(&self.bundle.join("config.json"))?;
        let labels = &config["annotations"];
        let version = labels["org.opencontainers.image.version"].as_str().unwrap_or_default();
        let right = labels["org.opencontainers.image.licenses"] == "Apache-2.0"
            && self.image.ends_with(&tag(version))
            && labels["org.opencontainers.image.stopSignal"] == "SIGTERM"
            && config["process"]["user"]["uid"] == USER;
        if version.is_empty() || !right {
            bail!("labels, signal or user of the image are wrong: {config}");
        }
        Ok(())
    }

    /// Makes the runc command for the controller with these words; `read_only`: the second volume
    /// is read-only.
    fn run(&self, words: &[&str], read_only: bool) -> Result<Command> {
        let path = self.bundle.join("config.json");
        let mut config = read_json(&path)?;
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] =
            json!(["/usr/bin/mooring-controller"].iter().chain(words).collect::<Vec<_>>());
        config["root"]["readonly"] = json!(true);
        let mounts = config["mounts"].as_array_mut().context("the bundle has no mounts")?;
        mounts.retain(|mount| !VOLUMES.iter().any(|volume| mount["destination"] == *volume));
        for (volume, source) in VOLUMES.iter().zip(&self.volumes) {
            let how = if read_only && *volume == VOLUMES[1] { "ro" } else { "rw" };
            mounts.push(
                json!({"destination": volume, "type": "bind", "source": source, "options": ["rbind", how]}),
            );
        }
        let text = serde_json::to_string(&config).context("describe the container")?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        let bundle = self.bundle.to_str().context("a folder whose name is text")?;
        Ok(runc(&["run", "--bundle", bundle, &self.name]))
    }

    /// Checks that the controller ends by itself with an error that contains these words.
    fn refuses(&self, read_only: bool, words: &[&str]) -> Result<()> {
        let out = self.run(&[], read_only)?.output().context("start runc")?;
        let text = String::from_utf8_lossy(&out.stderr);
        if out.status.success() || !words.iter().all(|word| text.contains(word)) {
            bail!("it should end with an error that says {words:?}: {} {text}", out.status);
        }
        println!("ok: refused: {}", text.trim());
        Ok(())
    }

    fn unconfigured(&self) -> Result<()> {
        self.refuses(false, &["/etc/mooring/controller.toml", "`mooring-controller init` makes it"])
    }

    fn read_only(&self) -> Result<()> {
        self.refuses(true, &[VOLUMES[1]])
    }

    /// Checks that a configured controller answers, stops and starts again.
    fn works(&self) -> Result<()> {
        let printed =
            said(&mut self.run(&["init", "--name", "127.0.0.1"], false)?).context("init in the image")?;
        let token = printed.lines().find_map(|line| line.split_once("the admin's token, shown this once: "));
        let (_, token) = token.with_context(|| format!("init printed no token: {printed}"))?;
        let key = self.volumes[0].join("authority.key");
        let meta = fs::metadata(&key).with_context(|| format!("look at {}", key.display()))?;
        if (meta.uid(), meta.mode() & 0o777) != (USER, 0o600) {
            bail!("the authority's key has owner {} and mode {:o}", meta.uid(), meta.mode() & 0o777);
        }
        let serving = self.serve()?;
        serving.asked(token, &["type", "create", "kept", "--multiattach"])?;
        if serving.asked("wrong", &["type", "list"]).is_ok() {
            bail!("a wrong token was let in");
        }
        serving.stop()?;
        let serving = self.serve()?;
        let types = serving.asked(token, &["type", "list"])?;
        if !types.contains("\"kept\"") {
            bail!("a restart has lost the type: {types}");
        }
        serving.stop()
    }

    fn serve(&self) -> Result<Serving<'_>> {
        let mut run = self.run(&[], false)?;
        let runc = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start runc")?;
        let mut serving = Serving { trial: self, runc };
        let began = Instant::now();
        loop {
            if let Some(status) = serving.runc.try_wait().context("look at runc")? {
                bail!("the container has ended: {status}");
            }
            // A 401 is an answer, too.
            match serving.mooring("none", &["type", "list"]) {
                Ok(out) if out.status.code() != Some(6) => return Ok(serving),
                _ if began.elapsed() > LIMIT => {
                    bail!("the controller has not answered for {} s", LIMIT.as_secs())
                }
                _ => thread::sleep(Duration::from_millis(200)),
            }
        }
    }
}

impl Serving<'_> {
    /// Runs `mooring` in the container's network.
    fn mooring(&self, token: &str, words: &[&str]) -> Result<std::process::Output> {
        let state = said(&mut runc(&["state", &self.trial.name]))?;
        let state: Value = serde_json::from_str(&state).context("what runc says of the container")?;
        let pid = state["pid"].as_u64().context("the container has no process")?;
        let mut enter = Command::new("nsenter");
        enter.args(["--net", "--target", &pid.to_string()]).arg(self.trial.mooring);
        enter.arg("--json").args(words).env("MOORING_TOKEN", token).env("MOORING_CONTROLLER", CONTROLLER);
        enter.env("MOORING_CA", self.trial.volumes[0].join("authority.crt")).stdin(Stdio::null());
        enter.output().context("run mooring in the container's network")
    }

    fn asked(&self, token: &str, words: &[&str]) -> Result<String> {
        let out = self.mooring(token, words)?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            bail!("mooring {words:?}: {} {text} {}", out.status, String::from_utf8_lossy(&out.stderr));
        }
        Ok(text)
    }

    /// Sends the image's stop signal.
    fn stop(mut self) -> Result<()> {
        said(&mut runc(&["kill", &self.trial.name, "TERM"])).context("stop the container")?;
        let began = Instant::now();
        let status = loop {
            match self.runc.try_wait().context("look at runc")? {
                Some(status) => break status,
                None if began.elapsed() > LIMIT => bail!("it has not stopped for {} s", LIMIT.as_secs()),
                None => thread::sleep(Duration::from_millis(50)),
            }
        };
        if !status.success() {
            bail!("stopped, it ended with {status}");
        }
        println!("ok: stopped by SIGTERM in {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("understand {}", path.display()))
}

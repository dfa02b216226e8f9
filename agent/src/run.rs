//! One life of an agent, from its state folder's lock to the last answer: everything that the
//! program does between its command line and its end, on the kernel or on a fake of it.
//!
//! What must never happen here: two agents on one state folder; anything torn down because this
//! ends.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_api::v1::HealthLevel;
use mooring_connectors::Parts;
use mooring_host::{Front, Uevents, remains_of};
use mooring_systemd::{folder, notify};
use tokio::sync::watch;

use crate::clock;
use crate::config::Config;
use crate::connection::Connections;
use crate::engine::Engine;
use crate::machine::Machine;
use crate::rpc::listen;
use crate::standing::Standing;
use crate::store::{self, Store, StoreError};

/// Parts that attach volumes on a host.
pub struct HostParts {
    /// The machine, as the connectors see it.
    pub parts: Parts,
    /// Opens the stream of uevents when it is read. Without a stream, disks are searched each
    /// second.
    pub uevents: OpenUevents,
}

/// Opens the stream of uevents.
pub type OpenUevents = Box<dyn FnOnce() -> Option<Box<dyn Uevents>> + Send>;

/// Time that a killed agent has to be gone: its work in the kernel takes milliseconds, or hangs.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Makes the state folder if it is missing, and locks it until the returned [`Front`] is dropped.
///
/// Returns with it the id of the process that held the lock last; `None` if there was none.
pub(crate) fn lock_state(folder: &Path) -> Result<(Front, Option<u32>)> {
    if let Some(mount) = store::read_only(folder) {
        let (folder, mount) = (folder.display(), mount.display());
        bail!(
            "the state folder {folder} cannot be written to: the file system at {mount} is read-only. Nothing was touched, and what is \
             exported and attached goes on. If the kernel has made it so, its log says why: mend that first; then `mount -o remount,rw \
             {mount}`, and start the agent again"
        );
    }
    // The store holds secrets: nobody else may read its folder.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("make the state folder {}", folder.display()))?;
    let front = Front::new()?;
    let locked = front.lock(&folder.join("agent.lock"));
    let before = locked.context("only one agent may work on a state folder")?;
    Ok((front, before))
}

/// Opens the store of this configuration. The caller holds its folder's lock.
pub(crate) fn open_store(config: &Config) -> Result<Store, StoreError> {
    Store::open_with(&config.state_dir, &config.sealing_keys())
}

/// Waits until the agent before this one is gone, or has only threads left that hang in the kernel.
/// These end the calls that they are in and do nothing else, so they are left alone.
async fn outlive(before: Option<u32>, folder: &Path) -> Result<()> {
    let Some(pid) = before else { return Ok(()) };
    let begun = clock::std_instant();
    let left = loop {
        let left = remains_of(pid);
        if left.threads.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > GONE_WITHIN {
            break left;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tracing::warn!(
        pid,
        threads = left.threads.join(" "),
        dying = left.dying,
        "the agent before this one has ended, but for these threads, which wait in the kernel"
    );
    // Freed only if no thread will run again. An agent that ends by itself may still work on its
    // store, and releases it.
    if left.dying && store::free(folder, pid)? {
        tracing::warn!(pid, "it was killed while it worked on its store: its locks are released");
    }
    Ok(())
}

/// Removes the files that a killed replacement of a key has left. They contain keys.
fn sweep(config: &Config) {
    let keys = config.sealing_keys();
    let own = config.state_dir.join("agent.lock");
    let tls = config.tls.iter().flat_map(|tls| [&tls.cert, &tls.key, &tls.client_ca]);
    let files = tls.map(PathBuf::as_path).chain([keys.path(), &own]);
    folder::sweep_beside(files, |path, swept| match swept {
        Ok(()) => {
            tracing::info!(file = %path.display(), "removed: it was being written when its writer was killed");
        }
        Err(error) => {
            tracing::warn!(folder = %path.display(), %error, "cannot look for unfinished files");
        }
    });
}

/// Serves until `stop` is true. Calls `ready` once, when every stored spec has been compared with a
/// view, and requests are about to be answered.
pub async fn run(
    config: Config,
    machine: Machine,
    host: Option<HostParts>,
    ready: impl FnOnce(&Engine) -> Result<()>,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let folder = config.state_dir.clone();
    let (front, before) = lock_state(&folder)?;
    outlive(before, &folder).await?;
    sweep(&config);
    let store = open_store(&config)?;
    let bound = listen::bind(&front, &config)?;
    let engine = Engine::new(config, machine, store)?;
    let connections = match host {
        Some(host) => Some((Connections::new(engine.clone(), host.parts)?, host.uevents)),
        None => None,
    };
    let shown = (engine.clone(), connections.as_ref().map(|(connections, _)| connections.clone()));
    let telling = notify::spawn_status(notify::STATUS_EVERY, move || {
        Standing::of(&shown.0, shown.1.as_ref()).to_string()
    });
    engine.start().await;
    let connections = connections.map(|(connections, uevents)| {
        connections.start(uevents());
        connections
    });
    ready(&engine)?;
    let served = listen::serve_with(&engine, connections.as_ref(), bound, stop).await;
    // Running passes may go on for a moment; the machine's settings are restored.
    engine.end_bulk();
    if let Some(telling) = telling {
        telling.abort();
    }
    drop(front);
    served
}

impl Standing {
    /// Returns what the agent does now, from memory.
    pub fn of(engine: &Engine, connections: Option<&Connections>) -> Self {
        let mut standing = Self::default();
        engine.count_standing(&mut standing);
        if let Some(connections) = connections {
            connections.count_standing(&mut standing);
        }
        let reasons = engine.health().map(|health| health.reasons).unwrap_or_default();
        standing.problems += reasons.iter().filter(|reason| reason.level() != HealthLevel::Ok).count();
        standing
    }
}

//! One life of an agent, from its state folder's lock to the last answer: what the program does between its command line
//! and its end, on the kernel or on a fake of it.
//!
//! What must never happen here: two agents on one state folder; anything torn down because this ends.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mooring_connectors::Parts;
use mooring_host::{LockFile, Uevents};
use tokio::sync::watch;

use crate::config::Config;
use crate::connections::Connections;
use crate::engine::Engine;
use crate::listen;
use crate::machine::Machine;
use crate::metrics;
use crate::store::{self, Store};

/// What a host attaches volumes with.
pub struct HostParts {
    /// The machine, as the connectors see it.
    pub parts: Parts,
    /// Opens the stream of uevents when it is read. Without one, disks are found by looking, each second.
    pub uevents: OpenUevents,
}

/// Opens the stream of uevents.
pub type OpenUevents = Box<dyn FnOnce() -> Option<Box<dyn Uevents>> + Send>;

/// Makes the state folder if it is not there, and locks it until the answer is dropped.
pub(crate) fn lock_state(folder: &Path) -> Result<LockFile> {
    if let Some(mount) = store::read_only(folder) {
        let (folder, mount) = (folder.display(), mount.display());
        bail!(
            "the state folder {folder} cannot be written to: the file system at {mount} is read-only. Nothing was touched, and what is \
             exported and attached goes on. If the kernel has made it so, its log says why: mend that first; then `mount -o remount,rw \
             {mount}`, and start the agent again"
        );
    }
    // The store holds secrets: nobody else looks into its folder.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("make the state folder {}", folder.display()))?;
    LockFile::acquire(folder.join("agent.lock")).context(
        "only one agent may work on a state folder, and one that was killed does until its last call in the kernel has returned",
    )
}

/// Serves until `stop` is true. `ready` is called once, when everything that was wished before has been looked at and
/// requests are about to be answered.
pub async fn run(
    config: Config,
    machine: Machine,
    host: Option<HostParts>,
    ready: impl FnOnce(&Engine) -> Result<()>,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let folder = config.state_dir.clone();
    let _only_one = lock_state(&folder)?;
    let store = Store::open(&folder)?;
    let bound = listen::bind(&config).await?;
    let for_metrics = mooring_systemd::metrics::bind(&config.metrics).await?;
    let engine = Engine::new(config, machine, store)?;
    let connections = match host {
        Some(host) => Some((Connections::new(engine.clone(), host.parts)?, host.uevents)),
        None => None,
    };
    engine.start().await;
    let connections = connections.map(|(connections, uevents)| {
        connections.start(uevents());
        connections
    });
    ready(&engine)?;
    if !for_metrics.is_empty() {
        tokio::spawn(metrics::serve(engine.clone(), connections.clone(), for_metrics, stop.clone()));
    }
    let served = listen::serve_with(&engine, connections.as_ref(), bound, stop).await;
    // Passes that are at work may go on for a moment; the machine is left as it was found.
    engine.end_bulk();
    served
}

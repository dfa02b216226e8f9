//! The machine that an agent works on: the kernel, or a fake of it.

#[cfg(feature = "faults")]
mod faults;

use std::sync::{Arc, Mutex, PoisonError};

use mooring_host::{
    BlockDevices, Callers, Clock, Commands, Folders, HostCommands, ImageServers, KernelBlocks, KernelCallers,
    KernelFolders, KernelTree, LocalAddress, LocalAddresses, PrSessions, QemuServers, SystemClock, Tree,
};

/// Lists the addresses of this machine. Asked often: it costs little while nothing changes.
pub type Addresses = dyn Fn() -> Vec<LocalAddress> + Send + Sync;

/// Everything outside of the process that the agent touches.
#[derive(Clone)]
pub struct Machine {
    /// LIO's configfs tree.
    pub target: Arc<dyn Tree>,
    /// Watches folders of LIO's tree. `None`: exports are looked at by every resync.
    pub folders: Option<Arc<dyn Folders>>,
    /// Who connects to the portals. `None`: logins are seen when their volume has its turn.
    pub callers: Option<Arc<dyn Callers>>,
    /// `/sys`.
    pub sys: Arc<dyn Tree>,
    /// Commands of the system (`lvm`).
    pub commands: Arc<dyn Commands>,
    /// Block devices.
    pub blocks: Arc<dyn BlockDevices>,
    /// Programs that read images.
    pub images: Arc<dyn ImageServers>,
    /// Sessions of its own with its targets.
    pub pr: Arc<dyn PrSessions>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// This machine's addresses.
    pub addresses: Arc<Addresses>,
    /// Where folders that the kernel names by absolute path (`dbroot`) are made: `/`, or a test's folder.
    pub root: std::path::PathBuf,
}

impl Machine {
    /// The machine that this process runs on, with LIO's tree at `configfs`.
    pub fn real(configfs: &std::path::Path) -> Self {
        let machine = Self {
            target: Arc::new(KernelTree::new(configfs)),
            folders: watched(configfs),
            callers: Some(Arc::new(KernelCallers::default())),
            sys: Arc::new(KernelTree::new("/sys")),
            commands: Arc::new(HostCommands),
            blocks: Arc::new(KernelBlocks),
            images: Arc::new(QemuServers),
            pr: Arc::new(mooring_connectors::DirectSessions),
            clock: Arc::new(SystemClock),
            addresses: Arc::new(followed()),
            root: "/".into(),
        };
        #[cfg(feature = "faults")]
        let machine = faults::with_points(machine);
        machine
    }
}

/// Watches the folders of LIO's tree at `configfs`, where that can be done.
fn watched(configfs: &std::path::Path) -> Option<Arc<dyn Folders>> {
    match KernelFolders::new(configfs) {
        Ok(folders) => Some(Arc::new(folders)),
        Err(errno) => {
            tracing::warn!(%errno, "cannot watch LIO's folders: exports are looked at by every resync");
            None
        }
    }
}

/// The addresses of this machine, by rtnetlink. Where they cannot be listed, they are as they were: nobody loses an address by
/// an error.
fn followed() -> impl Fn() -> Vec<LocalAddress> {
    let follower = Mutex::new((LocalAddresses::default(), Vec::new()));
    move || {
        let mut guard = follower.lock().unwrap_or_else(PoisonError::into_inner);
        let (addresses, last) = &mut *guard;
        match addresses.now() {
            Ok(now) => now.clone_into(last),
            Err(errno) => tracing::warn!(%errno, "cannot list the addresses of this host"),
        }
        last.clone()
    }
}

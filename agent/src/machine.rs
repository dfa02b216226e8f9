//! The machine that an agent works on: the kernel, or a fake of it.

#[cfg(feature = "faults")]
mod faults;

use std::path::PathBuf;
use std::sync::Arc;

use mooring_bus::Bus;
use mooring_host::{
    BlockDevices, Callers, Clock, Commands, Folders, HostCommands, ImageServers, KernelBlocks, KernelCallers,
    KernelFolders, KernelTree, LocalAddress, PrSessions, QemuServers, SystemClock, Tree,
};
use tokio::sync::Notify;

use crate::links::Links;

/// Lists the addresses of this machine. Called often: it costs little while nothing changes.
pub type Addresses = dyn Fn() -> Vec<LocalAddress> + Send + Sync;

/// Everything outside of the process that the agent touches.
#[derive(Clone)]
pub struct Machine {
    /// LIO's configfs tree.
    pub target: Arc<dyn Tree>,
    /// Watches folders of LIO's tree. `None`: every resync views the exports.
    pub folders: Option<Arc<dyn Folders>>,
    /// Source of the portals' connections. `None`: a login is seen when the volume has its turn.
    pub callers: Option<Arc<dyn Callers>>,
    /// `/sys`.
    pub sys: Arc<dyn Tree>,
    /// Commands of the system (`lvm`).
    pub commands: Arc<dyn Commands>,
    /// Block devices.
    pub blocks: Arc<dyn BlockDevices>,
    /// Programs that read images.
    pub images: Arc<dyn ImageServers>,
    /// Sessions of this machine with its own targets.
    pub pr: Arc<dyn PrSessions>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Addresses of this machine.
    pub addresses: Arc<Addresses>,
    /// Notified when addresses or their links may have changed. They are read each second without
    /// it, too.
    pub addresses_changed: Arc<Notify>,
    /// Connection to systemd and logind. `None`: neither is asked.
    pub bus: Option<Bus>,
    /// Folder below which paths that the kernel names absolutely (`dbroot`) are made: `/`, or a
    /// test's folder.
    pub root: std::path::PathBuf,
}

impl Machine {
    /// Returns the machine that this process runs on, with LIO's tree at `configfs`. Inside of a
    /// runtime its addresses are followed; outside of one they are listed at each question.
    pub fn real(configfs: &std::path::Path) -> Self {
        let links = Arc::<Links>::default();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(Arc::clone(&links).follow()));
        }
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
            addresses_changed: links.changed(),
            bus: Some(Bus::system()),
            addresses: Arc::new(move || links.now()),
            root: "/".into(),
        };
        #[cfg(feature = "faults")]
        let machine = faults::with_points(machine);
        machine
    }

    /// The folder of the kernel's files of persistent reservations, as this process sees it.
    pub(crate) fn reservations_folder(&self) -> Result<PathBuf, mooring_targets::Error> {
        let folder = mooring_targets::pr_folder(&*self.target)?;
        Ok(self.root.join(folder.strip_prefix("/").unwrap_or(&folder)))
    }
}

/// Watches the folders of LIO's tree at `configfs`. `None` if that is not possible.
fn watched(configfs: &std::path::Path) -> Option<Arc<dyn Folders>> {
    match KernelFolders::new(configfs) {
        Ok(folders) => Some(Arc::new(folders)),
        Err(errno) => {
            tracing::warn!(%errno, "cannot watch LIO's folders: exports are looked at by every resync");
            None
        }
    }
}

//! The machine that an agent works on: the kernel, or a fake of it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use mooring_host::{
    BlockDevices, Clock, Commands, HostCommands, KernelBlocks, KernelTree, SystemClock, Tree,
};

/// Lists the IPv4 addresses of this machine.
pub type Addresses = dyn Fn() -> Vec<Ipv4Addr> + Send + Sync;

/// Everything outside of the process that the agent touches.
#[derive(Clone)]
pub struct Machine {
    /// LIO's configfs tree.
    pub target: Arc<dyn Tree>,
    /// `/sys`.
    pub sys: Arc<dyn Tree>,
    /// Commands of the system (`lvm`).
    pub commands: Arc<dyn Commands>,
    /// Block devices.
    pub blocks: Arc<dyn BlockDevices>,
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
        Self {
            target: Arc::new(KernelTree::new(configfs)),
            sys: Arc::new(KernelTree::new("/sys")),
            commands: Arc::new(HostCommands),
            blocks: Arc::new(KernelBlocks),
            clock: Arc::new(SystemClock),
            addresses: Arc::new(|| {
                mooring_host::local_addresses().unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot list the addresses of this host");
                    Vec::new()
                })
            }),
            root: "/".into(),
        }
    }
}

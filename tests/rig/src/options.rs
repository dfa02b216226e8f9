//! Options of a rig: its VMs and its kernel.
//!
//! What must never happen here: addresses that depend on anything but the order of the VMs;
//! scenarios write them down.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// One gibibyte.
const GIB: u64 = 1 << 30;

/// Number of networks: `eth0` and `eth1` of every VM.
pub const NETWORKS: usize = 2;

/// The kernel that the VMs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kernel {
    /// The generic kernel of the Debian release that the guest is made from.
    #[default]
    Stable,
    /// The newest kernel that Debian offers for that release.
    Backports,
    /// The release's kernel for clouds: without Fibre Channel, FCoE and DLM, and most drivers.
    Cloud,
    /// The generic kernel of the Debian release after that one, on a root of its own release: for
    /// what depends on systemd, LVM and the C library.
    Next,
}

impl Kernel {
    /// The kernels of the usual root. [`Kernel::Next`] has another one.
    pub const ALL: [Self; 3] = [Self::Stable, Self::Backports, Self::Cloud];

    /// The kernel's name in messages and folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
            Self::Cloud => "cloud",
            Self::Next => "next",
        }
    }

    /// The Debian release of the root that the kernel runs.
    pub(crate) fn release(self) -> &'static str {
        match self {
            Self::Stable | Self::Backports | Self::Cloud => "bookworm",
            Self::Next => "trixie",
        }
    }
}

/// The specification of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSpec {
    /// The VM's name, which is also its host name.
    pub name: String,
    /// Memory; about a third of it is taken by the kernel and by files written to the root.
    pub memory_mib: u32,
    /// Number of processors.
    pub cpus: u8,
    /// Sizes of the data disks: `/dev/vdc`, `/dev/vdd`, and so on.
    pub disks: Vec<u64>,
    /// TCP ports that this machine's loopback reaches ([`Vm::forwarded`](crate::Vm::forwarded)).
    /// With any, the VM has a third interface, which leads nowhere else.
    pub forward: Vec<u16>,
    /// `true`: Debian's own first process runs the VM, with its udev and the packages' daemons.
    /// `false`: only what a scenario starts runs there.
    pub systemd: bool,
    /// `true`: a power cut takes unflushed writes from the data disks, as from a disk with a cache
    /// of its own. Slower. `false`: every write stays, flushed or not.
    pub volatile: bool,
}

impl VmSpec {
    /// The storage node: data disks of 16 and 4 GiB, sparse files on this machine.
    pub fn storage() -> Self {
        Self {
            name: "storage".to_owned(),
            memory_mib: 1024,
            cpus: 1,
            disks: vec![16 * GIB, 4 * GIB],
            forward: Vec::new(),
            systemd: false,
            volatile: false,
        }
    }

    /// The host with this number, counted from 1: no data disks.
    pub fn host(number: usize) -> Self {
        Self {
            name: format!("host{number}"),
            memory_mib: 640,
            cpus: 1,
            disks: Vec::new(),
            forward: Vec::new(),
            systemd: false,
            volatile: false,
        }
    }
}

/// The specification of a rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RigOptions {
    /// The rig's name, for people and for its run folder.
    pub name: String,
    /// The VMs, in the order of their addresses.
    pub vms: Vec<VmSpec>,
    /// The kernel of all VMs.
    pub kernel: Kernel,
    /// The root of the workspace: run folders are in its `target/rig`.
    pub root_dir: PathBuf,
    /// An image of programs ([`crate::image::programs`]), which each VM mounts at
    /// [`crate::PROGRAMS_DIR`].
    pub programs: Option<PathBuf>,
    /// Debian packages in the VMs beside the usual ones. With any, the root is an image of its own,
    /// and the usual one stays as it is.
    pub packages: &'static [&'static str],
}

impl RigOptions {
    /// Makes one storage node and this many hosts, on the stable kernel.
    pub fn standard(hosts: usize) -> Self {
        let vms = std::iter::once(VmSpec::storage()).chain((1..=hosts).map(VmSpec::host)).collect();
        Self {
            name: "rig".to_owned(),
            vms,
            kernel: Kernel::Stable,
            root_dir: workspace_root(),
            programs: None,
            packages: &[],
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Makes a TCP port of the first VM reachable from this machine's loopback.
    #[must_use]
    pub fn forward(mut self, port: u16) -> Self {
        if let Some(first) = self.vms.first_mut() {
            first.forward.push(port);
        }
        self
    }

    /// Makes the first VM's data disks lose unflushed writes at a power cut.
    #[must_use]
    pub fn volatile(mut self) -> Self {
        if let Some(first) = self.vms.first_mut() {
            first.volatile = true;
        }
        self
    }

    /// Sets the Debian packages beside the usual ones.
    #[must_use]
    pub fn packages(mut self, packages: &'static [&'static str]) -> Self {
        self.packages = packages;
        self
    }

    /// Sets the kernel.
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self
    }
}

/// The root of the workspace that this crate was built from.
pub fn workspace_root() -> PathBuf {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_dir.parent().and_then(std::path::Path::parent).map_or(crate_dir.clone(), PathBuf::from)
}

/// The address of the VM with this index on this network: 10.10.0.10 is the first VM on the first
/// network.
pub fn address(index: usize, network: usize) -> IpAddr {
    let net = if network == 0 { 10 } else { 20 };
    let host = u8::try_from(10 + index).unwrap_or(u8::MAX);
    IpAddr::V4(Ipv4Addr::new(10, net, 0, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_rig_is_a_storage_node_and_hosts() {
        let options = RigOptions::standard(2);
        let names: Vec<_> = options.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["storage", "host1", "host2"]);
        assert_eq!(options.vms[0].disks, [16 * GIB, 4 * GIB]);
        assert!(options.vms[1].disks.is_empty());
        assert!(options.root_dir.join("Cargo.toml").exists());
    }

    #[test]
    fn addresses_follow_from_the_order() {
        assert_eq!(address(0, 0).to_string(), "10.10.0.10");
        assert_eq!(address(2, 1).to_string(), "10.20.0.12");
    }
}

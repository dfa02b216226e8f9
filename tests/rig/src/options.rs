//! What a rig is made of: its VMs and its kernel.
//!
//! What must never happen: addresses that depend on anything but the order of the VMs; scenarios write them down.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// One gibibyte.
const GIB: u64 = 1 << 30;

/// How many networks there are: `eth0` and `eth1` of every VM.
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
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Stable, Self::Backports, Self::Cloud];

    /// Its name in messages and folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
            Self::Cloud => "cloud",
        }
    }
}

/// One VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSpec {
    /// Its name, which is its host name.
    pub name: String,
    /// Its memory; a third of it or so is taken by the kernel and what is written to the root.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u8,
    /// The sizes of its data disks: `/dev/vdc`, `/dev/vdd`, and so on.
    pub disks: Vec<u64>,
    /// TCP ports that this machine's loopback reaches ([`Vm::forwarded`](crate::Vm::forwarded)); with any, the VM has a
    /// third interface, which leads nowhere else.
    pub forward: Vec<u16>,
    /// Debian's own first process runs it, with its udev and whatever its packages start; without it only what a scenario starts
    /// runs there.
    pub systemd: bool,
    /// A power cut takes from its data disks whatever the VM has written and not flushed, as from a disk with a cache of its own.
    /// Slower. Without it, what was written stays, flushed or not.
    pub volatile: bool,
}

impl VmSpec {
    /// The storage node: data disks of 16 and 4 GiB, sparse files here.
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

/// A rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RigOptions {
    /// Its name, for people and for its run folder.
    pub name: String,
    /// Its VMs, in the order of their addresses.
    pub vms: Vec<VmSpec>,
    /// Their kernel.
    pub kernel: Kernel,
    /// The root of the workspace: run folders live in its `target/rig`.
    pub root_dir: PathBuf,
    /// An image of programs ([`crate::image::programs`]), which each VM mounts at [`crate::PROGRAMS_DIR`].
    pub programs: Option<PathBuf>,
}

impl RigOptions {
    /// One storage node and this many hosts, on the stable kernel.
    pub fn standard(hosts: usize) -> Self {
        let vms = std::iter::once(VmSpec::storage()).chain((1..=hosts).map(VmSpec::host)).collect();
        Self {
            name: "rig".to_owned(),
            vms,
            kernel: Kernel::Stable,
            root_dir: workspace_root(),
            programs: None,
        }
    }

    /// The same with another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The same; a TCP port of the first VM is reached from this machine's loopback.
    #[must_use]
    pub fn forward(mut self, port: u16) -> Self {
        if let Some(first) = self.vms.first_mut() {
            first.forward.push(port);
        }
        self
    }

    /// The same; the first VM's data disks lose at a power cut what was not flushed.
    #[must_use]
    pub fn volatile(mut self) -> Self {
        if let Some(first) = self.vms.first_mut() {
            first.volatile = true;
        }
        self
    }

    /// The same with another kernel.
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

/// The address of the VM with this index on this network: 10.10.0.10 is the first VM on the first network.
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

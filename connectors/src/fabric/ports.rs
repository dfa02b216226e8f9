//! Fibre Channel ports in sysfs: this host's (`fc_host`), and those that they are logged in at
//! (`fc_remote_ports`).
//!
//! The kernel's transport class keeps both (Linux 6.1, `scsi_transport_fc.c`). A remote port that
//! is a target has a number on its adapter's SCSI host (`scsi_target_id`). −1 means that it is no
//! target, or was none when the two ports met.
//!
//! What must never happen here: a port that cannot be read taken for one that is there.

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::Wwpn;

use crate::wire::FcTarget;

/// A port of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcHostPort {
    /// Number of the SCSI host, `host<host>`.
    pub host: u32,
    /// Name of the port.
    pub name: Wwpn,
    /// State of the port: `Online`, `Linkdown`, …
    pub state: String,
}

impl FcHostPort {
    /// Returns `true` if the port has a link.
    pub fn is_online(&self) -> bool {
        self.state == "Online"
    }
}

/// A port that one of this host's ports has met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemotePort {
    pub(super) name: Wwpn,
    /// State of the port: `Online`, `Blocked`, `Not Present`, …
    pub(super) state: String,
    pub(super) target: Option<FcTarget>,
}

impl RemotePort {
    /// Returns `true` if the port is there and a target. A marginal one is there, too (since Linux
    /// 5.11).
    pub(super) fn is_usable(&self) -> bool {
        self.target.is_some() && matches!(self.state.as_str(), "Online" | "Marginal")
    }
}

/// Parses a name, which sysfs writes as `0x%llx`, without leading zeros. `None` if it is malformed.
fn name_of(text: &str) -> Option<Wwpn> {
    Wwpn::from_u64(u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()?)
}

/// Lists the names in a class folder. A kernel without the class has none.
fn names(sys: &dyn Tree, class: &TreePath) -> Result<Vec<String>, TreeError> {
    match sys.list(class) {
        Ok(entries) => {
            let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
            names.sort();
            Ok(names)
        }
        Err(error) if error.errno == Errno::ENOENT => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Lists the ports of this host's adapters. A port that disappears during the reading is left out.
pub fn fc_host_ports(sys: &dyn Tree) -> Result<Vec<FcHostPort>, TreeError> {
    let class = TreePath::new("class/fc_host");
    let port = |entry: String| {
        let read = |file: &str| sys.read_text(&class.join(&entry).join(file)).ok();
        Some(FcHostPort {
            host: entry.strip_prefix("host")?.parse().ok()?,
            name: name_of(&read("port_name")?)?,
            state: read("port_state")?.trim().to_owned(),
        })
    };
    Ok(names(sys, &class)?.into_iter().filter_map(port).collect())
}

/// Parses the channel in `rport-<host>:<channel>-<number>`.
fn channel_of(entry: &str, host: u32) -> Option<u32> {
    let (channel, _) = entry.strip_prefix(&format!("rport-{host}:"))?.split_once('-')?;
    channel.parse().ok()
}

/// Lists those of the `wanted` ports that a host's port has met, in the order of `wanted`.
pub(super) fn remote_ports(sys: &dyn Tree, host: u32, wanted: &[Wwpn]) -> Result<Vec<RemotePort>, TreeError> {
    let class = TreePath::new("class/fc_remote_ports");
    let port = |entry: String| {
        let channel = channel_of(&entry, host)?;
        let read = |file: &str| sys.read_text(&class.join(&entry).join(file)).ok();
        let name = name_of(&read("port_name")?).filter(|name| wanted.contains(name))?;
        let id = read("scsi_target_id")?.trim().parse().ok();
        let target = id.map(|id| FcTarget { channel, id });
        Some(RemotePort { name, state: read("port_state")?.trim().to_owned(), target })
    };
    let mut found: Vec<_> = names(sys, &class)?.into_iter().filter_map(port).collect();
    found.sort_by_key(|port| wanted.iter().position(|name| *name == port.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_leading_zeros_in_sysfs() {
        assert_eq!(name_of("0x2000525400140a\n").map(Wwpn::as_u64), Some(0x0020_0052_5400_140a));
        assert_eq!(name_of("0x200052540014000a\n").map(Wwpn::as_u64), Some(0x2000_5254_0014_000a));
        for bad in ["", "0x0", "2000", "0xffffffffffffffffff"] {
            assert_eq!(name_of(bad), None, "{bad}");
        }
        assert_eq!(channel_of("rport-3:0-12", 3), Some(0));
        assert_eq!((channel_of("rport-31:0-1", 3), channel_of("rport-3:x-1", 3)), (None, None));
    }
}

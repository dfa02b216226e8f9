//! Addresses at which portals can be reached: those of this host, and their links. The agent looks
//! at them when the kernel reports a change, and every second (without a system call while nothing
//! changes).
//!
//! A portal stands in the kernel with or without its address. The kernel binds freely: a portal
//! whose address is missing waits, and answers as soon as the address comes, also without an agent.
//! A portal whose address goes keeps its sessions. So a change of addresses changes nothing in the
//! kernel, and other portals are not affected. The agent only reports it.
//!
//! What must never happen here: a portal taken away because its address has gone; an error that
//! looks like an address that has gone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use mooring_host::LocalAddress;
use mooring_model::{Cure, ExportSpec, Portal, Problem};
use mooring_targets::Wanted;

use super::cell::Cell;
use super::{Engine, lock};

/// Lists the addresses that other hosts may reach, for an error's text.
pub(crate) fn listed(here: &[LocalAddress]) -> String {
    let reached = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let list: BTreeSet<_> = here.iter().map(|address| address.ip).filter(reached).collect();
    let list: Vec<_> = list.iter().map(IpAddr::to_string).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

/// The reason why nobody reaches a portal. `None` if hosts can reach it.
pub(crate) fn trouble(portal: &Portal, here: &[LocalAddress]) -> Option<Problem> {
    let ip = portal.address();
    let text = match here.iter().find(|address| address.ip == ip) {
        None => format!(
            "this host does not have the address {ip} (it has {}): the portal waits for it; bring its interface up, or \
             correct the configuration",
            listed(here)
        ),
        Some(address) if !address.up => format!(
            "the link of {} is down, which has the address {ip}: see `ip link show {0}`",
            address.interface
        ),
        Some(_) => return None,
    };
    Some(Problem { object: format!("portal {portal}"), text, cure: Cure::Operator })
}

impl Engine {
    /// Looks at the addresses. When one has come or gone, the exports with a portal there report
    /// it, and so does this host.
    pub(super) fn watch_addresses(&self) {
        let now = (self.shared.machine.addresses)();
        let before = std::mem::replace(&mut *lock(&self.shared.addresses), now.clone());
        if before == now {
            return;
        }
        let changed = |portal: &Portal| trouble(portal, &before) != trouble(portal, &now);
        self.tell_of_portals(&now, changed);
        for cell in self.cells() {
            let concerns = {
                let state = cell.state();
                let spec = state.export_spec();
                spec.is_some_and(|spec| self.portals_of(spec).iter().any(changed))
            };
            if concerns {
                self.wake(&cell);
            }
        }
    }

    fn tell_of_portals(&self, now: &[LocalAddress], changed: impl Fn(&Portal) -> bool) {
        let portals: Vec<_> = self.shared.config.portals.iter().filter(|portal| changed(portal)).collect();
        for portal in &portals {
            if let Some(problem) = trouble(portal, now) {
                tracing::warn!(%portal, "{}", problem.text);
            } else {
                tracing::info!(%portal, "the portal's address is there");
            }
        }
        if !portals.is_empty() {
            self.lvm().tell();
        }
    }

    /// The portals of an export: its own, or else those of the configuration.
    pub(super) fn portals_of<'a>(&'a self, spec: &'a ExportSpec) -> &'a [Portal] {
        if spec.portals.is_empty() { &self.shared.config.portals } else { &spec.portals }
    }

    /// The problems that keep hosts from the portals of an export.
    pub(super) fn portal_problems(&self, cell: &Cell, wanted: &Wanted) -> Vec<Problem> {
        let Wanted::Present { portals, .. } = wanted else { return Vec::new() };
        let here = lock(&self.shared.addresses);
        let troubles = portals.iter().filter_map(|portal| trouble(portal, &here));
        troubles.chain(Self::silence_problem(cell)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, up: bool) -> LocalAddress {
        LocalAddress { ip: ip.parse().unwrap(), interface: "eth1".to_owned(), up, mtu: None }
    }

    #[test]
    fn what_keeps_hosts_from_a_portal() {
        let here = [
            address("10.0.0.1", true),
            address("10.0.1.1", false),
            address("127.0.0.1", true),
            address("fd00::1", true),
            address("fe80::1", true),
        ];
        let of = |portal: &str| trouble(&portal.parse().unwrap(), &here).map(|problem| problem.text);
        assert_eq!((of("10.0.0.1"), of("[fd00::1]")), (None, None));
        let down = of("10.0.1.1").unwrap();
        assert_eq!(down, "the link of eth1 is down, which has the address 10.0.1.1: see `ip link show eth1`");
        let missing = of("[fd00::2]").unwrap();
        let says = "does not have the address fd00::2 (it has 10.0.0.1, 10.0.1.1, fd00::1): the portal waits";
        assert!(missing.contains(says), "{missing}");
        assert!(trouble(&"10.0.0.9".parse().unwrap(), &[]).unwrap().text.contains("(it has none)"));
    }
}

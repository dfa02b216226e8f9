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

use mooring_host::LocalAddress;
use mooring_model::{ExportSpec, Portal, Problem};
use mooring_targets::Wanted;

use crate::engine::cell::Cell;
use crate::engine::{Engine, lock};
use crate::links::trouble;

impl Engine {
    /// Looks at the addresses. When one has come or gone, the exports with a portal there report
    /// it, and so does this host.
    pub(in crate::engine) fn watch_addresses(&self) {
        let now = (self.shared.machine.addresses)();
        let before = std::mem::replace(&mut *lock(&self.shared.export_memory.addresses), now.clone());
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

    /// The addresses of this host, as the last look saw them.
    #[cfg(test)]
    pub(in crate::engine) fn known_addresses(&self) -> Vec<LocalAddress> {
        lock(&self.shared.export_memory.addresses).clone()
    }

    fn tell_of_portals(&self, now: &[LocalAddress], changed: impl Fn(&Portal) -> bool) {
        let portals: Vec<_> = self.shared.config.portals.iter().filter(|portal| changed(portal)).collect();
        for portal in &portals {
            if let Some(problem) = trouble(portal, now) {
                tracing::warn!(%portal, "{}", problem.text);
            } else {
                tracing::info!(%portal, "this host has the portal's address now");
            }
        }
        if !portals.is_empty() {
            self.lvm().tell();
        }
    }

    /// The portals of an export: its own, or else those of the configuration.
    pub(in crate::engine) fn portals_of<'a>(&'a self, spec: &'a ExportSpec) -> &'a [Portal] {
        if spec.portals.is_empty() { &self.shared.config.portals } else { &spec.portals }
    }

    /// The problems that keep hosts from the portals of an export.
    pub(in crate::engine) fn portal_problems(&self, cell: &Cell, wanted: &Wanted) -> Vec<Problem> {
        let Wanted::Present { portals, .. } = wanted else { return Vec::new() };
        let here = lock(&self.shared.export_memory.addresses);
        let troubles = portals.iter().filter_map(|portal| trouble(portal, &here));
        troubles.chain(Self::silence_problem(cell)).collect()
    }
}

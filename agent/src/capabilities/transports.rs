//! Transports that volumes can be reached over: iSCSI with its portals, Fibre Channel with its
//! ports.
//!
//! What must never happen here: a transport that is reported as ready and that nobody could log in
//! over.

use std::collections::BTreeSet;

use mooring_api::v1;
use mooring_host::{LocalAddress, Tree, TreePath};
use mooring_model::limit::FC_LUN_MAX;
use mooring_model::{Portal, Problem, VolumeId, Wwpn};
use mooring_targets::layout;

use super::health::{Code, Fault, On, Weight};
use super::modules::{self, IBLOCK, ISCSI_TARGET, TARGET};
use super::{is_dir, missing_text};
use crate::config::FibreChannel;
use crate::fibre_channel::PortSeen;
use crate::links::trouble;
use crate::machine::Machine;

/// Names of protocols on the wire.
pub(super) const ISCSI: &str = "iscsi";
pub(super) const FC: &str = "fc";

/// State of a port whose link is up, in sysfs.
const ONLINE: &str = "Online";

/// Checks LIO. Returns `true` if it can serve iSCSI now.
pub(super) fn check_target(
    machine: &Machine,
    modules: &[v1::Module],
    release: &str,
    faults: &mut Vec<Fault>,
) -> bool {
    let mut fault = |code, weight, on, text: String| {
        faults.push(Fault::new(code, weight, on, "kernel target", text));
    };
    // A module that is built into the kernel may not stand in /sys/module: what it offers in
    // configfs counts as well.
    if !is_dir(&*machine.target, &TreePath::root()) {
        let (code, text) = if !modules::is_missing(modules, TARGET) {
            let text = "LIO's folder is not in configfs: run mount -t configfs none /sys/kernel/config";
            (Code::ConfigfsMissing, text.to_owned())
        } else if modules::is_absent(modules, TARGET) {
            (Code::ModuleMissing, missing_text(modules, TARGET, release))
        } else {
            let text = "the module target_core_mod is not loaded: run modprobe target_core_mod (a minimal kernel may \
                        lack it: install the generic one) and, if configfs is not mounted, mount -t configfs none \
                        /sys/kernel/config";
            (Code::ModuleMissing, text.to_owned())
        };
        fault(code, Weight::Fails, On::Transports, text);
        return false;
    }
    let iscsi = !modules::is_missing(modules, ISCSI_TARGET);
    if !iscsi {
        let text = missing_text(modules, ISCSI_TARGET, release);
        fault(Code::ModuleMissing, Weight::Fails, On::Transport(ISCSI), text);
    }
    // The kernel loads the module by itself with the first backstore. So its absence is only noted,
    // unless there is none to be loaded.
    let no_iblock = modules::is_absent(modules, IBLOCK);
    if modules::is_missing(modules, IBLOCK) {
        let weight = if no_iblock { Weight::Fails } else { Weight::Noted };
        fault(Code::ModuleMissing, weight, On::Transports, missing_text(modules, IBLOCK, release));
    }
    iscsi && !no_iblock
}

/// Returns the transport of the portals that can be reached, and apart from it that of those that
/// cannot.
pub(super) fn iscsi(
    portals: &[Portal],
    here: &[LocalAddress],
    target_ready: bool,
    faults: &mut Vec<Fault>,
) -> Vec<v1::Transport> {
    let (present, absent): (Vec<&Portal>, Vec<&Portal>) =
        portals.iter().partition(|portal| trouble(portal, here).is_none());
    let unreachable = |portal: &Portal| {
        let problem = trouble(portal, here)?;
        let on = On::Portal(portal.to_string());
        Some(Fault { code: Code::PortalUnreachable, weight: Weight::Fails, on, problem })
    };
    faults.extend(absent.iter().filter_map(|portal| unreachable(portal)));
    let link = |portal: &&Portal| {
        let address = here.iter().find(|address| address.ip == portal.address())?;
        Some(v1::PortalLink {
            portal: portal.to_string(),
            interface: address.interface.clone(),
            up: address.up,
            mtu: address.mtu,
        })
    };
    let transport = |portals: Vec<&Portal>, ready| v1::Transport {
        protocol: ISCSI.to_owned(),
        links: portals.iter().filter_map(link).collect(),
        portals: portals.iter().map(ToString::to_string).collect(),
        ready,
        ..v1::Transport::default()
    };
    [(present, target_ready), (absent, false)]
        .into_iter()
        .filter(|(portals, _)| !portals.is_empty())
        .map(|(portals, ready)| transport(portals, ready))
        .collect()
}

/// Returns the faults of devices that do not answer, and of the portals that they block. They keep
/// hosts from logging in although addresses and targets are there.
pub(super) fn silent(
    portals: &[Portal],
    blocked: &[(Portal, Problem)],
    silent: &BTreeSet<VolumeId>,
) -> Vec<Fault> {
    // Hosts log in over the other portals.
    let is_blocked = |portal: &Portal| blocked.iter().any(|(one, _)| one == portal);
    let weight = if portals.iter().all(is_blocked) { Weight::Fails } else { Weight::Degrades };
    let fault = |(portal, problem): &(Portal, Problem)| Fault {
        code: Code::PortalBlocked,
        weight,
        on: On::Portal(portal.to_string()),
        problem: problem.clone(),
    };
    let mut faults: Vec<_> = blocked.iter().map(fault).collect();
    if let Some(first) = silent.first() {
        let text = format!(
            "do not answer, of {} volumes, the first of them {first}: their portals are taken off until they do; each says since when \
             (mooring export show)",
            silent.len()
        );
        faults.push(Fault::new(Code::DeviceSilent, Weight::Degrades, On::Host, "devices", text));
    }
    faults
}

/// Returns the header and data digests that a target offers. `None` if the target is gone.
pub(super) fn digests(tree: &dyn Tree, target: &str) -> Option<v1::Digests> {
    let read = |name: &str| {
        let path = layout::fabric().join(target).join("tpgt_1").join("param").join(name);
        Some(tree.read_text(&path).ok()?.trim().to_owned())
    };
    Some(v1::Digests { header: read("HeaderDigest")?, data: read("DataDigest")?, target: target.to_owned() })
}

/// Returns the ports through which this host can attach: those that are online and do not serve.
pub(super) fn initiator_ports(sys: &dyn Tree, serves: &[Wwpn]) -> Vec<String> {
    let ports = mooring_connectors::fc_host_ports(sys).unwrap_or_else(|error| {
        tracing::warn!(%error, "the ports of adapters for Fibre Channel cannot be listed: none is offered");
        Vec::new()
    });
    let usable = |port: &mooring_connectors::FcHostPort| port.is_online() && !serves.contains(&port.name);
    ports.iter().filter(|port| usable(port)).map(|port| port.name.to_string()).collect()
}

/// Returns the Fibre Channel transport of the ports that serve. It is ready if one of them is a
/// target and has its link up.
pub(super) fn fibre_channel(config: &FibreChannel, seen: Vec<PortSeen>) -> (v1::Transport, Vec<Fault>) {
    let mut wrong = Vec::new();
    if seen.is_empty() && config.ports.is_empty() {
        let text = "no port of software FCoE is on this host: bring one up, or name the ports of adapters in \
                    [fibre_channel]";
        wrong.push((Code::PortMissing, "Fibre Channel".to_owned(), text.to_owned()));
    }
    let mut ready = false;
    for port in &seen {
        let (code, text) = match (&port.trouble, port.state.as_str()) {
            (Some(trouble), _) => {
                let module = port.port.fabric.module();
                (Code::PortUnusable, format!("it is no target: {trouble} (is {module} loaded?)"))
            }
            (None, ONLINE) => {
                ready = true;
                continue;
            }
            (None, "") => (Code::PortMissing, "no adapter of this host has this port".to_owned()),
            (None, state) => (Code::PortLink, format!("its link is not up: {state}")),
        };
        wrong.push((code, format!("port {}", port.port), text));
    }
    // The other ports serve.
    let weight = if ready { Weight::Degrades } else { Weight::Fails };
    let fault = |(code, object, text)| Fault::new(code, weight, On::Transport(FC), object, text);
    let ports = seen.into_iter().map(|port| v1::FcPort { port: port.port.to_string(), state: port.state });
    let transport = v1::Transport {
        protocol: FC.to_owned(),
        ready,
        ports: ports.collect(),
        volumes_per_initiator_max: Some(FC_LUN_MAX.into()),
        ..v1::Transport::default()
    };
    (transport, wrong.into_iter().map(fault).collect())
}

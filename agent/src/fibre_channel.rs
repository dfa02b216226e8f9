//! Fibre Channel ports of this host that serve volumes: found in sysfs, named or excluded by the
//! configuration.
//!
//! Ports of software FCoE are found without configuration. Parameters of an adapter's driver, which
//! sysfs does not show, make it a target or an initiator. So its port is named in the
//! configuration, with its driver.
//!
//! What must never happen here: a port that goes for a moment taken for one that shall not serve; a
//! port forgotten that may still show a volume.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::{Tree, TreePath};
use mooring_model::{FcExportSpec, FcFabric, FcPort, Wwpn};

use crate::config::FibreChannel;

/// Prefix of the symbolic name of a port of libfc's FCoE: `fcoe v0.1 over eth1`.
const SOFTWARE: &str = "fcoe ";

/// A port as its adapter shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Adapter {
    /// `Online`, `Linkdown`, …
    state: String,
    software: bool,
}

/// A Fibre Channel port that serves.
pub(crate) struct PortSeen {
    pub(crate) port: FcPort,
    /// The state that the adapter reports. Empty without an adapter.
    pub(crate) state: String,
    /// Reason why the port is no target. `None` if it is one.
    pub(crate) trouble: Option<String>,
}

/// Returns the ports of every adapter. Leaves out what cannot be read.
fn adapters(sys: &dyn Tree) -> BTreeMap<Wwpn, Adapter> {
    let folder = TreePath::new("class/fc_host");
    let mut found = BTreeMap::new();
    for entry in sys.list(&folder).unwrap_or_default() {
        let read = |name: &str| sys.read_text(&folder.join(&entry.name).join(name)).unwrap_or_default();
        let Ok(wwpn) = read("port_name").trim().parse() else { continue };
        let software = read("symbolic_name").starts_with(SOFTWARE);
        found.insert(wwpn, Adapter { state: read("port_state").trim().to_owned(), software });
    }
    found
}

/// The ports that this agent knows.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    /// Every port that ever served, as the store has them. Only ever grows.
    known: BTreeSet<FcPort>,
    /// Ports that serve now.
    served: BTreeSet<FcPort>,
    /// State of the ports, as their adapters say.
    states: BTreeMap<FcPort, String>,
    /// Why a port could not be made ready.
    pub(crate) troubles: BTreeMap<FcPort, String>,
}

impl Ports {
    /// Takes over the ports that an earlier agent has stored.
    pub(crate) fn kept(known: BTreeSet<FcPort>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Reads the adapters. `keep` makes the known ports durable before a new one serves; it returns
    /// `false` if it could not.
    pub(crate) fn refresh(
        &mut self,
        sys: &dyn Tree,
        config: &FibreChannel,
        keep: impl FnOnce(&BTreeSet<FcPort>) -> bool,
    ) {
        let adapters = adapters(sys);
        let found = adapters.iter().filter(|(_, adapter)| adapter.software);
        let found = found.map(|(wwpn, _)| FcPort { fabric: FcFabric::TcmFc, wwpn: *wwpn });
        let mut served: BTreeSet<FcPort> = if config.ports.is_empty() {
            // A known port that is missing now existed once, and comes back.
            self.known.iter().copied().chain(found).collect()
        } else {
            config.ports.iter().copied().collect()
        };
        served.retain(|port| !config.exclude.contains(&port.wwpn));
        if !served.is_subset(&self.known) {
            let all = &self.known | &served;
            if keep(&all) {
                self.known = all;
            } else {
                served.retain(|port| self.known.contains(port));
            }
        }
        let state = |port: &FcPort| {
            let state = adapters.get(&port.wwpn).map(|adapter| adapter.state.clone());
            (*port, state.unwrap_or_default())
        };
        self.states = served.iter().map(state).collect();
        self.served = served;
    }

    /// Returns every port that ever served.
    pub(crate) fn known(&self) -> impl Iterator<Item = &FcPort> {
        self.known.iter()
    }

    /// Returns the ports that serve, with the state that their adapters say.
    pub(crate) fn served(&self) -> impl Iterator<Item = (FcPort, &str)> {
        self.states.iter().map(|(port, state)| (*port, state.as_str()))
    }

    /// Returns `true` if a volume with this spec is shown on this port.
    pub(crate) fn serves(&self, spec: &FcExportSpec, port: FcPort) -> bool {
        self.served.contains(&port) && (spec.ports.is_empty() || spec.ports.contains(&port))
    }
}

#[cfg(test)]
mod tests {
    use mooring_host::KernelTree;

    use super::*;

    const ONE: &str = "20:00:52:54:00:14:00:0a";
    const TWO: &str = "20:00:52:54:00:14:00:0b";
    const HBA: &str = "21:00:00:24:ff:00:00:01";

    fn port(text: &str) -> FcPort {
        text.parse().unwrap()
    }

    /// Makes a sysfs with these adapters: name, symbolic name, state.
    fn sys(adapters: &[(&str, &str, &str)]) -> (tempfile::TempDir, KernelTree) {
        let dir = tempfile::tempdir().unwrap();
        for (index, (name, symbolic, state)) in adapters.iter().enumerate() {
            let folder = dir.path().join(format!("class/fc_host/host{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            // As the kernel prints it: without leading zeros.
            let name = format!("0x{}\n", name.replace(':', "").trim_start_matches('0'));
            for (file, text) in
                [("port_name", name.as_str()), ("symbolic_name", symbolic), ("port_state", state)]
            {
                std::fs::write(folder.join(file), text).unwrap();
            }
        }
        let tree = KernelTree::new(dir.path());
        (dir, tree)
    }

    fn served(ports: &Ports) -> Vec<String> {
        ports.served().map(|(port, state)| format!("{port} {state}")).collect()
    }

    #[test]
    fn software_ports_are_found_and_adapters_are_named() {
        let all = [
            (ONE, "fcoe v0.1 over eth1\n", "Online\n"),
            (TWO, "fcoe v0.1 over eth2\n", "Linkdown\n"),
            (HBA, "QLE2692 FW:v9.0 DVR:v10.2\n", "Online\n"),
        ];
        let (_dir, tree) = sys(&all);
        let mut ports = Ports::default();
        ports.refresh(&tree, &FibreChannel::default(), |_| false);
        assert_eq!(served(&ports), Vec::<String>::new(), "what cannot be kept does not serve");
        ports.refresh(&tree, &FibreChannel::default(), |_| true);
        assert_eq!(served(&ports), [format!("fc/{ONE} Online"), format!("fc/{TWO} Linkdown")]);
        ports.refresh(&tree, &FibreChannel::default(), |_| panic!("nothing new"));
        let exclude = FibreChannel { exclude: vec![TWO.parse().unwrap()], ..FibreChannel::default() };
        ports.refresh(&tree, &exclude, |_| panic!("nothing new"));
        assert_eq!(served(&ports), [format!("fc/{ONE} Online")]);
        assert_eq!(ports.known().count(), 2, "it may still show a volume");
        let named = FibreChannel { ports: vec![port(&format!("qla2xxx/{HBA}"))], exclude: Vec::new() };
        ports.refresh(&tree, &named, |_| true);
        assert_eq!(served(&ports), [format!("qla2xxx/{HBA} Online")]);
    }

    #[test]
    fn a_port_serves_whose_name_begins_with_a_zero() {
        const ZERO: &str = "01:00:00:00:00:00:0b:01";
        let (dir, tree) = sys(&[(ZERO, "fcoe v0.1 over eth1\n", "Online\n")]);
        let name = std::fs::read_to_string(dir.path().join("class/fc_host/host0/port_name")).unwrap();
        assert_eq!(name, "0x100000000000b01\n", "15 digits");
        let mut ports = Ports::default();
        ports.refresh(&tree, &FibreChannel::default(), |_| true);
        assert_eq!(served(&ports), [format!("fc/{ZERO} Online")]);
        let exclude = FibreChannel { exclude: vec![name.trim().parse().unwrap()], ..FibreChannel::default() };
        ports.refresh(&tree, &exclude, |_| panic!("nothing new"));
        assert_eq!(served(&ports), Vec::<String>::new());
    }

    #[test]
    fn a_port_that_goes_is_still_wanted() {
        let (_dir, tree) = sys(&[(ONE, "fcoe v0.1 over eth1", "Online")]);
        let mut ports = Ports::default();
        ports.refresh(&tree, &FibreChannel::default(), |_| true);
        let (_dir, empty) = sys(&[]);
        ports.refresh(&empty, &FibreChannel::default(), |_| true);
        assert_eq!(served(&ports), [format!("fc/{ONE} ")]);
        assert!(ports.serves(&FcExportSpec::default(), port(&format!("fc/{ONE}"))));
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let (_dir, tree) = sys(&[("garbage", "fcoe v0.1 over eth1", "Online")]);
        let mut ports = Ports::default();
        ports.refresh(&tree, &FibreChannel::default(), |_| true);
        assert_eq!(served(&ports), Vec::<String>::new());
    }
}

//! The whole control plane in one process, without root and without a kernel: the real controller
//! behind its HTTP port, and real agents on fake hosts, each with its own store, its own socket and
//! a machine that outlives it.
//!
//! ```no_run
//! use mooring_fleet::Fleet;
//!
//! let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
//! let member = fleet.member();
//! let volume = member.volume(Some(&fleet.shared_type()), 1);
//! let node = fleet.stock("node1");
//! let attached = member.attach(&volume, &node, None);
//! let session = node.login(&attached.info).unwrap();
//! session.write().unwrap();
//! assert_eq!(fleet.storage("s1").grants(&volume)[node.initiator()].to_string(), "LUN 1 rw");
//! ```
//!
//! What must never happen here: a machine that is kinder than a real one (the fakes are those that
//! the agents' laws rest on); a sleep that decides; something that only a test of one requirement
//! needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test bed: what fails ends the test"
)]
#![allow(clippy::missing_panics_doc, reason = "everything here panics when the test bed itself fails")]

pub mod client;
pub mod control;
pub mod door;
pub mod identity;
pub mod network;
pub mod node;
pub mod stock;
mod wait;
mod wire;
mod work;
mod zone;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use client::{Answer, Client};
pub use control::{Access, Control, Tune};
pub use identity::Identity;
pub use mooring_host::fake::own_loopback;
pub use network::Network;
pub use node::Node;
pub use stock::{Session, Stock};
pub use wait::{PATIENCE, until, until_some};
pub use work::Attached;

use mooring_controller::policy::Policies;
use mooring_controller::service::{Database, ServiceOptions};

use crate::wire::Wire;

/// The project of [`Fleet::member`], and of the admin.
pub const PROJECT_A: &str = "0123456789abcdef0123456789abcdef";

/// The project of [`Fleet::stranger`].
pub const PROJECT_B: &str = "fedcba9876543210fedcba9876543210";

/// The cluster of every fleet.
pub const CLUSTER: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11";

/// The plan of a fleet.
#[derive(Default)]
pub struct Builder {
    nodes: Vec<node::Plan>,
    agents: Vec<(String, String)>,
    access: Access,
    tune: Vec<Tune>,
    database: Option<Database>,
    asleep: bool,
    zoned: bool,
    wired: bool,
    listen: Option<SocketAddr>,
}

impl Builder {
    /// Adds a storage node with these pools, in GiB.
    #[must_use]
    pub fn storage(mut self, name: &str, pools: &[(&str, u64)]) -> Self {
        let pools = pools.iter().map(|(pool, gib)| ((*pool).to_owned(), *gib)).collect();
        self.nodes.push(node::Plan {
            name: name.to_owned(),
            pools,
            host: false,
            target: true,
            ports: Vec::new(),
            thin: 0,
            adapter: None,
        });
        self
    }

    /// Adds a storage node whose groups also have a thin pool of this many GiB.
    #[must_use]
    pub fn storage_with_thin(mut self, name: &str, pools: &[(&str, u64)], gib: u64) -> Self {
        self = self.storage(name, pools);
        if let Some(plan) = self.nodes.last_mut() {
            plan.thin = gib;
        }
        self
    }

    /// Adds a storage node that also serves over Fibre Channel, at these ports, such as
    /// `20:00:52:54:00:14:00:0a`.
    #[must_use]
    pub fn storage_with_ports(mut self, name: &str, pools: &[(&str, u64)], ports: &[&str]) -> Self {
        self = self.storage(name, pools);
        if let Some(plan) = self.nodes.last_mut() {
            plan.ports = ports.iter().map(|port| (*port).to_owned()).collect();
        }
        self
    }

    /// Adds a storage node whose kernel has no iSCSI target: its pools lack the capability
    /// `multiattach`.
    #[must_use]
    pub fn storage_without_target(mut self, name: &str, pools: &[(&str, u64)]) -> Self {
        self = self.storage(name, pools);
        if let Some(plan) = self.nodes.last_mut() {
            plan.target = false;
        }
        self
    }

    /// Adds a host that attaches volumes natively.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        let (name, pools, ports) = (name.to_owned(), Vec::new(), Vec::new());
        self.nodes.push(node::Plan { name, pools, host: true, target: false, ports, thin: 0, adapter: None });
        self
    }

    /// Adds a host that attaches volumes natively, with a Fibre Channel port. Its [`Node::fabric`]
    /// has its disks; it has none over iSCSI.
    #[must_use]
    pub fn host_with_port(mut self, name: &str, port: &str) -> Self {
        self = self.host(name);
        if let Some(plan) = self.nodes.last_mut() {
            plan.adapter = Some(port.to_owned());
        }
        self
    }

    /// Lets the Fibre Channel port of each host see every port of a storage node, with the disks
    /// that the target shows to it. A native attach needs storage nodes with one port each. Without
    /// this, a test chooses what a port sees ([`Node::fabric`]).
    #[must_use]
    pub fn zoned(mut self) -> Self {
        self.zoned = true;
        self
    }

    /// Puts a wire between the controller and each agent, which [`Fleet::cut`] can cut.
    #[must_use]
    pub fn wired(mut self) -> Self {
        self.wired = true;
        self
    }

    /// Adds an agent that is a process of its own, at `unix:PATH` or `http://127.0.0.1:PORT`. Its
    /// starter ends it.
    #[must_use]
    pub fn agent(mut self, name: &str, address: &str) -> Self {
        self.agents.push((name.to_owned(), address.to_owned()));
        self
    }

    /// Turns authentication off: everybody is an admin. The default is tokens.
    #[must_use]
    pub fn no_auth(mut self) -> Self {
        self.access = Access::NoAuth;
        self
    }

    /// Authenticates callers by an identity service of this fleet, as Keystone is one
    /// ([`Control::identity`]).
    #[must_use]
    pub fn keystone(mut self) -> Self {
        self.access = Access::Keystone;
        self
    }

    /// Serves at this address of loopback. The default is a free port of an address that only this
    /// process uses.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// Changes the default configuration, as an operator does.
    #[must_use]
    pub fn tuned(mut self, tune: impl Fn(&mut ServiceOptions) + Send + Sync + 'static) -> Self {
        self.tune.push(Box::new(tune));
        self
    }

    /// Sets the controller's database. The default is the embedded one.
    #[must_use]
    pub fn database(mut self, database: Database) -> Self {
        self.database = Some(database);
        self
    }

    /// Sets an operator's policies, over the defaults.
    #[must_use]
    pub fn policies(self, text: &str) -> Self {
        let policies = Arc::new(Policies::parse(text, "policy.yaml", true).unwrap());
        self.tuned(move |options| options.policies = Arc::clone(&policies))
    }

    /// Starts no agent ([`Node::start`] does), and does not wait for the controller.
    #[must_use]
    pub fn asleep(mut self) -> Self {
        self.asleep = true;
        self
    }

    /// Starts everything, and waits until the controller has heard from every agent.
    pub fn start(self) -> Fleet {
        let dir = scratch();
        let network = Network::default();
        let nodes: Vec<_> = self
            .nodes
            .into_iter()
            .enumerate()
            .map(|(index, plan)| Node::new(index, plan, &dir.path().join("nodes"), &network))
            .collect();
        if self.zoned {
            network.zone();
        }
        if !self.asleep {
            nodes.iter().for_each(Node::start);
        }
        let wire = |node: &Node| {
            let socket = dir.path().join(format!("{}.sock", node.name()));
            (node.name().to_owned(), Wire::new(socket, node.address()))
        };
        let wires: BTreeMap<_, _> =
            if self.wired { nodes.iter().map(wire).collect() } else { BTreeMap::new() };
        let dialled = |node: &Node| {
            let address = wires.get(node.name()).map_or_else(|| node.address().to_owned(), Wire::address);
            (node.name().to_owned(), address)
        };
        let mut agents = self.agents;
        agents.extend(nodes.iter().map(dialled));
        let state_dir = dir.path().join("controller");
        let control = Control::new(state_dir, agents, self.access, self.tune, self.database, self.listen);
        control.start();
        let fleet = Fleet { control, nodes, wires, network, dir };
        if !self.asleep {
            fleet.until_up();
        }
        fleet
    }
}

/// Makes a folder in memory where possible: the speed of a busy disk does not matter to these
/// tests.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

/// A running control plane.
pub struct Fleet {
    // Dropped first, so that the controller does not complain about agents that are gone.
    control: Control,
    nodes: Vec<Node>,
    /// Wires between the controller and agents, by node; none without [`Builder::wired`].
    wires: BTreeMap<String, Wire>,
    network: Network,
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Makes an empty plan.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts the usual fleet: `s1` with 100 GiB.
    pub fn small() -> Self {
        Self::builder().storage("s1", &[("vg0", 100)]).start()
    }

    /// Starts the usual fleet with an operator's policies.
    pub fn ruled(policies: &str) -> Self {
        Self::builder().storage("s1", &[("vg0", 100)]).policies(policies).start()
    }

    /// The controller.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// A node by its name.
    #[track_caller]
    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name() == name).unwrap_or_else(|| panic!("no node {name}"))
    }

    /// A storage node by its name.
    #[track_caller]
    pub fn storage(&self, name: &str) -> &Node {
        self.node(name)
    }

    /// A host by its name.
    #[track_caller]
    pub fn host(&self, name: &str) -> &Node {
        self.node(name)
    }

    /// Makes a stock initiator: a host without an agent, such as one with os-brick.
    pub fn stock(&self, name: &str) -> Stock {
        Stock::new(name, &self.network)
    }

    /// Makes a stock initiator with two Fibre Channel ports; another number has other ports.
    pub fn stock_with_ports(&self, name: &str, number: u16) -> Stock {
        self.stock(name).with_ports(number)
    }

    /// The network between nodes.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Cuts the wires between the controller and these nodes: neither side hears of the other, and
    /// neither sees a connection end.
    #[track_caller]
    pub fn cut(&self, nodes: &[&str]) {
        for name in nodes {
            self.wires.get(*name).unwrap_or_else(|| panic!("no wire to {name}")).cut(true);
        }
    }

    /// Makes all wires whole again.
    pub fn heal(&self) {
        self.wires.values().for_each(|wire| wire.cut(false));
    }

    /// The folder of all files of this fleet.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the controller's database.
    pub fn database(&self) -> PathBuf {
        self.control.state_dir().to_owned()
    }

    /// A client that may do everything, in project A.
    pub fn admin(&self) -> Client {
        self.control.client("admin")
    }

    /// A client that is a member of project A.
    pub fn member(&self) -> Client {
        self.control.client("member")
    }

    /// A read-only client of project A.
    pub fn reader(&self) -> Client {
        self.control.client("reader")
    }

    /// Another service, such as Nova: its token has the role `service`.
    pub fn service(&self) -> Client {
        self.control.client("service")
    }

    /// A client that is a member of project B.
    pub fn stranger(&self) -> Client {
        self.control.client("stranger")
    }

    /// The type whose volumes may be shared; makes it if it is missing.
    #[track_caller]
    pub fn shared_type(&self) -> String {
        self.admin().volume_type("shared", &[("multiattach", "<is> True")])
    }

    /// Waits until the controller has heard from every agent.
    #[track_caller]
    pub fn until_up(&self) {
        let admin = self.admin();
        until("every agent is up", || {
            let hosts = admin.get("/mooring/v1/hosts").expect(200);
            let hosts = hosts["hosts"].as_array().cloned().unwrap_or_default();
            let up = hosts.iter().filter(|host| host["up"] == true).count();
            if up == self.control.agents() { Ok(()) } else { Err(format!("{hosts:?}")) }
        });
    }

    /// Waits until the controller knows that an agent does not answer.
    #[track_caller]
    pub fn until_missed(&self, agent: &str) {
        let admin = self.admin();
        until("an agent is missed", || {
            let hosts = admin.get("/mooring/v1/hosts").expect(200);
            let missed = |host: &serde_json::Value| host["name"] == agent && host["up"] == false;
            if hosts["hosts"].as_array().is_some_and(|hosts| hosts.iter().any(missed)) {
                Ok(())
            } else {
                Err(hosts.to_string())
            }
        });
    }
}

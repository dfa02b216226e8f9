//! A machine of the fleet, and the agents that live and die on it.
//!
//! The machine (its kernel, its LVM, its sessions) outlives every agent, as a real one does. The
//! next agent finds what a killed one left.
//!
//! What must never happen here: anything of a killed agent that continues.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mooring_agent::config::Config;
use mooring_agent::machine::Machine;
use mooring_agent::run::{self, HostParts};
use mooring_connectors::fake::{FcDoor, FcWorld, World};
use mooring_connectors::{Fabric, Parts, RunLinks, Ways};
use mooring_host::fake::{Access, FakeMachine, Reach};
use mooring_host::{BlockDevices, Holder, KernelTree, SystemClock, Tree, TreePath, dump};
use mooring_model::{IqnPrefix, VolumeId};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::door::Door;
use crate::network::{Network, PORT, Wired};
use crate::wait::until;

const GIB: u64 = 1 << 30;

/// Modules that a kernel with an iSCSI target has loaded.
const TARGET_MODULES: [&str; 3] = ["target_core_mod", "target_core_iblock", "iscsi_target_mod"];

/// The plan of a node.
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) pools: Vec<(String, u64)>,
    pub(crate) host: bool,
    pub(crate) target: bool,
    pub(crate) ports: Vec<String>,
    /// GiB of the thin pool of each group; 0: none.
    pub(crate) thin: u64,
    /// The port of a host that attaches over Fibre Channel; `None`: it has none.
    pub(crate) adapter: Option<String>,
}

/// One initiator's access to a volume in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The LUN number that the initiator sees.
    pub lun: u64,
    /// `true`: it may write.
    pub writes: bool,
    /// `true`: it must know a secret.
    pub authenticated: bool,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.writes { "rw" } else { "ro" };
        let open = if self.authenticated { "" } else { " without CHAP" };
        write!(f, "LUN {} {mode}{open}", self.lun)
    }
}

/// A machine, with or without a running agent.
pub struct Node {
    name: String,
    address: String,
    own: Ipv4Addr,
    config: Config,
    machine: FakeMachine,
    world: Option<World>,
    fabric: Option<FcWorld>,
    network: Network,
    dir: PathBuf,
    running: Mutex<Option<Running>>,
}

struct Running {
    runtime: Runtime,
    door: Door,
    host_door: Option<mooring_connectors::fake::Door>,
    fc_door: Option<FcDoor>,
    stop: watch::Sender<bool>,
    ended: tokio::task::JoinHandle<()>,
}

impl Running {
    fn kill(self) {
        self.door.kill();
        if let Some(door) = &self.host_door {
            door.kill();
        }
        if let Some(door) = &self.fc_door {
            door.kill();
        }
        self.runtime.shutdown_background();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Node {
    pub(crate) fn new(index: usize, plan: Plan, folder: &Path, network: &Network) -> Self {
        let dir = folder.join(&plan.name);
        let modules = dir.join("sys/module");
        let loaded = if plan.target { &TARGET_MODULES[..] } else { &[] };
        for module in loaded.iter().chain(plan.host.then_some(&"iscsi_tcp")) {
            std::fs::create_dir_all(modules.join(module)).unwrap();
        }
        let own =
            Ipv4Addr::new(10, 0, u8::try_from(index / 250).unwrap(), u8::try_from(index % 250 + 1).unwrap());
        let machine = FakeMachine::new();
        machine.set_root(dir.join("root"));
        machine.set_addresses([own.into()]);
        if !plan.target {
            machine.unload_configfs();
        }
        let portal = format!("{own}:{PORT}");
        // Writing to a String cannot fail.
        let mut text = format!(
            "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nconfigfs = \"{0}/configfs\"\nresync_seconds = 3600\n",
            dir.display()
        );
        if !plan.pools.is_empty() {
            let _ = writeln!(text, "portals = [\"{portal}\"]");
            network.add_storage(&portal, &machine);
        }
        if !plan.ports.is_empty() {
            text += "[fibre_channel]\n";
        }
        for (index, port) in plan.ports.iter().enumerate() {
            add_adapter(&dir.join(format!("sys/class/fc_host/host{index}")), port);
            let at = format!("fc/{port}");
            assert!(machine.add_fc_port(&at), "{at}");
            network.add_port(&at, &machine);
        }
        if plan.host {
            text += "[host]\n";
        }
        for (pool, gib) in &plan.pools {
            machine.add_vg(pool, gib * GIB);
            let _ = writeln!(text, "[[groups]]\nname = \"{pool}\"");
            if plan.thin > 0 {
                let _ = writeln!(text, "thin_pool = \"{}GiB\"", plan.thin);
            }
        }
        let config = Config::parse(&text, "agent.toml").unwrap();
        let world = plan.host.then(|| World::new(&config.run_dir));
        if let Some(world) = &world {
            network.add_host(&plan.name, world);
        }
        let fabric = plan.adapter.as_ref().map(|port| {
            add_adapter(&dir.join("sys/class/fc_host/host3"), port);
            let name = port.parse().expect("a port");
            let fabric = FcWorld::new(&config.run_dir, name);
            network.add_adapter(name, &fabric);
            fabric
        });
        let address = config.listen[0].to_string();
        let running = Mutex::default();
        let network = network.clone();
        Self { name: plan.name, address, own, config, machine, world, fabric, network, dir, running }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which the controller dials the agent.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The node's kernel and LVM, with all their faults.
    pub fn machine(&self) -> &FakeMachine {
        &self.machine
    }

    /// The node's side as an initiator.
    #[track_caller]
    pub fn world(&self) -> &World {
        self.world.as_ref().expect("a node with the role host")
    }

    /// The disks at the node's Fibre Channel port.
    #[track_caller]
    pub fn fabric(&self) -> &FcWorld {
        self.fabric.as_ref().expect("a host with a port")
    }

    /// Starts the agent, unless it runs.
    pub fn start(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            // A killed agent releases its lock when its last thread has seen that it is dead.
            *running = Some(until(&format!("the agent of {}", self.name), || self.launch()));
        }
    }

    fn launch(&self) -> Result<Running, String> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let network = self.network.clone();
        let door = Door::new(&self.machine, move || network.refresh());
        let own = self.own;
        let machine = Machine {
            target: Arc::new(door.clone()),
            folders: Some(Arc::new(self.machine.folders())),
            callers: Some(Arc::new(self.machine.callers())),
            sys: Arc::new(KernelTree::new(self.dir.join("sys"))),
            commands: Arc::new(door.clone()),
            blocks: Arc::new(door.clone()),
            images: Arc::new(self.machine.images()),
            pr: Arc::new(self.machine.clone()),
            clock: Arc::new(SystemClock),
            addresses_changed: Arc::default(),
            bus: None,
            addresses: Arc::new(move || vec![IpAddr::from(own).into()]),
            root: self.dir.join("root"),
        };
        let fc_door = self.fabric.as_ref().map(|fabric| fabric.door(None));
        let host_door = self.world.as_ref().map(|world| world.door(None));
        let host = host_door.clone().map(|door| {
            let parts = door.parts();
            let sessions = Wired {
                host: self.name.clone(),
                network: self.network.clone(),
                world: parts.sessions.clone(),
            };
            let parts = match &fc_door {
                None => Parts { sessions: Arc::new(sessions), ..parts },
                Some(door) => {
                    let sys = Arc::new(door.clone());
                    let fabric = Fabric::new(sys.clone(), self.config.state_dir.join("fabric"));
                    let sessions = Arc::new(Ways::new(Arc::new(sessions), fabric));
                    let links = Arc::new(RunLinks::new(&self.config.run_dir, "/dev"));
                    Parts { sys: sys.clone(), disks: sys, links, sessions, ..parts }
                }
            };
            HostParts { parts, uevents: Box::new(move || Some(door.uevents())) }
        });
        let (stop, stopped) = watch::channel(false);
        let (say, ready) = std::sync::mpsc::channel();
        let (config, failed) = (self.config.clone(), say.clone());
        let ended = runtime.spawn(async move {
            let ready = move |_: &mooring_agent::engine::Engine| {
                // If the test has ended meanwhile, there is no receiver.
                let _ = say.send(Ok(()));
                Ok(())
            };
            if let Err(error) = run::run(config, machine, host, ready, stopped).await {
                let _ = failed.send(Err(format!("{error:#}")));
            }
        });
        let began = ready.recv().unwrap_or_else(|_| Err("it ended".to_owned()));
        began.map(|()| Running { runtime, door, host_door, fc_door, stop, ended })
    }

    /// Kills the agent: nothing is closed, reported or done any more.
    pub fn kill(&self) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() {
            running.kill();
        }
    }

    /// Stops the agent in order.
    pub fn stop(&self) {
        let Some(mut running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        running.stop.send_replace(true);
        // The agent's own result does not matter here, only its end.
        let _ = running.runtime.block_on(&mut running.ended);
        running.kill();
    }

    /// Kills the agent, and starts it again.
    pub fn restart(&self) {
        self.kill();
        self.start();
    }

    /// Kills the agent, and removes its state folder.
    pub fn lose_database(&self) {
        self.kill();
        until("the agent's folder is released", || match std::fs::remove_dir_all(&self.config.state_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
            _ => Ok(()),
        });
    }

    /// Cuts and restores the power, and starts the agent as at a boot.
    pub fn reboot(&self) {
        self.kill();
        self.machine.reboot();
        if let Some(world) = &self.world {
            world.reboot();
        }
        self.network.refresh();
        self.start();
    }

    /// The kernel's whole target configuration as text, without counters, sessions and secrets.
    pub fn tree(&self) -> String {
        let lines = dump(&self.machine.lio());
        let configured = |line: &&str| !line.contains("statistics") && !line.contains("/info = ");
        lines.lines().filter(configured).flat_map(|line| [line, "\n"]).collect()
    }

    /// All accesses to a volume now, by initiator name.
    pub fn grants(&self, volume: &str) -> BTreeMap<String, Grant> {
        let target = target_of(volume);
        let mut grants = BTreeMap::new();
        for reach in self.machine.reachable().into_iter().filter(|reach| reach.target == target) {
            let writes = reach.mode == Access::ReadWrite;
            let grant = Grant { lun: reach.lun, writes, authenticated: reach.authenticated };
            grants.insert(reach.initiator, grant);
        }
        grants
    }

    /// All accesses to a volume over Fibre Channel, as `20:00:…:0b LUN 1 rw at 20:00:…:0a`.
    pub fn fc_grants(&self, volume: &str) -> Vec<String> {
        let lv = format!("mooring-{volume}");
        let here = |reach: &Reach| reach.device.ends_with(&lv) && !reach.target.starts_with("iqn.");
        let said = |reach: Reach| {
            let mode = if reach.mode == Access::ReadWrite { "rw" } else { "ro" };
            format!("{} LUN {} {mode} at {}", reach.initiator, reach.lun, reach.target)
        };
        self.machine.reachable().into_iter().filter(here).map(said).collect()
    }

    /// The kernel's `write_protect` of an initiator's LUN. `None`: it has none.
    pub fn write_protect(&self, volume: &str, initiator: &str) -> Option<bool> {
        let path = format!("iscsi/{}/tpgt_1/acls/{initiator}/lun_1/write_protect", target_of(volume));
        let read = self.machine.lio().read(&TreePath::new(&path)).ok()?;
        Some(read.trim_ascii() == b"1")
    }

    /// The initiators with a live session of a volume.
    pub fn sessions(&self, volume: &str) -> Vec<String> {
        let folder = TreePath::new(&format!("iscsi/{}/tpgt_1/acls", target_of(volume)));
        let acls = self.machine.lio().list(&folder).unwrap_or_default();
        let live = |name: &String| {
            let info = self.machine.lio().read(&folder.join(name).join("info")).unwrap_or_default();
            String::from_utf8_lossy(&info).contains("InitiatorName: ")
        };
        acls.into_iter().map(|entry| entry.name).filter(live).collect()
    }

    /// Returns `true` if the kernel has anything of a volume.
    pub fn has_export(&self, volume: &str) -> bool {
        self.tree().contains(volume)
    }

    /// Returns `true` if this pool has a volume's data.
    pub fn has_volume(&self, pool: &str, volume: &str) -> bool {
        matches!(self.machine.blocks().size(&Self::device(pool, volume)), Ok(Some(_)))
    }

    /// The device node of a volume in this pool.
    pub fn device(pool: &str, volume: &str) -> PathBuf {
        format!("/dev/{pool}/mooring-{volume}").into()
    }

    /// Makes a program on this host open a volume's disk (`true`), or close it (`false`).
    pub fn hold_open(&self, volume: &str, open: bool) {
        let holder = Holder::Process { pid: 4711, name: "qemu-system-x86".to_owned() };
        let holders: &[Holder] = if open { &[holder] } else { &[] };
        self.world().hold_open(volume_id(volume), holders);
    }

    /// The device that an attachment's path on this host leads to; `None`: there is no path.
    pub fn path_of(&self, attachment: &str) -> Option<String> {
        let path = self.config.run_dir.join("attachments").join(attachment);
        Some(std::fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// Sectors that this host reads ahead of its disk of a volume. `None`: it has none.
    pub fn read_ahead(&self, volume: &str) -> Option<u32> {
        self.world().read_ahead(volume_id(volume))
    }

    /// Returns `true` if this host's own disk of a volume refuses writes. `None`: it has none.
    pub fn is_read_only(&self, volume: &str) -> Option<bool> {
        self.world().is_read_only(volume_id(volume))
    }
}

/// Adds an adapter to the fake sysfs.
fn add_adapter(folder: &Path, port: &str) {
    std::fs::create_dir_all(folder).unwrap();
    // As the kernel prints it: without leading zeros.
    let name = format!("0x{}\n", port.replace(':', "").trim_start_matches('0'));
    for (file, text) in
        [("port_name", name.as_str()), ("symbolic_name", "fcoe v0.1 over eth1\n"), ("port_state", "Online\n")]
    {
        std::fs::write(folder.join(file), text).unwrap();
    }
}

fn volume_id(volume: &str) -> VolumeId {
    volume.parse().expect("a volume's id")
}

fn target_of(volume: &str) -> String {
    IqnPrefix::default().target(volume_id(volume)).to_string()
}

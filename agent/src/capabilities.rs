//! What this host can do, from facts: each time it is asked, the kernel, LVM and the addresses are looked at. LVM may hang
//! with a disk: see `lvm`.
//!
//! What must never happen here: a capability that is claimed and was not seen; a change of the machine; an error that hides
//! the rest: what cannot be looked at becomes a problem that says what to run.

mod lvm;

use mooring_api::v1;
use mooring_host::{LocalAddress, Tree, TreePath};
use mooring_model::{AgentId, ByteSize, Chain, Cure, LvName, PoolName, Portal, Problem};

pub use self::lvm::Known;
pub(crate) use self::lvm::{Lvm, begin};
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::addresses::trouble;
use crate::machine::Machine;
use crate::volumes::{self, VolumesView};

/// Protocols by their names on the wire.
const ISCSI: &str = "iscsi";
const FC: &str = "fc";

/// A port whose link is up, as sysfs says.
const ONLINE: &str = "Online";

/// Asks LVM, and looks at everything else. Waits for LVM for a moment only.
pub async fn ask(engine: &Engine, host_name: &str) -> v1::Capabilities {
    let looking = engine.clone();
    let known =
        engine.lvm().ask(|look| engine.submit(move || look.run(looking.machine(), looking.config()))).await;
    with(engine, host_name, known).await
}

/// Looks at everything but LVM: of that, what is known.
pub async fn now(engine: &Engine, host_name: &str) -> v1::Capabilities {
    with(engine, host_name, engine.lvm().known()).await
}

/// What is known of the groups, without a look at anything.
pub(crate) fn known(engine: &Engine) -> Known {
    engine.lvm().known()
}

async fn with(engine: &Engine, host_name: &str, known: Known) -> v1::Capabilities {
    let (looking, host_name) = (engine.clone(), host_name.to_owned());
    let gathered = engine.blocking(move || {
        let mut found = gather(looking.machine(), looking.config(), looking.agent_id(), &host_name, known);
        let gone = looking.store().check_place().err().map(|error| Problem {
            object: "store".to_owned(),
            text: error.to_string(),
            cure: error.cure(),
        });
        found.problems.extend(gone.iter().chain(&looking.strays()).map(Into::into));
        let (transport, problems) = fibre_channel(&looking);
        found.transports.extend(transport);
        found.problems.extend(problems.iter().map(Into::into));
        found
    });
    gathered.await.unwrap_or_default()
}

fn gather(
    machine: &Machine,
    config: &Config,
    agent: AgentId,
    host_name: &str,
    known: Known,
) -> v1::Capabilities {
    let mut problems = Vec::new();
    if config.host.is_some() {
        check_host(&*machine.sys, config, &mut problems);
    }
    // A host that only attaches volumes need not have a target, nor LVM.
    let serves = !config.groups.is_empty();
    let target_ready = serves && check_target(&*machine.target, &*machine.sys, &mut problems);
    let pools_unknown = serves && known.said.is_none();
    let mut pools = Vec::new();
    if serves {
        problems.extend(known.silence);
        if let Some(said) = known.said {
            problems.extend(said.problems);
            pools = said.pools;
        }
    }
    let transports = transports(&config.portals, &(machine.addresses)(), target_ready, &mut problems);
    v1::Capabilities {
        agent_id: agent.to_string(),
        host_name: host_name.to_owned(),
        kernel_release: kernel_release(),
        multiattach: target_ready,
        pools,
        transports,
        problems: problems.iter().map(Into::into).collect(),
        pools_age_ms: u64::try_from(known.age.as_millis()).unwrap_or(u64::MAX),
        pools_unknown,
        access_modes: vec![v1::Mode::ReadOnly.into(), v1::Mode::ReadWrite.into()],
    }
}

/// The Fibre Channel ports that serve. Ready: one of them is a target, and its link is up.
fn fibre_channel(engine: &Engine) -> (Option<v1::Transport>, Vec<Problem>) {
    let Some(config) = &engine.config().fibre_channel else { return (None, Vec::new()) };
    let seen = engine.fibre_channel_ports();
    let mut problems = Vec::new();
    let mut problem = |object: String, text: String| {
        problems.push(Problem { object, text, cure: Cure::Operator });
    };
    if seen.is_empty() && config.ports.is_empty() {
        let text = "no port of software FCoE is on this host: bring one up, or name the ports of adapters in \
                    [fibre_channel]";
        problem("Fibre Channel".to_owned(), text.to_owned());
    }
    let mut ready = false;
    for port in &seen {
        match (&port.trouble, port.state.as_str()) {
            (Some(trouble), _) => {
                let module = port.port.fabric.module();
                problem(
                    format!("port {}", port.port),
                    format!("it is no target: {trouble} (is {module} loaded?)"),
                );
            }
            (None, ONLINE) => ready = true,
            (None, "") => {
                problem(format!("port {}", port.port), "no adapter of this host has this port".to_owned());
            }
            (None, state) => problem(format!("port {}", port.port), format!("its link is not up: {state}")),
        }
    }
    let ports = seen.into_iter().map(|port| v1::FcPort { port: port.port.to_string(), state: port.state });
    let transport =
        v1::Transport { protocol: FC.to_owned(), portals: Vec::new(), ready, ports: ports.collect() };
    (Some(transport), problems)
}

/// This host's name.
pub fn host_name() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.nodename().to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn kernel_release() -> String {
    nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// What attaching needs.
fn check_host(sys: &dyn Tree, config: &Config, problems: &mut Vec<Problem>) {
    let mut problem = |object: &str, text: String, cure| {
        problems.push(Problem { object: object.to_owned(), text, cure });
    };
    let built_in = TreePath::new("class/iscsi_transport/tcp");
    if !is_dir(sys, &TreePath::new("module/iscsi_tcp")) && !is_dir(sys, &built_in) {
        let text = "the module iscsi_tcp is not loaded: run modprobe iscsi_tcp".to_owned();
        problem("kernel initiator", text, Cure::Operator);
    }
    let software = concat!("mooring-agent ", env!("CARGO_PKG_VERSION"));
    if let Err(error) = mooring_connectors::client::Client::connect(&config.run_dir, software) {
        problem("mooring-sessiond", Chain(&error).to_string(), error.cure());
    }
}

/// Whether LIO can serve iSCSI now.
fn check_target(target: &dyn Tree, sys: &dyn Tree, problems: &mut Vec<Problem>) -> bool {
    let loaded = |module: &str| is_dir(sys, &TreePath::new("module").join(module));
    let mut problem = |text: &str| {
        let (object, text) = ("kernel target".to_owned(), text.to_owned());
        problems.push(Problem { object, text, cure: Cure::Operator });
    };
    // A module that is built into the kernel may not stand in /sys/module: what it offers in configfs counts as well.
    if !is_dir(target, &TreePath::root()) {
        if loaded("target_core_mod") {
            problem("LIO's folder is not in configfs: run mount -t configfs none /sys/kernel/config");
        } else {
            problem(
                "the module target_core_mod is not loaded: run modprobe target_core_mod (a cloud kernel may lack it: \
                 install the generic one) and, if configfs is not mounted, mount -t configfs none /sys/kernel/config",
            );
        }
        return false;
    }
    let iscsi = loaded("iscsi_target_mod") || is_dir(target, &TreePath::new(ISCSI));
    if !iscsi {
        problem("the module iscsi_target_mod is not loaded: run modprobe iscsi_target_mod");
    }
    // The kernel loads it by itself with the first backstore, so its absence is worth a word and is no verdict.
    if !loaded("target_core_iblock") && !has_iblock(target) {
        problem("the module target_core_iblock is not loaded: run modprobe target_core_iblock");
    }
    iscsi
}

fn is_dir(tree: &dyn Tree, path: &TreePath) -> bool {
    tree.is_dir(path).unwrap_or(false)
}

fn has_iblock(target: &dyn Tree) -> bool {
    let entries = target.list(&TreePath::new("core")).unwrap_or_default();
    entries.iter().any(|entry| entry.name.starts_with("iblock_"))
}

fn check_groups(view: &VolumesView, problems: &mut Vec<Problem>) {
    let mut problem = |group: &mooring_model::VgName, text: String| {
        problems.push(Problem { object: format!("volume group {group}"), text, cure: Cure::Operator });
    };
    for group in view.missing() {
        let others = if view.unlisted().is_empty() { "none".to_owned() } else { view.unlisted().join(", ") };
        problem(
            group,
            format!(
                "it is listed in the configuration and is not on this host (not listed, but here: {others}): create it \
                 with vgcreate, or correct the configuration"
            ),
        );
    }
    for group in view.groups() {
        if let Some(trouble) = &group.trouble {
            problem(&group.name, trouble.clone());
        }
    }
    for (group, pool) in view.groups().iter().filter_map(|group| Some((group, group.pool.as_ref()?))) {
        let Some(text) = pool.trouble.clone().or_else(|| pool.warning(&group.name)) else { continue };
        if pool.tagged {
            let object = format!("thin pool {}/{}", group.name, LvName::thin_pool());
            problems.push(Problem { object, text, cure: Cure::Operator });
        }
    }
}

/// A pool's free bytes are what a new volume may take: LVM's free extents less the reserve; of a thin pool, what no volume has
/// written to. One that is made with its first volume has all that it would have then.
fn pools(view: &VolumesView) -> Vec<v1::Pool> {
    let count = |group: &volumes::SeenGroup, thin| {
        u32::try_from(view.count_in(&group.name, thin)).unwrap_or(u32::MAX)
    };
    let thick = |group: &volumes::SeenGroup| v1::Pool {
        name: group.name.to_string(),
        total_bytes: group.size.0,
        free_bytes: if group.trouble.is_none() { group.available().0 } else { 0 },
        extent_bytes: group.extent.0,
        thick: true,
        volumes: count(group, false),
        provisioned_bytes: view.bytes_in(&group.name).0,
    };
    let thin = |group: &volumes::SeenGroup| {
        let (total, free) = match (&group.pool, group.thin_size) {
            (Some(pool), _) if pool.tagged && pool.trouble.is_none() => (pool.size, pool.free()),
            (Some(pool), _) if pool.tagged => (pool.size, ByteSize(0)),
            (None, Some(size)) if size <= group.available() => (size, size),
            _ => return None,
        };
        Some(v1::Pool {
            name: PoolName { group: group.name.clone(), thin: true }.to_string(),
            total_bytes: total.0,
            free_bytes: if group.trouble.is_none() { free.0 } else { 0 },
            extent_bytes: group.extent.0,
            thick: false,
            volumes: count(group, true),
            provisioned_bytes: view.thin_bytes_in(&group.name).0,
        })
    };
    view.groups().iter().flat_map(|group| std::iter::once(thick(group)).chain(thin(group))).collect()
}

/// Portals that can be reached, and apart from them those that cannot.
fn transports(
    portals: &[Portal],
    here: &[LocalAddress],
    target_ready: bool,
    problems: &mut Vec<Problem>,
) -> Vec<v1::Transport> {
    let (present, absent): (Vec<&Portal>, Vec<&Portal>) =
        portals.iter().partition(|portal| trouble(portal, here).is_none());
    problems.extend(absent.iter().filter_map(|portal| trouble(portal, here)));
    let transport = |portals: Vec<&Portal>, ready| v1::Transport {
        protocol: ISCSI.to_owned(),
        portals: portals.iter().map(ToString::to_string).collect(),
        ready,
        ports: Vec::new(),
    };
    [(present, target_ready), (absent, false)]
        .into_iter()
        .filter(|(portals, _)| !portals.is_empty())
        .map(|(portals, ready)| transport(portals, ready))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;
    use std::sync::Arc;

    use mooring_host::fake::FakeMachine;
    use mooring_host::{KernelTree, SystemClock};
    use mooring_model::{LV_TAG, LvName, VolumeId};

    use super::*;

    const CONFIG: &str = "portals = [\"10.0.0.1\", \"10.0.1.1\"]\n[[groups]]\nname = \"vg0\"\nreserve = \"8MiB\"\n\
                          [[groups]]\nname = \"vg1\"\n";

    struct Rig {
        fake: FakeMachine,
        sys: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let rig = Self { fake: FakeMachine::new(), sys: tempfile::tempdir().unwrap() };
            rig.fake.add_vg("vg0", 64 << 20);
            rig.fake.add_vg("vg1", 64 << 20);
            for module in ["target_core_mod", "target_core_iblock", "iscsi_target_mod"] {
                rig.module(module, true);
            }
            rig
        }

        fn module(&self, name: &str, loaded: bool) {
            let path = self.sys.path().join("module").join(name);
            if loaded { std::fs::create_dir_all(path) } else { std::fs::remove_dir(path) }.unwrap();
        }

        fn machine(&self, here: &[&str]) -> Machine {
            let here: Vec<LocalAddress> =
                here.iter().map(|ip| ip.parse::<IpAddr>().unwrap().into()).collect();
            Machine {
                target: Arc::new(self.fake.lio()),
                sys: Arc::new(KernelTree::new(self.sys.path())),
                commands: Arc::new(self.fake.lvm()),
                blocks: Arc::new(self.fake.blocks()),
                clock: Arc::new(SystemClock),
                addresses: Arc::new(move || here.clone()),
                root: Path::new("/nonexistent").to_owned(),
            }
        }

        fn gather(&self, here: &[&str]) -> v1::Capabilities {
            let config = Config::parse(CONFIG, "agent.toml").unwrap();
            gather_now(&self.machine(here), &config, "storage1")
        }
    }

    /// Asks LVM on this thread.
    fn gather_now(machine: &Machine, config: &Config, host_name: &str) -> v1::Capabilities {
        let desk = Lvm::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let known = runtime.block_on(desk.ask(|look| look.run(machine, config)));
        gather(machine, config, AgentId::from_u128(1), host_name, known)
    }

    const BOTH: [&str; 3] = ["127.0.0.1", "10.0.0.1", "10.0.1.1"];

    fn texts(capabilities: &v1::Capabilities) -> Vec<String> {
        capabilities.problems.iter().map(|p| format!("{}: {}", p.object, p.text)).collect()
    }

    #[test]
    fn a_host_that_can_do_all() {
        let rig = Rig::new();
        rig.fake.lvm().add_volume("vg0", LvName::of(VolumeId::from_u128(1)).as_str(), 8 << 20, &[LV_TAG]);
        rig.fake.lvm().add_volume("vg0", LvName::of(VolumeId::from_u128(2)).as_str(), 8 << 20, &[]);
        let seen = rig.gather(&BOTH);
        assert_eq!(texts(&seen), Vec::<String>::new());
        assert!(seen.multiattach && !seen.kernel_release.is_empty());
        assert_eq!((seen.host_name.as_str(), seen.pools.len()), ("storage1", 2));
        let pool = &seen.pools[0];
        assert_eq!(
            (pool.name.as_str(), pool.total_bytes, pool.free_bytes, pool.extent_bytes, pool.volumes),
            ("vg0", 64 << 20, 40 << 20, 4 << 20, 1)
        );
        assert_eq!((pool.provisioned_bytes, seen.pools_age_ms, seen.pools_unknown), (8 << 20, 0, false));
        assert_eq!(seen.access_modes, [v1::Mode::ReadOnly as i32, v1::Mode::ReadWrite as i32]);
        assert_eq!(seen.transports.len(), 1);
        assert!(seen.transports[0].ready && seen.transports[0].portals == ["10.0.0.1:3260", "10.0.1.1:3260"]);
    }

    #[test]
    fn what_is_missing_says_what_to_run() {
        let rig = Rig::new();
        rig.module("target_core_iblock", false);
        let seen = rig.gather(&BOTH);
        assert!(seen.multiattach);
        assert_eq!(
            texts(&seen),
            ["kernel target: the module target_core_iblock is not loaded: run modprobe target_core_iblock"]
        );

        let rig = Rig::new();
        rig.module("iscsi_target_mod", false);
        let seen = rig.gather(&BOTH);
        assert!(!seen.multiattach && !seen.transports[0].ready);
        assert_eq!(
            texts(&seen),
            ["kernel target: the module iscsi_target_mod is not loaded: run modprobe iscsi_target_mod"]
        );

        let rig = Rig::new();
        rig.fake.unload_configfs();
        let seen = rig.gather(&BOTH);
        assert!(!seen.multiattach);
        assert!(texts(&seen)[0].contains("run mount -t configfs none /sys/kernel/config"), "{seen:?}");
        rig.module("target_core_mod", false);
        assert!(texts(&rig.gather(&BOTH))[0].contains("run modprobe target_core_mod"));
    }

    #[test]
    fn a_built_in_module_counts() {
        let rig = Rig::new();
        rig.module("iscsi_target_mod", false);
        rig.module("target_core_iblock", false);
        rig.fake.lio().mkdir(&TreePath::new("iscsi")).unwrap();
        rig.fake.lio().mkdir(&TreePath::new("core/iblock_1000")).unwrap();
        let seen = rig.gather(&BOTH);
        assert!(seen.multiattach && seen.problems.is_empty(), "{seen:?}");
    }

    #[test]
    fn missing_groups_and_addresses_are_named() {
        let rig = Rig::new();
        rig.fake.lvm().lose_group("vg1");
        rig.fake.add_vg("data", 64 << 20);
        let seen = rig.gather(&["127.0.0.1", "10.0.0.1"]);
        assert_eq!(
            texts(&seen),
            [
                "volume group vg1: it is listed in the configuration and is not on this host (not listed, but here: \
                 data): create it with vgcreate, or correct the configuration",
                "portal 10.0.1.1:3260: this host does not have the address 10.0.1.1 (it has 10.0.0.1): the portal \
                 waits for it; bring its interface up, or correct the configuration",
            ]
        );
        assert_eq!(seen.pools.len(), 1);
        let ready: Vec<_> = seen.transports.iter().map(|t| (t.portals[0].as_str(), t.ready)).collect();
        assert_eq!(ready, [("10.0.0.1:3260", true), ("10.0.1.1:3260", false)]);
    }

    #[test]
    fn without_lvm_the_rest_is_still_said() {
        let rig = Rig::new();
        rig.fake.lvm().set_missing(true);
        let seen = rig.gather(&BOTH);
        assert!(seen.multiattach && seen.pools.is_empty());
        assert!(texts(&seen)[0].contains("LVM is not installed; install the package lvm2"), "{seen:?}");
    }

    #[test]
    fn a_host_that_attaches_says_what_it_lacks() {
        let rig = Rig::new();
        let gather = || {
            let run = rig.sys.path().join("run");
            let text = format!("run_dir = \"{}\"\n[host]", run.display());
            let config = Config::parse(&text, "agent.toml").unwrap();
            gather_now(&rig.machine(&[]), &config, "host1")
        };
        // No word of LVM and LIO: it serves nothing.
        let said = texts(&gather());
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "kernel initiator: the module iscsi_tcp is not loaded: run modprobe iscsi_tcp");
        assert!(said[1].starts_with("mooring-sessiond: mooring-sessiond does not answer at"), "{said:?}");
        rig.module("iscsi_tcp", true);
        assert_eq!(texts(&gather()).len(), 1);
    }

    #[test]
    fn this_machine_has_a_name() {
        assert!(!host_name().is_empty());
    }
}

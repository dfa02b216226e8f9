//! Capabilities of this host. Each request examines the kernel, LVM and the addresses anew. LVM may
//! hang with a disk: see `lvm`.
//!
//! What must never happen here: a capability that is claimed and was not seen; a change of the
//! machine; an error that hides the rest: what cannot be examined becomes a problem that says what
//! to run.

mod certificates;
mod health;
mod images;
mod lvm;
mod modules;
mod pools;
mod transports;
mod units;

use std::collections::BTreeSet;

use mooring_api::v1;
use mooring_bus::Units;
use mooring_host::{Tree, TreePath};
use mooring_model::limit::{ATTACHMENTS_PER_CONNECTION_MAX, GRANTS_PER_EXPORT_MAX};
use mooring_model::{AgentId, Chain, Portal, Problem, VolumeId};

use self::health::{Code, Fault, On, Weight};
pub use self::lvm::Known;
pub(crate) use self::lvm::{Lvm, begin, timestamp};
pub(crate) use self::modules::loaded as loaded_modules;
pub(crate) use self::units::FOLLOWED as FOLLOWED_UNITS;
use crate::config::Config;
use crate::fibre_channel::PortSeen;
use crate::images::Images;
use crate::machine::Machine;
use crate::store::StoreError;

/// Facts that the engine knows of this host.
pub(crate) struct Facts<'a> {
    pub(crate) agent_id: AgentId,
    /// The authorities of this agent's TLS. `None` if it has no TLS, or does not serve yet.
    pub(crate) tls: Option<v1::TlsIdentity>,
    /// An error if what is stored from now on is lost.
    pub(crate) store: Result<(), StoreError>,
    /// Targets of ours that no spec names.
    pub(crate) orphans: Vec<Problem>,
    /// The portals where nobody can log in, and why.
    pub(crate) blocked: Vec<(Portal, Problem)>,
    /// The volumes whose devices do not answer.
    pub(crate) silent: BTreeSet<VolumeId>,
    /// The states of systemd's units. `None` if nobody knows them.
    pub(crate) units: Option<Units>,
    /// The images that volumes can be made from. `None` if no folder is configured.
    pub(crate) images: Option<&'a Images>,
    /// The Fibre Channel ports that serve.
    pub(crate) ports: Vec<PortSeen>,
    /// A target of ours. `None` if the last look found none.
    pub(crate) target: Option<String>,
}

/// Capabilities as far as they need no engine, with the faults so far.
pub(crate) struct Gathered {
    found: v1::Capabilities,
    faults: Vec<Fault>,
}

impl Gathered {
    /// Examines this host. `known` is LVM's answer about the groups.
    pub(crate) fn examine(machine: &Machine, config: &Config, host_name: &str, known: Known) -> Self {
        let (found, faults) = gather(machine, config, host_name, known);
        Self { found, faults }
    }

    /// Adds what the engine knows, and judges the health of all.
    pub(crate) fn judge(self, machine: &Machine, config: &Config, facts: Facts<'_>) -> v1::Capabilities {
        let Self { mut found, mut faults } = self;
        found.agent_id = facts.agent_id.to_string();
        found.tls = facts.tls;
        if let Err(error) = facts.store {
            // A registration from now on is not kept.
            found.persistent_reservations_kept = found.persistent_reservations_kept.map(|_| false);
            let fault =
                Fault::new(Code::StoreLost, Weight::Fails, On::Everything, "store", error.to_string());
            faults.push(fault.cured_by(error.cure()));
        }
        let orphan = |problem| Fault { code: Code::Noted, weight: Weight::Noted, on: On::Host, problem };
        faults.extend(facts.orphans.into_iter().map(orphan));
        faults.extend(transports::silent(&config.portals, &facts.blocked, &facts.silent));
        if let Some(seen) = facts.units {
            faults.extend(units::judge(&seen, machine, config));
        }
        // Without an identity this agent has no TLS, or has left: then it serves nobody over TLS.
        if let (Some(tls), Some(_)) = (&config.tls, &found.tls) {
            certificates::look(tls, machine.clock.now(), &mut faults);
        }
        if let Some(images) = facts.images {
            found.images = Some(images::look(images, &mut faults));
        }
        if config.host.is_some() {
            let serves: Vec<_> = facts.ports.iter().map(|seen| seen.port.wwpn).collect();
            found.fc_initiator_ports = transports::initiator_ports(&*machine.sys, &serves);
        }
        if let Some(config) = &config.fibre_channel {
            let (transport, wrong) = transports::fibre_channel(config, facts.ports);
            found.transports.push(transport);
            faults.extend(wrong);
        }
        let digests = facts.target.and_then(|target| transports::digests(&*machine.target, &target));
        for transport in found.transports.iter_mut().filter(|one| one.protocol == transports::ISCSI) {
            transport.digests.clone_from(&digests);
        }
        health::judge(&mut found, &faults, !config.groups.is_empty());
        found
    }
}

/// Gathers everything that needs no engine, with the faults.
fn gather(
    machine: &Machine,
    config: &Config,
    host_name: &str,
    known: Known,
) -> (v1::Capabilities, Vec<Fault>) {
    let release = kernel_release();
    let modules = modules::look(machine, config, &release);
    let mut faults = Vec::new();
    // A host that only attaches volumes need not have a target, nor LVM.
    let serves = !config.groups.is_empty();
    if config.host.is_some() {
        check_host(&modules, config, &release, &mut faults);
    }
    let target_ready = serves && transports::check_target(machine, &modules, &release, &mut faults);
    let pools_unknown = serves && known.said.is_none();
    let age = known.age;
    let pools = if serves { pools_of(known, &modules, &release, &mut faults) } else { Vec::new() };
    let transports = transports::iscsi(&config.portals, &(machine.addresses)(), target_ready, &mut faults);
    let reserves = serves.then(|| target_ready && keeps_reservations(machine));
    let modes = [v1::Mode::ReadOnly.into(), v1::Mode::ReadWrite.into()];
    let limit = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
    let found = v1::Capabilities {
        host_name: host_name.to_owned(),
        kernel_release: release,
        multiattach: target_ready,
        pools,
        transports,
        pools_age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        pools_unknown,
        access_modes: if target_ready { modes.to_vec() } else { Vec::new() },
        modules,
        persistent_reservations: reserves,
        persistent_reservations_kept: reserves,
        initiators_per_volume_max: serves.then(|| limit(GRANTS_PER_EXPORT_MAX)),
        // The kernel's target has all that seals a read-only export.
        read_only_sealed: serves.then_some(target_ready),
        attachments_per_connection_max: config.host.as_ref().map(|_| limit(ATTACHMENTS_PER_CONNECTION_MAX)),
        cache_off: config.host.as_ref().map(|_| true),
        ..v1::Capabilities::default()
    };
    (found, faults)
}

/// Returns the pools as LVM has shown them, without what the kernel cannot do.
fn pools_of(known: Known, modules: &[v1::Module], release: &str, faults: &mut Vec<Fault>) -> Vec<v1::Pool> {
    faults.extend(known.silence);
    let mut pools = Vec::new();
    if let Some(said) = known.said {
        faults.extend(said.faults);
        pools = said.pools;
    }
    if modules::is_absent(modules, modules::THIN_POOL) {
        let text = missing_text(modules, modules::THIN_POOL, release);
        faults.push(Fault::new(Code::ModuleMissing, Weight::Fails, On::ThinPools, "thin pools", text));
        for pool in pools.iter_mut().filter(|pool| !pool.thick) {
            pool.free_bytes = 0;
            pool.snapshots = Some(false);
            pool.online_extend = Some(false);
        }
    }
    pools
}

/// Returns `true` if the folder of persistent reservations exists. Without it the kernel answers
/// every change of a registration with "not ready".
fn keeps_reservations(machine: &Machine) -> bool {
    machine.reservations_folder().is_ok_and(|folder| folder.is_dir())
}

/// Returns the name of this host.
pub fn host_name() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.nodename().to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn kernel_release() -> String {
    nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Says why a module is not loaded, and what to run.
fn missing_text(modules: &[v1::Module], name: &str, release: &str) -> String {
    match modules::find(modules, name) {
        Some(module) if module.state() == v1::ModuleState::Absent => {
            format!("the kernel {release} has no module {name}: {}", module.remedy)
        }
        _ => format!("the module {name} is not loaded: run modprobe {name}"),
    }
}

/// Checks what attaching needs.
fn check_host(modules: &[v1::Module], config: &Config, release: &str, faults: &mut Vec<Fault>) {
    // A host that serves goes on serving without it.
    let weight = if config.groups.is_empty() { Weight::Fails } else { Weight::Degrades };
    if modules::is_missing(modules, modules::INITIATOR) {
        let text = missing_text(modules, modules::INITIATOR, release);
        faults.push(Fault::new(Code::ModuleMissing, weight, On::Host, "kernel initiator", text));
    }
    let software = concat!("mooring-agent ", env!("CARGO_PKG_VERSION"));
    if let Err(error) = mooring_connectors::client::Client::connect(&config.run_dir, software) {
        let text = Chain(&error).to_string();
        let fault = Fault::new(Code::SessionDaemon, weight, On::Host, "mooring-sessiond", text);
        faults.push(fault.cured_by(error.cure()));
    }
}

/// Returns the problems with systemd's units.
pub(crate) fn wrong_units(seen: &Units, machine: &Machine, config: &Config) -> Vec<Problem> {
    units::judge(seen, machine, config).into_iter().map(|fault| fault.problem).collect()
}

fn is_dir(tree: &dyn Tree, path: &TreePath) -> bool {
    tree.is_dir(path).unwrap_or(false)
}

fn has_iblock(target: &dyn Tree) -> bool {
    let entries = target.list(&TreePath::new("core")).unwrap_or_default();
    entries.iter().any(|entry| entry.name.starts_with("iblock_"))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use mooring_host::fake::FakeMachine;
    use mooring_host::{KernelTree, LocalAddress, SystemClock};
    use mooring_model::{LV_TAG, LvName, VolumeId};
    use v1::HealthLevel::{Degraded, Failed, Ok as Fine};
    use v1::ModuleState::{Absent, Loadable, Present, Unlisted};

    use super::*;

    const CONFIG: &str = "portals = [\"10.0.0.1\", \"10.0.1.1\"]\n[[groups]]\nname = \"vg0\"\nreserve = \"8MiB\"\n\
                          [[groups]]\nname = \"vg1\"\n";

    /// A machine whose `/` and `/sys` are a folder of the test.
    struct Rig {
        fake: FakeMachine,
        sys: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let rig = Self { fake: FakeMachine::new(), sys: tempfile::tempdir().unwrap() };
            rig.fake.add_vg("vg0", 64 << 20);
            rig.fake.add_vg("vg1", 64 << 20);
            for module in ["dm_mod", "target_core_mod", "target_core_iblock", "iscsi_target_mod"] {
                rig.module(module, true);
            }
            let folder = mooring_targets::pr_folder(&rig.fake.lio()).unwrap();
            std::fs::create_dir_all(rig.sys.path().join(folder.strip_prefix("/").unwrap())).unwrap();
            rig
        }

        /// Writes the lists of the running kernel's modules, with exactly these.
        fn lists(&self, loadable: &[&str], built_in: &[&str]) {
            let folder = self.sys.path().join("lib/modules").join(kernel_release());
            std::fs::create_dir_all(&folder).unwrap();
            let text = |names: &[&str], end: &str| -> String {
                let lines: Vec<_> =
                    names.iter().map(|name| format!("kernel/drivers/x/{name}.ko{end}\n")).collect();
                lines.concat()
            };
            std::fs::write(folder.join("modules.dep"), text(loadable, ".xz: kernel/lib/libcrc32c.ko.xz"))
                .unwrap();
            std::fs::write(folder.join("modules.builtin"), text(built_in, "")).unwrap();
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
                folders: None,
                callers: None,
                sys: Arc::new(KernelTree::new(self.sys.path())),
                commands: Arc::new(self.fake.lvm()),
                blocks: Arc::new(self.fake.blocks()),
                images: Arc::new(self.fake.images()),
                pr: Arc::new(self.fake.clone()),
                clock: Arc::new(SystemClock),
                addresses_changed: Arc::default(),
                bus: None,
                addresses: Arc::new(move || here.clone()),
                root: self.sys.path().to_owned(),
            }
        }

        fn gather(&self, here: &[&str]) -> v1::Capabilities {
            self.gather_with(CONFIG, here)
        }

        fn gather_with(&self, config: &str, here: &[&str]) -> v1::Capabilities {
            let config = Config::parse(config, "agent.toml").unwrap();
            gather_now(&self.machine(here), &config, "storage1")
        }

        /// Configures one group with a thin pool of 32 MiB and the keys `more`, and a volume in
        /// each pool.
        fn thin(&self, more: &str) -> v1::Capabilities {
            let text = format!(
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\nthin_pool = \"64MiB\"\n{more}"
            );
            self.gather_with(&text, &BOTH)
        }
    }

    /// Queries LVM on this thread.
    fn gather_now(machine: &Machine, config: &Config, host_name: &str) -> v1::Capabilities {
        let desk = Lvm::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let known = runtime.block_on(desk.ask(|look| look.run(machine, config)));
        let (mut found, faults) = gather(machine, config, host_name, known);
        health::judge(&mut found, &faults, !config.groups.is_empty());
        found
    }

    fn level(health: Option<&v1::Health>) -> v1::HealthLevel {
        health.expect("it is said").level()
    }

    /// Returns the health levels of the host, its pools, its transports.
    fn levels(seen: &v1::Capabilities) -> (v1::HealthLevel, Vec<v1::HealthLevel>, Vec<v1::HealthLevel>) {
        (
            level(seen.health.as_ref()),
            seen.pools.iter().map(|pool| level(pool.health.as_ref())).collect(),
            seen.transports.iter().map(|one| level(one.health.as_ref())).collect(),
        )
    }

    fn codes(health: Option<&v1::Health>) -> Vec<&str> {
        health.map_or_else(Vec::new, |health| health.reasons.iter().map(|one| one.code.as_str()).collect())
    }

    fn module<'a>(seen: &'a v1::Capabilities, name: &str) -> (v1::ModuleState, &'a str) {
        let module = modules::find(&seen.modules, name).expect("it is needed");
        (module.state(), module.remedy.as_str())
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
        assert_eq!(levels(&seen), (Fine, vec![Fine, Fine], vec![Fine]));
        assert_eq!((pool.reserved_bytes, seen.pools[1].reserved_bytes), (Some(8 << 20), Some(0)));
        assert_eq!((pool.snapshots, pool.online_extend), (Some(false), Some(true)));
        assert_eq!(
            (seen.persistent_reservations, seen.persistent_reservations_kept),
            (Some(true), Some(true))
        );
        assert_eq!(seen.read_only_sealed, Some(true));
        let limits = (seen.initiators_per_volume_max, seen.attachments_per_connection_max);
        assert_eq!(limits, (Some(512), None), "it attaches nothing itself");
        assert_eq!(seen.cache_off, None);
        let needed: Vec<_> = seen.modules.iter().map(|one| (one.name.as_str(), one.state())).collect();
        let names = ["dm_mod", "target_core_mod", "target_core_iblock", "iscsi_target_mod"];
        assert_eq!(needed, names.map(|name| (name, Present)));
    }

    #[test]
    fn without_their_folder_reservations_are_not_taken() {
        let rig = Rig::new();
        std::fs::remove_dir_all(rig.sys.path().join("var")).unwrap();
        let seen = rig.gather(&BOTH);
        assert_eq!((seen.persistent_reservations, seen.multiattach), (Some(false), true));
    }

    #[test]
    fn a_module_is_present_loadable_absent_or_nobody_knows() {
        let rig = Rig::new();
        rig.module("iscsi_target_mod", false);
        // The folder of a kernel whose package was removed is missing.
        let seen = rig.gather(&BOTH);
        assert_eq!(module(&seen, "iscsi_target_mod"), (Unlisted, "modprobe iscsi_target_mod"));
        assert_eq!(levels(&seen), (Failed, vec![Fine, Fine], vec![Failed]), "nobody could log in");
        assert_eq!(codes(seen.transports[0].health.as_ref()), ["module_missing"]);

        rig.lists(&["target_core_mod", "iscsi_target_mod"], &[]);
        let seen = rig.gather(&BOTH);
        assert_eq!(module(&seen, "iscsi_target_mod"), (Loadable, "modprobe iscsi_target_mod"));
        assert!(texts(&seen)[0].ends_with("is not loaded: run modprobe iscsi_target_mod"), "{seen:?}");

        rig.lists(&["target_core_mod"], &[]);
        std::fs::create_dir_all(rig.sys.path().join("etc")).unwrap();
        std::fs::write(rig.sys.path().join("etc/os-release"), "ID=debian\n").unwrap();
        let seen = rig.gather(&BOTH);
        let (state, remedy) = module(&seen, "iscsi_target_mod");
        assert!(state == Absent && remedy.starts_with("apt install linux-image-"), "{remedy}");
        assert!(
            texts(&seen)[0].contains(" has no module iscsi_target_mod: apt install linux-image-"),
            "{seen:?}"
        );
        assert!(!seen.multiattach && seen.access_modes.is_empty());

        rig.lists(&["target_core_mod"], &["iscsi_target_mod"]);
        let seen = rig.gather(&BOTH);
        assert_eq!(module(&seen, "iscsi_target_mod"), (Present, ""), "it is built in");
        assert!(seen.multiattach && seen.problems.is_empty(), "{seen:?}");
    }

    #[test]
    fn a_kernel_that_loads_a_module_by_itself_has_to_have_it() {
        let rig = Rig::new();
        rig.module("target_core_iblock", false);
        rig.lists(&["target_core_iblock"], &[]);
        let seen = rig.gather(&BOTH);
        assert_eq!((levels(&seen).0, seen.problems.len(), seen.multiattach), (Fine, 1, true), "{seen:?}");
        rig.lists(&["something_else"], &[]);
        let seen = rig.gather(&BOTH);
        assert_eq!((levels(&seen).0, seen.multiattach), (Failed, false), "{seen:?}");
    }

    #[test]
    fn a_thin_pool_has_snapshots_where_the_kernel_has_thin_pools() {
        let rig = Rig::new();
        rig.lists(&["dm-thin-pool"], &[]);
        let seen = rig.thin("reserve = \"0B\"");
        let [thick, thin] = seen.pools.as_slice() else { panic!("{seen:?}") };
        assert_eq!(module(&seen, "dm_thin_pool").0, Loadable, "by the unit, or by LVM with the first one");
        assert_eq!((thick.thick, thick.snapshots, thick.online_extend), (true, Some(false), Some(true)));
        assert_eq!(
            (thin.name.as_str(), thin.snapshots, thin.online_extend),
            ("vg0:thin", Some(true), Some(true))
        );
        assert!(thin.free_bytes > 0);
        assert_eq!(levels(&seen).1, [Fine, Fine]);

        rig.lists(&["dm-mod"], &[]);
        let seen = rig.thin("reserve = \"0B\"");
        let thin = &seen.pools[1];
        assert_eq!((thin.free_bytes, thin.snapshots, thin.online_extend), (0, Some(false), Some(false)));
        assert_eq!(levels(&seen), (Degraded, vec![Fine, Failed], vec![Fine]));
        assert_eq!(codes(thin.health.as_ref()), ["module_missing"]);
        assert!(texts(&seen)[0].contains("has no module dm_thin_pool"), "{seen:?}");
    }

    #[test]
    fn discards_are_claimed_where_they_are_wanted_and_taken() {
        let rig = Rig::new();
        let of = |more: &str| {
            let pool = rig.thin(more).pools[0].clone();
            (pool.discard, pool.discard_below)
        };
        assert_eq!(of(""), (Some(false), None), "nobody asks for them, and nobody has looked");
        assert_eq!(of("wipe = \"discard\""), (Some(false), Some(false)), "the disk takes none");
        assert_eq!(of("discard = true"), (Some(false), Some(false)));
        rig.fake.lvm().set_discards("vg0", true);
        assert_eq!(of("wipe = \"discard\""), (Some(false), Some(true)), "deletions only");
        assert_eq!(of("discard = true"), (Some(true), Some(true)));
    }

    #[test]
    fn what_a_deletion_does_is_said_as_the_disks_have_it() {
        use v1::Wipe::{Discard, None, Unspecified, Zero};
        let rig = Rig::new();
        let of = |word: &str| {
            let [thick, thin] = rig.thin(word).pools.try_into().unwrap();
            assert_eq!(thin.wipe(), None, "a thin pool zeroes what it gives out: {word}");
            thick.wipe()
        };
        let words = ["", "wipe = \"zero\"", "wipe = \"none\"", "wipe = \"discard\""];
        assert_eq!(words.map(of), [Zero, Zero, None, Zero], "the disk takes none: it is zeroed");
        rig.fake.lvm().set_discards("vg0", true);
        assert_eq!(words.map(of), [Zero, Zero, None, Discard]);
        // The control: an agent that does not report it says none of these.
        assert_eq!(v1::Pool::default().wipe(), Unspecified);
    }

    #[test]
    fn a_thin_pool_takes_discards_whatever_its_disk_does() {
        let rig = Rig::new();
        // Nobody has to ask for them, or to vouch for the disks.
        let of = || {
            let seen = ["", "discard = false", "discard = true"].map(|more| {
                let seen = rig.thin(more);
                let pool = seen.pools.iter().find(|pool| !pool.thick).unwrap();
                (pool.discard, pool.discard_below)
            });
            assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
            seen[0]
        };
        assert_eq!(of(), (None, None), "it is not made yet");
        let line =
            "lvcreate --yes --type thin-pool --zero y --config activation/error_when_full=1 --size 33554432b";
        let name = LvName::thin_pool();
        let args = line.split_whitespace().chain(["--name", name.as_str(), "--addtag", LV_TAG, "vg0"]);
        let lvm = mooring_host::Command {
            program: "/sbin/lvm",
            args: args.map(str::to_owned).collect(),
            timeout: std::time::Duration::from_secs(1),
        };
        let made = mooring_host::Commands::run(&rig.fake.lvm(), &lvm).unwrap();
        assert_eq!(made.status, 0, "{made:?}");
        assert_eq!(of(), (Some(true), Some(true)));
        rig.fake.lvm().set_pool_ignores_discards("vg0", true);
        assert_eq!(of(), (Some(false), Some(false)));
        // A pool that is nearly full is no failure yet.
        rig.fake.lvm().set_pool_used("vg0", 30 << 20);
        let seen = rig.thin("");
        assert_eq!(levels(&seen), (Degraded, vec![Fine, Degraded], vec![Fine]));
        assert_eq!(codes(seen.pools[1].health.as_ref()), ["thin_pool_nearly_full"]);
        assert_eq!((seen.pools[1].data_used, seen.pools[1].metadata_used), (Some(9_375), Some(100)));
        assert_eq!((seen.pools[0].data_used, seen.pools[0].metadata_used), (None, None), "it is thick");
        // Once it is full it has failed, until there is room again.
        rig.fake.lvm().set_pool_used("vg0", 32 << 20);
        let seen = rig.thin("");
        assert_eq!(levels(&seen), (Degraded, vec![Fine, Failed], vec![Fine]));
        assert_eq!(codes(seen.pools[1].health.as_ref()), ["thin_pool_full"]);
        rig.fake.lvm().set_pool_used("vg0", 0);
        assert_eq!(levels(&rig.thin("")), (Fine, vec![Fine, Fine], vec![Fine]));
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
        assert_eq!(levels(&seen), (Degraded, vec![Fine], vec![Fine, Failed]));
        assert_eq!(codes(seen.health.as_ref()), ["portal_unreachable", "group_missing"], "the worst first");
        // Nothing is left.
        rig.fake.lvm().lose_group("vg0");
        assert_eq!(levels(&rig.gather(&BOTH)), (Failed, vec![], vec![Fine]));
    }

    #[test]
    fn without_lvm_the_rest_is_still_said() {
        let rig = Rig::new();
        rig.fake.lvm().set_missing(true);
        let seen = rig.gather(&BOTH);
        assert!(seen.multiattach && seen.pools.is_empty());
        assert!(texts(&seen)[0].contains("LVM is not installed; install the package lvm2"), "{seen:?}");
        assert_eq!((level(seen.health.as_ref()), codes(seen.health.as_ref())), (Failed, vec!["lvm_failed"]));
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
        // No fault names LVM or LIO: the host serves nothing.
        let said = texts(&gather());
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "kernel initiator: the module iscsi_tcp is not loaded: run modprobe iscsi_tcp");
        assert!(said[1].starts_with("mooring-sessiond: mooring-sessiond does not answer at"), "{said:?}");
        let seen = gather();
        assert_eq!(codes(seen.health.as_ref()), ["module_missing", "session_daemon"]);
        assert_eq!(level(seen.health.as_ref()), Failed, "it can attach nothing");
        assert_eq!((seen.persistent_reservations, seen.initiators_per_volume_max), (None, None));
        assert_eq!(seen.read_only_sealed, None, "it serves nothing");
        assert_eq!((seen.attachments_per_connection_max, seen.cache_off), (Some(64), Some(true)));
        assert_eq!(seen.modules.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["iscsi_tcp"]);
        rig.module("iscsi_tcp", true);
        assert_eq!(texts(&gather()).len(), 1);
    }

    #[test]
    fn this_machine_has_a_name() {
        assert!(!host_name().is_empty());
    }
}

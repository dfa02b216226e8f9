//! Kernel modules that the configuration needs: their state, and what adds a missing one. The lists
//! that depmod makes are read only while a module is not loaded.
//!
//! What must never happen here: a module loaded by a look; one called absent because its list
//! cannot be read.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::Path;

use mooring_api::v1;
use mooring_host::TreePath;
use mooring_model::FcFabric;

use super::{has_iblock, is_dir};
use crate::config::Config;
use crate::machine::Machine;

pub(super) const TARGET: &str = "target_core_mod";
pub(super) const IBLOCK: &str = "target_core_iblock";
pub(super) const ISCSI_TARGET: &str = "iscsi_target_mod";
pub(super) const THIN_POOL: &str = "dm_thin_pool";
pub(super) const INITIATOR: &str = "iscsi_tcp";

/// Returns the kinds of Fibre Channel ports that serve. Ports that are found without configuration
/// are software's.
fn fabrics(config: &Config) -> BTreeSet<FcFabric> {
    match &config.fibre_channel {
        None => BTreeSet::new(),
        Some(fc) if fc.ports.is_empty() => BTreeSet::from([FcFabric::TcmFc]),
        Some(fc) => fc.ports.iter().map(|port| port.fabric).collect(),
    }
}

/// Returns the modules that the configuration needs, in the order of their dependence.
fn needs(config: &Config) -> Vec<(&'static str, &'static str)> {
    let mut needs = Vec::new();
    if !config.groups.is_empty() {
        needs.push(("dm_mod", "LVM"));
        if config.groups.iter().any(|group| group.thin_pool.is_some()) {
            needs.push((THIN_POOL, "thin pools"));
        }
        needs.extend([
            (TARGET, "targets"),
            (IBLOCK, "volumes behind targets"),
            (ISCSI_TARGET, "iSCSI targets"),
        ]);
        let fabric = |fabric: &FcFabric| match fabric {
            FcFabric::TcmFc => "Fibre Channel targets over software FCoE",
            FcFabric::Qla2xxx => "Fibre Channel targets on QLogic adapters",
            FcFabric::Efct => "Fibre Channel targets on Emulex adapters",
        };
        needs.extend(fabrics(config).iter().map(|one| (one.module(), fabric(one))));
    }
    if config.host.is_some() {
        needs.push((INITIATOR, "attaching over iSCSI"));
    }
    needs
}

/// Returns `true` if the kernel offers what the module provides. A module that is built into the
/// kernel need not stand in `/sys/module`.
fn shows(machine: &Machine, module: &str) -> bool {
    let (target, sys) = (&*machine.target, &*machine.sys);
    match module {
        TARGET => is_dir(target, &TreePath::root()),
        IBLOCK => has_iblock(target),
        ISCSI_TARGET => is_dir(target, &TreePath::new("iscsi")),
        INITIATOR => is_dir(sys, &TreePath::new("class/iscsi_transport/tcp")),
        "dm_mod" => is_dir(sys, &TreePath::new("class/misc/device-mapper")),
        _ => false,
    }
}

/// Returns `true` if the module is in the kernel, as far as that shows.
fn is_loaded(machine: &Machine, module: &str) -> bool {
    is_in_sysfs(machine, module) || shows(machine, module)
}

fn is_in_sysfs(machine: &Machine, module: &str) -> bool {
    is_dir(&*machine.sys, &TreePath::new("module").join(module))
}

/// Returns `true` if a list of modules names this one: `kernel/drivers/md/dm-thin-pool.ko.xz: …`.
/// The kernel reads `-` as `_`.
fn lists(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split_once(".ko").is_some_and(|(name, _)| name.replace('-', "_") == module)
    })
}

/// Lists of the running kernel's modules, read at the first use.
struct Lists<'a> {
    machine: &'a Machine,
    release: &'a str,
    read: OnceCell<Option<(String, String)>>,
}

impl Lists<'_> {
    fn state(&self, module: &str) -> v1::ModuleState {
        let folder = self.machine.root.join("lib/modules").join(self.release);
        let text = |name: &str| std::fs::read_to_string(folder.join(name));
        let read = self.read.get_or_init(|| {
            // A kernel without built-in modules has an empty list, and one whose package was
            // removed has none.
            Some((text("modules.dep").ok()?, text("modules.builtin").unwrap_or_default()))
        });
        match read {
            None => v1::ModuleState::Unlisted,
            Some((_, built_in)) if lists(built_in, module) => v1::ModuleState::Present,
            Some((loadable, _)) if lists(loadable, module) => v1::ModuleState::Loadable,
            Some(_) => v1::ModuleState::Absent,
        }
    }
}

/// A distribution by the words of `os-release`, as far as the packages of its kernels are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Debian,
    Ubuntu,
    Other,
}

impl Distribution {
    fn of(root: &Path) -> Self {
        let text = std::fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
        };
        let (id, like) = (value("ID"), value("ID_LIKE"));
        let is = |name: &str| id == name || like.split_whitespace().any(|one| one == name);
        if is("ubuntu") {
            Self::Ubuntu
        } else if is("debian") {
            Self::Debian
        } else {
            Self::Other
        }
    }
}

/// Returns what adds a module that the running kernel does not have.
fn package(root: &Path, release: &str, architecture: &str) -> String {
    match Distribution::of(root) {
        // The kernel for clouds lacks Fibre Channel, FCoE and DLM; the generic one has them.
        Distribution::Debian => {
            let architecture = match architecture {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            };
            format!("apt install linux-image-{architecture} (the generic kernel), and reboot into it")
        }
        Distribution::Ubuntu => format!("apt install linux-modules-extra-{release}"),
        Distribution::Other => {
            format!("install a kernel that has it ({release} does not), and reboot into it")
        }
    }
}

/// Returns every module that this host needs, with its present state.
pub(super) fn look(machine: &Machine, config: &Config, release: &str) -> Vec<v1::Module> {
    let lists = Lists { machine, release, read: OnceCell::new() };
    let module = |(name, needed_for): (&str, &str)| {
        let state = if is_loaded(machine, name) { v1::ModuleState::Present } else { lists.state(name) };
        let remedy = match state {
            v1::ModuleState::Present | v1::ModuleState::Unspecified => String::new(),
            v1::ModuleState::Loadable | v1::ModuleState::Unlisted => format!("modprobe {name}"),
            v1::ModuleState::Absent => package(&machine.root, release, std::env::consts::ARCH),
        };
        v1::Module { name: name.to_owned(), needed_for: needed_for.to_owned(), state: state.into(), remedy }
    };
    needs(config).into_iter().map(module).collect()
}

/// Returns for each module that the configuration needs whether it stands in sysfs. Takes a system
/// call each, and none that could hang.
pub(crate) fn loaded(machine: &Machine, config: &Config) -> Vec<bool> {
    needs(config).into_iter().map(|(name, _)| is_in_sysfs(machine, name)).collect()
}

/// Returns a module's row. `None` if the configuration does not need the module.
pub(super) fn find<'a>(modules: &'a [v1::Module], name: &str) -> Option<&'a v1::Module> {
    modules.iter().find(|module| module.name == name)
}

/// Returns `true` if the module is needed, and not in the kernel now.
pub(super) fn is_missing(modules: &[v1::Module], name: &str) -> bool {
    find(modules, name).is_some_and(|module| module.state() != v1::ModuleState::Present)
}

/// Returns `true` if the running kernel has no such module, and its list says so.
pub(super) fn is_absent(modules: &[v1::Module], name: &str) -> bool {
    find(modules, name).is_some_and(|module| module.state() == v1::ModuleState::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_by_the_names_of_its_files() {
        let text = "kernel/drivers/md/dm-thin-pool.ko.xz: kernel/drivers/md/dm-bufio.ko.xz\n\
                    kernel/drivers/target/target_core_mod.ko:\nkernel/drivers/md/dm-mod.ko.zst:";
        for (module, listed) in [
            ("dm_thin_pool", true),
            ("target_core_mod", true),
            ("dm_mod", true),
            // Another module needs it; it has no line of its own.
            ("dm_bufio", false),
            ("target_core", false),
            ("target_core_mod2", false),
            ("", false),
        ] {
            assert_eq!(lists(text, module), listed, "{module}");
        }
    }

    #[test]
    fn a_package_is_named_where_it_is_known() {
        let root = tempfile::tempdir().unwrap();
        let of = |os_release: &str, architecture: &str| {
            std::fs::create_dir_all(root.path().join("etc")).unwrap();
            std::fs::write(root.path().join("etc/os-release"), os_release).unwrap();
            package(root.path(), "6.1.0-40-cloud-amd64", architecture)
        };
        let debian = "PRETTY_NAME=\"Debian\"\nID=debian\n";
        assert_eq!(
            of(debian, "x86_64"),
            "apt install linux-image-amd64 (the generic kernel), and reboot into it"
        );
        assert!(of("ID=devuan\nID_LIKE=\"debian\"", "aarch64").contains("linux-image-arm64 "));
        let ubuntu = of("ID=ubuntu\nID_LIKE=debian\n", "x86_64");
        assert_eq!(ubuntu, "apt install linux-modules-extra-6.1.0-40-cloud-amd64");
        assert!(
            of("ID=\"fedora\"", "x86_64").starts_with("install a kernel that has it (6.1.0-40-cloud-amd64")
        );
        assert!(package(Path::new("/nonexistent"), "6.1", "x86_64").starts_with("install a kernel"));
    }
}

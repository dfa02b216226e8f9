//! Changes of a storage node by hand, behind its agent's back: LIO's tree as `targetcli` does it,
//! volume groups with LVM's own commands.
//!
//! What must never happen here: a change that the kernel or LVM would refuse on a real machine.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use mooring_host::fake::FakeMachine;
use mooring_host::{Command, CommandOutput, Commands, EntryKind, Tree, TreePath};
use mooring_model::{ExportIdentity, ExportNames, IqnPrefix, LvName, VolumeId};
use serde_json::Value;

/// The group of all volumes, and its disk.
pub(crate) const GROUP: &str = "vg0";
const DISK: &str = "/dev/sdb";
/// Size by which a volume is extended by hand, in extents of 4 MiB.
const EXTENTS_MORE: u64 = 64;

/// A change of an export in LIO's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InTree {
    /// A mapped LUN is unlinked.
    Unmap,
    RemoveAcl,
    /// The LUN goes, with everything mapped to it.
    RemoveLun,
    RemoveTarget,
    /// The backstore goes, with its LUN.
    RemoveBackstore,
    /// The write protection of a mapped LUN is inverted.
    FlipMode,
    /// The portal group admits nobody.
    Disable,
    RemovePortal,
    /// An ACL gets another password.
    Password,
}

pub(crate) const IN_TREE: [InTree; 9] = [
    InTree::Unmap,
    InTree::RemoveAcl,
    InTree::RemoveLun,
    InTree::RemoveTarget,
    InTree::RemoveBackstore,
    InTree::FlipMode,
    InTree::Disable,
    InTree::RemovePortal,
    InTree::Password,
];

/// A change of a volume's LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InGroup {
    /// LVM also does this to an LV in use.
    Rename,
    /// LVM refuses this for an LV in use.
    Remove,
    Extend,
    /// LVM refuses this for an LV in use.
    Deactivate,
}

pub(crate) const IN_GROUP: [InGroup; 4] =
    [InGroup::Rename, InGroup::Remove, InGroup::Extend, InGroup::Deactivate];

pub(crate) fn names(volume: VolumeId) -> ExportNames {
    ExportIdentity::Derived.names(volume, &IqnPrefix::default())
}

fn target(volume: VolumeId) -> TreePath {
    TreePath::new("iscsi").join(&names(volume).iqn)
}

fn group_of_portals(volume: VolumeId) -> TreePath {
    target(volume).join(format_args!("tpgt_{}", names(volume).tpg))
}

fn backstore(volume: VolumeId) -> TreePath {
    let names = names(volume);
    TreePath::new("core").join(&names.backstore.hba).join(&names.backstore.name)
}

/// Returns `true` if the kernel has a portal group for the volume.
pub(crate) fn is_exported(machine: &FakeMachine, volume: VolumeId) -> bool {
    machine.lio().is_dir(&group_of_portals(volume)).unwrap_or(false)
}

/// Lists what an initiator may notice of an export: its folders and links, and the files that
/// admit, map and protect.
pub(crate) fn shape(machine: &FakeMachine, volume: VolumeId) -> Vec<String> {
    fn note(tree: &dyn Tree, path: &TreePath, all: &mut Vec<String>) {
        for entry in tree.list(path).unwrap_or_default() {
            let inner = path.join(&entry.name);
            match entry.kind {
                EntryKind::Dir => {
                    all.push(inner.as_str().to_owned());
                    note(tree, &inner, all);
                }
                EntryKind::Link => all.push(inner.as_str().to_owned()),
                EntryKind::File if ["write_protect", "enable", "password"].contains(&inner.name()) => {
                    all.push(format!("{inner:?} {:?}", tree.read(&inner).ok()));
                }
                EntryKind::File => {}
            }
        }
    }
    let lio = machine.lio();
    let mut all = Vec::new();
    let portal_group = group_of_portals(volume);
    for part in ["acls", "lun", "np"] {
        note(&lio, &portal_group.join(part), &mut all);
    }
    all.push(format!("{:?}", lio.read(&portal_group.join("enable")).ok()));
    all.push(format!("{:?}", lio.is_dir(&backstore(volume)).ok()));
    all
}

/// Removes everything in a folder, as far as the kernel allows it.
fn clear(tree: &dyn Tree, path: &TreePath) {
    for entry in tree.list(path).unwrap_or_default() {
        let inner = path.join(&entry.name);
        match entry.kind {
            EntryKind::Link => drop(tree.unlink(&inner)),
            EntryKind::Dir => {
                clear(tree, &inner);
                // A folder that the kernel made stays.
                drop(tree.rmdir(&inner));
            }
            EntryKind::File => {}
        }
    }
}

fn folders(tree: &dyn Tree, path: &TreePath) -> Vec<TreePath> {
    let entries = tree.list(path).unwrap_or_default().into_iter();
    entries.filter(|entry| entry.kind == EntryKind::Dir).map(|entry| path.join(entry.name)).collect()
}

/// Returns all mapped LUNs of an export.
fn mapped(tree: &dyn Tree, volume: VolumeId) -> Vec<TreePath> {
    let acls = folders(tree, &group_of_portals(volume).join("acls"));
    let luns = acls.iter().flat_map(|acl| folders(tree, acl));
    luns.filter(|path| path.name().starts_with("lun_")).collect()
}

/// Changes an export in the tree. `false` if it has no such object.
pub(crate) fn change_tree(machine: &FakeMachine, volume: VolumeId, change: InTree, rng: &mut Rng) -> bool {
    let lio = machine.lio();
    let tree: &dyn Tree = &lio;
    let portal_group = group_of_portals(volume);
    if !tree.is_dir(&portal_group).unwrap_or(false) {
        return false;
    }
    let acls = portal_group.join("acls");
    let acl = rng.choice(folders(tree, &acls));
    let unmap = |path: &TreePath| clear(tree, path);
    let drop_lun = || {
        mapped(tree, volume).iter().for_each(unmap);
        clear(tree, &portal_group.join("lun"));
    };
    match change {
        InTree::Unmap => {
            let Some(path) = rng.choice(mapped(tree, volume)) else { return false };
            unmap(&path);
        }
        InTree::RemoveAcl => {
            let Some(acl) = acl else { return false };
            clear(tree, &acl);
            drop(tree.rmdir(&acl));
        }
        InTree::RemoveLun => drop_lun(),
        InTree::RemoveTarget => {
            clear(tree, &acls);
            clear(tree, &portal_group.join("lun"));
            clear(tree, &portal_group.join("np"));
            drop(tree.rmdir(&portal_group));
            drop(tree.rmdir(&target(volume)));
        }
        InTree::RemoveBackstore => {
            drop_lun();
            drop(tree.rmdir(&backstore(volume)));
        }
        InTree::FlipMode => {
            let Some(path) = rng.choice(mapped(tree, volume)) else { return false };
            let file = path.join("write_protect");
            let protected = tree.read(&file).is_ok_and(|text| text.starts_with(b"1"));
            return tree.write(&file, if protected { b"0" } else { b"1" }).is_ok();
        }
        InTree::Disable => return tree.write(&portal_group.join("enable"), b"0").is_ok(),
        InTree::RemovePortal => clear(tree, &portal_group.join("np")),
        InTree::Password => {
            let Some(acl) = acl else { return false };
            return tree.write(&acl.join("auth").join("password"), b"set-by-hand-0123").is_ok();
        }
    }
    true
}

/// Removes all exports.
pub(crate) fn clear_exports(machine: &FakeMachine) {
    let lio = machine.lio();
    for target in folders(&lio, &TreePath::new("iscsi")) {
        for portal_group in folders(&lio, &target) {
            for part in ["acls", "lun", "np"] {
                clear(&lio, &portal_group.join(part));
            }
        }
        clear(&lio, &target);
    }
}

/// Replaces a volume's LV by an empty one.
pub(crate) fn make_anew(machine: &FakeMachine, volume: VolumeId) {
    let tags = ["mooring".to_owned(), mooring_model::lv_volume_tag(volume)];
    machine.lvm().add_volume(
        GROUP,
        LvName::of(volume).as_str(),
        1 << 30,
        &tags.each_ref().map(String::as_str),
    );
}

/// Runs a command of LVM. `None` if LVM refused it.
fn lvm(machine: &FakeMachine, args: &[&str]) -> Option<CommandOutput> {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
    machine.lvm().run(&command).ok().filter(|output| output.status == 0)
}

fn path_of(name: &str) -> String {
    format!("{GROUP}/{name}")
}

fn away(volume: VolumeId) -> String {
    format!("away-{volume}")
}

/// Changes a volume's LV. `false` if LVM refused it.
pub(crate) fn change_group(machine: &FakeMachine, volume: VolumeId, change: InGroup) -> bool {
    let lv = path_of(LvName::of(volume).as_str());
    let output = match change {
        InGroup::Rename => lvm(machine, &["lvrename", "--yes", &lv, &path_of(&away(volume))]),
        InGroup::Remove => lvm(machine, &["lvremove", "--yes", "--force", &lv]),
        InGroup::Deactivate => lvm(machine, &["lvchange", "--activate", "n", &lv]),
        InGroup::Extend => {
            let size = sizes(machine).get(LvName::of(volume).as_str()).copied().unwrap_or_default();
            if is_thin(machine, volume) {
                let size = format!("{}b", size + (EXTENTS_MORE << 22));
                lvm(machine, &["lvextend", "--yes", "--size", &size, &lv])
            } else {
                let (more, anywhere) = (format!("+{EXTENTS_MORE}"), format!("{DISK}:0-16383"));
                lvm(machine, &["lvextend", "--yes", "--alloc", "normal", "--extents", &more, &lv, &anywhere])
            }
        }
    };
    output.is_some()
}

/// Gives a renamed LV its name back. `false` if it was not renamed.
pub(crate) fn bring_back(machine: &FakeMachine, volume: VolumeId) -> bool {
    lvm(machine, &["lvrename", "--yes", &path_of(&away(volume)), &path_of(LvName::of(volume).as_str())])
        .is_some()
}

fn report(machine: &FakeMachine, fields: &str) -> Vec<Value> {
    let args = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", fields, GROUP];
    let output = lvm(machine, &args).map(|output| output.stdout).unwrap_or_default();
    let report: Value = serde_json::from_slice(&output).unwrap_or_default();
    report.pointer("/report/0/lv").and_then(Value::as_array).cloned().unwrap_or_default()
}

fn is_thin(machine: &FakeMachine, volume: VolumeId) -> bool {
    let name = LvName::of(volume);
    let rows = report(machine, "lv_name,pool_lv");
    rows.iter().any(|row| {
        row["lv_name"] == name.as_str() && row["pool_lv"].as_str().is_some_and(|it| !it.is_empty())
    })
}

/// Returns all LVs of the group with their sizes in bytes; empty while LVM does not answer.
pub(crate) fn sizes(machine: &FakeMachine) -> BTreeMap<String, u64> {
    let size = |row: &Value| {
        let size = row["lv_size"].as_str()?.parse().ok()?;
        Some((row["lv_name"].as_str()?.to_owned(), size))
    };
    report(machine, "lv_name,lv_size").iter().filter_map(size).collect()
}

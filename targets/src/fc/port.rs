//! Handles a whole port: makes it ready at the agent's start, and walks over it once when the store
//! that knows its places is lost.
//!
//! What must never happen here: a walk over the port at any other time; a place that is guessed.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::{EntryKind, Tree, TreeError, TreePath};
use mooring_model::{FcPort, InitiatorSlot, Lun, Plan, PortLun, Wwpn};

use super::layout;
use super::plan::group_steps;
use super::view::{Place, read_group};
use crate::view::read_link;
use crate::{Error, apply};

/// The places of all volumes of a port, by backstore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortIndex {
    /// The places whose TPG LUN shows a backstore, by its path: the `former` of that volume.
    pub exports: BTreeMap<TreePath, BTreeSet<Place>>,
    /// TPG LUNs under a number of ours that show a backstore, while nothing in the port tells their
    /// initiator: nobody is mapped to them. They keep their backstore from being removed.
    pub loose: BTreeMap<TreePath, BTreeSet<PortLun>>,
}

/// Makes a port's portal group, so that initiators find a target there from the start. An initiator
/// that met the port before takes it for no target, and may not look again (lio.md, h). Does
/// nothing if the group exists.
pub fn prepare(tree: &dyn Tree, port: FcPort) -> Result<(), Error> {
    let seen = read_group(tree, port).map_err(|source| Error::View { source })?;
    let plan = Plan { steps: group_steps(port, seen.as_ref()), blocked: Vec::new() };
    apply(&plan, tree, &mut ())
}

/// Walks over a port: 2 operations, and about one for each LUN, ACL and mapped LUN. Folders that a
/// crash left empty are not found; they give nobody access, and are used again.
pub fn read_port(tree: &dyn Tree, port: FcPort) -> Result<PortIndex, Error> {
    walk(tree, port).map_err(|source| Error::View { source })
}

fn folders(tree: &dyn Tree, path: &TreePath) -> Result<Vec<String>, TreeError> {
    let entries = tree.list(path)?;
    Ok(entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir).map(|entry| entry.name).collect())
}

/// Parses the number in `lun_N`; `None` if it is not one of ours.
fn number(name: &str) -> Option<(InitiatorSlot, Lun)> {
    PortLun::parts(name.strip_prefix("lun_")?.parse().ok()?)
}

fn walk(tree: &dyn Tree, port: FcPort) -> Result<PortIndex, TreeError> {
    let mut index = PortIndex::default();
    if read_group(tree, port)?.is_none() {
        return Ok(index);
    }
    let owners = owners(tree, port)?;
    for name in folders(tree, &layout::luns(port))? {
        let Some((slot, lun)) = number(&name) else { continue };
        let Some(link) = read_link(tree, &layout::luns(port).join(&name))? else { continue };
        // The initiator that is mapped to it; else the one with the other LUNs of this slot.
        let owner = owners.get(&(slot, Some(lun))).or_else(|| owners.get(&(slot, None))).copied().flatten();
        if let Some(initiator) = owner {
            index.exports.entry(link.target).or_default().insert(Place { initiator, slot, lun });
        } else if let Some(number) = PortLun::of(slot, lun) {
            index.loose.entry(link.target).or_default().insert(number);
        }
    }
    Ok(index)
}

/// Owners of slots, by slot and LUN, and by slot for any LUN; `None` if two initiators are mapped
/// to it.
type Owners = BTreeMap<(InitiatorSlot, Option<Lun>), Option<Wwpn>>;

fn owners(tree: &dyn Tree, port: FcPort) -> Result<Owners, TreeError> {
    let mut owners = Owners::new();
    for name in folders(tree, &layout::acls(port))? {
        let Ok(initiator) = name.parse::<Wwpn>() else { continue };
        let acl = layout::acl(port, initiator);
        for mapped in folders(tree, &acl)?.iter().filter(|name| name.starts_with("lun_")) {
            let Some(link) = read_link(tree, &acl.join(mapped))? else { continue };
            let Some((slot, lun)) = number(link.target.name()) else { continue };
            // A mapping of ours has the number that its TPG LUN tells.
            if *mapped != crate::layout::lun_name(lun) {
                continue;
            }
            for key in [(slot, Some(lun)), (slot, None)] {
                let owner = owners.entry(key).or_insert(Some(initiator));
                if *owner != Some(initiator) {
                    *owner = None;
                }
            }
        }
    }
    Ok(owners)
}

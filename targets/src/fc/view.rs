//! Looks at one volume's export over one port: at the places that the caller names, and at nothing
//! else of the port.
//!
//! The cost, in operations: 6 for the backstore, 1 for the portal group of tcm_fc (6 for one that
//! has attributes), and 4 for each place whose nexus is complete. It does not depend on what else
//! the port serves.
//!
//! What must never happen here: a judgement, a write, a listing of the port's LUNs or ACLs. A look
//! into a TPG LUN waits for an unlink of it that is at work: a view runs on a thread that can be
//! lost, like any step.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::{EntryKind, Tree, TreeError, TreePath};
use mooring_model::{ExportNames, FcGrant, FcNames, FcPort, InitiatorSlot, Lun, PortLun, Wwpn};

use super::layout;
use super::plan::Wanted;
use crate::Error;
use crate::error::maybe;
use crate::layout::backstore;
use crate::view::{BackstoreView, HbaFolder, Link, read_backstore, read_hba, read_link, read_write_protect};

/// Location of a nexus of ours in a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The initiator.
    pub initiator: Wwpn,
    /// The initiator's number on this node.
    pub slot: InitiatorSlot,
    /// LUN that the initiator sees.
    pub lun: Lun,
}

impl Place {
    /// Returns the place of a grant.
    pub fn of(grant: &FcGrant) -> Self {
        Self { initiator: grant.initiator, slot: grant.slot, lun: grant.lun }
    }

    /// Returns the number of its TPG LUN; `None` if the spec was never checked.
    pub fn number(self) -> Option<PortLun> {
        PortLun::of(self.slot, self.lun)
    }
}

/// One export over one port as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// The HBA folder; read only when the backstore is missing.
    pub hba: HbaFolder,
    /// The backstore under our name.
    pub backstore: Option<BackstoreView>,
    /// The port's portal group.
    pub group: Option<GroupView>,
    /// Objects at the places that were looked at.
    pub nexuses: BTreeMap<Place, NexusView>,
}

/// A port's portal group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupView {
    /// The group answers logins.
    pub enabled: bool,
    /// The attributes that Mooring answers for.
    pub attribs: BTreeMap<&'static str, String>,
}

/// The objects at one place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NexusView {
    /// The TPG LUN.
    pub lun: Option<LunSeen>,
    /// The initiator's ACL.
    pub acl: AclSeen,
    /// The mapped LUN.
    pub mapped: Option<MappedSeen>,
}

/// A TPG LUN.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LunSeen {
    /// The backstore.
    pub link: Option<Link>,
    /// Every command to the LUN fails.
    pub shut: bool,
}

/// An initiator's ACL, which its volumes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclSeen {
    /// There is no ACL.
    #[default]
    Missing,
    /// The ACL has no mapped LUN.
    Empty,
    /// The ACL has a mapped LUN, this place's or another's.
    InUse,
}

/// A mapped LUN.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MappedSeen {
    /// The TPG LUN.
    pub link: Option<Link>,
    /// Writes are refused. `None` without a link that works.
    pub write_protect: Option<bool>,
    /// Commands for which the kernel looked the mapping up since it was made. Read only while the
    /// TPG LUN is shut; otherwise `None`.
    pub commands: Option<u64>,
}

impl NexusView {
    /// Returns `true` if the TPG LUN is linked to this backstore.
    pub(super) fn shows(&self, backstore: &TreePath) -> bool {
        let link = self.lun.as_ref().and_then(|lun| lun.link.as_ref());
        link.is_some_and(|link| link.target == *backstore)
    }

    pub(super) fn is_shut(&self) -> bool {
        self.lun.as_ref().is_some_and(|lun| lun.shut)
    }
}

impl View {
    /// Looks at the export, at the places of its grants and at the `former` ones.
    pub fn read(tree: &dyn Tree, wanted: &Wanted, former: &BTreeSet<Place>) -> Result<Self, Error> {
        let names = wanted.names();
        let places: BTreeSet<Place> = &wanted.places() | former;
        Looker { tree, port: names.port }.export(names, &places).map_err(|source| Error::View { source })
    }

    /// Returns `true` if no command of the nexus at this place can land any more: its TPG LUN does
    /// not show this backstore. A look into a TPG LUN waits for an unlink that is at work in it,
    /// and that returns when the commands have drained (decision 22).
    pub fn has_drained(&self, names: &FcNames, place: Place) -> bool {
        self.nexuses.get(&place).is_some_and(|nexus| !nexus.shows(&backstore(&names.export)))
    }

    /// Counts the TPG LUNs that show our backstore.
    pub(crate) fn linked(&self, names: &FcNames) -> usize {
        let backstore = backstore(&names.export);
        self.nexuses.values().filter(|nexus| nexus.shows(&backstore)).count()
    }
}

/// Reads the portal group of a port; `None` if it does not exist.
pub(super) fn read_group(tree: &dyn Tree, port: FcPort) -> Result<Option<GroupView>, TreeError> {
    let dir = layout::tpg(port);
    let mut group = GroupView { enabled: true, ..GroupView::default() };
    if layout::has_enable(port.fabric) {
        let Some(enable) = maybe(tree.read_text(&dir.join("enable")))? else { return Ok(None) };
        group.enabled = enable == "1";
    } else if !tree.is_dir(&dir)? {
        return Ok(None);
    }
    for (name, _, _) in layout::attribs(port.fabric) {
        if let Some(value) = maybe(tree.read_text(&dir.join("attrib").join(name)))? {
            group.attribs.insert(name, value);
        }
    }
    Ok(Some(group))
}

struct Looker<'a> {
    tree: &'a dyn Tree,
    port: FcPort,
}

impl Looker<'_> {
    fn export(&self, names: &FcNames, places: &BTreeSet<Place>) -> Result<View, TreeError> {
        let ours: &ExportNames = &names.export;
        let mut view = View { backstore: read_backstore(self.tree, ours)?, ..View::default() };
        if view.backstore.is_none() {
            view.hba = read_hba(self.tree, ours)?;
        }
        view.group = read_group(self.tree, self.port)?;
        for place in places {
            let Some(number) = place.number() else { continue };
            let nexus = if view.group.is_some() { self.nexus(*place, number)? } else { NexusView::default() };
            view.nexuses.insert(*place, nexus);
        }
        Ok(view)
    }

    fn nexus(&self, place: Place, number: PortLun) -> Result<NexusView, TreeError> {
        let lun = self.lun(&layout::lun(self.port, number))?;
        let shut = lun.as_ref().is_some_and(|lun| lun.shut);
        let mapped = self.mapped(&layout::mapped(self.port, place.initiator, place.lun), shut)?;
        let acl = if mapped.is_some() {
            AclSeen::InUse
        } else {
            self.acl(&layout::acl(self.port, place.initiator))?
        };
        Ok(NexusView { lun, acl, mapped })
    }

    fn lun(&self, dir: &TreePath) -> Result<Option<LunSeen>, TreeError> {
        let Some(link) = maybe(read_link(self.tree, dir))? else { return Ok(None) };
        let shut = link.is_some() && self.tree.read_text(&dir.join(layout::SHUT))? == "1";
        Ok(Some(LunSeen { link, shut }))
    }

    /// Reads `write_protect` before the number of commands, so that the number counts every command
    /// that came before the protection.
    fn mapped(&self, dir: &TreePath, shut: bool) -> Result<Option<MappedSeen>, TreeError> {
        let Some(link) = maybe(read_link(self.tree, dir))? else { return Ok(None) };
        let mut seen = MappedSeen { link, ..MappedSeen::default() };
        if seen.link.is_some() {
            seen.write_protect = read_write_protect(self.tree, dir)?;
        }
        if shut && seen.write_protect.is_some() {
            seen.commands = self.tree.read_text(&layout::num_cmds(dir))?.parse().ok();
        }
        Ok(Some(seen))
    }

    fn acl(&self, dir: &TreePath) -> Result<AclSeen, TreeError> {
        let Some(entries) = maybe(self.tree.list(dir))? else { return Ok(AclSeen::Missing) };
        let used = entries.iter().any(|entry| entry.kind == EntryKind::Dir && entry.name.starts_with("lun_"));
        Ok(if used { AclSeen::InUse } else { AclSeen::Empty })
    }
}

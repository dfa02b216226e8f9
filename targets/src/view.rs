//! Looks at one export in the kernel: only at this export's part of the tree, and only at objects
//! that the planner decides on.
//!
//! Cost in operations (an attribute is open, read, close; a folder or a link is one):
//! - 19 for a complete export without grants: 6 for the backstore, 1 for the target, 12 for the
//!   portal group and its LUN;
//! - 8 for each ACL with CHAP, 4 for one without; 2 more where a barrier is in the spec;
//! - 1 for each session parameter in the spec; 1 for the relative port id, where the spec has one.
//!
//! The cost does not depend on other exports. Live sessions are a separate question
//! ([`read_live`](crate::read_live)), because no plan depends on them.
//!
//! What must never happen here: a judgement, a write, a walk into another export. `ls` of `acls`
//! blocks while an `rmdir` of an ACL drains (lio.md, d): a view runs on a thread that can be lost,
//! like any step.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::{Entry, EntryKind, Tree, TreeError, TreePath};
use mooring_model::{BarrierId, ExportNames, Grant, Secret, Tuning, TuningKey};

use crate::error::{Error, maybe};
use crate::info::parse_backstore;
use crate::layout::{self, SEALS, TPG_ATTRIBS, TPG_PARAMS};
use crate::plan::Wanted;
use crate::{port, tuning};

/// One export as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportView {
    /// The HBA folder; read only when the backstore is missing.
    pub hba: HbaFolder,
    /// The backstore under our name.
    pub backstore: Option<BackstoreView>,
    /// The `iscsi` folder exists; read only when the target is missing.
    pub fabric: bool,
    /// The target under our name.
    pub target: Option<TargetView>,
}

/// The folder that our backstore shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HbaFolder {
    /// The folder does not exist.
    #[default]
    Missing,
    /// The folder exists and holds no backstore.
    Empty,
    /// The folder holds backstores.
    InUse,
}

/// A backstore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackstoreView {
    /// The backstore has opened its device. Until then nothing can be linked to it.
    pub enabled: bool,
    /// The backstore is a LUN somewhere.
    pub exported: bool,
    /// Device path from `control`.
    pub device: Option<String>,
    /// The open device (major, minor).
    pub number: Option<(u32, u32)>,
    /// The backstore was made read-only.
    pub readonly: bool,
    /// Unit serial; empty until it is set.
    pub serial: String,
    /// The attributes of [`SEALS`].
    pub seals: BTreeMap<&'static str, String>,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetView {
    /// Our portal group.
    pub tpg: Option<TpgView>,
    /// The names of portal groups that are not ours.
    pub other_tpgs: Vec<String>,
}

/// A portal group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TpgView {
    /// The group answers logins.
    pub enabled: bool,
    /// The attributes of [`TPG_ATTRIBS`] and [`TPG_PARAMS`].
    pub attribs: BTreeMap<&'static str, String>,
    /// Values of the session parameters that the spec sets.
    pub tuning: BTreeMap<TuningKey, String>,
    /// Relative port id, 0 for none yet; read only where the spec has one. `None` if the kernel has
    /// no such attribute.
    pub port_id: Option<u16>,
    /// Our LUN.
    pub lun: Option<LunView>,
    /// The names of LUNs that are not ours.
    pub other_luns: Vec<String>,
    /// Portals by the names of their folders.
    pub portals: Vec<String>,
    /// ACLs by initiator.
    pub acls: BTreeMap<String, AclView>,
}

impl TpgView {
    /// Copies the group with other ACLs.
    fn with(&self, acls: BTreeMap<String, AclView>) -> Self {
        Self {
            enabled: self.enabled,
            attribs: self.attribs.clone(),
            tuning: self.tuning.clone(),
            port_id: self.port_id,
            lun: self.lun.clone(),
            other_luns: self.other_luns.clone(),
            portals: self.portals.clone(),
            acls,
        }
    }

    /// Returns the value of one of [`TPG_ATTRIBS`] or [`TPG_PARAMS`]; `None` if it was not read.
    pub fn attrib(&self, name: &str) -> Option<&str> {
        self.attribs.get(name).map(String::as_str)
    }
}

/// A link in a LUN or mapped LUN: each of them takes one, under any name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Name of the link.
    pub name: String,
    /// Object that the link points to.
    pub target: TreePath,
}

/// A LUN of a portal group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LunView {
    /// The backstore.
    pub link: Option<Link>,
}

/// The meaning of an ACL's own `attrib/authentication`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclAuth {
    /// The portal group decides.
    Inherits,
    /// CHAP is required.
    Required,
    /// The initiator's name alone admits it.
    Off,
}

/// CHAP credentials as the kernel holds them; `None` if not set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// `auth/userid`
    pub user: Option<String>,
    /// `auth/password`
    pub secret: Option<Secret>,
    /// `auth/userid_mutual`
    pub mutual_user: Option<String>,
    /// `auth/password_mutual`
    pub mutual_secret: Option<Secret>,
}

/// The ACL of one initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclView {
    /// The ACL's own word on CHAP.
    pub auth: AclAuth,
    /// The ACL's credentials; not read when `auth` is off, because nothing depends on them then.
    pub credentials: Option<Credentials>,
    /// Mapped LUNs by folder name.
    pub luns: BTreeMap<String, MappedLun>,
    /// Facts that a barrier needs; read only where the spec has one.
    pub barrier: Option<BarrierView>,
}

/// Traces of barriers on an ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarrierView {
    /// The barrier that was asked for before this ACL was made, from its `tag`. Another text, or
    /// none, is no barrier.
    pub done: Option<BarrierId>,
    /// `cmdsn_depth`: writing another number drops the sessions.
    pub depth: String,
}

impl AclView {
    /// Returns `true` if a login can succeed, when the portal group asks for CHAP (`tpg_auth`). The
    /// kernel refuses a login with CHAP until both the name and the secret are set.
    pub fn admits(&self, tpg_auth: bool) -> bool {
        let chap = match self.auth {
            AclAuth::Off => false,
            AclAuth::Required => true,
            AclAuth::Inherits => tpg_auth,
        };
        !chap || self.credentials.as_ref().is_some_and(|c| c.user.is_some() && c.secret.is_some())
    }
}

/// A mapped LUN of one initiator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MappedLun {
    /// The portal group's LUN.
    pub link: Option<Link>,
    /// Writes are refused. `None` with a link means that the link is stale: its LUN lost its
    /// backstore meanwhile, and linking that again does not revive it (lio.md, b).
    pub write_protect: Option<bool>,
}

fn dirs(entries: Vec<Entry>) -> impl Iterator<Item = String> {
    entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir).map(|entry| entry.name)
}

impl ExportView {
    /// Looks at the export of these names, without its session parameters.
    pub fn read(tree: &dyn Tree, names: &ExportNames) -> Result<Self, Error> {
        Looker { tree, names, said: None, port_id: false, grants: &[] }
            .export()
            .map_err(|source| Error::View { source })
    }

    /// Looks at everything that this spec decides.
    pub fn read_for(tree: &dyn Tree, wanted: &Wanted) -> Result<Self, Error> {
        let (names, said, grants) = (wanted.names(), wanted.tuning(), wanted.grants());
        let looker = Looker { tree, names, said, port_id: wanted.port_id().is_some(), grants };
        looker.export().map_err(|source| Error::View { source })
    }

    /// Copies the view with the ACLs of these initiators as they are now, and no others, for this
    /// spec. One operation for an ACL that does not exist.
    pub(crate) fn with_acls(
        &self,
        tree: &dyn Tree,
        wanted: &Wanted,
        initiators: &BTreeSet<String>,
    ) -> Result<Self, Error> {
        let (names, grants) = (wanted.names(), wanted.grants());
        let looker = Looker { tree, names, said: None, port_id: false, grants };
        let mut acls = BTreeMap::new();
        for initiator in initiators {
            let acl = maybe(looker.acl(initiator)).map_err(|source| Error::View { source })?;
            acls.extend(acl.map(|acl| (initiator.clone(), acl)));
        }
        let target = self.target.as_ref().map(|target| TargetView {
            tpg: target.tpg.as_ref().map(|tpg| tpg.with(acls)),
            other_tpgs: target.other_tpgs.clone(),
        });
        Ok(Self { hba: self.hba, backstore: self.backstore.clone(), fabric: self.fabric, target })
    }

    /// Takes the ACLs of these initiators from another view.
    pub(crate) fn replace_acls(&mut self, initiators: &BTreeSet<String>, from: &Self) {
        let Some(tpg) = self.target.as_mut().and_then(|target| target.tpg.as_mut()) else { return };
        tpg.acls.retain(|initiator, _| !initiators.contains(initiator));
        tpg.acls.extend(from.tpg().into_iter().flat_map(|tpg| tpg.acls.clone()));
    }

    /// Returns our portal group. `None` if it does not exist.
    pub fn tpg(&self) -> Option<&TpgView> {
        self.target.as_ref()?.tpg.as_ref()
    }
}

/// Reads whether a mapped LUN is read-only. `None` if the kernel shows another word.
pub(crate) fn read_write_protect(tree: &dyn Tree, mapped: &TreePath) -> Result<Option<bool>, TreeError> {
    Ok(match tree.read_text(&mapped.join("write_protect"))?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    })
}

/// Parses `vpd_unit_serial`: `T10 VPD Unit Serial Number: XXX`. A text without the label is the
/// serial itself.
pub(crate) fn parse_serial(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, serial)| serial).trim().to_owned()
}

/// Reads the backstore of these names. `None` if it does not exist.
pub(crate) fn read_backstore(
    tree: &dyn Tree,
    names: &ExportNames,
) -> Result<Option<BackstoreView>, TreeError> {
    let dir = layout::backstore(names);
    let Some(info) = maybe(tree.read_text(&dir.join("info")))? else { return Ok(None) };
    let info = parse_backstore(&info);
    let serial = parse_serial(&tree.read_text(&dir.join("wwn").join("vpd_unit_serial"))?);
    let mut seals = BTreeMap::new();
    for (name, _, _) in SEALS {
        seals.insert(name, tree.read_text(&dir.join("attrib").join(name))?);
    }
    Ok(Some(BackstoreView {
        enabled: tree.read_text(&dir.join("enable"))? == "1",
        exported: info.exported,
        device: info.device,
        number: info.number,
        readonly: info.readonly,
        serial,
        seals,
    }))
}

/// Reads the HBA folder of these names.
pub(crate) fn read_hba(tree: &dyn Tree, names: &ExportNames) -> Result<HbaFolder, TreeError> {
    Ok(match maybe(tree.list(&layout::hba(names)))? {
        None => HbaFolder::Missing,
        Some(entries) if entries.iter().all(|entry| entry.kind != EntryKind::Dir) => HbaFolder::Empty,
        Some(_) => HbaFolder::InUse,
    })
}

/// Reads the link of a LUN or mapped LUN. Our link is found by its name in one operation; any other
/// needs a look at the folder, which fails if there is none. `None` if the folder has no link.
pub(crate) fn read_link(tree: &dyn Tree, dir: &TreePath) -> Result<Option<Link>, TreeError> {
    if let Some(target) = maybe(tree.read_link(&dir.join(layout::LINK)))? {
        return Ok(Some(Link { name: layout::LINK.to_owned(), target }));
    }
    let entries = tree.list(dir)?;
    let Some(entry) = entries.into_iter().find(|entry| entry.kind == EntryKind::Link) else {
        return Ok(None);
    };
    let target = tree.read_link(&dir.join(&entry.name))?;
    Ok(Some(Link { name: entry.name, target }))
}

struct Looker<'a> {
    tree: &'a dyn Tree,
    names: &'a ExportNames,
    said: Option<&'a Tuning>,
    /// The spec has a relative port id.
    port_id: bool,
    grants: &'a [Grant],
}

impl Looker<'_> {
    fn export(&self) -> Result<ExportView, TreeError> {
        let mut view =
            ExportView { backstore: read_backstore(self.tree, self.names)?, ..ExportView::default() };
        if view.backstore.is_none() {
            view.hba = read_hba(self.tree, self.names)?;
        }
        view.target = self.target()?;
        view.fabric = view.target.is_some() || self.tree.is_dir(&layout::fabric())?;
        Ok(view)
    }

    fn target(&self) -> Result<Option<TargetView>, TreeError> {
        let Some(entries) = maybe(self.tree.list(&layout::target(self.names)))? else { return Ok(None) };
        let ours = layout::tpg_name(self.names);
        let mut tpgs: Vec<String> = dirs(entries).filter(|name| name.starts_with("tpgt_")).collect();
        let there = tpgs.contains(&ours);
        tpgs.retain(|name| *name != ours);
        Ok(Some(TargetView { tpg: there.then(|| self.tpg()).transpose()?, other_tpgs: tpgs }))
    }

    fn tpg(&self) -> Result<TpgView, TreeError> {
        let dir = layout::tpg(self.names);
        let mut view =
            TpgView { enabled: self.tree.read_text(&dir.join("enable"))? == "1", ..TpgView::default() };
        for (name, _, _) in TPG_ATTRIBS {
            view.attribs.insert(name, self.tree.read_text(&dir.join("attrib").join(name))?);
        }
        for (name, _, _) in TPG_PARAMS {
            view.attribs.insert(name, self.tree.read_text(&dir.join("param").join(name))?);
        }
        if let Some(said) = self.said {
            view.tuning = tuning::read(self.tree, self.names, said)?;
        }
        if self.port_id {
            view.port_id = port::read(self.tree, self.names)?;
        }
        let ours = layout::lun_name(self.names.lun);
        for name in dirs(self.tree.list(&dir.join("lun"))?) {
            if name == ours {
                view.lun = Some(LunView { link: read_link(self.tree, &layout::lun(self.names))? });
            } else {
                view.other_luns.push(name);
            }
        }
        view.portals = dirs(self.tree.list(&layout::portals(self.names))?).collect();
        for initiator in dirs(self.tree.list(&layout::acls(self.names))?) {
            let acl = self.acl(&initiator)?;
            view.acls.insert(initiator, acl);
        }
        Ok(view)
    }

    fn acl(&self, initiator: &str) -> Result<AclView, TreeError> {
        let dir = &layout::acl(self.names, initiator);
        let entries = self.tree.list(dir)?;
        // A kernel before 6.1 lacks this attribute and always asks the portal group.
        let auth = match maybe(self.tree.read_text(&dir.join("attrib").join("authentication")))?.as_deref() {
            Some("0") => AclAuth::Off,
            Some("1") => AclAuth::Required,
            _ => AclAuth::Inherits,
        };
        let credentials =
            if auth == AclAuth::Off { None } else { Some(self.credentials(&dir.join("auth"))?) };
        let mut luns = BTreeMap::new();
        for name in dirs(entries).filter(|name| name.starts_with("lun_")) {
            let mapped = self.mapped(&dir.join(&name))?;
            luns.insert(name, mapped);
        }
        let asked = self.grants.iter().find(|grant| grant.initiator.as_str() == initiator);
        let barrier = match asked.and_then(|grant| grant.barrier) {
            Some(_) => Some(self.barrier(dir)?),
            None => None,
        };
        Ok(AclView { auth, credentials, luns, barrier })
    }

    fn barrier(&self, dir: &TreePath) -> Result<BarrierView, TreeError> {
        let tag = self.tree.read_text(&dir.join(layout::TAG))?;
        let done = tag.strip_prefix(layout::BARRIER).and_then(|id| id.parse().ok());
        Ok(BarrierView { done, depth: self.tree.read_text(&dir.join(layout::DEPTH))? })
    }

    fn mapped(&self, dir: &TreePath) -> Result<MappedLun, TreeError> {
        let Some(link) = read_link(self.tree, dir)? else { return Ok(MappedLun::default()) };
        Ok(MappedLun { link: Some(link), write_protect: read_write_protect(self.tree, dir)? })
    }

    fn credentials(&self, dir: &TreePath) -> Result<Credentials, TreeError> {
        Ok(Credentials {
            user: self.credential(dir, "userid")?,
            secret: self.credential(dir, "password")?.map(Secret::new),
            mutual_user: self.credential(dir, "userid_mutual")?,
            mutual_secret: self.credential(dir, "password_mutual")?.map(Secret::new),
        })
    }

    /// Reads one credential. The kernel adds one newline to the text that it holds. One more
    /// newline is part of the credential (somebody wrote it with `echo`), and the view must show
    /// that difference. A text that begins with `NULL` is "not set": `None`.
    fn credential(&self, dir: &TreePath, name: &str) -> Result<Option<String>, TreeError> {
        let bytes = self.tree.read(&dir.join(name))?;
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let set = !text.is_empty() && !text.starts_with(b"NULL");
        Ok(set.then(|| String::from_utf8_lossy(text).into_owned()))
    }
}

/// Lists the initiators that have an ACL of this export, in the spec or not, in one operation.
pub fn read_initiators(tree: &dyn Tree, names: &ExportNames) -> Result<Vec<String>, Error> {
    let entries = maybe(tree.list(&layout::acls(names))).map_err(|source| Error::View { source })?;
    Ok(dirs(entries.unwrap_or_default()).collect())
}

/// Lists the target's portals by the names of their folders, in one operation.
pub fn read_portals(tree: &dyn Tree, names: &ExportNames) -> Result<Vec<String>, Error> {
    let entries = maybe(tree.list(&layout::portals(names))).map_err(|source| Error::View { source })?;
    Ok(dirs(entries.unwrap_or_default()).collect())
}

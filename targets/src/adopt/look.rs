//! Reads the iSCSI exports of the machine that are not Mooring's, whoever made them, and all other
//! LUNs that show their backstores.
//!
//! This is the one look at everything: it is made when somebody asks for it, never by a pass.
//!
//! What must never happen here: a write; a judgement; an export of ours taken for somebody else's.

use std::collections::BTreeMap;

use mooring_host::{EntryKind, Tree, TreeError, TreePath};
use mooring_model::{ExportNames, IqnPrefix, SessionReport};

use crate::error::maybe;
use crate::info::{SessionInfo, parse_backstore, parse_sessions};
use crate::layout::CORE;
use crate::view::{ExportView, parse_serial, read_link};
use crate::{Error, layout};

/// A target that somebody else made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenTarget {
    /// Name of the target.
    pub iqn: String,
    /// Folder names of the portal groups.
    pub groups: Vec<String>,
    /// LUNs of all portal groups.
    pub luns: Vec<SeenLun>,
    /// Backstore of the only LUN, if that is a block device.
    pub store: Option<SeenStore>,
    /// Initiators without an ACL that are logged in.
    pub dynamic: Vec<String>,
    /// Portals for iSER.
    pub iser: Vec<String>,
    /// The planner's view, under the names that would be recorded. `None` if there are no such
    /// names.
    pub view: Option<ExportView>,
    /// Sessions by ACL.
    pub sessions: BTreeMap<String, Vec<SessionReport>>,
}

/// A LUN of a portal group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenLun {
    /// Name of the LUN's folder.
    pub name: String,
    /// Backstore that the LUN shows; `None` if it has no link.
    pub backstore: Option<TreePath>,
    /// Number of LUNs, over all fabrics, that show this backstore.
    pub shown: usize,
}

/// Facts of a backstore beyond those that the planner reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenStore {
    /// Device path from `control`.
    pub device: Option<String>,
    /// Unit serial.
    pub serial: String,
    /// INQUIRY has the backstore's name in the place of the model.
    pub model_alias: bool,
    /// `wwn/vendor_id`, where the kernel has it.
    pub vendor: Option<String>,
    /// `wwn/product_id`, where the kernel has it.
    pub product: Option<String>,
    /// `wwn/company_id`, where the kernel has it.
    pub company: Option<String>,
    /// The backstore has protection information.
    pub protected: bool,
    /// Hosts may discard blocks.
    pub discards: bool,
    /// ALUA groups beside the kernel's own.
    pub alua: Vec<String>,
    /// Holder of a persistent reservation, in the kernel's words; `None` if nobody holds one.
    pub holder: Option<String>,
}

/// Looks at every iSCSI target whose name Mooring would not make. Objects that disappear meanwhile
/// are left out.
pub fn look(tree: &dyn Tree, prefix: &IqnPrefix) -> Result<Vec<SeenTarget>, Error> {
    let looker = Looker { tree };
    let read = || {
        let shown = looker.shown()?;
        let targets = looker.dirs(&layout::fabric())?;
        let others = targets.into_iter().filter(|name| prefix.volume(name).is_none());
        let seen = others.map(|iqn| looker.target(iqn, &shown)).collect::<Result<Vec<_>, _>>()?;
        // The fabric's own folders, such as discovery_auth, have no portal group.
        Ok(seen.into_iter().filter(|target| !target.groups.is_empty()).collect())
    };
    read().map_err(|source| Error::View { source })
}

/// Looks at one target again. The number of LUNs that show its backstore is taken from the look
/// before.
pub fn look_again(tree: &dyn Tree, before: &SeenTarget) -> Result<SeenTarget, Error> {
    let shown = |lun: &SeenLun| Some((lun.backstore.clone()?, lun.shown));
    let shown = before.luns.iter().filter_map(shown).collect();
    Looker { tree }.target(before.iqn.clone(), &shown).map_err(|source| Error::View { source })
}

struct Looker<'a> {
    tree: &'a dyn Tree,
}

impl Looker<'_> {
    fn dirs(&self, path: &TreePath) -> Result<Vec<String>, TreeError> {
        let entries = maybe(self.tree.list(path))?.unwrap_or_default();
        Ok(entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir).map(|entry| entry.name).collect())
    }

    fn groups(&self, target: &TreePath) -> Result<Vec<String>, TreeError> {
        Ok(self.dirs(target)?.into_iter().filter(|name| name.starts_with("tpgt_")).collect())
    }

    /// Reads an attribute; `None` where the kernel lacks it.
    fn text(&self, path: &TreePath) -> Result<Option<String>, TreeError> {
        let text = maybe(self.tree.read_text(path))?;
        // `T10 Vendor Identification: LIO-ORG`; a text without a label is the value itself.
        Ok(text
            .map(|text| text.rsplit_once(": ").map_or(text.as_str(), |(_, value)| value).trim().to_owned()))
    }

    fn luns(&self, group: &TreePath) -> Result<Vec<(String, Option<TreePath>)>, TreeError> {
        let folder = group.join("lun");
        let mut luns = Vec::new();
        for name in self.dirs(&folder)? {
            let link = maybe(read_link(self.tree, &folder.join(&name)))?.flatten();
            luns.push((name, link.map(|link| link.target)));
        }
        Ok(luns)
    }

    /// Counts the LUNs of the machine that show each backstore, over all fabrics.
    fn shown(&self) -> Result<BTreeMap<TreePath, usize>, TreeError> {
        let mut shown = BTreeMap::new();
        for fabric in self.dirs(&TreePath::root())?.into_iter().filter(|name| name != CORE) {
            let fabric = TreePath::root().join(fabric);
            for target in self.dirs(&fabric)? {
                let target = fabric.join(target);
                for group in self.groups(&target)? {
                    for store in self.luns(&target.join(group))?.into_iter().filter_map(|(_, store)| store) {
                        *shown.entry(store).or_insert(0) += 1;
                    }
                }
            }
        }
        Ok(shown)
    }

    fn target(&self, iqn: String, shown: &BTreeMap<TreePath, usize>) -> Result<SeenTarget, TreeError> {
        let path = layout::fabric().join(&iqn);
        let mut target = SeenTarget { groups: self.groups(&path)?, iqn, ..SeenTarget::default() };
        for group in &target.groups {
            let luns = self.luns(&path.join(group))?.into_iter().map(|(name, backstore)| SeenLun {
                shown: backstore.as_ref().and_then(|store| shown.get(store)).copied().unwrap_or_default(),
                name,
                backstore,
            });
            target.luns.extend(luns);
        }
        if let [SeenLun { backstore: Some(store), .. }] = target.luns.as_slice() {
            target.store = self.store(store)?;
        }
        if let Ok((_, names)) = super::names_of(&target) {
            self.group(&names, &mut target)?;
        }
        Ok(target)
    }

    fn group(&self, names: &ExportNames, target: &mut SeenTarget) -> Result<(), TreeError> {
        target.view = match ExportView::read(self.tree, names) {
            Ok(view) => Some(view),
            Err(Error::View { source }) => maybe(Err(source))?,
            Err(_) => None,
        };
        let path = layout::tpg(names);
        let dynamic = maybe(self.tree.read_text(&path.join("dynamic_sessions")))?.unwrap_or_default();
        let names_in =
            |text: &str| text.split(['\n', '\0']).map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        target.dynamic = names_in(&dynamic).into_iter().filter(|name| !name.is_empty()).collect();
        for portal in self.dirs(&layout::portals(names))? {
            let iser = maybe(self.tree.read_text(&layout::portals(names).join(&portal).join("iser")))?;
            if iser.is_some_and(|iser| iser.trim() == "1") {
                target.iser.push(portal);
            }
        }
        for initiator in self.dirs(&layout::acls(names))? {
            let info = maybe(self.tree.read_text(&layout::acl(names, &initiator).join("info")))?;
            let sessions = parse_sessions(&info.unwrap_or_default());
            let sessions = sessions.iter().filter_map(SessionInfo::report).collect();
            target.sessions.insert(initiator, sessions);
        }
        Ok(())
    }

    fn store(&self, path: &TreePath) -> Result<Option<SeenStore>, TreeError> {
        let Some(info) = maybe(self.tree.read_text(&path.join("info")))? else { return Ok(None) };
        let (attrib, wwn) = (path.join("attrib"), path.join("wwn"));
        let is = |text: Option<String>, value: &str| text.is_some_and(|text| text == value);
        let serial = maybe(self.tree.read_text(&wwn.join("vpd_unit_serial")))?.unwrap_or_default();
        let holder = maybe(self.tree.read_text(&path.join("pr").join("res_holder")))?;
        let alua = self.dirs(&path.join("alua"))?;
        Ok(Some(SeenStore {
            device: parse_backstore(&info).device,
            serial: parse_serial(&serial),
            model_alias: is(self.text(&attrib.join("emulate_model_alias"))?, "1"),
            vendor: self.text(&wwn.join("vendor_id"))?,
            product: self.text(&wwn.join("product_id"))?,
            company: self.text(&wwn.join("company_id"))?,
            protected: self.text(&attrib.join("pi_prot_type"))?.is_some_and(|kind| kind != "0"),
            discards: is(self.text(&attrib.join("emulate_tpu"))?, "1"),
            alua: alua.into_iter().filter(|name| name != "default_tg_pt_gp").collect(),
            holder: holder.filter(|text| !text.starts_with("No ") && !text.is_empty()),
        }))
    }
}

//! Resolves a path to an object: the folder of the LIO object that it names, following links as the
//! kernel's path walk does.

use nix::errno::Errno;

use super::fc::FabricKind;
use super::model::{AclKey, Lio, LunKey, MappedKey, StoreKey, TargetKey, TpgKey};
use super::tables::{self, Attr, Shape};
use crate::TreePath;

/// An object made by `mkdir` (or the tree's root).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    Root,
    Hba(String),
    Store(StoreKey),
    Fabric(FabricKind),
    Target(TargetKey),
    Tpg(TpgKey),
    Portal(TpgKey, String),
    Lun(LunKey),
    Acl(AclKey),
    Mapped(MappedKey),
}

impl Owner {
    pub(super) fn shape(&self) -> &'static Shape {
        match self {
            Self::Root => &tables::ROOT,
            Self::Hba(_) => &tables::HBA,
            Self::Store(_) => &tables::STORE,
            Self::Fabric(kind) => kind.fabric_shape(),
            Self::Target(key) => key.fabric.target_shape(),
            Self::Tpg(key) => key.target.fabric.tpg_shape(),
            Self::Portal(..) => &tables::PORTAL,
            Self::Lun(_) => &tables::LUN,
            Self::Acl(key) => key.tpg.target.fabric.acl_shape(),
            Self::Mapped(_) => &tables::MAPPED,
        }
    }
}

/// A folder: an object, or a default folder (`part`) of it.
#[derive(Debug, Clone)]
pub(super) struct Dir {
    pub(super) owner: Owner,
    /// Path below the object: empty, `attrib`, `statistics/scsi_lu`.
    pub(super) part: String,
    pub(super) shape: &'static Shape,
}

impl Dir {
    pub(super) fn of(owner: Owner) -> Self {
        let shape = owner.shape();
        Self { owner, part: String::new(), shape }
    }

    pub(super) fn is_object(&self) -> bool {
        self.part.is_empty()
    }
}

/// Object that a path names.
#[derive(Debug, Clone)]
pub(super) enum Found {
    Dir(Dir),
    Attr(Dir, &'static Attr),
    /// A link in this folder: its name and its target.
    Link(Dir, String, TreePath),
}

fn store_path(key: &StoreKey) -> TreePath {
    TreePath::new("core").join(&key.hba).join(&key.name)
}

fn lun_path(key: &LunKey) -> TreePath {
    let target = &key.tpg.target;
    let tpg = TreePath::new(target.fabric.folder()).join(&target.name).join(format!("tpgt_{}", key.tpg.tpg));
    tpg.join("lun").join(lun_name(key.lun))
}

pub(super) fn lun_name(lun: u64) -> String {
    format!("lun_{lun}")
}

/// Parses the number in `lun_N`; ERANGE for one beyond 64 bits.
pub(super) fn lun_number(name: &str) -> Result<u64, Errno> {
    let digits = name.strip_prefix("lun_").ok_or(Errno::EINVAL)?;
    super::number(digits.as_bytes())?;
    number_after(name, "lun_").ok_or(Errno::EINVAL)
}

/// Parses the number in `PREFIXn`, only in its plain decimal form. The kernel takes `tpgt_01` and
/// `lun_0x5` as names of their own, too; the fake refuses them, so that one object has one name.
pub(super) fn number_after<T: std::str::FromStr + ToString>(name: &str, prefix: &str) -> Option<T> {
    let digits = name.strip_prefix(prefix)?;
    let number: T = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

impl Lio {
    /// Finds the object at a path. A link at its end is followed if `follow`.
    pub(super) fn find(&self, path: &TreePath, follow: bool) -> Result<Found, Errno> {
        self.walk(path, follow, 0)
    }

    fn walk(&self, path: &TreePath, follow: bool, depth: u32) -> Result<Found, Errno> {
        if !self.present {
            return Err(Errno::ENOENT);
        }
        if depth > 8 {
            return Err(Errno::ELOOP);
        }
        let mut at = Found::Dir(Dir::of(Owner::Root));
        let mut names = path.as_str().split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let Found::Dir(dir) = at else { return Err(Errno::ENOTDIR) };
            if name.len() > 255 {
                return Err(Errno::ENAMETOOLONG);
            }
            at = self.step(&dir, name).ok_or(Errno::ENOENT)?;
            if let Found::Link(_, _, target) = &at
                && (follow || names.peek().is_some())
            {
                at = self.walk(&target.clone(), true, depth + 1)?;
            }
        }
        Ok(at)
    }

    /// Steps to one component below a folder; `None` if it does not exist.
    pub(super) fn step(&self, dir: &Dir, name: &str) -> Option<Found> {
        if let Some(attr) = dir.shape.attr(name).or_else(|| self.later(dir).find(|attr| attr.name == name)) {
            return Some(Found::Attr(dir.clone(), attr));
        }
        if let Some(shape) = dir.shape.part(name) {
            let part = if dir.part.is_empty() { name.to_owned() } else { format!("{}/{name}", dir.part) };
            return Some(Found::Dir(Dir { owner: dir.owner.clone(), part, shape }));
        }
        if let Some((_, target)) = self.links(dir).into_iter().find(|(link, _)| link == name) {
            return Some(Found::Link(dir.clone(), name.to_owned(), target));
        }
        self.child(dir, name).map(|owner| Found::Dir(Dir::of(owner)))
    }

    /// Iterates over the attributes of a folder that this kernel has, and an older one lacks.
    pub(super) fn later(&self, dir: &Dir) -> impl Iterator<Item = &'static Attr> {
        let is_group = matches!(dir.owner, Owner::Tpg(_)) && dir.is_object();
        Some(&tables::PORT_ID).filter(|_| is_group && self.has_port_ids).into_iter()
    }

    /// Returns the object of this name that a `mkdir` has made in a folder.
    fn child(&self, dir: &Dir, name: &str) -> Option<Owner> {
        let owner = match (&dir.owner, dir.part.as_str()) {
            (Owner::Root, "") => {
                let kind = FabricKind::of(name)?;
                self.fabrics.get(&kind)?;
                Owner::Fabric(kind)
            }
            (Owner::Root, "core") => Owner::Hba(self.hbas.contains_key(name).then(|| name.to_owned())?),
            (Owner::Hba(hba), "") => {
                let key = StoreKey { hba: hba.clone(), name: name.to_owned() };
                self.store(&key)?;
                Owner::Store(key)
            }
            (Owner::Fabric(kind), "") => {
                let key = TargetKey { fabric: *kind, name: name.to_owned() };
                self.target(&key)?;
                Owner::Target(key)
            }
            (Owner::Target(target), "") => {
                let key = TpgKey { target: target.clone(), tpg: number_after(name, "tpgt_")? };
                self.tpg(&key)?;
                Owner::Tpg(key)
            }
            (Owner::Tpg(tpg), "np") => {
                self.tpg(tpg)?.portals.get(name)?;
                Owner::Portal(tpg.clone(), name.to_owned())
            }
            (Owner::Tpg(tpg), "lun") => {
                let key = LunKey { tpg: tpg.clone(), lun: number_after(name, "lun_")? };
                self.lun(&key)?;
                Owner::Lun(key)
            }
            (Owner::Tpg(tpg), "acls") => {
                let key = AclKey { tpg: tpg.clone(), initiator: name.to_owned() };
                self.acl(&key)?;
                Owner::Acl(key)
            }
            (Owner::Acl(acl), "") => {
                let key = MappedKey { acl: acl.clone(), lun: number_after(name, "lun_")? };
                self.mapped(&key)?;
                Owner::Mapped(key)
            }
            _ => return None,
        };
        Some(owner)
    }

    /// Lists the names of the objects that `mkdir` has made in a folder.
    pub(super) fn children(&self, dir: &Dir) -> Vec<String> {
        fn names<V>(map: Option<&std::collections::BTreeMap<String, V>>) -> Vec<String> {
            map.map(|map| map.keys().cloned().collect()).unwrap_or_default()
        }
        match (&dir.owner, dir.part.as_str()) {
            (Owner::Root, "") => self.fabrics.keys().map(|kind| kind.folder().to_owned()).collect(),
            (Owner::Root, "core") => names(Some(&self.hbas)),
            (Owner::Hba(hba), "") => names(self.hbas.get(hba).map(|hba| &hba.stores)),
            (Owner::Fabric(kind), "") => names(self.fabrics.get(kind).map(|fabric| &fabric.targets)),
            (Owner::Target(target), "") => {
                let found = self.target(target);
                found.iter().flat_map(|t| t.tpgs.keys()).map(|tpg| format!("tpgt_{tpg}")).collect()
            }
            (Owner::Tpg(tpg), "np") => names(self.tpg(tpg).map(|tpg| &tpg.portals)),
            (Owner::Tpg(tpg), "lun") => {
                self.tpg(tpg).iter().flat_map(|t| t.luns.keys()).map(|lun| lun_name(*lun)).collect()
            }
            (Owner::Tpg(tpg), "acls") => names(self.tpg(tpg).map(|tpg| &tpg.acls)),
            (Owner::Acl(acl), "") => {
                self.acl(acl).iter().flat_map(|a| a.mapped.keys()).map(|lun| lun_name(*lun)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Lists the links in a folder.
    pub(super) fn links(&self, dir: &Dir) -> Vec<(String, TreePath)> {
        match &dir.owner {
            Owner::Lun(key) if dir.is_object() => {
                let link = self.lun(key).and_then(|lun| lun.link.as_ref());
                link.map(|(name, store)| (name.clone(), store_path(store))).into_iter().collect()
            }
            Owner::Mapped(key) if dir.is_object() => {
                let links = self.mapped(key).map(|mapped| &mapped.links);
                links.into_iter().flatten().map(|(name, lun)| (name.clone(), lun_path(lun))).collect()
            }
            _ => Vec::new(),
        }
    }
}

//! LIO's objects as the fake keeps them. What must never happen: a fact kept twice; users of an
//! object are found by looking.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::fc::FabricKind;
use super::reservations::Pr;
use super::tables::{Attr, Newline, Shape};

/// Attribute values that differ from their table's first value, by `part/name`, without the final
/// newline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(BTreeMap<String, Vec<u8>>);

impl Values {
    fn key(part: &str, name: &str) -> String {
        format!("{part}/{name}")
    }

    pub(super) fn set(&mut self, part: &str, name: &str, value: impl Into<Vec<u8>>) {
        self.0.insert(Self::key(part, name), value.into());
    }

    pub(super) fn unset(&mut self, part: &str, name: &str) {
        self.0.remove(&Self::key(part, name));
    }

    pub(super) fn get(&self, part: &str, name: &str) -> Option<&[u8]> {
        self.0.get(&Self::key(part, name)).map(Vec::as_slice)
    }

    /// Reads a plain attribute.
    pub(super) fn read(&self, part: &str, attr: &Attr) -> Vec<u8> {
        let written = self.get(part, attr.name);
        let mut text = written.unwrap_or(attr.text.as_bytes()).to_vec();
        if attr.newline == Newline::Always || (attr.newline == Newline::WhenSet && written.is_some()) {
            text.push(b'\n');
        }
        text
    }

    /// Returns a value as text: the written one, else the first value of the shape.
    pub(super) fn text(&self, shape: &Shape, part: &str, name: &str) -> String {
        let first =
            || shape.part(part).and_then(|found| found.attr(name)).map_or(&b""[..], |a| a.text.as_bytes());
        String::from_utf8_lossy(self.get(part, name).unwrap_or_else(first)).into_owned()
    }

    pub(super) fn is_on(&self, shape: &Shape, part: &str, name: &str) -> bool {
        self.text(shape, part, name) == "1"
    }
}

/// Key of a backstore, `core/iblock_0/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoreKey {
    pub(crate) hba: String,
    pub(crate) name: String,
}

/// Key of a target, `FABRIC/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetKey {
    pub(crate) fabric: FabricKind,
    pub(crate) name: String,
}

/// Key of a target portal group, `FABRIC/NAME/tpgt_N`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TpgKey {
    pub(crate) target: TargetKey,
    pub(crate) tpg: u16,
}

/// Key of a LUN, `…/lun/lun_N`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LunKey {
    pub(crate) tpg: TpgKey,
    pub(crate) lun: u64,
}

/// Key of an ACL, `…/acls/INITIATOR`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AclKey {
    pub(crate) tpg: TpgKey,
    pub(crate) initiator: String,
}

/// Key of a mapped LUN, `…/acls/INITIATOR/lun_N`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MappedKey {
    pub(crate) acl: AclKey,
    pub(crate) lun: u64,
}

/// Numbers of commands and bytes that passed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) commands: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Lio {
    /// configfs is mounted and the target core loaded.
    pub(crate) present: bool,
    pub(crate) values: Values,
    pub(crate) hbas: BTreeMap<String, Hba>,
    pub(crate) fabrics: BTreeMap<FabricKind, Fabric>,
    /// Folders with an inode lock that a waiting call holds, each with the child that the call
    /// removes.
    pub(crate) locked: Vec<(String, Option<String>)>,
    pub(crate) next_index: u32,
    /// The kernel has `rtpi`: a portal group has a relative port id, not a backstore's link.
    pub(crate) has_port_ids: bool,
}

impl Default for Lio {
    fn default() -> Self {
        Self {
            present: true,
            values: Values::default(),
            hbas: BTreeMap::new(),
            fabrics: BTreeMap::new(),
            locked: Vec::new(),
            next_index: 1,
            has_port_ids: false,
        }
    }
}

/// An HBA.
#[derive(Debug, Default)]
pub(crate) struct Hba {
    pub(crate) plugin: Plugin,
    pub(crate) index: u32,
    pub(crate) values: Values,
    pub(crate) stores: BTreeMap<String, Store>,
}

/// The backstore drivers that the fake knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Plugin {
    #[default]
    Iblock,
    Fileio,
    Ramdisk,
}

/// A backstore.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) index: u32,
    pub(crate) values: Values,
    /// Path from `control`: `udev_path` or `fd_dev_name`.
    pub(crate) path: Option<String>,
    pub(crate) readonly: bool,
    pub(crate) file_size: Option<u64>,
    pub(crate) pages: Option<u64>,
    /// Device that the backstore has opened, once enabled.
    pub(crate) open: Option<Opened>,
    pub(crate) serial: Vec<u8>,
    pub(crate) pr: Pr,
    /// Number of LUNs that it was linked into so far: the kernel numbers them so (relative target
    /// port ids).
    pub(crate) ports: u16,
    pub(crate) counters: Counters,
}

/// An enabled backstore's device.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// Device of the backstore; `None` for a RAM disk.
    pub(crate) device: Option<PathBuf>,
    pub(crate) read_only: bool,
}

/// A fabric module.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    pub(crate) values: Values,
    pub(crate) targets: BTreeMap<String, Target>,
}

/// A target.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub(crate) values: Values,
    pub(crate) tpgs: BTreeMap<u16, Tpg>,
    pub(crate) accepts: u64,
    pub(crate) authenticate_fails: u64,
    pub(crate) authorize_fails: u64,
    /// Number of logins without a digest in common.
    pub(crate) negotiate_fails: u64,
    pub(crate) normal_logouts: u64,
    pub(crate) last_failed: Option<String>,
}

/// A target portal group.
#[derive(Debug, Default)]
pub(crate) struct Tpg {
    pub(crate) kind: FabricKind,
    pub(crate) values: Values,
    pub(crate) enabled: bool,
    /// Relative port id, where the kernel has `rtpi`: the one that was written, or the last one
    /// that it was enabled with.
    pub(crate) port_id: u16,
    /// The id was written.
    pub(crate) port_id_is_written: bool,
    pub(crate) portals: BTreeMap<String, Portal>,
    pub(crate) luns: BTreeMap<u64, Lun>,
    pub(crate) acls: BTreeMap<String, Acl>,
}

/// A network portal.
#[derive(Debug)]
pub(crate) struct Portal {
    pub(crate) address: SocketAddr,
    pub(crate) values: Values,
}

/// A LUN of a target portal group.
#[derive(Debug, Default)]
pub(crate) struct Lun {
    pub(crate) values: Values,
    pub(crate) link: Option<(String, StoreKey)>,
    /// Relative target port id, from its link on, where the kernel has no `rtpi`.
    pub(crate) rtpi: u16,
    pub(crate) index: u32,
    pub(crate) counters: Counters,
}

/// An initiator's ACL.
#[derive(Debug)]
pub(crate) struct Acl {
    pub(crate) values: Values,
    pub(crate) depth: u32,
    pub(crate) mapped: BTreeMap<u64, Mapped>,
    /// The ACL is being removed: no login, no command.
    pub(crate) dying: bool,
}

/// A mapped LUN.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) values: Values,
    /// Names and targets of links; only `live` makes a LUN.
    pub(crate) links: BTreeMap<String, LunKey>,
    /// LUN that the initiator reaches: gone when the link, or the LUN's own link, was removed.
    pub(crate) live: Option<LunKey>,
    pub(crate) write_protect: bool,
    pub(crate) index: u32,
    pub(crate) counters: Counters,
}

impl Lio {
    pub(super) fn index(&mut self) -> u32 {
        self.next_index += 1;
        self.next_index
    }

    pub(crate) fn store(&self, key: &StoreKey) -> Option<&Store> {
        self.hbas.get(&key.hba)?.stores.get(&key.name)
    }

    pub(crate) fn store_mut(&mut self, key: &StoreKey) -> Option<&mut Store> {
        self.hbas.get_mut(&key.hba)?.stores.get_mut(&key.name)
    }

    pub(crate) fn target(&self, key: &TargetKey) -> Option<&Target> {
        self.fabrics.get(&key.fabric)?.targets.get(&key.name)
    }

    pub(crate) fn target_mut(&mut self, key: &TargetKey) -> Option<&mut Target> {
        self.fabrics.get_mut(&key.fabric)?.targets.get_mut(&key.name)
    }

    pub(crate) fn tpg(&self, key: &TpgKey) -> Option<&Tpg> {
        self.target(&key.target)?.tpgs.get(&key.tpg)
    }

    pub(crate) fn tpg_mut(&mut self, key: &TpgKey) -> Option<&mut Tpg> {
        self.target_mut(&key.target)?.tpgs.get_mut(&key.tpg)
    }

    pub(crate) fn lun(&self, key: &LunKey) -> Option<&Lun> {
        self.tpg(&key.tpg)?.luns.get(&key.lun)
    }

    pub(crate) fn lun_mut(&mut self, key: &LunKey) -> Option<&mut Lun> {
        self.tpg_mut(&key.tpg)?.luns.get_mut(&key.lun)
    }

    pub(crate) fn acl(&self, key: &AclKey) -> Option<&Acl> {
        self.tpg(&key.tpg)?.acls.get(&key.initiator)
    }

    pub(crate) fn acl_mut(&mut self, key: &AclKey) -> Option<&mut Acl> {
        self.tpg_mut(&key.tpg)?.acls.get_mut(&key.initiator)
    }

    pub(crate) fn mapped(&self, key: &MappedKey) -> Option<&Mapped> {
        self.acl(&key.acl)?.mapped.get(&key.lun)
    }

    pub(crate) fn mapped_mut(&mut self, key: &MappedKey) -> Option<&mut Mapped> {
        self.acl_mut(&key.acl)?.mapped.get_mut(&key.lun)
    }

    /// Iterates over all target portal groups.
    pub(crate) fn tpgs(&self) -> impl Iterator<Item = (TpgKey, &Tpg)> {
        let targets = self.fabrics.iter().flat_map(|(kind, fabric)| {
            fabric
                .targets
                .iter()
                .map(|(name, target)| (TargetKey { fabric: *kind, name: name.clone() }, target))
        });
        targets.flat_map(|(key, target)| {
            target.tpgs.iter().map(move |(tpg, found)| (TpgKey { target: key.clone(), tpg: *tpg }, found))
        })
    }

    /// Returns the LUNs that a backstore is linked into.
    pub(crate) fn exports(&self, key: &StoreKey) -> Vec<LunKey> {
        let mut found = Vec::new();
        for (tpg, group) in self.tpgs() {
            for (lun, seen) in &group.luns {
                if seen.link.as_ref().is_some_and(|(_, store)| store == key) {
                    found.push(LunKey { tpg: tpg.clone(), lun: *lun });
                }
            }
        }
        found
    }

    /// Returns the present relative target port id of a LUN.
    pub(crate) fn port_id(&self, lun: &LunKey) -> u16 {
        if self.has_port_ids {
            self.tpg(&lun.tpg).map_or(0, |tpg| tpg.port_id)
        } else {
            self.lun(lun).map_or(0, |lun| lun.rtpi)
        }
    }

    /// Returns the backstore behind a LUN; `None` if it is not linked.
    pub(crate) fn store_of(&self, lun: &LunKey) -> Option<&Store> {
        self.store(&self.lun(lun)?.link.as_ref()?.1)
    }

    /// Returns `true` if the disk of a LUN carries out EXTENDED COPY.
    pub(crate) fn takes_copies(&self, lun: &LunKey) -> bool {
        let is_on = |store: &Store| store.values.is_on(&super::tables::STORE, "attrib", "emulate_3pc");
        self.store_of(lun).is_some_and(is_on)
    }

    /// Returns `true` if an initiator can change the disk of a LUN by a command that claims to read
    /// (lio.md, t).
    pub(crate) fn takes_false_reads(&self, lun: &LunKey) -> bool {
        let shape = &super::tables::STORE;
        let takes = |store: &Store| {
            store.values.text(shape, "attrib", "max_write_same_len") != "0"
                || store.values.is_on(shape, "attrib", "emulate_caw")
                || store.values.is_on(shape, "attrib", "emulate_3pc")
        };
        self.store_of(lun).is_some_and(takes)
    }

    /// Returns `true` if a LUN is shut (`alua_tg_pt_offline`): commands to it fail when they are
    /// about to be executed.
    pub(crate) fn is_shut(&self, lun: &LunKey) -> bool {
        self.lun(lun).is_some_and(|lun| lun.values.is_on(&super::tables::LUN, "", "alua_tg_pt_offline"))
    }
}

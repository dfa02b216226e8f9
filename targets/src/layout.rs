//! Paths of the parts of one export in the configfs tree. They are functions of [`ExportNames`]
//! alone.
//!
//! What must never happen here: a path outside of the export's own backstore and target, but for
//! the HBA folder and the `iscsi` folder, which are shared with other exports.

use mooring_host::TreePath;
use mooring_model::{ExportNames, FcFabric, Lun};

/// Name of every link that Mooring makes. A LUN and a mapped LUN take one link each, under any
/// name; this one tells an operator who made it.
pub const LINK: &str = "mooring";

/// The folder of all backstores.
pub const CORE: &str = "core";

/// The attributes of a portal group that Mooring answers for: name, value, and why. A new portal
/// group gets all of them, although four are the kernel's defaults: a default is somebody else's
/// decision.
pub const TPG_ATTRIBS: [(&str, &str, &str); 6] = [
    ("generate_node_acls", "0", "only initiators with an ACL are admitted"),
    ("authentication", "1", "an ACL without credentials admits nobody"),
    ("prod_mode_write_protect", "1", "a new mapped LUN starts write-protected"),
    ("demo_mode_write_protect", "1", "should demo mode ever be on, it must not write"),
    ("demo_mode_discovery", "0", "strangers are not told the target's name"),
    ("cache_dynamic_acls", "0", "no ACL is kept that no spec names"),
];

/// Parameters in `param` by which every session of a portal group is negotiated, whatever a spec
/// says: name, value, and why. With immediate data the kernel runs a command that claims to read
/// twice, the second time with the initiator's data in its buffer, and mostly crashes on it
/// (lio.md, t).
pub const TPG_PARAMS: [(&str, &str, &str); 1] =
    [("ImmediateData", "No", "with immediate data a command that claims to read would run twice")];

/// Text of a credential or of a tag that the kernel takes as "not set".
pub(crate) const UNSET: &str = "NULL";

/// An ACL's text for people. Here it names the barrier that was asked for before the ACL was made.
pub(crate) const TAG: &str = "tag";

/// Prefix of a barrier's id in [`TAG`], which holds 63 bytes.
pub(crate) const BARRIER: &str = "mooring-barrier:";

/// An ACL's queue depth.
pub(crate) const DEPTH: &str = "cmdsn_depth";

/// The attributes of a backstore that shut the ways past `write_protect`: name, value, and why. The
/// kernel checks `write_protect` where the initiator claims to send data, and looks at no opcode
/// (lio.md, t). All of them can be written under live sessions, and hold from the next command on.
pub const SEALS: [(&str, &str, &str); 3] = [
    ("max_write_same_len", "0", "WRITE SAME that claims to read would zero blocks past write_protect"),
    ("emulate_caw", "0", "COMPARE AND WRITE that claims to read would write past write_protect"),
    (
        "emulate_3pc",
        "0",
        "EXTENDED COPY would write past write_protect, to another LUN of the initiator's, too",
    ),
];

/// `iscsi`: the folder of all iSCSI targets.
pub fn fabric() -> TreePath {
    TreePath::new("iscsi")
}

/// `core/iblock_N`: the HBA folder, shared with other exports.
pub fn hba(names: &ExportNames) -> TreePath {
    let mut path = TreePath::new(CORE);
    path.push(&names.backstore.hba);
    path
}

/// `core/iblock_N/NAME`
pub fn backstore(names: &ExportNames) -> TreePath {
    let mut path = hba(names);
    path.push(&names.backstore.name);
    path
}

/// `iscsi/IQN`
pub fn target(names: &ExportNames) -> TreePath {
    let mut path = fabric();
    path.push(&names.iqn);
    path
}

/// `tpgt_N`, the portal group's folder name.
pub fn tpg_name(names: &ExportNames) -> String {
    format!("tpgt_{}", names.tpg)
}

/// `iscsi/IQN/tpgt_N`
pub fn tpg(names: &ExportNames) -> TreePath {
    let mut path = target(names);
    path.push(format_args!("tpgt_{}", names.tpg));
    path
}

/// `lun_N`, a LUN's folder name, below the portal group and below an ACL.
pub fn lun_name(lun: Lun) -> String {
    format!("lun_{lun}")
}

/// `…/tpgt_N/lun/lun_N`
pub fn lun(names: &ExportNames) -> TreePath {
    let mut path = tpg(names);
    path.push("lun");
    path.push(format_args!("lun_{}", names.lun));
    path
}

/// `…/tpgt_N/np`
pub fn portals(names: &ExportNames) -> TreePath {
    let mut path = tpg(names);
    path.push("np");
    path
}

/// `…/tpgt_N/acls`
pub fn acls(names: &ExportNames) -> TreePath {
    let mut path = tpg(names);
    path.push("acls");
    path
}

/// `…/tpgt_N/acls/INITIATOR`
pub fn acl(names: &ExportNames, initiator: &str) -> TreePath {
    let mut path = acls(names);
    path.push(initiator);
    path
}

/// `iscsi/IQN/fabric_statistics/iscsi_instance/sessions`
pub fn session_count(names: &ExportNames) -> TreePath {
    target(names).join("fabric_statistics").join("iscsi_instance").join("sessions")
}

fn is_fc(folder: &str) -> bool {
    folder.parse::<FcFabric>().is_ok()
}

/// The kind of object at `path`, as far as an error's explanation depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// `iscsi`
    Fabric,
    /// `fc`, `qla2xxx`, `efct`
    FcFabric,
    /// `fc/WWPN`
    FcPort,
    /// `core/HBA`
    Hba,
    /// `core/HBA/NAME`
    Backstore,
    /// `core/HBA/NAME/…/ATTRIBUTE`
    BackstoreAttribute(&'a str),
    /// `…/TPG/lun/LUN`
    Lun,
    /// `…/TPG/lun/LUN/LINK`
    LunLink,
    /// `iscsi/IQN/TPG/np/PORTAL`
    Portal(&'a str),
    /// `…/TPG/acls/INITIATOR`
    Acl(&'a str),
    /// `…/TPG/acls/INITIATOR/LUN`
    MappedLun,
    /// `…/TPG/acls/INITIATOR/LUN/LINK`
    MappedLink,
    /// Anything else.
    Other,
}

impl<'a> Place<'a> {
    /// Reads the shape of a path.
    pub(crate) fn of(path: &'a TreePath) -> Self {
        let parts: Vec<&str> = path.as_str().split('/').collect();
        match parts.as_slice() {
            ["iscsi"] => Self::Fabric,
            [fabric] if is_fc(fabric) => Self::FcFabric,
            [fabric, _] if is_fc(fabric) => Self::FcPort,
            [CORE, _] => Self::Hba,
            [CORE, _, _] => Self::Backstore,
            [CORE, _, _, .., attribute] => Self::BackstoreAttribute(attribute),
            ["iscsi", _, _, "np", portal] => Self::Portal(portal),
            [fabric, _, _, rest @ ..] if *fabric == "iscsi" || is_fc(fabric) => match rest {
                ["lun", _] => Self::Lun,
                ["lun", _, _] => Self::LunLink,
                ["acls", initiator] => Self::Acl(initiator),
                ["acls", _, lun] if lun.starts_with("lun_") => Self::MappedLun,
                ["acls", _, lun, _] if lun.starts_with("lun_") => Self::MappedLink,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

//! Paths of the parts of a Fibre Channel export in the configfs tree, and the attributes of its
//! portal groups.
//!
//! What must never happen: a path that is a function of anything but the port's and the nexus' own
//! names.

use mooring_host::TreePath;
use mooring_model::{FcFabric, FcPort, Lun, PortLun, Wwpn};

use crate::layout::lun_name;

/// The attribute of a TPG LUN that shuts it: every command to it fails while it is 1 (lio.md, h).
pub const SHUT: &str = "alua_tg_pt_offline";

/// Returns the attributes of a portal group that Mooring answers for: name, value, and why. tcm_fc
/// has none.
pub(super) fn attribs(fabric: FcFabric) -> &'static [(&'static str, &'static str, &'static str)] {
    match fabric {
        FcFabric::TcmFc => &[],
        FcFabric::Qla2xxx | FcFabric::Efct => &[
            ("demo_mode_login_only", "1", "an initiator without an ACL sees no LUN"),
            ("generate_node_acls", "0", "only initiators with an ACL are admitted"),
            ("cache_dynamic_acls", "0", "no ACL is kept that no spec names"),
            ("demo_mode_write_protect", "1", "should a stranger ever see a LUN, it must not write"),
            ("prod_mode_write_protect", "1", "a new mapped LUN starts write-protected"),
        ],
    }
}

/// Returns `true` if a portal group has to be enabled. One of tcm_fc answers from its birth.
pub(super) fn has_enable(fabric: FcFabric) -> bool {
    fabric != FcFabric::TcmFc
}

/// `fc`
pub(super) fn fabric(port: FcPort) -> TreePath {
    TreePath::new(port.fabric.as_str())
}

/// `fc/WWPN`
pub(super) fn target(port: FcPort) -> TreePath {
    fabric(port).join(port.wwpn)
}

/// `fc/WWPN/tpgt_1`: the drivers take no other number.
pub fn tpg(port: FcPort) -> TreePath {
    target(port).join("tpgt_1")
}

/// `…/tpgt_1/lun`
pub(super) fn luns(port: FcPort) -> TreePath {
    tpg(port).join("lun")
}

/// `…/tpgt_1/lun/lun_N`
pub fn lun(port: FcPort, number: PortLun) -> TreePath {
    luns(port).join(format!("lun_{number}"))
}

/// `…/tpgt_1/acls`
pub(super) fn acls(port: FcPort) -> TreePath {
    tpg(port).join("acls")
}

/// `…/tpgt_1/acls/INITIATOR`
pub fn acl(port: FcPort, initiator: Wwpn) -> TreePath {
    acls(port).join(initiator)
}

/// `…/tpgt_1/acls/INITIATOR/lun_N`
pub fn mapped(port: FcPort, initiator: Wwpn, number: Lun) -> TreePath {
    acl(port, initiator).join(lun_name(number))
}

/// Path of the number of commands that a mapped LUN's nexus has sent since it was mapped.
pub(super) fn num_cmds(mapped: &TreePath) -> TreePath {
    mapped.join("statistics").join("scsi_auth_intr").join("num_cmds")
}

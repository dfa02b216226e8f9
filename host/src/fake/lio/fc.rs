//! Fabrics, and the differences of the Fibre Channel ones from iSCSI: names, shapes of objects,
//! refusals. tcm_fc as observed (lio.md, h); qla2xxx and efct, which need adapters, by the kernel's
//! source.
//!
//! What must never happen: a name accepted that the driver refuses; a lock (an `enable`, an
//! attribute) that a driver does not have.

use super::tables::{self, Attr, Rule, Shape, bare_ro, part, ro, rw, tag};

/// A fabric module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FabricKind {
    #[default]
    Iscsi,
    /// tcm_fc: ports of libfc.
    Fc,
    Qla2xxx,
    Efct,
}

impl FabricKind {
    /// Returns the fabric of this folder; `None` if it is none.
    pub(crate) fn of(folder: &str) -> Option<Self> {
        [Self::Iscsi, Self::Fc, Self::Qla2xxx, Self::Efct].into_iter().find(|kind| kind.folder() == folder)
    }

    /// Returns its folder below the root.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Fc => "fc",
            Self::Qla2xxx => "qla2xxx",
            Self::Efct => "efct",
        }
    }

    /// Returns its name inside the kernel, as attributes show it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Iscsi => "iSCSI",
            other => other.folder(),
        }
    }

    /// Returns the SCSI protocol identifier.
    pub(super) fn protocol(self) -> u8 {
        if self == Self::Iscsi { 5 } else { 0 }
    }

    /// Returns `true` if a portal group has to be enabled; one of tcm_fc answers from its birth.
    pub(super) fn has_enable(self) -> bool {
        self != Self::Fc
    }

    /// Returns `true` if a portal group may have this number.
    pub(super) fn takes_group(self, tpg: u16) -> bool {
        matches!(self, Self::Iscsi | Self::Efct) || tpg == 1
    }

    /// Returns `true` if an ACL (and a port of tcm_fc) may have this name: eight pairs of
    /// lower-case digits, for all but iSCSI.
    pub(super) fn takes_initiator(self, name: &str) -> bool {
        let pair = |pair: &str| {
            pair.len() == 2 && pair.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        self == Self::Iscsi || (name.split(':').count() == 8 && name.split(':').all(pair))
    }

    pub(super) fn fabric_shape(self) -> &'static Shape {
        match self {
            Self::Iscsi => &tables::FABRIC,
            Self::Fc => &FC_FABRIC,
            Self::Qla2xxx | Self::Efct => &OTHER_FABRIC,
        }
    }

    pub(super) fn target_shape(self) -> &'static Shape {
        if self == Self::Iscsi { &tables::TARGET } else { &PORT }
    }

    pub(super) fn tpg_shape(self) -> &'static Shape {
        match self {
            Self::Iscsi => &tables::TPG,
            Self::Fc => &FC_TPG,
            Self::Qla2xxx => &QLA2XXX_TPG,
            Self::Efct => &EFCT_TPG,
        }
    }

    pub(super) fn acl_shape(self) -> &'static Shape {
        match self {
            Self::Iscsi => &tables::ACL,
            Self::Fc => &FC_ACL,
            Self::Qla2xxx | Self::Efct => &OTHER_ACL,
        }
    }
}

static DISCOVERY: &[Shape] = &[part("discovery_auth", &[])];

/// `fc`.
static FC_FABRIC: Shape = Shape {
    name: "",
    attrs: &[ro("version", "TCM FC 0.4 on Linux/x86_64 on 6.1.0-56-amd64")],
    parts: DISCOVERY,
};

/// `qla2xxx`, `efct`.
static OTHER_FABRIC: Shape = Shape { name: "", attrs: &[], parts: DISCOVERY };

/// `fc/WWPN`.
static PORT: Shape = Shape {
    name: "",
    attrs: &[],
    parts: &[
        part("fabric_statistics", &[]),
        part("param", &[rw("cmd_completion_affinity", "-1", Rule::Free)]),
    ],
};

/// `fc/WWPN/tpgt_1`: no attribute at all.
static FC_TPG: Shape = Shape {
    name: "",
    attrs: &[],
    parts: &[part("acls", &[]), part("attrib", &[]), part("auth", &[]), part("lun", &[]), part("param", &[])],
};

const DEMO: [Attr; 5] = [
    rw("cache_dynamic_acls", "1", Rule::Flag),
    rw("demo_mode_login_only", "1", Rule::Flag),
    rw("demo_mode_write_protect", "1", Rule::Flag),
    rw("generate_node_acls", "1", Rule::Flag),
    rw("prod_mode_write_protect", "0", Rule::Flag),
];

/// `qla2xxx/WWPN/tpgt_1`.
static QLA2XXX_TPG: Shape = Shape {
    name: "",
    attrs: &[
        bare_ro("dynamic_sessions", ""),
        rw("enable", "0", Rule::Own),
        rw("fabric_prot_type", "0", Rule::Word(&["0", "1", "3"])),
    ],
    parts: &[
        part("acls", &[]),
        part("attrib", &DEMO),
        part("auth", &[]),
        part("lun", &[]),
        part("param", &[]),
    ],
};

/// `efct/WWPN/tpgt_1`.
static EFCT_TPG: Shape = Shape {
    name: "",
    attrs: &[rw("enable", "0", Rule::Own)],
    parts: &[
        part("acls", &[]),
        part("attrib", &DEMO),
        part("auth", &[]),
        part("lun", &[]),
        part("param", &[]),
    ],
};

static ACL_PARTS: &[Shape] =
    &[part("attrib", &[]), part("auth", &[]), part("fabric_statistics", &[]), part("param", &[])];

/// `fc/WWPN/tpgt_1/acls/WWPN`.
static FC_ACL: Shape = Shape {
    name: "",
    attrs: &[rw("node_name", "00:00:00:00:00:00:00:00", Rule::Free), rw("port_name", "", Rule::Free), tag()],
    parts: ACL_PARTS,
};

/// `acls/WWPN` of the other drivers.
static OTHER_ACL: Shape = Shape { name: "", attrs: &[], parts: ACL_PARTS };

//! Fixed shape of LIO's configfs objects: the attributes and default folders that a `mkdir` makes,
//! their modes, their first values, and the rule by which a write is judged. Source: `docs/kernel`,
//! lio-tree.txt and lio.md, a and e (Linux 6.1). What must never happen: an attribute here that the
//! kernel does not have.

use nix::errno::Errno;

/// Access mode of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// 644
    ReadWrite,
    /// 444
    ReadOnly,
    /// 200
    WriteOnly,
}

/// Rule for the newline that the kernel adds to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newline {
    Always,
    /// Only after something was written.
    WhenSet,
    Never,
}

/// Effect of a write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// The object's own code decides.
    Own,
    /// Only the numbers 0 and 1.
    Flag,
    /// A yes or no, judged by its first characters (`kstrtobool`).
    Bool,
    /// A number in this range, both ends included.
    Range(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of these words, commas between them, in any order.
    List(&'static [&'static str]),
    /// Any text, without its final newline.
    Free,
    /// A text of up to 63 bytes, exactly as written; a text that begins with `NULL` is none.
    Tag,
    /// Accepted and ignored.
    Ignored,
    /// Always refused.
    Refused(Errno),
    /// Refused while the backstore is a LUN somewhere, else by the inner rule.
    Unexported(&'static Rule),
}

/// One attribute file.
#[derive(Debug)]
pub(super) struct Attr {
    pub(super) name: &'static str,
    pub(super) mode: Mode,
    /// Value of a new object, without the newline.
    pub(super) text: &'static str,
    pub(super) newline: Newline,
    pub(super) rule: Rule,
}

/// A folder that comes with its object, and its contents.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) attrs: &'static [Attr],
    pub(super) parts: &'static [Shape],
}

impl Shape {
    pub(super) fn attr(&self, name: &str) -> Option<&'static Attr> {
        self.attrs.iter().find(|attr| attr.name == name)
    }

    pub(super) fn part(&self, name: &str) -> Option<&'static Shape> {
        self.parts.iter().find(|part| part.name == name)
    }
}

pub(super) const fn ro(name: &'static str, text: &'static str) -> Attr {
    Attr { name, mode: Mode::ReadOnly, text, newline: Newline::Always, rule: Rule::Refused(Errno::EACCES) }
}

pub(super) const fn rw(name: &'static str, text: &'static str, rule: Rule) -> Attr {
    Attr { name, mode: Mode::ReadWrite, text, newline: Newline::Always, rule }
}

/// Makes a read-only attribute without a newline (most of these are empty files).
pub(super) const fn bare_ro(name: &'static str, text: &'static str) -> Attr {
    Attr { name, mode: Mode::ReadOnly, text, newline: Newline::Never, rule: Rule::Refused(Errno::EACCES) }
}

/// Makes an attribute that is empty until written.
const fn bare(name: &'static str, rule: Rule) -> Attr {
    Attr { name, mode: Mode::ReadWrite, text: "", newline: Newline::WhenSet, rule }
}

/// `MAX_ACL_TAG_SIZE`.
pub(super) const TAG_BYTES: usize = 64;

/// Makes an ACL's tag, which reads as it was written.
pub(super) const fn tag() -> Attr {
    Attr { name: "tag", mode: Mode::ReadWrite, text: "", newline: Newline::Never, rule: Rule::Tag }
}

const fn wo(name: &'static str) -> Attr {
    Attr { name, mode: Mode::WriteOnly, text: "", newline: Newline::Never, rule: Rule::Own }
}

pub(super) const fn part(name: &'static str, attrs: &'static [Attr]) -> Shape {
    Shape { name, attrs, parts: &[] }
}

const fn group(name: &'static str, parts: &'static [Shape]) -> Shape {
    Shape { name, attrs: &[], parts }
}

const U32: Rule = Rule::Range(0, 0xffff_ffff);
const YES_NO: Rule = Rule::Word(&["Yes", "No"]);
const BOOL_UNEXPORTED: Rule = Rule::Unexported(&Rule::Bool);

/// `/sys/kernel/config/target` itself.
pub(super) static ROOT: Shape = Shape {
    name: "",
    attrs: &[
        rw("dbroot", "/var/target", Rule::Own),
        ro("version", "Target Engine Core ConfigFS Infrastructure v5.0 on Linux/x86_64 on 6.1.0-56-amd64"),
    ],
    parts: &[group(
        "core",
        &[group(
            "alua",
            &[group(
                "lu_gps",
                &[part("default_lu_gp", &[rw("lu_gp_id", "0", Rule::Own), bare_ro("members", "")])],
            )],
        )],
    )],
};

/// `core/iblock_N`.
pub(super) static HBA: Shape = Shape {
    name: "",
    attrs: &[ro("hba_info", ""), rw("hba_mode", "0", Rule::Refused(Errno::EINVAL))],
    parts: &[],
};

/// `core/iblock_N/NAME`.
pub(super) static STORE: Shape = Shape {
    name: "",
    attrs: &[
        bare("alias", Rule::Free),
        rw("alua_lu_gp", "LU Group Alias: default_lu_gp\nLU Group ID: 0", Rule::Own),
        wo("control"),
        rw("enable", "0", Rule::Own),
        ro("info", ""),
        bare("lba_map", Rule::Refused(Errno::EINVAL)),
        bare("udev_path", Rule::Free),
    ],
    parts: &[
        part("action", &[]),
        group("alua", &[part("default_tg_pt_gp", TG_PT_GP)]),
        part("attrib", STORE_ATTRIB),
        part("pr", STORE_PR),
        group("statistics", STORE_STATISTICS),
        part(
            "wwn",
            &[
                rw("company_id", "0x001405", Rule::Unexported(&Rule::Free)),
                rw("product_id", "IBLOCK", Rule::Unexported(&Rule::Free)),
                rw("revision", "4.0", Rule::Unexported(&Rule::Free)),
                rw("vendor_id", "LIO-ORG", Rule::Unexported(&Rule::Free)),
                bare_ro("vpd_assoc_logical_unit", ""),
                bare_ro("vpd_assoc_scsi_target_device", ""),
                bare_ro("vpd_assoc_target_port", ""),
                bare_ro("vpd_protocol_identifier", ""),
                rw("vpd_unit_serial", "", Rule::Own),
            ],
        ),
    ],
};

static TG_PT_GP: &[Attr] = &[
    rw("alua_access_state", "0", Rule::Range(0, 15)),
    rw("alua_access_status", "None", Rule::Free),
    rw("alua_access_type", "Implicit and Explicit", Rule::Free),
    rw("alua_support_active_nonoptimized", "1", Rule::Flag),
    rw("alua_support_active_optimized", "1", Rule::Flag),
    rw("alua_support_lba_dependent", "0", Rule::Flag),
    rw("alua_support_offline", "1", Rule::Flag),
    rw("alua_support_standby", "1", Rule::Flag),
    rw("alua_support_transitioning", "1", Rule::Flag),
    rw("alua_support_unavailable", "1", Rule::Flag),
    rw("alua_write_metadata", "0", Rule::Flag),
    rw("implicit_trans_secs", "0", Rule::Range(0, 255)),
    bare_ro("members", ""),
    rw("nonop_delay_msecs", "100", Rule::Range(0, 1000)),
    rw("preferred", "0", Rule::Flag),
    rw("tg_pt_gp_id", "0", Rule::Own),
    rw("trans_delay_msecs", "0", Rule::Range(0, 30_000)),
];

static STORE_ATTRIB: &[Attr] = &[
    rw("alua_support", "1", Rule::Refused(Errno::ENOSYS)),
    rw("block_size", "512", Rule::Unexported(&Rule::Word(&["512", "1024", "2048", "4096"]))),
    rw("emulate_3pc", "1", Rule::Bool),
    rw("emulate_caw", "1", Rule::Bool),
    rw("emulate_dpo", "1", Rule::Ignored),
    rw("emulate_fua_read", "1", Rule::Ignored),
    rw("emulate_fua_write", "1", Rule::Bool),
    rw("emulate_model_alias", "0", BOOL_UNEXPORTED),
    rw("emulate_pr", "1", Rule::Bool),
    rw("emulate_rest_reord", "0", Rule::Own),
    rw("emulate_tas", "1", BOOL_UNEXPORTED),
    rw("emulate_tpu", "0", Rule::Own),
    rw("emulate_tpws", "0", Rule::Own),
    rw("emulate_ua_intlck_ctrl", "0", Rule::Unexported(&Rule::Range(0, 2))),
    rw("emulate_write_cache", "0", Rule::Range(0, 0)),
    rw("enforce_pr_isids", "1", Rule::Bool),
    rw("force_pr_aptpl", "0", BOOL_UNEXPORTED),
    ro("hw_block_size", "512"),
    ro("hw_max_sectors", "4294967288"),
    ro("hw_pi_prot_type", "0"),
    ro("hw_queue_depth", "128"),
    rw("is_nonrot", "0", Rule::Bool),
    rw("max_unmap_block_desc_count", "1", U32),
    rw("max_unmap_lba_count", "4194303", U32),
    rw("max_write_same_len", "4194303", U32),
    rw("optimal_sectors", "4294967288", Rule::Unexported(&Rule::Range(0, 4_294_967_288))),
    rw("pgr_support", "1", Rule::Refused(Errno::ENOSYS)),
    rw("pi_prot_format", "0", Rule::Refused(Errno::ENOSYS)),
    rw("pi_prot_type", "0", Rule::Refused(Errno::ENOSYS)),
    rw("pi_prot_verify", "0", Rule::Ignored),
    rw("queue_depth", "128", Rule::Unexported(&Rule::Range(1, 128))),
    rw("unmap_granularity", "1", U32),
    rw("unmap_granularity_alignment", "0", U32),
    rw("unmap_zeroes_data", "0", BOOL_UNEXPORTED),
];

static STORE_PR: &[Attr] = &[
    ro("res_aptpl_active", "APTPL Bit Status: Disabled"),
    rw("res_aptpl_metadata", "Ready to process PR APTPL metadata..", Rule::Own),
    ro("res_holder", "No SPC-3 Reservation holder"),
    ro("res_pr_all_tgt_pts", "No SPC-3 Reservation holder"),
    ro("res_pr_generation", "0x00000000"),
    ro("res_pr_holder_tg_port", "No SPC-3 Reservation holder"),
    ro("res_pr_registered_i_pts", "SPC-3 PR Registrations:\nNone"),
    ro("res_pr_type", "No SPC-3 Reservation holder"),
    ro("res_type", "SPC3_PERSISTENT_RESERVATIONS"),
];

static STORE_STATISTICS: &[Shape] = &[
    part("scsi_dev", &[ro("indx", "0"), ro("inst", "0"), ro("ports", "0"), ro("role", "Target")]),
    part(
        "scsi_lu",
        &[
            ro("creation_time", "0"),
            ro("dev", "0"),
            ro("dev_type", "0"),
            ro("full_stat", "0"),
            ro("hs_num_cmds", "0"),
            ro("indx", "1"),
            ro("inst", "0"),
            ro("lu_name", ""),
            ro("lun", "0"),
            ro("num_cmds", "0"),
            ro("prod", "IBLOCK          "),
            ro("read_mbytes", "0"),
            ro("resets", "0"),
            ro("rev", "4.0 "),
            ro("state_bit", "exposed"),
            ro("status", "available"),
            ro("vend", "LIO-ORG "),
            ro("write_mbytes", "0"),
        ],
    ),
    part(
        "scsi_tgt_dev",
        &[
            ro("aborts_complete", "0"),
            ro("aborts_no_task", "0"),
            ro("indx", "0"),
            ro("inst", "0"),
            ro("non_access_lus", "0"),
            ro("num_lus", "1"),
            ro("resets", "0"),
            bare_ro("status", ""),
        ],
    ),
];

/// `iscsi`.
pub(super) static FABRIC: Shape = Shape {
    name: "",
    attrs: &[
        rw("cpus_allowed_list", "0-1", Rule::Free),
        ro("lio_version", "Datera Inc. iSCSI Target v4.1.0"),
    ],
    parts: &[part(
        "discovery_auth",
        &[
            ro("authenticate_target", "0"),
            rw("enforce_discovery_auth", "0", Rule::Flag),
            rw("password", "", Rule::Own),
            rw("password_mutual", "", Rule::Own),
            rw("userid", "", Rule::Own),
            rw("userid_mutual", "", Rule::Own),
        ],
    )],
};

/// `iscsi/IQN`.
pub(super) static TARGET: Shape = Shape {
    name: "",
    attrs: &[],
    parts: &[
        group(
            "fabric_statistics",
            &[
                part(
                    "iscsi_instance",
                    &[
                        ro("description", "Storage Engine Target"),
                        ro("disc_time", "0"),
                        ro("fail_rem_name", "None"),
                        ro("fail_sess", "0"),
                        ro("fail_type", "0"),
                        ro("inst", "0"),
                        ro("max_ver", "0"),
                        ro("min_ver", "0"),
                        ro("nodes", "0"),
                        ro("portals", "0"),
                        ro("sessions", "0"),
                        ro("vendor", "Datera, Inc. iSCSI-Target"),
                        ro("version", "v4.1.0"),
                    ],
                ),
                part(
                    "iscsi_login_stats",
                    &[
                        ro("accepts", "0"),
                        ro("authenticate_fails", "0"),
                        ro("authorize_fails", "0"),
                        ro("indx", "1"),
                        ro("inst", "0"),
                        ro("negotiate_fails", "0"),
                        ro("other_fails", "0"),
                        ro("redirects", "0"),
                    ],
                ),
                part(
                    "iscsi_logout_stats",
                    &[
                        ro("abnormal_logouts", "0"),
                        ro("indx", "1"),
                        ro("inst", "0"),
                        ro("normal_logouts", "0"),
                    ],
                ),
                part(
                    "iscsi_sess_err",
                    &[
                        ro("cxn_errors", "0"),
                        ro("digest_errors", "0"),
                        ro("format_errors", "0"),
                        ro("inst", "0"),
                    ],
                ),
                part(
                    "iscsi_tgt_attr",
                    &[
                        ro("fail_intr_addr", "(einval)"),
                        ro("fail_intr_addr_type", "ipv4"),
                        ro("fail_intr_name", ""),
                        ro("indx", "1"),
                        ro("inst", "0"),
                        ro("last_fail_time", "0"),
                        ro("last_fail_type", "0"),
                        ro("login_fails", "0"),
                    ],
                ),
            ],
        ),
        part("param", &[rw("cmd_completion_affinity", "-1", Rule::Free)]),
    ],
};

/// `iscsi/IQN/tpgt_N`.
pub(super) static TPG: Shape = Shape {
    name: "",
    attrs: &[bare_ro("dynamic_sessions", ""), rw("enable", "0", Rule::Own)],
    parts: &[
        part("acls", &[]),
        part("attrib", TPG_ATTRIB),
        part("auth", AUTH),
        part("lun", &[]),
        part("np", &[]),
        part("param", TPG_PARAM),
    ],
};

/// Attribute of a portal group of every fabric, where the kernel has it (6.12 does).
pub(super) static PORT_ID: Attr = rw("rtpi", "0x0", Rule::Own);

static TPG_ATTRIB: &[Attr] = &[
    rw("authentication", "1", Rule::Flag),
    rw("cache_dynamic_acls", "0", Rule::Flag),
    rw("default_cmdsn_depth", "64", Rule::Range(1, 512)),
    rw("default_erl", "0", Rule::Range(0, 2)),
    rw("demo_mode_discovery", "1", Rule::Flag),
    rw("demo_mode_write_protect", "1", Rule::Flag),
    rw("fabric_prot_type", "0", Rule::Word(&["0", "1", "3"])),
    rw("generate_node_acls", "0", Rule::Flag),
    rw("login_keys_workaround", "1", Rule::Flag),
    rw("login_timeout", "15", Rule::Range(5, 30)),
    rw("netif_timeout", "2", Rule::Range(2, 15)),
    rw("prod_mode_write_protect", "0", Rule::Flag),
    rw("t10_pi", "0", Rule::Flag),
    rw("tpg_enabled_sendtargets", "1", Rule::Flag),
];

static AUTH: &[Attr] = &[
    ro("authenticate_target", "0"),
    rw("password", "", Rule::Own),
    rw("password_mutual", "", Rule::Own),
    rw("userid", "", Rule::Own),
    rw("userid_mutual", "", Rule::Own),
];

static TPG_PARAM: &[Attr] = &[
    rw("AuthMethod", "CHAP", Rule::Word(&["CHAP", "None", "CHAP,None"])),
    rw("DataDigest", "CRC32C,None", Rule::List(&["CRC32C", "None"])),
    rw("DataPDUInOrder", "Yes", YES_NO),
    rw("DataSequenceInOrder", "Yes", YES_NO),
    rw("DefaultTime2Retain", "20", Rule::Range(0, 3600)),
    rw("DefaultTime2Wait", "2", Rule::Range(0, 3600)),
    rw("ErrorRecoveryLevel", "0", Rule::Range(0, 2)),
    rw("FirstBurstLength", "65536", Rule::Range(512, 16_777_215)),
    rw("HeaderDigest", "CRC32C,None", Rule::List(&["CRC32C", "None"])),
    rw("IFMarkInt", "Reject", Rule::Free),
    rw("IFMarker", "No", YES_NO),
    rw("ImmediateData", "Yes", YES_NO),
    rw("InitialR2T", "Yes", YES_NO),
    rw("MaxBurstLength", "262144", Rule::Range(512, 16_777_215)),
    rw("MaxConnections", "1", Rule::Range(1, 65_535)),
    rw("MaxOutstandingR2T", "1", Rule::Range(1, 65_535)),
    rw("MaxRecvDataSegmentLength", "8192", Rule::Range(512, 16_777_215)),
    rw("MaxXmitDataSegmentLength", "262144", Rule::Range(512, 16_777_215)),
    rw("OFMarkInt", "Reject", Rule::Free),
    rw("OFMarker", "No", YES_NO),
    rw("TargetAlias", "LIO Target", Rule::Free),
];

/// `np/IP:PORT`.
pub(super) static PORTAL: Shape =
    Shape { name: "", attrs: &[rw("cxgbit", "0", Rule::Own), rw("iser", "0", Rule::Own)], parts: &[] };

/// `lun/lun_N`.
pub(super) static LUN: Shape = Shape {
    name: "",
    attrs: &[
        rw("alua_tg_pt_gp", "", Rule::Own),
        rw("alua_tg_pt_offline", "0", Rule::Flag),
        rw("alua_tg_pt_status", "0", Rule::Range(0, 255)),
        rw("alua_tg_pt_write_md", "0", Rule::Flag),
    ],
    parts: &[group(
        "statistics",
        &[
            part(
                "scsi_port",
                &[
                    ro("busy_count", "0"),
                    ro("dev", "0"),
                    ro("indx", "1"),
                    ro("inst", "0"),
                    ro("role", "Device0"),
                ],
            ),
            part(
                "scsi_tgt_port",
                &[
                    ro("dev", "0"),
                    ro("hs_in_cmds", "0"),
                    ro("in_cmds", "0"),
                    ro("indx", "1"),
                    ro("inst", "0"),
                    ro("name", "iSCSIPort#1"),
                    ro("port_index", ""),
                    ro("read_mbytes", "0"),
                    ro("write_mbytes", "0"),
                ],
            ),
            part(
                "scsi_transport",
                &[
                    ro("dev_name", ""),
                    ro("device", "scsiTransportiSCSI"),
                    ro("indx", "0"),
                    ro("inst", "0"),
                    ro("proto_id", "5"),
                ],
            ),
        ],
    )],
};

/// `acls/INITIATOR`.
pub(super) static ACL: Shape = Shape {
    name: "",
    attrs: &[rw("cmdsn_depth", "64", Rule::Own), ro("info", ""), tag()],
    parts: &[
        part(
            "attrib",
            &[
                rw("authentication", "-1", Rule::Word(&["-1", "0", "1"])),
                rw("dataout_timeout", "3", Rule::Range(2, 60)),
                rw("dataout_timeout_retries", "5", Rule::Range(1, 15)),
                rw("default_erl", "0", Rule::Range(0, 2)),
                rw("nopin_response_timeout", "30", Rule::Range(3, 60)),
                rw("nopin_timeout", "15", Rule::Own),
                rw("random_datain_pdu_offsets", "0", Rule::Flag),
                rw("random_datain_seq_offsets", "0", Rule::Flag),
                rw("random_r2t_offsets", "0", Rule::Flag),
            ],
        ),
        part("auth", AUTH),
        group(
            "fabric_statistics",
            &[part(
                "iscsi_sess_stats",
                &[
                    bare_ro("cmd_pdus", ""),
                    bare_ro("conn_digest_errors", ""),
                    bare_ro("conn_timeout_errors", ""),
                    bare_ro("indx", ""),
                    ro("inst", "0"),
                    bare_ro("node", ""),
                    bare_ro("rsp_pdus", ""),
                    bare_ro("rxdata_octs", ""),
                    bare_ro("txdata_octs", ""),
                ],
            )],
        ),
        part("param", ACL_PARAM),
    ],
};

const NO_SESSION: &str = "No Active iSCSI Session";

static ACL_PARAM: &[Attr] = &[
    ro("DataPDUInOrder", NO_SESSION),
    ro("DataSequenceInOrder", NO_SESSION),
    ro("DefaultTime2Retain", NO_SESSION),
    ro("DefaultTime2Wait", NO_SESSION),
    ro("ErrorRecoveryLevel", NO_SESSION),
    ro("FirstBurstLength", NO_SESSION),
    ro("ImmediateData", NO_SESSION),
    ro("InitialR2T", NO_SESSION),
    ro("MaxBurstLength", NO_SESSION),
    ro("MaxConnections", NO_SESSION),
    ro("MaxOutstandingR2T", NO_SESSION),
];

/// Parameters of an ACL with a session: name and value as negotiated by a stock initiator. The
/// session has the values that follow from the portal group's own `param`.
pub(super) static ACL_PARAM_LIVE: &[(&str, &str)] = &[
    ("DataPDUInOrder", "1"),
    ("DataSequenceInOrder", "1"),
    ("DefaultTime2Retain", "0"),
    ("DefaultTime2Wait", "2"),
    ("ErrorRecoveryLevel", "0"),
    ("MaxConnections", "1"),
    ("MaxOutstandingR2T", "1"),
];

/// `acls/INITIATOR/lun_N`.
pub(super) static MAPPED: Shape = Shape {
    name: "",
    attrs: &[rw("write_protect", "", Rule::Own)],
    parts: &[group(
        "statistics",
        &[
            part(
                "scsi_att_intr_port",
                &[
                    ro("dev", "0"),
                    ro("indx", "0"),
                    ro("inst", "0"),
                    ro("port", "1"),
                    ro("port_auth_indx", "0"),
                    ro("port_ident", ""),
                ],
            ),
            part(
                "scsi_auth_intr",
                &[
                    ro("att_count", "0"),
                    ro("creation_time", "0"),
                    ro("dev", "0"),
                    ro("dev_or_port", "1"),
                    ro("hs_num_cmds", "0"),
                    ro("indx", "0"),
                    ro("inst", "0"),
                    ro("intr_name", ""),
                    ro("map_indx", "0"),
                    ro("num_cmds", "0"),
                    ro("port", "1"),
                    ro("read_mbytes", "0"),
                    ro("row_status", "Ready"),
                    ro("write_mbytes", "0"),
                ],
            ),
        ],
    )],
};

//! Rows on targets, groups, portals and LUNs.

use nix::errno::Errno;

use super::script::PORTAL;
use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

fn portal(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.try_mkdir(&tpg.join("np").join(name))
}

fn group(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let target = s.target()?;
    s.try_mkdir(&target.join(name))
}

fn lun(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.try_mkdir(&tpg.join("lun").join(name))
}

fn attrib(s: &Script<'_>, name: &str, value: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.try_write(&tpg.join("attrib").join(name), value)
}

/// Writes a parameter of a group that is enabled, and reads it back.
fn param(s: &Script<'_>, name: &str, value: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.write(&tpg.join("enable"), 1)?;
    s.write_read(&tpg.join("param").join(name), value)
}

/// Writes a parameter of a group that is enabled.
fn set_param(s: &Script<'_>, name: &str, value: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.write(&tpg.join("enable"), 1)?;
    s.try_write(&tpg.join("param").join(name), value)
}

pub(super) const ROWS: &[Row] = &[
    Row::fails("mkdir of a fabric that does not exist", Errno::EINVAL, |s| {
        s.try_mkdir(&TreePath::new("nosuchfabric"))
    }),
    Row::ok("target name that is no IQN", |s| {
        let fabric = s.fabric()?;
        s.try_mkdir(&fabric.join("mooring-contract-foo"))
    }),
    Row::ok("target name in upper case is kept as it is", |s| {
        let fabric = s.fabric()?;
        let name = fabric.join("IQN.2026-11.dev.mooring.contract:UPPER");
        s.mkdir(&name)?;
        s.try_list(&name)
    }),
    Row::ok("target name of 200 characters", |s| {
        let fabric = s.fabric()?;
        s.try_mkdir(&fabric.join(format!("iqn.2026-11.dev.mooring.contract:{}", "n".repeat(167))))
    }),
    Row::fails("target name of 224 characters", Errno::EINVAL, |s| {
        let fabric = s.fabric()?;
        s.try_mkdir(&fabric.join(format!("iqn.2026-11.dev.mooring.contract:{}", "n".repeat(191))))
    }),
    Row::fails("mkdir of a target that exists", Errno::EEXIST, |s| s.try_mkdir(&s.target()?)),
    Row::fails("mkdir tpg1", Errno::EINVAL, |s| group(s, "tpg1")),
    Row::fails("mkdir tpgt_x", Errno::EINVAL, |s| group(s, "tpgt_x")),
    Row::fails("mkdir tpgt_65536", Errno::EINVAL, |s| group(s, "tpgt_65536")),
    Row::ok("mkdir tpgt_0", |s| group(s, "tpgt_0")),
    Row::ok("mkdir tpgt_65535", |s| group(s, "tpgt_65535")),
    Row::fails("mkdir of a group that exists", Errno::EEXIST, |s| s.try_mkdir(&s.tpg()?)),
    Row::fails("portal without a port", Errno::EINVAL, |s| portal(s, "127.0.0.1")),
    Row::fails("portal with port 99999", Errno::EINVAL, |s| portal(s, "127.0.0.1:99999")),
    Row::fails("portal nonsense:3260", Errno::EINVAL, |s| portal(s, "nonsense:3260")),
    Row::fails("portal [fe80::1:3260", Errno::EINVAL, |s| portal(s, "[fe80::1:3260")),
    Row::ok("portal with port 0", |s| portal(s, "127.0.0.1:0")),
    Row::ok("portal on an address of nobody", |s| portal(s, "10.99.0.1:33260")),
    Row::ok("portal [::1]:33260", |s| portal(s, "[::1]:33260")),
    Row::ok("portal", |s| portal(s, PORTAL)),
    Row::fails("same portal, same group", Errno::EEXIST, |s| {
        let portal = s.tpg()?.join("np").join(PORTAL);
        s.mkdir(&portal)?;
        s.try_mkdir(&portal)
    }),
    Row::fails("same portal, other group of the same target", Errno::EINVAL, |s| {
        let tpg = s.tpg()?;
        s.mkdir(&tpg.join("np").join(PORTAL))?;
        s.mkdir(&tpg.parent().join("tpgt_2"))?;
        s.try_mkdir(&tpg.parent().join("tpgt_2").join("np").join(PORTAL))
    }),
    Row::ok("same portal, other target", |s| {
        let (tpg, other) = (s.tpg()?, s.other_tpg()?);
        s.mkdir(&tpg.join("np").join(PORTAL))?;
        s.try_mkdir(&other.join("np").join(PORTAL))
    }),
    Row::fails("wildcard portal beside another target's on the port", Errno::EINVAL, |s| {
        let (tpg, other) = (s.tpg()?, s.other_tpg()?);
        s.mkdir(&tpg.join("np").join(PORTAL))?;
        s.try_mkdir(&other.join("np").join("0.0.0.0:33260"))
    }),
    Row::fails("portal beside another target's wildcard on the port", Errno::EINVAL, |s| {
        let (tpg, other) = (s.tpg()?, s.other_tpg()?);
        s.mkdir(&tpg.join("np").join("0.0.0.0:33260"))?;
        s.try_mkdir(&other.join("np").join(PORTAL))
    }),
    Row::ok("rmdir of a portal without sessions", |s| {
        let portal = s.tpg()?.join("np").join(PORTAL);
        s.mkdir(&portal)?;
        s.try_rmdir(&portal)
    }),
    Row::ok("rmdir of an enabled group's portal that another target has, too", |s| {
        let (tpg, other) = (s.tpg()?, s.other_tpg()?);
        s.mkdir(&tpg.join("np").join(PORTAL))?;
        s.mkdir(&other.join("np").join(PORTAL))?;
        s.write(&tpg.join("enable"), 1)?;
        s.try_rmdir(&tpg.join("np").join(PORTAL))
    }),
    Row::ok("an enabled group's portal that comes back", |s| {
        let (tpg, other) = (s.tpg()?, s.other_tpg()?);
        let portal = tpg.join("np").join(PORTAL);
        s.mkdir(&portal)?;
        s.mkdir(&other.join("np").join(PORTAL))?;
        s.write(&tpg.join("enable"), 1)?;
        s.rmdir(&portal)?;
        s.try_mkdir(&portal)
    }),
    Row::ok("enable=1 twice, without LUN or portal", |s| {
        let enable = s.tpg()?.join("enable");
        s.write(&enable, 1)?;
        s.try_write(&enable, 1)
    }),
    Row::ok("enable=0 twice", |s| s.try_write(&s.tpg()?.join("enable"), 0)),
    Row::fails("enable=2", Errno::EINVAL, |s| s.try_write(&s.tpg()?.join("enable"), 2)),
    Row::fails("enable=x", Errno::EINVAL, |s| s.try_write(&s.tpg()?.join("enable"), "x")),
    Row::reads("enable with a newline", "1\n", |s| s.write_read(&s.tpg()?.join("enable"), "1\n")),
    Row::fails("mkdir lun/0", Errno::EINVAL, |s| lun(s, "0")),
    Row::fails("mkdir lun/lun_x", Errno::EINVAL, |s| lun(s, "lun_x")),
    Row::ok("mkdir lun/lun_65535", |s| lun(s, "lun_65535")),
    Row::ok("mkdir lun/lun_65536", |s| lun(s, "lun_65536")),
    Row::fails("link a LUN to a target that is missing", Errno::ENOENT, |s| {
        let (hba, tpg) = (s.hba()?, s.tpg()?);
        let lun = s.bare_lun(&tpg)?;
        s.try_symlink(&hba.join("none"), &lun.join("store"))
    }),
    Row::fails("link a LUN to a backstore that is not enabled", Errno::ENODEV, |s| {
        let (store, tpg) = (s.bare_store()?, s.tpg()?);
        let lun = s.bare_lun(&tpg)?;
        s.try_symlink(&store, &lun.join("store"))
    }),
    Row::fails("link a LUN to something that is no backstore", Errno::EFAULT, |s| {
        let tpg = s.tpg()?;
        let lun = s.bare_lun(&tpg)?;
        s.try_symlink(&tpg, &lun.join("store"))
    }),
    Row::fails("second link in a LUN", Errno::EEXIST, |s| {
        let [store, _, lun, _] = s.export()?;
        s.try_symlink(&store, &lun.join("again"))
    }),
    Row::ok("one backstore as a second LUN", |s| {
        let [store, tpg, ..] = s.export()?;
        let second = tpg.join("lun").join("lun_2");
        s.mkdir(&second)?;
        s.try_symlink(&store, &second.join("store"))
    }),
    Row::ok("one backstore in another target", |s| {
        let [store, ..] = s.export()?;
        let other = s.other_tpg()?;
        let lun = s.bare_lun(&other)?;
        s.try_symlink(&store, &lun.join("store"))
    }),
    Row::reads("a link reads as a path below the root", "core/iblock_99001/vol", |s| {
        let [_, _, lun, _] = s.export()?;
        s.try_read_link(&lun.join("store"))
    }),
    Row::fails("link in a folder that takes none", Errno::EPERM, |s| {
        let (store, tpg) = (s.store()?, s.tpg()?);
        s.try_symlink(&store, &tpg.join("acls").join("x"))
    }),
    Row::fails("rmdir of a LUN with its link inside", Errno::ENOTEMPTY, |s| {
        let (store, tpg) = (s.store()?, s.tpg()?);
        s.try_rmdir(&s.lun(&tpg, &store)?)
    }),
    Row::fails("rmdir of a LUN that is mapped", Errno::EBUSY, |s| {
        let [_, _, lun, _] = s.export()?;
        s.try_rmdir(&lun)
    }),
    Row::fails("rmdir of a LUN that is mapped, after its own link went", Errno::EBUSY, |s| {
        let [_, _, lun, _] = s.export()?;
        s.unlink(&lun.join("store"))?;
        s.try_rmdir(&lun)
    }),
    Row::ok("unlink of a LUN's link while it is mapped", |s| {
        let [_, _, lun, _] = s.export()?;
        s.try_unlink(&lun.join("store"))
    }),
    Row::fails("unlink of an attribute", Errno::EPERM, |s| s.try_unlink(&s.tpg()?.join("enable"))),
    Row::fails("rmdir acls", Errno::EPERM, |s| s.try_rmdir(&s.tpg()?.join("acls"))),
    Row::fails("rmdir lun", Errno::EPERM, |s| s.try_rmdir(&s.tpg()?.join("lun"))),
    Row::fails("rmdir np", Errno::EPERM, |s| s.try_rmdir(&s.tpg()?.join("np"))),
    Row::fails("rmdir of a target with a group", Errno::ENOTEMPTY, |s| s.try_rmdir(&s.tpg()?.parent())),
    Row::fails("rmdir of a group with a LUN", Errno::ENOTEMPTY, |s| {
        let tpg = s.tpg()?;
        s.bare_lun(&tpg)?;
        s.try_rmdir(&tpg)
    }),
    Row::fails("rmdir of a group with an ACL", Errno::ENOTEMPTY, |s| {
        let tpg = s.tpg()?;
        s.acl(&tpg)?;
        s.try_rmdir(&tpg)
    }),
    Row::fails("rmdir of a group with a portal", Errno::ENOTEMPTY, |s| {
        let tpg = s.tpg()?;
        s.mkdir(&tpg.join("np").join(PORTAL))?;
        s.try_rmdir(&tpg)
    }),
    Row::ok("rmdir of an enabled group", |s| {
        let tpg = s.tpg()?;
        s.write(&tpg.join("enable"), 1)?;
        s.try_rmdir(&tpg)
    }),
    Row::fails("default_cmdsn_depth=0", Errno::EINVAL, |s| attrib(s, "default_cmdsn_depth", "0")),
    Row::fails("default_cmdsn_depth=513", Errno::EINVAL, |s| attrib(s, "default_cmdsn_depth", "513")),
    Row::ok("default_cmdsn_depth=512", |s| attrib(s, "default_cmdsn_depth", "512")),
    Row::reads("default_cmdsn_depth leaves an ACL that is there alone", "64\n", |s| {
        let tpg = s.tpg()?;
        let acl = s.acl(&tpg)?;
        s.write(&tpg.join("attrib").join("default_cmdsn_depth"), 32)?;
        s.try_read(&acl.join("cmdsn_depth"))
    }),
    // The rest of `param`: taken from the kernel's source, of 6.1 and 6.12, without an earlier
    // observation.
    Row::reads("source: HeaderDigest=CRC32C of an enabled group", "CRC32C\n", |s| {
        param(s, "HeaderDigest", "CRC32C")
    }),
    Row::reads("source: DataDigest=None", "None\n", |s| param(s, "DataDigest", "None")),
    Row::reads("source: DataDigest=None,CRC32C is kept in its order", "None,CRC32C\n", |s| {
        param(s, "DataDigest", "None,CRC32C")
    }),
    Row::fails("source: HeaderDigest=crc32c", Errno::EINVAL, |s| set_param(s, "HeaderDigest", "crc32c")),
    Row::fails("source: HeaderDigest=CRC32", Errno::EINVAL, |s| set_param(s, "HeaderDigest", "CRC32C,CRC32")),
    Row::reads("source: MaxBurstLength=512 of an enabled group", "512\n", |s| {
        param(s, "MaxBurstLength", "512")
    }),
    Row::fails("source: MaxBurstLength=511", Errno::EINVAL, |s| set_param(s, "MaxBurstLength", "511")),
    Row::reads("source: a first burst above MaxBurstLength is accepted", "16777215\n", |s| {
        param(s, "FirstBurstLength", "16777215")
    }),
    Row::fails("source: FirstBurstLength=16777216", Errno::EINVAL, |s| {
        set_param(s, "FirstBurstLength", "16777216")
    }),
    Row::reads("source: MaxXmitDataSegmentLength=524288", "524288\n", |s| {
        param(s, "MaxXmitDataSegmentLength", "524288")
    }),
    Row::fails("source: MaxXmitDataSegmentLength=0", Errno::EINVAL, |s| {
        set_param(s, "MaxXmitDataSegmentLength", "0")
    }),
    Row::reads("source: InitialR2T=No", "No\n", |s| param(s, "InitialR2T", "No")),
    Row::reads("source: ImmediateData=No", "No\n", |s| param(s, "ImmediateData", "No")),
    Row::fails("source: ImmediateData=no", Errno::EINVAL, |s| set_param(s, "ImmediateData", "no")),
    Row::reads("source: MaxOutstandingR2T=8", "8\n", |s| param(s, "MaxOutstandingR2T", "8")),
    Row::fails("source: MaxOutstandingR2T=0", Errno::EINVAL, |s| set_param(s, "MaxOutstandingR2T", "0")),
    Row::fails("generate_node_acls=2", Errno::EINVAL, |s| attrib(s, "generate_node_acls", "2")),
    Row::fails("authentication=2", Errno::EINVAL, |s| attrib(s, "authentication", "2")),
    Row::fails("authentication=x", Errno::EINVAL, |s| attrib(s, "authentication", "x")),
    Row::reads("authentication of a new group", "1\n", |s| {
        s.try_read(&s.tpg()?.join("attrib").join("authentication"))
    }),
    Row::reads("generate_node_acls of a new group", "0\n", |s| {
        s.try_read(&s.tpg()?.join("attrib").join("generate_node_acls"))
    }),
    Row::reads("demo_mode_discovery of a new group", "1\n", |s| {
        s.try_read(&s.tpg()?.join("attrib").join("demo_mode_discovery"))
    }),
    Row::reads("dynamic_sessions without sessions", "", |s| s.try_read(&s.tpg()?.join("dynamic_sessions"))),
    Row::fails("mkdir lun/lun_18446744073709551616", Errno::ERANGE, |s| lun(s, "lun_18446744073709551616")),
    Row::reads("authentication=0 changes AuthMethod", "CHAP,None\n", |s| {
        let tpg = s.tpg()?;
        s.write(&tpg.join("attrib").join("authentication"), 0)?;
        s.try_read(&tpg.join("param").join("AuthMethod"))
    }),
    Row::reads("a group's flag is a number, hexadecimal at will", "1\n", |s| {
        s.write_read(&s.tpg()?.join("attrib").join("generate_node_acls"), "0x1")
    }),
    Row::fails("a group's flag may not be y", Errno::EINVAL, |s| attrib(s, "generate_node_acls", "y")),
    Row::reads("generate_node_acls=1 sets cache_dynamic_acls", "1\n", |s| {
        let tpg = s.tpg()?;
        s.write(&tpg.join("attrib").join("generate_node_acls"), 1)?;
        s.try_read(&tpg.join("attrib").join("cache_dynamic_acls"))
    }),
    Row::reads("AuthMethod of a group that was never enabled", "CHAP\n", |s| {
        s.try_read(&s.tpg()?.join("param").join("AuthMethod"))
    }),
    Row::reads("AuthMethod once enabled with authentication", "CHAP\n", |s| {
        let tpg = s.tpg()?;
        s.write(&tpg.join("enable"), 1)?;
        s.try_read(&tpg.join("param").join("AuthMethod"))
    }),
    Row::fails("counters of a LUN without its link", Errno::ENODEV, |s| {
        let tpg = s.tpg()?;
        let lun = s.bare_lun(&tpg)?;
        s.try_read(&lun.join("statistics").join("scsi_tgt_port").join("in_cmds"))
    }),
];

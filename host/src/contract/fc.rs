//! Rows on Fibre Channel, with tcm_fc: names, attributes that a portal group lacks, LUNs of one's
//! own, and the shutting of a LUN. No adapter has the ports of these rows; tcm_fc accepts them.

use nix::errno::Errno;

use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

/// Ports and initiators of the contract: locally assigned names that no adapter has.
const PORT: &str = "22:99:00:4d:6f:6f:72:01";
const PORT2: &str = "22:99:00:4d:6f:6f:72:02";
const HOST: &str = "22:99:00:4d:6f:6f:72:11";
const HOST2: &str = "22:99:00:4d:6f:6f:72:12";

fn fabric(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let path = TreePath::new("fc");
    match s.mkdir(&path) {
        Err(error) if error.errno != Errno::EEXIST => Err(error),
        _ => Ok(path),
    }
}

fn port(s: &Script<'_>, name: &str) -> Result<TreePath, TreeError> {
    let path = fabric(s)?.join(name);
    s.mkdir(&path)?;
    Ok(path)
}

fn group(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let path = port(s, PORT)?.join("tpgt_1");
    s.mkdir(&path)?;
    Ok(path)
}

fn port_named(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let fabric = fabric(s)?;
    s.try_mkdir(&fabric.join(name))
}

fn group_named(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let port = port(s, PORT)?;
    s.try_mkdir(&port.join(name))
}

fn acl_named(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let group = group(s)?;
    s.try_mkdir(&group.join("acls").join(name))
}

fn lun_named(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let group = group(s)?;
    s.try_mkdir(&group.join("lun").join(name))
}

fn acl(s: &Script<'_>, group: &TreePath, name: &str) -> Result<TreePath, TreeError> {
    let path = group.join("acls").join(name);
    s.mkdir(&path)?;
    Ok(path)
}

/// Makes a LUN of one's own on the backstore, mapped as LUN 1. Returns LUN and mapped LUN.
fn nexus(
    s: &Script<'_>,
    store: &TreePath,
    group: &TreePath,
    host: &str,
    number: u32,
) -> Result<[TreePath; 2], TreeError> {
    let lun = group.join("lun").join(format!("lun_{number}"));
    s.mkdir(&lun)?;
    s.symlink(store, &lun.join("store"))?;
    let mapped = acl(s, group, host)?.join("lun_1");
    s.mkdir(&mapped)?;
    s.symlink(&lun, &mapped.join("lun"))?;
    Ok([lun, mapped])
}

fn one(s: &Script<'_>) -> Result<[TreePath; 2], TreeError> {
    let (store, group) = (s.store()?, group(s)?);
    nexus(s, &store, &group, HOST, 257)
}

/// Makes two nexuses on one backstore.
fn two(s: &Script<'_>) -> Result<[[TreePath; 2]; 2], TreeError> {
    let (store, group) = (s.store()?, group(s)?);
    Ok([nexus(s, &store, &group, HOST, 257)?, nexus(s, &store, &group, HOST2, 513)?])
}

fn num_cmds(mapped: &TreePath) -> TreePath {
    mapped.join("statistics").join("scsi_auth_intr").join("num_cmds")
}

const OFFLINE: &str = "alua_tg_pt_offline";

pub(super) const ROWS: &[Row] = &[
    Row::ok("fc: port that no adapter has", |s| port_named(s, PORT)),
    Row::fails("fc: port foo", Errno::EINVAL, |s| port_named(s, "foo")),
    Row::fails("fc: port naa.…", Errno::EINVAL, |s| port_named(s, "naa.2299004d6f6f7201")),
    Row::fails("fc: port in upper case", Errno::EINVAL, |s| port_named(s, "22:99:00:4D:6F:6F:72:01")),
    Row::fails("fc: port without colons", Errno::EINVAL, |s| port_named(s, "2299004d6f6f7201")),
    Row::fails("fc: port of seven pairs", Errno::EINVAL, |s| port_named(s, "22:99:00:4d:6f:6f:72")),
    Row::fails("fc: port of nine pairs", Errno::EINVAL, |s| port_named(s, "22:99:00:4d:6f:6f:72:01:02")),
    Row::fails("fc: port that is an IQN", Errno::EINVAL, |s| port_named(s, "iqn.2026-01.lab:t")),
    Row::fails("fc: port that exists", Errno::EEXIST, |s| s.try_mkdir(&port(s, PORT)?)),
    Row::ok("fc: tpgt_1", |s| group_named(s, "tpgt_1")),
    Row::fails("fc: tpgt_0", Errno::EINVAL, |s| group_named(s, "tpgt_0")),
    Row::fails("fc: tpgt_2", Errno::EINVAL, |s| group_named(s, "tpgt_2")),
    Row::fails("fc: tpg1", Errno::EINVAL, |s| group_named(s, "tpg1")),
    Row::fails("fc: rmdir of a port with a group", Errno::ENOTEMPTY, |s| s.try_rmdir(&group(s)?.parent())),
    Row::fails("fc: a group has no enable", Errno::ENOENT, |s| s.try_read(&group(s)?.join("enable"))),
    Row::fails("fc: a group has no prod_mode_write_protect", Errno::ENOENT, |s| {
        s.try_read(&group(s)?.join("attrib").join("prod_mode_write_protect"))
    }),
    Row::fails("fc: a group has no generate_node_acls", Errno::ENOENT, |s| {
        s.try_read(&group(s)?.join("attrib").join("generate_node_acls"))
    }),
    Row::ok("fc: ACL", |s| acl_named(s, HOST)),
    Row::fails("fc: ACL in upper case", Errno::EINVAL, |s| acl_named(s, "22:99:00:4D:6F:6F:72:11")),
    Row::fails("fc: ACL without colons", Errno::EINVAL, |s| acl_named(s, "2299004d6f6f7211")),
    Row::fails("fc: ACL that is an IQN", Errno::EINVAL, |s| acl_named(s, "iqn.2026-01.lab:host1")),
    Row::fails("fc: ACL that exists", Errno::EEXIST, |s| {
        let group = group(s)?;
        s.try_mkdir(&acl(s, &group, HOST)?)
    }),
    Row::reads("fc: port_name of an ACL", "22:99:00:4d:6f:6f:72:11\n", |s| {
        let group = group(s)?;
        s.try_read(&acl(s, &group, HOST)?.join("port_name"))
    }),
    Row::fails("fc: an ACL has no info", Errno::ENOENT, |s| {
        let group = group(s)?;
        s.try_read(&acl(s, &group, HOST)?.join("info"))
    }),
    Row::fails("fc: an ACL has no credentials", Errno::ENOENT, |s| {
        let group = group(s)?;
        s.try_read(&acl(s, &group, HOST)?.join("auth").join("userid"))
    }),
    Row::ok("fc: lun_257", |s| lun_named(s, "lun_257")),
    Row::ok("fc: lun_16777215", |s| lun_named(s, "lun_16777215")),
    Row::fails("fc: lun_x", Errno::EINVAL, |s| lun_named(s, "lun_x")),
    Row::fails("fc: map a LUN without a backstore", Errno::EINVAL, |s| {
        let group = group(s)?;
        let lun = group.join("lun").join("lun_257");
        s.mkdir(&lun)?;
        let mapped = acl(s, &group, HOST)?.join("lun_1");
        s.mkdir(&mapped)?;
        s.try_symlink(&lun, &mapped.join("lun"))
    }),
    Row::fails("fc: map a LUN of another port", Errno::EINVAL, |s| {
        let [lun, _] = one(s)?;
        let other = port(s, PORT2)?.join("tpgt_1");
        s.mkdir(&other)?;
        let mapped = acl(s, &other, HOST)?.join("lun_1");
        s.mkdir(&mapped)?;
        s.try_symlink(&lun, &mapped.join("lun"))
    }),
    Row::reads("fc: write_protect of a new mapping", "0\n", |s| {
        let [_, mapped] = one(s)?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("fc: write_protect=1", "1\n", |s| {
        let [_, mapped] = one(s)?;
        s.write_read(&mapped.join("write_protect"), 1)
    }),
    Row::reads("fc: num_cmds of a new mapping", "0\n", |s| {
        let [_, mapped] = one(s)?;
        s.try_read(&num_cmds(&mapped))
    }),
    Row::fails("fc: port_ident without a login", Errno::ENODEV, |s| {
        let [_, mapped] = one(s)?;
        s.try_read(&mapped.join("statistics").join("scsi_att_intr_port").join("port_ident"))
    }),
    Row::ok("fc: one backstore, a LUN for each of two initiators", |s| two(s).map(|_| Ok(String::new()))),
    Row::reads("fc: unlinking one of them leaves the other mapped", "0\n", |s| {
        let [[lun, mapped], [_, other]] = two(s)?;
        s.unlink(&mapped.join("lun"))?;
        s.unlink(&lun.join("store"))?;
        s.try_read(&other.join("write_protect"))
    }),
    Row::ok("fc: revoke: unmap, unlink the LUN, then the folders, the ACL last", |s| {
        let [[lun, mapped], _] = two(s)?;
        s.unlink(&mapped.join("lun"))?;
        s.unlink(&lun.join("store"))?;
        let _ = s.try_rmdir(&mapped)?;
        let _ = s.try_rmdir(&lun)?;
        s.try_rmdir(&mapped.parent())
    }),
    Row::ok("fc: rmdir of a LUN whose mapping is unlinked and not removed", |s| {
        let [lun, mapped] = one(s)?;
        s.unlink(&mapped.join("lun"))?;
        s.unlink(&lun.join("store"))?;
        s.try_rmdir(&lun)
    }),
    Row::fails("fc: rmdir of an ACL with a mapped LUN that is unlinked", Errno::ENOTEMPTY, |s| {
        let [_, mapped] = one(s)?;
        s.unlink(&mapped.join("lun"))?;
        s.try_rmdir(&mapped.parent())
    }),
    Row::fails("fc: rmdir of a LUN that is mapped", Errno::EBUSY, |s| {
        let [lun, _] = one(s)?;
        s.try_rmdir(&lun)
    }),
    Row::fails("fc: rmdir of a backstore that is a LUN", Errno::EBUSY, |s| {
        let (store, group) = (s.store()?, group(s)?);
        nexus(s, &store, &group, HOST, 257)?;
        s.try_rmdir(&store)
    }),
    Row::ok("fc: one backstore over iSCSI and Fibre Channel", |s| {
        let [store, ..] = s.export()?;
        let group = group(s)?;
        nexus(s, &store, &group, HOST, 257).map(|_| Ok(String::new()))
    }),
    Row::reads("fc: a LUN is not shut", "0\n", |s| {
        let [lun, _] = one(s)?;
        s.try_read(&lun.join(OFFLINE))
    }),
    Row::reads("fc: a LUN is shut", "1\n", |s| {
        let [lun, _] = one(s)?;
        s.write_read(&lun.join(OFFLINE), 1)
    }),
    Row::fails("fc: a LUN is shut with 2", Errno::EINVAL, |s| {
        let [lun, _] = one(s)?;
        s.try_write(&lun.join(OFFLINE), 2)
    }),
    Row::fails("fc: a LUN without a backstore cannot be shut", Errno::ENODEV, |s| {
        let lun = group(s)?.join("lun").join("lun_257");
        s.mkdir(&lun)?;
        s.try_write(&lun.join(OFFLINE), 1)
    }),
    Row::fails("fc: a LUN without a backstore does not say whether it is shut", Errno::ENODEV, |s| {
        let lun = group(s)?.join("lun").join("lun_257");
        s.mkdir(&lun)?;
        s.try_read(&lun.join(OFFLINE))
    }),
    Row::reads("fc: a shut LUN stays shut when it is linked again", "1\n", |s| {
        let (store, group) = (s.store()?, group(s)?);
        let [lun, mapped] = nexus(s, &store, &group, HOST, 257)?;
        s.write(&lun.join(OFFLINE), 1)?;
        s.unlink(&mapped.join("lun"))?;
        s.unlink(&lun.join("store"))?;
        s.symlink(&store, &lun.join("store2"))?;
        s.try_read(&lun.join(OFFLINE))
    }),
];

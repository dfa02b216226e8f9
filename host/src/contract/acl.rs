//! Rows on ACLs, credentials, mapped LUNs and write protection.

use nix::errno::Errno;

use super::script::HOST;
use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

fn acl_named(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.try_mkdir(&tpg.join("acls").join(name))
}

fn acl(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let tpg = s.tpg()?;
    s.acl(&tpg)
}

fn auth(s: &Script<'_>, name: &str, value: &str) -> Result<Answer, TreeError> {
    let acl = acl(s)?;
    s.write_read(&acl.join("auth").join(name), value)
}

fn tag(s: &Script<'_>, text: Option<&str>) -> Result<Answer, TreeError> {
    let tag = acl(s)?.join("tag");
    match text {
        Some(text) => s.write_read(&tag, text),
        None => s.try_read(&tag),
    }
}

fn bare_mapped(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let tpg = s.tpg()?;
    s.bare_mapped(&tpg)
}

fn statistic(mapped: &TreePath, group: &str, name: &str) -> TreePath {
    mapped.join("statistics").join(group).join(name)
}

pub(super) const ROWS: &[Row] = &[
    Row::ok("ACL name that is no IQN", |s| acl_named(s, "foo")),
    Row::ok("ACL name in upper case", |s| acl_named(s, "IQN.2026-11.dev.mooring.contract:UPPER")),
    Row::fails("mkdir of an ACL that exists", Errno::EEXIST, |s| s.try_mkdir(&acl(s)?)),
    Row::fails("mapped lun_x", Errno::EINVAL, |s| s.try_mkdir(&acl(s)?.join("lun_x"))),
    Row::ok("mapped lun_65536", |s| s.try_mkdir(&acl(s)?.join("lun_65536"))),
    Row::fails("map a LUN without a backstore", Errno::EINVAL, |s| {
        let tpg = s.tpg()?;
        let (lun, mapped) = (s.bare_lun(&tpg)?, s.bare_mapped(&tpg)?);
        s.try_symlink(&lun, &mapped.join("lun"))
    }),
    Row::fails("map a LUN of another target", Errno::EINVAL, |s| {
        let (store, tpg, other) = (s.store()?, s.tpg()?, s.other_tpg()?);
        let lun = s.lun(&other, &store)?;
        let mapped = s.bare_mapped(&tpg)?;
        s.try_symlink(&lun, &mapped.join("lun"))
    }),
    Row::fails("map a backstore", Errno::EFAULT, |s| {
        let (store, mapped) = (s.store()?, bare_mapped(s)?);
        s.try_symlink(&store, &mapped.join("lun"))
    }),
    Row::fails("map another folder", Errno::EFAULT, |s| {
        let mapped = bare_mapped(s)?;
        s.try_symlink(&mapped.parent(), &mapped.join("lun"))
    }),
    Row::fails("second link in a mapped LUN", Errno::EINVAL, |s| {
        let [_, _, lun, mapped] = s.export()?;
        s.try_symlink(&lun, &mapped.join("again"))
    }),
    Row::ok("two mapped LUNs of one ACL to one LUN", |s| {
        let [_, _, lun, mapped] = s.export()?;
        let second = mapped.parent().join("lun_2");
        s.mkdir(&second)?;
        s.try_symlink(&lun, &second.join("lun"))
    }),
    Row::fails("rmdir of an ACL with a mapped LUN inside", Errno::ENOTEMPTY, |s| {
        s.try_rmdir(&bare_mapped(s)?.parent())
    }),
    Row::fails("rmdir of a mapped LUN with its link inside", Errno::ENOTEMPTY, |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_rmdir(&mapped)
    }),
    Row::ok("unmap: unlink, rmdir mapped LUN, rmdir ACL", |s| {
        let [_, _, _, mapped] = s.export()?;
        s.unlink(&mapped.join("lun"))?;
        let _ = s.try_rmdir(&mapped)?;
        s.try_rmdir(&mapped.parent())
    }),
    Row::reads("cmdsn_depth of a new ACL", "64\n", |s| s.try_read(&acl(s)?.join("cmdsn_depth"))),
    Row::reads("cmdsn_depth=0 becomes 1", "1\n", |s| s.write_read(&acl(s)?.join("cmdsn_depth"), 0)),
    Row::reads("cmdsn_depth=512", "512\n", |s| s.write_read(&acl(s)?.join("cmdsn_depth"), 512)),
    Row::fails("cmdsn_depth=70000", Errno::EINVAL, |s| s.try_write(&acl(s)?.join("cmdsn_depth"), 70000)),
    Row::reads("default_cmdsn_depth holds for ACLs made afterwards", "32\n", |s| {
        let tpg = s.tpg()?;
        s.write(&tpg.join("attrib").join("default_cmdsn_depth"), 32)?;
        let acl = s.acl(&tpg)?;
        s.try_read(&acl.join("cmdsn_depth"))
    }),
    Row::reads("tag of a new ACL", "", |s| tag(s, None)),
    Row::reads("tag without a newline", "mooring-barrier:x", |s| tag(s, Some("mooring-barrier:x"))),
    Row::reads("tag with a newline keeps it", "x\n", |s| tag(s, Some("x\n"))),
    Row::reads("tag NULL is none", "", |s| {
        let tag = acl(s)?.join("tag");
        s.write(&tag, "x")?;
        s.write_read(&tag, "NULL")
    }),
    Row::ok("tag of 63 bytes", |s| tag(s, Some(&"t".repeat(63)))),
    Row::fails("tag of 64 bytes", Errno::EINVAL, |s| {
        let acl = acl(s)?;
        s.try_write(&acl.join("tag"), "t".repeat(64))
    }),
    Row::reads("credential without a newline", "user1\n", |s| auth(s, "userid", "user1")),
    Row::reads("credential with a newline keeps it", "user1\n\n", |s| auth(s, "userid", "user1\n")),
    Row::reads("credential NULL", "NULL\n", |s| auth(s, "userid", "NULL")),
    Row::reads("an empty credential", "\n", |s| s.try_read(&acl(s)?.join("auth").join("password"))),
    Row::ok("password of 255 bytes", |s| auth(s, "password", &"p".repeat(255))),
    Row::fails("password of 256 bytes", Errno::EINVAL, |s| {
        let acl = acl(s)?;
        s.try_write(&acl.join("auth").join("password"), "p".repeat(256))
    }),
    Row::reads("authenticate_target follows the mutual credentials", "1\n", |s| {
        let auth = acl(s)?.join("auth");
        s.write(&auth.join("userid_mutual"), "muser")?;
        s.write(&auth.join("password_mutual"), "msecret12345")?;
        s.try_read(&auth.join("authenticate_target"))
    }),
    Row::reads("authentication of a new ACL inherits", "-1\n", |s| {
        s.try_read(&acl(s)?.join("attrib").join("authentication"))
    }),
    Row::reads("authentication=1 on an ACL", "1\n", |s| {
        s.write_read(&acl(s)?.join("attrib").join("authentication"), 1)
    }),
    Row::fails("authentication=2 on an ACL", Errno::EINVAL, |s| {
        s.try_write(&acl(s)?.join("attrib").join("authentication"), 2)
    }),
    Row::reads("nopin_timeout=5", "5\n", |s| s.write_read(&acl(s)?.join("attrib").join("nopin_timeout"), 5)),
    Row::fails("nopin_timeout=61", Errno::EINVAL, |s| {
        s.try_write(&acl(s)?.join("attrib").join("nopin_timeout"), 61)
    }),
    Row::ok("info without a session names the initiator", |s| {
        let info = s.read(&acl(s)?.join("info"))?;
        let expected = format!("No active iSCSI Session for Initiator Endpoint: {HOST}\n");
        Ok(if info == expected { Ok(String::new()) } else { Err(Errno::EBADMSG) })
    }),
    Row::reads("session statistics without a session", "", |s| {
        s.try_read(&acl(s)?.join("fabric_statistics").join("iscsi_sess_stats").join("cmd_pdus"))
    }),
    Row::reads("write_protect of a new mapping", "0\n", |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("write_protect=1", "1\n", |s| {
        let [_, _, _, mapped] = s.export()?;
        s.write_read(&mapped.join("write_protect"), 1)
    }),
    Row::fails("write_protect=2", Errno::EINVAL, |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_write(&mapped.join("write_protect"), 2)
    }),
    Row::fails("write_protect=x", Errno::EINVAL, |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_write(&mapped.join("write_protect"), "x")
    }),
    Row::reads("write_protect without a link reads empty", "", |s| {
        s.try_read(&bare_mapped(s)?.join("write_protect"))
    }),
    Row::reads("write_protect=1 before linking is accepted and forgotten", "0\n", |s| {
        let (store, tpg) = (s.store()?, s.tpg()?);
        let lun = s.lun(&tpg, &store)?;
        let mapped = s.bare_mapped(&tpg)?;
        s.write(&mapped.join("write_protect"), 1)?;
        s.symlink(&lun, &mapped.join("lun"))?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("prod_mode_write_protect=1 protects what is linked afterwards", "1\n", |s| {
        let (store, tpg) = (s.store()?, s.tpg()?);
        s.write(&tpg.join("attrib").join("prod_mode_write_protect"), 1)?;
        let lun = s.lun(&tpg, &store)?;
        let mapped = s.bare_mapped(&tpg)?;
        s.symlink(&lun, &mapped.join("lun"))?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("prod_mode_write_protect=1 leaves what was linked before", "0\n", |s| {
        let [_, tpg, _, mapped] = s.export()?;
        s.write(&tpg.join("attrib").join("prod_mode_write_protect"), 1)?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("a protected mapping can be opened again under prod_mode_write_protect", "0\n", |s| {
        let (store, tpg) = (s.store()?, s.tpg()?);
        s.write(&tpg.join("attrib").join("prod_mode_write_protect"), 1)?;
        let lun = s.lun(&tpg, &store)?;
        let mapped = s.bare_mapped(&tpg)?;
        s.symlink(&lun, &mapped.join("lun"))?;
        s.write_read(&mapped.join("write_protect"), 0)
    }),
    Row::reads("a stale mapped link reads empty", "", |s| {
        let [_, _, lun, mapped] = s.export()?;
        s.unlink(&lun.join("store"))?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::reads("a stale mapped link is not revived by linking again", "", |s| {
        let [store, _, lun, mapped] = s.export()?;
        s.unlink(&lun.join("store"))?;
        s.symlink(&store, &lun.join("store2"))?;
        s.try_read(&mapped.join("write_protect"))
    }),
    Row::ok("a stale mapped link can still be unlinked", |s| {
        let [_, _, lun, mapped] = s.export()?;
        s.unlink(&lun.join("store"))?;
        s.try_unlink(&mapped.join("lun"))
    }),
    Row::fails("port_ident without a session", Errno::ENODEV, |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_read(&statistic(&mapped, "scsi_att_intr_port", "port_ident"))
    }),
    Row::reads("num_cmds of a new mapping", "0\n", |s| {
        let [_, _, _, mapped] = s.export()?;
        s.try_read(&statistic(&mapped, "scsi_auth_intr", "num_cmds"))
    }),
    Row::fails("num_cmds without a link", Errno::ENODEV, |s| {
        let mapped = bare_mapped(s)?;
        s.try_read(&statistic(&mapped, "scsi_auth_intr", "num_cmds"))
    }),
    Row::fails("list of an attribute", Errno::ENOTDIR, |s| s.try_list(&acl(s)?.join("info"))),
];

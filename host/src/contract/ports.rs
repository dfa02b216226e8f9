//! Rows on the relative port id of a portal group, `rtpi`, which 6.12 has and 6.1 has not. The
//! kernel has one table of them for all groups of all fabrics: these rows are for a machine where
//! nothing else is enabled.

use nix::errno::Errno;

use super::reservations::{disabled, line, metadata};
use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

/// An id far from those that the kernel hands out by itself.
const OWN: &str = "4660";

pub(super) fn port_id(tpg: &TreePath) -> TreePath {
    tpg.join("rtpi")
}

/// Writes the id to a group that is not enabled.
fn written(s: &Script<'_>, value: &str) -> Result<Answer, TreeError> {
    let tpg = s.tpg()?;
    s.try_write(&port_id(&tpg), value)
}

/// Enables a group with this id.
fn enabled(s: &Script<'_>, tpg: TreePath, id: Option<&str>) -> Result<TreePath, TreeError> {
    if let Some(id) = id {
        s.write(&port_id(&tpg), id)?;
    }
    s.write(&tpg.join("enable"), 1)?;
    Ok(tpg)
}

/// Enables and disables a group, while another one gives its own id back. Returns the id that the
/// group has when it is enabled again.
fn drawn_again(s: &Script<'_>, id: Option<&str>) -> Result<Answer, TreeError> {
    let other = enabled(s, s.other_tpg()?, None)?;
    let tpg = enabled(s, s.tpg()?, id)?;
    for group in [&other, &tpg] {
        s.write(&group.join("enable"), 0)?;
    }
    s.write(&tpg.join("enable"), 1)?;
    s.try_read(&port_id(&tpg))
}

pub(super) const ROWS: &[Row] = &[
    Row::reads("rtpi of a new group", "0x0\n", |s| s.try_read(&port_id(&s.tpg()?))).with_port_ids(),
    Row::reads("rtpi of a group that is not enabled reads as it was written", "0x1234\n", |s| {
        s.write_read(&port_id(&s.tpg()?), OWN)
    })
    .with_port_ids(),
    Row::fails("rtpi=0", Errno::EINVAL, |s| written(s, "0")).with_port_ids(),
    Row::fails("rtpi=65536", Errno::ERANGE, |s| written(s, "65536")).with_port_ids(),
    Row::fails("rtpi=x", Errno::EINVAL, |s| written(s, "x")).with_port_ids(),
    Row::ok("rtpi=65535", |s| written(s, "65535")).with_port_ids(),
    Row::reads("rtpi that nobody wrote, once enabled: the lowest that is free", "0x1\n", |s| {
        s.try_read(&port_id(&enabled(s, s.tpg()?, None)?))
    })
    .with_port_ids(),
    Row::reads("rtpi that nobody wrote, beside another enabled group", "0x2\n", |s| {
        enabled(s, s.other_tpg()?, None)?;
        s.try_read(&port_id(&enabled(s, s.tpg()?, None)?))
    })
    .with_port_ids(),
    Row::reads("rtpi that was written, once enabled", "0x1234\n", |s| {
        s.try_read(&port_id(&enabled(s, s.tpg()?, Some(OWN))?))
    })
    .with_port_ids(),
    Row::fails("rtpi of an enabled group cannot change", Errno::EINVAL, |s| {
        let tpg = enabled(s, s.tpg()?, None)?;
        s.try_write(&port_id(&tpg), OWN)
    })
    .with_port_ids(),
    Row::fails("rtpi of an enabled group cannot be written again", Errno::EINVAL, |s| {
        let tpg = enabled(s, s.tpg()?, Some(OWN))?;
        s.try_write(&port_id(&tpg), OWN)
    })
    .with_port_ids(),
    Row::ok("rtpi of another group that is not enabled may be written", |s| {
        enabled(s, s.other_tpg()?, Some(OWN))?;
        written(s, OWN)
    })
    .with_port_ids(),
    Row::fails("enable with the rtpi of another enabled group", Errno::EINVAL, |s| {
        enabled(s, s.other_tpg()?, Some(OWN))?;
        let tpg = s.tpg()?;
        s.write(&port_id(&tpg), OWN)?;
        s.try_write(&tpg.join("enable"), 1)
    })
    .with_port_ids(),
    Row::fails("enable with an rtpi that another group was given by the kernel", Errno::EINVAL, |s| {
        enabled(s, s.other_tpg()?, None)?;
        let tpg = s.tpg()?;
        s.write(&port_id(&tpg), 1)?;
        s.try_write(&tpg.join("enable"), 1)
    })
    .with_port_ids(),
    Row::reads("enable with another rtpi after that", "0x1235\n", |s| {
        enabled(s, s.other_tpg()?, Some(OWN))?;
        let tpg = s.tpg()?;
        s.write(&port_id(&tpg), OWN)?;
        if s.try_write(&tpg.join("enable"), 1)? != Err(Errno::EINVAL) {
            return Ok(Ok("it was enabled".to_owned()));
        }
        s.try_read(&port_id(&enabled(s, tpg, Some("4661"))?))
    })
    .with_port_ids(),
    Row::reads("rtpi that nobody wrote is drawn anew at each enable", "0x1\n", |s| drawn_again(s, None))
        .with_port_ids(),
    Row::reads("rtpi that was written stays at each enable", "0x1234\n", |s| drawn_again(s, Some(OWN)))
        .with_port_ids(),
    Row::reads(
        "a registration that is put back has the rtpi that was written before its LUN was linked, also before enable",
        "SPC-3 Reservation: iSCSI Target Node Endpoint: iqn.2026-11.dev.mooring.contract:a\nSPC-3 Reservation: Relative \
         Port Identifier Tag: 4660 iSCSI Portal Group Tag: 1 iSCSI Logical Unit: 1\n",
        |s| {
            let store = disabled(s)?;
            s.write(&metadata(&store), line(&[]))?;
            s.write(&store.join("enable"), 1)?;
            let tpg = s.tpg()?;
            s.write(&port_id(&tpg), OWN)?;
            let lun = s.lun(&tpg, &store)?;
            let mapped = s.bare_mapped(&tpg)?;
            s.symlink(&lun, &mapped.join("lun"))?;
            s.try_read(&store.join("pr").join("res_pr_holder_tg_port"))
        },
    )
    .with_port_ids(),
];

//! Reads the activity of an export's nexuses at this moment: who is logged in, and counters since
//! the LUN was mapped.
//!
//! Cost of each iSCSI grant in operations: 2 while its number of commands equals the last look's
//! (its sessions, that number), 4 when the number has moved, 1 when the grant has no ACL. A Fibre
//! Channel grant costs as much, with its login in the place of sessions. The cost depends neither
//! on other exports nor on other objects of this one.
//!
//! The kernel does not tell when a session began, nor the sessions of an initiator beside its
//! newest (lio.md, d). It does tell how many sessions a target has in all ([`count_sessions`]).
//!
//! What must never happen here: a number made up; a walk over anything but the grants. A look
//! blocks while an ACL is being removed: run it on a thread that can be lost.

use std::collections::BTreeMap;

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::{Counters, ExportNames, SessionReport};

use crate::error::maybe;
use crate::info::{SessionInfo, parse_sessions};
use crate::plan::Wanted;
use crate::{Error, layout};

/// Activity of a nexus at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Live {
    /// The initiator's session. Of several the kernel shows the newest.
    pub sessions: Vec<SessionReport>,
    /// Counters since the LUN was mapped.
    pub counters: Counters,
}

/// Reads the activity of an export's grants, by initiator. `before` is the result of the last look.
/// The session of an initiator that has lost power stays listed for up to 45 s (lio.md, m).
pub fn read_live(
    tree: &dyn Tree,
    wanted: &Wanted,
    before: &BTreeMap<String, Live>,
) -> Result<BTreeMap<String, Live>, Error> {
    let look = |source| Error::View { source };
    let mut all = BTreeMap::new();
    for grant in wanted.grants() {
        let initiator = grant.initiator.as_str();
        let acl = layout::acl(wanted.names(), initiator);
        let Some(info) = maybe(tree.read_text(&acl.join("info"))).map_err(look)? else { continue };
        let known = before.get(initiator).map(|live| live.counters);
        let counters = read_counters(tree, &acl.join(layout::lun_name(grant.lun)), known).map_err(look)?;
        all.insert(initiator.to_owned(), Live { sessions: sessions(&info), counters });
    }
    Ok(all)
}

/// Reads the live sessions of one initiator in one operation, whatever the number of others. `None`
/// if it has no ACL.
pub fn read_sessions_of(
    tree: &dyn Tree,
    names: &ExportNames,
    initiator: &str,
) -> Result<Option<Vec<SessionReport>>, Error> {
    let info = maybe(tree.read_text(&layout::acl(names, initiator).join("info")))
        .map_err(|source| Error::View { source })?;
    Ok(info.map(|info| sessions(&info)))
}

/// Counts the target's sessions in one operation: those of all initiators, also of those without an
/// ACL. `None` if there is no such target, or the kernel does not count.
pub fn count_sessions(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u32>, Error> {
    let text =
        maybe(tree.read_text(&layout::session_count(names))).map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// Counts the commands of all initiators for the export's LUN since it was made, in one operation.
/// `None` if there is no LUN.
pub fn count_commands(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u64>, Error> {
    let path = layout::lun(names).join("statistics").join("scsi_tgt_port").join("in_cmds");
    let text = read_if_there(tree, &path).map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// Reads how many commands a session of this initiator may have open (`cmdsn_depth`). `None` if it
/// has no ACL.
pub fn read_window(tree: &dyn Tree, names: &ExportNames, initiator: &str) -> Result<Option<u32>, Error> {
    let text = maybe(tree.read_text(&layout::acl(names, initiator).join(layout::DEPTH)))
        .map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

fn sessions(info: &str) -> Vec<SessionReport> {
    parse_sessions(info).iter().filter_map(SessionInfo::report).collect()
}

/// Reads the counters of a mapped LUN. Bytes read and written move with the number of commands: if
/// that equals the one in `before`, nothing else is read.
pub(crate) fn read_counters(
    tree: &dyn Tree,
    mapped: &TreePath,
    before: Option<Counters>,
) -> Result<Counters, TreeError> {
    let statistics = mapped.join("statistics").join("scsi_auth_intr");
    let number = |name: &str| -> Result<u64, TreeError> {
        let text = read_if_there(tree, &statistics.join(name))?;
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or_default())
    };
    let commands = number("num_cmds")?;
    if let Some(before) = before.filter(|before| before.commands == commands) {
        return Ok(before);
    }
    Ok(Counters {
        commands,
        read_mib: number("read_mbytes")?,
        written_mib: number("write_mbytes")?,
        active: None,
    })
}

/// Reads an attribute of the statistics. `None` where nothing is mapped, or nobody is logged in
/// (ENODEV).
pub(crate) fn read_if_there(tree: &dyn Tree, path: &TreePath) -> Result<Option<String>, TreeError> {
    match tree.read_text(path) {
        Err(error) if error.errno == Errno::ENODEV => Ok(None),
        other => maybe(other),
    }
}

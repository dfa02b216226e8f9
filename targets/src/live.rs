//! What the nexuses of an export do at this moment: who is logged in, and what was done since the LUN was mapped.
//!
//! The cost, in operations, for each grant over iSCSI: 2 while its number of commands has not moved since the look before (its
//! sessions, that number), 4 when it has, 1 when it has no ACL. A grant over Fibre Channel: the same, its login in the place
//! of sessions. It does not depend on other exports, nor on what else stands in this one.
//!
//! What the kernel does not say (lio.md, d): when a session began; the sessions of an initiator beside its newest. How many
//! sessions a target has in all it does say ([`count_sessions`]).
//!
//! What must never happen here: a number made up; a walk over anything but what is granted. A look waits where an ACL is
//! being removed: it runs on a thread that can be lost.

use std::collections::BTreeMap;

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::{Counters, ExportNames, SessionReport};

use crate::info::{SessionInfo, parse_sessions};
use crate::plan::Wanted;
use crate::view::maybe;
use crate::{Error, layout};

/// What a nexus does at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Live {
    /// Its session. Of several the kernel shows the newest.
    pub sessions: Vec<SessionReport>,
    /// What it has done since its LUN was mapped.
    pub counters: Counters,
}

/// What the grants of an export do, by initiator; `before` is what the look before saw. The session of an initiator that has
/// lost power stays listed for up to 45 s (lio.md, m).
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

/// The live sessions of one initiator, in one operation, whatever the number of others; `None`: it has no ACL.
pub fn read_sessions_of(
    tree: &dyn Tree,
    names: &ExportNames,
    initiator: &str,
) -> Result<Option<Vec<SessionReport>>, Error> {
    let info = maybe(tree.read_text(&layout::acl(names, initiator).join("info")))
        .map_err(|source| Error::View { source })?;
    Ok(info.map(|info| sessions(&info)))
}

/// How many sessions the target has, of all initiators, those that no ACL shows included; in one operation. `None`: there is
/// no such target, or the kernel does not count.
pub fn count_sessions(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u32>, Error> {
    let text =
        maybe(tree.read_text(&layout::session_count(names))).map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// How many commands have come for the export's LUN since it was made, of all initiators; in one operation. `None`: it is not there.
pub fn count_commands(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u64>, Error> {
    let path = layout::lun(names).join("statistics").join("scsi_tgt_port").join("in_cmds");
    let text = read_if_there(tree, &path).map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// How many commands a session of this initiator may have open (`cmdsn_depth`). `None`: it has no ACL.
pub fn read_window(tree: &dyn Tree, names: &ExportNames, initiator: &str) -> Result<Option<u32>, Error> {
    let text = maybe(tree.read_text(&layout::acl(names, initiator).join("cmdsn_depth")))
        .map_err(|source| Error::View { source })?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

fn sessions(info: &str) -> Vec<SessionReport> {
    parse_sessions(info).iter().filter_map(SessionInfo::report).collect()
}

/// What passed through a mapped LUN. What was read and written moves with the number of commands: where that is as it was
/// `before`, nothing else is read.
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

/// An attribute of the statistics; `None` where nothing is mapped, or nobody is logged in (ENODEV).
pub(crate) fn read_if_there(tree: &dyn Tree, path: &TreePath) -> Result<Option<String>, TreeError> {
    match tree.read_text(path) {
        Err(error) if error.errno == Errno::ENODEV => Ok(None),
        other => maybe(other),
    }
}

//! Plans a barrier: from here on one initiator may only read, and nothing lands any more of the
//! commands that it had in flight.
//!
//! `write_protect` alone does not give that: commands that the target has taken still land (lio.md,
//! c). The proof is that of a revoke, the return of `rmdir` of the ACL (lio.md, d), and the ACL is
//! made anew. The steps for one initiator, after its `write_protect` is 1:
//! 1. *Another `cmdsn_depth`* drops its sessions and waits for their commands. It may log in
//!    meanwhile, and read: however long the disk takes, nobody is refused. This is no proof: a
//!    session that was ending by itself is not waited for.
//! 2. *The gate is closed, and the number changed once more*: no session is there while the LUN is
//!    not, so no read fails for want of it. There is nothing to wait for but reads.
//! 3. *The ACL is removed*: its return says that every session it ever had has drained.
//! 4. The ACL is made anew, and its `tag` names the barrier before anybody can log in.
//!
//! So a look finds a barrier done when the ACL has its name and is write-protected: after any
//! crash, too. An ACL whose LUN was opened later has lost its barrier; the name is taken from it
//! before it is closed again.
//!
//! What must never happen here: a name on an ACL that was there when the barrier was asked for; a
//! name that outlives a write.

use std::borrow::Cow;

use mooring_host::TreePath;
use mooring_model::{BarrierId, ExportNames, Grant, Step};

use super::acl::{AUTHENTICATION, PASSWORD};
use super::{Present, remove_acl, unmap, write_plain};
use crate::layout::{self, UNSET};
use crate::op::Op;
use crate::view::{AclAuth, AclView, TpgView};

/// Returns `true` if the grant's barrier has still to be done on this ACL.
pub(crate) fn is_owed(acl: &AclView, grant: &Grant) -> bool {
    let done = acl.barrier.as_ref().and_then(|seen| seen.done);
    grant.barrier.is_some() && (done != grant.barrier || is_open(acl))
}

/// Returns `true` if the initiator may write through any of its mapped LUNs.
fn is_open(acl: &AclView) -> bool {
    acl.luns.values().any(|mapped| mapped.write_protect == Some(false))
}

/// Takes the name from an ACL that was opened after its barrier was done: closed again, the barrier
/// must not look done. `None` if there is nothing to take.
pub(super) fn broken(names: &ExportNames, acl: &AclView, grant: &Grant) -> Option<Step<Op>> {
    let named = acl.barrier.as_ref().is_some_and(|seen| seen.done.is_some());
    (named && is_owed(acl, grant) && is_open(acl)).then(|| Step {
        op: write_plain(layout::acl(names, grant.initiator.as_str()).join(layout::TAG), UNSET),
        why: Cow::Borrowed("it could write since its barrier was done: that no longer counts"),
    })
}

/// Names the barrier on an ACL that was just made.
pub(super) fn mark(acl: &TreePath, id: BarrierId) -> Step<Op> {
    Step {
        op: write_plain(acl.join(layout::TAG), &format!("{}{id}", layout::BARRIER)),
        why: Cow::Borrowed("what was in flight before has landed: whoever had this name is gone"),
    }
}

/// Returns two numbers for `cmdsn_depth`: the first differs from the present one, the second from
/// the first.
fn others(depth: &str) -> [&'static str; 2] {
    if depth == "63" { ["62", "63"] } else { ["63", "62"] }
}

impl Present<'_> {
    /// Drains every initiator to whom a barrier is owed, and removes its ACL; `admit` makes it
    /// anew.
    pub(super) fn barriers(&mut self, tpg: &TpgView) {
        for grant in self.grants {
            let initiator = grant.initiator.as_str();
            if let Some(acl) = tpg.acls.get(initiator).filter(|acl| is_owed(acl, grant)) {
                self.drain(initiator, acl);
            }
        }
    }

    fn drain(&mut self, initiator: &str, acl: &AclView) {
        let dir = layout::acl(self.names, initiator);
        let [first, second] = others(acl.barrier.as_ref().map_or("", |seen| seen.depth.as_str()));
        let why = format!("a barrier: drops the sessions of {initiator}, waits for their commands");
        self.write(dir.join(layout::DEPTH), first, why);
        if acl.admits(true) {
            let at = |file: &str| file.split('/').fold(dir.clone(), |path, name| path.join(name));
            self.write(at(PASSWORD), UNSET, "no login while its LUN is not there");
            if acl.auth == AclAuth::Off {
                self.write(at(AUTHENTICATION), "1", "the same: its name alone does not admit it");
            }
        }
        self.write(dir.join(layout::DEPTH), second, "drops who has logged in since: it has written nothing");
        let why = "a barrier";
        unmap(&mut self.plan, self.names, initiator, acl, why);
        remove_acl(&mut self.plan, self.names, initiator, acl, why);
    }
}

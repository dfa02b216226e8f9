//! Lists what a newer spec takes from initiators, from the two specs alone. Pure, and without a
//! view: a view lists the ACLs of the portal group, and an `rmdir` there that waits for a disk
//! holds that folder. These operations reach past such a call. They never wait (lio.md, d), and
//! each looks at one mapped LUN only. One takes the tag of an ACL, too: a call that holds the ACL's
//! own folder makes or removes a mapped LUN there.
//!
//! A host that loses its writes with a barrier may have had the same barrier before it could write.
//! The tag still says so, and `write_protect` alone says that it can write now. So the tag goes
//! first: the next plan drains, as it does for each barrier that is not named.
//!
//! The next plan does the rest: it drains, removes folders, and proves.
//!
//! What must never happen here: an operation that gives; one on a grant that both specs have; one
//! on a mapped LUN that does not lead to this volume; a barrier that looks done by an operation.

use mooring_host::TreePath;
use mooring_model::{ExportNames, ExportSpec, FcPort, Mode, PortLun};

use crate::fc;
use crate::layout;
use crate::op::{LeadsTo, Op};

/// Returns the operations that take from initiators what `was` gave them and `is` does not: all
/// access, or writes. `is` is `None` for a tombstone. `names` are those under which `was` is
/// exported, and `ports` are the Fibre Channel ports that may show it.
///
/// The operations do not depend on one another: run each as a plan of its own, so that none is held
/// up by one that fails.
pub fn take_away(
    names: &ExportNames,
    ports: &[FcPort],
    was: &ExportSpec,
    is: Option<&ExportSpec>,
) -> Vec<Op> {
    let mut ops = Vec::new();
    for grant in &was.grants {
        let now = is.and_then(|is| is.grants.iter().find(|one| one.initiator == grant.initiator));
        let acl = layout::acl(names, grant.initiator.as_str());
        let tag = now.and_then(|now| now.barrier).map(|_| acl.join(layout::TAG));
        let path = acl.join(layout::lun_name(grant.lun));
        let leads_to = LeadsTo { lun: layout::lun(names), backstore: None };
        ops.extend(op((grant.mode, now.map(|now| now.mode)), path, leads_to, tag));
    }
    for grant in &was.fc.grants {
        let now = is.and_then(|is| is.fc.grants.iter().find(|one| one.initiator == grant.initiator));
        let Some(number) = PortLun::of(grant.slot, grant.lun) else { continue };
        for port in ports {
            let path = fc::mapped(*port, grant.initiator, grant.lun);
            // The number of a TPG LUN does not name the volume: its backstore does.
            let leads_to = LeadsTo { lun: fc::lun(*port, number), backstore: Some(layout::backstore(names)) };
            ops.extend(op((grant.mode, now.map(|now| now.mode)), path, leads_to, None));
        }
    }
    ops
}

/// Returns the operation on one mapped LUN; `None` if its initiator loses nothing. A mode of `None`
/// says that the newer spec has no grant for it. `tag` is the ACL's if the newer spec asks for a
/// barrier.
fn op(modes: (Mode, Option<Mode>), path: TreePath, leads_to: LeadsTo, tag: Option<TreePath>) -> Option<Op> {
    match modes {
        (_, None) => Some(Op::UnlinkIf { path, leads_to }),
        (Mode::ReadWrite, Some(Mode::ReadOnly)) => Some(Op::ProtectIf { path, leads_to, tag }),
        _ => None,
    }
}

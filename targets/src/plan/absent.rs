//! Takes a whole target down, disabled first. Foreign objects stay, and with them the objects that
//! hold them.

use mooring_model::{ExportNames, Plan};

use super::{foreign, remove_acl, unmap};
use crate::layout;
use crate::op::Op;
use crate::view::{ExportView, TargetView, TpgView};

const WHY: &str = "the export is to be gone";

pub(super) fn plan(names: &ExportNames, view: &ExportView) -> Plan<Op> {
    let mut plan = Plan::default();
    if let Some(target) = &view.target {
        remove_target(&mut plan, names, target);
    }
    plan
}

fn remove_target(plan: &mut Plan<Op>, names: &ExportNames, target: &TargetView) {
    let mut empty = true;
    if let Some(tpg) = &target.tpg {
        empty = remove_tpg(plan, names, tpg);
    }
    for name in &target.other_tpgs {
        empty = false;
        let object = layout::target(names).join(name);
        let why = "found a portal group that Mooring did not make; it was not touched, and the target stays with it: \
                   remove it";
        foreign(plan, &object, why.to_owned());
    }
    if empty {
        plan.step(Op::Rmdir { path: layout::target(names) }, WHY);
    }
}

/// Removes the portal group. Returns `false` if a foreign object keeps it.
fn remove_tpg(plan: &mut Plan<Op>, names: &ExportNames, tpg: &TpgView) -> bool {
    let ours = layout::backstore(names);
    let elsewhere = tpg.lun.as_ref().and_then(|lun| lun.link.as_ref()).filter(|link| link.target != ours);
    for name in &tpg.other_luns {
        let object = layout::tpg(names).join("lun").join(name);
        let why = "found a LUN that Mooring did not make; it was not touched, and the portal group stays with it: remove it";
        foreign(plan, &object, why.to_owned());
    }
    if let Some(link) = elsewhere {
        let why = format!(
            "found it linked to {}, wanted {ours} or nothing. It was not touched, and the portal group stays with it: \
             remove it",
            link.target
        );
        foreign(plan, &layout::lun(names), why);
    }
    let whole = elsewhere.is_none() && tpg.other_luns.is_empty();
    if whole && tpg.enabled {
        let path = layout::tpg(names).join("enable");
        plan.step(Op::Write { path, value: "0".into() }, "ends every session, waits for their commands");
    }
    for (initiator, acl) in &tpg.acls {
        unmap(plan, names, initiator, acl, WHY);
    }
    for (initiator, acl) in &tpg.acls {
        remove_acl(plan, names, initiator, acl, WHY);
    }
    if let Some(lun) = tpg.lun.as_ref().filter(|_| elsewhere.is_none()) {
        if let Some(link) = &lun.link {
            plan.step(Op::Unlink { path: layout::lun(names).join(&link.name) }, WHY);
        }
        plan.step(Op::Rmdir { path: layout::lun(names) }, WHY);
    }
    if whole {
        for portal in &tpg.portals {
            plan.step(Op::Rmdir { path: layout::portals(names).join(portal) }, WHY);
        }
        plan.step(Op::Rmdir { path: layout::tpg(names) }, WHY);
    }
    whole
}

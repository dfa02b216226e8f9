//! Finds obstacles to a target: objects under our names that Mooring did not make. Each is named
//! with the object that was found, the one in the spec, and a remedy for an operator.

use super::{Present, foreign};
use crate::layout;
use crate::view::TpgView;

impl Present<'_> {
    pub(super) fn obstacles(&mut self) {
        other_groups(self);
        if let Some(tpg) = self.view.tpg() {
            self.wrong_lun(tpg);
            self.wrong_mappings(tpg);
        }
    }

    fn wrong_lun(&mut self, tpg: &TpgView) {
        let ours = layout::backstore(self.names);
        if let Some(link) =
            tpg.lun.as_ref().and_then(|lun| lun.link.as_ref()).filter(|link| link.target != ours)
        {
            let why = format!(
                "found it linked to {}, wanted {ours}. It is not ours and was not touched: unlink {}, or remove the target",
                link.target, link.name
            );
            foreign(&mut self.plan, &layout::lun(self.names), why);
        }
        for name in &tpg.other_luns {
            let object = layout::tpg(self.names).join("lun").join(name);
            let why = format!(
                "found a LUN that Mooring did not make, wanted only {} in this target: remove it",
                layout::lun_name(self.names.lun)
            );
            foreign(&mut self.plan, &object, why);
        }
    }

    /// Finds mapped LUNs, below the ACLs of initiators that have grants, that lead to another LUN
    /// than ours.
    fn wrong_mappings(&mut self, tpg: &TpgView) {
        let ours = &self.lun;
        for grant in self.grants {
            let initiator = grant.initiator.as_str();
            let Some(acl) = tpg.acls.get(initiator) else { continue };
            for (name, mapped) in &acl.luns {
                if let Some(link) = mapped.link.as_ref().filter(|link| link.target != *ours) {
                    let object = layout::acl(self.names, initiator).join(name);
                    let why = format!(
                        "found it mapped to {}, wanted {ours}. It is not ours and was not touched: unlink {} and remove \
                         the folder",
                        link.target, link.name
                    );
                    foreign(&mut self.plan, &object, why);
                }
            }
        }
    }
}

fn other_groups(present: &mut Present<'_>) {
    let Some(target) = &present.view.target else { return };
    for name in &target.other_tpgs {
        let object = layout::target(present.names).join(name);
        let why = format!(
            "found a portal group that Mooring did not make, wanted only {} in this target: remove it",
            layout::tpg_name(present.names)
        );
        foreign(&mut present.plan, &object, why);
    }
}

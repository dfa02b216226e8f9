//! What stands in the way of an export: objects under our names that we did not make, and attributes of birth that
//! differ. Each is named with what was found, what is wanted, and what an operator can do.

use mooring_model::BlockedKind;

use super::{DEVICE_BYTES_MAX, Present, foreign};
use crate::layout;
use crate::view::TpgView;

impl Present<'_> {
    pub(super) fn obstacles(&mut self) {
        self.device_name();
        self.wrong_backstore();
        other_groups(self);
        if let Some(tpg) = self.view.tpg() {
            self.wrong_lun(tpg);
            self.wrong_mappings(tpg);
        }
    }

    /// `control` is a list of options: a comma or a newline in the path would be read as another option.
    fn device_name(&mut self) {
        let device = self.device.to_string_lossy();
        let plain = device.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        if !plain || !self.device.is_absolute() || device.len() > DEVICE_BYTES_MAX {
            let why = "the kernel cannot be given this device path: want an absolute path of at most 511 printable \
                       characters without blanks and commas";
            self.plan.block(BlockedKind::Missing, device.escape_debug().to_string(), why);
        }
    }

    fn wrong_backstore(&mut self) {
        let Some(seen) = self.view.backstore.as_ref().filter(|seen| seen.enabled) else { return };
        let mut wrong = Vec::new();
        if seen.device.as_deref().map(std::path::Path::new) != Some(self.device) {
            let found = seen.device.as_deref().unwrap_or("no device");
            wrong.push(format!("found {found} open, wanted {}", self.device.display()));
        }
        if seen.readonly {
            wrong.push("found it made read-only, wanted read-write".to_owned());
        }
        if seen.exported && seen.serial != self.names.serial {
            wrong.push(format!(
                "found it exported with serial {:?}, wanted {:?}",
                seen.serial, self.names.serial
            ));
        }
        if wrong.is_empty() {
            return;
        }
        let object = layout::backstore(self.names);
        let wrong = wrong.join("; ");
        if self.is_linked() {
            let initiators = self.view.tpg().map_or(0, |tpg| tpg.acls.len());
            let why = format!(
                "{wrong}. This cannot change while it is exported ({initiators} initiators are mapped), and it is not \
                 rebuilt by itself: detach them and delete the export, then make it again"
            );
            self.plan.block(BlockedKind::Birth, object.as_str(), why);
        } else {
            let why =
                format!("{wrong}. It is not ours and was not touched: remove it, or give it another name");
            foreign(&mut self.plan, &object, why);
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

    /// Mapped LUNs, below the ACLs of initiators that we would admit, that lead to another LUN than ours.
    fn wrong_mappings(&mut self, tpg: &TpgView) {
        let ours = layout::lun(self.names);
        for grant in self.grants {
            let initiator = grant.initiator.as_str();
            let Some(acl) = tpg.acls.get(initiator) else { continue };
            for (name, mapped) in &acl.luns {
                if let Some(link) = mapped.link.as_ref().filter(|link| link.target != ours) {
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

//! Plans the backstore of a volume: one, whatever the number of transports that show it.
//!
//! What must never happen: a rebuild of a backstore that is enabled; a LUN linked to one that is
//! not sealed; a removal while a spec still exports the volume; a registration that is put back
//! twice.

use std::path::Path;

use mooring_host::TreePath;
use mooring_model::{BlockedKind, ExportNames, Plan};

use super::{foreign, write_plain};
use crate::layout::SEALS;
use crate::op::Op;
use crate::reservations::{self, Kept};
use crate::view::{BackstoreView, HbaFolder};
use crate::{layout, lv};

/// Optimal transfer length: 1 MiB in blocks of a 512-byte device. dm devices report about 2 TiB,
/// which initiators log and ignore (lio.md, a).
const OPTIMAL_SECTORS: &str = "2048";

/// `SE_UDEV_PATH_LEN`, with its terminator: the kernel silently truncates longer paths.
const DEVICE_BYTES_MAX: usize = 511;

/// Spec and view of a backstore.
pub(crate) struct Backing<'a> {
    pub(crate) names: &'a ExportNames,
    pub(crate) device: &'a Path,
    /// Initiators may discard blocks.
    pub(crate) discards: bool,
    /// Registrations to put back when the backstore is made.
    pub(crate) reservations: &'a [Kept],
    pub(crate) seen: Option<&'a BackstoreView>,
    /// A LUN of ours shows the backstore under our name: then Mooring wired the whole export.
    pub(crate) linked: bool,
    /// Initiators that are mapped to such LUNs.
    pub(crate) initiators: usize,
}

impl Backing<'_> {
    /// Adds the obstacles of the backstore to the plan.
    pub(crate) fn obstacles(&self, plan: &mut Plan<Op>) {
        self.device_name(plan);
        self.wrong(plan);
    }

    /// Checks the device path. `control` is a list of options: a comma or a newline in the path
    /// would be read as another option.
    fn device_name(&self, plan: &mut Plan<Op>) {
        let device = self.device.to_string_lossy();
        let plain = device.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        if !plain || !self.device.is_absolute() || device.len() > DEVICE_BYTES_MAX {
            let why = "the kernel cannot be given this device path: want an absolute path of at most 511 printable \
                       characters without blanks and commas";
            plan.block(BlockedKind::Missing, device.escape_debug().to_string(), why);
        }
    }

    fn wrong(&self, plan: &mut Plan<Op>) {
        let Some(seen) = self.seen.filter(|seen| seen.enabled) else { return };
        let mut wrong = Vec::new();
        if !seen.device.as_deref().is_some_and(|found| lv::is_same_device(Path::new(found), self.device)) {
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
        if self.linked {
            let initiators = self.initiators;
            let why = format!(
                "{wrong}. This cannot change while it is exported ({initiators} initiators are mapped), and it is not \
                 rebuilt by itself: detach them and delete the export, then make it again"
            );
            plan.block(BlockedKind::Birth, object.as_str(), why);
        } else {
            let why =
                format!("{wrong}. It is not ours and was not touched: remove it, or give it another name");
            foreign(plan, &object, why);
        }
    }

    /// Plans the backstore's steps.
    pub(crate) fn make(&self, plan: &mut Plan<Op>) {
        let dir = layout::backstore(self.names);
        match self.seen {
            Some(seen) if seen.enabled => {
                if seen.serial != self.names.serial {
                    // The backstore is not exported, else it is an obstacle. A crash of ours cannot
                    // leave this state, but it can be put right.
                    plan.step(self.serial(), "its identity; cannot change once exported");
                }
                if !seen.exported {
                    self.advise(plan);
                }
                return;
            }
            Some(half) if self.is_other(half) || half.readonly || !self.reservations.is_empty() => {
                let why = if self.is_other(half) || half.readonly {
                    "made halfway for another device; nothing can be linked to it yet"
                } else {
                    "made halfway; it does not show which registrations it has back, and would take one twice"
                };
                plan.step(Op::Rmdir { path: dir.clone() }, why);
                plan.step(Op::Mkdir { path: dir.clone() }, "the backstore");
            }
            Some(_) => {}
            None => {
                // Also when the view has the HBA: another export's removal may take an empty one
                // away at any time.
                plan.step(Op::Mkdir { path: layout::hba(self.names) }, "the HBA, shared with other exports");
                plan.step(Op::Mkdir { path: dir.clone() }, "the backstore");
            }
        }
        let device = self.device.display().to_string();
        plan.step(write_plain(dir.join("control"), &format!("udev_path={device}")), "its device");
        plan.step(write_plain(dir.join("udev_path"), &device), "the same for people and targetcli");
        plan.step(self.serial(), "its identity; cannot change once exported");
        // Before `enable`: an enabled backstore already has its registrations.
        for kept in self.reservations {
            let why =
                "a registration that outlives a loss of power; comes alive when its initiator is mapped";
            plan.step(write_plain(reservations::metadata(self.names), &kept.to_string()), why);
        }
        plan.step(write_plain(dir.join("enable"), "1"), "opens the device");
        self.advise(plan);
        // After `enable`, which sets `max_write_same_len` to what the device can do.
        for (name, value, why) in SEALS {
            plan.step(self.sealed(name, value), why);
        }
    }

    /// Corrects the attributes that an enabled backstore still accepts: an earlier agent made it,
    /// or somebody has changed it.
    pub(crate) fn seal(&self, plan: &mut Plan<Op>) {
        let Some(seen) = self.seen.filter(|seen| seen.enabled) else { return };
        for (name, value, why) in SEALS {
            if seen.seals.get(name).is_none_or(|found| found != value) {
                plan.step(self.sealed(name, value), why);
            }
        }
    }

    fn sealed(&self, name: &str, value: &str) -> Op {
        write_plain(layout::backstore(self.names).join("attrib").join(name), value)
    }

    fn serial(&self) -> Op {
        let path = layout::backstore(self.names).join("wwn").join("vpd_unit_serial");
        write_plain(path, &self.names.serial)
    }

    fn is_other(&self, seen: &BackstoreView) -> bool {
        seen.device.as_deref().is_some_and(|found| !lv::is_same_device(Path::new(found), self.device))
    }

    fn advise(&self, plan: &mut Plan<Op>) {
        let path: TreePath = layout::backstore(self.names).join("attrib").join("optimal_sectors");
        let why = "device-mapper claims a transfer size that initiators reject; cannot change once exported";
        plan.step(Op::Advise { path, value: OPTIMAL_SECTORS.into() }, why);
        if self.names.model_alias {
            let path = layout::backstore(self.names).join("attrib").join("emulate_model_alias");
            plan.step(write_plain(path, "1"), "initiators know the disk by its backstore's name");
        }
        // Never emulate_tpws: a WRITE SAME with UNMAP promises what a discard does not keep
        // (decision 31).
        let path = layout::backstore(self.names).join("attrib").join("emulate_tpu");
        if self.discards {
            plan.step(
                Op::Advise { path, value: "1".into() },
                "discards are passed through, where the device takes them",
            );
        } else {
            plan.step(write_plain(path, "0"), "discards are not passed through");
        }
    }
}

/// Removes the backstore when no transport's spec has the volume any more.
pub(crate) fn remove(plan: &mut Plan<Op>, names: &ExportNames, seen: Option<&BackstoreView>, hba: HbaFolder) {
    let prune = Op::Prune { path: layout::hba(names) };
    match seen {
        Some(seen) if seen.enabled && seen.serial != names.serial => {
            let why = format!(
                "found it enabled with serial {:?}, wanted {:?} or nothing. It is not ours and was not touched: remove it",
                seen.serial, names.serial
            );
            foreign(plan, &layout::backstore(names), why);
        }
        Some(_) => {
            plan.step(Op::Rmdir { path: layout::backstore(names) }, "closes the device");
            plan.step(prune, "no backstore is left in it, unless another export's");
        }
        None if hba == HbaFolder::Empty => plan.step(prune, "no backstore is left in it"),
        None => {}
    }
}

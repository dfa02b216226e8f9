//! Looks beside the passes, at the kernel and at LVM: they feed what is known, and wake passes.
//!
//! What must never happen here: a grant made or taken away; an LV made, extended or removed.

pub(super) mod callers;
pub(super) mod disks;
pub(super) mod knock;
pub(super) mod orphaned_targets;
pub(super) mod pulse;
pub(super) mod silence;
pub(super) mod sweep;
pub(super) mod units;
pub(super) mod watched;

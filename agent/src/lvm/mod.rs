//! Volumes: LVM logical volumes in the groups that the configuration lists. View → plan → apply, as
//! in every domain.
//!
//! An LV is ours if it has a name of ours *and* our tag. An adopted LV is ours if it has our tag
//! and one with its volume's id. Nothing else is ever changed.
//!
//! The tag `mooring-unzeroed` marks an LV that is incomplete. A new LV carries it from the command
//! that creates it until its blocks are zeroed; a doomed one from the moment its wipe begins. Only
//! an LV with that tag is ever zeroed, and an LV with that tag is never usable. So a crash at any
//! step needs no memory: take a view again, plan again. Marks on the LV also say how far a long
//! zeroing, or the copy of an image, has come.
//!
//! - The LV that a volume grows by carries the tag until it is zeroed, too.
//! - The group's configuration says what a deletion does to the blocks; the next volume on them is
//!   zeroed all the same.
//! - A thin pool zeroes what it allocates: blocks that were never written read as zeros. On a thin
//!   LV the tag says only that it is not finished.
//! - An LV that is taken over is never tagged so: it keeps its data.
//! - An LV that an image is copied into carries one more tag. Until all of the image was copied,
//!   nobody takes it for a volume, nor for one of zeros.
//!
//! What must never happen here: an LV removed that was not doomed; an LV zeroed or discarded that
//! does not carry the tag; a usable LV that still shows somebody's old blocks, or is extended by
//! such; a name on a command line that the model has not made.

mod adopt;
mod apply;
mod check;
mod commands;
mod doomed;
mod error;
pub(crate) mod gate;
mod import;
mod isolate;
mod manage;
mod plan;
mod retag;
mod revert;
mod thin;
mod upload;
mod view;
mod whole;

use std::path::{Path, PathBuf};

pub use adopt::{AnyLv, all, tag};
pub use apply::{DISCARD_CHUNK, Hands, MARK_BYTES, Observer, Work, ZERO_CHUNK, activate, apply, apply_with};
pub use check::check_groups;
pub use error::Error;
pub use import::Copied;
pub use isolate::{
    IsolateOp, SeenTable, apply as apply_isolation, look as look_at_table, plan as plan_isolation,
};
pub use manage::{Candidate, candidates};
pub use plan::{Beside, LvId, VolumeOp, Wanted, plan, report};
pub use upload::{UploadOp, plan_upload};
pub use view::{
    Fullness, KnownLv, Lack, SeenGroup, SeenLv, SeenOther, SeenPool, Unread, VolumesView, disks, view,
    view_one,
};
pub use whole::{Shown, Whole, is_whole, shown, waits_for_lvm};

/// Returns the device node of an LV.
pub fn device_path(group: &str, lv: &str) -> PathBuf {
    Path::new("/dev").join(group).join(lv)
}

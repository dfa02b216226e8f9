//! Volumes: LVM logical volumes in the groups that the configuration lists. View → plan → apply, as in every domain.
//!
//! An LV is ours when it has a name of ours *and* our tag, or, if it was adopted, our tag and one with its volume's id; nothing
//! else is ever changed. A new LV carries the tag
//! `mooring-unzeroed` from the command that makes it until its blocks are zeroed, and a doomed one carries it from the
//! moment its wipe begins: only an LV with that tag is ever zeroed, and an LV with that tag is never usable. So a crash at
//! any step needs no memory: look again, plan again. How far a long zeroing, or the copy of an image, has come is marked on the LV as well. What a
//! volume grows by is such an LV, too, until it is zeroed. What a deletion does to the blocks is the group's configuration;
//! the next volume on them is zeroed all the same. Of thin volumes the pool sees to that: what was never written reads as
//! zeros. On them the tag says only that they are not finished. An LV that is taken over is never tagged so: it keeps what it
//! holds. An LV that an image is copied into has a tag for that beside: until all of it was copied, nobody takes it for a volume,
//! neither one of zeros.
//!
//! What must never happen here: an LV removed that was not doomed; an LV zeroed or discarded that does not carry the tag; a
//! usable LV that still shows somebody's old blocks, or is extended by such; a name on a command line that the model has
//! not made.

mod adopt;
mod apply;
mod cut;
mod doomed;
mod error;
mod import;
mod lvm;
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
pub use cut::{CutOp, SeenTable, apply as apply_cut, look as look_at_table, plan as plan_cut};
pub use error::Error;
pub use import::Copied;
pub use manage::{Candidate, candidates};
pub use plan::{Beside, LvId, VolumeOp, Wanted, plan, report};
pub use upload::{UploadOp, plan_upload};
pub use view::{KnownLv, SeenGroup, SeenLv, SeenOther, SeenPool, VolumesView, disks, view, view_one};
pub use whole::{Shown, Whole, is_whole, shown, waits_for_lvm};

/// The device node of an LV.
pub fn device_path(group: &str, lv: &str) -> PathBuf {
    Path::new("/dev").join(group).join(lv)
}

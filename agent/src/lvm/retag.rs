//! Finds the LV of a volume whose tags somebody has removed, by hand or with a tool that sets tags,
//! and plans their return. Pure.
//!
//! LVM gives an LV its UUID once, and the UUID of every complete volume is remembered
//! ([`super::Whole`]). An LV with that UUID and the volume's name is the volume's, with whatever
//! hosts have written to it: it gets its tags back. Until then the volume is `failed`, and its
//! report says why. To keep such an LV for another use, unmanage the volume.
//!
//! What must never happen here: a tag on an LV that is not proven to be the volume's: of another
//! identity, under another name, or with a tag of another volume; a tag on an LV that was never
//! complete, which would make its old blocks readable.

use mooring_model::{Cure, Plan, Problem};

use super::plan::{LvId, VolumeOp};
use super::view::SeenLv;

/// Plans the return of lost tags. Returns `true` if there are any: then nothing else is planned.
pub(super) fn plan(plan: &mut Plan<VolumeOp>, lv: &LvId, there: Option<&SeenLv>) -> bool {
    let Some(tags) = there.map(|there| there.lost_tags.clone()).filter(|tags| !tags.is_empty()) else {
        return false;
    };
    plan.step(
        VolumeOp::Retag { lv: lv.clone(), tags },
        "its tags were removed; its LVM UUID shows that it is the volume's LV",
    );
    true
}

/// Returns the problem to report while tags are missing. `None` if none is.
pub(super) fn problem(there: &SeenLv) -> Option<Problem> {
    let tags = (!there.lost_tags.is_empty()).then(|| there.lost_tags.join(" and "))?;
    let text = format!(
        "the tag {tags} was removed. The LVM UUID shows that this is the volume's LV: its tags are restored. To use the LV \
         without Mooring, unmanage the volume"
    );
    Some(Problem { object: format!("LV {}/{}", there.group, there.name), text, cure: Cure::Retry })
}

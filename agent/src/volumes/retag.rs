//! An LV of a volume that somebody has taken our tags from, by hand or with a tool that sets tags. Pure.
//!
//! LVM gives an LV its identity once, and what it was is remembered of every volume that was whole ([`super::Whole`]). Is that the
//! identity of an LV of the same name, it is the volume's, with whatever hosts have written to it: it gets its tags back. Until it has
//! them the volume is `failed` and says so. Who wants to have an LV for themselves takes the volume away (unmanage).
//!
//! What must never happen here: a tag on an LV that is not proven to be the volume's: of another identity, under another name, or
//! with a tag of another volume; a tag on an LV that was never whole, which would make its old blocks readable.

use mooring_model::{Cure, Plan, Problem};

use super::plan::{LvId, VolumeOp};
use super::view::SeenLv;

/// Plans its tags, if it has lost any. Nothing else is done before it has them.
pub(super) fn plan(plan: &mut Plan<VolumeOp>, lv: &LvId, there: Option<&SeenLv>) -> bool {
    let Some(tags) = there.map(|there| there.robbed.clone()).filter(|tags| !tags.is_empty()) else {
        return false;
    };
    plan.step(
        VolumeOp::Retag { lv: lv.clone(), tags },
        "somebody took them away, and by LVM's identity it is the volume's LV",
    );
    true
}

/// What is said of it until then.
pub(super) fn problem(there: &SeenLv) -> Option<Problem> {
    let tags = (!there.robbed.is_empty()).then(|| there.robbed.join(" and "))?;
    let text = format!(
        "somebody took the tag {tags} away. By LVM's identity it is the volume's LV: it gets its tags back. To have the LV without \
         Mooring, unmanage the volume"
    );
    Some(Problem { object: format!("LV {}/{}", there.group, there.name), text, cure: Cure::Retry })
}

//! An extend that is cancelled before it is part of the volume: only then is a smaller size ever
//! taken. The space to extend by is an LV of its own until it is appended, so nothing of the volume
//! is lost when that LV goes.
//!
//! Between the look that shows that nothing was appended and the moment from which the smaller size
//! counts, nothing may be appended. A pass that zeroes waits before its last step; after that
//! moment it gives way to the newer spec, as it does anyway.
//!
//! What must never happen here: a size below what the LV has; an append behind the look; a pass
//! that is held for ever.

use std::sync::Arc;

use mooring_model::{Cure, Stamp, VolumeKind, VolumeSpec};

use crate::engine::cell::{Cell, State};
use crate::engine::{Engine, Refusal};
use crate::lvm::VolumeOp;
use crate::object::admission::Claim;

/// Prevents appends while this lives.
pub(in crate::engine) struct Held(Arc<Cell>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state().growth.held = false;
    }
}

/// The steps that make one volume larger.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// `true` while a smaller size is checked: nothing makes the volume larger meanwhile.
    held: bool,
    /// The last pass that began such a step. `None` if none did.
    begun: Option<u64>,
}

impl State {
    /// Says whether this step may begin. A step that makes the volume larger may not while a
    /// smaller size is checked, or a newer spec waits.
    pub(in crate::engine) fn may_begin(&mut self, op: &VolumeOp) -> bool {
        if !matches!(op, VolumeOp::Append { .. } | VolumeOp::Extend { .. }) {
            return true;
        }
        let may = !self.growth.held && !self.turn.is_queued_anew();
        if may {
            self.growth.begun = Some(self.turn.passes());
        }
        may
    }

    /// Holds steps that make the volume larger back. `false` if one is at work.
    fn hold_appends(&mut self) -> bool {
        let at_work = self.turn.running().is_some_and(|pass| self.growth.begun == Some(pass));
        self.growth.held = !at_work;
        self.growth.held
    }
}

impl Engine {
    /// Checks that the LV has no more than the smaller size. `None` if the new size is not smaller.
    /// `Some` holds appends back.
    pub(in crate::engine) fn hold_for_shrink(
        &self,
        cell: &Arc<Cell>,
        old: Option<&VolumeSpec>,
        (spec, stamp): (&VolumeSpec, &Stamp),
        claim: &Claim,
    ) -> Result<Option<Held>, Refusal> {
        let Some(old) = old.filter(|old| old.size > spec.size) else { return Ok(None) };
        let never = |has| {
            let why = format!(
                "volume {} has {has}, and the spec says {}: a volume never shrinks; send {has} or more",
                cell.id, spec.size
            );
            Err(Refusal::precondition(why, Cure::FixSpec))
        };
        if spec.kind != VolumeKind::Volume || spec.group != old.group || spec.revert.is_some() {
            return never(old.size);
        }
        if !cell.state().hold_appends() {
            let why = format!("volume {} is being made larger at this moment: try again", cell.id);
            return Err(Refusal::precondition(why, Cure::Retry));
        }
        let held = Held(Arc::clone(cell));
        // A kept view shows the present state: no pass began since.
        let view = self.view_for_spec(cell, spec, stamp, claim)?;
        let size = view.group(&spec.group).and_then(|group| group.rounded(spec.size));
        match view.lv(&spec.group, cell.id).filter(|lv| lv.is_tagged()) {
            // Whole: the LV to extend it by is beside it, or not there yet.
            Some(lv) if !lv.is_unzeroed() && size.is_some_and(|size| size >= lv.size) => Ok(Some(held)),
            Some(lv) => never(lv.size),
            None => never(old.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_model::{ByteSize, LvName, VolumeId};

    use super::*;
    use crate::lvm::LvId;

    #[test]
    fn appends_and_checks_of_a_smaller_size_never_overlap() {
        let of = |name| LvId { group: "vg0".parse().unwrap(), name };
        let id = VolumeId::from_u128(1);
        let (lv, growth) = (of(LvName::of(id)), of(LvName::growth_of(id)));
        let append = VolumeOp::Append { lv: lv.clone(), growth, size: ByteSize(1 << 20) };
        let remove = VolumeOp::Remove { lv };
        let begin = |state: &mut State| {
            state.turn.ask();
            state.begin_pass().unwrap();
        };
        let mut state = State::default();
        begin(&mut state);
        assert!(state.hold_appends());
        assert!(!state.may_begin(&append) && state.may_begin(&remove), "held");
        // The smaller size counts from here on, but the pass at work began with the larger one.
        state.turn.ask_anew();
        state.growth.held = false;
        assert!(!state.may_begin(&append));
        // The pass behind it began with the smaller size.
        state.turn.end();
        begin(&mut state);
        assert!(state.may_begin(&append));
        assert!(!state.hold_appends() && !state.growth.held, "it is at work");
        state.turn.end();
        assert!(state.hold_appends(), "that pass has ended");
        state.growth.held = false;
        begin(&mut state);
        assert!(state.hold_appends(), "and the next one appends nothing yet");
    }
}

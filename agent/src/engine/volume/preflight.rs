//! Admission's looks at LVM: a volume is refused before its spec is stored if LVM cannot have it.
//!
//! LVM may take longer than any caller waits. A caller who calls again would have LVM asked from
//! the beginning each time, and never get an answer. So the agent keeps the view that nobody waited
//! for, for a moment, for the same spec.
//!
//! What must never happen here: a view for one spec used for another; a view from before a step of
//! ours used behind that step; a new volume made over what LVM has under its id.

use std::time::Duration;

use mooring_model::{BlockedKind, Cure, ExportSpec, Naa, Stamp, VolumeSpec};
use tokio::time::Instant;

use super::admit::begins_revert;
use super::first_spec;
use crate::clock;
use crate::engine::cell::{Cell, KeptSpec, SpecKind, State};
use crate::engine::{Engine, Refusal, pass};
use crate::lvm::{self, Beside, VolumesView};
use crate::object::admission::Claim;
use crate::object::seen::Seen;

/// Time for which such a view is kept. LVM gives no extent away twice, whatever others take
/// meanwhile.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// A view that nobody waited for.
#[derive(Debug)]
pub(in crate::engine) struct KeptLook {
    /// The stamp of the spec that the look was for.
    stamp: Stamp,
    ended: Instant,
    view: VolumesView,
}

#[cfg(test)]
impl KeptLook {
    /// A view that was kept at this moment.
    pub(in crate::engine) fn of(view: VolumesView) -> Self {
        let digest = mooring_model::Digest::of_sha256([1; 32]);
        let stamp = Stamp { generation: mooring_model::Generation::ZERO, digest };
        Self { stamp, ended: clock::instant(), view }
    }
}

impl State {
    fn take_kept_look(&mut self, stamp: &Stamp) -> Option<VolumesView> {
        let kept = self.knowledge.take_kept_look()?;
        let holds = kept.stamp == *stamp && kept.ended.elapsed() < KEPT_FOR;
        holds.then_some(kept.view)
    }
}

impl Engine {
    /// LVM's view of the LVs that this spec needs: a new one, or one that was kept for the same
    /// spec.
    pub(in crate::engine) fn view_for_spec(
        &self,
        cell: &Cell,
        spec: &VolumeSpec,
        stamp: &Stamp,
        claim: &Claim,
    ) -> Result<VolumesView, Refusal> {
        let began = {
            let mut state = cell.state();
            if let Some(view) = state.take_kept_look(stamp) {
                return Ok(view);
            }
            // A pass at work may change what is being looked at.
            (!state.turn.is_running()).then(|| state.knowledge.begin_look())
        };
        let view = self.view_of(cell, &Beside::of(spec), Some(&spec.group)).map_err(Refusal::Volumes)?;
        if !claim.is_taken() {
            return Ok(view);
        }
        let mut state = cell.state();
        if let Some(began) = began {
            let look = KeptLook { stamp: stamp.clone(), ended: clock::instant(), view };
            state.knowledge.learn_kept_look(Seen::new(began, look));
        }
        let stuck = state.stuck();
        drop(state);
        Err(Refusal::busy(cell.id, stuck))
    }

    /// Refuses a new volume if LVM has anything of it: the volume or snapshot, an LV to extend it
    /// by, or an LV to take its place. Returns LVM's view.
    pub(in crate::engine) fn check_no_lv(
        &self,
        cell: &Cell,
        (spec, stamp): (&VolumeSpec, &Stamp),
        claim: &Claim,
    ) -> Result<VolumesView, Refusal> {
        let view = self.view_for_spec(cell, spec, stamp, claim)?;
        let id = cell.id;
        let lvs = [view.lvs_of(id), view.growths_of(id), view.backs_of(id)];
        if let Some(lv) = lvs.into_iter().flatten().find(|lv| lv.is_tagged()) {
            return first_spec::refuse(id, format!("the LV {}/{} is here under its id", lv.group, lv.name));
        }
        Ok(view)
    }

    /// Refuses a volume that cannot be had. Returns LVM's view: `view`, or a new one. `None` if
    /// nothing had to be asked.
    pub(in crate::engine) fn check_volume(
        &self,
        cell: &Cell,
        (spec, stamp): (&VolumeSpec, &Stamp),
        kept: Option<&KeptSpec<VolumeSpec>>,
        export: Option<&ExportSpec>,
        (view, claim): (Option<VolumesView>, &Claim),
    ) -> Result<Option<VolumesView>, Refusal> {
        let groups = &self.shared.config.groups;
        if !groups.iter().any(|group| group.name == spec.group) {
            let allowed: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
            return Err(Refusal::NotAllowed(format!(
                "volume group {} is not in this agent's configuration (groups: {})",
                spec.group,
                allowed.join(", ")
            )));
        }
        self.check_naa(cell, &Naa::of_serial(&cell.id.to_string()))?;
        match kept.map(|kept| &kept.kind) {
            Some(SpecKind::Spec(old)) if old.group != spec.group => {
                let (id, group) = (cell.id, &old.group);
                let why = format!(
                    "volume {id} lies in group {group} and cannot be moved: send the spec with group {group}"
                );
                return Err(Refusal::precondition(why, Cure::FixSpec));
            }
            Some(SpecKind::Spec(old))
                if (old.kind, old.provisioning) != (spec.kind, spec.provisioning)
                    // Once the volume is made, the sender no longer says from which source.
                    || spec.source.is_some_and(|source| old.source != Some(source))
                    || spec.takes.is_some() && old.takes != spec.takes =>
            {
                let why = format!(
                    "volume {}: whether it is a snapshot, thin or thick, and what it was made from cannot change: send the \
                     spec with these as they were, or make a new volume",
                    cell.id
                );
                return Err(Refusal::precondition(why, Cure::FixSpec));
            }
            // Admission has checked a smaller size before.
            Some(SpecKind::Spec(old)) if old.size >= spec.size && !begins_revert(old, spec) => {
                return Ok(None);
            }
            Some(SpecKind::Spec(_) | SpecKind::Tombstone { .. } | SpecKind::Released) | None => {}
        }
        // A new volume, or a larger one, that cannot be made is refused before anything is stored.
        let view = view.map_or_else(|| self.view_for_spec(cell, spec, stamp, claim), Ok)?;
        let dying = matches!(kept.map(|kept| &kept.kind), Some(SpecKind::Tombstone { destroy: true }));
        if dying && view.lv(&spec.group, cell.id).is_some() {
            let why = format!("volume {} is still being deleted: try again when it is gone", cell.id);
            return Err(Refusal::precondition(why, Cure::Retry));
        }
        if dying && view.lacks_a_group() && !cell.state().is_gone() {
            let why = format!(
                "volume {} is still being deleted, and its LV may lie in a group that LVM cannot read: try again when it \
                 is gone",
                cell.id
            );
            return Err(Refusal::precondition(why, Cure::Retry));
        }
        let wanted = pass::wanted_spec(spec, export, cell.state().established.is_made(), false);
        let plan = lvm::plan(&wanted, &view, cell.id);
        match plan.blocked.first() {
            None => Ok(Some(view)),
            Some(blocked) => {
                let text = format!("{}: {}", blocked.object, blocked.why);
                Err(match blocked.kind {
                    BlockedKind::Full => Refusal::NoSpace(text),
                    BlockedKind::Foreign | BlockedKind::Collision => Refusal::Foreign(text),
                    BlockedKind::Birth | BlockedKind::Missing | BlockedKind::Held => {
                        Refusal::precondition(text, blocked.kind.cure())
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mooring_model::{ByteSize, Digest, Generation, Provisioning, VolumeId};

    use super::*;
    use crate::engine::testing::{Node, eventually};
    use crate::engine::{PutVolume, VolumeAnswer, VolumeRequest};

    const SHORT: Duration = Duration::from_millis(50);
    /// Longer than any test waits.
    const LONG: Duration = Duration::from_mins(1);

    fn put(digest: u8) -> PutVolume {
        let volume = VolumeId::from_u128(2);
        let (group, size) = ("vg0".parse().unwrap(), ByteSize(8 << 20));
        PutVolume {
            cluster: mooring_model::ClusterId::from_u128(1),
            volume,
            stamp: Stamp { generation: Generation::ZERO.next(), digest: Digest::of_sha256([digest; 32]) },
            request: VolumeRequest::Spec(VolumeSpec::new(volume, group, size, Provisioning::Thick)),
            opaque: Vec::new(),
            new: true,
        }
    }

    /// Sends a change that takes LVM longer than its sender waits. LVM ends after that.
    async fn put_in_vain(node: &Node, put: PutVolume) -> Result<VolumeAnswer, Refusal> {
        node.fake.lvm().set_slow(LONG);
        let answer = node.engine.put_volume(put, SHORT).await;
        node.fake.lvm().set_slow(Duration::ZERO);
        answer
    }

    fn begin(state: &mut State) {
        state.turn.ask();
        state.begin_pass().unwrap();
    }

    fn is_kept(cell: &Cell) -> bool {
        cell.state().knowledge.kept_look().is_some()
    }

    /// A node where a look has been kept for a sender who has gone.
    async fn node_with_a_kept_look() -> (Node, Arc<Cell>) {
        let node = Node::new();
        assert!(matches!(put_in_vain(&node, put(1)).await, Err(Refusal::Busy { .. })));
        let cell = node.engine.cell(VolumeId::from_u128(2));
        eventually("the look is kept", || is_kept(&cell));
        (node, cell)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn however_long_lvm_takes_a_spec_that_is_sent_again_is_taken() {
        let (node, cell) = node_with_a_kept_look().await;
        node.fake.lvm().set_slow(LONG);
        let engine = node.engine.clone();
        let sent = tokio::spawn(async move { engine.put_volume(put(1), LONG).await });
        // LVM is not asked again before the spec is taken.
        eventually("the spec is taken", || cell.state().volume_spec().is_some());
        assert!(!cell.state().volume_end().is_done());
        assert!(!is_kept(&cell));
        node.fake.lvm().set_slow(Duration::ZERO);
        assert!(sent.await.unwrap().unwrap().done);
        let answer = node.engine.put_volume(put(1), Duration::from_secs(30)).await.unwrap();
        assert!(answer.done);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_that_began_beside_a_pass_is_not_kept() {
        let node = Node::new();
        let cell = node.engine.cell(VolumeId::from_u128(2));
        begin(&mut cell.state());
        node.fake.lvm().set_slow(LONG);
        assert!(matches!(node.engine.put_volume(put(1), SHORT).await, Err(Refusal::Busy { .. })));
        eventually("the look has begun", || node.fake.lvm().slow_commands() > 0);
        // The pass ends before the look does.
        cell.state().turn.end();
        node.fake.lvm().set_slow(Duration::ZERO);
        drop(cell.admission.take(Duration::from_secs(30)).expect("the look ends"));
        assert!(matches!(put_in_vain(&node, put(1)).await, Err(Refusal::Busy { .. })), "LVM is asked anew");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_is_for_its_own_spec_and_for_a_moment_and_not_from_before_a_pass() {
        let (node, cell) = node_with_a_kept_look().await;
        assert!(matches!(put_in_vain(&node, put(2)).await, Err(Refusal::Busy { .. })), "another spec");
        let passes: fn(&mut State) = |state| {
            begin(state);
            state.turn.end();
        };
        let spoils: [fn(&mut State); 3] = [passes, begin, |state| {
            let mut kept = state.knowledge.take_kept_look().unwrap();
            kept.ended -= KEPT_FOR;
            let began = state.knowledge.begin_look();
            state.knowledge.learn_kept_look(Seen::new(began, kept));
        }];
        for spoil in spoils {
            eventually("the look is kept", || is_kept(&cell));
            {
                let mut state = cell.state();
                let stamp = state.knowledge.kept_look().unwrap().stamp.clone();
                spoil(&mut state);
                assert!(state.take_kept_look(&stamp).is_none());
                state.turn.end();
            }
            assert!(matches!(put_in_vain(&node, put(2)).await, Err(Refusal::Busy { .. })));
        }
    }
}

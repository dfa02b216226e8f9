//! Contents of the agents' machines beside their volumes, and the agents' long-lived memory.

use std::collections::BTreeMap;

use mooring_api::v1;
use mooring_model::VolumeId;
use tonic::{Code, Status};

use super::{Fake, State, cured};

/// Faults of an agent's reverts, isolations and image exports.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a fake")]
pub(crate) struct Reverts {
    /// The agent takes a spec with a revert or an isolation, and does nothing.
    pub(crate) hold: bool,
    /// The agent does nothing, and reports this problem.
    pub(crate) problem: Option<v1::Problem>,
    /// A held revert is found done once its spec is withdrawn: it ended just before.
    pub(crate) late: bool,
    /// An older agent: it ignores reverts, isolations and image exports.
    pub(crate) ignores: bool,
    /// The agent takes a spec with an image export, and does nothing.
    pub(crate) hold_uploads: bool,
    /// Image exports fail with this problem.
    pub(crate) upload_problem: Option<v1::Problem>,
    /// By volume: the last revert that was done.
    done: BTreeMap<String, String>,
}

impl Reverts {
    fn waits(&self) -> bool {
        self.hold || self.problem.is_some()
    }
}

impl State {
    /// Adds a volume's revert, isolation and image export to its report. `false`: one of them is
    /// not done.
    pub(super) fn report_revert(&self, spec: Option<&v1::VolumeSpec>, report: &mut v1::VolumeReport) -> bool {
        let reverts = &self.knobs.reverts;
        if let Some(upload) = spec.and_then(|spec| spec.upload.as_ref()).filter(|_| !reverts.ignores) {
            if reverts.hold_uploads || reverts.upload_problem.is_some() {
                report.problems.extend(reverts.upload_problem.clone());
                return false;
            }
            report.uploaded_id.clone_from(&upload.upload_id);
        }
        if spec.is_some_and(|spec| spec.cut_us != 0) && !reverts.ignores {
            report.set_cut(if reverts.hold { v1::CutState::Pending } else { v1::CutState::InForce });
        }
        report.reverted_id = reverts.done.get(&report.volume_id).cloned().unwrap_or_default();
        let wanted = spec.and_then(|spec| spec.revert.as_ref()).filter(|_| !reverts.ignores);
        let Some(wanted) = wanted.filter(|wanted| wanted.revert_id != report.reverted_id) else {
            return true;
        };
        if !reverts.waits() {
            // A held revert is done as soon as it may be.
            report.reverted_id.clone_from(&wanted.revert_id);
            return true;
        }
        report.problems.extend(reverts.problem.clone());
        false
    }

    pub(super) fn is_reverted(&self, id: &str) -> bool {
        let spec = self.volumes.get(id).and_then(|kept| kept.spec.as_ref());
        self.report_revert(spec, &mut v1::VolumeReport { volume_id: id.to_owned(), ..Default::default() })
    }

    /// Notes the revert of a spec that is about to be replaced.
    fn note_revert(&mut self, id: &str) {
        let spec = self.volumes.get(id).and_then(|kept| kept.spec.as_ref());
        let Some(wanted) = spec.and_then(|spec| spec.revert.clone()) else { return };
        let reverts = &mut self.knobs.reverts;
        if !reverts.ignores && (!reverts.waits() || reverts.late) {
            reverts.done.insert(id.to_owned(), wanted.revert_id);
        }
    }

    /// Applies a volume's spec to the LVs: a managed LV leaves the list, and an unmanaged one
    /// returns to it.
    pub(super) fn take_and_release(&mut self, put: &v1::PutVolumeRequest) {
        use v1::put_volume_request::Wish;
        self.note_revert(&put.volume_id);
        match &put.wish {
            Some(Wish::Spec(spec)) => {
                let takes = |lv: &v1::Lv| spec.takes.as_ref().is_some_and(|takes| takes.uuid == lv.uuid);
                self.lvs.retain(|lv| !takes(lv));
            }
            Some(Wish::Tombstone(tombstone)) if tombstone.release => {
                let kept = self.volumes.get(&put.volume_id).and_then(|kept| kept.spec.as_ref());
                let lv = kept.map(|spec| v1::Lv {
                    group: spec.group.clone(),
                    name: format!("mooring-{}", put.volume_id),
                    uuid: format!("of-{}", put.volume_id),
                    size_bytes: spec.size_bytes,
                    ..Default::default()
                });
                self.lvs.extend(lv);
            }
            _ => {}
        }
    }

    /// The LVs of a group, or all.
    pub(super) fn lvs_in(&self, group: &str) -> v1::ListLvsResponse {
        let lvs = self.lvs.iter().filter(|lv| group.is_empty() || lv.group == group);
        v1::ListLvsResponse { lvs: lvs.cloned().collect() }
    }

    pub(super) fn newest_epoch(&self) -> u64 {
        let volumes = self.volumes.values().map(|kept| &kept.stamp);
        let exports = self.exports.values().map(|kept| &kept.stamp);
        let connections = self.connections.values().map(|kept| &kept.stamp);
        let stamps = volumes.chain(exports).chain(connections).flatten();
        stamps.filter_map(|stamp| stamp.generation).map(|at| at.epoch).max().unwrap_or(0)
    }

    /// Data of this cluster that no spec names.
    pub(super) fn orphan(id: &str) -> v1::VolumeStatus {
        let mut report = v1::VolumeReport { volume_id: id.to_owned(), ..Default::default() };
        report.set_phase(v1::Phase::Orphan);
        v1::VolumeStatus { volume_id: id.to_owned(), volume: Some(report), ..Default::default() }
    }
}

impl State {
    /// Refuses a spec that the volume may not have, whatever spec it has now.
    pub(super) fn check_spec(&mut self, put: &v1::PutVolumeRequest) -> Result<(), Status> {
        let Some(v1::put_volume_request::Wish::Spec(spec)) = &put.wish else { return Ok(()) };
        let id = &put.volume_id;
        let other = self.volumes.get(id).is_some_and(|kept| kept.stamp != put.stamp);
        let known = other || (self.orphans.contains(id) && !self.volumes.contains_key(id));
        if put.new && known && !self.knobs.reverts.ignores {
            let text = format!("volume {id} cannot be made: its id is known here");
            return Err(cured(Code::AlreadyExists, &text, "fix_spec"));
        }
        self.never_shrinks(id, spec.size_bytes)
    }

    /// Refuses smaller sizes, except the present one while nothing was appended.
    fn never_shrinks(&mut self, id: &str, bytes: u64) -> Result<(), Status> {
        let kept = self.volumes.get(id).and_then(|kept| kept.spec.as_ref());
        if kept.is_none_or(|kept| kept.size_bytes <= bytes) {
            return Ok(());
        }
        self.knobs.hold_growth &= !self.knobs.grown_when_smaller;
        let never = || cured(Code::FailedPrecondition, "a volume never shrinks", "fix_spec");
        match &self.knobs.refuse_smaller {
            Some(status) => Err(status.clone()),
            None if self.volume_report(id).size_bytes > bytes => Err(never()),
            None => Ok(()),
        }
    }
}

impl Fake {
    /// Makes a look at LVM find data that no spec names, and tells the watchers.
    pub(crate) fn publish_orphan(&self, volume: VolumeId) {
        let id = volume.to_string();
        self.state().orphans.insert(id.clone());
        let what = State::orphan(&id).volume.map(v1::report::What::Volume);
        let _ = self.reports.send(v1::Report { what });
    }
}

/// An LVM that takes longer than a call waits. Its answer is kept for the next call with the same
/// spec.
#[derive(Default)]
pub(crate) struct SlowLvm {
    /// Number of calls with one spec that come before LVM has answered the first.
    pub(crate) calls: u32,
    asked: BTreeMap<String, u32>,
}

impl SlowLvm {
    pub(super) fn has_answered(&mut self, put: &v1::PutVolumeRequest) -> bool {
        let asked = self.asked.entry(format!("{} {:?}", put.volume_id, put.stamp)).or_default();
        *asked += 1;
        *asked > self.calls
    }
}

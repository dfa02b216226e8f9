//! What is on the agents' machines beside their volumes, and what they keep of all times.

use mooring_api::v1;

use super::State;

impl State {
    /// What a volume's wish does to the LVs: one that is to be it is nobody's no more, and one that is let go is again.
    pub(super) fn take_and_release(&mut self, put: &v1::PutVolumeRequest) {
        use v1::put_volume_request::Wish;
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

    /// Those of a group, or all.
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

    /// Data of ours that no spec names.
    pub(super) fn orphan(id: &str) -> v1::VolumeStatus {
        let mut report = v1::VolumeReport { volume_id: id.to_owned(), ..Default::default() };
        report.set_phase(v1::Phase::Orphan);
        v1::VolumeStatus { volume_id: id.to_owned(), volume: Some(report), ..Default::default() }
    }
}

//! Exports of an agent: the initiators that reach each of its volumes, by the specs that it stores
//! and by its kernel.
//!
//! What must never happen here: an initiator that is left out because only one of the two names it.

use std::collections::{BTreeMap, BTreeSet};

use mooring_api::v1;
use mooring_model::{ExportReport, Initiator, VolumeId};

/// Initiators that reach each volume of an agent, by its spec and by its kernel.
pub(crate) type Exports = BTreeMap<VolumeId, BTreeSet<Initiator>>;

/// Returns the initiators of each volume in an agent's list.
pub(crate) fn listed(volumes: &[v1::VolumeStatus]) -> Exports {
    let of = |status: &v1::VolumeStatus| {
        let granted = status.export_spec.iter().flat_map(granted_by);
        let all: BTreeSet<_> = granted.chain(status.export.iter().flat_map(shown_by)).collect();
        Some((status.volume_id.parse().ok()?, all)).filter(|(_, all)| !all.is_empty())
    };
    volumes.iter().filter_map(of).collect()
}

/// Returns the initiators of a volume in a report.
pub(crate) fn reported(report: &ExportReport) -> BTreeSet<Initiator> {
    let iscsi = report.grants.iter().map(|grant| grant.initiator.clone().into());
    let fc = report.fc.iter().flat_map(|port| &port.grants).map(|grant| grant.initiator.into());
    iscsi.chain(fc).collect()
}

/// Returns the initiators to which an export's spec grants the volume.
pub(crate) fn granted_by(spec: &v1::ExportSpec) -> impl Iterator<Item = Initiator> {
    let iscsi = spec.grants.iter().map(|grant| &grant.initiator);
    let fc = spec.fc.iter().flat_map(|fc| &fc.grants).map(|grant| &grant.initiator);
    iscsi.chain(fc).filter_map(|name| name.parse().ok())
}

/// Returns the initiators that a report of an export names.
pub(crate) fn shown_by(report: &v1::ExportReport) -> impl Iterator<Item = Initiator> {
    let iscsi = report.grants.iter().map(|grant| &grant.initiator);
    let fc = report.fc.iter().flat_map(|port| &port.grants).map(|grant| &grant.initiator);
    iscsi.chain(fc).filter_map(|name| name.parse().ok())
}

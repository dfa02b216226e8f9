//! Answers to `GetConnection` and `ListConnections`: the kept specs, and what the last passes saw.
//! Includes sessions of ours that no spec names.
//!
//! What must never happen here: a write; a call that may block.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooring_model::{ConnectionPhase, ConnectionReport, ConnectionSpec, Stamp, VolumeId};

use super::Connections;
use super::cell::Cell;
use crate::engine::lock;
use crate::standing::Standing;

/// One connection, with the sender's opaque data.
#[derive(Debug, Clone)]
pub struct Status {
    /// The volume.
    pub id: VolumeId,
    /// The stamp and opaque data of the spec or tombstone. `None` for a session of ours that no
    /// spec names.
    pub kept: Option<(Stamp, Vec<u8>)>,
    /// The spec. `None` if there is none, or a tombstone. It has the secrets: remove them before it
    /// leaves the process.
    pub wanted: Option<ConnectionSpec>,
    /// The connection as it is now.
    pub report: Option<ConnectionReport>,
}

impl Connections {
    fn status_of(&self, cell: &Arc<Cell>) -> Option<Status> {
        let state = cell.state();
        let kept_spec = state.kept_spec()?;
        Some(Status {
            id: cell.id,
            kept: Some((kept_spec.stamp.clone(), kept_spec.opaque.clone())),
            wanted: kept_spec.spec().cloned(),
            report: self.report(cell.id, &state),
        })
    }

    /// Says whether a spec or a tombstone of this volume is kept.
    pub(super) fn is_kept(&self, id: VolumeId) -> bool {
        self.known_cell(id).is_some_and(|cell| cell.state().kept_spec().is_some())
    }

    fn orphan(&self, id: VolumeId) -> Option<Status> {
        let session = lock(&self.shared.sessions).get(&id).cloned()?;
        let report = mooring_connectors::orphan(&session);
        Some(Status { id, kept: None, wanted: None, report: Some(report) })
    }

    /// The state of one connection. `None` if nothing is known of it.
    pub fn status(&self, id: VolumeId) -> Option<Status> {
        let known = self.known_cell(id).and_then(|cell| self.status_of(&cell));
        known.or_else(|| self.orphan(id))
    }

    /// The state of all connections with a spec, of those that are being detached, and of orphans,
    /// by volume.
    pub fn statuses(&self) -> Vec<Status> {
        let gone = |status: &Status| {
            status.wanted.is_none()
                && status.report.as_ref().is_some_and(|report| report.phase == ConnectionPhase::Gone)
        };
        let kept = self.cells().iter().filter_map(|cell| self.status_of(cell)).collect::<Vec<_>>();
        let sessions: Vec<VolumeId> = lock(&self.shared.sessions).keys().copied().collect();
        let orphans = sessions.into_iter().filter(|id| !self.is_kept(*id)).filter_map(|id| self.orphan(id));
        let mut all: Vec<Status> = kept.into_iter().filter(|status| !gone(status)).chain(orphans).collect();
        all.sort_by_key(|status| status.id);
        all
    }

    /// Numbers of connections by phase, without those that are gone.
    pub(crate) fn phases(&self) -> BTreeMap<&'static str, u64> {
        let mut phases = BTreeMap::new();
        for cell in self.cells() {
            let state = cell.state();
            let phase = self.report(cell.id, &state).map(|report| report.phase);
            if let Some(phase) = phase.filter(|phase| *phase != ConnectionPhase::Gone) {
                *phases.entry(phase.as_str()).or_default() += 1;
            }
        }
        phases
    }

    /// Adds the numbers of connections to the status line.
    pub(crate) fn count_standing(&self, standing: &mut Standing) {
        let (mut specified, mut ready) = (0, 0);
        for cell in self.cells() {
            let state = cell.state();
            let Some(report) = self.report(cell.id, &state) else { continue };
            if state.spec().is_some() {
                specified += 1;
                ready += usize::from(report.phase == ConnectionPhase::Ready);
            }
            standing.problems += report.problems.len() + usize::from(report.stuck.is_some());
        }
        standing.connections = Some((specified, ready));
    }

    pub(super) fn has_spec(cell: &Cell) -> bool {
        cell.state().spec().is_some()
    }
}

//! RESERVE(6) and RESERVE(10). By one of them a host has a volume for itself until its session
//! ends: nobody else reads or writes it. The kernel takes the command also from a host that may
//! only read: `write_protect` looks at the direction of a command's data, and this command has none
//! (lio.md, t). So one look in [`LOOKS`] seconds finds the holder of a volume in use. If that host
//! may only read, it loses its session and so the reservation, as the configuration says
//! (`ro_reservation`).
//!
//! What must never happen here: a nexus revoked without a receipt stored before; the nexus of a
//! host that may write revoked without an operator's request; a session of anybody else touched.

use std::sync::Arc;
use std::time::Duration;

use mooring_model::{
    Cause, Chain, Cure, ExportReport, ExportSpec, Generation, HeldReservation, Mode, Problem, Proof, Receipt,
    ReservationHolder, Revoked,
};
use mooring_targets::reservations;
use tokio::time::Instant;

use super::reservations::grant_of;
use crate::clock;
use crate::config::RoReservation;
use crate::engine::cell::{Cell, State};
use crate::engine::pass::PassSpecs;
use crate::engine::receipts::OpenReceipt;
use crate::engine::{Change, Engine};
use crate::store::StoreError;

/// Seconds in which each volume in use has one look.
const LOOKS: u64 = 3;

/// Least time between two revokes for one volume: a host may reserve again and again, and the next
/// look finds it.
const REVOKES_EVERY: Duration = Duration::from_secs(2);

/// Says whether a RESERVE(6) or RESERVE(10) is held by an initiator with a read-only grant.
fn is_of_a_reader(holder: &ReservationHolder, spec: &ExportSpec) -> bool {
    let mode = grant_of(spec, &holder.initiator).map(|(mode, _)| mode);
    holder.ends_with_its_session() && mode == Some(Mode::ReadOnly)
}

/// The looks at the RESERVE(6) and RESERVE(10) of one volume.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// Time at which the last session was ended for its reservation.
    revoked: Option<Instant>,
}

impl State {
    /// Says whether the pulse's last look saw a login. Before that look, the first pass has seen
    /// the holder.
    fn is_in_use(&self) -> bool {
        let over_fc = |lives: &crate::engine::look::pulse::Lives| {
            lives.fc.values().flatten().any(|(_, live)| live.logged_in)
        };
        self.knowledge.lives().is_some_and(|lives| lives.all_sessions().next().is_some() || over_fc(lives))
    }

    /// Adds problems for the initiators that are kept out, and for a read-only holder.
    pub(in crate::engine) fn fill_reserved(&self, report: &mut ExportReport) {
        let volume = report.volume;
        let problem = |text| Problem {
            object: format!("the reservation of volume {volume}"),
            text,
            cure: Cure::Operator,
        };
        report.problems.extend(self.established.kept_out().iter().map(|initiator| {
            problem(format!(
                "{initiator} may only read and had reserved it for itself: it is kept out until it is detached and attached again"
            ))
        }));
        let holder = report.reservations.as_ref().and_then(|seen| seen.holder.as_ref());
        let spec = self.export_spec();
        if let (Some(holder), Some(spec)) = (holder, spec)
            && is_of_a_reader(holder, spec)
        {
            report.problems.push(problem(format!(
                "{} may only read and has reserved it for itself (RESERVE(6)): nobody else reads or writes it. To cut that session: \
                 mooring volume reservations {volume} --clear",
                holder.initiator
            )));
        }
    }
}

impl Engine {
    /// Reads from the store who is kept out, if the configuration keeps hosts out.
    pub(in crate::engine) fn load_kept_out(&self) -> Result<(), StoreError> {
        if self.shared.config.ro_reservation == RoReservation::Revoke {
            for receipt in self.shared.store.kept_out()? {
                self.cell(receipt.volume).state().established.keep_out(receipt.initiator);
            }
        }
        Ok(())
    }

    /// Looks for volumes whose holder has changed since their last pass. Each `beat` of the pulse
    /// looks at another part of all volumes.
    pub(in crate::engine) fn look_for_holders(&self, beat: u64) {
        let cells = self.cells().into_iter();
        for cell in cells.filter(|cell| u64::from(cell.id.as_bytes()[15]) % LOOKS == beat % LOOKS) {
            match self.has_another_holder(&cell) {
                Ok(false) => {}
                Ok(true) => self.wake(&cell),
                Err(error) => {
                    tracing::debug!(volume = %cell.id, error = %Chain(&error), "cannot see who has reserved it");
                }
            }
        }
    }

    fn has_another_holder(&self, cell: &Cell) -> Result<bool, mooring_targets::Error> {
        let (names, before) = {
            let state = cell.state();
            let spec = state.export_spec();
            let Some(spec) =
                spec.filter(|_| state.is_in_use() && !state.turn.is_running() && !state.is_blocked())
            else {
                return Ok(false);
            };
            let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
            (names, state.held.seen().and_then(|seen| seen.holder))
        };
        reservations::has_another_holder(&*self.shared.machine.target, &names, before.as_ref())
    }

    /// Has the next pass revoke the nexus of a read-only host that has reserved the volume.
    pub(in crate::engine) fn revoke_reader(&self, cell: &Arc<Cell>, specs: &PassSpecs) {
        let cause = match self.shared.config.ro_reservation {
            RoReservation::Cut => Cause::Reservation,
            RoReservation::Revoke => Cause::ReservationKeptOut,
            RoReservation::Report => return,
        };
        let Some(holder) = cell.state().held.seen().and_then(|seen| seen.holder) else { return };
        let Some((kept_spec, spec)) =
            specs.export.as_ref().and_then(|kept_spec| Some((kept_spec, kept_spec.spec()?)))
        else {
            return;
        };
        if !is_of_a_reader(&holder, spec) {
            return;
        }
        let recent = cell.state().reserved.revoked.is_some_and(|at| at.elapsed() < REVOKES_EVERY);
        if recent {
            return cell.state().held.forget_holder();
        }
        match self.begin_nexus_revoke(cell, spec, kept_spec.stamp.generation, &holder, cause) {
            Ok(()) => {
                cell.state().reserved.revoked = Some(clock::instant());
                self.wake(cell);
            }
            Err(error) => {
                tracing::error!(
                    volume = %cell.id, initiator = %holder.initiator, error = %Chain(&error),
                    "a host that may only read has reserved the volume, and keeps its session: the store cannot record its end"
                );
                // The next look finds the holder anew.
                cell.state().held.forget_holder();
            }
        }
    }

    /// Stores the receipt of a nexus that is revoked for its reservation, while its grant stands.
    /// The next pass over the export revokes it.
    pub(in crate::engine) fn begin_nexus_revoke(
        &self,
        cell: &Cell,
        spec: &ExportSpec,
        generation: Generation,
        holder: &ReservationHolder,
        cause: Cause,
    ) -> Result<(), StoreError> {
        let initiator = &holder.initiator;
        let (sessions, at_work) = {
            let state = cell.state();
            let unproven = |open: &&OpenReceipt| matches!(open.receipt.proof, Proof::Unproven { .. });
            let of = |open: &OpenReceipt| open.receipt.initiator == *initiator;
            let sessions =
                state.knowledge.lives().map(|lives| lives.sessions(&initiator.to_string()).to_vec());
            (
                sessions.unwrap_or_default(),
                state.established.receipts().open().iter().filter(unproven).any(of),
            )
        };
        if at_work {
            return Ok(());
        }
        let attachments = grant_of(spec, initiator).map(|(_, attachments)| attachments.to_vec());
        let receipt = Receipt {
            volume: cell.id,
            initiator: initiator.clone(),
            attachments: attachments.unwrap_or_default(),
            generation,
            revoked: Revoked::Nexus,
            sessions,
            proof: Proof::Unproven { in_flight: None },
            began: self.shared.machine.clock.now(),
            ended: None,
            reservation: Some(HeldReservation { kind: holder.kind }),
            cause,
        };
        let row = self.shared.store.begin_nexus_revoke(&receipt)?;
        tracing::warn!(volume = %cell.id, %initiator, ?cause, "has reserved the volume: its session is cut");
        self.publish(Change::Receipt(receipt.clone()));
        let began = Some(self.shared.machine.clock.instant());
        let mut state = cell.state();
        if cause == Cause::ReservationKeptOut {
            state.established.keep_out(initiator.clone());
        }
        state.established.receipts_mut().add_open(OpenReceipt { row, receipt, began });
        Ok(())
    }
}

//! RESERVE(6) and RESERVE(10). By one of them a host has a volume for itself until its session ends: nobody else reads or writes it. The
//! kernel takes it from a host that may only read as well, for `write_protect` looks at the direction of a command's data, and this one
//! has none (lio.md, t). So one look in [`LOOKS`] seconds finds who holds a volume that is in use, and a host that may only read
//! loses what it holds with its session, as the configuration says (`ro_reservation`).
//!
//! What must never happen here: a nexus cut without a receipt that is kept before; one cut of a host that may write, unless an operator
//! says so; a session of anybody else touched.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{
    Cause, Chain, Cure, ExportReport, ExportSpec, Generation, HeldReservation, Initiator, Mode, Problem,
    Proof, Receipt, ReservationHolder, Revoked,
};
use mooring_targets::reservations;
use tokio::time::Instant;

use super::cell::{Cell, State};
use super::pass::Wishes;
use super::receipts::OpenReceipt;
use super::reservations::grant_of;
use super::{Change, Engine, lock};
use crate::config::RoReservation;
use crate::store::StoreError;

/// A volume in use is looked at once in so many seconds.
const LOOKS: u8 = 3;

/// A host that reserves again and again is cut no more often: the next look finds it.
const CUTS_EVERY: Duration = Duration::from_secs(2);

/// A RESERVE(6) or RESERVE(10) whose holder's grant is read-only.
fn is_of_a_reader(holder: &ReservationHolder, spec: &ExportSpec) -> bool {
    let mode = grant_of(spec, &holder.initiator).map(|(mode, _)| mode);
    holder.ends_with_its_session() && mode == Some(Mode::ReadOnly)
}

/// The RESERVE(6) and RESERVE(10) of one volume.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// Initiators that have a grant and are not let in: they had reserved the volume, and may only read.
    kept_out: BTreeSet<Initiator>,
    /// When somebody's session was cut last for what he had reserved.
    cut: Option<Instant>,
}

impl Reserved {
    /// Says whether an initiator with a grant is not let in.
    pub(super) fn is_out(&self, initiator: &Initiator) -> bool {
        self.kept_out.contains(initiator)
    }

    /// Says whether nobody with a grant is kept out.
    pub(super) fn is_empty(&self) -> bool {
        self.kept_out.is_empty()
    }

    /// Lets those in that are not `out` any more.
    pub(super) fn retain(&mut self, out: impl Fn(&Initiator) -> bool) {
        self.kept_out.retain(out);
    }
}

impl State {
    /// Whether somebody was logged in at the last look of the pulse. Before that, the first pass has seen who held it.
    fn is_in_use(&self) -> bool {
        let over_fc =
            |lives: &super::pulse::Lives| lives.fc.values().flatten().any(|(_, live)| live.logged_in);
        self.knowledge.lives().is_some_and(|lives| lives.all_sessions().next().is_some() || over_fc(lives))
    }

    /// Says who is kept out, and who has a volume for itself and may only read it.
    pub(super) fn fill_reserved(&self, report: &mut ExportReport) {
        let volume = report.volume;
        let problem = |text| Problem {
            object: format!("the reservation of volume {volume}"),
            text,
            cure: Cure::Operator,
        };
        report.problems.extend(self.reserved.kept_out.iter().map(|initiator| {
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
    /// Reads who is kept out, where the configuration has hosts kept out.
    pub(super) fn load_kept_out(&self) -> Result<(), StoreError> {
        if self.shared.config.ro_reservation == RoReservation::Revoke {
            for receipt in self.shared.store.kept_out()? {
                self.cell(receipt.volume).state().reserved.kept_out.insert(receipt.initiator);
            }
        }
        Ok(())
    }

    /// Looks for volumes that somebody has reserved, or has let go, since their last pass.
    pub(super) fn look_for_holders(&self) {
        let turn = {
            let mut pulse = lock(&self.shared.pulse);
            pulse.holders = (pulse.holders + 1) % LOOKS;
            pulse.holders
        };
        let cells = self.cells().into_iter();
        for cell in cells.filter(|cell| cell.id.as_bytes()[15] % LOOKS == turn) {
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

    /// After a pass: cuts the session of a host that may only read and has reserved the volume, by the next one.
    pub(super) fn cut_reader(&self, cell: &Arc<Cell>, wishes: &Wishes) {
        let cause = match self.shared.config.ro_reservation {
            RoReservation::Cut => Cause::Reservation,
            RoReservation::Revoke => Cause::ReservationKeptOut,
            RoReservation::Report => return,
        };
        let Some(holder) = cell.state().held.seen().and_then(|seen| seen.holder) else { return };
        let Some((wish, spec)) = wishes.export.as_ref().and_then(|wish| Some((wish, wish.spec()?))) else {
            return;
        };
        if !is_of_a_reader(&holder, spec) {
            return;
        }
        let recent = cell.state().reserved.cut.is_some_and(|at| at.elapsed() < CUTS_EVERY);
        if recent {
            return cell.state().held.forget_holder();
        }
        match self.begin_cut(cell, spec, wish.stamp.generation, &holder, cause) {
            Ok(()) => {
                cell.state().reserved.cut = Some(Instant::now());
                self.wake(cell);
            }
            Err(error) => {
                tracing::error!(
                    volume = %cell.id, initiator = %holder.initiator, error = %Chain(&error),
                    "a host that may only read has reserved the volume, and is not cut off: that cannot be written down"
                );
                // The next look finds it anew.
                cell.state().held.forget_holder();
            }
        }
    }

    /// Writes down that a nexus is cut for what it has reserved, while its grant stands. The next pass over the export cuts it.
    pub(super) fn begin_cut(
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
            (sessions.unwrap_or_default(), state.receipts.open().iter().filter(unproven).any(of))
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
        let row = self.shared.store.begin_cut(&receipt)?;
        tracing::warn!(volume = %cell.id, %initiator, ?cause, "has reserved the volume: its session is cut");
        self.publish(Change::Receipt(receipt.clone()));
        let began = Some(self.shared.machine.clock.instant());
        let mut state = cell.state();
        if cause == Cause::ReservationKeptOut {
            state.reserved.kept_out.insert(initiator.clone());
        }
        state.receipts.add_open(OpenReceipt { row, receipt, began });
        Ok(())
    }
}

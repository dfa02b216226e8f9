//! Arguments of `mooring volume reservations`.
//!
//! What must never happen here: a change without a flag of its own.

use clap::Args;
use mooring_model::ReservationsChange;

use crate::select::VolumeRef;

/// `volume reservations`.
#[derive(Debug, Args)]
pub struct ReservationsArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Take every registration and the reservation away
    #[arg(long, conflicts_with = "preempt")]
    pub clear: bool,
    /// Take the registrations with this key away: as it is listed, 0x and hexadecimal digits
    #[arg(long, value_name = "KEY", value_parser = crate::reservations::parse_key)]
    pub preempt: Option<u64>,
    /// With --preempt: end what those hosts have in flight first; waits for the disk
    #[arg(long, requires = "preempt")]
    pub abort: bool,
}

impl ReservationsArgs {
    /// The removal that the flags ask for; `None`: only look.
    pub fn change(&self) -> Option<ReservationsChange> {
        let preempt = self.preempt.map(|key| ReservationsChange::Preempt { key, abort: self.abort });
        preempt.or(self.clear.then_some(ReservationsChange::Clear))
    }
}

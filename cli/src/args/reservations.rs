//! Arguments of `mooring volume reservations`.
//!
//! What must never happen here: a change without a flag of its own.

use clap::Args;
use mooring_model::ReservationsChange;

use crate::volume_ref::VolumeRef;

/// `volume reservations`.
#[derive(Debug, Args)]
pub struct ReservationsArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Remove every registration and the reservation
    #[arg(long, conflicts_with = "preempt")]
    pub clear: bool,
    /// Remove the registrations with this key, in its listed form: 0x and hexadecimal digits
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub preempt: Option<u64>,
    /// With --preempt: first abort the commands that those hosts have in flight; waits for the disk
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

/// Parses a key in its listed form: 0 is no key.
fn parse_key(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or_default();
    let hexadecimal = (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let key = u64::from_str_radix(digits, 16).ok().filter(|key| hexadecimal && *key != 0);
    key.ok_or_else(|| "want a key as it is listed: 0x and up to 16 hexadecimal digits, not all 0".to_owned())
}

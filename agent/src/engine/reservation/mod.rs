//! Persistent reservations and RESERVE: the kernel's, those that the store keeps, and their end.
//!
//! What must never happen here: a reservation given to an initiator that does not hold it.

pub(super) mod reservations;
pub(super) mod reserve;
pub(super) mod reserved;

//! All integration tests of this crate as one program, because every further program is linked
//! separately, with everything below it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod adopt;
mod barrier;
mod common;
mod cost;
mod discards;
mod exports;
mod faults;
mod fc_golden;
mod fc_laws;
mod fc_nexus;
mod golden;
mod laws;
mod ports;
mod reservations;
mod rotate;
mod seals;
mod take_away;
mod tuning;

//! Tests of unit states and shutdown locks, on a private bus with a fake systemd and logind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod inhibit;
mod units;

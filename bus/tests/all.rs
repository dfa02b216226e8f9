//! Tests of what is told of units, and of when a lock is held, on a bus of the test's own with a systemd and a logind that do as the test says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod inhibit;
mod units;

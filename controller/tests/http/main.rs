//! The HTTP front against a control plane in memory: shapes, status codes and words as recorded from a live Cinder 29, and
//! every kind of bad input.
//!
//! One program, not one per file: linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod attachments;
mod auth;
mod client;
mod fake;
mod input;
mod mooring;
mod program;
mod types;
mod versions;
mod volumes;

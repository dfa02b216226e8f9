//! Types, retypes, quotas and operators' actions on volumes: through the control plane itself with
//! agents in memory, and through HTTP.
//!
//! One program, not one per file: linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "../support/mod.rs"]
mod support;

mod api;
mod operator;
mod quotas;
mod retype;
mod types;

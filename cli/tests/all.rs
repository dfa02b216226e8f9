//! All integration tests of this crate as one program: each further program would be linked with
//! all its dependencies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod attach;
mod audit_commands;
mod commands;
mod complete;
mod controller;
mod cut_commands;
mod demo_command;
mod export_commands;
mod fake;
mod fake_controller;
mod help;
mod import_commands;
mod leaving_commands;
mod lost;
mod manage_commands;
mod names;
mod parsing;
mod revert_commands;
mod rotate;
mod snapshot_commands;
mod tls;

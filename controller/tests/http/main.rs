//! The HTTP layer on a control plane in memory: shapes, status codes and words as recorded from a
//! live Cinder 29, and every kind of bad input.
//!
//! One program, not one per file: linking takes longer than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod actions;
mod attachments;
mod audit;
mod auth;
mod client;
mod fake;
mod fake_keystone;
mod fields;
mod images;
mod input;
mod keystone;
mod leaving;
mod lists;
mod manage;
mod metrics;
mod mooring;
mod openapi;
mod place;
mod policies;
mod program;
mod small;
#[path = "../support/mod.rs"]
mod support;
mod types;
mod versions;
mod volumes;
mod waits;

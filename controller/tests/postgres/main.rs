//! All promises of the service, on PostgreSQL; and several controllers on one database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "../core_attach.rs"]
mod core_attach;
#[path = "../core_extend.rs"]
mod core_extend;
#[path = "../core_fence.rs"]
mod core_fence;
#[path = "../core_fence_names.rs"]
mod core_fence_names;
#[path = "../core_fence_unknown.rs"]
mod core_fence_unknown;
#[path = "../core_forget.rs"]
mod core_forget;
#[path = "../core_ids.rs"]
mod core_ids;
#[path = "../core_lost.rs"]
mod core_lost;
#[path = "../core_rebuild.rs"]
mod core_rebuild;
#[path = "../core_restart.rs"]
mod core_restart;
#[path = "../core_secrets.rs"]
mod core_secrets;
#[path = "../laws_events.rs"]
mod laws_events;
mod many;
#[path = "../support/mod.rs"]
mod support;

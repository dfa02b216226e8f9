//! All integration tests of this crate as one program: each further program would be linked anew,
//! with all crates below it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod core_actions;
mod core_again;
mod core_attach;
mod core_cache;
mod core_capabilities;
mod core_cascade;
mod core_cost;
mod core_cut;
mod core_detach;
mod core_export;
mod core_extend;
mod core_failed;
mod core_fence;
mod core_fence_names;
mod core_fence_unknown;
mod core_forget;
mod core_ids;
mod core_images;
mod core_jobs;
mod core_lost;
mod core_manage;
mod core_mode;
mod core_policies;
mod core_rebuild;
mod core_records;
mod core_restart;
mod core_retype;
mod core_revert;
mod core_rotate;
mod core_secrets;
mod core_shut_out;
mod core_snapshots;
mod core_told;
mod core_unknown;
mod core_words;
mod laws_events;
mod laws_pools;
mod laws_quota;
mod laws_retype;
mod laws_rules;
mod laws_schedule;
mod laws_transport;
mod place;
mod support;

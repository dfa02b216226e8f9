//! The API of the agent: its listeners, and the services `Agent`, `Host` and `Identity`.
//!
//! What must never happen here: a decision about a volume; a secret in an answer to somebody who
//! did not ask for it.

pub mod agent;
pub mod host;
mod identity;
pub mod listen;

use std::time::Duration;

use mooring_model::limit::KERNEL_ANSWER_DEADLINE_MAX;

use crate::config::Config;

/// Time within which a call is answered: what the caller asks for, or else the configuration's.
fn deadline(config: &Config, asked_ms: u32) -> Duration {
    let asked = if asked_ms == 0 { config.answer_deadline_ms } else { asked_ms };
    Duration::from_millis(u64::from(asked)).min(KERNEL_ANSWER_DEADLINE_MAX)
}

//! The API of the agent: its listeners, and the services `Agent`, `Host` and `Identity`.
//!
//! What must never happen here: a decision about a volume; a secret in an answer to somebody who
//! did not ask for it.

pub mod agent;
pub mod host;
mod identity;
pub mod listen;

//! The control plane: volume types, volumes and attachments as users see them, and the specs that
//! its agents make true.
//!
//! Three layers. [`domain`] holds the records and the rules (pure). [`service`] has one method for
//! each request: transactions on the store, and the work with the agents behind them. `http` speaks
//! the Block Storage API v3 and Mooring's own API, and decides nothing.
//!
//! What must never happen here: an acknowledgement before the transaction is durable; a detach
//! acknowledged without its receipt; a decision from a missing report; a secret in a log, an error
//! or an answer to those who may not see it.

mod agents;
pub mod args;
mod audit;
pub mod auth;
pub mod authority;
pub mod clock;
pub mod config;
pub mod domain;
pub mod error;
mod flow;
pub mod http;
pub mod init;
pub mod initiators;
mod kept;
pub mod list;
pub mod metrics;
pub mod permits;
pub mod policy;
pub mod quota;
pub mod rebuild;
pub mod renewal;
pub mod rotate;
pub mod rules;
pub mod schedule;
pub mod service;
#[cfg(test)]
mod shake;
pub mod share;
mod store;

pub use store::{SqlError, StoreError, backup};

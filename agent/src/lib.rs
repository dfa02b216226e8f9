//! The per-host agent: takes specs; brings volumes, exports and connections to them; reports the
//! result.

pub mod adopt;
pub mod args;
pub mod capabilities;
pub mod config;
pub mod connections;
pub mod door;
pub mod engine;
mod expedite;
mod fibre_channel;
pub mod identity;
pub mod images;
pub mod join;
mod links;
pub mod listen;
mod lvm_gate;
pub mod machine;
pub mod metrics;
mod object;
pub mod places;
mod rate_limit;
pub mod run;
pub mod serve;
pub mod serve_host;
mod serve_identity;
pub mod standing;
pub mod store;
pub mod volumes;
pub mod workers;

//! The per-host agent: takes specs; brings volumes, exports and connections to them; reports the
//! result.

pub mod adopt;
pub mod args;
pub mod capabilities;
mod clock;
pub mod config;
pub mod connection;
pub mod door;
pub mod engine;
mod fibre_channel;
pub mod identity;
pub mod images;
pub mod join;
mod links;
pub mod lvm;
pub mod machine;
pub mod metrics;
mod object;
pub mod places;
mod rate_limit;
pub mod rpc;
pub mod run;
pub mod standing;
pub mod store;
pub mod workers;

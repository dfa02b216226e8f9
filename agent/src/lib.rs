//! The per-host agent: specs in; volumes, exports and connections made true; reports out.

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
pub mod places;
pub mod run;
pub mod serve;
pub mod serve_host;
mod serve_identity;
pub mod standing;
pub mod store;
mod turn;
pub mod volumes;
pub mod workers;

//! The per-host agent: specs in; volumes, exports and connections made true; reports out.

pub mod capabilities;
pub mod config;
pub mod connections;
pub mod engine;
pub mod listen;
pub mod machine;
pub mod serve;
pub mod serve_host;
pub mod store;
mod turn;
pub mod volumes;
mod workers;

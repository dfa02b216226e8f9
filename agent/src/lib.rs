//! The per-host agent: specs in, volumes and exports made true, reports out.

pub mod capabilities;
pub mod config;
pub mod engine;
pub mod listen;
pub mod machine;
pub mod serve;
pub mod store;
pub mod volumes;
mod workers;

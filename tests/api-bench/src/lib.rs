//! Shared code of the programs of `cargo xtask bench api`: the client, figures, costs of processes,
//! and the large world.
//!
//! What must never happen here: a number without its conditions; a client whose own cost is taken
//! for the controller's.

pub mod client;
pub mod conditions;
pub mod cost;
pub mod figures;
pub mod fill;
pub mod plane;
pub mod postgres;
pub mod table;
pub mod world;

//! The parts that every kind of object has in common: volumes with their exports, and connections.

pub(crate) mod admission;
pub(crate) mod seen;
pub(crate) mod turn;

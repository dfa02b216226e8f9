//! The whole agent of a host that attaches volumes, in one process: the real connections, store and
//! service behind a real socket, on a world in memory that records what must never happen. Tests
//! check the world: who is logged in, which path leads where, what refuses writes; an answer alone
//! proves nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod attach;
mod audit;
mod detach;
mod faults;
mod fibre_channel;
mod input;
mod process;
mod restart;
mod rig;
mod shutdown;
mod watching;
mod whole;

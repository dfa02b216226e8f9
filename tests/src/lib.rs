//! Whole-system tests on real kernels: the demo, the scenarios, the measurements.
//!
//! What must never happen here: a proof of an absence without its control, the run that must show
//! the thing; a timing that decides whether a test passes; a scenario that leaves something
//! running.

pub mod bench;
pub mod bench_attach;
pub mod bench_node;
pub mod clients;
pub mod control;
pub mod demo;
pub mod disk;
pub mod earlier;
pub mod evidence;
pub mod fibre;
pub mod initiator;
mod leaks;
pub mod native;
pub mod packages;
pub mod papers;
mod pki;
pub mod scenarios;
mod search;
pub mod site;
pub mod slow;
pub mod tally;
pub mod trial;

//! The whole agent in one process: the real engine, store and service behind a real socket, on a
//! machine that is a behaving fake. Tests check the fake kernel's tree, who can log in, and what
//! lands on a device; an answer alone proves nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod absence;
mod adopt;
mod attach;
mod boot;
mod capabilities;
mod concurrency;
mod counts;
mod crash;
mod cut;
mod damaged;
mod discard;
mod door;
mod drift;
mod early;
mod fencing;
mod fibre_channel;
mod first_spec;
mod gone;
mod grow;
mod images;
mod input;
mod jobs;
mod join;
mod lost_tags;
mod machine_faults;
mod manage;
mod metrics;
mod port_ids;
mod portals;
mod power;
mod process;
mod receipts;
mod reservations;
mod reserve;
mod reserved;
mod revert;
mod rig;
mod secrets;
mod sessions;
mod shutdown;
mod silence;
#[cfg(feature = "faults")]
mod stale;
mod stuck;
mod switch;
mod thin;
mod tls;
mod tuning;
mod units;
mod uploads;
mod watching;
mod wipe;

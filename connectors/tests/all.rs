//! All integration tests of this crate as one program, because every further program is linked
//! separately, with everything below it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod direct;
mod fabric;
mod iscsi_chap;
mod iscsi_common;
mod iscsi_fuzz;
mod iscsi_interop;
mod iscsi_login;
mod iscsi_negotiation;
mod iscsi_pdu;
mod iscsi_states;
mod laws;
mod sessiond_common;
mod sessiond_crash;
mod sessiond_hostile;
mod sessiond_life;
mod sessiond_refused;
mod sessiond_rotate;
mod sessiond_wire;

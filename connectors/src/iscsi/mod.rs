//! iSCSI protocol of an initiator, without I/O: PDUs, text keys, negotiation, CHAP, login and
//! logout (RFC 7143). Bytes go in and bytes come out. The caller sends them, bounds the time of
//! each answer, and decides what to try next.
//!
//! What must never happen here: a login that ends well without the proof that was asked for; an
//! answer of the target that is guessed at instead of refused; a secret in an error or a `Debug`; a
//! panic, whatever a peer sends.

mod chap;
mod discovery;
mod isid;
mod login;
mod negotiate;
mod params;
mod pdu;
pub mod scsi;
mod target_address;
mod text;

pub use chap::{Algorithm, Authentication, ChapError, Credentials, decode_binary, encode_binary};
pub use discovery::discovery_request;
pub use isid::{Isid, ParseIsidError};
pub use login::{Login, LoginConfig, LoginError, LoginFailure, LoginStep, PDUS_MAX};
pub use negotiate::{Key, Negotiation, NegotiationError, TransferParameters};
pub use params::{Negotiated, params_before_login};
pub use pdu::{
    AsyncEvent, LoginResponse, LogoutOutcome, LogoutResponse, Opcode, PduError, Stage, logout_request,
    opcode, parse_async, parse_logout_response,
};
pub use target_address::{ParseTargetAddressError, TargetAddress};
pub use text::{Assembly, KEY_BYTES_MAX, TEXT_BYTES_MAX, Text, TextError};

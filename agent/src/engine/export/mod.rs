//! Exports: one volume over its transports, and passes that look at a part of an export only.
//!
//! What must never happen here: access for an initiator that the export's spec does not name.

pub(super) mod addresses;
pub(super) mod admit;
pub(super) mod fabrics;
pub(super) mod narrow;
pub(super) mod port_ids;
pub(super) mod shut_out;

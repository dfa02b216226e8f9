//! Exports: one volume over its transports, and passes that look at a part of an export only.
//!
//! What must never happen here: access for an initiator that the export's spec does not name.

pub(super) mod addresses;
pub(super) mod admit;
pub(super) mod fabrics;
pub(super) mod narrow;
pub(super) mod port_ids;
pub(super) mod shut_out;

use std::sync::Mutex;

use mooring_host::LocalAddress;

use crate::fibre_channel::Ports;

/// The memory that exports share. Its fields are private to this folder.
pub(super) struct ExportMemory {
    /// The Fibre Channel ports.
    ports: Mutex<Ports>,
    /// The relative port ids of exports.
    port_ids: Mutex<port_ids::PortIds>,
    /// The addresses of this host, as the last look saw them.
    addresses: Mutex<Vec<LocalAddress>>,
}

impl ExportMemory {
    pub(super) fn new(ports: Ports, addresses: Vec<LocalAddress>) -> Self {
        Self { ports: Mutex::new(ports), port_ids: Mutex::default(), addresses: Mutex::new(addresses) }
    }
}

//! The start before LVM has answered, and the making of many exports together.
//!
//! What must never happen here: an LV served that LVM has never shown whole.

pub(super) mod bulk;
pub(super) mod early;
mod expedite;

use std::sync::Mutex;

use crate::config::Config;

/// The memory of the start. Its fields are private to this folder.
pub(super) struct StartMemory {
    bulk: bulk::Bulk,
    /// Facts of LVs that the store is to have and does not have yet.
    unwritten: Mutex<early::Unwritten>,
}

impl StartMemory {
    pub(super) fn new(config: &Config) -> Self {
        Self { bulk: bulk::Bulk::new(config), unwritten: Mutex::default() }
    }
}

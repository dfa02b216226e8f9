//! The identities on the wire: which volume has which NAA.
//!
//! What must never happen here: two volumes with one NAA, which hosts would take for one disk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use mooring_model::{Naa, VolumeId};

use super::lock;

/// The volume of each NAA.
#[derive(Debug, Default)]
pub(super) struct Naas(Mutex<HashMap<Naa, VolumeId>>);

impl Naas {
    /// Takes an identity that the store has.
    pub(super) fn load(&self, naa: Naa, volume: VolumeId) {
        lock(&self.0).insert(naa, volume);
    }

    /// Notes the identity that follows from a volume's own id, unless another volume has it. A
    /// volume has it from its first spec on, also before it is exported.
    pub(super) fn note_own(&self, volume: VolumeId) {
        lock(&self.0).entry(Naa::of_serial(&volume.to_string())).or_insert(volume);
    }

    /// Gives a volume an identity. `Ok(false)` if the volume has it already. `Err` is the other
    /// volume that has it.
    pub(super) fn claim(&self, naa: &Naa, volume: VolumeId) -> Result<bool, VolumeId> {
        match lock(&self.0).entry(naa.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(volume);
                Ok(true)
            }
            Entry::Occupied(entry) if *entry.get() == volume => Ok(false),
            Entry::Occupied(entry) => Err(*entry.get()),
        }
    }

    /// Takes an identity back that was claimed for a change that the store did not take.
    pub(super) fn take_back(&self, naa: &Naa) {
        lock(&self.0).remove(naa);
    }

    /// The volume that has an identity. `None` if no volume has it.
    pub(super) fn volume(&self, naa: &Naa) -> Option<VolumeId> {
        lock(&self.0).get(naa).copied()
    }
}

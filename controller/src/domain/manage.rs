//! LVs that become volumes with what they hold.
//!
//! What must never happen here: a rule.

use std::collections::BTreeMap;

use mooring_model::VolumeId;

/// Which LV is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LvReference {
    /// `GROUP/LV`, or the LV's name alone.
    Name(String),
    /// LVM's identity of it.
    Uuid(String),
}

/// `POST /manageable_volumes`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManageVolume {
    /// `host@lvm`, or one of its pools, `host@lvm#pool`.
    pub host: String,
    /// The LV.
    pub reference: LvReference,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// Name or id; `None`: the default type.
    pub volume_type: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// It must be in this availability zone.
    pub zone: Option<String>,
    /// Servers may start from it.
    pub bootable: bool,
}

/// An LV in a group that a storage agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManageableVolume {
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// LVM's identity of it.
    pub uuid: String,
    /// Bytes.
    pub bytes: u64,
    /// Its blocks are of the group's thin pool.
    pub thin: bool,
    /// The volume that it is already.
    pub volume: Option<VolumeId>,
    /// Why it cannot become a volume now.
    pub unsafe_because: Option<String>,
}

impl ManageableVolume {
    /// `GROUP/LV`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

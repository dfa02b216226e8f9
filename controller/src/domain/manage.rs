//! LVs that become volumes with their contents.
//!
//! What must never happen here: a rule.

use std::collections::BTreeMap;

use mooring_model::VolumeId;

/// A reference to an LV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LvReference {
    /// `GROUP/LV`, or the LV's name alone.
    Name(String),
    /// LVM's UUID of the LV.
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
    /// A name or id; `None` for the default type.
    pub volume_type: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// The availability zone that is required, if any.
    pub zone: Option<String>,
    /// `true` if servers may start from it.
    pub bootable: bool,
}

/// An LV in a group that a storage agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManageableVolume {
    /// The volume group.
    pub group: String,
    /// The LV's name.
    pub name: String,
    /// LVM's UUID of the LV.
    pub uuid: String,
    /// The size in bytes.
    pub bytes: u64,
    /// `true` if its blocks are in the group's thin pool.
    pub thin: bool,
    /// The volume that it is already; `None` if it is none.
    pub volume: Option<VolumeId>,
    /// The reason why it cannot become a volume now; `None` if it can.
    pub unsafe_because: Option<String>,
}

impl ManageableVolume {
    /// The path `GROUP/LV`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

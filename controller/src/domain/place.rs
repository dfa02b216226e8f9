//! Places of volumes.

use mooring_model::AgentId;

/// The place of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePlace {
    /// The storage agent that serves the volume.
    pub agent: AgentId,
    /// The storage agent and pool, as `host@lvm#pool`, once the volume is placed.
    pub host: Option<String>,
    /// The availability zone.
    pub zone: String,
}

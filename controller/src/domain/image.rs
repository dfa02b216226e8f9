//! Images that volumes are copied from.
//!
//! What must never happen here: a rule.

use mooring_model::ImageSource;

/// An image in the folder of a storage node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostImage {
    /// The storage node's name in the configuration.
    pub host: String,
    /// The file and its format.
    pub image: ImageSource,
}

//! Images that volumes are copied from.
//!
//! What must never happen here: a rule.

use mooring_model::ImageSource;

/// An image in the folder of a storage node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostImage {
    /// The storage node, as the configuration calls it.
    pub host: String,
    /// The file, and what it is.
    pub image: ImageSource,
}

//! What the guest and the rig share: the frames on the virtio port between them.
//!
//! Nothing else may move in here: the guest is a small static binary, and the rig must not need its code.

pub mod wire;

//! Code shared by guest and rig: the frames on the virtio port between them.
//!
//! Nothing else may be added here: the guest is a small static binary, and the rig must not need
//! its code.

pub mod wire;

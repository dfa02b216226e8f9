//! Volumes: admission of their specs, and the parts of a pass that work on the LV.
//!
//! What must never happen here: an LV removed, made smaller or written over without a spec that
//! says so.

pub(super) mod admit;
pub(super) mod first_spec;
pub(super) mod isolate;
pub(super) mod jobs;
pub(super) mod made;
pub(super) mod preflight;
pub(super) mod revert;
pub(super) mod shrink;
pub(super) mod upload;

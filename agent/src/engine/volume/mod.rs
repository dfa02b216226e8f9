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

use std::sync::Arc;

use mooring_host::ImageServers;

use crate::config::Config;
use crate::images::Images;

/// The memory that jobs of all volumes share. Its fields are private to this folder.
pub(super) struct VolumeMemory {
    /// The speed limit of jobs.
    pace: jobs::Pace,
    /// The images that volumes are made from. `None` if no folder of images is configured.
    images: Option<Images>,
}

impl VolumeMemory {
    pub(super) fn new(config: &Config, servers: &Arc<dyn ImageServers>) -> Self {
        let folder = config.images_dir.clone();
        Self {
            pace: jobs::Pace::new(config.job_limit),
            images: folder.map(|folder| Images::new(folder, &config.run_dir, Arc::clone(servers))),
        }
    }
}

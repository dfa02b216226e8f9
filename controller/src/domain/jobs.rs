//! Long work of storage agents.
//!
//! What must never happen here: a rule.

use mooring_model::{ByteSize, JobReport};

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// As its agent says.
    pub seen: JobReport,
    /// The name of its volume, if that has one here.
    pub volume_name: Option<String>,
    /// The storage node; `None`: not for this caller to know.
    pub host: Option<String>,
}

/// What a storage agent says of its jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostJobs {
    /// Its name.
    pub host: String,
    /// What all its jobs together may write in a second; `None`: there is no limit, or nobody knows.
    pub limit: Option<ByteSize>,
    /// Why nothing is known, if so.
    pub problem: Option<String>,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Jobs {
    /// By volume.
    pub jobs: Vec<Job>,
    /// The storage agents, in the configuration's order.
    pub hosts: Vec<HostJobs>,
}

//! Long work of storage agents.
//!
//! What must never happen here: a rule.

use mooring_model::{ByteSize, JobReport};

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The agent's report.
    pub seen: JobReport,
    /// The name of the volume, if it has one here.
    pub volume_name: Option<String>,
    /// The storage node; `None` if this caller may not know it.
    pub host: Option<String>,
}

/// A storage agent's report of its jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostJobs {
    /// The agent's name.
    pub host: String,
    /// The bytes that all its jobs together may write in a second; `None` without a limit, or if
    /// unknown.
    pub limit: Option<ByteSize>,
    /// The reason why nothing is known, if so.
    pub problem: Option<String>,
}

/// All jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Jobs {
    /// The jobs, by volume.
    pub jobs: Vec<Job>,
    /// The storage agents, in the configuration's order.
    pub hosts: Vec<HostJobs>,
}

//! The loss that comes with forgetting a host.
//!
//! What must never happen here: a number that is not counted.

use std::time::SystemTime;

use mooring_model::AgentId;

/// The belongings of a host that is to be forgotten, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLoss {
    /// The host's name.
    pub name: String,
    /// The agent's id, by which it is recognised; `None` if it never said hello, and so has
    /// nothing.
    pub agent: Option<AgentId>,
    /// The time of its last message; `None` if there was none, or it is unknown.
    pub heard_at: Option<SystemTime>,
    /// `true` if the host joined with a token: that enrolment ends. `false` if the configuration
    /// names the host.
    pub enrolled: bool,
    /// The loss of each project, by its id.
    pub projects: Vec<ProjectLoss>,
    /// The number of the host's own attachments to volumes of other storage nodes. They are
    /// detached by force, each with its own receipt.
    pub attached: u32,
    /// The reason why it cannot be forgotten now; `None` if it can.
    pub obstacle: Option<String>,
}

/// The loss of one project.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectLoss {
    /// The project.
    pub project: String,
    /// The number of volumes, lost with their data.
    pub volumes: u32,
    /// The number of snapshots.
    pub snapshots: u32,
    /// The size of both, in GiB.
    pub gib: u64,
    /// The number of attachments of those volumes, whose end will never be proven.
    pub attachments: u32,
}

impl HostLoss {
    /// Adds up the losses of all projects. The project of the sum is empty.
    pub fn total(&self) -> ProjectLoss {
        self.projects.iter().fold(ProjectLoss::default(), |sum, one| ProjectLoss {
            project: String::new(),
            volumes: sum.volumes + one.volumes,
            snapshots: sum.snapshots + one.snapshots,
            gib: sum.gib + one.gib,
            attachments: sum.attachments + one.attachments,
        })
    }
}

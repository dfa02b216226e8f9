//! The loss that a host takes along that is forgotten.
//!
//! What must never happen here: a number that is not counted.

use std::time::SystemTime;

use mooring_model::AgentId;

/// The belongings of a host that is to be forgotten, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLoss {
    /// The host's name.
    pub name: String,
    /// The agent's id, under which it is known again. `None`: it never said who it is, and has nothing.
    pub agent: Option<AgentId>,
    /// When it was heard last. `None`: never, or nobody knows any more.
    pub heard_at: Option<SystemTime>,
    /// True if the host joined with a token: that enrolment ends. Else the configuration names it.
    pub enrolled: bool,
    /// The loss of each project, by its id.
    pub projects: Vec<ProjectLoss>,
    /// Attachments of the host itself to volumes of other storage nodes: those end by force, each with a receipt of its own.
    pub attached: u32,
    /// Why it is not forgotten now. `None`: nothing stands in the way.
    pub obstacle: Option<String>,
}

/// The loss of one project.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectLoss {
    /// The project.
    pub project: String,
    /// Volumes, with their data.
    pub volumes: u32,
    /// Snapshots.
    pub snapshots: u32,
    /// GiB of both.
    pub gib: u64,
    /// Attachments of those volumes, whose end will never be proven.
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

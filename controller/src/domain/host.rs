//! Enrolled agents: operators' decisions about them, and their own reports.
//!
//! What must never happen here: a rule; "no" in place of a fact that an agent of an earlier release
//! does not report.

use std::time::SystemTime;

use mooring_model::{AgentId, Iqn, Mode};

use super::Enrolment;

/// An enrolled agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The agent's name in the configuration.
    pub name: String,
    /// The address that is dialled.
    pub address: String,
    /// The agent's id, once it said hello.
    pub agent: Option<AgentId>,
    /// The host's initiator name; `None` if it does not attach.
    pub initiator: Option<Iqn>,
    /// The enrolment by which it joined; `None` for an agent of the configuration.
    pub enrolment: Option<Enrolment>,
    /// The agent's pools, if it serves volumes.
    pub pools: Vec<HostPool>,
    /// The agent's availability zone.
    pub zone: String,
    /// `true` if an operator keeps new volumes from it.
    pub disabled: bool,
    /// The operator's reason.
    pub disabled_reason: Option<String>,
    /// `true` while it is being emptied: no new volumes are placed there.
    pub drained: bool,
    /// `true` if it answers and its reports arrive.
    pub up: bool,
    /// The reason why it is not up.
    pub why_down: Option<String>,
    /// The time of its last report.
    pub last_report: Option<SystemTime>,
    /// The agent's health by its last report: does it do what its configuration demands? `None` if
    /// it does not say.
    pub health: Option<Health>,
    /// The agent's last report of its capabilities; `None` before the first one.
    pub report: Option<HostReport>,
    /// Cases for an operator: orphans (objects unknown here), objects in review, the agent's
    /// problems.
    pub problems: Vec<String>,
}

/// A level of health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthLevel {
    /// Everything works.
    Ok,
    /// Something works only in part, or will soon fail.
    Degraded,
    /// Nothing new can be done with it.
    Failed,
}

impl HealthLevel {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// The health of something, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The overall level.
    pub level: HealthLevel,
    /// The reasons, worst first.
    pub reasons: Vec<HealthReason>,
}

/// A reason for bad health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReason {
    /// A word for programs, like `module_missing`.
    pub code: String,
    /// The level of this reason.
    pub level: HealthLevel,
    /// The object concerned.
    pub object: String,
    /// The fault, and the remedy.
    pub text: String,
}

/// A pool of a storage agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPool {
    /// The volume group, or `GROUP:thin`.
    pub name: String,
    /// The size in bytes.
    pub total: u64,
    /// The free bytes.
    pub free: u64,
    /// `true` if volumes take all their space at once.
    pub thick: bool,
    /// The sum of its volumes' sizes, in bytes.
    pub provisioned: u64,
    /// The bytes that volumes may not take.
    pub reserved: Option<u64>,
    /// `true` if snapshots can be taken there.
    pub snapshots: Option<bool>,
    /// `true` if volumes can grow while they are in use.
    pub online_extend: Option<bool>,
    /// `true` if discards of hosts reach the storage below.
    pub discard: Option<bool>,
    /// The treatment of a deleted volume's blocks: `zero`, `discard`, `none`.
    pub wipe: Option<&'static str>,
    /// The pool's health.
    pub health: Option<Health>,
}

/// An agent's report of its capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostReport {
    /// The kernel's release.
    pub kernel_release: String,
    /// `true` if it can serve a volume to several hosts.
    pub multiattach: bool,
    /// The modes in which it can grant a volume.
    pub modes: Vec<Mode>,
    /// `true` if hosts can use persistent reservations on its volumes.
    pub reservations: Option<bool>,
    /// `true` if registrations outlive a power loss.
    pub reservations_kept: Option<bool>,
    /// `true` if a host with read-only access cannot change anything, whatever its commands claim.
    pub read_only_sealed: Option<bool>,
    /// The most initiators that may be granted one volume, over each transport.
    pub initiators_per_volume_max: Option<u32>,
    /// The most attachments that may share one connection to it.
    pub attachments_per_connection_max: Option<u32>,
    /// `true` if this host can attach with the disk's page cache off; `None` if it attaches
    /// nothing, or its agent is older.
    pub cache_off: Option<bool>,
    /// The online Fibre Channel ports through which it attaches.
    pub fc_initiator_ports: Vec<String>,
    /// The transports of its volumes.
    pub transports: Vec<HostTransport>,
    /// The kernel modules that it needs.
    pub modules: Vec<HostModule>,
}

/// A transport of a storage agent's volumes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostTransport {
    /// `iscsi` or `fc`.
    pub protocol: String,
    /// `true` if initiators can log in there.
    pub ready: bool,
    /// The portals, over iSCSI.
    pub portals: Vec<String>,
    /// The interfaces of those portals whose address the host has.
    pub links: Vec<PortalLink>,
    /// The ports, over Fibre Channel, with their adapters' states.
    pub ports: Vec<(String, String)>,
    /// The digests that targets offer for headers and for data, over iSCSI.
    pub digests: Option<(String, String)>,
    /// The most volumes that one initiator may be granted, over Fibre Channel.
    pub volumes_per_initiator_max: Option<u32>,
    /// The transport's health.
    pub health: Option<Health>,
}

/// The interface that a portal stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortalLink {
    /// `IP:PORT`.
    pub portal: String,
    /// The interface's name.
    pub interface: String,
    /// `true` if the interface and its link are up.
    pub up: bool,
    /// The bytes of its largest packet; `None` if unknown.
    pub mtu: Option<u32>,
}

/// A kernel module that an agent needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostModule {
    /// The module's name.
    pub name: String,
    /// The purpose, for people.
    pub needed_for: String,
    /// The module's state.
    pub state: ModuleState,
    /// The remedy; `None` if none is needed.
    pub remedy: Option<String>,
}

/// The state of a kernel module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleState {
    /// The module is in the kernel.
    Present,
    /// `modprobe` would load it.
    Loadable,
    /// The running kernel has none.
    Absent,
    /// The module is not loaded, and it is unknown if it could be.
    Unlisted,
}

impl ModuleState {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Loadable => "loadable",
            Self::Absent => "absent",
            Self::Unlisted => "unlisted",
        }
    }
}

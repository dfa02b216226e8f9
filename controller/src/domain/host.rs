//! Enrolled agents: what operators said of them, and what they say that they can do.
//!
//! What must never happen here: a rule; "no" in the place of what an agent of an earlier release does not say.

use std::time::SystemTime;

use mooring_model::{AgentId, Iqn, Mode};

use super::Enrolment;

/// An enrolled agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As the configuration calls it.
    pub name: String,
    /// How it is dialled.
    pub address: String,
    /// Its id, once it said hello.
    pub agent: Option<AgentId>,
    /// Under which name it logs in; `None` where it does not attach.
    pub initiator: Option<Iqn>,
    /// The enrolment by which it joined. `None`: the configuration names it.
    pub enrolment: Option<Enrolment>,
    /// Its pools: it serves volumes.
    pub pools: Vec<HostPool>,
    /// Its availability zone.
    pub zone: String,
    /// No new volumes are placed there: an operator said so.
    pub disabled: bool,
    /// Why.
    pub disabled_reason: Option<String>,
    /// It is being emptied: no new volumes are placed there.
    pub drained: bool,
    /// It answers, and its reports come.
    pub up: bool,
    /// Why it is not up.
    pub why_down: Option<String>,
    /// When its last report came.
    pub last_report: Option<SystemTime>,
    /// Whether it did what its configuration asks of it, by its last report. `None`: it does not say.
    pub health: Option<Health>,
    /// What it said last that it can do. `None`: nothing yet.
    pub report: Option<HostReport>,
    /// What an operator should look at: objects that nobody here knows (orphans), objects in review, its own problems.
    pub problems: Vec<String>,
}

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthLevel {
    /// It does what it should.
    Ok,
    /// It works in part, or will not for long.
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

/// How well something is, and why it is not better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// All in all.
    pub level: HealthLevel,
    /// The worst first.
    pub reasons: Vec<HealthReason>,
}

/// Why something is not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReason {
    /// A word for programs, as `module_missing`.
    pub code: String,
    /// How bad this one is.
    pub level: HealthLevel,
    /// What it is about.
    pub object: String,
    /// What is wrong, and what to do.
    pub text: String,
}

/// A pool of a storage agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPool {
    /// The volume group, or `GROUP:thin`.
    pub name: String,
    /// Bytes.
    pub total: u64,
    /// Bytes.
    pub free: u64,
    /// Volumes take all their space at once.
    pub thick: bool,
    /// Bytes of its volumes.
    pub provisioned: u64,
    /// Bytes that no volume takes.
    pub reserved: Option<u64>,
    /// Snapshots can be taken there.
    pub snapshots: Option<bool>,
    /// Volumes can grow while they are in use.
    pub online_extend: Option<bool>,
    /// Discards of hosts reach what lies below.
    pub discard: Option<bool>,
    /// What a deletion does to a volume's blocks: `zero`, `discard`, `none`.
    pub wipe: Option<&'static str>,
    /// How well it is.
    pub health: Option<Health>,
}

/// What an agent says that it can do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostReport {
    /// Its kernel.
    pub kernel_release: String,
    /// It can serve a volume to many hosts.
    pub multiattach: bool,
    /// How a volume can be granted.
    pub modes: Vec<Mode>,
    /// Hosts can reserve its volumes among each other.
    pub reservations: Option<bool>,
    /// What they register outlives a loss of its power.
    pub reservations_kept: Option<bool>,
    /// A host that may only read changes nothing, whatever it claims of its commands.
    pub read_only_sealed: Option<bool>,
    /// Initiators that one volume may be granted to, over each transport.
    pub initiators_per_volume_max: Option<u32>,
    /// Attachments that may share one connection to it.
    pub attachments_per_connection_max: Option<u32>,
    /// An attachment of this host can have the page cache of its disk off. `None`: it attaches nothing, or its agent is older.
    pub cache_off: Option<bool>,
    /// Ports through which it attaches over Fibre Channel: those that are online.
    pub fc_initiator_ports: Vec<String>,
    /// How its volumes are reached.
    pub transports: Vec<HostTransport>,
    /// The kernel modules that it needs.
    pub modules: Vec<HostModule>,
}

/// A way to reach the volumes of a storage agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostTransport {
    /// `iscsi` or `fc`.
    pub protocol: String,
    /// Somebody can log in there.
    pub ready: bool,
    /// Over iSCSI.
    pub portals: Vec<String>,
    /// The interfaces of the portals whose address the host has.
    pub links: Vec<PortalLink>,
    /// Over Fibre Channel: ports, with what their adapters say.
    pub ports: Vec<(String, String)>,
    /// What targets offer for headers and for data, over iSCSI.
    pub digests: Option<(String, String)>,
    /// Volumes that one initiator may be granted, over Fibre Channel.
    pub volumes_per_initiator_max: Option<u32>,
    /// How well it is.
    pub health: Option<Health>,
}

/// The interface that a portal stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortalLink {
    /// `IP:PORT`.
    pub portal: String,
    /// The interface's name.
    pub interface: String,
    /// The interface is up, and its link, too.
    pub up: bool,
    /// Bytes of its largest packet. `None`: it is not known.
    pub mtu: Option<u32>,
}

/// A kernel module that an agent needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostModule {
    /// Its name.
    pub name: String,
    /// For people.
    pub needed_for: String,
    /// Whether it is there.
    pub state: ModuleState,
    /// What adds it. `None`: nothing need be done.
    pub remedy: Option<String>,
}

/// Whether a kernel module is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleState {
    /// It is in the kernel.
    Present,
    /// `modprobe` would load it.
    Loadable,
    /// The running kernel has none.
    Absent,
    /// It is not loaded, and nobody knows whether it could be.
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

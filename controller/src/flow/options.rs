//! Options of a control plane: how it is opened, and how everything in it behaves.
//!
//! What must never happen here: a default that allows more than the configuration says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{ClusterId, IqnPrefix};

use super::place::Scheduler;
use crate::agents::dial::Dial;
use crate::authority::live::LiveAuthority;
use crate::clock::Clock;
use crate::domain::AgentEntry;
use crate::policy::Policies;
use crate::quota;

/// Means by which agents join: the authority that signs their certificates, and what the controller
/// shows to them.
#[derive(Debug, Clone)]
pub struct Enroller {
    /// Signs.
    pub authority: Arc<LiveAuthority>,
    /// The certificate of the API, as a PEM file. `None`: it has none.
    pub api_cert: Option<PathBuf>,
    /// The certificate that enrolled agents are shown, as a PEM file.
    pub client_cert: PathBuf,
    /// The key of that, as a PEM file.
    pub client_key: PathBuf,
    /// Where agents reach this controller: `https://HOST:PORT`. `None`: nowhere, as it is configured.
    pub url: Option<String>,
}

/// Options of a control plane, fixed when it is opened.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Holds the database. Made with mode 0700 when it is not there.
    pub state_dir: PathBuf,
    /// The agents of the configuration.
    pub agents: Vec<AgentEntry>,
    /// Means by which agents join. `None`: none can.
    pub enroller: Option<Enroller>,
    /// The cluster's id. `None`: the database's own, made with it. Another one than the database's is an error.
    pub cluster: Option<ClusterId>,
    /// Prefix of `:<volume uuid>` in target names, for names that the agents do not report.
    pub iqn_prefix: IqnPrefix,
    /// The database was restored from a backup: raises the epoch and puts every volume in review until its agents agree.
    pub restored: bool,
    /// The wall clock.
    pub clock: Clock,
    /// How agents are dialled.
    pub dial: Dial,
    /// How volumes are placed.
    pub scheduler: Scheduler,
    /// Policies that say who may do what.
    pub policies: Arc<Policies>,
    /// Callers who read CHAP secrets again, after the answer that gave them.
    pub secrets_on_get: SecretsOnGet,
    /// Limits of projects that have none of their own.
    pub quotas: BTreeMap<quota::Key, quota::Limit>,
    /// A server's own user does not take its disk away while a session is live: only the compute service does.
    pub protect_instances: bool,
    /// Hosts that the members of a project attach to natively, by project. Others need the policy `mooring:attach_native`.
    pub native_hosts: BTreeMap<String, BTreeSet<String>>,
    /// How long a detach stays announced, unless it begins.
    pub hold: Duration,
    /// Two names of hosts may log in under one name of an initiator.
    pub shared_initiators: bool,
    /// How long a line of the audit log is kept. `None`: for ever.
    pub keep_audit: Option<Duration>,
}

/// How long a line of the audit log is kept, unless the options say otherwise.
pub const KEEP_AUDIT_DEFAULT: Duration = Duration::from_hours(365 * 24);

/// How long a detach stays announced. Whoever announces one begins it within seconds; one who died holds up the others no longer.
pub const HOLD_DEFAULT: Duration = Duration::from_mins(10);

/// Callers who read CHAP secrets again. The answers that make or connect an attachment always have
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretsOnGet {
    /// Other services and admins.
    #[default]
    Service,
    /// Whoever sees the attachment.
    All,
}

impl ServiceOptions {
    /// A control plane with its database in this folder and nothing else said: no agents, everything at its default.
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            state_dir,
            agents: Vec::new(),
            enroller: None,
            cluster: None,
            iqn_prefix: IqnPrefix::default(),
            restored: false,
            clock: Clock::system(),
            dial: Dial::Network,
            scheduler: Scheduler::default(),
            policies: Arc::default(),
            secrets_on_get: SecretsOnGet::default(),
            quotas: BTreeMap::new(),
            protect_instances: true,
            native_hosts: BTreeMap::new(),
            hold: HOLD_DEFAULT,
            shared_initiators: false,
            keep_audit: Some(KEEP_AUDIT_DEFAULT),
        }
    }
}

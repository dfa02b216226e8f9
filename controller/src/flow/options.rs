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
use crate::rules::promised::Announced;

/// Means by which agents join: the authority that signs their certificates, and what the controller
/// shows to them.
#[derive(Debug, Clone)]
pub struct Enroller {
    /// The authority that signs certificates.
    pub authority: Arc<LiveAuthority>,
    /// The API's certificate, as a PEM file. `None`: it has none.
    pub api_cert: Option<PathBuf>,
    /// The certificate that the controller shows to enrolled agents, as a PEM file.
    pub client_cert: PathBuf,
    /// The key of that certificate, as a PEM file.
    pub client_key: PathBuf,
    /// The address at which agents reach this controller: `https://HOST:PORT`. `None`: no address
    /// is configured.
    pub url: Option<String>,
}

/// Options of a control plane, fixed when it is opened.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Folder of the database. Created with mode 0700 if it does not exist.
    pub state_dir: PathBuf,
    /// The agents of the configuration.
    pub agents: Vec<AgentEntry>,
    /// Means by which agents join. `None`: no agent can join.
    pub enroller: Option<Enroller>,
    /// The cluster's id. `None`: the id that the database got when it was created. An id other than
    /// the database's is an error.
    pub cluster: Option<ClusterId>,
    /// Prefix of `:<volume uuid>` in target names, for names that the agents do not report.
    pub iqn_prefix: IqnPrefix,
    /// `true`: the database was restored from a backup. Raises the epoch, and puts every volume in
    /// review until its agents agree.
    pub restored: bool,
    /// The wall clock.
    pub clock: Clock,
    /// Way to dial agents.
    pub dial: Dial,
    /// Settings of the scheduler.
    pub scheduler: Scheduler,
    /// Policies that say who may do what.
    pub policies: Arc<Policies>,
    /// Callers who can read CHAP secrets again, after the answer that gave them.
    pub secrets_on_get: SecretsOnGet,
    /// Limits of projects that have none of their own.
    pub quotas: BTreeMap<quota::Key, quota::Limit>,
    /// `true`: while a session is live, only the compute service takes a server's disk away, not
    /// the server's own user.
    pub protect_instances: bool,
    /// Hosts that the members of a project attach to natively, by project. Other hosts need the
    /// policy `mooring:attach_native`.
    pub native_hosts: BTreeMap<String, BTreeSet<String>>,
    /// Time for which a detach stays announced, unless it begins.
    pub hold: Duration,
    /// Time for which an attachment stays announced, unless it comes.
    pub reserve: Duration,
    /// `true`: two host names may log in under one initiator name.
    pub shared_initiators: bool,
    /// Time for which a line of the audit log is kept. `None`: for ever.
    pub keep_audit: Option<Duration>,
    /// Time for which records are kept of what has ended: receipts, detached attachments, lifted
    /// fences, deleted volumes. `None`: for ever.
    pub keep_records: Option<Duration>,
    /// Age at which a reserved attachment without a connector ends. `None`: at none.
    pub expire_reserved: Option<Duration>,
}

/// Default of [`ServiceOptions::keep_audit`].
pub const KEEP_AUDIT_DEFAULT: Duration = Duration::from_hours(365 * 24);

/// Default of [`ServiceOptions::keep_records`].
pub const KEEP_RECORDS_DEFAULT: Duration = Duration::from_hours(365 * 24);

/// Default of [`ServiceOptions::hold`]. A caller that announces a detach begins it within seconds;
/// one that died holds up the others no longer than this.
pub const HOLD_DEFAULT: Duration = Duration::from_mins(10);

/// Default of [`ServiceOptions::reserve`]. A server that is being made may have to wait for its
/// host and its image before its disk is attached.
pub const RESERVE_DEFAULT: Duration = Duration::from_hours(1);

/// Callers who can read CHAP secrets again. The answers that create or connect an attachment always
/// contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretsOnGet {
    /// Other services, and admins.
    #[default]
    Service,
    /// Everybody who sees the attachment.
    All,
}

impl ServiceOptions {
    /// Returns the defaults for a database in this folder, without agents.
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
            reserve: RESERVE_DEFAULT,
            shared_initiators: false,
            keep_audit: Some(KEEP_AUDIT_DEFAULT),
            keep_records: Some(KEEP_RECORDS_DEFAULT),
            expire_reserved: None,
        }
    }

    /// Time after which announcements of this kind end.
    pub(crate) const fn lifetime(&self, what: Announced) -> Duration {
        match what {
            Announced::Attachments => self.reserve,
            Announced::Detaches => self.hold,
        }
    }
}

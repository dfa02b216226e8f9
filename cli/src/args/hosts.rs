//! Arguments of `mooring host` and `mooring pool`.
//!
//! What must never happen here: a secret as an argument.

use clap::{Args, Subcommand, ValueEnum};
use mooring_model::Initiator;

/// Hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the enrolled hosts and storage nodes: whether they answer, and their pools
    #[command(after_help = "\
Examples:
  mooring host list
  mooring host list --json | jq -r '.hosts[] | select(.up | not) | .name'")]
    List,
    /// Show one host
    #[command(after_help = "\
Example:
  mooring host show storage1")]
    Show(HostArgs),
    /// Make a token with which a host may join: prints the line to type there
    #[command(after_help = "\
The token is good for this one host, once, within an hour. A new one takes its place. The controller
must have an authority: `mooring-controller init` makes one.

Examples:
  mooring host token storage1 --role storage
  mooring host token host7 --role host
  mooring host token node3 --role storage,host --json | jq -r .command")]
    Token(HostTokenArgs),
    /// End the enrolment of a host: the controller dials it no more, and its certificate is worth nothing
    #[command(after_help = "\
What the host serves and attaches goes on: take that away first, or fence it (`mooring host fence`).
It may join again with a new token.

Example:
  mooring host revoke host7")]
    Revoke(HostArgs),
    /// Give a host that joined another name; what it serves and attaches goes on
    #[command(after_help = "\
Nothing changes on the host. Pools and services are called by the new name from then on, and so is
`os-vol-host-attr:host` of its volumes (HOST@lvm#POOL). A host of the controller's configuration is
renamed there.

Example:
  mooring host rename storage1 rack4-storage1")]
    Rename(RenameArgs),
    /// Give up a host that never comes back, with its volumes: shows what would go, unless `--yes`
    #[command(after_help = "\
Its volumes and snapshots go, with their attachments; their hosts are told to let go. That nothing of
those lands any more can never be proven, and their receipts say so. Attachments of the host to other
storage nodes are cut by force, and proven there. Its enrolment ends. Should the machine come back it
is held as a stranger.

Refused while the host answers, and for 10 minutes after its last word. Nothing brings back what went.

Examples:
  mooring host forget storage3
  mooring host forget storage3 --yes
  mooring host forget storage3 --json | jq .loss.projects")]
    Forget(ForgetArgs),
    /// Place no new volumes there; what is there stays as it is
    #[command(after_help = "\
Example:
  mooring host disable storage1 --reason 'a disk is replaced'")]
    Disable(DisableArgs),
    /// Place new volumes there again
    #[command(after_help = "\
Example:
  mooring host enable storage1")]
    Enable(HostArgs),
    /// Say that a host is to be emptied: no new volumes are placed there. Nothing is moved
    #[command(after_help = "\
Example:
  mooring host drain storage1")]
    Drain(HostArgs),
    /// Say that a host is not to be emptied any more
    #[command(after_help = "\
Example:
  mooring host undrain storage1")]
    Undrain(HostArgs),
    /// Cut a host off from every volume, at all storage nodes, by force, until `unfence`
    #[command(after_help = "\
The storage nodes revoke all that the host has, whatever it does; other hosts notice nothing. One
receipt answers for all of it: exit status 0 says that nothing of the host lands any more. Until
then the command can be repeated; it also takes along what came in between. Nothing is granted to
the host before `mooring host unfence`.

HOST is an enrolled host, the host of other clients' connectors (Nova's), or an initiator's name:
an iSCSI name, or over Fibre Channel one of the host's ports. What only users say of a host is
listed as DISPUTED and not cut; --also takes it.

Examples:
  mooring host fence host7 --reason 'does not answer, fail over'
  mooring host fence host7 --also iqn.1993-08.org.debian:01:abc
  mooring host fence iqn.1993-08.org.debian:01:abc
  mooring host fence 20:00:52:54:00:14:00:0b
  mooring host fence host7 --json | jq -r .fence.proof")]
    Fence(FenceArgs),
    /// Lift a fence: the host may be given access again. What it had does not come back
    #[command(after_help = "\
Refused while a part of the fence is not proven: old writes of the host might still land.

Examples:
  mooring host unfence host7
  mooring host unfence host7 --anyway")]
    Unfence(UnfenceArgs),
    /// List the hosts that are fenced
    #[command(after_help = "\
Examples:
  mooring host fences
  mooring host fences --all")]
    Fences(FencesArgs),
}

/// A role of a host's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostRole {
    /// It serves volumes.
    Storage,
    /// It attaches them.
    Host,
}

impl HostRole {
    /// The role's word in the controller's API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Host => "host",
        }
    }
}

/// `host token`.
#[derive(Debug, Args)]
pub struct HostTokenArgs {
    /// The name that people call the host by: 1 to 64 letters, digits, -, _ and .
    pub host: String,
    /// storage: it serves volumes; host: it attaches them; both with a comma between them [default: both]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<HostRole>,
    /// The availability zone of its pools [default: nova]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}

/// One host.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Its name, or its agent's id
    pub host: String,
}

/// `host rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// The name that it has
    #[arg(value_name = "OLD")]
    pub host: String,
    /// The name that it gets: 1 to 64 letters, digits, -, _ and .
    #[arg(value_name = "NEW")]
    pub name: String,
}

/// `host forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The name of the host
    pub host: String,
    /// Do it; without, only what would go is shown
    #[arg(long)]
    pub yes: bool,
}

/// `host fence`.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// Its name, or an initiator's
    pub host: String,
    /// Why, for others
    #[arg(long)]
    pub reason: Option<String>,
    /// A name of an initiator that is this host's, too, although only its users say so; more than once for several
    #[arg(long, value_name = "INITIATOR")]
    pub also: Vec<Initiator>,
}

/// `host unfence`.
#[derive(Debug, Args)]
pub struct UnfenceArgs {
    /// As it was said to `host fence`
    pub host: String,
    /// Although not every part is proven
    #[arg(long)]
    pub anyway: bool,
}

/// `host fences`.
#[derive(Debug, Args)]
pub struct FencesArgs {
    /// With those that were lifted
    #[arg(long)]
    pub all: bool,
}

/// One host, and a reason.
#[derive(Debug, Args)]
pub struct DisableArgs {
    /// Its name, or its agent's id
    pub host: String,
    /// Why, for others
    #[arg(long)]
    pub reason: Option<String>,
}

/// Pools.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the pools as they were last reported, with what is promised of them
    #[command(after_help = "\
Examples:
  mooring pool list
  mooring pool list --json | jq -r '.pools[] | select(.capabilities.free_capacity_gb < 10) | .name'")]
    List,
}

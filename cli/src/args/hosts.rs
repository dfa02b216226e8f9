//! Arguments of `mooring host` and `mooring pool`.
//!
//! What must never happen here: a secret as an argument.

use clap::{Args, Subcommand, ValueEnum};
use mooring_model::Initiator;

/// Hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts and storage nodes: whether they answer, and their pools
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
    /// Make a token with which a host may join, and print the command to type there
    #[command(after_help = "\
The token works for this one host, once, within an hour. A new token replaces it. The controller
must have an authority: `mooring-controller init` makes one.

Examples:
  mooring host token storage1 --role storage
  mooring host token host7 --role host
  mooring host token node3 --role storage,host --json | jq -r .command")]
    Token(HostTokenArgs),
    /// End the enrolment of a host: the controller stops calling it and refuses its certificate
    #[command(after_help = "\
The host continues to serve and attach its volumes: detach them first, or fence the host
(`mooring host fence`). It may join again with a new token.

Example:
  mooring host revoke host7")]
    Revoke(HostArgs),
    /// Rename a host that joined; it serves and attaches its volumes without a break
    #[command(after_help = "\
Nothing changes on the host. Its pools and services get the new name, and so does
`os-vol-host-attr:host` of its volumes (HOST@lvm#POOL). Rename a host of the controller's
configuration there.

Example:
  mooring host rename storage1 rack4-storage1")]
    Rename(RenameArgs),
    /// Give up a host that never returns, with its volumes: only shows the loss, unless `--yes`
    #[command(after_help = "\
The host's volumes and snapshots are removed, with their attachments, and the attached hosts are
told to release them. Nothing can ever prove that no command of those still lands, and their
receipts say so. The host's own attachments at other storage nodes are revoked by force, and proven
there. Its enrolment ends. If the machine returns, it is treated as a stranger.

Refused while the host answers, and for 10 minutes after its last report. The loss is permanent.

Examples:
  mooring host forget storage3
  mooring host forget storage3 --yes
  mooring host forget storage3 --json | jq .loss.projects")]
    Forget(ForgetArgs),
    /// Stop placing new volumes on a host; existing ones stay as they are
    #[command(after_help = "\
Example:
  mooring host disable storage1 --reason 'a disk is replaced'")]
    Disable(DisableArgs),
    /// Place new volumes on a host again
    #[command(after_help = "\
Example:
  mooring host enable storage1")]
    Enable(HostArgs),
    /// Mark a host as being emptied: no new volumes are placed on it. Nothing is moved
    #[command(after_help = "\
Example:
  mooring host drain storage1")]
    Drain(HostArgs),
    /// Remove the mark that a host is being emptied
    #[command(after_help = "\
Example:
  mooring host undrain storage1")]
    Undrain(HostArgs),
    /// Fence a host off from every volume, on all storage nodes, by force, until `unfence`
    #[command(after_help = "\
The storage nodes revoke all access of the host, whatever it does; other hosts notice nothing. One
receipt covers everything: exit code 0 means that nothing of the host lands any more. Until then
the command can be repeated; a repetition also revokes what was granted in between. Nothing is
granted to the host before `mooring host unfence`.

HOST is an enrolled host, the host of other clients' connectors (Nova's), or an initiator's name:
an iSCSI name, or over Fibre Channel one of the host's ports. A name that only users claim for the
host is listed as DISPUTED and not revoked; --also includes it.

Examples:
  mooring host fence host7 --reason 'does not answer, fail over'
  mooring host fence host7 --also iqn.1993-08.org.debian:01:abc
  mooring host fence iqn.1993-08.org.debian:01:abc
  mooring host fence 20:00:52:54:00:14:00:0b
  mooring host fence host7 --json | jq -r .fence.proof")]
    Fence(FenceArgs),
    /// Lift a fence: the host may get access again. Its former access is not restored
    #[command(after_help = "\
Refused while a part of the fence is not proven: old writes of the host might still land.

Examples:
  mooring host unfence host7
  mooring host unfence host7 --anyway")]
    Unfence(UnfenceArgs),
    /// List the fenced hosts
    #[command(after_help = "\
Examples:
  mooring host fences
  mooring host fences --all")]
    Fences(FencesArgs),
}

/// A role of a host's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostRole {
    /// Serves volumes.
    Storage,
    /// Attaches volumes.
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
    /// storage: serves volumes; host: attaches volumes; for both separate them with a comma
    /// [default: both]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<HostRole>,
    /// The availability zone of the host's pools [default: nova]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}

/// One host.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// The host's name, or its agent's id
    pub host: String,
}

/// `host rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// The present name
    #[arg(value_name = "OLD")]
    pub host: String,
    /// The new name: 1 to 64 letters, digits, -, _ and .
    #[arg(value_name = "NEW")]
    pub name: String,
}

/// `host forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The name of the host
    pub host: String,
    /// Forget the host; without this only the loss is shown
    #[arg(long)]
    pub yes: bool,
}

/// `host fence`.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// The host's name, or an initiator's
    pub host: String,
    /// A reason, for other operators
    #[arg(long)]
    pub reason: Option<String>,
    /// An initiator name of this host that only users claim for it; may be given several times
    #[arg(long, value_name = "INITIATOR")]
    pub also: Vec<Initiator>,
}

/// `host unfence`.
#[derive(Debug, Args)]
pub struct UnfenceArgs {
    /// The name that was given to `host fence`
    pub host: String,
    /// Lift the fence although not every part is proven
    #[arg(long)]
    pub anyway: bool,
}

/// `host fences`.
#[derive(Debug, Args)]
pub struct FencesArgs {
    /// Show lifted fences, too
    #[arg(long)]
    pub all: bool,
}

/// One host, and a reason.
#[derive(Debug, Args)]
pub struct DisableArgs {
    /// The host's name, or its agent's id
    pub host: String,
    /// A reason, for other operators
    #[arg(long)]
    pub reason: Option<String>,
}

/// Pools.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the pools as last reported, with the space promised to volumes
    #[command(after_help = "\
Examples:
  mooring pool list
  mooring pool list --json | jq -r '.pools[] | select(.capabilities.free_capacity_gb < 10) | .name'")]
    List,
}

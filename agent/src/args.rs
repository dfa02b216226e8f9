//! The command line of `mooring-agent`, for clap. The man page is made from this.

use std::fmt;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use mooring_model::{Portal, VgName};

/// Manages this host's volumes and exports them, and attaches volumes of other hosts
///
/// Runs as root, normally under systemd (mooring-agent.service). It makes LVM logical volumes,
/// configures LIO iSCSI targets natively through configfs, and attaches volumes through
/// mooring-sessiond. Stopping or killing it drops no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-agent",
    version,
    after_help = "Examples:\n  mooring-agent --config /etc/mooring/agent.toml\n  mooring-agent adopt --plan\n  mooring-agent join https://10.0.0.5:8776 --token … --pin sha256:…\n\nTalk to it:  mooring --agent unix:/run/mooring/agent.sock volume list"
)]
pub struct Args {
    /// The configuration file
    #[arg(long, global = true, default_value = "/etc/mooring/agent.toml", env = "MOORING_AGENT_CONFIG")]
    pub config: PathBuf,
    /// Read and check the configuration with its certificates and keys, report mistakes, and do
    /// nothing else
    #[arg(long)]
    pub check: bool,
    /// The chore, instead of the daemon.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Chores beside the daemon.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Adopts exports that targetcli or Cinder's LVM driver made, without dropping a session
    ///
    /// Each keeps its names for ever: target, portal group, LUN numbers, unit serial, logical
    /// volume. The agent must be stopped for --apply (sessions go on without it), and nothing else
    /// may change these exports any more: see "Take over exports" in docs/operations.md first.
    #[command(
        after_help = "Examples:\n  mooring-agent adopt --plan\n  mooring-agent adopt --apply --only iqn.2010-10.org.openstack:volume-7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e"
    )]
    Adopt(AdoptArgs),
    /// Joins a controller: makes a key, gets a certificate for it, writes the configuration and
    /// starts the units
    ///
    /// `mooring host token NAME` prints the whole command. The pin identifies the controller; the
    /// token is sent to no other. On a terminal it asks for portals and volume groups that no
    /// option names. An existing configuration is not changed: only the certificate and its key are
    /// replaced.
    #[command(
        after_help = "Examples:\n  mooring-agent join https://10.0.0.5:8776 --token … --pin sha256:… --portal 10.0.0.1 --group vg0\n  mooring-agent join https://10.0.0.5:8776 --token … --pin sha256:… --role host"
    )]
    Join(JoinArgs),
    /// Unmounts, flushes and logs out every attached disk of this host, as mooring-release.service
    /// does at a shutdown
    ///
    /// Waits for services that still use a disk, 150 s in all. Attachments stay: a running agent
    /// attaches them again at once, and after a boot they come back.
    #[command(after_help = "What it did at the last shutdown:  journalctl -b -1 -u mooring-release")]
    ReleaseMounts,
    /// Makes a new key for the secrets in the store: the next start seals everything with it
    ///
    /// The new key becomes the first line of the file of keys. The file keeps the other keys: they
    /// open what they have sealed. The log of the next start says when the lines below the first
    /// can go.
    RotateSealingKey,
}

/// Arguments of `join`.
#[derive(clap::Args)]
pub struct JoinArgs {
    /// The controller, as https://HOST:PORT
    pub url: String,
    /// The join token, which can be used once
    #[arg(long, hide_env_values = true, env = "MOORING_JOIN_TOKEN")]
    pub token: String,
    /// The fingerprint of the controller's authority: sha256: and 64 hexadecimal digits
    #[arg(long)]
    pub pin: String,
    /// Address where the controller reaches this agent, as HOST:PORT [default: the address of this
    /// host that leads to the controller, port 7710]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Role of this machine; both unless one is named
    #[arg(long, value_delimiter = ',')]
    pub role: Vec<Role>,
    /// An address of this host where targets listen; may be given several times
    #[arg(long, value_name = "IP[:PORT]")]
    pub portal: Vec<Portal>,
    /// A volume group that may be used; may be given several times
    #[arg(long, value_name = "VG")]
    pub group: Vec<VgName>,
    /// Do not start the units
    #[arg(long)]
    pub no_start: bool,
}

impl fmt::Debug for JoinArgs {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinArgs").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Arguments of `adopt`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub struct AdoptArgs {
    /// Say for every export that Mooring did not make what would be recorded and changed, or why it
    /// cannot be adopted
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Adopt the exports
    #[arg(long, group = "what")]
    pub apply: bool,
    /// Adopt only this export: a target's name, GROUP/LV, or a volume's id. May be given several
    /// times
    #[arg(long, value_name = "IQN|GROUP/LV|ID")]
    pub only: Vec<String>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// A purpose of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Holds volumes and exports them.
    Storage,
    /// Attaches volumes.
    Host,
}

impl Role {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Host => "host",
        }
    }
}

//! The command line, as clap reads it. Every word that can be judged without an agent is judged here.
//!
//! What must never happen here: a secret as an argument (the process list shows arguments to everybody).

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use mooring_api::Address;
use mooring_model::limit::KERNEL_ANSWER_DEADLINE_MAX;
use mooring_model::{
    AttachmentId, ByteSize, ClusterId, Iqn, Mode, Portal, Provisioning, VgName, VolumeId, VolumeSpec,
};

use crate::chap::SecretSource;
use crate::select::{VolumeName, VolumeRef};

const EXIT_CODES: &str = "\
Exit codes:
  0  what was asked for is true
  1  failed
  2  usage: the request itself is wrong
  3  no such volume
  4  refused: precondition, permission, conflict
  5  accepted and durable, but not true yet at the deadline; or a receipt that is not proven
  6  the agent cannot be reached or does not answer

Every command is safe to repeat. Answers go to standard output, errors to standard error; with
--json both are JSON.

Examples:
  mooring agent show
  mooring volume create data --size 10GiB
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw
  mooring export show data
  mooring export revoke data --initiator iqn.2004-10.com.example:host1 --force
  mooring --agent https://storage1:7710 --ca ca.pem --cert me.pem --key me.key volume list";

/// Works against one storage agent: volumes, and who reaches them
#[derive(Debug, Parser)]
#[command(name = "mooring", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct Global {
    /// The agent: unix:/PATH, https://HOST:PORT or http://HOST:PORT
    #[arg(
        long,
        global = true,
        env = "MOORING_AGENT",
        hide_env_values = true,
        default_value = "unix:/run/mooring/agent.sock",
        value_name = "ADDRESS"
    )]
    pub agent: Address,
    /// Certificate of the authority that signed the agent's certificate (https)
    #[arg(long, global = true, env = "MOORING_CA", hide_env_values = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Our certificate (https)
    #[arg(long, global = true, env = "MOORING_CERT", hide_env_values = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The key of our certificate (https)
    #[arg(long, global = true, env = "MOORING_KEY", hide_env_values = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Allow http: everybody on the way reads and changes everything, CHAP secrets included
    #[arg(long, global = true)]
    pub insecure: bool,
    /// Act as this cluster, on an agent that belongs to a controller
    #[arg(long, global = true, value_name = "UUID")]
    pub cluster: Option<ClusterId>,
    /// Answer with JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait until what was asked for is true
    #[arg(
        long,
        global = true,
        default_value_t = 30,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=i64::try_from(KERNEL_ANSWER_DEADLINE_MAX.as_secs()).unwrap_or(1))
    )]
    pub timeout: u32,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create, list, show and delete volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Let hosts reach a volume over iSCSI, and stop them
    #[command(subcommand)]
    Export(ExportCommand),
    /// Say what the agent would do now, and why; changes nothing
    #[command(after_help = "\
An empty plan means that what is wanted is what is there. `blocked` lists what the agent leaves
alone, and who can help.

Examples:
  mooring plan
  mooring plan data --json")]
    Plan(PlanArgs),
    /// Look at the agent itself
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Print reports as they come: first the state of everything, then changes
    #[command(after_help = "\
Runs until it is interrupted or the agent ends the stream (exit code 6). With --json each line
is one JSON object with `at` and `kind`: volume, export, receipt, agent, synced (from there on,
changes).

Examples:
  mooring watch
  mooring watch --json | jq -c 'select(.kind == \"receipt\")'")]
    Watch,
}

/// Volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    #[command(after_help = "\
The volume is a logical volume of its full size, zeroed before anybody reaches it. LVM rounds the
size up to whole extents. To be able to repeat a create after a lost answer, choose the id
yourself: the same id with the same arguments succeeds again.

Examples:
  mooring volume create data --size 10GiB
  mooring volume create data --size 10GiB --group vg0 --id $(uuidgen)")]
    Create(CreateArgs),
    /// List volumes
    #[command(after_help = "\
Examples:
  mooring volume list
  mooring volume list --json | jq -r '.volumes[] | select(.problems != []) | .id'")]
    List,
    /// Show one volume: where it lies, who reaches it, what is wrong
    #[command(after_help = "\
Examples:
  mooring volume show data
  mooring volume show b0c1d2e3-0001-4002-8003-00000000000a --json")]
    Show(VolumeArg),
    /// Wipe a volume and delete it; its data is gone
    #[command(after_help = "\
A volume that is granted to anybody is not deleted: revoke its grants first. Deleting what is
gone already succeeds.

Examples:
  mooring volume delete data
  mooring volume delete b0c1d2e3-0001-4002-8003-00000000000a --timeout 300")]
    Delete(VolumeArg),
}

/// Exports.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Let one initiator reach a volume, read-write or read-only
    #[command(after_help = "\
Other grants of the volume stay as they are. The same command with another --mode changes the
mode of a grant; its credentials stay unless new ones are given. --portal sets where the whole
volume is reachable.

Secrets come from files or standard input, never from the command line: 12 to 255 printable ASCII
characters without blanks; one newline at the end is ignored.

Examples:
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw
  mooring export grant data --initiator iqn.2004-10.com.example:host2 --mode ro
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw \\
      --chap-user host1 --chap-secret-file /root/host1.secret
  pass show san/host1 | mooring export grant data --mode rw --portal 10.10.0.10:3260 \\
      --initiator iqn.2004-10.com.example:host1 --chap-user host1 --chap-secret-file -")]
    Grant(GrantArgs),
    /// Stop one initiator from reaching a volume, and get the receipt
    #[command(after_help = "\
Without --force an initiator that is logged in is not touched: log out on the host first. With
--force its sessions are cut. The receipt says `proven` when the kernel has let go of every
command: after that nothing of this initiator reaches the volume. `unproven` (exit code 5) names
how many commands may still land; repeat the command to see it proven. Revoking what is not
granted succeeds.

Examples:
  mooring export revoke data --initiator iqn.2004-10.com.example:host2
  mooring export revoke data --initiator iqn.2004-10.com.example:host1 --force --json")]
    Revoke(RevokeArgs),
    /// Show who reaches a volume: modes wanted and seen, live sessions, counters, receipts
    #[command(after_help = "\
Examples:
  mooring export show data
  mooring export show data --json | jq '.export.grants[] | {initiator, seen}'")]
    Show(VolumeArg),
}

/// The agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Show who the agent is, its pools and portals, and what its host lacks
    #[command(after_help = "\
Examples:
  mooring agent show
  mooring agent show --json | jq '.pools[] | {name, free_bytes}'")]
    Show,
}

/// `volume create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// A name for people; no two volumes of one agent share it
    pub name: VolumeName,
    /// The size, for example 10GiB (units B, KiB, MiB, GiB, TiB)
    #[arg(long, value_parser = volume_size, allow_hyphen_values = true)]
    pub size: ByteSize,
    /// The volume group; may be left out where the agent has exactly one
    #[arg(long, value_name = "VG")]
    pub group: Option<VgName>,
    /// The volume's id; a random one without this
    #[arg(long, value_name = "UUID")]
    pub id: Option<VolumeId>,
}

/// One volume.
#[derive(Debug, Args)]
pub struct VolumeArg {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// One volume only
    pub volume: Option<VolumeRef>,
}

/// `export grant`.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The host's iSCSI name (/etc/iscsi/initiatorname.iscsi)
    #[arg(long, value_name = "IQN")]
    pub initiator: Iqn,
    /// rw: reads and writes; ro: reads only, enforced by the target
    #[arg(long, value_name = "rw|ro")]
    pub mode: Mode,
    /// CHAP: the name with which the host proves itself
    #[arg(long, value_name = "USER", requires = "chap_secret_file")]
    pub chap_user: Option<String>,
    /// CHAP: the file with its secret, - for standard input
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_secret_file: Option<SecretSource>,
    /// Mutual CHAP: the name with which the target proves itself
    #[arg(long, value_name = "USER", requires_all = ["mutual_secret_file", "chap_user"])]
    pub mutual_user: Option<String>,
    /// Mutual CHAP: the file with its secret, - for standard input
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    pub mutual_secret_file: Option<SecretSource>,
    /// Take the grant's credentials away: its iSCSI name alone admits the host
    #[arg(long, conflicts_with = "chap_user")]
    pub no_chap: bool,
    /// Where the volume is reachable, ADDRESS or ADDRESS:PORT; may be given several times [default: as it is, at first
    /// the agent's portals]
    #[arg(long = "portal", value_name = "ADDRESS:PORT")]
    pub portals: Vec<Portal>,
    /// An attachment that this grant serves
    #[arg(long, value_name = "UUID")]
    pub attachment: Option<AttachmentId>,
}

/// `export revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The host's iSCSI name
    #[arg(long, value_name = "IQN")]
    pub initiator: Iqn,
    /// Cut the initiator's live sessions
    #[arg(long)]
    pub force: bool,
}

/// A size that a volume can have: the model's own rule, told before anybody is called.
fn volume_size(text: &str) -> Result<ByteSize, String> {
    let size = ByteSize::from_str(text).map_err(|error| error.to_string())?;
    let group = "any".parse().map_err(|error: mooring_model::NameError| error.to_string())?;
    let any = VolumeSpec { id: VolumeId::from_u128(0), group, size, provisioning: Provisioning::Thick };
    any.check().map_err(|error| error.why)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_full_grant_is_read() {
        let words = "mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw --chap-user u \
                     --chap-secret-file - --mutual-user m --mutual-secret-file /s --portal 10.0.0.1 --portal 10.0.1.1:3261 \
                     --attachment b0c1d2e3-0001-4002-8003-00000000000a --timeout 60 --json";
        let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
        assert!(cli.global.json && cli.global.timeout == 60);
        let Command::Export(ExportCommand::Grant(grant)) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(grant.volume, VolumeRef::Name("data".parse().unwrap()));
        assert_eq!(grant.mode, Mode::ReadWrite);
        assert_eq!(grant.portals, ["10.0.0.1:3260".parse().unwrap(), "10.0.1.1:3261".parse().unwrap()]);
        assert_eq!(grant.chap_secret_file, Some(SecretSource::Stdin));
    }
}

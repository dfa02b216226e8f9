//! The command line of `mooring-controller`, as clap reads it. Its man page is made from this.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mooring_systemd::paths::CONFIG_DIR;

use crate::config::PATH_DEFAULT;
use crate::rotate::Step;

/// The control plane: volumes, types and attachments as users see them, over the Block Storage API v3
///
/// Normally under systemd (mooring-controller.service), as a user of its own. It dials the agents that its configuration
/// enrols and makes them serve, attach and detach volumes. Stopping or killing it drops no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-controller",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  mooring-controller init\n  mooring-controller --config /etc/mooring/controller.toml\n  mooring-controller token --name ci --project 0123456789abcdef0123456789abcdef\n  mooring-controller rebuild --from-agents --dry-run\n\nTalk to it:  mooring host list"
)]
pub struct Cli {
    /// The chore, instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Chores.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve (the same as no command)
    Run(RunArgs),
    /// Make what a new controller needs: authority, certificates, the first admin's token, the configuration
    ///
    /// Run it once as root, on the controller's machine. It never changes or replaces a file that is there: it says which are
    /// there and makes the others, so that it may be run again. The token is printed once and kept nowhere.
    Init(InitArgs),
    /// Make a file for a second controller: what it needs of this one, sealed by a code that is printed once
    ///
    /// Run it as root on a controller with a database of PostgreSQL. The file has the authority, the keys of the database's secrets,
    /// the token file and the configuration in it. It is good for one machine and an hour; carry it there by hand, and run
    /// `mooring-controller init --join FILE`.
    Share(ShareArgs),
    /// Make a token: print it once, and the block for the token file
    Token(TokenArgs),
    /// After a total loss: fill an empty database with what the agents keep
    ///
    /// The database is lost, and there is no backup. The agents go on as they are; each keeps what it was told, and beside it
    /// what a controller needs. This asks every agent of the configuration and writes what they keep to an EMPTY database. No
    /// session is cut, no grant is lost, and none is made. No controller may run meanwhile. With a backup, however old, restore
    /// that and start with --restored: it knows more.
    Rebuild(RebuildArgs),
    /// Copy the database, and the keys of its secrets, while the controller works
    ///
    /// The copy is what the database was at one moment. It is written whole or not at all, to a file that is not there yet, and looked
    /// through. Its secrets stay sealed: keep the keys apart from it.
    Backup(BackupArgs),
    /// Put a backup in the place of the database: no controller may run
    ///
    /// The backup is looked through first, and the database that is there is kept under another name. The next start puts every
    /// volume in review until its storage agent was heard: nothing that was granted, revoked or deleted after the backup is undone
    /// by it. No session is cut.
    Restore(RestoreArgs),
    /// Make a new key for the secrets in the database: the next start seals everything with it
    ///
    /// The new key becomes the first line of the file of keys, which keeps the others: they open what they have sealed. The log of
    /// the next start says when the lines below the first can go. Controllers that share a database do it by hand, one after the
    /// other: see "Sealed secrets" in docs/operations.md.
    RotateSealingKey(RotateArgs),
    /// Put a new authority in the place of the old one, without downtime: begin, switch, finish
    ///
    /// Run each step as root, on the machine of each controller, while they serve. `begin` makes a new authority, which controllers and
    /// agents trust beside the old one. `switch` has it sign, once everybody trusts it: all certificates are renewed by it. `finish` drops the
    /// old one, once nobody has a certificate of it. A step that would shut somebody out is refused, and names them. A step that was
    /// interrupted is run again.
    RotateAuthority(RotateAuthorityArgs),
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
    /// Read and check the configuration, the token file, the policies, certificates and keys, say what is wrong, and do
    /// nothing else
    #[arg(long)]
    pub check: bool,
    /// Ask nobody who they are: everybody is an admin. Refused unless every listener is loopback
    #[arg(long)]
    pub no_auth: bool,
    /// With --no-auth: also where listeners are not loopback. Everybody who reaches them is an admin
    #[arg(long, requires = "no_auth")]
    pub no_auth_on_networks: bool,
    /// The database was restored from a backup: what it wishes is held until it agrees with the agents or is confirmed
    #[arg(long)]
    pub restored: bool,
}

/// `init`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller init\n  mooring-controller init --name storage.example.org --name 10.0.0.5\n  mooring-controller init --join /root/second.share"
)]
pub struct InitArgs {
    /// A name or an address by which clients and agents reach this controller; may be given several times. The first one
    /// stands in the links of answers and in the commands of `mooring host token` [default: this machine's addresses and name]
    #[arg(long, value_name = "NAME|IP")]
    pub name: Vec<String>,
    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIR)]
    pub folder: PathBuf,
    /// Become another controller on the PostgreSQL database of one that is there: the file that `mooring-controller share` made on it
    #[arg(long, value_name = "FILE")]
    pub join: Option<PathBuf>,
    /// The code that was printed with that file [default: asked for]
    #[arg(long, env = "MOORING_SHARE_CODE", hide_env_values = true, requires = "join")]
    pub code: Option<String>,
}

/// `share`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mooring-controller share /root/second.share")]
pub struct ShareArgs {
    /// The file that is made. It must not be there
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Whose token it is; unique in the token file
    #[arg(long)]
    pub name: String,
    /// The project that it acts for: letters, digits, - and _ (usually 32 hexadecimal digits)
    #[arg(long)]
    pub project: String,
    /// The user that volumes are recorded under [default: the name]
    #[arg(long)]
    pub user: Option<String>,
    /// What it may be, by the policies; may be given several times [default: member]
    #[arg(long)]
    pub role: Vec<String>,
    /// The same as --role admin: may see and change everything
    #[arg(long)]
    pub admin: bool,
}

/// `backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller backup /var/backups/mooring-$(date +%F).db\n  mooring-controller backup /mnt/a/mooring.db --keys /mnt/b/mooring.key\n\nIn a shell, as root or as the controller's user. What else a backup needs: /etc/mooring (the authority, the configuration)"
)]
pub struct BackupArgs {
    /// The file to write; it must not be there yet
    pub file: PathBuf,
    /// Copy the keys of the secrets to this file. Where there is one of an earlier backup, keys that it lacks are added to it
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The configuration file: it says where the database and the keys are
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// `restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  systemctl stop mooring-controller\n  mooring-controller restore /var/backups/mooring-2026-11-27.db\n  systemctl start mooring-controller\n\nOn a new machine, with the copy of /etc/mooring in its place:\n  mooring-controller restore /mnt/a/mooring.db --keys /mnt/b/mooring.key"
)]
pub struct RestoreArgs {
    /// The backup
    pub file: PathBuf,
    /// The copy of the keys, where the file of keys that is there lacks some: they are added to it
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The configuration file: it says where the database and the keys are
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// `rotate-sealing-key`.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The configuration file: it says where the keys are
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// `rotate-authority`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller rotate-authority begin\n  mooring-controller rotate-authority show\n  mooring-controller rotate-authority switch\n  mooring-controller rotate-authority finish"
)]
pub struct RotateAuthorityArgs {
    /// The step
    #[arg(value_enum)]
    pub step: Step,
    /// The configuration file: it says where the authority and the database are
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// `rebuild`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller rebuild --from-agents --dry-run\n  mooring-controller rebuild --from-agents --without storage7\n\nRun it as the controller's user:  sudo -u mooring-controller mooring-controller rebuild --from-agents"
)]
pub struct RebuildArgs {
    /// From what the agents keep: the only source there is
    #[arg(long, required = true)]
    pub from_agents: bool,
    /// The configuration file: its agents are asked, its database is filled
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
    /// Do not ask this agent, which is gone for good: what it keeps is left out. May be given several times
    #[arg(long, value_name = "AGENT")]
    pub without: Vec<String>,
    /// Say what would be done, write nothing
    #[arg(long)]
    pub dry_run: bool,
}

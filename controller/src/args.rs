//! The command line of `mooring-controller`, as clap reads it. The man page is made from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mooring_systemd::paths::CONFIG_DIR;

use crate::config::PATH_DEFAULT;
use crate::rotate::Step;

/// The control plane: volumes, types and attachments for users, over the Block Storage API v3
///
/// Normally runs under systemd (mooring-controller.service), as its own user. It dials the agents
/// that its configuration enrols, and makes them serve, attach and detach volumes. Stopping or
/// killing it ends no session and no I/O.
#[derive(Debug, Parser)]
#[command(
    name = "mooring-controller",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  mooring-controller init\n  mooring-controller --config /etc/mooring/controller.toml\n  mooring-controller token --name ci --project 0123456789abcdef0123456789abcdef\n  mooring-controller rebuild --from-agents --dry-run\n\nTalk to it:  mooring host list"
)]
pub struct Cli {
    /// The chore; `None` to serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The options for serving.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Chores.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve (like no command)
    Run(RunArgs),
    /// Make the files of a new controller: authority, certificates, the first admin's token,
    /// configuration
    ///
    /// Run it once as root, on the controller's machine. It never changes or replaces an existing
    /// file: it names those and makes the others, so that it can be repeated. The token is printed
    /// once and stored nowhere.
    Init(InitArgs),
    /// Make a file with all that a second controller needs, sealed by a code that is printed once
    ///
    /// Run it as root on a controller with a PostgreSQL database. The file holds the authority, the
    /// keys of the database's secrets, the token file and the configuration. It is good for one
    /// machine and for an hour. Carry it there by hand, and run
    /// `mooring-controller init --join FILE`.
    Share(ShareArgs),
    /// Make a token: print it once, with the block for the token file
    Token(TokenArgs),
    /// After a total loss: fill an empty database from the data that the agents keep
    ///
    /// For a lost database without a backup. The agents go on as they are: each keeps its specs,
    /// and with them the data that a controller needs. This command asks every agent of the
    /// configuration, and writes the answers to an EMPTY database. No session is cut, and no grant
    /// is lost or made. No controller may run meanwhile. If there is a backup, however old, restore
    /// it and start with --restored: it knows more.
    Rebuild(RebuildArgs),
    /// Copy the database, and the keys of its secrets, while the controller works
    ///
    /// The copy shows the database at one moment. It is written completely or not at all, to a new
    /// file, and checked. Its secrets stay sealed: keep the keys apart from it.
    Backup(BackupArgs),
    /// Replace the database by a backup: no controller may run
    ///
    /// The backup is checked first, and the present database is kept under another name. The next
    /// start puts every volume in review until its storage agent has reported: nothing that was
    /// granted, revoked or deleted after the backup is undone by it. It ends no session.
    Restore(RestoreArgs),
    /// Make a new key for the secrets in the database: the next start seals everything with it
    ///
    /// The new key becomes the first line of the file of keys. The other keys stay: they open what
    /// they have sealed. The log of the next start says when the other lines can be deleted.
    /// Controllers that share a database do this by hand, one after the other: see "Sealed secrets"
    /// in docs/operations.md.
    RotateSealingKey(RotateArgs),
    /// Replace the authority without downtime: begin, switch, finish
    ///
    /// Run each step as root, on the machine of each controller, while they serve. `begin` makes a
    /// new authority, which controllers and agents trust beside the old one. `switch` lets it sign,
    /// once everybody trusts it: it renews all certificates. `finish` drops the old one, once
    /// nobody has a certificate of it. A step that would shut somebody out is refused, and names
    /// them. An interrupted step can be repeated.
    RotateAuthority(RotateAuthorityArgs),
}

/// Options of `run`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct RunArgs {
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
    /// Only check the configuration, the token file, the policies, certificates and keys, and
    /// report errors
    #[arg(long)]
    pub check: bool,
    /// Authenticate no caller: everybody is an admin. Refused unless every listener is loopback
    #[arg(long)]
    pub no_auth: bool,
    /// With --no-auth: also allow listeners that are not loopback. Everybody who reaches them is an
    /// admin
    #[arg(long, requires = "no_auth")]
    pub no_auth_on_networks: bool,
    /// The database was restored from a backup: hold its specs until agents agree or an operator
    /// confirms
    #[arg(long)]
    pub restored: bool,
}

/// Options of `init`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller init\n  mooring-controller init --name storage.example.org --name 10.0.0.5\n  mooring-controller init --join /root/second.share"
)]
pub struct InitArgs {
    /// A name or an address at which clients and agents reach this controller; may be repeated. The
    /// first one stands in links of answers and in the commands of `mooring host token` [default:
    /// this machine's addresses and name]
    #[arg(long, value_name = "NAME|IP")]
    pub name: Vec<String>,
    /// The folder of the files
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIR)]
    pub folder: PathBuf,
    /// Become another controller on the PostgreSQL database of an existing one, with the file of
    /// its `mooring-controller share`
    #[arg(long, value_name = "FILE")]
    pub join: Option<PathBuf>,
    /// The code that was printed with that file [default: asked for]
    #[arg(long, env = "MOORING_SHARE_CODE", hide_env_values = true, requires = "join")]
    pub code: Option<String>,
}

/// Options of `share`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mooring-controller share /root/second.share")]
pub struct ShareArgs {
    /// The file to make; it must not exist
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The configuration file
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// Options of `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The name of the token; unique in the token file
    #[arg(long)]
    pub name: String,
    /// The project of the token: letters, digits, - and _ (usually 32 hexadecimal digits)
    #[arg(long)]
    pub project: String,
    /// The user who owns volumes made with it [default: the name]
    #[arg(long)]
    pub user: Option<String>,
    /// A role, as policies name it; may be repeated [default: member]
    #[arg(long)]
    pub role: Vec<String>,
    /// Short for --role admin: may see and change everything
    #[arg(long)]
    pub admin: bool,
}

/// Options of `backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller backup /var/backups/mooring-$(date +%F).db\n  mooring-controller backup /mnt/a/mooring.db --keys /mnt/b/mooring.key\n\nIn a shell, as root or as the controller's user. What else a backup needs: /etc/mooring (the authority, the configuration)"
)]
pub struct BackupArgs {
    /// The file to write; it must not exist
    pub file: PathBuf,
    /// Copy the keys of the secrets to this file. Missing keys are added to an existing file
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The configuration file, which names the database and the keys
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// Options of `restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  systemctl stop mooring-controller\n  mooring-controller restore /var/backups/mooring-2026-11-27.db\n  systemctl start mooring-controller\n\nOn a new machine, with the copy of /etc/mooring in its place:\n  mooring-controller restore /mnt/a/mooring.db --keys /mnt/b/mooring.key"
)]
pub struct RestoreArgs {
    /// The backup
    pub file: PathBuf,
    /// The copy of the keys; those that the present file of keys lacks are added to it
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The configuration file, which names the database and the keys
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// Options of `rotate-sealing-key`.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The configuration file, which names the keys
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// Options of `rotate-authority`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller rotate-authority begin\n  mooring-controller rotate-authority show\n  mooring-controller rotate-authority switch\n  mooring-controller rotate-authority finish\n  mooring-controller rotate-authority finish --without controller2"
)]
pub struct RotateAuthorityArgs {
    /// The step
    #[arg(value_enum)]
    pub step: Step,
    /// Do not wait for this controller, which is off and never comes back: its machine's name or
    /// its id. May be repeated. Only for `switch` and `finish`
    #[arg(long, value_name = "NAME")]
    pub without: Vec<String>,
    /// The configuration file, which names the authority and the database
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
}

/// Options of `rebuild`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mooring-controller rebuild --from-agents --dry-run\n  mooring-controller rebuild --from-agents --without storage7\n\nRun it as the controller's user:  sudo -u mooring-controller mooring-controller rebuild --from-agents"
)]
pub struct RebuildArgs {
    /// Rebuild from the agents' data: the only source there is
    #[arg(long, required = true)]
    pub from_agents: bool,
    /// The configuration file, which names the agents and the database
    #[arg(long, default_value = PATH_DEFAULT, env = "MOORING_CONTROLLER_CONFIG")]
    pub config: PathBuf,
    /// Leave out this agent, which is gone for good; may be repeated
    #[arg(long, value_name = "AGENT")]
    pub without: Vec<String>,
    /// Say what would be done, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

//! Arguments of the controller's own commands: types, quotas, and what operators do to volumes.

use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args, Subcommand};

use super::{ExtraSpec, TypeCreateArgs};
use crate::volume_ref::VolumeRef;

/// Volume types.
#[derive(Debug, Subcommand)]
pub enum TypeCommand {
    /// Create a volume type
    #[command(after_help = "\
A type says what its volumes may do and where they are placed. Repeating the command with the same
arguments succeeds. With storage_protocol=FC its volumes are placed on storage nodes that serve
Fibre Channel, and are reached only over that; without it, over iSCSI where a host can.

Extra specs that begin with mooring: tune the iSCSI sessions of its volumes: header_digest and
data_digest (none, crc32c, or crc32c,none), queue_depth (1 to 512 commands), max_burst, first_burst
and max_recv_segment (512 to 16777215 bytes), immediate_data and initial_r2t ('<is> True' or '<is>
False'), max_outstanding_r2t (1 to 65535). The kernel decides what a type does not set.

Examples:
  mooring type create plain
  mooring type create shared --multiattach --description 'for clusters'
  mooring type create fast --spec media=nvme --spec tier=1
  mooring type create checked --spec mooring:data_digest=crc32c --spec mooring:queue_depth=128
  mooring type create fc --multiattach --spec storage_protocol=FC")]
    Create(TypeCreateArgs),
    /// List volume types
    #[command(after_help = "\
Examples:
  mooring type list
  mooring type list --json | jq -r '.types[] | select(.multiattach) | .name'")]
    List,
    /// Show one volume type
    #[command(after_help = "\
Examples:
  mooring type show shared
  mooring type show shared --json | jq .type.extra_specs")]
    Show(TypeArg),
    /// Change a type: its name, description, extra specs or visibility
    #[command(after_help = "\
Extra specs change only while no volume has the type.

Examples:
  mooring type set fast --spec media=nvme --description 'for databases'
  mooring type set fast --private")]
    Set(TypeSetArgs),
    /// Remove extra specs from a type
    #[command(after_help = "\
Examples:
  mooring type unset fast media tier")]
    Unset(TypeUnsetArgs),
    /// Show or change which projects may use a private type
    #[command(after_help = "\
Examples:
  mooring type access fast
  mooring type access fast --add 0123456789abcdef0123456789abcdef")]
    Access(TypeAccessArgs),
    /// Delete a type that no volume has
    #[command(after_help = "\
Examples:
  mooring type delete fast")]
    Delete(TypeArg),
}

/// Limits of projects.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show the limits of a project, and its use
    #[command(after_help = "\
-1 means no limit.

Examples:
  mooring quota show 0123456789abcdef0123456789abcdef
  mooring quota show acme --json | jq '.quotas[] | select(.key == \"volumes\")'")]
    Show(QuotaArg),
    /// Set limits of a project
    #[command(after_help = "\
A limit is a whole number, or -1 for none; it cannot be lower than the project's use. A key that
ends in a type's name counts only volumes of that type.

Examples:
  mooring quota set acme volumes=50 gigabytes=5000
  mooring quota set acme volumes_shared=4 per_volume_gigabytes=-1")]
    Set(QuotaSetArgs),
    /// Reset the limits of a project to the defaults
    #[command(after_help = "\
Examples:
  mooring quota reset acme")]
    Reset(QuotaArg),
}

/// One type.
#[derive(Debug, Args)]
pub struct TypeArg {
    /// The type, by name or id
    #[arg(id = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: String,
}

/// `type set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").multiple(true).required(true)
    .args(["name", "description", "specs", "public", "private"]))]
pub struct TypeSetArgs {
    /// The type, by name or id
    #[arg(id = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: String,
    /// The new name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// A description for people
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// An extra spec; may be given several times
    #[arg(long = "spec", value_name = "KEY=VALUE")]
    pub specs: Vec<ExtraSpec>,
    /// Show the type to all projects
    #[arg(long, conflicts_with = "private")]
    pub public: bool,
    /// Show the type only to projects with access
    #[arg(long)]
    pub private: bool,
}

/// `type unset`.
#[derive(Debug, Args)]
pub struct TypeUnsetArgs {
    /// The type, by name or id
    #[arg(id = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: String,
    /// Keys of extra specs
    #[arg(value_name = "KEY", required = true, value_parser = NonEmptyStringValueParser::new())]
    pub keys: Vec<String>,
}

/// `type access`.
#[derive(Debug, Args)]
pub struct TypeAccessArgs {
    /// The type, by name or id
    #[arg(id = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: String,
    /// A project that may use the type from now on; may be given several times
    #[arg(long, value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
    pub add: Vec<String>,
    /// A project that may no longer use the type; may be given several times
    #[arg(long, value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
    pub remove: Vec<String>,
}

/// `quota show` and `quota reset`.
#[derive(Debug, Args)]
pub struct QuotaArg {
    /// The project's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub project: String,
}

/// `quota set`.
#[derive(Debug, Args)]
pub struct QuotaSetArgs {
    /// The project's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub project: String,
    /// A limit, for example volumes=50; may be given several times
    #[arg(value_name = "KEY=LIMIT", required = true)]
    pub limits: Vec<QuotaLimit>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaLimit {
    /// The resource that is limited.
    pub key: String,
    /// The most that is allowed; -1: no limit.
    pub limit: i64,
}

impl FromStr for QuotaLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, limit) =
            text.rsplit_once('=').filter(|(key, _)| !key.is_empty()).ok_or("want KEY=LIMIT")?;
        let limit = limit.parse().ok().filter(|limit| (-1..=0x7fff_ffff).contains(limit));
        let limit = limit.ok_or("a limit is -1 (none) or a whole number up to 2147483647")?;
        Ok(Self { key: key.to_owned(), limit })
    }
}

/// `volume retype`.
#[derive(Debug, Args)]
pub struct RetypeArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The new type, by name or id
    #[arg(id = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: String,
}

/// `volume reset-status`.
#[derive(Debug, Args)]
pub struct ResetStatusArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// error, or the status that follows from its attachments: available, in-use
    #[arg(value_parser = PossibleValuesParser::new(["error", "available", "in-use"]))]
    pub status: String,
}

/// `volume set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").multiple(true).required(true).args(["bootable", "readonly"]))]
pub struct VolumeSetArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Let servers boot from the volume
    #[arg(long, value_name = "true|false")]
    pub bootable: Option<bool>,
    /// Make attachments read-only by default; changes only while the volume is available
    #[arg(long, value_name = "true|false")]
    pub readonly: Option<bool>,
}

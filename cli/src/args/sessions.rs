//! Arguments of `mooring session`.
//!
//! What must never happen here: a secret as an argument.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use crate::volume_ref::VolumeRef;

/// Sessions.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the sessions of attachments as their targets report them: of one volume, of one host,
    /// or all
    #[command(after_help = "\
STATE is MISSING where an attachment should be logged in and is not. SINCE is when the storage agent
first saw the session, and LAST ACTIVITY when it last saw commands: it looks every second, with
1,000 volumes about twice a minute. Of several sessions of one host on one volume the kernel shows
the newest. With --agent one storage node answers, which knows no hosts.

Examples:
  mooring session list
  mooring session list --volume data --host host1
  mooring --agent unix:/run/mooring/agent.sock session list
  mooring session list --json | jq -r '.sessions[] | select(.missing) | .host'")]
    List(SessionListArgs),
}

/// `session list`.
#[derive(Debug, Args)]
pub struct SessionListArgs {
    /// Only sessions of this volume: its id or its name
    #[arg(long, value_name = "VOLUME")]
    pub volume: Option<VolumeRef>,
    /// Only sessions of this host
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub host: Option<String>,
}

//! Arguments of `mooring job`.
//!
//! What must never happen here: a limit at which a job stands still.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use mooring_model::ByteSize;

use crate::volume_ref::VolumeRef;

/// Long work of storage nodes.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the work at the storage nodes: progress, rate and limits
    #[command(after_help = "\
A job is long work on the blocks of one volume: `zero` before a new volume is handed out, `grow`
before an extended one is, `wipe` and `discard` before a deleted one is gone. A job follows the
volume's spec and ends with it: to cancel a zeroing, delete its volume (--force). After a crash, or
a restart of the agent, it continues near where it was: RESUMED shows how much that saved.

Examples:
  mooring job list
  mooring --agent unix:/run/mooring/agent.sock job list
  mooring job list --json | jq '.jobs[] | {volume_name, percent, seconds_left}'")]
    List,
    /// Show the job of one volume
    #[command(after_help = "\
Exit code 3: the volume has no job.

Examples:
  mooring job show data")]
    Show(JobShowArgs),
    /// Limit the bytes per second that all jobs of a storage node write together
    #[command(after_help = "\
The limit holds at once, also for running jobs, until that agent is restarted; the permanent limit
is job_limit in its configuration. Discards write nothing, and are not limited. With --agent, leave
out --host.

Examples:
  mooring job throttle 100MiB --host storage1
  mooring job throttle none --host storage1
  mooring --agent unix:/run/mooring/agent.sock job throttle 50MiB")]
    Throttle(JobThrottleArgs),
}

/// `job show`.
#[derive(Debug, Args)]
pub struct JobShowArgs {
    /// The volume: its id, or its name where that is unique
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeRef,
}

/// `job throttle`.
#[derive(Debug, Args)]
pub struct JobThrottleArgs {
    /// Bytes per second, at least 1MiB, or `none`
    #[arg(value_name = "SIZE", value_parser = limit)]
    pub limit: JobLimit,
    /// The storage node
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub host: Option<String>,
}

/// Bytes per second; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimit(pub Option<ByteSize>);

/// The least limit: agents refuse a lower one.
const LIMIT_MIN: ByteSize = ByteSize(1 << 20);

fn limit(text: &str) -> Result<JobLimit, String> {
    if text == "none" {
        return Ok(JobLimit(None));
    }
    let size: ByteSize = text.parse().map_err(|error| format!("{error}, or none"))?;
    if size < LIMIT_MIN {
        return Err(format!("{size} a second is too little: want {LIMIT_MIN} or more, or none"));
    }
    Ok(JobLimit(Some(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_or_none() {
        assert_eq!(limit("none"), Ok(JobLimit(None)));
        assert_eq!(limit("100MiB"), Ok(JobLimit(Some(ByteSize(100 << 20)))));
        for wrong in ["0", "1023KiB", "fast", ""] {
            assert!(limit(wrong).is_err_and(|why| why.contains("none")), "{wrong:?}");
        }
    }
}

//! Arguments of `mooring audit`.
//!
//! What must never happen here: a time that is misread as another one.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::{SignedDuration, Timestamp};

/// `audit`.
#[derive(Debug, Args)]
#[command(after_help = "\
The log has one line for each call of either API that changes something, also if it was refused:
the user, the origin, the operation, the objects and the status. Reads have no line. STATUS 401: no
user was authenticated, and none is shown. FROM is the other end of the connection: behind a proxy,
the proxy. The request id is the one that the caller got (x-openstack-request-id) and that the
controller's journal names.

Times are RFC 3339 (2026-11-18T11:06:40Z) or an age (30s, 15m, 2h, 7d). Only admins may read the log
(policy mooring:audit). Lines are kept for a year unless the controller's configuration says
otherwise.

Examples:
  mooring audit
  mooring audit --since 2h --user nova
  mooring audit --object b0c1d2e3-0001-4002-8003-0000000000aa
  mooring audit --since 2026-11-18T00:00:00Z --until 2026-11-19T00:00:00Z --limit 5000 --json
  mooring audit --since 1d --json | jq -r '.audit[] | select(.status == 403) | .user_id'")]
pub struct AuditArgs {
    /// Only calls at or after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since: Option<Timestamp>,
    /// Only calls before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub until: Option<Timestamp>,
    /// Only calls of this user, as named in the log
    #[arg(long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    pub user: Option<String>,
    /// Only calls about this object: the id of a volume, snapshot, attachment, type or message, or
    /// the name of a host or project
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub object: Option<String>,
    /// The most lines to show, newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

fn time(text: &str) -> Result<Timestamp, String> {
    at(text, Timestamp::now())
}

/// Parses a time, or an age before `now`.
fn at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let wrong = || "want a time as 2026-11-18T11:06:40Z, or how long ago: 30s, 15m, 2h, 7d".to_owned();
    let split = text.len().checked_sub(1).and_then(|end| text.split_at_checked(end));
    let (number, unit) = split.ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    now.checked_sub(SignedDuration::from_secs(i64::from(number) * seconds)).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rfc_3339_or_how_long_ago() {
        let now: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let is = |text: &str, want: &str| assert_eq!(at(text, now).unwrap(), want.parse().unwrap(), "{text}");
        is("2026-11-18T11:06:40Z", "2026-11-18T11:06:40Z");
        is("2026-11-18T11:06:40+01:00", "2026-11-18T10:06:40Z");
        is("0s", "2026-11-18T12:00:00Z");
        is("90m", "2026-11-18T10:30:00Z");
        is("7d", "2026-11-11T12:00:00Z");
        for wrong in ["", "h", "2", "-2h", "2w", "yesterday", "2026-11-18", "4294967295d", "1é"] {
            assert!(at(wrong, now).is_err(), "{wrong}");
        }
    }
}

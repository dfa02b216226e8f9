//! `mooring audit`: the caller, origin, operation, objects and answer of each call.
//!
//! What must never happen here: a line left out without a word.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::args::AuditArgs;
use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::Kept;
use crate::error::Failure;
use crate::output::Reply;
use crate::table::table;
use crate::text::rfc3339;

const PATH: [&str; 3] = ["mooring", "v1", "audit"];

/// Most lines in one answer of a controller.
const PAGE_MAX: u32 = 1_000;

/// A line of the audit log.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LineRecord {
    pub seq: u64,
    #[serde(default)]
    pub at: Option<String>,
    #[serde(default)]
    pub request_id: String,
    /// `null`: nobody was authenticated.
    #[serde(default)]
    pub user_id: Option<String>,
    #[serde(default)]
    pub project_id: Option<String>,
    #[serde(default)]
    pub from: Option<String>,
    #[serde(default)]
    pub method: String,
    /// `null`: the API has no such operation.
    #[serde(default)]
    pub operation: Option<String>,
    #[serde(default)]
    pub action: Option<String>,
    #[serde(default)]
    pub objects: Vec<ObjectRecord>,
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub problem: Option<String>,
}

/// An object of a line.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ObjectRecord {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub id: String,
}

#[derive(Deserialize)]
struct Page {
    audit: Vec<Kept<LineRecord>>,
}

/// `audit`.
#[derive(Debug, Serialize)]
pub(crate) struct Lines {
    /// The lines, newest first.
    pub audit: Vec<Kept<LineRecord>>,
}

/// `audit`: fetches as many lines as requested, page by page.
pub(crate) async fn list(client: &Client, args: &AuditArgs) -> Result<Reply<Lines>, Failure> {
    let mut audit: Vec<Kept<LineRecord>> = Vec::new();
    let mut left = args.limit;
    while left > 0 {
        let wanted = left.min(PAGE_MAX);
        let mut call = Call::get("the audit log", &PATH).query("limit", &wanted);
        for (key, time) in [("since", args.since), ("until", args.until)] {
            if let Some(time) = time {
                call = call.query(key, &rfc3339(time));
            }
        }
        for (key, text) in [("user", &args.user), ("object", &args.object)] {
            if let Some(text) = text {
                call = call.query(key, text);
            }
        }
        if let Some(last) = audit.last() {
            call = call.query("marker", &last.seq);
        }
        let page = client.read::<Page>(call).await?.audit;
        let got = u32::try_from(page.len()).unwrap_or(u32::MAX);
        audit.extend(page);
        left = left.saturating_sub(got);
        if got < wanted {
            break;
        }
    }
    Ok(Reply::ok(Lines { audit }))
}

impl LineRecord {
    /// The operation with its action, or the method if the API has no such operation.
    fn what(&self) -> String {
        let operation = self.operation.as_ref().unwrap_or(&self.method);
        match &self.action {
            Some(action) => format!("{operation} {action}"),
            None => operation.clone(),
        }
    }

    fn about(&self) -> String {
        let objects = self.objects.iter().map(|object| format!("{} {}", object.kind, object.id));
        objects.collect::<Vec<_>>().join(", ")
    }

    fn answer(&self) -> String {
        match &self.problem {
            Some(problem) => format!("{} {problem}", self.status),
            None => self.status.to_string(),
        }
    }
}

impl Display for Lines {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.audit.is_empty() {
            return f.write_str("no such call is recorded");
        }
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let row = |line: &Kept<LineRecord>| {
            [
                or_none(&line.at),
                or_none(&line.user_id),
                or_none(&line.project_id),
                or_none(&line.from),
                line.what(),
                line.about(),
                line.answer(),
                line.request_id.clone(),
            ]
        };
        let heads = ["AT", "USER", "PROJECT", "FROM", "OPERATION", "OBJECTS", "STATUS", "REQUEST"];
        f.write_str(&table(heads, self.audit.iter().map(row)))
    }
}

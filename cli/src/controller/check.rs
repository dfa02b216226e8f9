//! `mooring attachment check`: the users of an attachment's disk on its host.

use std::fmt::{self, Display, Formatter};

use mooring_model::AttachmentId;
use serde::{Deserialize, Serialize};

use crate::Exit;
use crate::controller::Client;
use crate::controller::attachment::PATH;
use crate::controller::client::Call;
use crate::controller::records::Kept;
use crate::controller::show::write_lines;
use crate::error::Failure;
use crate::output::Reply;
use crate::table::{or_none, table};
use crate::text::one_line;

/// Findings of the host.
#[derive(Debug, Deserialize)]
pub(crate) struct CheckRecord {
    attachment_id: String,
    #[serde(default)]
    host: String,
    #[serde(default)]
    disk: Option<String>,
    /// `null`: its agent does not say.
    #[serde(default)]
    cache_in_force: Option<String>,
    #[serde(default)]
    users: Vec<UserRecord>,
    #[serde(default)]
    unseen: Vec<String>,
    #[serde(default)]
    problems: Vec<ProblemRecord>,
}

/// A user of the disk.
#[derive(Debug, Deserialize)]
struct UserRecord {
    device: String,
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    pid: Option<u32>,
    #[serde(default)]
    access: Option<String>,
    #[serde(default)]
    filesystem: Option<String>,
}

/// A fault that was found.
#[derive(Debug, Deserialize)]
struct ProblemRecord {
    code: String,
    text: String,
}

/// `{"check":…}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Checked {
    check: Kept<CheckRecord>,
}

impl UserRecord {
    fn who(&self) -> String {
        match (self.kind.as_str(), self.pid, &self.filesystem) {
            ("process", Some(pid), _) => format!("{} (pid {pid})", self.name),
            ("mount", _, Some(filesystem)) => format!("{filesystem} on {}", self.name),
            ("swap", ..) => "swap".to_owned(),
            _ => self.name.clone(),
        }
    }
}

impl Display for Checked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let check = &self.check;
        let (disk, host) = (or_none(check.disk.as_deref()), one_line(&check.host));
        let cache = one_line(check.cache_in_force.as_deref().unwrap_or("not known"));
        writeln!(f, "disk {disk} of attachment {} on {host}, cache {cache}", check.attachment_id)?;
        if check.users.is_empty() {
            f.write_str("nobody uses it")?;
        } else {
            let row = |user: &UserRecord| {
                [user.device.clone(), user.kind.clone(), user.who(), or_none(user.access.as_deref())]
            };
            f.write_str(&table(["DEVICE", "KIND", "USER", "ACCESS"], check.users.iter().map(row)))?;
        }
        write_lines(f, "not looked at", &check.unseen)?;
        let problems: Vec<_> =
            check.problems.iter().map(|problem| format!("{}: {}", problem.code, problem.text)).collect();
        write_lines(f, "problem", &problems)
    }
}

/// Makes the host check now.
pub(crate) async fn check(client: &Client, id: AttachmentId) -> Result<Reply<Checked>, Failure> {
    let id = id.to_string();
    let [a, b, c] = PATH;
    let call = Call::get("the users of the attachment's disk", &[a, b, c, &id, "check"]);
    let answer: Checked = client.read(call).await?;
    let exit = if answer.check.problems.is_empty() { Exit::Ok } else { Exit::Failed };
    Ok(Reply { exit, answer })
}

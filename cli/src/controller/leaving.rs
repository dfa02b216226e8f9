//! `mooring host rename` and `host forget`.
//!
//! What must never happen here: a host forgotten whose loss was not shown, or without `--yes`.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{ForgetArgs, RenameArgs};
use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::Kept;
use crate::controller::show::write_lines;
use crate::error::Failure;
use crate::output::Reply;
use crate::table::{facts, or_none, table};
use crate::text::one_line;

/// `host rename`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct NewName {
    renamed: String,
    name: String,
    #[serde(default)]
    warnings: Vec<String>,
}

/// The loss of one project.
#[derive(Debug, Clone, Deserialize)]
struct ProjectLoss {
    project: String,
    volumes: u64,
    snapshots: u64,
    gib: u64,
    attachments: u64,
}

/// The loss of all projects when a host is forgotten.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Loss {
    name: String,
    #[serde(default)]
    agent_id: Option<String>,
    #[serde(default)]
    last_report: Option<String>,
    volumes: u64,
    snapshots: u64,
    gib: u64,
    attachments: u64,
    attached: u64,
    #[serde(default)]
    projects: Vec<ProjectLoss>,
    #[serde(default)]
    obstacle: Option<String>,
}

/// `host forget` without `--yes`: the loss; nothing is done.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Planned {
    loss: Kept<Loss>,
}

/// `host forget --yes`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Forgotten {
    forgotten: Kept<Loss>,
}

/// `host rename`. Not repeated automatically: the second answer would be that no host has the old
/// name.
pub(crate) async fn rename(client: &Client, args: &RenameArgs) -> Result<Reply<NewName>, Failure> {
    let path = ["mooring", "v1", "hosts", &args.host, "rename"];
    Ok(Reply::ok(
        client.read(Call::add("the new name of a host", &path, json!({ "name": args.name }))).await?,
    ))
}

/// Asks what `host forget` would do.
pub(crate) async fn plan(client: &Client, args: &ForgetArgs) -> Result<Reply<Planned>, Failure> {
    let path = ["mooring", "v1", "hosts", &args.host, "forget"];
    Ok(Reply::ok(client.read(Call::get("what a host has", &path)).await?))
}

/// `host forget --yes`. A repetition succeeds again.
pub(crate) async fn forget(client: &Client, args: &ForgetArgs) -> Result<Reply<Forgotten>, Failure> {
    let path = ["mooring", "v1", "hosts", &args.host, "forget"];
    let call = Call::make("the end of a host", &path, json!({ "confirm": args.host })).waiting();
    Ok(Reply::ok(client.read(call).await?))
}

impl Display for NewName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is called {} from now on; what it serves and attaches goes on",
            one_line(&self.renamed),
            one_line(&self.name)
        )?;
        write_lines(f, "to do", &self.warnings)
    }
}

/// A number with its noun, in singular or plural.
fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

impl Loss {
    /// One line for each kind of thing that is lost.
    fn in_words(&self) -> String {
        format!(
            "{} and {} of {} GiB with all their data, {} of theirs whose end is never proven, {} of its own to other storage nodes",
            count(self.volumes, "volume"),
            count(self.snapshots, "snapshot"),
            self.gib,
            count(self.attachments, "attachment"),
            count(self.attached, "attachment"),
        )
    }

    fn write_projects(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.projects.is_empty() {
            return Ok(());
        }
        let row = |one: &ProjectLoss| {
            [
                one.project.clone(),
                one.volumes.to_string(),
                one.snapshots.to_string(),
                one.gib.to_string(),
                one.attachments.to_string(),
            ]
        };
        let heads = ["PROJECT", "VOLUMES", "SNAPSHOTS", "GIB", "ATTACHMENTS"];
        write!(f, "\n\n{}", table(heads, self.projects.iter().map(row)))
    }
}

impl Display for Planned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let loss = &self.loss;
        f.write_str(&facts([
            ("HOST", loss.name.clone()),
            ("AGENT", or_none(loss.agent_id.as_deref())),
            ("LAST REPORT", or_none(loss.last_report.as_deref())),
            ("WOULD GO", loss.in_words()),
        ]))?;
        loss.write_projects(f)?;
        if let Some(why) = &loss.obstacle {
            return write!(f, "\n\nnothing was done, and nothing would be: {}", one_line(why));
        }
        let name = one_line(&loss.name);
        write!(f, "\n\nnothing was done: `mooring host forget {name} --yes` does it, for good")
    }
}

impl Display for Forgotten {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let loss = &self.forgotten;
        write!(f, "{} is forgotten: {}", one_line(&loss.name), loss.in_words())?;
        loss.write_projects(f)?;
        write!(
            f,
            "\n\nif the machine comes back it is a stranger: nothing that it reports or serves is taken in. `mooring receipt list` shows \
             what is never proven"
        )
    }
}

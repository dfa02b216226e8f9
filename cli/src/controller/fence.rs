//! `mooring host fence`, `unfence` and `fences`: fences a host off from every volume.
//!
//! What must never happen here: success without the proof of every part.

use std::fmt::{self, Display, Formatter};

use mooring_model::Initiator;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::{Kept, ReceiptRecord};
use crate::controller::show::write_lines;
use crate::display::commands;
use crate::error::Failure;
use crate::output::{Receipt, Reply};
use crate::table::{facts, joined, or_none, table};
use crate::text::one_line;

/// One attachment of a fenced host.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Part {
    attachment_id: String,
    volume_id: String,
    state: String,
    receipt: Option<Kept<ReceiptRecord>>,
    waits_for: Option<String>,
    /// Warns that the host held the volume's reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Access that a storage node gives the host without a spec of the controller.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Export {
    node: String,
    volume_id: String,
    initiator: String,
    state: String,
    receipt: Option<Kept<ReceiptRecord>>,
    waits_for: Option<String>,
}

/// A storage node that has not reported its grants.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Unknown {
    node: String,
    why: String,
}

/// An initiator name that belongs to the host only by the word of users.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Disputed {
    initiator: String,
    /// The hosts that others claim it for.
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    attachments: Vec<Claim>,
}

/// An attachment that makes such a claim.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Claim {
    attachment_id: String,
    volume_id: String,
}

/// A fence.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Fence {
    host: String,
    #[serde(default)]
    initiators: Vec<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    user_id: Option<String>,
    #[serde(default)]
    fenced_at: Option<String>,
    #[serde(default)]
    lifted_at: Option<String>,
    proof: String,
    #[serde(default)]
    parts: Vec<Part>,
    #[serde(default)]
    exports: Vec<Export>,
    #[serde(default)]
    unknown: Vec<Unknown>,
    #[serde(default)]
    disputed: Vec<Disputed>,
}

/// `{"fence":…}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct OneFence {
    fence: Kept<Fence>,
}

/// `{"fences":…}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Fences {
    fences: Vec<Kept<Fence>>,
}

/// Returns `true` if the grant is gone and the kernel has proven that no command of it lands any
/// more. An unknown receipt proves nothing.
fn is_proven(state: &str, receipt: Option<&Kept<ReceiptRecord>>) -> bool {
    let proven = |raw: &Kept<ReceiptRecord>| Receipt::of_record(raw).is_some_and(|receipt| receipt.proven);
    state == "cut" && receipt.is_none_or(proven)
}

fn in_words(state: &str, receipt: Option<&Kept<ReceiptRecord>>, waits_for: Option<&str>) -> String {
    match (state, receipt) {
        ("cut", None) => "cut: nothing was granted".to_owned(),
        ("cut", Some(_)) if is_proven(state, receipt) => "cut: proven".to_owned(),
        ("unproven", Some(receipt)) if receipt.cause.as_deref() == Some("forgotten") => {
            "NEVER PROVEN: its storage node was forgotten".to_owned()
        }
        ("unproven", Some(receipt)) => {
            format!("UNPROVEN: {} may still land", commands(receipt.may_still_land))
        }
        ("waiting", _) => format!("NOT CUT yet: {}", or_none(waits_for)),
        (state, _) => format!("not understood: {state}"),
    }
}

impl Part {
    fn in_words(&self) -> String {
        in_words(&self.state, self.receipt.as_ref(), self.waits_for.as_deref())
    }
}

impl Export {
    fn in_words(&self) -> String {
        in_words(&self.state, self.receipt.as_ref(), self.waits_for.as_deref())
    }
}

impl Disputed {
    fn in_words(&self) -> String {
        let of = |claim: &Claim| format!("{} of volume {}", claim.attachment_id, claim.volume_id);
        let attachments: Vec<_> = self.attachments.iter().map(of).collect();
        let whose = match self.hosts.as_slice() {
            [] => "only users say whose it is".to_owned(),
            hosts => format!("it is known as {}'s", hosts.join(", ")),
        };
        format!(
            "{} is the host's as the users of attachment(s) {} say, and is NOT CUT: {whose}; --also {} takes it",
            self.initiator,
            attachments.join(", "),
            self.initiator
        )
    }
}

impl Fence {
    fn is_proven(&self) -> bool {
        let parts = self.parts.iter().map(|part| (&part.state, part.receipt.as_ref()));
        let exports = self.exports.iter().map(|export| (&export.state, export.receipt.as_ref()));
        self.proof == "proven"
            && self.unknown.is_empty()
            && self.disputed.iter().all(|of| !of.hosts.is_empty())
            && parts.chain(exports).all(|(state, receipt)| is_proven(state, receipt))
    }
}

/// `host fence`.
pub(crate) async fn fence(
    client: &Client,
    host: &str,
    reason: Option<&str>,
    also: &[Initiator],
) -> Result<Reply<OneFence>, Failure> {
    let mut body = Map::new();
    if let Some(reason) = reason {
        body.insert("reason".to_owned(), json!(reason));
    }
    if !also.is_empty() {
        let names: Vec<_> = also.iter().map(ToString::to_string).collect();
        body.insert("also".to_owned(), json!(names));
    }
    let path = ["mooring", "v1", "hosts", host, "fence"];
    let call = Call::make("the fence", &path, Value::Object(body)).waiting();
    let answer: OneFence = client.read(call).await?;
    Ok(Reply::when(answer.fence.is_proven(), answer))
}

/// `host unfence`.
pub(crate) async fn unfence(client: &Client, host: &str, anyway: bool) -> Result<Reply<OneFence>, Failure> {
    let path = ["mooring", "v1", "hosts", host, "unfence"];
    let body = if anyway { json!({ "anyway": true }) } else { json!({}) };
    // Not repeated automatically: the second answer would be that there is no fence.
    Ok(Reply::ok(client.read(Call::add("the end of a fence", &path, body)).await?))
}

/// `host fences`.
pub(crate) async fn list(client: &Client, all: bool) -> Result<Reply<Fences>, Failure> {
    let mut call = Call::get("the list of fences", &["mooring", "v1", "fences"]);
    if all {
        call = call.query("all", &true);
    }
    Ok(Reply::ok(client.read(call).await?))
}

impl Display for OneFence {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let fence = &self.fence;
        let how = match (&fence.lifted_at, fence.is_proven()) {
            (Some(_), _) => "the fence is lifted; its former access is not restored",
            (None, true) => "fenced: nothing of it reaches any volume",
            (None, false) => "the fence is durable and NOT PROVEN yet; repeat the command to see it proven",
        };
        writeln!(f, "host {}: {how}", one_line(&fence.host))?;
        write!(
            f,
            "{}",
            facts([
                ("INITIATORS", joined(&fence.initiators)),
                ("REASON", or_none(fence.reason.as_deref())),
                ("BY", or_none(fence.user_id.as_deref())),
                ("SINCE", or_none(fence.fenced_at.as_deref())),
            ])
        )?;
        if fence.parts.is_empty() {
            f.write_str("\nit had no attachments")?;
        } else {
            let row = |part: &Part| [part.attachment_id.clone(), part.volume_id.clone(), part.in_words()];
            write!(f, "\n{}", table(["ATTACHMENT", "VOLUME", "RECEIPT"], fence.parts.iter().map(row)))?;
        }
        if !fence.exports.is_empty() {
            f.write_str("\n\ngrants of storage nodes that belong to no attachment of this database:\n")?;
            let row =
                |of: &Export| [of.node.clone(), of.volume_id.clone(), of.initiator.clone(), of.in_words()];
            let heads = ["NODE", "VOLUME", "INITIATOR", "RECEIPT"];
            write!(f, "{}", table(heads, fence.exports.iter().map(row)))?;
        }
        let unknown = |of: &Unknown| format!("what {} grants the host is not known: {}", of.node, of.why);
        write_lines(f, "UNKNOWN", &fence.unknown.iter().map(unknown).collect::<Vec<_>>())?;
        write_lines(f, "DISPUTED", &fence.disputed.iter().map(Disputed::in_words).collect::<Vec<_>>())?;
        for part in &fence.parts {
            let of = |words: &String| format!("volume {}: {words}", part.volume_id);
            write_lines(f, "note", &part.warnings.iter().map(of).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Display for Fences {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.fences.is_empty() {
            return f.write_str("no host is fenced");
        }
        let row = |fence: &Kept<Fence>| {
            [
                fence.host.clone(),
                if fence.is_proven() { "proven" } else { "UNPROVEN" }.to_owned(),
                fence.parts.len().to_string(),
                or_none(fence.fenced_at.as_deref()),
                or_none(fence.lifted_at.as_deref()),
                or_none(fence.reason.as_deref()),
            ]
        };
        let heads = ["HOST", "PROOF", "ATTACHMENTS", "SINCE", "LIFTED", "REASON"];
        f.write_str(&table(heads, self.fences.iter().map(row)))
    }
}

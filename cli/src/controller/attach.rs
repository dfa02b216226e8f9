//! `mooring attach`: requests the attachment, follows both agents until the disk can be used, and
//! takes it back if the user interrupts.
//!
//! What must never happen here: "attached" said of a disk that its host has not verified; an
//! attachment left behind without its id and the next step.

use std::fmt::Write as _;
use std::io::{Stderr, Write};
use std::pin::pin;
use std::time::{Duration, Instant};

use mooring_model::AttachmentId;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Exit;
use crate::args::AttachArgs;
use crate::controller::Client;
use crate::controller::answers::Attached;
use crate::controller::attachment::{PATH, changed};
use crate::controller::client::{Call, wrapped};
use crate::controller::detach;
use crate::controller::progress::Progress;
use crate::controller::records::{Kept, Live, OneAttachment, OneReceipt};
use crate::controller::volume::find;
use crate::display::commands;
use crate::error::Fault;
use crate::error::{Failure, Left};
use crate::output::Reply;
use crate::text::one_line;
use crate::volume_ref::VolumeRef;

/// Least pause between calls to a controller that answers without waiting.
const PAUSE: Duration = Duration::from_millis(100);

/// `attach`.
pub(crate) async fn attach(
    client: &Client,
    args: &AttachArgs,
    json: bool,
) -> Result<Reply<Attached>, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let mut progress = Progress::new(json);
    let id = args.id.unwrap_or_else(AttachmentId::random).to_string();
    let volume = tokio::select! {
        volume = volume_id(client, &args.volume) => volume?,
        _ = interrupts.recv() => return Err(interrupted(&id, "nothing was asked of the controller yet", None)),
    };
    let answer = {
        let mut asked = pin!(ask(client, args, &id, &volume));
        tokio::select! {
            biased;
            answer = &mut asked => Ok(answer),
            _ = interrupts.recv() => {
                // The request's answer decides whether there is an attachment to take back.
                client.hurry();
                progress.once(&format!("interrupted: waiting for the controller's answer; ctrl-C again leaves attachment {id} to it"));
                tokio::select! {
                    answer = &mut asked => Err(answer),
                    _ = interrupts.recv() => return Err(left_alone(&id)),
                }
            }
        }
    };
    let live = match answer {
        Ok(answer) => answer.map_err(|fault| not_asked(&id, fault))?,
        Err(Err(fault)) if fault.was_refused() => {
            return Err(interrupted(&id, &format!("nothing was attached ({fault})"), None));
        }
        Err(_) => return Err(take_back(client, &id, &mut interrupts, &mut progress).await),
    };
    let end = tokio::select! {
        biased;
        end = follow(client, live, &mut progress) => Some(end),
        _ = interrupts.recv() => None,
    };
    progress.end();
    match end {
        Some(end) => end,
        None => Err(take_back(client, &id, &mut interrupts, &mut progress).await),
    }
}

/// The id of the volume that is meant. An id is not looked up: the controller knows whether the
/// volume exists.
async fn volume_id(client: &Client, volume: &VolumeRef) -> Result<String, Failure> {
    match volume {
        VolumeRef::Id(id) => Ok(id.to_string()),
        name @ VolumeRef::Name(_) => Ok(find(client, name).await?.id),
    }
}

async fn ask(client: &Client, args: &AttachArgs, id: &str, volume: &str) -> Result<Kept<Live>, Fault> {
    let mut attachment =
        json!({ "id": id, "volume": volume, "host": args.host, "mode": args.mode.to_string() });
    // Send only fields that the user set: a controller of an earlier release refuses unknown ones.
    if let Some(transport) = args.transport {
        attachment["transport"] = transport.as_str().into();
    }
    if let Some(cache) = args.cache {
        attachment["cache"] = cache.as_str().into();
    }
    let call = Call::make("the new attachment", &PATH, wrapped("attachment", attachment));
    let live = client.read::<OneAttachment>(call).await?.attachment;
    if live.id != id {
        let why = format!("it made attachment {} instead of {id}", live.id);
        return Err(Fault::Nonsense { call: "the new attachment", why });
    }
    Ok(live)
}

/// Follows an attachment until it is done, has failed, or the deadline is over.
async fn follow(
    client: &Client,
    mut live: Kept<Live>,
    progress: &mut Progress<impl Write>,
) -> Result<Reply<Attached>, Failure> {
    loop {
        progress.update(&live);
        if live.is_ready() {
            return Ok(Reply::ok(Attached { done: true, attachment: live }));
        }
        if !matches!(live.status.as_str(), "reserved" | "attaching" | "attached") {
            return Err(ended(&live));
        }
        if client.left().is_zero() {
            return Ok(Reply::when(false, Attached { done: false, attachment: live }));
        }
        let asked = Instant::now();
        let next = changed(client, &live.id, live.revision).await.map_err(|fault| lost(&live, &fault))?;
        if next.revision == live.revision && asked.elapsed() < PAUSE {
            client.pause(PAUSE).await;
        }
        live = next;
    }
}

/// Next steps for the user: look again, or give up.
fn way_on(id: &str) -> String {
    format!("Look with `mooring attachment show {id}`; take it back with `mooring detach {id}`.")
}

fn left(exit: Exit, id: &str, text: String, advice: Option<String>) -> Failure {
    Failure::Left(Box::new(Left { exit, text, advice, attachment_id: id.to_owned(), attachment: None }))
}

/// Makes the failure of the request. A refused request leaves nothing behind.
fn not_asked(id: &str, fault: Fault) -> Failure {
    if fault.was_refused() {
        return fault.into();
    }
    let advice = format!(
        "If it was accepted, it goes on as attachment {id}. {} Repeating the command with --id {id} is safe.",
        way_on(id)
    );
    left(fault.exit(), id, fault.to_string(), Some(advice))
}

/// Makes the failure for a controller that is lost while the attachment exists.
fn lost(live: &Live, fault: &Fault) -> Failure {
    let id = &live.id;
    if fault.status() == Some(404) {
        let text = format!("attachment {id} was taken away while it was being made");
        return left(
            Exit::Refused,
            id,
            text,
            Some("Nothing is left of it. Somebody else has detached it.".to_owned()),
        );
    }
    let advice = format!("Attachment {id} is accepted, and goes on without this program. {}", way_on(id));
    let text = format!("it is not known how attachment {id} ends: {fault}");
    left(fault.exit_once_accepted(), id, text, Some(advice))
}

/// Makes the failure for an attachment that will not become ready.
fn ended(live: &Kept<Live>) -> Failure {
    let id = &live.id;
    // The text goes to a terminal. With --json the attachment beside it has the names as they are.
    let volume = one_line(live.volume_name.as_deref().unwrap_or(&live.volume_id));
    let host = one_line(live.host.as_deref().unwrap_or("its host"));
    let detaching = live.status == "detaching";
    let mut text = if detaching {
        format!("attachment {id} of volume {volume} is being taken away while it was being made")
    } else {
        format!(
            "volume {volume} cannot be attached to {host}: {}",
            one_line(live.fault.as_deref().unwrap_or(&live.status))
        )
    };
    for problem in live.problems.iter().filter(|problem| live.fault.as_ref() != Some(problem)) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\nproblem: {}", one_line(problem));
    }
    let advice = if detaching {
        format!("Somebody else detaches it; wait for that with `mooring detach {id}`.")
    } else {
        format!("Attachment {id} is left with status {}. {}", live.status, way_on(id))
    };
    Failure::Left(Box::new(Left {
        exit: if detaching { Exit::Refused } else { Exit::Failed },
        text,
        advice: Some(advice),
        attachment_id: id.clone(),
        attachment: serde_json::to_value(live).ok(),
    }))
}

fn interrupted(id: &str, text: &str, advice: Option<String>) -> Failure {
    left(Exit::Interrupted, id, format!("interrupted: {text}"), advice)
}

/// Makes the failure for a second interrupt: the user does not wait for the take-back either.
fn left_alone(id: &str) -> Failure {
    let text =
        format!("attachment {id} is left to the controller, and may still be attached, or be detached");
    interrupted(id, &text, Some(way_on(id)))
}

/// Asks the controller to take an attachment back, and waits for it.
async fn take_back(
    client: &Client,
    id: &str,
    interrupts: &mut Signal,
    progress: &mut Progress<Stderr>,
) -> Failure {
    client.begin_again();
    progress.once(&format!(
        "interrupted: taking attachment {id} back, for up to {} s; ctrl-C again leaves it to the controller",
        client.seconds()
    ));
    let answer = tokio::select! {
        biased;
        answer = client.read::<OneReceipt>(detach::call(id, false, false)) => answer,
        _ = interrupts.recv() => return left_alone(id),
    };
    match answer {
        Ok(OneReceipt { receipt: Some(receipt), .. }) if receipt.proof != "proven" => {
            let text = format!(
                "attachment {id} is taken back, and {} may still land",
                commands(receipt.may_still_land)
            );
            interrupted(id, &text, Some(format!("Repeat `mooring detach {id}` to see it proven.")))
        }
        Ok(_) => interrupted(id, &format!("attachment {id} was taken back, nothing is left of it"), None),
        Err(fault) if fault.status() == Some(404) => {
            interrupted(id, &format!("attachment {id} is gone, nothing is left of it"), None)
        }
        Err(fault) if fault.exit() == Exit::Pending => {
            let text = format!("attachment {id} is still being taken back ({fault})");
            interrupted(
                id,
                &text,
                Some(format!("The controller goes on with it; wait for it with `mooring detach {id}`.")),
            )
        }
        Err(fault) => {
            interrupted(id, &format!("attachment {id} could not be taken back: {fault}"), Some(way_on(id)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Fault {
        let url = "http://c1:8776/".to_owned();
        Fault::Silent { url, call: "the attachment", after: Duration::from_secs(15) }
    }

    fn said(status: u16) -> Fault {
        Fault::Said { status, message: "x".to_owned(), with_token: true }
    }

    #[test]
    fn an_accepted_attach_is_pending_when_the_controller_is_lost() {
        let live = json!({ "id": "a", "volume_id": "v", "status": "attaching", "revision": 3 });
        let live: Live = serde_json::from_value(live).unwrap();
        for fault in [silent(), said(502), said(503), said(504)] {
            let failure = lost(&live, &fault);
            assert_eq!(failure.exit(), Exit::Pending, "{fault}");
            assert!(failure.text(false).contains("Attachment a is accepted, and goes on"), "{fault}");
        }
        // Control: without an answer to the create nobody knows whether it was accepted.
        assert_eq!(not_asked("a", silent()).exit(), Exit::Unreachable);
        assert_eq!(not_asked("a", said(503)).exit(), Exit::Unreachable);
        // Control: an answer that is none of "not reachable" keeps its code.
        for (status, exit) in [(403, Exit::Refused), (404, Exit::Refused), (500, Exit::Failed)] {
            assert_eq!(lost(&live, &said(status)).exit(), exit, "{status}");
        }
    }
}

//! Agents' own words, and names of hosts, for callers who may not read them. Such words name hosts,
//! devices and paths, which are the operator's; a project gets a sentence that follows from what
//! failed.
//!
//! What must never happen here: a sentence that contains a word of an agent.

use super::pools::GET_POOLS;
use super::{Refusal, Service, volumes};
use crate::domain::{AttachmentLive, AttachmentStatus, Caller, Message, VolumeStatus};
use crate::flow::Facts;
use crate::policy::Target;
use crate::store::{self, Abort, AttachmentRow};

/// The reason of a review.
pub(super) const IN_REVIEW: &str = "nothing is changed at it until the operator has decided";

/// The problems of an attachment.
const PROBLEMS: &str = "its host or the volume's storage node has a problem: the operator sees which";

/// The reason why a call is not answered yet.
const WAITS: &str = "the volume's storage node, or its host, is working on it or does not answer";

/// The reason why a call is refused whose agent is down.
const DOWN: &str = "the volume's storage node, or its host, is down: ask again when it is up, or ask the operator, who \
                    sees why";

/// The reason why a volume's pool cannot serve a new type.
const UNFIT: &str = "its storage node does not offer what the type demands, or has not reported: choose another type, or ask the \
                     operator, who sees why";

/// The reason why nobody has looked at a disk.
const UNSEEN: &str =
    "its host could not look at the disk: try again later, or ask the operator, who sees why";

/// The reason why an id that may be known elsewhere is not given out yet.
const UNHEARD: &str = "a storage node was not heard since the controller's database was restored, and may have a volume of this \
                       id: ask again later, or without an id and without a request key";

/// Returns `true` if this caller may read agents' own words: whoever sees the hosts does.
pub(super) fn reads(facts: &Facts, caller: &Caller) -> bool {
    facts.policies().allows("mooring:hosts", caller, &Target::default())
}

/// Returns agents' own words for a caller who may read them, and the sentence for any other.
fn words(facts: &Facts, caller: &Caller, why: String, sentence: &str) -> String {
    if reads(facts, caller) { why } else { sentence.to_owned() }
}

/// Returns the host of an attachment, as ` on host NAME`, for a caller who sees the hosts. Empty
/// for any other, and for an attachment without a host.
pub(super) fn on_host(facts: &Facts, caller: &Caller, row: &AttachmentRow) -> String {
    let host = row.host.as_ref().filter(|_| reads(facts, caller));
    host.map(|host| format!(" on host {host}")).unwrap_or_default()
}

/// Returns the attachment that must end first, in words for this caller.
pub(super) fn who(facts: &Facts, caller: &Caller, row: &AttachmentRow) -> String {
    format!("attachment {}{} ({})", row.id, on_host(facts, caller, row), row.status)
}

/// Returns the refusal of a call whose agent is down, for this caller.
pub(super) fn down(facts: &Facts, caller: &Caller, why: String) -> Refusal {
    Refusal::Unavailable(why_down(facts, caller, why))
}

/// Returns the reason why an agent does not answer, for this caller.
pub(super) fn why_down(facts: &Facts, caller: &Caller, why: String) -> String {
    words(facts, caller, why, DOWN)
}

/// Returns the reason why a volume's pool cannot serve a new type, for this caller: only one who
/// may list pools reads their names and space.
pub(super) fn unfit(facts: &Facts, caller: &Caller, why: String) -> String {
    if facts.policies().allows(GET_POOLS, caller, &Target::default()) { why } else { UNFIT.to_owned() }
}

/// Returns the reason why a host has not looked at a disk, for this caller.
pub(super) fn unseen(facts: &Facts, caller: &Caller, why: String) -> String {
    words(facts, caller, why, UNSEEN)
}

/// Returns the refusal of a volume whose id an agent may know that was not heard, for this caller.
pub(super) fn unheard(facts: &Facts, caller: &Caller, why: String) -> Refusal {
    Refusal::Unavailable(words(facts, caller, why, UNHEARD))
}

/// Returns the refusal of a connect for this caller. Only an agent that is down makes a connect
/// unavailable.
pub(super) fn of_connect(facts: &Facts, caller: &Caller, refused: Abort) -> Abort {
    match refused {
        Abort::Refused(Refusal::Unavailable(why)) => down(facts, caller, why).into(),
        other => other,
    }
}

/// Returns the fault of a volume.
pub(super) fn of_volume(status: VolumeStatus, fault: Option<String>) -> Option<String> {
    let told = match status {
        VolumeStatus::Error => "it could not be made, or what was asked of it failed",
        VolumeStatus::ErrorExtending => "its storage node could not make it larger",
        VolumeStatus::ErrorDeleting => "its storage node could not delete it, or one of its snapshots",
        VolumeStatus::ErrorManaging => "its storage node could not take it over",
        VolumeStatus::ErrorUnmanaging => "its storage node could not unmanage it",
        _ => "something is in its way",
    };
    // This one is the controller's own.
    let is_own = |text: &String| text == volumes::NOWHERE;
    fault.map(|text| if is_own(&text) { text } else { format!("{told}: ask the operator, who sees why") })
}

/// Returns the fault of an attachment.
fn of_attachment(status: AttachmentStatus) -> &'static str {
    match status {
        AttachmentStatus::ErrorAttaching => {
            "its host or the volume's storage node refused it, or did not answer in time: detach it and attach again, or ask \
             the operator, who sees why"
        }
        AttachmentStatus::Attached => {
            "its host or the volume's storage node refused the last change: end what uses the disk there and try again, or \
             ask the operator, who sees why"
        }
        _ => {
            "its host or the volume's storage node is in the way: try again later, or ask the operator, who sees why"
        }
    }
}

/// Takes agents' words out of an attachment's state.
pub(super) fn hide(live: &mut AttachmentLive) {
    let status = live.attachment.status;
    live.attachment.fault = live.attachment.fault.take().map(|_| of_attachment(status).to_owned());
    if !live.problems.is_empty() {
        live.problems = vec![PROBLEMS.to_owned()];
    }
}

/// Returns a message for a reader. `own`: the reader may read agents' own words.
pub(super) fn message(mut kept: Message, own: bool) -> Message {
    kept.text = store::read_as(&kept.text, own).to_owned();
    kept
}

impl Service {
    /// Returns `true` if this caller may read agents' own words: whoever sees the hosts does.
    pub(super) fn reads_agents(&self, caller: &Caller) -> bool {
        reads(&self.facts, caller)
    }

    /// Returns the reason why a call waits, for this caller.
    pub(super) fn waits_for(&self, caller: &Caller, why: String) -> String {
        words(&self.facts, caller, why, WAITS)
    }

    /// Returns the fault of an attachment for this caller.
    pub(super) fn why_for(&self, caller: &Caller, status: AttachmentStatus, why: String) -> String {
        words(&self.facts, caller, why, of_attachment(status))
    }
}

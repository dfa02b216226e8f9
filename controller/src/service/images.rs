//! Volumes from images: whether their storage agent can read one. Whether there is such a file, and what is in it, the agent
//! sees when it makes the volume.
//!
//! What must never happen here: an image wished of an agent that would take the wish for one without it.

use mooring_api::v1;
use mooring_model::ImageFormat;

use super::{Refusal, TEXT_CHARS_MAX};
use crate::agents::Agent;
use crate::domain::{Caller, HostImage};
use crate::flow::Inner;
use crate::policy::Target;

/// Who may make volumes from images: the folder of a storage node is nobody's project's.
const IMPORT: &str = "mooring:import";

/// Whether a volume can be copied from this image, as far as its storage agent has said.
pub(super) fn check(inner: &Inner, caller: &Caller, of: &HostImage) -> Result<(), Refusal> {
    inner.policies().check(IMPORT, caller, &Target::own(caller))?;
    let what = || of.host.chars().take(TEXT_CHARS_MAX).collect();
    let agent =
        inner.agents.by_name(&of.host).ok_or_else(|| Refusal::NotFound { kind: "Host", what: what() })?;
    check_format(&agent, of.image.format)
}

/// Whether this agent reads and writes images of a format, as far as it has said.
pub(super) fn check_format(agent: &Agent, format: ImageFormat) -> Result<(), Refusal> {
    let Some(said) = agent.state().capabilities.clone() else {
        return Err(Refusal::Unavailable(agent.why_down()));
    };
    let invalid = |why: String| Err(Refusal::Invalid(format!("Invalid image: {}: {why}", agent.entry.name)));
    let Some(images) = said.images else {
        let why = "its agent reads no images: say images_dir in its configuration, or upgrade it";
        return invalid(why.to_owned());
    };
    let wanted = v1::ImageFormat::from(format);
    if images.formats().any(|known| known == wanted) {
        return Ok(());
    }
    let known =
        said.problems.iter().filter(|problem| problem.object == "images").map(|problem| problem.text.clone());
    let why: Vec<_> = known.collect();
    invalid(format!("it cannot read {format} images: {}", why.join("; ")))
}

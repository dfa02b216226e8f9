//! Volumes from images: checks that the storage agent can read the image's format. Only the agent
//! checks, when it makes the volume, that the file exists and has the right content.
//!
//! What must never happen here: an image in a spec for an agent that would ignore it and make an
//! empty volume.

use mooring_api::v1;
use mooring_model::ImageFormat;

use super::{Refusal, TEXT_CHARS_MAX};
use crate::agents::Agent;
use crate::domain::{Caller, HostImage};
use crate::flow::Facts;
use crate::policy::Target;

/// Policy for making volumes from images: the folder of a storage node belongs to no project.
const IMPORT: &str = "mooring:import";

/// Refuses an image from which no volume can be copied, as far as the storage agent has reported.
pub(super) fn check(facts: &Facts, caller: &Caller, of: &HostImage) -> Result<(), Refusal> {
    facts.policies().check(IMPORT, caller, &Target::own(caller))?;
    let what = || of.host.chars().take(TEXT_CHARS_MAX).collect();
    let agent =
        facts.agents.by_name(&of.host).ok_or_else(|| Refusal::NotFound { kind: "Host", what: what() })?;
    check_format(&agent, of.image.format)
}

/// Refuses a format that this agent cannot read and write, as far as it has reported.
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

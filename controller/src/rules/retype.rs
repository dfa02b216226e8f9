//! Rules of a volume's change to another type, as one ordered verdict.
//!
//! Every fact is known before the answer, also whether the volume's pool can serve the new type. So
//! a retype is refused at once or done at once, and [`Change`] holds the type and the flag that are
//! written together.
//!
//! What must never happen here: a volume whose flag differs from its type's because a retype failed
//! half way; a flag that changes under a live attachment; a check left out because an earlier one
//! was harmless.

use mooring_model::{AttachmentId, Tuning};
use uuid::Uuid;

use super::{Operation, tuning, types};
use crate::domain::{QuotaViolation, RetypeViolation, RuleViolation, VolumeStatus, VolumeType};

/// Permission to move the volume to another pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigrationPolicy {
    /// The volume must not move. The default.
    #[default]
    Never,
    /// The volume may move if its own pool cannot serve the new type.
    OnDemand,
}

impl MigrationPolicy {
    /// Reads the word of a request. `None`: there is no such policy.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "never" => Some(Self::Never),
            "on-demand" => Some(Self::OnDemand),
            _ => None,
        }
    }
}

/// Facts that decide, all of them read in the transaction that writes the change.
#[derive(Debug, Clone)]
pub struct Retype<'a> {
    /// The policy `volume:retype` lets the caller do it.
    pub may_retype: bool,
    /// The policy `volume:multiattach` lets the caller have shared volumes.
    pub may_multiattach: bool,
    /// The new type as the caller named it, for the answer.
    pub named: &'a str,
    /// The new type. `None`: the caller can see no such type.
    pub new_type: Option<&'a VolumeType>,
    /// The volume's present type.
    pub old_type: Uuid,
    /// The volume's own flag, which counts even if the old type says something else.
    pub multiattach: bool,
    /// The session settings of the volume's present type.
    pub tuning: &'a Tuning,
    /// Size in GiB.
    pub size_gib: u32,
    /// The volume's status, derived.
    pub status: VolumeStatus,
    /// The attachment for which the volume does not rest, or one that reaches it. `None`: there is
    /// none.
    pub in_the_way: Option<AttachmentId>,
    /// Number of announced attachments that have no row yet.
    pub announced: u32,
    /// The operation that runs on the volume, or how it ended.
    pub operation: Option<Operation>,
    /// Verdict of the new type's quotas.
    pub quota: Result<(), QuotaViolation>,
    /// Permission to move the volume.
    pub migration: MigrationPolicy,
    /// Reason why its pool cannot serve the new type (`schedule::fits`). `None`: it can.
    pub unfit: Option<String>,
}

/// Reason why a volume keeps its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A policy does not allow it.
    Forbidden(&'static str),
    /// The caller sees no type of this name or id.
    NotFound(String),
    /// A rule does not allow it.
    Rule(RuleViolation),
}

impl From<RuleViolation> for Refused {
    fn from(violation: RuleViolation) -> Self {
        Self::Rule(violation)
    }
}

/// Values that are written in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The volume's type from now on.
    pub type_id: Uuid,
    /// The volume's flag from now on.
    pub multiattach: bool,
}

/// Decides whether a volume gets its new type. The checks come in the order of the Block Storage
/// API: the first that fails answers.
pub fn retype(asked: &Retype<'_>) -> Result<Change, Refused> {
    if !asked.may_retype {
        return Err(Refused::Forbidden("volume:retype"));
    }
    let new_type =
        asked.new_type.ok_or_else(|| Refused::NotFound(asked.named.chars().take(255).collect()))?;
    let specs = &new_type.extra_specs;
    types::check_size(specs, &new_type.name, asked.size_gib)?;
    let multiattach = types::is_multiattach(specs);
    check_flag(asked, multiattach)?;
    check_tuning(asked, &tuning::of(specs))?;
    if types::check_encryption(specs).is_err() {
        return Err(RuleViolation::Retype(RetypeViolation::Encrypted).into());
    }
    asked.quota.clone().map_err(RuleViolation::Quota)?;
    let rests = matches!(asked.status, VolumeStatus::Available | VolumeStatus::InUse);
    if !rests || asked.operation.is_some() || new_type.id == asked.old_type {
        // A volume that rests is refused for its type, and one at work for its work.
        let attached = !rests && asked.operation.is_none();
        return Err(RuleViolation::Retype(RetypeViolation::State {
            in_the_way: asked.in_the_way.filter(|_| attached),
            announced: if attached { asked.announced } else { 0 },
        })
        .into());
    }
    match &asked.unfit {
        None => Ok(Change { type_id: new_type.id, multiattach }),
        Some(why) => Err(Refused::Rule(RuleViolation::Retype(RetypeViolation::PoolCannotServe {
            type_name: new_type.name.clone(),
            why: why.clone(),
            may_move: asked.migration == MigrationPolicy::OnDemand,
        }))),
    }
}

/// Refuses a change of the flag while the volume is attached: a hypervisor has set its disk up by
/// it.
fn check_flag(asked: &Retype<'_>, multiattach: bool) -> Result<(), Refused> {
    if multiattach == asked.multiattach {
        return Ok(());
    }
    if asked.status != VolumeStatus::Available {
        let (status, in_the_way) = (asked.status, asked.in_the_way);
        return Err(RuleViolation::Retype(RetypeViolation::Shares { status, in_the_way }).into());
    }
    if multiattach && !asked.may_multiattach {
        return Err(Refused::Forbidden("volume:multiattach"));
    }
    Ok(())
}

/// Refuses a change of session settings while the volume is attached. An existing session would
/// keep the old settings until its next login, and its queue depth for good: nobody could say how a
/// host is served.
fn check_tuning(asked: &Retype<'_>, new: &Tuning) -> Result<(), Refused> {
    if asked.status == VolumeStatus::Available || new.is_same(asked.tuning) {
        return Ok(());
    }
    let (status, in_the_way) = (asked.status, asked.in_the_way);
    Err(RuleViolation::Retype(RetypeViolation::Tunes { status, in_the_way }).into())
}

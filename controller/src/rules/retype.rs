//! When a volume may get another type, as one ordered verdict.
//!
//! Everything is known before anything is answered: whether the volume's pool can serve the new type, too. So a retype is
//! refused at once or done at once, and [`Change`] holds the type and the flag that are written together.
//!
//! What must never happen here: a volume whose flag differs from its type's because a retype failed half way; a flag that
//! changes under a live attachment; a check left out because an earlier one was harmless.

use mooring_model::Tuning;
use uuid::Uuid;

use super::{Operation, tuning, types};
use crate::domain::{RetypeViolation, RuleViolation, VolumeStatus, VolumeType};
use crate::quota::Over;

/// May the volume move to another pool?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigrationPolicy {
    /// No. The default.
    #[default]
    Never,
    /// Where its own pool cannot serve the new type.
    OnDemand,
}

impl MigrationPolicy {
    /// From the word in a request.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "never" => Some(Self::Never),
            "on-demand" => Some(Self::OnDemand),
            _ => None,
        }
    }
}

/// What decides, all of it read in the transaction that writes the change.
#[derive(Debug, Clone)]
pub struct Retype<'a> {
    /// The policy `volume:retype` lets the caller do it.
    pub may_retype: bool,
    /// The policy `volume:multiattach` lets the caller have shared volumes.
    pub may_multiattach: bool,
    /// As the caller named the new type, for the answer.
    pub named: &'a str,
    /// The new type. `None`: there is none that the caller may see.
    pub new_type: Option<&'a VolumeType>,
    /// The volume's type now.
    pub old_type: Uuid,
    /// The volume's own flag, which is what counts: the old type may say otherwise.
    pub multiattach: bool,
    /// What its type says about its sessions now.
    pub tuning: &'a Tuning,
    /// GiB.
    pub size_gib: u32,
    /// The volume's status, derived.
    pub status: VolumeStatus,
    /// What runs on it, or how that ended.
    pub operation: Option<Operation>,
    /// What the quotas of the new type say.
    pub quota: Result<(), Over>,
    /// May it move?
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
    /// A quota does not allow it.
    Over(Over),
    /// A rule does not allow it.
    Rule(RuleViolation),
}

impl From<RuleViolation> for Refused {
    fn from(violation: RuleViolation) -> Self {
        Self::Rule(violation)
    }
}

/// What is written, in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The volume's type from now on.
    pub type_id: Uuid,
    /// Its flag from now on.
    pub multiattach: bool,
}

/// Whether a volume may get its new type. The checks come in the order of the Block Storage API: the first that fails answers.
pub fn retype(wish: &Retype<'_>) -> Result<Change, Refused> {
    if !wish.may_retype {
        return Err(Refused::Forbidden("volume:retype"));
    }
    let new_type = wish.new_type.ok_or_else(|| Refused::NotFound(wish.named.chars().take(255).collect()))?;
    let specs = &new_type.extra_specs;
    types::check_size(specs, &new_type.name, wish.size_gib)?;
    let multiattach = types::is_multiattach(specs);
    check_flag(wish, multiattach)?;
    check_tuning(wish, &tuning::of(specs))?;
    if types::check_encryption(specs).is_err() {
        return Err(RuleViolation::Retype(RetypeViolation::Encrypted).into());
    }
    wish.quota.clone().map_err(Refused::Over)?;
    let rests = matches!(wish.status, VolumeStatus::Available | VolumeStatus::InUse);
    if !rests || wish.operation.is_some() || new_type.id == wish.old_type {
        return Err(RuleViolation::Retype(RetypeViolation::State).into());
    }
    match &wish.unfit {
        None => Ok(Change { type_id: new_type.id, multiattach }),
        Some(why) => Err(Refused::Rule(RuleViolation::Retype(RetypeViolation::PoolCannotServe {
            type_name: new_type.name.clone(),
            why: why.clone(),
            may_move: wish.migration == MigrationPolicy::OnDemand,
        }))),
    }
}

/// The flag changes only while nobody is attached: a hypervisor has set its disk up by it.
fn check_flag(wish: &Retype<'_>, multiattach: bool) -> Result<(), Refused> {
    if multiattach == wish.multiattach {
        return Ok(());
    }
    if wish.status != VolumeStatus::Available {
        return Err(RuleViolation::Retype(RetypeViolation::Shares { status: wish.status }).into());
    }
    if multiattach && !wish.may_multiattach {
        return Err(Refused::Forbidden("volume:multiattach"));
    }
    Ok(())
}

/// How sessions are negotiated changes only while nobody is attached: what is there would keep what it has until its next
/// login, and its queue depth for good, so that nobody could say how a host is served.
fn check_tuning(wish: &Retype<'_>, new: &Tuning) -> Result<(), Refused> {
    if wish.status == VolumeStatus::Available || new.is_same(wish.tuning) {
        return Ok(());
    }
    Err(RuleViolation::Retype(RetypeViolation::Tunes { status: wish.status }).into())
}

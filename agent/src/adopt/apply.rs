//! Adopts exports. Each step is durable before the next one begins, and any of them may be the
//! last: the next survey finds what was begun.
//!
//! What must never happen here: a write to the kernel's target configuration; a step on an export
//! that was not chosen, or that is no longer as it was shown.

use std::ops::ControlFlow;

use mooring_model::{Generation, Stamp, VolumeId};
use mooring_targets::adopt;
use prost::Message;

use super::{Adoption, Candidate, Verdict};
use crate::lvm;
use crate::machine::Machine;
use crate::store::{Kind, Store, StoreError, StoredContent};

/// Reason why an adoption stopped. Earlier steps stay done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No target, LV or volume has this name.
    #[error("no target of somebody else's is, or shows, {0}: see --plan")]
    Unknown(String),
    /// The chosen target cannot be adopted.
    #[error("{target} cannot be adopted: {why}")]
    Cannot {
        /// The target.
        target: String,
        /// Why not.
        why: String,
    },
    /// The target has changed since it was shown.
    #[error("{0} has changed since it was looked at: see --plan again")]
    Changed(String),
    /// The LV could not be tagged.
    #[error("cannot make the logical volume of {target} ours")]
    Tag {
        /// The target.
        target: String,
        /// Cause.
        source: Box<lvm::Error>,
    },
    /// The volume or export could not be stored.
    #[error("cannot keep {target}; it is as it was but for its LV's tags: try again")]
    Store {
        /// The target.
        target: String,
        /// Cause.
        source: Box<StoreError>,
    },
    /// The target could not be read once more.
    #[error("cannot look at {target} once more")]
    Look {
        /// The target.
        target: String,
        /// Cause.
        source: Box<mooring_targets::Error>,
    },
    /// The observer asked to stop.
    #[error("stopped before: {0}")]
    Stopped(String),
}

/// Choice of an export: a target's name, `GROUP/LV`, or a volume's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Only(pub String);

impl Only {
    pub(super) fn is(&self, candidate: &Candidate) -> bool {
        let id = match &candidate.verdict {
            Verdict::Can(adoption) => adoption.volume,
            Verdict::Adopted(id) => Some(*id),
            Verdict::Cannot(_) => None,
        };
        candidate.target == self.0
            || candidate.lv.as_deref() == Some(self.0.as_str())
            || id.is_some_and(|id| id.to_string() == self.0)
    }
}

/// Called before every step; `Break` stops there.
pub type Watch<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// An adopted export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The target.
    pub target: String,
    /// The volume that the target exports.
    pub volume: VolumeId,
}

/// Adopts the chosen exports, or all that can be adopted if nothing was chosen. The caller holds
/// the lock of the state folder.
pub fn apply(
    machine: &Machine,
    store: &Store,
    candidates: &[Candidate],
    only: &[Only],
    watch: &mut Watch<'_>,
) -> Result<Vec<Done>, Error> {
    for only in only {
        let chosen: Vec<_> = candidates.iter().filter(|candidate| only.is(candidate)).collect();
        if chosen.is_empty() {
            return Err(Error::Unknown(only.0.clone()));
        }
        if let Some((target, why)) = chosen.iter().find_map(|candidate| match &candidate.verdict {
            Verdict::Cannot(reasons) => Some((candidate.target.clone(), reasons.join("; "))),
            Verdict::Adopted(_) | Verdict::Can(_) => None,
        }) {
            return Err(Error::Cannot { target, why });
        }
    }
    let mut done = Vec::new();
    for candidate in candidates {
        let chosen = only.is_empty() || only.iter().any(|only| only.is(candidate));
        if let (Verdict::Can(adoption), true) = (&candidate.verdict, chosen) {
            let volume = take_over(machine, store, &candidate.target, adoption, watch)?;
            done.push(Done { target: candidate.target.clone(), volume });
        }
    }
    Ok(done)
}

fn take_over(
    machine: &Machine,
    store: &Store,
    target: &str,
    adoption: &Adoption,
    watch: &mut Watch<'_>,
) -> Result<VolumeId, Error> {
    let mut step = |text: String| match watch(&text) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped(text)),
    };
    let changed = || Error::Changed(target.to_owned());
    let id = adoption.volume.unwrap_or_else(VolumeId::random);
    let lv = adoption.lv.id();
    check_same(machine, target, adoption)?;
    if !adoption.lv.is_tagged(id) {
        step(format!("tag {lv} as volume {id}"))?;
        lvm::tag(&*machine.commands, &lv, id)
            .map_err(|source| Error::Tag { target: target.to_owned(), source: Box::new(source) })?;
    }
    let failed = |source| Error::Store { target: target.to_owned(), source: Box::new(source) };
    // The generation is not above anything that an owner of this agent has sent or will send.
    let generation = Generation { epoch: store.newest_epoch(), counter: 1 };
    if !adoption.volume_kept {
        let spec = adoption.volume_spec(id).ok_or_else(changed)?;
        let wire = mooring_api::v1::VolumeSpec::from(&spec);
        let opaque = name_for_people(&lv);
        let stamp = Stamp { generation, digest: mooring_api::digest(&wire, &opaque) };
        step(format!("keep volume {id}"))?;
        let content = StoredContent::Spec(wire.encode_to_vec());
        store.put_spec(Kind::Volume, id, &stamp, &content, &opaque, &[]).map_err(failed)?;
    }
    let wire = mooring_api::export_to_wire(&adoption.offer.spec(id));
    let stamp = Stamp { generation, digest: mooring_api::digest(&wire, &[]) };
    step(format!("keep the export of volume {id}"))?;
    // A host that got or lost access since the survey would lose or get it at the agent's start.
    check_same(machine, target, adoption)?;
    let content = StoredContent::Spec(wire.encode_to_vec());
    store.put_spec(Kind::Export, id, &stamp, &content, &[], &[]).map_err(failed)?;
    Ok(id)
}

/// Checks that the export is what was shown, to the last attribute that the planner reads.
fn check_same(machine: &Machine, target: &str, adoption: &Adoption) -> Result<(), Error> {
    let now = adopt::look_again(&*machine.target, &adoption.seen)
        .map_err(|source| Error::Look { target: target.to_owned(), source: Box::new(source) })?;
    match adopt::judge(&now) {
        Ok(offer) if offer == adoption.offer => Ok(()),
        Ok(_) | Err(_) => Err(Error::Changed(target.to_owned())),
    }
}

/// Returns the opaque data from which `mooring --agent` reads the volume's name: the name of its
/// LV.
fn name_for_people(lv: &lvm::LvId) -> Vec<u8> {
    serde_json::json!({ "name": lv.name.as_str() }).to_string().into_bytes()
}

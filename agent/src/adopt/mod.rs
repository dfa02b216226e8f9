//! `mooring-agent adopt`: adopts exports that targetcli or Cinder's LVM driver made, with their
//! names, and without dropping a session. [`survey`] finds what could be done (the plan); [`apply`]
//! does it.
//!
//! An adoption does three things for each export, in this order: it gives the LV two tags, it
//! stores the volume, it stores the export. It changes nothing in the kernel's target
//! configuration. What the agent will do there at its next start is planned and shown, and consists
//! only of attributes that decide on future logins. The tags come first: they hold the volume's id.
//! An adoption that was interrupted is thus found and finished, and a stored volume is never
//! without its LV.
//!
//! What must never happen here: a change of what was not chosen; a secret in the output; an export
//! stored that is not as it was shown; a volume stored whose LV its planner would not find.

mod apply;
mod command;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use mooring_api::v1;
use mooring_model::{ExportIdentity, ExportSpec, LvName, Naa, VgName, VolumeId, VolumeSpec};
use mooring_targets::adopt::{self, Offer, SeenTarget};
use prost::Message;

use crate::config::Config;
use crate::lvm::{self, AnyLv};
use crate::machine::Machine;
use crate::store::{Kind, Store, StoreError, StoredContent, StoredSpec};

pub use apply::{Done, Error, Only, Watch, apply};
pub use command::{What, run};
pub use text::{Shown, show};

/// Prefix that Cinder's LVM driver gives the LV of a volume: `volume-<uuid>`.
const CINDER_LV: &str = "volume-";

/// A target that Mooring did not make.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Name of the target.
    pub target: String,
    /// `GROUP/LV`, if the backstore names an LV of a listed group.
    pub lv: Option<String>,
    /// Result of the survey.
    pub verdict: Verdict,
}

/// Result of the survey for one target.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The target was adopted, as the export of this volume.
    Adopted(VolumeId),
    /// The target can be adopted.
    Can(Box<Adoption>),
    /// The target cannot be adopted, for each of these reasons.
    Cannot(Vec<String>),
}

/// The adoption of one target.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// Id of the volume, by the tag of an adoption that was begun, or by Cinder's name of the LV.
    /// `None`: the volume gets a new id.
    pub volume: Option<VolumeId>,
    /// `true` if an adoption of the target was begun and interrupted.
    pub begun: bool,
    /// `true` if the volume is stored already.
    volume_kept: bool,
    /// LV of the volume.
    pub lv: AnyLv,
    /// Export of the volume.
    pub offer: Offer,
    /// The target as it was seen.
    seen: SeenTarget,
}

impl Adoption {
    /// Returns the spec of the volume that would be stored. `None` if the LV cannot be a volume.
    fn volume_spec(&self, id: VolumeId) -> Option<VolumeSpec> {
        let provisioning = self.lv.provisioning.as_ref().ok()?;
        Some(VolumeSpec::new(id, self.lv.group.clone(), self.lv.size, *provisioning))
    }

    /// Returns the number of live sessions of an initiator.
    pub fn sessions_of(&self, initiator: &str) -> usize {
        self.seen.sessions.get(initiator).map_or(0, Vec::len)
    }
}

/// Content of the store, as far as an adoption must know it.
#[derive(Debug, Default)]
pub struct Kept {
    volumes: BTreeMap<VolumeId, KeptVolume>,
    naas: BTreeMap<Naa, VolumeId>,
}

#[derive(Debug, Default)]
struct KeptVolume {
    /// Group of the volume, or that the volume has a tombstone.
    volume: Option<Result<VgName, Gone>>,
    export: Option<Result<ExportIdentity, Gone>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gone;

impl Kept {
    /// Reads the store.
    pub fn read(store: &Store, config: &Config) -> Result<Self, StoreError> {
        let mut kept = Self::default();
        for stored in store.specs()? {
            let of = kept.volumes.entry(stored.volume).or_default();
            match stored.kind {
                Kind::Volume => of.volume = Some(volume_of(&stored)?.map(|spec| spec.group)),
                Kind::Export => of.export = Some(export_of(&stored)?.map(|spec| spec.identity)),
                Kind::Connection => continue,
            }
            if let Some(Ok(identity)) = &of.export {
                kept.naas.insert(identity.names(stored.volume, &config.iqn_prefix).naa(), stored.volume);
            }
            kept.naas.entry(Naa::of_serial(&stored.volume.to_string())).or_insert(stored.volume);
        }
        Ok(kept)
    }
}

fn volume_of(stored: &StoredSpec) -> Result<Result<VolumeSpec, Gone>, StoreError> {
    let StoredContent::Spec(body) = &stored.content else { return Ok(Err(Gone)) };
    let wire = v1::VolumeSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
    mooring_api::volume_from_wire(stored.volume, &wire).map(Ok).map_err(|_| stored.corrupt())
}

fn export_of(stored: &StoredSpec) -> Result<Result<ExportSpec, Gone>, StoreError> {
    let StoredContent::Spec(body) = &stored.content else { return Ok(Err(Gone)) };
    let wire = v1::ExportSpec::decode(body.as_slice()).map_err(|_| stored.corrupt())?;
    mooring_api::export_from_wire(stored.volume, &wire).map(Ok).map_err(|_| stored.corrupt())
}

/// Reason why a survey failed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// LVM cannot be queried.
    #[error("cannot look at the logical volumes")]
    Volumes(#[source] lvm::Error),
    /// The kernel's target configuration cannot be read.
    #[error("cannot look at the targets")]
    Targets(#[source] mooring_targets::Error),
}

/// Surveys every target that Mooring did not make, and says of each what could be done.
///
/// `kept` is the content of the store. `None` while the agent works on it: then the tags of the LVs
/// say what was adopted.
pub fn survey(
    machine: &Machine,
    config: &Config,
    kept: Option<&Kept>,
) -> Result<Vec<Candidate>, SurveyError> {
    let lvs = lvm::all(&*machine.commands, &config.groups).map_err(SurveyError::Volumes)?;
    let seen = adopt::look(&*machine.target, &config.iqn_prefix).map_err(SurveyError::Targets)?;
    let surveyor = Surveyor { lvs: &lvs, kept, config };
    let mut candidates: Vec<_> = seen.iter().map(|target| surveyor.candidate(target)).collect();
    refuse_twins(&mut candidates);
    Ok(candidates)
}

struct Surveyor<'a> {
    lvs: &'a [AnyLv],
    kept: Option<&'a Kept>,
    config: &'a Config,
}

impl Surveyor<'_> {
    fn candidate(&self, seen: &SeenTarget) -> Candidate {
        if let Some((id, lv)) = self.adopted(seen) {
            return Candidate { target: seen.iqn.clone(), lv: Some(lv), verdict: Verdict::Adopted(id) };
        }
        let offer = match adopt::judge(seen) {
            Ok(offer) => offer,
            Err(reasons) => {
                return Candidate { target: seen.iqn.clone(), lv: None, verdict: Verdict::Cannot(reasons) };
            }
        };
        let names = format!("{}/{}", offer.group, offer.names.lv);
        let lv = self.lvs.iter().find(|lv| lv.id().to_string() == names);
        let verdict = match lv {
            None => Verdict::Cannot(vec![self.no_lv(&offer)]),
            Some(lv) => self.verdict(seen, offer, lv).unwrap_or_else(Verdict::Cannot),
        };
        Candidate { target: seen.iqn.clone(), lv: lv.map(|lv| lv.id().to_string()), verdict }
    }

    /// Returns the volume that the target was adopted as, and its LV, whatever became of it since.
    /// `None` if it was not. While the agent keeps its store to itself, the tags decide.
    fn adopted(&self, seen: &SeenTarget) -> Option<(VolumeId, String)> {
        let Some(kept) = self.kept else {
            let (group, names) = adopt::names_of(seen).ok()?;
            let of = format!("{group}/{}", names.lv);
            let lv = self.lvs.iter().find(|lv| lv.id().to_string() == of)?;
            let id = lv.ids().into_iter().find(|id| lv.is_tagged(*id))?;
            return Some((id, of));
        };
        kept.volumes.iter().find_map(|(id, kept)| match (&kept.volume, &kept.export) {
            (Some(Ok(group)), Some(Ok(ExportIdentity::Recorded { iqn, lv, .. })))
                if iqn.as_str() == seen.iqn =>
            {
                Some((*id, format!("{group}/{lv}")))
            }
            _ => None,
        })
    }

    fn no_lv(&self, offer: &Offer) -> String {
        let listed = self.config.groups.iter().any(|group| group.name.as_str() == offer.group);
        if listed {
            return format!("LVM shows no logical volume {}/{}", offer.group, offer.names.lv);
        }
        format!(
            "volume group {} is not in this agent's configuration: list it under [[groups]] if Mooring may use it",
            offer.group
        )
    }

    fn verdict(&self, seen: &SeenTarget, offer: Offer, lv: &AnyLv) -> Result<Verdict, Vec<String>> {
        let one = |why: String| vec![why];
        if is_ours_by_name(lv) {
            return Err(one(format!("its LV {} has a name of Mooring's own", lv.id())));
        }
        let ids = lv.ids();
        let tagged = match ids.iter().collect::<Vec<_>>().as_slice() {
            [] => None,
            [id] => Some(**id),
            _ => {
                return Err(one(format!(
                    "its LV {} has tags of several volumes: take the wrong ones away",
                    lv.id()
                )));
            }
        };
        let volume = tagged.or_else(|| cinder_id(lv));
        let mut reasons = Vec::new();
        reasons.extend(lv.provisioning.clone().err().map(|why| format!("its LV {}: {why}", lv.id())));
        if let Some(id) = volume {
            reasons.extend(self.taken(id, lv));
        }
        let naa = offer.names.naa();
        if let Some(other) =
            self.kept.and_then(|kept| kept.naas.get(&naa)).filter(|other| Some(**other) != volume)
        {
            reasons.push(format!("its identity on the wire, {naa}, is that of volume {other}"));
        }
        if !reasons.is_empty() {
            return Err(reasons);
        }
        let adoption = Adoption {
            volume,
            begun: volume.is_some_and(|id| lv.is_tagged(id)),
            volume_kept: volume.and_then(|id| self.of(id)).is_some_and(|kept| kept.volume.is_some()),
            lv: lv.clone(),
            offer,
            seen: seen.clone(),
        };
        let id = volume.unwrap_or_else(|| VolumeId::from_u128(1));
        if let Some(Err(error)) = adoption.volume_spec(id).map(|spec| spec.check()) {
            return Err(one(error.to_string()));
        }
        Ok(Verdict::Can(Box::new(adoption)))
    }

    fn of(&self, id: VolumeId) -> Option<&KeptVolume> {
        self.kept?.volumes.get(&id)
    }

    /// Returns the reasons why this LV cannot be the volume: other LVs, volumes or exports with
    /// that id.
    fn taken(&self, id: VolumeId, lv: &AnyLv) -> Vec<String> {
        let mut reasons = Vec::new();
        for other in self.lvs.iter().filter(|other| other.id() != lv.id() && other.ids().contains(&id)) {
            reasons.push(format!("volume {id} is {} already", other.id()));
        }
        let Some(kept) = self.of(id) else { return reasons };
        match &kept.volume {
            Some(Ok(group)) if *group == lv.group && lv.is_tagged(id) => {}
            Some(Ok(group)) => reasons.push(format!("a volume {id} is kept here already, in group {group}")),
            Some(Err(Gone)) => {
                reasons.push(format!(
                    "volume {id} was taken away from this agent: it cannot have that id again"
                ));
            }
            None => {}
        }
        match &kept.export {
            Some(Ok(identity)) => {
                let names = identity.names(id, &self.config.iqn_prefix);
                reasons.push(format!("volume {id} is exported as {} already", names.iqn));
            }
            Some(Err(Gone)) => {
                reasons.push(format!("the export of volume {id} was taken away from this agent"));
            }
            None => {}
        }
        reasons
    }
}

/// Returns `true` if the planner takes the LV's name for ours, whatever its tags say.
fn is_ours_by_name(lv: &AnyLv) -> bool {
    let name = lv.name.as_str();
    let ids = [LvName::volume(name), LvName::growing(name), LvName::snapshot(name)];
    ids.iter().any(Option::is_some) || LvName::is_thin_pool(name)
}

/// Returns the id of Cinder's volume, by the name of its LV. `None` if the name is not of that
/// form.
fn cinder_id(lv: &AnyLv) -> Option<VolumeId> {
    let id = lv.name.as_str().strip_prefix(CINDER_LV)?;
    id.parse().ok().filter(|volume: &VolumeId| volume.to_string() == id)
}

/// Refuses candidates that would become the same volume, or look like the same disk.
fn refuse_twins(candidates: &mut [Candidate]) {
    let mut seen = (BTreeMap::new(), BTreeMap::new());
    for candidate in candidates.iter() {
        let Verdict::Can(adoption) = &candidate.verdict else { continue };
        seen.0
            .entry(adoption.offer.names.naa())
            .or_insert_with(BTreeSet::new)
            .insert(candidate.target.clone());
        if let Some(id) = adoption.volume {
            seen.1.entry(id).or_insert_with(BTreeSet::new).insert(candidate.target.clone());
        }
    }
    for candidate in candidates {
        let Verdict::Can(adoption) = &candidate.verdict else { continue };
        let mut reasons = Vec::new();
        let others = |all: &BTreeSet<String>| {
            let others: Vec<_> = all.iter().filter(|name| **name != candidate.target).cloned().collect();
            (!others.is_empty()).then(|| others.join(", "))
        };
        let naa = adoption.offer.names.naa();
        if let Some(others) = seen.0.get(&naa).and_then(others) {
            reasons.push(format!("its identity on the wire, {naa}, is that of {others}, too"));
        }
        if let Some((id, others)) = adoption.volume.and_then(|id| Some((id, others(seen.1.get(&id)?)?))) {
            reasons.push(format!("it and {others} would both be volume {id}"));
        }
        if !reasons.is_empty() {
            candidate.verdict = Verdict::Cannot(reasons);
        }
    }
}

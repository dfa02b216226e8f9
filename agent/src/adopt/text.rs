//! Prints the plan and its outcome, in words and as JSON.
//!
//! What must never happen here: a secret. Of credentials the user's name is shown, and that there
//! is a secret.

use std::fmt::{self, Write as _};

use mooring_model::{Grant, LV_TAG, Provisioning, VolumeId, lv_volume_tag};
use serde::Serialize;

use super::{Adoption, Candidate, Verdict};

/// A candidate in printable form.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// Name of the target.
    pub target: String,
    /// `adopted`, `can be adopted`, `cannot be adopted`.
    pub state: &'static str,
    /// `GROUP/LV`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lv: Option<String>,
    /// Id of the volume, where it is known already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// Why the target cannot be adopted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Names that are stored for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Portals that the target listens on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub portals: Vec<String>,
    /// Initiators that have access.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<ShownGrant>,
    /// Steps of `--apply`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub now: Vec<String>,
    /// Steps of the agent at its next start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at_start: Vec<ShownStep>,
    /// Notes for the operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Names that are stored for ever.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    /// The portal group.
    pub portal_group: u16,
    /// LUN of the disk.
    pub lun: u16,
    /// Unit serial.
    pub serial: String,
    /// NAA identifier, by which initiators know the disk.
    pub naa: String,
    /// Folder of the backstore in configfs.
    pub backstore: String,
    /// `true` if INQUIRY shows the backstore's name in the place of the model.
    pub model_alias: bool,
    /// Size of the LV in bytes.
    pub size_bytes: u64,
    /// `thick` or `thin`.
    pub provisioning: &'static str,
}

/// One grant.
#[derive(Debug, Clone, Serialize)]
pub struct ShownGrant {
    /// The initiator.
    pub initiator: String,
    /// LUN that the initiator sees.
    pub lun: u16,
    /// `rw` or `ro`.
    pub mode: String,
    /// Name of the initiator's user for CHAP. The secret is stored, and never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chap_user: Option<String>,
    /// `true` if the target authenticates itself, too.
    pub mutual_chap: bool,
    /// Number of live sessions.
    pub sessions: usize,
}

/// One step of a plan.
#[derive(Debug, Clone, Serialize)]
pub struct ShownStep {
    /// Description of the step.
    pub step: String,
    /// Reason of the step.
    pub why: String,
}

/// Returns the printable form of a candidate.
pub fn show(candidate: &Candidate) -> Shown {
    let mut shown = Shown {
        target: candidate.target.clone(),
        state: "cannot be adopted",
        lv: candidate.lv.clone(),
        volume: None,
        reasons: Vec::new(),
        recorded: None,
        portals: Vec::new(),
        grants: Vec::new(),
        now: Vec::new(),
        at_start: Vec::new(),
        notes: Vec::new(),
    };
    match &candidate.verdict {
        Verdict::Adopted(id) => (shown.state, shown.volume) = ("adopted", Some(*id)),
        Verdict::Cannot(reasons) => shown.reasons.clone_from(reasons),
        Verdict::Can(adoption) => fill(&mut shown, adoption),
    }
    shown
}

fn fill(shown: &mut Shown, adoption: &Adoption) {
    let offer = &adoption.offer;
    shown.state = "can be adopted";
    shown.volume = adoption.volume;
    shown.recorded = Some(Recorded {
        portal_group: offer.names.tpg,
        lun: offer.names.lun.0,
        serial: offer.names.serial.clone(),
        naa: offer.names.naa().to_string(),
        backstore: format!("core/{}/{}", offer.names.backstore.hba, offer.names.backstore.name),
        model_alias: offer.names.model_alias,
        size_bytes: adoption.lv.size.0,
        provisioning: match adoption.lv.provisioning {
            Ok(Provisioning::Thin) => "thin",
            Ok(Provisioning::Thick) | Err(_) => "thick",
        },
    });
    shown.portals = offer.portals.iter().map(ToString::to_string).collect();
    let grant = |grant: &Grant| ShownGrant {
        initiator: grant.initiator.to_string(),
        lun: grant.lun.0,
        mode: grant.mode.to_string(),
        chap_user: grant.chap.as_ref().map(|chap| chap.initiator.user.clone()),
        mutual_chap: grant.chap.as_ref().is_some_and(|chap| chap.mutual.is_some()),
        sessions: adoption.sessions_of(grant.initiator.as_str()),
    };
    shown.grants = offer.grants.iter().map(grant).collect();
    shown.now = now(adoption);
    let step = |step: &mooring_model::Step<mooring_targets::Op>| ShownStep {
        step: step.op.to_string(),
        why: step.why.to_string(),
    };
    shown.at_start = offer.steps.steps.iter().map(step).collect();
    shown.notes.clone_from(&offer.notes);
    if adoption.begun {
        shown.notes.push("its adoption was begun and cut short: this goes on with it".to_owned());
    }
}

fn now(adoption: &Adoption) -> Vec<String> {
    let lv = adoption.lv.id();
    let (tag, id) = match adoption.volume {
        Some(id) => (lv_volume_tag(id), id.to_string()),
        None => ("mooring-volume-NEW_ID".to_owned(), "NEW_ID".to_owned()),
    };
    let mut now = Vec::new();
    if adoption.volume.is_none_or(|id| !adoption.lv.is_tagged(id)) {
        now.push(format!("tag {lv} with {LV_TAG} and {tag}; it keeps its name"));
    }
    if !adoption.volume_kept {
        now.push(format!("keep volume {id} in the agent's store"));
    }
    now.push(format!("keep its export in the agent's store, with {} grant(s)", adoption.offer.grants.len()));
    now
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut line = |word: &str, rest: &dyn fmt::Display| writeln!(text, "  {word:<11}{rest}");
        if let Some(lv) = &self.lv {
            line("LV", lv)?;
        }
        if let Some(id) = &self.volume {
            line("volume", id)?;
        } else if self.recorded.is_some() {
            line("volume", &"a new id")?;
        }
        if let Some(it) = &self.recorded {
            let alias = if it.model_alias { ", with its name as the model" } else { "" };
            line("size", &format_args!("{}, {}", mooring_model::ByteSize(it.size_bytes), it.provisioning))?;
            line(
                "recorded",
                &format_args!("portal group {}, LUN {}, unit serial {}", it.portal_group, it.lun, it.serial),
            )?;
            line("", &format_args!("NAA {}, backstore {}{alias}", it.naa, it.backstore))?;
        }
        for portal in &self.portals {
            line("portal", portal)?;
        }
        for grant in &self.grants {
            let chap = match (&grant.chap_user, grant.mutual_chap) {
                (Some(user), true) => format!("mutual CHAP as {user}"),
                (Some(user), false) => format!("CHAP as {user}"),
                (None, _) => "no CHAP".to_owned(),
            };
            let ShownGrant { initiator, lun, mode, sessions, .. } = grant;
            line(
                "grant",
                &format_args!("{initiator}, LUN {lun}, {mode}, {chap}, {sessions} live session(s)"),
            )?;
        }
        for step in &self.now {
            line("now", step)?;
        }
        for step in &self.at_start {
            line("at start", &format_args!("{}  # {}", step.step, step.why))?;
        }
        for reason in &self.reasons {
            line("because", reason)?;
        }
        for note in &self.notes {
            line("note", note)?;
        }
        writeln!(f, "{}: {}", self.target, self.state)?;
        f.write_str(&text)
    }
}

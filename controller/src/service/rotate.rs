//! New secrets for existing attachments, without a gap (decision 72). Sessions that are logged in
//! go on. `flow::rotate` carries a rotation on from this call to its end, by itself and across
//! restarts.
//!
//! What must never happen here: a rotation for a host that would not know the new secret before its
//! target demands it; one secret changed twice at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooring_model::{AttachmentId, Iqn, VolumeId};
use tokio::time::Instant;

use super::{Refusal, Service, Wait, not_in_review, told, volumes};
use crate::domain::{AttachmentLive, AttachmentStatus, Caller};
use crate::flow::Facts;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::initiators::Initiators;
use crate::permits;
use crate::rules::Operation;
use crate::store::{Abort, AttachmentRow, Db, Nexus, Stage, VolumeRow};

/// The secrets that a rotation replaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewSecrets {
    /// The attachment whose secrets are replaced; all attachments of its host and volume share
    /// them. `None`: the secrets of all attachments.
    pub attachment: Option<AttachmentId>,
    /// `true`: also the secrets of clients that log in by themselves. Such a client is refused
    /// until it gets the new ones.
    pub force: bool,
}

/// A rotation that was begun, or is in progress.
struct Begun {
    volume: VolumeId,
    attachments: Vec<AttachmentId>,
    nexuses: Vec<Iqn>,
    spec_changes: SpecChanges,
}

/// The initiator whose secrets an attachment uses, or the reason why none can be replaced.
fn initiator_of(row: &AttachmentRow) -> Result<Iqn, String> {
    let refuse = |why: &str| Err(format!("attachment {} {why}", row.id));
    match &row.initiator {
        None => refuse("is reserved and not connected: it gets a secret when it is"),
        Some(Initiators::Fc(_)) => refuse("is over Fibre Channel, where there is no secret"),
        Some(Initiators::Iscsi(_)) if row.is_going() || row.status == AttachmentStatus::ErrorDetaching => {
            refuse("is being detached: its secret goes with it")
        }
        Some(Initiators::Iscsi(_)) if !row.wants_grant() => refuse("is not granted: it has no secret"),
        Some(Initiators::Iscsi(iqn)) => Ok(iqn.clone()),
    }
}

/// The requested attachments, by initiator.
fn chosen(
    id: VolumeId,
    rows: &[AttachmentRow],
    new: NewSecrets,
) -> Result<BTreeMap<Iqn, Vec<&AttachmentRow>>, Refusal> {
    let named = |wanted: AttachmentId| {
        let found = rows.iter().find(|row| row.id == wanted);
        let missing = || Refusal::NotFound { kind: "Attachment", what: format!("{wanted} of volume {id}") };
        initiator_of(found.ok_or_else(missing)?).map_err(Refusal::Conflict)
    };
    let only = new.attachment.map(named).transpose()?;
    let mut nexuses: BTreeMap<Iqn, Vec<_>> = BTreeMap::new();
    for row in rows {
        match initiator_of(row) {
            Ok(iqn) if only.as_ref().is_none_or(|only| *only == iqn) => {
                nexuses.entry(iqn).or_default().push(row);
            }
            Ok(_) | Err(_) => {}
        }
    }
    if nexuses.is_empty() {
        let text = format!("volume {id} has no attachment with a secret: there is nothing to rotate");
        return Err(Refusal::Conflict(text));
    }
    Ok(nexuses)
}

/// Refuses a rotation that would leave a host without a secret that its target accepts.
fn may_rotate(facts: &Facts, caller: &Caller, row: &AttachmentRow, force: bool) -> Result<(), Refusal> {
    let Some(host) = row.native else {
        if force {
            return Ok(());
        }
        return Err(Refusal::Conflict(format!(
            "attachment {} is of a client that logs in by itself: the secret stands in the connection_info that it was given, \
             and it could not log in again after a loss of its session. Detach and attach it; or use force, and give the \
             client its new connection_info",
            row.id
        )));
    };
    let agent = facts.agents.up(host).map_err(|why| {
        Refusal::Unavailable(format!(
            "{}: a host must know the new secret before its target demands it. Nothing was changed; try again when it answers",
            told::why_down(facts, caller, why)
        ))
    })?;
    let Some(report) = agent.connection(row.volume).report else {
        let on = told::on_host(facts, caller, row);
        let text = format!("attachment {}{on}: the host has not said yet how it stands: try again", row.id);
        return Err(Refusal::Unavailable(text));
    };
    if report.secrets.is_none() {
        return Err(Refusal::Conflict(format!(
            "attachment {0}{1}: the host does not say which secrets it knows: its agent or mooring-sessiond is of an earlier release, \
             or does not answer. Update both and restart them (no session is lost by that), or see `mooring attachment show {0}`",
            row.id,
            told::on_host(facts, caller, row)
        )));
    }
    Ok(())
}

fn not_at_work(volume: &VolumeRow) -> Result<(), Refusal> {
    match volume.operation {
        // Growing does not change access, and may wait long for a host.
        None | Some(Operation::Extending | Operation::ErrorExtending) => Ok(()),
        Some(_) => Err(Refusal::Conflict(format!(
            "Invalid volume: an operation is running on volume {} (its status is: {}). Try again when it has ended",
            volume.id, volume.status
        ))),
    }
}

fn begin(facts: &Facts, db: &Db<'_>, caller: &Caller, id: VolumeId, new: NewSecrets) -> Result<Begun, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    facts.policies().check("mooring:rotate_secrets", caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    not_at_work(&volume)?;
    let rows = db.attachments_of(id)?;
    let nexuses = chosen(id, &rows, new)?;
    for row in nexuses.values().flatten() {
        may_rotate(facts, caller, row, new.force)?;
    }
    let mut changed = false;
    for (initiator, rows) in &nexuses {
        let rotation = db.rotation(id, initiator)?.unwrap_or_default();
        let Some(Nexus(old)) = db.nexus(id, initiator)? else { continue };
        // A rotation in progress already is what this call asks for.
        if rotation.stage.is_some() {
            continue;
        }
        let secrets = volume_specs::new_secrets(&old)?;
        if rows.iter().all(|row| row.native.is_some()) {
            db.put_secrets(id, initiator, &old, Some((Stage::Offered, Some(&secrets))))?;
        } else {
            db.put_secrets(id, initiator, &secrets, Some((Stage::Switched, None)))?;
        }
        changed = true;
    }
    let spec_changes = if changed {
        volume_specs::apply(db, id, &mut [], &BTreeSet::new())?
    } else {
        SpecChanges::default()
    };
    let attachments = nexuses.values().flatten().map(|row| row.id).collect();
    Ok(Begun { volume: id, attachments, nexuses: nexuses.into_keys().collect(), spec_changes })
}

/// The next thing for which a rotation waits. `None`: it has ended.
fn waits_for(facts: &Facts, db: &Db<'_>, of: &(VolumeId, Vec<Iqn>)) -> Result<Option<String>, Abort> {
    let (id, nexuses) = of;
    let Some(volume) = db.volume(*id)? else { return Ok(None) };
    let rows = db.attachments_of(*id)?;
    for initiator in nexuses {
        let stage = db.rotation(*id, initiator)?.and_then(|rotation| rotation.stage);
        let (agent, what) = match stage {
            None => continue,
            Some(Stage::Offered) => {
                let shares = |row: &&AttachmentRow| {
                    row.initiator.as_ref().and_then(Initiators::iqn) == Some(initiator)
                };
                let host = rows.iter().filter(shares).find_map(|row| row.native);
                (host.unwrap_or(volume.agent), "does not know the new secret yet")
            }
            Some(Stage::Switched | Stage::Settling) => {
                (volume.agent, "has not shown the new secret in its kernel yet")
            }
        };
        return Ok(Some(match facts.agents.up(agent) {
            Err(why) => why,
            Ok(agent) => format!("{} {what}", agent.entry.name),
        }));
    }
    Ok(None)
}

impl Service {
    /// Gives attachments of a volume new secrets. Answers once the targets have them and the old
    /// ones are void; else `Pending`. The work goes on by itself and shuts no host out. A repeated
    /// call begins no second rotation meanwhile.
    pub async fn rotate_secrets(
        &self,
        caller: &Caller,
        id: VolumeId,
        new: NewSecrets,
        wait: Wait,
    ) -> Result<Vec<AttachmentLive>, Refusal> {
        let deadline = Instant::now() + wait.0;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| begin(&facts, db, &owner, id, new);
        let begun = self.store.write("rotate secrets", write).await?;
        let mut changes = self.flow.follow(begun.volume);
        self.flow.go(begun.volume, &begun.spec_changes.hosts);
        loop {
            let (facts, of) = (self.facts.clone(), (begun.volume, begun.nexuses.clone()));
            let read = move |db: &Db<'_>| waits_for(&facts, db, &of);
            let Some(why) = self.store.read("read how a rotation stands", read).await? else { break };
            if permits::until(deadline, changes.changed()).await.is_err() {
                let why = self.waits_for(caller, why);
                return Err(Refusal::Pending(format!(
                    "the secrets of volume {id} are being rotated: {why}; it goes on by itself, sessions stay, and a host that logs in again \
                     meanwhile gets in. Ask again, or see secret_rotation of its attachments"
                )));
            }
        }
        let mut all = Vec::new();
        for id in begun.attachments {
            match self.live(caller, id, None, Wait(Duration::ZERO)).await {
                Ok(live) => all.push(live),
                // The attachment was detached meanwhile, or belongs to another project.
                Err(Refusal::NotFound { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(all)
    }
}

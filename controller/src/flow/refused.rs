//! Changes of an export that its agent refuses.
//!
//! What must never happen here: a refused change of one attachment that holds up the others for
//! ever; a grant given back for which no host can be asked to log out.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::{AgentId, AttachmentId, Cure, VolumeId};

use super::storage::Work;
use super::{AGAIN, Flow, Next, volume_specs};
use crate::agents::listener::Job;
use crate::agents::{Held, has_session};
use crate::error::Refusal;
use crate::initiators::Initiators;
use crate::store::{AttachmentRow, Db};

/// Returns `true` if the attachment's grant is given back when its agent refuses to revoke it: its
/// host is asked once more to log out.
fn gives_back(row: &AttachmentRow) -> bool {
    row.is_revoking() && !row.is_forced() && row.had_path()
}

/// Returns `true` if the attachment is revoked without force, and its host never got a path.
fn is_pathless(row: &AttachmentRow) -> bool {
    row.is_revoking() && !row.is_forced() && row.native.is_some() && !row.had_path()
}

fn ids_of(work: &Work, of: fn(&AttachmentRow) -> bool) -> Vec<AttachmentId> {
    work.rows.iter().filter(|row| of(row)).map(|row| row.id).collect()
}

/// Returns the attachments without a path whose end explains a refusal. Beside attachments whose
/// grant is coming (`alone` is `false`), these explain it only with a live session.
fn keeps_pathless(agent: &Held, work: &Work, alone: bool) -> Vec<AttachmentId> {
    let report = agent.export(work.volume.id);
    let is_live = |row: &&AttachmentRow| {
        let mut names = row.initiator.iter().flat_map(Initiators::each);
        alone || report.as_ref().is_some_and(|report| names.any(|one| has_session(report, &one)))
    };
    work.rows.iter().filter(|row| is_pathless(row)).filter(is_live).map(|row| row.id).collect()
}

impl Flow {
    /// Handles an agent that refused a change of the export. The attachment that caused the refusal
    /// must not hold up the others.
    pub(super) async fn export_refused(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        text: String,
        cure: Cure,
    ) -> Result<Next, Refusal> {
        let id = work.volume.id;
        tracing::warn!(volume = %id, error = text, "the agent does not take the export's spec");
        let (stays, fails) = (ids_of(work, gives_back), ids_of(work, AttachmentRow::is_coming));
        let by_removal = cure == Cure::FixSpec && !stays.is_empty();
        if cure == Cure::FixSpec && !by_removal {
            let pathless = keeps_pathless(agent, work, fails.is_empty());
            if !pathless.is_empty() {
                return self.revoke_refused(agent, id, pathless, text).await;
            }
        }
        let ids = if by_removal { stays } else { fails };
        if ids.is_empty() && cure == Cure::FixSpec {
            // No attachment explains the refusal: the agent grants somebody whom this database does
            // not know.
            return self.review(agent, id, &text).await;
        }
        if ids.is_empty() {
            return Ok(Next::After(AGAIN));
        }
        let write = move |db: &Db<'_>| {
            let mut rows = Vec::new();
            for mut row in db.attachments_of(id)?.into_iter().filter(|row| ids.contains(&row.id)) {
                // The row may have changed meanwhile: forced, or in another direction.
                let same = if by_removal { gives_back(&row) } else { row.is_coming() };
                if !same {
                    continue;
                }
                row.fault = Some(text.clone());
                if by_removal {
                    row.given_back();
                } else {
                    row.refused();
                    if row.is_going() {
                        db.keep_attach_failed(&row)?;
                    }
                }
                rows.push(row);
            }
            let hosts: BTreeSet<AgentId> = rows.iter().filter_map(|row| row.native).collect();
            Ok((volume_specs::apply(db, id, &mut rows, &BTreeSet::new())?, hosts))
        };
        let (spec_changes, hosts) = agent.store.write("take back a change", write).await?;
        self.go(id, &spec_changes.hosts);
        if by_removal {
            // The host has logged out, and its session at the target ends when the kernel notices.
            // Its job asks again.
            for host in hosts {
                let flow = Arc::clone(self);
                self.tasks.spawn(async move {
                    tokio::time::sleep(AGAIN).await;
                    flow.kick(Job::Host(id, host));
                });
            }
        }
        Ok(Next::Again)
    }

    /// Handles an agent that keeps the grant of attachments without a path. No host can be asked to
    /// log out, so no grant is given back: each of them keeps the reason, and the same spec is sent
    /// again.
    async fn revoke_refused(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        ids: Vec<AttachmentId>,
        text: String,
    ) -> Result<Next, Refusal> {
        let write = move |db: &Db<'_>| {
            // The row may have changed meanwhile.
            let keeps = |row: &AttachmentRow| {
                ids.contains(&row.id) && is_pathless(row) && row.fault.as_ref() != Some(&text)
            };
            let mut rows = db.attachments_of(id)?;
            rows.retain(keeps);
            for row in &mut rows {
                row.fault = Some(text.clone());
                db.put_attachment(row)?;
            }
            Ok(!rows.is_empty())
        };
        if agent.store.write("keep why a grant is not revoked", write).await? {
            self.touch(id);
        }
        Ok(Next::After(AGAIN))
    }
}

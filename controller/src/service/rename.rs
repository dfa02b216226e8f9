//! Renames an enrolled agent.
//!
//! Only the controller uses the name: the agent's certificate is bound to its enrolment, its
//! volumes and connections to its id. So a rename is one transaction and asks nothing of the agent.
//! Afterwards the controller dials the agent again, under the new name, with the same certificate.
//! Exports and attachments go on.
//!
//! What must never happen here: two agents of one name; a host of the configuration with another
//! name than there.

use std::sync::Arc;

use super::enrol::check_name;
use super::{Refusal, Service, TEXT_CHARS_MAX};
use crate::domain::Caller;
use crate::policy::Target;
use crate::store::{Abort, Db};

fn taken(why: String) -> Abort {
    Refusal::Conflict(why).into()
}

/// Refuses a new name that another host has, or under which volumes, attachments or fences are
/// known.
fn is_free(db: &Db<'_>, new: &str) -> Result<(), Abort> {
    if db.enrolment(new)?.is_some_and(|enrolment| !enrolment.revoked) {
        return Err(taken(format!("{new} is the name of another host: choose another")));
    }
    if let Some(row) = db.agent_named(new)? {
        let (volumes, connections) = (db.volumes_on(row.id)?.len(), db.connections_on(row.id)?.len());
        if volumes + connections > 0 {
            return Err(taken(format!(
                "{new} is the name of a host that was revoked and has {volumes} volume(s) and {connections} connection(s): choose \
                 another, or forget that one (`mooring host forget {new}`)"
            )));
        }
    }
    if db.is_attached_host(new)? {
        let why = format!("{new} is the name of a host that other clients attach volumes to: choose another");
        return Err(taken(why));
    }
    if db.fence_named(new)?.is_some() {
        let why =
            format!("{new} is fenced: lift that first (`mooring host unfence {new}`), or choose another");
        return Err(taken(why));
    }
    Ok(())
}

fn rename(shared: bool, db: &Db<'_>, old: &str, new: &str) -> Result<(), Abort> {
    match db.enrolment(old)? {
        None => {
            let what: String = old.chars().take(TEXT_CHARS_MAX).collect();
            return Err(Refusal::NotFound { kind: "Host", what }.into());
        }
        Some(enrolment) if enrolment.revoked => {
            let why = format!(
                "{old} was revoked: make a token for the new name, and let it join (`mooring host token {new}`)"
            );
            return Err(taken(why));
        }
        Some(_) => {}
    }
    is_free(db, new)?;
    if let Some(volume) = db.made_from_image_of(old)? {
        return Err(taken(format!(
            "volume {volume} is being made from an image of {old}: ask again when it is there"
        )));
    }
    Ok(db.rename_agent(old, new, shared)?)
}

impl Service {
    /// Gives an enrolled host another name. Its exports and attachments go on; the controller dials
    /// it again. `host@backend#pool` of its volumes and pools shows the new name from then on.
    /// Returns the parts of the configuration that still have the old name.
    pub async fn rename_host(&self, caller: &Caller, old: &str, new: &str) -> Result<Vec<String>, Refusal> {
        self.facts.policies().check("mooring:host_enrol", caller, &Target::default())?;
        check_name(new)?;
        if old == new {
            return Err(Refusal::Invalid(format!("name: the host is called {new} already")));
        }
        let configured = |name: &str| self.facts.options.agents.iter().any(|entry| entry.name == name);
        if configured(old) {
            return Err(Refusal::Conflict(format!(
                "{old} stands in the controller's configuration: change `name` in its [[agents]] table there, and restart the \
                 controller; what is kept of the host is taken along"
            )));
        }
        if configured(new) {
            return Err(Refusal::Conflict(format!(
                "{new} is a host of the controller's configuration ([[agents]]): choose another name"
            )));
        }
        let (flow, was, is) = (Arc::clone(&self.flow), old.to_owned(), new.to_owned());
        let (user, store) = (caller.user.clone(), self.store.clone());
        self.to_its_end(async move {
            let (shared, old, new) = (flow.reads.is_shared(), was.clone(), is.clone());
            let write = move |db: &Db<'_>| rename(shared, db, &old, &new);
            store.write("rename a host", write).await?;
            tracing::info!(host = was, new = is, %user, "a host is called otherwise");
            flow.notes.enrolled();
            flow.refresh_enrolments().await
        })
        .await?;
        let of = |(project, hosts): (&String, &std::collections::BTreeSet<String>)| {
            hosts.contains(old).then(|| {
                format!(
                    "the controller's configuration lets project {project} attach to {old} ([attach.hosts]): write {new} there, and \
                     restart the controller"
                )
            })
        };
        Ok(self.facts.options.native_hosts.iter().filter_map(of).collect())
    }
}

//! Quotas: the limits of a project, and its use. Use is counted from the rows themselves, in the
//! transaction that adds to it.
//!
//! What must never happen here: a limit that two requests at once pass together; a limit for a type
//! that does not exist; another project's use shown to a caller who may not ask for it.

use std::collections::BTreeMap;

use super::{Refusal, Service};
use crate::domain::{Caller, QuotaViolation, RuleViolation};
use crate::flow::Facts;
use crate::policy::Target;
use crate::quota::{self, Delta, Entry, Key, Limit, Limits};
use crate::store::{Abort, Db, VolumeRow};

/// The limits that apply to a project.
fn limits(facts: &Facts, db: &Db<'_>, project: &str) -> Result<Limits, Abort> {
    Ok(Limits {
        project: db.project_limits(project)?,
        class: db.class_limits()?,
        configured: facts.options.quotas.clone(),
    })
}

/// The answer to whether a change fits into a project's quotas. Counts nothing if nothing is
/// limited.
pub(super) fn verdict(
    facts: &Facts,
    db: &Db<'_>,
    project: &str,
    delta: &Delta,
) -> Result<Result<(), QuotaViolation>, Abort> {
    let limits = limits(facts, db, project)?;
    let limited = delta.keys().any(|(key, more)| more > 0 && limits.of(key) != Limit::Unlimited);
    let usage = if limited { db.usage(project)? } else { quota::Usage::new() };
    Ok(quota::check(&usage, &limits, delta))
}

/// As [`verdict`], with an excess as a refusal.
pub(super) fn check(facts: &Facts, db: &Db<'_>, project: &str, delta: &Delta) -> Result<(), Abort> {
    Ok(verdict(facts, db, project, delta)?.map_err(RuleViolation::Quota)?)
}

/// Refuses to extend a volume beyond its project's quotas.
pub(super) fn check_extend(facts: &Facts, db: &Db<'_>, volume: &VolumeRow, to_gib: u32) -> Result<(), Abort> {
    let name = db.type_by_id(volume.type_id)?.map_or_else(String::new, |found| found.name);
    check(facts, db, &volume.project, &Delta::extend(&name, volume.size_gib, to_gib))
}

/// Refuses limits for types that do not exist.
fn check_keys(db: &Db<'_>, limits: &BTreeMap<Key, Limit>) -> Result<(), Abort> {
    for key in limits.keys() {
        if let Some(name) = key.type_name().filter(|name| name.chars().count() <= super::TEXT_CHARS_MAX)
            && db.type_by_name(name)?.is_some()
        {
            continue;
        }
        if key.type_name().is_some() {
            let shown: String = key.to_string().chars().take(80).collect();
            let text = format!("Bad key(s) in quota set: {shown}: there is no such volume type");
            return Err(Refusal::Invalid(text).into());
        }
    }
    Ok(())
}

fn table(db: &Db<'_>, limits: &Limits, usage: &quota::Usage) -> Result<Vec<Entry>, Abort> {
    let names = db.type_names()?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    Ok(limits.table(usage, &names))
}

impl Service {
    /// A project's limits and use.
    pub async fn quotas(&self, caller: &Caller, project: &str) -> Result<Vec<Entry>, Refusal> {
        self.facts.policies().check("volume_extension:quotas:show", caller, &Target::of(project))?;
        let (facts, project) = (self.facts.clone(), project.to_owned());
        let read = move |db: &Db<'_>| table(db, &limits(&facts, db, &project)?, &db.usage(&project)?);
        self.store.read("read quotas", read).await
    }

    /// The limits of a project for which none are set.
    pub async fn default_quotas(&self, caller: &Caller, project: &str) -> Result<Vec<Entry>, Refusal> {
        self.facts.policies().check("volume_extension:quotas:show", caller, &Target::of(project))?;
        self.defaults("read default quotas").await
    }

    /// The default limits, as the default class.
    pub async fn class_quotas(&self, caller: &Caller) -> Result<Vec<Entry>, Refusal> {
        self.facts.policies().check("volume_extension:quota_classes:get", caller, &Target::own(caller))?;
        self.defaults("read default quotas").await
    }

    async fn defaults(&self, op: &'static str) -> Result<Vec<Entry>, Refusal> {
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let defaults = Limits { project: BTreeMap::new(), ..limits(&facts, db, "")? };
            table(db, &defaults, &quota::Usage::new())
        };
        self.store.read(op, read).await
    }

    /// Sets some of a project's limits. 400 for a limit below the project's use.
    pub async fn set_quotas(
        &self,
        caller: &Caller,
        project: &str,
        new: BTreeMap<Key, Limit>,
    ) -> Result<Vec<Entry>, Refusal> {
        self.facts.policies().check("volume_extension:quotas:update", caller, &Target::of(project))?;
        if project.is_empty() {
            return Err(Refusal::Invalid("an empty text is no project's id".to_owned()));
        }
        let (facts, project) = (self.facts.clone(), project.to_owned());
        let write = move |db: &Db<'_>| {
            check_keys(db, &new)?;
            let usage = db.usage(&project)?;
            for (key, limit) in &new {
                quota::may_set(key, *limit, &usage)?;
            }
            db.set_limits(Some(&project), &new)?;
            table(db, &limits(&facts, db, &project)?, &usage)
        };
        self.store.write("set quotas", write).await
    }

    /// Deletes a project's own limits: the defaults apply.
    pub async fn delete_quotas(&self, caller: &Caller, project: &str) -> Result<(), Refusal> {
        self.facts.policies().check("volume_extension:quotas:delete", caller, &Target::of(project))?;
        let project = project.to_owned();
        let write = move |db: &Db<'_>| Ok(db.delete_limits(&project)?);
        self.store.write("delete quotas", write).await
    }

    /// Sets some limits of the default class.
    pub async fn set_class_quotas(
        &self,
        caller: &Caller,
        new: BTreeMap<Key, Limit>,
    ) -> Result<Vec<Entry>, Refusal> {
        self.facts.policies().check("volume_extension:quota_classes:update", caller, &Target::own(caller))?;
        let write = move |db: &Db<'_>| {
            check_keys(db, &new)?;
            Ok(db.set_limits(None, &new)?)
        };
        self.store.write("set default quotas", write).await?;
        self.defaults("read default quotas").await
    }

    /// Limits and use of the caller's project (for an admin: of any project), for `GET /limits`.
    pub async fn limits(&self, caller: &Caller, project: Option<&str>) -> Result<Vec<Entry>, Refusal> {
        let project = project.filter(|_| caller.admin).unwrap_or(&caller.project).to_owned();
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| Ok(limits(&facts, db, &project)?.table(&db.usage(&project)?, &[]));
        self.store.read("read limits", read).await
    }
}

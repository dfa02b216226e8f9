//! The operations of the control plane, one method each. `http` calls these methods and nothing
//! else.
//!
//! What must never happen here: an acknowledgement before the transaction is durable; a detach
//! acknowledged without its receipt.

mod actions;
mod again;
mod attach;
mod audit;
mod cache;
mod check;
pub(crate) mod counts;
mod detach;
mod enrol;
mod expire;
mod failed;
pub(crate) mod fence;
mod forget;
mod images;
mod isolate;
mod jobs;
mod lists;
mod live;
mod manage;
mod mode;
mod operator;
mod pools;
mod quotas;
mod receipts;
mod records;
mod rename;
mod reservations;
mod retype;
mod revert;
mod rotate;
mod services;
mod sessions;
mod snapshot_actions;
mod snapshots;
mod told;
mod types;
mod units;
mod upload;
mod view;
mod volumes;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mooring_bus::Units;
use mooring_model::{ClusterId, ExportReport, Generation, Initiator, Mode, Problem, VolumeId};
use tokio::sync::{oneshot, watch};

pub use crate::agents::dial::{Dial, Dialled};

use crate::agents::{heard, lease, words};
use crate::audit::Audit;
use crate::domain::Caller;
pub use crate::domain::{AgentEntry, EntryEnrolment};
pub use crate::error::Refusal;
use crate::flow::enrolled::Enrolled;
use crate::flow::taking::UNSENT;
use crate::flow::{Facts, Flow, leases, review, volume_specs};
use crate::initiators::Initiators;
use crate::policy::Target;
use crate::rules::Operation;
use crate::store::{Abort, AttachmentRow, Db, Kind, ReviewKind, Store, StoreError, VolumeRow};
pub use crate::store::{Database, PostgresOptions};

pub use crate::flow::options::{
    Enroller, HOLD_DEFAULT, KEEP_AUDIT_DEFAULT, KEEP_RECORDS_DEFAULT, RESERVE_DEFAULT, SecretsOnGet,
    ServiceOptions,
};
pub use crate::flow::place::{DOWN_MAX, Scheduler, ZONE_DEFAULT};
pub use audit::{AUDIT_LINES_DEFAULT, AUDIT_LINES_MAX};
pub use detach::Way;
pub use enrol::{JOIN_TOKEN_LIFE, JoinRefused, JoinRequest, JoinTerms, Joined, NewJoinToken};
pub use fence::REASON_MAX;
pub use forget::FORGET_AFTER;
pub use mode::NewMode;
pub use receipts::RECORDS_MAX;
pub use rotate::NewSecrets;
pub use services::DISABLED_REASON_MAX;

/// Reasons why the control plane does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Options(String),
    /// The database cannot be opened.
    #[error("cannot open the controller's database")]
    Store(#[source] StoreError),
    /// The database refused the writes of the start.
    #[error("cannot prepare the controller's database")]
    Prepare(#[source] StoreError),
}

/// The control plane. Cheap to clone. Its tasks end when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) facts: Facts,
    pub(crate) flow: Arc<Flow>,
    pub(crate) store: Store,
    /// Lines of the audit log that are not in the database yet.
    audit: Arc<Audit>,
    /// States of systemd's units on this machine. Empty: nothing follows them.
    units: Arc<OnceLock<watch::Receiver<Option<Units>>>>,
    _guard: Arc<Guard>,
}

/// Ends the tasks when the last [`Service`] is dropped: the tasks themselves hold `Flow`, never
/// this guard.
#[derive(Debug)]
struct Guard(Arc<Flow>);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.tasks.take());
    }
}

/// Time that a call may wait for agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// The mode that applies when none is given.
pub const MODE_DEFAULT: Mode = Mode::ReadWrite;

/// Longest name, description or text of a key, in characters (Cinder's columns).
const TEXT_CHARS_MAX: usize = 255;

fn text_limit(what: &str, text: &str) -> Result<(), Refusal> {
    let chars = text.chars().count();
    if chars > TEXT_CHARS_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: {what} has {chars} characters, more than {TEXT_CHARS_MAX}."
        )));
    }
    Ok(())
}

/// Refuses changes to a volume that is in review. The reason names agents, and is not for projects:
/// the volume shows it to operators.
fn not_in_review(volume: &VolumeRow) -> Result<(), Refusal> {
    if volume.review.is_none() {
        return Ok(());
    }
    let (id, why) = (volume.id, told::IN_REVIEW);
    Err(Refusal::Unavailable(format!("volume {id} is in review: {why}, who sees the reason with the volume")))
}

/// Logs the volumes that share an NAA. Such volumes are older than the rule that forbids a shared
/// NAA, or an agent reported them.
fn name_twins(db: &Db<'_>) -> Result<(), Abort> {
    for (naa, volume) in db.twins()? {
        tracing::error!(
            %volume,
            naa,
            "volumes share an identity on the wire: each is attached to nobody new until the others are deleted"
        );
    }
    Ok(())
}

/// Refuses to attach a volume whose NAA another volume has, too: a host takes the two for one disk.
fn has_no_twin(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    match db.twin_of(volume)? {
        None => Ok(()),
        // The controller's log has the other volume's id and project. The caller gets neither.
        Some(_) => Err(Refusal::Conflict(format!(
            "volume {} cannot be attached: another volume of this cluster has the same identity on the wire, and a host could take \
             one for the other. Copy one of the two to a new volume and delete it; the controller's log names both",
            volume.id
        ))
        .into()),
    }
}

fn check(options: &ServiceOptions) -> Result<(), OpenError> {
    let mut names = BTreeSet::new();
    for entry in &options.agents {
        if entry.name.is_empty() || entry.name.len() > TEXT_CHARS_MAX {
            return Err(OpenError::Options(format!("agent {:?}: want a name of 1 to 255 bytes", entry.name)));
        }
        if !names.insert(&entry.name) {
            return Err(OpenError::Options(format!("agent {} is enrolled twice", entry.name)));
        }
    }
    Ok(())
}

impl Service {
    /// Opens the embedded database (blocks). The controller dials no agent before
    /// [`Service::start`].
    pub fn open(options: ServiceOptions) -> Result<Self, OpenError> {
        let database = Database::embedded(options.state_dir.clone());
        Self::open_on(options, database)
    }

    /// Opens the control plane on the given database (blocks), as [`Service::open`] does on the
    /// embedded one.
    pub fn open_on(options: ServiceOptions, database: Database) -> Result<Self, OpenError> {
        check(&options)?;
        let store =
            Store::open(database, options.cluster, options.clock.clone()).map_err(OpenError::Store)?;
        let restored = options.restored;
        let shared = store.dialer().is_some();
        let prepare = move |db: &Db<'_>| {
            let put_back = db.take_restored()?;
            if restored || put_back {
                if shared {
                    db.forget_controllers()?;
                }
                let epoch = db.raise_epoch(0)?;
                db.forget_compared()?;
                db.forget_fence_nodes()?;
                let volumes = db.review_all(ReviewKind::Restored, review::RESTORED)?;
                tracing::warn!(
                    epoch,
                    volumes,
                    "the database was restored: the epoch is raised, its volumes are in review"
                );
            }
            name_twins(db)?;
            Ok(Enrolled::all(db)?)
        };
        let enrolled = store.prepare("prepare the store", prepare).map_err(OpenError::Prepare)?;
        let flow = Arc::new(Flow::new(options, &store));
        flow.enrol(enrolled, true);
        let guard = Arc::new(Guard(Arc::clone(&flow)));
        let facts = flow.facts.clone();
        Ok(Self { facts, flow, store, audit: Arc::default(), units: Arc::default(), _guard: guard })
    }

    /// Starts to dial the agents, and resumes all unfinished work. Needs a tokio runtime.
    pub fn start(&self) {
        let tasks = &self.flow.tasks;
        tasks.spawn(heard::run(self.store.clone(), Arc::clone(&self.facts.agents)));
        let (audit, store, facts) = (Arc::clone(&self.audit), self.store.clone(), self.facts.clone());
        tasks.spawn(async move { audit::keep(&audit, &store, &facts).await });
        tasks.spawn(records::keep(self.store.clone(), self.facts.clone()));
        tasks.spawn(expire::keep(Arc::clone(&self.flow), self.store.clone()));
        tasks.spawn(Arc::clone(&self.flow).keep_certificates());
        let flow = Arc::clone(&self.flow);
        tasks.spawn(async move { flow.go_on_forgetting().await });
        if let Some(dialer) = self.store.dialer() {
            // The controller that gets an agent's lease resumes all unfinished work of that agent.
            tasks.spawn(leases::run(Arc::clone(&self.flow), dialer));
            return;
        }
        for agent in self.facts.agents.all().iter() {
            self.flow.drive(agent);
        }
        let flow = Arc::clone(&self.flow);
        tasks.spawn(async move {
            if let Err(refusal) = flow.resume().await {
                tracing::error!(error = %refusal, "cannot go on with what was on its way; it goes on when its agents are up");
            }
        });
    }

    /// Ends all tasks at once and writes the rest of the audit log. Every spec is durable: the next
    /// start resumes the work.
    pub async fn stop(&self) {
        if let Some(mut tasks) = self.flow.tasks.take() {
            tasks.shutdown().await;
        }
        self.audit.end(&self.store).await;
        if let Some(dialer) = self.store.dialer() {
            lease::leave(&self.flow.notes, &dialer).await;
        }
    }

    /// The cluster's id, which agents are pinned to.
    pub fn cluster(&self) -> ClusterId {
        self.store.cluster()
    }

    /// Number of transactions that have changed the database since the start: the cost of a
    /// request, in syncs. `None` if the store does not count them.
    pub fn commits(&self) -> Option<u64> {
        self.store.commits()
    }

    /// Raises the epoch, and returns the new one: every later change of a spec is newer than all
    /// before.
    pub async fn raise_epoch(&self, caller: &Caller) -> Result<u64, Refusal> {
        self.facts.policies().check("mooring:raise_epoch", caller, &Target::default())?;
        self.store.write("raise the epoch", |db| Ok(db.raise_epoch(0)?)).await
    }

    /// Ends a volume's review on an operator's word that the database's specs are right. The
    /// controller sends these specs again, newer than those that the agents store.
    ///
    /// The storage agent must be up: the controller compares generations with it. A host that is
    /// down counts as it reported last. Whatever that host brings back is older than the new specs.
    pub async fn confirm_review(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.facts.policies().check("mooring:confirm_review", caller, &Target::default())?;
        let facts = self.facts.clone();
        self.flow.ask(id).await;
        // Agents do not report each login as it happens, nor that somebody else has changed a spec.
        self.refresh(id).await;
        self.flow.learn_stamps(id).await;
        let write = move |db: &Db<'_>| confirm(&facts, db, id);
        let hosts = self.store.write("confirm a volume", write).await?;
        self.flow.go(id, &hosts);
        Ok(())
    }

    /// Does work to its end, even if its caller goes away in the middle: once the first half is
    /// written, the second half must follow.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (done, ended) = oneshot::channel();
        self.flow.tasks.spawn(async move {
            let _ = done.send(work.await);
        });
        let stops = || Err(Refusal::Unavailable("this controller stops: ask again".to_owned()));
        ended.await.unwrap_or_else(|_| stops())
    }

    /// The reason why a request for this volume waits.
    async fn why_waits(&self, id: VolumeId) -> String {
        let read = move |db: &Db<'_>| Ok(db.volume(id)?);
        match there(self.store.read_one("read a volume", read).await) {
            Err(why) => why.to_owned(),
            Ok(VolumeRow { review: Some(review), .. }) => format!("volume {id} is in review: {}", review.why),
            Ok(volume) => self.obstacle_of(&volume),
        }
    }

    /// The reason why a request that takes something away from this volume waits. A review delays
    /// no such request.
    async fn at_storage(&self, id: VolumeId) -> String {
        let read = move |db: &Db<'_>| Ok(db.volume(id)?);
        match there(self.store.read_one("read a volume", read).await) {
            Err(why) => why.to_owned(),
            Ok(volume) => self.obstacle_of(&volume),
        }
    }

    /// The reason why a volume's storage agent has not finished.
    fn obstacle_of(&self, volume: &VolumeRow) -> String {
        match self.facts.agents.up(volume.agent) {
            Err(why) => why,
            Ok(agent) => {
                let (name, report) = (&agent.entry.name, agent.export(volume.id));
                let why = report.and_then(|report| obstacle(name, &report.problems));
                why.unwrap_or_else(|| format!("agent {name} is working on it"))
            }
        }
    }
}

/// Unwraps the volume that was read. The error says why there is none.
fn there(read: Result<Option<VolumeRow>, Refusal>) -> Result<VolumeRow, &'static str> {
    match read {
        Ok(volume) => volume.ok_or("its volume is not there"),
        // The store has logged the reason.
        Err(_) => Err("the database cannot be read: see the controller's log"),
    }
}

/// The first problem that an agent reports. `None` if it reports no problem.
fn obstacle(agent: &str, problems: &[Problem]) -> Option<String> {
    problems.first().map(|problem| format!("{agent}: {problem}"))
}

fn confirm(facts: &Facts, db: &Db<'_>, id: VolumeId) -> Result<BTreeSet<mooring_model::AgentId>, Abort> {
    let volume = db.volume(id)?;
    let volume = volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: id.to_string() })?;
    if volume.operation == Some(Operation::Unknown) {
        let text = format!(
            "volume {id}: a later release has begun an operation at it that this one does not know: update this controller, \
             nothing can be confirmed before"
        );
        return Err(Refusal::Conflict(text).into());
    }
    if volume.review.is_none() {
        return Ok(BTreeSet::new());
    }
    let storage = facts.agents.up(volume.agent).map_err(Refusal::Unavailable)?;
    let mut rows = db.attachments_of(id)?;
    refuse_unknown_sessions(id, &rows, storage.export(id).as_ref())?;
    let hosts: BTreeSet<_> = db.connections_of(id)?.into_iter().collect();
    let mut kept = vec![
        (Kind::Volume, storage.volume_stamp(id).map(|stamp| stamp.generation)),
        (Kind::Export, storage.export_stamp(id).map(|stamp| stamp.generation)),
    ];
    let ours = db.generation_of(id, Kind::Export)?;
    for host in &hosts {
        let kind = Kind::Connection(*host);
        match facts.agents.up(*host) {
            Ok(agent) => kept.push((kind, agent.connection(id).stamp.map(|stamp| stamp.generation))),
            // The connection is gone, and its end is acknowledged.
            Err(_) if db.spec(id, kind)?.is_some_and(|spec| spec.settled) => {}
            Err(_) => {
                if !db.is_compared(*host)? {
                    // The agent may store specs of another history of the database.
                    db.raise_epoch(0)?;
                }
                kept.push((kind, None));
            }
        }
    }
    for generation in kept.iter().filter_map(|(_, generation)| *generation) {
        words::may_keep(db, generation)?.map_err(Refusal::Conflict)?;
    }
    let newest =
        kept.iter().filter_map(|(_, generation)| *generation).map(|generation| generation.epoch).max();
    if let Some(newest) = newest.filter(|newest| *newest > db.epoch().unwrap_or(0)) {
        db.raise_epoch(newest)?;
    }
    for (kind, generation) in kept {
        db.renew(id, kind, generation.unwrap_or(Generation::ZERO))?;
    }
    db.end_review(id)?;
    // Each attachment with an old generation in its row waits for the new one. The exception is an
    // attachment whose grant was revoked during the review: that one has its receipt.
    let is_taken =
        |row: &AttachmentRow| row.is_revoking() && row.in_spec_since != UNSENT && row.in_spec_since > ours;
    rows.retain(|row| row.has_grant() && !is_taken(row));
    for row in &mut rows {
        row.in_spec_since = Generation::ZERO;
    }
    volume_specs::apply(db, id, &mut rows, &BTreeSet::new())?;
    Ok(hosts)
}

/// Refuses to confirm while an initiator that no attachment names is logged in. An agent revokes no
/// grant that it was not told to revoke, so that initiator would keep its grant. The volume would
/// silently be in review again.
fn refuse_unknown_sessions(
    id: VolumeId,
    rows: &[AttachmentRow],
    report: Option<&ExportReport>,
) -> Result<(), Refusal> {
    let known: BTreeSet<_> =
        rows.iter().filter_map(|row| row.initiator.as_ref()).flat_map(Initiators::each).collect();
    let grants = report.map(|report| report.grants.as_slice()).unwrap_or_default();
    let iscsi = grants.iter().filter(|grant| !grant.sessions.is_empty());
    let ports = report.map(|report| report.fc.as_slice()).unwrap_or_default();
    let fc = ports.iter().flat_map(|port| &port.grants).filter(|grant| grant.logged_in);
    let live: BTreeSet<Initiator> = iscsi
        .map(|grant| grant.initiator.clone().into())
        .chain(fc.map(|grant| grant.initiator.into()))
        .collect();
    let unknown: Vec<_> = live.difference(&known).map(ToString::to_string).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Refusal::Conflict(format!(
        "volume {id}: logged in, and without an attachment here: {}. Log it out, or cut it off at its storage agent \
         (mooring --agent … --cluster … export revoke {id} --initiator … --force), then confirm again",
        unknown.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_cannot_be_read_is_no_volume_that_is_gone() {
        assert_eq!(there(Ok(None)).unwrap_err(), "its volume is not there");
        let failed = Refusal::Unavailable("the controller's database cannot be reached".to_owned());
        assert_eq!(there(Err(failed)).unwrap_err(), "the database cannot be read: see the controller's log");
    }
}

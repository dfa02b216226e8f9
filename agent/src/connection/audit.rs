//! Looks for the users of connections' disks, and how they use them: all disks in one walk, once a
//! minute and after each change.
//!
//! A user that goes by itself within [`USED_BRIEFLY`] is no problem: LVM and others read each new
//! disk for a moment. udev is never a problem: it closes the disk by itself, on a busy machine
//! after seconds.
//!
//! What must never happen here: a second walk beside one that hangs; a walk on a host where no
//! cache is off, unless somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use mooring_connectors::{BUFFERED_IO, UNSHARED_FILESYSTEM, disk_user, is_wrong, problems};
use mooring_host::{DiskError, DiskUser};
use mooring_model::limit::KERNEL_ANSWER_DEADLINE;
use mooring_model::{Cache, Chain, Cure, DiskCheck, HostDisk, VolumeId};
use tokio::sync::{Semaphore, oneshot};

use super::Connections;
use super::cell::{Audit, Cell};
use crate::engine::Refusal;
use crate::workers;

/// Seconds from one walk to the next, if nothing changes.
const EVERY_S: u32 = 60;

/// Most requested looks at once: one that hangs keeps its thread.
const CHECKS_MAX: usize = 4;

/// Time after which a user that stays is a problem.
const USED_BRIEFLY: Duration = Duration::from_millis(500);

/// The timing of the walks.
#[derive(Debug)]
pub(super) struct Audits {
    /// Seconds since the last walk began.
    waited_s: AtomicU32,
    /// `true` if something has changed since the last walk began.
    due: AtomicBool,
    at_work: AtomicBool,
    /// Places for requested looks.
    checks: Arc<Semaphore>,
}

impl Default for Audits {
    fn default() -> Self {
        Self {
            waited_s: AtomicU32::new(0),
            due: AtomicBool::new(false),
            at_work: AtomicBool::new(false),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
        }
    }
}

/// Numbers of connections whose disk is used wrongly, by problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wrong {
    pub(crate) buffered: u64,
    pub(crate) unshared: u64,
}

/// The verified disk of a connection.
struct Looked {
    cell: Arc<Cell>,
    disk: HostDisk,
    cache: Option<Cache>,
}

impl Looked {
    fn path(&self) -> PathBuf {
        PathBuf::from(&self.disk.path)
    }
}

/// Marks a walk as ended, however it ends.
struct AtWork<'a>(&'a AtomicBool);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Connections {
    /// Has a walk begin within a second.
    pub(super) fn audit_soon(&self) {
        self.shared.audits.due.store(true, Ordering::Release);
    }

    /// Begins a walk if one is due. Called each second.
    pub(super) fn audit_when_due(&self) {
        let audits = &self.shared.audits;
        let waited = audits.waited_s.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if !audits.due.load(Ordering::Acquire) && waited < EVERY_S {
            return;
        }
        if audits.at_work.swap(true, Ordering::AcqRel) {
            // The next walk begins behind this one.
            if waited >= EVERY_S {
                audits.waited_s.store(0, Ordering::Release);
                tracing::warn!(
                    "the look for who uses the disks has not returned for a minute: a process of this host hangs"
                );
            }
            return;
        }
        audits.due.store(false, Ordering::Release);
        audits.waited_s.store(0, Ordering::Release);
        let connections = self.clone();
        self.shared.workers.submit(move || {
            let _at_work = AtWork(&connections.shared.audits.at_work);
            connections.audit();
        });
    }

    fn looked(cell: Arc<Cell>) -> Option<Looked> {
        let looked = {
            let state = cell.state();
            state.spec()?;
            let report = state.last_report()?;
            report.disk.clone().map(|disk| (disk, report.cache))
        };
        looked.map(|(disk, cache)| Looked { cell, disk, cache })
    }

    /// Walks once for all disks whose cache is off.
    fn audit(&self) {
        let off = |looked: &Looked| looked.cache == Some(Cache::Off);
        let disks: Vec<_> = self.cells().into_iter().filter_map(Self::looked).filter(off).collect();
        if disks.is_empty() {
            return;
        }
        match self.lasting(&disks) {
            Ok(users) => {
                for looked in &disks {
                    if let Some(users) = users.get(&looked.path()) {
                        self.keep_audit(looked, users);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot look for who uses the disks; tried again in a minute");
            }
        }
    }

    fn users(&self, disks: &[Looked]) -> Result<BTreeMap<PathBuf, BTreeSet<DiskUser>>, DiskError> {
        let paths: Vec<_> = disks.iter().map(Looked::path).collect();
        Ok(self.shared.parts.disks.usage(&paths)?.disks)
    }

    /// The users that stay. Looks a second time only if the first look finds a wrong user.
    fn lasting(&self, disks: &[Looked]) -> Result<BTreeMap<PathBuf, BTreeSet<DiskUser>>, DiskError> {
        let first = self.users(disks)?;
        if !first.values().flatten().any(is_wrong) {
            return Ok(first);
        }
        workers::wait(USED_BRIEFLY);
        let second = self.users(disks)?;
        let both = |(path, users): (PathBuf, BTreeSet<DiskUser>)| {
            let stay = second.get(&path)?.intersection(&users).cloned().collect();
            Some((path, stay))
        };
        Ok(first.into_iter().filter_map(both).collect())
    }

    /// Keeps what a walk has found, and reports it if it is new.
    fn keep_audit(&self, looked: &Looked, users: &BTreeSet<DiskUser>) {
        let audit = Audit { sequence: looked.disk.sequence, problems: problems(users) };
        let said = {
            let mut state = looked.cell.state();
            if *state.audit() == audit {
                return;
            }
            let news = state.audit().problems != audit.problems;
            state.set_audit(audit);
            let report = self.report(looked.cell.id, &state).filter(|_| news);
            report.map(|report| (state.audit().problems_of(&report).to_vec(), report))
        };
        if let Some((found, report)) = said {
            for problem in found {
                tracing::warn!(volume = %looked.cell.id, %problem, "the disk's cache is off, and it is used otherwise");
            }
            self.publish(report);
        }
    }

    /// Looks now for the users of a connection's disk.
    pub async fn check_disk(&self, volume: VolumeId) -> Result<DiskCheck, Refusal> {
        let Some(cell) = self.known_cell(volume).filter(|cell| Self::has_spec(cell)) else {
            let why = format!("this host has no connection to volume {volume}: attach it first");
            return Err(Refusal::precondition(why, Cure::FixSpec));
        };
        let checks = &self.shared.audits.checks;
        let Ok(place) = Arc::clone(checks).try_acquire_owned() else {
            let why = format!("{CHECKS_MAX} looks for who uses a disk are at work, or hang: ask again later");
            return Err(Refusal::precondition(why, Cure::Retry));
        };
        let (done, result) = oneshot::channel();
        let connections = self.clone();
        self.shared.workers.submit(move || {
            let checked = connections.checked(cell);
            drop(place);
            drop(done.send(checked));
        });
        let why = match tokio::time::timeout(KERNEL_ANSWER_DEADLINE, result).await {
            Ok(Ok(checked)) => return checked,
            Ok(Err(_)) => format!(
                "the look for who uses the disk of volume {volume} ended without an answer: ask again; the agent's log may say why"
            ),
            Err(_) => format!(
                "the look for who uses the disk of volume {volume} has not returned after {} s: a process of this host hangs; ask again",
                KERNEL_ANSWER_DEADLINE.as_secs()
            ),
        };
        Err(Refusal::precondition(why, Cure::Retry))
    }

    fn checked(&self, cell: Arc<Cell>) -> Result<DiskCheck, Refusal> {
        let volume = cell.id;
        let Some(looked) = Self::looked(cell) else {
            return Ok(DiskCheck {
                disk: None,
                cache: None,
                users: Vec::new(),
                unseen: Vec::new(),
                problems: Vec::new(),
            });
        };
        let path = looked.path();
        let usage = self.shared.parts.disks.usage(std::slice::from_ref(&path));
        let usage =
            usage.map_err(|error| Refusal::precondition(Chain(&error).to_string(), Cure::Operator))?;
        let Some(users) = usage.disks.get(&path) else {
            let why = format!("the disk of volume {volume} has just gone: ask again");
            return Err(Refusal::precondition(why, Cure::Retry));
        };
        let off = looked.cache == Some(Cache::Off);
        let check = DiskCheck {
            cache: looked.cache,
            users: users.iter().map(disk_user).collect(),
            unseen: usage.unseen.into_iter().collect(),
            problems: if off { problems(users) } else { Vec::new() },
            disk: Some(looked.disk),
        };
        // The next walk reports a wrong user that stays.
        self.audit_soon();
        Ok(check)
    }

    /// Numbers of connections with each problem, by the last walk.
    pub(crate) fn wrong(&self) -> Wrong {
        let mut wrong = Wrong::default();
        for cell in self.cells() {
            let state = cell.state();
            let report = state.last_report().filter(|_| state.kept_spec().is_some());
            for problem in report.map_or(&[][..], |report| state.audit().problems_of(report)) {
                wrong.buffered += u64::from(problem.object == BUFFERED_IO);
                wrong.unshared += u64::from(problem.object == UNSHARED_FILESYSTEM);
            }
        }
        wrong
    }
}

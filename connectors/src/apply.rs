//! Runs the steps of a plan one by one and stops at the first that fails. Also holds the loop of
//! looking, planning and applying that brings a connection up or down. Blocks: call it on a thread
//! that can be lost.
//!
//! What must never happen here: a step on a disk that got the name of the one that was looked at; a
//! step that is done in another order; a wait without an end.

use std::ops::ControlFlow;
use std::time::Duration;

use mooring_model::{Plan, Step};

use crate::clock;
use crate::device::{self, Parts, Probe, Unit};
use crate::error::{Cause, Error};
use crate::links::{LinkName, ReadAhead};
use crate::op::{DiskRef, Op};
use crate::plan::{Wanted, plan};
use crate::view::{Memory, Once, View, view};
use crate::wire::End;

/// Time that a step waits for a login. The watch tells of a longer login, which holds no thread
/// meanwhile.
const LOGIN_WAIT: Duration = Duration::from_millis(500);

/// Time that a step waits for the end of a session.
const END_WAIT: Duration = Duration::from_millis(500);

/// Time that a scan waits for the block device. `sd` probes asynchronously, in milliseconds; a
/// uevent tells of a longer probe, which holds no thread meanwhile.
const DEVICE_WAIT: Duration = Duration::from_secs(1);

/// Time that a step waits for the removal of a disk. The write returns when the disk is removed, or
/// when another process is removing it.
const DELETE_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of looks in one pass. The longest way (a newer spec for a session that has ended,
/// a wrong disk deleted, found again, writable, linked) takes 8.
const ROUNDS_MAX: usize = 10;

/// Observes the steps of a plan: for stuck calls and fault points.
pub trait Observer {
    /// Called before a look.
    fn looking(&mut self) {}
    /// Called before a step. `Break` stops the plan here, with [`Error::Stopped`].
    fn before(&mut self, _index: usize, _step: &Step<Op>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// Called after a step that succeeded.
    fn after(&mut self, _index: usize, _step: &Step<Op>) {}
    /// Returns `true` if there is a newer spec: waiting on is of no use.
    fn is_stale(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl Observer for () {}

/// Result of a pass.
#[derive(Debug)]
pub struct Made {
    /// The last view; `None` if no look succeeded.
    pub view: Option<View>,
    /// The plan that is left, with its obstacles, or the error that ended the pass.
    pub left: Result<Plan<Op>, Error>,
}

/// Looks, plans and applies until no step is left, or none can be done.
pub fn make(parts: &Parts, wanted: &Wanted, memory: &mut Memory, observer: &mut dyn Observer) -> Made {
    memory.begin();
    let mut seen = None;
    for _ in 0..ROUNDS_MAX {
        observer.looking();
        let looked = match view(parts, wanted, memory) {
            Ok(looked) => looked,
            Err(error) => return Made { view: seen, left: Err(error) },
        };
        let plan = plan(wanted, &looked);
        if plan.steps.is_empty() {
            if let (Some(since), Some(_)) = (memory.logged_in.take(), looked.right()) {
                memory.device_took = Some(since.elapsed());
            }
            return Made { view: Some(looked), left: Ok(plan) };
        }
        if let Err(error) = apply(&plan, parts, memory, observer) {
            observer.looking();
            let looked = view(parts, wanted, memory).unwrap_or(looked);
            return Made { view: Some(looked), left: Err(error) };
        }
        seen = Some(looked);
    }
    Made { view: seen, left: Err(Error::Restless { rounds: ROUNDS_MAX }) }
}

/// Runs the steps in order.
pub fn apply(
    plan: &Plan<Op>,
    parts: &Parts,
    memory: &mut Memory,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let total = plan.steps.len();
    for (index, step) in plan.steps.iter().enumerate() {
        if observer.before(index, step).is_break() {
            return Err(Error::Stopped { index, total });
        }
        tracing::debug!(op = %step.op, why = %step.why, "step");
        run(&step.op, parts, memory, observer).map_err(|cause| Error::step(index, total, step, cause))?;
        observer.after(index, step);
    }
    Ok(())
}

fn run(op: &Op, parts: &Parts, memory: &mut Memory, observer: &dyn Observer) -> Result<(), Cause> {
    match op {
        Op::Login { spec } => {
            memory.tried.note(Once::Login);
            let status = parts.sessions.ensure(spec, LOGIN_WAIT)?;
            memory.session = Some(Some(status));
            memory.logged_in = Some(clock::instant());
        }
        Op::Scan { unit } => {
            memory.tried.note(Once::Scan);
            device::scan(&*parts.sys, *unit)?;
            // The scan was synchronous: a SCSI device that is absent now is absent. Only the block
            // device may still be on its way.
            device::wait_until(&parts.arrivals, DEVICE_WAIT, &|| observer.is_stale(), || {
                Ok::<_, Cause>(device::probe(&*parts.sys, *unit)? != Probe::NoBlock)
            })?;
        }
        Op::Rescan { unit } => {
            memory.tried.note(Once::Rescan);
            device::rescan(&*parts.sys, *unit)?;
        }
        Op::DeleteStale { unit } => {
            memory.tried.note(Once::Delete);
            memory.tried.allow_again(Once::Scan);
            delete(parts, *unit, observer)?;
        }
        Op::DeleteDisk { unit } => delete(parts, *unit, observer)?,
        Op::SetReadOnly { disk, read_only } => {
            check(parts, disk)?;
            parts.disks.set_read_only(&disk.path, *read_only)?;
        }
        Op::DropPages { disk } => {
            check(parts, disk)?;
            parts.disks.drop_pages(&disk.path)?;
        }
        Op::Flush { disk } => {
            check(parts, disk)?;
            parts.disks.flush(&disk.path)?;
        }
        Op::StopReadAhead { volume, disk, before } => {
            check(parts, disk)?;
            let kept = ReadAhead { sequence: disk.sequence, sectors: *before };
            // Recorded before the change: afterwards nobody could tell the old value any more.
            parts.links.keep_read_ahead(*volume, Some(kept))?;
            parts.disks.set_read_ahead(&disk.path, 0)?;
        }
        Op::RestoreReadAhead { volume, disk, to } => {
            check(parts, disk)?;
            parts.disks.set_read_ahead(&disk.path, *to)?;
            parts.links.keep_read_ahead(*volume, None)?;
        }
        Op::ForgetReadAhead { volume } => parts.links.keep_read_ahead(*volume, None)?,
        Op::Link { volume, link, disk } => {
            check(parts, disk)?;
            parts.links.make(*volume, *link, &disk.path)?;
            if let LinkName::Volume(_) = link {
                parts.links.name_disk(*volume, disk)?;
            }
        }
        Op::Unlink { volume, link } => parts.links.remove(*volume, *link)?,
        Op::Logout { volume } => end(parts, memory, *volume, End::Logout)?,
        Op::EndSession { volume } => end(parts, memory, *volume, End::Cut)?,
    }
    Ok(())
}

fn end(parts: &Parts, memory: &mut Memory, volume: mooring_model::VolumeId, how: End) -> Result<(), Cause> {
    memory.tried.note(Once::End);
    memory.session = Some(parts.sessions.end(volume, how, END_WAIT)?);
    Ok(())
}

fn delete(parts: &Parts, unit: Unit, observer: &dyn Observer) -> Result<(), Cause> {
    device::delete(&*parts.sys, unit)?;
    let gone = device::wait_until(&parts.arrivals, DELETE_WAIT, &|| observer.is_stale(), || {
        Ok::<_, Cause>(device::probe(&*parts.sys, unit)? == Probe::Absent)
    })?;
    if gone { Ok(()) } else { Err(Cause::Lingers { seconds: DELETE_WAIT.as_secs() }) }
}

/// Checks the sequence number: the kernel may have given the disk's name to another disk by now.
fn check(parts: &Parts, disk: &DiskRef) -> Result<(), Cause> {
    if disk.sequence == 0 {
        return Ok(());
    }
    match parts.disks.sequence(&disk.path)? {
        found if found == disk.sequence => Ok(()),
        found => Err(Cause::Changed { path: disk.path.clone(), found, wanted: disk.sequence }),
    }
}

//! Does the steps of a plan, one by one, and stops at the first that fails.
//!
//! What must never happen here: a step that is tried twice, skipped, or done in another order; a device that is zeroed
//! without being the size of its LV.

use std::ops::ControlFlow;

use mooring_host::{BlockDevices, Commands};
use mooring_model::{ByteSize, LV_TAG, LV_UNZEROED_TAG, Plan, Step};

use super::device_path;
use super::error::Error;
use super::lvm::Lvm;
use super::plan::{LvId, VolumeOp};

/// Bytes zeroed by one call: some 50 ms on a disk that must write them all, so that progress is seen and a stop is quick.
/// Whoever changes the grants of a volume that grows waits for one of them.
pub const ZERO_CHUNK: u64 = 16 << 20;

/// Watches the steps of a plan: for progress, stuck calls and fault points.
pub trait Observer {
    /// Before a step; `Break` stops here, with [`Error::Stopped`].
    fn before(&mut self, _index: usize, _step: &Step<VolumeOp>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// After a step that succeeded. A step that failed has no `after`: [`apply`] returns its error.
    fn after(&mut self, _index: usize, _step: &Step<VolumeOp>) {}

    /// How many bytes of the LV of this identity were zeroed by an earlier pass that was stopped.
    fn resume(&mut self, _uuid: &str) -> u64 {
        0
    }

    /// So many bytes of the LV of this identity are zeroed; `Break` stops there, with [`Error::Stopped`].
    fn zeroed(&mut self, _uuid: &str, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Watches nothing.
impl Observer for () {}

/// Does the steps.
pub fn apply(
    plan: &Plan<VolumeOp>,
    commands: &dyn Commands,
    blocks: &dyn BlockDevices,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let lvm = Lvm(commands);
    for (index, step) in plan.steps.iter().enumerate() {
        let stopped = || Error::Stopped { step: index + 1, of: plan.steps.len() };
        if observer.before(index, step).is_break() {
            return Err(stopped());
        }
        tracing::debug!(op = %step.op, why = %step.why, "step");
        match &step.op {
            VolumeOp::Create { lv, size } => lvm.create(lv, *size, &[LV_TAG, LV_UNZEROED_TAG]),
            VolumeOp::Activate { lv } => lvm.activate(lv),
            VolumeOp::MarkUnzeroed { lv } => lvm.add_tag(lv, LV_UNZEROED_TAG),
            VolumeOp::Zero { lv, size } => match zero(&lvm, lv, *size, blocks, observer) {
                Ok(ControlFlow::Break(())) => Err(stopped()),
                Ok(ControlFlow::Continue(())) => Ok(()),
                Err(error) => Err(error),
            },
            VolumeOp::MarkZeroed { lv } => lvm.delete_tag(lv, LV_UNZEROED_TAG),
            VolumeOp::Append { lv, growth, .. } => lvm.append(lv, growth),
            VolumeOp::RemoveGrowth { lv } | VolumeOp::Remove { lv } => lvm.remove(lv),
        }?;
        observer.after(index, step);
    }
    Ok(())
}

fn zero(
    lvm: &Lvm<'_>,
    lv: &LvId,
    size: ByteSize,
    blocks: &dyn BlockDevices,
    observer: &mut dyn Observer,
) -> Result<ControlFlow<()>, Error> {
    let path = device_path(lv.group.as_str(), lv.name.as_str());
    let found = blocks.size(&path).map_err(|source| Error::device(path.clone(), source))?;
    match found {
        None => return Err(Error::NoDevice { path }),
        Some(found) if found != size.0 => return Err(Error::DeviceSize { path, found, wanted: size.0 }),
        Some(_) => {}
    }
    // An LV that was made anew under the name has another identity, and begins at its beginning.
    let uuid = lvm.uuid(lv)?.unwrap_or_default();
    let mut done = if uuid.is_empty() { 0 } else { observer.resume(&uuid).min(size.0) };
    while observer.zeroed(&uuid, done).is_continue() {
        if done == size.0 {
            return Ok(ControlFlow::Continue(()));
        }
        let length = ZERO_CHUNK.min(size.0 - done);
        blocks.zero(&path, done, length).map_err(|source| Error::device(path.clone(), source))?;
        done += length;
    }
    Ok(ControlFlow::Break(()))
}

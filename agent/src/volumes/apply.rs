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
pub const ZERO_CHUNK: u64 = 64 << 20;

/// Watches the steps of a plan: for progress, stuck calls and fault points.
pub trait Observer {
    /// Before a step; `Break` stops here, with [`Error::Stopped`].
    fn before(&mut self, _index: usize, _step: &Step<VolumeOp>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// After a step that succeeded. A step that failed has no `after`: [`apply`] returns its error.
    fn after(&mut self, _index: usize, _step: &Step<VolumeOp>) {}

    /// So many bytes of the step at work are zeroed.
    fn zeroed(&mut self, _bytes: u64) {}
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
        if observer.before(index, step).is_break() {
            return Err(Error::Stopped { step: index + 1, of: plan.steps.len() });
        }
        tracing::debug!(op = %step.op, why = %step.why, "step");
        match &step.op {
            VolumeOp::Create { lv, size } => lvm.create(lv, *size, &[LV_TAG, LV_UNZEROED_TAG]),
            VolumeOp::Activate { lv } => lvm.activate(lv),
            VolumeOp::MarkUnzeroed { lv } => lvm.add_tag(lv, LV_UNZEROED_TAG),
            VolumeOp::Zero { lv, size } => zero(lv, *size, blocks, observer),
            VolumeOp::MarkZeroed { lv } => lvm.delete_tag(lv, LV_UNZEROED_TAG),
            VolumeOp::Remove { lv } => lvm.remove(lv),
        }?;
        observer.after(index, step);
    }
    Ok(())
}

fn zero(
    lv: &LvId,
    size: ByteSize,
    blocks: &dyn BlockDevices,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let path = device_path(lv.group.as_str(), lv.name.as_str());
    let found = blocks.size(&path).map_err(|source| Error::device(path.clone(), source))?;
    match found {
        None => return Err(Error::NoDevice { path }),
        Some(found) if found != size.0 => return Err(Error::DeviceSize { path, found, wanted: size.0 }),
        Some(_) => {}
    }
    let mut done = 0;
    observer.zeroed(done);
    while done < size.0 {
        let length = ZERO_CHUNK.min(size.0 - done);
        blocks.zero(&path, done, length).map_err(|source| Error::device(path.clone(), source))?;
        done += length;
        observer.zeroed(done);
    }
    Ok(())
}

//! Executes the steps of a plan one by one, and stops at the first that fails.
//!
//! What must never happen here: a step that is tried twice, skipped, or done in another order; a
//! device that is zeroed, discarded or imported into, and is not the size of its LV; discarded
//! blocks taken for zeroed ones; a mark that claims more than was zeroed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use mooring_host::{BlockDevices, Commands, Errno};
use mooring_model::{
    ByteSize, Chain, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG, Plan, Step, lv_revert_tag, lv_volume_tag,
};

use super::commands::{Lvm, mark};
use super::error::Error;
use super::plan::{LvId, MIB, VolumeOp, zeroed_before};
use super::{device_path, import, upload};
use crate::images::Images;

/// Bytes zeroed by one call.
///
/// A disk that must write them all takes some 50 ms, so that progress shows and a stop is quick. A
/// change of grants of a growing volume waits for one such call.
pub const ZERO_CHUNK: u64 = 16 << 20;

/// Bytes discarded by one call. A disk takes them in well under a second, so that progress shows
/// and a stop is quick.
pub const DISCARD_CHUNK: u64 = 256 << 20;

/// Distance in bytes between two marks of a zeroing or a copy on its LV.
///
/// After a crash the work goes on at the last mark. Each mark changes the group's metadata; an LV
/// larger than 64 times this gets 64 marks.
pub const MARK_BYTES: u64 = 1 << 30;

const MARKS_MAX: u64 = 64;

/// Maximum number of LVs that one command activates. Under software emulation each takes 0.2 s with
/// udev's part, and a command has two minutes.
const ACTIVATED_MAX: usize = 256;

/// Kind of work that is done to all blocks of an LV, piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The blocks read as zeros afterwards.
    Zero,
    /// The blocks read as anything afterwards.
    Discard,
    /// The blocks read as an image afterwards.
    Import,
    /// The blocks are read, and a file holds them afterwards.
    Export,
}

impl Work {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Discard => "discard",
            Self::Import => "import",
            Self::Export => "read",
        }
    }
}

/// Observes the steps of a plan: for progress, stuck calls and fault points.
pub trait Observer {
    /// Called before a step. `Break` stops the plan here, with [`Error::Stopped`].
    fn before(&mut self, _index: usize, _step: &Step<VolumeOp>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called after a step that succeeded. For a step that failed, [`apply`] returns its error and
    /// does not call this.
    fn after(&mut self, _index: usize, _step: &Step<VolumeOp>) {}

    /// Returns how many bytes of this LV an earlier, stopped pass of the same work has done.
    ///
    /// For an import the identity consists of LVM's UUID and the identity of the image.
    fn resume(&mut self, _work: Work, _uuid: &str) -> u64 {
        0
    }

    /// Returns the size in bytes of the next piece: at most `most`, in whole MiB.
    fn piece(&mut self, _work: Work, most: u64) -> u64 {
        most
    }

    /// Returns the number of bytes between two marks on the LV; `every` is the usual distance.
    fn mark_every(&mut self, every: u64) -> u64 {
        every
    }

    /// Returns `true` if a stopped job leaves a mark where it stops, because no later pass of this
    /// agent resumes it.
    fn marks_where_it_stops(&self) -> bool {
        false
    }

    /// Called when a piece of this many bytes was written.
    fn wrote(&mut self, _bytes: u64) {}

    /// Called when this many bytes of the LV are done. `Break` stops there, with
    /// [`Error::Stopped`].
    fn done(&mut self, _work: Work, _uuid: &str, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Observes nothing.
impl Observer for () {}

/// Activates many LVs, some hundred with each command, because each command reads the metadata of a
/// whole group.
///
/// Tries all of them, and returns the first error.
pub fn activate(commands: &dyn Commands, lvs: &[LvId]) -> Result<(), Error> {
    let lvm = Lvm(commands);
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for lv in lvs {
        groups.entry(&lv.group).or_default().push(lv);
    }
    let chunks = groups.values().flat_map(|lvs| lvs.chunks(ACTIVATED_MAX));
    let results: Vec<_> = chunks.map(|lvs| lvm.activate_all(lvs)).collect();
    results.into_iter().collect()
}

/// Interfaces to the machine that the steps use.
#[derive(Clone, Copy)]
pub struct Hands<'a> {
    /// Runs the commands of LVM.
    pub commands: &'a dyn Commands,
    /// Opens the devices of the LVs.
    pub blocks: &'a dyn BlockDevices,
    /// Images of this host. `None` if the host reads no images.
    pub images: Option<&'a Images>,
}

/// Executes the steps on a host that reads no images.
pub fn apply(
    plan: &Plan<VolumeOp>,
    commands: &dyn Commands,
    blocks: &dyn BlockDevices,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    apply_with(plan, Hands { commands, blocks, images: None }, observer)
}

/// Executes the steps. When this returns `Ok`, LVM's changes survive a power cut.
pub fn apply_with(plan: &Plan<VolumeOp>, hands: Hands<'_>, observer: &mut dyn Observer) -> Result<(), Error> {
    let mut unflushed = None;
    let done = apply_steps(plan, hands, observer, &mut unflushed);
    // Steps that succeeded before an error are flushed, too: the next plan finds them done.
    let flushed = unflushed.map_or(Ok(()), |lvs: [&LvId; 2]| flush(hands.blocks, lvs));
    done.and(flushed)
}

/// Returns the LVs through whose devices this step's change of LVM's metadata is flushed. At least
/// one of them should have a device.
///
/// Every disk of the group holds all of the metadata, and after a power cut LVM believes the
/// newest. One flushed disk is therefore enough. `None` if the step changes no metadata, or leaves
/// no device to flush: an LV that comes back after its removal is removed again.
fn changes(op: &VolumeOp) -> Option<[&LvId; 2]> {
    match op {
        VolumeOp::Create { lv, .. }
        | VolumeOp::MarkUnzeroed { lv }
        | VolumeOp::Unmark { lv, .. }
        | VolumeOp::MarkZeroed { lv }
        | VolumeOp::Append { lv, .. }
        | VolumeOp::Rename { lv, .. }
        | VolumeOp::Own { lv }
        | VolumeOp::Retag { lv, .. }
        | VolumeOp::Disown { lv, .. }
        | VolumeOp::CreateThin { lv, .. }
        | VolumeOp::CreateForImage { lv, .. }
        | VolumeOp::MarkImporting { lv }
        | VolumeOp::MarkImported { lv }
        | VolumeOp::Extend { lv, .. } => Some([lv, lv]),
        // A snapshot has no device while nobody needs it.
        VolumeOp::Snapshot { lv, of: other }
        | VolumeOp::Clone { lv, from: other }
        | VolumeOp::CloneForRevert { lv, from: other, .. } => Some([lv, other]),
        VolumeOp::Activate { .. }
        | VolumeOp::Zero { .. }
        | VolumeOp::Discard { .. }
        | VolumeOp::RemoveGrowth { .. }
        | VolumeOp::RemoveCopy { .. }
        | VolumeOp::RemoveReverted { .. }
        | VolumeOp::Remove { .. }
        | VolumeOp::CreatePool { .. }
        | VolumeOp::CheckImage { .. }
        | VolumeOp::Import { .. }
        | VolumeOp::Upload { .. } => None,
    }
}

/// Flushes the disks below the first of these LVs that has a device.
fn flush(blocks: &dyn BlockDevices, lvs: [&LvId; 2]) -> Result<(), Error> {
    for lv in lvs {
        let path = device_path(lv.group.as_str(), lv.name.as_str());
        match blocks.flush(&path) {
            Err(error) if error.errno == Errno::ENOENT => {}
            done => return done.map_err(|source| Error::device("flush", path, source)),
        }
    }
    // LVM's own write reaches the disk soon, and a power cut before that undoes the step as a
    // whole.
    tracing::debug!(lv = %lvs[0], "no active device of the LVs: what LVM has written is not flushed");
    Ok(())
}

fn apply_steps<'a>(
    plan: &'a Plan<VolumeOp>,
    hands: Hands<'_>,
    observer: &mut dyn Observer,
    unflushed: &mut Option<[&'a LvId; 2]>,
) -> Result<(), Error> {
    let Hands { commands, blocks, .. } = hands;
    let lvm = Lvm(commands);
    // Marks of a zeroing and of a copy that the tags of the current LV carry.
    let (mut marked, mut copied) = (Vec::new(), Vec::new());
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
            VolumeOp::Unmark { lv, marks, copied } => {
                let copied = copied.iter().map(ToString::to_string);
                lvm.delete_tags(lv, &tags_of(marks).into_iter().chain(copied).collect::<Vec<_>>())
            }
            VolumeOp::Zero { lv, size, marks } => {
                marked.clone_from(marks);
                wipe(&lvm, (lv, *size), blocks, Work::Zero, (&mut marked, observer))
                    .and_then(|ended| ended.ok_or_else(stopped))
            }
            VolumeOp::Discard { lv, size } => {
                wipe(&lvm, (lv, *size), blocks, Work::Discard, (&mut Vec::new(), observer))
                    .and_then(|ended| ended.ok_or_else(stopped))
            }
            VolumeOp::MarkZeroed { lv } => {
                // The mark that claims the most is deleted last: a crash between two deletions only
                // repeats some zeroing.
                let mut tags = tags_of(&std::mem::take(&mut marked));
                tags.push(LV_UNZEROED_TAG.to_owned());
                lvm.delete_tags(lv, &tags)
            }
            VolumeOp::Append { lv, growth, .. } => lvm.append(lv, growth),
            VolumeOp::Rename { lv, from, uuid } => lvm.rename(from, lv, uuid),
            VolumeOp::Own { lv } => lvm.add_tag(lv, LV_TAG),
            VolumeOp::Retag { lv, tags } => {
                lvm.add_tags(lv, &tags.iter().map(String::as_str).collect::<Vec<_>>())
            }
            VolumeOp::Disown { lv, volume } => {
                lvm.delete_tags(lv, &[LV_TAG.to_owned(), lv_volume_tag(*volume)])
            }
            VolumeOp::RemoveGrowth { lv }
            | VolumeOp::RemoveCopy { lv }
            | VolumeOp::RemoveReverted { lv, .. }
            | VolumeOp::Remove { lv } => lvm.remove(lv),
            VolumeOp::CreatePool { lv, size } => lvm.create_pool(lv, *size),
            VolumeOp::CreateThin { lv, size } => lvm.create_thin(lv, *size, &[LV_TAG]),
            VolumeOp::CheckImage { image, size, .. } => import::open(hands, image, *size).map(drop),
            VolumeOp::CreateForImage { lv, size, thin: false } => lvm.create(lv, *size, &import::TAGS),
            VolumeOp::CreateForImage { lv, size, thin: true } => lvm.create_thin(lv, *size, &import::TAGS),
            VolumeOp::Import { lv, size, thin, image, copied: before } => {
                copied.clone_from(before);
                import::copy(&lvm, (lv, *size, *thin), (image, &mut copied), hands, observer)
                    .and_then(|ended| ended.ok_or_else(stopped))
            }
            VolumeOp::Upload { lv, part, op } => {
                upload::apply((lv, *part), op, hands, observer).and_then(|ended| ended.ok_or_else(stopped))
            }
            VolumeOp::MarkImporting { lv } => lvm.add_tag(lv, LV_IMPORTING_TAG),
            VolumeOp::MarkImported { lv } => lvm.delete_tags(lv, &import::ended_tags(&copied)),
            VolumeOp::Snapshot { lv, of } => lvm.snapshot(lv, of),
            VolumeOp::Clone { lv, from } => lvm.clone_of(lv, from, &[LV_TAG, LV_UNZEROED_TAG]),
            VolumeOp::CloneForRevert { lv, from, revert } => {
                lvm.clone_of(lv, from, &[LV_TAG, LV_UNZEROED_TAG, &lv_revert_tag(*revert)])
            }
            VolumeOp::Extend { lv, size } => lvm.extend(lv, *size),
        }?;
        *unflushed = changes(&step.op).or(*unflushed);
        observer.after(index, step);
    }
    Ok(())
}

/// Returns the number of bytes between two marks on an LV of this size.
pub(super) fn marked_every(size: ByteSize, observer: &mut dyn Observer) -> u64 {
    observer.mark_every(MARK_BYTES.max(size.0 / MARKS_MAX))
}

fn tags_of(marks: &[u64]) -> Vec<String> {
    marks.iter().map(|mib| mark(*mib)).collect()
}

/// Returns the device node of an LV, if the device has the LV's size.
pub(super) fn device_of(
    lv: &LvId,
    size: ByteSize,
    blocks: &dyn BlockDevices,
    work: Work,
) -> Result<PathBuf, Error> {
    let path = device_path(lv.group.as_str(), lv.name.as_str());
    match blocks.size(&path).map_err(|source| Error::device(work.word(), path.clone(), source))? {
        None => Err(Error::NoDevice { path }),
        Some(found) if found != size.0 => Err(Error::DeviceSize { path, found, wanted: size.0 }),
        Some(_) => Ok(path),
    }
}

/// Zeroes or discards all blocks. `None` if the observer stopped it. `marked` holds the marks on
/// the LV, before and afterwards.
fn wipe(
    lvm: &Lvm<'_>,
    (lv, size): (&LvId, ByteSize),
    blocks: &dyn BlockDevices,
    work: Work,
    (marked, observer): (&mut Vec<u64>, &mut dyn Observer),
) -> Result<Option<()>, Error> {
    let path = device_of(lv, size, blocks, work)?;
    let failed = |source| Error::device(work.word(), path.clone(), source);
    let uuid = lvm.uuid(lv)?.unwrap_or_default();
    // An LV that was recreated under the same name has another UUID, and starts at its first block.
    let before = observer.resume(work, &uuid);
    let before = if uuid.is_empty() { 0 } else { before.min(size.0) };
    let mut done = before.max(zeroed_before(marked, size).0);
    let every = marked_every(size, observer);
    let mut next_mark = zeroed_before(marked, size).0.saturating_add(every);
    let mut discards = work == Work::Discard;
    while observer.done(work, &uuid, done).is_continue() {
        if done == size.0 {
            return Ok(Some(()));
        }
        let most = if discards { DISCARD_CHUNK } else { ZERO_CHUNK };
        let now = if discards { Work::Discard } else { Work::Zero };
        let length = observer.piece(now, most).min(size.0 - done);
        let piece =
            if discards { blocks.discard(&path, done, length) } else { blocks.zero(&path, done, length) };
        match piece {
            Ok(()) => {
                done += length;
                if !discards {
                    observer.wrote(length);
                }
                if work == Work::Zero && done >= next_mark && done < size.0 {
                    note_zeroed(lvm, lv, done / MIB, marked);
                    next_mark = done.saturating_add(every);
                }
            }
            Err(error) if discards && error.errno == Errno::EOPNOTSUPP => {
                tracing::warn!(%lv, "its disk takes no discards: it is zeroed instead");
                discards = false;
            }
            Err(source) => return Err(failed(source)),
        }
    }
    let further = done > zeroed_before(marked, size).0;
    if work == Work::Zero && further && observer.marks_where_it_stops() {
        note_zeroed(lvm, lv, done / MIB, marked);
    }
    Ok(None)
}

/// Marks on the LV how far its zeroing has come; the caller has flushed what was zeroed. A failure
/// only costs time after a crash.
fn note_zeroed(lvm: &Lvm<'_>, lv: &LvId, mib: u64, marked: &mut Vec<u64>) {
    match lvm.mark(lv, &mark(mib), &tags_of(marked)) {
        Ok(()) => *marked = vec![mib],
        Err(error) => {
            // The mark may exist or not: it is deleted with the others.
            marked.push(mib);
            tracing::warn!(%lv, error = %Chain(&error), "cannot mark how far it is zeroed");
        }
    }
}

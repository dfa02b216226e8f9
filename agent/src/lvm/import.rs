//! Volumes that are copied from images: the pure part of the planner, and the copying.
//!
//! One command makes the LV with the tag `mooring-importing` beside `mooring-unzeroed`. It loses
//! both once all of it was written: the image's disk from its first block, and zeros behind that to
//! the LV's end.
//!
//! Marks on the LV say how far the copy has come. Each names the file and its state at that time.
//! After a crash the copy goes on at the mark if the file is the same and unmodified, else it
//! starts anew. A copy that something newer stopped goes on the same way within one agent, without
//! a mark.
//!
//! A thin LV reads as zeros where nothing was written, so zeros are not written over zeros. The LV
//! is read there first, because an earlier copy may have written.
//!
//! What must never happen here: an LV taken for complete that holds a part of an image, or an image
//! that changed meanwhile; a mark of a zeroing, or of another image, left on an LV that is written
//! to; a mark of what is not on the disk; an LV made for an image that is refused.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use mooring_host::{BlockDevices, BlockError, is_zeros};
use mooring_model::{
    BlockedKind, ByteSize, Chain, ImageSource, LV_COPIED_MARK, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG,
    Plan, VolumeSpec,
};

use super::apply::{Hands, Observer, Work, ZERO_CHUNK, device_of, marked_every};
use super::commands::Lvm;
use super::error::Error;
use super::plan::{LvId, MIB, VolumeOp};
use super::view::SeenLv;
use crate::images::{self, OpenImage};

/// Progress of a copy, as a tag of its LV says: `mooring-copied-IMAGE-MIB`.
///
/// The tag counts only beside the tag of an LV that an image is copied into, and only for that very
/// image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Identity of the image at that time: what is read, which file, its size, and its last
    /// modification.
    image: String,
    mib: u64,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LV_COPIED_MARK}{}-{}", self.image, self.mib)
    }
}

impl Copied {
    /// Parses a tag. `None` if it is no tag that this module writes.
    pub(super) fn of_tag(tag: &str) -> Option<Self> {
        let (image, mib) = tag.strip_prefix(LV_COPIED_MARK)?.rsplit_once('-')?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":.-".contains(&byte);
        let copied = Self { image: image.to_owned(), mib: mib.parse().ok()? };
        (image.bytes().all(plain) && copied.to_string() == tag).then_some(copied)
    }
}

/// Returns how many bytes of this image are in the LV already. Each of its marks was true when it
/// was written, and nothing else was copied since.
fn copied_before(copied: &[Copied], image: &str, size: ByteSize) -> u64 {
    let of = copied.iter().filter(|copied| copied.image == image);
    let bytes = of.filter_map(|copied| copied.mib.checked_mul(MIB));
    bytes.filter(|bytes| *bytes <= size.0).max().unwrap_or(0)
}

/// Tags of an LV that is made for an image.
pub(super) const TAGS: [&str; 3] = [LV_TAG, LV_UNZEROED_TAG, LV_IMPORTING_TAG];

/// Returns the tags to remove from a complete LV, in order. Marks go before the tags that make them
/// count; the tag that keeps the LV from being used goes last.
pub(super) fn ended_tags(copied: &[Copied]) -> Vec<String> {
    let tags = [LV_IMPORTING_TAG, LV_UNZEROED_TAG].map(str::to_owned);
    copied.iter().map(Copied::to_string).chain(tags).collect()
}

/// Plans the check of the image, before anything is made.
pub(super) fn plan_check(plan: &mut Plan<VolumeOp>, lv: &LvId, size: ByteSize, image: &ImageSource) {
    let op = VolumeOp::CheckImage { lv: lv.clone(), image: image.clone(), size };
    plan.step(op, "the image is checked before anything is made");
}

/// Plans the creation of an LV for an image that was checked.
pub(super) fn plan_made(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    size: ByteSize,
    image: &ImageSource,
    thin: bool,
) {
    plan.step(VolumeOp::CreateForImage { lv: lv.clone(), size, thin }, "it is not there");
    plan_copy(plan, lv, size, (image, Vec::new()), thin);
}

/// Plans a new LV.
pub(super) fn plan_new(plan: &mut Plan<VolumeOp>, lv: LvId, size: ByteSize, image: &ImageSource, thin: bool) {
    plan_check(plan, &lv, size, image);
    plan_made(plan, lv, size, image, thin);
}

/// Plans the completion of an LV that exists and is incomplete.
pub(super) fn plan_again(plan: &mut Plan<VolumeOp>, lv: LvId, spec: &VolumeSpec, there: &SeenLv) {
    let Some(image) = &spec.image else {
        let why = format!(
            "{lv} holds at most a part of an image ({LV_IMPORTING_TAG}), and no spec names that image any more: delete the \
             volume, and import it again"
        );
        return plan.block(BlockedKind::Birth, format!("volume {}", spec.id), why);
    };
    // The marks of a copy hold for a copy that resumes, and for no other.
    let (stale, copied) = match there.copied() {
        copied if there.is_importing() => (Vec::new(), copied),
        stale => (stale, Vec::new()),
    };
    if !there.marks().is_empty() || !stale.is_empty() {
        // Marks are believed on an LV that is tagged as unzeroed, and this one is about to be
        // written.
        let op = VolumeOp::Unmark { lv: lv.clone(), marks: there.marks(), copied: stale };
        plan.step(op, "an image is to be copied into it");
    }
    if !there.is_importing() {
        plan.step(VolumeOp::MarkImporting { lv: lv.clone() }, "an image is to be copied into it");
    }
    plan_copy(plan, lv, there.size, (image, copied), there.thin);
}

fn plan_copy(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    size: ByteSize,
    (image, copied): (&ImageSource, Vec<Copied>),
    thin: bool,
) {
    let op = VolumeOp::Import { lv: lv.clone(), size, thin, image: image.clone(), copied };
    plan.step(op, "its image is not completely copied yet");
    plan.step(VolumeOp::MarkImported { lv }, "all of its image was copied");
}

/// Opens the image, and checks that it fits.
pub(super) fn open(hands: Hands<'_>, image: &ImageSource, size: ByteSize) -> Result<OpenImage, Error> {
    let images = hands.images.ok_or(images::Error::NoFolder)?;
    Ok(images.open(image, size)?)
}

/// Copies the image to all blocks. `None` if the observer stopped it. `copied` holds the marks on
/// the LV, before and afterwards.
pub(super) fn copy(
    lvm: &Lvm<'_>,
    (lv, size, thin): (&LvId, ByteSize, bool),
    (image, copied): (&ImageSource, &mut Vec<Copied>),
    hands: Hands<'_>,
    observer: &mut dyn Observer,
) -> Result<Option<()>, Error> {
    let path = device_of(lv, size, hands.blocks, Work::Import)?;
    let mut open = open(hands, image, size)?;
    let identity = open.identity();
    forget_others(lvm, lv, &identity, copied)?;
    let uuid = lvm.uuid(lv)?.unwrap_or_default();
    let key = format!("{uuid} {identity}");
    let before = observer.resume(Work::Import, &key);
    let before = if uuid.is_empty() { 0 } else { before.min(size.0) };
    let marked = copied_before(copied, &identity, size);
    let mut done = before.max(marked);
    let every = marked_every(size, observer);
    let mut next_mark = marked.saturating_add(every);
    let mut buffer = Vec::new();
    while observer.done(Work::Import, &key, done) != ControlFlow::Break(()) {
        if done == size.0 {
            open.check_same()?;
            return Ok(Some(()));
        }
        let length = observer.piece(Work::Import, ZERO_CHUNK).min(size.0 - done);
        buffer.resize(usize::try_from(length).unwrap_or_default(), 0);
        open.read(done, &mut buffer)?;
        let failed = |source| Error::device(Work::Import.word(), path.clone(), source);
        if put(hands.blocks, &path, done, &buffer, thin).map_err(failed)? {
            observer.wrote(length);
        }
        done += length;
        if done >= next_mark && done < size.0 {
            // Checks that the data read belongs to the file that the mark names.
            open.check_same()?;
            note_copied(lvm, lv, Copied { image: identity.clone(), mib: done / MIB }, copied);
            next_mark = done.saturating_add(every);
        }
    }
    if done > copied_before(copied, &identity, size) && observer.marks_where_it_stops() {
        open.check_same()?;
        note_copied(lvm, lv, Copied { image: identity, mib: done / MIB }, copied);
    }
    Ok(None)
}

/// Removes the marks of other images before the first byte of this one is written: a mark left
/// behind would be believed later.
fn forget_others(lvm: &Lvm<'_>, lv: &LvId, identity: &str, copied: &mut Vec<Copied>) -> Result<(), Error> {
    let others: Vec<_> =
        copied.iter().filter(|copied| copied.image != identity).map(Copied::to_string).collect();
    if !others.is_empty() {
        lvm.delete_tags(lv, &others)?;
        copied.retain(|copied| copied.image == identity);
    }
    Ok(())
}

/// Marks on the LV how far its copy has come; the caller has flushed what was written. A failure
/// only costs time after a crash.
fn note_copied(lvm: &Lvm<'_>, lv: &LvId, now: Copied, copied: &mut Vec<Copied>) {
    let before: Vec<_> = copied.iter().filter(|before| **before != now).map(Copied::to_string).collect();
    match lvm.mark(lv, &now.to_string(), &before) {
        Ok(()) => *copied = vec![now],
        Err(error) => {
            // The mark may exist or not: it is deleted with the others.
            copied.push(now);
            tracing::warn!(%lv, error = %Chain(&error), "cannot mark how far it is copied");
        }
    }
}

/// Writes these bytes at `offset`. Returns `true` if anything had to be written.
fn put(
    blocks: &dyn BlockDevices,
    path: &Path,
    offset: u64,
    bytes: &[u8],
    thin: bool,
) -> Result<bool, BlockError> {
    if !is_zeros(bytes) {
        return blocks.write(path, offset, bytes).map(|()| true);
    }
    if thin {
        let mut there = vec![0; bytes.len()];
        blocks.read(path, offset, &mut there)?;
        if is_zeros(&there) {
            return Ok(false);
        }
    }
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    blocks.zero(path, offset, length).map(|()| true)
}

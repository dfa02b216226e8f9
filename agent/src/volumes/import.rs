//! Volumes that are copied from images: the part of the planner, which is pure, and the copying.
//!
//! The LV is made with the tag `mooring-importing` beside `mooring-unzeroed`, in one command, and loses both when all of it was
//! written: the image's disk from its first block, and zeros behind that to the LV's end. After a crash it is written again from
//! the beginning: how far a zeroing had come is marked on an LV, but what an image was then, nobody knows. Within one agent it
//! goes on where something newer had stopped it, if the image's file is the same and was not written to.
//!
//! A thin LV reads as zeros where nothing was written. There zeros are not written over zeros: what is there is looked at first,
//! because a copy that was begun before may have written.
//!
//! What must never happen here: an LV of which a part was copied, or which an image was copied into that changed meanwhile,
//! taken for whole; a mark of a zeroing left on an LV that is written to; an LV made for an image that is refused.

use std::ops::ControlFlow;
use std::path::Path;

use mooring_host::{BlockDevices, BlockError};
use mooring_model::{
    BlockedKind, ByteSize, ImageSource, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG, Plan, VolumeSpec,
};

use super::apply::{Hands, Observer, Work, ZERO_CHUNK, device_of};
use super::error::Error;
use super::lvm::Lvm;
use super::plan::{LvId, VolumeOp};
use super::view::SeenLv;
use crate::images::{self, OpenImage};

/// Of an LV that is made for an image.
pub(super) const TAGS: [&str; 3] = [LV_TAG, LV_UNZEROED_TAG, LV_IMPORTING_TAG];

/// What goes when it is whole: the one that keeps it from being used goes last.
pub(super) fn ended_tags() -> [String; 2] {
    [LV_IMPORTING_TAG.to_owned(), LV_UNZEROED_TAG.to_owned()]
}

/// Plans the look at the image, before anything is made.
pub(super) fn plan_check(plan: &mut Plan<VolumeOp>, lv: &LvId, size: ByteSize, image: &ImageSource) {
    let op = VolumeOp::CheckImage { lv: lv.clone(), image: image.clone(), size };
    plan.step(op, "nothing is made for an image that cannot be read");
}

/// Plans an LV for an image that was looked at.
pub(super) fn plan_made(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    size: ByteSize,
    image: &ImageSource,
    thin: bool,
) {
    plan.step(VolumeOp::CreateForImage { lv: lv.clone(), size, thin }, "it is not there");
    plan_copy(plan, lv, size, image, thin);
}

/// Plans a new LV.
pub(super) fn plan_new(plan: &mut Plan<VolumeOp>, lv: LvId, size: ByteSize, image: &ImageSource, thin: bool) {
    plan_check(plan, &lv, size, image);
    plan_made(plan, lv, size, image, thin);
}

/// Plans one that is there, and is not whole.
pub(super) fn plan_again(plan: &mut Plan<VolumeOp>, lv: LvId, spec: &VolumeSpec, there: &SeenLv) {
    let Some(image) = &spec.image else {
        let why = format!(
            "{lv} holds a part of an image at most ({LV_IMPORTING_TAG}), and which one is not wished any more: delete the volume, \
             and import it again"
        );
        return plan.block(BlockedKind::Birth, format!("volume {}", spec.id), why);
    };
    if !there.marks().is_empty() {
        // An LV that is tagged as unzeroed is believed what its marks say, and it is about to be written.
        let op = VolumeOp::Unmark { lv: lv.clone(), marks: there.marks() };
        plan.step(op, "an image is to be copied into it");
    }
    if !there.is_importing() {
        plan.step(VolumeOp::MarkImporting { lv: lv.clone() }, "an image is to be copied into it");
    }
    plan_copy(plan, lv, there.size, image, there.thin);
}

fn plan_copy(plan: &mut Plan<VolumeOp>, lv: LvId, size: ByteSize, image: &ImageSource, thin: bool) {
    let op = VolumeOp::Import { lv: lv.clone(), size, thin, image: image.clone() };
    plan.step(op, "it holds a part of its image at most");
    plan.step(VolumeOp::MarkImported { lv }, "all of its image was copied");
}

/// Opens an image that fits.
pub(super) fn open(hands: Hands<'_>, image: &ImageSource, size: ByteSize) -> Result<OpenImage, Error> {
    let images = hands.images.ok_or(images::Error::NoFolder)?;
    Ok(images.open(image, size)?)
}

/// Copies the image to all blocks; `None`: it was stopped.
pub(super) fn copy(
    lvm: &Lvm<'_>,
    (lv, size, thin): (&LvId, ByteSize, bool),
    image: &ImageSource,
    hands: Hands<'_>,
    observer: &mut dyn Observer,
) -> Result<Option<()>, Error> {
    let path = device_of(lv, size, hands.blocks, Work::Import)?;
    let mut open = open(hands, image, size)?;
    let uuid = lvm.uuid(lv)?.unwrap_or_default();
    let key = format!("{uuid} {}", open.state());
    let before = observer.resume(Work::Import, &key);
    let mut done = if uuid.is_empty() { 0 } else { before.min(size.0) };
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
    }
    Ok(None)
}

/// By parts, so that the compiler makes words of bytes.
fn is_zeros(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Makes these the bytes at this place; whether anything had to be written.
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

//! Volumes that are copied to files: the pure part of the planner, and the copying.
//!
//! A file is made, filled, flushed to the disk, and then gets its name by a link. Its earlier name
//! stays beside it until nobody asks for the copy any more. An agent that was killed after the link
//! thus knows that the file of that name is this volume's, and complete.
//!
//! A mark beside the file says how far the copy has come; it is written once that part is on the
//! disk. After a crash the copy goes on at the mark, or starts anew without one. Nobody has written
//! to the LV since: while the spec asks for the copy, which is durable, nobody has a grant.
//!
//! What must never happen here: a write to the LV; an existing file taken for this one; a file that
//! has its name and is incomplete; a copy of one LV that goes on with the data of another.

use std::fmt;
use std::ops::ControlFlow;

use mooring_model::{BlockedKind, ByteSize, Chain, ImageSource, Plan, Upload};

use super::apply::{Hands, Observer, Work, ZERO_CHUNK, device_of, marked_every};
use super::commands::Lvm;
use super::error::Error;
use super::plan::{LvId, VolumeOp};
use crate::images::{self, OpenPart, PartId, SeenPart, SeenUpload};

/// A step of a copy to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadOp {
    /// Removes the partial file of an agent that was killed.
    Remove,
    /// Makes the file, under a name that no image has.
    Make {
        /// Size of the image's disk in bytes.
        size: ByteSize,
        /// The image that the file becomes.
        image: ImageSource,
    },
    /// Opens the partial file of an agent that was killed, up to the length that its mark says is
    /// on the disk.
    GoOn {
        /// Size of the image's disk in bytes.
        size: ByteSize,
        /// The image that the file becomes.
        image: ImageSource,
    },
    /// Copies all blocks, and flushes them to the disk.
    Copy {
        /// Size of the LV.
        size: ByteSize,
        /// The image that the file becomes.
        image: ImageSource,
    },
    /// Gives the file its name.
    Publish {
        /// The image that the file becomes.
        image: ImageSource,
    },
}

impl UploadOp {
    pub(super) fn describe(&self, f: &mut fmt::Formatter<'_>, lv: &LvId) -> fmt::Result {
        match self {
            Self::Remove => write!(f, "remove the part of a file with {lv}"),
            Self::Make { image, .. } => write!(f, "make {image} for {lv}"),
            Self::GoOn { image, .. } => write!(f, "go on with {image} for {lv}"),
            Self::Copy { image, .. } => write!(f, "copy {lv} to {image}"),
            Self::Publish { image } => write!(f, "name {image}, which holds {lv}"),
        }
    }
}

/// Plans the copy of a volume that is complete and that no host reaches.
pub fn plan_upload(
    id: PartId,
    (lv, size): (&LvId, ByteSize),
    upload: &Upload,
    seen: SeenUpload,
) -> Plan<VolumeOp> {
    let mut plan = Plan::default();
    let image = &upload.image;
    if seen.part == SeenPart::Whole {
        return plan;
    }
    if seen.taken {
        let why = format!(
            "{} exists already, and no file is ever overwritten: choose another name, or remove that file first",
            image.name
        );
        plan.block(BlockedKind::Foreign, format!("image {}", image.name), why);
        return plan;
    }
    let mut step = |op, why| plan.step(VolumeOp::Upload { lv: lv.clone(), part: id, op }, why);
    match seen.part {
        SeenPart::Marked => {
            step(UploadOp::GoOn { size, image: image.clone() }, "a part of it is on the disk");
        }
        SeenPart::Left => step(UploadOp::Remove, "it is not known how much of it reached the disk"),
        SeenPart::Nothing | SeenPart::Open | SeenPart::Whole => {}
    }
    if matches!(seen.part, SeenPart::Nothing | SeenPart::Left) {
        step(UploadOp::Make { size, image: image.clone() }, "it is not there");
    }
    step(UploadOp::Copy { size, image: image.clone() }, "the file is not complete yet");
    step(UploadOp::Publish { image: image.clone() }, "all of it is on the disk");
    plan
}

/// Executes a step. `None` if the observer stopped it.
pub(super) fn apply(
    (lv, part): (&LvId, PartId),
    op: &UploadOp,
    hands: Hands<'_>,
    observer: &mut dyn Observer,
) -> Result<Option<()>, Error> {
    let images = hands.images.ok_or(images::Error::NoFolder)?;
    match op {
        UploadOp::Remove => images.remove_part(part)?,
        UploadOp::Make { size, image } => images.make_part(part, image, *size)?,
        UploadOp::GoOn { size, image } => images.go_on(part, image, *size, &identity(lv, hands))?,
        UploadOp::Publish { image } => images.publish(part, image)?,
        UploadOp::Copy { size, image } => {
            let mut open = images.take_part(part, image)?;
            match copy((lv, *size), (part, image), &mut open, hands, observer) {
                Ok(true) => {
                    open.finish(image).inspect_err(|_| images.clear(part))?;
                }
                Ok(false) => {
                    images.keep_part(part, open);
                    return Ok(None);
                }
                Err(error) => {
                    drop(open);
                    images.clear(part);
                    return Err(error);
                }
            }
        }
    }
    Ok(Some(()))
}

/// Returns the UUID that LVM gave the LV; empty if LVM does not say.
fn identity(lv: &LvId, hands: Hands<'_>) -> String {
    let said = Lvm(hands.commands).uuid(lv).inspect_err(|error| {
        tracing::warn!(%lv, error = %Chain(error), "cannot read the UUID of an LV");
    });
    said.ok().flatten().unwrap_or_default()
}

/// Copies what is left. Returns `true` if nothing is left, `false` if the observer stopped it.
fn copy(
    (lv, size): (&LvId, ByteSize),
    (part, image): (PartId, &ImageSource),
    open: &mut OpenPart,
    hands: Hands<'_>,
    observer: &mut dyn Observer,
) -> Result<bool, Error> {
    let path = device_of(lv, size, hands.blocks, Work::Export)?;
    let key = part.to_string();
    // The partial file itself says how far the copy is.
    observer.resume(Work::Export, &key);
    let images = hands.images.ok_or(images::Error::NoFolder)?;
    let every = marked_every(size, observer);
    let mut buffer = Vec::new();
    while observer.done(Work::Export, &key, open.done) != ControlFlow::Break(()) {
        if open.done >= size.0 {
            return Ok(true);
        }
        let length = observer.piece(Work::Export, ZERO_CHUNK).min(size.0 - open.done);
        buffer.resize(usize::try_from(length).unwrap_or_default(), 0);
        let failed = |source| Error::device(Work::Export.word(), path.clone(), source);
        hands.blocks.read(&path, open.done, &mut buffer).map_err(failed)?;
        open.write(image, &buffer)?;
        observer.wrote(length);
        if open.done - open.marked >= every && open.done < size.0 {
            images.mark_part(part, image, open, (size, &identity(lv, hands)))?;
        }
    }
    if open.done > open.marked && observer.marks_where_it_stops() {
        images.mark_part(part, image, open, (size, &identity(lv, hands)))?;
    }
    Ok(false)
}

//! The status of a volume with announcements: `os-reserve` promises attachments that have no row
//! yet, and `os-begin_detaching` announces detaches without naming an attachment.
//!
//! What must never happen here: a shared volume that leaves `in-use` because one of its servers
//! announced a detach.

use super::{Operation, derive};
use crate::domain::{AttachStatus, AttachmentStatus, VolumeStatus};

/// A kind of announcement. Each ends by itself after a while, unless another of its kind follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Announced {
    /// Attachments to come (`os-reserve`).
    Attachments,
    /// Detaches to come (`os-begin_detaching`).
    Detaches,
}

impl Announced {
    /// All kinds.
    pub(crate) const ALL: [Self; 2] = [Self::Attachments, Self::Detaches];
}

/// Announcements of `os-reserve` and `os-begin_detaching`, which have no row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Promised {
    /// Number of promised attachments: each counts as one that is attaching.
    pub(crate) reserved: u32,
    /// `true`: a detach is announced.
    pub(crate) held: bool,
}

/// Returns the status of a volume. An announced detach is shown if it can mean only one attachment.
/// With several, nobody knows which one goes, and the volume stays in use.
pub(crate) fn derived(
    operation: Option<Operation>,
    attachments: &[AttachmentStatus],
    promised: Promised,
) -> (VolumeStatus, AttachStatus) {
    let reserved = (promised.reserved > 0).then_some(AttachmentStatus::Attaching);
    let (status, attach_status) = derive(operation, attachments.iter().copied().chain(reserved));
    let broken = |status: &&AttachmentStatus| {
        matches!(status, AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching)
    };
    let live = attachments.iter().filter(|status| !broken(status)).count();
    if promised.held && promised.reserved == 0 && live == 1 && status == VolumeStatus::InUse {
        return (VolumeStatus::Detaching, attach_status);
    }
    (status, attach_status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_counts_as_attaching_and_a_hold_shows_only_on_the_one() {
        let all = AttachmentStatus::ALL;
        for bits in 0..1_u32 << all.len() {
            let set: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1)
                .map(|(_, status)| *status)
                .collect();
            for (reserved, held) in [(0, false), (0, true), (1, false), (3, true)] {
                let seen = derived(None, &set, Promised { reserved, held });
                let attached = set.contains(&AttachmentStatus::Attached);
                let others = set.iter().any(|status| {
                    matches!(
                        status,
                        AttachmentStatus::Reserved
                            | AttachmentStatus::Attaching
                            | AttachmentStatus::Detaching
                    )
                });
                let expected = match (attached, held && reserved == 0 && !others, reserved) {
                    (true, true, _) => (VolumeStatus::Detaching, AttachStatus::Attached),
                    (true, false, _) => (VolumeStatus::InUse, AttachStatus::Attached),
                    (false, _, 0) => derive(None, set.iter().copied()),
                    (false, _, _) => (VolumeStatus::Attaching, AttachStatus::Attaching),
                };
                assert_eq!(seen, expected, "{set:?} {reserved} {held}");
                for operation in Operation::ALL {
                    let seen = derived(Some(operation), &set, Promised { reserved, held });
                    assert_eq!(seen.0, operation.status(), "{set:?}");
                }
            }
        }
    }
}

//! Chooses the relative port id of an export's target. By it initiators know a port of a disk (VPD
//! page 0x83, REPORT TARGET PORT GROUPS, READ FULL STATUS). It must stay as long as the disk does.
//!
//! Where portal groups have `rtpi` (6.12 has, 6.1 has not) all groups of all fabrics share one
//! table. A group with none written gets the lowest free id when it is enabled, so another one
//! after each boot. Mooring writes its ids before anything depends on them, and keeps them clear of
//! those low ones. Without `rtpi` the id is the backstore's, and follows from the plan's order
//! (lio.md, f).
//!
//! What must never happen here: an id that depends on anything but the volume.

use mooring_host::{Errno, Tree, TreeError, TreeOp, TreePath};
use mooring_model::{ExportNames, VolumeId};

use crate::error::maybe;
use crate::{Error, layout};

/// Attribute of a portal group that holds the id.
pub(crate) const PORT_ID: &str = "rtpi";

/// Lowest id of ours; the kernel's own choices lie below. A machine has fewer foreign portal
/// groups.
const LEAST: u16 = 1024;

/// Returns the ids that a volume's export may have, the first choice first; they are equal after
/// any loss. Two volumes may share one.
pub fn port_ids(volume: VolumeId) -> impl Iterator<Item = u16> {
    (0u8..=u8::MAX).map(move |turn| {
        // FNV-1a, folded: any change of a digit, or of the turn, moves the id.
        let bytes = volume.as_bytes();
        let hash = bytes.iter().chain(&[turn]).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let room = u64::from(u16::MAX - LEAST) + 1;
        let above = u16::try_from((hash ^ (hash >> 32)) % room).unwrap_or_default();
        LEAST + above
    })
}

/// Version of a kernel that is known to lack the attribute; all before it lack it too.
const NOT_YET: (u32, u32) = (6, 1);

/// Returns `true` if the kernel may have relative port ids of portal groups; the view then tells
/// for sure. One operation. A kernel that does not tell its version may have them.
pub fn may_have_port_ids(tree: &dyn Tree) -> Result<bool, Error> {
    let version = tree.read_text(&TreePath::new("version")).map_err(|source| Error::View { source })?;
    Ok(release(&version).is_none_or(|release| release > NOT_YET))
}

/// Parses the kernel's release from `Target Engine Core ConfigFS Infrastructure v5.0 on
/// Linux/x86_64 on 6.1.0-56-amd64`.
fn release(version: &str) -> Option<(u32, u32)> {
    let (_, release) = version.trim().rsplit_once(" on ")?;
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Reads the id: 0 is none yet. `None` if the kernel has no such attribute.
pub(crate) fn read(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u16>, TreeError> {
    let text = maybe(tree.read_text(&layout::tpg(names).join(PORT_ID)))?;
    Ok(text.map(|text| {
        let number = match text.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16),
            None => text.parse(),
        };
        number.unwrap_or_default()
    }))
}

impl Error {
    /// Returns `true` if the portal group could not be enabled because another one of this machine
    /// has its relative port id: no other cause of this answer is known.
    pub fn is_port_taken(&self, names: &ExportNames) -> bool {
        let Self::Step { source, .. } = self else { return false };
        source.op == TreeOp::Write
            && source.errno == Errno::EINVAL
            && source.path == layout::tpg(names).join("enable")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Ids that hosts have seen cannot change: an export whose id was lost with everything else
    /// gets it back.
    #[test]
    fn the_first_choices_of_a_volume_are_these_for_ever() {
        let of = |volume: VolumeId| port_ids(volume).take(3).collect::<Vec<_>>();
        assert_eq!(of(VolumeId::from_u128(1)), [55945, 56790, 54767]);
        // The scenario `port-ids` has these ids, too.
        assert_eq!(of("66666666-2222-4333-8444-555555555555".parse().unwrap())[..2], [21713, 34818]);
        assert_eq!(of("a0000000-1111-4222-8333-444444444444".parse().unwrap()), [24504, 15595, 19154]);
    }

    #[test]
    fn the_version_says_which_kernels_have_none() {
        let of = |release: &str| {
            super::release(&format!(
                "Target Engine Core ConfigFS Infrastructure v5.0 on Linux/x86_64 on {release}\n"
            ))
        };
        assert_eq!(of("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(of("6.12.94+deb12-amd64"), Some((6, 12)));
        assert_eq!(of("7.0-rc1"), Some((7, 0)));
        assert!(of("6.12.1").unwrap() > NOT_YET && of("7.0").unwrap() > NOT_YET);
        assert_eq!((of("next"), super::release("")), (None, None));
        let machine = mooring_host::fake::FakeMachine::new();
        assert!(!may_have_port_ids(&machine.lio()).unwrap());
        machine.set_port_ids(true);
        assert!(may_have_port_ids(&machine.lio()).unwrap());
    }

    #[test]
    fn they_are_clear_of_low_ones_and_many() {
        for number in [0, 1, 7 << 96, u128::MAX] {
            let ids: BTreeSet<_> = port_ids(VolumeId::from_u128(number)).collect();
            assert!(ids.len() > 250 && ids.iter().all(|id| *id >= LEAST), "{number}: {ids:?}");
        }
        // A thousand volumes in a row: few share their first choice.
        let firsts: BTreeSet<_> = (0..1000).filter_map(|n| port_ids(VolumeId::from_u128(n)).next()).collect();
        assert!(firsts.len() > 980, "{}", firsts.len());
    }
}

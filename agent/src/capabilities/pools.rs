//! Capabilities of the groups and their thin pools, derived from LVM's view of them.
//!
//! What must never happen here: a pool offered that no volume can be made in; a discard promised
//! that nobody has seen accepted; blocks called zeroed that a deletion may leave as they are.

use mooring_api::v1;
use mooring_model::{ByteSize, LvName, PoolName};

use super::health::{Code, Fault, On, Weight};
use crate::config::Wipe;
use crate::lvm::{Fullness, SeenGroup, VolumesView};
use crate::machine::Machine;

/// Returns the faults of the groups.
pub(super) fn check_groups(view: &VolumesView) -> Vec<Fault> {
    let object = |group: &mooring_model::VgName| format!("volume group {group}");
    let mut faults = Vec::new();
    for group in view.missing() {
        let others = if view.unlisted().is_empty() { "none".to_owned() } else { view.unlisted().join(", ") };
        let text = format!(
            "it is listed in the configuration and is not on this host (not listed, but here: {others}): create it \
             with vgcreate, or correct the configuration"
        );
        faults.push(Fault::new(Code::GroupMissing, Weight::Degrades, On::Host, object(group), text));
    }
    for (group, unread) in view.unread_groups() {
        let on = On::Group(group.to_string());
        let fault = Fault::new(Code::GroupUnusable, Weight::Fails, on, object(group), unread.said.clone());
        faults.push(fault.cured_by(unread.cure));
    }
    for group in view.groups() {
        if let Some(trouble) = &group.trouble {
            let on = On::Group(group.name.to_string());
            let text = trouble.clone();
            faults.push(Fault::new(Code::GroupUnusable, Weight::Fails, on, object(&group.name), text));
        }
    }
    for (group, pool) in view.groups().iter().filter_map(|group| Some((group, group.pool.as_ref()?))) {
        let trouble = pool.trouble.clone().map(|text| (Code::ThinPoolUnusable, Weight::Fails, text));
        let fills = || {
            let text = pool.advice(&group.name)?;
            Some(match pool.fullness() {
                Fullness::Full => (Code::ThinPoolFull, Weight::Fails, text),
                _ => (Code::ThinPoolNearlyFull, Weight::Degrades, text),
            })
        };
        let Some((code, weight, text)) = trouble.or_else(fills) else { continue };
        if pool.tagged {
            let object = format!("thin pool {}/{}", group.name, LvName::thin_pool());
            faults.push(Fault::new(code, weight, On::Pool(thin_name(group)), object, text));
        }
    }
    faults
}

fn thin_name(group: &SeenGroup) -> String {
    PoolName { group: group.name.clone(), thin: true }.to_string()
}

/// Returns the discard support of each disk of a group. Inner `None`: the disk could not be
/// queried; outer `None`: the disks are unknown.
fn disks_discard(machine: &Machine, group: &SeenGroup) -> Option<Vec<Option<bool>>> {
    let takes = |disk: &std::path::PathBuf| {
        let answer = machine.blocks.discards(disk);
        answer.inspect_err(|error| tracing::debug!(%error, "a disk that takes no discards")).ok()
    };
    Some(group.disks.as_ref()?.iter().map(takes).collect())
}

/// Returns `true` if there are disks, and every one gives this answer.
fn all_are(disks: &[Option<bool>], answer: bool) -> bool {
    !disks.is_empty() && disks.iter().all(|takes| *takes == Some(answer))
}

/// Returns how a deletion treats the blocks of a thick volume, which may lie on any disk of its
/// group.
fn wipe(asked: Wipe, disks: Option<&[Option<bool>]>) -> v1::Wipe {
    let disks = disks.unwrap_or_default();
    match asked {
        Wipe::None => v1::Wipe::None,
        Wipe::Zero => v1::Wipe::Zero,
        Wipe::Discard if disks.contains(&Some(true)) => v1::Wipe::Discard,
        // Blocks are zeroed where the kernel says that nothing can be discarded.
        Wipe::Discard if all_are(disks, false) => v1::Wipe::Zero,
        Wipe::Discard => v1::Wipe::Unspecified,
    }
}

/// Returns whether discards of hosts to thick volumes reach the disks. They do not where the
/// configuration does not enable it, whatever lies below. `None` if unknown.
fn discard(group: &SeenGroup, below: Option<bool>) -> Option<bool> {
    if group.discard { below } else { Some(false) }
}

/// Returns the pools of the groups.
///
/// A pool's free bytes are those that a new volume may take: for a group, LVM's free extents less
/// the reserve; for a thin pool, what no volume has written to. A thin pool that does not exist yet
/// counts as large as its first volume would make it.
pub(super) fn pools(view: &VolumesView, machine: &Machine) -> Vec<v1::Pool> {
    let count = |group: &SeenGroup, thin| u32::try_from(view.count_in(&group.name, thin)).unwrap_or(u32::MAX);
    let thick = |group: &SeenGroup| {
        let (usable, disks) = (group.trouble.is_none(), disks_discard(machine, group));
        let below = disks.as_deref().map(|disks| all_are(disks, true));
        v1::Pool {
            name: group.name.to_string(),
            total_bytes: group.size.0,
            free_bytes: if usable { group.available().0 } else { 0 },
            extent_bytes: group.extent.0,
            thick: true,
            volumes: count(group, false),
            provisioned_bytes: view.bytes_in(&group.name).0,
            reserved_bytes: Some(group.reserve.0),
            // A snapshot shares blocks with its volume: only a thin pool has that.
            snapshots: Some(false),
            online_extend: Some(usable),
            discard: discard(group, below),
            discard_below: below,
            wipe: wipe(group.wipe, disks.as_deref()).into(),
            health: None,
            data_used: None,
            metadata_used: None,
        }
    };
    let thin = |group: &SeenGroup| {
        let (total, free, works) = match (&group.pool, group.thin_size) {
            (Some(pool), _) if pool.tagged && pool.trouble.is_none() => (pool.size, pool.free(), true),
            (Some(pool), _) if pool.tagged => (pool.size, ByteSize(0), false),
            (None, Some(size)) if size <= group.available() => (size, size, true),
            _ => return None,
        };
        let usable = works && group.trouble.is_none();
        let below = group.pool.as_ref().map(|pool| pool.discards);
        Some(v1::Pool {
            name: thin_name(group),
            total_bytes: total.0,
            free_bytes: if group.trouble.is_none() { free.0 } else { 0 },
            extent_bytes: group.extent.0,
            thick: false,
            volumes: count(group, true),
            provisioned_bytes: view.thin_bytes_in(&group.name).0,
            // The reserve is kept free in the group, and does not reduce the thin pool.
            reserved_bytes: Some(0),
            snapshots: Some(usable),
            online_extend: Some(usable),
            // The pool zeroes what comes back, so that nobody has to vouch for the disks.
            discard: below,
            discard_below: below,
            // The pool zeroes blocks when it gives them to another volume, whatever the group's
            // configuration says.
            wipe: v1::Wipe::None.into(),
            health: None,
            data_used: group.pool.as_ref().and_then(|pool| pool.data),
            metadata_used: group.pool.as_ref().and_then(|pool| pool.metadata),
        })
    };
    view.groups().iter().flat_map(|group| std::iter::once(thick(group)).chain(thin(group))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_called_zeroed_only_where_no_disk_can_leave_them() {
        let (takes, not, mute) = (Some(true), Some(false), None);
        let cases: [(Option<&[Option<bool>]>, v1::Wipe); 9] = [
            (None, v1::Wipe::Unspecified),
            (Some(&[]), v1::Wipe::Unspecified),
            (Some(&[mute]), v1::Wipe::Unspecified),
            (Some(&[not, mute]), v1::Wipe::Unspecified),
            (Some(&[not]), v1::Wipe::Zero),
            (Some(&[not, not]), v1::Wipe::Zero),
            (Some(&[takes]), v1::Wipe::Discard),
            (Some(&[not, takes]), v1::Wipe::Discard),
            (Some(&[mute, takes]), v1::Wipe::Discard),
        ];
        for (disks, want) in cases {
            assert_eq!(wipe(Wipe::Discard, disks), want, "{disks:?}");
            assert_eq!(wipe(Wipe::Zero, disks), v1::Wipe::Zero, "{disks:?}");
            assert_eq!(wipe(Wipe::None, disks), v1::Wipe::None, "{disks:?}");
        }
    }
}

//! Compares the two names of a logical volume's device, which every host has: `/dev/GROUP/LV` and
//! `/dev/mapper/GROUP-LV`. Pure.
//!
//! What must never happen here: two LVs taken for one.

use std::path::{Path, PathBuf};

/// Folders of `/dev` that hold links and nodes of other kinds: no volume group has such a name.
const NO_GROUPS: [&str; 6] = ["mapper", "disk", "block", "char", "shm", "mqueue"];

/// Returns the volume group and the LV of a device path in either form; `None` for any other path.
pub(crate) fn of_path(path: &Path) -> Option<(String, String)> {
    let rest = path.to_str()?.strip_prefix("/dev/")?;
    let (first, second) = rest.split_once('/')?;
    if second.is_empty() || second.contains('/') {
        return None;
    }
    match first {
        "mapper" => of_mapper(second),
        first if first.is_empty() || NO_GROUPS.contains(&first) => None,
        first => Some((first.to_owned(), second.to_owned())),
    }
}

/// Splits `GROUP-LV`, where a hyphen that belongs to a name is written twice (lvm(8)).
fn of_mapper(name: &str) -> Option<(String, String)> {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'-' {
            at += 1;
        } else if bytes.get(at + 1) == Some(&b'-') {
            at += 2;
        } else {
            let (group, lv) = (name.get(..at)?, name.get(at + 1..)?);
            let (group, lv) = (group.replace("--", "-"), lv.replace("--", "-"));
            // Accepts only LVM's own spelling: one more single hyphen means a part of another LV
            // (`vg-pool-tpool`).
            let whole = mapper(&group, &lv).to_str() == Some(&format!("/dev/mapper/{name}"));
            return (whole && !group.is_empty() && !lv.is_empty()).then_some((group, lv));
        }
    }
    None
}

fn mapper(group: &str, lv: &str) -> PathBuf {
    let doubled = |name: &str| name.replace('-', "--");
    Path::new("/dev/mapper").join(format!("{}-{}", doubled(group), doubled(lv)))
}

/// Returns `true` if a backstore's path is the device of the spec, under one of the names of one
/// LV.
pub(crate) fn is_same_device(found: &Path, wanted: &Path) -> bool {
    found == wanted || of_path(wanted).is_some_and(|wanted| of_path(found) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_an_lv_are_read() {
        let of = |path: &str| of_path(Path::new(path)).map(|(group, lv)| format!("{group} {lv}"));
        for (path, want) in [
            ("/dev/vg0/lv0", "vg0 lv0"),
            ("/dev/cinder-volumes/volume-1-2", "cinder-volumes volume-1-2"),
            ("/dev/mapper/vg0-lv0", "vg0 lv0"),
            ("/dev/mapper/a---b", "a- b"),
            ("/dev/mapper/cinder--volumes-volume--1--2", "cinder-volumes volume-1-2"),
        ] {
            assert_eq!(of(path).as_deref(), Some(want), "{path}");
        }
        for path in [
            "/dev/sdb",
            "/dev/vg0/",
            "/dev/vg0/a/b",
            "/dev/mapper/lv0",
            "/dev/mapper/vg0-pool-tpool",
            "/dev/disk/by-id",
            "/dev/dm-3",
            "/srv/vg0/lv0",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn one_device_under_two_names_is_the_same_and_another_is_not() {
        let same = |a: &str, b: &str| is_same_device(Path::new(a), Path::new(b));
        assert!(same("/dev/mapper/v--g-l--v", "/dev/v-g/l-v") && same("/dev/sdb", "/dev/sdb"));
        assert!(!same("/dev/mapper/v-g-l--v", "/dev/v-g/l-v") && !same("/dev/sdb", "/dev/sdc"));
    }
}

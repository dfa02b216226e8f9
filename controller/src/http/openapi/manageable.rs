//! The rows of logical volumes that could become volumes.

use super::operation::{NUMBER, Operation, TEXT, op};

/// The query keys of lists of LVs.
const MANAGEABLE: [(&str, &str); 8] = [
    ("host", TEXT),
    ("cluster", TEXT),
    ("marker", TEXT),
    ("limit", NUMBER),
    ("offset", NUMBER),
    ("sort", TEXT),
    ("sort_key", TEXT),
    ("sort_dir", TEXT),
];

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/manageable_volumes", "listManageable", "LVs of a storage host that could become volumes")
        .policies(&["volume_extension:list_manageable"])
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("POST", "/manageable_volumes", "manageVolume", "Make a volume of an LV")
        .policies(&["volume_extension:volume_manage"])
        .since("3.8")
        .admin()
        .status(202)
        .takes("ManagedVolume")
        .gives("MadeVolume"),
    op("GET", "/manageable_volumes/detail", "listManageableInFull", "LVs of a storage host, in full")
        .policies(&["volume_extension:list_manageable"])
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("GET", "/os-volume-manage", "listOlderManageable", "As /manageable_volumes")
        .policies(&["volume_extension:list_manageable"])
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
    op("POST", "/os-volume-manage", "manageVolumeOlder", "As /manageable_volumes")
        .policies(&["volume_extension:volume_manage"])
        .admin()
        .status(202)
        .takes("ManagedVolume")
        .gives("MadeVolume"),
    op("GET", "/os-volume-manage/detail", "listOlderManageableInFull", "As /manageable_volumes/detail")
        .policies(&["volume_extension:list_manageable"])
        .since("3.8")
        .admin()
        .queries(&MANAGEABLE)
        .gives("Manageable"),
];

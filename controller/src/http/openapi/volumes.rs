//! The rows of volumes, their metadata and reservations.

use super::operation::{BOOLEAN, NUMBER, Operation, op};
use crate::list::VOLUMES;

/// The policies that setting keys asks: one for new keys, one for keys that are there.
const METADATA_SET: &[&str] = &["volume:create_volume_metadata", "volume:update_volume_metadata"];

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/volumes", "listVolumeNames", "Volumes, by name")
        .policies(&["volume:get_all"])
        .lists(&VOLUMES)
        .gives("VolumeNames"),
    op("POST", "/volumes", "createVolume", "Create a volume")
        .policies(&["volume:create", "volume:multiattach"])
        .status(202)
        .takes("NewVolume")
        .gives("MadeVolume"),
    op("GET", "/volumes/detail", "listVolumes", "Volumes")
        .policies(&["volume:get_all"])
        .lists(&VOLUMES)
        .gives("Volumes"),
    op("GET", "/volumes/summary", "sumVolumes", "Volumes in numbers")
        .policies(&["volume:get_all"])
        .since("3.12")
        .lists(&VOLUMES)
        .gives("Summary"),
    op("GET", "/volumes/{id}", "showVolume", "One volume").hides("volume:get").gives("ShownVolume"),
    op("PUT", "/volumes/{id}", "updateVolume", "Rename a volume")
        .policies(&["volume:update"])
        .takes("VolumeUpdate")
        .gives("MadeVolume"),
    op("DELETE", "/volumes/{id}", "deleteVolume", "Delete a volume")
        .policies(&["volume:delete", "volume:delete_snapshot", "volume:force_delete"])
        .status(202)
        .queries(&[("cascade", BOOLEAN), ("force", BOOLEAN)]),
    op("POST", "/volumes/{id}/action", "actOnVolume", "Act on a volume")
        .open("each action has a row of its own")
        .status(202)
        .also(200)
        .takes("VolumeAction"),
    op("GET", "/volumes/{id}/encryption", "showEncryption", "The encryption of a volume: none")
        .policies(&["volume_extension:volume_encryption_metadata"])
        .gives("Encryption"),
    op("GET", "/volumes/{id}/metadata", "listMetadata", "The metadata of a volume")
        .policies(&["volume:get_volume_metadata"])
        .gives("Metadata"),
    op("POST", "/volumes/{id}/metadata", "mergeMetadata", "Set keys")
        .policies(METADATA_SET)
        .takes("NewMetadata")
        .gives("Metadata"),
    op("PUT", "/volumes/{id}/metadata", "replaceMetadata", "Set all keys")
        .policies(&[
            "volume:create_volume_metadata",
            "volume:update_volume_metadata",
            "volume:delete_volume_metadata",
        ])
        .takes("NewMetadata")
        .gives("Metadata"),
    op("GET", "/volumes/{id}/metadata/{key}", "showMetadata", "One key")
        .policies(&["volume:get_volume_metadata"])
        .gives("Meta"),
    op("PUT", "/volumes/{id}/metadata/{key}", "setMetadata", "Set one key")
        .policies(METADATA_SET)
        .takes("NewMeta")
        .gives("Meta"),
    op("DELETE", "/volumes/{id}/metadata/{key}", "deleteMetadata", "Delete one key")
        .policies(&["volume:delete_volume_metadata"]),
];

/// Below `/mooring/v1`.
pub(super) const OWN: &[Operation] = &[
    op("GET", "/volumes/{id}/placement", "showPlacement", "The reasons for a volume's place")
        .policies(&["volume_extension:volume_host_attribute"])
        .admin()
        .gives("ShownPlacement"),
    op("POST", "/volumes", "importVolume", "A volume from an image of a storage node")
        .policies(&["mooring:import", "volume:create"])
        .admin()
        .status(202)
        .takes("NewImport")
        .gives("ShownState"),
    op("GET", "/volumes/{id}", "showState", "Facts that only this API has")
        .hides("volume:get")
        .gives("ShownState"),
    op("POST", "/volumes/{id}/export", "exportVolume", "Copy a volume to a file of its storage node")
        .policies(&["mooring:export"])
        .admin()
        .status(202)
        .takes("NewExport")
        .gives("ShownExport"),
    op("GET", "/volumes/{id}/export", "showExport", "The last image export of a volume")
        .policies(&["mooring:export"])
        .admin()
        .gives("ShownExport"),
    op("DELETE", "/volumes/{id}/export", "cancelExport", "Cancel an image export")
        .policies(&["mooring:export"])
        .admin()
        .status(202)
        .gives("ShownExport"),
    op("DELETE", "/volumes/{id}/extend", "cancelExtend", "Cancel the growth of a volume")
        .policies(&["mooring:extend_cancel"])
        .status(202)
        .gives("ShownState"),
    op("GET", "/volumes/{id}/reservations", "showReservations", "Reservations of a volume (SCSI-3)")
        .policies(&["mooring:sessions"])
        .admin()
        .gives("Reservations"),
    op(
        "POST",
        "/volumes/{id}/rotate-secrets",
        "rotateSecrets",
        "Give attachments new secrets, without a gap",
    )
    .policies(&["mooring:rotate_secrets"])
    .queries(&[("wait_ms", NUMBER)])
    .takes("RotateSecrets")
    .gives("LiveAttachments"),
    op("PUT", "/volumes/{id}/cut", "cutVolume", "Isolate a volume from its disk")
        .policies(&["mooring:cut"])
        .admin()
        .status(202)
        .takes("CutVolume")
        .gives("ShownState"),
    op("DELETE", "/volumes/{id}/cut", "uncutVolume", "End the isolation of a volume")
        .policies(&["mooring:cut"])
        .admin()
        .status(202)
        .gives("ShownState"),
    op("POST", "/volumes/{id}/reservations", "changeReservations", "Clear or preempt them (SCSI-3)")
        .policies(&["mooring:reservations"])
        .admin()
        .takes("ChangeReservations")
        .gives("ReservationsChanged"),
    op(
        "POST",
        "/volumes/{id}/confirm-review",
        "confirmReview",
        "What the database says of a volume is right",
    )
    .policies(&["mooring:confirm_review"])
    .admin()
    .status(204)
    .takes("Any"),
];

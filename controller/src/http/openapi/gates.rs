//! The policy row of each operation and of each action: which policies decide about a caller.
//!
//! What must never happen here: a route without a row; a row with a policy that its route does not
//! ask (the fleet's test `every_route_is_closed_by_the_policies_of_its_row` calls each of them).

use serde_json::{Map, Value, json};

use super::Operation;
use crate::http::actions;

/// The check that decides about one operation or action.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gate {
    /// These policies refuse it: 403, which names the policy.
    Policies(&'static [&'static str]),
    /// This policy hides the object: 404 for callers that may not see it.
    Hides(&'static str),
    /// No policy is asked, for this reason.
    Open(&'static str),
}

use Gate::{Hides, Open, Policies};

const NOTHING_THERE: &str = "there is nothing to hide: the collection is always empty";

const VOLUME: Gate = Hides("volume:get");
const VOLUMES: Gate = Policies(&["volume:get_all"]);
const SNAPSHOT: Gate = Hides("volume:get_snapshot");
const SNAPSHOTS: Gate = Policies(&["volume:get_all_snapshots"]);
const SNAPSHOT_UPDATE: Gate = Policies(&["volume:update_snapshot"]);
const SNAPSHOT_METADATA: Gate = Policies(&["volume:get_snapshot_metadata"]);
const METADATA: Gate = Policies(&["volume:get_volume_metadata"]);
const METADATA_SET: Gate = Policies(&["volume:create_volume_metadata", "volume:update_volume_metadata"]);
const ATTACHMENT: Gate = Hides("mooring:attachment_get");
const ATTACHMENTS: Gate = Policies(&["mooring:attachment_get_all"]);
const DETACH: Gate =
    Policies(&["volume:attachment_delete", "volume_extension:volume_admin_actions:force_detach"]);
const TYPE: Gate = Policies(&["volume_extension:type_get"]);
const SPECS_SET: Gate =
    Policies(&["volume_extension:types_extra_specs:create", "volume_extension:types_extra_specs:update"]);
const MANAGEABLE: Gate = Policies(&["volume_extension:list_manageable"]);
const MANAGE: Gate = Policies(&["volume_extension:volume_manage"]);
const SERVICES_UPDATE: Gate = Policies(&["volume_extension:services:update"]);
const STORAGE_HOSTS: Gate = Policies(&["volume_extension:hosts"]);
const HOSTS: Gate = Policies(&["mooring:hosts"]);
const FENCE: Gate = Policies(&["mooring:fence"]);
const CUT: Gate = Policies(&["mooring:cut"]);
const EXPORT: Gate = Policies(&["mooring:export"]);
const BACKUPS: Gate = Policies(&["backup:get_all"]);
const GROUPS: Gate = Policies(&["group:get_all"]);
const TRANSFERS: Gate = Policies(&["volume:get_all_transfers"]);
const QUOTAS: Gate = Policies(&["volume_extension:quotas:show"]);

/// The rows of the operations, by their ids.
const OPERATIONS: &[(&str, Gate)] = &[
    // Volumes.
    ("listVolumeNames", VOLUMES),
    ("createVolume", Policies(&["volume:create", "volume:multiattach"])),
    ("listVolumes", VOLUMES),
    ("sumVolumes", VOLUMES),
    ("showVolume", VOLUME),
    ("updateVolume", Policies(&["volume:update"])),
    ("deleteVolume", Policies(&["volume:delete", "volume:force_delete"])),
    ("actOnVolume", Open("each action has a row of its own")),
    ("showEncryption", Policies(&["volume_extension:volume_encryption_metadata"])),
    ("listMetadata", METADATA),
    ("mergeMetadata", METADATA_SET),
    (
        "replaceMetadata",
        Policies(&[
            "volume:create_volume_metadata",
            "volume:update_volume_metadata",
            "volume:delete_volume_metadata",
        ]),
    ),
    ("showMetadata", METADATA),
    ("setMetadata", METADATA_SET),
    ("deleteMetadata", Policies(&["volume:delete_volume_metadata"])),
    // Attachments.
    ("listAttachmentNames", ATTACHMENTS),
    ("createAttachment", Policies(&["volume:attachment_create"])),
    ("listAttachments", ATTACHMENTS),
    ("showAttachment", ATTACHMENT),
    ("connectAttachment", Policies(&["volume:attachment_update"])),
    ("deleteAttachment", DETACH),
    ("actOnAttachment", Policies(&["volume:attachment_complete"])),
    // Types.
    ("listTypes", Policies(&["volume_extension:type_get_all"])),
    ("createType", Policies(&["volume_extension:type_create"])),
    ("showDefaultType", TYPE),
    ("showType", TYPE),
    ("updateType", Policies(&["volume_extension:type_update"])),
    ("deleteType", Policies(&["volume_extension:type_delete"])),
    ("listExtraSpecs", Policies(&["volume_extension:types_extra_specs:index"])),
    ("setExtraSpecs", SPECS_SET),
    ("showExtraSpec", Policies(&["volume_extension:types_extra_specs:show"])),
    ("setExtraSpec", SPECS_SET),
    ("deleteExtraSpec", Policies(&["volume_extension:types_extra_specs:delete"])),
    (
        "actOnType",
        Policies(&[
            "volume_extension:volume_type_access:addProjectAccess",
            "volume_extension:volume_type_access:removeProjectAccess",
        ]),
    ),
    ("listTypeAccess", Policies(&["volume_extension:volume_type_access:get_all_for_type"])),
    ("listDefaultTypes", Policies(&["volume_extension:default_get_all"])),
    ("showProjectDefault", Policies(&["volume_extension:default_get"])),
    ("setProjectDefault", Policies(&["volume_extension:default_set_or_update"])),
    ("unsetProjectDefault", Policies(&["volume_extension:default_unset"])),
    // Quotas and limits.
    (
        "showLimits",
        Open("everybody reads the limits of the own project; its use wants limits_extension:used_limits"),
    ),
    ("showQuotas", QUOTAS),
    ("setQuotas", Policies(&["volume_extension:quotas:update"])),
    ("deleteQuotas", Policies(&["volume_extension:quotas:delete"])),
    ("showDefaultQuotas", QUOTAS),
    ("showQuotaClass", Policies(&["volume_extension:quota_classes:get"])),
    ("setQuotaClass", Policies(&["volume_extension:quota_classes:update"])),
    // Snapshots.
    ("listSnapshotNames", SNAPSHOTS),
    ("createSnapshot", Policies(&["volume:create_snapshot"])),
    ("listSnapshots", SNAPSHOTS),
    ("showSnapshot", SNAPSHOT),
    ("updateSnapshot", SNAPSHOT_UPDATE),
    ("deleteSnapshot", Policies(&["volume:delete_snapshot"])),
    ("actOnSnapshot", SNAPSHOT),
    ("listSnapshotMetadata", SNAPSHOT_METADATA),
    ("mergeSnapshotMetadata", Policies(&["volume:update_snapshot_metadata"])),
    ("replaceSnapshotMetadata", Policies(&["volume:update_snapshot_metadata"])),
    ("showSnapshotMetadata", SNAPSHOT_METADATA),
    ("setSnapshotMetadata", Policies(&["volume:update_snapshot_metadata"])),
    ("deleteSnapshotMetadata", Policies(&["volume:delete_snapshot_metadata"])),
    // LVs that become volumes.
    ("listManageable", MANAGEABLE),
    ("manageVolume", MANAGE),
    ("listManageableInFull", MANAGEABLE),
    ("listOlderManageable", MANAGEABLE),
    ("manageVolumeOlder", MANAGE),
    ("listOlderManageableInFull", MANAGEABLE),
    // Messages.
    ("listMessages", Policies(&["message:get_all"])),
    ("showMessage", Policies(&["message:get"])),
    ("deleteMessage", Policies(&["message:delete"])),
    // Facts about the API itself.
    ("listExtensions", Open("the same for everybody, and of nobody")),
    ("showExtension", Open("the same for everybody, and of nobody")),
    ("listZones", Open("names of zones, which every create may name")),
    ("listFilters", Open("the same for everybody, and of nobody")),
    // Storage hosts and services.
    ("listStorageHosts", STORAGE_HOSTS),
    ("showStorageHost", STORAGE_HOSTS),
    ("listPools", Policies(&["scheduler_extension:scheduler_stats:get_pools"])),
    ("showCapabilities", Policies(&["volume_extension:capabilities"])),
    ("listServices", Policies(&["volume_extension:services:index"])),
    ("enableService", SERVICES_UPDATE),
    ("disableService", SERVICES_UPDATE),
    ("disableServiceFor", SERVICES_UPDATE),
    ("freezeService", Policies(&["volume:freeze_host"])),
    ("thawService", Policies(&["volume:thaw_host"])),
    ("failOver", Policies(&["volume:failover_host"])),
    ("failHostOver", Policies(&["volume:failover_host"])),
    // Always empty.
    ("listBackupNames", BACKUPS),
    ("listBackups", BACKUPS),
    ("listGroupNames", GROUPS),
    ("listGroups", GROUPS),
    ("listTransferNames", TRANSFERS),
    ("listTransfers", TRANSFERS),
    ("listQosSpecs", Open(NOTHING_THERE)),
    ("listNewTransferNames", TRANSFERS),
    ("listNewTransfers", TRANSFERS),
    ("showBackup", Open(NOTHING_THERE)),
    ("showGroup", Open(NOTHING_THERE)),
    ("showTransfer", Open(NOTHING_THERE)),
    ("showQosSpec", Open(NOTHING_THERE)),
    ("showNewTransfer", Open(NOTHING_THERE)),
    ("deleteBackup", Open(NOTHING_THERE)),
    ("deleteGroup", Open(NOTHING_THERE)),
    ("deleteTransfer", Open(NOTHING_THERE)),
    ("deleteQosSpec", Open(NOTHING_THERE)),
    ("deleteNewTransfer", Open(NOTHING_THERE)),
    // Mooring's own.
    ("listHosts", HOSTS),
    ("showHost", HOSTS),
    ("enableHost", SERVICES_UPDATE),
    ("disableHost", SERVICES_UPDATE),
    ("drainHost", SERVICES_UPDATE),
    ("undrainHost", SERVICES_UPDATE),
    ("showPlacement", Policies(&["volume_extension:volume_host_attribute"])),
    ("makeJoinToken", Policies(&["mooring:host_enrol"])),
    ("revokeHost", Policies(&["mooring:host_enrol"])),
    ("renameHost", Policies(&["mooring:host_enrol"])),
    ("showHostLoss", Policies(&["mooring:host_forget"])),
    ("forgetHost", Policies(&["mooring:host_forget"])),
    ("showFence", FENCE),
    ("fenceHost", FENCE),
    ("unfenceHost", FENCE),
    ("listFences", FENCE),
    ("listAudit", Policies(&["mooring:audit"])),
    ("listJobs", Policies(&["mooring:jobs"])),
    ("limitJobs", Policies(&["mooring:jobs"])),
    ("listLive", ATTACHMENTS),
    ("attach", Policies(&["mooring:attach_native", "volume:attachment_create"])),
    ("showLive", ATTACHMENT),
    ("detach", DETACH),
    ("setMode", Policies(&["volume:attachment_update"])),
    ("setCache", Policies(&["volume:attachment_update"])),
    ("checkAttachment", Policies(&["mooring:attachment_check"])),
    ("showReceipt", Hides("mooring:receipts")),
    ("listReceipts", Policies(&["mooring:receipts"])),
    ("importVolume", Policies(&["mooring:import", "volume:create"])),
    ("showState", VOLUME),
    ("exportVolume", EXPORT),
    ("showExport", EXPORT),
    ("cancelExport", EXPORT),
    ("cancelExtend", Policies(&["mooring:extend_cancel"])),
    ("showReservations", Policies(&["mooring:sessions"])),
    ("cutVolume", CUT),
    ("uncutVolume", CUT),
    ("rotateSecrets", Policies(&["mooring:rotate_secrets"])),
    ("changeReservations", Policies(&["mooring:reservations"])),
    ("confirmReview", Policies(&["mooring:confirm_review"])),
    ("raiseEpoch", Policies(&["mooring:raise_epoch"])),
    // Outside of projects.
    ("listVersions", Open("read before anybody logs in")),
    ("showVersions", Open("read before anybody logs in")),
    ("showDescription", Open("read before anybody logs in")),
    ("showAuthority", Open("a certificate is no secret, and an agent that joins reads it first")),
    ("join", Open("the token in its body decides, and who joins has no other identity yet")),
];

/// The rows of the actions on volumes, by their names. Actions that Mooring does not have yet stand
/// in [`actions::LATER`].
const ACTIONS: &[(&str, Gate)] = &[
    ("os-attach", Policies(&["volume_extension:volume_actions:attach"])),
    ("os-begin_detaching", Policies(&["volume_extension:volume_actions:begin_detaching"])),
    ("os-detach", Policies(&["volume_extension:volume_actions:detach"])),
    (
        "os-force_detach",
        Policies(&["volume_extension:volume_admin_actions:force_detach", "volume:attachment_delete"]),
    ),
    ("os-initialize_connection", Policies(&["volume_extension:volume_actions:initialize_connection"])),
    ("os-reserve", Policies(&["volume_extension:volume_actions:reserve"])),
    ("os-roll_detaching", Policies(&["volume_extension:volume_actions:roll_detaching"])),
    ("os-terminate_connection", Policies(&["volume_extension:volume_actions:terminate_connection"])),
    ("os-unreserve", Policies(&["volume_extension:volume_actions:unreserve"])),
    ("os-retype", Policies(&["volume:retype", "volume:multiattach"])),
    ("os-extend", Policies(&["volume:extend", "volume:extend_attached_volume"])),
    ("os-force_delete", Policies(&["volume_extension:volume_admin_actions:force_delete"])),
    ("os-reset_status", Policies(&["volume_extension:volume_admin_actions:reset_status"])),
    ("os-set_bootable", Policies(&["volume:update"])),
    ("os-update_readonly_flag", Policies(&["volume:update_readonly_flag"])),
    ("revert", Policies(&["volume:revert_to_snapshot"])),
    ("os-unmanage", Policies(&["volume_extension:volume_unmanage"])),
];

impl Gate {
    fn describe(self, view: &mut Value) {
        match self {
            Policies(names) => view["x-mooring-policies"] = json!(names),
            Hides(name) => {
                view["x-mooring-policies"] = json!([name]);
                view["x-mooring-hidden"] = json!(true);
            }
            Open(why) => view["x-mooring-open"] = json!(why),
        }
    }
}

/// Writes the row of an operation into its description.
pub(super) fn describe(operation: &Operation, view: &mut Value) {
    if let Some((_, gate)) = OPERATIONS.iter().find(|(id, _)| *id == operation.id) {
        gate.describe(view);
    }
    if operation.id == ACTIONS_OF {
        view["x-mooring-actions"] = described_actions();
    }
}

/// The operation whose rows are those of the actions.
const ACTIONS_OF: &str = "actOnVolume";

fn described_actions() -> Value {
    let mut all = Map::new();
    for (name, gate) in ACTIONS {
        let mut row = json!({});
        gate.describe(&mut row);
        all.insert((*name).to_owned(), row);
    }
    for (name, policy) in actions::LATER {
        all.insert(name.to_owned(), json!({ "x-mooring-policies": [policy] }));
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::openapi::{BLOCK_STORAGE, OWN, ROOT};
    use crate::policy;

    #[test]
    fn every_route_and_every_action_has_one_policy_row() {
        let served: Vec<_> = BLOCK_STORAGE.iter().chain(&OWN).chain(&ROOT).map(|it| it.id).collect();
        let rows: Vec<_> = OPERATIONS.iter().map(|(id, _)| *id).collect();
        one_each(&served, &rows);
        let rows: Vec<_> = ACTIONS.iter().map(|(name, _)| *name).collect();
        one_each(&actions::served().collect::<Vec<_>>(), &rows);
    }

    #[track_caller]
    fn one_each(served: &[&str], rows: &[&str]) {
        let (served, once): (BTreeSet<_>, BTreeSet<_>) =
            (served.iter().copied().collect(), rows.iter().copied().collect());
        assert_eq!(served, once);
        assert_eq!(rows.len(), once.len(), "a row stands there twice");
    }

    #[test]
    fn rows_name_policies_that_are_there() {
        let known: BTreeSet<_> = policy::names().collect();
        for (of, gate) in OPERATIONS.iter().chain(ACTIONS) {
            let names: Vec<_> = match gate {
                Policies(names) => names.to_vec(),
                Hides(name) => vec![*name],
                Open(why) => {
                    assert!(!why.is_empty(), "{of}: say why it is open");
                    continue;
                }
            };
            assert!(!names.is_empty() && names.iter().all(|name| known.contains(name)), "{of}: {names:?}");
        }
    }
}

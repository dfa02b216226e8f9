//! The rows of collections that are always empty, since nothing makes their objects.

use super::operation::{Operation, op};

const NOTHING_THERE: &str = "there is nothing to hide: the collection is always empty";

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/backups", "listBackupNames", "Backups: none").policies(&["backup:get_all"]).gives("Empty"),
    op("GET", "/backups/detail", "listBackups", "Backups: none").policies(&["backup:get_all"]).gives("Empty"),
    op("GET", "/groups", "listGroupNames", "Groups: none").policies(&["group:get_all"]).gives("Empty"),
    op("GET", "/groups/detail", "listGroups", "Groups: none").policies(&["group:get_all"]).gives("Empty"),
    op("GET", "/os-volume-transfer", "listTransferNames", "Transfers: none")
        .policies(&["volume:get_all_transfers"])
        .gives("Empty"),
    op("GET", "/os-volume-transfer/detail", "listTransfers", "Transfers: none")
        .policies(&["volume:get_all_transfers"])
        .gives("Empty"),
    op("GET", "/qos-specs", "listQosSpecs", "QoS specs: none").open(NOTHING_THERE).gives("Empty"),
    op("GET", "/volume-transfers", "listNewTransferNames", "Transfers: none")
        .policies(&["volume:get_all_transfers"])
        .gives("Empty"),
    op("GET", "/volume-transfers/detail", "listNewTransfers", "Transfers: none")
        .policies(&["volume:get_all_transfers"])
        .gives("Empty"),
    op("GET", "/backups/{id}", "showBackup", "There is none").open(NOTHING_THERE).status(404),
    op("GET", "/groups/{id}", "showGroup", "There is none").open(NOTHING_THERE).status(404),
    op("GET", "/os-volume-transfer/{id}", "showTransfer", "There is none").open(NOTHING_THERE).status(404),
    op("GET", "/qos-specs/{id}", "showQosSpec", "There is none").open(NOTHING_THERE).status(404),
    op("GET", "/volume-transfers/{id}", "showNewTransfer", "There is none").open(NOTHING_THERE).status(404),
    op("DELETE", "/backups/{id}", "deleteBackup", "There is none").open(NOTHING_THERE).status(404),
    op("DELETE", "/groups/{id}", "deleteGroup", "There is none").open(NOTHING_THERE).status(404),
    op("DELETE", "/os-volume-transfer/{id}", "deleteTransfer", "There is none")
        .open(NOTHING_THERE)
        .status(404),
    op("DELETE", "/qos-specs/{id}", "deleteQosSpec", "There is none").open(NOTHING_THERE).status(404),
    op("DELETE", "/volume-transfers/{id}", "deleteNewTransfer", "There is none")
        .open(NOTHING_THERE)
        .status(404),
];

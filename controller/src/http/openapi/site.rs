//! The rows of the whole site: versions, extensions, zones, filters, messages, the audit log, the
//! epoch.

use super::PATH;
use super::operation::{NUMBER, Operation, TEXT, op};
use crate::list::MESSAGES;

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/messages", "listMessages", "Messages: why requests failed later")
        .policies(&["message:get_all"])
        .since("3.3")
        .lists(&MESSAGES)
        .gives("Messages"),
    op("GET", "/messages/{id}", "showMessage", "One message")
        .policies(&["message:get"])
        .since("3.3")
        .gives("ShownMessage"),
    op("DELETE", "/messages/{id}", "deleteMessage", "Delete a message")
        .policies(&["message:delete"])
        .since("3.3")
        .status(204),
    op("GET", "/extensions", "listExtensions", "Parts of the API")
        .open("the same for everybody, and of nobody")
        .gives("Extensions"),
    op("GET", "/extensions/{alias}", "showExtension", "One part")
        .open("the same for everybody, and of nobody")
        .gives("ShownExtension"),
    op("GET", "/os-availability-zone", "listZones", "Availability zones")
        .open("names of zones, which every create may name")
        .gives("Zones"),
    op("GET", "/resource_filters", "listFilters", "The filters of lists")
        .open("the same for everybody, and of nobody")
        .since("3.33")
        .queries(&[("resource", TEXT)])
        .gives("ResourceFilters"),
];

/// Below `/mooring/v1`.
pub(super) const OWN: &[Operation] = &[
    op("GET", "/audit", "listAudit", "The calls that changed something, or would have; the newest first")
        .policies(&["mooring:audit"])
        .admin()
        .queries(&[
            ("since", TEXT),
            ("until", TEXT),
            ("user", TEXT),
            ("object", TEXT),
            ("limit", NUMBER),
            ("marker", NUMBER),
        ])
        .gives("AuditLines"),
    op("POST", "/epoch", "raiseEpoch", "Start a new epoch")
        .policies(&["mooring:raise_epoch"])
        .admin()
        .takes("Any")
        .gives("Epoch"),
];

/// At addresses of their own, which are open without a login.
pub(super) const ROOT: &[Operation] = &[
    op("GET", "/", "listVersions", "The versions")
        .open("read before anybody logs in")
        .status(300)
        .gives("Versions"),
    op("GET", "/v3/", "showVersions", "The versions").open("read before anybody logs in").gives("Versions"),
    op("GET", PATH, "showDescription", "This document").open("read before anybody logs in").gives("Any"),
];

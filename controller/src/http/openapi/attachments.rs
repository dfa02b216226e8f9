//! The rows of attachments, and of the receipts of detaches.

use super::operation::{BOOLEAN, NUMBER, Operation, TEXT, op};
use crate::list::ATTACHMENTS;

/// The policies that a detach asks: the second one for a forced detach.
const DETACH: &[&str] = &["volume:attachment_delete", "volume_extension:volume_admin_actions:force_detach"];

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/attachments", "listAttachmentNames", "Attachments")
        .policies(&["mooring:attachment_get_all"])
        .since("3.27")
        .lists(&ATTACHMENTS)
        .gives("AttachmentSummaries"),
    op("POST", "/attachments", "createAttachment", "Reserve or attach")
        .policies(&["volume:attachment_create"])
        .since("3.27")
        .takes("NewAttachment")
        .gives("ShownAttachment"),
    op("GET", "/attachments/detail", "listAttachments", "Attachments in full")
        .policies(&["mooring:attachment_get_all"])
        .since("3.27")
        .lists(&ATTACHMENTS)
        .gives("Attachments"),
    op("GET", "/attachments/{id}", "showAttachment", "One attachment")
        .hides("mooring:attachment_get")
        .since("3.27")
        .gives("ShownAttachment"),
    op("PUT", "/attachments/{id}", "connectAttachment", "Give a reserved attachment its connector")
        .policies(&["volume:attachment_update"])
        .since("3.27")
        .takes("AttachmentUpdate")
        .gives("ShownAttachment"),
    op("DELETE", "/attachments/{id}", "deleteAttachment", "Detach")
        .policies(DETACH)
        .since("3.27")
        .queries(&[("force", BOOLEAN)])
        .gives("AttachmentSummaries"),
    op("POST", "/attachments/{id}/action", "actOnAttachment", "Complete an attachment")
        .policies(&["volume:attachment_complete"])
        .since("3.27")
        .status(204)
        .takes("AttachmentAction"),
];

/// Below `/mooring/v1`.
pub(super) const OWN: &[Operation] = &[
    op("GET", "/attachments", "listLive", "Attachments, live")
        .policies(&["mooring:attachment_get_all"])
        .queries(&[("volume", TEXT)])
        .gives("LiveAttachments"),
    op("POST", "/attachments", "attach", "Attach a volume to an enrolled host")
        .policies(&["mooring:attach_native", "volume:attachment_create"])
        .status(202)
        .takes("NewNative")
        .gives("ShownLive"),
    op("GET", "/attachments/{id}", "showLive", "One attachment, live; `after` waits for a change")
        .hides("mooring:attachment_get")
        .queries(&[("after", NUMBER), ("wait_ms", NUMBER)])
        .gives("ShownLive"),
    op("DELETE", "/attachments/{id}", "detach", "Detach")
        .policies(DETACH)
        .queries(&[("force", BOOLEAN), ("widen", TEXT), ("wait_ms", NUMBER)])
        .gives("ShownReceipt"),
    op("PUT", "/attachments/{id}/mode", "setMode", "Change an attachment's mode in place")
        .policies(&["volume:attachment_update"])
        .queries(&[("wait_ms", NUMBER)])
        .takes("SetMode")
        .gives("ModeSet"),
    op("PUT", "/attachments/{id}/cache", "setCache", "Change an attachment's cache in place")
        .policies(&["volume:attachment_update"])
        .queries(&[("wait_ms", NUMBER)])
        .takes("SetCache")
        .gives("ShownLive"),
    op(
        "GET",
        "/attachments/{id}/check",
        "checkAttachment",
        "Who uses the disk of an attachment on its host, looked at now",
    )
    .policies(&["mooring:attachment_check"])
    .gives("Checked"),
    op("GET", "/attachments/{id}/receipt", "showReceipt", "The receipt of a detach")
        .hides("mooring:receipts")
        .gives("ShownReceipt"),
    op("GET", "/receipts", "listReceipts", "The records of detaches")
        .policies(&["mooring:receipts"])
        .queries(&[("volume", TEXT), ("attachment", TEXT), ("limit", NUMBER)])
        .gives("Receipts"),
];

//! Differences between our answers and the recorded ones, with their reasons.
//!
//! What must never happen here: a deviation without a reason that a reader can check; one that
//! covers more than it says.

use std::fmt;

use crate::replay::Difference;

/// A known kind of difference.
pub(crate) struct Deviation {
    /// The scenario; empty: every one.
    scenario: &'static str,
    /// The beginning of the request (`GET /snapshots`), or its path (`/snapshots`); empty: every
    /// one.
    request: &'static str,
    /// The beginning of the difference.
    what: &'static str,
    /// The reason.
    why: &'static str,
}

impl Deviation {
    pub(crate) fn covers(&self, difference: &Difference) -> bool {
        let path = difference.request.split_once(' ').map_or("", |(_, path)| path);
        let request = if self.request.starts_with('/') { path } else { &difference.request };
        (self.scenario.is_empty() || difference.scenario == self.scenario)
            && request.starts_with(self.request)
            && difference.what.starts_with(self.what)
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = |text: &'static str| if text.is_empty() { "*" } else { text };
        write!(f, "{} | {} | {} ({})", any(self.scenario), any(self.request), self.what, self.why)
    }
}

const fn deviation(
    scenario: &'static str,
    request: &'static str,
    what: &'static str,
    why: &'static str,
) -> Deviation {
    Deviation { scenario, request, what, why }
}

pub(crate) const DEVIATIONS: &[Deviation] = &[
    deviation("", "POST /volumes", "volume.service_uuid: ", "placed when it is made, so it is known at once"),
    deviation("services-pools", "GET /extensions", "", "only the parts that are there are listed"),
    deviation(
        "services-pools",
        "GET /scheduler-stats",
        "",
        "one LVM pool with other facts; no pool has such a type",
    ),
    deviation("services-pools", "POST /volumes", "status 400", "refused at once, from the reports (S8)"),
    deviation("services-pools", "GET /volumes/<vol1>", "cannot be asked", "so there is no such volume"),
    deviation("services-pools", "GET /messages", "cannot be asked", "so there is none of it"),
    deviation("services-pools", "GET /os-services", "", "no scheduler of its own; other names"),
    deviation("services-pools", "GET /limits", "limits.absolute.", "the recorded site had raised its limits"),
    deviation(
        "services-pools",
        "GET /os-quota-sets",
        "quota_set.",
        "the recorded site had other limits and types",
    ),
    deviation("services-pools", "GET /os-hosts", "hosts", "one storage host with its own name"),
    deviation(
        "unknown-ids",
        "DELETE /groups",
        "status 404",
        "what is not there is not found, and no failure of ours",
    ),
    // Values of our own: names, addresses, secrets.
    deviation("", "", "attachment.connection_info.auth_password: ", "made at run time"),
    deviation("", "", "attachment.connection_info.auth_username: ", "made at run time"),
    deviation("", "", "attachment.connection_info.target_iqn: \"iqn.2026-11.dev.mooring:", "our own prefix"),
    deviation(
        "",
        "",
        "attachment.connection_info.target_lun: 1",
        "never LUN 0: the kernel answers for one that is not there",
    ),
    deviation(
        "",
        "",
        "attachment.connection_info.target_portal: \"10.0.0.1:3260\"",
        "the storage node's address",
    ),
    deviation("", "", "attachments[0].connection_info.auth_password: ", "made at run time"),
    deviation("", "", "attachments[0].connection_info.auth_username: ", "made at run time"),
    deviation(
        "",
        "",
        "attachments[0].connection_info.target_iqn: \"iqn.2026-11.dev.mooring:",
        "our own prefix",
    ),
    deviation(
        "",
        "",
        "attachments[0].connection_info.target_lun: 1",
        "never LUN 0: the kernel answers for one that is not there",
    ),
    deviation(
        "",
        "",
        "attachments[0].connection_info.target_portal: \"10.0.0.1:3260\"",
        "the storage node's address",
    ),
    deviation("", "", "volume.os-vol-host-attr:host: \"s1@lvm#vg0\"", "the fleet's own node"),
    deviation(
        "",
        "",
        "volume_type.name: \"__DEFAULT__\"",
        "a default type of our own, which is always there",
    ),
    deviation(
        "",
        "",
        "volume_type.description: \"Default Volume Type\"",
        "a default type of our own, which is always there",
    ),
    deviation(
        "",
        "",
        "volume_types[0].name: \"__DEFAULT__\"",
        "a default type of our own, which is always there",
    ),
    deviation(
        "",
        "",
        "volume_types[0].description: \"Default Volume Type\"",
        "a default type of our own, which is always there",
    ),
    deviation(
        "versions",
        "",
        "versions[0].updated: \"2026-11-21T00:00:00Z\"",
        "the recorder wrote <time> for a time with a zone",
    ),
    // Cinder falls short of its own specification here, or our answer is better.
    deviation(
        "",
        "",
        "attachment.attach_mode: \"rw\", recorded \"null\"",
        "G5: a mode is never the text null",
    ),
    deviation(
        "",
        "",
        "attachment.status: \"attaching\", recorded \"reserved\"",
        "the true status, where Cinder shows that before the call",
    ),
    deviation(
        "attach-complete-errors",
        "PUT",
        "attachment.status: \"attaching\", recorded \"attached\"",
        "a completed attachment without a connector that gets one is being attached",
    ),
    deviation(
        "attach-complete-errors",
        "GET /volumes",
        "volume.attachments[0].attached_at: ",
        "when it was completed, where Cinder has no time without a connector",
    ),
    deviation(
        "attach-reserve-update-complete",
        "GET /attachments",
        "attachment.attached_at: \"\"",
        "attached is what is complete",
    ),
    deviation(
        "attach-second-on-plain",
        "POST /attachments",
        "status 400, recorded 200",
        "one server has a volume once per host: Cinder makes a second row, and its update would answer 409",
    ),
    deviation(
        "attach-second-on-plain",
        "GET /volumes",
        "volume.status: \"in-use\", recorded \"attaching\"",
        "G1: a volume with a live attachment stays in-use",
    ),
    deviation(
        "",
        "",
        "attachment.connection_info.discard: not recorded",
        "always said: os-brick takes a missing key for no",
    ),
    deviation(
        "",
        "",
        "attachments[0].connection_info.discard: not recorded",
        "always said: os-brick takes a missing key for no",
    ),
    deviation(
        "",
        "",
        "volume.shared_targets: false, recorded true",
        "a target of its own per volume: Nova need not take turns",
    ),
    deviation(
        "type-invalid",
        "POST /types",
        "status 400, recorded 500",
        "a malformed body is the caller's fault",
    ),
    deviation(
        "volume-create-invalid",
        "POST /volumes",
        "status 400, recorded 500",
        "a malformed body is the caller's fault",
    ),
    deviation(
        "volume-crud",
        "GET /volumes/<vol1>/metadata",
        "header content-type: ",
        "JSON is said to be JSON",
    ),
    // Versions above 3.69.
    deviation(
        "versions",
        "",
        "versions[0].version: \"3.69\"",
        "3.70 is about transfers, 3.71 completes an extend: neither is there",
    ),
    deviation("versions", "GET /types", "status 406, recorded 200", "3.71 is not offered"),
    deviation(
        "versions",
        "GET /types",
        "header openstack-api-version: Some(\"volume 3.69\")",
        "latest is 3.69",
    ),
    deviation("volume-crud", "GET /volumes/<vol1>", "status 406, recorded 200", "3.71 is not offered"),
];

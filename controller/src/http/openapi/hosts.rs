//! The rows of hosts: enrolment, joins, fences, drains and jobs.

use super::operation::{BOOLEAN, NUMBER, Operation, op};
use crate::http::joining::{AUTHORITY, JOIN};

/// Below `/mooring/v1`.
pub(super) const OWN: &[Operation] = &[
    op("GET", "/hosts", "listHosts", "The enrolled agents")
        .policies(&["mooring:hosts"])
        .admin()
        .gives("Hosts"),
    op("GET", "/hosts/{name}", "showHost", "One agent, by its name or id")
        .policies(&["mooring:hosts"])
        .admin()
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/enable", "enableHost", "Let new volumes be placed there")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/disable", "disableHost", "Keep new volumes from it")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("Reason")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/drain", "drainHost", "Begin to empty a host")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op("POST", "/hosts/{name}/undrain", "undrainHost", "Stop emptying a host")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("Nothing")
        .gives("ShownHost"),
    op(
        "POST",
        "/hosts/{name}/token",
        "makeJoinToken",
        "A token with which a host may join, once, within an hour",
    )
    .policies(&["mooring:host_enrol"])
    .admin()
    .takes("NewJoinToken")
    .gives("JoinToken"),
    op("POST", "/hosts/{name}/revoke", "revokeHost", "End the enrolment of a host")
        .policies(&["mooring:host_enrol"])
        .admin()
        .takes("Nothing")
        .gives("Revoked"),
    op("POST", "/hosts/{name}/rename", "renameHost", "Give an enrolled host another name")
        .policies(&["mooring:host_enrol"])
        .admin()
        .takes("RenameHost")
        .gives("HostRenamed"),
    op("GET", "/hosts/{name}/forget", "showHostLoss", "The loss if a host is forgotten")
        .policies(&["mooring:host_forget"])
        .admin()
        .gives("ShownHostLoss"),
    op(
        "POST",
        "/hosts/{name}/forget",
        "forgetHost",
        "Give up a host that never comes back, with its volumes",
    )
    .policies(&["mooring:host_forget"])
    .admin()
    .takes("ForgetHost")
    .gives("HostForgotten"),
    op("GET", "/hosts/{name}/fence", "showFence", "The fence of a host, and its receipt")
        .policies(&["mooring:fence"])
        .admin()
        .gives("ShownFence"),
    op("POST", "/hosts/{name}/fence", "fenceHost", "Fence a host from every volume")
        .policies(&["mooring:fence"])
        .admin()
        .queries(&[("wait_ms", NUMBER)])
        .takes("NewFence")
        .gives("ShownFence"),
    op("POST", "/hosts/{name}/unfence", "unfenceHost", "Lift the fence of a host")
        .policies(&["mooring:fence"])
        .admin()
        .takes("Unfence")
        .gives("ShownFence"),
    op("GET", "/fences", "listFences", "Fenced hosts; `all`: lifted ones too")
        .policies(&["mooring:fence"])
        .admin()
        .queries(&[("all", BOOLEAN)])
        .gives("Fences"),
    op("GET", "/jobs", "listJobs", "Long work of the storage nodes, live")
        .policies(&["mooring:jobs"])
        .admin()
        .gives("Jobs"),
    op(
        "PUT",
        "/hosts/{name}/job-limit",
        "limitJobs",
        "What all jobs of a storage node may write in a second",
    )
    .policies(&["mooring:jobs"])
    .admin()
    .takes("JobLimit")
    .gives("ShownJobLimit"),
];

/// At addresses of their own, which are open without a login.
pub(super) const ROOT: &[Operation] = &[
    op(
        "GET",
        AUTHORITY,
        "showAuthority",
        "Show the certificate of the authority that signs the agents' certificates",
    )
    .open("a certificate is no secret, and an agent that joins reads it first")
    .gives("Authority"),
    op("POST", JOIN, "join", "Let an agent join, by its token")
        .open("the token in its body decides, and who joins has no other identity yet")
        .takes("Join")
        .gives("Joined"),
];

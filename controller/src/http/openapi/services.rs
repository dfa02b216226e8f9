//! The rows of storage hosts as the Block Storage API shows them: services, pools, capabilities.

use super::operation::{BOOLEAN, Operation, TEXT, op};

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/os-hosts", "listStorageHosts", "Storage hosts")
        .policies(&["volume_extension:hosts"])
        .admin()
        .queries(&[("zone", TEXT)])
        .gives("StorageHosts"),
    op("GET", "/os-hosts/{name}", "showStorageHost", "The usage of a storage host")
        .policies(&["volume_extension:hosts"])
        .admin()
        .gives("StorageHost"),
    op("GET", "/scheduler-stats/get_pools", "listPools", "Pools, as last reported")
        .policies(&["scheduler_extension:scheduler_stats:get_pools"])
        .admin()
        .queries(&[("detail", BOOLEAN), ("volume_type", TEXT), ("name", TEXT)])
        .gives("Pools"),
    op("GET", "/capabilities/{host}", "showCapabilities", "The capabilities of a storage agent")
        .policies(&["volume_extension:capabilities"])
        .admin()
        .gives("Capabilities"),
    op("GET", "/os-services", "listServices", "Storage agents, and the scheduler")
        .policies(&["volume_extension:services:index"])
        .admin()
        .queries(&[("host", TEXT), ("binary", TEXT)])
        .gives("Services"),
    op("PUT", "/os-services/enable", "enableService", "Let new volumes be placed there")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("NamedService")
        .gives("ChangedService"),
    op("PUT", "/os-services/disable", "disableService", "Keep new volumes from it")
        .policies(&["volume_extension:services:update"])
        .admin()
        .takes("NamedService")
        .gives("ChangedService"),
    op(
        "PUT",
        "/os-services/disable-log-reason",
        "disableServiceFor",
        "Keep new volumes from it, with a reason",
    )
    .policies(&["volume_extension:services:update"])
    .admin()
    .takes("DisabledService")
    .gives("ChangedService"),
    op("PUT", "/os-services/freeze", "freezeService", "Refused")
        .policies(&["volume:freeze_host"])
        .admin()
        .status(501)
        .takes("NamedService"),
    op("PUT", "/os-services/thaw", "thawService", "Refused")
        .policies(&["volume:thaw_host"])
        .admin()
        .status(501)
        .takes("NamedService"),
    op("PUT", "/os-services/failover", "failOver", "Refused")
        .policies(&["volume:failover_host"])
        .since("3.26")
        .admin()
        .status(501)
        .takes("NamedService"),
    op("PUT", "/os-services/failover_host", "failHostOver", "Refused")
        .policies(&["volume:failover_host"])
        .admin()
        .status(501)
        .takes("NamedService"),
];

//! The rows of quotas and limits.

use super::operation::{BOOLEAN, Operation, TEXT, op};

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/limits", "showLimits", "The limits and usage of a project")
        .open("everybody reads the limits of the own project; its use wants limits_extension:used_limits")
        .queries(&[("project_id", TEXT)])
        .gives("Limits"),
    op("GET", "/os-quota-sets/{project}", "showQuotas", "The limits of a project")
        .policies(&["volume_extension:quotas:show"])
        .queries(&[("usage", BOOLEAN)])
        .gives("QuotaSet"),
    op("PUT", "/os-quota-sets/{project}", "setQuotas", "Set limits of a project")
        .policies(&["volume_extension:quotas:update"])
        .admin()
        .takes("NewQuotaSet")
        .gives("QuotaSet"),
    op("DELETE", "/os-quota-sets/{project}", "deleteQuotas", "Delete the limits of a project")
        .policies(&["volume_extension:quotas:delete"])
        .admin(),
    op("GET", "/os-quota-sets/{project}/defaults", "showDefaultQuotas", "The defaults")
        .policies(&["volume_extension:quotas:show"])
        .gives("QuotaSet"),
    op("GET", "/os-quota-class-sets/{class}", "showQuotaClass", "The defaults, as the class `default`")
        .policies(&["volume_extension:quota_classes:get"])
        .admin()
        .gives("QuotaClassSet"),
    op("PUT", "/os-quota-class-sets/{class}", "setQuotaClass", "Set defaults")
        .policies(&["volume_extension:quota_classes:update"])
        .admin()
        .takes("NewQuotaClassSet")
        .gives("QuotaClassSet"),
];

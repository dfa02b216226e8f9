//! Every rule and every policy with its default. The names are Cinder's, which operators' files
//! use; Mooring's own begin with `mooring:`. Policies of features that Mooring lacks are here, too,
//! since files may name them.
//!
//! What must never happen here: a policy that is asked for and is not in this table (a test reads
//! the sources).

/// A policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    /// The default without roles of projects; allowed in addition while the new defaults are not
    /// enforced.
    pub(super) old: Option<&'static str>,
}

/// The rules that policies are made of.
pub(super) const RULES: &[(&str, &str)] = &[
    ("context_is_admin", "role:admin"),
    ("admin_api", "is_admin:True or (role:admin and is_admin_project:True)"),
    (
        "admin_or_owner",
        "is_admin:True or (role:admin and is_admin_project:True) or project_id:%(project_id)s",
    ),
    ("xena_system_admin_or_project_member", "role:admin or (role:member and project_id:%(project_id)s)"),
    ("xena_system_admin_or_project_reader", "role:admin or (role:reader and project_id:%(project_id)s)"),
];

const MEMBER: &str = "rule:xena_system_admin_or_project_member";
const READER: &str = "rule:xena_system_admin_or_project_reader";
const ADMIN: &str = "rule:admin_api";
const ADMIN_OR_SERVICE: &str = "rule:admin_api or role:service or is_service:True";
const OWNER: &str = "rule:admin_or_owner";
const ANYBODY: &str = "";

const fn admin(name: &'static str) -> Policy {
    Policy { name, default: ADMIN, old: None }
}

const fn admin_or_service(name: &'static str) -> Policy {
    Policy { name, default: ADMIN_OR_SERVICE, old: None }
}

const fn member(name: &'static str) -> Policy {
    Policy { name, default: MEMBER, old: Some(OWNER) }
}

const fn reader(name: &'static str) -> Policy {
    Policy { name, default: READER, old: Some(OWNER) }
}

/// A policy for members; its old default allowed everybody with a token.
const fn member_once_anybody(name: &'static str) -> Policy {
    Policy { name, default: MEMBER, old: Some(ANYBODY) }
}

/// A policy for readers; its old default allowed everybody with a token.
const fn reader_once_anybody(name: &'static str) -> Policy {
    Policy { name, default: READER, old: Some(ANYBODY) }
}

/// All policies.
pub(super) const POLICIES: &[Policy] = &[
    // Volumes.
    member_once_anybody("volume:create"),
    member_once_anybody("volume:create_from_image"),
    reader("volume:get"),
    reader("volume:get_all"),
    member("volume:update"),
    member("volume:delete"),
    admin("volume:force_delete"),
    member("volume:multiattach"),
    admin("volume_extension:volume_host_attribute"),
    reader("volume_extension:volume_tenant_attribute"),
    admin("volume_extension:volume_mig_status_attribute"),
    reader("volume_extension:volume_encryption_metadata"),
    reader("volume:get_volume_metadata"),
    member("volume:create_volume_metadata"),
    member("volume:update_volume_metadata"),
    member("volume:delete_volume_metadata"),
    admin("volume:update_volume_admin_metadata"),
    reader("volume_extension:volume_image_metadata:show"),
    member("volume_extension:volume_image_metadata:set"),
    member("volume_extension:volume_image_metadata:remove"),
    // Attachments. Cinder has no policy for lists and shows: ours are below.
    member_once_anybody("volume:attachment_create"),
    member("volume:attachment_update"),
    member("volume:attachment_delete"),
    member("volume:attachment_complete"),
    member("volume:multiattach_bootable_volume"),
    // Actions on volumes.
    member("volume:extend"),
    member("volume:extend_attached_volume"),
    admin("volume_extension:volume_admin_actions:extend_volume_completion"),
    member("volume:retype"),
    member("volume:update_readonly_flag"),
    member("volume:revert_to_snapshot"),
    member("volume:reimage"),
    member("volume:reimage_reserved"),
    member("volume_extension:volume_actions:reserve"),
    member("volume_extension:volume_actions:unreserve"),
    member("volume_extension:volume_actions:begin_detaching"),
    member("volume_extension:volume_actions:roll_detaching"),
    member("volume_extension:volume_actions:attach"),
    member("volume_extension:volume_actions:detach"),
    member("volume_extension:volume_actions:initialize_connection"),
    member("volume_extension:volume_actions:terminate_connection"),
    member("volume_extension:volume_actions:upload_image"),
    admin("volume_extension:volume_actions:upload_public"),
    admin("volume_extension:volume_admin_actions:reset_status"),
    admin("volume_extension:volume_admin_actions:force_delete"),
    admin("volume_extension:volume_admin_actions:force_detach"),
    admin("volume_extension:volume_admin_actions:migrate_volume"),
    admin("volume_extension:volume_admin_actions:migrate_volume_completion"),
    // Transfers.
    reader("volume:get_all_transfers"),
    member("volume:create_transfer"),
    reader("volume:get_transfer"),
    member("volume:accept_transfer"),
    member("volume:delete_transfer"),
    // Snapshots.
    reader("volume:get_all_snapshots"),
    member("volume:create_snapshot"),
    reader("volume:get_snapshot"),
    member("volume:update_snapshot"),
    member("volume:delete_snapshot"),
    reader("volume:get_snapshot_metadata"),
    member("volume:update_snapshot_metadata"),
    member("volume:delete_snapshot_metadata"),
    reader("volume_extension:extended_snapshot_attributes"),
    admin("volume_extension:snapshot_admin_actions:reset_status"),
    admin("volume_extension:snapshot_admin_actions:force_delete"),
    member_once_anybody("snapshot_extension:snapshot_actions:update_snapshot_status"),
    admin("snapshot_extension:list_manageable"),
    admin("snapshot_extension:snapshot_manage"),
    admin("snapshot_extension:snapshot_unmanage"),
    // Backups.
    reader("backup:get_all"),
    admin("backup:backup_project_attribute"),
    member_once_anybody("backup:create"),
    reader("backup:get"),
    member("backup:update"),
    member("backup:delete"),
    member("backup:restore"),
    admin("backup:backup-import"),
    admin("backup:backup-export"),
    admin("volume_extension:backup_admin_actions:reset_status"),
    admin("volume_extension:backup_admin_actions:force_delete"),
    // Groups.
    reader("group:get_all"),
    member_once_anybody("group:create"),
    reader("group:get"),
    member("group:update"),
    member("group:delete"),
    admin("group:reset_status"),
    admin("group:group_project_attribute"),
    reader("group:get_all_group_snapshots"),
    member_once_anybody("group:create_group_snapshot"),
    reader("group:get_group_snapshot"),
    member("group:update_group_snapshot"),
    member("group:delete_group_snapshot"),
    admin("group:reset_group_snapshot_status"),
    admin("group:group_snapshot_project_attribute"),
    // Types.
    admin("volume_extension:type_create"),
    admin("volume_extension:type_update"),
    admin("volume_extension:type_delete"),
    reader_once_anybody("volume_extension:type_get"),
    reader_once_anybody("volume_extension:type_get_all"),
    reader_once_anybody("volume_extension:access_types_extra_specs"),
    admin("volume_extension:access_types_qos_specs_id"),
    reader_once_anybody("volume_extension:types_extra_specs:index"),
    reader_once_anybody("volume_extension:types_extra_specs:show"),
    admin("volume_extension:types_extra_specs:create"),
    admin("volume_extension:types_extra_specs:update"),
    admin("volume_extension:types_extra_specs:delete"),
    admin("volume_extension:types_extra_specs:read_sensitive"),
    member("volume_extension:volume_type_access"),
    admin("volume_extension:volume_type_access:addProjectAccess"),
    admin("volume_extension:volume_type_access:removeProjectAccess"),
    admin("volume_extension:volume_type_access:get_all_for_type"),
    admin("volume_extension:volume_type_encryption"),
    admin("volume_extension:volume_type_encryption:create"),
    admin("volume_extension:volume_type_encryption:get"),
    admin("volume_extension:volume_type_encryption:update"),
    admin("volume_extension:volume_type_encryption:delete"),
    admin("volume_extension:default_set_or_update"),
    admin("volume_extension:default_get"),
    admin("volume_extension:default_get_all"),
    admin("volume_extension:default_unset"),
    admin("volume_extension:qos_specs_manage:get_all"),
    admin("volume_extension:qos_specs_manage:get"),
    admin("volume_extension:qos_specs_manage:create"),
    admin("volume_extension:qos_specs_manage:update"),
    admin("volume_extension:qos_specs_manage:delete"),
    // Back ends and services.
    admin("scheduler_extension:scheduler_stats:get_pools"),
    admin("volume_extension:capabilities"),
    admin("volume_extension:services:index"),
    admin("volume_extension:services:update"),
    admin("volume:freeze_host"),
    admin("volume:thaw_host"),
    admin("volume:failover_host"),
    admin("volume_extension:hosts"),
    admin("volume_extension:list_manageable"),
    admin("volume_extension:volume_manage"),
    admin("volume_extension:volume_unmanage"),
    admin("clusters:get_all"),
    admin("clusters:get"),
    admin("clusters:update"),
    admin("workers:cleanup"),
    // Quotas, limits, messages.
    reader("volume_extension:quotas:show"),
    admin("volume_extension:quotas:update"),
    admin("volume_extension:quotas:delete"),
    admin("volume_extension:quota_classes:get"),
    admin("volume_extension:quota_classes:update"),
    reader("limits_extension:used_limits"),
    reader("message:get_all"),
    reader("message:get"),
    member("message:delete"),
    // Mooring's own.
    admin_or_service("mooring:attach_native"),
    reader("mooring:attachment_get"),
    reader("mooring:attachment_get_all"),
    admin("mooring:hosts"),
    reader("mooring:attachment_check"),
    admin("mooring:live_all"),
    admin("mooring:confirm_review"),
    admin("mooring:raise_epoch"),
    admin("mooring:host_enrol"),
    admin("mooring:host_forget"),
    admin("mooring:fence"),
    admin("mooring:cut"),
    reader("mooring:receipts"),
    admin("mooring:sessions"),
    admin("mooring:reservations"),
    admin("mooring:jobs"),
    admin("mooring:import"),
    admin("mooring:export"),
    member("mooring:extend_cancel"),
    member("mooring:rotate_secrets"),
    admin("mooring:choose_id"),
    admin("mooring:audit"),
];

//! The rows of volume types, and of the default types of projects.

use super::operation::{Operation, op};
use crate::list::TYPES;

/// The policies that setting extra specs asks: one for new keys, one for keys that are there.
const SPECS_SET: &[&str] =
    &["volume_extension:types_extra_specs:create", "volume_extension:types_extra_specs:update"];

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/types", "listTypes", "Volume types")
        .policies(&["volume_extension:type_get_all"])
        .lists(&TYPES)
        .gives("Types"),
    op("POST", "/types", "createType", "Make a type")
        .policies(&["volume_extension:type_create"])
        .admin()
        .takes("NewType")
        .gives("ShownType"),
    op("GET", "/types/default", "showDefaultType", "The type of volumes that name none")
        .policies(&["volume_extension:type_get"])
        .gives("ShownType"),
    op("GET", "/types/{id}", "showType", "One type")
        .policies(&["volume_extension:type_get"])
        .gives("ShownType"),
    op("PUT", "/types/{id}", "updateType", "Change a type")
        .policies(&["volume_extension:type_update"])
        .admin()
        .takes("TypeUpdate")
        .gives("ShownType"),
    op("DELETE", "/types/{id}", "deleteType", "Delete a type")
        .policies(&["volume_extension:type_delete"])
        .admin()
        .status(202),
    op("GET", "/types/{id}/extra_specs", "listExtraSpecs", "The extra specs of a type")
        .policies(&["volume_extension:types_extra_specs:index"])
        .gives("ExtraSpecs"),
    op("POST", "/types/{id}/extra_specs", "setExtraSpecs", "Set extra specs")
        .policies(SPECS_SET)
        .admin()
        .takes("NewExtraSpecs")
        .gives("ExtraSpecs"),
    op("GET", "/types/{id}/extra_specs/{key}", "showExtraSpec", "One extra spec")
        .policies(&["volume_extension:types_extra_specs:show"])
        .gives("OneText"),
    op("PUT", "/types/{id}/extra_specs/{key}", "setExtraSpec", "Set one extra spec")
        .policies(SPECS_SET)
        .admin()
        .takes("OneSpec")
        .gives("OneText"),
    op("DELETE", "/types/{id}/extra_specs/{key}", "deleteExtraSpec", "Delete one extra spec")
        .policies(&["volume_extension:types_extra_specs:delete"])
        .admin()
        .status(202),
    op("POST", "/types/{id}/action", "actOnType", "Let a project use a private type, or not")
        .policies(&[
            "volume_extension:volume_type_access:addProjectAccess",
            "volume_extension:volume_type_access:removeProjectAccess",
        ])
        .admin()
        .status(202)
        .takes("TypeAction"),
    op("GET", "/types/{id}/os-volume-type-access", "listTypeAccess", "Projects that may use a private type")
        .policies(&["volume_extension:volume_type_access:get_all_for_type"])
        .admin()
        .gives("TypeAccess"),
    op("GET", "/default-types", "listDefaultTypes", "Default types of projects")
        .policies(&["volume_extension:default_get_all"])
        .since("3.62")
        .admin()
        .gives("DefaultTypes"),
    op("GET", "/default-types/{project}", "showProjectDefault", "A project's default type")
        .policies(&["volume_extension:default_get"])
        .since("3.62")
        .admin()
        .gives("DefaultType"),
    op("PUT", "/default-types/{project}", "setProjectDefault", "Set a project's default type")
        .policies(&["volume_extension:default_set_or_update"])
        .since("3.62")
        .admin()
        .takes("NewDefaultType")
        .gives("DefaultType"),
    op("DELETE", "/default-types/{project}", "unsetProjectDefault", "Unset a project's default type")
        .policies(&["volume_extension:default_unset"])
        .since("3.62")
        .admin()
        .status(204),
];

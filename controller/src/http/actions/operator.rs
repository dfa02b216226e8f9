//! Operators' actions on volumes, and the flags of volumes.
//!
//! What must never happen here: a status guessed from a word that is almost one.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use mooring_model::VolumeId;
use serde_json::Value;

use super::{Call, Done, Row};
use crate::domain::{VolumeAction, VolumeStatus};
use crate::http::backend::Backend;
use crate::http::fault::Fault;
use crate::http::gate::Gate::Policies;
use crate::http::schema::{Fields, invalid, python};
use crate::http::version::Version;

pub(super) const ROWS: [Row; 6] = [
    ("os-extend", Policies(&["volume:extend", "volume:extend_attached_volume"])),
    ("os-force_delete", Policies(&["volume_extension:volume_admin_actions:force_delete"])),
    ("os-reset_status", Policies(&["volume_extension:volume_admin_actions:reset_status"])),
    ("os-set_bootable", Policies(&["volume:update"])),
    ("os-update_readonly_flag", Policies(&["volume:update_readonly_flag"])),
    (REVERT, Policies(&["volume:revert_to_snapshot"])),
];

const REVERT: &str = "revert";

/// The statuses of an attachment that a request may set.
const ATTACH_STATUSES: [&str; 2] = ["attached", "detached"];

/// The migration statuses that mean "no migration": there never is one.
const NOT_MIGRATING: [&str; 3] = ["none", "error", "success"];

pub(super) fn run<B: Backend>(call: Call<'_, B>) -> Done<'_> {
    Box::pin(async move {
        if call.name == REVERT {
            call.ctx.since(Version::REVERT)?;
        }
        let action = parse(call.name, call.value, call.ctx.version)?;
        let code = match action {
            VolumeAction::SetBootable(_) => StatusCode::OK,
            _ => StatusCode::ACCEPTED,
        };
        call.app.backend().volume_action(&call.ctx.caller, call.id, action).await?;
        Ok(code.into_response())
    })
}

fn parse(name: &str, value: &Value, version: Version) -> Result<VolumeAction, Fault> {
    Ok(match name {
        "os-set_bootable" => VolumeAction::SetBootable(flag(name, value, "bootable")?),
        "os-update_readonly_flag" => VolumeAction::SetReadonly(flag(name, value, "readonly")?),
        "os-extend" => extend(Fields::of(name, value)?, version)?,
        "os-reset_status" => reset(Fields::of(name, value)?)?,
        REVERT => {
            let id = Fields::of(name, value)?.uuid("snapshot_id", true)?;
            VolumeAction::Revert(id.map(|id| VolumeId::from_u128(id.as_u128())))
        }
        // The value does not matter: clients send null or an empty object.
        _ => VolumeAction::ForceDelete,
    })
}

/// Reads the one boolean of an action.
fn flag(name: &str, value: &Value, key: &'static str) -> Result<bool, Fault> {
    let fields = Fields::of(name, value)?;
    fields.only(&[key])?;
    let said = fields.required(key)?;
    fields.boolean(key)?.ok_or_else(|| invalid(key, said, "want true or false"))
}

fn extend(fields: Fields<'_>, version: Version) -> Result<VolumeAction, Fault> {
    fields.only(&["new_size"])?;
    let value = fields.required("new_size")?;
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    let size = number.and_then(|number| u32::try_from(number).ok()).filter(|size| *size > 0);
    let size_gib = size.filter(|size| i32::try_from(*size).is_ok()).ok_or_else(|| {
        let why = format!("{} is not a whole number of 1 to {}", python(value), i32::MAX);
        invalid("new_size", value, why)
    })?;
    Ok(VolumeAction::Extend { size_gib, online: version >= Version::EXTEND_IN_USE })
}

/// Reads a word of a list; `None` if the key is missing or null.
fn word<'a>(fields: Fields<'a>, key: &str, known: &[&str]) -> Result<Option<&'a str>, Fault> {
    let Some(value) = fields.some(key) else { return Ok(None) };
    let lower = value.as_str().map(str::to_ascii_lowercase);
    let found = lower.as_deref().is_some_and(|word| known.contains(&word));
    match value.as_str().filter(|_| found) {
        Some(word) => Ok(Some(word)),
        None => Err(invalid(key, value, format!("{} is not one of {known:?}", python(value)))),
    }
}

fn reset(fields: Fields<'_>) -> Result<VolumeAction, Fault> {
    fields.only(&["status", "attach_status", "migration_status"])?;
    let known: Vec<_> = VolumeStatus::ALL.iter().map(|status| status.as_str()).collect();
    let status = word(fields, "status", &known)?;
    let attached = word(fields, "attach_status", &ATTACH_STATUSES)?;
    let migration = word(fields, "migration_status", &NOT_MIGRATING)?;
    if status.is_none() && attached.is_none() && migration.is_none() {
        return Err(Fault::bad_request(
            "Must specify 'status', 'attach_status' or 'migration_status' for update.",
        ));
    }
    let status = status.and_then(|word| VolumeStatus::from_word(&word.to_ascii_lowercase()));
    let refused = [VolumeStatus::Deleting, VolumeStatus::ErrorDeleting, VolumeStatus::Detaching];
    if let Some(status) = status.filter(|status| refused.contains(status)) {
        return Err(Fault::bad_request(format!(
            "Cannot reset-state to {status}: only what is going on says so; use force delete or force detach."
        )));
    }
    let attached = attached.map(|word| word.eq_ignore_ascii_case("attached"));
    Ok(VolumeAction::ResetStatus { status, attached })
}

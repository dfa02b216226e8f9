//! `POST /snapshots/{id}/action`: one key that names the action. Every action that the Block
//! Storage API has on snapshots is here.
//!
//! What must never happen here: an action accepted whose body was not understood.

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::Value;

use super::App;
use super::actions::{named, no_such_action};
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::gate::Gate::{self, Policies};
use super::schema::{Fields, invalid, python};
use super::snapshots::snapshot_id;
use crate::domain::{SnapshotAction, VolumeStatus};

/// The actions' names and their gates.
pub(super) const ROWS: [(&str, Gate); 4] = [
    ("os-force_delete", Policies(&["volume_extension:snapshot_admin_actions:force_delete"])),
    ("os-reset_status", Policies(&["volume_extension:snapshot_admin_actions:reset_status"])),
    ("os-unmanage", Policies(&["snapshot_extension:snapshot_unmanage"])),
    ("os-update_snapshot_status", Policies(&["snapshot_extension:snapshot_actions:update_snapshot_status"])),
];

/// The statuses that a snapshot may have.
const STATUSES: [VolumeStatus; 8] = [
    VolumeStatus::Creating,
    VolumeStatus::Available,
    VolumeStatus::Deleting,
    VolumeStatus::Restoring,
    VolumeStatus::Unmanaging,
    VolumeStatus::Error,
    VolumeStatus::ErrorDeleting,
    VolumeStatus::ErrorUnmanaging,
];

pub(super) async fn act<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<StatusCode, Fault> {
    let (name, value) = named(&body)?;
    if !ROWS.iter().any(|(known, _)| *known == name) {
        return Err(no_such_action(name));
    }
    ctx.notes.action(name);
    let action = parse(name, value)?;
    app.backend().snapshot_action(&ctx.caller, snapshot_id(&id)?, action).await?;
    Ok(StatusCode::ACCEPTED)
}

fn parse(name: &str, value: &Value) -> Result<SnapshotAction, Fault> {
    Ok(match name {
        "os-reset_status" => {
            let fields = Fields::of(name, value)?;
            fields.only(&["status"])?;
            SnapshotAction::ResetStatus(status(fields)?)
        }
        "os-update_snapshot_status" => {
            let fields = Fields::of(name, value)?;
            fields.only(&["status", "progress"])?;
            check_progress(fields)?;
            SnapshotAction::UpdateStatus(status(fields)?)
        }
        // The value does not matter: clients send null or an empty object.
        "os-unmanage" => SnapshotAction::Unmanage,
        "os-force_delete" => SnapshotAction::ForceDelete,
        other => return Err(no_such_action(other)),
    })
}

/// Reads a status that snapshots may have.
fn status(fields: Fields<'_>) -> Result<VolumeStatus, Fault> {
    let value = fields.required("status")?;
    let word = value.as_str().map(str::to_ascii_lowercase);
    let said = word.and_then(|word| STATUSES.into_iter().find(|status| status.as_str() == word));
    said.ok_or_else(|| {
        let known = STATUSES.map(VolumeStatus::as_str);
        invalid("status", value, format!("{} is not one of {known:?}", python(value)))
    })
}

/// Checks the progress, which nothing is kept of: the storage agent takes a snapshot in one moment.
fn check_progress(fields: Fields<'_>) -> Result<(), Fault> {
    let Some(value) = fields.some("progress") else { return Ok(()) };
    let digits = value.as_str().and_then(|text| text.strip_suffix('%'));
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let percent = digits.and_then(|text| text.parse::<u8>().ok()).filter(|percent| *percent <= 100);
    match percent {
        Some(_) => Ok(()),
        None => Err(invalid("progress", value, "progress must be an integer percentage")),
    }
}

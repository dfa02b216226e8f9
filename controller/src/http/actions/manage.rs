//! `os-unmanage`.
//!
//! What must never happen here: a deletion.

use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::{Call, Done, Row};
use crate::http::backend::Backend;
use crate::http::gate::Gate::Policies;

pub(super) const ROWS: [Row; 1] = [("os-unmanage", Policies(&["volume_extension:volume_unmanage"]))];

/// The value does not matter: clients send null or an empty object.
pub(super) fn run<B: Backend>(call: Call<'_, B>) -> Done<'_> {
    Box::pin(async move {
        call.app.backend().unmanage_volume(&call.ctx.caller, call.id).await?;
        Ok(StatusCode::ACCEPTED.into_response())
    })
}

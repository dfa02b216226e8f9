//! `os-unmanage`.
//!
//! What must never happen here: a deletion.

use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::{Call, Done, Handler};
use crate::http::backend::Backend;

pub(super) fn handler<B: Backend>(name: &str) -> Option<Handler<B>> {
    (name == "os-unmanage").then_some(run::<B> as Handler<B>)
}

/// Whatever stands there: clients send null or an empty object.
fn run<B: Backend>(call: Call<'_, B>) -> Done<'_> {
    Box::pin(async move {
        call.app.backend().unmanage_volume(&call.ctx.caller, call.id).await?;
        Ok(StatusCode::ACCEPTED.into_response())
    })
}

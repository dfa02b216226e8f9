//! `os-retype`.
//!
//! What must never happen here: a volume that is moved although the request forbids it: what is not
//! said is never.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::Value;

use super::{Call, Done, Row};
use crate::http::backend::Backend;
use crate::http::fault::Fault;
use crate::http::gate::Gate::Policies;
use crate::http::schema::{Fields, invalid, python};
use crate::rules::retype::MigrationPolicy;

pub(super) const ROWS: [Row; 1] = [("os-retype", Policies(&["volume:retype", "volume:multiattach"]))];

pub(super) fn run<B: Backend>(call: Call<'_, B>) -> Done<'_> {
    Box::pin(async move {
        let (new_type, migration) = parse(call.value)?;
        call.app.backend().retype_volume(&call.ctx.caller, call.id, new_type, migration).await?;
        Ok(StatusCode::ACCEPTED.into_response())
    })
}

fn parse(value: &Value) -> Result<(&str, MigrationPolicy), Fault> {
    let fields = Fields::of("os-retype", value)?;
    fields.required("new_type")?;
    fields.only(&["new_type", "migration_policy"])?;
    let new_type = fields.text("new_type", 1, false)?.unwrap_or_default();
    let migration = match fields.some("migration_policy") {
        None => MigrationPolicy::default(),
        Some(word) => word.as_str().and_then(MigrationPolicy::from_word).ok_or_else(|| {
            let why = format!("{} is not one of ['on-demand', 'never']", python(word));
            invalid("migration_policy", word, why)
        })?,
    };
    Ok((new_type, migration))
}

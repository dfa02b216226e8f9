//! `/os-quota-sets` and `/os-quota-class-sets`.
//!
//! What must never happen here: an unknown key of a body that is passed over.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields, invalid, project_id, python};
use crate::quota::{Entry, Key, LIMIT_MAX, Limit};

/// The one class whose limits count: for projects that have none of their own.
const CLASS: &str = "default";

/// Keys that clients send along without a meaning.
const NO_LIMITS: [&str; 2] = ["id", "tenant_id"];

/// The most keys of one body: as many as a cloud could have types.
const KEYS_MAX: usize = 1_000;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/os-quota-sets/{project}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/os-quota-sets/{project}/defaults", routing::get(defaults::<B>))
        .route("/os-quota-class-sets/{class}", routing::get(show_class::<B>).put(update_class::<B>))
}

fn class(text: &str) -> Result<(), Fault> {
    if text == CLASS {
        return Ok(());
    }
    let shown: String = text.chars().take(64).collect();
    Err(Fault::new(StatusCode::NOT_FOUND, format!("Quota class {shown} could not be found.")))
}

/// The limits, with the usage if `usage` is `true`.
fn view(entries: &[Entry], usage: bool) -> Map<String, Value> {
    let value = |entry: &Entry| {
        let limit = entry.limit.number();
        if usage {
            // Nothing is only reserved: usage is counted from existing objects.
            json!({ "limit": limit, "in_use": entry.in_use, "reserved": 0, "allocated": 0 })
        } else {
            json!(limit)
        }
    };
    entries.iter().map(|entry| (entry.key.to_string(), value(entry))).collect()
}

fn with_id(mut view: Map<String, Value>, id: &str) -> Map<String, Value> {
    view.insert("id".to_owned(), json!(id));
    view
}

/// Reads the limits of a body: whole numbers, also as texts.
fn limits(fields: Fields<'_>) -> Result<BTreeMap<Key, Limit>, Fault> {
    if fields.map().len() > KEYS_MAX {
        return Err(Fault::invalid_input(format!("more than {KEYS_MAX} quotas in one body")));
    }
    let mut limits = BTreeMap::new();
    let mut unknown = Vec::new();
    for (name, value) in fields.map().iter().filter(|(name, _)| !NO_LIMITS.contains(&name.as_str())) {
        let number = match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) if text.len() <= 20 => text.parse().ok(),
            _ => None,
        };
        let Some(limit) = number.and_then(Limit::from_number) else {
            let why = format!("{} is not a whole number of -1 (no limit) to {LIMIT_MAX}", python(value));
            return Err(invalid(name, value, why));
        };
        match Key::from_name(name) {
            Some(key) => drop(limits.insert(key, limit)),
            None => unknown.push(name.chars().take(80).collect::<String>()),
        }
    }
    if !unknown.is_empty() {
        unknown.truncate(10);
        return Err(Fault::bad_request(format!("Bad key(s) in quota set: {}", unknown.join(", "))));
    }
    Ok(limits)
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(project): At<String>) -> Answer {
    let project = project_id(&project)?;
    let usage = ctx.query.flag("usage")?;
    let entries = app.backend().quotas(&ctx.caller, project).await?;
    Ok(Json(json!({ "quota_set": with_id(view(&entries, usage), project) })))
}

async fn defaults<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(project): At<String>) -> Answer {
    let project = project_id(&project)?;
    let entries = app.backend().default_quotas(&ctx.caller, project).await?;
    Ok(Json(json!({ "quota_set": with_id(view(&entries, false), project) })))
}

async fn update<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(project): At<String>,
    Body(body): Body,
) -> Answer {
    let project = project_id(&project)?;
    let fields = schema::body(&body, "quota_set")?;
    // As in Cinder, whose schema demands a key here, and none of a class.
    if fields.map().is_empty() {
        return Err(fields.wrong("{} does not have enough properties"));
    }
    let new = limits(fields)?;
    let entries = app.backend().set_quotas(&ctx.caller, project, new).await?;
    Ok(Json(json!({ "quota_set": view(&entries, false) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(project): At<String>,
) -> Result<StatusCode, Fault> {
    app.backend().delete_quotas(&ctx.caller, project_id(&project)?).await?;
    Ok(StatusCode::OK)
}

async fn show_class<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(name): At<String>) -> Answer {
    class(&name)?;
    let entries = app.backend().class_quotas(&ctx.caller).await?;
    Ok(Json(json!({ "quota_class_set": with_id(view(&entries, false), CLASS) })))
}

async fn update_class<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    class(&name)?;
    let new = limits(schema::body(&body, "quota_class_set")?)?;
    let entries = app.backend().set_class_quotas(&ctx.caller, new).await?;
    Ok(Json(json!({ "quota_class_set": view(&entries, false) })))
}

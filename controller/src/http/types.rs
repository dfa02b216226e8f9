//! `/types` and their extra specs.
//!
//! What must never happen here: a type found by its name where an id is asked for; a spec shown to
//! those who may not see it.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::App;
use super::actions::{named, no_such_action};
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, invalid, python};
use super::version::Version;
use super::views::{self, TypeView};
use crate::auth::project_ok;
use crate::domain::VolumeType;
use crate::list::{Filter, TYPES, Test};

const IS_PUBLIC: &str = "os-volume-type-access:is_public";

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/types", routing::get(list::<B>).post(create::<B>))
        .route("/types/default", routing::get(default::<B>))
        .route("/types/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/types/{id}/action", routing::post(action::<B>))
        .route("/types/{id}/os-volume-type-access", routing::get(access::<B>))
        .route("/types/{id}/extra_specs", routing::get(specs::<B>).post(set_specs::<B>))
        .route(
            "/types/{id}/extra_specs/{key}",
            routing::get(spec::<B>).put(set_spec::<B>).delete(delete_spec::<B>),
        )
}

/// Reads a type's id. Any other text names no type.
fn type_id(text: &str) -> Result<Uuid, Fault> {
    let unknown = || {
        let shown: String = text.chars().take(schema::TEXT_MAX).collect();
        Fault::new(StatusCode::NOT_FOUND, format!("Volume type {shown} could not be found."))
    };
    schema::id(text).ok_or_else(unknown)
}

async fn find<B: Backend>(app: &App<B>, ctx: &Ctx, id: &str) -> Result<VolumeType, Fault> {
    let id = type_id(id)?;
    Ok(app.backend().volume_type(&ctx.caller, &id.to_string()).await?)
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let mut query = ctx.query.list(&TYPES, &ctx, Version::TYPE_FILTERS)?;
    if !ctx.caller.admin {
        // Only admins may choose (`context_is_admin`, since there is no policy for it). Others see
        // all types that they may use.
        query.filters.retain(|filter| filter.key.name != "is_public");
    } else if ctx.query.get("is_public").is_none() {
        let public = TYPES.key("is_public").map(|key| Filter { key, test: Test::Number(1) });
        query.filters.extend(public);
    }
    for filter in &mut query.filters {
        // A filter must not reveal what a view hides.
        if matches!(&filter.test, Test::Pairs(specs) if specs.keys().any(|key| !views::spec_visible(&ctx, key)))
        {
            filter.test = Test::Nothing;
        }
    }
    let page = app.backend().types(&ctx.caller, query.clone()).await?;
    let views: Vec<_> =
        page.items.iter().map(|kind| views::volume_type(&ctx, kind, TypeView::Shown)).collect();
    let mut body = Map::new();
    body.insert("volume_types".into(), json!(views));
    if let Some(next) = ctx.query.next(&query, &page.items, |kind| kind.id.to_string()) {
        body.insert("volume_type_links".into(), json!([{ "rel": "next", "href": ctx.page(&next) }]));
    }
    Ok(Json(Value::Object(body)))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let kind = find(&app, &ctx, &id).await?;
    Ok(Json(json!({ "volume_type": views::volume_type(&ctx, &kind, TypeView::Shown) })))
}

async fn default<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let kind = app.backend().default_type(&ctx.caller).await?;
    Ok(Json(json!({ "volume_type": views::volume_type(&ctx, &kind, TypeView::Default) })))
}

async fn create<B: Backend>(State(app): State<App<B>>, ctx: Ctx, Body(body): Body) -> Answer {
    let fields = schema::body(&body, "volume_type")?;
    fields.required("name")?;
    fields.only(&["name", "description", IS_PUBLIC, "extra_specs"])?;
    let name = name(fields)?.unwrap_or_default();
    let description = fields.text("description", 0, true)?;
    let is_public = fields.boolean(IS_PUBLIC)?.unwrap_or(true);
    let specs = fields.texts("extra_specs", "")?.unwrap_or_default();
    let kind = app.backend().create_type(&ctx.caller, name, description, is_public, specs).await?;
    ctx.notes.object("type", &kind.id);
    Ok(Json(json!({ "volume_type": views::volume_type(&ctx, &kind, TypeView::Created) })))
}

/// Reads a name that is not blank, if there is one.
fn name(fields: schema::Fields<'_>) -> Result<Option<&str>, Fault> {
    let Some(text) = fields.text("name", 1, false)? else { return Ok(None) };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        let why = "An invalid 'name' value was provided. The 'name' can not be empty.";
        return Err(Fault::bad_request(why));
    }
    Ok(Some(trimmed))
}

async fn update<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::body(&body, "volume_type")?;
    fields.only(&["name", "description", "is_public"])?;
    let name = name(fields)?;
    let description = fields.text("description", 0, true)?;
    let is_public = fields.boolean("is_public")?;
    if name.is_none() && description.is_none() && is_public.is_none() {
        let why = "Specify volume type name, description, is_public or a combination thereof.";
        return Err(Fault::bad_request(why));
    }
    let id = type_id(&id)?;
    let kind = app.backend().update_type(&ctx.caller, id, name, description, is_public).await?;
    Ok(Json(json!({ "volume_type": views::volume_type(&ctx, &kind, TypeView::Updated) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<StatusCode, Fault> {
    app.backend().delete_type(&ctx.caller, type_id(&id)?).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn access<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let id = type_id(&id)?;
    let projects = app.backend().type_access(&ctx.caller, id).await?;
    let list: Vec<_> = projects
        .iter()
        .map(|project| json!({ "volume_type_id": id.to_string(), "project_id": project }))
        .collect();
    Ok(Json(json!({ "volume_type_access": list })))
}

/// `addProjectAccess` and `removeProjectAccess`.
async fn action<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<StatusCode, Fault> {
    let (name, allowed) = match named(&body)?.0 {
        "addProjectAccess" => ("addProjectAccess", true),
        "removeProjectAccess" => ("removeProjectAccess", false),
        other => return Err(no_such_action(other)),
    };
    ctx.notes.action(name);
    let fields = schema::body(&body, name)?;
    fields.required("project")?;
    fields.only(&["project"])?;
    let project = fields.text("project", 1, false)?.unwrap_or_default();
    if !project_ok(project) {
        return Err(invalid("project", &json!(project), "it is not a project's id"));
    }
    ctx.notes.object("project", project);
    app.backend().set_type_access(&ctx.caller, type_id(&id)?, project, allowed).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn specs<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    ctx.may("volume_extension:types_extra_specs:index")?;
    let kind = find(&app, &ctx, &id).await?;
    Ok(Json(json!({ "extra_specs": views::visible_specs(&ctx, &kind) })))
}

async fn set_specs<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::body(&body, "extra_specs")?;
    let specs = schema::texts("extra_specs", &Value::Object(fields.map().clone()), "")?;
    let kept = set(&app, &ctx, &id, specs).await?;
    Ok(Json(json!({ "extra_specs": kept })))
}

/// Sets specs. The answer shows them as they are stored: specs that Mooring reads itself have one
/// spelling.
async fn set<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    id: &str,
    specs: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Fault> {
    let keys: Vec<_> = specs.keys().cloned().collect();
    let mut kind = app.backend().set_extra_specs(&ctx.caller, type_id(id)?, specs).await?;
    Ok(keys.into_iter().filter_map(|key| kind.extra_specs.remove_entry(&key)).collect())
}

fn no_such_spec(id: Uuid, key: &str) -> Fault {
    let shown: String = key.chars().take(schema::TEXT_MAX).collect();
    let text = format!("Volume Type {id} has no extra specs with key {shown}.");
    Fault::new(StatusCode::NOT_FOUND, text)
}

async fn spec<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Answer {
    ctx.may("volume_extension:types_extra_specs:show")?;
    let kind = find(&app, &ctx, &id).await?;
    match views::visible_specs(&ctx, &kind).remove(&key) {
        Some(value) => Ok(Json(json!({ key: value }))),
        None => Err(no_such_spec(kind.id, &key)),
    }
}

async fn set_spec<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
    Body(body): Body,
) -> Answer {
    let Value::Object(map) = &body else {
        return Err(Fault::bad_request(format!("{} is not of type 'object'", python(&body))));
    };
    if map.len() > 1 {
        return Err(Fault::bad_request(format!("{} has too many properties", python(&body))));
    }
    if map.is_empty() {
        return Err(invalid("extra_specs", &body, "{} does not have enough properties"));
    }
    let specs = schema::texts("extra_specs", &body, "")?;
    if !specs.contains_key(&key) {
        return Err(Fault::bad_request("Request body and URI mismatch"));
    }
    Ok(Json(json!(set(&app, &ctx, &id, specs).await?)))
}

async fn delete_spec<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Result<StatusCode, Fault> {
    let kind = find(&app, &ctx, &id).await?;
    if !views::visible_specs(&ctx, &kind).contains_key(&key) {
        return Err(no_such_spec(kind.id, &key));
    }
    app.backend().delete_extra_spec(&ctx.caller, kind.id, &key).await?;
    Ok(StatusCode::ACCEPTED)
}

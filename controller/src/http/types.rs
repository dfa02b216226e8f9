//! `/types` and their extra specs.
//!
//! What must never happen here: a type found by its name where an id is asked for; a spec shown to those who may not see it.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::query::Cell;
use super::schema::{self, invalid, python};
use super::version::Version;
use super::views::{self, TypeView};
use crate::domain::VolumeType;

const IS_PUBLIC: &str = "os-volume-type-access:is_public";

type Answer = Result<Json<Value>, Fault>;

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    Router::new()
        .route("/types", routing::get(list::<B>).post(create::<B>))
        .route("/types/default", routing::get(default::<B>))
        .route("/types/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/types/{id}/extra_specs", routing::get(specs::<B>).post(set_specs::<B>))
        .route(
            "/types/{id}/extra_specs/{key}",
            routing::get(spec::<B>).put(set_spec::<B>).delete(delete_spec::<B>),
        )
}

/// Types are asked for by id; anything else is simply not there.
fn type_id(text: &str) -> Result<Uuid, Fault> {
    let unknown = || {
        let shown: String = text.chars().take(schema::TEXT_MAX).collect();
        Fault::new(StatusCode::NOT_FOUND, format!("Volume type {shown} could not be found."))
    };
    schema::hyphenated(text).ok_or_else(unknown)
}

async fn find<B: Backend>(app: &App<B>, ctx: &Ctx, id: &str) -> Result<VolumeType, Fault> {
    let id = type_id(id)?;
    Ok(app.backend().volume_type(&ctx.caller, &id.to_string()).await?)
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let mut types = app.backend().types(&ctx.caller).await?;
    let is_public = match ctx.query.get("is_public") {
        // Only admins may look for private ones.
        _ if !ctx.caller.admin => Some(true),
        None => Some(true),
        Some("None" | "none") => None,
        Some(_) => Some(ctx.query.flag("is_public")?),
    };
    types.retain(|kind| is_public.is_none_or(|wanted| kind.is_public == wanted));
    if let Some(text) = ctx.query.get("extra_specs").filter(|_| ctx.version >= Version::TYPE_FILTERS) {
        let wanted = dictionary(text)
            .ok_or_else(|| Fault::bad_request("extra_specs: want a dictionary as {'key': 'value'}"))?;
        types.retain(|kind| {
            let seen = views::visible_specs(&ctx, kind);
            wanted.iter().all(|(key, value)| seen.get(key).and_then(Value::as_str) == Some(value))
        });
    }
    ctx.query.sort(&mut types, cell, &["id", "name", "description", "is_public", "created_at"])?;
    let page = ctx.query.page()?;
    let (types, next) = page.cut(types, |kind| kind.id.to_string(), "Volume type", &ctx.query)?;
    let views: Vec<_> = types.iter().map(|kind| views::volume_type(&ctx, kind, TypeView::Shown)).collect();
    let mut body = Map::new();
    body.insert("volume_types".into(), json!(views));
    if let Some(next) = next {
        let href = ctx.href(&format!("/types?{next}"));
        body.insert("volume_type_links".into(), json!([{ "rel": "next", "href": href }]));
    }
    Ok(Json(Value::Object(body)))
}

fn cell(kind: &VolumeType, key: &str) -> Option<Cell> {
    match key {
        "id" => Some(Cell::Text(kind.id.to_string())),
        "name" => Some(Cell::Text(kind.name.clone())),
        "description" => kind.description.clone().map(Cell::Text),
        "is_public" => Some(Cell::Number(kind.is_public.into())),
        // Types do not know when they were made: their order stays.
        _ => None,
    }
}

/// `{'key': 'value', …}` as Python writes dictionaries of texts, or the same as JSON.
pub(super) fn dictionary(text: &str) -> Option<BTreeMap<String, String>> {
    if let Ok(map) = serde_json::from_str(text) {
        return Some(map);
    }
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut map = BTreeMap::new();
    while !rest.is_empty() {
        let (key, after) = literal(rest)?;
        let (value, after) = literal(after.trim_start().strip_prefix(':')?.trim_start())?;
        map.insert(key.to_owned(), value.to_owned());
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(map)
}

/// A quoted text without escapes, and what follows it.
fn literal(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('u').unwrap_or(text);
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, after) = text.get(1..)?.split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, after))
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
    Ok(Json(json!({ "volume_type": views::volume_type(&ctx, &kind, TypeView::Created) })))
}

/// A name that is not blank, if one is given.
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

async fn specs<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
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
    app.backend().set_extra_specs(&ctx.caller, type_id(&id)?, specs.clone()).await?;
    Ok(Json(json!({ "extra_specs": specs })))
}

fn no_such_spec(id: &str, key: &str) -> Fault {
    let shown: String = key.chars().take(schema::TEXT_MAX).collect();
    let text = format!("Volume Type {id} has no extra specs with key {shown}.");
    Fault::new(StatusCode::NOT_FOUND, text)
}

async fn spec<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Answer {
    let kind = find(&app, &ctx, &id).await?;
    match views::visible_specs(&ctx, &kind).remove(&key) {
        Some(value) => Ok(Json(json!({ key: value }))),
        None => Err(no_such_spec(&id, &key)),
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
    app.backend().set_extra_specs(&ctx.caller, type_id(&id)?, specs.clone()).await?;
    Ok(Json(json!(specs)))
}

async fn delete_spec<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Result<StatusCode, Fault> {
    let kind = find(&app, &ctx, &id).await?;
    if !views::visible_specs(&ctx, &kind).contains_key(&key) {
        return Err(no_such_spec(&id, &key));
    }
    app.backend().delete_extra_spec(&ctx.caller, kind.id, &key).await?;
    Ok(StatusCode::ACCEPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_of_both_languages() {
        let one = BTreeMap::from([("multiattach".to_owned(), "<is> True".to_owned())]);
        for text in [
            "{'multiattach': '<is> True'}",
            "{ \"multiattach\":\"<is> True\" }",
            "{u'multiattach': u'<is> True',}",
        ] {
            assert_eq!(dictionary(text), Some(one.clone()), "{text}");
        }
        assert_eq!(dictionary("{}"), Some(BTreeMap::new()));
        for wrong in ["", "x", "{", "{'a'}", "{'a': 1}", "{'a': 'b' 'c': 'd'}", "{'a': 'b\\''}", "{ä: 'b'}"]
        {
            assert_eq!(dictionary(wrong), None, "{wrong}");
        }
    }
}

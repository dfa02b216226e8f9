//! `/messages` (3.3): the reasons why something accepted did not come true.
//!
//! What must never happen here: another project's message.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::App;
use super::backend::Backend;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::version::Version;
use super::{schema, views};
use crate::list::{ListQuery, MESSAGES};

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/messages", routing::get(list::<B>))
        .route("/messages/{id}", routing::get(show::<B>).delete(delete::<B>))
}

/// Reads a message's id. Any other text names no message.
fn message_id(text: &str) -> Result<Uuid, Fault> {
    schema::id_of("Message", text)
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.since(Version::MESSAGES)?;
    let mut query = ctx.query.list(&MESSAGES, &ctx, Version::STRICT_FILTERS)?;
    if ctx.version < Version::MESSAGE_FILTERS {
        // Without pages: the answer is one full page. Filters are unknown; an admin's are applied
        // all the same, because a whole list instead of a part misleads.
        let ListQuery { all_projects, project, filters, .. } = query;
        let filters = if ctx.caller.admin { filters } else { Vec::new() };
        query = ListQuery { all_projects, project, filters, ..ListQuery::default() };
    }
    let page = app.backend().messages(&ctx.caller, query.clone()).await?;
    let views: Vec<_> = page.items.iter().map(|message| views::message(&ctx, message)).collect();
    let mut body = Map::new();
    body.insert("messages".into(), json!(views));
    let next = ctx.query.next(&query, &page.items, |message| message.id.to_string());
    if let Some(next) = next.filter(|_| ctx.version >= Version::MESSAGE_FILTERS) {
        body.insert("messages_links".into(), json!([{ "rel": "next", "href": ctx.page(&next) }]));
    }
    Ok(Json(Value::Object(body)))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    ctx.since(Version::MESSAGES)?;
    let message = app.backend().message(&ctx.caller, message_id(&id)?).await?;
    Ok(Json(json!({ "message": views::message(&ctx, &message) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<StatusCode, Fault> {
    ctx.since(Version::MESSAGES)?;
    app.backend().delete_message(&ctx.caller, message_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! `/scheduler-stats/get_pools` and `/capabilities/{host}`: the last reports of the storage agents.
//!
//! What must never happen here: an unknown filter taken for one that no pool passes.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault, MALFORMED};
use super::routes::Routes;
use super::version::Version;
use crate::domain::{PoolFilter, PoolState};
use crate::service::Refusal;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/scheduler-stats/get_pools", routing::get(list::<B>))
        .route("/capabilities/{host}", routing::get(show::<B>))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let detail = ctx.query.flag("detail")?;
    let mut filter = PoolFilter::default();
    // Before their versions, these filters are unknown.
    for (key, value) in ctx.query.pairs().filter(|(key, _)| *key != "detail") {
        if key == "volume_type" {
            filter.volume_type = (ctx.version >= Version::POOL_TYPES).then(|| value.to_owned());
        } else if ctx.version >= Version::POOL_FILTERS {
            filter.equal.push((key.to_owned(), value.to_owned()));
        }
    }
    let pools = app.backend().pools(&ctx.caller, filter).await.map_err(|refusal| match refusal {
        // As recorded from Cinder: an unknown type is a bad request here.
        Refusal::NotFound { kind: "Volume type", .. } => Fault::bad_request(MALFORMED),
        other => other.into(),
    })?;
    let view = |pool: PoolState| {
        let mut view = Map::new();
        view.insert("name".to_owned(), json!(pool.name));
        if detail {
            view.insert("capabilities".to_owned(), Value::Object(pool.capabilities));
        }
        Value::Object(view)
    };
    Ok(Json(json!({ "pools": pools.into_iter().map(view).collect::<Vec<_>>() })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(host): At<String>) -> Answer {
    let found = app.backend().capabilities(&ctx.caller, &host).await.map_err(|refusal| match refusal {
        Refusal::NotFound { kind: "Service", what } => {
            Fault::new(axum::http::StatusCode::NOT_FOUND, format!("Can't find service: {what}"))
        }
        other => other.into(),
    })?;
    Ok(Json(found))
}

//! Below `/mooring/v1`: the long work of the storage nodes, and limits of its speed.
//!
//! What must never happen here: 100 % for unfinished work.

use axum::extract::State;
use axum::{Json, routing};
use mooring_model::ByteSize;
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Answer;
use super::routes::Routes;
use super::schema;
use super::views::rfc3339;
use crate::domain::{HostJobs, Job};

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/jobs", routing::get(list::<B>))
        .route("/hosts/{name}/job-limit", routing::put(limit::<B>))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.query.only(&[])?;
    let all = app.backend().jobs(&ctx.caller).await?;
    let hosts: Vec<_> = all.hosts.iter().map(host).collect();
    Ok(Json(json!({ "jobs": all.jobs.iter().map(view).collect::<Vec<_>>(), "hosts": hosts })))
}

async fn limit<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["bytes_per_second"])?;
    let limit = match fields.required("bytes_per_second")? {
        Value::Null => None,
        number => match number.as_u64() {
            Some(bytes @ 1..) => Some(ByteSize(bytes)),
            _ => {
                return Err(schema::invalid(
                    "bytes_per_second",
                    number,
                    "want a whole number above 0, or null",
                ));
            }
        },
    };
    let set = app.backend().limit_jobs(&ctx.caller, &name, limit).await?;
    Ok(Json(json!({ "host": host(&set) })))
}

fn host(host: &HostJobs) -> Value {
    json!({
        "name": host.host,
        "bytes_per_second": host.limit.map(|limit| limit.0),
        "problem": host.problem,
    })
}

pub(super) fn view(job: &Job) -> Value {
    let seen = &job.seen;
    json!({
        "volume_id": seen.volume.to_string(),
        "volume_name": job.volume_name,
        "storage_host": job.host,
        "kind": seen.kind.to_string(),
        "done_bytes": seen.done.0,
        "total_bytes": seen.total.0,
        "percent": f64::from(seen.parts()) / 100.0,
        "bytes_per_second": seen.rate.map(|rate| rate.0),
        "seconds_left": seen.seconds_left(),
        "resumed_bytes": seen.resumed.0,
        "limited": seen.limited,
        "since": rfc3339(seen.since),
    })
}

//! `POST /volumes/{id}/action`: one key that names the action. Each module here has its own
//! actions, and finds the handler of a name. An action that no module knows is 501 if the Block
//! Storage API has it, and 400 if not.
//!
//! What must never happen here: an action accepted whose body was not understood.

mod attach;
mod manage;
mod operator;
mod retype;

use std::pin::Pin;

use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use mooring_model::VolumeId;
use serde_json::Value;

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::gate::Gate;
use super::routes::Routes;
use super::volumes::volume_id;

/// One action on one volume.
struct Call<'a, B> {
    app: &'a App<B>,
    ctx: &'a Ctx,
    id: VolumeId,
    name: &'a str,
    /// The value under the action's name.
    value: &'a Value,
}

impl<B> Clone for Call<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Call<'_, B> {}

type Done<'a> = Pin<Box<dyn Future<Output = Result<Response, Fault>> + Send + 'a>>;

type Handler<B> = for<'a> fn(Call<'a, B>) -> Done<'a>;

/// An action's name and its gate.
type Row = (&'static str, Gate);

/// The rows of each module's actions, in the order of the handlers below.
const ROWS: [&[Row]; 4] = [&attach::ROWS, &retype::ROWS, &operator::ROWS, &manage::ROWS];

/// Finds the handler of a name.
fn handler<B: Backend>(name: &str) -> Option<Handler<B>> {
    let handlers: [Handler<B>; 4] = [attach::run, retype::run, operator::run, manage::run];
    let has = |rows: &[Row]| rows.iter().any(|(known, _)| *known == name);
    ROWS.iter().zip(handlers).find(|(rows, _)| has(rows)).map(|(_, run)| run)
}

/// The rows of all actions that a module has.
pub(super) fn rows() -> impl Iterator<Item = Row> {
    ROWS.into_iter().flatten().copied()
}

/// Actions of the Block Storage API that no module has, with their policies. A caller that the
/// policy refuses is told only that.
pub(super) const LATER: [(&str, &str); 9] = [
    ("os-migrate_volume", "volume_extension:volume_admin_actions:migrate_volume"),
    ("os-migrate_volume_completion", "volume_extension:volume_admin_actions:migrate_volume_completion"),
    ("os-reimage", "volume:reimage"),
    ("os-set_image_metadata", "volume_extension:volume_image_metadata:set"),
    ("os-show_image_metadata", "volume_extension:volume_image_metadata:show"),
    ("os-unset_image_metadata", "volume_extension:volume_image_metadata:remove"),
    ("os-volume_upload_image", "volume_extension:volume_actions:upload_image"),
    ("os-update_volume_admin_metadata", "volume:update_volume_admin_metadata"),
    ("os-extend_volume_completion", "volume_extension:volume_admin_actions:extend_volume_completion"),
];

/// Actions of replication, which the Block Storage API once had, and which no longer have a policy.
const FORMER: [&str; 2] = ["os-promote-replica", "os-reenable-replica"];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new().route("/volumes/{id}/action", post(action::<B>))
}

/// The one key of an action's body, and its value.
pub(super) fn named(body: &Value) -> Result<(&str, &Value), Fault> {
    let mut entries = body.as_object().into_iter().flatten();
    match (entries.next(), entries.next()) {
        (Some((name, value)), None) => Ok((name.as_str(), value)),
        _ => Err(Fault::bad_request("Malformed request body")),
    }
}

pub(super) fn no_such_action(name: &str) -> Fault {
    let shown: String = name.chars().take(64).collect();
    Fault::bad_request(format!("There is no such action: {shown}"))
}

async fn action<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<Response, Fault> {
    let (name, value) = named(&body)?;
    if let Some(handler) = handler::<B>(name) {
        ctx.notes.action(name);
        return handler(Call { app: &app, ctx: &ctx, id: volume_id(&id)?, name, value }).await;
    }
    let policy = LATER.iter().find(|(later, _)| *later == name).map(|(_, policy)| *policy);
    if policy.is_none() && !FORMER.contains(&name) {
        return Err(no_such_action(name));
    }
    ctx.notes.action(name);
    let volume = app.backend().volume(&ctx.caller, volume_id(&id)?).await?;
    policy.map(|policy| ctx.may_with(policy, &volume)).transpose()?;
    Err(Fault::not_implemented(format!("the action {name}")))
}

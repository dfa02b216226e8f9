//! The older calls for attachments.
//!
//! What must never happen here: a connector in an error (it may hold secrets).

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::{Call, Done, Row};
use crate::domain::AttachAction;
use crate::http::attachments::{attachment_id, mode};
use crate::http::backend::Backend;
use crate::http::fault::Fault;
use crate::http::gate::Gate::Policies;
use crate::http::schema::{Fields, python};
use crate::service::Wait;

pub(super) const ROWS: [Row; 9] = [
    ("os-attach", Policies(&["volume_extension:volume_actions:attach"])),
    ("os-begin_detaching", Policies(&["volume_extension:volume_actions:begin_detaching"])),
    ("os-detach", Policies(&["volume_extension:volume_actions:detach"])),
    (
        "os-force_detach",
        Policies(&["volume_extension:volume_admin_actions:force_detach", "volume:attachment_delete"]),
    ),
    ("os-initialize_connection", Policies(&["volume_extension:volume_actions:initialize_connection"])),
    ("os-reserve", Policies(&["volume_extension:volume_actions:reserve"])),
    ("os-roll_detaching", Policies(&["volume_extension:volume_actions:roll_detaching"])),
    ("os-terminate_connection", Policies(&["volume_extension:volume_actions:terminate_connection"])),
    ("os-unreserve", Policies(&["volume_extension:volume_actions:unreserve"])),
];

pub(super) fn run<B: Backend>(call: Call<'_, B>) -> Done<'_> {
    let Call { app, ctx, id, name, value } = call;
    Box::pin(async move {
        let action = parse(name, value)?;
        let wait = Wait(app.agents_wait());
        let info = app.backend().attach_action(&ctx.caller, id, action, wait).await?;
        Ok(match info {
            None => StatusCode::ACCEPTED.into_response(),
            Some(info) => answer(info),
        })
    })
}

/// The older form of connection info: the driver's data is an object of its own.
fn answer(mut data: Map<String, Value>) -> Response {
    let kind = data.remove("driver_volume_type");
    let multipath = data.remove("enforce_multipath");
    data.remove("attachment_id");
    let info = json!({ "driver_volume_type": kind, "data": data, "enforce_multipath": multipath });
    Json(json!({ "connection_info": info })).into_response()
}

fn parse(name: &str, value: &Value) -> Result<AttachAction, Fault> {
    Ok(match name {
        // The value does not matter: clients send null, an empty object, or anything.
        "os-reserve" => AttachAction::Reserve,
        "os-unreserve" => AttachAction::Unreserve,
        "os-begin_detaching" => AttachAction::BeginDetaching,
        "os-roll_detaching" => AttachAction::RollDetaching,
        "os-attach" => attach(Fields::of("os-attach", value)?)?,
        "os-initialize_connection" => {
            let fields = Fields::of("os-initialize_connection", value)?;
            fields.required("connector")?;
            let connector = connector(fields)?.ok_or_else(|| no_connector("'object'"))?;
            AttachAction::InitializeConnection { connector }
        }
        "os-terminate_connection" => {
            let connector = nullable(name, value)?.map(connector).transpose()?.flatten();
            AttachAction::TerminateConnection { connector }
        }
        _ => {
            let fields = nullable(name, value)?;
            if name == "os-force_detach" {
                // The connector is checked and not needed: the attachment determines the access.
                fields.map(connector).transpose()?;
            }
            let id = fields.map(|fields| fields.uuid("attachment_id", true)).transpose()?.flatten();
            let attachment = id.map(|id| attachment_id(&id.to_string())).transpose()?;
            AttachAction::Detach { attachment, force: name == "os-force_detach" }
        }
    })
}

/// Reads an object; `None` for null.
fn nullable<'a>(name: &'a str, value: &'a Value) -> Result<Option<Fields<'a>>, Fault> {
    if value.is_null() { Ok(None) } else { Fields::of(name, value).map(Some) }
}

fn attach(fields: Fields<'_>) -> Result<AttachAction, Fault> {
    fields.only(&["instance_uuid", "host_name", "mountpoint", "mode"])?;
    fields.required("mountpoint")?;
    let instance = fields.uuid("instance_uuid", false)?;
    let host = fields.text("host_name", 1, false)?.map(str::to_owned);
    if instance.is_none() && host.is_none() {
        return Err(fields.wrong(format!(
            "{} is not valid under any of the given schemas: want instance_uuid or host_name",
            python(&Value::Object(fields.map().clone()))
        )));
    }
    let mountpoint = fields.text("mountpoint", 1, false)?.unwrap_or_default().to_owned();
    Ok(AttachAction::Attach { instance, host, mountpoint, mode: mode(fields)? })
}

fn no_connector(types: &str) -> Fault {
    // The value is not shown: it could be a malformed connector with secrets.
    Fault::bad_request(format!("Invalid input for field/attribute connector. It is not of type {types}"))
}

/// Reads `connector`; `None` if it is missing or null.
fn connector(fields: Fields<'_>) -> Result<Option<Map<String, Value>>, Fault> {
    match fields.some("connector") {
        None => Ok(None),
        Some(Value::Object(map)) if map.is_empty() => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map.clone())),
        Some(_) => Err(no_connector("'object', 'null'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_clients_send_them() {
        for (name, _) in ROWS {
            let nothing = ["os-attach", "os-initialize_connection"].contains(&name);
            assert_eq!(parse(name, &Value::Null).is_err(), nothing, "{name}");
            assert_eq!(parse(name, &json!({})).is_err(), nothing, "{name}");
        }
        for (name, wrong) in [
            ("os-attach", json!({ "instance_uuid": "x", "mountpoint": "/dev/vdb" })),
            ("os-attach", json!({ "host_name": "h", "mountpoint": "" })),
            ("os-attach", json!({ "host_name": "h", "mountpoint": "m".repeat(256) })),
            ("os-attach", json!({ "host_name": "h", "mountpoint": "/dev/vdb", "mode": "rwx" })),
            ("os-attach", json!({ "mountpoint": "/dev/vdb" })),
            ("os-attach", json!({ "host_name": "h", "mountpoint": "/dev/vdb", "x": 1 })),
            ("os-detach", json!({ "attachment_id": "x" })),
            ("os-detach", json!([])),
            ("os-force_detach", json!({ "attachment_id": null, "connector": 1 })),
            ("os-initialize_connection", json!({ "connector": null })),
            ("os-initialize_connection", json!({ "connector": "swordfish" })),
            ("os-terminate_connection", json!({ "connector": ["swordfish"] })),
        ] {
            let fault = parse(name, &wrong).err();
            assert!(
                fault.as_ref().is_some_and(|fault| !format!("{fault:?}").contains("swordfish")),
                "{wrong}"
            );
        }
        let null = json!({ "attachment_id": null, "connector": null });
        assert!(
            parse("os-force_detach", &null).ok()
                == Some(AttachAction::Detach { attachment: None, force: true })
        );
    }
}

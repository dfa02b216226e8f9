//! Persistent reservations in Mooring's own API.
//!
//! What must never happen here: a key as a number of JSON, which cannot hold it.

use mooring_model::{Initiator, Registration, ReservationType, Reservations, ReservationsChange};
use serde_json::{Value, json};

use super::fault::Fault;
use super::schema;
use super::views::rfc3339;
use crate::domain::VolumeReservations;

/// Reads a change: `{"clear": true}`, or `{"preempt": "0x3abe0001", "abort": false}`.
pub(super) fn change(body: &Value) -> Result<ReservationsChange, Fault> {
    let fields = schema::whole(body)?;
    fields.only(&["clear", "preempt", "abort"])?;
    let flag = |key| match fields.map().get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(fields.wrong(format_args!("'{key}' is not of type 'boolean'"))),
    };
    let (clear, abort) = (flag("clear")?, flag("abort")?);
    let key = fields.text("preempt", 1, false)?;
    match (clear, key) {
        (true, None) if !abort => Ok(ReservationsChange::Clear),
        (false, Some(text)) => match key_of(text) {
            Some(key) => Ok(ReservationsChange::Preempt { key, abort }),
            None => Err(fields.wrong(
                "'preempt' is not a key as they are listed: 0x and up to 16 hexadecimal digits, not all 0",
            )),
        },
        _ => Err(fields.wrong("want one of 'clear': true, and 'preempt' with a key and perhaps 'abort'")),
    }
}

/// Reads a key as it is listed; `None` for 0 as well, which is no key.
fn key_of(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let hexadecimal = (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|key| hexadecimal && *key != 0)
}

pub(super) fn view(found: &VolumeReservations) -> Value {
    let host = |initiator: &Initiator| {
        found.hosts.iter().find(|(one, _)| one == initiator).map(|(_, host)| host.clone())
    };
    let registration = |one: &Registration| {
        json!({
            "initiator": one.initiator.to_string(),
            "isid": one.isid,
            "host": host(&one.initiator),
            "key": format!("0x{:016x}", one.key),
        })
    };
    let Reservations { generation, registrations, truncated, holder, durable, lost } = &found.seen;
    let holder = holder.as_ref().map(|holder| {
        json!({
            "initiator": holder.initiator.to_string(),
            "isid": holder.isid,
            "host": host(&holder.initiator),
            "type": holder.kind.map_or(0, ReservationType::code),
            "type_name": holder.kind.map_or_else(|| "RESERVE(6) of SPC-2".to_owned(), |kind| kind.to_string()),
            "since": holder.since.and_then(rfc3339),
        })
    });
    json!({
        "volume_id": found.volume.to_string(),
        "volume_name": found.name,
        "storage_host": found.storage,
        "generation": generation,
        "durable": durable,
        "truncated": truncated,
        "holder": holder,
        "registrations": registrations.iter().map(registration).collect::<Vec<_>>(),
        "lost": lost.iter().map(registration).collect::<Vec<_>>(),
    })
}

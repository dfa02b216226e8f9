//! Persistent reservations, as they are shown.
//!
//! What must never happen here: a key as a number of JSON, which cannot hold it.

use mooring_model::{Initiator, Registration, ReservationType, Reservations};
use serde_json::{Value, json};

use crate::domain::VolumeReservations;

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

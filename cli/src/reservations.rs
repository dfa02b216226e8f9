//! `mooring volume reservations`: registrations and reservation of a volume in the storage node's
//! kernel, and their removal by an operator. The controller knows hosts, an agent only initiators.
//!
//! What must never happen here: a key that is rounded; "nobody" where nobody has looked.

use std::fmt::{self, Display, Formatter};

use mooring_api::v1;
use mooring_model::{ReservationType, ReservationsChange, VolumeId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::controller::Client;
use crate::controller::client::Call;
use crate::error::Failure;
use crate::output::Reply;
use crate::select::{find, name_of};
use crate::session::Session;
use crate::table::{facts, named, or_none, table};
use crate::text::{one_line, time};
use crate::volume_ref::VolumeRef;

/// `volume reservations`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reservations {
    pub volume_id: String,
    pub volume_name: Option<String>,
    /// The storage node; `null` in an agent's own answer.
    pub storage_host: Option<String>,
    /// The target's counter of changes. It starts from 0 again with the storage node.
    pub generation: u32,
    /// `true`: they survive a loss of power of the storage node.
    pub durable: bool,
    /// `true`: there may be more registrations than are listed.
    pub truncated: bool,
    /// The holder of the reservation.
    pub holder: Option<Holder>,
    pub registrations: Vec<Registration>,
    /// Kept registrations that the kernel does not have back.
    pub lost: Vec<Registration>,
}

/// The holder of the reservation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub initiator: String,
    pub isid: Option<String>,
    pub host: Option<String>,
    /// SPC-4's number of the type; 0: RESERVE(6).
    pub r#type: u32,
    pub type_name: String,
    /// Time when the storage agent first saw it.
    #[serde(default)]
    pub since: Option<String>,
}

/// One registration.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Registration {
    pub initiator: String,
    pub isid: Option<String>,
    pub host: Option<String>,
    /// The key in hexadecimal, as initiators' tools take it: JSON's numbers cannot hold it.
    pub key: String,
}

/// Our number for the older RESERVE(6).
const RESERVE_6: u32 = 0;

/// A whole answer of the controller.
#[derive(Debug, Deserialize)]
struct Answer {
    reservations: Reservations,
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn registration(wire: &v1::Registration) -> Registration {
    Registration {
        initiator: wire.initiator.clone(),
        isid: some(&wire.isid),
        host: None,
        key: format!("0x{:016x}", wire.key),
    }
}

fn holder(wire: &v1::ReservationHolder) -> Holder {
    let kind = u8::try_from(wire.r#type).ok().and_then(ReservationType::of_code);
    Holder {
        initiator: wire.initiator.clone(),
        isid: some(&wire.isid),
        host: None,
        r#type: wire.r#type,
        type_name: kind.map_or_else(|| "RESERVE(6) of SPC-2".to_owned(), |kind| kind.to_string()),
        since: time(wire.since_us),
    }
}

/// `volume reservations` of one agent.
pub(crate) async fn of_agent(session: &Session, volume: &VolumeRef) -> Result<Reply<Reservations>, Failure> {
    let (id, status) = find(session, volume).await?;
    let Some(export) = &status.export else {
        return Err(Failure::NotFound(format!("volume {id} is not exported: nobody can reserve it")));
    };
    Ok(Reply::ok(of_wire(id, name_of(&status.volume_opaque), export.reservations.as_ref())))
}

fn of_wire(id: VolumeId, volume_name: Option<String>, seen: Option<&v1::Reservations>) -> Reservations {
    let seen = seen.cloned().unwrap_or_default();
    Reservations {
        volume_id: id.to_string(),
        volume_name,
        storage_host: None,
        generation: seen.generation,
        durable: seen.durable,
        truncated: seen.truncated,
        holder: seen.holder.as_ref().map(holder),
        registrations: seen.registrations.iter().map(registration).collect(),
        lost: seen.lost.iter().map(registration).collect(),
    }
}

/// `volume reservations --clear` and `--preempt`: the reservations before and after.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Changed {
    pub before: Reservations,
    pub reservations: Reservations,
}

/// Removes reservations at one agent.
pub(crate) async fn change_at_agent(
    session: &Session,
    volume: &VolumeRef,
    change: ReservationsChange,
) -> Result<Reply<Changed>, Failure> {
    use v1::change_reservations_request::Change;
    let (id, status) = find(session, volume).await?;
    let change = match change {
        ReservationsChange::Clear => Change::Clear(v1::ClearReservations {}),
        ReservationsChange::Preempt { key, abort } => Change::Preempt(v1::PreemptReservations { key, abort }),
    };
    let changed = session.change_reservations(id, change).await?;
    let of = |seen: Option<&v1::Reservations>| of_wire(id, name_of(&status.volume_opaque), seen);
    Ok(Reply::ok(Changed { before: of(changed.before.as_ref()), reservations: of(changed.now.as_ref()) }))
}

/// Removes reservations through the controller.
pub(crate) async fn change_at_controller(
    client: &Client,
    volume: &VolumeRef,
    change: ReservationsChange,
) -> Result<Reply<Changed>, Failure> {
    let id = crate::controller::volume::find(client, volume).await?.id;
    let body = match change {
        ReservationsChange::Clear => json!({ "clear": true }),
        ReservationsChange::Preempt { key, abort } => {
            json!({ "preempt": format!("0x{key:x}"), "abort": abort })
        }
    };
    // A repeated preempt would find the key gone and be refused, which would look like a failure of
    // the first.
    let path = ["mooring", "v1", "volumes", &id, "reservations"];
    Ok(Reply::ok(
        client.read::<Changed>(Call::add("the change of reservations", &path, body).waiting()).await?,
    ))
}

/// `volume reservations` of the controller.
pub(crate) async fn of_controller(
    client: &Client,
    volume: &VolumeRef,
) -> Result<Reply<Reservations>, Failure> {
    let id = crate::controller::volume::find(client, volume).await?.id;
    let call = Call::get("the reservations", &["mooring", "v1", "volumes", &id, "reservations"]);
    Ok(Reply::ok(client.read::<Answer>(call).await?.reservations))
}

impl Display for Changed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let same = |one: &Registration, other: &Registration| {
            (&one.initiator, &one.isid, &one.key) == (&other.initiator, &other.isid, &other.key)
        };
        let stays =
            |one: &&Registration| self.reservations.registrations.iter().any(|other| same(one, other));
        let gone: Vec<_> = self.before.registrations.iter().filter(|one| !stays(one)).collect();
        for one in &gone {
            let who = one_line(one.host.as_deref().unwrap_or(&one.initiator));
            writeln!(f, "taken away: key {} of {who}", one_line(&one.key))?;
        }
        // For a persistent reservation the registration shows it.
        let old = self.before.holder.as_ref().filter(|holder| holder.r#type == RESERVE_6);
        let old = old.filter(|_| self.reservations.holder.is_none());
        if let Some(old) = old {
            let who = one_line(old.host.as_deref().unwrap_or(&old.initiator));
            writeln!(f, "taken away: {} of {who}, whose session was cut", one_line(&old.type_name))?;
        }
        if gone.is_empty() && old.is_none() {
            writeln!(f, "there was nothing to take away")?;
        }
        write!(f, "{}", self.reservations)
    }
}

impl Reservations {
    fn is_held_by(&self, one: &Registration) -> bool {
        let Some(holder) = &self.holder else { return false };
        let all = matches!(holder.r#type, 7 | 8);
        all || (holder.initiator == one.initiator && holder.isid == one.isid)
    }
}

impl Display for Reservations {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let holder = self.holder.as_ref();
        let who = holder.map(|holder| holder.host.as_deref().unwrap_or(&holder.initiator));
        f.write_str(&facts([
            ("VOLUME", named(self.volume_name.as_deref(), &self.volume_id)),
            ("RESERVED BY", or_none(who)),
            ("TYPE", or_none(holder.map(|holder| holder.type_name.as_str()))),
            ("SINCE", or_none(holder.and_then(|holder| holder.since.as_deref()))),
            ("OUTLIVES POWER LOSS", if self.durable { "yes" } else { "no" }.to_owned()),
            ("GENERATION", self.generation.to_string()),
        ]))?;
        if self.registrations.is_empty() {
            f.write_str("\nnobody has registered")?;
        } else {
            let row = |one: &Registration| {
                [
                    or_none(one.host.as_deref()),
                    one.initiator.clone(),
                    or_none(one.isid.as_deref()),
                    one.key.clone(),
                    if self.is_held_by(one) { "holder" } else { "-" }.to_owned(),
                ]
            };
            let heads = ["HOST", "INITIATOR", "ISID", "KEY", "HOLDS"];
            write!(f, "\n{}", table(heads, self.registrations.iter().map(row)))?;
        }
        if self.truncated {
            f.write_str("\nthe kernel lists no more than a page: there may be others")?;
        }
        for lost in &self.lost {
            let (key, who) = (one_line(&lost.key), one_line(&lost.initiator));
            write!(f, "\nlost by the kernel: key {key} of {who}")?;
        }
        Ok(())
    }
}

//! Places of attachments: the host that connects, read from a connector or from an enrolled host.
//!
//! What must never happen here: a refusal that tells a client which hosts are enrolled.

use mooring_model::{Cache, Wwpn};
use serde_json::{Map, Value};

use super::Place;
use crate::domain::{Caller, FcFault, Transport};
use crate::flow::Facts;
use crate::initiators::HostPorts;
use crate::rules;
use crate::rules::transport::Offer;
use crate::service::cache::may_be;
use crate::service::{Refusal, text_limit, told};

/// Longest connector, in bytes of its JSON. The database stores it, and a spec carries a part of
/// it.
const CONNECTOR_BYTES_MAX: usize = 16 * 1024;

pub(in crate::service) fn client_place(
    facts: &Facts,
    caller: &Caller,
    connector: Map<String, Value>,
) -> Result<Place, Refusal> {
    if Value::Object(connector.clone()).to_string().len() > CONNECTOR_BYTES_MAX {
        let text = format!("Invalid input received: the connector has more than {CONNECTOR_BYTES_MAX} bytes");
        return Err(Refusal::Invalid(text));
    }
    let offer = Offer::of_connector(&connector)?;
    // A client without rights to hosts must not learn which host this is.
    if let Some(own) = offer.iscsi.as_ref().filter(|own| facts.agents.by_initiator(own).is_some()) {
        let text =
            format!("Invalid input received: {own} is the name of an enrolled host: attach it natively");
        return Err(Refusal::Invalid(text));
    }
    let host = rules::text_of(&connector, "host");
    let mountpoint = rules::text_of(&connector, "mountpoint");
    text_limit("host", host.as_deref().unwrap_or_default())?;
    text_limit("mountpoint", mountpoint.as_deref().unwrap_or_default())?;
    let claimed = !caller.admin && !caller.service;
    Ok(Place {
        offer,
        host,
        mountpoint,
        native: None,
        without_fc: None,
        claimed,
        reads_hosts: told::reads(facts, caller),
        cache: None,
        connector: Some(connector),
    })
}

/// The port through which a host attaches natively, or the reason why there is none. A native
/// attachment uses one path: no multipath driver on the host joins two disks.
fn fc_port(host: &str, ports: &[Wwpn]) -> Result<HostPorts, FcFault> {
    match ports {
        [port] => Ok(HostPorts::one(*port)),
        [] => Err(FcFault::NoPort { host: host.to_owned() }),
        several => Err(FcFault::SeveralPorts { host: host.to_owned(), count: several.len() }),
    }
}

pub(super) fn native_place(
    facts: &Facts,
    caller: &Caller,
    name: &str,
    transport: Option<Transport>,
    cache: Option<Cache>,
) -> Result<Place, Refusal> {
    let shown = || name.chars().take(80).collect::<String>();
    let agent = facts.agents.by_name(name);
    let agent = agent.ok_or_else(|| Refusal::NotFound { kind: "Host", what: shown() })?;
    if !agent.is_up() {
        return Err(told::down(facts, caller, agent.why_down()));
    }
    let (Some(id), Some(initiator)) = (agent.id(), agent.initiator()) else {
        let text =
            format!("host {} does not attach volumes: its agent's configuration has no [host]", shown());
        return Err(Refusal::Invalid(text));
    };
    if let Some(cache) = cache {
        may_be(&agent, cache)?;
    }
    let (fc, without_fc) = match fc_port(&agent.entry.name, &agent.fc_initiator_ports()) {
        Ok(port) => (Some(port), None),
        Err(why) => (None, Some(why)),
    };
    Ok(Place {
        offer: Offer { iscsi: Some(initiator), fc, unread_fc: None, asked: transport },
        host: Some(agent.entry.name.clone()),
        mountpoint: None,
        native: Some(id),
        without_fc,
        cache,
        claimed: false,
        reads_hosts: told::reads(facts, caller),
        connector: None,
    })
}

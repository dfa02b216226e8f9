//! Choice of the transport over which a host reaches a volume: from the offers of its connector,
//! the demands of the caller and of the volume's type, and the transports that the storage agent
//! serves.
//!
//! iSCSI is chosen where both would do: every agent serves it, and a connector that names no
//! transport means it. Fibre Channel is chosen where the caller or the type demands it, or where
//! nothing else is common ([decision
//! 27](../../../docs/decisions/0027-a-host-has-one-transport-per-attachment.md)).
//!
//! What must never happen here: a transport that one of them did not name; a connector's garbage
//! taken for a port; an attach over Fibre Channel refused without the name that could not be read.

use mooring_model::limit::FC_PORTS_PER_HOST_MAX;
use mooring_model::{Iqn, NameError, Wwpn};
use serde_json::{Map, Value};

use super::specs::satisfies;
use super::types::{Specs, cut_short};
use crate::domain::{ConnectorViolation, RuleViolation, STORAGE_PROTOCOL, Transport};
use crate::initiators::{HostPorts, Initiators};

impl Transport {
    /// Returns `true` if a type with these extra specs allows this transport.
    pub fn is_allowed(self, specs: &Specs) -> bool {
        let values: Value = self.spellings().iter().copied().collect();
        let scoped = format!("capabilities:{STORAGE_PROTOCOL}");
        [STORAGE_PROTOCOL, scoped.as_str()]
            .into_iter()
            .filter_map(|key| specs.get(key))
            .all(|wanted| satisfies(&values, wanted))
    }
}

/// Names under which a host could log in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// The host's iSCSI name.
    pub iscsi: Option<Iqn>,
    /// The host's Fibre Channel ports.
    pub fc: Option<HostPorts>,
    /// Reason why the host's Fibre Channel names could not be read. `None` if they could, or if
    /// there are none. Only an offer of iSCSI has such a reason: any other is refused with it.
    pub unread_fc: Option<RuleViolation>,
    /// The transport that the caller demands. `None`: any.
    pub asked: Option<Transport>,
}

impl Offer {
    /// Reads the offers of a client's connector.
    pub fn of_connector(connector: &Map<String, Value>) -> Result<Self, RuleViolation> {
        let asked = asked(connector)?;
        let iscsi = match connector.get("initiator").filter(|value| !value.is_null()) {
            None => None,
            Some(value) => Some(iqn(value)?),
        };
        let (fc, unread_fc) = match host_ports(connector) {
            Ok(ports) => (ports, None),
            // A host that logs in over iSCSI may name its Fibre Channel adapters as it likes.
            Err(violation) if iscsi.is_some() && asked != Some(Transport::Fc) => (None, Some(violation)),
            Err(violation) => return Err(violation),
        };
        if iscsi.is_none() && fc.is_none() {
            return Err(RuleViolation::Connector(ConnectorViolation::NoInitiator));
        }
        Ok(Self { iscsi, fc, unread_fc, asked })
    }

    /// Returns `true` if an attachment with these initiators belongs to this host.
    pub fn covers(&self, known: &Initiators) -> bool {
        self.iscsi.as_ref().is_some_and(|iqn| known == iqn)
            || self.fc.clone().is_some_and(|ports| known.meets(&Initiators::Fc(ports)))
    }

    fn of(&self, transport: Transport) -> Option<Initiators> {
        match transport {
            Transport::Iscsi => self.iscsi.clone().map(Initiators::Iscsi),
            Transport::Fc => self.fc.clone().map(Initiators::Fc),
        }
    }

    fn transports(&self) -> Vec<Transport> {
        Transport::ALL.into_iter().filter(|one| self.of(*one).is_some()).collect()
    }
}

/// Transports that a storage agent reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Transports that the agent serves.
    pub has: Vec<Transport>,
    /// The part of `has` that can be reached now.
    pub ready: Vec<Transport>,
}

/// Returns the names under which a host is to be granted access. Among the transports that all
/// allow: the first that the storage agent is ready for, else the first that it serves at all.
/// `agent`: its name, for the answer. `served`: `None` if it has not reported yet.
pub fn choose(
    offer: &Offer,
    specs: &Specs,
    agent: &str,
    served: Option<&Served>,
) -> Result<Initiators, RuleViolation> {
    let candidates: Vec<_> = Transport::ALL
        .into_iter()
        .filter(|one| offer.asked.is_none_or(|asked| asked == *one) && one.is_allowed(specs))
        .filter(|one| offer.of(*one).is_some())
        .collect();
    // An agent that has not reported yet serves what all agents do.
    let all = Served { has: vec![Transport::Iscsi], ready: vec![Transport::Iscsi] };
    let served = served.unwrap_or(&all);
    let first = |of: &[Transport]| candidates.iter().copied().find(|one| of.contains(one));
    let chosen = first(&served.ready).or_else(|| first(&served.has));
    if let Some(found) = chosen.and_then(|one| offer.of(one)) {
        return Ok(found);
    }
    // Without iSCSI the names that could not be read are what keeps the host out.
    let fc_would_do = Transport::Fc.is_allowed(specs) && offer.asked != Some(Transport::Iscsi);
    if let Some(violation) = offer.unread_fc.clone().filter(|_| fc_would_do) {
        return Err(violation);
    }
    let typed = specs.get(STORAGE_PROTOCOL).or_else(|| specs.get("capabilities:storage_protocol"));
    Err(RuleViolation::Connector(ConnectorViolation::NoCommonTransport {
        offered: offer.transports(),
        agent: agent.into(),
        served: served.has.clone(),
        asked: offer.asked,
        typed: typed.map(|spec| cut_short(spec).into()),
        without_fc: None,
    }))
}

fn asked(connector: &Map<String, Value>) -> Result<Option<Transport>, RuleViolation> {
    let Some(value) = connector.get(STORAGE_PROTOCOL).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    match value.as_str().and_then(Transport::from_word) {
        Some(transport) => Ok(Some(transport)),
        None => Err(RuleViolation::Connector(ConnectorViolation::Transport)),
    }
}

fn iqn(value: &Value) -> Result<Iqn, RuleViolation> {
    let wrong = |why| RuleViolation::Connector(ConnectorViolation::Initiator { why });
    let text = value.as_str().ok_or_else(|| wrong(None))?;
    // Names are compared without case, and the kernel's are lower case.
    let parsed: Result<_, NameError> = text.to_ascii_lowercase().parse();
    parsed.map_err(|error| wrong(Some(error.to_string())))
}

/// Reads one list of names of a connector. `None`: there is none. Some clients send one name
/// without a list.
fn names(connector: &Map<String, Value>, key: &'static str) -> Result<Option<Vec<Wwpn>>, RuleViolation> {
    let list = match connector.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    if list.is_empty() {
        return Ok(None);
    }
    if list.len() > FC_PORTS_PER_HOST_MAX {
        return Err(RuleViolation::Connector(ConnectorViolation::TooManyNames { key }));
    }
    let name = |value: &Value| {
        let text =
            value.as_str().ok_or(RuleViolation::Connector(ConnectorViolation::Name { key, why: None }))?;
        Wwpn::of_port(text).map_err(|error| {
            RuleViolation::Connector(ConnectorViolation::Name { key, why: Some(error.to_string()) })
        })
    };
    list.iter().map(name).collect::<Result<_, _>>().map(Some)
}

/// Reads the Fibre Channel ports of a connector. It must name its nodes, too, as every host with an
/// adapter does. `None`: it names neither.
fn host_ports(connector: &Map<String, Value>) -> Result<Option<HostPorts>, RuleViolation> {
    let half =
        |has, lacks| Err(RuleViolation::Connector(ConnectorViolation::HalfFibreChannel { has, lacks }));
    match (names(connector, "wwpns")?, names(connector, "wwnns")?) {
        (None, None) => Ok(None),
        (Some(ports), Some(_)) => Ok(HostPorts::new(ports)),
        (Some(_), None) => half("wwpns", "wwnns"),
        (None, Some(_)) => half("wwnns", "wwpns"),
    }
}

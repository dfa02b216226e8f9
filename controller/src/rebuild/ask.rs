//! Asks every agent of the configuration for its identity and for all that it stores.
//!
//! What must never happen here: a call that changes an agent; another agent taken for one of the
//! configuration; a wait without an end.

use std::collections::BTreeMap;

use mooring_api::v1;
use mooring_model::{AgentId, ClusterId, Iqn};
use tokio::task::JoinSet;

use super::RebuildError;
use crate::agents::calls::{agent_client, host_client, within};
use crate::agents::task::{CALL_LIMIT, LIST_BYTES_MAX, LIST_LIMIT, check_protocol, say_hello};
use crate::domain::AgentEntry;
use crate::service::Dial;

/// An agent's answers. Its specs hold secrets, which no `Debug` of them shows.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) entry: AgentEntry,
    pub(super) id: AgentId,
    pub(super) initiator: Option<Iqn>,
    /// `None`: the agent belongs to no cluster.
    pub(super) cluster: Option<ClusterId>,
    pub(super) hello: v1::HelloResponse,
    pub(super) capabilities: Option<v1::Capabilities>,
    pub(super) volumes: Vec<v1::VolumeStatus>,
    pub(super) connections: Vec<v1::ConnectionStatus>,
}

async fn ask(dial: Dial, entry: AgentEntry) -> Result<Heard, String> {
    let name = entry.name.as_str();
    let dialled = tokio::time::timeout(CALL_LIMIT, dial.dial(&entry)).await;
    let channel = dialled.map_err(|_| "no answer to the dial".to_owned())??;
    let hello = say_hello(name, channel.clone()).await?;
    check_protocol(&hello)?;
    let id = hello.agent_id.parse().map_err(|error| format!("it says a wrong id: {error}"))?;
    let cluster = match hello.cluster_id.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| format!("it says a wrong cluster: {error}"))?),
    };
    let initiator = match hello.initiator.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| format!("it says a wrong initiator name: {error}"))?),
    };
    let mut client = agent_client(channel.clone()).max_decoding_message_size(LIST_BYTES_MAX);
    let list = client.list_volumes(v1::ListVolumesRequest { with_secrets: true, ..Default::default() });
    let volumes = within(name, LIST_LIMIT, list).await.map_err(|error| error.to_string())?.volumes;
    let connections = if initiator.is_some() {
        let mut client = host_client(channel.clone()).max_decoding_message_size(LIST_BYTES_MAX);
        let list = client.list_connections(v1::ListConnectionsRequest { with_secrets: true });
        within(name, LIST_LIMIT, list).await.map_err(|error| error.to_string())?.connections
    } else {
        Vec::new()
    };
    // The controller asks for the capabilities again: without them, nothing is lost.
    let mut client = agent_client(channel);
    let capabilities =
        within(name, CALL_LIMIT, client.get_capabilities(v1::GetCapabilitiesRequest {})).await.ok();
    Ok(Heard { entry, id, initiator, cluster, hello, capabilities, volumes, connections })
}

/// Asks all agents at once, and returns them in the configuration's order. Every one must answer.
pub(super) async fn ask_all(dial: &Dial, entries: Vec<AgentEntry>) -> Result<Vec<Heard>, RebuildError> {
    let mut asking = JoinSet::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let dial = dial.clone();
        asking.spawn(async move {
            let name = entry.name.clone();
            (index, name, ask(dial, entry).await)
        });
    }
    let (mut heard, mut silent) = (BTreeMap::new(), BTreeMap::new());
    while let Some(asked) = asking.join_next().await {
        let (index, name, answer) = asked.map_err(|error| RebuildError::Ask(error.to_string()))?;
        match answer {
            Ok(answer) => drop(heard.insert(index, answer)),
            Err(why) => drop(silent.insert(index, format!("agent {name} does not answer: {why}"))),
        }
    }
    if silent.is_empty() {
        Ok(heard.into_values().collect())
    } else {
        Err(RebuildError::Silent(silent.into_values().collect::<Vec<_>>().join("\n")))
    }
}

/// Returns the one cluster that all of them belong to. `asked`: the cluster in the configuration.
pub(super) fn cluster_of(heard: &[Heard], asked: Option<ClusterId>) -> Result<ClusterId, RebuildError> {
    let mut clusters: BTreeMap<ClusterId, Vec<&str>> = BTreeMap::new();
    for agent in heard {
        if let Some(cluster) = agent.cluster {
            clusters.entry(cluster).or_default().push(&agent.entry.name);
        }
    }
    let named = || {
        let lines = clusters.iter().map(|(id, names)| format!("cluster {id}: {}", names.join(", ")));
        lines.collect::<Vec<_>>().join("\n")
    };
    match clusters.keys().copied().collect::<Vec<_>>()[..] {
        [] => Err(RebuildError::Unowned),
        [one] if asked.is_none_or(|asked| asked == one) => Ok(one),
        [_] => Err(RebuildError::OtherCluster(named())),
        _ => Err(RebuildError::Clusters(named())),
    }
}

/// Refuses one agent under two names: it would count as two.
pub(super) fn check_ids(heard: &[Heard]) -> Result<(), RebuildError> {
    let mut ids: BTreeMap<AgentId, &str> = BTreeMap::new();
    let mut initiators: BTreeMap<&Iqn, &str> = BTreeMap::new();
    for agent in heard {
        let name = agent.entry.name.as_str();
        let same_id = ids.insert(agent.id, name);
        let same_initiator = agent.initiator.as_ref().and_then(|own| initiators.insert(own, name));
        if let Some(other) = same_id.or(same_initiator) {
            return Err(RebuildError::Twice(other.to_owned(), name.to_owned()));
        }
    }
    Ok(())
}

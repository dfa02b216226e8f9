//! One task for each enrolled agent: dials it, checks who answers, compares what it keeps, and follows its reports; again and
//! again, for ever.
//!
//! What must never happen here: an agent that is used before its identity is checked and its stamps are compared; one
//! agent's trouble that reaches another's task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_api::{Address, Channel, v1};
use mooring_model::{AgentId, Chain, Iqn, VolumeId};
use tokio::time::MissedTickBehavior;
use tonic::{Code, Streaming};

use super::calls::{agent_client, error_of, host_client, within};
use super::{Agent, SeenConnection, SeenVolume, wire};
use crate::flow::{Inner, Job, review};
use crate::store::Db;

const CALL_LIMIT: Duration = Duration::from_secs(5);
/// All volumes of an agent, each of which it looks at.
const LIST_LIMIT: Duration = Duration::from_mins(1);
/// A peer that vanished without a word is noticed within two of these.
const PING_EVERY: Duration = Duration::from_secs(10);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A list has no pages: of a thousand volumes it is some megabytes.
const LIST_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Who answered.
struct Who {
    id: AgentId,
    initiator: Option<Iqn>,
}

/// Keeps an agent connected, for ever.
pub(crate) async fn run(inner: Arc<Inner>, agent: Arc<Agent>) {
    let mut pause = BACKOFF_MIN;
    loop {
        let began = tokio::time::Instant::now();
        let why = match session(&inner, &agent).await {
            Ok(never) => match never {},
            Err(why) => why,
        };
        let known = agent.state().why_down.clone();
        if known.as_ref() != Some(&why) {
            tracing::warn!(agent = agent.entry.name, why, "an agent is down");
        }
        agent.down(why);
        inner.touch_all();
        if began.elapsed() > BACKOFF_MAX {
            pause = BACKOFF_MIN;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Between half and all of it: agents that went down together are not dialled together.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0_u8; 1];
    // Without random numbers the pause is just the same for all.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause / 2 * u32::from(byte[0]) / 255
}

enum Never {}

async fn session(inner: &Arc<Inner>, agent: &Arc<Agent>) -> Result<Never, String> {
    let entry = &agent.entry;
    if matches!(entry.address, Address::Plain(_)) && !entry.insecure {
        return Err(
            "plain text on a network is not allowed: use https, or say `insecure` in its entry".to_owned()
        );
    }
    let channel =
        mooring_api::connect(&entry.address, &entry.tls).await.map_err(|error| Chain(&error).to_string())?;
    let who = hello(inner, agent, channel.clone()).await?;
    // Followed before the lists are read: nothing that changes in between is lost.
    let mut client = agent_client(channel.clone()).max_decoding_message_size(LIST_BYTES_MAX);
    let watch = within(&entry.name, CALL_LIMIT, client.watch(v1::WatchRequest {})).await;
    let mut storage = watch.map_err(|error| error.to_string())?;
    let mut host = watch_host(agent, channel.clone(), who.initiator.is_some()).await?;
    list_storage(inner, agent, channel.clone(), who.id).await?;
    if host.is_some() {
        list_host(inner, agent, channel.clone(), who.id).await?;
    }
    ask_capabilities(inner, agent, channel.clone()).await?;
    up(inner, agent, &who, channel.clone()).await;

    let mut ping = tokio::time::interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            report = storage.message() => take_report(inner, agent, ended(report)?).await,
            event = next_event(&mut host) => take_event(inner, agent, who.id, ended(event)?),
            _ = ping.tick() => {
                let hello = say_hello(&entry.name, channel.clone()).await?;
                if hello.agent_id != who.id.to_string() {
                    return Err(format!("another agent answers there now, {}", hello.agent_id));
                }
                // Free space changes with every volume; nobody reports it as it goes.
                ask_capabilities(inner, agent, channel.clone()).await?;
            }
        }
    }
}

fn ended<T>(message: Result<Option<T>, tonic::Status>) -> Result<T, String> {
    match message {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err("it ended the stream of reports".to_owned()),
        Err(status) => Err(format!("the stream of reports broke: {}", status.message())),
    }
}

async fn next_event(
    stream: &mut Option<Streaming<v1::ConnectionEvent>>,
) -> Result<Option<v1::ConnectionEvent>, tonic::Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}

async fn say_hello(name: &str, channel: Channel) -> Result<v1::HelloResponse, String> {
    let hello = v1::HelloRequest {
        protocol_min: mooring_api::PROTOCOL_MIN,
        protocol_max: mooring_api::PROTOCOL_MAX,
        software: concat!("mooring-controller ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    within(name, CALL_LIMIT, agent_client(channel).hello(hello)).await.map_err(|error| error.to_string())
}

/// Checks who answers, and keeps it.
async fn hello(inner: &Arc<Inner>, agent: &Arc<Agent>, channel: Channel) -> Result<Who, String> {
    let hello = say_hello(&agent.entry.name, channel).await?;
    if !(mooring_api::PROTOCOL_MIN..=mooring_api::PROTOCOL_MAX).contains(&hello.protocol) {
        return Err(format!(
            "it speaks protocol {}, and this controller {} to {}",
            hello.protocol,
            mooring_api::PROTOCOL_MIN,
            mooring_api::PROTOCOL_MAX
        ));
    }
    let cluster = inner.store.cluster().to_string();
    if !hello.cluster_id.is_empty() && hello.cluster_id != cluster {
        return Err(format!("it belongs to cluster {}, not to this one, {cluster}", hello.cluster_id));
    }
    let id: AgentId = hello.agent_id.parse().map_err(|error| format!("it says a wrong id: {error}"))?;
    let initiator = Some(hello.initiator.as_str()).filter(|text| !text.is_empty()).map(str::parse::<Iqn>);
    let initiator =
        initiator.transpose().map_err(|error| format!("it says a wrong initiator name: {error}"))?;
    let (name, own) = (agent.entry.name.clone(), initiator.clone());
    let enrolled: Vec<String> = inner.agents.all().iter().map(|agent| agent.entry.name.clone()).collect();
    let write = move |db: &Db<'_>| {
        for other in db.agents()?.into_iter().filter(|other| other.name != name) {
            let same_id = other.id == id;
            if !same_id && (own.is_none() || other.initiator != own) {
                continue;
            }
            if !enrolled.contains(&other.name) {
                db.forget_agent(&other.name)?;
            } else if same_id {
                return Ok(Err(format!(
                    "agent {} has the same id, {id}: one agent under two names, or a copied state folder",
                    other.name
                )));
            } else {
                return Ok(Err(format!(
                    "agent {} logs in under the same initiator name: a cloned image?",
                    other.name
                )));
            }
        }
        db.put_agent(&name, id, own.as_ref(), &hello.portals)?;
        Ok(Ok(()))
    };
    let kept = inner.store.write("keep who an agent is", write).await;
    kept.map_err(|refusal| refusal.to_string())??;
    Ok(Who { id, initiator })
}

async fn watch_host(
    agent: &Agent,
    channel: Channel,
    attaches: bool,
) -> Result<Option<Streaming<v1::ConnectionEvent>>, String> {
    if !attaches {
        return Ok(None);
    }
    let mut client = host_client(channel);
    let watch = client.watch_connections(v1::WatchConnectionsRequest {});
    match tokio::time::timeout(CALL_LIMIT, watch).await {
        Ok(Ok(stream)) => Ok(Some(stream.into_inner())),
        Ok(Err(status)) if status.code() == Code::Unimplemented => Ok(None),
        Ok(Err(status)) => Err(error_of(&agent.entry.name, &status).to_string()),
        Err(_) => Err("no answer to WatchConnections".to_owned()),
    }
}

async fn list_storage(
    inner: &Arc<Inner>,
    agent: &Arc<Agent>,
    channel: Channel,
    id: AgentId,
) -> Result<(), String> {
    let name = agent.entry.name.clone();
    let mut client = agent_client(channel).max_decoding_message_size(LIST_BYTES_MAX);
    let list = within(&name, LIST_LIMIT, client.list_volumes(v1::ListVolumesRequest {})).await;
    let list = list.map_err(|error| error.to_string())?;
    let mut seen = BTreeMap::new();
    let mut receipts = Vec::new();
    for status in &list.volumes {
        let Ok(volume) = status.volume_id.parse::<VolumeId>() else { continue };
        receipts.extend(status.receipts.iter().filter_map(wire::receipt));
        seen.insert(
            volume,
            SeenVolume {
                volume_stamp: wire::stamp(status.volume_stamp.as_ref()),
                export_stamp: wire::stamp(status.export_stamp.as_ref()),
                volume: status.volume.as_ref().and_then(wire::volume),
                export: status.export.as_ref().and_then(wire::export),
                put_at: None,
            },
        );
    }
    let given = seen.clone();
    let write = move |db: &Db<'_>| {
        for receipt in &receipts {
            db.keep_receipt(receipt)?;
        }
        review::compare_storage(db, &name, id, &given)
    };
    let compared = inner.store.write("compare an agent's volumes", write).await;
    let compared = compared.map_err(|refusal| refusal.to_string())?;
    let mut state = agent.state();
    state.volumes = seen.into_iter().collect();
    state.orphans = compared.orphans;
    Ok(())
}

async fn list_host(
    inner: &Arc<Inner>,
    agent: &Arc<Agent>,
    channel: Channel,
    id: AgentId,
) -> Result<(), String> {
    let name = agent.entry.name.clone();
    let mut client = host_client(channel).max_decoding_message_size(LIST_BYTES_MAX);
    let list = within(&name, LIST_LIMIT, client.list_connections(v1::ListConnectionsRequest {})).await;
    let list = list.map_err(|error| error.to_string())?;
    let mut seen = BTreeMap::new();
    for status in &list.connections {
        let Ok(volume) = status.volume_id.parse::<VolumeId>() else { continue };
        let report = status.report.as_ref().and_then(wire::connection);
        seen.insert(
            volume,
            SeenConnection { stamp: wire::stamp(status.stamp.as_ref()), report, put_at: None },
        );
    }
    let given = seen.clone();
    let write = move |db: &Db<'_>| review::compare_host(db, &name, id, &given);
    let compared = inner.store.write("compare a host's connections", write).await;
    let compared = compared.map_err(|refusal| refusal.to_string())?;
    let mut state = agent.state();
    state.connections = seen.into_iter().collect();
    state.orphans.extend(compared.orphans);
    Ok(())
}

/// From here on it is used; everything that waits for it goes on.
async fn up(inner: &Arc<Inner>, agent: &Arc<Agent>, who: &Who, channel: Channel) {
    {
        let mut state = agent.state();
        state.id = Some(who.id);
        state.initiator.clone_from(&who.initiator);
        state.channel = Some(channel);
        state.why_down = None;
        state.last_report = Some(SystemTime::now());
    }
    tracing::info!(agent = agent.entry.name, id = %who.id, "an agent is up");
    let id = who.id;
    let read = move |db: &Db<'_>| {
        let volumes: Vec<_> = db.volumes_on(id)?.into_iter().map(|volume| volume.id).collect();
        Ok((volumes, db.connections_on(id)?))
    };
    match inner.store.read("list an agent's part", read).await {
        Ok((volumes, connections)) => {
            for volume in volumes {
                inner.kick(Job::Storage(volume));
            }
            for volume in connections {
                inner.kick(Job::Host(volume, id));
            }
        }
        Err(refusal) => {
            tracing::error!(agent = agent.entry.name, error = %refusal, "cannot go on with an agent");
        }
    }
    inner.touch_all();
}

async fn take_report(inner: &Arc<Inner>, agent: &Arc<Agent>, report: v1::Report) {
    use v1::report::What;
    agent.state().last_report = Some(SystemTime::now());
    match report.what {
        Some(What::Volume(report)) => {
            if let Some(report) = wire::volume(&report) {
                let id = report.id;
                agent.saw_volume(report);
                inner.storage_news(id);
            }
        }
        Some(What::Export(report)) => {
            if let Some(report) = wire::export(&report) {
                let id = report.volume;
                agent.saw_export(report);
                inner.storage_news(id);
            }
        }
        Some(What::Receipt(receipt)) => {
            let Some(receipt) = wire::receipt(&receipt) else { return };
            let id = receipt.volume;
            let write = move |db: &Db<'_>| Ok(db.keep_receipt(&receipt)?);
            match inner.store.write("keep a receipt", write).await {
                Ok(_) => inner.storage_news(id),
                // It comes again with the next connect, and whoever waits for it asks.
                Err(refusal) => tracing::error!(volume = %id, error = %refusal, "cannot keep a receipt"),
            }
        }
        Some(What::Capabilities(capabilities)) => take_capabilities(inner, agent, capabilities).await,
        Some(What::Synced(_)) | None => {}
    }
}

async fn ask_capabilities(inner: &Arc<Inner>, agent: &Arc<Agent>, channel: Channel) -> Result<(), String> {
    let mut client = agent_client(channel);
    let ask = client.get_capabilities(v1::GetCapabilitiesRequest {});
    let seen = within(&agent.entry.name, LIST_LIMIT, ask).await.map_err(|error| error.to_string())?;
    agent.state().last_report = Some(SystemTime::now());
    take_capabilities(inner, agent, seen).await;
    Ok(())
}

async fn take_capabilities(inner: &Arc<Inner>, agent: &Arc<Agent>, new: v1::Capabilities) {
    if agent.state().capabilities.as_ref() == Some(&new) {
        return;
    }
    agent.state().capabilities = Some(new.clone());
    let name = agent.entry.name.clone();
    let write = move |db: &Db<'_>| Ok(db.put_capabilities(&name, &new)?);
    if let Err(refusal) = inner.store.write("keep what an agent can do", write).await {
        tracing::error!(agent = agent.entry.name, error = %refusal, "cannot keep what an agent can do");
    }
}

fn take_event(inner: &Arc<Inner>, agent: &Arc<Agent>, host: AgentId, event: v1::ConnectionEvent) {
    agent.state().last_report = Some(SystemTime::now());
    if let Some(v1::connection_event::What::Report(report)) = event.what
        && let Some(report) = wire::connection(&report)
    {
        let id = report.volume;
        agent.saw_connection(report);
        inner.host_news(id, host);
    }
}

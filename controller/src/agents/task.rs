//! One task for each agent that this controller drives: dials it, checks its identity, compares its
//! specs with the store, and follows its reports; again and again, for ever.
//!
//! What must never happen here: an agent that is used before its identity is checked and its stamps
//! are compared; trouble of one agent that reaches another agent's task.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_api::{Channel, reports, v1};
use mooring_model::{AgentId, Generation, Iqn, Phase, VolumeId};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::{Code, Streaming};

use super::calls::{agent_client, error_of, host_client, within};
use super::dial::Dial;
use super::listener::{Job, Listed, Listener};
use super::words::{self, Word};
use super::{Agent, Agents, Heard, Kept, SeenConnection, SeenVolume, beyond, exports};
use crate::clock::Clock;
use crate::domain::Role;
use crate::store::{AgentRow, Db, FencedStore};

pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Limit of a list of all volumes of an agent: it looks at each of them.
pub(crate) const LIST_LIMIT: Duration = Duration::from_mins(1);
/// Pause between two pings. A peer that vanished silently is noticed within two of these.
const PING_EVERY: Duration = Duration::from_secs(10);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Time for which an agent that answers is not used yet because it has not reported its
/// capabilities.
const CAPABILITIES_GRACE: Duration = Duration::from_secs(1);
/// Largest list: a list has no pages, and a thousand volumes make some megabytes.
pub(crate) const LIST_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Things that the task of an agent works with.
pub(crate) struct Context {
    /// The store, as long as this controller drives the agent.
    pub(crate) store: FencedStore,
    /// All agents.
    pub(crate) agents: Arc<Agents>,
    /// The clocks.
    pub(crate) clock: Clock,
    /// Way to dial agents.
    pub(crate) dial: Dial,
    /// Acts on the agent's reports.
    pub(crate) listener: Arc<dyn Listener>,
}

/// Identity of the agent that answered.
struct Who {
    id: AgentId,
    initiator: Option<Iqn>,
}

/// Keeps an agent connected, for ever.
pub(crate) async fn run(context: Context, agent: Arc<Agent>) {
    let context = Arc::new(context);
    let mut pause = BACKOFF_MIN;
    loop {
        let began = tokio::time::Instant::now();
        let why = match session(&context, &agent).await {
            Ok(never) => match never {},
            Err(why) => why,
        };
        let known = agent.state().why_down.clone();
        if known.as_ref() != Some(&why) {
            tracing::warn!(agent = agent.entry.name, why, "an agent is down");
        }
        agent.down(why);
        context.listener.agent_changed();
        if began.elapsed() > BACKOFF_MAX {
            pause = BACKOFF_MIN;
        }
        tokio::time::sleep(jittered(pause, &agent.entry.name, context.clock.now())).await;
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Shortens a pause by up to half: agents that went down together are not dialled together. The
/// name and the time decide, so that a simulation with its own clock repeats the same pauses.
fn jittered(pause: Duration, name: &str, now: SystemTime) -> Duration {
    let mut hasher = DefaultHasher::new();
    (name, now.duration_since(UNIX_EPOCH).unwrap_or_default()).hash(&mut hasher);
    let [byte, ..] = hasher.finish().to_le_bytes();
    pause / 2 + pause / 2 * u32::from(byte) / 255
}

/// Reason why an agent whose row has gone is not used.
const ENDED: &str = "its enrolment has ended";

enum Never {}

async fn session(context: &Arc<Context>, agent: &Arc<Agent>) -> Result<Never, String> {
    let entry = &agent.entry;
    let channel = context.dial.dial(entry).await?;
    let who = hello(context, agent, channel.clone()).await?;
    // Followed before the lists are read: no change in between is lost.
    let mut client = agent_client(channel.clone()).max_decoding_message_size(LIST_BYTES_MAX);
    let watch = within(&entry.name, CALL_LIMIT, client.watch(v1::WatchRequest {})).await;
    let mut storage = watch.map_err(|error| error.to_string())?;
    let mut host = watch_host(agent, channel.clone(), who.initiator.is_some()).await?;
    let released = list_storage(context, agent, channel.clone(), who.id).await?;
    if host.is_some() {
        list_host(context, agent, channel.clone(), who.id).await?;
    }
    // Beside everything else, one question at a time: an LVM that hangs must not hold up the
    // agent's volumes.
    let mut questions = JoinSet::new();
    questions.spawn(ask_capabilities(Arc::clone(context), Arc::clone(agent), channel.clone()));
    // As a rule, the answer comes before the first volume is to be placed.
    let _ = tokio::time::timeout(CAPABILITIES_GRACE, questions.join_next()).await;
    up(context, agent, &who, channel.clone()).await;
    // Hosts that came up before this agent waited for the end of these reviews.
    for (volume, hosts) in &released {
        context.listener.wake(*volume, hosts);
    }

    let mut ping = tokio::time::interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // In order, so that a simulation repeats. The ping comes first: it is rare, and no
            // stream of reports must hold it up.
            biased;
            _ = ping.tick() => {
                let hello = say_hello(&entry.name, channel.clone()).await?;
                if hello.agent_id != who.id.to_string() {
                    return Err(format!("another agent answers there now, {}", hello.agent_id));
                }
                // Free space changes with every volume, and no report follows it.
                if questions.is_empty() {
                    questions.spawn(ask_capabilities(Arc::clone(context), Arc::clone(agent), channel.clone()));
                }
            }
            Some(_) = questions.join_next() => {}
            event = next_event(&mut host) => take_event(context, agent, who.id, ended(event)?).await,
            report = storage.message() => take_report(context, agent, ended(report)?).await,
        }
    }
}

fn ended<T>(message: Result<Option<T>, tonic::Status>) -> Result<T, String> {
    match message {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err("it ended the stream of reports".to_owned()),
        Err(status) => Err(format!("the stream of reports broke: {}", words::plain(status.message()))),
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

pub(crate) async fn say_hello(name: &str, channel: Channel) -> Result<v1::HelloResponse, String> {
    let hello = v1::HelloRequest {
        protocol_min: mooring_api::PROTOCOL_MIN,
        protocol_max: mooring_api::PROTOCOL_MAX,
        software: concat!("mooring-controller ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let answer = within(name, CALL_LIMIT, agent_client(channel).hello(hello)).await;
    let mut answer = answer.map_err(|error| error.to_string())?;
    words::clean_hello(&mut answer);
    Ok(answer)
}

/// Checks that agent and controller have a protocol in common.
pub(crate) fn check_protocol(hello: &v1::HelloResponse) -> Result<(), String> {
    if !(mooring_api::PROTOCOL_MIN..=mooring_api::PROTOCOL_MAX).contains(&hello.protocol) {
        return Err(format!(
            "it speaks protocol {}, and this controller {} to {}",
            hello.protocol,
            mooring_api::PROTOCOL_MIN,
            mooring_api::PROTOCOL_MAX
        ));
    }
    Ok(())
}

/// Checks that this controller may use the agent that answers.
fn check_hello(context: &Context, hello: &v1::HelloResponse) -> Result<AgentId, String> {
    check_protocol(hello)?;
    let cluster = context.store.cluster().to_string();
    if !hello.cluster_id.is_empty() && hello.cluster_id != cluster {
        return Err(format!("it belongs to cluster {}, not to this one, {cluster}", hello.cluster_id));
    }
    hello.agent_id.parse().map_err(|error| format!("it says a wrong id: {error}"))
}

/// Handles another id under a known name. An agent with a new store has lost its former one: it
/// gets its id back, and then all its specs anew. Any other agent is refused if the known one has
/// volumes or connections.
async fn take_back(
    context: &Context,
    agent: &Arc<Agent>,
    channel: Channel,
    known: AgentRow,
    hello: v1::HelloResponse,
) -> Result<v1::HelloResponse, String> {
    let (name, id) = (&agent.entry.name, known.id);
    if !hello.fresh {
        let read = move |db: &Db<'_>| Ok((db.volumes_on(id)?.len(), db.connections_on(id)?.len()));
        let has = context.store.read("see what an agent has", read).await;
        return match has.map_err(|refusal| refusal.to_string())? {
            (0, 0) => Ok(hello),
            (volumes, connections) => Err(format!(
                "another agent answers, {}, with specs of its own; under this name {id} is known, with {volumes} volume(s) and \
                 {connections} connection(s): dial that one, or enrol this one under another name",
                hello.agent_id
            )),
        };
    }
    let machine = known.capabilities.map(|known| known.host_name).filter(|machine| !machine.is_empty());
    if let Some(machine) = machine.filter(|machine| *machine != hello.host_name) {
        return Err(format!(
            "a new agent answers on the machine {}; under this name {id} is known, on the machine {machine}: it is not given \
             that one's id. Dial the old machine, or enrol the new one under another name",
            hello.host_name
        ));
    }
    let adopt = v1::AdoptRequest {
        sender: Some(v1::Sender { cluster_id: context.store.cluster().to_string() }),
        agent_id: id.to_string(),
    };
    let adopted = within(name, CALL_LIMIT, agent_client(channel.clone()).adopt(adopt)).await;
    adopted.map_err(|error| format!("it has lost its store, and does not take its id back: {error}"))?;
    let hello = say_hello(name, channel).await?;
    if hello.agent_id != id.to_string() {
        return Err(format!(
            "it has lost its store and was given its id back, {id}; now it says {}",
            hello.agent_id
        ));
    }
    tracing::warn!(agent = name, %id, "an agent had lost its store: it has its id again, and is told everything anew");
    Ok(hello)
}

/// The way out for a machine that was copied with its agent's state.
const OWN_ID: &str =
    "On the copy, stop the agent, move its mooring-agent.db* away and start it: it gets an id of its own";

/// Checks the identity of the agent that answers, and stores it.
async fn hello(context: &Context, agent: &Arc<Agent>, channel: Channel) -> Result<Who, String> {
    let name = agent.entry.name.clone();
    let mut hello = say_hello(&name, channel.clone()).await?;
    let mut id = check_hello(context, &hello)?;
    let said = id;
    let read = move |db: &Db<'_>| Ok((db.agent_named(&name)?, db.forgotten(said)?));
    let known = context.store.read("read who an agent was", read).await;
    let (known, stranger) = known.map_err(|refusal| refusal.to_string())?;
    if let Some(forgotten) = stranger {
        return Err(forgotten.why_refused());
    }
    if let Some(known) = known.filter(|known| known.id != id) {
        hello = take_back(context, agent, channel, known, hello).await?;
        id = check_hello(context, &hello)?;
    }
    let initiator = Some(hello.initiator.as_str()).filter(|text| !text.is_empty()).map(str::parse::<Iqn>);
    let initiator =
        initiator.transpose().map_err(|error| format!("it says a wrong initiator name: {error}"))?;
    agent.state().attaches = initiator.is_some();
    let initiator = initiator.filter(|_| agent.entry.may(Role::Host));
    let (name, own) = (agent.entry.name.clone(), initiator.clone());
    let (agents, entry) = (Arc::clone(&context.agents), agent.entry.clone());
    let write = move |db: &Db<'_>| {
        // Both may have changed while it was dialled: then nothing is stored of it under this name.
        if !db.stands(&entry)? {
            return Ok(Err(ENDED.to_owned()));
        }
        if let Some(forgotten) = db.forgotten(id)? {
            return Ok(Err(forgotten.why_refused()));
        }
        for other in db.agents_like(id, own.as_ref())?.into_iter().filter(|other| other.name != name) {
            let same_id = other.id == id;
            if agents.named(&other.name).is_none() {
                db.forget_agent(&other.name)?;
            } else if same_id {
                return Ok(Err(format!(
                    "agent {} has the same id, {id}: one agent under two names, or a copied state folder. {OWN_ID}",
                    other.name
                )));
            } else {
                return Ok(Err(format!(
                    "agent {} logs in under the same initiator name: a cloned image? {OWN_ID}",
                    other.name
                )));
            }
        }
        if let Err(why) = words::may_keep(db, Generation { epoch: hello.newest_epoch, counter: 0 })? {
            return Ok(Err(why));
        }
        db.put_agent(&name, id, own.as_ref(), &hello.portals, &hello.software)?;
        Ok(Ok(db.rise_above(&name, hello.newest_epoch)?))
    };
    let kept = context.store.write("keep who an agent is", write).await;
    if let Some(epoch) = kept.map_err(|refusal| refusal.to_string())?? {
        let agent = agent.entry.name.as_str();
        tracing::warn!(agent, epoch, "an agent is ahead of this database: the epoch is raised");
    }
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
    context: &Context,
    agent: &Arc<Agent>,
    channel: Channel,
    id: AgentId,
) -> Result<BTreeMap<VolumeId, BTreeSet<AgentId>>, String> {
    let name = agent.entry.name.clone();
    let mut client = agent_client(channel).max_decoding_message_size(LIST_BYTES_MAX);
    let asked = v1::ListVolumesRequest { with_secrets: false, with_tombstones: true };
    let list = within(&name, LIST_LIMIT, client.list_volumes(asked)).await;
    let list = list.map_err(|error| error.to_string())?;
    let exports = exports::listed(&list.volumes);
    let mut seen = BTreeMap::new();
    let mut receipts = Vec::new();
    for status in &list.volumes {
        let Ok(volume) = status.volume_id.parse::<VolumeId>() else { continue };
        let mut one = SeenVolume::of(volume, status);
        receipts.append(&mut one.receipts);
        seen.insert(volume, Arc::new(Kept::new(one)));
    }
    // At a start, a thousand agents wait for their comparison, and the list is many times the size
    // of what is kept.
    drop(list);
    let listed = Listed { name, agent: id, volumes: seen.clone(), exports };
    let (listener, entry) = (Arc::clone(&context.listener), agent.entry.clone());
    let write = move |db: &Db<'_>| {
        if !db.stands(&entry)? {
            return Ok(Err(ENDED.to_owned()));
        }
        let mut foreign = Vec::new();
        for receipt in &receipts {
            if words::keep_receipt(db, id, receipt)?.is_none() {
                foreign.push(receipt.clone());
            }
        }
        let compared = listener.compare_storage(db, &listed)?;
        // Specs that are sent from now on belong to this history.
        db.note_compared(&listed.name)?;
        Ok(Ok((compared, foreign)))
    };
    let compared = context.store.write("compare an agent's volumes", write).await;
    let (compared, foreign) = compared.map_err(|refusal| refusal.to_string())??;
    for receipt in &foreign {
        agent.drops(Word::Receipt(receipt));
    }
    // Volumes that are gone have been compared, and are not needed any more.
    seen.retain(|id, kept| kept.volume(*id).is_none_or(|report| report.phase != Phase::Gone));
    agent.set_volumes(seen, compared.orphans);
    Ok(compared.released)
}

async fn list_host(
    context: &Context,
    agent: &Arc<Agent>,
    channel: Channel,
    id: AgentId,
) -> Result<(), String> {
    let name = agent.entry.name.clone();
    let mut client = host_client(channel).max_decoding_message_size(LIST_BYTES_MAX);
    let list =
        within(&name, LIST_LIMIT, client.list_connections(v1::ListConnectionsRequest::default())).await;
    let list = list.map_err(|error| error.to_string())?;
    let mut seen = BTreeMap::new();
    for status in &list.connections {
        let Ok(volume) = status.volume_id.parse::<VolumeId>() else { continue };
        let report = reports::connection_of(status.report.as_ref(), volume).map(words::cleaned);
        seen.insert(
            volume,
            SeenConnection {
                stamp: reports::stamp(status.stamp.as_ref()),
                report,
                ..SeenConnection::default()
            },
        );
    }
    let (given, listener) = (seen.clone(), Arc::clone(&context.listener));
    let write = move |db: &Db<'_>| listener.compare_host(db, &name, id, &given);
    let compared = context.store.write("compare a host's connections", write).await;
    let compared = compared.map_err(|refusal| refusal.to_string())?;
    let mut state = agent.state();
    state.connections = seen.into_iter().collect();
    state.orphans.extend(compared.orphans);
    Ok(())
}

/// Marks the agent as up: it is used from here on, and everything that waits for it goes on.
async fn up(context: &Context, agent: &Arc<Agent>, who: &Who, channel: Channel) {
    {
        let mut state = agent.state();
        agent.is_known_as(&mut state, who.id, who.initiator.clone());
        state.channel = Some(channel);
        state.why_down = None;
        state.last_report = Some(context.clock.now());
    }
    tracing::info!(agent = agent.entry.name, id = %who.id, "an agent is up");
    let id = who.id;
    let read = move |db: &Db<'_>| {
        let mut volumes: Vec<_> = db.volumes_on(id)?.into_iter().map(|volume| volume.id).collect();
        // A volume that waits for an agent which stays down may be placed here.
        volumes.extend(db.unsent()?);
        volumes.extend(db.takings_at(id)?);
        Ok((volumes, db.connections_on(id)?))
    };
    match context.store.read("list an agent's part", read).await {
        Ok((volumes, connections)) => {
            for volume in volumes {
                context.listener.kick(Job::Storage(volume));
            }
            for volume in connections {
                context.listener.kick(Job::Host(volume, id));
            }
        }
        Err(refusal) => {
            tracing::error!(agent = agent.entry.name, error = %refusal, "cannot go on with an agent");
        }
    }
    context.listener.agent_changed();
}

async fn take_report(context: &Context, agent: &Arc<Agent>, report: v1::Report) {
    use v1::report::What;
    agent.state().last_report = Some(context.clock.now());
    match report.what {
        Some(What::Volume(report)) => {
            if let Some(report) = reports::volume(&report) {
                let id = report.id;
                let own =
                    agent.knows_volume(id) || words::takes(&context.store, agent, Word::Volume(id)).await;
                // A volume that the database does not know here is remembered: operators ask which
                // agent serves what, and its id is given to no other volume. It moves nothing.
                if own || agent.has_room() {
                    agent.saw_volume(&report, Heard::Reported);
                    if report.phase == Phase::Orphan {
                        found_again(context, agent, id).await;
                    }
                }
                if own {
                    context.listener.report_came(Job::Storage(id));
                }
            }
        }
        Some(What::Export(report)) => {
            if let Some(report) = reports::export(&report) {
                let id = report.volume;
                let own =
                    agent.knows_volume(id) || words::takes(&context.store, agent, Word::Volume(id)).await;
                let news = (own || agent.has_room()) && agent.saw_export(&report, Heard::Reported);
                if own && news {
                    context.listener.export_report_came(id, true);
                }
            }
        }
        Some(What::Receipt(receipt)) => {
            let Some(receipt) = reports::receipt(&receipt) else { return };
            let id = receipt.volume;
            if words::takes(&context.store, agent, Word::Receipt(&receipt)).await
                && agent.saw_receipt(receipt)
            {
                context.listener.export_report_came(id, false);
            }
        }
        Some(What::Capabilities(capabilities)) => take_capabilities(context, agent, capabilities, None).await,
        Some(What::Synced(_)) | None => {}
    }
}

/// Ends the review of a volume that counted as lost and whose data the agent has found.
async fn found_again(context: &Context, agent: &Arc<Agent>, volume: VolumeId) {
    let Some(id) = agent.state().id else { return };
    let listener = Arc::clone(&context.listener);
    let write = move |db: &Db<'_>| listener.found_again(db, id, volume);
    match context.store.write("see whether a lost volume was found", write).await {
        Ok(Some(hosts)) => {
            tracing::warn!(%volume, agent = agent.entry.name, "data of a volume that was lost is there: its review has ended");
            context.listener.wake(volume, &hosts);
        }
        Ok(None) => {}
        Err(refusal) => {
            tracing::error!(%volume, error = %refusal, "cannot end the review of a volume that was found");
        }
    }
}

/// Asks for the agent's capabilities. Without an answer the agent is used all the same: its last
/// report stands, with its age.
async fn ask_capabilities(context: Arc<Context>, agent: Arc<Agent>, channel: Channel) {
    let mut client = agent_client(channel);
    // A change that happens from here on may be missing in the answer.
    let asked_at = context.clock.now();
    let ask = client.get_capabilities(v1::GetCapabilitiesRequest {});
    match within(&agent.entry.name, CALL_LIMIT, ask).await {
        Ok(seen) => {
            agent.state().last_report = Some(context.clock.now());
            take_capabilities(&context, &agent, seen, Some(asked_at)).await;
        }
        Err(error) => {
            let mut state = agent.state();
            if state.capabilities_silent.is_none() {
                tracing::warn!(agent = agent.entry.name, %error, "an agent does not say what it can do");
            }
            state.capabilities_silent.get_or_insert_with(|| context.clock.now());
        }
    }
}

/// Takes capabilities. `asked_at`: the time at which the agent was asked; `None` if it reports by
/// itself.
async fn take_capabilities(
    context: &Context,
    agent: &Arc<Agent>,
    mut new: v1::Capabilities,
    asked_at: Option<SystemTime>,
) {
    // The report of the pools is as old as it says, and contains no later change.
    let age = Duration::from_millis(new.pools_age_ms);
    let asked_at = asked_at.filter(|_| !new.pools_unknown).and_then(|at| at.checked_sub(age));
    let mut updated = Vec::new();
    {
        let mut state = agent.state();
        state.capabilities_silent = None;
        words::clean_capabilities(&mut new);
        beyond::leave_out(&agent.entry, state.attaches, &mut new);
        if new.pools_unknown {
            // An agent that cannot tell its pools keeps those that are known.
            new.pools = state.capabilities.as_ref().map(|known| known.pools.clone()).unwrap_or_default();
        } else {
            state.pools_seen = context.clock.now().checked_sub(age);
        }
        // The age grows with each answer, and is no news.
        new.pools_age_ms = 0;
        // Unchanged capabilities are stored with the time when the agent was heard, but not the
        // first time: until then, volumes made after the stored report count beside it.
        let first = state.asked_at.is_none() && asked_at.is_some();
        state.asked_at = asked_at.or(state.asked_at);
        if state.capabilities.as_ref() == Some(&new) && !first {
            return;
        }
        let knew_cache = state.capabilities.as_ref().is_some_and(|known| known.cache_off == Some(true));
        if new.cache_off == Some(true) && !knew_cache {
            // Connection specs that an earlier release stored are without the flag.
            updated.extend(state.connections.keys().copied());
        }
        state.capabilities = Some(new.clone());
    }
    for volume in updated {
        if let Some(host) = agent.id() {
            context.listener.report_came(Job::Host(volume, host));
        }
    }
    let name = agent.entry.name.clone();
    let write = move |db: &Db<'_>| Ok(db.put_capabilities(&name, &new, asked_at)?);
    if let Err(refusal) = context.store.write("keep what an agent can do", write).await {
        tracing::error!(agent = agent.entry.name, error = %refusal, "cannot keep what an agent can do");
    }
}

async fn take_event(context: &Context, agent: &Arc<Agent>, host: AgentId, event: v1::ConnectionEvent) {
    agent.state().last_report = Some(context.clock.now());
    if let Some(v1::connection_event::What::Report(report)) = event.what
        && let Some(report) = reports::connection(&report)
    {
        let id = report.volume;
        if agent.knows_connection(id) || words::takes(&context.store, agent, Word::Connection(id)).await {
            agent.saw_connection(report);
            context.listener.report_came(Job::Host(id, host));
        }
    }
}

//! Leases among the controllers of one database: this controller renews its membership, drives the
//! agents whose leases it gets, and goes on with all work that is under way there.
//!
//! What must never happen here: an agent that is driven after its lease has ended; work that stays
//! undone because a note was lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mooring_model::VolumeId;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

use super::{Flow, waits};
use crate::agents::lease::{Hold, Out, guarded};
use crate::agents::listener::Job;
use crate::agents::{Agent, task};
use crate::store::leases::{LEASE, Member, Members, Said, Standing};
use crate::store::{Db, Dialer, SqlError};

/// Time between two renewals of this controller's membership.
const RENEW_EVERY: Duration = Duration::from_millis(1_500);

/// Time before the end of a lease at which its holder stops.
const MARGIN: Duration = Duration::from_millis(1_500);

/// Time between two rounds that make up for lost notes.
const POLL_EVERY: Duration = Duration::from_secs(5);

const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Largest number of leases that are given back at once: their agents are dialled anew.
const RELEASED_MAX: usize = 50;

/// A lease that this controller holds.
struct Held {
    until: watch::Sender<Instant>,
    drives: AbortHandle,
    said: Option<Said>,
}

struct Manager {
    flow: Arc<Flow>,
    id: String,
    enrols: Vec<String>,
    held: HashMap<String, Held>,
    /// Write time of the last read row of each agent that another controller drives.
    written: HashMap<String, i64>,
    drives: JoinSet<()>,
    polled: Instant,
    /// The volume up to which [`Flow::kick_unsent`] has compared specs with stamps.
    compared: Option<VolumeId>,
    /// A time before the last renewal of the membership.
    renewed: Instant,
}

/// Returns the names of all agents.
fn names(flow: &Flow) -> Vec<String> {
    flow.facts.agents.all().iter().map(|agent| agent.entry.name.clone()).collect()
}

/// Keeps this controller a member, and drives the agents whose leases it gets, for ever.
pub(crate) async fn run(flow: Arc<Flow>, dialer: Arc<Dialer>) {
    let inbox = flow.notes.take_inbox();
    let Some(mut inbox) = inbox else { return };
    let enrols = names(&flow);
    let mut manager = Manager {
        flow,
        id: String::new(),
        enrols,
        held: HashMap::new(),
        written: HashMap::new(),
        drives: JoinSet::new(),
        polled: Instant::now(),
        compared: None,
        renewed: Instant::now(),
    };
    let mut said = None;
    loop {
        let Err(error) = manager.session(&dialer, &mut inbox).await;
        let text = mooring_model::Chain(&error).to_string();
        if said.as_ref() != Some(&text) {
            tracing::warn!(error = text, "the connection for leases broke: they end by themselves");
            said = Some(text);
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
        manager.lose_what_is_over().await;
    }
}

enum Never {}

impl Manager {
    async fn session(
        &mut self,
        dialer: &Dialer,
        inbox: &mut mpsc::UnboundedReceiver<Out>,
    ) -> Result<Never, SqlError> {
        let (mut members, mut notes) = Members::connect(dialer).await?;
        // Earlier notes were missed.
        self.turn(&mut members).await?;
        self.poll().await;
        let mut tick = tokio::time::interval(RENEW_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    self.turn(&mut members).await?;
                    if self.polled.elapsed() >= POLL_EVERY {
                        self.poll().await;
                    }
                }
                note = notes.recv() => match note {
                    Some(note) => self.take(&mut members, &note).await?,
                    None => return Err(SqlError::Unreachable("the connection was closed".to_owned())),
                },
                Some(first) = inbox.recv() => self.tell(&members, first, inbox).await?,
            }
        }
    }

    /// Does one round: renews the membership, claims free leases, stops what it lost, learns of the
    /// other agents.
    async fn turn(&mut self, members: &mut Members) -> Result<(), SqlError> {
        let began = Instant::now();
        if self.id.is_empty() || !members.renew(&self.id).await? {
            self.join(members).await?;
        }
        self.renewed = began;
        self.follow_enrolments(members).await?;
        let alive = members.members().await?;
        let others = alive.iter().any(|member| member.id != self.id);
        self.flow.notes.set_alone(!others);
        let fair = fair_share(self.enrols.len(), alive.len());
        let free = i64::try_from(fair.saturating_sub(self.held.len())).unwrap_or(i64::MAX);
        if !members.claim(&self.id, &self.enrols, free).await? {
            // The row was removed in between: the next round joins anew.
            self.id.clear();
            return Ok(());
        }
        self.stand(members).await?;
        self.say(members).await?;
        let spare = spare(&self.id, self.held.keys(), fair, &alive);
        if !spare.is_empty() {
            tracing::info!(agents = ?spare, "gives agents to another controller");
            for agent in &spare {
                self.lose(agent, "another controller takes over").await;
            }
            members.release(&self.id, &spare).await?;
            members.announce(&[format!("l {}", self.id)]).await?;
        }
        Ok(())
    }

    /// Stops driving agents that have left the registry, and stores which new ones this controller
    /// may drive.
    async fn follow_enrolments(&mut self, members: &Members) -> Result<(), SqlError> {
        let enrols = names(&self.flow);
        if enrols == self.enrols {
            return Ok(());
        }
        let gone: Vec<_> = self.enrols.iter().filter(|name| !enrols.contains(name)).cloned().collect();
        self.enrols = enrols;
        for name in gone {
            self.lose(&name, "its enrolment has ended").await;
        }
        members.enrol(&self.id, &self.enrols).await
    }

    async fn join(&mut self, members: &Members) -> Result<(), SqlError> {
        for agent in self.held.keys().cloned().collect::<Vec<_>>() {
            self.lose(&agent, "this controller was not heard for too long").await;
        }
        let id = Uuid::new_v4().to_string();
        members.join(&id, &self.enrols).await?;
        tracing::info!(id, "joined the controllers of this database");
        self.flow.notes.joined(Some(&id));
        self.id = id;
        Ok(())
    }

    /// Compares the held leases with the rows.
    async fn stand(&mut self, members: &Members) -> Result<(), SqlError> {
        let until = self.renewed + LEASE.saturating_sub(MARGIN);
        let mut stale = Vec::new();
        let mut news = false;
        for standing in members.standing(&self.enrols).await? {
            let ours = standing.holder.as_ref() == Some(&self.id);
            match self.held.get(&standing.agent) {
                // The lease may have passed its end in between: then the task has ended, and starts
                // anew.
                Some(held) if ours && !held.drives.is_finished() => {
                    held.until.send_replace(until);
                }
                held => {
                    if held.is_some() {
                        self.lose(&standing.agent, "its lease was over").await;
                    }
                    if ours {
                        self.hold(&standing.agent, until);
                    } else {
                        news |= self.learn(standing, &mut stale);
                    }
                }
            }
        }
        if !stale.is_empty() {
            news |= self.read_rows(stale).await;
        }
        if news {
            self.flow.touch_all();
        }
        Ok(())
    }

    fn agent(&self, name: &str) -> Option<Arc<Agent>> {
        self.flow.facts.agents.named(name)
    }

    fn hold(&mut self, name: &str, until: Instant) {
        let Some(agent) = self.agent(name) else { return };
        let (until, watched) = watch::channel(until);
        if !agent.set_hold(Hold::Ours(self.id.clone(), watched)) {
            return;
        }
        self.written.remove(name);
        let flow = Arc::clone(&self.flow);
        while self.drives.try_join_next().is_some() {}
        let driven = Arc::clone(&agent);
        let drives = self.drives.spawn(async move {
            // This task ends with its lease, and the code that started it cleans up.
            let drive = async {
                let held = flow.facts.agents.driven(&driven);
                task::run(flow.context(&held), Arc::clone(&driven)).await;
            };
            guarded(drive).await;
        });
        // An agent that leaves the registry aborts this task. If an agent of the same name has
        // joined by then, only the task's end shows that here.
        agent.is_driven_by(drives.clone());
        self.held.insert(name.to_owned(), Held { until, drives, said: None });
    }

    async fn lose(&mut self, name: &str, why: &str) {
        let Some(held) = self.held.remove(name) else { return };
        held.until.send_replace(Instant::now());
        held.drives.abort();
        while !held.drives.is_finished() {
            tokio::task::yield_now().await;
        }
        if let Some(agent) = self.agent(name) {
            agent.set_hold(Hold::Theirs(Said::default()));
            agent.down(why.to_owned());
        }
        self.flow.touch_all();
    }

    async fn lose_what_is_over(&mut self) {
        let over = |held: &Held| Instant::now() >= *held.until.borrow() || held.drives.is_finished();
        let names: Vec<_> =
            self.held.iter().filter(|(_, held)| over(held)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.lose(&name, "the database cannot be reached: this controller's lease is over").await;
        }
    }

    /// Takes the state of an agent that another controller drives. Returns `true` if that was news.
    fn learn(&mut self, standing: Standing, stale: &mut Vec<String>) -> bool {
        let Some(agent) = self.agent(&standing.agent) else { return false };
        if self.written.get(&standing.agent) != Some(&standing.written) {
            self.written.insert(standing.agent.clone(), standing.written);
            stale.push(standing.agent);
        }
        let mut said = standing.said;
        if standing.holder.is_none() {
            said = Said { why: Some("no controller drives it at the moment".to_owned()), ..Said::default() };
        }
        agent.learn(said)
    }

    /// Takes what the holders have stored of these agents. Returns `true` if that was news.
    async fn read_rows(&mut self, names: Vec<String>) -> bool {
        let read = move |db: &Db<'_>| {
            Ok(db.agents()?.into_iter().filter(|row| names.contains(&row.name)).collect::<Vec<_>>())
        };
        match self.flow.reads.read("read what other controllers heard", read).await {
            Ok(rows) => {
                let mut news = false;
                for row in rows {
                    if let Some(agent) = self.agent(&row.name).filter(|agent| !agent.hold().is_ours()) {
                        news |= agent.take_row(row);
                    }
                }
                news
            }
            Err(refusal) => {
                tracing::warn!(error = %refusal, "cannot read what other controllers heard");
                self.written.clear();
                false
            }
        }
    }

    /// Publishes the state of the agents that this controller drives.
    async fn say(&mut self, members: &Members) -> Result<(), SqlError> {
        let mut news = false;
        for (name, held) in &mut self.held {
            let Some(agent) = self.flow.facts.agents.named(name) else { continue };
            let said = agent.says();
            if held.said.as_ref() != Some(&said) {
                members.say(&self.id, name, &said).await?;
                held.said = Some(said);
                news = true;
            }
        }
        if news && !self.flow.notes.is_alone() {
            members.announce(&[format!("s {}", self.id)]).await?;
        }
        Ok(())
    }

    /// Sends the notes that have gathered, each once.
    async fn tell(
        &mut self,
        members: &Members,
        first: Out,
        inbox: &mut mpsc::UnboundedReceiver<Out>,
    ) -> Result<(), SqlError> {
        let mut volumes: BTreeMap<VolumeId, bool> = BTreeMap::new();
        let (mut said, mut enrolled) = (false, false);
        let mut next = Some(first);
        while let Some(out) = next {
            match out {
                Out::Spec(volume) => drop(volumes.insert(volume, true)),
                Out::Touch(volume) => drop(volumes.entry(volume).or_default()),
                Out::Said => said = true,
                Out::Enrolled => enrolled = true,
            }
            next = inbox.try_recv().ok();
        }
        if said {
            self.say(members).await?;
        }
        if enrolled {
            members.announce(&[format!("e {}", self.id)]).await?;
        }
        let id = &self.id;
        let note =
            |(volume, wants): (&VolumeId, &bool)| format!("{} {id} {volume}", if *wants { "w" } else { "t" });
        let notes: Vec<_> = volumes.iter().map(note).collect();
        if notes.is_empty() { Ok(()) } else { members.announce(&notes).await }
    }

    /// Acts on a note of another controller.
    async fn take(&mut self, members: &mut Members, note: &str) -> Result<(), SqlError> {
        let mut words = note.split(' ');
        let (kind, from) = (words.next(), words.next());
        if from == Some(self.id.as_str()) {
            return Ok(());
        }
        let volume = words.next().and_then(|text| text.parse().ok());
        match (kind, volume) {
            (Some("w"), Some(volume)) => {
                self.flow.touch_here(volume);
                let flow = Arc::clone(&self.flow);
                self.flow.tasks.spawn(async move { flow.kick_held(volume).await });
            }
            (Some("t"), Some(volume)) => {
                self.flow.touch_here(volume);
            }
            (Some("s"), _) => self.stand(members).await?,
            (Some("e"), _) => {
                self.refresh_enrolments().await;
                self.turn(members).await?;
            }
            (Some("l"), _) => self.turn(members).await?,
            // A note of a newer controller.
            _ => {}
        }
        Ok(())
    }

    async fn refresh_enrolments(&self) {
        if let Err(refusal) = self.flow.refresh_enrolments().await {
            tracing::warn!(error = %refusal, "cannot read who has joined");
        }
    }

    /// Makes up for lost notes: looks at all work under way, sends unsent specs, and wakes
    /// everybody who waits.
    async fn poll(&mut self) {
        self.polled = Instant::now();
        self.refresh_enrolments().await;
        let read = |db: &Db<'_>| Ok((db.volumes_in_motion()?, waits::announced(db)?));
        match self.flow.reads.read("list what is on its way", read).await {
            Ok((moving, announced)) => {
                // The controller that announced something may be gone: every controller that sees
                // it arms its end.
                self.flow.arm_all(announced);
                for volume in moving {
                    self.flow.kick_held(volume).await;
                }
            }
            Err(refusal) => tracing::warn!(error = %refusal, "cannot list what is on its way"),
        }
        match self.flow.kick_unsent(self.compared).await {
            Ok(next) => self.compared = next,
            Err(refusal) => {
                tracing::warn!(error = %refusal, "cannot compare specs with what was sent");
            }
        }
        let flow = Arc::clone(&self.flow);
        self.flow.tasks.spawn(async move { flow.go_on_forgetting().await });
        self.flow.touch_all();
    }
}

/// Returns the number of agents that each controller should drive.
fn fair_share(agents: usize, controllers: usize) -> usize {
    agents.div_ceil(controllers.max(1))
}

/// Returns the agents that another controller should drive: those over this one's share that
/// another one enrols which has less than its own share.
fn spare<'a>(id: &str, held: impl Iterator<Item = &'a String>, fair: usize, alive: &[Member]) -> Vec<String> {
    let mut held: Vec<_> = held.collect();
    held.sort_unstable();
    let mut over = held.len().saturating_sub(fair).min(RELEASED_MAX);
    let mut given = BTreeSet::new();
    for other in alive.iter().filter(|member| member.id != id) {
        let share = other.enrols.len() / alive.len().max(1);
        let holds = usize::try_from(other.holds).unwrap_or(usize::MAX);
        let mut wants = share.saturating_sub(holds).min(over);
        for agent in held.iter().rev() {
            if wants == 0 {
                break;
            }
            if other.enrols.contains(agent) && given.insert((*agent).clone()) {
                wants -= 1;
                over -= 1;
            }
        }
    }
    given.into_iter().collect()
}

impl Flow {
    /// Asks the agents of a volume that other controllers drive for their present state. Without an
    /// answer, nothing is known of it here any more.
    pub(crate) async fn ask(&self, volume: VolumeId) {
        if !self.reads.is_shared() {
            return;
        }
        let read = move |db: &Db<'_>| {
            Ok((db.volume(volume)?.map(|volume| volume.agent), db.connections_of(volume)?))
        };
        let Ok((storage, hosts)) = self.reads.read("read a volume", read).await else { return };
        let theirs = |id| {
            let agent = self.facts.agents.by_id(id)?;
            (!agent.hold().is_ours()).then_some(agent)
        };
        let mut asked = JoinSet::new();
        if let Some(agent) = storage.and_then(theirs) {
            asked.spawn(async move { agent.ask_volume(volume).await });
        }
        for agent in hosts.into_iter().filter_map(theirs) {
            asked.spawn(async move { agent.ask_connection(volume).await });
        }
        asked.join_all().await;
    }

    /// Kicks the jobs of a volume whose agents this controller drives.
    pub(crate) async fn kick_held(self: &Arc<Self>, volume: VolumeId) {
        let read = move |db: &Db<'_>| {
            // Access may be taken away at an agent that this database does not know to serve the
            // volume.
            let mut storage: BTreeSet<_> = db.takings_of(volume)?.iter().map(|taking| taking.agent).collect();
            storage.extend(db.storage_of(volume)?);
            Ok((storage, db.connections_of(volume)?))
        };
        let Ok((storage, hosts)) = self.reads.read("read a volume", read).await else { return };
        let ours = |id| self.facts.agents.by_id(id).is_some_and(|agent| agent.hold().is_ours());
        if storage.into_iter().any(ours) {
            self.kick(Job::Storage(volume));
        }
        for host in hosts.into_iter().filter(|host| ours(*host)) {
            self.kick(Job::Host(volume, host));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, enrols: &[&str], holds: i64) -> Member {
        Member { id: id.to_owned(), enrols: enrols.iter().map(|name| (*name).to_owned()).collect(), holds }
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn leases_are_shared_evenly() {
        assert_eq!(
            [fair_share(5, 1), fair_share(5, 2), fair_share(4, 3), fair_share(0, 2), fair_share(3, 0)],
            [5, 3, 2, 0, 3]
        );
        let all = ["a", "b", "c", "d"];
        let held = names(&all);
        // Another controller has joined: it gets what is over.
        let alive = [member("1", &all, 4), member("2", &all, 0)];
        assert_eq!(spare("1", held.iter(), 2, &alive), ["c", "d"]);
        // The other one enrols only one agent: its share is less than one, and nothing moves.
        assert_eq!(spare("1", held.iter(), 2, &[member("1", &all, 4), member("2", &["d"], 0)]), [""; 0]);
        // The other one has its share.
        assert_eq!(spare("1", held.iter(), 2, &[member("1", &all, 4), member("2", &all, 2)]), [""; 0]);
        // This controller is alone.
        assert_eq!(spare("1", held.iter(), 4, &[member("1", &all, 4)]), [""; 0]);
    }
}

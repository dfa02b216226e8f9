//! Keeps in the store when each agent was last heard: for other controllers, and for the time after
//! a restart.
//!
//! What must never happen here: a write for each message of an agent.

use std::sync::Arc;
use std::time::Duration;

use super::{Agent, Agents};
use crate::store::{Db, Heard, Store};

/// Time between two writes, each for all agents together.
const EVERY: Duration = Duration::from_secs(10);

fn heard(agent: &Agent) -> Option<Heard> {
    let state = agent.state();
    let at = state.last_report.filter(|_| state.channel.is_some())?;
    Some(Heard { name: agent.entry.name.clone(), at, asked_at: state.asked_at })
}

/// Keeps these times again and again, for ever.
pub(crate) async fn run(store: Store, agents: Arc<Agents>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let heard: Vec<_> = agents.all().iter().filter_map(|agent| heard(agent)).collect();
        if heard.is_empty() {
            continue;
        }
        let write = move |db: &Db<'_>| Ok(heard.iter().try_for_each(|heard| db.keep_heard(heard))?);
        if let Err(refusal) = store.write("keep when agents were heard", write).await {
            tracing::warn!(error = %refusal, "cannot keep when agents were heard");
        }
    }
}

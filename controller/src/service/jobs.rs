//! Long work, as the storage agents report it now. None of it is stored: a job is what an agent
//! does at this moment.
//!
//! What must never happen here: "no jobs" for an agent that has not answered.

use std::sync::Arc;
use std::time::Duration;

use mooring_api::{job_from_wire, v1};
use mooring_model::{AgentId, ByteSize, Cure, JobReport, VolumeId};
use tokio::task::JoinSet;

use super::{Refusal, Service, TEXT_CHARS_MAX};
use crate::agents::Agent;
use crate::agents::calls::CallError;
use crate::domain::{Caller, HostJobs, Job, Jobs};
use crate::policy::Target;
use crate::store::Db;

/// Policy for listing the jobs of all projects, and for limiting them.
const JOBS: &str = "mooring:jobs";

/// Time limit for an agent's answer. The agent answers from memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

fn of_host(host: String, limit_bytes: u64) -> HostJobs {
    HostJobs { host, limit: Some(ByteSize(limit_bytes)).filter(|limit| limit.0 > 0), problem: None }
}

/// The jobs that an agent reports, whichever controller drives it. The limit covers a dial that
/// hangs, too.
async fn say(agent: &Agent, volume_id: String) -> Result<v1::ListJobsResponse, String> {
    let answer = agent.list_jobs(volume_id, ANSWER_WITHIN);
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{}: no answer within {} s", agent.entry.name, ANSWER_WITHIN.as_secs())),
    }
}

/// An agent's answer, with its place among all agents.
async fn ask(place: usize, agent: Arc<Agent>) -> (usize, HostJobs, Vec<Job>) {
    let host = agent.entry.name.clone();
    let unknown = |why| HostJobs { host: host.clone(), limit: None, problem: Some(why) };
    if !agent.is_up() {
        return (place, unknown(agent.why_down()), Vec::new());
    }
    match say(&agent, String::new()).await {
        Err(why) => (place, unknown(why), Vec::new()),
        Ok(answer) => {
            let seen = answer.jobs.iter().filter_map(job_from_wire);
            let jobs = seen.map(|seen| Job { seen, volume_name: None, host: Some(host.clone()) }).collect();
            (place, of_host(host, answer.limit_bytes), jobs)
        }
    }
}

impl Service {
    /// The long work of all storage agents, sorted by volume. An agent that does not answer is
    /// listed with the reason.
    pub async fn jobs(&self, caller: &Caller) -> Result<Jobs, Refusal> {
        self.facts.policies().check(JOBS, caller, &Target::default())?;
        let mut asked = JoinSet::new();
        let all = self.facts.agents.all();
        let storage = all.iter().filter(|agent| agent.is_storage());
        for (place, agent) in storage.enumerate() {
            asked.spawn(ask(place, Arc::clone(agent)));
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(place, ..)| *place);
        let mut all = Jobs::default();
        for (_, host, jobs) in answers {
            all.hosts.push(host);
            all.jobs.extend(jobs);
        }
        all.jobs.sort_by_key(|job| job.seen.volume);
        let read = move |db: &Db<'_>| {
            for job in &mut all.jobs {
                job.volume_name = db.volume(job.seen.volume)?.and_then(|volume| volume.name);
            }
            Ok(all.clone())
        };
        self.store.read("read the names of volumes", read).await
    }

    /// The long work at one volume, as its agent reports now. `None`: there is none, or the agent
    /// did not answer.
    pub(super) async fn job_of(&self, agent: AgentId, id: VolumeId) -> Option<(JobReport, String)> {
        let agent = self.facts.agents.up(agent).ok()?;
        let answer = agent.list_jobs(id.to_string(), ANSWER_WITHIN).await;
        let answer =
            answer.inspect_err(|error| tracing::debug!(volume = %id, %error, "cannot ask for a job"));
        let seen = answer.ok()?.jobs.iter().filter_map(job_from_wire).find(|job| job.volume == id)?;
        Some((seen, agent.entry.name.clone()))
    }

    /// Limits how much all jobs of a storage agent together may write per second, until the agent
    /// restarts. `None`: no limit.
    pub async fn limit_jobs(
        &self,
        caller: &Caller,
        host: &str,
        limit: Option<ByteSize>,
    ) -> Result<HostJobs, Refusal> {
        self.facts.policies().check(JOBS, caller, &Target::default())?;
        let what = || host.chars().take(TEXT_CHARS_MAX).collect();
        let agent = self.facts.agents.by_name(host);
        let agent = agent.ok_or_else(|| Refusal::NotFound { kind: "Host", what: what() })?;
        if !agent.is_up() {
            return Err(Refusal::Unavailable(agent.why_down()));
        }
        let limit_bytes = limit.map_or(0, |limit| limit.0);
        let set = v1::SetJobLimitRequest { sender: Some(self.flow.sender()), limit_bytes };
        match agent.set_job_limit(set, ANSWER_WITHIN).await {
            Ok(_) => Ok(of_host(agent.entry.name.clone(), limit_bytes)),
            Err(CallError::Refused { text, cure: Cure::FixSpec, .. }) => Err(Refusal::Invalid(text)),
            Err(error) => Err(Refusal::Unavailable(error.to_string())),
        }
    }
}

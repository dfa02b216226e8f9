//! `mooring job`: long work of storage nodes. The controller asks all of them, `--agent` asks one.
//!
//! What must never happen here: "no jobs" of a storage node that has not answered.

use std::fmt::{self, Display, Formatter};

use mooring_api::{job_from_wire, v1};
use mooring_model::ByteSize;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{JobShowArgs, JobThrottleArgs};
use crate::controller::Client;
use crate::controller::client::Call;
use crate::error::Failure;
use crate::output::Reply;
use crate::select::{find, name_of};
use crate::session::Session;
use crate::table::{NONE, facts, or_none, size, table};
use crate::text::{one_line, time};

/// `job list`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Jobs {
    pub jobs: Vec<Job>,
    pub hosts: Vec<Host>,
}

/// One job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub volume_id: String,
    pub volume_name: Option<String>,
    /// The storage node; `null` in an agent's own answer.
    pub storage_host: Option<String>,
    /// `zero`, `grow`, `wipe`, `discard`, `import`, `export`.
    pub kind: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// Progress with two digits after the point, rounded down.
    pub percent: f64,
    /// `null`: not known yet.
    pub bytes_per_second: Option<u64>,
    pub seconds_left: Option<u64>,
    /// Bytes done before the agent was started.
    pub resumed_bytes: u64,
    /// `true`: a limit slows it.
    pub limited: bool,
    pub since: Option<String>,
}

/// The limit on a storage node's jobs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The storage node; `null` in an agent's own answer.
    pub name: Option<String>,
    /// `null`: no limit, or unknown.
    pub bytes_per_second: Option<u64>,
    /// The reason why nothing is known of it.
    pub problem: Option<String>,
}

/// `job show`.
#[derive(Debug, Serialize)]
pub(crate) struct JobShown {
    pub job: Job,
}

/// `job throttle`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Throttled {
    pub host: Host,
}

/// `job list` of the controller.
pub(crate) async fn of_controller(client: &Client) -> Result<Reply<Jobs>, Failure> {
    Ok(Reply::ok(client.read(Call::get("the list of jobs", &["mooring", "v1", "jobs"])).await?))
}

#[derive(Deserialize)]
struct OneState {
    volume: State,
}

#[derive(Deserialize)]
struct State {
    job: Option<Job>,
}

/// `job show` of the controller.
pub(crate) async fn show_of_controller(
    client: &Client,
    args: &JobShowArgs,
) -> Result<Reply<JobShown>, Failure> {
    let id = crate::controller::volume::find(client, &args.volume).await?.id;
    let state: OneState = client.read(Call::get("the volume", &["mooring", "v1", "volumes", &id])).await?;
    shown(state.volume.job, &id)
}

fn shown(job: Option<Job>, id: &str) -> Result<Reply<JobShown>, Failure> {
    let none = || Failure::NotFound(format!("no job is at work at volume {id}"));
    Ok(Reply::ok(JobShown { job: job.ok_or_else(none)? }))
}

/// `job throttle` of the controller.
pub(crate) async fn throttle_of_controller(
    client: &Client,
    args: &JobThrottleArgs,
) -> Result<Reply<Throttled>, Failure> {
    let Some(host) = &args.host else {
        return Err(Failure::Usage("whose jobs? say --host, or --agent for one agent".to_owned()));
    };
    let body = json!({ "bytes_per_second": args.limit.0.map(|limit| limit.0) });
    let path = ["mooring", "v1", "hosts", host, "job-limit"];
    Ok(Reply::ok(client.read(Call::put("the limit of jobs", &path, body)).await?))
}

/// Decodes an agent's job; `None` for a kind that this program does not know.
fn of_wire(job: &v1::Job, volume_name: Option<String>) -> Option<Job> {
    let seen = job_from_wire(job)?;
    Some(Job {
        volume_id: seen.volume.to_string(),
        volume_name,
        storage_host: None,
        kind: seen.kind.to_string(),
        done_bytes: seen.done.0,
        total_bytes: seen.total.0,
        percent: f64::from(seen.parts()) / 100.0,
        bytes_per_second: seen.rate.map(|rate| rate.0),
        seconds_left: seen.seconds_left(),
        resumed_bytes: seen.resumed.0,
        limited: seen.limited,
        since: time(job.since_us),
    })
}

/// `job list` of one agent.
pub(crate) async fn of_agent(session: &Session) -> Result<Reply<Jobs>, Failure> {
    let answer = session.jobs(String::new()).await?;
    let mut jobs = Vec::new();
    for job in &answer.jobs {
        let Some(id) = job.volume_id.parse().ok() else { continue };
        // A volume that is gone meanwhile has no name any more.
        let name = session.get(id).await.ok().and_then(|status| name_of(&status.volume_opaque));
        jobs.extend(of_wire(job, name));
    }
    Ok(Reply::ok(Jobs { jobs, hosts: vec![Host::of_agent(answer.limit_bytes)] }))
}

/// `job show` of one agent.
pub(crate) async fn show_of_agent(session: &Session, args: &JobShowArgs) -> Result<Reply<JobShown>, Failure> {
    let (id, status) = find(session, &args.volume).await?;
    let answer = session.jobs(id.to_string()).await?;
    let job = answer.jobs.first().and_then(|job| of_wire(job, name_of(&status.volume_opaque)));
    shown(job, &id.to_string())
}

/// `job throttle` of one agent.
pub(crate) async fn throttle_of_agent(
    session: &Session,
    args: &JobThrottleArgs,
) -> Result<Reply<Throttled>, Failure> {
    if args.host.is_some() {
        return Err(Failure::Usage("one agent has jobs of its own only: leave --host away".to_owned()));
    }
    let limit = args.limit.0.map_or(0, |limit| limit.0);
    session.set_job_limit(limit).await?;
    Ok(Reply::ok(Throttled { host: Host::of_agent(limit) }))
}

impl Host {
    fn of_agent(limit: u64) -> Self {
        Self { name: None, bytes_per_second: Some(limit).filter(|limit| *limit > 0), problem: None }
    }

    fn limit(&self) -> String {
        match (&self.problem, self.bytes_per_second) {
            (Some(_), _) => "unknown".to_owned(),
            (None, Some(limit)) => per_second(limit),
            (None, None) => "none".to_owned(),
        }
    }
}

fn per_second(bytes: u64) -> String {
    format!("{}/s", ByteSize(bytes))
}

/// Seconds in readable form.
fn left(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{}:{:02} h", seconds / 3_600, seconds % 3_600 / 60),
    }
}

impl Job {
    fn rate(&self) -> String {
        let rate = self.bytes_per_second.map_or_else(|| NONE.to_owned(), per_second);
        if self.limited { format!("{rate} (limited)") } else { rate }
    }

    fn left(&self) -> String {
        self.seconds_left.map_or_else(|| NONE.to_owned(), left)
    }
}

impl Display for Jobs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.jobs.is_empty() {
            f.write_str("no jobs")?;
        } else {
            let row = |job: &Job| {
                [
                    job.volume_name.clone().unwrap_or_else(|| job.volume_id.clone()),
                    or_none(job.storage_host.as_deref()),
                    job.kind.clone(),
                    format!("{:.2} %", job.percent),
                    size(job.done_bytes),
                    size(job.total_bytes),
                    job.rate(),
                    job.left(),
                    size(job.resumed_bytes),
                    or_none(job.since.as_deref()),
                ]
            };
            let heads =
                ["VOLUME", "STORAGE", "KIND", "DONE", "BYTES", "OF", "RATE", "LEFT", "RESUMED", "SINCE"];
            f.write_str(&table(heads, self.jobs.iter().map(row)))?;
        }
        let row =
            |host: &Host| [or_none(host.name.as_deref()), host.limit(), or_none(host.problem.as_deref())];
        let said = |host: &&Host| host.bytes_per_second.is_some() || host.problem.is_some();
        if self.hosts.iter().any(|host| said(&host)) {
            let rows = self.hosts.iter().filter(said).map(row);
            write!(f, "\n\n{}", table(["STORAGE", "LIMIT", "PROBLEM"], rows))?;
        }
        Ok(())
    }
}

impl Display for JobShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let job = &self.job;
        f.write_str(&facts([
            ("VOLUME", crate::table::named(job.volume_name.as_deref(), &job.volume_id)),
            ("STORAGE", or_none(job.storage_host.as_deref())),
            ("KIND", job.kind.clone()),
            ("DONE", format!("{:.2} %: {} of {}", job.percent, size(job.done_bytes), size(job.total_bytes))),
            ("RATE", job.rate()),
            ("LEFT", job.left()),
            ("RESUMED", size(job.resumed_bytes)),
            ("SINCE", or_none(job.since.as_deref())),
        ]))
    }
}

impl Display for Throttled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let host = one_line(self.host.name.as_deref().unwrap_or("the agent"));
        write!(f, "limit of all jobs of {host}: {}", self.host.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_in_words() {
        assert_eq!(
            [0, 59, 61, 3_599, 3_600, 90_061].map(left),
            ["0 s", "59 s", "2 min", "60 min", "1:00 h", "25:01 h"]
        );
    }

    #[test]
    fn a_host_that_says_nothing_has_no_limit_of_none() {
        let jobs = Jobs {
            jobs: Vec::new(),
            hosts: vec![
                Host::of_agent(0),
                Host {
                    name: Some("s2".to_owned()),
                    bytes_per_second: None,
                    problem: Some("down".to_owned()),
                },
            ],
        };
        let text = jobs.to_string();
        assert!(
            text.starts_with("no jobs\n\n") && text.contains("unknown") && text.contains("down"),
            "{text}"
        );
        assert!(!text.contains("none"), "{text}");
    }
}

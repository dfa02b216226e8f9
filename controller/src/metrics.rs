//! The controller's metrics, in Prometheus' words. docs/operations/metrics.md explains each of
//! them.
//!
//! The database is counted at most every [`COUNTED_FOR`], and for at most a twentieth of the time.
//! This bounds the cost, however often metrics are requested and however many volumes there are.
//! The labels are agents' names, and words that this program knows; no volume has a series of its
//! own.
//!
//! What must never happen here: a label that a client chooses; an outdated count without its age.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use mooring_systemd::metrics::{self, Families, timestamp};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::agents::words::KINDS;
use crate::domain::{AttachmentStatus, VolumeStatus};
use crate::http::Route;
use crate::service::counts::{AgentCounts, Counts};
use crate::service::{Refusal, Service};
use crate::store::ReviewKind;

/// The prefix of all names.
const PREFIX: &str = "mooring_controller";

/// The shortest time between two counts of the database.
pub const COUNTED_FOR: Duration = Duration::from_secs(15);

/// The pause after a count, as a multiple of its duration.
const RESTS: u32 = 20;

/// The time for which a request waits for a count in progress. Afterwards it gets the last count.
const COUNT_WAIT: Duration = Duration::from_secs(2);

/// Buckets for the duration of answers, in seconds. An attach waits for two agents; a long poll
/// takes up to a minute.
const SECONDS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

/// The route of a request that no route took: it was refused earlier, or there is no such address.
const NO_ROUTE: &str = "none";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: String,
    status: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

/// Requests over HTTP, with their answers.
#[derive(Debug, Clone)]
struct Requests {
    answers: Family<Answered, Counter>,
    seconds: Family<Asked, Histogram, fn() -> Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { answers: Family::default(), seconds: Family::new_with_constructor(histogram) }
    }
}

/// The word for a method. Clients choose methods freely; these are known.
fn word_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

async fn measure(State(requests): State<Requests>, request: Request, next: Next) -> Response {
    let (began, method) = (Instant::now(), word_of(request.method()));
    let response = next.run(request).await;
    let route = response.extensions().get::<Route>().map_or_else(|| NO_ROUTE.to_owned(), Route::to_string);
    let status = class_of(response.status());
    requests
        .seconds
        .get_or_create(&Asked { method, route: route.clone() })
        .observe(began.elapsed().as_secs_f64());
    requests.answers.get_or_create(&Answered { method, route, status }).inc();
    response
}

/// The counts of the database.
#[derive(Debug)]
struct Counted {
    /// The count in progress, or its result.
    at_work: Option<JoinHandle<(Result<Counts, Refusal>, Duration)>>,
    /// The last successful count, with the time of its start.
    last: Option<(SystemTime, Counts)>,
    /// `true` if `last` is from the last count that was requested: it was in time and succeeded.
    answers: bool,
    /// The earliest time of the next count.
    next: Instant,
    began: SystemTime,
}

/// The metrics of one control plane.
#[derive(Debug)]
pub struct Metrics {
    service: Service,
    requests: Requests,
    counted: Mutex<Counted>,
}

impl Metrics {
    /// Metrics without any counts yet.
    pub fn new(service: Service) -> Arc<Self> {
        let counted = Counted {
            at_work: None,
            last: None,
            answers: false,
            next: Instant::now(),
            began: SystemTime::UNIX_EPOCH,
        };
        Arc::new(Self { service, requests: Requests::default(), counted: Mutex::new(counted) })
    }

    /// The API, with its requests counted.
    pub fn measured(&self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self.requests.clone(), measure))
    }

    /// Answers on these listeners until `stop` is `true`.
    pub async fn serve(self: Arc<Self>, bound: Vec<TcpListener>, stop: watch::Receiver<bool>) {
        let say = move || {
            let metrics = Arc::clone(&self);
            async move { metrics.text().await.map_err(|_| "the metrics could not be put together".to_owned()) }
        };
        metrics::serve(bound, say, stop).await;
    }

    /// The text of the present metrics.
    pub async fn text(&self) -> Result<String, fmt::Error> {
        let (counted, answers) = self.counts().await;
        let (agents, requests) = (self.service.count_agents(), self.requests.clone());
        let (audit_waiting, audit_lost) = self.service.count_audit();
        metrics::text(PREFIX, move |to| {
            to.info("build", "The controller's version", &[("version", env!("CARGO_PKG_VERSION"))])?;
            say_agents(to, &agents)?;
            to.gauge(
                "database_answers",
                "0: the last count in the database failed, or is late. 1: it came",
                None,
                Some(u64::from(answers)),
            )?;
            say_counts(to, counted.as_ref())?;
            to.gauge(
                "audit_waiting",
                "Lines of the audit log that are not in the database yet",
                None,
                Some(audit_waiting),
            )?;
            to.counter("audit_lost", "Lines of the audit log that are in the journal only", audit_lost)?;
            say_requests(to, &requests)
        })
    }

    /// The last successful count; `true` if no later one failed or is late.
    async fn counts(&self) -> (Option<(SystemTime, Counts)>, bool) {
        let mut state = self.counted.lock().await;
        if state.at_work.is_none() {
            if Instant::now() < state.next {
                return (state.last.clone(), state.answers);
            }
            let service = self.service.clone();
            state.began = SystemTime::now();
            state.at_work = Some(tokio::spawn(async move {
                let began = Instant::now();
                (service.counts().await, began.elapsed())
            }));
        }
        let Some(at_work) = &mut state.at_work else { return (None, false) };
        let Ok(ended) = tokio::time::timeout(COUNT_WAIT, at_work).await else {
            state.answers = false;
            return (state.last.clone(), false);
        };
        state.at_work = None;
        let (counts, took) = match ended {
            Ok((counts, took)) => (counts.ok(), took),
            Err(_) => (None, Duration::ZERO),
        };
        state.next = Instant::now() + COUNTED_FOR.max(took * RESTS);
        state.answers = counts.is_some();
        if let Some(counts) = counts {
            state.last = Some((state.began, counts));
        }
        (state.last.clone(), state.answers)
    }
}

fn say_agents(to: &mut Families<'_>, agents: &[AgentCounts]) -> fmt::Result {
    let number =
        |is: fn(&&AgentCounts) -> bool| u64::try_from(agents.iter().filter(is).count()).unwrap_or(u64::MAX);
    let (up, down) = (number(|agent| agent.up), number(|agent| !agent.up));
    to.gauges("agents", "Enrolled agents", None, [([("state", "up")], up), ([("state", "down")], down)])?;
    to.gauges(
        "agent_up",
        "1: the agent answers, and its reports come. 0: they do not",
        None,
        agents.iter().map(|agent| ([("agent", agent.name.as_str())], u64::from(agent.up))),
    )?;
    let heard = agents.iter().filter_map(|agent| Some((agent.name.as_str(), agent.last_report?)));
    to.gauges(
        "agent_last_report_timestamp",
        "When the last report of the agent came; none while it was never heard",
        Some(&Unit::Seconds),
        heard.map(|(name, at)| ([("agent", name)], timestamp(at))),
    )?;
    let dropped = agents.iter().flat_map(|agent| {
        let number = |kind| agent.dropped.get(kind).copied().unwrap_or_default();
        KINDS.map(|kind| ([("agent", agent.name.as_str()), ("kind", kind)], number(kind)))
    });
    to.counters(
        "agent_words_dropped",
        "What an agent said of objects that are not its own: it decides nothing. More than a few: look at that agent",
        None,
        dropped,
    )?;
    to.gauge("leases_held", "Agents that this controller drives", None, Some(number(|agent| agent.ours)))
}

/// A word of a label, with its number.
type ByWord = ([(&'static str, &'static str); 1], u64);

/// The number of each word, 0 if there was none; empty before the first count.
fn each(
    label: &'static str,
    words: impl IntoIterator<Item = &'static str>,
    counted: Option<&BTreeMap<String, u64>>,
) -> Vec<ByWord> {
    let Some(counted) = counted else { return Vec::new() };
    let number = |word| counted.get(word).copied().unwrap_or_default();
    words.into_iter().map(|word| ([(label, word)], number(word))).collect()
}

/// Returns `true` if a snapshot can have this status.
const fn of_snapshots(status: VolumeStatus) -> bool {
    use VolumeStatus::{Available, Creating, Deleting, Error, ErrorDeleting};
    matches!(status, Creating | Available | Deleting | Error | ErrorDeleting)
}

fn say_counts(to: &mut Families<'_>, counted: Option<&(SystemTime, Counts)>) -> fmt::Result {
    let counts = counted.map(|(_, counts)| counts);
    to.gauge(
        "counted_timestamp",
        "When the numbers of the database were counted",
        Some(&Unit::Seconds),
        counted.map(|(at, _)| timestamp(*at)),
    )?;
    let statuses = VolumeStatus::ALL.iter().map(|status| status.as_str());
    let volumes = each("status", statuses, counts.map(|counts| &counts.volumes));
    to.gauges("volumes", "Volumes, by status", None, volumes)?;
    let statuses = VolumeStatus::ALL.iter().filter(|status| of_snapshots(**status));
    let snapshots =
        each("status", statuses.map(|status| status.as_str()), counts.map(|counts| &counts.snapshots));
    to.gauges("snapshots", "Snapshots, by status", None, snapshots)?;
    let statuses = AttachmentStatus::ALL.iter().map(|status| status.as_str());
    let attachments = each("status", statuses, counts.map(|counts| &counts.attachments));
    to.gauges("attachments", "Attachments, by status", None, attachments)?;
    to.gauge(
        "attachments_session_missing",
        "Attachments that should be logged in and are not, at storage nodes that this controller drives",
        None,
        counts.map(|counts| counts.missing),
    )?;
    let kinds = ReviewKind::ALL.into_iter().chain([ReviewKind::Unknown]).map(ReviewKind::as_str);
    let reviews = each("kind", kinds, counts.map(|counts| &counts.reviews));
    to.gauges("reviews", "Volumes in review, by what kind it is: nothing is sent for them", None, reviews)?;
    to.gauge("fences", "Fences in force", None, counts.map(|counts| counts.fences))?;
    let receipts = each("proof", ["proven", "unproven"], counts.map(|counts| &counts.receipts));
    to.gauges("receipts", "Receipts that are kept, by what they prove", None, receipts)?;
    let detaches = each("receipt", ["none", "unproven"], counts.map(|counts| &counts.detaches));
    to.gauges(
        "detaches_waiting",
        "Detaches that wait for a proven receipt, by what there is of it",
        None,
        detaches,
    )
}

fn say_requests(to: &mut Families<'_>, requests: &Requests) -> fmt::Result {
    to.kept("http_requests", "Requests that were answered", None, &requests.answers)?;
    to.kept(
        "http_request_duration",
        "Time to the beginning of the answer, long polls and waits for agents included",
        Some(&Unit::Seconds),
        &requests.seconds,
    )
}

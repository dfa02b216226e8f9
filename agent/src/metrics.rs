//! Metrics of the agent: its knowledge in Prometheus' format. docs/operations/metrics.md explains
//! each.
//!
//! The grants bound the number of series: labels are volumes, their initiators and the volume
//! groups of this agent, and nothing that a client chooses.
//!
//! What must never happen here: a look at the kernel or a call of LVM because somebody asks; a 0
//! where nothing is known.

use std::collections::BTreeMap;
use std::fmt;

use mooring_api::v1;
use mooring_model::{ByteSize, Initiator, JobReport};
use mooring_systemd::metrics::{self, Families, timestamp};
use prometheus_client::registry::Unit;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::capabilities;
use crate::connection::Connections;
use crate::engine::Engine;
use crate::engine::counts::{Counts, ExportCounts, NexusCounts, VolumeCounts};

/// Prefix of all names.
const PREFIX: &str = "mooring_agent";

const MIB: u64 = 1 << 20;

/// Answers requests until `stop` is true.
pub async fn serve(
    engine: Engine,
    connections: Option<Connections>,
    arrived: mpsc::Receiver<TcpStream>,
    stop: watch::Receiver<bool>,
) {
    let say = move || {
        let (engine, connections) = (engine.clone(), connections.clone());
        async move {
            // Made on a thread of its own: many volumes take their time, and answers of the API do
            // not wait for it.
            let made = tokio::task::spawn_blocking(move || text(engine, connections)).await;
            let why = "the metrics could not be put together: try again; the agent's log may say more";
            made.ok().and_then(Result::ok).ok_or_else(|| why.to_owned())
        }
    };
    metrics::serve_arrived(arrived, say, stop).await;
}

/// Returns the metrics of this moment.
pub fn text(engine: Engine, connections: Option<Connections>) -> Result<String, fmt::Error> {
    metrics::text(PREFIX, move |to| {
        let counts = engine.counts();
        to.info("build", "The agent's version", &[("version", env!("CARGO_PKG_VERSION"))])?;
        say_agent(to, &counts)?;
        say_health(to, engine.health())?;
        say_volumes(to, &counts.volumes)?;
        let nexuses = nexuses(&counts.volumes);
        say_exports(to, &counts.volumes, &nexuses)?;
        say_activity(to, &nexuses)?;
        say_jobs(to, &engine.jobs(None))?;
        say_groups(to, &engine.lvm().known())?;
        say_connections(to, connections.as_ref())
    })
}

fn say_agent(to: &mut Families<'_>, counts: &Counts) -> fmt::Result {
    to.counter(
        "passes",
        "Looks at a volume with what followed from them, since the agent was started",
        counts.passes,
    )?;
    to.gauge(
        "stuck_calls",
        "Volumes with a kernel call that has not returned for 2 s",
        None,
        Some(counts.stuck),
    )?;
    to.counter("receipts_proven", "Receipts that were proven since the agent was started", counts.proven)?;
    to.gauge(
        "receipts_unproven",
        "Receipts that are not proven: commands may still land",
        None,
        Some(counts.unproven),
    )?;
    to.gauge(
        "quarantined_volumes",
        "Volumes that take no new writer, because a receipt stays unproven",
        None,
        Some(counts.quarantined),
    )?;
    to.gauge(
        "exports_watched",
        "Exports whose folders in the kernel's tree are watched: changes by somebody else are seen at once",
        None,
        Some(counts.watched),
    )?;
    to.gauge(
        "silent_volumes",
        "Volumes whose device does not answer: their portals are taken off until it does",
        None,
        Some(counts.silent),
    )?;
    to.gauge(
        "blocked_portals",
        "Portals that answer no login, to any volume, because their login thread waits for a device",
        None,
        Some(counts.blocked_portals),
    )?;
    to.gauge(
        "portal_connections",
        "TCP connections of initiators to the portals; without a value: they cannot be listed, and logins are seen later",
        None,
        counts.callers,
    )?;
    to.gauge(
        "cut_volumes",
        "Volumes that are cut off from their disk, or may be: every command of their hosts ends with an error",
        None,
        Some(counts.isolated),
    )
}

/// Writes the health of the last capabilities. They are gathered when somebody asks, and after each
/// change while somebody follows them (a controller does).
fn say_health(to: &mut Families<'_>, health: Option<v1::Health>) -> fmt::Result {
    let Some(health) = health else { return Ok(()) };
    let level = [([("level", health.level().word())], 1_u64)];
    to.gauges(
        "health",
        "Whether this host does what its configuration asks: 1 for the level that it is at",
        None,
        level,
    )?;
    let mut reasons = BTreeMap::new();
    for reason in &health.reasons {
        *reasons.entry((reason.code.as_str(), reason.level().word())).or_insert(0_u64) += 1;
    }
    let reasons =
        reasons.into_iter().map(|((code, level), count)| ([("code", code), ("level", level)], count));
    to.gauges("health_reasons", "What is wrong, by code and by how bad it is", None, reasons)
}

fn say_volumes(to: &mut Families<'_>, volumes: &[VolumeCounts]) -> fmt::Result {
    let ids: Vec<String> = volumes.iter().map(|volume| volume.id.to_string()).collect();
    let all = || ids.iter().map(String::as_str).zip(volumes);
    // A volume that does not exist has no size.
    let sizes = all().filter(|(_, volume)| volume.size.0 > 0);
    to.gauges(
        "volume_size",
        "Size of a volume, as LVM says",
        Some(&Unit::Bytes),
        sizes.map(|(id, volume)| ([("volume", id)], volume.size.0)),
    )?;
    let phases =
        all().map(|(id, volume)| ([("volume", id.to_owned()), ("phase", volume.phase.to_string())], 1_u64));
    to.gauges("volume_phase", "Where a volume stands: 1 for the phase that it is in", None, phases)?;
    let looks = all().filter_map(|(id, volume)| Some((id, volume.export.as_ref()?.looked?)));
    to.gauges(
        "volume_looked_timestamp",
        "When the sessions and counters of a volume were read last",
        Some(&Unit::Seconds),
        looks.map(|(id, at)| ([("volume", id)], timestamp(at))),
    )
}

/// A granted nexus, with its labels.
type Nexus<'a> = ([(&'static str, String); 4], &'a ExportCounts, &'a NexusCounts);

fn nexuses(volumes: &[VolumeCounts]) -> Vec<Nexus<'_>> {
    let exports = volumes.iter().filter_map(|volume| Some((volume.id, volume.export.as_ref()?)));
    let each = exports.flat_map(|(id, export)| export.nexuses.iter().map(move |nexus| (id, export, nexus)));
    let labelled = each.map(|(id, export, nexus)| {
        let transport = match nexus.initiator {
            Initiator::Iscsi(_) => "iscsi",
            Initiator::Fc(_) => "fc",
        };
        let labels = [
            ("volume", id.to_string()),
            ("initiator", nexus.initiator.to_string()),
            ("transport", transport.to_owned()),
            ("mode", nexus.mode.to_string()),
        ];
        (labels, export, nexus)
    });
    labelled.collect()
}

fn say_exports(to: &mut Families<'_>, volumes: &[VolumeCounts], all: &[Nexus<'_>]) -> fmt::Result {
    let exports = || volumes.iter().filter_map(|volume| volume.export.as_ref());
    let (in_force, waiting): (Vec<_>, Vec<_>) = exports().partition(|export| export.in_force);
    let number = |exports: Vec<_>| u64::try_from(exports.len()).unwrap_or(u64::MAX);
    to.gauges(
        "exports",
        "Exports, by whether everything that is wanted of them is seen in the kernel",
        None,
        [([("state", "in_force")], number(in_force)), ([("state", "waiting")], number(waiting))],
    )?;
    to.gauges(
        "nexus_in_force",
        "1: the kernel enforces this grant, with this mode. 0: not yet, or with another mode",
        None,
        all.iter().map(|(labels, _, nexus)| (labels.as_slice(), u64::from(nexus.in_force))),
    )
}

fn say_activity(to: &mut Families<'_>, all: &[Nexus<'_>]) -> fmt::Result {
    // An export that was not viewed since the start is unknown.
    let looked = || all.iter().filter(|(_, export, _)| export.looked.is_some());
    let each = || looked().map(|(labels, _, nexus)| (labels.as_slice(), *nexus));
    to.gauges(
        "nexus_sessions",
        "Sessions that are logged in; over Fibre Channel, target ports at which the initiator is",
        None,
        each().map(|(labels, nexus)| (labels, nexus.sessions)),
    )?;
    to.gauges(
        "nexus_commands_in_flight",
        "Commands that were taken and not answered at the last look; over Fibre Channel it is not known",
        None,
        each().filter_map(|(labels, nexus)| Some((labels, nexus.in_flight?))),
    )?;
    to.counters(
        "nexus_commands",
        "SCSI commands since the nexus was made in the kernel",
        None,
        each().map(|(labels, nexus)| (labels, nexus.counters.commands)),
    )?;
    to.counters(
        "nexus_read",
        "What was read since the nexus was made in the kernel, in whole MiB",
        Some(&Unit::Bytes),
        each().map(|(labels, nexus)| (labels, nexus.counters.read_mib.saturating_mul(MIB))),
    )?;
    to.counters(
        "nexus_written",
        "What was written since the nexus was made in the kernel, in whole MiB",
        Some(&Unit::Bytes),
        each().map(|(labels, nexus)| (labels, nexus.counters.written_mib.saturating_mul(MIB))),
    )?;
    to.gauges(
        "nexus_last_activity_timestamp",
        "When the agent saw the number of commands move last; none while it has not",
        Some(&Unit::Seconds),
        each().filter_map(|(labels, nexus)| Some((labels, timestamp(nexus.counters.active?)))),
    )
}

fn say_jobs(to: &mut Families<'_>, (jobs, limit): &(Vec<JobReport>, Option<ByteSize>)) -> fmt::Result {
    let of = |number: fn(&JobReport) -> u64| {
        jobs.iter().map(move |job| {
            ([("volume", job.volume.to_string()), ("kind", job.kind.to_string())], number(job))
        })
    };
    let bytes = Some(&Unit::Bytes);
    to.gauges("job_done", "What a job has done of its volume", bytes, of(|job| job.done.0))?;
    to.gauges("job_size", "What a job has to do in all", bytes, of(|job| job.total.0))?;
    to.gauge(
        "job_limit",
        "What all jobs together may write in a second; none without a limit",
        bytes,
        limit.map(|limit| limit.0),
    )
}

fn say_groups(to: &mut Families<'_>, known: &capabilities::Known) -> fmt::Result {
    let groups = known.pools();
    let of = |number: fn(&v1::Pool) -> u64| {
        groups.iter().map(move |group| ([("group", group.name.as_str())], number(group)))
    };
    let bytes = Some(&Unit::Bytes);
    to.gauges("group_size", "Size of a volume group", bytes, of(|group| group.total_bytes))?;
    to.gauges(
        "group_free",
        "What new volumes may take of a group, less its reserve",
        bytes,
        of(|group| group.free_bytes),
    )?;
    let reserved =
        groups.iter().filter_map(|group| Some(([("group", group.name.as_str())], group.reserved_bytes?)));
    to.gauges("group_reserved", "What no volume takes of a group, by configuration", bytes, reserved)?;
    to.gauges(
        "group_provisioned",
        "Sizes of the agent's volumes in a group, all in all",
        bytes,
        of(|group| group.provisioned_bytes),
    )?;
    to.gauges("group_volumes", "The agent's volumes in a group", None, of(|group| group.volumes.into()))?;
    to.gauge(
        "lvm_report_timestamp",
        "When the report of LVM began that the numbers of groups are from",
        Some(&Unit::Seconds),
        known.seen().map(timestamp),
    )?;
    to.gauge(
        "lvm_answers",
        "0: the last question to LVM has come to no end. 1: it answers, if only with an error",
        None,
        Some(u64::from(!known.is_silent())),
    )
}

fn say_connections(to: &mut Families<'_>, connections: Option<&Connections>) -> fmt::Result {
    let phases = connections.map(Connections::phases).unwrap_or_default();
    to.gauges(
        "connections",
        "Connections of this host to volumes, by phase; none on a host that attaches nothing",
        None,
        phases.into_iter().map(|(phase, number)| ([("phase", phase)], number)),
    )?;
    let wrong = connections.map(Connections::wrong);
    let wrong = wrong.map(|wrong| [("buffered_io", wrong.buffered), ("unshared_filesystem", wrong.unshared)]);
    to.gauges(
        "connections_misused",
        "Connections whose disk has its cache off and is used through the page cache, or by a file system for one host only",
        None,
        wrong.into_iter().flatten().map(|(problem, number)| ([("problem", problem)], number)),
    )
}

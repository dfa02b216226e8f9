//! Translation of an agent's report to the words of the Block Storage API: the capabilities of its
//! pools, as the scheduler matches them and as `get_pools` and `/capabilities/{host}` show them.
//!
//! What must never happen here: a capability that no part of Mooring has (an operation that answers
//! 501 must not be announced); a number that is newer than the report that it stands for.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use mooring_api::{reports, v1};
use mooring_model::AgentId;
use mooring_model::limit::{THIN_POOL_DATA_CLOSED, THIN_POOL_METADATA_CLOSED};
use serde_json::{Map, Value, json};

use super::pool::{Capacity, Pool, Space, gib};
use crate::domain::{HealthLevel, STORAGE_PROTOCOL, Transport, host_reports};
use crate::rules::specs::Capabilities;
use crate::rules::{cache, types};

/// The back end of every agent, between `@` and `#` of a pool's name, and the `volume_backend_name`
/// of pools that have no other.
pub const BACKEND: &str = "lvm";

const VENDOR: &str = "Mooring";

/// Settings of pools from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `volume_backend_name` of the agent's pools: types choose by it.
    pub backend_name: String,
    /// `volume_backend_name` of single pools, by their own names.
    pub pool_backend_names: BTreeMap<String, String>,
    /// The availability zone of the agent.
    pub zone: String,
    /// Percentage of a pool that volumes must not take.
    pub reserved_percentage: u8,
    /// Largest multiple of a pool's space that thin volumes may be promised.
    pub max_over_subscription_ratio: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend_name: BACKEND.to_owned(),
            pool_backend_names: BTreeMap::new(),
            zone: "nova".to_owned(),
            reserved_percentage: 0,
            max_over_subscription_ratio: 20.0,
        }
    }
}

impl Settings {
    /// Returns the `volume_backend_name` of a pool.
    pub fn backend_name_of(&self, pool: &str) -> &str {
        self.pool_backend_names.get(pool).unwrap_or(&self.backend_name)
    }
}

/// An agent with its report.
#[derive(Debug, Clone, Copy)]
pub struct Agent<'a> {
    /// Id of the agent.
    pub id: AgentId,
    /// Name of the agent in the configuration.
    pub name: &'a str,
    /// The agent's software, from its hello.
    pub software: &'a str,
    /// The agent's last report.
    pub report: &'a v1::Capabilities,
    /// The time at which that report came.
    pub reported_at: SystemTime,
    /// The time now.
    pub now: SystemTime,
    /// `true`: the agent answers.
    pub up: bool,
    /// Reason why the agent's service is disabled. `None`: it is enabled.
    pub disabled: Option<&'a str>,
    /// `true`: the agent is being emptied.
    pub drained: bool,
    /// Settings from the configuration.
    pub settings: &'a Settings,
}

/// The controller's own knowledge of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// Bytes of the volumes that are placed there.
    pub allocated: u64,
    /// Bytes of the placed volumes that are not in the report yet.
    pub promised: u64,
}

impl Agent<'_> {
    /// Returns `host@backend`.
    pub fn host(&self) -> String {
        format!("{}@{BACKEND}", self.name)
    }

    fn age(&self) -> Duration {
        self.now.duration_since(self.reported_at).unwrap_or_default()
    }

    /// Returns the transports over which its volumes can be reached now.
    fn transports(&self) -> impl Iterator<Item = Transport> {
        let ready = |of: &Transport| {
            self.report.transports.iter().any(|seen| seen.ready && seen.protocol == of.as_str())
        };
        Transport::ALL.into_iter().filter(ready)
    }

    /// Returns the protocols of its transports, each in every spelling that types may use.
    fn protocols(&self) -> Vec<&'static str> {
        self.transports().flat_map(Transport::spellings).copied().collect()
    }
}

/// Makes a pool for the scheduler, with its capabilities.
pub fn pool(agent: &Agent<'_>, reported: &v1::Pool, placed: Placed) -> Pool {
    let settings = agent.settings;
    let capacity = Capacity {
        total: Space::Bytes(reported.total_bytes),
        free: Space::Bytes(reported.free_bytes),
        allocated: placed.allocated,
        // Thick volumes have what they take. Foreign volumes of the group count, too.
        provisioned: if reported.thick {
            reported.total_bytes.saturating_sub(reported.free_bytes)
        } else {
            reported.provisioned_bytes
        },
        promised: placed.promised,
        extent: reported.extent_bytes,
        reserved_percentage: settings.reserved_percentage.min(100),
        max_over_subscription_ratio: settings.max_over_subscription_ratio,
        thin: !reported.thick,
        thick: reported.thick,
        closed: closed(reported),
    };
    Pool {
        agent: agent.id,
        host: agent.host(),
        name: reported.name.clone(),
        zone: settings.zone.clone(),
        age: Some(agent.age()),
        up: agent.up,
        disabled: agent.disabled.map(str::to_owned),
        drained: agent.drained,
        failed: failed(reported),
        multiattach: agent.report.multiattach,
        capabilities: of_pool(agent, reported, &capacity),
        capacity,
        volumes: reported.volumes.into(),
    }
}

fn of_pool(agent: &Agent<'_>, reported: &v1::Pool, capacity: &Capacity) -> Capabilities {
    let settings = agent.settings;
    let total = capacity.total.bytes().unwrap_or(0);
    let free = capacity.free.bytes().unwrap_or(0);
    let keys = [
        ("volume_backend_name", json!(settings.backend_name_of(&reported.name))),
        ("vendor_name", json!(VENDOR)),
        ("driver_version", json!(agent.software)),
        (STORAGE_PROTOCOL, json!(agent.protocols())),
        ("pool_name", json!(reported.name)),
        ("location_info", json!(format!("Mooring:{}:{}", agent.name, reported.name))),
        ("total_capacity_gb", json!(gib(total))),
        ("free_capacity_gb", json!(gib(free))),
        ("allocated_capacity_gb", json!(gib(capacity.allocated))),
        ("provisioned_capacity_gb", json!(gib(capacity.provisioned))),
        ("reserved_percentage", json!(capacity.reserved_percentage)),
        // Cinder's own reports have a text here, and its clients' schemas take it.
        ("max_over_subscription_ratio", json!(format!("{:?}", capacity.max_over_subscription_ratio))),
        ("thin_provisioning_support", json!(capacity.thin)),
        ("thick_provisioning_support", json!(capacity.thick)),
        ("total_volumes", json!(reported.volumes)),
        ("multiattach", json!(agent.report.multiattach)),
        ("QoS_support", json!(false)),
        ("consistencygroup_support", json!(false)),
        ("consistent_group_snapshot_enabled", json!(false)),
        ("sparse_copy_volume", json!(false)),
        // An agent of an earlier release can do it, and does not report it.
        ("online_extend_support", json!(reported.online_extend.unwrap_or(true))),
        ("filter_function", Value::Null),
        ("goodness_function", Value::Null),
        ("backend_state", json!(if agent.up && failed(reported).is_none() { "up" } else { "down" })),
        ("timestamp", json!(naive_utc(agent.reported_at))),
        ("mooring_report_age_seconds", json!(agent.age().as_secs())),
    ];
    keys.into_iter()
        .chain(own_keys(agent, reported, capacity))
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Returns the reason why a pool has failed, by its agent's report. `None`: it has not, or the
/// agent is of an earlier release and does not report it.
fn failed(reported: &v1::Pool) -> Option<String> {
    let health = host_reports::health(reported.health.as_ref())?;
    let is_failed = |level| level == HealthLevel::Failed;
    let reasons = health.reasons.iter().filter(|reason| is_failed(reason.level));
    let codes: Vec<_> = reasons.map(|reason| reason.code.as_str()).collect();
    is_failed(health.level).then(|| codes.join(", "))
}

/// Returns the reason why a pool takes nothing new, by its agent's report: its agent would refuse
/// each request. `None`: it takes them, or the agent is of an earlier release and does not report
/// how full the pool is.
pub(crate) fn closed(reported: &v1::Pool) -> Option<String> {
    let levels = [
        ("data", reported.data_used, THIN_POOL_DATA_CLOSED),
        ("metadata", reported.metadata_used, THIN_POOL_METADATA_CLOSED),
    ];
    let (what, used, closed) = levels
        .into_iter()
        .find_map(|(what, used, closed)| Some((what, used.filter(|used| *used >= closed)?, closed)))?;
    Some(format!(
        "{} % of its {what} are taken, and it takes nothing new from {} % on",
        used / 100,
        closed / 100
    ))
}

/// Returns the capabilities that Cinder has no word for. A fact that the agent does not report has
/// no key: no type's demand is met by a guess.
fn own_keys(
    agent: &Agent<'_>,
    reported: &v1::Pool,
    capacity: &Capacity,
) -> impl Iterator<Item = (&'static str, Value)> {
    let report = agent.report;
    let level = reported.health.as_ref().and_then(|health| host_reports::health_level(health.level()));
    let modes: Vec<_> =
        report.access_modes().filter_map(reports::mode).map(|mode| mode.to_string()).collect();
    let total = capacity.total.bytes().unwrap_or(0);
    let keys = [
        ("mooring_snapshots", reported.snapshots.map(Value::from)),
        ("mooring_discard", reported.discard.map(Value::from)),
        ("mooring_wipe", reported.wipe().word().map(Value::from)),
        ("mooring_reserved_gb", reported.reserved_bytes.map(|bytes| json!(gib(bytes)))),
        // The present multiple of the pool's space that is promised; its limit is
        // `max_over_subscription_ratio`.
        (
            "mooring_over_subscription_ratio",
            (capacity.thin && total > 0).then(|| json!(ratio(capacity.provisioned, total))),
        ),
        ("mooring_persistent_reservations", report.persistent_reservations.map(Value::from)),
        ("mooring_persistent_reservations_kept", report.persistent_reservations_kept.map(Value::from)),
        ("mooring_read_only_sealed", report.read_only_sealed.map(Value::from)),
        ("mooring_initiators_per_volume_max", report.initiators_per_volume_max.map(Value::from)),
        ("mooring_access_modes", (!modes.is_empty()).then(|| json!(modes))),
        (
            "mooring_kernel_release",
            Some(&report.kernel_release).filter(|it| !it.is_empty()).map(|it| json!(it)),
        ),
        ("mooring_health", level.map(|level| json!(level.as_str()))),
    ];
    keys.into_iter().filter_map(|(key, value)| Some((key, value?)))
}

/// Divides, with two decimals, rounded down.
#[allow(clippy::cast_precision_loss, reason = "two decimals are wanted")]
fn ratio(part: u64, whole: u64) -> f64 {
    (part as f64 / whole as f64 * 100.0).floor() / 100.0
}

/// Formats a time as naive UTC in ISO form, as the API writes times.
fn naive_utc(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S.%6f").to_string()
}

/// Returns capabilities as `get_pools` shows them: with only the first of a protocol's spellings.
pub fn shown(capabilities: &Capabilities) -> Map<String, Value> {
    let mut shown = capabilities.clone();
    if let Some(protocol) = shown.get_mut(STORAGE_PROTOCOL)
        && let Some(names) = protocol.as_array()
    {
        let has = |one: &Transport| names.iter().any(|name| name == one.spellings()[0]);
        *protocol = said(Transport::ALL.into_iter().filter(has));
    }
    shown
}

/// Returns protocols in the words of the API: one is a text, as with every back end that has one;
/// several are a list.
fn said(transports: impl Iterator<Item = Transport>) -> Value {
    let mut names: Vec<_> = transports.map(|one| json!(one.spellings()[0])).collect();
    if names.len() > 1 { Value::Array(names) } else { names.pop().unwrap_or(Value::Null) }
}

/// Returns `true` if a capability matches a filter of `get_pools`: the text is read as the
/// capability's kind.
pub fn equals(capability: &Value, wanted: &str) -> bool {
    match capability {
        Value::Bool(yes) => types::boolean(wanted) == Some(*yes),
        Value::Number(number) => {
            let wanted = wanted.trim().parse::<f64>().ok();
            number.as_f64().zip(wanted).is_some_and(|(have, want)| (have - want).abs() < f64::EPSILON)
        }
        Value::String(text) => text == wanted,
        Value::Array(list) => list.iter().any(|one| equals(one, wanted)),
        Value::Null | Value::Object(_) => false,
    }
}

/// Returns the answer of `/capabilities/{host}`. Its keys are the API's own: the schemas of clients
/// allow no others. `get_pools` has the report's age.
pub fn of_host(agent: &Agent<'_>) -> Value {
    let property = |title: &str, description: &str| json!({ "title": title, "description": description, "type": "boolean" });
    json!({
        "namespace": format!("OS::Storage::Capabilities::{}", agent.host()),
        "vendor_name": VENDOR,
        "volume_backend_name": agent.settings.backend_name,
        "pool_name": Value::Null,
        "driver_version": agent.software,
        "storage_protocol": said(agent.transports()),
        "display_name": Value::Null,
        "description": Value::Null,
        "visibility": Value::Null,
        "replication_targets": [],
        "properties": {
            "multiattach": property("Shared by hosts", "Volumes of the type may be attached any number of times: <is> True."),
            types::MIXED_MODES: property(
                "Read-only beside read-write on one host",
                "Attachments of one host share one access, and it is read-write if any of them is. <is> False refuses \
                 the mix instead.",
            ),
            cache::CACHE: json!({
                "title": "Page cache of attached disks",
                "description": "off: hosts that attach natively drop it whenever a path is handed out or taken away, and never \
                                read ahead. Unless it is said: off for types with multiattach, on for others.",
                "type": "string",
                "enum": ["on", "off"],
            }),
            "thin_provisioning": property("Thin provisioning", "Volumes take space as they are written."),
            "mooring_snapshots": property("Snapshots", "Snapshots can be taken of volumes there: <is> True."),
            "mooring_discard": property("Discards", "Discards of hosts reach what lies below: <is> True."),
            "mooring_persistent_reservations": property(
                "SCSI-3 persistent reservations",
                "Hosts can reserve volumes among each other: <is> True.",
            ),
            "mooring_persistent_reservations_kept": property(
                "Reservations that outlive a loss of power",
                "What hosts have registered is there again after the storage node has lost its power: <is> True.",
            ),
            "mooring_read_only_sealed": property(
                "Read-only whatever a host claims",
                "A host that may only read changes nothing, whatever it claims of its commands; hosts are without WRITE \
                 SAME, COMPARE AND WRITE, EXTENDED COPY and immediate data for that: <is> True.",
            ),
        },
    })
}

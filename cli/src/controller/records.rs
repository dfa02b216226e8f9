//! The controller's objects, decoded as far as this program needs them. Unknown fields are ignored.
//!
//! What must never happen here: an answer refused because of a field that a newer controller adds.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::output::Cut;

/// An object of Mooring's own API: decoded for us, and passed on to programs exactly as received.
#[derive(Debug, Clone)]
pub(crate) struct Kept<T> {
    read: T,
    raw: Value,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Value::deserialize(deserializer)?;
        Ok(Self { read: T::deserialize(&raw).map_err(D::Error::custom)?, raw })
    }
}

impl<T> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.read
    }
}

/// An attachment as both agents report it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Live {
    pub id: String,
    pub volume_id: String,
    #[serde(default)]
    pub volume_name: Option<String>,
    /// The host's name; `null` while an attachment is only reserved.
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub mode: Option<String>,
    /// The mode that the target enforces for the host. `null`: nothing is granted, or, if `session`
    /// is `null`, too, it is unknown.
    #[serde(default)]
    pub effective_mode: Option<String>,
    /// `null`: a controller of an earlier release, which knows no flag.
    #[serde(default)]
    pub cache: Option<String>,
    /// `null`: its host logs in by itself, has no verified disk, or does not say.
    #[serde(default)]
    pub cache_in_force: Option<String>,
    /// Party that a rotation of the secrets waits for; `None`: none is in progress.
    #[serde(default)]
    pub secret_rotation: Option<String>,
    /// Time of the last rotation.
    #[serde(default)]
    pub secret_rotated_at: Option<String>,
    pub status: String,
    /// `true`: one of our agents attaches it.
    #[serde(default)]
    pub native: bool,
    #[serde(default)]
    pub initiator: Option<String>,
    /// `null`: the storage agent has not reported.
    #[serde(default)]
    pub session: Option<bool>,
    /// `true`: it should be logged in and is not.
    #[serde(default)]
    pub session_missing: bool,
    #[serde(default)]
    pub session_addresses: Vec<String>,
    /// Sessions of the attachment; only for users who may see addresses.
    #[serde(default)]
    pub sessions: Vec<SessionRecord>,
    /// Unlisted sessions of its volume, of any initiator; `null`: unknown.
    #[serde(default)]
    pub unlisted_sessions: Option<u32>,
    #[serde(default)]
    pub storage_host: Option<String>,
    /// `null`: nothing is granted, or it is unknown.
    #[serde(default)]
    pub counters: Option<CountersRecord>,
    #[serde(default)]
    pub last_activity: Option<String>,
    #[serde(default)]
    pub looked_at: Option<String>,
    #[serde(default)]
    pub host_phase: Option<String>,
    #[serde(default)]
    pub device_path: Option<String>,
    #[serde(default)]
    pub disk: Option<String>,
    #[serde(default)]
    pub problems: Vec<String>,
    #[serde(default)]
    pub steps_ms: BTreeMap<String, u64>,
    #[serde(default)]
    pub fault: Option<String>,
    #[serde(default)]
    pub created_at: Option<String>,
    #[serde(default)]
    pub attached_at: Option<String>,
    pub revision: u64,
}

/// A session as the target reports it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SessionRecord {
    #[serde(default)]
    pub id: u64,
    #[serde(default)]
    pub isid: String,
    #[serde(default)]
    pub addresses: Vec<String>,
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub in_flight: u32,
    #[serde(default)]
    pub since: Option<String>,
}

/// I/O counters of a nexus.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct CountersRecord {
    #[serde(default)]
    pub commands: u64,
    #[serde(default)]
    pub read_mib: u64,
    #[serde(default)]
    pub written_mib: u64,
}

/// The steps of an attach in order: the controller's word, ours, and the word while it is awaited.
pub(crate) const STEPS: [(&str, &str, &str); 4] = [
    ("granted", "granted", "granting"),
    ("logged_in", "logged in", "logging in"),
    ("device_ready", "device ready", "waiting for the disk"),
    ("done", "done", "finishing"),
];

impl Live {
    /// State of a rotation of the secrets, or the time when the last one ended.
    pub(crate) fn secret_text(&self) -> String {
        match (&self.secret_rotation, &self.secret_rotated_at) {
            (Some(who), _) => format!("being rotated: waits for its {who}"),
            (None, Some(at)) => format!("rotated {at}"),
            (None, None) => "-".to_owned(),
        }
    }

    /// Returns the status, for people. A reserved attachment waits for a host: since when, too.
    pub(crate) fn status_text(&self) -> String {
        match &self.created_at {
            Some(since) if self.status == "reserved" => format!("reserved since {since}"),
            _ => self.status.clone(),
        }
    }

    /// Returns `true` if it is attached and its host says that the disk can be used.
    pub(crate) fn is_ready(&self) -> bool {
        self.status == "attached" && self.host_phase.as_deref() == Some("ready")
    }

    /// The finished steps in order, with milliseconds since the request arrived.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&'static str, u64)> {
        STEPS.iter().filter_map(|(key, word, _)| self.steps_ms.get(*key).map(|ms| (*word, *ms)))
    }
}

/// One session that a revoke ended.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CutRecord {
    pub initiator: String,
    #[serde(default)]
    pub isid: String,
    #[serde(default)]
    pub addresses: Vec<String>,
    #[serde(default)]
    pub in_flight: u32,
}

/// The proof of a detach.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ReceiptRecord {
    #[serde(default)]
    pub volume_id: String,
    pub initiator: String,
    #[serde(default)]
    pub attachment_ids: Vec<String>,
    #[serde(default)]
    pub generation: Option<String>,
    pub revoked: String,
    #[serde(default)]
    pub sessions_cut: Vec<CutRecord>,
    pub proof: String,
    #[serde(default)]
    pub may_still_land: Option<u32>,
    #[serde(default)]
    pub began: Option<String>,
    #[serde(default)]
    pub ended: Option<String>,
    #[serde(default)]
    pub held_reservation: Option<String>,
    #[serde(default)]
    pub cause: Option<String>,
}

/// The record of a detach.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DetachRecord {
    pub attachment_id: String,
    #[serde(default)]
    pub volume_id: String,
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub instance: Option<String>,
    #[serde(default)]
    pub initiator: Option<String>,
    #[serde(default)]
    pub mode: Option<String>,
    /// `true`: the target revoked first.
    #[serde(default)]
    pub forced: bool,
    /// The user who asked.
    #[serde(default)]
    pub user_id: Option<String>,
    #[serde(default)]
    pub request_id: Option<String>,
    #[serde(default)]
    pub asked_at: Option<String>,
    /// `null`: the detach is still in progress.
    #[serde(default)]
    pub detached_at: Option<String>,
    /// `null`: nothing was ever granted, or another attachment kept the access.
    #[serde(default)]
    pub receipt: Option<ReceiptRecord>,
    /// Bytes that the host had not written when it was forced off. `null`: it has not said, or was
    /// not forced off.
    #[serde(default)]
    pub unwritten_bytes: Option<u64>,
}

/// Fields of a volume that only Mooring's own API has.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StateRecord {
    /// The reason for an error status, or why nothing is sent for the volume.
    #[serde(default)]
    pub fault: Option<String>,
    #[serde(default)]
    pub in_review: bool,
    /// `null`: it is not isolated from its disk.
    #[serde(default)]
    pub cut: Option<VolumeCutRecord>,
}

/// A volume's isolation from its disk: requested, in force, or being ended.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct VolumeCutRecord {
    pub state: String,
    #[serde(default)]
    pub since: Option<String>,
}

impl From<VolumeCutRecord> for Cut {
    fn from(record: VolumeCutRecord) -> Self {
        let state = if record.state == "in_force" { "in_force" } else { "pending" };
        Self { state, since: record.since }
    }
}

/// A host, or a storage node, or both.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HostRecord {
    pub name: String,
    #[serde(default)]
    pub address: Option<String>,
    #[serde(default)]
    pub agent_id: Option<String>,
    #[serde(default)]
    pub initiator: Option<String>,
    /// `null`: the controller's configuration names it.
    #[serde(default)]
    pub enrolment: Option<EnrolmentRecord>,
    #[serde(default)]
    pub zone: Option<String>,
    /// `true`: no new volumes are placed there.
    #[serde(default)]
    pub disabled: bool,
    #[serde(default)]
    pub disabled_reason: Option<String>,
    /// `true`: it is being emptied.
    #[serde(default)]
    pub drained: bool,
    pub up: bool,
    #[serde(default)]
    pub why_down: Option<String>,
    #[serde(default)]
    pub last_report: Option<String>,
    /// `null`: its agent does not say.
    #[serde(default)]
    pub health: Option<HealthRecord>,
    /// `null`: it has not reported yet.
    #[serde(default)]
    pub report: Option<ReportRecord>,
    #[serde(default)]
    pub pools: Vec<PoolRecord>,
    /// Sentences on what an operator should look at.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// The enrolment of an agent.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EnrolmentRecord {
    #[serde(default)]
    pub roles: Vec<String>,
    #[serde(default)]
    pub expires_at: Option<String>,
}

/// A join token, and the command line to type.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct JoinToken {
    pub name: String,
    pub roles: Vec<String>,
    #[serde(default)]
    pub zone: Option<String>,
    pub token: String,
    pub url: String,
    pub pin: String,
    pub expires_at: Option<String>,
    pub command: String,
}

/// `host revoke`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Revoked {
    pub revoked: String,
}

/// A pool of a storage node.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PoolRecord {
    pub name: String,
    #[serde(default)]
    pub total_bytes: u64,
    #[serde(default)]
    pub free_bytes: u64,
}

/// Health of a host.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HealthRecord {
    pub level: String,
    #[serde(default)]
    pub reasons: Vec<ReasonRecord>,
}

/// A reason for bad health.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ReasonRecord {
    pub code: String,
}

/// Capabilities that a host reports.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ReportRecord {
    #[serde(default)]
    pub kernel_release: String,
    #[serde(default)]
    pub fc_initiator_ports: Vec<String>,
    #[serde(default)]
    pub transports: Vec<TransportRecord>,
    #[serde(default)]
    pub modules: Vec<ModuleRecord>,
}

/// A transport of the host's volumes.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TransportRecord {
    pub protocol: String,
    #[serde(default)]
    pub ready: bool,
}

/// A kernel module that it needs.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ModuleRecord {
    pub name: String,
    pub state: String,
    /// `null`: no remedy is needed.
    #[serde(default)]
    pub remedy: Option<String>,
}

/// A volume type.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TypeRecord {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default = "yes")]
    pub is_public: bool,
    #[serde(default)]
    pub extra_specs: BTreeMap<String, Option<String>>,
}

fn yes() -> bool {
    true
}

/// A volume.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct VolumeRecord {
    pub id: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub description: Option<String>,
    pub status: String,
    /// Size in GiB.
    pub size: u64,
    #[serde(default)]
    pub volume_type: Option<String>,
    #[serde(default)]
    pub multiattach: bool,
    #[serde(default)]
    pub attachments: Vec<AttachedRecord>,
    #[serde(default, rename = "os-vol-host-attr:host")]
    pub pool: Option<String>,
    #[serde(default)]
    pub created_at: Option<String>,
    #[serde(default)]
    pub snapshot_id: Option<String>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub source_volid: Option<String>,
}

/// An attachment in a volume's list.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AttachedRecord {
    pub attachment_id: String,
}

/// `{"hosts":[…]}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Hosts {
    pub hosts: Vec<Kept<HostRecord>>,
}

/// `{"host":…}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct OneHost {
    pub host: Kept<HostRecord>,
}

/// A pool as the scheduler sees it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PlacePool {
    pub name: String,
    #[serde(default)]
    pub capabilities: BTreeMap<String, Value>,
}

/// `{"pools":[…]}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Pools {
    pub pools: Vec<Kept<PlacePool>>,
}

/// `{"attachments":[…]}`
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Attachments {
    pub attachments: Vec<Kept<Live>>,
}

/// `{"attachment":…}`
#[derive(Debug, Deserialize)]
pub(crate) struct OneAttachment {
    pub attachment: Kept<Live>,
}

/// `{"receipt":…}`
#[derive(Debug, Deserialize)]
pub(crate) struct OneReceipt {
    pub receipt: Option<Kept<ReceiptRecord>>,
    /// Warnings of a detach.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `{"receipts":[…]}`
#[derive(Debug, Deserialize)]
pub(crate) struct ManyReceipts {
    pub receipts: Vec<Kept<DetachRecord>>,
}

/// `{"volume":…}` of Mooring's own API.
#[derive(Debug, Deserialize)]
pub(crate) struct OneState {
    pub volume: StateRecord,
}

/// `{"volume":…}`
#[derive(Debug, Deserialize)]
pub(crate) struct OneVolume {
    pub volume: VolumeRecord,
}

/// `{"volumes":[…]}`, with links to further pages.
#[derive(Debug, Deserialize)]
pub(crate) struct ManyVolumes {
    pub volumes: Vec<VolumeRecord>,
    #[serde(default)]
    pub volumes_links: Vec<Link>,
}

/// A link of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Link {
    pub rel: String,
}

/// `{"volume_type":…}`
#[derive(Debug, Deserialize)]
pub(crate) struct OneType {
    pub volume_type: TypeRecord,
}

/// `{"volume_types":[…]}`
#[derive(Debug, Deserialize)]
pub(crate) struct ManyTypes {
    pub volume_types: Vec<TypeRecord>,
    #[serde(default)]
    pub volume_type_links: Vec<Link>,
}

/// `{"volume_type_access":[…]}`
#[derive(Debug, Deserialize)]
pub(crate) struct AccessList {
    pub volume_type_access: Vec<AccessRecord>,
}

/// A project that may use a private type.
#[derive(Debug, Deserialize)]
pub(crate) struct AccessRecord {
    pub project_id: String,
}

/// A snapshot.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SnapshotRecord {
    pub id: String,
    pub volume_id: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub description: Option<String>,
    pub status: String,
    pub size: u64,
    #[serde(default)]
    pub created_at: Option<String>,
}

/// `GET /snapshots/{id}`.
#[derive(Debug, Deserialize)]
pub(crate) struct OneSnapshot {
    pub snapshot: SnapshotRecord,
}

/// `GET /snapshots/detail`.
#[derive(Debug, Deserialize)]
pub(crate) struct ManySnapshots {
    pub snapshots: Vec<SnapshotRecord>,
    #[serde(default)]
    pub snapshots_links: Vec<Link>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_do_not_know_is_handed_on() {
        let text = r#"{"attachment":{"id":"a","volume_id":"v","status":"attached","host_phase":"ready","revision":7,
                       "new_in_2030":{"x":1},"steps_ms":{"done":9,"granted":3,"blessed":4}}}"#;
        let one: OneAttachment = serde_json::from_str(text).unwrap();
        assert!(one.attachment.is_ready());
        assert_eq!(one.attachment.steps().collect::<Vec<_>>(), [("granted", 3), ("done", 9)]);
        assert_eq!(serde_json::to_value(&one.attachment).unwrap()["new_in_2030"]["x"], 1);
        assert!(serde_json::from_str::<OneAttachment>(r#"{"attachment":{"id":"a"}}"#).is_err());
    }

    #[test]
    fn a_reserved_attachment_says_since_when() {
        let text = |status: &str, created_at: serde_json::Value| {
            let live = serde_json::json!({
                "id": "a", "volume_id": "v", "revision": 1, "status": status, "created_at": created_at,
            });
            serde_json::from_value::<Live>(live).unwrap().status_text()
        };
        assert_eq!(text("reserved", "2026-11-01T00:00:00Z".into()), "reserved since 2026-11-01T00:00:00Z");
        assert_eq!(text("reserved", Value::Null), "reserved");
        assert_eq!(text("attached", "2026-11-01T00:00:00Z".into()), "attached");
    }
}

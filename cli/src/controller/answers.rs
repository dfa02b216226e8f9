//! Answers of the controller's commands: the stable JSON. Attachments, receipts and hosts pass
//! through as the controller sends them; `show` renders the same for people.
//!
//! What must never happen here: a secret; a receipt that looks proven and is not.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mooring_model::Cause;
use serde::{Deserialize, Serialize, Serializer};

use crate::controller::records::{
    DetachRecord, Kept, Live, ReceiptRecord, SnapshotRecord, TypeRecord, VolumeRecord,
};
use crate::error::Fault;
use crate::output::Cut;
use crate::output::{Receipt, Session};
use crate::text::rfc3339;

/// A volume type.
#[derive(Debug, Serialize)]
pub(crate) struct Kind {
    pub id: String,
    pub name: String,
    pub description: Option<String>,
    pub is_public: bool,
    /// `true`: volumes of this type may be attached to several hosts.
    pub multiattach: bool,
    pub extra_specs: BTreeMap<String, Option<String>>,
}

/// The extra spec that makes volumes shareable, and the value that does.
pub(crate) const MULTIATTACH: (&str, &str) = ("multiattach", "<is> True");

impl Kind {
    pub(crate) fn of_record(record: TypeRecord) -> Self {
        let multiattach = record.extra_specs.get(MULTIATTACH.0).and_then(Option::as_deref);
        Self {
            multiattach: multiattach == Some(MULTIATTACH.1),
            id: record.id,
            name: record.name,
            description: record.description,
            is_public: record.is_public,
            extra_specs: record.extra_specs,
        }
    }
}

/// `type list`.
#[derive(Debug, Serialize)]
pub(crate) struct Kinds {
    pub types: Vec<Kind>,
}

/// `type create`.
#[derive(Debug, Serialize)]
pub(crate) struct KindCreated {
    pub done: bool,
    #[serde(rename = "type")]
    pub kind: Kind,
}

/// `type show`, `type set` and `type unset`.
#[derive(Debug, Serialize)]
pub(crate) struct KindShown {
    #[serde(rename = "type")]
    pub kind: Kind,
}

/// `type access`.
#[derive(Debug, Serialize)]
pub(crate) struct KindAccess {
    pub type_id: String,
    pub name: String,
    pub projects: Vec<String>,
}

/// `type delete`.
#[derive(Debug, Serialize)]
pub(crate) struct KindDeleted {
    pub done: bool,
    pub type_id: String,
    pub name: String,
}

/// `volume retype`, `volume reset-status` and `volume set`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeChanged {
    #[serde(flatten)]
    pub volume: Volume,
}

impl VolumeChanged {
    pub(crate) fn of_record(record: VolumeRecord) -> Self {
        Self { volume: Volume::of_record(record) }
    }
}

/// A volume.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Volume {
    pub id: String,
    pub name: Option<String>,
    pub description: Option<String>,
    /// Status in the words of the Block Storage API.
    pub status: String,
    pub size_gib: u64,
    pub size_bytes: u64,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `true`: it may be attached to several hosts.
    pub multiattach: bool,
    /// Storage node and pool; `null` before it is placed, and for users who may not see it.
    pub pool: Option<String>,
    /// Ids of its attachments that are `attached`.
    pub attached: Vec<String>,
    pub created_at: Option<String>,
    /// The snapshot that it was made from.
    pub snapshot_id: Option<String>,
    /// The volume that it was made from.
    pub source_volume_id: Option<String>,
}

impl Volume {
    pub(crate) fn of_record(record: VolumeRecord) -> Self {
        Self {
            id: record.id,
            name: record.name,
            description: record.description,
            status: record.status,
            size_gib: record.size,
            size_bytes: record.size.saturating_mul(1 << 30),
            kind: record.volume_type,
            multiattach: record.multiattach,
            pool: record.pool,
            attached: record.attachments.into_iter().map(|attached| attached.attachment_id).collect(),
            created_at: record.created_at,
            snapshot_id: record.snapshot_id,
            source_volume_id: record.source_volid,
        }
    }
}

impl Volume {
    /// The origin of the volume, for people; `None`: it was made empty.
    pub(crate) fn made_from(&self) -> Option<String> {
        let snapshot = self.snapshot_id.as_ref().map(|id| format!("snapshot {id}"));
        snapshot.or(self.source_volume_id.as_ref().map(|id| format!("volume {id}")))
    }
}

/// A snapshot.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Snapshot {
    pub id: String,
    pub volume_id: String,
    pub name: Option<String>,
    pub description: Option<String>,
    /// Status in the words of the Block Storage API.
    pub status: String,
    /// Size of its volume when it was taken.
    pub size_gib: u64,
    pub created_at: Option<String>,
}

impl Snapshot {
    pub(crate) fn of_record(record: SnapshotRecord) -> Self {
        Self {
            id: record.id,
            volume_id: record.volume_id,
            name: record.name,
            description: record.description,
            status: record.status,
            size_gib: record.size,
            created_at: record.created_at,
        }
    }
}

/// `snapshot create`.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotCreated {
    /// `true`: it exists, and volumes can be made from it.
    pub done: bool,
    pub snapshot: Snapshot,
}

/// `snapshot list`.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshots {
    pub snapshots: Vec<Snapshot>,
}

/// `snapshot show`.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotShown {
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// `snapshot delete`.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotDeleted {
    /// `true`: it is gone.
    pub done: bool,
    pub snapshot_id: String,
    /// `gone`, or its present status.
    pub status: String,
}

/// `volume list`.
#[derive(Debug, Serialize)]
pub(crate) struct Volumes {
    pub volumes: Vec<Volume>,
}

/// `volume show`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeShown {
    #[serde(flatten)]
    pub volume: Volume,
    /// The reason for an error status, why nothing is sent for the volume, or why its storage node
    /// cannot serve it.
    pub fault: Option<String>,
    /// `true`: nothing is sent for it until an operator confirms the controller's knowledge.
    pub in_review: bool,
    /// Isolation from its disk; `null`: it is not isolated.
    pub cut: Option<Cut>,
    pub attachments: Vec<Kept<Live>>,
}

/// `volume confirm-review`.
#[derive(Debug, Serialize)]
pub(crate) struct ReviewConfirmed {
    pub done: bool,
    pub volume_id: String,
}

/// `epoch raise`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct EpochRaised {
    /// The new epoch.
    pub epoch: u64,
}

/// `volume create`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeCreated {
    /// `true`: it exists and can be attached.
    pub done: bool,
    pub name: String,
    pub volume: Volume,
}

/// `volume extend`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeExtended {
    /// `true`: it has the new size; with `cancels`, it no longer grows.
    pub done: bool,
    /// `true`: the extend was to be cancelled.
    #[serde(skip)]
    pub cancels: bool,
    #[serde(flatten)]
    pub volume: Volume,
}

/// `volume delete`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeDeleted {
    /// `true`: the volume and its data are gone.
    pub done: bool,
    pub volume_id: String,
    pub name: Option<String>,
    /// `gone`, or the volume's present status.
    pub status: String,
}

/// `attach`.
#[derive(Debug, Serialize)]
pub(crate) struct Attached {
    /// `true`: the disk can be used on its host.
    pub done: bool,
    pub attachment: Kept<Live>,
}

/// `attachment show`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum AttachmentShown {
    /// An attachment as the controller sends it.
    Live {
        #[serde(flatten)]
        attachment: Box<Kept<Live>>,
        /// The receipt, while the attachment is being detached.
        #[serde(skip_serializing_if = "Option::is_none")]
        receipt: Option<Proof>,
    },
    /// A detached attachment, of which the receipt is left.
    Gone {
        id: String,
        /// Always `gone`.
        status: &'static str,
        receipt: Proof,
    },
}

/// `attachment mode`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AttachmentMode {
    /// The attachment as the controller sends it.
    pub attachment: Kept<Live>,
    /// `true`: no command that was in flight lands any more.
    pub barrier: bool,
}

/// `attachment cache`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AttachmentCache {
    /// The attachment as the controller sends it.
    pub attachment: Kept<Live>,
}

/// `detach`.
#[derive(Debug, Serialize)]
pub(crate) struct Detached {
    /// `true`: it is gone; if there is a receipt, it is proven.
    pub done: bool,
    pub attachment_id: String,
    /// `false`: the controller does not know such an attachment (any more).
    pub known: bool,
    /// `null`: nothing was ever granted, or the receipt is not there yet.
    pub receipt: Option<Proof>,
    /// The reason why it is not done.
    pub waits_for: Option<String>,
    /// Things of the volume that the host held and has lost with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// `true`: the receipt is shown in full.
    #[serde(skip)]
    pub full: bool,
}

/// A receipt that this program understands: as the controller sends it, and interpreted.
#[derive(Debug)]
pub(crate) struct Proof {
    raw: Kept<ReceiptRecord>,
    pub receipt: Receipt,
}

impl Serialize for Proof {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl Proof {
    /// Interprets a receipt. An unknown form is an error: nothing is claimed of it.
    pub(crate) fn of_record(raw: Kept<ReceiptRecord>) -> Result<Self, Fault> {
        match Receipt::of_record(&raw) {
            Some(receipt) => Ok(Self { raw, receipt }),
            None => Err(Fault::Nonsense {
                call: "the receipt",
                why: format!("it says proof {:?}, revoked {:?}", raw.proof, raw.revoked),
            }),
        }
    }
}

/// `receipt list`.
#[derive(Debug, Serialize)]
pub(crate) struct Records {
    pub receipts: Vec<Record>,
}

/// The record of a detach: as the controller sends it, with its receipt interpreted.
#[derive(Debug)]
pub(crate) struct Record {
    pub raw: Kept<DetachRecord>,
    pub receipt: Option<Receipt>,
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl Record {
    /// Interprets a record. An unknown form of receipt is an error: nothing is claimed of it.
    pub(crate) fn of_record(raw: Kept<DetachRecord>) -> Result<Self, Fault> {
        let Some(record) = &raw.receipt else { return Ok(Self { raw, receipt: None }) };
        match Receipt::of_record(record) {
            Some(receipt) => Ok(Self { receipt: Some(receipt), raw }),
            None => Err(Fault::Nonsense {
                call: "the receipt",
                why: format!("it says proof {:?}, revoked {:?}", record.proof, record.revoked),
            }),
        }
    }

    /// Time when the attachment was gone; `None`: it is not gone yet.
    pub(crate) fn detached_at(&self) -> Option<&str> {
        self.raw.detached_at.as_deref()
    }
}

impl Receipt {
    /// Interprets the controller's receipt. `None`: its words are unknown, and nothing is claimed
    /// of it.
    pub(crate) fn of_record(record: &ReceiptRecord) -> Option<Self> {
        let proven = match record.proof.as_str() {
            "proven" => true,
            "unproven" => false,
            _ => return None,
        };
        let removed = match record.revoked.as_str() {
            "nexus" => true,
            "nothing" => false,
            _ => return None,
        };
        let time = |text: &Option<String>| text.as_deref().map(str::parse::<Timestamp>).transpose().ok();
        let (began, ended) = (time(&record.began)?, time(&record.ended)?);
        let took = began
            .zip(ended)
            .map(|(began, ended)| ended.as_microsecond().saturating_sub(began.as_microsecond()));
        let cut = record.sessions_cut.iter().map(|cut| Session {
            initiator: cut.initiator.clone(),
            isid: cut.isid.clone(),
            id: None,
            addresses: cut.addresses.clone(),
            state: None,
            in_flight: cut.in_flight,
        });
        Some(Self {
            volume_id: record.volume_id.clone(),
            initiator: record.initiator.clone(),
            attachments: record.attachment_ids.clone(),
            generation: record.generation.clone(),
            nexus_removed: proven.then_some(removed),
            sessions_cut: cut.collect(),
            proven,
            may_still_land: record.may_still_land,
            began: began.map(rfc3339),
            ended: ended.map(rfc3339),
            took_us: took,
            held_reservation: record.held_reservation.clone(),
            cause: record.cause.clone().unwrap_or_else(|| Cause::default().to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(change: impl FnOnce(&mut serde_json::Value)) -> Option<Receipt> {
        let mut value = serde_json::json!({
            "attachment_id": "a", "volume_id": "v", "initiator": "i", "attachment_ids": ["a"], "generation": "1.9",
            "revoked": "nexus", "sessions_cut": [{"initiator": "i", "isid": "8012", "addresses": ["10.0.0.1"], "in_flight": 3}],
            "proof": "proven", "may_still_land": 0, "began": "2026-11-21T10:00:00Z", "ended": "2026-11-21T10:00:00.0123Z"
        });
        change(&mut value);
        Receipt::of_record(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_receipt_claims_what_it_says_and_nothing_else() {
        let proven = receipt(|_| {}).unwrap();
        assert!(proven.proven && proven.nexus_removed == Some(true));
        assert_eq!((proven.took_us, proven.sessions_cut[0].in_flight), (Some(12_300), 3));
        assert_eq!(proven.began.as_deref(), Some("2026-11-21T10:00:00.000000Z"));
        let open =
            receipt(|r| (r["proof"], r["ended"]) = ("unproven".into(), serde_json::Value::Null)).unwrap();
        assert_eq!((open.proven, open.nexus_removed, open.took_us), (false, None, None));
        assert!(receipt(|r| r["revoked"] = "nothing".into()).unwrap().nexus_removed == Some(false));
        for odd in ["proof", "revoked", "began"] {
            assert!(receipt(|r| r[odd] = "perhaps".into()).is_none(), "{odd}");
        }
    }
}

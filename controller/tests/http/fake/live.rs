//! Live state of attachments.

use mooring_controller::domain::{Attachment, AttachmentLive, AttachmentReceipt, Caller};
use mooring_controller::service::{NewSecrets, Refusal, Wait};
use mooring_model::{AttachmentId, VolumeId};
use serde_json::{Value, json};

use super::{State, not_found};

impl State {
    pub(super) fn live(
        &mut self,
        caller: &Caller,
        id: AttachmentId,
        newer_than: Option<u64>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        self.wait = Some(wait.0);
        self.newer_than = newer_than;
        let index = self.attachment_index(caller, id)?;
        Ok(self.live_of(&self.attachments[index]))
    }

    pub(super) fn live_all(&self) -> Vec<AttachmentLive> {
        self.attachments.iter().map(|attachment| self.live_of(attachment)).collect()
    }

    pub(super) fn receipt(&self, id: AttachmentId) -> Result<AttachmentReceipt, Refusal> {
        let found = self.receipts.iter().find(|receipt| receipt.attachment == id).cloned();
        found.map_or_else(|| not_found("Attachment", id), Ok)
    }

    pub(super) fn rotate_secrets(
        &mut self,
        caller: &Caller,
        id: VolumeId,
        new: NewSecrets,
        wait: Wait,
    ) -> Result<Vec<AttachmentLive>, Refusal> {
        self.volume_index(caller, id)?;
        self.wait = Some(wait.0);
        self.heard.push(format!("{new:?}"));
        let rotated = |of: &&Attachment| of.volume == id && new.attachment.is_none_or(|only| only == of.id);
        Ok(self.attachments.iter().filter(rotated).map(|attachment| self.live_of(attachment)).collect())
    }
}

/// Capabilities of the fake's only pool.
pub(super) fn capabilities_of(host: &str) -> Result<Value, Refusal> {
    match host {
        "storage1@lvm" => Ok(json!({ "vendor_name": "Mooring" })),
        host => not_found("Service", host),
    }
}

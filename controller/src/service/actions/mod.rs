//! The older calls for attachments, as actions on a volume. They act on the same attachments as
//! `/attachments`, by the same rules.
//!
//! `hold` announces and takes back, `connect` attaches, `part` detaches.
//!
//! What must never happen here: an attachment that is guessed: where a call may mean several, it is
//! refused.

mod connect;
mod hold;
mod part;

use mooring_model::VolumeId;
use serde_json::{Map, Value};

use super::{Refusal, Service, Wait};
use crate::domain::{AttachAction, Caller};

impl Service {
    /// Does one of the older calls. `InitializeConnection` returns the connection info, flat; any
    /// other call `None`.
    pub async fn attach_action(
        &self,
        caller: &Caller,
        id: VolumeId,
        action: AttachAction,
        wait: Wait,
    ) -> Result<Option<Map<String, Value>>, Refusal> {
        match action {
            AttachAction::Reserve => self.reserve(caller, id).await?,
            AttachAction::Unreserve => self.unreserve(caller, id).await?,
            AttachAction::BeginDetaching => self.begin_detaching(caller, id).await?,
            AttachAction::RollDetaching => self.roll_detaching(caller, id).await?,
            AttachAction::Attach { instance, host, mountpoint, mode } => {
                let said = connect::Said { instance, host, mountpoint, mode };
                self.attach_volume(caller, id, said, wait).await?;
            }
            AttachAction::Detach { attachment, force } => {
                self.detach_volume(caller, id, attachment, force, wait).await?;
            }
            AttachAction::InitializeConnection { connector } => {
                return self.initialize_connection(caller, id, connector, wait).await.map(Some);
            }
            AttachAction::TerminateConnection { connector } => {
                self.terminate_connection(caller, id, connector, wait).await?;
            }
        }
        Ok(None)
    }
}

//! Calls of an agent, each with its deadline, and what a refusal means.
//!
//! What must never happen here: a refusal taken for a lost call (it would be repeated for ever), or a lost call for a
//! refusal (what it asked for may be true).

use std::time::Duration;

use mooring_api::v1::agent_client::AgentClient;
use mooring_api::v1::host_client::HostClient;
use mooring_api::v1::identity_client::IdentityClient;
use mooring_api::{CURE_KEY, Channel, MESSAGE_BYTES_MAX, v1};
use mooring_model::{Chain, Cure};
use tokio::time::Instant;
use tonic::{Code, Response, Status};

use super::Agent;
use super::dial::Dial;
use super::lease::Hold;
use crate::domain::AgentEntry;

/// Over what the agent was asked to wait: the wire, and its disk.
const GRACE: Duration = Duration::from_secs(10);

/// A call about an agent's certificate: it writes some files.
const IDENTITY_LIMIT: Duration = Duration::from_secs(5);

/// Another agent may answer at an address from one day to the next.
const BORROWED_FOR: Duration = Duration::from_secs(10);

/// Why a call did not do what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody knows whether it was taken: ask again.
    #[error("{0}")]
    Lost(String),
    /// It was not taken: what the agent keeps is newer, or another history.
    #[error("{0}")]
    Stale(String),
    /// It was not taken.
    #[error("{text}")]
    Refused {
        /// The agent's words.
        text: String,
        /// Something stands in the way that can go away.
        precondition: bool,
        /// Something else has the object's id, or its identity on the wire.
        id_is_taken: bool,
        /// Who can cure it.
        cure: Cure,
    },
}

/// What a status of an agent means.
pub(crate) fn error_of(agent: &str, status: &Status) -> CallError {
    let text = format!("{agent}: {}", status.message());
    let cure = status.metadata().get(CURE_KEY).and_then(|word| word.to_str().ok()).map(|word| match word {
        "fix_spec" => Cure::FixSpec,
        "operator" => Cure::Operator,
        "bug" => Cure::Bug,
        _ => Cure::Retry,
    });
    match status.code() {
        Code::Aborted => CallError::Stale(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => CallError::Refused {
            text,
            precondition: status.code() == Code::FailedPrecondition,
            id_is_taken: status.code() == Code::AlreadyExists,
            cure: cure.unwrap_or(Cure::Operator),
        },
        _ => CallError::Lost(text),
    }
}

/// A client of the storage half.
pub(crate) fn agent_client(channel: Channel) -> AgentClient<Channel> {
    AgentClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A client of the host half.
pub(crate) fn host_client(channel: Channel) -> HostClient<Channel> {
    HostClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Waits for a call, and not longer.
pub(crate) async fn within<T>(
    agent: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(error_of(agent, &status)),
        Err(_) => Err(CallError::Lost(format!("{agent}: no answer within {:.1} s", limit.as_secs_f64()))),
    }
}

/// How an agent that another controller drives is asked.
#[derive(Debug)]
pub(super) struct Borrowed {
    channel: Channel,
    checked: Instant,
}

/// Tells an agent that it was revoked: it forgets its certificate, and lets nobody in over TLS. It is dialled for that alone, so that
/// it does not matter who drives it, nor that the registry has it no more.
pub(crate) async fn leave(dial: &Dial, entry: &AgentEntry) -> Result<(), String> {
    let channel = dial.dial(entry).await?;
    let leave = async { IdentityClient::new(channel).leave(v1::LeaveRequest {}).await };
    within(&entry.name, IDENTITY_LIMIT, leave).await.map(drop).map_err(|error| error.to_string())
}

impl Agent {
    /// Has the agent make a new key. Returns its certificate signing request.
    pub(crate) async fn new_key(&self) -> Result<String, CallError> {
        let mut client = IdentityClient::new(self.channel()?);
        let call = client.new_key(v1::NewKeyRequest {});
        Ok(within(&self.entry.name, IDENTITY_LIMIT, call).await?.csr)
    }

    /// Gives the agent the certificate over that key.
    pub(crate) async fn set_certificate(
        &self,
        certificate: String,
        authority: String,
    ) -> Result<(), CallError> {
        let mut client = IdentityClient::new(self.channel()?);
        let call = client.set_certificate(v1::SetCertificateRequest { certificate, authority });
        within(&self.entry.name, IDENTITY_LIMIT, call).await.map(drop)
    }

    /// For what changes something: only while we drive it.
    fn channel(&self) -> Result<Channel, CallError> {
        let channel = self.state().channel.clone().filter(|_| self.hold().is_ours());
        channel.ok_or_else(|| CallError::Lost(self.why_down()))
    }

    /// For questions: also while another controller drives it.
    async fn any_channel(&self) -> Result<Channel, CallError> {
        if !matches!(self.hold(), Hold::Theirs(_)) {
            return self.channel();
        }
        let mut borrowed = self.borrowed.lock().await;
        if let Some(kept) = borrowed.as_ref().filter(|kept| kept.checked.elapsed() < BORROWED_FOR) {
            return Ok(kept.channel.clone());
        }
        *borrowed = None;
        let lost = |why: String| CallError::Lost(format!("{}: {why}", self.entry.name));
        let known = self.id().ok_or_else(|| lost("it was never reached".to_owned()))?;
        let dialled = tokio::time::timeout(GRACE, mooring_api::connect(&self.entry.address, &self.entry.tls));
        let channel = match dialled.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(lost(Chain(&error).to_string())),
            Err(_) => return Err(lost("no answer to the dial".to_owned())),
        };
        let hello = super::task::say_hello(&self.entry.name, channel.clone()).await.map_err(lost)?;
        if hello.agent_id != known.to_string() {
            return Err(lost(format!("another agent answers there, {}", hello.agent_id)));
        }
        *borrowed = Some(Borrowed { channel: channel.clone(), checked: Instant::now() });
        Ok(channel)
    }

    /// Sees that it answers.
    pub(crate) async fn greet(&self, limit: Duration) -> Result<(), CallError> {
        let lost = |why: String| CallError::Lost(format!("{}: {why}", self.entry.name));
        let hello = super::task::say_hello(&self.entry.name, self.any_channel().await?);
        match tokio::time::timeout(limit, hello).await {
            Ok(hello) => hello.map(drop).map_err(lost),
            Err(_) => Err(lost(format!("no answer within {} s", limit.as_secs()))),
        }
    }

    /// Asks for all of its volumes as they are now.
    pub(crate) async fn list_volumes(&self, limit: Duration) -> Result<Vec<v1::VolumeStatus>, CallError> {
        let asked = v1::ListVolumesRequest { with_secrets: false, with_tombstones: true };
        let mut client = AgentClient::new(self.any_channel().await?)
            .max_decoding_message_size(super::task::LIST_BYTES_MAX);
        Ok(within(&self.entry.name, limit, client.list_volumes(asked)).await?.volumes)
    }

    /// Sends a volume's wish.
    pub(crate) async fn put_volume(
        &self,
        put: v1::PutVolumeRequest,
    ) -> Result<v1::PutVolumeResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).put_volume(put)).await
    }

    /// Sends an export's wish.
    pub(crate) async fn put_export(
        &self,
        put: v1::PutExportRequest,
    ) -> Result<v1::PutExportResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).put_export(put)).await
    }

    /// Asks for one volume as it is now.
    pub(crate) async fn get_volume(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::VolumeStatus, CallError> {
        let get = v1::GetVolumeRequest { volume_id };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).get_volume(get)).await
    }

    /// Asks for the long work at one volume, or at all without an id.
    pub(crate) async fn list_jobs(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::ListJobsResponse, CallError> {
        let asked = v1::ListJobsRequest { volume_id };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).list_jobs(asked)).await
    }

    /// Limits its jobs. That is no wish: it may be said through any controller.
    pub(crate) async fn set_job_limit(
        &self,
        set: v1::SetJobLimitRequest,
        limit: Duration,
    ) -> Result<v1::SetJobLimitResponse, CallError> {
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).set_job_limit(set)).await
    }

    /// Takes reservations of a volume away.
    pub(crate) async fn change_reservations(
        &self,
        change: v1::ChangeReservationsRequest,
    ) -> Result<v1::ChangeReservationsResponse, CallError> {
        let limit = GRACE + Duration::from_millis(change.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).change_reservations(change)).await
    }

    /// Asks for the LVs of a group, or of all.
    pub(crate) async fn list_lvs(
        &self,
        group: String,
        limit: Duration,
    ) -> Result<v1::ListLvsResponse, CallError> {
        let list = v1::ListLvsRequest { group };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).list_lvs(list)).await
    }

    /// Asks for one connection as it is now.
    pub(crate) async fn get_connection(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::ConnectionStatus, CallError> {
        let get = v1::GetConnectionRequest { volume_id };
        within(&self.entry.name, limit, host_client(self.any_channel().await?).get_connection(get)).await
    }

    /// Has it look for who uses the disk of a connection.
    pub(crate) async fn check_connection(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::CheckConnectionResponse, CallError> {
        let check = v1::CheckConnectionRequest { volume_id };
        within(&self.entry.name, limit, host_client(self.any_channel().await?).check_connection(check)).await
    }

    /// Sends a connection's wish.
    pub(crate) async fn put_connection(
        &self,
        put: v1::PutConnectionRequest,
    ) -> Result<v1::PutConnectionResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, host_client(self.channel()?).put_connection(put)).await
    }
}

//! Calls of an agent, each with its deadline, and the meaning of each refusal.
//!
//! What must never happen here: a refusal taken for a lost call (it would be repeated for ever), or
//! a lost call taken for a refusal (the agent may have done what it asked for).

use std::sync::Arc;
use std::time::Duration;

use mooring_api::v1::agent_client::AgentClient;
use mooring_api::v1::host_client::HostClient;
use mooring_api::v1::identity_client::IdentityClient;
use mooring_api::{CURE_KEY, Channel, MESSAGE_BYTES_MAX, reports, v1};
use mooring_model::{Chain, Cure, Stamp, VolumeId};
use tokio::time::Instant;
use tonic::{Code, Response, Status};

use super::Agent;
use super::dial::Dial;
use super::lease::Hold;
use super::words::plain;
use crate::domain::AgentEntry;

/// Time that a call gets on top of the agent's own deadline: for the network, and for the agent's
/// disk.
const GRACE: Duration = Duration::from_secs(10);

/// Limit of a call about an agent's certificate: the agent only writes some files.
const IDENTITY_LIMIT: Duration = Duration::from_secs(5);

/// Time after which a borrowed channel is checked again: another agent may answer at the address
/// then.
const BORROWED_FOR: Duration = Duration::from_secs(10);

/// Reason why a call did not do what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody knows whether the agent took it: ask again.
    #[error("{0}")]
    Lost(String),
    /// The agent refused it: the agent stores something newer, or of another history.
    #[error("{0}")]
    Stale(String),
    /// The agent refused it.
    #[error("{text}")]
    Refused {
        /// The agent's own text.
        text: String,
        /// The reason is a condition that can go away.
        precondition: bool,
        /// Another object has the object's id, or its identity on the wire.
        id_is_taken: bool,
        /// The one who can cure it.
        cure: Cure,
    },
}

/// Takes a stamp that an agent reports, if it is newer than the known one.
fn take_newer(known: &mut Option<Stamp>, reported: Option<Stamp>) {
    let last = known.as_ref().map(|known| known.generation);
    if let Some(reported) = reported.filter(|reported| last < Some(reported.generation)) {
        *known = Some(reported);
    }
}

/// Returns the meaning of a status that an agent answered with.
pub(crate) fn error_of(agent: &str, status: &Status) -> CallError {
    let text = format!("{agent}: {}", plain(status.message()));
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

/// Waits for a call until the limit, and no longer.
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

/// Channel for questions to an agent that another controller drives.
#[derive(Debug)]
pub(super) struct Borrowed {
    channel: Channel,
    checked: Instant,
}

/// Tells an agent that it was revoked: it forgets its certificate, and refuses everybody over TLS.
/// The call dials the agent itself, so that neither the driving controller nor the registry
/// matters.
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

    /// Gives the agent the certificate for that key.
    pub(crate) async fn set_certificate(
        &self,
        certificate: String,
        authority: String,
    ) -> Result<(), CallError> {
        let mut client = IdentityClient::new(self.channel()?);
        let call = client.set_certificate(v1::SetCertificateRequest { certificate, authority });
        within(&self.entry.name, IDENTITY_LIMIT, call).await.map(drop)
    }

    /// Returns the channel for calls that change something: only while this controller drives the
    /// agent.
    fn channel(&self) -> Result<Channel, CallError> {
        let channel = self.state().channel.clone().filter(|_| self.hold().is_ours());
        channel.ok_or_else(|| CallError::Lost(self.why_down()))
    }

    /// Returns a channel for questions: also while another controller drives the agent.
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

    /// Checks that the agent answers.
    pub(crate) async fn greet(&self, limit: Duration) -> Result<(), CallError> {
        let lost = |why: String| CallError::Lost(format!("{}: {why}", self.entry.name));
        let hello = super::task::say_hello(&self.entry.name, self.any_channel().await?);
        match tokio::time::timeout(limit, hello).await {
            Ok(hello) => hello.map(drop).map_err(lost),
            Err(_) => Err(lost(format!("no answer within {} s", limit.as_secs()))),
        }
    }

    /// Asks for the present state of all its volumes.
    pub(crate) async fn list_volumes(&self, limit: Duration) -> Result<Vec<v1::VolumeStatus>, CallError> {
        let asked = v1::ListVolumesRequest { with_secrets: false, with_tombstones: true };
        let mut client = AgentClient::new(self.any_channel().await?)
            .max_decoding_message_size(super::task::LIST_BYTES_MAX);
        Ok(within(&self.entry.name, limit, client.list_volumes(asked)).await?.volumes)
    }

    /// Sends a volume's spec.
    pub(crate) async fn put_volume(
        &self,
        put: v1::PutVolumeRequest,
    ) -> Result<v1::PutVolumeResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).put_volume(put)).await
    }

    /// Sends an export's spec.
    pub(crate) async fn put_export(
        &self,
        put: v1::PutExportRequest,
    ) -> Result<v1::PutExportResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).put_export(put)).await
    }

    /// Asks for the present state of one volume.
    pub(crate) async fn get_volume(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::VolumeStatus, CallError> {
        let get = v1::GetVolumeRequest { volume_id };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).get_volume(get)).await
    }

    /// Asks which specs of a volume it stores. Remembers those that are newer than the known ones.
    pub(crate) async fn learn_volume(&self, id: VolumeId, limit: Duration) {
        let Ok(status) = self.get_volume(id.to_string(), limit).await else { return };
        let (volume, export) =
            (reports::stamp(status.volume_stamp.as_ref()), reports::stamp(status.export_stamp.as_ref()));
        let mut state = self.state();
        let kept = Arc::make_mut(state.volumes.entry(id).or_default());
        take_newer(&mut kept.volume_stamp, volume);
        take_newer(&mut kept.export_stamp, export);
    }

    /// Asks which spec of a connection it stores. Remembers it if it is newer than the known one.
    pub(crate) async fn learn_connection(&self, id: VolumeId, limit: Duration) {
        let Ok(status) = self.get_connection(id.to_string(), limit).await else { return };
        let stamp = reports::stamp(status.stamp.as_ref());
        take_newer(&mut self.state().connections.entry(id).or_default().stamp, stamp);
    }

    /// Asks for the jobs of one volume, or for all jobs if the id is empty.
    pub(crate) async fn list_jobs(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::ListJobsResponse, CallError> {
        let asked = v1::ListJobsRequest { volume_id };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).list_jobs(asked)).await
    }

    /// Sets the limit of its jobs. The limit is no spec: any controller may send it.
    pub(crate) async fn set_job_limit(
        &self,
        set: v1::SetJobLimitRequest,
        limit: Duration,
    ) -> Result<v1::SetJobLimitResponse, CallError> {
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).set_job_limit(set)).await
    }

    /// Preempts reservations of a volume.
    pub(crate) async fn change_reservations(
        &self,
        change: v1::ChangeReservationsRequest,
    ) -> Result<v1::ChangeReservationsResponse, CallError> {
        let limit = GRACE + Duration::from_millis(change.deadline_ms.into());
        within(&self.entry.name, limit, agent_client(self.channel()?).change_reservations(change)).await
    }

    /// Asks for the logical volumes of a volume group, or of all groups.
    pub(crate) async fn list_lvs(
        &self,
        group: String,
        limit: Duration,
    ) -> Result<v1::ListLvsResponse, CallError> {
        let list = v1::ListLvsRequest { group };
        within(&self.entry.name, limit, agent_client(self.any_channel().await?).list_lvs(list)).await
    }

    /// Asks for the present state of one connection.
    pub(crate) async fn get_connection(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::ConnectionStatus, CallError> {
        let get = v1::GetConnectionRequest { volume_id };
        within(&self.entry.name, limit, host_client(self.any_channel().await?).get_connection(get)).await
    }

    /// Makes the agent look for users of a connection's disk.
    pub(crate) async fn check_connection(
        &self,
        volume_id: String,
        limit: Duration,
    ) -> Result<v1::CheckConnectionResponse, CallError> {
        let check = v1::CheckConnectionRequest { volume_id };
        within(&self.entry.name, limit, host_client(self.any_channel().await?).check_connection(check)).await
    }

    /// Sends a connection's spec.
    pub(crate) async fn put_connection(
        &self,
        put: v1::PutConnectionRequest,
    ) -> Result<v1::PutConnectionResponse, CallError> {
        let limit = GRACE + Duration::from_millis(put.deadline_ms.into());
        within(&self.entry.name, limit, host_client(self.channel()?).put_connection(put)).await
    }
}

//! A connection to one agent: identities, calls with a deadline, and stamps.
//!
//! What must never happen here: a call that waits for ever; a spec sent in the name of a cluster
//! that nobody chose.

use std::future::Future;
use std::time::Duration;

use mooring_api::v1::agent_client::AgentClient;
use mooring_api::{Address, PROTOCOL_MAX, PROTOCOL_MIN, TlsFiles, connect, v1};
use mooring_model::{ClusterId, Digest, Generation, Stamp, VolumeId};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::args::Global;
use crate::error::Failure;

/// Time beyond the agent's deadline in which its answer is awaited. The agent answers at its
/// deadline with what is known, which is worth more than giving up.
const SLACK: Duration = Duration::from_secs(5);

/// Largest answer accepted. A list of all volumes is one answer: some 100 000 of them fit.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A connection to an agent that has said hello.
pub(crate) struct Session {
    client: AgentClient<Channel>,
    address: String,
    hello: v1::HelloResponse,
    cluster: Option<ClusterId>,
    deadline: Duration,
}

impl Session {
    /// Connects and says hello.
    pub(crate) async fn open(global: &Global, agent: &Address) -> Result<Self, Failure> {
        if matches!(agent, Address::Plain(_)) && !global.insecure {
            return Err(Failure::Usage(format!(
                "{agent} is plain text: everybody on the way reads and changes everything. Use https, or say --insecure"
            )));
        }
        let files = TlsFiles {
            ca: global.ca.clone(),
            cert: global.cert.clone(),
            key: global.key.clone(),
            server_name: None,
        };
        let channel = connect(agent, &files).await.map_err(Failure::Connect)?;
        let mut session = Self {
            client: AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
            address: agent.to_string(),
            hello: v1::HelloResponse::default(),
            cluster: global.cluster,
            deadline: Duration::from_secs(u64::from(global.timeout)),
        };
        let request = v1::HelloRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            software: concat!("mooring ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let mut client = session.client.clone();
        session.hello = session.within("Hello", client.hello(request)).await?;
        let protocol = session.hello.protocol;
        if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&protocol) {
            return Err(Failure::Refused(format!(
                "no common protocol: the agent ({}) wants {protocol}, this program speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}",
                session.hello.software
            )));
        }
        Ok(session)
    }

    /// The agent's answer to hello.
    pub(crate) fn hello(&self) -> &v1::HelloResponse {
        &self.hello
    }

    /// The cluster in whose name specs are sent. An agent of a controller is not changed by
    /// accident behind its controller's back.
    pub(crate) fn sender(&self) -> Result<v1::Sender, Failure> {
        let cluster = match (self.cluster, self.hello.cluster_id.as_str()) {
            (Some(chosen), _) => chosen,
            (None, "") => ClusterId::STANDALONE,
            (None, pinned) => {
                let pinned: ClusterId = pinned
                    .parse()
                    .map_err(|error: mooring_model::ParseIdError| Failure::Answer(error.to_string()))?;
                if pinned != ClusterId::STANDALONE {
                    return Err(Failure::Refused(format!(
                        "this agent belongs to cluster {pinned}; work through its controller, or say --cluster {pinned}"
                    )));
                }
                pinned
            }
        };
        Ok(v1::Sender { cluster_id: cluster.to_string() })
    }

    /// The deadline in the form of the wire.
    pub(crate) fn deadline_ms(&self) -> u32 {
        u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX)
    }

    /// Sends a volume's spec.
    pub(crate) async fn put_volume(
        &self,
        request: v1::PutVolumeRequest,
    ) -> Result<v1::PutVolumeResponse, Failure> {
        let mut client = self.client.clone();
        self.within("PutVolume", client.put_volume(request)).await
    }

    /// Sends an export's spec.
    pub(crate) async fn put_export(
        &self,
        request: v1::PutExportRequest,
    ) -> Result<v1::PutExportResponse, Failure> {
        let mut client = self.client.clone();
        self.within("PutExport", client.put_export(request)).await
    }

    /// Gets one volume.
    pub(crate) async fn get(&self, id: VolumeId) -> Result<v1::VolumeStatus, Failure> {
        let mut client = self.client.clone();
        let request = v1::GetVolumeRequest { volume_id: id.to_string() };
        self.within("GetVolume", client.get_volume(request)).await
    }

    /// Gets all volumes.
    pub(crate) async fn list(&self) -> Result<Vec<v1::VolumeStatus>, Failure> {
        let mut client = self.client.clone();
        Ok(self.within("ListVolumes", client.list_volumes(v1::ListVolumesRequest::default())).await?.volumes)
    }

    /// Gets the host's capabilities.
    pub(crate) async fn capabilities(&self) -> Result<v1::Capabilities, Failure> {
        let mut client = self.client.clone();
        self.within("GetCapabilities", client.get_capabilities(v1::GetCapabilitiesRequest {})).await
    }

    /// Gets the plan for one volume; without an id, for all.
    pub(crate) async fn plan(&self, volume: Option<VolumeId>) -> Result<v1::PlanResponse, Failure> {
        let mut client = self.client.clone();
        let volume_id = volume.map(|id| id.to_string()).unwrap_or_default();
        self.within("Plan", client.plan(v1::PlanRequest { volume_id })).await
    }

    /// Gets the long work at one volume; without an id, at all.
    pub(crate) async fn jobs(&self, volume_id: String) -> Result<v1::ListJobsResponse, Failure> {
        let mut client = self.client.clone();
        self.within("ListJobs", client.list_jobs(v1::ListJobsRequest { volume_id })).await
    }

    /// Removes reservations.
    pub(crate) async fn change_reservations(
        &self,
        id: VolumeId,
        change: v1::change_reservations_request::Change,
    ) -> Result<v1::ChangeReservationsResponse, Failure> {
        let mut client = self.client.clone();
        let request = v1::ChangeReservationsRequest {
            sender: Some(self.sender()?),
            volume_id: id.to_string(),
            change: Some(change),
            deadline_ms: u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX),
        };
        self.within("ChangeReservations", client.change_reservations(request)).await
    }

    /// Limits jobs; 0: no limit.
    pub(crate) async fn set_job_limit(&self, limit_bytes: u64) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let set = v1::SetJobLimitRequest { sender: Some(self.sender()?), limit_bytes };
        self.within("SetJobLimit", client.set_job_limit(set)).await.map(drop)
    }

    /// Opens the stream of reports. Only the start has a deadline.
    pub(crate) async fn watch(&self) -> Result<Streaming<v1::Report>, Failure> {
        let mut client = self.client.clone();
        self.within("Watch", client.watch(v1::WatchRequest {})).await
    }

    async fn within<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let wait = self.deadline + SLACK;
        match tokio::time::timeout(wait, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                Err(Failure::Answer(format!("it does not know the call {call}")))
            }
            Ok(Err(status)) => Err(Failure::Agent(Box::new(status))),
            Err(_) => Err(Failure::Silent { address: self.address.clone(), call, seconds: wait.as_secs() }),
        }
    }
}

/// The stamp for a spec: the kept one if the spec is unchanged (a repeated command is a retry, not
/// a change), otherwise the next generation of the same epoch.
pub(crate) fn stamp_for(kept: Option<&v1::Stamp>, digest: Digest) -> Result<v1::Stamp, Failure> {
    let Some(kept) = kept else {
        return Ok(mooring_api::stamp_to_wire(&Stamp { generation: Generation::ZERO.next(), digest }));
    };
    let kept =
        mooring_api::stamp_from_wire(Some(kept)).map_err(|error| Failure::Answer(error.to_string()))?;
    let generation = if kept.digest == digest { kept.generation } else { kept.generation.next() };
    Ok(mooring_api::stamp_to_wire(&Stamp { generation, digest }))
}

/// Runs an attempt (look, decide, send), and once more if another writer was faster.
pub(crate) async fn twice<T>(mut attempt: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    match attempt().await {
        Err(failure) if failure.is_conflict() => attempt().await,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_spec_keeps_its_stamp_and_a_new_one_gets_the_next() {
        let digest = |byte| Digest::of_sha256([byte; 32]);
        let first = stamp_for(None, digest(1)).unwrap();
        assert_eq!(first.generation, Some(v1::Generation { epoch: 0, counter: 1 }));
        assert_eq!(stamp_for(Some(&first), digest(1)).unwrap(), first);
        let kept =
            v1::Stamp { generation: Some(v1::Generation { epoch: 7, counter: 9 }), digest: vec![1; 32] };
        let next = stamp_for(Some(&kept), digest(2)).unwrap();
        assert_eq!(next.generation, Some(v1::Generation { epoch: 7, counter: 10 }));
    }
}

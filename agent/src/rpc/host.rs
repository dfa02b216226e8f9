//! gRPC service of a host that attaches volumes: translates between wire and connections. No
//! decision is made here.
//!
//! What must never happen here: a secret in a log, or in an answer to somebody who did not ask for
//! it; an error without who can cure it.

use std::pin::Pin;
use std::time::Duration;

use mooring_api::v1;
use mooring_api::v1::host_server::Host;
use mooring_model::{ConnectionReport, Cure, SpecError, VolumeId};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use crate::clock;
use crate::connection::{ConnectionRequest, Connections, PutConnection, Status as Connection};
use crate::rpc::agent::{Secrets, cluster_id, invalid, micros, refused, status_of, volume_id};

/// Number of reports that one watcher may lag behind.
const WATCH_QUEUED_MAX: usize = 256;

/// The service.
pub struct HostService {
    connections: Connections,
    stop: watch::Receiver<bool>,
}

impl HostService {
    /// Makes the service of these connections. It ends its streams at `stop`.
    pub fn new(connections: Connections, stop: watch::Receiver<bool>) -> Self {
        Self { connections, stop }
    }

    fn deadline(&self, asked_ms: u32) -> Duration {
        super::deadline(self.connections.engine().config(), asked_ms)
    }
}

/// Removes the secrets from a connection's spec.
fn without_secrets(mut spec: v1::ConnectionSpec) -> v1::ConnectionSpec {
    for chap in [spec.chap.as_mut(), spec.other_chap.as_mut()].into_iter().flatten() {
        for side in [chap.initiator.as_mut(), chap.mutual.as_mut()].into_iter().flatten() {
            side.secret.clear();
        }
    }
    spec
}

fn to_wire(status: &Connection, secrets: Secrets) -> v1::ConnectionStatus {
    let spec = status.wanted.as_ref().map(mooring_api::connection_to_wire);
    let (stamp, opaque) = status.kept.clone().unzip();
    v1::ConnectionStatus {
        volume_id: status.id.to_string(),
        stamp: stamp.as_ref().map(mooring_api::stamp_to_wire),
        spec: match secrets {
            Secrets::Left => spec.map(without_secrets),
            Secrets::Sent => spec,
        },
        opaque: opaque.unwrap_or_default(),
        report: status.report.as_ref().map(Into::into),
    }
}

fn unknown(id: VolumeId) -> Status {
    let text = format!("this host has no connection to volume {id}, nor had it one in the last 90 days");
    status_of(Code::NotFound, text, Cure::FixSpec)
}

fn took(report: Option<&ConnectionReport>, of: fn(&ConnectionReport) -> Option<Duration>) -> u64 {
    report.and_then(of).map_or(0, micros)
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::ConnectionEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Host for HostService {
    async fn put_connection(
        &self,
        request: Request<v1::PutConnectionRequest>,
    ) -> Result<Response<v1::PutConnectionResponse>, Status> {
        use v1::put_connection_request::Wish;
        let decoded = clock::instant();
        let put = request.into_inner();
        let volume = volume_id(&put.volume_id)?;
        let request = match &put.wish {
            None => {
                let why = "is missing: the request has neither a spec nor a tombstone";
                return Err(invalid(SpecError::new("wish", why)));
            }
            Some(Wish::Spec(spec)) => {
                let spec = mooring_api::connection_from_wire(volume, spec).map_err(invalid)?;
                ConnectionRequest::Spec(Box::new(spec))
            }
            Some(Wish::Tombstone(tombstone)) => ConnectionRequest::Tombstone { revoked: tombstone.revoked },
        };
        let deadline = self.deadline(put.deadline_ms);
        let put = PutConnection {
            cluster: cluster_id(put.sender.as_ref())?,
            volume,
            stamp: mooring_api::stamp_from_wire(put.stamp.as_ref()).map_err(invalid)?,
            request,
            opaque: put.opaque,
            decoded,
        };
        let answer = self.connections.put(put, deadline).await.map_err(|refusal| refused(&refusal))?;
        let report = answer.report.as_ref();
        Ok(Response::new(v1::PutConnectionResponse {
            report: report.map(Into::into),
            done: answer.done,
            timing: Some(v1::ConnectionTiming {
                durable_us: micros(answer.durable),
                login_us: took(report, |report| report.login_took),
                device_us: took(report, |report| report.device_took),
            }),
        }))
    }

    async fn get_connection(
        &self,
        request: Request<v1::GetConnectionRequest>,
    ) -> Result<Response<v1::ConnectionStatus>, Status> {
        let id = volume_id(&request.into_inner().volume_id)?;
        let status = self.connections.status(id).ok_or_else(|| unknown(id))?;
        Ok(Response::new(to_wire(&status, Secrets::Left)))
    }

    async fn check_connection(
        &self,
        request: Request<v1::CheckConnectionRequest>,
    ) -> Result<Response<v1::CheckConnectionResponse>, Status> {
        let id = volume_id(&request.into_inner().volume_id)?;
        let check = self.connections.check_disk(id).await.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new((&check).into()))
    }

    async fn list_connections(
        &self,
        request: Request<v1::ListConnectionsRequest>,
    ) -> Result<Response<v1::ListConnectionsResponse>, Status> {
        let secrets = Secrets::asked(request.into_inner().with_secrets);
        let statuses = self.connections.statuses();
        let connections = statuses.iter().map(|status| to_wire(status, secrets)).collect();
        Ok(Response::new(v1::ListConnectionsResponse { connections }))
    }

    type WatchConnectionsStream = Events;

    async fn watch_connections(
        &self,
        _: Request<v1::WatchConnectionsRequest>,
    ) -> Result<Response<Events>, Status> {
        // Subscribed before the state is read: no change in between is lost.
        let changes = self.connections.changes();
        let (send, receive) = mpsc::channel(WATCH_QUEUED_MAX);
        let (connections, mut stop) = (self.connections.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = report(&connections, changes, &send) => {}
                // A stream without an end must not hold up the end of the agent.
                _ = stop.wait_for(|stop| *stop) => {
                    let text = "the agent stops, and its connections stay: watch again when it is back";
                    // A watcher that has not read everything before sees the connection end.
                    let _ = send.try_send(Err(status_of(Code::Unavailable, text, Cure::Retry)));
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }
}

/// Reports everything, and then changes, until nobody reads any more or the reader lags too far
/// behind.
async fn report(
    connections: &Connections,
    mut changes: broadcast::Receiver<ConnectionReport>,
    send: &mpsc::Sender<Result<v1::ConnectionEvent, Status>>,
) {
    use v1::connection_event::What;
    let event = |what| Ok(v1::ConnectionEvent { what: Some(what) });
    let all = connections.statuses();
    let reports =
        all.iter().filter_map(|status| status.report.as_ref()).map(|report| What::Report(report.into()));
    let first: Vec<_> = reports.chain([What::Synced(v1::SyncMark {})]).collect();
    for what in first {
        if send.send(event(what)).await.is_err() {
            return;
        }
    }
    loop {
        let what = match changes.recv().await {
            Ok(report) => What::Report((&report).into()),
            Err(broadcast::error::RecvError::Closed) => return,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                let text = format!("{missed} reports were missed by this slow reader: watch again");
                return drop(send.send(Err(status_of(Code::DataLoss, text, Cure::Retry))).await);
            }
        };
        if send.send(event(what)).await.is_err() {
            return;
        }
    }
}

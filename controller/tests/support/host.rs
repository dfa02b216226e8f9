//! The half of an agent in memory that attaches volumes.

use mooring_api::v1::host_server::Host;
use mooring_api::v1::{self, put_connection_request};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::{Fake, Fence, Object, cured, fence, words};

#[tonic::async_trait]
impl Host for Fake {
    async fn put_connection(
        &self,
        request: Request<v1::PutConnectionRequest>,
    ) -> Result<Response<v1::PutConnectionResponse>, Status> {
        let put = request.into_inner();
        let id = put.volume_id.clone();
        let (spec, hard, word) = match put.wish {
            Some(put_connection_request::Wish::Spec(mut spec)) => {
                // An agent loses unknown fields when it reads a spec.
                if self.state().knobs.knows_no_cache {
                    spec.attachments.iter_mut().for_each(|path| path.cache_off = false);
                }
                (Some(spec), false, "spec")
            }
            Some(put_connection_request::Wish::Tombstone(tombstone)) => {
                (None, tombstone.revoked, if tombstone.revoked { "revoked" } else { "gone" })
            }
            None => return Err(cured(Code::InvalidArgument, "no wish", "fix_spec")),
        };
        self.count(put.sender.as_ref(), format!("connection {id} {} {word}", words(put.stamp.as_ref())))?;
        {
            let mut state = self.state();
            if fence(state.connections.get(&id), put.stamp.as_ref())? == Fence::Newer {
                let kept = state.connections.get(&id).and_then(|kept| kept.spec.clone()).unwrap_or_default();
                let loses = kept.attachments.iter().any(|old| {
                    spec.as_ref().is_none_or(|spec| {
                        spec.attachments.iter().all(|new| new.attachment_id != old.attachment_id)
                    })
                });
                if loses && !hard && !state.knobs.holders.is_empty() {
                    let text = format!("/dev/sda is held open by {}", state.knobs.holders.join(", "));
                    return Err(cured(Code::FailedPrecondition, &text, "operator"));
                }
                let logged_in = spec.is_some() && state.knobs.broken.is_none();
                let key = (id.clone(), state.initiator.clone());
                let mut sessions = self.world.sessions.lock().unwrap();
                if logged_in {
                    sessions.insert(key)
                } else {
                    sessions.remove(&key)
                };
                drop(sessions);
                let object = Object { stamp: put.stamp, spec, opaque: put.opaque, hard };
                state.connections.insert(id.clone(), object);
            }
        }
        self.publish_connection(&id);
        let state = self.state();
        let report = state.connection_report(&id);
        let done = matches!(report.phase(), v1::ConnectionPhase::Ready | v1::ConnectionPhase::Gone);
        Ok(Response::new(v1::PutConnectionResponse { report: Some(report), done, timing: None }))
    }

    async fn get_connection(
        &self,
        request: Request<v1::GetConnectionRequest>,
    ) -> Result<Response<v1::ConnectionStatus>, Status> {
        self.enter()?;
        let id = request.into_inner().volume_id;
        let state = self.state();
        let kept = state.connections.get(&id).ok_or_else(|| Status::not_found("no such connection"))?;
        Ok(Response::new(v1::ConnectionStatus {
            volume_id: id.clone(),
            stamp: kept.stamp.clone(),
            spec: kept.spec.clone(),
            opaque: kept.opaque.clone(),
            report: Some(state.connection_report(&id)),
        }))
    }

    async fn list_connections(
        &self,
        _: Request<v1::ListConnectionsRequest>,
    ) -> Result<Response<v1::ListConnectionsResponse>, Status> {
        self.enter()?;
        let state = self.state();
        let connections = state
            .connections
            .iter()
            .map(|(id, kept)| v1::ConnectionStatus {
                volume_id: id.clone(),
                stamp: kept.stamp.clone(),
                spec: kept.spec.clone(),
                opaque: kept.opaque.clone(),
                report: Some(state.connection_report(id)),
            })
            .collect();
        Ok(Response::new(v1::ListConnectionsResponse { connections }))
    }

    type WatchConnectionsStream = ReceiverStream<Result<v1::ConnectionEvent, Status>>;

    async fn watch_connections(
        &self,
        _: Request<v1::WatchConnectionsRequest>,
    ) -> Result<Response<Self::WatchConnectionsStream>, Status> {
        self.enter()?;
        let changes = self.events.subscribe();
        Ok(Response::new(self.follow(Vec::new(), changes)))
    }

    async fn check_connection(
        &self,
        request: Request<v1::CheckConnectionRequest>,
    ) -> Result<Response<v1::CheckConnectionResponse>, Status> {
        self.enter()?;
        let id = request.into_inner().volume_id;
        let state = self.state();
        if state.knobs.knows_no_cache {
            return Err(Status::unimplemented("an agent of an earlier release"));
        }
        let report = state.connection_report(&id);
        let user = |(pid, name): (u32, &String)| v1::DiskUser {
            device: "sda".into(),
            kind: v1::DiskUserKind::Process.into(),
            name: name.clone(),
            pid,
            access: v1::DiskAccess::Buffered.into(),
            filesystem: String::new(),
        };
        Ok(Response::new(v1::CheckConnectionResponse {
            disk: report.disk,
            cache_off: report.cache_off,
            users: (1..).zip(&state.knobs.holders).map(user).collect(),
            unseen: Vec::new(),
            problems: Vec::new(),
        }))
    }
}

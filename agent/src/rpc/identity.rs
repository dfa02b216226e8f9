//! gRPC service that renews and ends the agent's certificate. No decision is made here.
//!
//! What must never happen here: a private key in an answer or a log.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use mooring_api::v1;
use mooring_api::v1::identity_server::Identity;
use mooring_model::{Chain, Cure};
use tonic::{Code, Request, Response, Status};

use crate::door::{Door, DoorError};
use crate::identity::IdentityError;
use crate::rpc::agent::status_of;

/// The service. Without a door the agent has no TLS.
pub(crate) struct IdentityService {
    door: Option<Arc<Door>>,
}

impl IdentityService {
    pub(crate) fn new(door: Option<Arc<Door>>) -> Self {
        Self { door }
    }

    /// Runs a call on a thread that nobody waits for, because it writes and syncs files.
    async fn at_door<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Door) -> Result<T, DoorError> + Send + 'static,
    ) -> Result<T, Status> {
        let Some(door) = self.door.clone() else {
            let text = "this agent has no [tls] in its configuration, and so no certificate";
            return Err(status_of(Code::FailedPrecondition, text, Cure::Operator));
        };
        let done = tokio::task::spawn_blocking(move || call(&door)).await;
        let done = done.map_err(|error| status_of(Code::Internal, error.to_string(), Cure::Bug))?;
        done.map_err(|error| {
            let (code, cure) = match error {
                DoorError::Refused(_) | DoorError::Identity(IdentityError::OtherKey) => {
                    (Code::InvalidArgument, Cure::FixSpec)
                }
                DoorError::Identity(_) | DoorError::Use(_) | DoorError::Authority(_) => {
                    (Code::FailedPrecondition, Cure::Operator)
                }
            };
            let text = Chain(&error).to_string();
            tracing::warn!(error = text, "the certificate is not changed");
            status_of(code, text, cure)
        })
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn new_key(&self, _: Request<v1::NewKeyRequest>) -> Result<Response<v1::NewKeyResponse>, Status> {
        let csr = self.at_door(Door::new_key).await?;
        Ok(Response::new(v1::NewKeyResponse { csr }))
    }

    async fn set_certificate(
        &self,
        request: Request<v1::SetCertificateRequest>,
    ) -> Result<Response<v1::SetCertificateResponse>, Status> {
        let v1::SetCertificateRequest { certificate, authority } = request.into_inner();
        let ends = self.at_door(move |door| door.set_certificate(&certificate, &authority)).await?;
        let ends = ends.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let expires_at_us = i64::try_from(ends).unwrap_or(i64::MAX);
        Ok(Response::new(v1::SetCertificateResponse { expires_at_us }))
    }

    async fn leave(&self, _: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        self.at_door(Door::leave).await?;
        Ok(Response::new(v1::LeaveResponse {}))
    }
}

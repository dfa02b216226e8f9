//! One connection to the API, kept alive, with as little work as a client can have, so that the
//! machine is left to the controller.
//!
//! What must never happen here: a failed request that counts as a fast one.

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Address of the API and credentials of the caller.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// The controller's address, as IP:PORT
    #[arg(long)]
    pub address: String,
    /// The project
    #[arg(long)]
    pub project: String,
    /// The caller's token
    #[arg(long)]
    pub token: String,
    /// A service's token beside it, as the compute service sends it
    #[arg(long)]
    pub service_token: String,
}

/// A connection.
pub struct Client {
    target: Target,
    sender: SendRequest<Full<Bytes>>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The complete body.
    pub body: Bytes,
}

impl Answer {
    /// Returns the body; an error if the answer has another code.
    pub fn expect(&self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "{}: {}", self.status, String::from_utf8_lossy(&self.body));
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).context("understand the answer")
    }
}

impl Client {
    /// Connects.
    pub async fn connect(target: &Target) -> Result<Self> {
        let stream = TcpStream::connect(&target.address)
            .await
            .with_context(|| format!("connect to {}", target.address))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The request that it breaks shows the connection's end.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { target: target.clone(), sender })
    }

    /// Sends a request below the project's address, and reads the whole answer.
    pub async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let uri = format!("/v3/{}{path}", self.target.project);
        let request = Request::builder()
            .method(method)
            .uri(&uri)
            .header("host", &self.target.address)
            .header("x-auth-token", &self.target.token)
            .header("x-service-token", &self.target.service_token)
            .header("openstack-api-version", "volume 3.60")
            .header("content-type", "application/json");
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        self.sender.ready().await?;
        let answer = self.sender.send_request(request.body(Full::new(body))?).await;
        let answer = answer.with_context(|| format!("ask {uri}"))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body })
    }
}

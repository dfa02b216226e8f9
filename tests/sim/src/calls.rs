//! Faults of the network on calls. Every call takes time. A storm loses calls before or after they
//! are carried out, delivers them late (also after their caller has given up), or delivers them
//! twice.
//!
//! What must never happen here: a call whose content is changed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use http_body_util::{BodyExt, Full};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::lie::Liar;
use crate::{Broken, lock};

/// Fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// The call never arrives, and nobody says so.
    Lost,
    /// The connection says at once that the call did not arrive.
    Refused,
    /// The call is carried out, and the answer never arrives.
    AnswerLost,
    /// The call arrives this much later, whether or not its caller still waits.
    Late(Duration),
    /// The call is carried out a second time, this much later.
    Twice(Duration),
}

/// Chooses the fates of all calls of one run. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Calls(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Percentage of the calls that something happens to.
    storm: u8,
    /// Set in runs with [`Broken::Answer`], otherwise `None`.
    liar: Option<Liar>,
}

impl Calls {
    pub(crate) fn new(rng: Rng, broken: Option<Broken>) -> Self {
        let liar = (broken == Some(Broken::Answer)).then(Liar::default);
        Self(Arc::new(Mutex::new(State { rng, storm: 0, liar })))
    }

    pub(crate) fn set_storm(&self, per_cent: u8) {
        lock(&self.0).storm = per_cent;
    }

    fn lie(&self, path: &str, body: &Bytes) -> Option<Response<Body>> {
        lock(&self.0).liar.as_mut()?.answer(path, body)
    }

    fn latency(&self) -> Duration {
        Duration::from_millis(lock(&self.0).rng.u64(0..5))
    }

    fn fate(&self) -> Fate {
        let mut state = lock(&self.0);
        if state.rng.u8(0..100) >= state.storm {
            return Fate::Arrives;
        }
        let delay = Duration::from_millis(state.rng.u64(1..20_000));
        match state.rng.u8(0..5) {
            0 => Fate::Lost,
            1 => Fate::Refused,
            2 => Fate::AnswerLost,
            3 => Fate::Late(delay),
            _ => Fate::Twice(delay),
        }
    }
}

impl<S> Layer<S> for Calls {
    type Service = Server<S>;

    fn layer(&self, inner: S) -> Server<S> {
        Server { inner, calls: self.clone() }
    }
}

/// An agent behind this network.
#[derive(Debug, Clone)]
pub(crate) struct Server<S> {
    inner: S,
    calls: Calls,
}

type Answer = Result<Response<Body>, Infallible>;

impl<S> Service<Request<Body>> for Server<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The inner service of tonic is always ready, and is cloned for each call.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, calls) = (self.inner.clone(), self.calls.clone());
        Box::pin(async move {
            tokio::time::sleep(calls.latency()).await;
            // A stream of reports is one endless call; `net.rs` decides about its faults.
            let fate = if request.uri().path().contains("/Watch") { Fate::Arrives } else { calls.fate() };
            let (head, body) = request.into_parts();
            // The client has gone away in the middle of its request.
            let Ok(body) = body.collect().await else { return std::future::pending().await };
            let body = body.to_bytes();
            if let Some(answer) = calls.lie(head.uri.path(), &body) {
                return Ok(answer);
            }
            let again = || Request::from_parts(head.clone(), Body::new(Full::new(body.clone())));
            let answer = match fate {
                Fate::Lost => std::future::pending().await,
                Fate::Refused => return Ok(Status::unavailable("the network is down").into_http()),
                Fate::Arrives => carry(inner, again()).await,
                Fate::AnswerLost => {
                    // The call is carried out even if its caller gives up.
                    let _ = tokio::spawn(carry(inner, again())).await;
                    std::future::pending().await
                }
                Fate::Late(delay) => {
                    let call = again();
                    let late = tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        carry(inner, call).await
                    });
                    match late.await {
                        Ok(answer) => answer,
                        Err(_) => std::future::pending().await,
                    }
                }
                Fate::Twice(delay) => {
                    let (second, call) = (inner.clone(), again());
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        drop(carry(second, call).await);
                    });
                    carry(inner, again()).await
                }
            };
            tokio::time::sleep(calls.latency()).await;
            answer
        })
    }
}

async fn carry<S>(mut inner: S, request: Request<Body>) -> Answer
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    inner.call(request).await
}

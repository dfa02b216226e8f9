//! The unread rest of a request's body: a refusal is sent before the body is complete, and often
//! before its first byte.
//!
//! A connection that is closed with unread bytes is reset, and the reset overtakes the answer. A
//! client that sends too much would then see a broken connection instead of its 413. So the rest is
//! read and discarded, within bounds, before the answer goes out.
//!
//! What must never happen here: memory use that a client decides; an answer that waits for a client
//! longer than [`REST_TIMEOUT`]; a `100 Continue` for a refused body.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use tokio_stream::{Stream, StreamExt};

/// The most bytes that are read of a refused body. A client that sends more may find the connection
/// reset.
const REST_BYTES_MAX: usize = 1 << 20;

/// The time for which a refusal waits for the rest of a body.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of a request in progress; `None` inside if there is nothing to read.
pub(super) struct Rest(Option<Shared>);

/// A body shared by the handler, which reads first, and [`Rest::take`].
#[derive(Clone)]
struct Shared(Arc<Mutex<BodyDataStream>>);

impl Stream for Shared {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_next(context)
    }
}

impl Rest {
    /// Keeps hold of a request's body. Does nothing without a body, or for a client that asks
    /// before it sends (`Expect`): that client sends nothing unless the body is read.
    pub(super) fn of(request: Request) -> (Request, Self) {
        if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
            return (request, Self(None));
        }
        let (head, body) = request.into_parts();
        let shared = Shared(Arc::new(Mutex::new(body.into_data_stream())));
        (Request::from_parts(head, Body::from_stream(shared.clone())), Self(Some(shared)))
    }

    /// Reads and discards the rest, within bounds. Returns at once if everything was read.
    pub(super) async fn take(self) {
        let Some(mut body) = self.0 else { return };
        let all = async {
            let mut taken = 0;
            while let Some(Ok(bytes)) = body.next().await {
                taken += bytes.len();
                if taken > REST_BYTES_MAX {
                    return;
                }
            }
        };
        // Done, too much, too slow or broken: the answer goes out in every case.
        let _ = tokio::time::timeout(REST_TIMEOUT, all).await;
    }
}

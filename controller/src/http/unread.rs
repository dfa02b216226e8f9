//! What of a request's body nobody has read: a refusal is said before the body is complete, and often before its first byte.
//!
//! A connection that is closed while bytes of the client are unread is reset, and a reset overtakes the answer: a client that
//! sends too much would hear of a broken connection instead of its 413. So the rest is taken and thrown away, within bounds,
//! before the answer goes out.
//!
//! What must never happen here: memory that a client decides on; an answer that waits for a client for longer than
//! [`REST_TIMEOUT`]; a `100 Continue` for a body that was refused.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use tokio_stream::{Stream, StreamExt};

/// How many bytes of a refused body are taken. Whoever sends more may find the connection reset.
const REST_BYTES_MAX: usize = 1 << 20;

/// How long a refusal waits for the rest of a body.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of a request that is being worked on.
pub(super) struct Rest(Option<Shared>);

/// Read by who works on the request, and then by [`Rest::take`].
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
    /// Keeps hold of a request's body. Without one there is nothing to hold, and who asks before sending (`Expect`) sends
    /// nothing unless somebody reads.
    pub(super) fn of(request: Request) -> (Request, Self) {
        if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
            return (request, Self(None));
        }
        let (head, body) = request.into_parts();
        let shared = Shared(Arc::new(Mutex::new(body.into_data_stream())));
        (Request::from_parts(head, Body::from_stream(shared.clone())), Self(Some(shared)))
    }

    /// Takes what is left, within bounds. At once done where all was read.
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

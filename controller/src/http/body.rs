//! Request bodies: JSON of a bounded size that arrives within a bounded time.
//!
//! What must never happen here: memory use that a client decides; a body that a browser can send
//! without asking first (only JSON is accepted, which no plain form can declare).

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde_json::Value;

use super::audit::Notes;
use super::fault::Fault;

/// The largest request body in bytes: Cinder's `osapi_max_request_body_size`.
pub const BODY_BYTES_MAX: usize = 114_688;

/// The time within which a body must be complete, unless the options say otherwise.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that a body may take, carried with the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyTimeout(pub(super) Duration);

/// A JSON body.
pub(super) struct Body(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Fault;

    async fn from_request(request: Request, _: &S) -> Result<Self, Fault> {
        let kind = content_type(&request)?;
        let notes = request.extensions().get::<Notes>().cloned();
        let bytes = read(request).await?;
        if let Some(notes) = notes {
            notes.body(bytes.clone());
        }
        if bytes.is_empty() {
            return Err(Fault::bad_request("Malformed request body"));
        }
        if kind == Kind::Missing {
            return Err(Fault::bad_request(
                "Malformed request body: Content-Type: application/json is missing.",
            ));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Fault::bad_request("Malformed request body: it is not UTF-8."))?;
        // serde_json follows 128 levels and no more.
        serde_json::from_str(text).map(Self).map_err(|error| {
            let deep = error.to_string().starts_with("recursion limit");
            Fault::bad_request(if deep {
                "Malformed request body: it is nested too deeply."
            } else {
                "Malformed request body"
            })
        })
    }
}

#[derive(PartialEq, Eq)]
enum Kind {
    Json,
    Missing,
}

fn content_type(request: &Request) -> Result<Kind, Fault> {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else { return Ok(Kind::Missing) };
    let text = value.to_str().unwrap_or_default();
    let media = text.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/json")
        || media.eq_ignore_ascii_case("application/vnd.openstack.volume+json")
    {
        return Ok(Kind::Json);
    }
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported Content-Type"))
}

fn too_large() -> Fault {
    let text = format!("Request is too large: a body has at most {BODY_BYTES_MAX} bytes.");
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

async fn read(request: Request) -> Result<Bytes, Fault> {
    let BodyTimeout(limit) = request.extensions().get().copied().unwrap_or(BodyTimeout(BODY_TIMEOUT));
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX) {
        return Err(too_large());
    }
    let body = request.into_body();
    match tokio::time::timeout(limit, axum::body::to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if error.to_string().contains("length limit exceeded") => Err(too_large()),
        Ok(Err(_)) => Err(Fault::bad_request("Malformed request body: it is not complete.")),
        Err(_) => {
            let text = format!("The request's body did not arrive within {} s.", limit.as_secs_f32());
            Err(Fault::new(StatusCode::REQUEST_TIMEOUT, text))
        }
    }
}

//! Errors as the Block Storage API says them: `{"<fault>": {"code": N, "message": "…"}}`.
//!
//! What must never happen here: the inside of a failure (a path, a query, a secret) in an answer.
//! The caller gets the class of the error. The log gets the rest, once, under the request's id.

mod sentences;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::service::Refusal;
pub use sentences::{in_words, sentence};

/// Text of each answer for which the server is to blame.
const SERVER_ERRED: &str =
    "The server has either erred or is incapable of performing the requested operation.";

/// Text of an answer about a bad request when nothing better is known.
pub(super) const MALFORMED: &str =
    "The server could not comply with the request since it is either malformed or otherwise incorrect.";

/// The answer of a route: a body in JSON, or why the request failed.
pub(super) type Answer = Result<Json<Value>, Fault>;

/// The answer to a request that failed.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    message: String,
    detail: Option<String>,
    /// The message without the values that it repeats of the request, for the audit log.
    problem: Option<String>,
}

/// Log text about an answer, carried to the layer that knows the request's id.
#[derive(Debug, Clone)]
pub(super) struct Detail(pub(super) String);

/// Audit-log text about an answer. The audit log removes anything else that comes from the
/// request's body.
#[derive(Debug, Clone)]
pub(super) struct Problem(pub(super) String);

impl Fault {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), detail: None, problem: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Cinder's `InvalidInput`.
    pub(super) fn invalid_input(message: impl std::fmt::Display) -> Self {
        Self::bad_request(format!("Invalid input received: {message}"))
    }

    pub(super) fn not_found(kind: &'static str, what: impl Into<String>) -> Self {
        Refusal::NotFound { kind, what: what.into() }.into()
    }

    /// A method that does not exist at the microversion that was asked for.
    pub(super) fn not_at_this_version() -> Self {
        Self::new(StatusCode::NOT_FOUND, "The resource could not be found.")
    }

    /// A part of the Block Storage API that Mooring does not implement yet.
    pub(super) fn not_implemented(what: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("Mooring does not implement {what} yet."))
    }

    pub(super) fn internal(detail: impl Into<String>) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: SERVER_ERRED.to_owned(),
            detail: Some(detail.into()),
            problem: None,
        }
    }

    /// The fault's name, by its status code.
    fn name(&self) -> &'static str {
        match self.status.as_u16() {
            400 => "badRequest",
            401 => "unauthorized",
            403 => "forbidden",
            404 => "itemNotFound",
            405 => "badMethod",
            408 => "requestTimeout",
            409 => "conflictingRequest",
            412 => "preconditionFailed",
            413 => "overLimit",
            415 => "badMediaType",
            501 => "notImplemented",
            503 => "serviceUnavailable",
            504 => "gatewayTimeout",
            _ => "computeFault",
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let refusal = in_words(refusal);
        let text = refusal.to_string();
        let problem = problem(&refusal, &text);
        let (status, message) = match refusal {
            Refusal::Invalid(_) => (StatusCode::BAD_REQUEST, text),
            Refusal::Unauthenticated(_) => (StatusCode::UNAUTHORIZED, text),
            Refusal::Forbidden(_) => (StatusCode::FORBIDDEN, text),
            Refusal::Conflict(_) | Refusal::OtherHost(_) => (StatusCode::CONFLICT, text),
            Refusal::Exceeded(_) => (StatusCode::PAYLOAD_TOO_LARGE, text),
            Refusal::Unimplemented(_) => (StatusCode::NOT_IMPLEMENTED, text),
            Refusal::Changed(_) => (StatusCode::PRECONDITION_FAILED, text),
            Refusal::Pending(_) => (StatusCode::GATEWAY_TIMEOUT, text),
            Refusal::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, text),
            // `in_words` has turned each rule into a sentence.
            Refusal::Rule(..) => return Self::internal(text),
            Refusal::Internal(detail) => return Self::internal(detail),
            // Cinder's own words, where they differ from "<kind> <what> could not be found."
            Refusal::NotFound { kind: "Attachment", what } => (
                StatusCode::NOT_FOUND,
                format!("Volume attachment could not be found with filter: attachment_id = {what}."),
            ),
            Refusal::NotFound { kind: "Volume type", what }
                if Uuid::try_parse(&what).is_err() && !what.starts_with("with name ") =>
            {
                (StatusCode::NOT_FOUND, format!("Volume type with name {what} could not be found."))
            }
            Refusal::NotFound { kind: "Metadata", what } => {
                (StatusCode::NOT_FOUND, format!("Volume {what}."))
            }
            Refusal::NotFound { .. } => (StatusCode::NOT_FOUND, text),
        };
        Self { problem, ..Self::new(status, message) }
    }
}

/// Audit-log text of a refusal, without the values that it repeats of a bad request. `None` for an
/// internal error.
fn problem(refusal: &Refusal, text: &str) -> Option<String> {
    match refusal {
        Refusal::NotFound { kind, .. } => Some(format!("{kind} could not be found")),
        // A value stands in quotes, or after the last words.
        Refusal::Invalid(_) => {
            let plain = text.split(['\'', '"', '`']).next().unwrap_or_default();
            Some(plain.trim_end_matches([' ', ':', '(']).to_owned()).filter(|plain| !plain.is_empty())
        }
        Refusal::Internal(_) => None,
        _ => Some(text.to_owned()),
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut inner = Map::new();
        inner.insert("code".to_owned(), json!(self.status.as_u16()));
        inner.insert("message".to_owned(), json!(self.message));
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            inner.insert("retryAfter".to_owned(), json!("0"));
        }
        let mut response = (self.status, Json(json!({ self.name(): inner }))).into_response();
        // A message of the HTTP layer about a body may repeat parts of the body.
        let repeats = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::NOT_IMPLEMENTED];
        let repeats = repeats.contains(&self.status);
        let problem = self.problem.clone().or_else(|| (!repeats).then(|| self.message.clone()));
        response.extensions_mut().insert(Problem(problem.unwrap_or_else(|| self.name().to_owned())));
        let headers = response.headers_mut();
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("0"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status.is_server_error() {
            let detail = self.detail.unwrap_or(self.message);
            response.extensions_mut().insert(Detail(detail));
        }
        response
    }
}

/// Marks an answer of the router itself: the request reached no API, so the answer echoes no
/// version.
#[derive(Debug, Clone)]
pub(super) struct Unrouted;

/// The answer that Cinder gives where it has no route, for every method.
pub(super) fn unknown_route() -> Response {
    let body = json!({
        "message": "The resource could not be found.<br /><br />\n\n\n",
        "code": "404 Not Found",
        "title": "Not Found",
    });
    let mut response = (StatusCode::NOT_FOUND, Json(body)).into_response();
    response.extensions_mut().insert(Unrouted);
    response
}

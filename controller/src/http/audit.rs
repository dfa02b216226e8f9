//! The audit log at the front: one line for each call that changes something, or would have, also
//! if it was refused; and `GET /mooring/v1/audit`, which reads it.
//!
//! A line is made of the call's address, its caller, and the notes of its handler: an action's
//! name, ids in the body, ids of created objects. It goes to the journal (target `audit`) and to
//! the [`Backend`] once the answer is known.
//!
//! What must never happen here: a call that changes something without a line; text of a body, a
//! query or a header in a line; an answer that waits for its line.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::{Json, routing};
use jiff::Timestamp;
use mooring_systemd::journal::Journal;
use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use super::backend::Backend;
use super::context::Ctx;
use super::fault::{Fault, Problem};
use super::openapi;
use super::routes::Routes;
use super::views::rfc3339;
use crate::domain::Identity;
use crate::domain::{AuditCall, AuditLine, AuditObject, AuditQuery, Caller};
use crate::service::AUDIT_LINES_DEFAULT;

/// The longest id, name or role in a line, in characters.
const WORD_CHARS_MAX: usize = 128;

/// The longest problem in a line, in characters.
const PROBLEM_CHARS_MAX: usize = 256;

/// The fewest characters of a body's text that a problem must not repeat: shorter texts are parts
/// of any word.
const REPEATED_MIN: usize = 4;

/// The most objects of one line.
const OBJECTS_MAX: usize = 16;

/// Returns `true` if calls of this method have a line.
pub(super) fn is_recorded(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

/// A client's text, bounded, without line ends and other unprintable characters.
fn bounded(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(plain).collect()
}

/// An id in the form that is searched for: a UUID has one spelling.
fn id_of(text: &str) -> String {
    Uuid::try_parse(text).map_or_else(|_| bounded(text, WORD_CHARS_MAX), |id| id.to_string())
}

/// A text without the texts of a body that have at least [`REPEATED_MIN`] characters.
fn without(text: &str, body: &[u8]) -> String {
    let mut text = text.to_owned();
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return text };
    let mut values = vec![&value];
    while let Some(value) = values.pop() {
        match value {
            Value::String(word) if word.chars().count() >= REPEATED_MIN => text = text.replace(word, "…"),
            Value::Array(items) => values.extend(items),
            Value::Object(map) => values.extend(map.values()),
            _ => {}
        }
    }
    text
}

/// A line under construction. Cheap to clone: all clones share one line.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    call: AuditCall,
    /// The request's body: no line may repeat a text of it.
    body: Bytes,
}

impl fmt::Debug for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noted").field("call", &self.call).finish_non_exhaustive()
    }
}

impl Notes {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut AuditCall)) {
        change(&mut self.noted().call);
    }

    /// Notes the body that was read: no line repeats a text of it.
    pub(super) fn body(&self, body: Bytes) {
        self.noted().body = body;
    }

    /// Notes the authenticated user.
    pub(super) fn identity(&self, identity: &Identity) {
        // Roles are stored as words of one text.
        let word = |role: &String| bounded(role, WORD_CHARS_MAX).replace(' ', "_");
        self.change(|call| {
            call.user = Some(bounded(&identity.user, WORD_CHARS_MAX));
            call.project.clone_from(&identity.project);
            call.roles = identity.roles.iter().map(word).collect();
        });
    }

    /// Notes the project that the caller acts for.
    pub(super) fn caller(&self, caller: &Caller) {
        self.change(|call| call.project = Some(bounded(&caller.project, WORD_CHARS_MAX)));
    }

    /// Notes the name of an action that this program knows.
    pub(super) fn action(&self, name: &str) {
        self.change(|call| call.action = Some(name.to_owned()));
    }

    /// Notes an object of the call, beside the objects in its address.
    pub(super) fn object(&self, kind: &str, id: &(impl ToString + ?Sized)) {
        let object = AuditObject { kind: kind.to_owned(), id: id_of(&id.to_string()) };
        self.change(|call| {
            if call.objects.len() < OBJECTS_MAX && !call.objects.contains(&object) {
                call.objects.push(object);
            }
        });
    }
}

/// The line of a call in progress. It is also written if it is dropped before the answer is known
/// (a handler that panics, a stop).
pub(super) struct Line<B: Backend> {
    notes: Notes,
    app: App<B>,
    done: bool,
}

impl<B: Backend> Line<B> {
    /// Begins the line of a request. `api` is the API of its address, with the path below it.
    pub(super) fn begin(app: &App<B>, request: &mut Request, id: &str, api: Option<openapi::Api>) -> Self {
        let notes = Notes::default();
        notes.change(|call| {
            id.clone_into(&mut call.request);
            call.method = request.method().to_string();
            call.from = from(request);
            if let Some((api, path)) = api
                && let Some(found) = openapi::find((api, &path), request.method())
            {
                call.operation = Some(found.id.to_owned());
                let object = |(kind, id): (String, String)| AuditObject { kind, id: id_of(&id) };
                call.objects = found.objects.into_iter().map(object).collect();
            }
        });
        request.extensions_mut().insert(notes.clone());
        Self { notes, app: app.clone(), done: false }
    }

    /// Ends the line with the answer.
    pub(super) fn end(mut self, response: &Response) {
        self.keep(
            response.status(),
            response.extensions().get::<Problem>().map(|problem| problem.0.as_str()),
        );
    }

    fn keep(&mut self, status: StatusCode, problem: Option<&str>) {
        self.done = true;
        let Noted { mut call, body } = std::mem::take(&mut *self.notes.noted());
        call.status = status.as_u16();
        call.problem = problem.map(|text| bounded(&without(text, &body), PROBLEM_CHARS_MAX));
        log(&call);
        self.app.backend().record(call);
    }
}

impl<B: Backend> Drop for Line<B> {
    fn drop(&mut self) {
        if !self.done {
            self.keep(StatusCode::INTERNAL_SERVER_ERROR, Some("it ended before its answer was known"));
        }
    }
}

/// The address of the connection's other end.
fn from(request: &Request) -> Option<IpAddr> {
    Some(request.extensions().get::<ConnectInfo<SocketAddr>>()?.0.ip().to_canonical())
}

/// The name under which the journal has the controller's lines.
const JOURNAL_NAME: &str = "mooring-controller";

/// Room for most lines, in bytes.
const LINE_BYTES: usize = 512;

/// The call as the fields of an entry in the journal. Unknown facts have no field.
fn fields(call: &AuditCall) -> Vec<(&'static str, String)> {
    let known = [
        ("MOORING_REQUEST_ID", Some(call.request.clone())),
        ("MOORING_USER_ID", call.user.clone()),
        ("MOORING_PROJECT_ID", call.project.clone()),
        ("MOORING_FROM", call.from.map(|from| from.to_string())),
        ("MOORING_METHOD", Some(call.method.clone())),
        ("MOORING_OPERATION", call.operation.clone()),
        ("MOORING_ACTION", call.action.clone()),
        ("MOORING_STATUS", Some(call.status.to_string())),
        ("MOORING_PROBLEM", call.problem.clone()),
    ];
    let mut fields: Vec<_> =
        known.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect();
    fields.extend(call.roles.iter().map(|role| ("MOORING_ROLE", role.clone())));
    let object = |object: &AuditObject| ("MOORING_OBJECT", format!("{}:{}", object.kind, object.id));
    fields.extend(call.objects.iter().map(object));
    fields
}

/// The call's facts as one line: the names of its fields in small letters, without their prefix.
fn in_line(fields: &[(&str, String)]) -> String {
    let mut text = String::with_capacity(LINE_BYTES);
    text.push_str("call");
    for (name, value) in fields {
        text.push(' ');
        text.extend(name.trim_start_matches("MOORING_").chars().map(|c| c.to_ascii_lowercase()));
        // A text takes whatever is written to it.
        let _ = write!(text, "={value:?}");
    }
    text
}

/// Writes the journal's line: an entry with fields where standard error leads to the journal, an
/// event of the log elsewhere, or if the journal does not take the entry.
fn log(call: &AuditCall) {
    if !tracing::enabled!(target: "audit", tracing::Level::INFO) {
        return;
    }
    let mut fields = fields(call);
    let text = in_line(&fields);
    if let Some(journal) = Journal::of_stderr() {
        fields.extend([
            ("MESSAGE", format!("INFO audit: {text}")),
            ("PRIORITY", "6".to_owned()),
            ("SYSLOG_IDENTIFIER", JOURNAL_NAME.to_owned()),
        ]);
        if journal.send(&fields).is_ok() {
            return;
        }
    }
    tracing::info!(target: "audit", "{text}");
}

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new().route("/audit", routing::get(list::<B>))
}

/// Reads a time of the query, in RFC 3339.
fn time(ctx: &Ctx, key: &str) -> Result<Option<SystemTime>, Fault> {
    let Some(text) = ctx.query.get(key) else { return Ok(None) };
    let time: Timestamp = text.parse().map_err(|_| {
        Fault::bad_request(format!("{key}: want a time as 2026-11-18T11:06:40Z (a + in an address is %2B)"))
    })?;
    Ok(Some(time.into()))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Json<Value>, Fault> {
    ctx.query.only(&["since", "until", "user", "object", "limit", "marker"])?;
    let limit = ctx.query.number("limit")?.map_or(AUDIT_LINES_DEFAULT, |limit| {
        // The service has a smaller bound.
        u32::try_from(limit).unwrap_or(u32::MAX)
    });
    let query = AuditQuery {
        since: time(&ctx, "since")?,
        until: time(&ctx, "until")?,
        user: ctx.query.get("user").map(str::to_owned),
        object: ctx.query.get("object").map(id_of),
        limit,
        // No line has a larger number.
        marker: ctx.query.number("marker")?.map(|marker| marker.min(i64::MAX.unsigned_abs())),
    };
    let lines = app.backend().audit(&ctx.caller, query).await?;
    Ok(Json(json!({ "audit": lines.iter().map(view).collect::<Vec<_>>() })))
}

fn view(line: &AuditLine) -> Value {
    let call = &line.entry.call;
    let object = |object: &AuditObject| json!({ "kind": object.kind, "id": object.id });
    json!({
        "seq": line.seq,
        "at": rfc3339(line.entry.at),
        "request_id": call.request,
        "user_id": call.user,
        "project_id": call.project,
        "roles": call.roles,
        "from": call.from,
        "method": call.method,
        "operation": call.operation,
        "action": call.action,
        "objects": call.objects.iter().map(object).collect::<Vec<_>>(),
        "status": call.status,
        "problem": call.problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fact_of_a_call_is_a_field_of_the_journal() {
        let object = |id: &str| AuditObject { kind: "volume".to_owned(), id: id.to_owned() };
        let call = AuditCall {
            request: "req-1".to_owned(),
            user: Some("nova".to_owned()),
            roles: vec!["admin".to_owned(), "member".to_owned()],
            method: "POST".to_owned(),
            operation: Some("createVolume".to_owned()),
            objects: vec![object("one"), object("two")],
            status: 202,
            problem: Some("a\nb".to_owned()),
            ..AuditCall::default()
        };
        let fields = fields(&call);
        let of = |name: &str| -> Vec<&str> {
            fields.iter().filter(|field| field.0 == name).map(|field| field.1.as_str()).collect()
        };
        assert_eq!(of("MOORING_OPERATION"), ["createVolume"]);
        assert_eq!(of("MOORING_OBJECT"), ["volume:one", "volume:two"]);
        assert_eq!(of("MOORING_ROLE"), ["admin", "member"]);
        assert_eq!(of("MOORING_STATUS"), ["202"]);
        assert_eq!(of("MOORING_PROJECT_ID"), [""; 0], "what is not known has no field");
        let message = in_line(&fields);
        assert!(message.contains(r#"user_id="nova""#) && message.contains(r#"problem="a\nb""#), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[test]
    fn words_of_clients_are_bounded_and_printable() {
        assert_eq!(id_of("A0B1C2D3-0001-4002-8003-0000000000AA"), "a0b1c2d3-0001-4002-8003-0000000000aa");
        assert_eq!(id_of("a0b1c2d30001400280030000000000aa"), "a0b1c2d3-0001-4002-8003-0000000000aa");
        assert_eq!(id_of("one\ntwo\0"), "one\u{fffd}two\u{fffd}");
        assert_eq!(id_of(&"x".repeat(1_000)).len(), WORD_CHARS_MAX);
    }

    #[test]
    fn a_line_has_no_more_objects_than_its_bound() {
        let notes = Notes::default();
        for number in 0..100 {
            notes.object("volume", &number);
            notes.object("volume", &number);
        }
        assert_eq!(notes.noted().call.objects.len(), OBJECTS_MAX);
    }

    #[test]
    fn a_problem_repeats_no_text_of_the_body() {
        let body =
            br#"{ "volume_type": { "name": "swordfish", "specs": [{ "k": "trout salmon" }], "on": "ok" } }"#;
        let text = "Volume Type swordfish already exists, ok; see trout salmon.";
        assert_eq!(without(text, body), "Volume Type … already exists, ok; see ….");
        assert_eq!(without(text, b"no JSON"), text);
    }
}

//! Failures of calls to the controller.
//!
//! What must never happen here: a token in a text; "nothing happened" said of a request that may
//! have been accepted.

use std::error::Error;
use std::io;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use crate::error::Exit;

/// Most characters shown of an answer that does not come from the API.
const TEXT_CHARS_MAX: usize = 200;

/// Words of a retype that the volume's status forbids. The API begins them as Cinder does, like
/// those of a wrong request.
const STATUS_FORBIDS: &str = "currently has a status of: ";

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The controller answered with an error.
    #[error("{message}")]
    Said {
        /// The status code.
        status: u16,
        /// The controller's own words.
        message: String,
        /// `true`: a token was sent.
        with_token: bool,
    },
    /// The connection could not be made, or broke.
    #[error("cannot reach the controller at {url}: {}", root(.cause))]
    Down {
        /// The controller's address.
        url: String,
        /// The client's reason. The source is left out: only the end of that chain is useful, and
        /// it is printed.
        cause: reqwest::Error,
        /// `true`: an attempt may have reached the controller.
        doubt: bool,
    },
    /// The controller took the call and does not answer.
    #[error("the controller at {url} did not answer {call} within {} s", .after.as_secs_f64().ceil())]
    Silent {
        /// The controller's address.
        url: String,
        /// The call.
        call: &'static str,
        /// Time that was waited.
        after: Duration,
    },
    /// The answer cannot be understood.
    #[error("the controller's answer to {call} makes no sense: {why}")]
    Nonsense {
        /// The call.
        call: &'static str,
        /// The fault.
        why: String,
    },
}

impl Fault {
    /// Makes a fault from an answer that is no success.
    pub(crate) fn of_answer(status: StatusCode, body: &[u8], with_token: bool) -> Self {
        let message = fault_text(body).unwrap_or_else(|| match short_text(body) {
            text if text.is_empty() => format!("the controller answers {status}"),
            text => format!("the controller answers {status}: {text}"),
        });
        Self::Said { status: status.as_u16(), message, with_token }
    }

    /// The status code; `None`: the controller did not answer.
    pub(crate) fn status(&self) -> Option<u16> {
        if let Self::Said { status, .. } = self { Some(*status) } else { None }
    }

    /// Returns `true` if the same request may succeed soon.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            // Only an operator ends a review.
            Self::Said { .. } if self.reviewed().is_some() => false,
            Self::Said { status, .. } => matches!(status, 503 | 504),
            Self::Down { cause, .. } => !is_tls(cause),
            Self::Silent { .. } => true,
            Self::Nonsense { .. } => false,
        }
    }

    /// Returns `true` if the controller has not taken the request, and never will.
    pub(crate) fn was_refused(&self) -> bool {
        match self {
            Self::Said { status, .. } => (400..500).contains(status),
            Self::Down { cause, doubt, .. } => cause.is_connect() && !doubt,
            Self::Silent { .. } | Self::Nonsense { .. } => false,
        }
    }

    /// The id of the volume if the refusal is due to its review; otherwise `None`.
    fn reviewed(&self) -> Option<&str> {
        let Self::Said { status: 503, message, .. } = self else { return None };
        let (volume, _) = message.strip_prefix("volume ")?.split_once(" is in review: ")?;
        (!volume.contains(' ')).then_some(volume)
    }

    /// Adds the doubt that an earlier attempt leaves.
    pub(crate) fn after(self, earlier: bool) -> Self {
        match self {
            Self::Down { url, cause, doubt } => Self::Down { url, cause, doubt: doubt || earlier },
            other => other,
        }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Down { .. } | Self::Silent { .. } => Exit::Unreachable,
            Self::Nonsense { .. } => Exit::Failed,
            Self::Said { status, message, .. } => match status {
                // Status 400 means either a request that can never be right or a state that forbids
                // it. The API's own words distinguish them.
                400 if message.starts_with("Invalid input") && !message.contains(STATUS_FORBIDS) => {
                    Exit::Usage
                }
                404 => Exit::NotFound,
                _ if self.reviewed().is_some() => Exit::Refused,
                400..500 => Exit::Refused,
                502 | 503 => Exit::Unreachable,
                504 => Exit::Pending,
                _ => Exit::Failed,
            },
        }
    }

    /// The exit code if the controller has accepted a change before. The change is durable:
    /// "unreachable" would leave that open.
    pub(crate) fn exit_once_accepted(&self) -> Exit {
        match self.exit() {
            Exit::Unreachable => Exit::Pending,
            exit => exit,
        }
    }

    /// The next step for the user; `None`: there is no advice.
    pub(crate) fn advice(&self) -> Option<String> {
        if let Some(volume) = self.reviewed() {
            return Some(format!(
                "Nothing is sent for it until an operator has said what holds: where the controller is right, by `mooring volume \
                 confirm-review {volume}`."
            ));
        }
        let text = match self {
            Self::Said { status: 401, with_token: false, .. } => {
                "The controller wants a token: set MOORING_TOKEN, or name a file with --token-file."
            }
            Self::Said { status: 401, .. } => {
                "The controller does not know this token: compare it with the controller's token file."
            }
            Self::Said { status: 502 | 503, .. } => "The same command may succeed later: retry.",
            Self::Said { status: 504, .. } => {
                "It is accepted and goes on without this program. Repeat the command to wait for it."
            }
            Self::Said { status: status @ 400..500, .. } => {
                return Some(format!("The controller refuses it ({status})."));
            }
            Self::Said { .. } => return None,
            Self::Down { cause, .. } if is_tls(cause) => {
                "Name the authority that signed the controller's certificate with --ca FILE."
            }
            Self::Down { cause, doubt: false, .. } if is_refused(cause) => {
                "Nobody listens there: is the controller running (systemctl status mooring-controller)? Another one is \
                 named with --controller; one storage agent alone, with --agent unix:/run/mooring/agent.sock."
            }
            Self::Down { .. } | Self::Silent { .. } => {
                "A change may or may not have been accepted. Look, then repeat the command."
            }
            Self::Nonsense { .. } => {
                "Something else may listen at this address; or the releases of controller and program are too far apart: \
                 compare `mooring-controller --version` with `mooring --version`."
            }
        };
        Some(text.to_owned())
    }
}

/// The message in `{"<fault>":{"code":N,"message":"…"}}`.
fn fault_text(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let fault = body.as_object()?.values().next()?;
    fault.get("message")?.as_str().map(str::to_owned)
}

/// The beginning of a foreign answer, on one line.
fn short_text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().take(TEXT_CHARS_MAX).collect()
}

/// The reason at the end of the chain: the layers above belong to the HTTP client.
fn root(error: &reqwest::Error) -> String {
    let mut last: &dyn Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// The first known error down the chain. An I/O error may wrap another error.
fn find<T>(error: &(dyn Error + 'static), known: &dyn Fn(&(dyn Error + 'static)) -> Option<T>) -> Option<T> {
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    known(error)
        .or_else(|| wrapped.and_then(|inner| find(inner, known)))
        .or_else(|| error.source().and_then(|source| find(source, known)))
}

/// Returns `true` if nothing listens at the address.
fn is_refused(error: &reqwest::Error) -> bool {
    let refused = io::ErrorKind::ConnectionRefused;
    find(error, &|error| error.downcast_ref::<io::Error>().filter(|io| io.kind() == refused).map(|_| ()))
        .is_some()
}

/// Returns `true` if certificates are wrong or the peer does not speak TLS: a repetition will not
/// help.
fn is_tls(error: &reqwest::Error) -> bool {
    find(error, &|error| error.downcast_ref::<rustls::Error>().map(|_| ())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, body: &str) -> Fault {
        Fault::of_answer(StatusCode::from_u16(status).unwrap(), body.as_bytes(), true)
    }

    #[test]
    fn every_status_has_its_exit() {
        let fault = r#"{"badRequest":{"code":400,"message":"Invalid volume: it is in use"}}"#;
        let full = r#"{"badRequest":{"code":400,"message":"Invalid volume: the pool of volume v has no room for 9 GiB more."}}"#;
        let retype = r#"{"badRequest":{"code":400,"message":"Invalid input received: Invalid volume_type passed, retypes affecting multiattach are only allowed on available volumes, the specified volume however currently has a status of: in-use."}}"#;
        for (status, body, exit) in [
            (400, fault, Exit::Refused),
            (400, full, Exit::Refused),
            (400, retype, Exit::Refused),
            (400, r#"{"badRequest":{"code":400,"message":"Invalid input received: name"}}"#, Exit::Usage),
            (401, "{}", Exit::Refused),
            (403, "", Exit::Refused),
            (404, fault, Exit::NotFound),
            (409, fault, Exit::Refused),
            (413, fault, Exit::Refused),
            (500, fault, Exit::Failed),
            (501, fault, Exit::Failed),
            (503, fault, Exit::Unreachable),
            (504, fault, Exit::Pending),
            (302, "", Exit::Failed),
        ] {
            assert_eq!(said(status, body).exit(), exit, "{status}");
        }
    }

    #[test]
    fn a_review_is_not_waited_for() {
        let body = |why: &str| format!(r#"{{"serviceUnavailable":{{"code":503,"message":"{why}"}}}}"#);
        let review = said(503, &body("volume b0c1 is in review: agent storage keeps generation 9"));
        assert!(!review.may_pass() && review.exit() == Exit::Refused);
        assert!(review.advice().unwrap().contains("mooring volume confirm-review b0c1"));
        let down = said(503, &body("agent storage is down: its volume data is in review: who knows"));
        assert!(down.may_pass() && down.exit() == Exit::Unreachable);
    }

    #[test]
    fn the_controllers_words_come_first_and_others_are_cut_short() {
        assert_eq!(
            said(409, r#"{"conflictingRequest":{"code":409,"message":"held by x"}}"#).to_string(),
            "held by x"
        );
        assert_eq!(said(404, "").to_string(), "the controller answers 404 Not Found");
        let page = said(502, &format!("<html>\n {}", "x".repeat(9000))).to_string();
        assert!(
            page.starts_with("the controller answers 502 Bad Gateway: <html> xxx") && page.len() < 300,
            "{page}"
        );
        for odd in ["[]", "{}", "3", r#"{"a":[]}"#, r#"{"a":{"message":3}}"#] {
            assert!(said(500, odd).to_string().starts_with("the controller answers 500"), "{odd}");
        }
    }
}

//! Failures of commands, in words for an operator, with an exit code for a script.
//!
//! What must never happen here: a message printed twice; a failure without the next step where we
//! know one; "refused" for something that may have been accepted.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use mooring_api::{CURE_KEY, ConnectError};
use mooring_model::{Chain, Cure};
use serde::Serialize;
use serde_json::Value;
use tonic::{Code, Status};

use crate::text::plain;

mod fault;

pub(crate) use fault::Fault;

/// The program's exit codes. Scripts decide on these numbers: they never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The requested state is reached.
    Ok = 0,
    /// A failure that is none of the others.
    Failed = 1,
    /// The request itself is wrong.
    Usage = 2,
    /// The object does not exist.
    NotFound = 3,
    /// The agent or the controller is in a state that forbids it.
    Refused = 4,
    /// Accepted and durable, but not reached yet; or a receipt without its proof.
    Pending = 5,
    /// Nothing answers.
    Unreachable = 6,
    /// The user interrupted the command.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::Refused => "refused",
            Self::Pending => "pending",
            Self::Unreachable => "unreachable",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The remains of an attach that did not end well.
#[derive(Debug)]
pub struct Left {
    pub(crate) exit: Exit,
    pub(crate) text: String,
    pub(crate) advice: Option<String>,
    pub(crate) attachment_id: String,
    /// The attachment as the controller sends it.
    pub(crate) attachment: Option<Value>,
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// This program refuses before the agent would.
    #[error("{0}")]
    Refused(String),
    /// The connection to the agent could not be made.
    #[error(transparent)]
    Connect(ConnectError),
    /// The agent took the call and does not answer.
    #[error("the agent at {address} did not answer {call} within {seconds} s")]
    Silent {
        /// The agent's address.
        address: String,
        /// The call.
        call: &'static str,
        /// Seconds that were waited.
        seconds: u64,
    },
    /// The agent answered with an error, or the connection broke.
    #[error("{}", .0.message())]
    Agent(Box<Status>),
    /// The agent's answer cannot be understood.
    #[error("the agent's answer makes no sense: {0}")]
    Answer(String),
    /// A call to the controller failed.
    #[error(transparent)]
    Controller(Box<Fault>),
    /// The controller tried and failed.
    #[error("{0}")]
    Broken(String),
    /// The controller was lost after it had accepted a change.
    #[error("it is not known what becomes of {what}: {fault}")]
    Lost {
        /// The object that is changed.
        what: String,
        /// The failure of the look at it.
        fault: Box<Fault>,
    },
    /// An attach failed or was interrupted, and something of it may be left.
    #[error("{}", .0.text)]
    Left(Box<Left>),
    /// The program cannot start.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// Standard output cannot be written to.
    #[error("cannot write the answer")]
    Output(#[source] io::Error),
}

#[derive(Serialize)]
struct FailureJson<'a> {
    error: String,
    kind: &'a str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment: Option<&'a Value>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Controller(Box::new(fault))
    }
}

impl Failure {
    /// Makes the failure for a controller that is lost after it has accepted a change of `what`.
    pub(crate) fn lost(what: impl Into<String>, fault: Fault) -> Self {
        Self::Lost { what: what.into(), fault: Box::new(fault) }
    }

    /// Makes the failure of a look before anything was asked for.
    pub(crate) fn unasked(self) -> Self {
        if let Self::Lost { fault, .. } = self { Self::Controller(fault) } else { self }
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Connect(ConnectError::Tls { .. }) => Exit::Usage,
            Self::NotFound(_) => Exit::NotFound,
            Self::Refused(_) => Exit::Refused,
            Self::Connect(ConnectError::Transport { .. }) | Self::Silent { .. } => Exit::Unreachable,
            Self::Agent(status) => exit_of_status(status),
            Self::Controller(fault) => fault.exit(),
            Self::Lost { fault, .. } => fault.exit_once_accepted(),
            Self::Left(left) => left.exit,
            Self::Answer(_) | Self::Broken(_) | Self::Runtime(_) | Self::Output(_) => Exit::Failed,
        }
    }

    /// Returns `true` if another writer was faster: look again and retry.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Agent(status) if status.code() == Code::Aborted)
    }

    /// Returns `true` if the agent does not know the object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Agent(status) if status.code() == Code::NotFound)
    }

    /// The text for standard error: for people, or one line of JSON for programs.
    pub fn text(&self, json: bool) -> String {
        if json {
            let answer = FailureJson {
                error: self.message(),
                kind: self.exit().word(),
                exit_code: self.exit() as u8,
                cure: self.cure().map(cure_word),
                advice: self.advice(),
                http_status: self.http_status(),
                attachment_id: self.left().map(|left| left.attachment_id.as_str()),
                attachment: self.left().and_then(|left| left.attachment.as_ref()),
            };
            return serde_json::to_string(&answer).unwrap_or_default() + "\n";
        }
        let advice = self.advice().map(|advice| format!("  {advice}\n")).unwrap_or_default();
        plain(&format!("mooring: {}\n{advice}", self.message()))
    }

    fn message(&self) -> String {
        match self {
            Self::Agent(status) if is_transport(status) => {
                format!("the connection to the agent broke: {}", Chain(status.as_ref()))
            }
            // A status of the agent has its whole chain in the message.
            Self::Agent(status) if status.message().is_empty() => {
                format!("the agent says {:?}", status.code())
            }
            other => Chain(other).to_string(),
        }
    }

    fn http_status(&self) -> Option<u16> {
        if let Self::Controller(fault) | Self::Lost { fault, .. } = self { fault.status() } else { None }
    }

    fn left(&self) -> Option<&Left> {
        if let Self::Left(left) = self { Some(left) } else { None }
    }

    fn cure(&self) -> Option<Cure> {
        if let Self::Agent(status) = self { cure_of(status) } else { None }
    }

    fn advice(&self) -> Option<String> {
        let text = match self {
            Self::Connect(ConnectError::Transport { address, source }) => {
                return connect_advice(address, io_kind(source)?);
            }
            Self::Controller(fault) => return fault.advice(),
            Self::Lost { fault, .. } if self.exit() != Exit::Pending => return fault.advice(),
            // Not "repeat": what has ended meanwhile would be done twice.
            Self::Lost { .. } => {
                "What the controller has accepted goes on without this program. Look at the object before you repeat the command."
            }
            Self::Left(left) => return left.advice.clone(),
            Self::Silent { .. } => REPEAT,
            Self::Agent(status) if is_transport(status) => REPEAT,
            Self::Agent(status) if status.code() == Code::Aborted => {
                "Somebody else changes this object at the same time, and was faster twice. Look at it, then try again."
            }
            Self::Agent(_) => return self.cure().map(|cure| cure_advice(cure).to_owned()),
            Self::Answer(_) => {
                "This is a defect, or the releases of agent and program are too far apart: compare `mooring agent show` with \
                 `mooring --version`."
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

const REPEAT: &str = "A change may or may not have been accepted. Repeat the command; a create, with the id that \
                      `mooring volume list` shows.";

/// The meaning of a remedy for the user.
pub(crate) fn cure_advice(cure: Cure) -> &'static str {
    match cure {
        Cure::Retry => "The same command may succeed later: retry.",
        Cure::FixSpec => "Repeated as it is, it is refused again: change the request.",
        Cure::Operator => "An operator must act on the storage host first.",
        Cure::Bug => "This is a defect of Mooring: please report it.",
    }
}

/// The remedy's word for programs.
pub(crate) const fn cure_word(cure: Cure) -> &'static str {
    match cure {
        Cure::Retry => "retry",
        Cure::FixSpec => "fix_spec",
        Cure::Operator => "operator",
        Cure::Bug => "bug",
    }
}

/// The remedy that the agent's status names; `None`: it names none.
fn cure_of(status: &Status) -> Option<Cure> {
    match status.metadata().get(CURE_KEY)?.to_str().ok()? {
        "retry" => Some(Cure::Retry),
        "fix_spec" => Some(Cure::FixSpec),
        "operator" => Some(Cure::Operator),
        "bug" => Some(Cure::Bug),
        _ => None,
    }
}

/// Returns `true` if the client made the status because the connection broke: then it has a source.
/// The agent's own statuses have none.
fn is_transport(status: &Status) -> bool {
    status.source().is_some()
}

fn exit_of_status(status: &Status) -> Exit {
    if is_transport(status) {
        return Exit::Unreachable;
    }
    match status.code() {
        Code::InvalidArgument => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::FailedPrecondition
        | Code::Aborted
        | Code::AlreadyExists
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Unauthenticated => Exit::Refused,
        // With a remedy the agent itself is speaking: it is up, and the machine below it is not.
        Code::Unavailable if cure_of(status) == Some(Cure::Operator) => Exit::Refused,
        Code::Unavailable if cure_of(status).is_some() => Exit::Failed,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Exit::Unreachable,
        Code::Ok | Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => Exit::Failed,
    }
}

/// The operating system's reason for a failed connection, found down the chain.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

fn connect_advice(address: &str, kind: io::ErrorKind) -> Option<String> {
    let socket = address.strip_prefix("unix:");
    let text = match (kind, socket) {
        (io::ErrorKind::NotFound, Some(path)) => format!(
            "There is no socket {path}. Start the agent (systemctl start mooring-agent), or name another with --agent."
        ),
        (io::ErrorKind::PermissionDenied, Some(path)) => format!(
            "This user may not open {path}: be root, or a member of the socket's group (usermod -aG mooring USER)."
        ),
        (io::ErrorKind::ConnectionRefused, Some(path)) => {
            format!("Nobody listens on {path}: the agent is not running (systemctl status mooring-agent).")
        }
        (io::ErrorKind::ConnectionRefused, None) => {
            "Nobody listens there: compare the address with `listen` in the agent's configuration.".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_agent_has_its_exit() {
        for (code, exit) in [
            (Code::InvalidArgument, Exit::Usage),
            (Code::NotFound, Exit::NotFound),
            (Code::FailedPrecondition, Exit::Refused),
            (Code::Aborted, Exit::Refused),
            (Code::PermissionDenied, Exit::Refused),
            (Code::ResourceExhausted, Exit::Refused),
            (Code::Unavailable, Exit::Unreachable),
            (Code::DeadlineExceeded, Exit::Unreachable),
            (Code::Internal, Exit::Failed),
            (Code::Unimplemented, Exit::Failed),
        ] {
            assert_eq!(Failure::Agent(Box::new(Status::new(code, "x"))).exit(), exit, "{code:?}");
        }
    }

    #[test]
    fn who_cannot_connect_is_told_why() {
        let advice = |address, kind| connect_advice(address, kind).unwrap_or_default();
        let unix = "unix:/run/mooring/agent.sock";
        assert!(advice(unix, io::ErrorKind::NotFound).contains("There is no socket /run/mooring/agent.sock"));
        assert!(advice(unix, io::ErrorKind::PermissionDenied).contains("usermod -aG mooring"));
        assert!(advice(unix, io::ErrorKind::ConnectionRefused).contains("not running"));
        assert!(advice("https://a:1", io::ErrorKind::ConnectionRefused).contains("`listen`"));
        assert_eq!(advice("https://a:1", io::ErrorKind::TimedOut), "");
    }

    #[test]
    fn a_message_is_printed_once_and_cannot_draw_on_the_terminal() {
        let mut status = Status::new(Code::FailedPrecondition, "the pool \u{1b}[31mvg0 is full");
        status.metadata_mut().insert(CURE_KEY, "operator".parse().unwrap());
        let failure = Failure::Agent(Box::new(status));
        assert_eq!(
            failure.text(false),
            "mooring: the pool \u{fffd}[31mvg0 is full\n  An operator must act on the storage host first.\n"
        );
        let json: serde_json::Value = serde_json::from_str(&failure.text(true)).unwrap();
        assert_eq!(json["kind"], "refused");
        assert_eq!(json["exit_code"], 4);
        assert_eq!(json["cure"], "operator");
    }
}

//! Server at the unix socket: admits clients, bounds their lines, and handles their requests.
//!
//! What must never happen here: a client that holds up a session or another client; a secret in an
//! answer or a log (the text of a client is never repeated); a socket that others than root may
//! open.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use mooring_host::TreeError;
use mooring_model::limit::{CHAP_BYTES_MAX, PORTALS_PER_EXPORT_MAX};
use nix::sys::socket::{getsockopt, sockopt};
use serde::Deserialize;

use super::board::{Place, Sent};
use super::session::{Begin, new_entry};
use super::sysfs::KernelView;
use super::{CONNECTIONS_MAX, Context, SESSIONS_MAX, TICK, begin_with, kernel_of, teardown};
use crate::line::{self, LineError, LineReader};
use crate::wire::{Answer, End, ErrorKind, PROTOCOL_MAX, PROTOCOL_MIN, Request, SessionSpec, WireChap};

/// Requests that this build knows, by their names on the wire.
const REQUESTS: [&str; 6] = ["hello", "ensure", "end", "get", "list", "watch"];
/// Seconds that a client may take for its first line, and for the rest of a line that it has begun.
const LINE_WITHIN: u32 = 30;
/// Time that a client may leave an answer unread before it is disconnected.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// Longest time until an answer, whatever the client asks for.
const WAIT_MAX: Duration = Duration::from_mins(2);
/// Longest recovery time, in seconds: a day.
const RECOVERY_SECONDS_MAX: u32 = 86_400;

/// Makes the socket. This process has the lock, so an existing socket was left by a process that is
/// gone.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The folder is root's alone: nobody comes in between these two.
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts clients until the daemon stops.
pub(super) fn accept(context: &Arc<Context>, listener: &UnixListener) {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    let tick = u16::try_from(context.timing.look_every.as_millis()).unwrap_or(1000);
    while !context.is_stopping() {
        let mut waited = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        // An interrupted or failed wait is repeated; accepting shows the error.
        let _ = poll(&mut waited, PollTimeout::from(tick));
        match listener.accept() {
            Ok((stream, _)) => admit(context, stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors or memory: other clients may close some.
                tracing::warn!(%error, "a client cannot be accepted");
                std::thread::sleep(TICK);
            }
        }
    }
}

fn admit(context: &Arc<Context>, stream: UnixStream) {
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(WRITE_WITHIN)));
    if let Err(error) = prepared {
        tracing::warn!(%error, "a client cannot be served");
        return;
    }
    let (pid, uid) = match getsockopt(&stream, sockopt::PeerCredentials) {
        Ok(peer) => (peer.pid(), peer.uid()),
        Err(errno) => {
            tracing::warn!(%errno, "a client whose credentials cannot be seen is refused");
            return;
        }
    };
    let before = context.clients.fetch_add(1, Ordering::Relaxed);
    if usize::try_from(before).is_ok_and(|before| before >= CONNECTIONS_MAX) {
        context.clients.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(pid, uid, "a client is refused: {CONNECTIONS_MAX} are connected");
        let text = format!("more than {CONNECTIONS_MAX} connections; close some");
        // A client that does not read the answer is refused all the same.
        let _ = line::write(&stream, &Answer::Error { kind: ErrorKind::Machine, text });
        return;
    }
    tracing::debug!(pid, uid, "client connected");
    let shared = context.clone();
    let served = context.spawn(format!("client-{pid}"), move || {
        let why = Client { context: &shared, lines: LineReader::new(stream) }.serve();
        tracing::debug!(pid, uid, error = why.as_ref().map(ToString::to_string), "client gone");
        shared.clients.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = served {
        context.clients.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(%error, "no thread for a client");
    }
}

struct Client<'a> {
    context: &'a Arc<Context>,
    lines: LineReader,
}

/// Refusal of a request.
struct Refusal {
    kind: ErrorKind,
    text: String,
}

impl From<Refusal> for Answer {
    fn from(Refusal { kind, text }: Refusal) -> Self {
        Self::Error { kind, text }
    }
}

fn refusal(kind: ErrorKind, text: impl Into<String>) -> Refusal {
    Refusal { kind, text: text.into() }
}

fn error(kind: ErrorKind, text: impl Into<String>) -> Answer {
    refusal(kind, text).into()
}

impl Client<'_> {
    /// Serves until the client goes, or is sent away. `Some` is the reason if the client did not
    /// end it itself.
    fn serve(mut self) -> Option<LineError> {
        match self.greet().and_then(|greeted| if greeted { self.answer_all() } else { Ok(()) }) {
            Ok(()) | Err(LineError::Closed) => None,
            Err(error) => {
                if matches!(error, LineError::TooLong) {
                    let text = error.to_string();
                    let _ = self.say(&Answer::Error { kind: ErrorKind::Invalid, text });
                }
                Some(error)
            }
        }
    }

    fn say(&self, answer: &Answer) -> Result<(), LineError> {
        line::write(self.lines.stream(), answer)
    }

    /// Returns the next line; `None` when the daemon stops, or the client is too slow and was told
    /// so.
    fn line(&mut self, first: bool) -> Result<Option<Vec<u8>>, LineError> {
        let mut waited = 0;
        while !self.context.is_stopping() {
            if let Some(line) = self.lines.next(TICK)? {
                return Ok(Some(line).filter(|_| !self.context.is_stopping()));
            }
            // A client may be silent for ever between two lines, not in the middle of one.
            waited = if first || self.lines.is_in_line() { waited + 1 } else { 0 };
            if waited >= LINE_WITHIN {
                self.say(&error(ErrorKind::Invalid, format!("no whole line within {LINE_WITHIN} s")))?;
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn greet(&mut self) -> Result<bool, LineError> {
        let Some(line) = self.line(true)? else { return Ok(false) };
        let answer = match parse(&line) {
            Ok(Request::Hello { protocol_min, protocol_max, software }) => {
                let protocol = protocol_max.min(PROTOCOL_MAX);
                if protocol_min <= protocol && protocol >= PROTOCOL_MIN {
                    tracing::debug!(software, protocol, "client says hello");
                    self.say(&Answer::Hello {
                        protocol,
                        software: concat!("mooring-sessiond ", env!("CARGO_PKG_VERSION")).to_owned(),
                        pid: std::process::id(),
                        started: self.context.started,
                    })?;
                    return Ok(true);
                }
                error(
                    ErrorKind::Protocol,
                    format!(
                        "no common protocol: {PROTOCOL_MIN} to {PROTOCOL_MAX} here, {protocol_min} to {protocol_max} \
                         there; update the older of the two"
                    ),
                )
            }
            Ok(_) => error(ErrorKind::Protocol, "the first request must be hello"),
            Err(refusal) => refusal.into(),
        };
        self.say(&answer)?;
        Ok(false)
    }

    fn answer_all(&mut self) -> Result<(), LineError> {
        while let Some(line) = self.line(false)? {
            let answer = match parse(&line) {
                Ok(Request::Watch) => return self.watch(),
                Ok(request) => answer(self.context, request),
                Err(refusal) => refusal.into(),
            };
            self.say(&answer)?;
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<(), LineError> {
        let changes = self.context.board.watch();
        while !self.context.is_stopping() {
            match changes.recv_timeout(TICK) {
                Ok(change) => self.say(&change)?,
                // The watcher is too far behind: it asks anew and gets everything.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                // A watcher sends nothing; this read finds out that it has gone.
                Err(RecvTimeoutError::Timeout) => {
                    self.lines.next(Duration::from_millis(1))?;
                }
            }
        }
        Ok(())
    }
}

/// Parses a request. The answer to a wrong one repeats nothing of it: it may hold a secret.
fn parse(line: &[u8]) -> Result<Request, Refusal> {
    #[derive(Deserialize)]
    struct Named {
        request: String,
    }
    serde_json::from_slice(line).map_err(|wrong| {
        let named: Option<Named> = serde_json::from_slice(line).ok();
        match named {
            Some(named) if !REQUESTS.contains(&named.request.as_str()) => refusal(
                ErrorKind::Unknown,
                format!("this version knows the requests {}", REQUESTS.join(", ")),
            ),
            _ => refusal(ErrorKind::Invalid, format!("no request: wrong at column {}", wrong.column())),
        }
    })
}

fn answer(context: &Arc<Context>, request: Request) -> Answer {
    match request {
        Request::Hello { .. } => error(ErrorKind::Invalid, "hello comes once, first"),
        Request::Ensure { session, wait_ms } => match ensure(context, &session) {
            Ok(sent) => {
                let volume = sent.volume();
                match context.board.wait_settled(sent, wait(wait_ms)) {
                    Some(session) => Answer::Session { session },
                    None => error(
                        ErrorKind::Conflict,
                        format!("the session of volume {volume} was ended by another request; ask again"),
                    ),
                }
            }
            Err(refusal) => refusal.into(),
        },
        Request::End { volume, how, wait_ms } => end(context, volume, how, wait(wait_ms)),
        Request::Get { volume } => match context.board.get(volume) {
            Some(session) => Answer::Session { session },
            None => Answer::Gone { volume },
        },
        Request::List => Answer::Sessions { sessions: context.board.list() },
        Request::Watch => error(ErrorKind::Invalid, "watch has no answer"),
    }
}

fn wait(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms).min(WAIT_MAX)
}

fn end(context: &Context, volume: mooring_model::VolumeId, how: End, wait: Duration) -> Answer {
    if let Some(sent) = context.board.end(volume, how) {
        return match context.board.wait_gone(sent, wait) {
            Some(session) => Answer::Session { session },
            None => Answer::Gone { volume },
        };
    }
    let mut orphans = match context.take_orphans(volume) {
        Ok(orphans) => orphans.into_iter(),
        Err(unseen) => return unseen_orphan(&unseen).into(),
    };
    while let Some(orphan) = orphans.next() {
        let (sid, kernel) = (orphan.sid, kernel_of(&orphan));
        tracing::info!(%volume, sid, "an orphan is ended");
        if !teardown::reap(context, kernel) {
            // The next request begins with those that were not tried yet.
            context.keep_orphans(volume, orphans.chain([orphan]));
            return error(
                ErrorKind::Machine,
                format!("the kernel does not destroy session {sid}; ask again"),
            );
        }
    }
    Answer::Gone { volume }
}

/// Refuses work on a volume with an orphan that cannot be looked at.
fn unseen_orphan(why: &TreeError) -> Refusal {
    refusal(ErrorKind::Machine, format!("a session of an earlier life cannot be looked at: {why}; ask again"))
}

fn ensure(context: &Arc<Context>, spec: &SessionSpec) -> Result<Sent, Refusal> {
    check(spec).map_err(|text| refusal(ErrorKind::Invalid, text))?;
    let volume = spec.volume;
    let Some(mut entry) = new_entry(&context.boot_id, spec.clone()) else {
        return Err(refusal(ErrorKind::Invalid, "portals is empty"));
    };
    // An orphan from a life whose journal is lost is as good as a new session. The look comes
    // before the board is locked.
    let orphans = context.take_orphans(volume).map_err(|unseen| unseen_orphan(&unseen))?;
    let (begin, others) = begin_with(&mut entry, orphans.clone());
    let keep = |left: Vec<KernelView>| context.keep_orphans(volume, left);
    match context.board.ensure(spec) {
        Place::Sent(sent) => {
            keep(orphans);
            Ok(sent)
        }
        Place::Conflict(there) => {
            keep(orphans);
            Err(refusal(
                ErrorKind::Conflict,
                format!(
                    "volume {volume} has a session of {} with {} for generation {}; end it before another is made",
                    there.initiator, there.target, there.generation
                ),
            ))
        }
        Place::Free(vacancy) if vacancy.sessions() >= SESSIONS_MAX => {
            drop(vacancy);
            keep(orphans);
            Err(refusal(ErrorKind::Machine, format!("more than {SESSIONS_MAX} sessions")))
        }
        Place::Free(vacancy) => {
            keep(others);
            context.enter(vacancy, entry, begin.unwrap_or(Begin::Make)).map_err(|failed| {
                refusal(ErrorKind::Machine, format!("no thread for the session of volume {volume}: {failed}"))
            })
        }
    }
}

/// Checks rules that the types alone do not enforce.
fn check(spec: &SessionSpec) -> Result<(), String> {
    if spec.portals.is_empty() || spec.portals.len() > PORTALS_PER_EXPORT_MAX {
        return Err(format!("portals: want 1 to {PORTALS_PER_EXPORT_MAX}"));
    }
    // A scan of a single LUN above 255 depends on how the target reports its number.
    if spec.lun.0 > 255 {
        return Err(format!("lun: {} is above 255", spec.lun.0));
    }
    if spec.recovery_timeout_s == 0 || spec.recovery_timeout_s > RECOVERY_SECONDS_MAX {
        return Err(format!("recovery_timeout_s: want 1 to {RECOVERY_SECONDS_MAX}"));
    }
    if spec.other_chap.is_some() && spec.chap.is_none() {
        return Err("other_chap: needs chap beside it".to_owned());
    }
    for (field, chap) in [("chap", &spec.chap), ("other_chap", &spec.other_chap)] {
        chap.as_ref().map_or(Ok(()), |chap| check_chap(field, chap))?;
    }
    Ok(())
}

fn check_chap(field: &str, chap: &WireChap) -> Result<(), String> {
    let WireChap { user, secret, mutual } = chap;
    let sides = [(field.to_owned(), user, secret)].into_iter();
    let sides = sides.chain(mutual.as_ref().map(|(user, secret)| (format!("{field}.mutual"), user, secret)));
    for (field, user, secret) in sides {
        for (what, text) in [("user", user), ("secret", secret)] {
            if text.is_empty() || text.len() > CHAP_BYTES_MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(format!(
                    "{field}.{what}: want 1 to {CHAP_BYTES_MAX} printable ASCII characters without blanks"
                ));
            }
        }
    }
    Ok(())
}

//! Performs one login: connect, hand the socket to the kernel, exchange login PDUs, start. Tries
//! the portals in turn.
//!
//! What must never happen here: a kernel session that a failed first login leaves behind; a byte
//! read or written on a socket that is the kernel's; a login without a bound.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use mooring_host::{
    Errno, HEADER_BYTES, IscsiError, IscsiEvent, IscsiParam, StopMode, dial, drop_connection,
};
use mooring_model::{Chain, Portal, Secret};

use super::journal::Entry;
use super::session::{Fail, FailKind, Out, Session, Wake};
use super::sysfs::{self, ConnectionAttr, MARK};
use crate::clock;
use crate::iscsi::{
    Credentials, Login, LoginConfig, LoginError, LoginFailure, LoginStep, Negotiated, Opcode, opcode,
    params_before_login,
};
use crate::wire::{End, SessionSpec, WireChap};

/// Number of commands that the kernel may have in flight on a session; 15 of them are the kernel's
/// own.
const COMMANDS_MAX: u16 = 128;
/// Number of commands that one disk may have in flight.
const QUEUE_DEPTH: u16 = 32;
/// Number of redirects that one login follows.
const REDIRECTS_MAX: u32 = 4;

/// A PDU: its header and its data.
type Pdu = ([u8; HEADER_BYTES], Vec<u8>);

/// Outcome of a login.
enum Came {
    Through(Negotiated),
    Elsewhere(Portal),
}

fn of_kernel(error: &IscsiError) -> Out {
    let kind = match error.errno {
        // The connection of this request is broken.
        Errno::ENOTCONN => FailKind::Unreachable,
        _ => FailKind::Unable,
    };
    Fail::out(kind, Chain(error).to_string())
}

fn of_login(error: &LoginError) -> Out {
    let kind = match error.kind() {
        LoginFailure::Credentials | LoginFailure::Forbidden => FailKind::Refused,
        // A target that is being restored is not there yet.
        LoginFailure::NotFound | LoginFailure::Unavailable => FailKind::Unable,
        LoginFailure::Fatal
        | LoginFailure::Protocol
        | LoginFailure::Downgrade
        | LoginFailure::WrongTarget => FailKind::Wrong,
    };
    Fail::out(kind, Chain(error).to_string())
}

impl Session {
    /// Logs in at the first portal that admits us. With `recovery` it uses the existing kernel
    /// session; otherwise it makes a new one, and destroys it again when the login fails.
    pub(crate) fn login_anywhere(&mut self, recovery: bool) -> Result<(), Out> {
        let mut portals = self.entry.spec.portals.clone();
        if recovery && let Some(at) = portals.iter().position(|portal| *portal == self.entry.portal) {
            portals[..=at].rotate_right(1);
        }
        let mut failed = Vec::new();
        let mut kind = FailKind::Unreachable;
        for portal in portals {
            match self.login_with_either(portal, recovery) {
                Ok(()) => return Ok(()),
                Err(Out::Fail(fail)) => {
                    failed.push(format!("portal {portal}: {}", fail.text));
                    match fail.kind {
                        FailKind::Unreachable => {}
                        FailKind::Unable => kind = fail.kind,
                        // This answer is the target's, and would be equal at its other portals.
                        FailKind::Refused | FailKind::Wrong | FailKind::HostGone | FailKind::SessionGone => {
                            return Err(Fail::out(fail.kind, failed.join("; ")));
                        }
                    }
                }
                Err(out) => return Err(out),
            }
            if recovery {
                self.stop_for_recovery()?;
            }
        }
        Err(Fail::out(kind, failed.join("; ")))
    }

    /// Logs in with either credentials. While secrets are being rotated the target may have the
    /// others: a refusal counts only when it refuses both.
    fn login_with_either(&mut self, portal: Portal, recovery: bool) -> Result<(), Out> {
        match self.login_following(portal, recovery, Which::Current) {
            Err(Out::Fail(fail))
                if fail.kind == FailKind::Refused && self.entry.spec.other_chap.is_some() =>
            {
                tracing::info!(
                    volume = %self.volume(), %portal, why = fail.text,
                    "refused: trying the other secret, they are being rotated"
                );
                if recovery {
                    self.stop_for_recovery()?;
                }
                self.login_following(portal, recovery, Which::Other)
            }
            done => done,
        }
    }

    fn login_following(&mut self, portal: Portal, recovery: bool, which: Which) -> Result<(), Out> {
        let mut at = portal;
        for _ in 0..=REDIRECTS_MAX {
            match self.login_at(at, recovery, which)? {
                None => return Ok(()),
                Some(elsewhere) => {
                    tracing::info!(volume = %self.volume(), portal = %at, %elsewhere, "the target is elsewhere");
                    at = elsewhere;
                    if recovery {
                        self.stop_for_recovery()?;
                    }
                }
            }
        }
        Err(Fail::out(FailKind::Unable, format!("it redirects more than {REDIRECTS_MAX} times")))
    }

    /// Makes one login at one portal. `Some` is a redirect: the portal where the target is.
    fn login_at(&mut self, portal: Portal, recovery: bool, which: Which) -> Result<Option<Portal>, Out> {
        self.status.portal = Some(portal);
        let began = clock::instant();
        let socket = self.dial(portal)?;
        if portal != self.entry.portal && self.entry.spec.portals.contains(&portal) {
            self.entry.portal = portal;
            self.record();
        }
        let came = self.make(socket, portal, recovery).and_then(|sid| {
            let came = self.exchange(sid, which)?;
            if let Came::Through(negotiated) = &came {
                self.set_params(sid, negotiated.params())?;
                self.context.kernel.start_connection(sid).map_err(|error| of_kernel(&error))?;
            }
            Ok(came)
        });
        match came {
            Ok(Came::Through(negotiated)) => {
                self.started = true;
                self.status.since = Some(self.context.wall());
                self.status.login_us = u64::try_from(began.elapsed().as_micros()).ok();
                tracing::info!(
                    volume = %self.volume(), sid = self.status.sid, %portal, isid = %self.entry.isid,
                    authentication = ?negotiated.authentication, took_us = self.status.login_us,
                    relogin = recovery, "logged in"
                );
                Ok(None)
            }
            Ok(Came::Elsewhere(elsewhere)) => {
                self.undo(recovery)?;
                Ok(Some(elsewhere))
            }
            Err(Out::Fail(fail)) => {
                self.undo(recovery)?;
                Err(Out::Fail(fail))
            }
            // An order to end destroys the session later; after a stop the next process finds it
            // again.
            Err(out) => Err(out),
        }
    }

    /// Destroys the kernel session of a first login that failed.
    fn undo(&mut self, recovery: bool) -> Result<(), Out> {
        if recovery { Ok(()) } else { self.teardown(End::Cut) }
    }

    fn dial(&self, portal: Portal) -> Result<TcpStream, Out> {
        dial(portal.socket(), self.context.timing.connect_within).map_err(|error| {
            let took = error.took.as_secs_f64();
            Fail::out(FailKind::Unreachable, format!("no connection after {took:.1} s: {}", error.source))
        })
    }

    /// Makes a kernel session with this socket and with the parameters before the login. Returns
    /// its number.
    fn make(&mut self, socket: TcpStream, portal: Portal, recovery: bool) -> Result<u32, Out> {
        let kernel = self.context.kernel.clone();
        let sid = match &self.live {
            Some(live) if recovery => live.kernel.sid,
            _ => {
                let made =
                    kernel.create_session(COMMANDS_MAX, QUEUE_DEPTH).map_err(|error| of_kernel(&error))?;
                self.hold(made, None);
                kernel.create_connection(made.sid).map_err(|error| of_kernel(&error))?;
                made.sid
            }
        };
        if let Err(error) = kernel.bind_connection(sid, &socket) {
            drop_connection(socket);
            return Err(self.gone_or(sid, &error));
        }
        if let Some(live) = &mut self.live {
            live.socket = Some(socket);
        }
        let spec = &self.entry.spec;
        let name = format!("{MARK}{}", spec.volume);
        let params =
            params_before_login(&spec.target, portal, &spec.initiator, &name, spec.recovery_timeout_s);
        self.set_params(sid, params)?;
        Ok(sid)
    }

    fn set_params(&self, sid: u32, params: Vec<(IscsiParam, String)>) -> Result<(), Out> {
        for (param, value) in params {
            match self.context.kernel.set_param(sid, param, &value) {
                Ok(()) => {}
                // This kernel lacks the parameter: its own value stays.
                Err(error) if error.errno == Errno::ENOSYS => {}
                Err(error) => return Err(of_kernel(&error)),
            }
        }
        Ok(())
    }

    /// Turns the kernel's error into a failure: the kernel's refusal, or that the session has gone.
    fn gone_or(&self, sid: u32, error: &IscsiError) -> Out {
        match sysfs::exists(self.context.sys(), sid) {
            Ok(false) => Fail::out(FailKind::SessionGone, "the session has gone from the kernel"),
            _ => of_kernel(error),
        }
    }

    fn exchange(&mut self, sid: u32, which: Which) -> Result<Came, Out> {
        let until = self.context.now() + self.context.timing.login_within;
        let alias = self.context.alias.clone();
        let mut random = true;
        let (mut login, mut step) = Login::start(config(&self.entry, which, alias), 0, &mut |bytes| {
            random &= getrandom::fill(bytes).is_ok();
        });
        if !random {
            return Err(Fail::out(FailKind::Unable, "this machine gives no random bytes for CHAP"));
        }
        loop {
            match step {
                LoginStep::Send { header, data } => {
                    let sent = self.context.kernel.send_pdu(sid, &header, &data);
                    sent.map_err(|error| of_kernel(&error))?;
                    let (header, data) = self.answer(sid, login.waits_for(), until)?;
                    step = login.receive(&header, &data).map_err(|error| of_login(&error))?;
                }
                LoginStep::Done(negotiated) => return Ok(Came::Through(negotiated)),
                LoginStep::Redirect { address, .. } => {
                    return address.portal().map(Came::Elsewhere).ok_or_else(|| {
                        Fail::out(FailKind::Unable, format!("it redirects to {address}, which is no portal"))
                    });
                }
            }
        }
    }

    /// Waits for the target's next login PDU.
    fn answer(&mut self, sid: u32, what: &str, until: Instant) -> Result<Pdu, Out> {
        let within = self.context.timing.answer_within;
        let until = until.min(self.context.now() + within);
        let mut suspected: Option<(u32, Instant)> = None;
        loop {
            let next = match suspected {
                Some(_) => until.min(self.context.now() + Duration::from_millis(1)),
                None => until,
            };
            match self.next(next)? {
                Wake::Event(IscsiEvent::Pdu { header, data, .. })
                    if opcode(&header) == Opcode::LoginResponse =>
                {
                    return Ok((header, data));
                }
                // The event may be one of an earlier connection: the state tells.
                Wake::Event(IscsiEvent::ConnectionError { error, .. }) => {
                    suspected = Some((error, self.context.now() + self.context.timing.stale_event));
                }
                Wake::Event(IscsiEvent::Destroyed(_)) => {
                    return Err(Fail::out(FailKind::SessionGone, "somebody else has destroyed the session"));
                }
                Wake::Timeout if self.context.now() >= until => {
                    return Err(Fail::out(
                        FailKind::Unreachable,
                        format!("no answer ({what}) within {:.1} s", within.as_secs_f64()),
                    ));
                }
                Wake::Event(_) | Wake::Look | Wake::Checked(..) | Wake::Ensured | Wake::Timeout => {}
            }
            let state = sysfs::state(self.context.sys(), sid);
            if !matches!(state, Ok(Some((_, ConnectionAttr::Bound | ConnectionAttr::Up)))) {
                // An answer that came before the end of the connection says more than the end.
                if let Some(answer) = self.last_answer(suspected.is_some())? {
                    return Ok(answer);
                }
                let error = suspected.map(|(error, _)| format!(" ({error})")).unwrap_or_default();
                return Err(Fail::out(
                    FailKind::Unreachable,
                    format!("the connection broke during the login{error}, waiting for {what}"),
                ));
            }
            suspected = suspected.filter(|(_, until)| self.context.now() < *until);
        }
    }

    /// Returns a login PDU that came before the end of its connection. sysfs shows the end before
    /// the kernel's events of both have come here: so this waits for the end's own event, unless
    /// that has `ended` the wait already. `None`: none came.
    fn last_answer(&mut self, ended: bool) -> Result<Option<Pdu>, Out> {
        let mut until = self.context.now();
        if !ended {
            until += self.context.timing.stale_event;
        }
        loop {
            match self.next(until)? {
                Wake::Event(IscsiEvent::Pdu { header, data, .. })
                    if opcode(&header) == Opcode::LoginResponse =>
                {
                    return Ok(Some((header, data)));
                }
                // Everything that came before this event is here.
                Wake::Event(IscsiEvent::ConnectionError { .. }) => until = self.context.now(),
                Wake::Timeout => return Ok(None),
                _ => {}
            }
        }
    }

    /// Stops the connection so that another can take its place; this also clears the kernel's
    /// clean-up mark. Further messages of the old connection do not matter.
    pub(crate) fn stop_for_recovery(&mut self) -> Result<(), Out> {
        let Some(live) = &mut self.live else {
            return Err(Fail::out(FailKind::SessionGone, "there is no kernel session"));
        };
        let sid = live.kernel.sid;
        let stopped = self.context.kernel.stop_connection(sid, StopMode::Recover);
        if let Some(socket) = live.socket.take() {
            drop_connection(socket);
        }
        if let Err(error) = stopped {
            return Err(self.gone_or(sid, &error));
        }
        self.forget_events()
    }
}

/// Selects one of two credentials for a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Current,
    /// The second credentials, while secrets are being rotated.
    Other,
}

/// Returns the credentials of a login. The target changes its own secret in another step than ours:
/// either one proves it, whichever of ours it accepts. `None` if the spec has none.
fn credentials(spec: &SessionSpec, which: Which) -> Option<Credentials> {
    let (chap, other) = match (&spec.chap, &spec.other_chap, which) {
        (Some(chap), Some(other), Which::Other) => (other, Some(chap)),
        (Some(chap), other, _) => (chap, other.as_ref()),
        (None, ..) => return None,
    };
    let side =
        |of: &WireChap| of.mutual.as_ref().map(|(user, secret)| (user.clone(), Secret::new(secret.clone())));
    Some(Credentials {
        user: chap.user.clone(),
        secret: chap.secret(),
        mutual: side(chap),
        other_mutual: other.and_then(side),
    })
}

fn config(entry: &Entry, which: Which, alias: Option<String>) -> LoginConfig<'_> {
    let spec = &entry.spec;
    let chap = credentials(spec, which);
    LoginConfig {
        initiator: &spec.initiator,
        target: &spec.target,
        tpg: spec.tpg,
        isid: entry.isid,
        chap,
        alias,
    }
}

//! Runs the life of one session on a thread of its own: made, kept, recovered, ended. This module
//! decides the next phase. `attempt` makes a login, `check` asks the disk who it is, `keep` waits
//! for the events of a session that is logged in, and `teardown` ends a session.
//!
//! What must never happen here: a wait that an order to end does not interrupt; a kernel session
//! without its journal file; "logged in" shown before the disk's identity was checked after a loss;
//! a session that was admitted once, ended by a refusal that may pass; one session's trouble that
//! another notices.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use mooring_host::{IscsiEvent, IscsiParam, KernelSession};
use mooring_model::{Chain, Portal, VolumeId};

use super::Context;
use super::board::{Numbered, Order};
use super::check::Checks;
use super::identity::Verdict;
use super::journal::{Entry, EntryState};
use super::retry::{Failure, Next, Retry};
use super::sysfs::{self, ConnectionAttr, KernelView, SessionAttr};
use crate::iscsi::Isid;
use crate::wire::{End, SessionSpec, SessionState, SessionStatus};

/// The kernel's number of a connection error: the session's host goes away.
pub(super) const INVALID_HOST: u32 = 1018;

/// Beginning of a session in this process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Begin {
    /// The session has to be made.
    Make,
    /// The kernel has a whole, healthy session.
    Adopt(KernelSession),
    /// The kernel has a session that was lost.
    Recover(KernelSession),
    /// The kernel has a session that is of no use.
    Remake(KernelSession),
    /// The session is being ended.
    End(KernelSession, End),
    /// The session was given up; the kernel session that is left of it goes.
    Cut(KernelSession),
    /// The session was given up and is gone.
    Keep,
}

/// Next phase of a session.
#[derive(Debug)]
pub(super) enum Phase {
    /// Make a kernel session and log in.
    Connect,
    /// Log in again on the kernel session, not before this time has passed.
    Recover(Duration),
    /// Ask the disk for its identity.
    Check,
    /// Logged in: wait for events.
    Up,
    /// Destroy the kernel session, then make it anew.
    Remake,
    /// End the session.
    End(End),
    /// Given up: wait for a newer spec.
    Parked,
    /// This process stops; the session goes on.
    Stop,
}

/// Reason why work was left.
#[derive(Debug)]
pub(crate) enum Out {
    /// This process stops.
    Stop,
    /// The session has to end.
    End(End),
    /// The work failed.
    Fail(Fail),
}

/// A failure, as far as it decides on the next phase.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) kind: FailKind,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailKind {
    /// Nobody answers, or the connection broke.
    Unreachable,
    /// The target or this machine is not able now.
    Unable,
    /// The target does not admit this host.
    Refused,
    /// The target violates the protocol: another try would end alike.
    Wrong,
    /// The SCSI host goes away.
    HostGone,
    /// The kernel session does not exist any more.
    SessionGone,
}

impl Fail {
    pub(crate) fn out(kind: FailKind, text: impl Into<String>) -> Out {
        Out::Fail(Self { kind, text: text.into() })
    }
}

/// Event that has woken the thread.
#[derive(Debug)]
pub(crate) enum Wake {
    Event(IscsiEvent),
    Look,
    Checked(u64, Verdict),
    /// A spec has come. It may be the one that the session has.
    Ensured,
    Timeout,
}

/// A kernel session, and the socket of its connection.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) kernel: KernelSession,
    /// Socket of the connection; `None` if an earlier process has made it.
    pub(crate) socket: Option<TcpStream>,
}

pub(crate) struct Session {
    pub(crate) context: Arc<Context>,
    pub(crate) entry: Entry,
    pub(crate) status: SessionStatus,
    pub(crate) live: Option<Live>,
    /// The journal has this spec.
    written: bool,
    /// The connection is started: a logout can be sent.
    pub(crate) started: bool,
    orders: Receiver<Numbered>,
    pub(super) to_self: Sender<Numbered>,
    served: u64,
    /// Spec that came while the session was being ended, with the number of its order.
    again: Option<(u64, SessionSpec)>,
    retry: Retry,
    /// Time of the first failure after the last login.
    trying_since: Option<Instant>,
    pub(super) checks: Checks,
}

/// Returns the first status of a session.
pub(crate) fn first_status(entry: &Entry) -> SessionStatus {
    SessionStatus {
        volume: entry.spec.volume,
        generation: entry.spec.generation,
        target: entry.spec.target.clone(),
        initiator: entry.spec.initiator.clone(),
        state: match entry.state {
            EntryState::Wanted => SessionState::Connecting,
            EntryState::Ending(_) => SessionState::Ending,
            EntryState::Forbidden => SessionState::Forbidden,
            EntryState::Failed => SessionState::Failed,
            EntryState::WrongDisk => SessionState::WrongDisk,
        },
        portal: Some(entry.portal),
        isid: entry.isid.to_string(),
        sid: None,
        host: None,
        since: None,
        login_us: None,
        relogins: 0,
        adopted: false,
        verified: 0,
        problem: entry.problem.clone(),
        retry_in_ms: None,
        secrets: entry.spec.secrets(),
        fc: None,
    }
}

/// Makes the journal entry of a new spec; `None` if it names no portal.
pub(crate) fn new_entry(boot_id: &str, spec: SessionSpec) -> Option<Entry> {
    let portal = *spec.portals.first()?;
    let isid = Isid::of(&spec.initiator, &spec.target, portal);
    Some(Entry::wanted(boot_id, spec, isid, portal))
}

impl Session {
    pub(crate) fn new(
        context: Arc<Context>,
        entry: Entry,
        orders: Receiver<Numbered>,
        to_self: Sender<Numbered>,
    ) -> Self {
        let status = first_status(&entry);
        Self {
            context,
            entry,
            status,
            live: None,
            written: true,
            started: false,
            orders,
            to_self,
            served: 0,
            again: None,
            retry: Retry::default(),
            trying_since: None,
            checks: Checks::default(),
        }
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.entry.spec.volume
    }

    /// Runs until the session is gone or this process stops.
    pub(crate) fn run(mut self, begin: Begin) {
        let mut phase = self.begin(begin);
        loop {
            tracing::debug!(volume = %self.volume(), ?phase, "session");
            phase = match phase {
                Phase::Connect => self.connect(),
                Phase::Recover(wait) => self.recover(wait),
                Phase::Check => self.check(),
                Phase::Up => self.up(),
                Phase::Remake => match self.teardown(End::Cut) {
                    Ok(()) => Phase::Connect,
                    Err(out) => self.left(out),
                },
                Phase::End(how) => match self.end(how) {
                    Some(phase) => phase,
                    None => return,
                },
                Phase::Parked => self.parked(),
                Phase::Stop => return,
            };
        }
    }

    fn begin(&mut self, begin: Begin) -> Phase {
        let (phase, kernel) = match begin {
            Begin::Make => {
                // `connect` writes the journal before anything else, and again and again if that
                // fails: without it no kernel session is made.
                return Phase::Connect;
            }
            Begin::Keep => {
                // The process that gave the session up may have died before the last of its paths
                // was gone.
                self.remove_links();
                return Phase::Parked;
            }
            Begin::Adopt(kernel) => (Phase::Check, kernel),
            Begin::Recover(kernel) => (Phase::Recover(Duration::ZERO), kernel),
            Begin::Remake(kernel) => (Phase::Remake, kernel),
            Begin::End(kernel, how) => (Phase::End(how), kernel),
            Begin::Cut(kernel) => (Phase::Parked, kernel),
        };
        self.hold(kernel, None);
        // The kernel's session shows it. A journal of an earlier release does not.
        self.entry.admitted |= matches!(begin, Begin::Adopt(_) | Begin::Recover(_));
        if self.entry.state == EntryState::Wanted {
            self.record();
        }
        match begin {
            Begin::Adopt(_) => {
                self.started = true;
                self.status.adopted = true;
                self.status.state = SessionState::LoggedIn;
                tracing::info!(
                    volume = %self.volume(), target = %self.entry.spec.target, sid = kernel.sid,
                    portal = %self.entry.portal, "session adopted, no login"
                );
                // The session may have been lost between the look at it and the first event that
                // comes here.
                if let Some(phase) = self.look() {
                    return phase;
                }
            }
            // A logout is tried if the session is still logged in.
            Begin::End(..) => {
                let state = sysfs::state(self.context.sys(), kernel.sid);
                self.started = matches!(state, Ok(Some((SessionAttr::LoggedIn, ConnectionAttr::Up))));
            }
            Begin::Recover(_) => {
                self.status.adopted = true;
                tracing::info!(volume = %self.volume(), sid = kernel.sid, "session adopted, it was lost: logging in again");
            }
            _ => {}
        }
        self.show();
        if matches!(begin, Begin::Cut(_)) {
            if let Err(out) = self.teardown(End::Cut) {
                return self.left(out);
            }
            self.show();
        }
        phase
    }

    /// Takes hold of a kernel session: from here on it is ours to keep or to destroy.
    pub(crate) fn hold(&mut self, kernel: KernelSession, socket: Option<TcpStream>) {
        self.context.board.route(kernel.sid, self.volume());
        self.live = Some(Live { kernel, socket });
        self.status.sid = Some(kernel.sid);
        self.status.host = Some(kernel.host);
    }

    pub(crate) fn show(&self) {
        self.context.board.show(&self.status, self.served);
    }

    pub(crate) fn show_state(&mut self, state: SessionState) {
        self.status.state = state;
        self.show();
    }

    /// Writes the journal. Returns `true` if that succeeded.
    pub(crate) fn record(&mut self) -> bool {
        match self.context.journal.write(&self.entry) {
            Ok(()) => {
                self.written = true;
                self.status.secrets = self.entry.spec.secrets();
                true
            }
            Err(error) => {
                self.written = false;
                // A process that comes after this one may know only one secret.
                self.status.secrets = self.status.secrets.min(1);
                let problem = Chain(&error).to_string();
                tracing::error!(volume = %self.volume(), problem, "the journal cannot be written");
                self.status.problem = Some(problem);
                false
            }
        }
    }

    pub(super) fn left(&mut self, out: Out) -> Phase {
        match out {
            Out::Stop => Phase::Stop,
            Out::End(how) => Phase::End(how),
            Out::Fail(fail) => {
                self.status.problem = Some(fail.text);
                self.show();
                Phase::Remake
            }
        }
    }

    /// Returns the next event until this time. It handles new specs itself.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Wake, Out> {
        let wait = until.saturating_duration_since(self.context.now());
        let (number, order) = match self.orders.recv_timeout(wait) {
            Ok(numbered) => numbered,
            Err(RecvTimeoutError::Timeout) => return Ok(Wake::Timeout),
            // The thread holds a sender itself; otherwise nobody would be left to give orders.
            Err(RecvTimeoutError::Disconnected) => return Err(Out::Stop),
        };
        self.served = self.served.max(number);
        match order {
            Order::Ensure(spec) => {
                self.take(number, *spec);
                self.show();
                Ok(Wake::Ensured)
            }
            Order::End(how) => {
                self.again = None;
                Err(Out::End(how))
            }
            // An event of a kernel session that was ours before.
            Order::Event(event) if !self.is_ours(&event) => Ok(Wake::Look),
            Order::Event(event) => Ok(Wake::Event(event)),
            Order::Look => Ok(Wake::Look),
            Order::Checked(check, verdict) => {
                self.checks.answered(check);
                Ok(Wake::Checked(check, verdict))
            }
            Order::Stop => Err(Out::Stop),
        }
    }

    fn is_ours(&self, event: &IscsiEvent) -> bool {
        sid_of(event).is_none_or(|sid| self.live.as_ref().is_some_and(|live| live.kernel.sid == sid))
    }

    /// Waits for this time, for nothing but orders. A spec ends the wait if it differs from the
    /// session's own: a client that repeats its order must not undo the back-off.
    fn pause(&mut self, time: Duration) -> Result<(), Out> {
        let until = self.context.now() + time;
        let spec = self.entry.spec.clone();
        loop {
            match self.next(until)? {
                Wake::Timeout => return Ok(()),
                Wake::Ensured if self.entry.spec != spec => return Ok(()),
                Wake::Event(IscsiEvent::Destroyed(_)) => {
                    return Err(Fail::out(FailKind::SessionGone, "somebody else has destroyed the session"));
                }
                Wake::Event(IscsiEvent::ConnectionError { error: INVALID_HOST, .. }) => {
                    return Err(Fail::out(FailKind::HostGone, "the kernel's initiator was unloaded"));
                }
                Wake::Event(_) | Wake::Look | Wake::Checked(..) | Wake::Ensured => {}
            }
        }
    }

    /// Drops events of the connection before the next one: they mean nothing any more.
    pub(crate) fn forget_events(&mut self) -> Result<(), Out> {
        let now = self.context.now();
        while !matches!(self.next(now)?, Wake::Timeout) {}
        Ok(())
    }

    fn take(&mut self, number: u64, spec: SessionSpec) {
        let kept = &self.entry.spec;
        match self.entry.state {
            EntryState::Ending(_) => {
                self.again = Some((number, spec));
                return;
            }
            EntryState::Forbidden | EntryState::Failed | EntryState::WrongDisk => {
                if spec.generation > kept.generation {
                    // A target that knew this host may refuse the newer spec, too, until its access
                    // is back.
                    let admitted = self.entry.admitted && spec.target == kept.target;
                    self.renew(spec);
                    self.entry.admitted = admitted;
                }
                return;
            }
            EntryState::Wanted if spec.generation < kept.generation => return,
            EntryState::Wanted if spec == *kept && self.written => return,
            EntryState::Wanted => {}
        }
        let recovery_changed = spec.recovery_timeout_s != kept.recovery_timeout_s;
        if spec.generation > kept.generation {
            // A newer spec has its whole time, whatever the target said to the one before.
            self.retry = Retry::default();
            self.trying_since = None;
        }
        self.entry.spec = spec;
        self.status.generation = self.entry.spec.generation;
        // A smaller number of secrets counts at once; a greater one when it is written down.
        self.status.secrets = self.status.secrets.min(self.entry.spec.secrets());
        tracing::info!(volume = %self.volume(), generation = %self.status.generation, "new spec, for the next login");
        self.record();
        if let (true, Some(live)) = (recovery_changed, &self.live) {
            let seconds = self.entry.spec.recovery_timeout_s.to_string();
            let set = self.context.kernel.set_param(live.kernel.sid, IscsiParam::SessRecoveryTmo, &seconds);
            if let Err(error) = set {
                tracing::warn!(volume = %self.volume(), %error, "the recovery time is taken over at the next login");
            }
        }
    }

    /// Begins anew with another spec.
    fn renew(&mut self, spec: SessionSpec) {
        let Some(entry) = new_entry(&self.entry.boot_id, spec) else { return };
        self.entry = entry;
        self.status = first_status(&self.entry);
        self.retry = Retry::default();
        self.trying_since = None;
    }

    fn connect(&mut self) -> Phase {
        self.status.state = SessionState::Connecting;
        self.status.retry_in_ms = None;
        self.show();
        loop {
            let written = self.record();
            let tried = if written {
                self.login_anywhere(false)
            } else {
                Err(Fail::out(FailKind::Unable, self.status.problem.clone().unwrap_or_default()))
            };
            let fail = match tried {
                Ok(()) => {
                    self.logged_in();
                    return Phase::Up;
                }
                Err(Out::Fail(fail)) => fail,
                Err(out) => return self.left(out),
            };
            let next = match fail.kind {
                // The target knew this host: what it answers now may pass, as in `recover`.
                FailKind::Refused if self.entry.admitted => Failure::Refused,
                FailKind::Wrong if self.entry.admitted => Failure::Unable,
                // Whoever asks for a first login is told at once.
                FailKind::Refused | FailKind::Wrong => return self.give_up(EntryState::Failed, fail.text),
                FailKind::HostGone | FailKind::SessionGone | FailKind::Unreachable => Failure::Unreachable,
                FailKind::Unable => Failure::Unable,
            };
            match self.wait_after(next, &fail.text) {
                Ok(true) => {}
                Ok(false) => return self.forbidden(),
                Err(out) => return self.left(out),
            }
        }
    }

    fn recover(&mut self, wait: Duration) -> Phase {
        self.started = false;
        self.status.state = SessionState::Recovering;
        self.status.retry_in_ms = None;
        self.show();
        let mut first_wait = Some(wait).filter(|wait| !wait.is_zero());
        loop {
            let tried = self.stop_for_recovery().and_then(|()| match first_wait.take() {
                Some(wait) => self.wait_as_ordered(wait),
                None => Ok(()),
            });
            let fail = match tried.and_then(|()| self.login_anywhere(true)) {
                Ok(()) => {
                    self.status.relogins += 1;
                    return Phase::Check;
                }
                Err(Out::Fail(fail)) => fail,
                Err(out) => return self.left(out),
            };
            let failure = match fail.kind {
                FailKind::HostGone => return self.give_up(EntryState::Failed, fail.text),
                FailKind::SessionGone => {
                    self.status.problem = Some(fail.text);
                    self.let_go();
                    return Phase::Connect;
                }
                FailKind::Unreachable => Failure::Unreachable,
                FailKind::Refused => Failure::Refused,
                // A target that is being restored may answer anything, and I/O waits for it.
                FailKind::Unable | FailKind::Wrong => Failure::Unable,
            };
            match self.wait_after(failure, &fail.text) {
                Ok(true) => {}
                Ok(false) => return self.forbidden(),
                Err(Out::Fail(Fail { kind: FailKind::SessionGone, .. })) => {
                    self.let_go();
                    return Phase::Connect;
                }
                Err(Out::Fail(fail)) => return self.give_up(EntryState::Failed, fail.text),
                Err(out) => return self.left(out),
            }
        }
    }

    /// Waits for as long as the target has ordered.
    fn wait_as_ordered(&mut self, wait: Duration) -> Result<(), Out> {
        self.status.retry_in_ms = u64::try_from(wait.as_millis()).ok();
        self.show();
        self.pause(wait)?;
        self.status.retry_in_ms = None;
        Ok(())
    }

    /// Waits after a failure until the next try is due. `false`: the target's refusal counts, so
    /// there is none.
    fn wait_after(&mut self, failure: Failure, text: &str) -> Result<bool, Out> {
        let now = self.context.now();
        let since = *self.trying_since.get_or_insert(now);
        let times = self.context.timing.retry(self.entry.spec.recovery_timeout_s);
        let next = self.retry.failed(failure, now, &times, jitter());
        let problem = format!(
            "{text}; tried {} times in {:.1} s",
            self.retry.failures(),
            now.saturating_duration_since(since).as_secs_f64()
        );
        // Logged for the first failure, and then for each with another text.
        tracing::warn!(volume = %self.volume(), problem, "no login");
        self.status.problem = Some(problem);
        let Next::After(pause) = next else { return Ok(false) };
        self.status.retry_in_ms = u64::try_from(pause.as_millis()).ok();
        self.show();
        self.pause(pause)?;
        self.status.retry_in_ms = None;
        Ok(true)
    }

    /// Shows the session as logged in: the login is done, and its disk, if any, is the right one.
    pub(super) fn logged_in(&mut self) {
        if !self.entry.admitted {
            self.entry.admitted = true;
            // Without it the next process takes a refusal for that of a first login, and no more
            // harm is done.
            self.record();
        }
        self.retry = Retry::default();
        self.trying_since = None;
        self.checks.known(self.context.now());
        self.status.problem = None;
        self.status.retry_in_ms = None;
        self.show_state(SessionState::LoggedIn);
    }

    /// Ends the session for good, and stays to show why.
    pub(super) fn give_up(&mut self, state: EntryState, problem: String) -> Phase {
        tracing::error!(volume = %self.volume(), ?state, problem, "session given up");
        self.entry.state = state;
        self.entry.problem = Some(problem.clone());
        self.record();
        self.status.retry_in_ms = None;
        self.status.problem = Some(problem.clone());
        // The final state shows only when the kernel's session has gone with its disk.
        if let Err(out) = self.teardown(End::Cut) {
            return self.left(out);
        }
        self.status.problem = Some(problem);
        self.status.state = first_status(&self.entry).state;
        self.show();
        Phase::Parked
    }

    /// Ends the session of a host that the target has refused for the whole recovery time.
    fn forbidden(&mut self) -> Phase {
        let problem = self.status.problem.clone().unwrap_or_default();
        self.give_up(EntryState::Forbidden, problem)
    }

    fn parked(&mut self) -> Phase {
        loop {
            if self.entry.state == EntryState::Wanted {
                return Phase::Connect;
            }
            let until = self.context.now() + Duration::from_hours(1);
            if let Err(out) = self.next(until) {
                return self.left(out);
            }
        }
    }

    /// Ends the session. `None`: it is gone, and no new spec has come.
    fn end(&mut self, how: End) -> Option<Phase> {
        let mut how = how;
        loop {
            self.entry.state = EntryState::Ending(how);
            // The end goes on without the journal: a revoked session must go.
            self.record();
            self.status.retry_in_ms = None;
            self.show_state(SessionState::Ending);
            match self.teardown(how) {
                Ok(()) => break,
                Err(Out::Stop) => return Some(Phase::Stop),
                Err(Out::End(End::Cut)) => how = End::Cut,
                // Repeats the end; steps that are done already do nothing.
                Err(Out::End(End::Logout) | Out::Fail(_)) => {}
            }
        }
        while let Err(error) = self.context.journal.remove(self.volume()) {
            self.status.problem = Some(Chain(&error).to_string());
            self.show();
            match self.pause(self.context.timing.recheck) {
                Err(Out::Stop) => return Some(Phase::Stop),
                Ok(()) | Err(Out::End(_) | Out::Fail(_)) => {}
            }
        }
        tracing::info!(volume = %self.volume(), ?how, "session ended");
        let (number, spec) = self.context.board.leave(self.volume(), &self.orders, self.again.take())?;
        self.served = self.served.max(number);
        // The answer of a check may have gone with the orders of the former life.
        self.checks.forget_thread();
        self.renew(spec);
        Some(Phase::Connect)
    }
}

/// Returns the kernel session of an event; `None` if it has none.
pub(crate) fn sid_of(event: &IscsiEvent) -> Option<u32> {
    match event {
        IscsiEvent::Pdu { sid, .. } | IscsiEvent::ConnectionError { sid, .. } => Some(*sid),
        IscsiEvent::Created(session) | IscsiEvent::Destroyed(session) | IscsiEvent::Unbound(session) => {
            Some(session.sid)
        }
        IscsiEvent::Overrun => None,
    }
}

/// Chooses the portal: one that a kernel session was logged in at goes before the journal's.
pub(crate) fn portal_of(entry: &Entry, view: &KernelView) -> Portal {
    view.portal.filter(|portal| entry.spec.portals.contains(portal)).unwrap_or(entry.portal)
}

/// Returns any number; a predictable one does no harm.
fn jitter() -> u8 {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

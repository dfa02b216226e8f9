//! Keeps a session that is logged in: waits for events, and checks its disk's identity.
//!
//! What must never happen here: a healthy session that is logged in anew because of a stale event;
//! a lost one that is taken for healthy; I/O that goes on to another disk.

use std::time::Duration;

use mooring_host::{IscsiEvent, KernelSession};

use super::identity::Verdict;
use super::journal::EntryState;
use super::session::{INVALID_HOST, Phase, Session, Wake};
use super::steps::Step;
use super::sysfs::{self, ConnectionAttr, SessionAttr};
use crate::iscsi::{
    AsyncEvent, LogoutOutcome, Opcode, logout_request, opcode, parse_async, parse_logout_response,
};

impl Session {
    /// Returns the portal that was used last.
    fn portal(&self) -> mooring_model::Portal {
        self.status.portal.unwrap_or(self.entry.portal)
    }

    /// Asks the disk for its identity, and waits for the answer or for something more urgent.
    pub(super) fn check(&mut self) -> Phase {
        let Some(kernel) = self.live.as_ref().map(|live| live.kernel) else { return Phase::Connect };
        self.checks += 1;
        let check = self.checks;
        self.set_running(kernel);
        self.context.check_identity(kernel, &self.entry.wish, check, self.to_self.clone());
        let within = self.context.timing.check_within;
        let mut until = self.context.now() + within;
        loop {
            let wake = match self.next(until) {
                Ok(wake) => wake,
                Err(out) => return self.left(out),
            };
            match wake {
                Wake::Checked(number, verdict) if number == check => match verdict {
                    Verdict::Right | Verdict::Absent => {
                        if verdict == Verdict::Right {
                            self.status.verified += 1;
                        }
                        self.logged_in();
                        return Phase::Up;
                    }
                    Verdict::Wrong(text) => return self.wrong_disk(kernel, text),
                    Verdict::Unknown(why) => {
                        self.status.problem = Some(format!("the disk's identity is not known: {why}"));
                        self.show();
                        if let Some(phase) = self.pause_or_phase() {
                            return phase;
                        }
                        return Phase::Check;
                    }
                },
                Wake::Checked(..) | Wake::Changed => {}
                // The thread of the check is still at work: no second one.
                Wake::Timeout => {
                    self.status.problem =
                        Some(format!("the disk has not said who it is for {} s", within.as_secs()));
                    self.show();
                    until = self.context.now() + Duration::from_hours(1);
                }
                Wake::Event(event) => {
                    if let Some(phase) = self.happened(&event) {
                        return phase;
                    }
                }
                Wake::Look => {
                    if let Some(phase) = self.look() {
                        return phase;
                    }
                }
            }
        }
    }

    /// Pauses between two checks. Returns the phase that ends the pause early; `None`: it is over.
    fn pause_or_phase(&mut self) -> Option<Phase> {
        let until = self.context.now() + self.context.timing.recheck;
        loop {
            match self.next(until) {
                Ok(Wake::Timeout) => return None,
                Ok(Wake::Event(event)) => {
                    if let Some(phase) = self.happened(&event) {
                        return Some(phase);
                    }
                }
                Ok(Wake::Look) => {
                    if let Some(phase) = self.look() {
                        return Some(phase);
                    }
                }
                Ok(Wake::Checked(..) | Wake::Changed) => {}
                Err(out) => return Some(self.left(out)),
            }
        }
    }

    /// Sets the disk's device to `running`. A disk that error handling has set offline does not
    /// come back by itself; nor does one that this daemon has set offline before it died. An
    /// offline disk cannot be asked for its identity.
    fn set_running(&self, kernel: KernelSession) {
        let state = sysfs::unit_path(kernel.host, kernel.sid, self.entry.wish.lun.0).join("state");
        if self.context.sys().read_text(&state).is_ok_and(|state| state == "offline") {
            self.set_device(kernel, b"running\n");
        }
    }

    /// Writes a state. The kernel compares the word with the line feed after it: without one it is
    /// EINVAL (6.1).
    fn set_device(&self, kernel: KernelSession, line: &[u8]) {
        let state = sysfs::unit_path(kernel.host, kernel.sid, self.entry.wish.lun.0).join("state");
        let written = self.context.steps.step(Step::DeviceState, || self.context.sys().write(&state, line));
        if let Err(error) = written {
            tracing::warn!(volume = %self.volume(), %error, "the disk's state cannot be set");
        }
    }

    fn wrong_disk(&mut self, kernel: KernelSession, text: String) -> Phase {
        tracing::error!(volume = %self.volume(), sid = kernel.sid, text, "another disk answers");
        // Commands that are queued for the former disk must not reach this one.
        self.set_device(kernel, b"offline\n");
        self.give_up(EntryState::WrongDisk, text)
    }

    pub(super) fn up(&mut self) -> Phase {
        loop {
            let until = self.context.now() + Duration::from_hours(1);
            let phase = match self.next(until) {
                Ok(Wake::Event(event)) => self.happened(&event),
                Ok(Wake::Look) => self.look(),
                Ok(Wake::Checked(..) | Wake::Changed | Wake::Timeout) => None,
                Err(out) => Some(self.left(out)),
            };
            if let Some(phase) = phase {
                return phase;
            }
        }
    }

    /// Handles an event of a session that is logged in. Returns the next phase; `None`: it stays
    /// logged in.
    fn happened(&mut self, event: &IscsiEvent) -> Option<Phase> {
        let kernel = self.live.as_ref()?.kernel;
        match event {
            IscsiEvent::ConnectionError { error: INVALID_HOST, .. } => {
                Some(self.give_up(EntryState::Failed, "the kernel's initiator was unloaded".to_owned()))
            }
            IscsiEvent::ConnectionError { error, .. } => {
                if !self.is_lost(kernel.sid) {
                    tracing::debug!(volume = %self.volume(), error, "an error of an earlier connection");
                    return None;
                }
                tracing::warn!(volume = %self.volume(), sid = kernel.sid, error, portal = %self.portal(), "session lost");
                self.status.problem =
                    Some(format!("portal {}: the connection was lost ({error})", self.portal()));
                Some(Phase::Recover(Duration::ZERO))
            }
            IscsiEvent::Destroyed(_) => {
                tracing::warn!(volume = %self.volume(), sid = kernel.sid, "somebody else has destroyed the session");
                self.status.problem = Some("somebody else has destroyed the session".to_owned());
                self.let_go();
                Some(Phase::Connect)
            }
            IscsiEvent::Unbound(_) => {
                tracing::warn!(volume = %self.volume(), sid = kernel.sid, "somebody else has taken the session's disks");
                self.status.problem = Some("somebody else has taken the session's disks from it".to_owned());
                Some(Phase::Remake)
            }
            IscsiEvent::Pdu { header, data, .. } => self.told(parse_async(header, data)?),
            IscsiEvent::Created(_) | IscsiEvent::Overrun => None,
        }
    }

    /// Handles a message that the target sends without being asked. Returns the next phase; `None`:
    /// the session stays logged in.
    fn told(&mut self, event: AsyncEvent) -> Option<Phase> {
        tracing::info!(volume = %self.volume(), ?event, "the target says");
        match event {
            AsyncEvent::RequestLogout { within_s } => Some(self.log_out_as_asked(within_s)),
            AsyncEvent::DropConnection { wait_s, .. } | AsyncEvent::DropSession { wait_s, .. } => {
                self.status.problem = Some("the target has dropped the connection".to_owned());
                Some(Phase::Recover(Duration::from_secs(wait_s.into())))
            }
            AsyncEvent::Renegotiate { .. } => Some(Phase::Recover(Duration::ZERO)),
            event if event.luns_changed() => Some(Phase::Check),
            AsyncEvent::Scsi { .. } | AsyncEvent::Other { .. } => None,
        }
    }

    /// Logs out because the target asks for it, to log in anew.
    fn log_out_as_asked(&mut self, within_s: u16) -> Phase {
        let Some(sid) = self.live.as_ref().map(|live| live.kernel.sid) else { return Phase::Connect };
        self.status.problem = Some("the target has asked for a new login".to_owned());
        if self.context.kernel.send_pdu(sid, &logout_request(), &[]).is_err() {
            return Phase::Recover(Duration::ZERO);
        }
        let within = Duration::from_secs(within_s.max(1).into()).min(self.context.timing.logout_within);
        let until = self.context.now() + within;
        loop {
            match self.next(until) {
                Ok(Wake::Event(IscsiEvent::Pdu { header, .. }))
                    if opcode(&header) == Opcode::LogoutResponse =>
                {
                    // A closed session needs no wait.
                    let wait_s = match parse_logout_response(&header) {
                        Ok(response) if response.outcome != LogoutOutcome::Closed => response.time2wait,
                        _ => 0,
                    };
                    return Phase::Recover(Duration::from_secs(wait_s.into()));
                }
                Ok(Wake::Event(IscsiEvent::ConnectionError { .. }) | Wake::Timeout) => {
                    return Phase::Recover(Duration::ZERO);
                }
                Ok(Wake::Event(event @ (IscsiEvent::Destroyed(_) | IscsiEvent::Unbound(_)))) => {
                    return self.happened(&event).unwrap_or(Phase::Connect);
                }
                Ok(Wake::Event(_) | Wake::Look | Wake::Checked(..) | Wake::Changed) => {}
                Err(out) => return self.left(out),
            }
        }
    }

    /// Reads the session's state from sysfs: events may have been lost. Returns the next phase;
    /// `None`: the session stays logged in.
    pub(super) fn look(&mut self) -> Option<Phase> {
        let kernel = self.live.as_ref()?.kernel;
        match sysfs::state(self.context.sys(), kernel.sid) {
            Ok(Some((SessionAttr::LoggedIn, ConnectionAttr::Up))) => None,
            Ok(Some((session, connection))) => {
                // sysfs may show the state before the event with its reason comes.
                if let Some(phase) = self.told_why() {
                    return Some(phase);
                }
                tracing::warn!(
                    volume = %self.volume(), sid = kernel.sid, ?session, ?connection,
                    "session lost, seen in sysfs"
                );
                self.status.problem = Some(format!("portal {}: the connection was lost", self.portal()));
                Some(Phase::Recover(Duration::ZERO))
            }
            Ok(None) => self.happened(&IscsiEvent::Destroyed(kernel)),
            Err(error) => {
                tracing::warn!(volume = %self.volume(), %error, "the session's state cannot be read");
                None
            }
        }
    }

    /// Waits a moment for the event of an end that sysfs shows already. `None`: it did not come.
    fn told_why(&mut self) -> Option<Phase> {
        let until = self.context.now() + self.context.timing.stale_event;
        loop {
            let phase = match self.next(until) {
                Ok(Wake::Event(event)) => self.happened(&event),
                Ok(Wake::Timeout) => return None,
                Ok(Wake::Look | Wake::Checked(..) | Wake::Changed) => None,
                Err(out) => Some(self.left(out)),
            };
            if phase.is_some() {
                return phase;
            }
        }
    }

    /// Returns `true` if the connection really is lost. The event comes before the kernel's own
    /// work has changed the state, and an error of an earlier connection may come late: so it looks
    /// for some moments.
    fn is_lost(&self, sid: u32) -> bool {
        let until = self.context.now() + self.context.timing.stale_event;
        loop {
            // A state that cannot be read cannot be trusted.
            if !matches!(
                sysfs::state(self.context.sys(), sid),
                Ok(Some((SessionAttr::LoggedIn, ConnectionAttr::Up)))
            ) {
                return true;
            }
            if self.context.now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

//! Keeps a session that is logged in: waits for events.
//!
//! What must never happen here: a healthy session that is logged in anew because of a stale event;
//! a lost one that is taken for healthy; a wait as long as a target orders; logins as fast as a
//! target ends them.

use std::time::Duration;

use mooring_host::IscsiEvent;

use super::journal::EntryState;
use super::session::{INVALID_HOST, Phase, Session, Wake};
use super::sysfs::{self, ConnectionAttr, SessionAttr};
use crate::iscsi::{
    AsyncEvent, LogoutOutcome, Opcode, logout_request, opcode, parse_async, parse_logout_response,
};

impl Session {
    /// Returns the portal that was used last.
    fn portal(&self) -> mooring_model::Portal {
        self.status.portal.unwrap_or(self.entry.portal)
    }

    pub(super) fn up(&mut self) -> Phase {
        loop {
            let now = self.context.now();
            let due = self.checks.due();
            if due.is_some_and(|due| due <= now) {
                return Phase::Check;
            }
            let phase = match self.next(due.unwrap_or(now + Duration::from_hours(1))) {
                Ok(Wake::Event(event)) => self.happened(&event),
                Ok(Wake::Look) => self.look(),
                Ok(Wake::Checked(..) | Wake::Ensured | Wake::Timeout) => None,
                Err(out) => Some(self.left(out)),
            };
            if let Some(phase) = phase {
                return phase;
            }
        }
    }

    /// Bounds a wait before a login, in seconds, both ordered by the target: it may order a wait of
    /// 18 hours, or one login after the other. A connection that ends without a word counts as an
    /// order to log in at once: a target may close it after each login.
    fn ordered(&mut self, wait_s: u16) -> Duration {
        let timing = self.context.timing;
        let recovery = Duration::from_secs(self.entry.spec.recovery_timeout_s.into());
        let wait = Duration::from_secs(wait_s.into()).min(timing.ordered_within).min(recovery);
        if self.checks.flood.ordered(self.context.now()) { wait.max(timing.recheck) } else { wait }
    }

    /// Handles an event of a session that is logged in. Returns the next phase; `None`: it stays
    /// logged in.
    pub(super) fn happened(&mut self, event: &IscsiEvent) -> Option<Phase> {
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
                if let Some(left_out) = self.checks.flood.line(self.context.now()) {
                    tracing::warn!(
                        volume = %self.volume(), sid = kernel.sid, error, portal = %self.portal(), left_out,
                        "session lost"
                    );
                }
                self.status.problem =
                    Some(format!("portal {}: the connection was lost ({error})", self.portal()));
                Some(Phase::Recover(self.ordered(0)))
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
        if let Some(left_out) = self.checks.flood.line(self.context.now()) {
            tracing::info!(volume = %self.volume(), ?event, left_out, "the target says");
        }
        match event {
            AsyncEvent::RequestLogout { within_s } => Some(self.log_out_as_asked(within_s)),
            AsyncEvent::DropConnection { wait_s, .. } | AsyncEvent::DropSession { wait_s, .. } => {
                self.status.problem = Some("the target has dropped the connection".to_owned());
                Some(Phase::Recover(self.ordered(wait_s)))
            }
            AsyncEvent::Renegotiate { .. } => Some(Phase::Recover(self.ordered(0))),
            event if event.luns_changed() => self.luns_changed(),
            AsyncEvent::Scsi { .. } | AsyncEvent::Other { .. } => None,
        }
    }

    /// Logs out because the target asks for it, to log in anew.
    fn log_out_as_asked(&mut self, within_s: u16) -> Phase {
        let Some(sid) = self.live.as_ref().map(|live| live.kernel.sid) else { return Phase::Connect };
        self.status.problem = Some("the target has asked for a new login".to_owned());
        if self.context.kernel.send_pdu(sid, &logout_request(), &[]).is_err() {
            return Phase::Recover(self.ordered(0));
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
                    return Phase::Recover(self.ordered(wait_s));
                }
                Ok(Wake::Event(IscsiEvent::ConnectionError { .. }) | Wake::Timeout) => {
                    return Phase::Recover(self.ordered(0));
                }
                Ok(Wake::Event(event @ (IscsiEvent::Destroyed(_) | IscsiEvent::Unbound(_)))) => {
                    return self.happened(&event).unwrap_or(Phase::Connect);
                }
                Ok(Wake::Event(_) | Wake::Look | Wake::Checked(..) | Wake::Ensured) => {}
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
                if let Some(left_out) = self.checks.flood.line(self.context.now()) {
                    tracing::warn!(
                        volume = %self.volume(), sid = kernel.sid, ?session, ?connection, left_out,
                        "session lost, seen in sysfs"
                    );
                }
                self.status.problem = Some(format!("portal {}: the connection was lost", self.portal()));
                Some(Phase::Recover(self.ordered(0)))
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
                Ok(Wake::Look | Wake::Checked(..) | Wake::Ensured) => None,
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

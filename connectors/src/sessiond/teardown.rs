//! Ends a kernel session: with a logout, or at once. Each step may have been done already, by this
//! daemon before a crash or by another process.
//!
//! The paths for users go first: the agent, which makes them, may be down, and the kernel gives the
//! name of a disk that is gone to another one.
//!
//! What must never happen here: a flush or a wait for I/O (the disk may be blocked); "gone" said
//! while the kernel still has the session; a path for users to a disk that is gone.

use std::time::Duration;

use mooring_host::{Errno, IscsiError, IscsiEvent, KernelSession, StopMode, drop_connection};
use mooring_model::Chain;

use super::session::{Out, Session, Wake};
use super::{Context, sysfs};
use crate::iscsi::{Opcode, logout_request, opcode};
use crate::links::{LinkName, Links};
use crate::wire::End;

/// Pause between two looks for the end of the session, where no event tells it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Accepts the error of an object that is gone or a connection that is stopped; logs any other.
fn tolerate(done: Result<(), IscsiError>) {
    match done {
        Ok(()) => {}
        Err(error) if matches!(error.errno, Errno::EINVAL | Errno::ENOTCONN) => {}
        Err(error) => tracing::warn!(%error, "a step of the end of a session failed"),
    }
}

/// Begins to destroy all parts of a kernel session.
pub(crate) fn destroy(context: &Context, sid: u32) {
    tolerate(context.kernel.stop_connection(sid, StopMode::Terminate));
    tolerate(context.kernel.destroy_connection(sid));
    tolerate(context.kernel.destroy_session(sid));
}

/// Destroys a kernel session that no thread keeps. Returns `true` if it is gone in time.
pub(crate) fn reap(context: &Context, kernel: KernelSession) -> bool {
    destroy(context, kernel.sid);
    let until = context.now() + context.timing.destroy_within;
    loop {
        match sysfs::exists(context.sys(), kernel.sid) {
            Ok(false) => return true,
            Ok(true) if context.now() < until => std::thread::sleep(LOOK_EVERY),
            Ok(true) | Err(_) => return false,
        }
    }
}

impl Session {
    /// Ends the kernel session, if there is one. Returns when it is gone, or on an order to stop.
    /// An order to cut ends the logout at once; an order to end that comes later is returned when
    /// the session is gone.
    pub(crate) fn teardown(&mut self, how: End) -> Result<(), Out> {
        self.remove_links();
        let Some(kernel) = self.live.as_ref().map(|live| live.kernel) else { return Ok(()) };
        if how == End::Logout && self.started {
            self.log_out(kernel)?;
        }
        self.started = false;
        let began = self.context.now();
        let mut asked = None;
        loop {
            destroy(&self.context, kernel.sid);
            if let Some(socket) = self.live.as_mut().and_then(|live| live.socket.take()) {
                drop_connection(socket);
            }
            if self.is_gone_soon(kernel, &mut asked)? {
                self.let_go();
                // The order is not lost: a caller that destroyed for another reason goes on with
                // it.
                return asked.map_or(Ok(()), |how| Err(Out::End(how)));
            }
            let problem = format!(
                "the kernel has not destroyed session {} for {} s",
                kernel.sid,
                self.context.now().saturating_duration_since(began).as_secs()
            );
            tracing::error!(volume = %self.volume(), problem, "session does not end");
            self.status.problem = Some(problem);
            self.show();
        }
    }

    /// Forgets the kernel session, which is gone.
    pub(crate) fn let_go(&mut self) {
        if let Some(live) = self.live.take() {
            self.context.board.unroute(live.kernel.sid);
            if let Some(socket) = live.socket {
                drop_connection(socket);
            }
        }
        self.started = false;
        self.checks.forget_disk();
        self.status.sid = None;
        self.status.host = None;
        // Once more: an agent that had looked before may have made a path meanwhile.
        self.remove_links();
    }

    /// Removes the paths for users. A path that cannot be removed holds up nothing: a revoked
    /// session must go.
    pub(super) fn remove_links(&self) {
        let (links, volume) = (&self.context.links, self.volume());
        let attachments = links.recorded(volume).unwrap_or_else(|error| {
            tracing::error!(%volume, error = %Chain(&error), "the paths of a session's disk cannot be listed");
            std::collections::BTreeSet::new()
        });
        let names = attachments.into_iter().map(LinkName::Attachment).chain([LinkName::Volume(volume)]);
        for name in names {
            if let Err(error) = links.remove(volume, name) {
                tracing::error!(%volume, path = %name, error = %Chain(&error), "cannot remove the path of a disk that is being removed");
            }
        }
    }

    /// Takes the devices from the session and logs out at the target; both bounded.
    fn log_out(&mut self, kernel: KernelSession) -> Result<(), Out> {
        let timing = self.context.timing;
        match self.context.kernel.unbind_session(kernel.sid) {
            Ok(()) => self.wait_unbound(kernel)?,
            Err(error) => tolerate(Err(error)),
        }
        if self.context.kernel.send_pdu(kernel.sid, &logout_request(), &[]).is_ok() {
            let answered = self.wait_for(timing.logout_within, |event| match event {
                IscsiEvent::Pdu { header, .. } => opcode(header) == Opcode::LogoutResponse,
                IscsiEvent::ConnectionError { .. } | IscsiEvent::Destroyed(_) => true,
                _ => false,
            })?;
            if !answered {
                tracing::warn!(volume = %self.volume(), sid = kernel.sid, "the target does not answer the logout");
            }
        }
        Ok(())
    }

    /// Waits until the session has lost its devices. The kernel tells that once; if the process
    /// that was told has died, sysfs shows it.
    fn wait_unbound(&mut self, kernel: KernelSession) -> Result<(), Out> {
        let until = self.context.now() + self.context.timing.unbind_within;
        loop {
            let left = until.saturating_duration_since(self.context.now());
            if left.is_zero() || sysfs::is_unbound(self.context.sys(), kernel.sid).unwrap_or(false) {
                return Ok(());
            }
            let told = self.wait_for(left.min(LOOK_EVERY), |event| {
                matches!(
                    event,
                    IscsiEvent::Unbound(_) | IscsiEvent::Destroyed(_) | IscsiEvent::ConnectionError { .. }
                )
            })?;
            if told {
                return Ok(());
            }
        }
    }

    fn is_gone_soon(&mut self, kernel: KernelSession, asked: &mut Option<End>) -> Result<bool, Out> {
        let until = self.context.now() + self.context.timing.destroy_within;
        loop {
            match sysfs::exists(self.context.sys(), kernel.sid) {
                Ok(false) => return Ok(true),
                Ok(true) => {}
                Err(error) => tracing::warn!(%error, "cannot see whether a session is gone"),
            }
            let now = self.context.now();
            if now >= until {
                return Ok(false);
            }
            // Whatever wakes the thread, it asks the kernel again.
            match self.next(until.min(now + LOOK_EVERY)) {
                Ok(_) | Err(Out::Fail(_)) => {}
                Err(Out::End(how)) => *asked = Some(how),
                Err(Out::Stop) => return Err(Out::Stop),
            }
        }
    }

    /// Waits for one of these events. `false`: none came in time. An order to log out changes
    /// nothing.
    fn wait_for(&mut self, within: Duration, this: impl Fn(&IscsiEvent) -> bool) -> Result<bool, Out> {
        let until = self.context.now() + within;
        loop {
            match self.next(until) {
                Ok(Wake::Event(event)) if this(&event) => return Ok(true),
                Ok(Wake::Timeout) => return Ok(false),
                Ok(_) | Err(Out::End(End::Logout)) => {}
                Err(out) => return Err(out),
            }
        }
    }
}

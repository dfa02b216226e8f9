//! Sessions of the machine's own with its targets, for commands on persistent reservations.
//!
//! What must never happen: a session that the kernel would refuse, or that a target without the
//! right proof gets.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::lio::{AclKey, PrOut, Tpg, mutual_credentials};
use super::{FakeMachine, IoRefusal, LoginRefusal, SessionId};
use crate::{PrCommand, PrError, PrNexus, PrSession, PrSessions};

struct Session {
    machine: FakeMachine,
    id: SessionId,
    lun: u64,
}

/// The target fails to prove itself with the credentials of its ACL.
#[derive(Debug, thiserror::Error)]
#[error("the target did not prove itself")]
struct NoProof;

impl PrSessions for FakeMachine {
    fn open(&self, nexus: &PrNexus, _until: Instant) -> Result<Box<dyn PrSession>, PrError> {
        let refused = |source: Box<dyn std::error::Error + Send + Sync>| PrError::Login {
            target: nexus.target.clone(),
            portal: nexus.portal,
            source,
        };
        let PrNexus { portal, target, initiator, chap: (user, secret), mutual: (name, proof), .. } = nexus;
        let shown = Some((user.as_str(), secret.as_str()));
        let id = self
            .login(&portal.to_string(), target, initiator, shown)
            .map_err(|refusal: LoginRefusal| refused(refusal.into()))?;
        let machine = self.handle.lock();
        let key = machine
            .sessions
            .get(&id.0)
            .map(|session| AclKey { tpg: session.tpg.clone(), initiator: session.initiator.clone() });
        let acl = key.and_then(|key| machine.lio.tpg(&key.tpg)?.acls.get(&key.initiator));
        let right = acl.and_then(|acl| mutual_credentials(&acl.values));
        let proven = right.as_ref().is_some_and(|(of, with)| (of, with) == (name, proof));
        drop(machine);
        let session = Session { machine: self.clone(), id, lun: nexus.lun.into() };
        if proven { Ok(Box::new(session)) } else { Err(refused(NoProof.into())) }
    }

    fn knock(&self, portal: SocketAddr, _until: Instant) -> io::Result<()> {
        let machine = self.handle.lock();
        let listens = |tpg: &Tpg| tpg.portals.values().any(|known| known.address == portal);
        if !machine.lio.tpgs().any(|(_, tpg)| listens(tpg)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        // A caller never waits for a fake that will not answer.
        if machine.login_waits_for(portal).is_empty() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl PrSession for Session {
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError> {
        let command = match *command {
            PrCommand::Register { key, durable } => PrOut::RegisterAnyway { new: key, durable },
            PrCommand::Clear { key } => PrOut::Clear { key },
            PrCommand::Preempt { key, victim, kind, abort: _ } => PrOut::Preempt { key, victim, kind },
        };
        match self.machine.persistent_reserve(self.id, self.lun, command) {
            Ok(()) => Ok(()),
            Err(IoRefusal::ReservationConflict) => Err(PrError::Conflict),
            Err(refusal @ IoRefusal::SessionGone) => Err(PrError::Broken(refusal.into())),
            Err(refusal) => Err(PrError::Refused(refusal.to_string())),
        }
    }

    fn close(self: Box<Self>) -> Result<(), PrError> {
        self.machine.logout(self.id);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.machine.handle.lock().sessions.remove(&self.id.0);
    }
}

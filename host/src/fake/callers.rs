//! Connections to the fake target: each session over IP has one, for as long as it lives.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::session::Endpoint;
use super::state::Handle;
use crate::callers::{CallerChanges, Callers, Standing};

/// One process that follows connections to a [`FakeMachine`](super::FakeMachine).
#[derive(Debug)]
pub struct FakeCallers {
    handle: Handle,
    standing: Mutex<Standing>,
}

impl FakeCallers {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, standing: Mutex::default() }
    }
}

impl Callers for FakeCallers {
    fn changes(&self, ports: &dyn Fn() -> BTreeSet<u16>) -> io::Result<CallerChanges> {
        // The caller's function may look at the machine.
        let ports = ports();
        let machine = self.handle.lock();
        let sessions = machine.sessions.iter().filter_map(|(id, session)| match session.endpoint {
            // No two connections come from one port.
            Endpoint::Ip { portal, address, .. } if ports.contains(&portal.port()) => {
                Some((portal, (address, u16::try_from(id % 60_000).unwrap_or_default() + 1024).into()))
            }
            _ => None,
        });
        Ok(self.standing.lock().unwrap_or_else(PoisonError::into_inner).becomes(sessions.collect()))
    }
}

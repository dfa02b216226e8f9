//! Wires between the controller and its agents, which a test can cut.
//!
//! A cut wire is silent, as a network that loses every packet: nobody sees a connection end, a new
//! one is made and says nothing, and what was sent meanwhile arrives once the wire is whole again.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    Cut,
    Ended,
}

/// The place that all bytes of a wire pass.
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits while the wire is cut. `false`: it has ended.
    fn pass(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self
            .changed
            .wait_while(state, |state| *state == State::Cut)
            .unwrap_or_else(PoisonError::into_inner);
        *state == State::Whole
    }

    fn has_ended(&self) -> bool {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) == State::Ended
    }
}

/// A socket whose bytes all go to one agent, and come from it.
pub(crate) struct Wire {
    socket: PathBuf,
    gate: Arc<Gate>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.gate.set(State::Ended);
        // The thread that listens sees the end at its next connection. Without a listener it has
        // ended already.
        let _ = UnixStream::connect(&self.socket);
    }
}

impl Wire {
    /// Makes a wire from this socket to the agent at this address, `unix:PATH`.
    pub(crate) fn new(socket: PathBuf, agent: &str) -> Self {
        let agent = PathBuf::from(agent.strip_prefix("unix:").expect("an agent with a socket"));
        let listener = UnixListener::bind(&socket).expect("the socket of a wire");
        let gate = Arc::new(Gate { state: Mutex::new(State::Whole), changed: Condvar::new() });
        let of_thread = Arc::clone(&gate);
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if of_thread.has_ended() {
                    return;
                }
                let (agent, gate) = (agent.clone(), Arc::clone(&of_thread));
                thread::spawn(move || join(near, &agent, &gate));
            }
        });
        Self { socket, gate }
    }

    /// The address at which the controller dials the agent.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Cuts the wire (`true`), or makes it whole.
    pub(crate) fn cut(&self, cut: bool) {
        self.gate.set(if cut { State::Cut } else { State::Whole });
    }
}

/// Joins a connection with a new one to the agent, until both directions have ended.
fn join(near: UnixStream, agent: &Path, gate: &Arc<Gate>) {
    if !gate.pass() {
        return;
    }
    // Without an agent the connection ends at once, as at a port where nobody listens.
    let Ok(far) = UnixStream::connect(agent) else { return };
    let (Ok(from_near), Ok(from_far)) = (near.try_clone(), far.try_clone()) else { return };
    let back = Arc::clone(gate);
    thread::spawn(move || forward(from_far, near, &back));
    forward(from_near, far, gate);
}

/// Forwards one direction, until one side ends it or the wire ends.
fn forward(mut from: UnixStream, mut to: UnixStream, gate: &Gate) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if !gate.pass() || count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Fails if the other side has gone already.
    let _ = to.shutdown(Shutdown::Write);
}

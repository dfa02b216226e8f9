//! Commands on persistent reservations, sent by a session of this machine's own with one of its targets. The session itself is
//! made elsewhere, in user space: no disk of it ever comes into being here.
//!
//! What must never happen here: a secret in a `Debug`; a command that is repeated although it may have been done.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// A PERSISTENT RESERVE OUT (SPC-4, 6.16). Its scope is the logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrCommand {
    /// REGISTER AND IGNORE EXISTING KEY; the key 0 unregisters. The kernel takes `durable` (APTPL) for the whole device: false
    /// ends the keeping of everybody's registrations (`core_scsi3_update_and_write_aptpl`).
    Register {
        /// The sender's key from now on.
        key: u64,
        /// Registrations outlive a loss of power.
        durable: bool,
    },
    /// CLEAR: nothing is registered nor reserved any more, the sender's own included.
    Clear {
        /// The sender's key.
        key: u64,
    },
    /// PREEMPT: those with the victim's key lose their registration. What they held is the sender's then.
    Preempt {
        /// The sender's key.
        key: u64,
        /// The victims'.
        victim: u64,
        /// The type of the reservation, by SPC-4's number. It counts if a victim holds one.
        kind: u8,
        /// PREEMPT AND ABORT: what the victims have in flight ends first. It waits for the disk.
        abort: bool,
    },
}

/// Where a session is made, and as whom.
#[derive(Clone, PartialEq, Eq)]
pub struct PrNexus {
    /// The portal.
    pub portal: SocketAddr,
    /// The target's name.
    pub target: String,
    /// Its portal group.
    pub tpg: u16,
    /// The initiator's name.
    pub initiator: String,
    /// Its CHAP user and secret.
    pub chap: (String, String),
    /// The target's, which it has to prove.
    pub mutual: (String, String),
    /// The LUN as the initiator numbers it: less than 256.
    pub lun: u8,
}

impl fmt::Debug for PrNexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} over {}", self.initiator, self.target, self.portal)
    }
}

/// Why a command was not done, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum PrError {
    /// No session came into being.
    #[error("cannot log in to {target} over {portal}")]
    Login {
        /// The target.
        target: String,
        /// The portal.
        portal: SocketAddr,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// RESERVATION CONFLICT.
    #[error("the target answers with a reservation conflict")]
    Conflict,
    /// Any other status than GOOD, in words.
    #[error("the target refuses the command: {0}")]
    Refused(String),
    /// The session broke, or the time was over: whether the command was done is not known.
    #[error("the session with the target broke")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A session that lives.
pub trait PrSession: Send {
    /// Sends a command and waits for its status. Unit attentions, which stand for what happened before, are waited out: such a
    /// command was not done.
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError>;

    /// Logs out. A session that is only dropped is cut.
    fn close(self: Box<Self>) -> Result<(), PrError>;
}

/// Makes sessions with targets of this machine.
pub trait PrSessions: Send + Sync {
    /// Logs in. Everything that this session does ends at `until`.
    fn open(&self, nexus: &PrNexus, until: Instant) -> Result<Box<dyn PrSession>, PrError>;

    /// Begins a discovery login at a portal of this machine, over loopback, and waits for whatever answer: no session comes of
    /// it. `TimedOut` at `until`: the portal takes connections, and its login thread answers nobody.
    fn knock(&self, portal: SocketAddr, until: Instant) -> io::Result<()>;
}

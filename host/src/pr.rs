//! Commands on persistent reservations, sent in a session of this machine with one of its own
//! targets. Another crate makes the session, in user space: no disk of it ever appears here.
//!
//! What must never happen here: a secret in a `Debug`; a command that is repeated although it may
//! have been done.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// A PERSISTENT RESERVE OUT (SPC-4, 6.16). Its scope is the logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrCommand {
    /// REGISTER AND IGNORE EXISTING KEY; the key 0 unregisters. The kernel takes `durable` (APTPL)
    /// for the whole device: `false` ends the keeping of everybody's registrations
    /// (`core_scsi3_update_and_write_aptpl`).
    Register {
        /// Key of the sender from now on.
        key: u64,
        /// Registrations outlive a loss of power.
        durable: bool,
    },
    /// CLEAR: ends every registration and reservation, the sender's own included.
    Clear {
        /// Key of the sender.
        key: u64,
    },
    /// PREEMPT: initiators with the victim's key lose their registration. The sender takes over
    /// their reservation.
    Preempt {
        /// Key of the sender.
        key: u64,
        /// Key of the victims.
        victim: u64,
        /// Type of the reservation, by SPC-4's number. It counts if a victim holds one.
        kind: u8,
        /// PREEMPT AND ABORT: the victims' commands in flight end first. This waits for the disk.
        abort: bool,
    },
}

/// Names and credentials of a session.
#[derive(Clone, PartialEq, Eq)]
pub struct PrNexus {
    /// The portal.
    pub portal: SocketAddr,
    /// Name of the target.
    pub target: String,
    /// Portal group of the target.
    pub tpg: u16,
    /// Name of the initiator.
    pub initiator: String,
    /// CHAP user and secret of the initiator.
    pub chap: (String, String),
    /// CHAP user and secret of the target, which it has to prove.
    pub mutual: (String, String),
    /// LUN as the initiator numbers it: less than 256.
    pub lun: u8,
}

impl fmt::Debug for PrNexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} over {}", self.initiator, self.target, self.portal)
    }
}

/// Reason why a command was not done, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum PrError {
    /// The login failed.
    #[error("cannot log in to {target} over {portal}")]
    Login {
        /// Name of the target.
        target: String,
        /// The portal.
        portal: SocketAddr,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// RESERVATION CONFLICT.
    #[error("the target answers with a reservation conflict")]
    Conflict,
    /// Any other status than GOOD, in words.
    #[error("the target refuses the command: {0}")]
    Refused(String),
    /// The session broke, or the time was over: nobody knows if the command was done.
    #[error("the session with the target broke")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A session that is logged in.
pub trait PrSession: Send {
    /// Sends a command and waits for its status. A unit attention reports an earlier event and
    /// means that the command was not done: the command is sent again.
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError>;

    /// Logs out. A session that is only dropped ends without a logout.
    fn close(self: Box<Self>) -> Result<(), PrError>;
}

/// Makes sessions with targets of this machine.
pub trait PrSessions: Send + Sync {
    /// Logs in. Everything that this session does ends at `until`.
    fn open(&self, nexus: &PrNexus, until: Instant) -> Result<Box<dyn PrSession>, PrError>;

    /// Begins a discovery login at a portal of this machine, over loopback, and waits for any
    /// answer; no session is made. `TimedOut` at `until`: the portal takes connections, and its
    /// login thread answers nobody.
    fn knock(&self, portal: SocketAddr, until: Instant) -> io::Result<()>;
}

//! What is seen, and what was done: derived each time it is asked for, never stored beside the truth (receipts apart,
//! which are records of the past).

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::{
    AttachmentId, BarrierId, ByteSize, Cure, FcPortReport, Generation, HeldReservation, Initiator, Iqn, Lun,
    Mode, Naa, Portal, Reservations, RevertId, UploadId, VolumeId,
};

/// Something that is not as wanted, for people and for the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The object, as the operator knows it.
    pub object: String,
    /// What is wrong and what to do.
    pub text: String,
    /// Who can cure it.
    pub cure: Cure,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.text)
    }
}

/// A kernel call that has not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckStep {
    /// The step, as `rmdir iscsi/…/acls/…`.
    pub step: String,
    /// For how long it has been running.
    pub since: Duration,
}

/// Where a volume stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Wanted, not there yet (or being zeroed).
    Creating,
    /// There, zeroed, usable.
    Ready,
    /// Doomed, still there.
    Deleting,
    /// Doomed and gone.
    Gone,
    /// Wanted and cannot be made now; see the problems.
    Failed,
    /// There, tagged as ours, and no spec names it: kept and reported.
    Orphan,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Orphan => "orphan",
        })
    }
}

/// One volume as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReport {
    /// The volume.
    pub id: VolumeId,
    /// Where it stands.
    pub phase: Phase,
    /// The group it lies in.
    pub group: String,
    /// Its size as LVM says; 0 when it is not there.
    pub size: ByteSize,
    /// The device node, when it is active.
    pub device: Option<String>,
    /// Bytes zeroed so far, while that goes on; of a volume that is deleted, also those that were discarded.
    pub zeroed: Option<ByteSize>,
    /// What is not as wanted.
    pub problems: Vec<Problem>,
    /// The revert that made the LV that is there: it holds what a snapshot held, and what was written since.
    pub reverted: Option<RevertId>,
    /// The copy to a file that is wished and was done: the file is there, and whole.
    pub uploaded: Option<UploadId>,
    /// Whether it is cut off from its disk.
    pub cut: Cut,
}

/// Whether a volume is cut off from its disk: as it is wished, and as the kernel's table of its LV shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cut {
    /// It is not, and is not to be.
    #[default]
    No,
    /// It is to be. Until then commands may reach the disk.
    Pending,
    /// Nothing reaches the disk through its LV: every command ends with an error. Of one that is not to be cut any more: still.
    InForce,
}

/// A live session of one nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    /// The initiator.
    pub initiator: Iqn,
    /// Initiator session id, 12 hexadecimal digits.
    pub isid: String,
    /// The kernel's number of the session (`LIO Session ID`).
    pub id: u64,
    /// The initiator's addresses, one per connection.
    pub addresses: Vec<String>,
    /// `LOGGED_IN` and so on, as the kernel says without its prefix.
    pub state: String,
    /// Commands that the target has taken and not answered yet.
    pub in_flight: u32,
    /// When the agent saw it first; the kernel does not say when it began. `None`: nobody has followed it.
    pub since: Option<SystemTime>,
}

/// What a nexus has done since it was granted (the kernel starts anew when the mapped LUN is made anew).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// SCSI commands.
    pub commands: u64,
    /// MiB read, rounded down.
    pub read_mib: u64,
    /// MiB written, rounded down.
    pub written_mib: u64,
    /// When the agent saw the number of commands move last. `None`: not since it began to look.
    pub active: Option<SystemTime>,
}

/// One grant as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantReport {
    /// The initiator.
    pub initiator: Iqn,
    /// The LUN number it sees.
    pub lun: Lun,
    /// The mode that is wanted.
    pub wanted: Mode,
    /// The mode that the kernel enforces; `None` while the nexus is not complete.
    pub seen: Option<Mode>,
    /// Its live sessions.
    pub sessions: Vec<SessionReport>,
    /// What it has done.
    pub counters: Counters,
    /// The barrier that is wanted, once it is done: nothing lands any more of what was in flight when it was asked for.
    pub barrier: Option<BarrierId>,
}

/// One export as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportReport {
    /// The volume.
    pub volume: VolumeId,
    /// The generation that the agent works on.
    pub generation: Generation,
    /// Target name.
    pub target: Iqn,
    /// The identity that initiators see.
    pub naa: Naa,
    /// Where the target listens.
    pub portals: Vec<Portal>,
    /// Everything wanted is seen in the kernel.
    pub in_force: bool,
    /// Its grants.
    pub grants: Vec<GrantReport>,
    /// Its Fibre Channel ports, each with its grants; empty for an export over iSCSI alone.
    pub fc: Vec<FcPortReport>,
    /// What its initiators have registered and reserved; `None`: nothing, or it was not read yet.
    pub reservations: Option<Reservations>,
    /// What the agent keeps of them for a loss of power, in its own words; empty: none. `None`: it does not say.
    pub kept_reservations: Option<String>,
    /// What is not as wanted.
    pub problems: Vec<Problem>,
    /// A kernel call of this volume that has not returned.
    pub stuck: Option<StuckStep>,
    /// When its sessions and counters were read. `None`: not since the agent was started, and that it shows none says
    /// nothing.
    pub looked: Option<SystemTime>,
    /// Sessions over iSCSI that the target has beside those that its grants show: of several of one initiator the kernel lists one.
    /// `None`: nobody has counted them since the export changed, or the kernel does not count.
    pub unlisted_sessions: Option<u32>,
}

/// Whether anything of a revoked nexus may still reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The kernel's draining call has returned: nothing of this nexus lands any more.
    Proven,
    /// The kernel's call has not returned: commands may still land.
    Unproven {
        /// So many: those in flight when the revoke began. `None`: any number may. Nobody could look, because a call of this volume
        /// hung, or it is over Fibre Channel, where the kernel does not count them.
        in_flight: Option<u32>,
    },
}

/// What was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// The nexus existed in the kernel and was removed.
    Nexus,
    /// There was nothing in the kernel to remove.
    Nothing,
}

/// Why a nexus was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cause {
    /// Its grant was taken away.
    #[default]
    Revoke,
    /// It had reserved the volume by RESERVE(6): that ends with its session. Its grant stands, and it may log in again.
    Reservation,
    /// The same, and it is kept out until its grant is taken away and given again.
    ReservationKeptOut,
    /// Nothing was taken away: its storage node was forgotten, and nobody will ever say whether anything may still land.
    Forgotten,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoke => "revoke",
            Self::Reservation => "reservation",
            Self::ReservationKeptOut => "reservation_kept_out",
            Self::Forgotten => "forgotten",
        })
    }
}

/// The record of a revoke, or of a nexus that was cut while its grant stands ([`Cause`]). It never says revoked while the grant
/// lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The volume.
    pub volume: VolumeId,
    /// The initiator: with the volume, the nexus.
    pub initiator: Initiator,
    /// The attachments that shared it.
    pub attachments: Vec<AttachmentId>,
    /// The generation of the export's spec that took it away.
    pub generation: Generation,
    /// What was taken away.
    pub revoked: Revoked,
    /// The sessions that were cut.
    pub sessions: Vec<SessionReport>,
    /// Whether that is proven.
    pub proof: Proof,
    /// When the revoke began.
    pub began: SystemTime,
    /// When the draining call returned; `None` while unproven.
    pub ended: Option<SystemTime>,
    /// It held the volume's reservation when the revoke began, as was seen last. `None`: it was not seen to, or its agent is of an
    /// earlier release and does not say.
    pub reservation: Option<HeldReservation>,
    /// Why the nexus was taken away.
    pub cause: Cause,
}

impl Receipt {
    /// What its initiator has lost besides its access, in words.
    pub fn parting_words(&self) -> Option<String> {
        let (initiator, held) = (&self.initiator, self.reservation?);
        let end = match self.cause {
            Cause::Revoke => held.end(),
            Cause::Forgotten => "its storage node was forgotten with it",
            Cause::Reservation => "its session was cut, which ends that; it may log in again",
            Cause::ReservationKeptOut => {
                "its session was cut, which ends that; it is kept out until it is detached and attached again"
            }
        };
        Some(format!("{initiator} held the volume's reservation ({held}): {end}"))
    }
}

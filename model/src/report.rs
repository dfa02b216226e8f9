//! Reports: observed states, derived on each request and never stored beside the truth. Receipts
//! are the exception: they are records of the past.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::{
    AttachmentId, BarrierId, ByteSize, Counters, Cure, FcPortReport, Generation, HeldReservation, Initiator,
    Iqn, Lun, Mode, Naa, Portal, Reservations, RevertId, UploadId, VolumeId,
};

/// A deviation from the spec, for people and for the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The object, under the operator's name for it.
    pub object: String,
    /// The fault and the remedy.
    pub text: String,
    /// The remedy.
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
    /// Time for which it has been running.
    pub since: Duration,
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// In the spec, not there yet (or being zeroed).
    Creating,
    /// There, zeroed and usable.
    Ready,
    /// To be deleted, still there.
    Deleting,
    /// Deleted.
    Gone,
    /// In the spec, and cannot be made now; see the problems.
    Failed,
    /// There, with our tag, and in no spec: kept and reported.
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

/// The report on one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReport {
    /// The volume.
    pub id: VolumeId,
    /// The state of the volume.
    pub phase: Phase,
    /// The volume group.
    pub group: String,
    /// Size according to LVM; 0 when the LV does not exist.
    pub size: ByteSize,
    /// The device node; `None` while the LV is inactive.
    pub device: Option<String>,
    /// Bytes zeroed so far; for a volume that is being deleted, also discarded bytes. `None`: no
    /// such work.
    pub zeroed: Option<ByteSize>,
    /// Deviations from the spec.
    pub problems: Vec<Problem>,
    /// The revert that made the current LV, which holds the snapshot's content and later writes.
    /// `None`: no revert made it.
    pub reverted: Option<RevertId>,
    /// The image export in the spec, once it is done: the file exists and is complete.
    pub uploaded: Option<UploadId>,
    /// Isolation of the volume from its disk.
    pub cut: Cut,
}

/// Isolation of a volume from its disk: in the spec, and in the kernel's table of its LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cut {
    /// Not isolated, and the spec does not ask for it.
    #[default]
    No,
    /// The spec asks for it. Until it is in force, commands may reach the disk.
    Pending,
    /// No command reaches the disk through the volume's LV: every one ends with an error. Also
    /// reported while the spec no longer asks for it but the table still shows it.
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
    /// The state as the kernel says it, without its prefix: `LOGGED_IN` and so on.
    pub state: String,
    /// Commands that the target has accepted and not answered yet.
    pub in_flight: u32,
    /// Time when the agent first saw it; the kernel does not say when it began. `None`: nothing has
    /// followed it.
    pub since: Option<SystemTime>,
}

/// The report on one grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantReport {
    /// The initiator.
    pub initiator: Iqn,
    /// The LUN number that the initiator sees.
    pub lun: Lun,
    /// The mode in the spec.
    pub wanted: Mode,
    /// The mode that the kernel enforces; `None` while the nexus is not complete.
    pub seen: Option<Mode>,
    /// Live sessions of the initiator.
    pub sessions: Vec<SessionReport>,
    /// I/O counters of the nexus.
    pub counters: Counters,
    /// The spec's barrier, once it is done: no command that was in flight at the request lands any
    /// more.
    pub barrier: Option<BarrierId>,
}

/// The report on one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportReport {
    /// The volume.
    pub volume: VolumeId,
    /// The generation that the agent works on.
    pub generation: Generation,
    /// The target's name.
    pub target: Iqn,
    /// The identity that initiators see.
    pub naa: Naa,
    /// Addresses where the target listens.
    pub portals: Vec<Portal>,
    /// The kernel shows everything that is in the spec.
    pub in_force: bool,
    /// The grants over iSCSI.
    pub grants: Vec<GrantReport>,
    /// The Fibre Channel ports, each with its grants; empty for an export over iSCSI alone.
    pub fc: Vec<FcPortReport>,
    /// Registrations and reservation of the volume; `None`: there are none, or they were not read
    /// yet.
    pub reservations: Option<Reservations>,
    /// The agent's durable copy of the reservations for a loss of power, in the agent's own format;
    /// empty: none kept. `None`: the agent does not say.
    pub kept_reservations: Option<String>,
    /// Deviations from the spec.
    pub problems: Vec<Problem>,
    /// A kernel call of this volume that has not returned.
    pub stuck: Option<StuckStep>,
    /// Time when sessions and counters were read. `None`: not since the agent started, so an empty
    /// list proves nothing.
    pub looked: Option<SystemTime>,
    /// iSCSI sessions at the target beyond those that the grants show: the kernel lists only one
    /// session of each initiator. `None`: not counted since the export changed, or the kernel does
    /// not count.
    pub unlisted_sessions: Option<u32>,
}

/// Proof that no command of a revoked nexus can reach the disk any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The kernel's draining call has returned: no command of this nexus lands any more.
    Proven,
    /// The kernel's draining call has not returned: commands may still land.
    Unproven {
        /// Number of commands in flight when the revoke began. `None`: unknown. A call of this
        /// volume hung, so they could not be counted; or it is over Fibre Channel, where the kernel
        /// does not count them.
        in_flight: Option<u32>,
    },
}

/// The object that a revoke removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// The nexus existed in the kernel and was removed.
    Nexus,
    /// The kernel had nothing to remove.
    Nothing,
}

/// The reason why a nexus was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cause {
    /// Revoke of its grant.
    #[default]
    Revoke,
    /// End of its reservation by RESERVE(6), which ends only with the session. The grant stands,
    /// and the initiator may log in again.
    Reservation,
    /// As [`Self::Reservation`], but it is kept out until its grant is revoked and given again.
    ReservationKeptOut,
    /// Nothing was removed: the storage node was forgotten, so nothing can ever prove that no
    /// command still lands.
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

/// The record of a revoked grant, or of a nexus that was removed while its grant stands
/// ([`Cause`]). It never says revoked while the grant lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The volume.
    pub volume: VolumeId,
    /// The initiator: with the volume, the nexus.
    pub initiator: Initiator,
    /// The attachments that shared the nexus.
    pub attachments: Vec<AttachmentId>,
    /// Generation of the export's spec that removed it.
    pub generation: Generation,
    /// The object that was removed.
    pub revoked: Revoked,
    /// The sessions that were ended.
    pub sessions: Vec<SessionReport>,
    /// Proof that no command still lands.
    pub proof: Proof,
    /// Time when the revoke began.
    pub began: SystemTime,
    /// Time when the draining call returned; `None` while unproven.
    pub ended: Option<SystemTime>,
    /// The volume's reservation, if this initiator was last seen to hold it when the revoke began.
    /// `None`: it was not seen to, or the agent's release does not report it.
    pub reservation: Option<HeldReservation>,
    /// The reason for the removal.
    pub cause: Cause,
}

impl Receipt {
    /// The initiator's losses besides its access, in words; `None`: there are none.
    pub fn parting_words(&self) -> Option<String> {
        let (initiator, held) = (&self.initiator, self.reservation?);
        let end = match self.cause {
            Cause::Revoke => held.end(),
            Cause::Forgotten => "its storage node was forgotten, and the reservation with it",
            Cause::Reservation => "its session was ended, and the reservation with it; it may log in again",
            Cause::ReservationKeptOut => {
                "its session was ended, and the reservation with it; it is kept out until it is detached and attached again"
            }
        };
        Some(format!("{initiator} held the volume's reservation ({held}): {end}"))
    }
}

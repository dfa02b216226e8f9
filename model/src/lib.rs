//! Pure types shared by every part of Mooring: ids, names, sizes, specs, plans, reports, receipts
//! and limits.
//!
//! Nothing here does I/O, reads a clock or knows a protocol. Strings become these types at the edge
//! (CLI, wire, configuration); inside, a value of one of these types is valid by construction.
//!
//! What must never happen here: an import of another Mooring crate; a `Debug` or `Display` that
//! prints a secret.

mod cache;
mod connection;
mod counters;
mod cure;
mod error;
mod fc;
mod generation;
mod id;
mod image;
mod initiator;
mod job;
pub mod limit;
mod mode;
mod name;
mod plan;
mod report;
mod reservation;
mod secret;
mod size;
mod spec;
mod tuning;
mod usage;

pub use cache::{Cache, ParseCacheError};
pub use connection::{
    AttachmentPath, AttachmentSpec, ConnectionPhase, ConnectionReport, ConnectionSpec, FcRoute, HostDisk,
    HostSession,
};
pub use counters::Counters;
pub use cure::{Chain, Cure};
pub use error::SpecError;
pub use fc::{
    FcExportSpec, FcFabric, FcGrant, FcGrantReport, FcPort, FcPortReport, InitiatorSlot, PortLun, Wwpn,
};
pub use generation::{Digest, Fence, Generation, Stamp};
pub use id::{AgentId, AttachmentId, BarrierId, ClusterId, ParseIdError, RevertId, UploadId, VolumeId};
pub use image::{ImageFormat, ImageName, ImageSource, ParseImageError};
pub use initiator::Initiator;
pub use job::{JobKind, JobReport};
pub use mode::{Mode, ParseModeError};
pub use name::{
    BackstoreName, Iqn, IqnPrefix, LUN_DEFAULT, LV_COPIED_MARK, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG,
    LV_ZEROED_MARK, Lun, LvName, Naa, NameError, Portal, TPG_DEFAULT, VgName, lv_revert_tag, lv_volume_tag,
    revert_of_lv_tag, volume_of_lv_tag,
};
pub use plan::{Blocked, BlockedKind, Plan, Step};
pub use report::{
    Cause, Cut, ExportReport, GrantReport, Phase, Problem, Proof, Receipt, Revoked, SessionReport, StuckStep,
    VolumeReport,
};
pub use reservation::{
    HeldReservation, Registration, ReservationHolder, ReservationType, Reservations, ReservationsChange,
    ReservationsChanged,
};
pub use secret::Secret;
pub use size::{ByteSize, ParseSizeError};
pub use spec::{
    Chap, ChapSide, ExistingLv, ExportIdentity, ExportNames, ExportSpec, FcNames, Grant, PoolName,
    Provisioning, Revert, Source, Upload, VolumeKind, VolumeSpec,
};
pub use tuning::{ParseTuningKeyError, ParseTuningValueError, Tuning, TuningKey, TuningValue};
pub use usage::{DiskAccess, DiskCheck, DiskUser, DiskUserKind};

//! Whether the disk of a session is still the disk that was handed over: asked freshly, after every recovery and takeover.
//!
//! What must never happen here: an answer from a cache; a check that holds up the session's own thread (INQUIRY of a
//! blocked device hangs for as long as its session is lost).

use std::path::Path;
use std::sync::Arc;

use mooring_host::{Disks, KernelSession, Tree};
use mooring_model::{Chain, Lun, Naa};

use super::sysfs;
use crate::vpd;

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The wanted disk.
    Right,
    /// There is no disk: nobody has scanned for it yet.
    Absent,
    /// Another disk; what it says that it is.
    Wrong(String),
    /// Nothing was found out; why.
    Unknown(String),
}

/// Asks a session's disk who it is.
pub trait Identity: Send + Sync {
    /// Asks. May hang for as long as the device is blocked: called on a thread that can be lost.
    fn check(&self, session: KernelSession, lun: Lun, want: &Naa) -> Verdict;
}

/// The real check: the disk of (session, LUN) by sysfs, and a fresh INQUIRY of page 0x83.
pub struct FreshInquiry {
    sys: Arc<dyn Tree>,
    disks: Arc<dyn Disks>,
}

impl FreshInquiry {
    /// Looks for disks in this `/sys`, and asks them.
    pub fn new(sys: Arc<dyn Tree>, disks: Arc<dyn Disks>) -> Self {
        Self { sys, disks }
    }
}

impl Identity for FreshInquiry {
    fn check(&self, session: KernelSession, lun: Lun, want: &Naa) -> Verdict {
        let name = match sysfs::disk(self.sys.as_ref(), session.host, session.sid, lun.0) {
            Ok(Some(name)) => name,
            Ok(None) => return Verdict::Absent,
            Err(error) => return Verdict::Unknown(Chain(&error).to_string()),
        };
        let device = Path::new("/dev").join(name);
        match self.disks.inquiry(&device, vpd::PAGE_IDENTIFICATION) {
            Err(error) => Verdict::Unknown(Chain(&error).to_string()),
            Ok(page) => match vpd::naa_of_page83(&page) {
                Some(got) if got == *want => Verdict::Right,
                Some(got) => Verdict::Wrong(format!("{} is the disk {got}, not {want}", device.display())),
                None => {
                    Verdict::Wrong(format!("{} names no NAA identity, {want} is wanted", device.display()))
                }
            },
        }
    }
}

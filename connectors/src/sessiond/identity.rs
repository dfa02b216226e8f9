//! Checks that the disk of a session still is the disk that was handed over. It asks freshly, after
//! every recovery and takeover.
//!
//! What must never happen here: an answer from a cache; a check that holds up the session's own
//! thread (INQUIRY of a blocked device hangs for as long as its session is lost).

use std::path::Path;
use std::sync::Arc;

use mooring_host::{DiskError, Disks, KernelSession, Tree};
use mooring_model::{Chain, Lun, Naa};

use super::sysfs;
use crate::vpd;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The disk has the expected identity.
    Right,
    /// There is no disk: nobody has scanned for it yet.
    Absent,
    /// Another disk; the text has its identity.
    Wrong(String),
    /// The identity is unknown; the text has the reason.
    Unknown(String),
}

/// Identity that a disk must show. Both halves count: two volumes may have one NAA, and one host
/// may meet both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// NAA identifier of the logical unit.
    pub naa: Naa,
    /// Unit serial. `None`: nobody knows it, and the NAA alone decides.
    pub serial: Option<String>,
}

impl Wanted {
    /// Compares the pages that a disk has sent; page 0x80 is `None` where no serial is expected.
    fn verdict(&self, device: &Path, page83: &[u8], page80: Option<&[u8]>) -> Verdict {
        let device = device.display();
        let want = &self.naa;
        match vpd::naa_of_page83(page83) {
            Some(got) if got == *want => {}
            Some(got) => return Verdict::Wrong(format!("{device} is the disk {got}, not {want}")),
            None => return Verdict::Wrong(format!("{device} names no NAA identity, {want} is wanted")),
        }
        let (Some(want), Some(page)) = (&self.serial, page80) else { return Verdict::Right };
        match vpd::serial_of_page80(page) {
            Some(got) if got == *want => Verdict::Right,
            got => {
                let got = got.unwrap_or_else(|| "none".to_owned());
                Verdict::Wrong(format!(
                    "{device} has the NAA that is wanted, {}, but its serial is {got}, and {want} is wanted",
                    self.naa
                ))
            }
        }
    }
}

/// Asks a session's disk for its identity.
pub trait Identity: Send + Sync {
    /// Checks the identity. May hang for as long as the device is blocked: call it on a thread that
    /// can be lost.
    fn check(&self, session: KernelSession, lun: Lun, want: &Wanted) -> Verdict;
}

/// Real check: finds the disk of (session, LUN) by sysfs, and sends a fresh INQUIRY for the pages
/// 0x83 and 0x80.
pub struct FreshInquiry {
    sys: Arc<dyn Tree>,
    disks: Arc<dyn Disks>,
}

impl FreshInquiry {
    /// Looks for disks in this `/sys`, and asks them.
    pub fn new(sys: Arc<dyn Tree>, disks: Arc<dyn Disks>) -> Self {
        Self { sys, disks }
    }

    fn ask(&self, device: &Path, want: &Wanted) -> Result<Verdict, DiskError> {
        let page83 = self.disks.inquiry(device, vpd::PAGE_IDENTIFICATION)?;
        let page80 = match want.serial {
            Some(_) => Some(self.disks.inquiry(device, vpd::PAGE_SERIAL)?),
            None => None,
        };
        Ok(want.verdict(device, &page83, page80.as_deref()))
    }
}

impl Identity for FreshInquiry {
    fn check(&self, session: KernelSession, lun: Lun, want: &Wanted) -> Verdict {
        let name = match sysfs::disk(self.sys.as_ref(), session.host, session.sid, lun.0) {
            Ok(Some(name)) => name,
            Ok(None) => return Verdict::Absent,
            Err(error) => return Verdict::Unknown(Chain(&error).to_string()),
        };
        let device = Path::new("/dev").join(name);
        self.ask(&device, want).unwrap_or_else(|error| Verdict::Unknown(Chain(&error).to_string()))
    }
}

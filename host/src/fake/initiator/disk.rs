//! Disk behind a LUN: bytes, identity, size, write protection.
//!
//! What must never happen here: a byte read that nobody wrote; a write past the end or through the
//! protection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BLOCK_BYTES: u64 = 512;
type Block = [u8; 512];

/// A disk; clones share one disk, so that two targets can show one volume.
#[derive(Debug, Clone)]
pub struct FakeDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    naa: String,
    serial: String,
    size: u64,
    write_protect: bool,
    blocks: BTreeMap<u64, Block>,
    writes: u64,
    flushes: u64,
}

/// A SCSI command that the fakes know.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command<'a> {
    /// INQUIRY without a page, as a test for the LUN.
    Probe,
    /// INQUIRY of a vital product data page.
    Inquiry(u8),
    /// READ CAPACITY, and the WP bit of MODE SENSE, which depends on the access of the session.
    Capacity,
    Read {
        offset: u64,
        length: u64,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Flush,
}

/// Answer of a target to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Good(Vec<u8>),
    /// Size in bytes and write protection.
    Capacity(u64, bool),
    /// CHECK CONDITION with key, ASC, ASCQ.
    Sense(u8, u8, u8),
    /// There is no session on this connection (any more).
    Gone,
}

pub(super) const NO_SUCH_UNIT: Outcome = Outcome::Sense(5, 0x25, 0);
pub(super) const WRITE_PROTECTED: Outcome = Outcome::Sense(7, 0x27, 0);
const OUT_OF_RANGE: Outcome = Outcome::Sense(5, 0x21, 0);
const INVALID_FIELD: Outcome = Outcome::Sense(5, 0x24, 0);

impl FakeDisk {
    /// Makes a disk of zeros with this unit serial; its NAA name is LIO's for the serial.
    pub fn new(serial: impl Into<String>, size: u64) -> Self {
        let serial = serial.into();
        let naa = crate::fake::naa(&serial);
        Self::with_naa(naa, serial, size)
    }

    /// Makes a disk of zeros with this NAA name (32 hexadecimal digits) and unit serial.
    pub fn with_naa(naa: impl Into<String>, serial: impl Into<String>, size: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            naa: naa.into(),
            serial: serial.into(),
            size,
            write_protect: false,
            blocks: BTreeMap::new(),
            writes: 0,
            flushes: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the NAA name, 32 hexadecimal digits.
    pub fn naa(&self) -> String {
        self.lock().naa.clone()
    }

    /// Returns the unit serial.
    pub fn serial(&self) -> String {
        self.lock().serial.clone()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// Grows or shrinks the disk. Hosts see that after a rescan.
    pub fn set_size(&self, bytes: u64) {
        self.lock().size = bytes;
    }

    /// Makes the target refuse every write, whoever sends it.
    pub fn set_write_protect(&self, on: bool) {
        self.lock().write_protect = on;
    }

    /// Counts the writes that have landed.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Counts the SYNCHRONIZE CACHE commands.
    pub fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    /// Reads bytes without a session. Returns none beyond the end.
    pub fn peek(&self, offset: u64, length: u64) -> Vec<u8> {
        self.lock().read(offset, length)
    }

    pub(super) fn answer(&self, command: Command<'_>, may_write: bool) -> Outcome {
        let mut state = self.lock();
        match command {
            Command::Probe => Outcome::Good(Vec::new()),
            Command::Inquiry(page) => state.page(page).map_or(INVALID_FIELD, Outcome::Good),
            Command::Capacity => Outcome::Capacity(state.size, state.write_protect || !may_write),
            Command::Read { offset, length } => {
                if offset.checked_add(length).is_none_or(|end| end > state.size) {
                    return OUT_OF_RANGE;
                }
                Outcome::Good(state.read(offset, length))
            }
            Command::Write { .. } if state.write_protect || !may_write => WRITE_PROTECTED,
            Command::Write { offset, data } => {
                if offset.checked_add(data.len() as u64).is_none_or(|end| end > state.size) {
                    return OUT_OF_RANGE;
                }
                state.write(offset, data);
                Outcome::Good(Vec::new())
            }
            Command::Flush => {
                state.flushes += 1;
                Outcome::Good(Vec::new())
            }
        }
    }
}

impl State {
    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.size);
        (offset..end)
            .map(|at| {
                let block = self.blocks.get(&(at / BLOCK_BYTES));
                block.map_or(0, |block| block[usize::try_from(at % BLOCK_BYTES).unwrap_or_default()])
            })
            .collect()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            let block = self.blocks.entry(at / BLOCK_BYTES).or_insert([0; 512]);
            block[usize::try_from(at % BLOCK_BYTES).unwrap_or_default()] = *byte;
        }
        self.writes += 1;
    }

    /// Builds a vital product data page as LIO does: the serial with its NUL, the NAA designator
    /// before the T10 one.
    fn page(&self, page: u8) -> Option<Vec<u8>> {
        let body = match page {
            0x00 => vec![0x00, 0x80, 0x83],
            0x80 => [self.serial.as_bytes(), &[0]].concat(),
            0x83 => {
                let naa: Vec<u8> = super::chap::unhex(&format!("0x{}", self.naa)).unwrap_or_default();
                let vendor = format!("LIO-ORG IBLOCK:{}\0", self.serial);
                let mut body = vec![0x01, 0x03, 0, u8::try_from(naa.len()).ok()?];
                body.extend(naa);
                body.extend([0x02, 0x01, 0, u8::try_from(vendor.len()).ok()?]);
                body.extend(vendor.into_bytes());
                body
            }
            _ => return None,
        };
        let length = u16::try_from(body.len()).ok()?.to_be_bytes();
        Some([&[0, page, length[0], length[1]], body.as_slice()].concat())
    }
}

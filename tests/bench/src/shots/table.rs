//! The commands of SBC-4 and SPC-5 that change a medium or a target's state, and the places of
//! their parameters. Other opcodes are sent with noise after them.

use fastrand::Rng;

use super::{Aim, BLOCK};

/// The data of a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Data {
    /// As many blocks as the command names.
    Blocks,
    /// This many blocks, whatever the command names.
    Fixed(u32),
    /// A list of parameters.
    List(fn(&Aim, u64, u32) -> Vec<u8>),
    /// Noise of this many bytes.
    Noise(u32),
    /// No data.
    Nothing,
}

/// One kind of command.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The command's name in the standard.
    pub name: &'static str,
    opcode: u8,
    /// Bytes of the CDB.
    length: usize,
    /// The service action: its byte, and its value.
    action: Option<(usize, u8)>,
    /// The first block: its byte, and its length in bytes.
    lba: (usize, usize),
    /// The number of blocks, or the length of the list: its byte, and its length in bytes.
    count: (usize, usize),
    /// A byte whose bits are tried out, and those bits.
    flags: (usize, &'static [u8]),
    data: Data,
}

const PLAIN: &[u8] = &[0];
const CACHE: &[u8] = &[0, 0, 0x08, 0x10];
const SAME: &[u8] = &[0, 0, 0, 0x08, 0x10, 0x18, 0x01];

const fn kind(name: &'static str, opcode: u8, length: usize) -> Kind {
    let (lba, count) = match length {
        6 => ((2, 2), (4, 1)),
        10 => ((2, 4), (7, 2)),
        12 => ((2, 4), (6, 4)),
        32 => ((12, 8), (28, 4)),
        _ => ((2, 8), (10, 4)),
    };
    Kind { name, opcode, length, action: None, lba, count, flags: (1, CACHE), data: Data::Blocks }
}

const fn with(kind: Kind, data: Data) -> Kind {
    Kind { data, flags: (1, PLAIN), ..kind }
}

const fn same(name: &'static str, opcode: u8, length: usize) -> Kind {
    let flags = if length == 32 { 10 } else { 1 };
    Kind { flags: (flags, SAME), data: Data::Fixed(1), ..kind(name, opcode, length) }
}

/// Adds a service action in the low bits of byte 1.
const fn action(action: u8, kind: Kind) -> Kind {
    Kind { action: Some((1, action)), flags: (1, PLAIN), ..kind }
}

/// Makes a kind of variable length, with this service action.
const fn long(name: &'static str, action: u8) -> Kind {
    Kind { action: Some((9, action)), flags: (10, CACHE), ..kind(name, 0x7f, 32) }
}

/// Adds a list, with its length at these bytes.
const fn list(kind: Kind, count: (usize, usize), data: Data) -> Kind {
    Kind { count, lba: (0, 0), flags: (1, PLAIN), data, ..kind }
}

/// Any opcode, with noise for parameters.
pub(super) static ANY: Kind = with(kind("any", 0, 16), Data::Fixed(1));

/// A discard.
pub const UNMAP: Kind = list(kind("UNMAP", 0x42, 10), (7, 2), Data::List(unmap));

/// Commands that change bytes if a writing host sends them, with the kernel as Mooring sets it up.
pub static HONEST: &[Kind] = &[
    kind("WRITE(6)", 0x0a, 6),
    kind("WRITE(10)", 0x2a, 10),
    kind("WRITE(12)", 0xaa, 12),
    kind("WRITE(16)", 0x8a, 16),
    kind("WRITE AND VERIFY(10)", 0x2e, 10),
    kind("WRITE AND VERIFY(16)", 0x8e, 16),
];

/// All known kinds.
pub(super) static KINDS: &[Kind] = &[
    kind("WRITE(6)", 0x0a, 6),
    kind("WRITE(10)", 0x2a, 10),
    kind("WRITE(12)", 0xaa, 12),
    kind("WRITE(16)", 0x8a, 16),
    kind("WRITE AND VERIFY(10)", 0x2e, 10),
    kind("WRITE AND VERIFY(12)", 0xae, 12),
    kind("WRITE AND VERIFY(16)", 0x8e, 16),
    kind("WRITE ATOMIC(16)", 0x9c, 16),
    kind("ORWRITE(16)", 0x8b, 16),
    kind("XDWRITE(10)", 0x50, 10),
    kind("XPWRITE(10)", 0x51, 10),
    kind("XDWRITEREAD(10)", 0x53, 10),
    kind("READ(6)", 0x08, 6),
    kind("READ(10)", 0x28, 10),
    kind("READ(16)", 0x88, 16),
    kind("VERIFY(10)", 0x2f, 10),
    kind("VERIFY(16)", 0x8f, 16),
    same("WRITE SAME(10)", 0x41, 10),
    same("WRITE SAME(16)", 0x93, 16),
    Kind { action: Some((9, 0x0d)), ..same("WRITE SAME(32)", 0x7f, 32) },
    // Twice, because these are what got through.
    same("WRITE SAME(10)", 0x41, 10),
    same("WRITE SAME(16)", 0x93, 16),
    long("WRITE(32)", 0x0b),
    long("WRITE AND VERIFY(32)", 0x0c),
    long("ORWRITE(32)", 0x0e),
    long("XDWRITEREAD(32)", 0x07),
    long("WRITE SCATTERED(32)", 0x11),
    Kind { count: (13, 1), data: Data::Fixed(2), ..kind("COMPARE AND WRITE", 0x89, 16) },
    UNMAP,
    UNMAP,
    action(0, list(kind("EXTENDED COPY(LID1)", 0x83, 16), (10, 4), Data::List(copy))),
    action(1, list(kind("EXTENDED COPY(LID4)", 0x83, 16), (10, 4), Data::List(copy))),
    action(0x10, list(kind("POPULATE TOKEN", 0x83, 16), (10, 4), Data::Noise(512))),
    action(0x11, list(kind("WRITE USING TOKEN", 0x83, 16), (10, 4), Data::Noise(512))),
    action(0x11, with(kind("WRITE LONG(16)", 0x9f, 16), Data::Fixed(1))),
    action(0x12, with(kind("WRITE SCATTERED(16)", 0x9f, 16), Data::Fixed(2))),
    with(kind("WRITE LONG(10)", 0x3f, 10), Data::Fixed(1)),
    with(kind("FORMAT UNIT", 0x04, 6), Data::Noise(4)),
    action(1, with(kind("SANITIZE overwrite", 0x48, 10), Data::Noise(8))),
    action(2, with(kind("SANITIZE block erase", 0x48, 10), Data::Nothing)),
    action(3, with(kind("SANITIZE crypto erase", 0x48, 10), Data::Nothing)),
    Kind {
        flags: (1, &[0, 2, 5, 7, 0x0a]),
        ..list(kind("WRITE BUFFER", 0x3b, 10), (6, 3), Data::Noise(512))
    },
    Kind { flags: (1, &[0x10, 0x11]), ..list(kind("MODE SELECT(6)", 0x15, 6), (4, 1), Data::List(mode_6)) },
    Kind {
        flags: (1, &[0x10, 0x11]),
        ..list(kind("MODE SELECT(10)", 0x55, 10), (7, 2), Data::List(mode_10))
    },
    list(kind("LOG SELECT", 0x4c, 10), (7, 2), Data::Noise(16)),
    list(kind("SEND DIAGNOSTIC", 0x1d, 6), (3, 2), Data::Noise(16)),
    list(kind("REASSIGN BLOCKS", 0x07, 6), (0, 0), Data::Noise(8)),
    list(kind("WRITE ATTRIBUTE", 0x8d, 16), (10, 4), Data::Noise(32)),
    list(kind("SECURITY PROTOCOL OUT", 0xb5, 12), (6, 4), Data::Noise(64)),
    action(0x0a, list(kind("SET TARGET PORT GROUPS", 0xa4, 12), (6, 4), Data::List(port_groups))),
    action(0x06, list(kind("SET IDENTIFYING INFORMATION", 0xa4, 12), (6, 4), Data::Noise(8))),
    with(kind("RESERVE(6)", 0x16, 6), Data::Nothing),
    with(kind("RESERVE(10)", 0x56, 10), Data::Nothing),
    with(kind("RELEASE(6)", 0x17, 6), Data::Nothing),
    with(kind("RELEASE(10)", 0x57, 10), Data::Nothing),
    Kind {
        flags: (1, &[0, 1, 2, 3, 4, 5, 6, 7]),
        ..list(kind("PERSISTENT RESERVE OUT", 0x5f, 10), (5, 4), Data::List(reserve))
    },
    with(kind("SYNCHRONIZE CACHE(10)", 0x35, 10), Data::Nothing),
    with(kind("START STOP UNIT", 0x1b, 6), Data::Nothing),
];

impl Kind {
    /// Returns `true` if a CDB is of this kind.
    #[cfg(test)]
    pub(super) fn made(&self, cdb: &[u8]) -> bool {
        let acts = |(at, action): (usize, u8)| cdb.get(at).is_some_and(|byte| byte & 0x1f == action);
        cdb[0] == self.opcode && self.action.is_none_or(acts)
    }

    /// Builds the CDB and its list (empty: noise). Also returns how many bytes it moves.
    pub(super) fn build(&self, rng: &mut Rng, aim: &Aim, lba: u64, blocks: u32) -> (Vec<u8>, Vec<u8>, u32) {
        let mut cdb = vec![0; self.length];
        if std::ptr::eq(self, &raw const ANY) {
            rng.fill(&mut cdb);
            cdb.truncate(*rng.choice(&[6, 10, 12, 16]).unwrap_or(&16));
            return (cdb, Vec::new(), BLOCK);
        }
        let list = match self.data {
            Data::List(make) => make(aim, lba, blocks),
            _ => Vec::new(),
        };
        let (bytes, counted) = match self.data {
            Data::Blocks => (blocks * BLOCK, blocks),
            Data::Fixed(moved) => (moved * BLOCK, blocks),
            Data::List(_) => {
                (u32::try_from(list.len()).unwrap_or(u32::MAX), u32::try_from(list.len()).unwrap_or(u32::MAX))
            }
            Data::Noise(bytes) => (bytes, bytes),
            Data::Nothing => (0, blocks),
        };
        put(&mut cdb, self.lba, lba);
        put(&mut cdb, self.count, counted.into());
        cdb[0] = self.opcode;
        if self.length == 32 {
            // Number of bytes after the eighth.
            cdb[7] = 0x18;
        }
        if self.opcode == 0x89 {
            // The kernel takes one block at a time.
            cdb[13] = 1;
        }
        let (at, values) = self.flags;
        cdb[at] |= rng.choice(values).copied().unwrap_or_default();
        if let Some((at, action)) = self.action {
            cdb[at] |= action;
        }
        (cdb, list, bytes)
    }
}

/// Writes a number at these bytes, without its high bytes.
fn put(cdb: &mut [u8], (at, length): (usize, usize), value: u64) {
    let bytes = value.to_be_bytes();
    cdb[at..at + length].copy_from_slice(&bytes[bytes.len() - length..]);
}

/// One block descriptor.
fn unmap(_: &Aim, lba: u64, blocks: u32) -> Vec<u8> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend(blocks.to_be_bytes());
    list.extend([0; 4]);
    list
}

/// A list that copies from the disk's beginning to the LBA: two descriptors of one disk by its NAA,
/// and one segment from block to block.
fn copy(aim: &Aim, lba: u64, blocks: u32) -> Vec<u8> {
    let mut list = vec![0; 16];
    (list[3], list[11]) = (64, 28);
    for _ in 0..2 {
        let mut disk = [0; 32];
        (disk[0], disk[4], disk[5], disk[7], disk[30]) = (0xe4, 1, 3, 16, 2);
        disk[8..24].copy_from_slice(&aim.naa);
        list.extend(disk);
    }
    list.extend([2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0]);
    list.extend(u16::try_from(blocks).unwrap_or(1).to_be_bytes());
    list.extend(0_u64.to_be_bytes());
    list.extend(lba.to_be_bytes());
    list
}

/// A list with a key, for REGISTER and its kin.
fn reserve(_: &Aim, lba: u64, _: u32) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[8..16].copy_from_slice(&(lba | 1).to_be_bytes());
    list
}

/// A list that sets the default group to standby.
fn port_groups(_: &Aim, _: u64, _: u32) -> Vec<u8> {
    vec![0, 0, 0, 0, 2, 0, 0, 0]
}

/// A list with the caching page, its write cache inverted.
fn mode_6(_: &Aim, _: u64, _: u32) -> Vec<u8> {
    let mut list = vec![0; 24];
    (list[4], list[5], list[6]) = (0x08, 0x12, 0x04);
    list
}

fn mode_10(_: &Aim, _: u64, _: u32) -> Vec<u8> {
    let mut list = vec![0; 28];
    (list[8], list[9], list[10]) = (0x08, 0x12, 0x04);
    list
}

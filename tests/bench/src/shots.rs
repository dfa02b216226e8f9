//! Commands that a read-only host must not get through. Each follows only from a seed and a number,
//! so a command that changed something can be repeated and named.
//!
//! What must never happen here: a command that depends on earlier ones.

mod table;

use std::fmt;

use fastrand::Rng;

use table::{ANY, KINDS};
pub use table::{HONEST, Kind, UNMAP};

/// The block size of every volume.
pub const BLOCK: u32 = 512;

/// Most bytes after one header: a target's `FirstBurstLength` allows more.
const DATA_BYTES_MAX: u32 = 16 * 1024;

/// The disk under test.
#[derive(Debug, Clone, Copy)]
pub struct Aim {
    /// Number of its blocks.
    pub blocks: u64,
    /// The NAA with which a copy command names it.
    pub naa: [u8; 16],
}

/// One SCSI command, with its initiator's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shot {
    /// The CDB: 6 to 16 bytes, or 32 for an opcode of variable length.
    pub cdb: Vec<u8>,
    /// The R bit.
    pub reads: bool,
    /// The W bit.
    pub writes: bool,
    /// The F bit: no unsolicited data follow.
    pub ends: bool,
    /// The expected data transfer length.
    pub expected: u32,
    /// Data in the command's own PDU.
    pub immediate: Vec<u8>,
    /// Data that are sent after it without a request.
    pub unsolicited: Vec<u8>,
    /// Data for a target that asks for them.
    pub content: Vec<u8>,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> Option<T> {
    rng.choice(of).copied()
}

/// Repeats this content up to a number of bytes; without content, noise.
fn fill(rng: &mut Rng, content: &[u8], bytes: u32) -> Vec<u8> {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    if content.is_empty() {
        let mut noise = vec![0; bytes];
        rng.fill(&mut noise);
        return noise;
    }
    content.iter().copied().cycle().take(bytes).collect()
}

impl Shot {
    /// The command with this number.
    pub fn of(seed: u64, number: u64, aim: &Aim) -> Self {
        // Neighbouring seeds would give similar first numbers.
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rng.u64(..);
        let known = rng.u8(..) < 200;
        let kind = rng.choice(KINDS).filter(|_| known).unwrap_or(&ANY);
        let (first, last) = (rng.u64(..aim.blocks.max(1)), aim.blocks.saturating_sub(8));
        let lba = pick(&mut rng, &[0, first, first, last]).unwrap_or_default();
        let blocks = pick(&mut rng, &[1, 1, 8, 64]).unwrap_or(1);
        let (cdb, list, right) = kind.build(&mut rng, aim, lba, blocks);
        let expected = match rng.u8(..8) {
            0 => 0,
            1 => right / 2,
            2 => right * 2 + 4,
            3 => pick(&mut rng, &[BLOCK, 8 * BLOCK, 24, 255]).unwrap_or_default(),
            _ => right,
        };
        let (reads, writes) =
            pick(&mut rng, &[(false, false), (true, true), (false, true), (true, false), (true, false)])
                .unwrap_or_default();
        let most = expected.min(DATA_BYTES_MAX);
        // A target that rejects a PDU does not read the data after it, and takes them for PDUs: the
        // session is over then. Some targets do not answer if more data are to come. So these are
        // rare where they are refused.
        let immediate = rng.u8(..) < 12;
        let unsolicited = rng.u8(..) < if writes { 4 } else { 40 };
        let ends = !writes || rng.u8(..) >= 4;
        let ends = ends && rng.u8(..) >= 4;
        let immediate =
            if immediate { pick(&mut rng, &[most, most, most / 2]).unwrap_or_default() } else { 0 };
        // The kernel refuses more data than a write announced by freeing the command twice: the
        // node may then stand still (docs/kernel/lio.md, t), and shows nothing more.
        let taken = writes && !reads && expected > 0;
        let room = if taken { most - immediate } else { most.max(BLOCK) };
        let unsolicited = if unsolicited { room } else { 0 };
        Self {
            cdb,
            reads,
            writes,
            ends,
            expected,
            immediate: fill(&mut rng, &list, immediate),
            unsolicited: fill(&mut rng, &list, unsolicited),
            content: fill(&mut rng, &list, right.max(BLOCK)),
        }
    }

    /// A command as an honest initiator sends it.
    pub fn honest(kind: &Kind, aim: &Aim, lba: u64, blocks: u32) -> Self {
        let mut rng = Rng::with_seed(lba);
        let (cdb, list, expected) = kind.build(&mut rng, aim, lba, blocks);
        let content = fill(&mut rng, &list, expected);
        let (immediate, unsolicited) = (Vec::new(), Vec::new());
        Self {
            cdb,
            reads: false,
            writes: expected > 0,
            ends: true,
            expected,
            immediate,
            unsolicited,
            content,
        }
    }

    /// Returns `true` for SET TARGET PORT GROUPS and its kin.
    pub fn sets_port_groups(&self) -> bool {
        self.cdb.first() == Some(&0xa4)
    }

    /// Returns `true` if a target may answer it without counting its number: no other command is in
    /// flight meanwhile.
    pub fn goes_alone(&self) -> bool {
        let honest = match self.expected {
            0 => !self.reads && !self.writes,
            _ => self.reads != self.writes,
        };
        !honest || !self.ends || !self.immediate.is_empty() || !self.unsolicited.is_empty()
    }
}

impl fmt::Display for Shot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CDB")?;
        for byte in &self.cdb {
            write!(f, " {byte:02x}")?;
        }
        let bit = |on: bool, name| if on { name } else { "-" };
        let (reads, writes, ends) = (bit(self.reads, "R"), bit(self.writes, "W"), bit(self.ends, "F"));
        write!(
            f,
            "; flags {reads}{writes}{ends}; expected length {}; immediate data {} bytes, unsolicited {}",
            self.expected,
            self.immediate.len(),
            self.unsolicited.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const AIM: Aim = Aim { blocks: 16384, naa: [0x60; 16] };

    #[test]
    fn a_shot_follows_from_seed_and_number() {
        for number in 0..200 {
            assert_eq!(Shot::of(7, number, &AIM), Shot::of(7, number, &AIM));
        }
        assert_ne!(Shot::of(7, 1, &AIM), Shot::of(8, 1, &AIM));
    }

    /// The proof's basis: each opcode occurs, each known kind with every claimed direction, and
    /// data after each claim.
    #[test]
    fn shots_cover_every_opcode_and_claim() {
        let shots: Vec<_> = (0..10_000).map(|number| Shot::of(1, number, &AIM)).collect();
        let opcodes: BTreeSet<u8> = shots.iter().map(|shot| shot.cdb[0]).collect();
        assert_eq!(opcodes.len(), 256);
        let claims = |which: &dyn Fn(&Shot) -> bool| -> BTreeSet<(bool, bool)> {
            shots.iter().filter(|shot| which(shot)).map(|shot| (shot.reads, shot.writes)).collect()
        };
        for kind in KINDS {
            assert_eq!(claims(&|shot| kind.made(&shot.cdb)).len(), 4, "{}", kind.name);
        }
        assert_eq!(claims(&|shot| !shot.immediate.is_empty()).len(), 4);
        assert_eq!(claims(&|shot| !shot.unsolicited.is_empty()).len(), 4);
    }

    #[test]
    fn data_are_never_more_than_was_announced() {
        for shot in (0..2_000).map(|number| Shot::of(3, number, &AIM)) {
            assert!(shot.immediate.len() <= shot.expected as usize, "{shot}");
            let taken = shot.writes && !shot.reads && shot.expected > 0;
            let data = shot.immediate.len() + shot.unsolicited.len();
            assert!(!taken || data <= shot.expected as usize, "{shot}");
            assert!(matches!(shot.cdb.len(), 6 | 10 | 12 | 16 | 32), "{shot}");
        }
    }

    #[test]
    fn an_honest_write_claims_what_it_does() {
        let write = HONEST.iter().find(|kind| kind.name == "WRITE(10)").unwrap();
        let shot = Shot::honest(write, &AIM, 5, 8);
        assert_eq!(shot.cdb, [0x2a, 0, 0, 0, 0, 5, 0, 0, 8, 0]);
        assert_eq!((shot.reads, shot.writes, shot.expected, shot.goes_alone()), (false, true, 4096, false));
    }
}

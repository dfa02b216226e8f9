//! The thin pool of a group: how full it is, and what that closes.
//!
//! Writes to new blocks of a pool's volumes fail once it is full, on every host. So it takes
//! nothing new some time before: what is left is for the volumes that are there.
//!
//! What must never happen here: a pool called usable that fails writes; a state that stays when
//! there is room again. Each is derived from the last view alone.

use mooring_model::limit::{THIN_POOL_DATA_CLOSED, THIN_POOL_METADATA_CLOSED};
use mooring_model::{ByteSize, Cure, LV_TAG, LvName, Problem, VgName};

use crate::lvm::commands::RawLv;

/// The thin pool of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPool {
    /// `true` if the pool carries our tag.
    pub tagged: bool,
    /// Size of the pool's data in bytes.
    pub size: ByteSize,
    /// Bytes of `size` that volumes and snapshots have taken.
    pub used: ByteSize,
    /// Fill level of the pool's data, in parts of 10,000. `None` if the pool is not active.
    pub data: Option<u32>,
    /// Fill level of the pool's metadata, in parts of 10,000. `None` if the pool is not active.
    pub metadata: Option<u32>,
    /// The kernel's reason to give writes no blocks. `None` if it has none.
    pub lacks: Option<Lack>,
    /// `true` if the pool accepts discards of its volumes.
    pub discards: bool,
    /// Why the pool can give nothing, however full it is. `None` if it can.
    pub trouble: Option<String>,
}

/// The kernel's own word on a pool in which writes of hosts fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// No block was free for a write.
    Data,
    /// Metadata are not written: they are full, or have to be repaired.
    Metadata,
}

/// The fill level of a thin pool, by what it closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fullness {
    /// There is room.
    Roomy,
    /// There is room, and an operator should act.
    Nearly,
    /// The pool takes no new volume, snapshot or growth.
    Closed,
    /// Writes of hosts fail.
    Full,
}

/// Fill level from which an operator should act on a pool, in parts of 10,000.
const NEARLY_FULL: u32 = 8_000;

/// Fill level of a full pool, in parts of 10,000.
const FULL: u32 = 10_000;

/// Returns the fullness at a fill level.
fn fullness(level: Option<u32>, closed: u32) -> Fullness {
    match level.unwrap_or(0) {
        FULL.. => Fullness::Full,
        level if level >= closed => Fullness::Closed,
        NEARLY_FULL.. => Fullness::Nearly,
        _ => Fullness::Roomy,
    }
}

impl SeenPool {
    pub(super) fn new(raw: &RawLv) -> Self {
        let (data, metadata) = (parts(&raw.data_percent), parts(&raw.metadata_percent));
        let used = u128::from(raw.size) * u128::from(data.unwrap_or(0)) / 10_000;
        let name = format!("{}/{}", raw.group, raw.name);
        let lacks = match raw.health.as_str() {
            "out_of_data" => Some(Lack::Data),
            "metadata_read_only" => Some(Lack::Metadata),
            _ => None,
        };
        // The kernel goes on by itself once what is full has room.
        let is_damaged = lacks == Some(Lack::Metadata) && metadata.is_none_or(|level| level < FULL);
        let trouble = if raw.segtype != "thin-pool" {
            Some(format!("the LV {name} is no thin pool ({}): rename it", raw.segtype))
        } else if is_damaged {
            Some(format!(
                "its metadata are read-only, and writes of hosts fail: see dmesg and lvconvert --repair {name}"
            ))
        } else if !raw.health.is_empty() && lacks.is_none() {
            Some(format!("LVM says {} of it: see dmesg and lvconvert --repair {name}", raw.health))
        } else if raw.zero != "zero" {
            Some(format!("it does not zero what it gives to volumes: run lvchange --zero y {name}"))
        } else {
            None
        };
        Self {
            tagged: raw.tags.split(',').any(|tag| tag == LV_TAG),
            size: ByteSize(raw.size),
            used: ByteSize(u64::try_from(used).unwrap_or(raw.size)),
            data,
            metadata,
            lacks,
            discards: !matches!(raw.discards.as_str(), "" | "ignore"),
            trouble,
        }
    }

    /// Returns the free bytes of the pool's data.
    pub const fn free(&self) -> ByteSize {
        ByteSize(self.size.0.saturating_sub(self.used.0))
    }

    /// Returns how full the pool is, by its data or its metadata, whichever closes more.
    pub fn fullness(&self) -> Fullness {
        self.data_fullness().max(fullness(self.metadata, THIN_POOL_METADATA_CLOSED))
    }

    fn data_fullness(&self) -> Fullness {
        if self.lacks == Some(Lack::Data) {
            Fullness::Full
        } else {
            fullness(self.data, THIN_POOL_DATA_CLOSED)
        }
    }

    /// Returns the advice for an operator. `None` if the pool has room.
    pub fn advice(&self, group: &VgName) -> Option<String> {
        let name = LvName::thin_pool();
        let mut said = Vec::new();
        let data = self.data.unwrap_or(0) / 100;
        let extend = format!(
            "extend it (lvextend --size +SIZE {group}/{name}), or delete volumes and snapshots in it"
        );
        match self.data_fullness() {
            Fullness::Roomy => {}
            Fullness::Nearly | Fullness::Closed => {
                let left = self.free();
                said.push(format!(
                    "{data} % of it are taken, {left} are left, and writes of hosts fail when it is full: {extend}"
                ));
            }
            Fullness::Full => said.push(format!("it is full, and writes of hosts fail: {extend}")),
        }
        let extend = format!("extend it (lvextend --poolmetadatasize +SIZE {group}/{name})");
        match fullness(self.metadata, THIN_POOL_METADATA_CLOSED) {
            Fullness::Roomy => {}
            Fullness::Nearly | Fullness::Closed => {
                let taken = self.metadata.unwrap_or(0) / 100;
                said.push(format!("{taken} % of its metadata are taken: {extend}"));
            }
            Fullness::Full => said.push(format!(
                "its metadata are full, and writes of hosts fail: {extend}; if it stays read-only, see dmesg and lvconvert \
                 --repair {group}/{name}"
            )),
        }
        if self.fullness() == Fullness::Closed {
            said.push("until then it takes no new volume, snapshot or growth".to_owned());
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Returns the problem of each volume in the pool. `None` unless the pool is full or its
    /// metadata are read-only.
    ///
    /// The volume itself has nothing to be mended, so this is no failure of what is asked of it: a
    /// controller ends a revert or an image export over a problem that is an operator's.
    pub fn problem(&self, group: &VgName) -> Option<Problem> {
        let full = self.advice(group).filter(|_| self.fullness() == Fullness::Full);
        let text = full.or_else(|| self.trouble.clone().filter(|_| self.lacks == Some(Lack::Metadata)))?;
        let object = format!("thin pool {group}/{}", LvName::thin_pool());
        Some(Problem { object, text, cure: Cure::Retry })
    }
}

/// Parses a percentage as LVM writes it (`12.34`) into parts of 10,000. `None` for a pool that is
/// not active, which has none.
fn parts(percent: &str) -> Option<u32> {
    let (whole, rest) = percent.trim().split_once('.').unwrap_or((percent.trim(), "0"));
    let hundredths: String = rest.chars().chain("00".chars()).take(2).collect();
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(data: u32, metadata: u32, out_of_data: bool) -> SeenPool {
        SeenPool {
            tagged: true,
            size: ByteSize(1 << 30),
            used: ByteSize(0),
            data: Some(data),
            metadata: Some(metadata),
            lacks: out_of_data.then_some(Lack::Data),
            discards: true,
            trouble: None,
        }
    }

    #[test]
    fn a_pool_closes_before_it_is_full_and_opens_again() {
        use Fullness::{Closed, Full, Nearly, Roomy};
        for (data, metadata, want) in [
            (0, 0, Roomy),
            (7_999, 7_999, Roomy),
            (8_000, 0, Nearly),
            (0, 8_000, Nearly),
            (9_499, 8_999, Nearly),
            (9_500, 0, Closed),
            (0, 9_000, Closed),
            (9_999, 9_999, Closed),
            (10_000, 0, Full),
            (0, 10_000, Full),
        ] {
            let seen = pool(data, metadata, false);
            assert_eq!(seen.fullness(), want, "{data} {metadata}");
            let group = "vg0".parse().unwrap();
            assert_eq!(seen.advice(&group).is_some(), want > Roomy, "{data} {metadata}");
            assert_eq!(seen.problem(&group).is_some(), want == Full, "{data} {metadata}");
        }
        // The kernel knows better than a rounded number.
        assert_eq!(pool(9_999, 0, true).fullness(), Full);
        assert_eq!(pool(0, 0, true).fullness(), Full);
        let unknown = SeenPool { data: None, metadata: None, ..pool(0, 0, false) };
        assert_eq!(unknown.fullness(), Roomy, "a pool that is not active");
    }

    #[test]
    fn percentages_are_read_as_lvm_writes_them() {
        for (text, want) in [
            ("79.99", Some(7_999)),
            ("80.00", Some(8_000)),
            ("100.00", Some(10_000)),
            ("0.5", Some(50)),
            ("7", Some(700)),
            (" 12.34 ", Some(1_234)),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(parts(text), want, "{text:?}");
        }
    }
}

//! Quotas: the limits of a project, and the check of a change against them. Pure arithmetic; the
//! transaction that writes the change counts the usage.
//!
//! A limit comes from the project's own override, else from the default class, else from the
//! configuration, else from [`Key::built_in`]. As everywhere in the Block Storage API, gigabytes
//! are GiB.
//!
//! What must never happen here: arithmetic that wraps; a change that reduces the usage refused
//! because the project is over its limit; a limit set below the usage.

use std::collections::BTreeMap;
use std::fmt;

use crate::domain::{QuotaViolation, Resource, RuleViolation};

/// The largest number of a limit.
pub const LIMIT_MAX: u64 = 0x7fff_ffff;

/// A limited resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Volumes.
    Volumes,
    /// GiB of volumes and snapshots.
    Gigabytes,
    /// Snapshots.
    Snapshots,
    /// The size of each single volume, in GiB; it has no usage.
    PerVolumeGigabytes,
    /// Backups.
    Backups,
    /// GiB of backups.
    BackupGigabytes,
    /// Volume groups.
    Groups,
    /// Volumes of this type, by its name.
    VolumesOf(String),
    /// GiB of volumes and snapshots of this type.
    GigabytesOf(String),
    /// Snapshots of volumes of this type.
    SnapshotsOf(String),
}

impl Key {
    /// All keys that do not depend on a type.
    pub const PLAIN: [Self; 7] = [
        Self::Volumes,
        Self::PerVolumeGigabytes,
        Self::Snapshots,
        Self::Gigabytes,
        Self::Backups,
        Self::BackupGigabytes,
        Self::Groups,
    ];

    /// The keys of one type.
    pub fn of_type(name: &str) -> [Self; 3] {
        [
            Self::VolumesOf(name.to_owned()),
            Self::GigabytesOf(name.to_owned()),
            Self::SnapshotsOf(name.to_owned()),
        ]
    }

    /// Reads a key's name in the API; `None` if there is no such key. The type in a per-type key
    /// may be unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(plain) = Self::PLAIN.into_iter().find(|key| key.to_string() == name) {
            return Some(plain);
        }
        let (what, of) = name.split_once('_').filter(|(_, of)| !of.is_empty())?;
        match what {
            "volumes" => Some(Self::VolumesOf(of.to_owned())),
            "gigabytes" => Some(Self::GigabytesOf(of.to_owned())),
            "snapshots" => Some(Self::SnapshotsOf(of.to_owned())),
            _ => None,
        }
    }

    /// The type of a per-type key; `None` for others.
    pub fn type_name(&self) -> Option<&str> {
        match self {
            Self::VolumesOf(of) | Self::GigabytesOf(of) | Self::SnapshotsOf(of) => Some(of),
            _ => None,
        }
    }

    /// The limit if none is set.
    pub const fn built_in(&self) -> Limit {
        match self {
            Self::Volumes | Self::Snapshots | Self::Backups | Self::Groups => Limit::At(10),
            Self::Gigabytes | Self::BackupGigabytes => Limit::At(1000),
            Self::PerVolumeGigabytes | Self::VolumesOf(_) | Self::GigabytesOf(_) | Self::SnapshotsOf(_) => {
                Limit::Unlimited
            }
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volumes => f.write_str("volumes"),
            Self::Gigabytes => f.write_str("gigabytes"),
            Self::Snapshots => f.write_str("snapshots"),
            Self::PerVolumeGigabytes => f.write_str("per_volume_gigabytes"),
            Self::Backups => f.write_str("backups"),
            Self::BackupGigabytes => f.write_str("backup_gigabytes"),
            Self::Groups => f.write_str("groups"),
            Self::VolumesOf(of) => write!(f, "volumes_{of}"),
            Self::GigabytesOf(of) => write!(f, "gigabytes_{of}"),
            Self::SnapshotsOf(of) => write!(f, "snapshots_{of}"),
        }
    }
}

/// The most that there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// -1 in the API.
    Unlimited,
    /// At most this number.
    At(u64),
}

impl Limit {
    /// Reads a limit's number in the API; `None` if it is below -1 or above [`LIMIT_MAX`].
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Self::Unlimited),
            _ => u64::try_from(number).ok().filter(|number| *number <= LIMIT_MAX).map(Self::At),
        }
    }

    /// The limit's number in the API.
    pub fn number(self) -> i64 {
        match self {
            Self::Unlimited => -1,
            Self::At(most) => i64::try_from(most).unwrap_or(i64::MAX),
        }
    }

    /// Returns `true` if this usage is within the limit.
    pub fn allows(self, used: u64) -> bool {
        match self {
            Self::Unlimited => true,
            Self::At(most) => used <= most,
        }
    }
}

/// The limits of one project, by where they are set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// The project's own limits.
    pub project: BTreeMap<Key, Limit>,
    /// The limits of the default class.
    pub class: BTreeMap<Key, Limit>,
    /// The limits of the configuration.
    pub configured: BTreeMap<Key, Limit>,
}

impl Limits {
    /// The limit in force.
    pub fn of(&self, key: &Key) -> Limit {
        self.project.get(key).copied().unwrap_or_else(|| self.default_of(key))
    }

    /// The limit of a project without an own one.
    pub fn default_of(&self, key: &Key) -> Limit {
        let set = self.class.get(key).or_else(|| self.configured.get(key));
        set.copied().unwrap_or_else(|| key.built_in())
    }

    /// Every key with its limit and its usage, for answers.
    pub fn table(&self, usage: &Usage, types: &[&str]) -> Vec<Entry> {
        let keys = Key::PLAIN.into_iter().chain(types.iter().flat_map(|name| Key::of_type(name)));
        keys.map(|key| Entry { limit: self.of(&key), in_use: used(usage, &key), key }).collect()
    }
}

/// One line of an answer. Nothing is ever reserved: usage is counted in the transaction that adds
/// to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The limit.
    pub limit: Limit,
    /// The usage.
    pub in_use: u64,
}

/// A project's usage; a missing key means 0.
pub type Usage = BTreeMap<Key, u64>;

fn used(usage: &Usage, key: &Key) -> u64 {
    usage.get(key).copied().unwrap_or(0)
}

/// The resources that a change adds and releases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    change: BTreeMap<Key, i64>,
    volume_gib: Option<u64>,
}

impl Delta {
    /// The change by a new volume.
    pub fn volume(type_name: &str, gib: u32) -> Self {
        let change = BTreeMap::from([
            (Key::Volumes, 1),
            (Key::Gigabytes, i64::from(gib)),
            (Key::VolumesOf(type_name.to_owned()), 1),
            (Key::GigabytesOf(type_name.to_owned()), i64::from(gib)),
        ]);
        Self { change, volume_gib: Some(gib.into()) }
    }

    /// The change by a volume's growth; nothing if it does not grow.
    pub fn extend(type_name: &str, from_gib: u32, to_gib: u32) -> Self {
        let more = i64::from(to_gib.saturating_sub(from_gib));
        let change = BTreeMap::from([(Key::Gigabytes, more), (Key::GigabytesOf(type_name.to_owned()), more)]);
        Self { change, volume_gib: Some(to_gib.into()) }
    }

    /// The change by a new snapshot of a volume of this size.
    pub fn snapshot(type_name: &str, gib: u32) -> Self {
        let change = BTreeMap::from([
            (Key::Snapshots, 1),
            (Key::Gigabytes, i64::from(gib)),
            (Key::SnapshotsOf(type_name.to_owned()), 1),
            (Key::GigabytesOf(type_name.to_owned()), i64::from(gib)),
        ]);
        Self { change, volume_gib: None }
    }

    /// The change by a volume's new type: totals over all types stay. Its snapshots are changes of
    /// their own ([`Delta::retype_snapshot`]).
    pub fn retype(old_type: &str, new_type: &str, gib: u32) -> Self {
        Self::moved(Key::VolumesOf, old_type, new_type, gib)
    }

    /// The change by the new type of a snapshot, which has the type of its volume.
    pub fn retype_snapshot(old_type: &str, new_type: &str, gib: u32) -> Self {
        Self::moved(Key::SnapshotsOf, old_type, new_type, gib)
    }

    /// Moves one object, with its space, from a type to another.
    fn moved(count: fn(String) -> Key, old_type: &str, new_type: &str, gib: u32) -> Self {
        if old_type == new_type {
            return Self::default();
        }
        let change = BTreeMap::from([
            (count(old_type.to_owned()), -1),
            (Key::GigabytesOf(old_type.to_owned()), -i64::from(gib)),
            (count(new_type.to_owned()), 1),
            (Key::GigabytesOf(new_type.to_owned()), i64::from(gib)),
        ]);
        Self { change, volume_gib: None }
    }

    /// Joins another change to this one: both happen at once.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (key, more) in other.change {
            let sum = self.change.entry(key).or_default();
            *sum = sum.saturating_add(more);
        }
        self.volume_gib = self.volume_gib.max(other.volume_gib);
        self
    }

    /// The keys that the change affects, with the amounts: these must be counted before [`check`].
    pub fn keys(&self) -> impl Iterator<Item = (&Key, i64)> {
        self.change.iter().map(|(key, change)| (key, *change))
    }
}

/// Checks whether a change fits. Only increases count: a project over its limit may always release.
pub fn check(usage: &Usage, limits: &Limits, delta: &Delta) -> Result<(), QuotaViolation> {
    if let (Some(size), Limit::At(most)) = (delta.volume_gib, limits.of(&Key::PerVolumeGigabytes))
        && size > most
    {
        return Err(QuotaViolation::VolumeTooLarge { size_gib: size, most });
    }
    // By name, as clients are used to: too many gigabytes are reported before too many volumes.
    let mut over: Vec<_> = delta
        .change
        .iter()
        .filter_map(|(key, change)| Some((key, u64::try_from(*change).ok().filter(|more| *more > 0)?)))
        .filter_map(|(key, more)| match limits.of(key) {
            Limit::At(most) if used(usage, key).saturating_add(more) > most => Some((key, more, most)),
            _ => None,
        })
        .collect();
    over.sort_by_cached_key(|(key, ..)| key.to_string());
    over.first().map_or(Ok(()), |(key, more, most)| Err(exceeded(key, *more, *most, used(usage, key))))
}

fn exceeded(key: &Key, more: u64, most: u64, used: u64) -> QuotaViolation {
    let resource = match key {
        Key::Volumes | Key::VolumesOf(_) => Resource::Volumes,
        Key::Snapshots | Key::SnapshotsOf(_) => Resource::Snapshots,
        Key::Backups => Resource::Backups,
        Key::Groups => Resource::Groups,
        Key::BackupGigabytes => Resource::BackupGigabytes,
        Key::Gigabytes | Key::GigabytesOf(_) | Key::PerVolumeGigabytes => Resource::Gigabytes,
    };
    QuotaViolation::Exceeded { resource, key: key.to_string(), more, most, used }
}

/// Checks whether a project's limit may be set to this (400 if not): it must not be below the
/// usage. A volume larger than a new limit per volume stays.
pub fn may_set(key: &Key, limit: Limit, usage: &Usage) -> Result<(), RuleViolation> {
    let used = used(usage, key);
    if *key == Key::PerVolumeGigabytes || limit.allows(used) {
        return Ok(());
    }
    Err(RuleViolation::Quota(QuotaViolation::LimitBelowUsage {
        key: key.to_string(),
        used,
        limit: limit.number(),
    }))
}

//! Negotiation of an export's iSCSI sessions: digests, bursts, queue depth. Each value is set or
//! unset.
//!
//! Unset means unmanaged: the kernel's value stands and is not even read. So the plan of an export
//! without tuning is unaffected by this module. Sources: RFC 7143, 13; Linux 6.1,
//! `iscsi_target_parameters.c`; lio.md, p.
//!
//! What must never happen here: a value outside of the limits of the standard or of the kernel; a
//! first burst that is longer than a burst.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A parameter that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TuningKey {
    /// CRC32C over the headers of PDUs.
    HeaderDigest,
    /// CRC32C over the data of PDUs.
    DataDigest,
    /// Most commands that a session may have open.
    QueueDepth,
    /// Most bytes of data in one sequence.
    MaxBurst,
    /// Most bytes of a write that may arrive before the target asks for them.
    FirstBurst,
    /// Most bytes of data in one PDU to the target.
    MaxRecvSegment,
    /// Data of a write may come with its command.
    ImmediateData,
    /// Data of a write waits for the target's R2T, except data that comes with the command.
    InitialR2t,
    /// Most R2Ts that one command may have open.
    MaxOutstandingR2t,
}

/// The type and range of a key's values.
enum Kind {
    Digest,
    Flag,
    Number { least: u32, most: u32, unit: &'static str },
}

/// The words for a digest, in the order of their numbers. The initiator decides between two: it
/// takes the first of its own list that the target offers.
const DIGESTS: [&str; 3] = ["none", "crc32c", "crc32c,none"];

const BYTES: Kind = Kind::Number { least: 512, most: 0x00ff_ffff, unit: " bytes" };

impl TuningKey {
    /// All keys.
    pub const ALL: [Self; 9] = [
        Self::HeaderDigest,
        Self::DataDigest,
        Self::QueueDepth,
        Self::MaxBurst,
        Self::FirstBurst,
        Self::MaxRecvSegment,
        Self::ImmediateData,
        Self::InitialR2t,
        Self::MaxOutstandingR2t,
    ];

    /// The key's name, on the wire and (behind a prefix) in a volume type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeaderDigest => "header_digest",
            Self::DataDigest => "data_digest",
            Self::QueueDepth => "queue_depth",
            Self::MaxBurst => "max_burst",
            Self::FirstBurst => "first_burst",
            Self::MaxRecvSegment => "max_recv_segment",
            Self::ImmediateData => "immediate_data",
            Self::InitialR2t => "initial_r2t",
            Self::MaxOutstandingR2t => "max_outstanding_r2t",
        }
    }

    /// Returns `true` if its values are yes and no.
    pub const fn is_flag(self) -> bool {
        matches!(self.kind(), Kind::Flag)
    }

    const fn kind(self) -> Kind {
        match self {
            Self::HeaderDigest | Self::DataDigest => Kind::Digest,
            // The kernel's own limit (`TA_DEFAULT_CMDSN_DEPTH_MAX`).
            Self::QueueDepth => Kind::Number { least: 1, most: 512, unit: " commands" },
            Self::MaxBurst | Self::FirstBurst | Self::MaxRecvSegment => BYTES,
            Self::ImmediateData | Self::InitialR2t => Kind::Flag,
            Self::MaxOutstandingR2t => Kind::Number { least: 1, most: 65_535, unit: "" },
        }
    }

    /// The value that a new portal group of Linux 6.1 has.
    pub const fn kernel_default(self) -> TuningValue {
        TuningValue(match self {
            Self::HeaderDigest | Self::DataDigest => 2,
            Self::QueueDepth => 64,
            Self::FirstBurst => 65_536,
            Self::MaxBurst | Self::MaxRecvSegment => 262_144,
            Self::ImmediateData | Self::InitialR2t | Self::MaxOutstandingR2t => 1,
        })
    }

    /// Parses a value. The error says what is allowed.
    pub fn parse(self, text: &str) -> Result<TuningValue, ParseTuningValueError> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let plain = plain.to_ascii_lowercase();
        let value = match self.kind() {
            Kind::Digest if plain == "none,crc32c" => Some(2),
            Kind::Digest => DIGESTS.iter().position(|word| *word == plain).and_then(|at| at.try_into().ok()),
            Kind::Flag => match plain.as_str() {
                "yes" => Some(1),
                "no" => Some(0),
                _ => None,
            },
            Kind::Number { least, most, .. } => {
                let digits = !plain.is_empty() && plain.bytes().all(|b| b.is_ascii_digit());
                plain.parse().ok().filter(|value| digits && (least..=most).contains(value))
            }
        };
        value.map(TuningValue).ok_or(ParseTuningValueError(self))
    }

    fn wanted(self) -> String {
        match self.kind() {
            Kind::Digest => "want none, crc32c, or crc32c,none (the initiator chooses)".to_owned(),
            Kind::Flag => "want yes or no".to_owned(),
            Kind::Number { least, most, unit } => format!("want {least} to {most}{unit}"),
        }
    }
}

impl fmt::Display for TuningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is not the name of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no key that tunes an export")]
pub struct ParseTuningKeyError(String);

impl FromStr for TuningKey {
    type Err = ParseTuningKeyError;

    fn from_str(text: &str) -> Result<Self, ParseTuningKeyError> {
        let found = Self::ALL.into_iter().find(|key| key.name() == text);
        found.ok_or_else(|| ParseTuningKeyError(text.chars().take(80).collect()))
    }
}

/// A text that is no value of a key. The error names the values that the key may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.wanted())]
pub struct ParseTuningValueError(TuningKey);

/// A value of a key: a number, 1 or 0 for yes or no, or the number of a digest's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TuningValue(u32);

impl TuningValue {
    /// The number; for a flag 1 or 0.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The value's text in a volume type and on the wire.
    pub fn text(self, of: TuningKey) -> String {
        match of.kind() {
            Kind::Digest => DIGESTS[(self.0 as usize).min(2)].to_owned(),
            Kind::Flag => if self.0 == 0 { "no" } else { "yes" }.to_owned(),
            Kind::Number { .. } => self.0.to_string(),
        }
    }
}

/// The parameters that are set on an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning(BTreeMap<TuningKey, TuningValue>);

impl Tuning {
    /// Sets a value.
    pub fn say(&mut self, key: TuningKey, value: TuningValue) {
        self.0.insert(key, value);
    }

    /// The value of this key; `None` if it is unset.
    pub fn get(&self, key: TuningKey) -> Option<TuningValue> {
        self.0.get(&key).copied()
    }

    /// Returns `true` if nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All values that are set, in the order of [`TuningKey::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (TuningKey, TuningValue)> + '_ {
        self.0.iter().map(|(key, value)| (*key, *value))
    }

    /// Adds the kernel's default for each key that `before` set and this one does not: left unset,
    /// the old value would stand.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        for (key, _) in before.iter() {
            self.0.entry(key).or_insert_with(|| key.kernel_default());
        }
        self
    }

    /// Returns `true` if exports with these two tunings have the same values: an unset key counts
    /// as the kernel's default.
    pub fn is_same(&self, other: &Self) -> bool {
        let value = |of: &Self, key: TuningKey| of.get(key).unwrap_or_else(|| key.kernel_default());
        TuningKey::ALL.into_iter().all(|key| value(self, key) == value(other, key))
    }

    /// Checks that all set values are compatible; the error is the wrong key and the reason.
    pub fn check(&self) -> Result<(), (TuningKey, String)> {
        let Some(first) = self.get(TuningKey::FirstBurst) else { return Ok(()) };
        let burst = self.get(TuningKey::MaxBurst);
        let most = burst.unwrap_or_else(|| TuningKey::MaxBurst.kernel_default());
        if first <= most {
            return Ok(());
        }
        let default = if burst.is_none() { ", the default" } else { "" };
        Err((
            TuningKey::FirstBurst,
            format!("{} is more than {} ({}{default})", first.0, TuningKey::MaxBurst, most.0),
        ))
    }
}

impl FromIterator<(TuningKey, TuningValue)> for Tuning {
    fn from_iter<T: IntoIterator<Item = (TuningKey, TuningValue)>>(said: T) -> Self {
        Self(said.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(said: &[(&str, &str)]) -> Tuning {
        said.iter()
            .map(|(key, value)| {
                let key: TuningKey = key.parse().unwrap();
                (key, key.parse(value).unwrap())
            })
            .collect()
    }

    #[test]
    fn names_and_texts_come_back() {
        for key in TuningKey::ALL {
            assert_eq!(key.name().parse(), Ok(key));
            let value = key.kernel_default();
            assert_eq!(key.parse(&value.text(key)), Ok(value));
        }
        assert!("header_digets".parse::<TuningKey>().unwrap_err().to_string().contains("header_digets"));
    }

    #[test]
    fn values_have_limits() {
        let table: &[(TuningKey, &[&str], &[&str])] = &[
            (
                TuningKey::HeaderDigest,
                &["none", "CRC32C", "crc32c,none", "None, CRC32C"],
                &["", "crc32", "crc32c,", "none,none", "yes"],
            ),
            (TuningKey::QueueDepth, &["1", "512"], &["0", "513", "-1", "+8", "8 x", "", "99999999999"]),
            (TuningKey::MaxBurst, &["512", "16777215"], &["511", "16777216", "1M", "0x400"]),
            (TuningKey::FirstBurst, &["512", "16777215"], &["511", "16777216"]),
            (TuningKey::MaxRecvSegment, &["512", "16777215"], &["511", "16777216"]),
            (TuningKey::ImmediateData, &["yes", "No"], &["1", "true", ""]),
            (TuningKey::MaxOutstandingR2t, &["1", "65535"], &["0", "65536"]),
        ];
        for (key, right, wrong) in table {
            for text in *right {
                assert!(key.parse(text).is_ok(), "{key} {text}");
            }
            for text in *wrong {
                assert!(key.parse(text).unwrap_err().to_string().starts_with("want "), "{key} {text}");
            }
        }
        let either = TuningKey::DataDigest.parse("none,crc32c").unwrap();
        assert_eq!(either.text(TuningKey::DataDigest), "crc32c,none", "the order of a target says nothing");
    }

    #[test]
    fn a_first_burst_is_no_longer_than_a_burst() {
        for right in [
            &[][..],
            &[("first_burst", "262144")],
            &[("first_burst", "512"), ("max_burst", "512")],
            // Unset, the first burst follows: the kernel shortens it at the login.
            &[("max_burst", "512")],
        ] {
            assert_eq!(tuning(right).check(), Ok(()));
        }
        for (wrong, says) in [
            (&[("first_burst", "262145")][..], "262144, the default"),
            (&[("first_burst", "1024"), ("max_burst", "1023")], "1024 is more than max_burst (1023)"),
        ] {
            let (key, why) = tuning(wrong).check().unwrap_err();
            assert!(key == TuningKey::FirstBurst && why.contains(says), "{why}");
        }
    }

    #[test]
    fn what_was_said_before_gets_its_default_said() {
        let before = tuning(&[("queue_depth", "128"), ("data_digest", "crc32c")]);
        let after = tuning(&[("queue_depth", "8")]).after(&before);
        assert_eq!(after, tuning(&[("queue_depth", "8"), ("data_digest", "crc32c,none")]));
        assert_eq!(Tuning::default().after(&Tuning::default()), Tuning::default());
        let quiet = Tuning::default().after(&before);
        assert!(quiet != Tuning::default() && quiet.is_same(&Tuning::default()) && !quiet.is_same(&before));
    }
}

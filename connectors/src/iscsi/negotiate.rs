//! Negotiates operational parameters: the offers, and the result of each answer (RFC 7143, 13).
//!
//! Every key is offered, so that a target has nothing left to propose. A key that the target does
//! not answer, or answers with `NotUnderstood` or `Irrelevant`, has the standard's default; the
//! defaults are never bolder than our offers.
//!
//! What must never happen here: a result that one side did not agree to; a first burst longer than
//! a burst, which the kernel refuses only when the session is started.

use super::text::{Text, short};

/// Default of MaxRecvDataSegmentLength (RFC 7143, 13.12), in bytes.
const SEGMENT_DEFAULT: u32 = 8192;
/// Offered digests. `None` comes first, for a target that leaves the choice to us: TCP and the
/// network below check, and CRC32C costs more than it finds. But the target decides (a volume type
/// may want them).
const DIGESTS: &str = "None,CRC32C";
/// Longest data segment that we accept, in bytes.
const SEGMENT_OURS: u32 = 262_144;
/// Upper limit of all byte counts: 24 bits.
const BYTES_MAX: u32 = 0x00ff_ffff;
/// Lower limit of all byte counts.
const BYTES_MIN: u32 = 512;

/// The keys of the operational stage, in the order in which they are offered (open-iscsi's).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(
    missing_docs,
    reason = "the names are those of RFC 7143, 13; the two marker keys are of RFC 3720, A.3"
)]
pub enum Key {
    HeaderDigest,
    DataDigest,
    DefaultTime2Wait,
    DefaultTime2Retain,
    IFMarker,
    OFMarker,
    ErrorRecoveryLevel,
    InitialR2T,
    ImmediateData,
    MaxBurstLength,
    FirstBurstLength,
    MaxOutstandingR2T,
    MaxConnections,
    DataPDUInOrder,
    DataSequenceInOrder,
    MaxRecvDataSegmentLength,
}

/// Rule of a key: its offer, and the value that follows from an answer. Booleans are 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// One of [`DIGESTS`]: the target, too, takes the first that it has. 1 is CRC32C.
    Digest,
    /// `Yes` if either side says `Yes`.
    Or { offer: bool, default: bool },
    /// `Yes` if both sides say `Yes`.
    And { offer: bool, default: bool },
    /// The smaller number.
    Least { offer: u32, default: u32, low: u32, high: u32 },
    /// The greater number.
    Greatest { offer: u32, default: u32, low: u32, high: u32 },
    /// Each side declares its own; the value is the other side's.
    Declared { offer: u32, default: u32, low: u32, high: u32 },
    /// Markers are no longer part of the standard: `No`, or no value.
    Obsolete,
}

impl Key {
    /// All keys, in the order in which they are offered.
    pub const ALL: [Self; 16] = [
        Self::HeaderDigest,
        Self::DataDigest,
        Self::DefaultTime2Wait,
        Self::DefaultTime2Retain,
        Self::IFMarker,
        Self::OFMarker,
        Self::ErrorRecoveryLevel,
        Self::InitialR2T,
        Self::ImmediateData,
        Self::MaxBurstLength,
        Self::FirstBurstLength,
        Self::MaxOutstandingR2T,
        Self::MaxConnections,
        Self::DataPDUInOrder,
        Self::DataSequenceInOrder,
        Self::MaxRecvDataSegmentLength,
    ];

    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::HeaderDigest => "HeaderDigest",
            Self::DataDigest => "DataDigest",
            Self::DefaultTime2Wait => "DefaultTime2Wait",
            Self::DefaultTime2Retain => "DefaultTime2Retain",
            Self::IFMarker => "IFMarker",
            Self::OFMarker => "OFMarker",
            Self::ErrorRecoveryLevel => "ErrorRecoveryLevel",
            Self::InitialR2T => "InitialR2T",
            Self::ImmediateData => "ImmediateData",
            Self::MaxBurstLength => "MaxBurstLength",
            Self::FirstBurstLength => "FirstBurstLength",
            Self::MaxOutstandingR2T => "MaxOutstandingR2T",
            Self::MaxConnections => "MaxConnections",
            Self::DataPDUInOrder => "DataPDUInOrder",
            Self::DataSequenceInOrder => "DataSequenceInOrder",
            Self::MaxRecvDataSegmentLength => "MaxRecvDataSegmentLength",
        }
    }

    /// Returns the key of this name; `None` if it is unknown.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    fn rule(self) -> Rule {
        match self {
            Self::HeaderDigest | Self::DataDigest => Rule::Digest,
            Self::DefaultTime2Wait => Rule::Greatest { offer: 2, default: 2, low: 0, high: 3600 },
            Self::DefaultTime2Retain => Rule::Least { offer: 0, default: 20, low: 0, high: 3600 },
            Self::IFMarker | Self::OFMarker => Rule::Obsolete,
            Self::ErrorRecoveryLevel => Rule::Least { offer: 0, default: 0, low: 0, high: 2 },
            Self::InitialR2T => Rule::Or { offer: false, default: true },
            Self::ImmediateData => Rule::And { offer: true, default: true },
            Self::MaxBurstLength => {
                Rule::Least { offer: 16_776_192, default: 262_144, low: BYTES_MIN, high: BYTES_MAX }
            }
            Self::FirstBurstLength => {
                Rule::Least { offer: 262_144, default: 65_536, low: BYTES_MIN, high: BYTES_MAX }
            }
            Self::MaxOutstandingR2T | Self::MaxConnections => {
                Rule::Least { offer: 1, default: 1, low: 1, high: 65_535 }
            }
            Self::DataPDUInOrder | Self::DataSequenceInOrder => Rule::Or { offer: true, default: true },
            Self::MaxRecvDataSegmentLength => Rule::Declared {
                offer: SEGMENT_OURS,
                default: SEGMENT_DEFAULT,
                low: BYTES_MIN,
                high: BYTES_MAX,
            },
        }
    }

    /// Returns our offer as text; for the last key, our declaration.
    pub fn offer(self) -> String {
        match self.rule() {
            Rule::Digest => DIGESTS.to_owned(),
            Rule::Obsolete => yes_no(false).to_owned(),
            Rule::Or { offer, .. } | Rule::And { offer, .. } => yes_no(offer).to_owned(),
            Rule::Least { offer, .. } | Rule::Greatest { offer, .. } | Rule::Declared { offer, .. } => {
                offer.to_string()
            }
        }
    }

    /// Returns the value that holds without a usable answer of the target.
    fn default(self) -> u32 {
        match self.rule() {
            Rule::Digest | Rule::Obsolete => 0,
            Rule::Or { offer, default } => u32::from(offer | default),
            Rule::And { offer, default } => u32::from(offer & default),
            Rule::Least { offer, default, .. } => offer.min(default),
            Rule::Greatest { offer, default, .. } => offer.max(default),
            Rule::Declared { default, .. } => default,
        }
    }

    /// Computes the result of an answer to our offer. The error says why there is no agreement.
    fn result(self, answer: &str) -> Result<Answer, &'static str> {
        match (answer, self.rule()) {
            ("NotUnderstood" | "Irrelevant", _) | ("Reject", Rule::Obsolete) => return Ok(Answer::Default),
            ("Reject", _) => return Err("it rejects what the standard allows"),
            _ => {}
        }
        let value = match self.rule() {
            Rule::Digest => match answer {
                "None" => 0,
                "CRC32C" => 1,
                _ => return Err("want one of the digests that were offered"),
            },
            Rule::Obsolete if boolean(answer)? => return Err("only No was offered"),
            Rule::Obsolete => 0,
            Rule::Or { offer, .. } => match boolean(answer)? {
                false if offer => return Err("Yes was offered, and Yes prevails"),
                answer => u32::from(answer),
            },
            Rule::And { offer, .. } => match boolean(answer)? {
                true if !offer => return Err("No was offered, and No prevails"),
                answer => u32::from(answer),
            },
            Rule::Least { offer, low, high, .. } => match number(answer, low, high)? {
                answer if answer > offer => {
                    return Err("it is more than was offered, and the smaller prevails");
                }
                answer => answer,
            },
            Rule::Greatest { offer, low, high, .. } => match number(answer, low, high)? {
                answer if answer < offer => {
                    return Err("it is less than was offered, and the greater prevails");
                }
                answer => answer,
            },
            Rule::Declared { low, high, .. } => number(answer, low, high)?,
        };
        Ok(Answer::Value(value))
    }
}

fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err("want Yes or No"),
    }
}

fn number(text: &str, low: u32, high: u32) -> Result<u32, &'static str> {
    let value = parse_number(text).ok_or("want a number")?;
    if (low..=high).contains(&value) { Ok(value) } else { Err("it is outside the standard's limits") }
}

/// Parses a numerical value: decimal, or hexadecimal behind `0x` (RFC 7143, 6.1). No sign, no
/// blanks.
pub(super) fn parse_number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, radix).ok())?
}

/// An answer that makes no agreement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the target answers {key}={value:?} to {key}={offer}: {why}")]
pub struct NegotiationError {
    /// Name of the key.
    pub key: &'static str,
    /// Our offer.
    pub offer: String,
    /// The target's answer, shortened.
    pub value: String,
    /// Reason why that is no agreement.
    pub why: &'static str,
}

/// State of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Answer {
    /// Not answered.
    #[default]
    Open,
    /// Answered, and the default holds.
    Default,
    /// Agreed value.
    Value(u32),
}

/// The answers so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Negotiation {
    answers: [Answer; Key::ALL.len()],
}

/// Agreed parameters, as the kernel needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "keys of RFC 7143")]
pub struct TransferParameters {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// Time to wait after a loss before the next login, in seconds.
    pub time2wait: u32,
    /// Time for which the target keeps commands in flight after a loss, in seconds.
    pub time2retain: u32,
    /// Error recovery level.
    pub error_recovery_level: u32,
    /// Data of a write goes only after the target's R2T.
    pub initial_r2t: bool,
    /// Data of a write may come with the command.
    pub immediate_data: bool,
    /// Maximum bytes of data in one sequence.
    pub max_burst: u32,
    /// Maximum bytes of data without an R2T.
    pub first_burst: u32,
    /// Maximum number of R2Ts of one command at a time.
    pub max_outstanding_r2t: u32,
    /// Data PDUs of a sequence come in order.
    pub pdu_in_order: bool,
    /// Sequences of a command come in order.
    pub sequence_in_order: bool,
    /// Maximum bytes of data in one PDU to us.
    pub max_recv_segment: u32,
    /// Maximum bytes of data in one PDU to the target.
    pub max_xmit_segment: u32,
}

impl Negotiation {
    /// Adds all offers.
    pub fn offer(text: &mut Text) {
        for key in Key::ALL {
            text.push(key.name(), &key.offer());
        }
    }

    /// Records an answer. A second answer to one key is an error: it would replace a value that
    /// both sides use.
    pub fn answer(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        let wrong = |why| NegotiationError { key: key.name(), offer: key.offer(), value: short(value), why };
        let slot = &mut self.answers[key as usize];
        if *slot != Answer::Open {
            return Err(wrong("it was answered before"));
        }
        *slot = key.result(value).map_err(wrong)?;
        Ok(())
    }

    fn value(&self, key: Key) -> u32 {
        match self.answers[key as usize] {
            Answer::Value(value) => value,
            Answer::Open | Answer::Default => key.default(),
        }
    }

    /// Returns the agreement.
    pub fn finish(&self) -> Result<TransferParameters, NegotiationError> {
        let (max_burst, mut first_burst) =
            (self.value(Key::MaxBurstLength), self.value(Key::FirstBurstLength));
        if first_burst > max_burst {
            // As an answer it violates RFC 7143, 13.14; as a default it only follows.
            if matches!(self.answers[Key::FirstBurstLength as usize], Answer::Value(_)) {
                return Err(NegotiationError {
                    key: Key::FirstBurstLength.name(),
                    offer: Key::FirstBurstLength.offer(),
                    value: first_burst.to_string(),
                    why: "it is more than MaxBurstLength",
                });
            }
            first_burst = max_burst;
        }
        Ok(TransferParameters {
            header_digest: self.value(Key::HeaderDigest) != 0,
            data_digest: self.value(Key::DataDigest) != 0,
            time2wait: self.value(Key::DefaultTime2Wait),
            time2retain: self.value(Key::DefaultTime2Retain),
            error_recovery_level: self.value(Key::ErrorRecoveryLevel),
            initial_r2t: self.value(Key::InitialR2T) != 0,
            immediate_data: self.value(Key::ImmediateData) != 0,
            max_burst,
            first_burst,
            max_outstanding_r2t: self.value(Key::MaxOutstandingR2T),
            pdu_in_order: self.value(Key::DataPDUInOrder) != 0,
            sequence_in_order: self.value(Key::DataSequenceInOrder) != 0,
            max_recv_segment: SEGMENT_OURS,
            max_xmit_segment: self.value(Key::MaxRecvDataSegmentLength),
        })
    }
}

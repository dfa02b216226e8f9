//! The target's side of the login phase, byte by byte, with its own hashes: an independent reading
//! of the protocol.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use md5::{Digest, Md5};
use mooring_connectors::iscsi::{Credentials, Isid, Login, LoginConfig, LoginError, LoginStep};
use mooring_model::{Iqn, Secret};
use sha1::Sha1;
use sha2::Sha256;

pub(crate) const USER: &str = "user-a";
pub(crate) const SECRET: &str = "secret-of-a-1234";
pub(crate) const TARGET_USER: &str = "target-a";
pub(crate) const TARGET_SECRET: &str = "mutual-of-a-1234";
pub(crate) const TPG: u16 = 1;
pub(crate) const TSIH: u16 = 0x0102;

/// The 48 bytes of a header.
pub(crate) type Header = [u8; 48];

pub(crate) fn initiator() -> Iqn {
    "iqn.2026-11.dev.mooring:host.a0000000-1111-4222-8333-444444444444".parse().unwrap()
}

pub(crate) fn target() -> Iqn {
    "iqn.2026-11.dev.mooring:b0000000-1111-4222-8333-444444444444".parse().unwrap()
}

pub(crate) fn isid() -> Isid {
    "800102030405".parse().unwrap()
}

pub(crate) fn one_way() -> Credentials {
    Credentials { user: USER.to_owned(), secret: Secret::new(SECRET), mutual: None, other_mutual: None }
}

pub(crate) fn mutual() -> Credentials {
    Credentials { mutual: Some((TARGET_USER.to_owned(), Secret::new(TARGET_SECRET))), ..one_way() }
}

/// Begins a login. Its "random" bytes are 1, 2, 3, …: identifier 1, challenge 02 03 04 ….
pub(crate) fn start(chap: Option<Credentials>) -> (Login, LoginStep) {
    let (initiator, target) = (initiator(), target());
    let config =
        LoginConfig { initiator: &initiator, target: &target, tpg: TPG, isid: isid(), chap, alias: None };
    Login::start(config, 0, &mut |bytes| {
        for (byte, value) in bytes.iter_mut().zip(1..) {
            *byte = value;
        }
    })
}

/// Returns the hash of identifier, secret and challenge; the number of the algorithm is that of
/// `CHAP_A`.
pub(crate) fn hash(algorithm: u32, id: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
    let bytes = [&[id], secret.as_bytes(), challenge].concat();
    match algorithm {
        5 => Md5::digest(bytes).to_vec(),
        6 => Sha1::digest(bytes).to_vec(),
        7 => Sha256::digest(bytes).to_vec(),
        other => panic!("no algorithm {other}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").unwrap().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Encodes `key=value` pairs, each ended by a NUL.
pub(crate) fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Decodes the pairs of a text that the initiator sent.
pub(crate) fn pairs(data: &[u8]) -> Vec<(String, String)> {
    String::from_utf8(data.to_vec())
        .unwrap()
        .split_terminator('\0')
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

pub(crate) fn value(data: &[u8], key: &str) -> String {
    pairs(data).into_iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("no {key}")).1
}

/// A PDU that the login wants to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

impl Sent {
    pub(crate) fn of(step: &LoginStep) -> Self {
        match step {
            LoginStep::Send { header, data } => Self { header: *header, data: data.clone() },
            other => panic!("nothing to send: {other:?}"),
        }
    }

    pub(crate) fn transit(&self) -> bool {
        self.header[1] & 0x80 != 0
    }

    pub(crate) fn continues(&self) -> bool {
        self.header[1] & 0x40 != 0
    }

    /// Returns the stage, and the next stage if T is set.
    pub(crate) fn stages(&self) -> (u8, Option<u8>) {
        (self.header[1] >> 2 & 3, self.transit().then_some(self.header[1] & 3))
    }

    pub(crate) fn exp_stat_sn(&self) -> u32 {
        u32::from_be_bytes(self.header[28..32].try_into().unwrap())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        pairs(&self.data).into_iter().map(|(key, _)| key).collect()
    }
}

/// A Login Response under construction.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

impl Answer {
    /// A response in this stage, without T.
    pub(crate) fn new(stage: u8, data: Vec<u8>) -> Self {
        let mut header = [0; 48];
        header[0] = 0x23;
        header[1] = stage << 2;
        header[8..14].copy_from_slice(isid().as_bytes());
        header[27] = 7;
        Self { header, data }
    }

    pub(crate) fn transit(mut self, next: u8) -> Self {
        self.header[1] |= 0x80 | next;
        if next == 3 {
            self.header[14..16].copy_from_slice(&TSIH.to_be_bytes());
        }
        self
    }

    pub(crate) fn continues(mut self) -> Self {
        self.header[1] |= 0x40;
        self
    }

    pub(crate) fn byte(mut self, at: usize, value: u8) -> Self {
        self.header[at] = value;
        self
    }

    pub(crate) fn stat_sn(mut self, stat_sn: u32) -> Self {
        self.header[24..28].copy_from_slice(&stat_sn.to_be_bytes());
        self
    }

    /// A refusal as LIO sends it: only the status.
    pub(crate) fn status(class: u8, detail: u8) -> Self {
        let mut header = [0; 48];
        (header[0], header[36], header[37]) = (0x23, class, detail);
        Self { header, data: Vec::new() }
    }

    /// Returns the bytes, with the length of the data in the header.
    pub(crate) fn bytes(&self) -> (Header, Vec<u8>) {
        let mut header = self.header;
        header[5..8].copy_from_slice(&u32::try_from(self.data.len()).unwrap().to_be_bytes()[1..]);
        (header, self.data.clone())
    }

    pub(crate) fn give(&self, login: &mut Login) -> Result<LoginStep, LoginError> {
        let (header, data) = self.bytes();
        login.receive(&header, &data)
    }
}

pub(crate) const METHOD: &[(&str, &str)] =
    &[("TargetAlias", "LIO Target"), ("TargetPortalGroupTag", "1"), ("AuthMethod", "CHAP")];

/// LIO's answer to our parameters.
pub(crate) const PARAMETERS: &[(&str, &str)] = &[
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("DefaultTime2Wait", "2"),
    ("DefaultTime2Retain", "0"),
    ("IFMarker", "No"),
    ("OFMarker", "No"),
    ("ErrorRecoveryLevel", "0"),
    ("InitialR2T", "Yes"),
    ("ImmediateData", "Yes"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "65536"),
    ("MaxOutstandingR2T", "1"),
    ("MaxConnections", "1"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("MaxRecvDataSegmentLength", "262144"),
];

/// The target's challenge.
pub(crate) const CHALLENGE: &[u8] = b"a challenge, 32 bytes long......";

pub(crate) fn challenge(algorithm: u32) -> Answer {
    let data = text(&[("CHAP_A", &algorithm.to_string()), ("CHAP_I", "77"), ("CHAP_C", &hex(CHALLENGE))]);
    Answer::new(0, data)
}

/// Answers as LIO does, without any fault.
pub(crate) fn right_answer(sent: &Sent, algorithm: u32) -> Answer {
    let keys = sent.keys();
    let has = |key: &str| keys.iter().any(|name| name == key);
    let (stage, next) = sent.stages();
    if stage == 1 {
        let answer = Answer::new(1, if has("MaxBurstLength") { text(PARAMETERS) } else { Vec::new() });
        return if next.is_some() { answer.transit(3) } else { answer };
    }
    if has("CHAP_R") {
        let data = if has("CHAP_C") { proof(sent, algorithm, TARGET_SECRET) } else { Vec::new() };
        return Answer::new(0, data).transit(1);
    }
    if has("CHAP_A") { challenge(algorithm) } else { Answer::new(0, text(METHOD)) }
}

/// Returns the target's answer to our challenge.
pub(crate) fn proof(sent: &Sent, algorithm: u32, secret: &str) -> Vec<u8> {
    let id = value(&sent.data, "CHAP_I").parse().unwrap();
    let response = hash(algorithm, id, secret, &unhex(&value(&sent.data, "CHAP_C")));
    text(&[("CHAP_N", TARGET_USER), ("CHAP_R", &hex(&response))])
}

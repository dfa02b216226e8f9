//! PDUs as both fakes read and write them: the basic header segment, the data segment with its
//! padding, text keys.
//!
//! What must never happen here: a length believed that the other side has made up; a panic on any
//! bytes.

use std::io::{self, Read};

use crate::HEADER_BYTES;

/// Reserved initiator task tag: the PDU is no request, or wants no answer.
pub(super) const NO_TAG: [u8; 4] = [0xff; 4];

/// Opcodes (RFC 7143, 11.2.1.2), without the immediate bit.
pub(super) mod opcode {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const LOGOUT: u8 = 0x06;
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// A PDU: tests may change one on its way out ([`super::Behaviour::tamper`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdu {
    /// The basic header segment. The data length in it is set when the PDU is sent.
    pub header: [u8; HEADER_BYTES],
    /// The data segment, without padding.
    pub data: Vec<u8>,
}

impl Pdu {
    /// Makes a PDU with this first byte and no data.
    pub(super) fn new(first: u8) -> Self {
        let mut header = [0; HEADER_BYTES];
        header[0] = first;
        Self { header, data: Vec::new() }
    }

    /// Returns the opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    pub(super) fn set(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(field) = self.header.get_mut(offset..offset + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }

    pub(super) fn word(&self, offset: usize) -> u32 {
        self.header[offset..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    pub(super) fn tag(&self) -> [u8; 4] {
        self.word(16).to_be_bytes()
    }

    /// Returns the bytes on the wire: header with its data length, data, padding to 4 bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        let length = u32::try_from(self.data.len()).unwrap_or(u32::MAX).to_be_bytes();
        bytes[5..8].copy_from_slice(&length[1..]);
        bytes.extend(&self.data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Reads one PDU. `UnexpectedEof`: the connection was closed. `InvalidData`: more data than
    /// `max`, or an additional header, which neither fake sends.
    pub(super) fn read(stream: &mut impl Read, max: usize) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        if length > max || header[4] != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut data = vec![0; length.next_multiple_of(4)];
        stream.read_exact(&mut data)?;
        data.truncate(length);
        Ok(Self { header, data })
    }
}

/// Key and value of a text segment.
pub(super) type Pair = (String, String);

/// Parses a text segment; `None` when it is malformed.
pub(super) fn pairs(text: &[u8]) -> Option<Vec<Pair>> {
    text.split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (key, value) = std::str::from_utf8(part).ok()?.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// Encodes pairs as a text segment.
pub(super) fn text(pairs: &[Pair]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Returns the value of a key; `None` if the key is missing.
pub(super) fn value<'a>(pairs: &'a [Pair], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

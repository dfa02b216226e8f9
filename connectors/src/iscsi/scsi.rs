//! SCSI commands over a session in the full feature phase (RFC 7143, 11.3 to 11.8): their headers,
//! and the meaning of answers. It serves a session in user space that sends one command at a time
//! and no more than one segment of data.
//!
//! What must never happen here: a status taken for another command's; a length of a peer's that is
//! believed before it was checked.

use mooring_host::{HEADER_BYTES, LOGIN_DATA_BYTES_MAX};

use super::pdu::{Opcode, opcode};

const SCSI_COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const NOP_OUT: u8 = 0x40;
const FINAL: u8 = 0x80;
const WRITES: u8 = 0x20;
const SIMPLE: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const R2T: u8 = 0x31;

/// Tag value for no task.
pub const NO_TAG: u32 = u32::MAX;

/// Current numbers of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Tag of the task.
    pub tag: u32,
    /// CmdSN of the session.
    pub command: u32,
    /// ExpStatSN of the session.
    pub expected: u32,
}

fn put(header: &mut [u8; HEADER_BYTES], at: usize, value: u32) {
    header[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn get(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Encodes a command that writes `bytes`: `immediate` of them with this PDU and the rest when the
/// target asks for it. `lun` is in SAM-5's peripheral device addressing.
pub fn write_command(
    lun: u8,
    cdb: &[u8],
    bytes: u16,
    immediate: u16,
    numbers: Numbers,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = SCSI_COMMAND;
    header[1] = FINAL | WRITES | SIMPLE;
    header[6..8].copy_from_slice(&immediate.to_be_bytes());
    header[9] = lun;
    put(&mut header, 16, numbers.tag);
    put(&mut header, 20, bytes.into());
    put(&mut header, 24, numbers.command);
    put(&mut header, 28, numbers.expected);
    for (to, from) in header[32..].iter_mut().zip(cdb) {
        *to = *from;
    }
    header
}

/// Encodes the header for all of a command's data, which an R2T with this tag has asked for.
pub fn data_out(lun: u8, bytes: u16, asked: u32, numbers: Numbers) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = DATA_OUT;
    header[1] = FINAL;
    header[6..8].copy_from_slice(&bytes.to_be_bytes());
    header[9] = lun;
    put(&mut header, 16, numbers.tag);
    put(&mut header, 20, asked);
    put(&mut header, 28, numbers.expected);
    header
}

/// Encodes the answer to a NOP-In that wants one.
pub fn nop_out(asked: u32, numbers: Numbers) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = NOP_OUT;
    header[1] = FINAL;
    put(&mut header, 16, NO_TAG);
    put(&mut header, 20, asked);
    put(&mut header, 24, numbers.command);
    put(&mut header, 28, numbers.expected);
    header
}

/// Fills the numbers of a session into a header that was made without them, such as that of a
/// logout.
pub fn with_numbers(mut header: [u8; HEADER_BYTES], numbers: Numbers) -> [u8; HEADER_BYTES] {
    put(&mut header, 16, numbers.tag);
    put(&mut header, 24, numbers.command);
    put(&mut header, 28, numbers.expected);
    header
}

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// GOOD.
    Good,
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION with UNIT ATTENTION: the command was not done, because of an earlier event.
    UnitAttention,
    /// CHECK CONDITION with another sense key, or none that can be read.
    Check {
        /// Sense key.
        key: u8,
        /// Additional sense code and qualifier.
        code: (u8, u8),
    },
    /// Another status.
    Status(u8),
    /// The target could not run the command (RFC 7143, 11.4.3).
    Failed(u8),
}

/// A message of the target in the full feature phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Said {
    /// The command with this tag has ended.
    Ended {
        /// Tag of the task.
        tag: u32,
        /// StatSN of the message.
        number: u32,
        /// Outcome of the command.
        how: Ended,
    },
    /// The target is ready for this command's data.
    Ready {
        /// Tag of the task.
        tag: u32,
        /// Tag to send with the data.
        asked: u32,
        /// Offset of the first byte to send.
        offset: u32,
        /// Number of bytes to send.
        bytes: u32,
    },
    /// The target tests that we are there.
    Nop {
        /// Tag to send with the answer. [`NO_TAG`]: the target wants none.
        asked: u32,
    },
    /// The answer to a logout.
    LoggedOut,
    /// Anything else.
    Other(Opcode),
}

/// Returns the numbers of bytes behind a header: additional header segments, and data without
/// padding. `None`: more than such a session has.
pub fn lengths(header: &[u8; HEADER_BYTES]) -> Option<(usize, usize)> {
    let data = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
    (data <= LOGIN_DATA_BYTES_MAX).then_some((usize::from(header[4]) * 4, data))
}

/// Parses a PDU of the target; `data` without padding.
pub fn read(header: &[u8; HEADER_BYTES], data: &[u8]) -> Said {
    let tag = get(header, 16);
    match (header[0] & 0x3f, opcode(header)) {
        (SCSI_RESPONSE, _) => Said::Ended { tag, number: get(header, 24), how: ended(header, data) },
        (R2T, _) => {
            Said::Ready { tag, asked: get(header, 20), offset: get(header, 40), bytes: get(header, 44) }
        }
        (_, Opcode::NopIn) => Said::Nop { asked: get(header, 20) },
        (_, Opcode::LogoutResponse) => Said::LoggedOut,
        (_, other) => Said::Other(other),
    }
}

fn ended(header: &[u8; HEADER_BYTES], data: &[u8]) -> Ended {
    match (header[2], header[3]) {
        (0, 0x00) => Ended::Good,
        (0, 0x18) => Ended::Conflict,
        (0, 0x02) => match sense(data) {
            (6, _) => Ended::UnitAttention,
            (key, code) => Ended::Check { key, code },
        },
        (0, status) => Ended::Status(status),
        (response, _) => Ended::Failed(response),
    }
}

/// Reads sense key, code and qualifier behind the 16-bit length: fixed format 70h, descriptor
/// format 72h (SPC-4, 4.5). Zeros where there is none.
fn sense(data: &[u8]) -> (u8, (u8, u8)) {
    let at = |index: usize| data.get(2 + index).copied().unwrap_or_default();
    match at(0) & 0x7f {
        0x70 => (at(2) & 0x0f, (at(12), at(13))),
        0x72 => (at(1) & 0x0f, (at(2), at(3))),
        _ => (0, (0, 0)),
    }
}

/// Computes CRC32C (RFC 7143, 13.1) as it stands on the wire. Bit by bit is enough for the few
/// bytes of a command.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let odd = crc & 1 == 1;
            (crc >> 1) ^ if odd { 0x82f6_3b78 } else { 0 }
        })
    });
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = Numbers { tag: 0x0102_0304, command: 5, expected: 6 };

    /// RFC 7143, A.4: CRC examples.
    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), [0x4e, 0x79, 0xdd, 0x46]);
    }

    #[test]
    fn headers_are_those_of_the_standard() {
        let command = write_command(1, &[0x5f, 6], 24, 24, NUMBERS);
        assert_eq!(command[..12], [0x01, 0xa1, 0, 0, 0, 0, 0, 24, 0, 1, 0, 0]);
        assert_eq!(command[16..34], [1, 2, 3, 4, 0, 0, 0, 24, 0, 0, 0, 5, 0, 0, 0, 6, 0x5f, 6]);
        let data = data_out(1, 24, 9, NUMBERS);
        assert_eq!((data[0], data[1], data[7], data[9], get(&data, 20)), (0x05, 0x80, 24, 1, 9));
        let nop = nop_out(9, NUMBERS);
        assert_eq!((nop[0], get(&nop, 16), get(&nop, 20), get(&nop, 24)), (0x40, NO_TAG, 9, 5));
    }

    #[test]
    fn every_end_of_a_command() {
        let end = |response, status, data: &[u8]| {
            let mut header = [0; HEADER_BYTES];
            (header[0], header[2], header[3]) = (0x21, response, status);
            put(&mut header, 16, 7);
            put(&mut header, 24, 8);
            let Said::Ended { tag: 7, number: 8, how } = read(&header, data) else { panic!("no end") };
            how
        };
        let fixed = [0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 0x03, 0, 0, 0, 0];
        assert_eq!(end(0, 0, &[]), Ended::Good);
        assert_eq!(end(0, 0x18, &[]), Ended::Conflict);
        assert_eq!(end(0, 2, &fixed), Ended::UnitAttention);
        let check = Ended::Check { key: 7, code: (0x27, 0) };
        assert_eq!(end(0, 2, &[0, 8, 0x72, 7, 0x27, 0, 0, 0, 0, 0]), check);
        assert_eq!(end(0, 2, &[]), Ended::Check { key: 0, code: (0, 0) });
        assert_eq!((end(0, 8, &[]), end(1, 0, &[])), (Ended::Status(8), Ended::Failed(1)));
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let mut header = [0; HEADER_BYTES];
        (header[4], header[6], header[7]) = (2, 0x20, 0);
        assert_eq!(lengths(&header), Some((8, 8192)));
        header[7] = 1;
        assert_eq!(lengths(&header), None);
    }
}

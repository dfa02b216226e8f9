//! The frames between rig and guest: one virtio-serial port, many channels at once.
//!
//! A frame is `length (u32, big endian) | channel (u32, big endian) | kind (u8) | payload`, where
//! length counts everything after itself. A channel is one command or one file transfer; the rig
//! numbers them.
//!
//! What must never happen here: a damaged length that makes either side allocate without bound, or
//! wait for ever in the middle of a frame that it took for another one. So lengths are bounded,
//! unknown kinds are errors, and after an error the stream is given up.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The largest payload that either side sends or accepts.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// Bytes of a stream in one frame: few enough that other channels get their turn.
pub const CHUNK: usize = 64 * 1024;

/// The name of the virtio port, as seen in `/sys/class/virtio-ports/*/name`.
pub const PORT_NAME: &str = "mooring.rig";

/// Folder of the programs under test in a VM.
pub const PROGRAMS_DIR: &str = "/opt/mooring/bin";
/// Name of the archive of files that a VM keeps over its boots, in the initramfs.
pub const KEPT: &str = "kept.tar";
/// Printed on the console just before the guest says hello: the boot probe waits for it.
pub const READY_MARK: &str = "mooring-guest: ready";

/// Bytes of a frame after its length and before its payload.
const HEADER: usize = 5;

/// The meaning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the guest: run a command ([`Spawn`] as JSON).
    Spawn = 1,
    /// To the guest: bytes for stdin or for the file being written; empty means end.
    Data = 2,
    /// To the guest: one byte, the signal for the command's process group.
    Signal = 3,
    /// To the guest: write a file ([`Put`] as JSON), content follows as [`Kind::Data`].
    Put = 4,
    /// To the guest: read the file named by the payload.
    Get = 5,
    /// To the rig: the guest is ready ([`Hello`] as JSON).
    Hello = 16,
    /// To the rig: the command runs; the payload is its pid in decimal.
    Started = 17,
    /// To the rig: output, or file content.
    Stdout = 18,
    /// To the rig: error output.
    Stderr = 19,
    /// To the rig: the command or transfer ended ([`Ended`] as JSON).
    Ended = 20,
    /// To the rig: the request could not be carried out; the payload is the reason.
    Failed = 21,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Spawn,
            2 => Self::Data,
            3 => Self::Signal,
            4 => Self::Put,
            5 => Self::Get,
            16 => Self::Hello,
            17 => Self::Started,
            18 => Self::Stdout,
            19 => Self::Stderr,
            20 => Self::Ended,
            21 => Self::Failed,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The command or transfer that it belongs to.
    pub channel: u32,
    /// The meaning.
    pub kind: Kind,
    /// The content.
    pub payload: Vec<u8>,
}

/// The reason why a stream of frames cannot be read or written any further.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The length is impossible: the stream is damaged or not ours.
    #[error("a frame of {0} bytes arrived, allowed are {HEADER} to {max}: the stream is damaged", max = HEADER + MAX_PAYLOAD)]
    Length(usize),
    /// The kind is unknown: the two sides were built from different sources.
    #[error("a frame of unknown kind {0} arrived: rig and guest differ, build the guest again")]
    Kind(u8),
    /// The payload to send is too large.
    #[error("a payload of {0} bytes was to be sent, allowed are {MAX_PAYLOAD}: send it in chunks")]
    Payload(usize),
    /// The stream ended or failed inside a frame.
    #[error("the stream between rig and guest broke: {0}")]
    Io(#[from] io::Error),
}

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Program and arguments; the program is looked up in PATH.
    pub argv: Vec<String>,
    /// Variables in addition to the guest's small environment.
    pub env: Vec<(String, String)>,
    /// Working directory; `/root` if none.
    pub cwd: Option<String>,
    /// Most bytes of stdout, and of stderr, that are sent back; the rest is read and dropped.
    pub limit: u64,
    /// `true`: stdin follows as [`Kind::Data`]. `false`: it is `/dev/null`.
    pub stdin: bool,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The file's path; missing folders are made.
    pub path: String,
    /// The file's permission bits.
    pub mode: u32,
}

/// The guest's first message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The guest's host name.
    pub name: String,
    /// The guest's kernel release.
    pub kernel: String,
    /// Seconds since the kernel's start.
    pub uptime: f64,
}

/// The end of a command or transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code; `None` if it did not exit.
    pub code: Option<i32>,
    /// Signal that ended it; `None` if none did.
    pub signal: Option<i32>,
    /// `true`: output was dropped because of the limit.
    pub truncated: bool,
}

/// Reads one frame; `None` at a clean end of the stream.
pub fn read_frame(from: &mut impl Read) -> Result<Option<Frame>, WireError> {
    let mut length = [0u8; 4];
    loop {
        match from.read(&mut length[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    from.read_exact(&mut length[1..])?;
    let length = u32::from_be_bytes(length) as usize;
    if !(HEADER..=HEADER + MAX_PAYLOAD).contains(&length) {
        return Err(WireError::Length(length));
    }
    let mut header = [0u8; HEADER];
    from.read_exact(&mut header)?;
    let [a, b, c, d, kind] = header;
    let kind = Kind::from_byte(kind).ok_or(WireError::Kind(kind))?;
    let mut payload = vec![0u8; length - HEADER];
    from.read_exact(&mut payload)?;
    Ok(Some(Frame { channel: u32::from_be_bytes([a, b, c, d]), kind, payload }))
}

/// Writes one frame with a single `write_all`, so that frames of several threads never mix under a
/// lock.
pub fn write_frame(to: &mut impl Write, channel: u32, kind: Kind, payload: &[u8]) -> Result<(), WireError> {
    if payload.len() > MAX_PAYLOAD {
        return Err(WireError::Payload(payload.len()));
    }
    let length = u32::try_from(HEADER + payload.len()).map_err(|_| WireError::Payload(payload.len()))?;
    let mut bytes = Vec::with_capacity(4 + HEADER + payload.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&channel.to_be_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(payload);
    to.write_all(&bytes)?;
    to.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_sent() {
        let mut stream = Vec::new();
        write_frame(&mut stream, 7, Kind::Stdout, b"hello").unwrap();
        write_frame(&mut stream, u32::MAX, Kind::Data, b"").unwrap();
        write_frame(&mut stream, 0, Kind::Put, &vec![3u8; MAX_PAYLOAD]).unwrap();
        let mut from = stream.as_slice();
        let first = read_frame(&mut from).unwrap().unwrap();
        assert_eq!(first, Frame { channel: 7, kind: Kind::Stdout, payload: b"hello".to_vec() });
        let second = read_frame(&mut from).unwrap().unwrap();
        assert_eq!((second.channel, second.kind, second.payload.len()), (u32::MAX, Kind::Data, 0));
        assert_eq!(read_frame(&mut from).unwrap().unwrap().payload.len(), MAX_PAYLOAD);
        assert!(read_frame(&mut from).unwrap().is_none());
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_allocated() {
        for length in [0u32, 4, u32::try_from(HEADER + MAX_PAYLOAD + 1).unwrap(), u32::MAX] {
            let bytes = length.to_be_bytes();
            assert!(matches!(read_frame(&mut bytes.as_slice()), Err(WireError::Length(_))), "{length}");
        }
    }

    #[test]
    fn an_oversize_payload_is_not_sent() {
        let mut stream = Vec::new();
        let err = write_frame(&mut stream, 1, Kind::Data, &vec![0u8; MAX_PAYLOAD + 1]).unwrap_err();
        assert!(matches!(err, WireError::Payload(_)));
        assert!(stream.is_empty());
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        let bytes = [0, 0, 0, 5, 0, 0, 0, 1, 99];
        assert!(matches!(read_frame(&mut bytes.as_slice()), Err(WireError::Kind(99))));
    }

    #[test]
    fn every_cut_inside_a_frame_is_an_error_and_not_an_end() {
        let mut stream = Vec::new();
        write_frame(&mut stream, 1, Kind::Spawn, b"abc").unwrap();
        for cut in 1..stream.len() {
            assert!(matches!(read_frame(&mut &stream[..cut]), Err(WireError::Io(_))), "cut at {cut}");
        }
    }

    #[test]
    fn every_kind_survives_its_byte() {
        for byte in 0..=u8::MAX {
            if let Some(kind) = Kind::from_byte(byte) {
                assert_eq!(kind as u8, byte);
            }
        }
    }
}

//! One JSON object per line, over a stream whose other end may be slow, hostile or gone.
//!
//! What must never happen here: more memory for a line than [`LINE_BYTES_MAX`]; a part of a line
//! lost because a read timed out in its middle; the text of a line printed (it may be a secret).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;

use crate::clock;
use crate::wire::LINE_BYTES_MAX;

/// Reason why there is no line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// The other end has closed.
    #[error("the other end has closed the connection")]
    Closed,
    /// The line is longer than [`LINE_BYTES_MAX`].
    #[error("a line longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// Reading or writing failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
}

/// Reads lines. The part of a line that came before a timeout is kept for the next call.
pub(crate) struct LineReader {
    stream: UnixStream,
    kept: Vec<u8>,
    /// Number of bytes of `kept` that are known to hold no newline.
    searched: usize,
}

impl std::fmt::Debug for LineReader {
    /// Leaves out the received bytes: they may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineReader").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl LineReader {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, kept: Vec::new(), searched: 0 }
    }

    /// Returns the stream.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns `true` if a part of a line has come.
    pub(crate) fn is_in_line(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the next line without its newline; `None` when no line was complete within `wait`.
    pub(crate) fn next(&mut self, wait: Duration) -> Result<Option<Vec<u8>>, LineError> {
        let until = clock::instant() + wait;
        loop {
            if let Some(at) = self.kept[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.kept.split_off(self.searched + at + 1);
                let mut line = std::mem::replace(&mut self.kept, rest);
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.kept.len();
            if self.kept.len() > LINE_BYTES_MAX {
                return Err(LineError::TooLong);
            }
            let left = until.saturating_duration_since(clock::instant());
            // A timeout of zero would mean "for ever".
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(LineError::Io)?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Err(LineError::Closed),
                Ok(n) => self.kept.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) => return Err(LineError::Io(error)),
            }
        }
    }
}

/// Writes one value as a line. The stream's write timeout bounds it.
pub(crate) fn write(mut stream: &UnixStream, value: &impl Serialize) -> Result<(), LineError> {
    let mut line = serde_json::to_vec(value).map_err(|error| LineError::Io(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LineError::Closed,
        _ => LineError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn lines_come_whole_in_whatever_parts_they_are_sent() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut reader = LineReader::new(far);
        near.write_all(b"{\"a\"").unwrap();
        assert_eq!(reader.next(Duration::from_millis(1)).unwrap(), None);
        near.write_all(b":1}\n\nhalf").unwrap();
        assert_eq!(reader.next(SOON).unwrap().unwrap(), b"{\"a\":1}");
        assert_eq!(reader.next(SOON).unwrap().unwrap(), b"");
        drop(near);
        assert!(matches!(reader.next(SOON), Err(LineError::Closed)));
    }

    #[test]
    fn a_line_without_an_end_is_refused_and_costs_no_more() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut reader = LineReader::new(far);
        let sender = std::thread::spawn(move || {
            let block = vec![b'x'; 65536];
            // Ends with an error once the reader has gone.
            while (&near).write_all(&block).is_ok() {}
        });
        assert!(matches!(reader.next(SOON), Err(LineError::TooLong)));
        assert!(reader.kept.len() <= LINE_BYTES_MAX + 4096);
        drop(reader);
        sender.join().unwrap();
    }
}

//! Entries of systemd's journal with fields of their own, over its socket (systemd's "Native
//! Journal Protocol"). A line on standard error has one field, the text.
//!
//! What must never happen here: a caller that waits for the journal; a value that makes a field.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal's socket.
#[derive(Debug)]
pub struct Journal(UnixDatagram);

impl Journal {
    /// The journal that has this process's standard error. `None` in a shell, a container or a
    /// test, where the journal is somebody else's.
    pub fn of_stderr() -> Option<&'static Self> {
        static OPEN: OnceLock<Option<Journal>> = OnceLock::new();
        let open = || if has_stderr() { Self::open(Path::new(SOCKET)).ok() } else { None };
        OPEN.get_or_init(open).as_ref()
    }

    /// Connects to the journal at this socket.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let journal = UnixDatagram::unbound()?;
        journal.connect(socket)?;
        journal.set_nonblocking(true)?;
        Ok(Self(journal))
    }

    /// Sends one entry. Names consist of capital letters, digits and `_`, and begin with a letter;
    /// one that occurs twice has both values. Fails, instead of waiting, if the journal does not
    /// take the entry now, or if it is longer than a datagram may be.
    pub fn send(&self, fields: &[(&str, String)]) -> io::Result<()> {
        self.0.send(&entry(fields))?;
        Ok(())
    }
}

/// Says whether standard error leads to the journal: `JOURNAL_STREAM` then names its device and
/// inode. The variable alone is inherited by programs whose standard error leads elsewhere.
fn has_stderr() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stream = std::fs::metadata("/proc/self/fd/2");
    stream.is_ok_and(|stream| named == format!("{}:{}", stream.dev(), stream.ino()))
}

/// The fields as one datagram. A value with a line feed goes with its length.
fn entry(fields: &[(&str, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            bytes.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
        } else {
            bytes.push(b'=');
        }
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_datagram_whose_values_make_no_field() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let journald = UnixDatagram::bind(&socket).unwrap();
        let journal = Journal::open(&socket).unwrap();
        let forged = "two\nMOORING_STATUS=200";
        journal.send(&[("MESSAGE", "call".to_owned()), ("MOORING_PROBLEM", forged.to_owned())]).unwrap();
        let mut wanted = b"MESSAGE=call\nMOORING_PROBLEM\n".to_vec();
        wanted.extend_from_slice(&22_u64.to_le_bytes());
        wanted.extend_from_slice(b"two\nMOORING_STATUS=200\n");
        let mut bytes = [0; 256];
        let length = journald.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], wanted.as_slice());
        assert_eq!(forged.len(), 22);
    }

    #[test]
    fn a_journal_that_has_gone_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        assert!(Journal::open(&socket).is_err());
        let journald = UnixDatagram::bind(&socket).unwrap();
        let journal = Journal::open(&socket).unwrap();
        // Nobody reads: the socket's queue is full some time, and the sender does not wait.
        let sent = (0..100_000).find(|_| journal.send(&[("MESSAGE", "call".to_owned())]).is_err());
        assert!(sent.is_some(), "a queue without an end");
        drop(journald);
        assert!(journal.send(&[("MESSAGE", "call".to_owned())]).is_err());
    }
}

//! Kernel uevents: block devices that come, go and change.
//!
//! What must never happen here: a message taken that the kernel did not send; a malformed one that
//! stops the stream.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use crate::netlink::{EVENT_BUFFER_BYTES, MESSAGE_BYTES_MAX, Netlink};

/// Multicast group of the kernel's own events; group 2 is udev's.
const GROUP: u32 = 1;

/// One kernel event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    /// Action: `add`, `remove`, `change`, …
    pub action: String,
    /// Path below `/sys`, with its leading `/`.
    pub devpath: String,
    /// Values of all keys, `ACTION` and `DEVPATH` included.
    pub keys: BTreeMap<String, String>,
}

/// Item of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UeventItem {
    /// An event.
    Event(Uevent),
    /// Events were lost (ENOBUFS): look at sysfs.
    Overrun,
}

/// The stream of kernel events, with one reader.
pub trait Uevents: Send {
    /// Returns the next event; `None` when none came within `wait`. Malformed and foreign messages
    /// are skipped.
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno>;
}

/// Parses a datagram, `add@/devices/…\0ACTION=add\0DEVPATH=/devices/…\0…\0`. `None` for one that is
/// malformed, cut short, of udev's other format, or contradicts itself. Bytes that are no UTF-8
/// become U+FFFD. Of two equal keys the first counts, which is the kernel's own (drivers add theirs
/// behind it).
pub fn parse_uevent(datagram: &[u8]) -> Option<Uevent> {
    let mut parts = datagram.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let head = String::from_utf8_lossy(parts.next()?);
    let (action, devpath) = head.split_once('@')?;
    let mut keys = BTreeMap::new();
    for part in parts {
        let text = String::from_utf8_lossy(part);
        let (key, value) = text.split_once('=')?;
        keys.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let same = |key: &str, value: &str| keys.get(key).is_some_and(|found| found == value);
    let sound = !action.is_empty() && devpath.starts_with('/');
    (sound && same("ACTION", action) && same("DEVPATH", devpath)).then(|| Uevent {
        action: action.to_owned(),
        devpath: devpath.to_owned(),
        keys,
    })
}

/// Events of this machine's kernel.
#[derive(Debug)]
pub struct KernelUevents {
    socket: Netlink,
    buffer: Vec<u8>,
}

impl KernelUevents {
    /// Subscribes; from here on no event is missed without an [`UeventItem::Overrun`]. Needs no
    /// capability, but a network namespace that belongs to the initial user namespace: elsewhere it
    /// hears little.
    pub fn open() -> Result<Self, Errno> {
        let socket = Netlink::open(SockProtocol::NetlinkKObjectUEvent, 0, GROUP)?;
        socket.widen(EVENT_BUFFER_BYTES)?;
        Ok(Self { socket, buffer: vec![0; MESSAGE_BYTES_MAX] })
    }
}

impl Uevents for KernelUevents {
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno> {
        let begun = Instant::now();
        loop {
            let left = wait.saturating_sub(begun.elapsed());
            match self.socket.receive(&mut self.buffer, left) {
                Ok(None) => return Ok(None),
                Ok(Some(datagram)) => {
                    if let Some(event) = parse_uevent(datagram) {
                        return Ok(Some(UeventItem::Event(event)));
                    }
                    tracing::debug!(bytes = datagram.len(), "a malformed uevent");
                }
                Err(Errno::ENOBUFS) => return Ok(Some(UeventItem::Overrun)),
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DISK: &str = "/devices/platform/host3/session1/target3:0:0/3:0:0:5/block/sdb";

    fn datagram(head: &str, keys: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [head].iter().chain(keys) {
            bytes.extend_from_slice(part.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn disk(extra: &[&str]) -> Vec<u8> {
        let devpath = format!("DEVPATH={DISK}");
        let keys: Vec<&str> =
            ["ACTION=add", devpath.as_str()].into_iter().chain(extra.iter().copied()).collect();
        datagram(&format!("add@{DISK}"), &keys)
    }

    #[test]
    fn an_event_has_its_keys() {
        let extra = ["SUBSYSTEM=block", "MAJOR=8", "MINOR=16", "DEVNAME=sdb", "X=a=b", "EMPTY="];
        let event = parse_uevent(&disk(&extra)).unwrap();
        assert_eq!((event.action.as_str(), event.devpath.as_str()), ("add", DISK));
        let key = |name: &str| event.keys.get(name).map(String::as_str);
        assert_eq!((key("ACTION"), key("DEVNAME")), (Some("add"), Some("sdb")));
        assert_eq!((key("X"), key("EMPTY"), key("DISKSEQ")), (Some("a=b"), Some(""), None));
        assert_eq!(event.keys.len(), 8);
    }

    #[test]
    fn a_driver_cannot_replace_the_kernels_keys() {
        let event = parse_uevent(&disk(&["DEVNAME=sdb", "ACTION=remove", "DEVNAME=sda"])).unwrap();
        assert_eq!((event.keys["ACTION"].as_str(), event.keys["DEVNAME"].as_str()), ("add", "sdb"));
    }

    #[test]
    fn what_is_malformed_is_none() {
        let whole = disk(&["SUBSYSTEM=block"]);
        assert_eq!(parse_uevent(&whole[..whole.len() - 1]), None, "cut");
        for bytes in [
            &b""[..],
            b"\0",
            b"libudev\0\xfe\xed\xca\xfe\0",
            b"add@/devices/x\0",
            b"add@/devices/x\0ACTION=add\0",
            b"add@/devices/x\0ACTION=remove\0DEVPATH=/devices/x\0",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/y\0",
            b"add@devices/x\0ACTION=add\0DEVPATH=devices/x\0",
            b"@/devices/x\0ACTION=\0DEVPATH=/devices/x\0",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0NOVALUE\0",
        ] {
            assert_eq!(parse_uevent(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
        let odd = b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SERIAL=\xff\0";
        assert_eq!(parse_uevent(odd).unwrap().keys["SERIAL"], "\u{fffd}");
    }

    #[test]
    fn the_stream_opens_and_its_wait_ends() {
        let mut events = KernelUevents::open().unwrap();
        // Whatever events come meanwhile: each is an answer, not an error.
        for _ in 0..3 {
            events.next(Duration::from_millis(1)).unwrap();
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_uevent(&bytes);
        }

        #[test]
        fn no_cut_and_no_noise_panics(at in 0_usize..200, byte in any::<u8>(), cut in 0_usize..200) {
            let mut bytes = disk(&["SUBSYSTEM=block", "MAJOR=8"]);
            let length = bytes.len();
            bytes[at % length] = byte;
            if let Some(event) = parse_uevent(&bytes) {
                prop_assert_eq!(&event.keys["ACTION"], &event.action);
                prop_assert_eq!(&event.keys["DEVPATH"], &event.devpath);
            }
            let _ = parse_uevent(&bytes[..cut % length]);
        }
    }
}

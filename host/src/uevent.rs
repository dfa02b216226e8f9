//! Kernel uevents: block devices that come, go and change.
//!
//! What must never happen here: a message taken that the kernel did not send; a malformed one that stops the stream.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::errno::Errno;

/// One kernel event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`, …
    pub action: String,
    /// Below `/sys`, with its leading `/`.
    pub devpath: String,
    /// All keys, `ACTION` and `DEVPATH` included.
    pub keys: BTreeMap<String, String>,
}

/// What a stream brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UeventItem {
    /// An event.
    Event(Uevent),
    /// Events were lost (ENOBUFS): look at sysfs.
    Overrun,
}

/// The stream of kernel events. One reader.
pub trait Uevents: Send {
    /// The next event; `None` when none came within `wait`. Malformed and foreign messages are skipped.
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno>;
}

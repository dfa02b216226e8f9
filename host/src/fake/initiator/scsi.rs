//! Disks that come and go: scans, probes, removal, rescans, and the SCSI commands of a session.
//!
//! What must never happen here: a command that passes a blocked session; a scan that repairs a disk
//! which is there already (no kernel does).

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;

use super::FakeHost;
use super::disk::{Command, Outcome};
use super::state::{ConnectionState, Kernel, ScsiDisk, Session, SessionState, TargetState};
use crate::{Uevent, UeventItem};

/// Read-ahead in sectors that Linux sets for a disk which names no optimal size.
const READ_AHEAD_DEFAULT: u32 = 256;

/// Reason why a command did not return data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// CHECK CONDITION.
    Sense(u8, u8, u8),
    /// The session or the disk has gone, or has been given up.
    Transport,
}

impl Failure {
    /// Returns the error number of a read or write.
    pub(super) fn errno(self) -> Errno {
        match self {
            // DATA PROTECT is a target error (EREMOTEIO); so is "logical unit not supported", but
            // it was observed as EIO.
            Self::Sense(7, ..) => Errno::EREMOTEIO,
            Self::Sense(..) | Self::Transport => Errno::EIO,
        }
    }
}

/// Sender of a command: a scan, or a disk that may have been deleted or set offline meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Scan,
    Disk(u64),
}

impl FakeHost {
    /// Sends a command over a session. Waits while the session is blocked, as every command does.
    pub(super) fn command(
        &self,
        sid: u32,
        lun: u64,
        sender: Sender,
        command: Command<'_>,
    ) -> Result<Outcome, Failure> {
        let mut kernel = self.inner.lock();
        loop {
            let Some(session) = kernel.sessions.get(&sid) else { return Err(Failure::Transport) };
            if !session.takes_commands(lun, sender) {
                return Err(Failure::Transport);
            }
            let up = session.connection.as_ref().filter(|connection| {
                connection.state == ConnectionState::Up && session.state == SessionState::LoggedIn
            });
            let way = up.filter(|_| !session.logging_out).and_then(|connection| {
                let socket = connection.socket.as_ref()?;
                Some((socket.target.clone(), socket.local, socket.id))
            });
            let Some((target, local, id)) = way else {
                kernel = self.inner.wait(kernel);
                continue;
            };
            drop(kernel);
            // A socket to a peer that is no fake target: nothing could answer.
            let Some(target) = target else { return Err(Failure::Transport) };
            match target.command(local, lun, command) {
                Outcome::Gone => {}
                Outcome::Sense(key, code, qualifier) => return Err(Failure::Sense(key, code, qualifier)),
                outcome => return Ok(outcome),
            }
            // The target has dropped the session; the kernel is about to notice, unless it never
            // had one.
            kernel = self.inner.lock();
            let waits = |kernel: &Kernel| {
                let session = kernel.sessions.get(&sid).filter(|session| session.takes_commands(lun, sender));
                let connection = session.and_then(|session| session.connection.as_ref());
                connection.and_then(|connection| connection.socket.as_ref()).is_some_and(|now| now.id == id)
            };
            while waits(&kernel) {
                kernel = self.inner.wait(kernel);
            }
        }
    }

    /// Handles `<channel> <id> <lun>` written to a host's `scan`. Returns when the scan is over;
    /// the disks that it found are in sysfs.
    pub(super) fn scan(&self, host: u32, text: &str) -> Result<(), Errno> {
        let mut numbers = text.split_whitespace().map(|word| match word {
            "-" => Ok(None),
            _ => number(word).map(Some),
        });
        let mut next = || numbers.next().ok_or(Errno::EINVAL)?;
        let (channel, id, lun) = (next()?, next()?, next()?);
        if next().is_ok() {
            return Err(Errno::EINVAL);
        }
        let sid = self.inner.change(|kernel| {
            kernel.scans.push(text.trim().to_owned());
            let session = kernel.sessions.values().find(|session| session.ids.host == host)?;
            // Anything but a session that is logged in is passed over, without an error.
            let scanned = session.state == SessionState::LoggedIn
                && matches!(session.target_state, TargetState::Allocated | TargetState::Scanned);
            scanned.then_some(session.ids.sid)
        });
        let Some(sid) = sid else { return Ok(()) };
        if channel.unwrap_or(0) != 0 || id.unwrap_or(0) != 0 {
            return Ok(());
        }
        let luns = match lun {
            Some(lun) => vec![lun],
            None => self.report_luns(sid),
        };
        for lun in luns {
            self.scan_lun(sid, lun);
        }
        self.inner.change(|kernel| {
            if let Ok(session) = kernel.session(sid)
                && session.target_state == TargetState::Allocated
            {
                session.target_state = TargetState::Scanned;
            }
        });
        Ok(())
    }

    fn report_luns(&self, sid: u32) -> Vec<u64> {
        let way = self.inner.lock().session(sid).ok().and_then(|session| {
            let socket = session.connection.as_ref()?.socket.as_ref()?;
            Some((socket.target.clone()?, socket.local))
        });
        way.map(|(target, local)| target.report_luns(local)).unwrap_or_default()
    }

    fn scan_lun(&self, sid: u32, lun: u64) {
        let known =
            self.inner.lock().sessions.get(&sid).is_none_or(|session| session.disks.contains_key(&lun));
        if known || self.command(sid, lun, Sender::Scan, Command::Probe).is_err() {
            return;
        }
        let Some(look) = self.look(sid, lun, Sender::Scan) else { return };
        self.inner.change(|kernel| {
            let held = kernel.probes_held;
            let Ok(session) = kernel.session(sid) else { return };
            let disk = ScsiDisk {
                block: None,
                sequence: 0,
                size: look.size,
                write_protected: look.write_protected,
                set_read_only: false,
                read_ahead: READ_AHEAD_DEFAULT,
                offline: false,
                page_83: look.page_83,
                page_80: look.page_80,
            };
            session.disks.insert(lun, disk);
            let (path, keys) = (session.path(lun), vec![("SUBSYSTEM", "scsi".to_owned())]);
            kernel.announce("add", path, keys);
            if !held {
                kernel.probe(sid, lun);
            }
        });
    }

    /// Reads a disk's own present answers; `None` if a command fails.
    fn look(&self, sid: u32, lun: u64, sender: Sender) -> Option<Look> {
        let page = |page| match self.command(sid, lun, sender, Command::Inquiry(page)) {
            Ok(Outcome::Good(bytes)) => Some(bytes),
            _ => None,
        };
        let Ok(Outcome::Capacity(size, write_protected)) = self.command(sid, lun, sender, Command::Capacity)
        else {
            return None;
        };
        Some(Look { size, write_protected, page_83: page(0x83)?, page_80: page(0x80)? })
    }

    /// Handles `delete`: flushes the disk unless it is blocked, and removes it.
    pub(super) fn delete(&self, sid: u32, lun: u64) {
        let flush = self.inner.change(|kernel| {
            let session = kernel.sessions.get_mut(&sid)?;
            let disk = session.disks.get(&lun)?;
            Some((disk.sequence, session.disk_state(disk) == "running"))
        });
        let Some((sequence, flush)) = flush else { return };
        if flush && sequence > 0 {
            let _ = self.command(sid, lun, Sender::Disk(sequence), Command::Flush);
        }
        self.inner.change(|kernel| {
            let session = kernel.sessions.get(&sid);
            if session
                .and_then(|session| session.disks.get(&lun))
                .is_some_and(|disk| disk.sequence == sequence)
            {
                kernel.remove(sid, lun);
            }
        });
    }

    /// Removes all disks of a session.
    pub(super) fn remove_disks(&self, sid: u32) {
        loop {
            let lun =
                self.inner.lock().sessions.get(&sid).and_then(|session| session.disks.keys().next().copied());
            let Some(lun) = lun else { return };
            self.delete(sid, lun);
        }
    }

    /// Handles `rescan`: reads size, write protection and identity again, if the disk runs.
    pub(super) fn rescan(&self, sid: u32, lun: u64) {
        let sequence = {
            let kernel = self.inner.lock();
            let session = kernel.sessions.get(&sid);
            let running = session.and_then(|session| {
                let disk = session.disks.get(&lun)?;
                (session.disk_state(disk) == "running").then_some(disk.sequence)
            });
            let Some(sequence) = running else { return };
            sequence
        };
        let Some(look) = self.look(sid, lun, Sender::Disk(sequence)) else { return };
        self.inner.change(|kernel| {
            let Some(session) = kernel.sessions.get_mut(&sid) else { return };
            let path = session.path(lun);
            let Some(disk) = session.disks.get_mut(&lun).filter(|disk| disk.sequence == sequence) else {
                return;
            };
            let resized = disk.size != look.size;
            disk.size = look.size;
            disk.write_protected = look.write_protected;
            disk.page_83 = look.page_83;
            disk.page_80 = look.page_80;
            if let Some(name) = disk.block.clone().filter(|_| resized) {
                let mut keys = block_keys(&name, sequence);
                keys.push(("RESIZE", "1".to_owned()));
                kernel.announce("change", format!("{path}/block/{name}"), keys);
            }
        });
    }
}

struct Look {
    size: u64,
    write_protected: bool,
    page_83: Vec<u8>,
    page_80: Vec<u8>,
}

/// Parses a number as `strtoull` with base 0 does.
fn number(word: &str) -> Result<u64, Errno> {
    let parsed = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if word.len() > 1 && word.starts_with('0') => u64::from_str_radix(word, 8),
        None => word.parse(),
    };
    parsed.map_err(|_| Errno::EINVAL)
}

impl Session {
    /// Returns `true` if a command may still come through, now or later.
    fn takes_commands(&self, lun: u64, sender: Sender) -> bool {
        if self.terminated || self.doomed || self.state == SessionState::Free {
            return false;
        }
        match sender {
            Sender::Scan => true,
            Sender::Disk(sequence) => {
                self.disks.get(&lun).is_some_and(|disk| disk.sequence == sequence && !disk.offline)
            }
        }
    }

    /// Returns the SCSI device's path below `/sys`, with its `/`.
    pub(super) fn path(&self, lun: u64) -> String {
        let (host, sid) = (self.ids.host, self.ids.sid);
        format!("/devices/platform/host{host}/session{sid}/target{host}:0:0/{}", self.address(lun))
    }
}

fn block_keys(name: &str, sequence: u64) -> Vec<(&'static str, String)> {
    vec![
        ("SUBSYSTEM", "block".to_owned()),
        ("MAJOR", "8".to_owned()),
        ("MINOR", minor(name).to_string()),
        ("DEVNAME", name.to_owned()),
        ("DEVTYPE", "disk".to_owned()),
        ("DISKSEQ", sequence.to_string()),
    ]
}

/// Returns the first minor number of a disk: sixteen each.
pub(super) fn minor(name: &str) -> u32 {
    let letters = name.trim_start_matches("sd").bytes();
    letters.fold(0, |index, letter| index * 26 + u32::from(letter.saturating_sub(b'a')) + 1).saturating_sub(1)
        * 16
}

impl Kernel {
    /// Lets the disk driver take a scanned device: it gets a name and a sequence number.
    pub(super) fn probe(&mut self, sid: u32, lun: u64) {
        let name = self.free_name();
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        let Some(session) = self.sessions.get_mut(&sid) else { return };
        let path = session.path(lun);
        let Some(disk) = session.disks.get_mut(&lun) else { return };
        disk.block = Some(name.clone());
        disk.sequence = sequence;
        self.announce("add", format!("{path}/block/{name}"), block_keys(&name, sequence));
    }

    pub(super) fn remove(&mut self, sid: u32, lun: u64) {
        let Some(session) = self.sessions.get_mut(&sid) else { return };
        let path = session.path(lun);
        let Some(disk) = session.disks.remove(&lun) else { return };
        if let Some(name) = disk.block {
            self.announce("remove", format!("{path}/block/{name}"), block_keys(&name, disk.sequence));
        }
        self.announce("remove", path, vec![("SUBSYSTEM", "scsi".to_owned())]);
    }

    fn announce(&mut self, action: &str, devpath: String, more: Vec<(&str, String)>) {
        self.last_event += 1;
        let mut keys: BTreeMap<_, _> = more.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        keys.insert("ACTION".to_owned(), action.to_owned());
        keys.insert("DEVPATH".to_owned(), devpath.clone());
        keys.insert("SEQNUM".to_owned(), self.last_event.to_string());
        self.tell_uevent(&UeventItem::Event(Uevent { action: action.to_owned(), devpath, keys }));
    }
}

/// Makes the compiler check the types that threads share.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<super::state::Inner>>();
};

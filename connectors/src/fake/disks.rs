//! Block devices of the world, and the checks when one gets a path.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_host::{DiskError, DiskOp, DiskUser, Disks, Errno, Holder, Usage};
use mooring_model::VolumeId;

use super::door::Door;
use super::{Sdev, State, Unit};
use crate::links::LinkName;
use crate::wire::SessionState;

/// Time that an INQUIRY hangs before it checks again whether the world has ended.
const HANG_SLICE: Duration = Duration::from_millis(20);

pub(super) fn page(code: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[0, code, length[0], length[1]], body].concat()
}

pub(super) fn page83(unit: &Unit) -> Vec<u8> {
    let hex = unit.naa.as_str().as_bytes();
    let digit =
        |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
    let naa: Vec<u8> = hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    page(0x83, &[&[0x01, 0x03, 0, 16][..], &naa].concat())
}

impl State {
    /// Finds the disk behind a node, with its volume.
    fn disk(&mut self, path: &Path) -> Option<(VolumeId, &mut Sdev)> {
        let name = path.file_name()?.to_str()?.to_owned();
        self.hosts.values_mut().find_map(|host| {
            let volume = host.volume;
            host.sdevs.values_mut().find(|sdev| sdev.block && sdev.name == name).map(|sdev| (volume, sdev))
        })
    }

    /// Checks that nobody sends a disk a waiting request while its session is lost, if the caller
    /// could know that. A session may be lost between the answer that it is there and the request,
    /// and nobody can know that: the real kernel has this race too.
    fn check_not_lost(&mut self, volume: VolumeId, what: &str, device: &Path) {
        let lost = |state: &SessionState| *state != SessionState::LoggedIn;
        let is_lost = self.sessions.get(&volume).is_some_and(|(_, status)| lost(&status.state));
        if is_lost && self.told.get(&volume).is_none_or(lost) {
            self.violate(format!("{what} of {} while its session is lost", device.display()));
        }
    }

    /// Checks that a path for users leads to the right disk and nowhere else. A path of a
    /// connection that only reads must lead to a disk that refuses writes.
    pub(crate) fn check_link(&mut self, volume: VolumeId, link: LinkName, device: &Path) {
        let Some((owner, sdev)) = self.disk(device).map(|(owner, sdev)| (owner, sdev.clone())) else {
            return self.violate(format!("{link} -> {}: there is no such disk", device.display()));
        };
        let unit = self.targets.get(&owner).and_then(|target| target.unit.clone());
        let right = Unit::of(volume, 0);
        if owner != volume || unit.is_none_or(|unit| (unit.naa, unit.serial) != (right.naa, right.serial)) {
            self.violate(format!("{link} -> {}: another disk", sdev.name));
        }
    }
}

impl Door {
    fn on<T>(
        &self,
        op: DiskOp,
        path: &Path,
        work: impl FnOnce(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, DiskError> {
        let fail = |errno| DiskError { op, path: path.to_owned(), errno, detail: String::new() };
        self.look().map_err(fail)?;
        work(&mut self.world().lock()).unwrap_or(Err(Errno::ENXIO)).map_err(fail)
    }

    fn change_disk(
        &self,
        op: DiskOp,
        path: &Path,
        what: String,
        work: impl FnOnce(&mut State) -> Result<(), Errno>,
    ) -> Result<(), DiskError> {
        let fail = |errno| DiskError { op, path: path.to_owned(), errno, detail: String::new() };
        if self.world().lock().refused == Some(op) {
            return Err(fail(Errno::EACCES));
        }
        self.act(what, || self.world().change(work)).and_then(|result| result).map_err(fail)
    }
}

impl Door {
    /// Writes out and drops the pages of a disk.
    fn drop_by(&self, op: DiskOp, device: &Path, word: &str) -> Result<(), DiskError> {
        self.change_disk(op, device, format!("{word} {}", device.display()), |state| {
            let volume = state.disk(device).ok_or(Errno::ENXIO)?.0;
            state.check_not_lost(volume, "a flush", device);
            // Only fsync returns the error.
            let fails = op == DiskOp::Flush && std::mem::take(&mut state.write_back_fails);
            let sdev = state.disk(device).ok_or(Errno::ENXIO)?.1;
            (sdev.cached, sdev.dirty) = (false, false);
            if fails { Err(Errno::EIO) } else { Ok(()) }
        })
    }
}

impl Disks for Door {
    fn inquiry(&self, device: &Path, code: u8) -> Result<Vec<u8>, DiskError> {
        let world = self.world().clone();
        let mut state = world.lock();
        // A disk that goes releases the callers that wait for it.
        while state.hang && !self.is_dead() && state.disk(device).is_some() {
            state = world.wait(state, HANG_SLICE);
        }
        drop(state);
        self.on(DiskOp::Inquiry(code), device, |state| {
            let volume = state.disk(device)?.0;
            state.check_not_lost(volume, "an INQUIRY", device);
            let unit = state.targets.get(&volume).and_then(|target| target.unit.clone());
            Some(match unit {
                None => Err(Errno::EIO),
                Some(unit) if code == 0x83 => Ok(page83(&unit)),
                Some(unit) => Ok(page(code, unit.serial.as_bytes())),
            })
        })
    }

    fn size(&self, device: &Path) -> Result<u64, DiskError> {
        self.on(DiskOp::Size, device, |state| Some(Ok(state.disk(device)?.1.size)))
    }

    fn sequence(&self, device: &Path) -> Result<u64, DiskError> {
        self.on(DiskOp::Sequence, device, |state| Some(Ok(state.disk(device)?.1.sequence)))
    }

    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError> {
        let what = format!("read-only {} = {read_only}", device.display());
        self.change_disk(DiskOp::SetReadOnly, device, what, |state| {
            state.disk(device).ok_or(Errno::ENXIO)?.1.read_only = read_only;
            Ok(())
        })
    }

    fn read_only(&self, device: &Path) -> Result<bool, DiskError> {
        self.on(DiskOp::GetReadOnly, device, |state| {
            let sdev = state.disk(device)?.1;
            Some(Ok(sdev.read_only || sdev.protected))
        })
    }

    fn flush(&self, device: &Path) -> Result<(), DiskError> {
        self.drop_by(DiskOp::Flush, device, "flush")
    }

    fn drop_pages(&self, device: &Path) -> Result<(), DiskError> {
        self.drop_by(DiskOp::DropPages, device, "drop")
    }

    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError> {
        let what = format!("read-ahead {} = {sectors}", device.display());
        self.change_disk(DiskOp::SetReadAhead, device, what, |state| {
            state.disk(device).ok_or(Errno::ENXIO)?.1.read_ahead = sectors;
            Ok(())
        })
    }

    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError> {
        self.on(DiskOp::GetReadAhead, device, |state| Some(Ok(state.disk(device)?.1.read_ahead)))
    }

    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError> {
        self.on(DiskOp::Holders, device, |state| Some(Ok(state.disk(device)?.1.holders.clone())))
    }

    fn usage(&self, devices: &[PathBuf]) -> Result<Usage, DiskError> {
        let mut usage = Usage::default();
        for device in devices {
            let Ok(holders) = self.holders(device) else { continue };
            let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let users = holders.iter().filter_map(Holder::as_user);
            let named = users.map(|user| DiskUser { device: name.clone(), user });
            usage.disks.insert(device.clone(), named.collect());
        }
        Ok(usage)
    }

    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError> {
        self.on(DiskOp::Unwritten, device, |state| {
            state.disk(device)?;
            Some(Ok(state.unwritten))
        })
    }
}

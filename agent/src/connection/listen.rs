//! Two threads that listen: to `mooring-sessiond`, and to the kernel's uevents. They wake passes,
//! and decide nothing.
//!
//! What must never happen here: a decision from a notice: a pass looks for itself; a thread that
//! ends because its source has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mooring_connectors::SessionChanges;
use mooring_connectors::client::{ClientError, SessionEvent};
use mooring_connectors::wire::{FcTarget, SessionStatus};
use mooring_host::{Uevent, UeventItem, Uevents};
use mooring_model::{Chain, Lun, VolumeId};

use super::cell::Cell;
use super::{Connections, SESSIOND_RETRY, Shared};
use crate::engine::lock;

/// Interval at which a listener checks whether the connections still exist.
const LIVENESS: Duration = Duration::from_secs(1);

/// The kernel's subsystem for ports that an adapter has met. It reports that they come and go, but
/// not their states.
const REMOTE_PORTS: &str = "fc_remote_ports";

/// Starts both threads. They end when the last owner of the connections has ended.
pub(super) fn start(connections: &Connections, uevents: Option<Box<dyn Uevents>>) {
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(work) {
            tracing::error!(%error, name, "cannot start a listener's thread; changes are found by the resync");
        }
    };
    let weak = Arc::downgrade(&connections.shared);
    spawn("watch-sessiond", Box::new(move || watch_sessions(&weak)));
    if let Some(uevents) = uevents {
        let weak = Arc::downgrade(&connections.shared);
        spawn("watch-uevents", Box::new(move || watch_uevents(&weak, uevents)));
    }
}

fn upgrade(weak: &Weak<Shared>) -> Option<Connections> {
    weak.upgrade().map(|shared| Connections { shared })
}

fn watch_sessions(weak: &Weak<Shared>) {
    let mut said_down = false;
    while let Some(connections) = upgrade(weak) {
        let watched = connections.shared.parts.sessions.watch();
        drop(connections);
        let ended = watched.and_then(|mut changes| {
            said_down = false;
            listen(weak, &mut *changes)
        });
        let Err(error) = ended else { return };
        if !said_down {
            tracing::warn!(error = %Chain(&error), "mooring-sessiond cannot be listened to; tried again each second");
            said_down = true;
        }
        if let Some(connections) = upgrade(weak) {
            // Each connection reports the error. Nothing else follows from it.
            connections.wake_all();
        }
        std::thread::sleep(SESSIOND_RETRY);
    }
}

/// Listens until the stream ends with an error. `Ok` if the connections no longer exist.
fn listen(weak: &Weak<Shared>, changes: &mut dyn SessionChanges) -> Result<(), ClientError> {
    let mut first = Some(BTreeMap::new());
    loop {
        let mut told = BTreeMap::new();
        let mut wait = LIVENESS;
        // If a session changes several times, only the last state matters.
        while let Some(event) = changes.next(wait)? {
            wait = Duration::ZERO;
            match event {
                SessionEvent::Session(status) => {
                    if let Some(first) = &mut first {
                        first.insert(status.volume, (*status).clone());
                    }
                    told.insert(status.volume, Some(*status));
                }
                SessionEvent::Gone(volume) => {
                    if let Some(first) = &mut first {
                        first.remove(&volume);
                    }
                    told.insert(volume, None);
                }
                SessionEvent::Synced => {
                    let Some(connections) = upgrade(weak) else { return Ok(()) };
                    connections.synced(first.take().unwrap_or_default());
                }
            }
        }
        let Some(connections) = upgrade(weak) else { return Ok(()) };
        for (volume, status) in told {
            connections.told(volume, status.as_ref());
        }
    }
}

impl Connections {
    /// Takes the complete list of sessions, and wakes those who wait for `mooring-sessiond`.
    fn synced(&self, all: BTreeMap<VolumeId, SessionStatus>) {
        tracing::debug!(sessions = all.len(), "mooring-sessiond answers");
        for cell in self.cells() {
            let waits = {
                let state = cell.state();
                // Also a connection whose session went while nobody listened.
                let lost = state.seen().is_some() && !all.contains_key(&cell.id);
                state.kept_spec().is_some() && !state.turn.is_running() && (lost || !state.end().is_true())
            };
            if waits {
                self.wake(&cell);
            }
        }
        *lock(&self.shared.sessions) = all;
    }

    /// Takes the changed state of a session; `None` if it is gone.
    fn told(&self, volume: VolumeId, status: Option<&SessionStatus>) {
        {
            let mut sessions = lock(&self.shared.sessions);
            match status {
                Some(status) => sessions.insert(volume, status.clone()),
                None => sessions.remove(&volume),
            };
        }
        let cell = self.known_cell(volume).filter(|cell| cell.state().kept_spec().is_some());
        let Some(cell) = cell else {
            let report = status.map(mooring_connectors::orphan);
            return report.into_iter().for_each(|report| self.publish(report));
        };
        let news = cell.state().tell(status);
        if news {
            self.wake(&cell);
        }
    }

    /// The connection whose session has this SCSI host. A new session may be known to its pass
    /// before `mooring-sessiond` has reported it.
    fn cell_of_host(&self, host: u32) -> Option<Arc<Cell>> {
        let of_host = |status: &&SessionStatus| status.host == Some(host);
        let told = lock(&self.shared.sessions).values().find(of_host).map(|status| status.volume);
        match told {
            Some(volume) => self.known_cell(volume),
            None => {
                self.cells().into_iter().find(|cell| cell.state().seen().is_some_and(|seen| of_host(&seen)))
            }
        }
    }

    /// The connection whose disk has this place behind a Fibre Channel adapter.
    fn cell_of_unit(&self, place: Place) -> Option<Arc<Cell>> {
        let is_there = |cell: &Arc<Cell>| {
            let state = cell.state();
            state.seen().is_some_and(|seen| {
                let path =
                    seen.fc.as_ref().filter(|path| seen.host == Some(place.host) && path.lun == place.lun);
                path.is_some_and(|path| path.all.contains(&place.target))
            })
        };
        self.cells().into_iter().find(is_there)
    }

    /// Wakes every connection over Fibre Channel: a remote port was met, or is forgotten.
    fn rport(&self) {
        self.shared.parts.arrivals.tell();
        let is_over_fc = |cell: &Arc<Cell>| {
            let state = cell.state();
            let over_fc = state.spec().is_some_and(|spec| spec.fc.is_some());
            over_fc || state.seen().is_some_and(|seen| seen.fc.is_some())
        };
        for cell in self.cells().iter().filter(|cell| is_over_fc(cell)) {
            self.wake(cell);
        }
    }

    fn uevent(&self, event: &Uevent) {
        let subsystem = event.keys.get("SUBSYSTEM").map(String::as_str);
        let block = subsystem == Some("block");
        // The target reports a change: of its LUNs, or of a disk's identity or size.
        let attention = event.keys.contains_key("SDEV_UA");
        if subsystem == Some(REMOTE_PORTS) {
            return self.rport();
        }
        if !block && !attention {
            return;
        }
        self.shared.parts.arrivals.tell();
        let cell = match place_of(&event.devpath) {
            Some(place) => self.cell_of_unit(place),
            None => host_of(&event.devpath).and_then(|host| self.cell_of_host(host)),
        };
        let Some(cell) = cell else { return };
        let wakes = match event.action.as_str() {
            "add" => cell.state().arrive(),
            // A disk that a spec names does not go by itself.
            "remove" => Self::has_spec(&cell),
            _ => attention,
        };
        if wakes && self.is_kept(cell.id) {
            self.wake(&cell);
        }
    }
}

/// A logical unit behind an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    host: u32,
    target: FcTarget,
    lun: Lun,
}

/// The place of a disk behind a remote port, from its path:
/// `/devices/…/rport-3:0-1/target3:0:0/3:0:0:7/block/sdb`. `None` for other paths.
fn place_of(devpath: &str) -> Option<Place> {
    let mut names = devpath.split('/').skip_while(|name| !name.starts_with("rport-"));
    let address = names.nth(2)?;
    let mut numbers = address.split(':').map(|number| number.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let (host, channel, id, lun) = (next()?, next()?, next()?, next()?);
    Some(Place { host, target: FcTarget { channel, id }, lun: Lun(u16::try_from(lun).ok()?) })
}

/// The SCSI host in a device's path. `None` if there is none.
fn host_of(devpath: &str) -> Option<u32> {
    devpath.split('/').find_map(|name| name.strip_prefix("host")?.parse().ok())
}

fn watch_uevents(weak: &Weak<Shared>, mut uevents: Box<dyn Uevents>) {
    let mut said = false;
    loop {
        let item = uevents.next(LIVENESS);
        let Some(connections) = upgrade(weak) else { return };
        match item {
            Ok(None) => {}
            Ok(Some(UeventItem::Event(event))) => connections.uevent(&event),
            Ok(Some(UeventItem::Overrun)) => {
                tracing::warn!("uevents were lost: everything is looked at");
                connections.shared.parts.arrivals.tell();
                connections.wake_all();
            }
            Err(errno) => {
                if !said {
                    tracing::error!(
                        error = errno.desc(),
                        "uevents cannot be read; disks are found by looking"
                    );
                    said = true;
                }
                drop(connections);
                std::thread::sleep(LIVENESS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_behind_a_remote_port_is_told_by_its_whole_address() {
        let disk = "/devices/pci0000:00/0000:00:03.0/host3/rport-3:0-1/target3:0:2/3:0:2:7/block/sdb";
        let target = FcTarget { channel: 0, id: 2 };
        assert_eq!(place_of(disk), Some(Place { host: 3, target, lun: Lun(7) }));
        assert_eq!(host_of(disk), Some(3));
        let iscsi = "/devices/platform/host4/session1/target4:0:0/4:0:0:1/block/sda";
        assert_eq!((place_of(iscsi), host_of(iscsi)), (None, Some(4)));
        assert_eq!(place_of("/devices/host3/rport-3:0-1/fc_remote_ports/rport-3:0-1"), None);
    }
}

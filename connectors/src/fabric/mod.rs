//! Handles connections over Fibre Channel as sessions that need no keeper: the adapter logs in at
//! the ports that it sees, and the kernel keeps these logins. The task left is to know which volume
//! each disk belongs to: by a record for each volume, and a look at sysfs.
//!
//! One path is used: the one target port that this host's port sees of those that show the volume.
//! Mooring does not join two disks of one volume. Where there would be two, it refuses the
//! connection with the reason (decision 50). The path that was used once stays in use, whatever
//! comes beside it.
//!
//! What must never happen here: a call on a LUN that is not the record's; a remote port, a host or
//! its link touched; a record that goes before its disks.

mod ports;
mod record;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mooring_host::{Tree, TreeError};
use mooring_model::{Cure, VolumeId, Wwpn};

pub use ports::{FcHostPort, fc_host_ports};

use self::ports::{RemotePort, remote_ports};
use self::record::{Record, Records};
use crate::client::ClientError;
use crate::clock;
use crate::device::{self, Probe, Seat, Unit};
use crate::sessions::{SessionChanges, Sessions};
use crate::wire::{End, FcPath, FcTarget, SessionSpec, SessionState, SessionStatus};

/// Pause between two looks for the end of a disk.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The connections of a host over Fibre Channel.
#[derive(Clone)]
pub struct Fabric {
    sys: Arc<dyn Tree>,
    records: Records,
}

fn wrong(error: &TreeError) -> ClientError {
    ClientError::Fabric { text: error.to_string(), cure: Cure::Retry }
}

/// View of a record's ports.
struct Seen {
    /// SCSI host of this host's port; `None` if the port does not exist.
    host: Option<u32>,
    /// State of this host's port.
    state: String,
    remote: Vec<RemotePort>,
}

impl Seen {
    fn usable(&self) -> impl Iterator<Item = &RemotePort> {
        let online = self.state == "Online";
        self.remote.iter().filter(move |port| online && port.is_usable())
    }
}

/// Choice of the target port to use: one, none, or several of which none may be used.
enum Choice<'a> {
    One(&'a RemotePort, FcTarget),
    None,
    Many,
}

impl Fabric {
    /// Looks at this `/sys`, and keeps the records in this folder, which outlives a reboot.
    pub fn new(sys: Arc<dyn Tree>, folder: impl Into<PathBuf>) -> Self {
        Self { sys, records: Records::new(folder.into()) }
    }

    fn look(&self, record: &Record) -> Result<Seen, TreeError> {
        let ports = fc_host_ports(&*self.sys)?;
        let Some(own) = ports.into_iter().find(|port| port.name == record.route.port) else {
            return Ok(Seen { host: None, state: String::new(), remote: Vec::new() });
        };
        let remote = remote_ports(&*self.sys, own.host, &record.route.targets)?;
        Ok(Seen { host: Some(own.host), state: own.state, remote })
    }

    fn has_disk(&self, host: u32, target: FcTarget, record: &Record) -> Result<bool, TreeError> {
        let unit = Unit { host, seat: Seat::Fabric(target), lun: record.lun };
        Ok(device::probe(&*self.sys, unit)? != Probe::Absent)
    }

    /// Chooses the port that is used already, as long as it or its disk exists; else the only
    /// usable port.
    fn choose<'a>(&self, record: &Record, seen: &'a Seen) -> Result<Choice<'a>, TreeError> {
        let Some(host) = seen.host else { return Ok(Choice::None) };
        let used = seen.remote.iter().find(|port| Some(port.name) == record.used);
        if let Some((port, target)) = used.and_then(|port| Some((port, port.target?))) {
            let there = seen.usable().any(|one| one == port);
            if there || self.has_disk(host, target, record)? {
                return Ok(Choice::One(port, target));
            }
        }
        let mut usable = seen.usable();
        Ok(match (usable.next(), usable.next()) {
            (Some(port), None) => port.target.map_or(Choice::None, |target| Choice::One(port, target)),
            (Some(_), Some(_)) => Choice::Many,
            (None, _) => Choice::None,
        })
    }

    fn status(&self, record: &Record) -> Result<SessionStatus, TreeError> {
        let seen = self.look(record)?;
        let choice = self.choose(record, &seen)?;
        let (state, used, kept, problem) = match choice {
            Choice::One(port, target) => {
                let kept = record.used == Some(port.name);
                if seen.usable().any(|one| one == port) {
                    (SessionState::LoggedIn, Some(target), kept, None)
                } else {
                    // The disk exists: its I/O waits, or fails once the port's timers have run out.
                    (SessionState::Recovering, Some(target), kept, Some(why(record, &seen)))
                }
            }
            Choice::None => (SessionState::Connecting, None, true, Some(why(record, &seen))),
            Choice::Many => (SessionState::Failed, None, true, Some(many(record, &seen))),
        };
        let all = seen.remote.iter().filter_map(|port| port.target).collect();
        Ok(SessionStatus {
            volume: record.volume,
            generation: record.generation,
            target: record.target.clone(),
            initiator: record.initiator.clone(),
            state,
            portal: None,
            isid: String::new(),
            sid: None,
            host: seen.host,
            since: None,
            login_us: None,
            relogins: 0,
            adopted: false,
            verified: 0,
            problem,
            retry_in_ms: None,
            secrets: 0,
            fc: Some(Box::new(FcPath { port: record.route.port, used, kept, all, lun: record.lun })),
        })
    }

    /// Returns the connection of a volume; `None` if none was begun over Fibre Channel.
    pub fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        let Some(record) = self.records.read(volume)? else { return Ok(None) };
        self.status(&record).map(Some).map_err(|error| wrong(&error))
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        let all = self.records.all()?;
        all.iter().map(|record| self.status(record).map_err(|error| wrong(&error))).collect()
    }

    fn ensure(&self, spec: &SessionSpec) -> Result<SessionStatus, ClientError> {
        let refuse = |text: &str| ClientError::Fabric { text: text.to_owned(), cure: Cure::FixSpec };
        let route = spec.fc.clone().ok_or_else(|| refuse("the spec names no port"))?;
        let kept = self.records.read(spec.volume)?;
        if kept.as_ref().is_some_and(|kept| (kept.route.port, kept.lun) != (route.port, spec.lun)) {
            return Err(refuse("the volume has another port or number here: detach it first"));
        }
        let mut record = Record {
            volume: spec.volume,
            generation: spec.generation,
            initiator: spec.initiator.clone(),
            target: spec.target.clone(),
            lun: spec.lun,
            route,
            used: kept.as_ref().and_then(|kept| kept.used),
        };
        let seen = self.look(&record).map_err(|error| wrong(&error))?;
        if let Choice::One(port, target) = self.choose(&record, &seen).map_err(|error| wrong(&error))? {
            record.used = Some(port.name);
            if let Some(host) = seen.host {
                let unit = Unit { host, seat: Seat::Fabric(target), lun: record.lun };
                device::set_running(&*self.sys, unit).map_err(|error| wrong(&error))?;
            }
        }
        if kept.as_ref() != Some(&record) {
            self.records.write(&record)?;
        }
        self.status(&record).map_err(|error| wrong(&error))
    }

    fn end(&self, record: &Record, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        if how == End::Cut && !self.cut(record, wait).map_err(|error| wrong(&error))? {
            let status = self.status(record).map_err(|error| wrong(&error))?;
            return Ok(Some(SessionStatus { state: SessionState::Ending, ..status }));
        }
        self.records.forget(record)?;
        Ok(None)
    }

    /// Removes the record's disks, whoever holds them. Returns `true` if all are gone.
    fn cut(&self, record: &Record, wait: Duration) -> Result<bool, TreeError> {
        let until = clock::instant() + wait;
        let status = self.status(record)?;
        for unit in device::units(&*self.sys, &status)? {
            device::offline(&*self.sys, unit)?;
            device::delete(&*self.sys, unit)?;
        }
        loop {
            if device::units(&*self.sys, &status)?.is_empty() {
                return Ok(true);
            }
            if clock::instant() >= until {
                return Ok(false);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

fn names(ports: impl Iterator<Item = Wwpn>) -> String {
    ports.map(|port| port.to_string()).collect::<Vec<_>>().join(", ")
}

/// Explains why there is no path now, with a remedy.
fn why(record: &Record, seen: &Seen) -> String {
    let own = record.route.port;
    let Some(host) = seen.host else {
        return format!(
            "this host has no port {own} now: load its driver, or, if the adapter is another one now, detach the volume by \
             force and attach it again"
        );
    };
    if seen.state != "Online" {
        return format!("port {own} is {}: see its cable and its switch", seen.state);
    }
    let again = format!(
        "a target that granted this port nothing when it logged in has refused it: `echo 1 > \
         /sys/class/fc_host/host{host}/issue_lip` logs it in again, and interrupts all disks of the port for a moment"
    );
    let lost = seen.remote.iter().find(|port| port.target.is_some() && !port.is_usable());
    match (lost, seen.remote.first()) {
        (Some(port), _) => format!("port {} of the storage node is {} to port {own}", port.name, port.state),
        (None, Some(port)) => {
            format!("port {} of the storage node is no target to port {own}: {again}", port.name)
        }
        (None, None) => format!(
            "port {own} sees no port of the storage node ({}): see cables and zones; {again}",
            names(record.route.targets.iter().copied())
        ),
    }
}

fn many(record: &Record, seen: &Seen) -> String {
    format!(
        "port {} reaches the volume through several ports ({}): a native attachment uses one path, and nobody here joins two; \
         leave one of them in its zone, or attach it as a client of the Block Storage API with multipath",
        record.route.port,
        names(seen.usable().map(|port| port.name))
    )
}

/// Sessions over both transports: `mooring-sessiond` keeps those over iSCSI, and the others need no
/// keeper.
pub struct Ways {
    iscsi: Arc<dyn Sessions>,
    fabric: Fabric,
}

impl Ways {
    /// Joins the sessions over both transports.
    pub fn new(iscsi: Arc<dyn Sessions>, fabric: Fabric) -> Self {
        Self { iscsi, fabric }
    }
}

impl Sessions for Ways {
    fn ensure(&self, spec: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError> {
        if spec.fc.is_some() { self.fabric.ensure(spec) } else { self.iscsi.ensure(spec, wait) }
    }

    fn end(&self, volume: VolumeId, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        match self.fabric.records.read(volume)? {
            Some(record) => self.fabric.end(&record, how, wait),
            None => self.iscsi.end(volume, how, wait),
        }
    }

    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        match self.fabric.get(volume)? {
            Some(status) => Ok(Some(status)),
            None => self.iscsi.get(volume),
        }
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        let mut all = self.iscsi.list()?;
        all.extend(self.fabric.list()?);
        Ok(all)
    }

    /// Streams the changes of `mooring-sessiond` alone: uevents tell of changes over Fibre Channel,
    /// and looks find them.
    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError> {
        self.iscsi.watch()
    }
}

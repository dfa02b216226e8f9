//! Connections over Fibre Channel, which share a SCSI host: the owner of each disk, and the
//! connections that each event wakes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use mooring_agent::config::Config;
use mooring_connectors::fake::{FcWorld, Rport, Unit, World};
use mooring_connectors::{Arrivals, Fabric, Parts, RunLinks, Ways};
use mooring_host::{Errno, Uevent, UeventItem, Uevents};
use tonic::Code;

use crate::rig::*;

const PORT: &str = "20:00:52:54:00:14:00:0b";
const TARGET: &str = "20:00:52:54:00:14:00:0a";

struct Told(Receiver<Uevent>);

impl Uevents for Told {
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno> {
        match self.0.recv_timeout(wait) {
            Ok(event) => Ok(Some(UeventItem::Event(event))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Errno::ESRCH),
        }
    }
}

struct Fc {
    world: FcWorld,
    dir: tempfile::TempDir,
    config: Config,
}

impl Fc {
    /// A host whose port sees a target that shows these volumes, each under its own number.
    fn showing(volumes: &[u8]) -> Self {
        let (dir, config) = host_config();
        let world = FcWorld::new(&config.run_dir, PORT.parse().unwrap());
        let fc = Self { world, dir, config };
        fc.meet(volumes);
        fc
    }

    fn meet(&self, volumes: &[u8]) {
        let luns = volumes.iter().map(|n| (u16::from(*n), Unit::of(volume(*n), SIZE))).collect();
        self.world.meet(Rport { name: TARGET.parse().unwrap(), state: "Online", target: 0, luns });
    }

    fn start(&self) -> (Agent, Sender<Uevent>) {
        let (tell, told) = channel();
        let door = Arc::new(self.world.door(None));
        let sessiond = World::new(&self.config.run_dir).door(None);
        let fabric = Fabric::new(door.clone(), self.config.state_dir.join("fabric"));
        let parts = Parts {
            sys: door.clone(),
            disks: door,
            links: Arc::new(RunLinks::new(&self.config.run_dir, "/dev")),
            sessions: Arc::new(Ways::new(Arc::new(sessiond), fabric)),
            arrivals: Arrivals::default(),
            dev: "/dev".into(),
            recovery_timeout_s: 120,
        };
        (start_agent(&self.config, parts, Box::new(Told(told)), None), tell)
    }

    fn path_of(&self, n: u8) -> Option<String> {
        let to = std::fs::read_link(self.dir.path().join("run/attachments").join(attachment(n))).ok()?;
        Some(to.file_name()?.to_str()?.to_owned())
    }

    fn is_attached(&self, n: u8) -> bool {
        self.path_of(n).is_some() && self.path_of(n) == self.world.name_of(u16::from(n))
    }
}

fn spec(agent: &Agent, n: u8) -> mooring_api::v1::ConnectionSpec {
    mooring_api::v1::ConnectionSpec {
        portals: Vec::new(),
        chap: None,
        other_chap: None,
        lun: n.into(),
        fc: Some(mooring_api::v1::FcRoute { port: PORT.to_owned(), target_ports: vec![TARGET.to_owned()] }),
        ..agent.spec(n, &[(n, RW)])
    }
}

fn event(action: &str, subsystem: &str, devpath: &str) -> Uevent {
    let keys = [("ACTION", action), ("DEVPATH", devpath), ("SUBSYSTEM", subsystem)];
    let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Uevent { action: action.to_owned(), devpath: devpath.to_owned(), keys }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_told_of_a_shared_host_wakes_whose_disk_it_is() {
    let fc = Fc::showing(&[7, 8]);
    let (agent, tell) = fc.start();
    for n in [7, 8] {
        agent.make(put_spec(n, 1, spec(&agent, n)));
    }
    assert!(fc.is_attached(7) && fc.is_attached(8));
    fc.world.take_log();
    fc.world.lose_disk(7);
    let disk = "/devices/pci0000:00/0000:00:03.0/host3/rport-3:0-0/target3:0:0/3:0:0:7/block/sd1";
    tell.send(event("remove", "block", disk)).unwrap();
    until("the disk to be found again", || fc.is_attached(7));
    assert_eq!(fc.world.take_log(), ["scsi_host/host3/scan = 0 0 7"], "and nobody else's");
    // The port goes for good, and comes back. Its states are not announced, its return is.
    fc.world.lose(TARGET.parse().unwrap(), true);
    let rport = "/devices/pci0000:00/0000:00:03.0/host3/rport-3:0-0/fc_remote_ports/rport-3:0-0";
    tell.send(event("remove", "fc_remote_ports", rport)).unwrap();
    until("the paths to go", || fc.path_of(7).is_none() && fc.path_of(8).is_none());
    fc.meet(&[7, 8]);
    tell.send(event("add", "fc_remote_ports", rport)).unwrap();
    until("the paths to come back", || fc.is_attached(7) && fc.is_attached(8));
    assert_eq!(fc.world.violations(), Vec::<String>::new());
}

#[test]
fn a_transport_does_not_change_under_a_connection() {
    let fc = Fc::showing(&[7]);
    let (agent, _tell) = fc.start();
    agent.make(put_spec(7, 1, spec(&agent, 7)));
    let mut other = spec(&agent, 7);
    other.fc.as_mut().unwrap().port = "20:00:52:54:00:14:00:0c".to_owned();
    for changed in [other, agent.spec(7, &[(7, RW)])] {
        let changed = mooring_api::v1::ConnectionSpec { lun: 7, ..changed };
        let refused = agent.try_put(put_spec(7, 2, changed));
        assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["the transport", "detach it first"]);
    }
    agent.crash();
    let (agent, _tell) = fc.start();
    fc.world.take_log();
    agent.make(tombstone(7, 2, false));
    assert_eq!(fc.world.take_log(), ["flush", "scsi_device/3:0:0:7/delete = 1"]);
    assert_eq!((fc.path_of(7), fc.world.disks()), (None, Vec::new()));
}

//! Storage nodes: a fake machine that stays, and agents on it that come and go.
//!
//! What must never happen here: two agents of one node at the same time.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use mooring_agent::config::Config;
use mooring_agent::engine::Engine;
use mooring_agent::machine::Machine;
use mooring_agent::rpc::agent::Service;
use mooring_agent::store::Store;
use mooring_api::MESSAGE_BYTES_MAX;
use mooring_api::v1::agent_server::AgentServer;
use mooring_host::KernelTree;
use mooring_host::fake::{FakeMachine, SessionId};
use mooring_model::VolumeId;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;

use crate::Broken;
use crate::calls::Calls;
use crate::hand::{GROUP, clear_exports};
use crate::jobs::{Hung, Jobs};
use crate::net::Wire;
use crate::pace::Pace;
use crate::switch::Switch;
use crate::time::WallClock;

/// Size of the volume group.
const GROUP_BYTES: u64 = 64 << 30;

/// A running agent.
struct Process {
    engine: Engine,
    switch: Switch,
    jobs: Jobs,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    hearing: JoinHandle<()>,
}

/// A storage node.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) machine: FakeMachine,
    pub(crate) wire: Wire,
    pub(crate) clock: WallClock,
    pub(crate) pace: Pace,
    /// `true` after a loss of power: the agent must make the kernel's objects again.
    pub(crate) rebooted: bool,
    calls: Calls,
    dir: PathBuf,
    config: Config,
    portal: String,
    hung: Hung,
    held: Arc<AtomicBool>,
    device: Option<PathBuf>,
    process: Option<Process>,
    pub(crate) broken: Option<Broken>,
    complaints: Vec<String>,
    /// Present fault of LVM; `None` if LVM answers as it should.
    pub(crate) trouble: Option<Trouble>,
    /// `true` if the agent has ever lost its store.
    pub(crate) lost_store: bool,
}

/// Fault of LVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Each command fails.
    Fails,
    /// The program is missing.
    Missing,
    /// The disk of the group is missing.
    NoGroup,
}

/// Returns the device path of a volume's LV.
pub(crate) fn device_of(volume: VolumeId) -> PathBuf {
    format!("/dev/vg0/mooring-{volume}").into()
}

impl Node {
    pub(crate) fn new(number: u8, dir: &Path, calls: &Calls, broken: Option<Broken>) -> Result<Self> {
        let name = format!("storage{number}");
        let dir = dir.join(&name);
        for module in ["target_core_mod", "target_core_iblock", "iscsi_target_mod"] {
            std::fs::create_dir_all(dir.join("sys/module").join(module))?;
        }
        let portal = format!("10.0.0.{number}:3260");
        let text = format!(
            "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nportals = [\"{portal}\"]\nresync_seconds = 60\n\
             [[groups]]\nname = \"vg0\"\n{1}",
            dir.display(),
            // With a thin pool, the agent asks LVM at every resync; without one, only now and then.
            if number == 1 { "" } else { "thin_pool = \"24GiB\"\n" }
        );
        let machine = FakeMachine::new();
        machine.add_vg("vg0", GROUP_BYTES);
        machine.set_addresses([Ipv4Addr::new(10, 0, 0, number).into()]);
        Ok(Self {
            config: Config::parse(&text, "agent.toml").context("the agent's configuration")?,
            machine,
            wire: Wire::default(),
            clock: WallClock::new(),
            pace: Pace::default(),
            rebooted: false,
            calls: calls.clone(),
            name,
            dir,
            portal,
            hung: Hung::default(),
            held: Arc::default(),
            device: None,
            process: None,
            broken,
            complaints: Vec::new(),
            trouble: None,
            lost_store: false,
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.switch.is_dead())
    }

    /// Starts an agent if none runs.
    pub(crate) fn start(&mut self) -> Result<()> {
        if self.is_up() {
            return Ok(());
        }
        self.crash();
        let switch = Switch::new(&self.machine, &self.wire, &self.held, &self.pace, self.broken);
        let jobs = Jobs::new(switch.clone(), self.hung.clone());
        let machine = Machine {
            target: Arc::new(switch.clone()),
            folders: Some(Arc::new(switch.ears().clone())),
            callers: None,
            sys: Arc::new(KernelTree::new(self.dir.join("sys"))),
            commands: Arc::new(switch.clone()),
            blocks: Arc::new(switch.clone()),
            images: Arc::new(self.machine.images()),
            pr: Arc::new(self.machine.clone()),
            clock: Arc::new(self.clock.clone()),
            addresses_changed: Arc::default(),
            bus: None,
            addresses: {
                let machine = self.machine.clone();
                Arc::new(move || machine.local_addresses())
            },
            root: self.dir.join("root"),
        };
        let store = Store::open(&self.config.state_dir).context("open an agent's store")?;
        let engine = Engine::with_workers(self.config.clone(), machine, store, jobs.workers())?;
        let (stop, stopped) = watch::channel(false);
        let (wire, calls, alive) = (self.wire.clone(), self.calls.clone(), switch.clone());
        let of_process = engine.clone();
        let serving = tokio::spawn(async move {
            engine.start().await;
            if alive.is_dead() {
                return;
            }
            let incoming = UnboundedReceiverStream::new(wire.listen()).map(Ok::<_, std::io::Error>);
            let service = AgentServer::new(Service::new(engine, stopped));
            let service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
            // The server ends with the process.
            drop(Server::builder().layer(calls).add_service(service).serve_with_incoming(incoming).await);
        });
        let hearing = tokio::spawn(switch.ears().clone().follow());
        self.process = Some(Process { engine: of_process, switch, jobs, stop, serving, hearing });
        Ok(())
    }

    /// Kills the agent: it closes nothing, says nothing, and does nothing any more.
    pub(crate) fn crash(&mut self) {
        if let Some(process) = self.process.take() {
            process.switch.kill();
            process.stop.send_replace(true);
            process.serving.abort();
            process.hearing.abort();
            process.jobs.end();
            self.complaints.extend(process.switch.complaints());
        }
    }

    /// Kills the agent before or after one of its next changes of the machine.
    pub(crate) fn crash_in(&self, changes: u64, after: bool) {
        if let Some(process) = &self.process {
            process.switch.kill_in(changes, after);
        }
    }

    /// Takes the complaints about the agent's code.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let mut all = std::mem::take(&mut self.complaints);
        all.extend(self.process.iter().flat_map(|process| process.switch.complaints()));
        all
    }

    /// Loses power, and boots again.
    pub(crate) fn reboot(&mut self) {
        self.crash();
        self.machine.reboot();
        self.end_hold();
        self.rebooted = true;
    }

    /// Lets LVM fail in this way from now on.
    pub(crate) fn trouble(&mut self, trouble: Trouble) {
        self.end_trouble();
        let lvm = self.machine.lvm();
        match trouble {
            Trouble::Fails => lvm.set_broken(Some("  Error reading device /dev/sdb.\n")),
            Trouble::Missing => lvm.set_missing(true),
            Trouble::NoGroup => lvm.hide_group(GROUP),
        }
        self.trouble = Some(trouble);
    }

    /// Ends the fault of LVM. Nobody activates the LVs of a group that has come back.
    pub(crate) fn end_trouble(&mut self) {
        let lvm = self.machine.lvm();
        lvm.set_broken(None);
        lvm.set_missing(false);
        if self.trouble.take() == Some(Trouble::NoGroup) {
            lvm.show_group(GROUP);
            self.disk_written();
        }
    }

    /// Kills the agent, loses its store, and starts another agent.
    pub(crate) fn lose_store(&mut self) -> Result<()> {
        self.lost_store = true;
        self.crash();
        if self.broken == Some(Broken::Store) {
            clear_exports(&self.machine);
        }
        for file in std::fs::read_dir(&self.config.state_dir)? {
            std::fs::remove_file(file?.path())?;
        }
        self.start()
    }

    /// Tells the agent that somebody has changed LIO's tree.
    pub(crate) fn tree_changed(&self) {
        if let Some(process) = &self.process {
            process.switch.ears().tree_changed();
        }
    }

    /// Tells the agent that somebody has written to a disk of its group.
    pub(crate) fn disk_written(&self) {
        if let Some(process) = &self.process {
            process.switch.ears().disk_written();
        }
    }

    /// Returns the running agent's engine; `None` if no agent runs.
    pub(crate) fn engine(&self) -> Option<Engine> {
        self.process.as_ref().map(|process| process.engine.clone())
    }

    /// True if nothing keeps the agent from seeing and correcting foreign changes.
    pub(crate) fn is_well(&self) -> bool {
        self.is_up() && !self.is_held() && !self.pace.is_slow() && self.trouble.is_none()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.device.is_some()
    }

    /// Stops a device from answering, with a write in flight on it.
    pub(crate) fn hold(&mut self, volume: VolumeId, session: SessionId) {
        let device = device_of(volume);
        self.machine.hold(&device);
        drop(self.machine.start_write(session, 1));
        self.held.store(true, Ordering::Release);
        self.device = Some(device);
    }

    /// Lets the device answer again.
    pub(crate) fn release(&mut self) {
        if let Some(device) = self.device.clone() {
            self.machine.release(device);
            self.end_hold();
        }
    }

    fn end_hold(&mut self) {
        self.device = None;
        self.hung.go_on(&self.machine);
        self.held.store(false, Ordering::Release);
        if let Some(process) = &self.process {
            process.jobs.drain();
        }
    }

    /// Logs an initiator in with its credentials.
    pub(crate) fn login(&self, target: &str, initiator: &str, user: &str, secret: &str) -> Result<SessionId> {
        Ok(self.machine.login(&self.portal, target, initiator, Some((user, secret)))?)
    }
}

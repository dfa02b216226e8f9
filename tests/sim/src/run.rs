//! One run: the events of a seed, one after another, with all checks after each.
//!
//! What must never happen here: a choice that does not come from the seed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use mooring_model::{AttachmentId, Mode, VolumeId};
use tokio::task::JoinSet;

use crate::calls::Calls;
use crate::check::check;
use crate::clients::{self, Errand, Kind};
use crate::control::Control;
use crate::model::{Hand, KnownAttachment, KnownVolume};
use crate::world::World;
use crate::{Options, lock, settle};

/// Number of hosts that log in by themselves.
const HOSTS: u8 = 3;
/// Number of volumes that clients want at the same time.
const VOLUMES: usize = 4;
/// Time within which late calls arrive. No database is restored while the network still delivers
/// what the former one sent.
const NETWORK_LIFE: Duration = Duration::from_secs(40);

/// A copy of the database.
struct Backup {
    step: u64,
    /// Volumes that clients knew at the time of the copy.
    volumes: BTreeSet<VolumeId>,
}

pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) control: Control,
    pub(crate) clients: JoinSet<()>,
    pub(crate) rng: Rng,
    backup: Option<Backup>,
    named: (u32, u32),
}

impl Run {
    /// Prepares a run; must be called inside the run's runtime.
    pub(crate) async fn new(seed: u64, options: &Options, dir: &Path) -> Result<Self> {
        let mut rng = Rng::with_seed(seed);
        let world = World::new(dir, Calls::new(rng.fork(), options.broken), options.broken)?;
        for node in world.nodes.iter() {
            lock(node).start()?;
        }
        let mut control = world.control(dir)?;
        control.start(false)?;
        control.make_types().await?;
        // Wait until the agents have reported their pools.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Self { world, control, clients: JoinSet::new(), rng, backup: None, named: (0, 0) })
    }

    /// Runs all events, heals everything, and waits for rest.
    pub(crate) async fn all(mut self, events: u32) -> Result<()> {
        for step in 0..events {
            lock(&self.world.model).step = step.into();
            self.event().await?;
            let pause = match self.rng.u8(0..10) {
                0..3 => 0,
                3..6 => self.rng.u64(0..20),
                6..9 => self.rng.u64(0..1500),
                _ => self.rng.u64(0..12_000),
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            while self.clients.try_join_next().is_some() {}
            check(&self.world, self.control.service()).await;
            if !lock(&self.world.model).violations.is_empty() {
                return Ok(());
            }
        }
        settle::settle(&mut self).await
    }

    async fn event(&mut self) -> Result<()> {
        if self.rng.u8(0..100) < 64 {
            if let Some(errand) = self.errand() {
                self.send(errand);
            }
            return Ok(());
        }
        self.carry_out_fault().await
    }

    /// Chooses a client's next operation. The object may be gone, or may not exist yet.
    fn errand(&mut self) -> Option<Errand> {
        let (volumes, attachments) = {
            let model = lock(&self.world.model);
            let volumes: Vec<_> =
                model.volumes.iter().filter(|(_, known)| !known.lost).map(|(id, _)| *id).collect();
            let attachments: Vec<_> = model
                .attachments
                .iter()
                .filter(|(_, known)| known.gone.is_none())
                .map(|(id, _)| *id)
                .collect();
            (volumes, attachments)
        };
        let attachment = self.rng.choice(&attachments).copied();
        let some = |errand: fn(AttachmentId) -> Errand| attachment.map(errand);
        let volume = self.rng.choice(&volumes).copied();
        match self.rng.u8(0..25) {
            20 | 21 => volume.map(|volume| Errand::Extend { volume, more: self.rng.u32(1..3) }),
            22 => volume.map(|volume| Errand::CancelExtend { volume }),
            23 | 24 => volume.map(|volume| Errand::Revert { volume }),
            0..4 => (volumes.len() < VOLUMES).then(|| self.new_volume()),
            4..12 => self.rng.choice(&volumes).copied().map(|volume| self.new_attachment(volume)),
            12..15 => some(|id| Errand::Detach { id, force: false }),
            15 | 16 => some(|id| Errand::Detach { id, force: true }),
            17 => some(|id| Errand::Write { id }),
            18 => some(|id| Errand::Complete { id }),
            _ => self.rng.choice(&volumes).copied().map(|volume| Errand::Delete { volume }),
        }
    }

    fn new_volume(&mut self) -> Errand {
        let volume = VolumeId::from_u128(self.rng.u128(..));
        self.named.0 += 1;
        let mut model = lock(&self.world.model);
        let born = model.step;
        model.volumes.insert(
            volume,
            KnownVolume {
                name: format!("v{}", self.named.0),
                lost: false,
                confirmed: false,
                born,
                hand: Hand::default(),
            },
        );
        let kind = match self.rng.u8(0..8) {
            0 | 1 => Kind::Plain,
            2..6 => Kind::Shared,
            _ => Kind::Thin,
        };
        Errand::Create { volume, kind }
    }

    fn new_attachment(&mut self, volume: VolumeId) -> Errand {
        let id = AttachmentId::from_u128(self.rng.u128(..));
        self.named.1 += 1;
        let name = format!("a{}", self.named.1);
        let mode = if self.rng.u8(0..3) == 0 { Mode::ReadOnly } else { Mode::ReadWrite };
        let node = self.rng.u8(1..=HOSTS);
        let mut model = lock(&self.world.model);
        let text = format!("{name} is of {} for node{node}, {mode}", model.name(volume));
        model.say(text);
        let known = KnownAttachment { name, volume, node, mode, gone: None, session: None };
        model.attachments.insert(id, known);
        Errand::Attach { id, reserve: self.rng.u8(0..4) == 0 }
    }

    fn send(&mut self, errand: Errand) {
        let Some(service) = self.control.service().cloned() else { return };
        let text = {
            let model = lock(&self.world.model);
            let name = |id| model.attachments.get(&id).map_or_else(String::new, |known| known.name.clone());
            match errand {
                Errand::Create { volume, kind } => format!("create {} {kind:?}", model.name(volume)),
                Errand::Delete { volume } => format!("delete {}", model.name(volume)),
                Errand::Attach { id, reserve } => format!("attach {} reserve={reserve}", name(id)),
                Errand::Complete { id } => format!("complete {}", name(id)),
                Errand::Detach { id, force } => format!("detach {} force={force}", name(id)),
                Errand::Write { id } => format!("write {}", name(id)),
                Errand::Extend { volume, more } => format!("extend {} by {more}", model.name(volume)),
                Errand::CancelExtend { volume } => format!("cancel the growth of {}", model.name(volume)),
                Errand::Revert { volume } => format!("snapshot and revert {}", model.name(volume)),
            }
        };
        self.world.say(text);
        self.clients.spawn(clients::run(self.world.clone(), service, errand, self.rng.fork()));
    }

    async fn stop_controller(&mut self) -> Result<()> {
        self.clients.shutdown().await;
        self.control.kill().await
    }

    pub(crate) async fn back_up(&mut self) -> Result<()> {
        self.stop_controller().await?;
        self.control.back_up()?;
        let model = lock(&self.world.model);
        self.backup = Some(Backup { step: model.step, volumes: model.volumes.keys().copied().collect() });
        drop(model);
        self.control.start(false)
    }

    pub(crate) async fn restart_controller(&mut self, restore: bool) -> Result<()> {
        let backup =
            self.backup.as_ref().filter(|_| restore).map(|backup| (backup.step, backup.volumes.clone()));
        self.stop_controller().await?;
        let Some((step, volumes)) = backup else {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(0..3000))).await;
            return self.control.start(false);
        };
        self.control.restore()?;
        {
            let mut model = lock(&self.world.model);
            for (id, known) in &mut model.volumes {
                known.lost |= !volumes.contains(id) || known.born > step;
                // The volume may have grown after the copy.
                known.hand.extended = true;
            }
            for known in model.attachments.values_mut() {
                // The restored database knows the attachment again. An operator decides whether it
                // holds.
                known.gone = known.gone.filter(|gone| *gone <= step);
            }
        }
        tokio::time::sleep(NETWORK_LIFE).await;
        self.control.start(true)
    }
}

//! Events besides the calls of clients, chosen by the seed. They affect processes, machines, the
//! network, clocks, disks and databases; some are changes by hand.
//!
//! What must never happen here: a choice that does not come from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use mooring_model::VolumeId;

use crate::hand::{self, IN_GROUP, IN_TREE, InGroup, InTree};
use crate::net::Weather;
use crate::node::Trouble;
use crate::pace::Slow;
use crate::run::Run;
use crate::settle::wanted;
use crate::world::Kernel;
use crate::{Broken, lock};

/// Time without a change after which an export is watched, whatever happened to its agent before.
const WATCHED_AFTER: Duration = Duration::from_secs(190);
/// Time after which an agent that has lost its store has received all specs, if it can.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// Time within which a change in a watched folder is corrected.
const MENDED_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash(usize),
    CrashIn(usize, u64, bool),
    Start(usize),
    Reboot(usize),
    Weather(usize, Weather),
    Storm(u8),
    Skew(usize, i64),
    Hold(usize),
    Release(usize),
    KillController,
    BackUp,
    Restore,
    /// Somebody changes an export.
    Tree(usize, InTree),
    /// Somebody changes a volume group.
    Group(usize, InGroup),
    /// A renamed LV gets its name back.
    BringBack(usize),
    Slow(usize, Slow),
    Quick(usize),
    Trouble(usize, Trouble),
    EndTrouble(usize),
    LoseStore(usize),
    /// Nothing happens for some minutes; then somebody changes an export.
    Calm(usize, InTree),
}

impl Fault {
    const fn kind(self) -> &'static str {
        match self {
            Self::Crash(_) | Self::CrashIn(..) | Self::Start(_) => "agent crashes",
            Self::Reboot(_) => "reboots",
            Self::Weather(..) | Self::Storm(_) => "network",
            Self::Skew(..) => "clocks",
            Self::Hold(_) | Self::Release(_) => "hung devices",
            Self::KillController => "controller crashes",
            Self::BackUp | Self::Restore => "restores",
            Self::Tree(..) => "LIO by hand",
            Self::Group(..) | Self::BringBack(_) => "LVM by hand",
            Self::Slow(_, Slow::Calls) => "interleaved jobs",
            Self::Slow(_, Slow::Lvm) => "slow LVM",
            Self::Quick(_) => "quick again",
            Self::Trouble(..) | Self::EndTrouble(_) => "LVM fails",
            Self::LoseStore(_) => "lost stores",
            Self::Calm(..) => "LIO by hand, watched",
        }
    }
}

impl Run {
    fn fault(&mut self) -> Fault {
        let at = self.rng.usize(0..self.world.nodes.len());
        match self.rng.u8(0..68) {
            0..3 => Fault::Crash(at),
            3..8 => Fault::CrashIn(at, self.rng.u64(1..30), self.rng.bool()),
            8..17 => Fault::Start(at),
            17 => Fault::Reboot(at),
            18 => Fault::Weather(at, Weather::Cut),
            19 => Fault::Weather(at, Weather::Hole),
            20..24 => Fault::Weather(at, Weather::Fair),
            24 => Fault::Storm(self.rng.u8(10..60)),
            25 => Fault::Storm(0),
            26 | 27 => {
                Fault::Skew(self.rng.usize(0..=self.world.nodes.len()), self.rng.i64(-7_200_000..7_200_000))
            }
            28..31 => Fault::Hold(at),
            31..33 => Fault::Release(at),
            33..36 => Fault::KillController,
            36..38 => Fault::BackUp,
            38..40 => Fault::Restore,
            40..45 => Fault::Tree(at, IN_TREE[self.rng.usize(0..IN_TREE.len())]),
            45..49 | 63 | 64 => Fault::Group(at, IN_GROUP[self.rng.usize(0..IN_GROUP.len())]),
            49 => Fault::BringBack(at),
            50..54 => Fault::Slow(at, Slow::Calls),
            54 | 55 => Fault::Slow(at, Slow::Lvm),
            56 | 57 => Fault::Quick(at),
            58 => {
                let all = [Trouble::Fails, Trouble::Missing, Trouble::NoGroup];
                Fault::Trouble(at, all[self.rng.usize(0..all.len())])
            }
            59 | 60 => Fault::EndTrouble(at),
            61 | 62 => Fault::LoseStore(at),
            _ => Fault::Calm(at, IN_TREE[self.rng.usize(0..IN_TREE.len())]),
        }
    }

    /// Chooses the next event, and carries it out.
    pub(crate) async fn carry_out_fault(&mut self) -> Result<()> {
        let fault = self.fault();
        self.world.say(format!("{fault:?}"));
        let done = self.carry_out(fault).await?;
        if done {
            lock(&self.world.model).count(fault.kind());
        }
        Ok(())
    }

    /// Carries an event out. `false` if there was nothing that it could happen to.
    async fn carry_out(&mut self, fault: Fault) -> Result<bool> {
        let node = |at: usize| lock(&self.world.nodes[at]);
        match fault {
            Fault::Crash(at) => node(at).crash(),
            Fault::CrashIn(at, changes, after) => node(at).crash_in(changes, after),
            Fault::Start(at) => node(at).start()?,
            Fault::Reboot(at) => node(at).reboot(),
            Fault::Weather(at, weather) => node(at).wire.set(weather),
            Fault::Storm(per_cent) => self.world.calls.set_storm(per_cent),
            Fault::Skew(at, by) => match self.world.nodes.get(at) {
                Some(node) => lock(node).clock.set_wrong_by(by),
                None => self.control.clock.set_wrong_by(by),
            },
            Fault::Hold(at) => self.hold(at),
            Fault::Release(at) => node(at).release(),
            Fault::KillController => self.restart_controller(false).await?,
            Fault::BackUp => self.back_up().await?,
            Fault::Restore => self.restart_controller(true).await?,
            Fault::Tree(at, change) => {
                let at = self.with_something(at, true);
                return Ok(self.change_tree(at, change).is_some());
            }
            Fault::Group(at, change) => {
                let at = self.with_something(at, false);
                return Ok(self.change_group(at, change).await);
            }
            Fault::BringBack(at) => return Ok(self.world.bring_back(at)),
            Fault::Slow(at, slow) => {
                let at = self.with_something(at, slow == Slow::Calls);
                let rng = self.rng.fork();
                lock(&self.world.nodes[at]).pace.set(Some(slow), rng);
            }
            Fault::Quick(at) => {
                let rng = self.rng.fork();
                lock(&self.world.nodes[at]).pace.set(None, rng);
            }
            Fault::Trouble(at, trouble) => {
                node(at).trouble(trouble);
                self.world.touch_node(at);
            }
            Fault::EndTrouble(at) => node(at).end_trouble(),
            Fault::LoseStore(at) => self.lose_store(at).await?,
            Fault::Calm(at, change) => return self.change_in_calm(at, change).await,
        }
        Ok(true)
    }

    /// Lets an agent lose its store. No session may end because of that.
    async fn lose_store(&mut self, at: usize) -> Result<()> {
        let at = self.with_something(at, true);
        let live: Vec<_> = {
            let model = lock(&self.world.model);
            let node = lock(&self.world.nodes[at]);
            let own = model.attachments.iter().filter_map(|(id, known)| {
                let (_, session) = known.session.filter(|(of, _)| *of == at)?;
                (node.machine.is_live(session) && !model.shares(*id)).then_some((*id, session))
            });
            own.collect()
        };
        lock(&self.world.nodes[at]).lose_store()?;
        self.world.store_was_lost();
        tokio::time::sleep(TOLD_WITHIN).await;
        let Some(service) = self.control.service().cloned() else { return Ok(()) };
        let Some(snapshot) = self.world.snapshot(&service).await else { return Ok(()) };
        let mut model = lock(&self.world.model);
        for (id, session) in live {
            let is_wanted = snapshot.rows.get(&id).is_some_and(|row| row.connected)
                && !model.shares(id)
                && model.attachments.get(&id).is_some_and(|known| known.session == Some((at, session)));
            if is_wanted && !lock(&self.world.nodes[at]).machine.is_live(session) {
                model.violated("an agent lost its store, and a host its session");
            }
        }
        Ok(())
    }

    /// Stops a device from answering while a host writes to it.
    fn hold(&mut self, at: usize) {
        let live: Vec<_> = {
            let model = lock(&self.world.model);
            let of_node = model.attachments.values().filter_map(|known| {
                let (_, session) = known.session.filter(|(node, _)| *node == at)?;
                Some((known.volume, session))
            });
            of_node.collect()
        };
        let mut node = lock(&self.world.nodes[at]);
        let live: Vec<_> = live.into_iter().filter(|(_, session)| node.machine.is_live(*session)).collect();
        if let Some((volume, session)) = self.rng.choice(&live).copied().filter(|_| !node.is_held()) {
            node.hold(volume, session);
            drop(node);
            let name = lock(&self.world.model).name(volume);
            self.world.say(format!("  a write to {name} hangs"));
        }
    }

    /// Returns this node, or the next one that has an export, or an LV.
    fn with_something(&self, at: usize, exported: bool) -> usize {
        let volumes: Vec<_> = lock(&self.world.model).volumes.keys().copied().collect();
        let count = self.world.nodes.len();
        let has_any = |at: &usize| {
            let machine = lock(&self.world.nodes[*at]).machine.clone();
            if exported {
                return volumes.iter().any(|volume| hand::is_exported(&machine, *volume));
            }
            !hand::sizes(&machine).is_empty()
        };
        (0..count).map(|more| (at + more) % count).find(has_any).unwrap_or(at)
    }

    /// Changes one export of a node by hand. Returns its volume; `None` if there is none.
    fn change_tree(&mut self, at: usize, change: InTree) -> Option<VolumeId> {
        let volumes: Vec<_> = lock(&self.world.model).volumes.keys().copied().collect();
        let node = lock(&self.world.nodes[at]);
        if node.is_held() {
            // The kernel would make the caller wait.
            return None;
        }
        let served = volumes.into_iter().filter(|volume| hand::is_exported(&node.machine, *volume));
        let volume = self.rng.choice(served.collect::<Vec<_>>())?;
        if !hand::change_tree(&node.machine, volume, change, &mut self.rng) {
            return None;
        }
        node.tree_changed();
        drop(node);
        let mut model = lock(&self.world.model);
        model.touch(at, volume);
        if let Some(known) = model.volumes.get_mut(&volume) {
            known.hand.in_tree = true;
        }
        let text = format!("  by hand: {change:?} of {}", model.name(volume));
        model.say(text);
        Some(volume)
    }

    /// Changes the LV of a whole volume by hand.
    async fn change_group(&mut self, at: usize, change: InGroup) -> bool {
        let Some(service) = self.control.service().cloned() else { return false };
        let Some(snapshot) = self.world.snapshot(&service).await else { return false };
        let node = lock(&self.world.nodes[at]);
        let sizes = hand::sizes(&node.machine);
        let whole = snapshot
            .volumes
            .iter()
            .filter(|(id, shown)| shown.is_whole() && sizes.contains_key(hand::names(**id).lv.as_str()));
        let Some(volume) = self.rng.choice(whole.map(|(id, _)| *id).collect::<Vec<_>>()) else {
            return false;
        };
        if !hand::change_group(&node.machine, volume, change) {
            return false;
        }
        if node.broken == Some(Broken::Anew) && matches!(change, InGroup::Rename | InGroup::Remove) {
            hand::make_anew(&node.machine, volume);
        }
        node.disk_written();
        drop(node);
        let mut model = lock(&self.world.model);
        model.touch(at, volume);
        if let Some(known) = model.volumes.get_mut(&volume) {
            known.hand.away |= change == InGroup::Rename;
            known.hand.removed |= change == InGroup::Remove;
            known.hand.extended |= change == InGroup::Extend;
        }
        let text = format!("  by hand: {change:?} of the LV of {}", model.name(volume));
        model.say(text);
        true
    }

    /// Changes a watched export by hand, and checks that it is corrected at once.
    async fn change_in_calm(&mut self, at: usize, change: InTree) -> Result<bool> {
        let at = self.with_something(at, true);
        let is_well = |run: &Self| lock(&run.world.nodes[at]).is_well();
        if !is_well(self) {
            return Ok(false);
        }
        while self.clients.join_next().await.is_some() {}
        tokio::time::sleep(WATCHED_AFTER).await;
        let Some(service) = self.control.service().cloned() else { return Ok(false) };
        let Some(before) = self.world.snapshot(&service).await else { return Ok(false) };
        let reached = self.world.kernel();
        let machine = lock(&self.world.nodes[at]).machine.clone();
        let volumes: Vec<_> = before.volumes.keys().copied().collect();
        let shapes: BTreeMap<_, _> =
            volumes.into_iter().map(|volume| (volume, hand::shape(&machine, volume))).collect();
        let Some(volume) = self.change_tree(at, change) else { return Ok(false) };
        let own = |kernel: Kernel| {
            let own = kernel.into_iter().filter(|((id, _), _)| *id == volume);
            own.collect::<Kernel>()
        };
        let at_rest = is_well(self) && own(reached) == own(wanted(&before));
        tokio::time::sleep(MENDED_WITHIN).await;
        let known = lock(&self.world.model).volumes.get(&volume).cloned();
        let judged = known.is_some_and(|known| !(known.hand.is_apart() || known.lost));
        // The agent may have been killed meanwhile.
        if at_rest && judged && is_well(self) && shapes.get(&volume) != Some(&hand::shape(&machine, volume)) {
            let mut model = lock(&self.world.model);
            let text =
                format!("{} was watched, and a change by hand was not put right at once", model.name(volume));
            model.violated(text);
        }
        Ok(true)
    }
}

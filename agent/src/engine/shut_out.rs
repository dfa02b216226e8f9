//! Who loses access while a pass hangs in the kernel. One pass works at a volume at a time, and an unlink or `rmdir` that waits for
//! a disk which does not answer, or for tcm_fc's dead host, may wait for ever: whoever is revoked behind it would go on writing. What
//! shuts an initiator out never waits (lio.md, d: its mapped LUN's link, `write_protect`), so it is done beside the pass. The rest, and
//! with it the proof, stays the next pass's.
//!
//! What must never happen here: a step that gives; a step for a wish that is not the newest; a mapped LUN touched that does not
//! lead to this volume's LUN; a receipt proven.

use std::sync::Arc;

use mooring_host::{EntryKind, TreePath};
use mooring_model::{Chain, ExportSpec, Generation, Mode, PortLun};
use mooring_targets::{fc, layout};

use super::cell::{BLOCKED_AFTER, Cell};
use super::knowledge::Stale;
use super::{Engine, lock};

/// What an initiator loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// All of it.
    Access,
    /// To write.
    Writes,
}

/// One way of an initiator to the volume.
#[derive(Debug)]
struct Way {
    /// Its mapped LUN.
    mapped: TreePath,
    /// The LUN that this has to lead to.
    lun: TreePath,
    /// Where that LUN has to lead to, if it is not under a name that is the volume's own.
    backstore: Option<TreePath>,
    loss: Loss,
}

/// Who had access before a wish that came while a pass was at work. What they lose follows from the wish that is the newest when it
/// is taken from them: one that comes meanwhile may take more, and may give back.
#[derive(Debug)]
pub(super) struct Losers {
    /// The pass that was at work when the wish came.
    pass: u64,
    kept: ExportSpec,
}

fn loss(was: Mode, is: Option<Mode>) -> Option<Loss> {
    match (was, is) {
        (_, None) => Some(Loss::Access),
        (Mode::ReadWrite, Some(Mode::ReadOnly)) => Some(Loss::Writes),
        _ => None,
    }
}

impl Engine {
    /// Those who may lose something when this is not the wish any more; `None` if no pass is at work.
    pub(super) fn losers(cell: &Cell, kept: Option<&ExportSpec>) -> Option<Losers> {
        let pass = cell.state().turn.running()?;
        Some(Losers { pass, kept: kept?.clone() })
    }

    /// What they lose by the newest wish, and which that is; `None` if the pass has ended.
    fn ways(&self, cell: &Cell, losers: &Losers) -> Option<(Generation, Vec<Way>)> {
        let wish = cell.state().export().cloned()?;
        let generation = wish.stamp.generation;
        if !is_stuck(cell, losers.pass, generation) {
            return None;
        }
        let (kept, new) = (&losers.kept, wish.spec());
        let names = kept.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let mut ways = Vec::new();
        for grant in &kept.grants {
            let now = new.and_then(|new| new.grants.iter().find(|one| one.initiator == grant.initiator));
            let Some(loss) = loss(grant.mode, now.map(|now| now.mode)) else { continue };
            let mapped = layout::acl(&names, grant.initiator.as_str()).join(layout::lun_name(grant.lun));
            ways.push(Way { mapped, lun: layout::lun(&names), backstore: None, loss });
        }
        let ports: Vec<_> = lock(&self.shared.ports).served().map(|(port, _)| port).collect();
        for grant in &kept.fc.grants {
            let now = new.and_then(|new| new.fc.grants.iter().find(|one| one.initiator == grant.initiator));
            let Some(loss) = loss(grant.mode, now.map(|now| now.mode)) else { continue };
            let Some(number) = PortLun::of(grant.slot, grant.lun) else { continue };
            ways.extend(ports.iter().map(|port| Way {
                mapped: fc::mapped(*port, grant.initiator, grant.lun),
                lun: fc::lun(*port, number),
                backstore: Some(layout::backstore(&names)),
                loss,
            }));
        }
        Some((generation, ways))
    }

    /// Shuts them out beside the pass that is at work, should it still be when a call of it is taken to hang.
    pub(super) fn shut_out_if_stuck(&self, cell: &Arc<Cell>, losers: Losers) {
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(BLOCKED_AFTER).await;
            let at = engine.clone();
            engine.shared.workers.submit(move || at.shut_out(&cell, &losers));
        });
    }

    fn shut_out(&self, cell: &Cell, losers: &Losers) {
        while let Some((generation, ways)) = self.ways(cell, losers) {
            let newest = |way: &Way| {
                let newest = is_stuck(cell, losers.pass, generation);
                if newest {
                    self.take(cell, way);
                }
                newest
            };
            if ways.iter().all(newest) {
                return;
            }
        }
    }

    fn take(&self, cell: &Cell, way: &Way) {
        match self.shut(way) {
            Ok(false) => {}
            Ok(true) => {
                cell.state().knowledge.forget(Stale::BesidePass);
                let mapped = &way.mapped;
                tracing::info!(volume = %cell.id, %mapped, "shut out beside a call of the kernel that hangs");
            }
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "not shut out before the kernel's call returns");
            }
        }
    }

    /// Whether there was something to shut.
    fn shut(&self, way: &Way) -> Result<bool, mooring_host::TreeError> {
        let tree = &*self.shared.machine.target;
        let leads = |link: &TreePath, to: &TreePath| tree.read_link(link).is_ok_and(|found| found == *to);
        let link = Some(way.mapped.join(layout::LINK)).filter(|link| leads(link, &way.lun)).or_else(|| {
            // In an adopted export it has the name that others gave it. Only the mapped LUN's own folder is listed: the one of the
            // ACLs is what the call that hangs holds.
            let links = tree.list(&way.mapped).unwrap_or_default().into_iter();
            let links = links.filter(|entry| entry.kind == EntryKind::Link);
            links.map(|entry| way.mapped.join(entry.name)).find(|link| leads(link, &way.lun))
        });
        let ours = way.backstore.as_ref().is_none_or(|store| leads(&way.lun.join(layout::LINK), store));
        // Half made: the next pass looks at it.
        let Some(link) = link.filter(|_| ours) else { return Ok(false) };
        match way.loss {
            Loss::Access => tree.unlink(&link)?,
            Loss::Writes => tree.write(&way.mapped.join("write_protect"), b"1")?,
        }
        Ok(true)
    }
}

/// This pass is still at work, and this is the newest wish.
fn is_stuck(cell: &Cell, pass: u64, generation: Generation) -> bool {
    let state = cell.state();
    let current = state.export().map(|wish| wish.stamp.generation);
    state.turn.running() == Some(pass) && current == Some(generation)
}

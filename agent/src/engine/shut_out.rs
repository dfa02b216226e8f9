//! Takes access away while a pass hangs in the kernel. One pass works on a volume at a time. Its
//! unlink or `rmdir` may wait for ever for a disk that does not answer, or for tcm_fc's dead host:
//! an initiator that is revoked behind it would go on writing. The calls that shut an initiator out
//! never wait (lio.md, d: its mapped LUN's link, `write_protect`), so they run beside the pass. The
//! rest, and with it the proof, stays with the next pass.
//!
//! What must never happen here: a step that gives access; a step for a spec that is not the newest;
//! a mapped LUN touched that does not lead to this volume's LUN; a receipt proven.

use std::sync::Arc;

use mooring_host::{EntryKind, TreePath};
use mooring_model::{Chain, ExportSpec, Generation, Mode, PortLun};
use mooring_targets::{fc, layout};

use super::cell::{BLOCKED_AFTER, Cell};
use super::knowledge::Stale;
use super::{Engine, lock};

/// The access that an initiator loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// All access.
    Access,
    /// Write access.
    Writes,
}

/// A path of one initiator to the volume.
#[derive(Debug)]
struct Way {
    /// The mapped LUN of the initiator.
    mapped: TreePath,
    /// The LUN that the mapped LUN has to lead to.
    lun: TreePath,
    /// The backstore that the LUN has to lead to. `None` if the LUN's name is the volume's own.
    backstore: Option<TreePath>,
    loss: Loss,
}

/// Initiators with access before a spec that came while a pass was at work. Their loss follows from
/// the spec that is the newest when it is carried out: a later one may take more, or give back.
#[derive(Debug)]
pub(super) struct Losers {
    /// The pass that was at work when the spec came.
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
    /// The initiators that may lose access by a new spec. `None` if no pass is at work.
    pub(super) fn losers(cell: &Cell, kept: Option<&ExportSpec>) -> Option<Losers> {
        let pass = cell.state().turn.running()?;
        Some(Losers { pass, kept: kept?.clone() })
    }

    /// The losses by the newest spec, and its generation. `None` if the pass has ended.
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

    /// Shuts them out beside the pass at work, if a call of that pass still seems to hang after
    /// [`BLOCKED_AFTER`].
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

    /// Shuts one path. `false` if there was nothing to shut.
    fn shut(&self, way: &Way) -> Result<bool, mooring_host::TreeError> {
        let tree = &*self.shared.machine.target;
        let leads = |link: &TreePath, to: &TreePath| tree.read_link(link).is_ok_and(|found| found == *to);
        let link = Some(way.mapped.join(layout::LINK)).filter(|link| leads(link, &way.lun)).or_else(|| {
            // In an adopted export others have named the link. Lists only the mapped LUN's own
            // folder: the call that hangs holds the folder of the ACLs.
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

/// Says whether this pass is still at work, and this is the newest generation.
fn is_stuck(cell: &Cell, pass: u64, generation: Generation) -> bool {
    let state = cell.state();
    let current = state.export().map(|wish| wish.stamp.generation);
    state.turn.running() == Some(pass) && current == Some(generation)
}

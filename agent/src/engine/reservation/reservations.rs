//! Persistent reservations: the export's report shows what the kernel has of them, and the store
//! keeps those that shall outlive a loss of power. A new backstore gets them back before anybody
//! can reach it.
//!
//! Commands of initiators change them without the agent. The kernel writes a file at each change,
//! and the agent watches those files: it keeps a change milliseconds after the command's answer.
//! (The kernel does not sync its file.)
//!
//! What must never happen here: a registration kept that a revoke has taken away; a registration
//! put back for an initiator without a grant; a volume exported without its kept registrations, and
//! no report of that.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mooring_model::{
    AttachmentId, Chain, Cure, ExportIdentity, ExportNames, ExportReport, ExportSpec, Initiator, Mode, Naa,
    Problem, Registration, ReservationHolder, Reservations, VolumeId,
};
use mooring_targets::reservations::{self, Before, Kept};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use tokio::sync::mpsc;

use crate::engine::cell::{Cell, KeptSpec, State};
use crate::engine::pass::ExportEnd;
use crate::engine::{Engine, Refusal};
use crate::object::turn::Left;

/// Time until the agent watches again after a watch ended or failed.
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// The persistent reservations of one volume, as far as they are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// The registrations that the store has.
    kept: Vec<Kept>,
    /// The kernel's counter of changes at the last look. `None` if no look was made since the
    /// backstore was made, or since the agent's start.
    generation: Option<u32>,
    /// The reservations that the last look saw. `None` if it saw none.
    seen: Option<Reservations>,
    /// Reason why the store does not have what the last look saw. `None` if it has that.
    failed: Option<Problem>,
}

impl Held {
    /// Notes that a backstore is about to be made: the kernel's counter starts anew.
    pub(in crate::engine) fn starts_anew(&mut self) {
        self.generation = None;
    }

    fn of(kept: Vec<Kept>) -> Self {
        Self { kept, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.seen.is_none()
    }

    /// The parts of reports that are about reservations.
    pub(in crate::engine) fn said(&self) -> (Option<Reservations>, Option<Problem>, String) {
        (self.seen.clone(), self.failed.clone(), reservations::format_kept(&self.kept))
    }

    /// Fills the reservations and their problems into a report.
    pub(in crate::engine) fn fill(&self, report: &mut ExportReport) {
        report.reservations.clone_from(&self.seen);
        report.kept_reservations = Some(reservations::format_kept(&self.kept));
        report.problems.extend(self.failed.clone());
        report.problems.extend(self.lost_problem(report.volume));
    }

    /// The reservations that the last look saw. `None` if it saw none.
    pub(in crate::engine) fn seen(&self) -> Option<Reservations> {
        self.seen.clone()
    }

    /// The kept registrations without those that are `lost`. `None` if none of the kept ones is
    /// lost. The caller stores the rest, and then calls [`Self::has_kept`].
    pub(in crate::engine) fn without_lost(&self, lost: impl Fn(&Registration) -> bool) -> Option<Vec<Kept>> {
        let is_lost = |kept: &&Kept| kept.lost && lost(&kept.registration);
        self.kept
            .iter()
            .any(|kept| is_lost(&kept))
            .then(|| self.kept.iter().filter(|kept| !is_lost(kept)).cloned().collect())
    }

    /// Forgets the holder: the next look counts it as new.
    pub(in crate::engine) fn forget_holder(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.holder = None;
        }
    }

    /// The time since which this reservation is seen. `None` if the last look did not see it.
    pub(in crate::engine) fn since(&self, holder: &ReservationHolder) -> Option<SystemTime> {
        let known = self.seen.as_ref()?.holder.as_ref().filter(|known| known.is_same(holder))?;
        known.since
    }

    /// Notes that the store has these registrations.
    pub(in crate::engine) fn has_kept(&mut self, kept: Vec<Kept>) {
        self.kept = kept;
    }

    fn lost_problem(&self, volume: VolumeId) -> Option<Problem> {
        let lost = &self.seen.as_ref()?.lost;
        if lost.is_empty() {
            return None;
        }
        let who: BTreeSet<_> = lost.iter().map(|one| one.initiator.to_string()).collect();
        let who: Vec<_> = who.into_iter().collect();
        Some(Problem {
            object: format!("persistent reservations of volume {volume}"),
            text: format!(
                "the kernel has lost what {} had registered, and takes nothing back while the volume is exported: register \
                 it again there (a cluster's fence agent does: `unfence`), or detach the host",
                who.join(", ")
            ),
            cure: Cure::Operator,
        })
    }
}

/// The mode of an initiator's grant, and the attachments that share it. `None` without a grant.
pub(in crate::engine) fn grant_of<'a>(
    spec: &'a ExportSpec,
    initiator: &Initiator,
) -> Option<(Mode, &'a [AttachmentId])> {
    let iscsi = spec.grants.iter().find(|grant| *initiator == grant.initiator);
    let of_port = || spec.fc.grants.iter().find(|grant| initiator.wwpn() == Some(grant.initiator));
    let iscsi = iscsi.map(|grant| (grant.mode, grant.attachments.as_slice()));
    iscsi.or_else(|| of_port().map(|grant| (grant.mode, grant.attachments.as_slice())))
}

/// Says of an initiator whether the spec grants it the volume.
fn granted(spec: &ExportSpec) -> impl Fn(&Initiator) -> bool {
    |initiator| grant_of(spec, initiator).is_some()
}

impl State {
    /// The registrations that a new backstore gets back.
    pub(in crate::engine) fn put_back(&self, spec: &ExportSpec) -> Vec<Kept> {
        let granted = granted(spec);
        let back = |kept: &&Kept| !kept.lost && granted(&kept.registration.initiator);
        self.held.kept.iter().filter(back).cloned().collect()
    }

    /// The relative port id of this export with which registrations were made. `None` if there are
    /// none.
    pub(in crate::engine) fn registered_port(&self, names: &ExportNames) -> Option<u16> {
        let here = |kept: &&Kept| kept.target == names.iqn.as_str() && kept.tpg == names.tpg && kept.rtpi > 0;
        self.held.kept.iter().find(here).map(|kept| kept.rtpi)
    }
}

impl Engine {
    /// Reads the registrations that the store has.
    pub(in crate::engine) fn load_reservations(&self) -> Result<(), crate::store::StoreError> {
        for (volume, kept) in self.shared.store.reservations()? {
            self.cell(volume).state().held = Held::of(kept);
        }
        Ok(())
    }

    /// Takes back from the controller's copy what this agent kept of an export before it lost its
    /// store. An agent with a spec of the export knows better, and ignores the copy.
    pub(in crate::engine) fn take_reservations(&self, cell: &Cell, copy: &str) -> Result<(), Refusal> {
        let is_known = {
            let state = cell.state();
            state.export().is_some() || !state.held.kept.is_empty()
        };
        if copy.is_empty() || is_known {
            return Ok(());
        }
        let Some(kept) = reservations::parse_kept(copy) else {
            let why = format!(
                "this agent cannot read the controller's copy of the persistent reservations of volume {}, and does not export \
                 the volume without them: is this agent of an older release than the one before it?",
                cell.id
            );
            return Err(Refusal::precondition(why, Cure::Operator));
        };
        self.shared.store.keep_reservations(cell.id, &kept).map_err(Refusal::Store)?;
        tracing::warn!(
            volume = %cell.id,
            registrations = kept.len(),
            "persistent reservations are taken back from the controller's copy: this agent's store has none"
        );
        cell.state().held = Held::of(kept);
        Ok(())
    }

    /// Looks at the reservations of an export after a pass, and keeps those to be kept. Keeps none
    /// of a `doomed` volume.
    pub(in crate::engine) fn note_reservations(
        &self,
        cell: &Cell,
        kept_spec: Option<&KeptSpec<ExportSpec>>,
        end: &ExportEnd,
        doomed: bool,
    ) {
        // Without a spec or tombstone nothing is concluded.
        let Some(kept_spec) = kept_spec else { return };
        let before = cell.state().held.clone();
        // A tombstone removes the export that has the names derived from the id.
        let identity = kept_spec.spec().map_or(&ExportIdentity::Derived, |spec| &spec.identity);
        let names = identity.names(cell.id, &self.shared.config.iqn_prefix);
        let Some(spec) = kept_spec.spec().filter(|_| !doomed) else {
            // No initiator has a grant any more.
            if end.gone {
                self.remove_file(&names);
            }
            self.keep_reservations(cell, Held { seen: None, generation: None, ..before }, Vec::new());
            return;
        };
        let Some((mut seen, file)) = self.see_reservations(&names, &before) else { return };
        if let Some(holder) = &mut seen.holder {
            holder.since = before.since(holder).or_else(|| Some(self.shared.machine.clock.now()));
        }
        let at = Before { kept: &before.kept, generation: before.generation };
        let kept = reservations::keep(at, &seen, file.as_deref(), granted(spec), end.left == Left::Nothing);
        let is_kept = |live: &Registration| kept.iter().any(|kept| kept.registration == *live);
        let unread = seen.durable && file.is_none() && !seen.registrations.iter().all(is_kept);
        seen.lost = kept.iter().filter(|kept| kept.lost).map(|kept| kept.registration.clone()).collect();
        let known = |lost| before.seen.as_ref().is_some_and(|seen| seen.lost.contains(lost));
        for lost in seen.lost.iter().filter(|lost| !known(lost)) {
            tracing::error!(volume = %cell.id, initiator = %lost.initiator, "the kernel has lost a registration that was kept");
        }
        let generation = Some(seen.generation);
        let seen = Some(seen).filter(|seen| !seen.is_empty());
        self.keep_reservations(cell, Held { generation, seen, ..before }, kept);
        if unread {
            let text = "the kernel's file of them cannot be read (the log says why): a loss of power would lose some";
            let object = format!("persistent reservations of volume {}", cell.id);
            cell.state().held.failed = Some(Problem { object, text: text.to_owned(), cure: Cure::Operator });
        }
    }

    /// Removes the file that the kernel leaves behind when the export is gone.
    fn remove_file(&self, names: &ExportNames) {
        let Ok(folder) = self.shared.machine.reservations_folder() else { return };
        let path = folder.join(reservations::file_name(&names.serial));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %path.display(), "cannot remove the kernel's file of reservations");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// The kernel's reservations, and the registrations in its file; the inner `None` if the file
    /// cannot be read. The outer `None` if there is no backstore, or no answer.
    fn see_reservations(
        &self,
        names: &ExportNames,
        before: &Held,
    ) -> Option<(Reservations, Option<Vec<Kept>>)> {
        let tree = &*self.shared.machine.target;
        let told = |error: mooring_targets::Error| {
            tracing::warn!(error = %Chain(&error), "cannot look at persistent reservations");
        };
        let mut seen = reservations::read_reservations(tree, names).map_err(told).ok()??;
        if seen.is_empty() && !before.kept.is_empty() {
            seen.generation = reservations::read_generation(tree, names).map_err(told).ok()??;
        }
        // Also if the kernel shows no registration: only the file shows that initiators have
        // unregistered.
        let file = if seen.durable || !before.kept.is_empty() {
            let folder = self.shared.machine.reservations_folder().map_err(told).ok()?;
            let path = folder.join(reservations::file_name(&names.serial));
            let read = std::fs::read(&path).inspect_err(|error| {
                if !seen.durable && error.kind() == std::io::ErrorKind::NotFound {
                    return;
                }
                tracing::warn!(%error, path = %path.display(), "cannot read the kernel's file of reservations");
            });
            // A loss of power cut an empty file short: the kernel writes text also for no
            // registrations.
            read.ok()
                .filter(|bytes| !bytes.is_empty())
                .map(|bytes| reservations::parse_file(&String::from_utf8_lossy(&bytes)))
        } else {
            Some(Vec::new())
        };
        Some((seen, file))
    }

    /// Says whether a registration was made or ended since the last pass. No event reports one
    /// without APTPL.
    pub(in crate::engine) fn has_new_reservations(&self, cell: &Cell) -> bool {
        let (export, before) = {
            let state = cell.state();
            (state.export_spec().map(|spec| spec.identity.clone()), state.held.clone())
        };
        let Some(identity) = export else { return false };
        let names = identity.names(cell.id, &self.shared.config.iqn_prefix);
        match reservations::read_reservations(&*self.shared.machine.target, &names) {
            Ok(Some(mut seen)) => {
                if let Some(holder) = &mut seen.holder {
                    holder.since = before.since(holder);
                }
                let lost = before.seen.as_ref().map(|seen| seen.lost.clone()).unwrap_or_default();
                Some(Reservations { lost, ..seen }).filter(|seen| !seen.is_empty()) != before.seen
            }
            // The backstore is not as it was.
            Ok(None) | Err(_) => true,
        }
    }

    /// Writes the registrations to be kept, unless the store has them already.
    fn keep_reservations(&self, cell: &Cell, mut held: Held, kept: Vec<Kept>) {
        held.failed = None;
        if held.kept != kept {
            match self.shared.store.keep_reservations(cell.id, &kept) {
                Ok(()) => held.kept = kept,
                Err(error) => {
                    held.failed = Some(Problem {
                        object: format!("persistent reservations of volume {}", cell.id),
                        text: format!(
                            "they cannot be kept, and a loss of power would bring back what was kept before: {}",
                            Chain(&error)
                        ),
                        cure: error.cure(),
                    });
                }
            }
        }
        cell.state().held = held;
    }

    /// Follows the kernel's files. Never returns.
    pub(in crate::engine) async fn follow_reservations(self) {
        loop {
            let engine = self.clone();
            let folder =
                self.blocking(move || engine.shared.machine.reservations_folder().ok()).await.flatten();
            if let Some(mut changes) = folder.as_deref().and_then(watch) {
                // Changes from before the watch stood: a file is there, or was.
                let there = self.volumes_of(&folder.as_deref().map(files_of).unwrap_or_default());
                for cell in self.cells() {
                    if there.contains(&cell.id) || !cell.state().held.is_empty() {
                        self.wake(&cell);
                    }
                }
                while let Some(changed) = changes.recv().await {
                    for cell in self.volumes_of(&changed).into_iter().filter_map(|id| self.known_cell(id)) {
                        self.wake(&cell);
                    }
                }
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    /// The volumes of these unit serials. An adopted export keeps its own serial, which is not its
    /// volume's id. The NAA follows from the serial, and the volume of an NAA is known. Two serials
    /// with one NAA are never both served.
    fn volumes_of(&self, serials: &BTreeSet<String>) -> BTreeSet<VolumeId> {
        let volume = |serial: &String| self.shared.naas.volume(&Naa::of_serial(serial));
        serials.iter().filter_map(volume).collect()
    }
}

/// Reports the unit serials whose files were written, by a thread that ends when the folder goes or
/// the receiver is dropped. `None` if the folder cannot be watched now.
fn watch(folder: &Path) -> Option<mpsc::UnboundedReceiver<BTreeSet<String>>> {
    let told = |errno: Errno| {
        if errno != Errno::ENOENT {
            let folder = folder.display();
            tracing::warn!(%errno, %folder, "cannot watch persistent reservations: they are looked at from time to time only");
        }
    };
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).map_err(told).ok()?;
    let flags = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(folder, flags).map_err(told).ok()?;
    let (sender, changes) = mpsc::unbounded_channel();
    let follow = move || {
        while let Ok(events) = inotify.read_events() {
            if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED))
                || sender.send(written(&events)).is_err()
            {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("reservations".to_owned()).spawn(follow);
    started.inspect_err(|error| tracing::warn!(%error, "cannot watch persistent reservations")).ok()?;
    Some(changes)
}

/// The unit serial of the backstore that a file of the kernel belongs to. `None` for other files.
fn serial_of(file: &OsStr) -> Option<String> {
    file.to_str()?.strip_prefix(&reservations::file_name("")).map(str::to_owned)
}

fn written(events: &[InotifyEvent]) -> BTreeSet<String> {
    events.iter().filter_map(|event| serial_of(event.name.as_ref()?)).collect()
}

/// The unit serials for which the kernel has written files.
fn files_of(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| serial_of(&entry.file_name())).collect()
}

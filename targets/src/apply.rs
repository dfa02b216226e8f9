//! Runs the steps of a plan one by one and stops at the first that fails. It judges nothing: an
//! error is tolerated only where the object is already as the step wants it.
//!
//! What must never happen here: a step that is tried twice, done in another order, or skipped (but
//! for a conditional one that has nothing to do); an error that repeats a value.

use std::ops::ControlFlow;
use std::path::PathBuf;

use mooring_host::{EntryKind, Errno, Tree, TreeError, TreePath};
use mooring_model::{Plan, Step};

use crate::Error;
use crate::layout::{self, Place};
use crate::op::{LeadsTo, Op};

/// Watches the steps of a plan: for stuck calls, receipts ([`drains`](crate::drains)) and fault
/// points.
pub trait Observer {
    /// Called before a step. `Break` stops the plan here, with [`Error::Stopped`].
    fn before(&mut self, _index: usize, _step: &Step<Op>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called after a step that succeeded. A step that failed has no `after`: [`apply`] returns its
    /// error.
    fn after(&mut self, _index: usize, _step: &Step<Op>) {}

    /// Called in the place of [`after`](Self::after) when an [`Op::UnlinkIf`] or an
    /// [`Op::ProtectIf`] changed nothing, because its mapped LUN does not lead there.
    fn skipped(&mut self, _index: usize, _step: &Step<Op>) {}
}

/// Observes nothing.
impl Observer for () {}

/// Runs the steps in order. Removing an ACL blocks until its initiator's commands have drained:
/// call this on a thread that can be lost.
pub fn apply(plan: &Plan<Op>, tree: &dyn Tree, observer: &mut dyn Observer) -> Result<(), Error> {
    let total = plan.steps.len();
    for (index, step) in plan.steps.iter().enumerate() {
        if observer.before(index, step).is_break() {
            return Err(Error::Stopped { index, total });
        }
        tracing::debug!(op = %step.op, why = %step.why, "step");
        match run(&step.op, tree).map_err(|source| Error::step(index, total, step, source))? {
            Ran::Done => observer.after(index, step),
            Ran::Skipped => observer.skipped(index, step),
            Ran::Unexpected(found) => {
                return Err(Error::Unexpected { index, total, step: step.op.to_string(), found });
            }
        }
    }
    Ok(())
}

/// The result of a step whose calls did not fail.
enum Ran {
    /// The object is as the step wants it.
    Done,
    /// The mapped LUN of a conditional step does not lead where the step says.
    Skipped,
    /// An expectation found this text in the place of the expected one.
    Unexpected(String),
}

/// Runs one step.
fn run(op: &Op, tree: &dyn Tree) -> Result<Ran, TreeError> {
    let done = match op {
        Op::Expect { path, value } => {
            let found = tree.read_text(path)?;
            return Ok(if found == *value { Ran::Done } else { Ran::Unexpected(found) });
        }
        Op::UnlinkIf { path, leads_to } => match leading(tree, path, leads_to) {
            Some(link) => tree.unlink(&link),
            None => return Ok(Ran::Skipped),
        },
        Op::ProtectIf { path, leads_to, tag } => match leading(tree, path, leads_to) {
            Some(_) => protect(tree, path, tag.as_ref()),
            None => return Ok(Ran::Skipped),
        },
        Op::Mkdir { path } => unless(&[Errno::EEXIST], tree.mkdir(path)),
        Op::Rmdir { path } => unless(&[Errno::ENOENT], tree.rmdir(path)),
        Op::Prune { path } => unless(&[Errno::ENOENT, Errno::ENOTEMPTY], tree.rmdir(path)),
        Op::Link { target, link } => tree.symlink(target, link),
        Op::Unlink { path } => unless(&[Errno::ENOENT], tree.unlink(path)),
        Op::Write { path, value } => {
            // An enabled backstore answers another `enable` with an error; every other attribute
            // accepts its own value again.
            tree.write(path, value.expose()).or_else(|error| match (error.errno, Place::of(path)) {
                (Errno::EEXIST, Place::BackstoreAttribute("enable")) => Ok(()),
                _ => Err(error),
            })
        }
        Op::Advise { path, value } => {
            unless(&[Errno::EINVAL, Errno::ENOSYS], tree.write(path, value.expose()))
        }
        Op::WriteIfThere { path, value } => unless(&[Errno::ENOENT], tree.write(path, value.expose())),
    };
    done.map(|()| Ran::Done)
}

/// Makes a mapped LUN read-only. If it is writable, takes a barrier's name from the ACL's tag
/// first; `None` leaves the tag alone.
fn protect(tree: &dyn Tree, mapped: &TreePath, tag: Option<&TreePath>) -> Result<(), TreeError> {
    let switch = mapped.join("write_protect");
    if let Some(tag) = tag
        && tree.read_text(&switch)? != "1"
        && tree.read_text(tag)?.starts_with(layout::BARRIER)
    {
        tree.write(tag, layout::UNSET.as_bytes())?;
    }
    tree.write(&switch, b"1")
}

/// Returns the link by which a mapped LUN leads there; `None` if it leads elsewhere, is half made,
/// or could not be read. Only the mapped LUN's own folder is listed: another call may hold the one
/// of the ACLs for ever.
fn leading(tree: &dyn Tree, mapped: &TreePath, leads_to: &LeadsTo) -> Option<TreePath> {
    let leads = |link: &TreePath, to: &TreePath| tree.read_link(link).is_ok_and(|found| found == *to);
    let ours = Some(mapped.join(layout::LINK)).filter(|link| leads(link, &leads_to.lun));
    let link = ours.or_else(|| {
        // In an adopted export the link has the name that others gave it.
        let entries = tree.list(mapped).unwrap_or_default().into_iter();
        let links = entries.filter(|entry| entry.kind == EntryKind::Link);
        links.map(|entry| mapped.join(entry.name)).find(|link| leads(link, &leads_to.lun))
    });
    let shows = leads_to.backstore.as_ref().is_none_or(|to| leads(&leads_to.lun.join(layout::LINK), to));
    link.filter(|_| shows)
}

fn unless(done: &[Errno], result: Result<(), TreeError>) -> Result<(), TreeError> {
    result.or_else(|error| if done.contains(&error.errno) { Ok(()) } else { Err(error) })
}

/// Makes sure that the iSCSI fabric exists; called once when an agent starts. The kernel loads the
/// module by itself if it can. Nothing else changes: discovery authentication stays as the operator
/// has it.
pub fn prepare(tree: &dyn Tree) -> Result<(), Error> {
    unless(&[Errno::EEXIST], tree.mkdir(&layout::fabric())).map_err(Error::no_fabric)
}

/// The folder where the kernel keeps persistent reservations. It must exist before a volume is
/// exported, else every change of a registration answers "not ready" (lio.md, f). It lies outside
/// the tree: the caller creates it.
pub fn pr_folder(tree: &dyn Tree) -> Result<PathBuf, Error> {
    let root = tree.read_text(&TreePath::new("dbroot")).map_err(Error::no_fabric)?;
    Ok(PathBuf::from(root.trim()).join("pr"))
}

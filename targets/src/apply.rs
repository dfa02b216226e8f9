//! Runs the steps of a plan one by one and stops at the first that fails. It judges nothing: an
//! error is tolerated only where the object is already as the step wants it.
//!
//! What must never happen here: a step that is tried twice, skipped, or done in another order; an
//! error that repeats a value.

use std::ops::ControlFlow;
use std::path::PathBuf;

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::{Plan, Step};

use crate::Error;
use crate::layout::{self, Place};
use crate::op::Op;

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
        let found = run(&step.op, tree).map_err(|source| Error::step(index, total, step, source))?;
        if let Some(found) = found {
            return Err(Error::Unexpected { index, total, step: step.op.to_string(), found });
        }
        observer.after(index, step);
    }
    Ok(())
}

/// Runs one step. `Some` is the text that an expectation found in the place of the expected one;
/// `None` if the step is done.
fn run(op: &Op, tree: &dyn Tree) -> Result<Option<String>, TreeError> {
    let done = match op {
        Op::Expect { path, value } => return Ok(Some(tree.read_text(path)?).filter(|found| found != value)),
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
    done.map(|()| None)
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

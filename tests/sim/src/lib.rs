//! The simulation: the real controller and the real agents on fake hosts, in one process, in
//! virtual time, from a seed.
//!
//! One run is one runtime with one thread, a clock that stands still while anything can be done, a
//! network in memory, and two storage nodes whose kernel, LVM and disks are the fakes of
//! `mooring-host`. `docs/simulation.md` says what is real and what is not.
//!
//! What must never happen here: a choice or a time that does not follow from the seed; a violation
//! that is not reported.

mod calls;
mod check;
mod clients;
mod control;
mod ears;
mod faults;
mod gate;
mod hand;
mod jobs;
mod lie;
mod model;
mod net;
mod node;
mod pace;
mod run;
mod settle;
mod switch;
mod time;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// A defect put in on purpose, to show that the simulation would see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Broken {
    /// The network says "revoked", and the agent never hears of it.
    Answer,
    /// The kernel says that a mapped LUN and its ACL are removed, and keeps both.
    Revoke,
    /// The kernel maps everything writable.
    Mode,
    /// The kernel tells the agent of no change that somebody else makes.
    Told,
    /// Where calls take time, the kernel says that a mapped LUN and its ACL are removed, and
    /// removes them later.
    Late,
    /// LVM says that a volume was extended, and leaves it as it is.
    Grow,
    /// LVM says that a growth was removed, and keeps it.
    Cancel,
    /// A revert copies the volume in the place of its snapshot.
    Revert,
    /// Whoever takes an LV away by hand leaves an empty one in its place.
    Anew,
    /// With its store, an agent loses its exports.
    Store,
}

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of events before everything heals.
    pub events: u32,
    /// Defect put in on purpose; `None` for a run without one.
    pub broken: Option<Broken>,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Violations of what must never happen. A good run has none.
    pub violations: Vec<String>,
    /// Events of the run, line by line.
    pub trace: Vec<String>,
    /// Hash of the trace; one seed always gives the same hash.
    pub hash: u64,
    /// Number of occurrences of each kind of event.
    pub counts: BTreeMap<&'static str, u64>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one seed.
pub fn run(seed: u64, options: Options) -> Result<Outcome> {
    // In memory if possible: the duration of a disk's sync must not matter.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).context("make a folder")?;
    let gate = gate::Gate::default();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    gate.attach(&mut builder);
    let runtime = builder
        .enable_time()
        .start_paused(true)
        // One thread runs all transactions in order.
        .max_blocking_threads(1)
        // Tasks woken by another thread run after everything else, so that its speed does not
        // affect the order.
        .global_queue_interval(u32::MAX)
        .build()
        .context("start a runtime")?;
    let path = dir.path().to_owned();
    let ended = runtime.block_on(async {
        gate.close();
        tokio::spawn(async move {
            let run = run::Run::new(seed, &options, &path).await?;
            let model = Arc::clone(&run.world.model);
            let ended = run.all(options.events).await;
            ended.map(|()| model)
        })
        .await
    });
    runtime.shutdown_background();
    let model =
        ended.with_context(|| format!("seed {seed} panicked"))?.with_context(|| format!("seed {seed}"))?;
    let model = lock(&model);
    Ok(Outcome {
        seed,
        violations: model.violations.clone(),
        trace: model.trace.clone(),
        hash: model.hash(),
        counts: model.counts.clone(),
    })
}
